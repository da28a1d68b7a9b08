//! Partial recalls: an archived file is read where it lies, and only the frames that are read are fetched (docs/adr/0104).
//!
//! The owner of a file says [`FsError::Archived`] of a read of its bytes. What was fetched before is answered at once from the
//! frames that are kept ([`frames`]); otherwise the request waits in a place for requests that wait long, while threads of their
//! own fetch what it lacks ([`fetches`]). A program that reads on has the next frames fetched ahead ([`ahead`]).
//! Files of snapshots whose objects lie in an archive are always read so; files of a fileset where `recall_mode` says so.
//!
//! A file may be recalled, written anew or removed while it is read: its object does not change until then, and what the request
//! finds gone it asks the owner for once more.

mod fetches;
mod frames;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::Ino;
use forebay_disk::{Object as _, Seek};
use parking_lot::Mutex;

use self::fetches::{Errand, Fetch, Fetched, Fetches, Wanted};
use self::frames::{Frame, FrameCache, Indexed, Span};
use super::{Interruption, Namespace};
use crate::error::{FsError, Result};
use crate::owner::InArchive;
use crate::record::ObjectRef;
use crate::settings::{RecallMode, Settings};
use crate::stale::Stale;

/// How often a read starts over because the file has got another object meanwhile.
const TRIES: u32 = 8;
/// How long the log says nothing more of a frame that cannot be read: the kernel asks for a page of it again.
const TOLD_AGAIN: Duration = Duration::from_secs(10);
/// Frames that are remembered for that.
const TOLD_MAX: usize = 1024;

/// What is fetched of archived files that are read where they lie.
pub(super) struct Partial {
    frames: FrameCache,
    fetches: Fetches,
    told: Mutex<HashMap<(ObjectRef, u64), Instant>>,
}

impl Partial {
    pub fn of(settings: &Settings) -> Partial {
        let frames = FrameCache::of(settings.partial_recall_cache.0);
        Partial { frames, fetches: Fetches::default(), told: Mutex::default() }
    }
}

// --- for programs ---

impl Namespace {
    /// As [`Namespace::read`], without a wait for an archive.
    ///
    /// # Errors
    /// As [`Namespace::read`]; [`FsError::Archived`] if what is read lies in an archive and was not fetched.
    pub fn read_here(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self.at_bytes(ino, |owner| owner.read(ino, offset, buffer)) {
            Err(FsError::Archived) => self.read_kept(ino, offset, buffer),
            done => done,
        }
    }

    /// As [`Namespace::read_here`], and waits for what lies in an archive, unless `interruption` comes first.
    ///
    /// # Errors
    /// As [`Namespace::read`]; [`FsError::Interrupted`]; [`FsError::Io`] if the archive has not answered for `away_timeout`, or what
    /// is read is damaged or missing there: the log names it.
    pub fn read_archived(
        &self,
        ino: Ino,
        offset: u64,
        buffer: &mut [u8],
        interruption: Option<&Interruption>,
    ) -> Result<usize> {
        for _ in 0..TRIES {
            let Some(file) = self.read_in_place(ino, interruption)? else {
                match self.read_here(ino, offset, buffer) {
                    Err(FsError::Archived) => continue,
                    done => return done,
                }
            };
            let read = self.waiting_for_archive(&file, || {
                let index = self.index_of(&file, interruption)?;
                let span = Span::within(index.object.size(), offset, buffer.len());
                self.fetch_span((&file, &index), &span, buffer, interruption)?;
                self.note_read(&file, &index, &span);
                Ok(span.length)
            });
            if let Some(read) = self.unless_moved(&file, offset, read) {
                return read;
            }
        }
        Err(changes_all_the_time(ino))
    }

    /// As [`Namespace::seek`], without a wait for an archive.
    ///
    /// # Errors
    /// As [`Namespace::seek`]; [`FsError::Archived`] if the file lies in an archive, and where its holes are was not fetched.
    pub fn seek_here(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        match self.at_bytes(ino, |owner| owner.seek(ino, target, offset)) {
            Err(FsError::Archived) => {
                let (_, index) = self.kept_index(ino)?;
                Ok(index.object.seek(target, offset)?)
            }
            done => done,
        }
    }

    /// As [`Namespace::seek_here`], and waits for the archive, unless `interruption` comes first.
    ///
    /// # Errors
    /// As [`Namespace::read_archived`]; [`FsError::NoSuchOffset`].
    pub fn seek_archived(
        &self,
        ino: Ino,
        target: Seek,
        offset: u64,
        interruption: Option<&Interruption>,
    ) -> Result<u64> {
        for _ in 0..TRIES {
            let Some(file) = self.read_in_place(ino, interruption)? else {
                match self.seek_here(ino, target, offset) {
                    Err(FsError::Archived) => continue,
                    done => return done,
                }
            };
            let sought = self.waiting_for_archive(&file, || {
                let index = self.index_of(&file, interruption)?;
                Ok(index.object.seek(target, offset)?)
            });
            if let Some(sought) = self.unless_moved(&file, offset, sought) {
                return sought;
            }
        }
        Err(changes_all_the_time(ino))
    }
}

