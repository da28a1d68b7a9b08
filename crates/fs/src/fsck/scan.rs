//! Reading the store, all of it but the entries.

use std::collections::HashSet;

use forebay_base::{FilesetId, Ino};
use forebay_store::Store;

use super::NamedDisk;
use super::copies::Copies;
use super::entries;
use super::image::{Claim, Directory, Image, LIMIT_MAX, Node, is_target, make_normal};
use super::plan::{Edit, Fix, Ledger, Tier};
use super::quotas;
use super::report::{Damage, shown};
use super::snapshots::Snapshots;
use crate::acl::{self, Acl};
use crate::caching;
use crate::caching::queue::{ConflictRecord, Place, QueueRecord, RoundRecord};
use crate::error::{FsError, Result};
use crate::key::{self, Key, Term};
use crate::number::RESERVE;
use crate::partition::fenced::Bound;
use crate::record::{
    DiskUsage, DiskUse, InodeRecord, Kind, MountState, Record, Superblock, Usage, decode,
};
use crate::recovery::scan_prefix;
use crate::tasks::TaskRecord;

/// No file system is ever mounted so often.
const EPOCH_MAX: u64 = 1 << 61;
/// Keys read at a time where none are expected.
const GAP_CHUNK: usize = 1024;

/// A record as it was read.
pub(super) enum Read<T> {
    Fine(T),
    Bad(String),
}

impl<T> Read<T> {
    /// Why it cannot be read, if it cannot.
    fn why(self) -> Option<String> {
        match self {
            Read::Fine(_) => None,
            Read::Bad(why) => Some(why),
        }
    }
}

/// Reads a record.
///
/// # Errors
/// [`FsError::UnknownVersion`]: nobody who does not know a record may judge what lies beside it.
pub(super) fn read<T: Record>(what: &str, bytes: &[u8]) -> Result<Read<T>> {
    match decode(what, bytes) {
        Ok(record) => Ok(Read::Fine(record)),
        Err(unknown @ FsError::UnknownVersion(_)) => Err(unknown),
        Err(FsError::Damaged(why)) => Ok(Read::Bad(why)),
        Err(error) => Ok(Read::Bad(error.to_string())),
    }
}

/// Reads term and superblock. `None` if there is no superblock to go by.
pub(super) fn superblock(store: &dyn Store, ledger: &mut Ledger) -> Result<Option<Superblock>> {
    let found = match store.get(key::SUPERBLOCK)? {
        None => Err("the superblock is missing".to_owned()),
        Some(bytes) => match read::<Superblock>("superblock", &bytes)? {
            Read::Fine(superblock) => Ok(superblock),
            Read::Bad(why) => Err(why),
        },
    };
    let superblock = match found {
        Ok(superblock) => superblock,
        Err(why) => {
            let remedy = "it cannot be rebuilt: restore the store from a copy";
            ledger.refuse(Damage::Superblock, format!("{why}; {remedy}"));
            return Ok(None);
        }
    };
    let epoch = superblock.epoch;
    match store.get(key::TERM)? {
        Some(term) if Term::from_bytes(&term).is_some_and(|term| term.epoch == epoch) => {}
        None => ledger.refuse(Damage::Term, "the term is missing".to_owned()),
        Some(term) => ledger.refuse(
            Damage::Term,
            format!("the term is {term:02x?}, but the superblock's epoch is {epoch}"),
        ),
    }
    if epoch.0 >= EPOCH_MAX {
        ledger.refuse(Damage::Superblock, format!("epoch {epoch} cannot be one"));
    }
    if superblock.state == MountState::Mounted {
        ledger.report.note(format!(
            "the last owner (epoch {epoch}) did not shut down cleanly: the next mount recovers"
        ));
    }
    Ok(Some(superblock))
}

