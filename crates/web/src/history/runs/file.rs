//! The file of runs: a place of fixed size for each; docs/formats/history.md draws its bytes.
//!
//! A place has a head (which run it is, and what it had used when it was last heard of) and points. Each point carries the birth of its run and a
//! checksum, and the ends of a run's points only grow. So nothing has to be kept in step: a point that is half written, is of an earlier run of
//! the place, or was there before neighbours were merged, is known by that and left out. Whatever ends the process in between, what is read
//! back overlaps nowhere.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::Moment;

use super::{POINTS_MAX, Point, Run, Seen};

/// What the file begins with; the last digit is the version.
const MAGIC: &[u8; 8] = b"FBRUNS01";
/// Bytes of the header, and of the head of a place: a divisor of a page, so that no head lies on two of them.
const HEAD_BYTES: usize = 128;
const POINT_BYTES: usize = 64;
const PLACE_BYTES: usize = HEAD_BYTES + POINTS_MAX * POINT_BYTES;
/// The longest number of a task.
const ID_BYTES_MAX: usize = 48;

/// An open file.
pub struct RunFile(File);

/// A run that was found in the file.
pub struct Found {
    pub place: usize,
    pub id: String,
    pub run: Run,
}

impl RunFile {
    /// Opens or makes a file with room for `places` runs. One with less room grows; one with more is cut off behind them. What is not
    /// such a file is replaced by an empty one.
    pub fn open(path: &Path, places: usize) -> Result<(RunFile, Vec<Found>)> {
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(path)?;
            let mut header = [0; HEAD_BYTES];
            if file.read_exact_at(&mut header, 0).is_err() || header != self::header() {
                file.set_len(0)?;
                file.write_all_at(&self::header(), 0)?;
            }
            file.set_len(offset(places) as u64)?;
            std::io::Result::Ok(RunFile(file))
        };
        let file = open().with_context(|| path.display().to_string())?;
        let mut found = Vec::new();
        let mut bytes = vec![0; PLACE_BYTES];
        for place in 0..places {
            file.0
                .read_exact_at(&mut bytes, offset(place) as u64)
                .with_context(|| path.display().to_string())?;
            let Some((id, run, is_whole)) = run_of(&bytes) else { continue };
            if !is_whole {
                // The next point goes behind those that there are.
                file.write(place, (&id, &run), 0)?;
            }
            found.push(Found { place, id, run });
        }
        Ok((file, found))
    }

    /// Keeps what is known of a run, and its points from number `from` on.
    pub fn write(&self, place: usize, (id, run): (&str, &Run), from: usize) -> Result<()> {
        let start = offset(place);
        let mut bytes = Vec::new();
        for point in run.points.iter().skip(from) {
            put_point(&mut bytes, run.birth, point);
        }
        self.0.write_all_at(&bytes, (start + HEAD_BYTES + from * POINT_BYTES) as u64)?;
        Ok(self.0.write_all_at(&head(id, run), start as u64)?)
    }
}

/// Whether a task of this number has room in a head.
pub fn fits(id: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len())
}

fn offset(place: usize) -> usize {
    HEAD_BYTES + place * PLACE_BYTES
}

fn header() -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes
}

/// Adds the checksum of all from `start` on.
fn seal(bytes: &mut Vec<u8>, start: usize) {
    let sum = u64::from(crc32fast::hash(&bytes[start..]));
    bytes.extend(sum.to_le_bytes());
}

fn put_numbers(bytes: &mut Vec<u8>, numbers: &[f64]) {
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
}

fn head(id: &str, run: &Run) -> Vec<u8> {
    let Seen { real, processor, io_wait, read, written } = run.last;
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    bytes.extend(run.birth.0.to_le_bytes());
    bytes.extend(run.heard.0.to_le_bytes());
    bytes.extend(run.attempt.to_le_bytes());
    bytes.extend((id.len() as u32).to_le_bytes());
    put_numbers(&mut bytes, &[real, processor, io_wait, read, written]);
    bytes.extend(id.as_bytes());
    bytes.resize(HEAD_BYTES - 16, 0);
    put_numbers(&mut bytes, &[run.stretch]);
    seal(&mut bytes, 0);
    bytes
}

fn put_point(bytes: &mut Vec<u8>, birth: Moment, point: &Point) {
    let start = bytes.len();
    let Point { end, seconds, processors, io_wait, read, written } = *point;
    bytes.extend(birth.0.to_le_bytes());
    put_numbers(bytes, &[end, seconds, processors, io_wait, read, written]);
    seal(bytes, start);
}

/// The words before the checksum, if that is right.
fn words(bytes: &[u8]) -> Option<Vec<[u8; 8]>> {
    let body = bytes.get(..bytes.len().checked_sub(8)?)?;
    let mut words: Vec<[u8; 8]> =
        bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).collect();
    let sum = u64::from_le_bytes(words.pop()?);
    (sum == u64::from(crc32fast::hash(body))).then_some(words)
}

