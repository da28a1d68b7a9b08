//! `forebay mkfs`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use forebay_fs::record::Placement;

use crate::commands::fileset::NewPlacementArg;
use crate::home;

/// Create a file system.
///
/// ROOT becomes its home folder, which holds the settings (forebay.toml), the stores of names and, without
/// --disk, the contents of files. ROOT is created if its parent exists; an existing folder must be empty. The
/// new file system has the filesets data (strict), work and util (scratch). If root creates it on a local disk, work
/// and util are native: plain directories of the first disk, which `forebay mount` binds in place, so
/// programs use that disk itself. If the command fails, nothing is changed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay mkfs /srv/forebay
  forebay mkfs /srv/forebay --work-placement direct     without native filesets
  forebay mkfs /srv/forebay --disk /mnt/nvme0/forebay --disk /mnt/nvme1/forebay")]
pub struct Mkfs {
    /// Home folder of the new file system.
    root: PathBuf,
    /// Empty directory on a local disk that will hold the contents of files; may be repeated for several disks.
    #[arg(long = "disk", value_name = "PATH")]
    disks: Vec<PathBuf>,
    /// Placement of the filesets work and util [default: native if root creates the file system and its first disk
    /// is local, else direct].
    #[arg(long, value_enum)]
    work_placement: Option<NewPlacementArg>,
}

impl Mkfs {
    pub fn run(self) -> Result<ExitCode> {
        let (home, placement) =
            home::mkfs(&self.root, &self.disks, self.work_placement.map(Into::into))?;
        let open = home.open()?;
        outln!("created a file system in {}", home.root().display());
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
        match placement {
            Placement::Native => outln!("filesets data (strict), work (native), util (native)"),
            Placement::Direct | Placement::Served => {
                outln!("filesets data (strict), work (scratch), util (scratch)");
            }
        }
        outln!("mount it with: forebay mount {} MOUNTPOINT", home.root().display());
        Ok(ExitCode::SUCCESS)
    }
}
