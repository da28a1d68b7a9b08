//! The store over a file that fails on purpose, at each of its operations in turn.

use std::ops::Bound;
use std::sync::Arc;

use redb::BackendError;

use super::*;

/// Fails one operation on the file, and every later one of its kind until told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Read,
    Write,
    Sync,
    SetLength,
}

/// What is to fail: operations of kind `target`, once `passes` of them went well.
#[derive(Clone, Copy, Debug)]
struct Plan {
    target: Target,
    passes: u64,
    failures: u64,
    kind: io::ErrorKind,
}

#[derive(Debug, Default)]
struct Faults(Mutex<Option<Plan>>);

impl Faults {
    fn pass(&self, target: Target) -> io::Result<()> {
        let mut plan = self.0.lock();
        match &mut *plan {
            Some(plan) if plan.target == target && plan.passes > 0 => {
                plan.passes -= 1;
                Ok(())
            }
            Some(plan) if plan.target == target && plan.failures > 0 => {
                plan.failures -= 1;
                Err(plan.kind.into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends the plan; whether it made anything fail.
    fn end(&self, planned: Plan) -> bool {
        self.0.lock().take().is_some_and(|left| left.failures < planned.failures)
    }
}

#[derive(Debug)]
struct FailingFile {
    inner: FileBackend,
    faults: Arc<Faults>,
}

impl StorageBackend for FailingFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.faults.pass(Target::Read)?;
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.pass(Target::SetLength)?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.pass(Target::Sync)?;
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.faults.pass(Target::Write)?;
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> std::result::Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> std::result::Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn unlock_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> std::result::Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
}

fn failing_store(folder: &Path) -> (RedbStore, Arc<Faults>) {
    let path = folder.join("store");
    drop(RedbStore::create(&path).unwrap());
    let faults = Arc::new(Faults::default());
    let (file, shared) = (path.clone(), Arc::clone(&faults));
    let opener = move || {
        let file = File::options().read(true).write(true).open(&file)?;
        let inner = file_backend(file)?;
        let file: Box<dyn StorageBackend> =
            Box::new(FailingFile { inner, faults: Arc::clone(&shared) });
        Ok(file)
    };
    // A small cache, so that reads reach the file.
    let options = RedbOptions { cache_bytes: 64 << 10 };
    let store = RedbStore::with_opener(Access::Own, path, Box::new(opener), &options).unwrap();
    (store, faults)
}

/// A batch that sets some keys to `number`, and is large enough to let the file grow now and then.
fn numbered(number: u64) -> Batch {
    let value = [&number.to_be_bytes()[..], &[7; 40_000]].concat();
    let changes = (0..10_u8).map(|i| (vec![b'k', i], Some(value.clone()))).collect();
    Batch { requires: vec![], changes }
}

fn number_of(store: &RedbStore) -> u64 {
    let numbers: Vec<u64> = store
        .scan(b"k", b"l", usize::MAX)
        .unwrap()
        .into_iter()
        .map(|(_, value)| u64::from_be_bytes(value[..8].try_into().unwrap()))
        .collect();
    assert_eq!(numbers.len(), 10);
    assert!(numbers.iter().all(|number| *number == numbers[0]), "half a batch: {numbers:?}");
    numbers[0]
}

#[test]
fn a_failed_commit_applies_nothing_and_the_next_works() {
    for target in [Target::Write, Target::Sync, Target::SetLength] {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::Other] {
            let folder = tempfile::tempdir().unwrap();
            let (store, faults) = failing_store(folder.path());
            let mut number = 0;
            store.commit(&numbered(number)).unwrap();
            let mut refused = 0;
            for passes in 0..30 {
                let planned = Plan { target, passes, failures: 1, kind };
                *faults.0.lock() = Some(planned);
                let outcome = store.commit(&numbered(number + 1));
                let struck = faults.end(planned);
                match outcome {
                    Ok(()) => number += 1,
                    Err(error) => {
                        assert!(struck, "{planned:?}: {error}");
                        let full = matches!(error, StoreError::Full(_));
                        assert_eq!(full, kind == io::ErrorKind::StorageFull, "{error}");
                        refused += 1;
                    }
                }
                assert_eq!(number_of(&store), number, "{planned:?}");
                number += 1;
                store.commit(&numbered(number)).unwrap();
                assert_eq!(number_of(&store), number, "{planned:?}");
            }
            assert!(refused > 0, "no {target:?} was ever refused");
        }
    }
}

#[test]
fn a_device_that_stays_broken_fails_until_it_heals() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = failing_store(folder.path());
    store.commit(&numbered(1)).unwrap();
    let kind = io::ErrorKind::Other;
    let planned = Plan { target: Target::Write, passes: 0, failures: u64::MAX, kind };
    *faults.0.lock() = Some(planned);
    for _ in 0..3 {
        assert!(matches!(store.commit(&numbered(2)), Err(StoreError::Io(_))));
    }
    assert!(faults.end(planned));
    assert_eq!(number_of(&store), 1);
    store.commit(&numbered(3)).unwrap();
    assert_eq!(number_of(&store), 3);
}

#[test]
fn a_failed_read_is_tried_afresh() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = failing_store(folder.path());
    for number in 0..5 {
        store.commit(&numbered(number)).unwrap();
    }
    let kind = io::ErrorKind::Other;
    let planned = Plan { target: Target::Read, passes: 0, failures: 1, kind };
    *faults.0.lock() = Some(planned);
    let outcome = store.scan(b"k", b"l", usize::MAX);
    assert!(faults.end(planned), "the scan did not reach the file");
    assert!(matches!(outcome, Err(StoreError::Io(_))), "{outcome:?}");
    assert_eq!(number_of(&store), 4);
}

