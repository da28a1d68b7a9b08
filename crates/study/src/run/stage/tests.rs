use std::collections::VecDeque;
use std::sync::Arc;

use forebay_base::time::SystemClock;
use forebay_workload::mix::{JobKind, SpaceNeed};
use forebay_workload::program::{Job, Program};

use super::*;

#[test]
fn the_last_words_of_a_refused_command_line_are_the_cause_and_not_the_hint() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let said = "error: invalid value '7168' for '--page-size': must be a multiple of 4 KiB\n\n\
                For more information, try '--help'.\n";
    std::fs::write(&log, said).unwrap();
    assert!(last_words(&log).unwrap().starts_with("invalid value '7168'"));
    std::fs::write(&log, "one\nno space left\n\n").unwrap();
    assert_eq!(last_words(&log).unwrap(), "no space left");
}

/// Starts one job at each wait, and ends it at the next.
#[derive(Default)]
struct OneAfterAnother {
    waiting: VecDeque<usize>,
    running: Option<usize>,
    order: Vec<usize>,
    fails: bool,
    /// The job that a signal ends.
    ended_by_signal: Option<usize>,
}

impl OneAfterAnother {
    fn ended(number: usize, exit: Exit) -> Event {
        let at = SystemClock.instant();
        Event::Ended { number, at, exit, host: None, usage: Box::default(), last: None }
    }
}

impl Launcher for OneAfterAnother {
    fn set_slots(&mut self, _nodes: u32, _concurrent: u32) {}

    fn submit(&mut self, launch: Launch) -> Result<()> {
        self.waiting.push_back(launch.number);
        Ok(())
    }

    fn wait(&mut self, _limit: Duration) -> Result<Vec<Event>> {
        if self.fails {
            return Err(Error::Space { missing: "a launcher that fails".to_owned() });
        }
        let mut events = Vec::new();
        if let Some(number) = self.running.take() {
            let hit = self.ended_by_signal == Some(number);
            let exit = if hit { Exit::Signal { signal: 2 } } else { Exit::Success };
            events.push(Self::ended(number, exit));
        }
        if let Some(number) = self.waiting.pop_front() {
            self.order.push(number);
            self.running = Some(number);
            let at = SystemClock.instant();
            events.push(Event::Started { number, at, pid: Some(100 + number as u32) });
        }
        Ok(events)
    }

    fn stop(&mut self) -> Vec<Event> {
        let running = self.running.take().map(|n| Self::ended(n, Exit::Signal { signal: 15 }));
        let waiting = self.waiting.drain(..).map(|n| Self::ended(n, Exit::NotStarted));
        running.into_iter().chain(waiting.collect::<Vec<_>>()).collect()
    }
}

/// Counts what it hears, and interrupts once so many jobs are done.
#[derive(Default)]
struct Ear {
    started: Vec<u32>,
    ended: Vec<u32>,
    last: JobCounts,
    unseen_bytes: u64,
    interrupt_at: Option<u32>,
}

impl Listener for Ear {
    fn job_started(&mut self, pid: u32, _at: Instant) {
        self.started.push(pid);
    }

    fn job_ended(&mut self, pid: u32, _at: Instant, _last: Option<&Counters>) {
        self.ended.push(pid);
    }

    fn job_unseen(&mut self, job: &Unseen<'_>) {
        self.unseen_bytes += job.last.map_or(0, |last| last.read_bytes);
    }

    fn turn(&mut self, counts: JobCounts) {
        self.last = counts;
    }

    fn interrupted(&self) -> Option<String> {
        (Some(self.last.done) == self.interrupt_at).then(|| "enough".to_owned())
    }
}

/// Jobs that each follow the one named.
fn stage(after: &[Option<usize>]) -> PlannedStage {
    let program = Arc::new(Program { name: "none".into(), steps: Vec::new() });
    let job = |(number, &after): (usize, &Option<usize>)| PlannedJob {
        job: Job {
            name: format!("job-{number}"),
            class: "job".into(),
            number: number as u64,
            count: 1,
        },
        kind: JobKind::Io,
        node: 0,
        session: None,
        due_seconds: 0.0,
        after,
        program: Arc::clone(&program),
        space: SpaceNeed::default(),
    };
    PlannedStage {
        name: "all".into(),
        nodes: 1,
        sessions: None,
        concurrent: 1,
        jobs: after.iter().enumerate().map(job).collect(),
    }
}

