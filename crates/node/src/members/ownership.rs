//! What a node does with filesets that it owns: the daemon behind a mount implements it.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, Ino};
use forebay_cluster::Moment;
use serde::{Deserialize, Serialize};

use super::visit::{DiskSpace, FilesReport, UnreachableFiles};

/// What becomes of files of a fileset that cannot be taken to its next owner: those that programs of this node use on the direct
/// path, removed files that are open, and locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InUse {
    /// The fileset stays where it is as long as there are any.
    Stays,
    /// They become stale, as after a crash of the owner. Nothing that was written is lost.
    Abandoned,
}

/// The filesets of a node, as their owner has to treat them.
///
/// `answer`, `wait`, `fence` and `passed` are called one after another by one thread, and must not wait for anything: what they say
/// holds when they return. `open`, `settle` and `release` may take their time; each is called by a thread of its own, at most one
/// for a fileset at a time.
///
/// The gates of all filesets are open only until the moment that `answer` said, by [`boottime`](super::boottime): whoever passes a
/// gate compares the clock with it, because no thread is sure to run in time on a frozen machine.
pub trait Ownership: Send + Sync {
    /// The node's lease is certain until this moment (exclusive): gates of open filesets may be open until then.
    fn answer(&self, until: Moment);

    /// The node's lease is not certain: requests wait at the gates of all filesets.
    fn wait(&self);

    /// The node owns this fileset from now on: opens its store in this epoch, which fences all earlier ones, and then its gate.
    /// Changes wait for `lapse`: clients may cache what an earlier owner granted.
    ///
    /// # Errors
    /// Why it cannot be opened here: nothing of it is open then, and the fileset is left to other nodes for a while.
    fn open(&self, fileset: FilesetId, epoch: Epoch, lapse: Duration) -> Result<(), String>;

    /// Another node is to own the fileset, `to` if it is known which one: has that one read ahead, has requests wait, recalls what
    /// clients cache, commits, closes the store.
    ///
    /// # Errors
    /// Why it cannot be closed: it stays open here then, and requests go on.
    fn settle(
        &self,
        fileset: FilesetId,
        epoch: Epoch,
        to: Option<ClientId>,
        in_use: InUse,
    ) -> Result<(), String>;

    /// The fileset, which was settled before, belongs to another node now, or to none: requests that wait are sent there.
    fn passed(&self, fileset: FilesetId, to: Option<ClientId>);

    /// Another node owns the fileset, and this one did not hand it over. Closes the gate for good: handles are stale, fsync fails,
    /// nothing is committed.
    fn fence(&self, fileset: FilesetId, epoch: Epoch);

    /// Drops what a fenced fileset has in memory.
    fn release(&self, fileset: FilesetId, epoch: Epoch);

    /// The node is at its end: it was removed from the cluster, or a later life of its daemon has begun. Nothing is answered any
    /// more.
    fn ended(&self, reason: &str);

    /// What this node reports of its files; none if it serves none. Asked by commands, at any time.
    fn report(&self) -> Option<FilesReport> {
        None
    }

    /// Files in filesets that this node owns whose bytes cannot be reached. Asked by commands, at any time.
    ///
    /// # Errors
    /// Why it cannot be said.
    fn unreachable(&self) -> Result<UnreachableFiles, String> {
        Ok(UnreachableFiles::default())
    }

    /// Paths of files in filesets that this node owns, of those that are known. Asked by commands, at any time.
    fn paths(&self, _inos: &[Ino]) -> Vec<(Ino, String)> {
        Vec::new()
    }

    /// Commits everything that this node has of the file system. Asked by commands, at any time.
    ///
    /// # Errors
    /// Why it cannot be committed.
    fn commit(&self) -> Result<(), String> {
        Ok(())
    }

    /// What the checks of this host say, in a text for whoever asks. Asked by commands, at any time.
    ///
    /// # Errors
    /// Why it cannot be checked.
    fn examine_host(&self) -> Result<String, String> {
        host_unchecked()
    }
}

fn host_unchecked() -> Result<String, String> {
    Err("this daemon does not check its host".to_owned())
}

/// A node that serves no filesets: it is a member, and others never hear of a fileset from it. It may serve disks.
#[derive(Clone, Default)]
pub struct NoFilesets {
    /// What it reports of its disks.
    pub disks: Option<Arc<dyn Fn() -> Vec<DiskSpace> + Send + Sync>>,
    /// What the checks of its host say.
    pub host: Option<Arc<dyn Fn() -> Result<String, String> + Send + Sync>>,
}

impl Ownership for NoFilesets {
    fn answer(&self, _until: Moment) {}

    fn wait(&self) {}

    fn open(&self, _fileset: FilesetId, _epoch: Epoch, _lapse: Duration) -> Result<(), String> {
        Err("this node serves no filesets".to_owned())
    }

    fn settle(
        &self,
        _fileset: FilesetId,
        _epoch: Epoch,
        _to: Option<ClientId>,
        _in_use: InUse,
    ) -> Result<(), String> {
        Ok(())
    }

    fn passed(&self, _fileset: FilesetId, _to: Option<ClientId>) {}

    fn fence(&self, _fileset: FilesetId, _epoch: Epoch) {}

    fn release(&self, _fileset: FilesetId, _epoch: Epoch) {}

    fn ended(&self, _reason: &str) {}

    fn report(&self) -> Option<FilesReport> {
        let disks = self.disks.as_ref()?();
        Some(FilesReport { disks, ..FilesReport::default() })
    }

    fn examine_host(&self) -> Result<String, String> {
        match &self.host {
            Some(examine) => examine(),
            None => host_unchecked(),
        }
    }
}
