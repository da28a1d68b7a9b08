//! `forebay snapshot`.

mod clone;
mod restore;
mod schedule;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_fs::snapshot::{Change, ChangeKind, SnapshotStatus};

use super::disk::changed;
use crate::control::{Answer, Ask};
use crate::output::{Table, bytes};

/// Changes that are shown, at most.
pub const CHANGES_MAX: usize = 100_000;

/// Keep a fileset as it is at one moment, and read it later.
///
/// A snapshot holds all names, attributes and bytes of a fileset at one moment. It appears as FILESET/.snapshots/NAME, where
/// programs read it like any other directory (listings do not show .snapshots; name it). Nothing in it can be changed. It takes space
/// only for what is changed or removed after it. `forebay snapshot restore` brings files and directories back, and so does
/// copying them from there: the copy shares its blocks where the disk can. `forebay snapshot clone` makes a new fileset that begins as the
/// snapshot and can be written.
///
/// Requests to the fileset wait while a snapshot is made, usually for some milliseconds. The first program that opens a file for
/// writing after a snapshot waits until the old bytes are kept: by sharing blocks on XFS and Btrfs, by copying the
/// file on other disks. Snapshots do not count against quotas. Filesets of a cluster and native filesets have no snapshots. A backup
/// of the stores does not include them.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay snapshot create /srv/forebay data monday
  ls /mnt/forebay/data/.snapshots/monday
  forebay snapshot restore /srv/forebay data monday table.parquet
  forebay snapshot list /srv/forebay
  forebay snapshot diff /srv/forebay data monday
  forebay snapshot clone /srv/forebay data monday trial
  forebay snapshot schedule set /srv/forebay data --every 1h --keep 24
  forebay snapshot delete /srv/forebay data monday")]
