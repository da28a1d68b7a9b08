//! Who has been counted how far: turns the counters of processes, which grow, into what all jobs did in
//! each interval.
//!
//! Invariant: after a job has ended, what the intervals hold of it, less what is still owed, is exactly
//! its final counters. What was seen of a child that its parent never waited for is not in those; it was
//! counted already, so it is owed, and paid by what comes next. Memory: one entry per running job.

use std::collections::HashMap;

use crate::counters::Counters;
use crate::record::Sample;
use crate::sampler::snapshot::Traffic;

/// Bytes read, bytes written, read calls, write calls.
type Row = [u64; 4];

/// The account of all jobs.
#[derive(Debug, Default)]
pub struct Ledger {
    /// What each running job has been counted with.
    counted: HashMap<u32, Row>,
    /// Counted, and not yet handed out.
    pending: Row,
    /// Counted too much, and not yet paid back.
    owed: Row,
}

impl Ledger {
    /// A job runs.
    pub fn start(&mut self, pid: u32) {
        self.counted.insert(pid, Row::default());
    }

    /// The counters of a running job are these now. They may be less than they were: a child went
    /// between the looks at its parent and at itself. Its parent shows it the next time.
    pub fn observe(&mut self, pid: u32, now: Row) {
        if let Some(counted) = self.counted.get_mut(&pid) {
            for (place, pending) in self.pending.iter_mut().enumerate() {
                *pending += now[place].saturating_sub(counted[place]);
                counted[place] = counted[place].max(now[place]);
            }
        }
    }

    /// A job has ended, with these counters; without any, those of the last look stand.
    pub fn end(&mut self, pid: u32, last: Option<Row>) {
        let counted = self.counted.remove(&pid).unwrap_or_default();
        for (place, last) in last.into_iter().flatten().enumerate() {
            self.pending[place] += last.saturating_sub(counted[place]);
            self.owed[place] += counted[place].saturating_sub(last);
        }
    }

    /// Hands out what was counted since the last time.
    pub fn take(&mut self) -> Traffic {
        for (pending, owed) in self.pending.iter_mut().zip(&mut self.owed) {
            pay(pending, owed);
        }
        let [read_bytes, written_bytes, read_calls, write_calls] =
            std::mem::take(&mut self.pending);
        Traffic { read_bytes, written_bytes, read_calls, write_calls }
    }

    /// Takes back what was handed out for a sample that is made anew.
    pub fn add_back(&mut self, sample: &Sample) {
        self.pending[0] += sample.file_read_bytes;
        self.pending[1] += sample.file_written_bytes;
        self.pending[2] += sample.file_read_calls;
        self.pending[3] += sample.file_write_calls;
    }

    /// At the end: takes what is still owed from the latest samples.
    pub fn settle(&mut self, samples: &mut [Sample]) {
        for sample in samples.iter_mut().rev() {
            pay(&mut sample.file_read_bytes, &mut self.owed[0]);
            pay(&mut sample.file_written_bytes, &mut self.owed[1]);
            pay(&mut sample.file_read_calls, &mut self.owed[2]);
            pay(&mut sample.file_write_calls, &mut self.owed[3]);
        }
    }
}

/// Pays as much of a debt as there is.
fn pay(amount: &mut u64, owed: &mut u64) {
    let paid = (*amount).min(*owed);
    *amount -= paid;
    *owed -= paid;
}

/// The columns that the ledger keeps.
pub fn row(counters: &Counters) -> Row {
    [counters.read_bytes, counters.written_bytes, counters.read_calls, counters.write_calls]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_bytes(ledger: &mut Ledger) -> u64 {
        ledger.take().read_bytes
    }

    #[test]
    fn growth_is_handed_out_once_and_the_last_counters_complete_it() {
        let mut ledger = Ledger::default();
        ledger.start(7);
        ledger.observe(7, [100, 0, 0, 0]);
        assert_eq!(read_bytes(&mut ledger), 100);
        assert_eq!(read_bytes(&mut ledger), 0);
        ledger.observe(7, [150, 0, 0, 0]);
        ledger.end(7, Some([180, 5, 2, 1]));
        let rest = ledger.take();
        assert_eq!((rest.read_bytes, rest.written_bytes), (80, 5));
        assert_eq!((rest.read_calls, rest.write_calls), (2, 1));
    }

    #[test]
    fn a_job_that_no_look_met_counts_as_a_whole() {
        let mut ledger = Ledger::default();
        ledger.start(7);
        ledger.end(7, Some([10, 0, 0, 0]));
        ledger.end(8, Some([5, 0, 0, 0]));
        assert_eq!(read_bytes(&mut ledger), 15);
    }

    #[test]
    fn a_look_at_a_number_that_is_no_job_counts_nothing() {
        let mut ledger = Ledger::default();
        ledger.start(7);
        ledger.end(7, Some([10, 0, 0, 0]));
        ledger.observe(7, [90, 0, 0, 0]);
        assert_eq!(read_bytes(&mut ledger), 10);
    }

    #[test]
    fn counters_that_dip_are_not_counted_twice() {
        let mut ledger = Ledger::default();
        ledger.start(7);
        for (now, passed) in [(100, 100), (60, 0), (130, 30)] {
            ledger.observe(7, [now, 0, 0, 0]);
            assert_eq!(read_bytes(&mut ledger), passed);
        }
    }

    #[test]
    fn what_was_counted_too_much_is_paid_by_what_follows_or_taken_from_what_was() {
        let mut ledger = Ledger::default();
        ledger.start(7);
        ledger.observe(7, [100, 0, 0, 0]);
        let first = read_bytes(&mut ledger);
        ledger.end(7, Some([40, 0, 0, 0]));
        ledger.end(8, Some([20, 0, 0, 0]));
        let second = read_bytes(&mut ledger);
        let mut samples =
            [first, second].map(|bytes| Sample { file_read_bytes: bytes, ..Sample::default() });
        ledger.settle(&mut samples);
        assert_eq!(samples.map(|sample| sample.file_read_bytes), [60, 0]);
    }

    #[test]
    fn a_job_without_last_counters_keeps_what_was_seen() {
        let mut ledger = Ledger::default();
        ledger.start(7);
        ledger.observe(7, [9, 0, 0, 0]);
        ledger.end(7, None);
        assert_eq!(read_bytes(&mut ledger), 9);
    }
}
