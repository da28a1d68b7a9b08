//! The controller around an engine that decides what a test says: what it promises to any engine, and what it
//! does itself for one that keeps no records.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_base::time::StepClock;
use forebay_engine::controller::{Controller, Input};
use forebay_engine::engine::Watch;
use forebay_engine::engine::{Engine, JobEnd};
use forebay_engine::journal::Journal;
use forebay_engine::protocol::{
    Answer, AreaState, Ask, Order, RefusalKind, Report, UsageKey, UsageQuery, UsageRow,
};
use forebay_grid::account::AttemptRecord;
use forebay_grid::config::{Config, General};
use forebay_grid::event::{KillReason, Loss, Memory, Refusal, Verb};
use forebay_grid::flow::FlowId;
use forebay_grid::flow::event::FlowState;
use forebay_grid::grid::State;
use forebay_grid::spec::{Exit, JobSpec, Usage};
use forebay_grid::task::{Cause, Fate};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, TaskId, UserName};
use forebay_grid::{Effect, Event, Ledger, Outcome};
use forebay_store::Store;
use forebay_store::faulty::{Fault, FaultyStore};
use forebay_store::memory::MemoryStore;

mod support;

type Shared = Arc<FaultyStore<MemoryStore>>;

/// What a scripted engine decides, and what it was told.
#[derive(Default)]
struct Script {
    /// The effects of the next events, ticks and settings aside.
    decisions: VecDeque<Vec<Effect>>,
    told: Vec<Event>,
    asked: Vec<String>,
    now: Moment,
    end: Option<JobEnd>,
    left: Vec<(TaskId, u32)>,
}

/// It knows one job, the first, which is ann's.
struct Scripted {
    script: Arc<Mutex<Script>>,
    settings: General,
    owner: UserName,
    spec: JobSpec,
}

impl Scripted {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }
}

impl Engine for Scripted {
    fn apply(&mut self, now: Moment, event: Event, out: &mut Outcome) {
        let mut script = self.script.lock().unwrap();
        assert!(now >= script.now, "time goes back");
        script.now = now;
        match event {
            Event::Tick => {}
            Event::Configured(config) => self.settings = config.general,
            event => {
                script.told.push(event);
                out.effects.extend(script.decisions.pop_front().unwrap_or_default());
            }
        }
    }

    fn next_wake(&self) -> Moment {
        Moment::NEVER
    }

    fn now(&self) -> Moment {
        self.script().now
    }

    fn skip_time(&mut self, _: u64, _: &mut Outcome) {}

    fn excuse_silence(&mut self, _: u64) {}

    fn snapshot(&self) -> Option<&Ledger> {
        None
    }

    fn settings(&self) -> &General {
        &self.settings
    }

    fn answer(&self, user: &UserName, ask: &Ask) -> Answer {
        self.script().asked.push(format!("{user}: {ask:?}"));
        Answer::Hosts { hosts: Vec::new(), trouble: None }
    }

    fn owner(&self, job: JobId) -> Option<&UserName> {
        (job == JobId(1)).then_some(&self.owner)
    }

    fn spec(&self, job: JobId) -> Option<&JobSpec> {
        (job == JobId(1)).then_some(&self.spec)
    }

    fn end(&self, job: JobId) -> Option<JobEnd> {
        self.script().end.filter(|_| job == JobId(1))
    }

    fn state(&self, _: TaskId) -> Option<State> {
        None
    }

    fn flow(&self, _: FlowId) -> Option<(&UserName, FlowState)> {
        None
    }

    fn away(&self) -> BTreeSet<HostName> {
        BTreeSet::new()
    }

    fn area_state(&self, _: TaskId, _: u32) -> AreaState {
        AreaState::Unknown
    }

    fn left_work(&self) -> Vec<(TaskId, u32)> {
        self.script().left.clone()
    }

    fn watches(&self) -> Vec<Watch> {
        Vec::new()
    }
}

struct Rig {
    store: Shared,
    script: Arc<Mutex<Script>>,
    controller: Controller<Shared>,
}

impl Rig {
    fn new() -> Rig {
        Rig::on(Arc::new(FaultyStore::new(MemoryStore::new())))
    }

