//! Choosing the files that rules are about, from all inodes, one after the other. Pure.

use std::collections::{BinaryHeap, HashMap, HashSet};

use forebay_base::{DiskId, Ino, Timestamp};

use super::{Filter, Policy, Select, matches};
use crate::record::{InodeRecord, Kind};
use crate::tasks::balance::Fill;

/// Files that one rule chooses at most in one pass: more are chosen in the next one.
const CHOSEN_MAX: usize = 1_000_000;
/// Files that are listed for a rule at most.
pub(crate) const LISTED_MAX: usize = 10_000;

/// A file that a rule has chosen: those come first that lie where they go to already, then the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chosen {
    /// It is not premigrated to the pool that it goes to.
    pub only_here: bool,
    pub modified: Timestamp,
    pub ino: Ino,
    pub disk: DiskId,
    pub bytes: u64,
}

/// Rules of each kind whose patterns match a name of a file, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub place: u32,
    pub migrate: u32,
    pub premigrate: u32,
    pub list: u32,
    pub delete: u32,
}

impl Named {
    /// The rules that a name matches.
    pub fn of(policy: &Policy, name: &[u8]) -> Named {
        let fits =
            |filter: &Filter| filter.files.iter().any(|pattern| matches(pattern.as_bytes(), name));
        let bits = |filters: &mut dyn Iterator<Item = &Filter>| {
            filters
                .enumerate()
                .fold(0, |bits, (rule, filter)| bits | (u32::from(fits(filter)) << rule))
        };
        Named {
            place: bits(&mut policy.place.iter().map(|rule| &rule.filter)),
            migrate: bits(&mut policy.migrate.iter().map(|rule| &rule.filter)),
            premigrate: bits(&mut policy.premigrate.iter().map(|rule| &rule.filter)),
            list: bits(&mut policy.list.iter().map(|rule| &rule.filter)),
            delete: bits(&mut policy.delete.iter().map(|rule| &rule.filter)),
        }
    }

    /// Adds what another name of the same file matches.
    pub fn and(self, other: Named) -> Named {
        Named {
            place: self.place | other.place,
            migrate: self.migrate | other.migrate,
            premigrate: self.premigrate | other.premigrate,
            list: self.list | other.list,
            delete: self.delete | other.delete,
        }
    }
}

/// A file, and where it lies.
pub(crate) struct Seen<'a> {
    pub ino: Ino,
    pub record: &'a InodeRecord,
    /// Name of its fileset; empty for the root fileset.
    pub fileset: &'a str,
    pub named: Named,
    /// The archive that it lies in too.
    pub premigrated_to: Option<DiskId>,
    /// Its fileset is a cache: rules remove nothing there.
    pub in_cache: bool,
}

/// What one rule has chosen.
pub(crate) struct Choice {
    /// The oldest files.
    files: BinaryHeap<Chosen>,
    /// All that match; of a rule with a bound no more than it takes.
    pub count: u64,
    pub bytes: u64,
    /// No more than the files that make up so many bytes.
    bytes_wanted: Option<u64>,
    /// What the rule does, and why.
    pub reason: String,
    most: usize,
}

impl Choice {
    fn new(bytes_wanted: Option<u64>, reason: String, most: usize) -> Choice {
        Choice { files: BinaryHeap::new(), count: 0, bytes: 0, bytes_wanted, reason, most }
    }

    fn add(&mut self, file: Chosen) {
        if self.bytes_wanted == Some(0) {
            return;
        }
        self.files.push(file);
        self.count += 1;
        self.bytes = self.bytes.saturating_add(file.bytes);
        while let Some(newest) = self.files.peek() {
            let is_spare =
                self.bytes_wanted.is_some_and(|wanted| self.bytes - newest.bytes >= wanted);
            if is_spare {
                self.count -= 1;
                self.bytes -= newest.bytes;
            } else if self.files.len() <= self.most {
                break;
            }
            self.files.pop();
        }
    }

    /// The files, the oldest first.
    pub fn into_files(self) -> Vec<Chosen> {
        self.files.into_sorted_vec()
    }
}