fn drive(
    stage: &PlannedStage,
    launcher: &mut OneAfterAnother,
    ear: &mut Ear,
) -> Result<(Stage, Option<String>)> {
    let folder = tempfile::tempdir().unwrap();
    let command = |job: &PlannedJob, _: &Path| Ok(vec![job.job.name.clone().into()]);
    let orders = Orders {
        command: &command,
        folder: folder.path(),
        clock: &SystemClock,
        begin: SystemClock.instant(),
    };
    run(stage, &orders, launcher, ear)
}

#[test]
fn a_job_is_submitted_only_after_the_one_it_follows() {
    let (mut launcher, mut ear) = (OneAfterAnother::default(), Ear::default());
    let stage = stage(&[None, Some(0), Some(1), None]);
    let (stage, stopped) = drive(&stage, &mut launcher, &mut ear).unwrap();
    assert_eq!((launcher.order, stopped), (vec![0, 3, 1, 2], None));
    assert!(stage.jobs.iter().all(|job| job.exit == Exit::Success));
    for (job, before) in [(1, 0), (2, 1)] {
        let (job, before) = (&stage.jobs[job], &stage.jobs[before]);
        assert!(job.start_seconds >= before.end_seconds);
        assert_eq!(Some(job.due_seconds), before.end_seconds, "due when the one before has ended");
    }
    assert_eq!((ear.started.len(), ear.ended.len()), (4, 4));
    let expected = JobCounts { waiting: 0, running: 0, done: 4, failed: 0, total: 4 };
    assert_eq!(ear.last, expected);
}

#[test]
fn an_interrupt_ends_what_runs_and_starts_nothing_more() {
    let mut launcher = OneAfterAnother::default();
    let mut ear = Ear { interrupt_at: Some(1), ..Ear::default() };
    let stage = stage(&[None, None, Some(1), None]);
    let (stage, stopped) = drive(&stage, &mut launcher, &mut ear).unwrap();
    assert_eq!(stopped.as_deref(), Some("enough"));
    let exits: Vec<&Exit> = stage.jobs.iter().map(|job| &job.exit).collect();
    let (ended, never) = (&Exit::Signal { signal: 15 }, &Exit::NotStarted);
    assert_eq!(exits, [&Exit::Success, ended, never, never]);
    assert!(stage.jobs[3].start_seconds.is_none() && stage.jobs[1].end_seconds.is_some());
    assert_eq!(ear.started, ear.ended, "nothing is left that was started");
}

#[test]
fn an_interrupt_that_ends_the_last_job_as_well_is_no_failure_of_the_job() {
    let mut launcher = OneAfterAnother { ended_by_signal: Some(1), ..OneAfterAnother::default() };
    let mut ear = Ear { interrupt_at: Some(2), ..Ear::default() };
    let (_, stopped) = drive(&stage(&[None, None]), &mut launcher, &mut ear).unwrap();
    assert_eq!(stopped.as_deref(), Some("enough"));
}

#[test]
fn an_error_of_the_launcher_stops_everything() {
    let mut launcher = OneAfterAnother { fails: true, ..OneAfterAnother::default() };
    let result = drive(&stage(&[None, None]), &mut launcher, &mut Ear::default());
    assert!(matches!(result, Err(Error::Space { .. })));
    assert!(launcher.waiting.is_empty(), "nothing waits in the launcher any more");
}

#[test]
fn records_cut_off_by_a_kill_are_read_up_to_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.steps");
    let whole = r#"{"kind":"sort","start_seconds":0.5,"resources":{"step":"sort","real_seconds":1.0,"user_seconds":0.5,"system_seconds":0.1,"peak_memory_bytes":1,"peak_memory_scope":"step","minor_faults":0,"major_faults":0,"voluntary_switches":0,"involuntary_switches":0,"read_bytes":1,"written_bytes":2,"rows":3},"outcome":{"rows":3}}"#;
    std::fs::write(&path, format!("{whole}\n{}", &whole[..100])).unwrap();
    assert_eq!(step_records(&path).len(), 1);
    assert!(step_records(&folder.path().join("missing")).is_empty());
}
