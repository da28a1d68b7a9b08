//! What one user can take of what all share: of unfinished jobs, and of finished ones that are known.

use crate::support::{Rig, refusal, spec};
use forebay_grid::config::{Config, General};
use forebay_grid::event::Verb;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::JobId;

/// A rig that may hold many more tasks than one user.
fn rig(settings: &str) -> Rig {
    Rig::new(&format!("[general]\n{settings}"), &[("a", 1)])
}

impl Rig {
    /// A job of a user that has ended, an array if there is one.
    fn ended(&mut self, user: &str, spec: JobSpec) -> JobId {
        self.now += 10;
        let job = self.grid.ledger().jobs().next_back().map_or(1, |(id, _)| id.0 + 1);
        self.submit_as(user, JobSpec { held: true, ..spec });
        self.now += 10;
        self.command(user, JobId(job), Verb::Kill);
        JobId(job)
    }

    fn is_known(&self, job: JobId) -> bool {
        self.grid.ledger().job(job).is_some()
    }
}

fn array(elements: u32) -> JobSpec {
    JobSpec { array: Some(format!("[1-{elements}]").parse().unwrap()), ..spec() }
}

#[test]
fn finished_jobs_of_one_user_evict_only_their_own() {
    let mut rig = rig("finished_max = 1000\nuser_finished_max = 400");
    let of_ann: Vec<JobId> = (0..3).map(|_| rig.ended("ann", spec())).collect();
    let first = rig.ended("bob", array(250));
    // More than his limit: his own oldest goes.
    let second = rig.ended("bob", array(251));
    rig.pass(1);
    assert!(!rig.is_known(first) && rig.is_known(second));
    // More than all may have, and nobody more than one may: of those who have the most.
    let of_carol = rig.ended("carol", array(399));
    let of_dora = rig.ended("dora", array(398));
    rig.pass(1);
    assert!(!rig.is_known(of_carol), "hers are the most");
    assert!(rig.is_known(second) && rig.is_known(of_dora));
    assert!(of_ann.iter().all(|job| rig.is_known(*job)), "others' few went for his many");
    // A dependency on what is known is met after all that.
    let on = JobSpec { depends: Some("ended(1)".parse().unwrap()), ..spec() };
    rig.submit_as("ann", on);
    rig.restart();
    assert!(of_ann.iter().all(|job| rig.is_known(*job)));
}

#[test]
fn bytes_of_finished_jobs_of_one_user_evict_only_their_own() {
    let mut rig = rig("finished_bytes_max = \"900 KiB\"\nuser_finished_bytes_max = \"300 KiB\"");
    let scripted = || JobSpec { script: Some("x".repeat(100 << 10)), ..spec() };
    let of_ann = rig.ended("ann", scripted());
    let of_bob: Vec<JobId> = (0..6).map(|_| rig.ended("bob", scripted())).collect();
    rig.pass(1);
    assert!(rig.is_known(of_ann));
    let known = of_bob.iter().filter(|job| rig.is_known(**job)).count();
    assert_eq!(known, 2, "three would be more than 300 KiB, with the rest of the job");
    assert!(of_bob[4..].iter().all(|job| rig.is_known(*job)), "the latest stay");
}

#[test]
fn one_user_cannot_take_all_tasks_of_the_grid_by_default() {
    let general = General::default();
    assert!(general.user_tasks_max <= general.tasks_max / 2);
    assert!(general.user_finished_max <= general.finished_max / 2);
    let mut rig = Rig::new("", &[]);
    let refused = refusal(&rig.submit_as("bob", array(999_000)));
    for part in ["250000", "999000", "user_tasks_max", "0 now"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    rig.submit_as("bob", array(250_000));
    let refused = refusal(&rig.submit_as("bob", spec()));
    assert!(refused.contains("250000 now"), "{refused}");
    rig.submit_as("ann", array(1000));
    assert_eq!(rig.grid.ledger().jobs().count(), 2);
}

#[test]
fn limits_that_nothing_fits_are_refused() {
    for (settings, part) in [
        ("user_tasks_max = 0", "user_tasks_max = 0"),
        ("user_messages_bytes_max = \"1 MiB\"", "at least 16 MiB"),
        ("journal_reserve = \"1 TiB\"", "journal_reserve"),
    ] {
        let fault = Config::read(&format!("[general]\n{settings}\n")).unwrap_err();
        assert!(fault.line == Some(2) && fault.reason.contains(part), "{fault}");
    }
}
