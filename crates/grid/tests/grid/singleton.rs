//! Jobs of which one at a time runs: `singleton()`.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::event::Verb;
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::modify::{Changes, Set};
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, TaskId};
use forebay_grid::{Effect, Event};

fn named(name: &str) -> JobSpec {
    JobSpec { name: name.to_owned(), ..spec() }
}

fn singleton(name: &str) -> JobSpec {
    JobSpec { depends: Some("singleton()".parse().unwrap()), ..named(name) }
}

impl Rig {
    fn on_hosts(&self, jobs: &[JobId]) -> Vec<usize> {
        (0..jobs.len()).filter(|place| self.host_of(jobs[*place]).is_some()).collect()
    }
}

#[test]
fn one_job_of_a_name_runs_at_a_time_in_the_order_of_their_submission() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let first = rig.submit(named("load"));
    let jobs = [first, rig.submit(singleton("load")), rig.submit(singleton("load"))];
    let other = rig.submit(singleton("other"));
    assert_eq!(rig.on_hosts(&jobs), [0]);
    assert!(rig.host_of(other).is_some());
    // That of another user with this name is another.
    let effects = rig.submit_as("v", singleton("load"));
    assert_eq!(launched(&effects).len(), 1, "{effects:?}");
    let Some(Explanation::Waits { reasons, .. }) = rig.grid.explain(TaskId::only(jobs[2])) else {
        panic!("it waits")
    };
    let said: Vec<String> = reasons.iter().map(Reason::to_string).collect();
    assert_eq!(said, [format!("it waits for the end of job {first} with the same name")]);
    // The death of one that waits does not let the next one start beside the first.
    rig.command("u", jobs[1], Verb::Kill);
    assert_eq!(rig.on_hosts(&jobs), [0]);
    // A journal that is read again keeps it.
    rig.restart();
    let runs = vec![forebay_grid::event::RunReport {
        task: TaskId::only(first),
        attempt: forebay_grid::vocabulary::Attempt(1),
        status: forebay_grid::event::RunStatus::Running,
    }];
    rig.join("a", 10, forebay_grid::event::Memory::Kept, runs);
    assert_eq!(rig.on_hosts(&jobs), [0]);
    rig.exit(TaskId::only(first), 1);
    assert_eq!(rig.on_hosts(&jobs), [2]);
    // One that starts again waits for one that came later and runs.
    rig.command("u", jobs[1], Verb::Requeue);
    assert_eq!(rig.on_hosts(&jobs), [2]);
    rig.exit(TaskId::only(jobs[2]), 0);
    assert_eq!(rig.on_hosts(&jobs), [1]);
}

#[test]
fn a_later_job_without_the_condition_that_runs_is_waited_for_and_a_new_name_lets_a_job_go() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let held = rig.submit(JobSpec { held: true, ..singleton("x") });
    let later = rig.submit(named("x"));
    assert!(rig.host_of(later).is_some());
    rig.command("u", held, Verb::Release);
    assert_eq!(rig.host_of(held), None);
    let changes = Changes { name: Some("y".to_owned()), ..Changes::default() };
    rig.send(Event::Modify { by: "u".parse().unwrap(), job: held, changes: Box::new(changes) });
    assert!(rig.host_of(held).is_some());
    // So does a condition that is taken away. Until then the job needs a name.
    let waits = rig.submit(singleton("x"));
    assert_eq!(rig.host_of(waits), None);
    let changes = Changes { name: Some(String::new()), ..Changes::default() };
    let event = Event::Modify { by: "u".parse().unwrap(), job: waits, changes: Box::new(changes) };
    let said = refusal(&rig.send(event));
    assert!(said.contains("name it (-J)"), "{said}");
    let changes = Changes { depends: Some(Set::Nothing), ..Changes::default() };
    rig.send(Event::Modify { by: "u".parse().unwrap(), job: waits, changes: Box::new(changes) });
    assert!(rig.host_of(waits).is_some());
}

