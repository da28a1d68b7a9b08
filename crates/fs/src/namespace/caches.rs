//! Cache filesets among the others (docs/adr/0100): what requests need of their homes, and the threads that go there.
//!
//! A request that needs something of a home hands an errand to a thread of the cache and waits, at most for the timeout of the
//! cache; what the thread finds it puts into the fileset itself. While the home is unreachable what was fetched is served as it
//! was seen last, and the rest is refused at once.

mod eviction;
mod flush;
mod known;
mod settling;
mod write_back;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{ByteSize, Clock, FilesetId, Ino};
use rustix::io::Errno;

pub use self::eviction::Evicted;
pub use self::flush::{Conflict, Flushing};
pub(super) use self::known::Caches;
use super::{Interruption, Namespace};
use crate::attributes::{Attributes, KeepName};
use crate::caching::home::{Listing, Seen, look_again};
use crate::caching::visits::{Cache, Errand, Runner, Visit};
use crate::caching::{self, CacheMode, CacheSettings, HomeNeed, HomePath};
use crate::error::{FsError, Result};
use crate::native::NewFileset;
use crate::partition::Partition;
use crate::partition::caching::{Fetch, FetchPace, Lacking};
use crate::record::Placement;
use crate::stale::Stale;

/// How often those who wait look whether they were interrupted, or the home does not answer.
const LOOK: Duration = Duration::from_millis(100);
/// How often a file is fetched anew that changes at home meanwhile.
const TRIES: u32 = 4;
/// Names after which uncommitted changes are looked at.
const PIECE: usize = 256;
/// Longest time that a cache may have for its home, in seconds.
const TIMEOUT_MAX: u64 = 3600;

/// Has a visit say how far it is, and end when nobody waits for it.
struct Pace<'a> {
    visit: &'a Visit,
    clock: &'a dyn Clock,
}

impl FetchPace for Pace<'_> {
    fn at_home(&self) -> Result<()> {
        self.visit.begin_step(self.clock.instant());
        self.visit.check_wanted()
    }

    fn fetched(&self, bytes: u64) -> Result<()> {
        self.visit.end_step();
        self.visit.done.fetch_add(bytes, Ordering::Relaxed);
        self.visit.check_wanted()
    }
}

impl Namespace {
    // --- what is done with caches ---

    /// Makes a fileset that is a cache.
    ///
    /// # Errors
    /// As [`Namespace::add_fileset`]; [`FsError::Refused`] in a cluster, for a native fileset, and for settings that make no sense.
    pub fn add_cache(&self, new: &NewFileset, cache: &CacheSettings) -> Result<()> {
        self.alone("a cache fileset")?;
        if new.placement == Placement::Native {
            return Err(FsError::Refused(
                "a native fileset cannot be a cache: it is a plain directory of a disk; choose direct or served".to_owned(),
            ));
        }
        if !(1..=TIMEOUT_MAX).contains(&cache.timeout_seconds) {
            return Err(FsError::Refused(format!(
                "a timeout of {} s for the home: choose 1 to {TIMEOUT_MAX}",
                cache.timeout_seconds
            )));
        }
        if cache.mode != CacheMode::SingleWriter {
            return self.add_fileset_of(new, Some(&cache.to_bytes()?));
        }
        // The daemon is to see each write.
        let new = NewFileset { placement: Placement::Served, ..new.clone() };
        let write_back = Some(cache.write_back.unwrap_or_default());
        let cache = CacheSettings { write_back, ..cache.clone() };
        self.add_fileset_of(&new, Some(&cache.to_bytes()?))?;
        self.begin_write_back(&new.name);
        Ok(())
    }

    /// Refuses what a cache fileset does not do.
    pub(super) fn refuse_cache(&self, partition: &Partition, what: &str, why: &str) -> Result<()> {
        if self.is_cache(partition.number()) {
            return Err(FsError::Refused(format!(
                "{what} of a cache fileset is not possible: {why}"
            )));
        }
        Ok(())
    }

