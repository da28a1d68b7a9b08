//! Requests in flight, as commands show them.

use std::time::Duration;

use forebay_base::in_flight::{self, Asker, InFlight, WaitsFor};
use forebay_base::{Ino, NodeId};
use forebay_fs::Namespace;
use forebay_node::members::visit::{WAITS_MAX, Wait};

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
    let (reason, waits_for) = match &request.waits_for {
        None => ("is being carried out".to_owned(), None),
        Some(WaitsFor::Node(node)) => (format!("an answer from {}", shown(*node)), Some(*node)),
        Some(WaitsFor::Recall(node)) => (
            format!("{}, which has to give back what it caches (recall)", shown(*node)),
            Some(*node),
        ),
        Some(WaitsFor::Report(node, directory)) => {
            let reason = format!(
                "a report of {}, to which directory {directory} is delegated",
                shown(*node)
            );
            (reason, Some(*node))
        }
        Some(WaitsFor::Owner(fileset)) => {
            let names = fs.fileset_names();
            let name = names.iter().find(|(id, _)| id == fileset).map(|(_, name)| name.clone());
            let name = name.unwrap_or_else(|| fileset.to_string());
            (format!("an owner of fileset {name}"), None)
        }
        Some(WaitsFor::Lease) => {
            ("the lease of this node: etcd does not answer in time".to_owned(), None)
        }
        Some(WaitsFor::Handover) => ("the handover of its fileset".to_owned(), None),
        Some(WaitsFor::Lock) => ("a lock that another program holds".to_owned(), None),
        Some(WaitsFor::Commit) => ("a commit of its fileset".to_owned(), None),
        Some(WaitsFor::Space) => ("space on a disk".to_owned(), None),
        Some(WaitsFor::Disk(disk)) => (disk.to_string(), None),
    };
    let (process, client) = match request.asker {
        Asker::Process(number) => (Some((number, command_of(number))), None),
        Asker::Node(node) => (None, Some(node)),
    };
    Wait {
        age_ms: u64::try_from(request.age.as_millis()).unwrap_or(u64::MAX),
        operation: request.operation.to_ascii_lowercase(),
        ino: request.ino,
        path: None,
        process,
        client,
        reason,
        waits_for,
    }
}

/// How a reason names a node; who knows its name puts that in its place.
pub fn shown(node: NodeId) -> String {
    format!("node {node}")
}

/// The command of a process; empty if it is gone.
fn command_of(number: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{number}/comm"));
    text.map(|text| text.trim_end().to_owned()).unwrap_or_default()
}
