//! Where the output and the errors of a task go.

use crate::dialect::{Dialect, System, slurm_name};
use crate::spec::JobSpec;
use crate::vocabulary::{HostName, TaskId};

impl JobSpec {
    /// Where the output of a task goes: a path below its directory, none if it is interactive. `%J` in what the user gave
    /// stands for the job, `%I` for the element. A path that ends in `/` is a directory, in which the file has the name that
    /// it has if none is given. A job in Slurm's words has names in Slurm's notation, in which its host may be.
    #[must_use]
    pub fn output_path(&self, task: TaskId, host: Option<&HostName>) -> String {
        if self.interactive.is_some() {
            return String::new();
        }
        below(self, self.output.as_deref().unwrap_or_default(), "out", (task, host))
    }

    /// Where the errors of a task go, if not with the output.
    #[must_use]
    pub fn error_path(&self, task: TaskId, host: Option<&HostName>) -> Option<String> {
        self.error.as_ref().map(|given| below(self, given, "err", (task, host)))
    }
}

fn below(spec: &JobSpec, given: &str, suffix: &str, place: (TaskId, Option<&HostName>)) -> String {
    let task = place.0;
    let element = if spec.array.is_some() { "-%I" } else { "" };
    let given = match given {
        file if !file.is_empty() && !file.ends_with('/') => file.to_owned(),
        directory => format!("{directory}forebay-%J{element}.{suffix}"),
    };
    let name = match &spec.dialect {
        Some(Dialect { system: System::Slurm, index_shift, .. }) => {
            slurm_name(&given, spec, *index_shift, place)
        }
        Some(Dialect { system: System::Lsf, .. }) | None => {
            given.replace("%J", &task.job.to_string()).replace("%I", &task.index.to_string())
        }
    };
    std::path::Path::new(&spec.directory).join(name).display().to_string()
}

#[cfg(test)]
mod tests {
    use crate::vocabulary::JobId;

    use super::*;

    #[test]
    fn an_output_that_ends_in_a_slash_is_a_directory() {
        let task = TaskId { job: JobId(7), index: 3 };
        let of = |output: Option<&str>, array: Option<&str>| {
            let spec = JobSpec {
                directory: "/srv".to_owned(),
                output: output.map(str::to_owned),
                error: output.map(str::to_owned),
                array: array.map(|array| array.parse().unwrap()),
                ..JobSpec::default()
            };
            (spec.output_path(task, None), spec.error_path(task, None))
        };
        let both = |out: &str, err: &str| (out.to_owned(), Some(err.to_owned()));
        assert_eq!(of(None, None), ("/srv/forebay-7.out".to_owned(), None));
        assert_eq!(of(Some("d/"), None), both("/srv/d/forebay-7.out", "/srv/d/forebay-7.err"));
        let array = both("/tmp/7/forebay-7-3.out", "/tmp/7/forebay-7-3.err");
        assert_eq!(of(Some("/tmp/%J/"), Some("[1-9]")), array);
        assert_eq!(of(Some("x.%I"), Some("[1-9]")), both("/srv/x.3", "/srv/x.3"));
    }
}
