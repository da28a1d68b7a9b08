//! Schedules of flows: times and files that start runs.

use forebay_grid::flow::event::FlowEffect;
use forebay_grid::flow::event::{FlowEvent, Found, Stamp};
use forebay_grid::flow::{FlowId, ScheduleId};
use forebay_grid::vocabulary::{JobId, Moment, UserName};
use forebay_grid::{Effect, Event};

use super::{QUEUE, flow, restart, runs, schedule};
use crate::support::{Rig, refusal};

/// 2027-01-01, a Friday, at midnight in UTC.
const NEW_YEAR: u64 = 1_798_761_600_000;
const HOUR: u64 = 3_600_000;

#[test]
fn a_cron_schedule_fires_on_the_clocks_of_its_zone_once_for_each_time() {
    let mut rig = Rig::new(QUEUE, &[]);
    rig.now = NEW_YEAR;
    let six = "[schedule]\ncron = \"0 6 * * 1-5\"\nzone = \"Europe/Berlin\"";
    let effects = schedule(&mut rig, flow(&[("a", "")], six));
    let scheduled = Effect::Flow(FlowEffect::Scheduled { schedule: ScheduleId(1) });
    assert_eq!(effects, [scheduled]);
    assert_eq!(rig.grid.next_wake(), Moment(NEW_YEAR + 5 * HOUR));
    rig.pass(5 * HOUR - 1);
    assert_eq!(runs(&rig), 0);
    rig.pass(1);
    assert_eq!(runs(&rig), 1);
    rig.pass(0);
    restart(&mut rig);
    rig.pass(1000);
    assert_eq!(runs(&rig), 1, "a time fires once, restart or not");
    // Next is Monday.
    let next = rig.grid.ledger().schedules().next().unwrap().1.due();
    assert_eq!(next, Some(Moment(NEW_YEAR + 77 * HOUR)));
}

#[test]
fn missed_times_are_passed_over_or_make_one_run() {
    for (setting, expected) in [("", 0), ("catch_up = true", 1)] {
        let mut rig = Rig::new(QUEUE, &[]);
        rig.now = NEW_YEAR;
        schedule(
            &mut rig,
            flow(&[("a", "")], &format!("[schedule]\ncron = \"@hourly\"\n{setting}")),
        );
        rig.now += 5 * HOUR + HOUR / 2;
        restart(&mut rig);
        rig.pass(0);
        assert_eq!(runs(&rig), expected);
        let entry = rig.grid.ledger().schedules().next().unwrap().1;
        assert_eq!(entry.due(), Some(Moment(NEW_YEAR + 6 * HOUR)));
        assert_eq!(entry.trouble().is_some(), expected == 0);
        rig.pass(HOUR / 2);
        assert_eq!(runs(&rig), expected + 1);
    }
}

#[test]
fn runs_of_a_schedule_overlap_unless_it_says_otherwise() {
    for (setting, expected) in [("", 2), ("overlap = false", 1)] {
        let mut rig = Rig::new(QUEUE, &[]);
        rig.now = NEW_YEAR;
        schedule(
            &mut rig,
            flow(&[("a", "")], &format!("[schedule]\ncron = \"@hourly\"\n{setting}")),
        );
        rig.pass(HOUR);
        rig.pass(HOUR);
        assert_eq!(runs(&rig), expected);
    }
}

#[test]
fn a_calendar_time_fires_once_even_late_and_is_refused_when_it_is_past() {
    let mut rig = Rig::new(QUEUE, &[]);
    rig.now = NEW_YEAR;
    let at = |text: &str| flow(&[("a", "")], &format!("[schedule]\nat = \"{text}\""));
    assert!(refusal(&schedule(&mut rig, at("2026-12-31T23:59"))).contains("has passed"));
    schedule(&mut rig, at("2027-01-01T06:00"));
    rig.now += 9 * HOUR;
    restart(&mut rig);
    rig.pass(0);
    rig.pass(HOUR);
    assert_eq!(runs(&rig), 1);
    assert_eq!(rig.grid.ledger().schedules().count(), 0, "it has no other time");
}

