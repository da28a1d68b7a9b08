//! A stand-in for the kernel: on the direct way it reads and writes objects itself.

use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_base::{FilesetId, Ino};
use forebay_fs::{
    Access, Attributes, Caller, DirectAccess, Home, Namespace, New, Opened, Result, SeenObject,
};
use parking_lot::Mutex;

use super::{Nodes, OWNER, ROOT, TAKER};

/// Access of an open for reading.
pub const READ: Access =
    Access { read: true, write: false, truncate: false, execute: false, synchronous: false };
/// Access of an open for writing.
pub const WRITE: Access = Access { read: false, write: true, ..READ };
/// Access of an open for both.
pub const READ_WRITE: Access = Access { read: true, ..WRITE };
/// Access of an open for writing that empties the file.
pub const TRUNCATE: Access = Access { truncate: true, ..WRITE };

/// Files that were registered for direct access, by their registration.
#[derive(Default)]
pub struct Kernel {
    next: AtomicU32,
    registered: Mutex<HashMap<u32, Arc<OwnedFd>>>,
}

impl Kernel {
    /// Registrations that are held now.
    pub fn registrations(&self) -> usize {
        self.registered.lock().len()
    }
}

impl DirectAccess for Kernel {
    fn register(&self, file: BorrowedFd<'_>) -> std::io::Result<u32> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.registered.lock().insert(number, Arc::new(file.try_clone_to_owned()?));
        Ok(number)
    }

    fn unregister(&self, registration: u32) {
        let known = self.registered.lock().remove(&registration);
        assert!(known.is_some(), "registration {registration} is not held");
    }
}

/// A file system with the kernel that uses it.
#[derive(Clone)]
pub struct User {
    pub fs: Arc<Namespace>,
    pub kernel: Arc<Kernel>,
    /// The node that owns everything, where `fs` is another one.
    pub owner: Option<Arc<Namespace>>,
    /// The node that takes filesets over, where there is one.
    pub taker: Option<Arc<Namespace>>,
    pub nodes: Option<Arc<Nodes>>,
}

/// What concerns the owner, whoever asks.
impl User {
    /// The namespace that owns everything.
    pub fn at_owner(&self) -> &Arc<Namespace> {
        self.owner.as_ref().unwrap_or(&self.fs)
    }

    /// All nodes that own something.
    fn owners(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        [self.at_owner()].into_iter().chain(&self.taker)
    }

    /// One fileset crashes, and another node takes it over in `epoch`. The old owner hears of it first or last.
    pub fn crash_fileset(&self, fileset: FilesetId, epoch: u64, old_first: bool) {
        let nodes = self.nodes.as_ref().expect("there are several nodes");
        let (owner, taker) = (self.at_owner(), self.taker.as_ref().expect("there is a taker"));
        let is_owners = owner.own_filesets().contains(&fileset);
        let (old, new, node) =
            if is_owners { (owner, taker, TAKER) } else { (taker, owner, OWNER) };
        nodes.give(fileset, node, epoch);
        let order = if old_first { [old, new] } else { [new, old] };
        order.into_iter().chain([&self.fs]).for_each(|node| node.owner_changed(fileset).unwrap());
        new.sweep_fileset(fileset).unwrap();
    }

    /// What another node has done by itself is reported first.
    pub fn commit(&self) -> Result<()> {
        self.fs.report_all()?;
        self.owners().try_for_each(|owner| owner.commit())
    }

    pub fn sync_all(&self) -> Result<()> {
        self.fs.report_all()?;
        self.owners().try_for_each(|owner| owner.sync_all())
    }

    pub fn after_request(&self) {
        self.owners().for_each(|owner| owner.after_request());
    }

    pub fn disk_status(&self) -> Vec<forebay_fs::DiskStatus> {
        self.at_owner().disk_status()
    }

    pub fn drop_caches(&self) {
        self.owners().for_each(|owner| owner.drop_caches());
    }

    pub fn sweep(&self) -> Result<()> {
        self.owners().try_for_each(|owner| owner.sweep())
    }

    pub fn objects(&self) -> &forebay_fs::object::Objects {
        self.at_owner().objects()
    }

    pub fn commit_health(&self) -> forebay_fs::CommitHealth {
        self.at_owner().commit_health()
    }

    pub fn commit_health_of(&self, fileset: FilesetId) -> Option<forebay_fs::CommitHealth> {
        self.owners().find_map(|owner| owner.commit_health_of(fileset))
    }

    /// Ends it in order.
    pub fn close(&self) -> Result<()> {
        if let Some(owner) = &self.owner {
            self.fs.close()?;
            self.taker.as_ref().map_or(Ok(()), |taker| taker.close())?;
            return owner.close();
        }
        self.fs.close()
    }
}

