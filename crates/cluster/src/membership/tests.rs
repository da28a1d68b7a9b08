use std::time::Duration;

use forebay_base::{ClientId, NodeId};

use super::{Attempt, Effect, Event, LeaseId, Member, Membership, Revision};
use crate::settings::Settings;
use crate::time::Moment;

const TTL: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn me() -> ClientId {
    ClientId { node: NodeId(1), incarnation: 7 }
}

fn member(lease: i64) -> Member {
    Member { incarnation: 7, lease: LeaseId(lease), weight: 1 }
}

/// A node that got `lease` for what it sent at 0 and registered at 300 ms.
fn registered(lease: i64) -> Membership {
    let mut node = Membership::new(Settings::default(), me(), 1, at(0));
    let grant = node.step(Event::Tick, at(0));
    assert_eq!(grant, [Effect::Grant { attempt: Attempt(1), ttl: TTL }]);
    let granted = Event::Granted { attempt: Attempt(1), lease: LeaseId(lease), ttl: TTL };
    let register = node.step(granted, at(200));
    let expected = Effect::Register { attempt: Attempt(2), member: member(lease), expect: None };
    assert_eq!(register, [expected]);
    let event = Event::Registered { attempt: Attempt(2), revision: Revision(5) };
    // 10 s from when the lease was asked for, less 10 ms of drift and 500 ms of margin.
    assert_eq!(node.step(event, at(300)), [Effect::Answer { until: at(9490) }]);
    node
}

/// Ticks at each moment that the node asks for, until `end`; returns what came out.
fn run(node: &mut Membership, end: Moment) -> Vec<Effect> {
    let mut effects = Vec::new();
    while node.next_wake() <= end {
        let now = node.next_wake();
        effects.extend(node.step(Event::Tick, now));
    }
    effects
}

#[test]
fn a_node_waits_before_its_lease_can_be_over_for_others() {
    let mut node = registered(1);
    assert!(node.answers_until(at(9489)).is_some() && node.answers_until(at(9490)).is_none());
    let effects = run(&mut node, at(9490));
    assert_eq!(effects.last(), Some(&Effect::Wait));
    let renewals = effects.iter().filter(|it| matches!(it, Effect::Renew { .. })).count();
    assert_eq!(renewals, 3, "{effects:?}");
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    let mut node = registered(1);
    let renew = node.step(Event::Tick, at(2800));
    assert_eq!(renew, [Effect::Renew { attempt: Attempt(3), lease: LeaseId(1) }]);
    let renewed = node.step(Event::Renewed { attempt: Attempt(3), ttl: TTL }, at(4000));
    assert_eq!(renewed, [Effect::Answer { until: at(2800 + 9490) }]);
}

#[test]
fn a_node_whose_lease_never_ended_answers_again() {
    let mut node = registered(1);
    let effects = run(&mut node, at(9600));
    let Some(Effect::Renew { attempt, .. }) =
        effects.iter().rfind(|it| matches!(it, Effect::Renew { .. }))
    else {
        panic!("renews while it waits: {effects:?}");
    };
    let effects = node.step(Event::Renewed { attempt: *attempt, ttl: TTL }, at(9700));
    assert!(matches!(effects[..], [Effect::Answer { .. }]), "{effects:?}");
}

#[test]
fn a_late_answer_to_an_old_renewal_does_not_open_gates() {
    let mut node = registered(1);
    node.step(Event::Tick, at(2800));
    run(&mut node, at(13_000));
    // Sent at 2.8 s: nothing to rely on after 12.29 s.
    let effects = node.step(Event::Renewed { attempt: Attempt(3), ttl: TTL }, at(13_000));
    assert!(!effects.iter().any(|it| matches!(it, Effect::Answer { .. })), "{effects:?}");
}

#[test]
fn a_node_whose_lease_is_gone_waits_and_registers_anew() {
    let mut node = registered(1);
    let effects = node.step(Event::Gone { lease: LeaseId(1) }, at(5000));
    assert_eq!(effects, [Effect::Grant { attempt: Attempt(3), ttl: TTL }, Effect::Wait]);
    assert_eq!(node.step(Event::Gone { lease: LeaseId(1) }, at(5001)), []);
    let granted = Event::Granted { attempt: Attempt(3), lease: LeaseId(2), ttl: TTL };
    assert!(matches!(node.step(granted, at(5100))[..], [Effect::Register { .. }]));
}

#[test]
fn a_key_that_is_missing_or_another_lease_s_ends_the_lease() {
    for (seen, revision, ends) in
        [(Some(member(1)), 9, false), (Some(member(2)), 9, true), (None, 9, true), (None, 5, false)]
    {
        let mut node = registered(1);
        let event = Event::Seen { me: seen, revision: Revision(revision) };
        let waits = node.step(event, at(1000)).contains(&Effect::Wait);
        assert_eq!(waits, ends, "{seen:?} at {revision}");
    }
}

#[test]
fn a_key_of_the_same_life_is_replaced_and_a_later_life_wins() {
    let refused = |incarnation| {
        let mut node = Membership::new(Settings::default(), me(), 1, at(0));
        node.step(Event::Tick, at(0));
        let lease = LeaseId(2);
        node.step(Event::Granted { attempt: Attempt(1), lease, ttl: TTL }, at(10));
        let found = Some(Member { incarnation, ..member(1) });
        node.step(Event::Refused { attempt: Attempt(2), found }, at(20))
    };
    let again =
        Effect::Register { attempt: Attempt(3), member: member(2), expect: Some(LeaseId(1)) };
    assert_eq!(refused(7), std::slice::from_ref(&again));
    assert_eq!(refused(6), [again]);
    assert_eq!(refused(8), [Effect::Replaced]);
}

#[test]
fn requests_without_an_answer_are_made_again() {
    let mut node = Membership::new(Settings::default(), me(), 1, at(0));
    let effects = run(&mut node, at(7000));
    let grants = effects.iter().filter(|it| matches!(it, Effect::Grant { .. })).count();
    assert_eq!((grants, effects.len()), (4, 4), "{effects:?}");
    // An answer to a forgotten request gives no lease.
    let event = Event::Granted { attempt: Attempt(1), lease: LeaseId(1), ttl: TTL };
    assert_eq!(node.step(event, at(7001)), []);
}
