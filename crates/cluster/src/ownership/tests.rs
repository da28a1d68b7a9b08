use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};

use super::{Change, Effect, Event, Holding, Outcome, Ownership, Record, View, rendezvous};
use crate::membership::{Attempt, LeaseId, Member, Revision};
use crate::settings::Settings;
use crate::time::Moment;

const F: FilesetId = FilesetId(3);

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn client(node: u32) -> ClientId {
    ClientId { node: NodeId(node), incarnation: 1 }
}

fn record(owner: u32, epoch: u64) -> Record {
    Record { owner: (owner != 0).then(|| client(owner)), epoch: Epoch(epoch) }
}

fn member(node: u32) -> (NodeId, Member) {
    (NodeId(node), Member { incarnation: 1, lease: LeaseId(i64::from(node) * 100), weight: 1 })
}

fn view(revision: u64, members: &[u32], record: Record) -> View {
    View {
        revision: Revision(revision),
        members: members.iter().map(|node| member(*node)).collect(),
        owners: BTreeMap::from([(F, record)]),
        ..View::default()
    }
}

/// The owner of epoch 4 is to let go of the fileset.
fn settle(to: Option<ClientId>) -> Effect {
    Effect::Settle { fileset: F, epoch: Epoch(4), to }
}

/// A node that answers, and has seen `view`.
fn node(me: u32, view: View) -> (Ownership, Vec<Effect>) {
    let mut node = Ownership::new(Settings::default(), client(me));
    node.stand(Some(LeaseId(i64::from(me) * 100)));
    let effects = node.step(Event::View(view), at(0));
    (node, effects)
}

/// Node `me` after it opened the fileset in epoch 4.
fn owner(me: u32, members: &[u32]) -> Ownership {
    let (mut node, effects) = node(me, view(10, members, record(me, 4)));
    let open = Effect::Open { fileset: F, epoch: Epoch(4), lapse: Duration::ZERO };
    assert_eq!(effects, [open]);
    node.step(Event::Opened { fileset: F, epoch: Epoch(4) }, at(0));
    node
}

/// The members in the order in which they are to own the fileset.
fn order(members: &[u32]) -> Vec<u32> {
    let nodes = members.iter().map(|node| (NodeId(*node), 1));
    rendezvous::order(F, nodes).into_iter().map(|node| node.0).collect()
}

fn swaps(effects: &[Effect]) -> Vec<(Attempt, Record)> {
    let swaps = effects.iter().filter_map(|effect| match effect {
        Effect::Swap { attempt, swap } => Some((*attempt, swap.value)),
        _ => None,
    });
    swaps.collect()
}

fn change_owner(revision: u64, record: Record) -> Event {
    Event::Changed { revision: Revision(revision), change: Change::Owner(F, Some(record)) }
}

#[test]
fn a_dead_owner_is_replaced_by_the_first_in_order_and_by_the_next_after_a_while() {
    let order = order(&[1, 2, 4]);
    let dead = record(9, 6);
    for (rank, me) in order.iter().enumerate() {
        let (mut node, effects) = node(*me, view(10, &[1, 2, 4], dead));
        assert_eq!(swaps(&effects).len(), usize::from(rank == 0), "rank {rank}");
        let patience = Settings::default().takeover_patience * u32::try_from(rank).unwrap();
        if rank > 0 {
            assert_eq!(node.next_wake(), at(0) + patience);
            let effects = node.step(Event::Tick, at(0) + patience);
            let [Effect::Swap { swap, .. }] = &effects[..] else { panic!("{effects:?}") };
            let absent = (NodeId(9), None);
            assert_eq!(swap.members, [(NodeId(*me), Some(member(*me).1.lease)), absent]);
            assert_eq!((swap.expect, swap.value), (dead, record(*me, 7)));
        }
    }
}

#[test]
fn a_living_owner_is_left_alone_however_long_it_is_silent() {
    let (mut node, effects) = node(1, view(10, &[1, 2], record(2, 6)));
    assert_eq!((effects, node.step(Event::Tick, at(1000))), (vec![], vec![]));
}

