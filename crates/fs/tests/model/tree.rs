//! The reference: a tree of nodes in memory, with the rules of the file system in their plainest form.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_base::{FilesetId, Ino, Timestamp};
use forebay_fs::acl::{self, Acl};
use forebay_fs::record::Kind;
use forebay_fs::{FsError, New, Replace, SetAttributes, SetMode, SetTime, SetXattr};

use crate::support::USER;

/// What the file system refuses with, by name.
pub type Refused = &'static str;

/// The name of an error.
pub fn name_of(error: &FsError) -> Refused {
    match error {
        FsError::NotFound => "not found",
        FsError::Exists => "exists",
        FsError::NotDirectory => "not a directory",
        FsError::IsDirectory => "is a directory",
        FsError::NotEmpty => "not empty",
        FsError::CrossFileset => "across filesets",
        FsError::Invalid => "invalid",
        FsError::NotPermitted => "not permitted",
        FsError::Busy => "busy",
        FsError::NoAttribute => "no attribute",
        FsError::Stale => "stale",
        other => panic!("an error that is not expected at all: {other}"),
    }
}

/// Bytes that live in one object: a file that gets a fresh object gets another one of these.
#[derive(Debug, Default)]
pub struct Object {
    pub bytes: Vec<u8>,
    /// An acknowledged sync of a strict fileset covers all of it.
    pub synced: bool,
}

pub type Content = Rc<RefCell<Object>>;

#[derive(Clone, Debug)]
pub enum Body {
    File(Content),
    Directory(BTreeMap<Vec<u8>, Ino>),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub fileset: FilesetId,
    pub parent: Ino,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The time that was set last, unless the content changed since.
    pub modified: Option<Timestamp>,
    /// Made without a name, and never had one.
    pub unnamed: bool,
    /// In a committed tree: the record is known to hold the object.
    pub certain: bool,
    pub body: Body,
}

impl Node {
    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::File(content) => Some(content),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Ino>> {
        match &self.body {
            Body::Directory(entries) => Some(entries),
            Body::File(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.borrow().bytes.len() as u64,
            Body::Directory(entries) => entries.len() as u64,
            Body::Symlink(target) => target.len() as u64,
            Body::Special => 0,
        }
    }

    /// The content changes: no sync covers it, and a time that was set is overtaken.
    pub fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        self.modified = None;
        if let Body::File(content) = &self.body {
            let mut object = content.borrow_mut();
            object.synced = false;
            change(&mut object.bytes);
        }
    }
}

/// All nodes by number, also those without a name that are still in use.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub nodes: BTreeMap<Ino, Node>,
}

/// A place in the tree.
pub type Place<'a> = (Ino, &'a [u8]);

impl Tree {
    /// What mkfs makes.
    pub fn new() -> Tree {
        let mut tree = Tree::default();
        let directory = |fileset, mode, parent| Node {
            kind: Kind::Directory,
            mode,
            uid: 0,
            gid: 0,
            nlink: 2,
            fileset: FilesetId(fileset),
            parent,
            xattrs: BTreeMap::new(),
            modified: None,
            unnamed: false,
            certain: true,
            body: Body::Directory(BTreeMap::new()),
        };
        let mut root = directory(0, 0o755, Ino::ROOT);
        for (number, name, mode) in [(1, "data", 0o755), (2, "work", 0o1777), (3, "util", 0o1777)] {
            let ino = Ino::top_of(FilesetId(number));
            tree.nodes.insert(ino, directory(number, mode, Ino::ROOT));
            let Body::Directory(entries) = &mut root.body else { unreachable!() };
            entries.insert(name.into(), ino);
            root.nlink += 1;
        }
        tree.nodes.insert(Ino::ROOT, root);
        tree
    }

    /// Takes what a fileset holds in `other`.
    pub fn take_over(&mut self, other: Tree, fileset: FilesetId) {
        self.nodes.retain(|_, node| node.fileset != fileset);
        self.nodes.extend(other.nodes.into_iter().filter(|(_, node)| node.fileset == fileset));
    }

    pub fn node(&self, ino: Ino) -> &Node {
        &self.nodes[&ino]
    }

