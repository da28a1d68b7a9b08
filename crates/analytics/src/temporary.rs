//! The life of temporary files: made, grown page by page, renamed, overwritten, re-read, deleted.
//!
//! A [`TempLife`] says how many files there are and what becomes of each; what stands in them is up
//! to a [`Content`]. Files grow by writes of one page, 64 to 128 KiB, and nothing is preallocated or
//! synced. Every page that is read back is checked against the checksum of what was written there
//! last. Draws come from a seeded generator and never from the files, so that the same seed makes the
//! same calls on any file system. Memory: one page, and four bytes per page of the files alive.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use forebay_base::ByteSize;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, LogNormal};
use serde::{Deserialize, Serialize};

use crate::amount::{Scale, Size};
use crate::error::{Error, Result};

/// The least page of a temporary file.
pub const TEMP_PAGE_BYTES_MIN: usize = 64 << 10;
/// The largest page of a temporary file.
pub const TEMP_PAGE_BYTES_MAX: usize = 128 << 10;
/// Pages are a multiple of this.
const PAGE_UNIT_BYTES: usize = 4 << 10;
/// The largest file.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// How large files are: lognormal, cut to bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileSizes {
    /// Half of the files are smaller.
    pub median: Size,
    /// Standard deviation of the logarithm; 0 for files of one size.
    pub sigma: f64,
    /// No file is smaller.
    pub least: ByteSize,
    /// No file is larger.
    pub most: Size,
}

impl Default for FileSizes {
    /// 512 KiB and a sigma of 1, from 64 KiB to 4 MiB: three of four below 1 MiB.
    fn default() -> FileSizes {
        FileSizes {
            median: ByteSize::kib(512).into(),
            sigma: 1.0,
            least: ByteSize::kib(64),
            most: ByteSize::mib(4).into(),
        }
    }
}

/// [`FileSizes`] at one scale.
#[derive(Clone, Copy, Debug)]
pub struct SizeSampler {
    sizes: LogNormal<f64>,
    mean: f64,
    least: u64,
    most: u64,
}

impl FileSizes {
    /// The sizes at `scale`.
    ///
    /// # Errors
    /// [`Error::Setting`] if they are no distribution.
    pub fn at(&self, scale: Scale) -> Result<SizeSampler> {
        let (median, most) = (self.median.at(scale).0, self.most.at(scale).0);
        let refuse = |value: String, allowed: &str| Error::Setting {
            setting: "temp_bytes",
            value,
            allowed: allowed.to_owned(),
        };
        if !(self.sigma.is_finite() && self.sigma >= 0.0) || median == 0 {
            let value = format!("median {} with sigma {}", ByteSize(median), self.sigma);
            return Err(refuse(value, "a median above 0 and a sigma of 0 or more"));
        }
        if self.least.0 > most || most > FILE_BYTES_MAX {
            let value = format!("from {} to {}", self.least, ByteSize(most));
            return Err(refuse(value, "bounds in order, up to 1 TiB"));
        }
        let sizes = LogNormal::new((median as f64).ln(), self.sigma)
            .unwrap_or_else(|_| unreachable!("sigma was checked"));
        let mean = median as f64 * (0.5 * self.sigma * self.sigma).exp();
        Ok(SizeSampler { sizes, mean, least: self.least.0, most })
    }
}

impl SizeSampler {
    /// The mean of the sizes, about: that of the distribution before it is cut, within the bounds.
    #[must_use]
    pub fn mean_bytes(&self) -> u64 {
        (self.mean as u64).clamp(self.least, self.most)
    }

    /// One size in bytes.
    pub fn draw(&self, random: &mut StdRng) -> u64 {
        (self.sizes.sample(random) as u64).clamp(self.least, self.most)
    }
}

/// What stands in temporary files, and who reads it.
pub trait Content {
    /// File `number` is about to be made.
    ///
    /// # Errors
    /// Whatever ends the life of all files.
    fn begin(&mut self, number: u64) -> Result<()>;

    /// Fills the page at `offset` of file `number`: when it is made, and again when it is overwritten.
    fn fill(&mut self, number: u64, offset: u64, page: &mut [u8]);

    /// Takes the page at `offset` of file `number` as it was read back; it is known to be as it was
    /// filled last.
    fn take(&mut self, number: u64, offset: u64, page: &[u8]);
}

/// How many temporary files there are and what becomes of each.
#[derive(Clone, Copy, Debug)]
pub struct TempLife {
    /// Files in all.
    pub files: u64,
    /// How large they are.
    pub sizes: SizeSampler,
    /// Files kept at a time beside the newest.
    pub live: usize,
    /// Files read for each that is made: itself, then any that is alive.
    pub reads: u32,
    /// The part of the files that is renamed, 0 to 1.
    pub renames: f64,
    /// For each file made, how likely one that is alive is overwritten in part, 0 to 1.
    pub overwrites: f64,
}

