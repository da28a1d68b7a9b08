//! How a new owner comes into a database in etcd: by one transaction, or not at all.

use std::sync::Arc;

use forebay_base::{Epoch, FilesetId};
use forebay_etcd::testing::EtcdServer;
use forebay_etcd::{Keys, RangeOptions, Runtime};
use forebay_store::slate::{EtcdPlace, Place, SlateConfig, SlateStores, open_stores};
use forebay_store::{Store, StoreError, Stores};

use super::put;

const ID: FilesetId = FilesetId(7);

/// The stores of two nodes.
struct Site {
    server: EtcdServer,
    one: Arc<SlateStores>,
    two: Arc<SlateStores>,
}

impl Site {
    /// With a store that one node owns in epoch 5.
    fn make() -> (Site, Arc<dyn Store>) {
        let server = EtcdServer::single();
        let runtime = Runtime::start(2).unwrap();
        let place = EtcdPlace { endpoints: server.endpoints(), ..EtcdPlace::default() };
        let config = SlateConfig::new(Place::Etcd(place), "names");
        let [one, two] = [(); 2].map(|()| open_stores(&config, &runtime, None).unwrap());
        one.create(ID).unwrap().close().unwrap();
        let store = one.open_for(ID, Epoch(5)).unwrap();
        put(&*store, b"a", b"1");
        (Site { server, one, two }, store)
    }

    /// The revisions that made the objects of a folder of the database, in the order of their names.
    fn made(&self, folder: &str) -> Vec<i64> {
        let keys = Keys::prefix(format!("names/m/00007/{folder}/"));
        let found = self.server.client().range(keys, RangeOptions::default()).unwrap();
        found.pairs.into_iter().map(|pair| pair.mod_revision).collect()
    }

    /// The term of the latest owner, a manifest, and an object of the log appeared together.
    fn is_one_transaction(&self) -> bool {
        let term = *self.made("term").last().expect("there is one");
        ["manifest", "wal"].into_iter().all(|folder| self.made(folder).contains(&term))
    }
}

fn is_conflict<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Conflict))
}

#[test]
fn an_owner_enters_a_database_in_etcd_by_one_transaction() {
    let (site, former) = Site::make();
    former.close().unwrap();
    let next = site.two.open_for(ID, Epoch(6)).unwrap();
    assert!(site.is_one_transaction());
    assert_eq!(next.get(b"a").unwrap().unwrap(), b"1");
    put(&*next, b"a", b"2");
    // One that is not closed is kept out as well.
    let third = site.one.open_for(ID, Epoch(7)).unwrap();
    assert!(is_conflict(&next.commit(&super::batch([(&b"a"[..], None)]))));
    assert_eq!(third.get(b"a").unwrap().unwrap(), b"2");
}

#[test]
fn an_owner_that_is_late_does_not_enter_a_database_in_etcd() {
    let (site, former) = Site::make();
    site.two.expect(ID).unwrap();
    former.close().unwrap();
    let newer = site.one.open_for(ID, Epoch(8)).unwrap();
    for _ in 0..2 {
        assert!(is_conflict(&site.two.open_for(ID, Epoch(7)).map(drop)));
        put(&*newer, b"a", b"3");
    }
}

#[test]
fn what_is_opened_ahead_follows_the_writer_that_was_expected_or_nobody() {
    let (site, former) = Site::make();
    assert!(site.two.open_ahead(ID, Epoch(6)).unwrap().is_none(), "nobody expected it");
    put(&*former, b"a", b"2");
    site.two.expect(ID).unwrap();
    put(&*former, b"a", b"3");
    former.close().unwrap();
    let ahead = site.two.open_ahead(ID, Epoch(6)).unwrap().expect("nobody came in between");
    assert!(site.is_one_transaction());
    assert_eq!(ahead.get(b"a").unwrap().unwrap(), b"3");
    // The node is not the owner in the end: another one is, in the same epoch.
    let owner = site.one.open_for(ID, Epoch(6)).unwrap();
    put(&*owner, b"a", b"4");
    assert!(is_conflict(&ahead.commit(&super::batch([(&b"a"[..], None)]))));
    // As late as it may come, it disturbs nobody.
    site.two.expect(ID).unwrap();
    owner.close().unwrap();
    let again = site.one.open_for(ID, Epoch(6)).unwrap();
    assert!(site.two.open_ahead(ID, Epoch(6)).unwrap().is_none());
    put(&*again, b"a", b"5");
}

#[test]
fn an_owner_enters_while_the_former_one_commits() {
    let (site, former) = Site::make();
    site.two.expect(ID).unwrap();
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            let mut last = 0_u64;
            loop {
                let value = (last + 1).to_be_bytes();
                match former.commit(&super::batch([(&b"n"[..], Some(&value[..]))])) {
                    Ok(()) => last += 1,
                    Err(StoreError::Conflict) => return last,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let next = site.two.open_for(ID, Epoch(6)).unwrap();
        let last = committing.join().unwrap();
        let found = next
            .get(b"n")
            .unwrap()
            .map_or(0, |value| u64::from_be_bytes(value.try_into().expect("is a number")));
        assert!(found == last || found == last + 1, "{found} after {last}");
    });
}
