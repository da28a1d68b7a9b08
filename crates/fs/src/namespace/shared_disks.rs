//! Disks on storage that all nodes of a cluster mount under the same path: every node opens their objects itself.
//!
//! Such a disk has no node: nobody reaches it by way of another one, and it is there as long as its storage is. What follows from
//! that for fenced nodes is in `partition/fenced.rs`. Before one is added, this node and every other that has mounted the file
//! system write and read by turns on open files: storage that caches sizes or bytes on one machine while another one changes them
//! shows here.

use std::sync::Arc;

use forebay_base::{Channel, Ino, NodeId, ObjectId};
use forebay_disk::{Disk, Object, Sync, absent};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Namespace, NewDisk};
use crate::error::{FsError, Result};
use crate::record::{DiskRecord, Durability, ObjectRef};
use crate::remote::disk_orders::{DiskAnswer, DiskOrder};
use crate::remote::{Answer, Request, ask_node};

/// The object on which nodes write and read by turns: of a fileset that cannot be.
const PROBE: ObjectId = ObjectId(u64::MAX);
/// How often they do.
const ROUNDS: u64 = 20;

/// What to do about storage that is not coherent.
const REMEDY: &str = "the nodes would see old sizes and bytes of each other's files. Mount the storage so that it caches neither attributes \
                      nor bytes (NFS: -o noac), or use a cluster file system (CephFS, Lustre, GPFS, GFS2)";

/// One turn of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeTurn {
    /// The disk that is to be added.
    pub uuid: String,
    pub location: String,
    /// Which one it is; none at the end.
    pub round: Option<u64>,
}

/// A probe in which another node has this one take part.
pub(super) struct Probed {
    uuid: String,
    object: Arc<dyn Object>,
    /// In use as long as the object is.
    _disk: Arc<dyn Disk>,
}

/// The one that was begun last.
pub(super) type Probing = Mutex<Option<Probed>>;

/// Whether a node reaches a disk itself that was not given to it.
pub(super) fn reaches_itself(record: &DiskRecord, disk: &dyn Disk) -> bool {
    record.shared_directory().is_some() && disk.describe().kind != absent::KIND
}

/// What the node that adds the disk writes in a round, and what the other one answers.
fn marks(round: u64) -> ([u8; 8], [u8; 8]) {
    let mark = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mark.to_be_bytes(), mark.rotate_left(17).to_be_bytes())
}

/// Where the answer of a round lies.
fn place_of(round: u64) -> u64 {
    8 + round * 8
}

fn put(object: &dyn Object, offset: u64, mark: [u8; 8]) -> Result<()> {
    match object.write_at(offset, &mark)? {
        8 => Ok(()),
        _ => Err(FsError::NoSpace),
    }
}

fn shows(object: &dyn Object, offset: u64, mark: [u8; 8]) -> Result<bool> {
    let mut found = [0; 8];
    Ok(object.read_at(offset, &mut found)? == 8 && found == mark)
}

impl Namespace {
    /// Finds out whether the storage of a disk, which this node has opened, is the same on all nodes that have mounted the file
    /// system, and coherent.
    ///
    /// # Errors
    /// [`FsError::Refused`] if it is not, with the node and the reason.
    pub(super) fn probe_shared(&self, new: &NewDisk, disk: &dyn Disk) -> Result<()> {
        let Some(membership) = &self.cluster else {
            return Err(FsError::Refused(
                "a shared disk is for the nodes of a cluster: on one machine add it without --shared".to_owned(),
            ));
        };
        // What an interrupted probe has left.
        disk.remove(PROBE)?;
        let object = disk.create_named(PROBE)?;
        let members = membership.cluster().members();
        let mut probed = Ok(());
        for (node, channel) in &members {
            probed = probed.and_then(|()| probe_with(*node, &**channel, new, &*object));
            let end = turn(new, None);
            let _ = ask_node(&**channel, Request::Disks(DiskOrder::Probe(end)));
        }
        drop(object);
        disk.remove(PROBE)?;
        probed
    }

