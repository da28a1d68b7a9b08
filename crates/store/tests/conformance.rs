//! One suite that every store passes, and what only a store in a file promises.
//!
//! A rule is a function over an empty store; the macro at the end runs every rule on every engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_store::faulty::{Fault, FaultyStore};
use forebay_store::logged::LoggedStore;
use forebay_store::memory::MemoryStore;
use forebay_store::redb::RedbStore;
use forebay_store::{Batch, Bytes, Store, StoreError};

#[path = "conformance/damage.rs"]
mod damage;
#[cfg(feature = "cluster")]
#[path = "conformance/entering.rs"]
mod entering;
#[path = "conformance/file.rs"]
mod file;
#[cfg(feature = "cluster")]
#[path = "conformance/s3.rs"]
mod s3;
#[path = "conformance/sets.rs"]
mod sets;
#[cfg(feature = "cluster")]
#[path = "conformance/slate.rs"]
mod slate;

/// A key with the value that is set or required, `None` for "absent".
type Pair<'a> = (&'a [u8], Option<&'a [u8]>);

fn batch<const N: usize>(changes: [Pair; N]) -> Batch {
    let changes = changes
        .into_iter()
        .map(|(key, change)| (key.to_vec(), change.map(<[u8]>::to_vec)))
        .collect();
    Batch { requires: Vec::new(), changes }
}

fn put(store: &dyn Store, key: &[u8], value: &[u8]) {
    store.commit(&batch([(key, Some(value))])).unwrap();
}

fn keys(pairs: Vec<(Bytes, Bytes)>) -> Vec<Bytes> {
    pairs.into_iter().map(|(key, _)| key).collect()
}

mod rules {
    use super::*;

    pub fn a_value_reads_back_until_replaced_or_deleted(store: &dyn Store) {
        assert_eq!(store.get(b"key").unwrap(), None);
        put(store, b"key", b"one");
        assert_eq!(store.get(b"key").unwrap(), Some(b"one".to_vec()));
        put(store, b"key", b"two");
        assert_eq!(store.get(b"key").unwrap(), Some(b"two".to_vec()));
        store.commit(&batch([(&b"key"[..], None)])).unwrap();
        assert_eq!(store.get(b"key").unwrap(), None);
    }

    pub fn many_keys_read_as_each_alone(store: &dyn Store) {
        for number in 0..100_u8 {
            put(store, &[number], &[number; 3]);
        }
        let keys: Vec<Bytes> = [7, 250, 0, 7, 99].into_iter().map(|number| vec![number]).collect();
        let alone: Vec<_> = keys.iter().map(|key| store.get(key).unwrap()).collect();
        assert_eq!(store.get_all(&keys).unwrap(), alone);
        assert_eq!((alone[0].as_deref(), &alone[1]), (Some(&[7, 7, 7][..]), &None));
        assert!(store.get_all(&[]).unwrap().is_empty());
    }

    pub fn deleting_an_absent_key_is_allowed(store: &dyn Store) {
        store.commit(&batch([(&b"absent"[..], None), (b"present", Some(b"1"))])).unwrap();
        assert_eq!(store.get(b"absent").unwrap(), None);
        assert_eq!(store.get(b"present").unwrap(), Some(b"1".to_vec()));
    }

    pub fn an_empty_batch_is_allowed(store: &dyn Store) {
        store.commit(&Batch::default()).unwrap();
        assert_eq!(store.scan(b"", &[0xff; 9], usize::MAX).unwrap(), vec![]);
    }

    pub fn keys_and_values_are_any_bytes(store: &dyn Store) {
        let samples: [&[u8]; 7] =
            [b"", b"\0", b"\0\0", b"\xff", b"\xff\xff", &[0x80; 300], "näme".as_bytes()];
        for key in samples {
            for value in samples {
                put(store, key, value);
                assert_eq!(store.get(key).unwrap().as_deref(), Some(value), "{key:?}");
            }
        }
        let mut sorted: Vec<Bytes> = samples.iter().map(|key| key.to_vec()).collect();
        sorted.sort();
        assert_eq!(keys(store.scan(b"", &[0xff; 9], usize::MAX).unwrap()), sorted);
    }

    pub fn a_large_value_reads_back(store: &dyn Store) {
        let value: Bytes = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        put(store, b"large", &value);
        assert_eq!(store.get(b"large").unwrap(), Some(value));
    }

    pub fn scan_gives_a_half_open_range_in_key_order(store: &dyn Store) {
        for key in [&b"b"[..], b"a", b"d", b"c", b"ba", b"b\0"] {
            put(store, key, key);
        }
        let scan = |from: &[u8], to: &[u8]| keys(store.scan(from, to, usize::MAX).unwrap());
        assert_eq!(scan(b"a", b"c"), [&b"a"[..], b"b", b"b\0", b"ba"]);
        assert_eq!(scan(b"b", b"b\0"), [b"b"]);
        assert_eq!(scan(b"aa", b"b"), Vec::<Bytes>::new());
        assert_eq!(scan(b"c", b"zz"), [b"c", b"d"]);
        let pairs = store.scan(b"ba", b"c", 1).unwrap();
        assert_eq!(pairs, [(b"ba".to_vec(), b"ba".to_vec())]);
    }