    /// Before inodes of a fileset are changed: a read-only cache refuses that; otherwise they do not follow the home of a cache
    /// from now on. Nothing is waited for here.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`]; [`FsError::Archived`] if the bytes of a file or the names of a directory have to be fetched before
    /// ([`Namespace::recall`]), and none of the inodes is changed then; what the store says.
    pub(super) fn before_change(&self, fileset: FilesetId, inodes: &[Ino]) -> Result<()> {
        let Some(cache) = self.cache_of(fileset) else { return Ok(()) };
        if cache.settings.mode == CacheMode::ReadOnly {
            return Err(FsError::ReadOnly);
        }
        if cache.writes_back() {
            return self.before_queued_change(&cache, inodes);
        }
        let mut following = Vec::new();
        for ino in inodes {
            let partition = self.partition_of(*ino)?;
            if partition.home_path(*ino)?.is_some() {
                partition.check_fetched(*ino)?;
                following.push((partition, *ino));
            }
        }
        for (partition, ino) in following {
            let _one_at_a_time = cache.applying.lock();
            partition.part_from_home(ino)?;
        }
        Ok(())
    }

    /// Before a name is removed or replaced: what it leads to must not be a directory of a cache whose names were not fetched, as
    /// nobody knows whether that is empty.
    ///
    /// # Errors
    /// [`FsError::Archived`] if its names are to be fetched before ([`Namespace::recall_named`]).
    pub(super) fn before_removal(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let cache = self.cache_of(parent.fileset());
        if cache.is_none_or(|cache| cache.settings.mode == CacheMode::ReadOnly) {
            return Ok(());
        }
        self.partition_of(parent)?.check_named_fetched(parent, name)
    }

    /// As [`Namespace::recall`], of a directory of a cache and of the directory that a name in it leads to, if it does.
    ///
    /// # Errors
    /// As [`Namespace::recall`].
    pub fn recall_named(
        &self,
        parent: Ino,
        name: &[u8],
        interruption: Option<&Interruption>,
    ) -> Result<()> {
        if !self.is_cache(parent.fileset()) {
            return self.recall(parent, interruption);
        }
        self.fetch(parent, interruption)?;
        match self.partition_of(parent)?.named_directory(parent, name) {
            Some(directory) => self.fetch(directory, interruption).map(drop),
            None => Ok(()),
        }
    }

    /// Before a file is opened with O_TRUNC: if it was not fetched, that is not needed.
    ///
    /// # Errors
    /// As [`Namespace::before_change`].
    pub(super) fn before_truncation(&self, ino: Ino) -> Result<()> {
        let Some(cache) = self.cache_of(ino.fileset()) else { return Ok(()) };
        if cache.settings.mode == CacheMode::ReadOnly {
            return Err(FsError::ReadOnly);
        }
        let partition = self.partition_of(ino)?;
        partition.admit_change_of(ino)?;
        let _one_at_a_time = cache.applying.lock();
        partition.truncate_unfetched(ino)
    }

    /// Refuses the extended attributes by which inodes of a cache follow their home: a copy of one must not.
    pub(super) fn check_own_xattr(&self, fileset: FilesetId, name: &[u8]) -> Result<()> {
        let is_own = caching::is_own_xattr(name) && self.has_own_xattrs(fileset);
        if is_own { Err(FsError::NotPermitted) } else { Ok(()) }
    }

    /// Whether inodes of a fileset have extended attributes that say which filesets are caches, and how they follow their homes.
    fn has_own_xattrs(&self, fileset: FilesetId) -> bool {
        self.is_cache(fileset) || (fileset == FilesetId::ROOT && self.has_caches())
    }

    /// Names of extended attributes, without those by which inodes of a cache follow their home.
    pub(super) fn without_own_xattrs(&self, fileset: FilesetId, names: Vec<u8>) -> Vec<u8> {
        if !self.has_own_xattrs(fileset) {
            return names;
        }
        let is_shown =
            |name: &&[u8]| !caching::is_own_xattr(name.strip_suffix(b"\0").unwrap_or(name));
        names.split_inclusive(|byte| *byte == 0).filter(is_shown).flatten().copied().collect()
    }

