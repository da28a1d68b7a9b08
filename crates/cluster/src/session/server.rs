//! The server's end of the sessions of all clients.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::{ClientId, NodeId};

use super::callee::Callee;
use super::caller::Caller;
use super::{Call, Connection, Effect as Shared, Failure, Frame, Number, Operation, Repeat, Room};
use crate::fault::{self, Fault};
use crate::settings::Settings;
use crate::time::Moment;

/// What happens to the server's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// A frame arrived. The daemon has made sure that a hello comes from the node that it names.
    Received(Connection, Frame<T>),
    /// A connection was closed.
    Closed(Connection),
    /// A call to a client is to be made; it ends with an answer or with the session.
    Call {
        /// Named when it is over.
        call: Call,
        /// Who is called.
        client: ClientId,
        /// What is asked.
        body: T,
    },
    /// A call was carried out.
    Answered(ClientId, Operation, T),
    /// A call was not carried out, because by then it was too late.
    Late(ClientId, Operation),
    /// The client is to be dropped: it did not acknowledge a recall in time, or its node's lease has ended.
    Evict(ClientId),
    /// Time has passed.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<T> {
    /// For the session of this client.
    Shared(ClientId, Shared<T>),
    /// A stranger's connection is of no use.
    Close(Connection),
    /// The client's session is over. Its calls that wait are not carried out any more: the client has been told, or will
    /// be, that they failed. What it holds stays until [`Effect::Dropped`].
    Ended(ClientId),
    /// The client is gone with everything it held: opens, locks, grants.
    Dropped(ClientId),
}

#[derive(Clone, Debug)]
enum State {
    /// Frames go both ways.
    Up { connection: Connection, heard: Moment },
    /// The client may come back.
    Away { since: Moment },
    /// The client is being dropped.
    Closing,
    /// The client was dropped. Only the number counts.
    Over,
}

#[derive(Clone, Debug)]
struct Session<T> {
    client: ClientId,
    number: Number,
    state: State,
    caller: Caller<T>,
    callee: Callee<T>,
    /// When nothing that was vouched for is in use any more, by this node's clock.
    vouched_until: Moment,
}

/// The server's end of the sessions of all clients; one for each node at most.
#[derive(Clone, Debug)]
pub struct ServerEnd<T> {
    settings: Settings,
    me: ClientId,
    sessions: BTreeMap<NodeId, Session<T>>,
}

impl<T: Clone> ServerEnd<T> {
    /// An end without sessions.
    #[must_use]
    pub fn new(settings: Settings, me: ClientId) -> ServerEnd<T> {
        ServerEnd { settings, me, sessions: BTreeMap::new() }
    }