    pub fn node_mut(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    fn entries_mut(&mut self, ino: Ino) -> &mut BTreeMap<Vec<u8>, Ino> {
        let Body::Directory(entries) = &mut self.node_mut(ino).body else {
            panic!("{ino} is no directory")
        };
        entries
    }

    pub fn find(&self, (parent, name): Place<'_>) -> Result<Option<Ino>, Refused> {
        let entries = self.node(parent).entries().ok_or("not a directory")?;
        Ok(entries.get(name).copied())
    }

    /// Whether an inode can be made there.
    pub fn check_create(&self, place: Place<'_>) -> Result<(), Refused> {
        if self.node(place.0).nlink == 0 {
            return Err("not found");
        }
        match self.find(place)? {
            Some(_) => Err("exists"),
            None => Ok(()),
        }
    }

    /// The node that is made in `parent`, with `nlink` links.
    pub fn made(&self, parent: Ino, new: &New<'_>) -> Node {
        let above = self.node(parent);
        let is_directory = new.kind == Kind::Directory;
        let mut xattrs = BTreeMap::new();
        let default = above.xattrs.get(acl::DEFAULT).filter(|_| new.kind != Kind::Symlink);
        let mut mode = new.mode & !new.umask;
        if let Some(default) = default {
            let inherited = Acl::parse(default).unwrap().inherit(new.mode);
            mode = inherited.mode;
            if let Some(access) = inherited.access {
                xattrs.insert(acl::ACCESS.to_vec(), access.encode());
            }
            if is_directory {
                xattrs.insert(acl::DEFAULT.to_vec(), default.clone());
            }
        }
        let set_gid = above.mode & 0o2000 != 0;
        if new.kind == Kind::Symlink {
            mode = 0o777;
        } else if is_directory && set_gid {
            mode |= 0o2000;
        }
        Node {
            kind: new.kind,
            mode,
            uid: USER.uid,
            gid: if set_gid { above.gid } else { USER.gid },
            nlink: if is_directory { 2 } else { 1 },
            fileset: above.fileset,
            parent,
            xattrs,
            modified: None,
            unnamed: false,
            certain: false,
            body: match new.kind {
                Kind::File => Body::File(Content::default()),
                Kind::Directory => Body::Directory(BTreeMap::new()),
                Kind::Symlink => Body::Symlink(new.target.to_vec()),
                _ => Body::Special,
            },
        }
    }

    pub fn add(&mut self, (parent, name): Place<'_>, ino: Ino, node: Node) {
        if node.is_directory() {
            self.node_mut(parent).nlink += 1;
        }
        self.touch(parent);
        self.entries_mut(parent).insert(name.to_vec(), ino);
        assert!(self.nodes.insert(ino, node).is_none(), "inode {ino} was given out twice");
    }

    fn touch(&mut self, ino: Ino) {
        self.node_mut(ino).modified = None;
    }

    pub fn check_link(&self, ino: Ino, place: Place<'_>) -> Result<(), Refused> {
        let node = self.node(ino);
        if node.fileset != self.node(place.0).fileset {
            return Err("across filesets");
        }
        if self.find(place)?.is_some() {
            return Err("exists");
        }
        if node.is_directory() {
            return Err("not permitted");
        }
        if self.node(place.0).nlink == 0 || (node.nlink == 0 && !node.unnamed) {
            return Err("not found");
        }
        Ok(())
    }

    pub fn link(&mut self, ino: Ino, (parent, name): Place<'_>) {
        self.entries_mut(parent).insert(name.to_vec(), ino);
        self.touch(parent);
        self.node_mut(ino).nlink += 1;
        self.node_mut(ino).unnamed = false;
    }

    pub fn check_remove(&self, place: Place<'_>, directory: bool) -> Result<(), Refused> {
        let node = self.node(self.find(place)?.ok_or("not found")?);
        if node.fileset != self.node(place.0).fileset {
            return Err("busy");
        }
        match (directory, node.entries()) {
            (false, Some(_)) => Err("is a directory"),
            (true, None) => Err("not a directory"),
            (true, Some(entries)) if !entries.is_empty() => Err("not empty"),
            _ => Ok(()),
        }
    }

    pub fn remove(&mut self, (parent, name): Place<'_>) {
        let ino = self.entries_mut(parent).remove(name).unwrap();
        self.touch(parent);
        self.drop_link(parent, ino);
    }

    fn drop_link(&mut self, parent: Ino, ino: Ino) {
        let node = self.node_mut(ino);
        if node.is_directory() {
            node.nlink = 0;
            self.node_mut(parent).nlink -= 1;
        } else {
            node.nlink -= 1;
        }
    }

    fn is_below(&self, ino: Ino, above: Ino) -> bool {
        let mut at = ino;
        while at != Ino::ROOT {
            if at == above {
                return true;
            }
            let Some(node) = self.nodes.get(&at) else { return false };
            at = node.parent;
        }
        false
    }

    pub fn check_rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        replace: Replace,
    ) -> Result<(), Refused> {
        let source = self.find(from)?.ok_or("not found")?;
        let home = self.node(from.0).fileset;
        if self.node(source).fileset != home {
            return Err("busy");
        }
        if self.node(to.0).fileset != home {
            return Err("across filesets");
        }
        let target = self.find(to)?;
        if target.is_some_and(|target| self.node(target).fileset != home) {
            return Err(if replace == Replace::Refused { "exists" } else { "busy" });
        }
        if from.0 != to.0 {
            if self.is_below(to.0, source) {
                return Err("invalid");
            }
            if target.is_some_and(|ino| replace == Replace::Exchange && self.is_below(from.0, ino))
            {
                return Err("invalid");
            }
        }
        let (home, away) = (self.node(from.0), self.node(to.0));
        if away.nlink == 0 {
            return Err("not found");
        }
        let moved = self.node(source);
        if moved.fileset != home.fileset {
            return Err("busy");
        }
        let crosses = home.fileset != away.fileset;
        let Some(target) = target else {
            return match (replace, crosses) {
                (Replace::Exchange, _) => Err("not found"),
                (_, true) => Err("across filesets"),
                (_, false) => Ok(()),
            };
        };
        let replaced = self.node(target);
        match (moved.entries(), replaced.entries()) {
            _ if replace == Replace::Refused => Err("exists"),
            _ if replaced.fileset != away.fileset => Err("busy"),
            _ if crosses => Err("across filesets"),
            _ if replace == Replace::Exchange || source == target => Ok(()),
            (Some(_), None) => Err("not a directory"),
            (None, Some(_)) => Err("is a directory"),
            (Some(_), Some(entries)) if !entries.is_empty() => Err("not empty"),
            _ => Ok(()),
        }
    }