#[test]
fn a_calendar_time_that_was_passed_over_is_told_of_for_a_while_and_then_gone() {
    let mut rig = Rig::new("[general]\nfinished_age = \"2 h\"\n[[queue]]\nname = \"q\"\n", &[]);
    rig.now = NEW_YEAR;
    let late = "[schedule]\nat = \"2027-01-01T01:00\"\ncatch_up = false";
    schedule(&mut rig, flow(&[("a", "")], late));
    rig.now += 3 * HOUR;
    restart(&mut rig);
    rig.pass(0);
    let told = rig.grid.ledger().schedules().next().map(|(_, entry)| {
        assert_eq!(entry.due(), None);
        entry.trouble().map(str::to_owned)
    });
    assert!(told.unwrap().unwrap().contains("missed"));
    restart(&mut rig);
    rig.pass(HOUR);
    assert_eq!(rig.grid.ledger().schedules().count(), 1);
    rig.pass(HOUR);
    assert_eq!((rig.grid.ledger().schedules().count(), runs(&rig)), (0, 0));
}

#[test]
fn one_user_leaves_others_room_for_schedules() {
    let mut rig = Rig::new(QUEUE, &[]);
    rig.now = NEW_YEAR;
    let hourly = || flow(&[("a", "")], "[schedule]\ncron = \"@hourly\"");
    let refused = (0..201).map(|_| schedule(&mut rig, hourly())).last().unwrap();
    assert!(refusal(&refused).contains("at most 200"), "{refused:?}");
    let other = FlowEvent::Schedule { user: "other".parse().unwrap(), spec: Box::new(hourly()) };
    let taken = rig.send(Event::Flow(other));
    assert!(!matches!(taken[0], Effect::Rejected(_)), "{taken:?}");
}

#[test]
fn a_start_that_is_refused_says_why_and_the_next_is_tried() {
    let mut rig = Rig::new(QUEUE, &[]);
    rig.now = NEW_YEAR;
    let settings =
        |most: u32| format!("[general]\nuser_tasks_max = {most}\n[[queue]]\nname = \"q\"\n");
    rig.configure(&settings(2));
    schedule(&mut rig, flow(&[("a", ""), ("b", "a")], "[schedule]\ncron = \"@hourly\""));
    rig.configure(&settings(1));
    rig.pass(HOUR);
    let trouble = rig.grid.ledger().schedules().next().unwrap().1.trouble().map(str::to_owned);
    assert!(trouble.unwrap().contains("at most 1"));
    rig.configure(&settings(2));
    rig.pass(HOUR);
    assert_eq!(runs(&rig), 1);
    assert_eq!(rig.grid.ledger().schedules().next().unwrap().1.trouble(), None);
}

fn found(path: &str, length_bytes: u64, steady: bool) -> Found {
    let stamp = Stamp { inode: 1, length_bytes, modified_ns: 7 };
    Found { path: path.to_owned(), stamp, steady }
}

fn look(rig: &mut Rig, files: Vec<Found>) {
    let (schedule, trouble) = (ScheduleId(1), None);
    rig.send(Event::Flow(FlowEvent::Looked { schedule, files, trouble }));
}

#[test]
fn a_file_fires_once_for_each_arrival_and_its_path_goes_to_the_jobs() {
    let mut rig = Rig::new(QUEUE, &[]);
    schedule(&mut rig, flow(&[("a", ""), ("b", "a")], "[schedule]\nfile = \"/in/*\""));
    look(&mut rig, vec![found("/in/x", 1, false)]);
    assert_eq!(runs(&rig), 0, "it may still be written");
    for _ in 0..3 {
        look(&mut rig, vec![found("/in/x", 1, true)]);
    }
    restart(&mut rig);
    look(&mut rig, vec![found("/in/x", 1, true)]);
    assert_eq!(runs(&rig), 1);
    for job in [1, 2] {
        let environment = &rig.grid.ledger().job(JobId(job)).unwrap().spec().environment;
        assert!(environment.contains(&("FOREBAY_FILE".to_owned(), "/in/x".to_owned())));
    }
    // It is away for a while, as with its mount, and comes back as it was.
    look(&mut rig, vec![]);
    look(&mut rig, vec![found("/in/x", 1, true)]);
    assert_eq!(runs(&rig), 1);
    look(&mut rig, vec![found("/in/x", 2, true), found("/in/y", 1, true)]);
    assert_eq!(runs(&rig), 3);
    assert_eq!(rig.grid.ledger().flow(FlowId(3)).unwrap().file(), Some("/in/y"));
}

#[test]
fn a_schedule_is_removed_by_its_owner_or_an_admin_only() {
    let mut rig = Rig::new("[general]\nadmins = [\"root\"]\n[[queue]]\nname = \"q\"\n", &[]);
    rig.now = NEW_YEAR;
    schedule(&mut rig, flow(&[("a", "")], "[schedule]\ncron = \"@hourly\""));
    let remove = |rig: &mut Rig, by: &str| {
        let by = by.parse().unwrap();
        rig.send(Event::Flow(FlowEvent::Unschedule { by, schedule: ScheduleId(1) }))
    };
    assert!(refusal(&remove(&mut rig, "v")).contains("there is no schedule 1"));
    assert_eq!(remove(&mut rig, "root"), [Effect::Obeyed { tasks: 0 }]);
    assert!(refusal(&remove(&mut rig, "u")).contains("there is no schedule 1"));
    rig.pass(5 * HOUR);
    assert_eq!(runs(&rig), 0);
}

