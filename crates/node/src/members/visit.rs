//! What commands and nodes that join ask a node, and its answers; in JSON.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Clock, Epoch, FilesetId, Ino, NodeId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::book::Book;
use super::ownership::InUse;
use super::record::{DiskRecord, NodeRecord};
use crate::authority::token::hexadecimal;
use crate::authority::{Issued, Subject, sha256};
use crate::error::{Error, Result};
use crate::etcd_member::Papers;
use crate::home::{EtcdAccess, NodeHome};
use crate::session::{Refusal, RefusalKind, SessionStatus};
use crate::settings::Settings;

/// A disk that a node brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDisk {
    /// Its identity.
    pub uuid: String,
    /// Directory on the node.
    pub location: String,
    /// Whether other nodes reach the same directory by themselves.
    pub shared: bool,
}

/// What a node asks that wants to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Id of the token.
    pub token: [u8; 8],
    /// Its secret.
    pub secret: [u8; 16],
    /// Name that the node wants.
    pub name: String,
    /// Where it will listen, HOST:PORT.
    pub address: String,
    /// Its public key.
    pub public_key: Vec<u8>,
    /// Its wall clock, in seconds since the Unix epoch.
    pub clock: i64,
    /// Version of its program.
    pub version: String,
    /// Disks that it brings.
    pub disks: Vec<NewDisk>,
}

/// A question to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// A machine with a token wants to join.
    Join(Application),
    /// A member wants a new certificate for this public key.
    Renew {
        /// Its public key.
        public_key: Vec<u8>,
    },
    /// A member wants to know how this node is.
    Status,
    /// A member wants to know the paths of files whose filesets this node owns.
    Paths(Vec<Ino>),
    /// A member wants to know which files of this node's filesets have bytes that cannot be reached.
    Unreachable,
    /// A user wants a fileset moved once, away from this node.
    Move {
        /// The fileset.
        fileset: FilesetId,
        /// Where to.
        to: NodeId,
        /// What becomes of files that cannot be taken along.
        in_use: InUse,
    },
    /// A member wants everything committed that this node has of the file system.
    Commit,
    /// A member wants the host of this node examined.
    Host,
}

/// What a node needs that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Name of the cluster.
    pub cluster_name: String,
    /// Number of the node.
    pub node: NodeId,
    /// Its certificate.
    pub issued: Issued,
    /// The authority's certificate, in PEM.
    pub authority: String,
    /// The authority's key, if the token says so.
    pub authority_key: Option<String>,
    /// How etcd is reached.
    pub etcd: EtcdAccess,
    /// What a member of etcd on that node would show, if nodes of the cluster run its members.
    pub etcd_papers: Option<Papers>,
}

/// A fileset that a node holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFileset {
    /// Its number.
    pub fileset: FilesetId,
    /// How far the node is with it: claiming, opening, owning, settling, passing, or dropping.
    pub stage: String,
    /// For how long it has been answering for it, in milliseconds; none if it does not.
    pub owned_ms: Option<u64>,
}

/// Why a node could not do with a fileset what it was to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesetProblem {
    /// The fileset.
    pub fileset: FilesetId,
    /// In which epoch the node tried.
    pub epoch: Epoch,
    /// What failed, and why.
    pub reason: String,
}

/// A disk of the node that reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpace {
    /// Its identity.
    pub uuid: String,
    /// Its size, in bytes.
    pub total_bytes: u64,
    /// Bytes left for ordinary users.
    pub available_bytes: u64,
    /// Why it cannot be used, if so.
    pub problem: Option<String>,
}

/// Files whose bytes cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachableFiles {
    /// Each with the reason; of many the first [`UNREACHABLE_MAX`].
    pub files: Vec<UnreachableFile>,
    /// How many there are.
    pub total: u64,
}

/// Files that a node names at most.
pub const UNREACHABLE_MAX: usize = 5000;

/// A file whose bytes cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachableFile {
    /// Its number.
    pub ino: Ino,
    /// Its path from the top of the file system; none if no name leads to it.
    pub path: Option<String>,
    /// Which disk it lies on, and why that cannot be reached.
    pub why: String,
    /// Whether no node has that disk any more; otherwise the file is there again when its node is.
    pub is_lost: bool,
}

/// What a node reports of the files that it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesReport {
    /// Names of the filesets as it knows them; `/` for the root fileset.
    pub filesets: Vec<(FilesetId, String)>,
    /// Its own disks.
    pub disks: Vec<DiskSpace>,
    /// Its requests in flight that are older than [`WAIT_MIN`], the oldest first; of many the oldest [`WAITS_MAX`].
    pub waits: Vec<Wait>,
    /// Why its filesets must not grow, if the engine of their names is nearly full.
    #[serde(default)]
    pub shortage: Option<String>,
    /// What other nodes hold of its filesets; nodes of earlier versions do not say it.
    #[serde(default)]
    pub clients: Vec<ClientHolds>,
}

