//! What happens to the nodes: waves of faults, each of which ends before the wave does.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_e2e::wait_until;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};

use super::{BEYOND, CONTROLLERS, MEMBERS, NODES, Storm, is_shim};
use crate::fixture::LIMIT;

/// How long a leader or a member of etcd is frozen: longer than the lease of a leader.
const FROZEN: Duration = Duration::from_secs(8);

/// A wave ends after this time, if all that happened in it is mended.
const WAVE: Duration = Duration::from_secs(15);

/// Time between two small strikes.
const PAUSE: Duration = Duration::from_millis(400);

/// What happens to a controller that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfLeader {
    /// Killed; its supervisor starts it again.
    Kill,
    /// Killed with its supervisor.
    KillForLong,
    /// Frozen for longer than its lease.
    Freeze,
    /// Its whole node is killed.
    KillNode,
    /// Its whole node is frozen.
    FreezeNode,
}

/// What happens to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfHost {
    /// The agent is killed and started again at once.
    KillAgent,
    /// The agent is dead for longer than the lease of its jobs.
    KillAgentForLong,
    /// All shims and nurseries are killed.
    KillShims,
    /// Shims are frozen; the agent goes on.
    FreezeShims,
    /// Agent, nursery and shims are frozen; the watchdog is not.
    FreezeAgentAndShims,
    /// These with the watchdog; the jobs go on.
    FreezeAllButJobs,
    /// All processes of the node are killed at once.
    KillNode,
    /// All processes of the node are frozen.
    FreezeNode,
}

/// What happens to a member of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfEtcd {
    Nothing,
    Kill,
    Freeze,
}

/// Draws each of some things before any of them comes again.
struct Bag<T> {
    all: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Bag<T> {
    fn of(all: &[T]) -> Bag<T> {
        Bag { all: all.to_vec(), left: Vec::new() }
    }

    fn draw(&mut self, random: &mut StdRng) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        self.left.swap_remove(random.random_range(0..self.left.len()))
    }
}

/// What comes next.
pub struct Bags {
    random: StdRng,
    of_leader: Bag<OfLeader>,
    of_host: Bag<OfHost>,
    of_etcd: Bag<OfEtcd>,
}

impl Bags {
    pub fn new(seed: u64) -> Bags {
        use {OfEtcd as E, OfHost as H, OfLeader as L};
        Bags {
            random: StdRng::seed_from_u64(seed ^ 0x5707),
            of_leader: Bag::of(&[L::Kill, L::KillForLong, L::Freeze, L::KillNode, L::FreezeNode]),
            of_host: Bag::of(&[
                H::KillAgent,
                H::KillAgentForLong,
                H::KillShims,
                H::FreezeShims,
                H::FreezeAgentAndShims,
                H::FreezeAllButJobs,
                H::KillNode,
                H::FreezeNode,
            ]),
            of_etcd: Bag::of(&[E::Nothing, E::Kill, E::Freeze]),
        }
    }
}

/// What has to be done to mend a fault.
enum Mending {
    /// These go on.
    Continue(Vec<Pid>),
    /// What is missing on the node is started.
    Up,
    /// The node is mounted, and all of it started.
    Restart,
}

/// A fault that is not mended.
struct Open {
    node: usize,
    until: Instant,
    mending: Mending,
}

/// What happens in a round.
pub struct Weather<'a> {
    storm: &'a Storm,
    bags: &'a mut Bags,
    open: Vec<Open>,
    /// What happened, for the output of the test.
    said: String,
    /// Starts whose program was killed, as `JOB.INDEX.ATTEMPT`: only these may say that signal 9 ended them.
    programs: BTreeSet<String>,
}

