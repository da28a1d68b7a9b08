//! What limits many nodes that share one fileset: what a temporary file costs whom is measured on one process, what two to four nodes
//! do together is compared with what a network of queues ([`queues`]) says from that, and the same network says what up to 64 nodes do.
//!
//! Processor times are those of the kernel for each process; what belongs to no process of the cluster (threads of the kernel) counts for
//! the node that runs the program. What the cluster does at rest is measured before, and taken off.

mod queues;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use forebay_base::time::SystemClock;
use forebay_base::{ByteSize, Clock as _};
use forebay_process::stat::{Stat, seconds};
use forebay_workload::load::Calibration;

use self::queues::{Demands, Layout, Outcome, simulate};
use super::Bench;
use super::report::{Section, spread};
use super::trial::Trial;
use crate::figure::{Figure, Figures};
use crate::load::Job;
use crate::machine::settle;
use crate::processor::{Times, machine_ticks};
use crate::report::aligned;
use crate::statistics::Summary;

/// How long the cluster is watched at rest.
const REST: Duration = Duration::from_secs(3);
/// What is reported and committed after the load takes.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// The load of one process is so many times that of the other tables: processor times come in hundredths of a second.
const LONGER: u64 = 8;
/// The fileset that all share.
const FILESET: &str = "work";
/// Names of the subjects.
const OWNER: &str = "the owner's node";
const ANOTHER: &str = "another node";

/// Nodes that are simulated, their cores, and files of each process.
const NODES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const CORES: u32 = 16;
const FILES: u64 = 1_000;
const SEED: u64 = 1;
/// Nodes that do less than this part of as many times one are called bent.
const BENT: f64 = 0.9;

/// Seconds that were spent.
#[derive(Clone, Copy, Debug)]
struct Spent {
    /// On the clock.
    seconds: f64,
    programs: f64,
    /// The daemon of the node where the program runs.
    daemon: f64,
    /// The daemon of the owner, if that is another one.
    owner: f64,
    /// The owner's thread that commits, which the daemon's time includes.
    commit: f64,
    etcd: f64,
    /// Threads of the kernel.
    kernel: f64,
}

/// Processor times up to a moment, in seconds.
struct Clocks {
    at: Instant,
    machine: f64,
    programs: f64,
    daemons: Vec<f64>,
    commit: f64,
    etcd: f64,
}

impl Trial {
    fn clocks(&self, owner: usize) -> Result<Clocks> {
        let of = |process: u32| {
            let times = Times::of(process).context("a daemon has ended")?;
            anyhow::Ok(seconds(times.user + times.system))
        };
        let daemon = |node| self.cluster.daemon(node).as_raw_nonzero().get().cast_unsigned();
        let own = Times::own().context("cannot read the times of this process")?;
        let etcd = self.cluster.etcd().process(0).context("etcd has ended")?;
        Ok(Clocks {
            at: SystemClock.instant(),
            machine: seconds(machine_ticks()?),
            programs: seconds(own.children_user + own.children_system),
            daemons: (0..self.nodes()).map(|node| of(daemon(node))).collect::<Result<_>>()?,
            commit: thread_seconds(daemon(owner), "commit")?,
            etcd: of(etcd)?,
        })
    }
}

/// Processor time of a thread, in seconds.
fn thread_seconds(process: u32, name: &str) -> Result<f64> {
    let tasks = format!("/proc/{process}/task");
    for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        let stat = fs::read(task?.path().join("stat")).unwrap_or_default();
        if stat.windows(name.len() + 2).any(|part| part == format!("({name})").as_bytes()) {
            let stat =
                Stat::parse(&stat).with_context(|| format!("{tasks} has an unknown form"))?;
            return Ok(stat.processor_seconds());
        }
    }
    anyhow::bail!("the daemon {process} has no thread {name}")
}

/// What was spent between two moments, `owner` owning the fileset and programs running on the nodes `at`.
fn spent(before: &Clocks, after: &Clocks, owner: usize, at: &[usize]) -> Spent {
    let daemon = |node: usize| after.daemons[node] - before.daemons[node];
    let all: f64 = (0..after.daemons.len()).map(daemon).sum();
    let (programs, etcd) = (after.programs - before.programs, after.etcd - before.etcd);
    Spent {
        seconds: (after.at - before.at).as_secs_f64(),
        programs,
        daemon: at.iter().map(|node| daemon(*node)).sum(),
        owner: if at.contains(&owner) { 0.0 } else { daemon(owner) },
        commit: after.commit - before.commit,
        etcd,
        kernel: (after.machine - before.machine - programs - all - etcd).max(0.0),
    }
}

