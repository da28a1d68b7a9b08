//! Carrying changes of a single-writer cache out at its home (docs/adr/0105), round by round.
//!
//! A round takes changes, commits, writes the bytes of files at home under names of a directory of their own, commits what those files
//! are, gives names and attributes at home in the order of the changes, has the home sync that, and strikes the changes. A crash anywhere has the round
//! repeated: each step finds done what was done.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_base::{FilesetId, Ino, Timestamp};

use super::Namespace;
use crate::caching::queue::{Change, ConflictRecord, Place, Print, Taken};
use crate::caching::visits::{Cache, Visit};
use crate::caching::writing::{Name, There};
use crate::error::{FsError, Result};
use crate::namespace::tasks::Task;
use crate::partition::Partition;
use crate::partition::caching::FetchPace;
use crate::partition::writing_back::{Leaving, WriteBack};
use crate::record::Kind;

/// Changes of a round.
const ROUND: usize = 128;

/// A change that is about to be carried out.
struct Step {
    taken: Taken,
    /// The inode as it is now; none if it is gone, or is not needed.
    leaving: Option<Leaving>,
    /// What the staged file is.
    print: Option<Print>,
    /// Its bytes cannot be read here.
    is_unreadable: bool,
}

impl Step {
    /// The file has not changed since it was written back while programs had it open.
    fn is_unchanged(&self) -> bool {
        let changed = self.leaving.as_ref().map(|leaving| leaving.changed);
        self.taken.unchanged_since.is_some() && self.taken.unchanged_since == changed
    }
}

/// A round at work.
struct Round<'a> {
    namespace: &'a Namespace,
    cache: &'a Cache,
    visit: &'a Visit,
    partition: &'a Partition,
    write_back: &'a WriteBack,
    /// The task that paces it, if there is one.
    task: Option<Arc<Task>>,
    /// Where inodes lie at home by now.
    places: RefCell<HashMap<Ino, Option<Place>>>,
}

impl FetchPace for Round<'_> {
    fn at_home(&self) -> Result<()> {
        self.visit.begin_step(self.namespace.instant());
        self.visit.check_wanted()
    }

    fn fetched(&self, bytes: u64) -> Result<()> {
        self.visit.end_step();
        self.visit.check_wanted()?;
        self.task.as_ref().map_or(Ok(()), |task| task.pace.after(bytes))
    }
}

