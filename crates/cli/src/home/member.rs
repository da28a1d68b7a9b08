//! The home folder of a file system that is shared by the nodes of a cluster: it lies in the folder of this machine's node.
//!
//! It has settings, log, lock and control socket as every home folder has, but no stores: those are the cluster's. Its own disks
//! are listed in `disks.toml`, which is replaced as a whole.

use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_disk::Disk;
use forebay_disk::absent::AbsentDisk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_fs::Settings;
use forebay_fs::fsck::NamedDisk;
use forebay_fs::reserve::Reserve;
use forebay_node::home::{BASE, NodeHome};
use serde::{Deserialize, Serialize};

use super::{Home, Lock, access, uuid};

/// Name of the home folder within that of the node.
const FOLDER: &str = "fs";
/// Name of the list of disks.
const DISKS: &str = "disks.toml";

/// A disk of this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnDisk {
    /// Its identity.
    pub uuid: String,
    /// Its directory.
    pub location: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnDisks {
    #[serde(default)]
    disk: Vec<OwnDisk>,
}

/// The open parts of a member that is not mounted.
pub struct OpenMember {
    /// Keeps others out.
    pub lock: Lock,
    /// Settings in force.
    pub settings: Settings,
    /// The node.
    pub node: NodeHome,
    /// The disks of this machine by identity.
    pub disks: Vec<NamedDisk>,
    /// Space kept aside.
    pub reserve: Reserve,
}

/// The node that `root` names: by the name of its cluster, by its folder, or by the home folder within it.
fn node_at(root: &Path) -> Option<NodeHome> {
    let is_node = |folder: &Path| folder.join("node.json").is_file();
    let at = |folder: &Path| {
        let name = folder.file_name()?.to_str()?;
        NodeHome::of(folder.parent()?, name).ok()
    };
    if let Ok(folder) = root.canonicalize() {
        let above = folder.parent().filter(|_| folder.ends_with(FOLDER));
        return [Some(&*folder), above].into_iter().flatten().find(|f| is_node(f)).and_then(at);
    }
    let name = root.to_str().filter(|name| !name.contains('/'))?;
    let node = NodeHome::of(Path::new(BASE), name).ok()?;
    is_node(node.folder()).then_some(node)
}

impl Home {
    /// The home folder of a member of a cluster, if `root` names one.
    pub(super) fn member_at(root: &Path) -> Option<Home> {
        let node = node_at(root)?;
        Some(Home { root: node.folder().join(FOLDER), node: Some(node) })
    }

    /// The node that the file system belongs to, if it is shared by a cluster.
    pub fn node(&self) -> Option<&NodeHome> {
        self.node.as_ref()
    }

    /// Makes the home folder of a member in the folder of its node, with its disks. Can be repeated.
    ///
    /// # Errors
    /// If a folder or disk cannot be made.
    pub fn make_member(
        node: &NodeHome,
        file_system: &str,
        disks: &[PathBuf],
    ) -> Result<(Home, Vec<OwnDisk>)> {
        let root = node.folder().join(FOLDER);
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(access::FOLDER).create(&root);
        made.with_context(|| format!("cannot create {}", root.display()))?;
        let home = Home { root, node: Some(node.clone()) };
        if !home.settings_path().is_file() {
            home.replace(&home.settings_path(), &Settings::template())?;
        }
        let mut own = home.own_disks()?;
        for disk in disks {
            let location = disk.canonicalize().with_context(|| {
                format!("disk {}: name an existing, empty directory on the disk", disk.display())
            })?;
            if own.iter().any(|disk| disk.location == location) {
                continue;
            }
            let label = Label { file_system: file_system.to_owned(), disk: uuid()? };
            DirectoryDisk::format(&location, &label)
                .with_context(|| format!("disk {}", location.display()))?;
            own.push(OwnDisk { uuid: label.disk, location });
            // One by one: a repeat goes on behind the last one.
            let text = toml::to_string(&OwnDisks { disk: own.clone() })?;
            home.replace(&home.root.join(DISKS), &text)?;
        }
        Ok((home, own))
    }

    /// The default disk of a member: a folder in its home folder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn default_disk(node: &NodeHome) -> Result<PathBuf> {
        let path = node.folder().join(FOLDER).join(Home::DISK);
        let mut builder = std::fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(access::FOLDER)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// The disks that this machine brings.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn own_disks(&self) -> Result<Vec<OwnDisk>> {
        let path = self.root.join(DISKS);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let list: OwnDisks = toml::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(list.disk)
    }

    /// Replaces a file as a whole; it is on stable storage afterwards.
    fn replace(&self, path: &Path, text: &str) -> Result<()> {
        use std::io::Write as _;
        let draft = path.with_extension("draft");
        let written = || -> std::io::Result<()> {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(access::FILE);
            let mut file = options.open(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&draft, path)?;
            std::fs::File::open(&self.root)?.sync_all()
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Opens what this machine has of the file system, which must not be mounted here. A disk that is not there has a
    /// stand-in that says why.
    ///
    /// # Errors
    /// If it is mounted, or the settings are bad.
    pub fn open_member(&self, node: &NodeHome) -> Result<OpenMember> {
        let lock = self.lock()?;
        let settings = self.settings()?;
        let file_system = node.existing()?.cluster.to_string();
        let open = |own: &OwnDisk| -> Result<Arc<dyn Disk>> {
            let label = Label { file_system: file_system.clone(), disk: own.uuid.clone() };
            let disk = DirectoryDisk::open(&own.location, &label);
            Ok(Arc::new(disk.with_context(|| format!("disk {}", own.location.display()))?))
        };
        let disks = self.own_disks()?.into_iter().map(|own| {
            let disk = open(&own).unwrap_or_else(|error| {
                let (why, place) = (crate::output::chain(&error), own.location.display());
                Arc::new(AbsentDisk::new(&own.uuid, &place.to_string(), &why))
            });
            (own.uuid, disk)
        });
        let disks = disks.collect();
        let reserve = self.reserve(&settings);
        Ok(OpenMember { lock, settings, node: node.clone(), disks, reserve })
    }

    /// Refuses what works on the stores in this home folder where those are a cluster's.
    pub(super) fn alone(&self) -> Result<()> {
        let Some(node) = &self.node else { return Ok(()) };
        bail!(
            "{} is the folder of a node of a cluster, whose names lie with the cluster: this works on a file system of one \
             machine alone, or while the cluster is mounted here (`forebay mount`)",
            node.folder().display()
        )
    }
}
