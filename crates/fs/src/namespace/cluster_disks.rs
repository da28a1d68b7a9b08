//! The disks of a cluster: who knows of them, and since when.
//!
//! The root's store has the records in force. Its owner tells every node of a change, again and again until it has heard, and
//! each node then reads all records anew. What an owner hears it writes into the stores of its own filesets before it acts on it:
//! so whoever takes a fileset over knows each disk that records of it name, and never puts a new object on one that was
//! being emptied, even if the root's owner cannot be reached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::{Channel, DiskId, FilesetId, Ino, NodeId};
use forebay_disk::Disk;

use super::cluster::{Membership, Whose};
use super::{Fileset, Namespace, NewDisk, pool_of};
use crate::error::{FsError, Result};
use crate::object::FsDisk;
use crate::ops::DiskStatus;
use crate::owner::Owner;
use crate::record::{DiskRecord, DiskUse, Placement};
use crate::remote::disk_orders::{DiskAnswer, DiskOrder, TaskChange};
use crate::remote::{Answer, Request, ask_node, tell};

/// How often a node looks at most for the node of a new disk, before that counts as none.
const SIGHT_LOOKS_MAX: u32 = 250;
/// The pause in between.
const SIGHT_LOOK: Duration = Duration::from_millis(20);

/// How much less a disk may be used than before, the more the higher.
fn rank(used: DiskUse) -> u8 {
    match used {
        DiskUse::Normal => 0,
        DiskUse::Draining => 1,
        DiskUse::Lost => 2,
        DiskUse::Removed => 3,
    }
}

/// Whether a disk is one that all nodes are to reach themselves.
fn is_shared(new: &NewDisk) -> bool {
    DiskRecord::new(DiskId(0), &new.uuid, &new.location).shared_directory().is_some()
}

/// An answer that does not fit what was ordered.
fn senseless<T>(answer: &DiskAnswer) -> Result<T> {
    Err(FsError::Io(format!("the owner of the root fileset sent an unexpected answer: {answer:?}")))
}

impl DiskAnswer {
    pub(super) fn done(self) -> Result<()> {
        match self {
            DiskAnswer::Done => Ok(()),
            other => senseless(&other),
        }
    }

    pub(super) fn begun(self) -> Result<u64> {
        match self {
            DiskAnswer::Begun(number) => Ok(number),
            other => senseless(&other),
        }
    }
}

/// Orders.
impl Namespace {
    /// Has the root's owner carry out an order, if that is another node.
    pub(super) fn order_at_root(&self, order: &DiskOrder) -> Result<Option<DiskAnswer>> {
        if self.cluster.is_none() {
            return Ok(None);
        }
        let answer = self.at(Ino::ROOT, |owner| match owner {
            Owner::Remote(root) => root.ask(Request::Disks(order.clone())).map(Some),
            Owner::Local(_) | Owner::Native(_) => Ok(None),
        })?;
        match answer {
            None => Ok(None),
            Some(Answer::Disks(answer)) => {
                // What it has changed is known here when the command ends.
                self.refresh()?;
                Ok(Some(answer))
            }
            Some(other) => Err(FsError::Io(format!("not an answer: {other:?}"))),
        }
    }