    /// The kernel keeps nothing of a cache: it asks again, and is answered from memory.
    pub(super) fn as_of_cache(&self, found: Attributes) -> Attributes {
        if !self.is_cache(found.ino.fileset()) {
            return found;
        }
        let is_top = found.ino == Ino::top_of(found.ino.fileset());
        let name = if is_top { found.name } else { KeepName::Never };
        Attributes { cacheable: false, name, ..found }
    }

    // --- what requests need ---

    /// Whether the home of a cache is to be asked before something of a directory is answered: see [`Namespace::ask_home`].
    #[must_use]
    pub fn home_is_due(&self, directory: Ino, need: HomeNeed<'_>) -> bool {
        let name = match need {
            HomeNeed::Name(b"." | b"..") => return false,
            HomeNeed::Name(name) => Some(name),
            HomeNeed::Names => None,
        };
        let cache = self.cache_of(directory.fileset());
        cache.is_some_and(|cache| !cache.is_fresh(directory, name, self.instant()))
    }

    /// Has names of a directory be as at the home of its cache, and waits for that, unless `interruption` comes first. Names that
    /// were fetched before stay as they are while the home is unreachable.
    ///
    /// # Errors
    /// [`FsError::HomeAway`] if the home does not answer and the names were never fetched; [`FsError::Interrupted`]; what the home
    /// or the store says.
    pub fn ask_home(
        &self,
        directory: Ino,
        need: HomeNeed<'_>,
        interruption: Option<&Interruption>,
    ) -> Result<()> {
        let Some(cache) = self.cache_of(directory.fileset()) else { return Ok(()) };
        let Some((partition, route)) = self.local_owner(directory)? else { return Ok(()) };
        let home = partition.home_path(directory)?;
        drop(route);
        let home = home.filter(|home| !cache.writes_back() || !home.is_listed);
        let Some(home) = home else {
            cache.note_local(directory);
            return Ok(());
        };
        let errand = match need {
            HomeNeed::Name(name) if home.is_listed => Errand::Name(directory, name.to_vec()),
            HomeNeed::Name(_) | HomeNeed::Names => Errand::Names(directory),
        };
        match self.visit(&cache, errand, interruption) {
            Err(FsError::HomeAway(_)) if home.is_listed => Ok(()),
            done => done,
        }
    }

    /// Fetches what of an inode of a cache is at home alone, and waits for that: the bytes of a file, the names of a directory.
    /// Whether there was anything to fetch.
    ///
    /// # Errors
    /// [`FsError::HomeAway`], [`FsError::Interrupted`], [`FsError::NoSpace`]; [`FsError::Stale`] if the home has no such file any more.
    pub(super) fn fetch(&self, ino: Ino, interruption: Option<&Interruption>) -> Result<bool> {
        let Some(cache) = self.cache_of(ino.fileset()) else { return Ok(false) };
        let Some((partition, route)) = self.local_owner(ino)? else { return Ok(false) };
        let lacking = partition.lacking(ino)?;
        drop(route);
        let errand = match lacking {
            None => return Ok(false),
            Some(Lacking::Bytes) => Errand::Bytes(ino),
            Some(Lacking::Names) => Errand::Names(ino),
        };
        self.visit(&cache, errand, interruption).map(|()| true)
    }

    // --- visits ---

    /// Threads for visits may be started from now on.
    pub(super) fn start_visits(self: &Arc<Self>) {
        let _ = self.caches.namespace.set(Arc::downgrade(self));
    }

    /// Ends the visits.
    pub(super) fn stop_visits(&self) {
        self.caches.all().iter().for_each(|cache| cache.stop());
    }

    fn visit(
        &self,
        cache: &Arc<Cache>,
        errand: Errand,
        interruption: Option<&Interruption>,
    ) -> Result<()> {
        if let Some((away, is_time)) = cache.away(self.instant()) {
            // Nobody waits for a probe. Without threads its outcome is known at once.
            let is_probed = is_time && self.send(cache, Errand::Probe).1;
            if !is_probed {
                return Err(away);
            }
            if let Some((away, _)) = cache.away(self.instant()) {
                return Err(away);
            }
        }
        let (visit, _) = self.send(cache, errand);
        let outcome = self.await_visit(cache, &visit, interruption);
        cache.leave(&visit);
        outcome
    }

