//! Making, changing and removing filesets, and what status shows of them and of the disks.

use std::sync::atomic::Ordering;

use forebay_base::{DiskId, FilesetId, Ino, Timestamp};
use forebay_disk::Disk;
use serde::{Deserialize, Serialize};

use crate::directory::{Child, Directory, NAME_MAX};
use crate::error::{FsError, Result};
use crate::inode::{Body, Inode, Locked, State};
use crate::key;
use crate::partition::Partition;
use crate::record::{Durability, FilesetRecord, Kind, Placement, Usage, encode};
use crate::stale::Stale;
use crate::writeset::Known;

/// A fileset with what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesetStatus {
    /// Name; `/` for the root fileset.
    pub name: String,
    /// Durability class.
    pub durability: Durability,
    /// Data path of new opens.
    pub placement: Placement,
    /// Inodes of any kind; `None` for a native fileset, where only its disk's file system knows.
    pub files: Option<u64>,
    /// Sum of the sizes of its files; as above.
    pub bytes: Option<u64>,
}

/// A disk with what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Identity.
    pub uuid: String,
    /// Where it is.
    pub location: String,
    /// What it is made of.
    pub kind: String,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes left for ordinary users.
    pub available_bytes: u64,
    /// Objects that files refer to.
    pub objects_in_use: u64,
    /// Fresh objects in stock.
    pub spare_objects: u64,
    /// Bytes that are to be kept aside for commits on a full disk, while mounted.
    #[serde(default)]
    pub reserve_bytes: u64,
    /// Bytes among them that are kept aside now.
    #[serde(default)]
    pub reserve_held_bytes: u64,
    /// Errors since the mount.
    pub errors: u64,
    /// The latest error.
    pub last_error: Option<String>,
    /// What would make it better.
    pub advice: Vec<String>,
}

fn check_fileset_name(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with('.') || !name.chars().all(fine)
    {
        return Err(FsError::Refused(format!(
            "\"{name}\" is not a valid name for a fileset: use letters, digits, '-', '_' and '.', not beginning with '.'"
        )));
    }
    Ok(())
}

impl Partition {
    fn fileset_named(&self, name: &str) -> Result<std::sync::Arc<crate::fileset::Fileset>> {
        let wanted = if name == "/" { "" } else { name };
        self.filesets.by_name(wanted).ok_or_else(|| {
            let names: Vec<String> =
                self.fileset_status().into_iter().map(|status| status.name).collect();
            FsError::Refused(format!(
                "there is no fileset \"{name}\"; choose from {}",
                names.join(", ")
            ))
        })
    }

    /// All filesets with what they hold.
    #[must_use]
    pub fn fileset_status(&self) -> Vec<FilesetStatus> {
        let writes = self.writes.lock();
        self.filesets
            .list()
            .iter()
            .map(|fileset| FilesetStatus::of(&fileset.record, writes.usage(fileset.id)))
            .collect()
    }

