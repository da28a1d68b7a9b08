//! Files that were damaged: found before anything is written to them, and read as far as they can be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_base::seed;
use forebay_store::redb::salvage::{Judge, Salvage, salvage};
use forebay_store::redb::{RedbOptions, RedbStore};
use forebay_store::{Batch, Bytes, Result, Store, StoreError};

const HEADER_BITS: usize = 320 * 8;
/// Bits that are flipped beyond the header, unless `FOREBAY_FLIPS` says otherwise.
const FLIPS: usize = 500;

const OPTIONS: RedbOptions = RedbOptions { cache_bytes: 1 << 20 };

fn number_of(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

type Pairs = BTreeMap<Bytes, Bytes>;

/// Values say how old they are and which key they belong to.
struct Numbered;

impl Judge for Numbered {
    fn is_plausible(&self, key: &[u8], value: &[u8]) -> bool {
        value.len() > 8 && value[8..].starts_with(key)
    }

    fn is_newer(&self, _: &[u8], first: &[u8], second: &[u8]) -> bool {
        second[..8] > first[..8]
    }
}

fn value_of(key: &[u8], round: u64, length: usize) -> Bytes {
    [&round.to_be_bytes(), key, &vec![round as u8; length][..]].concat()
}

/// A store after some commits, closed in order, and what it holds.
fn make(path: &Path) -> Pairs {
    let store = RedbStore::create_with(path, &OPTIONS).unwrap();
    let mut pairs = Pairs::new();
    for round in 0..6_u64 {
        let numbers = (0..number_of("FOREBAY_FLIP_PAIRS", 150) as u64)
            .filter(|number| (number * 7 + round) % 3 > 0);
        let changes: BTreeMap<Bytes, Option<Bytes>> = numbers
            .map(|number| {
                let key = [&b"K"[..], &number.to_be_bytes()].concat();
                // Now and then a value that takes several pages.
                let length = if number == 70 { 9_000 } else { 100 };
                let value = (number % 10 != round).then(|| value_of(&key, round, length));
                (key, value)
            })
            .collect();
        for (key, value) in &changes {
            match value {
                Some(value) => pairs.insert(key.clone(), value.clone()),
                None => pairs.remove(key),
            };
        }
        store.commit(&Batch { requires: vec![], changes }).unwrap();
    }
    store.close().unwrap();
    pairs
}

fn all(store: &dyn Store) -> Result<Pairs> {
    Ok(store.scan(b"", &[0xff; 9], usize::MAX)?.into_iter().collect())
}

/// A folder for thousands of small files, in memory where there is such a place: nothing here is about
/// what a disk keeps.
fn quick_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

struct Scene {
    folder: tempfile::TempDir,
    good: Bytes,
    pairs: Pairs,
}

impl Scene {
    fn make() -> Scene {
        let folder = quick_folder();
        let path = folder.path().join("good");
        let pairs = make(&path);
        let good = std::fs::read(&path).unwrap();
        Scene { folder, good, pairs }
    }

    fn bad(&self) -> PathBuf {
        self.folder.path().join("bad")
    }

    /// Checks the file, which must stay as it is; what it holds if it passes.
    fn check(&self, bytes: &[u8], what: &str) -> Option<Pairs> {
        std::fs::write(self.bad(), bytes).unwrap();
        let found = RedbStore::check(self.bad(), &OPTIONS).and_then(|store| all(&store));
        assert!(std::fs::read(self.bad()).unwrap() == bytes, "{what}: the check has changed it");
        match found {
            Ok(pairs) => Some(pairs),
            Err(StoreError::Damaged(_)) => None,
            Err(other) => panic!("{what}: {other:?}"),
        }
    }

    fn salvage(&self, bytes: &[u8]) -> Result<(Salvage, Pairs)> {
        std::fs::write(self.bad(), bytes).unwrap();
        let fresh = self.folder.path().join("fresh");
        let _ = std::fs::remove_file(&fresh);
        let salvaged = salvage(&self.bad(), &fresh, &Numbered)?;
        Ok((salvaged, all(&RedbStore::check(&fresh, &OPTIONS)?)?))
    }
}

#[test]
fn any_flipped_bit_is_found_or_harmless_and_no_pair_is_lost_by_it() {
    let scene = Scene::make();
    let whole = scene.salvage(&scene.good).unwrap();
    assert_eq!(whole.1, scene.pairs);
    assert_eq!(whole.0, Salvage { pairs: scene.pairs.len() as u64, ..Salvage::default() });
    let bits = scene.good.len() * 8;
    let seed = seed::announce("cargo test -p forebay-store --test conformance any_flipped_bit");
    let wanted = number_of("FOREBAY_FLIPS", FLIPS);
    let step = (bits / wanted).max(1);
    let first = HEADER_BITS + usize::try_from(seed).unwrap() % step;
    let mut found = 0;
    for bit in (0..HEADER_BITS).chain((first..bits).step_by(step)) {
        let mut bytes = scene.good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let what = format!("bit {} of byte {}", bit % 8, bit / 8);
        match scene.check(&bytes, &what) {
            Some(pairs) => {
                assert!(pairs == scene.pairs, "{what} changes what is read");
                // An owner trusts it, and so do all later ones.
                let store = RedbStore::open_with(scene.bad(), &OPTIONS).unwrap();
                store
                    .commit(&Batch {
                        requires: vec![],
                        changes: [(b"new".to_vec(), Some(vec![1]))].into(),
                    })
                    .unwrap();
                store.close().unwrap();
                let mut after = all(&RedbStore::check(scene.bad(), &OPTIONS).unwrap()).unwrap();
                assert!(after.remove(&b"new"[..]).is_some() && after == scene.pairs, "{what}");
            }
            None => {
                found += 1;
                let opened = RedbStore::open_with(scene.bad(), &OPTIONS);
                assert!(matches!(opened, Err(StoreError::Damaged(_))), "{what}: it is refused");
                assert!(std::fs::read(scene.bad()).unwrap() == bytes, "{what}: and left alone");
                let (_, pairs) = scene.salvage(&bytes).unwrap();
                assert!(pairs == scene.pairs, "{what}: every pair is saved");
            }
        }
    }
    assert!(found > HEADER_BITS / 2, "most of the header counts");
}

#[test]
fn zeroed_pages_and_cut_files_never_panic_and_lose_only_what_they_held() {
    let scene = Scene::make();
    let pages = scene.good.len() / 4096;
    for page in 0..pages {
        let mut bytes = scene.good.clone();
        bytes[page * 4096..(page + 1) * 4096].fill(0);
        let what = format!("page {page}");
        if let Some(pairs) = scene.check(&bytes, &what) {
            assert!(pairs == scene.pairs, "{what}: an unused page");
            continue;
        }
        if let Ok((salvaged, pairs)) = scene.salvage(&bytes) {
            let is_known = |(key, value): (&Bytes, &Bytes)| {
                scene.pairs.get(key) == Some(value) || salvaged.is_lossy()
            };
            assert!(pairs.iter().all(is_known), "{what}: {salvaged:?}");
            assert!(salvaged.is_lossy() || pairs == scene.pairs, "{what}: {salvaged:?}");
        }
    }
    for length in [0, 1, 100, 320, 4096, 5000, scene.good.len() / 2, scene.good.len() - 4096] {
        let bytes = &scene.good[..length];
        assert_eq!(scene.check(bytes, &format!("cut to {length}")), None);
        let opened = RedbStore::open_with(scene.bad(), &OPTIONS);
        assert!(matches!(opened, Err(StoreError::Damaged(_))), "cut to {length}");
        let _ = scene.salvage(bytes);
    }
}

#[test]
fn a_copy_is_of_one_moment_and_replaces_no_file() {
    let folder = quick_folder();
    let path = folder.path().join("store");
    let pairs = make(&path);
    let store = RedbStore::open_with(&path, &OPTIONS).unwrap();
    let copy = folder.path().join("copy");
    let mut told = (0, 0);
    let copied = store.copy_to(&copy, &mut |done, all| told = (done, all)).unwrap();
    assert_eq!(copied, pairs.len() as u64);
    assert_eq!(told, (pairs.len() as u64, pairs.len() as u64));
    store
        .commit(&Batch { requires: vec![], changes: [(b"later".to_vec(), Some(vec![]))].into() })
        .unwrap();
    assert!(all(&RedbStore::check(&copy, &OPTIONS).unwrap()).unwrap() == pairs);
    let before = std::fs::read(&copy).unwrap();
    store.copy_to(&copy, &mut |_, _| {}).unwrap_err();
    assert!(std::fs::read(&copy).unwrap() == before);
}

#[test]
fn what_was_opened_to_look_or_check_cannot_be_changed() {
    let folder = quick_folder();
    let path = folder.path().join("store");
    let pairs = make(&path);
    let before = std::fs::read(&path).unwrap();
    for open in [RedbStore::check, RedbStore::look] {
        let store: RedbStore = open(&path, &OPTIONS).unwrap();
        assert!(all(&store).unwrap() == pairs);
        assert!(matches!(store.commit(&Batch::default()), Err(StoreError::Io(_))));
        store.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == before);
    }
}
