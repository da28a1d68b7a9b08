//! The controller's core with many hosts and jobs, in virtual time: what it costs, and who waits for what.
//!
//! [`virtual_hosts`] is the grid, [`bulk`] very many jobs at once, [`sessions`] the people of the published studies. Times of the machine are measured
//! around the core's events alone; everything else is virtual and the same on every machine.

mod bulk;
mod sessions;
mod virtual_hosts;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::machine::Machine;
use crate::report::aligned;
use bulk::Order;
use virtual_hosts::{Known, Work};

/// What to simulate.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay-bench grid-simulation
  forebay-bench grid-simulation --hosts 50 --jobs 20000
  forebay-bench grid-simulation --order first-come --markdown simulation.md")]
pub struct Simulation {
    /// Hosts.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hosts: u32,
    /// Slots of each host.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slots: u32,
    /// Jobs that are submitted at once.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(100..=2_000_000))]
    jobs: u32,
    /// Users who submit them.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    users: u32,
    /// How many of 100 jobs need 4 slots instead of one.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    wide: u32,
    /// Order of jobs in the queue; both if omitted.
    #[arg(long, value_enum)]
    order: Option<Order>,
    /// Seed of the times of jobs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the tables to a file, as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl Simulation {
    /// Simulates and prints tables.
    ///
    /// # Errors
    /// If the grid does what it must not.
    pub fn run(&self) -> Result<()> {
        let machine = Machine::look()?;
        let orders = self.order.map_or(vec![Order::FairShare, Order::FirstCome], |one| vec![one]);
        let mut outcomes = Vec::new();
        for order in orders {
            eprintln!("{order:?}: {} jobs on {} hosts", self.jobs, self.hosts);
            outcomes.push((order, bulk::run(&self.plan(order), |line| eprintln!("  {line}"))?));
        }
        let text = format!(
            "{}\n\n{} jobs ({} % of them wide) of {} users on {} hosts with {} slots each:\n\n{}\nSessions of the published studies:\n\n{}",
            machine.describe(),
            self.jobs,
            self.wide,
            self.users,
            self.hosts,
            self.slots,
            bulk_table(self.jobs, &outcomes),
            session_table(self.seed)?
        );
        print!("{text}");
        if let Some(file) = &self.markdown {
            std::fs::write(file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn plan(&self, order: Order) -> bulk::Plan {
        let hosts = usize::try_from(self.hosts).expect("a number of hosts");
        let Simulation { slots, jobs, users, wide, seed, .. } = *self;
        bulk::Plan { hosts, slots, jobs, users, order, wide, seed }
    }
}

fn per_second(work: &Work, count: u64) -> String {
    format!("{:.0}", count as f64 / work.time.as_secs_f64().max(1e-9))
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

/// Bytes of the core for each job: what the simulation itself keeps of it is not counted.
fn bytes_each(jobs: u32, from: u64, to: u64) -> String {
    let own = size_of::<Known>() as u64 * u64::from(jobs);
    format!("{}", to.saturating_sub(from).saturating_sub(own) / u64::from(jobs))
}

fn bulk_table(jobs: u32, outcomes: &[(Order, bulk::Outcome)]) -> String {
    let mut rows = vec![vec!["Figure".to_owned()]];
    rows[0].extend(outcomes.iter().map(|(order, _)| match order {
        Order::FairShare => "fair share".to_owned(),
        Order::FirstCome => "first come".to_owned(),
    }));
    let mut row = |name: &str, value: &dyn Fn(&bulk::Outcome) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(outcomes.iter().map(|(_, outcome)| value(outcome)));
        rows.push(cells);
    };
    row("submissions per second of the core", &|one| per_second(&one.submitting, u64::from(jobs)));
    row("jobs started and ended per second of the core", &|one| {
        per_second(&one.running, u64::from(jobs))
    });
    row("events (reports of hosts included) per second of the core", &|one| {
        per_second(&one.running, one.running.events)
    });
    row("longest event, ms", &|one| milliseconds(one.running.longest));
    row("records of the journal for each job", &|one| {
        let records = one.submitting.records + one.running.records;
        format!("{:.1}", records as f64 / f64::from(jobs))
    });
    row("memory for each waiting job, bytes", &|one| {
        bytes_each(jobs, one.memory[0], one.memory[1])
    });
    row("virtual time of it all, s", &|one| format!("{:.0}", one.makespan_seconds));
    row("slots in use until the last start, %", &|one| format!("{:.1}", one.utilisation * 100.0));
    row("fairness between users (Jain's index; 1 is equal)", &|one| format!("{:.4}", one.fairness));
    row("least and most slot time of a user, of the mean", &|one| {
        format!("{:.2} - {:.2}", one.shares.0, one.shares.1)
    });
    row("wait of a user who comes late, median, s", &|one| format!("{:.1}", one.late_waits.0));
    row("the same, longest, s", &|one| format!("{:.1}", one.late_waits.1));
    row("wait of all others, median, s", &|one| format!("{:.0}", one.wait_median));
    aligned(&rows)
}

/// Sessions, nodes and slots of each node: C4, C2 and C3 of the studies, with the cores of their nodes and with as many slots as people.
const SESSIONS: [(&str, usize, usize, u32); 8] = [
    ("10 sessions, 1 node", 10, 1, 14),
    ("20 sessions, 2 nodes", 20, 2, 14),
    ("30 sessions, 3 nodes", 30, 3, 14),
    ("40 sessions, 4 nodes", 40, 4, 14),
    ("40 sessions, 4 nodes", 40, 4, 8),
    ("40 sessions, 4 nodes", 40, 4, 4),
    ("80 sessions, 4 nodes", 80, 4, 14),
    ("80 sessions, 4 nodes", 80, 4, 20),
];

fn session_table(seed: u64) -> Result<String> {
    let head = [
        "Sessions",
        "slots of a node",
        "jobs",
        "wall, min",
        "jobs that waited, %",
        "wait p50, s",
        "p95",
        "longest",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (name, count, nodes, slots) in SESSIONS {
        let outcome = sessions::run(&sessions::Plan { sessions: count, nodes, slots, seed })?;
        let mut row = vec![name.to_owned(), slots.to_string(), outcome.jobs.to_string()];
        row.push(format!("{:.0}", outcome.wall_minutes));
        row.push(format!("{:.0}", outcome.waited * 100.0));
        row.extend(outcome.waits.iter().map(|wait| format!("{wait:.0}")));
        rows.push(row);
    }
    Ok(aligned(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(order: Order) -> bulk::Outcome {
        let plan =
            bulk::Plan { hosts: 20, slots: 8, jobs: 4000, users: 10, order, wide: 0, seed: 7 };
        // It refuses slots that are given out twice, jobs that start twice and jobs that never end.
        bulk::run(&plan, |_| {}).unwrap()
    }

    #[test]
    fn users_get_equal_shares_and_who_comes_late_waits_for_nobodys_backlog() {
        let (fair, first) = (small(Order::FairShare), small(Order::FirstCome));
        assert!(fair.fairness > 0.95, "{fair:?}");
        assert!(fair.fairness > first.fairness, "{fair:?}, {first:?}");
        assert!(fair.late_waits.0 * 3.0 < first.late_waits.0, "{fair:?}, {first:?}");
        for outcome in [&fair, &first] {
            assert!(outcome.utilisation > 0.9, "{outcome:?}");
        }
    }

    #[test]
    fn sessions_wait_only_if_there_are_fewer_slots_than_people() {
        let run = |slots| sessions::run(&sessions::Plan { sessions: 40, nodes: 4, slots, seed: 3 });
        let (enough, few) = (run(10).unwrap(), run(4).unwrap());
        assert_eq!((enough.jobs, enough.waited), (144, 0.0));
        assert!(few.waited > 0.1 && few.wall_minutes > enough.wall_minutes, "{few:?}");
    }

    #[test]
    fn a_simulation_with_the_same_seed_is_the_same() {
        let one = || sessions::run(&sessions::Plan { sessions: 80, nodes: 4, slots: 8, seed: 5 });
        assert_eq!(one().unwrap().waits, one().unwrap().waits);
        let (a, b) = (small(Order::FairShare), small(Order::FairShare));
        assert_eq!((a.makespan_seconds, a.late_waits), (b.makespan_seconds, b.late_waits));
    }
}
