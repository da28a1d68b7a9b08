//! Commits, the threads of the background, and the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_base::FilesetId;

use super::{Fileset, Namespace};
use crate::error::{FsError, Result};
use crate::partition::Partition;
use crate::record::MountState;
use crate::recovery::read_superblock;
use crate::remote::REPORT_DELAY;
use crate::shared::Waking;

/// Longest time until a new owner knows what programs of this node have open.
const TELLING_MAX: Duration = Duration::from_secs(1);

/// How long a report that an owner did not answer rests.
const REPORT_PAUSE: Duration = Duration::from_millis(500);

/// The first error of several things that are all done.
fn first_error(outcomes: impl Iterator<Item = Result<()>>) -> Result<()> {
    outcomes.fold(Ok(()), Result::and)
}

impl Namespace {
    /// Makes everything done so far durable in every fileset, apart from the contents of files.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`], [`FsError::Fenced`]; the changes stay pending and are
    /// committed later if that becomes possible. What can be committed is.
    pub fn commit(&self) -> Result<()> {
        first_error(self.partitions().iter().map(|partition| partition.commit()))
    }

    /// Commits everything done so far, and makes the disks durable.
    ///
    /// # Errors
    /// As [`Namespace::commit`].
    pub fn sync_all(&self) -> Result<()> {
        let reported = self.report_all();
        self.commit()?;
        reported?;
        self.shared.objects.sync_disks()
    }

    /// As [`Namespace::sync_all`], for programs: they are told once if anything is lost that this node has changed of filesets of other
    /// nodes.
    ///
    /// # Errors
    /// As [`Namespace::sync_all`], and [`FsError::Stale`](crate::FsError::Stale) for what is lost.
    pub fn sync_for_programs(&self) -> Result<()> {
        self.sync_all()?;
        let lost = self.cluster.as_ref().is_some_and(|membership| membership.tell_of_any_loss());
        if lost { Err(crate::error::FsError::Stale) } else { Ok(()) }
    }

    /// Tells the owners of filesets what this node has done by itself in directories that are delegated to it.
    ///
    /// # Errors
    /// Why one of them does not know it.
    pub fn report_all(&self) -> Result<()> {
        first_error(self.shared.owners.remote().iter().map(|remote| remote.report()))
    }

    /// Reports a little after each first change.
    fn run_reports(&self) {
        let Some(membership) = &self.cluster else { return };
        while !self.shared.bell.is_stopping() {
            membership.reports.wait();
            self.shared.bell.wait_for_stop(REPORT_DELAY);
            if let Err(error) = self.report_all() {
                tracing::debug!(%error, "an owner does not know yet what was done here");
                self.shared.bell.wait_for_stop(REPORT_PAUSE);
                membership.reports.ring();
            }
        }
    }

    /// Whether [`Namespace::after_request`] has something to do. Takes no lock, whatever the number of filesets.
    #[must_use]
    pub fn is_over_limits(&self) -> bool {
        self.shared.crowd.is_raised() || self.shared.open_to_close() > 0
    }

    /// What the front end calls after each request, with no locks held: keeps uncommitted changes and
    /// open objects within their bounds.
    pub fn after_request(&self) {
        let open = self.shared.open_to_close();
        if open > self.shared.settings.open_objects_max {
            self.shared.close_idle_objects();
        } else if open > 0 && self.shared.objects.in_background() {
            self.shared.bell.ring();
        }
        if self.shared.crowd.lower() {
            self.partitions().iter().for_each(|partition| partition.relieve());
        }
    }

    /// Looks for the paths of files that were found damaged.
    pub fn name_damaged_files(&self) {
        self.name_damaged(&self.partitions());
    }

    fn name_damaged(&self, partitions: &[Arc<Partition>]) {
        for partition in partitions {
            if let Some(fileset) = self.catalogue.get(partition.number()) {
                partition.name_damaged(&fileset.settings().name);
            }
        }
    }

