//! A grid with hosts that obey, for tests of single rules.
#![allow(dead_code, reason = "each test crate uses its part")]

use forebay_grid::config::{Config, Dispatch, HostEngine, Load};
use forebay_grid::event::{Joined, Memory, RunReport, Verb};
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::hosts::Facts;
use forebay_grid::modify::Changes;
use forebay_grid::spec::{Exit, JobSpec, Usage};
use forebay_grid::task::Task;
use forebay_grid::vocabulary::{Attempt, JobId, Moment, Target, TaskId};
use forebay_grid::{Effect, Event, Grid, Ledger, Outcome};

pub struct Rig {
    pub grid: Grid,
    pub now: u64,
    pub records: Vec<forebay_grid::journal::Record>,
}

impl Rig {
    /// A grid with settings and hosts, each with its cores.
    pub fn new(config: &str, hosts: &[(&str, u32)]) -> Rig {
        let grid = Grid::restore(Ledger::default(), [], Moment(0)).unwrap();
        let mut rig = Rig { grid, now: 1000, records: Vec::new() };
        rig.configure(config);
        for (host, cores) in hosts {
            rig.join(host, *cores, Memory::Kept, Vec::new());
        }
        rig
    }

    pub fn configure(&mut self, config: &str) {
        let config = Config::read(config).unwrap_or_else(|error| panic!("{error}"));
        self.send(Event::Configured(Box::new(config)));
    }

    pub fn join(
        &mut self,
        host: &str,
        cores: u32,
        memory: Memory,
        runs: Vec<RunReport>,
    ) -> Vec<Effect> {
        let listed = &self.grid.ledger().config().hosts;
        let engine = listed.iter().find(|listed| listed.name.as_str() == host);
        let engine = engine.map_or(HostEngine::Agent, |listed| listed.engine);
        self.join_as(engine, (host, cores), memory, runs)
    }

    /// Joins with another engine than the settings say.
    pub fn join_as(
        &mut self,
        engine: HostEngine,
        (host, cores): (&str, u32),
        memory: Memory,
        runs: Vec<RunReport>,
    ) -> Vec<Effect> {
        let facts = Facts { cores, memory_bytes: 8 << 30 };
        let joined = Joined { host: host.parse().unwrap(), facts, memory, engine, runs };
        self.send(Event::HostJoined(Box::new(joined)))
    }

    pub fn send(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Outcome::default();
        self.grid.apply(Moment(self.now), event, &mut out);
        self.records.extend(out.records);
        self.check_nothing_is_overlooked();
        out.effects
    }

    /// Where jobs start with events, whatever can start has started, unless the grid wants to look again by itself: a change that
    /// lets a job start and causes no round would leave the job waiting for no reason.
    fn check_nothing_is_overlooked(&self) {
        let ledger = self.grid.ledger();
        let is_due = self.grid.next_wake() <= Moment(self.now + 10);
        if ledger.config().general.dispatch != Dispatch::Event || is_due {
            return;
        }
        for (job, entry) in ledger.jobs() {
            let waits = entry.tasks().find(|(_, task)| matches!(task, Task::Pending(_)));
            let Some((index, _)) = waits else { continue };
            let Some(Explanation::Waits { reasons, hosts }) =
                self.grid.explain(TaskId { job, index })
            else {
                panic!("job {job} waits and that is not explained");
            };
            let overlooked = |reason: &Reason| matches!(reason, Reason::NextRound { .. });
            assert!(!reasons.iter().any(overlooked), "job {job} is overlooked: {hosts:?}");
        }
    }

    /// The controller is killed and starts again from its journal.
    pub fn restart(&mut self) {
        let grid = Grid::restore(Ledger::default(), &self.records, Moment(self.now)).unwrap();
        assert_eq!(grid.ledger(), self.grid.ledger());
        self.grid = grid;
    }

    pub fn pass(&mut self, ms: u64) -> Vec<Effect> {
        self.now += ms;
        self.send(Event::Tick)
    }

    pub fn submit_as(&mut self, user: &str, spec: JobSpec) -> Vec<Effect> {
        self.send(Event::Submit { user: user.parse().unwrap(), spec: Box::new(spec), key: None })
    }

    /// Submits for user `u`; the job and where it was started at once.
    pub fn submit(&mut self, spec: JobSpec) -> JobId {
        match self.submit_as("u", spec).first() {
            Some(Effect::Accepted { job }) => *job,
            other => panic!("{other:?}"),
        }
    }

    pub fn exit(&mut self, task: TaskId, code: u8) -> Vec<Effect> {
        let run = self.grid.ledger().task(task).unwrap().run().expect("it is on a host").clone();
        let host = self.grid.ledger().host_name(run.host).clone();
        let usage = Usage {
            real_seconds: 2.0,
            user_seconds: 1.5,
            io_wait_seconds: Some(0.25),
            ..Usage::default()
        };
        let (attempt, exit) = (run.attempt, Exit::Code(code));
        self.send(Event::Exited { host, task, attempt, exit, usage: Some(Box::new(usage)) })
    }

    pub fn start(&mut self, task: TaskId) -> Vec<Effect> {
        let run = self.grid.ledger().task(task).unwrap().run().expect("it is on a host").clone();
        let host = self.grid.ledger().host_name(run.host).clone();
        self.send(Event::Started { host, task, attempt: run.attempt })
    }

    pub fn command(&mut self, by: &str, target: impl Into<Target>, verb: Verb) -> Vec<Effect> {
        self.send(Event::Command { by: by.parse().unwrap(), target: target.into(), verb })
    }

    /// Changes a job of user `u`.
    pub fn changed(&mut self, job: JobId, changes: Changes) -> Vec<Effect> {
        let by = "u".parse().unwrap();
        self.send(Event::Modify { by, job, changes: Box::new(changes) })
    }

    pub fn load(&mut self, host: &str, load: Load) -> Vec<Effect> {
        self.send(Event::HostLoad { host: host.parse().unwrap(), load })
    }

    /// The host on which a job's only task is, if it is on one.
    pub fn host_of(&self, job: JobId) -> Option<String> {
        let run = self.grid.ledger().task(TaskId::only(job))?.run()?;
        Some(self.grid.ledger().host_name(run.host).to_string())
    }
}

pub fn spec() -> JobSpec {
    JobSpec { command: vec!["true".to_owned()], ..JobSpec::default() }
}

/// Tasks that were given to hosts, with the hosts, in order.
pub fn launched(effects: &[Effect]) -> Vec<(TaskId, Attempt, String)> {
    let launch = |effect: &Effect| match effect {
        Effect::Launch { task, attempt, host, .. } => Some((*task, *attempt, host.to_string())),
        _ => None,
    };
    effects.iter().filter_map(launch).collect()
}

pub fn refusal(effects: &[Effect]) -> String {
    match effects.iter().find(|effect| matches!(effect, Effect::Rejected(_))) {
        Some(Effect::Rejected(refusal)) => refusal.to_string(),
        _ => panic!("not refused: {effects:?}"),
    }
}
