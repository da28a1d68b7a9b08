//! What the root fileset knows of the others: their names and records; and what status shows of filesets and disks.

use forebay_base::{FilesetId, Ino, Timestamp};
use forebay_disk::{Disk, Requests};
use serde::{Deserialize, Serialize};

use crate::caching::CacheStatus;
use crate::directory::{Child, Directory, NAME_MAX};
use crate::error::{FsError, Result};
use crate::grants::Item;
use crate::inode::{Body, State};
use crate::key;
use crate::object::{Moves, PartialReads};
use crate::partition::Partition;
use crate::partition::damage::DamagedFile;
use crate::record::{
    DiskRecord, DiskUsage, DiskUse, Durability, FilesetRecord, FilesetSettings, Kind, Occupancy,
    Placement, Premigrated, Usage, decode, encode,
};
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
    /// Pool of disks for its new files; none for a native fileset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// In how many failure groups each file is to lie; none for a native fileset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u8>,
    /// Files that wait for copies, as far as is known.
    #[serde(default)]
    pub waiting_for_copies: u64,
    /// Why some of them have fewer copies than they are to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_problem: Option<String>,
    /// What it is a cache of, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStatus>,
    /// Inodes of any kind; `None` for a native fileset, where only its disk's file system knows.
    pub files: Option<u64>,
    /// Sum of the sizes of its files; as above.
    pub bytes: Option<u64>,
    /// Why it cannot be used, if it cannot: what it holds is not known then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Files in it that were found to have lost something since the mount; of many some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedFile>,
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
    /// Name of its pool.
    #[serde(default)]
    pub pool: String,
    /// Name of its failure group; empty if it fails alone.
    #[serde(default)]
    pub group: String,
    /// What it is used for.
    #[serde(default)]
    pub used: DiskUse,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes left for ordinary users.
    pub available_bytes: u64,
    /// Files that its file system can hold; 0 if it makes room for them as needed, or does not answer.
    #[serde(default)]
    pub total_inodes: u64,
    /// How many more of them ordinary users can create.
    #[serde(default)]
    pub free_inodes: u64,
    /// Objects that files refer to.
    pub objects_in_use: u64,
    /// What the files take that lie there; unknown in a cluster, and where an earlier version has counted objects alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Occupancy>,
    /// What happened to an archive since the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveStatus>,
    /// What lies in an archive and on another disk too; `None` of other disks. Those files are not among the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub premigrated: Option<Premigrated>,
    /// Fresh objects in stock.
    pub spare_objects: u64,
    /// Bytes that are to be kept aside for commits on a full disk, while mounted.
    #[serde(default)]
    pub reserve_bytes: u64,
    /// Bytes among them that are kept aside now.
    #[serde(default)]
    pub reserve_held_bytes: u64,
    /// It was found not to accept writes, since the mount.
    #[serde(default)]
    pub is_failing: bool,
    /// Errors since the mount.
    pub errors: u64,
    /// The latest error.
    pub last_error: Option<String>,
    /// What would make it better.
    pub advice: Vec<String>,
    /// The node that has it, in a cluster; none if no node has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// All nodes reach it themselves.
    #[serde(default)]
    pub is_shared: bool,
    /// Why it cannot be reached now, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What happened to an archive since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveStatus {
    /// Files that were moved there.
    pub archived: Moves,
    /// Files that were brought back.
    pub recalled: Moves,
    /// What was read of files where they lie.
    #[serde(default)]
    pub partial: PartialReads,
    /// Requests to its store.
    pub requests: Requests,
}

