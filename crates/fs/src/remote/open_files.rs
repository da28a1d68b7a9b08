//! What this node has open of the filesets of other nodes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_base::{Epoch, Ino};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::unsynced::Unsynced;
use crate::clients::Handles;
use crate::ops::Access;

/// How long the next owner waits for opens and closes that the one before has not answered.
const SETTLED_WAIT: Duration = Duration::from_secs(1);

/// What this node has open of a fileset that another node owns, whoever that is.
#[derive(Default)]
pub(crate) struct OpenFiles {
    /// Grows when what was open is lost: handles from before are stale then.
    lineage: AtomicU32,
    state: Mutex<OpenState>,
    /// Names that programs of this node have changed.
    unsynced: Unsynced,
    /// Held for reading from the request that opens or closes a file until that is noted here; for writing by whoever
    /// tells the next owner what is open.
    under_way: RwLock<()>,
}

#[derive(Default)]
struct OpenState {
    /// The latest crash of the fileset as far as is known: nothing was lost as long as it is the same.
    crash: Option<Epoch>,
    files: FxHashMap<Ino, OpenFile>,
}

/// How a file is open.
#[derive(Clone, Copy, Default)]
struct OpenFile {
    /// Those that the owner knows of.
    handles: Handles,
    /// Those for reading that are open by its grant alone: it is told before it may change anything that they need.
    granted: Handles,
    /// All of them on its object, which is on a disk of this node.
    is_near: bool,
}

impl OpenFile {
    fn is_closed(&self) -> bool {
        self.handles.all + self.granted.all == 0
    }

    fn has_granted(&self, access: Access) -> bool {
        let Handles { all, executors, .. } = self.granted;
        if access.execute { executors > 0 } else { all > executors }
    }

    fn all(&self) -> Handles {
        let (known, granted) = (self.handles, self.granted);
        Handles {
            all: known.all + granted.all,
            writers: known.writers + granted.writers,
            executors: known.executors + granted.executors,
        }
    }
}

impl OpenFiles {
    /// The lineage of what is opened now.
    pub fn lineage(&self) -> u32 {
        // 0 stands for handles where owners do not change.
        self.lineage.load(Ordering::Acquire).wrapping_add(1).max(1)
    }

    /// What was open is lost.
    pub fn lose(&self) {
        self.lineage.fetch_add(1, Ordering::AcqRel);
        self.state.lock().files.clear();
    }

    /// This node was the owner, and names in these directories are lost with what was open.
    pub fn lose_with_names(&self, directories: impl IntoIterator<Item = Ino>) {
        self.lose();
        self.unsynced.lose(directories);
        // The next owner knows of another crash.
        self.state.lock().crash = None;
    }

    /// An owner says which the latest crash was. After another one than before, names are lost that were not synced.
    pub fn hear_of_crash(&self, crash: Epoch) {
        let before = self.state.lock().crash.replace(crash);
        if before.is_some_and(|before| before != crash) {
            self.unsynced.lose([]);
        }
    }

    /// Names of this node's programs that may not be durable.
    pub fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    /// Notes a handle, and whether it is one on an object of this node: if the file is not open yet and that is
    /// `wanted`, or the others are. The kernel allows no mixture.
    pub(super) fn opened(&self, ino: Ino, access: Access, crash: Epoch, wanted: bool) -> bool {
        let mut state = self.state.lock();
        // While files are open it is that of when they were opened.
        if state.crash.is_none() {
            state.crash = Some(crash);
        }
        let file = state.files.entry(ino).or_default();
        if file.handles.all + file.granted.all == 0 {
            file.is_near = wanted;
        }
        file.handles.add(access);
        file.is_near
    }

    /// As [`OpenFiles::opened`], of a file that was made here and that the owner does not know. Whether it could be noted.
    pub(super) fn opened_here(&self, ino: Ino, access: Access) -> bool {
        let mut state = self.state.lock();
        if state.crash.is_none() {
            return false;
        }
        let file = state.files.entry(ino).or_default();
        file.is_near = true;
        file.handles.add(access);
        true
    }

