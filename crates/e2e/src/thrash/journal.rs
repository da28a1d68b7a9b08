//! What programs saw, and whether it may be so.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::faults::Loss;
use super::workers::{DIRECTORIES, FILES, Shared};
use super::{HANG_MAX, Summary};
use crate::history::{Access, Entry, Move, NAMES, Names, Outcome, Register, check};

/// Bytes of a record of a log.
pub const RECORD: usize = 64;
/// Crashes that one fault may cause: the owner's, and that of the node that takes over.
const CRASHES: usize = 2;

/// When a call began and ended, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub begin: u64,
    pub end: u64,
}

/// A record of a log: its number eight times.
pub fn record(number: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    for part in bytes.chunks_exact_mut(8) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// The numbers of the records in a log.
fn records(bytes: &[u8], name: &str) -> Vec<u64> {
    assert_eq!(bytes.len() % RECORD, 0, "{name} ends in the middle of a record");
    let number = |bytes: &[u8]| {
        let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        assert_eq!(bytes, record(number), "{name} holds a torn record");
        number
    };
    bytes.chunks_exact(RECORD).map(number).collect()
}

/// Everything that programs saw.
#[derive(Debug, Default)]
pub struct Journal {
    /// Calls on each directory.
    pub moves: [Vec<Entry<Move>>; DIRECTORIES],
    /// Calls on each register, by file and place.
    pub accesses: BTreeMap<(usize, usize), Vec<Entry<Access>>>,
    /// Records that were appended to files of all: file, times, number.
    pub appends: Vec<(usize, Span, u64, Outcome)>,
    /// Records of logs that were synced: file, number.
    pub synced: Vec<(String, u64)>,
    /// Files that were made and synced: name, number and how many records.
    pub made: Vec<(String, u64, usize)>,
    /// Names that stood for what nobody has written.
    pub senseless: Vec<(u64, String)>,
    /// Calls that failed with something else than that a name is or is not there.
    pub failures: Vec<(u64, u64, String)>,
    /// All calls, to find those that took long.
    pub longest: Vec<(u64, u64, String)>,
    /// Calls that succeeded.
    pub calls: usize,
}

impl Journal {
    /// Adds what another program saw.
    pub fn add(&mut self, other: Journal) {
        for (own, moves) in self.moves.iter_mut().zip(other.moves) {
            own.extend(moves);
        }
        for (key, accesses) in other.accesses {
            self.accesses.entry(key).or_default().extend(accesses);
        }
        self.appends.extend(other.appends);
        self.synced.extend(other.synced);
        self.made.extend(other.made);
        self.senseless.extend(other.senseless);
        self.failures.extend(other.failures);
        self.longest.extend(other.longest);
        self.calls += other.calls;
    }

    /// Checks everything.
    ///
    /// # Panics
    /// If a promise was broken.
    pub fn check(mut self, shared: &Shared, roots: &[PathBuf]) -> Summary {
        let longest = self.check_waits(shared);
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for (_, _, what) in &self.failures {
            let kind = what.split(", program").next().unwrap_or(what);
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
        let summary = Summary { calls: self.calls, failures: kinds.into_iter().collect(), longest };
        println!("{summary:#?}");
        for (end, what) in &self.senseless {
            // A disk that lost bytes may have lost those of a file whose name is there.
            let mut faults = shared.faults().into_iter();
            let may_be = faults.any(|(begin, _, loss)| loss == Loss::Bytes && begin < *end);
            assert!(may_be, "at {:.6} s {what}", *end as f64 / 1e9);
        }
        for root in roots {
            self.check_files(root, shared);
        }
        for (directory, moves) in self.moves.iter_mut().enumerate() {
            moves.extend(crashes(shared, Loss::Names, &Move::Crashed));
            if let Err(violation) = check(Names::new([0; NAMES]), moves) {
                panic!("directory {directory}: {violation}");
            }
        }
        for ((file, place), accesses) in &mut self.accesses {
            accesses.extend(crashes(shared, Loss::Bytes, &Access::Crashed));
            if let Err(violation) = check(Register::new(0), accesses) {
                panic!("file {file}, register {place}: {violation}");
            }
        }
        summary
    }

    /// No call took longer than the faults meanwhile and the limit.
    fn check_waits(&self, shared: &Shared) -> Duration {
        let faults = shared.faults();
        let mut longest = 0;
        for (begin, end, what) in &self.longest {
            longest = longest.max(end - begin);
            let broken: u64 = faults
                .iter()
                .map(|(from, to, _)| to.min(end).saturating_sub(*from.max(begin)))
                .sum();
            let allowed = broken + HANG_MAX.as_nanos() as u64;
            assert!(end - begin <= allowed, "{what} took {:.1} s", (end - begin) as f64 / 1e9);
        }
        Duration::from_nanos(longest)
    }

    /// What was synced is there; what was appended is whole, once, and in order.
    fn check_files(&self, root: &std::path::Path, shared: &Shared) {
        let read = |name: &str| {
            let path = root.join(name);
            let bytes =
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            records(&bytes, &path.display().to_string())
        };
        let mut logs: HashMap<&str, Vec<u64>> = HashMap::new();
        for (name, number) in &self.synced {
            let log = logs.entry(name).or_insert_with(|| read(name));
            assert!(log.contains(number), "{}: synced record {number} of {name}", root.display());
        }
        for (name, number, count) in &self.made {
            assert_eq!(read(name), vec![*number; *count], "{}: {name}", root.display());
        }
        for file in 0..FILES {
            let mut appends: Vec<_> =
                self.appends.iter().filter(|append| append.0 == file).collect();
            if appends.is_empty() {
                continue;
            }
            let found = read(&format!("appended-{file}"));
            let places: HashMap<u64, usize> =
                found.iter().enumerate().map(|(place, number)| (*number, place)).collect();
            assert_eq!(places.len(), found.len(), "a record is in appended-{file} twice");
            appends.sort_by_key(|(_, span, ..)| span.begin);
            // The last place of a record whose call had ended.
            let mut before: Option<usize> = None;
            let mut ended: Vec<(u64, usize)> = Vec::new();
            for (_, span, number, outcome) in appends {
                let Some(place) = places.get(number) else {
                    let mut faults = shared.faults().into_iter();
                    let may_be_lost =
                        faults.any(|(_, end, loss)| loss == Loss::Bytes && end > span.begin);
                    let lost = *outcome == Outcome::Done && !may_be_lost;
                    assert!(!lost, "{}: record {number} of appended-{file}", root.display());
                    continue;
                };
                ended.retain(|(end, place)| {
                    let is_over = *end < span.begin;
                    before = if is_over { before.max(Some(*place)) } else { before };
                    !is_over
                });
                assert!(
                    before < Some(*place),
                    "appended-{file}: record {number} is before an earlier one"
                );
                ended.push((span.end, *place));
            }
        }
    }
}

/// The crashes by which faults may have lost as much.
fn crashes<C: Clone>(shared: &Shared, loss: Loss, call: &C) -> Vec<Entry<C>> {
    let losing = shared.faults().into_iter().filter(|(.., lost)| *lost >= loss);
    losing
        .flat_map(|(begin, end, _)| {
            (0..CRASHES).map(move |_| Entry {
                begin,
                end,
                by: "a fault".to_owned(),
                call: call.clone(),
                outcome: Outcome::Unknown,
            })
        })
        .collect()
}
