//! `forebay fileset owner`.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, Epoch, FilesetId, NodeId};
use forebay_node::NodeHome;
use forebay_node::home::NodeFile;
use forebay_node::members::visit::Question;
use forebay_node::members::{Book, InUse};
use forebay_node::setup::Tools;
use serde::Serialize;

use crate::commands::cluster::view::{ClusterView, span};
use crate::commands::cluster::{Which, tools};
use crate::output::put_json;

/// How often a move is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Show which node of a cluster owns a fileset, or move it to another one.
///
/// During a move requests wait, everything is committed, and nothing is lost. The command returns when the other node answers for
/// the fileset. The fileset is then pinned to that node, which owns it whenever it can. A move fails while programs on the
/// owner's node have files of the fileset open, while removed files are open, or while locks are held.
/// Exit codes: 0 done, 2 refused or not done in time.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay fileset owner data
  forebay fileset owner data --json | jq -r .owner
  forebay fileset owner data --move host2
  forebay fileset owner data --move auto           let the cluster choose, and move it there
  forebay fileset owner data --move host2 --force  files in use become stale; no bytes are lost")]
pub struct Owner {
    /// Name of the fileset; / for the root fileset.
    #[arg(value_name = "NAME")]
    fileset: String,
    /// Move it to this node, by name or number, and pin it there; auto removes the pin and lets the cluster choose.
    #[arg(long = "move", value_name = "NODE|auto")]
    to: Option<String>,
    /// Move it even if it is in use: its open files become stale on all nodes, as after a crash of its owner.
    #[arg(long, requires = "to")]
    force: bool,
    /// Seconds to wait for the move to finish.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// Who owns a fileset.
#[derive(Serialize)]
struct Found {
    fileset: String,
    id: FilesetId,
    /// Name of the node; none if no node owns it.
    owner: Option<String>,
    node: Option<NodeId>,
    epoch: Epoch,
    /// How far the owner is with it: owning, opening, settling, ...; none if it does not answer.
    stage: Option<String>,
    /// For how long the owner has been answering for it, in milliseconds.
    owned_ms: Option<u64>,
    pinned: Option<String>,
    /// Why its last opening or handover failed, if it did.
    problem: Option<String>,
}

/// The cluster, and how it is asked.
struct Asking {
    home: NodeHome,
    file: NodeFile,
    tools: Tools,
    book: Book,
}

impl Asking {
    fn look(&self) -> Result<ClusterView> {
        Ok(ClusterView::of(&self.home, &self.file, self.book.read()?))
    }
}

impl Owner {
    pub fn run(self) -> Result<()> {
        let (home, file) = self.which.node()?;
        let tools = tools()?;
        let book = tools.book(&file)?;
        let asking = Asking { home, file, tools, book };
        let view = asking.look()?;
        let id = self.find(&view)?;
        let view = match &self.to {
            None => view,
            Some(to) => {
                ensure!(
                    view.owners.owners.contains_key(&id),
                    "fileset {:?} has no owner that could be moved: in a native one each node serves its own directory",
                    self.fileset
                );
                let to = if to == "auto" { None } else { Some(asking.book.find(to)?.0) };
                self.carry_out(&asking, view, id, to)?
            }
        };
        let found = found(&view, id, &self.fileset);
        if self.json { put_json(&found) } else { print(&found) }
    }

    /// The number of the fileset.
    fn find(&self, view: &ClusterView) -> Result<FilesetId> {
        let names = view.fileset_names();
        ensure!(
            !names.is_empty(),
            "no node has mounted the file system, so the names of its filesets are not known: mount it on a node (forebay mount)"
        );
        let found = names.iter().find(|(_, name)| **name == self.fileset);
        found.map(|(id, _)| *id).ok_or_else(|| {
            let known: Vec<&str> = names.values().map(String::as_str).collect();
            anyhow!("fileset {:?} does not exist: there are {}", self.fileset, known.join(", "))
        })
    }

    /// Has the fileset moved where it is to be, and pins it there.
    fn carry_out(
        &self,
        asking: &Asking,
        view: ClusterView,
        id: FilesetId,
        wanted: Option<NodeId>,
    ) -> Result<ClusterView> {
        let to = match wanted {
            Some(node) => check_target(&view, node, &asking.file.cluster_name)?,
            None => chosen(&view, id)?,
        };
        let former_pin = view.owners.pinned.get(&id).copied();
        // A pin to a third node would have it moved back. The new one comes last: until then its owner moves it only as it is
        // asked here.
        if former_pin.is_some_and(|node| node != to) {
            asking.book.pin(id, None)?;
        }
        let moved = self.move_and_wait(asking, view, id, to);
        let pin = if moved.is_ok() { wanted } else { former_pin };
        asking.book.pin(id, pin)?;
        moved?;
        asking.look()
    }

    fn move_and_wait(
        &self,
        asking: &Asking,
        mut view: ClusterView,
        id: FilesetId,
        to: NodeId,
    ) -> Result<ClusterView> {
        let deadline = now() + Duration::from_secs(self.timeout);
        let before = view.owners.owners.get(&id).map_or(Epoch(0), |record| record.epoch);
        let mut asked = None;
        loop {
            let owner = view.owner_of(id);
            if owner == Some(to) && is_owning(&view, to, id) {
                return Ok(view);
            }
            let problems = |node| view.report(node).into_iter().flat_map(|it| &it.problems);
            let mut of_target = problems(to).filter(|it| it.fileset == id && it.epoch > before);
            if let Some(problem) = of_target.next_back() {
                bail!("{}: {}", view.node_name(to), problem.reason);
            }
            // Each owner on the way is asked once.
            if let Some(owner) = owner.filter(|owner| *owner != to && is_owning(&view, *owner, id))
            {
                if asked == Some(owner) {
                    if let Some(problem) = problems(owner).find(|it| it.fileset == id) {
                        bail!(
                            "fileset {} stays at {}: {}",
                            self.fileset,
                            view.node_name(owner),
                            problem.reason
                        );
                    }
                } else if self.ask(asking, &view, owner, id, to)? {
                    asked = Some(owner);
                }
            }
            if now() >= deadline {
                bail!(self.too_late(&view, id, to));
            }
            std::thread::sleep(LOOK);
            view = asking.look()?;
        }
    }