    /// Has a thread run an errand; without threads it is run here. Whether it was.
    fn send(&self, cache: &Arc<Cache>, errand: Errand) -> (Arc<Visit>, bool) {
        let threads = self.caches.namespace.get();
        let (visit, runner) = cache.join(errand, threads.is_some());
        let is_run_here = match (runner, threads) {
            (Runner::Thread, _) => false,
            (Runner::New(lane), Some(namespace)) => {
                let (namespace, cache) = (Weak::clone(namespace), Arc::clone(cache));
                let own = Arc::clone(&cache);
                let body = move || run_visits(&namespace, &cache, lane);
                let started = std::thread::Builder::new().name("home".to_owned()).spawn(body);
                started.is_err() && own.not_started(lane, &visit)
            }
            (Runner::New(_) | Runner::Caller, _) => true,
        };
        if is_run_here {
            self.carry_out_visit(cache, &visit);
        }
        (visit, is_run_here)
    }

    fn await_visit(
        &self,
        cache: &Cache,
        visit: &Visit,
        interruption: Option<&Interruption>,
    ) -> Result<()> {
        loop {
            let shown = || match visit.total.load(Ordering::Relaxed) {
                0 => "the home of its cache".into(),
                total => {
                    let (done, total) =
                        (ByteSize(visit.done.load(Ordering::Relaxed)), ByteSize(total));
                    format!("the home of its cache: {done} of {total}").into()
                }
            };
            let _waits = in_flight::waits_for(|| WaitsFor::Archive(shown()));
            if let Some(outcome) = visit.wait(LOOK) {
                return outcome;
            }
            if interruption.is_some_and(Interruption::is_set) {
                return Err(FsError::Interrupted);
            }
            let now = self.instant();
            let waited = |since: Instant| now.saturating_duration_since(since) >= cache.timeout();
            if cache.silent_since(visit).is_some_and(waited) {
                let timeout = cache.settings.timeout_seconds;
                let why = format!("{} has not answered for {timeout} s", cache.settings.home);
                cache.note_away(&why, now);
                return Err(FsError::HomeAway(why));
            }
        }
    }

    fn carry_out_visit(&self, cache: &Cache, visit: &Arc<Visit>) {
        cache.begin(visit);
        let done = match &visit.errand {
            Errand::Probe => self.at_home((cache, visit), || cache.tree.probe()),
            Errand::Name(directory, name) => self.compare_name(cache, visit, *directory, name),
            Errand::Names(directory) => self.compare_names(cache, visit, *directory),
            Errand::Bytes(ino) => self.fetch_bytes(cache, visit, *ino),
            Errand::WriteBack(id) => self.write_back(cache, visit, *id),
        };
        let done = match done {
            // One file may be what is wrong with it.
            Err(FsError::HomeAway(why)) => {
                match self.at_home((cache, visit), || cache.tree.probe()) {
                    Ok(()) => Err(FsError::Io(why)),
                    Err(error) => {
                        cache.note_away(&error.to_string(), self.instant());
                        Err(FsError::HomeAway(why))
                    }
                }
            }
            done => done,
        };
        let is_told = matches!(visit.errand, Errand::WriteBack(_));
        if let (Err(FsError::Io(why) | FsError::Damaged(why)), false) = (&done, is_told) {
            tracing::warn!(home = cache.settings.home, errand = ?visit.errand, why, "a visit to the home of a cache failed");
        }
        cache.end(visit, done);
    }

    /// Carries out a step at home.
    fn at_home<T>(
        &self,
        (cache, visit): (&Cache, &Visit),
        step: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        visit.begin_step(self.instant());
        let done = step();
        visit.end_step();
        if !matches!(done, Err(FsError::HomeAway(_))) {
            cache.note_back();
        }
        done
    }

    /// The fileset of an inode of a cache.
    fn partition_of(&self, ino: Ino) -> Result<Arc<Partition>> {
        let found = self.local_owner(ino)?;
        found.map(|(partition, _route)| partition).ok_or(FsError::Stale)
    }

