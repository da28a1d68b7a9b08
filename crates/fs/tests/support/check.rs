//! A check of the store and the disk that shares no code with the file system but the records.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use forebay_base::hash::HashKey;
use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId};
use forebay_disk::Disk;
use forebay_fs::key::{self, Key};
use forebay_fs::record::{
    CopiesRecord, DiskUsage, EntryRecord, FilesetRecord, InodeRecord, Kind, MountState, ObjectRef,
    Placement, Stage, Superblock, Usage, decode,
};
use forebay_store::{Store, Stores as _};

use forebay_fs::snapshot::{KeptCopy, LateObject, SnapshotRecord};

use super::WholeStores;

/// Everything in a store.
#[derive(Default)]
struct Image {
    superblock: Option<Superblock>,
    filesets: BTreeMap<FilesetId, FilesetRecord>,
    usage: Option<Usage>,
    inodes: BTreeMap<Ino, InodeRecord>,
    entries: BTreeMap<(Ino, u64), EntryRecord>,
    xattrs: HashMap<Ino, u32>,
    /// Inodes of caches: their bytes may not have been fetched.
    at_home: HashSet<Ino>,
    disk_usage: BTreeMap<DiskId, DiskUsage>,
    /// Snapshots with the bound of their objects.
    snapshots: BTreeMap<u64, u64>,
    /// Copies that snapshots have instead of objects.
    kept: BTreeMap<(ObjectId, u64), ObjectId>,
    /// Copies of objects in other failure groups.
    copies: BTreeMap<ObjectId, Vec<ObjectRef>>,
    /// Objects of snapshots.
    held: BTreeSet<ObjectId>,
}

fn read(store: &dyn Store) -> Image {
    let mut image = Image::default();
    for (bytes, value) in store.scan(b"", &[0xff; 8], usize::MAX).unwrap() {
        match key::parse(&bytes).expect("every key has a meaning") {
            Key::Term | Key::Fenced => {}
            Key::Superblock => image.superblock = Some(decode("superblock", &value).unwrap()),
            Key::Fileset(id) => {
                image.filesets.insert(id, decode("fileset", &value).unwrap());
            }
            Key::Usage => image.usage = Some(decode("usage", &value).unwrap()),
            Key::Inode(ino) => {
                image.inodes.insert(ino, decode("inode", &value).unwrap());
            }
            Key::Entry(parent, cookie) => {
                image.entries.insert((parent, cookie), decode("entry", &value).unwrap());
            }
            Key::DiskUsage(disk) => {
                image.disk_usage.insert(disk, decode("disk usage", &value).unwrap());
            }
            Key::Task(_) => {
                let _: forebay_fs::tasks::TaskRecord = decode("task", &value).unwrap();
            }
            Key::Quota(_) => {
                let _: forebay_fs::quota::QuotaRecord = decode("quota", &value).unwrap();
            }
            Key::Holding(_) => {
                let _: forebay_fs::quota::Holding = decode("holding", &value).unwrap();
            }
            Key::Snapshot(number) => {
                let record: SnapshotRecord = decode("snapshot", &value).unwrap();
                image.snapshots.insert(number, record.below);
            }
            Key::Kept(object, number) => {
                let copy: KeptCopy = decode("copy", &value).unwrap();
                image.kept.insert((object, number), copy.at.id);
            }
            Key::Late(_) => {
                let _: LateObject = decode("late object", &value).unwrap();
            }
            Key::Copies(object) => {
                let record: CopiesRecord = decode("copies", &value).unwrap();
                image.copies.insert(object, record.copies);
            }
            Key::Place(ino) => drop(image.at_home.insert(ino)),
            Key::Queued(_) | Key::Round(_) | Key::Conflict(_) => {}
            Key::Xattr(ino, name) => {
                *image.xattrs.entry(ino).or_default() += 1;
                if name == b"trusted.forebay.home" {
                    image.at_home.insert(ino);
                }
            }
        }
    }
    image
}

impl Image {
    fn fileset(&self) -> FilesetId {
        self.superblock.as_ref().unwrap().fileset
    }

    fn top(&self) -> Ino {
        Ino::top_of(self.fileset())
    }
}

/// What is wrong with a file system that is closed, or was just swept and committed. Records of a
/// crashed epoch may disagree with their objects.
/// `disks` lie at their numbers.
pub fn problems(stores: &WholeStores, disks: &[&dyn Disk]) -> Vec<String> {
    let mut problems = name_problems(stores);
    for id in stores.list().unwrap() {
        let mut image = read(&stores.of(id));
        hold(&mut image, stores, disks[0], &mut problems);
        check_objects(&image, disks, &mut problems);
    }
    problems
}

