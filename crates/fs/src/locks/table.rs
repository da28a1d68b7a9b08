//! Which ranges are locked, by whom, and who waits: pure decisions.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_base::{ClientId, Ino};
use serde::{Deserialize, Serialize};

/// Bytes from `start` to `end`, both included; to the largest number where a lock reaches to the end of the file,
/// however it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

impl Range {
    /// All of a file.
    pub const ALL: Range = Range { start: 0, end: u64::MAX };

    fn overlaps(self, other: Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether the two leave no byte between them.
    fn touches(self, other: Range) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }

    /// What is left of this range without `other`: before it, and after it.
    fn without(self, other: Range) -> [Option<Range>; 2] {
        if !self.overlaps(other) {
            return [Some(self), None];
        }
        let before = (self.start < other.start)
            .then(|| Range { start: self.start, end: other.start.saturating_sub(1) });
        let after = (self.end > other.end)
            .then(|| Range { start: other.end.saturating_add(1), end: self.end });
        [before, after]
    }
}

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Others may have such a lock, too.
    Read,
    /// Nobody else may have a lock.
    Write,
}

/// The two sorts of locks, which do not know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sort {
    /// flock(2): a whole file. A lock is given up before it is changed into the other kind.
    Flock,
    /// fcntl(2): ranges. Whoever waits for each other is found out.
    Fcntl,
}

/// A file, for one sort of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct File {
    pub ino: Ino,
    pub sort: Sort,
}

/// Who has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub client: ClientId,
    /// The number that the client's kernel gives it.
    pub owner: u64,
}

/// A lock that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub holder: Holder,
    pub pid: u32,
    pub range: Range,
    pub kind: Kind,
}

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub(crate) holder: Holder,
    /// The process that locked it, on its own node.
    pub pid: u32,
    /// What is locked.
    pub range: Range,
    /// What is left to others.
    pub kind: Kind,
}

/// Stands for a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Waiting(Ticket),
    Refused,
    Deadlock,
    TooManyRanges,
    TooManyWait,
}

/// How much there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub ranges: usize,
    pub waits: usize,
}

struct Waiting {
    file: File,
    ask: Ask,
    is_granted: bool,
}

/// All locks of a fileset.
pub(crate) struct Table {
    limits: Limits,
    files: HashMap<File, Vec<Held>>,
    /// In the order in which they came.
    waiting: BTreeMap<Ticket, Waiting>,
    next: u64,
    ranges: usize,
    /// Somebody who waited has a lock since this was last asked.
    has_granted: bool,
}

impl Table {
    pub fn new(limits: Limits) -> Table {
        Table {
            limits,
            files: HashMap::new(),
            waiting: BTreeMap::new(),
            next: 1,
            ranges: 0,
            has_granted: false,
        }
    }

    /// Locks a range, or has it wait.
    pub fn lock(&mut self, file: File, ask: Ask, waits: bool) -> Outcome {
        if file.sort == Sort::Flock && self.holds_other_kind(file, ask) {
            self.release_locks(file, ask.holder);
        }
        if self.blocker(file, ask).is_none() {
            return if self.put(file, ask.holder, ask.range, Some((ask.kind, ask.pid))) {
                // What was locked for writing may be so for reading alone now.
                self.grant(file);
                Outcome::Granted
            } else {
                Outcome::TooManyRanges
            };
        }
        if !waits {
            return Outcome::Refused;
        }
        if file.sort == Sort::Fcntl && self.closes_circle(file, ask) {
            return Outcome::Deadlock;
        }
        if self.waiting.len() >= self.limits.waits {
            return Outcome::TooManyWait;
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.insert(ticket, Waiting { file, ask, is_granted: false });
        Outcome::Waiting(ticket)
    }

    /// Unlocks what a holder has of a range; `false` if that would need more ranges than there may be.
    pub fn unlock(&mut self, file: File, holder: Holder, range: Range) -> bool {
        let done = self.put(file, holder, range, None);
        self.grant(file);
        done
    }

    /// A lock of somebody else that is in the way.
    pub fn test(&self, file: File, ask: Ask) -> Option<Held> {
        self.blocker(file, ask).copied()
    }

    /// Whether a request that waited has its lock, which ends it; `None` if there is none.
    pub fn claim(&mut self, ticket: Ticket) -> Option<bool> {
        let is_granted = self.waiting.get(&ticket)?.is_granted;
        if is_granted {
            self.waiting.remove(&ticket);
        }
        Some(is_granted)
    }

    /// Ends the wait of a request. Whether it has its lock.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some_and(|waiting| waiting.is_granted)
    }

    /// Releases what a holder has on a file, and ends its waits there.
    pub fn release(&mut self, file: File, holder: Holder) {
        self.waiting.retain(|_, waiting| waiting.file != file || waiting.ask.holder != holder);
        self.release_locks(file, holder);
    }