    fn compare_name(
        &self,
        cache: &Cache,
        visit: &Visit,
        directory: Ino,
        name: &[u8],
    ) -> Result<()> {
        let since = self.instant();
        let partition = self.partition_of(directory)?;
        let Some(home) = partition.home_path(directory)? else { return Ok(()) };
        let found = self.at_home((cache, visit), || cache.tree.look(&home.path, name))?;
        let _one_at_a_time = cache.applying.lock();
        visit.check_wanted()?;
        let Some(home) = partition.home_path(directory)? else { return Ok(()) };
        let here = partition.named(directory, name);
        if let Some(Err(errno)) = found {
            if cache.note_one_unreadable(directory, name) {
                report_unreadable(cache, &home, 1, (name, errno));
            }
            if here.is_none() {
                return Err(FsError::System(errno.raw_os_error()));
            }
        } else {
            cache.note_readable(directory, name);
        }
        apply(&partition, (directory, &home), (name, here), found.as_ref())?;
        cache.note_fresh(directory, Some(name), since);
        Ok(())
    }

    fn compare_names(&self, cache: &Cache, visit: &Visit, directory: Ino) -> Result<()> {
        let since = self.instant();
        let partition = self.partition_of(directory)?;
        let _names = self.names_at_home((cache, visit), &partition)?;
        let Some(home) = partition.home_path(directory)? else { return Ok(()) };
        if cache.writes_back() && home.is_listed {
            // Another visit was quicker. What was removed here since then may still be at home.
            return Ok(());
        }
        let mut goes_on = || visit.begin_step(self.instant());
        let listing = self.at_home((cache, visit), || cache.tree.list(&home.path, &mut goes_on))?;
        let _one_at_a_time = cache.applying.lock();
        visit.check_wanted()?;
        let Some(home) = partition.home_path(directory)? else { return Ok(()) };
        note_unreadable(cache, &partition, (directory, &home), listing.as_ref());
        self.apply_listing(&partition, (directory, &home), listing)?;
        self.shared.fail_points.reach("cache.listed")?;
        if !home.is_listed {
            partition.set_listed(directory, &home, true)?;
        }
        cache.note_fresh(directory, None, since);
        Ok(())
    }

    /// Has a directory hold what was found at home. One that is gone there is empty; its own name goes when that is looked up.
    fn apply_listing(
        &self,
        partition: &Partition,
        (directory, home): (Ino, &HomePath),
        listing: Option<Listing>,
    ) -> Result<()> {
        let (own, found) = listing.map_or((None, Vec::new()), |(own, found)| (Some(own), found));
        let mut here: HashMap<Vec<u8>, Ino> =
            partition.listed_names(directory)?.into_iter().collect();
        for (number, (name, seen)) in found.iter().enumerate() {
            if number % PIECE == 0 {
                self.after_request();
            }
            let known = here.remove(name);
            apply(partition, (directory, home), (name, known), Some(seen))?;
        }
        for (name, known) in here {
            apply(partition, (directory, home), (&name, Some(known)), None)?;
        }
        if let Some(own) = own {
            partition.take_directory_of_home(directory, &own)?;
        }
        Ok(())
    }

