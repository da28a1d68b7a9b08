//! Reading directory entries, in the order of their keys: directory by directory, bucket by bucket.

use forebay_base::Ino;
use forebay_store::Store;

use super::image::{Image, Place};
use super::plan::{Edit, Fix, Ledger, Tier};
use super::report::{Damage, shown};
use super::scan::{Read, read, unknown_key};
use crate::directory::{Bucket, check_name};
use crate::error::Result;
use crate::key::{self, Key};
use crate::record::{EntryRecord, Kind};
use crate::recovery::scan_prefix;

/// An entry that does not fit its inode.
struct Misfit {
    place: Place,
    entry: EntryRecord,
}

struct Reader<'a> {
    image: &'a mut Image,
    ledger: &'a mut Ledger,
    /// Names of the bucket that is being read.
    bucket: (Ino, u64),
    names: Vec<Vec<u8>>,
    /// Entries whose inode does not exist.
    dangling: Vec<Misfit>,
    /// Entries whose inode is of another kind.
    doubtful: Vec<Misfit>,
}

/// Reads all entries.
pub(super) fn read_all(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
    let mut reader = Reader {
        image,
        ledger,
        bucket: (Ino(0), 0),
        names: Vec::new(),
        dangling: Vec::new(),
        doubtful: Vec::new(),
    };
    scan_prefix(store, &[key::ENTRY], &mut |key, value| match key::parse(key) {
        Some(Key::Entry(parent, cookie)) => reader.row(Place { parent, cookie }, value),
        _ => {
            unknown_key(key, reader.ledger);
            Ok(())
        }
    })?;
    reader.settle_kinds();
    reader.settle_missing();
    Ok(())
}

fn described(place: Place, entry: &EntryRecord) -> String {
    format!("the entry {} of directory {}", shown(&entry.name), place.parent)
}

fn removal(place: Place) -> Fix {
    Fix::Set(key::entry(place.parent, place.cookie), None)
}

