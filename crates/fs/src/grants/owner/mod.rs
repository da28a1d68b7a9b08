//! The owner's side: who may cache what of a fileset, and changes that wait for recalls.

mod delegating;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::channel::Message;
use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{ClientId, Clock, Epoch, FilesetId, Ino};
use forebay_cluster::grants::owner::{Effect, Event};
use forebay_cluster::grants::reports::CarriedOut;
use forebay_cluster::grants::{ChangeNumber, GrantNumber, Grants, RecallNumber};
use forebay_cluster::{Moment, Settings};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{GrantFigures, Granted, Item, NOBODY, Recall, Touched, Why, settings};
use crate::gate::Lease;
use crate::namespace::Cluster;
use crate::remote::wire::encode;

/// How long a change that waits for recalls goes without looking at the clock.
const LOOK: Duration = Duration::from_millis(10);
/// How long a thread that carries recalls waits for more.
const IDLE: Duration = Duration::from_secs(2);

/// How long nodes may take to open again at a new owner what they had open at the former one. They look each second; one that
/// cannot has lost its lease, and is dropped.
const OPEN_AGAIN_MAX: Duration = Duration::from_secs(15);

/// How long a recall that did not arrive waits to be sent again.
const RETRY: Duration = Duration::from_millis(20);

type Name = (Ino, Box<[u8]>);

/// The grants of one fileset, in one epoch.
pub(crate) struct Granting {
    fileset: FilesetId,
    clock: Arc<dyn Clock>,
    lease: Option<Arc<Lease>>,
    cluster: Arc<dyn Cluster>,
    settings: Settings,
    /// When the fileset was opened.
    since: Moment,
    /// Some client has asked for a word. Until then a change need not look for grants.
    is_on: AtomicBool,
    /// Some directory was delegated. Until then nobody who is told of one need look.
    delegates: AtomicBool,
    turning_on: Mutex<()>,
    /// What each client has reported.
    reports: Mutex<HashMap<ClientId, Arc<Mutex<ReportsOf>>>>,
    table: Mutex<Table>,
    changed: Condvar,
    /// A recall lies in an outbox. Changes that need none wake no thread that carries recalls.
    mail: Condvar,
}

struct Table {
    grants: Grants,
    /// Every change looks for grants by now: they may be given.
    gives: bool,
    next_change: u64,
    /// Terms are never used twice: a client that was forgotten must not take what it has for granted in the next one.
    next_term: u64,
    /// Changes that may take effect.
    ready: HashSet<ChangeNumber>,
    /// Names that are being changed.
    names: HashSet<Name>,
    clients: HashMap<ClientId, Client>,
}

/// What a client has reported.
#[derive(Default)]
pub(crate) struct ReportsOf {
    pub done: CarriedOut,
    /// Changes of the latest report that could not be carried out.
    pub lost: BTreeSet<u64>,
}

/// What is known of a client.
struct Client {
    term: u64,
    /// When the word that was given for it has lapsed.
    vouched_to: Moment,
    /// Its grants are void then.
    is_leaving: bool,
    /// Its session is over: it does not come back.
    is_gone: bool,
    recalls: u64,
    evictions: u64,
    /// Recalls that its thread has not taken.
    outbox: Vec<(RecallNumber, Vec<Item>)>,
    /// Why the most important of them was sent.
    why: Why,
    has_thread: bool,
}

impl Client {
    fn of_term(term: u64) -> Client {
        Client {
            term,
            vouched_to: Moment::default(),
            is_leaving: false,
            is_gone: false,
            recalls: 0,
            evictions: 0,
            outbox: Vec::new(),
            why: Why::Release,
            has_thread: false,
        }
    }
}

/// Who makes a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changer {
    pub client: ClientId,
    /// The latest grant that it knew of when it gave up what it changes.
    pub seen: GrantNumber,
    /// It has made the change already, in a directory that is delegated to it, and gives nothing up.
    pub reports: bool,
}