    /// Clients whose opens, locks and grants are kept.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        let kept = |it: &&Session<T>| !matches!(it.state, State::Over);
        self.sessions.values().filter(kept).map(|session| session.client)
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        let wakes = self.sessions.values().map(|session| match session.state {
            State::Up { heard, .. } => heard + self.settings.silence_max,
            State::Away { since } => since + self.settings.session_grace,
            State::Closing => session.vouched_until,
            State::Over => Moment(Duration::MAX),
        });
        wakes.min().unwrap_or(Moment(Duration::MAX))
    }

    /// Takes note of an event; stale ones change nothing. `vouch` says for how long this node vouches for what a client
    /// caches: no longer than `vouch` of the settings, no longer than its own lease lasts, and not at all for a client with a
    /// recall that is overdue.
    pub fn step(
        &mut self,
        event: Event<T>,
        now: Moment,
        vouch: impl Fn(ClientId) -> Duration,
    ) -> Vec<Effect<T>> {
        let mut effects = Vec::new();
        match event {
            Event::Received(connection, frame) => {
                self.received(connection, frame, now, vouch, &mut effects);
            }
            Event::Closed(connection) => {
                if let Some(session) = self.by_connection(connection) {
                    session.state = State::Away { since: now };
                }
            }
            Event::Call { call, client, body } => self.call(call, client, body, &mut effects),
            Event::Answered(client, operation, body) => {
                if let Some(session) = self.session(client) {
                    let connection = session.connection();
                    let effect = session.callee.answer(operation, body, connection);
                    effects.extend(effect.map(|effect| Effect::Shared(client, effect)));
                }
            }
            Event::Late(client, operation) => {
                if let Some(session) = self.session(client) {
                    let connection = session.connection();
                    let effect = session.callee.late(operation, connection);
                    effects.extend(effect.map(|effect| Effect::Shared(client, effect)));
                }
            }
            Event::Evict(client) => self.evict(client, &mut effects),
            Event::Tick => {}
        }
        self.advance(now, &mut effects);
        effects
    }

    /// The session of a client that is not being dropped.
    fn session(&mut self, client: ClientId) -> Option<&mut Session<T>> {
        self.sessions.get_mut(&client.node).filter(|session| {
            session.client == client && !matches!(session.state, State::Closing | State::Over)
        })
    }

    fn by_connection(&mut self, connection: Connection) -> Option<&mut Session<T>> {
        self.sessions.values_mut().find(|session| session.connection() == Some(connection))
    }

    fn call(&mut self, call: Call, client: ClientId, body: T, effects: &mut Vec<Effect<T>>) {
        let Some(session) = self.session(client) else {
            let failed = Shared::Complete(call, Err(Failure::Evicted));
            effects.push(Effect::Shared(client, failed));
            return;
        };
        let mut shared = Vec::new();
        let connection = session.connection();
        let how = (Room::Ordinary, Repeat::Once);
        session.caller.call(call, how, None, body, connection, &mut shared);
        effects.extend(shared.into_iter().map(|it| Effect::Shared(client, it)));
    }

    fn received(
        &mut self,
        connection: Connection,
        frame: Frame<T>,
        now: Moment,
        vouch: impl Fn(ClientId) -> Duration,
        effects: &mut Vec<Effect<T>>,
    ) {
        if let Frame::Hello { from, number, resume, sent } = frame {
            self.greeted(connection, (from, number, resume, sent), now, effects);
            return;
        }
        let Some(session) = self.by_connection(connection) else {
            effects.push(Effect::Close(connection));
            return;
        };
        let word = vouch(session.client);
        let lapse = self.settings.clock_drift.at_most(word);
        let session = self.by_connection(connection).expect("it was found above");
        session.state = State::Up { connection, heard: now };
        let client = session.client;
        if matches!(frame, Frame::Ping { .. }) {
            session.vouched_until = session.vouched_until.max(now + lapse);
        }
        match session.spoken_to(connection, frame, now, word) {
            Ok(shared) => effects.extend(shared.into_iter().map(|it| Effect::Shared(client, it))),
            Err(_) => self.evict(client, effects),
        }
    }

    /// A client's hello: a session goes on or begins, or is over.
    fn greeted(
        &mut self,
        connection: Connection,
        (from, number, resume, sent): (ClientId, Number, bool, Duration),
        now: Moment,
        effects: &mut Vec<Effect<T>>,
    ) {
        let known = self.sessions.get(&from.node).map(|it| (it.client, it.number));
        if known.is_some_and(|(client, latest)| (from, number) < (client, latest)) {
            // A hello of an earlier life or session that was long on its way.
            effects.push(Effect::Shared(from, Shared::Send(connection, Frame::Over)));
            effects.push(Effect::Close(connection));
            return;
        }
        if known == Some((from, number)) {
            if self.session(from).is_none() {
                effects.push(Effect::Shared(from, Shared::Send(connection, Frame::Over)));
                effects.push(Effect::Close(connection));
                return;
            }
        } else if resume {
            // It was dropped so long ago that nothing is known of it, or by an earlier life of this server.
            effects.push(Effect::Shared(from, Shared::Send(connection, Frame::Over)));
            effects.push(Effect::Close(connection));
            return;
        } else {
            // Who begins anew has dropped everything.
            self.drop_session(from.node, effects);
            self.sessions.insert(from.node, Session::new(self.settings, from, number, now));
        }
        let me = self.me;
        let Some(session) = self.session(from) else { return };
        if let Some(former) = session.connection() {
            effects.push(Effect::Close(former));
        }
        session.state = State::Up { connection, heard: now };
        let welcome = Frame::Welcome { from: me, sent, clock: now.0 };
        let mut shared = vec![Shared::Send(connection, welcome)];
        session.caller.connected(connection, &mut shared);
        effects.extend(shared.into_iter().map(|it| Effect::Shared(from, it)));
    }

    fn evict(&mut self, client: ClientId, effects: &mut Vec<Effect<T>>) {
        let Some(session) = self.session(client) else { return };
        if let Some(connection) = session.connection() {
            effects.push(Effect::Shared(client, Shared::Send(connection, Frame::Over)));
            effects.push(Effect::Close(connection));
        }
        session.state = State::Closing;
        effects.push(Effect::Ended(client));
    }

    /// Drops a client at once.
    fn drop_session(&mut self, node: NodeId, effects: &mut Vec<Effect<T>>) {
        let Some(session) = self.sessions.get_mut(&node) else { return };
        if matches!(session.state, State::Over) {
            return;
        }
        let client = session.client;
        let mut shared = Vec::new();
        session.caller.over(&mut shared);
        effects.extend(session.connection().map(Effect::Close));
        if !matches!(session.state, State::Closing) {
            effects.push(Effect::Ended(client));
        }
        session.state = State::Over;
        session.callee = Callee::new(&self.settings);
        effects.push(Effect::Dropped(client));
        effects.extend(shared.into_iter().map(|it| Effect::Shared(client, it)));
    }

    /// What time brings about.
    fn advance(&mut self, now: Moment, effects: &mut Vec<Effect<T>>) {
        let nodes: Vec<NodeId> = self.sessions.keys().copied().collect();
        for node in nodes {
            let Some(session) = self.sessions.get_mut(&node) else { continue };
            match session.state {
                State::Up { connection, heard } if now >= heard + self.settings.silence_max => {
                    session.state = State::Away { since: heard };
                    effects.push(Effect::Close(connection));
                }
                State::Away { since } if now >= since + self.settings.session_grace => {
                    session.state = State::Closing;
                    effects.push(Effect::Ended(session.client));
                }
                State::Up { .. } | State::Away { .. } | State::Closing | State::Over => {}
            }
            let lapsed = now >= session.vouched_until || fault::is(Fault::EvictedTooEarly);
            if matches!(session.state, State::Closing) && lapsed {
                self.drop_session(node, effects);
            }
        }
    }
}

