//! What each call does, on one healthy member.

use std::time::Duration;

use forebay_etcd::testing::{EtcdServer, Plan};
use forebay_etcd::{Alarm, Change, Compare, Error, Keys, Op, RangeOptions, Renewal, Txn};

#[test]
fn pairs_read_back_with_their_history_until_they_are_deleted() {
    let server = EtcdServer::single();
    let client = server.client();
    assert_eq!(client.get("a").unwrap(), None);
    let first = client.put("a", "1", None).unwrap();
    let second = client.put("a", "2", None).unwrap();
    let pair = client.get("a").unwrap().unwrap();
    assert_eq!((pair.key.as_slice(), pair.value.as_slice()), (&b"a"[..], &b"2"[..]));
    assert_eq!((pair.create_revision, pair.mod_revision, pair.version), (first, second, 2));
    assert_eq!(client.revision().unwrap(), second);
    assert_eq!(client.delete(Keys::one("a")).unwrap(), 1);
    assert_eq!(client.delete(Keys::one("a")).unwrap(), 0);
    assert_eq!(client.get("a").unwrap(), None);

    let old = RangeOptions { revision: first, ..RangeOptions::default() };
    assert_eq!(client.range(Keys::one("a"), old).unwrap().pairs[0].value, b"1");
    client.compact(second).unwrap();
    client.compact(second).unwrap();
    let gone = client.range(Keys::one("a"), old);
    assert!(
        matches!(gone, Err(Error::Compacted { revision, .. }) if revision == first),
        "{gone:?}"
    );
    for endpoint in client.endpoints() {
        client.defragment(endpoint).unwrap();
        let status = client.status(endpoint).unwrap();
        assert!(status.file_bytes >= status.used_bytes && status.leader == status.id, "{status:?}");
    }
    assert_eq!(client.member_list().unwrap().len(), 1);
    assert_eq!(client.alarms().unwrap(), []);
}

#[test]
fn a_range_gives_what_it_was_asked_for() {
    let server = EtcdServer::single();
    let client = server.client();
    for key in ["p/1", "p/2", "p/3", "q"] {
        client.put(key, "value", None).unwrap();
    }
    let keys = |keys, options| -> (Vec<Vec<u8>>, u64) {
        let found = client.range(keys, options).unwrap();
        (found.pairs.into_iter().map(|pair| pair.key).collect(), found.count)
    };
    let all = RangeOptions::default();
    let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
    assert_eq!(keys(Keys::prefix("p/"), all), (names(&["p/1", "p/2", "p/3"]), 3));
    assert_eq!(
        keys(Keys::prefix("p/"), RangeOptions { limit: 2, ..all }),
        (names(&["p/1", "p/2"]), 3)
    );
    assert_eq!(keys(Keys::Between(b"p/2".to_vec(), b"q".to_vec()), all).0.len(), 2);
    assert_eq!(keys(Keys::prefix(""), RangeOptions { count_only: true, ..all }), (vec![], 4));
    let bare = RangeOptions { keys_only: true, ..all };
    assert_eq!(client.range(Keys::one("q"), bare).unwrap().pairs[0].value, b"");
    assert_eq!(client.delete(Keys::prefix("p/")).unwrap(), 3);
}

#[test]
fn a_transaction_is_carried_out_whole_if_its_conditions_hold() {
    let server = EtcdServer::single();
    let client = server.client();
    let claim = |when: Vec<Compare>, value: &str| Txn {
        when,
        then: vec![Op::put("owner", value), Op::put("log", value)],
        otherwise: vec![Op::Get(Keys::one("owner"))],
    };
    let first = client.txn(claim(vec![Compare::Absent(b"owner".to_vec())], "a")).unwrap();
    assert!(first.held);
    assert_eq!(first.changes, [Change::Put, Change::Put]);
    let second = client.txn(claim(vec![Compare::Absent(b"owner".to_vec())], "b")).unwrap();
    assert!(!second.held);
    let [Change::Found(found)] = second.changes.as_slice() else { panic!("{second:?}") };
    assert_eq!(found.pairs[0].value, b"a");
    assert_eq!(found.pairs[0].mod_revision, first.revision);
    let held = |compare| client.txn(claim(vec![compare], "c")).unwrap().held;
    assert!(!held(Compare::Value(b"owner".to_vec(), b"b".to_vec())));
    assert!(!held(Compare::ModRevision(b"owner".to_vec(), first.revision - 1)));
    assert!(held(Compare::ModRevision(b"owner".to_vec(), first.revision)));
    assert!(held(Compare::Value(b"owner".to_vec(), b"c".to_vec())));
    assert!(held(Compare::CreateRevision(b"owner".to_vec(), first.revision)));
    assert!(held(Compare::Present(b"owner".to_vec())));
}

