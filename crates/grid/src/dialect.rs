//! Jobs that were submitted with the words of Slurm or of LSF: how their elements are numbered, how the names of their
//! files are written, and what is remembered of such a submission.
//!
//! Elements of an array here begin at 1, and 0 stands for a job that is not an array. Slurm's begin at 0. So an array
//! with an element 0 is kept with all indices raised by [`Dialect::index_shift`]; only the commands in Slurm's style, the
//! job's environment and the names of its files show the indices that the user gave.

use serde::{Deserialize, Serialize};

use crate::spec::JobSpec;
use crate::vocabulary::{HostName, JobId, TaskId};

/// The most bytes of a comment.
pub const COMMENT_BYTES_MAX: usize = 4096;

/// What Slurm prints where a job that is not an array has no index.
const NO_INDEX: &str = "4294967294";

/// Numbers from here on stand for one element of an array: see [`element_number`].
const ELEMENTS_PER_JOB: u64 = 10_000_000_000;

/// Whose words they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Those of Slurm: sbatch, srun.
    Slurm,
    /// Those of LSF: bsub.
    Lsf,
}

/// What the first start of a job does with files of output that are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldOutput {
    /// It empties them.
    #[default]
    Emptied,
    /// It adds to them.
    Kept,
}

/// How a job was submitted, if not with our own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dialect {
    /// Whose words.
    pub system: System,
    /// What the indices of its elements are higher than the user wrote them.
    #[serde(default)]
    pub index_shift: u32,
    /// A text of the user's; may be empty.
    #[serde(default)]
    pub comment: String,
    /// What its first start does with files of output that are there.
    #[serde(default)]
    pub old_output: OldOutput,
}

impl Dialect {
    /// One of a system, without anything special.
    #[must_use]
    pub fn of(system: System) -> Dialect {
        Dialect { system, index_shift: 0, comment: String::new(), old_output: OldOutput::Emptied }
    }

    /// The index of an element as its user wrote it.
    #[must_use]
    pub fn user_index(&self, index: u32) -> u32 {
        index.saturating_sub(self.index_shift)
    }
}

impl JobSpec {
    /// What the indices of its elements are higher than its user wrote them.
    pub(crate) fn index_shift(&self) -> u32 {
        self.dialect.as_ref().map_or(0, |dialect| dialect.index_shift)
    }
}

/// The one number of a task, as Slurm has one for every element of an array: that of the job if it is not an array, else
/// the job's with the index in ten digits behind it.
#[must_use]
pub fn element_number(task: TaskId) -> u64 {
    match task.index {
        0 => task.job.0,
        index => task.job.0.saturating_mul(ELEMENTS_PER_JOB).saturating_add(index.into()),
    }
}

/// The task of a number that [`element_number`] gave.
#[must_use]
pub fn task_of_number(number: u64) -> TaskId {
    if number < ELEMENTS_PER_JOB {
        return TaskId::only(JobId(number));
    }
    let index = u32::try_from(number % ELEMENTS_PER_JOB).unwrap_or(u32::MAX);
    TaskId { job: JobId(number / ELEMENTS_PER_JOB), index }
}

/// The name of a file as Slurm writes it: `%A` and `%a` stand for the job and the element, `%j` and `%J` for the number of
/// the task, `%b` for the element modulo 10, `%x` for the name, `%s` for the step, `%t` and `%n` for the process and the node, `%N` for the
/// host up to its first point, once it is known, `%%` for itself; a number between, as in `%4a`, fills with zeros. What else follows a `%` stays.
pub(crate) fn slurm_name(
    pattern: &str,
    spec: &JobSpec,
    shift: u32,
    (task, host): (TaskId, Option<&HostName>),
) -> String {
    let mut name = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        name.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        // Slurm fills to ten characters at most.
        let width = after[..digits].parse::<usize>().unwrap_or(0).min(10);
        let letter = after[digits..].chars().next();
        let number = |number: u64| format!("{number:0width$}");
        let value = match letter {
            Some('A') => Some(number(task.job.0)),
            Some('a') if task.index == 0 => Some(NO_INDEX.to_owned()),
            Some('a') => Some(number(task.index.saturating_sub(shift).into())),
            Some('b') if task.index == 0 => Some(NO_INDEX[NO_INDEX.len() - 1..].to_owned()),
            Some('b') => Some(number((task.index.saturating_sub(shift) % 10).into())),
            Some('N') => {
                host.map(|host| host.as_str().split('.').next().unwrap_or_default().to_owned())
            }
            Some('j' | 'J') => Some(number(element_number(task))),
            Some('t' | 'n') => Some(number(0)),
            Some('s') => Some("batch".to_owned()),
            Some('x') => Some(spec.name.clone()),
            Some('%') => Some("%".to_owned()),
            _ => None,
        };
        rest = match (value, letter) {
            (Some(value), Some(letter)) => {
                name.push_str(&value);
                &after[digits + letter.len_utf8()..]
            }
            _ => {
                name.push('%');
                after
            }
        };
    }
    name + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_element() {
        for (task, number) in [
            (TaskId::only(JobId(12)), 12),
            (TaskId { job: JobId(12), index: 3 }, 120_000_000_003),
            (TaskId { job: JobId(1), index: 100_000_000 }, 10_100_000_000),
        ] {
            assert_eq!(element_number(task), number);
            assert_eq!(task_of_number(number), task);
        }
        assert_eq!(task_of_number(u64::MAX).job, JobId(u64::MAX / ELEMENTS_PER_JOB));
    }

    #[test]
    fn names_of_files_are_read_as_slurm_reads_them() {
        let spec = JobSpec { name: "load".to_owned(), ..JobSpec::default() };
        let element = TaskId { job: JobId(7), index: 3 };
        let host: HostName = "n1.site".parse().unwrap();
        let of = |pattern: &str, task| slurm_name(pattern, &spec, 1, (task, Some(&host)));
        assert_eq!(of("slurm-%A_%a.out", element), "slurm-7_2.out");
        assert_eq!(of("%x-%3a-%4A_%j", element), "load-002-0007_70000000003");
        assert_eq!(of("%x.%j.%s.%t", TaskId::only(JobId(7))), "load.7.batch.0");
        assert_eq!(of("%N.%b.%3b.%%N", element), "n1.2.002.%N");
        let waiting = slurm_name("%N-%a", &spec, 1, (element, None));
        assert_eq!(waiting, "%N-2", "its host is not known yet");
        assert_eq!(of("%%j %q 5% %", element), "%j %q 5% %");
        assert_eq!(of("%a", TaskId::only(JobId(7))), NO_INDEX);
        assert_eq!(of("ä%é%9", element), "ä%é%9");
    }
}
