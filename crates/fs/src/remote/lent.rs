//! What the kernel of this node may keep of filesets of other nodes: the daemon lends it names and attributes that their owner
//! has granted.
//!
//! - An item is lent for a fixed short time (`kernel_ttl`), and only if the owner vouches for it for longer. So a kernel whose daemon
//!   is frozen or killed uses nothing for longer than the owner waits for this node.
//! - Before a recall is answered, the answers that are on their way to the kernel have arrived there, and the kernel has
//!   forgotten what the recall names. Attributes it forgets at once. A name it forgets when it has the lock of the directory, which a
//!   change of this node may hold that waits for the very change behind the recall: so nobody waits longer than the name is lent.
//! - To make such a wait rare, names are not lent in a directory in which this node, or another one, has changed a name that was
//!   granted in the last [`REST`].
//! - Attributes are not lent with the first answer about an inode: an invalidation does not reach an inode that the kernel has yet
//!   to make.
//!
//! What was lent is noted for the whole node, not for an owner, because owners change. Bound: what was lent in the last second or
//! two.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_base::{Clock, Ino};
use forebay_cluster::Moment;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

use crate::grants::{Item, Why};
use crate::namespace::{ANSWER_TIME, KernelCache};

/// How long no names are lent in a directory after a change in it.
const REST: Duration = Duration::from_secs(2);
/// How long a thread waits for the kernel to forget what arrived late: longer than the kernel keeps anything.
const TAKING_BACK: Duration = Duration::from_secs(10);
/// How long a thread waits for answers or for the kernel before it looks again.
const LOOK: Duration = Duration::from_micros(50);
const LONG_LOOK: Duration = Duration::from_millis(10);
/// Directories with changes that are noted before any is forgotten.
const CHANGED_MIN: usize = 1024;

/// The kernel, and how long it keeps what it is lent.
struct Borrower {
    cache: Arc<dyn KernelCache>,
    ttl: Duration,
    clock: Arc<dyn Clock>,
}

/// What is lent to the kernel of this node.
#[derive(Default)]
pub(crate) struct Lent {
    kernel: OnceLock<Borrower>,
    answers: Answers,
    items: Mutex<Items>,
}

/// Items that are lent, and until when at the latest, in the order of their age.
#[derive(Default)]
struct Items {
    young: FxHashMap<Item, Moment>,
    old: FxHashMap<Item, Moment>,
    /// When the young ones began to be noted.
    since: Moment,
    changed: FxHashMap<Ino, Changed>,
    /// Directories with changes after which those are forgotten whose rest is over.
    changed_max: usize,
}

/// A directory in which names were changed.
#[derive(Default)]
struct Changed {
    under_way: u32,
    rests_until: Moment,
}

/// The answer to the kernel that a thread prepares.
#[derive(Clone, Copy, Default)]
struct Answer {
    /// The `Lent` that it belongs to, by its address; 0: none.
    of: usize,
    /// Under which number it is under way.
    number: Option<usize>,
    /// When something was first lent with it.
    lent_at: Option<Moment>,
    /// Whether it may say for a while that there is nothing.
    lends_absence: bool,
    /// Nothing more is lent with it.
    is_barred: bool,
}

/// A look at what may be lent.
pub(crate) struct Look<'a>(&'a Lent);

impl Drop for Look<'_> {
    fn drop(&mut self) {
        // Nobody need wait for an answer with which nothing is lent.
        if let Some(answer) = self.0.answer().filter(|answer| answer.lent_at.is_none())
            && let Some(number) = answer.number
        {
            self.0.answers.end(number);
            ANSWER.set(Answer { number: None, ..answer });
        }
    }
}

thread_local! {
    static ANSWER: Cell<Answer> = Cell::new(Answer::default());
    /// What the answer says of filesets of this node that the kernel keeps for long.
    static GIVEN: RefCell<Vec<Item>> = const { RefCell::new(Vec::new()) };
}

impl Lent {
    /// From now on things are lent to a kernel, each for `ttl`.
    pub fn lend_to(&self, cache: &Arc<dyn KernelCache>, ttl: Duration, clock: &Arc<dyn Clock>) {
        if !ttl.is_zero() {
            let (cache, clock) = (Arc::clone(cache), Arc::clone(clock));
            let _ = self.kernel.set(Borrower { cache, ttl, clock });
        }
    }

    // --- answers ---

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The answer that this thread prepares for this kernel, if it does.
    fn answer(&self) -> Option<Answer> {
        let answer = ANSWER.get();
        (answer.of == self.address()).then_some(answer)
    }

    /// This thread prepares an answer for the kernel.
    pub fn begin_answer(&self) {
        if self.kernel.get().is_some() {
            let _ = self.end_answer();
            ANSWER.set(Answer { of: self.address(), ..Answer::default() });
        }
    }

    /// Whether something is lent with the answer that this thread prepares.
    pub fn answer_lends(&self) -> bool {
        self.answer().is_some_and(|answer| answer.lent_at.is_some())
    }

    /// Whether it may be kept that there is nothing under the name that was looked up.
    pub fn lends_absence(&self) -> bool {
        self.answer().is_some_and(|answer| answer.lends_absence)
    }

