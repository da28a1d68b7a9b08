//! Owners that change while the namespace is at work: a fileset is handed over in order, taken over, fenced, or has its
//! requests wait while it is not sure whether this node may answer.

use std::time::Duration;

use std::sync::Arc;

use forebay_base::time::look_until;
use forebay_base::{Channel, Epoch, FilesetId, Ino, NodeId};

use super::Namespace;
use super::cluster::{Ahead, Membership, Whose};
use crate::error::{FsError, Result};
use crate::owner::Owner;
use crate::partition::Partition;
use crate::recovery::read_ahead;
use crate::remote::{Answer, Request, tell};

/// How often a handover looks whether a fileset is still in use, and the pause before it looks again.
const ENDS_LOOKS: u32 = 26;
/// See [`ENDS_LOOKS`].
const ENDS_PAUSE: Duration = Duration::from_millis(20);

/// How often a node that has opened a store ahead looks whether it is the owner by now, and the pause before it looks again.
const AHEAD_LOOKS: u32 = 100;
/// See [`AHEAD_LOOKS`].
const AHEAD_PAUSE: Duration = Duration::from_millis(100);

/// What becomes of open files that cannot be taken along: those that programs of this node read and write on the direct
/// path, files without a name, and locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// The fileset stays where it is.
    Refuse,
    /// They are stale from then on, and with them every handle of the fileset, as after a crash. Nothing that was written
    /// is lost.
    Abandon,
}

/// The node that is to own a fileset next.
struct Next {
    fileset: FilesetId,
    node: NodeId,
    channel: Arc<dyn Channel>,
}

impl Next {
    fn find(membership: &Membership, fileset: FilesetId, node: NodeId) -> Option<Next> {
        let members = membership.cluster().members();
        let (_, channel) = members.into_iter().find(|(member, _)| *member == node)?;
        Some(Next { fileset, node, channel })
    }

    /// Has it read ahead, and waits until it has. It does without if it does not answer.
    fn expects(&self) {
        self.tell(Request::Expect { fileset: self.fileset });
    }

    /// Has it open the store, which is closed here, while it becomes the owner. Nothing waits for it.
    fn opens_ahead(self, epoch: Epoch) {
        let request = Request::OpenAhead { fileset: self.fileset, epoch };
        let telling = move || self.tell(request);
        if let Err(error) = std::thread::Builder::new().name("next".to_owned()).spawn(telling) {
            tracing::debug!(%error, "the next owner opens the store when it is the owner");
        }
    }

    fn tell(&self, request: Request) {
        if let Err(error) = tell(&*self.channel, request) {
            let (fileset, node) = (self.fileset, self.node);
            tracing::debug!(%fileset, %node, error, "the next owner could do nothing ahead");
        }
    }
}

impl Namespace {
    /// Gives up a fileset in order: requests wait, everything is committed and synced, and the store is closed. From then
    /// on requests wait until [`Namespace::owner_changed`] is called. Of a fileset that is not this node's nothing is
    /// done.
    ///
    /// # Errors
    /// [`FsError::Refused`] if something cannot be taken along; what store and disks say. The fileset stays then.
    pub fn hand_over(&self, id: FilesetId, how: HandOver) -> Result<()> {
        self.hand_over_to(id, how, None)
    }

    /// As [`Namespace::hand_over`], where it is known who comes next: that node reads ahead while this one still answers.
    ///
    /// # Errors
    /// As [`Namespace::hand_over`].
    pub fn hand_over_to(&self, id: FilesetId, how: HandOver, next: Option<NodeId>) -> Result<()> {
        let Some(membership) = &self.cluster else {
            return Err(FsError::Refused("this file system is not part of a cluster".to_owned()));
        };
        let known = self.catalogue.get(id).ok_or(FsError::Stale)?;
        let _one_at_a_time = known.opening.lock();
        // Nothing of the way to it may be held while it is waited for that nobody is on it.
        let current = self.shared.owners.find(id).map(|route| Owner::clone(&route));
        match current {
            Some(Owner::Local(partition)) => {
                self.hand_over_partition(membership, &partition, how, next)
            }
            Some(Owner::Native(_)) => {
                Err(FsError::Refused("a native fileset stays on the node of its disk".to_owned()))
            }
            Some(Owner::Remote(_)) => Ok(()),
            None => {
                if matches!(membership.whose(id), Whose::Here(_)) {
                    membership.released.lock().insert(id);
                }
                Ok(())
            }
        }
    }

