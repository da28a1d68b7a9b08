//! What would become of a job, without submitting it.

use crate::support::{Rig, spec};
use forebay_grid::grid::Trial;
use forebay_grid::parse::period::Period;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{Moment, TaskId};

impl Rig {
    fn tried(&self, spec: JobSpec) -> Trial {
        self.grid.try_out(&"u".parse().unwrap(), spec).unwrap()
    }
}

fn slots(slots: u32) -> JobSpec {
    JobSpec { slots, ..spec() }
}

#[test]
fn a_trial_names_the_host_that_has_room_first_and_changes_nothing() {
    let mut rig = Rig::new("", &[("a", 2), ("b", 4)]);
    let hour = Some(Period::seconds(3600));
    let short = rig.submit(JobSpec { time_limit: Some(Period::seconds(600)), ..slots(4) });
    let long = rig.submit(JobSpec { time_limit: hour, ..slots(2) });
    rig.start(TaskId::only(short));
    rig.start(TaskId::only(long));
    assert_eq!(
        (rig.host_of(short).as_deref(), rig.host_of(long).as_deref()),
        (Some("b"), Some("a"))
    );
    let before = rig.grid.ledger().clone();
    let trial = rig.tried(slots(1));
    assert_eq!(trial.host.unwrap().as_str(), "b");
    assert_eq!(trial.start, Some(Moment(rig.now + 600_000)));
    // Not before it may begin.
    let later = Some(Moment(rig.now + 900_000));
    assert_eq!(rig.tried(JobSpec { begin: later, ..slots(1) }).start, later);
    rig.exit(TaskId::only(long), 0);
    let trial = rig.tried(slots(2));
    assert_eq!((trial.host.unwrap().as_str(), trial.start), ("a", Some(Moment(rig.now))));
    assert_eq!(before.jobs().count(), rig.grid.ledger().jobs().count());
}

#[test]
fn a_trial_says_no_time_that_nobody_knows_and_refuses_what_would_be_refused() {
    let mut rig = Rig::new("[general]\nuser_slots_max = 3\n", &[("a", 4)]);
    let job = rig.submit(slots(2));
    rig.start(TaskId::only(job));
    // Of a job without a limit nobody knows when it ends.
    let unknown = Trial { queue: "normal".parse().unwrap(), host: None, start: None };
    assert_eq!(rig.tried(slots(3)), unknown);
    assert_eq!(rig.tried(JobSpec { held: true, ..spec() }), unknown);
    let waits = JobSpec { depends: Some("done(1)".parse().unwrap()), ..spec() };
    assert_eq!(rig.tried(waits), unknown);
    assert_eq!(rig.tried(spec()).start, Some(Moment(rig.now)));
    assert_eq!(rig.tried(slots(2)), unknown, "its user has 2 of 3 slots");
    assert!(rig.grid.try_out(&"u".parse().unwrap(), slots(9)).is_err());
}

#[test]
fn a_trial_does_not_pass_jobs_that_wait_in_front() {
    let mut rig = Rig::new("", &[("a", 2), ("b", 2)]);
    let limited = |slots| JobSpec { time_limit: Some(Period::seconds(600)), slots, ..spec() };
    for _ in 0..2 {
        let job = rig.submit(limited(2));
        rig.start(TaskId::only(job));
    }
    assert_eq!(rig.tried(slots(2)).start, Some(Moment(rig.now + 600_000)));
    // One that the user wants less is passed.
    rig.submit(JobSpec { priority: -1, ..limited(2) });
    assert!(rig.tried(slots(2)).start.is_some());
    assert_eq!(rig.tried(JobSpec { priority: -1, ..slots(2) }).start, None);
    assert_eq!(rig.grid.try_out(&"w".parse().unwrap(), slots(2)).unwrap().start, None);
}

#[test]
fn the_limit_of_a_queue_counts_for_a_new_user() {
    let config = "[[queue]]\nname = \"normal\"\nslots_max = 3\n";
    let mut rig = Rig::new(config, &[("a", 8)]);
    let job = rig.submit(slots(2));
    rig.start(TaskId::only(job));
    let new = "new".parse().unwrap();
    assert_eq!(rig.grid.try_out(&new, slots(2)).unwrap().start, None);
    assert_eq!(rig.grid.try_out(&new, slots(1)).unwrap().start, Some(Moment(rig.now)));
}
