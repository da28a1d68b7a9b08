//! A workload that goes on until the power is cut, and remembers what must be found afterwards.
//!
//! Each byte of a file follows from the file's number and its place, so that a byte of another file
//! shows wherever it turns up.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::seed::Dice;
use forebay_base::{FilesetId, Ino, ObjectId};
use forebay_disk::Sync;
use forebay_fs::quota::{LimitChange, QuotaChange, Subject};
use forebay_fs::record::Kind;
use forebay_fs::{Access, FsError, New, Replace, Result, SetAttributes};

use super::tree::Tree;
use crate::support::{Handle, READ_WRITE, ROOT, Rig, TRUNCATE, USER, User, file};

/// The byte that file `ino` holds at `offset`; never zero.
pub fn byte_of(ino: Ino, offset: u64) -> u8 {
    let mixed = Dice::of(ino.0 << 32 ^ offset).any();
    u8::try_from(mixed % 255).unwrap() + 1
}

fn bytes_of(ino: Ino, from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(|offset| byte_of(ino, offset)).collect()
}

pub struct Workload {
    user: Option<User>,
    dice: Dice,
    pub tree: Tree,
    /// Trees as they were committed last, and as a commit that was not acknowledged had them.
    pub acknowledged: Tree,
    pub attempted: Option<Tree>,
    /// Sizes up to which files were synced in a strict fileset and not cut since.
    pub synced: BTreeMap<Ino, u64>,
    /// Numbers that were given out.
    pub inos: BTreeSet<Ino>,
    pub objects: BTreeSet<ObjectId>,
    sizes: BTreeMap<Ino, u64>,
    pub longest: BTreeMap<Ino, u64>,
    handles: Vec<Handle>,
}

impl Workload {
    pub fn new(user: User, tree: Tree, seed: u64) -> Workload {
        Workload {
            user: Some(user),
            dice: Dice::of(seed),
            acknowledged: tree.clone(),
            tree,
            attempted: None,
            synced: BTreeMap::new(),
            inos: BTreeSet::new(),
            objects: BTreeSet::new(),
            sizes: BTreeMap::new(),
            longest: BTreeMap::new(),
            handles: Vec::new(),
        }
    }

    fn fs(&self) -> &User {
        self.user.as_ref().expect("the workload is at work")
    }

    /// Lets go of the file system, as a process does that dies.
    pub fn die(&mut self) -> User {
        self.handles.clear();
        self.user.take().expect("the workload is at work")
    }

    /// Runs `steps` steps, or until one is refused by the dead machine.
    pub fn run(&mut self, rig: &Rig, steps: usize) {
        for _ in 0..steps {
            let outcome = self.step();
            self.objects.extend(rig.objects());
            match outcome {
                Ok(()) => {}
                Err(FsError::Io(_)) => return,
                Err(error) => panic!("a step is refused: {error}"),
            }
        }
    }

    fn step(&mut self) -> Result<()> {
        match self.dice.index(31) {
            0..6 => self.make(Kind::File),
            6..8 => self.make(Kind::Directory),
            8..12 => self.grow(),
            12..14 => self.overwrite(),
            14 => self.cut(),
            15..19 => self.rename(),
            19..22 => self.unlink(),
            22 => self.remove_directory(),
            23 => self.link(),
            24..27 => self.sync(),
            27 => self.commit(None, |fs| fs.commit()),
            28 => self.sync_all(),
            30 => self.change_quota(),
            _ => {
                if self.handles.len() > 3 {
                    let handle = self.handles.remove(0);
                    self.fs().close_file(handle.ino, handle.access)?;
                }
                self.fs().drop_caches();
                Ok(())
            }
        }
    }

    // --- choosing ---

    fn directory(&mut self) -> Ino {
        let all = self.tree.select(|node| node.is_directory() && node.nlink > 0);
        // Not the root: what lies there belongs to no fileset that promises anything else.
        all[1 + self.dice.index(all.len() - 1)]
    }

    fn name(&mut self) -> Vec<u8> {
        format!("name-{}", self.dice.index(6)).into_bytes()
    }

    fn entry(&mut self) -> Option<(Ino, Vec<u8>, Ino)> {
        let parent = self.directory();
        let entries = self.tree.node(parent).entries().unwrap().clone();
        let at = self.dice.index(entries.len().max(1));
        entries.into_iter().nth(at).map(|(name, ino)| (parent, name, ino))
    }

