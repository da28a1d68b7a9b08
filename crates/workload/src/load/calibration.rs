//! Calibration: many small models at once, each with its extract of a shared table and a stream of
//! temporary files.
//!
//! The shape is that of a calibration workload on a shared file system: every worker reads its own
//! skip-sequential extract of a shared read-only table, then makes temporary files that grow page by
//! page, are sometimes renamed, are read back and deleted again while a few stay live, then writes
//! output files once. [`Calibration::run`] runs the workers as threads; a program that wants
//! processes calls [`Calibration::prepare`] once and [`Calibration::work`] in each.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use forebay_base::{ByteSize, Clock};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::{
    DropCaches, Operations, Transfer, check_bytes, check_count, drop_caches, in_threads, timed,
};
use forebay_analytics::amount::Scale;
use forebay_analytics::error::{Error, Result};
use forebay_analytics::scratch::ScratchDir;
use forebay_analytics::temporary::{FileSizes, SizeSampler, TEMP_PAGE_BYTES_MAX, TempLife};

/// Bytes per write call of output files.
const OUTPUT_PAGE_BYTES: usize = 64 << 10;
/// Bytes per write call of the table, and the most of a read call of an extract.
const TABLE_PAGE_BYTES: u64 = 256 << 10;
/// The least of a read call of an extract.
const EXTRACT_CALL_BYTES_MIN: u64 = 64 << 10;
/// What an extract skips between two reads, at most; at least one page of 64 KiB.
const SKIP_BYTES_MAX: u64 = 1 << 20;
/// The part of the temporary files that is renamed.
const RENAMES: f64 = 0.25;

/// The settings of a calibration load. Uses the memory of a few pages per worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibration {
    /// Workers at once.
    pub workers: u32,
    /// Bytes of the shared table, at least 1 MiB.
    pub table_bytes: ByteSize,
    /// Bytes that each worker reads of the table.
    pub extract_bytes: ByteSize,
    /// Temporary files of each worker.
    pub temp_files_per_worker: u64,
    /// Temporary files that each worker keeps at a time.
    pub temp_files_live: usize,
    /// Half of the temporary files are smaller; none is smaller than an eighth of it, or larger than eight times it.
    pub temp_median: ByteSize,
    /// Output files of each worker, as large as temporary ones; kept to the end.
    pub outputs_per_worker: u64,
    /// Where sizes and extracts come from: the same seed gives the same load.
    pub seed: u64,
}

impl Default for Calibration {
    /// 4 workers on a table of 256 MiB, each with an extract of 64 MiB, 500 temporary files
    /// of around 512 KiB, of which 20 live at a time, and 10 outputs.
    fn default() -> Calibration {
        Calibration {
            workers: 4,
            table_bytes: ByteSize::mib(256),
            extract_bytes: ByteSize::mib(64),
            temp_files_per_worker: 500,
            temp_files_live: 20,
            temp_median: ByteSize::kib(512),
            outputs_per_worker: 10,
            seed: 750,
        }
    }
}

/// What one worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerResult {
    /// Temporary files made and deleted.
    pub temp_files: u64,
    /// Output files written.
    pub outputs: u64,
    /// Bytes read of the table.
    pub extract_bytes: u64,
    /// Bytes read back of temporary files.
    pub temp_read_bytes: u64,
    /// Bytes written to temporary and output files.
    pub written_bytes: u64,
}

/// What a calibration load measured, over all workers, from the start of the first to the end of the
/// last; making the table is not part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationResult {
    /// Temporary files, and temporary files per second.
    pub temp_files: Operations,
    /// Bytes read of the table and of temporary files.
    pub read: Transfer,
    /// Bytes written to temporary and output files.
    pub written: Transfer,
    /// What each worker did.
    pub workers: Vec<WorkerResult>,
}

