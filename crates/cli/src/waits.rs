//! Requests in flight, as commands show them.

use std::time::Duration;

use forebay_base::in_flight::{self, Asker, InFlight, WaitsFor};
use forebay_base::{Ino, NodeId};
use forebay_fs::Namespace;
use forebay_node::members::visit::{Cause, WAITS_MAX, Wait};

/// The job of a process, as far as it is known without waiting for that process: it is stuck.
pub type JobAtOnce<'a> = &'a dyn Fn(u32) -> Option<String>;

/// The requests of this process that arrived at least `min` ago, the oldest first, at most `most`. Paths are not looked for.
pub fn of_this_node(fs: &Namespace, job: JobAtOnce<'_>, min: Duration, most: usize) -> Vec<Wait> {
    let oldest = in_flight::list(fs.instant(), min).into_iter().take(most);
    oldest.map(|request| wait(fs, job, &request)).collect()
}

/// As [`of_this_node`], with paths as far as this node knows them.
pub fn with_paths(fs: &Namespace, job: JobAtOnce<'_>, min: Duration) -> Vec<Wait> {
    let mut waits = of_this_node(fs, job, min, WAITS_MAX);
    let inos: Vec<Ino> = waits.iter().map(|wait| wait.ino).collect();
    let mut paths = fs.paths_of(&inos);
    for wait in &mut waits {
        wait.path = paths.remove(&wait.ino).or_else(|| wait.path.take());
    }
    waits
}

fn wait(fs: &Namespace, job: JobAtOnce<'_>, request: &InFlight) -> Wait {
    let cause = match &request.waits_for {
        None => Cause::Work,
        Some(WaitsFor::Node(node)) => Cause::Answer(*node),
        Some(WaitsFor::Recall(node)) => Cause::Recall(*node),
        Some(WaitsFor::Report(node, directory)) => Cause::Report(*node, *directory),
        Some(WaitsFor::Owner(fileset)) => {
            let names = fs.fileset_names();
            let name = names.iter().find(|(id, _)| id == fileset).map(|(_, name)| name.clone());
            Cause::Owner(name.unwrap_or_else(|| fileset.to_string()))
        }
        Some(WaitsFor::Lease) => Cause::Lease,
        Some(WaitsFor::Handover) => Cause::Handover,
        Some(WaitsFor::Lock) => Cause::Lock,
        Some(WaitsFor::Commit) => Cause::Commit,
        Some(WaitsFor::Space) => Cause::Space,
        Some(WaitsFor::Disk(disk)) => Cause::Disk(disk.to_string()),
        Some(WaitsFor::Archive(recall)) => Cause::Archive(recall.to_string()),
    };
    let (process, client) = match request.asker {
        Asker::Process(number) => (Some((number, command_of(number))), None),
        Asker::Node(node) => (None, Some(node)),
    };
    let number = process.as_ref().map(|(number, _)| *number);
    Wait {
        age_ms: u64::try_from(request.age.as_millis()).unwrap_or(u64::MAX),
        operation: request.operation.to_ascii_lowercase(),
        ino: request.ino,
        path: None,
        process,
        job: number.and_then(job),
        uid: number.and_then(user_of),
        client,
        cause,
    }
}

/// What a node is called where nobody knows its name.
pub fn shown(node: NodeId) -> String {
    format!("node {node}")
}

/// The user of a process; none if it is gone. Its folder may belong to root all the same (proc_pid(5)).
fn user_of(number: u32) -> Option<u32> {
    effective_user(&std::fs::read_to_string(format!("/proc/{number}/status")).ok()?)
}

/// The effective user in the text of `/proc/PID/status`.
fn effective_user(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    numbers.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The command of a process; empty if it is gone.
fn command_of(number: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{number}/comm"));
    text.map(|text| text.trim_end().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_process_is_the_effective_one_of_its_status() {
        let status = "Name:\tsu\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t1\t1\t1\t1\n";
        assert_eq!(effective_user(status), Some(1001));
        assert_eq!(effective_user("Name:\tx\n"), None);
        assert_eq!(user_of(std::process::id()), Some(rustix::process::geteuid().as_raw()));
    }
}