    pub fn rename(&mut self, from: Place<'_>, to: Place<'_>, replace: Replace) {
        let source = self.find(from).unwrap().unwrap();
        let target = self.find(to).unwrap();
        if target == Some(source) {
            return;
        }
        self.entries_mut(from.0).remove(from.1);
        if let (Some(target), true) = (target, replace == Replace::Exchange) {
            self.entries_mut(from.0).insert(from.1.to_vec(), target);
            self.reparent(target, to.0, from.0);
        } else if let Some(target) = target {
            self.drop_link(to.0, target);
        }
        self.entries_mut(to.0).insert(to.1.to_vec(), source);
        self.reparent(source, from.0, to.0);
        self.touch(from.0);
        self.touch(to.0);
    }

    fn reparent(&mut self, ino: Ino, old: Ino, new: Ino) {
        if self.node(ino).is_directory() {
            self.node_mut(old).nlink -= 1;
            self.node_mut(new).nlink += 1;
            self.node_mut(ino).parent = new;
        }
    }

    pub fn set_attributes(&mut self, ino: Ino, set: &SetAttributes) -> Result<(), Refused> {
        let node = self.node_mut(ino);
        if let Some(size) = set.size {
            match &node.body {
                Body::Directory(_) => return Err("is a directory"),
                Body::Symlink(_) | Body::Special => return Err("invalid"),
                Body::File(_) => {}
            }
            node.change(|bytes| bytes.resize(usize::try_from(size).unwrap(), 0));
        }
        if let Some(mode) = set.mode {
            node.mode = mode;
            if let Some(value) = node.xattrs.get_mut(acl::ACCESS) {
                let mut list = Acl::parse(value).unwrap();
                list.apply_mode(mode);
                *value = list.encode();
            }
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(SetTime::To(time)) = set.modified {
            node.modified = Some(time);
        }
        Ok(())
    }

    pub fn set_xattr(&mut self, ino: Ino, set: &SetXattr<'_>) -> Result<(), Refused> {
        let node = self.node_mut(ino);
        match (set.mode, node.xattrs.contains_key(set.name)) {
            (SetMode::Create, true) => return Err("exists"),
            (SetMode::Replace, false) => return Err("no attribute"),
            _ => {}
        }
        if set.name == acl::DEFAULT && !node.is_directory() {
            return Err("not permitted");
        }
        if set.name == acl::ACCESS {
            let list = Acl::parse(set.value).unwrap();
            node.mode = node.mode & !0o777 | list.mode_bits();
            if list.is_mode_only() {
                node.xattrs.remove(set.name);
                return Ok(());
            }
        }
        node.xattrs.insert(set.name.to_vec(), set.value.to_vec());
        Ok(())
    }

    /// The tree as a commit keeps it: without inodes that have no name. `is_certain` says of a file
    /// with bytes whether its record is known to hold the object.
    pub fn committed(&self, is_certain: impl Fn(Ino) -> bool) -> Tree {
        let mut nodes = self.nodes.clone();
        nodes.retain(|_, node| node.nlink > 0);
        for (ino, node) in &mut nodes {
            node.certain = node.size() > 0 && is_certain(*ino);
            node.unnamed = false;
        }
        Tree { nodes }
    }

    /// The same tree, in which some nodes have objects of their own.
    pub fn detached(&self, which: impl Fn(&Node) -> bool) -> Tree {
        let mut copy = self.clone();
        for node in copy.nodes.values_mut().filter(|node| which(node)) {
            if let Body::File(content) = &mut node.body {
                let bytes = content.borrow().bytes.clone();
                *content = Rc::new(RefCell::new(Object { bytes, synced: false }));
            }
        }
        copy
    }

    /// Directories by number, also removed ones.
    pub fn directories(&self) -> Vec<Ino> {
        self.select(Node::is_directory)
    }

    /// Nodes that fit, by number.
    pub fn select(&self, fits: impl Fn(&Node) -> bool) -> Vec<Ino> {
        self.nodes.iter().filter(|(_, node)| fits(node)).map(|(ino, _)| *ino).collect()
    }

    /// Names in a directory.
    pub fn names(&self, ino: Ino) -> BTreeSet<Vec<u8>> {
        self.node(ino).entries().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }
}
