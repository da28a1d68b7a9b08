//! Several hosts on this machine: network namespaces that reach each other through a bridge in one more namespace.
//!
//! Only the network is separate: files, mounts and processes are shared. Needs root and ip(8). Everything is gone when the value
//! is dropped; a process that is killed leaves namespaces behind, whose names hold its id.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Hosts of a network at most: they share one /24.
pub const HOSTS_MAX: usize = 200;

/// Folders of programs that an ordinary user's PATH may lack.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Hosts that reach each other.
#[derive(Debug)]
pub struct Network {
    ip: PathBuf,
    nsenter: PathBuf,
    /// Names of the namespaces of the hosts.
    names: Vec<String>,
    /// The namespace with the bridge.
    switch: String,
}

/// One network within all namespaces: it is seen from nowhere else.
fn address_of(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

/// A program of the system.
///
/// # Errors
/// If it is not installed.
pub fn find_program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    let found = folders.map(|folder| folder.join(name)).find(|program| program.is_file());
    found.ok_or_else(|| {
        Error::io("find the program", Path::new(name))(io::ErrorKind::NotFound.into())
    })
}

impl Network {
    /// Makes `count` hosts, whose namespaces are called `name` and a number.
    ///
    /// # Errors
    /// If ip(8) or nsenter(1) is missing or refuses, which it does if the caller is not root; nothing is left then.
    ///
    /// # Panics
    /// If there are more than [`HOSTS_MAX`].
    pub fn make(name: &str, count: usize) -> Result<Network> {
        assert!(count <= HOSTS_MAX, "{count} hosts are too many for one network");
        let network = Network {
            ip: find_program("ip")?,
            nsenter: find_program("nsenter")?,
            names: (0..count).map(|host| format!("{name}-{host}")).collect(),
            switch: format!("{name}-switch"),
        };
        let switch = &network.switch;
        network.ip(&format!("netns add {switch}"))?;
        network.ip(&format!("-n {switch} link add bridge type bridge"))?;
        network.ip(&format!("-n {switch} link set bridge up"))?;
        for (host, name) in network.names.iter().enumerate() {
            network.ip(&format!("netns add {name}"))?;
            network.ip(&format!(
                "-n {switch} link add port{host} type veth peer name eth0 netns {name}"
            ))?;
            network.ip(&format!("-n {switch} link set port{host} master bridge up"))?;
            network.ip(&format!("-n {name} address add {}/24 dev eth0", address_of(host)))?;
            network.ip(&format!("-n {name} link set eth0 up"))?;
            network.ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(network)
    }

    fn ip(&self, arguments: &str) -> Result<()> {
        let mut command = Command::new(&self.ip);
        // Ctrl-C is for the caller: what it cleans up must not be cut short.
        command.args(arguments.split_whitespace()).stdin(Stdio::null()).process_group(0);
        let output = command.output().map_err(Error::io("run", &self.ip))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let refused = io::Error::other(format!("ip {arguments}: {said}"));
        Err(Error::io("set up a network with", &self.ip)(refused))
    }

    /// The address of a host.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn address(&self, host: usize) -> String {
        assert!(host < self.names.len(), "there is no host {host}");
        address_of(host)
    }

    /// A command that runs `program` on a host.
    #[must_use]
    pub fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.nsenter);
        command.arg(format!("--net={}", self.namespace(host).display())).arg(program);
        command
    }

    /// The file of a host's network namespace; a process on the host has it open as /proc/PID/ns/net.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn namespace(&self, host: usize) -> PathBuf {
        Path::new("/run/netns").join(&self.names[host])
    }

    /// Nothing that `from` sends reaches `to` any more; the other direction is not changed.
    ///
    /// # Errors
    /// If ip(8) refuses.
    pub fn cut(&self, from: usize, to: usize) -> Result<()> {
        self.ip(&format!("-n {} route add blackhole {}/32", self.names[from], address_of(to)))
    }

    /// Takes [`Network::cut`] back.
    ///
    /// # Errors
    /// If ip(8) refuses.
    pub fn mend(&self, from: usize, to: usize) -> Result<()> {
        self.ip(&format!("-n {} route del blackhole {}/32", self.names[from], address_of(to)))
    }

    /// Cuts a host off from all others, in both directions, or connects it again.
    ///
    /// # Errors
    /// If ip(8) refuses.
    pub fn set_link(&self, host: usize, state: Link) -> Result<()> {
        let state = match state {
            Link::Up => "up",
            Link::Down => "down",
        };
        self.ip(&format!("-n {} link set port{host} {state}", self.switch))
    }
}

/// Whether a host is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is.
    Up,
    /// It is not.
    Down,
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.switch]) {
            // One that was never made is not there.
            let _ = self.ip(&format!("netns delete {name}"));
        }
    }
}
