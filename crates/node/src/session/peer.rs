//! The way to another node: a session that is made at the first call and kept by a thread of its own, which connects again
//! whenever a connection is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::NodeId;
use forebay_base::channel::{CallError, Message, ServiceId};
use parking_lot::{Condvar, Mutex};

use super::dial::{Connected, DialError, Target, dial};
use super::end::{Class, End, Figures, Over, millis};
use super::greeting::{Hello, RefusalKind, Welcome};
use super::hub::Shared;
use super::wire::Wire;
use crate::authority::Subject;

/// How often the thread of a session looks whether it is over.
const LOOK: Duration = Duration::from_millis(250);

const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// What there is of a session.
enum State {
    /// Nothing: the next call makes one.
    None,
    /// A thread connects. Callers wait.
    Connecting,
    /// A session that may be over.
    Open(Arc<End>),
    /// The first connection could not be made; told to those who waited.
    Failed(Over),
}

/// The way to one node.
pub struct Peer {
    shared: Arc<Shared>,
    node: NodeId,
    state: Mutex<State>,
    changed: Condvar,
    /// Why the latest session that was over came to its end.
    ended: Mutex<String>,
}

/// The session in which one of its users made its latest call; none before the first, and after it was told of the end.
#[derive(Default)]
pub struct Used(AtomicU64);

impl Used {
    fn is_in(&self, session: u64) -> bool {
        self.0.load(Ordering::Acquire) == session
    }

    fn set(&self, session: u64) {
        self.0.store(session, Ordering::Release);
    }
}

/// No session has this number.
const NO_SESSION: u64 = 0;

impl Peer {
    /// The way to `node`.
    pub fn new(shared: &Arc<Shared>, node: NodeId) -> Arc<Peer> {
        let (state, changed) = (Mutex::new(State::None), Condvar::new());
        let ended = Mutex::new("the session is over".to_owned());
        Arc::new(Peer { shared: Arc::clone(shared), node, state, changed, ended })
    }

    /// For a new user: what was made in a session that is there, or is just over, may be its own.
    pub fn used(&self) -> Used {
        match &*self.state.lock() {
            State::Open(end) => Used(AtomicU64::new(end.session)),
            State::None | State::Connecting | State::Failed(_) => Used::default(),
        }
    }

    /// Calls a service of the node, for a user whose latest call was made in `used`. Its first call after that session
    /// fails with [`CallError::Evicted`], because whatever the node held for it is gone.
    pub fn call(
        self: &Arc<Self>,
        used: &Used,
        service: ServiceId,
        class: Class,
        message: Message,
    ) -> Result<Message, CallError> {
        self.tell_of_end(used)?;
        let end = self.session()?;
        used.set(end.session);
        end.call(service as u8, class, message)
    }

    fn tell_of_end(&self, used: &Used) -> Result<(), CallError> {
        if used.is_in(NO_SESSION) {
            return Ok(());
        }
        if let State::Open(end) = &*self.state.lock()
            && used.is_in(end.session)
        {
            let Some(over) = end.over() else { return Ok(()) };
            *self.ended.lock() = over.reason().to_owned();
        }
        used.set(NO_SESSION);
        Err(CallError::Evicted(self.ended.lock().clone()))
    }

    /// What there is to show of the session, if there is one.
    pub fn figures(&self) -> Option<Figures> {
        match &*self.state.lock() {
            State::Open(end) if end.over().is_none() => Some(end.figures()),
            State::Open(_) | State::None | State::Connecting | State::Failed(_) => None,
        }
    }

    /// Ends the session.
    pub fn stop(&self) {
        if let State::Open(end) = &*self.state.lock() {
            end.end(&Over::Evicted("the client is stopping".to_owned()));
        }
    }

