//! Rules of flows, one by one: files, runs, schedules.

use crate::pieces::Pieces;
use crate::support::{Rig, launched, refusal};
use forebay_grid::event::Verb;
use forebay_grid::flow::event::{FlowEffect, FlowEvent, FlowState, Found, Stamp};
use forebay_grid::flow::file::Surroundings;
use forebay_grid::flow::{FlowId, FlowSpec, ScheduleId};
use forebay_grid::grid::StepState;
use forebay_grid::spec::Sharing;
use forebay_grid::task::Task;
use forebay_grid::vocabulary::{JobId, Moment, Target, TaskId, UserName};
use forebay_grid::{Effect, Event, Grid, Ledger};

const QUEUE: &str = "[[queue]]\nname = \"q\"\n";

fn read(text: &str) -> FlowSpec {
    FlowSpec::read(text, &Surroundings::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// A flow of jobs, each with what it comes after.
fn flow(jobs: &[(&str, &str)], more: &str) -> FlowSpec {
    let mut text = format!("[flow]\nname = \"f\"\n{more}\n");
    for (name, after) in jobs {
        let after = if after.is_empty() { "[]".to_owned() } else { format!("\"{after}\"") };
        text += &format!("[[job]]\nname = \"{name}\"\ncommand = \"true\"\nafter = {after}\n");
    }
    read(&text)
}

fn run(rig: &mut Rig, spec: FlowSpec) -> Vec<Effect> {
    let user = "u".parse().unwrap();
    rig.send(Event::Flow(FlowEvent::Run { user, spec: Box::new(spec), key: None }))
}

fn schedule(rig: &mut Rig, spec: FlowSpec) -> Vec<Effect> {
    let user = "u".parse().unwrap();
    rig.send(Event::Flow(FlowEvent::Schedule { user, spec: Box::new(spec) }))
}

fn states(rig: &Rig, flow: u64) -> Vec<StepState> {
    rig.grid.step_states(rig.grid.ledger().flow(FlowId(flow)).unwrap())
}

fn state(rig: &Rig, flow: u64) -> FlowState {
    rig.grid.ledger().flow(FlowId(flow)).unwrap().state()
}

fn exit(rig: &mut Rig, job: u64, code: u8) -> Vec<Effect> {
    rig.exit(TaskId::only(JobId(job)), code)
}

fn restart(rig: &mut Rig) {
    let mut pieces = Pieces::default();
    pieces.write(rig.grid.ledger(), &rig.records);
    assert_eq!(&pieces.read(), rig.grid.ledger());
    rig.grid = Grid::restore(Ledger::default(), &rig.records, Moment(rig.now)).unwrap();
}

fn runs(rig: &Rig) -> usize {
    rig.grid.ledger().flows().count()
}

#[test]
fn jobs_of_a_flow_ask_for_what_other_jobs_ask_for() {
    let text = "[flow]\nname = \"f\"\nproject = \"risk\"\ngroup = \"/risk\"\nwarn = \"USR1@5min\"\n\
                [[job]]\nname = \"a\"\ncommand = \"x\"\nresource = \"gpu:2,sas:1\"\nexclusive = true\n\
                feature = \"ssd && !slow\"\nprofile = \"sas\"\npre = \"module load x\"\nio_heavy = true\n\
                [[job]]\nname = \"b\"\ncommand = \"y\"\ngroup = \"/other\"\npost = \"z\"\n";
    let flow = read(text);
    let (a, b) = (&flow.steps[0], &flow.steps[1]);
    assert_eq!(a.resources.to_string(), "gpu:2,sas:1");
    assert_eq!(a.features.as_ref().unwrap().to_string(), "ssd && !slow");
    assert_eq!((a.sharing, b.sharing), (Sharing::Exclusive, Sharing::Shared));
    assert_eq!((a.pre.as_deref(), b.post.as_deref()), (Some("module load x"), Some("z")));
    assert!(a.profile.is_some() && a.io_heavy && !b.io_heavy);
    let groups = [a, b].map(|step| step.group.as_ref().unwrap().to_string());
    assert_eq!(groups, ["/risk", "/other"]);
    assert!([a, b].iter().all(|of| of.project == "risk" && of.warning.is_some()));
}

#[test]
fn a_bad_file_is_refused_with_the_line_and_the_name() {
    let head = "[flow]\nname = \"f\"\n";
    let a = "[[job]]\nname = \"a\"\ncommand = \"true\"\n";
    let b = "[[job]]\nname = \"b\"\ncommand = \"true\"\n";
    for (text, line, reason) in [
        (String::new(), None, "flow"),
        (head.to_owned(), Some(2), "no job"),
        (format!("[flow]\nname = \"a b\"\n{a}"), Some(2), "\"a b\""),
        (format!("[flow]\nname = \"7\"\n{a}"), Some(2), "must not be a number"),
        (format!("[flow]\nname = \"f\"\nnam = 1\n{a}"), Some(3), "unknown field `nam`"),
        (format!("{head}{a}{a}"), Some(7), "two jobs are named \"a\""),
        (format!("{head}[[job]]\nname = \"a\"\n"), Some(3), "command"),
        (format!("{head}[[job]]\nname = \"a\"\ncommand = []\n"), Some(5), "the command is missing"),
        (format!("{head}command = \"true\"\n{a}"), Some(3), "below a [[job]]"),
        (format!("{head}after = \"a\"\n{a}"), Some(3), "below a [[job]]"),
        (format!("{head}array = \"1-3\"\n{a}"), Some(3), "below a [[job]]"),
        (
            format!("{head}[job.b]\ncommand = \"true\"\n"),
            Some(3),
            "write [[job]] with name = \"b\"",
        ),
        (format!("{head}[job]\nname = \"a\"\ncommand = \"true\"\n"), Some(3), "write [[job]]"),
        (format!("{head}{a}{b}after = \"c\"\n"), Some(9), "no job \"c\""),
        (format!("{head}{a}{b}after = \"done(a\"\n"), Some(9), "expected"),
        (format!("{head}{a}{b}after = 7\n"), Some(9), "a string or a list of strings"),
        (format!("{head}{a}{b}after = \"12\"\n"), Some(9), "not a job number"),
        (format!("{head}{a}{b}after = \"a[3]\"\n"), Some(9), "no element 3"),
        (format!("{head}{a}{b}after = \"post_err(a)\"\n"), Some(9), "post_err"),
        (format!("{head}{a}{b}after = \"done(a[*])\"\n"), Some(9), "run again as a whole"),
        (format!("{head}{a}{b}after = \"singleton()\"\n"), Some(9), "name the step"),
        (format!("{head}{a}after = \"a\"\n"), Some(6), "a after a"),
        (format!("{head}{a}after = \"b\"\n{b}after = \"a\"\n"), Some(6), "a after b after a"),
        (format!("{head}{a}array = \"1-x\"\n"), Some(6), "array"),
        (format!("{head}{a}slots = 0\n"), Some(6), "at least 1"),
        (format!("{head}{a}time_limit = \"soon\"\n"), Some(6), "soon"),
        (format!("{head}{a}[schedule]\n"), Some(6), "one of cron, at and file"),
        (format!("{head}{a}[schedule]\ncron = \"0 6\"\n"), Some(7), "cron"),
        (format!("{head}{a}[schedule]\ncron = \"@daily\"\nzone = \"Mars\"\n"), Some(8), "Mars"),
        (format!("{head}{a}[schedule]\nat = \"2027-01-01\"\n"), Some(7), "day and time"),
        (
            format!("{head}{a}[schedule]\nat = \"2027-01-01T06:00Z\"\n"),
            Some(7),
            "must not contain a zone",
        ),
        (format!("{head}{a}[schedule]\nfile = \"in/*\"\n"), Some(7), "absolute"),
        (format!("{head}{a}[schedule]\nfile = \"/a/../b\"\n"), Some(7), ".."),
        (
            format!("{head}{a}[schedule]\nfile = \"/a\"\noverlap = false\n"),
            Some(8),
            "apply to cron and at only",
        ),
    ] {
        let error = FlowSpec::read(&text, &Surroundings::default()).unwrap_err();
        assert!(error.reason.contains(reason), "{text}: {error}");
        assert!(line.is_none() || error.line == line, "{text}: {error}");
    }
}

#[test]
fn what_a_flow_says_of_all_jobs_counts_for_each() {
    let big = format!("environment = {{ A = \"{}\" }}", "x".repeat(1 << 20));
    let jobs: Vec<String> = (0..9).map(|number| format!("j{number}")).collect();
    let mut text = format!("[flow]\nname = \"f\"\n{big}\n");
    for job in &jobs {
        text += &format!("[[job]]\nname = \"{job}\"\ncommand = \"true\"\n");
    }
    let error = FlowSpec::read(&text, &Surroundings::default()).unwrap_err();
    assert!(error.reason.contains("8388608 bytes together"), "{error}");
    assert_eq!(error.line, Some(25), "the eighth is one too many");
}

#[test]
fn jobs_take_what_the_flow_says_unless_they_say_otherwise() {
    let around = Surroundings {
        directory: "/place".to_owned(),
        umask: 0o22,
        environment: vec![("A".to_owned(), "0".to_owned()), ("B".to_owned(), "0".to_owned())],
    };
    let text = "[flow]\nname = \"f\"\nqueue = \"night\"\nslots = 2\ndirectory = \"data\"\n\
                environment = { A = \"1\", C = \"1\" }\n\
                [[job]]\nname = \"a\"\ncommand = [\"x\", \"y z\"]\n\
                [[job]]\nname = \"b\"\ncommand = \"x y\"\nqueue = \"day\"\nslots = 1\n\
                directory = \"/tmp\"\nenvironment = { A = \"2\" }\narray = \"1-9%3\"\n\
                after = [\"a\", \"ended(a)\"]\n";
    let flow = FlowSpec::read(text, &around).unwrap();
    let (a, b) = (&flow.steps[0], &flow.steps[1]);
    let text = |pairs: &[(String, String)]| {
        pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(a.command, ["x", "y z"]);
    assert_eq!(b.command, ["/bin/sh", "-c", "x y"]);
    assert_eq!((a.slots, b.slots, a.umask), (2, 1, 0o22));
    assert_eq!((a.directory.as_str(), b.directory.as_str()), ("/place/data", "/tmp"));
    assert_eq!(
        (a.queue.as_ref().unwrap().as_str(), b.queue.as_ref().unwrap().as_str()),
        ("night", "day")
    );
    assert_eq!(text(&a.environment), "A=1 B=0 C=1");
    assert_eq!(text(&b.environment), "A=2 B=0 C=1");
    assert_eq!(b.array.as_ref().unwrap().to_string(), "[1-9]%3");
    assert_eq!(b.depends.as_ref().unwrap().to_string(), "done(\"a\") && ended(\"a\")");
}

#[test]
fn a_refused_job_refuses_the_whole_flow() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let mut spec = flow(&[("a", ""), ("b", "a")], "");
    spec.steps[1].queue = Some("none".parse().unwrap());
    assert!(refusal(&run(&mut rig, spec)).contains("none"));
    assert_eq!((runs(&rig), rig.grid.ledger().jobs().count()), (0, 0));
    rig.configure("[general]\nuser_tasks_max = 3\n[[queue]]\nname = \"q\"\n");
    let four = flow(&[("a", ""), ("b", ""), ("c", ""), ("d", "")], "");
    assert!(refusal(&run(&mut rig, four)).contains("at most 3"));
    assert_eq!(rig.grid.ledger().jobs().count(), 0);
}

#[test]
fn a_flow_is_one_record_and_its_order_is_that_of_its_conditions() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let before = rig.records.len();
    let effects = run(&mut rig, flow(&[("z", "x*"), ("x1", ""), ("x2", "x1")], ""));
    let accepted = Effect::Flow(FlowEffect::Accepted { flow: FlowId(1) });
    assert_eq!(effects.first(), Some(&accepted));
    assert_eq!(launched(&effects).len(), 1);
    // The start, and that x1 was given to a host.
    assert_eq!(rig.records.len() - before, 2);
    let names: Vec<&str> = rig
        .grid
        .ledger()
        .flow(FlowId(1))
        .unwrap()
        .steps()
        .iter()
        .map(|step| step.name.as_str())
        .collect();
    assert_eq!(names, ["x1", "x2", "z"]);
    exit(&mut rig, 1, 0);
    exit(&mut rig, 2, 0);
    let effects = exit(&mut rig, 3, 0);
    assert!(effects.contains(&Effect::Flow(FlowEffect::Finished { flow: FlowId(1) })));
    assert_eq!(state(&rig, 1), FlowState::Done);
}

#[test]
fn what_cannot_start_any_more_is_skipped_and_the_flow_fails() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a"), ("c", "b"), ("tidy", "ended(a)")], ""));
    exit(&mut rig, 1, 3);
    use StepState::{Done, Failed, Running, Skipped};
    assert_eq!(states(&rig, 1), [Failed, Skipped, Skipped, Running]);
    assert_eq!(state(&rig, 1), FlowState::Running);
    exit(&mut rig, 4, 0);
    assert_eq!(states(&rig, 1), [Failed, Skipped, Skipped, Done]);
    assert_eq!(state(&rig, 1), FlowState::Failed);
    let run = rig.grid.ledger().flow(FlowId(1)).unwrap();
    assert_eq!(rig.grid.failed_steps(run), ["a"]);
}

