//! `forebay disk`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_base::ByteSize;
use forebay_fs::record::{DEFAULT_POOL, DiskUse};
use forebay_fs::tasks::{TaskState, TaskStatus};
use forebay_fs::{DiskStatus, LostDisk, Namespace};

use crate::control::{self, Answer, Ask};
use crate::home::disks::{self, Wanted, WantedStriped};
use crate::home::{Home, archive};
use crate::output::{Table, bytes};

/// List, add, empty and remove the disks of a file system.
///
/// A disk is a directory on a disk of this machine, or an archive: an S3 bucket (s3://BUCKET/FOLDER) or a directory elsewhere
/// (file:///DIRECTORY), where files lie compressed until somebody uses them (`forebay migrate --help`). Each belongs to a pool (flash, disk, archive, or any other name):
/// new files lie on the disks of their fileset's pool, which `forebay fileset set --pool` chooses. The file system may be
/// mounted or not, and programs continue meanwhile. Draining and rebalancing are background tasks (`forebay tasks`)
/// while it is mounted; otherwise the command itself does the work.
///
/// In a cluster, run the commands on a node that has mounted it, with the name of the cluster as ROOT. A disk is added on the
/// node that has it; one on storage that all nodes mount (--shared) on any node. The other commands work for the disks of all
/// nodes: name a disk of another node as NODE:DIRECTORY.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay disk list /srv/forebay
  forebay disk add /srv/forebay /mnt/nvme1/forebay --pool flash
  forebay disk add /srv/forebay s3://lab-cold/forebay --pool archive
  forebay disk stripe /srv/forebay --over flash --pool wide
  forebay disk label /srv/forebay /mnt/nvme1/forebay --group rack-2
  forebay disk drain /srv/forebay /mnt/old/forebay --wait
  forebay disk remove /srv/forebay /mnt/old/forebay
  forebay disk rebalance /srv/forebay --pool flash

In a cluster:
  forebay disk list grid1
  forebay disk add grid1 /mnt/nvme1/forebay --pool flash      on the node with that directory
  forebay disk add grid1 /mnt/gpfs/forebay --shared     all nodes mount /mnt/gpfs
  forebay disk drain grid1 host2:/mnt/old/forebay --wait      on any node
  forebay disk remove grid1 host2:/mnt/old/forebay")]
