//! The file system and its reference side by side: every operation is done to both, and must have the
//! same outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use forebay_base::{FilesetId, Ino};
use forebay_disk::Sync;
use forebay_fs::record::{Durability, Kind, Placement};
use forebay_fs::{FsError, Migrated, Result};

use super::op::{Op, Pick};
use super::tree::{Body, Node, Refused, Tree, name_of};
use crate::support::{Handle, READ, Rig, TestDisk, User, check};

/// Names that the operations use.
const NAMES: [&[u8]; 12] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"f",
    b"with spaces and \n",
    b"\xff\xfe",
    b"...",
    b"-",
    &[b'n'; 255],
    &[0xc3; 255],
];

/// Open handles and listings that an operation sequence may hold at once.
const HANDLES_MAX: usize = 6;
const CURSORS_MAX: usize = 3;

/// A listing that goes on while the directory changes.
pub struct Cursor {
    pub ino: Ino,
    pub offset: u64,
    pub seen: Vec<Vec<u8>>,
    /// Names that were there all the time.
    pub stable: BTreeSet<Vec<u8>>,
}

pub struct World<'a> {
    rig: &'a Rig,
    /// `None` only between two lives.
    user: Option<User>,
    pub tree: Tree,
    /// The tree as the stores have it.
    pub committed: Tree,
    pub handles: Vec<Handle>,
    pub cursors: Vec<Cursor>,
    /// How often the kernel knows of an inode.
    pub refs: BTreeMap<Ino, u64>,
    pub strict: BTreeMap<u16, bool>,
    /// Directories and files whose first sync may fail: an owner lost changes in them or of their attributes, or might have.
    pub may_be_lost: BTreeSet<Ino>,
    /// The latest epoch in which a fileset was taken over.
    pub epoch: u64,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        // Handles must not outlive a failed run in an order of their own.
        self.handles.clear();
    }
}

impl<'a> World<'a> {
    pub fn new(rig: &'a Rig) -> World<'a> {
        let tree = Tree::new();
        World {
            rig,
            user: Some(rig.open()),
            committed: tree.committed(|_| true),
            tree,
            handles: Vec::new(),
            cursors: Vec::new(),
            refs: BTreeMap::new(),
            strict: [(0, true), (1, true), (2, false), (3, false)].into(),
            may_be_lost: BTreeSet::new(),
            epoch: 0,
        }
    }

    pub fn fs(&self) -> &User {
        self.user.as_ref().expect("the file system is open")
    }

    pub fn name(pick: Pick) -> &'static [u8] {
        NAMES[usize::from(pick) % NAMES.len()]
    }