#[test]
fn a_node_that_waits_claims_nothing() {
    let mut node = Ownership::new(Settings::default(), client(1));
    assert_eq!(node.step(Event::View(view(10, &[1], record(9, 6))), at(0)), []);
    node.stand(Some(LeaseId(100)));
    assert_eq!(swaps(&node.step(Event::Tick, at(1))).len(), 1);
}

#[test]
fn a_restarted_node_takes_its_filesets_back_and_waits_for_grants_of_its_former_life() {
    let mut former = record(1, 6);
    former.owner = Some(ClientId { node: NodeId(1), incarnation: 0 });
    let (mut node, effects) = node(1, view(10, &[1, 2, 4], former));
    let [(attempt, value)] = swaps(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(value, record(1, 7));
    let effects = node.step(Event::Swapped { attempt, outcome: Outcome::Done }, at(1));
    let lapse = Settings::default().lapse() - Duration::from_secs(1);
    assert_eq!(effects, [Effect::Open { fileset: F, epoch: Epoch(7), lapse }]);
    // If it cannot open it, nobody else does before it could have.
    let effects = node.step(Event::OpenFailed { fileset: F, epoch: Epoch(7) }, at(2));
    assert_eq!((effects, node.next_wake()), (vec![], at(1) + lapse));
    let effects = node.step(Event::Tick, at(1) + lapse);
    assert_eq!(swaps(&effects).len(), 1, "{effects:?}");
}

#[test]
fn a_claim_of_unknown_outcome_is_made_again_until_a_record_decides() {
    let (mut node, effects) = node(1, view(10, &[1], record(9, 6)));
    let [(attempt, _)] = swaps(&effects)[..] else { panic!("{effects:?}") };
    let effects = node.step(Event::Swapped { attempt, outcome: Outcome::Unknown }, at(1));
    assert_eq!(effects, [Effect::Read]);
    node.step(Event::View(view(11, &[1], record(9, 6))), at(1));
    assert_eq!(swaps(&node.step(Event::Tick, at(2))).len(), 1);
    let effects = node.step(change_owner(12, record(1, 7)), at(3));
    let open = Effect::Open { fileset: F, epoch: Epoch(7), lapse: Duration::ZERO };
    assert_eq!(effects, [open]);
}

#[test]
fn a_lost_claim_leaves_the_fileset_to_who_won() {
    let (mut node, effects) = node(1, view(10, &[1, 2], record(9, 6)));
    let tick = node.step(Event::Tick, at(100));
    assert_eq!(swaps(&effects).len() + swaps(&tick).len(), 1);
    node.step(change_owner(12, record(2, 7)), at(101));
    assert_eq!(node.holding(F), None);
}

#[test]
fn a_superseded_owner_drops_what_it_holds_at_every_stage() {
    let settle = Event::Move { fileset: F, to: NodeId(2) };
    let settled = Event::Settled { fileset: F, epoch: Epoch(4) };
    for before in [vec![], vec![settle.clone()], vec![settle, settled]] {
        let mut node = owner(1, &[1, 2]);
        for event in before {
            node.step(event, at(1));
        }
        let effects = node.step(change_owner(20, record(2, 9)), at(2));
        assert_eq!(effects, [Effect::Drop { fileset: F, epoch: Epoch(4) }]);
        node.step(Event::Dropped { fileset: F, epoch: Epoch(4) }, at(3));
        assert_eq!(node.holding(F), None);
    }
}

#[test]
fn what_a_lagging_watch_reports_changes_nothing() {
    let mut node = owner(1, &[1, 2]);
    node.step(Event::Move { fileset: F, to: NodeId(2) }, at(1));
    let effects = node.step(Event::Settled { fileset: F, epoch: Epoch(4) }, at(2));
    let [(attempt, _)] = swaps(&effects)[..] else { panic!("{effects:?}") };
    node.step(Event::Swapped { attempt, outcome: Outcome::Done }, at(3));
    assert_eq!(node.step(change_owner(11, record(1, 4)), at(4)), []);
    assert_eq!(node.holding(F), None);
}

#[test]
fn an_orderly_handover_is_settle_one_transaction_and_open() {
    let mut old = owner(1, &[1, 2]);
    let effects = old.step(Event::Move { fileset: F, to: NodeId(2) }, at(1));
    assert_eq!(effects, [settle(Some(client(2)))]);
    let effects = old.step(Event::Settled { fileset: F, epoch: Epoch(4) }, at(2));
    let [(attempt, value)] = swaps(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(value, record(2, 5));
    let effects = old.step(Event::Swapped { attempt, outcome: Outcome::Done }, at(3));
    assert_eq!(effects, [Effect::Passed { fileset: F, to: Some(client(2)) }]);

    let (mut new, _) = node(2, view(10, &[1, 2], record(1, 4)));
    let effects = new.step(change_owner(11, value), at(3));
    let open = Effect::Open { fileset: F, epoch: Epoch(5), lapse: Duration::ZERO };
    assert_eq!(effects, [open]);
}

#[test]
fn a_handover_whose_outcome_is_unknown_is_finished() {
    let mut old = owner(1, &[1, 2]);
    old.step(Event::Move { fileset: F, to: NodeId(2) }, at(1));
    let effects = old.step(Event::Settled { fileset: F, epoch: Epoch(4) }, at(2));
    let [(attempt, value)] = swaps(&effects)[..] else { panic!("{effects:?}") };
    old.step(Event::Swapped { attempt, outcome: Outcome::Unknown }, at(3));
    assert_eq!(swaps(&old.step(Event::Tick, at(4))), [(Attempt(2), value)]);
    let effects = old.step(change_owner(12, value), at(5));
    assert_eq!(effects, [Effect::Passed { fileset: F, to: Some(client(2)) }]);
}

#[test]
fn what_cannot_be_settled_stays_and_what_cannot_be_opened_is_let_go_of() {
    let mut node = owner(1, &[1, 2]);
    node.step(Event::Move { fileset: F, to: NodeId(2) }, at(1));
    node.step(Event::SettleFailed { fileset: F, epoch: Epoch(4) }, at(2));
    assert_eq!(node.holding(F), Some(Holding::Owning { epoch: Epoch(4), since: at(2) }));

    let (mut node, _) = self::node(1, view(10, &[1, 2], record(1, 4)));
    let effects = node.step(Event::OpenFailed { fileset: F, epoch: Epoch(4) }, at(1));
    let [(attempt, value)] = swaps(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(value, record(0, 5));
    node.step(Event::Swapped { attempt, outcome: Outcome::Done }, at(1));
    assert_eq!(swaps(&node.step(Event::Tick, at(2))), [], "it leaves it to others for a while");
    assert_eq!(swaps(&node.step(Event::Tick, at(9))).len(), 1);
}

#[test]
fn a_drained_node_hands_everything_over_a_few_at_a_time() {
    let filesets = (1..=9).map(FilesetId);
    let view = View {
        revision: Revision(10),
        members: [1, 2].map(member).into(),
        draining: BTreeSet::from([NodeId(1)]),
        owners: filesets.clone().map(|fileset| (fileset, record(1, 4))).collect(),
        ..View::default()
    };
    let mut node = Ownership::new(Settings::default(), client(1));
    node.stand(Some(LeaseId(100)));
    node.step(Event::View(view), at(0));
    let mut settling = Vec::new();
    for fileset in filesets {
        settling.extend(node.step(Event::Opened { fileset, epoch: Epoch(4) }, at(0)));
    }
    assert_eq!(settling.len(), Settings::default().handovers_max);
    let first = FilesetId(1);
    let effects = node.step(Event::Settled { fileset: first, epoch: Epoch(4) }, at(1));
    let [(attempt, _)] = swaps(&effects)[..] else { panic!("{effects:?}") };
    let effects = node.step(Event::Swapped { attempt, outcome: Outcome::Done }, at(1));
    let next = |effect: &Effect| matches!(effect, Effect::Settle { .. });
    assert_eq!(effects.iter().filter(|it| next(it)).count(), 1, "{effects:?}");
}

#[test]
fn balance_waits_until_owner_and_heir_have_been_there_for_a_while() {
    let members = [1, 2, 4];
    let order = order(&members);
    let mut node = owner(order[1], &members);
    let hold = Settings::default().owner_hold_min;
    assert_eq!(node.next_wake(), at(0) + hold);
    assert_eq!(node.step(Event::Tick, at(59)), []);
    let change = Change::Member(NodeId(order[0]), None);
    node.step(Event::Changed { revision: Revision(20), change }, at(59));
    let (heir, back) = member(order[0]);
    let change = Change::Member(heir, Some(Member { incarnation: 2, ..back }));
    node.step(Event::Changed { revision: Revision(21), change }, at(60));
    assert_eq!(node.step(Event::Tick, at(61)), [], "the heir has just come back");
    let effects = node.step(Event::Tick, at(120));
    assert_eq!(effects, [settle(Some(ClientId { incarnation: 2, ..client(order[0]) }))]);
}

#[test]
fn a_pinned_fileset_moves_at_once_and_stays() {
    for pinned in [1, 2] {
        let mut node = owner(1, &[1, 2, 4]);
        let change = Change::Pinned(F, Some(NodeId(pinned)));
        let effects = node.step(Event::Changed { revision: Revision(11), change }, at(1));
        assert_eq!(effects.len(), usize::from(pinned == 2), "{effects:?}");
        assert_eq!(node.step(Event::Tick, at(1000)), []);
    }
}

#[test]
fn a_node_that_stops_lets_go_of_everything() {
    for members in [&[1, 2][..], &[1]] {
        let mut node = owner(1, members);
        let effects = node.step(Event::Stop, at(1));
        assert_eq!(effects, [settle((members.len() == 2).then(|| client(2)))]);
        let effects = node.step(Event::Settled { fileset: F, epoch: Epoch(4) }, at(2));
        let [(attempt, value)] = swaps(&effects)[..] else { panic!("{effects:?}") };
        assert_eq!(value, record(if members.len() == 2 { 2 } else { 0 }, 5));
        let effects = node.step(Event::Swapped { attempt, outcome: Outcome::Done }, at(3));
        assert_eq!(effects.last(), Some(&Effect::Stopped));
    }
}

#[test]
fn what_a_node_lets_go_of_as_it_stops_goes_to_its_home_without_that_node() {
    let by_hash = |fileset| rendezvous::order(fileset, [2, 4].map(|node| (NodeId(node), 1)))[0];
    // The order of the hash alone would give all of them to one node, whose share is two.
    let on_one = (1..).map(FilesetId).filter(|fileset| by_hash(*fileset) == NodeId(2));
    let filesets: Vec<FilesetId> = on_one.take(4).collect();
    let view = View {
        revision: Revision(10),
        members: [1, 2, 4].map(member).into(),
        owners: filesets.iter().map(|fileset| (*fileset, record(1, 4))).collect(),
        ..View::default()
    };
    let homes = view.homes_without(Some(NodeId(1)));
    assert_eq!(homes.values().filter(|home| **home == NodeId(4)).count(), 2, "{homes:?}");
    let mut node = Ownership::new(Settings::default(), client(1));
    node.stand(Some(LeaseId(100)));
    node.step(Event::View(view), at(0));
    for fileset in &filesets {
        node.step(Event::Opened { fileset: *fileset, epoch: Epoch(4) }, at(0));
    }
    node.step(Event::Stop, at(1));
    for fileset in filesets {
        let effects = node.step(Event::Settled { fileset, epoch: Epoch(4) }, at(2));
        let (attempt, value) = swaps(&effects)[0];
        assert_eq!(value.owner.map(|owner| owner.node), Some(homes[&fileset]), "{fileset}");
        node.step(Event::Swapped { attempt, outcome: Outcome::Done }, at(2));
    }
}

#[test]
fn a_removed_fileset_is_dropped() {
    let mut node = owner(1, &[1, 2]);
    let change = Change::Owner(F, None);
    let effects = node.step(Event::Changed { revision: Revision(11), change }, at(1));
    assert_eq!(effects, [Effect::Drop { fileset: F, epoch: Epoch(4) }]);
}