pub struct Disk {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List disks with their pools, sizes and use.
    ///
    /// FILES is the sum of the sizes of the files that lie on a disk, STORED what they take there: less if they are compressed (in
    /// archives) or sparse. Copies of files count in OBJECTS alone.
    #[command(after_help = "Examples:
  forebay disk list /srv/forebay
  forebay disk list /srv/forebay --json | jq '.[] | {uuid, pool}'")]
    List {
        /// Home folder of the file system.
        root: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a disk, on which new files of its pool lie from now on, or an archive.
    ///
    /// The pool of an archive consists of archives alone. Endpoint, region and keys of S3 come from ROOT/s3.toml (endpoint,
    /// region, access_key, secret_key; mode 600), otherwise from the environment of the daemon (AWS_ENDPOINT_URL,
    /// AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or the role of the machine).
    #[command(after_help = "Examples:
  forebay disk add /srv/forebay /mnt/nvme1/forebay
  forebay disk add /srv/forebay /mnt/hdd/forebay --pool slow --group shelf-1
  forebay disk add /srv/forebay s3://lab-cold/forebay --pool archive
  forebay disk add /srv/forebay file:///mnt/nas/forebay --pool archive
  forebay disk add grid1 /mnt/gpfs/forebay --shared --pool shared   all nodes mount /mnt/gpfs")]
    Add {
        /// Home folder of the file system.
        root: PathBuf,
        /// Existing, empty directory on the disk, or the address of an archive.
        #[arg(value_name = "DIRECTORY|ADDRESS")]
        directory: PathBuf,
        /// Pool that it belongs to.
        #[arg(long, default_value = DEFAULT_POOL)]
        pool: String,
        /// Failure group: disks that may fail together have the same [default: it fails alone].
        #[arg(long, default_value = "", hide_default_value = true)]
        group: String,
        /// The directory lies on storage that all nodes of the cluster mount under this path (NFS, CephFS, Lustre, GPFS): every
        /// node reads and writes its files directly, and they stay available when a node is lost.
        #[arg(long)]
        shared: bool,
    },
    /// Add a disk over other disks: each of its files lies on all of them, and is read and written at the speed of all.
    ///
    /// Its pool consists of striped disks alone. Large files move there by a policy (`forebay policy`) or `forebay migrate`,
    /// and the new files of a fileset lie there if that has its pool. The disks below stay in use for other files; a
    /// striped disk has as much room as they have free, bounded by the fullest. If one of them is lost, so are its files: keep
    /// second copies (`forebay fileset set --copies`) of what must survive that.
    #[command(after_help = "Examples:
  forebay disk stripe /srv/forebay /mnt/nvme1/forebay /mnt/nvme2/forebay --pool wide
  forebay disk stripe /srv/forebay --over flash --unit 4MiB --pool wide
  forebay migrate /mnt/forebay/data/big.parquet --to wide")]
    Stripe {
        /// Home folder of the file system.
        root: PathBuf,
        /// Directories of the disks to lie over, or their identities, or the beginnings of those.
        #[arg(required_unless_present = "over", value_name = "DISK")]
        disks: Vec<String>,
        /// Lie over all disks of this pool that take new files.
        #[arg(long, value_name = "POOL", conflicts_with = "disks")]
        over: Option<String>,
        /// Consecutive bytes of a file that lie on one disk: 64 KiB to 64 MiB.
        #[arg(long, default_value = "1MiB")]
        unit: ByteSize,
        /// Pool that it belongs to.
        #[arg(long)]
        pool: String,
        /// Failure group [default: it fails with each of the disks below].
        #[arg(long, default_value = "", hide_default_value = true)]
        group: String,
    },
    /// Change the pool or failure group of a disk. Files that lie on it stay there.
    #[command(after_help = "Examples:
  forebay disk label /srv/forebay /mnt/hdd/forebay --pool archive
  forebay disk label /srv/forebay 1f0c --group shelf-2")]
    Label {
        /// Home folder of the file system.
        root: PathBuf,
        /// Directory of the disk, or its identity, or the beginning of that.
        disk: String,
        /// Pool that it is to belong to.
        #[arg(long, required_unless_present = "group")]
        pool: Option<String>,
        /// Failure group; an empty text if it fails alone.
        #[arg(long)]
        group: Option<String>,
    },
    /// Move everything off a disk, to others of its pool.
    ///
    /// From now on no new file lies on it. Files at rest are copied, synced and switched one by one; a file that a program
    /// has open is moved when it is closed. A crash loses nothing: the next mount goes on.
    #[command(after_help = "Examples:
  forebay disk drain /srv/forebay /mnt/old/forebay
  forebay disk drain /srv/forebay /mnt/old/forebay --to flash --wait")]
    Drain {
        /// Home folder of the file system.
        root: PathBuf,
        /// Directory of the disk, or its identity, or the beginning of that.
        disk: String,
        /// Pool that the files go to [default: that of the disk].
        #[arg(long, value_name = "POOL")]
        to: Option<String>,
        /// Wait until the disk is empty, and report progress.
        #[arg(long)]
        wait: bool,
        /// Print the task as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Have a disk that was drained take new files again.
    #[command(after_help = "Examples:\n  forebay disk use /srv/forebay /mnt/old/forebay")]
    Use {
        /// Home folder of the file system.
        root: PathBuf,
        /// Directory of the disk, or its identity, or the beginning of that.
        disk: String,
    },
    /// Take away a disk that is empty, or give up one that is lost.
    ///
    /// The directory of an empty disk loses its label and can be used for something else. A lost disk takes along the files
    /// that lie on it, which are listed: they keep their names, and cannot be opened. Once they are removed or replaced,
    /// `forebay disk remove` takes the lost disk off the list.
    #[command(after_help = "Examples:
  forebay disk remove /srv/forebay /mnt/old/forebay
  forebay disk remove /srv/forebay /mnt/dead/forebay --lost --json")]
    Remove {
        /// Home folder of the file system.
        root: PathBuf,
        /// Directory of the disk, or its identity, or the beginning of that.
        disk: String,
        /// Give up a disk that is not there and will not come back, and list the files that are lost with it.
        #[arg(long)]
        lost: bool,
        /// Print the files that are lost as JSON.
        #[arg(long, requires = "lost")]
        json: bool,
    },
    /// Even out the fill of the disks of a pool.
    #[command(after_help = "Examples:
  forebay disk rebalance /srv/forebay
  forebay disk rebalance /srv/forebay --pool archive --wait")]
    Rebalance {
        /// Home folder of the file system.
        root: PathBuf,
        /// The pool.
        #[arg(long, default_value = DEFAULT_POOL)]
        pool: String,
        /// Wait until it is done, and report progress.
        #[arg(long)]
        wait: bool,
        /// Print the task as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Files of a lost disk that are listed.
pub const LOST_MAX: usize = 10_000;

impl Disk {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::List { root, json } => list(&root, json)?,
            Action::Add { root, directory, pool, group, shared } => {
                // The daemon has another current directory.
                let is_archive = directory.to_str().is_some_and(archive::is_archive);
                let directory =
                    if is_archive { directory } else { std::path::absolute(&directory)? };
                let ask = Ask::AddDisk {
                    directory: directory.clone(),
                    pool: pool.clone(),
                    group: group.clone(),
                    shared,
                };
                let home = Home::at(&root)?;
                let wanted =
                    Wanted { path: &directory, pool: &pool, group: &group, is_shared: shared };
                change(&root, &ask, |fs| disks::add(fs, home.root(), &wanted))?;
            }
            Action::Stripe { root, disks, over, unit, pool, group } => {
                stripe(&root, &disks, over.as_deref(), unit, (&pool, &group))?;
            }
            Action::Label { root, disk, pool, group } => {
                let ask =
                    Ask::LabelDisk { disk: place(&disk), pool: pool.clone(), group: group.clone() };
                change(&root, &ask, |fs| {
                    Ok(fs.label_disk(&place(&disk), pool.as_deref(), group.as_deref())?)
                })?;
            }
            Action::Drain { root, disk, to, wait, json } => {
                let ask = Ask::DrainDisk { disk: place(&disk), to: to.clone() };
                let begin = |fs: &Namespace| Ok(fs.drain_disk(&place(&disk), to.as_deref())?);
                task(&root, &ask, begin, Show { wait, json })?;
            }
            Action::Use { root, disk } => {
                let ask = Ask::UseDisk { disk: place(&disk) };
                change(&root, &ask, |fs| Ok(fs.use_disk_again(&place(&disk))?))?;
            }
            Action::Remove { root, disk, lost: false, .. } => {
                let ask = Ask::RemoveDisk { disk: place(&disk) };
                let home = Home::at(&root)?;
                change(&root, &ask, |fs| disks::remove(fs, home.root(), &place(&disk)))?;
            }
            Action::Remove { root, disk, lost: true, json } => give_up(&root, &place(&disk), json)?,
            Action::Rebalance { root, pool, wait, json } => {
                let ask = Ask::Rebalance { pool: pool.clone() };
                task(&root, &ask, |fs| Ok(fs.rebalance(&pool)?), Show { wait, json })?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Units of a striped disk that are worth their calls, and that keep its disks about equally busy.
const UNITS: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;

fn stripe(
    root: &Path,
    disks: &[String],
    over: Option<&str>,
    unit: ByteSize,
    (pool, group): (&str, &str),
) -> Result<()> {
    let unit_bytes = unit.0;
    if !UNITS.contains(&unit_bytes) || !unit_bytes.is_multiple_of(4096) {
        bail!("--unit {unit}: choose 64KiB to 64MiB, a multiple of 4KiB");
    }
    let disks: Vec<String> = disks.iter().map(|disk| place(disk)).collect();
    let ask = Ask::StripeDisks {
        disks: disks.clone(),
        over: over.map(str::to_owned),
        unit_bytes,
        pool: pool.to_owned(),
        group: group.to_owned(),
    };
    let wanted = WantedStriped { disks: &disks, over, unit_bytes, pool, group };
    change(root, &ask, |fs| disks::stripe(fs, &wanted))
}

/// What somebody means by a disk: its directory as the file system knows it, where there is one.
fn place(disk: &str) -> String {
    let path = Path::new(disk);
    if !path.is_absolute() && disk.contains(":/") {
        // A disk of another node.
        return disk.to_owned();
    }
    if archive::is_archive(disk) {
        return archive::normal(disk).unwrap_or_else(|_| disk.to_owned());
    }
    if !path.is_absolute() && !disk.contains('/') {
        return disk.to_owned();
    }
    path.canonicalize().map_or_else(|_| disk.to_owned(), |path| path.display().to_string())
}

/// Has the daemon make a change, or makes it in the unmounted file system.
pub fn change(root: &Path, ask: &Ask, make: impl FnOnce(&Namespace) -> Result<()>) -> Result<()> {
    changed(root, ask, make).map(drop)
}

/// As [`change`]; what the daemon or `make` answered.
pub fn changed<T>(
    root: &Path,
    ask: &Ask,
    make: impl FnOnce(&Namespace) -> Result<T>,
) -> Result<std::result::Result<Answer, T>> {
    let home = Home::at(root)?;
    if home.try_lock()?.is_none() {
        return Ok(Ok(control::ask(home.root(), ask)?));
    }
    let (fs, _lock) = home.open()?.into_file_system(&home)?;
    let made = make(&fs);
    fs.close().context("the file system could not be closed cleanly")?;
    Ok(Err(made?))
}

#[derive(Clone, Copy)]
pub struct Show {
    pub wait: bool,
    pub json: bool,
}

/// Begins a task: one of the background where the file system is mounted; otherwise it is done here.
pub fn task(
    root: &Path,
    ask: &Ask,
    begin: impl FnOnce(&Namespace) -> Result<u64>,
    show: Show,
) -> Result<()> {
    let done_here = |fs: &Namespace| {
        let number = begin(fs)?;
        fs.work_through(number, &mut |status| {
            if !show.json {
                note!("{}", super::tasks::line(status));
            }
        })?;
        let found = fs.task_status().into_iter().find(|task| task.id == number);
        found.context("the task is gone")
    };
    let status = match changed(root, ask, done_here)? {
        Ok(Answer::Task(status)) if show.wait => follow(root, *status, show)?,
        Ok(Answer::Task(status)) => {
            if !show.json {
                outln!(
                    "task {} has begun: {}; `forebay tasks list` shows how far it is",
                    status.id,
                    status.title
                );
            }
            *status
        }
        Ok(_) => bail!("the daemon answered without a task; does it run another version?"),
        Err(status) => status,
    };
    if show.json {
        crate::output::put_json(&status)?;
    }
    Ok(())
}

/// Waits for the end of a task of a daemon.
fn follow(root: &Path, mut status: TaskStatus, show: Show) -> Result<TaskStatus> {
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
    let home = Home::at(root)?;
    let mut shown = String::new();
    loop {
        let line = super::tasks::line(&status);
        if !show.json && line != shown {
            note!("{line}");
            shown = line;
        }
        match status.state {
            TaskState::Done => return Ok(status),
            TaskState::Cancelled => bail!("task {} was cancelled", status.id),
            TaskState::Running | TaskState::Paused => {}
        }
        std::thread::sleep(PAUSE);
        let Answer::Tasks { tasks } = control::ask(home.root(), &Ask::Tasks)? else {
            bail!("the daemon answered without tasks; does it run another version?");
        };
        let found = tasks.into_iter().find(|task| task.id == status.id);
        status = found.with_context(|| format!("task {} is not listed any more", status.id))?;
    }
}

fn give_up(root: &Path, disk: &str, json: bool) -> Result<()> {
    let ask = Ask::GiveUpDisk { disk: disk.to_owned() };
    let lost = match changed(root, &ask, |fs| Ok(fs.give_up_disk(disk, LOST_MAX)?))? {
        Ok(Answer::LostDisk(lost)) | Err(lost) => lost,
        Ok(_) => bail!("the daemon answered without a list; does it run another version?"),
    };
    if json {
        return crate::output::put_json(&lost);
    }
    print_lost(&lost)
}

fn print_lost(lost: &LostDisk) -> Result<()> {
    outln!("{} files are lost with the disk", lost.total);
    for file in &lost.files {
        outln!("  {}", file.path.clone().unwrap_or_else(|| format!("inode {}", file.ino)));
    }
    let more = lost.total.saturating_sub(lost.files.len() as u64);
    if more > 0 {
        outln!("  and {more} more");
    }
    for unknown in &lost.unknown {
        outln!("  not known: {unknown}");
    }
    Ok(())
}

fn list(root: &Path, json: bool) -> Result<()> {
    let home = Home::at(root)?;
    let disks = if home.try_lock()?.is_none() {
        match control::ask(home.root(), &Ask::Disks)? {
            Answer::Disks { disks } => disks,
            _ => bail!("the daemon answered without disks; does it run another version?"),
        }
    } else {
        let open = home.open()?;
        forebay_fs::offline::look(&open.stores, &open.disks)?.disks
    };
    if json {
        return crate::output::put_json(&disks);
    }
    let of_nodes = home.node().is_some();
    let columns = [
        "DISK",
        "ID",
        "POOL",
        "GROUP",
        "USE",
        "KIND",
        "SIZE",
        "AVAILABLE",
        "FULL",
        "OBJECTS",
        "FILES",
        "STORED",
    ];
    let columns: Vec<&str> =
        of_nodes.then_some(["NODE", "STATE"]).into_iter().flatten().chain(columns).collect();
    let mut table = Table::new(&columns);
    for disk in &disks {
        let state = if disk.problem.is_some() { "unreachable" } else { "up" };
        let nobody = if disk.is_shared { "all" } else { "-" };
        let node = disk.node.clone().unwrap_or_else(|| nobody.to_owned());
        let of_node = of_nodes.then(|| [node, state.to_owned()]).into_iter().flatten();
        table.row(of_node.chain(cells(disk)).collect());
    }
    out!("{}", table.render());
    for disk in &disks {
        if let Some(problem) = &disk.problem {
            outln!("  {} is unreachable: {problem}", disk.location);
        }
        for advice in &disk.advice {
            outln!("  note on {}: {advice}", disk.location);
        }
    }
    Ok(())
}

fn cells(disk: &DiskStatus) -> Vec<String> {
    let used = match disk.used {
        DiskUse::Normal => "normal",
        DiskUse::Draining => "draining",
        DiskUse::Lost => "lost",
        DiskUse::Removed => "removed",
    };
    let taken = u128::from(disk.total_bytes.saturating_sub(disk.available_bytes));
    let full = taken * 100 / u128::from(disk.total_bytes.max(1));
    // An archive has no size of its own.
    let sized = |text: String| if disk.total_bytes == 0 { "-".to_owned() } else { text };
    vec![
        disk.location.clone(),
        disk.uuid.chars().take(8).collect(),
        disk.pool.clone(),
        if disk.group.is_empty() { "-".to_owned() } else { disk.group.clone() },
        used.to_owned(),
        disk.kind.clone(),
        sized(bytes(disk.total_bytes)),
        sized(bytes(disk.available_bytes)),
        sized(format!("{full} %")),
        disk.objects_in_use.to_string(),
        disk.files.map_or("-".to_owned(), |files| bytes(files.bytes)),
        disk.files.map_or("-".to_owned(), |files| bytes(files.stored_bytes)),
    ]
}