#[test]
fn a_step_for_failures_that_never_came_is_skipped_and_the_flow_is_done() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("mend", "exit(a)"), ("more", "mend")], ""));
    exit(&mut rig, 1, 0);
    use StepState::{Done, Skipped};
    assert_eq!(states(&rig, 1), [Done, Skipped, Skipped]);
    assert_eq!(state(&rig, 1), FlowState::Done);
    // A count that is not reached is a fault, even if nothing failed.
    run(&mut rig, flow(&[("a", ""), ("b", "numdone(a, >= 2)")], ""));
    exit(&mut rig, 4, 0);
    assert_eq!(state(&rig, 2), FlowState::Failed);
    let second = rig.grid.ledger().flow(FlowId(2)).unwrap();
    assert_eq!(rig.grid.failed_steps(second), ["b"]);
}

#[test]
fn a_rerun_starts_failed_elements_and_what_comes_after_them() {
    let mut rig = Rig::new(QUEUE, &[("h1", 8)]);
    let mut spec = flow(&[("a", ""), ("load", "a"), ("other", "a"), ("reduce", "load")], "");
    spec.steps[1].array = Some("[1-3]".parse().unwrap());
    run(&mut rig, spec);
    exit(&mut rig, 1, 0);
    for (index, code) in [(1, 0), (2, 9), (3, 0)] {
        rig.exit(TaskId { job: JobId(2), index }, code);
    }
    let rerun = |rig: &mut Rig, by: &str| {
        let by = by.parse().unwrap();
        rig.send(Event::Flow(FlowEvent::Rerun { by, flow: FlowId(1) }))
    };
    assert!(refusal(&rerun(&mut rig, "u")).contains("is still running"));
    exit(&mut rig, 3, 0);
    assert_eq!(state(&rig, 1), FlowState::Failed);
    assert!(refusal(&rerun(&mut rig, "v")).contains("there is no flow 1"));
    let effects = rerun(&mut rig, "u");
    assert_eq!(effects.first(), Some(&Effect::Obeyed { tasks: 2 }));
    let tasks: Vec<TaskId> = launched(&effects).into_iter().map(|(task, ..)| task).collect();
    assert_eq!(tasks, [TaskId { job: JobId(2), index: 2 }]);
    rig.exit(tasks[0], 0);
    exit(&mut rig, 4, 0);
    assert_eq!(state(&rig, 1), FlowState::Done);
    assert!(refusal(&rerun(&mut rig, "u")).contains("succeeded"));
    assert_eq!(rig.grid.ledger().flow(FlowId(1)).unwrap().reruns(), 1);
}

