//! How each subject is brought up: one file per subject.
//!
//! A subject runs in a [`Cell`] and keeps everything in the folder of its [`Site`]: data on the site's
//! disk, settings, logs and sockets beside it. Nobody takes a subject down: the end of its cell does.

mod cephfs;
mod forebay;
mod glusterfs;
mod mergerfs;
mod moosefs;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::cell::Cell;
use super::image::{Format, Image};
use super::subject::Peer;
use crate::external::{find, run};
use crate::interrupt::Interrupt;

pub use forebay::transports;

/// Longest wait for a daemon to be ready, in tries, and the pause between two.
const TRIES: u32 = 150;
const PAUSE: Duration = Duration::from_millis(200);

/// Where a subject is brought up.
pub struct Site<'a> {
    /// Holds its processes and, without a client of its own, its mounts.
    pub cell: &'a Cell,
    /// Where a networked one is mounted: the same cell, or another node.
    pub client: &'a Cell,
    /// Everything but data. Its path is short: sockets are made in it.
    pub folder: &'a Path,
    /// A directory on the disk, for data.
    pub disk: &'a Path,
    /// The `forebay` command.
    pub forebay: &'a Path,
    /// Ends waiting.
    pub interrupt: &'a Interrupt,
}

/// A subject that can be measured.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Where the loads run.
    pub work: PathBuf,
    /// Where loads run that want what they sync to be durable.
    pub durable: PathBuf,
    /// What runs, with its version.
    pub version: String,
}

/// The file system on the disk of a subject.
#[must_use]
pub fn format(peer: Peer) -> Format {
    match peer {
        Peer::Ext4 => Format::Ext4,
        Peer::Xfs
        | Peer::Forebay
        | Peer::ForebayDev
        | Peer::ForebayUring
        | Peer::Mergerfs
        | Peer::Moosefs
        | Peer::Glusterfs
        | Peer::Cephfs => Format::Xfs,
    }
}

/// Makes the disk of a subject and brings it up there. A networked one is mounted in `client`, which may be the same cell.
///
/// # Errors
/// If a program is missing, fails, or a daemon is not ready in time.
pub fn bring_up(
    peer: Peer,
    cell: &Cell,
    client: &Cell,
    folder: &Path,
    forebay: &Path,
    interrupt: &Interrupt,
) -> Result<(Image, Result<Ready>)> {
    let image = Image::mount(cell, folder, format(peer))?;
    let disk = image.mountpoint.clone();
    let site = Site { cell, client, folder, disk: &disk, forebay, interrupt };
    let ready = match peer {
        Peer::Xfs => plain(&site, "mkfs.xfs"),
        Peer::Ext4 => plain(&site, "mkfs.ext4"),
        Peer::Forebay => forebay::bring_up(&site, None),
        Peer::ForebayDev => forebay::bring_up(&site, Some("dev")),
        Peer::ForebayUring => forebay::bring_up(&site, Some("uring")),
        Peer::Mergerfs => mergerfs::bring_up(&site),
        Peer::Moosefs => moosefs::bring_up(&site),
        Peer::Glusterfs => glusterfs::bring_up(&site),
        Peer::Cephfs => cephfs::bring_up(&site),
    };
    Ok((image, ready))
}

/// The disk itself.
fn plain(site: &Site<'_>, mkfs: &str) -> Result<Ready> {
    let version = site.version(mkfs, "-V")?;
    Ok(Ready::at(site.disk, format!("the kernel's, made by {version}")))
}

impl Ready {
    /// One directory for everything.
    fn at(directory: &Path, version: String) -> Ready {
        Ready { work: directory.to_owned(), durable: directory.to_owned(), version }
    }
}

impl Site<'_> {
    /// Runs a program in the cell.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.cell.run(&find(program)?, arguments)
    }

    /// Runs a program where the subject is mounted.
    fn run_on_client(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.client.run(&find(program)?, arguments)
    }

    /// Whether the subject is mounted on another node than its servers'.
    fn has_client(&self) -> bool {
        !std::ptr::eq(self.cell, self.client)
    }

    /// Starts a daemon in the cell; what it says goes to a file of its name.
    fn start(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let log = self.folder.join(format!("{program}.out"));
        self.cell.start(&find(program)?, arguments, &log)
    }

    /// Makes a directory beside the disk.
    fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Makes a directory on the disk, which is mounted in the cell only.
    fn data(&self, name: &str) -> Result<PathBuf> {
        let path = self.disk.join(name);
        self.run("mkdir", &["-p", text(&path)?])?;
        Ok(path)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Repeats `attempt` until it succeeds; its last error if it never does.
    fn until_ready<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) if tries == TRIES => {
                    return Err(error.context(format!("{what} is not ready after {TRIES} tries")));
                }
                Err(_) => tries += 1,
            }
            self.interrupt.sleep(PAUSE)?;
        }
    }

    /// The first line that a program says of its version.
    fn version(&self, program: &str, option: &str) -> Result<String> {
        // Some tell it on standard error.
        let script = format!("{} {option} 2>&1", find(program)?.display());
        let text = run(&find("sh")?, ["-c", &script])?;
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }
}

/// A path as an argument. Those here are made of letters and digits.
fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is no text", path.display()))
}
