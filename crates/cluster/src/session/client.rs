//! The client's end of a session: dials, calls, answers recalls, and knows how long it may use what it caches.

use std::time::Duration;

use forebay_base::ClientId;

use super::callee::Callee;
use super::caller::Caller;
use super::{Call, Connection, Effect as Shared, Frame, Number, Operation, Repeat, Room};
use crate::settings::Settings;
use crate::time::Moment;

/// What happens to the client's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// A call is to be made.
    Call {
        /// Named when it is over.
        call: Call,
        /// Which slots it takes.
        room: Room,
        /// Whether it may be carried out twice.
        repeat: Repeat,
        /// When the caller gives up; none: never.
        give_up: Option<Moment>,
        /// What is asked.
        body: T,
    },
    /// [`Effect::Connect`] succeeded.
    Connected(Connection),
    /// A connection failed or was closed.
    Closed(Connection),
    /// A frame arrived.
    Received(Connection, Frame<T>),
    /// A call of the server was carried out.
    Answered(Operation, T),
    /// [`Effect::Lost`] was carried out: nothing of the former session is cached or held.
    Cleared,
    /// Time has passed.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<T> {
    /// As for both ends.
    Shared(Shared<T>),
    /// Connect to the server.
    Connect(Connection),
    /// What this client caches of the server may be used until this moment, unless it is recalled.
    Vouched(Moment),
    /// The session is over. Everything cached of the server and held there is gone.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing to do, or not yet.
    Idle { until: Moment },
    /// A connection is being made, or a hello has no answer.
    Greeting { connection: Connection, since: Moment },
    /// Frames go both ways.
    Up { connection: Connection },
    /// The former session is being cleared away.
    Clearing,
}

/// The client's end of a session with one server node.
#[derive(Clone, Debug)]
pub struct ClientEnd<T> {
    settings: Settings,
    me: ClientId,
    number: Number,
    /// The server, once it has answered in this session.
    server: Option<ClientId>,
    state: State,
    caller: Caller<T>,
    callee: Callee<T>,
    next_connection: Connection,
    heard: Moment,
    ping_at: Moment,
}

impl<T: Clone> ClientEnd<T> {
    /// An end without a session; it begins one for its first call.
    #[must_use]
    pub fn new(settings: Settings, me: ClientId) -> ClientEnd<T> {
        ClientEnd {
            settings,
            me,
            number: Number(1),
            server: None,
            state: State::Idle { until: Moment::default() },
            caller: Caller::new(settings, Number(1)),
            callee: Callee::new(&settings),
            next_connection: Connection(1),
            heard: Moment::default(),
            ping_at: Moment::default(),
        }
    }

    /// Which life of the server the session is with, while there is one.
    #[must_use]
    pub fn server(&self) -> Option<ClientId> {
        self.server
    }