/// What another node holds of the filesets of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHolds {
    /// The other node.
    pub node: NodeId,
    /// Names, attributes and directories that it may cache.
    pub grants: u64,
    /// Directories among them that are delegated to it.
    pub directories: u64,
    /// What was recalled from it so far.
    pub recalls: u64,
    /// How often it did not answer a recall in time, and all that it cached of a fileset was void.
    pub evictions: u64,
    /// Files that it has open.
    pub open_files: u64,
}

/// Requests that have been in flight for less are not reported.
pub const WAIT_MIN: Duration = Duration::from_millis(100);

/// Requests in flight that a node reports at most.
pub const WAITS_MAX: usize = 500;

/// A request that has been in flight for long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// How long ago it arrived, in milliseconds.
    pub age_ms: u64,
    /// Its name.
    pub operation: String,
    /// The file or directory that it names.
    pub ino: Ino,
    /// Its path, if that is known.
    pub path: Option<String>,
    /// Number and command of the process that made it, if one of this node did.
    pub process: Option<(u32, String)>,
    /// The job of that process, as its control group or else its environment says: `12`, `slurm-12`, `lsf-12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Number of the user of that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The node that made it, if another one did.
    pub client: Option<NodeId>,
    /// What it waits for.
    pub cause: Cause,
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nothing: it is being carried out.
    Work,
    /// An answer of another node.
    Answer(NodeId),
    /// A node that gives back what it caches of the file or directory.
    Recall(NodeId),
    /// A report of another node of what it has done in a directory that is delegated to it.
    Report(NodeId, Ino),
    /// A node that owns the fileset of this name.
    Owner(String),
    /// The lease of its node, which is renewed with etcd.
    Lease,
    /// The fileset is being opened, or handed over.
    Handover,
    /// A lock that another program holds.
    Lock,
    /// A commit of the fileset to its store.
    Commit,
    /// Space on a disk.
    Space,
    /// A disk of another node; the text names both.
    Disk(String),
    /// A recall from an archive; the text says how far it is.
    Archive(String),
}