    /// Releases everything of a client.
    pub fn release_client(&mut self, client: ClientId) {
        self.waiting.retain(|_, waiting| waiting.ask.holder.client != client);
        let touched: Vec<File> = self
            .files
            .iter()
            .filter(|(_, held)| held.iter().any(|held| held.holder.client == client))
            .map(|(file, _)| *file)
            .collect();
        for file in touched {
            self.keep(file, |held| held.holder.client != client);
        }
    }

    /// Whether a request that waited was granted since this was last asked.
    pub fn take_granted(&mut self) -> bool {
        std::mem::take(&mut self.has_granted)
    }

    /// Whether nobody has a lock or waits.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.waiting.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.files.clear();
        self.waiting.clear();
        self.ranges = 0;
    }

    /// The locked ranges of a file.
    #[cfg(test)]
    pub fn held(&self, file: File) -> &[Held] {
        self.files.get(&file).map_or(&[], Vec::as_slice)
    }

    fn holds_other_kind(&self, file: File, ask: Ask) -> bool {
        let own = |held: &Held| held.holder == ask.holder && held.kind != ask.kind;
        self.files.get(&file).is_some_and(|held| held.iter().any(own))
    }

    fn release_locks(&mut self, file: File, holder: Holder) {
        self.keep(file, |held| held.holder != holder);
    }

    /// Keeps some of the locks of a file, and grants what the others kept waiting.
    fn keep(&mut self, file: File, keeps: impl Fn(&Held) -> bool) {
        let Some(held) = self.files.get_mut(&file) else { return };
        let before = held.len();
        held.retain(keeps);
        self.ranges -= before - held.len();
        if held.is_empty() {
            self.files.remove(&file);
        }
        self.grant(file);
    }

    fn blocker(&self, file: File, ask: Ask) -> Option<&Held> {
        self.files.get(&file)?.iter().find(|held| blocks(held, ask))
    }

    /// Whether those whom `ask` would wait for wait for its holder, over others or not.
    fn closes_circle(&self, file: File, ask: Ask) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![(file, ask)];
        while let Some((file, waiting)) = open.pop() {
            for held in self.files.get(&file).into_iter().flatten() {
                if !blocks(held, waiting) {
                    continue;
                }
                if held.holder == ask.holder {
                    return true;
                }
                if seen.insert(held.holder) {
                    let theirs = |other: &&Waiting| {
                        !other.is_granted
                            && other.ask.holder == held.holder
                            && other.file.sort == Sort::Fcntl
                    };
                    open.extend(
                        self.waiting.values().filter(theirs).map(|other| (other.file, other.ask)),
                    );
                }
            }
        }
        false
    }

    /// Has a holder hold `kind` on a range, or nothing.
    fn put(&mut self, file: File, holder: Holder, range: Range, kind: Option<(Kind, u32)>) -> bool {
        let before = self.files.get(&file).map_or(&[][..], Vec::as_slice);
        let mut after = Vec::with_capacity(before.len() + 2);
        let mut new = kind.map(|(kind, pid)| Held { holder, pid, range, kind });
        for held in before {
            if held.holder != holder {
                after.push(*held);
                continue;
            }
            if let Some(new) = &mut new
                && new.kind == held.kind
                && new.range.touches(held.range)
            {
                new.range.start = new.range.start.min(held.range.start);
                new.range.end = new.range.end.max(held.range.end);
                continue;
            }
            let left = held.range.without(range).into_iter().flatten();
            after.extend(left.map(|range| Held { range, ..*held }));
        }
        after.extend(new);
        let ranges = self.ranges - before.len() + after.len();
        if after.len() > before.len() && ranges > self.limits.ranges {
            return false;
        }
        self.ranges = ranges;
        if after.is_empty() {
            self.files.remove(&file);
        } else {
            self.files.insert(file, after);
        }
        true
    }

    /// Grants what can be granted of a file now, to those who have waited longest first.
    fn grant(&mut self, file: File) {
        // A lock for writing that becomes one for reading alone frees others in turn.
        while self.grant_once(file) {}
    }

    fn grant_once(&mut self, file: File) -> bool {
        let mut any = false;
        let tickets: Vec<(Ticket, Ask)> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.file == file && !waiting.is_granted)
            .map(|(ticket, waiting)| (*ticket, waiting.ask))
            .collect();
        for (ticket, ask) in tickets {
            if self.blocker(file, ask).is_none()
                && self.put(file, ask.holder, ask.range, Some((ask.kind, ask.pid)))
                && let Some(waiting) = self.waiting.get_mut(&ticket)
            {
                waiting.is_granted = true;
                self.has_granted = true;
                any = true;
            }
        }
        any
    }
}

/// Whether a lock keeps somebody from theirs.
fn blocks(held: &Held, ask: Ask) -> bool {
    held.holder != ask.holder
        && held.range.overlaps(ask.range)
        && (held.kind == Kind::Write || ask.kind == Kind::Write)
}
