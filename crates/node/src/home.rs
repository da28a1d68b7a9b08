//! The folder of a node: who it is, its certificates and keys, and the lock of its daemon.
//!
//! Everything in it belongs to one user alone (folder 0700, files 0600), because who has the key is the node. Files are replaced
//! as a whole. `node.json` is written last when a node is made, so a folder without it is one of an attempt that was
//! interrupted and can be repeated.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_base::NodeId;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::authority::{Authority, Subject, expiry_of};
use crate::error::{Error, Result};
use crate::members::record::check_name;
use crate::session::Identity;

/// Below it are the folders of nodes, by the names of their clusters.
pub const BASE: &str = "/var/lib/forebay/cluster";

/// The port on which nodes listen unless they are told otherwise.
pub const PORT: u16 = 7440;

const NODE: &str = "node.json";
pub(crate) const CERTIFICATE: &str = "node.pem";
const KEY: &str = "node.key";
const AUTHORITY: &str = "authority.pem";
const AUTHORITY_KEY: &str = "authority.key";

/// How etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdAccess {
    /// `http://HOST:PORT` or `https://HOST:PORT` of each member.
    pub endpoints: Vec<String>,
    /// Certificate of the authority of etcd, in PEM, for https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Certificate and key that etcd wants of its clients, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<(String, String)>,
    /// Whether nodes of the cluster run the members themselves (`--start-etcd`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started: bool,
}

impl EtcdAccess {
    /// Whose certificates are needed to reach it, and when each expires, in seconds since the Unix epoch. One that cannot be read is left
    /// out, and so is the authority of members that nodes run: it is the cluster's.
    #[must_use]
    pub fn certificate_ends(&self) -> Vec<(&'static str, i64)> {
        let clients = self.identity.as_ref().map(|(certificate, _)| certificate);
        let authority = self.authority.as_ref().filter(|_| !self.started);
        let all = [("clients", clients), ("authority", authority)].into_iter();
        all.filter_map(|(whose, pem)| Some((whose, expiry_of(pem?).ok()?))).collect()
    }
}

/// `node.json`: who the node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// Name of the cluster.
    pub cluster_name: String,
    /// Its id.
    pub cluster: Uuid,
    /// Number of the node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Where it listens, HOST:PORT.
    pub address: String,
    /// How etcd is reached.
    pub etcd: EtcdAccess,
    /// When its certificate expires, in seconds since the Unix epoch.
    pub expires: i64,
}

/// The folder of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHome {
    folder: PathBuf,
}

