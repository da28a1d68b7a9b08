//! Commands of users and admins.

use crate::depend::{self, Verdict};
use crate::event::{Effect, JobSignal, Outcome, QueueVerb, Refusal, Verb};
use crate::footprint;
use crate::grid::Grid;
use crate::hosts::Reach;
use crate::index::Before;
use crate::journal::{Change, HostSwitch, Intake, Starts};
use crate::ledger::Job;
use crate::spans::Spans;
use crate::task::{Ending, Step, Stops, Task};
use crate::vocabulary::{HostId, HostName, JobId, QueueId, QueueName, Target, TaskId, UserName};

/// What a command means for a task in some state.
enum Meaning {
    /// A waiting task changes, as all such do.
    Waiting(Step),
    /// A task on a host shall end, and then this.
    End(Ending),
    /// A task on a host is suspended.
    Suspend,
    /// A task on a host goes on.
    Resume,
    /// A task that ended starts again.
    Again,
    /// The processes of a task on a host get a signal.
    Signal(JobSignal),
    /// Nothing.
    Nothing,
}

fn meaning(verb: Verb, task: &Task) -> Meaning {
    match (verb, task) {
        (Verb::Kill, Task::Pending(_) | Task::Held(_)) => Meaning::Waiting(Step::Cancelled),
        (Verb::Kill, Task::Active(run)) if run.ending != Some(Ending::Killed) => {
            Meaning::End(Ending::Killed)
        }
        (Verb::Hold, Task::Pending(_)) => Meaning::Waiting(Step::Held),
        (Verb::Hold, Task::Active(run)) if !run.stops().has(Stops::ASKED) => Meaning::Suspend,
        (Verb::Release, Task::Held(_)) => Meaning::Waiting(Step::Released),
        (Verb::Release, Task::Active(run)) if run.stops().has(Stops::ASKED) => Meaning::Resume,
        (Verb::Requeue, Task::Active(run)) if run.ending.is_none() => {
            Meaning::End(Ending::Requeued)
        }
        (Verb::Requeue, Task::Finished(_)) => Meaning::Again,
        // The processes may exist before the host has said so; until they do, the host keeps the signal for them.
        (Verb::Signal(signal), Task::Active(_)) => Meaning::Signal(signal),
        (Verb::Kill | Verb::Hold | Verb::Release | Verb::Requeue | Verb::Signal(_), _) => {
            Meaning::Nothing
        }
    }
}

impl Grid {
    pub(super) fn is_admin(&self, user: &UserName) -> bool {
        self.ledger.config.general.admins.contains(user)
    }

    /// Users do as they like with what is theirs, admins with everything. What a user does not see is not there, for
    /// whatever is asked.
    pub(super) fn sees(&self, by: &UserName, owner: &UserName) -> bool {
        by == owner || self.is_admin(by)
    }

    /// A job: also who administers the queue that it is in.
    #[must_use]
    pub fn sees_job(&self, by: &UserName, job: &Job) -> bool {
        let of_queue = || self.queue_config(job.queue).is_some_and(|q| q.admins.contains(by));
        self.sees(by, self.ledger.user_of(job)) || of_queue()
    }

    pub(super) fn check_admin(
        &self,
        by: &UserName,
        what: impl FnOnce() -> String,
    ) -> Result<(), Refusal> {
        if self.is_admin(by) {
            return Ok(());
        }
        Err(Refusal::NotAllowed { user: by.clone(), what: what() })
    }

    pub(super) fn command(&mut self, by: &UserName, target: Target, verb: Verb, out: &mut Outcome) {
        let effect = match self.places(by, target, verb) {
            Err(refusal) => Effect::Rejected(refusal),
            Ok(_) if verb == Verb::Requeue && self.end_pause(target.job, out) => {
                Effect::Obeyed { tasks: 1 }
            }
            Ok(places) => {
                // The answer goes before what follows from the command.
                let answer = out.effects.len();
                let tasks = self.obey(target.job, &places, verb, out);
                let effect = if tasks > 0 {
                    Effect::Obeyed { tasks }
                } else {
                    let state = match verb {
                        Verb::Kill => "has ended or is about to",
                        Verb::Hold => "is neither waiting nor running",
                        Verb::Release => "is not held",
                        Verb::Requeue => "is already waiting",
                        Verb::Signal(_) => "is not running on a host that can be reached",
                    };
                    Effect::Rejected(Refusal::WrongState { target, state })
                };
                out.effects.insert(answer, effect);
                return;
            }
        };
        out.effects.push(effect);
    }

