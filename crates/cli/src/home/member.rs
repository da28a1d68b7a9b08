//! The home folder of a file system that is shared by the nodes of a cluster: it lies in the folder of this machine's node.
//!
//! It has settings, log, lock and control socket as every home folder has, but no stores: those are the cluster's, which also
//! knows the disks of this machine.

use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_disk::Disk;
use forebay_disk::absent::AbsentDisk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_fs::record::DiskRecord;
use forebay_fs::reserve::Reserve;
use forebay_fs::settings::LockChoice;
use forebay_node::NodeHome;
use uuid::Uuid;

use super::{Home, Lock, Settings, access};
use crate::commands::cluster::base;

/// Name of the home folder within that of the node.
const FOLDER: &str = "fs";
/// How long the kernel may keep attributes and names of filesets that other nodes own: less than a node stops answering before its
/// lease can be over (`lease_margin`), so that a frozen daemon's kernel shows nothing that another node has changed.
const LENT_TTL_MAX: Duration = Duration::from_millis(400);
/// The same of filesets that this node owns, as long as its lease lasts. A fileset in use is handed over this much later.
const OWN_TTL_MAX: Duration = Duration::from_secs(5);

/// The open parts of a member that is not mounted.
pub struct OpenMember {
    /// Keeps others out.
    pub lock: Lock,
    /// Settings in force.
    pub settings: Settings,
    /// The node.
    pub node: NodeHome,
    /// Space kept aside.
    pub reserve: Reserve,
}

/// The node that `root` names: by the name of its cluster, by its folder, or by the home folder within it.
pub fn node_at(root: &Path) -> Option<NodeHome> {
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
    let node = NodeHome::of(&base(), name).ok()?;
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

    /// Makes the home folder of a member in the folder of its node, unless it is there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn of_member(node: &NodeHome) -> Result<Home> {
        let home = Home { root: node.folder().join(FOLDER), node: Some(node.clone()) };
        make_folder(&home.root)?;
        if !home.settings_path().is_file() {
            home.write_settings()?;
        }
        Ok(home)
    }

    /// The disk of a first node that brings no other: a folder in the home folder. That of a cluster which the machine has
    /// left is moved aside with all that it holds.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn default_disk(node: &NodeHome, cluster: Uuid) -> Result<PathBuf> {
        let path = node.folder().join(FOLDER).join(Home::DISK);
        if let Ok(label) = DirectoryDisk::read_label(&path)
            && label.file_system != cluster.to_string()
        {
            let aside = path.with_file_name(format!("disk-of-{}", label.file_system));
            std::fs::rename(&path, &aside)
                .with_context(|| format!("cannot move {} aside", path.display()))?;
        }
        make_folder(&path)?;
        Ok(path)
    }

    /// Writes the settings as a whole, all with their defaults.
    fn write_settings(&self) -> Result<()> {
        use std::io::Write as _;
        let path = self.settings_path();
        let draft = path.with_extension("draft");
        let written = || -> std::io::Result<()> {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(access::FILE);
            let mut file = options.open(&draft)?;
            file.write_all(Settings::template().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&draft, &path)?;
            std::fs::File::open(&self.root)?.sync_all()
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Opens what this machine has of the file system, which must not be mounted here.
    ///
    /// # Errors
    /// If it is mounted, or the settings are bad.
    pub fn open_member(&self, node: &NodeHome) -> Result<OpenMember> {
        let lock = self.lock()?;
        let mut settings = self.settings()?;
        // Programs of other nodes ask for locks too. What the rings need depends on it.
        settings.fs.locks = LockChoice::Shared;
        settings.fuse.own_kernel_ttl = settings.fuse.kernel_ttl.min(OWN_TTL_MAX);
        settings.fuse.kernel_ttl = settings.fuse.kernel_ttl.min(LENT_TTL_MAX);
        let reserve = self.reserve(&settings);
        Ok(OpenMember { lock, settings, node: node.clone(), reserve })
    }

    /// Refuses what works on the stores in this home folder where those are a cluster's.
    pub(super) fn alone(&self) -> Result<()> {
        let Some(node) = &self.node else { return Ok(()) };
        bail!(
            "{} is the folder of a node, and the cluster stores its names: this command works only on a file system of one \
             machine, or while the cluster is mounted here (`forebay mount`)",
            node.folder().display()
        )
    }
}

fn make_folder(path: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(access::FOLDER).create(path);
    made.with_context(|| format!("cannot create {}", path.display()))
}

/// Takes the label off the directory of a disk that was taken away, if the disk is empty.
pub fn unlabel(file_system: &str, record: &DiskRecord) {
    let label = Label { file_system: file_system.to_owned(), disk: record.uuid.clone() };
    let location = record.shared_directory().unwrap_or(&record.location);
    if let Err(error) = DirectoryDisk::unformat(location, &label) {
        if record.shared_directory().is_some() {
            // The last node that lets go of it can.
            tracing::debug!(location, %error, "others still use a disk that was taken away");
            return;
        }
        // Anyone who adds it again, or uses it otherwise, can do that.
        tracing::warn!(location, %error, "a disk that was taken away keeps its label");
    }
}

/// Opens a disk of this machine.
///
/// # Errors
/// If it is not there, or another process uses it.
pub fn open_own_disk(
    file_system: &str,
    uuid: &str,
    location: &str,
) -> forebay_disk::Result<Arc<dyn Disk>> {
    let label = Label { file_system: file_system.to_owned(), disk: uuid.to_owned() };
    Ok(Arc::new(DirectoryDisk::open(location, &label)?))
}

/// A disk on storage that all nodes mount, as the node of this name reaches it; one that is not there has a stand-in that says why.
pub fn shared_disk(file_system: &str, uuid: &str, directory: &str, node: &str) -> Arc<dyn Disk> {
    let label = Label { file_system: file_system.to_owned(), disk: uuid.to_owned() };
    match DirectoryDisk::open_shared(directory, &label, node) {
        Ok(disk) => Arc::new(disk),
        Err(error) => Arc::new(AbsentDisk::new(uuid, directory, &error.to_string())),
    }
}

/// A disk of this machine; one that is not there has a stand-in that says why.
pub fn own_disk(file_system: &str, uuid: &str, location: &str) -> Arc<dyn Disk> {
    match open_own_disk(file_system, uuid, location) {
        Ok(disk) => disk,
        Err(error) => Arc::new(AbsentDisk::new(uuid, location, &error.to_string())),
    }
}