#[test]
fn what_was_skipped_runs_when_a_job_before_it_is_requeued_and_done() {
    let mut rig = Rig::new(QUEUE, &[("h1", 8)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a"), ("c", "b")], ""));
    exit(&mut rig, 1, 1);
    assert_eq!(state(&rig, 1), FlowState::Failed);
    rig.command("u", JobId(1), Verb::Requeue);
    assert_eq!(state(&rig, 1), FlowState::Running);
    use StepState::{Done, Pending, Running};
    assert_eq!(states(&rig, 1), [Running, Pending, Pending]);
    for job in 1..=3 {
        exit(&mut rig, job, 0);
    }
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done; 3], FlowState::Done));
}

#[test]
fn a_killed_flow_ends_with_all_its_jobs() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a"), ("c", "ended(b)")], ""));
    let kill = |rig: &mut Rig, by: &str| {
        let by = by.parse().unwrap();
        rig.send(Event::Flow(FlowEvent::Kill { by, flow: FlowId(1) }))
    };
    assert!(refusal(&kill(&mut rig, "v")).contains("there is no flow 1"));
    assert_eq!(kill(&mut rig, "u").first(), Some(&Effect::Obeyed { tasks: 3 }));
    assert_eq!(state(&rig, 1), FlowState::Running);
    restart(&mut rig);
    let killed = rig.grid.ledger().task(TaskId::only(JobId(1))).and_then(Task::run).unwrap();
    assert!(killed.ending.is_some());
    exit(&mut rig, 1, 143);
    assert_eq!(states(&rig, 1), [StepState::Killed; 3]);
    assert_eq!(state(&rig, 1), FlowState::Killed);
    assert!(refusal(&kill(&mut rig, "u")).contains("has ended"));
}

