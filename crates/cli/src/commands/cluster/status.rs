//! `forebay cluster status`.

use std::collections::BTreeMap;

use anyhow::Result;
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, FilesetId, NodeId};
use forebay_engine::cluster::controllers::{self, ControllerView};
use forebay_node::home::NodeFile;
use forebay_node::members::record::{DiskRecord, MonitorRecord};
use forebay_node::members::visit::{DiskSpace, NodeStatus};
use serde::Serialize;

use super::view::{ClusterView, span};
use super::{Which, tools};
use crate::commands::waiters;
use crate::member::names;
use crate::output::{Table, bytes, put_json};

/// Show the nodes of the cluster with their leases, controllers of the grid, owners of filesets, disks, sessions, certificates of monitors
/// and long waits.
///
/// If etcd does not answer, the command shows what this node itself knows, and fails.
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
    /// Where the names of files lie.
    names: String,
    nodes: Vec<FoundNode>,
    filesets: Vec<FoundFileset>,
    disks: BTreeMap<String, FoundDisk>,
    /// Certificates of monitors, by serial number.
    monitors: BTreeMap<String, MonitorRecord>,
    /// Of the grid on its nodes.
    controllers: Vec<ControllerView>,
}

#[derive(Serialize)]
struct FoundNode {
    node: NodeId,
    name: String,
    address: String,
    /// up, waiting (for etcd), unreachable (has a lease and does not answer), or down (without a lease).
    state: &'static str,
    /// Whether it has mounted the file system: only then it owns filesets.
    mounted: bool,
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
    /// None if no node that answers has mounted the file system.
    name: Option<String>,
    owner: Option<NodeId>,
    epoch: u64,
    /// How far the owner is with it; none if it does not answer.
    stage: Option<String>,
    /// For how long the owner has been answering for it, in milliseconds.
    owned_ms: Option<u64>,
    pinned: Option<NodeId>,
}

impl FoundFileset {
    fn shown(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.fileset.to_string())
    }
}

#[derive(Serialize)]
struct FoundDisk {
    #[serde(flatten)]
    record: DiskRecord,
    /// None if its node does not answer.
    space: Option<DiskSpace>,
}

