//! One start of a task as far as its agent knows: a pure decision for each thing that is heard of it.

use forebay_grid::spec::Exit;
use forebay_grid::vocabulary::UserName;
use forebay_grid::warning::{Warned, WarningSignal};

use super::command::{Reached, Row, UNKNOWN, Unsaid};
use super::exchange::Ordered;
use super::record::Known;
use crate::agent::End;
use crate::run::{Said, Task};

/// How long what a holder has said may be on its way after Slurm has seen its end, in milliseconds.
const VISIBLE_MS: u64 = 10_000;
/// How long a job has to end before Slurm is asked to end it, beyond the grace that its holder gives it.
const KILL_MS: u64 = 20_000;
/// How long after one request to Slurm that did nothing the next one is made.
const AGAIN_MS: u64 = 3_000;
/// How long Slurm is left alone that did not take a job, at first and at most.
const RETRY_MS: u64 = 1_000;
const RETRY_MAX_MS: u64 = 60_000;

/// Whether Slurm has the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has not.
    Unsent,
    /// It is being asked.
    Sending,
    /// It was asked, and did not say whether it has: since then.
    Unsure { since_ms: u64 },
    /// It has, by this number.
    Sent { id: u64 },
}

/// One start.
#[derive(Debug)]
pub struct Held {
    pub user: UserName,
    pub stage: Stage,
    /// Whether the holder has said that it began the job.
    pub started: bool,
    /// What Slurm said last.
    row: Option<Row>,
    /// Since when Slurm says that it is over, or does not know it any more, and in which state.
    over: Option<(u64, String)>,
    /// Since when its holder is told to end, because Slurm has given it up.
    fenced_ms: Option<u64>,
    lease_ms: u64,
    memory: Option<forebay_base::ByteSize>,
    /// Since when it is to end.
    killed_ms: Option<u64>,
    is_told_to_end: bool,
    asked_ms: u64,
    /// Whether it is to wait, or to be suspended.
    pub wants_stop: bool,
    /// Whether the agent holds it in Slurm's queue.
    pub is_held: bool,
    /// The signal that warns the steps which Slurm's own srun starts, if the job wants these to be warned.
    steps_signal: Option<WarningSignal>,
    /// How often its holder was told to warn it, and how often Slurm has warned its steps.
    warnings: u32,
    pub warned_steps: u32,
    /// The warnings of which the one that Slurm was asked for last is the last.
    warning_asked: u32,
    /// Whether they are suspended; none if that is not known.
    are_steps_stopped: Option<bool>,
    /// Slurm has not answered yet whether it passed the latest signal on.
    is_signalling: bool,
    retry_ms: u64,
    pause_ms: u64,
    pub has_ended: bool,
    note: String,
    told: String,
    /// When Slurm took it.
    sent_ms: u64,
}

/// A signal for the steps that Slurm's own srun has started. They are not below the holder, so only Slurm reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSignal {
    Warn(WarningSignal),
    Stop,
    Continue,
}

impl StepSignal {
    /// As `scancel` names it.
    pub fn name(self) -> &'static str {
        match self {
            StepSignal::Warn(signal) => signal.name(),
            StepSignal::Stop => "STOP",
            StepSignal::Continue => "CONT",
        }
    }
}

/// What is to be done for a start.
#[derive(Debug)]
pub enum Do {
    /// Ask Slurm to take it.
    Submit,
    /// `scancel`.
    Cancel(u64),
    /// `scontrol hold`.
    Hold(u64),
    /// `scontrol release`.
    Release(u64),
    /// `scancel --signal`, which reaches its steps only.
    SignalSteps(u64, StepSignal),
    /// Tell its holder.
    Order(&'static str),
    /// Have its holder end the job, which Slurm has given up.
    Fence,
    /// It is over.
    End(End),
}

impl Held {
    pub fn new(task: &Task, stage: Stage) -> Held {
        let warning = task.launch.spec.warning;
        let of_steps = warning.filter(|warning| warning.to == Warned::Steps);
        Held {
            user: task.launch.user.clone(),
            stage,
            started: false,
            row: None,
            over: None,
            fenced_ms: None,
            lease_ms: task.allocation.as_ref().map_or(0, |allocation| allocation.lease_ms),
            memory: task.launch.spec.memory,
            killed_ms: None,
            is_told_to_end: false,
            asked_ms: 0,
            wants_stop: false,
            is_held: false,
            steps_signal: of_steps.map(|warning| warning.signal),
            warnings: 0,
            warned_steps: 0,
            warning_asked: 0,
            are_steps_stopped: Some(false),
            is_signalling: false,
            retry_ms: 0,
            pause_ms: RETRY_MS,
            has_ended: false,
            note: String::new(),
            told: String::new(),
            sent_ms: 0,
        }
    }

