//! Random flows with random exits, kills, reruns and restarts of the controller, against what must always
//! hold: every task starts once at most between two reruns, nothing starts before its condition holds, a
//! run ends in the state that its steps say, and a rerun concerns what failed and what comes after, only.
//!
//! `FOREBAY_SEED` (a number) and `PROPTEST_CASES` repeat a run and choose more of them; both are printed, and at a
//! failure the shortest sequence that fails.

use crate::random;
use std::collections::{BTreeMap, BTreeSet};

use crate::pieces::Pieces;
use crate::support::{Rig, launched, spec};
use forebay_grid::event::{Memory, RunReport, RunStatus, Verb};
use forebay_grid::flow::event::{FlowEvent, FlowState};
use forebay_grid::flow::{FlowId, FlowSpec};
use forebay_grid::grid::StepState;
use forebay_grid::journal::Record;
use forebay_grid::spec::JobSpec;
use forebay_grid::task::{Cause, Task};
use forebay_grid::vocabulary::{Attempt, JobId, Moment, TaskId};
use forebay_grid::{Effect, Event, Grid, Ledger};
use proptest::collection::vec;
use proptest::prelude::*;

/// How a step asks for an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Done,
    Ended,
    Exit,
}

/// A step: elements (0 for none), and what it asks of earlier steps, all of it or any. What it asks of all may be asked by each element of
/// that with its index, where there is one.
#[derive(Clone, Debug)]
struct Step {
    elements: u8,
    asks: Vec<(Ask, u8, bool)>,
    any: bool,
}

/// What a step asks of an earlier one.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ask: Ask,
    of: usize,
    by_each: bool,
}

/// What the step at a place asks.
fn asked(steps: &[Step], place: usize) -> Vec<Asked> {
    let step = &steps[place];
    let read = |(ask, of, by_each): &(Ask, u8, bool)| {
        let of = usize::from(*of) % place;
        let has_partners = step.elements > 0 && steps[of].elements >= step.elements;
        Asked { ask: *ask, of, by_each: *by_each && has_partners && !step.any }
    };
    if place == 0 { Vec::new() } else { step.asks.iter().map(read).collect() }
}

#[derive(Clone, Debug)]
enum Op {
    /// A running task ends with this value.
    Exit(u8, u8),
    KillFlow,
    /// One job is killed.
    KillJob(u8),
    /// One job that has ended starts again, for its user's wish.
    Requeue(u8),
    /// An element that has ended does.
    RequeueElement(u8, u8),
    Rerun,
    Restart,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let ask = prop_oneof![4 => Just(Ask::Done), 2 => Just(Ask::Ended), 1 => Just(Ask::Exit)];
    let asks = vec((ask, any::<u8>(), any::<bool>()), 0..3);
    (0..4_u8, asks, any::<bool>()).prop_map(|(elements, asks, any)| Step { elements, asks, any })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (any::<u8>(), prop_oneof![3 => Just(0), 1 => Just(1)])
            .prop_map(|(task, code)| Op::Exit(task, code)),
        1 => Just(Op::KillFlow),
        1 => any::<u8>().prop_map(Op::KillJob),
        2 => any::<u8>().prop_map(Op::Requeue),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(job, element)| Op::RequeueElement(job, element)),
        4 => Just(Op::Rerun),
        3 => Just(Op::Restart),
        2 => (1..20_u16).prop_map(Op::Pass),
    ]
}

fn flow(steps: &[Step]) -> FlowSpec {
    let spec_of = |(place, step): (usize, &Step)| {
        let ask = |Asked { ask, of, by_each }: Asked| {
            let of = if by_each { format!("s{of}[*]") } else { format!("s{of}") };
            match ask {
                Ask::Done => format!("done({of})"),
                Ask::Ended => format!("ended({of})"),
                Ask::Exit => format!("exit({of})"),
            }
        };
        let asks: Vec<String> = asked(steps, place).into_iter().map(ask).collect();
        let text = asks.join(if step.any { " || " } else { " && " });
        JobSpec {
            name: format!("s{place}"),
            array: (step.elements > 0).then(|| format!("[1-{}]", step.elements).parse().unwrap()),
            depends: (!text.is_empty()).then(|| text.parse().unwrap()),
            ..spec()
        }
    };
    let steps = steps.iter().enumerate().map(spec_of).collect();
    FlowSpec { name: "random".to_owned(), steps, trigger: None }
}