fn changes_all_the_time(ino: Ino) -> FsError {
    FsError::Io(format!(
        "inode {ino}: the file was archived and recalled {TRIES} times during one read: try again"
    ))
}

// --- which file ---

impl Namespace {
    fn in_archive(&self, ino: Ino) -> Result<Option<InArchive>> {
        self.at(ino, |owner| owner.in_archive(ino))
    }

    /// Whether a file that lies in an archive is read there. Those of snapshots cannot be brought back.
    fn is_read_in_place(&self, file: &InArchive) -> bool {
        file.size.is_none() || self.settings().recall_mode == RecallMode::Partial
    }

    /// A file that is read in an archive; one that is not is brought back first.
    fn read_in_place(
        &self,
        ino: Ino,
        interruption: Option<&Interruption>,
    ) -> Result<Option<InArchive>> {
        let Some(file) = self.in_archive(ino)? else { return Ok(None) };
        if self.is_read_in_place(&file) {
            return Ok(Some(file));
        }
        self.recall(ino, interruption)?;
        Ok(None)
    }

    /// As [`Namespace::read_in_place`], without a wait, and with the index of the file's object if that was fetched and fits the file.
    /// One that does not fit is for those who wait to report.
    fn kept_index(&self, ino: Ino) -> Result<(InArchive, Arc<Indexed>)> {
        let file = self.in_archive(ino)?.filter(|file| self.is_read_in_place(file));
        let file = file.ok_or(FsError::Archived)?;
        let index = self.partial.frames.index(file.at).filter(|index| fits(&file, index));
        Ok((file, index.ok_or(FsError::Archived)?))
    }

    /// Carries out what asks the archive of a file, and waits while that does not answer, unless the file gets another object meanwhile.
    fn waiting_for_archive<T>(
        &self,
        file: &InArchive,
        mut ask: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut is_again = false;
        self.waiting_for_disks(|| {
            let is_there = |now: &InArchive| now.at == file.at;
            if is_again && !self.in_archive(file.ino)?.as_ref().is_some_and(is_there) {
                return Err(FsError::Archived);
            }
            is_again = true;
            ask()
        })
    }

