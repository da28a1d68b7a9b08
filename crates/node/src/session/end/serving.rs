//! The calls that an end receives: they are carried out by the thread that received them or wait for the crew, and their answers
//! are kept.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use forebay_base::channel::{CallError, Message};

use super::super::crew;
use super::super::frame::{Body, Frame, Header, Kind, Outgoing, operations};
use super::super::ledger::{Answer, Arrival};
use super::super::wire::{Serving, Wire, Work};
use super::class::Class;
use super::state::{Queued, State};
use super::{End, Letters, RECEIVED_MAX, post};
use crate::settings::Settings;

/// Ledger entries beyond which the other end does not keep to its window.
fn open_max(settings: &Settings) -> usize {
    (settings.calls_max * 2 + settings.releases_max) * 2 + RECEIVED_MAX
}

/// One call of a class that waits.
struct Waiting {
    end: Arc<End>,
    class: Class,
}

impl crew::Work for Waiting {
    fn work(self: Arc<Self>) {
        if let Some(call) = self.end.begin(self.class) {
            self.end.carry_out(call);
        }
    }
}

impl End {
    fn carry_out(self: &Arc<Self>, call: Queued) {
        let service = self.common.services.get(usize::from(call.service));
        let outcome = match service.and_then(Option::as_ref) {
            None => Err(CallError::Refused(format!("this node has no service {}", call.service))),
            Some(service) => {
                let message = Message { head: call.body.head, payload: call.body.payload };
                let served = std::panic::catch_unwind(AssertUnwindSafe(|| {
                    service.serve(self.peer, message)
                }));
                served.unwrap_or_else(|_| {
                    Err(CallError::Refused("the call failed in the other node".to_owned()))
                })
            }
        };
        let answer = match outcome {
            Ok(Message { head, payload }) => {
                let body = Body { head, payload };
                if body.fits() {
                    Answer { kind: Kind::Answer, body: Arc::new(body) }
                } else {
                    refusal(format!("the answer of {} bytes is too large", body.bytes()))
                }
            }
            Err(error) => refusal(error.to_string()),
        };
        self.finish(call.operation, call.class, &answer);
    }
}

fn refusal(reason: String) -> Answer {
    let body = Body { head: reason.into_bytes(), payload: Vec::new() };
    Answer { kind: Kind::Refused, body: Arc::new(body) }
}

impl End {
    pub(super) fn request(
        self: &Arc<Self>,
        wire: &Arc<Wire>,
        frame: Frame,
        serving: Serving,
    ) -> Result<Option<Work>, String> {
        let settings = &self.common.settings;
        let operation = frame.header.operation;
        let mut state = self.state.lock();
        if state.over.is_some() {
            return Ok(None);
        }
        let arrival = state.ledger.arrive(operation);
        match arrival.map_err(|_| "the other node does not number its calls in order")? {
            Arrival::Underway | Arrival::Over => return Ok(None),
            Arrival::Answered(answer) => {
                drop(state);
                let header = self.header(answer.kind, operation);
                wire.send([Outgoing { header, body: answer.body }]);
                return Ok(None);
            }
            Arrival::New => {}
        }
        let bytes = frame.body.bytes();
        let Header { kind, service, not_after, .. } = frame.header;
        let class = Class::of_frame(kind, service);
        let open = state.ledger.open();
        let served = state.served.of_mut(class);
        let is_beyond = open > open_max(settings)
            || (!served.queue.is_empty()
                && served.queue_bytes + bytes > settings.calls_bytes_max.saturating_mul(2));
        if is_beyond {
            return Err("the other node sends more than its window allows".to_owned());
        }
        let call = Queued { operation, service, class, body: frame.body, not_after };
        if serving == Serving::Here && self.may_skip_queue(&state, class, not_after) {
            state.served.of_mut(class).running += 1;
            drop(state);
            let end = Arc::clone(self);
            return Ok(Some(Box::new(move || end.carry_out(call))));
        }
        let served = state.served.of_mut(class);
        served.queue_bytes += bytes;
        served.queue.push_back(call);
        self.offer(&mut state, class);
        Ok(None)
    }