    /// Asks the owner to move it. Whether it was asked: it may own it no more.
    fn ask(
        &self,
        asking: &Asking,
        view: &ClusterView,
        owner: NodeId,
        id: FilesetId,
        to: NodeId,
    ) -> Result<bool> {
        let Some(record) = view.sight.nodes.get(&owner) else { return Ok(false) };
        let in_use = if self.force { InUse::Abandoned } else { InUse::Stays };
        let question = Question::Move { fileset: id, to, in_use };
        let node = (owner, record.address.as_str());
        match asking.tools.ask(&asking.home, &asking.file, node, &question) {
            Ok(_) => Ok(true),
            // The next look says what has become of it.
            Err(error) => {
                tracing::debug!(%error, "the owner was not asked");
                Ok(false)
            }
        }
    }

    fn too_late(&self, view: &ClusterView, id: FilesetId, to: NodeId) -> String {
        let target = view.node_name(to);
        let state = match view.owner_of(id) {
            None => "no node owns it".to_owned(),
            Some(owner) => {
                let stage = stage_of(view, owner, id).unwrap_or("does not answer");
                format!("{} ({stage}) has it", view.node_name(owner))
            }
        };
        format!(
            "fileset {} is not at {target} after {} s: {state}. `forebay waiters` shows what it waits for; try again, with a longer \
             --timeout if the move is only slow",
            self.fileset, self.timeout
        )
    }
}

fn now() -> Instant {
    SystemClock.instant()
}

fn stage_of(view: &ClusterView, node: NodeId, id: FilesetId) -> Option<&str> {
    let held = view.report(node)?.holdings.iter().find(|held| held.fileset == id)?;
    Some(&held.stage)
}

fn is_owning(view: &ClusterView, node: NodeId, id: FilesetId) -> bool {
    stage_of(view, node, id) == Some("owning")
}

/// Refuses a node that cannot own filesets.
fn check_target(view: &ClusterView, node: NodeId, cluster: &str) -> Result<NodeId> {
    let name = view.node_name(node);
    let Some(member) = view.sight.alive.get(&node) else {
        bail!(
            "node {name} is not running (it has no lease): mount the file system there (forebay mount {cluster} DIR), or choose \
             another node"
        );
    };
    ensure!(
        member.weight > 0,
        "node {name} has not mounted the file system, so it cannot own filesets: run `forebay mount {cluster} DIR` there"
    );
    ensure!(
        !view.sight.draining.contains(&node),
        "node {name} is being drained: run `forebay cluster drain {name} --undo` first, or choose another node"
    );
    Ok(node)
}

/// The node that the cluster chooses by itself.
fn chosen(view: &ClusterView, id: FilesetId) -> Result<NodeId> {
    let mut owners = view.owners.clone();
    owners.pinned.remove(&id);
    let home = owners.homes().get(&id).copied();
    home.filter(|node| !owners.draining.contains(node)).ok_or_else(|| {
        anyhow!("no node can own the fileset: mount the file system on a node (forebay mount), or end a drain")
    })
}

fn found(view: &ClusterView, id: FilesetId, name: &str) -> Found {
    let record = view.owners.owners.get(&id);
    let node = view.owner_of(id);
    let report = node.and_then(|node| view.report(node));
    let held = report.and_then(|it| it.holdings.iter().find(|held| held.fileset == id));
    let problem = report.and_then(|it| it.problems.iter().find(|problem| problem.fileset == id));
    Found {
        fileset: name.to_owned(),
        id,
        owner: node.map(|node| view.node_name(node)),
        node,
        epoch: record.map_or(Epoch(0), |record| record.epoch),
        stage: held.map(|held| held.stage.clone()),
        owned_ms: held.and_then(|held| held.owned_ms),
        pinned: view.owners.pinned.get(&id).map(|node| view.node_name(*node)),
        problem: problem.map(|problem| problem.reason.clone()),
    }
}

fn print(found: &Found) -> Result<()> {
    let (name, epoch) = (&found.fileset, found.epoch.0);
    let pinned = found.pinned.as_ref().map_or(String::new(), |node| format!(", pinned to {node}"));
    match (&found.owner, &found.stage, found.owned_ms) {
        (None, ..) => outln!(
            "{name}: no node owns it (epoch {epoch}{pinned}); it gets an owner as soon as a node mounts the file system"
        ),
        (Some(owner), _, Some(owned)) => {
            outln!("{name}: {owner}, epoch {epoch}, for {}{pinned}", span(owned));
        }
        (Some(owner), Some(stage), None) => {
            outln!("{name}: {owner} ({stage}), epoch {epoch}{pinned}");
        }
        (Some(owner), None, None) => outln!(
            "{name}: {owner}, epoch {epoch}{pinned}; that node does not answer: another one takes over when its lease ends"
        ),
    }
    if let Some(problem) = &found.problem {
        outln!("  {problem}");
    }
    Ok(())
}
