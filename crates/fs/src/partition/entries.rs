//! Entries of directories, in memory and in the store.
//!
//! The store is read without the directory's lock: whoever needs it for something that memory knows does not wait. How a
//! read and changes that come meanwhile are put together is the business of `readings`.

use std::collections::BTreeMap;

use forebay_base::Ino;
use parking_lot::MutexGuard;

use crate::directory::{ALL_COOKIES, Bucket, Child};
use crate::error::{FsError, Result};
use crate::inode::{Inode, State};
use crate::key::{self, Key};
use crate::partition::{Partition, Row};
use crate::readings::Ticket;
use crate::record::{EntryRecord, decode};
use crate::writeset::{Known, WriteSet};

/// Records that are read from the store at a time.
const READ_CHUNK: usize = 4096;

/// An entry with its cookie.
pub(crate) type Placed = (u64, Child);

/// A read of a directory's entries, announced to the directory until this is dropped: not with its lock held, but for
/// [`Reading::end`].
struct Reading<'a> {
    directory: &'a Inode,
    ticket: Option<Ticket>,
    range: (u64, u64),
    rows: Vec<Placed>,
}

impl<'a> Reading<'a> {
    fn announce(directory: &'a Inode, state: &mut State, range: (u64, u64)) -> Result<Reading<'a>> {
        let ticket = Some(state.directory_mut()?.begin_reading(range));
        Ok(Reading { directory, ticket, range, rows: Vec::new() })
    }

    /// Reads, with no lock held.
    fn read(&mut self, partition: &Partition) -> Result<()> {
        let (mut from, to) = key::entries(self.directory.ino, self.range.0, self.range.1);
        loop {
            let (rows, next) = partition.read_range(&from, &to, READ_CHUNK)?;
            for row in &rows {
                self.rows.extend(placed(row)?);
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Caches what was read in its locked directory, which knows these entries then.
    fn put_into(&self, partition: &Partition, state: &mut State) -> Result<()> {
        let Some(ticket) = self.ticket else { return Ok(()) };
        let directory = state.directory_mut()?;
        let before = directory.cost();
        directory.adopt(ticket, &self.rows);
        if self.range == ALL_COOKIES {
            directory.mark_complete();
        }
        partition.shared.inodes.directory_changed(before, directory.cost());
        Ok(())
    }

    /// What changed in its locked directory since the read was announced.
    fn changes(&self, state: &mut State) -> Result<BTreeMap<u64, Option<Child>>> {
        let directory = state.directory_mut()?;
        Ok(self.ticket.map(|ticket| directory.changes_since(ticket)).unwrap_or_default())
    }

    /// Keeps no more than the entries of a bucket, which were read with others.
    fn narrow(&mut self, state: &mut State, bucket: Bucket) -> Result<()> {
        if let Some(ticket) = self.ticket {
            state.directory_mut()?.narrow_reading(ticket, bucket.range());
        }
        self.range = bucket.range();
        self.rows.retain(|(cookie, _)| (bucket.first()..=bucket.last()).contains(cookie));
        self.rows.shrink_to_fit();
        Ok(())
    }

    /// The read is over; its directory is locked.
    fn end(mut self, state: &mut State) {
        if let (Some(ticket), Ok(directory)) = (self.ticket.take(), state.directory_mut()) {
            directory.end_reading(ticket);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if let Ok(directory) = self.directory.lock().directory_mut() {
            directory.end_reading(ticket);
        }
    }
}

/// A name that was looked for before locks were taken. It can be found again under them without the store, unless it
/// was in memory before and was dropped from there since.
///
/// Locks that are taken after it must go before it.
pub(crate) struct Look<'a> {
    bucket: Bucket,
    name: &'a [u8],
    reading: Option<Reading<'a>>,
}

impl Look<'_> {
    /// What the name leads to now, in its locked directory; the outer `None` if that takes another look.
    pub fn again(
        &self,
        partition: &Partition,
        state: &mut State,
    ) -> Result<Option<Option<Placed>>> {
        let Some(reading) = &self.reading else {
            return known(state, self.bucket, self.name);
        };
        reading.put_into(partition, state)?;
        find(state, self.bucket, self.name).map(Some)
    }
}

impl Partition {
    fn bucket(&self, name: &[u8]) -> Bucket {
        Bucket::of(&self.hash_key, name)
    }

    /// Locks a directory and finds the entry of `name` in it.
    pub(crate) fn lock_and_find<'a>(
        &self,
        directory: &'a Inode,
        name: &[u8],
    ) -> Result<(MutexGuard<'a, State>, Option<Placed>)> {
        let bucket = self.bucket(name);
        let mut state = directory.lock();
        if let Some(found) = known(&mut state, bucket, name)? {
            return Ok((state, found));
        }
        let (mut state, reading) = self.read_for(directory, state, bucket)?;
        reading.end(&mut state);
        let found = find(&mut state, bucket, name)?;
        Ok((state, found))
    }

    /// Finds the entry of `name` in a directory, such that it can be found again once several inodes are locked.
    pub(crate) fn look_for<'a>(
        &self,
        directory: &'a Inode,
        name: &'a [u8],
    ) -> Result<(Look<'a>, Option<Placed>)> {
        let bucket = self.bucket(name);
        let mut state = directory.lock();
        if let Some(found) = known(&mut state, bucket, name)? {
            return Ok((Look { bucket, name, reading: None }, found));
        }
        let (mut state, mut reading) = self.read_for(directory, state, bucket)?;
        let narrowed = reading.narrow(&mut state, bucket);
        let found = narrowed.and_then(|()| find(&mut state, bucket, name));
        drop(state);
        Ok((Look { bucket, name, reading: Some(reading) }, found?))
    }

    /// Has a locked directory know the entries of a bucket at least, which it gives up meanwhile.
    fn read_for<'a>(
        &self,
        directory: &'a Inode,
        mut state: MutexGuard<'a, State>,
        bucket: Bucket,
    ) -> Result<(MutexGuard<'a, State>, Reading<'a>)> {
        let entries = state.size;
        let about = state.directory_mut()?;
        let reads = about.count_read();
        let is_worth_it = is_worth_caching(entries, reads) && !about.is_being_read();
        let whole = is_worth_it && self.may_load_directory(entries);
        let range = if whole { ALL_COOKIES } else { bucket.range() };
        let read = self.read_entries(directory, state, range)?;
        if whole {
            self.shared.inodes.shrink();
        }
        Ok(read)
    }

