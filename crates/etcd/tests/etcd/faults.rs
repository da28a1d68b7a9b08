//! Members that die, freeze and come back.

use std::time::Duration;

use forebay_etcd::testing::EtcdServer;
use forebay_etcd::{Change, Client, Compare, Error, Keys, Op, Txn};

/// Counts up in one key, each step by a transaction that requires the value before; returns how often the outcome of a step
/// was not known at first.
fn count_up(client: &Client, steps: u64) -> u64 {
    let mut unknown = 0;
    for step in 1..=steps {
        let (before, after) = (step - 1, step.to_string());
        let when = if before == 0 {
            Compare::Absent(b"count".to_vec())
        } else {
            Compare::Value(b"count".to_vec(), before.to_string().into_bytes())
        };
        let mut sent = false;
        loop {
            let txn = Txn {
                when: vec![when.clone()],
                then: vec![Op::put("count", after.clone())],
                otherwise: vec![Op::Get(Keys::one("count"))],
            };
            match client.txn(txn) {
                Ok(outcome) if outcome.held => break,
                // The request whose answer was lost was carried out.
                Ok(outcome) => {
                    let [Change::Found(found)] = outcome.changes.as_slice() else { panic!() };
                    assert!(
                        sent && found.pairs[0].value == after.as_bytes(),
                        "step {step} was lost"
                    );
                    break;
                }
                Err(Error::Unknown { .. }) => {
                    unknown += 1;
                    sent = true;
                }
                Err(Error::Unreachable { .. }) => {}
                Err(error) => panic!("step {step}: {error}"),
            }
        }
    }
    unknown
}

#[test]
fn of_three_members_each_may_die_in_turn_and_no_step_is_lost_or_made_twice() {
    let mut server = EtcdServer::three();
    let client = server.client();
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&client, 1500));
        for _ in 0..3 {
            let victim = server.leader();
            server.kill(victim);
            std::thread::sleep(Duration::from_millis(300));
            server.restart(victim);
        }
        counting.join().unwrap();
    });
    assert_eq!(client.get("count").unwrap().unwrap().value, b"1500");
}

#[test]
fn a_frozen_member_is_passed_over() {
    let server = EtcdServer::three();
    let client = server.client();
    client.put("key", "value", None).unwrap();
    // The client asks the first member until it does not answer.
    server.freeze(0);
    assert_eq!(client.get("key").unwrap().unwrap().value, b"value");
    client.put("key", "again", None).unwrap();
    server.thaw(0);
    assert_eq!(client.get("key").unwrap().unwrap().value, b"again");
}

#[test]
fn without_a_majority_calls_end_in_time_and_say_why() {
    let mut server = EtcdServer::three();
    let client = server.client().with_timeout(Duration::from_secs(3));
    client.put("key", "value", None).unwrap();
    server.kill(0);
    server.kill(1);
    let read = client.get("key").unwrap_err();
    assert!(matches!(read, Error::Unreachable { .. }), "{read:?}");
    let written = client.put("key", "lost?", None).unwrap_err();
    assert!(matches!(written, Error::Unreachable { .. } | Error::Unknown { .. }), "{written:?}");
    server.kill(2);
    let dead = client.put("key", "never", None).unwrap_err().to_string();
    assert!(dead.contains(&server.endpoints()[0]) && dead.contains("refused"), "{dead}");
}