    /// The session; makes one if there is none.
    fn session(self: &Arc<Self>) -> Result<Arc<End>, CallError> {
        let mut state = self.state.lock();
        let mut has_waited = false;
        loop {
            match &*state {
                State::Open(end) => {
                    let Some(over) = end.over() else { return Ok(Arc::clone(end)) };
                    *self.ended.lock() = over.reason().to_owned();
                    *state = State::None;
                    continue;
                }
                State::Failed(over) if has_waited => return Err(over.clone().into()),
                State::None | State::Failed(_) => {
                    if self.shared.is_stopping() {
                        return Err(CallError::Unsent("this node is stopping".to_owned()));
                    }
                    if let Some(reason) = self.shared.roster.dead(self.node) {
                        return Err(CallError::Unsent(reason));
                    }
                    self.start()?;
                    *state = State::Connecting;
                }
                State::Connecting => {}
            }
            has_waited = true;
            self.changed.wait(&mut state);
        }
    }

    fn start(self: &Arc<Self>) -> Result<(), CallError> {
        let peer = Arc::clone(self);
        let name = format!("session-{}", self.node);
        let started = std::thread::Builder::new().name(name).spawn(move || peer.run());
        started
            .map(drop)
            .map_err(|error| CallError::Unsent(format!("cannot start a thread: {error}")))
    }

    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    /// Makes a session and keeps it until it is over.
    fn run(self: Arc<Self>) {
        // The first caller started it; the threads of its connections inherit from it.
        super::crew::unbind();
        match self.begin() {
            Ok(end) => {
                self.set(State::Open(Arc::clone(&end)));
                self.keep(&end);
            }
            Err(over) => self.set(State::Failed(over)),
        }
    }

    /// Connects for the first time.
    fn begin(&self) -> Result<Arc<End>, Over> {
        let common = &self.shared.common;
        let until = common.clock.instant() + common.settings.session_grace;
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match self.dial(0, 0) {
                Ok(connected) => match self.take(connected) {
                    Ok(end) => return Ok(end),
                    Err(reason) => reason,
                },
                Err(DialError::Refused(refusal)) if !refusal.may_pass() => {
                    return Err(self.refused(&refusal));
                }
                Err(error) => error.to_string(),
            };
            let left = until.saturating_duration_since(common.clock.instant());
            if left.is_zero() || self.shared.is_stopping() {
                return Err(Over::Unreachable(reason));
            }
            if let Some(reason) = self.shared.roster.dead(self.node) {
                return Err(Over::Unreachable(reason));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(common.settings.reconnect_pause_max);
        }
    }

    fn refused(&self, refusal: &super::Refusal) -> Over {
        let reason = format!("node {} refuses this node: {refusal}", self.node);
        match refusal.kind {
            RefusalKind::Version => Over::Refused(reason),
            RefusalKind::NotMember | RefusalKind::Superseded | RefusalKind::NoSession => {
                Over::Evicted(reason)
            }
            RefusalKind::Cluster
            | RefusalKind::Certificate
            | RefusalKind::Busy
            | RefusalKind::Question
            | RefusalKind::Unknown => Over::Unreachable(reason),
        }
    }

    fn dial(&self, session: u64, lane: u8) -> Result<Connected, DialError> {
        let shared = &self.shared;
        let broken = |reason: String| DialError::Broken(reason);
        let address = shared
            .roster
            .address(self.node)
            .ok_or_else(|| broken(format!("node {} is not a member of the cluster", self.node)))?;
        let credentials = shared.credentials();
        let subject = Subject { cluster: shared.cluster, node: self.node };
        let target = Target {
            address: &address,
            name: subject.server_name().map_err(|error| broken(error.to_string()))?,
            config: credentials.client,
            timeout: shared.common.settings.connect_timeout,
        };
        let hello = Hello::Session {
            cluster: shared.cluster,
            client: shared.me,
            server: self.node,
            session,
            lane,
            grace_ms: millis(shared.common.settings.session_grace),
            clock_ms: shared.common.clock_ms(),
        };
        dial(&target, &*shared.common.clock, &hello)
    }