    /// Whether a call may be begun at once: none waits, and it is neither late nor one too many.
    fn may_skip_queue(&self, state: &State, class: Class, not_after: u64) -> bool {
        state.served.of(class).queue.is_empty()
            && self.may_begin(state, class)
            && self.common.clock_ms() <= not_after
    }

    /// Whether one more call of a class may be begun. Answers are kept until the other end acknowledges them, which waits for no call;
    /// those of releases are small, and bounded by their window alone.
    fn may_begin(&self, state: &State, class: Class) -> bool {
        let settings = &self.common.settings;
        let served = state.served.of(class);
        served.offered + served.running < class.served_max(settings)
            && (class == Class::Release || state.ledger.kept_bytes() < settings.kept_bytes_max)
    }

    /// Offers the crew of a class as many calls as may be begun.
    fn offer(self: &Arc<Self>, state: &mut State, class: Class) {
        while state.served.of(class).offered < state.served.of(class).queue.len()
            && self.may_begin(state, class)
        {
            state.served.of_mut(class).offered += 1;
            let end = Arc::clone(self);
            self.common.crews.of(class).offer(Arc::new(Waiting { end, class }));
        }
    }

    /// As [`End::offer`], of all classes: there is more room for answers.
    fn offer_all(self: &Arc<Self>, state: &mut State) {
        for class in Class::ALL {
            self.offer(state, class);
        }
    }

    pub(super) fn acknowledged(self: &Arc<Self>, head: &[u8]) -> Result<(), String> {
        let operations = operations(head).map_err(|error| error.to_string())?;
        let mut state = self.state.lock();
        for operation in operations {
            state.ledger.acknowledge(operation);
        }
        self.offer_all(&mut state);
        Ok(())
    }

    pub(super) fn waited_for(self: &Arc<Self>, bound: u64, head: &[u8]) -> Result<(), String> {
        let waiting = operations(head).map_err(|error| error.to_string())?.collect();
        let mut state = self.state.lock();
        state.ledger.acknowledge_others(bound, &waiting);
        self.offer_all(&mut state);
        Ok(())
    }

    /// The next call of a class that may be begun in time.
    fn begin(&self, class: Class) -> Option<Queued> {
        let mut letters = Letters::new();
        let mut state = self.state.lock();
        let served = state.served.of_mut(class);
        served.offered = served.offered.saturating_sub(1);
        let call = loop {
            let served = state.served.of_mut(class);
            let Some(call) = served.queue.pop_front() else { break None };
            served.queue_bytes -= call.body.bytes();
            if self.common.clock_ms() <= call.not_after {
                break Some(call);
            }
            state.ledger.withdraw(call.operation);
            if let Some(wire) = self.lane_for(&mut state, 0, 0) {
                letters.push((wire, vec![self.bare(Kind::Late, call.operation, Vec::new())]));
            }
        };
        if call.is_some() {
            state.served.of_mut(class).running += 1;
        }
        drop(state);
        post(letters);
        call
    }

    fn finish(self: &Arc<Self>, operation: u64, class: Class, answer: &Answer) {
        let wire = {
            let mut state = self.state.lock();
            state.served.of_mut(class).running -= 1;
            state.calls_served += 1;
            if state.over.is_some() {
                drop(state);
                self.room.notify_all();
                return;
            }
            state.ledger.answered(operation, answer.clone());
            self.offer(&mut state, class);
            self.lane_for(&mut state, answer.body.payload.len(), operation)
        };
        if let Some(wire) = wire {
            let header = self.header(answer.kind, operation);
            wire.send([Outgoing { header, body: Arc::clone(&answer.body) }]);
        }
    }
}
