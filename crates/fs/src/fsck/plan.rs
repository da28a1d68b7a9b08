//! Fixes: what repair will do, as data. A pass plans; the repair applies.
//!
//! Fixes come in tiers. Only the fixes of the lowest tier that a pass planned are applied, then a new
//! pass looks at what has become of the file system: so each tier may rely on the ones before it, and
//! every fix is small. An interrupted repair leaves a file system that the next check repairs.

use forebay_base::{Epoch, FilesetId, Ino};

use crate::record::{FilesetRecord, Kind, ObjectRef, Superblock};

use super::image::Place;
use super::report::{Damage, Report};
use crate::key::{self, Key};

/// Fixes that one pass plans; what is beyond waits for the next pass.
const FIXES_MAX: usize = 1 << 20;

/// Order of repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    /// Limits and epochs of the superblock.
    Superblock,
    /// Objects whose file is about to be lost get a name.
    Rescue,
    /// Records that cannot be read go.
    Records,
    /// Entries: names, places, targets, kinds.
    Entries,
    /// The tree of directories, filesets, and inodes without a name.
    Tree,
    /// Fields of inodes, and their objects.
    Contents,
    /// Everything that is counted.
    Counts,
}

/// A change of one inode's record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Edit {
    Kind(Kind),
    Parent(Ino),
    Links(u32),
    Size(u64),
    Xattrs(u32),
    /// The object is on another disk.
    Object(ObjectRef),
    /// The file is empty and has no object.
    NoObject,
    /// The group's permissions go.
    NoGroupAccess,
    /// Fields that do not go with the kind are cleared; epochs are at most this one. The flag says
    /// whether the fileset is a cache.
    Normal(Epoch, bool),
}

/// One fix.
#[derive(Debug)]
pub(super) enum Fix {
    /// Writes the superblock.
    Superblock(Superblock),
    /// Sets or deletes one key.
    Set(Vec<u8>, Option<Vec<u8>>),
    /// Changes an inode's record.
    Inode(Ino, Edit),
    /// Moves an entry to where its name is looked for.
    Place { parent: Ino, cookie: u64 },
    /// Corrects the kind in an entry.
    EntryKind { parent: Ino, cookie: u64, kind: Kind },
    /// Makes a directory inode.
    Directory { ino: Ino, parent: Ino },
    /// Names a fileset in the root directory as its record says, or nearly so if that name is taken.
    NameFileset(FilesetId, FilesetRecord),
    /// Names an inode in the lost+found directory.
    Attach(Ino),
    /// Makes a file of an object that no file claims.
    Rescue { at: ObjectRef, size: u64 },
    /// Removes an object.
    Remove(ObjectRef),
}

/// What a finding is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    Inode(Ino),
    Entry(Place),
}

impl Fix {
    /// What the fix changes, if it has a path.
    fn subject(&self) -> Option<Subject> {
        match self {
            Fix::Set(key, _) => match key::parse(key)? {
                Key::Inode(ino) | Key::Xattr(ino, _) => Some(Subject::Inode(ino)),
                Key::Entry(parent, cookie) => Some(Subject::Entry(Place { parent, cookie })),
                _ => None,
            },
            Fix::Inode(ino, _) | Fix::Directory { ino, .. } | Fix::Attach(ino) => {
                Some(Subject::Inode(*ino))
            }
            Fix::Place { parent, cookie } | Fix::EntryKind { parent, cookie, .. } => {
                Some(Subject::Entry(Place { parent: *parent, cookie: *cookie }))
            }
            Fix::Superblock(_) | Fix::NameFileset(..) | Fix::Rescue { .. } | Fix::Remove(_) => None,
        }
    }
}

/// What a pass found, and the fixes of the lowest tier.
#[derive(Default)]
pub(super) struct Ledger {
    pub report: Report,
    /// The superblock that the pass went by.
    pub superblock: Option<Superblock>,
    tier: Option<Tier>,
    fixes: Vec<Fix>,
    /// Nothing may be changed.
    refused: bool,
    /// There are signs that a record was lost, or a reference to an object.
    pub lossy: bool,
    /// What findings are about, by their place in the report.
    pub subjects: Vec<(usize, Subject)>,
    /// Inodes that notes are about, by their place in the report.
    pub note_subjects: Vec<(usize, Ino)>,
}

impl Ledger {
    /// Notes a damage.
    pub fn found(&mut self, damage: Damage, detail: String) {
        self.report.found(damage, detail);
    }

    /// Notes a damage of an inode for which there is no fix.
    pub fn found_of(&mut self, damage: Damage, ino: Ino, detail: String) {
        let index = self.report.findings.len();
        self.found(damage, detail);
        if self.report.findings.len() > index {
            self.subjects.push((index, Subject::Inode(ino)));
        }
    }

    /// Notes a damage with its fix.
    pub fn found_with(&mut self, damage: Damage, detail: String, tier: Tier, fix: Fix) {
        let index = self.report.findings.len();
        self.found(damage, detail);
        // A report keeps so many findings only.
        if let Some(subject) = fix.subject().filter(|_| self.report.findings.len() > index) {
            self.subjects.push((index, subject));
        }
        self.fix(tier, fix);
    }

    /// Notes what is no damage of an inode.
    pub fn note_of(&mut self, ino: Ino, note: String) {
        let index = self.report.notes.len();
        self.report.note(note);
        if self.report.notes.len() > index {
            self.note_subjects.push((index, ino));
        }
    }

    /// Notes a damage that forbids any repair.
    pub fn refuse(&mut self, damage: Damage, detail: String) {
        self.found(damage, detail);
        self.refused = true;
    }

    /// Plans a fix.
    pub fn fix(&mut self, tier: Tier, fix: Fix) {
        if self.tier.is_none_or(|lowest| tier < lowest) {
            self.tier = Some(tier);
            self.fixes.clear();
        }
        if self.tier == Some(tier) && self.fixes.len() < FIXES_MAX {
            self.fixes.push(fix);
        }
    }

    /// The fixes to apply now.
    pub fn take_fixes(&mut self) -> Vec<Fix> {
        if self.refused { Vec::new() } else { std::mem::take(&mut self.fixes) }
    }
}