    /// Body of the commit thread, until [`Background::stop`].
    fn run_commits(&self) {
        let (bell, interval) = (&self.shared.bell, self.shared.settings.commit_interval);
        let mut last_round = self.shared.clock.instant();
        loop {
            let waking = bell.wait(interval);
            if waking == Waking::Stop {
                return;
            }
            let now = self.shared.clock.instant();
            // Those who ring often must not keep the others from their turn.
            let is_round =
                waking == Waking::Interval || now.saturating_duration_since(last_round) >= interval;
            if is_round {
                last_round = now;
            }
            let due: Vec<Arc<Partition>> = self
                .partitions()
                .into_iter()
                .filter(|partition| is_round || partition.is_commit_wanted())
                .collect();
            for partition in &due {
                let _ = partition.commit();
            }
            self.shared.close_idle_objects();
            // Not before: requests that come during the commit ask for one more if they need it.
            bell.quiet();
            self.name_damaged(&due);
            due.iter().for_each(|partition| partition.commit_came());
            if self.partitions().iter().any(|partition| partition.is_commit_wanted()) {
                // It came while others were committed, when the bell was rung already.
                bell.ring();
            }
            self.shared.restore_reserves();
            self.shared.objects.look_at_space();
        }
    }

    /// Tells other owners what the kernel has forgotten, where no request does for long: a removed file keeps its bytes
    /// until then.
    fn run_telling(&self) {
        let interval = self.shared.settings.commit_interval.min(TELLING_MAX);
        while !self.shared.bell.is_stopping() {
            self.shared.bell.wait_for_stop(interval);
            self.open_again_at_new_owners();
            for remote in self.shared.owners.remote() {
                remote.return_unused_numbers();
                remote.tell_forgotten();
            }
        }
    }

