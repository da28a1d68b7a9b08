//! Policies at work: looking at all inodes, and moving the files that rules choose.

use std::collections::{BTreeSet, HashMap};

use forebay_base::{DiskId, FilesetId, Ino, Timestamp};

use super::Namespace;
use super::moves::{Course, Pass, Snapshots};
use super::tasks::{Task, Turn};
use crate::error::{FsError, Result};
use crate::grants::{Changer, Touched};
use crate::inode::State;
use crate::key::{self, Key};
use crate::object::FsDisk;
use crate::partition::Partition;
use crate::policy::pick::{Choice, Chosen, LISTED_MAX, Named, Picker, Seen};
use crate::policy::{Migrate, Place, Policy, PolicyReport, RuleReport};
use crate::record::{EntryRecord, InodeRecord, Kind, Placement, decode, encode};
use crate::recovery::scan_prefix;
use crate::remote::disk_orders::{DiskAnswer, DiskOrder};
use crate::stale::Stale;
use crate::tasks::Work;
use crate::tasks::balance::Fill;

/// Bytes that the removal of a file counts for in the speed of a task.
const REMOVAL_COST: u64 = 4096;

/// The fill of a rule that moves nothing: no pool is above it.
const NEVER: (u64, u64) = (100, 100);

/// What the rules of a policy have chosen.
struct Found {
    place: Vec<Choice>,
    migrate: Vec<Choice>,
    premigrate: Vec<Choice>,
    list: Vec<Choice>,
    delete: Vec<Choice>,
    inodes: u64,
    /// Where it has looked.
    filesets: BTreeSet<FilesetId>,
}

impl Namespace {
    /// What a policy would move and list now, and why.
    ///
    /// # Errors
    /// [`FsError::Refused`] for pools and filesets that there are not, and in a cluster for rules about the fill of a pool, or
    /// if a node does not answer; what a store says.
    pub fn look_at_policy(&self, policy: &Policy) -> Result<PolicyReport> {
        self.check_policy(policy)?;
        let mut report = self.look_at_own(policy)?;
        let (answers, problems) = self.ask_all(&DiskOrder::LookAtPolicy(policy.into()));
        if let Some(problem) = problems.first() {
            return Err(FsError::Refused(format!(
                "the filesets of a node cannot be looked at: {problem}"
            )));
        }
        for answer in answers {
            let DiskAnswer::Policy(theirs) = answer else { continue };
            report.inodes += theirs.inodes;
            for (rule, more) in report.rules.iter_mut().zip(theirs.rules) {
                if rule.files == 0 {
                    rule.reason = more.reason;
                }
                rule.files += more.files;
                rule.bytes += more.bytes;
                rule.paths.extend(more.paths);
                rule.paths.truncate(LISTED_MAX);
            }
        }
        Ok(report)
    }

    /// As [`Namespace::look_at_policy`], of the filesets of this node.
    pub(super) fn look_at_own(&self, policy: &Policy) -> Result<PolicyReport> {
        let begun = self.shared.clock.instant();
        let found = self.choose(policy, &BTreeSet::new())?;
        let took = self.shared.clock.instant().saturating_duration_since(begun);
        let mut rules = Vec::new();
        for (rule, choice) in policy.place.iter().zip(found.place) {
            rules.push(self.report_of(&rule.name, "place", choice));
        }
        for (rule, choice) in policy.migrate.iter().zip(found.migrate) {
            rules.push(self.report_of(&rule.name, "migrate", choice));
        }
        for (rule, choice) in policy.premigrate.iter().zip(found.premigrate) {
            rules.push(self.report_of(&rule.name, "premigrate", choice));
        }
        for (rule, choice) in policy.delete.iter().zip(found.delete) {
            rules.push(self.report_of(&rule.name, "delete", choice));
        }
        for (rule, choice) in policy.list.iter().zip(found.list) {
            rules.push(self.report_of(&rule.name, "list", choice));
        }
        Ok(PolicyReport { rules, inodes: found.inodes, seconds: took.as_secs_f64() })
    }