/// What a step came to, as the test sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    Never,
    Not,
    Yes,
}

/// What of a step did not run although nothing failed.
#[derive(Default)]
struct Fine {
    whole: bool,
    elements: BTreeSet<TaskId>,
}

/// The run as the test follows it.
struct World {
    rig: Rig,
    steps: Vec<Step>,
    jobs: Vec<JobId>,
    /// Exit values of tasks that ended by themselves.
    ended: BTreeMap<TaskId, u8>,
    running: BTreeMap<TaskId, Attempt>,
    /// What was started since the run began or was run again.
    started: BTreeSet<TaskId>,
    /// What may start since then; everything before the first rerun.
    allowed: Option<BTreeSet<JobId>>,
    killed: bool,
    pieces: Pieces,
}

const FLOW: FlowId = FlowId(1);

impl World {
    fn new(steps: Vec<Step>) -> World {
        let mut rig = Rig::new("[[queue]]\nname = \"q\"\n", &[("h1", 6)]);
        let spec = Box::new(flow(&steps));
        let effects =
            rig.send(Event::Flow(FlowEvent::Run { user: "u".parse().unwrap(), spec, key: None }));
        let run = rig.grid.ledger().flow(FLOW).expect("it was taken");
        // Steps ask of earlier ones only, so their order is kept.
        let jobs = run.steps().iter().map(|step| step.job).collect();
        let mut world = World {
            rig,
            steps,
            jobs,
            ended: BTreeMap::new(),
            running: BTreeMap::new(),
            started: BTreeSet::new(),
            allowed: None,
            killed: false,
            pieces: Pieces::default(),
        };
        world.follow(&effects);
        world
    }

    fn states(&self) -> Vec<StepState> {
        let run = self.rig.grid.ledger().flow(FLOW).expect("it is known");
        self.rig.grid.step_states(run)
    }

    fn state(&self) -> FlowState {
        self.rig.grid.ledger().flow(FLOW).expect("it is known").state()
    }

    /// Whether what a step asks of one other holds, from exits alone.
    fn met(&self, ask: Ask, of: usize) -> Met {
        let job = self.rig.grid.ledger().job(self.jobs[of]).expect("it is known");
        let over = job.tally().is_finished();
        let good = job
            .tasks()
            .all(|(index, _)| self.ended.get(&TaskId { job: self.jobs[of], index }) == Some(&0));
        let bad = job.tally().failed > 0;
        match ask {
            Ask::Done if over && good => Met::Yes,
            Ask::Done if bad => Met::Never,
            Ask::Ended if over => Met::Yes,
            Ask::Exit if over && !good => Met::Yes,
            Ask::Exit if over => Met::Never,
            Ask::Done | Ask::Ended | Ask::Exit => Met::Not,
        }
    }

    /// Whether what one element asks of its partner holds, from exits alone.
    fn met_by_partner(&self, ask: Ask, of: usize, index: u32) -> Met {
        let task = TaskId { job: self.jobs[of], index };
        let over = matches!(self.rig.grid.ledger().task(task), Some(Task::Finished(_)));
        let good = self.ended.get(&task) == Some(&0);
        match ask {
            _ if !over => Met::Not,
            Ask::Ended => Met::Yes,
            Ask::Done => {
                if good {
                    Met::Yes
                } else {
                    Met::Never
                }
            }
            Ask::Exit => {
                if good {
                    Met::Never
                } else {
                    Met::Yes
                }
            }
        }
    }

    fn asks(&self, place: usize) -> Vec<Asked> {
        asked(&self.steps, place)
    }

    /// Whether all that a task waits for holds.
    fn holds_of(&self, place: usize, index: u32) -> Met {
        let asks = self.asks(place).into_iter().filter(|asked| asked.by_each);
        let mets = asks.map(|asked| self.met_by_partner(asked.ask, asked.of, index));
        mets.chain([self.holds(place)]).min().unwrap()
    }

