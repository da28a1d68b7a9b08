//! Flows that start by themselves: at times, and for files that arrive.

use std::collections::BTreeSet;

use crate::event::{Effect, Outcome, Refusal};
use crate::flow::event::{Firing, FlowChange, FlowEffect, FlowState, Found, Stamp};
use crate::flow::file::pattern_fault;
use crate::flow::ledger::Schedule;
use crate::flow::schedule::{GRACE_MS, Missed, Overlap, Trigger, When};
use crate::flow::{
    FlowSpec, RUNS_AT_ONCE, SCHEDULES_MAX, SEEN_MAX, ScheduleId, USER_SCHEDULES_MAX,
};
use crate::grid::Grid;
use crate::vocabulary::{Moment, UserName};

impl Grid {
    pub(super) fn add_schedule(
        &mut self,
        user: UserName,
        spec: Box<FlowSpec>,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let Some(trigger) = &spec.trigger else {
            let reason = format!("flow {} has no [schedule]", spec.name);
            return Err(Refusal::Invalid(reason));
        };
        if self.ledger.flows.schedules.len() >= SCHEDULES_MAX {
            let reason = format!("the grid has at most {SCHEDULES_MAX} schedules");
            return Err(Refusal::TooMany(reason));
        }
        let of_user = |entry: &&Schedule| *self.ledger.user_of_schedule(entry) == user;
        if self.ledger.flows.schedules.values().filter(of_user).count() >= USER_SCHEDULES_MAX {
            let reason = format!("a user has at most {USER_SCHEDULES_MAX} schedules");
            return Err(Refusal::TooMany(reason));
        }
        let due = self.next_of(trigger, self.now);
        match &trigger.when {
            When::File(pattern) => {
                if let Some(fault) = pattern_fault(pattern) {
                    return Err(Refusal::Invalid(format!("file = \"{pattern}\": {fault}")));
                }
            }
            When::At(time) if due.is_none() => {
                return Err(Refusal::Invalid(format!("at = {time}: this time has passed")));
            }
            When::Cron(cron) if due.is_none() => {
                return Err(Refusal::Invalid(format!("cron = \"{cron}\": this time never comes")));
            }
            When::At(_) | When::Cron(_) => {}
        }
        // What could not start now will not later, most likely.
        self.admit_flow(&user, &spec, None)?;
        let schedule = self.ledger.flows.next_schedule();
        self.record_flow(FlowChange::Scheduled { schedule, user, spec, due }, out);
        self.index.due.extend(due.map(|due| (due, schedule)));
        Ok(Effect::Flow(FlowEffect::Scheduled { schedule }))
    }

    pub(super) fn remove_schedule(
        &mut self,
        by: &UserName,
        schedule: ScheduleId,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        self.schedule_for(by, schedule)?;
        self.index.due.retain(|(_, id)| *id != schedule);
        self.record_flow(FlowChange::Unscheduled(schedule), out);
        Ok(Effect::Obeyed { tasks: 0 })
    }

    /// The schedule, if the user may do this to it.
    fn schedule_for(&self, by: &UserName, schedule: ScheduleId) -> Result<&Schedule, Refusal> {
        let no_schedule = || Refusal::Invalid(format!("there is no schedule {schedule}"));
        let entry = self.ledger.flows.schedules.get(&schedule);
        entry
            .filter(|entry| self.sees(by, self.ledger.user_of_schedule(entry)))
            .ok_or_else(no_schedule)
    }

    /// Lets a schedule start nothing. Its next time stays what it is, so that one which passes meanwhile is
    /// missed when the schedule is released, as if nobody had been there.
    pub(super) fn hold_schedule(
        &mut self,
        by: &UserName,
        schedule: ScheduleId,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        self.schedule_for(by, schedule)?;
        if self.ledger.held(schedule).is_some() {
            return Err(Refusal::Invalid(format!("schedule {schedule} is already held")));
        }
        self.index.due.retain(|(_, id)| *id != schedule);
        self.record_flow(FlowChange::Held(schedule), out);
        Ok(Effect::Obeyed { tasks: 0 })
    }

    /// Lets it start again what is due.
    pub(super) fn release_schedule(
        &mut self,
        by: &UserName,
        schedule: ScheduleId,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let due = self.schedule_for(by, schedule)?.due;
        if self.ledger.held(schedule).is_none() {
            return Err(Refusal::Invalid(format!("schedule {schedule} is not held")));
        }
        self.record_flow(FlowChange::Released(schedule), out);
        self.index.due.extend(due.map(|due| (due, schedule)));
        Ok(Effect::Obeyed { tasks: 0 })
    }

    fn next_of(&self, trigger: &Trigger, now: Moment) -> Option<Moment> {
        trigger.next_after(now, self.ledger.config.general.time_zone.clocks())
    }