    fn on(store: Shared) -> Rig {
        let script: Arc<Mutex<Script>> = Arc::default();
        let engine = Scripted {
            script: Arc::clone(&script),
            settings: General::default(),
            owner: "ann".parse().unwrap(),
            spec: JobSpec { command: vec!["true".to_owned()], ..JobSpec::default() },
        };
        let (journal, _) = Journal::open(Arc::clone(&store), Moment(1)).unwrap();
        let clock = Arc::new(StepClock::new(1_000_000));
        let controller =
            Controller::with_engine(Box::new(engine), journal, Config::default(), clock).unwrap();
        Rig { store, script, controller }
    }

    fn decide(&self, effects: Vec<Effect>) {
        self.script.lock().unwrap().decisions.push_back(effects);
    }

    fn join(&mut self) -> Receiver<Order> {
        let (outbox, orders) = channel();
        let joined = support::joined("h1", 1, Memory::Kept);
        self.controller.take(vec![Input::Joined { connection: 1, joined, outbox }]).unwrap();
        orders
    }

    fn ask(&mut self, ask: Ask) -> Answer {
        let (input, answer) = question(ask);
        self.controller.take(vec![input]).unwrap();
        answer.try_recv().expect("an answer")
    }

    fn usage(&mut self) -> Vec<UsageRow> {
        let query = UsageQuery { by: vec![UsageKey::User], ..UsageQuery::default() };
        match self.ask(Ask::Usage { query }) {
            Answer::Usage { rows } => rows,
            answer => panic!("{answer:?}"),
        }
    }

    fn history(&mut self) -> Vec<AttemptRecord> {
        match self.ask(Ask::History { target: JobId(1).into(), from: None }) {
            Answer::History { attempts, .. } => attempts,
            answer => panic!("{answer:?}"),
        }
    }
}

fn host() -> HostName {
    "h1".parse().unwrap()
}

fn question(ask: Ask) -> (Input, Receiver<Answer>) {
    let (reply, answer) = channel();
    (Input::Ask { connection: 1, user: "ann".parse().unwrap(), ask, reply }, answer)
}

const TASK: TaskId = TaskId { job: JobId(1), index: 0 };

fn kill() -> Ask {
    Ask::Command { target: JobId(1).into(), verb: Verb::Kill }
}

fn killed() -> Effect {
    let why = KillReason::Asked;
    Effect::Kill { task: TASK, attempt: Attempt(1), host: host(), why }
}

fn attempt() -> AttemptRecord {
    AttemptRecord {
        task: TASK,
        tasks: 1,
        name: String::new(),
        user: "ann".parse().unwrap(),
        queue: "q".parse().unwrap(),
        project: String::new(),
        host: host(),
        attempt: Attempt(1),
        slots: 2,
        submitted: Moment(1000),
        launched: Moment(2000),
        started: None,
        ended: Moment(5000),
        exit: Some(Exit::Code(3)),
        usage: Some(Usage { real_seconds: 2.5, ..Usage::default() }),
        loss: None,
        fate: Fate::Finished(Cause::Exited),
    }
}

#[test]
fn decisions_are_carried_out_in_order_and_each_answer_goes_to_who_asked() {
    let mut rig = Rig::new();
    let orders = rig.join();
    let (task, attempt) = (TASK, Attempt(1));
    rig.decide(vec![killed(), Effect::Obeyed { tasks: 1 }]);
    rig.decide(vec![Effect::Suspend { task, attempt, host: host() }]);
    let refusal = Refusal::NoSuchJob(JobId(1).into());
    rig.decide(vec![
        Effect::Resume { task, attempt, host: host() },
        Effect::Rejected(refusal.clone()),
    ]);
    let ((first, one), (second, other)) = (question(kill()), question(kill()));
    let report = Report::Lost { task, attempt, loss: Loss::Holder };
    let between = Input::Report { host: host(), connection: 1, report };
    rig.controller.take(vec![first, between, second]).unwrap();
    let told: Vec<Order> = orders.try_iter().collect();
    let wanted = [
        Order::Kill { task, attempt, why: KillReason::Asked },
        Order::Suspend { task, attempt },
        Order::Noted { task, attempt },
        Order::Resume { task, attempt },
    ];
    assert_eq!(told, wanted);
    assert!(matches!(one.try_recv(), Ok(Answer::Obeyed { tasks: 1 })));
    let answer = other.try_recv();
    assert!(
        matches!(&answer, Ok(Answer::Refused(said)) if said.reason == refusal.to_string() && said.kind == RefusalKind::NoJob)
    );
}