    fn fetch_bytes(&self, cache: &Cache, visit: &Visit, ino: Ino) -> Result<()> {
        let partition = self.partition_of(ino)?;
        let pace = Pace { visit, clock: &*self.shared.clock };
        let mut room_on = None;
        for round in 0..=TRIES {
            let names = self.names_at_home((cache, visit), &partition)?;
            let Some(wanted) = partition.unfetched(ino)? else { return Ok(()) };
            let path = wanted.path.as_deref().ok_or_else(|| {
                FsError::Io(format!("inode {ino}: it is not known where its bytes are at home"))
            })?;
            let Some((file, entry)) = self.at_home((cache, visit), || cache.tree.open(path))?
            else {
                // Its name is to be looked up again.
                cache.forget_fresh();
                return Err(FsError::Stale);
            };
            drop(names);
            visit.done.store(0, Ordering::Relaxed);
            visit.total.store(wanted.size, Ordering::Relaxed);
            let what = (&wanted, &file, &entry);
            let fetched =
                partition.with_space(|| partition.fetch_from_home(ino, what, room_on, &pace));
            if matches!(fetched, Err(FsError::NoSpace)) && round < TRIES {
                // What was fetched before makes room, if it can.
                room_on = self.make_room(cache, &partition, &entry, room_on)?;
                if room_on.is_some() {
                    continue;
                }
            }
            match fetched? {
                Fetch::Done(bytes) => {
                    cache.fetched_files.fetch_add(1, Ordering::Relaxed);
                    cache.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
                    self.after_fetch(&partition, ino);
                    return Ok(());
                }
                Fetch::Changed => {
                    let _names = self.names_at_home((cache, visit), &partition)?;
                    let now = self.at_home((cache, visit), || look_again(&file))?;
                    let _one_at_a_time = cache.applying.lock();
                    if partition.home_path(ino)?.map(|home| home.path) != wanted.path {
                        // It was changed here meanwhile: it is opened as it is now.
                        return Ok(());
                    }
                    if cache.writes_back() {
                        partition.take_file_of_home(ino, &now)?;
                    } else {
                        partition.take_attributes_of_home(ino, &now)?;
                    }
                }
            }
        }
        Err(FsError::Io(format!(
            "inode {ino}: the file changed at home each of the {TRIES} times that it was fetched: try again"
        )))
    }

    /// A crash would have a file fetched again: the commit thread commits soon.
    fn after_fetch(&self, partition: &Partition, ino: Ino) {
        self.tell_own_kernel(&[Stale::Attributes(ino)]);
        if !partition.commits_rest() {
            partition.want_commit();
        }
    }
}

/// Notes which names of a directory a listing could not read, and reports those that are new.
fn note_unreadable(
    cache: &Cache,
    partition: &Partition,
    (directory, home): (Ino, &HomePath),
    listing: Option<&Listing>,
) {
    let names = listing.map_or(&[][..], |(_, names)| names);
    let unreadable = || names.iter().filter_map(|(name, seen)| Some((name, seen.as_ref().err()?)));
    for other in cache.unreadable_directories() {
        if matches!(partition.home_path(other), Err(FsError::Stale)) {
            cache.forget_unreadable(other);
        }
    }
    let all = unreadable().map(|(name, _)| name.clone()).collect();
    let new = cache.note_unreadable(directory, all);
    if let Some((name, errno)) = unreadable().find(|(name, _)| new.contains(name)) {
        report_unreadable(cache, home, new.len(), (name, *errno));
    }
}

fn report_unreadable(cache: &Cache, home: &HomePath, names: usize, first: (&[u8], Errno)) {
    let (name, errno) = (home.child(first.0), first.1.to_string());
    let (home, first) = (&cache.settings.home, String::from_utf8_lossy(&name));
    tracing::warn!(
        home,
        names,
        %first,
        errno,
        "names cannot be read at the home of a cache: those that were known stay as they were seen last, others are not shown"
    );
}

/// Has a name lead to what was found at home; one that could not be read there leads where it led.
fn apply(
    partition: &Partition,
    (directory, home): (Ino, &HomePath),
    (name, here): (&[u8], Option<Ino>),
    found: Option<&Seen>,
) -> Result<()> {
    let found = match found {
        Some(Ok(entry)) => Some(entry),
        Some(Err(_)) => return Ok(()),
        None => None,
    };
    if let Some(ino) = here {
        if let Some(entry) = found
            && (partition.home_path(ino)?.is_none()
                || partition.write_back().is_some()
                || partition.take_attributes_of_home(ino, entry)?)
        {
            return Ok(());
        }
        if !partition.drop_as_at_home(directory, name, ino)? {
            return Ok(());
        }
    }
    found
        .map_or(Ok(()), |entry| partition.make_as_at_home(directory, name, entry, home.child(name)))
}

/// Body of a thread that visits a home, until there is nothing more to do.
fn run_visits(namespace: &Weak<Namespace>, cache: &Cache, lane: usize) {
    while let Some(visit) = cache.next(lane) {
        let Some(namespace) = namespace.upgrade() else {
            cache.end(&visit, Err(FsError::Interrupted));
            continue;
        };
        namespace.carry_out_visit(cache, &visit);
    }
}