    /// Whether frames go both ways.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    fn connection(&self) -> Option<Connection> {
        match self.state {
            State::Up { connection } => Some(connection),
            State::Idle { .. } | State::Greeting { .. } | State::Clearing => None,
        }
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        let state = match self.state {
            State::Idle { until } if self.wants_session() => until,
            State::Idle { .. } | State::Clearing => Moment(Duration::MAX),
            State::Greeting { since, .. } => since + self.settings.silence_max,
            State::Up { .. } => self.ping_at.min(self.heard + self.settings.silence_max),
        };
        state.min(self.caller.next_wake())
    }

    /// A session that exists is kept: the server has opens, locks and grants of it.
    fn wants_session(&self) -> bool {
        self.server.is_some() || self.caller.is_busy()
    }

    /// Takes note of an event; stale ones change nothing.
    pub fn step(&mut self, event: Event<T>, now: Moment) -> Vec<Effect<T>> {
        let mut shared = Vec::new();
        let mut effects = Vec::new();
        match event {
            Event::Call { call, room, repeat, give_up, body } => {
                let connection = self.connection();
                self.caller.call(call, (room, repeat), give_up, body, connection, &mut shared);
            }
            Event::Connected(connection) => self.connected(connection, now, &mut shared),
            Event::Closed(connection) => self.closed(connection, now),
            Event::Received(connection, frame) => {
                effects = self.received(connection, frame, now);
            }
            Event::Answered(operation, body) => {
                shared.extend(self.callee.answer(operation, body, self.connection()));
            }
            Event::Cleared => {
                if self.state == State::Clearing {
                    self.state = State::Idle { until: now };
                }
            }
            Event::Tick => {}
        }
        effects.extend(shared.into_iter().map(Effect::Shared));
        self.advance(now, &mut effects);
        effects
    }

    fn connected(&mut self, connection: Connection, now: Moment, shared: &mut Vec<Shared<T>>) {
        if let State::Greeting { connection: current, .. } = self.state
            && current == connection
        {
            let (from, number, resume) = (self.me, self.number, self.server.is_some());
            let hello = Frame::Hello { from, number, resume, sent: now.0 };
            shared.push(Shared::Send(connection, hello));
        }
    }

    fn closed(&mut self, connection: Connection, now: Moment) {
        match self.state {
            State::Greeting { connection: current, .. } | State::Up { connection: current }
                if current == connection =>
            {
                self.state = State::Idle { until: now + self.settings.reconnect };
            }
            State::Greeting { .. } | State::Up { .. } | State::Idle { .. } | State::Clearing => {}
        }
    }

    fn received(&mut self, connection: Connection, frame: Frame<T>, now: Moment) -> Vec<Effect<T>> {
        match self.state {
            State::Greeting { connection: current, .. } if current == connection => {
                self.greeted(connection, &frame, now)
            }
            State::Up { connection: current } if current == connection => {
                self.heard = now;
                self.spoken_to(connection, frame, now)
            }
            State::Greeting { .. } | State::Up { .. } | State::Idle { .. } | State::Clearing => {
                Vec::new()
            }
        }
    }

    /// The answer to a hello.
    fn greeted(&mut self, connection: Connection, frame: &Frame<T>, now: Moment) -> Vec<Effect<T>> {
        match *frame {
            Frame::Welcome { from, clock, .. } if self.server.is_none_or(|known| known == from) => {
                self.server = Some(from);
                self.state = State::Up { connection };
                (self.heard, self.ping_at) = (now, now);
                self.caller.read_clock(clock, now);
                let mut shared = Vec::new();
                self.caller.connected(connection, &mut shared);
                shared.into_iter().map(Effect::Shared).collect()
            }
            // Over, another life of the server, or nonsense.
            _ => self.lost(connection),
        }
    }

    fn lost(&mut self, connection: Connection) -> Vec<Effect<T>> {
        let mut shared = vec![Shared::Close(connection)];
        self.caller.over(&mut shared);
        self.callee = Callee::new(&self.settings);
        self.number = Number(self.number.0 + 1);
        self.caller.begin(self.number);
        self.server = None;
        self.state = State::Clearing;
        let mut effects: Vec<Effect<T>> = vec![Effect::Lost];
        effects.extend(shared.into_iter().map(Effect::Shared));
        effects
    }

    fn spoken_to(
        &mut self,
        connection: Connection,
        frame: Frame<T>,
        now: Moment,
    ) -> Vec<Effect<T>> {
        let mut shared = Vec::new();
        match frame {
            Frame::Answer { operation, body } => {
                self.caller.answered(operation, Some(body), connection, &mut shared);
            }
            Frame::Late { operation } => {
                self.caller.answered(operation, None, connection, &mut shared);
            }
            Frame::Request { operation, repeat, body, .. } => {
                match self.callee.arrived(connection, operation, None, repeat, body, now) {
                    Ok(effect) => shared.extend(effect),
                    Err(_) => return self.lost(connection),
                }
            }
            Frame::Pong { sent, clock, vouch } => {
                self.caller.read_clock(clock, now);
                let until = Moment(sent) + self.settings.clock_drift.at_least(vouch);
                return vec![Effect::Vouched(until)];
            }
            Frame::Over => return self.lost(connection),
            Frame::Hello { .. } | Frame::Welcome { .. } | Frame::Ping { .. } => {}
        }
        shared.into_iter().map(Effect::Shared).collect()
    }

    /// What time brings about.
    fn advance(&mut self, now: Moment, effects: &mut Vec<Effect<T>>) {
        let mut shared = Vec::new();
        self.caller.tick(now, self.connection(), &mut shared);
        let silence = self.settings.silence_max;
        match self.state {
            State::Greeting { connection, since } if now >= since + silence => {
                shared.push(Shared::Close(connection));
                self.closed(connection, now);
            }
            State::Up { connection } if now >= self.heard + silence => {
                shared.push(Shared::Close(connection));
                self.closed(connection, now);
            }
            State::Up { connection } if now >= self.ping_at => {
                self.ping_at = now + self.settings.keepalive;
                shared.push(Shared::Send(connection, Frame::Ping { sent: now.0 }));
            }
            State::Idle { .. } | State::Greeting { .. } | State::Up { .. } | State::Clearing => {}
        }
        effects.extend(shared.into_iter().map(Effect::Shared));
        if let State::Idle { until } = self.state
            && now >= until
            && self.wants_session()
        {
            let connection = self.next_connection;
            self.next_connection = Connection(connection.0 + 1);
            self.state = State::Greeting { connection, since: now };
            effects.push(Effect::Connect(connection));
        }
    }
}
