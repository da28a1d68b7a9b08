//! Tasks on hosts: started, suspended, ended.

use crate::account::AttemptRecord;
use crate::config::RerunDefault;
use crate::event::{Effect, KillReason, Loss, Outcome};
use crate::grid::Grid;
use crate::hosts::Reach;
use crate::ledger::Job;
use crate::parse::requeue::Again;
use crate::ready::Shape;
use crate::spec::{Exit, Rerun, Usage, short_reason};
use crate::task::{Cause, Ending, Fate, Phase, Post, Run, Step, Stops, Task};
use crate::vocabulary::{Attempt, HostId, HostName, JobId, QueueId, TaskId};

/// How an attempt came to its end.
pub(super) enum End {
    /// The agent says how.
    Exited(Exit, Option<Box<Usage>>),
    /// It was never started.
    NeverStarted,
    /// Nobody can say: its host was lost, or came back without it.
    Lost,
    /// The agent says that it has lost it or could not start it.
    Told(Loss),
}

impl Grid {
    /// The run that a message is about; none if the message is stale.
    pub(super) fn run_of(&self, host: &HostName, task: TaskId, attempt: Attempt) -> Option<&Run> {
        let run = self.ledger.task(task)?.run()?;
        (run.attempt == attempt && self.ledger.hosts.at(run.host.0) == host).then_some(run)
    }

    pub(super) fn reaches(&self, host: HostId) -> bool {
        self.index.hosts[host.0 as usize].contact.state == Reach::Up
    }

    pub(super) fn started(
        &mut self,
        host: &HostName,
        task: TaskId,
        attempt: Attempt,
        out: &mut Outcome,
    ) {
        let Some(run) = self.run_of(host, task, attempt) else {
            self.kill_stale(host, task, attempt, out);
            return;
        };
        if run.phase == Phase::Starting {
            self.begin(task, out);
            let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
            if !run.phase.stops().is_empty() && self.reaches(run.host) {
                out.effects.push(Effect::Suspend { task, attempt, host: host.clone() });
            }
        }
    }

    /// A host has started a task, and so it can.
    pub(super) fn begin(&mut self, task: TaskId, out: &mut Outcome) {
        self.step(task, Step::Started, out);
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        let (host, queue) = (run.host, self.ledger.jobs[&task.job].queue);
        self.index.hosts[host.0 as usize].unable_ms = 0;
        self.stir_if_preempted(queue);
        // The run window of its queue may have closed meanwhile.
        if !self.index.queues[queue.0 as usize].run_open {
            self.step(task, Step::Stopped(Stops::WINDOW), out);
        }
    }

    /// What should not run is ended.
    pub(super) fn kill_stale(
        &self,
        host: &HostName,
        task: TaskId,
        attempt: Attempt,
        out: &mut Outcome,
    ) {
        let host = host.clone();
        out.effects.push(Effect::Kill { task, attempt, host, why: KillReason::Stale });
    }

    pub(super) fn exited(
        &mut self,
        host: &HostName,
        task: TaskId,
        attempt: Attempt,
        exit: Exit,
        usage: Option<Box<Usage>>,
        out: &mut Outcome,
    ) {
        if self.run_of(host, task, attempt).is_some() {
            self.end_attempt(task, End::Exited(exit, usage), out);
        }
    }

    pub(super) fn lost(
        &mut self,
        host: &HostName,
        task: TaskId,
        attempt: Attempt,
        loss: Loss,
        out: &mut Outcome,
    ) {
        if self.run_of(host, task, attempt).is_some() {
            self.end_attempt(task, End::Told(loss), out);
        }
    }

