//! Records as earlier versions of this program wrote them, and what they are now.
//!
//! Version 4 of the superblock and 3 of the fileset have no number of copies: a program that knows no later ones would remove
//! copies as objects of nobody. Version 3 of the superblock has the fields of version 4, but the fileset never had snapshots: a program
//! that knows no other version writes to objects that snapshots share. Version 2 of superblock and fileset had neither pools nor failure groups of disks, and all disks were in use.

use forebay_base::{DiskId, Epoch, FilesetId};
use serde::{Deserialize, Serialize};

use super::{
    DEFAULT_POOL, DiskRecord, DiskUsage, Durability, FilesetRecord, FilesetSettings, MountState,
    Occupancy, Placement, Record, Stage, Superblock, decode_body,
};
use crate::error::Result;

#[derive(Serialize, Deserialize)]
struct DiskRecord2 {
    id: DiskId,
    uuid: String,
    location: String,
}

#[derive(Serialize, Deserialize)]
struct FilesetSettings2 {
    name: String,
    durability: Durability,
    placement: Placement,
    disk: Option<String>,
}

/// A fileset, with the settings of a version.
#[derive(Serialize, Deserialize)]
struct OldFileset<S> {
    settings: S,
    stage: Stage,
    first_ino: u64,
    first_object: u64,
}

/// A superblock, with the settings and disks of a version.
#[derive(Serialize, Deserialize)]
struct OldSuperblock<S, D> {
    uuid: String,
    fileset: FilesetId,
    settings: S,
    hash_key: [u8; 16],
    epoch: Epoch,
    state: MountState,
    crashed_epoch: Epoch,
    ino_limit: u64,
    object_limit: u64,
    sweep_due: bool,
    disks: Vec<D>,
}

impl From<DiskRecord2> for DiskRecord {
    fn from(old: DiskRecord2) -> DiskRecord {
        DiskRecord::new(old.id, &old.uuid, &old.location)
    }
}

impl From<FilesetSettings2> for FilesetSettings {
    fn from(old: FilesetSettings2) -> FilesetSettings {
        let FilesetSettings2 { name, durability, placement, disk } = old;
        let pool = DEFAULT_POOL.to_owned();
        FilesetSettings { name, durability, placement, disk, pool, copies: 1 }
    }
}

/// Settings before there were copies.
#[derive(Serialize, Deserialize)]
struct FilesetSettings3 {
    name: String,
    durability: Durability,
    placement: Placement,
    disk: Option<String>,
    pool: String,
}

impl From<FilesetSettings3> for FilesetSettings {
    fn from(old: FilesetSettings3) -> FilesetSettings {
        let FilesetSettings3 { name, durability, placement, disk, pool } = old;
        FilesetSettings { name, durability, placement, disk, pool, copies: 1 }
    }
}

impl<S: Into<FilesetSettings>> From<OldFileset<S>> for FilesetRecord {
    fn from(old: OldFileset<S>) -> FilesetRecord {
        let OldFileset { settings, stage, first_ino, first_object } = old;
        FilesetRecord { settings: settings.into(), stage, first_ino, first_object }
    }
}

impl<S: Into<FilesetSettings>, D: Into<DiskRecord>> From<OldSuperblock<S, D>> for Superblock {
    fn from(old: OldSuperblock<S, D>) -> Superblock {
        Superblock {
            uuid: old.uuid,
            fileset: old.fileset,
            settings: old.settings.into(),
            hash_key: old.hash_key,
            epoch: old.epoch,
            state: old.state,
            crashed_epoch: old.crashed_epoch,
            ino_limit: old.ino_limit,
            object_limit: old.object_limit,
            sweep_due: old.sweep_due,
            disks: old.disks.into_iter().map(Into::into).collect(),
        }
    }
}

/// Version 2 counted objects alone.
impl Record for DiskUsage {
    const KIND: &str = "disk usage";
    const VERSION: u8 = 3;

    fn upgrade(what: &str, version: u8, body: &[u8]) -> Option<Result<DiskUsage>> {
        let of = |objects| DiskUsage { objects, files: (objects == 0).then(Occupancy::default) };
        (version == 2).then(|| decode_body(what, body).map(of))
    }
}

impl Record for Superblock {
    const KIND: &str = "superblock";
    const VERSION: u8 = 5;