#[test]
fn nothing_that_was_decided_is_carried_out_if_the_commit_fails() {
    let mut rig = Rig::new();
    let orders = rig.join();
    rig.store.fail_commits(1, Fault::Io);
    rig.decide(vec![killed(), Effect::Ended(Box::new(attempt())), Effect::Obeyed { tasks: 1 }]);
    let (input, answer) = question(kill());
    assert!(rig.controller.take(vec![input]).is_err());
    assert!(answer.try_recv().is_err());
    assert_eq!(orders.try_iter().count(), 0);
}

#[test]
fn an_engine_without_records_has_its_history_and_its_sums_in_the_journal() {
    let mut rig = Rig::new();
    rig.decide(vec![Effect::Ended(Box::new(attempt())), Effect::Obeyed { tasks: 1 }]);
    rig.ask(kill());
    let store = Arc::clone(&rig.store);
    let (inputs, taken) = channel();
    inputs.send(Input::Stop).unwrap();
    rig.controller.run(&taken).unwrap();
    let kinds: BTreeSet<u8> =
        store.scan(&[], &[u8::MAX], 100).unwrap().iter().map(|(key, _)| key[0]).collect();
    assert_eq!(kinds, BTreeSet::from(*b"vhnu"), "neither records nor a snapshot");
    let mut rig = Rig::on(store);
    assert_eq!(rig.history(), [attempt()]);
    let rows = rig.usage();
    assert_eq!((rows.len(), rows[0].attempts, rows[0].failed), (1, 1, 1));
    assert_eq!((rows[0].slot_seconds, rows[0].real_seconds), (6.0, 2.5));
}

#[test]
fn who_waits_is_told_of_the_end_that_the_engine_knows_of() {
    let mut rig = Rig::new();
    let (wait, waits) = question(Ask::Wait { job: JobId(1) });
    rig.controller.take(vec![wait]).unwrap();
    assert!(waits.try_recv().is_err());
    rig.script.lock().unwrap().end = Some(JobEnd { value: 9, at: Moment(1) });
    let finished = Effect::JobFinished { job: JobId(1), value: 9, at: Moment(1), about: None };
    rig.decide(vec![finished, Effect::Obeyed { tasks: 1 }]);
    rig.ask(kill());
    assert!(matches!(waits.try_recv(), Ok(Answer::Ended { value: 9 })));
    let late = rig.ask(Ask::Wait { job: JobId(1) });
    assert!(matches!(late, Answer::Ended { value: 9 }), "{late:?}");
    let unknown = rig.ask(Ask::Wait { job: JobId(2) });
    assert!(matches!(unknown, Answer::Refused { .. }), "{unknown:?}");
}

#[test]
fn a_question_reaches_the_engine_as_one_and_is_no_event() {
    let mut rig = Rig::new();
    assert!(matches!(rig.ask(Ask::Hosts), Answer::Hosts { .. }));
    assert!(matches!(rig.ask(Ask::Ping), Answer::Here));
    let script = rig.script.lock().unwrap();
    assert_eq!(script.asked, ["ann: Hosts"]);
    assert!(script.told.is_empty(), "{:?}", script.told);
}

#[test]
fn a_launch_carries_what_was_asked_for_and_work_that_was_left_is_told_to_who_joins() {
    let mut rig = Rig::new();
    rig.script.lock().unwrap().left = vec![(TASK, 4)];
    let (attempt, time_limit) = (Attempt(2), None);
    let launch = Effect::Launch {
        task: TASK,
        attempt,
        requeues: 1,
        host: host(),
        slots: 3,
        time_limit,
        gpus: None,
        wrap: None,
        limits: Default::default(),
    };
    rig.decide(vec![launch]);
    let told: Vec<Order> = rig.join().try_iter().collect();
    match &told[..] {
        [Order::Launch(launch), Order::ReleaseWork { task: TASK, requeues: 4 }] => {
            assert_eq!((launch.user.as_str(), launch.slots, launch.requeues), ("ann", 3, 1));
            assert_eq!(launch.spec.command, ["true"]);
        }
        told => panic!("{told:?}"),
    }
}