    /// Whether what a whole step waits for holds.
    fn holds(&self, place: usize) -> Met {
        let asks = self.asks(place).into_iter().filter(|asked| !asked.by_each);
        let mets: Vec<Met> = asks.map(|asked| self.met(asked.ask, asked.of)).collect();
        let all = |met| mets.iter().all(|one| *one == met);
        let some = |met| mets.contains(&met);
        match self.steps[place].any {
            _ if mets.is_empty() => Met::Yes,
            false if all(Met::Yes) => Met::Yes,
            false if some(Met::Never) => Met::Never,
            true if some(Met::Yes) => Met::Yes,
            true if all(Met::Never) => Met::Never,
            _ => Met::Not,
        }
    }

    fn follow(&mut self, effects: &[Effect]) {
        for (task, attempt, _) in launched(effects) {
            let place = self.jobs.iter().position(|job| *job == task.job).expect("a step");
            assert_eq!(self.holds_of(place, task.index), Met::Yes, "{task} starts too early");
            assert!(self.started.insert(task), "{task} starts twice");
            if let Some(allowed) = &self.allowed {
                assert!(allowed.contains(&task.job), "{task} runs again and need not");
            }
            self.ended.remove(&task);
            self.running.insert(task, attempt);
        }
        let replayed =
            Grid::restore(Ledger::default(), &self.rig.records, Moment(self.rig.now)).unwrap();
        assert_eq!(replayed.ledger(), self.rig.grid.ledger(), "the journal tells another story");
        self.pieces.write(self.rig.grid.ledger(), &self.rig.records);
        assert_eq!(&self.pieces.read(), self.rig.grid.ledger(), "so does the snapshot");
        self.check_states();
    }

    /// Nothing waits in vain, and the run has ended exactly if its steps have.
    fn check_states(&self) {
        let states = self.states();
        for (place, state) in states.iter().enumerate() {
            for (index, task) in self.rig.grid.ledger().job(self.jobs[place]).unwrap().tasks() {
                let never = self.holds_of(place, index) == Met::Never;
                let name = TaskId { job: self.jobs[place], index };
                let waits = matches!(task, Task::Pending(_) | Task::Held(_));
                assert!(!waits || !never, "{name} waits for what cannot come");
                let is_skipped = *state == StepState::Skipped && self.ended.get(&name) != Some(&0);
                assert!(!is_skipped || self.killed || never, "{name} could start, and is skipped");
            }
        }
        let waits = |state| matches!(state, StepState::Pending | StepState::Held);
        let over = states.iter().all(|state| !waits(*state) && *state != StepState::Running);
        assert_eq!(self.state() != FlowState::Running, over, "{states:?}");
        if over {
            assert_eq!(self.state(), self.expected(), "{states:?}");
        }
    }

    /// Names of the tasks of a step that have not succeeded, and whether each was skipped for its partner.
    fn failed(&self, place: usize) -> Vec<(TaskId, bool)> {
        let job = self.jobs[place];
        let tasks = self.rig.grid.ledger().job(job).unwrap().tasks();
        let tasks = tasks.map(|(index, task)| {
            let is_skipped =
                matches!(task, Task::Finished(finish) if finish.cause == Cause::DependencyNever);
            (TaskId { job, index }, is_skipped)
        });
        tasks.filter(|(task, _)| self.ended.get(task) != Some(&0)).collect()
    }

    fn is_skipped(&self, place: usize) -> bool {
        self.rig.grid.ledger().flow(FLOW).unwrap().steps()[place].skipped
    }