/// Chooses files for all rules of a policy.
pub(crate) struct Picker<'a> {
    policy: &'a Policy,
    pools: &'a HashMap<DiskId, String>,
    archives: &'a HashSet<String>,
    now: Timestamp,
    /// What new files would be placed so.
    pub place: Vec<Choice>,
    pub migrate: Vec<Choice>,
    pub premigrate: Vec<Choice>,
    pub list: Vec<Choice>,
    pub delete: Vec<Choice>,
    pub inodes: u64,
}

impl<'a> Picker<'a> {
    /// `pools` has the pool of each disk, `archives` those made of archives.
    pub fn new(
        policy: &'a Policy,
        pools: &'a HashMap<DiskId, String>,
        (fills, archives): (&[Fill], &'a HashSet<String>),
        now: Timestamp,
    ) -> Picker<'a> {
        let migrate = policy.migrate.iter().map(|rule| {
            let of_pool: Vec<&Fill> = (fills.iter())
                .filter(|fill| pools.get(&fill.disk).is_some_and(|pool| *pool == rule.from))
                .collect();
            let sum = |of: fn(&Fill) -> u64| of_pool.iter().map(|fill| of(fill)).sum::<u64>();
            let (total, used) = (sum(|fill| fill.total_bytes), sum(|fill| fill.used_bytes));
            let (wanted, why) = wanted(&rule.from, rule.fill, total, used);
            let text = format!("from pool {} to {}: {why}", rule.from, rule.to);
            Choice::new(wanted, text, CHOSEN_MAX)
        });
        let migrate = migrate.collect();
        let premigrate = policy.premigrate.iter().map(|rule| {
            let text = format!(
                "files of pool {} that match and do not lie in {} yet; they stay here too",
                rule.from, rule.to
            );
            Choice::new(None, text, CHOSEN_MAX)
        });
        let premigrate = premigrate.collect();
        let place = policy.place.iter().map(|rule| {
            let text = format!("new files that match lie in pool {}", rule.to);
            Choice::new(None, text, LISTED_MAX)
        });
        let place = place.collect();
        let listed = |_| Choice::new(None, "lists files".to_owned(), LISTED_MAX);
        let list = policy.list.iter().map(listed).collect();
        let removed = |_| Choice::new(None, "removes files that match".to_owned(), CHOSEN_MAX);
        let delete = policy.delete.iter().map(removed).collect();
        Picker { policy, pools, archives, now, place, migrate, premigrate, list, delete, inodes: 0 }
    }

    /// Looks at an inode.
    pub fn see(&mut self, seen: &Seen<'_>) {
        self.inodes += 1;
        let (policy, pools, now) = (self.policy, self.pools, self.now);
        let record = seen.record;
        if record.kind != Kind::File {
            return;
        }
        let at = record.layout.object();
        let pool = at.and_then(|at| pools.get(&at.disk));
        let file = Chosen {
            only_here: true,
            modified: record.modified,
            ino: seen.ino,
            disk: at.map_or(DiskId(0), |at| at.disk),
            bytes: record.size,
        };
        let fits = |filter: &Filter, bits: u32, rule: usize| {
            filter.admits(seen, (bits >> rule) & 1 == 1, now)
        };
        let selects = |rule: &Select, bits: u32, number: usize| {
            let lies_there = rule.from.is_none() || rule.from.as_ref() == pool;
            lies_there && fits(&rule.filter, bits, number)
        };
        let placed = (policy.place.iter().enumerate())
            .find(|(number, rule)| fits(&rule.filter, seen.named.place, *number));
        if let Some((number, _)) = placed {
            self.place[number].add(file);
        }
        for (number, rule) in policy.list.iter().enumerate() {
            if selects(rule, seen.named.list, number) {
                self.list[number].add(file);
            }
        }
        let deletes = |(number, rule): &(usize, &Select)| {
            !seen.in_cache && selects(rule, seen.named.delete, *number)
        };
        let goes = policy.delete.iter().enumerate().find(deletes);
        if let Some((number, _)) = goes {
            // What goes need not be moved.
            self.delete[number].add(file);
            return;
        }
        let first = (policy.migrate.iter().enumerate()).find(|(number, rule)| {
            pool == Some(&rule.from)
                && fits(&rule.filter, seen.named.migrate, *number)
                && !(self.archives.contains(&rule.to) && rule.filter.was_used(record, now))
        });
        let archive = seen.premigrated_to.and_then(|disk| pools.get(&disk));
        if let Some((number, rule)) = first {
            self.migrate[number].add(Chosen { only_here: archive != Some(&rule.to), ..file });
        }
        let first = (policy.premigrate.iter().enumerate()).find(|(number, rule)| {
            pool == Some(&rule.from) && fits(&rule.filter, seen.named.premigrate, *number)
        });
        if let Some((number, _)) = first.filter(|(_, rule)| archive != Some(&rule.to)) {
            self.premigrate[number].add(file);
        }
    }
}

