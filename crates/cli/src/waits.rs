//! Requests in flight, as commands show them.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use forebay_base::in_flight::{self, Asker, InFlight, WaitsFor};
use forebay_base::{Ino, NodeId};
use forebay_fs::Namespace;
use forebay_node::members::visit::{Cause, WAITS_MAX, Wait};
use forebay_process::job;

/// The requests of this process that arrived at least `min` ago, the oldest first, at most `most`. Paths are not looked for.
pub fn of_this_node(fs: &Namespace, min: Duration, most: usize) -> Vec<Wait> {
    let oldest = in_flight::list(fs.instant(), min).into_iter().take(most);
    oldest.map(|request| wait(fs, &request)).collect()
}

/// As [`of_this_node`], with paths as far as this node knows them.
pub fn with_paths(fs: &Namespace, min: Duration) -> Vec<Wait> {
    let mut waits = of_this_node(fs, min, WAITS_MAX);
    let inos: Vec<Ino> = waits.iter().map(|wait| wait.ino).collect();
    let mut paths = fs.paths_of(&inos);
    for wait in &mut waits {
        wait.path = paths.remove(&wait.ino).or_else(|| wait.path.take());
    }
    waits
}

fn wait(fs: &Namespace, request: &InFlight) -> Wait {
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
        job: number.and_then(|number| job::look(number)?.job),
        uid: number.and_then(user_of),
        client,
        cause,
    }
}

/// What a node is called where nobody knows its name.
pub fn shown(node: NodeId) -> String {
    format!("node {node}")
}

/// The user of a process; none if it is gone.
fn user_of(number: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{number}")).ok().map(|process| process.uid())
}

/// The command of a process; empty if it is gone.
fn command_of(number: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{number}/comm"));
    text.map(|text| text.trim_end().to_owned()).unwrap_or_default()
}