    pub fn scan_stops_at_its_limit(store: &dyn Store) {
        for key in [b"a", b"b", b"c"] {
            put(store, key, b"");
        }
        let scan = |limit| keys(store.scan(b"a", b"z", limit).unwrap()).concat();
        for (limit, found) in [(0, &b""[..]), (1, b"a"), (2, b"ab"), (3, b"abc"), (4, b"abc")] {
            assert_eq!(scan(limit), found, "limit {limit}");
        }
    }

    pub fn an_empty_or_inverted_range_gives_nothing(store: &dyn Store) {
        put(store, b"b", b"");
        for (from, to) in [(&b"b"[..], &b"b"[..]), (b"c", b"a"), (b"", b""), (b"\xff", b"")] {
            assert_eq!(store.scan(from, to, usize::MAX).unwrap(), vec![], "{from:?} to {to:?}");
        }
    }

    pub fn a_requirement_that_holds_lets_the_batch_through(store: &dyn Store) {
        let mut first = batch([(&b"epoch"[..], Some(&b"1"[..]))]);
        first.requires = vec![(b"epoch".to_vec(), None)];
        store.commit(&first).unwrap();

        let mut second = batch([(&b"epoch"[..], Some(&b"2"[..])), (b"other", Some(b"x"))]);
        second.requires = vec![(b"epoch".to_vec(), Some(b"1".to_vec()))];
        store.commit(&second).unwrap();
        assert_eq!(store.get(b"epoch").unwrap(), Some(b"2".to_vec()));
        assert_eq!(store.get(b"other").unwrap(), Some(b"x".to_vec()));
    }

    pub fn one_failing_requirement_rejects_the_whole_batch(store: &dyn Store) {
        put(store, b"epoch", b"2");
        put(store, b"doomed", b"still here");
        let failing: [&[Pair]; 5] = [
            &[(b"epoch", None)],
            &[(b"epoch", Some(b"1"))],
            &[(b"epoch", Some(b""))],
            &[(b"absent", Some(b""))],
            &[(b"epoch", Some(b"2")), (b"absent", None), (b"doomed", None)],
        ];
        for requires in failing {
            let mut change = batch([(&b"new"[..], Some(&b"1"[..])), (b"doomed", None)]);
            change.requires = requires
                .iter()
                .map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)))
                .collect();
            let outcome = store.commit(&change);
            assert!(matches!(outcome, Err(StoreError::Conflict)), "{requires:?}: {outcome:?}");
            assert_eq!(store.get(b"new").unwrap(), None);
            assert_eq!(store.get(b"doomed").unwrap(), Some(b"still here".to_vec()));
        }
        put(store, b"after", b"usable");
        assert_eq!(store.get(b"after").unwrap(), Some(b"usable".to_vec()));
    }

    pub fn a_requirement_is_checked_before_the_batch_changes_it(store: &dyn Store) {
        let mut change = batch([(&b"key"[..], Some(&b"new"[..]))]);
        change.requires = vec![(b"key".to_vec(), Some(b"new".to_vec()))];
        assert!(matches!(store.commit(&change), Err(StoreError::Conflict)));
    }

    pub fn a_batch_of_50000_changes_is_applied_whole(store: &dyn Store) {
        let key = |i: u32| i.to_be_bytes().to_vec();
        let inserts = (0..50_000).map(|i| (key(i), Some(i.to_le_bytes().to_vec()))).collect();
        store.commit(&Batch { requires: vec![], changes: inserts }).unwrap();
        let pairs = store.scan(&key(0), &key(u32::MAX), usize::MAX).unwrap();
        assert_eq!(pairs.len(), 50_000);
        for (i, pair) in (0..).zip(&pairs) {
            assert_eq!(*pair, (key(i), i.to_le_bytes().to_vec()));
        }
        let deletes = (0..50_000).filter(|i| i % 2 == 0).map(|i| (key(i), None)).collect();
        store.commit(&Batch { requires: vec![], changes: deletes }).unwrap();
        let left = store.scan(&key(0), &key(u32::MAX), usize::MAX).unwrap();
        assert_eq!(left.len(), 25_000);
        assert_eq!(store.get(&key(7)).unwrap(), Some(7_u32.to_le_bytes().to_vec()));
        assert_eq!(store.get(&key(8)).unwrap(), None);
    }

    pub fn readers_see_whole_batches_only(store: &dyn Store) {
        let names: Vec<Bytes> = (0..20_u8).map(|i| vec![b'k', i]).collect();
        let write = |round: u64| {
            let value = round.to_be_bytes().to_vec();
            let changes = names.iter().map(|key| (key.clone(), Some(value.clone()))).collect();
            store.commit(&Batch { requires: vec![], changes }).unwrap();
        };
        write(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut newest = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let pairs = store.scan(b"k", b"l", usize::MAX).unwrap();
                        assert_eq!(pairs.len(), names.len());
                        assert!(pairs.iter().all(|(_, value)| *value == pairs[0].1));
                        assert!(pairs[0].1 >= newest, "an older batch came back");
                        newest.clone_from(&pairs[0].1);
                    }
                });
            }
            for round in 1..=100 {
                write(round);
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    pub fn of_racing_owners_one_wins_each_round(store: &dyn Store) {
        put(store, b"count", &0_u64.to_be_bytes());
        let add_one = || loop {
            let before = store.get(b"count").unwrap().unwrap();
            let count = u64::from_be_bytes(before.clone().try_into().unwrap());
            let mut change = batch([(&b"count"[..], Some(&(count + 1).to_be_bytes()[..]))]);
            change.requires = vec![(b"count".to_vec(), Some(before))];
            match store.commit(&change) {
                Ok(()) => return,
                Err(StoreError::Conflict) => {}
                Err(error) => panic!("{error}"),
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| add_one()));
            }
        });
        assert_eq!(store.get(b"count").unwrap(), Some(40_u64.to_be_bytes().to_vec()));
    }

    pub fn a_batch_of_unknown_outcome_is_there_as_a_whole_or_not_at_all(store: &dyn Store) {
        put(store, b"marker", b"0");
        for (number, fault) in
            [(1_u8, Fault::UnknownKept), (2, Fault::UnknownLost), (3, Fault::UnknownKept)]
        {
            let faulty = FaultyStore::new(store);
            faulty.fail_commits(1, fault);
            let before = store.get(b"marker").unwrap();
            let mut next = batch([(b"marker", Some(&[number])), (b"other", Some(&[number]))]);
            next.requires.push((b"marker".to_vec(), before.clone()));
            assert!(matches!(faulty.commit(&next), Err(StoreError::Unknown(_))));
            // What the batch set tells whether it is there, and it tells for good.
            let is_there = faulty.get(b"marker").unwrap() == Some(vec![number]);
            assert_eq!(is_there, fault == Fault::UnknownKept);
            assert_eq!(is_there, faulty.get(b"other").unwrap() == Some(vec![number]));
            let again = faulty.commit(&next);
            assert_eq!(matches!(again, Err(StoreError::Conflict)), is_there, "not twice");
        }
    }

    pub fn the_size_never_exceeds_reason(store: &dyn Store) {
        put(store, b"key", &[7; 100_000]);
        assert!(store.size_bytes().unwrap() < 100 << 20);
    }
}

