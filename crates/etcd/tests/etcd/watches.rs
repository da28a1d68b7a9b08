//! Watches.

use std::time::Duration;

use forebay_etcd::testing::EtcdServer;
use forebay_etcd::{Event, Keys, Watch};

const PATIENCE: Duration = Duration::from_secs(60);

fn value(watch: &Watch) -> String {
    match watch.next(PATIENCE) {
        Some(Event::Put(pair)) => String::from_utf8(pair.value).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_watch_tells_in_order_what_happens_to_its_keys() {
    let server = EtcdServer::single();
    let client = server.client();
    let start = client.put("w/a", "1", None).unwrap();
    client.put("other", "", None).unwrap();
    client.put("w/b", "2", None).unwrap();
    let watch = client.watch(Keys::prefix("w/"), start);
    assert_eq!((value(&watch), value(&watch)), ("1".into(), "2".into()));
    client.put("w/a", "3", None).unwrap();
    assert_eq!(value(&watch), "3");
    client.delete(Keys::one("w/a")).unwrap();
    let revision = client.revision().unwrap();
    assert_eq!(watch.next(PATIENCE), Some(Event::Deleted { key: b"w/a".to_vec(), revision }));
    assert_eq!(watch.next(Duration::from_millis(50)), None);
}

#[test]
fn a_watch_survives_the_member_that_served_it_and_misses_nothing() {
    let mut server = EtcdServer::three();
    let client = server.client();
    let start = client.put("w", "0", None).unwrap();
    let watch = client.watch(Keys::one("w"), start);
    assert_eq!(value(&watch), "0");
    let writer = server.client();
    for round in 0..3_usize {
        server.kill(round);
        for step in 1..=20 {
            let text = format!("{round}.{step}");
            // A put that may have been made is repeated: the same value twice is the same to a reader.
            while writer.put("w", text.clone(), None).is_err() {}
            while value(&watch) != text {}
        }
        server.restart(round);
    }
}

#[test]
fn a_watch_whose_history_was_compacted_says_so_and_goes_on() {
    let server = EtcdServer::single();
    let client = server.client();
    let start = client.put("w", "1", None).unwrap();
    let last = client.put("w", "2", None).unwrap();
    client.put("other", "", None).unwrap();
    client.compact(last + 1).unwrap();
    let watch = client.watch(Keys::one("w"), start);
    assert_eq!(watch.next(PATIENCE), Some(Event::Gap { revision: last }));
    client.put("w", "3", None).unwrap();
    assert_eq!(value(&watch), "3");
}