    /// A job, if the user sees it.
    pub(super) fn job_for(&self, by: &UserName, target: Target) -> Result<&Job, Refusal> {
        let known = self.ledger.jobs.get(&target.job);
        known.filter(|job| self.sees_job(by, job)).ok_or(Refusal::NoSuchJob(target))
    }

    /// The places that a command is about, if the user may give it.
    fn places(&self, by: &UserName, target: Target, verb: Verb) -> Result<Vec<u32>, Refusal> {
        let no_job = || Refusal::NoSuchJob(target);
        let job = self.job_for(by, target)?;
        if verb == Verb::Requeue && job.spec.interactive.is_some() {
            return Err(Refusal::Invalid(format!(
                "job {target} is interactive and cannot be restarted: use forebay run again"
            )));
        }
        let places: Vec<u32> = match target.index {
            None => (0..job.tasks.len() as u32).collect(),
            Some(index) => vec![job.place_of(index).ok_or_else(no_job)?],
        };
        if verb == Verb::Requeue {
            self.check_requeue(target, job, &places)?;
        }
        Ok(places)
    }

    /// Whether tasks that ended may start again.
    fn check_requeue(&self, target: Target, job: &Job, places: &[u32]) -> Result<(), Refusal> {
        let ended = |place: &&u32| matches!(job.tasks[**place as usize], Task::Finished(_));
        let again = places.iter().filter(ended).count() as u32;
        if again == 0 {
            return Ok(());
        }
        if let Some(service) = &job.spec.service {
            return Err(Refusal::Invalid(format!(
                "service {0} has been stopped: start it again with forebay service start {0}",
                service.name
            )));
        }
        if job.spec.deadline.is_some_and(|deadline| deadline <= self.now) {
            return Err(Refusal::Invalid(format!(
                "job {target} had to have ended by a time that has passed, so it cannot start again"
            )));
        }
        self.check_number(Some(job.user), again)?;
        if job.tally.is_finished() {
            self.check_bytes(
                Some(job.user),
                footprint::bytes_of(&job.spec, job.condition.as_ref()),
            )?;
        }
        let flow = self.index.flow_of.get(&target.job).map(|flow| &self.ledger.flows.runs[flow]);
        if let Some(run) = flow {
            self.check_cycles_again(&self.waits_again(run, target.job))?;
        }
        let Some(condition) = &job.condition else { return Ok(()) };
        let is_gone = condition.jobs().iter().any(|id| !self.ledger.jobs.contains_key(id));
        if is_gone && depend::verdict(&self.ledger, self.now, condition) == Verdict::Never {
            return Err(Refusal::Invalid(format!(
                "job {target} depends on jobs that are no longer known, so it would wait forever: submit it again"
            )));
        }
        if flow.is_none() {
            if job.tally.is_finished() {
                self.check_cycle_of(target.job, job)?;
            }
            self.check_condition(&job.spec, Some(condition))?;
        }
        Ok(())
    }