/// Checks that all disks are there.
pub(super) fn check_disks(superblock: &Superblock, disks: &[NamedDisk], ledger: &mut Ledger) {
    if superblock.disks.is_empty() {
        ledger.refuse(Damage::Superblock, "the superblock has no disks".to_owned());
    }
    let (mut seen, mut numbers) = (HashSet::new(), HashSet::new());
    for record in &superblock.disks {
        if !numbers.insert(record.id) {
            ledger.refuse(Damage::Superblock, format!("two disks have the number {}", record.id));
        }
        if !seen.insert(&record.uuid) {
            ledger.refuse(Damage::Superblock, format!("disk {} is listed twice", record.uuid));
        }
        if record.used == DiskUse::Lost {
            let (uuid, location) = (&record.uuid, &record.location);
            ledger.report.note(format!(
                "disk {uuid} ({location}) was given up as lost: files that lie on it cannot be opened"
            ));
        } else if record.is_expected() && !disks.iter().any(|(uuid, _)| *uuid == record.uuid) {
            let text = format!("disk {} ({}) is missing", record.uuid, record.location);
            ledger.refuse(Damage::DiskMissing, text);
        }
    }
    for (uuid, _) in disks.iter().filter(|(uuid, _)| !seen.contains(uuid)) {
        ledger.report.note(format!("disk {uuid} does not belong to the file system"));
    }
}

/// Reads all records.
pub(super) fn records(
    store: &dyn Store,
    superblock: Superblock,
    ledger: &mut Ledger,
    progress: &mut dyn FnMut(&str),
) -> Result<Image> {
    let mut image = Image::new(superblock);
    let top = Ino::top_of(image.fileset());
    image.is_cache = store.get(&key::xattr(top, caching::SETTINGS))?.is_some();
    progress("reading filesets");
    filesets(store, &mut image, ledger)?;
    tasks(store, &image, ledger)?;
    disk_usage(store, &mut image, ledger)?;
    quotas::read_all(store, &mut image, ledger)?;
    Snapshots::read_all(store, &mut image, ledger)?;
    Copies::read_all(store, &mut image, ledger)?;
    progress("reading inodes");
    inodes(store, &mut image, ledger)?;
    progress("reading directories");
    entries::read_all(store, &mut image, ledger)?;
    progress("reading attributes");
    xattrs(store, &mut image, ledger)?;
    write_back(store, ledger)?;
    unknown_keys(store, ledger)?;
    check_limits(&image, ledger);
    Ok(image)
}

/// Notes a key that is of no known kind; it goes.
pub(super) fn unknown_key(key: &[u8], ledger: &mut Ledger) {
    let text = format!("the key {} is of no known kind", shown(key));
    ledger.found_with(Damage::UnknownKey, text, Tier::Records, Fix::Set(key.to_vec(), None));
}

fn filesets(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
    let is_root = image.fileset() == FilesetId::ROOT;
    scan_prefix(store, &[key::FILESET], &mut |key, value| {
        match key::parse(key) {
            Some(Key::Fileset(id)) if is_root => {
                let record = match read(&format!("the record of fileset {id}"), value)? {
                    Read::Fine(record) => Some(record),
                    Read::Bad(why) => {
                        ledger.found(Damage::Record, why);
                        None
                    }
                };
                image.filesets.insert(id, record);
            }
            _ => unknown_key(key, ledger),
        }
        Ok(())
    })?;
    if let Some(bound) = store.get(key::FENCED)?
        && Bound::from_bytes(&bound).is_none()
    {
        let text = "the record of objects that fenced nodes may write".to_owned();
        let all = Bound::all_below(image.superblock.object_limit).to_bytes();
        let fix = Fix::Set(key::FENCED.to_vec(), Some(all));
        ledger.found_with(Damage::Record, text, Tier::Records, fix);
    }
    if let Some(usage) = store.get(key::USAGE)? {
        image.usage = match read::<Usage>("the usage", &usage)? {
            Read::Fine(usage) => Some(usage),
            Read::Bad(_) => None,
        };
    }
    Ok(())
}

/// Checks the tasks of the background. One that cannot be read goes: what it was to do can be ordered again.
fn tasks(store: &dyn Store, image: &Image, ledger: &mut Ledger) -> Result<()> {
    let is_root = image.fileset() == FilesetId::ROOT;
    scan_prefix(store, &[key::TASK], &mut |key, value| {
        match key::parse(key) {
            Some(Key::Task(number)) if is_root => {
                if let Read::Bad(why) = read::<TaskRecord>(&format!("task {number}"), value)? {
                    let fix = Fix::Set(key.to_vec(), None);
                    ledger.found_with(Damage::Record, why, Tier::Records, fix);
                }
            }
            _ => unknown_key(key, ledger),
        }
        Ok(())
    })
}

