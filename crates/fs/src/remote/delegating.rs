//! Directories that are delegated to other nodes, which change names there by themselves and report it later.
//!
//! A directory is delegated to the node that makes it, while nobody else was told of it. Whoever looks it up takes it back first, and
//! with it everything that the node has not reported.

use forebay_base::{FilesetId, Ino, Timestamp};
use forebay_cluster::grants::reports::Verdict;

use super::changes::{Change, ChangeAnswer, Outcome};
use super::service::Work;
use super::wire::{Answer, Reply, Request};
use crate::attributes::{Attributes, SetAttributes};
use crate::error::{FsError, Result};
use crate::grants::{CHANGES_AT_ONCE, Item, Touched};
use crate::object::SeenObject;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::record::Kind;

impl Work<'_> {
    /// Delegates a directory to the client that has just made it, unless files in it depend on more than that client knows.
    pub(super) fn delegate(&mut self, made: &Attributes) {
        if made.kind != Kind::Directory {
            return;
        }
        let ino = made.ino;
        let Some(partition) = self.partition(ino) else { return };
        let Some(granting) = partition.granting().filter(|it| it.is_on()) else { return };
        let is_its_alone = || {
            let references = self.fs.clients().references(self.client, ino);
            !partition.has_quotas()
                && partition.inherits_nothing(ino)
                && self.fs.references(ino) == references
        };
        self.granted.directory = granting.delegate(self.client, ino, is_its_alone);
        if self.granted.directory.is_some() {
            self.granted.attributes = granting.grant(self.client, &Item::Attributes(ino));
        }
        self.granted.term = granting.term(self.client);
    }

    /// The client is told of an inode: a directory that is delegated to another one is taken back first.
    pub(super) fn take_directory_back(&self, found: &Attributes) {
        if found.kind == Kind::Directory
            && let Some(partition) = self.partition(found.ino)
            && let Some(granting) = partition.granting()
        {
            granting.take_directory_back(self.client, found.ino);
        }
    }

    /// Carries out what the client has done by itself, in order. What cannot be carried out is refused by itself: the client says to its
    /// programs that it is lost.
    pub(super) fn journal(
        &self,
        fileset: FilesetId,
        term: u64,
        changes: Vec<(u64, Change)>,
    ) -> Result<Answer> {
        if changes.len() > CHANGES_AT_ONCE {
            return Err(FsError::Invalid);
        }
        let Some(partition) = self.partition(Ino::top_of(fileset)) else {
            return Err(FsError::Moved);
        };
        let granting = partition.granting().ok_or(FsError::Invalid)?;
        // A report that was given up may come late.
        let turn = granting.reports_of(self.client);
        let mut reported = turn.lock();
        if let Some((first, _)) = changes.first() {
            // What comes before is not repeated any more.
            reported.lost = reported.lost.split_off(first);
        }
        let carry_out = |(number, change): (u64, Change)| {
            if change.target().fileset() != fileset {
                return ChangeAnswer::plain(Outcome::Refused(FsError::Invalid));
            }
            let expected = change.expected();
            match reported.done.judge(number, granting.is_of_term(self.client, term)) {
                Verdict::New => {
                    let answer = ChangeAnswer::of(self.part().carry_out_reported(change));
                    if expected.missed(&answer.outcome).is_some() {
                        reported.lost.insert(number);
                    }
                    answer
                }
                Verdict::Again if !reported.lost.contains(&number) => {
                    ChangeAnswer::plain(expected.again())
                }
                Verdict::Again | Verdict::Void => {
                    ChangeAnswer::plain(Outcome::Refused(FsError::Stale))
                }
            }
        };
        Ok(Answer::Journal(changes.into_iter().map(carry_out).collect()))
    }

    /// Carries out a change that the client has made already.
    fn carry_out_reported(&mut self, change: Change) -> Reply {
        match change {
            Change::Made { parent, name, new, caller, reported, opened } => {
                let reported = Some(reported);
                self.answer(match opened {
                    Some((access, made)) => {
                        let made = Some(made);
                        Request::CreateFile { parent, name, new, caller, access, made, reported }
                    }
                    None => Request::Create { parent, name, new, caller, reported },
                })
            }
            Change::Removed { parent, name, ino } => {
                self.answer(Request::Unlink { parent, name, known: vec![ino] })
            }
            Change::DirectoryRemoved { parent, name, ino } => {
                let reply =
                    self.answer(Request::RemoveDirectory { parent, name, known: vec![ino] });
                if let Some(partition) = self.partition(parent)
                    && let Some(granting) = partition.granting()
                {
                    granting.forget_directory(self.client, ino);
                }
                reply
            }
            Change::Renamed { directory, old, new, known, time } => {
                self.answer_by(|work| work.rename_reported(directory, (&old, &new), known, time))
            }
            Change::Set { ino, set, seen, time } => {
                self.answer_by(|work| work.set_reported(ino, set, (seen, time)))
            }
            Change::Closed { ino, access, left } => {
                self.answer(Request::Close { ino, access, left })
            }
        }
    }

    /// The partition of a fileset in which changes are reported.
    fn reported_at(owner: &Owner) -> Result<&Partition> {
        match owner {
            Owner::Local(partition) => Ok(partition.as_ref()),
            Owner::Native(_) | Owner::Remote(_) => Err(FsError::Invalid),
        }
    }

    fn rename_reported(
        &mut self,
        directory: Ino,
        (old, new): (&[u8], &[u8]),
        known: Vec<Ino>,
        time: Timestamp,
    ) -> Result<Answer> {
        let moved = *known.first().ok_or(FsError::Invalid)?;
        let touched = Touched::names([(directory, old), (directory, new)]).known(known);
        self.change(directory, &touched, |_, owner| {
            Self::reported_at(owner)?.rename_reported(directory, (old, new), time)
        })?;
        self.changed_name(directory, old);
        self.changed_name(directory, new);
        self.grant_directory(directory);
        self.read_attributes(moved, |owner| owner.attributes(moved))?;
        Ok(Answer::Done)
    }

    fn set_reported(
        &mut self,
        ino: Ino,
        set: SetAttributes,
        (seen, time): (Option<SeenObject>, Timestamp),
    ) -> Result<Answer> {
        self.changed(ino);
        let seen = self.its_own(seen);
        self.change(ino, &Touched::inode(ino), |_, owner| {
            Self::reported_at(owner)?.set_attributes_reported(ino, set, (seen, time))
        })?;
        self.changing = None;
        // The client may write it on.
        if seen.and_then(|seen| self.grant_own(ino, seen)).is_none() {
            self.read_attributes(ino, |owner| owner.attributes(ino))?;
        }
        Ok(Answer::Done)
    }
}
