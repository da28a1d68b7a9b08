use std::time::Duration;

use forebay_base::{ClientId, NodeId};

use super::{
    Call, ClientEnd, Connection, Effect, Failure, Frame, Number, Operation, Repeat, Room,
    ServerEnd, client, server,
};
use crate::settings::Settings;
use crate::time::Moment;

type Body = &'static str;

const VOUCH: Duration = Duration::from_secs(5);

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn id(node: u32) -> ClientId {
    ClientId { node: NodeId(node), incarnation: 1 }
}

/// Both ends, joined by connections without delay.
struct Pair {
    now: Moment,
    client: ClientEnd<Body>,
    server: ServerEnd<Body>,
    /// The connection that is up.
    up: Option<Connection>,
    /// Whether frames get through.
    cut: bool,
    delivered: Vec<(Operation, Body)>,
    completed: Vec<(Call, Result<Body, Failure>)>,
    vouched: Moment,
    lost: usize,
    dropped: Vec<ClientId>,
    vouches: bool,
}

impl Pair {
    fn new(settings: Settings) -> Pair {
        Pair {
            now: at(0),
            client: ClientEnd::new(settings, id(1)),
            server: ServerEnd::new(settings, id(2)),
            up: None,
            cut: false,
            delivered: Vec::new(),
            completed: Vec::new(),
            vouched: at(0),
            lost: 0,
            dropped: Vec::new(),
            vouches: true,
        }
    }

    fn client(&mut self, event: client::Event<Body>) {
        for effect in self.client.step(event, self.now) {
            match effect {
                client::Effect::Connect(connection) if !self.cut => {
                    self.up = Some(connection);
                    self.client(client::Event::Connected(connection));
                }
                client::Effect::Connect(_) => {}
                client::Effect::Vouched(until) => self.vouched = self.vouched.max(until),
                client::Effect::Lost => {
                    self.lost += 1;
                    self.client(client::Event::Cleared);
                }
                client::Effect::Shared(Effect::Send(connection, frame)) => {
                    if self.up == Some(connection) && !self.cut {
                        self.server(server::Event::Received(connection, frame));
                    }
                }
                client::Effect::Shared(Effect::Close(connection)) => self.hang_up(connection),
                client::Effect::Shared(Effect::Deliver { operation, .. }) => {
                    self.client(client::Event::Answered(operation, "recalled"));
                }
                client::Effect::Shared(Effect::Complete(call, result)) => {
                    self.completed.push((call, result));
                }
            }
        }
    }

    fn server(&mut self, event: server::Event<Body>) {
        let word = if self.vouches { VOUCH } else { Duration::ZERO };
        for effect in self.server.step(event, self.now, |_| word) {
            match effect {
                server::Effect::Shared(_, Effect::Send(connection, frame)) => {
                    if self.up == Some(connection) && !self.cut {
                        self.client(client::Event::Received(connection, frame));
                    }
                }
                server::Effect::Shared(_, Effect::Deliver { operation, body, .. }) => {
                    self.delivered.push((operation, body));
                }
                server::Effect::Shared(_, Effect::Complete(call, result)) => {
                    self.completed.push((call, result));
                }
                server::Effect::Shared(_, Effect::Close(connection))
                | server::Effect::Close(connection) => self.hang_up(connection),
                server::Effect::Ended(_) => {}
                server::Effect::Dropped(client) => self.dropped.push(client),
            }
        }
    }

    fn hang_up(&mut self, connection: Connection) {
        if self.up == Some(connection) && !self.cut {
            self.up = None;
            self.client(client::Event::Closed(connection));
            self.server(server::Event::Closed(connection));
        }
    }

    fn call(&mut self, call: u64, give_up: Option<Moment>, body: Body) {
        let (call, room, repeat) = (Call(call), Room::Ordinary, Repeat::Once);
        self.client(client::Event::Call { call, room, repeat, give_up, body });
    }

    fn release(&mut self, call: u64, body: Body) {
        let (call, room, repeat) = (Call(call), Room::Release, Repeat::Once);
        self.client(client::Event::Call { call, room, repeat, give_up: None, body });
    }

    fn answer(&mut self, index: usize, body: Body) {
        let (operation, _) = self.delivered[index];
        self.server(server::Event::Answered(id(1), operation, body));
    }

    fn break_connection(&mut self) {
        if let Some(connection) = self.up.take() {
            self.client(client::Event::Closed(connection));
            self.server(server::Event::Closed(connection));
        }
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis / 50 {
            self.now = self.now + Duration::from_millis(50);
            self.client(client::Event::Tick);
            self.server(server::Event::Tick);
        }
    }
}

