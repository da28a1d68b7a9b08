//! The half of a session's end that calls.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::{Call, Connection, Effect, Failure, Frame, Number, Operation, Repeat, Room};
use crate::fault::{self, Fault};
use crate::settings::Settings;
use crate::time::Moment;

/// A reading of the other end's clock: it was taken no later than `at` by this end's.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Moment,
    clock: Duration,
}

#[derive(Clone, Debug)]
struct Flight<T> {
    call: Call,
    room: Room,
    repeat: Repeat,
    give_up: Option<Moment>,
    body: T,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    sequence: u64,
    flight: Option<Flight<T>>,
}

/// The half that calls.
#[derive(Clone, Debug)]
pub(super) struct Caller<T> {
    settings: Settings,
    number: Number,
    slots: Vec<Slot<T>>,
    backlog: VecDeque<Flight<T>>,
    reading: Option<Reading>,
}

impl<T: Clone> Caller<T> {
    pub fn new(settings: Settings, number: Number) -> Caller<T> {
        Caller { settings, number, slots: Vec::new(), backlog: VecDeque::new(), reading: None }
    }

    /// Whether any call has no answer.
    pub fn is_busy(&self) -> bool {
        !self.backlog.is_empty() || self.slots.iter().any(|slot| slot.flight.is_some())
    }

    /// The other end's clock was read, no later than now.
    pub fn read_clock(&mut self, clock: Duration, now: Moment) {
        self.reading = Some(Reading { at: now, clock });
    }

    /// Makes a call; one that is beyond `backlog_max` fails at once.
    pub fn call(
        &mut self,
        call: Call,
        (room, repeat): (Room, Repeat),
        give_up: Option<Moment>,
        body: T,
        connection: Option<Connection>,
        effects: &mut Vec<Effect<T>>,
    ) {
        let room = if fault::is(Fault::ReleaseWaits) { Room::Ordinary } else { room };
        let waiting = self.backlog.iter().filter(|flight| flight.room == room);
        if waiting.count() >= self.settings.backlog_max {
            effects.push(Effect::Complete(call, Err(Failure::Unreachable)));
            return;
        }
        self.backlog.push_back(Flight { call, room, repeat, give_up, body });
        self.send_waiting(connection, effects);
    }

    /// Calls that wait take free slots.
    fn send_waiting(&mut self, connection: Option<Connection>, effects: &mut Vec<Effect<T>>) {
        let Some(connection) = connection else { return };
        for room in [Room::Release, Room::Ordinary] {
            while let Some(at) = self.backlog.iter().position(|flight| flight.room == room)
                && let Some(free) = self.free_slot(room)
            {
                self.slots[free].sequence += 1;
                self.slots[free].flight = self.backlog.remove(at);
                effects.extend(self.request(free, connection));
            }
        }
    }

    fn free_slot(&mut self, room: Room) -> Option<usize> {
        let slots = self.slots_of(room);
        if self.slots.len() < slots.end {
            let sequence = self.number.0 << 32;
            self.slots.resize_with(slots.end, || Slot { sequence, flight: None });
        }
        slots.into_iter().find(|slot| self.slots[*slot].flight.is_none())
    }

    /// Those that others wait for come after the ordinary ones.
    fn slots_of(&self, room: Room) -> Range<usize> {
        let calls_max = self.settings.calls_max;
        match room {
            Room::Ordinary => 0..calls_max,
            Room::Release => calls_max..calls_max + self.settings.releases_max,
        }
    }

    fn request(&self, slot: usize, connection: Connection) -> Option<Effect<T>> {
        let Slot { sequence, flight } = &self.slots[slot];
        let flight = flight.as_ref()?;
        let operation = Operation { slot: slot as u32, sequence: *sequence };
        let not_after = flight.give_up.map(|give_up| self.not_after(give_up));
        let (repeat, body) = (flight.repeat, flight.body.clone());
        let request = Frame::Request { operation, not_after, repeat, body };
        Some(Effect::Send(connection, request))
    }

    /// A moment of the other end's clock that is over for sure when it is `give_up` by this end's.
    fn not_after(&self, give_up: Moment) -> Duration {
        let Some(Reading { at, clock }) = self.reading else { return Duration::ZERO };
        clock.saturating_add(self.settings.clock_drift.at_least(give_up.since(at)))
    }

    /// A new connection: everything without an answer is sent again.
    pub fn connected(&mut self, connection: Connection, effects: &mut Vec<Effect<T>>) {
        for slot in 0..self.slots.len() {
            effects.extend(self.request(slot, connection));
        }
        self.send_waiting(Some(connection), effects);
    }

    /// An answer came, or (none) the word that the call came too late.
    pub fn answered(
        &mut self,
        operation: Operation,
        body: Option<T>,
        connection: Connection,
        effects: &mut Vec<Effect<T>>,
    ) {
        let Some(slot) = self.slots.get_mut(operation.slot as usize) else { return };
        if slot.sequence != operation.sequence {
            return;
        }
        let Some(flight) = slot.flight.take() else { return };
        effects.push(Effect::Complete(flight.call, body.ok_or(Failure::Unreachable)));
        self.send_waiting(Some(connection), effects);
    }

    /// Gives up what is due.
    pub fn tick(
        &mut self,
        now: Moment,
        connection: Option<Connection>,
        effects: &mut Vec<Effect<T>>,
    ) {
        let due = |flight: &Flight<T>| flight.give_up.is_some_and(|give_up| now >= give_up);
        for slot in &mut self.slots {
            if let Some(flight) = slot.flight.take_if(|flight| due(flight)) {
                effects.push(Effect::Complete(flight.call, Err(Failure::Unreachable)));
            }
        }
        self.backlog.retain(|flight| {
            if due(flight) {
                effects.push(Effect::Complete(flight.call, Err(Failure::Unreachable)));
            }
            !due(flight)
        });
        self.send_waiting(connection, effects);
    }

    /// When the next call is to be given up.
    pub fn next_wake(&self) -> Moment {
        let flights = self.slots.iter().filter_map(|slot| slot.flight.as_ref());
        let dues = flights.chain(&self.backlog).filter_map(|flight| flight.give_up);
        dues.min().unwrap_or(Moment(Duration::MAX))
    }

    /// The session is over: what was sent may have been carried out, what was not was not.
    pub fn over(&mut self, effects: &mut Vec<Effect<T>>) {
        for slot in std::mem::take(&mut self.slots) {
            if let Some(flight) = slot.flight {
                effects.push(Effect::Complete(flight.call, Err(Failure::Unreachable)));
            }
        }
        for flight in std::mem::take(&mut self.backlog) {
            effects.push(Effect::Complete(flight.call, Err(Failure::Evicted)));
        }
        self.reading = None;
    }

    /// The next session begins.
    pub fn begin(&mut self, number: Number) {
        self.number = number;
    }
}