    /// The kernel has the answer. If that took so long that what was lent or given with it must be taken back, returns what was
    /// given.
    #[must_use]
    pub fn end_answer(&self) -> Option<Vec<Item>> {
        let answer = self.answer()?;
        ANSWER.set(Answer::default());
        if let Some(number) = answer.number {
            self.answers.end(number);
        }
        let is_late = |kernel: &Borrower, lent_at: Moment| {
            Moment(kernel.clock.boottime()) > lent_at + ANSWER_TIME
        };
        let is_late =
            self.kernel.get().zip(answer.lent_at).is_some_and(|(kernel, at)| is_late(kernel, at));
        GIVEN.with_borrow_mut(|given| {
            if is_late {
                return Some(std::mem::take(given));
            }
            given.clear();
            None
        })
    }

    /// To be held while it is looked whether something is granted that may be lent: whoever takes that back waits for an answer
    /// with which it is lent.
    pub fn look(&self) -> Look<'_> {
        if let Some(answer) = self.answer()
            && answer.number.is_none()
            && !answer.is_barred
        {
            ANSWER.set(Answer { number: Some(self.answers.begin()), ..answer });
        }
        Look(self)
    }

    /// Nothing more is lent with the answer that this thread prepares, as it goes on to ask an owner.
    pub fn bar(&self) {
        if let Some(answer) = self.answer() {
            ANSWER.set(Answer { is_barred: true, ..answer });
        }
    }

    // --- filesets of this node ---

    /// The answer that this thread prepares says something of a fileset of this node that the kernel keeps for long. If it arrives
    /// too late for that, it is taken back. Whether this thread prepares an answer.
    pub fn give(&self, item: Item, now: Moment) -> bool {
        let Some(answer) = self.answer() else { return false };
        GIVEN.with_borrow_mut(|given| given.push(item));
        ANSWER.set(Answer { lent_at: answer.lent_at.or(Some(now)), ..answer });
        true
    }

    // --- lending ---

    /// Lends an item that is granted, and for which its owner vouches until then. Whether it may be lent.
    pub fn lend(&self, item: &Item, vouched_until: Moment, now: Moment) -> bool {
        let Some(kernel) = self.kernel.get() else { return false };
        let may_lend = |answer: &Answer| answer.number.is_some() && !answer.is_barred;
        let Some(answer) = self.answer().filter(may_lend) else { return false };
        let until = now + (kernel.ttl + ANSWER_TIME);
        if until > vouched_until {
            return false;
        }
        let mut items = self.items.lock();
        if let Item::Entry(parent, _) = item
            && items.is_changing(*parent, now)
        {
            return false;
        }
        items.note(item, until, now, kernel.ttl + ANSWER_TIME);
        drop(items);
        ANSWER.set(Answer { lent_at: answer.lent_at.or(Some(now)), ..answer });
        true
    }

    /// As [`Lent::lend`], of a name under which there is nothing.
    pub fn lend_absence(&self, item: &Item, vouched_until: Moment, now: Moment) {
        if self.lend(item, vouched_until, now) {
            ANSWER.set(Answer { lends_absence: true, ..ANSWER.get() });
        }
    }

    // --- changes of this node ---

    /// A program of this node changes names in these directories, and these inodes.
    pub fn changing(&self, directories: impl Iterator<Item = Ino>, inodes: &[Ino]) {
        let Some(kernel) = self.kernel.get() else { return };
        let now = Moment(kernel.clock.boottime());
        let lent: Vec<Ino> = {
            let mut items = self.items.lock();
            for directory in directories {
                items.change(directory, now).under_way += 1;
            }
            let is_lent = |ino: &&Ino| items.take(&Item::Attributes(**ino), now).is_some();
            inodes.iter().filter(is_lent).copied().collect()
        };
        // The kernel sees what its own programs change, but not what they do by way of mappings.
        lent.into_iter().for_each(|ino| kernel.cache.forget_attributes(ino));
    }

    /// It has ended.
    pub fn changed(&self, directories: impl Iterator<Item = Ino>) {
        let Some(kernel) = self.kernel.get() else { return };
        let now = Moment(kernel.clock.boottime());
        let mut items = self.items.lock();
        for directory in directories {
            let change = items.change(directory, now);
            change.under_way = change.under_way.saturating_sub(1);
        }
    }

    // --- taking back ---

    /// An owner takes items back, none of which is lent from now on. Returns when the kernel does not use them any more.
    pub fn take_back(&self, recalled: &[Item], why: Why) {
        let Some(kernel) = self.kernel.get() else { return };
        let now = Moment(kernel.clock.boottime());
        let lent: Vec<(Item, Moment)> = {
            let mut items = self.items.lock();
            for item in recalled {
                if let (Item::Entry(parent, _), Why::Change) = (item, why) {
                    items.change(*parent, now);
                }
            }
            let take = |item: &Item| Some((item.clone(), items.take(item, now)?));
            recalled.iter().filter_map(take).collect()
        };
        self.forget(kernel, lent, why);
    }

    /// An answer took so long that more is lent than is vouched for, and that what was `given` with it is kept for too long.
    pub fn take_all_back(&self, given: Vec<Item>) {
        let Some(kernel) = self.kernel.get() else { return };
        let lent: Vec<(Item, Moment)> = {
            let mut items = self.items.lock();
            let (young, old) = (std::mem::take(&mut items.young), std::mem::take(&mut items.old));
            // Whoever holds a directory for longer than that keeps what it has.
            let until = Moment(kernel.clock.boottime() + TAKING_BACK);
            let given = given.into_iter().map(|item| (item, until));
            young.into_iter().chain(old).chain(given).collect()
        };
        tracing::debug!(
            items = lent.len(),
            "an answer was late: the kernel forgets what it was lent"
        );
        self.forget(kernel, lent, Why::Release);
    }

    fn forget(&self, kernel: &Borrower, lent: Vec<(Item, Moment)>, why: Why) {
        if lent.is_empty() {
            return;
        }
        self.answers.settle();
        let (mut names, mut until) = (Vec::new(), Moment::default());
        for (item, lent_until) in lent {
            match item {
                Item::Attributes(ino) => kernel.cache.forget_attributes(ino),
                Item::Directory(_) => {}
                Item::Entry(parent, name) => {
                    names.push((parent, name));
                    until = until.max(lent_until);
                }
            }
        }
        if !names.is_empty() {
            forget_names(kernel, names, why, until);
        }
    }
}

