//! What must always hold, from the outside: told by effects, by views and by explanations.

use std::collections::{BTreeMap, BTreeSet};

use forebay_grid::config::{Load, QueueConfig};
use forebay_grid::grid::{Explanation, HostObstacle, Reason, State};
use forebay_grid::parse::dependency::{Compare, Condition, Countable, JobName, JobRef, Test};
use forebay_grid::spec::{JobSpec, Sharing};
use forebay_grid::task::{Cause, Phase, Stops, Task};
use forebay_grid::vocabulary::{HostName, JobId, TaskId};

use super::world::{LICENCES, World};

impl World {
    fn queue(&self, spec: &JobSpec) -> Option<&QueueConfig> {
        self.config.queues.iter().find(|queue| Some(&queue.name) == spec.queue.as_ref())
    }

    fn slots_of(&self, host: &HostName) -> u32 {
        let listed = self.config.hosts.iter().find(|listed| listed.name == *host);
        let agent = self.agents.iter().find(|agent| agent.name == *host).unwrap();
        listed.and_then(|listed| listed.slots).unwrap_or(agent.cores)
    }

    fn memory_of(&self, host: &HostName) -> u64 {
        let listed = self.config.hosts.iter().find(|listed| listed.name == *host);
        let agent = self.agents.iter().find(|agent| agent.name == *host).unwrap();
        listed.and_then(|listed| listed.memory).map_or(agent.memory_bytes, |memory| memory.0)
    }

    /// Slots in use that a filter lets pass.
    fn used(&self, counts: impl Fn(TaskId, &HostName) -> bool) -> u32 {
        let placed = self.placed.iter().filter(|(task, placed)| counts(**task, &placed.host));
        placed.map(|(_, placed)| placed.slots).sum()
    }

    fn used_on(&self, host: &HostName) -> u32 {
        self.used(|_, on| on == host)
    }

    /// Licences in use.
    fn licences(&self) -> u32 {
        self.placed.values().map(|placed| placed.licences).sum()
    }

    /// Whether a job has a host for itself.
    fn has_alone(&self, host: &HostName) -> bool {
        let mut there = self.placed.values().filter(|placed| placed.host == *host);
        there.any(|placed| placed.sharing == Sharing::Exclusive)
    }

    fn in_queue(&self, task: TaskId, spec: &JobSpec) -> bool {
        self.jobs[&task.job].1.queue == spec.queue
    }

    /// Minutes of the day, UTC.
    fn minute(&self) -> u64 {
        self.now.0 / 60_000 % 1440
    }

    fn window_open(&self, text: &str) -> bool {
        match text {
            "" => true,
            "8:00-18:00" => (480..1080).contains(&self.minute()),
            "20:00-7:00" => !(420..1200).contains(&self.minute()),
            other => panic!("no rule for {other}"),
        }
    }

    /// Everything that must hold when a task is given out. It is not yet among the placed ones.
    pub fn check_launch(&self, task: TaskId, host: &HostName, slots: u32) {
        let (user, spec) = &self.jobs[&task.job];
        let queue = self.queue(spec).expect("a queue that is gone starts nothing");
        assert_eq!(slots, spec.slots());
        assert!(self.used_on(host) + slots <= self.slots_of(host), "slots of {host}");
        let memory: u64 = self
            .placed
            .values()
            .filter(|placed| placed.host == *host)
            .map(|placed| placed.memory_bytes)
            .sum();
        assert!(
            spec.memory_bytes() == 0 || memory + spec.memory_bytes() <= self.memory_of(host),
            "memory of {host}"
        );
        let of_queue = self.used(|other, _| self.in_queue(other, spec));
        assert!(queue.slots_max.is_none_or(|most| of_queue + slots <= most), "slots of queue");
        let of_user = self.used(|other, _| self.jobs[&other.job].0 == *user);
        let general = &self.config.general;
        assert!(general.user_slots_max.is_none_or(|most| of_user + slots <= most), "slots of user");
        let both = self.used(|o, _| self.in_queue(o, spec) && self.jobs[&o.job].0 == *user);
        assert!(queue.user_slots_max.is_none_or(|most| both + slots <= most), "user in queue");
        let there = self.used(|other, on| self.in_queue(other, spec) && on == host);
        assert!(queue.host_slots_max.is_none_or(|most| there + slots <= most), "queue on host");
        assert!(self.window_open(&queue.dispatch_windows.to_string()), "dispatch window");
        assert!(self.window_open(&queue.run_windows.to_string()), "run window");
        assert!(queue.hosts.preference(host).is_some() && spec.hosts.preference(host).is_some());
        assert!(spec.begin.is_none_or(|begin| begin <= self.now), "{task} started before its time");
        assert!(self.licences() + spec.resources.of("lic") <= LICENCES, "licences of {task}");
        assert!(!self.has_alone(host), "{task} beside an exclusive job");
        let is_empty = self.placed.values().all(|placed| placed.host != *host);
        assert!(is_empty || spec.sharing == Sharing::Shared, "{task} is not alone");
        if let Some(depends) = &spec.depends {
            assert!(self.holds(&depends.0), "{task} started before {depends}");
        }
        if let Some(most) = spec.array.as_ref().and_then(|array| array.running_max) {
            let active = self.placed.keys().filter(|other| other.job == task.job).count();
            assert!((active as u32) < most, "throttle of {task}");
        }
        assert!(!self.spent.contains(&task), "{task} may not be started again");
    }

