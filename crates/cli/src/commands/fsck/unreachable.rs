//! `forebay fsck NAME --unreachable`: files of a cluster whose bytes cannot be reached.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_base::FilesetId;
use forebay_base::time::SystemClock;
use forebay_node::NodeHome;
use forebay_node::members::visit::{Answer, Question, UnreachableFile};
use forebay_node::settings::Settings;
use forebay_node::setup::Tools;
use serde::Serialize;

use crate::commands::cluster::view::ClusterView;
use crate::output::put_json;

/// How long an owner may look through its inodes.
const PATIENCE: Duration = Duration::from_mins(10);

#[derive(Serialize)]
struct Found {
    files: Vec<UnreachableFile>,
    total: u64,
    /// Filesets without an owner that answers: nothing is known of their files.
    unknown: BTreeMap<String, String>,
}

/// Asks the owners of all filesets.
pub fn run(home: &NodeHome, json: bool) -> Result<ExitCode> {
    let file = home.existing()?;
    let settings = Settings { connect_timeout: PATIENCE, ..Settings::default() };
    let tools = Tools::new(settings, Arc::new(SystemClock))?;
    let view = ClusterView::of(home, &file, tools.book(&file)?.read()?);
    let names = view.fileset_names();
    ensure!(
        !names.is_empty(),
        "no node has mounted the file system, so no owner can be asked: mount it on a node (forebay mount)"
    );
    let mut found = Found { files: Vec::new(), total: 0, unknown: BTreeMap::new() };
    for (id, name) in &names {
        if let Some(why) = silent(&view, *id, name) {
            found.unknown.insert(name.clone(), why.to_owned());
        }
    }
    for (node, _) in view.files() {
        let Some(record) = view.sight.nodes.get(&node) else { continue };
        let at = (node, record.address.as_str());
        match tools.ask(home, &file, at, &Question::Unreachable) {
            Ok(Answer::Unreachable(of_node)) => {
                found.total += of_node.total;
                found.files.extend(of_node.files);
            }
            Ok(_) => {
                found.unknown.insert(record.name.clone(), "another version?".to_owned());
            }
            Err(error) => {
                found.unknown.insert(record.name.clone(), error.to_string());
            }
        }
    }
    found.files.sort_by(|one, other| one.path.cmp(&other.path));
    if json {
        put_json(&found)?;
    } else {
        print(&found)?;
    }
    let is_clean = found.total == 0 && found.unknown.is_empty();
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(4) })
}

/// Why nothing is known of the files of a fileset. Native ones have no owner: a node answers for what lies in its directory.
fn silent(view: &ClusterView, id: FilesetId, name: &str) -> Option<&'static str> {
    if view.owners.owners.contains_key(&id) {
        let owner = view.owner_of(id).and_then(|owner| view.report(owner));
        return owner.is_none().then_some("its owner does not answer");
    }
    let (_, directory) = name.rsplit_once('/')?;
    let mut nodes = view.sight.nodes.iter();
    let (node, _) = nodes.find(|(_, record)| record.name == directory)?;
    view.report(*node).is_none().then_some("its node does not answer")
}

fn print(found: &Found) -> Result<()> {
    for file in &found.files {
        let path = file.path.clone().unwrap_or_else(|| format!("inode {}", file.ino));
        let state = if file.is_lost { "LOST" } else { "unreachable" };
        outln!("{path}: {state}: {}", file.why);
    }
    let unseen = found.total.saturating_sub(found.files.len() as u64);
    if unseen > 0 {
        outln!("and {unseen} more");
    }
    for (name, why) in &found.unknown {
        outln!("{name}: not known: {why}");
    }
    outln!("{} files cannot be reached", found.total);
    Ok(())
}