/// A name in its directory.
type Name = (Ino, Box<[u8]>);

/// Has the kernel forget names, from a thread of its own; returns when it has, or when it does not use them any more.
///
/// A name that does not change only has to be asked for again. Without that it would be lost to programs whose working directory is
/// below it (getcwd(2)), with everything that is mounted there.
fn forget_names(kernel: &Borrower, names: Vec<Name>, why: Why, until: Moment) {
    let cache = Arc::clone(&kernel.cache);
    let is_done = Arc::new((Mutex::new(false), Condvar::new()));
    let done = Arc::clone(&is_done);
    let forget = move || {
        names.iter().for_each(|(parent, name)| match why {
            Why::Change => cache.forget_entry(*parent, name),
            Why::Release => cache.ask_again_for_entry(*parent, name),
        });
        *done.0.lock() = true;
        done.1.notify_all();
    };
    if let Err(error) = std::thread::Builder::new().name("names".to_owned()).spawn(forget) {
        tracing::debug!(%error, "names are waited for until the kernel asks for them again");
    }
    let mut finished = is_done.0.lock();
    while !*finished && Moment(kernel.clock.boottime()) < until {
        is_done.1.wait_for(&mut finished, LONG_LOOK);
    }
}

impl Items {
    fn note(&mut self, item: &Item, until: Moment, now: Moment, lasts: Duration) {
        if now >= self.since + lasts {
            // What is old by now has lapsed.
            self.old = std::mem::take(&mut self.young);
            self.since = now;
        }
        self.young.insert(item.clone(), until);
    }

    /// Takes an item out; until when it is lent, if it is.
    fn take(&mut self, item: &Item, now: Moment) -> Option<Moment> {
        let both = [self.young.remove(item), self.old.remove(item)];
        both.into_iter().flatten().max().filter(|until| *until > now)
    }

    fn change(&mut self, directory: Ino, now: Moment) -> &mut Changed {
        if self.changed.len() >= self.changed_max {
            self.changed.retain(|_, it| it.under_way > 0 || it.rests_until > now);
            self.changed_max = (self.changed.len() * 2).max(CHANGED_MIN);
        }
        let changed = self.changed.entry(directory).or_default();
        changed.rests_until = now + REST;
        changed
    }

    fn is_changing(&self, directory: Ino, now: Moment) -> bool {
        let changed = self.changed.get(&directory);
        changed.is_some_and(|it| it.under_way > 0 || it.rests_until > now)
    }
}

/// Answers on their way to the kernel: those that were begun in turn.
#[derive(Default)]
struct Answers {
    turn: AtomicUsize,
    under_way: [AtomicUsize; 2],
    settling: Mutex<()>,
}

impl Answers {
    fn begin(&self) -> usize {
        loop {
            let turn = self.turn.load(Ordering::SeqCst);
            self.under_way[turn % 2].fetch_add(1, Ordering::SeqCst);
            if self.turn.load(Ordering::SeqCst) == turn {
                return turn;
            }
            // Somebody waits for the answers of that turn: this is one of the next.
            self.under_way[turn % 2].fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn end(&self, turn: usize) {
        self.under_way[turn % 2].fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until all answers have arrived that were begun before. One that takes longer than [`ANSWER_TIME`] is not waited for: it
    /// takes back what it lends.
    fn settle(&self) {
        let _one_at_a_time = self.settling.lock();
        let turn = self.turn.fetch_add(1, Ordering::SeqCst);
        let mut waited = Duration::ZERO;
        while self.under_way[turn % 2].load(Ordering::SeqCst) > 0 && waited < ANSWER_TIME {
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
    }
}
