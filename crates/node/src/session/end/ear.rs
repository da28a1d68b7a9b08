//! What an end hears of its connections.

use std::sync::Arc;

use super::super::frame::{Frame, Kind, Outgoing};
use super::super::wire::{Serving, Sink, Wire, Work};
use super::{End, Over, post};

/// A connection's view of its end of the session.
pub struct Ear(pub Arc<End>);

impl Sink for Ear {
    fn frame(
        &self,
        wire: &Arc<Wire>,
        frame: Frame,
        serving: Serving,
    ) -> Result<Option<Work>, String> {
        let end = &self.0;
        {
            let mut state = end.state.lock();
            state.heard = end.now();
            let lane = usize::from(wire.lane);
            state.lane_heard[lane] = state.heard;
        }
        match frame.header.kind {
            Kind::Request | Kind::Release => return end.request(wire, frame, serving),
            kind @ (Kind::Answer | Kind::Refused) => end.answered(frame, kind),
            Kind::Late => end.late(frame.header.operation),
            Kind::Received => end.acknowledged(&frame.body.head)?,
            Kind::Waiting => end.waited_for(frame.header.operation, &frame.body.head)?,
            Kind::Ping => wire.send([end.bare(Kind::Pong, frame.header.operation, Vec::new())]),
            Kind::Pong => end.pong(wire, frame.header),
            Kind::Over => {
                let reason = String::from_utf8_lossy(&frame.body.head).into_owned();
                end.end(&Over::Evicted(reason));
            }
        }
        Ok(None)
    }

    fn tick(&self, wire: &Arc<Wire>) {
        let end = &self.0;
        let settings = &end.common.settings;
        let now = end.now();
        let lane = usize::from(wire.lane);
        let mut state = end.state.lock();
        let silent = now.saturating_duration_since(state.lane_heard[lane]);
        if silent > settings.silence_max {
            drop(state);
            tracing::debug!(node = end.peer.node.0, lane, "a connection is silent");
            wire.close();
            return;
        }
        let is_due = now.saturating_duration_since(state.pinged[lane]) >= settings.keepalive;
        if !is_due {
            return;
        }
        state.pinged[lane] = now;
        let mut frames: Vec<Outgoing> = end.acknowledgement(&mut state).into_iter().collect();
        if state.pings[lane].is_none() {
            state.ping_number += 1;
            state.pings[lane] = Some((state.ping_number, now));
            frames.push(end.bare(Kind::Ping, state.ping_number, Vec::new()));
        }
        drop(state);
        wire.send(frames);
    }

    fn closed(&self, wire: &Arc<Wire>, reason: &str) {
        let end = &self.0;
        let node = end.peer.node.0;
        if end.over().is_none() {
            tracing::debug!(node, lane = wire.lane, reason, "a connection of a session is over");
        }
        let letters = {
            let mut state = end.state.lock();
            let lane = usize::from(wire.lane);
            if state.lanes[lane].as_ref().is_some_and(|current| Arc::ptr_eq(current, wire)) {
                state.lanes[lane] = None;
                state.pings[lane] = None;
            }
            // What it carried, calls and answers, may be lost: all goes over the other connections again.
            let calls: Vec<u64> = state.pending.keys().copied().collect();
            end.dispatch_again(&mut state, &calls)
        };
        end.changed.notify_all();
        post(letters);
    }
}