impl Namespace {
    /// Carries out all changes of a cache that are due, until somebody pauses that.
    pub(super) fn write_back(&self, cache: &Cache, visit: &Visit, id: FilesetId) -> Result<()> {
        let partition = self.partition_of(Ino::top_of(id))?;
        let Some(write_back) = partition.write_back().cloned() else { return Ok(()) };
        let task = self.write_back_task(id);
        // What comes meanwhile is for the next visit: files that stay open come again and again.
        let end = write_back.queue.lock().next_number();
        loop {
            let places = RefCell::default();
            let round = Round {
                namespace: self,
                cache,
                visit,
                partition: &partition,
                write_back: &write_back,
                task: task.clone(),
                places,
            };
            let carried_out = round.carry_out(end);
            let paused = matches!(carried_out, Err(FsError::Busy | FsError::Interrupted));
            let problem = carried_out.as_ref().err().filter(|_| !paused).map(FsError::to_string);
            write_back.note_problem(&cache.settings.home, problem);
            self.after_request();
            if !carried_out? {
                break;
            }
        }
        if write_back.queue.lock().len() == 0 {
            self.at_home((cache, visit), || {
                cache.tree.clear_stage();
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl WriteBack {
    fn note_problem(&self, home: &str, problem: Option<String>) {
        let mut known = self.problem.lock();
        if *known == problem {
            return;
        }
        match &problem {
            Some(why) => {
                tracing::warn!(
                    home,
                    why,
                    "changes of a cache cannot be written to its home: they wait"
                );
            }
            None => tracing::info!(home, "changes of a cache are written to its home again"),
        }
        *known = problem;
    }
}

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
    /// One round, of changes with numbers below `end`. Whether there was anything to do.
    fn carry_out(&self, end: u64) -> Result<bool> {
        let (settings, now) = (&self.cache.settings, self.namespace.shared.clock.now());
        let delay = settings.write_back.unwrap_or_default().delay_seconds;
        let delay = i64::try_from(delay).unwrap_or(i64::MAX);
        let hurried = self.write_back.hurried_below.load(Ordering::Acquire);
        let taken = {
            let mut queue = self.write_back.queue.lock();
            // The clock was set back: what is of the future has waited.
            let through = match queue.oldest() {
                Some(oldest) if oldest > now => oldest,
                _ => Timestamp::new(now.seconds.saturating_sub(delay), now.nanoseconds),
            };
            queue.take(ROUND, end, through, hurried)
        };
        if taken.is_empty() {
            return Ok(false);
        }
        let numbers: Vec<u64> = taken.iter().map(|taken| taken.number).collect();
        let done = self.carry_out_all(taken);
        let mut queue = self.write_back.queue.lock();
        // Those that are done are gone.
        numbers.into_iter().for_each(|number| queue.give_back(number));
        done.map(|()| true)
    }

    fn carry_out_all(&self, taken: Vec<Taken>) -> Result<()> {
        let reach = |point| self.namespace.shared.fail_points.reach(point);
        reach("writeback.taken")?;
        self.partition.commit()?;
        let begun = self.namespace.instant();
        let (mut steps, mut bytes) = (Vec::new(), 0);
        for taken in taken {
            steps.push(self.prepare(taken, &mut bytes)?);
        }
        reach("writeback.staged")?;
        let mut is_expected = false;
        for step in &steps {
            is_expected |= self.expect(step);
        }
        if is_expected {
            self.partition.commit()?;
        }
        reach("writeback.expected")?;
        for step in &steps {
            if self.task.as_ref().is_some_and(|task| !task.pace.goes_on()) {
                return Err(FsError::Busy);
            }
            self.settle(step)?;
            reach("writeback.settled")?;
        }
        self.home(|| self.cache.tree.sync())?;
        reach("writeback.synced")?;
        for (ino, place) in self.places.borrow().iter() {
            self.partition.note_place(*ino, place.as_ref());
        }
        for step in &steps {
            self.partition.change_is_done(&step.taken, step.leaving.as_ref());
        }
        let files = steps.len() as u64;
        self.write_back.written_files.fetch_add(files, Ordering::Relaxed);
        self.write_back.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let took = self.namespace.instant().saturating_duration_since(begun);
        self.task.iter().for_each(|task| task.did(files, bytes, took));
        Ok(reach("writeback.noted")?)
    }

    fn home<T>(&self, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = self.namespace.at_home((self.cache, self.visit), step)?;
        self.visit.check_wanted()?;
        Ok(done)
    }

    // --- where inodes lie at home ---

    fn place(&self, ino: Ino) -> Result<Option<Place>> {
        match self.places.borrow().get(&ino) {
            Some(place) => Ok(place.clone()),
            None => self.partition.home_place(ino),
        }
    }

    fn set_place(&self, ino: Ino, place: Option<Place>) {
        self.places.borrow_mut().insert(ino, place);
    }

    /// Path of a directory at home.
    fn path(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        Ok(self.partition.path_by(ino, &|ino| self.place(ino))?.map(|home| home.path))
    }

    // --- before names change at home ---

    /// Writes the bytes of a file at home, without its name.
    fn prepare(&self, taken: Taken, bytes: &mut u64) -> Result<Step> {
        let ino = taken.change.ino();
        let mut step = Step { taken, leaving: None, print: None, is_unreadable: false };
        step.leaving = match &step.taken.change {
            Change::Make { .. } | Change::Bytes(_) => self.partition.leaving(ino, true)?,
            Change::Attributes(_) => self.partition.leaving(ino, false)?,
            Change::Rename { .. } | Change::Remove { .. } => None,
        };
        let Some(leaving) = &step.leaving else { return Ok(step) };
        if matches!(step.taken.change, Change::Attributes(_)) || step.is_unchanged() {
            return Ok(step);
        }
        let (tree, staged) = (&self.cache.tree, staged_name(ino));
        match leaving.kind {
            Kind::File if !leaving.is_unfetched => {
                let file = self.home(|| tree.begin_file(&staged))?;
                match self.partition.copy_to_home(leaving, &file, self)? {
                    Some(copied) => *bytes += copied,
                    None => {
                        step.is_unreadable = true;
                        return Ok(step);
                    }
                }
                let finish = || tree.finish_file(file, staged.as_bytes(), &leaving.attributes);
                step.print = Some(self.home(finish)?);
            }
            Kind::Symlink => {
                let owners = (leaving.attributes.uid, leaving.attributes.gid);
                self.home(|| tree.stage_symlink(&staged, &leaving.target, owners))?;
            }
            _ => {}
        }
        Ok(step)
    }

    /// Notes what a file at home is about to be, so that it is known again after a crash. Whether there was anything to note.
    fn expect(&self, step: &Step) -> bool {
        let ino = step.taken.change.ino();
        if step.is_unreadable {
            return false;
        }
        let known = self.partition.home_place(ino).ok().flatten();
        let place = match (&step.taken.change, known) {
            (Change::Make { parent, name, kind, .. }, known) => {
                let seen = known.map_or_else(Vec::new, |known| known.seen);
                let (parent, name, kind) = (*parent, name.clone(), *kind);
                let mut place = Place { parent, name, kind, is_listed: true, seen };
                step.print.into_iter().for_each(|print| place.expect(print));
                Some(place)
            }
            (Change::Bytes(_), Some(mut place)) => step.print.map(|print| {
                place.expect(print);
                place
            }),
            (Change::Attributes(_), Some(mut place)) if place.kind == Kind::File => {
                let times = step.leaving.as_ref().and_then(|leaving| leaving.attributes.times);
                times.map(|(_, modified)| {
                    for (size, _) in place.seen.clone() {
                        place.expect((size, modified));
                    }
                    place
                })
            }
            _ => None,
        };
        place.iter().for_each(|place| self.partition.note_place(ino, Some(place)));
        place.is_some()
    }

    // --- names and attributes at home ---

    fn settle(&self, step: &Step) -> Result<()> {
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
        let Some(mut place) = self.place(ino)? else { return Ok(()) };
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
        place.seen = step.print.into_iter().collect();
        self.set_place(ino, Some(Place { parent, name: name.to_vec(), ..place }));
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
            return self.say(at, "its bytes cannot be read here: it is not written", None);
        }
        match self.home(|| self.cache.tree.there(at))? {
            Some(there) if is_known(&there, &place) => {}
            Some(_) => self.keep(at, "somebody else has changed it")?,
            None => self.say(at, "somebody else has removed it: it is written again", None)?,
        }
        self.name_staged(ino, at)?;
        let seen = step.print.into_iter().collect();
        self.set_place(ino, Some(Place { seen, ..place }));
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
        let seen = print.filter(|_| is_file).into_iter().collect();
        self.set_place(ino, Some(Place { seen, ..place }));
        Ok(())
    }

    fn rename(&self, ino: Ino, to: (Ino, &[u8]), replaced: Option<Ino>) -> Result<()> {
        let Some(place) = self.place(ino)? else {
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
            self.make_moved(ino, from, at, &place)?;
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

    /// What was to be moved is not at home any more: it is made where it was to be.
    fn make_moved(&self, ino: Ino, from: Name<'_>, at: Name<'_>, place: &Place) -> Result<()> {
        self.say(from, "somebody else has removed it: it is written again", None)?;
        if place.kind == Kind::Directory {
            return self.home(|| self.cache.tree.make_directory(at));
        }
        self.partition.queue_again(ino);
        Ok(())
    }

    fn remove(&self, ino: Ino) -> Result<()> {
        let Some(place) = self.place(ino)? else { return Ok(()) };
        self.set_place(ino, None);
        let Some(path) = self.path(place.parent)? else { return Ok(()) };
        let (at, tree) = ((&*path, &*place.name), &self.cache.tree);
        let Some(there) = self.home(|| tree.there(at))? else { return Ok(()) };
        if !is_known(&there, &place) {
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

/// The name of a file of an inode that has not its own yet.
fn staged_name(ino: Ino) -> String {
    ino.0.to_string()
}
