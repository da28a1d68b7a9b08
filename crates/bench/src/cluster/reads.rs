//! A large file whose bytes lie with its owner, read on another node: for the first time, again, and while somebody has it open for
//! writing, when each read of the program is a call to the owner.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;

use super::Bench;
use super::report::Section;
use super::trial::Trial;
use crate::figure::{Figure, Figures};

/// Bytes of one read of the program, and what its rate is called.
const STEPS: [(usize, Figure); 2] = [(8 << 10, Figure::FarRead8), (1 << 20, Figure::FarRead1024)];

impl Bench<'_> {
    /// Reads in turn.
    ///
    /// # Errors
    /// If the file cannot be written or read.
    pub fn reads(&self, trial: &Trial, sections: &mut Vec<Section>) -> Result<()> {
        const CALLS: &str = "open for writing elsewhere";
        let section = Section::begin(
            sections,
            "A large file of the owner's disk, read on another node",
            CALLS,
        );
        let bytes = self.amounts.far_file;
        for round in 0..self.rounds {
            let mut found = [CALLS, "first read", "read again"].map(|name| (name, Figures::new()));
            for (step, figure) in STEPS {
                let name = format!("far-{round}-{step}");
                let (there, here) =
                    (trial.on_owner("data")?.join(&name), trial.on_another("data")?.join(&name));
                write(&there, bytes)?;
                let rate = || -> Result<f64> {
                    self.interrupt.check()?;
                    read(&here, step, bytes)
                };
                let writer = OpenOptions::new().append(true).open(&there);
                let writer = writer.with_context(|| there.display().to_string())?;
                let with_calls = rate()?;
                drop(writer);
                for ((_, figures), value) in found.iter_mut().zip([with_calls, rate()?, rate()?]) {
                    figures.insert(figure, value);
                }
                fs::remove_file(&there).with_context(|| there.display().to_string())?;
            }
            found.iter().for_each(|(name, figures)| section.note(round, name, figures));
        }
        Ok(())
    }
}

/// Writes a file, and has it on the disk.
fn write(path: &Path, bytes: u64) -> Result<()> {
    let at = || path.display().to_string();
    let mut file = File::create(path).with_context(at)?;
    let block = vec![7; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(block.len() as u64);
        file.write_all(&block[..length as usize]).with_context(at)?;
        left -= length;
    }
    file.sync_all().with_context(at)
}

/// Reads a file from one end to the other. Returns MB/s.
fn read(path: &Path, step: usize, bytes: u64) -> Result<f64> {
    let at = || path.display().to_string();
    let start = SystemClock.instant();
    let mut file = File::open(path).with_context(at)?;
    let (mut buffer, mut all) = (vec![0; step], 0);
    loop {
        let read = file.read(&mut buffer).with_context(at)?;
        if read == 0 {
            break;
        }
        all += read as u64;
    }
    ensure!(all == bytes, "{}: {all} of {bytes} bytes were read", path.display());
    Ok(bytes as f64 / 1e6 / (SystemClock.instant() - start).as_secs_f64())
}
