use std::time::Duration;

use forebay_base::{ClientId, Epoch, Ino, NodeId};

use super::owner::{Effect, Event};
use super::{Cache, ChangeNumber, GrantNumber, Grants, Item, RecallNumber, client};
use crate::settings::Settings;
use crate::time::Moment;

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn id(node: u32) -> ClientId {
    ClientId { node: NodeId(node), incarnation: 1 }
}

fn file(number: u64) -> Item {
    Item::Attributes(Ino(number))
}

fn name(text: &str) -> Item {
    Item::Entry(Ino::ROOT, text.as_bytes().into())
}

fn grants() -> Grants {
    Grants::new(Settings::default(), Epoch(1))
}

fn grant(grants: &mut Grants, client: u32, item: &Item, millis: u64) -> Option<GrantNumber> {
    grants.grant(id(client), item, at(millis), &mut Vec::new())
}

fn change(number: u64, by: u32, items: &[Item]) -> Event {
    Event::Change { change: ChangeNumber(number), by: id(by), items: items.to_vec() }
}

/// The recalls among effects, with the node that is called.
fn recalls(effects: &[Effect]) -> Vec<(u32, RecallNumber, Vec<Item>)> {
    let recalls = effects.iter().filter_map(|effect| match effect {
        Effect::Recall { client, recall, items } => Some((client.node.0, *recall, items.clone())),
        Effect::Apply(_) | Effect::Evict(_) => None,
    });
    recalls.collect()
}