    fn states(&self, job: &JobRef) -> Vec<State> {
        let state = |task| self.grid.state(task).expect("a known task");
        tasks_of_ref(self, job).into_iter().map(state).collect()
    }

    /// Whether a condition holds, from what tasks look like.
    fn holds(&self, condition: &Condition<JobRef>) -> bool {
        let (test, job) = match condition {
            Condition::All(parts) => return parts.iter().all(|part| self.holds(part)),
            Condition::Any(parts) => return parts.iter().any(|part| self.holds(part)),
            Condition::Is(test, job) => (test, job),
            Condition::Each(..) | Condition::Singleton => panic!("no rule for {condition}"),
        };
        let states = self.states(job);
        let code = |state: &State| match state {
            State::Finished { exit, .. } => exit.as_ref().map(|exit| u32::from(exit.value())),
            _ => None,
        };
        let ended = |state: &State| matches!(state, State::Finished { .. });
        let done = |state: &State| {
            matches!(state, State::Finished { cause: Cause::Exited, .. }) && code(state) == Some(0)
        };
        let all_ended = !states.is_empty() && states.iter().all(ended);
        match test {
            Test::Done => !states.is_empty() && states.iter().all(done),
            Test::Ended => all_ended,
            Test::Exit(None) => all_ended && !states.iter().all(done),
            Test::Exit(Some(comparison)) => {
                assert_eq!((comparison.how, comparison.number), (Compare::AtLeast, 98));
                all_ended && states.iter().any(|state| code(state) >= Some(98))
            }
            Test::Started => tasks_of_ref(self, job).into_iter().all(|task| {
                // Not told by views while the host is away.
                match self.grid.ledger().task(task).expect("a known task") {
                    Task::Pending(_) | Task::Held(_) => false,
                    Task::Active(run) => run.phase != Phase::Starting,
                    Task::Finished(_) => true,
                }
            }),
            Test::Number(Countable::Ended, _) => states.iter().any(ended),
            other => panic!("no rule for {other:?}"),
        }
    }

    pub fn check(&mut self) {
        self.check_processes();
        self.check_counts();
        let tasks: Vec<TaskId> =
            self.jobs.iter().flat_map(|(id, (_, spec))| tasks_of(*id, spec)).collect();
        // Windows and limits are looked at when the grid is told the time.
        self.send(forebay_grid::Event::Tick);
        self.report_ends();
        for task in tasks {
            let Some(state) = self.grid.state(task) else {
                assert!(self.forgotten.contains(&task.job), "{task} is lost");
                continue;
            };
            self.check_running(task, &state);
            if matches!(state, State::Pending { .. } | State::Held { .. }) {
                self.check_explanation(task, &state);
            }
        }
    }

    /// No task has two processes, wherever they are.
    fn check_processes(&self) {
        let mut live: BTreeMap<TaskId, HostName> = BTreeMap::new();
        for agent in &self.agents {
            for task in agent.live() {
                if let Some(other) = live.insert(task, agent.name.clone()) {
                    panic!("{task} runs on {other} and on {}", agent.name);
                }
            }
        }
    }

    /// Views agree with what effects told.
    fn check_counts(&self) {
        for host in self.grid.hosts() {
            assert_eq!(host.used_slots, self.used_on(&host.name), "{}", host.name);
            let placed: BTreeSet<TaskId> = self
                .placed
                .iter()
                .filter(|(_, placed)| placed.host == host.name)
                .map(|(task, _)| *task)
                .collect();
            assert!(host.tasks.into_iter().eq(placed), "tasks of {}", host.name);
        }
        for queue in self.grid.queues() {
            let of = |task: TaskId, _: &HostName| {
                self.jobs[&task.job].1.queue.as_ref() == Some(&queue.name)
            };
            assert_eq!(queue.used_slots, self.used(of), "{}", queue.name);
        }
    }