    /// Carries out what another node has ordered.
    pub(crate) fn carry_out_order(&self, order: DiskOrder) -> Result<DiskAnswer> {
        match order {
            DiskOrder::Count => return Ok(DiskAnswer::Counts(self.own_counts())),
            DiskOrder::FilesOn { disk, most } => {
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                return self.own_files_on(disk, most).map(DiskAnswer::Lost);
            }
            DiskOrder::LookAtPolicy(policy) => {
                return self.look_at_own(&policy.into()).map(DiskAnswer::Policy);
            }
            DiskOrder::IsMapped(at) => {
                return Ok(DiskAnswer::IsMapped(self.shared.objects.is_mapped_here(at)));
            }
            DiskOrder::Probe(turn) => {
                return self.take_turn_in_probe(&turn).map(|()| DiskAnswer::Done);
            }
            _ => {}
        }
        self.root()?;
        match order {
            DiskOrder::Add(new) => return self.add_record(&new).map(DiskAnswer::Disk),
            DiskOrder::Label { disk, pool, group } => {
                self.label_disk(&disk, pool.as_deref(), group.as_deref())?;
            }
            DiskOrder::Drain { disk, to } => {
                return self.drain_disk(&disk, to.as_deref()).map(DiskAnswer::Begun);
            }
            DiskOrder::UseAgain { disk } => self.use_disk_again(&disk)?,
            DiskOrder::Remove { disk } => return self.remove_disk(&disk).map(DiskAnswer::Disk),
            DiskOrder::GiveUp { disk, most } => {
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                return self.give_up_disk(&disk, most).map(DiskAnswer::Lost);
            }
            DiskOrder::SetPool { fileset, pool } => self.set_fileset_pool(&fileset, &pool)?,
            DiskOrder::Rebalance { pool } => return self.rebalance(&pool).map(DiskAnswer::Begun),
            DiskOrder::RunPolicy(policy) => {
                return self.run_policy(&policy.into()).map(DiskAnswer::Begun);
            }
            DiskOrder::Tasks => return Ok(DiskAnswer::Tasks(self.tasks_told())),
            DiskOrder::ChangeTask(number, change) => match change {
                TaskChange::Pause => self.pause_task(number)?,
                TaskChange::Resume => self.resume_task(number)?,
                TaskChange::Speed(speed) => self.set_task_speed(number, speed)?,
                TaskChange::Cancel => self.cancel_task(number)?,
            },
            DiskOrder::Count
            | DiskOrder::FilesOn { .. }
            | DiskOrder::LookAtPolicy(_)
            | DiskOrder::IsMapped(_)
            | DiskOrder::Probe(_) => return Err(FsError::Invalid),
        }
        Ok(DiskAnswer::Done)
    }

    /// Asks every other node that has mounted the file system, for its own filesets. Those that do not answer are named with
    /// the reason.
    pub(super) fn ask_all(&self, order: &DiskOrder) -> (Vec<DiskAnswer>, Vec<String>) {
        let (mut answers, mut problems) = (Vec::new(), Vec::new());
        let Some(membership) = &self.cluster else { return (answers, problems) };
        for (node, channel) in membership.cluster().members() {
            match ask_node(&*channel, Request::Disks(order.clone())) {
                Ok(Answer::Disks(answer)) => answers.push(answer),
                Ok(other) => problems.push(format!("node {node}: not an answer: {other:?}")),
                Err(why) => problems.push(format!("node {node}: {why}")),
            }
        }
        (answers, problems)
    }

    /// The filesets with a store of which this node is the owner.
    pub(super) fn filesets_here(&self) -> Vec<Arc<Fileset>> {
        let is_own = |fileset: &Arc<Fileset>| {
            fileset.settings().placement != Placement::Native
                && self.cluster.as_ref().is_none_or(|membership| {
                    matches!(self.whose(membership, fileset.id), Whose::Here(_))
                })
        };
        self.catalogue.list().into_iter().filter(is_own).collect()
    }
}

/// Hearing of disks, and telling of them.
impl Namespace {
    pub(super) fn knows_disk(&self, uuid: &str) -> bool {
        self.shared.objects.disks.all().any(|disk| disk.uuid == uuid)
    }

    /// A disk of this node is one of the file system from now on, unless it was taken away while the node was not there.
    pub(super) fn join_with(&self, uuid: &str, disk: Arc<dyn Disk>) -> Result<()> {
        let location = disk.describe().location;
        if let Some(membership) = &self.cluster {
            membership.coming.lock().insert(uuid.to_owned(), disk);
        }
        let record = self.register_disk(uuid, &location)?;
        if record.is_expected() {
            return self.learn_disk(&record);
        }
        self.forget_own(uuid);
        if let Some(membership) = &self.cluster {
            membership.cluster().let_disk_go(&record);
        }
        self.forget_at_cluster(&record);
        Ok(())
    }

    fn forget_own(&self, uuid: &str) {
        if let Some(membership) = &self.cluster {
            membership.coming.lock().remove(uuid);
        }
    }

    pub(super) fn forget_at_cluster(&self, record: &DiskRecord) {
        let Some(membership) = &self.cluster else { return };
        if let Err(error) = membership.cluster().forget_disk(record) {
            tracing::warn!(
                uuid = record.uuid,
                error,
                "the cluster still names the node of a disk that was taken away"
            );
        }
    }

