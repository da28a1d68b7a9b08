//! The store of a cluster: the rules of all stores in each of its places, and what only it promises.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Clock as _, Epoch, FilesetId, time::SystemClock};
use forebay_etcd::testing::{EtcdServer, Plan};
use forebay_etcd::{Keys, Runtime};
use forebay_store::redb::RedbStore;
use forebay_store::slate::{
    EtcdPlace, EtcdState, Place, QuotaOf, SlateConfig, SlateStores, open_stores,
};
use forebay_store::{Batch, Store, StoreError, Stores};

use super::{all_rules, batch, engines, put, rules, with_rules};

const ID: FilesetId = FilesetId(7);
/// How long something may take that is sure to come, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn stores(config: &SlateConfig) -> Arc<SlateStores> {
    open_stores(config, &Runtime::start(2).unwrap(), None).unwrap()
}

fn in_memory() -> Arc<SlateStores> {
    stores(&SlateConfig::new(Place::Memory, "names"))
}

fn in_directory(folder: &Path) -> SlateConfig {
    std::fs::create_dir_all(folder.join("shared")).unwrap();
    let mut config = SlateConfig::new(Place::Directory(folder.join("shared")), "names");
    config.cache = Some(folder.join("cache"));
    config.memory_bytes_max = 1 << 20;
    config
}

fn in_etcd(server: &EtcdServer, prefix: &str) -> SlateConfig {
    let place = EtcdPlace { endpoints: server.endpoints(), ..EtcdPlace::default() };
    SlateConfig::new(Place::Etcd(place), format!("forebay/{prefix}"))
}

engines! {
    slate_in_memory => |_| Box::new(in_memory().create(ID).unwrap());
    slate_in_a_directory => |folder| Box::new(stores(&in_directory(folder)).create(ID).unwrap());
}

#[test]
fn slate_in_etcd_keeps_every_rule() {
    let server = EtcdServer::single();
    let make = |rule: &str| stores(&in_etcd(&server, rule)).create(ID).unwrap();
    with_rules!(all_rules make);
}

/// For the rules of sets.
pub fn on_sets(rule: &dyn Fn(&dyn Stores)) {
    rule(&*in_memory());
    let folder = tempfile::tempdir().unwrap();
    rule(&*stores(&in_directory(folder.path())));
}

fn count(store: &dyn Store) -> u64 {
    let value = store.get(b"count").unwrap();
    value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
}

/// The next step of a counter that has two copies, so that a half batch would be seen.
fn step(store: &dyn Store) -> Result<(), StoreError> {
    let now = count(store);
    let next = (now + 1).to_be_bytes();
    let mut batch = batch([(&b"count"[..], Some(&next[..])), (b"copy", Some(&next[..]))]);
    let before = (now > 0).then(|| now.to_be_bytes().to_vec());
    batch.requires.push((b"count".to_vec(), before));
    store.commit(&batch)
}

#[test]
fn what_was_committed_is_there_after_a_close_and_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let config = in_directory(folder.path());
    stores(&config).create(ID).unwrap().close().unwrap();
    let mut steps = 0;
    for round in 0..6 {
        let store = stores(&config).open(ID).unwrap();
        assert_eq!(count(&*store), steps);
        steps += [12, 13, 10][round % 3];
        for _ in 0..10 {
            step(&*store).unwrap();
        }
        if round % 3 == 1 {
            // The rest stays in the log.
            store.shorten_log().unwrap();
            step(&*store).unwrap();
            store.shorten_log().unwrap();
        }
        if round % 3 < 2 {
            for _ in 0..2 {
                step(&*store).unwrap();
            }
            store.close().unwrap();
            assert!(matches!(store.get(b"count"), Err(StoreError::Io(_))), "it is closed");
        }
        // Otherwise it ends here without being closed, as in a crash.
    }
}

#[test]
fn a_store_that_is_opened_again_and_again_is_closed_without_waiting_for_a_compaction() {
    let stores = in_memory();
    let mut steps = 0;
    // The engine makes no more than eight tables before one, and none begins in so short a time.
    for life in 0..12 {
        let store = if life == 0 { stores.create(ID) } else { stores.open(ID) }.unwrap();
        assert_eq!(count(&store), steps);
        for _ in 0..12 {
            step(&store).unwrap();
            steps += 1;
        }
        if life > 9 {
            store.shorten_log().unwrap();
        }
        store.close().unwrap();
    }
    assert_eq!(count(&stores.open(ID).unwrap()), steps);
}

