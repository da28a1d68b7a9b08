//! Carrying changes of a single-writer cache out at its home (docs/adr/0105), round by round.
//!
//! A round takes changes, commits, writes the bytes of files at home under names of a directory of their own, commits what those files
//! are and which changes the round has, gives names and attributes at home in the order of the changes, has the home sync that, and
//! strikes the changes. After a crash, or when the home did not answer, the same round is repeated: each step finds done what was
//! done. Until then nobody knows which names the home has, so nothing is read there by its name before ([`Namespace::names_at_home`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::{FilesetId, Ino, Timestamp};
use parking_lot::RwLockReadGuard;

use super::{LOOK, Namespace};
use crate::caching::queue::{Change, Place, Print, Taken};
use crate::caching::visits::{Cache, Visit};
use crate::error::{FsError, Result};
use crate::namespace::tasks::Task;
use crate::partition::Partition;
use crate::partition::caching::FetchPace;
use crate::partition::writing_back::{Leaving, WriteBack};
use crate::record::Kind;

/// Changes of a round.
const ROUND: usize = 128;

/// A change that is about to be carried out.
pub(super) struct Step {
    pub taken: Taken,
    /// The inode as it is now; none if it is gone, or is not needed.
    pub leaving: Option<Leaving>,
    /// What the staged file is.
    pub print: Option<Print>,
    /// Its bytes cannot be read here.
    pub is_unreadable: bool,
}

impl Step {
    /// The file has not changed since it was written back while programs had it open.
    fn is_unchanged(&self) -> bool {
        let changed = self.leaving.as_ref().map(|leaving| leaving.changed);
        self.taken.unchanged_since.is_some() && self.taken.unchanged_since == changed
    }
}

/// A round at work.
pub(super) struct Round<'a> {
    pub namespace: &'a Namespace,
    pub cache: &'a Cache,
    visit: &'a Visit,
    pub partition: &'a Partition,
    write_back: &'a WriteBack,
    /// The task that paces it, if there is one.
    task: Option<Arc<Task>>,
    /// Where inodes lie at home by now.
    places: RefCell<HashMap<Ino, Option<Place>>>,
    /// What files are there by now. Until the round is noted what they may have been counts, too: an earlier attempt may have moved
    /// them on.
    prints: RefCell<HashMap<Ino, Print>>,
}

