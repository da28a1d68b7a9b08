//! What each operation does to the file system and to its reference.

use std::ops::ControlFlow;

use forebay_base::Ino;
use forebay_disk::{Allocate, Seek};
use forebay_fs::record::Kind;
use forebay_fs::{Access, FsError, New, SetAttributes, SetMode, SetTime, SetXattr, acl};

use super::op::{Op, Pick};
use super::tree::{Body, Content, Refused};
use super::world::{Cursor, World};
use crate::support::{READ_WRITE, USER, file};

/// Names of extended attributes that the operations use.
const XATTRS: [&[u8]; 5] = [b"user.a", b"user.b", b"trusted.long", acl::ACCESS, acl::DEFAULT];

/// A list in the encoding of Linux, made from a few numbers.
fn list(choice: u8) -> Vec<u8> {
    let bits = u16::from(choice);
    let mut entries = vec![(0x01_u16, bits & 7, u32::MAX)];
    if choice & 0x80 != 0 {
        entries.push((0x02, bits >> 1 & 7, 1000));
    }
    entries.push((0x04, bits >> 2 & 7, u32::MAX));
    if choice & 0x80 != 0 {
        entries.push((0x10, bits >> 3 & 7, u32::MAX));
    }
    entries.push((0x20, bits >> 4 & 7, u32::MAX));
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permission.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

fn grow(bytes: &mut Vec<u8>, end: usize) {
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
}

impl World<'_> {
    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Create { parent, name, kind, mode, keep } => {
                self.create(parent, name, kind, mode, keep);
            }
            Op::CreateUnnamed { parent } => self.create_unnamed(parent),
            Op::Link { node, parent, name } => self.link(node, parent, name),
            Op::Unlink { parent, name } => self.remove(parent, name, false),
            Op::RemoveDirectory { parent, name } => self.remove(parent, name, true),
            Op::Rename { .. } => self.rename(op),
            Op::Lookup { parent, name } => self.lookup(parent, name),
            Op::Forget { node } => self.forget_all(self.any_node(node)),
            Op::List { parent } => self.list(parent),
            Op::ListOn { cursor, entries } => self.list_on(cursor, entries),
            Op::SetMode { .. }
            | Op::SetOwner { .. }
            | Op::SetSize { .. }
            | Op::SetModified { .. } => self.set_attributes(op),
            Op::SetXattr { node, name, length, mode } => self.set_xattr(node, name, length, mode),
            Op::RemoveXattr { node, name } => self.remove_xattr(node, name),
            Op::Open { .. }
            | Op::Close { .. }
            | Op::Write { .. }
            | Op::Read { .. }
            | Op::Allocate { .. }
            | Op::Copy { .. }
            | Op::Seek { .. } => self.apply_to_bytes(op),
            _ => self.apply_to_all(op),
        }
        // A recall is not committed by itself: until it is, a kill of the process takes back what was written since.
        let may_recall = matches!(
            op,
            Op::SetSize { .. } | Op::Open { write: true, .. } | Op::Open { truncate: true, .. }
        );
        if may_recall && self.has_archive() {
            self.commit();
        }
    }

    fn apply_to_bytes(&mut self, op: &Op) {
        match *op {
            Op::Open { node, read, write, truncate } => {
                self.open(
                    node,
                    Access { read: read || !write, write, truncate, ..Access::default() },
                );
            }
            Op::Close { handle } => self.close(handle),
            Op::Write { handle, offset, length, byte } => self.write(handle, offset, length, byte),
            Op::Read { handle } => {
                if let Some(handle) = self.handle(handle) {
                    let content = self.content(handle.ino);
                    assert!(handle.contents() == content.borrow().bytes, "bytes of an open file");
                }
            }
            Op::Allocate { handle, what, offset, length } => {
                self.allocate(handle, what, offset, length);
            }
            Op::Copy { .. } => self.copy(op),
            Op::Seek { handle, offset } => self.seek(handle, offset),
            _ => unreachable!("not about bytes: {op:?}"),
        }
    }

    fn apply_to_all(&mut self, op: &Op) {
        match *op {
            Op::Sync { handle, what } => {
                if let Some(ino) = self.handle(handle).map(|handle| handle.ino) {
                    self.sync(ino, what);
                }
            }
            Op::SyncDirectory { parent } => self.sync_directory(self.directory(parent)),
            Op::SyncAll => self.sync_all(),
            Op::Commit => self.commit(),
            Op::AfterRequest => self.fs().after_request(),
            Op::DropCaches => self.fs().drop_caches(),
            Op::Rest => self.rest(),
            Op::Archive { node } => {
                self.care_for_copies(node);
                self.archive(node);
            }
            Op::Recall { node } => self.recall(node),
            Op::CrashFileset { fileset } => self.crash_fileset(fileset),
            Op::SetFileset { fileset, durability, placement } => {
                self.set_fileset(fileset, durability, placement);
            }
            Op::SetQuota { fileset, user } => self.change_quota(fileset, user),
            Op::Verify => self.verify(),
            Op::Remount => self.remount(),
            Op::CrashProcess { close } => {
                self.crash(None);
                if close {
                    self.remount();
                }
            }
            Op::CrashMachine { seed } => self.crash(Some(seed)),
            _ => unreachable!("not about everything: {op:?}"),
        }
    }

    // --- names ---

    fn new_of(kind: Kind, mode: u16) -> New<'static> {
        let target: &[u8] = if kind == Kind::Symlink { b"target" } else { b"" };
        New { kind, target, ..file(mode) }
    }

    fn create(&mut self, parent: Pick, name: Pick, kind: Kind, mode: u16, keep: bool) {
        let (parent, name) = (self.directory(parent), World::name(name));
        let new = World::new_of(kind, mode);
        let expected = self.tree.check_create((parent, name));
        let mut handle = None;
        // As open(2) with O_CREAT makes it.
        let made = if kind == Kind::File && keep && self.can_open() {
            let made = self.fs().create_file_as(parent, name, new, READ_WRITE, USER);
            made.map(|(made, opened)| {
                handle = Some(opened);
                made
            })
        } else {
            self.fs().create(parent, name, new, USER)
        };
        let Some(made) = World::agree("create", made, &expected) else { return };
        self.handles.extend(handle);
        let node = self.tree.made(parent, &new);
        self.tree.add((parent, name), made.ino, node);
        self.remember(made.ino);
        self.check_node(made.ino);
        self.check_node(parent);
        if !keep {
            self.forget_all(made.ino);
        }
    }

    fn create_unnamed(&mut self, parent: Pick) {
        let parent = self.directory(parent);
        let expected: Result<(), Refused> =
            if self.tree.node(parent).nlink == 0 { Err("not found") } else { Ok(()) };
        let made = self.fs().create_unnamed(parent, file(0o600), USER);
        let Some(made) = World::agree("create", made, &expected) else { return };
        let mut node = self.tree.made(parent, &file(0o600));
        node.nlink = 0;
        node.unnamed = true;
        assert!(self.tree.nodes.insert(made.ino, node).is_none(), "a number is given out twice");
        self.remember(made.ino);
    }

    fn link(&mut self, node: Pick, parent: Pick, name: Pick) {
        let (ino, parent, name) = (self.any_node(node), self.directory(parent), World::name(name));
        let expected = if ino == parent {
            Err("not permitted")
        } else {
            self.tree.check_link(ino, (parent, name))
        };
        let linked = self.fs().link(ino, parent, name);
        if World::agree("link", linked, &expected).is_some() {
            self.tree.link(ino, (parent, name));
            self.fs().forget(ino, 1);
            self.check_node(ino);
        }
    }

    fn remove(&mut self, parent: Pick, name: Pick, directory: bool) {
        let (parent, name) = (self.directory(parent), World::name(name));
        let expected = self.tree.check_remove((parent, name), directory);
        let removed = if directory {
            self.fs().remove_directory(parent, name)
        } else {
            self.fs().unlink(parent, name)
        };
        if World::agree("remove", removed, &expected).is_some() {
            self.tree.remove((parent, name));
            self.check_node(parent);
        }
    }

    fn rename(&mut self, op: &Op) {
        let Op::Rename { parent, name, new_parent, new_name, replace } = *op else { return };
        let from = (self.directory(parent), World::name(name));
        let to = (self.directory(new_parent), World::name(new_name));
        let expected = self.tree.check_rename(from, to, replace);
        let renamed = self.fs().rename(from.0, from.1, to.0, to.1, replace);
        if World::agree("rename", renamed, &expected).is_some() {
            self.tree.rename(from, to, replace);
            self.check_node(from.0);
            self.check_node(to.0);
        }
    }

    fn lookup(&mut self, parent: Pick, name: Pick) {
        let (parent, name) = (self.directory(parent), World::name(name));
        let found = self.tree.find((parent, name)).unwrap();
        let expected = found.map(|_| ()).ok_or("not found");
        let looked_up = self.fs().lookup(parent, name);
        if let Some(attributes) = World::agree("lookup", looked_up, &expected) {
            assert_eq!(Some(attributes.ino), found);
            self.remember(attributes.ino);
        }
    }

    fn list(&mut self, parent: Pick) {
        let ino = self.directory(parent);
        self.check_listing(ino);
        if self.can_list() {
            let stable = self.tree.names(ino);
            self.cursors.push(Cursor { ino, offset: 0, seen: Vec::new(), stable });
        }
    }

    fn list_on(&mut self, pick: Pick, entries: u8) {
        if self.cursors.is_empty() {
            return;
        }
        let at = usize::from(pick) % self.cursors.len();
        let mut cursor = self.cursors.swap_remove(at);
        let mut left = entries;
        let mut finished = true;
        self.fs()
            .read_directory(cursor.ino, cursor.offset, &mut |item| {
                if left == 0 {
                    finished = false;
                    return ControlFlow::Break(());
                }
                left -= 1;
                cursor.offset = item.next_offset;
                cursor.seen.push(item.name.clone());
                ControlFlow::Continue(())
            })
            .unwrap();
        if !finished {
            self.cursors.push(cursor);
            return;
        }
        for name in &cursor.stable {
            let times = cursor.seen.iter().filter(|seen| *seen == name).count();
            assert_eq!(times, 1, "an entry that was always there is listed once");
        }
    }

    // --- attributes ---

    fn set_attributes(&mut self, op: &Op) {
        let nothing = SetAttributes::default();
        let (node, set) = match *op {
            Op::SetMode { node, mode } => (node, SetAttributes { mode: Some(mode), ..nothing }),
            Op::SetOwner { node, uid, gid } => {
                (node, SetAttributes { uid: Some(uid), gid: Some(gid), ..nothing })
            }
            Op::SetSize { node, size } => {
                (node, SetAttributes { size: Some(u64::from(size)), ..nothing })
            }
            Op::SetModified { node, time } => {
                (node, SetAttributes { modified: Some(SetTime::To(time)), ..nothing })
            }
            _ => unreachable!("not about attributes: {op:?}"),
        };
        let ino = self.any_node(node);
        let changed = self.fs().set_attributes(ino, set);
        let expected = self.tree.set_attributes(ino, &set);
        World::agree("set attributes", changed, &expected);
        self.check_node(ino);
    }

    fn set_xattr(&mut self, node: Pick, name: Pick, length: u8, mode: SetMode) {
        let ino = self.any_node(node);
        let name = XATTRS[usize::from(name) % XATTRS.len()];
        if self.tree.node(ino).kind == Kind::Symlink {
            return;
        }
        let value = match name {
            acl::ACCESS | acl::DEFAULT => list(length),
            b"trusted.long" => vec![length; usize::from(length) * 100],
            _ => vec![length; usize::from(length)],
        };
        let set = SetXattr { name, value: &value, mode, kill_set_gid: false };
        let done = self.fs().set_xattr(ino, set);
        let expected = self.tree.set_xattr(ino, &set);
        World::agree("set an attribute", done, &expected);
        self.check_node(ino);
    }

    fn remove_xattr(&mut self, node: Pick, name: Pick) {
        let ino = self.any_node(node);
        let name = XATTRS[usize::from(name) % XATTRS.len()];
        let removed = self.tree.node_mut(ino).xattrs.remove(name);
        let expected = removed.map(|_| ()).ok_or("no attribute");
        World::agree("remove an attribute", self.fs().remove_xattr(ino, name), &expected);
    }

    // --- bytes ---

    fn content(&self, ino: Ino) -> Content {
        self.tree.node(ino).content().expect("only files are open").clone()
    }

    fn open(&mut self, node: Pick, access: Access) {
        let files = self.tree.select(|node| node.kind == Kind::File);
        let Some(ino) = World::choose(node, &files).filter(|_| self.can_open()) else { return };
        // Those who read it in an archive keep nothing of its former content.
        let is_open = self.handles.iter().any(|handle| handle.ino == ino) && !self.is_archived(ino);
        let handle = self.fs().open(ino, access);
        if access.truncate {
            let node = self.tree.node_mut(ino);
            if is_open {
                node.change(Vec::clear);
            } else {
                node.modified = None;
                node.body = Body::File(Content::default());
            }
            self.check_node(ino);
        }
        self.handles.push(handle);
    }

    fn close(&mut self, pick: Pick) {
        if !self.handles.is_empty() {
            let at = usize::from(pick) % self.handles.len();
            self.handles.swap_remove(at).close();
        }
    }

    /// A handle that can write.
    fn writer(&self, pick: Pick) -> Option<&crate::support::Handle> {
        self.handle(pick).filter(|handle| handle.access.write)
    }

    fn write(&mut self, pick: Pick, offset: u16, length: u16, byte: u8) {
        let Some(handle) = self.writer(pick).filter(|_| length > 0) else { return };
        let ino = handle.ino;
        handle.write(u64::from(offset), &vec![byte; usize::from(length)]);
        self.tree.node_mut(ino).change(|bytes| {
            let (from, to) = (usize::from(offset), usize::from(offset) + usize::from(length));
            grow(bytes, to);
            bytes[from..to].fill(byte);
        });
    }

    fn allocate(&mut self, pick: Pick, what: Allocate, offset: u16, length: u16) {
        let Some(ino) = self.writer(pick).map(|handle| handle.ino) else { return };
        match self.fs().allocate(ino, what, u64::from(offset), u64::from(length)) {
            // Not every file system under a disk can do everything.
            Err(FsError::Unsupported) => return,
            done => done.unwrap(),
        }
        self.tree.node_mut(ino).change(|bytes| {
            let (from, to) = (usize::from(offset), usize::from(offset) + usize::from(length));
            if matches!(what, Allocate::Extend | Allocate::ZeroRange) {
                grow(bytes, to);
            }
            let end = to.min(bytes.len());
            if !matches!(what, Allocate::Extend | Allocate::KeepSize) && from < end {
                bytes[from..end].fill(0);
            }
        });
        self.check_node(ino);
    }

    fn copy(&mut self, op: &Op) {
        let Op::Copy { from, to, offset, to_offset, length } = *op else { return };
        let Some(source) = self.handle(from).filter(|handle| handle.access.read) else { return };
        let Some(target) = self.writer(to) else { return };
        let (source, target) = (source.ino, target.ino);
        let bytes = self.content(source).borrow().bytes.clone();
        let (from, to) = (usize::from(offset), usize::from(to_offset));
        let length = usize::from(length).min(bytes.len().saturating_sub(from));
        let expected =
            if source == target && from.abs_diff(to) < length { Err("invalid") } else { Ok(()) };
        let is_read_in_archive = self.is_archived(source);
        let copied = self.fs().copy_range(
            (source, u64::from(offset)),
            (target, u64::from(to_offset)),
            length as u64,
        );
        let is_of_others = self.fs().owner.is_some() && source.fileset() != target.fileset();
        if is_of_others || is_read_in_archive {
            // Between two filesets of another node, and from an archive, the kernel copies through memory.
            assert!(matches!(copied, Err(forebay_fs::FsError::CrossFileset)));
            return;
        }
        let Some(copied) = World::agree("copy", copied, &expected) else { return };
        assert_eq!(copied, length as u64);
        self.tree.node_mut(target).change(|target| {
            if length > 0 {
                grow(target, to + length);
                target[to..to + length].copy_from_slice(&bytes[from..from + length]);
            }
        });
        self.check_node(target);
    }

    fn seek(&mut self, pick: Pick, offset: u16) {
        let Some(ino) = self.handle(pick).map(|handle| handle.ino) else { return };
        let content = self.content(ino);
        let bytes = &content.borrow().bytes;
        let from = usize::from(offset);
        match self.fs().seek(ino, Seek::Data, u64::from(offset)) {
            Ok(data) => {
                let data = usize::try_from(data).unwrap();
                assert!(from <= data && data < bytes.len());
                assert!(bytes[from..data].iter().all(|byte| *byte == 0), "a hole holds no data");
            }
            Err(FsError::NoSuchOffset) => {
                assert!(bytes.iter().skip(from).all(|byte| *byte == 0), "there is data");
            }
            Err(error) => panic!("seek: {error}"),
        }
        match self.fs().seek(ino, Seek::Hole, u64::from(offset)) {
            Ok(hole) => assert!((from as u64..=bytes.len() as u64).contains(&hole)),
            Err(FsError::NoSuchOffset) => assert!(from >= bytes.len(), "the end is a hole"),
            Err(error) => panic!("seek: {error}"),
        }
    }
}