#[test]
fn a_call_is_delivered_and_answered() {
    let mut pair = Pair::new(Settings::default());
    pair.call(1, None, "create");
    assert_eq!(pair.delivered[0].1, "create");
    pair.answer(0, "made");
    assert_eq!(pair.completed, [(Call(1), Ok("made"))]);
    assert!(pair.vouched > at(4900), "{:?}", pair.vouched);
}

#[test]
fn a_call_is_carried_out_once_although_its_connection_broke() {
    for answered_before in [true, false] {
        let mut pair = Pair::new(Settings::default());
        pair.call(1, None, "create");
        if answered_before {
            pair.cut = true;
            pair.answer(0, "made");
            pair.cut = false;
        }
        pair.break_connection();
        pair.run(1000);
        if !answered_before {
            pair.answer(0, "made");
        }
        assert_eq!(pair.delivered.len(), 1);
        assert_eq!(pair.completed, [(Call(1), Ok("made"))]);
    }
}

#[test]
fn a_call_that_was_given_up_is_not_carried_out_later() {
    let mut pair = Pair::new(Settings::default());
    pair.call(1, None, "first");
    pair.answer(0, "done");
    pair.run(1000);
    let give_up = pair.now + Duration::from_secs(2);
    pair.cut = true;
    pair.call(2, Some(give_up), "second");
    pair.run(2000);
    assert_eq!(pair.completed[1..], [(Call(2), Err(Failure::Unreachable))]);
    // The frame comes after all, with the deadline that it was sent with.
    let request = Frame::Request {
        operation: Operation { slot: 0, sequence: (1 << 32) + 2 },
        not_after: Some(give_up.0.checked_sub(Duration::from_millis(10)).unwrap()),
        repeat: Repeat::Once,
        body: "second",
    };
    let connection = pair.up.unwrap();
    pair.server(server::Event::Received(connection, request));
    assert_eq!(pair.delivered.len(), 1);
}

#[test]
fn deadlines_are_over_at_the_server_when_the_client_gives_up() {
    let settings = Settings::default();
    let mut end = ClientEnd::new(settings, id(1));
    end.step(
        client::Event::Call {
            call: Call(1),
            room: Room::Ordinary,
            repeat: Repeat::Once,
            give_up: Some(at(11_000)),
            body: "x",
        },
        at(0),
    );
    let connection = Connection(1);
    end.step(client::Event::Connected(connection), at(10));
    // The server's clock shows 500 s when the client's shows at most 1 s.
    let clock = Duration::from_secs(500);
    let welcome = Frame::Welcome { from: id(2), sent: Duration::ZERO, clock };
    let effects = end.step(client::Event::Received(connection, welcome), at(1000));
    let sent = effects.iter().find_map(|effect| match effect {
        client::Effect::Shared(Effect::Send(_, Frame::Request { not_after, .. })) => *not_after,
        _ => None,
    });
    assert_eq!(sent, Some(clock + settings.clock_drift.at_least(Duration::from_secs(10))));
}

#[test]
fn calls_beyond_the_slots_wait_and_those_beyond_the_backlog_fail() {
    let settings = Settings { calls_max: 2, backlog_max: 1, ..Settings::default() };
    let mut pair = Pair::new(settings);
    for call in 1..=4 {
        pair.call(call, None, "x");
    }
    assert_eq!(pair.delivered.len(), 2);
    assert_eq!(pair.completed, [(Call(4), Err(Failure::Unreachable))]);
    pair.answer(0, "done");
    assert_eq!(pair.delivered.len(), 3);
}

#[test]
fn calls_that_others_wait_for_get_through_whatever_waits() {
    let settings =
        Settings { calls_max: 1, releases_max: 1, backlog_max: 1, ..Settings::default() };
    let mut pair = Pair::new(settings);
    pair.call(1, None, "waits");
    pair.call(2, None, "has no slot");
    pair.release(3, "report");
    let bodies = |pair: &Pair| pair.delivered.iter().map(|(_, body)| *body).collect::<Vec<_>>();
    assert_eq!(bodies(&pair), ["waits", "report"]);
    pair.release(4, "report again");
    pair.release(5, "one too many");
    assert_eq!(pair.completed, [(Call(5), Err(Failure::Unreachable))]);
    pair.answer(1, "done");
    assert_eq!(bodies(&pair), ["waits", "report", "report again"]);
    pair.answer(0, "done");
    assert_eq!(bodies(&pair).last(), Some(&"has no slot"));
}

