//! What breaks, and how it is mended.

use std::fmt;
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use rustix::process::Signal;

use super::workers::Shared;
use super::{NODES, SMALL_DISK};
use crate::cluster::Cluster;
use crate::command::run;
use crate::loop_disk::LoopDisk;
use crate::need;

/// Longest time of a command.
const LIMIT: Duration = Duration::from_secs(60);
/// The lease of a node.
const LEASE: Duration = Duration::from_secs(10);
/// What is left of a full disk.
const BALLAST_PART: u64 = 1 << 20;

/// Something that breaks for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A daemon is killed, and mounted again later.
    Kill {
        /// Which node.
        node: usize,
        /// How long it stays down.
        down: Duration,
    },
    /// The owner of the files begins to hand them over, and is killed in the middle of it.
    KillInHandover {
        /// When, from the beginning of the handover on.
        after: Duration,
        /// How long it stays down.
        down: Duration,
    },
    /// The owner of the files hands them over, and may take them back.
    Handover,
    /// A daemon stands still.
    Freeze {
        /// Which node.
        node: usize,
        /// How long.
        stopped: Duration,
    },
    /// What one node sends to another is lost.
    Cut {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Whether the other direction is cut too.
        both_ways: bool,
        /// How long.
        cut: Duration,
    },
    /// A node does not reach etcd.
    CutFromEtcd {
        /// Which node.
        node: usize,
        /// How long.
        cut: Duration,
    },
    /// Members of etcd are dead.
    EtcdDies {
        /// How many.
        members: usize,
        /// The first of them.
        first: usize,
        /// How long.
        down: Duration,
    },
    /// The disk of a node answers nothing.
    DiskStalls {
        /// How long.
        stalled: Duration,
    },
    /// The disk of a node is full.
    DiskFills {
        /// How long.
        full: Duration,
    },
    /// The disk of a node fails, and comes back without what was not synced. The node is mounted again.
    DiskGoes {
        /// How long.
        gone: Duration,
    },
}

/// What programs may find gone after a fault, of what they did not sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Nothing.
    Nothing,
    /// Names.
    Names,
    /// Names, and bytes.
    Bytes,
}

/// A time from `low` to `high` seconds.
fn seconds(low: f64, high: f64, random: &mut StdRng) -> Duration {
    Duration::from_secs_f64(random.random_range(low..high))
}

impl Fault {
    /// Kinds of faults for [`Fault::draw`].
    pub const KINDS: u32 = 12;

    /// Draws the parameters of a fault of a kind.
    #[must_use]
    pub fn draw(kind: u32, nodes: usize, members: usize, random: &mut StdRng) -> Fault {
        let node = random.random_range(0..nodes);
        let other = (node + random.random_range(1..nodes)) % nodes;
        let longer = LEASE.as_secs_f64() + 3.0;
        match kind {
            0 => Fault::Kill { node, down: seconds(0.0, 3.0, random) },
            1 => Fault::Kill { node, down: seconds(longer, longer + 4.0, random) },
            2 => Fault::KillInHandover {
                after: seconds(0.0, 1.5, random),
                down: seconds(0.0, longer, random),
            },
            3 => Fault::Handover,
            4 => Fault::Freeze { node, stopped: seconds(longer, longer + 5.0, random) },
            5 => Fault::Freeze { node, stopped: seconds(1.0, 8.0, random) },
            6 => {
                let both_ways = random.random_bool(0.5);
                Fault::Cut { from: node, to: other, both_ways, cut: seconds(1.0, 15.0, random) }
            }
            7 => Fault::CutFromEtcd { node, cut: seconds(3.0, longer + 4.0, random) },
            8 => Fault::EtcdDies {
                members: random.random_range(1..members),
                first: random.random_range(0..members),
                down: seconds(2.0, longer, random),
            },
            9 => Fault::DiskStalls { stalled: seconds(1.0, 12.0, random) },
            10 => Fault::DiskGoes { gone: seconds(1.0, 12.0, random) },
            _ => Fault::DiskFills { full: seconds(2.0, 8.0, random) },
        }
    }

    /// What may be lost.
    #[must_use]
    pub fn loss(&self) -> Loss {
        match self {
            Fault::Kill { .. }
            | Fault::KillInHandover { .. }
            | Fault::Freeze { .. }
            | Fault::CutFromEtcd { .. }
            | Fault::EtcdDies { .. } => Loss::Names,
            Fault::DiskGoes { .. } => Loss::Bytes,
            // A stalled disk holds nothing that a daemon's life depends on.
            Fault::Handover
            | Fault::Cut { .. }
            | Fault::DiskStalls { .. }
            | Fault::DiskFills { .. } => Loss::Nothing,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Kill { node, down } => write!(f, "node {node} is killed, down for {down:.1?}"),
            Fault::KillInHandover { after, down } => {
                write!(f, "the owner is killed {after:.2?} into a handover, down for {down:.1?}")
            }
            Fault::Handover => write!(f, "the owner hands its filesets over"),
            Fault::Freeze { node, stopped } => write!(f, "node {node} is frozen for {stopped:.1?}"),
            Fault::Cut { from, to, both_ways, cut } => {
                let way = if *both_ways { "and" } else { "to" };
                write!(f, "the network from node {from} {way} node {to} is cut for {cut:.1?}")
            }
            Fault::CutFromEtcd { node, cut } => {
                write!(f, "node {node} does not reach etcd for {cut:.1?}")
            }
            Fault::EtcdDies { members, down, .. } => {
                write!(f, "{members} of 3 members of etcd are dead for {down:.1?}")
            }
            Fault::DiskStalls { stalled } => {
                write!(f, "the disk of node {SMALL_DISK} stalls for {stalled:.1?}")
            }
            Fault::DiskGoes { gone } => {
                write!(f, "the disk of node {SMALL_DISK} is gone for {gone:.1?}")
            }
            Fault::DiskFills { full } => {
                write!(f, "the disk of node {SMALL_DISK} is full for {full:.1?}")
            }
        }
    }
}

