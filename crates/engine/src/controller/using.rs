//! What jobs use while they run, as their hosts say from time to time. Nothing here lasts, and nothing is decided by it
//! (what their work areas hold goes to the engine).

use std::collections::HashMap;

use forebay_base::Usage;
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{Attempt, HostName, TaskId};

use crate::protocol::{Answer, Containment, Health, JobView, Missing, Using};

/// What hosts said last. Memory: one entry for each job that runs.
#[derive(Default)]
pub(crate) struct Uses {
    hosts: HashMap<HostName, Host>,
}

struct Host {
    containment: Containment,
    missing: Missing,
    runs: HashMap<TaskId, Run>,
    /// What Slurm says of those that run through it.
    notes: HashMap<TaskId, String>,
}

struct Run {
    attempt: Attempt,
    usage: Option<Usage>,
    health: Option<Health>,
}

impl Uses {
    /// Takes what a host says in place of what it said before.
    pub fn take(
        &mut self,
        host: HostName,
        containment: Containment,
        runs: Vec<Using>,
        missing: Missing,
    ) {
        let note = |run: &Using| Some((run.task, run.note.clone()?));
        let notes = runs.iter().filter_map(note).collect();
        let runs = runs.into_iter().map(|run| {
            let Using { task, attempt, usage, health, .. } = run;
            (task, Run { attempt, usage, health })
        });
        self.hosts.insert(host, Host { containment, missing, runs: runs.collect(), notes });
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
                    let host = self.hosts.get(&view.name);
                    view.containment = host.map(|host| host.containment);
                    view.missing_limits = host.map(|host| host.missing.clone()).unwrap_or_default();
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
                    let Some(now) = known.filter(|run| run.attempt.0 == line.attempts) else {
                        continue;
                    };
                    line.usage = now.usage;
                    tell_health(line, now.health.as_ref());
                }
            }
            _ => {}
        }
    }
}

/// Says how a service is that is on its host.
fn tell_health(line: &mut JobView, health: Option<&Health>) {
    if let (Some(service), Some(health), JobState::Running) =
        (&mut line.service, health, line.state)
    {
        service.ready = Some(health.ready);
        service.why.clone_from(&health.why);
        service.address = Some(health.address.clone());
    }
}
