//! Load with a memory: writers that know, after the daemon has died, what must be there.
//!
//! Each writer works in a directory of its own in `data`, one operation after the other. The promise
//! is that a crash leaves a prefix of what happened, and that the prefix holds everything before the
//! last acknowledged fsync. So the directory must look as it did at that fsync, or after one of the
//! operations since, and every byte that an fsync covered must be there. Bytes are not part of the
//! prefix: a file may hold what was written to it later, also after it was cut to nothing, as an open that
//! overtakes the release of the handle before cuts in place. But all bytes of a file must be its own.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_e2e::content::pattern;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

/// Files of one writer at the same time.
const FILES_MAX: usize = 12;
const BYTES_MAX: usize = 150_000;

/// What a file of a writer holds: the first bytes of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    /// The seed of its first content.
    file: u64,
    seed: u64,
    length: usize,
    /// Bytes that an acknowledged fsync covers.
    synced: usize,
}

type Names = BTreeMap<String, Content>;

#[derive(Clone, Debug)]
enum Operation {
    /// Makes a file, or gives an existing one new content by O_TRUNC.
    Write {
        name: String,
        seed: u64,
        length: usize,
    },
    Append {
        name: String,
        length: usize,
    },
    /// Replaces `to` if it is there.
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
}

impl Operation {
    fn perform(&self, folder: &Path, names: &Names) -> io::Result<()> {
        match self {
            Operation::Write { name, seed, length } => {
                File::create(folder.join(name))?.write_all(&pattern(*seed, *length))
            }
            Operation::Append { name, length } => {
                let content = names[name];
                let bytes = pattern(content.seed, content.length + length);
                OpenOptions::new()
                    .append(true)
                    .open(folder.join(name))?
                    .write_all(&bytes[content.length..])
            }
            Operation::Rename { from, to } => fs::rename(folder.join(from), folder.join(to)),
            Operation::Remove { name } => fs::remove_file(folder.join(name)),
        }
    }

    fn apply(&self, names: &mut Names) {
        match self {
            Operation::Write { name, seed, length } => {
                let file = names.get(name).map_or(*seed, |before| before.file);
                let content = Content { file, seed: *seed, length: *length, synced: 0 };
                names.insert(name.clone(), content);
            }
            Operation::Append { name, length } => {
                names.get_mut(name).expect("appends to a file that is there").length += length;
            }
            Operation::Rename { from, to } => {
                let content = names.remove(from).expect("renames a file that is there");
                names.insert(to.clone(), content);
            }
            Operation::Remove { name } => {
                names.remove(name);
            }
        }
    }
}

/// One thread's worth of load.
pub struct Writer {
    folder: PathBuf,
    random: StdRng,
    next_seed: u64,
    /// The directory as the last acknowledged fsync left it.
    settled: Names,
    /// What was done or begun after that.
    since: Vec<Operation>,
    /// The directory now, if nothing is lost.
    now: Names,
    /// Acknowledged fsyncs, to see that the load did its work.
    pub acknowledged: u64,
}

impl Writer {
    pub fn new(data: &Path, number: u64, seed: u64) -> Writer {
        let folder = data.join(format!("writer-{number}"));
        fs::create_dir(&folder).expect("makes the directory of a writer");
        File::open(&folder).and_then(|folder| folder.sync_all()).expect("syncs it");
        Writer {
            folder,
            random: StdRng::seed_from_u64(seed ^ (number << 32)),
            next_seed: number << 48,
            settled: Names::new(),
            since: Vec::new(),
            now: Names::new(),
            acknowledged: 0,
        }
    }

    /// Works until told to stop, or until the mount is dead. A dead mount is no error here: what it
    /// did not answer may have happened or not.
    pub fn work(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let operation = self.choose();
            self.since.push(operation.clone());
            if operation.perform(&self.folder, &self.now).is_err() {
                return;
            }
            operation.apply(&mut self.now);
            if self.random.random_range(0..4) == 0 && self.sync().is_err() {
                return;
            }
        }
    }

    fn choose(&mut self) -> Operation {
        self.next_seed += 1;
        let some_name = |random: &mut StdRng| format!("file-{}", random.random_range(0..FILES_MAX));
        let known = self.now.len();
        let existing = (known > 0).then(|| {
            self.now.keys().nth(self.random.random_range(0..known)).expect("in range").clone()
        });
        match (self.random.random_range(0..10), existing) {
            (0..=2, Some(name)) => {
                Operation::Append { name, length: self.random.random_range(1..BYTES_MAX / 8) }
            }
            (3..=4, Some(from)) => Operation::Rename { from, to: some_name(&mut self.random) },
            (5, Some(name)) => Operation::Remove { name },
            _ => Operation::Write {
                name: some_name(&mut self.random),
                seed: self.next_seed,
                length: self.random.random_range(0..BYTES_MAX),
            },
        }
    }

    /// An fsync of one file or of the directory; when it is acknowledged, everything before is settled.
    fn sync(&mut self) -> io::Result<()> {
        let known = self.now.len();
        let choice = self.random.random_range(0..=known);
        match self.now.iter_mut().nth(choice) {
            Some((name, content)) => {
                File::open(self.folder.join(name))?.sync_all()?;
                content.synced = content.length;
            }
            None => File::open(&self.folder)?.sync_all()?,
        }
        self.settled = self.now.clone();
        self.since.clear();
        self.acknowledged += 1;
        Ok(())
    }

    /// Checks the directory after a crash, and goes on from what is there.
    pub fn check(&mut self) {
        let found = self.found();
        let since = std::mem::take(&mut self.since);
        let longest = longest(&self.settled, &since);
        let mut candidate = self.settled.clone();
        let mut faults = vec![fault(&found, &candidate, &longest)];
        for operation in since {
            if faults.last().is_some_and(Option::is_none) {
                break;
            }
            operation.apply(&mut candidate);
            faults.push(fault(&found, &candidate, &longest));
        }
        assert!(
            faults.last().is_some_and(Option::is_none),
            "{} looks like no state since the last acknowledged fsync: {faults:#?}",
            self.folder.display()
        );
        // What is there after recovery is durable.
        for (name, content) in &mut candidate {
            let later = holding(&found[name], content, &longest);
            content.seed = later.unwrap_or(content.seed);
            content.length = found[name].len();
            content.synced = content.length;
        }
        self.settled = candidate.clone();
        self.now = candidate;
    }

    fn found(&self) -> BTreeMap<String, Vec<u8>> {
        fs::read_dir(&self.folder)
            .expect("the directory of a writer is durable")
            .map(|entry| {
                let entry = entry.expect("lists");
                let content = fs::read(entry.path()).expect("reads a file after recovery");
                (entry.file_name().into_string().expect("plain name"), content)
            })
            .collect()
    }
}

