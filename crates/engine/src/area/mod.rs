//! Work areas on a host: making them, finding them, removing those whose jobs are gone.
//!
//! Areas lie in places that every user may write to (sticky, as /tmp), and belong to users: all that is
//! done here as root goes by descriptors and never follows a symbolic link, neither one that stands for an
//! area nor one that is put into an area meanwhile. The tree itself is removed by [`crate::area::tree`].
//! Depth: what lies deeper than [`DEPTH_MAX`] is not counted in sizes.

pub(crate) mod place;
pub(crate) mod spare;
pub(crate) mod tree;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use forebay_grid::vocabulary::{JobId, Moment, TaskId};
use forebay_process::user::is_root;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::protocol::{Area, AreaKind, Seen, Sizes};
use crate::run::uptime_ms;
use crate::user::{self, Account};

/// How deep sizes are counted; each level holds a descriptor open.
const DEPTH_MAX: usize = 200;

/// The most areas that are told at a time.
const AREAS_MAX: usize = 20_000;

/// What the names of areas begin with that were taken away and are being removed.
const ASIDE: &str = ".gone-";

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// Where areas are made.
#[derive(Clone, Debug)]
pub struct Places {
    /// Of work areas.
    pub work: PathBuf,
    /// Of areas for utility files; may be the same.
    pub util: PathBuf,
    /// Of checkpoints, if there are any.
    pub checkpoints: Option<PathBuf>,
}

/// The name of an area. A task that is requeued after its end has another one, as the old one may still be
/// on its way out.
fn name_of(task: TaskId, requeues: u32, kind: AreaKind) -> String {
    let TaskId { job, index } = task;
    let mut name = if index == 0 { format!("job-{job}") } else { format!("job-{job}-{index}") };
    if requeues > 0 {
        name += &format!(".{requeues}");
    }
    match kind {
        AreaKind::Work => name,
        AreaKind::Util => format!("{name}-util"),
        AreaKind::Checkpoint => format!("{name}-checkpoint"),
    }
}

/// What a name says: whose area it is, of which requeue, what for, and whether it was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    task: TaskId,
    requeues: u32,
    kind: AreaKind,
    aside: bool,
}

/// The folder in a place with the checkpoints of a task, those of its latest requeue; none if it has none.
pub(crate) fn latest_checkpoint(place: &Path, task: TaskId) -> io::Result<Option<PathBuf>> {
    let mut latest: Option<(u32, PathBuf)> = None;
    for entry in std::fs::read_dir(place)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().and_then(parse) else { continue };
        let is_it = name.task == task && name.kind == AreaKind::Checkpoint && !name.aside;
        if is_it && latest.as_ref().is_none_or(|(requeues, _)| *requeues <= name.requeues) {
            latest = Some((name.requeues, entry.path()));
        }
    }
    Ok(latest.map(|(_, path)| path))
}

/// None if it is no area's.
fn parse(name: &str) -> Option<Name> {
    let (own, aside) = match name.strip_prefix(ASIDE) {
        Some(rest) => (rest.rsplit_once('-')?.0, true),
        None => (name, false),
    };
    let (numbers, kind) = if let Some(numbers) = own.strip_suffix("-util") {
        (numbers, AreaKind::Util)
    } else if let Some(numbers) = own.strip_suffix("-checkpoint") {
        (numbers, AreaKind::Checkpoint)
    } else {
        (own, AreaKind::Work)
    };
    let numbers = numbers.strip_prefix("job-")?;
    let (numbers, requeues) = numbers.split_once('.').unwrap_or((numbers, "0"));
    let (job, index) = numbers.split_once('-').unwrap_or((numbers, "0"));
    let task = TaskId { job: JobId(job.parse().ok()?), index: index.parse().ok()? };
    let requeues = requeues.parse().ok()?;
    (name_of(task, requeues, kind) == own).then_some(Name { task, requeues, kind, aside })
}

/// The name of an area that is taken away now.
fn aside(name: &str) -> String {
    format!("{ASIDE}{name}-{}", uptime_ms())
}