impl Changer {
    /// This node.
    pub const LOCAL: Changer =
        Changer { client: ClientId::LOCAL, seen: GrantNumber(0), reports: false };
}

/// A change that may take effect: nobody else caches what it touches, nor is granted it until this is dropped.
pub(crate) struct Changing {
    granting: Arc<Granting>,
    names: Vec<Name>,
    changes: Vec<ChangeNumber>,
    /// Who makes it, and the inodes of which it had a grant until then.
    by: ClientId,
    had: Vec<Ino>,
}

impl Changing {
    /// The change has taken effect: the client that made it is granted the directory in which it was. Says as well whether what
    /// that had cached of the directory still holds, but for the change.
    pub fn grant_directory(&mut self, ino: Ino) -> Option<(GrantNumber, bool)> {
        if self.changes.is_empty() {
            return None;
        }
        let granting = Arc::clone(&self.granting);
        let mut table = granting.table.lock();
        let is_known = table.clients.get(&self.by).is_some_and(|known| !known.is_leaving);
        if !table.gives || !is_known {
            return None;
        }
        // The one that holds the directory comes first.
        let change = self.changes.remove(0);
        table.ready.remove(&change);
        let (now, mut effects) = (granting.now(), Vec::new());
        let item = Item::Attributes(ino);
        let granted = table.grants.applied_by(change, (self.by, &item), now, &mut effects);
        granting.carry_out(&mut table, effects, Why::Release);
        granting.step(&mut table, Event::Tick);
        granted.map(|(number, is_latest)| (number, is_latest && self.had.contains(&ino)))
    }

    /// Whether it holds for the fileset as it is open now.
    pub fn is_at(&self, granting: &Arc<Granting>) -> bool {
        Arc::ptr_eq(&self.granting, granting)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut table = self.granting.table.lock();
        for change in &self.changes {
            table.ready.remove(change);
            self.granting.step(&mut table, Event::Applied(*change));
        }
        for name in &self.names {
            table.names.remove(name);
        }
        drop(table);
        self.granting.changed.notify_all();
    }
}

impl Granting {
    /// Of a fileset that was opened in `epoch`.
    pub fn new(
        fileset: FilesetId,
        epoch: Epoch,
        clock: &Arc<dyn Clock>,
        lease: Option<&Arc<Lease>>,
        cluster: &Arc<dyn Cluster>,
    ) -> Arc<Granting> {
        let settings = settings();
        Arc::new(Granting {
            fileset,
            clock: Arc::clone(clock),
            lease: lease.cloned(),
            cluster: Arc::clone(cluster),
            settings,
            since: Moment(clock.boottime()),
            is_on: AtomicBool::new(false),
            delegates: AtomicBool::new(false),
            turning_on: Mutex::default(),
            reports: Mutex::default(),
            table: Mutex::new(Table {
                grants: Grants::new(settings, epoch),
                gives: false,
                next_change: 0,
                next_term: 1,
                ready: HashSet::new(),
                names: HashSet::new(),
                clients: HashMap::new(),
            }),
            changed: Condvar::new(),
            mail: Condvar::new(),
        })
    }

    /// Whether a change must look for grants.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Whether every node has had the time to say what it has open since an earlier owner.
    pub fn knows_what_is_open(&self) -> bool {
        self.now() >= self.since + OPEN_AGAIN_MAX
    }

    fn now(&self) -> Moment {
        Moment(self.clock.boottime())
    }

    /// Whether recalls can be sent to a client: otherwise nothing is granted to it.
    pub fn reaches(&self, client: ClientId) -> bool {
        self.cluster.cache_of(client.node).is_some()
    }

    /// Gives grants from now on. `drain` waits until every change has ended that may not have looked for them.
    pub fn turn_on(&self, drain: impl FnOnce()) {
        let _one_at_a_time = self.turning_on.lock();
        if !self.is_on.swap(true, Ordering::AcqRel) {
            drain();
            self.table.lock().gives = true;
        }
    }

