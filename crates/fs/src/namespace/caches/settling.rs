//! What a round of a single-writer cache does to names and attributes at home, change by change, and what it finds there of others
//! (docs/adr/0105). Each step finds done what was done before a crash.

use forebay_base::Ino;

use super::write_back::{Round, Step, staged_name};
use crate::caching::queue::{Change, ConflictRecord, Place};
use crate::caching::writing::{Name, There};
use crate::error::{FsError, Result};
use crate::record::Kind;

/// Whether what lies at home is of a kind, and, if it is a file, one of those that a place knows.
fn is_known(there: &There, place: &Place) -> bool {
    match there {
        There::File(print) => place.kind == Kind::File && place.knows(*print),
        There::Directory => place.kind == Kind::Directory,
        There::Symlink(_) => place.kind == Kind::Symlink,
        There::Other => false,
    }
}

impl Round<'_> {
    // --- names and attributes at home ---

    pub(super) fn settle(&self, step: &Step) -> Result<()> {
        match &step.taken.change {
            Change::Make { ino, parent, name, kind } => {
                self.make(step, *ino, (*parent, name), *kind)
            }
            Change::Bytes(ino) => self.write(step, *ino),
            Change::Attributes(ino) => self.set_attributes(step, *ino),
            Change::Rename { ino, parent, name, replaced, .. } => {
                self.rename(*ino, (*parent, name), *replaced)
            }
            Change::Remove { ino, .. } => self.remove(*ino),
        }
    }

    fn make(&self, step: &Step, ino: Ino, (parent, name): (Ino, &[u8]), kind: Kind) -> Result<()> {
        let is_left = step.leaving.as_ref().is_some_and(|it| !it.is_unfetched);
        if step.is_unreadable {
            return self.say((b"", name), "its bytes cannot be read here: it is not written", None);
        }
        if !is_left && kind != Kind::Directory {
            // It was removed here meanwhile, which is still to be done at home.
            return Ok(());
        }
        let Some(path) = self.path(parent)? else {
            return self.say((b"", name), "its directory is not at home: it is not written", None);
        };
        let (at, tree) = ((&*path, name), &self.cache.tree);
        let Some(place) = self.place(ino)? else { return Ok(()) };
        let there = self.home(|| tree.there(at))?;
        let is_same = match (&there, &step.leaving) {
            (Some(There::Symlink(target)), Some(leaving)) => *target == leaving.target,
            (Some(there), _) => is_known(there, &place),
            (None, _) => true,
        };
        if !is_same {
            self.keep(at, "somebody else has made something of this name")?;
        }
        if kind == Kind::Directory {
            self.home(|| tree.make_directory(at))?;
            if let Some(leaving) = &step.leaving {
                self.home(|| tree.set_attributes(at, &leaving.attributes))?;
            }
        } else {
            self.name_staged(ino, at)?;
        }
        self.set_place(ino, Some(Place { parent, name: name.to_vec(), ..place }));
        self.set_print(ino, step.print);
        Ok(())
    }

    /// A staged file gets its name.
    fn name_staged(&self, ino: Ino, at: Name<'_>) -> Result<()> {
        let staged = staged_name(ino);
        if self.home(|| self.cache.tree.settle(&staged, at))? {
            return Ok(());
        }
        Err(FsError::Io(format!("somebody has removed the staged file {staged} at home")))
    }

    fn write(&self, step: &Step, ino: Ino) -> Result<()> {
        if step.print.is_none() && !step.is_unreadable {
            // It is gone here, or has not changed.
            return Ok(());
        }
        let Some(place) = self.place(ino)? else { return Ok(()) };
        let Some(path) = self.path(place.parent)? else { return Ok(()) };
        let at = (&*path, &*place.name);
        if step.is_unreadable {
            self.say(at, "its bytes cannot be read here: it is not written", None)?;
            // What the home has is not what is here: it must not be fetched in its place.
            self.set_place(ino, Some(Place { seen: Vec::new(), ..place }));
            return Ok(());
        }
        match self.home(|| self.cache.tree.there(at))? {
            Some(there) if is_known(&there, &place) => {}
            Some(_) => self.keep(at, "somebody else has changed it")?,
            None => self.say(at, "somebody else has removed it: it is written again", None)?,
        }
        self.name_staged(ino, at)?;
        self.set_place(ino, Some(place));
        self.set_print(ino, step.print);
        Ok(())
    }

    fn set_attributes(&self, step: &Step, ino: Ino) -> Result<()> {
        let Some(leaving) = &step.leaving else { return Ok(()) };
        let is_top = ino == self.partition.top();
        let place = self.place(ino)?;
        let Some(place) = place.filter(|_| !is_top) else {
            if is_top {
                self.home(|| self.cache.tree.set_attributes((b"", b""), &leaving.attributes))?;
            }
            return Ok(());
        };
        let Some(path) = self.path(place.parent)? else { return Ok(()) };
        let at = (&*path, &*place.name);
        match self.home(|| self.cache.tree.there(at))? {
            Some(there) if is_known(&there, &place) => {}
            // What somebody else has made of it is found when it is written or removed.
            _ => return Ok(()),
        }
        let print = self.home(|| self.cache.tree.set_attributes(at, &leaving.attributes))?;
        let is_file = place.kind == Kind::File;
        self.set_place(ino, Some(place));
        self.set_print(ino, print.filter(|_| is_file));
        Ok(())
    }

    fn rename(&self, ino: Ino, to: (Ino, &[u8]), replaced: Option<Ino>) -> Result<()> {
        let Some(place) = self.place(ino)? else {
            if self.partition.leaving(ino, false)?.is_some() {
                // It could not be made at home: what it replaced here is all that the home has.
                return self.say(
                    (b"", to.1),
                    "it is not at home, and does not replace what is there",
                    None,
                );
            }
            return replaced.map_or(Ok(()), |replaced| self.remove(replaced));
        };
        if (place.parent, &*place.name) == to {
            return Ok(());
        }
        let old = self.path(place.parent)?;
        let Some(new) = self.path(to.0)? else {
            return self.say((b"", to.1), "its directory is not at home: it is not moved", None);
        };
        let (from, at) = ((old.as_deref().unwrap_or_default(), &*place.name), (&*new, to.1));
        let tree = &self.cache.tree;
        let source = if old.is_some() { self.home(|| tree.there(from))? } else { None };
        let source = source.filter(|there| is_known(there, &place));
        let target = self.home(|| tree.there(at))?;
        let is_there = target.as_ref().is_some_and(|there| is_known(there, &place));
        if source.is_some() {
            self.clear_target((at, to), target, replaced, is_there && place.kind == Kind::File)?;
            self.home(|| tree.move_name(from, at))?;
        } else if !is_there {
            self.make_moved(ino, from, at, replaced, &place)?;
        }
        replaced.into_iter().for_each(|replaced| self.set_place(replaced, None));
        self.set_place(ino, Some(Place { parent: to.0, name: to.1.to_vec(), ..place }));
        Ok(())
    }

    /// Makes room for a name that is about to be moved: what was replaced here goes, and what somebody else has made there is kept.
    fn clear_target(
        &self,
        (at, to): (Name<'_>, (Ino, &[u8])),
        target: Option<There>,
        replaced: Option<Ino>,
        is_itself: bool,
    ) -> Result<()> {
        let Some(there) = target.filter(|_| !is_itself) else { return Ok(()) };
        let place = replaced.map(|replaced| self.place(replaced)).transpose()?.flatten();
        let place = place.filter(|place| (place.parent, &*place.name) == to);
        let is_replaced = place.is_some_and(|place| is_known(&there, &place));
        let remove = || self.cache.tree.remove(at, true);
        let is_in_the_way = there == There::Directory && is_replaced && !self.home(remove)?;
        if !is_replaced || is_in_the_way {
            self.keep(at, "somebody else has made or changed it, and it is replaced here")?;
        }
        Ok(())
    }

    /// What was to be moved is not at home: it was removed here before it was ever made there, or somebody else has removed it, and it is
    /// made where it was to be.
    fn make_moved(
        &self,
        ino: Ino,
        from: Name<'_>,
        at: Name<'_>,
        replaced: Option<Ino>,
        place: &Place,
    ) -> Result<()> {
        if self.partition.leaving(ino, false)?.is_none() {
            // The name that it has had for a while is free at home, too.
            return replaced.map_or(Ok(()), |replaced| self.remove(replaced));
        }
        self.say(from, "somebody else has removed it: it is written again", None)?;
        if place.kind == Kind::Directory {
            return self.home(|| self.cache.tree.make_directory(at));
        }
        self.partition.queue_again(ino);
        Ok(())
    }

    fn remove(&self, ino: Ino) -> Result<()> {
        if let Some(place) = self.place(ino)? {
            self.remove_from(&place)?;
            self.set_place(ino, None);
        }
        Ok(())
    }

    fn remove_from(&self, place: &Place) -> Result<()> {
        let Some(path) = self.path(place.parent)? else { return Ok(()) };
        let (at, tree) = ((&*path, &*place.name), &self.cache.tree);
        let Some(there) = self.home(|| tree.there(at))? else { return Ok(()) };
        if !is_known(&there, place) {
            return self.keep(at, "somebody else has changed it, and it was removed here");
        }
        let is_gone = self.home(|| tree.remove(at, place.kind == Kind::Directory))?;
        if !is_gone {
            let what =
                "somebody else has made files in this directory, which was removed here: it stays";
            return self.say(at, what, Some(place.name.clone()));
        }
        Ok(())
    }

    // --- conflicts ---

    /// Moves what somebody else has made out of the way.
    fn keep(&self, at: Name<'_>, what: &str) -> Result<()> {
        let mut kept = at.1.to_vec();
        // Names have 255 bytes.
        kept.truncate(200);
        let seconds = self.namespace.shared.clock.now().seconds;
        let number = self.partition.next_conflict();
        kept.extend_from_slice(format!(".conflict-{seconds}-{number}").as_bytes());
        self.say(at, what, Some(kept.clone()))?;
        self.home(|| self.cache.tree.keep(at, &kept))
    }

    /// Notes a conflict, durably, and reports it.
    fn say(&self, (directory, name): Name<'_>, what: &str, kept: Option<Vec<u8>>) -> Result<()> {
        let in_directory = |name: &[u8]| match directory {
            b"" => name.to_vec(),
            directory => [directory, b"/", name].concat(),
        };
        let path = in_directory(name);
        let kept = kept.map(|kept| in_directory(&kept));
        let home = &self.cache.settings.home;
        let (shown, shown_kept) =
            (String::from_utf8_lossy(&path), kept.as_deref().map(String::from_utf8_lossy));
        tracing::warn!(home, path = %shown, what, kept = ?shown_kept, "a conflict at the home of a cache");
        let at = self.namespace.shared.clock.now().seconds;
        let what = what.to_owned();
        self.partition.note_conflict(&ConflictRecord { at, path: path.clone(), what, kept });
        self.partition.commit()
    }
}