/// Takes an area away at once; where it is now, if something is in it.
///
/// # Errors
/// If it cannot be renamed.
pub fn take_away(area: &Path) -> io::Result<Option<PathBuf>> {
    match std::fs::remove_dir(area) {
        Ok(()) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => {}
    }
    let name = area.file_name().unwrap_or_default().to_string_lossy();
    let aside = area.with_file_name(aside(&name));
    match std::fs::rename(area, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an area was taken away and is being removed.
pub fn is_aside(name: &OsStr) -> bool {
    name.to_str().and_then(parse).is_some_and(|name| name.aside)
}

impl Places {
    /// Where an area of this kind is made; none if there are none of it here.
    pub fn of(&self, kind: AreaKind) -> Option<&Path> {
        match kind {
            AreaKind::Work => Some(&self.work),
            AreaKind::Util => Some(&self.util),
            AreaKind::Checkpoint => self.checkpoints.as_deref(),
        }
    }

    /// The two areas of a task.
    pub fn areas(&self, task: TaskId, requeues: u32) -> (PathBuf, PathBuf) {
        let name = |kind| name_of(task, requeues, kind);
        (self.work.join(name(AreaKind::Work)), self.util.join(name(AreaKind::Util)))
    }

    /// Where the checkpoints of a task are, if there is a place for them.
    pub fn checkpoint(&self, task: TaskId, requeues: u32) -> Option<PathBuf> {
        Some(self.checkpoints.as_ref()?.join(name_of(task, requeues, AreaKind::Checkpoint)))
    }

    /// The areas that are here.
    pub fn list(&self, sizes: Sizes) -> Seen {
        let mut seen = Seen::default();
        let mut places = vec![&self.work];
        if self.util != self.work {
            places.push(&self.util);
        }
        places.extend(&self.checkpoints);
        for place in places {
            if let Err(error) = list_place(place, sizes, AREAS_MAX, &mut seen) {
                seen.faults.push(format!("{}: {error}", place.display()));
            }
        }
        seen
    }

    /// Takes an area away at once, if it still is what it was; its new name, under which it can be removed.
    ///
    /// # Errors
    /// If it is another one by now, or cannot be renamed.
    pub fn take_away(&self, area: &Area) -> Result<PathBuf> {
        let place = self.of(area.kind);
        let place = place.with_context(|| format!("{}: not a place here", area.path.display()))?;
        let name = name_of(area.task, area.requeues, area.kind);
        let shown = place.join(&name).display().to_string();
        let folder = rustix::fs::open(place, FOLDER, Mode::empty()).context(shown.clone())?;
        let is_it = |name: &str| match look(folder.as_fd(), OsStr::new(name)) {
            Ok(now) => Ok(is_folder(&now) && now.stx_ino == area.inode),
            Err(error) => Err(error).context(shown.clone()),
        };
        if !is_it(&name)? {
            bail!("{shown}: it is another one by now");
        }
        let aside = aside(&name);
        rustix::fs::renameat(&folder, &name, &folder, &aside).context(shown.clone())?;
        if !is_it(&aside)? {
            // One was put in its place between the look and the renaming.
            rustix::fs::renameat(&folder, &aside, &folder, &name).context(shown.clone())?;
            bail!("{shown}: it is another one by now");
        }
        Ok(place.join(aside))
    }
}

/// Adds the areas of a place to what was seen, up to `most` in all.
fn list_place(place: &Path, sizes: Sizes, most: usize, seen: &mut Seen) -> io::Result<()> {
    // The place itself is given by whoever started the agent, and may be reached by a link.
    let folder = rustix::fs::open(place, FOLDER.difference(OFlags::NOFOLLOW), Mode::empty())?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let Some(parsed) = name.to_str().and_then(parse) else { continue };
        let about = match look(folder.as_fd(), name) {
            Ok(about) if is_folder(&about) => about,
            Ok(_) | Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        // The name of a user can be none of the grid's: then it has no areas.
        let Ok(owner) = user::name_of(about.stx_uid) else { continue };
        if seen.areas.len() == most {
            seen.more = true;
            return Ok(());
        }
        let bytes = (sizes == Sizes::Counted)
            .then(|| open_in(folder.as_fd(), name).map_or(0, |area| bytes_in(area, DEPTH_MAX)));
        let born = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::BTIME);
        let made = if born { about.stx_btime } else { about.stx_mtime };
        let seconds = u64::try_from(made.tv_sec).unwrap_or(0);
        seen.areas.push(Area {
            path: place.join(name),
            task: parsed.task,
            requeues: parsed.requeues,
            kind: parsed.kind,
            aside: parsed.aside,
            owner,
            bytes,
            made: Moment(seconds * 1000 + u64::from(made.tv_nsec) / 1_000_000),
            inode: about.stx_ino,
        });
    }
    Ok(())
}

fn look(folder: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, wanted)
}