/// The greatest length that each content had, by file and seed.
type Longest = BTreeMap<(u64, u64), usize>;

fn longest(settled: &Names, since: &[Operation]) -> Longest {
    let mut names = settled.clone();
    let mut longest = BTreeMap::new();
    let mut note = |names: &Names| {
        for content in names.values() {
            let length = longest.entry((content.file, content.seed)).or_insert(0);
            *length = content.length.max(*length);
        }
    };
    note(&names);
    for operation in since {
        operation.apply(&mut names);
        note(&names);
    }
    longest
}

/// Why `found` is not the directory `expected`, if it is not.
fn fault(found: &BTreeMap<String, Vec<u8>>, expected: &Names, longest: &Longest) -> Option<String> {
    if !found.keys().eq(expected.keys()) {
        let (found, expected): (Vec<_>, Vec<_>) =
            (found.keys().collect(), expected.keys().collect());
        return Some(format!("names {found:?} instead of {expected:?}"));
    }
    found.iter().zip(expected.values()).find_map(|((name, bytes), content)| {
        if holding(bytes, content, longest).is_some() {
            return None;
        }
        let own = pattern(content.seed, bytes.len());
        if bytes.len() < content.synced {
            Some(format!("{name} has {} bytes, {} were synced", bytes.len(), content.synced))
        } else if bytes.len() > longest[&(content.file, content.seed)] {
            let written = longest[&(content.file, content.seed)];
            Some(format!("{name} has {} bytes, {written} were written", bytes.len()))
        } else if *bytes != own {
            let at = bytes.iter().zip(&own).position(|(a, b)| a != b);
            let length = bytes.len();
            Some(format!("{name} differs at {at:?} of {length} ({} synced)", content.synced))
        } else {
            None
        }
    })
}

/// The seed of the content, of those that the file had later, that it holds.
fn holding(bytes: &[u8], content: &Content, longest: &Longest) -> Option<u64> {
    let later = longest.range((content.file, content.seed + 1)..=(content.file, u64::MAX));
    let mut holds = later.filter(|((_, seed), most)| {
        bytes.len() <= **most && *bytes == *pattern(*seed, bytes.len())
    });
    holds.next().map(|((_, seed), _)| *seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer in a plain directory, stopped right after an acknowledged fsync.
    fn settled_writer(folder: &Path) -> Writer {
        let mut writer = Writer::new(folder, 0, 1);
        for _ in 0..200 {
            let operation = writer.choose();
            operation.perform(&writer.folder, &writer.now).expect("works on a plain directory");
            operation.apply(&mut writer.now);
        }
        for content in writer.now.values_mut() {
            content.synced = content.length;
        }
        writer.settled = writer.now.clone();
        writer
    }

    fn finds_fault(spoil: impl FnOnce(&Path)) -> bool {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut writer = settled_writer(folder.path());
        let longest = writer.now.iter().max_by_key(|(_, content)| content.length);
        spoil(&writer.folder.join(longest.expect("has files").0));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| writer.check())).is_err()
    }

    #[test]
    fn the_check_accepts_what_is_right_and_finds_what_is_lost() {
        assert!(!finds_fault(|_| {}));
        assert!(finds_fault(|file| fs::remove_file(file).expect("removes")));
        assert!(finds_fault(|file| fs::rename(file, file.with_extension("x")).expect("renames")));
        assert!(finds_fault(|file| {
            let file = OpenOptions::new().write(true).open(file).expect("opens");
            file.set_len(file.metadata().expect("stats").len() - 1).expect("truncates");
        }));
        assert!(finds_fault(|file| {
            let mut bytes = fs::read(file).expect("reads");
            bytes[1000] ^= 1;
            fs::write(file, bytes).expect("writes");
        }));
    }
}
