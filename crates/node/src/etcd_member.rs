//! A member of etcd on this node, for a cluster that was made with `--start-etcd`: its certificates, and how the installed
//! program is started.
//!
//! All members and clients show certificates of the cluster's authority, which are valid as long as that one. In the node's folder
//! are `etcd.json` (what the member is told), `etcd.pem` and `etcd.key` (what it shows), and `etcd` (its data). Members listen at
//! the address of their node, ports 2379 and 2380.

use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_etcd::Member;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::authority::Authority;
use crate::error::{Error, Result};
use crate::home::{EtcdAccess, NodeFile, NodeHome};
use crate::members::Book;
use crate::setup::{Tools, cluster_id, own_address_towards, with_port};

/// Where clients reach a member.
pub const CLIENT_PORT: u16 = 2379;
/// Where members reach each other.
pub const PEER_PORT: u16 = 2380;
/// The most members: more make changes slower, and survive no more than a cluster of this size needs.
pub const MEMBERS_MAX: usize = 3;
/// At which size etcd refuses changes: what it suggests as the most.
const QUOTA_BYTES: u64 = 8 << 30;

const FILE: &str = "etcd.json";
const CERTIFICATE: &str = "etcd.pem";
const KEY: &str = "etcd.key";
const DATA: &str = "etcd";

/// An address behind the default route, which is asked for this machine's address; nothing is sent there (RFC 5737).
const SOMEWHERE: &str = "192.0.2.1:9";

/// What a member shows to clients and other members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Papers {
    /// Certificate, in PEM.
    pub certificate: String,
    /// Its key, in PEM.
    pub key: String,
}

/// Whether a member begins an etcd, or joins one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Begins {
    /// It is the first one.
    New,
    /// Others have registered it.
    Existing,
}

/// `etcd.json`: what the member of this node is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberFile {
    /// Its name: that of the node.
    pub name: String,
    /// Host name or address under which others reach it.
    pub host: String,
    /// Id of the cluster: members of another one are refused.
    pub cluster: Uuid,
    /// All members at its beginning, itself included: `NAME=URL,...`.
    pub members: String,
    /// How it begins. Later starts continue with its data.
    pub begins: Begins,
}

fn url(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    }
}

/// HOST of HOST:PORT.
fn host_of(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_matches(['[', ']']).to_owned()
}

/// The installed etcd.
///
/// # Errors
/// Says how to install it.
pub fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("etcd"));
    let mut found =
        found.filter(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok());
    found.find(|path| path.is_file()).ok_or_else(|| {
        Error::Invalid(
            "etcd is not installed on this machine: run `apt-get install etcd-server` (3.4 or later) and try again, or name a \
             running etcd with --etcd"
                .to_owned(),
        )
    })
}