pub struct Snapshot {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a snapshot of a fileset. The file system may be mounted or not.
    #[command(after_help = "Examples:
  forebay snapshot create /srv/forebay data monday
  forebay snapshot create /srv/forebay / before-upgrade --json
  forebay snapshot create /srv/forebay data $(date +%Y-%m-%dT%H:%M)")]
    Create {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
        /// Name of the snapshot: letters, digits and -_.:+@.
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make a snapshot named PREFIX and the time, and delete the oldest ones of that prefix: for a timer.
    ///
    /// The time is that of UTC, such as 2026-11-25T08:30:00Z. Snapshots with other names stay. The new snapshot is made first: if
    /// that fails, nothing is deleted.
    #[command(after_help = "Examples:
  forebay snapshot rotate /srv/forebay data --prefix hourly- --keep 24
  forebay snapshot rotate /srv/forebay data --prefix daily- --keep 14 --json")]
    Rotate {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
        /// Beginning of the names.
        #[arg(long, value_name = "PREFIX")]
        prefix: String,
        /// How many snapshots with this prefix are kept, the new one included.
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1024))]
        keep: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List snapshots, the oldest first.
    #[command(after_help = "Examples:
  forebay snapshot list /srv/forebay
  forebay snapshot list /srv/forebay data --json")]
    List {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset, / for the root fileset [default: all].
        fileset: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what changed since a snapshot, or from one snapshot to a later one.
    ///
    /// A file is modified if its size or the time of its last change differs. Reads all names and attributes of both, without the bytes
    /// of files.
    #[command(after_help = "Examples:
  forebay snapshot diff /srv/forebay data monday
  forebay snapshot diff /srv/forebay data monday tuesday --json")]
    Diff {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
        /// Name of the snapshot.
        from: String,
        /// Name of a later snapshot [default: the fileset as it is].
        to: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Bring files and directories back as they were in a snapshot.
    ///
    /// Owner, mode, times, ACLs, extended attributes, holes and hard links among what is restored come back, too. Each file is
    /// replaced at once: a program sees the old or the restored one, and one that has the old file open keeps it. A directory
    /// that exists gets back what the snapshot has in it; what was created later stays. Ctrl-C leaves whole files only.
    ///
    /// The file system must be mounted. Anyone may restore what they may read, to where they may write; files of
    /// other users belong to the one who restores them then, unless that is root. Quotas apply.
    ///
    /// --all takes the whole fileset back at one moment, files that were created later included, and is for the owner of the file
    /// system. A clone of the snapshot takes the place of the fileset (see `forebay snapshot clone`) with its quotas. The fileset as
    /// it was stays beside it, with its snapshots, as FILESET.aside or what --aside says: look at it, then remove its files and
    /// `forebay fileset remove` it. Programs that have files or directories open keep those of the fileset as it was.
    ///
    /// Exit codes: 0 everything is restored, 1 something is not, 130 interrupted.
    #[command(after_help = "Examples:
  forebay snapshot restore /srv/forebay data monday table.parquet
  forebay snapshot restore /srv/forebay data monday tables/2026 latest
  forebay snapshot restore /srv/forebay data monday tables/2026 --to /tmp/look
  forebay snapshot restore /mnt/forebay data monday .
  forebay snapshot restore /srv/forebay data monday --all
  forebay snapshot restore /srv/forebay data monday --all --aside data-before --copy")]
    Restore {
        /// Home folder of the file system, or its mount point.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
        /// Name of the snapshot.
        name: String,
        /// Files and directories, from the top of the fileset; . for all of it.
        #[arg(required_unless_present = "all")]
        paths: Vec<PathBuf>,
        /// Existing directory to put them in [default: where they were].
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
        /// Take the whole fileset back at one moment.
        #[arg(long, conflicts_with_all = ["paths", "to"])]
        all: bool,
        /// Name that the fileset as it was gets [default: FILESET.aside].
        #[arg(long, value_name = "NAME", requires = "all")]
        aside: Option<String>,
        /// With --all: copy bytes whose blocks cannot be shared.
        #[arg(long, requires = "all")]
        copy: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make a new fileset that begins as a snapshot, and can be read and written like any other.
    ///
    /// The new fileset has the files, directories and attributes of the snapshot, and durability, placement and pool of its fileset;
    /// it has no quotas and no snapshots. It shares blocks with the snapshot until either is written, so it takes little space and a
    /// time that depends on the number of files, not on their bytes. Fileset, snapshot and clone are independent: each can be changed
    /// and deleted, in any order.
    ///
    /// Blocks are shared on XFS and Btrfs. On other disks, and in archives, the bytes must be copied: the command fails unless
    /// --copy allows that. Programs use all filesets meanwhile. If the command fails, nothing is left of the new fileset.
    #[command(after_help = "Examples:
  forebay snapshot clone /srv/forebay data monday trial
  forebay snapshot clone /srv/forebay data monday trial --copy --json")]
    Clone {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
        /// Name of the snapshot.
        name: String,
        /// Name of the new fileset, and of its directory.
        new: String,
        /// Copy bytes whose blocks cannot be shared.
        #[arg(long)]
        copy: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Have the daemon make snapshots at fixed times, and keep the latest ones.
    ///
    /// The daemon makes them while the file system is mounted. One that was missed, because it was not mounted or the
    /// machine was off, is made once when it is mounted again. They are named every-1h-2026-11-25T08:00:00Z; snapshots
    /// with other names are never deleted. The new snapshot is made before an old one is deleted. An attempt that fails is
    /// repeated after a minute; `list` and `forebay status` show why. The setting snapshot_schedules_max bounds their number.
    #[command(
        subcommand,
        after_help = "Examples:
  forebay snapshot schedule set /srv/forebay data --every 1h --keep 24 --every 1d --keep 7
  forebay snapshot schedule list /srv/forebay
  forebay snapshot schedule remove /srv/forebay data"
    )]
    Schedule(schedule::Action),
    /// Delete a snapshot. Space that only it takes is free when the command returns.
    ///
    /// A program that still reads the snapshot gets ESTALE (\"Stale file handle\"). An interrupted deletion is finished by
    /// the next mount.
    #[command(after_help = "Examples:\n  forebay snapshot delete /srv/forebay data monday")]
    Delete {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
        /// Name of the snapshot.
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Snapshot {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::Create { root, fileset, name, json } => create(&root, &fileset, &name, json)?,
            Action::List { root, fileset, json } => {
                show(&list(&root, fileset.as_deref())?, json)?;
            }
            Action::Rotate { root, fileset, prefix, keep, json } => {
                rotate(&root, &fileset, &prefix, keep, json)?;
            }
            Action::Diff { root, fileset, from, to, json } => {
                diff(&root, &fileset, &from, to.as_deref(), json)?;
            }
            Action::Restore { root, fileset, name, all: true, aside, copy, json, .. } => {
                let new = aside.unwrap_or_else(|| format!("{fileset}.aside"));
                clone::restore(&clone::Order { root, fileset, snapshot: name, new, copy, json })?;
            }
            Action::Restore { root, fileset, name, paths, to, json, .. } => {
                let order = restore::Order { root, fileset, snapshot: name, paths, to, json };
                return restore::run(&order);
            }
            Action::Clone { root, fileset, name, new, copy, json } => {
                clone::run(&clone::Order { root, fileset, snapshot: name, new, copy, json })?;
            }
            Action::Schedule(action) => return action.run(),
            Action::Delete { root, fileset, name, json } => delete(&root, &fileset, &name, json)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What the daemon or the file system itself answered.
type Said<T> = Result<std::result::Result<Answer, T>>;

fn snapshots(said: Said<Vec<SnapshotStatus>>) -> Result<Vec<SnapshotStatus>> {
    match said? {
        Ok(Answer::Snapshots { snapshots }) | Err(snapshots) => Ok(snapshots),
        Ok(_) => bail!("the daemon answered without snapshots; does it run another version?"),
    }
}

fn list(root: &Path, fileset: Option<&str>) -> Result<Vec<SnapshotStatus>> {
    let ask = Ask::Snapshots { fileset: fileset.map(str::to_owned) };
    snapshots(changed(root, &ask, |fs| Ok(fs.snapshots(fileset)?)))
}

fn make(root: &Path, fileset: &str, name: &str) -> Result<Vec<SnapshotStatus>> {
    let ask = Ask::CreateSnapshot { fileset: fileset.to_owned(), name: name.to_owned() };
    snapshots(changed(root, &ask, |fs| Ok(vec![fs.create_snapshot(fileset, name)?])))
}

/// Deletes a snapshot; how many objects went with it.
fn remove(root: &Path, fileset: &str, name: &str) -> Result<u64> {
    let ask = Ask::DeleteSnapshot { fileset: fileset.to_owned(), name: name.to_owned() };
    match changed(root, &ask, |fs| Ok(fs.delete_snapshot(fileset, name)?))? {
        Ok(Answer::SnapshotDeleted { objects }) | Err(objects) => Ok(objects),
        Ok(_) => bail!("the daemon's answer cannot be understood; does it run another version?"),
    }
}

fn rotate(root: &Path, fileset: &str, prefix: &str, keep: u64, json: bool) -> Result<()> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let made = make(root, fileset, &format!("{prefix}{now}"))?;
    let mut of_prefix = list(root, Some(fileset))?;
    of_prefix.retain(|snapshot| snapshot.name.starts_with(prefix));
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    // The oldest come first.
    let old = of_prefix.len().saturating_sub(keep);
    let mut deleted = Vec::new();
    for snapshot in &of_prefix[..old] {
        remove(root, fileset, &snapshot.name)
            .with_context(|| format!("snapshot {} was not deleted", snapshot.name))?;
        deleted.push(snapshot.name.clone());
    }
    if json {
        let value = serde_json::json!({ "created": made.first(), "deleted": deleted });
        return crate::output::put_json(&value);
    }
    for snapshot in &made {
        outln!("snapshot {} of fileset {fileset}; {} deleted", snapshot.name, deleted.len());
    }
    Ok(())
}

fn create(root: &Path, fileset: &str, name: &str, json: bool) -> Result<()> {
    let made = make(root, fileset, name)?;
    if json {
        return crate::output::put_json(&made.first());
    }
    for snapshot in &made {
        outln!(
            "snapshot {} of fileset {}: {} files and directories, {}; read it in .snapshots/{} of the fileset",
            snapshot.name,
            snapshot.fileset,
            snapshot.inodes,
            bytes(snapshot.bytes),
            snapshot.name
        );
    }
    Ok(())
}

fn diff(root: &Path, fileset: &str, from: &str, to: Option<&str>, json: bool) -> Result<()> {
    let ask = Ask::DiffSnapshots {
        fileset: fileset.to_owned(),
        from: from.to_owned(),
        to: to.map(str::to_owned),
    };
    let said =
        changed(root, &ask, |fs| Ok(fs.diff_snapshots(fileset, (from, to), CHANGES_MAX)?))?;
    let found = match said {
        Ok(Answer::SnapshotDiff(found)) | Err(found) => found,
        Ok(_) => bail!("the daemon's answer cannot be understood; does it run another version?"),
    };
    if json {
        return crate::output::put_json(&found);
    }
    for Change { path, change, from } in &found.changes {
        let shown = match change {
            ChangeKind::Created => "created   ",
            ChangeKind::Removed => "removed   ",
            ChangeKind::Modified => "modified  ",
            ChangeKind::Renamed => "renamed   ",
            ChangeKind::Attributes => "attributes",
        };
        match from {
            Some(from) => outln!("{shown} {from} -> {path}"),
            None => outln!("{shown} {path}"),
        }
    }
    let more = found.total.saturating_sub(found.changes.len() as u64);
    if more > 0 {
        outln!("and {more} more");
    }
    Ok(())
}

fn delete(root: &Path, fileset: &str, name: &str, json: bool) -> Result<()> {
    let objects = remove(root, fileset, name)?;
    if json {
        let value = serde_json::json!({ "fileset": fileset, "name": name, "objects": objects });
        return crate::output::put_json(&value);
    }
    outln!("snapshot {name} of fileset {fileset} is deleted: {objects} objects are removed");
    Ok(())
}

fn show(snapshots: &[SnapshotStatus], json: bool) -> Result<()> {
    if json {
        return crate::output::put_json(&snapshots);
    }
    let mut table = Table::new(&["FILESET", "SNAPSHOT", "CREATED", "FILES", "SPACE", "STATE"]);
    for snapshot in snapshots {
        table.row(vec![
            snapshot.fileset.clone(),
            snapshot.name.clone(),
            time(snapshot.created_seconds),
            snapshot.inodes.to_string(),
            bytes(snapshot.bytes),
            if snapshot.is_being_removed { "being deleted" } else { "ready" }.to_owned(),
        ]);
    }
    out!("{}", table.render());
    Ok(())
}

/// A moment in the time zone of this machine.
fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| seconds.to_string(),
        |time| {
            time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
        },
    )
}
