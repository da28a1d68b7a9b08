//! Monitors that are made and removed by several commands at the same time, with a real etcd.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_etcd::Runtime;
use forebay_etcd::testing::EtcdServer;
use forebay_node::home::EtcdAccess;
use forebay_node::members::Book;
use forebay_node::members::record::MonitorRecord;

const MADE: usize = 60;
const NOW: i64 = 1_000;

fn record() -> MonitorRecord {
    MonitorRecord { name: "prom".to_owned(), issued: NOW, expires: NOW + 1000, removed: None }
}

fn book(server: &EtcdServer, runtime: &Runtime) -> Book {
    let (endpoints, started) = (server.endpoints(), false);
    let access = EtcdAccess { endpoints, authority: None, identity: None, started };
    Book::open(runtime, &access, "grid1").unwrap()
}

#[test]
fn no_certificate_is_missed_however_many_commands_make_and_remove_them() {
    let server = EtcdServer::single();
    let runtime = Runtime::start(2).unwrap();
    let book = book(&server, &runtime);
    let is_done = AtomicBool::new(false);
    let remove = || book.remove_monitor("prom", NOW).unwrap_or(0);
    let remove_until_done = || {
        while !is_done.load(Ordering::SeqCst) {
            remove();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(remove_until_done);
        }
        for number in 0..MADE {
            book.add_monitor(&format!("{number:02x}"), &record()).unwrap();
        }
        is_done.store(true, Ordering::SeqCst);
    });
    // Numbers of removed ones are not compared: where the answer to a transaction is lost, nobody knows whether it removed them.
    remove();
    let (sight, _) = book.read().unwrap();
    assert_eq!(sight.monitors.len(), MADE);
    assert!(sight.monitors.values().all(|one| one.removed == Some(NOW)));
    assert!(book.remove_monitor("prom", NOW).unwrap_err().to_string().contains("has no monitor"));
}

#[test]
fn a_monitor_with_more_certificates_than_a_transaction_takes_is_removed_whole() {
    let server = EtcdServer::single();
    let runtime = Runtime::start(2).unwrap();
    let book = book(&server, &runtime);
    for number in 0..230 {
        book.add_monitor(&format!("{number:02x}"), &record()).unwrap();
    }
    assert_eq!(book.remove_monitor("prom", NOW).unwrap(), 230);
}