fn disk_usage(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
    scan_prefix(store, &[key::DISK_USAGE], &mut |key, value| {
        let Some(Key::DiskUsage(id)) = key::parse(key) else {
            unknown_key(key, ledger);
            return Ok(());
        };
        let usage = match read::<DiskUsage>(&format!("the usage of disk {id}"), value)? {
            Read::Fine(usage) => Some(usage),
            Read::Bad(_) => None,
        };
        image.disk_usage.insert(id, usage);
        Ok(())
    })
}

fn inodes(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
    scan_prefix(store, &[key::INODE], &mut |key, value| {
        let Some(Key::Inode(ino)) = key::parse(key) else {
            unknown_key(key, ledger);
            return Ok(());
        };
        if !image.can_be(ino) {
            ledger.lossy = true;
            let text = format!("{ino} cannot be the number of an inode of this fileset");
            let fix = Fix::Set(key.to_vec(), None);
            ledger.found_with(Damage::InodeNumber, text, Tier::Records, fix);
            return Ok(());
        }
        let what = format!("inode {ino}");
        match read::<InodeRecord>(&what, value)? {
            Read::Fine(record) => inode(ino, &record, image, ledger),
            Read::Bad(why) => {
                ledger.lossy = true;
                let fix = Fix::Set(key.to_vec(), None);
                ledger.found_with(Damage::Record, why, Tier::Records, fix);
            }
        }
        Ok(())
    })
}

fn inode(ino: Ino, record: &InodeRecord, image: &mut Image, ledger: &mut Ledger) {
    ledger.report.counts.inodes += 1;
    image.nodes.insert(ino, Node::of(record));
    match (record.kind, record.layout.object()) {
        (Kind::Directory, _) => {
            ledger.report.counts.directories += 1;
            image.directories.insert(ino, Directory::default());
        }
        (Kind::File, Some(at)) => {
            image.claims.push(Claim {
                at,
                ino,
                size: record.size,
                stored_bytes: record.allocated_bytes,
                epoch: record.epoch,
            });
        }
        _ => {}
    }
    if record.kind == Kind::File {
        ledger.report.counts.bytes = ledger.report.counts.bytes.saturating_add(record.size);
    } else if let Some(at) = record.layout.object() {
        image.foreign.push((ino, at));
    }
    if record.kind == Kind::Symlink && !is_target(&record.target) {
        let text = format!("inode {ino} is a symbolic link without a target");
        let fix = Fix::Set(key::inode(ino), None);
        ledger.found_with(Damage::InodeFields, text, Tier::Contents, fix);
        return;
    }
    let epoch = image.superblock.epoch;
    let mut normal = record.clone();
    make_normal(&mut normal, epoch, image.is_cache);
    if normal != *record {
        let text = format!("inode {ino}: its fields do not fit a {:?}", record.kind);
        let fix = Fix::Inode(ino, Edit::Normal(epoch, image.is_cache));
        ledger.found_with(Damage::InodeFields, text, Tier::Contents, fix);
    }
}

fn xattrs(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
    scan_prefix(store, &[key::XATTR], &mut |key, value| {
        let Some(Key::Xattr(ino, name)) = key::parse(key) else {
            unknown_key(key, ledger);
            return Ok(());
        };
        ledger.report.counts.xattrs += 1;
        let Some(node) = image.nodes.get_mut(&ino) else {
            let text = format!("attribute {} of inode {ino}, which does not exist", shown(&name));
            let fix = Fix::Set(key.to_vec(), None);
            ledger.found_with(Damage::XattrOwner, text, Tier::Counts, fix);
            return Ok(());
        };
        node.xattrs_found = node.xattrs_found.saturating_add(1);
        let is_list = name == acl::ACCESS || name == acl::DEFAULT;
        if is_list && Acl::parse(value).is_err() {
            let text = format!("the access control list {} of inode {ino}", shown(&name));
            let fix = Fix::Set(key.to_vec(), None);
            ledger.found_with(Damage::AccessList, text, Tier::Contents, fix);
            if name == acl::ACCESS {
                // Without the list the group bits would grant what its mask only allowed.
                ledger.fix(Tier::Contents, Fix::Inode(ino, Edit::NoGroupAccess));
            }
        }
        Ok(())
    })
}

