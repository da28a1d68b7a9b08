//! Objects of other nodes' filesets that this node reaches without the owner.
//!
//! **On a disk of this node** programs read and write them as those of the owner do theirs, and no byte of them travels.
//! The owner asks this node for size and times ([`DiskService`](forebay_disk::remote::DiskService)), and everybody else's reads
//! and writes come here the same way, to the same file. The kernel takes one registration for all handles of a file. So the
//! object stays open as long as any handle is, also one that became stale meanwhile: that can still write, and its next
//! sync fails.
//!
//! **On a disk that all nodes reach** it is the same, and no node's word about an object is needed: the owner looks for itself.
//! What a program syncs, its own node syncs first.
//!
//! **On a disk of a third node** they are read there. Writes go by way of the owner, which refuses those of a node that it
//! has dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use forebay_base::Ino;
use forebay_disk::Sync;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::attributes::SetId;
use crate::error::{FsError, Result};
use crate::object::{LiveObject, SeenObject};
use crate::ops::Home;
use crate::owner::At;
use crate::record::ObjectRef;
use crate::shared::Shared;

/// An open file.
struct NearFile {
    at: ObjectRef,
    home: Home,
    /// The open object; one of a third node is opened by the first read.
    live: Option<Arc<LiveObject>>,
    /// The lineage of the newest handle: to those of another one the file may be another object by now.
    lineage: u32,
    handles: u32,
}

/// All open files of other nodes' filesets whose objects are reached without the owner.
#[derive(Default)]
pub(crate) struct NearFiles {
    /// Those who share it hold this.
    shared: OnceLock<Weak<Shared>>,
    files: Mutex<FxHashMap<Ino, NearFile>>,
    /// Counts looks at objects on disks of this node.
    looks: AtomicU64,
}

impl NearFiles {
    /// The disks are those of `shared`.
    pub fn stand_on(&self, shared: &Arc<Shared>) {
        let _ = self.shared.set(Arc::downgrade(shared));
    }