impl NodeHome {
    /// What the member of etcd on this node is told; none if there is no member.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn etcd_member(&self) -> Result<Option<MemberFile>> {
        let Some(text) = self.read(FILE)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| Error::Damaged {
            path: self.folder().join(FILE),
            reason: error.to_string(),
        })
    }

    /// From now on there is a member on this node.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_etcd_member(&self, file: &MemberFile) -> Result<()> {
        let text = serde_json::to_string_pretty(file)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        self.write(FILE, &text)
    }

    /// Keeps what a member on this node shows.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_etcd_papers(&self, papers: &Papers) -> Result<()> {
        self.write(KEY, &papers.key)?;
        self.write(CERTIFICATE, &papers.certificate)
    }

    /// Whether this node may run a member: it was given certificates for it.
    #[must_use]
    pub fn may_run_etcd(&self) -> bool {
        self.folder().join(CERTIFICATE).is_file()
    }

    /// The lock of the process that keeps the member running. The file holds its number.
    #[must_use]
    pub fn etcd_lock(&self) -> PathBuf {
        self.folder().join("etcd.lock")
    }

    /// Log of the member.
    #[must_use]
    pub fn etcd_log(&self) -> PathBuf {
        self.folder().join("etcd.log")
    }

    /// There is no member here any more. Its data is kept beside, as etcd.former-1, -2, and so on.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn forget_etcd_member(&self) -> Result<()> {
        self.remove(FILE)?;
        let data = self.folder().join(DATA);
        if data.exists() {
            let former = |number: u32| self.folder().join(format!("{DATA}.former-{number}"));
            let free = (1..=u32::MAX).map(former).find(|folder| !folder.exists());
            let free = free.unwrap_or_else(|| former(0));
            std::fs::rename(&data, &free).map_err(Error::file(&data))?;
        }
        Ok(())
    }

    /// This machine is not a node any more: what a member here would show goes.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn forget_etcd_papers(&self) -> Result<()> {
        self.remove(CERTIFICATE)?;
        self.remove(KEY)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.folder().join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::file(&path)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The command that starts the member of this node.
    ///
    /// # Errors
    /// If there is no member, etcd is not installed, or the node's address is not one.
    pub fn etcd_command(&self) -> Result<Command> {
        let file = self.etcd_member()?.ok_or_else(|| {
            Error::Invalid(
                "this node runs no member of etcd: its cluster uses another etcd".to_owned(),
            )
        })?;
        let found = (file.host.as_str(), CLIENT_PORT).to_socket_addrs().map_err(|error| {
            Error::Invalid(format!("{} is not an address of this node: {error}", file.host))
        })?;
        let listen = found.map(|found| found.ip().to_string()).next();
        let listen =
            listen.ok_or_else(|| Error::Invalid(format!("{} has no address", file.host)))?;
        let in_folder = |name: &str| self.folder().join(name);
        let mut command = Command::new(program()?);
        let mut option = |name: &str, value: &Path| {
            let mut argument = std::ffi::OsString::from(format!("--{name}="));
            argument.push(value);
            command.arg(argument);
        };
        for (name, value) in [
            ("name", file.name.clone()),
            ("listen-client-urls", url(&listen, CLIENT_PORT)),
            ("advertise-client-urls", url(&file.host, CLIENT_PORT)),
            ("listen-peer-urls", url(&listen, PEER_PORT)),
            ("initial-advertise-peer-urls", url(&file.host, PEER_PORT)),
            ("initial-cluster", file.members.clone()),
            ("initial-cluster-token", file.cluster.to_string()),
            (
                "initial-cluster-state",
                match file.begins {
                    Begins::New => "new".to_owned(),
                    Begins::Existing => "existing".to_owned(),
                },
            ),
            ("quota-backend-bytes", QUOTA_BYTES.to_string()),
        ] {
            option(name, Path::new(&value));
        }
        option("data-dir", &in_folder(DATA));
        for kind in ["", "peer-"] {
            option(&format!("{kind}cert-file"), &in_folder(CERTIFICATE));
            option(&format!("{kind}key-file"), &in_folder(KEY));
            option(&format!("{kind}trusted-ca-file"), &in_folder("authority.pem"));
            option(&format!("{kind}client-cert-auth"), Path::new("true"));
        }
        Ok(command)
    }
}

impl Tools {
    /// Prepares the first member of an etcd of the cluster's own, on the machine that makes the cluster. Returns the node's
    /// folder and address, and how etcd is reached once it runs. Can be repeated.
    ///
    /// # Errors
    /// If etcd is not installed, or this machine's address cannot be found.
    pub fn prepare_etcd(
        &self,
        base: &Path,
        cluster_name: &str,
        node: &str,
        address: Option<&str>,
    ) -> Result<(NodeHome, String, EtcdAccess)> {
        let home = NodeHome::of(base, cluster_name)?;
        if let Some(file) = home.node()? {
            return Ok((home, file.address, file.etcd));
        }
        program()?;
        let address = match address {
            Some(address) => with_port(address),
            None => own_address_towards(SOMEWHERE)?,
        };
        let host = host_of(&address);
        home.make()?;
        let cluster = cluster_id(&home)?;
        let authority = self.authority_of(&home, cluster)?;
        let client = authority.issue_for_etcd(&[], self.clock.now())?;
        if !home.may_run_etcd() {
            home.set_etcd_papers(
                &authority.issue_for_etcd(std::slice::from_ref(&host), self.clock.now())?,
            )?;
        }
        if home.etcd_member()?.is_none() {
            home.set_etcd_member(&MemberFile {
                name: node.to_owned(),
                host: host.clone(),
                cluster,
                members: format!("{node}={}", url(&host, PEER_PORT)),
                begins: Begins::New,
            })?;
        }
        let access = EtcdAccess {
            endpoints: vec![url(&host, CLIENT_PORT)],
            authority: Some(authority.certificate().to_owned()),
            identity: Some((client.certificate, client.key)),
            started: true,
        };
        Ok((home, address, access))
    }

