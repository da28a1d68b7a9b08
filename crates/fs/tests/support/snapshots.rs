//! What tests of snapshots share: what a tree holds, and a fileset with snapshots beside what they must be.

use std::collections::BTreeMap;

use forebay_base::Ino;
use forebay_base::seed::Dice;
use forebay_fs::record::Kind;
use forebay_fs::{Replace, Result, SetAttributes};

use super::{Handle, READ_WRITE, ROOT, Shorthand as _, TRUNCATE, User, WRITE, file};

/// Paths with the bytes of files; `None` for directories.
pub type Tree = BTreeMap<String, Option<Vec<u8>>>;

fn gather(fs: &User, ino: Ino, above: &str, tree: &mut Tree) {
    for item in fs.items(ino) {
        let name = String::from_utf8(item.name).unwrap();
        if name == "." || name == ".." {
            continue;
        }
        let path = format!("{above}/{name}");
        match item.kind {
            Kind::Directory => {
                tree.insert(path.clone(), None);
                gather(fs, item.ino, &path, tree);
            }
            Kind::File => drop(tree.insert(path, Some(fs.contents(item.ino)))),
            _ => {}
        }
    }
}

pub fn tree_of(fs: &User, ino: Ino) -> Tree {
    let mut tree = Tree::new();
    gather(fs, ino, "", &mut tree);
    tree
}

pub fn list(fs: &User) -> Ino {
    fs.find(fs.fileset("data"), ".snapshots").expect("the list of snapshots is there")
}

pub fn snapshot(fs: &User, name: &str) -> Option<Ino> {
    fs.find(list(fs), name)
}

pub fn seen(fs: &User, name: &str) -> Tree {
    tree_of(fs, snapshot(fs, name).expect("the snapshot is there"))
}

pub fn take(fs: &User, name: &str) {
    fs.at_owner().create_snapshot("data", name).unwrap();
}

/// A fileset and its snapshots beside what they must be.
pub struct World {
    pub fs: Option<User>,
    pub dice: Dice,
    pub handles: Vec<Handle>,
    /// Snapshots that were made, with what they hold.
    pub made: BTreeMap<String, Tree>,
    /// One that was being made or deleted when the power went, with what it holds.
    pub open_question: Option<(String, Tree)>,
    pub next: u32,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

impl World {
    /// A file system without snapshots.
    pub fn of(fs: User, seed: u64) -> World {
        World {
            fs: Some(fs),
            dice: Dice::of(seed),
            handles: Vec::new(),
            made: BTreeMap::new(),
            open_question: None,
            next: 0,
        }
    }

    pub fn fs(&self) -> &User {
        self.fs.as_ref().expect("the file system is open")
    }

    /// Does something at random; an error says that the power is off.
    pub fn step(&mut self) -> Result<()> {
        let fs = self.fs().clone();
        let data = fs.fileset("data");
        let name = NAMES[self.dice.index(NAMES.len())];
        let bytes: Vec<u8> =
            (0..=self.dice.index(40)).map(|_| self.dice.index(256) as u8).collect();
        let at = self.dice.index(30) as u64;
        match (self.dice.index(12), fs.find(data, name)) {
            (0..=2, None) => drop(fs.create(data, name.as_bytes(), file(0o644), ROOT)?),
            (0..=2, Some(ino)) | (3, Some(ino)) => {
                let handle = fs.open_as(ino, WRITE, ROOT)?;
                let written = handle.try_write(at, &bytes);
                handle.close();
                written?;
            }
            (4, Some(ino)) => {
                let handle = fs.open_as(ino, TRUNCATE, ROOT)?;
                let written = handle.try_write(0, &bytes);
                handle.close();
                written?;
            }
            (5, Some(_)) => fs.unlink(data, name.as_bytes())?,
            (6, Some(_)) => {
                let other = NAMES[self.dice.index(NAMES.len())];
                fs.rename(data, name.as_bytes(), data, other.as_bytes(), Replace::Allowed)?;
            }
            (7, Some(ino)) if self.handles.len() < 4 => {
                self.handles.push(fs.open_as(ino, READ_WRITE, ROOT)?);
            }
            (8, _) if !self.handles.is_empty() => {
                let chosen = self.dice.index(self.handles.len());
                if self.dice.index(2) == 0 {
                    self.handles.swap_remove(chosen).close();
                } else {
                    self.handles[chosen].try_write(at, &bytes)?;
                }
            }
            (9, Some(ino)) => {
                let size = Some(at);
                fs.set_attributes(ino, SetAttributes { size, ..Default::default() })?;
            }
            (10, _) => self.make_or_delete(&fs)?,
            _ => fs.commit()?,
        }
        Ok(())
    }

    pub fn make_or_delete(&mut self, fs: &User) -> Result<()> {
        let names: Vec<String> = self.made.keys().cloned().collect();
        if names.len() >= 3 || (!names.is_empty() && self.dice.index(3) == 0) {
            let name = names[self.dice.index(names.len())].clone();
            let tree = self.made.remove(&name).unwrap();
            self.open_question = Some((name.clone(), tree));
            fs.delete_snapshot("data", &name)?;
        } else {
            self.next += 1;
            let name = format!("snapshot-{}", self.next);
            let tree = tree_of(fs, fs.fileset("data"));
            self.open_question = Some((name.clone(), tree.clone()));
            fs.create_snapshot("data", &name)?;
            self.made.insert(name, tree);
        }
        self.open_question = None;
        Ok(())
    }

    pub fn check(&self) {
        let fs = self.fs();
        for (name, tree) in &self.made {
            assert_eq!(&seen(fs, name), tree, "{name}");
        }
    }

    /// After a crash: what was being made or deleted is there as a whole, or not at all.
    pub fn settle(&mut self) {
        self.fs().sweep().unwrap();
        if let Some((name, tree)) = self.open_question.take()
            && snapshot(self.fs(), &name).is_some()
        {
            self.made.insert(name, tree);
        }
        self.check();
        assert_eq!(self.fs().names(list(self.fs())), self.made.keys().cloned().collect::<Vec<_>>());
    }
}