    fn file(&mut self) -> Option<Ino> {
        let all = self.tree.select(|node| node.kind == Kind::File && node.nlink > 0);
        (!all.is_empty()).then(|| all[self.dice.index(all.len())])
    }

    // --- steps ---

    fn make(&mut self, kind: Kind) -> Result<()> {
        let (parent, name) = (self.directory(), self.name());
        if self.tree.check_create((parent, &name)).is_err() {
            return Ok(());
        }
        let new = New { kind, ..file(0o644) };
        let made = self.fs().create(parent, &name, new, USER)?;
        assert!(self.inos.insert(made.ino), "inode {} was given out twice", made.ino);
        let node = self.tree.made(parent, &new);
        self.tree.add((parent, &name), made.ino, node);
        if self.dice.index(4) > 0 {
            self.fs().forget(made.ino, 1);
        }
        if kind == Kind::File && self.dice.index(4) > 0 { self.write(made.ino) } else { Ok(()) }
    }

    fn write(&mut self, ino: Ino) -> Result<()> {
        let handle = self.fs().open_as(ino, READ_WRITE, ROOT)?;
        self.append(&handle)?;
        self.finish(handle)
    }

    fn append(&mut self, handle: &Handle) -> Result<()> {
        let ino = handle.ino;
        let kind = self.dice.index(3);
        let length = 1 + self.dice.index([100, 5000, 30_000][kind]) as u64;
        let size = self.sizes.get(&ino).copied().unwrap_or(0);
        let longest = self.longest.entry(ino).or_default();
        *longest = (*longest).max(size + length);
        handle.try_write(size, &bytes_of(ino, size, length))?;
        self.sizes.insert(ino, size + length);
        Ok(())
    }

    /// Closes a handle, now or later.
    fn finish(&mut self, handle: Handle) -> Result<()> {
        if self.dice.index(4) == 0 {
            self.handles.push(handle);
            return Ok(());
        }
        self.fs().close_file(handle.ino, handle.access)
    }

    fn grow(&mut self) -> Result<()> {
        match self.file() {
            Some(ino) => self.write(ino),
            None => Ok(()),
        }
    }

    fn overwrite(&mut self) -> Result<()> {
        let Some(ino) = self.file() else { return Ok(()) };
        self.synced.remove(&ino);
        let access = Access { truncate: true, ..TRUNCATE };
        let handle = self.fs().open_as(ino, access, ROOT)?;
        self.sizes.insert(ino, 0);
        self.append(&handle)?;
        self.finish(handle)
    }

    fn cut(&mut self) -> Result<()> {
        let Some(ino) = self.file() else { return Ok(()) };
        let size = self.sizes.get(&ino).copied().unwrap_or(0);
        let shorter = size.saturating_sub(self.dice.any() % 5000);
        self.synced.remove(&ino);
        let set = SetAttributes { size: Some(shorter), ..SetAttributes::default() };
        self.fs().set_attributes(ino, set)?;
        self.sizes.insert(ino, shorter);
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let Some((parent, name, _)) = self.entry() else { return Ok(()) };
        let (new_parent, new_name) = (self.directory(), self.name());
        let replace = [Replace::Allowed, Replace::Allowed, Replace::Exchange][self.dice.index(3)];
        let (from, to) = ((parent, &name[..]), (new_parent, &new_name[..]));
        if self.tree.check_rename(from, to, replace).is_err() {
            return Ok(());
        }
        if let (Ok(Some(replaced)), Replace::Allowed) = (self.tree.find(to), replace) {
            self.forget_if_last(replaced);
        }
        self.fs().rename(parent, &name, new_parent, &new_name, replace)?;
        self.tree.rename(from, to, replace);
        Ok(())
    }

    /// A file that loses its last name may be missing from now on.
    fn forget_if_last(&mut self, ino: Ino) {
        if self.tree.node(ino).nlink == 1 {
            self.synced.remove(&ino);
        }
    }

    fn unlink(&mut self) -> Result<()> {
        let Some((parent, name, ino)) = self.entry() else { return Ok(()) };
        if self.tree.check_remove((parent, &name), false).is_err() {
            return Ok(());
        }
        self.forget_if_last(ino);
        self.fs().unlink(parent, &name)?;
        self.tree.remove((parent, &name));
        Ok(())
    }

