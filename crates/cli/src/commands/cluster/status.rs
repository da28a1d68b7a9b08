//! `forebay cluster status`.

use std::collections::BTreeMap;

use anyhow::Result;
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, FilesetId, NodeId};
use forebay_node::NodeHome;
use forebay_node::home::NodeFile;
use forebay_node::members::record::DiskRecord;
use forebay_node::members::visit::NodeStatus;
use serde::Serialize;

use super::{Which, tools};
use crate::output::{Table, put_json};

/// Show the nodes of the cluster, their leases, owners of filesets, disks and sessions.
///
/// If etcd does not answer, shows what this node itself knows, and fails.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster status
  forebay cluster status --json | jq '.nodes[] | select(.state != \"up\")'")]
pub struct Status {
    #[command(flatten)]
    which: Which,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Found {
    cluster: String,
    id: String,
    nodes: Vec<FoundNode>,
    filesets: Vec<FoundFileset>,
    disks: BTreeMap<String, DiskRecord>,
}

#[derive(Serialize)]
struct FoundNode {
    node: NodeId,
    name: String,
    address: String,
    /// up, waiting (for etcd), unreachable (has a lease and does not answer), or down (without a lease).
    state: &'static str,
    draining: bool,
    has_authority: bool,
    certificate_expires: i64,
    version: String,
    /// What it says of itself; none if it does not answer.
    status: Option<NodeStatus>,
    /// Why it does not answer.
    problem: Option<String>,
}

#[derive(Serialize)]
struct FoundFileset {
    fileset: FilesetId,
    owner: Option<NodeId>,
    epoch: u64,
    pinned: Option<NodeId>,
}

impl Status {
    pub fn run(self) -> Result<()> {
        let (home, file) = self.which.node()?;
        let tools = tools()?;
        let book = tools.book(&file)?;
        match book.read() {
            Ok(read) => {
                let found = look(&home, &file, &read)?;
                if self.json { put_json(&found) } else { print(&found) }
            }
            Err(error) => {
                if let Ok(status) = tools.status_of(&home, &file, (file.node, &file.address)) {
                    let state = state_of(Some(&status), true);
                    note!("forebay: this node, {}, is {state}", file.name);
                }
                Err(anyhow::Error::new(error).context(format!("cluster {}", file.cluster_name)))
            }
        }
    }
}

fn state_of(status: Option<&NodeStatus>, is_alive: bool) -> &'static str {
    match (status, is_alive) {
        (_, false) => "down",
        (Some(status), true) if status.answers_ms.is_some() => "up",
        (Some(_), true) => "waiting",
        (None, true) => "unreachable",
    }
}

type Read = (forebay_node::members::roster::Sight, forebay_node::members::View);

/// Asks all nodes that run, at the same time.
fn look(home: &NodeHome, file: &NodeFile, (sight, view): &Read) -> Result<Found> {
    let answers: BTreeMap<NodeId, Result<NodeStatus>> = std::thread::scope(|scope| {
        let asked: Vec<_> = sight
            .nodes
            .iter()
            .filter(|(node, _)| sight.alive.contains_key(node))
            .map(|(node, record)| {
                let ask = move || Ok(tools()?.status_of(home, file, (*node, &record.address))?);
                (*node, scope.spawn(ask))
            })
            .collect();
        let joined = |answer: std::thread::ScopedJoinHandle<'_, Result<NodeStatus>>| {
            answer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the question failed")))
        };
        asked.into_iter().map(|(node, answer)| (node, joined(answer))).collect()
    });
    let mut answers = answers;
    let nodes = sight.nodes.iter().map(|(node, record)| {
        let answer = answers.remove(node);
        let (status, problem) = match answer {
            Some(Ok(status)) => (Some(status), None),
            Some(Err(error)) => (None, Some(crate::output::chain(&error))),
            None => (None, None),
        };
        FoundNode {
            node: *node,
            name: record.name.clone(),
            address: record.address.clone(),
            state: state_of(status.as_ref(), sight.alive.contains_key(node)),
            draining: sight.draining.contains(node),
            has_authority: record.has_authority,
            certificate_expires: record.expires,
            version: record.version.clone(),
            status,
            problem,
        }
    });
    let filesets = view.owners.iter().map(|(fileset, record)| FoundFileset {
        fileset: *fileset,
        owner: record.owner.map(|owner| owner.node),
        epoch: record.epoch.0,
        pinned: view.pinned.get(fileset).copied(),
    });
    Ok(Found {
        cluster: file.cluster_name.clone(),
        id: file.cluster.to_string(),
        nodes: nodes.collect(),
        filesets: filesets.collect(),
        disks: sight.disks.clone(),
    })
}

