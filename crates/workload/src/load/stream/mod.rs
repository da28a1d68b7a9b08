//! Stream: one stream of I/O on one file, measured call by call.
//!
//! Probes what a storage gives: many streams, each a process of its own, make the load of a node. One
//! stream has one call under way at a time, as programs that read and write in order have.

mod calls;
mod file;
mod measure;

use std::hash::Hasher as _;
use std::path::PathBuf;
use std::time::Duration;

use forebay_base::{ByteSize, Clock};
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use crate::load::meeting::{self, Meeting, Together};
use crate::load::pattern::UNIT_BYTES;
use forebay_analytics::amount::{Scale, Size};
use forebay_analytics::error::{Error, Result};
use forebay_analytics::step::Progress;
use forebay_analytics::step::{Action, Buffers, Context, Outcome};

pub use measure::StreamResult;

/// The least of a block, and what all sizes are multiples of.
pub const BLOCK_BYTES_MIN: u64 = UNIT_BYTES as u64;
/// The most of a block.
pub const BLOCK_BYTES_MAX: u64 = 64 << 20;

/// Reads or writes a file block by block, one call at a time, and measures each call. Uses the memory
/// of two of the largest blocks, 256 KiB at least, and 200 KiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// The file; missing directories above it are made.
    pub file: PathBuf,
    /// Its size: a multiple of 4 KiB; a size that follows the scale is rounded up to one.
    #[serde(default = "file_bytes")]
    pub file_bytes: Size,
    /// Bytes per call: a multiple of 4 KiB up to 64 MiB.
    #[serde(default = "block_bytes")]
    pub block_bytes: ByteSize,
    /// With it, random calls are `block_bytes` large, or twice, four times... as large, up to this; each
    /// size as often as the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes_max: Option<ByteSize>,
    /// What is done in which order.
    #[serde(default)]
    pub pattern: Access,
    /// How many of 100 calls of a mixed pattern read.
    #[serde(default = "read_percent")]
    pub read_percent: u64,
    /// Through the page cache or past it.
    #[serde(default)]
    pub io: Io,
    /// When the file is synced; the time counts.
    #[serde(default)]
    pub sync: Sync,
    /// Ends after so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    /// Ends when the file's size was moved so many times; once if there is no end by time either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes: Option<u64>,
    /// Whether the file is written first, which is not measured. A sequential write writes it anyway.
    #[serde(default)]
    pub fill: Fill,
    /// What the page cache holds of the file at the start.
    #[serde(default)]
    pub cache: Cache,
    /// Whether every block that is read is checked; the time of that is in no call.
    #[serde(default)]
    pub verify: bool,
    /// Whether the file stays, for a later step.
    #[serde(default)]
    pub keep: bool,
    /// How many streams start to measure at the same time: a number, or "class" for all jobs of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_together: Option<Together>,
    /// How long a stream waits for the others.
    #[serde(default = "start_limit_seconds")]
    pub start_limit_seconds: u64,
    /// The directory in which streams meet; made up from the class and the settings if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_directory: Option<PathBuf>,
    /// Where content comes from; made up from the run's seed and the file's path if left out, so that a
    /// later step of the run can check the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// What a stream does in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Reads front to back.
    #[default]
    Read,
    /// Writes front to back a file that grows.
    Write,
    /// Reads from the start on and writes from the middle on, both in order and around the end.
    Mixed,
    /// Reads anywhere.
    RandomRead,
    /// Writes anywhere.
    RandomWrite,
    /// Reads and writes anywhere.
    RandomMixed,
}

/// Through the page cache or past it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// Through it.
    #[default]
    Buffered,
    /// Past it (O_DIRECT).
    Direct,
}

/// When a file is synced (fsync).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// Never.
    #[default]
    None,
    /// After the last call.
    End,
    /// After every so many writes, and after the last call.
    Every(u64),
}

/// Whether a file is written before it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// If it is missing or too short.
    #[default]
    Missing,
    /// In any case.
    Always,
    /// Not: one that is missing or too short is an error.
    Never,
}

/// What the page cache holds of a file at the start, which matters to patterns that read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// Nothing, as far as the system obeys posix_fadvise(2) DONTNEED after a sync; caches elsewhere stay, and
    /// unless this is root also those below a FUSE mount. What is still there is measured (`cached_percent`).
    #[default]
    Cold,
    /// What a whole pass of reading, which is not measured, leaves in it: not what was just written.
    Warm,
}

fn file_bytes() -> Size {
    ByteSize::gib(8).into()
}

fn block_bytes() -> ByteSize {
    ByteSize::mib(1)
}

fn read_percent() -> u64 {
    50
}

fn start_limit_seconds() -> u64 {
    600
}

impl Access {
    fn reads(self) -> bool {
        match self {
            Access::Write | Access::RandomWrite => false,
            Access::Read | Access::Mixed | Access::RandomRead | Access::RandomMixed => true,
        }
    }

    fn is_random(self) -> bool {
        match self {
            Access::Read | Access::Write | Access::Mixed => false,
            Access::RandomRead | Access::RandomWrite | Access::RandomMixed => true,
        }
    }
}