impl Calibration {
    /// Runs the load in `target` with a thread per worker. `drop` is called, if given, once the table
    /// is made.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::WrongContent`] if a temporary file is
    /// not as it was written; [`Error::Io`].
    pub fn run(
        &self,
        target: &Path,
        clock: &dyn Clock,
        drop: Option<&mut DropCaches<'_>>,
    ) -> Result<CalibrationResult> {
        check_count("workers", self.workers.into())?;
        let scratch = ScratchDir::create(target, "calibration")?;
        let table = self.prepare(scratch.path())?;
        if let Some(drop) = drop {
            drop_caches(drop, target)?;
        }
        let (workers, seconds) = timed(clock, || {
            in_threads(self.workers, |worker| self.work(&table, scratch.path(), worker))
        })?;
        scratch.remove()?;
        let sum = |part: fn(&WorkerResult) -> u64| workers.iter().map(part).sum::<u64>();
        Ok(CalibrationResult {
            temp_files: Operations::new(sum(|w| w.temp_files), seconds),
            read: Transfer::new(sum(|w| w.extract_bytes + w.temp_read_bytes), seconds),
            written: Transfer::new(sum(|w| w.written_bytes), seconds),
            workers,
        })
    }

    /// Makes the shared table in `directory` and returns its path.
    ///
    /// # Errors
    /// [`Error::Setting`] if the table's size is out of bounds; [`Error::Io`].
    pub fn prepare(&self, directory: &Path) -> Result<PathBuf> {
        check_bytes("table_bytes", self.table_bytes, 1 << 20, 1 << 50)?;
        let path = directory.join("table");
        let mut pattern = Pattern::new(TABLE_PAGE_BYTES as usize, self.seed);
        write_pages(&path, self.table_bytes.0, &mut pattern, TABLE_PAGE_BYTES as usize)?;
        Ok(path)
    }

    /// Does the work of worker `worker` (from 0) in a new directory in `directory`, where its outputs
    /// stay.
    ///
    /// # Errors
    /// As [`Calibration::run`].
    pub fn work(&self, table: &Path, directory: &Path, worker: u32) -> Result<WorkerResult> {
        let own = directory.join(format!("worker-{worker}"));
        fs::create_dir(&own).map_err(Error::io("create directory", &own))?;
        let seed = self.seed.wrapping_add(u64::from(worker));
        check_bytes("temp_median", self.temp_median, 1 << 10, 1 << 30)?;
        let sizes = FileSizes {
            median: self.temp_median.into(),
            least: ByteSize(self.temp_median.0 / 8),
            most: ByteSize(self.temp_median.0 * 8).into(),
            ..FileSizes::default()
        };
        let mut work = Work {
            directory: own,
            random: StdRng::seed_from_u64(seed),
            pattern: Pattern::new(TEMP_PAGE_BYTES_MAX, seed),
            sizes: sizes.at(Scale::FULL)?,
            buffer: vec![0; TABLE_PAGE_BYTES as usize],
            result: WorkerResult::default(),
        };
        work.read_extract(table, self.extract_bytes.0)?;
        work.make_temp_files(self.temp_files_per_worker, self.temp_files_live)?;
        for number in 0..self.outputs_per_worker {
            work.write_output(number)?;
        }
        Ok(work.result)
    }
}

/// One worker at work.
struct Work {
    directory: PathBuf,
    random: StdRng,
    pattern: Pattern,
    sizes: SizeSampler,
    buffer: Vec<u8>,
    result: WorkerResult,
}

impl Work {
    /// Reads `wanted` bytes of the table: some, a gap, some more, from the start again at the end.
    fn read_extract(&mut self, table: &Path, wanted: u64) -> Result<()> {
        let file = File::open(table).map_err(Error::io("open", table))?;
        let length = file.metadata().map_err(Error::io("stat", table))?.len();
        let mut offset = self.random.random_range(0..length.max(1));
        while self.result.extract_bytes < wanted && length > 0 {
            let call = self.random.random_range(EXTRACT_CALL_BYTES_MIN..=TABLE_PAGE_BYTES);
            let call = call.min(length - offset).min(wanted - self.result.extract_bytes);
            let buffer = &mut self.buffer[..call as usize];
            file.read_exact_at(buffer, offset).map_err(Error::io("read", table))?;
            self.result.extract_bytes += call;
            let skip = self.random.random_range(EXTRACT_CALL_BYTES_MIN..=SKIP_BYTES_MAX);
            offset = (offset + call + skip) % length;
        }
        Ok(())
    }