    /// Counters of each fileset since the mount, in the order of
    /// [`OPERATIONS`](crate::stats::OPERATIONS); the last row, without a name, is the system's own.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, Vec<u64>)> {
        let mut all: Vec<_> = self
            .filesets
            .list()
            .iter()
            .map(|fileset| (shown_name(&fileset.record.name), fileset.counters.read()))
            .collect();
        all.push((String::new(), self.system_counters.read()));
        all
    }

    /// Makes a fileset with a top-level directory of the same name.
    ///
    /// # Errors
    /// [`FsError::Refused`] for a bad name or one that is taken.
    pub fn create_fileset(
        &self,
        name: &str,
        durability: Durability,
        placement: Placement,
        mode: u16,
    ) -> Result<()> {
        self.create_fileset_on(name, durability, placement, mode, None)
    }

    /// Whether a fileset of this name can be made.
    pub(crate) fn check_new_fileset(&self, name: &str) -> Result<()> {
        check_fileset_name(name)?;
        let root = self.inode(Ino::ROOT)?;
        let mut above = root.lock();
        self.check_untaken(&mut above, name)
    }

    fn check_untaken(&self, above: &mut State, name: &str) -> Result<()> {
        let taken = self.find_entry(Ino::ROOT, above, name.as_bytes())?.is_some();
        if taken || self.filesets.by_name(name).is_some() {
            return Err(FsError::Refused(format!("\"{name}\" already exists at the top level")));
        }
        Ok(())
    }

    /// As [`FileSystem::create_fileset`]; a native one lies on `disk`.
    pub(crate) fn create_fileset_on(
        &self,
        name: &str,
        durability: Durability,
        placement: Placement,
        mode: u16,
        disk: Option<String>,
    ) -> Result<()> {
        check_fileset_name(name)?;
        let root = self.inode(Ino::ROOT)?;
        let mut above = root.lock();
        self.check_untaken(&mut above, name)?;
        let id = self.filesets.free_id();
        let ino = Ino(self.ino_numbers.take()?);
        let record =
            FilesetRecord { name: name.to_owned(), root: ino, durability, placement, disk };
        let mut state = fileset_root(id, mode, self.now());
        {
            let mut writes = self.writes.lock();
            let child = Child { ino, kind: Kind::Directory, name: name.as_bytes().into() };
            self.add_entry(&mut writes, Ino::ROOT, &mut above, child)?;
            above.nlink += 1;
            above.touch(state.created);
            self.put_inode(&mut writes, Ino::ROOT, &mut above);
            writes.put(key::fileset(id), encode(&record), Known::MayExist);
            self.put_inode(&mut writes, ino, &mut state);
        }
        self.filesets.set(id, record);
        self.inodes.insert(&std::sync::Arc::new(Inode::new(ino, state)));
        self.tell_of_top_level_change(name);
        drop(above);
        self.commit_change()
    }

    /// Makes a change of filesets durable. It is made already: a refusal must not sound as if it were not.
    fn commit_change(&self) -> Result<()> {
        self.commit().map_err(|error| {
            FsError::Refused(format!(
                "the change was made but is not durable yet, because commits fail: {error}"
            ))
        })
    }

    fn tell_of_top_level_change(&self, name: &str) {
        let entry = Stale::Entry(Ino::ROOT, name.as_bytes().to_vec());
        self.stale.add([Stale::Attributes(Ino::ROOT), entry]);
    }

    /// Changes a fileset's settings; they count for files opened from now on.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is no such fileset.
    pub fn set_fileset(
        &self,
        name: &str,
        durability: Option<Durability>,
        placement: Option<Placement>,
    ) -> Result<()> {
        let fileset = self.fileset_named(name)?;
        let changes_way = placement.is_some_and(|placement| placement != fileset.record.placement);
        let is_native = |placement| placement == Some(Placement::Native);
        if changes_way && (is_native(placement) || is_native(Some(fileset.record.placement))) {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" cannot become native or cease to be: create another fileset, and move the files"
            )));
        }
        if durability.is_some() && is_native(Some(fileset.record.placement)) {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is native: what fsync promises there is what its disk's file system does"
            )));
        }
        let mut record = fileset.record.clone();
        record.durability = durability.unwrap_or(record.durability);
        record.placement = placement.unwrap_or(record.placement);
        self.writes.lock().put(key::fileset(fileset.id), encode(&record), Known::MayExist);
        self.filesets.set(fileset.id, record);
        self.commit_change()
    }

    /// Removes an empty fileset and its directory.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is none, it is the root fileset, or not empty.
    pub fn remove_fileset(&self, name: &str) -> Result<()> {
        let fileset = self.fileset_named(name)?;
        if fileset.id == FilesetId::ROOT {
            return Err(FsError::Refused("the root fileset cannot be removed".to_owned()));
        }
        let top = self.inode(Ino::ROOT)?;
        let root = self.inode(fileset.record.root)?;
        let mut locked = Locked::all(&[&top, &root]);
        let usage = self.writes.lock().usage(fileset.id);
        if locked.state(root.ino).size > 0 || usage.inodes > 1 {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" holds {} files: remove them first",
                usage.inodes.saturating_sub(1)
            )));
        }
        let place = match fileset.record.placement {
            Placement::Native => Some(self.native_place(&fileset.record)?),
            Placement::Direct | Placement::Served => None,
        };
        if let Some(place) = &place {
            place.remove_tree()?;
        }
        let found = self.find_entry(Ino::ROOT, locked.state(Ino::ROOT), name.as_bytes())?;
        let (cookie, _) = found.ok_or(FsError::NotFound)?;
        let xattrs = self.last_xattrs(root.ino, locked.state(root.ino))?;
        let now = self.now();
        {
            let mut writes = self.writes.lock();
            self.remove_entry(&mut writes, Ino::ROOT, locked.state(Ino::ROOT), cookie)?;
            locked.state(Ino::ROOT).lose_subdirectory();
            locked.state(Ino::ROOT).touch(now);
            self.put_inode(&mut writes, Ino::ROOT, locked.state(Ino::ROOT));
            self.drop_link(&mut writes, root.ino, locked.state(root.ino), xattrs);
            writes.delete(key::fileset(fileset.id));
            writes.forget_usage(fileset.id);
        }
        self.filesets.remove(fileset.id);
        self.dispose_if_dead(root.ino, locked.state(root.ino));
        self.tell_of_top_level_change(name);
        drop(locked);
        self.commit_change()?;
        place.map_or(Ok(()), |place| place.forget())
    }

    /// The disks with what they hold.
    #[must_use]
    pub fn disk_status(&self) -> Vec<DiskStatus> {
        let status = |(id, disk): (DiskId, &crate::object::FsDisk)| {
            let objects = self.writes.lock().objects(id);
            let mut found = DiskStatus::of(&disk.uuid, &*disk.disk, objects);
            found.spare_objects = self.objects.spares_on(id) as u64;
            let (reserve, held, refusal) = disk.space.reserve_state();
            (found.reserve_bytes, found.reserve_held_bytes) = (reserve, held);
            found.advice.extend(refusal.map(|why| {
                format!(
                    "no space can be kept aside on it ({why}): once it is full, commits may fail"
                )
            }));
            found.errors = disk.health.errors.load(Ordering::Relaxed);
            found.last_error = disk.health.last_error.lock().clone().map(|(_, text)| text);
            if let Some(why) = disk.health.direct_refusal.lock().as_ref() {
                found.advice.push(format!(
                    "the kernel refuses the direct path to it ({why}): its files are served; a disk must \
                     not lie on a stacked file system such as overlayfs"
                ));
            }
            found
        };
        self.objects.numbered_disks().map(status).collect()
    }
}

