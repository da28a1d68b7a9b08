//! What of the answers to another node it may cache, and changes by another node that wait until others cache it no more.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::{FilesetId, Ino};

use super::service::Work;
use super::wire::{Answer, Beside};
use crate::attributes::Attributes;
use crate::error::{FsError, Result};
use crate::grants::{Changer, Granted, Item, Touched};
use crate::namespace::Namespace;
use crate::ops::Found;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::stale::Stale;

impl Work<'_> {
    /// The partition of an inode, if this node owns it in the epoch that the client means.
    pub(super) fn partition(&self, ino: Ino) -> Option<Arc<Partition>> {
        match &*self.route(ino).ok()? {
            Owner::Local(partition) => Some(Arc::clone(partition)),
            Owner::Native(_) | Owner::Remote(_) => None,
        }
    }

    /// Grants what is about to be read, unless somebody has it open for writing: one that is granted is recalled before
    /// anybody opens it for writing, so it is looked for that afterwards.
    fn grant_attributes(&mut self, ino: Ino) {
        if let Some(partition) = self.partition(ino)
            && let Some(granting) = partition.granting()
        {
            self.granted.term = granting.term(self.client);
            let granted = granting.grant(self.client, &Item::Attributes(ino));
            self.granted.attributes = granted.filter(|_| partition.is_quiet(ino));
        }
    }

    /// A name was made: the client may cache it, and the directory.
    pub(super) fn grant_new(&mut self, parent: Ino, name: &[u8], ino: Ino) {
        self.grant_directory(parent);
        self.grant_entry(parent, name);
        let leads_to =
            |partition: Arc<Partition>| partition.while_routed(|it| it.named(parent, name))?;
        if self.partition(parent).and_then(leads_to) != Some(ino) {
            self.granted.entry = None;
        }
    }

    /// A name of a directory was changed: the client may cache the directory as it is now.
    pub(super) fn grant_directory(&mut self, ino: Ino) {
        let Some(mut changing) = self.changing.take() else { return };
        let Some(partition) = self.partition(ino) else { return };
        let Some(granting) = partition.granting().filter(|it| changing.is_at(it)) else { return };
        self.granted.term = granting.term(self.client);
        let granted = changing.grant_directory(ino);
        // Names that it holds may be granted now.
        drop(changing);
        let Some((number, continues)) = granted else { return };
        let found = partition.while_routed(|it| it.attributes(ino).ok()).flatten();
        let found = found.filter(|found| found.cacheable);
        self.beside = found.map(|attributes| Beside { number, attributes, continues });
    }

    fn grant_entry(&mut self, parent: Ino, name: &[u8]) {
        if let Some(partition) = self.partition(parent)
            && let Some(granting) = partition.granting()
        {
            self.granted.term = granting.term(self.client);
            self.granted.entry = granting.grant(self.client, &Item::Entry(parent, name.into()));
        }
    }

    /// Carries out a read of an inode, with a grant of it if what is found may be cached. The client may have an earlier grant of
    /// it: so one that is not told of is not taken back.
    pub(super) fn read_granted<T>(
        &mut self,
        ino: Ino,
        read: impl FnOnce(&Owner) -> Result<T>,
        is_told: impl FnOnce(&Result<T>) -> bool,
    ) -> Result<T> {
        self.grant_attributes(ino);
        let found = self.at(ino, read);
        self.granted.attributes = self.granted.attributes.filter(|_| is_told(&found));
        found
    }

    /// As [`Work::read_granted`], of attributes.
    pub(super) fn read_attributes(
        &mut self,
        ino: Ino,
        read: impl FnOnce(&Owner) -> Result<Attributes>,
    ) -> Result<Attributes> {
        let found = self.read_granted(ino, read, Result::is_ok)?;
        self.keep_if_it_stays(ino, found.cacheable);
        Ok(found)
    }

    /// Leaves the grant of attributes, if the client may use it: with it, it tells its kernel of the inode without a word to this
    /// node, so the inode must be one that it holds. Otherwise it would not outlive its last name.
    fn keep_if_it_stays(&mut self, ino: Ino, is_cacheable: bool) {
        let knows_writers = |partition: Arc<Partition>| partition.knows_writers(ino);
        let is_held =
            ino == Ino::top_of(ino.fileset()) || self.fs.clients().holds(self.client, ino);
        if !(is_cacheable && is_held && self.partition(ino).is_some_and(knows_writers)) {
            self.granted.attributes = None;
        }
        if self.granted.attributes.is_some() {
            self.granted.home = self.partition(ino).and_then(|partition| partition.home_of(ino));
        }
    }

    /// Carries out a change at the owner of an inode, once nobody caches any more what it touches.
    pub(super) fn change<T>(
        &mut self,
        ino: Ino,
        touched: &Touched<'_>,
        operation: impl FnOnce(&Work<'_>, &Owner) -> Result<T>,
    ) -> Result<T> {
        self.changing = None;
        let mut changing = None;
        loop {
            let route = self.route(ino)?;
            let Some(partition) = route.waits_for_recalls(changing.as_ref()) else {
                // While it waited the client may have been told that it is not carried out.
                self.fs.clients().check(self.client).map_err(|_| FsError::Stale)?;
                if let Owner::Local(_) = &*route {
                    self.telling = self.fs.note_untold(&touched.names);
                }
                if let (true, Owner::Local(partition)) = (touched.targets, &*route) {
                    // What a name leads to changes with it: the number of its links, or its time.
                    let leads_to = |(parent, name): &(Ino, &[u8])| partition.named(*parent, name);
                    let targets = touched.names.iter().filter_map(leads_to);
                    self.stale.extend(targets.map(Stale::Attributes));
                }
                let done = operation(self, &route);
                drop(route);
                self.changing = changing;
                return done;
            };
            // Whoever changes owners must not wait for clients.
            drop(route);
            let by = Changer { client: self.client, seen: self.seen, reports: self.reports };
            changing = partition.begin_change(by, touched);
        }
    }

    /// Carries out what another node wants done to filesets or disks. The kernel of this node learns which names have changed.
    pub(super) fn by_order<T>(&mut self, work: impl FnOnce(&Namespace) -> Result<T>) -> Result<T> {
        let done = work(self.fs);
        self.stale.extend(self.fs.take_stale());
        done
    }

    /// As [`Work::by_order`], at the owner of the root alone.
    pub(super) fn at_root<T>(&mut self, work: impl FnOnce(&Namespace) -> Result<T>) -> Result<T> {
        self.fs.root()?;
        self.by_order(work)
    }

    pub(super) fn lookup(&mut self, parent: Ino, name: &[u8]) -> Result<Answer> {
        self.grant_entry(parent, name);
        let found = self.at(parent, |owner| match owner.lookup(parent, name)? {
            Found::Here(attributes) => self.tell(attributes),
            Found::Elsewhere(ino) => Ok(Answer::Elsewhere(ino)),
        });
        match found {
            Ok(Answer::Attributes(attributes)) => {
                // Read once more, now that what it leads to is known.
                let ino = attributes.ino;
                self.take_directory_back(&attributes);
                let again = self.read_attributes(ino, |owner| owner.attributes(ino));
                Ok(Answer::Attributes(again.unwrap_or(attributes)))
            }
            Ok(_) | Err(FsError::NotFound) => found,
            Err(_) => {
                // It is not used.
                self.granted = Granted::default();
                found
            }
        }
    }

    pub(super) fn look_at(&mut self, ino: Ino) -> Result<Answer> {
        if let Some(partition) = self.partition(ino)
            && let Some(granting) = partition.granting()
        {
            granting.take_directory_back(self.client, ino);
        }
        self.grant_attributes(ino);
        let found = self.tell_at(ino, |owner| owner.look_at(ino))?;
        self.keep_if_it_stays(ino, matches!(found, Answer::Attributes(found) if found.cacheable));
        Ok(found)
    }

    /// Vouches for what the client caches of a fileset.
    pub(super) fn vouch(&self, fileset: FilesetId) -> Result<Answer> {
        let partition = match &*self.route(Ino::top_of(fileset))? {
            Owner::Local(partition) => Some(Arc::clone(partition)),
            Owner::Native(_) | Owner::Remote(_) => None,
        };
        let granting = partition.as_ref().and_then(|partition| partition.granting());
        let granting = granting.filter(|granting| granting.reaches(self.client));
        let (word, term) = granting.map_or((Duration::ZERO, 0), |granting| {
            granting.turn_on(|| self.fs.drain_owners());
            granting.vouch(self.client)
        });
        let word_ms = u64::try_from(word.as_millis()).unwrap_or(0);
        Ok(Answer::Vouched { word_ms, term })
    }
}