    /// Begins to move files as a policy says, in the background; returns the number of the task.
    ///
    /// # Errors
    /// As [`Namespace::look_at_policy`]; [`FsError::Refused`] if it moves nothing, or is at work already.
    pub fn run_policy(&self, policy: &Policy) -> Result<u64> {
        let policy = &policy.as_task();
        self.check_policy(policy)?;
        if let Some(answer) = self.order_at_root(&DiskOrder::RunPolicy(policy.into()))? {
            return answer.begun();
        }
        if !policy.changes_anything() {
            return Err(FsError::Refused(
                "the policy has no rules that move or remove files: --dry-run shows what its rules list".to_owned(),
            ));
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let work = Work::Policy { policy: policy.clone() };
        if let Some(number) = self.unfinished_task(&work) {
            return Err(FsError::Refused(format!("task {number} carries this policy out already")));
        }
        let (number, task) = self.new_task(&work);
        let changes = [(key::task(number), Some(encode(&task)))].into();
        self.root()?.change_disks(changes, |_| Ok(()))?;
        self.shared.fail_points.reach("policy.begun")?;
        self.add_task(number, task);
        Ok(number)
    }

    /// A policy that makes room in pools which are as full now as its rules say; none if no pool is. Other rules of it move and remove
    /// nothing then, but the first one that matches a file still decides.
    #[must_use]
    pub fn rules_of_full_pools(&self, policy: &Policy) -> Option<Policy> {
        let is_full = |rule: &Migrate| {
            rule.fill.is_some_and(|(above, _)| self.percent_of(&rule.from) > u128::from(above))
        };
        let mut migrate = policy.migrate.clone();
        let mut some_are = false;
        for rule in &mut migrate {
            if is_full(rule) {
                some_are = true;
            } else {
                rule.fill = Some(NEVER);
            }
        }
        some_are.then(|| Policy { migrate, ..Policy::default() })
    }

    fn check_policy(&self, policy: &Policy) -> Result<()> {
        if self.cluster.is_some() {
            // Others may have added pools.
            self.refresh()?;
        }
        policy.pools().try_for_each(|pool| self.check_pool(pool))?;
        policy.place.iter().try_for_each(|rule| self.check_place(rule))?;
        for rule in &policy.premigrate {
            self.alone("a [[premigrate]] rule")?;
            self.check_pool_of_archives(&rule.to)?;
        }
        policy.filesets().try_for_each(|name| self.check_known(name))
    }

    /// Makes sure that there is a fileset, whose files are known here.
    fn check_known(&self, name: &str) -> Result<()> {
        let name = if name.is_empty() { "/" } else { name };
        if self.fileset_named(name)?.settings().placement == Placement::Native {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is native, so its files are not known here: rules are for direct and served filesets"
            )));
        }
        Ok(())
    }

    /// Whether new files can be placed by a rule.
    fn check_place(&self, rule: &Place) -> Result<()> {
        self.alone("a [[place]] rule")?;
        self.check_pool_of_files(&rule.to)?;
        if let Some(name) = &rule.filter.fileset {
            self.check_known(name)?;
        }
        Ok(())
    }

    /// Has the bytes of new files lie in pools as rules say, from now on and instead of what rules said before. Returns why some
    /// of them are ignored.
    pub fn place_files(&self, rules: &[Place]) -> Vec<String> {
        let (mut used, mut faults) = (Vec::new(), Vec::new());
        for rule in rules {
            match self.check_place(rule) {
                Ok(()) => used.push(rule.clone()),
                Err(error) => faults.push(format!("rule \"{}\": {error}", rule.name)),
            }
        }
        self.shared.objects.pools.set_places(used);
        let _no_other_change = (self.fileset_changes.lock(), self.refreshing.lock());
        self.act_on_settings();
        faults
    }

    fn report_of(&self, rule: &str, kind: &str, choice: Choice) -> RuleReport {
        let (files, bytes, reason) = (choice.count, choice.bytes, choice.reason.clone());
        let shown: Vec<Ino> =
            choice.into_files().iter().take(LISTED_MAX).map(|file| file.ino).collect();
        let mut names = self.paths_of(&shown);
        let paths = shown.iter().filter_map(|ino| names.remove(ino)).collect();
        RuleReport { rule: rule.to_owned(), kind: kind.to_owned(), reason, files, bytes, paths }
    }

    /// Looks at all inodes of all filesets, in a cluster of those of this node, but for some.
    fn choose(&self, policy: &Policy, but: &BTreeSet<FilesetId>) -> Result<Found> {
        self.open_all()?;
        self.commit()?;
        let records = self.disks.read().clone();
        let pools: HashMap<DiskId, String> =
            records.iter().map(|disk| (disk.id, disk.pool.clone())).collect();
        let mut fills = Vec::new();
        let filling = |disk: &&FsDisk| disk.takes_new() && !disk.is_archive();
        for disk in self.shared.objects.disks.all().filter(filling) {
            let capacity = match self.shared.objects.observe(disk.id, disk.disk.capacity()) {
                // Its node does not answer.
                Err(_) if self.cluster.is_some() => continue,
                capacity => capacity?,
            };
            fills.push(Fill {
                disk: disk.id,
                total_bytes: capacity.total_bytes,
                used_bytes: capacity.total_bytes.saturating_sub(capacity.available_bytes),
            });
        }
        let archives = self.archive_pools();
        let now = self.shared.clock.now();
        let mut picker = Picker::new(policy, &pools, (&fills, &archives), now);
        let mut filesets = BTreeSet::new();
        for fileset in self.filesets_here() {
            if !but.contains(&fileset.id) {
                let partition = self.open_fileset(fileset.id)?;
                partition.show_inodes(policy, &fileset.settings().name, &mut picker)?;
                filesets.insert(fileset.id);
            }
        }
        let Picker { place, migrate, premigrate, list, delete, inodes, .. } = picker;
        Ok(Found { place, migrate, premigrate, list, delete, inodes, filesets })
    }

    /// One turn of a policy: moves what its rules choose now. Files that are in use wait for the next run of the policy.
    pub(super) fn carry_out(&self, task: &Task, policy: &Policy) -> Result<Turn> {
        if self.cluster.is_none() {
            return self.carry_out_own(task, policy);
        }
        if !task.work.goes_by_turns() {
            // The others work meanwhile.
            self.ask_helpers(task);
        }
        let decided = self.decided(task, policy);
        let own = self.carry_out_own(task, &decided)?;
        if own != Turn::Done {
            return Ok(own);
        }
        let others = self.ask_helpers(task);
        Ok(others.waits.map_or(Turn::Done, Turn::Waits))
    }

    /// A policy without the question whether a pool is so full that its rules move files: that was answered when the task
    /// began.
    fn decided(&self, task: &Task, policy: &Policy) -> Policy {
        let mut decided = task.decided.lock();
        if let (None, true) = (&*decided, task.work.goes_by_turns()) {
            let mut found = policy.clone();
            for rule in &mut found.migrate {
                let Some((above, until)) = rule.fill else { continue };
                let is_above = self.percent_of(&rule.from) > u128::from(above);
                rule.fill = Some(if is_above { (until, until) } else { NEVER });
            }
            *decided = Some(found);
        }
        decided.clone().unwrap_or_else(|| policy.clone())
    }

    /// How full a pool is, in percent.
    fn percent_of(&self, name: &str) -> u128 {
        let (mut used, mut total) = (0_u128, 0_u128);
        let Ok(pool) = self.shared.objects.pools.named(name) else { return 0 };
        let filling =
            |disk: &&FsDisk| disk.takes_new() && !disk.is_archive() && disk.pool() == pool;
        for disk in self.shared.objects.disks.all().filter(filling) {
            if let Ok(capacity) = disk.disk.capacity() {
                let taken = capacity.total_bytes.saturating_sub(capacity.available_bytes);
                used += u128::from(taken);
                total += u128::from(capacity.total_bytes);
            }
        }
        used * 100 / total.max(1)
    }

    /// As [`Namespace::carry_out`], of those filesets of this node that this task has not been through.
    pub(super) fn carry_out_own(&self, task: &Task, policy: &Policy) -> Result<Turn> {
        let been_through = task.been_through.lock().clone();
        let found = self.choose(policy, &been_through)?;
        let filesets = found.filesets;
        for (rule, choice) in policy.delete.iter().zip(found.delete) {
            tracing::info!(rule = rule.name, files = choice.count, "a policy removes files");
            self.remove_chosen(task, choice.into_files())?;
        }
        let mut all = Pass::default();
        for (rule, choice) in policy.migrate.iter().zip(found.migrate) {
            tracing::info!(
                rule = rule.name,
                files = choice.count,
                reason = choice.reason,
                "a policy moves files"
            );
            self.for_chosen(task, rule, choice, |ino, course| {
                self.move_and_note(task, ino, course, &mut all)
            })?;
        }
        for (rule, choice) in policy.premigrate.iter().zip(found.premigrate) {
            tracing::info!(rule = rule.name, files = choice.count, "a policy premigrates files");
            self.for_chosen(task, rule, choice, |ino, course| {
                let begun = self.shared.clock.instant();
                let moved = self.premigrate_file(ino, course, &|bytes| task.pace.after(bytes));
                self.note(task, (ino, moved), begun, &mut all)
            })?;
        }
        self.commit()?;
        self.shared.objects.finish_reclaim();
        // One pass is all: a file is moved once, even if rules would move it back and forth.
        if self.cluster.is_some() && all.failure.is_none() {
            task.been_through.lock().extend(filesets);
        }
        Ok(all.failure.map_or(Turn::Done, |failure| Turn::Waits(failure.to_string())))
    }
}