impl Status {
    pub fn run(self) -> Result<()> {
        let (home, file) = self.which.node()?;
        let tools = tools()?;
        let book = tools.book(&file)?;
        match book.read() {
            Ok(read) => {
                let view = ClusterView::of(&home, &file, read);
                let (mut found, waits) = (look(&file, &view), waiters::summary(&view));
                found.controllers = controllers::all(&book)?;
                found.names = names::shown(names::place(&book)?.as_ref()).to_owned();
                if self.json { put_json(&found) } else { print(&found, waits.as_deref()) }
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

/// What is shown of a cluster.
fn look(file: &NodeFile, view: &ClusterView) -> Found {
    let names = view.fileset_names();
    let nodes = view.sight.nodes.iter().map(|(node, record)| {
        let (status, problem) = match view.reports.get(node) {
            Some(Ok(status)) => (Some(status.clone()), None),
            Some(Err(error)) => (None, Some(crate::output::chain(error))),
            None => (None, None),
        };
        FoundNode {
            node: *node,
            name: record.name.clone(),
            address: record.address.clone(),
            state: state_of(status.as_ref(), view.sight.alive.contains_key(node)),
            mounted: view.sight.alive.get(node).is_some_and(|member| member.weight > 0),
            draining: view.sight.draining.contains(node),
            has_authority: record.has_authority,
            certificate_expires: record.expires,
            version: record.version.clone(),
            status,
            problem,
        }
    });
    let filesets = view.owners.owners.iter().map(|(fileset, record)| {
        let owner = record.owner.map(|owner| owner.node);
        let report = owner.and_then(|owner| view.report(owner));
        let held = report.and_then(|it| it.holdings.iter().find(|held| held.fileset == *fileset));
        FoundFileset {
            fileset: *fileset,
            name: names.get(fileset).cloned(),
            owner,
            epoch: record.epoch.0,
            stage: held.map(|held| held.stage.clone()),
            owned_ms: held.and_then(|held| held.owned_ms),
            pinned: view.owners.pinned.get(fileset).copied(),
        }
    });
    let disks = view.sight.disks.iter().map(|(uuid, record)| {
        let files = view.report(record.node).and_then(|report| report.files.as_ref());
        let space = files.and_then(|files| files.disks.iter().find(|disk| disk.uuid == *uuid));
        let found = FoundDisk { record: record.clone(), space: space.cloned() };
        (uuid.clone(), found)
    });
    Found {
        cluster: file.cluster_name.clone(),
        id: file.cluster.to_string(),
        names: String::new(),
        nodes: nodes.collect(),
        filesets: filesets.collect(),
        disks: disks.collect(),
        monitors: view.sight.monitors.clone(),
        controllers: Vec::new(),
    }
}

fn days_left(expires: i64) -> String {
    let left = expires - SystemClock.now().seconds;
    if left <= 0 { "EXPIRED".to_owned() } else { format!("{} d", left / 86400) }
}

fn print(found: &Found, waits: Option<&str>) -> Result<()> {
    outln!("cluster  {} ({}), names in {}\n", found.cluster, found.id, found.names);
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
        if status.is_some() && !node.mounted {
            notes.push("not mounted");
        }
        nodes.row(vec![
            node.node.to_string(),
            node.name.clone(),
            node.address.clone(),
            node.state.to_owned(),
            lease.map_or("-".to_owned(), span),
            status.map_or("-".to_owned(), |status| status.holdings.len().to_string()),
            days_left(node.certificate_expires),
            notes.join(", "),
        ]);
    }
    out!("{}", nodes.render());
    print_problems(found)?;
    print_controllers(found)?;
    print_filesets(found, &name)?;
    print_disks(found, &name)?;
    print_sessions(found, &name)?;
    print_monitors(found)?;
    if let Some(waits) = waits {
        out!("\n{waits}");
    }
    Ok(())
}

/// Prints why nodes do not answer, and what they could not do with filesets.
fn print_problems(found: &Found) -> Result<()> {
    for node in &found.nodes {
        let status = node.status.as_ref();
        let etcd = status.and_then(|status| status.etcd_error.as_ref());
        let shortage = status.and_then(|status| status.files.as_ref()?.shortage.as_ref());
        for problem in node.problem.iter().chain(etcd).chain(shortage) {
            outln!("  {}: {problem}", node.name);
        }
        for problem in status.iter().flat_map(|status| &status.problems) {
            let named = found.filesets.iter().find(|it| it.fileset == problem.fileset);
            let name = named.map_or_else(|| problem.fileset.to_string(), FoundFileset::shown);
            outln!("  {}: fileset {name}: {}", node.name, problem.reason);
        }
    }
    Ok(())
}

/// Prints which controllers of the grid run, and which of them leads.
fn print_controllers(found: &Found) -> Result<()> {
    if found.controllers.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["CONTROLLER", "STATE", "ROOT"]);
    for controller in &found.controllers {
        let state = if controller.leads { "leads" } else { "stands by" };
        let root = controller.root.display().to_string();
        table.row(vec![controller.name.clone(), state.to_owned(), root]);
    }
    out!("\n{}", table.render());
    Ok(())
}

fn print_filesets(found: &Found, name: &dyn Fn(Option<NodeId>) -> String) -> Result<()> {
    if found.filesets.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["FILESET", "OWNER", "STATE", "FOR", "EPOCH", "PINNED TO"]);
    for fileset in &found.filesets {
        let stage = match (&fileset.stage, fileset.owner) {
            (Some(stage), _) => stage,
            (None, Some(_)) => "no answer",
            (None, None) => "no owner",
        };
        table.row(vec![
            fileset.shown(),
            name(fileset.owner),
            stage.to_owned(),
            fileset.owned_ms.map_or("-".to_owned(), span),
            fileset.epoch.to_string(),
            name(fileset.pinned),
        ]);
    }
    out!("\n{}", table.render());
    Ok(())
}

fn print_disks(found: &Found, name: &dyn Fn(Option<NodeId>) -> String) -> Result<()> {
    if found.disks.is_empty() {
        return Ok(());
    }
    let mut table =
        Table::new(&["DISK", "NODE", "DIRECTORY", "SHARED", "SIZE", "AVAILABLE", "STATE"]);
    for (uuid, disk) in &found.disks {
        let size = |of: fn(&DiskSpace) -> u64| {
            let usable = disk.space.as_ref().filter(|space| space.problem.is_none());
            usable.map_or("-".to_owned(), |space| bytes(of(space)))
        };
        let state = match &disk.space {
            Some(DiskSpace { problem: None, .. }) => "usable",
            Some(DiskSpace { problem: Some(_), .. }) => "FAILED",
            None => "UNREACHABLE",
        };
        table.row(vec![
            uuid.clone(),
            name(Some(disk.record.node)),
            disk.record.location.clone(),
            if disk.record.shared { "yes" } else { "no" }.to_owned(),
            size(|space| space.total_bytes),
            size(|space| space.available_bytes),
            state.to_owned(),
        ]);
    }
    out!("\n{}", table.render());
    for (uuid, disk) in &found.disks {
        if let Some(problem) = disk.space.as_ref().and_then(|space| space.problem.as_ref()) {
            outln!("  disk {uuid}: {problem}");
        }
        if disk.space.is_none() {
            let (node, location) = (name(Some(disk.record.node)), &disk.record.location);
            outln!(
                "  files on {location} of {node} are unreachable until that node runs again: mount the file system there (forebay mount {} DIR)",
                found.cluster
            );
        }
    }
    Ok(())
}

/// Prints the certificates of monitors.
fn print_monitors(found: &Found) -> Result<()> {
    if found.monitors.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["MONITOR", "CERTIFICATE", "STATE"]);
    let mut monitors: Vec<&MonitorRecord> = found.monitors.values().collect();
    monitors.sort_by_key(|monitor| (&monitor.name, monitor.issued));
    for monitor in monitors {
        let state = if monitor.removed.is_some() { "removed" } else { "accepted" };
        table.row(vec![monitor.name.clone(), days_left(monitor.expires), state.to_owned()]);
    }
    out!("\n{}", table.render());
    Ok(())
}

