//! One end of a session: the calls that it makes and the calls that it receives, over the connections that there are.
//!
//! Both ends are alike. A call is kept until its answer arrives, and sent again after a connection was lost; the [ledger](super::ledger) of
//! the other end makes sure that it is carried out once. Locks: `state` is held for moments, and never while bytes are sent, a
//! service works or anybody waits for the network.
//!
//! **Late calls.** A caller that gives up must know that its call will not be carried out later. Each call says until when it
//! may be begun, by the clock of its receiver: an end that last proved to be alive to the other at its time `proven`, when the
//! other's clock showed at least `clock`, gives up at `proven` + `session_grace` and so allows its calls until
//! `clock` + `session_grace`. A receiver that was frozen, or bytes that lay in the network, find the call too late.

mod class;
mod ear;
mod serving;
mod slot;
mod state;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::channel::{CallError, Message, Service, ServiceId};
use forebay_base::{ClientId, Clock};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub use self::class::{ByClass, Class};
pub use self::ear::Ear;
use self::slot::Slot;
use self::state::{Pending, Proof, State};
use super::crew::Crew;
use super::frame::{Body, Frame, Header, Kind, Outgoing};
use super::wire::Wire;
use crate::settings::Settings;

/// Answers that have arrived and are not acknowledged yet, at most.
const RECEIVED_MAX: usize = 32;

/// What all sessions of a node share.
pub struct Common {
    /// Bounds and times.
    pub settings: Settings,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// When this node's clock of sessions began.
    pub origin: Instant,
    /// What answers calls, by number.
    pub services: [Option<Arc<dyn Service>>; 4],
    /// The threads that carry calls out.
    pub crews: ByClass<Arc<Crew>>,
}

impl Common {
    /// Milliseconds of this node's clock of sessions.
    pub fn clock_ms(&self) -> u64 {
        millis(self.clock.instant().saturating_duration_since(self.origin))
    }
}

/// A time in milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How a session came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// The other end did not answer in time, or is dead.
    Unreachable(String),
    /// The serving end has dropped the client.
    Evicted(String),
    /// The other node speaks another version.
    Refused(String),
}

impl Over {
    fn error(&self) -> CallError {
        match self {
            Over::Unreachable(reason) => CallError::Unreachable(reason.clone()),
            Over::Evicted(reason) => CallError::Evicted(reason.clone()),
            Over::Refused(reason) => CallError::Refused(reason.clone()),
        }
    }

    /// Why, for people.
    pub fn reason(&self) -> &str {
        match self {
            Over::Unreachable(reason) | Over::Evicted(reason) | Over::Refused(reason) => reason,
        }
    }
}

/// What `status` shows of a session.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// Connections that are up.
    pub connections: usize,
    /// Calls of this end without an answer.
    pub waiting_calls: usize,
    /// Calls of the other end that are being carried out, or wait for it.
    pub served_now: usize,
    /// Calls made so far.
    pub calls: u64,
    /// Calls served so far.
    pub served: u64,
    /// Bytes of answers kept.
    pub kept_bytes: usize,
    /// Round trip of the last question for life, in microseconds.
    pub round_trip_us: u64,
    /// How long nothing has been heard of the other end, in milliseconds.
    pub silent_ms: u64,
}

/// One end of a session.
pub struct End {
    common: Arc<Common>,
    /// The number of the session, drawn by the serving end.
    pub session: u64,
    /// Who is at the other end.
    pub peer: ClientId,
    grace: Duration,
    state: Mutex<State>,
    /// Connections changed, or the session came to its end. An answer is not among it: the thread that keeps the session
    /// sleeps while calls come and go.
    pub changed: Condvar,
    /// There may be room in the window, or no call is being carried out any more.
    room: Condvar,
}

/// What is sent after the lock was given back.
type Letters = Vec<(Arc<Wire>, Vec<Outgoing>)>;

fn post(letters: Letters) {
    for (wire, frames) in letters {
        wire.send(frames);
    }
}