    fn check_running(&self, task: TaskId, state: &State) {
        let spec = &self.jobs[&task.job].1;
        let run_open =
            self.queue(spec).is_none_or(|queue| self.window_open(&queue.run_windows.to_string()));
        match state {
            State::Running { host, attempt, started } => {
                assert!(run_open, "{task} runs outside its window");
                let agent = self.agents.iter().find(|agent| agent.name == *host).unwrap();
                let process = agent.processes.get(&(task, *attempt));
                if agent.connected {
                    let process = process.unwrap_or_else(|| panic!("{task} has no process"));
                    assert!(!process.stopped, "{task} is stopped");
                }
                if let (Some(limit), true) = (spec.time_limit, agent.connected)
                    && !self.was_suspended(task)
                {
                    assert!(self.now < started.after(limit.as_ms()), "{task} runs for too long");
                }
            }
            State::Suspended { host, attempt, stops, .. } => {
                assert!(!stops.is_empty());
                assert!(!run_open || !stops.has(Stops::WINDOW), "{task} waits for an open window");
                let agent = self.agents.iter().find(|agent| agent.name == *host).unwrap();
                let process = agent.processes.get(&(task, *attempt));
                assert!(!agent.connected || process.is_some_and(|process| process.stopped));
            }
            State::Pending { .. }
            | State::Held { .. }
            | State::Starting { .. }
            | State::Unknown { .. }
            | State::Finished { .. } => {}
        }
    }

    /// Whether the time in which a task was suspended lets it run longer.
    fn was_suspended(&self, task: TaskId) -> bool {
        let run = self.grid.ledger().task(task).and_then(|task| task.run()).expect("it runs");
        run.phase
            != forebay_grid::task::Phase::Running {
                started: run.phase.started().unwrap(),
                suspended_ms: 0,
            }
    }

    /// A task that waits has a reason, and each reason is true.
    fn check_explanation(&self, task: TaskId, state: &State) {
        let Some(Explanation::Waits { reasons, hosts }) = self.grid.explain(task) else {
            panic!("{task} waits and that is not explained");
        };
        assert!(!reasons.is_empty(), "{task} waits for no reason");
        let (user, spec) = &self.jobs[&task.job];
        let needed = u64::from(spec.slots());
        let of_queue = u64::from(self.used(|other, _| self.in_queue(other, spec)));
        let of_user = u64::from(self.used(|other, _| self.jobs[&other.job].0 == *user));
        let both = self.used(|o, _| self.in_queue(o, spec) && self.jobs[&o.job].0 == *user);
        for reason in &reasons {
            let is_true = match reason {
                Reason::Held => matches!(state, State::Held { .. }),
                Reason::DependencyNever(_) => false,
                Reason::Dependency(_) => !self.holds(&spec.depends.as_ref().unwrap().0),
                // The model has no services.
                Reason::Pause { .. } => false,
                Reason::Begin { at } => *at > self.now && spec.begin == Some(*at),
                Reason::Resource { name, needed, used, most } => {
                    *used == self.licences()
                        && *most == LICENCES
                        && used + needed > *most
                        && *needed == spec.resources.of(name.as_str())
                }
                Reason::ResourceKept { job, .. } => *job != task.job && self.jobs.contains_key(job),
                Reason::Throttle { active } => {
                    let now = self.placed.keys().filter(|other| other.job == task.job).count();
                    now as u32 == *active
                        && spec.array.as_ref().unwrap().running_max <= Some(*active)
                }
                Reason::QueueGone(_) => self.queue(spec).is_none(),
                Reason::QueueInactive => self.grid.queues().any(|queue| {
                    Some(&queue.name) == spec.queue.as_ref()
                        && queue.switch.starts == forebay_grid::journal::Starts::Inactive
                }),
                Reason::DispatchWindow => {
                    !self.window_open(&self.queue(spec).unwrap().dispatch_windows.to_string())
                }
                Reason::RunWindow => {
                    !self.window_open(&self.queue(spec).unwrap().run_windows.to_string())
                }
                Reason::QueueSlots { used, most } => {
                    *used == of_queue && used + needed > u64::from(*most)
                }
                Reason::UserSlotsInQueue { used, most } => {
                    *used == u64::from(both) && used + needed > u64::from(*most)
                }
                Reason::UserSlots { used, most } => {
                    *used == of_user && used + needed > u64::from(*most)
                }
                Reason::NoHostSuits | Reason::NoHostFits => {
                    hosts.iter().all(|verdict| verdict.obstacle.is_some())
                }
                Reason::Reserved { host, slots, .. } => {
                    let wanted = match spec.sharing {
                        Sharing::Shared => spec.slots(),
                        Sharing::Exclusive => self.slots_of(host),
                    };
                    *slots == wanted && self.slots_of(host) >= *slots
                }
                Reason::Passed { left } => left.as_ms() > 0,
                // Of tasks that were started only.
                Reason::StoppedByUser
                | Reason::StoppedByWindow
                | Reason::StoppedByLoad
                | Reason::StoppedByArea
                | Reason::Area { .. }
                | Reason::Limits { .. }
                | Reason::Preempted { .. }
                | Reason::Requeued { .. }
                | Reason::Preempts { .. }
                | Reason::Warning { .. }
                | Reason::Slurm(_) => false,
                // The model neither preempts, nor reserves in advance, nor has job groups.
                Reason::Awaits { .. }
                | Reason::ReservationGone(_)
                | Reason::ReservationOfOthers(_)
                | Reason::ReservationStarts { .. }
                | Reason::GroupFull { .. } => false,
                Reason::NextRound { at } => {
                    self.config.general.dispatch != forebay_grid::config::Dispatch::Event
                        && *at > self.now
                }
            };
            assert!(is_true, "{task}: not true: {reason:?} {hosts:?}");
        }
        for verdict in &hosts {
            let used = self.used_on(&verdict.host);
            let free = self.slots_of(&verdict.host).saturating_sub(used);
            match verdict.obstacle {
                None => assert!(u64::from(free) >= needed, "{task} on {}", verdict.host),
                Some(HostObstacle::Slots { free: said }) => {
                    assert!(said == free && u64::from(free) < needed);
                }
                Some(HostObstacle::NotInJob) => {
                    assert!(spec.hosts.preference(&verdict.host).is_none());
                }
                Some(HostObstacle::Busy { jobs }) => {
                    let there = self.placed.values().filter(|placed| placed.host == verdict.host);
                    assert_eq!(there.count(), jobs as usize);
                }
                Some(HostObstacle::Exclusive { job }) => {
                    assert!(self.has_alone(&verdict.host) && self.jobs.contains_key(&job));
                }
                Some(HostObstacle::TooSmall { slots }) => assert!(u64::from(slots) < needed),
                Some(HostObstacle::Reserved { job }) => {
                    assert!(job != task.job && self.jobs.contains_key(&job), "{task} {job}");
                }
                Some(_) => {}
            }
        }
    }