impl Reader<'_> {
    fn row(&mut self, place: Place, value: &[u8]) -> Result<()> {
        self.ledger.report.counts.entries += 1;
        let what = format!("entry {:x} of directory {}", place.cookie, place.parent);
        let entry = match read::<EntryRecord>(&what, value)? {
            Read::Fine(entry) => entry,
            Read::Bad(why) => {
                self.parent(place, &what, None);
                self.ledger.found_with(Damage::Record, why, Tier::Records, removal(place));
                return Ok(());
            }
        };
        self.parent(place, &described(place, &entry), Some(entry.kind));
        self.name(place, &entry);
        self.target(place, entry);
        Ok(())
    }

    /// Counts the entry in its directory.
    fn parent(&mut self, place: Place, what: &str, kind: Option<Kind>) {
        let parent = place.parent;
        if let Some(directory) = self.image.directories.get_mut(&parent) {
            directory.entries += 1;
            directory.subdirectories += u32::from(kind == Some(Kind::Directory));
            return;
        }
        if self.image.nodes.contains_key(&parent) {
            let text = format!("{what}: it is not a directory");
            self.ledger.found_with(Damage::EntryParent, text, Tier::Tree, removal(place));
        } else if !self.image.can_be(parent) {
            let text = format!("{what}: that cannot be one");
            self.ledger.found_with(Damage::EntryParent, text, Tier::Records, removal(place));
        } else if kind.is_some() {
            self.image.missing.insert(parent);
        }
    }

    /// Checks the name and whether it is found where the entry lies.
    fn name(&mut self, place: Place, entry: &EntryRecord) {
        if check_name(&entry.name).is_err() {
            let text = format!("{}: not a valid name", described(place, entry));
            self.ledger.found_with(Damage::EntryName, text, Tier::Entries, removal(place));
            return;
        }
        let bucket = Bucket::of(&self.image.hash_key, &entry.name);
        if !(bucket.first()..=bucket.last()).contains(&place.cookie) {
            let text = format!(
                "{} lies at {:x}, but its name belongs at {:x}",
                described(place, entry),
                place.cookie,
                bucket.first()
            );
            let fix = Fix::Place { parent: place.parent, cookie: place.cookie };
            self.ledger.found_with(Damage::EntryPlace, text, Tier::Entries, fix);
            return;
        }
        if self.bucket != (place.parent, bucket.first()) {
            self.bucket = (place.parent, bucket.first());
            self.names.clear();
        }
        if self.names.contains(&entry.name) {
            let text = format!("{} exists twice", described(place, entry));
            self.ledger.found_with(Damage::EntryTwice, text, Tier::Entries, removal(place));
            return;
        }
        self.names.push(entry.name.clone());
    }

    fn target(&mut self, place: Place, entry: EntryRecord) {
        let top = self.image.top();
        if entry.ino == top {
            let text = format!("{} names the top directory", described(place, &entry));
            self.ledger.found_with(Damage::EntryTarget, text, Tier::Entries, removal(place));
            return;
        }
        let other = entry.ino.fileset();
        if other != self.image.fileset() {
            let is_fileset = place.parent == Ino::ROOT
                && entry.kind == Kind::Directory
                && entry.ino == Ino::top_of(other);
            if is_fileset {
                let names = self.image.fileset_names.entry(other).or_default();
                names.push((entry.name, place));
                return;
            }
            let text = format!(
                "{} names inode {}, which is none of this fileset",
                described(place, &entry),
                entry.ino
            );
            self.ledger.lossy = true;
            self.ledger.found_with(Damage::EntryTarget, text, Tier::Entries, removal(place));
            return;
        }
        let Some(node) = self.image.nodes.get_mut(&entry.ino) else {
            self.dangling.push(Misfit { place, entry });
            return;
        };
        if node.kind != entry.kind {
            node.doubted = true;
            self.doubtful.push(Misfit { place, entry });
            return;
        }
        node.names = node.names.saturating_add(1);
        if node.names == 1 {
            node.name = place;
        } else {
            self.image.more_names.push((entry.ino, place));
        }
    }

    /// Decides which is right where entry and inode do not agree about the kind.
    fn settle_kinds(&mut self) {
        for Misfit { place, entry } in std::mem::take(&mut self.doubtful) {
            let node = self.image.nodes[&entry.ino];
            let text = format!(
                "{} says {:?}, but inode {} is a {:?}",
                described(place, &entry),
                entry.kind,
                entry.ino,
                node.kind
            );
            let believed = node.believed_kind(entry.kind);
            // The record may be that of another inode.
            self.ledger.lossy |= entry.kind == Kind::File && believed != Kind::File;
            let fix = if node.names > 0 {
                removal(place)
            } else if believed == node.kind {
                Fix::EntryKind { parent: place.parent, cookie: place.cookie, kind: node.kind }
            } else {
                Fix::Inode(entry.ino, Edit::Kind(believed))
            };
            self.ledger.found_with(Damage::EntryKind, text, Tier::Entries, fix);
        }
        let top = self.image.top();
        if let Some(root) = self.image.nodes.get(&top)
            && !root.is_directory()
        {
            let text = format!("the top directory is a {:?}", root.kind);
            let fix = Fix::Inode(top, Edit::Kind(Kind::Directory));
            self.ledger.found_with(Damage::InodeFields, text, Tier::Entries, fix);
        }
    }

    /// Rebuilds directories that are needed; entries that name anything else that is missing go.
    fn settle_missing(&mut self) {
        let mut rebuilt = std::mem::take(&mut self.image.missing);
        let top = self.image.top();
        if !self.image.nodes.contains_key(&top) {
            rebuilt.insert(top);
        }
        let mut parents = std::collections::HashMap::new();
        for Misfit { place, entry } in std::mem::take(&mut self.dangling) {
            self.image.last_names.insert(entry.ino, place);
            let needed = self.image.can_be(entry.ino) && rebuilt.contains(&entry.ino);
            if entry.kind == Kind::Directory && needed {
                rebuilt.insert(entry.ino);
                parents.insert(entry.ino, place.parent);
                continue;
            }
            let text = format!(
                "{} names inode {}, which does not exist",
                described(place, &entry),
                entry.ino
            );
            // Its inode may have been lost.
            self.ledger.lossy = true;
            self.ledger.found_with(Damage::EntryTarget, text, Tier::Entries, removal(place));
        }
        for ino in &rebuilt {
            let text = format!("directory {ino} has no inode");
            let parent = parents.get(ino).copied().unwrap_or(top);
            let fix = Fix::Directory { ino: *ino, parent };
            self.ledger.found_with(Damage::DirectoryMissing, text, Tier::Entries, fix);
        }
        self.image.missing = rebuilt;
    }
}
