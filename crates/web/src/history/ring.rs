//! Values over time in a file of fixed size; docs/formats/history.md draws its bytes.
//!
//! The file has a header and two rings: fine samples, and means of minutes. The place of a sample follows from its time alone, and each
//! sample carries its time and a checksum. So there is nothing to keep in step: a sample that was half written when the process or
//! the machine ended is not there, and an old one that was not overwritten yet is known by its time.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};

/// What a file begins with; the last digit is the version.
const MAGIC: &[u8; 8] = b"FBRING01";
const HEADER_BYTES: u64 = 64;
/// Seconds of a mean.
pub const COARSE_SECONDS: u64 = 60;

/// The size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Values of a sample.
    pub columns: u32,
    /// Seconds from one fine sample to the next.
    pub fine_seconds: u32,
    /// Number of fine samples.
    pub fine: u32,
    /// Number of means.
    pub coarse: u32,
}

/// Which of the two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Samples as they were taken.
    Fine,
    /// Means of minutes.
    Coarse,
}

/// A file of samples.
pub struct Ring {
    file: File,
    layout: Layout,
}

/// A sample: seconds since 1970, and values; one that is not a number is not known.
pub type Sample = (u64, Vec<f64>);

impl Layout {
    fn header(self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(MAGIC);
        let parts = [self.columns, self.fine_seconds, self.fine, self.coarse];
        for (place, part) in parts.into_iter().enumerate() {
            bytes[8 + place * 4..12 + place * 4].copy_from_slice(&part.to_le_bytes());
        }
        bytes
    }

    fn sample_bytes(self) -> u64 {
        8 + 8 * u64::from(self.columns) + 8
    }

    /// Seconds from one sample to the next, and how many there are.
    fn grain(self, grain: Grain) -> (u64, u64) {
        match grain {
            Grain::Fine => (u64::from(self.fine_seconds), u64::from(self.fine)),
            Grain::Coarse => (COARSE_SECONDS, u64::from(self.coarse)),
        }
    }

    fn place(self, grain: Grain, time: u64) -> u64 {
        let (step, count) = self.grain(grain);
        let before = if grain == Grain::Fine { 0 } else { u64::from(self.fine) };
        HEADER_BYTES + (before + time / step % count) * self.sample_bytes()
    }

    /// Bytes of a file.
    #[must_use]
    pub fn file_bytes(self) -> u64 {
        HEADER_BYTES + (u64::from(self.fine) + u64::from(self.coarse)) * self.sample_bytes()
    }
}

impl Ring {
    /// Opens a file; one with another layout is replaced by an empty one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open(path: &Path, layout: Layout) -> Result<Ring> {
        let open = || {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?;
            let mut header = [0; HEADER_BYTES as usize];
            let found = file.read_exact_at(&mut header, 0);
            if found.is_err() || header != layout.header() {
                file.set_len(0)?;
                file.set_len(layout.file_bytes())?;
                file.write_all_at(&layout.header(), 0)?;
            } else if file.metadata()?.len() != layout.file_bytes() {
                file.set_len(layout.file_bytes())?;
            }
            std::io::Result::Ok(file)
        };
        let file = open().with_context(|| path.display().to_string())?;
        Ok(Ring { file, layout })
    }

    fn bytes_of(&self, time: u64, values: &[f64]) -> Vec<u8> {
        let mut bytes = time.to_le_bytes().to_vec();
        for place in 0..self.layout.columns as usize {
            bytes.extend(values.get(place).copied().unwrap_or(f64::NAN).to_le_bytes());
        }
        let sum = u64::from(crc32fast::hash(&bytes));
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    fn sample_of(&self, bytes: &[u8]) -> Option<Sample> {
        let words: Vec<[u8; 8]> =
            bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).collect();
        let (sum, rest) = words.split_last()?;
        let body = bytes.get(..bytes.len() - 8)?;
        if u64::from(crc32fast::hash(body)) != u64::from_le_bytes(*sum) {
            return None;
        }
        let (time, values) = rest.split_first()?;
        let values = values.iter().map(|word| f64::from_le_bytes(*word)).collect();
        Some((u64::from_le_bytes(*time), values))
    }

    fn write(&self, grain: Grain, time: u64, values: &[f64]) -> Result<()> {
        let bytes = self.bytes_of(time, values);
        Ok(self.file.write_all_at(&bytes, self.layout.place(grain, time))?)
    }

    /// Adds a fine sample, and puts the mean of its minute anew.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&self, time: u64, values: &[f64]) -> Result<()> {
        let step = u64::from(self.layout.fine_seconds);
        self.write(Grain::Fine, time / step * step, values)?;
        let minute = time / COARSE_SECONDS * COARSE_SECONDS;
        let of_minute = self.read(Grain::Fine, minute, time)?;
        self.write(Grain::Coarse, minute, &mean(&of_minute, self.layout.columns as usize))
    }

    /// Samples from a time to another one, both included, in their order.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, grain: Grain, from: u64, to: u64) -> Result<Vec<Sample>> {
        let (step, count) = self.layout.grain(grain);
        let last = to / step;
        let first = from.div_ceil(step).max((last + 1).saturating_sub(count));
        let size = self.layout.sample_bytes();
        let mut bytes = vec![0; usize::try_from(size)?];
        let mut found = Vec::new();
        for number in first..=last {
            let time = number * step;
            self.file.read_exact_at(&mut bytes, self.layout.place(grain, time))?;
            found.extend(self.sample_of(&bytes).filter(|(at, _)| *at == time));
        }
        Ok(found)
    }
}