impl FetchPace for Round<'_> {
    fn at_home(&self) -> Result<()> {
        self.visit.begin_step(self.namespace.instant());
        self.visit.check_wanted()
    }

    fn fetched(&self, bytes: u64) -> Result<()> {
        self.visit.end_step();
        self.visit.check_wanted()?;
        // For a round that was interrupted whoever needs a name at home waits.
        let task = self.task.as_ref().filter(|_| self.write_back.unfinished.lock().is_none());
        task.map_or(Ok(()), |task| task.pace.after(bytes))
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
            let round = Round::new(self, (cache, visit), (&partition, &write_back), task.clone());
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

    /// As long as this is held the names at home of a single-writer cache are those of the places that the store has: no round changes
    /// them. One that was interrupted is carried out before. None for other caches.
    ///
    /// # Errors
    /// [`FsError::HomeAway`], [`FsError::Interrupted`]; what the store says.
    pub(super) fn names_at_home<'a>(
        &self,
        (cache, visit): (&Cache, &Visit),
        partition: &'a Partition,
    ) -> Result<Option<RwLockReadGuard<'a, ()>>> {
        let Some(write_back) = partition.write_back() else { return Ok(None) };
        loop {
            let try_read = |limit| write_back.names.try_read_for(limit);
            let names = self.wait_for_home((cache, visit), try_read)?;
            if write_back.unfinished.lock().is_none() {
                return Ok(Some(names));
            }
            drop(names);
            let round = Round::new(self, (cache, visit), (partition, write_back), None);
            let finished = round.carry_out(0);
            if write_back.unfinished.lock().is_some() {
                finished?;
            }
        }
    }

    /// Waits for a lock that another visit may hold while the home is to answer. If that takes longer than the home has, the home is
    /// asked whether it is there: one that hangs does not answer that either, and whoever waits for this visit gives up then.
    ///
    /// # Errors
    /// [`FsError::Interrupted`] once nobody waits for the visit; [`FsError::HomeAway`].
    fn wait_for_home<T>(
        &self,
        (cache, visit): (&Cache, &Visit),
        mut try_for: impl FnMut(Duration) -> Option<T>,
    ) -> Result<T> {
        let mut asked = self.instant();
        loop {
            if let Some(held) = try_for(LOOK) {
                return Ok(held);
            }
            visit.check_wanted()?;
            let now = self.instant();
            if now.saturating_duration_since(asked) >= cache.timeout() {
                self.at_home((cache, visit), || cache.tree.probe())?;
                asked = now;
            }
        }
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

impl<'a> Round<'a> {
    fn new(
        namespace: &'a Namespace,
        (cache, visit): (&'a Cache, &'a Visit),
        (partition, write_back): (&'a Partition, &'a WriteBack),
        task: Option<Arc<Task>>,
    ) -> Round<'a> {
        let (places, prints) = (RefCell::default(), RefCell::default());
        Round { namespace, cache, visit, partition, write_back, task, places, prints }
    }

    /// One round, of changes with numbers below `end`, or that which was interrupted. Whether there was anything to do.
    fn carry_out(&self, end: u64) -> Result<bool> {
        let at_home = (self.cache, self.visit);
        let try_lock = |limit| self.write_back.round.try_lock_for(limit);
        let _one_at_a_time = self.namespace.wait_for_home(at_home, try_lock)?;
        let unfinished = *self.write_back.unfinished.lock();
        let taken = match unfinished {
            Some(through) => self.write_back.queue.lock().take_again(through),
            None => self.take(end),
        };
        if taken.is_empty() && unfinished.is_none() {
            return Ok(false);
        }
        let numbers: Vec<u64> = taken.iter().map(|taken| taken.number).collect();
        let done = self.carry_out_all(taken);
        let mut queue = self.write_back.queue.lock();
        // Those that are done are gone.
        numbers.into_iter().for_each(|number| queue.give_back(number));
        done.map(|()| true)
    }

    /// Takes changes that are due.
    fn take(&self, end: u64) -> Vec<Taken> {
        let now = self.namespace.shared.clock.now();
        let delay = self.cache.settings.write_back.unwrap_or_default().delay_seconds;
        let delay = i64::try_from(delay).unwrap_or(i64::MAX);
        let hurried = self.write_back.hurried_below.load(Ordering::Acquire);
        let mut queue = self.write_back.queue.lock();
        // The clock was set back: what is of the future has waited.
        let through = match queue.oldest() {
            Some(oldest) if oldest > now => oldest,
            _ => Timestamp::new(now.seconds.saturating_sub(delay), now.nanoseconds),
        };
        queue.take(ROUND, end, through, hurried)
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
        if self.task.as_ref().is_some_and(|task| !task.pace.goes_on()) {
            return Err(FsError::Busy);
        }
        let at_home = (self.cache, self.visit);
        let try_write = |limit| self.write_back.names.try_write_for(limit);
        let _names = self.namespace.wait_for_home(at_home, try_write)?;
        steps.iter().for_each(|step| self.expect(step));
        if let Some(last) = steps.last() {
            self.partition.begin_round(last.taken.number + 1);
        }
        self.partition.commit()?;
        reach("writeback.expected")?;
        let refused = self.settle_all(&mut steps)?;
        self.home(|| self.cache.tree.sync())?;
        reach("writeback.synced")?;
        self.note_places();
        for step in &steps {
            self.partition.change_is_done(&step.taken, step.leaving.as_ref());
        }
        self.partition.end_round();
        let files = steps.len() as u64;
        self.write_back.written_files.fetch_add(files, Ordering::Relaxed);
        self.write_back.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let took = self.namespace.instant().saturating_duration_since(begun);
        self.task.iter().for_each(|task| task.did(files, bytes, took));
        reach("writeback.noted")?;
        refused.map_or(Ok(()), Err)
    }

    /// Gives names and attributes at home. If the home refuses a change, those before it are done, and remain in `steps` alone: what it
    /// says is returned.
    ///
    /// # Errors
    /// [`FsError::HomeAway`], [`FsError::Interrupted`]: it is not known which changes the home has.
    fn settle_all(&self, steps: &mut Vec<Step>) -> Result<Option<FsError>> {
        for number in 0..steps.len() {
            let settled = self.settle(&steps[number]);
            self.namespace.shared.fail_points.reach("writeback.settled")?;
            match settled {
                Ok(()) => {}
                Err(error @ (FsError::HomeAway(_) | FsError::Interrupted)) => return Err(error),
                Err(error) => {
                    steps.truncate(number);
                    return Ok(Some(error));
                }
            }
        }
        Ok(None)
    }

    pub(super) fn home<T>(&self, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = self.namespace.at_home((self.cache, self.visit), step)?;
        self.visit.check_wanted()?;
        Ok(done)
    }

    // --- where inodes lie at home ---

    pub(super) fn place(&self, ino: Ino) -> Result<Option<Place>> {
        match self.places.borrow().get(&ino) {
            Some(place) => Ok(place.clone()),
            None => self.partition.home_place(ino),
        }
    }

    pub(super) fn set_place(&self, ino: Ino, place: Option<Place>) {
        self.places.borrow_mut().insert(ino, place);
    }

    pub(super) fn set_print(&self, ino: Ino, print: Option<Print>) {
        self.prints.borrow_mut().extend(print.map(|print| (ino, print)));
    }

    fn note_places(&self) {
        let prints = self.prints.borrow();
        for (ino, place) in self.places.take() {
            let place = place.map(|place| match prints.get(&ino) {
                Some(print) => Place { seen: vec![*print], ..place },
                None => place,
            });
            self.partition.note_place(ino, place.as_ref());
        }
    }

    /// Path of a directory at home.
    pub(super) fn path(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
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

    /// Notes what a file at home is about to be, so that it is known again after a crash.
    fn expect(&self, step: &Step) {
        let ino = step.taken.change.ino();
        if step.is_unreadable {
            return;
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
    }
}

/// The name of a file of an inode that has not its own yet.
pub(super) fn staged_name(ino: Ino) -> String {
    ino.0.to_string()
}
