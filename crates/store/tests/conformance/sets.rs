//! One suite that every set of stores passes.

use forebay_base::FilesetId;
use forebay_store::memory::MemoryStores;
use forebay_store::redb::RedbOptions;
use forebay_store::redb::folder::RedbFolder;
use forebay_store::{Store as _, StoreError, Stores};

use super::put;

fn on_all_sets(rule: impl Fn(&dyn Stores)) {
    rule(&MemoryStores::new());
    #[cfg(feature = "cluster")]
    super::slate::on_sets(&rule);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("00007.redb.replaced-1"), "none of the set").unwrap();
    rule(&RedbFolder::at(folder.path(), RedbOptions { cache_bytes: 1 << 20 }));
}

#[test]
fn each_number_has_a_store_of_its_own() {
    on_all_sets(|stores| {
        for number in [3, 0, 65_535] {
            let store = stores.create(FilesetId(number)).unwrap();
            put(&*store, b"number", &number.to_be_bytes());
            store.close().unwrap();
        }
        assert_eq!(stores.list().unwrap(), [0, 3, 65_535].map(FilesetId));
        for number in [0_u16, 3, 65_535] {
            let looked = stores.look(FilesetId(number)).unwrap().get(b"number").unwrap();
            assert_eq!(looked, Some(number.to_be_bytes().to_vec()));
            let opened = stores.open(FilesetId(number)).unwrap().get(b"number").unwrap();
            assert_eq!(opened, looked);
        }
    });
}

#[test]
fn a_frozen_copy_stays_as_the_store_was_however_it_was_made() {
    let rule = |stores: &dyn Stores| {
        let (id, other) = (FilesetId(7), FilesetId(8));
        let store = stores.create(id).unwrap();
        put(&*store, b"key", b"first");
        let is_shared = stores.freeze_shared(id, 3).unwrap();
        if !is_shared {
            stores.freeze_copied(id, 3, &*store).unwrap();
        }
        put(&*store, b"key", b"second");
        put(&*store, b"more", b"x");
        stores.finish_frozen(id, 3).unwrap();
        let frozen = stores.frozen(id, 3).unwrap();
        assert_eq!(frozen.get(b"key").unwrap(), Some(b"first".to_vec()));
        assert_eq!(frozen.get(b"more").unwrap(), None);
        assert_eq!(store.get(b"key").unwrap(), Some(b"second".to_vec()));
        assert_eq!(stores.list_frozen(id).unwrap(), [3]);
        assert_eq!(stores.list_frozen(other).unwrap(), [0; 0]);
        assert!(matches!(stores.frozen(id, 4).map(drop), Err(StoreError::Missing(_))));
        assert_eq!(stores.list().unwrap(), [id], "it is not a store");
        drop(frozen);
        for _ in 0..2 {
            stores.remove_frozen(id, 3).unwrap();
            assert_eq!(stores.list_frozen(id).unwrap(), [0; 0]);
        }
    };
    rule(&MemoryStores::new());
    let folder = tempfile::tempdir().unwrap();
    rule(&RedbFolder::at(folder.path(), RedbOptions { cache_bytes: 1 << 20 }));
}

#[test]
fn a_store_that_is_removed_takes_its_frozen_copies_along() {
    let folder = tempfile::tempdir().unwrap();
    let stores = RedbFolder::at(folder.path(), RedbOptions { cache_bytes: 1 << 20 });
    let store = stores.create(FilesetId(7)).unwrap();
    stores.freeze_copied(FilesetId(7), 1, &*store).unwrap();
    stores.finish_frozen(FilesetId(7), 1).unwrap();
    store.close().unwrap();
    drop(store);
    stores.remove(FilesetId(7)).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_store_that_is_made_again_is_empty_and_one_that_is_removed_is_gone() {
    on_all_sets(|stores| {
        let id = FilesetId(7);
        for _ in 0..2 {
            let store = stores.create(id).unwrap();
            assert_eq!(store.get(b"key").unwrap(), None);
            put(&*store, b"key", b"value");
            store.close().unwrap();
        }
        stores.size_of(id).unwrap();
        for _ in 0..2 {
            stores.remove(id).unwrap();
            assert_eq!(stores.list().unwrap(), []);
            assert!(matches!(stores.open(id).map(drop), Err(StoreError::Missing(_))));
            assert!(matches!(stores.look(id).map(drop), Err(StoreError::Missing(_))));
        }
    });
}