#[test]
fn a_transaction_notices_changed_and_new_keys_of_a_range() {
    let server = EtcdServer::single();
    let client = server.client();
    let held = |revision| {
        let when = vec![Compare::Unchanged(Keys::prefix("m/"), revision)];
        let then = vec![Op::put("log", "x")];
        client.txn(Txn { when, then, otherwise: Vec::new() }).unwrap().held
    };
    assert!(held(0), "there is none");
    client.put("m/a", "1", None).unwrap();
    let seen = client.range(Keys::prefix("m/"), RangeOptions::default()).unwrap().revision;
    assert!(!held(seen - 1) && held(seen));
    client.put("n", "1", None).unwrap();
    assert!(held(seen), "another key");
    client.put("m/b", "1", None).unwrap();
    assert!(!held(seen), "a new key");
    let seen = client.revision().unwrap();
    assert!(held(seen));
    client.put("m/a", "2", None).unwrap();
    assert!(!held(seen), "a changed key");
}

#[test]
fn a_key_ends_with_its_lease() {
    let server = EtcdServer::single();
    let client = server.client();
    let lease = client.lease_grant(60).unwrap();
    client.put("here", "", Some(lease)).unwrap();
    assert_eq!(client.get("here").unwrap().unwrap().lease, Some(lease));
    assert_eq!(client.lease_renew(lease).unwrap(), Renewal::Renewed);
    client.lease_revoke(lease).unwrap();
    client.lease_revoke(lease).unwrap();
    assert_eq!(client.get("here").unwrap(), None);
    assert_eq!(client.lease_renew(lease).unwrap(), Renewal::Over);
    let orphan = client.put("there", "", Some(lease));
    assert!(matches!(orphan, Err(Error::Refused { .. })), "{orphan:?}");

    let short = client.lease_grant(5).unwrap();
    client.put("short", "", Some(short)).unwrap();
    while client.get("short").unwrap().is_some() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_is_too_large_is_refused_and_a_full_database_says_so_and_still_deletes() {
    let server = EtcdServer::start(Plan { quota_bytes: Some(8 << 20), ..Plan::on_loopback(1) });
    let client = server.client();
    let large = client.put("large", vec![7; 2 << 20], None);
    assert!(matches!(large, Err(Error::Refused { .. })), "{large:?}");

    let full = (0..100).find_map(|i| client.put(format!("k{i}"), vec![7; 1 << 20], None).err());
    assert!(matches!(full, Some(Error::NoSpace { .. })), "{full:?}");
    assert!(matches!(client.alarms().unwrap().as_slice(), [Alarm::NoSpace { .. }]));
    client.delete(Keys::prefix("k")).unwrap();
    client.compact(client.revision().unwrap()).unwrap();
    client.defragment(&client.endpoints()[0]).unwrap();
    client.disarm_no_space().unwrap();
    client.put("k", "works again", None).unwrap();
    assert_eq!(client.alarms().unwrap(), []);
}

#[test]
fn nonsense_is_refused_before_anybody_is_asked() {
    let server = EtcdServer::single();
    let runtime = server.client().runtime().clone();
    let refuse = |endpoints: &[&str]| {
        let options = forebay_etcd::Options::new(endpoints.iter().copied());
        let refused = forebay_etcd::Client::connect(&runtime, options).map(drop);
        assert!(matches!(refused, Err(Error::Refused { .. })), "{endpoints:?}: {refused:?}");
    };
    refuse(&[]);
    refuse(&["127.0.0.1:2379"]);
    refuse(&["ftp://127.0.0.1:2379"]);
    refuse(&["https://127.0.0.1:2379"]);
    refuse(&["http://not a host"]);
}