    /// The cluster's authority, made by the first attempt.
    pub(crate) fn authority_of(&self, home: &NodeHome, cluster: Uuid) -> Result<Authority> {
        if let Some(authority) = home.authority(cluster)? {
            return Ok(authority);
        }
        let authority = Authority::make(cluster, self.clock.now())?;
        home.set_authority(authority.certificate(), &authority.key())?;
        Ok(authority)
    }

    /// Registers a member on this node, which does not vote before it was promoted. Returns its number; none if there are
    /// enough members, or this node has one.
    ///
    /// # Errors
    /// If etcd does not answer, or cannot take a further member at the moment.
    pub fn register_etcd_member(&self, home: &NodeHome, file: &NodeFile) -> Result<Option<u64>> {
        if !file.etcd.started || !home.may_run_etcd() || home.etcd_member()?.is_some() {
            return Ok(None);
        }
        program()?;
        let book = self.book(file)?;
        let host = host_of(&file.address);
        let own = url(&host, PEER_PORT);
        let members = book.client().member_list()?;
        // What an attempt left that was interrupted.
        for left in members.iter().filter(|member| member.peer_urls.contains(&own)) {
            book.client().member_remove(left.id)?;
        }
        let others: Vec<&Member> =
            members.iter().filter(|member| !member.peer_urls.contains(&own)).collect();
        if others.len() >= MEMBERS_MAX {
            return Ok(None);
        }
        let id = book.client().member_add_learner(vec![own.clone()])?;
        let all = others
            .iter()
            .flat_map(|member| member.peer_urls.iter().map(|url| format!("{}={url}", member.name)));
        let members: Vec<String> = all.chain([format!("{}={own}", file.name)]).collect();
        home.set_etcd_member(&MemberFile {
            name: file.name.clone(),
            host,
            cluster: file.cluster,
            members: members.join(","),
            begins: Begins::Existing,
        })?;
        Ok(Some(id))
    }

    /// Writes down where etcd is reached now, if Forebay has started it.
    ///
    /// # Errors
    /// If etcd does not answer, or the file cannot be written.
    pub fn refresh_endpoints(&self, home: &NodeHome) -> Result<NodeFile> {
        let mut file = home.existing()?;
        if !file.etcd.started {
            return Ok(file);
        }
        let members = self.book(&file)?.client().member_list()?;
        let voting = members.iter().filter(|member| !member.is_learner);
        let mut endpoints: Vec<String> =
            voting.flat_map(|member| member.client_urls.iter().cloned()).collect();
        endpoints.sort();
        if !endpoints.is_empty() && endpoints != file.etcd.endpoints {
            file.etcd.endpoints = endpoints;
            home.set_node(&file)?;
        }
        Ok(file)
    }
}

/// Removes the member of a node that is not one any more.
///
/// # Errors
/// If etcd does not answer.
pub fn remove_etcd_member(book: &Book, node: &str) -> Result<()> {
    for member in book.client().member_list()?.iter().filter(|member| member.name == node) {
        book.client().member_remove(member.id)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_urls_of_etcd() {
        assert_eq!(url("10.0.0.1", 2379), "https://10.0.0.1:2379");
        assert_eq!(url("::1", 2380), "https://[::1]:2380");
        assert_eq!(host_of("[::1]:7440"), "::1");
        assert_eq!(host_of("host1:7440"), "host1");
    }

    #[test]
    fn a_member_is_told_everything_it_needs_and_nothing_of_another_cluster() {
        let base = tempfile::tempdir().unwrap();
        let home = NodeHome::of(base.path(), "grid1").unwrap();
        home.make().unwrap();
        assert!(matches!(home.etcd_command(), Err(Error::Invalid(_))));
        let file = MemberFile {
            name: "host1".to_owned(),
            host: "127.0.0.1".to_owned(),
            cluster: Uuid::from_u128(7),
            members: "host1=https://127.0.0.1:2380".to_owned(),
            begins: Begins::New,
        };
        home.set_etcd_member(&file).unwrap();
        assert_eq!(home.etcd_member().unwrap(), Some(file));
        home.forget_etcd_member().unwrap();
        assert_eq!(home.etcd_member().unwrap(), None);
    }
}
