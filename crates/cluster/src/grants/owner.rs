//! The owner's side: who was granted what, and which changes wait for whom.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_base::{ClientId, Epoch, Ino};

use super::{ChangeNumber, GrantNumber, Item, RecallNumber};
use crate::fault::{self, Fault};
use crate::settings::Settings;
use crate::time::Moment;

/// What happens to the grants of a fileset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A change is to take effect. It may when [`Effect::Apply`] comes.
    Change {
        /// Named in the effect.
        change: ChangeNumber,
        /// Who changes; its own grants on these items are over without a recall.
        by: ClientId,
        /// What the change touches.
        items: Vec<Item>,
    },
    /// A file is to be opened for writing. It may when [`Effect::Apply`] comes; from now on it is contended.
    OpenForWriting {
        /// Named in the effect.
        change: ChangeNumber,
        /// Who opens.
        by: ClientId,
        /// The file.
        file: Ino,
    },
    /// One descriptor that was open for writing was closed, or its open failed.
    CloseForWriting {
        /// Who had it open.
        by: ClientId,
        /// The file.
        file: Ino,
    },
    /// Every grant is to be recalled, and none given from now on: before the fileset is handed over.
    Settle(ChangeNumber),
    /// The node was superseded: every grant is recalled, and no client that has one is vouched for until it has acknowledged.
    /// Without it, the word that this node gives for other filesets would revive grants of one that it lost.
    Abandon(ChangeNumber),
    /// What [`Effect::Apply`] named has taken effect, or will not.
    Applied(ChangeNumber),
    /// A client has invalidated what a recall named.
    Acknowledged(ClientId, RecallNumber),
    /// A client does not cache these any more.
    Returned(ClientId, Vec<(Item, GrantNumber)>),
    /// A client is gone, and nothing that it cached is in use.
    Dropped(ClientId),
    /// Time has passed.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Call the client: it is to invalidate these items and acknowledge.
    Recall {
        /// Who.
        client: ClientId,
        /// To be named in the acknowledgement.
        recall: RecallNumber,
        /// What.
        items: Vec<Item>,
    },
    /// The change may take effect now. No grant is given on its items until [`Event::Applied`].
    Apply(ChangeNumber),
    /// The client did not acknowledge within `recall_timeout`: its session is to be ended.
    Evict(ClientId),
}

#[derive(Clone, Copy, Debug)]
struct Held {
    number: GrantNumber,
    since: Moment,
}

#[derive(Clone, Debug, Default)]
struct Granted {
    holders: BTreeMap<ClientId, Held>,
    /// Changes that wait or take effect.
    changes: usize,
    /// The latest of them, or of those before.
    latest: ChangeNumber,
    /// How many descriptors each client has open for writing.
    writers: BTreeMap<ClientId, usize>,
    /// Recalls of it that were not acknowledged.
    recalls: BTreeMap<RecallNumber, ClientId>,
    cool_down: Duration,
    cool_until: Moment,
}

#[derive(Clone, Debug, Default)]
struct Client {
    /// Its grants in the order in which they were given.
    order: BTreeMap<GrantNumber, Item>,
    recalls: BTreeMap<RecallNumber, Recall>,
    evicted: bool,
}

#[derive(Clone, Debug)]
struct Recall {
    since: Moment,
    items: Vec<Item>,
    /// Whether it makes room, rather than a change wait.
    makes_room: bool,
}

#[derive(Clone, Debug)]
struct Change {
    items: Vec<Item>,
    /// Those among them that were taken from others than the one who changes: they are not granted for a while.
    cooled: BTreeSet<Item>,
    recalls: BTreeSet<RecallNumber>,
    applied: bool,
}

/// The grants of one fileset, at its owner.
#[derive(Clone, Debug)]
pub struct Grants {
    settings: Settings,
    items: BTreeMap<Item, Granted>,
    clients: BTreeMap<ClientId, Client>,
    changes: BTreeMap<ChangeNumber, Change>,
    /// Items of which nothing but the cool-down is left, by the end of it.
    cooling: BTreeSet<(Moment, Item)>,
    next_grant: GrantNumber,
    next_recall: RecallNumber,
    settling: bool,
    abandoned: bool,
}