#[test]
fn ten_thousand_jobs_of_a_name_wait_for_each_other() {
    const JOBS: usize = 10_000;
    let mut rig = Rig::new("[general]\nuser_tasks_max = 100000\n", &[("a", 10)]);
    // Without the checks of the rig, which look at all jobs with each event.
    let mut out = forebay_grid::Outcome::default();
    let mut send = |rig: &mut Rig, event: Event| {
        rig.grid.apply(forebay_grid::vocabulary::Moment(rig.now), event, &mut out);
        std::mem::take(&mut out.effects)
    };
    let user = || "u".parse().unwrap();
    let submit = || Event::Submit { user: user(), spec: Box::new(singleton("load")), key: None };
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        let effects = send(&mut rig, submit());
        let Some(Effect::Accepted { job }) = effects.first() else { panic!("{effects:?}") };
        jobs.push(*job);
    }
    for pair in jobs[..4].windows(2) {
        assert!(rig.host_of(pair[0]).is_some() && rig.host_of(pair[1]).is_none());
        rig.exit(TaskId::only(pair[0]), 0);
    }
    // From the last one on: none of them is named by others.
    for job in jobs[4..].iter().rev() {
        let target = (*job).into();
        send(&mut rig, Event::Command { by: user(), target, verb: Verb::Kill });
    }
    rig.exit(TaskId::only(jobs[3]), 0);
    let again = rig.submit(singleton("load"));
    assert!(rig.host_of(again).is_some());
}

#[test]
fn the_condition_joins_with_others_and_needs_a_name() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let first = rig.submit(named("x"));
    let depends = Some(format!("started({first}) || singleton()").parse().unwrap());
    let either = rig.submit(JobSpec { depends, ..named("x") });
    assert_eq!(rig.host_of(either), None);
    rig.start(TaskId::only(first));
    assert!(rig.host_of(either).is_some());
    let said = refusal(&rig.submit_as("u", singleton("")));
    assert!(said.contains("name it (-J)"), "{said}");
    for bad in ["singleton(1)", "singleton(", "singleton() 1"] {
        assert!(bad.parse::<forebay_grid::parse::dependency::Dependency>().is_err(), "{bad}");
    }
}

fn depends(text: &str) -> Changes {
    Changes { depends: Some(Set::To(text.parse().unwrap())), ..Changes::default() }
}

fn name(name: &str) -> Changes {
    Changes { name: Some(name.to_owned()), ..Changes::default() }
}

fn held(spec: JobSpec) -> JobSpec {
    JobSpec { held: true, ..spec }
}

#[test]
fn jobs_that_would_wait_for_each_other_through_singleton_are_refused_with_the_cycle() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let first = rig.submit(held(named("load")));
    let later = rig.submit(singleton("load"));
    let between = rig.submit(JobSpec {
        depends: Some(format!("ended({later})").parse().unwrap()),
        ..named("other")
    });
    // Directly, and through another one.
    let said = refusal(&rig.changed(first, depends(&format!("done({later})"))));
    assert_eq!(
        said,
        format!(
            "job {first} would wait for itself: it waits for job {later}, which waits for job {first} \
             (same name, singleton())"
        )
    );
    let said = refusal(&rig.changed(first, depends(&format!("done({between})"))));
    assert!(
        said.contains(&format!("it waits for job {between}, which waits for job {later}")),
        "{said}"
    );
    // The condition may also come to the later one.
    let early = rig.submit(held(named("late")));
    let late = rig.submit(held(named("late")));
    rig.changed(early, depends(&format!("done({late})")));
    let said = refusal(&rig.changed(late, depends("singleton()")));
    assert!(said.contains(&format!("job {late} would wait for itself: it waits for job {early}")));
    // Others wait as they did.
    rig.command("u", first, Verb::Release);
    rig.exit(TaskId::only(first), 0);
    assert!(rig.host_of(later).is_some());
}

#[test]
fn a_name_by_which_jobs_would_wait_for_each_other_is_refused() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let first = rig.submit(held(named("x")));
    let later = rig.submit(singleton("load"));
    assert!(rig.host_of(later).is_some());
    let last = rig.submit(singleton("load"));
    rig.changed(first, depends(&format!("done({last})")));
    let said = refusal(&rig.changed(first, name("load")));
    assert!(said.contains("would wait for itself"), "{said}");
    rig.changed(first, name("y"));
    // A job with the condition that gets the name of an earlier one that waits for it.
    let said = refusal(&rig.changed(last, name("y")));
    assert!(said.contains(&format!("job {first} (same name")), "{said}");
    // Away from the name there is nothing to refuse, and one that has ended is in nobody's way.
    rig.changed(first, Changes { depends: Some(Set::Nothing), ..Changes::default() });
    rig.changed(first, name("load"));
    rig.command("u", first, Verb::Kill);
    rig.exit(TaskId::only(later), 0);
    assert!(rig.host_of(last).is_some());
}