    /// Whether its holder may have something to say.
    pub fn may_say(&self) -> bool {
        let runs = self.row.as_ref().is_some_and(|row| row.reached() != Reached::Waits);
        let is_unsure = matches!(self.stage, Stage::Unsure { .. }) || self.pause_ms > RETRY_MS;
        !self.has_ended && (self.started || runs || is_unsure || self.over.is_some())
    }

    /// Slurm did not take it for now, or has not said whether it did.
    pub fn put_off(&mut self, why: &str, stage: Stage, now_ms: u64) {
        self.stage = stage;
        self.retry_ms = now_ms + self.pause_ms;
        self.pause_ms = (2 * self.pause_ms).min(RETRY_MAX_MS);
        self.note = format!("Slurm does not take it now: {why}");
    }

    /// It is to end.
    pub fn kill(&mut self, now_ms: u64) {
        self.killed_ms.get_or_insert(now_ms);
    }

    /// Its end is near.
    pub fn warn_steps(&mut self) {
        self.warnings += 1;
    }

    /// Takes over what an agent before this one has told its holder, and what it could not tell Slurm any more.
    pub fn recall(&mut self, known: &Known, ordered: Ordered) {
        self.wants_stop = match ordered.stops {
            Some(stops) if self.started => stops,
            Some(_) | None => known.is_held,
        };
        // It may have been killed before it had Slurm do so for the steps.
        self.are_steps_stopped = ordered.stops.is_none().then_some(false);
        self.warned_steps = known.warned_steps;
        self.warnings = ordered.warnings.max(known.warned_steps);
    }

    /// Slurm passed a signal on to its steps, or did not.
    pub fn note_signalled(&mut self, signal: StepSignal, is_passed_on: bool) {
        self.is_signalling = false;
        match signal {
            StepSignal::Warn(_) if is_passed_on => self.warned_steps = self.warning_asked,
            StepSignal::Warn(_) => {}
            StepSignal::Stop => self.are_steps_stopped = is_passed_on.then_some(true),
            StepSignal::Continue => self.are_steps_stopped = is_passed_on.then_some(false),
        }
    }

    /// The signal that its steps are to get now: one after the other, so that none overtakes another.
    fn take_step_signal(&mut self, now_ms: u64) -> Option<StepSignal> {
        let is_past_grace = self.killed_ms.is_some_and(|since_ms| now_ms >= since_ms + KILL_MS);
        if !self.started || self.is_signalling || is_past_grace {
            return None;
        }
        let warns = self.warned_steps < self.warnings;
        self.warning_asked = self.warnings;
        let signal = self.steps_signal.filter(|_| warns).map(StepSignal::Warn);
        // Steps that are stopped could not end in order.
        let wants_stop = self.wants_stop && self.killed_ms.is_none();
        let signal = signal.or_else(|| {
            let change = if wants_stop { StepSignal::Stop } else { StepSignal::Continue };
            (self.are_steps_stopped != Some(wants_stop)).then_some(change)
        });
        self.is_signalling = signal.is_some();
        signal
    }

    /// What its holder said.
    pub fn hear(&mut self, said: Said) -> Option<End> {
        self.started |= said.started;
        let end = said.end?;
        // What was killed because Slurm has given it up is lost. Another end came before that.
        let is_killed = matches!(&end, End::Exited { exit: Exit::Signal(9), .. });
        match &self.over {
            Some((_, state)) if self.fenced_ms.is_some() && is_killed => {
                Some(self.unsaid(state, ""))
            }
            Some(_) | None => Some(end),
        }
    }

    /// Slurm has taken it.
    pub fn sent(&mut self, id: u64, now_ms: u64) {
        self.stage = Stage::Sent { id };
        self.sent_ms = now_ms;
        self.note = format!("Slurm job {id} was submitted");
    }

    /// Whether Slurm has to know of it in an answer to a question asked at that time.
    pub fn row_is_due(&self, asked_ms: u64) -> bool {
        self.sent_ms < asked_ms
    }

    /// What hinders its end, in words.
    pub fn note(&mut self, why: &str) {
        why.clone_into(&mut self.note);
    }

    /// What Slurm says of it, in words, if that was not told yet.
    pub fn fresh_note(&mut self) -> Option<String> {
        (self.note != self.told).then(|| {
            self.told.clone_from(&self.note);
            self.note.clone()
        })
    }

