//! A thread that starts processes and outlives the threads of tests: a child is killed when the thread that started it
//! ends.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use forebay_base::time::SystemClock;
use forebay_process::{Accounting, Child};

type Order = (Command, Sender<Child>);

pub(super) struct Keeper {
    /// `Some` until the drop.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start() -> Keeper {
        let (orders, received) = channel::<Order>();
        let work = move || {
            let accounting = Accounting::find(Arc::new(SystemClock));
            while let Ok((command, answer)) = received.recv() {
                let program = command.get_program().to_owned();
                let child = Child::spawn(command, &accounting).unwrap_or_else(|error| {
                    panic!("{program:?} does not start (Debian: etcd-server): {error}")
                });
                // The test may have ended meanwhile; then the child ends here.
                let _ = answer.send(child);
            }
        };
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(work);
        Keeper { orders: Some(orders), thread: Some(thread.expect("a thread can be started")) }
    }

    pub fn spawn(&self, command: Command) -> Child {
        let (answer, started) = channel();
        let orders = self.orders.as_ref().expect("there until the drop");
        orders.send((command, answer)).expect("the keeper runs");
        started.recv().expect("etcd starts (Debian: etcd-server)")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It has panicked only if a test has.
            let _ = thread.join();
        }
    }
}
