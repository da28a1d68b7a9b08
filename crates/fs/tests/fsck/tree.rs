//! A file system with some of everything, and ways to reach into its store.

use std::collections::BTreeMap;

use forebay_base::{FilesetId, Ino, ObjectId};
use forebay_fs::fsck::{Damage, Repair, Report};
use forebay_fs::key;
use forebay_fs::record::{EntryRecord, InodeRecord, Kind, Record, Superblock, decode, encode};
use forebay_fs::{New, SetMode, SetXattr};
use forebay_store::{Batch, Store};

use crate::support::whole::{PartOfStore, WholeStores};
use crate::support::{self, ROOT, Rig, Shorthand as _, User};

/// The fileset that has most of it.
pub const DATA: FilesetId = FilesetId(1);

/// Numbers of what [`Tree::make`] makes.
pub struct Tree {
    pub rig: Rig,
    pub data: Ino,
    pub work: Ino,
    pub a: Ino,
    pub b: Ino,
    pub file: Ino,
    pub twin: Ino,
    pub linked: Ino,
    pub symlink: Ino,
    pub listed: Ino,
}

pub fn contents(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(3000 + name.len()).collect()
}

pub fn add_file(fs: &User, parent: Ino, name: &str) -> Ino {
    let ino = fs.make_file(parent, name);
    fs.write_file(ino, 0, &contents(name));
    ino
}

fn access_list() -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permission, id) in [
        (1_u16, 6_u16, u32::MAX),
        (2, 4, 1000),
        (4, 4, u32::MAX),
        (16, 6, u32::MAX),
        (32, 4, u32::MAX),
    ] {
        value.extend(tag.to_le_bytes());
        value.extend(permission.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

impl Tree {
    /// A closed file system with some of everything.
    pub fn make() -> Tree {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let (data, work) = (fs.fileset("data"), fs.fileset("work"));
        let a = fs.make_directory(data, "a");
        let b = fs.make_directory(a, "b");
        let file = add_file(&fs, b, "file");
        let twin = add_file(&fs, b, "twin");
        let linked = add_file(&fs, a, "linked");
        fs.link(linked, b, b"link").unwrap();
        let new = New { kind: Kind::Symlink, target: b"a/b/file", ..support::file(0o777) };
        let symlink = fs.create(data, b"symlink", new, ROOT).unwrap().ino;
        fs.create(data, b"pipe", New { kind: Kind::Fifo, ..support::file(0o600) }, ROOT).unwrap();
        let listed = add_file(&fs, work, "listed");
        let list = access_list();
        for (name, value) in [
            (&b"user.one"[..], &b"1"[..]),
            (b"user.two", b"2"),
            (b"system.posix_acl_access", &list),
        ] {
            let set = SetXattr { name, value, mode: SetMode::Any, kill_set_gid: false };
            fs.set_xattr(listed, set).unwrap();
        }
        for number in 0..20 {
            add_file(&fs, work, &format!("many-{number}"));
        }
        rig.close(fs);
        Tree { rig, data, work, a, b, file, twin, linked, symlink, listed }
    }

    pub fn check(&self, repair: Repair) -> Report {
        self.rig.fsck(repair, false)
    }

    /// The store in which a key lies: that of `data`, unless the key says that it is another one's.
    pub fn store_of(&self, key: &[u8]) -> PartOfStore {
        let told = WholeStores::fileset_of(key).filter(|id| id.0 < 4);
        self.rig.store_of(told.unwrap_or(DATA))
    }

    pub fn set(&self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let store = self.store_of(&key);
        store.commit(&Batch { requires: vec![], changes: [(key, value)].into() }).unwrap();
    }

    /// Sets a key as [`Tree::rows`] has it.
    pub fn set_row(&self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let batch = Batch { requires: vec![], changes: [(key, value)].into() };
        self.rig.store.commit(&batch).unwrap();
    }

    pub fn get(&self, key: &[u8]) -> Vec<u8> {
        self.store_of(key).get(key).unwrap().expect("the key is there")
    }

    pub fn change<T: Record>(&self, key: Vec<u8>, change: impl FnOnce(&mut T)) {
        let mut record = decode::<T>("record", &self.get(&key)).unwrap();
        change(&mut record);
        self.set(key, Some(encode(&record)));
    }

    pub fn change_inode(&self, ino: Ino, change: impl FnOnce(&mut InodeRecord)) {
        self.change(key::inode(ino), change);
    }

    pub fn change_superblock(&self, change: impl FnOnce(&mut Superblock)) {
        self.change(key::SUPERBLOCK.to_vec(), change);
    }

    /// Key and record of an entry.
    pub fn entry(&self, parent: Ino, name: &str) -> (Vec<u8>, EntryRecord) {
        let (from, to) = key::entries(parent, 0, u64::MAX);
        let rows = self.rig.store_of(parent.fileset()).scan(&from, &to, usize::MAX).unwrap();
        rows.into_iter()
            .map(|(key, value)| (key, decode::<EntryRecord>("entry", &value).unwrap()))
            .find(|(_, entry)| entry.name == name.as_bytes())
            .expect("the entry is there")
    }

    pub fn change_entry(&self, parent: Ino, name: &str, change: impl FnOnce(&mut EntryRecord)) {
        self.change(self.entry(parent, name).0, change);
    }

    pub fn remove_entry(&self, parent: Ino, name: &str) {
        self.set(self.entry(parent, name).0, None);
    }

    /// Everything in all stores: each key begins with the number of its fileset.
    pub fn rows(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.rig.store.scan(b"", &[0xff; 64], usize::MAX).unwrap().into_iter().collect()
    }

    /// Puts an object on the disk that no record knows of.
    pub fn add_object(&self, id: ObjectId, data: &[u8]) {
        let disk = self.rig.disk.as_disk();
        let object = disk.create(id).unwrap();
        object.write_at(0, data).unwrap();
        disk.publish(id, &*object).unwrap();
    }

    /// Every path with what it holds, as the file system has it.
    pub fn listing(&self) -> BTreeMap<String, Vec<u8>> {
        let fs = self.rig.open();
        let found = listing_of(&fs);
        fs.fs.close().unwrap();
        found
    }
}

/// Every path of a mounted file system with what it holds.
pub fn listing_of(fs: &User) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    list(fs, Ino::ROOT, "", &mut found);
    found
}

fn list(fs: &User, ino: Ino, path: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for item in fs.items(ino).iter().filter(|item| item.name != b"." && item.name != b"..") {
        let child = fs.lookup(ino, &item.name).expect("what is listed is there").ino;
        let path = format!("{path}/{}", item.name.escape_ascii());
        let contents = match fs.attributes(child).unwrap().kind {
            Kind::Directory => {
                list(fs, child, &path, found);
                Vec::new()
            }
            Kind::File => fs.contents(child),
            Kind::Symlink => fs.read_link(child).unwrap(),
            _ => Vec::new(),
        };
        found.insert(path, contents);
    }
}

pub fn damages_of(report: &Report) -> Vec<Damage> {
    report.findings.iter().map(|finding| finding.damage).collect()
}