impl Grants {
    /// A fileset that was opened in `epoch`. Numbers of recalls and grants begin with the epoch: an acknowledgement of an
    /// earlier epoch must not be taken for one of this.
    #[must_use]
    pub fn new(settings: Settings, epoch: Epoch) -> Grants {
        Grants {
            settings,
            items: BTreeMap::new(),
            clients: BTreeMap::new(),
            changes: BTreeMap::new(),
            cooling: BTreeSet::new(),
            next_grant: GrantNumber(epoch.0 << 32),
            next_recall: RecallNumber(epoch.0 << 32),
            abandoned: false,
            settling: false,
        }
    }

    /// Grants that a client has, those being recalled included.
    #[must_use]
    pub fn count(&self, client: ClientId) -> usize {
        let Some(client) = self.clients.get(&client) else { return 0 };
        client.order.len() + client.recalls.values().map(|recall| recall.items.len()).sum::<usize>()
    }

    /// Whether a client has given up all that it was granted of these items, if it knew of no grant after `seen` when it did:
    /// nothing later is held, and nothing is being recalled from it.
    #[must_use]
    pub fn has_given_up(&self, client: ClientId, items: &[Item], seen: GrantNumber) -> bool {
        let mut granted = items.iter().filter_map(|item| self.items.get(item));
        granted.all(|granted| {
            let held = granted.holders.get(&client);
            held.is_none_or(|held| held.number <= seen)
                && granted.recalls.values().all(|recalled| *recalled != client)
        })
    }

    /// Whether a client has a grant of an item, of which it had heard before `seen`.
    #[must_use]
    pub fn holds(&self, client: ClientId, item: &Item, seen: GrantNumber) -> bool {
        let held = self.items.get(item).and_then(|granted| granted.holders.get(&client));
        held.is_some_and(|held| held.number <= seen)
    }

    /// Whether another client has a grant of an item, or has not acknowledged that it was recalled.
    #[must_use]
    pub fn others_have(&self, client: ClientId, item: &Item) -> bool {
        self.items.get(item).is_some_and(|granted| granted.is_with_others(client))
    }

    /// Whether a client has a grant of an item, or has not acknowledged that it was recalled.
    #[must_use]
    pub fn has(&self, client: ClientId, item: &Item) -> bool {
        self.items.get(item).is_some_and(|granted| {
            granted.holders.contains_key(&client)
                || granted.recalls.values().any(|recalled| *recalled == client)
        })
    }

    /// Directories that are delegated.
    #[must_use]
    pub fn directories(&self) -> Vec<Item> {
        self.items.range(Item::Directory(Ino(0))..).map(|(item, _)| item.clone()).collect()
    }

    /// A change has taken effect, and the client that made it is granted one of the items that it touched in the same step, if
    /// nobody else changes it now. Says as well whether nobody else has begun to change it since this change began.
    pub fn applied_by(
        &mut self,
        change: ChangeNumber,
        (client, item): (ClientId, &Item),
        now: Moment,
        effects: &mut Vec<Effect>,
    ) -> Option<(GrantNumber, bool)> {
        let is_latest = self.items.get(item).is_some_and(|granted| granted.latest == change);
        self.applied(change, now);
        Some((self.grant(client, item, now, effects)?, is_latest))
    }