/// What was done with temporary files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TempCounts {
    /// Files made and deleted.
    pub files: u64,
    /// Files renamed.
    pub renamed: u64,
    /// Times that a file was overwritten in part.
    pub overwritten: u64,
    /// Bytes written, those overwritten included.
    pub written_bytes: u64,
    /// Bytes read back.
    pub read_bytes: u64,
}

impl TempCounts {
    /// The counts by the names of their figures.
    #[must_use]
    pub fn figures(&self) -> [(&'static str, f64); 5] {
        [
            ("temp_files", self.files as f64),
            ("temp_renamed", self.renamed as f64),
            ("temp_overwritten", self.overwritten as f64),
            ("temp_read_bytes", self.read_bytes as f64),
            ("temp_written_bytes", self.written_bytes as f64),
        ]
    }
}

/// One temporary file that is alive.
struct TempFile {
    number: u64,
    path: PathBuf,
    length: u64,
    page_bytes: usize,
    /// CRC-32 of each page.
    sums: Vec<u32>,
}

impl TempLife {
    /// Lets the files live in `directory`, one after another; `progress` hears their number. None is
    /// left at the end; after an error some may be.
    ///
    /// # Errors
    /// [`Error::Setting`] if a part is not from 0 to 1; [`Error::WrongContent`] if a file is not as it
    /// was written; [`Error::Io`]; those of `content`.
    pub fn run(
        &self,
        directory: &Path,
        random: &mut StdRng,
        content: &mut dyn Content,
        progress: &mut dyn FnMut(u64),
    ) -> Result<TempCounts> {
        check_part("renames", self.renames)?;
        check_part("overwrites", self.overwrites)?;
        let mut area =
            Area { page: vec![0; TEMP_PAGE_BYTES_MAX], content, counts: TempCounts::default() };
        let mut alive: VecDeque<TempFile> = VecDeque::new();
        for number in 0..self.files {
            area.content.begin(number)?;
            let length = self.sizes.draw(random);
            let page_bytes =
                random.random_range(TEMP_PAGE_BYTES_MIN..=TEMP_PAGE_BYTES_MAX) / PAGE_UNIT_BYTES;
            let mut file = area.make(directory, number, length, page_bytes * PAGE_UNIT_BYTES)?;
            if random.random_bool(self.renames) {
                area.rename(directory, &mut file)?;
            }
            alive.push_back(file);
            for read in 0..self.reads {
                let newest = alive.len() - 1;
                let one = if read == 0 { newest } else { random.random_range(0..=newest) };
                area.read(&alive[one])?;
            }
            if random.random_bool(self.overwrites) {
                let one = random.random_range(0..alive.len());
                let pages = alive[one].sums.len();
                let from = random.random_range(0..pages.max(1));
                let upto = random.random_range(from..pages.max(1)) + 1;
                area.overwrite(&mut alive[one], from..upto.min(pages))?;
            }
            if alive.len() > self.live {
                alive.pop_front().as_ref().map_or(Ok(()), remove)?;
            }
            area.counts.files += 1;
            progress(number + 1);
        }
        alive.iter().try_for_each(remove)?;
        Ok(area.counts)
    }
}

fn check_part(setting: &'static str, part: f64) -> Result<()> {
    if (0.0..=1.0).contains(&part) {
        return Ok(());
    }
    Err(Error::Setting { setting, value: part.to_string(), allowed: "from 0 to 1".to_owned() })
}

fn remove(file: &TempFile) -> Result<()> {
    fs::remove_file(&file.path).map_err(Error::io("remove", &file.path))
}

/// What all files share.
struct Area<'a> {
    page: Vec<u8>,
    content: &'a mut dyn Content,
    counts: TempCounts,
}

impl Area<'_> {
    fn make(
        &mut self,
        directory: &Path,
        number: u64,
        length: u64,
        page_bytes: usize,
    ) -> Result<TempFile> {
        let path = directory.join(format!("temp-{number}"));
        let mut out = File::create_new(&path).map_err(Error::io("create", &path))?;
        let pages = length.div_ceil(page_bytes as u64) as usize;
        let mut file =
            TempFile { number, path, length, page_bytes, sums: Vec::with_capacity(pages) };
        for page in 0..pages {
            let (offset, bytes) = file.place(page);
            let bytes = &mut self.page[..bytes];
            self.content.fill(number, offset, bytes);
            file.sums.push(crc32fast::hash(bytes));
            out.write_all(bytes).map_err(Error::io("write", &file.path))?;
        }
        self.counts.written_bytes += length;
        Ok(file)
    }

    fn rename(&mut self, directory: &Path, file: &mut TempFile) -> Result<()> {
        let renamed = directory.join(format!("kept-{}", file.number));
        fs::rename(&file.path, &renamed).map_err(Error::io("rename", &file.path))?;
        file.path = renamed;
        self.counts.renamed += 1;
        Ok(())
    }

    fn overwrite(&mut self, file: &mut TempFile, pages: std::ops::Range<usize>) -> Result<()> {
        let out =
            File::options().write(true).open(&file.path).map_err(Error::io("open", &file.path))?;
        for page in pages {
            let (offset, bytes) = file.place(page);
            let bytes = &mut self.page[..bytes];
            self.content.fill(file.number, offset, bytes);
            file.sums[page] = crc32fast::hash(bytes);
            out.write_all_at(bytes, offset).map_err(Error::io("write", &file.path))?;
            self.counts.written_bytes += bytes.len() as u64;
        }
        self.counts.overwritten += 1;
        Ok(())
    }

    fn read(&mut self, file: &TempFile) -> Result<()> {
        let wrong = |reason: String| Error::WrongContent { path: file.path.clone(), reason };
        let mut input = File::open(&file.path).map_err(Error::io("open", &file.path))?;
        for (page, &sum) in file.sums.iter().enumerate() {
            let (offset, bytes) = file.place(page);
            let bytes = &mut self.page[..bytes];
            input.read_exact(bytes).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => {
                    wrong(format!("it ends before byte {} of {}", offset + 1, file.length))
                }
                _ => Error::io("read", &file.path)(error),
            })?;
            if crc32fast::hash(bytes) != sum {
                return Err(wrong(format!("the page at byte {offset} has another checksum")));
            }
            self.content.take(file.number, offset, bytes);
        }
        if input.read(&mut self.page[..1]).map_err(Error::io("read", &file.path))? != 0 {
            return Err(wrong(format!("it is longer than {} bytes", file.length)));
        }
        self.counts.read_bytes += file.length;
        Ok(())
    }
}