    fn blameless(&self) -> Vec<Fine> {
        let mut fine: Vec<Fine> = Vec::new();
        for place in 0..self.jobs.len() {
            let failed = self.failed(place);
            let is_excused = |(task, is_skipped): &&(TaskId, bool)| {
                let vain = |asked: &Asked| {
                    asked.by_each
                        && self.met_by_partner(asked.ask, asked.of, task.index) == Met::Never
                };
                let excused = |asked: Asked| {
                    let partner = TaskId { job: self.jobs[asked.of], index: task.index };
                    let before = &fine[asked.of];
                    asked.ask == Ask::Exit || before.whole || before.elements.contains(&partner)
                };
                let vain: Vec<Asked> = self.asks(place).into_iter().filter(vain).collect();
                *is_skipped && !vain.is_empty() && vain.into_iter().all(excused)
            };
            let elements: BTreeSet<TaskId> =
                failed.iter().filter(is_excused).map(|(task, _)| *task).collect();
            let excused = |Asked { ask, of, by_each }: Asked| {
                by_each || self.met(ask, of) != Met::Never || ask == Ask::Exit || fine[of].whole
            };
            let whole = self.is_skipped(place)
                && self.holds(place) == Met::Never
                && self.asks(place).into_iter().all(excused)
                && failed.iter().all(|(task, is_skipped)| !is_skipped || elements.contains(task));
            let all = !failed.is_empty() && elements.len() == failed.len();
            fine.push(Fine { whole: whole || all, elements });
        }
        fine
    }

    fn expected(&self) -> FlowState {
        let fine = self.blameless();
        let bad = |place: usize| !self.failed(place).is_empty() && !fine[place].whole;
        match (0..self.jobs.len()).any(bad) {
            _ if self.killed => FlowState::Killed,
            true => FlowState::Failed,
            false => FlowState::Done,
        }
    }

