//! Storm: many small temporary files that die young.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use forebay_base::{ByteSize, Clock};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::{Operations, check_bytes, check_count, in_threads, timed};
use forebay_analytics::error::{Error, Result};
use forebay_analytics::scratch::ScratchDir;

/// Each worker, in a directory of its own and one file after another: create, write in one call,
/// close, open, read, close, unlink. Workers are threads. Uses the memory of two files per worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storm {
    /// Threads.
    pub workers: u32,
    /// Files of each worker.
    pub files_per_worker: u64,
    /// Bytes of a file, up to 64 MiB.
    pub file_bytes: ByteSize,
}

impl Default for Storm {
    /// 4 workers, 5,000 files of 64 KiB each.
    fn default() -> Storm {
        Storm { workers: 4, files_per_worker: 5000, file_bytes: ByteSize::kib(64) }
    }
}

/// What a storm measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StormResult {
    /// Files of all workers, and files per second.
    pub files: Operations,
    /// Bytes written, and read as often.
    pub bytes: u64,
    /// Seconds within which 99.9 of 100 creates were done.
    pub create_p999_seconds: f64,
}

impl Storm {
    /// Runs the load in `target`.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::WrongContent`] if a file is not as
    /// long as it was written; [`Error::Io`].
    pub fn run(&self, target: &Path, clock: &dyn Clock) -> Result<StormResult> {
        check_count("workers", self.workers.into())?;
        check_bytes("file_bytes", self.file_bytes, 0, 64 << 20)?;
        let scratch = ScratchDir::create(target, "storm")?;
        for worker in 0..self.workers {
            let directory = scratch.path().join(worker.to_string());
            fs::create_dir(&directory).map_err(Error::io("create directory", &directory))?;
        }
        let (creates, seconds) = timed(clock, || {
            in_threads(self.workers, |worker| {
                self.work(&scratch.path().join(worker.to_string()), worker, clock)
            })
        })?;
        scratch.remove()?;
        let files = u64::from(self.workers) * self.files_per_worker;
        Ok(StormResult {
            files: Operations::new(files, seconds),
            bytes: files * self.file_bytes.0,
            create_p999_seconds: p999(creates.concat()).as_secs_f64(),
        })
    }

    /// Makes and removes the files of a worker; how long each create took.
    fn work(&self, directory: &Path, worker: u32, clock: &dyn Clock) -> Result<Vec<Duration>> {
        let mut creates = Vec::new();
        let length = self.file_bytes.as_usize();
        let mut pattern = Pattern::new(length, worker.into());
        let content = pattern.at(0, length);
        let mut buffer = Vec::with_capacity(length + 1);
        for number in 0..self.files_per_worker {
            let path = directory.join(format!("temp-{number}"));
            let start = clock.instant();
            let mut file = File::create(&path).map_err(Error::io("create", &path))?;
            creates.push(clock.instant().saturating_duration_since(start));
            file.write_all(content).map_err(Error::io("write", &path))?;
            drop(file);
            buffer.clear();
            File::open(&path)
                .map_err(Error::io("open", &path))?
                .read_to_end(&mut buffer)
                .map_err(Error::io("read", &path))?;
            if buffer.len() != length {
                let reason = format!("{} bytes where {length} were written", buffer.len());
                return Err(Error::WrongContent { path, reason });
            }
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
        Ok(creates)
    }
}

/// The least time that 99.9 of 100 do not exceed; zero of none.
fn p999(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let rank = (times.len() * 999).div_ceil(1000);
    rank.checked_sub(1).and_then(|index| times.get(index).copied()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::time::SystemClock;

    #[test]
    fn slow_creates_are_those_beyond_999_of_1000() {
        let of = |count: u64| p999((1..=count).rev().map(Duration::from_secs).collect());
        assert_eq!(of(0), Duration::ZERO);
        assert_eq!(
            [of(1), of(999), of(1000), of(2000)].map(|time| time.as_secs()),
            [1, 999, 999, 1998]
        );
    }

    #[test]
    fn the_storm_counts_its_files_and_leaves_nothing() {
        let target = tempfile::tempdir().unwrap();
        let load = Storm { workers: 2, files_per_worker: 20, ..Storm::default() };
        let result = load.run(target.path(), &SystemClock).unwrap();
        assert_eq!(result.files.count, 40);
        assert_eq!(result.bytes, 40 * 65_536);
        assert!(result.files.per_second > 0.0);
        assert!(result.create_p999_seconds > 0.0);
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
    }
}
