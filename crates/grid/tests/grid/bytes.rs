//! What jobs bring together has bounds, whatever becomes of them.

use crate::support::{Rig, refusal, spec};
use forebay_grid::event::Verb;
use forebay_grid::flow::FlowSpec;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, TaskId};
use forebay_grid::{Effect, Event};

const BOUNDS: &str = "[general]\njobs_bytes_max = \"1 MiB\"\nuser_jobs_bytes_max = \"600 KiB\"\n\
                      finished_bytes_max = \"250 KiB\"";

/// A job that brings 100,000 bytes and a little more.
fn large() -> JobSpec {
    JobSpec { command: vec!["x".repeat(100_000)], ..spec() }
}

/// Submits until no more is taken: what was, and the reason.
fn fill(rig: &mut Rig, user: &str, spec: impl Fn() -> JobSpec) -> (Vec<JobId>, String) {
    let mut taken = Vec::new();
    loop {
        let effects = rig.submit_as(user, spec());
        match effects.first() {
            Some(Effect::Accepted { job }) => taken.push(*job),
            _ => return (taken, refusal(&effects)),
        }
        assert!(taken.len() < 10_000, "there is no bound");
    }
}

#[test]
fn unfinished_jobs_of_a_user_and_of_all_bring_so_many_bytes_together() {
    let mut rig = Rig::new(BOUNDS, &[]);
    let (own, reason) = fill(&mut rig, "u", large);
    assert_eq!(own.len(), 6);
    assert!(reason.contains("user_jobs_bytes_max") && reason.contains("600 KiB"), "{reason}");
    let (others, reason) = fill(&mut rig, "v", large);
    assert_eq!(others.len(), 4);
    assert!(reason.contains("(jobs_bytes_max"), "{reason}");
    rig.restart();
    assert_eq!(fill(&mut rig, "u", large).0, []);
    // What has ended makes room, and is known as far as its own bound goes.
    for job in &own {
        rig.command("u", *job, Verb::Kill);
    }
    rig.pass(1);
    let known = |rig: &Rig, jobs: &[JobId]| {
        jobs.iter().filter(|job| rig.grid.ledger().job(**job).is_some()).count()
    };
    assert_eq!((known(&rig, &own), known(&rig, &others)), (2, 4));
    let (again, _) = fill(&mut rig, "u", large);
    assert_eq!(again.len(), 6);
    let refused = rig.command("u", own[5], Verb::Requeue);
    assert!(refusal(&refused).contains("user_jobs_bytes_max"), "{refused:?}");
    rig.command("u", again[0], Verb::Kill);
    assert_eq!(rig.command("u", own[5], Verb::Requeue), [Effect::Obeyed { tasks: 1 }]);
    rig.restart();
    assert_eq!(fill(&mut rig, "u", large).0, []);
}

#[test]
fn jobs_that_are_kept_for_others_count_as_unfinished() {
    let mut rig = Rig::new(BOUNDS, &[("a", 1)]);
    for _ in 0..4 {
        let job = rig.submit(JobSpec { name: "old".to_owned(), ..large() });
        rig.exit(TaskId::only(job), 0);
        let depends = Some(format!("ended({job})").parse().unwrap());
        rig.submit(JobSpec { depends, held: true, ..spec() });
    }
    rig.pass(1);
    rig.pass(1);
    let (more, _) = fill(&mut rig, "u", large);
    assert!(more.len() <= 4, "{} more beside what is kept", more.len());
    let known = |rig: &Rig| rig.grid.ledger().jobs().count();
    let before = known(&rig);
    rig.restart();
    rig.pass(1);
    assert_eq!((known(&rig), fill(&mut rig, "u", large).0), (before, Vec::new()));
}

#[test]
fn an_environment_counts_once_for_all_jobs_of_a_user_that_have_it() {
    let mut rig = Rig::new(BOUNDS, &[]);
    let with = |value: String| {
        let environment = vec![("A".to_owned(), value)].into();
        JobSpec { environment, held: true, ..spec() }
    };
    let alike = || with("x".repeat(50_000));
    for _ in 0..200 {
        rig.submit(alike());
    }
    let number = std::cell::Cell::new(0);
    let other = || {
        number.set(number.get() + 1);
        with(format!("{}{}", number.get(), "x".repeat(50_000)))
    };
    assert!(fill(&mut rig, "u", other).0.len() < 12);
    rig.restart();
    assert_eq!(fill(&mut rig, "u", other).0, []);
}

#[test]
fn conditions_count_with_the_jobs_that_they_name() {
    let mut rig = Rig::new(BOUNDS, &[]);
    for _ in 0..200 {
        rig.submit(JobSpec { name: "load".to_owned(), held: true, ..spec() });
    }
    let on_all = || JobSpec { depends: Some("ended(load*)".parse().unwrap()), ..spec() };
    let (waiting, _) = fill(&mut rig, "u", on_all);
    assert!((10..30).contains(&waiting.len()), "{}", waiting.len());
}

#[test]
fn a_flow_counts_as_a_whole_and_its_conditions_have_a_bound() {
    let mut rig = Rig::new(BOUNDS, &[]);
    let step = |name: String, after: Option<&str>| JobSpec {
        name,
        depends: after.map(|text| text.parse().unwrap()),
        ..spec()
    };
    let flow = |first: u32, calls: usize| {
        let after = vec!["ended(s*)"; calls].join(" && ");
        let mut steps: Vec<JobSpec> = (0..first).map(|n| step(format!("s{n}"), None)).collect();
        steps.extend((0..first).map(|n| step(format!("t{n}"), Some(&after))));
        FlowSpec { name: "f".to_owned(), steps, trigger: None }
    };
    let run = |rig: &mut Rig, spec: FlowSpec| {
        let (user, spec) = ("u".parse().unwrap(), Box::new(spec));
        rig.send(Event::Flow(forebay_grid::flow::event::FlowEvent::Run { user, spec, key: None }))
    };
    let refused = refusal(&run(&mut rig, flow(500, 20)));
    assert!(refused.contains("more than 200000 conditions"), "{refused}");
    let refused = refusal(&run(&mut rig, flow(80, 1)));
    assert!(refused.contains("user_jobs_bytes_max"), "{refused}");
    assert_eq!(rig.grid.ledger().jobs().count(), 0);
    assert!(!matches!(run(&mut rig, flow(20, 1))[..], [Effect::Rejected(_)]));
}