/// Checks what a single-writer cache writes to its home. What cannot be read goes: of a change the home does not learn then.
fn write_back(store: &dyn Store, ledger: &mut Ledger) -> Result<()> {
    scan_prefix(store, &[key::WRITE_BACK], &mut |key, value| {
        let read_one = |what: &str| match key::parse(key) {
            Some(Key::Queued(_)) => read::<QueueRecord>(what, value).map(|it| it.why()),
            Some(Key::Place(_)) => read::<Place>(what, value).map(|it| it.why()),
            Some(Key::Round(_)) => read::<RoundRecord>(what, value).map(|it| it.why()),
            _ => read::<ConflictRecord>(what, value).map(|it| it.why()),
        };
        if key::parse(key).is_none() {
            unknown_key(key, ledger);
        } else if let Some(why) = read_one("what is written to the home of the cache")? {
            ledger.found_with(Damage::Record, why, Tier::Records, Fix::Set(key.to_vec(), None));
        }
        Ok(())
    })
}

/// Finds keys that lie outside the ranges of all kinds.
fn unknown_keys(store: &dyn Store, ledger: &mut Ledger) -> Result<()> {
    let last = vec![u8::MAX; 64];
    let known = [
        key::FENCED.to_vec(),
        vec![key::COPIES],
        vec![key::ENTRY],
        vec![key::FILESET],
        vec![key::HOLDING],
        vec![key::INODE],
        vec![key::TASK],
        vec![key::LATE],
        vec![key::SNAPSHOT],
        vec![key::DISK_USAGE],
        vec![key::QUOTA],
        vec![key::KEPT],
        key::SUPERBLOCK.to_vec(),
        key::TERM.to_vec(),
        key::USAGE.to_vec(),
        vec![key::WRITE_BACK],
        vec![key::XATTR],
    ];
    let mut from = Vec::new();
    for prefix in known {
        gap(store, &from, &prefix, ledger)?;
        from = key::prefix_range(&prefix).1;
        if [key::FENCED, key::SUPERBLOCK, key::TERM, key::USAGE].contains(&prefix.as_slice()) {
            let mut after = prefix.clone();
            after.push(0);
            gap(store, &after, &from, ledger)?;
        }
    }
    gap(store, &from, &last, ledger)
}

fn gap(store: &dyn Store, from: &[u8], to: &[u8], ledger: &mut Ledger) -> Result<()> {
    let mut from = from.to_vec();
    loop {
        let rows = store.scan(&from, to, GAP_CHUNK)?;
        for (key, _) in &rows {
            unknown_key(key, ledger);
        }
        let Some((last, _)) = rows.last() else { return Ok(()) };
        from.clone_from(last);
        from.push(0);
    }
}

/// Checks the limits of the superblock against the highest numbers in use.
fn check_limits(image: &Image, ledger: &mut Ledger) {
    let superblock = &image.superblock;
    let inos = image.nodes.keys().chain(&image.missing).map(|ino| ino.local()).max().unwrap_or(0);
    let claimed = image.claims.iter().map(|claim| claim.at.id);
    let own = claimed
        .chain(image.snapshots.copies().map(|at| at.id))
        .chain(image.copies.all().map(|at| at.id))
        .filter(|id| image.can_be_object(*id));
    let objects = own.map(|id| id.local()).max().unwrap_or(0);
    let mut fixed = superblock.clone();
    let mut check = |what: &str, limit: &mut u64, highest: u64| {
        if (highest + 1..LIMIT_MAX).contains(limit) {
            return;
        }
        let text =
            format!("the limit of {what} numbers is {limit}, but the highest number is {highest}");
        *limit = highest + 1 + RESERVE;
        ledger.found(Damage::Limit, text);
    };
    check("inode", &mut fixed.ino_limit, inos);
    check("object", &mut fixed.object_limit, objects);
    if superblock.crashed_epoch > superblock.epoch {
        let text = format!("a crash in epoch {}, which is in the future", superblock.crashed_epoch);
        ledger.found(Damage::Superblock, text);
        fixed.crashed_epoch = superblock.epoch;
    }
    if fixed != *superblock {
        ledger.fix(Tier::Superblock, Fix::Superblock(fixed));
    }
}