impl Deref for User {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.fs
    }
}

/// An open file. Must be closed.
pub struct Handle {
    fs: Arc<Namespace>,
    pub ino: Ino,
    pub access: Access,
    /// The object's file, on the direct way.
    direct: Option<Arc<OwnedFd>>,
    /// How the object is reached without the owner.
    home: Option<Home>,
}

impl User {
    pub fn open(&self, ino: Ino, access: Access) -> Handle {
        self.open_as(ino, access, ROOT).unwrap()
    }

    pub fn open_as(&self, ino: Ino, access: Access, caller: Caller) -> Result<Handle> {
        let opened = self.fs.open_file(ino, access, caller)?;
        Ok(self.handle(ino, access, opened))
    }

    fn handle(&self, ino: Ino, access: Access, opened: Opened) -> Handle {
        let direct = opened.registration.map(|registration| {
            let registered = self.kernel.registered.lock();
            Arc::clone(registered.get(&registration).expect("the registration is held"))
        });
        Handle { fs: Arc::clone(&self.fs), ino, access, direct, home: opened.home }
    }

    /// Makes a file and opens it in one step.
    pub fn create_file(&self, parent: Ino, name: &str, access: Access) -> Result<Handle> {
        let new = super::file(0o644);
        Ok(self.create_file_as(parent, name.as_bytes(), new, access, ROOT)?.1)
    }

    pub fn create_file_as(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        access: Access,
        caller: Caller,
    ) -> Result<(Attributes, Handle)> {
        let (made, opened) = self.fs.create_file(parent, name, new, access, caller)?;
        Ok((made, self.handle(made.ino, access, opened)))
    }

    /// Writes `data` at `offset` through a handle of its own.
    pub fn write_file(&self, ino: Ino, offset: u64, data: &[u8]) {
        let handle = self.open(ino, WRITE);
        handle.write(offset, data);
        handle.close();
    }

    /// Replaces the content of a file, as `>` of a shell does.
    pub fn overwrite(&self, ino: Ino, data: &[u8]) {
        let handle = self.open(ino, TRUNCATE);
        handle.write(0, data);
        handle.close();
    }

    /// Everything that a file holds, read through a handle of its own.
    pub fn contents(&self, ino: Ino) -> Vec<u8> {
        let handle = self.open(ino, READ);
        let contents = handle.contents();
        handle.close();
        contents
    }
}

impl Handle {
    /// Whether the object is on a disk of the node that opened it, which does not own the fileset.
    pub fn is_at_home(&self) -> bool {
        self.home == Some(Home::Here)
    }

    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    pub fn write(&self, offset: u64, data: &[u8]) {
        self.try_write(offset, data).unwrap();
    }

    pub fn try_write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let Some(file) = &self.direct else {
            let mut written = 0;
            while written < data.len() {
                written += self.fs.write(self.ino, offset + written as u64, &data[written..])?;
            }
            return Ok(());
        };
        let mut done = 0;
        while done < data.len() {
            done += rustix::io::pwrite(file, &data[done..], offset + done as u64).unwrap();
        }
        Ok(())
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        let read = match &self.direct {
            Some(file) => rustix::io::pread(file, &mut buffer, offset).unwrap(),
            None => self.fs.read(self.ino, offset, &mut buffer).unwrap(),
        };
        buffer.truncate(read);
        buffer
    }

    pub fn contents(&self) -> Vec<u8> {
        let size = self.fs.attributes(self.ino).unwrap().size;
        let contents = self.read(0, usize::try_from(size).unwrap() + 1);
        assert_eq!(contents.len() as u64, size, "the size agrees with the bytes");
        contents
    }

    /// The object as the kernel holds it open for this handle.
    pub fn kept_by_the_kernel(&self) -> std::fs::File {
        use std::os::fd::AsRawFd as _;
        let file = self.direct.as_ref().expect("the handle is direct");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::OpenOptions::new().append(true).open(path).unwrap()
    }

    /// The kernel closes a handle that is stale.
    pub fn let_go(mut self) {
        self.let_go_of_object();
    }

    fn let_go_of_object(&mut self) -> Option<SeenObject> {
        // The kernel has closed its own file before it says so.
        drop(self.direct.take());
        self.home.and_then(|_| self.fs.let_go_of(self.ino))
    }

    pub fn close(self) {
        self.try_close().unwrap();
    }

    pub fn try_close(mut self) -> Result<()> {
        let left = self.let_go_of_object();
        self.fs.close_left(self.ino, self.access, left)
    }
}
