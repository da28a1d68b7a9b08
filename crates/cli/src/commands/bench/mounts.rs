//! A storage that nodes mount in places of their own: the jobs of each logical node work through the mount of theirs. With a grid
//! that is the mount of the host on which the node is; on one machine it is a cluster that is tried out.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use forebay_study::error::Result as StudyResult;
use forebay_study::run::{Areas, Event, Launch, Launcher};

/// A launcher whose jobs find the storage at the mount of their logical node.
pub struct ThroughMounts<L> {
    jobs: L,
    /// Of each logical node; the first is the one that the jobs' commands name.
    mounts: Vec<PathBuf>,
}

impl<L> ThroughMounts<L> {
    /// Checks that the storage lies in the first of `mounts`.
    ///
    /// # Errors
    /// If it does not.
    pub fn new(jobs: L, mounts: Vec<PathBuf>, storage: &[Areas]) -> Result<ThroughMounts<L>> {
        let first = mounts.first().context("--mounts names no mount")?;
        for Areas { data, work, util, .. } in storage {
            for area in [data, work, util] {
                ensure!(
                    area.starts_with(first),
                    "{} does not lie in the first of --mounts, {}",
                    area.display(),
                    first.display()
                );
            }
        }
        Ok(ThroughMounts { jobs, mounts })
    }
}

/// The mount points as jobs name them. Only the first must be one here if the others are [`Others::Elsewhere`].
pub fn resolved(given: &[PathBuf], others: Others) -> Result<Vec<PathBuf>> {
    let resolve = |(place, path): (usize, &PathBuf)| {
        let shown = || format!("--mounts {}", path.display());
        match (place, others) {
            (1.., Others::Elsewhere) => std::path::absolute(path).with_context(shown),
            (0, _) | (_, Others::Here) => path.canonicalize().with_context(shown),
        }
    };
    given.iter().enumerate().map(resolve).collect()
}

/// Where the mount points besides the first are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// On this machine.
    Here,
    /// On other hosts.
    Elsewhere,
}

/// A path of the storage as it is at the mount of a node.
pub fn at_node(mounts: &[PathBuf], path: &Path, node: usize) -> PathBuf {
    match (mounts.first(), mounts.get(node % mounts.len().max(1))) {
        (Some(first), Some(own)) => moved(path.to_owned().into(), first, own).into(),
        (None, _) | (_, None) => path.to_owned(),
    }
}

/// An argument with the place `from` replaced, if it is a path in it.
fn moved(argument: OsString, from: &Path, to: &Path) -> OsString {
    // A relative argument is in no mount, whatever it says.
    if !argument.as_bytes().starts_with(b"/") {
        return argument;
    }
    match Path::new(&argument).strip_prefix(from) {
        Ok(rest) => to.join(rest).into(),
        Err(_) => argument,
    }
}

impl<L: Launcher> Launcher for ThroughMounts<L> {
    fn set_slots(&mut self, nodes: u32, concurrent: u32) {
        self.jobs.set_slots(nodes, concurrent);
    }

    fn submit(&mut self, mut launch: Launch) -> StudyResult<()> {
        let own = &self.mounts[launch.node as usize % self.mounts.len()];
        let command = launch.command.into_iter();
        launch.command = command.map(|argument| moved(argument, &self.mounts[0], own)).collect();
        launch.output = moved(launch.output.into(), &self.mounts[0], own).into();
        self.jobs.submit(launch)
    }

    fn wait(&mut self, limit: Duration) -> StudyResult<Vec<Event>> {
        self.jobs.wait(limit)
    }

    fn stop(&mut self) -> Vec<Event> {
        self.jobs.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_in_the_first_mount_are_moved() {
        let of = |text: &str| moved(text.into(), Path::new("/m/0"), Path::new("/m/1"));
        assert_eq!(of("/m/0/data/x"), "/m/1/data/x");
        assert_eq!(of("/m/00/data"), "/m/00/data");
        assert_eq!(of("/out/jobs/a.steps"), "/out/jobs/a.steps");
        assert_eq!(of("--data"), "--data");
        assert_eq!(of("m/0/data"), "m/0/data");
    }
}
