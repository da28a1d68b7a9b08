//! The work areas of all hosts: what there is, and the removal of those whose jobs are gone.
//!
//! Agents say what lies on their hosts; the controller says what it is. An orphan is an area whose job is
//! not known, or has ended for good and whose removal failed. Nothing is removed while a host is away: what
//! runs there is not known. An area that a host was told to remove is removed only if it still is the one
//! that was seen, and no start of its job is on the machine. Orphans are looked for when a host joins and
//! at intervals.
//!
//! Places of areas belong to one grid ([`crate::area::place`]). Memory: the areas of the questions that are open, at most
//! [`OPEN_MAX`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::Sender;

use forebay_grid::vocabulary::{HostName, Moment, UserName};

use crate::engine::Engine;
use crate::protocol::{
    Answer, Area, AreaState, AreaView, Order, Orphans, Refusal, RefusalKind, Seen, Sizes,
};

/// The most questions that are open at a time.
const OPEN_MAX: usize = 64;

/// How long hosts have for an answer.
const PATIENCE_MS: u64 = 60_000;

/// How long after a host joined orphans are looked for: others may join as well.
const JOIN_PAUSE_MS: u64 = 2000;

/// Who wants to know.
enum Purpose {
    Asked { user: UserName, orphans: Orphans, reply: Sender<Answer> },
    Sweep,
}

/// What was seen, and then what was removed.
enum Phase {
    Listing { seen: Vec<(HostName, Area)>, more: Vec<HostName> },
    Removing { all: Vec<AreaView>, removed: BTreeSet<(PathBuf, Moment)> },
}

struct Query {
    purpose: Purpose,
    phase: Phase,
    /// Hosts that have not answered.
    waiting: BTreeSet<HostName>,
    /// Hosts that went away before they answered.
    lost: BTreeSet<HostName>,
    /// Hosts that did not answer, or could not see everything.
    faults: Vec<String>,
    until: Moment,
}

/// Orders for hosts.
pub(crate) type Orders = Vec<(HostName, Order)>;

/// All questions about areas that are open.
pub(crate) struct Sessions {
    next: u64,
    open: BTreeMap<u64, Query>,
    sweep_at: Moment,
}

impl Sessions {
    pub fn new() -> Sessions {
        Sessions { next: 1, open: BTreeMap::new(), sweep_at: Moment::NEVER }
    }

    /// A user wants to know. What there is on hosts that are away is not known, and said to be so.
    pub fn ask(
        &mut self,
        engine: &dyn Engine,
        now: Moment,
        hosts: BTreeSet<HostName>,
        (user, orphans, reply): (UserName, Orphans, Sender<Answer>),
    ) -> Orders {
        let nobody = hosts.is_empty() && (orphans == Orphans::Removed || engine.away().is_empty());
        let refusal = if nobody {
            let reason = "no host is connected, so the work areas are not known";
            Some(Refusal::new(RefusalKind::WrongState, reason))
        } else if self.open.len() >= OPEN_MAX {
            let reason = "too many requests about work areas are in progress; try again later";
            Some(Refusal::new(RefusalKind::TooMany, reason))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let _ = reply.send(Answer::Refused(refusal));
            return Vec::new();
        }
        let query = self.next;
        let orders = self.list(now, hosts, Purpose::Asked { user, orphans, reply }, Sizes::Counted);
        if orders.is_empty() { self.go_on(engine, query) } else { orders }
    }

    fn list(
        &mut self,
        now: Moment,
        hosts: BTreeSet<HostName>,
        purpose: Purpose,
        sizes: Sizes,
    ) -> Orders {
        let query = self.next;
        self.next += 1;
        let order = |host: &HostName| (host.clone(), Order::ListAreas { query, sizes });
        let orders = hosts.iter().map(order).collect();
        let phase = Phase::Listing { seen: Vec::new(), more: Vec::new() };
        let until = now.after(PATIENCE_MS);
        let (lost, faults) = (BTreeSet::new(), Vec::new());
        self.open.insert(query, Query { purpose, phase, waiting: hosts, lost, faults, until });
        orders
    }

