//! A census: what the files of each fileset hold, by user and by the age of their content. Pure; `namespace/census.rs` shows it the
//! inodes.
//!
//! A fileset has a row for each of at most [`USERS_MAX`] users; what further users hold is summed up in [`FilesetCensus::others`].

use std::time::Duration;

use forebay_base::Timestamp;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::record::{InodeRecord, Kind};

/// The most users of a fileset that have a row of their own.
pub const USERS_MAX: usize = 10_000;

const DAY: u64 = 86_400;

/// Classes of age: the content of a file changed last less than so many seconds ago. The last class has no bound.
pub const AGES: [(&str, u64); 6] = [
    ("under 1 day", DAY),
    ("1 to 7 days", 7 * DAY),
    ("7 to 30 days", 30 * DAY),
    ("30 to 90 days", 90 * DAY),
    ("90 days to 1 year", 365 * DAY),
    ("over 1 year", u64::MAX),
];

/// The class of an age.
#[must_use]
pub fn class_of(age: Duration) -> usize {
    AGES.iter().position(|(_, bound)| age.as_secs() < *bound).unwrap_or(AGES.len() - 1)
}

/// What some inodes hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Sum of the sizes of regular files, in bytes.
    pub bytes: u64,
}

impl Held {
    fn add(&mut self, record: &InodeRecord) {
        self.inodes += 1;
        if record.kind == Kind::File {
            self.bytes = self.bytes.saturating_add(record.size);
        }
    }
}

/// What is held, by the age of its content, in the order of [`AGES`].
pub type ByAge = [Held; AGES.len()];

/// What a user holds in a fileset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserCensus {
    /// The user.
    pub uid: u32,
    /// What is held.
    pub ages: ByAge,
}

/// A fileset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesetCensus {
    /// Its name; `/` is the root fileset.
    pub fileset: String,
    /// Why it was not counted, if it was not.
    pub not_counted: Option<String>,
    /// Its users, in order of their numbers.
    pub users: Vec<UserCensus>,
    /// What all other users hold.
    pub others: ByAge,
}

/// What lies in one archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveCensus {
    /// Where it is.
    pub location: String,
    /// Its pool.
    pub pool: String,
    /// Files that lie there.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
    /// Bytes that they take there, compressed.
    pub stored_bytes: u64,
    /// Files that lie there and here: premigrated ones, not among the others.
    #[serde(default)]
    pub premigrated_files: u64,
    /// Sum of their sizes, in bytes: what evicting them would free here.
    #[serde(default)]
    pub premigrated_bytes: u64,
    /// Bytes that they take there, compressed.
    #[serde(default)]
    pub premigrated_stored_bytes: u64,
}

impl ArchiveCensus {
    /// Bytes of files for each byte that they take; none if it is empty.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn ratio(&self) -> Option<f64> {
        (self.stored_bytes > 0).then(|| self.bytes as f64 / self.stored_bytes as f64)
    }
}

/// All filesets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Census {
    /// Filesets, in order of their numbers.
    pub filesets: Vec<FilesetCensus>,
    /// Archives, in order of their disks.
    #[serde(default)]
    pub archives: Vec<ArchiveCensus>,
    /// How long it took.
    pub seconds: f64,
}

/// Counts the inodes of one fileset.
pub(crate) struct Counter {
    now: Timestamp,
    users_max: usize,
    users: FxHashMap<u32, ByAge>,
    others: ByAge,
}

impl Counter {
    pub fn new(now: Timestamp) -> Counter {
        Counter { now, users_max: USERS_MAX, users: FxHashMap::default(), others: ByAge::default() }
    }

    pub fn see(&mut self, record: &InodeRecord) {
        let has_row = self.users.len() < self.users_max || self.users.contains_key(&record.uid);
        let row =
            if has_row { self.users.entry(record.uid).or_default() } else { &mut self.others };
        row[class_of(self.now.since(record.modified))].add(record);
    }

    pub fn finish(self, fileset: String) -> FilesetCensus {
        let rows = self.users.into_iter().map(|(uid, ages)| UserCensus { uid, ages });
        let mut users: Vec<UserCensus> = rows.collect();
        users.sort_by_key(|row| row.uid);
        FilesetCensus { fileset, not_counted: None, users, others: self.others }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{Epoch, Ino};

    use super::*;
    use crate::record::Layout;

    fn record(kind: Kind, uid: u32, size: u64, modified: i64) -> InodeRecord {
        let at = Timestamp::new(modified, 0);
        InodeRecord {
            kind,
            mode: 0o644,
            uid,
            gid: 0,
            nlink: 1,
            size,
            allocated_bytes: 0,
            accessed: at,
            modified: at,
            changed: at,
            created: at,
            rdev: 0,
            parent: Ino(0),
            xattrs: 0,
            epoch: Epoch(1),
            layout: Layout::None,
            target: Vec::new(),
        }
    }

    #[test]
    fn an_age_lies_in_one_class() {
        let class = |seconds| AGES[class_of(Duration::from_secs(seconds))].0;
        assert_eq!(class(0), "under 1 day");
        assert_eq!((class(DAY - 1), class(DAY)), ("under 1 day", "1 to 7 days"));
        assert_eq!((class(365 * DAY - 1), class(365 * DAY)), ("90 days to 1 year", "over 1 year"));
        assert_eq!(class(u64::MAX), "over 1 year");
    }

    #[test]
    fn further_users_are_counted_together() {
        let now = 1000 * i64::try_from(DAY).unwrap();
        let mut counter = Counter::new(Timestamp::new(now, 0));
        counter.users_max = 1;
        counter.see(&record(Kind::File, 7, 100, now));
        counter.see(&record(Kind::Directory, 7, 3, now + 50));
        counter.see(&record(Kind::File, 8, 10, 0));
        counter.see(&record(Kind::File, 9, 1, 0));
        let census = counter.finish("data".to_owned());
        assert_eq!(census.users.len(), 1);
        assert_eq!(census.users[0].ages[0], Held { inodes: 2, bytes: 100 });
        assert_eq!(census.others[5], Held { inodes: 2, bytes: 11 });
    }
}