impl Filter {
    /// Whether a file was used more recently than its content has to be old: one that was recalled from an archive does not go
    /// back at once.
    fn was_used(&self, record: &InodeRecord, now: Timestamp) -> bool {
        let unused =
            u64::try_from(now.seconds.saturating_sub(record.accessed.seconds)).unwrap_or(0);
        self.older_seconds.is_some_and(|seconds| unused < seconds)
    }

    /// Whether it matches a file; `name_matches` tells whether one of its patterns does.
    fn admits(&self, seen: &Seen<'_>, name_matches: bool, now: Timestamp) -> bool {
        let record = seen.record;
        let age = u64::try_from(now.seconds.saturating_sub(record.modified.seconds)).unwrap_or(0);
        self.fileset.as_deref().is_none_or(|name| name == seen.fileset)
            && self.user.is_none_or(|uid| uid == record.uid)
            && self.group.is_none_or(|gid| gid == record.gid)
            && self.larger.is_none_or(|bytes| record.size > bytes)
            && self.smaller.is_none_or(|bytes| record.size < bytes)
            && self.older_seconds.is_none_or(|seconds| age >= seconds)
            && (self.files.is_empty() || name_matches)
    }
}

/// Bytes that a rule is to move, if that is bounded, and why.
fn wanted(pool: &str, fill: Option<(u64, u64)>, total: u64, used: u64) -> (Option<u64>, String) {
    let percent = u128::from(used) * 100 / u128::from(total.max(1));
    match fill {
        None => (None, "all files that match".to_owned()),
        Some((above, _)) if percent <= u128::from(above) => (
            Some(0),
            format!("nothing, as pool {pool} is {percent} % full, and not above {above} %"),
        ),
        Some((above, until)) => {
            let keep = u128::from(total) * u128::from(until) / 100;
            let bytes = u128::from(used).saturating_sub(keep);
            let text = format!(
                "the oldest files that match, as pool {pool} is {percent} % full, above {above} %; until it is {until} %"
            );
            (Some(u64::try_from(bytes).unwrap_or(u64::MAX)), text)
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{Epoch, FilesetId, ObjectId};

    use super::*;
    use crate::policy::Migrate;
    use crate::record::{Layout, ObjectRef};

    fn record(disk: u16, size: u64, modified: i64) -> InodeRecord {
        let mut state = crate::ops::fileset_root(FilesetId::ROOT, 0o644, Timestamp::default());
        state.uid = 7;
        let at = ObjectRef { disk: DiskId(disk), id: ObjectId(9) };
        InodeRecord {
            kind: Kind::File,
            size,
            modified: Timestamp::new(modified, 0),
            layout: Layout::Whole(at),
            ..state.record(Epoch(1))
        }
    }

    fn rule(name: &str, fill: Option<(u64, u64)>, filter: Filter) -> Migrate {
        let (from, to) = ("flash".to_owned(), "archive".to_owned());
        Migrate { name: name.to_owned(), from, to, fill, filter }
    }

    fn pools() -> HashMap<DiskId, String> {
        [(DiskId(0), "flash".to_owned()), (DiskId(1), "archive".to_owned())].into()
    }

    fn pick<'a>(
        policy: &'a Policy,
        pools: &'a HashMap<DiskId, String>,
        used_bytes: u64,
        files: &[(u64, InodeRecord, &[u8])],
    ) -> Picker<'a> {
        let fill = Fill { disk: DiskId(0), total_bytes: 1000, used_bytes };
        static NO_ARCHIVES: std::sync::LazyLock<HashSet<String>> =
            std::sync::LazyLock::new(HashSet::new);
        let now = Timestamp::new(1000, 0);
        let mut picker = Picker::new(policy, pools, (&[fill], &NO_ARCHIVES), now);
        for (ino, record, name) in files {
            let named = Named::of(policy, name);
            let premigrated_to = (*name == b"premigrated").then_some(DiskId(1));
            picker.see(&Seen {
                ino: Ino(*ino),
                record,
                fileset: "data",
                named,
                premigrated_to,
                in_cache: false,
            });
        }
        picker
    }

    #[test]
    fn a_rule_with_a_fill_takes_the_oldest_files_that_are_enough() {
        let policy = Policy {
            migrate: vec![rule("a", Some((80, 60)), Filter::default())],
            ..Policy::default()
        };
        let files = [
            (1, record(0, 100, 5), &b"x"[..]),
            (2, record(0, 100, 1), b"x"),
            (3, record(0, 200, 3), b"x"),
            (4, record(0, 100, 2), b"x"),
            (5, record(1, 100, 0), b"elsewhere"),
        ];
        let pools = pools();
        let mut picker = pick(&policy, &pools, 900, &files);
        let choice = picker.migrate.remove(0);
        // 300 bytes are too much: the three oldest.
        assert_eq!((choice.count, choice.bytes), (3, 400));
        assert!(choice.reason.contains("is 90 % full, above 80 %"), "{}", choice.reason);
        let inos: Vec<u64> = choice.into_files().iter().map(|file| file.ino.0).collect();
        assert_eq!(inos, [2, 4, 3]);
        let mut picker = pick(&policy, &pools, 800, &files);
        let choice = picker.migrate.remove(0);
        assert_eq!(choice.count, 0);
        assert!(choice.reason.contains("not above 80 %"), "{}", choice.reason);
    }

    #[test]
    fn premigrated_files_are_evicted_first_and_not_premigrated_again() {
        let policy = Policy {
            migrate: vec![rule("full", Some((80, 60)), Filter::default())],
            premigrate: vec![rule("cold", None, Filter::default())],
            ..Policy::default()
        };
        let files = [
            (1, record(0, 200, 1), &b"old"[..]),
            (2, record(0, 200, 9), b"premigrated"),
            (3, record(0, 200, 8), b"premigrated"),
            (4, record(0, 200, 2), b"old"),
        ];
        let pools = pools();
        let mut picker = pick(&policy, &pools, 900, &files);
        let inos = |choice: Choice| -> Vec<u64> {
            choice.into_files().iter().map(|file| file.ino.0).collect()
        };
        assert_eq!(inos(picker.migrate.remove(0)), [3, 2]);
        assert_eq!(inos(picker.premigrate.remove(0)), [1, 4]);
    }

    #[test]
    fn the_first_rule_that_matches_a_file_decides() {
        let named = |pattern: &str| Filter { files: vec![pattern.to_owned()], ..Filter::default() };
        let large = Filter { larger: Some(150), user: Some(7), ..Filter::default() };
        let old =
            Filter { older_seconds: Some(990), fileset: Some("data".into()), ..Filter::default() };
        let policy = Policy {
            migrate: vec![
                rule("named", None, named("*.h5")),
                rule("large", None, large.clone()),
                rule("old", None, old),
                rule("other fileset", None, Filter { fileset: Some("work".into()), ..large }),
            ],
            list: vec![Select { name: "all".into(), from: None, filter: Filter::default() }],
            delete: vec![Select {
                name: "deleted".into(),
                from: Some("flash".into()),
                filter: named("*.tmp"),
            }],
            ..Policy::default()
        };
        let files = [
            (1, record(0, 200, 5), &b"a.h5"[..]),
            (2, record(0, 200, 5), b"a.csv"),
            (3, record(0, 10, 10), b"a.csv"),
            (4, record(0, 10, 11), b"a.csv"),
            (5, record(0, 300, 1), b"a.tmp"),
            (6, record(1, 300, 1), b"a.tmp"),
        ];
        let pools = pools();
        let picker = pick(&policy, &pools, 900, &files);
        let counts: Vec<u64> = picker.migrate.iter().map(|choice| choice.count).collect();
        assert_eq!(counts, [1, 1, 1, 0]);
        assert_eq!((picker.list[0].count, picker.list[0].bytes, picker.inodes), (6, 1020, 6));
        assert_eq!((picker.delete[0].count, picker.delete[0].bytes), (1, 300));
    }
}
