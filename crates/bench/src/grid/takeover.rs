//! A cluster's grid whose leading controller goes while many jobs are known: how long nobody answers, and what commands cost then.
//!
//! Two nodes on this machine, each with a controller, and an etcd of one member. All jobs are held, so nothing runs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_e2e::cluster::{Cluster, Plan};
use forebay_engine::files::holder;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::vocabulary::JobId;
use rustix::process::{Signal, kill_process};

use super::measure::{Figure, held_jobs, submit_all};
use crate::statistics::Summary;

const NODES: usize = 2;

/// What a controller says when it begins to lead, and when it can answer.
const LEADS: &str = "this controller leads";
const READY: &str = "the controller is ready";

/// What one that stands by says, and when it follows the journal.
const STANDS_BY: &str = "this one stands by";
const READS_AHEAD: &str = "the journal is being read ahead";

/// How a leader goes.
#[derive(Clone, Copy, Debug)]
enum Going {
    /// In order: it resigns.
    Stopped,
    /// Killed with its supervisor: the relay of its node ends its lease.
    Killed,
}

struct Grid {
    cluster: Cluster,
    program: PathBuf,
}

impl Grid {
    fn start(program: &Path, scratch: &Path) -> Result<Grid> {
        let plan = Plan {
            base: Some(scratch.to_owned()),
            forebay: Some(program.to_owned()),
            ..Plan::of(NODES)
        };
        let grid = Grid { cluster: Cluster::make(&plan), program: program.to_owned() };
        (0..NODES).for_each(|node| grid.up(node));
        Ok(grid)
    }

    fn root(&self, node: usize) -> PathBuf {
        self.cluster.mountpoint(node).with_file_name(format!("grid{node}"))
    }

    fn up(&self, node: usize) {
        let (root, home) = (self.root(node).display().to_string(), self.cluster.home(node));
        let home = home.display().to_string();
        let words = ["up", &root, "--cluster", &home, "--controller", "--hosts", "0"];
        self.cluster.forebay(node, &words).succeeds();
    }

    fn home(&self, node: usize) -> Result<GridHome> {
        GridHome::of(&self.root(node))
    }

