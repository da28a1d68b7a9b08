//! What an agent does in its own way whose jobs run through Slurm.

use forebay_grid::vocabulary::{Attempt, TaskId};
use rustix::process::Signal;

use super::slurm::Found;
use super::{Agent, Status};
use crate::protocol::{Launch, Order};
use crate::run::{Allocation, End, Task};

impl Status {
    /// It has started.
    pub(super) fn begin(&mut self) {
        if matches!(self, Status::Waiting) {
            *self = Status::Running;
        }
    }
}

impl Agent {
    /// Takes over what was found in Slurm.
    pub(super) fn find_in_slurm(&mut self, found: Vec<((TaskId, Attempt), Found)>) {
        for (start, how) in found {
            if self.slurm.as_ref().is_some_and(|slurm| slurm.was_warned(start)) {
                self.warned.insert(start, None);
            }
            let status = match how {
                Found::Waiting => Status::Waiting,
                Found::Running => Status::Running,
                Found::Stopped => Status::Stopped,
                Found::Ended(end) => Status::Ended(end),
            };
            self.runs.insert(start, status);
        }
    }

    pub(super) fn launch_in_slurm(&mut self, launch: Launch) {
        let start = (launch.task, launch.attempt);
        let (work, util) = self.areas.of(launch.task, launch.requeues);
        let Some(slurm) = &self.slurm else { return };
        let allocation = Allocation { orders: slurm.orders(start), lease_ms: self.lease_ms };
        let task = Task {
            launch,
            host: self.settings.name.clone(),
            root: self.settings.root.clone(),
            agent: self.folder.clone(),
            work: work.clone(),
            util: util.clone(),
            // The areas are where every node finds them.
            checkpoints: None,
            groups: None,
            address: self.address.clone(),
            allocation: Some(allocation),
        };
        match slurm.launch(task) {
            Ok(()) => {
                self.runs.insert(start, Status::Waiting);
                self.space.add(start, work, util);
            }
            Err(error) => self.note_end(start.0, start.1, End::unable(&error)),
        }
    }

    pub(super) fn steer_in_slurm(&mut self, order: &Order) {
        let Some(slurm) = &self.slurm else { return };
        match *order {
            Order::Kill { task, attempt, .. } => slurm.kill((task, attempt)),
            Order::Suspend { task, attempt } => {
                slurm.stop((task, attempt));
                self.set_status((task, attempt), Status::Stopped);
            }
            Order::Resume { task, attempt } => {
                slurm.resume((task, attempt));
                self.set_status((task, attempt), Status::Running);
            }
            Order::Signal { task, attempt, signal } => {
                let number: Signal = crate::shim::relayed(signal);
                slurm.order((task, attempt), format!("signal {}", number.as_raw()));
            }
            Order::Warn { task, attempt, .. } => slurm.warn((task, attempt)),
            _ => {}
        }
    }

    /// What was started is suspended or goes on.
    fn set_status(&mut self, start: (TaskId, Attempt), status: Status) {
        if let Some(now) = self.runs.get_mut(&start)
            && matches!(now, Status::Running | Status::Stopped)
        {
            *now = status;
        }
    }

    /// Takes what Slurm says of a job, and tells it with what the jobs use.
    pub(super) fn take_note(&mut self, run: (TaskId, Attempt), note: String) {
        if let Some(slurm) = &mut self.slurm
            && self.runs.contains_key(&run)
        {
            slurm.said.insert(run, note);
            self.notes_are_fresh = true;
        }
    }
}
