//! Making a cluster, joining it, leaving it: what the `forebay cluster` commands do.
//!
//! Each step can be repeated: what was drawn in the first attempt (key, id of the cluster) is kept in the node's folder, and etcd's
//! records tell an attempt of this node from another node's. `node.json` comes last.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use forebay_base::{Clock, NodeId};
use forebay_cluster::ownership::View;
use forebay_etcd::Runtime;
use rand::{Rng as _, SeedableRng as _};
use uuid::Uuid;

use crate::authority::token::{Token, TokenRecord, hexadecimal};
use crate::authority::{Subject, certificate_of, key_of, sha256};
use crate::error::{Error, Result};
use crate::home::{EtcdAccess, NodeFile, NodeHome, PORT};
use crate::members::book::{Book, FIRST};
use crate::members::record::{ClusterRecord, NamesPlace, NodeRecord, check_name};
use crate::members::roster::Sight;
use crate::members::visit::{
    Admission, Answer, Application, NewDisk, NodeStatus, Question, decode, encode, records_of,
};
use crate::session::{Target, stranger, visit};
use crate::settings::Settings;

pub(crate) const CLUSTER_ID: &str = "cluster-id";

/// What a command needs.
pub struct Tools {
    /// Threads that talk to etcd.
    pub runtime: Runtime,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Times and bounds.
    pub settings: Settings,
}

/// What a user says about a new cluster.
#[derive(Clone, Debug)]
pub struct NewCluster {
    /// Its name.
    pub name: String,
    /// Name of this node.
    pub node: String,
    /// Where this node listens, HOST or HOST:PORT; if none, this machine's address on the way to etcd.
    pub address: Option<String>,
    /// How etcd is reached.
    pub etcd: EtcdAccess,
    /// Where the names of files are to lie; in etcd without it.
    pub names: Option<NamesPlace>,
}

/// What came of a command that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// It did it.
    Now(NodeFile),
    /// It was so before.
    Before(NodeFile),
}

impl Made {
    /// Who the node is.
    #[must_use]
    pub fn file(&self) -> &NodeFile {
        match self {
            Made::Now(file) | Made::Before(file) => file,
        }
    }
}

/// HOST:PORT of what a user wrote as HOST or HOST:PORT.
pub(crate) fn with_port(address: &str) -> String {
    if address.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) {
        return format!("[{address}]:{PORT}");
    }
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| port.parse::<u16>().is_ok() && !host.ends_with(':'));
    if has_port { address.to_owned() } else { format!("{address}:{PORT}") }
}

/// The address of this machine on the way to another one. Nothing is sent.
pub(crate) fn own_address_towards(other: &str) -> Result<String> {
    let refused = |reason: String| {
        Error::Invalid(format!(
            "cannot find the address from which this machine reaches {other} ({reason}): give it with --address"
        ))
    };
    let target = other.to_socket_addrs().map_err(|error| refused(error.to_string()))?.next();
    let target = target.ok_or_else(|| refused("the name has no address".to_owned()))?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let own = UdpSocket::bind(any)
        .and_then(|socket| socket.connect(target).and_then(|()| socket.local_addr()))
        .map_err(|error| refused(error.to_string()))?;
    Ok(SocketAddr::new(own.ip(), PORT).to_string())
}

/// The id of the cluster that an attempt makes: drawn by the first one.
pub(crate) fn cluster_id(home: &NodeHome) -> Result<Uuid> {
    let cluster = home.kept(CLUSTER_ID, || Uuid::new_v4().to_string())?;
    cluster.trim().parse().map_err(|_| Error::Damaged {
        path: home.folder().join(CLUSTER_ID),
        reason: "it is not an id; remove the file".to_owned(),
    })
}

/// HOST:PORT of an endpoint of etcd.
fn host_and_port(endpoint: &str) -> Result<&str> {
    let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    rest.map(|rest| rest.trim_end_matches('/')).filter(|rest| rest.contains(':')).ok_or_else(|| {
        Error::Invalid(format!(
            "{endpoint:?} is not an endpoint of etcd: write http://HOST:2379 or https://HOST:2379"
        ))
    })
}

