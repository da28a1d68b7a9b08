//! `forebay waiters`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use forebay_base::{Ino, NodeId};
use forebay_node::NodeHome;
use forebay_node::home::NodeFile;
use forebay_node::members::visit::{Answer as Told, Question, WAIT_MIN, Wait};
use serde::Serialize;

use super::cluster::tools;
use super::cluster::view::{ClusterView, span};
use crate::attribution::Users;
use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::mounts;
use crate::output::{Table, put_json};
use crate::waits::shown;

/// List requests that have waited for a long time, and what they wait for.
///
/// Shows for each request its age, operation, file, the process that made it with its user and job, and the reason. The job is that of
/// the control group of the process, or of its environment at its first request. In a cluster it asks all nodes:
/// a request that one node sends to another is listed for both, for the first as waiting for an answer, for the second
/// with its own reason. A change that has to wait until another node gives back what it caches (recall), or reports
/// what it did in a directory that is delegated to it, names that node. Exit codes: 0 listed (even if nothing waits), 2 no daemon answered.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay waiters
  forebay waiters grid1 --min 10
  forebay waiters /srv/forebay --json | jq '.waits[].reason'")]
pub struct Waiters {
    /// Name of a cluster, home folder or mount point [default: the only file system that is mounted on this machine].
    file_system: Option<PathBuf>,
    /// List requests of at least this age in seconds; 0.1 or more.
    #[arg(long, value_name = "AGE", default_value = "1", value_parser = age)]
    min: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn age(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (WAIT_MIN.as_secs_f64()..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds, 0.1 to 86400".to_owned())
}

#[derive(Serialize)]
struct Found {
    waits: Vec<FoundWait>,
    /// Nodes that could not be asked, with the reason.
    unknown: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct FoundWait {
    /// Name of the node whose daemon has the request; none on one machine.
    on: Option<String>,
    /// Name of the fileset, if it is known.
    fileset: Option<String>,
    /// Name of the node that made the request, if another one did.
    from: Option<String>,
    /// What it waits for, in words.
    reason: String,
    /// The node that it waits for, if it waits for one.
    waits_for: Option<NodeId>,
    /// The name of that node.
    waits_for_name: Option<String>,
    #[serde(flatten)]
    wait: Wait,
}

impl Waiters {
    pub fn run(self) -> Result<ExitCode> {
        let home = home_of(self.file_system.as_deref())?;
        let mut found = match home.node() {
            None => alone(&home, self.min)?,
            Some(node) => of_cluster(node, &node.existing()?)?,
        };
        let min = u64::try_from(self.min.as_millis()).unwrap_or(u64::MAX);
        found.waits.retain(|found| found.wait.age_ms >= min);
        found.waits.sort_by_key(|found| std::cmp::Reverse(found.wait.age_ms));
        if self.json {
            put_json(&found)?;
        } else {
            print(&found)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The home folder of a file system that is named by a place, or of the only one that is mounted here.
pub fn home_of(file_system: Option<&Path>) -> Result<Home> {
    if let Some(place) = file_system {
        // A mount whose daemon is dead is not touched: the table says where its home is.
        return match mounts::at(place) {
            Ok(mount) => Home::at(&mount.home),
            Err(_) => Home::at(place),
        };
    }
    let mut homes: Vec<PathBuf> = mounts::all().into_iter().map(|mount| mount.home).collect();
    homes.sort();
    homes.dedup();
    match &*homes {
        [home] => Home::at(home),
        [] => bail!(
            "no Forebay file system is mounted on this machine: name a cluster or a home folder"
        ),
        homes => {
            let shown: Vec<String> = homes.iter().map(|home| home.display().to_string()).collect();
            bail!("several file systems are mounted ({}): name one", shown.join(", "))
        }
    }
}

fn alone(home: &Home, min: Duration) -> Result<Found> {
    let min_ms = u64::try_from(min.as_millis()).unwrap_or(u64::MAX);
    let waits = match control::ask(home.root(), &Ask::Waits { min_ms })? {
        Answer::Waits { waits } => waits,
        _ => bail!("the daemon's answer lacks a list; is it a different version?"),
    };
    let found = |wait: Wait| FoundWait {
        on: None,
        fileset: None,
        from: None,
        reason: wait.cause.text(shown),
        waits_for: wait.cause.node(),
        waits_for_name: None,
        wait,
    };
    Ok(Found { waits: waits.into_iter().map(found).collect(), unknown: BTreeMap::new() })
}

fn of_cluster(home: &NodeHome, file: &NodeFile) -> Result<Found> {
    let tools = tools()?;
    let view = match tools.book(file).and_then(|book| book.read()) {
        Ok(read) => ClusterView::of(home, file, read),
        // What waits for etcd is what people want to see then: this node knows its own.
        Err(error) => {
            let Ok(mut found) = alone(&Home::at(home.folder())?, WAIT_MIN) else {
                return Err(error.into());
            };
            found.unknown.insert("other nodes".to_owned(), error.to_string());
            return Ok(found);
        }
    };
    let mut waits = waits_of(&view);
    let paths = paths_of(home, file, &view, waits.iter().map(|found| found.wait.ino));
    for found in &mut waits {
        found.wait.path = paths.get(&found.wait.ino).cloned();
    }
    let unknown = view.reports.iter().filter_map(|(node, report)| {
        let error = report.as_ref().err()?;
        Some((view.node_name(*node), crate::output::chain(error)))
    });
    let unknown = unknown.collect();
    Ok(Found { waits, unknown })
}

/// What the nodes report.
fn waits_of(view: &ClusterView) -> Vec<FoundWait> {
    let names = view.fileset_names();
    let mut waits = Vec::new();
    for (node, files) in view.files() {
        waits.extend(files.waits.iter().map(|wait| {
            let waits_for = wait.cause.node();
            FoundWait {
                on: Some(view.node_name(node)),
                fileset: names.get(&wait.ino.fileset()).cloned(),
                from: wait.client.map(|client| view.node_name(client)),
                reason: wait.cause.text(|node| view.node_name(node)),
                waits_for,
                waits_for_name: waits_for.map(|node| view.node_name(node)),
                wait: wait.clone(),
            }
        }));
    }
    waits
}

/// Paths of files, as the owners of their filesets know them.
fn paths_of(
    home: &NodeHome,
    file: &NodeFile,
    view: &ClusterView,
    inos: impl Iterator<Item = Ino>,
) -> BTreeMap<Ino, String> {
    let mut by_owner = BTreeMap::<NodeId, BTreeSet<Ino>>::new();
    for ino in inos {
        if let Some(owner) = view.owner_of(ino.fileset()) {
            by_owner.entry(owner).or_default().insert(ino);
        }
    }
    let mut paths = BTreeMap::new();
    for (owner, inos) in by_owner {
        let Some(record) = view.sight.nodes.get(&owner) else { continue };
        let question = Question::Paths(inos.into_iter().collect());
        let asked = tools().and_then(|tools| {
            Ok(tools.ask(home, file, (owner, record.address.as_str()), &question)?)
        });
        // Without a path there is still the number of the inode.
        if let Ok(Told::Paths(found)) = asked {
            paths.extend(found);
        }
    }
    paths
}

fn print(found: &Found) -> Result<()> {
    for (node, error) in &found.unknown {
        note!("forebay: {node} could not be asked: {error}");
    }
    if found.waits.is_empty() {
        note!("forebay: no requests are waiting");
        return Ok(());
    }
    out!("{}", table(&found.waits.iter().collect::<Vec<_>>()));
    Ok(())
}

/// The rows of a list of waits.
fn table(waits: &[&FoundWait]) -> String {
    let on_nodes = waits.iter().any(|found| found.on.is_some());
    let heading = ["AGE", "NODE", "OPERATION", "FILE", "MADE BY", "JOB", "USER", "WAITS FOR"];
    let mut users = Users::default();
    let shown = |cells: Vec<String>| {
        let all = cells.into_iter().enumerate();
        all.filter(|(column, _)| on_nodes || *column != 1).map(|(_, cell)| cell).collect::<Vec<_>>()
    };
    let heading = shown(heading.map(str::to_owned).to_vec());
    let mut table = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    for found in waits {
        let wait = &found.wait;
        let is_top = wait.ino == Ino::top_of(wait.ino.fileset());
        let file = wait.path.clone().unwrap_or_else(|| match &found.fileset {
            Some(fileset) if is_top => format!("/{}", fileset.trim_start_matches('/')),
            Some(fileset) => format!("inode {} of {fileset}", wait.ino),
            None => format!("inode {}", wait.ino),
        });
        table.row(shown(vec![
            span(wait.age_ms),
            found.on.clone().unwrap_or_default(),
            wait.operation.clone(),
            file,
            process_of(wait, found.from.as_deref()),
            wait.job.clone().unwrap_or_else(|| "-".to_owned()),
            wait.uid.map_or_else(|| "-".to_owned(), |uid| users.name(Some(uid))),
            found.reason.clone(),
        ]));
    }
    table.render()
}

/// Who made a request, with the job.
pub fn made_by(wait: &Wait, node: Option<&str>) -> String {
    let process = process_of(wait, node);
    match &wait.job {
        Some(job) => format!("{process} of job {job}"),
        None => process,
    }
}

/// The process that made a request, or the node if another one did; of this name.
fn process_of(wait: &Wait, node: Option<&str>) -> String {
    match (&wait.process, node) {
        (Some((number, command)), _) if !command.is_empty() => format!("{command} ({number})"),
        (Some((number, _)), _) => format!("process {number}"),
        (None, Some(node)) => format!("node {node}"),
        (None, None) => "-".to_owned(),
    }
}

/// What has waited for a second and longer, for `forebay cluster status`: without paths, as those take the owners' time.
pub fn summary(view: &ClusterView) -> Option<String> {
    const SHOWN: usize = 10;
    const MIN_MS: u64 = 1000;
    let mut waits = waits_of(view);
    waits.retain(|found| found.wait.age_ms >= MIN_MS);
    if waits.is_empty() {
        return None;
    }
    waits.sort_by_key(|found| std::cmp::Reverse(found.wait.age_ms));
    let text = table(&waits.iter().take(SHOWN).collect::<Vec<_>>());
    let more = waits.len().saturating_sub(SHOWN);
    Some(if more > 0 { format!("{text}and {more} more: forebay waiters\n") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_a_number_of_seconds() {
        assert_eq!(age("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "x", "100000"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
