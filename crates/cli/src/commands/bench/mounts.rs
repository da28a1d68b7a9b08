//! A storage that each node of a cluster mounts in a place of its own, tried on one machine: the jobs of each logical node work
//! through the mount of theirs.

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
    /// If it does not, or a mount is not there.
    pub fn new(jobs: L, mounts: &[PathBuf], storage: &[Areas]) -> Result<ThroughMounts<L>> {
        let absolute = |path: &PathBuf| {
            path.canonicalize().with_context(|| format!("--mounts {}", path.display()))
        };
        let mounts: Vec<PathBuf> = mounts.iter().map(absolute).collect::<Result<_>>()?;
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