    /// Adds a disk to those of the file system, at the root's owner; one that is known already keeps its number.
    ///
    /// # Errors
    /// What the root's owner says.
    pub fn register_disk(&self, uuid: &str, location: &str) -> Result<DiskRecord> {
        let (record, is_new) = self.at(Ino::ROOT, |owner| match owner {
            Owner::Local(root) => {
                let was_known = root.identity().disks.iter().any(|disk| disk.uuid == uuid);
                let record = root.add_disk(uuid, location)?;
                Ok((record, !was_known))
            }
            Owner::Native(_) => Err(FsError::Invalid),
            Owner::Remote(root) => {
                let (uuid, location) = (uuid.to_owned(), location.to_owned());
                match root.ask(Request::AddDisk { uuid, location })? {
                    Answer::Disk(record) => Ok((record, false)),
                    other => Err(FsError::Io(format!("not an answer: {other:?}"))),
                }
            }
        })?;
        if is_new {
            // Nodes that are just joining, as the asking one, answer only when they have: so nobody waits for them here.
            self.act_on_disks()?;
            self.wake_tasks();
        }
        Ok(record)
    }

    /// Brings a disk of this node while the file system is mounted.
    pub(super) fn bring_disk(&self, new: &NewDisk, disk: Arc<dyn Disk>) -> Result<()> {
        let Some(membership) = &self.cluster else { return Err(FsError::Invalid) };
        if is_shared(new) {
            self.probe_shared(new, &*disk)?;
        } else {
            // Before anybody hears of it: whoever does must find its node.
            membership.cluster().bring_disk(new, &disk).map_err(FsError::Refused)?;
        }
        membership.coming.lock().insert(new.uuid.clone(), disk);
        let ordered = self.order_at_root(&DiskOrder::Add(new.clone()));
        let added = ordered.and_then(|answer| match answer {
            None => self.add_record(new),
            Some(DiskAnswer::Disk(record)) => Ok(record),
            Some(other) => senseless(&other),
        });
        match added.and_then(|record| self.learn_disk(&record)) {
            Ok(()) => Ok(()),
            // It may be on record all the same: then this node keeps it, and finds it so when it mounts again.
            Err(error @ (FsError::Io(_) | FsError::Moved | FsError::Fenced)) => Err(error),
            Err(error) => {
                self.forget_own(&new.uuid);
                let (uuid, location) = (new.uuid.as_str(), new.location.as_str());
                let record = DiskRecord::new(DiskId(0), uuid, location);
                if !is_shared(new) {
                    membership.cluster().let_disk_go(&record);
                    self.forget_at_cluster(&record);
                }
                Err(error)
            }
        }
    }

    /// The record of a new disk, at the root's owner.
    fn add_record(&self, new: &NewDisk) -> Result<DiskRecord> {
        new.check()?;
        self.shared.objects.pools.named(&new.pool)?;
        let _one_at_a_time = self.fileset_changes.lock();
        let root = self.root()?;
        let wanted = DiskRecord {
            pool: new.pool.clone(),
            group: new.group.clone(),
            ..DiskRecord::new(DiskId(0), &new.uuid, &new.location)
        };
        let record = root.add_disk_like(&wanted)?;
        if !record.is_expected() {
            return Err(FsError::Refused(format!("disk {} was taken away before", new.uuid)));
        }
        self.shared.fail_points.reach("disk.added")?;
        self.disks_changed()?;
        tracing::info!(
            uuid = record.uuid,
            location = record.location,
            pool = record.pool,
            "a disk was added"
        );
        Ok(record)
    }

    /// The records of the root's store, of which this node is the owner, have changed: acts on them, and tells everybody.
    pub(super) fn disks_changed(&self) -> Result<()> {
        if self.cluster.is_some() {
            self.act_on_disks()?;
            self.tell_of_disks();
        }
        Ok(())
    }

    /// As [`Namespace::disks_changed`]; the thread of the background tells the others.
    fn act_on_disks(&self) -> Result<()> {
        self.everybody_is_to_hear();
        // Of two changes at the same time the later one counts.
        let _one_at_a_time = self.refreshing.lock();
        self.adopt_disks(&self.root()?.identity().disks)
    }

    /// All other nodes must hear of the latest change.
    pub(super) fn everybody_is_to_hear(&self) {
        let Some(membership) = &self.cluster else { return };
        let all = membership.cluster().members().into_iter().map(|(node, _)| node);
        membership.unheard.lock().extend(all);
    }