    /// Makes the end of a new session.
    fn take(&self, connected: Connected) -> Result<Arc<End>, String> {
        let Welcome::Session { session, server, grace_ms, clock_ms } = connected.welcome else {
            return Err("the other node gave an answer that cannot be understood".to_owned());
        };
        if server.node != self.node {
            return Err(format!("node {} answers instead of node {}", server.node, self.node));
        }
        let clock = clock_before(clock_ms, connected.round_trip);
        let grace = Duration::from_millis(grace_ms).min(self.shared.common.settings.session_grace);
        let proof = (connected.asked, clock);
        let end = End::new(&self.shared.common, session, server, grace, proof);
        self.attach(&end, 0, connected.socket, connected.tls)?;
        Ok(end)
    }

    fn attach(
        &self,
        end: &Arc<End>,
        lane: u8,
        socket: std::net::TcpStream,
        tls: rustls::ClientConnection,
    ) -> Result<(), String> {
        let wire = Wire::new(lane, socket, tls.into()).map_err(|error| error.to_string())?;
        self.shared.run_wire(end, wire)
    }

    /// Connects again whenever it is needed, until the session is over.
    fn keep(&self, end: &Arc<End>) {
        let common = &self.shared.common;
        let mut pause = FIRST_PAUSE;
        let mut next_try = common.clock.instant();
        let mut reason = "no answer".to_owned();
        while end.over().is_none() {
            if self.shared.is_stopping() {
                end.end(&Over::Evicted("the client is stopping".to_owned()));
                return;
            }
            if let Some(dead) = self.shared.roster.dead(self.node) {
                end.close_when_certain(&dead);
                if self.shared.roster.is_succeeded(end.peer) {
                    end.give_up(ServiceId::Files, &dead);
                }
                reason = dead;
            } else if self.shared.roster.ended(end.peer).is_some() {
                // Another life of the node runs, and there is one at a time: nothing of the former is carried out any more.
                end.end(&Over::Evicted(format!("node {} has started again", self.node)));
                return;
            }
            if common.clock.instant() > end.deadline() || end.is_finished() {
                end.end(&Over::Unreachable(format!("node {}: {reason}", self.node)));
                return;
            }
            let Some(lane) = end.missing_lane() else {
                pause = FIRST_PAUSE;
                end.wait(LOOK);
                continue;
            };
            let left = next_try.saturating_duration_since(common.clock.instant());
            if !left.is_zero() {
                std::thread::sleep(left.min(LOOK));
                continue;
            }
            if let Err(error) = self.connect_again(end, lane) {
                reason = error;
                next_try = self.after(pause);
                pause = (pause * 2).min(common.settings.reconnect_pause_max);
            }
        }
    }

    fn after(&self, pause: Duration) -> Instant {
        self.shared.common.clock.instant() + pause
    }

    fn connect_again(&self, end: &Arc<End>, lane: u8) -> Result<(), String> {
        match self.dial(end.session, lane) {
            Ok(connected) => {
                let Welcome::Session { session, server, clock_ms, .. } = connected.welcome else {
                    return Err(
                        "the other node gave an answer that cannot be understood".to_owned()
                    );
                };
                if session != end.session || server != end.peer {
                    end.end(&Over::Evicted(format!("node {} has started again", self.node)));
                    return Ok(());
                }
                end.prove(connected.asked, clock_before(clock_ms, connected.round_trip));
                self.attach(end, lane, connected.socket, connected.tls)
            }
            Err(DialError::Refused(refusal)) if !refusal.may_pass() => {
                end.end(&self.refused(&refusal));
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What a clock showed at least when it was asked, `round_trip` before its answer arrived.
fn clock_before(clock_ms: u64, round_trip: Duration) -> u64 {
    clock_ms.saturating_sub(millis(round_trip) + 1)
}

impl From<Over> for CallError {
    fn from(over: Over) -> CallError {
        match over {
            // There never was a connection.
            Over::Unreachable(reason) => CallError::Unsent(reason),
            Over::Evicted(reason) => CallError::Evicted(reason),
            Over::Refused(reason) => CallError::Refused(reason),
        }
    }
}
