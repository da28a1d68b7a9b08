//! The measured loop, and what it finds.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use forebay_base::Clock;

use super::calls::{Calls, Direction};
use super::file::{Ready, refused_direct};
use super::{Stream, Sync};
use crate::load::pattern::{self, PageBuffer};
use crate::resource::ratio;
use forebay_analytics::error::{Error, Result};
use forebay_analytics::histogram::{Bucket, Recorder};
use forebay_analytics::step::Outcome;
use forebay_analytics::step::Progress;

/// Progress is told after every so many calls.
const PROGRESS_CALLS: u64 = 256;

/// What a stream measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamResult {
    /// Calls that read or wrote.
    pub calls: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Seconds from the first call to the end of the last, syncs included.
    pub seconds: f64,
    /// Times of the calls in nanoseconds by `read`, `write` and `sync`, as far as there were any. A
    /// time goes from the end of the call before, so that making a block to write is part of it (1 %).
    pub latencies: BTreeMap<String, Vec<Bucket>>,
    /// Part of the file that the page cache held before the first call, 0 to 1; `None` of a pattern that
    /// only writes, and where the system does not say.
    pub cached_part: Option<f64>,
}

impl StreamResult {
    /// The figures by name.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        let mb_per_second = |bytes: u64| ratio(bytes as f64 / 1e6, self.seconds);
        let mut outcome = Outcome::rows(self.calls)
            .with("read_mb_per_second", mb_per_second(self.read_bytes))
            .with("write_mb_per_second", mb_per_second(self.written_bytes))
            .with("iops", ratio(self.calls as f64, self.seconds))
            .with("read_bytes", self.read_bytes as f64)
            .with("written_bytes", self.written_bytes as f64)
            .with("bytes", (self.read_bytes + self.written_bytes) as f64)
            .with("seconds", self.seconds);
        if let Some(part) = self.cached_part {
            outcome = outcome.with("cached_percent", part * 100.0);
        }
        for (name, buckets) in self.latencies {
            outcome = outcome.with_latency(&name, buckets);
        }
        outcome
    }
}

/// Counts and times while the loop runs.
struct Tally {
    result: StreamResult,
    reads: Recorder,
    writes: Recorder,
    syncs: Recorder,
}

impl Tally {
    fn count(&mut self, direction: Direction, bytes: usize, time: Duration) {
        self.result.calls += 1;
        match direction {
            Direction::Read => {
                self.result.read_bytes += bytes as u64;
                self.reads.record(time);
            }
            Direction::Write => {
                self.result.written_bytes += bytes as u64;
                self.writes.record(time);
            }
        }
    }

    fn finish(mut self, time: Duration) -> StreamResult {
        self.result.seconds = time.as_secs_f64();
        for (name, recorder) in [("read", self.reads), ("write", self.writes), ("sync", self.syncs)]
        {
            if recorder.count() > 0 {
                self.result.latencies.insert(name.to_owned(), recorder.buckets());
            }
        }
        self.result
    }
}

/// Carries out `calls` on a file. One reading of the clock per call ends it and starts the next;
/// checking takes another, since it is in no call.
pub(super) fn measure(
    stream: &Stream,
    ready: &mut Ready,
    calls: Calls,
    clock: &dyn Clock,
    progress: &mut Progress<'_>,
) -> Result<StreamResult> {
    let (seed, most) = (stream.content_seed(), stream.block_bytes_most());
    let Ready { file, path, pattern, .. } = ready;
    let mut buffer = PageBuffer::new(most as usize);
    let mut tally = Tally {
        result: StreamResult::default(),
        reads: Recorder::default(),
        writes: Recorder::default(),
        syncs: Recorder::default(),
    };
    let (mut writes, mut synced) = (0, 0);
    let start = clock.instant();
    let end = stream.duration_seconds.map(|seconds| start + Duration::from_secs(seconds));
    let mut last = start;
    let sync = |tally: &mut Tally, last: Instant| {
        file.sync_all().map_err(Error::io("sync", path))?;
        let now = clock.instant();
        tally.syncs.record(now.saturating_duration_since(last));
        Ok::<Instant, Error>(now)
    };
    for call in calls {
        let (offset, length) = (call.offset, call.length);
        let done = match call.direction {
            Direction::Read => {
                file.read_exact_at(&mut buffer[..length], offset).map_err(Error::io("read", path))
            }
            Direction::Write => file
                .write_all_at(pattern.at(offset, length), offset)
                .map_err(Error::io("write", path)),
        };
        done.map_err(|error| refused_direct(stream, error))?;
        let now = clock.instant();
        tally.count(call.direction, length, now.saturating_duration_since(last));
        last = now;
        match call.direction {
            Direction::Read if stream.verify => {
                pattern::check(path, seed, offset, &buffer[..length])?;
                last = clock.instant();
            }
            Direction::Read => {}
            Direction::Write => {
                writes += 1;
                if matches!(stream.sync, Sync::Every(every) if writes - synced == every) {
                    last = sync(&mut tally, last)?;
                    synced = writes;
                }
            }
        }
        if tally.result.calls.is_multiple_of(PROGRESS_CALLS) {
            progress(tally.result.calls);
            last = clock.instant();
        }
        if end.is_some_and(|end| last >= end) {
            break;
        }
    }
    if stream.sync != Sync::None && writes > synced {
        last = sync(&mut tally, last)?;
    }
    progress(tally.result.calls);
    Ok(tally.finish(last.saturating_duration_since(start)))
}