    fn hand_over_partition(
        &self,
        membership: &Membership,
        partition: &Arc<Partition>,
        how: HandOver,
        next: Option<NodeId>,
    ) -> Result<()> {
        let id = partition.number();
        if how == HandOver::Refuse {
            self.await_ends(partition)?;
        }
        self.let_names_lapse(partition);
        let next = next.and_then(|node| Next::find(membership, id, node));
        if let Err(error) = self.do_ahead(partition, next.as_ref()) {
            self.stay(partition);
            return Err(error);
        }
        // While reads are still answered: other nodes may need them to give back what they cache.
        let recalling = self.instant();
        let granting = partition.granting();
        granting.iter().for_each(|granting| granting.settle());
        let recalled_ms = self.since(recalling).as_millis();
        let begun = self.instant();
        partition.gate().wait();
        self.shared.owners.drain();
        let idle_ms = self.since(begun).as_millis();
        if let Err(error) = self.make_ready(partition, how) {
            self.stay(partition);
            return Err(error);
        }
        let ready_ms = self.since(begun).as_millis();
        membership.released.lock().insert(id);
        self.shared.owners.set(id, None);
        // Closes pass no gate: those under way end first, those that come wait for this to end.
        self.shared.owners.drain();
        let open_files = membership.open_files(id);
        match how {
            HandOver::Refuse => {
                open_files.take_over(partition.latest_crash(), partition.own_handles());
            }
            HandOver::Abandon => open_files.lose(),
        }
        self.end_use(partition, FsError::Moved);
        let closed = partition.close_store();
        let closed_ms = self.since(begun).as_millis();
        self.shared.fail_points.reach("handover.closed")?;
        if let (Ok(()), Some(next)) = (&closed, next) {
            next.opens_ahead(partition.epoch().next());
        }
        self.forget_partition(partition);
        let waited_ms = self.since(begun).as_millis();
        tracing::info!(fileset = %id, recalled_ms, idle_ms, ready_ms, closed_ms, waited_ms, "handed over");
        closed
    }

    /// This node is to own a fileset next that another one still answers for: reads ahead what can be read ahead, and changes nothing.
    ///
    /// # Errors
    /// What the store says: opening then takes longer.
    pub(crate) fn expect(&self, id: FilesetId) -> Result<()> {
        self.know(id)?;
        Ok(self.stores.expect(id)?)
    }

    /// The owner of a fileset has closed its store, and is naming this node the owner in `epoch`: opens the store meanwhile. Returns
    /// when this node is the owner, or is not after a while; then it closes the store again.
    ///
    /// # Errors
    /// What opening says.
    pub(crate) fn open_ahead(&self, id: FilesetId, epoch: Epoch) -> Result<Answer> {
        let (Some(membership), Some(known)) = (&self.cluster, self.catalogue.get(id)) else {
            return Err(FsError::Stale);
        };
        membership.ahead.lock().insert(id, Ahead { epoch, store: None });
        let opened = {
            // Whoever opens it as the owner waits for this.
            let _one_at_a_time = known.opening.lock();
            let opened = self.stores.open_ahead(id, epoch);
            // Gone from there if the owner was quicker.
            if let Ok(Some(store)) = &opened {
                if let Some(ahead) = membership.ahead.lock().get_mut(&id) {
                    ahead.store = Some(Arc::clone(store));
                }
                read_ahead(&**store);
            }
            opened.map(drop)
        };
        let opened = opened
            .map_err(FsError::from)
            .and_then(|()| Ok(self.shared.fail_points.reach("ahead.opened")?));
        if opened.is_ok() {
            look_until(AHEAD_LOOKS, AHEAD_PAUSE, || !membership.is_coming(id));
        }
        membership.ahead.lock().remove(&id);
        opened.map(|()| Answer::Done)
    }