macro_rules! with_rules {
    ($with:ident $($argument:tt)*) => {
        $with!(@rules $($argument)*;
                a_value_reads_back_until_replaced_or_deleted
                many_keys_read_as_each_alone
                deleting_an_absent_key_is_allowed
                an_empty_batch_is_allowed
                keys_and_values_are_any_bytes
                a_large_value_reads_back
                scan_gives_a_half_open_range_in_key_order
                scan_stops_at_its_limit
                an_empty_or_inverted_range_gives_nothing
                a_requirement_that_holds_lets_the_batch_through
                one_failing_requirement_rejects_the_whole_batch
                a_requirement_is_checked_before_the_batch_changes_it
                a_batch_of_50000_changes_is_applied_whole
                readers_see_whole_batches_only
                of_racing_owners_one_wins_each_round
                a_batch_of_unknown_outcome_is_there_as_a_whole_or_not_at_all
                the_size_never_exceeds_reason
        );
    };
}

macro_rules! engines {
    ($($engine:ident => $make:expr;)*) => {$(
        mod $engine {
            use super::*;

            with_rules!(engines $make);
        }
    )*};
    (@rules $make:expr; $($rule:ident)*) => {$(
        #[test]
        fn $rule() {
            let folder = tempfile::tempdir().unwrap();
            let make: fn(&std::path::Path) -> Box<dyn Store> = $make;
            rules::$rule(&*make(folder.path()));
        }
    )*};
}

/// Every rule on stores that have a server in common.
#[cfg(feature = "cluster")]
macro_rules! all_rules {
    (@rules $make:expr; $($rule:ident)*) => {$({
        println!("{}", stringify!($rule));
        rules::$rule(&*$make(stringify!($rule)));
    })*};
}
#[cfg(feature = "cluster")]
pub(crate) use {all_rules, engines, with_rules};

engines! {
    memory => |_| Box::new(MemoryStore::new());
    shared_handle => |_| Box::new(Arc::new(MemoryStore::new()));
    logged_memory => |folder| {
        Box::new(LoggedStore::open(MemoryStore::new(), folder.join("log")).unwrap())
    };
    logged_redb => |folder| Box::new(file::logged(&folder.join("store")));
    redb => |folder| Box::new(RedbStore::create(folder.join("store")).unwrap());
    faulty_without_faults => |_| Box::new(FaultyStore::new(MemoryStore::new()));
}
