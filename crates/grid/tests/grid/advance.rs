//! Advance reservations: slots that are set aside for some users for a time.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::advance::AdvanceReservation;
use forebay_grid::grid::{Explanation, HostObstacle, Reason};
use forebay_grid::modify::{Changes, Set};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::JobSpec;
use forebay_grid::task::Task;
use forebay_grid::vocabulary::{JobId, Moment, TaskId};
use forebay_grid::{Effect, Event};

const SETTINGS: &str =
    "[general]\nadmins = [\"root\"]\nlease = \"10 h\"\nhost_timeout = \"11 h\"\n";
const MINUTE: u64 = 60_000;

/// One of user `u` on host `a` from minute 10 to minute 20.
fn reservation(slots: Option<u32>) -> AdvanceReservation {
    AdvanceReservation {
        name: "r".parse().unwrap(),
        users: vec!["u".parse().unwrap()],
        hosts: vec!["a".parse().unwrap()],
        slots,
        start: Moment(10 * MINUTE),
        end: Moment(20 * MINUTE),
    }
}

fn reserve(rig: &mut Rig, by: &str, reservation: AdvanceReservation) -> Vec<Effect> {
    rig.send(Event::Reserve { by: by.parse().unwrap(), reservation: Box::new(reservation) })
}

fn made(slots: Option<u32>, hosts: &[(&str, u32)]) -> Rig {
    let mut rig = Rig::new(SETTINGS, hosts);
    assert!(matches!(reserve(&mut rig, "root", reservation(slots))[..], [Effect::Obeyed { .. }]));
    rig
}

fn at(rig: &mut Rig, minute: u64) -> Vec<Effect> {
    rig.pass(minute * MINUTE - rig.now)
}

fn limited(minutes: u64) -> JobSpec {
    JobSpec { time_limit: Some(Period::seconds(60 * minutes)), ..spec() }
}

fn inside() -> JobSpec {
    JobSpec { reservation: Some("r".parse().unwrap()), ..spec() }
}