    /// Where nobody holds anything and no threshold or window is left, everything goes on after as many reports as
    /// a host has tasks.
    pub fn check_none_stays_suspended(&mut self) {
        let hosts: Vec<HostName> = self.agents.iter().map(|agent| agent.name.clone()).collect();
        for host in &hosts {
            for _ in 0..self.placed.values().filter(|placed| placed.host == *host).count() {
                let load = Load { r1m: 9.0, ..Load::default() };
                self.send(forebay_grid::Event::HostLoad { host: host.clone(), load });
            }
        }
        for task in self.placed.keys() {
            let state = self.grid.state(*task);
            assert!(!matches!(state, Some(State::Suspended { .. })), "{task} stays suspended");
        }
    }

    /// At the end everything has ended but for what can never start.
    pub fn check_drained(&self) {
        for (id, (_, spec)) in &self.jobs {
            for task in tasks_of(*id, spec) {
                match self.grid.state(task).expect("a known task") {
                    State::Finished { .. } => {}
                    State::Pending { .. } => {
                        let Some(Explanation::Waits { reasons, hosts }) = self.grid.explain(task)
                        else {
                            panic!("{task} waits and that is not explained");
                        };
                        let never = |reason: &Reason| matches!(reason, Reason::NoHostSuits);
                        let waits = |reason: &Reason| matches!(reason, Reason::Dependency(_));
                        assert!(
                            reasons.iter().any(|reason| never(reason) || waits(reason)),
                            "{task} still waits: {reasons:?} {hosts:?}"
                        );
                    }
                    state => panic!("{task} is {state:?} at the end"),
                }
            }
        }
    }
}

fn tasks_of_ref(world: &World, job: &JobRef) -> Vec<TaskId> {
    let JobName::Number(id) = job.job else { panic!("tests name jobs by number") };
    world.jobs.get(&id).map_or(Vec::new(), |(_, spec)| tasks_of(id, spec))
}

fn tasks_of(job: JobId, spec: &JobSpec) -> Vec<TaskId> {
    match &spec.array {
        None => vec![TaskId::only(job)],
        Some(array) => (0..array.count())
            .map(|place| TaskId { job, index: array.index_at(place).unwrap() })
            .collect(),
    }
}