impl Cause {
    /// The node that the request waits for, if it waits for one.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Cause::Answer(node) | Cause::Recall(node) | Cause::Report(node, _) => Some(*node),
            Cause::Work
            | Cause::Owner(_)
            | Cause::Lease
            | Cause::Handover
            | Cause::Lock
            | Cause::Commit
            | Cause::Space
            | Cause::Disk(_)
            | Cause::Archive(_) => None,
        }
    }

    /// In words; `name` says what nodes are called.
    #[must_use]
    pub fn text(&self, name: impl Fn(NodeId) -> String) -> String {
        match self {
            Cause::Work => "is being carried out".to_owned(),
            Cause::Answer(node) => format!("an answer from {}", name(*node)),
            Cause::Recall(node) => {
                format!("{}, which has to give back what it caches (recall)", name(*node))
            }
            Cause::Report(node, directory) => {
                let node = name(*node);
                format!("a report of {node}, to which directory {directory} is delegated")
            }
            Cause::Owner(fileset) => format!("an owner of fileset {fileset}"),
            Cause::Lease => "the lease of this node: etcd does not answer in time".to_owned(),
            Cause::Handover => "the handover of its fileset".to_owned(),
            Cause::Lock => "a lock that another program holds".to_owned(),
            Cause::Commit => "a commit of its fileset".to_owned(),
            Cause::Space => "space on a disk".to_owned(),
            Cause::Disk(what) | Cause::Archive(what) => what.clone(),
        }
    }
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which life of its daemon.
    pub incarnation: u64,
    /// For how long it may still answer, in milliseconds; none while it waits for etcd.
    pub answers_ms: Option<u64>,
    /// Filesets that it holds.
    pub holdings: Vec<HeldFileset>,
    /// Filesets that it could not open or hand over when it tried last.
    pub problems: Vec<FilesetProblem>,
    /// What it reports of its files and disks; none if it serves neither.
    pub files: Option<FilesReport>,
    /// Its sessions.
    pub sessions: Vec<SessionStatus>,
    /// When its certificate expires, in seconds since the Unix epoch.
    pub certificate_expires: i64,
    /// Why etcd did not answer the last time, if so.
    pub etcd_error: Option<String>,
    /// Its wall clock, in milliseconds since the Unix epoch; nodes of earlier versions do not say it.
    #[serde(default)]
    pub clock_ms: Option<i64>,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Question::Join`].
    Joined(Box<Admission>),
    /// To [`Question::Renew`].
    Renewed(Issued),
    /// To [`Question::Status`].
    Status(Box<NodeStatus>),
    /// To [`Question::Move`].
    Asked,
    /// To [`Question::Unreachable`].
    Unreachable(UnreachableFiles),
    /// To [`Question::Paths`]: those that are known.
    Paths(Vec<(Ino, String)>),
    /// To [`Question::Commit`].
    Done,
    /// To [`Question::Host`]: what the checks of the host say, in a text.
    Host(String),
}

/// Admits nodes and renews certificates, on nodes that hold the authority's key.
pub struct Registrar {
    /// The records.
    pub book: Book,
    /// Where the authority's key is.
    pub home: NodeHome,
    /// The cluster.
    pub cluster: Uuid,
    /// Its name.
    pub cluster_name: String,
    /// What nodes that join are told of etcd.
    pub etcd: EtcdAccess,
    /// Times and bounds.
    pub settings: Settings,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Records of disks, whose node is filled in when it has a number.
#[must_use]
pub fn records_of(disks: &[NewDisk]) -> Vec<(String, DiskRecord)> {
    let record = |disk: &NewDisk| {
        let location = disk.location.clone();
        (disk.uuid.clone(), DiskRecord { node: NodeId(0), location, shared: disk.shared })
    };
    disks.iter().map(record).collect()
}

/// HOST of HOST:PORT.
fn host_of(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_matches(['[', ']']).to_owned()
}

/// A refusal that the visitor shows.
pub fn refusal(error: &Error) -> Refusal {
    Refusal::new(RefusalKind::Question, error.to_string())
}

impl Registrar {
    fn authority(&self) -> Result<crate::authority::Authority> {
        self.home.authority(self.cluster)?.ok_or_else(|| {
            Error::Invalid(
                "this node does not hold the key of the cluster's authority: ask one that does (forebay cluster status lists \
                 them)"
                    .to_owned(),
            )
        })
    }

    /// Makes a member of a machine with a token.
    ///
    /// # Errors
    /// If the token is not valid, the clocks differ, or the name is taken.
    pub fn join(&self, application: &Application) -> Result<Admission> {
        let authority = self.authority()?;
        let now = self.clock.now();
        let token = self.book.use_token(&application.token, &application.secret, now.seconds)?;
        self.check_clock(application.clock, now.seconds)?;
        super::record::check_name("node", &application.name)?;
        let record = NodeRecord {
            name: application.name.clone(),
            address: application.address.clone(),
            incarnation: 0,
            key: hexadecimal(&sha256(&application.public_key)),
            serial: String::new(),
            expires: 0,
            joined: now.seconds,
            has_authority: token.with_authority,
            version: application.version.clone(),
        };
        let node = self.book.add_node(&record, &records_of(&application.disks))?;
        let issued = self.issue(&authority, node, &application.public_key)?;
        tracing::info!(node = node.0, name = application.name, "a node has joined the cluster");
        Ok(Admission {
            cluster_name: self.cluster_name.clone(),
            node,
            issued,
            authority: authority.certificate().to_owned(),
            authority_key: token.with_authority.then(|| authority.key()),
            etcd: self.etcd.clone(),
            etcd_papers: self.etcd_papers(&authority, &application.address)?,
        })
    }

    fn check_clock(&self, theirs: i64, ours: i64) -> Result<()> {
        let difference = Duration::from_secs(theirs.abs_diff(ours));
        if difference <= self.settings.clock_difference_max {
            return Ok(());
        }
        let side = if theirs > ours { "ahead of" } else { "behind" };
        Err(Error::Invalid(format!(
            "the clock of the joining machine is {difference:?} {side} the cluster's: set it (timedatectl set-ntp true) and try \
             again"
        )))
    }

    /// Makes a new certificate for a member.
    ///
    /// # Errors
    /// If it is not a member, or shows another key than it joined with.
    pub fn renew(&self, node: NodeId, public_key: &[u8]) -> Result<Issued> {
        self.issue(&self.authority()?, node, public_key)
    }

    fn etcd_papers(
        &self,
        authority: &crate::authority::Authority,
        address: &str,
    ) -> Result<Option<Papers>> {
        if !self.etcd.started {
            return Ok(None);
        }
        authority.issue_for_etcd(&[host_of(address)], self.clock.now()).map(Some)
    }

    fn issue(
        &self,
        authority: &crate::authority::Authority,
        node: NodeId,
        public_key: &[u8],
    ) -> Result<Issued> {
        let (record, _) = self
            .book
            .node(node)?
            .ok_or_else(|| Error::Invalid(format!("node {node} is not a member")))?;
        if record.key != hexadecimal(&sha256(public_key)) {
            return Err(Error::Invalid(format!("node {node} joined with another key")));
        }
        let subject = Subject { cluster: self.cluster, node };
        let hosts = [host_of(&record.address)];
        let life = self.settings.certificate_life;
        let issued = authority.issue(subject, public_key, &hosts, life, self.clock.now())?;
        self.book.change_node(node, |record| {
            record.serial.clone_from(&issued.serial);
            record.expires = issued.expires;
        })?;
        Ok(issued)
    }
}

/// Encodes a question or an answer.
///
/// # Errors
/// Never, for what can be encoded.
pub fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::Invalid(error.to_string()))
}

/// Reads a question or an answer.
///
/// # Errors
/// If it makes no sense.
pub fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|_| {
        Error::Invalid(
            "the other side's message cannot be understood: is it a different version?".to_owned(),
        )
    })
}