    /// What a rerun concerns.
    fn again(&self) -> BTreeMap<JobId, BTreeSet<TaskId>> {
        let fine = self.blameless();
        let mut again: BTreeMap<JobId, BTreeSet<TaskId>> = BTreeMap::new();
        for (place, job) in self.jobs.iter().enumerate() {
            let follows = |asked: &Asked| again.contains_key(&self.jobs[asked.of]);
            let after: Vec<Asked> = self.asks(place).into_iter().filter(follows).collect();
            let whole = after.iter().any(|asked| !asked.by_each || self.is_skipped(place));
            let wanted = |task: &TaskId| {
                let partner = |asked: &Asked| TaskId { job: self.jobs[asked.of], ..*task };
                let fine = &fine[place];
                let failed = self.ended.get(task) != Some(&0);
                whole
                    || failed && !fine.whole && !fine.elements.contains(task)
                    || after
                        .iter()
                        .any(|asked| again[&self.jobs[asked.of]].contains(&partner(asked)))
            };
            let tasks = self.rig.grid.ledger().job(*job).unwrap().tasks();
            let tasks = tasks.map(|(index, _)| TaskId { job: *job, index });
            let tasks: BTreeSet<TaskId> = tasks.filter(wanted).collect();
            if !tasks.is_empty() {
                again.insert(*job, tasks);
            }
        }
        again
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Exit(task, code) => self.exit(usize::from(*task), *code),
            Op::KillFlow => {
                let by = "u".parse().unwrap();
                let ran = self.state() == FlowState::Running;
                let effects = self.rig.send(Event::Flow(FlowEvent::Kill { by, flow: FLOW }));
                self.killed |= ran;
                self.follow(&effects);
            }
            Op::KillJob(job) => {
                let job = self.jobs[usize::from(*job) % self.jobs.len()];
                let effects = self.rig.command("u", job, Verb::Kill);
                self.follow(&effects);
            }
            Op::Requeue(job) => self.requeue(usize::from(*job) % self.jobs.len(), None),
            Op::RequeueElement(job, element) => {
                self.requeue(usize::from(*job) % self.jobs.len(), Some(usize::from(*element)));
            }
            Op::Rerun => self.rerun(),
            Op::Restart => self.restart(),
            Op::Pass(seconds) => {
                let effects = self.rig.pass(u64::from(*seconds));
                self.follow(&effects);
            }
        }
    }

    fn exit(&mut self, pick: usize, code: u8) {
        let Some(task) = self.running.keys().nth(pick % self.running.len().max(1)).copied() else {
            return;
        };
        let killed = self.rig.grid.ledger().task(task).unwrap().run().unwrap().ending.is_some();
        self.running.remove(&task);
        // A task that was killed has failed, whatever it said at its end.
        self.ended.insert(task, if killed { 137 } else { code });
        let effects = self.rig.exit(task, code);
        self.follow(&effects);
    }

    fn requeue(&mut self, place: usize, element: Option<usize>) {
        let job = self.jobs[place];
        let known = self.rig.grid.ledger().job(job).unwrap();
        let mut tasks: Vec<TaskId> =
            known.tasks().map(|(index, _)| TaskId { job, index }).collect();
        if let Some(element) = element {
            tasks = vec![tasks[element % tasks.len()]];
        }
        let has_ended =
            |task: &TaskId| matches!(self.rig.grid.ledger().task(*task), Some(Task::Finished(_)));
        if !tasks.iter().all(has_ended) {
            return;
        }
        for task in &tasks {
            self.started.remove(task);
            self.ended.remove(task);
        }
        if let Some(allowed) = &mut self.allowed {
            allowed.insert(job);
        }
        // What was skipped because of it may start after all.
        for later in place + 1..self.jobs.len() {
            let before = |asked: &Asked| {
                self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&self.jobs[asked.of]))
            };
            let follows = self.asks(later).iter().any(before);
            if let Some(allowed) = self.allowed.as_mut().filter(|_| follows) {
                allowed.insert(self.jobs[later]);
            }
        }
        self.killed &= self.state() == FlowState::Running;
        let effects = match (element, &tasks[..]) {
            (Some(_), [task]) => self.rig.command("u", *task, Verb::Requeue),
            _ => self.rig.command("u", job, Verb::Requeue),
        };
        self.follow(&effects);
    }

    fn rerun(&mut self) {
        let (state, again) = (self.state(), self.again());
        let expected: BTreeSet<TaskId> = again.values().flatten().copied().collect();
        let by = "u".parse().unwrap();
        // What is to be run again has not ended from the first effect on.
        let (ended, started) = (self.ended.clone(), self.started.clone());
        let could = matches!(state, FlowState::Failed | FlowState::Killed);
        if could {
            self.ended.retain(|task, _| !expected.contains(task));
            self.started.clear();
            self.allowed = Some(again.into_keys().collect());
            self.killed = false;
        }
        let effects = self.rig.send(Event::Flow(FlowEvent::Rerun { by, flow: FLOW }));
        if could {
            let tasks = expected.len() as u32;
            assert_eq!(effects.first(), Some(&Effect::Obeyed { tasks }));
        } else {
            assert!(matches!(effects.first(), Some(Effect::Rejected(_))), "{effects:?}");
            (self.ended, self.started) = (ended, started);
        }
        self.follow(&effects);
    }

    fn restart(&mut self) {
        let records: Vec<Record> = self.rig.records.clone();
        self.rig.now += 1;
        self.rig.grid = Grid::restore(Ledger::default(), &records, Moment(self.rig.now)).unwrap();
        let report = |(task, attempt): (&TaskId, &Attempt)| RunReport {
            task: *task,
            attempt: *attempt,
            status: RunStatus::Running,
        };
        let runs = self.running.iter().map(report).collect();
        let effects = self.rig.join("h1", 6, Memory::Kept, runs);
        self.follow(&effects);
    }

    fn finish(&mut self) {
        while !self.running.is_empty() {
            self.exit(0, 0);
        }
        assert_ne!(self.state(), FlowState::Running, "{:?}", self.states());
    }
}

#[test]
fn a_flow_runs_each_step_once_in_order_and_again_only_where_it_failed() {
    let sequences = (vec(step(), 1..8), vec(op(), 1..80));
    let ends = std::cell::RefCell::new(BTreeMap::<&str, u32>::new());
    let test = ("flow_model", "a_flow_runs_each_step_once_in_order_and_again_only_where_it_failed");
    random::check(test, 200, &sequences, |(steps, ops)| {
        let mut world = World::new(steps);
        for op in &ops {
            world.apply(op);
        }
        world.finish();
        *ends.borrow_mut().entry(world.state().word()).or_default() += 1;
    });
    let ends = ends.into_inner();
    assert!(ends.values().sum::<u32>() < 200 || ends.len() == 3, "every end: {ends:?}");
}
