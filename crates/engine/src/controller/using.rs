//! What jobs use while they run, as their hosts say from time to time. Nothing here lasts, and nothing is decided by it
//! (what their work areas hold goes to the engine).

use std::collections::HashMap;

use forebay_base::Usage;
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::vocabulary::{Attempt, HostName, TaskId};

use crate::protocol::{Answer, Containment, Using};

/// What hosts said last. Memory: one entry for each job that runs.
#[derive(Default)]
pub(crate) struct Uses {
    hosts: HashMap<HostName, Host>,
}

struct Host {
    containment: Containment,
    runs: HashMap<TaskId, (Attempt, Usage)>,
    /// What Slurm says of those that run through it.
    notes: HashMap<TaskId, String>,
}

impl Uses {
    /// Takes what a host says in place of what it said before.
    pub fn take(&mut self, host: HostName, containment: Containment, runs: Vec<Using>) {
        let usage = |run: &Using| Some((run.task, (run.attempt, run.usage?)));
        let known = runs.iter().filter_map(usage).collect();
        let note = |run: Using| Some((run.task, run.note?));
        let notes = runs.into_iter().filter_map(note).collect();
        self.hosts.insert(host, Host { containment, runs: known, notes });
    }

    /// Adds to the explanation of a task what Slurm says of the start that is on its host.
    pub fn explain(&self, task: TaskId, host: &HostName, answer: &mut Answer) {
        let Answer::Explained { explanation: Explanation::Placed(placement), .. } = answer else {
            return;
        };
        let said = self.hosts.get(host).and_then(|host| host.notes.get(&task));
        placement.reasons.extend(said.cloned().map(Reason::Slurm));
    }

    /// Adds to an answer what is known here.
    pub fn complete(&self, answer: &mut Answer) {
        match answer {
            Answer::Hosts { hosts, .. } => {
                for view in hosts {
                    view.containment = self.hosts.get(&view.name).map(|host| host.containment);
                }
            }
            Answer::Jobs { jobs, .. } => {
                for line in jobs.iter_mut().filter(|line| line.ended.is_none()) {
                    let Some(host) = line.host.as_ref().and_then(|name| self.hosts.get(name))
                    else {
                        continue;
                    };
                    let Ok(target) = line.id.parse::<forebay_grid::vocabulary::Target>() else {
                        continue;
                    };
                    let task = TaskId { job: target.job, index: target.index.unwrap_or(0) };
                    let known = host.runs.get(&task);
                    let now = known.filter(|(attempt, _)| attempt.0 == line.attempts);
                    line.usage = now.map(|(_, usage)| *usage);
                }
            }
            _ => {}
        }
    }
}
