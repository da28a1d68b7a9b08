//! Connections between nodes, as TCP makes them: in order, late, and broken at any point. What was sent on a connection that
//! broke may still arrive.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::{ClientId, NodeId};

use super::files::Body;
use super::plan::Way;
use super::world::Input;
use crate::session::{Connection, Frame};

#[derive(Debug)]
struct Link {
    client: ClientId,
    /// As the client numbers it; the server numbers it as this module does.
    number: Connection,
    server: ClientId,
    is_up: bool,
    /// When the latest frame arrives, at the server and at the client.
    latest: [Duration; 2],
    /// What was sent while the way was cut: to the server, to the client.
    stalled: [Vec<Input>; 2],
}

/// All connections, and which ways are cut.
#[derive(Debug, Default)]
pub struct Network {
    links: BTreeMap<u64, Link>,
    numbers: BTreeMap<(ClientId, NodeId, Connection), u64>,
    cuts: BTreeMap<(NodeId, NodeId), usize>,
}

type Sent = Option<(Duration, ClientId, Input)>;

impl Network {
    pub fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|count| *count > 0)
    }

    fn ways(one: NodeId, other: NodeId, way: Way) -> impl Iterator<Item = (NodeId, NodeId)> {
        let there = (way != Way::Back).then_some((one, other));
        let back = (way != Way::There).then_some((other, one));
        there.into_iter().chain(back)
    }

    pub fn cut(&mut self, one: NodeId, other: NodeId, way: Way) {
        for way in Network::ways(one, other, way) {
            *self.cuts.entry(way).or_default() += 1;
        }
    }

    pub fn mend(&mut self, one: NodeId, other: NodeId, way: Way) {
        for way in Network::ways(one, other, way) {
            *self.cuts.entry(way).or_default() -= 1;
        }
    }

    /// What stalled gets through, even if its sender has hung up since.
    pub fn flush(&mut self, now: Duration, latest: Duration) -> Vec<(Duration, ClientId, Input)> {
        let mut flushed = Vec::new();
        for link in self.links.values_mut() {
            let ends = [link.client.node, link.server.node];
            for direction in 0..2 {
                let cut = self.cuts.get(&(ends[direction], ends[1 - direction]));
                if cut.is_some_and(|count| *count > 0) {
                    continue;
                }
                let to = [link.server, link.client][direction];
                for input in std::mem::take(&mut link.stalled[direction]) {
                    let time = link.latest[direction].max(latest).max(now);
                    link.latest[direction] = time;
                    flushed.push((time, to, input));
                }
            }
        }
        flushed
    }

    /// A client reaches a server.
    pub fn connect(&mut self, client: ClientId, number: Connection, server: ClientId) {
        let id = self.links.last_key_value().map_or(1, |(id, _)| id + 1);
        let link = Link {
            client,
            number,
            server,
            is_up: true,
            latest: [Duration::ZERO; 2],
            stalled: [Vec::new(), Vec::new()],
        };
        self.links.insert(id, link);
        self.numbers.insert((client, server.node, number), id);
    }

    fn send(&mut self, id: u64, direction: usize, input: Input, time: Duration) -> Sent {
        let link = self.links.get_mut(&id)?;
        let ends = [link.client, link.server];
        let (from, to) = (ends[direction], ends[1 - direction]);
        if self.cuts.get(&(from.node, to.node)).is_some_and(|count| *count > 0) {
            link.stalled[direction].push(input);
            return None;
        }
        let time = time.max(link.latest[direction]);
        link.latest[direction] = time;
        Some((time, to, input))
    }

    pub fn send_to_server(
        &mut self,
        from: ClientId,
        to: NodeId,
        number: Connection,
        frame: Frame<Body>,
        time: Duration,
    ) -> Sent {
        let id = *self.numbers.get(&(from, to, number))?;
        if !self.links.get(&id)?.is_up {
            return None;
        }
        self.send(id, 0, Input::FromClient(Connection(id), frame), time)
    }

    pub fn send_to_client(
        &mut self,
        number: Connection,
        frame: Frame<Body>,
        time: Duration,
    ) -> Sent {
        let link = self.links.get(&number.0).filter(|link| link.is_up)?;
        let input = Input::FromServer(link.server.node, link.number, frame);
        self.send(number.0, 1, input, time)
    }

    pub fn hang_up_on_server(
        &mut self,
        from: ClientId,
        to: NodeId,
        number: Connection,
        time: Duration,
    ) -> Sent {
        let id = *self.numbers.get(&(from, to, number))?;
        if !std::mem::take(&mut self.links.get_mut(&id)?.is_up) {
            return None;
        }
        self.send(id, 0, Input::ClientClosed(Connection(id)), time)
    }

    pub fn hang_up_on_client(&mut self, number: Connection, time: Duration) -> Sent {
        let link = self.links.get_mut(&number.0)?;
        if !std::mem::take(&mut link.is_up) {
            return None;
        }
        let input = Input::ServerClosed(link.server.node, link.number);
        self.send(number.0, 1, input, time)
    }

    /// Breaks a connection for both ends.
    fn sever(link: &mut Link, id: u64) -> [(ClientId, Input); 2] {
        link.is_up = false;
        let at_server = (link.server, Input::ClientClosed(Connection(id)));
        let at_client = (link.client, Input::ServerClosed(link.server.node, link.number));
        [at_server, at_client]
    }

    /// Connections between two nodes break.
    pub fn reset(&mut self, one: NodeId, other: NodeId) -> Vec<(ClientId, Input)> {
        let between = |link: &Link| {
            let ends = (link.client.node, link.server.node);
            link.is_up && (ends == (one, other) || ends == (other, one))
        };
        let links = self.links.iter_mut().filter(|(_, link)| between(link));
        links.flat_map(|(id, link)| Network::sever(link, *id)).collect()
    }

    /// A daemon died: those at the other ends learn it, unless their way is cut.
    pub fn crash(&mut self, dead: ClientId) -> Vec<(ClientId, Input)> {
        let cuts = &self.cuts;
        let reached =
            |one: NodeId, other: NodeId| cuts.get(&(one, other)).is_none_or(|count| *count == 0);
        let links = self
            .links
            .iter_mut()
            .filter(|(_, link)| link.is_up && (link.client == dead || link.server == dead));
        links
            .flat_map(|(id, link)| Network::sever(link, *id))
            .filter(|(to, _)| *to != dead && reached(dead.node, to.node))
            .collect()
    }
}