    /// Decides what becomes of a task whose attempt ended.
    fn fate(&self, task: TaskId, run: &Run, end: &End) -> Fate {
        match run.ending {
            Some(Ending::Killed) => return Fate::Finished(Cause::Killed),
            Some(Ending::TimeLimit) => return Fate::Finished(Cause::TimeLimit),
            Some(Ending::AreaLimit) => return Fate::Finished(Cause::AreaLimit),
            Some(Ending::Deadline) => return Fate::Finished(Cause::Deadline),
            Some(Ending::Requeued | Ending::Preempted { .. }) => return Fate::Again,
            None => {}
        }
        let job = &self.ledger.jobs[&task.job];
        if job.spec.service.is_some() {
            return self.fate_of_service(job, run, end);
        }
        let once = job.spec.interactive.is_some();
        let fate = match end {
            End::NeverStarted => return Fate::Again,
            // Not for ever: others may be able to start it, or nobody is.
            End::Told(Loss::Unable(_)) if run.phase.started().is_none() => Fate::Again,
            End::Lost | End::Told(_) if once => Fate::Finished(Cause::HostLost),
            End::Exited(..) if once => Fate::Finished(Cause::Exited),
            End::Lost | End::Told(_) if self.is_rerunnable(job) => Fate::Again,
            End::Lost | End::Told(_) => Fate::Finished(Cause::HostLost),
            End::Exited(exit, _) => match job.spec.requeue_exits.find(exit.value()) {
                Some(Again::Anywhere) => Fate::Again,
                // Where no other host could take it, it would wait for ever.
                Some(Again::Elsewhere) if !self.may_run_elsewhere(job, run) => {
                    Fate::Finished(Cause::Exited)
                }
                Some(Again::Elsewhere) => Fate::AgainElsewhere,
                None => Fate::Finished(Cause::Exited),
            },
        };
        let again = matches!(fate, Fate::Again | Fate::AgainElsewhere);
        if again && run.attempt.0 >= self.ledger.config.general.attempts_max {
            return Fate::Finished(Cause::AttemptsMax);
        }
        fate
    }

    /// Whether a job may be started again though it has not ended by itself.
    pub(super) fn is_rerunnable(&self, job: &Job) -> bool {
        let default = self.queue_config(job.queue).map(|queue| queue.rerun);
        match (job.spec.rerun, default) {
            (Rerun::Rerunnable, _) | (Rerun::AsQueue, Some(RerunDefault::Rerunnable)) => true,
            (Rerun::Once | Rerun::AsQueue, _) => false,
        }
    }

    /// Whether a host could take a task that its own host and those before are excluded from.
    fn may_run_elsewhere(&self, job: &Job, run: &Run) -> bool {
        let mut excluded = vec![run.host];
        excluded.extend(run.excluded.iter().flat_map(|hosts| hosts.0.iter().copied()));
        let shape = Shape::of(&job.spec, excluded);
        self.may_ever_run(job.queue, &shape)
    }

    /// Ends the attempt of an active task.
    pub(super) fn end_attempt(&mut self, task: TaskId, end: End, out: &mut Outcome) {
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task").clone();
        let end = match end {
            End::Exited(Exit::NotStarted(reason), usage) => {
                End::Exited(Exit::NotStarted(short_reason(reason)), usage)
            }
            End::Told(Loss::Unable(reason)) => End::Told(Loss::Unable(short_reason(reason))),
            end @ (End::Exited(..) | End::NeverStarted | End::Lost | End::Told(_)) => end,
        };
        let fate = self.fate(task, &run, &end);
        let service = self.service_after(task.job, &run, &end, fate);
        let (exit, usage, loss) = match end {
            End::Exited(exit, usage) => (Some(exit), usage, None),
            End::NeverStarted | End::Lost => (None, None, None),
            End::Told(loss) => (None, None, Some(loss)),
        };
        if let Some(Loss::Unable(why)) = &loss {
            self.rest(run.host, self.ledger.jobs[&task.job].user, why);
        }
        let job = &self.ledger.jobs[&task.job];
        let host = self.host_name(run.host);
        out.effects.push(Effect::Ended(Box::new(AttemptRecord {
            task,
            tasks: job.spec.tasks(),
            name: job.spec.name.clone(),
            user: self.ledger.users.at(job.user.0).clone(),
            queue: self.ledger.queues.at(job.queue.0).clone(),
            project: job.spec.project.clone(),
            host: host.clone(),
            attempt: run.attempt,
            slots: run.slots,
            submitted: job.submitted,
            launched: run.launched,
            started: run.phase.started(),
            ended: self.now,
            exit: exit.clone(),
            loss,
            usage: usage.as_deref().copied(),
            fate,
        })));
        self.step(task, Step::Ended { exit, usage, fate }, out);
        if let Some(state) = service {
            self.set_service(task.job, state, out);
        }
        match fate {
            Fate::Again | Fate::AgainElsewhere => out.effects.push(Effect::KeepWork { task }),
            Fate::Finished(_) => {
                let requeues = run.requeues;
                out.effects.push(Effect::ReleaseWork { task, requeues, host: Some(host) });
                self.say_if_finished(task.job, out);
            }
        }
    }