/// Means of what is known, column by column.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a few samples")]
pub fn mean(samples: &[Sample], columns: usize) -> Vec<f64> {
    let one = |column: usize| {
        let known: Vec<f64> = samples
            .iter()
            .filter_map(|(_, values)| values.get(column).copied())
            .filter(|value| value.is_finite())
            .collect();
        if known.is_empty() { f64::NAN } else { known.iter().sum::<f64>() / known.len() as f64 }
    };
    (0..columns).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { columns: 2, fine_seconds: 5, fine: 12, coarse: 3 };

    #[test]
    fn old_samples_give_way_and_minutes_have_their_means() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let ring = Ring::open(&path, LAYOUT).unwrap();
        let length = std::fs::metadata(&path).unwrap().len();
        for number in 0..60_u64 {
            let value = f64::from(u32::try_from(number).unwrap());
            ring.add(1_200 + number * 5, &[value, f64::NAN]).unwrap();
        }
        // As after kill -9.
        drop(ring);
        let ring = Ring::open(&path, LAYOUT).unwrap();
        let fine = ring.read(Grain::Fine, 0, 1_495).unwrap();
        assert_eq!((fine.len(), fine[0].0, fine[11].0), (12, 1_440, 1_495));
        assert_eq!(fine[11].1[0].to_bits(), 59_f64.to_bits());
        let coarse = ring.read(Grain::Coarse, 0, 1_495).unwrap();
        let means: Vec<(u64, f64)> =
            coarse.iter().map(|(time, values)| (*time, values[0])).collect();
        assert_eq!(means, [(1_320, 29.5), (1_380, 41.5), (1_440, 53.5)]);
        assert!(coarse[0].1[1].is_nan());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length);
    }

    #[test]
    fn a_torn_sample_is_not_there_and_the_others_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let ring = Ring::open(&path, LAYOUT).unwrap();
        for time in [100, 105, 110] {
            ring.add(time, &[1.0, 2.0]).unwrap();
        }
        let place = LAYOUT.place(Grain::Fine, 105);
        File::options().write(true).open(&path).unwrap().write_all_at(&[7], place + 9).unwrap();
        let times: Vec<u64> =
            ring.read(Grain::Fine, 0, 120).unwrap().iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [100, 110]);
    }

    #[test]
    fn a_file_of_another_layout_or_no_file_of_ours_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        std::fs::write(&path, "nonsense").unwrap();
        Ring::open(&path, LAYOUT).unwrap().add(100, &[1.0, 2.0]).unwrap();
        let other = Layout { columns: 3, ..LAYOUT };
        let ring = Ring::open(&path, other).unwrap();
        assert!(ring.read(Grain::Fine, 0, 200).unwrap().is_empty());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), other.file_bytes());
    }
}