    /// A host has joined.
    pub fn joined(&mut self, now: Moment) {
        self.sweep_at = self.sweep_at.min(now.after(JOIN_PAUSE_MS));
    }

    /// A host says what areas it has.
    pub fn listed(
        &mut self,
        engine: &dyn Engine,
        host: &HostName,
        query: u64,
        told: Seen,
    ) -> Orders {
        let Some(open) = self.open.get_mut(&query) else { return Vec::new() };
        if let Phase::Listing { seen, more } = &mut open.phase
            && open.waiting.remove(host)
        {
            seen.extend(told.areas.into_iter().map(|area| (host.clone(), area)));
            more.extend(told.more.then(|| host.clone()));
            open.faults.extend(told.faults.into_iter().map(|fault| format!("{host}: {fault}")));
        }
        self.go_on(engine, query)
    }

    /// A host has removed areas.
    pub fn reaped(
        &mut self,
        engine: &dyn Engine,
        host: &HostName,
        query: u64,
        gone: Vec<Area>,
        faults: Vec<String>,
    ) -> Orders {
        let Some(open) = self.open.get_mut(&query) else { return Vec::new() };
        if let Phase::Removing { removed, .. } = &mut open.phase
            && open.waiting.remove(host)
        {
            removed.extend(gone.into_iter().map(|area| (area.path, area.made)));
            open.faults.extend(faults.into_iter().map(|fault| format!("{host}: {fault}")));
        }
        self.go_on(engine, query)
    }

    /// A host has left.
    pub fn left(&mut self, engine: &dyn Engine, host: &HostName) -> Orders {
        let mut concerned = Vec::new();
        for (query, open) in &mut self.open {
            if open.waiting.remove(host) {
                open.lost.insert(host.clone());
                concerned.push(*query);
            }
        }
        concerned.into_iter().flat_map(|query| self.go_on(engine, query)).collect()
    }

    /// When there is something to do next.
    pub fn next_wake(&self) -> Moment {
        self.open.values().map(|open| open.until).fold(self.sweep_at, Moment::min)
    }

    /// Time has passed: gives up on hosts that do not answer, and looks for orphans.
    pub fn tick(
        &mut self,
        engine: &dyn Engine,
        now: Moment,
        hosts: impl FnOnce() -> BTreeSet<HostName>,
    ) -> Orders {
        let mut orders = Vec::new();
        let late = self.open.iter().filter(|(_, open)| open.until <= now).map(|(query, _)| *query);
        for query in late.collect::<Vec<u64>>() {
            if let Some(open) = self.open.get_mut(&query) {
                for host in std::mem::take(&mut open.waiting) {
                    open.faults.push(format!("{host} did not answer"));
                }
            }
            orders.extend(self.go_on(engine, query));
        }
        if self.sweep_at <= now {
            self.sweep_at = now.after(engine.settings().reap_interval.as_ms());
            let hosts = hosts();
            if !hosts.is_empty() {
                orders.extend(self.list(now, hosts, Purpose::Sweep, Sizes::Left));
            }
        }
        orders
    }

