//! Who has been counted how far: turns the counters of processes, which grow, into what all jobs did in
//! each interval.
//!
//! Invariant: after a job has ended, what the intervals hold of it, less what is still owed, is exactly
//! its final counters. What was seen of a child that its parent never waited for is not in those; it was
//! counted already, so it is owed, and paid by what comes next. Memory: one entry per running job.

use std::collections::HashMap;

use forebay_process::accounting::Counters;

use crate::record::Sample;
use crate::sampler::snapshot::Traffic;

/// Bytes read, bytes written, read calls, write calls.
type Row = [u64; 4];

/// What a job did between two looks at it, in seconds of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The look before, or the job's start.
    pub from: f64,
    /// The look, or the job's end.
    pub to: f64,
    /// What it did.
    pub row: Row,
}

/// How far a running job has been counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    row: Row,
    at_seconds: f64,
}

/// The account of all jobs.
#[derive(Debug, Default)]
pub struct Ledger {
    counted: HashMap<u32, Counted>,
    /// Counted, and not yet handed out.
    seen: Vec<Seen>,
    /// Handed back by a sample that is made anew.
    back: Row,
    /// Seen only after the interval in which it began.
    late: Vec<Seen>,
    /// Counted too much, and not yet paid back.
    owed: Row,
}

impl Ledger {
    /// A job runs since `at_seconds`.
    pub fn start(&mut self, pid: u32, at_seconds: f64) {
        self.counted.insert(pid, Counted { row: Row::default(), at_seconds });
    }

    /// The counters of a running job are these now. They may be less than they were: a child went
    /// between the looks at its parent and at itself. Its parent shows it the next time.
    pub fn observe(&mut self, pid: u32, at_seconds: f64, now: Row) {
        if let Some(counted) = self.counted.get_mut(&pid) {
            let (row, from) = (less(now, counted.row), counted.at_seconds);
            for (counted, now) in counted.row.iter_mut().zip(now) {
                *counted = now.max(*counted);
            }
            counted.at_seconds = at_seconds;
            self.credit(Seen { from, to: at_seconds, row });
        }
    }

    /// A job has ended at `at_seconds`, with these counters; without any, those of the last look stand.
    pub fn end(&mut self, pid: u32, at_seconds: f64, last: Option<Row>) {
        let counted = self.counted.remove(&pid);
        let (row, from) =
            counted.map_or((Row::default(), at_seconds), |one| (one.row, one.at_seconds));
        if let Some(last) = last {
            self.credit(Seen { from, to: at_seconds, row: less(last, row) });
            for (owed, over) in self.owed.iter_mut().zip(less(row, last)) {
                *owed += over;
            }
        }
    }

    /// Counts what was seen.
    pub fn credit(&mut self, seen: Seen) {
        if seen.row != Row::default() {
            self.seen.push(seen);
        }
    }

    /// Hands out what was counted since the last time, but for what began before `since_seconds`, the
    /// start of the interval: [`Ledger::take_late`] hands out that.
    pub fn take(&mut self, since_seconds: f64) -> Traffic {
        let mut sum = std::mem::take(&mut self.back);
        for mut seen in std::mem::take(&mut self.seen) {
            for (amount, owed) in seen.row.iter_mut().zip(&mut self.owed) {
                pay(amount, owed);
            }
            if seen.from < since_seconds {
                self.late.push(seen);
                continue;
            }
            for (sum, part) in sum.iter_mut().zip(seen.row) {
                *sum += part;
            }
        }
        let [read_bytes, written_bytes, read_calls, write_calls] = sum;
        Traffic { read_bytes, written_bytes, read_calls, write_calls }
    }

    /// Hands out what was seen late, to be [`spread`] over the samples of its time.
    pub fn take_late(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.late)
    }

    /// Takes back what was handed out for a sample that is made anew.
    pub fn add_back(&mut self, sample: &Sample) {
        for (back, amount) in self.back.iter_mut().zip(amounts(&mut sample.clone())) {
            *back += *amount;
        }
    }

    /// At the end: takes what is still owed from the latest samples.
    pub fn settle(&mut self, samples: &mut [Sample]) {
        for sample in samples.iter_mut().rev() {
            for (amount, owed) in amounts(sample).into_iter().zip(&mut self.owed) {
                pay(amount, owed);
            }
        }
    }
}