    /// Whether every grant is back after [`Event::Settle`] or [`Event::Abandon`].
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settling && self.clients.values().all(|client| client.recalls.is_empty())
    }

    /// What [`Event::Settle`] began comes to nothing: the fileset stays, and grants are given again.
    pub fn resume(&mut self) {
        self.settling = self.abandoned;
    }

    /// A client that a change waits for, and a directory that is taken back from it.
    #[must_use]
    pub fn awaits(&self, change: ChangeNumber) -> Option<(ClientId, Option<Ino>)> {
        let number = self.changes.get(&change)?.recalls.first()?;
        let of = |(id, client): (&ClientId, &Client)| {
            Some((*id, client.recalls.get(number)?.items.iter().find_map(Item::directory)))
        };
        self.clients.iter().find_map(of)
    }

    /// How many directories are delegated to a client.
    #[must_use]
    pub fn directories_of(&self, client: ClientId) -> usize {
        let directories = self.items.range(Item::Directory(Ino(0))..);
        directories.filter(|(_, granted)| granted.holders.contains_key(&client)).count()
    }

    /// Whether this client is vouched for: not if a recall has waited for so long that it may have to be evicted.
    #[must_use]
    pub fn vouches_for(&self, client: ClientId, now: Moment) -> bool {
        let patience = self.settings.recall_timeout.saturating_sub(self.settings.lapse());
        let Some(client) = self.clients.get(&client) else { return true };
        if self.abandoned && !fault::is(Fault::VouchAfterLoss) {
            return client.recalls.is_empty();
        }
        client.recalls.values().all(|recall| now < recall.since + patience)
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        let clients = self.clients.values().filter(|client| !client.evicted);
        let recalls = clients.flat_map(|client| client.recalls.values());
        let timeout = self.settings.recall_timeout;
        recalls.map(|recall| recall.since + timeout).min().unwrap_or(Moment(Duration::MAX))
    }

    /// Grants an item to a client together with the answer that is made now, if it may be cached.
    pub fn grant(
        &mut self,
        client: ClientId,
        item: &Item,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) -> Option<GrantNumber> {
        self.forget_cooled(now);
        if self.settling || self.clients.get(&client).is_some_and(|it| it.evicted) {
            return None;
        }
        if self.items.get(item).is_some_and(|granted| !granted.may_be_granted(client, now)) {
            return None;
        }
        if matches!(item, Item::Directory(_)) && self.others_have(client, item) {
            return None;
        }
        let again = self.items.get(item).is_some_and(|it| it.holders.contains_key(&client));
        if !again && self.count(client) >= self.settings.grants_max {
            self.make_room(client, now, effects);
            return None;
        }
        let number = self.next_grant;
        self.next_grant = GrantNumber(number.0 + 1);
        let granted = self.items.entry(item.clone()).or_default();
        let former = granted.holders.insert(client, Held { number, since: now });
        let order = &mut self.clients.entry(client).or_default().order;
        if let Some(former) = former {
            order.remove(&former.number);
        }
        order.insert(number, item.clone());
        Some(number)
    }

    /// Recalls a sixteenth of a client's grants, the oldest, unless that was done already.
    fn make_room(&mut self, id: ClientId, now: Moment, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.recalls.values().any(|recall| recall.makes_room) {
            return;
        }
        let count = self.settings.grants_max / 16 + 1;
        let items: Vec<Item> = client.order.values().take(count).cloned().collect();
        for item in &items {
            self.end_grant(id, item);
        }
        self.recall(id, items, true, now, effects);
    }

    /// Takes note of an event; stale ones change nothing.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Change { change, by, items } => {
                self.change(change, by, items, now, &mut effects);
            }
            Event::OpenForWriting { change, by, file } => {
                let item = Item::Attributes(file);
                let granted = self.items.entry(item.clone()).or_default();
                *granted.writers.entry(by).or_default() += 1;
                self.change(change, by, vec![item], now, &mut effects);
            }
            Event::CloseForWriting { by, file } => self.close_for_writing(by, file),
            Event::Settle(change) => self.settle(change, now, &mut effects),
            Event::Abandon(change) => {
                self.abandoned = true;
                self.changes.clear();
                self.settle(change, now, &mut effects);
            }
            Event::Applied(change) => self.applied(change, now),
            Event::Acknowledged(client, recall) => self.acknowledged(client, recall),
            Event::Returned(client, grants) => {
                for (item, number) in grants {
                    self.returned(client, &item, number);
                }
            }
            Event::Dropped(client) => self.dropped(client),
            Event::Tick => {}
        }
        self.advance(now, &mut effects);
        effects
    }

    fn change(
        &mut self,
        number: ChangeNumber,
        by: ClientId,
        items: Vec<Item>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let mut taken: BTreeMap<ClientId, Vec<Item>> = BTreeMap::new();
        let mut cooled = BTreeSet::new();
        for item in &items {
            let granted = self.items.entry(item.clone()).or_default();
            granted.changes += 1;
            granted.latest = number;
            if granted.cool(by, &self.settings, now) {
                cooled.insert(item.clone());
            }
            let holders: Vec<ClientId> = granted.holders.keys().copied().collect();
            for holder in holders {
                self.end_grant(holder, item);
                if holder != by {
                    taken.entry(holder).or_default().push(item.clone());
                }
            }
        }
        let mut recalls = self.outstanding(&items, by);
        for (client, items) in taken {
            recalls.insert(self.recall(client, items, false, now, effects));
        }
        if fault::is(Fault::ChangeWithoutRecall) {
            recalls.clear();
        }
        self.changes.insert(number, Change { items, cooled, recalls, applied: false });
    }

    /// Recalls that were begun for another change, or to make room, and that this change must wait for as well.
    fn outstanding(&self, items: &[Item], by: ClientId) -> BTreeSet<RecallNumber> {
        let granted = items.iter().filter_map(|item| self.items.get(item));
        let recalls = granted.flat_map(|granted| &granted.recalls);
        recalls.filter(|(_, client)| **client != by).map(|(number, _)| *number).collect()
    }

    fn settle(&mut self, number: ChangeNumber, now: Moment, effects: &mut Vec<Effect>) {
        self.settling = true;
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        let mut recalls: BTreeSet<RecallNumber> =
            self.clients.values().flat_map(|client| client.recalls.keys().copied()).collect();
        for client in clients {
            let items: Vec<Item> = self.clients[&client].order.values().cloned().collect();
            for item in &items {
                self.end_grant(client, item);
            }
            if !items.is_empty() {
                recalls.insert(self.recall(client, items, false, now, effects));
            }
        }
        if fault::is(Fault::HandoverWithoutRecall) {
            recalls.clear();
        }
        let (items, cooled) = (Vec::new(), BTreeSet::new());
        self.changes.insert(number, Change { items, cooled, recalls, applied: false });
    }

    fn recall(
        &mut self,
        client: ClientId,
        items: Vec<Item>,
        makes_room: bool,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) -> RecallNumber {
        let number = self.next_recall;
        self.next_recall = RecallNumber(number.0 + 1);
        for item in &items {
            self.items.entry(item.clone()).or_default().recalls.insert(number, client);
        }
        let recall = Recall { since: now, items: items.clone(), makes_room };
        self.clients.entry(client).or_default().recalls.insert(number, recall);
        effects.push(Effect::Recall { client, recall: number, items });
        number
    }

    fn acknowledged(&mut self, client: ClientId, number: RecallNumber) {
        let Some(client) = self.clients.get_mut(&client) else { return };
        if let Some(recall) = client.recalls.remove(&number) {
            self.recall_over(number, &recall);
        }
    }

    fn recall_over(&mut self, number: RecallNumber, recall: &Recall) {
        for item in &recall.items {
            if let Some(granted) = self.items.get_mut(item) {
                granted.recalls.remove(&number);
            }
            self.forget_item(item);
        }
        for change in self.changes.values_mut() {
            change.recalls.remove(&number);
        }
    }

    fn end_grant(&mut self, client: ClientId, item: &Item) {
        let held = self.items.get_mut(item).and_then(|it| it.holders.remove(&client));
        if let (Some(held), Some(client)) = (held, self.clients.get_mut(&client)) {
            client.order.remove(&held.number);
        }
        self.forget_item(item);
    }

    fn returned(&mut self, client: ClientId, item: &Item, number: GrantNumber) {
        let held = self.items.get(item).and_then(|granted| granted.holders.get(&client));
        let same = held.is_some_and(|held| held.number == number);
        if same || (held.is_some() && fault::is(Fault::ReturnWithoutNumber)) {
            self.end_grant(client, item);
        }
    }

    fn close_for_writing(&mut self, by: ClientId, file: Ino) {
        let item = Item::Attributes(file);
        let Some(granted) = self.items.get_mut(&item) else { return };
        if let Some(count) = granted.writers.get_mut(&by) {
            *count -= 1;
            if *count == 0 {
                granted.writers.remove(&by);
            }
        }
        self.forget_item(&item);
    }

    fn applied(&mut self, number: ChangeNumber, now: Moment) {
        let Some(change) = self.changes.remove(&number) else { return };
        for item in change.items {
            if let Some(granted) = self.items.get_mut(&item) {
                granted.changes -= 1;
                if change.cooled.contains(&item) {
                    granted.cool_until = now + granted.cool_down;
                }
            }
            self.forget_item(&item);
        }
    }

    fn dropped(&mut self, client: ClientId) {
        let gone = self.clients.remove(&client).unwrap_or_default();
        for item in gone.order.values() {
            if let Some(granted) = self.items.get_mut(item) {
                granted.holders.remove(&client);
            }
            self.forget_item(item);
        }
        let written: Vec<Item> = self
            .items
            .iter_mut()
            .filter_map(|(item, it)| it.writers.remove(&client).map(|_| item.clone()))
            .collect();
        for item in written {
            self.forget_item(&item);
        }
        for (number, recall) in &gone.recalls {
            self.recall_over(*number, recall);
        }
    }

    /// Notes an item of which nothing but its cool-down is left, to be forgotten some time later.
    fn forget_item(&mut self, item: &Item) {
        let Some(granted) = self.items.get(item) else { return };
        if !granted.is_idle() {
            return;
        }
        self.cooling.insert((granted.kept_until(), item.clone()));
        if self.cooling.len() > self.settings.grants_max
            && let Some((_, oldest)) = self.cooling.pop_first()
            && self.items.get(&oldest).is_some_and(Granted::is_idle)
        {
            self.items.remove(&oldest);
        }
    }

    fn forget_cooled(&mut self, now: Moment) {
        while let Some((until, item)) = self.cooling.first().cloned()
            && until <= now
        {
            self.cooling.pop_first();
            let over = |granted: &Granted| granted.is_idle() && granted.kept_until() <= now;
            if self.items.get(&item).is_some_and(over) {
                self.items.remove(&item);
            }
        }
    }

    /// Changes whose recalls are over may take effect; clients that do not acknowledge are evicted.
    fn advance(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        for (number, change) in &mut self.changes {
            if !change.applied && change.recalls.is_empty() {
                change.applied = true;
                effects.push(Effect::Apply(*number));
            }
        }
        let timeout = self.settings.recall_timeout;
        for (id, client) in &mut self.clients {
            let overdue = client.recalls.values().any(|recall| now >= recall.since + timeout);
            // The kernel of the owner's own node cannot be evicted from its own daemon.
            if overdue && !client.evicted && *id != ClientId::LOCAL {
                client.evicted = true;
                effects.push(Effect::Evict(*id));
            }
        }
        self.forget_cooled(now);
    }
}

