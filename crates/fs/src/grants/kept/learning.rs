//! What is kept of answers.

use forebay_base::Ino;
use forebay_cluster::grants::GrantNumber;
use forebay_disk::ObjectAttributes;

use super::State;
use crate::grants::inode::{COST_OF_ONE, cost_of_xattr};
use crate::grants::names::NameChange;
use crate::grants::{Granted, Item, Learned};
use crate::ops::DirectoryItem;
use crate::record::ObjectRef;

/// The kernel asks for it at the first write of each file; no new file has it.
const NO_CAPABILITIES: &[u8] = b"security.capability";

impl State {
    /// The items that were granted with an answer; `None` if it is not of the present term.
    pub(super) fn granted(
        &mut self,
        granted: Granted,
        learned: &Learned,
    ) -> Option<Vec<(Item, GrantNumber)>> {
        let (entry, attributes) = learned.items();
        let of = |item: Option<Item>, number: Option<GrantNumber>| Some((item?, number?));
        let directory = learned.directory();
        let beside = directory.as_ref().map(|(_, number)| *number);
        let numbers = [granted.entry, granted.attributes, beside, granted.directory];
        self.heard.hear(numbers.into_iter().flatten());
        if !self.is_of_term(granted.term) {
            return None;
        }
        let delegated = of(learned.delegated(), granted.directory);
        let named = of(entry, granted.entry);
        let grants = [named, of(attributes, granted.attributes), directory, delegated];
        Some(grants.into_iter().flatten().collect())
    }

    pub(super) fn learn_name(
        &mut self,
        used: &[Item],
        (parent, name): (Ino, Vec<u8>),
        to: Option<Ino>,
    ) {
        if !used.contains(&Item::Entry(parent, name.as_slice().into())) {
            return;
        }
        let cost = COST_OF_ONE + name.len();
        if self.names.entry(parent).or_default().insert(name.into(), to).is_none() {
            self.cost += cost;
        }
    }

    pub(super) fn learn(&mut self, used: &[Item], learned: Learned, home: Option<ObjectRef>) {
        match learned {
            Learned::Name(parent, name, target) => {
                self.learn_name(used, (parent, name), target.map(|(ino, _)| ino));
                if let Some((ino, Some(attributes))) = target
                    && used.contains(&Item::Attributes(ino))
                {
                    self.keep_attributes(attributes, home);
                    self.keep(ino, 0, |kept| kept.told += 1);
                }
            }
            Learned::Attributes(attributes) => self.keep_attributes(attributes, home),
            Learned::Change { change, directory, file, made, .. } => {
                if let NameChange::Made(parent, name, ino) = change {
                    self.learn_name(used, (parent, name), Some(ino));
                }
                if let Some((_, attributes)) = directory
                    && used.contains(&Item::Attributes(attributes.ino))
                {
                    self.keep_attributes(attributes, None);
                }
                if let Some(made) = made
                    && used.contains(&Item::Attributes(made.ino))
                    && used.contains(&Item::Directory(made.ino))
                {
                    self.keep_new(*made);
                }
                if let Some((attributes, object)) = file
                    && used.contains(&Item::Attributes(attributes.ino))
                {
                    self.keep_attributes(attributes, home);
                    self.keep_own(attributes.ino, object);
                }
            }
            Learned::Xattr(ino, name, value) => {
                let cost = cost_of_xattr(&name, value.as_deref());
                self.keep(ino, cost, |kept| drop(kept.xattrs.values.insert(name, value)));
            }
            Learned::XattrNames(ino, names) => {
                self.keep(ino, names.len(), |kept| kept.xattrs.names = Some(names));
            }
            Learned::Link(ino, target) => {
                self.keep(ino, target.len(), |kept| kept.link = Some(target));
            }
            Learned::Listing(ino, items) => {
                let cost = items.iter().map(|item| size_of::<DirectoryItem>() + item.name.len());
                let cost = cost.sum();
                self.keep(ino, cost, |kept| kept.listing = Some(items));
            }
        }
        self.bound();
    }

    /// This node has made a file, with an object of its own that was like this.
    pub(super) fn keep_own(&mut self, ino: Ino, object: ObjectAttributes) {
        self.keep(ino, NO_CAPABILITIES.len() + COST_OF_ONE, |kept| {
            (kept.own, kept.is_told) = (Some(object), true);
            kept.told += 1;
            kept.xattrs.values.insert(NO_CAPABILITIES.to_vec(), None);
        });
    }
}