    /// When a schedule is due next.
    pub(super) fn next_firing(&self) -> Moment {
        self.index.due.first().map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// Starts what is due until now.
    pub(super) fn fire_due(&mut self, out: &mut Outcome) {
        while let Some((at, schedule)) = self.index.due.first().copied()
            && at <= self.now
        {
            self.index.due.pop_first();
            self.fire(schedule, at, out);
        }
    }

    /// Starts what was due at a time, or says why not.
    fn fire(&mut self, id: ScheduleId, at: Moment, out: &mut Outcome) {
        let entry = &self.ledger.flows.schedules[&id];
        let Some(trigger) = &entry.spec.trigger else { return };
        if entry.is_spent() {
            self.record_flow(FlowChange::Unscheduled(id), out);
            return;
        }
        let is_once = matches!(trigger.when, When::At(_));
        let due = match trigger.when {
            When::Cron(_) => self.next_of(trigger, self.now),
            When::At(_) | When::File(_) => None,
        };
        self.index.due.extend(due.map(|due| (due, id)));
        let running = entry.last.and_then(|last| self.ledger.flow(last));
        let running = running.is_some_and(|run| run.state() == FlowState::Running);
        let why = if self.now.since(at) > GRACE_MS && trigger.missed == Missed::PassOver {
            "the time was missed, and catch_up is not set".to_owned()
        } else if running && trigger.overlap == Overlap::PassOver {
            "the previous run had not ended".to_owned()
        } else {
            let firing = Firing { schedule: id, due, file: None };
            match self.start_of(id, firing, out) {
                Ok(()) => return,
                Err(refusal) => refusal.to_string(),
            }
        };
        // What will not start any more is told for as long as jobs that have ended are.
        let age = self.ledger.config.general.finished_age.as_ms();
        let gone = is_once.then(|| self.now.after(age));
        self.index.due.extend(gone.map(|gone| (gone, id)));
        let due = due.or(gone);
        self.record_flow(FlowChange::Passed { schedule: id, due, why }, out);
    }

    fn start_of(
        &mut self,
        id: ScheduleId,
        firing: Firing,
        out: &mut Outcome,
    ) -> Result<(), Refusal> {
        let entry = &self.ledger.flows.schedules[&id];
        let (user, spec) = (self.ledger.user_of_schedule(entry).clone(), entry.spec.clone());
        self.fire_flow(&user, &spec, firing, out).map(|_| ())
    }

    /// Starts a run for each file that has arrived since the last look.
    pub(super) fn take_look(
        &mut self,
        id: ScheduleId,
        files: &[Found],
        trouble: Option<String>,
        out: &mut Outcome,
    ) {
        let Some(entry) = self.ledger.flows.schedules.get(&id) else { return };
        // It may have been held since the look began.
        if self.ledger.held(id).is_some() {
            return;
        }
        if !matches!(&entry.spec.trigger, Some(Trigger { when: When::File(_), .. })) {
            return;
        }
        let is_news =
            |file: &&Found| file.steady && entry.seen.get(&file.path) != Some(&file.stamp);
        let news: Vec<(String, Stamp)> = files
            .iter()
            .filter(is_news)
            .take(RUNS_AT_ONCE)
            .map(|file| (file.path.clone(), file.stamp))
            .collect();
        let mut why = trouble;
        self.make_room(id, news.len(), files, out);
        for (path, stamp) in news {
            let entry = &self.ledger.flows.schedules[&id];
            if entry.seen.len() >= SEEN_MAX && !entry.seen.contains_key(&path) {
                let most = format!("{SEEN_MAX} files have arrived and are still there");
                why = Some(format!("{most}: a schedule cannot remember more than that"));
                break;
            }
            let firing = Firing { schedule: id, due: None, file: Some((path, stamp)) };
            if let Err(refusal) = self.start_of(id, firing, out) {
                // It is tried again at the next look.
                why = Some(refusal.to_string());
                break;
            }
        }
        if let Some(why) = why
            && self.ledger.flows.schedules[&id].trouble.as_ref() != Some(&why)
        {
            self.record_flow(FlowChange::Passed { schedule: id, due: None, why }, out);
        }
    }

    /// Forgets files that are gone, if there is no room for new ones: as late as that, so that a folder
    /// that is away for a while starts nothing twice.
    fn make_room(
        &mut self,
        schedule: ScheduleId,
        wanted: usize,
        there: &[Found],
        out: &mut Outcome,
    ) {
        let seen = &self.ledger.flows.schedules[&schedule].seen;
        if seen.len() + wanted <= SEEN_MAX {
            return;
        }
        let there: BTreeSet<&str> = there.iter().map(|file| file.path.as_str()).collect();
        let gone = |path: &&String| !there.contains(path.as_str());
        let paths: Vec<String> = seen.keys().filter(gone).cloned().collect();
        if !paths.is_empty() {
            self.record_flow(FlowChange::Unseen { schedule, paths }, out);
        }
    }
}
