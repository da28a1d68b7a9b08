//! A grid with its agents, its journal and its users.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::ByteSize;
use forebay_grid::config::Config;
use forebay_grid::event::{Loss, Memory, QueueVerb, Verb};
use forebay_grid::journal::{HostSwitch, Record};
use forebay_grid::modify::{Changes, Rank, Set};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Exit, JobSpec, Rerun, Sharing};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, Target, TaskId, UserName};
use forebay_grid::{Effect, Event, Grid, Ledger, Outcome};

use super::agent::{Agent, End, Process};
use super::op::{Job, Op, Pick};
use crate::pieces::Pieces;

/// Monday, 2024-01-01 06:00 UTC.
const START: u64 = 1_704_088_800_000;

pub const CONFIGS: [&str; 4] = [
    r#"
[general]
admins = ["admin"]
[[queue]]
name = "q0"
priority = 10
rerun = "rerunnable"
[[queue]]
name = "q1"
priority = 20
order = "fair_share"
hosts = "h0+2 others+1"
[[queue]]
name = "q2"
"#,
    r#"
[general]
admins = ["admin"]
user_slots_max = 7
time_zone = "UTC"
[[queue]]
name = "q0"
priority = 10
dispatch_windows = "8:00-18:00"
slots_max = 6
[[queue]]
name = "q1"
priority = 20
order = "fair_share"
run_windows = "20:00-7:00"
user_slots_max = 4
time_limit_max = "2 h"
[queue.load]
r1m = { schedule = 0.7, stop = 1.2 }
[[queue]]
name = "q2"
host_slots_max = 4
hosts = "all ~h2"
[[host]]
name = "h1"
slots = 5
memory = "2 GiB"
"#,
    r#"
[general]
admins = ["admin"]
dispatch = { interval = { sleep = "10 s", accept = 1 } }
[[queue]]
name = "q0"
priority = 10
[[queue]]
name = "q1"
order = "fair_share"
[[queue]]
name = "q2"
[[host]]
name = "h3"
role = "control"
"#,
    // A queue is gone, leases and limits are others.
    r#"
[general]
admins = ["admin"]
lease = "20 s"
host_timeout = "25 s"
attempts_max = 4
finished_max = 10
[[queue]]
name = "q0"
[[queue]]
name = "q2"
priority = 5
slots_max = 5
"#,
];

/// Licences of every configuration.
pub const LICENCES: u32 = 3;

pub fn read_config(config: usize) -> Config {
    let text = CONFIGS[config % CONFIGS.len()];
    Config::read(&format!("{text}\n[resources]\nlic = {LICENCES}\n")).unwrap()
}

/// A task that was given to a host and has not ended, as told by effects alone.
#[derive(Clone, Debug)]
pub struct Placed {
    pub host: HostName,
    pub attempt: Attempt,
    pub slots: u32,
    pub memory_bytes: u64,
    pub licences: u32,
    pub sharing: Sharing,
}

pub struct World {
    pub now: Moment,
    pub grid: Grid,
    pub config: Config,
    pub agents: Vec<Agent>,
    pub records: Vec<Record>,
    pub jobs: BTreeMap<JobId, (UserName, JobSpec)>,
    pub forgotten: BTreeSet<JobId>,
    pub placed: BTreeMap<TaskId, Placed>,
    /// Tasks that a process was started for, and that nothing allows to start again.
    pub spent: BTreeSet<TaskId>,
    pub to_clean: Vec<(TaskId, u32)>,
    old: Vec<Event>,
    snapshot: Pieces,
}

impl World {
    pub fn new(config: usize) -> World {
        let now = Moment(START);
        let mut world = World {
            now,
            grid: Grid::restore(Ledger::default(), [], now).unwrap(),
            config: Config::default(),
            agents: vec![
                Agent::new("h0", 4, 4 << 30),
                Agent::new("h1", 8, 4 << 30),
                Agent::new("h2", 2, 1 << 30),
                Agent::new("h3", 3, 8 << 30),
            ],
            records: Vec::new(),
            jobs: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            placed: BTreeMap::new(),
            spent: BTreeSet::new(),
            to_clean: Vec::new(),
            old: Vec::new(),
            snapshot: Pieces::default(),
        };
        world.configure(config);
        for host in 0..4 {
            world.connect(host, Memory::Kept);
        }
        world
    }

