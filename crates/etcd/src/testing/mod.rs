//! etcd for tests: one or three members of the installed program (Debian: etcd-server), each of which can be killed, frozen and
//! started again. Everything ends and is removed when the [`EtcdServer`] is dropped, and when the test's process ends.
//!
//! Functions here panic where production code would return an error: a test cannot go on.

mod keeper;

use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, seed};
use forebay_process::Child;
use rustix::process::Signal;

use self::keeper::Keeper;
use crate::{Client, Options, Runtime, Tls};

/// Where clients reach a member.
const CLIENT_PORT: u16 = 2379;
/// Where members reach each other.
const PEER_PORT: u16 = 2380;
/// How long members may take to elect a leader, on a loaded machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Where a member runs. Its ports are 2379 and 2380.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its address.
    pub ip: IpAddr,
    /// What the command begins with, for example `ip netns exec NAME`. It must not leave a process between.
    pub prefix: Vec<OsString>,
}

/// Certificates of a server, in files.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The authority that signed the certificates of members and clients.
    pub authority: PathBuf,
    /// The members' certificate: for servers and clients, with the addresses of all members, and the one from which they
    /// reach each other (127.0.0.1 on loopback), which etcd compares with it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// With what the test itself connects.
    pub client: Tls,
}

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the members run.
    pub members: Vec<Place>,
    /// Whether members and clients must show certificates.
    pub tls: Option<ServerTls>,
    /// The size at which the database is full; etcd's default is 2 GiB.
    pub quota_bytes: Option<u64>,
}

impl Plan {
    /// Members on this machine, each with a loopback address that nobody else uses.
    ///
    /// # Panics
    /// If no address is free.
    #[must_use]
    pub fn on_loopback(members: usize) -> Plan {
        let place = |_| Place { ip: free_loopback_address(), prefix: Vec::new() };
        Plan { members: (0..members).map(place).collect(), tls: None, quota_bytes: None }
    }
}

/// An address in 127.0.0.0/8 on which both ports are free.
fn free_loopback_address() -> IpAddr {
    for attempt in 0..100_u64 {
        // Another test's process draws others.
        let draw = seed::pick().wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ attempt << 7;
        let [a, b, c, ..] = draw.to_le_bytes();
        let ip = IpAddr::V4(Ipv4Addr::new(127, a | 1, b, c.clamp(1, 254)));
        let free = |port| TcpListener::bind(SocketAddr::new(ip, port)).is_ok();
        if free(CLIENT_PORT) && free(PEER_PORT) {
            return ip;
        }
        std::thread::sleep(Duration::from_micros(137));
    }
    panic!("no loopback address with free ports {CLIENT_PORT} and {PEER_PORT}");
}

/// A running etcd.
pub struct EtcdServer {
    plan: Plan,
    folder: tempfile::TempDir,
    keeper: Keeper,
    members: Vec<Option<Child>>,
    runtime: Runtime,
}