/// Pays as much of a debt as there is.
fn pay(amount: &mut u64, owed: &mut u64) {
    let paid = (*amount).min(*owed);
    *amount -= paid;
    *owed -= paid;
}

/// `now` less `before`, not below zero.
fn less(now: Row, before: Row) -> Row {
    let mut rest = now;
    for (rest, before) in rest.iter_mut().zip(before) {
        *rest = rest.saturating_sub(before);
    }
    rest
}

/// The columns of a sample that the ledger keeps.
fn amounts(sample: &mut Sample) -> [&mut u64; 4] {
    [
        &mut sample.file_read_bytes,
        &mut sample.file_written_bytes,
        &mut sample.file_read_calls,
        &mut sample.file_write_calls,
    ]
}

/// Spreads what was seen late evenly over the samples of its time, to the byte. What has no length, or lies where there are no samples,
/// goes to the sample in which it ends; after all samples, to the last.
pub fn spread(samples: &mut [Sample], seen: &Seen) {
    let overlap = |sample: &Sample| {
        let start = sample.at_seconds - sample.seconds;
        (sample.at_seconds.min(seen.to) - start.max(seen.from)).max(0.0)
    };
    let first = samples.partition_point(|sample| sample.at_seconds <= seen.from);
    let all: f64 = samples[first..].iter().map(overlap).sum();
    let (mut rest, mut passed) = (seen.row, 0.0);
    for sample in &mut samples[first..] {
        let share = overlap(sample);
        if share <= 0.0 {
            continue;
        }
        // Of what is left, so that the last one takes the rest.
        let part = (share / (all - passed)).min(1.0);
        let last = passed + share >= all * (1.0 - 1e-9);
        passed += share;
        for (amount, rest) in amounts(sample).into_iter().zip(&mut rest) {
            let given = if last { *rest } else { (*rest as f64 * part) as u64 };
            *amount += given;
            *rest -= given;
        }
    }
    let place = samples.partition_point(|sample| sample.at_seconds < seen.to);
    if let Some(sample) = samples.get_mut(place.min(samples.len().saturating_sub(1))) {
        for (amount, rest) in amounts(sample).into_iter().zip(rest) {
            *amount += rest;
        }
    }
}

