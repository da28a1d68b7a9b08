//! `forebay store`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_fs::fsck::Outcome;

use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::member::offline;
use crate::output::bytes;

/// Back up the stores of a file system, and restore them.
///
/// The stores (ROOT/names; in a cluster, etcd) hold all names and attributes, one store for each fileset; the contents of files
/// lie on the disks and are not part of a backup. In a cluster, the commands work on any node.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay store backup /srv/forebay /backup/grid-monday
  forebay store restore /srv/forebay /backup/grid-monday
  forebay store restore /srv/forebay /backup/grid-monday --fileset data
  forebay store backup grid1 /backup/grid1-monday")]
pub struct StoreCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Copy the stores into a new folder, mounted or not.
    ///
    /// Each copy shows its fileset at one moment and includes every change made before the command began. The file system
    /// can be used meanwhile.
    #[command(after_help = "Examples:
  forebay store backup /srv/forebay /backup/grid-monday
  forebay store backup /srv/forebay /backup/data-monday --fileset data")]
    Backup {
        /// Home folder of the file system, or name of the cluster.
        root: PathBuf,
        /// Folder to create. It must not exist.
        folder: PathBuf,
        /// Copy the store of this fileset only; / for the root fileset.
        #[arg(long, value_name = "NAME")]
        fileset: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Replace the stores of an unmounted file system with a backup.
    ///
    /// The backup is verified first; the current stores are kept beside it. In a cluster, no node may have mounted the file
    /// system, and all nodes with disks must run; the current names are kept in folders kept-N of the node's home folder. Files that were created after the backup
    /// are put into lost+found of their fileset without their names, and those that were removed after it come back empty.
    /// A fileset that is not in the backup stays as it is. Exit codes: 0 restored, 2 refused, 4 the backup cannot
    /// be used: nothing was changed.
    #[command(after_help = "Examples:
  forebay store restore /srv/forebay /backup/grid-monday
  forebay store restore /srv/forebay /backup/grid-monday --fileset data")]
    Restore {
        /// Home folder of the file system, or name of the cluster.
        root: PathBuf,
        /// Backup to restore.
        folder: PathBuf,
        /// Restore the store of this fileset only; / for the root fileset.
        #[arg(long, value_name = "NAME")]
        fileset: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl StoreCommand {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::Backup { root, folder, fileset, json } => {
                backup(&Home::at(&root)?, &folder, fileset, json)
            }
            Action::Restore { root, folder, fileset, json } => {
                restore(&Home::with_any_store(&root)?, &folder, fileset.as_deref(), json)
            }
        }
    }
}

/// How long a daemon may copy without a word.
const SILENCE_MAX: Duration = Duration::from_mins(10);

fn backup(home: &Home, folder: &Path, fileset: Option<String>, json: bool) -> Result<ExitCode> {
    let folder = std::path::absolute(folder)?;
    let mut told = 0;
    let mut progress = |done: u64, total: u64| {
        let percent = done.saturating_mul(100) / total.max(1);
        if !json && percent >= told + 10 {
            note!("   {percent} % of {total} records");
            told = percent;
        }
    };
    let records = if let Some(node) = home.node() {
        offline::back_up(home, node, &folder, fileset.as_deref(), &mut progress)?
    } else if let Some(_lock) = home.try_lock()? {
        home.back_up(&folder, fileset.as_deref(), &mut progress)?
    } else {
        let ask = Ask::BackUp { folder: folder.clone(), fileset };
        match control::ask_with_progress(home.root(), &ask, SILENCE_MAX, &mut progress)? {
            Answer::BackedUp { records } => records,
            _ => bail!("the daemon's answer cannot be understood"),
        }
    };
    let size = size_of(&folder)?;
    if json {
        let value = serde_json::json!({ "folder": folder, "records": records, "bytes": size });
        crate::output::put_json(&value)?;
    } else {
        outln!("{}: {records} records, {}", folder.display(), bytes(size));
    }
    Ok(ExitCode::SUCCESS)
}

/// Bytes of the files in a folder.
fn size_of(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

fn restore(home: &Home, folder: &Path, fileset: Option<&str>, json: bool) -> Result<ExitCode> {
    let mut progress = |line: &str| {
        if !json {
            note!("   {line}");
        }
    };
    let restored = home.restore(folder, fileset, &mut progress)?;
    if json {
        super::fsck::print_json(&restored)?;
    } else {
        super::fsck::print(&restored)?;
    }
    if restored.report.outcome() == Outcome::Left {
        note!("forebay: {} cannot be restored: nothing was changed", folder.display());
        return Ok(ExitCode::from(4));
    }
    Ok(ExitCode::SUCCESS)
}
