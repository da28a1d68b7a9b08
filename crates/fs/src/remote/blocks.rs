//! Blocks of larger files whose bytes lie on other nodes: those that programs of this node have read, and those that they are about to
//! read.
//!
//! A block counts as long as the grant of the file's attributes under which it was read ([`Content`]): whoever changes the file has
//! it recalled first. Each grant is another content, so nothing need be removed when one is recalled: nobody asks for its blocks any
//! more, and as the least recently used they go first.
//!
//! Each block is fetched once, however many requests wait for it, and blocks that follow each other with one request. What a program
//! that reads on will want next is fetched ahead, by threads of their own, several requests at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use forebay_base::Ino;
use parking_lot::{Condvar, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};

use super::RemoteOwner;
use crate::ahead::Ahead;
use crate::error::Result;
use crate::lru::Lru;
use crate::pieces::put_piece;

/// Bytes of a block: what a look at one place of a file costs.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;
/// Most blocks that are fetched with one request, which are 1 MiB.
const AT_ONCE: u64 = 16;
/// Most blocks that are fetched ahead of a reader, which are 4 MiB.
const AHEAD_MAX: u64 = 64;
/// Requests ahead at the same time, for all files.
const THREADS_MAX: usize = 4;
/// Requests ahead that may wait for a thread.
const BACKLOG_MAX: usize = 32;
/// Files of which it is remembered how they are read.
const STREAMS_MAX: usize = 4096;

/// The content of a file, as one grant of its attributes covers it. No two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Content {
    /// Number of the [`RemoteOwner`] that has the grant.
    pub reader: u64,
    /// Which of its grants.
    pub stamp: u64,
}

/// A file whose blocks are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockFile {
    pub ino: Ino,
    pub content: Content,
    /// Bytes.
    pub size: u64,
}

impl BlockFile {
    /// The blocks that `length` bytes at `offset` touch, as far as the file has them.
    pub fn blocks(&self, offset: u64, length: usize) -> Range<u64> {
        let end = offset.saturating_add(length as u64).min(self.size);
        if offset >= end {
            return 0..0;
        }
        offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)
    }

    /// The bytes of these blocks, of which there is at least one.
    pub fn bytes_of(&self, blocks: &Range<u64>) -> (u64, usize) {
        let offset = blocks.start * BLOCK_BYTES;
        let end = (blocks.end * BLOCK_BYTES).min(self.size);
        (offset, usize::try_from(end.saturating_sub(offset)).unwrap_or(0))
    }
}

type Block = Arc<[u8]>;
type Key = (Content, u64);

/// What a request for blocks has brought.
pub(super) struct Fetched {
    /// From the first one on; fewer if the file has become shorter.
    pub bytes: Vec<u8>,
    /// The grant still counts: nobody has changed the file before they were read.
    pub is_current: bool,
}

/// What is to be fetched ahead.
struct Errand {
    owner: Weak<RemoteOwner>,
    file: BlockFile,
    blocks: Range<u64>,
}

/// All such blocks of this node, of so many bytes at most.
pub(crate) struct Blocks {
    state: Mutex<State>,
    /// Fetches have ended.
    ended: Condvar,
    /// All threads have.
    idle: Condvar,
    readers: AtomicU64,
}

struct State {
    kept: Lru<Key, Block>,
    coming: FxHashSet<Key>,
    streams: FxHashMap<Content, Ahead>,
    errands: VecDeque<Errand>,
    threads: usize,
    /// Nothing is fetched ahead any more.
    is_over: bool,
}

impl State {
    /// The first of these blocks that are neither kept nor on their way, and those that follow it.
    fn lacking(&self, content: Content, mut blocks: Range<u64>) -> Option<Range<u64>> {
        let is_lacking = |at: &u64| {
            let key = (content, *at);
            !self.coming.contains(&key) && !self.kept.has(&key)
        };
        let first = blocks.find(is_lacking)?;
        Some(first..first + 1 + blocks.take_while(is_lacking).count() as u64)
    }
}

/// Blocks that are being fetched by this thread.
struct Coming<'a> {
    of: &'a Blocks,
    content: Content,
    blocks: Range<u64>,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        for block in self.blocks.clone() {
            state.coming.remove(&(self.content, block));
        }
        drop(state);
        self.of.ended.notify_all();
    }
}

/// What is to be done for a block that is not kept.
enum Lacking<'a> {
    /// It and those that follow it are for this thread to fetch.
    Fetch(Coming<'a>),
    /// Another thread fetches it.
    Awaited,
}

