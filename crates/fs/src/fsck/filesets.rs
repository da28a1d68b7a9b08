//! Filesets: that each has its top directory, every inode belongs to the one it lies in, and the usage
//! is what is counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use forebay_base::{FilesetId, Ino};
use rustc_hash::FxHashMap;

use super::NamedDisk;
use super::image::{Image, Place};
use super::plan::{Edit, Fix, Ledger, Tier};
use super::report::{Damage, shown};
use crate::directory::check_name;
use crate::key;
use crate::native::{Mark, NativePlace};
use crate::record::{Durability, FilesetRecord, Placement, Usage, encode};

/// Filesets are numbered from 0 without gaps that would matter: numbers stay below this.
const FILESETS_MAX: u16 = u16::MAX;

/// Checks the records of filesets, then the fileset of every inode.
pub(super) fn check(image: &Image, ledger: &mut Ledger) {
    ledger.report.counts.filesets = image.filesets.len() as u64;
    let roots = check_records(image, ledger);
    check_inodes(image, &roots, ledger);
}

/// Checks that each native fileset is on its disk, and marked as its own.
pub(super) fn check_native(image: &Image, uuid: &str, disks: &[NamedDisk], ledger: &mut Ledger) {
    for record in image.filesets.values() {
        if record.placement != Placement::Native {
            continue;
        }
        let disk = disks.iter().find(|(disk, _)| Some(disk) == record.disk.as_ref());
        // A disk that is missing was told of.
        let Some((_, disk)) = disk else { continue };
        let mark = Mark { file_system: uuid.to_owned(), fileset: record.name.clone() };
        let location = disk.describe().location;
        if let Err(error) = NativePlace::on(Path::new(&location), mark).open() {
            ledger.found(Damage::NativeFileset, error.to_string());
        }
    }
}

/// The name under which the top directory of a fileset returns if it has none: its fileset's.
pub(super) fn name_for_orphan(image: &Image, ino: Ino) -> Option<String> {
    let id = image.fileset_rooted_at(ino)?;
    let record = &image.filesets[&id];
    let fits = id != FilesetId::ROOT
        && image.directory(ino).is_some()
        && check_name(record.name.as_bytes()).is_ok()
        && !image.top.contains_key(record.name.as_bytes());
    fits.then(|| record.name.clone())
}

/// Checks each record, and returns the top directories as they are, or will be.
fn check_records(image: &Image, ledger: &mut Ledger) -> HashMap<Ino, FilesetId> {
    let mut roots = HashMap::from([(Ino::ROOT, FilesetId::ROOT)]);
    let mut unsettled: Vec<FilesetId> = Vec::new();
    for (id, record) in &image.filesets {
        if is_settled(image, *id, record) && !roots.contains_key(&record.root) {
            roots.insert(record.root, *id);
        } else if *id == FilesetId::ROOT {
            if *record != root_record(record) {
                let text = "the root fileset's record names another directory".to_owned();
                set_record(*id, &root_record(record), Some(text), ledger);
            }
        } else {
            unsettled.push(*id);
        }
    }
    for id in unsettled {
        let record = &image.filesets[&id];
        let text = format!(
            "fileset {id} ({}) has no top-level directory of its name with inode {}",
            shown(record.name.as_bytes()),
            record.root
        );
        match found_again(image, id, Some(record), &roots) {
            Some(record) => {
                roots.insert(record.root, id);
                set_record(id, &record, Some(text), ledger);
            }
            None => remove_record(id, Some(text), ledger),
        }
    }
    for id in &image.lost_filesets {
        // The finding is there already.
        if *id == FilesetId::ROOT {
            set_record(*id, &root_record(&default_record(String::new(), Ino::ROOT)), None, ledger);
            continue;
        }
        match found_again(image, *id, None, &roots) {
            Some(record) => {
                roots.insert(record.root, *id);
                set_record(*id, &record, None, ledger);
            }
            None => remove_record(*id, None, ledger),
        }
    }
    roots
}

/// Whether record and top directory agree, or will once the directory is there again.
fn is_settled(image: &Image, id: FilesetId, record: &FilesetRecord) -> bool {
    if id == FilesetId::ROOT || id.0 >= FILESETS_MAX || check_name(record.name.as_bytes()).is_err()
    {
        return false;
    }
    let named = image.top.get(record.name.as_bytes());
    let is_there = image.directory(record.root).is_some() || image.missing.contains(&record.root);
    let leads_there = named.is_some_and(|(ino, _)| *ino == record.root);
    let comes_back = is_orphan(image, record.root) && name_for_orphan(image, record.root).is_some();
    is_there && (leads_there || comes_back)
}

fn is_orphan(image: &Image, ino: Ino) -> bool {
    image.nodes.get(&ino).is_some_and(|node| node.names == 0)
}

/// The record of a fileset whose top directory was found among those at the top level: by name, or as
/// the only one that belongs to it.
fn found_again(
    image: &Image,
    id: FilesetId,
    record: Option<&FilesetRecord>,
    roots: &HashMap<Ino, FilesetId>,
) -> Option<FilesetRecord> {
    if id.0 >= FILESETS_MAX {
        return None;
    }
    let others: BTreeSet<Ino> = image
        .filesets
        .iter()
        .filter(|(other, record)| **other != id && is_settled(image, **other, record))
        .map(|(_, record)| record.root)
        .collect();
    let mut own = image.top.iter().filter(|(name, (ino, _))| {
        let valid = std::str::from_utf8(name).is_ok();
        let belongs = image.directory(*ino).is_some_and(|node| node.fileset == id);
        valid && belongs && !others.contains(ino) && !roots.contains_key(ino)
    });
    let by_name = record
        .and_then(|record| own.clone().find(|(name, _)| name.as_slice() == record.name.as_bytes()));
    let (name, (root, _)) = match (by_name, own.next(), own.next()) {
        (Some(found), _, _) | (None, Some(found), None) => found,
        _ => return None,
    };
    let name = String::from_utf8(name.clone()).ok()?;
    let mut found = record.cloned().unwrap_or_else(|| default_record(String::new(), *root));
    (found.name, found.root) = (name, *root);
    Some(found)
}

