//! A closed network of queues: processes on nodes that make one temporary file after the other, and the processors that serve them.
//!
//! A file takes its node's processors first, then those of the owner's node as far as the process waits for that, then a time in which
//! no processor works for it. What its node and the owner do afterwards takes their processors, then the owner's thread that commits,
//! which does one thing at a time, then etcd's. A node whose owner has not caught up with [`BEHIND_MAX`] files of a process has that process wait.
//! Times of service are exponentially distributed. Queues are first come, first served, but that a daemon comes before programs: it has
//! slept, so the kernel's scheduler prefers it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, Exp1};

/// Files of a process that the owner may not have caught up with.
const BEHIND_MAX: u32 = 256;
/// Cores of the machine of etcd.
const ETCD_CORES: u32 = 4;
/// The part of the files that come before anything is counted.
const WARM_UP: f64 = 0.25;

/// What one temporary file takes, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demands {
    /// Of the processors of its node (program, daemon and kernel), before the program goes on.
    pub node: f64,
    /// Of the same, afterwards.
    pub node_afterwards: f64,
    /// Of the processors of the owner's node, before the program goes on.
    pub awaited: f64,
    /// Of those of the owner's node, afterwards: that of the thread that commits included.
    pub afterwards: f64,
    /// Of the owner's thread that commits.
    pub commit: f64,
    /// Of the processors of etcd.
    pub etcd: f64,
    /// Of no processor, while the program waits.
    pub delay: f64,
}

/// The nodes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// How many; the first one owns the fileset.
    pub nodes: usize,
    /// Cores of each node; of all together if they share a machine.
    pub cores: u32,
    /// Processes on each node.
    pub processes: usize,
    /// Whether all nodes, and etcd, share the cores of one machine.
    pub is_one_machine: bool,
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Files of all processes in a second.
    pub files_per_second: f64,
    /// Part of the time that each core of the owner's node was busy.
    pub owner_busy: f64,
    /// The same of its thread that commits.
    pub commit_busy: f64,
    /// The same of the cores of etcd.
    pub etcd_busy: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Node,
    Awaited,
    Delay,
    NodeAfterwards,
    Afterwards,
    Commit,
    Etcd,
}

type Task = (usize, Step);

#[derive(Debug)]
struct Station {
    servers: u32,
    busy: u32,
    /// Daemons, who come first.
    daemons: VecDeque<Task>,
    programs: VecDeque<Task>,
    /// Seconds of service that were begun.
    served: f64,
}

impl Station {
    fn new(servers: u32) -> Station {
        let (daemons, programs) = (VecDeque::new(), VecDeque::new());
        Station { servers, busy: 0, daemons, programs, served: 0.0 }
    }

    fn queue(&mut self, task: Task) {
        let is_program = matches!(task.1, Step::Node | Step::NodeAfterwards);
        let queue = if is_program { &mut self.programs } else { &mut self.daemons };
        queue.push_back(task);
    }

