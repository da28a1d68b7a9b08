//! Names that another node is changing, until the kernel of this node, their owner, has forgotten what it knew of them.
//!
//! The kernel renames what it believes a name to lead to, whatever the daemon renames. It holds the directory meanwhile, so it
//! cannot be told of a change by another node before the rename has ended, and would then show the former file under the new
//! name. So the first rename of such a name by a program is refused as stale: the kernel then looks the name up, with the
//! directory held, and repeats the rename (rename(2) repeats once after ESTALE, with LOOKUP_REVAL).
//!
//! Bound: the names of the changes that are being carried out for other nodes. Asking whether there are any takes no lock.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_base::Ino;
use forebay_base::in_flight::Asker;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::error::{FsError, Result};

type Name = (Ino, Box<[u8]>);

/// All such names.
#[derive(Default)]
pub(crate) struct Untold {
    count: AtomicUsize,
    names: Mutex<FxHashMap<Name, Told>>,
}

/// A name that is being changed.
#[derive(Default)]
struct Told {
    changes: u32,
    /// Programs whose rename was refused: each is refused once, as the kernel repeats a rename only once.
    refused: Vec<Option<Asker>>,
}

/// Names that are noted until this is dropped.
pub(crate) struct Telling<'a> {
    untold: &'a Untold,
    names: Vec<Name>,
}

impl Untold {
    /// Another node is about to change these names.
    pub fn note(&self, names: &[(Ino, &[u8])]) -> Telling<'_> {
        let names: Vec<Name> =
            names.iter().map(|(parent, name)| (*parent, (*name).into())).collect();
        let mut noted = self.names.lock();
        for name in &names {
            noted.entry(name.clone()).or_default().changes += 1;
        }
        self.count.store(noted.len(), Ordering::Release);
        drop(noted);
        Telling { untold: self, names }
    }

    /// A program of this node renames these names. Returns whether the kernel may believe that one of them leads elsewhere: the
    /// program was refused already then.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it may, and the program was not refused yet.
    pub fn check(&self, names: &[(Ino, &[u8])], asker: Option<Asker>) -> Result<bool> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        let mut noted = self.names.lock();
        let mut is_untold = false;
        for (parent, name) in names {
            let Some(told) = noted.get_mut(&(*parent, (*name).into())) else { continue };
            if !told.refused.contains(&asker) {
                told.refused.push(asker);
                return Err(FsError::Stale);
            }
            is_untold = true;
        }
        Ok(is_untold)
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let mut noted = self.untold.names.lock();
        for name in &self.names {
            let is_last = noted.get_mut(name).is_some_and(|told| {
                told.changes -= 1;
                told.changes == 0
            });
            if is_last {
                noted.remove(name);
            }
        }
        self.untold.count.store(noted.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_refused_once_until_the_kernel_was_told() {
        let (untold, asker) = (Untold::default(), Some(Asker::Process(7)));
        let name = |name: &'static [u8]| (Ino(1), name);
        let (old, other) = (name(b"old"), name(b"other"));
        assert!(!untold.check(&[old], asker).unwrap());
        let first = untold.note(&[old]);
        let second = untold.note(&[old, other]);
        assert!(matches!(untold.check(&[old], asker), Err(FsError::Stale)));
        assert!(untold.check(&[old], asker).unwrap());
        assert!(matches!(untold.check(&[old], None), Err(FsError::Stale)), "each once");
        drop(second);
        assert!(untold.check(&[old], asker).unwrap() && !untold.check(&[other], asker).unwrap());
        drop(first);
        assert!(!untold.check(&[old], asker).unwrap());
        assert_eq!(untold.count.load(Ordering::Relaxed), 0);
    }
}