fn requeue(rig: &mut Rig, target: impl Into<Target>) -> Vec<TaskId> {
    let effects = rig.command("u", target, Verb::Requeue);
    launched(&effects).into_iter().map(|(task, ..)| task).collect()
}

/// A flow that was killed while `a` and `b` ran. `a` has not ended yet. `c`, an array of two, was requeued, and skipped
/// because `b` had been killed. Then `b` was requeued, so `c` could start, and `b` runs.
fn killed_flow_with_a_skipped_step() -> Rig {
    use StepState::{Killed, Running, Skipped};
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let mut spec = flow(&[("a", ""), ("b", ""), ("c", "b")], "");
    spec.steps[2].array = Some("[1-2]".parse().unwrap());
    run(&mut rig, spec);
    rig.send(Event::Flow(FlowEvent::Kill { by: "u".parse().unwrap(), flow: FlowId(1) }));
    exit(&mut rig, 2, 143);
    requeue(&mut rig, JobId(3));
    assert_eq!(states(&rig, 1), [Running, Killed, Skipped]);
    assert_eq!(requeue(&mut rig, JobId(2)), [TaskId::only(JobId(2))]);
    assert_eq!(states(&rig, 1), [Running, Running, Skipped]);
    rig
}

#[test]
fn a_skipped_step_that_its_user_requeued_in_a_killed_flow_is_a_step_like_others_again() {
    use StepState::{Done, Failed, Pending, Running};
    for (code, step, end) in [(0, Done, FlowState::Done), (1, Failed, FlowState::Failed)] {
        let mut rig = killed_flow_with_a_skipped_step();
        assert!(requeue(&mut rig, JobId(3)).is_empty());
        assert_eq!(states(&rig, 1), [Running, Running, Pending]);
        assert_eq!(launched(&exit(&mut rig, 2, 0)).len(), 2);
        for index in [1, 2] {
            rig.exit(TaskId { job: JobId(3), index }, code);
        }
        exit(&mut rig, 1, 143);
        assert_eq!((states(&rig, 1)[2], state(&rig, 1)), (step, FlowState::Killed));
        // The run continues and is no longer killed. `c` has run, so it does not run again.
        assert_eq!(requeue(&mut rig, JobId(1)), [TaskId::only(JobId(1))]);
        exit(&mut rig, 1, 0);
        restart(&mut rig);
        assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done, Done, step], end));
    }
}