impl<'a> Weather<'a> {
    pub fn new(storm: &'a Storm, bags: &'a mut Bags) -> Weather<'a> {
        Weather { storm, bags, open: Vec::new(), said: String::new(), programs: BTreeSet::new() }
    }

    /// What happened, and whose programs were killed. Every node is well.
    pub fn clear_up(self) -> (String, BTreeSet<String>) {
        assert!(self.open.is_empty(), "a wave has left a fault");
        (self.said, self.programs)
    }

    fn random(&mut self) -> &mut StdRng {
        &mut self.bags.random
    }

    /// One fault of each kind at the same time, and small strikes beside them.
    pub fn wave(&mut self) {
        let begun = Instant::now();
        let leader = self.storm.grid.leader();
        let before = self.storm.grid.led_since(leader);
        let of_leader = self.bags.of_leader.draw(&mut self.bags.random);
        let of_host = self.bags.of_host.draw(&mut self.bags.random);
        let of_etcd = self.bags.of_etcd.draw(&mut self.bags.random);
        let host = (leader + self.random().random_range(1..NODES)) % NODES;
        let member = self.random().random_range(0..MEMBERS);
        println!(
            "n{leader} leads: {of_leader:?}; n{host}: {of_host:?}; etcd {member}: {of_etcd:?}"
        );
        self.wait_for_jobs(host);
        self.strike_host(host, of_host);
        self.strike_etcd(member, of_etcd);
        let struck = Instant::now();
        self.strike_leader(leader, of_leader);
        let mut replaced = None;
        let mut next_small = Instant::now() + PAUSE;
        while begun.elapsed() < WAVE || !self.open.is_empty() || replaced.is_none() {
            if replaced.is_none()
                && (0..CONTROLLERS).any(|node| self.storm.grid.led_since(node) > before)
            {
                replaced = Some(struck.elapsed());
            }
            assert!(struck.elapsed() < LIMIT, "no controller leads after {of_leader:?}");
            if next_small <= Instant::now() && begun.elapsed() < WAVE {
                self.strike_a_job();
                next_small = Instant::now() + PAUSE;
            }
            self.mend_what_is_due();
            std::thread::sleep(Duration::from_millis(50));
        }
        let replaced = replaced.expect("the wave waited for it");
        let _ = writeln!(
            self.said,
            "  leader {of_leader:?}, replaced after {replaced:.1?}; host {of_host:?}; etcd {of_etcd:?}"
        );
    }

    /// Waits for a moment until the host has jobs to lose, if it gets any.
    fn wait_for_jobs(&self, host: usize) {
        let begun = Instant::now();
        while self.storm.shims(host).is_empty() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn strike_leader(&mut self, leader: usize, fault: OfLeader) {
        let holder = |lock| self.storm.grid.holder(leader, lock);
        match fault {
            OfLeader::Kill => signal_all(holder("lock"), Signal::KILL),
            OfLeader::KillForLong => {
                signal_all(holder("supervisor"), Signal::KILL);
                signal_all(holder("lock"), Signal::KILL);
                self.open(leader, FROZEN, Mending::Up);
            }
            OfLeader::Freeze => {
                let frozen: Vec<Pid> = holder("lock").into_iter().collect();
                self.freeze(leader, frozen, FROZEN);
            }
            OfLeader::KillNode => self.kill_node(leader),
            OfLeader::FreezeNode => self.freeze_node(leader),
        }
    }

    fn strike_host(&mut self, host: usize, fault: OfHost) {
        let agent = self.storm.grid.holder(host, &format!("hosts/n{host}/lock"));
        let nurseries = self.storm.processes(host, "--nursery");
        let watchdogs = || self.storm.processes(host, "--watchdog");
        match fault {
            OfHost::KillAgent => {
                signal_all(agent, Signal::KILL);
                self.open(host, Duration::ZERO, Mending::Up);
            }
            OfHost::KillAgentForLong => {
                signal_all(agent, Signal::KILL);
                self.open(host, BEYOND, Mending::Up);
            }
            OfHost::KillShims => {
                // A shim that sees its job end says that a signal ended it.
                signal_all(nurseries.iter().copied(), Signal::STOP);
                signal_all(nurseries, Signal::KILL);
            }
            OfHost::FreezeShims => self.freeze(host, self.storm.shims(host), BEYOND),
            OfHost::FreezeAgentAndShims => {
                self.freeze(host, agent.into_iter().chain(nurseries).collect(), BEYOND);
            }
            OfHost::FreezeAllButJobs => {
                let all = agent.into_iter().chain(nurseries).chain(watchdogs());
                self.freeze(host, all.collect(), BEYOND);
            }
            OfHost::KillNode => self.kill_node(host),
            OfHost::FreezeNode => self.freeze_node(host),
        }
    }

    fn strike_etcd(&mut self, member: usize, fault: OfEtcd) {
        let host = NODES + member;
        let processes = || self.storm.grid.cluster.hosts().processes(host);
        match fault {
            OfEtcd::Nothing => {}
            OfEtcd::Kill => {
                self.storm.kill_member(member);
                self.open(host, FROZEN, Mending::Restart);
            }
            OfEtcd::Freeze => self.freeze(host, processes(), FROZEN),
        }
    }

    /// Kills a shim, or the program of a job, on a node that is well.
    fn strike_a_job(&mut self) {
        let node = self.random().random_range(0..NODES);
        if self.open.iter().any(|open| open.node == node) {
            return;
        }
        let shims = self.storm.shims(node);
        if shims.is_empty() {
            return;
        }
        let shim = shims[self.random().random_range(0..shims.len())];
        if self.random().random_bool(0.5) {
            signal_all([shim], Signal::KILL);
            return;
        }
        let Some((run, program)) = run_of(shim).zip(child_of(shim)) else { return };
        // It may have got another run meanwhile: then nobody knows whose program that is.
        if run_of(shim).as_ref() == Some(&run) {
            self.programs.insert(run);
            signal_all([program], Signal::KILL);
        }
    }

    fn open(&mut self, node: usize, lasts: Duration, mending: Mending) {
        self.open.push(Open { node, until: Instant::now() + lasts, mending });
    }

    fn freeze(&mut self, node: usize, processes: Vec<Pid>, lasts: Duration) {
        signal_all(processes.iter().copied(), Signal::STOP);
        self.open(node, lasts, Mending::Continue(processes));
    }

    /// Stops every process of a node, those that are forked meanwhile as well.
    fn stop_node(&self, node: usize) -> Vec<Pid> {
        self.storm.usable[node].store(false, Ordering::SeqCst);
        let mut stopped = BTreeSet::new();
        loop {
            let all = self.storm.grid.cluster.hosts().processes(node);
            let new = all.iter().filter(|process| stopped.insert(process.as_raw_nonzero()));
            let new: Vec<Pid> = new.copied().collect();
            if new.is_empty() {
                return all;
            }
            signal_all(new, Signal::STOP);
        }
    }

    fn freeze_node(&mut self, node: usize) {
        let stopped = self.stop_node(node);
        self.open(node, BEYOND, Mending::Continue(stopped));
    }

    /// As a power cut: nothing sees anything else end. It stays down for long, or is started again soon.
    fn kill_node(&mut self, node: usize) {
        signal_all(self.stop_node(node), Signal::KILL);
        wait_until("the node has no processes", LIMIT, || {
            self.storm.grid.cluster.hosts().processes(node).is_empty()
        });
        self.storm.grid.cluster.detach(node);
        let is_long = self.random().random_bool(0.5);
        self.open(node, if is_long { BEYOND } else { Duration::ZERO }, Mending::Restart);
    }

    fn mend_what_is_due(&mut self) {
        let now = Instant::now();
        let (due, open) =
            std::mem::take(&mut self.open).into_iter().partition(|one| one.until <= now);
        self.open = open;
        for Open { node, mending, .. } in due {
            match mending {
                Mending::Continue(processes) => signal_all(processes, Signal::CONT),
                Mending::Up => self.up(node),
                Mending::Restart if node >= NODES => self.storm.start_member(node - NODES),
                Mending::Restart => {
                    wait_until("the node is mounted", LIMIT, || {
                        self.storm.grid.cluster.try_mount(node).status.success()
                    });
                    self.up(node);
                }
            }
            if let Some(usable) = self.storm.usable.get(node) {
                usable.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Starts what is missing on a node; with controllers and etcd as they are, that may take several attempts.
    fn up(&self, node: usize) {
        wait_until(&format!("n{node} is up"), LIMIT, || {
            self.storm.grid.up_again(node).status.success()
        });
    }
}

fn signal_all(processes: impl IntoIterator<Item = Pid>, signal: Signal) {
    for process in processes {
        // What has ended meanwhile needs no signal.
        let _ = kill_process(process, signal);
    }
}

/// Which run a shim holds, as its name says.
fn run_of(shim: Pid) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", shim.as_raw_nonzero())).ok()?;
    Some(name.trim_end().strip_prefix("shim ")?.to_owned())
}

fn child_of(process: Pid) -> Option<Pid> {
    let number = process.as_raw_nonzero();
    let text = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children")).ok()?;
    Pid::from_raw(text.split_whitespace().next()?.parse().ok()?)
}

#[test]
fn a_program_that_has_executed_nothing_yet_is_not_taken_for_its_shim() {
    // A shell with the name of a shim, and a copy of it. Both end with its standard input.
    let script = "printf 'shim 7.0.1' >/proc/$$/comm; (echo; read line); :";
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", script, "sh", "--nursery"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = command.spawn().expect("starts a shell");
    let mut said = shell.stdout.take().expect("a pipe");
    said.read_exact(&mut [0]).expect("the copy says that it is there");
    let shim = Pid::from_child(&shell);
    let program = child_of(shim).expect("the copy");
    assert_eq!(run_of(program).as_deref(), Some("7.0.1"));
    assert!(is_shim(shim) && !is_shim(program));
    shell.wait().expect("ends");
}
