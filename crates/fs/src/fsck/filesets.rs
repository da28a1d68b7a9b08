//! What is known of filesets: in the root fileset, that each record has its name in the root directory and each name
//! its record; in every fileset, that the usage is what is counted.

use std::collections::BTreeSet;

use forebay_base::FilesetId;

use super::NamedDisk;
use super::image::{Image, Place};
use super::plan::{Fix, Ledger, Tier};
use super::report::{Damage, shown};
use super::whole::StoredFileset;
use crate::error::Result;
use crate::key;
use crate::native::NativePlace;
use crate::ops::check_fileset_name;
use crate::record::{
    DEFAULT_POOL, Durability, FilesetRecord, FilesetSettings, Placement, Stage, Usage, encode,
};

/// Filesets that have a store, if that is known.
pub(super) type Found<'a> = Option<&'a [StoredFileset]>;

/// Checks records and names of filesets, in the root fileset.
pub(super) fn check(image: &Image, disks: &[NamedDisk], found: Found<'_>, ledger: &mut Ledger) {
    if image.fileset() != FilesetId::ROOT {
        return;
    }
    let stored = |id: FilesetId| found?.iter().find(|stored| stored.id == id);
    let mut ids: BTreeSet<FilesetId> = image.filesets.keys().copied().collect();
    ids.extend(image.fileset_names.keys());
    ids.extend(found.into_iter().flatten().map(|stored| stored.id));
    ids.insert(FilesetId::ROOT);
    for id in ids {
        let record = image.filesets.get(&id).cloned().flatten();
        ledger.report.counts.filesets += u64::from(record.is_some());
        if id == FilesetId::ROOT {
            check_root(image, record.as_ref(), ledger);
            continue;
        }
        match record {
            Some(record) if record.stage != Stage::Made && stored(id).is_none() => {
                unfinished(image, id, ledger);
            }
            Some(mut record) if record.stage != Stage::Made => {
                let text = format!("fileset {id} is {:?}, but holds files", record.stage);
                record.stage = Stage::Made;
                match chosen(names_of(image, id), &record.settings.name) {
                    Some(_) => set_record(id, &record, text, ledger),
                    None => {
                        ledger.found(Damage::FilesetRecord, text);
                        ledger.fix(Tier::Tree, Fix::NameFileset(id, record));
                    }
                }
            }
            // It has no name of its own at the top level.
            Some(record) if is_node_directory(&record.settings) => {}
            Some(record) => {
                let is_native = record.settings.placement == Placement::Native;
                if let Some(settings) = right_settings(image, disks, &record, stored(id), found) {
                    let text = format!(
                        "the record of fileset {id} ({}) does not say how its files are kept",
                        shown(record.settings.name.as_bytes())
                    );
                    set_record(id, &FilesetRecord { settings, ..record }, text, ledger);
                    continue;
                }
                let is_lost = if is_of_cluster(&record.settings) {
                    false
                } else if is_native {
                    native_place(image, disks, &record.settings).is_err()
                } else {
                    found.is_some() && stored(id).is_none()
                };
                if is_lost && names_of(image, id).is_empty() {
                    let text = format!("fileset {id} has a record, but no files and no name");
                    let fix = Fix::Set(key::fileset(id), None);
                    ledger.found_with(Damage::FilesetRecord, text, Tier::Tree, fix);
                    continue;
                }
                if is_lost && !is_native {
                    let name = shown(record.settings.name.as_bytes());
                    let text = format!(
                        "the store of fileset {id} ({name}) is missing: bring it back from a backup"
                    );
                    ledger.found(Damage::Store, text);
                }
                made(image, id, record, ledger);
            }
            None => {
                let settings = match stored(id) {
                    Some(stored) => Some(stored.settings.clone()),
                    None => native_named(image, disks, id).map(Some),
                };
                lost(image, id, settings, found.is_some(), ledger);
            }
        }
    }
}

/// What the settings of a fileset have to be, if its record says that it is native and it has a store, or the other way
/// round, or names another disk than the one it lies on.
fn right_settings(
    image: &Image,
    disks: &[NamedDisk],
    record: &FilesetRecord,
    stored: Option<&StoredFileset>,
    found: Found<'_>,
) -> Option<FilesetSettings> {
    let name = record.settings.name.clone();
    let is_native = record.settings.placement == Placement::Native;
    match stored {
        Some(stored) if is_native => {
            let known = stored.settings.clone();
            let known = known.filter(|settings| settings.placement != Placement::Native);
            Some(FilesetSettings {
                name: name.clone(),
                ..known.unwrap_or_else(|| default_record(name).settings)
            })
        }
        None if found.is_some() => native_called(image, disks, &name)
            .filter(|right| !is_native || right.disk != record.settings.disk),
        Some(_) | None => None,
    }
}