/// What is wrong with names, links and counts: nothing, at any time.
pub fn name_problems(stores: &WholeStores) -> Vec<String> {
    let mut problems = Vec::new();
    let stored = stores.list().unwrap();
    for id in &stored {
        let image = read(&stores.of(*id));
        if image.fileset() != *id {
            problems.push(format!("the store of fileset {id} is that of {}", image.fileset()));
        }
        check_entries(&image, &mut problems);
        check_inodes(&image, &mut problems);
        check_usage(&image, &mut problems);
        if *id == FilesetId::ROOT {
            check_filesets(&image, &stored, &mut problems);
        }
    }
    problems
}

fn check_filesets(image: &Image, stored: &[FilesetId], problems: &mut Vec<String>) {
    let mut made = BTreeSet::from([FilesetId::ROOT]);
    for (id, record) in image.filesets.iter().filter(|(id, _)| **id != FilesetId::ROOT) {
        let mut names = image
            .entries
            .iter()
            .filter(|((parent, _), entry)| *parent == Ino::ROOT && entry.ino == Ino::top_of(*id));
        let name = names.next().map(|(_, entry)| entry.name.as_slice());
        match record.stage {
            Stage::Made if name == Some(record.settings.name.as_bytes()) => {
                // A native one has a directory of its own instead.
                let has_store = record.settings.placement != Placement::Native;
                made.extend(has_store.then_some(*id));
            }
            Stage::Removed if name.is_none() => {}
            // The next mount takes it away.
            Stage::Making | Stage::Removing if name.is_none() => {
                made.extend(stored.contains(id).then_some(*id));
            }
            _ => problems.push(format!("fileset {id} is {record:?}, its name {name:?}")),
        }
    }
    if !made.iter().eq(stored) {
        problems.push(format!("there are filesets {made:?}, and stores {stored:?}"));
    }
}

fn check_entries(image: &Image, problems: &mut Vec<String>) {
    let hash_key = HashKey(image.superblock.as_ref().unwrap().hash_key);
    let mut names = BTreeSet::new();
    for ((parent, cookie), entry) in &image.entries {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        if !names.insert((parent, &entry.name)) {
            problems.push(format!("directory {parent} holds {name} twice"));
        }
        let bucket = (hash_key.hash(&entry.name) >> 8).max(1);
        if cookie >> 7 != bucket {
            problems.push(format!("entry {name} of {parent} is at a wrong cookie"));
        }
        if *parent == Ino::ROOT && entry.ino.fileset() != image.fileset() {
            continue;
        }
        match image.inodes.get(&entry.ino) {
            None => problems.push(format!("entry {name} of {parent} names no inode")),
            Some(inode) if inode.kind != entry.kind => {
                problems.push(format!("entry {name} of {parent} is of another kind"));
            }
            Some(inode) if inode.kind == Kind::Directory && inode.parent != *parent => {
                problems.push(format!("directory {} has a wrong parent", entry.ino));
            }
            Some(_) => {}
        }
        if image.inodes.get(parent).is_none_or(|inode| inode.kind != Kind::Directory) {
            problems.push(format!("entry {name} lies in {parent}, which is no directory"));
        }
    }
}

fn check_inodes(image: &Image, problems: &mut Vec<String>) {
    let mut links: HashMap<Ino, u32> = HashMap::new();
    let mut sizes: HashMap<Ino, u64> = HashMap::new();
    for ((parent, _), entry) in &image.entries {
        *sizes.entry(*parent).or_default() += 1;
        *links.entry(entry.ino).or_default() += 1;
        if entry.kind == Kind::Directory {
            *links.entry(*parent).or_default() += 1;
            *links.entry(entry.ino).or_default() += 1;
        }
    }
    *links.entry(image.top()).or_default() += 2;
    let limit = image.superblock.as_ref().unwrap().ino_limit;
    for (ino, inode) in &image.inodes {
        // A directory: its name, its own dot, and the dot-dots of its subdirectories.
        let expected = links.get(ino).copied().unwrap_or(0);
        if inode.nlink != expected {
            problems.push(format!("inode {ino} has {} links, not {expected}", inode.nlink));
        }
        if inode.kind == Kind::Directory {
            let entries = sizes.get(ino).copied().unwrap_or(0);
            if inode.size != entries {
                problems.push(format!("directory {ino} has {entries} entries, not {}", inode.size));
            }
            if !reaches_root(image, *ino) {
                problems.push(format!("directory {ino} hangs in the air"));
            }
        }
        let xattrs = image.xattrs.get(ino).copied().unwrap_or(0);
        if inode.xattrs != xattrs {
            problems.push(format!("inode {ino} has {xattrs} attributes, not {}", inode.xattrs));
        }
        if ino.local() >= limit || ino.fileset() != image.fileset() {
            problems.push(format!("inode {ino} is beyond the limit {limit}"));
        }
    }
    for ino in image.xattrs.keys().filter(|ino| !image.inodes.contains_key(ino)) {
        problems.push(format!("attributes of inode {ino}, which does not exist"));
    }
}

fn reaches_root(image: &Image, ino: Ino) -> bool {
    let mut at = ino;
    for _ in 0..=image.inodes.len() {
        if at == image.top() {
            return true;
        }
        let Some(inode) = image.inodes.get(&at) else { return false };
        at = inode.parent;
    }
    false
}

