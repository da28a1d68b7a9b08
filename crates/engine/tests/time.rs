//! The controller in time, with a clock of the test's own: leases, windows, limits, thresholds.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_base::Clock;
use forebay_base::time::{StepClock, Timestamp};
use forebay_engine::controller::{Controller, Input};
use forebay_engine::protocol::{Answer, Ask, Order, Page, Report};
use forebay_grid::config::{Config, HostEngine, Load};
use forebay_grid::event::{Joined, KillReason, Memory, RunReport, RunStatus};
use forebay_grid::hosts::Facts;
use forebay_grid::spec::{JobSpec, Rerun};
use forebay_grid::vocabulary::{Attempt, JobId, TaskId};
use forebay_store::memory::MemoryStore;

mod support;

/// A clock that stands until it is moved; wall clock and passing of time apart from each other.
struct HandClock {
    readings: Mutex<(Timestamp, Instant)>,
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        self.readings.lock().unwrap().0
    }

    fn instant(&self) -> Instant {
        self.readings.lock().unwrap().1
    }
}

struct Rig {
    store: Arc<MemoryStore>,
    clock: Arc<HandClock>,
    config: Config,
    controller: Controller<Arc<MemoryStore>>,
}

const LEASES: &str = "[general]\nlease = \"60 s\"\nhost_timeout = \"90 s\"\n";

impl Rig {
    fn new(settings: &str) -> Rig {
        // 2027-01-01 12:00 in UTC, a Friday.
        let readings = (Timestamp::new(1_798_804_800, 0), StepClock::new(0).instant());
        let clock = Arc::new(HandClock { readings: Mutex::new(readings) });
        let (store, config) = (Arc::new(MemoryStore::new()), Config::read(settings).unwrap());
        let controller =
            Controller::open(Arc::clone(&store), config.clone(), Arc::clone(&clock) as _).unwrap();
        Rig { store, clock, config, controller }
    }

    /// Another controller in place of one that was killed.
    fn restart(&mut self) {
        let clock = Arc::clone(&self.clock) as _;
        self.controller =
            Controller::open(Arc::clone(&self.store), self.config.clone(), clock).unwrap();
    }

    /// Time passes.
    fn pass(&mut self, milliseconds: u32) {
        {
            let mut readings = self.clock.readings.lock().unwrap();
            let nanoseconds =
                u64::from(readings.0.nanoseconds) + u64::from(milliseconds) * 1_000_000;
            let seconds = i64::try_from(nanoseconds / 1_000_000_000).unwrap();
            let rest = u32::try_from(nanoseconds % 1_000_000_000).unwrap();
            readings.0 = Timestamp::new(readings.0.seconds + seconds, rest);
            readings.1 += Duration::from_millis(milliseconds.into());
        }
        self.controller.take(Vec::new()).unwrap();
    }

    /// Somebody sets the clock.
    fn set_clock(&mut self, by_seconds: i64) {
        self.clock.readings.lock().unwrap().0.seconds += by_seconds;
        self.controller.take(Vec::new()).unwrap();
    }

    fn ask(&mut self, ask: Ask) -> Answer {
        let (reply, answer) = channel();
        let user = "ann".parse().unwrap();
        self.controller.take(vec![Input::Ask { connection: 1, user, ask, reply }]).unwrap();
        answer.try_recv().expect("an answer")
    }

    fn submit(&mut self, change: impl FnOnce(&mut JobSpec)) -> TaskId {
        let mut spec = JobSpec { command: vec!["true".to_owned()], ..JobSpec::default() };
        change(&mut spec);
        match self.ask(Ask::submit(spec)) {
            Answer::Accepted { job } => TaskId::only(job),
            answer => panic!("{answer:?}"),
        }
    }

    fn join(&mut self, host: &str, connection: u64, memory: Memory) -> Receiver<Order> {
        let (outbox, orders) = channel();
        let joined = support::joined(host, 1, memory);
        self.controller.take(vec![Input::Joined { connection, joined, outbox }]).unwrap();
        orders
    }

    fn report(&mut self, host: &str, connection: u64, report: Report) {
        let host = host.parse().unwrap();
        self.controller.take(vec![Input::Report { host, connection, report }]).unwrap();
    }

    fn load(&mut self, host: &str, connection: u64, r1m: f64) {
        self.report(host, connection, Report::Load { load: Load { r1m, ..Load::default() } });
    }

    fn state(&mut self, task: TaskId) -> String {
        match self.ask(Ask::Jobs {
            target: Some(task.job.into()),
            ended: true,
            page: Page::default(),
        }) {
            Answer::Jobs { jobs, .. } => jobs[0].state.to_string(),
            answer => panic!("{answer:?}"),
        }
    }
}

fn launched(orders: &Receiver<Order>) -> Vec<(JobId, Attempt)> {
    let launch = |order| match order {
        Order::Launch(launch) => Some((launch.task.job, launch.attempt)),
        _ => None,
    };
    orders.try_iter().filter_map(launch).collect()
}

