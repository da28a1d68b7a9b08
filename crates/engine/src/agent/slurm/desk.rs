//! The thread that keeps the jobs which Slurm has: it takes notes of the agent, looks at files of holders, asks Slurm, and
//! carries out what `held.rs` decides. Slurm's commands, which may wait for long, are called in other threads.
//!
//! How often it looks: `squeue` every second, and files every quarter of one; both at most for a twentieth of the time. A
//! slurmctld that does not answer is asked every few seconds, and nothing is concluded from its silence.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_grid::event::Loss;
use forebay_grid::spec::Checkpoint;

use super::call::{Answer, call};
use super::command::{
    FORMAT, Reached, Refused, Row, mark, number, refused, rows, script, submission,
};
use super::exchange::{CONTINUE, END, Ordered, Place, STOP};
use super::held::{Do, Held, Stage, StepSignal};
use super::record::{Known, Record};
use super::{Start, name_of};
use crate::agent::crew::Crew;
use crate::agent::{End, Input};
use crate::area::{self, Left};
use crate::causes::{chain, number_of};
use crate::run::{Task, uptime_ms};
use crate::user::account_of;

/// Threads that call `sbatch`, and those that call `scancel` and `scontrol`.
const SUBMISSIONS: usize = 4;
const CONTROLS: usize = 2;
/// How often files are looked at and Slurm is asked, in milliseconds, and how much longer than that takes the pause is.
const FILES_MS: u64 = 250;
/// How long after an order could not be written it is tried again.
const ORDERS_MS: u64 = 1_000;
const ASK_MS: u64 = 1_000;
const SILENT_MS: u64 = 3_000;
const SHARE: u64 = 20;
/// How long the end of all jobs may take.
const END_MS: u64 = 60_000;

/// What the desk is told.
pub enum Note {
    Launch {
        start: Start,
        task: Box<Task>,
        record: Record,
    },
    Kill(Start),
    Stop(Start),
    Resume(Start),
    Order(Start, String),
    /// Has Slurm warn the steps of a start, if these are to be warned.
    WarnSteps(Start),
    /// Slurm did not pass a signal on to the steps of a start.
    Signalled(Start, StepSignal, bool),
    Forget(Start),
    /// What became of a submission.
    Submitted(Start, Result<u64, Refused>),
    /// What `squeue` said, asked at that time.
    Seen {
        asked_ms: u64,
        rows: Result<Vec<Row>, String>,
    },
    EndAll(Sender<()>),
}

struct Kept {
    held: Held,
    record: Record,
    /// Orders that could not be written yet.
    unwritten: Vec<String>,
    /// Until Slurm has it.
    task: Option<Box<Task>>,
}

/// The desk.
pub struct Desk {
    grid: String,
    program: (PathBuf, String),
    place: Place,
    inputs: Sender<Input>,
    notes: Sender<Note>,
    kept: BTreeMap<Start, Kept>,
    submissions: Crew,
    controls: Crew,
    looks: Crew,
    is_asking: bool,
    next_ask_ms: u64,
    next_files_ms: u64,
    next_orders_ms: u64,
    is_silent: bool,
}

impl Desk {
    pub fn new(
        grid: String,
        program: (PathBuf, String),
        place: Place,
        inputs: Sender<Input>,
        notes: Sender<Note>,
    ) -> Result<Desk> {
        Ok(Desk {
            grid,
            program,
            place,
            inputs,
            notes,
            kept: BTreeMap::new(),
            submissions: Crew::begin("sbatch", SUBMISSIONS)?,
            controls: Crew::begin("scontrol", CONTROLS)?,
            looks: Crew::begin("squeue", 1)?,
            is_asking: false,
            next_ask_ms: 0,
            next_files_ms: 0,
            next_orders_ms: 0,
            is_silent: false,
        })
    }

    /// Keeps a start that an agent before this one had.
    pub fn add_found(
        &mut self,
        start: Start,
        record: Record,
        known: Known,
        (started, ordered): (bool, Ordered),
    ) {
        let stage = match known.id {
            Some(id) => Stage::Sent { id },
            // It may have been asked.
            None => Stage::Unsure { since_ms: uptime_ms() },
        };
        let mut held = Held::new(&known.task, stage);
        held.started = started;
        held.is_held = known.is_held;
        held.recall(&known, ordered);
        held.has_ended = known.end.is_some();
        let task = known.id.is_none().then(|| Box::new(known.task));
        self.kept.insert(start, Kept { held, record, unwritten: Vec::new(), task });
    }