    pub(super) fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.get()?.upgrade()
    }

    /// How an object that does not lie with its owner is reached; `None` if its disk is not known here.
    pub fn home_of(&self, at: ObjectRef) -> Option<Home> {
        let disk_is_near = self.shared()?.objects.disk_is_near(at.disk)?;
        Some(if disk_is_near { Home::Here } else { Home::There })
    }

    /// Opens a file for one more handle, whose object may have been `made` here; `None` if it cannot be opened, or handles of
    /// an earlier lineage hold another one.
    pub fn open(
        &self,
        ino: Ino,
        (at, home): (ObjectRef, Home),
        lineage: u32,
        made: Option<Arc<LiveObject>>,
    ) -> Option<Home> {
        let shared = self.shared()?;
        let mut files = self.files.lock();
        if let Some(file) = files.get_mut(&ino) {
            if file.at != at {
                // Nobody reads from it any more.
                file.lineage = 0;
                return None;
            }
            file.lineage = lineage;
            file.handles += 1;
            return Some(file.home);
        }
        let live = match home {
            Home::There => None,
            Home::Here if made.as_ref().is_some_and(|made| made.at == at) => made,
            Home::Here => match shared.objects.open(at) {
                Ok(live) => Some(live),
                Err(error) => {
                    tracing::debug!(%ino, %error, "an object of this node is used through its owner");
                    return None;
                }
            },
        };
        files.insert(ino, NearFile { at, home, live, lineage, handles: 1 });
        Some(home)
    }

    /// The kernel's registration of an open object of this node.
    pub fn registration(&self, ino: Ino) -> Option<u32> {
        let live = self.files.lock().get(&ino)?.live.clone()?;
        live.registration()
    }

    /// A program of this node has the file open for reading and writing on the direct path.
    pub fn may_be_mapped(&self, ino: Ino) {
        if let (Some(live), Some(shared)) = (self.open_object(ino), self.shared()) {
            shared.objects.may_be_mapped(&live);
        }
    }

    /// Makes durable what programs of this node have written to an open object that all nodes reach: the owner's sync covers
    /// only what is known to the storage.
    pub fn sync_shared(&self, ino: Ino, what: Sync) -> Result<()> {
        let (Some(shared), Some(live)) = (self.shared(), self.open_object(ino)) else {
            return Ok(());
        };
        if shared.objects.is_shared(live.at.disk) {
            shared.objects.sync(&live, what)
        } else {
            Ok(())
        }
    }

    /// Whether a file that is open lies on a disk that this node reads itself.
    pub fn is_here(&self, ino: Ino) -> bool {
        self.files.lock().get(&ino).is_some_and(|file| file.home == Home::Here)
    }

    fn open_object(&self, ino: Ino) -> Option<Arc<LiveObject>> {
        self.files.lock().get(&ino)?.live.clone()
    }

    /// The object of a file that is open in this lineage, for reading, or on a disk of this node.
    fn opened(&self, ino: Ino, lineage: u32, shared: &Shared) -> Option<(Arc<LiveObject>, Home)> {
        let (at, home) = {
            let files = self.files.lock();
            let file = files.get(&ino).filter(|file| file.lineage == lineage)?;
            if let Some(live) = &file.live {
                return Some((Arc::clone(live), file.home));
            }
            (file.at, file.home)
        };
        // The owner knows why it cannot be opened, if so.
        let live = shared.objects.open(at).ok()?;
        let mut files = self.files.lock();
        if let Some(file) = files.get_mut(&ino).filter(|file| file.at == at) {
            file.live.get_or_insert_with(|| Arc::clone(&live));
        }
        Some((live, home))
    }

    /// Reads what the kernel does not read itself. `None` if that is to be done by way of the owner.
    pub fn read(
        &self,
        ino: Ino,
        lineage: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Option<Result<usize>> {
        let shared = self.shared()?;
        let (live, home) = self.opened(ino, lineage, &shared)?;
        match shared.objects.observe(live.at.disk, live.object.read_at(offset, buffer)) {
            // The owner may reach it.
            Err(FsError::Absent(_) | FsError::Away { .. }) if home == Home::There => None,
            read => Some(read),
        }
    }

    /// Writes what the kernel does not write itself. `None` if that is to be done by way of the owner. `kill_set_id` has
    /// the owner take the set-id bits.
    pub fn write(
        &self,
        ino: Ino,
        lineage: u32,
        (at, data): (At, &[u8]),
        set_id: SetId,
        kill_set_id: impl FnOnce() -> Result<()>,
    ) -> Option<Result<usize>> {
        let shared = self.shared()?;
        let live = {
            let files = self.files.lock();
            let here = |file: &&NearFile| file.lineage == lineage && file.home == Home::Here;
            files.get(&ino).filter(here)?.live.clone()?
        };
        // Before the content changes: should the owner be gone in between, nothing is left that must not be.
        if set_id != SetId::Keep
            && let Err(error) = kill_set_id()
        {
            return Some(Err(error));
        }
        let written = match at {
            At::Offset(offset) => live.object.write_at(offset, data),
            At::End(_) => live.object.append(data),
        };
        Some(shared.objects.observe(live.at.disk, written))
    }

    /// How an open object on a disk of this node is now.
    pub fn look_at(&self, ino: Ino, lineage: u32) -> Option<SeenObject> {
        let files = self.files.lock();
        let file = files.get(&ino).filter(|file| file.lineage == lineage)?;
        self.look(file)
    }

    /// As [`NearFiles::look_at`], of whichever lineage.
    pub fn look_open(&self, ino: Ino) -> Option<SeenObject> {
        let files = self.files.lock();
        self.look(files.get(&ino)?)
    }

    /// Looks at an object on a disk of this node. Looks follow each other, as all files are locked.
    fn look(&self, file: &NearFile) -> Option<SeenObject> {
        let live = file.live.as_ref().filter(|_| file.home == Home::Here)?;
        let look = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        let attributes = live.object.attributes().ok()?;
        Some(SeenObject { at: file.at, attributes, is_open: true, look })
    }

    /// A handle has ended: how the last one has left the object, if that is on a disk of this node.
    pub fn let_go_of(&self, ino: Ino) -> Option<SeenObject> {
        let mut files = self.files.lock();
        let file = files.get_mut(&ino)?;
        file.handles -= 1;
        if file.handles > 0 {
            return None;
        }
        let left = self.look(file);
        let gone = files.remove(&ino);
        drop(files);
        // Closed without the lock. Of an empty one the owner needs to know whether somebody may write it still.
        let live = gone?.live?;
        let mut left = left?;
        if left.attributes.size == 0 {
            left.is_open = live.is_open_elsewhere();
        }
        Some(left)
    }

    /// This node owns the fileset now: its partition has the file from now on, with all its handles.
    pub fn take(&self, ino: Ino) -> Option<Arc<LiveObject>> {
        let file = self.files.lock().remove(&ino)?;
        file.live.filter(|_| file.home == Home::Here)
    }

    /// Closes all.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.files.lock());
        drop(all);
    }
}