/// Refuses endpoints and certificates that do not go together.
fn check_access(etcd: &EtcdAccess) -> Result<()> {
    for endpoint in &etcd.endpoints {
        host_and_port(endpoint)?;
        if endpoint.starts_with("https://") && etcd.authority.is_none() {
            return Err(Error::Invalid(format!(
                "{endpoint} needs the certificate of etcd's authority: add --etcd-ca FILE"
            )));
        }
    }
    if etcd.endpoints.is_empty() {
        return Err(Error::Invalid("no endpoint of etcd: add --etcd http://HOST:2379".to_owned()));
    }
    Ok(())
}

impl Tools {
    /// Tools with etcd threads of their own.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(settings: Settings, clock: Arc<dyn Clock>) -> Result<Tools> {
        let runtime = Runtime::start(1)
            .map_err(|error| Error::Invalid(format!("cannot start a thread: {error}")))?;
        Ok(Tools { runtime, clock, settings })
    }

    /// The records of the cluster that a node belongs to.
    ///
    /// # Errors
    /// If an endpoint is not one.
    pub fn book(&self, file: &NodeFile) -> Result<Book> {
        Book::open(&self.runtime, &file.etcd, &file.cluster_name)
    }

    /// Makes a cluster whose first node this machine is. `disks` labels the directories that it brings, once the cluster's id is
    /// known.
    ///
    /// # Errors
    /// If the name is taken in this etcd, or etcd does not answer.
    pub fn init(
        &self,
        base: &Path,
        new: &NewCluster,
        disks: impl FnOnce(Uuid) -> Result<Vec<NewDisk>>,
    ) -> Result<Made> {
        check_access(&new.etcd)?;
        check_name("node", &new.node)?;
        let home = NodeHome::of(base, &new.name)?;
        if let Some(file) = home.node()? {
            let book = self.book(&file)?;
            return match book.node(file.node)? {
                Some((record, _)) if record.name == file.name => Ok(Made::Before(file)),
                _ => Err(Error::Invalid(format!(
                    "{} belongs to a node of cluster {}, which etcd does not know (any more): run `forebay cluster leave \
                     --name {}` to remove it, and try again",
                    home.folder().display(),
                    new.name,
                    new.name
                ))),
            };
        }
        let book = Book::open(&self.runtime, &new.etcd, &new.name)?;
        // Before anything is made: etcd answers, and the name is free or an earlier attempt's of this node.
        let found = book.cluster()?;
        let address = match &new.address {
            Some(address) => with_port(address),
            None => own_address_towards(host_and_port(&new.etcd.endpoints[0])?)?,
        };
        let earlier = home.kept_before(CLUSTER_ID)?;
        if let Some(found) = found.filter(|found| earlier != Some(found.id.to_string())) {
            return Err(name_taken(&found));
        }
        home.make()?;
        let cluster = cluster_id(&home)?;
        let now = self.clock.now();
        let authority = self.authority_of(&home, cluster)?;
        let disks = disks(cluster)?;
        let public_key = key_of(&home.key()?)?.public_key_raw().to_vec();
        let subject = Subject { cluster, node: FIRST };
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
        let hosts = [host.trim_matches(['[', ']']).to_owned()];
        let life = self.settings.certificate_life;
        let issued = authority.issue(subject, &public_key, &hosts, life, now)?;
        let record = NodeRecord {
            name: new.node.clone(),
            address: address.clone(),
            incarnation: 0,
            key: hexadecimal(&sha256(&public_key)),
            serial: issued.serial.clone(),
            expires: issued.expires,
            joined: now.seconds,
            has_authority: true,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let made = book.create(
            &ClusterRecord {
                format: ClusterRecord::format_for(new.names.as_ref()),
                id: cluster,
                name: new.name.clone(),
                authority: authority.certificate().to_owned(),
                made: now.seconds,
                names: new.names.clone(),
            },
            &record,
            &records_of(&disks),
        )?;
        if made.id != cluster {
            return Err(name_taken(&made));
        }
        home.set_certificates(&issued.certificate, authority.certificate())?;
        let file = NodeFile {
            cluster_name: new.name.clone(),
            cluster,
            node: FIRST,
            name: new.node.clone(),
            address,
            etcd: new.etcd.clone(),
            expires: issued.expires,
        };
        home.set_node(&file)?;
        Ok(Made::Now(file))
    }

    /// Makes a join token that leads to this node.
    ///
    /// # Errors
    /// If this node does not hold the authority's key, or etcd does not answer.
    pub fn token(
        &self,
        home: &NodeHome,
        uses: Option<u32>,
        with_authority: bool,
    ) -> Result<(Token, TokenRecord)> {
        let file = home.existing()?;
        let book = self.book(&file)?;
        let authority = home.authority(file.cluster)?.ok_or_else(|| {
            Error::Invalid(
                "this node does not hold the key of the cluster's authority: run this on a node that does (forebay cluster \
                 status lists them)"
                    .to_owned(),
            )
        })?;
        let mut random = rand::rngs::StdRng::from_os_rng();
        let token = Token {
            address: file.address.clone(),
            cluster: file.cluster,
            node: file.node,
            authority: authority.fingerprint(),
            id: random.random(),
            secret: random.random(),
        };
        let life = self.settings.token_life;
        let expires =
            self.clock.now().seconds + i64::try_from(life.as_secs()).unwrap_or(i64::MAX / 2);
        let record = TokenRecord { hash: token.hash(), expires, uses, with_authority };
        book.add_token(&token, &record, life)?;
        Ok((token, record))
    }

    /// Makes this machine a node of the cluster of a token.
    ///
    /// # Errors
    /// If the token is not valid, nobody answers at its address, or the name is taken.
    pub fn join(
        &self,
        base: &Path,
        token: &Token,
        name: &str,
        address: Option<&str>,
        disks: &[NewDisk],
    ) -> Result<Made> {
        check_name("node", name)?;
        // The name of the cluster is not known yet. The folder of an attempt is that of its id.
        let draft = NodeHome::of(base, &format!("joining-{}", token.cluster.simple()))?;
        if let Some(file) = self.joined_before(base, token.cluster)? {
            return Ok(Made::Before(file));
        }
        draft.make()?;
        let key = draft.key()?;
        let address = match address {
            Some(address) => with_port(address),
            None => own_address_towards(&token.address)?,
        };
        let application = Application {
            token: token.id,
            secret: token.secret,
            name: name.to_owned(),
            address: address.clone(),
            public_key: key_of(&key)?.public_key_raw().to_vec(),
            clock: self.clock.now().seconds,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            disks: disks.to_vec(),
        };
        let admission = self.apply(token, application)?;
        if sha256(&certificate_of(&admission.authority)?) != token.authority {
            return Err(Error::Token("the node presents a different authority".to_owned()));
        }
        let home = NodeHome::of(base, &admission.cluster_name)?;
        if home.node()?.is_some() {
            return Err(Error::Invalid(format!(
                "this machine is a node of another cluster with the name {} ({}): leave that cluster first, or name another \
                 folder with --home",
                admission.cluster_name,
                home.folder().display()
            )));
        }
        if let Some(key) = &admission.authority_key {
            draft.set_authority(&admission.authority, key)?;
        }
        if let Some(papers) = &admission.etcd_papers {
            draft.set_etcd_papers(papers)?;
        }
        draft.set_certificates(&admission.issued.certificate, &admission.authority)?;
        let file = NodeFile {
            cluster_name: admission.cluster_name,
            cluster: token.cluster,
            node: admission.node,
            name: name.to_owned(),
            address,
            etcd: admission.etcd,
            expires: admission.issued.expires,
        };
        draft.set_node(&file)?;
        draft.take_the_place_of(&home)?;
        Ok(Made::Now(file))
    }

    fn apply(&self, token: &Token, application: Application) -> Result<Admission> {
        let target = Target {
            address: &token.address,
            name: Subject { cluster: token.cluster, node: token.node }.server_name()?,
            config: stranger(token.authority)?,
            timeout: self.settings.connect_timeout.max(std::time::Duration::from_secs(20)),
        };
        let question = encode(&Question::Join(application))?;
        let answer = visit(&target, &*self.clock, token.cluster, question)?;
        match decode(&answer)? {
            Answer::Joined(admission) => Ok(*admission),
            _ => Err(Error::Invalid("the other node answered another question".to_owned())),
        }
    }

    /// The node of a cluster that this machine is already.
    fn joined_before(&self, base: &Path, cluster: Uuid) -> Result<Option<NodeFile>> {
        let Ok(folders) = std::fs::read_dir(base) else { return Ok(None) };
        for folder in folders.flatten() {
            let name = folder.file_name().to_string_lossy().into_owned();
            let Ok(home) = NodeHome::of(base, &name) else { continue };
            if name.starts_with("joining-") {
                continue;
            }
            let Some(file) = home.node()? else { continue };
            if file.cluster == cluster {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Asks a node one question as the node of `home`.
    ///
    /// # Errors
    /// If it does not answer, or refuses.
    pub fn ask(
        &self,
        home: &NodeHome,
        file: &NodeFile,
        (node, address): (NodeId, &str),
        question: &Question,
    ) -> Result<Answer> {
        let target = Target {
            address,
            name: Subject { cluster: file.cluster, node }.server_name()?,
            config: home.identity(file)?.credentials()?.client,
            timeout: self.settings.connect_timeout,
        };
        decode(&visit(&target, &*self.clock, file.cluster, encode(question)?)?)
    }

    /// How a node is.
    ///
    /// # Errors
    /// If it does not answer, or refuses.
    pub fn status_of(
        &self,
        home: &NodeHome,
        file: &NodeFile,
        node: (NodeId, &str),
    ) -> Result<NodeStatus> {
        match self.ask(home, file, node, &Question::Status)? {
            Answer::Status(status) => Ok(*status),
            _ => Err(Error::Invalid("the node answered another question".to_owned())),
        }
    }

    /// Gets a new certificate for this node, from itself or from a node that holds the authority's key. A running daemon uses it
    /// after it was started again; it renews its own by itself.
    ///
    /// # Errors
    /// If no such node answers.
    pub fn renew(&self, home: &NodeHome) -> Result<NodeFile> {
        let mut file = home.existing()?;
        let book = self.book(&file)?;
        let public_key = key_of(&home.key()?)?.public_key_raw().to_vec();
        if let Some(authority) = home.authority(file.cluster)? {
            let registrar = crate::members::visit::Registrar {
                book,
                home: home.clone(),
                cluster: file.cluster,
                cluster_name: file.cluster_name.clone(),
                etcd: file.etcd.clone(),
                settings: self.settings.clone(),
                clock: Arc::clone(&self.clock),
            };
            drop(authority);
            let issued = registrar.renew(file.node, &public_key)?;
            crate::members::renewal::install(home, &mut file, &issued)?;
            return Ok(file);
        }
        let (sight, _) = book.read()?;
        let mut last = "no running node holds the key of the cluster's authority".to_owned();
        let question = Question::Renew { public_key };
        for (node, record) in sight.nodes.iter().filter(|(_, record)| record.has_authority) {
            match self.ask(home, &file, (*node, &record.address), &question) {
                Ok(Answer::Renewed(issued)) => {
                    crate::members::renewal::install(home, &mut file, &issued)?;
                    return Ok(file);
                }
                Ok(_) => last = "the node answered another question".to_owned(),
                Err(error) => last = error.to_string(),
            }
        }
        Err(Error::Unreachable(format!(
            "the certificate cannot be renewed: {last}. If it has expired already, run `forebay cluster leave` here and join \
             again with a new token"
        )))
    }

    /// Removes a node from the cluster that is not running.
    ///
    /// # Errors
    /// If it runs, brings disks and `with_disks` is not said, or is the last that holds the authority's key.
    pub fn remove(&self, book: &Book, node: NodeId, with_disks: Disks) -> Result<()> {
        let (sight, view) = book.read()?;
        let Some(record) = sight.nodes.get(&node) else { return Ok(()) };
        if sight.alive.contains_key(&node) {
            return Err(Error::Invalid(format!(
                "node {0} is running, or was until a moment ago: run `forebay cluster leave` there; if it cannot be reached, wait \
                 until its lease has expired",
                record.name
            )));
        }
        if sight.nodes.len() == 1 {
            return Err(Error::Invalid(format!(
                "node {} is the last of the cluster: run `forebay cluster leave --last` there",
                record.name
            )));
        }
        check_removable(&sight, &view, node, with_disks)?;
        book.remove_node(node)
    }

    /// Makes this machine a node no more. Nothing of the node may run.
    ///
    /// # Errors
    /// As [`Tools::remove`]; and if it is the last node and `last` does not say that the cluster ends with it.
    pub fn leave(&self, home: &NodeHome, with_disks: Disks, last: Last) -> Result<NodeFile> {
        let file = home.existing()?;
        let _lock = home.claim()?;
        let book = self.book(&file)?;
        let is_its_cluster = book.cluster()?.is_some_and(|record| record.id == file.cluster);
        let (sight, view) = book.read()?;
        if is_its_cluster && sight.nodes.contains_key(&file.node) {
            if sight.nodes.len() > 1 {
                check_removable(&sight, &view, file.node, with_disks)?;
                book.remove_node(file.node)?;
            } else if last == Last::Ends {
                book.erase()?;
            } else {
                return Err(Error::Invalid(format!(
                    "this is the last node of cluster {}: add --last to end the cluster; its {} filesets then become \
                     unreachable",
                    file.cluster_name,
                    view.owners.len()
                )));
            }
        }
        home.forget()?;
        Ok(file)
    }
}

/// What becomes of the disks of a node that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    /// It must not have any.
    None,
    /// They go with it: files on them become unreachable.
    Included,
}

/// Whether a cluster may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// No.
    Refused,
    /// With its last node.
    Ends,
}

/// Refuses to remove a node that others need.
fn check_removable(sight: &Sight, view: &View, node: NodeId, with_disks: Disks) -> Result<()> {
    let Some(record) = sight.nodes.get(&node) else { return Ok(()) };
    let name = &record.name;
    let owned = view.owners.values().filter(|it| it.owner.is_some_and(|it| it.node == node));
    if owned.count() > 0 && sight.alive.keys().any(|alive| *alive != node) {
        return Err(Error::Invalid(format!(
            "node {name} still owns filesets, which other nodes will take over in a moment: try again in a few seconds"
        )));
    }
    let disks = sight.disks.values().filter(|disk| disk.node == node);
    let disks: Vec<&str> = disks.map(|disk| disk.location.as_str()).collect();
    if !disks.is_empty() && with_disks == Disks::None {
        return Err(Error::Invalid(format!(
            "node {name} has disks ({}): files on them become unreachable without it. Move them to other disks first, on a node that \
             has mounted the file system (forebay disk drain CLUSTER {name}:{} --wait, then forebay disk remove CLUSTER {name}:{}), or add \
             --with-disks if the files are to become unreachable",
            disks.join(", "),
            disks[0],
            disks[0]
        )));
    }
    let mut holders = sight.nodes.iter().filter(|(_, record)| record.has_authority);
    if record.has_authority && holders.all(|(holder, _)| *holder == node) {
        return Err(Error::Invalid(format!(
            "node {name} is the only one that holds the key of the cluster's authority: without it no node can join or renew \
             its certificate. Give another node the key first: forebay cluster token --with-authority, and join with it"
        )));
    }
    Ok(())
}

fn name_taken(found: &ClusterRecord) -> Error {
    Error::Invalid(format!(
        "the name {} is taken: this etcd already has a cluster {} with this name. Choose another --name, or join that cluster (forebay \
         cluster token on one of its nodes)",
        found.name, found.id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_the_usual_one() {
        for (written, meant) in [
            ("host1", "host1:7440"),
            ("host1:99", "host1:99"),
            ("10.0.0.1", "10.0.0.1:7440"),
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("::1", "[::1]:7440"),
            ("[::1]:99", "[::1]:99"),
        ] {
            assert_eq!(with_port(written), meant);
        }
        assert_eq!(own_address_towards("127.0.0.1:2379").unwrap(), "127.0.0.1:7440");
    }

    #[test]
    fn endpoints_are_urls_and_https_needs_an_authority() {
        let access = |endpoint: &str| EtcdAccess {
            endpoints: vec![endpoint.to_owned()],
            authority: None,
            identity: None,
            started: false,
        };
        check_access(&access("http://a:2379")).unwrap();
        for bad in ["a:2379", "http://a", "https://a:2379", ""] {
            assert!(check_access(&access(bad)).is_err(), "{bad}");
        }
    }
}