/// The settings of the native fileset whose name in the root directory is that of a fileset, if one of that name is on a
/// disk.
fn native_named(image: &Image, disks: &[NamedDisk], id: FilesetId) -> Option<FilesetSettings> {
    let (name, _) = chosen(names_of(image, id), "")?;
    native_called(image, disks, name)
}

/// The settings of the native fileset that is on a disk under a name, with the mark of this file system.
fn native_called(image: &Image, disks: &[NamedDisk], name: &str) -> Option<FilesetSettings> {
    let on = |(uuid, _): &NamedDisk| FilesetSettings {
        name: name.to_owned(),
        durability: Durability::Scratch,
        placement: Placement::Native,
        disk: Some(uuid.clone()),
        pool: DEFAULT_POOL.to_owned(),
        copies: 1,
    };
    disks.iter().map(on).find(|settings| native_place(image, disks, settings).is_ok())
}

/// The directory of a native fileset, if it is on its disk and marked as its own.
fn native_place(
    image: &Image,
    disks: &[NamedDisk],
    settings: &FilesetSettings,
) -> Result<std::os::fd::OwnedFd> {
    let disks = disks.iter().map(|(uuid, disk)| (uuid.as_str(), &**disk));
    NativePlace::find(&image.superblock.uuid, disks, settings).and_then(|place| place.open())
}

/// Checks that each native fileset is on its disk, and marked as its own.
pub(super) fn check_native(image: &Image, disks: &[NamedDisk], ledger: &mut Ledger) {
    let made = image.filesets.values().flatten().filter(|record| record.stage == Stage::Made);
    for settings in made.map(|record| &record.settings) {
        if settings.placement != Placement::Native || is_of_cluster(settings) {
            continue;
        }
        if let Err(error) = native_place(image, disks, settings) {
            ledger.found(Damage::NativeFileset, error.to_string());
        }
    }
}

/// Whether a fileset is the directory of a node in a native fileset of a cluster.
fn is_node_directory(settings: &FilesetSettings) -> bool {
    settings.placement == Placement::Native && settings.name.contains('/')
}

/// Whether a fileset is a native one of a cluster, or the directory of a node in one: what lies on which disk is for its node to
/// say. One of a single machine that has lost the name of its disk is found there before this is asked.
fn is_of_cluster(settings: &FilesetSettings) -> bool {
    is_node_directory(settings)
        || (settings.placement == Placement::Native && settings.disk.is_none())
}

fn set_record(id: FilesetId, record: &FilesetRecord, text: String, ledger: &mut Ledger) {
    let fix = Fix::Set(key::fileset(id), Some(encode(record)));
    ledger.found_with(Damage::FilesetRecord, text, Tier::Tree, fix);
}

/// Settings that promise most.
fn default_record(name: String) -> FilesetRecord {
    let settings = FilesetSettings {
        name,
        durability: Durability::Strict,
        placement: Placement::Direct,
        disk: None,
        pool: DEFAULT_POOL.to_owned(),
        copies: 1,
    };
    FilesetRecord { settings, stage: Stage::Made, first_ino: 0, first_object: 0 }
}

fn check_root(image: &Image, record: Option<&FilesetRecord>, ledger: &mut Ledger) {
    let right = |record: &FilesetRecord| {
        record.settings.name.is_empty()
            && record.stage == Stage::Made
            && record.settings.placement != Placement::Native
    };
    let text = match record {
        Some(record) if right(record) => return,
        Some(_) => "the root fileset's record is that of another",
        None => "the root fileset has no record",
    };
    let mut settings = image.superblock.settings.clone();
    settings.name = String::new();
    if settings.placement == Placement::Native {
        settings.placement = Placement::Direct;
    }
    let record = FilesetRecord { settings, ..default_record(String::new()) };
    set_record(FilesetId::ROOT, &record, text.to_owned(), ledger);
}

/// A fileset that is being made or removed, or is gone, has no name.
fn unfinished(image: &Image, id: FilesetId, ledger: &mut Ledger) {
    for (name, place) in names_of(image, id) {
        let text = format!("{} names fileset {id}, which is not complete", shown(name));
        ledger.found_with(Damage::EntryTarget, text, Tier::Tree, removal(*place));
    }
}

