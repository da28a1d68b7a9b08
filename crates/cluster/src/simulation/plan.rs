//! What a seed makes of a run: its size, its clocks, and its faults.

use std::time::Duration;

use forebay_base::{FilesetId, NodeId};
use rand::{Rng as _, SeedableRng as _};

use super::Random;
use super::asking::Load;
use crate::settings::Settings;
use crate::time::Drift;

/// Which way something does not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Both,
    /// From the first to the second only.
    There,
    /// From the second to the first only.
    Back,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The daemon dies with all it has in memory, and starts again later.
    Crash(NodeId),
    /// The daemon hands over what it owns and stops, and starts again later.
    Stop(NodeId),
    /// The daemon does nothing for a while; its kernel goes on.
    Freeze(NodeId),
    /// A node does not reach etcd.
    Severed(NodeId, Way),
    /// Nobody reaches etcd.
    NoEtcd,
    /// etcd has a new leader.
    Election,
    /// Two nodes do not reach each other.
    Cut(NodeId, NodeId, Way),
    /// Connections between two nodes break.
    Reset(NodeId, NodeId),
    /// Everything on the network and in etcd takes long.
    Slow,
    Move(FilesetId, NodeId),
    Drain(NodeId),
}

/// How quick everything is that is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Always; there are no troubles either. Then nobody waits for long.
    Quick,
    Usual,
    /// Threads take long to come to what arrived.
    Sluggish,
}

#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    pub at: Duration,
    pub lasts: Duration,
    pub kind: Kind,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub settings: Settings,
    pub nodes: u32,
    pub programs: usize,
    pub load: Load,
    pub troubles: Vec<Trouble>,
    pub pace: Pace,
    /// Whether kernels' notifications about names take the directory's lock (Linux before 6.16).
    pub kernel_locks: bool,
    /// One of so many requests to etcd lies about for long before etcd gets it.
    pub prompt: u32,
    /// When programs begin nothing new and all troubles are over.
    pub calm: Duration,
    /// Whether clocks stand still while a node is frozen. Then nobody can know that a lease is over: only what the store
    /// guarantees is checked.
    pub clocks_stop: bool,
}

impl Plan {
    /// The run of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut random = Random::seed_from_u64(seed ^ 0x706c_616e);
        let nodes = match random.random_range(0..40) {
            0 => 16,
            1..=4 => random.random_range(6..=12),
            _ => random.random_range(2..=5),
        };
        let load = Load {
            filesets: random.random_range(1..=3),
            objects: random.random_range(2..=5),
            directories: directories(seed),
            think_millis: if nodes > 5 { 1000 } else { random.random_range(60..=500) },
        };
        let calm = Duration::from_secs(random.random_range(40..=80));
        let mut troubles = Vec::new();
        let pace = match random.random_range(0..8) {
            0 => Pace::Quick,
            1..3 => Pace::Sluggish,
            _ => Pace::Usual,
        };
        match random.random_range(0..6) {
            _ if pace == Pace::Quick => {}
            0 => flap(&mut random, nodes, calm, &mut troubles),
            1 => restart(&mut random, nodes, calm, &mut troubles),
            2 => troubles.extend((0..2).map(|_| trouble(&mut random, nodes, load.filesets, calm))),
            _ => {
                let count = random.random_range(0..=14);
                let draw = |_| trouble(&mut random, nodes, load.filesets, calm);
                troubles.extend((0..count).map(draw));
            }
        }
        troubles.sort_by_key(|trouble| trouble.at);
        let settings = Settings {
            clock_drift: Drift { ppm: 20_000 },
            owner_hold_min: Duration::from_secs(10),
            session_grace: Duration::from_secs(random.random_range(6..=20)),
            calls_max: random.random_range(1..=4),
            releases_max: 1 + (seed % 2) as usize,
            backlog_max: 64,
            grants_max: random.random_range(2..=12),
            cool_down_max: Duration::from_millis(200),
            ..Settings::default()
        };
        let programs = if nodes > 5 { 1 } else { random.random_range(1..=4) };
        Plan {
            seed,
            settings,
            nodes,
            programs,
            load,
            troubles,
            pace,
            kernel_locks: random.random_range(0..2) == 0,
            prompt: match pace {
                Pace::Quick => u32::MAX,
                Pace::Usual | Pace::Sluggish if random.random_range(0..3) == 0 => 5,
                Pace::Usual | Pace::Sluggish => 100,
            },
            calm,
            clocks_stop: random.random_range(0..20) == 0,
        }
    }
}

