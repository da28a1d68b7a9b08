//! Slurm as what runs the jobs of a host: the agent hands each start of a task to Slurm as a job of its own.
//!
//! The controller decides as ever: queues, users' turns, dependencies, flows, starts again. Slurm decides on which of its
//! nodes a job runs and when. There the script of the job becomes its holder (`crate::shim::allocation`), which
//! obeys the agent and says how the job ended by files that all nodes reach (`exchange.rs`). So neither the death of
//! slurmctld nor that of the agent or the controller concerns a job that runs.
//!
//! Crash contract: a start has a durable record (`record.rs`) before Slurm is asked; whether Slurm took one whose number is not in its
//! record is found out by the mark in the comment of the job. A start is over once its holder or Slurm has said so.
//! One that Slurm has given up (its node was lost) is over once its holder has obeyed, or cannot have read its orders for
//! longer than its lease; only then the controller is told.
//!
//! `command.rs` decides what is said to Slurm and what its answers mean; `desk.rs` keeps the jobs; `call.rs` calls.

mod call;
mod command;
mod desk;
mod exchange;
mod held;
mod record;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::{Attempt, TaskId};

use super::{End, Input, Settings};
use crate::run::{Run, Task};
use desk::{Desk, Note};
use exchange::{Place, WARN};
pub use record::FOLDER;
use record::Record;

/// A start of a task.
type Start = (TaskId, Attempt);

/// The agent's side.
pub struct Slurm {
    notes: Sender<Note>,
    place: Place,
    agent: PathBuf,
    /// What Slurm says of each start, in words.
    pub said: BTreeMap<Start, String>,
}

/// How a start is that was found.
pub enum Found {
    Waiting,
    Running,
    Stopped,
    Ended(End),
}

/// Name of the files of a start.
fn name_of(start: Start) -> String {
    Run::of(std::path::Path::new(""), start.0, start.1).name().to_owned()
}

impl Slurm {
    /// Finds what an agent before this one has left, and begins to watch it.
    ///
    /// # Errors
    /// If it cannot be read, or Slurm's commands are not there.
    pub(super) fn begin(
        settings: &Settings,
        agent: PathBuf,
        inputs: Sender<Input>,
    ) -> Result<(Slurm, Vec<(Start, Found)>)> {
        let version = call::call("sbatch", &["--version".to_owned()], "", None);
        let version = version.map_err(anyhow::Error::msg).context(
            "--engine slurm calls sbatch, squeue, scancel and scontrol: install Slurm's client commands on this machine",
        )?;
        tracing::info!("jobs run through {}", version.output.trim());
        let place = Place::make(&settings.home, settings.name.as_str())?;
        let (notes, taken) = channel();
        let grid = settings.home.id()?;
        let mut desk =
            Desk::new(grid, settings.shim.clone(), place.clone(), inputs, notes.clone())?;
        let mut found = Vec::new();
        for (name, record) in Record::all(&agent)? {
            let Some(known) = record.read()? else {
                record.remove();
                continue;
            };
            let start = (known.task.launch.task, known.task.launch.attempt);
            let started = place.said(&name).is_ok_and(|said| said.started);
            let ordered = place.ordered(&name);
            let how = match &known.end {
                Some(end) => Found::Ended(end.clone()),
                None if started && ordered.stops == Some(true) => Found::Stopped,
                None if started => Found::Running,
                None => Found::Waiting,
            };
            desk.add_found(start, record, known, (started, ordered));
            found.push((start, how));
        }
        std::thread::Builder::new().name("slurm".to_owned()).spawn(move || desk.work(&taken))?;
        Ok((Slurm { notes, place, agent, said: BTreeMap::new() }, found))
    }

    /// The file in which the holder of a start finds its orders.
    pub fn orders(&self, start: Start) -> PathBuf {
        self.place.orders(&name_of(start))
    }

    /// Whether a start was given the order to warn its job.
    pub fn was_warned(&self, start: Start) -> bool {
        self.place.ordered(&name_of(start)).warnings > 0
    }

    /// Hands a start to Slurm.
    ///
    /// # Errors
    /// If its record cannot be made.
    pub fn launch(&self, task: Task) -> Result<()> {
        let start = (task.launch.task, task.launch.attempt);
        let record = Record::make(&self.agent, &name_of(start), &task)?;
        self.note(Note::Launch { start, task: Box::new(task), record });
        Ok(())
    }

    /// Ends a start, gently first.
    pub fn kill(&self, start: Start) {
        self.note(Note::Kill(start));
    }

    /// Suspends a start, or holds it in Slurm's queue.
    pub fn stop(&self, start: Start) {
        self.note(Note::Stop(start));
    }

    /// Lets it go on.
    pub fn resume(&self, start: Start) {
        self.note(Note::Resume(start));
    }

    /// Gives the holder of a start this order.
    pub fn order(&self, start: Start, order: String) {
        self.note(Note::Order(start, order));
    }

    /// Warns a start: its holder, and Slurm if steps of Slurm's own srun are to be warned.
    pub fn warn(&self, start: Start) {
        self.order(start, WARN.to_owned());
        self.note(Note::WarnSteps(start));
    }

    /// The end of a start was taken note of.
    pub fn forget(&mut self, start: Start) {
        self.said.remove(&start);
        self.note(Note::Forget(start));
    }

    /// Ends all jobs and waits until Slurm says that they are over, for a while.
    pub fn end_all(&self) {
        let (reply, done) = channel();
        self.note(Note::EndAll(reply));
        let _ = done.recv();
    }

    fn note(&self, note: Note) {
        // The desk ends after this only.
        let _ = self.notes.send(note);
    }
}

/// The first start of a job of ann's, as tests hand it to Slurm.
#[cfg(test)]
fn start_of_job_7(spec: forebay_grid::spec::JobSpec) -> crate::run::Task {
    use forebay_grid::vocabulary::JobId;
    let launch = crate::protocol::Launch {
        task: TaskId { job: JobId(7), index: 0 },
        attempt: Attempt(1),
        requeues: 0,
        user: "ann".parse().unwrap(),
        numbers: None,
        spec,
        slots: 1,
        time_limit: None,
        gpus: None,
        wrap: None,
        checkpoint_bounds: None,
        watch: None,
        limits: Default::default(),
    };
    crate::run::Task {
        launch,
        host: "slurm".parse().unwrap(),
        root: "/g".into(),
        agent: "/g/grid/hosts/slurm".into(),
        work: "/g/grid/work/job-7".into(),
        util: "/g/grid/work/job-7-util".into(),
        checkpoints: None,
        groups: None,
        address: String::new(),
        allocation: None,
    }
}