    /// Name of this node; none on one machine.
    #[must_use]
    pub fn node_name(&self) -> String {
        self.cluster.as_ref().map_or_else(String::new, |it| it.cluster().node_name())
    }

    /// Takes a turn in the probe of another node.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the storage is not there, or does not show what that node has just written.
    pub(crate) fn take_turn_in_probe(&self, turn: &ProbeTurn) -> Result<()> {
        let Some(membership) = &self.cluster else { return Err(FsError::Invalid) };
        let mut probing = membership.probing.lock();
        let Some(round) = turn.round else {
            *probing = None;
            return Ok(());
        };
        if round == 0 || probing.as_ref().is_none_or(|probed| probed.uuid != turn.uuid) {
            let record = DiskRecord::new(forebay_base::DiskId(0), &turn.uuid, &turn.location);
            let disk = membership.cluster().disk(&record);
            let disk = disk.ok_or_else(|| FsError::Refused("it cannot be opened".to_owned()))?;
            let object = disk.open(PROBE).map_err(|error| {
                FsError::Refused(format!("{error}; mount the storage there under the same path"))
            })?;
            *probing = Some(Probed { uuid: turn.uuid.clone(), object, _disk: disk });
        }
        let Some(probed) = probing.as_ref() else { return Err(FsError::Invalid) };
        let (asked, answer) = marks(round);
        if !shows(&*probed.object, 0, asked)? {
            return Err(FsError::Refused(format!(
                "an open file shows old bytes after another node has changed it: {REMEDY}"
            )));
        }
        put(&*probed.object, place_of(round), answer)
    }

    /// Whether programs of other nodes may have an object mapped for writing that all nodes reach, as far as they can tell.
    pub(super) fn is_mapped_elsewhere(&self, at: ObjectRef) -> bool {
        if !self.shared.objects.is_shared(at.disk) {
            return false;
        }
        let (answers, problems) = self.ask_all(&DiskOrder::IsMapped(at));
        !problems.is_empty()
            || answers.iter().any(|answer| !matches!(answer, DiskAnswer::IsMapped(false)))
    }

    /// Makes durable what programs of this node have written to a file of a shared disk whose fileset another node owns.
    pub(super) fn sync_shared_object(&self, ino: Ino, what: Sync) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        let known = self.catalogue.get(ino.fileset());
        let is_strict = known.is_none_or(|it| it.settings().durability == Durability::Strict);
        if is_strict { membership.near.sync_shared(ino, what) } else { Ok(()) }
    }
}

fn turn(new: &NewDisk, round: Option<u64>) -> ProbeTurn {
    ProbeTurn { uuid: new.uuid.clone(), location: new.location.clone(), round }
}

/// Writes and reads by turns with another node.
fn probe_with(
    node: NodeId,
    channel: &dyn Channel,
    new: &NewDisk,
    object: &dyn Object,
) -> Result<()> {
    let refused = |why: &dyn std::fmt::Display| {
        FsError::Refused(format!("{} cannot be a shared disk: node {node}: {why}", new.location))
    };
    // What the node before has left.
    object.set_size(0)?;
    for round in 0..ROUNDS {
        let (asked, answer) = marks(round);
        put(object, 0, asked)?;
        let order = DiskOrder::Probe(turn(new, Some(round)));
        match ask_node(channel, Request::Disks(order)) {
            Ok(Answer::Disks(DiskAnswer::Done)) => {}
            Ok(other) => return Err(refused(&format!("not an answer: {other:?}"))),
            Err(why) => return Err(refused(&why)),
        }
        let size = object.attributes()?.size;
        if size != place_of(round + 1) || !shows(object, place_of(round), answer)? {
            let expected = place_of(round + 1);
            return Err(refused(&format!(
                "an open file has {size} bytes here after that node has made it {expected}, or shows old ones: {REMEDY}"
            )));
        }
    }
    Ok(())
}