impl Stream {
    /// One pass of `pattern` over `file` of `file_bytes` in calls of 1 MiB.
    #[must_use]
    pub fn new(file: PathBuf, file_bytes: ByteSize, pattern: Access) -> Stream {
        Stream {
            file,
            file_bytes: file_bytes.into(),
            block_bytes: block_bytes(),
            block_bytes_max: None,
            pattern,
            read_percent: read_percent(),
            io: Io::default(),
            sync: Sync::default(),
            duration_seconds: None,
            passes: None,
            fill: Fill::default(),
            cache: Cache::default(),
            verify: false,
            keep: false,
            start_together: None,
            start_limit_seconds: start_limit_seconds(),
            start_directory: None,
            seed: None,
        }
    }

    /// Runs the stream with offsets and sizes from `random`; `began` is called when all is ready to be
    /// measured, and what it returns is kept until the end.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds, or the file system refuses direct I/O;
    /// [`Error::WrongContent`] naming the offset if other content is read than was written;
    /// [`Error::Io`]. Then the file is removed, unless it was there before and not filled anew.
    pub fn run<T>(
        &self,
        scale: Scale,
        random: StdRng,
        clock: &dyn Clock,
        began: impl FnOnce() -> Result<T>,
        progress: &mut Progress<'_>,
    ) -> Result<StreamResult> {
        self.check()?;
        let bytes = self.bytes_at(scale);
        let mut ready = file::prepare(self, bytes)?;
        let calls = calls::Calls::new(self, bytes, random);
        let cached = self.pattern.reads().then(|| file::cached_part(&ready.file, bytes)).flatten();
        let kept = began()?;
        let mut result = measure::measure(self, &mut ready, calls, clock, progress)?;
        result.cached_part = cached;
        drop(kept);
        ready.end(self.keep)?;
        Ok(result)
    }

    /// The file's size at `scale`, in whole units.
    fn bytes_at(&self, scale: Scale) -> u64 {
        let bytes = self.file_bytes.at(scale).0;
        bytes.checked_next_multiple_of(BLOCK_BYTES_MIN).unwrap_or(bytes)
    }

    fn block_bytes_most(&self) -> u64 {
        self.block_bytes_max.unwrap_or(self.block_bytes).0
    }

    /// Refuses what no stream can do.
    fn check(&self) -> Result<()> {
        check_blocks("block_bytes", self.block_bytes, BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)?;
        if let Some(most) = self.block_bytes_max {
            check_blocks("block_bytes_max", most, self.block_bytes.0, BLOCK_BYTES_MAX)?;
            if !self.pattern.is_random() {
                let allowed = "omitted unless the pattern is random".to_owned();
                return refuse("block_bytes_max", most.to_string(), allowed);
            }
        }
        if let Size::Fixed(bytes) = self.file_bytes {
            check_blocks("file_bytes", bytes, BLOCK_BYTES_MIN, 1 << 60)?;
        }
        if self.read_percent > 100 {
            let value = self.read_percent.to_string();
            return refuse("read_percent", value, "from 0 to 100".to_owned());
        }
        let counts = [
            ("duration_seconds", self.duration_seconds),
            ("passes", self.passes),
            ("start_together", self.start_number()),
            ("sync", if let Sync::Every(writes) = self.sync { Some(writes) } else { None }),
        ];
        for (setting, count) in counts {
            if count == Some(0) {
                return refuse(setting, "0".to_owned(), "at least 1, or omitted".to_owned());
            }
        }
        Ok(())
    }

    fn start_number(&self) -> Option<u64> {
        match self.start_together {
            Some(Together::Number(number)) => Some(number),
            Some(Together::Group(_)) | None => None,
        }
    }

    /// Where the file's content comes from.
    fn content_seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }
}

fn refuse<T>(setting: &'static str, value: String, allowed: String) -> Result<T> {
    Err(Error::Setting { setting, value, allowed })
}

fn check_blocks(setting: &'static str, value: ByteSize, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value.0) && value.0.is_multiple_of(BLOCK_BYTES_MIN) {
        return Ok(());
    }
    let unit = ByteSize(BLOCK_BYTES_MIN);
    let allowed = format!("a multiple of {unit} from {} to {}", ByteSize(least), ByteSize(most));
    refuse(setting, value.to_string(), allowed)
}

impl Action for Stream {
    fn made_bytes(&self, scale: Scale, _buffers: &Buffers) -> u64 {
        if self.keep { self.bytes_at(scale) } else { 0 }
    }

    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.check()?;
        match &mut self.start_directory {
            Some(directory) => context.resolve(directory)?,
            None => self.start_directory = Some(meeting::place(context, self)?),
        }
        context.resolve(&mut self.file)?;
        self.seed.get_or_insert_with(|| {
            let mut hasher = siphasher::sip::SipHasher13::new_with_keys(context.seed, 0);
            hasher.write(self.file.as_os_str().as_encoded_bytes());
            hasher.finish()
        });
        Ok(())
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        // Not the same offsets for two patterns of one job: the second would find them cached.
        let purpose =
            format!("stream {:?} {} {}", self.pattern, self.block_bytes, self.block_bytes_most());
        let random = context.random(&purpose);
        let limit = Duration::from_secs(self.start_limit_seconds);
        let meet = || {
            Meeting::attend_if(self.start_together, self.start_directory.as_deref(), limit, context)
        };
        let result = self.run(context.scale, random, context.clock, meet, progress)?;
        let outcome = result.outcome();
        let sequential = if self.pattern.is_random() { 0.0 } else { 1.0 };
        let outcome = outcome.with("sequential", sequential);
        Ok(match self.block_bytes_max {
            None => outcome.with("block_kib", self.block_bytes.0 as f64 / 1024.0),
            Some(_) => outcome,
        })
    }
}