impl End {
    /// The end of a session that has just been agreed on: the question was sent at `proven`, and the other end's clock showed
    /// at least `clock` when it was answered, or was asked.
    pub fn new(
        common: &Arc<Common>,
        session: u64,
        peer: ClientId,
        grace: Duration,
        (proven, clock): (Instant, u64),
    ) -> Arc<End> {
        let lanes = usize::from(common.settings.bulk_lanes) + 1;
        let now = common.clock.instant();
        Arc::new(End {
            common: Arc::clone(common),
            session,
            peer,
            grace,
            changed: Condvar::new(),
            room: Condvar::new(),
            state: Mutex::new(State::new(lanes, now, Proof { proven, clock })),
        })
    }

    fn now(&self) -> Instant {
        self.common.clock.instant()
    }

    /// How the session ended, if it has.
    pub fn over(&self) -> Option<Over> {
        self.state.lock().over.clone()
    }

    /// When this end gives up, if it hears nothing more.
    pub fn deadline(&self) -> Instant {
        self.state.lock().proof.proven + self.grace
    }

    /// Notes that the other end answered, or asked, at `proven`, when its clock showed at least `clock`.
    pub fn prove(&self, proven: Instant, clock: u64) {
        let mut state = self.state.lock();
        if proven > state.proof.proven {
            state.proof = Proof { proven, clock };
        }
    }

    /// How long the session outlives its last connection.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// When the other end was last heard.
    pub fn heard(&self) -> Instant {
        self.state.lock().heard
    }

    /// What `status` shows.
    pub fn figures(&self) -> Figures {
        let state = self.state.lock();
        Figures {
            connections: state.lanes.iter().flatten().count(),
            waiting_calls: state.pending.len(),
            served_now: state.running() + state.queued(),
            calls: state.calls_made,
            served: state.calls_served,
            kept_bytes: state.ledger.kept_bytes(),
            round_trip_us: u64::try_from(state.round_trip.as_micros()).unwrap_or(u64::MAX),
            silent_ms: millis(self.now().saturating_duration_since(state.heard)),
        }
    }

    /// Sends a request and waits for its answer. Meanwhile the caller may read the connection for everybody.
    pub fn call(
        self: &Arc<Self>,
        service: u8,
        class: Class,
        message: Message,
    ) -> Result<Message, CallError> {
        let body = Body { head: message.head, payload: message.payload };
        if !body.fits() {
            let bytes = body.bytes();
            return Err(CallError::Refused(format!("a message of {bytes} bytes is too large")));
        }
        let slot = Arc::new(Slot::default());
        let letters = {
            let mut state = self.enter(class, body.bytes())?;
            let (body, slot) = (Arc::new(body), Arc::clone(&slot));
            let operation = state.add(Pending { service, class, body, slot, was_sent: false });
            self.dispatch(&mut state, &[operation])
        };
        // A small answer comes over the connection that small calls go over.
        let wire = letters.first().map(|(wire, _)| Arc::clone(wire)).filter(|wire| wire.lane == 0);
        post(letters);
        if let Some(wire) = wire {
            slot.read(&wire, &Ear(Arc::clone(self)));
        }
        slot.wait()
    }

