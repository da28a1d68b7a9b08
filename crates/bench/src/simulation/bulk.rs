//! Very many jobs of many users at once: what the core does with them, and who gets what.

use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, LogNormal};

use super::virtual_hosts::{Known, Submission, VirtualHosts, Work};

/// Median time of a job, in seconds, and the spread of its logarithm.
const MEDIAN_SECONDS: f64 = 20.0;
const SIGMA: f64 = 1.0;

/// Slots of a wide job.
const WIDE: u32 = 4;

/// Jobs of the user who comes when half of all others have ended.
const LATE_JOBS: u32 = 100;

/// A queue's order of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Users in turn, by what they have used.
    FairShare,
    /// In the order of submission.
    FirstCome,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub hosts: usize,
    /// Slots of each host.
    pub slots: u32,
    pub jobs: u32,
    /// Users with much to do; one comes later.
    pub users: u32,
    pub order: Order,
    /// How many of 100 jobs need several slots.
    pub wide: u32,
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Submitting all jobs while there are no hosts.
    pub submitting: Work,
    /// Everything after that.
    pub running: Work,
    /// Memory of the process before the grid, with all jobs waiting, and at the end, in bytes.
    pub memory: [u64; 3],
    /// Virtual time from the first start to the last end, in seconds.
    pub makespan_seconds: f64,
    /// Share of the slots that were in use until the last job had started.
    pub utilisation: f64,
    /// Jain's index of the slot time that users got while all of them had jobs waiting: 1 if all got the same.
    pub fairness: f64,
    /// The least and the most slot time of a user in that time, over the mean.
    pub shares: (f64, f64),
    /// Median and longest wait of the user who came late, in seconds.
    pub late_waits: (f64, f64),
    /// Median wait of all others.
    pub wait_median: f64,
}

fn settings(order: Order) -> String {
    let order = match order {
        Order::FairShare => "fair_share",
        Order::FirstCome => "first_come",
    };
    format!(
        "[general]\ntasks_max = 10000000\nuser_tasks_max = 10000000\njobs_bytes_max = \"64 GiB\"\nuser_jobs_bytes_max = \"64 GiB\"\n\
         [[queue]]\nname = \"normal\"\norder = \"{order}\""
    )
}

/// Bytes of memory of this process.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0_u64) * 1024
}

/// Jobs of all users in random order; the first users have many more than the last ones.
fn submissions(plan: &Plan) -> Vec<Submission> {
    let mut random = StdRng::seed_from_u64(plan.seed);
    let times = LogNormal::new(MEDIAN_SECONDS.ln(), SIGMA).expect("a valid distribution");
    let mut users: Vec<u32> = (0..plan.jobs)
        .map(|number| {
            // A fifth of the users have half of the jobs.
            let heavy = (plan.users / 5).max(1);
            if number % 2 == 0 { number / 2 % heavy } else { number / 2 % plan.users }
        })
        .collect();
    users.shuffle(&mut random);
    let of_user = |user| Submission {
        user,
        slots: if random.random_range(0..100) < plan.wide { WIDE.min(plan.slots) } else { 1 },
        runs_ms: (times.sample(&mut random) * 1000.0) as u64,
        session: None,
    };
    users.into_iter().map(of_user).collect()
}

/// Simulates it.
///
/// # Errors
/// If the grid does what it must not: gives out a slot twice, starts a job twice, loses one.
pub fn run(plan: &Plan, mut say: impl FnMut(String)) -> Result<Outcome> {
    let jobs = submissions(plan);
    let before = resident_bytes();
    let mut hosts =
        VirtualHosts::new(&settings(plan.order), plan.hosts, plan.slots, plan.users + 1)?;
    for job in jobs {
        hosts.submit(job)?;
    }
    let (submitting, waiting) = (std::mem::take(&mut hosts.work), resident_bytes());
    say(format!("{} jobs wait", hosts.open()));
    hosts.join_all()?;
    let (mut has_late, mut said) = (false, 10);
    while hosts.open() > 0 {
        hosts.step()?;
        let ended = hosts.jobs.len() - hosts.open();
        if !has_late && ended >= plan.jobs as usize / 2 {
            has_late = true;
            for _ in 0..LATE_JOBS {
                let runs_ms = (MEDIAN_SECONDS * 1000.0) as u64;
                hosts.submit(Submission { user: plan.users, slots: 1, runs_ms, session: None })?;
            }
        }
        if ended * 100 >= said * plan.jobs as usize {
            say(format!(
                "{said} % have ended, {:.0} s of the core's time",
                hosts.work.time.as_secs_f64()
            ));
            said += 10;
        }
    }
    Ok(outcome(plan, &hosts, submitting, [before, waiting, resident_bytes()]))
}

fn outcome(plan: &Plan, hosts: &VirtualHosts, submitting: Work, memory: [u64; 3]) -> Outcome {
    let first = hosts.jobs.iter().filter_map(|job| job.launched_ms).min().unwrap_or(0);
    let last = hosts.jobs.iter().filter_map(|job| job.ended_ms).max().unwrap_or(0);
    let last_start = hosts.jobs.iter().filter_map(|job| job.launched_ms).max().unwrap_or(0);
    // Until a user has nothing left to start.
    let ends_of_backlog = (0..plan.users).filter_map(|user| {
        let own = hosts.jobs.iter().filter(|job| job.submission.user == user);
        own.filter_map(|job| job.launched_ms).max()
    });
    let contended = ends_of_backlog.min().unwrap_or(last);
    let got: Vec<f64> =
        (0..plan.users).map(|user| slot_ms(&hosts.jobs, user, first, contended)).collect();
    let mean = got.iter().sum::<f64>() / f64::from(plan.users);
    let squares: f64 = got.iter().map(|got| got * got).sum();
    let used: f64 =
        (0..=plan.users).map(|user| slot_ms(&hosts.jobs, user, first, last_start)).sum();
    let all_slots = plan.hosts as f64 * f64::from(plan.slots);
    let waits = |is_late: bool| {
        let own = hosts.jobs.iter().filter(|job| (job.submission.user == plan.users) == is_late);
        sorted_seconds(own.filter_map(Known::waited_ms))
    };
    let (late, others) = (waits(true), waits(false));
    Outcome {
        submitting,
        running: hosts.work,
        memory,
        makespan_seconds: (last - first) as f64 / 1000.0,
        utilisation: used / (all_slots * (last_start - first).max(1) as f64),
        fairness: (mean * f64::from(plan.users)).powi(2)
            / (f64::from(plan.users) * squares).max(1.0),
        shares: (
            got.iter().copied().fold(f64::INFINITY, f64::min) / mean,
            got.iter().copied().fold(0.0, f64::max) / mean,
        ),
        late_waits: (middle(&late), late.last().copied().unwrap_or(0.0)),
        wait_median: middle(&others),
    }
}

/// Slot time of a user between two moments, in milliseconds.
fn slot_ms(jobs: &[Known], user: u32, from: u64, until: u64) -> f64 {
    let own = jobs.iter().filter(|job| job.submission.user == user);
    let times = own.filter_map(|job| {
        let (start, end) = (job.launched_ms?.max(from), job.ended_ms?.min(until));
        Some(end.saturating_sub(start) as f64 * f64::from(job.submission.slots))
    });
    times.sum()
}

pub fn sorted_seconds(times: impl Iterator<Item = u64>) -> Vec<f64> {
    let mut all: Vec<f64> = times.map(|time| time as f64 / 1000.0).collect();
    all.sort_by(f64::total_cmp);
    all
}

pub fn middle(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