fn is_folder(about: &Statx) -> bool {
    FileType::from_raw_mode(about.stx_mode.into()) == FileType::Directory
}

fn open_in(folder: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(folder, name, FOLDER, Mode::empty())
}

/// Bytes on disk of the files in an area, links not followed.
pub fn bytes_below(path: &Path) -> u64 {
    rustix::fs::open(path, FOLDER, Mode::empty()).map_or(0, |area| bytes_in(area, DEPTH_MAX))
}

fn bytes_in(folder: OwnedFd, depth: usize) -> u64 {
    let Ok(mut entries) = Dir::new(folder) else { return 0 };
    let mut sum: u64 = 0;
    // Files come and go meanwhile.
    while let Some(Ok(entry)) = entries.read() {
        let Ok(folder) = entries.fd() else { break };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let Ok(about) = look(folder, name) else { continue };
        let bytes = if !is_folder(&about) {
            about.stx_blocks.saturating_mul(512)
        } else if depth == 0 {
            0
        } else {
            open_in(folder, name).map_or(0, |below| bytes_in(below, depth - 1))
        };
        sum = sum.saturating_add(bytes);
    }
    sum
}

/// What a job needs of an area that is left from its last start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It goes.
    Removed,
    /// It stays, if it is the user's own.
    Kept,
}

/// Makes an area that only the user can use. What lies there and is no area of the user's goes: somebody
/// may have put it there.
///
/// # Errors
/// If it cannot be made.
pub fn make(path: &Path, left: Left, account: &Account) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
    let shown = || format!("cannot create the work area {}", path.display());
    let create = || std::fs::DirBuilder::new().mode(0o700).create(path);
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let about = std::fs::symlink_metadata(path).with_context(shown)?;
            let own = !is_root() || about.uid() == account.uid;
            if !about.is_dir() {
                std::fs::remove_file(path).with_context(shown)?;
            } else if left == Left::Kept && own {
                return Ok(());
            } else {
                tree::remove(path).with_context(shown)?;
            }
            create().with_context(shown)?;
        }
        made => made.with_context(shown)?,
    }
    // By descriptor: what has just been made is what is given away.
    let folder = rustix::fs::open(path, FOLDER, Mode::empty()).with_context(shown)?;
    rustix::fs::fchmod(&folder, Mode::RWXU).with_context(shown)?;
    if is_root() {
        let (user, group) = (account.uid, account.gid);
        std::os::unix::fs::fchown(&folder, Some(user), Some(group)).with_context(shown)?;
    }
    Ok(())
}