#[test]
fn a_change_waits_for_all_others_that_cache_what_it_touches() {
    let mut grants = grants();
    for (client, item) in [(1, name("a")), (2, name("a")), (3, name("a")), (3, name("b"))] {
        assert!(grant(&mut grants, client, &item, 0).is_some());
    }
    let effects = grants.step(change(1, 1, &[name("a")]), at(5));
    let recalls = recalls(&effects);
    assert_eq!(recalls.iter().map(|(node, ..)| *node).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(effects.len(), 2, "{effects:?}");
    assert_eq!(grants.step(Event::Acknowledged(id(2), recalls[0].1), at(6)), []);
    assert_eq!(grant(&mut grants, 2, &name("a"), 7), None, "a change is about to take effect");
    let effects = grants.step(Event::Acknowledged(id(3), recalls[1].1), at(8));
    assert_eq!(effects, [Effect::Apply(ChangeNumber(1))]);
    assert_eq!(grant(&mut grants, 2, &name("a"), 9), None, "it has not taken effect yet");
    grants.step(Event::Applied(ChangeNumber(1)), at(10));
    assert_eq!(grant(&mut grants, 2, &name("a"), 10), None, "it cools down");
    assert!(grant(&mut grants, 2, &name("a"), 30).is_some());
    assert!(grant(&mut grants, 1, &name("b"), 30).is_some());
}

#[test]
fn a_second_change_waits_for_the_recalls_of_the_first() {
    let mut grants = grants();
    grant(&mut grants, 1, &file(7), 0);
    let [(_, recall, _)] = &recalls(&grants.step(change(1, 2, &[file(7)]), at(1)))[..] else {
        panic!("one recall")
    };
    assert_eq!(grants.step(change(2, 3, &[file(7)]), at(2)), []);
    let effects = grants.step(Event::Acknowledged(id(1), *recall), at(3));
    assert_eq!(effects, [Effect::Apply(ChangeNumber(1)), Effect::Apply(ChangeNumber(2))]);
}

#[test]
fn a_client_that_is_silent_is_not_vouched_for_and_then_evicted() {
    let settings = Settings::default();
    let mut grants = grants();
    grant(&mut grants, 1, &file(7), 0);
    grants.step(change(1, 2, &[file(7)]), at(0));
    let patience = settings.recall_timeout - settings.lapse();
    assert!(grants.vouches_for(id(1), at(0) + (patience - Duration::from_millis(1))));
    assert!(!grants.vouches_for(id(1), at(0) + patience) && grants.vouches_for(id(2), at(9999)));
    assert_eq!(grants.next_wake(), at(10_000));
    assert_eq!(grants.step(Event::Tick, at(10_000)), [Effect::Evict(id(1))]);
    assert_eq!(grants.step(Event::Tick, at(11_000)), []);
    assert_eq!(grant(&mut grants, 1, &file(8), 11_000), None);
    let effects = grants.step(Event::Dropped(id(1)), at(12_000));
    assert_eq!(effects, [Effect::Apply(ChangeNumber(1))]);
}

#[test]
fn a_file_that_is_open_for_writing_is_granted_to_its_only_writer_at_most() {
    let mut grants = grants();
    grant(&mut grants, 1, &file(7), 0);
    let open = |number, by| Event::OpenForWriting {
        change: ChangeNumber(number),
        by: id(by),
        file: Ino(7),
    };
    let [(1, recall, _)] = recalls(&grants.step(open(1, 2), at(1)))[..] else { panic!("1 reads") };
    grants.step(Event::Acknowledged(id(1), recall), at(2));
    grants.step(Event::Applied(ChangeNumber(1)), at(2));
    assert_eq!(grant(&mut grants, 1, &file(7), 5000), None);
    assert!(grant(&mut grants, 2, &file(7), 5000).is_some());
    let [(2, recall, _)] = recalls(&grants.step(open(2, 3), at(5001)))[..] else { panic!("2") };
    grants.step(Event::Acknowledged(id(2), recall), at(5002));
    grants.step(Event::Applied(ChangeNumber(2)), at(5002));
    for client in [1, 2, 3] {
        assert_eq!(grant(&mut grants, client, &file(7), 9000), None, "two writers");
    }
    grants.step(Event::CloseForWriting { by: id(2), file: Ino(7) }, at(9000));
    grants.step(Event::Dropped(id(3)), at(9000));
    assert!(grant(&mut grants, 1, &file(7), 9500).is_some());
}

#[test]
fn grants_of_a_client_are_bounded_and_the_oldest_are_recalled() {
    let settings = Settings { grants_max: 16, ..Settings::default() };
    let mut grants = Grants::new(settings, Epoch(1));
    for number in 0..16 {
        assert!(grant(&mut grants, 1, &file(number), number).is_some());
    }
    grant(&mut grants, 1, &file(0), 20);
    let mut effects = Vec::new();
    assert_eq!(grants.grant(id(1), &file(99), at(21), &mut effects), None);
    let [(1, recall, items)] = &recalls(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(items, &[file(1), file(2)], "0 was asked for again");
    assert_eq!(grant(&mut grants, 1, &file(99), 22), None);
    assert_eq!(grants.count(id(1)), 16);
    grants.step(Event::Acknowledged(id(1), *recall), at(23));
    assert!(grant(&mut grants, 1, &file(99), 24).is_some());
    assert_eq!(grants.count(id(1)), 15);
}

#[test]
fn an_item_that_is_changed_again_and_again_is_granted_less_and_less() {
    let mut grants = grants();
    let mut now = 0;
    let mut pauses = Vec::new();
    for number in 1..10 {
        let asked = now;
        while grant(&mut grants, 1, &file(7), now).is_none() {
            now += 1;
        }
        pauses.push(now - asked);
        let effects = grants.step(change(number, 2, &[file(7)]), at(now));
        let [(_, recall, _)] = recalls(&effects)[..] else { panic!("{effects:?}") };
        grants.step(Event::Acknowledged(id(1), recall), at(now));
        grants.step(Event::Applied(ChangeNumber(number)), at(now));
    }
    assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 320, 640, 1000]);
}

#[test]
fn what_was_given_back_late_does_not_end_a_newer_grant() {
    let mut grants = grants();
    let first = grant(&mut grants, 1, &file(7), 0).unwrap();
    let second = grant(&mut grants, 1, &file(7), 1).unwrap();
    grants.step(Event::Returned(id(1), vec![(file(7), first)]), at(2));
    assert_eq!(grants.count(id(1)), 1);
    grants.step(Event::Returned(id(1), vec![(file(7), second)]), at(3));
    assert_eq!(grants.count(id(1)), 0);
}

