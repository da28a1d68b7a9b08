//! Compaction of a database, beside its writer.
//!
//! The engine could do it as part of an open database: then opening waits for three writes by which a compactor claims manifest
//! and compactions. Here it begins a while after the opening, and nobody waits for it. Of two compactors the one that began last
//! works: one that was displaced begins again after a while, as long as its database is open.

use std::time::Duration;

use slatedb::Db;
use slatedb::compactor::Compactor;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long after the opening it begins, and after an end that was not asked for.
const PAUSE: Duration = Duration::from_secs(2);

/// The compaction of a database; it ends when this is dropped.
pub(super) struct Compaction {
    rests: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Compaction {
    /// Begins after [`PAUSE`], each time with what `make` returns.
    pub fn start(
        runtime: &Handle,
        db: Db,
        name: String,
        make: impl Fn() -> Compactor + Send + 'static,
    ) -> Compaction {
        let (rests, rested) = watch::channel(());
        let task = runtime.spawn(run(db, name, make, rested));
        Compaction { rests, task }
    }

    /// Ends what is under way; it begins again after [`PAUSE`].
    pub fn rest(&self) {
        self.rests.send_replace(());
    }

    /// Ends it, and waits for that.
    pub async fn end(self) {
        let Compaction { rests, task } = self;
        drop(rests);
        // It has nothing to say.
        let _ = task.await;
    }
}

async fn run(db: Db, name: String, make: impl Fn() -> Compactor, mut rested: watch::Receiver<()>) {
    loop {
        // Whoever wants rest gets it from the beginning of the pause again.
        match timeout(PAUSE, rested.changed()).await {
            Ok(Ok(())) => continue,
            Ok(Err(_)) => return,
            Err(_) => {}
        }
        if db.status().close_reason.is_some() {
            return;
        }
        let compactor = make();
        let ended = tokio::select! {
            ended = compactor.run() => Some(ended),
            _ = rested.changed() => None,
        };
        match ended {
            Some(ended) => tracing::debug!(name, ?ended, "the compaction ended by itself"),
            None => {
                if let Err(error) = compactor.stop().await {
                    tracing::debug!(name, %error, "the compaction did not end in order");
                }
            }
        }
    }
}
