//! A disk that fails on purpose, around any other disk.
//!
//! A fault that strikes changes nothing on the inner disk. Faults can be switched while objects are
//! open, and strike those too. Two things pass by them: the kernel's own reads and writes through
//! [`Object::file`], and what [`Disk::list`] and attributes tell. Without faults the disk is
//! transparent; what survives a crash is what the inner disk keeps.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_base::{FilesetId, ObjectId};
use parking_lot::Mutex;

use crate::remote::RemoteObject;
use crate::striped::StripedObject;
use crate::{
    Allocate, Capacity, Description, Disk, DiskError, Object, ObjectAttributes, Result, Seek, Sync,
};

/// What a disk may be told to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads (and the reading side of copies) fail with [`DiskError::Io`].
    ReadIo,
    /// Writes, copies, size changes and allocations fail with [`DiskError::Io`].
    WriteIo,
    /// Writes, copies, size changes and allocations fail with [`DiskError::Full`].
    WriteFull,
    /// Writes of more than a byte write half of it.
    WriteHalf,
    /// Creating fails with [`DiskError::Full`].
    CreateFull,
    /// Creating fails with [`DiskError::Io`].
    CreateIo,
    /// Creating and opening fail with [`DiskError::TooManyFiles`].
    TooManyFiles,
    /// Publishing fails with [`DiskError::Io`].
    PublishIo,
    /// Publishing fails with [`DiskError::Full`].
    PublishFull,
    /// Opening fails with [`DiskError::Io`].
    OpenIo,
    /// Removing fails with [`DiskError::Io`].
    RemoveIo,
    /// Syncs of objects and of the disk fail with [`DiskError::Io`].
    SyncIo,
}

impl Fault {
    fn error(self) -> DiskError {
        match self {
            Fault::WriteFull | Fault::WriteHalf | Fault::CreateFull | Fault::PublishFull => {
                DiskError::Full
            }
            Fault::TooManyFiles => DiskError::TooManyFiles(format!("injected fault {self:?}")),
            Fault::ReadIo
            | Fault::WriteIo
            | Fault::CreateIo
            | Fault::PublishIo
            | Fault::OpenIo
            | Fault::RemoveIo
            | Fault::SyncIo => DiskError::Io(format!("injected fault {self:?}")),
        }
    }
}

/// Each fault that is switched on, with the operations that still go well before it strikes.
#[derive(Default)]
struct Switches {
    on: Vec<(Fault, u64)>,
    struck: u64,
}

type Faults = Arc<Mutex<Switches>>;

/// Strikes with the first of `faults` that is switched on and due.
fn strike(switched: &Faults, faults: &[Fault]) -> Result<()> {
    let mut switched = switched.lock();
    let Switches { on, struck } = &mut *switched;
    for (fault, passes) in on {
        if faults.contains(fault) {
            if *passes == 0 {
                *struck += 1;
                return Err(fault.error());
            }
            *passes -= 1;
        }
    }
    Ok(())
}

/// Wraps a disk and fails as told. Clones share the disk and the faults.
#[derive(Clone)]
pub struct FaultyDisk {
    inner: Arc<dyn Disk>,
    faults: Faults,
}

impl FaultyDisk {
    /// Wraps `inner`, with no fault switched on.
    #[must_use]
    pub fn new(inner: Arc<dyn Disk>) -> FaultyDisk {
        FaultyDisk { inner, faults: Faults::default() }
    }

    /// Strikes with `fault` from now on, until [`FaultyDisk::heal`].
    pub fn fail(&self, fault: Fault) {
        self.fail_after(fault, 0);
    }

    /// Strikes with `fault` once `operations` more of its kind went well, until [`FaultyDisk::heal`].
    pub fn fail_after(&self, fault: Fault, operations: u64) {
        let on = &mut self.faults.lock().on;
        on.retain(|(switched, _)| *switched != fault);
        on.push((fault, operations));
    }

    /// Switches all faults off.
    pub fn heal(&self) {
        self.faults.lock().on.clear();
    }

    /// How often a fault struck.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.faults.lock().struck
    }

    fn wrap(&self, inner: Arc<dyn Object>) -> Arc<dyn Object> {
        Arc::new(FaultyObject { inner, faults: Arc::clone(&self.faults) })
    }
}

struct FaultyObject {
    inner: Arc<dyn Object>,
    faults: Faults,
}

impl FaultyObject {
    fn strike_write(&self) -> Result<()> {
        strike(&self.faults, &[Fault::WriteIo, Fault::WriteFull])
    }
}

impl Object for FaultyObject {
    fn number(&self, id: ObjectId) {
        self.inner.number(id);
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        strike(&self.faults, &[Fault::ReadIo])?;
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.strike_write()?;
        let half = strike(&self.faults, &[Fault::WriteHalf]).is_err() && data.len() > 1;
        self.inner.write_at(offset, if half { &data[..data.len() / 2] } else { data })
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        self.strike_write()?;
        let half = strike(&self.faults, &[Fault::WriteHalf]).is_err() && data.len() > 1;
        self.inner.append(if half { &data[..data.len() / 2] } else { data })
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.strike_write()?;
        self.inner.set_size(size)
    }

    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> Result<()> {
        self.strike_write()?;
        self.inner.allocate(what, offset, length)
    }

    fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        self.inner.seek(target, offset)
    }

    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        strike(&self.faults, &[Fault::ReadIo])?;
        self.strike_write()?;
        self.inner.copy_from(source, source_offset, offset, length)
    }

    fn sync(&self, what: Sync) -> Result<()> {
        strike(&self.faults, &[Fault::SyncIo])?;
        self.inner.sync(what)
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        self.inner.attributes()
    }

    fn set_modified(&self, modified: forebay_base::Timestamp) -> Result<()> {
        self.strike_write()?;
        self.inner.set_modified(modified)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.inner.file()
    }

    fn has_other_writers(&self) -> bool {
        self.inner.has_other_writers()
    }

    fn remote(&self) -> Option<&RemoteObject> {
        self.inner.remote()
    }

    fn striped(&self) -> Option<&StripedObject> {
        self.inner.striped()
    }
}

impl Disk for FaultyDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        strike(&self.faults, &[Fault::CreateFull, Fault::CreateIo, Fault::TooManyFiles])?;
        Ok(self.wrap(self.inner.create_fresh()?))
    }

    fn publish(&self, id: ObjectId, object: &dyn Object) -> Result<()> {
        strike(&self.faults, &[Fault::PublishIo, Fault::PublishFull])?;
        self.inner.publish(id, object)
    }

    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        strike(&self.faults, &[Fault::OpenIo, Fault::TooManyFiles])?;
        Ok(self.wrap(self.inner.open(id)?))
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        strike(&self.faults, &[Fault::RemoveIo])?;
        self.inner.remove(id)
    }

    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>> {
        self.inner.attributes(id)
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.inner.list(visit)
    }

    fn list_of(&self, fileset: FilesetId, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.inner.list_of(fileset, visit)
    }

    fn sync(&self) -> Result<()> {
        strike(&self.faults, &[Fault::SyncIo])?;
        self.inner.sync()
    }

    fn capacity(&self) -> Result<Capacity> {
        self.inner.capacity()
    }

    fn keep_reserve(&self, bytes: u64) -> Result<u64> {
        self.inner.keep_reserve(bytes)
    }

    fn give_reserve(&self, bytes: u64) -> u64 {
        self.inner.give_reserve(bytes)
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn life(&self) -> u64 {
        self.inner.life()
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::time::StepClock;

    use super::*;
    use crate::memory::MemoryDisk;

    fn disk() -> FaultyDisk {
        FaultyDisk::new(Arc::new(MemoryDisk::new(1 << 20, Arc::new(StepClock::new(1)))))
    }

    #[test]
    fn faults_strike_open_objects_until_healed() {
        let disk = disk();
        let object = disk.create(ObjectId(1)).unwrap();
        object.write_at(0, b"kept").unwrap();
        disk.fail(Fault::ReadIo);
        disk.fail(Fault::WriteFull);
        disk.fail(Fault::SyncIo);
        let mut buffer = [0; 4];
        assert!(matches!(object.read_at(0, &mut buffer), Err(DiskError::Io(_))));
        assert_eq!(object.write_at(0, b"lost"), Err(DiskError::Full));
        assert_eq!(object.set_size(1), Err(DiskError::Full));
        assert!(matches!(object.sync(Sync::Data), Err(DiskError::Io(_))));
        assert!(matches!(disk.sync(), Err(DiskError::Io(_))));
        disk.heal();
        assert_eq!(object.read_at(0, &mut buffer), Ok(4));
        assert_eq!(&buffer, b"kept");
        disk.fail(Fault::WriteHalf);
        assert_eq!(object.write_at(0, b"half"), Ok(2));
        assert_eq!(object.write_at(2, b"x"), Ok(1));
    }

    #[test]
    fn a_fault_strikes_after_as_many_operations_as_told() {
        let disk = disk();
        disk.fail_after(Fault::CreateFull, 2);
        disk.fail_after(Fault::PublishIo, 1);
        let (one, two) = (disk.create(ObjectId(1)).unwrap(), disk.create(ObjectId(2)).unwrap());
        assert_eq!(disk.create(ObjectId(3)).err(), Some(DiskError::Full));
        disk.publish(ObjectId(1), &*one).unwrap();
        assert!(matches!(disk.publish(ObjectId(2), &*two), Err(DiskError::Io(_))));
        disk.fail(Fault::OpenIo);
        disk.fail(Fault::RemoveIo);
        assert!(matches!(disk.open(ObjectId(1)), Err(DiskError::Io(_))));
        assert!(matches!(disk.remove(ObjectId(1)), Err(DiskError::Io(_))));
        disk.heal();
        disk.publish(ObjectId(2), &*two).unwrap();
        disk.open(ObjectId(1)).unwrap();
    }
}