fn seconds(milliseconds: u64) -> String {
    format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100)
}

fn days_left(expires: i64) -> String {
    let left = expires - SystemClock.now().seconds;
    if left <= 0 { "EXPIRED".to_owned() } else { format!("{} d", left / 86400) }
}

fn print(found: &Found) -> Result<()> {
    outln!("cluster  {} ({})\n", found.cluster, found.id);
    let names: BTreeMap<NodeId, &str> =
        found.nodes.iter().map(|node| (node.node, node.name.as_str())).collect();
    let name = |node: Option<NodeId>| match node {
        Some(node) => names.get(&node).map_or_else(|| node.to_string(), ToString::to_string),
        None => "-".to_owned(),
    };
    let mut nodes =
        Table::new(&["NODE", "NAME", "ADDRESS", "STATE", "LEASE", "OWNS", "CERTIFICATE", "NOTES"]);
    for node in &found.nodes {
        let status = node.status.as_ref();
        let lease = status.and_then(|status| status.answers_ms);
        let mut notes = Vec::new();
        if node.has_authority {
            notes.push("authority");
        }
        if node.draining {
            notes.push("draining");
        }
        nodes.row(vec![
            node.node.to_string(),
            node.name.clone(),
            node.address.clone(),
            node.state.to_owned(),
            lease.map_or("-".to_owned(), seconds),
            status.map_or("-".to_owned(), |status| status.holdings.len().to_string()),
            days_left(node.certificate_expires),
            notes.join(", "),
        ]);
    }
    out!("{}", nodes.render());
    for node in &found.nodes {
        let etcd = node.status.as_ref().and_then(|status| status.etcd_error.as_ref());
        for problem in node.problem.iter().chain(etcd) {
            outln!("  {}: {problem}", node.name);
        }
    }
    if !found.filesets.is_empty() {
        let mut table = Table::new(&["FILESET", "OWNER", "EPOCH", "PINNED TO"]);
        for fileset in &found.filesets {
            table.row(vec![
                fileset.fileset.to_string(),
                name(fileset.owner),
                fileset.epoch.to_string(),
                name(fileset.pinned),
            ]);
        }
        out!("\n{}", table.render());
    }
    if !found.disks.is_empty() {
        let mut table = Table::new(&["DISK", "NODE", "DIRECTORY", "SHARED"]);
        for (uuid, disk) in &found.disks {
            let shared = if disk.shared { "yes" } else { "no" };
            let cells = [uuid.clone(), name(Some(disk.node)), disk.location.clone()];
            table.row(cells.into_iter().chain([shared.to_owned()]).collect());
        }
        out!("\n{}", table.render());
    }
    print_sessions(found, &name)
}

/// Prints each session once, as its client sees it.
fn print_sessions(found: &Found, name: &dyn Fn(Option<NodeId>) -> String) -> Result<()> {
    let mut table = Table::new(&[
        "CLIENT",
        "SERVER",
        "CONNECTIONS",
        "CALLS",
        "WAITING",
        "ROUND TRIP",
        "SILENT",
    ]);
    let mut some = false;
    for node in &found.nodes {
        let sessions = node.status.iter().flat_map(|status| &status.sessions);
        for session in sessions.filter(|session| !session.is_guest) {
            some = true;
            let figures = &session.figures;
            table.row(vec![
                node.name.clone(),
                name(Some(session.node)),
                figures.connections.to_string(),
                figures.calls.to_string(),
                figures.waiting_calls.to_string(),
                format!("{} us", figures.round_trip_us),
                seconds(figures.silent_ms),
            ]);
        }
    }
    if some {
        out!("\n{}", table.render());
    }
    Ok(())
}
