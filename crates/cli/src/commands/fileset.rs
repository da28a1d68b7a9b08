//! `forebay fileset`.

mod cache;
mod owner;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{Subcommand, ValueEnum};
use forebay_base::ByteSize;
use forebay_fs::mkfs::SCRATCH_MODE;
use forebay_fs::record::{Durability, Placement};
use forebay_fs::{FilesetStatus, Namespace, NewFileset};

use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::output::{Table, bytes};

/// List, create, change and remove filesets.
///
/// A fileset is a top-level directory with its own settings. The file system may be mounted or not.
/// Durability: in a strict fileset fsync returns when data and names are on stable storage; in a scratch
/// fileset it returns at once. Placement: the kernel itself reads and writes the files of a direct fileset
/// where it can; the daemon does so for a served fileset. Changes take effect for files that are opened
/// afterwards. A native fileset is a plain directory of one disk, for scratch: a mount by root
/// binds it in place, so programs use the disk itself, and its files follow the rules of that disk's file system. Only
/// a new fileset can be made native, and it stays native. In a cluster a native fileset has a directory for each node,
/// NAME/NODE, on a disk of that node; each of them is listed and removed as a fileset of its own. A cache fileset shows the files of
/// a directory of another file system, its home, and keeps what was read of them; it is read-only, or changes stay in it (local-update),
/// or they are written back in the background (single-writer). Not in a cluster.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay fileset list /srv/forebay
  forebay fileset create /srv/forebay models --durability strict
  forebay fileset create /srv/forebay scratch --placement native --mode 1777
  forebay fileset create /srv/forebay inputs --cache /mnt/nfs/inputs
  forebay fileset evict /srv/forebay inputs
  forebay fileset create /srv/forebay out --cache /mnt/nfs/out --cache-mode single-writer
  forebay fileset flush /srv/forebay out        wait until the home has all changes
  forebay fileset set /srv/forebay data --placement served
  forebay fileset set /srv/forebay models --copies 2
  forebay fileset remove /srv/forebay models
  forebay fileset remove /srv/forebay gone --lost
  forebay fileset create grid1 scratch --placement native   with a directory for each node
  forebay fileset owner data                    in a cluster: which node serves it")]
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
    #[command(after_help = "Examples:
  forebay fileset create /srv/forebay models --durability strict
  forebay fileset create /srv/forebay scratch --placement native --mode 1777
  forebay fileset create /srv/forebay inputs --cache /mnt/nfs/inputs --refresh 60
  forebay fileset create /srv/forebay trial --cache /mnt/nfs/inputs --cache-mode local-update
  forebay fileset create /srv/forebay out --cache /mnt/nfs/out --cache-mode single-writer")]
    Create {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset and its top-level directory.
        name: String,
        /// What fsync promises [default: strict]. Not allowed for a native fileset, where the disk's file system decides.
        #[arg(long, value_enum)]
        durability: Option<DurabilityArg>,
        /// Who reads and writes its files: the kernel itself (direct), the daemon (served), or the disk's own
        /// file system with nothing in between (native).
        #[arg(long, value_enum, default_value = "direct")]
        placement: NewPlacementArg,
        /// Disk for a native fileset, by the identity that `forebay status --json` shows [default: the suitable
        /// disk with the most space]. Not in a cluster, where it has a directory on a disk of each node.
        #[arg(long, value_name = "UUID")]
        disk: Option<String>,
        /// Pool of disks for its new files [default: default]. Not for a native fileset.
        #[arg(long)]
        pool: Option<String>,
        /// Number of failure groups of the pool in which each file is stored, 1 to 3. In a strict fileset fsync returns when the copies are
        /// on stable storage; other files are copied in the background while no program uses them. Not for a native
        /// fileset, and not in a cluster.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
        copies: u8,
        /// Permission bits of its directory, in octal digits [default: 755; for a cache those of its home; in a cluster 1777 for
        /// the node directories of a native fileset].
        #[arg(long, value_parser = octal)]
        mode: Option<u16>,
        #[command(flatten)]
        cache: cache::CacheArgs,
    },
    /// Change a fileset.
    #[command(after_help = "Examples:
  forebay fileset set /srv/forebay data --placement served
  forebay fileset set /srv/forebay data --pool flash
  forebay fileset set /srv/forebay data --copies 2")]
    Set {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset, which holds everything outside the named filesets.
        name: String,
        /// What fsync promises.
        #[arg(long, value_enum, required_unless_present_any = ["placement", "pool", "copies"])]
        durability: Option<DurabilityArg>,
        /// Who reads and writes its files: the kernel itself (direct) or the daemon (served).
        #[arg(long, value_enum)]
        placement: Option<PlacementArg>,
        /// Pool of disks for its new files. Existing files stay where they are.
        #[arg(long)]
        pool: Option<String>,
        /// Number of failure groups of the pool in which each file is stored, 1 to 3. Copies of existing files are made, or removed,
        /// in the background.
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=3))]
        copies: Option<u8>,
    },
    /// Remove an empty fileset, or one that is lost.
    #[command(after_help = "Examples:
  forebay fileset remove /srv/forebay models
  forebay fileset remove /srv/forebay models --lost")]
    Remove {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset.
        name: String,
        /// Remove a fileset whose store is missing, or a native one that is no longer on its disk, with whatever
        /// remains of it: its files are lost. Fails if the fileset can be reached, or is damaged but might be repaired.
        #[arg(long)]
        lost: bool,
    },
    /// Free the space of files of a cache that no program has open, beginning with those fetched longest ago.
    ///
    /// They are fetched again from the home when they are opened. Names and attributes stay.
    #[command(after_help = "Examples:
  forebay fileset evict /srv/forebay inputs
  forebay fileset evict /srv/forebay inputs --keep 200GiB")]
    Evict {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset.
        name: String,
        /// How much may stay, such as 200GiB.
        #[arg(long, value_name = "SIZE", default_value = "0")]
        keep: ByteSize,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Wait until all changes of a single-writer cache that were made until now are at its home.
    ///
    /// They are written back at once, without their delay. Progress goes to standard error. Files that programs have open for
    /// writing are written as they are now, and once more after they are closed. Exits with 0 when all are written back, 2 when
    /// the time is over before, and 1 for an error. The file system may be mounted or not.
    #[command(after_help = "Examples:
  forebay fileset flush /srv/forebay out
  forebay fileset flush /srv/forebay out --timeout 600")]
    Flush {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset.
        name: String,
        /// Seconds after which to give up waiting; 0 waits without a limit. The changes stay in the queue.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        timeout: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List what others changed at the home of a single-writer cache where it writes, and where their versions are kept.
    #[command(after_help = "Examples:
  forebay fileset conflicts /srv/forebay out
  forebay fileset conflicts /srv/forebay out --forget")]
    Conflicts {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset.
        name: String,
        /// Remove them from the list after printing it. The kept files stay at the home.
        #[arg(long)]
        forget: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    Owner(owner::Owner),
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

/// The placements that a new fileset can have.
#[derive(Clone, Copy, ValueEnum)]
pub enum NewPlacementArg {
    /// The kernel itself reads and writes its files, where it can.
    Direct,
    /// The daemon reads and writes its files.
    Served,
    /// The fileset is a plain directory of a disk.
    Native,
}

impl From<NewPlacementArg> for Placement {
    fn from(arg: NewPlacementArg) -> Placement {
        match arg {
            NewPlacementArg::Direct => Placement::Direct,
            NewPlacementArg::Served => Placement::Served,
            NewPlacementArg::Native => Placement::Native,
        }
    }
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
            Action::Create {
                root,
                name,
                durability,
                placement,
                disk,
                pool,
                copies,
                mode,
                cache,
            } => {
                let placement = placement.into();
                ensure!(
                    pool.is_none() || placement != Placement::Native,
                    "--pool is not for a native fileset, which lies on one disk: name that with --disk"
                );
                check_native(placement, durability, disk.as_deref())?;
                let durability = durability.map_or(Durability::Strict, Into::into);
                let is_shared = Home::at(&root).is_ok_and(|home| home.node().is_some());
                let cache = cache.settings(&root)?;
                let mode = match (mode, &cache) {
                    (Some(mode), _) => mode,
                    (None, Some(cache)) => cache::mode_of_home(cache)?,
                    (None, None) if placement == Placement::Native && is_shared => SCRATCH_MODE,
                    (None, None) => 0o755,
                };
                let new = NewFileset { name, durability, placement, disk, pool, mode };
                ensure!(
                    cache.is_none() || copies == 1,
                    "--copies is not for a cache, whose bytes are at home; omit it"
                );
                let ask = Ask::CreateFileset { new: new.clone(), copies, cache: cache.clone() };
                change(&root, &ask, |fs| match &cache {
                    Some(cache) => fs.add_cache(&new, cache),
                    None => fs.add_fileset_with_copies(&new, copies),
                })?;
            }
            Action::Set { root, name, durability, placement, pool, copies } => {
                if let Some(pool) = &pool {
                    let ask = Ask::SetPool { name: name.clone(), pool: pool.clone() };
                    change(&root, &ask, |fs| fs.set_fileset_pool(&name, pool))?;
                }
                if let Some(copies) = copies {
                    let ask = Ask::SetCopies { name: name.clone(), copies };
                    change(&root, &ask, |fs| fs.set_fileset_copies(&name, copies))?;
                }
                if durability.is_none() && placement.is_none() {
                    return Ok(ExitCode::SUCCESS);
                }
                let (durability, placement) =
                    (durability.map(Into::into), placement.map(Into::into));
                let ask = Ask::SetFileset { name: name.clone(), durability, placement };
                change(&root, &ask, |fs| fs.set_fileset(&name, durability, placement))?;
            }
            Action::Remove { root, name, lost } => {
                let ask = Ask::RemoveFileset { name: name.clone(), lost };
                change(&root, &ask, |fs| {
                    if lost { fs.remove_lost_fileset(&name) } else { fs.remove_fileset(&name) }
                })?;
            }
            Action::Evict { root, name, keep, json } => cache::evict(&root, &name, keep, json)?,
            Action::Flush { root, name, timeout, json } => {
                return cache::flush(&root, &name, timeout, json);
            }
            Action::Conflicts { root, name, forget, json } => {
                cache::conflicts(&root, &name, forget, json)?;
            }
            Action::Owner(owner) => owner.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses options that make no sense together.
fn check_native(
    placement: Placement,
    durability: Option<DurabilityArg>,
    disk: Option<&str>,
) -> Result<()> {
    match placement {
        Placement::Native => ensure!(
            durability.is_none(),
            "--durability does not apply to a native fileset, where the disk's own file system decides what fsync \
             promises; omit it"
        ),
        Placement::Direct | Placement::Served => ensure!(
            disk.is_none(),
            "--disk applies only to a native fileset: add --placement native, or omit --disk"
        ),
    }
    Ok(())
}

/// Has the daemon make a change, or makes it in the unmounted file system.
fn change(
    root: &Path,
    ask: &Ask,
    make: impl FnOnce(&Namespace) -> forebay_fs::Result<()>,
) -> Result<()> {
    let home = Home::at(root)?;
    if home.try_lock()?.is_none() {
        control::ask(home.root(), ask)?;
        return Ok(());
    }
    let (fs, _lock) = home.open()?.into_file_system(&home)?;
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
        forebay_fs::offline::look(&open.stores, &open.disks)?.filesets
    };
    if json {
        crate::output::put_json(&filesets)?;
        return Ok(());
    }
    let mut table =
        Table::new(&["FILESET", "DURABILITY", "PLACEMENT", "POOL", "COPIES", "FILES", "BYTES"]);
    for fileset in &filesets {
        table.row(cells(fileset));
    }
    out!("{}", table.render());
    print_problems(&filesets)
}

/// Prints why filesets cannot be used.
pub fn print_problems(filesets: &[FilesetStatus]) -> Result<()> {
    for fileset in filesets {
        if let Some(problem) = &fileset.problem {
            outln!("  fileset {} cannot be used: {problem}", fileset.name);
        }
        if let Some(of) = &fileset.cache {
            outln!("  fileset {}: {}", fileset.name, cache::shown(of));
        }
        if fileset.waiting_for_copies > 0 {
            outln!(
                "  fileset {}: {} files wait for copies, or are in use",
                fileset.name,
                fileset.waiting_for_copies
            );
        }
        if let Some(problem) = &fileset.copies_problem {
            outln!(
                "  fileset {}: files have fewer copies than they are to have: {problem}",
                fileset.name
            );
        }
        for file in &fileset.damaged {
            let unnamed = || format!("inode {} of fileset {}", file.ino, fileset.name);
            outln!("  damaged: {}: {}", file.path.clone().unwrap_or_else(unnamed), file.what);
        }
    }
    Ok(())
}

fn known(fileset: &FilesetStatus, text: String) -> String {
    if fileset.problem.is_none() { text } else { "?".to_owned() }
}

/// The cells of a fileset's row.
pub fn cells(fileset: &FilesetStatus) -> Vec<String> {
    let durability = match (fileset.placement, fileset.durability) {
        (Placement::Native, _) => "local",
        (_, Durability::Strict) => "strict",
        (_, Durability::Scratch) => "scratch",
    };
    let placement = match fileset.placement {
        Placement::Direct => "direct",
        Placement::Served => "served",
        Placement::Native => "native",
    };
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        fileset.name.clone(),
        durability.to_owned(),
        placement.to_owned(),
        or_unknown(fileset.pool.clone()),
        or_unknown(fileset.copies.map(|copies| copies.to_string())),
        known(fileset, or_unknown(fileset.files.map(|files| files.to_string()))),
        known(fileset, or_unknown(fileset.bytes.map(bytes))),
    ]
}