    /// Goes on with a question when all hosts have answered.
    fn go_on(&mut self, engine: &dyn Engine, query: u64) -> Orders {
        if self.open.get(&query).is_none_or(|open| !open.waiting.is_empty()) {
            return Vec::new();
        }
        let Some(mut open) = self.open.remove(&query) else { return Vec::new() };
        let (seen, more) = match open.phase {
            Phase::Listing { seen, more } => (seen, more),
            Phase::Removing { all, removed } => {
                let lost = open.lost.iter();
                open.faults.extend(lost.map(|host| format!("{host} disconnected meanwhile")));
                finish(open.purpose, all, &removed, (Vec::new(), open.faults));
                return Vec::new();
            }
        };
        let mut away = engine.away();
        away.append(&mut open.lost);
        let wanted = match &open.purpose {
            Purpose::Asked { orphans, .. } => *orphans,
            Purpose::Sweep => Orphans::Removed,
        };
        // Whether one is an orphan does not hang on the others, nor on those of a host that cannot look.
        let unsure = away.first().map(unsure);
        open.faults.extend(
            more.iter().map(|host| format!("{host}: there are more; run the command again")),
        );
        let visible = |owner: &UserName| match &open.purpose {
            Purpose::Asked { user, .. } => engine.may_see(user, owner),
            Purpose::Sweep => true,
        };
        let mut all: BTreeMap<(PathBuf, Moment), (AreaView, Area)> = BTreeMap::new();
        for (host, area) in seen {
            let view = view(engine, host, &area);
            if visible(&view.user) {
                all.entry((area.path.clone(), area.made)).or_insert((view, area));
            }
        }
        let mut by_host: BTreeMap<HostName, Vec<Area>> = BTreeMap::new();
        if wanted == Orphans::Removed {
            for (view, area) in all.values().filter(|(view, _)| view.state == AreaState::Orphaned) {
                by_host.entry(view.host.clone()).or_default().push(area.clone());
            }
        }
        let all = all.into_values().map(|(view, _)| view).collect();
        match unsure {
            Some(reason) if wanted == Orphans::Removed => {
                refuse(&open.purpose, reason);
                return Vec::new();
            }
            Some(_) | None if by_host.is_empty() => {
                let unknown = away.into_iter().collect();
                finish(open.purpose, all, &BTreeSet::new(), (unknown, open.faults));
                return Vec::new();
            }
            Some(_) | None => {}
        }
        open.waiting = by_host.keys().cloned().collect();
        open.phase = Phase::Removing { all, removed: BTreeSet::new() };
        self.open.insert(query, open);
        by_host.into_iter().map(|(host, areas)| (host, Order::Reap { query, areas })).collect()
    }
}

/// Why nothing may be removed while a host is away.
fn unsure(host: &HostName) -> String {
    format!(
        "{host} is unreachable, so its running jobs are not known: nothing is removed until it is back or given up"
    )
}

fn refuse(purpose: &Purpose, reason: String) {
    match purpose {
        Purpose::Asked { reply, .. } => {
            let _ = reply.send(Answer::refused(RefusalKind::Failed, reason));
        }
        Purpose::Sweep => tracing::debug!("orphans: {reason}"),
    }
}

fn finish(
    purpose: Purpose,
    all: Vec<AreaView>,
    gone: &BTreeSet<(PathBuf, Moment)>,
    (unknown, faults): (Vec<HostName>, Vec<String>),
) {
    let is_gone = |area: &AreaView| gone.contains(&(area.path.clone(), area.made));
    let (removed, areas): (Vec<AreaView>, Vec<AreaView>) = all.into_iter().partition(is_gone);
    match purpose {
        Purpose::Asked { reply, .. } => {
            let _ = reply.send(Answer::Sessions { areas, removed, unknown, faults });
        }
        Purpose::Sweep => {
            for area in removed {
                tracing::info!(area = %area.path.display(), user = %area.user, "an orphaned work area was removed");
            }
            for fault in faults {
                tracing::warn!("orphans: {fault}");
            }
        }
    }
}

fn view(engine: &dyn Engine, host: HostName, area: &Area) -> AreaView {
    let state = if area.aside {
        AreaState::BeingRemoved
    } else {
        engine.area_state(area.task, area.requeues)
    };
    let user = engine.owner(area.task.job).unwrap_or(&area.owner);
    // Hosts of one machine see the same places: that on which the job is, is it.
    let of_job = match state {
        AreaState::Running | AreaState::Unknown => {
            engine.state(area.task).and_then(|state| state.last_start().host)
        }
        AreaState::Kept | AreaState::Orphaned | AreaState::BeingRemoved => None,
    };
    AreaView {
        job: area.task.to_string(),
        user: user.clone(),
        kind: area.kind,
        host: of_job.unwrap_or(host),
        bytes: area.bytes,
        made: area.made,
        state,
        path: area.path.clone(),
    }
}