    /// A partition is answered for here as before.
    fn stay(&self, partition: &Partition) {
        partition.gate().open();
        partition.lapse_names(false);
        partition.granting().iter().for_each(|granting| granting.resume());
    }

    /// Does most of what [`Namespace::make_ready`] does, while requests are still answered: only what comes after it is left to
    /// be done while they wait. An error counts: a disk tells once that it has lost bytes.
    fn do_ahead(&self, partition: &Partition, next: Option<&Next>) -> Result<()> {
        partition.commit()?;
        partition.sweep()?;
        partition.shorten_log()?;
        self.shared.objects.finish_reclaim();
        self.shared.objects.sync_disks()?;
        if let Some(next) = next {
            next.expects();
        }
        Ok(self.shared.fail_points.reach("handover.expected")?)
    }

    /// Brings everything to where the next owner finds it.
    fn make_ready(&self, partition: &Partition, how: HandOver) -> Result<()> {
        if how == HandOver::Abandon {
            partition.commit()?;
            self.shared.objects.finish_reclaim();
            return self.shared.objects.sync_disks();
        }
        self.check_ties(partition)?;
        let is_clean = partition.settle()?;
        self.shared.objects.sync_disks()?;
        if is_clean { partition.mark_clean(false) } else { Ok(()) }
    }

    /// Refuses the handover of a fileset that is in use, before it costs anything. The kernel tells of the end of a handle after close(2)
    /// has returned: it is waited for a little.
    fn await_ends(&self, partition: &Partition) -> Result<()> {
        let mut ties = Ok(());
        look_until(ENDS_LOOKS, ENDS_PAUSE, || {
            ties = self.check_ties(partition);
            ties.is_ok()
        });
        ties
    }

    /// Refuses what cannot be taken along.
    fn check_ties(&self, partition: &Partition) -> Result<()> {
        let (direct, nameless) = partition.ties();
        let locks = usize::from(!self.locks.is_empty(partition.number()));
        if direct + nameless + locks == 0 {
            return Ok(());
        }
        Err(FsError::Refused(format!(
            "fileset {} is in use: {direct} files are open on the direct path by programs of this node, \
             {nameless} removed files are open, {} held; close them, or move the fileset by force (forebay fileset owner NAME --move NODE --force)",
            partition.number(),
            if locks > 0 { "locks are" } else { "no locks are" },
        )))
    }

    /// Ends the use of a partition that has no route any more.
    fn part_with(&self, partition: &Partition, why: FsError) -> Result<()> {
        self.end_use(partition, why);
        self.forget_partition(partition);
        partition.close_store()
    }

    /// Nobody needs the store of a partition any more.
    fn end_use(&self, partition: &Partition, why: FsError) {
        let id = partition.number();
        if id == FilesetId::ROOT {
            // Its next owner goes on with them.
            self.drop_tasks();
        }
        self.locks.close(id, why.clone());
        partition.gate().close(why);
        partition.let_go();
    }

    /// Forgets what nodes and kernel hold of a partition that is used no more.
    fn forget_partition(&self, partition: &Partition) {
        let id = partition.number();
        self.shared.clients.forget_fileset(id);
        self.tell_kernel_of_all(id);
        self.shared.inodes.forget_fileset(id);
    }

