//! What happens when space is short: what was given up comes back before its time.
//!
//! - Who finds no space while some waits for a commit, or to be closed, waits for that and tries again.
//! - Who removes a file on a disk that is nearly full waits until its bytes are free, if a writer could miss
//!   them: on the direct path the kernel would refuse that writer without asking us.
//! - Who opens a file for writing there waits for what others have given up.
//!
//! Bytes go after the commit of the batch that no longer refers to them, here as always. A file that has lost its last
//! name and has no handle loses its bytes then even if the kernel has not forgotten it yet: to open it once more (by
//! a descriptor of O_PATH, or in a race with its removal) gives ESTALE, for which the kernel looks the name up again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::in_flight::{self, WaitsFor};

use crate::error::{FsError, Result};
use crate::inode::{Inode, State};
use crate::partition::Partition;
use crate::record::ObjectRef;
use crate::space::Urgency;
use crate::writeset::Removal;

/// So often a refused operation is tried again, as long as something comes back each time.
const TRIES_MAX: usize = 3;

/// So long after a file lost its last name its close may still be on its way, at most.
const CLOSE_SECONDS: i64 = 1;
/// So often, and after such a pause each, whoever finds no space looks whether it has come.
const CLOSE_LOOKS: usize = 100;
const CLOSE_PAUSE: Duration = Duration::from_millis(5);

/// What a file that has just lost its last name holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    removal: Removal,
    published: bool,
}

impl Left {
    /// What a locked inode leaves behind, if it has no name and no handle any more.
    pub fn by(state: &State) -> Option<Left> {
        let file = state.file()?;
        let at = file.object.filter(|_| state.nlink == 0 && file.opens.handles == 0)?;
        let published = file.live.as_ref().is_none_or(|live| live.is_published());
        let removal = Removal { at, bytes: state.allocated_bytes };
        (removal.bytes > 0).then_some(Left { removal, published })
    }
}

impl Partition {
    /// Carries `operation` out; if it finds no space while some waits to come back, again after that.
    pub(crate) fn with_space<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        let is_refused = |done: &Result<T>| matches!(done, Err(FsError::NoSpace));
        let mut done = operation();
        if !is_refused(&done) {
            return done;
        }
        let _waits = in_flight::waits_for(|| WaitsFor::Space);
        let mut tries = 0;
        while is_refused(&done) && tries < TRIES_MAX && self.shared.recover_space() {
            done = operation();
            tries += 1;
        }
        // What came may have been something else than the bytes of a file whose close is on its way.
        let mut looks = 0;
        while is_refused(&done) && looks < CLOSE_LOOKS && self.awaits_close() {
            std::thread::sleep(CLOSE_PAUSE);
            looks += 1;
            // Also if there is nothing to wait for: others may have seen to it meanwhile.
            self.shared.recover_space();
            done = operation();
        }
        done
    }

    /// Whether a file has just lost its last name: the kernel reports closes, and files that it has forgotten, after the
    /// caller has continued, so its bytes may be on their way.
    fn awaits_close(&self) -> bool {
        self.now().seconds.saturating_sub(self.shared.last_left.load(Ordering::Relaxed))
            <= CLOSE_SECONDS
    }

    /// A file has lost its last name.
    pub(crate) fn note_left(&self, state: &State) {
        if state.nlink == 0 && state.allocated_bytes > 0 {
            self.shared.last_left.store(state.changed.seconds, Ordering::Relaxed);
        }
    }

    /// Before a file is written on the direct path: the kernel will not ask. Holds no locks when called.
    pub(crate) fn make_room_for_writer(&self) {
        if self.shared.objects.is_pressed() {
            self.shared.recover_space();
        }
    }

    /// After a name was taken away, with no locks held: if the bytes of what it named are wanted, they come back
    /// before the caller goes on, or soon.
    pub(crate) fn after_removal(&self, inode: &Arc<Inode>, left: Option<Left>) {
        let Some(Left { removal, published }) = left else { return };
        // Bytes of an object that was never published come back at once by themselves, or nearly so.
        if !published && !self.shared.objects.is_pressed() {
            return;
        }
        match self.shared.objects.urgency_with(removal) {
            Urgency::None => {}
            _ if self.commits_rest() => {}
            Urgency::Soon => self.shared.want_removals(),
            Urgency::Now => self.give_back(inode, removal.at),
        }
    }

    /// After an object was dropped whose bytes wait for a commit.
    pub(crate) fn after_drop(&self, at: ObjectRef) {
        let waits = self.shared.objects.urgency_with(Removal { at, bytes: 0 });
        if waits != Urgency::None && !self.commits_rest() {
            self.shared.want_removals();
        }
    }

    /// Whether a file that is cut to nothing is cut in place, as its bytes are wanted and a fresh object would keep
    /// them until the next commit.
    pub(crate) fn is_cut_in_place(&self, state: &State) -> bool {
        let Some(file) = state.file() else { return false };
        let Some(at) = file.object.filter(|_| state.allocated_bytes > 0) else { return false };
        let published = file.live.as_ref().is_none_or(|live| live.is_published());
        let removal = Removal { at, bytes: state.allocated_bytes };
        (published || self.shared.objects.is_pressed())
            && self.shared.objects.urgency_with(removal) != Urgency::None
    }

    /// Commits that a file has no name any more, and frees its bytes.
    fn give_back(&self, inode: &Arc<Inode>, at: ObjectRef) {
        if self.commit().is_err() {
            return;
        }
        // What others gave up may wait as well, and was not wanted when they did.
        self.shared.want_removals();
        let mut state = inode.lock();
        if state.nlink > 0 || state.handles() > 0 {
            return;
        }
        let Some(file) = state.file_mut().filter(|file| file.object == Some(at)) else { return };
        let live = match file.live.take() {
            Some(live) => live,
            None => match self.shared.objects.open(at) {
                Ok(live) => live,
                Err(_) => return,
            },
        };
        file.object = None;
        self.writes.lock().withhold(at.id);
        if !live.is_open_elsewhere() {
            // To cut it frees the bytes at once; XFS frees those of a removed file in the background.
            let _ = self.shared.objects.set_size(&live, 0);
        }
        let published = live.is_published();
        drop(live);
        drop(state);
        if published {
            self.shared.objects.remove_now(Removal { at, bytes: 0 });
        }
        self.shared.restore_reserves();
    }
}
