//! What is asked of another node and may be kept: names, attributes, extended attributes, links and listings. What the owner
//! granted is answered here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::Ino;

use super::RemoteOwner;
use super::owner::{accepted, not_kept, senseless};
use super::wire::{Answer, Reply, Request};
use crate::attributes::Attributes;
use crate::directory::NAME_MAX;
use crate::error::{FsError, Result};
use crate::grants::{Learned, Looked, NAMES_MAX, Named};
use crate::ops::{DirectoryItem, Found};
use crate::owner::Visit;
use crate::record::Kind;

/// Entries of a listing that is kept.
const LISTING_MAX: usize = NAMES_MAX;

impl RemoteOwner {
    /// What is kept, if it may be used: the owner is asked to vouch for it where its word has lapsed.
    pub(super) fn known<T>(&self, look: impl Fn() -> Looked<T>) -> Result<Option<T>> {
        let found = look();
        if let Looked::Kept(found) = found {
            return Ok(Some(found));
        }
        self.ask_for_word()?;
        match look() {
            Looked::Kept(found) => Ok(Some(found)),
            Looked::Lapsed | Looked::Unknown => Ok(None),
        }
    }

    /// Asks the owner to vouch for what is kept, unless it does.
    fn ask_for_word(&self) -> Result<()> {
        if !self.kept.needs_word() {
            return Ok(());
        }
        let _one_at_a_time = self.kept.asking.lock();
        if !self.kept.needs_word() {
            return Ok(());
        }
        let asked = self.kept.moment();
        match self.ask(Request::Vouch { fileset: self.fileset })? {
            Answer::Vouched { word_ms, term } => {
                self.kept.vouched(asked, Duration::from_millis(word_ms), term);
                Ok(())
            }
            other => senseless(&other),
        }
    }

    /// Sends a request whose answer may be kept: what it says of these items, a name and an inode.
    fn ask_to_keep<T>(
        &self,
        request: Request,
        read: impl FnOnce(Answer) -> Result<(T, Option<Learned>)>,
    ) -> Result<T> {
        if !self.is_asserted.load(Ordering::Acquire) {
            self.assert_open_files()?;
        }
        let asking = self.kept.begin();
        let (Reply { answer, granted, .. }, _) = self.exchange(request, Vec::new())?;
        let (value, learnt) = read(answer)?;
        if let Some(learnt) = learnt {
            asking.answered(granted, learnt);
        }
        Ok(value)
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found> {
        // The owner refuses longer ones, rather than not to find them.
        let is_plain = !matches!(name, b"." | b"..") && name.len() <= NAME_MAX;
        let known = if is_plain { self.known(|| self.kept.name(parent, name))? } else { None };
        let found = match known {
            Some(Named::Absent) => return Err(FsError::NotFound),
            Some(Named::Here(attributes)) => return Ok(Found::Here(attributes)),
            Some(Named::Elsewhere(ino)) => return Ok(Found::Elsewhere(ino)),
            None => {
                let request = Request::Lookup { parent, name: name.to_vec() };
                self.ask_to_keep(request, |answer| {
                    let learnt =
                        |target| is_plain.then(|| Learned::Name(parent, name.to_vec(), target));
                    match answer {
                        Answer::Attributes(found) => {
                            let target = Some((found.ino, Some(found)));
                            Ok((Some(Found::Here(not_kept(found))), learnt(target)))
                        }
                        Answer::Elsewhere(ino) => {
                            Ok((Some(Found::Elsewhere(ino)), learnt(Some((ino, None)))))
                        }
                        Answer::Refused(FsError::NotFound) => Ok((None, learnt(None))),
                        other => senseless(&accepted(other)?),
                    }
                })?
            }
        };
        if found.is_none() && is_plain && self.kept.missed(parent) {
            // It has answered; this is for the next ones.
            let _ = self.list(parent);
        }
        found.ok_or(FsError::NotFound)
    }

    /// Whether the kernel may keep for a while a name that leads into another fileset.
    pub(crate) fn lend_name(&self, parent: Ino, name: &[u8]) -> bool {
        self.kept.lend_name(parent, name)
    }

    pub(crate) fn look_at(&self, ino: Ino) -> Result<Attributes> {
        if let Some(attributes) = self.known(|| self.kept.told_attributes(ino))? {
            return Ok(attributes);
        }
        self.ask_to_keep(Request::LookAt { ino }, |answer| match accepted(answer)? {
            Answer::Attributes(found) => Ok((not_kept(found), Some(Learned::Attributes(found)))),
            other => senseless(&other),
        })
    }

    pub(crate) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        if let Some(target) = self.known(|| self.kept.link(ino))? {
            return Ok(target);
        }
        self.ask_to_keep(Request::ReadLink { ino }, |answer| match accepted(answer)? {
            Answer::Bytes(target) => Ok((target.clone(), Some(Learned::Link(ino, target)))),
            other => senseless(&other),
        })
    }