    fn log(&self, node: usize) -> Result<String> {
        let path = self.home(node)?.folder().join("controller.log");
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// The node whose controller has begun to lead last.
    fn leader(&self) -> Result<usize> {
        let since = |node| Ok::<_, anyhow::Error>(last_time(&self.log(node)?, LEADS));
        let times: Result<Vec<Option<String>>> = (0..NODES).map(since).collect();
        let times = times?;
        (0..NODES).max_by_key(|node| times[*node].clone()).context("a node")
    }

    /// Waits until the controller of a node stands by and follows the journal.
    fn wait_until_it_follows(&self, node: usize) -> Result<()> {
        let begun = SystemClock.instant();
        loop {
            let log = self.log(node)?;
            let (stands_by, reads) = (last_time(&log, STANDS_BY), last_time(&log, READS_AHEAD));
            if stands_by.is_some() && reads >= stands_by {
                return Ok(());
            }
            ensure!(begun.elapsed().as_secs() < 60, "node {node} does not follow the journal");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Milliseconds of a command on a node, the median of some.
    fn command_ms(&self, node: usize, arguments: &[&str]) -> Result<f64> {
        let samples: Result<Vec<f64>> = (0..9)
            .map(|_| {
                let begun = SystemClock.instant();
                let mut command = std::process::Command::new(&self.program);
                command.args(arguments).env("FOREBAY_GRID", self.root(node));
                let output = command.output()?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                Ok(begun.elapsed().as_secs_f64() * 1e3)
            })
            .collect();
        Ok(Summary::of(&samples?).context("samples were taken")?.median)
    }

    /// Ends the leader; the node of the next one, and seconds until it has answered.
    fn change(&self, going: Going) -> Result<(usize, f64)> {
        let leader = self.leader()?;
        let next = (leader + 1) % NODES;
        let begun = SystemClock.instant();
        match going {
            Going::Stopped => {
                self.signal(leader, &self.home(leader)?.supervisor(), Signal::TERM)?;
            }
            Going::Killed => {
                self.signal(leader, &self.home(leader)?.supervisor(), Signal::KILL)?;
                self.signal(leader, &self.home(leader)?.lock(), Signal::KILL)?;
            }
        }
        loop {
            let answer =
                Client::connect(&self.home(next)?).and_then(|mut client| client.ask(&Ask::Queues));
            if matches!(answer, Ok(Answer::Queues { .. })) && self.leader()? == next {
                let seconds = begun.elapsed().as_secs_f64();
                return Ok((next, seconds));
            }
            ensure!(begun.elapsed().as_secs() < 300, "no other controller leads");
        }
    }

    fn signal(&self, node: usize, lock: &Path, signal: Signal) -> Result<()> {
        let process = holder(lock).with_context(|| format!("node {node}: {}", lock.display()))?;
        Ok(kill_process(process, signal)?)
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        for node in 0..NODES {
            let root = self.root(node).display().to_string();
            // What is left ends with the cluster.
            let _ = self.cluster.forebay(node, &["down", &root, "--now"]);
        }
    }
}

/// The time of the last line of a log with these words.
fn last_time(log: &str, words: &str) -> Option<String> {
    let line = log.lines().rev().find(|line| line.contains(words))?;
    line.split(' ').next().map(str::to_owned)
}

/// The seconds of a day of a time such as `2026-11-25T03:38:52.123456Z`.
fn seconds_of_day(time: &str) -> Option<f64> {
    let (_, clock) = time.trim_end_matches('Z').split_once('T')?;
    let parts: Vec<f64> = clock.split(':').map_while(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds] = parts[..] else { return None };
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}

/// Seconds from leading to answering, as the log says.
fn opening_seconds(log: &str) -> Option<f64> {
    let led = seconds_of_day(&last_time(log, LEADS)?)?;
    let ready = seconds_of_day(&last_time(log, READY)?)?;
    Some((ready - led).rem_euclid(86_400.0))
}

/// Measures it with so many jobs.
///
/// # Errors
/// If the grid cannot be started, or nobody takes over.
pub fn takeover(program: &Path, scratch: &Path, count: u32) -> Result<Vec<Figure>> {
    let grid = Grid::start(program, scratch)?;
    let mut client = Client::connect(&grid.home(0)?)?;
    let begun = SystemClock.instant();
    let jobs = submit_all(&mut client, &held_jobs(scratch, count)?)?;
    let accepted = f64::from(count) / begun.elapsed().as_secs_f64();
    drop(client);
    let mut figures =
        vec![Figure::new("cluster: single jobs accepted durably in etcd, /s", 0, accepted)];
    for (going, name) in [(Going::Stopped, "stops"), (Going::Killed, "is killed")] {
        let former = grid.leader()?;
        grid.wait_until_it_follows((former + 1) % NODES)?;
        let (next, seconds) = grid.change(going)?;
        let opening = opening_seconds(&grid.log(next)?).context("the log of the next leader")?;
        figures.push(Figure::new(
            format!("cluster, {count} jobs: leader {name}, until the next one answers, s"),
            2,
            seconds,
        ));
        figures.push(Figure::new(
            format!("cluster, {count} jobs: leader {name}, of that reading the journal, s"),
            2,
            opening,
        ));
        figures.extend(commands(&grid, next, &jobs, name)?);
        grid.up(former);
    }
    Ok(figures)
}

fn commands(grid: &Grid, node: usize, jobs: &[JobId], name: &str) -> Result<Vec<Figure>> {
    let middle = jobs[jobs.len() / 2].to_string();
    let mut figures = Vec::new();
    for command in ["jobs", "explain"] {
        let title =
            format!("cluster, {} jobs: `forebay {command} ID` after it {name}, ms", jobs.len());
        figures.push(Figure::new(title, 1, grid.command_ms(node, &[command, &middle])?));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_opening_is_read_from_the_log_over_midnight_too() {
        let log = format!(
            "2026-11-25T23:59:59.500000Z INFO {LEADS} term=3\n2026-11-26T00:00:01.250000Z INFO {READY}\n"
        );
        assert_eq!(opening_seconds(&log), Some(1.75));
        assert_eq!(opening_seconds("nothing"), None);
    }
}