    /// For how long this node vouches from now on for what a client caches, and the client's term.
    pub fn vouch(self: &Arc<Self>, client: ClientId) -> (Duration, u64) {
        let lease_left = self.lease.as_ref().map_or(Duration::MAX, |lease| lease.left());
        let mut table = self.table.lock();
        self.step(&mut table, Event::Tick);
        let now = self.now();
        let vouches = table.gives && table.grants.vouches_for(client, now);
        let known = table.client(client);
        let vouches = vouches && !known.is_leaving;
        let word = if vouches { self.settings.vouch.min(lease_left) } else { Duration::ZERO };
        let lapse = now + self.settings.clock_drift.at_most(word);
        known.vouched_to = known.vouched_to.max(lapse);
        (word, known.term)
    }

    /// Grants an item, if it may be cached. To be called before what is answered is read.
    pub fn grant(self: &Arc<Self>, client: ClientId, item: &Item) -> Option<GrantNumber> {
        if !self.is_on() {
            return None;
        }
        let mut table = self.table.lock();
        let is_known = table.clients.get(&client).is_some_and(|known| !known.is_leaving);
        if !table.gives || !is_known {
            return None;
        }
        let (now, mut effects) = (self.now(), Vec::new());
        let number = table.grants.grant(client, item, now, &mut effects);
        self.carry_out(&mut table, effects, Why::Release);
        number
    }

    /// The term of a client's grants.
    pub fn term(&self, client: ClientId) -> u64 {
        self.table.lock().clients.get(&client).map_or(0, |known| known.term)
    }

    /// Recalls what a change touches from all others, and waits until nobody uses it. What the names lead to is found
    /// by `leads_to`, and taken from the one who changes as well: it need not know what that is. Of the other items it has given up what
    /// it knew of. No lock may be held.
    pub fn begin(
        self: &Arc<Self>,
        by: Changer,
        touched: &Touched<'_>,
        leads_to: impl Fn(Ino, &[u8]) -> Option<Ino>,
    ) -> Changing {
        let names: Vec<Name> =
            touched.names.iter().map(|(parent, name)| (*parent, (*name).into())).collect();
        let mut table = self.table.lock();
        while names.iter().any(|name| table.names.contains(name)) {
            self.changed.wait(&mut table);
        }
        table.names.extend(names.iter().cloned());
        let items = touched.items();
        let had = |ino: &&Ino| table.grants.holds(by.client, &Item::Attributes(**ino), by.seen);
        let had = touched.inodes.iter().filter(had).copied().collect();
        let (granting, changes) = (Arc::clone(self), Vec::new());
        let mut changing = Changing { granting, names, changes, by: by.client, had };
        // A call whose client was told that it failed may come late: what that was granted since is recalled.
        let is_given_up = table.grants.has_given_up(by.client, &items, by.seen);
        let spared = if is_given_up || by.reports { by.client } else { NOBODY };
        let delegated = table.delegated(by.client, &items);
        let all = items.iter().cloned().chain(delegated).collect();
        changing.changes.push(self.change(&mut table, spared, all));
        if touched.targets {
            drop(table);
            let found = touched.names.iter().filter_map(|(parent, name)| leads_to(*parent, name));
            let found: Vec<Ino> = found.collect();
            let targets: Vec<Item> = found
                .iter()
                .map(|ino| Item::Attributes(*ino))
                .filter(|item| !items.contains(item))
                .collect();
            table = self.table.lock();
            let is_known = found.iter().all(|ino| touched.known.contains(ino))
                && table.grants.has_given_up(by.client, &targets, by.seen);
            let spared = if is_known || by.reports { by.client } else { NOBODY };
            let delegated = table.delegated(by.client, &targets);
            let all = targets.into_iter().chain(delegated).collect();
            changing.changes.push(self.change(&mut table, spared, all));
        }
        self.await_ready(&mut table, &changing.changes);
        drop(table);
        changing
    }