fn rerunnable(spec: &mut JobSpec) {
    spec.rerun = Rerun::Rerunnable;
}

/// The agent counts its lease from when it sent its last message, the controller from when it took it.
#[test]
fn a_job_starts_elsewhere_only_after_the_lease_of_its_host_was_over() {
    let mut rig = Rig::new(LEASES);
    let first = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(rerunnable);
    let once = rig.submit(|_| {});
    assert_eq!(launched(&first), [(task.job, Attempt(1))]);
    let second = rig.join("h2", 2, Memory::Kept);
    assert_eq!(launched(&second), [(once.job, Attempt(1))]);
    rig.pass(20_000);
    // Sent at 20 s or before, so the agent ends its jobs at 80 s or before.
    rig.load("h1", 1, 0.0);
    rig.controller.take(vec![Input::Left { host: "h1".parse().unwrap(), connection: 1 }]).unwrap();
    let third = rig.join("h3", 3, Memory::Kept);
    for _ in 0..89 {
        rig.pass(1000);
        rig.load("h2", 2, 0.0);
        rig.load("h3", 3, 0.0);
        assert_eq!(launched(&third), [], "it may still run on its first host");
        assert_eq!(rig.state(task), "unknown");
    }
    rig.pass(1000);
    assert_eq!(launched(&third), [(task.job, Attempt(2))]);
    // Hosts that were heard of keep theirs.
    assert_eq!(rig.state(once), "starting");
}

#[test]
fn a_controller_that_was_killed_gives_hosts_their_time_again() {
    let mut rig = Rig::new(LEASES);
    let first = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(rerunnable);
    assert_eq!(launched(&first).len(), 1);
    rig.pass(85_000);
    rig.restart();
    let second = rig.join("h2", 2, Memory::Kept);
    // The last grant may have been given the moment before it was killed.
    for _ in 0..8 {
        rig.pass(10_000);
        rig.load("h2", 2, 0.0);
        assert_eq!(launched(&second), []);
    }
    rig.pass(10_000);
    assert_eq!(launched(&second), [(task.job, Attempt(2))]);
}

#[test]
fn a_clock_that_is_set_forward_ends_no_lease() {
    let mut rig = Rig::new(LEASES);
    let first = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(rerunnable);
    assert_eq!(launched(&first).len(), 1);
    let second = rig.join("h2", 2, Memory::Kept);
    rig.controller.take(vec![Input::Left { host: "h1".parse().unwrap(), connection: 1 }]).unwrap();
    rig.set_clock(3600);
    rig.load("h2", 2, 0.0);
    rig.pass(50_000);
    rig.load("h2", 2, 0.0);
    assert_eq!(launched(&second), [], "its first host has 10 s more to let it run");
    rig.pass(40_000);
    assert_eq!(launched(&second), [(task.job, Attempt(2))]);
}

#[test]
fn a_clock_that_is_set_back_stops_no_time() {
    let mut rig = Rig::new(LEASES);
    let first = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(rerunnable);
    assert_eq!(launched(&first).len(), 1);
    let second = rig.join("h2", 2, Memory::Kept);
    rig.set_clock(-3600);
    rig.pass(50_000);
    rig.load("h2", 2, 0.0);
    rig.pass(40_000);
    assert_eq!(launched(&second), [(task.job, Attempt(2))]);
}

#[test]
fn a_clock_that_is_set_forward_ends_no_job_before_its_time() {
    let mut rig = Rig::new("");
    let mut orders = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(|spec| spec.time_limit = Some("30 s".parse().unwrap()));
    let attempt = Attempt(1);
    let killed = |orders: &Receiver<Order>| {
        orders.try_iter().any(|order| matches!(order, Order::Kill { .. }))
    };
    rig.report("h1", 1, Report::Started { task, attempt, pid: None });
    rig.pass(10_000);
    rig.set_clock(3600);
    rig.pass(19_999);
    assert!(!killed(&orders));
    // What was skipped is remembered.
    rig.restart();
    let (outbox, again) = channel();
    let status = RunStatus::Running;
    let joined = Box::new(Joined {
        host: "h1".parse().unwrap(),
        facts: Facts { cores: 1, memory_bytes: 1 << 30 },
        memory: Memory::Kept,
        engine: HostEngine::Agent,
        runs: vec![RunReport { task, attempt, status }],
    });
    rig.controller.take(vec![Input::Joined { connection: 2, joined, outbox }]).unwrap();
    orders = again;
    assert!(!killed(&orders));
    rig.pass(1);
    assert!(killed(&orders));
}

#[test]
fn time_goes_on_after_a_restart_with_a_clock_that_was_set_back() {
    let mut rig = Rig::new(LEASES);
    let first = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(rerunnable);
    assert_eq!(launched(&first).len(), 1);
    rig.clock.readings.lock().unwrap().0.seconds -= 3600;
    rig.restart();
    let second = rig.join("h2", 2, Memory::Kept);
    for _ in 0..9 {
        assert_eq!(launched(&second), []);
        rig.pass(10_000);
        rig.load("h2", 2, 0.0);
    }
    assert_eq!(launched(&second), [(task.job, Attempt(2))]);
}

