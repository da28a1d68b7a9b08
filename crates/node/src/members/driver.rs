//! The thread that drives membership and ownership: it hands events to the state machines and has their effects carried out,
//! in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use forebay_base::{Epoch, FilesetId};
use forebay_cluster::Node;
use forebay_cluster::membership;
use forebay_cluster::node::{Effect, Event};
use forebay_cluster::ownership;
use parking_lot::{Condvar, Mutex};

use super::boottime;
use super::etcd::{Courier, Input};
use super::ownership::{InUse, Ownership};
use super::visit::FilesetProblem;

/// How long the thread waits at most without looking at the clock.
const LOOK: Duration = Duration::from_secs(1);

/// How a node is, for those who wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It works.
    #[default]
    Working,
    /// It has handed everything over, and stopped.
    Stopped,
    /// It was removed or replaced.
    Ended(String),
}

/// What the thread shares with others.
pub struct Shared {
    /// The state machines.
    pub node: Mutex<Node>,
    /// Why a fileset could not be opened or handed over, until that is tried again.
    problems: Mutex<BTreeMap<FilesetId, FilesetProblem>>,
    /// Filesets that a user wants moved although they are in use.
    forced: Mutex<BTreeSet<FilesetId>>,
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Shared {
    /// A node at its beginning.
    pub fn new(node: Node) -> Shared {
        Shared {
            node: Mutex::new(node),
            problems: Mutex::default(),
            forced: Mutex::default(),
            phase: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Why filesets could not be opened or handed over.
    pub fn problems(&self) -> Vec<FilesetProblem> {
        self.problems.lock().values().cloned().collect()
    }

    /// A user wants a fileset moved: what was said of it before does not matter any more.
    pub fn prepare_move(&self, fileset: FilesetId, in_use: InUse) {
        self.problems.lock().remove(&fileset);
        let mut forced = self.forced.lock();
        match in_use {
            InUse::Stays => forced.remove(&fileset),
            InUse::Abandoned => forced.insert(fileset),
        };
    }

    fn begin(&self, fileset: FilesetId) {
        self.problems.lock().remove(&fileset);
    }

    fn failed(&self, fileset: FilesetId, epoch: Epoch, reason: String) {
        tracing::error!("fileset {fileset}: {reason}");
        self.problems.lock().insert(fileset, FilesetProblem { fileset, epoch, reason });
    }

    /// What becomes of a fileset's files that cannot be taken along, this time.
    fn in_use(&self, fileset: FilesetId) -> InUse {
        if self.forced.lock().remove(&fileset) { InUse::Abandoned } else { InUse::Stays }
    }

    /// How the node is.
    pub fn phase(&self) -> Phase {
        self.phase.lock().clone()
    }

    fn set(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }

    /// Waits until the node does not work any more, or the time has passed.
    pub fn wait_for_end(&self, time: Duration) -> Phase {
        let mut phase = self.phase.lock();
        if *phase == Phase::Working {
            self.changed.wait_for(&mut phase, time);
        }
        phase.clone()
    }
}

/// The thread's own.
pub struct Driver {
    /// What it shares.
    pub shared: Arc<Shared>,
    /// What it carries out at etcd.
    pub courier: Courier,
    /// What it has done with filesets.
    pub ownership: Arc<dyn Ownership>,
    /// Whether this node takes part in owning.
    pub owns: bool,
    /// The lease that etcd is asked for.
    pub node_lease: Duration,
    /// Events.
    pub inbox: Receiver<Input>,
    /// For those who report them.
    pub sender: Sender<Input>,
}

impl Driver {
    /// Runs until the node has stopped.
    pub fn run(mut self) {
        self.step(Event::Tick);
        while self.shared.phase() == Phase::Working {
            let wake = self.shared.node.lock().next_wake();
            let patience = wake.left(boottime()).min(LOOK);
            match self.inbox.recv_timeout(patience) {
                Ok(Input::Event(event)) => self.event(event),
                Ok(Input::Stop) => self.step(Event::Ownership(ownership::Event::Stop)),
                Ok(Input::Quit) => {
                    self.ownership.wait();
                    return;
                }
                Ok(Input::Removed) => self.end("this node was removed from the cluster"),
                Err(RecvTimeoutError::Timeout) => self.step(Event::Tick),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn event(&mut self, event: Event) {
        if self.owns {
            self.step(event);
            return;
        }
        // A node without filesets sees no owners, so it never becomes one.
        match event {
            Event::Registered { attempt, mut view } => {
                view.owners.clear();
                self.step(Event::Registered { attempt, view });
            }
            Event::Ownership(ownership::Event::View(mut view)) => {
                view.owners.clear();
                self.step(Event::Ownership(ownership::Event::View(view)));
            }
            Event::Ownership(ownership::Event::Changed {
                change: ownership::Change::Owner(..),
                ..
            }) => {}
            event => self.step(event),
        }
    }

    fn end(&self, reason: &str) {
        tracing::error!("{reason}: it no longer answers requests");
        self.ownership.wait();
        self.ownership.ended(reason);
        self.shared.set(Phase::Ended(reason.to_owned()));
    }

    fn step(&mut self, event: Event) {
        let effects = self.shared.node.lock().step(event, boottime());
        for effect in effects {
            match effect {
                Effect::Membership(effect) => self.member(&effect),
                Effect::Ownership(effect) => self.own(effect),
            }
        }
    }

    fn member(&self, effect: &membership::Effect) {
        use membership::Effect as Do;
        match *effect {
            Do::Grant { attempt, ttl } => self.courier.grant(attempt, ttl),
            Do::Register { attempt, member, expect } => {
                self.courier.register(attempt, member, expect);
            }
            Do::Renew { attempt, lease } => self.courier.renew(attempt, lease, self.node_lease),
            Do::Answer { until } => self.ownership.answer(until),
            Do::Wait => {
                tracing::warn!(
                    "the node's lease is not certain: everything waits until etcd answers"
                );
                self.ownership.wait();
            }
            Do::Replaced => self.end("another daemon of this node has started"),
        }
    }

    fn own(&self, effect: ownership::Effect) {
        use ownership::{Effect as Do, Event as Done};
        match effect {
            Do::Swap { attempt, swap } => self.courier.swap(attempt, &swap),
            Do::Read => self.courier.read(),
            Do::Open { fileset, epoch, lapse } => {
                let (ownership, shared) = (Arc::clone(&self.ownership), Arc::clone(&self.shared));
                self.aside("open", fileset, epoch, move || {
                    shared.begin(fileset);
                    match ownership.open(fileset, epoch, lapse) {
                        Ok(()) => Done::Opened { fileset, epoch },
                        Err(reason) => {
                            let reason = format!("it cannot be opened here: {reason}");
                            shared.failed(fileset, epoch, reason);
                            Done::OpenFailed { fileset, epoch }
                        }
                    }
                });
            }
            Do::Settle { fileset, epoch, to } => {
                let (ownership, shared) = (Arc::clone(&self.ownership), Arc::clone(&self.shared));
                self.aside("settle", fileset, epoch, move || {
                    shared.begin(fileset);
                    match ownership.settle(fileset, epoch, to, shared.in_use(fileset)) {
                        Ok(()) => Done::Settled { fileset, epoch },
                        Err(reason) => {
                            let reason = format!("it cannot be handed over: {reason}");
                            shared.failed(fileset, epoch, reason);
                            Done::SettleFailed { fileset, epoch }
                        }
                    }
                });
            }
            Do::Passed { fileset, to } => {
                tracing::info!(fileset = fileset.0, ?to, "a fileset was handed over");
                self.ownership.passed(fileset, to);
            }
            Do::Drop { fileset, epoch } => {
                tracing::warn!(
                    fileset = fileset.0,
                    epoch = epoch.0,
                    "another node has taken the fileset over: uncommitted changes are lost, and its open files are stale"
                );
                self.ownership.fence(fileset, epoch);
                let ownership = Arc::clone(&self.ownership);
                self.aside("release", fileset, epoch, move || {
                    ownership.release(fileset, epoch);
                    Done::Dropped { fileset, epoch }
                });
            }
            Do::Stopped => self.shared.set(Phase::Stopped),
        }
    }

    /// Does what takes its time in a thread of its own, and reports what came of it.
    fn aside(
        &self,
        what: &str,
        fileset: FilesetId,
        epoch: Epoch,
        work: impl FnOnce() -> ownership::Event + Send + 'static,
    ) {
        tracing::debug!(what, fileset = fileset.0, epoch = epoch.0);
        let sender = self.sender.clone();
        let working = move || {
            // Nobody listens any more: the node has stopped.
            let _ = sender.send(Input::Event(Event::Ownership(work())));
        };
        let name = format!("{what}-{fileset}");
        if let Err(error) = std::thread::Builder::new().name(name).spawn(working) {
            // Without a thread this node can do none of its duties; others take over when its lease is over.
            self.end(&format!("no thread can be started to {what} a fileset ({error})"));
        }
    }
}