impl Blocks {
    pub fn of(bytes_max: u64) -> Blocks {
        let state = State {
            kept: Lru::of(bytes_max),
            coming: FxHashSet::default(),
            streams: FxHashMap::default(),
            errands: VecDeque::new(),
            threads: 0,
            is_over: false,
        };
        Blocks {
            state: Mutex::new(state),
            ended: Condvar::new(),
            idle: Condvar::new(),
            readers: AtomicU64::new(0),
        }
    }

    /// A number that no other reader has.
    pub fn new_reader(&self) -> u64 {
        self.readers.fetch_add(1, Ordering::Relaxed)
    }

    /// Reads a file at `offset`: what is not kept is fetched with `fetch`, which is given the blocks. `None` if the file is shorter by
    /// now than its attributes said.
    ///
    /// # Errors
    /// What `fetch` says.
    pub(super) fn read(
        &self,
        file: &BlockFile,
        (offset, buffer): (u64, &mut [u8]),
        fetch: &dyn Fn(&Range<u64>) -> Result<Fetched>,
    ) -> Result<Option<usize>> {
        let wanted = file.blocks(offset, buffer.len());
        let mut next = wanted.start;
        let mut read = 0;
        while next < wanted.end {
            let block = match self.find(file.content, next, wanted.end) {
                Ok(block) => block,
                Err(Lacking::Awaited) => continue,
                Err(Lacking::Fetch(coming)) => {
                    let blocks = coming.blocks.clone();
                    let fetched = fetch(&blocks)?;
                    if fetched.bytes.len() < file.bytes_of(&blocks).1 {
                        return Ok(None);
                    }
                    self.keep(file, &blocks, &fetched);
                    let piece = (blocks.start * BLOCK_BYTES, &*fetched.bytes);
                    read += put_piece(piece, (offset, &mut *buffer));
                    next = blocks.end;
                    continue;
                }
            };
            read += put_piece((next * BLOCK_BYTES, &*block), (offset, &mut *buffer));
            next += 1;
        }
        Ok(Some(read))
    }

