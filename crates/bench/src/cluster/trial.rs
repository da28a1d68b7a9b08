//! The cluster under measurement, and one machine alone beside it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_e2e::cluster::Plan;
use forebay_e2e::{Cluster, Hosts, wait_until};

use crate::mount::{Home, Mount, Transport, Way};

/// Nodes.
const NODES: usize = 4;
/// The native fileset.
const SCRATCH: &str = "scratch";
/// Within this time a node binds a new native fileset.
const BOUND: Duration = Duration::from_secs(30);

/// Four nodes with one etcd, and a file system of one machine. Dropped, nothing of them is left.
pub struct Trial {
    pub cluster: Cluster,
    one: Mount,
}

impl Trial {
    /// Brings both up, with their disks in `disk` and everything else in `scratch`.
    ///
    /// # Errors
    /// If the file system of one machine cannot be mounted.
    ///
    /// # Panics
    /// If the cluster cannot be made.
    pub fn make(program: &Path, scratch: &Path, disk: &Path) -> Result<Trial> {
        let home = Home::make(program, disk.join("one"), &[])?;
        let one = home.mount(&scratch.join("one"), Way::Direct, Transport::Uring)?;
        let disks: BTreeMap<usize, PathBuf> =
            (0..NODES).map(|node| (node, disk.join(format!("d{node}")))).collect();
        let plan = Plan {
            base: Some(scratch.to_owned()),
            disks,
            forebay: Some(program.to_owned()),
            // Loads of filesets that a node owns.
            work_placement: Some("direct"),
            ..Plan::of(NODES)
        };
        Ok(Trial { cluster: Cluster::make(&plan), one })
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        NODES
    }

    /// The hosts of nodes and etcd.
    pub fn hosts(&self) -> &Hosts {
        self.cluster.hosts()
    }

    /// A fileset of the one machine.
    pub fn one(&self, fileset: &str) -> PathBuf {
        self.one.fileset(fileset)
    }

    /// A fileset as a node sees it.
    pub fn on_node(&self, node: usize, fileset: &str) -> PathBuf {
        self.cluster.mountpoint(node).join(fileset)
    }

    /// The node that owns a fileset.
    ///
    /// # Errors
    /// If nobody does.
    pub fn owner(&self, fileset: &str) -> Result<usize> {
        let owner = self.cluster.owner(0, fileset);
        owner.with_context(|| format!("nobody owns the fileset {fileset}"))
    }

    /// A fileset as its owner sees it.
    ///
    /// # Errors
    /// If it has none.
    pub fn on_owner(&self, fileset: &str) -> Result<PathBuf> {
        Ok(self.on_node(self.owner(fileset)?, fileset))
    }

    /// A fileset as a node sees it that does not own it.
    ///
    /// # Errors
    /// If it has no owner.
    pub fn on_another(&self, fileset: &str) -> Result<PathBuf> {
        Ok(self.on_node((self.owner(fileset)? + 1) % NODES, fileset))
    }

    /// Makes a native fileset, and waits until each node has its directory there.
    ///
    /// # Errors
    /// If it cannot be made.
    ///
    /// # Panics
    /// If a node does not get its directory.
    pub fn make_scratch(&self) -> Result<()> {
        let home = self.cluster.home(0);
        let home = home.to_str().context("a home folder is not UTF-8")?;
        let create = ["fileset", "create", home, SCRATCH, "--placement", "native"];
        self.cluster.forebay(0, &create).succeeds();
        for node in 0..NODES {
            let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
            wait_until("native scratch is bound", BOUND, || {
                let bound = device(&self.scratch_of(node));
                bound.is_some() && bound != device(&self.cluster.mountpoint(node))
            });
        }
        Ok(())
    }

    /// The native scratch of a node, on that node.
    pub fn scratch_of(&self, node: usize) -> PathBuf {
        self.on_node(node, SCRATCH).join(format!("n{node}"))
    }

    /// Unmounts everything in order.
    ///
    /// # Errors
    /// If the one machine's file system is in use.
    ///
    /// # Panics
    /// If a node cannot be unmounted.
    pub fn end(self) -> Result<()> {
        self.one.unmount()?;
        for node in (0..NODES).rev() {
            self.cluster.umount(node);
        }
        Ok(())
    }
}
