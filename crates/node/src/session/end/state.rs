//! What an end knows: calls of its own without an answer, calls that arrived, and the connections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::frame::Body;
use super::super::ledger::Ledger;
use super::super::wire::Wire;
use super::Over;
use super::class::{ByClass, Class};
use super::slot::Slot;
use crate::settings::Settings;

/// A call without an answer.
pub(super) struct Pending {
    pub service: u8,
    pub class: Class,
    pub body: Arc<Body>,
    pub slot: Arc<Slot>,
    pub was_sent: bool,
}

/// Calls of one class without an answer.
#[derive(Debug, Default)]
struct Window {
    calls: usize,
    bytes: usize,
}

/// A call that waits to be begun.
pub(super) struct Queued {
    pub operation: u64,
    pub service: u8,
    pub class: Class,
    pub body: Body,
    pub not_after: u64,
}

/// Calls of one class that arrived.
#[derive(Default)]
pub(super) struct Served {
    pub queue: VecDeque<Queued>,
    pub queue_bytes: usize,
    /// Pieces of work that the crew was offered and has not begun.
    pub offered: usize,
    pub running: usize,
}

/// When the other end was last known to be alive.
pub(super) struct Proof {
    /// This end's time of the question.
    pub proven: Instant,
    /// The other end's clock when it answered, less the time that the answer may have taken.
    pub clock: u64,
}

pub(super) struct State {
    pub over: Option<Over>,
    /// The reason for which no further call is taken, while those that were sent may still be answered.
    pub closing: Option<String>,
    pub lanes: Vec<Option<Arc<Wire>>>,
    pub heard: Instant,
    pub proof: Proof,
    pub pings: Vec<Option<(u64, Instant)>>,
    pub pinged: Vec<Instant>,
    pub lane_heard: Vec<Instant>,
    pub ping_number: u64,
    pub next_operation: u64,
    pub pending: BTreeMap<u64, Pending>,
    windows: ByClass<Window>,
    pub received: Vec<u64>,
    pub ledger: Ledger,
    pub served: ByClass<Served>,
    pub wants_bulk: bool,
    pub round_trip: Duration,
    pub calls_made: u64,
    pub calls_served: u64,
}

impl State {
    /// Of a session that begins now, with at most so many connections.
    pub fn new(lanes: usize, now: Instant, proof: Proof) -> State {
        State {
            over: None,
            closing: None,
            lanes: vec![None; lanes],
            heard: now,
            proof,
            pings: vec![None; lanes],
            pinged: vec![now; lanes],
            lane_heard: vec![now; lanes],
            ping_number: 0,
            next_operation: 1,
            pending: BTreeMap::new(),
            windows: ByClass::default(),
            received: Vec::new(),
            ledger: Ledger::default(),
            served: ByClass::default(),
            wants_bulk: false,
            round_trip: Duration::ZERO,
            calls_made: 0,
            calls_served: 0,
        }
    }

    /// Whether the window of a class has room for one more call.
    pub fn has_room(&self, class: Class, bytes: usize, settings: &Settings) -> bool {
        let window = self.windows.of(class);
        let (calls_max, bytes_max) = class.window(settings);
        window.calls == 0 || (window.calls < calls_max && window.bytes + bytes <= bytes_max)
    }

    /// A call is made. Returns its number.
    pub fn add(&mut self, call: Pending) -> u64 {
        let operation = self.next_operation;
        self.next_operation += 1;
        self.calls_made += 1;
        let window = self.windows.of_mut(call.class);
        window.calls += 1;
        window.bytes += call.body.bytes();
        self.pending.insert(operation, call);
        operation
    }

    /// A call has an answer, or will have none.
    pub fn take(&mut self, operation: u64) -> Option<Pending> {
        let call = self.pending.remove(&operation)?;
        let window = self.windows.of_mut(call.class);
        window.calls -= 1;
        window.bytes -= call.body.bytes();
        Some(call)
    }

    /// Takes the calls of which `is_over` says that they will have no answer.
    pub fn take_if(&mut self, is_over: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let over = self.pending.iter().filter(|(_, call)| is_over(call));
        let over: Vec<u64> = over.map(|(operation, _)| *operation).collect();
        over.into_iter().filter_map(|operation| self.take(operation)).collect()
    }

    /// Calls of the other end that are being carried out.
    pub fn running(&self) -> usize {
        self.served.iter().map(|served| served.running).sum()
    }

    /// Calls of the other end that wait to be begun.
    pub fn queued(&self) -> usize {
        self.served.iter().map(|served| served.queue.len()).sum()
    }
}