    fn next(&mut self) -> Option<Task> {
        self.daemons.pop_front().or_else(|| self.programs.pop_front())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Process {
    /// Files that the owner has not caught up with.
    behind: u32,
    waits: bool,
}

/// A simulation under way.
struct Network {
    layout: Layout,
    /// Of processes on the owner's node, and of those on the others.
    demands: [Demands; 2],
    stations: Vec<Station>,
    processes: Vec<Process>,
    /// When what ends, in nanoseconds; the number keeps the order of what ends at once.
    events: BinaryHeap<Reverse<(u64, u64, Task)>>,
    events_made: u64,
    now: u64,
    files: u64,
    dice: StdRng,
}

/// Simulates so many files of each process.
pub fn simulate(layout: Layout, demands: [Demands; 2], files: u64, seed: u64) -> Outcome {
    let mut network = Network::new(layout, demands, seed);
    let all = files * network.processes.len() as u64;
    for process in 0..network.processes.len() {
        network.begin((process, Step::Node));
    }
    network.run_until((all as f64 * WARM_UP) as u64);
    let before = (network.now, network.files, network.served());
    network.run_until(all);
    let seconds = (network.now - before.0) as f64 / 1e9;
    let busy = |station: usize| {
        let served = network.stations[station].served - before.2[station];
        served / seconds / f64::from(network.stations[station].servers)
    };
    Outcome {
        files_per_second: (network.files - before.1) as f64 / seconds,
        owner_busy: busy(network.station((0, Step::Awaited))),
        commit_busy: busy(network.station((0, Step::Commit))),
        etcd_busy: busy(network.station((0, Step::Etcd))),
    }
}

impl Network {
    fn new(layout: Layout, demands: [Demands; 2], seed: u64) -> Network {
        let machines = if layout.is_one_machine { 1 } else { layout.nodes };
        let nodes = std::iter::repeat_n(layout.cores, machines);
        Network {
            layout,
            demands,
            // The thread that commits and etcd come last.
            stations: nodes.chain([1, ETCD_CORES]).map(Station::new).collect(),
            processes: vec![Process::default(); layout.nodes * layout.processes],
            events: BinaryHeap::new(),
            events_made: 0,
            now: 0,
            files: 0,
            dice: StdRng::seed_from_u64(seed),
        }
    }

    fn served(&self) -> Vec<f64> {
        self.stations.iter().map(|station| station.served).collect()
    }

    fn node_of(&self, process: usize) -> usize {
        process / self.layout.processes
    }

    /// Where a step is served.
    fn station(&self, (process, step): Task) -> usize {
        let last = self.stations.len() - 1;
        match step {
            Step::Node | Step::NodeAfterwards if !self.layout.is_one_machine => {
                self.node_of(process)
            }
            Step::Commit => last - 1,
            Step::Etcd if !self.layout.is_one_machine => last,
            _ => 0,
        }
    }

    fn demand(&self, (process, step): Task) -> f64 {
        let demands = &self.demands[usize::from(self.node_of(process) > 0)];
        match step {
            Step::Node => demands.node,
            Step::Awaited => demands.awaited,
            Step::Delay => demands.delay,
            Step::NodeAfterwards => demands.node_afterwards,
            Step::Afterwards => demands.afterwards,
            Step::Commit => demands.commit,
            Step::Etcd => demands.etcd,
        }
    }

    fn run_until(&mut self, files: u64) {
        while self.files < files {
            let Some(Reverse((at, _, task))) = self.events.pop() else { return };
            self.now = at;
            if task.1 != Step::Delay && self.demand(task) > 0.0 {
                self.leave_station(task);
            }
            self.after(task);
        }
    }

    /// Has a step begin, or wait for a server.
    fn begin(&mut self, task: Task) {
        let demand = self.demand(task);
        if task.1 == Step::Delay || demand == 0.0 {
            return self.end_in(demand, task);
        }
        let at = self.station(task);
        if self.stations[at].busy == self.stations[at].servers {
            return self.stations[at].queue(task);
        }
        self.stations[at].busy += 1;
        self.serve(at, task);
    }

    fn serve(&mut self, at: usize, task: Task) {
        let drawn: f64 = Exp1.sample(&mut self.dice);
        let seconds = drawn * self.demand(task);
        self.stations[at].served += seconds;
        self.end_in(seconds, task);
    }

    fn end_in(&mut self, seconds: f64, task: Task) {
        self.events_made += 1;
        let at = self.now + (seconds * 1e9) as u64;
        self.events.push(Reverse((at, self.events_made, task)));
    }

    fn leave_station(&mut self, task: Task) {
        let at = self.station(task);
        match self.stations[at].next() {
            Some(next) => self.serve(at, next),
            None => self.stations[at].busy -= 1,
        }
    }

    /// What follows a step.
    fn after(&mut self, (process, step): Task) {
        match step {
            Step::Node => self.begin((process, Step::Awaited)),
            Step::Awaited => self.begin((process, Step::Delay)),
            Step::Delay => {
                self.files += 1;
                self.begin((process, Step::NodeAfterwards));
                let state = &mut self.processes[process];
                state.behind += 1;
                state.waits = state.behind >= BEHIND_MAX;
                if !state.waits {
                    self.begin((process, Step::Node));
                }
            }
            Step::NodeAfterwards => self.begin((process, Step::Afterwards)),
            Step::Afterwards => self.begin((process, Step::Commit)),
            Step::Commit => self.begin((process, Step::Etcd)),
            Step::Etcd => {
                let state = &mut self.processes[process];
                state.behind -= 1;
                if std::mem::take(&mut state.waits) {
                    self.begin((process, Step::Node));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(nodes: usize, processes: usize, cores: u32) -> Layout {
        Layout { nodes, cores, processes, is_one_machine: false }
    }

    fn near(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 0.05
    }

    #[test]
    fn one_process_makes_a_file_in_the_time_that_it_waits_for() {
        let demands = Demands {
            node: 0.002,
            awaited: 0.001,
            afterwards: 0.0005,
            delay: 0.001,
            ..Demands::default()
        };
        let found = simulate(apart(1, 1, 4), [demands; 2], 20_000, 1);
        assert!(near(found.files_per_second, 250.0), "{found:?}");
        let other = simulate(apart(2, 1, 4), [demands; 2], 20_000, 1);
        assert!(near(other.files_per_second, 500.0), "{other:?}");
    }

    #[test]
    fn nodes_that_take_nothing_of_the_owner_add_up() {
        let demands = Demands { node: 0.002, ..Demands::default() };
        let one = simulate(apart(1, 4, 4), [demands; 2], 2_000, 1);
        let all = simulate(apart(64, 4, 4), [demands; 2], 2_000, 1);
        assert!(near(all.files_per_second, 64.0 * one.files_per_second), "{one:?} {all:?}");
    }

    #[test]
    fn what_the_owner_does_for_each_file_bounds_them_all() {
        let of_owner =
            Demands { node: 0.002, awaited: 0.0002, afterwards: 0.0002, ..Demands::default() };
        let found = simulate(apart(64, 4, 4), [of_owner; 2], 2_000, 1);
        assert!(near(found.files_per_second, 4.0 / 0.0004) && found.owner_busy > 0.95, "{found:?}");
        // Also what programs do not wait for: they may be so far ahead and no further.
        let of_commit = Demands { node: 0.002, commit: 0.0001, ..Demands::default() };
        let found = simulate(apart(64, 4, 4), [of_commit; 2], 2_000, 1);
        assert!(near(found.files_per_second, 10_000.0) && found.commit_busy > 0.95, "{found:?}");
    }

    #[test]
    fn nodes_of_one_machine_share_its_cores() {
        let demands = Demands { node: 0.002, afterwards: 0.0005, ..Demands::default() };
        let layout = Layout { nodes: 4, cores: 2, processes: 1, is_one_machine: true };
        let found = simulate(layout, [demands; 2], 5_000, 1);
        assert!(near(found.files_per_second, 2.0 / 0.0025), "{found:?}");
    }
}