impl Namespace {
    /// Has each file that a rule has chosen go its way.
    fn for_chosen(
        &self,
        task: &Task,
        rule: &Migrate,
        choice: Choice,
        mut send: impl FnMut(Ino, &Course<'_>) -> Result<()>,
    ) -> Result<()> {
        let pool = self.shared.objects.pools.named(&rule.to)?;
        let suits = |disk: &FsDisk| disk.pool() == pool;
        for Chosen { ino, disk, .. } in choice.into_files() {
            let (from, most, snapshots) = (disk, u64::MAX, Snapshots::Stay);
            send(ino, &Course { from, suits: &suits, most, snapshots })?;
            if !task.pace.goes_on() {
                return Err(FsError::Busy);
            }
        }
        Ok(())
    }

    /// Removes files that a rule has chosen, if they are still as they were then and nobody has them open.
    fn remove_chosen(&self, task: &Task, mut files: Vec<Chosen>) -> Result<()> {
        files.sort_by_key(|file| file.ino);
        for files in files.chunk_by(|one, other| one.ino.fileset() == other.ino.fileset()) {
            let Some(first) = files.first() else { continue };
            let wanted = files.iter().map(|file| file.ino).collect();
            let names = self.open_fileset(first.ino.fileset())?.names_of(&wanted)?;
            for file in files {
                let Some((parent, name)) = names.get(&file.ino) else { continue };
                let begun = self.shared.clock.instant();
                let touched = Touched::names([(*parent, &name[..])]);
                let partition = self.open_fileset(file.ino.fileset())?;
                // Other nodes may have it open by a grant: they say so first.
                let _nobody_caches = partition.begin_change(Changer::LOCAL, &touched);
                let is_removed = {
                    let Some((partition, _route)) = self.local_owner(file.ino)? else { continue };
                    partition.is_at_rest(file)
                        && partition.remove_unused((*parent, &name[..]), file.ino, file.modified)?
                };
                if is_removed {
                    // No request came for it, so nothing else tells the kernel.
                    let entry = Stale::Entry(*parent, name.clone());
                    self.tell_own_kernel(&[Stale::Attributes(*parent), entry]);
                    task.did(1, 0, self.since(begun));
                }
                // A removal is reckoned as a small write.
                task.pace.after(REMOVAL_COST)?;
            }
        }
        Ok(())
    }
}

impl Partition {
    /// Whether nobody has a file open, and no mapping is left of it.
    fn is_at_rest(&self, file: &Chosen) -> bool {
        // Nobody has a file open that lies in an archive.
        if file.bytes == 0 || self.archived(file.ino).is_ok_and(|found| found.is_some()) {
            return true;
        }
        let Ok(Ok(resting)) = self.begin_move(file.ino, file.disk) else { return false };
        self.give_up_move(&resting);
        true
    }

