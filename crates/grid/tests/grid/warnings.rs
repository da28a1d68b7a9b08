//! Signals that jobs get before they are ended for their time limit or their deadline.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::event::{Memory, RunReport, RunStatus, Verb};
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::modify::{Changes, Set};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::vocabulary::{Attempt, HostName, Moment, TaskId};
use forebay_grid::{Effect, Event};

/// Hosts of these tests say nothing for long.
const PATIENT: &str = "[general]\nlease = \"10 d\"\nhost_timeout = \"20 d\"\n";

fn warned_at(limit: u64, warning: &str) -> JobSpec {
    JobSpec {
        time_limit: Some(Period::seconds(limit)),
        warning: Some(warning.parse().unwrap()),
        ..spec()
    }
}

fn warned(effects: &[Effect]) -> Vec<TaskId> {
    let of = |effect: &Effect| match effect {
        Effect::Warn { task, .. } => Some(*task),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

impl Rig {
    fn running(&mut self, spec: JobSpec) -> TaskId {
        let task = TaskId::only(self.submit(spec));
        self.start(task);
        task
    }

    fn warning_of(&self, task: TaskId) -> Reason {
        let Some(Explanation::Placed(placement)) = self.grid.explain(task) else {
            panic!("it runs")
        };
        let mut reasons = placement.reasons.into_iter();
        reasons.find(|reason| matches!(reason, Reason::Warning { .. })).expect("it has a warning")
    }

    fn back(&mut self, host: &str, task: TaskId) {
        let report = RunReport { task, attempt: Attempt(1), status: RunStatus::Running };
        self.join(host, 4, Memory::Kept, vec![report]);
    }
}

#[test]
fn a_job_is_warned_once_so_long_before_its_time_limit() {
    let mut rig = Rig::new(PATIENT, &[("a", 4)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    let due = Moment(rig.now + 240_000);
    assert!(rig.grid.next_wake() <= due);
    let said = rig.warning_of(task).to_string();
    assert!(said.contains("1970-01-01T00:04:01Z") && said.contains("USR1@1 min"), "{said}");
    assert!(warned(&rig.pass(239_999)).is_empty());
    let effects = rig.pass(1);
    assert_eq!(warned(&effects), [task]);
    assert!(rig.warning_of(task).to_string().starts_with("it was warned"));
    assert!(warned(&rig.pass(1000)).is_empty(), "once");
    // The limit holds as before.
    let effects = rig.pass(59_000);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Kill { .. })), "{effects:?}");
}

#[test]
fn a_warning_that_is_due_at_once_comes_when_the_job_starts_and_one_without_an_end_never() {
    let mut rig = Rig::new(PATIENT, &[("a", 4)]);
    let short = rig.running(warned_at(30, "USR1@1 min"));
    assert_eq!(warned(&rig.pass(0)), [short]);
    let warning = Some("USR1".parse().unwrap());
    let endless = rig.running(JobSpec { warning, ..spec() });
    assert!(warned(&rig.pass(86_400_000)).is_empty());
    assert!(rig.warning_of(endless).to_string().contains("neither a time limit nor a deadline"));
    // A deadline is an end as well, and the earlier one counts.
    let deadline = Some(Moment(rig.now + 100_000));
    let until = rig.running(JobSpec { deadline, ..warned_at(3600, "TERM@10 s") });
    assert!(warned(&rig.pass(89_999)).is_empty());
    assert_eq!(warned(&rig.pass(1)), [until]);
}

#[test]
fn time_in_which_a_job_is_suspended_moves_its_warning() {
    let mut rig = Rig::new(PATIENT, &[("a", 4)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    rig.pass(100_000);
    rig.command("u", task.job, Verb::Hold);
    assert!(warned(&rig.pass(500_000)).is_empty());
    assert!(matches!(rig.warning_of(task), Reason::Warning { at: None, sent: false, .. }));
    rig.command("u", task.job, Verb::Release);
    assert!(warned(&rig.pass(139_999)).is_empty());
    assert_eq!(warned(&rig.pass(1)), [task]);
}

#[test]
fn another_limit_is_warned_of_anew_and_a_host_that_is_known_to_have_warned_is_not_told_again() {
    let mut rig = Rig::new(PATIENT, &[("a", 4)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    assert_eq!(warned(&rig.pass(240_000)), [task]);
    rig.restart();
    rig.back("a", task);
    assert!(warned(&rig.pass(1)).is_empty(), "it knows that it has warned");
    rig.pass(2000);
    rig.load("a", forebay_grid::config::Load::default());
    rig.back("a", task);
    // A change of something else is no reason to warn again, a longer limit is one.
    rig.changed(task.job, Changes { project: Some("x".to_owned()), ..Changes::default() });
    assert!(warned(&rig.pass(1)).is_empty());
    let longer = Some(Set::To(Period::seconds(600)));
    rig.changed(task.job, Changes { time_limit: longer, ..Changes::default() });
    assert!(warned(&rig.pass(297_000)).is_empty());
    assert_eq!(warned(&rig.pass(1000)), [task]);
    rig.restart();
}

#[test]
fn a_controller_that_takes_over_sends_the_warnings_again_that_the_one_before_may_not_have_sent() {
    let mut rig = Rig::new(PATIENT, &[("a", 5)]);
    let tasks = [(); 3].map(|()| rig.running(warned_at(300, "USR1@1 min")));
    let later = rig.running(warned_at(900, "USR1@1 min"));
    assert_eq!(warned(&rig.pass(240_000)), tasks);
    rig.command("u", tasks[2].job, Verb::Kill);
    // The warnings are recorded, and nobody knows whether the host got them. It says which of its jobs run.
    rig.restart();
    let report = |task, status| RunReport { task, attempt: Attempt(1), status };
    let join = |rig: &mut Rig| {
        let ended = RunStatus::Exited(Exit::Code(0), None);
        let runs = [tasks[0], tasks[2], later].map(|task| report(task, RunStatus::Running));
        let runs = [&runs[..], &[report(tasks[1], ended)]].concat();
        rig.join("a", 5, Memory::Kept, runs)
    };
    let effects = join(&mut rig);
    assert_eq!(warned(&effects), [tasks[0]], "of those that run and are not being ended");
    assert!(comes_first(&effects), "{effects:?}");
    // Also by a controller after that one, and over another connection; not once the host was heard of later.
    rig.restart();
    assert_eq!(warned(&join(&mut rig)), [tasks[0]]);
    assert_eq!(warned(&join(&mut rig)), [tasks[0]]);
    rig.pass(2000);
    rig.load("a", forebay_grid::config::Load::default());
    assert!(warned(&join(&mut rig)).is_empty());
}

#[test]
fn a_host_that_cannot_be_reached_is_told_of_a_warning_when_it_is_back() {
    let mut rig = Rig::new("[general]\nlease = \"10 min\"\nhost_timeout = \"20 min\"", &[("a", 4)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    let host: HostName = "a".parse().unwrap();
    rig.pass(230_000);
    rig.send(Event::HostLost { host });
    assert!(warned(&rig.pass(20_000)).is_empty());
    rig.back("a", task);
    assert_eq!(warned(&rig.pass(1)), [task]);
    assert!(warned(&rig.pass(1)).is_empty());
}

/// Whether a warning comes before what lets the agent go on, by which it knows that it may be sent again.
fn comes_first(effects: &[Effect]) -> bool {
    let place = |wanted: fn(&Effect) -> bool| effects.iter().position(wanted);
    let granted = place(|effect| matches!(effect, Effect::GrantLease { .. }));
    place(|effect| matches!(effect, Effect::Warn { .. })) < granted
}

#[test]
fn a_warning_on_a_connection_that_is_broken_is_sent_again_over_the_next_one_while_the_job_runs() {
    let mut rig = Rig::new("[general]\nlease = \"10 min\"\nhost_timeout = \"20 min\"", &[("a", 4)]);
    let tasks = [(); 3].map(|()| rig.running(warned_at(300, "USR1@1 min")));
    assert_eq!(warned(&rig.pass(240_000)), tasks);
    rig.pass(20_000);
    // Nothing was heard since. The second has ended meanwhile, of which the controller hears now; the third is being ended.
    rig.command("u", tasks[2].job, Verb::Kill);
    let report = |task, status| RunReport { task, attempt: Attempt(1), status };
    let ended = RunStatus::Exited(Exit::Code(0), None);
    let runs = vec![
        report(tasks[0], RunStatus::Running),
        report(tasks[1], ended),
        report(tasks[2], RunStatus::Running),
    ];
    let effects = rig.join("a", 4, Memory::Kept, runs);
    assert_eq!(warned(&effects), [tasks[0]]);
    assert!(comes_first(&effects), "{effects:?}");
    // Also if this connection is no better; not once the host was heard of after that.
    let again = |rig: &mut Rig| {
        let runs = vec![report(tasks[0], RunStatus::Running)];
        warned(&rig.join("a", 4, Memory::Kept, runs))
    };
    assert_eq!(again(&mut rig), [tasks[0]]);
    rig.pass(2000);
    rig.load("a", forebay_grid::config::Load::default());
    assert!(again(&mut rig).is_empty());
}

/// Of which end a warning is.
fn ends(effects: &[Effect]) -> Vec<Moment> {
    let of = |effect: &Effect| match effect {
        Effect::Warn { end, .. } => Some(end.unwrap()),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

#[test]
fn a_second_warning_says_that_it_is_of_another_end_and_one_that_is_sent_again_that_it_is_not() {
    let mut rig = Rig::new(PATIENT, &[("a", 4)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    rig.pass(100_000);
    rig.command("u", task.job, Verb::Hold);
    rig.pass(50_000);
    rig.command("u", task.job, Verb::Release);
    let first = ends(&rig.pass(140_000));
    // Suspension moves the end and makes no other one of it, nor does another controller.
    rig.command("u", task.job, Verb::Hold);
    rig.pass(5_000);
    rig.command("u", task.job, Verb::Release);
    rig.restart();
    let back = |rig: &mut Rig| {
        let report = RunReport { task, attempt: Attempt(1), status: RunStatus::Running };
        ends(&rig.join("a", 4, Memory::Kept, vec![report]))
    };
    assert_eq!((back(&mut rig), first.len()), (first.clone(), 1));
    let longer = Some(Set::To(Period::seconds(600)));
    rig.changed(task.job, Changes { time_limit: longer, ..Changes::default() });
    let second = ends(&rig.pass(300_000));
    assert_eq!(second.len(), 1);
    assert_ne!(second, first);
    assert_eq!(back(&mut rig), second);
}

#[test]
fn a_warning_of_which_the_host_was_heard_later_is_not_sent_again() {
    let mut rig = Rig::new("[general]\nlease = \"10 min\"\nhost_timeout = \"20 min\"", &[("a", 4)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    assert_eq!(warned(&rig.pass(240_000)), [task]);
    // What was sent before the warning came says nothing.
    rig.pass(100);
    rig.load("a", forebay_grid::config::Load::default());
    let runs = || vec![RunReport { task, attempt: Attempt(1), status: RunStatus::Running }];
    assert_eq!(warned(&rig.join("a", 4, Memory::Kept, runs())), [task]);
    rig.pass(1000);
    rig.load("a", forebay_grid::config::Load::default());
    assert!(warned(&rig.join("a", 4, Memory::Kept, runs())).is_empty());
}

#[test]
fn the_warning_of_a_job_that_runs_cannot_be_changed_that_of_one_that_waits_can() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    let waits = rig.submit(spec());
    let changes =
        Changes { warning: Some(Set::To("INT@5 s".parse().unwrap())), ..Changes::default() };
    assert!(refusal(&rig.changed(task.job, changes.clone())).contains("its start only"));
    rig.changed(waits, changes);
    let warning = rig.grid.ledger().job(waits).unwrap().spec().warning;
    assert_eq!(warning.unwrap().to_string(), "INT@5 s");
    assert_eq!(launched(&rig.exit(task, 0)).len(), 1);
}

#[test]
fn a_deadline_behind_the_time_limit_is_no_other_end() {
    let mut rig = Rig::new(PATIENT, &[("a", 4)]);
    let task = rig.running(warned_at(300, "USR1@1 min"));
    assert_eq!(warned(&rig.pass(240_000)), [task]);
    let until = |at| Changes { deadline: Some(Set::To(Moment(at))), ..Changes::default() };
    rig.changed(task.job, until(rig.now + 600_000));
    assert!(warned(&rig.pass(1)).is_empty());
    // One before it is.
    rig.changed(task.job, until(rig.now + 30_000));
    assert_eq!(warned(&rig.pass(1)), [task]);
    rig.restart();
}

#[test]
fn the_warning_of_an_array_cannot_be_changed_while_an_element_runs() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let array = Some("[1-2]".parse().unwrap());
    let job = rig.submit(JobSpec { array, ..warned_at(300, "USR1@1 min") });
    let changes =
        Changes { warning: Some(Set::To("INT@5 s".parse().unwrap())), ..Changes::default() };
    assert!(refusal(&rig.changed(job, changes)).contains("cannot be changed"));
}
