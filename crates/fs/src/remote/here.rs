//! What this node makes, changes and removes by itself, in directories that their owner has delegated to it, and reports later: within
//! [`REPORT_DELAY`], and before it asks the owner for anything else about the fileset.
//!
//! **What survives a crash** of this node: nothing that was not reported, as if its programs had not come so far. A sync reports first.
//! If the owner dies, or takes back what it delegated because this node does not answer, what was not reported is lost as what an
//! owner had not committed: the next sync of such a directory fails, and so does that of such a file.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::Ino;
use parking_lot::{Condvar, Mutex};

use super::RemoteOwner;
use super::changes::{ChangeAnswer, LossOf};
use super::owner::{accepted, not_kept};
use super::wire::{Answer, Request};
use crate::attributes::{Attributes, SetAttributes};
use crate::closes::await_closes;
use crate::error::Result;
use crate::grants::{Lost, MakeHere, NeverKnown, Report};
use crate::object::{LiveObject, SeenObject};
use crate::ops::{Access, Home, New, Opened, Replace};
use crate::partition::Caller;
use crate::record::Kind;

/// How long changes wait to be reported together.
pub(crate) const REPORT_DELAY: Duration = Duration::from_millis(50);

/// Wakes the thread that reports changes.
#[derive(Default)]
pub(crate) struct ReportBell {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl ReportBell {
    /// There is something to report, or the thread is to look whether it should end.
    pub fn ring(&self) {
        *self.is_rung.lock() = true;
        self.rung.notify_all();
    }

    /// Waits until somebody rings.
    pub fn wait(&self) {
        let mut is_rung = self.is_rung.lock();
        while !*is_rung {
            self.rung.wait(&mut is_rung);
        }
        *is_rung = false;
    }
}

impl RemoteOwner {
    /// Makes a file and opens it, in a directory that is delegated to this node. `None` if the owner is to do that.
    pub(super) fn create_here(
        &self,
        (parent, name): (Ino, &[u8]),
        new: New<'_>,
        (access, caller): (Access, Caller),
        lineage: u32,
    ) -> Result<Option<(Attributes, Opened)>> {
        let suits = self.kept.has_delegations() && access.write && !access.synchronous;
        if !suits || !self.kept.may_make_here(parent, name) {
            return Ok(None);
        }
        let object = self.take_fresh().or_else(|| self.make_object());
        let Some((live, ino)) = object.zip(self.take_ino()) else { return Ok(None) };
        let (made, time) = (seen_when_made(&live), self.kept.time());
        let opened = Some((access, &live, made));
        let make = MakeHere { parent, name, new, caller, ino, opened, time };
        self.open_files.unsynced().note(parent);
        let attributes = {
            // Whoever tells the next owner what is open must not do so in between.
            let _under_way = self.open_files.under_way();
            let attributes = self.kept.make_here(&make);
            attributes.filter(|_| self.open_files.opened_here(ino, access))
        };
        let Some(attributes) = attributes else {
            self.give_up(Some(live));
            return Ok(None);
        };
        self.open_files.unsynced().note(parent);
        let place = (live.at, Home::Here);
        let opened = self.opened(ino, access, (Some(place), Some(live)), lineage)?;
        Ok(Some((not_kept(attributes), opened)))
    }

    /// Makes a directory or a symlink, in a directory that is delegated to this node. `None` if the owner is to do that.
    pub(super) fn make_here(
        &self,
        (parent, name): (Ino, &[u8]),
        new: New<'_>,
        caller: Caller,
    ) -> Option<Attributes> {
        let suits = matches!(new.kind, Kind::Directory | Kind::Symlink);
        if !suits || !self.kept.has_delegations() || !self.kept.may_make_here(parent, name) {
            return None;
        }
        let (ino, time) = (self.take_ino()?, self.kept.time());
        let make = MakeHere { parent, name, new, caller, ino, opened: None, time };
        self.open_files.unsynced().note(parent);
        let made = self.kept.make_here(&make)?;
        self.open_files.unsynced().note(parent);
        Some(not_kept(made))
    }

    /// Removes a file or a symlink, in a directory that is delegated to this node. Whether it did: otherwise the owner is to do that.
    pub(super) fn remove_here(&self, parent: Ino, name: &[u8]) -> bool {
        if !self.kept.has_delegations() {
            return false;
        }
        let Some(ino) = self.kept.may_remove_here(parent, name) else { return false };
        // The kernel tells of the end of a handle after close(2) has returned.
        await_closes(|| !self.open_files.is_open(ino));
        self.open_files.unsynced().note(parent);
        let removed = self.kept.remove_here(parent, name, |ino| self.open_files.is_open(ino));
        let Some(removed) = removed else { return false };
        self.open_files.unsynced().note(parent);
        if let Some(NeverKnown(live)) = removed {
            self.give_up(live);
        }
        true
    }

    /// Removes an empty directory, where it and the one above are delegated to this node. Whether it did.
    pub(super) fn remove_directory_here(&self, parent: Ino, name: &[u8]) -> bool {
        if !self.kept.has_delegations() {
            return false;
        }
        self.open_files.unsynced().note(parent);
        let is_removed = self.kept.remove_directory_here(parent, name);
        self.open_files.unsynced().note(parent);
        is_removed
    }