    pub fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.act(op);
            self.check();
        }
        self.drain();
        self.replay();
    }

    /// Hands an event to the grid, journals and carries out what follows.
    pub fn send(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Outcome::default();
        self.grid.apply(self.now, event.clone(), &mut out);
        if matches!(event, Event::Exited { .. } | Event::Lost { .. } | Event::Started { .. }) {
            self.old.push(event);
        }
        for record in &out.records {
            // What the journal holds is what was written, read back.
            let bytes = postcard::to_allocvec(record).unwrap();
            let back: Record = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(&back, record);
            self.records.push(back);
        }
        for effect in &out.effects {
            self.carry_out(effect);
        }
        out.effects
    }

    fn agent(&mut self, host: &HostName) -> &mut Agent {
        self.agents.iter_mut().find(|agent| agent.name == *host).expect("a known host")
    }

    fn carry_out(&mut self, effect: &Effect) {
        match effect {
            Effect::Launch { task, attempt, host, slots, .. } => {
                self.check_launch(*task, host, *slots);
                let memory_bytes = self.jobs[&task.job].1.memory.map_or(0, |memory| memory.0);
                let (attempt, slots) = (*attempt, *slots);
                let spec = &self.jobs[&task.job].1;
                let (licences, sharing) = (spec.resources.of("lic"), spec.sharing);
                let host_of = host.clone();
                let placed =
                    Placed { host: host_of, attempt, slots, memory_bytes, licences, sharing };
                assert!(self.placed.insert(*task, placed).is_none(), "{task} was given out twice");
                let (task, now) = (*task, self.now);
                let agent = self.agent(host);
                // An agent whose lease is over starts nothing; it says so when it is asked.
                if agent.connected && now < agent.leased {
                    let end = agent.sick.then(|| End::Lost(Loss::Unable("it is sick".to_owned())));
                    let began = end.is_none();
                    let process = Process { confirmed: false, stopped: false, end };
                    agent.processes.insert((task, attempt), process);
                    if began {
                        self.spent.insert(task);
                    }
                }
            }
            Effect::Kill { task, attempt, host, .. } => {
                let agent = self.agent(host);
                if agent.connected
                    && let Some(process) = agent.processes.get_mut(&(*task, *attempt))
                {
                    process.end.get_or_insert(End::Exited(Exit::Signal(15)));
                }
            }
            Effect::Suspend { task, attempt, host } => self.signal(host, (*task, *attempt), true),
            Effect::Resume { task, attempt, host } => self.signal(host, (*task, *attempt), false),
            Effect::GrantLease { host, lease } => {
                let until = self.now.after(lease.as_ms());
                self.agent(host).leased = until;
            }
            Effect::Ended(record) => {
                let placed = self.placed.remove(&record.task).expect("what ended was given out");
                assert_eq!((&placed.host, placed.attempt), (&record.host, record.attempt));
                self.allow_again(record);
            }
            Effect::ReleaseWork { task, requeues, .. } => self.to_clean.push((*task, *requeues)),
            Effect::Forgotten { job } => {
                self.forgotten.insert(*job);
                self.jobs.remove(job);
            }
            Effect::Refuse { host, reason } => panic!("{host} is refused: {reason}"),
            Effect::Disconnect { host } => self.agent(host).connected = false,
            Effect::Signal { .. }
            | Effect::Warn { .. }
            | Effect::Accepted { .. }
            | Effect::Obeyed { .. }
            | Effect::Rejected(_)
            | Effect::KeepWork { .. }
            | Effect::Flow(_)
            | Effect::JobFinished { .. } => {}
        }
    }

    /// Notes when a rule lets a task start again that was started before.
    fn allow_again(&mut self, record: &forebay_grid::account::AttemptRecord) {
        let spec = &self.jobs[&record.task.job].1;
        let by_exit = record
            .exit
            .as_ref()
            .is_some_and(|exit| spec.requeue_exits.find(exit.value()).is_some());
        // What the grid may start again after a loss; the tests' configurations make one queue
        // rerunnable by default.
        let queue = spec.queue.as_ref().map(|queue| queue.as_str());
        let rerunnable = spec.rerun == Rerun::Rerunnable
            || (spec.rerun == Rerun::AsQueue
                && queue.is_some_and(|name| {
                    let of = |q: &&forebay_grid::config::QueueConfig| q.name.as_str() == name;
                    self.config.queues.iter().find(of).is_some_and(|queue| {
                        queue.rerun == forebay_grid::config::RerunDefault::Rerunnable
                    })
                }));
        if by_exit || (record.exit.is_none() && rerunnable) {
            self.spent.remove(&record.task);
        }
    }

    fn signal(&mut self, host: &HostName, key: (TaskId, Attempt), stop: bool) {
        let agent = self.agent(host);
        if agent.connected
            && let Some(process) = agent.processes.get_mut(&key)
        {
            process.stopped = stop;
        }
    }

    pub fn connect(&mut self, host: usize, memory: Memory) {
        let now = self.now;
        let agent = &mut self.agents[host];
        agent.fence(now);
        if memory == Memory::Lost {
            agent.processes.clear();
        }
        agent.connected = true;
        let joined = agent.joined(memory);
        // What was reported as ended is forgotten once it was taken note of.
        agent.processes.retain(|_, process| process.end.is_none());
        for process in agent.processes.values_mut() {
            process.confirmed = true;
        }
        self.send(Event::HostJoined(Box::new(joined)));
    }

    fn configure(&mut self, config: usize) {
        self.config = read_config(config);
        self.send(Event::Configured(Box::new(self.config.clone())));
    }

    fn submit(&mut self, job: &Job) {
        let user: UserName = format!("u{}", job.user).parse().unwrap();
        let array = (job.tasks > 1).then(|| {
            let throttle =
                if job.throttle > 0 { format!("%{}", job.throttle) } else { String::new() };
            format!("[1-{}:2]{throttle}", u32::from(job.tasks) * 2).parse().unwrap()
        });
        let hosts = ["", "h0", "h1+1 others+2", "h2! h3", "all ~h0", "h1 h2"][job.hosts as usize];
        let own = self.jobs.iter().rev().filter(|(_, (owner, _))| *owner == user);
        let ids: Vec<JobId> = own.map(|(id, _)| *id).collect();
        let depends = job.depends.filter(|_| !ids.is_empty()).map(|(one, two, kind)| {
            let (a, b) = (ids[one as usize % ids.len()], ids[two as usize % ids.len()]);
            let text = match kind {
                0 => format!("done({a})"),
                1 => format!("ended({a}) && ended({b})"),
                2 => format!("exit({a}) || done({b})"),
                3 => format!("started({a})"),
                4 => format!("exit({a}, >= 98)"),
                _ => format!("numended({a}, > 0) && done({b})"),
            };
            text.parse().unwrap()
        });
        let spec = JobSpec {
            command: vec!["program".to_owned()],
            queue: Some(format!("q{}", job.queue).parse().unwrap()),
            slots: u32::from(job.slots),
            hosts: hosts.parse().unwrap(),
            memory: (job.memory > 0).then(|| ByteSize::mib(512 * u64::from(job.memory))),
            array,
            depends,
            priority: i32::from(job.priority),
            rerun: if job.rerunnable { Rerun::Rerunnable } else { Rerun::AsQueue },
            requeue_exits: if job.requeue { "99 EXCLUDE(98)" } else { "" }.parse().unwrap(),
            time_limit: (job.limit > 0).then(|| Period::seconds(40 * u64::from(job.limit))),
            held: job.held,
            begin: (job.begin > 0).then(|| self.now.after(20_000 * u64::from(job.begin))),
            resources: if job.licences > 0 {
                format!("lic:{}", job.licences).parse().unwrap()
            } else {
                Default::default()
            },
            sharing: if job.exclusive { Sharing::Exclusive } else { Sharing::Shared },
            ..JobSpec::default()
        };
        // Known before, because it may be started at once.
        let next = JobId(self.jobs.keys().chain(&self.forgotten).max().map_or(1, |job| job.0 + 1));
        self.jobs.insert(next, (user.clone(), spec.clone()));
        let effects = self.send(Event::Submit { user, spec: Box::new(spec), key: None });
        if !effects.contains(&Effect::Accepted { job: next }) {
            assert!(effects.iter().any(|effect| matches!(effect, Effect::Rejected(_))));
            self.jobs.remove(&next);
        }
    }

    fn target(&self, pick: Pick) -> Option<(UserName, Target)> {
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        let job = *ids.get(pick.job as usize % ids.len().max(1))?;
        let (user, spec) = &self.jobs[&job];
        let place = |task: u8| u32::from(task) % spec.tasks();
        let index = pick.task.and_then(|task| spec.array.as_ref()?.index_at(place(task)));
        Some((user.clone(), Target { job, index }))
    }

    /// Changes one thing of a job to that of another.
    fn modify(&mut self, job: u8, to: &Job, what: u8) {
        let Some((by, Target { job, .. })) = self.target(Pick { job, task: None }) else { return };
        let mut changes = Changes::default();
        match what {
            0 => changes.queue = Some(format!("q{}", to.queue).parse().unwrap()),
            1 => changes.slots = Some(u32::from(to.slots)),
            2 => changes.priority = Some(i32::from(to.priority)),
            3 => {
                changes.sharing =
                    Some(if to.exclusive { Sharing::Exclusive } else { Sharing::Shared });
            }
            4 => changes.depends = Some(Set::Nothing),
            5 => {
                let limit = Period::seconds(40 * u64::from(to.limit) + 40);
                changes.time_limit = Some(Set::To(limit));
            }
            _ => changes.rank = Some(if to.held { Rank::Top } else { Rank::Bottom }),
        }
        // What the time alone brings comes before the change.
        self.send(Event::Tick);
        let Some(before) = self.jobs.get(&job).cloned() else { return };
        // Known before, as it may be started at once. Tasks on hosts keep their slots.
        let spec = changes.of(&before.1);
        self.jobs.get_mut(&job).unwrap().1 = spec;
        let effects = self.send(Event::Modify { by, job, changes: Box::new(changes) });
        if !effects.iter().any(|effect| matches!(effect, Effect::Obeyed { .. })) {
            assert!(effects.iter().any(|effect| matches!(effect, Effect::Rejected(_))));
            if let Some(entry) = self.jobs.get_mut(&job) {
                *entry = before;
            }
        }
    }

    fn command(&mut self, pick: Pick, verb: Verb) {
        let Some((by, target)) = self.target(pick) else { return };
        if verb == Verb::Requeue {
            self.spent.retain(|task| {
                task.job != target.job || target.index.is_some_and(|index| index != task.index)
            });
        }
        self.send(Event::Command { by, target, verb });
    }

    /// Lets seconds pass; connected agents report as they should.
    pub fn pass(&mut self, seconds: u16) {
        let mut left = u64::from(seconds) * 1000;
        while left > 0 {
            let step = left.min(if left > 600_000 { 300_000 } else { 10_000 });
            left -= step;
            for _ in 0..step.div_ceil(10_000) {
                let wake = self.grid.next_wake();
                let beat = self.now.after(step.min(10_000));
                if wake > self.now && wake < beat {
                    self.now = wake;
                    self.send(Event::Tick);
                }
                self.now = beat;
                for host in 0..self.agents.len() {
                    self.agents[host].fence(beat);
                    if self.agents[host].connected {
                        self.load(host, 10);
                    }
                }
                self.send(Event::Tick);
                self.report_ends();
            }
        }
    }

    fn load(&mut self, host: usize, percent: u8) {
        let r1m = f64::from(percent) / 100.0;
        let load = forebay_grid::config::Load { r15s: r1m, r1m, ..Default::default() };
        let host = self.agents[host].name.clone();
        self.send(Event::HostLoad { host, load });
    }

    /// Connected agents tell of the processes that ended.
    pub fn report_ends(&mut self) {
        for host in 0..self.agents.len() {
            while self.agents[host].connected
                && let Some(event) = self.agents[host].take_end()
            {
                self.send(event);
            }
        }
    }

    pub fn confirm(&mut self, host: usize) {
        let agent = &mut self.agents[host];
        if !agent.connected {
            return;
        }
        let name = agent.name.clone();
        let new: Vec<(TaskId, Attempt)> = agent
            .processes
            .iter_mut()
            .filter(|(_, process)| !process.confirmed && process.end.is_none())
            .map(|(key, process)| {
                process.confirmed = true;
                *key
            })
            .collect();
        for (task, attempt) in new {
            self.send(Event::Started { host: name.clone(), task, attempt });
        }
    }

    /// The controller starts again from what it wrote.
    pub fn restart(&mut self) {
        let after = &self.records[self.snapshot.records..];
        let grid = Grid::restore(self.snapshot.read(), after, self.now).unwrap();
        assert_eq!(grid.ledger(), self.grid.ledger(), "the journal gives the same state");
        self.snapshot.write(grid.ledger(), &self.records);
        self.grid = grid;
        for agent in &mut self.agents {
            agent.connected = false;
        }
    }

    fn replay(&mut self) {
        let grid = Grid::restore(Ledger::default(), &self.records, self.now).unwrap();
        assert_eq!(grid.ledger(), self.grid.ledger(), "all records give the same state");
    }

    fn act(&mut self, op: &Op) {
        let hosts = self.agents.len();
        let at = |host: u8| host as usize % hosts;
        match op {
            Op::Submit(job) => self.submit(job),
            Op::Kill(pick) => self.command(*pick, Verb::Kill),
            Op::Hold(pick) => self.command(*pick, Verb::Hold),
            Op::Release(pick) => self.command(*pick, Verb::Release),
            Op::Modify { job, to, what } => self.modify(*job, to, *what),
            Op::Requeue(pick) => self.command(*pick, Verb::Requeue),
            Op::Confirm(host) => self.confirm(at(*host)),
            Op::Exit { host, process, code } => {
                let agent = &mut self.agents[at(*host)];
                let live = agent.processes.len().max(1);
                if let Some(process) = agent.processes.values_mut().nth(*process as usize % live) {
                    process.end.get_or_insert(End::Exited(Exit::Code(*code)));
                }
                self.report_ends();
            }
            Op::Disconnect(host) => {
                self.agents[at(*host)].connected = false;
                let host = self.agents[at(*host)].name.clone();
                self.send(Event::HostLost { host });
            }
            Op::Partition(host) => self.agents[at(*host)].connected = false,
            Op::Reconnect(host) => self.connect(at(*host), Memory::Kept),
            Op::Reboot(host) => self.connect(at(*host), Memory::Lost),
            Op::Sicken(host) => self.agents[at(*host)].sick = true,
            Op::Heal(host) => self.agents[at(*host)].sick = false,
            Op::Load { host, percent } => {
                if self.agents[at(*host)].connected {
                    self.load(at(*host), *percent);
                }
            }
            Op::Pass(seconds) => self.pass(*seconds),
            Op::Restart => self.restart(),
            Op::Configure(config) => self.configure(*config as usize),
            Op::SwitchQueue { queue, verb } => {
                let verbs =
                    [QueueVerb::Open, QueueVerb::Close, QueueVerb::Activate, QueueVerb::Inactivate];
                let by = "admin".parse().unwrap();
                let queue = format!("q{}", queue % 3).parse().unwrap();
                self.send(Event::Queue { by, queue, verb: verbs[*verb as usize % 4] });
            }
            Op::SwitchHost { host, switch } => {
                let switches = [HostSwitch::Open, HostSwitch::Closed, HostSwitch::Removed];
                let state = switches[*switch as usize % 3];
                let host = self.agents[at(*host)].name.clone();
                self.send(Event::Host { by: "admin".parse().unwrap(), host, state });
            }
            Op::Stale(which) => self.repeat(*which),
            Op::Clean => {
                for (task, requeues) in std::mem::take(&mut self.to_clean) {
                    self.send(Event::WorkReleased { task, requeues, result: Ok(()) });
                }
            }
        }
        self.report_ends();
    }

    /// An old message comes once more: it changes nothing unless it is about what runs now.
    fn repeat(&mut self, which: u8) {
        let Some(event) = self.old.get(which as usize % self.old.len().max(1)).cloned() else {
            return;
        };
        let (Event::Started { task, attempt, host }
        | Event::Exited { task, attempt, host, .. }
        | Event::Lost { task, attempt, host, .. }) = &event
        else {
            return;
        };
        let now = self.placed.get(task);
        if now.is_some_and(|now| now.attempt == *attempt && now.host == *host) {
            return;
        }
        self.send(Event::Tick);
        let before = self.grid.ledger().clone();
        self.send(event);
        assert_eq!(&before, self.grid.ledger(), "a stale message changed something");
    }

    /// Lets everything come to its end: nothing may be lost on the way.
    fn drain(&mut self) {
        self.configure(0);
        for queue in ["q0", "q1", "q2"] {
            self.grid_admin(queue);
        }
        for host in 0..self.agents.len() {
            self.agents[host].sick = false;
            self.connect(host, Memory::Kept);
            let name = self.agents[host].name.clone();
            let by: UserName = "admin".parse().unwrap();
            self.send(Event::Host { by, host: name, state: HostSwitch::Open });
        }
        for job in self.jobs.keys().copied().collect::<Vec<_>>() {
            if let Some((by, _)) = self.jobs.get(&job).cloned() {
                self.send(Event::Command { by, target: job.into(), verb: Verb::Release });
            }
        }
        self.check_none_stays_suspended();
        // Hosts that could start nothing are asked again after a minute at the latest.
        self.pass(60);
        for _ in 0..2000 {
            self.pass(1);
            let mut idle = true;
            for host in 0..self.agents.len() {
                self.confirm(host);
                for process in self.agents[host].processes.values_mut() {
                    process.end.get_or_insert(End::Exited(Exit::Code(0)));
                    idle = false;
                }
            }
            self.report_ends();
            self.check();
            if idle && self.placed.is_empty() {
                break;
            }
        }
        self.check_drained();
    }

    fn grid_admin(&mut self, queue: &str) {
        for verb in [QueueVerb::Open, QueueVerb::Activate] {
            let by = "admin".parse().unwrap();
            self.send(Event::Queue { by, queue: queue.parse().unwrap(), verb });
        }
    }
}
