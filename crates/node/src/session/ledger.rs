//! What one side of a session knows of the calls that it received, so that each is carried out once.
//!
//! A call that arrives again is answered with the answer that was kept, until the caller has acknowledged it. Which
//! operations have ever been received is kept for the life of the session, as ranges of numbers: they stay few, because a
//! caller numbers its calls in order and has a bounded number of them unanswered. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::frame::{Body, Kind};

/// Gaps between operations beyond which a caller does not keep to the protocol.
pub const RANGES_MAX: usize = 4096;

/// An answer that is kept.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How the call ended: [`Kind::Answer`] or [`Kind::Refused`].
    pub kind: Kind,
    /// What the service said.
    pub body: Arc<Body>,
}

/// What to do with a call that arrived.
#[derive(Debug)]
pub enum Arrival {
    /// To be carried out.
    New,
    /// It waits or is being carried out: nothing to do.
    Underway,
    /// It was carried out: this is its answer.
    Answered(Answer),
    /// It was carried out and its answer was received: nothing to do.
    Over,
}

/// The caller does not keep to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder;

/// The calls received in a session.
#[derive(Debug, Default)]
pub struct Ledger {
    /// First and last operations of all ranges that were received.
    received: BTreeMap<u64, u64>,
    /// Calls that are not acknowledged; with the answer of those that were carried out.
    open: HashMap<u64, Option<Answer>>,
    kept_bytes: usize,
}

impl Ledger {
    /// Notes that a call has arrived.
    pub fn arrive(&mut self, operation: u64) -> Result<Arrival, OutOfOrder> {
        match self.open.get(&operation) {
            Some(Some(answer)) => return Ok(Arrival::Answered(answer.clone())),
            Some(None) => return Ok(Arrival::Underway),
            None if self.was_received(operation) => return Ok(Arrival::Over),
            None => {}
        }
        self.insert(operation);
        if self.received.len() > RANGES_MAX {
            return Err(OutOfOrder);
        }
        self.open.insert(operation, None);
        Ok(Arrival::New)
    }

    fn was_received(&self, operation: u64) -> bool {
        let below = self.received.range(..=operation).next_back();
        below.is_some_and(|(_, last)| operation <= *last)
    }

    fn insert(&mut self, operation: u64) {
        let mut first = operation;
        let mut last = operation;
        let below = self.received.range(..operation).next_back().map(|(&a, &b)| (a, b));
        if let Some((start, end)) = below
            && end.checked_add(1) == Some(operation)
        {
            first = start;
        }
        if let Some(next) = operation.checked_add(1)
            && let Some(end) = self.received.remove(&next)
        {
            last = end;
        }
        self.received.insert(first, last);
    }

    /// Notes the answer of a call that was carried out.
    pub fn answered(&mut self, operation: u64, answer: Answer) {
        if let Some(kept) = self.open.get_mut(&operation) {
            self.kept_bytes += answer.body.bytes();
            *kept = Some(answer);
        }
    }

    /// Notes that a call was not begun, and may arrive again.
    pub fn withdraw(&mut self, operation: u64) {
        if !matches!(self.open.get(&operation), Some(None)) {
            return;
        }
        self.open.remove(&operation);
        let range = self.received.range(..=operation).next_back().map(|(&a, &b)| (a, b));
        if let Some((first, last)) = range {
            self.received.remove(&first);
            if first < operation {
                self.received.insert(first, operation - 1);
            }
            if operation < last {
                self.received.insert(operation + 1, last);
            }
        }
    }

    /// Drops an answer that the caller has received.
    pub fn acknowledge(&mut self, operation: u64) {
        if matches!(self.open.get(&operation), Some(Some(_)))
            && let Some(Some(answer)) = self.open.remove(&operation)
        {
            self.kept_bytes -= answer.body.bytes();
        }
    }

    /// Drops the answers of all operations below `bound` that the caller does not wait for.
    pub fn acknowledge_others(&mut self, bound: u64, waiting: &HashSet<u64>) {
        let over = |(operation, answer): (&u64, &Option<Answer>)| {
            (answer.is_some() && *operation < bound && !waiting.contains(operation))
                .then_some(*operation)
        };
        let over: Vec<u64> = self.open.iter().filter_map(over).collect();
        for operation in over {
            self.acknowledge(operation);
        }
    }

    /// Calls that are not acknowledged.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Bytes of answers that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::seed;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn answer(bytes: usize) -> Answer {
        let body = Body { head: vec![1; bytes], payload: Vec::new() };
        Answer { kind: Kind::Answer, body: Arc::new(body) }
    }

    #[test]
    fn a_call_is_carried_out_once_however_often_it_arrives() {
        let mut random =
            rand::rngs::StdRng::seed_from_u64(seed::announce("cargo test -p forebay-node"));
        let mut ledger = Ledger::default();
        let (mut begun, mut answered, mut over) = (HashSet::new(), HashSet::new(), HashSet::new());
        for _ in 0..50_000 {
            // Near the end of the numbers as well.
            let operation = match random.random_range(0..10) {
                0 => u64::MAX - random.random_range(0..50),
                _ => random.random_range(0..1000),
            };
            match random.random_range(0..4) {
                0 if begun.contains(&operation) && !answered.contains(&operation) => {
                    ledger.answered(operation, answer(3));
                    answered.insert(operation);
                }
                1 => {
                    ledger.acknowledge(operation);
                    if answered.contains(&operation) {
                        over.insert(operation);
                    }
                }
                2 if random.random_range(0..10) == 0 => {
                    ledger.withdraw(operation);
                    if !answered.contains(&operation) {
                        begun.remove(&operation);
                    }
                }
                _ => match ledger.arrive(operation).unwrap() {
                    Arrival::New => assert!(begun.insert(operation)),
                    Arrival::Underway => {
                        assert!(begun.contains(&operation) && !answered.contains(&operation));
                    }
                    Arrival::Answered(_) => {
                        assert!(answered.contains(&operation) && !over.contains(&operation));
                    }
                    Arrival::Over => assert!(over.contains(&operation)),
                },
            }
            assert_eq!(ledger.open(), begun.len() - over.len());
            assert_eq!(ledger.kept_bytes(), (answered.len() - over.len()) * 3);
        }
    }

    #[test]
    fn memory_is_bounded_when_a_caller_leaves_gaps() {
        let mut ledger = Ledger::default();
        let refused = (0..10_000).find(|&count| ledger.arrive(count * 2).is_err());
        assert_eq!(refused, Some(RANGES_MAX as u64));
        let mut ledger = Ledger::default();
        for operation in 0..10_000 {
            ledger.arrive(operation).unwrap();
            ledger.answered(operation, answer(1));
            ledger.acknowledge(operation);
        }
        assert_eq!((ledger.received.len(), ledger.open(), ledger.kept_bytes()), (1, 0, 0));
    }
}
