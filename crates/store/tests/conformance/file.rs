//! What only a store in a file promises: reopening, exclusive use, and surviving `kill -9`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_store::logged::LoggedStore;
use forebay_store::redb::{RedbOptions, RedbStore};
use forebay_store::{Batch, Bytes, Store, StoreError};

/// Keys that each batch of the killed child sets, all to the same number.
const KEYS_PER_BATCH: u8 = 5;
const CHILD_STORE: &str = "FOREBAY_TEST_CHILD_STORE";
/// Set if the child's store has a log.
const CHILD_LOG: &str = "FOREBAY_TEST_CHILD_LOG";

/// A store in a file with a log beside it, both made if they are not there.
pub fn logged(path: &Path) -> LoggedStore<RedbStore> {
    let base = if path.exists() { RedbStore::open(path) } else { RedbStore::create(path) };
    LoggedStore::open(base.unwrap(), path.with_extension("log")).unwrap()
}

fn opened(path: &Path, has_log: bool) -> Box<dyn Store> {
    if has_log { Box::new(logged(path)) } else { Box::new(RedbStore::open(path).unwrap()) }
}

fn numbered(number: u64) -> Batch {
    let changes = (0..KEYS_PER_BATCH)
        .map(|i| (vec![b'k', i], Some(number.to_be_bytes().to_vec())))
        .chain([([&b"n"[..], &number.to_be_bytes()].concat(), Some(vec![]))])
        .collect();
    Batch { requires: vec![], changes }
}

#[test]
fn a_reopened_file_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut kept = BTreeMap::new();
    for round in 0..4_u32 {
        let options = RedbOptions { cache_bytes: 1 << 20 };
        let store = match round {
            0 => RedbStore::create_with(&path, &options).unwrap(),
            _ => RedbStore::open_with(&path, &options).unwrap(),
        };
        let found = store.scan(b"", &[0xff; 5], usize::MAX).unwrap();
        assert_eq!(found, kept.clone().into_iter().collect::<Vec<(Bytes, Bytes)>>());
        let changes: BTreeMap<Bytes, Option<Bytes>> = (0..500)
            .map(|i| ((round * 300 + i).to_be_bytes().to_vec(), Some(vec![round as u8; 90])))
            .collect();
        store.commit(&Batch { requires: vec![], changes: changes.clone() }).unwrap();
        kept.extend(changes.into_iter().map(|(key, value)| (key, value.unwrap())));
        assert!(store.size_bytes().unwrap() > 500 * 90);
    }
}

#[test]
fn a_file_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = RedbStore::create(&path).unwrap();
    assert!(matches!(RedbStore::open(&path), Err(StoreError::InUse(_))));
    store.commit(&numbered(1)).unwrap();
    drop(store);
    RedbStore::open(&path).unwrap();
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nowhere");
    match RedbStore::open(&path) {
        Err(StoreError::Io(text)) => assert!(text.contains("nowhere"), "{text}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("opened a file that does not exist"),
    }
    assert!(!path.exists());
}

#[test]
fn create_never_touches_a_file_that_exists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    RedbStore::create(&path).unwrap().commit(&numbered(1)).unwrap();
    assert!(matches!(RedbStore::create(&path), Err(StoreError::Io(_))));
    let store = RedbStore::open(&path).unwrap();
    assert_eq!(store.get(b"k\0").unwrap(), Some(1_u64.to_be_bytes().to_vec()));
}

#[test]
fn a_damaged_file_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    for content in [&b""[..], b"short", &[0x5a; 100_000]] {
        std::fs::write(&path, content).unwrap();
        match RedbStore::open(&path) {
            Err(StoreError::Damaged(_)) => {}
            Err(other) => panic!("{} bytes: {other:?}", content.len()),
            Ok(_) => panic!("opened {} bytes of nonsense", content.len()),
        }
    }
}

/// Overwrites one page after the other of a good file; whatever the engine makes of it, it is an
/// error or a result, never a panic.
#[test]
fn a_damaged_page_never_causes_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    let store = RedbStore::create(&good).unwrap();
    for number in 0..50 {
        store.commit(&numbered(number)).unwrap();
    }
    drop(store);
    let pages = std::fs::metadata(&good).unwrap().len() / 4096;
    for page in (0..pages).step_by(usize::try_from(pages / 40 + 1).unwrap()) {
        std::fs::copy(&good, &bad).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&bad).unwrap();
        file.write_all_at(&[0xa5; 4096], page * 4096).unwrap();
        if let Ok(store) = RedbStore::open(&bad) {
            let _ = store.scan(b"", &[0xff; 9], usize::MAX);
            let _ = store.commit(&numbered(51));
            let _ = store.get(b"k\0");
        }
    }
}

/// Not a test of its own: the process that `every_acknowledged_commit_survives_kill_9` kills.
#[test]
#[ignore = "run by every_acknowledged_commit_survives_kill_9"]
fn child_that_commits_until_killed() {
    let Some(path) = std::env::var_os(CHILD_STORE) else { return };
    let store = opened(Path::new(&path), std::env::var_os(CHILD_LOG).is_some());
    let newest = store.get(b"k\0").unwrap();
    let first = newest.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()) + 1);
    for number in first.. {
        store.commit(&numbered(number)).unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "acknowledged {number}").unwrap();
        out.flush().unwrap();
    }
}

/// Runs the child until it acknowledged `commits` more, kills it, and returns the last number that
/// it acknowledged.
fn commit_and_kill(path: &Path, has_log: bool, commits: usize) -> u64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if has_log {
        command.env(CHILD_LOG, "1");
    }
    let mut child = command
        .args(["--exact", "file::child_that_commits_until_killed", "--ignored", "--nocapture"])
        .env(CHILD_STORE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut acknowledged = lines
        .by_ref()
        .filter_map(|line| Some(line.split_once("acknowledged ")?.1.parse::<u64>().unwrap()));
    let last = acknowledged.by_ref().take(commits).last().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // Lines that were already in the pipe count too.
    acknowledged.last().unwrap_or(last)
}

#[test]
fn every_acknowledged_commit_survives_kill_9() {
    survives_kill_9(false, &[1, 40, 7, 100]);
}

#[test]
fn every_acknowledged_commit_to_a_log_survives_kill_9() {
    // More than its log holds, once.
    survives_kill_9(true, &[1, 40, 7, 600, 100]);
}

fn survives_kill_9(has_log: bool, rounds: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    drop(RedbStore::create(&path).unwrap());
    for commits in rounds {
        let acknowledged = commit_and_kill(&path, has_log, *commits);
        let store = opened(&path, has_log);
        let values: Vec<u64> = (0..KEYS_PER_BATCH)
            .map(|i| store.get(&[b'k', i]).unwrap().unwrap())
            .map(|value| u64::from_be_bytes(value.try_into().unwrap()))
            .collect();
        assert!(values.iter().all(|value| *value == values[0]), "half a batch: {values:?}");
        assert!(values[0] >= acknowledged, "{acknowledged} was acknowledged, not {}", values[0]);
        assert!(values[0] <= acknowledged + 1, "the child commits one at a time");
        let numbers = store.scan(b"n", b"o", usize::MAX).unwrap();
        assert_eq!(numbers.len() as u64, values[0] + 1);
    }
}