pub(crate) fn check_fileset_name(name: &str) -> Result<()> {
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
    /// Whether something in the top directory is called `name`.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn has_at_top(&self, name: &str) -> Result<bool> {
        let top = self.inode(self.top())?;
        let (_top, found) = self.lock_and_find(&top, name.as_bytes())?;
        Ok(found.is_some())
    }

    /// The record of another fileset, in the root fileset.
    ///
    /// # Errors
    /// [`FsError::Stale`] if there is none; what the store says.
    pub(crate) fn fileset_record(&self, id: FilesetId) -> Result<FilesetRecord> {
        let bytes = self.read_key(&key::fileset(id))?.ok_or(FsError::Stale)?;
        decode("fileset", &bytes)
    }

    /// Notes the record of a fileset, in the root fileset.
    pub(crate) fn put_fileset(&self, id: FilesetId, record: &FilesetRecord) {
        self.writes.lock().put(key::fileset(id), encode(record), Known::MayExist);
    }

    /// Gives another fileset its name in the top directory, together with its record.
    ///
    /// # Errors
    /// [`FsError::Exists`]; what the store says.
    pub(crate) fn name_fileset(&self, id: FilesetId, record: &FilesetRecord) -> Result<()> {
        let (top, name) = (self.top(), record.settings.name.as_bytes());
        let root = self.inode(top)?;
        let (mut above, found) = self.lock_and_find(&root, name)?;
        if found.is_some() {
            return Err(FsError::Exists);
        }
        let child = Child { ino: Ino::top_of(id), kind: Kind::Directory, name: name.into() };
        let mut writes = self.writes.lock();
        self.add_entry(&mut writes, top, &mut above, child)?;
        above.nlink += 1;
        above.touch(self.now());
        self.put_inode(&mut writes, top, &mut above);
        writes.put(key::fileset(id), encode(record), Known::MayExist);
        drop(writes);
        self.tell_of_top_level_change(name);
        Ok(())
    }

    /// Takes the name of another fileset out of the top directory, together with a change of its record.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn unname_fileset(&self, id: FilesetId, record: &FilesetRecord) -> Result<()> {
        let (top, name) = (self.top(), record.settings.name.as_bytes());
        let root = self.inode(top)?;
        let (mut above, found) = self.lock_and_find(&root, name)?;
        let found = found.filter(|(_, child)| child.ino == Ino::top_of(id));
        let mut writes = self.writes.lock();
        if let Some((cookie, _)) = found {
            self.remove_entry(&mut writes, top, &mut above, cookie)?;
            above.lose_subdirectory();
            above.touch(self.now());
            self.put_inode(&mut writes, top, &mut above);
        }
        writes.put(key::fileset(id), encode(record), Known::MayExist);
        drop(writes);
        self.tell_of_top_level_change(name);
        Ok(())
    }

    /// Has two other filesets exchange their names in the top directory, together with their records, which have the new names
    /// already.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if one of them has another name; what the store says.
    pub(crate) fn exchange_filesets(
        &self,
        first: (FilesetId, &FilesetRecord),
        second: (FilesetId, &FilesetRecord),
    ) -> Result<()> {
        let top = self.top();
        let root = self.inode(top)?;
        let names = [second, first].map(|(_, record)| record.settings.name.as_bytes());
        loop {
            let (look, _) = self.look_for(&root, names[0])?;
            let (other_look, _) = self.look_for(&root, names[1])?;
            let mut above = root.lock();
            let found = look.again(self, &mut above)?;
            let other = other_look.again(self, &mut above)?;
            let (Some(found), Some(other)) = (found, other) else { continue };
            let (Some((cookie, child)), Some((other_cookie, other_child))) = (found, other) else {
                return Err(FsError::NotFound);
            };
            if [child.ino, other_child.ino] != [first.0, second.0].map(Ino::top_of) {
                return Err(FsError::NotFound);
            }
            let mut writes = self.writes.lock();
            let swapped = Child { ino: other_child.ino, ..child.clone() };
            let other_swapped = Child { ino: child.ino, ..other_child };
            self.replace_entry(&mut writes, top, &mut above, cookie, swapped)?;
            self.replace_entry(&mut writes, top, &mut above, other_cookie, other_swapped)?;
            above.touch(self.now());
            self.put_inode(&mut writes, top, &mut above);
            for (id, record) in [first, second] {
                writes.put(key::fileset(id), encode(record), Known::MayExist);
            }
            break;
        }
        names.iter().for_each(|name| self.tell_of_top_level_change(name));
        Ok(())
    }

    fn tell_of_top_level_change(&self, name: &[u8]) {
        let entry = Stale::Entry(Ino::ROOT, name.to_vec());
        self.shared.stale.add([Stale::Attributes(Ino::ROOT), entry]);
        self.take_back(vec![Item::Attributes(Ino::ROOT), Item::Entry(Ino::ROOT, name.into())]);
    }
}

