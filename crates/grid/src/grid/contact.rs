//! Agents: joining, reporting load, and being lost.
//!
//! An agent may let jobs run until its lease is over, counted from when it sent the last message that
//! was answered by a grant. The grid counts from when it took that message, which is later. So once the
//! grid's count is over, nothing of that host runs any more, and what ran there may start elsewhere.

use std::collections::BTreeSet;

use crate::config::{HostEngine, Load, Unlisted};
use crate::event::{Effect, Joined, Memory, Outcome, RunStatus};
use crate::grid::Grid;
use crate::grid::running::End;
use crate::hosts::Reach;
use crate::journal::{Change, HostSwitch};
use crate::task::{Phase, Step, Stops, Task};
use crate::vocabulary::{HostId, HostName, Moment, TaskId, UserId};

/// How long a host that could not start a task gets none: the first time, and at most.
const UNABLE_MIN_MS: u64 = 1000;
const UNABLE_MAX_MS: u64 = 60_000;

impl Grid {
    pub(super) fn join(&mut self, joined: Joined, out: &mut Outcome) {
        let name = joined.host.clone();
        if self.host_id(&name).is_none() {
            self.record(Change::HostKnown(name.clone()), out);
            self.index.configure(&self.ledger);
        }
        let host = self.host_id(&name).expect("the host is known by now");
        let fault = self.engine_fault(host, joined.engine);
        if let Some(reason) = fault.or_else(|| self.record_fault(host, &joined)) {
            out.effects.push(Effect::Refuse { host: name, reason });
            return;
        }
        if self.ledger.engine(host) != joined.engine {
            self.record(Change::Engine { host, engine: joined.engine }, out);
        }
        if self.ledger.host_switch(host) == HostSwitch::Removed {
            self.record(Change::Host { host, state: HostSwitch::Open }, out);
        }
        let now = &mut self.index.hosts[host.0 as usize];
        now.facts = Some(joined.facts);
        now.load = None;
        now.contact.state = Reach::Up;
        self.index.configure(&self.ledger);
        self.warn_again(host, &joined.runs, out);
        self.grant(host, out);
        let mut reported = Vec::new();
        for report in joined.runs {
            let (task, attempt) = (report.task, report.attempt);
            if self.run_of(&name, task, attempt).is_none() {
                if matches!(
                    report.status,
                    RunStatus::Waiting | RunStatus::Running | RunStatus::Stopped
                ) {
                    self.kill_stale(&name, task, attempt, out);
                }
                continue;
            }
            reported.push(task);
            match report.status {
                RunStatus::Exited(exit, usage) => {
                    self.end_attempt(task, End::Exited(exit, usage), out);
                }
                RunStatus::Lost(loss) => self.end_attempt(task, End::Told(loss), out),
                RunStatus::Waiting => self.agree(task, Agent::Waits, out),
                RunStatus::Running => self.agree(task, Agent::Runs, out),
                RunStatus::Stopped => self.agree(task, Agent::Stopped, out),
            }
        }
        let missing: Vec<TaskId> = self.index.hosts[host.0 as usize]
            .runs
            .iter()
            .filter(|task| !reported.contains(task))
            .copied()
            .collect();
        for task in missing {
            let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
            let never = run.phase == Phase::Starting && joined.memory == Memory::Kept;
            self.end_attempt(task, if never { End::NeverStarted } else { End::Lost }, out);
        }
    }

    /// Why an agent may not run the jobs of its host in this way: others run there in another way, which it knows nothing of, or
    /// the settings say otherwise. So a controller knows before it gives the jobs of a host up whether Slurm still has them.
    fn engine_fault(&self, host: HostId, engine: HostEngine) -> Option<String> {
        let now = &self.index.hosts[host.0 as usize];
        let name = self.ledger.hosts.at(host.0);
        // A host that the settings call Slurm's may have jobs from before its agent first joined.
        let before = if self.is_slurm(host) { HostEngine::Slurm } else { HostEngine::Agent };
        let words = |engine| match engine {
            HostEngine::Agent => "by an agent",
            HostEngine::Slurm => "through Slurm",
        };
        if engine == HostEngine::Agent && self.is_set_to_slurm(host) {
            return Some(format!(
                "the settings of the leading controller say that host {name} runs its jobs through Slurm: start its agent with \
                 --engine slurm, or remove engine = \"slurm\" from grid.toml"
            ));
        }
        if engine != before && !now.runs.is_empty() {
            return Some(format!(
                "host {name} has {} jobs that run {}, and this agent would run them {}: start the agent as before until they have \
                 ended",
                now.runs.len(),
                words(before),
                words(engine)
            ));
        }
        None
    }

