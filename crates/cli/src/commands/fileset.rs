//! `forebay fileset`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Subcommand, ValueEnum};
use forebay_fs::record::{Durability, Placement};
use forebay_fs::{FileSystem, FilesetStatus};

use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::output::{Table, bytes};

/// List, create, change and remove filesets.
///
/// A fileset is a top-level directory with its own settings. The file system may be mounted or not.
/// Durability: in a strict fileset fsync returns when data and names are on stable storage; in a scratch
/// fileset it returns at once. Placement: the kernel itself reads and writes the files of a direct fileset
/// where it can; the daemon does so for a served fileset. Changes take effect for files that are opened
/// afterwards.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay fileset list /srv/forebay
  forebay fileset create /srv/forebay models --durability strict
  forebay fileset set /srv/forebay work --placement served
  forebay fileset remove /srv/forebay models")]
pub struct Fileset {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List filesets with their settings and sizes.
    #[command(after_help = "Examples:\n  forebay fileset list /srv/forebay")]
    List {
        /// Home folder of the file system.
        root: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create a fileset.
    #[command(
        after_help = "Examples:\n  forebay fileset create /srv/forebay models --durability strict"
    )]
    Create {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset and its top-level directory.
        name: String,
        /// What fsync promises.
        #[arg(long, value_enum, default_value = "strict")]
        durability: DurabilityArg,
        /// Who reads and writes its files: the kernel itself (direct) or the daemon (served).
        #[arg(long, value_enum, default_value = "direct")]
        placement: PlacementArg,
        /// Permission bits of its directory, in octal digits.
        #[arg(long, default_value = "755", value_parser = octal)]
        mode: u16,
    },
    /// Change a fileset.
    #[command(after_help = "Examples:\n  forebay fileset set /srv/forebay work --placement served")]
    Set {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for everything outside the named ones.
        name: String,
        /// What fsync promises.
        #[arg(long, value_enum, required_unless_present = "placement")]
        durability: Option<DurabilityArg>,
        /// Who reads and writes its files: the kernel itself (direct) or the daemon (served).
        #[arg(long, value_enum)]
        placement: Option<PlacementArg>,
    },
    /// Remove an empty fileset.
    #[command(after_help = "Examples:\n  forebay fileset remove /srv/forebay models")]
    Remove {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset.
        name: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum DurabilityArg {
    Strict,
    Scratch,
}

#[derive(Clone, Copy, ValueEnum)]
enum PlacementArg {
    Direct,
    Served,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Durability {
        match arg {
            DurabilityArg::Strict => Durability::Strict,
            DurabilityArg::Scratch => Durability::Scratch,
        }
    }
}

impl From<PlacementArg> for Placement {
    fn from(arg: PlacementArg) -> Placement {
        match arg {
            PlacementArg::Direct => Placement::Direct,
            PlacementArg::Served => Placement::Served,
        }
    }
}

fn octal(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "expected permission bits in octal digits, 0 to 7777".to_owned())
}

impl Fileset {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::List { root, json } => list(&root, json)?,
            Action::Create { root, name, durability, placement, mode } => {
                let (durability, placement) = (durability.into(), placement.into());
                let ask = Ask::CreateFileset { name: name.clone(), durability, placement, mode };
                change(&root, &ask, |fs| fs.create_fileset(&name, durability, placement, mode))?;
            }
            Action::Set { root, name, durability, placement } => {
                let (durability, placement) =
                    (durability.map(Into::into), placement.map(Into::into));
                let ask = Ask::SetFileset { name: name.clone(), durability, placement };
                change(&root, &ask, |fs| fs.set_fileset(&name, durability, placement))?;
            }
            Action::Remove { root, name } => {
                let ask = Ask::RemoveFileset { name: name.clone() };
                change(&root, &ask, |fs| fs.remove_fileset(&name))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Has the daemon make a change, or makes it in the unmounted file system.
fn change(
    root: &Path,
    ask: &Ask,
    make: impl FnOnce(&FileSystem) -> forebay_fs::Result<()>,
) -> Result<()> {
    let home = Home::at(root)?;
    if home.try_lock()?.is_none() {
        control::ask(home.root(), ask)?;
        return Ok(());
    }
    let (fs, _lock) = home.open()?.into_file_system()?;
    let made = make(&fs);
    fs.close().context("the file system could not be closed cleanly")?;
    Ok(made?)
}

fn list(root: &Path, json: bool) -> Result<()> {
    let home = Home::at(root)?;
    let filesets = if home.try_lock()?.is_none() {
        match control::ask(home.root(), &Ask::Status)? {
            Answer::Status(status) => status.filesets,
            _ => Vec::new(),
        }
    } else {
        let open = home.open()?;
        let superblock = forebay_fs::recovery::read_superblock(&*open.store)?;
        forebay_fs::offline::status(&*open.store, &superblock, &open.disks)?.0
    };
    if json {
        crate::output::put_json(&filesets)?;
        return Ok(());
    }
    let mut table = Table::new(&["FILESET", "DURABILITY", "PLACEMENT", "FILES", "BYTES"]);
    for fileset in &filesets {
        table.row(cells(fileset));
    }
    out!("{}", table.render());
    Ok(())
}

/// The cells of a fileset's row.
pub fn cells(fileset: &FilesetStatus) -> Vec<String> {
    let durability = match fileset.durability {
        Durability::Strict => "strict",
        Durability::Scratch => "scratch",
    };
    let placement = match fileset.placement {
        Placement::Direct => "direct",
        Placement::Served => "served",
    };
    vec![
        fileset.name.clone(),
        durability.to_owned(),
        placement.to_owned(),
        fileset.files.to_string(),
        bytes(fileset.bytes),
    ]
}