    /// Carries a command out; on how many tasks.
    pub(super) fn obey(
        &mut self,
        job: JobId,
        places: &[u32],
        verb: Verb,
        out: &mut Outcome,
    ) -> u32 {
        let mut count = 0;
        let mut waiting = Spans::default();
        let mut alike = None;
        for &place in places {
            let entry = &self.ledger.jobs[&job];
            let task = TaskId { job, index: entry.index_at(place) };
            count += 1;
            match meaning(verb, &entry.tasks[place as usize]) {
                Meaning::Waiting(step) => {
                    alike = Some(step);
                    waiting.insert(place);
                }
                Meaning::End(ending) => self.end(task, ending, out),
                Meaning::Suspend => self.suspend(task, Stops::ASKED, out),
                Meaning::Resume => self.resume(task, Stops::ASKED, out),
                Meaning::Again => self.step(task, Step::Requeued, out),
                Meaning::Signal(signal) => {
                    let run = entry.tasks[place as usize].run().expect("an active task");
                    if self.reaches(run.host) {
                        let (attempt, host) = (run.attempt, self.host_name(run.host));
                        out.effects.push(Effect::Signal { task, attempt, host, signal });
                    } else {
                        count -= 1;
                    }
                }
                Meaning::Nothing => count -= 1,
            }
        }
        if let Some(step) = alike {
            self.change_waiting(job, waiting, step, out);
        }
        count
    }

    /// Changes many waiting tasks of a job alike.
    pub(super) fn change_waiting(
        &mut self,
        job: JobId,
        places: Spans,
        step: Step,
        out: &mut Outcome,
    ) {
        let entry = &self.ledger.jobs[&job];
        let mut areas = Vec::new();
        let mut before = Vec::new();
        for place in places.iter() {
            let task = &entry.tasks[place as usize];
            before.push((place, Before::of(task)));
            if matches!(step, Step::Cancelled | Step::NeverMet | Step::Expired)
                && let Task::Pending(waiting) | Task::Held(waiting) = task
                && waiting.attempts > 0
            {
                areas.push((TaskId { job, index: entry.index_at(place) }, waiting.requeues));
            }
        }
        self.record(Change::Waiting { job, places, step }, out);
        self.index.moved_together(&self.ledger, job, &before);
        let places: Vec<u32> = before.iter().map(|(place, _)| *place).collect();
        self.index.wake(&self.ledger, job, &places);
        let release = |(task, requeues)| Effect::ReleaseWork { task, requeues, host: None };
        out.effects.extend(areas.into_iter().map(release));
        self.say_if_finished(job, out);
    }

    pub(super) fn switch_queue(
        &mut self,
        by: &UserName,
        name: &QueueName,
        verb: QueueVerb,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let queue = self.ledger.queues.find(name).map(QueueId);
        let queue = queue.ok_or_else(|| Refusal::NoSuchQueue(name.clone()))?;
        self.check_admin(by, || format!("switch queue {name}"))?;
        let mut switch = self.ledger.switch(queue);
        match verb {
            QueueVerb::Open => switch.intake = Intake::Open,
            QueueVerb::Close => switch.intake = Intake::Closed,
            QueueVerb::Activate => switch.starts = Starts::Active,
            QueueVerb::Inactivate => switch.starts = Starts::Inactive,
        }
        if switch != self.ledger.switch(queue) {
            self.record(Change::Queue { queue, switch }, out);
            self.index.queues[queue.0 as usize].stirred = true;
        }
        Ok(Effect::Obeyed { tasks: 0 })
    }

    /// Refuses to remove a host that may have jobs.
    fn check_gone(&self, host: HostId) -> Result<(), Refusal> {
        let (name, now) = (self.ledger.hosts.at(host.0), &self.index.hosts[host.0 as usize]);
        let why = match now.contact.state {
            Reach::Gone if now.runs.is_empty() => return Ok(()),
            Reach::Gone | Reach::Away => {
                "its jobs may still be running; they are given up after host_timeout"
            }
            Reach::Up => "it is up; end its agent first",
        };
        Err(Refusal::Invalid(format!("host {name} cannot be removed: {why}")))
    }

    pub(super) fn switch_host(
        &mut self,
        by: &UserName,
        name: &HostName,
        state: HostSwitch,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let host = self.host_id(name).filter(|host| self.is_listed(*host));
        let host = host.ok_or_else(|| Refusal::NoSuchHost(name.clone()))?;
        self.check_admin(by, || format!("open, close or remove host {name}"))?;
        if state == HostSwitch::Removed {
            self.check_gone(host)?;
        }
        if state != self.ledger.host_switch(host) {
            self.record(Change::Host { host, state }, out);
            self.index.stir();
        }
        Ok(Effect::Obeyed { tasks: 0 })
    }
}
