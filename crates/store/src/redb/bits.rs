//! Every single bit of a small store, flipped: found before anything is written, or of no consequence.
//!
//! Where `FOREBAY_FLIPS` is set, as in `make soak`, all of them; otherwise those of the header and some of the others, other
//! ones each time.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use forebay_base::seed;
use redb::BackendError;

use super::*;

/// Bits behind the header that are flipped, unless it is all of them.
const FLIPS: usize = 1500;

const OPTIONS: RedbOptions = RedbOptions { cache_bytes: 64 << 10 };

/// A file in memory, which counts what is written to it.
#[derive(Clone, Debug)]
struct Image(Arc<Mutex<(Bytes, u64)>>);

impl Image {
    fn of(bytes: Bytes) -> Image {
        Image(Arc::new(Mutex::new((bytes, 0))))
    }

    fn writes(&self) -> u64 {
        self.0.lock().1
    }

    fn open(&self, access: Access) -> Result<RedbStore> {
        let image = self.clone();
        let opener = move || {
            let file: Box<dyn StorageBackend> = Box::new(image.clone());
            Ok(file)
        };
        RedbStore::with_opener(access, PathBuf::from("image"), Box::new(opener), &OPTIONS)
    }
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().0.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let image = self.0.lock();
        let end = start.checked_add(out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let found = image.0.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        drop(image);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut image = self.0.lock();
        image.0.resize(usize::try_from(len).map_err(io::Error::other)?, 0);
        image.1 += 1;
        drop(image);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let mut image = self.0.lock();
        let place =
            image.0.get_mut(start..start + data.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        place.copy_from_slice(data);
        image.1 += 1;
        drop(image);
        Ok(())
    }

    fn try_lock_range(
        &self,
        _: Bound<u64>,
        _: Bound<u64>,
    ) -> std::result::Result<bool, BackendError> {
        Ok(true)
    }

    fn try_lock_shared_range(
        &self,
        _: Bound<u64>,
        _: Bound<u64>,
    ) -> std::result::Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> std::result::Result<(), BackendError> {
        Ok(())
    }
}

type Pairs = BTreeMap<Bytes, Bytes>;

fn all(store: &RedbStore) -> Pairs {
    store.scan(b"", &[0xff; 9], usize::MAX).unwrap().into_iter().collect()
}

/// A store after some commits that set and remove, closed in order.
fn small_store() -> Bytes {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = RedbStore::create_with(&path, &OPTIONS).unwrap();
    for round in 0..4_u8 {
        let pair = |key: u8| (vec![b'k', key], (key % 4 != round).then(|| vec![round; 30]));
        store.commit(&Batch { requires: vec![], changes: (0..20).map(pair).collect() }).unwrap();
    }
    store.close().unwrap();
    std::fs::read(&path).unwrap()
}

/// Whether the image is found to be damaged. If not, it serves as if nothing were wrong: it holds all pairs, and so does
/// every later owner.
fn is_found(image: &Image, pairs: &Pairs, what: &str) -> bool {
    match image.open(Access::Check) {
        Ok(store) => assert!(all(&store) == *pairs, "{what}: other pairs are read"),
        Err(StoreError::Damaged(_)) => {
            let opened = image.open(Access::Own);
            assert!(matches!(opened, Err(StoreError::Damaged(_))), "{what}: it is not refused");
            assert_eq!(image.writes(), 0, "{what}: it was written to");
            return true;
        }
        Err(other) => panic!("{what}: {other}"),
    }
    let store = image.open(Access::Own).unwrap();
    let changes = [(b"new".to_vec(), Some(vec![1; 30]))].into();
    store.commit(&Batch { requires: vec![], changes }).unwrap();
    store.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    let store = image.open(Access::Check).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut after = all(&store);
    assert!(after.remove(&b"new"[..]).is_some() && after == *pairs, "{what}: not all is there");
    false
}

#[test]
fn every_flipped_bit_of_a_small_store_is_found_or_harmless() {
    let good = small_store();
    let pairs = all(&Image::of(good.clone()).open(Access::Check).unwrap());
    assert_eq!(pairs.len(), 15);
    let threads = std::thread::available_parallelism().unwrap().get();
    let (header, end) = (HEADER_BYTES * 8, good.len() * 8);
    let seed = seed::announce("cargo test -p forebay-store --lib every_flipped_bit");
    let every = std::env::var_os("FOREBAY_FLIPS").is_some();
    let step = if every { 1 } else { (end - header) / FLIPS };
    let first = header + usize::try_from(seed).unwrap() % step;
    let bits: Vec<usize> = (0..header).chain((first..end).step_by(step)).collect();
    let flip_all = |first: usize| {
        let mut found = 0;
        for bit in bits.iter().skip(first).step_by(threads) {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let what = format!("bit {} of byte {}", bit % 8, bit / 8);
            found += usize::from(is_found(&Image::of(bytes), &pairs, &what));
        }
        found
    };
    let found: usize = std::thread::scope(|scope| {
        let flip_all = &flip_all;
        let parts: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || flip_all(first))).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    println!("{found} of {} flipped bits were found", bits.len());
    assert!(found > header / 2, "most of the header counts");
}