    /// Has a locked directory know the entries of a range, which it gives up meanwhile.
    fn read_entries<'a>(
        &self,
        directory: &'a Inode,
        mut state: MutexGuard<'a, State>,
        range: (u64, u64),
    ) -> Result<(MutexGuard<'a, State>, Reading<'a>)> {
        let mut reading = Reading::announce(directory, &mut state, range)?;
        drop(state);
        reading.read(self)?;
        let mut state = directory.lock();
        reading.put_into(self, &mut state)?;
        Ok((state, reading))
    }

    /// Has a locked directory know all its entries, which it gives up meanwhile. The caller shrinks the cache once the
    /// directory is not locked any more.
    pub(crate) fn load_directory<'a>(
        &self,
        directory: &'a Inode,
        state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>> {
        let (mut state, reading) = self.read_entries(directory, state, ALL_COOKIES)?;
        reading.end(&mut state);
        Ok(state)
    }

    /// Entries with cookies above `after`, about `limit` of them and none only at the end, past the cache: of a directory
    /// that is too large to be cached whole, or that somebody else is just reading.
    pub(crate) fn read_chunk(
        &self,
        directory: &Inode,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Placed>> {
        let mut first = after.saturating_add(1);
        loop {
            let range = (first, ALL_COOKIES.1);
            let reading = Reading::announce(directory, &mut directory.lock(), range)?;
            let (from, to) = key::entries(directory.ino, range.0, range.1);
            let (rows, next) = self.read_range(&from, &to, limit)?;
            let mut found = BTreeMap::new();
            for row in &rows {
                found.extend(placed(row)?);
            }
            let through = next.as_deref().map(cookie_before).transpose()?;
            let mut state = directory.lock();
            for (cookie, now) in reading.changes(&mut state)? {
                match now {
                    Some(child) if through.is_none_or(|through| cookie <= through) => {
                        found.insert(cookie, child);
                    }
                    _ => drop(found.remove(&cookie)),
                }
            }
            reading.end(&mut state);
            drop(state);
            match through {
                Some(through) if found.is_empty() => first = through.saturating_add(1),
                _ => return Ok(found.into_iter().collect()),
            }
        }
    }

    /// Whether a directory of so many entries may be cached whole.
    pub(crate) fn may_load_directory(&self, entries: u64) -> bool {
        entries <= self.shared.settings.directory_load_max
            && self.shared.inodes.has_room_for(entries)
    }

    /// Adds an entry to a locked directory in which `name` was looked for and not found.
    pub(crate) fn add_entry(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        child: Child,
    ) -> Result<()> {
        let directory = state.directory_mut()?;
        let before = directory.cost();
        let cookie = directory.free_cookie(Bucket::of(&self.hash_key, &child.name))?;
        writes.put_entry(ino, cookie, child.clone(), Known::Absent);
        directory.insert(cookie, child);
        self.shared.inodes.directory_changed(before, directory.cost());
        state.size += 1;
        Ok(())
    }

    /// Has the entry at `cookie` name another inode.
    pub(crate) fn replace_entry(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        cookie: u64,
        child: Child,
    ) -> Result<()> {
        let directory = state.directory_mut()?;
        writes.put_entry(ino, cookie, child.clone(), Known::MayExist);
        directory.insert(cookie, child);
        Ok(())
    }

    /// Takes the entry at `cookie` out of a locked directory.
    pub(crate) fn remove_entry(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        cookie: u64,
    ) -> Result<()> {
        let directory = state.directory_mut()?;
        let before = directory.cost();
        directory.remove(cookie);
        self.shared.inodes.directory_changed(before, directory.cost());
        writes.delete_entry(ino, cookie);
        state.size = state.size.saturating_sub(1);
        Ok(())
    }
}