impl Spent {
    /// What each of so many files took that were made in `seconds`, less what was spent `at_rest`.
    fn each(&self, at_rest: &Spent, seconds: f64, files: f64) -> Spent {
        let part = self.seconds / at_rest.seconds;
        let each = Spent::by(|of| (of(self) - of(at_rest) * part).max(0.0) / files);
        Spent { seconds: seconds / files, ..each }
    }

    /// Of each kind of time what `value` makes of it.
    fn by(value: impl Fn(fn(&Spent) -> f64) -> f64) -> Spent {
        Spent {
            seconds: value(|spent| spent.seconds),
            programs: value(|spent| spent.programs),
            daemon: value(|spent| spent.daemon),
            owner: value(|spent| spent.owner),
            commit: value(|spent| spent.commit),
            etcd: value(|spent| spent.etcd),
            kernel: value(|spent| spent.kernel),
        }
    }

    fn figures(&self) -> Figures {
        let milliseconds = |seconds: f64| seconds * 1e3;
        Figures::from([
            (Figure::FileTime, milliseconds(self.seconds)),
            (Figure::ProgramTime, milliseconds(self.programs)),
            (Figure::DaemonTime, milliseconds(self.daemon)),
            (Figure::OwnerTime, milliseconds(self.owner)),
            (Figure::CommitTime, milliseconds(self.commit)),
            (Figure::EtcdTime, milliseconds(self.etcd)),
            (Figure::KernelTime, milliseconds(self.kernel)),
        ])
    }

    fn median(all: &[Spent]) -> Spent {
        Spent::by(|of| {
            let values: Vec<f64> = all.iter().map(of).collect();
            Summary::of(&values).map_or(0.0, |summary| summary.median)
        })
    }

    /// What a file takes of whom. Where processors worked longer than the file took, the program went on before they were done.
    fn demands(&self) -> Demands {
        let of_node = self.programs + self.daemon + self.kernel;
        let node = of_node.min(self.seconds);
        let awaited = (self.seconds - node).min(self.owner);
        Demands {
            node,
            node_afterwards: of_node - node,
            awaited,
            afterwards: self.owner - awaited,
            commit: self.commit,
            etcd: self.etcd,
            delay: self.seconds - node - awaited,
        }
    }
}

impl Bench<'_> {
    /// Measures one to four nodes, and simulates up to 64.
    ///
    /// # Errors
    /// If a load fails; after a signal.
    pub fn scaling(&self, trial: &Trial, sections: &mut Vec<Section>) -> Result<()> {
        let section = Section::begin(sections, "What a temporary file costs", OWNER);
        let (mut on_owner, mut on_another) = (Vec::new(), Vec::new());
        let mut rates: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for round in 0..self.rounds {
            let owner = trial.owner(FILESET)?;
            let nodes: Vec<usize> =
                (0..trial.nodes()).map(|more| (owner + more) % trial.nodes()).collect();
            for (name, node, costs) in
                [(OWNER, nodes[0], &mut on_owner), (ANOTHER, nodes[1], &mut on_another)]
            {
                let cost = self.cost_on(trial, owner, &[node])?;
                section.note(round, name, &cost.figures());
                costs.push(cost);
            }
            for count in 2..=nodes.len() {
                let cost = self.cost_on(trial, owner, &nodes[..count])?;
                eprintln!(
                    "  round {}, {count} nodes: {:.0} files/s",
                    round + 1,
                    1.0 / cost.seconds
                );
                rates.entry(count).or_default().push(1.0 / cost.seconds);
            }
        }
        rates.insert(1, on_owner.iter().map(|cost| 1.0 / cost.seconds).collect());
        let demands = [&on_owner, &on_another].map(|costs| Spent::median(costs).demands());
        section.remarks.push(comparison(demands, &rates));
        section.remarks.push(prediction(demands));
        Ok(())
    }

    /// What each file costs of one process on each of `nodes`.
    fn cost_on(&self, trial: &Trial, owner: usize, nodes: &[usize]) -> Result<Spent> {
        let load = self.longer_calibration();
        let place = |node: usize| trial.on_node(node, FILESET).join("load");
        let (jobs, made) = (self.jobs(), place(owner));
        jobs.run(&made, &Job::Make)?;
        jobs.run(&made, &Job::Table(load.clone()))?;
        settle(self.interrupt, AFTERWARDS)?;
        let rest = trial.clocks(owner)?;
        self.interrupt.sleep(REST)?;
        let before = trial.clocks(owner)?;
        let each = nodes
            .iter()
            .zip(0..)
            .map(|(node, number)| (place(*node), Job::Calibration(load.clone(), number)));
        let (seconds, _) = jobs.race_in(each)?;
        self.interrupt.sleep(AFTERWARDS)?;
        let after = trial.clocks(owner)?;
        jobs.run(&made, &Job::Remove)?;
        let files = load.temp_files_per_worker as f64 * nodes.len() as f64;
        let at_rest = spent(&rest, &before, owner, nodes);
        Ok(spent(&before, &after, owner, nodes).each(&at_rest, seconds, files))
    }

    fn longer_calibration(&self) -> Calibration {
        let load = &self.amounts.own.calibration;
        Calibration {
            extract_bytes: ByteSize(load.extract_bytes.0 * LONGER),
            temp_files_per_worker: load.temp_files_per_worker * LONGER,
            outputs_per_worker: load.outputs_per_worker * LONGER,
            ..load.clone()
        }
    }
}

