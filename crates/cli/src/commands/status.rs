//! `forebay status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use forebay_fs::record::MountState;
use forebay_fs::{ArchiveStatus, DiskStatus, PartialReads};

use crate::control::{self, Answer, Ask, MountStatus, Status as Found};
use crate::home::Home;
use crate::output::{Table, bytes};

/// Show the state of a file system: disks, filesets, commits, kernel features in use.
///
/// The file system may be mounted or not.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay status /srv/forebay
  forebay status /srv/forebay --json | jq .filesets")]
pub struct Status {
    /// Home folder of the file system.
    root: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub fn run(self) -> Result<ExitCode> {
        let found = find(&Home::at(&self.root)?)?;
        if self.json {
            crate::output::put_json(&found)?;
        } else {
            print(&found)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Asks the daemon, or looks into the unmounted file system.
fn find(home: &Home) -> Result<Found> {
    if home.try_lock()?.is_none() {
        if let Answer::Status(found) = control::ask(home.root(), &Ask::Status)? {
            return Ok(*found);
        }
        anyhow::bail!("the daemon's answer lacks a status; is it a different version?");
    }
    let open = home.open()?;
    let found = forebay_fs::offline::look(&open.stores, &open.disks)?;
    Ok(Found {
        root: home.root().to_owned(),
        uuid: found.superblock.uuid,
        mount: None,
        clean: found.superblock.state == MountState::Clean,
        disks: found.disks,
        filesets: found.filesets,
        store_bytes: found.store_bytes,
    })
}

fn print(found: &Found) -> Result<()> {
    outln!("file system  {} ({})", found.root.display(), found.uuid);
    match &found.mount {
        Some(mount) => print_mount(mount)?,
        None if found.clean => outln!("mounted      no (clean)"),
        None => outln!(
            "mounted      no (the last daemon died; the next mount recovers the file system)"
        ),
    }
    outln!("stores       {}", bytes(found.store_bytes));
    print_effective(&found.disks)?;
    let mut disks =
        Table::new(&["DISK", "POOL", "KIND", "SIZE", "AVAILABLE", "OBJECTS", "SPARE", "ERRORS"]);
    for disk in &found.disks {
        // An archive has no size of its own.
        let sized = |size| if disk.total_bytes == 0 { "-".to_owned() } else { bytes(size) };
        disks.row(vec![
            disk.location.clone(),
            disk.pool.clone(),
            disk.kind.clone(),
            sized(disk.total_bytes),
            sized(disk.available_bytes),
            disk.objects_in_use.to_string(),
            disk.spare_objects.to_string(),
            disk.errors.to_string(),
        ]);
    }
    out!("\n{}", disks.render());
    for disk in &found.disks {
        if let Some(error) = &disk.last_error {
            outln!("  last error of {}: {error}", disk.location);
        }
        if disk.reserve_held_bytes < disk.reserve_bytes {
            outln!(
                "  reserve of {}: {} of {} held; the disk is full or nearly full, and below half of the \
                 reserve no new file gets any bytes",
                disk.location,
                bytes(disk.reserve_held_bytes),
                bytes(disk.reserve_bytes)
            );
        }
        if let Some(archive) = &disk.archive {
            print_archive(&disk.location, archive)?;
        }
        if let Some(more) = disk.premigrated.filter(|more| more.files > 0) {
            outln!(
                "  {} premigrated files ({}) lie there and here, and take {} there",
                more.files,
                bytes(more.bytes),
                bytes(more.stored_bytes)
            );
        }
        for advice in &disk.advice {
            outln!("  note on {}: {advice}", disk.location);
        }
    }
    let mut filesets =
        Table::new(&["FILESET", "DURABILITY", "PLACEMENT", "POOL", "COPIES", "FILES", "BYTES"]);
    for fileset in &found.filesets {
        filesets.row(super::fileset::cells(fileset));
    }
    out!("\n{}", filesets.render());
    super::fileset::print_problems(&found.filesets)
}

/// What files hold against what they take, on all disks of which that is known.
fn print_effective(disks: &[DiskStatus]) -> Result<()> {
    let known = disks.iter().filter_map(|disk| disk.files);
    let (size, stored) = known.fold((0, 0_u64), |(size, stored): (u64, u64), files| {
        (size.saturating_add(files.bytes), stored.saturating_add(files.stored_bytes))
    });
    if stored > 0 {
        outln!("files        {} in {} ({})", bytes(size), bytes(stored), ratio(size, stored));
    }
    Ok(())
}

/// How many bytes of files each stored byte holds.
#[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(size: u64, stored: u64) -> String {
    format!("{:.2} to 1", size as f64 / stored as f64)
}

fn print_archive(location: &str, archive: &ArchiveStatus) -> Result<()> {
    let ArchiveStatus { archived, recalled, partial, requests } = archive;
    let all = requests.puts + requests.gets + requests.lists + requests.removals;
    let failed = |failures: u64| match failures {
        0 => String::new(),
        count => format!(" ({count} FAILED)"),
    };
    outln!(
        "  since the mount {location} took {} files ({}){}, gave back {} ({}){}, and answered {all} requests{}",
        archived.files,
        bytes(archived.bytes),
        failed(archived.failures),
        recalled.files,
        bytes(recalled.bytes),
        failed(recalled.failures),
        failed(requests.failures)
    );
    if *partial != PartialReads::default() {
        outln!(
            "  files that stay in {location} were read in {} ranges ({} in {} frames); {} reads were served from memory{}",
            partial.ranges,
            bytes(partial.bytes),
            partial.frames,
            partial.hits,
            failed(partial.failures)
        );
    }
    Ok(())
}

fn print_mount(mount: &MountStatus) -> Result<()> {
    outln!("mounted      at {}, process {}", mount.mountpoint.display(), mount.pid);
    let error =
        mount.commit_error.as_ref().map_or(String::new(), |why| format!("; FAILING: {why}"));
    outln!(
        "commit       {:.1} s old, {} records uncommitted{error}",
        mount.commit_age_seconds,
        mount.uncommitted
    );
    let path = match &mount.passthrough_closed {
        None => "passthrough".to_owned(),
        Some(why) => format!("served only ({why})"),
    };
    outln!("data path    {path}");
    outln!("requests     {}; protocol {}", transport(mount), mount.protocol);
    outln!(
        "memory       {} inodes cached, {}; {} objects open, {} of them spare",
        mount.cached_inodes,
        bytes(mount.cache_bytes as u64),
        mount.open_objects,
        mount.spare_objects
    );
    for native in &mount.native {
        let name = &native.fileset;
        match (&native.tree, &native.fault) {
            (_, Some(fault)) => outln!("native       {name} CANNOT BE REACHED: {fault}"),
            (Some(tree), None) if native.is_bound => {
                outln!("native       {name} is {}", tree.display());
            }
            (Some(tree), None) => {
                outln!("native       {name} is {}, served by the daemon", tree.display());
            }
            (None, None) => outln!("native       {name} is on its node, and served by its daemon"),
        }
    }
    for fault in &mount.placing_faults {
        outln!("placement    RULE IGNORED: {fault}");
    }
    if let Some(fault) = &mount.schedules_fault {
        outln!("snapshots    NO SCHEDULE IS CARRIED OUT: {fault}");
    }
    for schedule in &mount.schedules {
        if let Some(error) = &schedule.error {
            let every = crate::schedules::shown(schedule.interval.every_seconds);
            outln!("snapshots    of {} every {every} FAIL: {error}", schedule.fileset);
        }
    }
    if !mount.reserve_held {
        outln!("reserve      released: the disk of the home folder is full or nearly full");
    }
    Ok(())
}

fn transport(mount: &MountStatus) -> String {
    match (&mount.ring, &mount.transport_why) {
        (Some(ring), _) => format!(
            "over io_uring: {} queues of {}, at most {} of memory",
            ring.queues,
            ring.depth,
            bytes(ring.memory_max_bytes as u64)
        ),
        (None, Some(why)) => format!("over /dev/fuse ({why})"),
        (None, None) => "over /dev/fuse".to_owned(),
    }
}
