//! `forebay scrub`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::disk::{Show, task};
use crate::control::Ask;

/// Compare files and their copies with their checksums, and repair what differs.
///
/// Reads all files at rest of filesets with two or three copies (`forebay fileset set --copies`), whose checksums were taken when the copies
/// were made. Damaged or missing bytes are made again from a sound copy; `forebay status` lists files of which no copy is
/// sound. This is a task (`forebay tasks`), within its speed; files that programs have open are skipped. Run it
/// regularly, for example monthly.
///
/// With --archives it reads archives instead: the objects of archived and premigrated files, frame by frame, in all filesets. A damaged or missing
/// object is reported with the name of its file in the log of the daemon. If the file is archived, `forebay status` lists
/// it as damaged too, until the next mount. If it is premigrated, it is on a disk as well: it is not evicted any more, loses that object when it is at rest, and
/// the next run of its rule premigrates it again. Every object is fetched in full: mind what the store charges for it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay scrub /srv/forebay
  forebay scrub /srv/forebay --fileset data --wait
  forebay scrub /srv/forebay --archives --wait")]
pub struct Scrub {
    /// Home folder of the file system.
    root: PathBuf,
    /// Fileset [default: all].
    #[arg(long)]
    fileset: Option<String>,
    /// Read archived and premigrated files in archives, instead of copies on disks.
    #[arg(long)]
    archives: bool,
    /// Wait until it is done, and report progress.
    #[arg(long)]
    wait: bool,
    /// Print the task as JSON.
    #[arg(long)]
    json: bool,
}

impl Scrub {
    pub fn run(self) -> Result<ExitCode> {
        let Scrub { root, fileset, archives, wait, json } = self;
        let (show, name) = (Show { wait, json }, fileset.clone());
        if archives {
            let ask = Ask::ScrubArchives { fileset };
            task(&root, &ask, |fs| Ok(fs.scrub_archives(name.as_deref())?), show)?;
        } else {
            let ask = Ask::Scrub { fileset };
            task(&root, &ask, |fs| Ok(fs.scrub(name.as_deref())?), show)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