impl FilesetStatus {
    pub(crate) fn of(record: &FilesetRecord, usage: Usage) -> FilesetStatus {
        let is_counted = record.placement != Placement::Native;
        FilesetStatus {
            name: shown_name(&record.name),
            durability: record.durability,
            placement: record.placement,
            files: is_counted.then_some(usage.inodes),
            bytes: is_counted.then_some(usage.bytes),
        }
    }
}

impl DiskStatus {
    pub(crate) fn of(uuid: &str, disk: &dyn Disk, objects_in_use: u64) -> DiskStatus {
        let description = disk.describe();
        let capacity = disk.capacity().unwrap_or_default();
        DiskStatus {
            uuid: uuid.to_owned(),
            location: description.location,
            kind: description.kind,
            total_bytes: capacity.total_bytes,
            available_bytes: capacity.available_bytes,
            objects_in_use,
            spare_objects: 0,
            reserve_bytes: 0,
            reserve_held_bytes: 0,
            errors: 0,
            last_error: None,
            advice: description.advice,
        }
    }
}

/// A fileset's name as people see it: the root fileset is `/`.
fn shown_name(name: &str) -> String {
    if name.is_empty() { "/".to_owned() } else { name.to_owned() }
}

/// The top directory of a fileset, owned by root.
pub(crate) fn fileset_root(fileset: FilesetId, mode: u16, now: Timestamp) -> State {
    State {
        kind: Kind::Directory,
        mode,
        uid: 0,
        gid: 0,
        nlink: 2,
        size: 0,
        allocated_bytes: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        rdev: 0,
        fileset,
        xattrs: 0,
        xattr_bytes: None,
        nameless_xattrs: None,
        body: Body::Directory(Box::new(Directory::empty(Ino::ROOT))),
        counted: None,
        recorded: false,
    }
}