#[test]
fn a_requeue_by_which_jobs_would_wait_for_each_other_is_refused() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let first = rig.submit(held(named("load")));
    let later = rig.submit(held(named("load")));
    rig.changed(first, depends(&format!("ended({later})")));
    rig.command("u", first, Verb::Kill);
    // One that has ended waits for nothing, and nobody for it.
    rig.changed(later, depends("singleton()"));
    let said = refusal(&rig.command("u", first, Verb::Requeue));
    assert!(said.contains(&format!("job {first} would wait for itself")), "{said}");
    rig.command("u", later, Verb::Release);
    rig.exit(TaskId::only(later), 0);
    rig.command("u", first, Verb::Requeue);
    assert!(rig.host_of(first).is_some());
}

#[test]
fn a_cycle_through_many_jobs_of_one_name_is_named() {
    const JOBS: u64 = 10_000;
    let mut rig = Rig::new("[general]\nuser_tasks_max = 100000\n", &[("a", 1)]);
    let mut out = forebay_grid::Outcome::default();
    for _ in 0..JOBS {
        let (user, spec) = ("u".parse().unwrap(), Box::new(held(singleton("load"))));
        let event = Event::Submit { user, spec, key: None };
        rig.grid.apply(forebay_grid::vocabulary::Moment(rig.now), event, &mut out);
    }
    let said = refusal(&rig.changed(JobId(1), depends(&format!("done({JOBS})"))));
    assert!(
        said.contains(&format!("it waits for job {JOBS}, which waits for job 1 (same name")),
        "{said}"
    );
}

/// One change of the jobs of a user: a submission, or one of an earlier job, by remainder.
#[derive(Clone, Debug)]
enum Step {
    Submit { name: bool, singleton: bool, on: Option<u8> },
    Depends { job: u8, singleton: bool, on: Option<u8> },
    Rename { job: u8, name: bool },
    Kill(u8),
    Requeue(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let on = || proptest::option::of(any::<u8>());
    prop_oneof![
        3 => (any::<bool>(), any::<bool>(), on())
            .prop_map(|(name, singleton, on)| Step::Submit { name, singleton, on }),
        4 => (any::<u8>(), any::<bool>(), on())
            .prop_map(|(job, singleton, on)| Step::Depends { job, singleton, on }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(job, name)| Step::Rename { job, name }),
        1 => any::<u8>().prop_map(Step::Kill),
        1 => any::<u8>().prop_map(Step::Requeue),
    ]
}

/// A condition on another job, on those with the same name, or on both.
fn condition(singleton: bool, on: Option<JobId>) -> Option<String> {
    let parts = [singleton.then(|| "singleton()".to_owned()), on.map(|on| format!("ended({on})"))];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" && "))
}

/// What each job that has not ended waits for, from what its user wrote.
fn waits(rig: &Rig) -> BTreeMap<JobId, Vec<JobId>> {
    let ledger = rig.grid.ledger();
    let unfinished = || ledger.jobs().filter(|(_, job)| !job.tally().is_finished());
    let of = |id: JobId, spec: &JobSpec| -> Vec<JobId> {
        let text = spec.depends.as_ref().map(ToString::to_string).unwrap_or_default();
        let same = |(other, job): &(JobId, &forebay_grid::Job)| {
            *other < id && job.spec().name == spec.name && text.contains("singleton()")
        };
        let named = unfinished().filter(|(other, _)| text.contains(&format!("ended({other})")));
        named.chain(unfinished().filter(same)).map(|(other, _)| other).collect()
    };
    unfinished().map(|(id, job)| (id, of(id, job.spec()))).collect()
}

/// Whether jobs wait for each other: what is left when those that wait for none of the others are taken away.
fn has_cycle(mut waits: BTreeMap<JobId, Vec<JobId>>) -> bool {
    loop {
        let left: BTreeSet<JobId> = waits.keys().copied().collect();
        waits.retain(|_, on| on.iter().any(|other| left.contains(other)));
        if waits.len() == left.len() {
            return !left.is_empty();
        }
    }
}

