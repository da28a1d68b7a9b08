//! Logs whose disk fails, tears what is written, or is damaged.

use std::sync::Arc;

use forebay_base::seed::{self, Dice};

use super::log::{LogFile, encode};
use super::*;
use crate::faulty::{Fault, FaultyStore};
use crate::memory::MemoryStore;

const SECTOR: usize = 512;
const ID: Id = [7; 16];

/// A disk that keeps of what was not synced what chance leaves.
#[derive(Default)]
struct Disk {
    durable: Bytes,
    pending: Vec<(usize, Bytes)>,
    /// How many of the next calls fail.
    writes_fail: u32,
    syncs_fail: u32,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Disk>>);

impl LogFile for Shared {
    fn read(&self) -> io::Result<Bytes> {
        Ok(self.0.lock().durable.clone())
    }

    fn write(&self, bytes: &[u8], offset: usize) -> io::Result<()> {
        let mut disk = self.0.lock();
        if disk.writes_fail > 0 {
            disk.writes_fail -= 1;
            return Err(io::Error::other("the disk does not write"));
        }
        disk.pending.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.0.lock();
        if disk.syncs_fail > 0 {
            disk.syncs_fail -= 1;
            return Err(io::Error::other("the disk does not sync"));
        }
        for (offset, bytes) in std::mem::take(&mut disk.pending) {
            disk.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

impl Shared {
    fn new() -> Shared {
        let folder = tempfile::tempdir().unwrap();
        let file = log::create(&folder.path().join("log"), ID).unwrap();
        let durable = LogFile::read(&file).unwrap();
        Shared(Arc::new(Mutex::new(Disk { durable, ..Disk::default() })))
    }

    /// The disk after a crash: of what was not synced it has some sectors.
    fn after_crash(&self, mut keeps: impl FnMut() -> bool) -> Shared {
        let disk = self.0.lock();
        let mut durable = disk.durable.clone();
        for (offset, bytes) in &disk.pending {
            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                if keeps() {
                    let at = offset + number * SECTOR;
                    durable[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        Shared(Arc::new(Mutex::new(Disk { durable, ..Disk::default() })))
    }
}

type Logged = LoggedStore<Arc<MemoryStore>>;

fn begin(base: &Arc<MemoryStore>, disk: &Shared) -> Logged {
    let log = Log::empty(Box::new(disk.clone()), ID, 1);
    LoggedStore::begin(Arc::clone(base), Path::new("log"), log, Changes::new()).unwrap()
}

fn reopen(base: &Arc<MemoryStore>, disk: &Shared) -> std::result::Result<Logged, Flaw> {
    let mark = Mark::read(base).unwrap().unwrap();
    let (log, recent) = Log::open(Box::new(disk.clone()), mark.id, mark.next)?;
    Ok(LoggedStore::begin(Arc::clone(base), Path::new("log"), log, recent).unwrap())
}

fn put(key: u64, value: &[u8]) -> Batch {
    let changes = [(key.to_be_bytes().to_vec(), Some(value.to_vec()))].into();
    Batch { requires: Vec::new(), changes }
}

fn all(store: &dyn Store) -> Vec<(Bytes, Bytes)> {
    store.scan(b"", &[0xff; 20], usize::MAX).unwrap()
}

#[test]
fn after_a_crash_at_any_commit_all_that_was_acknowledged_is_there_and_no_part_of_the_last_batch() {
    let mut random =
        Dice::of(seed::announce("cargo test -p forebay-store --lib after_a_crash_at_any_commit"));
    let (base, mut disk) = (Arc::new(MemoryStore::new()), Shared::new());
    let mut store = begin(&base, &disk);
    let mut model = Changes::new();
    for round in 0..3_000_u64 {
        let mut changes = Changes::new();
        for _ in 0..random.between(1, 3) {
            let key = random.below(40).to_be_bytes().to_vec();
            let length = usize::try_from(random.below(9_000)).unwrap();
            let value = (random.below(4) > 0).then(|| vec![round as u8; length]);
            changes.insert(key, value);
        }
        let batch = Batch { requires: Vec::new(), changes };
        let crashes = random.below(20) == 0;
        if crashes {
            // Neither the record nor its removal becomes durable.
            disk.0.lock().syncs_fail = 2;
        }
        let outcome = store.commit(&batch);
        let before = model.clone();
        model.extend(batch.changes);
        model.retain(|_, value| value.is_some());
        if !crashes {
            outcome.unwrap();
        } else if outcome.is_err() {
            assert!(matches!(outcome, Err(StoreError::Unknown(_))));
            if random.toss() {
                disk.0.lock().pending.truncate(1);
            }
            disk = disk.after_crash(|| random.below(3) > 0);
            // What is in memory is lost with the process.
            std::mem::forget(std::mem::replace(&mut store, reopen(&base, &disk).unwrap()));
            let now: Changes = all(&store).into_iter().map(|(key, it)| (key, Some(it))).collect();
            assert!(
                now == before || now == model,
                "round {round}: a part of a batch, or none of an earlier one"
            );
            model = now;
        }
        disk.0.lock().syncs_fail = 0;
    }
    let now: Changes = all(&store).into_iter().map(|(key, it)| (key, Some(it))).collect();
    assert_eq!(now, model);
}

#[test]
fn a_record_that_could_not_be_written_is_not_there_later() {
    let (base, disk) = (Arc::new(MemoryStore::new()), Shared::new());
    let store = begin(&base, &disk);
    store.commit(&put(1, b"one")).unwrap();
    disk.0.lock().syncs_fail = 1;
    assert!(matches!(store.commit(&put(2, b"two")), Err(StoreError::Io(_))));
    assert_eq!(all(&store).len(), 1);
    disk.0.lock().writes_fail = 1;
    assert!(matches!(store.commit(&put(2, b"two")), Err(StoreError::Io(_))));
    store.commit(&put(3, b"three")).unwrap();
    std::mem::forget(store);
    let store = reopen(&base, &disk.after_crash(|| true)).unwrap();
    let keys: Vec<Bytes> = all(&store).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [1_u64, 3].map(|key| key.to_be_bytes().to_vec()));
}

#[test]
fn while_an_outcome_is_unknown_nothing_is_read_or_committed() {
    let (base, disk) = (Arc::new(MemoryStore::new()), Shared::new());
    let store = begin(&base, &disk);
    disk.0.lock().syncs_fail = 5;
    assert!(matches!(store.commit(&put(1, b"one")), Err(StoreError::Unknown(_))));
    assert!(matches!(store.get(b"x"), Err(StoreError::Io(_))));
    assert!(matches!(store.scan(b"", b"x", 1), Err(StoreError::Io(_))));
    assert!(matches!(store.commit(&put(2, b"two")), Err(StoreError::Io(_))));
    disk.0.lock().syncs_fail = 0;
    assert!(all(&store).is_empty(), "it is not there, for good");
    store.commit(&put(2, b"two")).unwrap();
    assert_eq!(all(&store).len(), 1);
}

#[test]
fn a_damaged_record_before_others_is_found_and_one_torn_at_the_end_is_dropped() {
    let (base, disk) = (Arc::new(MemoryStore::new()), Shared::new());
    let store = begin(&base, &disk);
    for key in 0..4 {
        store.commit(&put(key, &[1; 5_000])).unwrap();
    }
    std::mem::forget(store);
    let pages = 2 * 4096;
    for (record, is_last) in [(0, false), (1, false), (2, false), (3, true)] {
        for byte in [0, 5, 9, 20, 40, 5_000] {
            let copy = disk.after_crash(|| true);
            copy.0.lock().durable[4096 + record * pages + byte] ^= 1;
            match reopen(&Arc::new(copied(&base)), &copy) {
                Ok(store) => assert!(is_last && all(&store).len() == 3, "record {record}"),
                Err(Flaw::Lost(number)) => assert!(!is_last && number == record as u64 + 1),
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    for byte in [0, 10, 30] {
        let copy = disk.after_crash(|| true);
        copy.0.lock().durable[byte] ^= 1;
        assert!(matches!(reopen(&base, &copy), Err(Flaw::Other)), "the header");
    }
}

fn copied(base: &MemoryStore) -> MemoryStore {
    let copy = MemoryStore::new();
    let changes = all(base).into_iter().map(|(key, value)| (key, Some(value))).collect();
    copy.commit(&Batch { requires: Vec::new(), changes }).unwrap();
    copy
}

#[test]
fn a_log_is_refused_without_its_store_and_a_store_without_its_log_unless_it_was_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let open = |base: &Arc<MemoryStore>| LoggedStore::open(Arc::clone(base), &path);
    let damaged = |base: &Arc<MemoryStore>| {
        assert!(matches!(open(base).map(drop), Err(StoreError::Damaged(_))));
    };
    let (one, two) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let store = open(&one).unwrap();
    store.commit(&put(1, b"one")).unwrap();
    let earlier = Arc::new(copied(&one));
    store.shorten_log().unwrap();
    store.commit(&put(2, b"two")).unwrap();
    std::mem::forget(store);
    let bytes = std::fs::read(&path).unwrap();
    // A backup of the store beside the log of today.
    damaged(&earlier);
    std::fs::remove_file(&path).unwrap();
    damaged(&one);
    std::fs::write(&path, &bytes[..100]).unwrap();
    damaged(&one);
    std::fs::write(&path, &bytes).unwrap();
    let store = open(&one).unwrap();
    assert_eq!(all(&store).len(), 2);
    store.close().unwrap();
    assert!(matches!(store.commit(&put(3, b"three")), Err(StoreError::Io(_))));
    // All is in the store by now: it can be moved without its log, and another one can begin here.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(all(&open(&one).unwrap()).len(), 2);
    assert!(all(&open(&two).unwrap()).is_empty());
    assert_eq!(all(&open(&one).unwrap()).len(), 2);
}

#[test]
fn a_full_log_over_a_full_store_takes_nothing_and_goes_on_when_there_is_space() {
    let (base, disk) = (MemoryStore::new(), Shared::new());
    let faulty = FaultyStore::new(&base);
    let log = Log::empty(Box::new(disk), ID, 1);
    let store = LoggedStore::begin(&faulty, Path::new("log"), log, Changes::new()).unwrap();
    let mut taken = 0;
    let mut fill = || {
        faulty.fail_commits(u64::MAX, Fault::Full);
        while store.commit(&put(taken, &[3; 100_000])).is_ok() {
            taken += 1;
        }
        assert!(matches!(store.commit(&put(taken, &[3; 100_000])), Err(StoreError::Full(_))));
        taken
    };
    let count = fill();
    assert!(count > 10 && all(&store).len() as u64 == count);
    faulty.fail_commits(0, Fault::Full);
    store.commit(&put(count, &[3; 100_000])).unwrap();
    assert_eq!(all(&store).len() as u64, count + 1);
    assert_eq!(all(&base).len() as u64, count + 1, "with the mark, without the last one");
}

#[test]
fn a_scan_over_the_log_gives_as_many_as_one_of_the_store_alone() {
    let (base, disk) = (Arc::new(MemoryStore::new()), Shared::new());
    let store = begin(&base, &disk);
    let plain = MemoryStore::new();
    let mut random =
        Dice::of(seed::announce("cargo test -p forebay-store --lib a_scan_over_the_log"));
    for round in 0..400 {
        let key = random.below(30);
        let mut batch = put(key, &[round as u8]);
        if random.below(3) == 0 {
            batch.changes.insert(random.below(30).to_be_bytes().to_vec(), None);
        }
        store.commit(&batch).unwrap();
        plain.commit(&batch).unwrap();
        if random.below(25) == 0 {
            store.shorten_log().unwrap();
        }
        let from = random.below(30).to_be_bytes();
        let limit = usize::try_from(random.below(12)).unwrap();
        let scan = |store: &dyn Store| store.scan(&from, &[0xff; 20], limit).unwrap();
        assert_eq!(scan(&store), scan(&plain), "round {round}");
    }
    assert_eq!(store.get(MARK).unwrap(), None);
    assert!(base.get(MARK).unwrap().is_some());
    assert!(!encode(&put(1, b"x").changes).is_empty());
}
