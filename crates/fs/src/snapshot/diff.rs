//! What changed between a snapshot and a later one, or the fileset: by comparing the records of two stores in order.
//!
//! A file counts as modified if its bytes lie elsewhere and size or time of the last change differ. It takes the memory of the
//! directories' names, and of what changed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use forebay_base::Ino;
use forebay_store::Store;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::key::{self, Key};
use crate::partition::{Partition, Row};
use crate::record::{EntryRecord, InodeRecord, Kind, ObjectRef, decode};

/// Records that are read at a time.
const CHUNK: usize = 4096;
/// Directories above a path, at most: a store that is damaged must not be followed for ever.
const DEPTH_MAX: usize = 4096;

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new.
    Created,
    /// It is gone.
    Removed,
    /// It has another content.
    Modified,
    /// It had another name.
    Renamed,
    /// It has another owner, mode or extended attribute.
    Attributes,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Change {
    /// The path from the top of the fileset; a removed one as it was.
    pub path: String,
    /// What happened to it.
    pub change: ChangeKind,
    /// The path that it had before, if it had another one.
    pub from: Option<String>,
}

/// Changes from one moment to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotDiff {
    /// The changes in order of their paths; of many the first.
    pub changes: Vec<Change>,
    /// How many there are.
    pub total: u64,
}

/// A fileset at one moment.
pub(crate) struct Moment {
    pub store: Arc<dyn Store>,
    /// The snapshot that it is; `None` for the fileset as it was last committed.
    pub snapshot: Option<u64>,
}

/// Pairs of a range, in order.
struct Rows<'a> {
    store: &'a dyn Store,
    from: Option<Vec<u8>>,
    to: Vec<u8>,
    rows: VecDeque<Row>,
}

impl Rows<'_> {
    fn of(store: &dyn Store, kind: u8) -> Rows<'_> {
        let (from, to) = key::prefix_range(&[kind]);
        Rows { store, from: Some(from), to, rows: VecDeque::new() }
    }

    fn peek(&mut self) -> Result<Option<&Row>> {
        if self.rows.is_empty()
            && let Some(from) = self.from.take()
        {
            self.rows = self.store.scan(&from, &self.to, CHUNK)?.into();
            if let Some((last, _)) = self.rows.back().filter(|_| self.rows.len() == CHUNK) {
                self.from = Some([last, &[0][..]].concat());
            }
        }
        Ok(self.rows.front())
    }
}

/// What is to be done with a key: its value before and after.
type Visit<'a> = dyn FnMut(&[u8], Option<&[u8]>, Option<&[u8]>) -> Result<()> + 'a;

/// Calls `visit` with each key of either range, and what each has there.
fn merge(mut old: Rows<'_>, mut new: Rows<'_>, visit: &mut Visit<'_>) -> Result<()> {
    loop {
        let first = old.peek()?.map(|(key, _)| key.clone());
        let second = new.peek()?.map(|(key, _)| key.clone());
        let Some(key) = first.iter().chain(&second).min().cloned() else { return Ok(()) };
        let take = |rows: &mut Rows<'_>, at: &Option<Vec<u8>>| {
            if at.as_ref() == Some(&key) {
                rows.rows.pop_front().map(|(_, value)| value)
            } else {
                None
            }
        };
        let (before, after) = (take(&mut old, &first), take(&mut new, &second));
        visit(&key, before.as_deref(), after.as_deref())?;
    }
}

/// A name: the directory that holds it, and what it is there.
type Name = (Ino, Vec<u8>);

/// The comparison of two moments.
#[derive(Default)]
struct Comparison {
    content: BTreeSet<Ino>,
    attributes: BTreeSet<Ino>,
    removed: BTreeMap<Name, Ino>,
    added: BTreeMap<Name, Ino>,
    /// A name of each inode that changed and has the same names as before.
    kept: BTreeMap<Ino, Name>,
    /// Names of directories, before and after.
    before: HashMap<Ino, Name>,
    after: HashMap<Ino, Name>,
}

impl Partition {
    /// What changed from one moment to another; at most `most` changes are told.
    ///
    /// # Errors
    /// What a store or a disk says.
    pub(crate) fn diff(&self, old: &Moment, new: &Moment, most: usize) -> Result<SnapshotDiff> {
        let mut found = Comparison::default();
        let (old_store, new_store) = (&old.store, &new.store);
        merge(
            Rows::of(&**old_store, key::INODE),
            Rows::of(&**new_store, key::INODE),
            &mut |key, before, after| {
                if let (Some(Key::Inode(ino)), Some(before), Some(after)) =
                    (key::parse(key), before, after)
                {
                    let before = decode::<InodeRecord>("inode", before)?;
                    let after = decode::<InodeRecord>("inode", after)?;
                    self.compare(ino, (old, &before), (new, &after), &mut found)?;
                }
                Ok(())
            },
        )?;
        merge(
            Rows::of(&**old_store, key::ENTRY),
            Rows::of(&**new_store, key::ENTRY),
            &mut |key, before, after| found.entry(key, before, after),
        )?;
        let mut changes = found.changes();
        changes.sort_unstable();
        changes.dedup();
        let total = changes.len() as u64;
        changes.truncate(most);
        Ok(SnapshotDiff { changes, total })
    }