#[test]
fn a_fileset_settles_when_all_grants_are_back() {
    let mut grants = grants();
    for (client, number) in [(1, 1), (1, 2), (2, 1)] {
        grant(&mut grants, client, &file(number), 0);
    }
    let effects = grants.step(Event::Settle(ChangeNumber(5)), at(1));
    let recalls = recalls(&effects);
    assert_eq!((effects.len(), recalls.len()), (2, 2));
    assert_eq!(grant(&mut grants, 3, &file(9), 2), None);
    grants.step(Event::Acknowledged(id(1), recalls[0].1), at(3));
    let effects = grants.step(Event::Acknowledged(id(2), recalls[1].1), at(4));
    assert_eq!(effects, [Effect::Apply(ChangeNumber(5))]);
    assert!(grants.is_settled());
}

#[test]
fn a_superseded_owner_vouches_for_nobody_who_has_its_grants() {
    let mut grants = grants();
    grant(&mut grants, 1, &file(1), 0);
    let effects = grants.step(Event::Abandon(ChangeNumber(5)), at(1));
    let [(1, recall, _)] = recalls(&effects)[..] else { panic!("{effects:?}") };
    assert!(!grants.vouches_for(id(1), at(1)) && grants.vouches_for(id(2), at(1)));
    grants.step(Event::Acknowledged(id(1), recall), at(2));
    assert!(grants.vouches_for(id(1), at(2)));
}

const RECALL: RecallNumber = RecallNumber(3);

/// A client that is vouched for until 5 s.
fn cache() -> Cache {
    let mut cache = Cache::new();
    cache.vouched(at(5000));
    cache
}

#[test]
fn a_grant_is_used_until_it_is_recalled_or_lapses() {
    let mut cache = cache();
    let ticket = cache.begin();
    assert_eq!(cache.answered(ticket, vec![(file(7), GrantNumber(1))]), [file(7)]);
    assert!(cache.may_use(&file(7), at(4999)) && !cache.may_use(&file(7), at(5000)));
    assert_eq!(cache.timeout(&file(7), at(2000)), Duration::from_secs(3));
    assert_eq!(cache.timeout(&file(8), at(2000)), Duration::ZERO);
    cache.vouched(at(9000));
    let invalidate = client::Effect::Invalidate { recall: RECALL, items: vec![file(7)] };
    assert_eq!(cache.recall(RECALL, vec![file(7)]), [invalidate]);
    assert!(!cache.may_use(&file(7), at(4000)));
    assert_eq!(cache.invalidated(RECALL), [client::Effect::Acknowledge(RECALL)]);
    assert_eq!(cache.invalidated(RECALL), []);
}

#[test]
fn an_answer_that_crossed_a_recall_is_not_cached() {
    let mut cache = cache();
    let before = cache.begin();
    cache.recall(RECALL, vec![file(7)]);
    let after = cache.begin();
    let both = || vec![(file(7), GrantNumber(1)), (file(8), GrantNumber(2))];
    assert_eq!(cache.answered(before, both()), [file(8)]);
    assert_eq!(cache.answered(after, both()), [file(7), file(8)]);
}

#[test]
fn so_many_recalls_that_they_are_forgotten_bar_all_earlier_answers() {
    let mut cache = cache();
    let before = cache.begin();
    for number in 0..10_000 {
        cache.recall(RecallNumber(number), vec![file(number)]);
    }
    assert_eq!(cache.answered(before, vec![(file(1 << 40), GrantNumber(1))]), []);
    let after = cache.begin();
    assert_eq!(cache.answered(after, vec![(file(1), GrantNumber(2))]), [file(1)]);
}

#[test]
fn a_client_does_not_use_its_own_grant_on_what_it_changes() {
    let mut cache = cache();
    let ticket = cache.begin();
    cache.answered(ticket, vec![(file(7), GrantNumber(1))]);
    let crossing = cache.begin();
    let changing = cache.changing(&[file(7)]);
    let during = cache.begin();
    assert!(!cache.may_use(&file(7), at(0)));
    assert_eq!(cache.answered(during, vec![(file(7), GrantNumber(2))]), []);
    let granted = vec![(file(7), GrantNumber(3))];
    assert_eq!(cache.changed(changing, &[file(7)], granted), [file(7)]);
    assert_eq!(cache.answered(crossing, vec![(file(7), GrantNumber(2))]), []);
}

