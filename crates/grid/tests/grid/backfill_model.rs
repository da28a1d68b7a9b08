//! Random floods of narrow jobs around a wide one: it starts when it would have started without them, as far as time
//! limits say when that is, and starts after `reserve_after` at all where they do not.
//!
//! `FOREBAY_SEED` (a number) and `PROPTEST_CASES` repeat a run and choose more of them; both are printed.

use crate::random;
use std::collections::BTreeMap;

use crate::support::{Rig, launched, spec};
use forebay_base::ByteSize;
use forebay_grid::event::Verb;
use forebay_grid::parse::period::Period;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, TaskId};
use proptest::collection::vec;
use proptest::prelude::*;

const SETTINGS: &str =
    "[general]\nreserve_after = \"60 s\"\nlease = \"10 h\"\nhost_timeout = \"11 h\"\n";
/// Memory of a host of the rig.
const MEMORY_GIB: u64 = 8;
/// The longest that a job of the flood runs, in seconds.
const LONGEST: u64 = 20;
/// The same of one that is there before, and how much longer its limit may be.
const LONGEST_BEFORE: u64 = 60;

#[derive(Clone, Debug)]
struct Plan {
    slots: u32,
    memory_gib: u64,
    /// Time limit in seconds, and how long it really runs.
    limit: Option<u64>,
    runs: u64,
}

#[derive(Clone, Debug)]
struct Flood {
    hosts: Vec<u32>,
    before: Vec<Plan>,
    wide: Plan,
    after: Vec<Plan>,
}

fn plan(slots: std::ops::Range<u32>, longest: u64) -> impl Strategy<Value = Plan> {
    let memory = prop_oneof![3 => Just(0), 1 => 1..4_u64];
    (slots, memory, prop::option::weighted(0.6, 0..longest), 1..=longest).prop_map(
        |(slots, memory_gib, more, runs)| {
            let limit = more.map(|more| runs + more);
            Plan { slots, memory_gib, limit, runs }
        },
    )
}

fn flood() -> impl Strategy<Value = Flood> {
    (
        vec(2..9_u32, 1..4),
        vec(plan(1..4, LONGEST_BEFORE), 1..12),
        plan(2..9, 50),
        vec(plan(1..3, LONGEST), 400),
    )
        .prop_map(|(hosts, before, wide, after)| Flood { hosts, before, wide, after })
}

/// What runs: when it ends, when it must have ended, and what it takes of which host.
struct Running {
    ends: u64,
    limit: Option<u64>,
    plan: Plan,
    host: String,
}

struct World {
    rig: Rig,
    plans: BTreeMap<JobId, Plan>,
    running: BTreeMap<TaskId, Running>,
}

impl World {
    fn submit(&mut self, plan: &Plan, priority: i32) -> JobId {
        let job = JobSpec {
            slots: plan.slots,
            memory: (plan.memory_gib > 0).then(|| ByteSize::gib(plan.memory_gib)),
            time_limit: plan.limit.map(Period::seconds),
            priority,
            ..spec()
        };
        // Known before, because it may be started at once.
        let next = JobId(self.plans.len() as u64 + 1);
        self.plans.insert(next, plan.clone());
        let effects = self.rig.submit_as("u", job);
        self.note(&effects);
        next
    }

    fn note(&mut self, effects: &[forebay_grid::Effect]) {
        for (task, _, host) in launched(effects) {
            let plan = self.plans[&task.job].clone();
            let seconds = |period: u64| self.rig.now + period * 1000;
            let (ends, limit) = (seconds(plan.runs), plan.limit.map(seconds));
            self.running.insert(task, Running { ends, limit, plan, host });
            self.rig.start(task);
        }
    }

    /// Lets what ends until then end, in order.
    fn pass_until(&mut self, until: u64) {
        loop {
            let next = self.running.iter().min_by_key(|(task, run)| (run.ends, **task));
            let wake = self.rig.grid.next_wake().0;
            match next.map(|(task, run)| (*task, run.ends)) {
                Some((task, ends)) if ends <= until && ends <= wake => {
                    self.rig.now = ends;
                    self.running.remove(&task);
                    let effects = self.rig.exit(task, 0);
                    self.note(&effects);
                }
                _ if wake <= until => {
                    self.rig.now = wake;
                    let effects = self.rig.pass(0);
                    self.note(&effects);
                }
                _ => break,
            }
        }
        self.rig.now = until;
    }

    /// When a job fits at the latest if all that runs runs until its limit and nothing else comes.
    fn fits_by(&self, hosts: &[u32], wide: &Plan) -> Option<u64> {
        let on = |number: usize, slots: u32| {
            let here = || self.running.values().filter(move |run| run.host == format!("h{number}"));
            let fits = |at: u64| {
                let left = || here().filter(move |run| run.limit.is_none_or(|end| end > at));
                left().map(|run| run.plan.slots).sum::<u32>() + wide.slots <= slots
                    && left().map(|run| run.plan.memory_gib).sum::<u64>() + wide.memory_gib
                        <= MEMORY_GIB
            };
            here().filter_map(|run| run.limit).filter(|end| fits(*end)).min()
        };
        hosts.iter().enumerate().filter_map(|(number, slots)| on(number, *slots)).min()
    }
}

fn keeps_its_start(flood: &Flood) {
    let names: Vec<String> = (0..flood.hosts.len()).map(|number| format!("h{number}")).collect();
    let hosts: Vec<(&str, u32)> =
        names.iter().map(String::as_str).zip(flood.hosts.iter().copied()).collect();
    let rig = Rig::new(SETTINGS, &hosts);
    let mut world = World { rig, plans: BTreeMap::new(), running: BTreeMap::new() };
    let largest = *flood.hosts.iter().max().unwrap();
    for plan in flood.before.iter().filter(|plan| plan.slots <= largest) {
        let job = world.submit(plan, 20);
        if world.rig.host_of(job).is_none() {
            // It would go first, and nothing is said of when.
            world.rig.command("u", job, Verb::Kill);
        }
    }
    let wide = Plan { slots: flood.wide.slots.min(largest), ..flood.wide.clone() };
    let job = world.submit(&wide, 10);
    let begun = world.rig.now;
    if world.rig.host_of(job).is_some() {
        return;
    }
    let promised = world.fits_by(&flood.hosts, &wide);
    let mut started = None;
    for plan in &flood.after {
        world.pass_until(world.rig.now + 1000);
        started = started.or(world.rig.host_of(job).map(|_| world.rig.now));
        if started.is_some() {
            break;
        }
        world.submit(plan, 0);
    }
    let started = started.expect("the wide job starts before the flood is over");
    if let Some(promised) = promised {
        // Looked at once a second.
        assert!(started < promised + 1000, "{started} is later than {promised}");
    }
    // What ran when slots began to be kept, and each job that was let in before.
    let kept = 60_000 + LONGEST_BEFORE * 2000 + LONGEST * 1000 * u64::from(largest);
    assert!(started - begun <= kept, "{}", started - begun);
}

#[test]
fn a_reserved_job_is_never_delayed_by_a_job_that_was_backfilled() {
    let test = ("backfill_model", "a_reserved_job_is_never_delayed_by_a_job_that_was_backfilled");
    random::check(test, 100, &flood(), |flood| keeps_its_start(&flood));
}