/// The run of a place, and whether its points lie one after the other from the first place on.
fn run_of(bytes: &[u8]) -> Option<(String, Run, bool)> {
    let (head, points) = bytes.split_at_checked(HEAD_BYTES)?;
    let words = words(head)?;
    let moment = |at: usize| Some(Moment(u64::from_le_bytes(*words.get(at)?)));
    let number = |at: usize| Some(f64::from_le_bytes(*words.get(at)?));
    let half = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let length = half(20)? as usize;
    let id = head.get(64..64 + length.min(ID_BYTES_MAX))?;
    let id = String::from_utf8(id.to_vec()).ok().filter(|id| fits(id))?;
    let mut run = Run {
        birth: moment(0)?,
        heard: moment(1)?,
        attempt: half(16)?,
        last: Seen {
            real: number(3)?,
            processor: number(4)?,
            io_wait: number(5)?,
            read: number(6)?,
            written: number(7)?,
        },
        lately: None,
        stretch: number(14)?,
        points: Vec::new(),
    };
    let mut is_whole = true;
    for (at, bytes) in points.chunks_exact(POINT_BYTES).enumerate() {
        let Some(point) = point_of(bytes, run.birth) else { continue };
        if run.points.last().is_none_or(|before| point.end > before.end) {
            is_whole &= at == run.points.len();
            run.points.push(point);
        }
    }
    Some((id, run, is_whole))
}

fn point_of(bytes: &[u8], birth: Moment) -> Option<Point> {
    let words = words(bytes)?;
    let (first, rest) = words.split_first()?;
    if u64::from_le_bytes(*first) != birth.0 {
        return None;
    }
    let numbers: Vec<f64> = rest.iter().map(|word| f64::from_le_bytes(*word)).collect();
    let [end, seconds, processors, io_wait, read, written] = numbers.try_into().ok()?;
    let point = Point { end, seconds, processors, io_wait, read, written };
    (end.is_finite() && seconds.is_finite() && seconds > 0.0).then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(birth: u64, points: usize) -> Run {
        let point = |number: usize| {
            let end = f64::from(u32::try_from(number).unwrap()) * 2.0 + 2.0;
            let (processors, io_wait, written) = (1.0, 0.5, 0.0);
            Point { end, seconds: 2.0, processors, io_wait, read: end, written }
        };
        Run {
            birth: Moment(birth),
            attempt: 1,
            heard: Moment(birth + 1),
            points: (0..points).map(point).collect(),
            ..Run::default()
        }
    }

    fn ends(run: &Run) -> Vec<f64> {
        run.points.iter().map(|point| point.end).collect()
    }

    #[test]
    fn what_is_half_written_or_of_an_earlier_run_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs");
        let (file, found) = RunFile::open(&path, 3).unwrap();
        assert!(found.is_empty());
        file.write(1, ("7.2", &run(5, 4)), 0).unwrap();
        file.write(1, ("8", &run(9, 2)), 0).unwrap();
        file.write(2, ("9", &run(9, 3)), 0).unwrap();
        file.0.write_all_at(b"x", (offset(2) + HEAD_BYTES + POINT_BYTES + 9) as u64).unwrap();
        let (_, found) = RunFile::open(&path, 3).unwrap();
        let shown: Vec<(usize, &str, Vec<f64>)> =
            found.iter().map(|one| (one.place, &*one.id, ends(&one.run))).collect();
        assert_eq!(shown, [(1, "8", vec![2.0, 4.0]), (2, "9", vec![2.0, 6.0])]);
        assert_eq!(found[0].run.heard, Moment(10));
        file.0.write_all_at(b"x", offset(2) as u64 + 3).unwrap();
        assert_eq!(RunFile::open(&path, 3).unwrap().1.len(), 1, "a torn head frees its place");
    }

    #[test]
    fn a_file_grows_shrinks_and_begins_anew_if_it_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs");
        std::fs::write(&path, "nonsense").unwrap();
        let (file, _) = RunFile::open(&path, 2).unwrap();
        file.write(0, ("1", &run(1, 1)), 0).unwrap();
        file.write(1, ("2", &run(1, 1)), 0).unwrap();
        assert_eq!(RunFile::open(&path, 5).unwrap().1.len(), 2);
        assert_eq!(RunFile::open(&path, 1).unwrap().1.len(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), offset(1) as u64);
    }

    #[test]
    fn a_merge_that_was_cut_off_anywhere_loses_and_doubles_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs");
        let whole = run(1, POINTS_MAX);
        let merged: Vec<Point> = whole.points.chunks(2).map(super::super::merged).collect();
        for cut in 0..=merged.len() {
            let (file, _) = RunFile::open(&path, 1).unwrap();
            file.write(0, ("7", &whole), 0).unwrap();
            file.write(0, ("7", &Run { points: merged[..cut].to_vec(), ..whole.clone() }), 0)
                .unwrap();
            let (_, found) = RunFile::open(&path, 1).unwrap();
            let points = &found[0].run.points;
            let seconds: f64 = points.iter().map(|point| point.seconds).sum();
            assert_eq!(seconds, whole.points.last().unwrap().end, "cut off after {cut} points");
            let again = RunFile::open(&path, 1).unwrap().1;
            assert_eq!(again[0].run.points, *points, "and they were put in order");
        }
    }
}