/// Applies a step; whether it was refused because a job would wait for itself.
fn apply(rig: &mut Rig, jobs: &mut Vec<JobId>, step: &Step) -> bool {
    let name_of = |name: bool| if name { "x" } else { "y" }.to_owned();
    let pick = |jobs: &[JobId], of: u8| jobs.get(usize::from(of) % jobs.len().max(1)).copied();
    let effects = match *step {
        Step::Submit { name, singleton, on } => {
            let text = condition(singleton, on.and_then(|on| pick(jobs, on)));
            let depends = text.map(|text| text.parse().unwrap());
            jobs.push(rig.submit(JobSpec { depends, ..held(named(&name_of(name))) }));
            return false;
        }
        Step::Depends { job, singleton, on } => {
            let Some(job) = pick(jobs, job) else { return false };
            let Some(text) = condition(singleton, on.and_then(|on| pick(jobs, on))) else {
                return false;
            };
            rig.changed(job, depends(&text))
        }
        Step::Rename { job, name: to } => {
            let Some(job) = pick(jobs, job) else { return false };
            rig.changed(job, name(&name_of(to)))
        }
        Step::Kill(job) => {
            let Some(job) = pick(jobs, job) else { return false };
            rig.command("u", job, Verb::Kill)
        }
        Step::Requeue(job) => {
            let Some(job) = pick(jobs, job) else { return false };
            rig.command("u", job, Verb::Requeue)
        }
    };
    matches!(effects.first(), Some(Effect::Rejected(refused)) if refused.to_string().contains("wait for itself"))
}

/// Whether jobs would wait for each other after a step.
fn would_cycle(rig: &Rig, jobs: &[JobId], step: &Step) -> bool {
    let mut after: BTreeMap<JobId, Vec<JobId>> = waits(rig);
    let pick = |of: u8| jobs[usize::from(of) % jobs.len()];
    let ledger = rig.grid.ledger();
    // The job as it would be, among those that have not ended then.
    let (id, name, text) = match *step {
        Step::Depends { job, singleton, on } => {
            let id = pick(job);
            let text = condition(singleton, on.map(pick)).unwrap_or_default();
            (id, ledger.job(id).unwrap().spec().name.clone(), text)
        }
        Step::Rename { job, name } => {
            let id = pick(job);
            let depends = ledger.job(id).unwrap().spec().depends.as_ref();
            let text = depends.map(ToString::to_string).unwrap_or_default();
            (id, if name { "x" } else { "y" }.to_owned(), text)
        }
        Step::Requeue(job) => {
            let id = pick(job);
            let spec = ledger.job(id).unwrap().spec();
            (
                id,
                spec.name.clone(),
                spec.depends.as_ref().map(ToString::to_string).unwrap_or_default(),
            )
        }
        Step::Submit { .. } | Step::Kill(_) => return false,
    };
    after.insert(id, Vec::new());
    let known: Vec<JobId> = after.keys().copied().collect();
    let name_of = |other: JobId| {
        if other == id { name.clone() } else { ledger.job(other).unwrap().spec().name.clone() }
    };
    let text_of = |other: JobId| {
        if other == id {
            return text.clone();
        }
        ledger
            .job(other)
            .unwrap()
            .spec()
            .depends
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    for (from, on) in &mut after {
        let text = text_of(*from);
        let asks = |other: &&JobId| {
            let same = **other < *from && name_of(**other) == name_of(*from);
            text.contains(&format!("ended({other})")) || same && text.contains("singleton()")
        };
        *on = known.iter().filter(asks).copied().collect();
    }
    has_cycle(after)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn jobs_never_wait_for_each_other_and_nothing_else_is_refused(steps in vec(step(), 1..25)) {
        let mut rig = Rig::new("[general]\ndependency_never = \"keep\"\n", &[("a", 10)]);
        let mut jobs = Vec::new();
        for step in steps {
            let expected = !jobs.is_empty() && would_cycle(&rig, &jobs, &step);
            let refused = apply(&mut rig, &mut jobs, &step);
            prop_assert!(!has_cycle(waits(&rig)), "{step:?}");
            if refused {
                prop_assert!(expected, "{step:?} is refused without a cycle");
            }
        }
    }
}
