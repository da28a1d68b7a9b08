//! A snapshot in memory, written piece by piece as a journal would write it.

use std::collections::BTreeMap;

use forebay_grid::environment::Environment;
use forebay_grid::flow::{FlowId, ScheduleId};
use forebay_grid::journal::Record;
use forebay_grid::snapshot::Touched;
use forebay_grid::vocabulary::JobId;
use forebay_grid::{Job, Ledger};

/// The pieces as they were written last, and how many records they hold.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    head: Vec<u8>,
    jobs: BTreeMap<JobId, (Vec<u8>, Environment)>,
    flows: BTreeMap<FlowId, Vec<u8>>,
    schedules: BTreeMap<ScheduleId, Vec<u8>>,
    pub records: usize,
}

impl Pieces {
    /// Writes what the records since the last time have changed, and nothing else.
    pub fn write(&mut self, ledger: &Ledger, records: &[Record]) {
        let mut touched = Touched::default();
        records[self.records..].iter().for_each(|record| touched.add(record));
        self.records = records.len();
        self.head = postcard::to_allocvec(ledger).unwrap();
        for id in touched.jobs {
            match ledger.job(id) {
                Some(job) => {
                    let bytes = postcard::to_allocvec(&job.piece()).unwrap();
                    self.jobs.insert(id, (bytes, job.spec().environment.clone()));
                }
                None => drop(self.jobs.remove(&id)),
            }
        }
        if touched.flow_forgotten {
            self.jobs.retain(|id, _| ledger.job(*id).is_some());
        }
        for id in touched.flows {
            match ledger.flow(id) {
                Some(run) => {
                    self.flows.insert(id, postcard::to_allocvec(run).unwrap());
                }
                None => drop(self.flows.remove(&id)),
            }
        }
        for id in touched.schedules {
            match ledger.schedule(id) {
                Some(entry) => {
                    self.schedules.insert(id, postcard::to_allocvec(entry).unwrap());
                }
                None => drop(self.schedules.remove(&id)),
            }
        }
    }

    pub fn read(&self) -> Ledger {
        if self.head.is_empty() {
            return Ledger::default();
        }
        let mut ledger: Ledger = postcard::from_bytes(&self.head).unwrap();
        for (id, (bytes, environment)) in &self.jobs {
            let job: Job = postcard::from_bytes(bytes).unwrap();
            ledger.put_job(*id, job, environment.clone());
        }
        for (id, bytes) in &self.flows {
            ledger.put_flow(*id, postcard::from_bytes(bytes).unwrap());
        }
        for (id, bytes) in &self.schedules {
            ledger.put_schedule(*id, postcard::from_bytes(bytes).unwrap());
        }
        ledger
    }
}
