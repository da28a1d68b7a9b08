//! `forebay store`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_fs::fsck::Outcome;
use forebay_fs::fsck::file::back_up;

use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::output::bytes;

/// Back up the store of a file system, and restore it.
///
/// The store (ROOT/store.redb) holds all names and attributes; the contents of files lie on the disks and are not
/// part of a backup.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay store backup /srv/forebay /backup/forebay-monday
  forebay store restore /srv/forebay /backup/forebay-monday")]
pub struct StoreCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Copy the store into a new file, mounted or not.
    ///
    /// The copy is of one moment: everything that was done before the command began is in it. The file system
    /// remains in use meanwhile.
    #[command(after_help = "Examples:\n  forebay store backup /srv/forebay /backup/forebay-monday")]
    Backup {
        /// Home folder of the file system.
        root: PathBuf,
        /// File to make. It must not exist.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put a backup in the place of the store of an unmounted file system.
    ///
    /// The backup is verified first; the present store is kept beside it. Files that were made after the backup
    /// are put into /lost+found without their names, and those that were removed after it are empty. Exit codes:
    /// 0 restored, 2 refused, 4 the backup cannot be used: nothing was changed.
    #[command(
        after_help = "Examples:\n  forebay store restore /srv/forebay /backup/forebay-monday"
    )]
    Restore {
        /// Home folder of the file system.
        root: PathBuf,
        /// Backup to restore.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl StoreCommand {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::Backup { root, file, json } => backup(&Home::at(&root)?, &file, json),
            Action::Restore { root, file, json } => {
                restore(&Home::with_any_store(&root)?, &file, json)
            }
        }
    }
}

/// How long a daemon may copy without a word.
const SILENCE_MAX: Duration = Duration::from_mins(10);

fn backup(home: &Home, file: &Path, json: bool) -> Result<ExitCode> {
    let file = std::path::absolute(file)?;
    let mut told = 0;
    let mut progress = |done: u64, total: u64| {
        let percent = done.saturating_mul(100) / total.max(1);
        if !json && percent >= told + 10 {
            note!("   {percent} % of {total} records");
            told = percent;
        }
    };
    let records = if let Some(_lock) = home.try_lock()? {
        back_up(&*home.look()?, &file, &mut progress)?
    } else {
        let ask = Ask::BackUp { file: file.clone() };
        match control::ask_with_progress(home.root(), &ask, SILENCE_MAX, &mut progress)? {
            Answer::BackedUp { records } => records,
            _ => bail!("the daemon's answer makes no sense"),
        }
    };
    let size = std::fs::metadata(&file).with_context(|| file.display().to_string())?.len();
    if json {
        let value = serde_json::json!({ "file": file, "records": records, "bytes": size });
        crate::output::put_json(&value)?;
    } else {
        outln!("{}: {records} records, {}", file.display(), bytes(size));
    }
    Ok(ExitCode::SUCCESS)
}

fn restore(home: &Home, file: &Path, json: bool) -> Result<ExitCode> {
    let mut progress = |line: &str| {
        if !json {
            note!("   {line}");
        }
    };
    let restored = home.restore(file, &mut progress)?;
    if json {
        super::fsck::print_json(&restored)?;
    } else {
        super::fsck::print(&restored)?;
    }
    if restored.report.outcome() == Outcome::Left {
        note!("forebay: {} cannot be restored: nothing was changed", file.display());
        return Ok(ExitCode::from(4));
    }
    Ok(ExitCode::SUCCESS)
}