#[test]
fn only_elements_of_a_skipped_step_that_were_requeued_start_in_a_killed_flow() {
    let mut rig = killed_flow_with_a_skipped_step();
    let [first, second] = [1, 2].map(|index| TaskId { job: JobId(3), index });
    requeue(&mut rig, first);
    let effects = exit(&mut rig, 2, 0);
    assert_eq!(launched(&effects).into_iter().map(|(task, ..)| task).collect::<Vec<_>>(), [first]);
    rig.exit(first, 0);
    exit(&mut rig, 1, 143);
    assert_eq!(states(&rig, 1)[2], StepState::Killed);
    // Nor does the second element start once the run continues: nobody requeued it.
    assert_eq!(requeue(&mut rig, JobId(1)), [TaskId::only(JobId(1))]);
    assert!(matches!(rig.grid.ledger().task(second), Some(Task::Finished(_))));
}

#[test]
fn a_skipped_array_of_which_one_element_is_requeued_in_vain_is_skipped_as_before() {
    use StepState::{Done, Running, Skipped};
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let mut spec = flow(&[("a", ""), ("b", "exit(a)")], "");
    spec.steps[1].array = Some("[1-2]".parse().unwrap());
    run(&mut rig, spec);
    exit(&mut rig, 1, 0);
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done, Skipped], FlowState::Done));
    let [first, second] = [1, 2].map(|index| TaskId { job: JobId(2), index });
    assert!(requeue(&mut rig, first).is_empty());
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done, Skipped], FlowState::Done));
    // So all of it starts once its condition holds, and it is a step like others then.
    requeue(&mut rig, JobId(1));
    assert_eq!(launched(&exit(&mut rig, 1, 1)).len(), 2);
    assert_eq!(states(&rig, 1)[1], Running);
    rig.exit(first, 0);
    rig.exit(second, 0);
    assert_eq!(states(&rig, 1)[1], Done);
    // Of one that has run nothing is skipped when an element is requeued in vain.
    requeue(&mut rig, JobId(1));
    exit(&mut rig, 1, 0);
    assert!(requeue(&mut rig, first).is_empty());
    assert_eq!(states(&rig, 1)[1], StepState::Killed);
    restart(&mut rig);
}

