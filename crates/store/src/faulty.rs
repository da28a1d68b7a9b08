//! A store that fails on purpose, around any other store.
//!
//! An injected fault changes nothing in the inner store, as the contract of [`Store`] demands of a
//! real one; but for [`Fault::UnknownKept`], which keeps the batch and says that it does not know. Without faults it is transparent. What survives a crash is what the inner store keeps.

use std::path::Path;

use parking_lot::Mutex;

use crate::{Batch, Bytes, Result, Store, StoreError};

/// What an injected fault looks like to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// [`StoreError::Full`].
    Full,
    /// [`StoreError::Io`].
    Io,
    /// [`StoreError::Unknown`], and the batch is there.
    UnknownKept,
    /// [`StoreError::Unknown`], and nothing of the batch is there.
    UnknownLost,
}

impl Fault {
    fn error(self) -> StoreError {
        match self {
            Fault::Full => StoreError::Full("injected fault".to_owned()),
            Fault::Io => StoreError::Io("injected fault".to_owned()),
            Fault::UnknownKept | Fault::UnknownLost => {
                StoreError::Unknown("injected fault".to_owned())
            }
        }
    }
}

#[derive(Debug, Default)]
struct Faults {
    commits: Option<(u64, Fault)>,
    reads: Option<(u64, Fault)>,
    closes: Option<(u64, Fault)>,
}

/// Wraps `S` and fails as told. Share it in an `Arc` to switch faults while others use it.
#[derive(Debug, Default)]
pub struct FaultyStore<S> {
    inner: S,
    faults: Mutex<Faults>,
}

impl<S: Store> FaultyStore<S> {
    /// Wraps `inner`, with no fault switched on.
    #[must_use]
    pub fn new(inner: S) -> FaultyStore<S> {
        FaultyStore { inner, faults: Mutex::default() }
    }

    /// Fails the next `times` commits (`u64::MAX`: until [`FaultyStore::heal`]).
    pub fn fail_commits(&self, times: u64, fault: Fault) {
        self.faults.lock().commits = Some((times, fault));
    }

    /// Fails the next `times` gets and scans (`u64::MAX`: until [`FaultyStore::heal`]) with
    /// [`StoreError::Io`].
    pub fn fail_reads(&self, times: u64) {
        self.faults.lock().reads = Some((times, Fault::Io));
    }

    /// Fails the next `times` closings with [`StoreError::Io`].
    pub fn fail_closes(&self, times: u64) {
        self.faults.lock().closes = Some((times, Fault::Io));
    }

    /// Switches all faults off.
    pub fn heal(&self) {
        *self.faults.lock() = Faults::default();
    }

    /// The wrapped store.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

fn strike(fault: &mut Option<(u64, Fault)>) -> Result<()> {
    match fault {
        Some((times, kind)) if *times > 0 => {
            *times = if *times == u64::MAX { u64::MAX } else { *times - 1 };
            Err(kind.error())
        }
        Some(_) | None => Ok(()),
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        strike(&mut self.faults.lock().reads)?;
        self.inner.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        strike(&mut self.faults.lock().reads)?;
        self.inner.scan(from, to, limit)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let struck = {
            let mut faults = self.faults.lock();
            let kind = faults.commits.map(|(_, kind)| kind);
            strike(&mut faults.commits).map_err(|error| (error, kind))
        };
        match struck {
            Err((error, Some(Fault::UnknownKept))) => {
                self.inner.commit(batch)?;
                Err(error)
            }
            Err((error, _)) => Err(error),
            Ok(()) => self.inner.commit(batch),
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        self.inner.size_bytes()
    }

    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        self.inner.copy_to(path, progress)
    }

    fn close(&self) -> Result<()> {
        strike(&mut self.faults.lock().closes)?;
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;

    #[test]
    fn faults_strike_as_often_as_told_and_change_nothing() {
        let store = FaultyStore::new(MemoryStore::new());
        let batch = Batch { requires: vec![], changes: [(b"k".to_vec(), Some(vec![]))].into() };
        store.fail_commits(2, Fault::Full);
        for _ in 0..2 {
            assert!(matches!(store.commit(&batch), Err(StoreError::Full(_))));
        }
        assert_eq!(store.get(b"k").unwrap(), None);
        store.fail_commits(1, Fault::UnknownLost);
        assert!(matches!(store.commit(&batch), Err(StoreError::Unknown(_))));
        assert_eq!(store.get(b"k").unwrap(), None);
        store.fail_commits(1, Fault::UnknownKept);
        assert!(matches!(store.commit(&batch), Err(StoreError::Unknown(_))));
        assert_eq!(store.get(b"k").unwrap(), Some(vec![]));

        store.fail_reads(u64::MAX);
        assert!(matches!(store.get(b"k"), Err(StoreError::Io(_))));
        assert!(matches!(store.scan(b"", b"z", 9), Err(StoreError::Io(_))));
        store.heal();
        assert_eq!(store.get(b"k").unwrap(), Some(vec![]));
    }
}