/// What a client holds of a server's filesets, as that says: open files, grants, recalls and evictions.
fn held(found: &Found, server: NodeId, client: NodeId) -> [String; 4] {
    let files = found.nodes.iter().find(|it| it.node == server).and_then(|it| it.status.as_ref());
    let Some(files) = files.and_then(|status| status.files.as_ref()) else {
        return ["-"; 4].map(str::to_owned);
    };
    let holds = files.clients.iter().find(|it| it.node == client);
    let figures = holds.map(|it| [it.open_files, it.grants, it.recalls, it.evictions]);
    figures.unwrap_or_default().map(|figure| figure.to_string())
}

/// Prints each session once, as its client sees it, with what that holds of the server's filesets.
fn print_sessions(found: &Found, name: &dyn Fn(Option<NodeId>) -> String) -> Result<()> {
    let mut table = Table::new(&[
        "CLIENT",
        "SERVER",
        "CONNECTIONS",
        "CALLS",
        "WAITING",
        "ROUND TRIP",
        "SILENT",
        "OPEN",
        "GRANTS",
        "RECALLS",
        "EVICTIONS",
    ]);
    let mut some = false;
    for node in &found.nodes {
        let sessions = node.status.iter().flat_map(|status| &status.sessions);
        for session in sessions.filter(|session| !session.is_guest) {
            some = true;
            let figures = &session.figures;
            let mut row = vec![
                node.name.clone(),
                name(Some(session.node)),
                figures.connections.to_string(),
                figures.calls.to_string(),
                figures.waiting_calls.to_string(),
                format!("{} us", figures.round_trip_us),
                span(figures.silent_ms),
            ];
            row.extend(held(found, session.node, node.node));
            table.row(row);
        }
    }
    if some {
        out!("\n{}", table.render());
    }
    Ok(())
}