    /// What Slurm said, in an answer to a question asked at that time; none if it does not know the job.
    pub fn see(&mut self, row: Option<Row>, asked_ms: u64, now_ms: u64) {
        match (self.stage, &row) {
            (Stage::Unsure { since_ms }, None) if since_ms < asked_ms => self.stage = Stage::Unsent,
            (Stage::Unsure { .. }, Some(row)) => self.stage = Stage::Sent { id: row.id },
            _ => {}
        }
        let Stage::Sent { id } = self.stage else { return };
        let state = match &row {
            Some(row) => match row.reached() {
                Reached::Waits | Reached::Runs => None,
                Reached::Over | Reached::GivenUp => Some(row.state.clone()),
            },
            None => Some(UNKNOWN.to_owned()),
        };
        match state {
            None => self.over = None,
            Some(state) if self.over.as_ref().is_none_or(|(_, before)| *before != state) => {
                // The last state that was named counts, once it is forgotten.
                let is_over = state == UNKNOWN && self.over.is_some();
                if !is_over {
                    self.over = Some((now_ms, state));
                }
            }
            Some(_) => {}
        }
        match row {
            Some(row) => {
                self.note = row.note();
                self.row = Some(row);
            }
            None => self.note = format!("Slurm job {id} is no longer known to Slurm"),
        }
    }

    fn unsaid(&self, state: &str, log: &str) -> End {
        let id = match self.stage {
            Stage::Sent { id } => id,
            Stage::Unsent | Stage::Sending | Stage::Unsure { .. } => 0,
        };
        let reason = self.row.as_ref().map_or("", |row| &row.reason);
        Unsaid { id, state, reason, started: self.started, memory: self.memory, log }.end()
    }

    /// What is to be done now; `log` is what Slurm wrote.
    pub fn due(&mut self, now_ms: u64, log: impl FnOnce() -> String) -> Option<Do> {
        if self.has_ended {
            return None;
        }
        let id = match self.stage {
            Stage::Unsent if self.killed_ms.is_some() => {
                return Some(Do::End(self.unsaid("CANCELLED", "")));
            }
            Stage::Unsent if self.wants_stop || now_ms < self.retry_ms => return None,
            Stage::Unsent => {
                self.stage = Stage::Sending;
                return Some(Do::Submit);
            }
            Stage::Sending | Stage::Unsure { .. } => return None,
            Stage::Sent { id } => id,
        };
        if let Some((since_ms, state)) = self.over.clone() {
            return self.due_when_over(since_ms, &state, now_ms, log);
        }
        if self.killed_ms.is_some() && self.started && !self.is_told_to_end {
            self.is_told_to_end = true;
            return Some(Do::Order("kill"));
        }
        if now_ms < self.asked_ms + AGAIN_MS {
            return None;
        }
        if let Some(signal) = self.take_step_signal(now_ms) {
            self.asked_ms = now_ms;
            return Some(Do::SignalSteps(id, signal));
        }
        let waits = self.row.as_ref().is_some_and(|row| row.reached() == Reached::Waits);
        let is_held = self.row.as_ref().is_some_and(Row::is_held);
        let order = match self.killed_ms {
            Some(since_ms) if self.started && now_ms < since_ms + KILL_MS => return None,
            Some(_) => Do::Cancel(id),
            None if !waits || self.started || self.wants_stop == is_held => return None,
            None if self.wants_stop => Do::Hold(id),
            None if self.is_held => Do::Release(id),
            // Somebody else holds it.
            None => return None,
        };
        self.asked_ms = now_ms;
        Some(order)
    }

    /// Its holder can read that it is to end.
    pub fn fenced(&mut self, now_ms: u64) {
        self.fenced_ms = Some(now_ms);
    }

    fn due_when_over(
        &mut self,
        since_ms: u64,
        state: &str,
        now_ms: u64,
        log: impl FnOnce() -> String,
    ) -> Option<Do> {
        let is_given_up = state == UNKNOWN
            || self.row.as_ref().is_some_and(|row| row.reached() == Reached::GivenUp);
        let since_ms = match self.fenced_ms {
            Some(fenced_ms) => since_ms.max(fenced_ms),
            None if is_given_up => return Some(Do::Fence),
            None => since_ms,
        };
        // A holder that reads no orders ends its job when its lease is over, and needs a moment for it.
        let patience_ms =
            if is_given_up { self.lease_ms + self.lease_ms / 10 + 1_000 } else { VISIBLE_MS };
        // One that was not started has nothing more to say.
        let patience_ms =
            if self.started || is_given_up { patience_ms } else { patience_ms.min(1_000) };
        (now_ms >= since_ms + patience_ms).then(|| Do::End(self.unsaid(state, &log())))
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
