//! Several hosts on one machine: network namespaces that reach each other.
//!
//! Only the network is separate. Files and mounts are shared, so a test sees the mount of each host. `scripts/sweep`
//! removes the namespaces of tests whose process is gone.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_process::network::{Link, Network};
use rustix::process::Pid;

use crate::need;

/// What the names of the namespaces begin with; the process id of the test follows.
const PREFIX: &str = "fbtest";

/// Hosts that reach each other; gone when dropped.
#[derive(Debug)]
pub struct Hosts(Network);

impl Hosts {
    /// Makes `count` hosts, at most 200.
    ///
    /// # Panics
    /// If the test does not run as root, or `ip` is missing.
    #[must_use]
    pub fn make(count: usize) -> Hosts {
        static MADE: AtomicU32 = AtomicU32::new(0);
        need::root();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let set = format!("{PREFIX}-{}-{number}", std::process::id());
        Hosts(Network::make(&set, count).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The address of a host.
    #[must_use]
    pub fn address(&self, host: usize) -> String {
        self.0.address(host)
    }

    /// A command for a program on a host.
    #[must_use]
    pub fn command(&self, host: usize, program: &Command) -> Command {
        let mut command = self.0.command(host, program.get_program());
        command.args(program.get_args());
        for (variable, value) in program.get_envs() {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        command
    }

    /// The file of a host's network namespace.
    #[must_use]
    pub fn namespace(&self, host: usize) -> std::path::PathBuf {
        self.0.namespace(host)
    }

    /// The processes on a host that have not ended.
    ///
    /// # Panics
    /// If its namespace is gone.
    #[must_use]
    pub fn processes(&self, host: usize) -> Vec<Pid> {
        let own = std::fs::metadata(self.0.namespace(host)).expect("a host has a namespace").ino();
        let is_there = |process: &Pid| {
            let file = format!("/proc/{}/ns/net", process.as_raw_nonzero());
            // One that has ended has no namespaces.
            std::fs::metadata(file).is_ok_and(|namespace| namespace.ino() == own)
        };
        let entries = std::fs::read_dir("/proc").expect("lists processes").flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter_map(Pid::from_raw).filter(is_there).collect()
    }

    /// Nothing that `from` sends reaches `to` any more; the other direction is not changed.
    pub fn cut(&self, from: usize, to: usize) {
        self.0.cut(from, to).expect("cuts the network");
    }

    /// Takes [`Hosts::cut`] back.
    pub fn mend(&self, from: usize, to: usize) {
        self.0.mend(from, to).expect("mends the network");
    }

    /// Cuts a host off from all others, in both directions.
    pub fn unplug(&self, host: usize) {
        self.0.set_link(host, Link::Down).expect("cuts a host off");
    }

    /// Takes [`Hosts::unplug`] back.
    pub fn plug_in(&self, host: usize) {
        self.0.set_link(host, Link::Up).expect("connects a host");
    }
}
