//! The connections to agents: which is the latest of each host, and where its orders go.
//!
//! A connection is announced when its agent says that it joins, and open once that is durable. Memory: two
//! entries for each host that was ever there.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::Sender;

use forebay_grid::vocabulary::HostName;

use crate::protocol::Order;

/// Where the orders of all hosts go.
#[derive(Default)]
pub(crate) struct Outboxes {
    /// The latest connection of each host.
    announced: HashMap<HostName, u64>,
    open: HashMap<HostName, (u64, Sender<Order>)>,
}

impl Outboxes {
    /// An agent says on this connection that it joins: what its earlier ones say is stale from now on.
    pub fn announce(&mut self, host: &HostName, connection: u64) {
        self.announced.insert(host.clone(), connection);
    }

    /// Whether this is the latest connection of the host.
    pub fn is_latest(&self, host: &HostName, connection: u64) -> bool {
        self.announced.get(host) == Some(&connection)
    }

    /// Orders of a host go here from now on.
    pub fn open(&mut self, host: &HostName, connection: u64, outbox: Sender<Order>) {
        self.open.insert(host.clone(), (connection, outbox));
    }

    /// Whether the orders of a host go to this connection.
    pub fn is_open(&self, host: &HostName, connection: u64) -> bool {
        self.open.get(host).is_some_and(|(open, _)| *open == connection)
    }

    /// Forgets where the orders of a host went; whether it was known. Whoever passes them on ends the
    /// connection then.
    pub fn close(&mut self, host: &HostName) -> bool {
        self.open.remove(host).is_some()
    }

    /// Hosts that can be told something.
    pub fn hosts(&self) -> BTreeSet<HostName> {
        self.open.keys().cloned().collect()
    }

    /// This host if it can be told something, else the first by name that can.
    pub fn this_or_first(&self, host: Option<&HostName>) -> Option<&HostName> {
        let own = host.and_then(|host| self.open.get_key_value(host)).map(|(host, _)| host);
        own.or_else(|| self.open.keys().min())
    }

    /// An order that finds nobody is lost: the agent is told again when it joins.
    pub fn tell(&self, host: &HostName, order: Order) {
        if let Some((_, outbox)) = self.open.get(host) {
            let _ = outbox.send(order);
        }
    }
}