    /// Tells those nodes of the latest change that have not heard of it, if this node owns the root. Whether all have heard.
    pub(super) fn tell_of_disks(&self) -> bool {
        let Some(membership) = &self.cluster else { return true };
        let _one_at_a_time = membership.telling.lock();
        let waiting = membership.unheard.lock().clone();
        if waiting.is_empty() {
            return true;
        }
        // One that is gone reads everything when it comes back.
        let members = membership.cluster().members();
        membership.unheard.lock().retain(|node| members.iter().any(|(there, _)| there == node));
        let tell_one = |node: NodeId, channel: &dyn Channel| {
            // A change that comes meanwhile is another one to hear of.
            membership.unheard.lock().remove(&node);
            if let Err(error) = tell(channel, Request::DisksChanged) {
                tracing::debug!(%node, error, "a node has not heard of a change of disks yet");
                membership.unheard.lock().insert(node);
            }
        };
        // All at once: one that is just mounting the file system answers late.
        std::thread::scope(|scope| {
            for (node, channel) in members.iter().filter(|(node, _)| waiting.contains(node)) {
                let tell_it = move || tell_one(*node, &**channel);
                let thread = std::thread::Builder::new().name("disks".to_owned());
                if let Err(error) = thread.spawn_scoped(scope, tell_it) {
                    tracing::debug!(%node, %error, "a node learns of a change of disks later");
                }
            }
        });
        membership.unheard.lock().is_empty()
    }

    /// Disks have come, changed or gone.
    pub(crate) fn hear_of_disks(&self) -> Result<()> {
        self.refresh()
    }

    /// Acts on what the root's store says of the disks.
    pub(super) fn adopt_disks(&self, records: &[DiskRecord]) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        self.disks.write().clone_from(&records.to_vec());
        for record in records {
            if let Some(known) = self.shared.objects.disks.called(&record.uuid) {
                self.use_as_recorded(known, record);
            }
        }
        // Before any of their records names a disk that is new.
        for partition in self.partitions() {
            // Those of the root are in force: they may be newer than these.
            let is_root = partition.number() == FilesetId::ROOT;
            if !is_root && partition.superblock_now().disks != records {
                partition.change_disks(BTreeMap::new(), |disks| {
                    *disks = records.to_vec();
                    Ok(())
                })?;
            }
        }
        membership.knows_disks.store(true, Ordering::Release);
        let is_new = |record: &&DiskRecord| {
            record.used != DiskUse::Removed
                && self.shared.objects.disks.called(&record.uuid).is_none()
        };
        records.iter().filter(is_new).try_for_each(|record| self.learn_disk(record))
    }

    /// As the store of a fileset has a disk that was just opened: it may be older than what is known here, or newer.
    pub(super) fn learn_of_store(&self, record: &DiskRecord) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        let Some(known) = self.shared.objects.disks.called(&record.uuid) else {
            return if record.used == DiskUse::Removed { Ok(()) } else { self.learn_disk(record) };
        };
        let is_known = membership.knows_disks.load(Ordering::Acquire);
        if !is_known && rank(record.used) > rank(known.used()) {
            self.use_as_recorded(known, record);
        }
        Ok(())
    }

    fn use_as_recorded(&self, disk: &FsDisk, record: &DiskRecord) {
        disk.set_pool(pool_of(&self.shared.objects.pools, record));
        disk.set_group(&record.group);
        let before = disk.used();
        if before == record.used || before == DiskUse::Removed {
            return;
        }
        disk.set_use(record.used);
        self.shared.objects.give_up_stock_of(disk.id);
        if record.used == DiskUse::Lost {
            self.partitions().iter().for_each(|partition| partition.let_go_of_all_on(disk.id));
        }
        if record.used == DiskUse::Removed && disk.is_near {
            disk.space.end_reserve(&*disk.disk);
            disk.disk.let_go();
            if let Some(membership) = &self.cluster {
                membership.cluster().let_disk_go(record);
            }
            self.forget_at_cluster(record);
        }
    }

    /// Can use a disk from now on.
    pub(super) fn learn_disk(&self, record: &DiskRecord) -> Result<()> {
        {
            let mut disks = self.disks.write();
            if !disks.iter().any(|known| known.id == record.id) {
                disks.push(record.clone());
                disks.sort_by_key(|known| known.id);
            }
        }
        // One at a time: the same disk must not become two.
        let _one_at_a_time = self.learning.lock();
        if self.shared.objects.disks.called(&record.uuid).is_some() {
            return Ok(());
        }
        let cluster = self.cluster.as_ref();
        let own = cluster.and_then(|membership| membership.coming.lock().remove(&record.uuid));
        let is_given = own.is_some();
        let found = match (own, cluster) {
            (Some(own), _) => own,
            (None, Some(membership)) => self.reached_by_its_node(membership, record),
            (None, None) => return Ok(()),
        };
        let pool = pool_of(&self.shared.objects.pools, record);
        let node = cluster.and_then(|membership| membership.cluster().node_of(&record.uuid));
        let is_near = is_given || super::shared_disks::reaches_itself(record, &*found);
        let disk = FsDisk::new(record, found, is_near, pool).of_node(node.map(|(node, _)| node));
        if disk.keeps_reserve() {
            disk.space.begin_reserve(&*disk.disk, self.shared.settings.disk_reserve.0);
        }
        self.shared.objects.add_disk(disk);
        Ok(())
    }

    /// A disk of another node. The cluster may tell a moment later than the root's owner which one has it.
    fn reached_by_its_node(&self, membership: &Membership, record: &DiskRecord) -> Arc<dyn Disk> {
        let absent = || -> Arc<dyn Disk> {
            let (uuid, location) = (&record.uuid, &record.location);
            Arc::new(forebay_disk::absent::AbsentDisk::new(uuid, location, "no node has it"))
        };
        let is_young = self.disks.read().iter().map(|disk| disk.id).max() == Some(record.id);
        for _ in 0..SIGHT_LOOKS_MAX {
            if let Some(found) = membership.cluster().disk(record) {
                return found;
            }
            if !is_young || !record.is_expected() {
                break;
            }
            std::thread::sleep(SIGHT_LOOK);
        }
        absent()
    }
}