    /// Says that a job has ended, if all of it has.
    pub(super) fn say_if_finished(&self, job: JobId, out: &mut Outcome) {
        let entry = &self.ledger.jobs[&job];
        if entry.tally.is_finished() {
            let (value, at) = (entry.exit_value(), self.now);
            let notifies = entry.spec.notify.is_some();
            let about = self.about(job).filter(|_| notifies).map(Box::new);
            out.effects.push(Effect::JobFinished { job, value, at, about });
        }
    }

    /// Ends a task on a host, and decides what becomes of it then.
    pub(super) fn end(&mut self, task: TaskId, ending: Ending, out: &mut Outcome) {
        self.step(task, Step::Ending(ending), out);
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        let (attempt, host) = (run.attempt, run.host);
        if self.reaches(host) {
            let host = self.host_name(host);
            out.effects.push(Effect::Kill { task, attempt, host, why: ending.into() });
        }
    }

    /// Suspends a task, for one more reason: now, or once it has started.
    pub(super) fn suspend(&mut self, task: TaskId, why: Stops, out: &mut Outcome) {
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        let obeys = self.obeys_stops(run);
        let (attempt, host) = (run.attempt, run.host);
        self.step(task, Step::Stopped(why), out);
        if obeys && self.reaches(host) {
            let host = self.host_name(host);
            out.effects.push(Effect::Suspend { task, attempt, host });
        }
    }

    /// Suspends a task, so that a job can have its slots.
    pub(super) fn suspend_for(&mut self, task: TaskId, by: JobId, out: &mut Outcome) {
        self.step(task, Step::Preempted { by }, out);
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        let (attempt, host) = (run.attempt, run.host);
        if self.reaches(host) {
            let host = self.host_name(host);
            out.effects.push(Effect::Suspend { task, attempt, host });
        }
    }

    /// Whether the host of a run can suspend it and let it go on now: Slurm also while it waits there.
    fn obeys_stops(&self, run: &Run) -> bool {
        matches!(run.phase, Phase::Running { .. }) || self.is_slurm(run.host)
    }

    /// Takes a reason away to be suspended.
    pub(super) fn resume(&mut self, task: TaskId, why: Stops, out: &mut Outcome) {
        self.step(task, Step::Continued(why), out);
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        if self.obeys_stops(run) && self.reaches(run.host) {
            let (attempt, host) = (run.attempt, self.host_name(run.host));
            out.effects.push(Effect::Resume { task, attempt, host });
        }
        self.stir_if_preempted(self.ledger.jobs[&task.job].queue);
    }

    /// A job of a queue runs, so it may make room for one that waits.
    fn stir_if_preempted(&mut self, queue: QueueId) {
        if self.queue_config(queue).is_some_and(|config| self.is_preempted(config)) {
            self.index.stir();
        }
    }

    pub(super) fn work_released(
        &mut self,
        task: TaskId,
        requeues: u32,
        result: &Result<(), String>,
        out: &mut Outcome,
    ) {
        if let Some(Task::Finished(finish)) = self.ledger.task(task)
            && finish.post == Post::Awaited
            && finish.requeues == requeues
        {
            let post = if result.is_ok() { Post::Done } else { Post::Failed };
            self.step(task, Step::Post(post), out);
        }
    }
}