/// How many directories each fileset has, by a chance of its own. Runs of small seeds are known from when there were none.
fn directories(seed: u64) -> u8 {
    if seed < 1000 {
        return 0;
    }
    Random::seed_from_u64(seed ^ 0x6469_7273).random_range(0..=2)
}

/// One node loses etcd again and again for about as long as its lease lasts.
fn flap(random: &mut Random, nodes: u32, calm: Duration, troubles: &mut Vec<Trouble>) {
    let node = NodeId(random.random_range(1..=nodes));
    let millis = Duration::from_millis;
    let mut at = millis(random.random_range(3000..8000));
    while at + millis(16_000) < calm {
        let lasts = millis(random.random_range(8500..12_500));
        let way = [Way::Both, Way::There][random.random_range(0..2)];
        troubles.push(Trouble { at, lasts, kind: Kind::Severed(node, way) });
        if random.random_range(0..3) == 0 {
            // It hears late of what was taken over.
            let (at, lasts) = (at + lasts + millis(random.random_range(5..300)), millis(2500));
            troubles.push(Trouble { at, lasts, kind: Kind::Severed(node, Way::Back) });
        }
        at += lasts + millis(random.random_range(2000..8000));
    }
}

/// Daemons die and start again at once, while others are frozen with what they cached.
fn restart(random: &mut Random, nodes: u32, calm: Duration, troubles: &mut Vec<Trouble>) {
    let millis = Duration::from_millis;
    let mut at = millis(random.random_range(6000..9000));
    while at + millis(16_000) < calm {
        let frozen = random.random_range(1..=nodes);
        let dead = (frozen + random.random_range(1..nodes) - 1) % nodes + 1;
        let lasts = millis(random.random_range(4000..9000));
        troubles.push(Trouble { at, lasts, kind: Kind::Freeze(NodeId(frozen)) });
        let (at_once, lasts) = (at + millis(random.random_range(0..400)), millis(100));
        troubles.push(Trouble { at: at_once, lasts, kind: Kind::Crash(NodeId(dead)) });
        at += millis(random.random_range(10_000..14_000));
    }
}

fn trouble(random: &mut Random, nodes: u32, filesets: u16, calm: Duration) -> Trouble {
    let mut node = || NodeId(random.random_range(1..=nodes));
    let (one, other) = (node(), node());
    let way = [Way::Both, Way::There, Way::Back][random.random_range(0..3)];
    let kind = match random.random_range(0..24) {
        0..3 => Kind::Crash(one),
        3 => Kind::Stop(one),
        4..8 => Kind::Freeze(one),
        8..12 => Kind::Severed(one, way),
        12 => Kind::NoEtcd,
        13 => Kind::Election,
        14..18 => Kind::Cut(one, other, way),
        18..20 => Kind::Reset(one, other),
        20 => Kind::Slow,
        21..23 => Kind::Move(FilesetId(random.random_range(0..filesets)), one),
        _ => Kind::Drain(one),
    };
    let at = Duration::from_millis(random.random_range(3000..calm.as_millis() as u64 - 5000));
    let longest = (calm - at).as_millis() as u64;
    let lasts = match random.random_range(0..3) {
        0 => random.random_range(50..3000),
        1 => random.random_range(3000..16_000),
        _ => random.random_range(9000..30_000),
    };
    Trouble { at, lasts: Duration::from_millis(lasts.min(longest)), kind }
}
