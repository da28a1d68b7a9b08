//! What happens because time passes: time limits, windows, silent hosts.

use crate::config::{Dispatch, QueueConfig};
use crate::event::{Effect, Outcome, RunReport, RunStatus};
use crate::grid::Grid;
use crate::grid::possible::waiting_places;
use crate::task::{Ending, Phase, Step, Stops, Task};
use crate::vocabulary::{Attempt, HostId, Moment, QueueId, TaskId};

impl Grid {
    /// Does what is due until now.
    pub(super) fn let_time_pass(&mut self, out: &mut Outcome) {
        self.index.clock = self.now;
        self.index.pass_delays(&self.ledger);
        self.warn_what_ends_soon(out);
        while let Some((at, task)) = self.index.deadlines.first().copied()
            && at <= self.now
        {
            self.end(task, Ending::TimeLimit, out);
        }
        self.end_what_is_late(out);
        self.follow_reservations(out);
        if self.preempt_look <= self.now {
            self.preempt_look = Moment::NEVER;
            self.index.stir();
        }
        self.fire_due(out);
        self.index.let_begin(&self.ledger, self.now);
        if self.next_look <= self.now {
            let hosts = self.look_at_hosts(out);
            let windows = self.look_at_windows();
            for queue in self.queue_ids() {
                self.follow_run_window(queue, out);
            }
            self.next_look = hosts.min(windows);
        }
        if let Dispatch::Interval { sleep, .. } = self.ledger.config.general.dispatch
            && self.next_round <= self.now
        {
            // Rounds are at multiples of the interval, whether or not there is something to do.
            let sleep = sleep.as_ms();
            self.next_round = Moment((self.now.0 / sleep + 1) * sleep);
            self.dispatch(out);
        }
    }

    /// Warns tasks whose end is near, once for each end. A host that cannot be reached is told when it is back.
    fn warn_what_ends_soon(&mut self, out: &mut Outcome) {
        while let Some((at, task)) = self.index.warnings.first().copied()
            && at <= self.now
        {
            self.index.warnings.pop_first();
            self.index.unwarned.insert(task);
        }
        for task in std::mem::take(&mut self.index.unwarned) {
            let Some(run) = self.ledger.task(task).and_then(Task::run) else { continue };
            let spec = &self.ledger.jobs[&task.job].spec;
            // While it is suspended, or if its limit was changed, it is warned later.
            if run.warning(spec).is_none_or(|at| at > self.now) {
                continue;
            }
            let (attempt, host) = (run.attempt, run.host);
            if !self.reaches(host) {
                self.index.unwarned.insert(task);
                continue;
            }
            self.step(task, Step::Warned, out);
            self.send_warning(host, (task, attempt), out);
        }
    }

    /// Sends a warning, of which nobody knows yet whether it arrives.
    fn send_warning(
        &mut self,
        host: HostId,
        (task, attempt): (TaskId, Attempt),
        out: &mut Outcome,
    ) {
        self.index.hosts[host.0 as usize].unsure_warnings.insert(task, self.now);
        let spec = &self.ledger.jobs[&task.job].spec;
        let end = self.ledger.task(task).and_then(Task::run).and_then(|run| run.warned_end(spec));
        out.effects.push(Effect::Warn { task, attempt, end, host: self.host_name(host) });
    }

    /// A host that was heard of for so long after a warning has got it: both went over one connection.
    pub(super) fn trust_warnings(&mut self, host: HostId) {
        const IN_FLIGHT_MS: u64 = 1000;
        let now = self.now;
        let unsure = &mut self.index.hosts[host.0 as usize].unsure_warnings;
        unsure.retain(|_, warned| warned.after(IN_FLIGHT_MS) > now);
    }

    /// Sends warnings again that were lost if the former connection of a host had been broken by then, or the former controller killed.
    /// Before the first grant of the new connection: an agent knows them by that, and passes none on twice.
    pub(super) fn warn_again(&mut self, host: HostId, runs: &[RunReport], out: &mut Outcome) {
        let unsure = std::mem::take(&mut self.index.hosts[host.0 as usize].unsure_warnings);
        for report in runs {
            let (task, attempt) = (report.task, report.attempt);
            let run = self.ledger.task(task).and_then(Task::run);
            let runs = run.is_some_and(|run| {
                run.host == host && run.attempt == attempt && run.warned && run.ending.is_none()
            });
            let is_alive = matches!(report.status, RunStatus::Running | RunStatus::Stopped);
            if runs && is_alive && unsure.contains_key(&task) {
                self.send_warning(host, (task, attempt), out);
            }
        }
    }

    /// Ends jobs that had to have ended by now, whether they run or wait.
    fn end_what_is_late(&mut self, out: &mut Outcome) {
        while let Some(id) = self.index.times.take_late(self.now) {
            let job = &self.ledger.jobs[&id];
            let waiting = waiting_places(job);
            let active = job.tasks().filter(|(_, task)| {
                let ending = task.run().map(|run| run.ending);
                ending.is_some_and(|ending| !matches!(ending, Some(Ending::Killed)))
            });
            let active: Vec<TaskId> = active.map(|(index, _)| TaskId { job: id, index }).collect();
            if !waiting.is_empty() {
                self.change_waiting(id, waiting, Step::Expired, out);
            }
            for task in active {
                self.end(task, Ending::Deadline, out);
            }
        }
    }

    /// Looks which windows are open; when to look again.
    pub(super) fn look_at_windows(&mut self) -> Moment {
        let clocks = self.ledger.config.general.time_zone.clocks();
        let mut next = Moment::NEVER;
        for queue in &mut self.index.queues {
            let Some(config) = queue.config.map(|place| &self.ledger.config.queues[place]) else {
                queue.dispatch_open = false;
                queue.run_open = true;
                continue;
            };
            let run_open = config.run_windows.is_open(self.now, clocks);
            let open = run_open && config.dispatch_windows.is_open(self.now, clocks);
            queue.stirred |= open && !queue.dispatch_open;
            queue.dispatch_open = open;
            queue.run_open = run_open;
            next = next
                .min(config.run_windows.next_look(self.now, clocks))
                .min(config.dispatch_windows.next_look(self.now, clocks));
        }
        next
    }

    /// Suspends what runs outside the run window of its queue, and lets it go on inside.
    pub(super) fn follow_run_window(&mut self, queue: QueueId, out: &mut Outcome) {
        let now = &self.index.queues[queue.0 as usize];
        if now.used_slots == 0 {
            return;
        }
        let open = now.run_open;
        let concerned: Vec<TaskId> = self
            .index
            .hosts
            .iter()
            .filter(|host| host.used_by(queue) > 0)
            .flat_map(|host| &host.runs)
            .filter(|task| {
                let job = &self.ledger.jobs[&task.job];
                let phase = job.task(task.index).and_then(Task::run).map(|run| run.phase);
                job.queue == queue
                    && phase.is_some_and(|phase| {
                        phase != Phase::Starting && phase.stops().has(Stops::WINDOW) == open
                    })
            })
            .copied()
            .collect();
        for task in concerned {
            if open {
                self.resume(task, Stops::WINDOW, out);
            } else {
                self.suspend(task, Stops::WINDOW, out);
            }
        }
    }

    pub(super) fn queue_config(&self, queue: QueueId) -> Option<&QueueConfig> {
        let place = self.index.queues[queue.0 as usize].config?;
        Some(&self.ledger.config.queues[place])
    }
}