/// Settings that promise most.
fn default_record(name: String, root: Ino) -> FilesetRecord {
    FilesetRecord {
        name,
        root,
        durability: Durability::Strict,
        placement: Placement::Direct,
        disk: None,
    }
}

fn root_record(record: &FilesetRecord) -> FilesetRecord {
    FilesetRecord { name: String::new(), root: Ino::ROOT, ..record.clone() }
}

fn set_record(id: FilesetId, record: &FilesetRecord, text: Option<String>, ledger: &mut Ledger) {
    if let Some(text) = text {
        ledger.found(Damage::FilesetRecord, text);
    }
    ledger.fix(Tier::Tree, Fix::Set(key::fileset(id), Some(encode(record))));
}

/// Takes a fileset away: what it holds will belong to the fileset around it.
fn remove_record(id: FilesetId, text: Option<String>, ledger: &mut Ledger) {
    if let Some(text) = text {
        ledger.found(Damage::FilesetRecord, text);
    }
    ledger.fix(Tier::Tree, Fix::Set(key::fileset(id), None));
    ledger.fix(Tier::Tree, Fix::Set(key::usage(id), None));
}

fn check_inodes(image: &Image, roots: &HashMap<Ino, FilesetId>, ledger: &mut Ledger) {
    let mut of_directory: FxHashMap<Ino, FilesetId> = FxHashMap::default();
    for ino in &image.order {
        let node = &image.nodes[ino];
        let above = || of_directory.get(&node.name.parent).copied();
        let fileset = match roots.get(ino) {
            Some(id) => Some(*id),
            None if node.names == 0 => None,
            None => above(),
        };
        // Below what is not attached nothing is wrong yet.
        let fileset = fileset.unwrap_or(node.fileset);
        of_directory.insert(*ino, fileset);
        expect(*ino, node.fileset, fileset, ledger);
    }
    let mut inos: Vec<Ino> = image.nodes.keys().copied().collect();
    inos.sort_unstable();
    let mut more = image.more_names.as_slice();
    for ino in inos {
        let node = &image.nodes[&ino];
        let skipped = more.iter().take_while(|(other, _)| *other < ino).count();
        let own = more[skipped..].iter().take_while(|(other, _)| *other == ino).count();
        let extra = &more[skipped..skipped + own];
        more = &more[skipped + own..];
        if node.is_directory() || node.names == 0 {
            continue;
        }
        let mut places = vec![node.name];
        places.extend(extra.iter().map(|(_, place)| *place));
        check_names(ino, node.fileset, &places, &of_directory, ledger);
    }
}

/// Checks that all names of a file lie in its fileset.
fn check_names(
    ino: Ino,
    fileset: FilesetId,
    places: &[Place],
    of_directory: &FxHashMap<Ino, FilesetId>,
    ledger: &mut Ledger,
) {
    let around = |place: &Place| of_directory.get(&place.parent).copied().unwrap_or(fileset);
    let home = if places.iter().any(|place| around(place) == fileset) {
        fileset
    } else {
        around(&places[0])
    };
    expect(ino, fileset, home, ledger);
    for place in places.iter().filter(|place| around(place) != home) {
        let text = format!(
            "inode {ino} lies in fileset {home}, and is named in directory {} of fileset {}",
            place.parent,
            around(place)
        );
        let fix = Fix::Set(key::entry(place.parent, place.cookie), None);
        ledger.found_with(Damage::CrossFileset, text, Tier::Contents, fix);
    }
}

fn expect(ino: Ino, fileset: FilesetId, expected: FilesetId, ledger: &mut Ledger) {
    if fileset != expected {
        let text = format!("inode {ino} says fileset {fileset}, it lies in fileset {expected}");
        let fix = Fix::Inode(ino, Edit::Fileset(expected));
        ledger.found_with(Damage::Fileset, text, Tier::Counts, fix);
    }
}

/// Compares the usage records with what the inodes add up to.
pub(super) fn check_usage(image: &Image, ledger: &mut Ledger) {
    let mut counted: BTreeMap<FilesetId, Usage> = BTreeMap::new();
    for node in image.nodes.values() {
        let usage = counted.entry(node.fileset).or_default();
        usage.inodes += 1;
        if node.kind == crate::record::Kind::File {
            usage.bytes = usage.bytes.wrapping_add(node.size);
        }
    }
    for id in image.filesets.keys() {
        let usage = counted.get(id).copied().unwrap_or_default();
        let text = match image.usage.get(id) {
            Some(Some(stored)) if *stored == usage => continue,
            Some(Some(stored)) => format!(
                "the usage of fileset {id} is {} inodes and {} bytes, counted are {} and {}",
                stored.inodes, stored.bytes, usage.inodes, usage.bytes
            ),
            Some(None) => format!("the usage of fileset {id} cannot be read"),
            None => format!("fileset {id} has no usage record"),
        };
        let fix = Fix::Set(key::usage(*id), Some(encode(&usage)));
        ledger.found_with(Damage::Usage, text, Tier::Counts, fix);
    }
}