    /// Waits until a change may take effect, of which nothing but the recalls was wanted.
    fn pass(self: &Arc<Self>, table: &mut MutexGuard<'_, Table>, change: ChangeNumber) {
        self.await_ready(table, &[change]);
        table.ready.remove(&change);
        self.step(table, Event::Applied(change));
    }

    /// Waits until these changes may take effect.
    fn await_ready(self: &Arc<Self>, table: &mut MutexGuard<'_, Table>, changes: &[ChangeNumber]) {
        let mut waits = None;
        while !changes.iter().all(|change| table.ready.contains(change)) {
            let slow = changes.iter().find_map(|change| table.grants.awaits(*change));
            if let (None, Some((client, directory))) = (&waits, slow) {
                waits = Some(in_flight::waits_for(|| match directory {
                    Some(directory) => WaitsFor::Report(client.node, directory),
                    None => WaitsFor::Recall(client.node),
                }));
            }
            self.changed.wait_for(table, LOOK);
            self.step(table, Event::Tick);
        }
    }

    fn change(
        self: &Arc<Self>,
        table: &mut Table,
        by: ClientId,
        mut items: Vec<Item>,
    ) -> ChangeNumber {
        items.sort_unstable();
        items.dedup();
        let change = table.next_change();
        self.step(table, Event::Change { change, by, items });
        change
    }

    /// Takes items back that have changed already, where nobody could have been asked before. Waits for nothing.
    pub fn take_back(self: &Arc<Self>, items: Vec<Item>) {
        let mut table = self.table.lock();
        let change = self.change(&mut table, NOBODY, items);
        table.ready.remove(&change);
        self.step(&mut table, Event::Applied(change));
    }

    /// Takes everything back and gives nothing more, before the fileset goes to another node.
    pub fn settle(self: &Arc<Self>) {
        if !self.is_on() {
            return;
        }
        let mut table = self.table.lock();
        let change = table.next_change();
        self.step(&mut table, Event::Settle(change));
        self.pass(&mut table, change);
    }

    /// The fileset stays after all.
    pub fn resume(&self) {
        self.table.lock().grants.resume();
    }

    /// A client was dropped: its grants are void once the word that was given for it has lapsed.
    pub fn leave(self: &Arc<Self>, client: ClientId) {
        let mut table = self.table.lock();
        if let Some(known) = table.clients.get_mut(&client) {
            (known.is_leaving, known.is_gone) = (true, true);
            self.step(&mut table, Event::Tick);
        }
        drop(table);
        self.reports.lock().remove(&client);
    }

    /// What there is to count of each client.
    pub fn figures(&self) -> Vec<(ClientId, GrantFigures)> {
        let table = self.table.lock();
        let of = |(client, known): (&ClientId, &Client)| {
            let (recalls, evictions) = (known.recalls, known.evictions);
            let grants = table.grants.count(*client) as u64;
            let directories = table.grants.directories_of(*client) as u64;
            (*client, GrantFigures { grants, directories, recalls, evictions })
        };
        table.clients.iter().map(of).collect()
    }

    // --- the state machine ---

    fn step(self: &Arc<Self>, table: &mut Table, event: Event) {
        let now = self.now();
        let why = if matches!(event, Event::Settle(_)) { Why::Release } else { Why::Change };
        let effects = table.grants.step(event, now);
        self.carry_out(table, effects, why);
        let due: Vec<ClientId> = table
            .clients
            .iter()
            .filter(|(_, known)| known.is_leaving && known.vouched_to <= now)
            .map(|(client, _)| *client)
            .collect();
        for client in due {
            let term = table.new_term();
            match table.clients.get_mut(&client) {
                Some(known) if !known.is_gone => {
                    known.is_leaving = false;
                    known.term = term;
                    known.outbox.clear();
                }
                _ => drop(table.clients.remove(&client)),
            }
            let effects = table.grants.step(Event::Dropped(client), now);
            self.carry_out(table, effects, Why::Change);
        }
    }