/// Breaks a cluster and mends it.
pub(super) struct Breaker<'a> {
    pub cluster: &'a mut Cluster,
    pub shared: &'a Shared,
    /// Where the small disk is mounted.
    pub disk: &'a LoopDisk,
}

impl Breaker<'_> {
    /// Breaks something, waits, and mends it.
    pub fn perform(&mut self, fault: &Fault) {
        match *fault {
            Fault::Kill { node, down } => self.kill(node, down),
            Fault::KillInHandover { after, down } => self.kill_in_handover(after, down),
            Fault::Handover => {
                let owner = self.owner();
                self.drain(owner, &[]);
                self.shared.sleep(Duration::from_secs(3));
                self.drain(owner, &["--undo"]);
            }
            Fault::Freeze { node, stopped } => {
                self.cluster.signal(node, Signal::STOP);
                self.shared.sleep(stopped);
                self.cluster.signal(node, Signal::CONT);
            }
            Fault::Cut { from, to, both_ways, cut } => {
                let hosts = self.cluster.hosts();
                hosts.cut(from, to);
                if both_ways {
                    hosts.cut(to, from);
                }
                self.shared.sleep(cut);
                hosts.mend(from, to);
                if both_ways {
                    hosts.mend(to, from);
                }
            }
            Fault::CutFromEtcd { node, cut } => {
                let hosts = self.cluster.hosts();
                self.cluster.etcd().places().for_each(|member| hosts.cut(node, member));
                self.shared.sleep(cut);
                self.cluster.etcd().places().for_each(|member| hosts.mend(node, member));
            }
            Fault::EtcdDies { members, first, down } => self.end_etcd(members, first, down),
            Fault::DiskStalls { stalled } => {
                self.freeze_disk("--freeze");
                self.shared.sleep(stalled);
                self.freeze_disk("--unfreeze");
            }
            Fault::DiskFills { full } => self.fill_disk(full),
            Fault::DiskGoes { gone } => self.take_disk(gone),
        }
    }

    /// The owner of the files that the programs use.
    fn owner(&self) -> usize {
        self.cluster.owner(0, "data").unwrap_or(0)
    }

    fn drain(&self, node: usize, more: &[&str]) {
        let name = format!("n{node}");
        let asked = (node + 1) % NODES;
        self.cluster.forebay(asked, &[&["cluster", "drain", &name], more].concat()).succeeds();
    }

    fn kill(&self, node: usize, down: Duration) {
        self.cluster.signal(node, Signal::KILL);
        // Calls on the mount fail now. No program must see the directory below it.
        let mut mounted = self.shared.mounted(node);
        self.cluster.wait_until_gone(node);
        self.cluster.detach(node);
        self.shared.sleep(down);
        self.cluster.mount(node);
        *mounted = true;
    }

    fn kill_in_handover(&self, after: Duration, down: Duration) {
        let owner = self.owner();
        self.drain(owner, &[]);
        std::thread::sleep(after);
        self.kill(owner, down);
        self.drain(owner, &["--undo"]);
    }

    fn end_etcd(&self, members: usize, first: usize, down: Duration) {
        let (etcd, hosts) = (self.cluster.etcd(), self.cluster.hosts());
        let all = etcd.members();
        let chosen = || (first..first + members).map(|member| member % all);
        chosen().for_each(|member| etcd.kill_member(member));
        self.shared.sleep(down);
        chosen().for_each(|member| etcd.start_member(hosts, member));
        etcd.wait_until_reached(hosts, 0);
    }

    fn freeze_disk(&self, how: &str) {
        run(need::program("fsfreeze").arg(how).arg(self.disk.path()), LIMIT).succeeds();
    }

    fn fill_disk(&self, full: Duration) {
        let ballast = self.disk.path().join("ballast");
        let space = rustix::fs::statvfs(self.disk.path()).expect("asks for the free space");
        let bytes = (space.f_bavail * space.f_frsize).saturating_sub(BALLAST_PART);
        let mut fallocate = need::program("fallocate");
        // It may get no more than is there when it comes to it.
        run(fallocate.args(["--length", &bytes.to_string()]).arg(&ballast), LIMIT);
        self.shared.sleep(full);
        std::fs::remove_file(&ballast).expect("removes the ballast");
    }

    /// Every call on the disk fails, until the node is mounted with the disk as it was last synced.
    fn take_disk(&self, gone: Duration) {
        let mut shut_down = need::program("xfs_io");
        shut_down.args(["-x", "-c", "shutdown"]).arg(self.disk.path());
        run(&mut shut_down, LIMIT).succeeds();
        self.shared.sleep(gone);
        self.cluster.signal(SMALL_DISK, Signal::KILL);
        {
            let mut mounted = self.shared.mounted(SMALL_DISK);
            self.cluster.wait_until_gone(SMALL_DISK);
            self.cluster.detach(SMALL_DISK);
            *mounted = false;
        }
        // Its programs let go of their files now.
        self.disk.remount();
        self.cluster.mount(SMALL_DISK);
        *self.shared.mounted(SMALL_DISK) = true;
    }
}