/// What the history shows of it: an attempt that neither started nor ended, and then a second one.
#[test]
fn an_order_that_was_lost_with_a_killed_agent_is_given_again() {
    let mut rig = Rig::new("");
    let first = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(|_| {});
    assert_eq!(launched(&first), [(task.job, Attempt(1))]);
    // It comes back, remembers everything, and has never seen the order.
    let again = rig.join("h1", 2, Memory::Kept);
    assert_eq!(launched(&again), [(task.job, Attempt(2))]);
    match rig.ask(Ask::History { target: task.job.into(), from: None }) {
        Answer::History { attempts, .. } => {
            assert_eq!((attempts.len(), &attempts[0].exit, attempts[0].started), (1, &None, None));
        }
        answer => panic!("{answer:?}"),
    }
    // One that may have forgotten is not believed: the job may have run.
    rig.join("h1", 3, Memory::Lost);
    assert_eq!(rig.state(task), "host_lost");
}

#[test]
fn jobs_start_inside_dispatch_windows_only() {
    let mut rig = Rig::new("[[queue]]\nname = \"night\"\ndispatch_windows = \"13:00-14:00\"\n");
    let orders = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(|_| {});
    assert_eq!(launched(&orders), []);
    for _ in 0..59 {
        rig.pass(60_000);
        rig.load("h1", 1, 0.0);
        assert_eq!(launched(&orders), []);
    }
    rig.pass(60_000);
    rig.load("h1", 1, 0.0);
    assert_eq!(launched(&orders), [(task.job, Attempt(1))]);
}

#[test]
fn jobs_are_suspended_outside_run_windows() {
    let mut rig = Rig::new("[[queue]]\nname = \"day\"\nrun_windows = \"8:00-12:10 12:20-14:00\"\n");
    let orders = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(|_| {});
    let attempt = Attempt(1);
    assert_eq!(launched(&orders), [(task.job, attempt)]);
    rig.report("h1", 1, Report::Started { task, attempt, pid: None });
    let told = |orders: &Receiver<Order>| -> Vec<Order> {
        orders
            .try_iter()
            .filter(|order| !matches!(order, Order::Grant { .. } | Order::ListAreas { .. }))
            .collect()
    };
    let pass_ten = |rig: &mut Rig| {
        for _ in 0..10 {
            rig.pass(60_000);
            rig.load("h1", 1, 0.0);
        }
    };
    pass_ten(&mut rig);
    assert_eq!(told(&orders), [Order::Suspend { task, attempt }]);
    assert_eq!(rig.state(task), "suspended");
    pass_ten(&mut rig);
    assert_eq!(told(&orders), [Order::Resume { task, attempt }]);
    assert_eq!(rig.state(task), "running");
}

#[test]
fn a_job_that_runs_for_longer_than_it_may_is_ended() {
    let mut rig = Rig::new("");
    let orders = rig.join("h1", 1, Memory::Kept);
    let task = rig.submit(|spec| spec.time_limit = Some("30 s".parse().unwrap()));
    let attempt = Attempt(1);
    rig.pass(20_000);
    // The time counts from its start.
    rig.report("h1", 1, Report::Started { task, attempt, pid: None });
    rig.pass(29_999);
    assert!(!orders.try_iter().any(|order| matches!(order, Order::Kill { .. })));
    rig.pass(1);
    let orders: Vec<Order> = orders.try_iter().collect();
    assert_eq!(orders, [Order::Kill { task, attempt, why: KillReason::TimeLimit }]);
}

#[test]
fn a_loaded_host_gets_no_job_and_suspends_one_beyond_its_stop_value() {
    let settings = "[[queue]]\nname = \"q\"\n[queue.load]\nr1m = { schedule = 0.7, stop = 2.0 }\n";
    let mut rig = Rig::new(settings);
    let orders = rig.join("h1", 1, Memory::Kept);
    rig.load("h1", 1, 1.0);
    let task = rig.submit(|_| {});
    assert_eq!(launched(&orders), []);
    rig.load("h1", 1, 0.5);
    assert_eq!(launched(&orders), [(task.job, Attempt(1))]);
    let attempt = Attempt(1);
    rig.report("h1", 1, Report::Started { task, attempt, pid: None });
    rig.load("h1", 1, 1.9);
    assert_eq!(rig.state(task), "running");
    rig.load("h1", 1, 2.1);
    assert!(orders.try_iter().any(|order| order == Order::Suspend { task, attempt }));
    rig.load("h1", 1, 1.0);
    assert_eq!(rig.state(task), "suspended");
    rig.load("h1", 1, 0.6);
    assert!(orders.try_iter().any(|order| order == Order::Resume { task, attempt }));
}