/// The columns that the ledger keeps.
pub fn row(counters: &Counters) -> Row {
    [counters.read_bytes, counters.written_bytes, counters.read_calls, counters.write_calls]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_bytes(ledger: &mut Ledger) -> u64 {
        ledger.take(0.0).read_bytes
    }

    #[test]
    fn growth_is_handed_out_once_and_the_last_counters_complete_it() {
        let mut ledger = Ledger::default();
        ledger.start(7, 0.0);
        ledger.observe(7, 1.0, [100, 0, 0, 0]);
        assert_eq!(read_bytes(&mut ledger), 100);
        assert_eq!(read_bytes(&mut ledger), 0);
        ledger.observe(7, 1.0, [150, 0, 0, 0]);
        ledger.end(7, 2.0, Some([180, 5, 2, 1]));
        let rest = ledger.take(0.0);
        assert_eq!((rest.read_bytes, rest.written_bytes), (80, 5));
        assert_eq!((rest.read_calls, rest.write_calls), (2, 1));
    }

    #[test]
    fn a_job_that_no_look_met_counts_as_a_whole() {
        let mut ledger = Ledger::default();
        ledger.start(7, 0.0);
        ledger.end(7, 2.0, Some([10, 0, 0, 0]));
        ledger.end(8, 2.0, Some([5, 0, 0, 0]));
        assert_eq!(read_bytes(&mut ledger), 15);
    }

    #[test]
    fn a_look_at_a_number_that_is_no_job_counts_nothing() {
        let mut ledger = Ledger::default();
        ledger.start(7, 0.0);
        ledger.end(7, 2.0, Some([10, 0, 0, 0]));
        ledger.observe(7, 1.0, [90, 0, 0, 0]);
        assert_eq!(read_bytes(&mut ledger), 10);
    }

    #[test]
    fn counters_that_dip_are_not_counted_twice() {
        let mut ledger = Ledger::default();
        ledger.start(7, 0.0);
        for (now, passed) in [(100, 100), (60, 0), (130, 30)] {
            ledger.observe(7, 1.0, [now, 0, 0, 0]);
            assert_eq!(read_bytes(&mut ledger), passed);
        }
    }

    #[test]
    fn what_was_counted_too_much_is_paid_by_what_follows_or_taken_from_what_was() {
        let mut ledger = Ledger::default();
        ledger.start(7, 0.0);
        ledger.observe(7, 1.0, [100, 0, 0, 0]);
        let first = read_bytes(&mut ledger);
        ledger.end(7, 2.0, Some([40, 0, 0, 0]));
        ledger.end(8, 2.0, Some([20, 0, 0, 0]));
        let second = read_bytes(&mut ledger);
        let mut samples =
            [first, second].map(|bytes| Sample { file_read_bytes: bytes, ..Sample::default() });
        ledger.settle(&mut samples);
        assert_eq!(samples.map(|sample| sample.file_read_bytes), [60, 0]);
    }

    #[test]
    fn a_job_without_last_counters_keeps_what_was_seen() {
        let mut ledger = Ledger::default();
        ledger.start(7, 0.0);
        ledger.observe(7, 1.0, [9, 0, 0, 0]);
        ledger.end(7, 2.0, None);
        assert_eq!(read_bytes(&mut ledger), 9);
    }

    fn sample(at_seconds: f64, seconds: f64) -> Sample {
        Sample { at_seconds, seconds, ..Sample::default() }
    }

    #[test]
    fn the_first_seconds_of_a_job_that_is_seen_late_are_neither_lost_nor_credited_at_once() {
        let mut ledger = Ledger::default();
        ledger.start(7, 0.5);
        ledger.observe(7, 3.0, [2501, 0, 0, 0]);
        // The third second is under way.
        assert_eq!(ledger.take(2.0).read_bytes, 0);
        let mut samples = [sample(1.0, 1.0), sample(2.0, 1.0), sample(3.0, 1.0)];
        for seen in ledger.take_late() {
            spread(&mut samples, &seen);
        }
        assert_eq!(samples.map(|sample| sample.file_read_bytes), [500, 1000, 1001]);
        // From then on it is seen in time.
        ledger.observe(7, 4.0, [2601, 0, 0, 0]);
        assert_eq!(ledger.take(3.0).read_bytes, 100);
        assert!(ledger.take_late().is_empty());
    }

    #[test]
    fn what_no_sample_holds_goes_to_the_last() {
        let mut samples = [sample(1.0, 1.0), sample(2.0, 1.0)];
        spread(&mut samples, &Seen { from: 5.0, to: 5.0, row: [9, 8, 7, 6] });
        spread(&mut samples, &Seen { from: 0.0, to: 1.0, row: [2, 0, 0, 0] });
        assert_eq!(samples.each_ref().map(|sample| sample.file_read_bytes), [2, 9]);
        assert_eq!(samples[1].file_write_calls, 6);
        spread(&mut [], &Seen { from: 0.0, to: 1.0, row: [1, 0, 0, 0] });
    }

    #[test]
    fn what_has_no_length_goes_to_the_sample_in_which_it_ends() {
        let mut samples = [sample(1.0, 1.0), sample(2.0, 1.0), sample(3.0, 1.0)];
        for (at, bytes) in [(0.4, 1), (1.0, 10), (1.5, 100), (2.0, 1000)] {
            spread(&mut samples, &Seen { from: at, to: at, row: [bytes, 0, 0, 0] });
        }
        assert_eq!(samples.each_ref().map(|sample| sample.file_read_bytes), [11, 1100, 0]);
    }
}