/// What a locked directory knows of a name; the outer `None` if the store has to tell.
fn known(state: &mut State, bucket: Bucket, name: &[u8]) -> Result<Option<Option<Placed>>> {
    let found = find(state, bucket, name)?;
    let is_known = found.is_some() || state.directory_mut()?.is_complete();
    Ok(is_known.then_some(found))
}

/// The cached entry of a name.
fn find(state: &mut State, bucket: Bucket, name: &[u8]) -> Result<Option<Placed>> {
    let found = state.directory_mut()?.find(bucket, name);
    Ok(found.map(|(cookie, child)| (cookie, child.clone())))
}

/// The cookie of the last entry that was read, from where [`Partition::read_range`] goes on: right behind its key.
fn cookie_before(next: &[u8]) -> Result<u64> {
    match next.split_last().and_then(|(_, key)| key::parse(key)) {
        Some(Key::Entry(_, cookie)) => Ok(cookie),
        _ => Err(FsError::Damaged("a key among entries is not that of an entry".to_owned())),
    }
}

/// The entry that a row of the store is.
fn placed((key, value): &Row) -> Result<Option<Placed>> {
    let Some(Key::Entry(_, cookie)) = key::parse(key) else { return Ok(None) };
    let record: EntryRecord = decode("directory entry", value)?;
    Ok(Some((cookie, Child::from_record(&record))))
}

/// Whether a directory of `entries` is to be cached whole after so many names were read from the store:
/// those that are looked for and not there could be told without it.
fn is_worth_caching(entries: u64, reads: u32) -> bool {
    entries <= 256 || u64::from(reads) >= entries / 16
}