    /// Why an agent may not follow the jobs of its host in Slurm: it has no records of some that run there, so it is not the one that submitted
    /// them. Taken for lost, they would start again beside those in Slurm.
    fn record_fault(&self, host: HostId, joined: &Joined) -> Option<String> {
        if joined.engine != HostEngine::Slurm {
            return None;
        }
        let reported: BTreeSet<TaskId> = joined.runs.iter().map(|run| run.task).collect();
        let runs = self.index.hosts[host.0 as usize].runs.iter();
        let unknown = runs.filter(|task| !reported.contains(task)).filter(|task| {
            let run = self.ledger.task(**task).and_then(Task::run);
            run.is_some_and(|run| run.phase != Phase::Starting && run.ending.is_none())
        });
        let count = unknown.count();
        (count > 0).then(|| {
            format!(
                "host {} has {count} jobs in Slurm of which this agent has no records: only the agent that \
                 submitted them can follow them, and no second one can stand in for it. Start it on its node with \
                 its ROOT, or give this agent another --name. If its ROOT is lost, cancel the jobs in Slurm and \
                 end them with forebay kill; then this agent may join",
                joined.host
            )
        })
    }

    /// Makes the agent's view of a task that it has agree with the grid's.
    fn agree(&mut self, task: TaskId, agent: Agent, out: &mut Outcome) {
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        if run.phase == Phase::Starting && agent != Agent::Waits {
            self.begin(task, out);
        }
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        let (attempt, host) = (run.attempt, self.host_name(run.host));
        let stopped = !run.stops().is_empty();
        if let Some(ending) = run.ending {
            out.effects.push(Effect::Kill { task, attempt, host, why: ending.into() });
            return;
        }
        match (agent, stopped) {
            (Agent::Runs | Agent::Waits, true) => {
                out.effects.push(Effect::Suspend { task, attempt, host });
            }
            (Agent::Stopped, false) => out.effects.push(Effect::Resume { task, attempt, host }),
            // Slurm may hold it, which only Slurm knows.
            (Agent::Waits, false) => out.effects.push(Effect::Resume { task, attempt, host }),
            (Agent::Runs, false) | (Agent::Stopped, true) => {}
        }
    }

    /// Notes that the host was heard of now, and lets its jobs run on.
    fn grant(&mut self, host: HostId, out: &mut Outcome) {
        let general = &self.ledger.config.general;
        let contact = &mut self.index.hosts[host.0 as usize].contact;
        let was_silent = contact.leased <= self.now;
        contact.heard = self.now;
        // A shorter lease does not take back a longer one that was given out.
        contact.leased = contact.leased.max(self.now.after(general.lease.as_ms()));
        if was_silent {
            self.index.stir();
        }
        let silent = self.now.after(general.host_timeout.as_ms());
        self.next_look = self.next_look.min(silent);
        let name = self.host_name(host);
        out.effects
            .push(Effect::GrantLease { host: name, lease: self.ledger.config.general.lease });
    }

    pub(super) fn take_load(&mut self, name: &HostName, load: Load, out: &mut Outcome) {
        let Some(host) = self.host_id(name) else { return };
        if !self.reaches(host) {
            return;
        }
        let now = &mut self.index.hosts[host.0 as usize];
        now.load = Some(load);
        now.since_load = 0;
        self.trust_warnings(host);
        self.grant(host, out);
        if self.has_thresholds() || self.index.shapes.any(|shape| shape.io_heavy) {
            self.index.stir();
        }
        // Also without thresholds: what was suspended for load goes on once they are out of the settings.
        self.suspend_for_load(host, &load, out);
    }

    /// The clock by which time is told was set forward, so less time passed than it says: what hosts were granted
    /// and what tasks may run lasts as much longer by it.
    pub fn skip_time(&mut self, milliseconds: u64, out: &mut Outcome) {
        let limited: Vec<TaskId> = self.index.deadlines.iter().map(|(_, task)| *task).collect();
        for task in limited {
            self.step(task, Step::Skipped { milliseconds }, out);
        }
        for host in &mut self.index.hosts {
            let contact = &mut host.contact;
            contact.heard = contact.heard.after(milliseconds);
            contact.leased = contact.leased.after(milliseconds);
        }
        if self.ledger.leased > self.now {
            self.record(Change::Leased(self.ledger.leased.after(milliseconds)), out);
        }
    }

    /// Nobody listened for a while: hosts are not silent because of it. How long their jobs may run is not
    /// changed, only when they are given up.
    pub fn excuse_silence(&mut self, milliseconds: u64) {
        for host in &mut self.index.hosts {
            host.contact.heard = host.contact.heard.after(milliseconds);
        }
        self.next_look = Moment(0);
    }

    fn has_thresholds(&self) -> bool {
        let config = &self.ledger.config;
        config.queues.iter().any(|queue| !queue.load.is_empty())
            || config.hosts.iter().any(|host| !host.load.is_empty())
    }

