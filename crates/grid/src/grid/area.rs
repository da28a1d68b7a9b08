//! Limits of work areas: what becomes of a job whose areas hold more than its queue allows.
//!
//! Agents measure in the background, so a job is found some time after it went over its limit.

use crate::config::{AreaExceeded, Processors};
use crate::event::{AreaSize, Outcome};
use crate::grid::Grid;
use crate::grid::explain::Reason;
use crate::task::{Ending, Run, Stops, Task};
use crate::vocabulary::{HostName, TaskId};

impl Grid {
    /// Takes what a host says of the areas there in place of what it said before.
    pub(super) fn take_area_sizes(
        &mut self,
        name: &HostName,
        sizes: &[AreaSize],
        out: &mut Outcome,
    ) {
        let Some(host) = self.host_id(name).filter(|host| self.reaches(*host)) else { return };
        let measured = sizes.iter().map(|size| (size.task, (size.attempt, size.bytes))).collect();
        self.index.hosts[host.0 as usize].area_bytes = measured;
        for size in sizes {
            if self.run_of(name, size.task, size.attempt).is_some() {
                self.hold_to_area_limit(size.task, out);
            }
        }
    }

    fn hold_to_area_limit(&mut self, task: TaskId, out: &mut Outcome) {
        let exceeded = self.area_over(task).map(|over| over.2);
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        let (held, ends) = (run.stops().has(Stops::AREA), run.ending.is_some());
        match exceeded {
            Some(AreaExceeded::End) if !ends => self.end(task, Ending::AreaLimit, out),
            Some(AreaExceeded::Hold) if !held => self.suspend(task, Stops::AREA, out),
            Some(AreaExceeded::Hold | AreaExceeded::End) => {}
            // It holds less by now, or its queue says something else.
            Some(AreaExceeded::Warn) | None if held => self.resume(task, Stops::AREA, out),
            Some(AreaExceeded::Warn) | None => {}
        }
    }

    /// What the areas of a running task hold, what they may hold, and what its queue wants then, if that is too much.
    fn area_over(&self, task: TaskId) -> Option<(u64, u64, AreaExceeded)> {
        let job = &self.ledger.jobs[&task.job];
        let queue = self.queue_config(job.queue)?;
        let limit = queue.area_limit?.0;
        let run = self.ledger.task(task).and_then(Task::run)?;
        let (attempt, bytes) = *self.index.hosts[run.host.0 as usize].area_bytes.get(&task)?;
        (attempt == run.attempt && bytes > limit).then_some((bytes, limit, queue.area_exceeded))
    }

    /// What is to be said of a task that was started: why it is suspended, and that its areas hold too much.
    pub(super) fn explain_run(&self, task: TaskId, run: &Run) -> Vec<Reason> {
        let stops = run.stops();
        let area = self.area_over(task).map(|(bytes, limit, exceeded)| Reason::Area {
            bytes,
            limit,
            exceeded,
        });
        let held = area.is_none() && stops.has(Stops::AREA);
        let reasons = [
            stops.has(Stops::ASKED).then_some(Reason::StoppedByUser),
            stops.has(Stops::WINDOW).then_some(Reason::StoppedByWindow),
            stops.has(Stops::LOAD).then_some(Reason::StoppedByLoad),
            held.then_some(Reason::StoppedByArea),
            area,
        ];
        let mut reasons: Vec<Reason> = reasons.into_iter().flatten().collect();
        reasons.extend(self.explain_preemption(task, run));
        let job = &self.ledger.jobs[&task.job];
        let limits = self.limits_on(job.queue, run.host);
        reasons.extend((!limits.are_default()).then(|| {
            let processors = match limits.processors {
                Processors::Slots => Some(job.spec.slots()),
                Processors::Share => None,
            };
            Reason::Limits { processors, processes: limits.processes_max }
        }));
        let spec = &job.spec;
        reasons.extend(spec.warning.map(|warning| Reason::Warning {
            warning,
            at: run.warning(spec),
            sent: run.warned,
        }));
        reasons
    }
}
