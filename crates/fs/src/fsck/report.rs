//! What a check found: findings, notes and counts.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// Findings that a report keeps; the rest are only counted.
pub const FINDINGS_MAX: usize = 10_000;
/// Notes that a report keeps; the rest are only counted.
pub const NOTES_MAX: usize = 1000;

/// Kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Damage {
    /// The store's file is damaged.
    Store,
    /// The term is missing, unreadable, or not the superblock's epoch. Never repaired.
    Term,
    /// The superblock is missing, unreadable or makes no sense.
    Superblock,
    /// A number is at or above the limit that the superblock holds.
    Limit,
    /// A disk of the file system was not given. Nothing is repaired without it.
    DiskMissing,
    /// A key of no known kind.
    UnknownKey,
    /// A record that cannot be decoded.
    Record,
    /// A record of a version that this program does not know. Never repaired, nor is anything beside it.
    Version,
    /// An inode's number cannot be one.
    InodeNumber,
    /// Fields of an inode that do not go together.
    InodeFields,
    /// A fileset's record does not agree with its top directory.
    FilesetRecord,
    /// A native fileset is not on its disk, or what is there is not marked as its own. Never repaired.
    NativeFileset,
    /// A fileset's usage is missing or not what is counted.
    Usage,
    /// A disk's usage is not what is counted, or there is no such disk.
    DiskUsage,
    /// The name of an entry is no name.
    EntryName,
    /// An entry lies where its name is not looked for.
    EntryPlace,
    /// A directory holds a name twice.
    EntryTwice,
    /// An entry names an inode that does not exist, or the root directory.
    EntryTarget,
    /// An entry and its inode do not agree about the kind.
    EntryKind,
    /// An entry lies in something that is no directory.
    EntryParent,
    /// A directory that is needed has no inode.
    DirectoryMissing,
    /// A directory has several names.
    DirectoryNames,
    /// A directory's parent is not the directory that names it.
    DirectoryParent,
    /// An inode that no name leads to.
    Orphan,
    /// An inode's link count is not what is counted.
    LinkCount,
    /// A directory's size is not the number of its entries.
    EntryCount,
    /// An extended attribute of an inode that does not exist.
    XattrOwner,
    /// An inode's number of extended attributes is not what is counted.
    XattrCount,
    /// An access control list that cannot be read.
    AccessList,
    /// A file's object is missing, or on a disk that is none.
    ObjectMissing,
    /// A file's object has another size than the file.
    ObjectSize,
    /// Several files claim one object.
    ObjectShared,
    /// An object that no file claims.
    ObjectUnclaimed,
    /// A snapshot has lost its store or objects, or cannot be read.
    Snapshot,
    /// A copy of a file in another failure group is missing, or belongs to nothing.
    Copies,
}

impl Damage {
    /// Whether damage of this kind follows from the repair of other damage.
    pub(super) fn follows_repair(self) -> bool {
        matches!(
            self,
            Damage::LinkCount
                | Damage::EntryCount
                | Damage::XattrCount
                | Damage::Usage
                | Damage::DiskUsage
                | Damage::DirectoryParent
        )
    }
}

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What kind it is of.
    pub damage: Damage,
    /// What exactly, for people; it names the thing.
    pub detail: String,
    /// Path of the thing, or the last known one, if there is a name that leads there. What a terminal might
    /// obey is escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// It was repaired, and a later pass did not find it again.
    pub repaired: bool,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Filesets.
    pub filesets: u64,
    /// Inodes of any kind.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Directory entries.
    pub entries: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Objects on the disks.
    pub objects: u64,
    /// Files that lie in archives.
    #[serde(default)]
    pub archived: u64,
    /// Sum of the sizes of all files, in bytes.
    pub bytes: u64,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// No damage.
    Clean,
    /// Damage, all of it repaired: a last pass found none.
    Repaired,
    /// Damage that is still there.
    Left,
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The first [`FINDINGS_MAX`] findings.
    pub findings: Vec<Finding>,
    /// Number of all findings.
    pub findings_total: u64,
    /// Findings that the last pass still had.
    pub left_total: u64,
    /// What the next mount puts right after a crash, and other things that are no damage; the first
    /// [`NOTES_MAX`] of them.
    pub notes: Vec<String>,
    /// Number of all notes.
    pub notes_total: u64,
    /// What was read by the last pass.
    pub counts: Counts,
    /// Passes over the whole file system: one, and one more after each step of repair.
    pub passes: u32,
}

impl Report {
    /// What came of it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if self.findings_total == 0 {
            Outcome::Clean
        } else if self.left_total == 0 {
            Outcome::Repaired
        } else {
            Outcome::Left
        }
    }

    pub(super) fn found(&mut self, damage: Damage, detail: String) {
        self.findings_total += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { damage, detail, path: None, repaired: false });
        }
    }

    /// Notes a damage that is repaired already.
    pub(super) fn found_repaired(&mut self, damage: Damage, detail: String) {
        self.findings_total += 1;
        self.findings.insert(0, Finding { damage, detail, path: None, repaired: true });
        self.findings.truncate(FINDINGS_MAX);
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes_total += 1;
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }

    /// Takes in the report of another fileset.
    pub(super) fn add(&mut self, other: &Report) {
        self.findings.extend_from_slice(&other.findings);
        self.findings.truncate(FINDINGS_MAX);
        self.findings_total += other.findings_total;
        self.left_total += other.left_total;
        self.notes.extend_from_slice(&other.notes);
        self.notes.truncate(NOTES_MAX);
        self.notes_total += other.notes_total;
        self.passes = self.passes.max(other.passes);
        let (sum, more) = (&mut self.counts, other.counts);
        sum.filesets += more.filesets;
        sum.inodes += more.inodes;
        sum.directories += more.directories;
        sum.entries += more.entries;
        sum.xattrs += more.xattrs;
        sum.objects += more.objects;
        sum.archived += more.archived;
        sum.bytes = sum.bytes.saturating_add(more.bytes);
    }

    /// Takes in the pass that came after a step of repair.
    pub(super) fn follow(&mut self, later: &Report) {
        self.passes += 1;
        self.counts = later.counts;
        self.notes.clone_from(&later.notes);
        self.notes_total = later.notes_total;
        self.left_total = later.findings_total;
        let known: HashSet<(Damage, String)> =
            self.findings.iter().map(|known| (known.damage, known.detail.clone())).collect();
        for Finding { damage, detail, path, .. } in &later.findings {
            if !damage.follows_repair() && !known.contains(&(*damage, detail.clone())) {
                self.found(*damage, detail.clone());
                if let Some(finding) =
                    self.findings.last_mut().filter(|last| last.detail == *detail)
                {
                    finding.path.clone_from(path);
                }
            }
        }
    }

    /// Marks what the last pass did not find again.
    pub(super) fn mark_repaired(&mut self, last: &Report) {
        let left: HashSet<(Damage, &str)> =
            last.findings.iter().map(|left| (left.damage, left.detail.as_str())).collect();
        for finding in &mut self.findings {
            finding.repaired = !left.contains(&(finding.damage, finding.detail.as_str()));
        }
        if last.findings_total > last.findings.len() as u64 {
            // Not all that is left is known by name.
            self.findings.iter_mut().for_each(|finding| finding.repaired = false);
        }
    }
}

/// A name as it is shown to people.
pub(super) fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) => format!("\"{}\"", name.escape_debug()),
        Err(_) => format!("\"{}\"", name.escape_ascii()),
    }
}