    pub fn closed(&self, ino: Ino, access: Access) {
        let mut state = self.state.lock();
        if let Some(file) = state.files.get_mut(&ino) {
            file.handles.take(access);
            if file.is_closed() {
                state.files.remove(&ino);
            }
        }
    }

    /// Notes a handle for reading that is open by a grant; `is_here` if the object is on a disk of this node. `None` if the
    /// owner is to be asked: others have it open another way, or what is open is being told to somebody.
    pub(super) fn opened_by_grant(&self, ino: Ino, access: Access, is_here: bool) -> Option<()> {
        let _under_way = self.under_way.try_read()?;
        let mut state = self.state.lock();
        state.crash?;
        let file = state.files.entry(ino).or_default();
        if file.is_closed() {
            file.is_near = is_here;
        } else if file.is_near != is_here {
            return None;
        }
        file.granted.add(access);
        Some(())
    }

    /// A handle is closed. Whether it was open by a grant: then the owner need not be told.
    pub(super) fn closed_by_grant(&self, ino: Ino, access: Access) -> bool {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return false };
        if access.write || !file.has_granted(access) {
            return false;
        }
        file.granted.take(access);
        if file.is_closed() {
            state.files.remove(&ino);
        }
        true
    }

    /// A handle of which the owner is to be told.
    pub(super) fn granted(&self, ino: Ino) -> Option<Access> {
        self.state.lock().files.get(&ino)?.granted.each().next()
    }

    /// All files with such handles.
    pub(super) fn all_granted(&self) -> Vec<Ino> {
        let state = self.state.lock();
        let granted = state.files.iter().filter(|(_, file)| file.granted.all > 0);
        granted.map(|(ino, _)| *ino).collect()
    }

    /// The owner knows of a handle that was open by its grant. Whether it is still open.
    pub(super) fn registered(&self, ino: Ino, access: Access) -> bool {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return false };
        if !file.has_granted(access) {
            return false;
        }
        file.granted.take(access);
        file.handles.add(access);
        true
    }

    /// A new owner knows of everything that is open.
    pub(super) fn all_are_registered(&self) {
        for file in self.state.lock().files.values_mut() {
            file.handles = file.all();
            file.granted = Handles::default();
        }
    }

    /// To be held from a request that opens or closes a file until that is noted here.
    pub(super) fn under_way(&self) -> impl Drop {
        self.under_way.read()
    }

    pub fn is_empty(&self) -> bool {
        self.state.lock().files.is_empty()
    }

    pub(super) fn is_open(&self, ino: Ino) -> bool {
        self.state.lock().files.contains_key(&ino)
    }

    /// Waits until every open and close under way is noted, and keeps others from beginning. An owner that gives a
    /// fileset up in order answers them at once; where one is not answered in time, what is open is lost.
    pub fn settled(&self) -> Option<impl Drop> {
        let settled = self.under_way.try_write_for(SETTLED_WAIT);
        if settled.is_none() {
            self.lose();
        }
        settled
    }

    /// What is open, and the latest crash when it was opened.
    pub fn all(&self) -> (Epoch, Vec<(Ino, Handles)>) {
        let state = self.state.lock();
        (
            state.crash.unwrap_or(Epoch(0)),
            state.files.iter().map(|(ino, file)| (*ino, file.all())).collect(),
        )
    }

    /// Takes over what was open where this node was the owner.
    pub fn take_over(&self, crash: Epoch, files: Vec<(Ino, Handles)>) {
        let open = |(ino, handles)| (ino, OpenFile { handles, ..OpenFile::default() });
        let files = files.into_iter().map(open).collect();
        *self.state.lock() = OpenState { crash: Some(crash), files };
    }

    /// Forgets what is open: this node is the owner now, and its partition knows.
    pub fn hand_on(&self) {
        self.state.lock().files.clear();
    }
}
