//! The probe against fio: both do the same calls on files of the same size, in turn.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use forebay_base::ByteSize;
use forebay_workload::load::stream::{Access, Fill};
use forebay_workload::load::{Stream, Together};

use crate::fio;
use crate::interrupt::Interrupt;
use crate::load::{Jobs, Streamed};
use crate::machine::Machine;
use crate::report::{aligned, spread};
use crate::statistics::Summary;

/// What to compare where.
#[derive(Args, Debug)]
pub struct Probe {
    /// Rounds; each figure is the median of as many samples.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// A directory on a tmpfs.
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    memory: PathBuf,
    /// A directory on a disk.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    disk: PathBuf,
    /// Calm before each measurement once everything is written out, in milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500)]
    pause: u64,
    /// Write the tables to a file, as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// One thing that both do.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name for people.
    pub name: &'static str,
    /// What is done.
    pub access: Access,
    /// Bytes per call.
    pub block: ByteSize,
    /// Bytes of each file.
    pub file: ByteSize,
    /// How often the size of the file is moved.
    pub passes: u64,
    /// Processes at once, each with a file.
    pub streams: u64,
}

impl Case {
    /// Name of the pattern in fio (`--rw`).
    #[must_use]
    pub fn fio_name(&self) -> &'static str {
        match self.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::Mixed => "rw",
            Access::RandomRead => "randread",
            Access::RandomWrite => "randwrite",
            Access::RandomMixed => "randrw",
        }
    }

    /// The same as a step.
    fn stream(&self) -> Stream {
        Stream {
            block_bytes: self.block,
            passes: Some(self.passes),
            keep: true,
            start_together: Some(Together::Number(self.streams)),
            ..Stream::new(PathBuf::from("data/stream-{job}"), self.file, self.access)
        }
    }

    fn writes(&self) -> bool {
        !matches!(self.access, Access::Read | Access::RandomRead)
    }
}

fn cases() -> [Case; 6] {
    let sequential = |name, access, mib, passes, streams| Case {
        name,
        access,
        block: ByteSize::mib(1),
        file: ByteSize::mib(mib),
        passes,
        streams,
    };
    let random = |name, kib, passes| Case {
        name,
        access: Access::RandomRead,
        block: ByteSize::kib(kib),
        file: ByteSize::mib(512),
        passes,
        streams: 1,
    };
    [
        sequential("write, 1 MiB, 1 stream", Access::Write, 2048, 1, 1),
        sequential("write, 1 MiB, 4 streams", Access::Write, 512, 1, 4),
        sequential("read, 1 MiB, 1 stream", Access::Read, 1024, 5, 1),
        sequential("read, 1 MiB, 4 streams", Access::Read, 512, 5, 4),
        random("random read, 4 KiB", 4, 4),
        random("random read, 64 KiB", 64, 8),
    ]
}

/// Samples of one case in million bytes per second, one per round.
#[derive(Debug, Default)]
struct Samples {
    ours: Vec<f64>,
    fio: Vec<f64>,
}

impl Probe {
    /// Compares and prints tables.
    ///
    /// # Errors
    /// If a measurement fails; after a signal.
    pub fn run(&self) -> Result<()> {
        let (machine, interrupt) = (Machine::look()?, Interrupt::watch()?);
        let mut text = machine.describe();
        text.push_str(&format!(
            " {} rounds: MB/s, median (least - greatest); a ratio is the probe against fio in the \
             same round.\n",
            self.rounds
        ));
        for (name, parent) in [("tmpfs", &self.memory), ("disk", &self.disk)] {
            let scratch = tempfile::Builder::new()
                .prefix("forebay-probe-")
                .tempdir_in(parent)
                .with_context(|| format!("cannot use {}", parent.display()))?;
            let table = self.compare(&interrupt, scratch.path())?;
            text.push_str(&format!("\n**{name}**\n\n{table}"));
            scratch.close().context("cannot remove the scratch directory")?;
        }
        print!("{text}");
        if let Some(file) = &self.markdown {
            fs::write(file, &text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn compare(&self, interrupt: &Interrupt, directory: &Path) -> Result<String> {
        let mut rows = vec![["", "probe", "fio", "ratio"].map(str::to_owned).to_vec()];
        for case in cases() {
            let samples =
                self.sample(interrupt, &case, directory).with_context(|| case.name.to_owned())?;
            let of = |values: &[f64]| Summary::of(values).map_or_else(String::new, spread);
            let ratio = Summary::of_ratios(&samples.ours, &samples.fio);
            let ratio = ratio.map_or_else(String::new, |ratio| {
                format!("{:.2} ({:.2} - {:.2})", ratio.median, ratio.min, ratio.max)
            });
            rows.push(vec![case.name.to_owned(), of(&samples.ours), of(&samples.fio), ratio]);
        }
        Ok(aligned(&rows))
    }

    /// Measures one case in all rounds; who comes first changes from round to round.
    fn sample(&self, interrupt: &Interrupt, case: &Case, directory: &Path) -> Result<Samples> {
        let jobs = Jobs { interrupt, within: None };
        if !case.writes() {
            // Both read the same files, as warm as one reading makes them.
            let make = Stream { passes: Some(1), ..case.stream() };
            jobs.stream(directory, &make, case.streams)?;
        }
        let mut samples = Samples::default();
        for round in 0..self.rounds {
            for turn in 0..2 {
                if case.writes() {
                    clear(directory)?;
                }
                // Write-back of what came before would be measured otherwise.
                rustix::fs::syncfs(fs::File::open(directory)?)?;
                interrupt.sleep(Duration::from_millis(self.pause))?;
                let (who, measured) = if (round + turn) % 2 == 0 {
                    let stream = Stream { fill: Fill::Never, ..case.stream() };
                    let streams = jobs.stream(directory, &stream, case.streams)?;
                    samples.ours.push(mb_per_second(&streams));
                    ("probe", samples.ours.last())
                } else {
                    samples.fio.push(fio::run(interrupt, case, directory)?);
                    ("fio", samples.fio.last())
                };
                let measured = measured.copied().unwrap_or_default();
                eprintln!("{} round {}: {who} {measured:.0} MB/s", case.name, round + 1);
            }
        }
        clear(directory)?;
        Ok(samples)
    }
}

/// All streams together: they start together, and the last to end counts.
fn mb_per_second(streams: &[Streamed]) -> f64 {
    let bytes: f64 = streams.iter().map(|stream| stream.bytes).sum();
    bytes / 1e6 / streams.iter().map(|stream| stream.seconds).fold(f64::MIN_POSITIVE, f64::max)
}

/// Removes the files in a directory.
fn clear(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_stream_says_how_long_all_took() {
        let stream = |bytes, seconds| Streamed { bytes, seconds };
        let mb = mb_per_second(&[stream(3e6, 1.0), stream(5e6, 4.0)]);
        assert!((mb - 2.0).abs() < 1e-9, "{mb}");
    }

    #[test]
    fn fio_is_told_the_same_as_the_probe() {
        for case in cases() {
            let arguments = fio::arguments(&case, Path::new("/x"));
            let stream = case.stream();
            for expected in [
                format!("--bs={}", stream.block_bytes.0),
                format!("--numjobs={}", case.streams),
                format!("--io_size={}", case.file.0 * stream.passes.unwrap()),
            ] {
                assert!(arguments.contains(&expected), "{}: {expected}", case.name);
            }
            assert_eq!(case.writes(), case.fio_name().contains("write"));
        }
    }
}
