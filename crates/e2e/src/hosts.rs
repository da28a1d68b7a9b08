//! Several hosts on one machine: network namespaces that reach each other through a bridge in one more namespace.
//!
//! Only the network is separate. Files and mounts are shared, so a test sees the mount of each host. `scripts/sweep`
//! removes the namespaces of tests whose process is gone.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::command::run;
use crate::need;

const LIMIT: Duration = Duration::from_secs(20);

/// What the names of the namespaces begin with; the process id of the test follows.
const PREFIX: &str = "fbtest";

/// Hosts that reach each other; gone when dropped.
#[derive(Debug)]
pub struct Hosts {
    /// Names of the namespaces of the hosts.
    names: Vec<String>,
    /// The namespace with the bridge.
    switch: String,
}

/// One network within all namespaces: it is seen from nowhere else.
fn address_of(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

fn ip(arguments: &str) {
    run(need::program("ip").args(arguments.split_whitespace()), LIMIT).succeeds();
}

impl Hosts {
    /// Makes `count` hosts, at most 200.
    ///
    /// # Panics
    /// If the test does not run as root, or `ip` is missing.
    #[must_use]
    pub fn make(count: usize) -> Hosts {
        static MADE: AtomicU32 = AtomicU32::new(0);
        need::root();
        assert!(count <= 200, "{count} hosts are too many for one network");
        let set =
            format!("{PREFIX}-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let hosts = Hosts {
            names: (0..count).map(|host| format!("{set}-{host}")).collect(),
            switch: format!("{set}-switch"),
        };
        let switch = &hosts.switch;
        ip(&format!("netns add {switch}"));
        ip(&format!("-n {switch} link add bridge type bridge"));
        ip(&format!("-n {switch} link set bridge up"));
        for (host, name) in hosts.names.iter().enumerate() {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {switch} link add port{host} type veth peer name eth0 netns {name}"));
            ip(&format!("-n {switch} link set port{host} master bridge up"));
            ip(&format!("-n {name} address add {}/24 dev eth0", address_of(host)));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        hosts
    }

    /// The address of a host.
    #[must_use]
    pub fn address(&self, host: usize) -> String {
        assert!(host < self.names.len(), "there is no host {host}");
        address_of(host)
    }

    /// A command for a program on a host.
    #[must_use]
    pub fn command(&self, host: usize, program: &Command) -> Command {
        let mut command = need::program("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.names[host]));
        command.arg(program.get_program()).args(program.get_args());
        for (variable, value) in program.get_envs() {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        command
    }

    /// Nothing that `from` sends reaches `to` any more; the other direction is not changed.
    pub fn cut(&self, from: usize, to: usize) {
        ip(&format!("-n {} route add blackhole {}/32", self.names[from], address_of(to)));
    }

    /// Takes [`Hosts::cut`] back.
    pub fn mend(&self, from: usize, to: usize) {
        ip(&format!("-n {} route del blackhole {}/32", self.names[from], address_of(to)));
    }

    /// Cuts a host off from all others, in both directions.
    pub fn unplug(&self, host: usize) {
        ip(&format!("-n {} link set port{host} down", self.switch));
    }

    /// Takes [`Hosts::unplug`] back.
    pub fn plug_in(&self, host: usize) {
        ip(&format!("-n {} link set port{host} up", self.switch));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.switch]) {
            // One that was never made is not there.
            let _ = need::program("ip").args(["netns", "delete", name]).output();
        }
    }
}
