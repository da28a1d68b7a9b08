//! `forebay mkfs`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::home;

/// Make a file system.
///
/// ROOT is its home folder: settings (forebay.toml), store, and a disk of its own if no --disk is given.
/// It is made if its parent exists; otherwise it must be empty. The file system begins with the filesets
/// data (strict), work and util (scratch). If anything stands in the way, nothing is changed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay mkfs /srv/grid
  forebay mkfs /srv/grid --disk /mnt/nvme0/forebay --disk /mnt/nvme1/forebay")]
pub struct Mkfs {
    /// Home folder of the new file system.
    root: PathBuf,
    /// An empty directory on a local disk, to hold the bytes of files. Can be given several times.
    #[arg(long = "disk", value_name = "PATH")]
    disks: Vec<PathBuf>,
}

impl Mkfs {
    pub fn run(self) -> Result<ExitCode> {
        let home = home::mkfs(&self.root, &self.disks)?;
        let open = home.open()?;
        outln!("made a file system in {}", home.root().display());
        for (_, disk) in &open.disks {
            let description = disk.describe();
            let capacity = disk.capacity()?;
            outln!(
                "disk {} ({}, {} available)",
                description.location,
                description.kind,
                crate::output::bytes(capacity.available_bytes)
            );
            for advice in description.advice {
                outln!("  note: {advice}");
            }
        }
        outln!("filesets data (strict), work (scratch), util (scratch)");
        outln!("mount it with: forebay mount {} MOUNTPOINT", home.root().display());
        Ok(ExitCode::SUCCESS)
    }
}