#[test]
fn the_server_calls_the_client_and_repeats_after_a_break() {
    let mut pair = Pair::new(Settings::default());
    pair.call(1, None, "open");
    pair.break_connection();
    pair.server(server::Event::Call { call: Call(9), client: id(1), body: "recall" });
    assert_eq!(pair.completed, []);
    pair.run(1000);
    assert_eq!(pair.completed, [(Call(9), Ok("recalled"))]);
}

#[test]
fn a_client_that_stays_away_is_dropped_after_its_grace_and_learns_it() {
    let settings = Settings::default();
    let mut pair = Pair::new(settings);
    pair.call(1, None, "open");
    pair.answer(0, "opened");
    pair.cut = true;
    pair.run(29_000);
    assert_eq!(pair.dropped, []);
    pair.run(6000);
    assert_eq!(pair.dropped, [id(1)]);
    (pair.cut, pair.up) = (false, None);
    pair.call(2, None, "write");
    pair.run(1000);
    assert_eq!(pair.lost, 1);
    assert_eq!(pair.completed[1..], [(Call(2), Err(Failure::Evicted))]);
    pair.call(3, None, "open");
    pair.run(1000);
    assert_eq!(pair.delivered.last().map(|(_, body)| *body), Some("open"));
}

#[test]
fn an_evicted_client_is_dropped_once_nothing_vouched_for_is_in_use() {
    let mut pair = Pair::new(Settings::default());
    pair.call(1, None, "open");
    pair.cut = true;
    pair.server(server::Event::Evict(id(1)));
    pair.run(4900);
    assert_eq!(pair.dropped, []);
    pair.run(200);
    assert_eq!(pair.dropped, [id(1)]);
    assert!(pair.vouched <= pair.now);
}

#[test]
fn a_client_that_begins_anew_has_dropped_everything() {
    let mut pair = Pair::new(Settings::default());
    pair.call(1, None, "open");
    pair.server(server::Event::Evict(id(1)));
    assert_eq!(pair.lost, 1);
    assert_eq!(pair.completed, [(Call(1), Err(Failure::Unreachable))]);
    pair.call(2, None, "open");
    pair.run(500);
    assert_eq!(pair.dropped, [id(1)]);
    assert_eq!(pair.delivered.len(), 2);
}

#[test]
fn hellos_of_the_past_begin_nothing() {
    let settings = Settings::default();
    let mut server: ServerEnd<Body> = ServerEnd::new(settings, id(2));
    let mut hello = |connection, incarnation, number, resume| {
        let from = ClientId { node: NodeId(1), incarnation };
        let frame = Frame::Hello { from, number: Number(number), resume, sent: Duration::ZERO };
        let event = server::Event::Received(Connection(connection), frame);
        let effects = server.step(event, at(0), |_| VOUCH);
        let welcomed = |effect: &server::Effect<Body>| {
            matches!(effect, server::Effect::Shared(_, Effect::Send(_, Frame::Welcome { .. })))
        };
        (effects.iter().any(welcomed), effects.contains(&server::Effect::Dropped(from)))
    };
    assert_eq!(hello(1, 5, 3, true), (false, false), "nothing is known of it");
    assert_eq!(hello(2, 5, 3, false), (true, false));
    assert_eq!(hello(3, 5, 3, true), (true, false), "it comes back");
    assert_eq!(hello(4, 5, 2, false), (false, false), "an earlier session");
    assert_eq!(hello(5, 4, 9, false), (false, false), "an earlier life");
    assert_eq!(hello(6, 5, 4, false), (true, true), "a later session");
    assert_eq!(hello(7, 6, 1, false), (true, false), "a later life");
    assert!(server.clients().eq([ClientId { node: NodeId(1), incarnation: 6 }]));
}

#[test]
fn a_peer_that_names_a_slot_out_of_bounds_is_evicted() {
    let mut pair = Pair::new(Settings::default());
    pair.call(1, None, "open");
    let request = Frame::Request {
        operation: Operation { slot: u32::MAX, sequence: 1 },
        not_after: None,
        repeat: Repeat::Once,
        body: "x",
    };
    let connection = pair.up.unwrap();
    pair.server(server::Event::Received(connection, request));
    assert_eq!((pair.delivered.len(), pair.lost), (1, 1));
}