impl FilesetStatus {
    /// A fileset that holds `usage`, as far as that can be known.
    pub(crate) fn of(settings: &FilesetSettings, usage: Result<Usage>) -> FilesetStatus {
        let problem = usage.as_ref().err().map(ToString::to_string);
        let usage = usage.unwrap_or_default();
        let is_counted = settings.placement != Placement::Native;
        FilesetStatus {
            name: shown_name(&settings.name).to_owned(),
            durability: settings.durability,
            placement: settings.placement,
            pool: is_counted.then(|| settings.pool.clone()),
            copies: is_counted.then_some(settings.copies),
            waiting_for_copies: 0,
            copies_problem: None,
            cache: None,
            files: is_counted.then_some(usage.inodes),
            bytes: is_counted.then_some(usage.bytes),
            problem,
            damaged: Vec::new(),
        }
    }
}

impl DiskStatus {
    /// Notes what its record says.
    pub(crate) fn note_record(&mut self, record: &DiskRecord) {
        (self.pool, self.group) = (record.pool.clone(), record.group.clone());
        self.used = record.used;
        match record.used {
            DiskUse::Lost => {
                self.location.clone_from(&record.location);
                self.advice = vec![format!(
                    "it was given up as lost: {} files on it cannot be opened; remove or replace them, then `forebay \
                     disk remove` takes it off the list",
                    self.objects_in_use
                )];
            }
            DiskUse::Draining => {
                let next = if self.objects_in_use == 0 {
                    "it is empty, or nearly: `forebay disk remove` takes it away once the task is done"
                } else {
                    "it is being emptied; `forebay tasks` shows how far that is"
                };
                self.advice.push(next.to_owned());
            }
            DiskUse::Normal | DiskUse::Removed => {}
        }
    }

    /// A disk that is used so.
    pub(crate) fn of(uuid: &str, disk: &dyn Disk, usage: DiskUsage) -> DiskStatus {
        let description = disk.describe();
        let capacity = disk.capacity().unwrap_or_default();
        // A disk without a bound says so by the largest number.
        let has_bound = capacity.total_objects < u64::MAX;
        let inodes = |number: u64| if has_bound { number } else { 0 };
        DiskStatus {
            uuid: uuid.to_owned(),
            location: description.location,
            kind: description.kind,
            pool: String::new(),
            group: String::new(),
            used: DiskUse::default(),
            total_bytes: capacity.total_bytes,
            available_bytes: capacity.available_bytes,
            total_inodes: inodes(capacity.total_objects),
            free_inodes: inodes(capacity.free_objects),
            objects_in_use: usage.objects,
            files: usage.files,
            archive: None,
            premigrated: None,
            spare_objects: 0,
            reserve_bytes: 0,
            reserve_held_bytes: 0,
            is_failing: false,
            errors: 0,
            last_error: None,
            advice: description.advice,
            node: None,
            is_shared: false,
            problem: None,
        }
    }
}

/// A fileset's name as people see it: the root fileset is `/`.
pub(crate) fn shown_name(name: &str) -> &str {
    if name.is_empty() { "/" } else { name }
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
        xattrs: 0,
        xattr_bytes: None,
        xattr_changes: 0,
        nameless_xattrs: None,
        body: Body::Directory(Box::new(Directory::empty(Ino::top_of(fileset)))),
        counted: None,
        recorded: false,
    }
}
