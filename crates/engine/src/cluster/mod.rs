//! The cluster on whose nodes a grid runs: named in ROOT/grid/cluster.json, which `forebay up --cluster` writes. Without that
//! file a grid is one machine's, and nothing here is used.
//!
//! Each node has a folder ROOT of its own, for its relay, its agent and its controller, if it has one. What they share lies in
//! etcd: which controller leads ([`leader`]), and the journal ([`journal`]), which those that stand by read ahead ([`follower`]).

pub mod controllers;
pub mod follower;
pub mod journal;
pub mod leader;
pub mod places;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_etcd::Runtime;
use forebay_node::NodeHome;
use forebay_node::home::NodeFile;
use forebay_node::members::Book;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::home::GridHome;

/// The port on which relays listen unless they are told otherwise.
pub const PORT: u16 = 7441;

/// Threads for calls to etcd.
const RUNTIME_THREADS: usize = 2;

/// `cluster.json`: which node of which cluster the folder of a grid belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Folder of the node.
    pub node: PathBuf,
    /// The port on which the relays of all nodes listen.
    pub port: u16,
}

impl Cluster {
    /// The cluster of a grid; none for a grid of one machine.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of(home: &GridHome) -> Result<Option<Cluster>> {
        let path = home.cluster();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        serde_json::from_slice(&text).with_context(|| path.display().to_string()).map(Some)
    }

    /// Writes which cluster a grid belongs to.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, home: &GridHome) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        let path = home.cluster();
        files::replace(&path, &text).with_context(|| path.display().to_string())
    }

    /// The node.
    ///
    /// # Errors
    /// If its folder is not one of a node.
    pub fn node_home(&self) -> Result<NodeHome> {
        let name = self.node.file_name().and_then(std::ffi::OsStr::to_str);
        let base = self.node.parent().zip(name);
        let (base, name) =
            base.with_context(|| format!("{}: not the folder of a node", self.node.display()))?;
        Ok(NodeHome::of(base, name)?)
    }
}

/// A node of the grid, for those that ask etcd.
pub struct Seat {
    /// Who the node is.
    pub node: NodeFile,
    /// The records of the cluster.
    pub book: Book,
    /// Folder of the grid on this node.
    pub root: PathBuf,
    /// Carries the calls to etcd.
    pub runtime: Runtime,
}

impl Seat {
    /// The node of `cluster` with the grid in `folder`.
    ///
    /// # Errors
    /// If there is no node.
    pub fn take(cluster: &Cluster, folder: &Path) -> Result<Seat> {
        let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for calls to etcd")?;
        let node = cluster.node_home()?.existing()?;
        let book = Book::open(&runtime, &node.etcd, &node.cluster_name)?;
        Ok(Seat { node, book, root: folder.to_owned(), runtime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_without_the_file_is_one_machines_and_one_with_it_names_its_node() {
        let root = tempfile::tempdir().unwrap();
        let home = GridHome::of(root.path()).unwrap();
        home.make().unwrap();
        assert_eq!(Cluster::of(&home).unwrap(), None);
        let cluster = Cluster { node: "/var/lib/forebay/cluster/grid1".into(), port: PORT };
        cluster.write(&home).unwrap();
        assert_eq!(Cluster::of(&home).unwrap(), Some(cluster.clone()));
        assert_eq!(cluster.node_home().unwrap().folder(), cluster.node);
        std::fs::write(home.cluster(), "{\"nod\": 1}").unwrap();
        let refused = format!("{:#}", Cluster::of(&home).unwrap_err());
        assert!(refused.contains("cluster.json") && refused.contains("nod"), "{refused}");
    }
}