fn check_usage(image: &Image, problems: &mut Vec<String>) {
    let mut counted = Usage::default();
    for inode in image.inodes.values() {
        counted.inodes += 1;
        if inode.kind == Kind::File {
            counted.bytes = counted.bytes.wrapping_add(inode.size);
        }
    }
    if image.usage != Some(counted) {
        let id = image.fileset();
        problems.push(format!("fileset {id} holds {counted:?}, not {:?}", image.usage));
    }
}

/// Finds the objects of snapshots, and checks that each is there.
fn hold(image: &mut Image, stores: &WholeStores, disk: &dyn Disk, problems: &mut Vec<String>) {
    let fileset = image.fileset();
    let listed = stores.list_frozen(fileset).unwrap();
    let known: Vec<u64> = image.snapshots.keys().copied().collect();
    if listed != known {
        problems.push(format!("stores of snapshots {listed:?}, but there are {known:?}"));
    }
    for (number, below) in &image.snapshots {
        let Ok(store) = stores.frozen(fileset, *number) else { continue };
        for (ino, record) in read(&*store).inodes {
            let Some(at) = record.layout.object() else { continue };
            let later = image.kept.range((at.id, *number)..=(at.id, u64::MAX)).next();
            let found = later.map_or(at.id, |(_, copy)| *copy);
            if at.id.local() >= *below || disk.attributes(found).unwrap().is_none() {
                problems.push(format!("object {found} of {ino} in snapshot {number} is missing"));
            }
            image.held.insert(found);
        }
    }
    let copies: Vec<ObjectId> = image.kept.values().copied().collect();
    image.held.extend(copies);
}

fn check_objects(image: &Image, disks: &[&dyn Disk], problems: &mut Vec<String>) {
    let superblock = image.superblock.as_ref().unwrap();
    let mut referenced: BTreeMap<ObjectId, Ino> = BTreeMap::new();
    for (ino, inode) in &image.inodes {
        let agrees = inode.epoch > superblock.crashed_epoch || superblock.crashed_epoch == Epoch(0);
        let Some(at) = inode.layout.object() else {
            let may_be_elsewhere = image.at_home.contains(ino);
            if inode.kind == Kind::File && inode.size > 0 && agrees && !may_be_elsewhere {
                problems.push(format!("file {ino} has {} bytes but no object", inode.size));
            }
            continue;
        };
        if let Some(other) = referenced.insert(at.id, *ino) {
            problems.push(format!("files {other} and {ino} share object {}", at.id));
        }
        if at.id.local() >= superblock.object_limit || at.id.fileset() != image.fileset() {
            problems.push(format!("object {} is beyond the limit", at.id));
        }
        match disks[usize::from(at.disk.0)].attributes(at.id).unwrap() {
            None if agrees => problems.push(format!("object {} of file {ino} is missing", at.id)),
            Some(found) if found.size != inode.size && agrees => {
                problems.push(format!("file {ino} has {} bytes, not {}", found.size, inode.size));
            }
            _ => {}
        }
    }
    let copies: BTreeSet<ObjectId> = image.copies.values().flatten().map(|at| at.id).collect();
    for (object, copies) in &image.copies {
        let is_needed = referenced.contains_key(object) || image.held.contains(object);
        // After a crash the next opening removes those that are not.
        if !is_needed && superblock.state == MountState::Clean {
            problems.push(format!("copies of object {object}, which belongs to no file"));
        }
        for at in copies {
            if disks[usize::from(at.disk.0)].attributes(at.id).unwrap().is_none() {
                problems.push(format!("copy {} of object {object} is missing", at.id));
            }
        }
    }
    compare_usage(image, problems);
    let mut look = |id| {
        if !referenced.contains_key(&id) && !image.held.contains(&id) && !copies.contains(&id) {
            problems.push(format!("object {id} belongs to no file"));
        }
        true
    };
    disks.iter().for_each(|disk| disk.list_of(image.fileset(), &mut look).unwrap());
}

/// Compares what each disk is said to hold with the records.
fn compare_usage(image: &Image, problems: &mut Vec<String>) {
    let mut counted: BTreeMap<DiskId, DiskUsage> = BTreeMap::new();
    for record in image.inodes.values() {
        if let Some(at) = record.layout.object() {
            let (size, stored) = (record.size as i64, record.allocated_bytes as i64);
            counted.entry(at.disk).or_default().add(1, size, stored);
        }
    }
    for copy in image.copies.values().flatten() {
        counted.entry(copy.disk).or_default().add(1, 0, 0);
    }
    let disks: BTreeSet<DiskId> = counted.keys().chain(image.disk_usage.keys()).copied().collect();
    for disk in disks {
        let [found, said] = [&counted, &image.disk_usage]
            .map(|usage| usage.get(&disk).copied().unwrap_or_default());
        if found != said {
            problems.push(format!("disk {disk} holds {found:?}, not {said:?}"));
        }
    }
}