impl<T: Clone> Session<T> {
    fn new(settings: Settings, client: ClientId, number: Number, now: Moment) -> Session<T> {
        Session {
            client,
            number,
            state: State::Away { since: now },
            caller: Caller::new(settings, number),
            callee: Callee::new(&settings),
            vouched_until: now,
        }
    }

    fn connection(&self) -> Option<Connection> {
        match self.state {
            State::Up { connection, .. } => Some(connection),
            State::Away { .. } | State::Closing | State::Over => None,
        }
    }

    fn spoken_to(
        &mut self,
        connection: Connection,
        frame: Frame<T>,
        now: Moment,
        vouch: Duration,
    ) -> Result<Vec<Shared<T>>, super::callee::OutOfBounds> {
        let mut shared = Vec::new();
        match frame {
            Frame::Answer { operation, body } => {
                self.caller.answered(operation, Some(body), connection, &mut shared);
            }
            Frame::Late { operation } => {
                self.caller.answered(operation, None, connection, &mut shared);
            }
            Frame::Request { operation, not_after, repeat, body } => {
                let not_after = not_after.map(Moment);
                let arrived =
                    self.callee.arrived(connection, operation, not_after, repeat, body, now)?;
                shared.extend(arrived);
            }
            Frame::Ping { sent } => {
                let pong = Frame::Pong { sent, clock: now.0, vouch };
                shared.push(Shared::Send(connection, pong));
            }
            Frame::Hello { .. } | Frame::Welcome { .. } | Frame::Over | Frame::Pong { .. } => {}
        }
        Ok(shared)
    }
}