/// The host on which a start of this task is not yet over, by the folders that agents of this machine keep.
pub fn host_with_run(hosts: &Path, task: TaskId) -> Option<String> {
    let begin = format!("{}.{}.", task.job, task.index);
    for host in std::fs::read_dir(hosts).ok()?.flatten() {
        let of = |folder: &str| std::fs::read_dir(host.path().join(folder)).into_iter().flatten();
        if of("runs")
            .chain(of(crate::agent::slurm::FOLDER))
            .flatten()
            .any(|run| run.file_name().as_bytes().starts_with(begin.as_bytes()))
        {
            return Some(host.file_name().to_string_lossy().into_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(job: u64, index: u32) -> TaskId {
        TaskId { job: JobId(job), index }
    }

    #[test]
    fn names_of_areas_are_read_back_and_others_are_left_alone() {
        for (task, requeues, kind) in [
            (task(7, 0), 0, AreaKind::Work),
            (task(7, 0), 2, AreaKind::Util),
            (task(12, 3), 0, AreaKind::Work),
            (task(12, 3), 1, AreaKind::Util),
            (task(12, 3), 1, AreaKind::Checkpoint),
        ] {
            let name = name_of(task, requeues, kind);
            let parsed = Name { task, requeues, kind, aside: false };
            assert_eq!(parse(&name), Some(parsed), "{name}");
            let parsed = Name { aside: true, ..parsed };
            assert_eq!(parse(&format!("{ASIDE}{name}-123")), Some(parsed), "{name}");
        }
        let others = [
            "job-",
            "job-x",
            "job-07",
            "job-7-0",
            "job-7.0",
            "job-7.x",
            "job-7.",
            "job-7-0-util",
            "job-7-util-util",
            "x-7",
        ];
        for name in others {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    fn places(root: &Path) -> Places {
        Places { work: root.to_owned(), util: root.to_owned(), checkpoints: None }
    }

    #[test]
    fn links_are_no_areas_and_are_not_followed_into_sizes() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("big"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(other.path(), root.path().join("job-1")).unwrap();
        std::fs::create_dir(root.path().join("job-2")).unwrap();
        std::fs::write(root.path().join("job-2/own"), vec![1; 8192]).unwrap();
        std::os::unix::fs::symlink(other.path(), root.path().join("job-2/link")).unwrap();
        let Seen { areas, more, faults } = places(root.path()).list(Sizes::Counted);
        assert_eq!((more, faults), (false, Vec::new()));
        assert_eq!(areas.len(), 1, "{areas:?}");
        assert_eq!(areas[0].task, task(2, 0));
        assert!((8192..1 << 19).contains(&areas[0].bytes.unwrap()), "{areas:?}");
    }

    #[test]
    fn of_many_areas_some_are_told_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        for name in ["job-1", "job-2", "job-3"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        for (most, told, more) in [(2, 2, true), (3, 3, false)] {
            let mut seen = Seen::default();
            list_place(root.path(), Sizes::Left, most, &mut seen).unwrap();
            assert_eq!((seen.areas.len(), seen.more), (told, more), "{seen:?}");
        }
    }

    #[test]
    fn an_area_that_was_made_anew_is_not_taken_away() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let path = root.path().join("job-2");
        std::fs::create_dir(&path).unwrap();
        let area = places.list(Sizes::Left).areas.remove(0);
        // Kept aside, so that the next one cannot get its inode.
        std::fs::rename(&path, root.path().join("former")).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(places.take_away(&area).unwrap_err().to_string().contains("another one"));
        assert!(path.is_dir());
        let now = places.list(Sizes::Left).areas.remove(0);
        let aside = places.take_away(&now).unwrap();
        assert!(aside.is_dir() && !path.exists());
        assert!(places.list(Sizes::Left).areas[0].aside);
    }

    #[test]
    fn what_is_no_area_of_the_users_is_replaced_when_the_job_starts() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("kept"), "x").unwrap();
        let path = root.path().join("job-3");
        let account = Account {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Vec::new(),
            home: "/".to_owned(),
        };
        std::os::unix::fs::symlink(other.path(), &path).unwrap();
        make(&path, Left::Kept, &account).unwrap();
        assert!(std::fs::symlink_metadata(&path).unwrap().is_dir());
        assert!(other.path().join("kept").exists());
        std::fs::write(path.join("step"), "x").unwrap();
        make(&path, Left::Kept, &account).unwrap();
        assert!(path.join("step").exists());
        make(&path, Left::Removed, &account).unwrap();
        assert!(!path.join("step").exists());
    }
}