/// The lock of the one process that is the node.
#[derive(Debug)]
pub struct NodeLock(#[expect(dead_code, reason = "holds the lock")] File);

impl NodeHome {
    /// The folder of the node of `cluster` below `base`.
    ///
    /// # Errors
    /// If `cluster` is not a name.
    pub fn of(base: &Path, cluster: &str) -> Result<NodeHome> {
        check_name("cluster", cluster)?;
        Ok(NodeHome { folder: base.join(cluster) })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Log of the daemon.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join("node.log")
    }

    /// The lock of the process that is the node. The file holds its number.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Makes the folder, with those above it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(&self) -> Result<()> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.folder).map_err(Error::file(&self.folder))
    }

    pub(crate) fn read(&self, name: &str) -> Result<Option<String>> {
        let path = self.folder.join(name);
        let mut text = String::new();
        match File::open(&path) {
            Ok(mut file) => file.read_to_string(&mut text).map_err(Error::file(&path))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file(&path)(error)),
        };
        Ok(Some(text))
    }

    fn required(&self, name: &str) -> Result<String> {
        self.read(name)?.ok_or_else(|| Error::Damaged {
            path: self.folder.join(name),
            reason: "the file is missing".to_owned(),
        })
    }

    /// Replaces a file as a whole; it is on stable storage afterwards.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        let draft = self.folder.join(format!("{name}.draft"));
        let written = || {
            // A draft of an interrupted attempt may have another mode.
            let _ = std::fs::remove_file(&draft);
            let mut options = OpenOptions::new();
            let mut file = options.create_new(true).write(true).mode(0o600).open(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&draft, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        written().map_err(Error::file(&path))
    }

    /// Who the node is; none if there is no node yet.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn node(&self) -> Result<Option<NodeFile>> {
        let Some(text) = self.read(NODE)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| Error::Damaged {
            path: self.folder.join(NODE),
            reason: error.to_string(),
        })
    }

    /// Who the node is.
    ///
    /// # Errors
    /// If there is no node yet.
    pub fn existing(&self) -> Result<NodeFile> {
        self.node()?.ok_or_else(|| {
            Error::Invalid(format!(
                "this machine is not a node of a cluster with this name ({} has no {NODE}): run `forebay cluster init` or \
                 `forebay cluster join` first, or name another folder with --home",
                self.folder.display()
            ))
        })
    }

    /// Writes who the node is: from here on it is a node.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_node(&self, node: &NodeFile) -> Result<()> {
        let text = serde_json::to_string_pretty(node)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        self.write(NODE, &text)
    }

    /// The node's own key, in PEM, made at the first call.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn key(&self) -> Result<String> {
        if let Some(key) = self.read(KEY)? {
            return Ok(key);
        }
        let key = crate::authority::new_key()?.serialize_pem();
        self.write(KEY, &key)?;
        Ok(key)
    }

    /// Writes the node's certificate and the authority's.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn set_certificates(&self, certificate: &str, authority: &str) -> Result<()> {
        self.write(AUTHORITY, authority)?;
        self.write(CERTIFICATE, certificate)
    }

    /// What the node shows to others.
    ///
    /// # Errors
    /// If a file is missing.
    pub fn identity(&self, node: &NodeFile) -> Result<Identity> {
        Ok(Identity {
            subject: Subject { cluster: node.cluster, node: node.node },
            certificate: self.required(CERTIFICATE)?,
            key: self.required(KEY)?,
            authority: self.required(AUTHORITY)?,
        })
    }

    /// When the node's certificate was last replaced.
    ///
    /// # Errors
    /// If the file is missing.
    pub fn certificate_changed(&self) -> Result<std::time::SystemTime> {
        let path = self.folder.join(CERTIFICATE);
        std::fs::metadata(&path).and_then(|about| about.modified()).map_err(Error::file(&path))
    }

    /// The authority, if this node holds its key.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn authority(&self, cluster: Uuid) -> Result<Option<Authority>> {
        let Some(key) = self.read(AUTHORITY_KEY)? else { return Ok(None) };
        Authority::of(cluster, &self.required(AUTHORITY)?, &key).map(Some)
    }

    /// Keeps the authority's key here.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_authority(&self, certificate: &str, key: &str) -> Result<()> {
        self.write(AUTHORITY, certificate)?;
        self.write(AUTHORITY_KEY, key)
    }

    /// What [`NodeHome::kept`] kept in an earlier attempt.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn kept_before(&self, name: &str) -> Result<Option<String>> {
        self.read(name)
    }

    /// Becomes the folder of another name. What was there, of a node that has left or of an attempt, is kept beside it, as
    /// NAME.former-1, -2, and so on.
    ///
    /// # Errors
    /// If the folders cannot be renamed.
    pub fn take_the_place_of(&self, other: &NodeHome) -> Result<()> {
        if other.folder.exists() {
            // It may hold files of users: nothing of it is removed.
            let former =
                |number: u32| other.folder.with_added_extension(format!("former-{number}"));
            let free = (1..=u32::MAX).map(former).find(|folder| !folder.exists());
            let free = free.unwrap_or_else(|| former(0));
            std::fs::rename(&other.folder, &free).map_err(Error::file(&free))?;
        }
        std::fs::rename(&self.folder, &other.folder).map_err(Error::file(&other.folder))
    }

    /// A small file for attempts that can be repeated: what was drawn in the first one.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn kept(&self, name: &str, draw: impl FnOnce() -> String) -> Result<String> {
        if let Some(text) = self.read(name)? {
            return Ok(text);
        }
        let text = draw();
        self.write(name, &text)?;
        Ok(text)
    }

    /// Removes everything that makes this machine a node. Logs stay.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn forget(&self) -> Result<()> {
        // First what makes it one.
        for name in [
            NODE,
            KEY,
            CERTIFICATE,
            AUTHORITY_KEY,
            AUTHORITY,
            "cluster-id",
            "removed-monitors.json",
        ] {
            let path = self.folder.join(name);
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::file(&path)(error)),
            }
        }
        Ok(())
    }

    /// Becomes the one process that is the node.
    ///
    /// # Errors
    /// If another process is.
    pub fn claim(&self) -> Result<NodeLock> {
        let path = self.lock();
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let mut file = options.open(&path).map_err(Error::file(&path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut number = String::new();
            let _ = file.read_to_string(&mut number);
            return Err(Error::Invalid(format!(
                "process {} already runs this node (it holds {}): stop it first, with forebay umount or forebay cluster stop",
                number.trim(),
                path.display()
            )));
        }
        let number = std::process::id().to_string();
        std::os::unix::fs::FileExt::write_all_at(&file, number.as_bytes(), 0)
            .and_then(|()| file.set_len(number.len() as u64))
            .map_err(Error::file(&path))?;
        Ok(NodeLock(file))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_belong_to_their_owner_alone_and_are_made_once() {
        let base = tempfile::tempdir().unwrap();
        let home = NodeHome::of(base.path(), "grid1").unwrap();
        home.make().unwrap();
        let key = home.key().unwrap();
        assert_eq!(home.key().unwrap(), key);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&home.folder().join(KEY)), 0o600);
        assert_eq!(mode(home.folder()), 0o700);
        assert!(matches!(home.existing(), Err(Error::Invalid(_))));
    }

    #[test]
    fn one_process_is_the_node() {
        let base = tempfile::tempdir().unwrap();
        let home = NodeHome::of(base.path(), "grid1").unwrap();
        home.make().unwrap();
        let lock = home.claim().unwrap();
        let refused = home.claim().unwrap_err().to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        drop(lock);
        home.claim().unwrap();
    }
}
