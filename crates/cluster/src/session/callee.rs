//! The half of a session's end that is called.

use super::{Connection, Effect, Frame, Operation, Repeat};
use crate::fault::{self, Fault};
use crate::settings::Settings;
use crate::time::Moment;

#[derive(Clone, Debug)]
enum State<T> {
    /// Nothing has arrived in this slot.
    Unused,
    /// It is being carried out.
    Underway,
    /// It was carried out; the answer is kept.
    Answered(T),
    /// It was carried out, and may be again.
    Forgotten,
    /// It came too late and was not carried out.
    Late,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    sequence: u64,
    repeat: Repeat,
    state: State<T>,
}

/// The other end does not keep to the protocol: its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfBounds;

/// The half that is called.
#[derive(Clone, Debug)]
pub(super) struct Callee<T> {
    slots_max: usize,
    slots: Vec<Slot<T>>,
}

impl<T: Clone> Callee<T> {
    pub fn new(settings: &Settings) -> Callee<T> {
        let slots_max = settings.calls_max + settings.releases_max;
        Callee { slots_max, slots: Vec::new() }
    }

    fn slot(&mut self, number: u32) -> Result<&mut Slot<T>, OutOfBounds> {
        let number = number as usize;
        if number >= self.slots_max {
            return Err(OutOfBounds);
        }
        let unused = Slot { sequence: 0, repeat: Repeat::Once, state: State::Unused };
        let count = self.slots.len().max(number + 1);
        self.slots.resize(count, unused);
        Ok(&mut self.slots[number])
    }

    /// A call arrived.
    pub fn arrived(
        &mut self,
        connection: Connection,
        operation: Operation,
        not_after: Option<Moment>,
        repeat: Repeat,
        body: T,
        now: Moment,
    ) -> Result<Option<Effect<T>>, OutOfBounds> {
        let slot = self.slot(operation.slot)?;
        if operation.sequence < slot.sequence {
            return Ok(None);
        }
        let again = operation.sequence == slot.sequence;
        if again && !fault::is(Fault::NoKeptResults) {
            match &slot.state {
                State::Unused | State::Underway => return Ok(None),
                State::Answered(body) => {
                    let answer = Frame::Answer { operation, body: body.clone() };
                    return Ok(Some(Effect::Send(connection, answer)));
                }
                State::Late => {
                    return Ok(Some(Effect::Send(connection, Frame::Late { operation })));
                }
                State::Forgotten => {}
            }
        }
        *slot = Slot { sequence: operation.sequence, repeat, state: State::Underway };
        let late = not_after.is_some_and(|not_after| now >= not_after);
        if late && !fault::is(Fault::ExpiryIgnored) {
            slot.state = State::Late;
            return Ok(Some(Effect::Send(connection, Frame::Late { operation })));
        }
        Ok(Some(Effect::Deliver { operation, not_after, body }))
    }

    /// A call was carried out. Its caller may have given it up and gone on.
    pub fn answer(
        &mut self,
        operation: Operation,
        body: T,
        connection: Option<Connection>,
    ) -> Option<Effect<T>> {
        let slot = self.slots.get_mut(operation.slot as usize)?;
        if slot.sequence != operation.sequence || !matches!(slot.state, State::Underway) {
            return None;
        }
        slot.state = match slot.repeat {
            Repeat::Once if !fault::is(Fault::ResultsDroppedEarly) => State::Answered(body.clone()),
            Repeat::Once | Repeat::Harmless => State::Forgotten,
        };
        Some(Effect::Send(connection?, Frame::Answer { operation, body }))
    }

    /// A call was not carried out, because by then it was too late.
    pub fn late(
        &mut self,
        operation: Operation,
        connection: Option<Connection>,
    ) -> Option<Effect<T>> {
        let slot = self.slots.get_mut(operation.slot as usize)?;
        if slot.sequence != operation.sequence || !matches!(slot.state, State::Underway) {
            return None;
        }
        slot.state = State::Late;
        Some(Effect::Send(connection?, Frame::Late { operation }))
    }
}