/// What people are told.
impl Namespace {
    /// Objects on each disk, of the filesets of this node.
    fn own_counts(&self) -> Vec<(DiskId, u64)> {
        let mut all = BTreeMap::new();
        for partition in self.partitions() {
            for (disk, usage) in partition.usage_of_disks() {
                *all.entry(disk).or_insert(0) += usage.objects;
            }
        }
        all.into_iter().collect()
    }

    /// As [`Namespace::disk_status`]; in a cluster with their nodes and directories, whether these answer or not. The objects are those
    /// of the filesets of this node.
    #[must_use]
    pub fn placed_disk_status(&self) -> Vec<DiskStatus> {
        let mut all = self.disk_status();
        let Some(membership) = &self.cluster else { return all };
        for status in &mut all {
            let Some(disk) = self.shared.objects.disks.called(&status.uuid) else { continue };
            status.is_shared = disk.is_shared;
            if disk.is_shared {
                continue;
            }
            status.node = membership.cluster().node_of(&status.uuid).map(|(_, name)| name);
            let records = self.disks.read();
            if let Some(record) = records.iter().find(|record| record.id == disk.id) {
                status.location = record.shown_location(&records);
            }
        }
        all
    }

    /// The disks with what they hold; in a cluster with their nodes, and the objects of the filesets of all nodes.
    #[must_use]
    pub fn all_disk_status(&self) -> Vec<DiskStatus> {
        let mut all = self.disk_status();
        let Some(membership) = &self.cluster else { return all };
        let mut counts: BTreeMap<_, u64> = self.own_counts().into_iter().collect();
        let (answers, problems) = self.ask_all(&DiskOrder::Count);
        for answer in answers {
            let DiskAnswer::Counts(theirs) = answer else { continue };
            for (disk, count) in theirs {
                *counts.entry(disk).or_insert(0) += count;
            }
        }
        for status in &mut all {
            let Some(disk) = self.shared.objects.disks.called(&status.uuid) else { continue };
            status.objects_in_use = counts.get(&disk.id).copied().unwrap_or(0);
            // Other nodes tell objects alone.
            status.files = None;
            let records = self.disks.read();
            if let Some(record) = records.iter().find(|record| record.id == disk.id) {
                status.location.clone_from(&record.location);
            }
            status.node = membership.cluster().node_of(&status.uuid).map(|(_, name)| name);
            status.is_shared = disk.is_shared;
            let reached = disk.disk.capacity();
            status.problem = reached.err().map(|error| error.to_string());
            status.advice.extend(problems.iter().map(|why| {
                format!("OBJECTS does not count the files of filesets of a node that does not answer ({why})")
            }));
        }
        all
    }
}