    fn make_temp_files(&mut self, files: u64, live: usize) -> Result<()> {
        let life = TempLife {
            files,
            sizes: self.sizes,
            live,
            reads: 1,
            renames: RENAMES,
            overwrites: 0.0,
        };
        let counts = life.run(&self.directory, &mut self.random, &mut self.pattern, &mut |_| {})?;
        self.result.temp_files += counts.files;
        self.result.temp_read_bytes += counts.read_bytes;
        self.result.written_bytes += counts.written_bytes;
        Ok(())
    }

    /// Writes an output file of a random size.
    fn write_output(&mut self, number: u64) -> Result<()> {
        let length = self.sizes.draw(&mut self.random);
        let path = self.directory.join(format!("output-{number}"));
        write_pages(&path, length, &mut self.pattern, OUTPUT_PAGE_BYTES)?;
        self.result.written_bytes += length;
        self.result.outputs += 1;
        Ok(())
    }
}

/// Writes a file of `length` bytes page by page.
fn write_pages(path: &Path, length: u64, pattern: &mut Pattern, page_bytes: usize) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    pattern.write_file(&mut file, path, length, page_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::time::SystemClock;

    fn small() -> Calibration {
        Calibration {
            workers: 2,
            table_bytes: ByteSize::mib(1),
            extract_bytes: ByteSize::mib(2),
            temp_files_per_worker: 30,
            temp_files_live: 3,
            temp_median: ByteSize::kib(512),
            outputs_per_worker: 2,
            seed: 1,
        }
    }

    #[test]
    fn files_are_as_large_as_their_median_says() {
        for median in [ByteSize::kib(8), ByteSize::kib(64)] {
            let target = tempfile::tempdir().unwrap();
            let load = Calibration { temp_median: median, ..small() };
            for worker in load.run(target.path(), &SystemClock, None).unwrap().workers {
                let mean = worker.written_bytes / (worker.temp_files + worker.outputs);
                assert!((median.0 / 8..=median.0 * 8).contains(&mean), "{mean} bytes of {median}");
            }
        }
        let refused = Calibration { temp_median: ByteSize(0), ..small() };
        let target = tempfile::tempdir().unwrap();
        assert!(refused.run(target.path(), &SystemClock, None).is_err());
    }

    #[test]
    fn workers_do_what_was_asked_and_leave_nothing() {
        let target = tempfile::tempdir().unwrap();
        let result = small().run(target.path(), &SystemClock, None).unwrap();
        assert_eq!(result.temp_files.count, 60);
        for worker in &result.workers {
            assert_eq!((worker.temp_files, worker.outputs), (30, 2));
            assert_eq!(worker.extract_bytes, 2 << 20);
            assert!(worker.written_bytes > worker.temp_read_bytes);
            assert!(worker.temp_read_bytes >= 30 * 65_536);
        }
        assert_ne!(result.workers[0], result.workers[1]);
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_load() {
        let target = tempfile::tempdir().unwrap();
        let run = || small().run(target.path(), &SystemClock, None).unwrap().workers;
        assert_eq!(run(), run());
    }

    #[test]
    fn a_worker_keeps_only_its_outputs() {
        let target = tempfile::tempdir().unwrap();
        let load = small();
        let table = load.prepare(target.path()).unwrap();
        load.work(&table, target.path(), 7).unwrap();
        let mut left: Vec<_> = fs::read_dir(target.path().join("worker-7"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["output-0", "output-1"]);
    }
}
