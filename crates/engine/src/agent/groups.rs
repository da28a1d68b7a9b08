//! Where control groups of this host's jobs were made, also by agents before this one, and the end of those that nobody
//! holds any more.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cgroup::{Places, remove};
use crate::files;
use crate::run::Run;

/// Name of the file in the agent's folder.
const KNOWN: &str = "cgroup";

/// Writes down where groups of this host are, beside the places that were there before.
///
/// # Errors
/// If that cannot be read or written.
pub fn remember(agent: &Path, places: &Places) -> Result<()> {
    let mut known = known(agent)?;
    if !known.contains(places) {
        known.push(places.clone());
        write(agent, &known)?;
    }
    Ok(())
}

fn known(agent: &Path) -> Result<Vec<Places>> {
    let path = agent.join(KNOWN);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn write(agent: &Path, known: &[Places]) -> Result<()> {
    if known.is_empty() {
        return match fs::remove_file(agent.join(KNOWN)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        };
    }
    files::replace(&agent.join(KNOWN), &serde_json::to_vec(known)?)
}

/// Which folders of a host go once nothing is in them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep<'a> {
    /// All but these, which are in use.
    Current(Option<&'a Places>),
    /// All.
    Nothing,
}

/// Ends and removes groups of runs that nobody holds, and the folders that nobody needs any more.
///
/// # Errors
/// If it is not known where they are.
pub fn sweep(agent: &Path, keep: Keep<'_>) -> Result<()> {
    let known = known(agent)?;
    let mut left = Vec::new();
    for places in &known {
        let mut is_empty = true;
        for run in subfolders(&places.unified) {
            let is_held = Run::named(agent, &run).is_held().unwrap_or(true);
            is_empty &= !is_held && places.is_ended(&run);
        }
        for folder in places.legacy() {
            for run in subfolders(folder) {
                is_empty &= !places.unified.join(&run).exists() && remove(&folder.join(&run));
            }
        }
        let current = match keep {
            Keep::Current(current) => current,
            Keep::Nothing => None,
        };
        let is_current = current == Some(places);
        if !is_current && is_empty {
            // An agent that had other controllers may have used some of the same folders.
            let in_use: Vec<&Path> = current.into_iter().flat_map(Places::folders).collect();
            let unused = places.folders().filter(|folder| !in_use.contains(folder));
            is_empty = unused.map(remove).fold(true, |all, one| all & one);
        }
        if is_current || !is_empty {
            left.push(places.clone());
        }
    }
    if left != known { write(agent, &left) } else { Ok(()) }
}

fn subfolders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