    /// What has come of a read of a file, unless it failed because the file has another object by now.
    fn unless_moved<T>(&self, file: &InArchive, offset: u64, done: Result<T>) -> Option<Result<T>> {
        let Err(error) = &done else { return Some(done) };
        match error {
            FsError::Interrupted | FsError::NoSuchOffset => return Some(done),
            // It is to be asked for once more.
            FsError::Archived => return None,
            _ => {}
        }
        match self.in_archive(file.ino) {
            Ok(Some(now)) if now.at == file.at => {
                self.report_unread(file, offset, error);
                Some(done)
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn report_unread(&self, file: &InArchive, offset: u64, error: &FsError) {
        if let Ok(disk) = self.shared.objects.disk(file.at.disk) {
            disk.traffic.partial.failed();
        }
        let (now, mut told) = (self.instant(), self.partial.told.lock());
        let frame = Span { offset, length: 1 }.frames().start;
        let is_old = |then: &Instant| now.saturating_duration_since(*then) >= TOLD_AGAIN;
        if told.get(&(file.at, frame)).is_some_and(|then| !is_old(then)) {
            return;
        }
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        told.insert((file.at, frame), now);
        drop(told);
        let path = self.paths_of(&[file.ino]).remove(&file.ino);
        let path = path.unwrap_or_else(|| format!("inode {}", file.ino));
        let object = file.at.id;
        tracing::error!(file = path, %object, offset, %error, "a range of a file was not read from its archive");
    }
}

// --- what was fetched, and what is to be ---

impl Namespace {
    /// Reads what was fetched before.
    fn read_kept(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let (file, index) = self.kept_index(ino)?;
        let span = Span::within(index.object.size(), offset, buffer.len());
        let stored = span.frames().filter(|number| index.object.has_frame(*number));
        let kept = |number| Some((number, self.partial.frames.frame(file.at, number)?));
        let frames: Option<Vec<(u64, Frame)>> = stored.map(kept).collect();
        put_together(&span, &frames.ok_or(FsError::Archived)?, buffer);
        self.shared.objects.disk(file.at.disk)?.traffic.partial.hit();
        self.note_read(&file, &index, &span);
        Ok(span.length)
    }

    fn threads_max(&self) -> usize {
        self.settings().recall_threads
    }

    /// The index of a file's object.
    fn index_of(
        &self,
        file: &InArchive,
        interruption: Option<&Interruption>,
    ) -> Result<Arc<Indexed>> {
        let index = match self.partial.frames.index(file.at) {
            Some(index) => index,
            None => {
                let waiter = self.partial.fetches.want_index(file.at, self.threads_max());
                if waiter.is_own {
                    self.carry_out_fetch(&waiter.fetch);
                }
                match waiter.wait(interruption)? {
                    Fetched::Index(index) => index,
                    Fetched::Frames(_) => return Err(FsError::Archived),
                }
            }
        };
        if !fits(file, &index) {
            let (found, size) = (index.object.size(), file.size.unwrap_or_default());
            return Err(FsError::Io(format!(
                "inode {}: object {} has {found} bytes in the archive, and the file {size}: run fsck --archive",
                file.ino, file.at.id
            )));
        }
        Ok(index)
    }

    /// Fetches what a read lacks, and puts all of it together.
    fn fetch_span(
        &self,
        (file, index): (&InArchive, &Arc<Indexed>),
        span: &Span,
        buffer: &mut [u8],
        interruption: Option<&Interruption>,
    ) -> Result<()> {
        let stored = span.frames().filter(|number| index.object.has_frame(*number));
        let (cache, how) = (&self.partial.frames, (false, self.threads_max()));
        let wanted = self.partial.fetches.want_frames((file.at, index), stored.clone(), cache, how);
        let Wanted { kept: mut found, coming } = wanted;
        let own = coming.iter().filter(|waiter| waiter.is_own);
        own.for_each(|waiter| self.carry_out_fetch(&waiter.fetch));
        for waiter in &coming {
            let Fetched::Frames(frames) = waiter.wait(interruption)? else { continue };
            for (number, frame) in frames.iter().filter(|(it, _)| span.frames().contains(it)) {
                found.push((*number, frame.clone()?));
            }
        }
        if found.len() < stored.count() {
            return Err(FsError::Io(format!("frames of object {} are missing", file.at.id)));
        }
        put_together(span, &found, buffer);
        Ok(())
    }

    /// A read was answered: has the next frames fetched if the program reads on, and what a stream has passed dropped.
    fn note_read(&self, file: &InArchive, index: &Arc<Indexed>, span: &Span) {
        // That its fileset is being closed is none of the reader's business.
        let _ = self.at(file.ino, |owner| {
            owner.count_read(span.length);
            Ok(())
        });
        if span.length == 0 {
            return;
        }
        let (threshold, size) = (self.settings().seq_discard_threshold.0, index.object.size());
        if threshold > 0 && size >= threshold && file.size.is_some() {
            let passed = index.stream.passed((span.offset, span.length as u64), size);
            if let Some((from, until)) = passed.above {
                self.shared.stale.add([Stale::Pages(file.ino, from, until)]);
            }
        }
        let ahead = index.ahead.lock().after(&span.frames(), index.frame_count());
        if !ahead.is_empty() {
            let stored = ahead.filter(|number| index.object.has_frame(*number));
            let (cache, how) = (&self.partial.frames, (true, self.threads_max()));
            // Threads fetch them, whoever waits for them.
            drop(self.partial.fetches.want_frames((file.at, index), stored, cache, how));
        }
    }

    /// Fetches what an errand says, and keeps it.
    fn carry_out_fetch(&self, fetch: &Arc<Fetch>) {
        self.partial.fetches.carry_out(fetch, || match &fetch.errand {
            Errand::Index(at) => self.fetch_index(*at).map(Fetched::Index),
            Errand::Frames(at, index, frames) => {
                let found = self.fetch_frames(*at, index, frames.clone());
                found.map(|frames| Fetched::Frames(Arc::new(frames)))
            }
        });
    }

    fn fetch_index(&self, at: ObjectRef) -> Result<Arc<Indexed>> {
        let index = Arc::new(Indexed::new(self.shared.objects.open_archived(at)?));
        self.partial.frames.keep_index(at, &index);
        Ok(index)
    }

    fn fetch_frames(
        &self,
        at: ObjectRef,
        index: &Indexed,
        frames: Range<u64>,
    ) -> Result<Vec<(u64, Result<Frame>)>> {
        let objects = &self.shared.objects;
        let found = objects.observe(at.disk, index.object.fetch_frames(frames))?;
        let keep = |(number, bytes)| {
            let frame = objects.observe(at.disk, bytes).map(Frame::new);
            frame.iter().for_each(|frame| self.partial.frames.keep_frame(at, number, frame));
            (number, frame)
        };
        let found: Vec<(u64, Result<Frame>)> = found.into_iter().map(keep).collect();
        let sound = found.iter().filter_map(|(_, frame)| frame.as_ref().ok());
        let (count, bytes) =
            sound.fold((0, 0), |(count, bytes), frame| (count + 1, bytes + frame.len() as u64));
        objects.disk(at.disk)?.traffic.partial.fetched(count, bytes);
        Ok(found)
    }

    /// Threads may fetch from now on.
    pub(super) fn start_partial_recalls(self: &Arc<Self>) {
        self.partial.fetches.start(Arc::downgrade(self));
    }

    /// Ends these threads, and waits for that.
    pub(super) fn stop_partial_recalls(&self) {
        self.partial.fetches.stop();
    }
}

/// Whether an object has as many bytes as its file.
fn fits(file: &InArchive, index: &Indexed) -> bool {
    file.size.is_none_or(|size| size == index.object.size())
}

/// Puts frames together to what a read asks for; what has no frame is zeros.
fn put_together(span: &Span, frames: &[(u64, Frame)], buffer: &mut [u8]) {
    if let Some(room) = buffer.get_mut(..span.length) {
        room.fill(0);
    }
    for (number, frame) in frames {
        span.take_from(*number, frame, buffer);
    }
}
