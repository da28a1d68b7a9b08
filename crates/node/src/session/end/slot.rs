//! Where a caller waits for its answer, and who wakes it.

use std::sync::Arc;
use std::thread::ThreadId;

use forebay_base::channel::{CallError, Message};
use parking_lot::{Condvar, Mutex};

use super::super::wire::{Sink, Wire};

#[derive(Default)]
struct State {
    outcome: Option<Result<Message, CallError>>,
    /// The caller reads this connection itself, and has to be woken there.
    reads: Option<(ThreadId, Arc<Wire>)>,
}

/// The place of one answer.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<State>,
    filled: Condvar,
}

impl Slot {
    pub(super) fn fill(&self, outcome: Result<Message, CallError>) {
        let reads = {
            let mut state = self.state.lock();
            state.outcome = Some(outcome);
            state.reads.take()
        };
        self.filled.notify_one();
        // It looks by itself if it has read its own answer.
        if let Some((thread, wire)) = reads
            && thread != std::thread::current().id()
        {
            wire.wake_caller();
        }
    }

    /// Reads the connection until there is an outcome, unless somebody else reads it.
    pub(super) fn read(&self, wire: &Arc<Wire>, sink: &dyn Sink) {
        {
            let mut state = self.state.lock();
            if state.outcome.is_some() {
                return;
            }
            state.reads = Some((std::thread::current().id(), Arc::clone(wire)));
        }
        wire.read_while(sink, || self.state.lock().outcome.is_none());
        self.state.lock().reads = None;
    }

    pub(super) fn wait(&self) -> Result<Message, CallError> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            self.filled.wait(&mut state);
        }
    }
}
