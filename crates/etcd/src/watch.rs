//! Watches: what happens to keys, told in order, however often connections and members are lost.

use std::sync::Mutex;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::connection::Connection;
use crate::kv::{Keys, Pair};
use crate::runtime::Runtime;

/// Events that wait to be fetched, at most; then the watch waits.
const EVENTS_MAX: usize = 1024;
/// Pause before a lost watch is set up again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key was set.
    Put(Pair),
    /// A key was deleted, or its lease ended.
    Deleted {
        /// The key.
        key: Vec<u8>,
        /// The revision that deleted it.
        revision: i64,
    },
    /// Events are missing, because their history was compacted before they were told: read the present state of the keys. What
    /// happens after `revision` is told.
    Gap {
        /// The revision up to which events are missing.
        revision: i64,
    },
}

/// A watch; it ends when this is dropped.
pub struct Watch {
    runtime: Runtime,
    events: Mutex<mpsc::Receiver<Event>>,
    task: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn start(
        runtime: &Runtime,
        connection: &Connection,
        keys: Keys,
        from_revision: i64,
    ) -> Watch {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        let follower =
            Follower { connection: connection.clone(), keys, next: from_revision, sender };
        let task = runtime.handle().spawn(follower.run());
        Watch { runtime: runtime.clone(), events: Mutex::new(receiver), task }
    }

    /// The next event; `None` if none came within `patience`.
    ///
    /// # Panics
    /// If one of the runtime's own threads calls it.
    #[must_use]
    pub fn next(&self, patience: Duration) -> Option<Event> {
        let mut events = self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.runtime.block_on(async { timeout(patience, events.recv()).await.ok().flatten() })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// The receiver is gone.
struct Dropped;

struct Follower {
    connection: Connection,
    keys: Keys,
    /// The first revision that was not told yet.
    next: i64,
    sender: mpsc::Sender<Event>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let member = self.connection.preferred().clone();
            match self.follow(member.watches()).await {
                Ok(reason) => {
                    tracing::debug!(endpoint = member.endpoint, reason, "a watch was lost");
                    self.connection.pass_over(&member.endpoint);
                }
                Err(Dropped) => return,
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Tells what one member sends until it ends; returns why it did.
    async fn follow(&mut self, mut watches: etcd_client::WatchClient) -> Result<String, Dropped> {
        let options = WatchOptions::new().with_start_revision(self.next).with_progress_notify();
        let (key, options) = match self.keys.clone() {
            Keys::One(key) => (key, options),
            Keys::Prefix(prefix) => (prefix, options.with_prefix()),
            Keys::Between(from, to) => (from, options.with_range(to)),
        };
        // A connection that is silent is ended by its pings, but one that is not made yet has none.
        let patience = self.connection.ping_interval() * 2;
        let mut stream = match timeout(patience, watches.watch(key, Some(options))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Ok(error.to_string()),
            Err(_) => return Ok(format!("no answer within {patience:?}")),
        };
        loop {
            match stream.message().await {
                Ok(Some(response)) if response.compact_revision() > 0 => {
                    let revision = response.compact_revision() - 1;
                    self.next = response.compact_revision();
                    self.tell(Event::Gap { revision }).await?;
                    return Ok("its history was compacted".to_owned());
                }
                Ok(Some(response)) if response.canceled() => {
                    return Ok(response.cancel_reason().to_owned());
                }
                Ok(Some(response)) => self.tell_all(&response).await?,
                Ok(None) => return Ok("the member ended it".to_owned()),
                Err(error) => return Ok(error.to_string()),
            }
        }
    }

    async fn tell_all(&mut self, response: &WatchResponse) -> Result<(), Dropped> {
        for event in response.events() {
            let Some(pair) = event.kv() else { continue };
            let pair = Pair::from(pair.clone());
            let event = match event.event_type() {
                EventType::Put => Event::Put(pair),
                EventType::Delete => Event::Deleted { key: pair.key, revision: pair.mod_revision },
            };
            self.tell(event).await?;
        }
        let Some(header) = response.header() else { return Ok(()) };
        let told = match response.events().iter().filter_map(|event| event.kv()).next_back() {
            // All changes of a revision come in one response. The revision of the header may be ahead of them.
            Some(last) => last.mod_revision(),
            // From now on.
            None if response.created() && self.next == 0 => header.revision(),
            None if response.created() => return Ok(()),
            // Nothing happened up to there.
            None => header.revision(),
        };
        self.next = self.next.max(told + 1);
        Ok(())
    }

    async fn tell(&self, event: Event) -> Result<(), Dropped> {
        self.sender.send(event).await.map_err(|_| Dropped)
    }
}