#[test]
fn a_former_writer_gets_a_conflict_and_changes_nothing() {
    let stores = in_memory();
    let former = stores.create(ID).unwrap();
    step(&*former).unwrap();
    let newer = stores.open(ID).unwrap();
    assert_eq!(count(&*newer), 1, "what the former one committed is there");
    step(&*newer).unwrap();
    for _ in 0..2 {
        let stale = former.commit(&batch([(&b"stale"[..], Some(&b""[..]))]));
        assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?}");
    }
    assert!(matches!(former.get(b"count"), Err(StoreError::Conflict)));
    former.close().unwrap();
    step(&*newer).unwrap();
    assert_eq!((count(&*newer), newer.get(b"stale").unwrap()), (3, None));
}

#[test]
fn who_follows_a_store_sees_what_is_committed_also_by_the_next_writer() {
    let stores = in_memory();
    let missing = stores.follow(ID, Duration::from_millis(20)).map(drop);
    assert!(matches!(missing, Err(StoreError::Missing(_))), "{missing:?}");
    let writer = stores.create(ID).unwrap();
    step(&*writer).unwrap();
    let follower = stores.follow(ID, Duration::from_millis(20)).unwrap();
    assert_eq!(count(&*follower), 1);
    let sees = |wanted| {
        let begun = SystemClock.instant();
        while count(&*follower) != wanted {
            assert!(begun.elapsed() < PATIENCE, "{wanted} is not seen");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    step(&*writer).unwrap();
    sees(2);
    let next = stores.open(ID).unwrap();
    step(&*next).unwrap();
    sees(3);
    assert!(follower.commit(&batch([(&b"x"[..], None)])).is_err(), "it only reads");
}

#[test]
fn a_late_owner_cannot_displace_a_newer_one() {
    let stores = in_memory();
    stores.create(ID).unwrap().close().unwrap();
    let first = stores.open_for(ID, Epoch(5)).unwrap();
    step(&*first).unwrap();
    let second = stores.open_for(ID, Epoch(6)).unwrap();
    assert!(matches!(first.commit(&batch([(&b"stale"[..], None)])), Err(StoreError::Conflict)));
    let late = stores.open_for(ID, Epoch(5)).map(drop);
    assert!(matches!(late, Err(StoreError::Conflict)), "{late:?}");
    step(&*second).unwrap();
    // The same owner may come again, after its daemon failed.
    let again = stores.open_for(ID, Epoch(6)).unwrap();
    assert_eq!(count(&*again), 2);
}

#[test]
fn of_owners_who_race_the_newest_has_the_store_in_the_end() {
    let stores = in_memory();
    stores.create(ID).unwrap().close().unwrap();
    for round in 0..10 {
        let opened: Vec<_> = std::thread::scope(|scope| {
            let open = |term| {
                let stores = &stores;
                scope.spawn(move || (term, stores.open_for(ID, Epoch(term))))
            };
            let racing: Vec<_> = (1..=4).map(|owner| open(10 * round + owner)).collect();
            racing.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let newest = 10 * round + 4;
        let touch = |store: Arc<dyn Store>| store.commit(&batch([(&b"x"[..], None)]));
        for (term, opened) in opened {
            match opened.and_then(touch) {
                Ok(()) => assert_eq!(term, newest),
                // An older one that was on its way may have displaced the newest: that one opens the store again.
                Err(StoreError::Conflict) if term == newest => {
                    touch(stores.open_for(ID, Epoch(newest)).unwrap()).unwrap();
                }
                Err(StoreError::Conflict) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_reader_sees_the_store_and_leaves_its_writer_alone() {
    let stores = in_memory();
    let store = stores.create(ID).unwrap();
    for _ in 0..3 {
        step(&*store).unwrap();
    }
    let reader = stores.look(ID).unwrap();
    assert_eq!(count(&*reader), 3);
    assert_eq!(reader.scan(b"a", b"z", 9).unwrap().len(), 2);
    assert!(matches!(reader.commit(&Batch::default()), Err(StoreError::Io(_))));
    step(&*store).unwrap();
}

#[test]
fn a_copy_holds_what_the_store_held() {
    let folder = tempfile::tempdir().unwrap();
    let store = in_memory().create(ID).unwrap();
    for i in 0..100_u8 {
        put(&*store, &[i], &[i; 100]);
    }
    let (path, mut told) = (folder.path().join("copy"), (0, 0));
    assert_eq!(store.copy_to(&path, &mut |done, all| told = (done, all)).unwrap(), 100);
    assert_eq!(told, (100, 100));
    let copy = RedbStore::open(&path).unwrap();
    let all = |store: &dyn Store| store.scan(b"", &[0xff; 2], usize::MAX).unwrap();
    assert_eq!(all(&copy), all(&*store));
    assert!(store.copy_to(&path, &mut |_, _| {}).is_err(), "there is a file already");
}

#[test]
fn a_reader_copies_what_was_committed_while_the_writer_works_on() {
    let folder = tempfile::tempdir().unwrap();
    let stores = in_memory();
    let store = stores.create(ID).unwrap();
    for i in 0..100_u8 {
        put(&*store, &[i], &[i; 100]);
    }
    let path = folder.path().join("copy");
    let reader = stores.look(ID).unwrap();
    let mut is_first = true;
    let copied = reader.copy_to(&path, &mut |_, _| {
        if std::mem::take(&mut is_first) {
            put(&*store, &[200], b"later");
        }
    });
    assert_eq!(copied.unwrap(), 100);
    let copy = RedbStore::open(&path).unwrap();
    assert_eq!(copy.get(&[99]).unwrap().as_deref(), Some(&[99; 100][..]));
    assert_eq!(copy.get(&[200]).unwrap(), None);
    put(&*store, &[201], b"still the writer");
}

#[test]
fn two_prefixes_in_one_place_are_two_sets() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = in_directory(folder.path());
    stores(&config).create(ID).unwrap().close().unwrap();
    config.prefix = "other".to_owned();
    assert_eq!(stores(&config).list().unwrap(), []);
    assert!(matches!(stores(&config).open(ID).map(drop), Err(StoreError::Missing(_))));
}

/// Steps until `goal`, however often outcomes are open or etcd does not answer.
fn steps_to(store: &dyn Store, goal: u64) {
    let mut reached = 0;
    while reached < goal {
        match step(store) {
            Ok(()) => reached += 1,
            Err(StoreError::Unknown(_) | StoreError::Io(_)) => loop {
                // Only a read that succeeds can tell.
                match store.get(b"count") {
                    Ok(Some(value)) => {
                        let now = u64::from_be_bytes(value.try_into().unwrap());
                        assert!(now == reached || now == reached + 1, "{now} after {reached}");
                        reached = now;
                        break;
                    }
                    Ok(None) => {
                        assert_eq!(reached, 0);
                        break;
                    }
                    Err(StoreError::Io(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            },
            Err(error) => panic!("step {reached}: {error}"),
        }
        if let (Ok(copy), Ok(count)) = (store.get(b"copy"), store.get(b"count")) {
            assert_eq!(copy, count);
        }
    }
}

#[test]
fn a_member_of_etcd_may_die_and_come_back_during_commits() {
    let mut server = EtcdServer::three();
    let mut config = in_etcd(&server, "faults");
    // Made with the patience of every day: a busy disk may take long.
    stores(&config).create(ID).unwrap().close().unwrap();
    // Short enough that some outcomes are open.
    config.timeout_milliseconds = 1000;
    let stores = stores(&config);
    let store = stores.open(ID).unwrap();
    std::thread::scope(|scope| {
        let stepping = scope.spawn(|| steps_to(&*store, 600));
        for _ in 0..3 {
            let victim = server.leader();
            server.kill(victim);
            std::thread::sleep(Duration::from_millis(500));
            server.restart(victim);
        }
        stepping.join().unwrap();
    });
    drop(store);
    // The member that was killed last may still be on its way back: with the patience of every day.
    let patient = self::stores(&in_etcd(&server, "faults"));
    assert_eq!(count(&*patient.open(ID).unwrap()), 600);
}

#[test]
fn without_a_majority_commits_end_in_time_and_go_on_when_it_is_back() {
    let mut server = EtcdServer::three();
    let mut config = in_etcd(&server, "majority");
    let store = stores(&config).create(ID).unwrap();
    step(&*store).unwrap();
    store.close().unwrap();
    config.timeout_milliseconds = 2000;
    let store = stores(&config).open(ID).unwrap();
    server.kill(0);
    server.kill(1);
    let open = store.commit(&batch([(&b"count"[..], Some(&2_u64.to_be_bytes()[..]))]));
    assert!(matches!(open, Err(StoreError::Unknown(_))), "{open:?}");
    let unsure = store.get(b"count");
    assert!(matches!(unsure, Err(StoreError::Io(_))), "{unsure:?}");
    server.restart(0);
    let settled = loop {
        match store.get(b"count") {
            Ok(value) => break value,
            Err(StoreError::Io(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(settled.unwrap(), 2_u64.to_be_bytes());
    steps_to_after(&*store, 2);
}

fn steps_to_after(store: &dyn Store, now: u64) {
    step(store).unwrap();
    assert_eq!(count(store), now + 1);
}

/// Waits until those who look after etcd have found it so.
fn wait_for_etcd(stores: &SlateStores, expected: impl Fn(&EtcdState) -> bool) {
    let start = SystemClock.instant();
    loop {
        let state = stores.etcd().unwrap();
        if expected(&state) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{state:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_full_etcd_refuses_growth_takes_deletions_and_goes_on_when_there_is_space() {
    let quota_bytes = 128 << 20;
    let plan = Plan { quota_bytes: Some(quota_bytes), ..Plan::on_loopback(1) };
    let server = EtcdServer::start(plan);
    // This version does not say its quota: who reads its page of metrics does.
    let quota_of = move |_: &str| Some(quota_bytes);
    let place = EtcdPlace {
        endpoints: server.endpoints(),
        quota_bytes: 0,
        quota_of: Some(QuotaOf(Arc::new(quota_of))),
    };
    let mut config = SlateConfig::new(Place::Etcd(place), "forebay/full");
    config.upkeep_seconds = 1;
    let stores = stores(&config);
    let store = stores.create(ID).unwrap();
    step(&*store).unwrap();
    // Somebody else fills etcd.
    let client = server.client();
    for i in 0..100_u32 {
        // A busy etcd keeps pages for longer that it does not need any more: it must not be filled up.
        if stores.etcd().unwrap().shortage.is_some() {
            break;
        }
        client.put(format!("ballast/{i}"), vec![7; 1 << 20], None).unwrap();
    }
    wait_for_etcd(&stores, |state| state.shortage.is_some());
    let grown = store.commit(&batch([(&b"new"[..], Some(&b"1"[..]))]));
    let Err(StoreError::Full(text)) = &grown else { panic!("{grown:?}") };
    assert!(text.contains("quota"), "{text}");
    // The copy goes, the count stays as large as it is.
    let shrink = batch([(&b"copy"[..], None), (b"count", Some(&7_u64.to_be_bytes()[..]))]);
    store.commit(&shrink).unwrap();
    assert_eq!((count(&*store), store.get(b"new").unwrap()), (7, None));
    client.delete(Keys::prefix("ballast/")).unwrap();
    wait_for_etcd(&stores, |state| state.shortage.is_none());
    put(&*store, b"new", b"1");
    // The space goes back to the file system in one of the next rounds.
    wait_for_etcd(&stores, |state| state.defragmented > 0);
}

#[test]
fn an_etcd_that_refuses_everything_is_brought_back() {
    let quota_bytes = 32 << 20;
    let plan = Plan { quota_bytes: Some(quota_bytes), ..Plan::on_loopback(1) };
    let server = EtcdServer::start(plan);
    let client = server.client();
    // A history that nobody needs: one key, set again and again.
    while client.put("ballast", vec![7; 1 << 20], None).is_ok() {}
    assert_eq!(client.alarms().unwrap().len(), 1);
    let place = EtcdPlace { endpoints: server.endpoints(), quota_bytes, quota_of: None };
    let mut config = SlateConfig::new(Place::Etcd(place), "forebay/refusing");
    config.upkeep_seconds = 1;
    let stores = stores(&config);
    wait_for_etcd(&stores, |state| state.rounds > 0 && state.shortage.is_none());
    step(&*stores.create(ID).unwrap()).unwrap();
    assert_eq!(client.alarms().unwrap(), []);
}