    fn compare(
        &self,
        ino: Ino,
        (old, before): (&Moment, &InodeRecord),
        (new, after): (&Moment, &InodeRecord),
        found: &mut Comparison,
    ) -> Result<()> {
        let visible = |record: &InodeRecord| (record.mode, record.uid, record.gid, record.xattrs);
        let has_bytes = before.kind == Kind::File || before.kind == Kind::Symlink;
        let places = (self.place(old, before)?, self.place(new, after)?);
        let has_content = has_bytes
            && (before.target != after.target
                || places.0 != places.1
                    && self.effective(places.0, before)? != self.effective(places.1, after)?
                || places.0 == places.1 && before.size != after.size);
        if has_content {
            found.content.insert(ino);
        }
        // The value of an attribute that was set anew shows in the time alone.
        let is_touched = before.changed != after.changed && !has_content && has_bytes;
        if visible(before) != visible(after) || (is_touched && before.xattrs > 0) {
            found.attributes.insert(ino);
        }
        Ok(())
    }

    /// Where the bytes of a file lie at a moment.
    fn place(&self, moment: &Moment, record: &InodeRecord) -> Result<Option<ObjectRef>> {
        match (record.layout.object(), moment.snapshot) {
            (Some(at), Some(snapshot)) => Ok(Some(self.resolve(at, snapshot)?)),
            (object, _) => Ok(object),
        }
    }

    /// Size and time of the last change of a file's bytes.
    fn effective(
        &self,
        at: Option<ObjectRef>,
        record: &InodeRecord,
    ) -> Result<(u64, forebay_base::Timestamp)> {
        let found = at.map(|at| self.objects_of_all().attributes(at)).transpose()?.flatten();
        Ok(found.map_or((record.size, record.modified), |found| (found.size, found.modified)))
    }
}

impl Comparison {
    fn entry(&mut self, key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) -> Result<()> {
        let Some(Key::Entry(parent, _)) = key::parse(key) else { return Ok(()) };
        let read = |value: Option<&[u8]>| {
            value.map(|value| decode::<EntryRecord>("directory entry", value)).transpose()
        };
        let (before, after) = (read(before)?, read(after)?);
        for (entry, directories) in [(&before, &mut self.before), (&after, &mut self.after)] {
            if let Some(entry) = entry.as_ref().filter(|entry| entry.kind == Kind::Directory) {
                directories.insert(entry.ino, (parent, entry.name.clone()));
            }
        }
        if before == after {
            if let Some(entry) = after
                && (self.content.contains(&entry.ino) || self.attributes.contains(&entry.ino))
            {
                self.kept.insert(entry.ino, (parent, entry.name));
            }
            return Ok(());
        }
        self.removed.extend(before.map(|entry| ((parent, entry.name), entry.ino)));
        self.added.extend(after.map(|entry| ((parent, entry.name), entry.ino)));
        Ok(())
    }

    fn changes(self) -> Vec<Change> {
        let Comparison { content, mut removed, added, kept, before, after, .. } = self;
        let old = |name: &Name| path(&before, name);
        let new = |name: &Name| path(&after, name);
        let mut changes = Vec::new();
        let mut tell = |path: String, change, from| changes.push(Change { path, change, from });
        let mut by_ino: BTreeMap<Ino, Vec<Name>> = BTreeMap::new();
        for (name, ino) in &removed {
            by_ino.entry(*ino).or_default().push(name.clone());
        }
        for (name, ino) in &added {
            // Another file took the place of the one that was there.
            if removed.remove(name).is_some() {
                tell(new(name), ChangeKind::Modified, None);
                continue;
            }
            let former = by_ino.get_mut(ino).and_then(Vec::pop).filter(|former| {
                let is_free = !added.contains_key(former);
                is_free && removed.remove(former).is_some()
            });
            match former {
                Some(former) => {
                    tell(new(name), ChangeKind::Renamed, Some(old(&former)));
                    if content.contains(ino) {
                        tell(new(name), ChangeKind::Modified, None);
                    }
                }
                None => tell(new(name), ChangeKind::Created, None),
            }
        }
        removed.keys().for_each(|name| tell(old(name), ChangeKind::Removed, None));
        for (ino, name) in &kept {
            let is_content = content.contains(ino);
            let change = if is_content { ChangeKind::Modified } else { ChangeKind::Attributes };
            tell(new(name), change, None);
        }
        changes
    }
}

/// The path of a name from the top of its fileset.
fn path(directories: &HashMap<Ino, Name>, name: &Name) -> String {
    let mut parts = vec![String::from_utf8_lossy(&name.1).into_owned()];
    let mut at = name.0;
    while let Some((parent, name)) = directories.get(&at).filter(|_| parts.len() < DEPTH_MAX) {
        parts.push(String::from_utf8_lossy(name).into_owned());
        at = *parent;
    }
    parts.reverse();
    parts.join("/")
}