    fn carry_out(self: &Arc<Self>, table: &mut Table, effects: Vec<Effect>, why: Why) {
        for effect in effects {
            match effect {
                Effect::Recall { client, recall, items } => {
                    self.send(table, client, (recall, items), why);
                }
                Effect::Apply(change) => {
                    table.ready.insert(change);
                    self.changed.notify_all();
                }
                Effect::Evict(client) => {
                    let known = table.client(client);
                    // The word for it has lapsed by now, or does so in a moment.
                    known.is_leaving = true;
                    known.evictions += 1;
                    tracing::warn!(
                        fileset = %self.fileset,
                        node = %client.node,
                        "a node did not answer a recall in time: what it cached is void"
                    );
                }
            }
        }
    }

    /// Puts a recall into the client's outbox.
    fn send(
        self: &Arc<Self>,
        table: &mut Table,
        client: ClientId,
        recall: (RecallNumber, Vec<Item>),
        why: Why,
    ) {
        let known = table.client(client);
        known.recalls += recall.1.len() as u64;
        known.outbox.push(recall);
        known.why = known.why.max(why);
        if known.has_thread {
            self.mail.notify_all();
            return;
        }
        known.has_thread = true;
        let granting = Arc::clone(self);
        let carrying = move || granting.carry_recalls(client);
        if let Err(error) = std::thread::Builder::new().name("recall".to_owned()).spawn(carrying) {
            // The change waits until the word for the client has lapsed.
            tracing::warn!(%error, node = %client.node, "a recall cannot be sent");
            known.has_thread = false;
        }
    }

    /// Carries the recalls of one client, all that there are at once, until there were none for a while.
    fn carry_recalls(self: &Arc<Self>, client: ClientId) {
        let mut table = self.table.lock();
        let mut since = self.clock.instant();
        loop {
            let Some(known) = table.clients.get_mut(&client) else { return };
            let recalls = std::mem::take(&mut known.outbox);
            let why = std::mem::replace(&mut known.why, Why::Release);
            if recalls.is_empty() {
                let waited = self.clock.instant().saturating_duration_since(since);
                if waited >= IDLE || self.mail.wait_for(&mut table, IDLE).timed_out() {
                    if let Some(known) = table.clients.get_mut(&client)
                        && known.outbox.is_empty()
                    {
                        known.has_thread = false;
                        return;
                    }
                    since = self.clock.instant();
                }
                continue;
            }
            drop(table);
            let is_acknowledged = self.call(client, recalls.clone(), why);
            table = self.table.lock();
            if is_acknowledged {
                for (recall, _) in recalls {
                    self.step(&mut table, Event::Acknowledged(client, recall));
                }
            } else if let Some(known) = table.clients.get_mut(&client)
                && !known.is_leaving
            {
                // Until its session goes on, or what it was granted is void.
                known.outbox.extend(recalls);
                known.why = known.why.max(why);
                self.mail.wait_for(&mut table, RETRY);
            }
            since = self.clock.instant();
        }
    }

    fn call(&self, client: ClientId, recalls: Vec<(RecallNumber, Vec<Item>)>, why: Why) -> bool {
        let Some(channel) = self.cluster.cache_of(client.node) else { return false };
        let head = encode(&Recall { fileset: self.fileset, why, recalls });
        match channel.call(Message { head, payload: Vec::new() }) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(node = %client.node, %error, "a recall has no answer");
                false
            }
        }
    }
}

impl Table {
    fn next_change(&mut self) -> ChangeNumber {
        self.next_change += 1;
        ChangeNumber(self.next_change)
    }

    fn new_term(&mut self) -> u64 {
        let term = self.next_term;
        self.next_term += 1;
        term
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        if !self.clients.contains_key(&client) {
            let term = self.new_term();
            self.clients.insert(client, Client::of_term(term));
        }
        self.clients.entry(client).or_insert_with(|| Client::of_term(0))
    }
}

impl Granted {
    /// Whether anything was granted.
    pub fn any(&self) -> bool {
        self.entry.is_some() || self.attributes.is_some()
    }
}