#[test]
fn a_flow_is_forgotten_with_its_jobs_when_the_last_is_old_enough() {
    let settings = "[general]\nfinished_age = \"1 h\"\n[[queue]]\nname = \"q\"\n";
    let mut rig = Rig::new(settings, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a")], ""));
    exit(&mut rig, 1, 0);
    rig.load("h1", forebay_grid::config::Load::default());
    rig.pass(50_000);
    // Much later than the first ended, the second does.
    for _ in 0..80 {
        rig.load("h1", forebay_grid::config::Load::default());
        rig.pass(60_000);
    }
    assert_eq!(rig.grid.ledger().jobs().count(), 2, "a run that goes on keeps its jobs");
    assert!(rig.grid.next_wake() > Moment(rig.now), "nothing is due");
    exit(&mut rig, 2, 0);
    rig.pass(3_500_000);
    assert_eq!(runs(&rig), 1);
    rig.pass(200_000);
    assert_eq!((runs(&rig), rig.grid.ledger().jobs().count()), (0, 0));
    restart(&mut rig);
    assert_eq!(runs(&rig), 0);
}

#[test]
fn too_many_finished_tasks_take_whole_flows_with_them() {
    let settings = "[general]\nfinished_max = 5\n[[queue]]\nname = \"q\"\n";
    let mut rig = Rig::new(settings, &[("h1", 4)]);
    for flow_number in 0..4 {
        run(&mut rig, flow(&[("a", ""), ("b", "a")], ""));
        exit(&mut rig, flow_number * 2 + 1, 0);
        exit(&mut rig, flow_number * 2 + 2, 0);
    }
    let left: Vec<u64> = rig.grid.ledger().flows().map(|(id, _)| id.0).collect();
    assert_eq!(left, [3, 4]);
    assert_eq!(rig.grid.ledger().jobs().count(), 4);
}

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