    /// Works until the agent is gone.
    pub fn work(mut self, taken: &Receiver<Note>) {
        loop {
            let now_ms = uptime_ms();
            if self.next_files_ms <= now_ms {
                self.look_at_files();
                let took_ms = uptime_ms() - now_ms;
                self.next_files_ms = now_ms + FILES_MS.max(SHARE * took_ms);
            }
            self.ask(now_ms);
            self.act();
            match taken.recv_timeout(Duration::from_millis(FILES_MS)) {
                Ok(note) => {
                    self.take(note);
                    while let Ok(more) = taken.try_recv() {
                        self.take(more);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, note: Note) {
        let now_ms = uptime_ms();
        match note {
            Note::Launch { start, task, record } => {
                let held = Held::new(&task, Stage::Unsent);
                let task = Some(task);
                self.kept.insert(start, Kept { held, record, unwritten: Vec::new(), task });
            }
            Note::Kill(start) => {
                if let Some(kept) = self.kept.get_mut(&start) {
                    kept.held.kill(now_ms);
                }
            }
            Note::Stop(start) => self.set_stop(start, true),
            Note::Resume(start) => self.set_stop(start, false),
            Note::Order(start, order) => self.order(start, &order),
            Note::WarnSteps(start) => {
                if let Some(kept) = self.kept.get_mut(&start) {
                    kept.held.warn_steps();
                }
            }
            Note::Signalled(start, signal, is_passed_on) => {
                self.note_signalled(start, signal, is_passed_on);
            }
            Note::Forget(start) => {
                if let Some(kept) = self.kept.remove(&start) {
                    let (place, name) = (self.place.clone(), name_of(start));
                    // The record last: an agent that is killed in between is told again to forget it.
                    self.controls.give(move || {
                        place.remove(&name);
                        kept.record.remove();
                    });
                }
            }
            Note::Submitted(start, result) => self.note_submission(start, result, now_ms),
            Note::Seen { asked_ms, rows } => self.note_rows(asked_ms, rows, now_ms),
            Note::EndAll(reply) => {
                self.end_all();
                let _ = reply.send(());
            }
        }
    }

    fn set_stop(&mut self, start: Start, wants_stop: bool) {
        let Some(kept) = self.kept.get_mut(&start) else { return };
        kept.held.wants_stop = wants_stop;
        if kept.held.started {
            self.order(start, if wants_stop { STOP } else { CONTINUE });
        }
    }

    fn note_signalled(&mut self, start: Start, signal: StepSignal, is_passed_on: bool) {
        let Some(kept) = self.kept.get_mut(&start) else { return };
        kept.held.note_signalled(signal, is_passed_on);
        if is_passed_on && matches!(signal, StepSignal::Warn(_)) {
            let count = kept.held.warned_steps;
            self.say(start, &format!("warned {count}"));
        }
    }

    fn order(&mut self, start: Start, order: &str) {
        let Some(kept) = self.kept.get_mut(&start).filter(|kept| !kept.held.has_ended) else {
            return;
        };
        kept.unwritten.push(order.to_owned());
        if let Err(error) = self.write_orders(start) {
            tracing::warn!(order, "a job in Slurm gets no order yet: {error:#}");
        }
    }

    /// Writes the orders of a start, the oldest first. Those that cannot be written now are tried again later. A file that is gone
    /// holds its holder's lease no longer, and no order of it is of use.
    fn write_orders(&mut self, start: Start) -> Result<()> {
        let (place, name) = (&self.place, name_of(start));
        let Some(kept) = self.kept.get_mut(&start).filter(|kept| !kept.held.has_ended) else {
            return Ok(());
        };
        while let Some(order) = kept.unwritten.first() {
            match place.order(&name, order) {
                Err(error) if number_of(&error) != Some(libc::ENOENT) => return Err(error),
                Err(error) => tracing::warn!(order, "a job in Slurm gets no order: {error:#}"),
                Ok(()) => {}
            }
            kept.unwritten.remove(0);
        }
        Ok(())
    }

    /// Tries the orders again that could not be written, until one still cannot.
    fn write_late_orders(&mut self, now_ms: u64) {
        if now_ms < self.next_orders_ms {
            return;
        }
        let is_late = |(_, kept): &(&Start, &Kept)| !kept.unwritten.is_empty();
        let late: Vec<Start> = self.kept.iter().filter(is_late).map(|(start, _)| *start).collect();
        let _ = late.into_iter().try_for_each(|start| self.write_orders(start));
        self.next_orders_ms = uptime_ms() + ORDERS_MS;
    }

    /// Has the holder of a start that Slurm has given up end its job.
    fn fence(&mut self, start: Start) {
        let has_said = |kept: &Kept| kept.unwritten.iter().any(|order| order == END);
        if self.kept.get(&start).is_some_and(|kept| !has_said(kept)) {
            self.order(start, END);
        }
        let Some(kept) = self.kept.get_mut(&start) else { return };
        if kept.unwritten.is_empty() {
            kept.held.fenced(uptime_ms());
        } else {
            kept.held.note("its holder cannot be told to end yet: its orders cannot be written");
        }
    }

    fn note_submission(&mut self, start: Start, result: Result<u64, Refused>, now_ms: u64) {
        let Some(kept) = self.kept.get_mut(&start) else { return };
        match result {
            Ok(id) => {
                kept.held.sent(id, now_ms);
                kept.task = None;
                if let Err(error) = kept.record.say(&format!("slurm {id}")) {
                    // The next agent finds it by its mark.
                    tracing::warn!("the number of a job in Slurm is not recorded: {error:#}");
                }
                self.next_ask_ms = self.next_ask_ms.min(now_ms + FILES_MS);
            }
            Err(Refused::Later(why)) => {
                tracing::warn!("Slurm does not take a job now: {why}");
                kept.held.put_off(&why, Stage::Unsure { since_ms: now_ms }, now_ms);
            }
            Err(Refused::Never(why)) => {
                let why = anyhow::anyhow!("Slurm refuses it: {why}");
                self.end(start, End::not_started(&why));
            }
        }
    }

    fn note_rows(&mut self, asked_ms: u64, rows: Result<Vec<Row>, String>, now_ms: u64) {
        self.is_asking = false;
        let took_ms = now_ms - asked_ms;
        let rows = match rows {
            Ok(rows) => rows,
            Err(why) => {
                if !self.is_silent {
                    tracing::warn!("Slurm does not answer, jobs go on: {why}");
                }
                self.is_silent = true;
                self.next_ask_ms = now_ms + SILENT_MS;
                return;
            }
        };
        if self.is_silent {
            tracing::info!("Slurm answers again");
        }
        self.is_silent = false;
        self.next_ask_ms = now_ms + ASK_MS.max(SHARE * took_ms);
        let mut by_mark: BTreeMap<String, Row> = BTreeMap::new();
        for row in rows {
            // Of a start that was handed over twice the one that waits for its holder is of no interest.
            let name = row.mark.clone();
            let better = |before: &Row| before.reached() == Reached::Over && row.id > before.id;
            if by_mark.get(&name).is_none_or(better) {
                by_mark.insert(name, row);
            }
        }
        let grid = &self.grid;
        for (start, kept) in self.kept.iter_mut().filter(|(_, kept)| !kept.held.has_ended) {
            let before = kept.held.stage;
            let row = by_mark.remove(&mark(grid, &name_of(*start)));
            // What was submitted after the question may be missing in the answer.
            if row.is_some()
                || !matches!(before, Stage::Sent { .. })
                || kept.held.row_is_due(asked_ms)
            {
                kept.held.see(row, asked_ms, now_ms);
            }
            if let (Stage::Unsure { .. }, Stage::Sent { id }) = (before, kept.held.stage) {
                kept.task = None;
                let _ = kept.record.say(&format!("slurm {id}"));
            }
        }
    }

    /// Asks Slurm for its jobs, unless that is under way.
    fn ask(&mut self, now_ms: u64) {
        let alive = || self.kept.values().filter(|kept| !kept.held.has_ended);
        let sent =
            |kept: &&Kept| matches!(kept.held.stage, Stage::Sent { .. } | Stage::Unsure { .. });
        let users: BTreeSet<&str> =
            alive().filter(sent).map(|kept| kept.held.user.as_str()).collect();
        if users.is_empty() || self.is_asking || now_ms < self.next_ask_ms {
            return;
        }
        let users: Vec<&str> = users.into_iter().collect();
        let arguments = ask_arguments(&users.join(","));
        self.is_asking = true;
        let notes = self.notes.clone();
        self.looks.give(move || {
            let rows = ask_slurm(&arguments);
            let _ = notes.send(Note::Seen { asked_ms: now_ms, rows });
        });
    }

    fn look_at_files(&mut self) {
        let mut ended = Vec::new();
        for (start, kept) in self.kept.iter_mut().filter(|(_, kept)| kept.held.may_say()) {
            // What cannot be read now is read later; Slurm's word ends it if there is nothing.
            let Ok(said) = self.place.said(&name_of(*start)) else { continue };
            let was_started = kept.held.started;
            let end = kept.held.hear(said);
            if kept.held.started && !was_started && !end.as_ref().is_some_and(End::is_unable) {
                let (task, attempt) = *start;
                let _ = self.inputs.send(Input::Started { task, attempt, pid: None });
            }
            ended.extend(end.map(|end| (*start, end)));
        }
        for (start, end) in ended {
            self.end(start, end);
        }
    }

    /// Carries out what is due.
    fn act(&mut self) {
        let now_ms = uptime_ms();
        self.write_late_orders(now_ms);
        let starts: Vec<Start> = self.kept.keys().copied().collect();
        for start in starts {
            let (place, name) = (&self.place, name_of(start));
            let Some(kept) = self.kept.get_mut(&start) else { continue };
            let due = kept.held.due(now_ms, || place.log(&name));
            self.tell_note(start);
            match due {
                None => {}
                Some(Do::Submit) => self.submit(start),
                Some(Do::Cancel(id)) => self.control("scancel", vec![id.to_string()]),
                Some(Do::Hold(id)) => self.hold(start, id),
                Some(Do::Release(id)) => {
                    self.say(start, "free");
                    self.control("scontrol", vec!["release".to_owned(), id.to_string()]);
                }
                Some(Do::SignalSteps(id, signal)) => self.signal_steps(start, id, signal),
                Some(Do::Order(order)) => self.order(start, order),
                Some(Do::Fence) => self.fence(start),
                Some(Do::End(end)) => self.end(start, end),
            }
        }
    }

    fn hold(&mut self, start: Start, id: u64) {
        self.say(start, "held");
        if let Some(kept) = self.kept.get_mut(&start) {
            kept.held.is_held = true;
        }
        self.control("scontrol", vec!["uhold".to_owned(), id.to_string()]);
    }

    fn say(&self, start: Start, line: &str) {
        if let Some(kept) = self.kept.get(&start)
            && let Err(error) = kept.record.say(line)
        {
            tracing::warn!("{error:#}");
        }
    }

    fn tell_note(&mut self, start: Start) {
        let Some(kept) = self.kept.get_mut(&start) else { return };
        if let Some(note) = kept.held.fresh_note() {
            let _ = self.inputs.send(Input::Note { run: start, note });
        }
    }

    fn control(&self, program: &'static str, arguments: Vec<String>) {
        self.controls.give(move || match call(program, &arguments, "", None) {
            Ok(answer) if answer.is_success => {}
            // It is asked again as long as that is wanted.
            Ok(answer) => {
                tracing::warn!("{program} {}: {}", arguments.join(" "), answer.errors.trim());
            }
            Err(error) => tracing::warn!("{error}"),
        });
    }

    fn signal_steps(&self, start: Start, id: u64, signal: StepSignal) {
        let notes = self.notes.clone();
        self.controls.give(move || {
            let arguments = [format!("--signal={}", signal.name()), id.to_string()];
            let failure = match call("scancel", &arguments, "", None) {
                Ok(answer) if answer.is_success => None,
                Ok(answer) => Some(answer.errors.trim().to_owned()),
                Err(error) => Some(error),
            };
            if let Some(why) = &failure {
                tracing::warn!(
                    job = id,
                    ?signal,
                    "Slurm does not signal the steps of a job now: {why}"
                );
            }
            let _ = notes.send(Note::Signalled(start, signal, failure.is_none()));
        });
    }

    fn submit(&mut self, start: Start) {
        let Some(task) = self.kept.get(&start).and_then(|kept| kept.task.clone()) else { return };
        let (place, program, name) = (self.place.clone(), self.program.clone(), name_of(start));
        let (mark, notes) = (mark(&self.grid, &name), self.notes.clone());
        self.submissions.give(move || {
            let result = hand_over(&task, &place, &name, &mark, &program);
            let _ = notes.send(Note::Submitted(start, result));
        });
    }

    /// A start is over: recorded, then told.
    fn end(&mut self, start: Start, end: End) {
        let Some(kept) = self.kept.get_mut(&start) else { return };
        if let Err(error) = kept.record.say_end(&end) {
            // Found out again by the next agent, from the same files.
            tracing::warn!("the end of a job in Slurm is not recorded: {error:#}");
        }
        kept.held.has_ended = true;
        kept.task = None;
        let (task, attempt) = start;
        let _ = self.inputs.send(Input::Ended { task, attempt, end });
    }

    fn end_all(&mut self) {
        let alive = |(_, kept): &(&Start, &Kept)| !kept.held.has_ended;
        let starts: Vec<Start> = self.kept.iter().filter(alive).map(|(start, _)| *start).collect();
        let mut ids = Vec::new();
        for start in &starts {
            self.order(*start, END);
            let stage = self.kept.get(start).map(|kept| kept.held.stage);
            if let Some(Stage::Sent { id }) = stage {
                ids.push(id.to_string());
            }
            self.end(*start, End::Lost(Loss::Slurm("CANCELLED by forebay down".to_owned())));
        }
        if ids.is_empty() {
            return;
        }
        let until_ms = uptime_ms() + END_MS;
        let users: BTreeSet<&str> = starts
            .iter()
            .filter_map(|start| Some(self.kept.get(start)?.held.user.as_str()))
            .collect();
        let arguments = ask_arguments(&users.into_iter().collect::<Vec<_>>().join(","));
        let ours = format!("forebay:{}:", self.grid);
        while uptime_ms() < until_ms {
            if let Err(error) = call("scancel", &ids, "", None) {
                tracing::warn!("{error}");
            }
            let is_there = |row: &Row| {
                row.mark.starts_with(&ours)
                    && matches!(row.reached(), Reached::Waits | Reached::Runs)
            };
            if ask_slurm(&arguments).is_ok_and(|rows| !rows.iter().any(is_there)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(FILES_MS));
        }
        tracing::error!("not all jobs have left Slurm: see squeue, and cancel those of this grid");
    }
}

fn ask_arguments(users: &str) -> Vec<String> {
    let words = ["--noheader", "--all", "--states=all", "--format", FORMAT, "--users", users];
    words.map(str::to_owned).to_vec()
}

fn ask_slurm(arguments: &[String]) -> Result<Vec<Row>, String> {
    match call("squeue", arguments, "", None)? {
        Answer { is_success: true, output, .. } => Ok(rows(&output)),
        Answer { errors, .. } => Err(errors.trim().to_owned()),
    }
}

/// Makes what a start needs, and has Slurm take it.
fn hand_over(
    task: &Task,
    place: &Place,
    name: &str,
    mark: &str,
    program: &(PathBuf, String),
) -> Result<u64, Refused> {
    let later = |error: anyhow::Error| Refused::Later(chain(&error));
    let account = account_of(&task.launch.user).map_err(later)?;
    task.launch.check_account(&account).map_err(|error| Refused::Never(chain(&error)))?;
    // Slurm may have it already, if it could not say so.
    if place.is_claimed(name) {
        return Err(Refused::Later("its holder has begun".to_owned()));
    }
    let left = match task.launch.spec.checkpoint {
        Checkpoint::None => Left::Removed,
        Checkpoint::Steps => Left::Kept,
    };
    let made = area::make(&task.work, left, &account)
        .and_then(|()| area::make(&task.util, left, &account))
        .and_then(|()| place.begin(name, task, &account));
    made.context("its files cannot be made").map_err(later)?;
    let folder = place.folder(name);
    let text = script(&program.0, &program.1, &folder);
    let answer = call("sbatch", &submission(task, mark, &folder)?, &text, Some(&account));
    match answer.map_err(Refused::Later)? {
        Answer { is_success: true, output, .. } => number(&output)
            .ok_or_else(|| Refused::Later(format!("sbatch answers {:?}", output.trim()))),
        Answer { errors, .. } => Err(refused(&errors)),
    }
}