    /// Suspends one task if the host is loaded too much, the last one started of the lowest queue, or
    /// lets one go on, the other way round. One with each report, so that its effect shows first.
    fn suspend_for_load(&mut self, host: HostId, load: &Load, out: &mut Outcome) {
        let now = &self.index.hosts[host.0 as usize];
        let own = now.config.map(|place| &self.ledger.config.hosts[place].load);
        let mut to_stop = None;
        let mut to_resume = None;
        for task in &now.runs {
            let job = &self.ledger.jobs[&task.job];
            let run = job.task(task.index).and_then(Task::run).expect("an active task");
            // A queue that is out of the settings has no thresholds.
            let queue = self.queue_config(job.queue);
            let Some(started) = run.phase.started() else { continue };
            let priority = queue.map_or(0, |queue| queue.priority);
            let key = (priority, std::cmp::Reverse(started), std::cmp::Reverse(*task));
            let stops = run.phase.stops();
            if stops.has(Stops::LOAD) {
                let refused = queue.and_then(|queue| queue.load.refuses(load));
                if refused.or(own.and_then(|own| own.refuses(load))).is_none() {
                    to_resume = to_resume.max(Some(key));
                }
            } else if stops.is_empty()
                && queue
                    .and_then(|queue| queue.load.stops(load))
                    .or(own.and_then(|own| own.stops(load)))
                    .is_some()
            {
                to_stop = Some(to_stop.map_or(key, |best: (u32, _, _)| best.min(key)));
            }
        }
        if let Some((_, _, std::cmp::Reverse(task))) = to_stop {
            self.suspend(task, Stops::LOAD, out);
        } else if let Some((_, _, std::cmp::Reverse(task))) = to_resume {
            self.resume(task, Stops::LOAD, out);
        }
    }

    pub(super) fn lose_contact(&mut self, name: &HostName) {
        if let Some(host) = self.host_id(name) {
            let contact = &mut self.index.hosts[host.0 as usize].contact;
            if contact.state == Reach::Up {
                contact.state = Reach::Away;
                self.next_look = Moment(0);
            }
        }
    }

    /// A host that could not start a task gets none for a while: what it is asked next would end alike. The
    /// while doubles each time, until a task has begun there.
    pub(super) fn rest(&mut self, host: HostId, user: UserId, why: &str) {
        let now = &mut self.index.hosts[host.0 as usize];
        now.unable_why = Some((user, why.to_owned()));
        if now.unable_until > self.now {
            return;
        }
        now.unable_ms = (now.unable_ms * 2).clamp(UNABLE_MIN_MS, UNABLE_MAX_MS);
        now.unable_until = self.now.after(now.unable_ms);
        self.next_look = self.next_look.min(now.unable_until);
    }

    /// What rested and may be asked again; when to look again.
    fn look_at_rests(&mut self) -> Moment {
        let mut next = Moment::NEVER;
        let mut over = false;
        for host in &mut self.index.hosts {
            if host.unable_until > self.now {
                next = next.min(host.unable_until);
            } else if host.unable_until > Moment(0) {
                host.unable_until = Moment(0);
                over = true;
            }
        }
        if over {
            self.index.stir();
        }
        next
    }

    /// Looks for hosts that were silent for too long; when to look again.
    pub(super) fn look_at_hosts(&mut self, out: &mut Outcome) -> Moment {
        let timeout = self.ledger.config.general.host_timeout.as_ms();
        let mut next = self.look_at_rests();
        for host in 0..self.index.hosts.len() {
            let contact = &mut self.index.hosts[host].contact;
            if contact.state == Reach::Up {
                if contact.heard.after(timeout) > self.now {
                    next = next.min(contact.heard.after(timeout));
                    continue;
                }
                contact.state = Reach::Away;
                // It may be there again, and what it was not told meanwhile is settled when it joins.
                let name = self.ledger.hosts.at(host as u32).clone();
                out.effects.push(Effect::Disconnect { host: name });
            }
            // Slurm goes on without its agent, and knows of every job when the agent is back.
            let is_kept =
                self.is_slurm(HostId(host as u32)) && !self.index.hosts[host].runs.is_empty();
            let contact = &mut self.index.hosts[host].contact;
            if contact.state == Reach::Away && !is_kept {
                let over = contact.heard.after(timeout).max(contact.leased);
                if over > self.now {
                    next = next.min(over);
                    continue;
                }
                contact.state = Reach::Gone;
                let lost: Vec<TaskId> = self.index.hosts[host].runs.iter().copied().collect();
                for task in lost {
                    self.end_attempt(task, End::Lost, out);
                }
            }
        }
        next
    }

    /// Whether a host is used at all, as far as it is not listed.
    pub(super) fn is_accepted(&self, host: HostId) -> bool {
        self.index.hosts[host.0 as usize].config.is_some()
            || self.ledger.config.general.unlisted_hosts == Unlisted::Accept
    }
}

/// What an agent says of a task that it has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    Waits,
    Runs,
    Stopped,
}