    /// Waits for room in the window of a class.
    fn enter(&self, class: Class, bytes: usize) -> Result<MutexGuard<'_, State>, CallError> {
        let mut state = self.state.lock();
        loop {
            if let Some(over) = &state.over {
                return Err(over.error());
            }
            if let Some(reason) = &state.closing {
                return Err(CallError::Unsent(reason.clone()));
            }
            if state.has_room(class, bytes, &self.common.settings) {
                return Ok(state);
            }
            self.room.wait(&mut state);
        }
    }

    fn header(&self, kind: Kind, operation: u64) -> Header {
        Header { kind, service: 0, operation, clock: self.common.clock_ms(), not_after: 0 }
    }

    fn bare(&self, kind: Kind, operation: u64, head: Vec<u8>) -> Outgoing {
        let body = Arc::new(Body { head, payload: Vec::new() });
        Outgoing { header: self.header(kind, operation), body }
    }

    /// The connection for something of this size.
    fn lane_for(
        &self,
        state: &mut State,
        payload_bytes: usize,
        operation: u64,
    ) -> Option<Arc<Wire>> {
        let is_bulk = payload_bytes >= self.common.settings.bulk_bytes;
        if is_bulk && !state.wants_bulk && state.lanes.len() > 1 {
            state.wants_bulk = true;
            self.changed.notify_all();
        }
        let up = |lanes: &[Option<Arc<Wire>>]| -> Vec<Arc<Wire>> {
            lanes.iter().flatten().filter(|wire| !wire.is_closed()).cloned().collect()
        };
        let bulk = if is_bulk { up(&state.lanes[1..]) } else { Vec::new() };
        if bulk.is_empty() {
            return up(&state.lanes).into_iter().next();
        }
        let chosen = usize::try_from(operation).unwrap_or(0) % bulk.len();
        bulk.into_iter().nth(chosen)
    }

    /// Prepares calls for sending, with what is to be acknowledged.
    fn dispatch(&self, state: &mut State, calls: &[u64]) -> Letters {
        let not_after = state.proof.clock + millis(self.grace);
        let mut letters: Letters = Vec::new();
        for &operation in calls {
            let Some(pending) = state.pending.get(&operation) else { continue };
            let (service, body) = (pending.service, Arc::clone(&pending.body));
            let kind = pending.class.kind();
            let Some(wire) = self.lane_for(state, body.payload.len(), operation) else { continue };
            if let Some(pending) = state.pending.get_mut(&operation) {
                pending.was_sent = true;
            }
            let header = Header { service, not_after, ..self.header(kind, operation) };
            let mut frames = self.acknowledgement(state).into_iter().collect::<Vec<Outgoing>>();
            frames.push(Outgoing { header, body });
            letters.push((wire, frames));
        }
        letters
    }

    /// Prepares everything that a lost connection may have carried: calls without an answer, and what was acknowledged.
    fn dispatch_again(&self, state: &mut State, calls: &[u64]) -> Letters {
        let Some(wire) = self.lane_for(state, 0, 0) else { return Letters::new() };
        state.received.clear();
        let waiting = state.pending.keys().flat_map(|operation| operation.to_le_bytes()).collect();
        let waiting = self.bare(Kind::Waiting, state.next_operation, waiting);
        let mut letters = vec![(wire, vec![waiting])];
        letters.extend(self.dispatch(state, calls));
        letters
    }

    fn acknowledgement(&self, state: &mut State) -> Option<Outgoing> {
        if state.received.is_empty() {
            return None;
        }
        let head = state.received.drain(..).flat_map(u64::to_le_bytes).collect();
        Some(self.bare(Kind::Received, 0, head))
    }

    /// Takes a connection into use; calls without an answer are sent over it. Fails if the session is over.
    pub fn attach(&self, wire: &Arc<Wire>) -> bool {
        let letters = {
            let mut state = self.state.lock();
            let lane = usize::from(wire.lane);
            if state.over.is_some() || lane >= state.lanes.len() {
                return false;
            }
            let now = self.now();
            if let Some(former) = state.lanes[lane].replace(Arc::clone(wire)) {
                former.close();
            }
            state.heard = now;
            state.lane_heard[lane] = now;
            state.pings[lane] = None;
            let calls: Vec<u64> = state.pending.keys().copied().collect();
            // Calls that another connection carries are not sent twice without need.
            let calls: Vec<u64> = if lane == 0 {
                calls
            } else {
                calls.into_iter().filter(|call| !state.pending[call].was_sent).collect()
            };
            self.dispatch_again(&mut state, &calls)
        };
        self.changed.notify_all();
        post(letters);
        true
    }

    /// The first connection that is missing and wanted.
    pub fn missing_lane(&self) -> Option<u8> {
        let state = self.state.lock();
        if state.over.is_some() || state.closing.is_some() {
            return None;
        }
        let wanted = if state.wants_bulk { state.lanes.len() } else { 1 };
        let missing = state.lanes[..wanted].iter().position(Option::is_none)?;
        u8::try_from(missing).ok()
    }

    /// Wakes everybody who waits for anything but an answer.
    fn notify_all(&self) {
        self.changed.notify_all();
        self.room.notify_all();
    }

    /// Waits until connections change or the session is over, or the time has passed.
    pub fn wait(&self, time: Duration) {
        let mut state = self.state.lock();
        if state.over.is_none() {
            self.changed.wait_for(&mut state, time);
        }
    }

    /// Takes no further calls. Those that were never sent fail at once, the others when it is certain that they will not be
    /// carried out later.
    pub fn close_when_certain(&self, reason: &str) {
        let failed = {
            let mut state = self.state.lock();
            state.closing = Some(reason.to_owned());
            state.take_if(|call| !call.was_sent)
        };
        self.notify_all();
        for call in failed {
            call.slot.fill(Err(CallError::Unsent(reason.to_owned())));
        }
    }

    /// Fails the calls to a service that carries none of them out any more, whatever becomes of the other end.
    pub fn give_up(&self, service: ServiceId, reason: &str) {
        let failed = self.state.lock().take_if(|call| call.service == service as u8);
        self.notify_all();
        for call in failed {
            call.slot.fill(Err(CallError::Unreachable(reason.to_owned())));
        }
    }

    /// Whether no further calls are taken, and none is left.
    pub fn is_finished(&self) -> bool {
        let state = self.state.lock();
        state.over.is_some() || (state.closing.is_some() && state.pending.is_empty())
    }

    /// Ends the session: no call is begun any more, and none has an answer. Whether it was not over before. The other end is
    /// told, if there is a connection.
    pub fn end(&self, over: &Over) -> bool {
        let (pending, wires) = {
            let mut state = self.state.lock();
            if state.over.is_some() {
                return false;
            }
            state.over = Some(over.clone());
            for served in state.served.iter_mut() {
                served.queue.clear();
                served.queue_bytes = 0;
            }
            let wires: Vec<Arc<Wire>> = state.lanes.iter_mut().filter_map(Option::take).collect();
            (state.take_if(|_| true), wires)
        };
        self.notify_all();
        for wire in &wires {
            if wire.lane == 0 {
                wire.send([self.bare(Kind::Over, 0, over.reason().as_bytes().to_vec())]);
            }
            wire.close();
        }
        for call in pending {
            // What was sent may have been carried out.
            let error = match over {
                Over::Evicted(reason) if call.was_sent => CallError::Unreachable(reason.clone()),
                Over::Unreachable(reason) if !call.was_sent => CallError::Unsent(reason.clone()),
                Over::Evicted(_) | Over::Unreachable(_) | Over::Refused(_) => over.error(),
            };
            call.slot.fill(Err(error));
        }
        true
    }

    /// Waits until no call of the other end is being carried out. Whether one was.
    pub fn wait_until_idle(&self) -> bool {
        let mut state = self.state.lock();
        let was_running = state.running() > 0;
        while state.running() > 0 {
            self.room.wait(&mut state);
        }
        was_running
    }

    fn answered(&self, frame: Frame, kind: Kind) {
        let operation = frame.header.operation;
        let (call, letters) = {
            let mut state = self.state.lock();
            let call = state.take(operation);
            // An answer that comes twice is acknowledged twice: the other end keeps it until then.
            state.received.push(operation);
            let mut letters = Letters::new();
            if state.received.len() >= RECEIVED_MAX
                && let Some(wire) = self.lane_for(&mut state, 0, 0)
            {
                letters.push((wire, self.acknowledgement(&mut state).into_iter().collect()));
            }
            (call, letters)
        };
        if let Some(call) = call {
            let Body { head, payload } = frame.body;
            call.slot.fill(match kind {
                Kind::Refused => {
                    Err(CallError::Refused(String::from_utf8_lossy(&head).into_owned()))
                }
                _ => Ok(Message { head, payload }),
            });
            self.room.notify_all();
        }
        post(letters);
    }

    fn late(&self, operation: u64) {
        let letters = self.dispatch(&mut self.state.lock(), &[operation]);
        post(letters);
    }

    fn pong(&self, wire: &Wire, header: Header) {
        let now = self.now();
        let mut state = self.state.lock();
        let lane = usize::from(wire.lane);
        let Some((number, asked)) = state.pings.get(lane).copied().flatten() else { return };
        if number != header.operation {
            return;
        }
        state.pings[lane] = None;
        let round_trip = now.saturating_duration_since(asked);
        state.round_trip = round_trip;
        drop(state);
        self.prove(asked, header.clock.saturating_sub(millis(round_trip) + 1));
    }
}
