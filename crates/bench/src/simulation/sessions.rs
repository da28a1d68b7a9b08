//! The sessions of the published studies on a grid: people who run one job after another, and what they wait for.
//!
//! Study 1 gives the number of jobs, their kinds and the sum of their real times (forebay_workload, mixes/sessions.toml). How long each kind takes it
//! does not say: here large jobs take ten times as long as small ones, and all together as long as in the study. A grid adds waits if it
//! has fewer slots than people who work at a time.

use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::bulk::{middle, sorted_seconds};
use super::virtual_hosts::{Known, Submission, VirtualHosts};

/// Jobs of 40 sessions by the study's text, and the sum of their real times in seconds.
const JOBS: (usize, usize) = (144, 40);
const REAL_SECONDS: f64 = 68_412.0;

/// Time over which sessions start, in seconds, as in mixes/sessions.toml.
const START_OVER_SECONDS: f64 = 600.0;

/// Shares of the kinds of jobs in the study's table, and how long one of them takes beside the others.
const KINDS: [(u32, f64); 6] = [(92, 1.0), (12, 10.0), (36, 1.0), (4, 10.0), (4, 5.0), (4, 10.0)];

/// Sessions on nodes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub sessions: usize,
    pub nodes: usize,
    /// Slots of each node.
    pub slots: u32,
    pub seed: u64,
}

/// What people saw.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub jobs: usize,
    /// From the first submission to the last end, in minutes.
    pub wall_minutes: f64,
    /// Share of jobs that waited for a slot for more than a second.
    pub waited: f64,
    /// Median, 95th of 100 and longest wait, in seconds.
    pub waits: [f64; 3],
}

/// How long each job takes, in milliseconds: the kinds in their proportions, in random order, together as long as in the study.
fn times(count: usize, seed: u64) -> Vec<u64> {
    let mut random = StdRng::seed_from_u64(seed);
    let shares: u32 = KINDS.iter().map(|(share, _)| share).sum();
    let mut all: Vec<f64> = Vec::with_capacity(count);
    for (number, (share, time)) in KINDS.iter().enumerate() {
        let until: u32 = KINDS[..=number].iter().map(|(share, _)| share).sum();
        let until = (count as f64 * f64::from(until) / f64::from(shares)).round() as usize;
        debug_assert!(*share > 0, "a kind without jobs");
        while all.len() < until {
            all.push(time * random.random_range(0.5..1.5));
        }
    }
    all.shuffle(&mut random);
    let wanted = REAL_SECONDS * count as f64 / JOBS.0 as f64;
    let factor = wanted / all.iter().sum::<f64>() * 1000.0;
    all.into_iter().map(|time| (time * factor) as u64).collect()
}

/// Simulates it.
///
/// # Errors
/// If the grid does what it must not.
pub fn run(plan: &Plan) -> Result<Outcome> {
    let count = plan.sessions * JOBS.0 / JOBS.1;
    let users = u32::try_from(plan.sessions)?;
    let mut hosts = VirtualHosts::new("", plan.nodes, plan.slots, users)?;
    hosts.join_all()?;
    // Jobs are dealt to sessions, which begin one after the other.
    let mut left: Vec<Vec<u64>> = vec![Vec::new(); plan.sessions];
    for (number, time) in times(count, plan.seed).into_iter().enumerate() {
        left[number % plan.sessions].push(time);
    }
    let begun = hosts.now_ms();
    for session in 0..plan.sessions {
        let after = START_OVER_SECONDS * 1000.0 * session as f64 / plan.sessions as f64;
        hosts.wake_session(session, begun + after as u64);
    }
    while hosts.jobs.len() < count || hosts.open() > 0 {
        for session in hosts.step()? {
            if let Some(runs_ms) = left[session].pop() {
                let user = u32::try_from(session)?;
                hosts.submit(Submission { user, slots: 1, runs_ms, session: Some(session) })?;
            }
        }
    }
    let waits = sorted_seconds(hosts.jobs.iter().filter_map(Known::waited_ms));
    let end = hosts.jobs.iter().filter_map(|job| job.ended_ms).max().unwrap_or(begun);
    Ok(Outcome {
        jobs: hosts.jobs.len(),
        wall_minutes: (end - begun) as f64 / 60_000.0,
        waited: waits.iter().filter(|wait| **wait > 1.0).count() as f64 / waits.len() as f64,
        waits: [
            middle(&waits),
            waits.get(waits.len() * 95 / 100).copied().unwrap_or(0.0),
            waits.last().copied().unwrap_or(0.0),
        ],
    })
}