impl EtcdServer {
    /// Starts one member and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn single() -> EtcdServer {
        EtcdServer::start(Plan::on_loopback(1))
    }

    /// Starts three members and waits until all answer.
    ///
    /// # Panics
    /// If they do not.
    #[must_use]
    pub fn three() -> EtcdServer {
        EtcdServer::start(Plan::on_loopback(3))
    }

    /// Starts what the plan says and waits until all members answer.
    ///
    /// # Panics
    /// If they do not, or etcd is not installed.
    #[must_use]
    pub fn start(plan: Plan) -> EtcdServer {
        let folder = tempfile::Builder::new().prefix("etcd.").tempdir();
        let folder = folder.expect("a temporary folder can be made");
        let runtime = Runtime::start(1).expect("a thread can be started");
        let members = plan.members.iter().map(|_| None).collect();
        let mut server = EtcdServer { plan, folder, keeper: Keeper::start(), members, runtime };
        for index in 0..server.members.len() {
            server.spawn(index);
        }
        server.wait_until_healthy();
        server
    }

    /// The endpoint of each member.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|index| self.url(index, CLIENT_PORT)).collect()
    }

    /// How a client connects.
    #[must_use]
    pub fn options(&self) -> Options {
        let options = Options::new(self.endpoints());
        match &self.plan.tls {
            Some(tls) => options.with_tls(tls.client.clone()),
            None => options,
        }
    }

    /// A client of all members, with threads of the server's own.
    ///
    /// # Panics
    /// If the certificates are not well-formed.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(&self.runtime, self.options()).expect("the options are well-formed")
    }

    /// The process of a member.
    ///
    /// # Panics
    /// If it was killed.
    #[must_use]
    pub fn pid(&self, index: usize) -> u32 {
        self.members[index].as_ref().expect("the member runs").id()
    }

    /// The index of the member that leads.
    ///
    /// # Panics
    /// If none does for a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        let client = self.client().with_timeout(Duration::from_secs(1));
        let start = SystemClock.instant();
        while start.elapsed() < START_PATIENCE {
            for (index, endpoint) in self.endpoints().iter().enumerate() {
                let leads = |status: crate::MemberStatus| status.leader == status.id;
                if self.members[index].is_some() && client.status(endpoint).is_ok_and(leads) {
                    return index;
                }
            }
            std::thread::sleep(POLL);
        }
        panic!("no member leads; their logs are {}", self.logs());
    }

    /// Kills a member as a power cut would. Its data stay.
    pub fn kill(&mut self, index: usize) {
        // The drop kills it and waits for its end.
        self.members[index] = None;
    }

    /// Stops a member in the middle of what it does (`SIGSTOP`).
    pub fn freeze(&self, index: usize) {
        self.signal(index, Signal::STOP);
    }

    /// Lets a frozen member go on.
    pub fn thaw(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    /// Starts a member that was killed, with the data that it had.
    ///
    /// # Panics
    /// If not all running members answer soon.
    pub fn restart(&mut self, index: usize) {
        self.kill(index);
        self.spawn(index);
        self.wait_until_healthy();
    }

    fn signal(&self, index: usize, signal: Signal) {
        if let Some(member) = &self.members[index] {
            member.signal(signal);
        }
    }

    fn spawn(&mut self, index: usize) {
        let command = self.command(index);
        self.members[index] = Some(self.keeper.spawn(command));
    }

    fn wait_until_healthy(&mut self) {
        let client = self.client().with_timeout(Duration::from_secs(1));
        let endpoints = self.endpoints();
        let start = SystemClock.instant();
        while start.elapsed() < START_PATIENCE {
            let logs = self.logs();
            let mut healthy = true;
            for (index, endpoint) in endpoints.iter().enumerate() {
                let Some(member) = &mut self.members[index] else { continue };
                let ended = member.try_wait().expect("a child can be waited for");
                assert!(ended.is_none(), "etcd member {index} ended; logs: {logs}");
                healthy &= client.status(endpoint).is_ok_and(|status| status.leader != 0);
            }
            if healthy {
                return;
            }
            std::thread::sleep(POLL);
        }
        panic!("etcd does not answer; logs: {}", self.logs());
    }

    /// The ends of the members' logs.
    fn logs(&self) -> String {
        let tail = |index| {
            let text = std::fs::read_to_string(self.log(index)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        };
        (0..self.members.len()).map(tail).collect::<Vec<_>>().join("\n---\n")
    }

    fn log(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("log{index}"))
    }

    fn url(&self, index: usize, port: u16) -> String {
        let scheme = if self.plan.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", SocketAddr::new(self.plan.members[index].ip, port))
    }

    fn command(&self, index: usize) -> Command {
        let mut words: Vec<OsString> = self.plan.members[index].prefix.clone();
        words.push("etcd".into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let cluster: Vec<String> = (0..self.members.len())
            .map(|index| format!("m{index}={}", self.url(index, PEER_PORT)))
            .collect();
        let (client, peer) = (self.url(index, CLIENT_PORT), self.url(index, PEER_PORT));
        command.args(["--name", &format!("m{index}")]);
        command.arg("--data-dir").arg(self.folder.path().join(format!("data{index}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &cluster.join(",")]);
        command.args(["--initial-cluster-state", "new", "--logger", "zap"]);
        if let Some(bytes) = self.plan.quota_bytes {
            command.args(["--quota-backend-bytes", &bytes.to_string()]);
        }
        if let Some(tls) = &self.plan.tls {
            command.arg("--client-cert-auth").arg("--peer-client-cert-auth");
            for (option, path) in [
                ("--trusted-ca-file", &tls.authority),
                ("--cert-file", &tls.certificate),
                ("--key-file", &tls.key),
                ("--peer-trusted-ca-file", &tls.authority),
                ("--peer-cert-file", &tls.certificate),
                ("--peer-key-file", &tls.key),
            ] {
                command.arg(option).arg(path);
            }
        }
        command.stdin(std::process::Stdio::null()).stdout(appending(&self.log(index)));
        command.stderr(appending(&self.log(index)));
        command
    }
}

fn appending(path: &Path) -> File {
    File::options().create(true).append(true).open(path).expect("a log can be opened")
}