    /// Removes a file, unless it has changed since, is open, or has another name. Whether it is gone.
    fn remove_unused(&self, at: (Ino, &[u8]), ino: Ino, modified: Timestamp) -> Result<bool> {
        let is_same = |found: Ino, state: &State| {
            found == ino
                && state.kind == Kind::File
                && state.nlink == 1
                && state.handles() == 0
                && state.modified == modified
        };
        let check = |found: Ino, state: &State| {
            if is_same(found, state) { Ok(()) } else { Err(FsError::Busy) }
        };
        match self.remove(at.0, at.1, check) {
            Err(FsError::Busy | FsError::NotFound | FsError::NotDirectory | FsError::Stale) => {
                Ok(false)
            }
            removed => removed.map(|()| true),
        }
    }

    /// Shows all committed inodes of the fileset to a picker.
    fn show_inodes(&self, policy: &Policy, name: &str, picker: &mut Picker<'_>) -> Result<()> {
        let mut names: rustc_hash::FxHashMap<Ino, Named> = rustc_hash::FxHashMap::default();
        if policy.needs_names() {
            scan_prefix(self.store(), &[key::ENTRY], &mut |_, value| {
                let entry: EntryRecord = decode("directory entry", value)?;
                let named = Named::of(policy, &entry.name);
                if entry.kind == Kind::File && named != Named::default() {
                    let known = names.entry(entry.ino).or_default();
                    *known = known.and(named);
                }
                Ok(())
            })?;
        }
        let moves = !policy.migrate.is_empty() || !policy.premigrate.is_empty();
        let asks_archives = moves && self.copies().is_in_use();
        let in_cache = self.is_cache();
        scan_prefix(self.store(), &[key::INODE], &mut |key, value| {
            let Some(Key::Inode(ino)) = key::parse(key) else { return Ok(()) };
            let record: InodeRecord = decode("inode", value)?;
            let named = names.get(&ino).copied().unwrap_or_default();
            let mut premigrated_to = None;
            if asks_archives && let Some(at) = record.layout.object() {
                premigrated_to = self.premigrated(at)?.map(|(disk, _)| disk);
            }
            let (record, fileset) = (&record, name);
            picker.see(&Seen { ino, record, fileset, named, premigrated_to, in_cache });
            Ok(())
        })
    }
}