    /// The cluster says that a fileset has another owner, or none, or this node: requests go there from now on. Where
    /// this node was the owner and is not any more, or not in the same epoch, it is fenced.
    ///
    /// # Errors
    /// What opening says, where this node is the owner now: the next request tries again.
    pub fn owner_changed(&self, id: FilesetId) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        membership.released.lock().remove(&id);
        let whose = self.whose(membership, id);
        let current = self.shared.owners.find(id).map(|route| Owner::clone(&route));
        match (&current, &whose) {
            (Some(Owner::Local(partition)), Whose::Here(epoch))
                if epoch.is_none_or(|epoch| epoch == partition.epoch()) =>
            {
                partition.gate().open();
            }
            (Some(Owner::Local(_)), _) => self.fence(id, &FsError::Moved),
            (Some(Owner::Remote(remote)), Whose::There(node, _)) if *node == remote.node() => {}
            (Some(Owner::Remote(remote)), _) => self.leave_remote(id, remote),
            (Some(Owner::Native(_)), Whose::Here(_)) | (None, _) => {}
            (Some(Owner::Native(_)), _) => self.shared.owners.set(id, None),
        }
        membership.note_change();
        if matches!(whose, Whose::Here(_)) && current.is_some() {
            drop(self.opened(id)?);
        }
        Ok(())
    }

    /// Stops answering for a fileset at once: what was not committed is lost, and every handle is stale. The kernel
    /// forgets what it cached.
    pub fn fence(&self, id: FilesetId, why: &FsError) {
        let Some(membership) = &self.cluster else { return };
        let Some(Owner::Local(partition)) =
            self.shared.owners.find(id).map(|route| Owner::clone(&route))
        else {
            return;
        };
        partition.gate().close(why.clone());
        if self.shared.lease.as_ref().is_some_and(|lease| lease.lasts()) {
            self.let_names_lapse(&partition);
        }
        self.locks.close(id, FsError::Stale);
        let known = self.catalogue.get(id);
        let _one_at_a_time = known.as_ref().map(|known| known.opening.lock());
        self.shared.owners.set(id, None);
        self.shared.owners.drain();
        membership.open_files(id).lose_with_names(partition.uncommitted_directories());
        tracing::error!(fileset = %id, %why, "fenced: another node owns the fileset, or may own it");
        if let Err(error) = self.part_with(&partition, why.clone()) {
            tracing::warn!(fileset = %id, %error, "the store of a fenced fileset was not closed in order");
        }
    }

    /// Has the requests of all filesets of this node wait: it is not sure that it may answer.
    pub fn pause(&self) {
        self.answer_until(Some(Duration::ZERO));
    }

    /// Lets requests pass again that [`Namespace::pause`] has wait.
    pub fn resume(&self) {
        self.answer_until(None);
    }

    /// The filesets of this node may answer until then (exclusive), by [`Clock::boottime`](forebay_base::Clock::boottime);
    /// for ever with `None`. Requests that come later wait, whether or not a thread of this process runs in time.
    pub fn answer_until(&self, until: Option<Duration>) {
        if let Some(lease) = &self.shared.lease {
            lease.set(until);
        }
    }

    /// Closes the gate of a fileset that another node owns by now; waits for nothing. [`Namespace::owner_changed`] does the
    /// rest.
    pub fn shut(&self, id: FilesetId) {
        if let Some(Owner::Local(partition)) = self.shared.owners.find(id).as_deref() {
            partition.gate().close(FsError::Moved);
        }
    }

    /// The filesets that this node owns and has open.
    #[must_use]
    pub fn own_filesets(&self) -> Vec<FilesetId> {
        self.partitions().iter().map(|partition| partition.number()).collect()
    }

    /// Empties out a fileset that is to be removed and lets it go, at its owner. Returns the least numbers of inodes and
    /// objects that it never used.
    ///
    /// # Errors
    /// [`FsError::Refused`] if it holds files, or files are open; [`FsError::Moved`] if it is not this node's.
    pub(crate) fn retire(&self, id: FilesetId, name: &str) -> Result<(u64, u64)> {
        drop(self.own(Ino::top_of(id))?);
        let known = self.catalogue.get(id).ok_or(FsError::Stale)?;
        if known.seat().is_some() {
            self.retire_native(&known)?;
            return Ok((0, 0));
        }
        let _one_at_a_time = known.opening.lock();
        let current = self.shared.owners.find(id).map(|route| Owner::clone(&route));
        let Some(Owner::Local(partition)) = current else { return Err(FsError::Moved) };
        self.let_names_lapse(&partition);
        partition.granting().iter().for_each(|granting| granting.settle());
        partition.gate().wait();
        self.shared.owners.drain();
        if let Err(error) = self.empty_out(&partition, name) {
            self.stay(&partition);
            return Err(error);
        }
        let unused = partition.unused_numbers();
        self.shared.owners.set(id, None);
        self.part_with(&partition, FsError::Stale)?;
        Ok(unused)
    }
}