fn command(rig: &mut Rig, event: fn(UserName, ScheduleId) -> FlowEvent, by: &str) -> Vec<Effect> {
    rig.send(Event::Flow(event(by.parse().unwrap(), ScheduleId(1))))
}

fn hold(by: UserName, schedule: ScheduleId) -> FlowEvent {
    FlowEvent::Hold { by, schedule }
}

fn release(by: UserName, schedule: ScheduleId) -> FlowEvent {
    FlowEvent::Release { by, schedule }
}

#[test]
fn times_of_a_schedule_that_is_held_are_missed_as_if_nobody_had_been_there() {
    for (setting, expected) in [("", 0), ("catch_up = true", 1)] {
        let mut rig = Rig::new(QUEUE, &[]);
        rig.now = NEW_YEAR;
        let text = format!("[schedule]\ncron = \"@hourly\"\n{setting}");
        schedule(&mut rig, flow(&[("a", "")], &text));
        assert_eq!(command(&mut rig, hold, "u"), [Effect::Obeyed { tasks: 0 }]);
        rig.pass(HOUR * 2);
        restart(&mut rig);
        rig.pass(HOUR / 2);
        assert_eq!(runs(&rig), 0, "it is held, also after a restart");
        assert_eq!(rig.grid.next_wake(), Moment::NEVER);
        command(&mut rig, release, "u");
        rig.pass(0);
        assert_eq!(runs(&rig), expected);
        restart(&mut rig);
        rig.pass(HOUR / 2);
        assert_eq!(runs(&rig), expected + 1, "the next time is no other than ever");
    }
}

#[test]
fn a_schedule_that_is_released_before_its_time_has_missed_nothing() {
    let mut rig = Rig::new(QUEUE, &[]);
    rig.now = NEW_YEAR;
    schedule(&mut rig, flow(&[("a", "")], "[schedule]\ncron = \"@hourly\""));
    command(&mut rig, hold, "u");
    rig.pass(HOUR / 2);
    command(&mut rig, release, "u");
    rig.pass(HOUR / 2);
    let entry = rig.grid.ledger().schedules().next().unwrap().1;
    assert_eq!((runs(&rig), entry.passed()), (1, 0));
    assert_eq!(rig.grid.ledger().held(ScheduleId(1)), None);
}

#[test]
fn files_that_arrive_while_their_schedule_is_held_start_runs_once_it_is_released() {
    let mut rig = Rig::new(QUEUE, &[]);
    schedule(&mut rig, flow(&[("a", "")], "[schedule]\nfile = \"/in/*\""));
    command(&mut rig, hold, "u");
    look(&mut rig, vec![found("/in/x", 1, true)]);
    assert_eq!(runs(&rig), 0);
    command(&mut rig, release, "u");
    look(&mut rig, vec![found("/in/x", 1, true)]);
    assert_eq!(runs(&rig), 1);
}

#[test]
fn a_schedule_is_held_and_released_once_by_its_owner_or_an_admin_only() {
    let mut rig = Rig::new("[general]\nadmins = [\"root\"]\n[[queue]]\nname = \"q\"\n", &[]);
    rig.now = NEW_YEAR;
    assert!(refusal(&command(&mut rig, hold, "u")).contains("no schedule 1"));
    schedule(&mut rig, flow(&[("a", "")], "[schedule]\ncron = \"@hourly\""));
    assert!(refusal(&command(&mut rig, hold, "v")).contains("there is no schedule 1"));
    assert!(refusal(&command(&mut rig, release, "u")).contains("is not held"));
    command(&mut rig, hold, "root");
    assert!(refusal(&command(&mut rig, hold, "u")).contains("is already held"));
    assert!(refusal(&command(&mut rig, release, "v")).contains("there is no schedule 1"));
    assert_eq!(command(&mut rig, release, "u"), [Effect::Obeyed { tasks: 0 }]);
    // What is held can be removed.
    command(&mut rig, hold, "u");
    let remove = |by, schedule| FlowEvent::Unschedule { by, schedule };
    command(&mut rig, remove, "u");
    rig.pass(HOUR * 2);
    assert_eq!((runs(&rig), rig.grid.ledger().schedules().count()), (0, 0));
}