    /// Starts the threads that commit, supply, reclaim, and sweep and close filesets.
    ///
    /// # Errors
    /// [`FsError::Io`] if the system gives no threads.
    pub fn start_background(self: &Arc<Namespace>) -> Result<Background> {
        self.shared.objects.start();
        self.start_recalls();
        self.start_partial_recalls();
        self.start_visits();
        let mut threads = Vec::new();
        let mut start = |name: &str, body: fn(&Namespace)| -> Result<()> {
            let namespace = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || body(&namespace))
                .map_err(|error| FsError::Io(format!("cannot start a thread: {error}")))?;
            threads.push(thread);
            Ok(())
        };
        start("commit", Namespace::run_commits)?;
        start("supply", |namespace| {
            namespace.shared.objects.run_supply(namespace.shared.settings.spare_objects);
        })?;
        start("reclaim", |namespace| namespace.shared.objects.run_reclaim())?;
        if self.cluster.is_some() {
            start("forgotten", Namespace::run_telling)?;
            start("reports", Namespace::run_reports)?;
        }
        start("tasks", Namespace::run_tasks)?;
        start("copies", Namespace::run_copies)?;
        start("filesets", |namespace| {
            if let Err(error) = namespace.sweep() {
                tracing::warn!(%error, "the sweep after the crash did not finish");
            }
            namespace.run_rests();
        })?;
        Ok(Background { namespace: Arc::clone(self), threads })
    }

    /// Removes objects that no record refers to, in every fileset whose last owner crashed; those that are not open
    /// are opened for it.
    ///
    /// # Errors
    /// What a store or a disk says; what was not swept is at the next mount. A fileset that cannot be opened keeps
    /// its objects, and is no error here.
    pub fn sweep(&self) -> Result<()> {
        if self.others_unswept.load(Ordering::Acquire) {
            let mut all_opened = true;
            for fileset in self.catalogue.list() {
                if self.crashed(&fileset)
                    && let Err(error) = self.open_fileset(fileset.id)
                {
                    let name = fileset.settings().name;
                    tracing::warn!(fileset = name, %error, "not swept: the fileset cannot be opened");
                    all_opened = false;
                }
            }
            self.others_unswept.store(!all_opened, Ordering::Release);
        }
        first_error(self.partitions().iter().map(|partition| {
            if self.cluster.is_none() {
                partition.finish_snapshots()?;
            }
            partition.sweep()
        }))
    }

    /// As [`Namespace::sweep`], of one fileset, which is opened for it. Others may be swept at the same time.
    ///
    /// # Errors
    /// As [`Namespace::sweep`]; [`FsError::Stale`] if there is no such fileset.
    pub fn sweep_fileset(&self, id: FilesetId) -> Result<()> {
        self.open_fileset(id)?.sweep()
    }

    /// Whether the last owner of a fileset that is not open crashed.
    fn crashed(&self, fileset: &Fileset) -> bool {
        // Whoever opens it meanwhile would find the store in use.
        let _not_opened = fileset.opening.lock();
        if self.shared.owners.find(fileset.id).is_some() || fileset.rested_in().is_some() {
            return false;
        }
        let store = self.stores.look(fileset.id).map_err(FsError::from);
        let superblock = store.and_then(|store| read_superblock(&*store));
        superblock
            .is_ok_and(|superblock| superblock.state == MountState::Mounted || superblock.sweep_due)
    }

    /// Commits everything, syncs the disks and marks each fileset clean, unless its files are still being
    /// written. No request may be under way, and the background threads must have ended.
    ///
    /// # Errors
    /// What a store or a disk says: that fileset, and with it the file system, then counts as crashed, unless all
    /// that failed was the end of a store's engine. The stores cannot be used after this.
    pub fn close(&self) -> Result<()> {
        // What is wrong with a fileset shows when that is settled.
        let _ = self.sweep();
        let partitions = self.partitions();
        let mut outcome = Ok(());
        let mut settled: Vec<(&Arc<Partition>, bool)> = Vec::new();
        for partition in &partitions {
            match partition.settle() {
                Ok(can_be_clean) => settled.push((partition, can_be_clean)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let mut all_clean = outcome.is_ok();
        let synced = self.shared.objects.sync_disks();
        let synced = synced.and_then(|()| Ok(self.shared.fail_points.reach("close.synced")?));
        if synced.is_err() {
            settled.clear();
        } else {
            outcome = outcome.and(self.mark_rested());
            all_clean &= outcome.is_ok();
        }
        outcome = outcome.and(synced);
        // The root fileset comes last: it says that the whole is clean.
        settled.sort_by_key(|(partition, _)| partition.number() == FilesetId::ROOT);
        for (partition, can_be_clean) in settled {
            let is_root = partition.number() == FilesetId::ROOT;
            all_clean &= can_be_clean;
            if !can_be_clean {
                tracing::warn!(
                    fileset = %partition.number(),
                    "programs are still writing: the next mount compares the sizes of their files"
                );
            }
            if !can_be_clean || (is_root && !all_clean) {
                continue;
            }
            let others = is_root && self.others_unswept.load(Ordering::Acquire);
            let marked = partition.mark_clean(others);
            all_clean &= marked.is_ok();
            outcome = outcome.and(marked);
        }
        partitions.iter().for_each(|partition| partition.let_go());
        if let Err(error) = self.report_all() {
            tracing::error!(%error, "what this node did in directories that are delegated to it is lost");
        }
        self.shared.owners.remote().iter().for_each(|remote| remote.return_numbers());
        self.let_go_of_all();
        // Whatever came before: the engines are not to be ended in silence.
        let closed = first_error(partitions.iter().map(|partition| partition.close_store()));
        outcome.and(closed)
    }
}

/// The running threads of a file system.
pub struct Background {
    namespace: Arc<Namespace>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Ends the threads and waits for them.
    pub fn stop(self) {
        self.namespace.shared.bell.stop();
        self.namespace.shared.objects.stop();
        self.namespace.stop_tasks();
        self.namespace.stop_recalls();
        self.namespace.stop_partial_recalls();
        self.namespace.stop_visits();
        if let Some(membership) = &self.namespace.cluster {
            membership.reports.ring();
            membership.blocks.stop();
        }
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}
