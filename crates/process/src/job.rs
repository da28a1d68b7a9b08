//! Which job of a grid a process belongs to: by its control group where the grid has made one, else by its environment.
//!
//! A control group is the grid's word. An environment is the process's own, which may say what it likes: enough to attribute
//! work to jobs, not to decide anything.

use std::io::Read as _;

use crate::stat::Stat;

/// Most bytes of an environment that are read.
const ENVIRONMENT_MAX: u64 = 256 << 10;

/// A process as it was just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When it was started, in clock ticks since the boot.
    pub started: u64,
    /// Its job: the number of a job of a grid of ours (`12`, `12[3]`), or with the name of another (`slurm-12`,
    /// `lsf-12`); none if it belongs to none.
    pub job: Option<String>,
}

/// Looks at a process or thread; none if it is not there any more.
#[must_use]
pub fn look(pid: u32) -> Option<Seen> {
    let started = start_of(pid)?;
    let job = by_group(pid).or_else(|| of_environment(&environment(pid)));
    Some(Seen { started, job })
}

/// The job of a process or thread, by its control group alone. It waits for nothing, whereas reading the environment of a process that
/// is stuck in a page fault waits until that is over.
#[must_use]
pub fn by_group(pid: u32) -> Option<String> {
    of_group(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// When a process or thread was started; none if it is not there any more.
#[must_use]
pub fn start_of(pid: u32) -> Option<u64> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    Some(Stat::of(pid)?.started)
}

fn environment(pid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(format!("/proc/{pid}/environ")) {
        // What was read before an error is as good.
        let _ = file.take(ENVIRONMENT_MAX).read_to_end(&mut bytes);
    }
    bytes
}

fn numbered(number: &str, index: &str) -> Option<String> {
    let is_number = |text: &str| {
        !text.is_empty() && text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    (is_number(number) && is_number(index)).then(|| match index {
        "0" => number.to_owned(),
        index => format!("{number}[{index}]"),
    })
}

fn foreign(grid: &str, number: &str) -> Option<String> {
    numbered(number, "0").map(|number| format!("{grid}-{number}"))
}

/// The job that a text such as that of `/proc/PID/cgroup` names.
fn of_group(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let parts: Vec<&str> = path.split('/').collect();
        let ours = |pair: &[&str]| {
            let mut words = pair[0].starts_with("forebay-").then(|| pair[1].split('.'))?;
            let (number, index, _attempt) = (words.next()?, words.next()?, words.next()?);
            words.next().is_none().then(|| numbered(number, index))?
        };
        let of_slurm = |part: &&str| foreign("slurm", part.strip_prefix("job_")?);
        let of_lsf = |part: &&str| foreign("lsf", part.strip_prefix("job.")?.split('.').next()?);
        let below = |name: &str| path.contains(name).then_some(&parts);
        parts
            .windows(2)
            .find_map(ours)
            .or_else(|| below("slurm")?.iter().find_map(of_slurm))
            .or_else(|| below("/lsf/")?.iter().find_map(of_lsf))
    })
}

/// The job that variables name, each ended by a zero byte.
fn of_environment(bytes: &[u8]) -> Option<String> {
    let value = |name: &str| {
        let found = bytes
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        found.and_then(|value| std::str::from_utf8(value).ok())
    };
    let ours =
        value("FOREBAY_JOB").and_then(|job| numbered(job, value("FOREBAY_INDEX").unwrap_or("0")));
    ours.or_else(|| foreign("slurm", value("SLURM_JOB_ID")?))
        .or_else(|| foreign("lsf", value("LSB_JOBID")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_name_jobs() {
        let cases = [
            ("0::/user.slice/forebay-1a2b-host1/12.0.1\n", Some("12")),
            ("4:memory:/x\n0::/a/forebay-1a2b-host1/12.3.1/below\n", Some("12[3]")),
            ("1:name=systemd:/\n5:pids:/forebay-1a2b-host1/7.0.2\n", Some("7")),
            ("0::/system.slice/slurmstepd.scope/job_123/step_0/user\n", Some("slurm-123")),
            ("9:memory:/slurm/uid_5/job_9/step_batch\n", Some("slurm-9")),
            ("3:memory:/lsf/cluster1/job.55.17.1690000000\n", Some("lsf-55")),
            ("0::/forebay-1a2b-host1\n", None),
            ("0::/forebay-1a2b-host1/oops\n", None),
            ("0::/forebay-x/1.2\n", None),
            ("0::/job_5\n", None),
            ("", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(of_group(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn environments_name_jobs_and_those_of_ours_come_first() {
        let of = |text: &str| of_environment(text.as_bytes());
        assert_eq!(of("A=1\0FOREBAY_JOB=12\0FOREBAY_INDEX=0\0").as_deref(), Some("12"));
        assert_eq!(
            of("SLURM_JOB_ID=4\0FOREBAY_JOB=12\0FOREBAY_INDEX=4\0").as_deref(),
            Some("12[4]")
        );
        assert_eq!(of("SLURM_JOB_ID=4\0").as_deref(), Some("slurm-4"));
        assert_eq!(of("LSB_JOBID=4").as_deref(), Some("lsf-4"));
        for none in [
            "",
            "FOREBAY_JOB=\0",
            "FOREBAY_JOB=1; rm\0",
            "XFOREBAY_JOB=1\0",
            "FOREBAY_JOB=12345678901\0",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(of_environment(b"\xff\xfe=\xff\0FOREBAY_JOB=\xff\0"), None);
    }

    #[test]
    fn a_process_that_is_there_is_seen_and_one_that_is_gone_is_not() {
        let own = look(std::process::id()).unwrap();
        assert_eq!(Some(own.started), start_of(std::process::id()));
        let mut child =
            std::process::Command::new("sleep").arg("60").env("FOREBAY_JOB", "77").spawn().unwrap();
        // The child is a copy of this process until it has become its program.
        let seen = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            look(child.id()).filter(|seen| seen.job.as_deref() == Some("77"))
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.is_some());
        assert_eq!(look(child.id()), None);
    }
}