    pub fn choose<T: Copy>(pick: Pick, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[usize::from(pick) % all.len()])
    }

    pub fn directory(&self, pick: Pick) -> Ino {
        World::choose(pick, &self.tree.directories()).expect("the root is always there")
    }

    pub fn any_node(&self, pick: Pick) -> Ino {
        World::choose(pick, &self.tree.select(|_| true)).expect("the root is always there")
    }

    pub fn handle(&self, pick: Pick) -> Option<&Handle> {
        let last = self.handles.len().checked_sub(1)?;
        self.handles.get(usize::from(pick) % (last + 1))
    }

    pub fn can_open(&self) -> bool {
        self.handles.len() < HANDLES_MAX
    }

    pub fn can_list(&self) -> bool {
        self.cursors.len() < CURSORS_MAX
    }

    /// Both must agree on whether, and why, an operation is refused.
    pub fn agree<T>(
        what: &str,
        found: Result<T>,
        expected: &std::result::Result<(), Refused>,
    ) -> Option<T> {
        match (found, expected) {
            (Ok(value), Ok(())) => Some(value),
            (Err(error), Err(refused)) => {
                assert_eq!(name_of(&error), *refused, "why {what} is refused");
                None
            }
            (Ok(_), Err(refused)) => panic!("{what} succeeds, but must be refused: {refused}"),
            (Err(error), Ok(())) => panic!("{what} is refused: {error}"),
        }
    }

    pub fn remember(&mut self, ino: Ino) {
        *self.refs.entry(ino).or_default() += 1;
    }

    pub fn forget_all(&mut self, ino: Ino) {
        if let Some(count) = self.refs.remove(&ino) {
            self.fs().forget(ino, count);
        }
    }

    fn is_used(&self, ino: Ino) -> bool {
        self.refs.contains_key(&ino) || self.handles.iter().any(|handle| handle.ino == ino)
    }

    /// Drops nodes that have neither a name nor a user: they must be gone.
    pub fn collect_garbage(&mut self) {
        for ino in self.tree.select(|node| node.nlink == 0) {
            if !self.is_used(ino) {
                self.tree.nodes.remove(&ino);
                let found = self.fs().attributes(ino);
                assert!(matches!(found, Err(FsError::Stale)), "inode {ino} lives on: {found:?}");
            }
        }
        for cursor in &mut self.cursors {
            let names = match self.tree.nodes.get(&cursor.ino) {
                Some(_) => self.tree.names(cursor.ino),
                None => BTreeSet::new(),
            };
            cursor.stable.retain(|name| names.contains(name));
        }
        self.cursors.retain(|cursor| self.tree.nodes.contains_key(&cursor.ino));
    }

    // --- commits and crashes ---

    /// Everything done so far is in the store. Files that the kernel is writing are as `sized` says.
    fn note_commit(&mut self, synced: Option<Ino>) {
        self.note_commit_of(synced.map(|ino| self.tree.node(ino).fileset), synced);
    }

    /// Everything done so far in a fileset, or in all, is in the store.
    pub fn note_commit_of(&mut self, fileset: Option<FilesetId>, synced: Option<Ino>) {
        let writing: BTreeSet<Ino> = self
            .handles
            .iter()
            .filter(|handle| handle.is_direct() && handle.access.write)
            .map(|handle| handle.ino)
            .filter(|ino| synced.is_some_and(|synced| synced != *ino))
            .collect();
        let now = self.tree.committed(|ino| !writing.contains(&ino));
        match fileset {
            None => self.committed = now,
            // A sync commits the fileset of what is synced, and no other.
            Some(fileset) => self.committed.take_over(now, fileset),
        }
        let problems = check::name_problems(&self.rig.stores());
        assert!(problems.is_empty(), "after a commit:\n{}", problems.join("\n"));
    }

    pub fn commit(&mut self) {
        self.fs().commit().unwrap();
        self.note_commit(None);
    }

    /// Makes all copies that are due, or compares and mends them, if files have copies.
    pub fn care_for_copies(&mut self, pick: Pick) {
        if self.rig.copies.is_none() && !self.rig.has_archive() {
            return;
        }
        // Only what is committed is copied.
        self.commit();
        self.fs().make_copies().unwrap();
        if pick.is_multiple_of(4) && self.rig.copies.is_some() {
            let number = self.fs().scrub(None).unwrap();
            self.commit();
            self.fs().work_through(number, &mut |_| {}).unwrap();
        }
        self.commit();
    }

    /// Moves a file to the archive, or premigrates it, if there is an archive and nobody has the file open.
    pub fn archive(&mut self, pick: Pick) {
        let files = self.tree.select(|node| node.content().is_some());
        let Some(ino) = World::choose(pick, &files).filter(|_| self.rig.has_archive()) else {
            return;
        };
        let premigrates = pick.is_multiple_of(3);
        let outcome = match premigrates {
            true => self.fs().premigrate_files("archive", &[ino]).unwrap(),
            false => self.fs().migrate_files("archive", &[ino]).unwrap(),
        };
        assert!(!matches!(outcome[..], [Migrated::Failed { .. }]), "{outcome:?}");
        self.note_commit(None);
    }

    /// Whether a file lies in the archive.
    pub fn is_archived(&self, ino: Ino) -> bool {
        self.rig.has_archive() && self.fs().place_of(ino).unwrap().is_archived
    }

    pub fn recall(&self, pick: Pick) {
        let files = self.tree.select(|node| node.content().is_some());
        if let Some(ino) = World::choose(pick, &files).filter(|_| self.rig.has_archive()) {
            self.fs().recall(ino, None).unwrap();
        }
    }

    pub fn sync_all(&mut self) {
        self.fs().sync_all().unwrap();
        self.note_commit(None);
        self.note_all_synced();
    }

    fn note_all_synced(&mut self) {
        for node in self.tree.nodes.values().filter(|node| node.nlink > 0) {
            if let Some(content) = node.content() {
                content.borrow_mut().synced = true;
            }
        }
    }

    fn is_strict(&self, ino: Ino) -> bool {
        self.strict[&self.tree.node(ino).fileset.0]
    }

    pub fn sync(&mut self, ino: Ino, what: Sync) {
        match self.fs().sync_file(ino, what) {
            // Told once.
            Err(FsError::Stale) if what == Sync::All && self.may_be_lost.remove(&ino) => {
                self.fs().sync_file(ino, what).unwrap();
            }
            synced => synced.unwrap(),
        }
        if !self.is_strict(ino) {
            return;
        }
        let fileset = self.tree.node(ino).fileset;
        let pending = self.fs().commit_health_of(fileset).map(|health| health.pending);
        if what == Sync::All || pending == Some(0) {
            self.note_commit(Some(ino));
        } else if self.tree.node(ino).nlink > 0 {
            // The store has had what it takes to find the bytes.
            let committed = self.committed.nodes.get_mut(&ino);
            let committed = committed.expect("a file that was synced is in the store");
            committed.certain = committed.size() > 0;
        }
        self.tree.node(ino).content().unwrap().borrow_mut().synced = true;
    }

    pub fn sync_directory(&mut self, ino: Ino) {
        match self.fs().sync_directory(ino) {
            // Told once.
            Err(FsError::Stale) if self.may_be_lost.remove(&ino) => {
                self.fs().sync_directory(ino).unwrap();
            }
            synced => synced.unwrap(),
        }
        if self.is_strict(ino) {
            self.note_commit(Some(ino));
        }
    }

    pub fn set_fileset(
        &mut self,
        pick: Pick,
        durability: Option<Durability>,
        placement: Option<Placement>,
    ) {
        let number = usize::from(pick) % 4;
        let name = ["/", "data", "work", "util"][number];
        self.fs().set_fileset(name, durability, placement).unwrap();
        if let Some(durability) = durability {
            let number = u16::try_from(number).unwrap();
            self.strict.insert(number, durability == Durability::Strict);
        }
        self.note_commit_of(Some(FilesetId::ROOT), None);
    }

    /// An orderly end and a new beginning.
    pub fn remount(&mut self) {
        for handle in std::mem::take(&mut self.handles) {
            handle.close();
        }
        let user = self.user.take().unwrap();
        // What the kernel still knows goes without a word.
        self.refs.clear();
        self.rig.close(user);
        self.tree.nodes.retain(|_, node| node.nlink > 0);
        self.note_all_synced();
        self.committed = self.tree.committed(|_| true);
        self.reopen();
        self.collect_garbage();
        self.verify();
    }

    fn reopen(&mut self) {
        assert_eq!(self.rig.kernel.registrations(), 0, "nothing is registered any more");
        self.user = Some(self.rig.open());
    }

    pub fn has_archive(&self) -> bool {
        self.rig.has_archive()
    }

    pub fn crash(&mut self, machine: Option<u64>) {
        self.handles.clear();
        self.cursors.clear();
        self.refs.clear();
        self.may_be_lost.clear();
        let user = self.user.take().unwrap();
        let machine = machine.filter(|_| !matches!(self.rig.disk, TestDisk::Directory(..)));
        match machine {
            Some(seed) => self.rig.crash_machine(user, seed),
            None => self.rig.crash_process(user),
        }
        self.reopen();
        self.tree = self.committed.clone();
        self.adopt_contents(None, machine.is_some());
        self.verify();
        self.fs().sweep().unwrap();
        self.fs().commit().unwrap();
        if self.rig.has_archive() {
            // It removes what the sweep found in the background.
            self.fs().objects().sync_disks().unwrap();
        }
        self.rig.assert_clean();
        self.committed = self.tree.committed(|_| true);
    }

    /// Takes the contents that the crash of a fileset, or of all, left, if they are among those that it may leave.
    pub fn adopt_contents(&mut self, fileset: Option<FilesetId>, machine: bool) {
        let crashed = |node: &Node| fileset.is_none_or(|fileset| node.fileset == fileset);
        let mut tree = self.tree.detached(crashed);
        for ino in self.tree.select(|node| node.content().is_some() && crashed(node)) {
            let node = self.tree.node(ino);
            let found = self.fs().contents(ino);
            let before = node.content().unwrap().borrow();
            let same = found == before.bytes;
            if machine {
                let kept = !before.synced || same || (found.is_empty() && !node.certain);
                assert!(kept, "inode {ino} lost what a sync had acknowledged");
            } else {
                let allowed = same || (found.is_empty() && !node.certain);
                assert!(allowed, "inode {ino} holds other bytes than its object did");
            }
            let content = tree.node(ino).content().unwrap();
            content.borrow_mut().synced = machine || (same && before.synced);
            content.borrow_mut().bytes = found;
            tree.node_mut(ino).modified = None;
        }
        self.tree = tree;
    }

    // --- checks ---

    /// Compares an inode with its node.
    pub fn check_node(&self, ino: Ino) {
        let node = self.tree.node(ino);
        let found = self.fs().attributes(ino).unwrap();
        let shown = (found.kind, found.mode, found.uid, found.gid, found.nlink, found.size);
        let expected = (node.kind, node.mode, node.uid, node.gid, node.nlink, node.size());
        assert_eq!(shown, expected, "attributes of inode {ino}");
        if let Some(modified) = node.modified {
            assert_eq!(found.modified, modified, "modification time of inode {ino}");
        }
    }

    pub fn check_all_attributes(&self) {
        self.tree.nodes.keys().for_each(|ino| self.check_node(*ino));
    }

    /// Compares everything that can be seen.
    pub fn verify(&mut self) {
        self.check_all_attributes();
        for ino in self.tree.directories() {
            self.check_listing(ino);
        }
        for (ino, node) in &self.tree.nodes {
            self.check_xattrs(*ino, node);
            if let Body::Symlink(target) = &node.body {
                assert_eq!(self.fs().read_link(*ino).unwrap(), *target);
            }
            if let Some(content) = node.content() {
                let handle = self.fs().open(*ino, READ);
                assert!(handle.contents() == content.borrow().bytes, "bytes of inode {ino}");
                handle.close();
            }
        }
    }

    fn check_xattrs(&self, ino: Ino, node: &Node) {
        let names: BTreeSet<Vec<u8>> = self
            .fs()
            .list_xattrs(ino)
            .unwrap()
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        assert_eq!(names, node.xattrs.keys().cloned().collect(), "attribute names of inode {ino}");
        for (name, value) in &node.xattrs {
            assert!(self.fs().xattr(ino, name).unwrap() == *value, "an attribute of inode {ino}");
        }
    }

    /// Compares a whole listing, and each entry by its name.
    pub fn check_listing(&self, ino: Ino) {
        let node = self.tree.node(ino);
        let mut found = BTreeMap::new();
        let mut dots = Vec::new();
        self.fs()
            .read_directory(ino, 0, &mut |item| {
                if item.name == b"." || item.name == b".." {
                    dots.push(item.ino);
                } else {
                    let twice = found.insert(item.name.clone(), (item.ino, item.kind));
                    assert!(twice.is_none(), "an entry of {ino} is listed twice");
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(dots, [ino, node.parent], "dots of directory {ino}");
        let kind_of = |ino: Ino| -> (Ino, Kind) { (ino, self.tree.node(ino).kind) };
        let entries = node.entries().unwrap();
        let expected = entries.iter().map(|(name, ino)| (name.clone(), kind_of(*ino))).collect();
        assert_eq!(found, expected, "listing of directory {ino}");
        for (name, child) in entries {
            let looked_up = self.fs().lookup(ino, name).unwrap();
            self.fs().forget(looked_up.ino, 1);
            assert_eq!(looked_up.ino, *child);
        }
    }

    /// Runs one operation after another, checking all the time.
    pub fn run(&mut self, ops: &[Op]) {
        for (number, op) in ops.iter().enumerate() {
            self.apply(op);
            self.collect_garbage();
            if number % 16 == 15 {
                self.check_all_attributes();
            }
        }
        self.verify();
        self.remount();
    }
}
