//! The threads that talk to etcd and to object stores.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

/// Threads that wait for files on behalf of asynchronous code, at most.
const BLOCKING_THREADS_MAX: usize = 16;
/// How long a blocking thread without work is kept.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_secs(5);

/// A set of threads that carry out asynchronous work, named `io-0`, `io-1`, ...; clones share it. The threads end when the
/// last clone is dropped, their work unfinished.
#[derive(Clone)]
pub struct Runtime(Arc<Threads>);

struct Threads {
    /// `Some` until it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Runtime {
    /// Starts `threads` threads (at least 1), and up to 16 more while files are waited for.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptor.
    pub fn start(threads: usize) -> io::Result<Runtime> {
        let number = AtomicUsize::new(0);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_keep_alive(BLOCKING_THREAD_IDLE)
            .thread_name_fn(move || format!("io-{}", number.fetch_add(1, Ordering::Relaxed)))
            .enable_all()
            .build()?;
        Ok(Runtime(Arc::new(Threads { runtime: Some(runtime) })))
    }

    /// For asynchronous code: spawns tasks on these threads.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        let Some(runtime) = &self.0.runtime else { unreachable!("it is there until the drop") };
        runtime.handle()
    }

    /// Carries out `work`, and blocks the calling thread meanwhile.
    ///
    /// # Panics
    /// If one of the runtime's own threads calls it.
    pub fn block_on<F: Future>(&self, work: F) -> F::Output {
        self.handle().block_on(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping it would wait for its threads, one of which may be the one that drops.
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Runtime")
    }
}