#[test]
fn a_recall_does_not_wait_for_a_kernel_that_has_stopped_using_it() {
    let mut cache = cache();
    cache.recall(RECALL, vec![name("a")]);
    // What is vouched for later was not given to the kernel.
    cache.vouched(at(9000));
    assert_eq!(cache.next_wake(), at(5000));
    assert_eq!(cache.tick(at(4999)), []);
    assert_eq!(cache.tick(at(5000)), [client::Effect::Acknowledge(RECALL)]);
    assert_eq!(cache.invalidated(RECALL), []);
}

#[test]
fn a_lost_session_leaves_nothing_to_use() {
    let mut cache = cache();
    let ticket = cache.begin();
    cache.answered(ticket, vec![(file(7), GrantNumber(1))]);
    let before = cache.begin();
    cache.lost();
    cache.vouched(at(9000));
    assert!(!cache.may_use(&file(7), at(0)));
    assert_eq!(cache.answered(before, vec![(file(7), GrantNumber(2))]), []);
}

#[test]
fn the_late_end_of_a_change_of_a_lost_session_does_not_end_another_one() {
    let mut cache = cache();
    let former = cache.changing(&[file(7)]);
    cache.lost();
    cache.vouched(at(9000));
    let present = cache.changing(&[file(7)]);
    assert_eq!(cache.changed(former, &[file(7)], Vec::new()), []);
    let during = cache.begin();
    let granted = vec![(file(7), GrantNumber(1))];
    assert_eq!(cache.answered(during, granted.clone()), [], "the change may come after it");
    cache.changed(present, &[file(7)], Vec::new());
    let after = cache.begin();
    assert_eq!(cache.answered(after, granted), [file(7)]);
}

#[test]
fn a_client_has_given_up_what_it_knew_of_and_nothing_that_came_later() {
    let mut grants = grants();
    let items = [name("a"), file(7)];
    assert!(grants.has_given_up(id(1), &items, GrantNumber(0)), "it has nothing");
    let first = grant(&mut grants, 1, &items[0], 0).unwrap();
    assert!(!grants.has_given_up(id(1), &items, GrantNumber(first.0 - 1)));
    assert!(grants.has_given_up(id(1), &items, first));
    let second = grant(&mut grants, 1, &items[1], 1).unwrap();
    assert!(!grants.has_given_up(id(1), &items, first), "it came after the client asked");
    assert!(grants.has_given_up(id(1), &items, second));
    let effects = grants.step(change(1, 2, &items), at(5));
    assert!(!grants.has_given_up(id(1), &items, second), "it is being recalled");
    let [(1, recall, _)] = recalls(&effects)[..] else { panic!("{effects:?}") };
    grants.step(Event::Acknowledged(id(1), recall), at(6));
    assert!(grants.has_given_up(id(1), &items, GrantNumber(0)));
}

#[test]
fn a_client_that_changes_what_it_alone_caches_may_cache_it_on() {
    let (mut grants, item) = (grants(), file(1));
    let first = grant(&mut grants, 1, &item, 0).unwrap();
    assert!(grants.holds(id(1), &item, first) && !grants.holds(id(1), &item, GrantNumber(0)));
    let granted = |grants: &mut Grants, number: u64, millis: u64| {
        let at = at(millis);
        grants.applied_by(ChangeNumber(number), (id(1), &item), at, &mut Vec::new())
    };
    for number in 1..10 {
        let effects = grants.step(change(number, 1, std::slice::from_ref(&item)), at(number));
        assert_eq!(effects, [Effect::Apply(ChangeNumber(number))]);
        let (_, continues) = granted(&mut grants, number, number).expect("nobody else wants it");
        assert!(continues);
    }
    // Somebody else begins to change it before the client's change has taken effect.
    grants.step(change(10, 1, std::slice::from_ref(&item)), at(10));
    grants.step(change(11, 2, std::slice::from_ref(&item)), at(10));
    assert_eq!(granted(&mut grants, 10, 10), None, "it is being changed");
    grants.step(Event::Applied(ChangeNumber(11)), at(11));
    // Or before, and has done so when it takes effect.
    grants.step(change(12, 1, std::slice::from_ref(&item)), at(2000));
    grants.step(change(13, 2, std::slice::from_ref(&item)), at(2000));
    grants.step(Event::Applied(ChangeNumber(13)), at(2001));
    let (_, continues) = granted(&mut grants, 12, 4000).unwrap();
    assert!(!continues);
}