#[test]
fn a_commit_that_failed_in_its_last_step_but_took_effect_is_reported_as_done() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = failing_store(folder.path());
    store.commit(&numbered(1)).unwrap();
    // The last sync that a commit makes is the one after its new root was written.
    let kind = io::ErrorKind::Other;
    let mut done = 0;
    for passes in 0..10 {
        let planned = Plan { target: Target::Sync, passes, failures: 1, kind };
        // Opens the file afresh now if the last round made it fail.
        number_of(&store);
        *faults.0.lock() = Some(planned);
        let outcome = store.commit(&numbered(2 + passes));
        if faults.end(planned) && outcome.is_ok() {
            done += 1;
            assert_eq!(number_of(&store), 2 + passes);
        }
    }
    assert!(done > 0, "no sync failed after the commit took effect");
}

/// A process that is killed in the middle of an opening leaves a file that was closed in order before, and of which a
/// part of what the opening writes is there.
#[test]
fn a_crash_at_any_write_of_an_opening_is_no_damage() {
    let mut cut = 0;
    for passes in 0..100 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = RedbStore::create(&path).unwrap();
        for number in 0..3 {
            store.commit(&numbered(number)).unwrap();
        }
        store.close().unwrap();
        let plan =
            Plan { target: Target::Write, passes, failures: u64::MAX, kind: io::ErrorKind::Other };
        let faults = Arc::new(Faults(Mutex::new(Some(plan))));
        let (file, shared) = (path.clone(), Arc::clone(&faults));
        let opener = move || {
            let inner = file_backend(File::options().read(true).write(true).open(&file)?)?;
            let shared = Arc::clone(&shared);
            Ok(Box::new(FailingFile { inner, faults: shared }) as Box<dyn StorageBackend>)
        };
        let options = RedbOptions { cache_bytes: 64 << 10 };
        let opened = RedbStore::with_opener(Access::Own, path.clone(), Box::new(opener), &options);
        if opened.is_ok() {
            break;
        }
        drop(opened);
        cut += 1;
        RedbStore::check(&path, &options).unwrap_or_else(|error| panic!("{passes}: {error}"));
        let store = RedbStore::open_with(&path, &options).unwrap();
        assert_eq!(number_of(&store), 2, "{passes}");
    }
    assert!(cut > 0, "an opening writes");
}
