//! How often the kernel was told of an inode, where the owner counts otherwise.
//!
//! The owner counts how often it has told this node of an inode. The kernel may have been told more often, by what is kept here
//! (*untold* at the owner), or once less: when the kernel forgets an inode of which attributes are kept, one of the owner's
//! references stays for them (*retained*). So the kernel's count is always the owner's, plus those that are untold, less the one
//! that is retained, and what is kept outlives the kernel's caches.

use forebay_base::Ino;
use rustc_hash::{FxHashMap, FxHashSet};

/// References that stay for what is kept, at most.
const RETAINED_MAX: usize = 65_536;

/// What is to be done when the kernel has forgotten an inode.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forgotten {
    /// How many references the owner is to forget.
    pub at_owner: u64,
    /// Whether what is kept of the inode may be given to the kernel again.
    pub stays: bool,
}

#[derive(Debug, Default)]
pub(super) struct References {
    untold: FxHashMap<Ino, u64>,
    retained: FxHashSet<Ino>,
    /// Those that the owner is to forget, as nothing is kept of them any more.
    released: Vec<Ino>,
}

impl References {
    /// The kernel is told of an inode by what is kept.
    pub fn tell(&mut self, ino: Ino) {
        *self.untold.entry(ino).or_default() += 1;
    }

    /// The kernel forgets `count` of the times it was told. `told` says how often the owner has told of the inode since it is kept, if
    /// it is: fewer than all references, where another node owned the fileset before.
    pub fn forget(&mut self, ino: Ino, count: u64, told: Option<&mut u64>) -> Forgotten {
        let untold = self.untold.get(&ino).copied().unwrap_or(0);
        if untold > count {
            self.untold.insert(ino, untold - count);
        } else {
            self.untold.remove(&ino);
        }
        let known = count.saturating_sub(untold);
        if known == 0 {
            return Forgotten { at_owner: 0, stays: true };
        }
        let is_retained = self.retained.contains(&ino);
        let at_owner = if is_retained { known } else { known - 1 };
        let has_room = is_retained || self.retained.len() < RETAINED_MAX;
        match told.filter(|told| has_room && **told > at_owner) {
            Some(told) => {
                *told -= at_owner;
                self.retained.insert(ino);
                Forgotten { at_owner, stays: true }
            }
            None => Forgotten { at_owner: known, stays: false },
        }
    }

    /// Nothing is kept of an inode any more.
    pub fn let_go(&mut self, ino: Ino) {
        if !self.retained.remove(&ino) {
            return;
        }
        match self.untold.get_mut(&ino) {
            // The kernel knows it: the reference is the kernel's from now on.
            Some(untold) if *untold > 1 => *untold -= 1,
            Some(_) => drop(self.untold.remove(&ino)),
            None => self.released.push(ino),
        }
    }

    /// Nothing is kept of any inode any more.
    pub fn let_go_of_all(&mut self) {
        let retained: Vec<Ino> = self.retained.iter().copied().collect();
        retained.into_iter().for_each(|ino| self.let_go(ino));
    }

    /// References that the owner is to forget, each once.
    pub fn take_released(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.released)
    }

    /// Whether the owner is to forget some.
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(9);

    /// What the owner and the kernel count, next to what is noted here.
    #[derive(Default)]
    struct Counts {
        noted: References,
        owner: u64,
        kernel: u64,
        kept: Option<u64>,
    }

    impl Counts {
        fn look_up(&mut self) {
            self.kernel += 1;
            match self.kept {
                Some(_) => self.noted.tell(FILE),
                None => {
                    self.owner += 1;
                    self.kept = Some(1);
                }
            }
        }

        fn forget(&mut self, count: u64) {
            self.kernel -= count;
            let forgotten = self.noted.forget(FILE, count, self.kept.as_mut());
            self.owner -= forgotten.at_owner;
            if !forgotten.stays {
                self.recall();
            }
        }

        fn recall(&mut self) {
            self.kept = None;
            self.noted.let_go(FILE);
            self.owner -= self.noted.take_released().len() as u64;
        }

        fn check(&self) {
            let untold = self.noted.untold.get(&FILE).copied().unwrap_or(0);
            let retained = u64::from(self.noted.retained.contains(&FILE));
            assert_eq!(self.kernel, self.owner + untold - retained);
            assert!(self.kernel + retained == 0 || self.owner > 0, "the inode may go");
        }
    }

    #[test]
    fn what_is_kept_holds_a_reference_of_its_own_and_gives_it_back() {
        let mut counts = Counts::default();
        counts.look_up();
        counts.look_up();
        counts.forget(2);
        counts.check();
        assert_eq!((counts.owner, counts.kernel, counts.kept), (1, 0, Some(1)));
        counts.look_up();
        counts.check();
        counts.recall();
        counts.check();
        assert_eq!((counts.owner, counts.kernel), (1, 1), "it is the kernel's now");
        counts.forget(1);
        counts.check();
        assert_eq!(counts.owner, 0);
        counts.look_up();
        counts.forget(1);
        counts.recall();
        counts.check();
        assert_eq!(counts.owner, 0);
    }

    #[test]
    fn counts_agree_whatever_is_looked_up_forgotten_and_recalled() {
        let mut counts = Counts::default();
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            match random % 8 {
                0..4 => counts.look_up(),
                4..7 if counts.kernel > 0 => {
                    let count = 1 + (random >> 8) % counts.kernel;
                    counts.forget(count);
                }
                4..7 => {}
                _ => counts.recall(),
            }
            counts.check();
        }
    }

    #[test]
    fn references_of_an_earlier_owner_are_not_retained() {
        let mut noted = References::default();
        let mut told = 1;
        let forgotten = noted.forget(FILE, 3, Some(&mut told));
        assert_eq!(forgotten, Forgotten { at_owner: 3, stays: false });
    }
}
