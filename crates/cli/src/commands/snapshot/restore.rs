//! `forebay snapshot restore`: copies files and directories of a snapshot back, through the mount.
//!
//! The command itself reads and writes, so the kernel checks the rights of whoever runs it, quotas apply as for any other
//! writer, and other programs see each file as it was or as it is in the snapshot. What survives a crash: whole files
//! only, old or new, and names that begin with [`tree::DRAFT`].

mod attributes;
mod tree;

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::tree::{Outcome, Restoration};
use crate::output::bytes;

/// Exit code of a command that was interrupted.
const INTERRUPTED: u8 = 130;
/// Failures that are printed, at most.
const FAILURES_SHOWN: usize = 20;

/// What is to be restored, and where.
pub struct Order {
    /// Home folder of the file system, or where it is mounted.
    pub root: PathBuf,
    pub fileset: String,
    pub snapshot: String,
    pub paths: Vec<PathBuf>,
    /// Directory in which it is put, instead of where it was.
    pub to: Option<PathBuf>,
    pub json: bool,
}

/// Carries the order out.
pub fn run(order: &Order) -> Result<ExitCode> {
    let top = top_of(&order.root, &order.fileset)?;
    let from = top.join(".snapshots").join(&order.snapshot);
    let is_there = !order.snapshot.contains('/') && from.is_dir();
    ensure!(
        is_there,
        "fileset {} has no snapshot \"{}\": `forebay snapshot list` shows what there is",
        order.fileset,
        order.snapshot
    );
    let mut plan = Vec::new();
    for path in &order.paths {
        let inside = below(path, &top)?;
        fs::symlink_metadata(from.join(&inside)).with_context(|| {
            format!("{} cannot be restored from snapshot {}", path.display(), order.snapshot)
        })?;
        plan.push(inside);
    }
    let place = order.to.as_deref().unwrap_or(&top);
    if order.to.is_some() {
        no_two_of_a_name(&plan)?;
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(number, Arc::clone(&interrupted))?;
    }
    let mut restoration = Restoration::begin(&from, place, interrupted)?;
    for inside in &plan {
        match &order.to {
            // Its name alone; the contents, if it is the top of the fileset.
            Some(_) => {
                restoration.restore(inside, inside.file_name().map_or(Path::new(""), Path::new));
            }
            None => restoration.restore_in_place(inside),
        }
    }
    report(&restoration.finish()?, order)
}

/// Where the top of a fileset is for this process.
fn top_of(root: &Path, fileset: &str) -> Result<PathBuf> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let mounted = crate::mounts::all().into_iter().rev();
    let found = mounted.into_iter().find(|mount| mount.home == root || mount.mountpoint == root);
    let Some(mount) = found else {
        bail!(
            "{} is not mounted here, and files are restored through the mount: `forebay mount` first",
            root.display()
        );
    };
    ensure!(
        fileset == "/"
            || (!fileset.is_empty() && !fileset.contains('/') && !fileset.starts_with('.')),
        "\"{fileset}\" cannot be the name of a fileset"
    );
    Ok(if fileset == "/" { mount.mountpoint } else { mount.mountpoint.join(fileset) })
}

/// A path within the fileset: relative to its top, or absolute and below its top.
fn below(path: &Path, top: &Path) -> Result<PathBuf> {
    let within = if path.is_absolute() {
        path.strip_prefix(top).with_context(|| {
            format!("{} is not below the fileset, which is {}", path.display(), top.display())
        })?
    } else {
        path
    };
    let mut clean = PathBuf::new();
    for part in within.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                bail!(
                    "{}: write the path from the top of the fileset, without \"..\"",
                    path.display()
                )
            }
        }
    }
    ensure!(
        clean.components().next().map(Component::as_os_str) != Some(OsStr::new(".snapshots")),
        "{}: write the path from the top of the fileset, without .snapshots/NAME",
        path.display()
    );
    Ok(clean)
}

/// Two of one name would overwrite each other in the same directory.
fn no_two_of_a_name(plan: &[PathBuf]) -> Result<()> {
    let mut names: Vec<_> = plan.iter().filter_map(|path| path.file_name()).collect();
    names.sort_unstable();
    match names.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => bail!(
            "two of the paths have the name {}: restore them to different directories",
            two[0].display()
        ),
        None => Ok(()),
    }
}

fn report(outcome: &Outcome, order: &Order) -> Result<ExitCode> {
    if order.json {
        crate::output::put_json(outcome)?;
    } else {
        outln!(
            "restored {} files and {} directories, {}, from snapshot {} of fileset {}",
            outcome.files,
            outcome.directories,
            bytes(outcome.bytes),
            order.snapshot,
            order.fileset
        );
    }
    let aside = crate::output::put_aside;
    if outcome.owners_not_kept > 0 {
        aside(&format!(
            "{} of them belong to you now: only root can give files to another user or group\n",
            outcome.owners_not_kept
        ));
    }
    if outcome.attributes_not_kept > 0 {
        aside(&format!(
            "{} extended attributes or ACLs cannot be kept there\n",
            outcome.attributes_not_kept
        ));
    }
    for failure in outcome.failed.iter().take(FAILURES_SHOWN) {
        aside(&format!("not restored: {}: {}\n", failure.path, failure.reason));
    }
    if outcome.failed_total > 0 {
        aside(&format!("{} were not restored; they are as before\n", outcome.failed_total));
    }
    if outcome.interrupted {
        aside(
            "interrupted: what is counted above is restored whole, everything else is as before\n",
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if outcome.failed_total > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_the_top_of_the_fileset_and_never_lead_out_of_it() {
        let top = Path::new("/mnt/forebay/data");
        let taken = |path: &str| below(Path::new(path), top).ok();
        assert_eq!(taken("./a//b/"), Some(PathBuf::from("a/b")));
        assert_eq!(taken("/mnt/forebay/data/a"), Some(PathBuf::from("a")));
        assert_eq!(taken("."), Some(PathBuf::new()));
        for refused in ["../a", "a/../../b", "/etc/passwd", ".snapshots/monday/a"] {
            assert_eq!(taken(refused), None, "{refused}");
        }
    }
}