    fn remove_directory(&mut self) -> Result<()> {
        let Some((parent, name, _)) = self.entry() else { return Ok(()) };
        if self.tree.check_remove((parent, &name), true).is_err() {
            return Ok(());
        }
        self.fs().remove_directory(parent, &name)?;
        self.tree.remove((parent, &name));
        Ok(())
    }

    fn link(&mut self) -> Result<()> {
        let Some(ino) = self.file() else { return Ok(()) };
        let (parent, name) = (self.directory(), self.name());
        if self.tree.check_link(ino, (parent, &name)).is_err() {
            return Ok(());
        }
        self.fs().link(ino, parent, &name)?;
        self.fs().forget(ino, 1);
        self.tree.link(ino, (parent, &name));
        Ok(())
    }

    fn is_strict(&self, ino: Ino) -> bool {
        self.tree.node(ino).fileset.0 <= 1
    }

    /// Syncs a file that is written first, or a directory.
    fn sync(&mut self) -> Result<()> {
        if self.dice.index(3) == 0 {
            let ino = self.directory();
            return if self.is_strict(ino) {
                self.commit(Some(ino.fileset()), |fs| fs.sync_directory(ino))
            } else {
                self.fs().sync_directory(ino)
            };
        }
        let Some(ino) = self.file() else { return Ok(()) };
        let handle = self.fs().open_as(ino, READ_WRITE, ROOT)?;
        if self.dice.index(2) == 0 {
            self.append(&handle)?;
        }
        let what = [Sync::Data, Sync::All][self.dice.index(2)];
        if self.is_strict(ino) {
            match what {
                Sync::All => self.commit(Some(ino.fileset()), |fs| fs.sync_file(ino, what))?,
                Sync::Data => self.sync_data(ino)?,
            }
            self.synced.insert(ino, self.sizes.get(&ino).copied().unwrap_or(0));
        } else {
            self.fs().sync_file(ino, what)?;
        }
        self.finish(handle)
    }

    /// Commits a fileset, or all.
    fn commit(
        &mut self,
        fileset: Option<FilesetId>,
        commit: impl FnOnce(&User) -> Result<()>,
    ) -> Result<()> {
        self.attempted = Some(self.tree_with(fileset));
        commit(self.fs())?;
        self.acknowledged = self.attempted.take().unwrap();
        Ok(())
    }

    /// What is in the store once a fileset, or all, is committed.
    fn tree_with(&self, fileset: Option<FilesetId>) -> Tree {
        let now = self.tree.committed(|_| true);
        let Some(fileset) = fileset else { return now };
        let mut tree = self.acknowledged.clone();
        tree.take_over(now, fileset);
        tree
    }

    /// Syncs the bytes of a file: that commits what is pending if the file cannot be found without.
    fn sync_data(&mut self, ino: Ino) -> Result<()> {
        self.attempted = Some(self.tree_with(Some(ino.fileset())));
        self.fs().sync_file(ino, Sync::Data)?;
        let attempted = self.attempted.take().unwrap();
        let health = self.fs().commit_health_of(ino.fileset());
        if health.is_some_and(|health| health.pending == 0) {
            self.acknowledged = attempted;
        }
        let found = self.acknowledged.nodes.get(&ino).map(|node| node.nlink > 0);
        assert_eq!(found, Some(true), "inode {ino} was synced and is not committed");
        Ok(())
    }

    /// Sets a quota that is never reached, or removes it: fsck compares what is held with what there is.
    fn change_quota(&mut self) -> Result<()> {
        let number = self.dice.index(4);
        let name = ["/", "data", "work", "util"][number];
        let fileset = FilesetId(u16::try_from(number).unwrap());
        let subject = Subject::User([0, 1000][self.dice.index(2)]);
        let known = self.fs().quotas(Some(name))?;
        let change = QuotaChange { hard_bytes: LimitChange::To(1 << 50), ..Default::default() };
        let is_set = known.iter().any(|quota| quota.subject == subject);
        self.commit(Some(fileset), |fs| {
            if is_set {
                fs.remove_quota(name, subject)
            } else {
                fs.set_quota(name, subject, &change)
            }
        })
    }

    fn sync_all(&mut self) -> Result<()> {
        self.commit(None, |fs| fs.sync_all())?;
        for (ino, size) in &self.sizes {
            if self.tree.nodes.get(ino).is_some_and(|node| node.nlink > 0) {
                self.synced.insert(*ino, *size);
            }
        }
        Ok(())
    }
}