/// Nodes that share the cores of this machine: what was measured beside what the network of queues says.
fn comparison(demands: [Demands; 2], rates: &BTreeMap<usize, Vec<f64>>) -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = u32::try_from(cores).unwrap_or(u32::MAX);
    let mut rows = vec![
        ["nodes", "measured, files/s", "simulated, files/s", "error"].map(str::to_owned).to_vec(),
    ];
    for (nodes, rates) in rates {
        let Some(measured) = Summary::of(rates) else { continue };
        let layout = Layout { nodes: *nodes, cores, processes: 1, is_one_machine: true };
        let simulated = simulate(layout, demands, FILES * 10, SEED).files_per_second;
        let error = (simulated / measured.median - 1.0) * 100.0;
        rows.push(vec![
            nodes.to_string(),
            spread(measured),
            format!("{simulated:.0}"),
            format!("{error:+.0} %"),
        ]);
    }
    format!("One process on each node, all on this machine's {cores} cores:\n\n{}", aligned(&rows))
}

/// Nodes with cores of their own, and a process for each core.
fn prediction(demands: [Demands; 2]) -> String {
    let simulated = NODES.map(|nodes| {
        let layout =
            Layout { nodes, cores: CORES, processes: CORES as usize, is_one_machine: false };
        (nodes, simulate(layout, demands, FILES, SEED))
    });
    let one = simulated[0].1.files_per_second;
    let mut rows = vec![
        [
            "nodes",
            "files/s",
            "times one node",
            "owner's cores busy",
            "its commit thread busy",
            "etcd busy",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    for (nodes, found) in &simulated {
        rows.push(vec![
            nodes.to_string(),
            format!("{:.0}", found.files_per_second),
            format!("{:.1}", found.files_per_second / one),
            percent(found.owner_busy),
            percent(found.commit_busy),
            percent(found.etcd_busy),
        ]);
    }
    format!(
        "Nodes of {CORES} cores with a process for each core, simulated:\n\n{}\n{}",
        aligned(&rows),
        bend(&simulated, one)
    )
}

/// Where nodes stop to add up, and what is busy there.
fn bend(simulated: &[(usize, Outcome)], one: f64) -> String {
    let bent =
        |(nodes, found): &&(usize, Outcome)| found.files_per_second < BENT * one * *nodes as f64;
    let Some((nodes, found)) = simulated.iter().find(bent) else {
        return format!("All of them do at least {BENT} of as many times one.");
    };
    let busy = [
        ("the cores of the owner's node", found.owner_busy),
        ("its thread that commits", found.commit_busy),
        ("etcd", found.etcd_busy),
    ];
    let busiest = busy.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    let (name, part) = busiest.copied().unwrap_or_default();
    format!(
        "From {nodes} nodes on they do less than {BENT} of as many times one: busiest are {name} ({:.0} %).",
        part * 100.0
    )
}