    pub(crate) fn open_directory(&self, ino: Ino) -> Result<()> {
        match self.known(|| self.kept.attributes(ino))? {
            Some(attributes) if attributes.kind == Kind::Directory => Ok(()),
            Some(_) => Err(FsError::NotDirectory),
            None => self.do_it(Request::OpenDirectory { ino }),
        }
    }

    pub(crate) fn read_directory(
        &self,
        ino: Ino,
        mut offset: u64,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let known = match self.known(|| self.kept.listing(ino))? {
            None if offset == 0 && self.kept.is_vouched() => self.list(ino)?,
            known => known,
        };
        if let Some(listing) = known {
            let from = listing.partition_point(|item| item.next_offset <= offset);
            let _ = listing[from..].iter().try_for_each(visit);
            return Ok(());
        }
        self.kept.lent.bar();
        loop {
            let (items, is_last) = self.items(ino, offset)?;
            for item in &items {
                if visit(item).is_break() {
                    return Ok(());
                }
            }
            let Some(last) = items.last().filter(|_| !is_last) else { return Ok(()) };
            offset = last.next_offset;
        }
    }

    /// One part of a listing, and whether it is the last one.
    fn items(&self, ino: Ino, offset: u64) -> Result<(Vec<DirectoryItem>, bool)> {
        match self.ask(Request::ReadDirectory { ino, offset })? {
            Answer::Items { items, is_last } => Ok((items, is_last)),
            other => senseless(&other),
        }
    }

    /// Reads a whole listing, to keep it; `None` for one that is too long.
    fn list(&self, ino: Ino) -> Result<Option<Arc<Vec<DirectoryItem>>>> {
        let mut listing = Vec::new();
        // What is granted with the first part holds for all that is read until it is recalled.
        let request = Request::ReadDirectory { ino, offset: 0 };
        self.ask_to_keep(request, |answer| {
            let (mut items, mut is_last) = match accepted(answer)? {
                Answer::Items { items, is_last } => (items, is_last),
                other => return senseless(&other),
            };
            while let Some(last) = items.last() {
                let offset = last.next_offset;
                listing.append(&mut items);
                if listing.len() > LISTING_MAX {
                    return Ok((None, None));
                }
                if is_last {
                    break;
                }
                (items, is_last) = self.items(ino, offset)?;
            }
            if !listing.is_sorted_by(|one, next| one.next_offset < next.next_offset) {
                return Ok((None, None));
            }
            let listing = Arc::new(listing);
            Ok((Some(Arc::clone(&listing)), Some(Learned::Listing(ino, listing))))
        })
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        if let Some(attributes) = self.known(|| self.kept.attributes(ino))? {
            return Ok(attributes);
        }
        let request = Request::Attributes { ino, seen: self.seen(ino) };
        self.ask_to_keep(request, |answer| match accepted(answer)? {
            Answer::Attributes(found) => Ok((not_kept(found), Some(Learned::Attributes(found)))),
            other => senseless(&other),
        })
    }

    /// Attributes of a listed entry, if they are kept; the kernel is told of it then.
    pub(crate) fn listed_attributes(
        &self,
        parent: Ino,
        item: &DirectoryItem,
    ) -> Option<Attributes> {
        match self.kept.name(parent, &item.name) {
            Looked::Kept(Named::Here(attributes)) if attributes.ino == item.ino => Some(attributes),
            Looked::Kept(Named::Here(attributes)) => {
                self.forget(attributes.ino, 1);
                None
            }
            Looked::Kept(_) | Looked::Lapsed | Looked::Unknown => None,
        }
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let known = self.known(|| self.kept.xattr(ino, name))?;
        let value = match known {
            Some(value) => value,
            None => {
                let request = Request::Xattr { ino, name: name.to_vec() };
                self.ask_to_keep(request, |answer| {
                    let value = match answer {
                        Answer::Bytes(value) => Some(value),
                        Answer::Refused(FsError::NoAttribute) => None,
                        other => return senseless(&accepted(other)?),
                    };
                    Ok((value.clone(), Some(Learned::Xattr(ino, name.to_vec(), value))))
                })?
            }
        };
        value.ok_or(FsError::NoAttribute)
    }

    pub(crate) fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        if let Some(names) = self.known(|| self.kept.xattr_names(ino))? {
            return Ok(names);
        }
        self.ask_to_keep(Request::ListXattrs { ino }, |answer| match accepted(answer)? {
            Answer::Bytes(names) => Ok((names.clone(), Some(Learned::XattrNames(ino, names)))),
            other => senseless(&other),
        })
    }
}
