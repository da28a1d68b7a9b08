//! A cluster of three nodes, and what its users do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::{FailPoints, Ino, NodeId};
use forebay_disk::Disk as _;
use forebay_disk::memory::MemoryDisk;
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, HandOver, Namespace, Parts, Settings};
use forebay_store::memory::MemoryStores;

use crate::support::{
    Kernel, Nodes, READ_WRITE, ROOT, Shorthand as _, SteppedTimes, User, directory, new_stores,
};
use crate::{DATA, ONE, THREE, TWO};

/// Three nodes, each with a disk; the first owns everything.
pub struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<SteppedTimes>,
    pub nodes: Arc<Nodes>,
    disks: Vec<MemoryDisk>,
}

impl Site {
    pub fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores("whole", "there", &*clock);
        let nodes = Nodes::with_owner(ONE);
        nodes.keep_disks_apart();
        let disks = (0..3).map(|_| MemoryDisk::new(1 << 40, Arc::clone(&clock) as _)).collect();
        Site { stores, clock, nodes, disks }
    }

    pub fn join(&self, node: NodeId) -> User {
        let disk = self.disks[node.0 as usize - 1].clone();
        let parts = Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: vec![(format!("disk-{node}"), Arc::new(disk))],
            settings: Settings { owner_wait: Duration::from_secs(5), ..Settings::default() },
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        };
        let fs = self.nodes.join(node, parts);
        User { fs, kernel: Arc::<Kernel>::default(), owner: None, taker: None, nodes: None }
    }

    pub fn three(&self) -> (User, User, User) {
        (self.join(ONE), self.join(TWO), self.join(THREE))
    }

    /// Requests that `work` sends to owners.
    pub fn calls<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let sent = || {
            let nodes = &self.nodes;
            nodes.calls.load(Ordering::Relaxed) - nodes.disk_calls.load(Ordering::Relaxed)
        };
        let before = sent();
        let done = work();
        (sent() - before, done)
    }

    /// Moves the fileset from the first node to the third.
    pub fn hand_over(&self, all: &[&User; 3], epoch: u64) {
        all[0].fs.hand_over(DATA, HandOver::Refuse).unwrap();
        self.nodes.give(DATA, THREE, epoch);
        all.iter().for_each(|user| user.fs.owner_changed(DATA).unwrap());
    }

    pub fn objects_on(&self, node: NodeId) -> usize {
        let mut count = 0;
        let mut visit = |_| {
            count += 1;
            true
        };
        self.disks[node.0 as usize - 1].list(&mut visit).unwrap();
        count
    }
}

/// A directory that `user`, who does not own the fileset, has made and works in.
pub fn own_directory(user: &User, name: &str) -> Ino {
    let data = user.fs.fileset("data");
    // Asks for the owner's word.
    user.fs.getattr(data).unwrap();
    let made = user.fs.create(data, name.as_bytes(), directory(0o755), ROOT).unwrap().ino;
    // Asks for numbers.
    put(user, made, "first", b"first");
    made
}

pub fn put(user: &User, parent: Ino, name: &str, bytes: &[u8]) -> Ino {
    let handle = user.create_file(parent, name, READ_WRITE).unwrap();
    handle.write(0, bytes);
    let ino = handle.ino;
    handle.close();
    ino
}

pub fn size(fs: &Namespace, parent: Ino, name: &str) -> Option<u64> {
    match fs.lookup(parent, name.as_bytes()) {
        Ok(found) => Some(found.size),
        Err(FsError::NotFound) => None,
        Err(error) => panic!("{name}: {error}"),
    }
}