impl Granted {
    fn is_idle(&self) -> bool {
        let nobody = self.holders.is_empty() && self.writers.is_empty();
        nobody && self.changes == 0 && self.recalls.is_empty()
    }

    /// How long the cool-down is remembered, to be made longer if grants are recalled soon again.
    fn kept_until(&self) -> Moment {
        self.cool_until + self.cool_down * 8
    }

    fn is_with_others(&self, client: ClientId) -> bool {
        let mut recalled = self.recalls.values();
        self.holders.keys().any(|holder| *holder != client) || recalled.any(|of| *of != client)
    }

    fn may_be_granted(&self, client: ClientId, now: Moment) -> bool {
        let quiet = self.writers.keys().all(|writer| *writer == client);
        let settled = self.changes == 0 || fault::is(Fault::GrantDuringChange);
        settled && quiet && now >= self.cool_until
    }

    /// Grants are about to be recalled from others than the one who changes: how long none is given afterwards. Returns whether
    /// there are any: a client that changes what it alone caches may be granted it again at once.
    fn cool(&mut self, by: ClientId, settings: &Settings, now: Moment) -> bool {
        let others = self.holders.iter().filter(|(client, _)| **client != by);
        let Some(youngest) = others.map(|(_, held)| held.since).max() else { return false };
        let useful = now.since(youngest) > self.cool_down * 4;
        self.cool_down = match useful {
            true => settings.cool_down_min,
            false => (self.cool_down * 2).clamp(settings.cool_down_min, settings.cool_down_max),
        };
        true
    }
}
