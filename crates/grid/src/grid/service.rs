//! Services: which are taken, what becomes of one that ended, and which ports they have.

use std::collections::BTreeSet;

use crate::event::{Loss, Outcome, Refusal};
use crate::grid::Grid;
use crate::grid::running::End;
use crate::journal::Change;
use crate::ledger::Job;
use crate::service::{Service, ServicePort, ServiceState};
use crate::spec::{Exit, JobSpec};
use crate::task::{Cause, Ending, Fate, Run, Task};
use crate::vocabulary::{JobId, UserId};

impl Grid {
    /// All services that have not ended.
    fn services(&self) -> impl Iterator<Item = (JobId, &Job, &Service)> {
        let job = |id: &JobId| Some((*id, self.ledger.jobs.get(id)?));
        let jobs = self.index.open.keys().filter_map(job);
        jobs.filter_map(|(id, job)| Some((id, job, &**job.spec.service.as_ref()?)))
    }

    /// Whether a service is taken: its name is unique among those of its user, and there is a port for it.
    pub(super) fn check_service(
        &self,
        user: Option<UserId>,
        spec: &JobSpec,
    ) -> Result<(), Refusal> {
        let Some(wanted) = &spec.service else { return Ok(()) };
        let same = |job: &Job, of: &Service| Some(job.user) == user && of.name == wanted.name;
        if let Some((id, ..)) = self.services().find(|(_, job, of)| same(job, of)) {
            let name = &wanted.name;
            return Err(Refusal::Invalid(format!(
                "service {name} is already there (job {id}): stop it first with forebay service stop {name}, or choose \
                 another name"
            )));
        }
        if wanted.port == ServicePort::Chosen && self.free_port(None).is_none() {
            let general = &self.ledger.config.general;
            return Err(Refusal::TooMany(format!(
                "all ports from {} to {} are given to services (service_port_min and service_port_max of this grid)",
                general.service_port_min, general.service_port_max
            )));
        }
        Ok(())
    }

    /// How a service begins.
    pub(super) fn new_service(&self, service: &Service) -> ServiceState {
        let port = match service.port {
            ServicePort::None => None,
            ServicePort::Fixed(port) => Some(port),
            ServicePort::Chosen => self.free_port(None),
        };
        ServiceState { port, ..ServiceState::default() }
    }

    /// The next port after another one that no service has.
    fn free_port(&self, after: Option<u16>) -> Option<u16> {
        let general = &self.ledger.config.general;
        let (first, last) = (general.service_port_min, general.service_port_max);
        let taken: BTreeSet<u16> =
            self.services().filter_map(|(_, job, _)| job.service?.port).collect();
        let begin = after.and_then(|port| port.checked_add(1)).unwrap_or(first);
        (begin.max(first)..=last).chain(first..=last).find(|port| !taken.contains(port))
    }

    /// What becomes of a service whose start came to this end. The loss of a host is no failure of it.
    pub(super) fn fate_of_service(&self, job: &Job, run: &Run, end: &End) -> Fate {
        match end {
            End::NeverStarted | End::Lost | End::Told(_) => Fate::Again,
            End::Exited(..) => {
                let state = self.state_after(job, run);
                if state.failures > self.ledger.config.general.service_failures_max {
                    Fate::Finished(Cause::AttemptsMax)
                } else {
                    Fate::Again
                }
            }
        }
    }

    fn state_after(&self, job: &Job, run: &Run) -> ServiceState {
        let ran_ms = run.phase.started().map(|started| self.now.since(started));
        job.service.unwrap_or_default().ended(ran_ms, &self.ledger.config.general)
    }

    /// How a service is that starts again after such an end; none if it does not, or is no service.
    pub(super) fn service_after(
        &self,
        job: JobId,
        run: &Run,
        end: &End,
        fate: Fate,
    ) -> Option<ServiceState> {
        let job = &self.ledger.jobs[&job];
        let service = job.spec.service.as_ref()?;
        let before = job.service.unwrap_or_default();
        if matches!(fate, Fate::Finished(_)) {
            return None;
        }
        let after = match end {
            _ if matches!(run.ending, Some(Ending::Requeued | Ending::Preempted { .. })) => {
                ServiceState { failures: 0, not_before: None, ..before }
            }
            End::NeverStarted
            | End::Lost
            | End::Told(Loss::Lease | Loss::Holder | Loss::Slurm(_)) => {
                ServiceState { not_before: None, ..before }
            }
            // The host itself is left alone for a while.
            End::Told(Loss::Unable(_)) => ServiceState { not_before: None, ..before },
            End::Exited(exit, _) => {
                let state = self.state_after(job, run);
                let pause_ms = state.pause_ms(&self.ledger.config.general);
                // It may be somebody else who has the port on that host.
                let port = match (exit, service.port) {
                    (Exit::NotStarted(_), ServicePort::Chosen) => {
                        self.free_port(state.port).or(state.port)
                    }
                    _ => state.port,
                };
                ServiceState { port, not_before: Some(self.now.after(pause_ms)), ..state }
            }
        };
        (after != before).then_some(after)
    }

    /// Changes how a service is, between two of its starts.
    pub(super) fn set_service(&mut self, job: JobId, state: ServiceState, out: &mut Outcome) {
        self.index.take_out(&self.ledger, job, &self.ledger.jobs[&job]);
        self.record(Change::Service { job, state }, out);
        self.index.add_job(&self.ledger, job, &self.ledger.jobs[&job]);
        self.index.stir();
    }

    /// Lets a service start at once that pauses; whether it did.
    pub(super) fn end_pause(&mut self, id: JobId, out: &mut Outcome) -> bool {
        let job = &self.ledger.jobs[&id];
        let Some(state) = job.service else { return false };
        let pauses = matches!(job.tasks[..], [Task::Pending(_)])
            && state.not_before.is_some_and(|at| at > self.now);
        if pauses {
            self.set_service(id, ServiceState { failures: 0, not_before: None, ..state }, out);
        }
        pauses
    }
}