fn names_of(image: &Image, id: FilesetId) -> &[(Vec<u8>, Place)] {
    image.fileset_names.get(&id).map_or(&[], Vec::as_slice)
}

fn removal(place: Place) -> Fix {
    Fix::Set(key::entry(place.parent, place.cookie), None)
}

/// A valid name of a fileset among its names in the root directory: `wanted`, or else the first.
fn chosen<'a>(names: &'a [(Vec<u8>, Place)], wanted: &str) -> Option<(&'a str, Place)> {
    let valid = names.iter().filter_map(|(name, place)| {
        let name = std::str::from_utf8(name).ok()?;
        check_fileset_name(name).is_ok().then_some((name, *place))
    });
    valid.clone().find(|(name, _)| *name == wanted).or_else(|| valid.clone().next())
}

/// A fileset with a record: it has the name that the record says, and no other.
fn made(image: &Image, id: FilesetId, mut record: FilesetRecord, ledger: &mut Ledger) {
    let names = names_of(image, id);
    let Some((name, kept)) = chosen(names, &record.settings.name) else {
        let text = format!(
            "fileset {id} ({}) has no name at the top level",
            shown(record.settings.name.as_bytes())
        );
        if check_fileset_name(&record.settings.name).is_err() {
            record.settings.name = format!("fileset-{id}");
        }
        ledger.found(Damage::FilesetRecord, text);
        for (_, place) in names {
            ledger.fix(Tier::Tree, removal(*place));
        }
        ledger.fix(Tier::Tree, Fix::NameFileset(id, record));
        return;
    };
    for (other, place) in names.iter().filter(|(_, place)| *place != kept) {
        let text = format!("fileset {id} ({name}) is named {} too", shown(other));
        ledger.found_with(Damage::DirectoryNames, text, Tier::Tree, removal(*place));
    }
    if record.settings.name != name {
        let text = format!(
            "fileset {id} is called {} at the top level, but its record says {}",
            shown(name.as_bytes()),
            shown(record.settings.name.as_bytes())
        );
        record.settings.name = name.to_owned();
        set_record(id, &record, text, ledger);
    }
}

/// A fileset without a record that can be read: made again from its store or its tree and from its name, if there is one.
/// `kept` has the settings found with its files, as far as they can be read; none if there are no files.
fn lost(
    image: &Image,
    id: FilesetId,
    kept: Option<Option<FilesetSettings>>,
    stores_known: bool,
    ledger: &mut Ledger,
) {
    let names = names_of(image, id);
    if kept.is_none() && stores_known {
        for (name, place) in names {
            let text = format!("{} names fileset {id}, which does not exist", shown(name));
            ledger.found_with(Damage::EntryTarget, text, Tier::Tree, removal(*place));
        }
        if image.filesets.contains_key(&id) {
            ledger.fix(Tier::Tree, Fix::Set(key::fileset(id), None));
        }
        return;
    }
    let mut record = default_record(format!("fileset-{id}"));
    if let Some(settings) = kept.flatten() {
        record.settings = settings;
    }
    let text = format!("fileset {id} has no record that can be read");
    match chosen(names, &record.settings.name) {
        Some((name, _)) => {
            record.settings.name = name.to_owned();
            set_record(id, &record, text, ledger);
        }
        None => {
            ledger.found(Damage::FilesetRecord, text);
            ledger.fix(Tier::Tree, Fix::NameFileset(id, record));
        }
    }
}

/// Compares the usage record with what the inodes add up to.
pub(super) fn check_usage(image: &Image, ledger: &mut Ledger) {
    let mut counted = Usage::default();
    for node in image.nodes.values() {
        counted.inodes += 1;
        if node.kind == crate::record::Kind::File {
            counted.bytes = counted.bytes.wrapping_add(node.size);
        }
    }
    let text = match image.usage {
        Some(stored) if stored == counted => return,
        Some(stored) => format!(
            "the usage record says {} inodes and {} bytes, but there are {} and {}",
            stored.inodes, stored.bytes, counted.inodes, counted.bytes
        ),
        None => "there is no readable usage record".to_owned(),
    };
    let fix = Fix::Set(key::USAGE.to_vec(), Some(encode(&counted)));
    ledger.found_with(Damage::Usage, text, Tier::Counts, fix);
}
