//! All stores of a file system within one, so that a test can watch, break or copy them as a whole: the keys of each
//! fileset begin with its number.

use std::sync::Arc;

use forebay_base::FilesetId;
use forebay_fs::key::{self, Key};
use forebay_store::{Batch, Bytes, Result, Store, StoreError, Stores};

/// Keys of frozen copies begin so, after the number of the fileset: no key of a store does.
const FROZEN: &[u8] = b"~";
const AFTER_FROZEN: &[u8] = b"\x7f";

/// The stores of a file system within one store.
#[derive(Clone)]
pub struct WholeStores(pub Arc<dyn Store>);

impl WholeStores {
    /// The store of a fileset, whether or not there is anything in it.
    pub fn of(&self, fileset: FilesetId) -> PartOfStore {
        let prefix = fileset.0.to_be_bytes().to_vec();
        PartOfStore { inner: Arc::clone(&self.0), fileset, prefix }
    }

    /// A frozen copy of the store of a fileset: behind all its keys.
    fn frozen_part(&self, fileset: FilesetId, number: u64) -> PartOfStore {
        let prefix = [&fileset.0.to_be_bytes()[..], FROZEN, &number.to_be_bytes()].concat();
        PartOfStore { inner: Arc::clone(&self.0), fileset, prefix }
    }

    /// The fileset in whose store a key lies, if the key tells.
    pub fn fileset_of(key: &[u8]) -> Option<FilesetId> {
        match key::parse(key)? {
            Key::Inode(ino) | Key::Entry(ino, _) | Key::Xattr(ino, _) | Key::Place(ino) => {
                Some(ino.fileset())
            }
            Key::Queued(_) | Key::Round(_) | Key::Conflict(_) => None,
            Key::Fileset(_) | Key::Task(_) => Some(FilesetId::ROOT),
            Key::Term | Key::Superblock | Key::Usage | Key::Fenced | Key::DiskUsage(_) => None,
            Key::Quota(_) | Key::Holding(_) | Key::Snapshot(_) => None,
            Key::Kept(object, _) | Key::Late(object) | Key::Copies(object) => {
                Some(object.fileset())
            }
        }
    }

    fn existing(&self, fileset: FilesetId) -> Result<PartOfStore> {
        let part = self.of(fileset);
        if part.scan(b"", &[0xff; 32], 1)?.is_empty() {
            return Err(StoreError::Missing(format!("there is no store {fileset}")));
        }
        Ok(part)
    }
}

impl Stores for WholeStores {
    fn create(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        self.remove(fileset)?;
        Ok(Arc::new(self.of(fileset)))
    }

    fn open(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.existing(fileset)?))
    }

    fn look(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        self.open(fileset)
    }

    fn size_of(&self, _fileset: FilesetId) -> Result<u64> {
        Ok(0)
    }

    fn remove(&self, fileset: FilesetId) -> Result<()> {
        let part = self.of(fileset);
        let rows = part.scan(b"", &[0xff; 32], usize::MAX)?;
        if rows.is_empty() {
            return Ok(());
        }
        let changes = rows.into_iter().map(|(key, _)| (key, None)).collect();
        part.commit(&Batch { requires: Vec::new(), changes })
    }

    fn list(&self) -> Result<Vec<FilesetId>> {
        let mut found = Vec::new();
        let mut next = 0_u32;
        while let Ok(number) = u16::try_from(next) {
            let rows = self.0.scan(&number.to_be_bytes(), &[0xff; 32], 1)?;
            let Some((key, _)) = rows.first() else { break };
            let number = u16::from_be_bytes([key[0], key[1]]);
            found.push(FilesetId(number));
            next = u32::from(number) + 1;
        }
        Ok(found)
    }

    fn freeze_shared(&self, fileset: FilesetId, number: u64) -> Result<bool> {
        let rows = self.of(fileset).scan(b"", &[0xff; 32], usize::MAX)?;
        let changes = rows.into_iter().map(|(key, value)| (key, Some(value))).collect();
        self.remove_frozen(fileset, number)?;
        let copy = self.frozen_part(fileset, number);
        copy.commit(&Batch { requires: Vec::new(), changes })?;
        Ok(true)
    }

    fn frozen(&self, fileset: FilesetId, number: u64) -> Result<Arc<dyn Store>> {
        let copy = self.frozen_part(fileset, number);
        if copy.get(key::SUPERBLOCK)?.is_none() {
            return Err(StoreError::Missing(format!("no copy {number} of store {fileset}")));
        }
        Ok(Arc::new(copy))
    }

    fn remove_frozen(&self, fileset: FilesetId, number: u64) -> Result<()> {
        let copy = self.frozen_part(fileset, number);
        let rows = copy.scan(b"", &[0xff; 32], usize::MAX)?;
        if rows.is_empty() {
            return Ok(());
        }
        let changes = rows.into_iter().map(|(key, _)| (key, None)).collect();
        copy.commit(&Batch { requires: Vec::new(), changes })
    }

    fn list_frozen(&self, fileset: FilesetId) -> Result<Vec<u64>> {
        let from = [&fileset.0.to_be_bytes()[..], FROZEN].concat();
        let to = [&fileset.0.to_be_bytes()[..], &[FROZEN[0] + 1]].concat();
        let rows = self.0.scan(&from, &to, usize::MAX)?;
        let number = |key: &[u8]| u64::from_be_bytes(key[3..11].try_into().expect("a number"));
        let mut found: Vec<u64> = rows.iter().map(|(key, _)| number(key)).collect();
        found.dedup();
        Ok(found)
    }
}

/// The store of one fileset within another store.
#[derive(Clone)]
pub struct PartOfStore {
    inner: Arc<dyn Store>,
    fileset: FilesetId,
    prefix: Bytes,
}

impl PartOfStore {
    fn full(&self, key: &[u8]) -> Bytes {
        [&self.prefix, key].concat()
    }
}

impl Store for PartOfStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.inner.get(&self.full(key))
    }

    fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        self.inner.get_all(&keys.iter().map(|key| self.full(key)).collect::<Vec<_>>())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let mut rows = Vec::new();
        // Frozen copies lie between.
        for (from, to) in [(from, to.min(FROZEN)), (from.max(AFTER_FROZEN), to)] {
            if from < to && rows.len() < limit {
                let left = limit - rows.len();
                rows.extend(self.inner.scan(&self.full(from), &self.full(to), left)?);
            }
        }
        let key = |key: &Bytes| key[self.prefix.len()..].to_vec();
        Ok(rows.into_iter().map(|(full, value)| (key(&full), value)).collect())
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let requires = batch.requires.iter();
        let requires = requires.map(|(key, value)| (self.full(key), value.clone())).collect();
        let changes = batch.changes.iter();
        let changes = changes.map(|(key, value)| (self.full(key), value.clone())).collect();
        self.inner.commit(&Batch { requires, changes })
    }

    fn size_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    fn close(&self) -> Result<()> {
        if self.fileset == FilesetId::ROOT { self.inner.close() } else { Ok(()) }
    }
}