impl TempFile {
    /// Where a page lies: its offset and its bytes.
    fn place(&self, page: usize) -> (u64, usize) {
        let offset = page as u64 * self.page_bytes as u64;
        (offset, (self.page_bytes as u64).min(self.length - offset) as usize)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    /// Fills pages with a count and remembers them; can spoil the file it takes first.
    #[derive(Default)]
    struct Counting {
        pages: std::collections::BTreeMap<(u64, u64), u8>,
        filled: u8,
        taken: u64,
        spoil: Option<PathBuf>,
    }

    impl Content for Counting {
        fn begin(&mut self, _number: u64) -> Result<()> {
            Ok(())
        }

        fn fill(&mut self, number: u64, offset: u64, page: &mut [u8]) {
            self.filled = self.filled.wrapping_add(1);
            page.fill(self.filled);
            self.pages.insert((number, offset), self.filled);
        }

        fn take(&mut self, number: u64, offset: u64, page: &[u8]) {
            let expected = self.pages[&(number, offset)];
            assert!(page.iter().all(|&byte| byte == expected), "page {offset} of {number}");
            self.taken += page.len() as u64;
            if let Some(directory) = self.spoil.take() {
                let path = directory.join(format!("temp-{number}"));
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(&[expected ^ 1], 7).unwrap();
            }
        }
    }

    fn life(reads: u32) -> TempLife {
        let sizes = FileSizes {
            median: ByteSize::kib(150).into(),
            least: ByteSize::kib(1),
            ..FileSizes::default()
        };
        let sizes = sizes.at(Scale::FULL).unwrap();
        TempLife { files: 40, sizes, live: 5, reads, renames: 0.3, overwrites: 0.5 }
    }

    fn live(reads: u32, content: &mut Counting, directory: &Path) -> Result<TempCounts> {
        life(reads).run(directory, &mut StdRng::seed_from_u64(5), content, &mut |_| {})
    }

    #[test]
    fn what_is_read_is_what_was_written_last_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let mut content = Counting::default();
        let counts = live(4, &mut content, directory.path()).unwrap();
        assert_eq!(counts.files, 40);
        assert_eq!(counts.read_bytes, content.taken);
        assert!((5..=20).contains(&counts.renamed) && (10..=30).contains(&counts.overwritten));
        assert!(counts.read_bytes > 2 * counts.written_bytes, "{counts:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_same_seed_lives_the_same_life() {
        let run = || {
            let directory = tempfile::tempdir().unwrap();
            live(2, &mut Counting::default(), directory.path()).unwrap()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn a_byte_that_changed_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let spoil = Some(directory.path().to_owned());
        let mut content = Counting { spoil, ..Counting::default() };
        let mut life = life(8);
        (life.renames, life.overwrites) = (0.0, 0.0);
        let error = life
            .run(directory.path(), &mut StdRng::seed_from_u64(5), &mut content, &mut |_| {})
            .unwrap_err();
        assert!(matches!(&error, Error::WrongContent { .. }), "{error}");
        assert!(error.to_string().contains("checksum"), "{error}");
    }

    #[test]
    fn sizes_that_are_no_distribution_are_refused() {
        let refused = |sizes: FileSizes| {
            assert!(matches!(sizes.at(Scale::FULL), Err(Error::Setting { .. })), "{sizes:?}");
        };
        refused(FileSizes { sigma: f64::NAN, ..FileSizes::default() });
        refused(FileSizes { median: ByteSize(0).into(), ..FileSizes::default() });
        refused(FileSizes { most: ByteSize::kib(1).into(), ..FileSizes::default() });
    }
}
