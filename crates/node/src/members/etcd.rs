//! Requests of the state machines, carried out by etcd's threads, and what etcd reports by itself.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use forebay_base::NodeId;
use forebay_cluster::membership::{Attempt, LeaseId, Member};
use forebay_cluster::node::Event;
use forebay_cluster::ownership::{self, Outcome, Swap};
use forebay_etcd::{
    Change, Compare, Connection, Found, Keys, Op, RangeOptions, Renewal, Runtime, Txn,
};
use parking_lot::Mutex;

use super::book::Book;
use super::record::{Key, Names, decode, encode};
use super::roster::{self, Known};

/// What reaches the thread that drives the state machines.
#[derive(Debug)]
pub enum Input {
    /// An event for them.
    Event(Event),
    /// This node is not a member any more.
    Removed,
    /// The daemon is to stop, after handing over what the node owns.
    Stop,
    /// The node's part in this process is over; others take over what it owned when its lease is over.
    Quit,
}

/// Carries requests out. Clones share everything.
#[derive(Clone)]
pub struct Courier {
    runtime: Runtime,
    connection: Connection,
    names: Names,
    me: NodeId,
    known: Arc<Known>,
    inbox: Sender<Input>,
    error: Arc<Mutex<Option<String>>>,
}

fn lease(of: LeaseId) -> forebay_etcd::LeaseId {
    forebay_etcd::LeaseId(of.0)
}

impl Courier {
    /// Carries requests to the etcd of `book`, each for at most `timeout`.
    pub fn new(
        book: &Book,
        me: NodeId,
        timeout: Duration,
        known: &Arc<Known>,
        inbox: Sender<Input>,
    ) -> Courier {
        Courier {
            runtime: book.client().runtime().clone(),
            connection: book.client().connection().with_timeout(timeout),
            names: book.names().clone(),
            me,
            known: Arc::clone(known),
            inbox,
            error: Arc::default(),
        }
    }

    /// Why etcd did not answer the last request, if so.
    pub fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    fn told(&self, event: Event) {
        // Nobody listens any more: the node has stopped.
        let _ = self.inbox.send(Input::Event(event));
    }

    /// Notes whether etcd answers, and says so once when that changes.
    fn note<T>(&self, outcome: forebay_etcd::Result<T>) -> Option<T> {
        let mut error = self.error.lock();
        match outcome {
            Ok(answer) => {
                if error.take().is_some() {
                    tracing::info!("etcd answers again");
                }
                Some(answer)
            }
            Err(now) => {
                if error.replace(now.to_string()).is_none() {
                    tracing::warn!("{now}; this node continues by itself when etcd answers again");
                }
                None
            }
        }
    }

    /// Asks for a lease.
    pub fn grant(&self, attempt: Attempt, ttl: Duration) {
        let courier = self.clone();
        self.runtime.handle().spawn(async move {
            let seconds = u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX);
            let granted = courier.connection.lease_grant(seconds).await;
            let event = match courier.note(granted) {
                Some(granted) => Event::Granted { attempt, lease: LeaseId(granted.0), ttl },
                None => Event::Failed { attempt },
            };
            courier.told(event);
        });
    }

    /// Renews a lease.
    pub fn renew(&self, attempt: Attempt, of: LeaseId, ttl: Duration) {
        let courier = self.clone();
        self.runtime.handle().spawn(async move {
            let renewed = courier.connection.lease_renew(lease(of)).await;
            courier.told(match courier.note(renewed) {
                Some(Renewal::Renewed) => Event::Renewed { attempt, ttl },
                Some(Renewal::Over) => Event::Gone { lease: of },
                None => Event::Failed { attempt },
            });
        });
    }

    /// Writes the node's key and reads everything in the same transaction.
    pub fn register(&self, attempt: Attempt, member: Member, expect: Option<LeaseId>) {
        let courier = self.clone();
        let alive = self.names.key(Key::Alive(self.me));
        let own = self.names.key(Key::Node(self.me));
        let former = match expect {
            Some(former) => Compare::Lease(alive.clone(), lease(former)),
            None => Compare::Absent(alive.clone()),
        };
        let put = Op::Put {
            key: alive.clone(),
            value: encode(&member),
            lease: Some(lease(member.lease)),
        };
        let txn = Txn {
            when: vec![Compare::Present(own.clone()), former],
            then: vec![put, Op::Get(Keys::prefix(self.names.root()))],
            otherwise: vec![Op::Get(Keys::one(own)), Op::Get(Keys::one(alive))],
        };
        self.runtime.handle().spawn(async move {
            let outcome = courier.connection.txn(txn).await;
            let Some(outcome) = courier.note(outcome) else {
                courier.told(Event::Failed { attempt });
                return;
            };
            let revision = outcome.revision;
            let mut found = outcome.changes.into_iter().filter_map(|change| match change {
                Change::Found(found) => Some(found),
                Change::Put | Change::Deleted(_) => None,
            });
            let first = found.next().unwrap_or_default();
            if outcome.held {
                let view = courier.look(&Found { revision, ..first });
                courier.told(Event::Registered { attempt, view });
            } else if first.pairs.is_empty() {
                let _ = courier.inbox.send(Input::Removed);
            } else {
                let pair = found.next().and_then(|found| found.pairs.into_iter().next());
                let found = pair.and_then(|pair| decode(&pair.key, &pair.value).ok());
                courier.told(Event::Refused { attempt, found });
            }
        });
    }

    /// Takes note of a read of all keys.
    fn look(&self, found: &Found) -> ownership::View {
        let (sight, view) = roster::read(&self.names, found);
        self.known.set(sight, view.revision);
        view
    }

    /// Changes an owner.
    pub fn swap(&self, attempt: Attempt, swap: &Swap) {
        let key = self.names.key(Key::Owner(swap.fileset));
        let mut when = vec![Compare::Value(key.clone(), encode(&swap.expect))];
        when.extend(swap.members.iter().map(|(node, held)| {
            let alive = self.names.key(Key::Alive(*node));
            match held {
                Some(held) => Compare::Lease(alive, lease(*held)),
                None => Compare::Absent(alive),
            }
        }));
        let then = vec![Op::put(key, encode(&swap.value))];
        let courier = self.clone();
        self.runtime.handle().spawn(async move {
            let outcome = courier.connection.txn(Txn { when, then, otherwise: Vec::new() }).await;
            let outcome = match courier.note(outcome) {
                Some(outcome) if outcome.held => Outcome::Done,
                Some(_) => Outcome::Refused,
                None => Outcome::Unknown,
            };
            courier.told(Event::Ownership(ownership::Event::Swapped { attempt, outcome }));
        });
    }

    /// Reads all members and owners.
    pub fn read(&self) {
        let courier = self.clone();
        self.runtime.handle().spawn(async move {
            let keys = Keys::prefix(courier.names.root());
            let found = courier.connection.range(keys, RangeOptions::default()).await;
            if let Some(found) = courier.note(found) {
                let view = courier.look(&found);
                courier.told(Event::Ownership(ownership::Event::View(view)));
            }
        });
    }

    /// Takes note of what a watch reported.
    pub fn watched(&self, event: &forebay_etcd::Event) {
        if matches!(event, forebay_etcd::Event::Gap { .. }) {
            self.read();
            return;
        }
        if let forebay_etcd::Event::Deleted { key, .. } = event
            && self.names.parse(key) == Some(Key::Node(self.me))
        {
            let _ = self.inbox.send(Input::Removed);
        }
        if let Some((revision, change)) = self.known.note(&self.names, event) {
            self.told(Event::Ownership(ownership::Event::Changed { revision, change }));
        }
    }
}
