//! Nodes on one file system, whose stores they all reach.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::{ClientId, FailPoints, Ino, NodeId};
use forebay_disk::memory::MemoryDisk;
use forebay_fs::reserve::Reserve;
use forebay_fs::{HandOver, Namespace, Parts, Settings};
use forebay_store::memory::MemoryStores;

use crate::support::{Nodes, READ, ROOT, SteppedTimes, WRITE, new_stores};
use crate::{DATA, ONE};

/// A file system whose stores all nodes reach, as they would an object store.
pub(crate) struct Site {
    pub(crate) stores: Arc<MemoryStores>,
    pub(crate) clock: Arc<SteppedTimes>,
    pub(crate) nodes: Arc<Nodes>,
}

impl Site {
    /// Node 1 owns everything that is given to nobody else. Its disk is the first.
    pub(crate) fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores("whole", "memory", &*clock);
        Site { stores, clock, nodes: Nodes::with_owner(ONE) }
    }

    pub(crate) fn parts(&self, node: NodeId, has_disk: bool) -> Parts {
        let disk = MemoryDisk::new(1 << 40, Arc::clone(&self.clock) as _);
        let settings = Settings { owner_wait: Duration::from_secs(20), ..Settings::default() };
        Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: if has_disk {
                vec![(format!("disk-{node}"), Arc::new(disk))]
            } else {
                Vec::new()
            },
            settings,
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        }
    }

    pub(crate) fn join(&self, node: NodeId) -> Arc<Namespace> {
        self.nodes.join(node, self.parts(node, true))
    }

    /// Moves a fileset in order.
    pub(crate) fn hand_over(
        &self,
        from: &Namespace,
        all: &[&Arc<Namespace>],
        to: NodeId,
        epoch: u64,
    ) {
        from.hand_over_to(DATA, HandOver::Refuse, Some(to)).unwrap();
        self.give(all, to, epoch);
    }

    /// Names the owner of a fileset, and everybody hears of it.
    pub(crate) fn give(&self, all: &[&Arc<Namespace>], to: NodeId, epoch: u64) {
        self.nodes.give(DATA, to, epoch);
        all.iter().for_each(|node| node.owner_changed(DATA).unwrap());
    }
}

pub(crate) fn write(fs: &Namespace, ino: Ino, offset: u64, data: &[u8]) {
    fs.open_file(ino, WRITE, ROOT).unwrap();
    assert_eq!(fs.write(ino, offset, data).unwrap(), data.len());
    fs.close_file(ino, WRITE).unwrap();
}

pub(crate) fn contents(fs: &Namespace, ino: Ino) -> Vec<u8> {
    fs.open_file(ino, READ, ROOT).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let read = fs.read(ino, 0, &mut buffer).unwrap();
    fs.close_file(ino, READ).unwrap();
    assert_eq!(fs.attributes(ino).unwrap().size, read as u64);
    buffer.truncate(read);
    buffer
}

pub(crate) fn client(node: NodeId) -> ClientId {
    ClientId { node, incarnation: 1 }
}