    /// A block that is kept. Waits for one that another thread fetches.
    fn find(
        &self,
        content: Content,
        block: u64,
        end: u64,
    ) -> std::result::Result<Block, Lacking<'_>> {
        let mut state = self.state.lock();
        if let Some(found) = state.kept.find(&(content, block)) {
            return Ok(found);
        }
        let lacking = state.lacking(content, block..end.min(block + AT_ONCE));
        let Some(lacking) = lacking.filter(|lacking| lacking.start == block) else {
            self.ended.wait(&mut state);
            return Err(Lacking::Awaited);
        };
        Err(Lacking::Fetch(self.coming(&mut state, content, lacking)))
    }

    fn coming(&self, state: &mut State, content: Content, blocks: Range<u64>) -> Coming<'_> {
        state.coming.extend(blocks.clone().map(|block| (content, block)));
        Coming { of: self, content, blocks }
    }

    fn keep(&self, file: &BlockFile, blocks: &Range<u64>, fetched: &Fetched) {
        if !fetched.is_current {
            return;
        }
        let mut state = self.state.lock();
        for (block, bytes) in blocks.clone().zip(fetched.bytes.chunks(BLOCK_BYTES as usize)) {
            state.kept.keep((file.content, block), bytes.into(), bytes.len() as u64);
        }
    }

    /// A program has read these bytes: what it will want next is fetched ahead.
    pub(super) fn note_read(
        self: &Arc<Self>,
        owner: &Arc<RemoteOwner>,
        file: &BlockFile,
        (offset, length): (u64, usize),
    ) {
        let read = file.blocks(offset, length);
        if read.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if state.streams.len() >= STREAMS_MAX && !state.streams.contains_key(&file.content) {
            state.streams.clear();
        }
        let stream = state.streams.entry(file.content).or_insert_with(|| Ahead::of(AHEAD_MAX));
        let mut wanted = stream.after(&read, file.size.div_ceil(BLOCK_BYTES));
        while !wanted.is_empty() && state.errands.len() < BACKLOG_MAX && !state.is_over {
            let blocks = wanted.start..wanted.end.min(wanted.start + AT_ONCE);
            wanted.start = blocks.end;
            state.errands.push_back(Errand { owner: Arc::downgrade(owner), file: *file, blocks });
            if state.threads < THREADS_MAX {
                let blocks = Arc::clone(self);
                let thread = std::thread::Builder::new().name("ahead".to_owned());
                let started = thread.spawn(move || blocks.carry_out());
                state.threads += usize::from(started.is_ok());
            }
        }
        if state.threads == 0 {
            // Nobody would fetch them: each read fetches for itself.
            state.errands.clear();
        }
    }

    /// Body of a thread that fetches ahead, until there is nothing more to fetch.
    fn carry_out(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(Errand { owner, file, blocks }) = state.errands.pop_front() else {
                state.threads -= 1;
                drop(state);
                self.idle.notify_all();
                return;
            };
            // Those of which a program has got hold meanwhile are its own.
            let Some(lacking) = state.lacking(file.content, blocks) else { continue };
            let Some(owner) = owner.upgrade() else { continue };
            let coming = self.coming(&mut state, file.content, lacking);
            drop(state);
            let blocks = coming.blocks.clone();
            match owner.fetch_blocks(&file, &blocks) {
                Ok(fetched) => self.keep(&file, &blocks, &fetched),
                Err(error) => {
                    tracing::debug!(ino = %file.ino, %error, "blocks were not fetched ahead");
                }
            }
        }
    }

    /// Nothing is fetched ahead any more; waits for the threads.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.errands.clear();
        while state.threads > 0 {
            self.idle.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const CONTENT: Content = Content { reader: 1, stamp: 1 };

    fn file(size: u64) -> BlockFile {
        BlockFile { ino: Ino(7), content: CONTENT, size }
    }

    /// Byte at a place of the file.
    fn byte(at: u64) -> u8 {
        (at / 7 % 251) as u8
    }

    /// Reads, and says which blocks were fetched.
    fn read(
        blocks: &Blocks,
        file: &BlockFile,
        offset: u64,
        length: usize,
    ) -> (Vec<u8>, Vec<Range<u64>>) {
        let asked = RefCell::new(Vec::new());
        let fetch = |wanted: &Range<u64>| {
            asked.borrow_mut().push(wanted.clone());
            let (from, length) = file.bytes_of(wanted);
            let bytes = (from..from + length as u64).map(byte).collect();
            Ok(Fetched { bytes, is_current: true })
        };
        let mut buffer = vec![0; length];
        let read = blocks.read(file, (offset, &mut buffer), &fetch).unwrap().unwrap();
        buffer.truncate(read);
        (buffer, asked.into_inner())
    }

    fn is_right(found: &[u8], offset: u64) -> bool {
        found.iter().zip(offset..).all(|(found, at)| *found == byte(at))
    }

    #[test]
    fn what_is_read_is_fetched_once_in_requests_of_1_mib_and_ends_with_the_file() {
        let blocks = Blocks::of(16 << 20);
        let size = 40 * BLOCK_BYTES + 100;
        let file = file(size);
        let (found, asked) = read(&blocks, &file, 10, 100);
        assert!(is_right(&found, 10) && found.len() == 100);
        assert_eq!(asked, vec![0..1]);
        let (found, asked) = read(&blocks, &file, 5, 3 << 20);
        assert!(is_right(&found, 5));
        assert_eq!((found.len() as u64, asked), (size - 5, vec![1..17, 17..33, 33..41]));
        assert_eq!(read(&blocks, &file, size - 1, 9), (vec![byte(size - 1)], vec![]));
        assert_eq!(read(&blocks, &file, size, 9), (vec![], vec![]));
        assert_eq!(read(&blocks, &file, u64::MAX, 9), (vec![], vec![]));
    }

    #[test]
    fn what_was_read_while_the_file_changed_is_not_kept_and_a_shorter_one_is_told() {
        let blocks = Blocks::of(16 << 20);
        let file = file(3 * BLOCK_BYTES);
        let fetch = |bytes: usize, is_current| {
            blocks.read(&file, (0, &mut [0; 10]), &|_| {
                Ok(Fetched { bytes: vec![1; bytes], is_current })
            })
        };
        assert_eq!(fetch(BLOCK_BYTES as usize, false).unwrap(), Some(10));
        assert_eq!(read(&blocks, &file, 0, 10).1, vec![0..1]);
        let other = BlockFile { content: Content { stamp: 2, ..CONTENT }, ..file };
        let short = blocks.read(&other, (0, &mut [0; 10]), &|_| {
            Ok(Fetched { bytes: vec![1; 100], is_current: true })
        });
        assert_eq!(short.unwrap(), None);
        assert_eq!(read(&blocks, &other, 0, 10).1, vec![0..1], "of another content all is fetched");
    }

    #[test]
    fn a_block_that_another_thread_fetches_is_awaited_and_fetched_again_if_that_fails() {
        let blocks = Blocks::of(16 << 20);
        let file = file(BLOCK_BYTES);
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (blocks, file) = (&blocks, &file);
            scope.spawn(move || {
                let failed = blocks.read(file, (0, &mut [0; 10]), &|_| {
                    begun.send(()).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    Err(crate::FsError::Interrupted)
                });
                assert!(failed.is_err());
            });
            has_begun.recv().unwrap();
            assert_eq!(read(blocks, file, 0, 10).1, vec![0..1]);
        });
        assert_eq!(read(&blocks, &file, 0, 10).1, []);
    }
}