    /// Gives a file another name in a directory that is delegated to this node. Whether it did.
    pub(super) fn rename_here(
        &self,
        (directory, old): (Ino, &[u8]),
        (new_directory, new): (Ino, &[u8]),
        replace: Replace,
    ) -> bool {
        let suits = directory == new_directory && replace != Replace::Exchange;
        if !suits || !self.kept.has_delegations() {
            return false;
        }
        let Some(known) = self.kept.may_rename_here(directory, old, new) else { return false };
        let replaced = known.get(1).copied();
        if replaced.is_some() && replace == Replace::Refused {
            return false;
        }
        await_closes(|| !replaced.is_some_and(|ino| self.open_files.is_open(ino)));
        self.open_files.unsynced().note(directory);
        let is_open = |ino| replace == Replace::Refused || self.open_files.is_open(ino);
        let is_renamed = self.kept.rename_here(directory, (old, new), is_open);
        self.open_files.unsynced().note(directory);
        is_renamed
    }

    /// Sets attributes of what this node alone knows. `None` if the owner is to do that.
    pub(super) fn set_here(&self, ino: Ino, set: &SetAttributes) -> Option<Attributes> {
        if !self.kept.has_delegations() {
            return None;
        }
        self.open_files.unsynced().note_set(ino);
        let set = self.kept.set_here(ino, set, || self.seen(ino))?;
        self.open_files.unsynced().note_set(ino);
        Some(not_kept(set))
    }

    /// Tells the owner what this node has done by itself. One report is under way at a time.
    ///
    /// # Errors
    /// Why the owner does not know it. It is reported again, unless it is lost.
    pub(crate) fn report(&self) -> Result<()> {
        if !self.kept.has_journal() {
            return Ok(());
        }
        let _one_at_a_time = self.reporting.lock();
        let reported = self.report_all_parts();
        self.note_broken();
        reported
    }

    fn report_all_parts(&self) -> Result<()> {
        while let Some(mut report) = self.kept.take_report(|ino| self.open_files.is_open(ino)) {
            report.unused.drain(..).for_each(|live| drop(self.give_up(Some(live))));
            match self.send_report(&report) {
                Ok(answers) => self.note_lost(self.kept.reported(&report, &answers)),
                Err(error) => {
                    self.kept.not_reported(report);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn send_report(&self, report: &Report) -> Result<Vec<ChangeAnswer>> {
        self.publish(&report.objects)?;
        let (fileset, term) = (self.fileset, report.term);
        let changes = report.changes();
        let count = changes.len();
        let request = Request::Journal { fileset, term, changes };
        match self.exchange_now(request, Vec::new())?.0.answer {
            Answer::Journal(answers) if answers.len() == count => Ok(answers),
            other => super::owner::senseless(&accepted(other)?),
        }
    }

    /// Gives objects their names.
    fn publish(&self, objects: &[Arc<LiveObject>]) -> Result<()> {
        let Some(shared) = self.near.shared() else { return Ok(()) };
        objects.iter().try_for_each(|live| shared.objects.publish(live))
    }

    /// Changes that the owner has refused: what their programs were told is not so.
    fn note_lost(&self, lost: Vec<Lost>) {
        for one in &lost {
            tracing::error!(
                fileset = %self.fileset,
                owner = %self.node(),
                at = %one.what,
                why = %one.why,
                "a change that this node made by itself in a directory is lost"
            );
        }
        let (names, attributes) = apart(lost.into_iter().filter_map(|one| one.of));
        if !names.is_empty() {
            self.kept.lose_directories(&names);
            self.open_files.unsynced().lose(names);
        }
        self.open_files.unsynced().lose_attributes(attributes);
    }

    /// What was delegated may have been void, with changes that were not reported.
    pub(super) fn note_broken(&self) {
        let lost = self.kept.take_lost();
        for (of, at) in &lost {
            let what = match of {
                LossOf::Names(_) => "changes that this node made by itself in a directory",
                LossOf::Attributes(_) => "attributes that this node set by itself",
            };
            tracing::error!(
                fileset = %self.fileset,
                owner = %self.node(),
                %at,
                "{what} are lost: it could not report them in time"
            );
        }
        let (names, attributes) = apart(lost.into_keys());
        if !names.is_empty() {
            self.open_files.unsynced().lose(names);
        }
        self.open_files.unsynced().lose_attributes(attributes);
    }

    fn take_ino(&self) -> Option<Ino> {
        let mut numbers = self.numbers.lock();
        self.fill(&mut numbers)?;
        numbers.take_ino()
    }
}

/// Directories in which names are lost, and inodes whose attributes are.
fn apart(lost: impl Iterator<Item = LossOf>) -> (Vec<Ino>, Vec<Ino>) {
    let (mut names, mut attributes) = (Vec::new(), Vec::new());
    for of in lost {
        match of {
            LossOf::Names(directory) => names.push(directory),
            LossOf::Attributes(ino) => attributes.push(ino),
        }
    }
    (names, attributes)
}

/// How an object is that was just made here.
pub(super) fn seen_when_made(live: &Arc<LiveObject>) -> SeenObject {
    SeenObject { at: live.at, attributes: live.opened_attributes, is_open: true, look: 0 }
}