fn explained(rig: &Rig, job: JobId) -> (Vec<Reason>, Vec<Option<HostObstacle>>) {
    match rig.grid.explain(TaskId::only(job)) {
        Some(Explanation::Waits { reasons, hosts }) => {
            (reasons, hosts.into_iter().map(|verdict| verdict.obstacle).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn other_jobs_start_only_if_they_end_before_it_begins() {
    let mut rig = made(None, &[("a", 2)]);
    let (short, long, unlimited) =
        (rig.submit(limited(5)), rig.submit(limited(15)), rig.submit(spec()));
    assert!(rig.host_of(short).is_some());
    assert!(rig.host_of(long).is_none() && rig.host_of(unlimited).is_none());
    let (_, hosts) = explained(&rig, long);
    let set_aside =
        HostObstacle::SetAside { from: Moment(10 * MINUTE), until: Moment(20 * MINUTE) };
    assert_eq!(hosts, [Some(set_aside)]);
    let Some(Explanation::Waits { hosts, .. }) = rig.grid.explain(TaskId::only(long)) else {
        panic!()
    };
    assert_eq!(hosts[0].reservation.as_ref().unwrap().as_str(), "r");
    let wake = rig.grid.next_wake();
    assert!(wake <= Moment(10 * MINUTE));
    rig.exit(TaskId::only(short), 0);
    at(&mut rig, 20);
    assert!(rig.host_of(long).is_some() && rig.host_of(unlimited).is_some(), "it is over");
    assert_eq!(rig.grid.reservations().count(), 0);
}

#[test]
fn slots_that_are_not_reserved_are_for_everybody() {
    let mut rig = made(Some(2), &[("a", 3)]);
    let (first, second) = (rig.submit(spec()), rig.submit(spec()));
    assert!(rig.host_of(first).is_some() && rig.host_of(second).is_none());
    let short = rig.submit(limited(5));
    assert!(rig.host_of(short).is_some());
    at(&mut rig, 11);
    let own = [rig.submit(inside()), rig.submit(inside()), rig.submit(inside())];
    assert!(rig.host_of(own[0]).is_some());
    rig.exit(TaskId::only(short), 0);
    assert!(rig.host_of(own[1]).is_some() && rig.host_of(own[2]).is_none(), "it has two slots");
    let (_, hosts) = explained(&rig, own[2]);
    assert!(hosts[0].is_some());
    rig.exit(TaskId::only(first), 0);
    assert!(rig.host_of(second).is_some());
    rig.exit(TaskId::only(second), 0);
    let (_, hosts) = explained(&rig, own[2]);
    assert_eq!(hosts, [Some(HostObstacle::ReservationSlots { used: 2, most: 2 })]);
}

#[test]
fn a_job_in_it_waits_for_its_beginning_uses_its_hosts_and_ends_with_it() {
    let mut rig = made(None, &[("a", 1), ("b", 1)]);
    let job = rig.submit(inside());
    let name = "r".parse().unwrap();
    let starts = Reason::ReservationStarts { name, at: Moment(10 * MINUTE) };
    assert!(explained(&rig, job).0.contains(&starts), "{:?}", explained(&rig, job));
    let effects = at(&mut rig, 10);
    assert_eq!(launched(&effects).len(), 1);
    assert_eq!(rig.host_of(job).as_deref(), Some("a"));
    let Some(Task::Active(run)) = rig.grid.ledger().task(TaskId::only(job)) else { panic!() };
    assert_eq!(run.limit_ms, Some(10 * MINUTE));
    rig.start(TaskId::only(job));
    let longer = Changes { time_limit: Some(Set::To(Period::seconds(9999))), ..Changes::default() };
    let (by, changes) = ("u".parse().unwrap(), Box::new(longer));
    let said = refusal(&rig.send(Event::Modify { by, job, changes }));
    assert!(said.contains("runs in reservation r"), "{said}");
    let effects = at(&mut rig, 20);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Kill { .. })), "{effects:?}");
}

#[test]
fn only_its_users_may_use_it_and_only_admins_make_and_delete_it() {
    let mut rig = made(None, &[("a", 1)]);
    assert!(refusal(&rig.submit_as("v", inside())).contains("v may not use reservation r"));
    let none = JobSpec { reservation: Some("none".parse().unwrap()), ..spec() };
    assert!(refusal(&rig.submit_as("u", none)).contains("there is no reservation none"));
    assert!(refusal(&reserve(&mut rig, "u", reservation(None))).contains("u may not make"));
    let job = rig.submit(inside());
    let delete =
        |by: &str| Event::Unreserve { by: by.parse().unwrap(), name: "r".parse().unwrap() };
    assert!(refusal(&rig.send(delete("u"))).contains("u may not delete"));
    assert!(matches!(rig.send(delete("root"))[..], [Effect::Obeyed { .. }]));
    assert!(refusal(&rig.send(delete("root"))).contains("there is no reservation r"));
    assert!(explained(&rig, job).0.contains(&Reason::ReservationGone("r".parse().unwrap())));
    let changes = Changes { reservation: Some(Set::Nothing), ..Changes::default() };
    let by = "u".parse().unwrap();
    rig.send(Event::Modify { by, job, changes: Box::new(changes) });
    assert!(rig.host_of(job).is_some());
}

#[test]
fn reservations_that_cannot_be_are_refused_with_the_reason() {
    let mut rig = made(Some(3), &[("a", 4)]);
    let other = |slots| AdvanceReservation { name: "s".parse().unwrap(), ..reservation(slots) };
    let mut refused = |reservation| refusal(&reserve(&mut rig, "root", reservation));
    assert!(refused(reservation(None)).contains("there is a reservation r already"));
    let said = refused(other(Some(2)));
    assert!(said.contains("a has 4 slots, of which r already have 3"), "{said}");
    assert!(refused(other(Some(5))).contains("5 slots of a, which has 4"));
    assert!(refused(other(Some(0))).contains("at least 1 slot"));
    let backwards = AdvanceReservation { end: Moment(1), ..other(None) };
    assert!(refused(backwards).contains("must end after it starts"));
    let past = AdvanceReservation { start: Moment(1), end: Moment(2), ..other(None) };
    assert!(refused(past).contains("would have ended already"));
    let nowhere = AdvanceReservation { hosts: vec!["x".parse().unwrap()], ..other(None) };
    assert!(refused(nowhere).contains("there is no host x"));
    let nobody = AdvanceReservation { users: Vec::new(), ..other(None) };
    assert!(refused(nobody).contains("users"));
    let later =
        AdvanceReservation { start: Moment(20 * MINUTE), end: Moment(30 * MINUTE), ..other(None) };
    assert!(matches!(reserve(&mut rig, "root", later)[..], [Effect::Obeyed { .. }]));
}

#[test]
fn what_ran_before_it_was_made_keeps_its_slots() {
    let mut rig = Rig::new(SETTINGS, &[("a", 2)]);
    let before = rig.submit(spec());
    reserve(&mut rig, "root", reservation(None));
    at(&mut rig, 10);
    let own = [rig.submit(inside()), rig.submit(inside())];
    assert!(rig.host_of(own[0]).is_some() && rig.host_of(own[1]).is_none());
    rig.exit(TaskId::only(before), 0);
    assert!(rig.host_of(own[1]).is_some());
}

#[test]
fn a_controller_that_starts_again_knows_them() {
    let mut rig = made(None, &[("a", 2)]);
    let long = rig.submit(limited(15));
    rig.restart();
    assert_eq!(rig.grid.reservations().count(), 1);
    assert!(rig.host_of(long).is_none());
    assert!(rig.grid.next_wake() <= Moment(10 * MINUTE));
}