    fn upgrade(what: &str, version: u8, body: &[u8]) -> Option<Result<Superblock>> {
        match version {
            2 => Some(
                decode_body::<OldSuperblock<FilesetSettings2, DiskRecord2>>(what, body)
                    .map(Into::into),
            ),
            3 | 4 => Some(
                decode_body::<OldSuperblock<FilesetSettings3, DiskRecord>>(what, body)
                    .map(Into::into),
            ),
            _ => None,
        }
    }
}

impl Record for FilesetRecord {
    const KIND: &str = "fileset";
    const VERSION: u8 = 4;

    fn upgrade(what: &str, version: u8, body: &[u8]) -> Option<Result<FilesetRecord>> {
        match version {
            2 => Some(decode_body::<OldFileset<FilesetSettings2>>(what, body).map(Into::into)),
            3 => Some(decode_body::<OldFileset<FilesetSettings3>>(what, body).map(Into::into)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{DiskUse, decode, encode};

    fn old_bytes(record: &impl Serialize) -> Vec<u8> {
        postcard::to_extend(record, vec![2]).unwrap()
    }

    fn old_settings() -> FilesetSettings2 {
        FilesetSettings2 {
            name: "data".to_owned(),
            durability: Durability::Strict,
            placement: Placement::Served,
            disk: None,
        }
    }

    type Superblock2 = OldSuperblock<FilesetSettings2, DiskRecord2>;

    fn old_superblock(sweep_due: bool, disks: Vec<DiskRecord2>) -> Superblock2 {
        OldSuperblock {
            uuid: "whole".to_owned(),
            fileset: FilesetId(1),
            settings: old_settings(),
            hash_key: [7; 16],
            epoch: Epoch(9),
            state: MountState::Clean,
            crashed_epoch: Epoch(2),
            ino_limit: 100,
            object_limit: 200,
            sweep_due,
            disks,
        }
    }

    #[test]
    fn a_superblock_of_version_2_has_disks_of_the_default_pool() {
        let disk = DiskRecord2 { id: DiskId(3), uuid: "one".to_owned(), location: "/a".to_owned() };
        let old = old_superblock(true, vec![disk]);
        let found: Superblock = decode("superblock", &old_bytes(&old)).unwrap();
        let expected = DiskRecord::new(DiskId(3), "one", "/a");
        assert_eq!(found.disks, std::slice::from_ref(&expected));
        assert_eq!((expected.pool.as_str(), expected.used), (DEFAULT_POOL, DiskUse::Normal));
        assert_eq!(found.settings.pool, DEFAULT_POOL);
        assert_eq!((found.object_limit, found.sweep_due), (200, true));
        // From now on it is written in the new version.
        let bytes = encode(&found);
        assert_eq!(bytes[0], 5);
        assert_eq!(decode::<Superblock>("superblock", &bytes).unwrap(), found);
    }

    #[test]
    fn a_superblock_of_version_3_or_4_has_one_copy_of_each_file() {
        let wanted = Superblock::from(old_superblock(false, Vec::new()));
        let settings = FilesetSettings3 {
            name: "data".to_owned(),
            durability: Durability::Strict,
            placement: Placement::Served,
            disk: None,
            pool: DEFAULT_POOL.to_owned(),
        };
        let old = OldSuperblock::<_, DiskRecord> {
            uuid: wanted.uuid.clone(),
            fileset: wanted.fileset,
            settings,
            hash_key: wanted.hash_key,
            epoch: wanted.epoch,
            state: wanted.state,
            crashed_epoch: wanted.crashed_epoch,
            ino_limit: wanted.ino_limit,
            object_limit: wanted.object_limit,
            sweep_due: wanted.sweep_due,
            disks: Vec::new(),
        };
        for version in [3, 4] {
            let bytes = postcard::to_extend(&old, vec![version]).unwrap();
            assert_eq!(decode::<Superblock>("superblock", &bytes).unwrap(), wanted);
        }
        assert_eq!(wanted.settings.copies, 1);
    }

    #[test]
    fn a_fileset_of_version_2_places_its_files_in_the_default_pool() {
        let old = OldFileset {
            settings: old_settings(),
            stage: Stage::Made,
            first_ino: 5,
            first_object: 6,
        };
        let found: FilesetRecord = decode("fileset", &old_bytes(&old)).unwrap();
        assert_eq!((found.first_ino, found.first_object), (5, 6));
        assert_eq!(found.settings.pool, DEFAULT_POOL);
        assert_eq!(found.settings.placement, Placement::Served);
    }
}
