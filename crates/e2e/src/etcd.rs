//! The members of an etcd, each on a host of its own, which can be killed and started again.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::command::run;
use crate::hosts::Hosts;
use crate::{need, wait_until};

/// How long a member may take to answer.
const LIMIT: Duration = Duration::from_secs(60);

/// An etcd. All members end when it is dropped; their data stay.
pub struct Etcd {
    /// Their hosts.
    places: Range<usize>,
    folder: PathBuf,
    members: Mutex<Vec<Option<Child>>>,
}

impl Etcd {
    /// Starts a member on each of the hosts `places`, with its data in `folder`.
    ///
    /// # Panics
    /// If etcd is missing.
    #[must_use]
    pub fn start(hosts: &Hosts, places: Range<usize>, folder: &Path) -> Etcd {
        let members = Mutex::new(places.clone().map(|_| None).collect());
        let etcd = Etcd { places, folder: folder.to_owned(), members };
        for member in 0..etcd.members() {
            etcd.start_member(hosts, member);
        }
        etcd
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Child>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a member that was killed, with the data that it had.
    ///
    /// # Panics
    /// If it runs.
    pub fn start_member(&self, hosts: &Hosts, member: usize) {
        assert!(self.lock()[member].is_none(), "member {member} of etcd runs");
        let peer = |member| format!("http://{}:2380", hosts.address(self.places.start + member));
        let client = format!("http://{}:2379", hosts.address(self.places.start + member));
        let all = (0..self.members()).map(|member| format!("m{member}={}", peer(member)));
        let mut etcd = need::program("etcd");
        etcd.arg(format!("--name=m{member}"))
            .arg("--data-dir")
            .arg(self.folder.join(format!("etcd{member}")))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={}", peer(member)))
            .arg(format!("--initial-advertise-peer-urls={}", peer(member)))
            .arg(format!("--initial-cluster={}", all.collect::<Vec<_>>().join(",")));
        let log = self.folder.join(format!("etcd{member}.log"));
        let log = File::options().create(true).append(true).open(log).expect("opens a log");
        let mut command = hosts.command(self.places.start + member, &etcd);
        let errors = log.try_clone().expect("duplicates a file");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.lock()[member] = Some(command.spawn().expect("starts etcd"));
    }

    /// Kills a member as a power cut would.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill_member(&self, member: usize) {
        let mut process = self.lock()[member].take().expect("the member runs");
        process.kill().expect("kills etcd");
        process.wait().expect("waits for etcd");
    }

    /// The process of a member that runs.
    #[must_use]
    pub fn process(&self, member: usize) -> Option<u32> {
        self.lock()[member].as_ref().map(Child::id)
    }

    /// How many members there are.
    #[must_use]
    pub fn members(&self) -> usize {
        self.places.len()
    }

    /// The hosts of its members.
    #[must_use]
    pub fn places(&self) -> Range<usize> {
        self.places.clone()
    }

    /// The endpoints of all members, as Forebay takes them.
    #[must_use]
    pub fn endpoints(&self, hosts: &Hosts) -> String {
        let url = |host| format!("http://{}:2379", hosts.address(host));
        self.places.clone().map(url).collect::<Vec<_>>().join(",")
    }

    /// Waits until every member takes connections from a host.
    ///
    /// # Panics
    /// If one does not within a minute.
    pub fn wait_until_reached(&self, hosts: &Hosts, from: usize) {
        for host in self.places.clone() {
            let connect = format!("exec 3<>/dev/tcp/{}/2379", hosts.address(host));
            wait_until("etcd answers", LIMIT, || {
                let mut bash = need::program("bash");
                bash.args(["-c", &connect]);
                run(&mut hosts.command(from, &bash), LIMIT).status.success()
            });
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for process in self.lock().iter_mut().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
