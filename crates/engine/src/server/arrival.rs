//! Looks for the files that flows wait for, with the rights of those who wait.
//!
//! A file has arrived when two looks, `PAUSE` apart, find it unchanged. What was told of before is told
//! again now and then: the controller knows which files have started a run, here nothing is kept that
//! could be lost.
//!
//! Each look of a user has a thread that takes that user's rights on files on for good and ends afterwards: the
//! kernel keeps them by thread. It takes the ids for files only, and gives all capabilities up: were the thread
//! the user's own, the user could send it a signal that ends the controller. A file system that does not
//! answer holds up the files of its user only.
//!
//! Bounds: `FILES_MAX` files and `FOLDERS_MAX` folders of one pattern at each look, and those of a [`Room`] for all
//! patterns of a user together. No more than that is ever in memory, however many files there are.

use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_grid::flow::event::{Found, Stamp};
use forebay_grid::flow::{RUNS_AT_ONCE, ScheduleId};
use forebay_grid::parse::matches;
use forebay_grid::vocabulary::UserName;
use forebay_process::user::is_root;

use crate::controller::Input;
use crate::engine::Watch;
use crate::user;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks after which something that has not changed is told again.
const REPEAT: u32 = 30;
/// The most files of one pattern.
const FILES_MAX: usize = 4096;
/// The most folders that one pattern looks into.
const FOLDERS_MAX: usize = 4096;

/// What the looks at all patterns of a user may still take, until the next time.
#[derive(Debug)]
pub struct Room {
    /// Names that are read in folders.
    names: usize,
    /// Bytes of the paths of files that are found.
    path_bytes: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room { names: 1_000_000, path_bytes: 16 << 20 }
    }
}

impl Room {
    /// Takes a name; whether there was room for it.
    fn read_name(&mut self) -> bool {
        let left = self.names.checked_sub(1);
        self.names = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes a path; whether there was room for it.
    fn find(&mut self, path: &str) -> bool {
        let left = self.path_bytes.checked_sub(path.len());
        self.path_bytes = left.unwrap_or(0);
        left.is_some()
    }
}

/// What one look at a pattern found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Files and the states that they are in.
    pub files: BTreeMap<String, Stamp>,
    /// What could not be looked at.
    pub trouble: Option<String>,
}

/// What the looks at one pattern came to so far.
#[derive(Debug, Default)]
pub struct Memory {
    before: Look,
    told: Option<(Vec<Found>, Option<String>)>,
    quiet: u32,
    /// Looks until all files of a list can have started their runs.
    to_start: usize,
}

impl Memory {
    /// Takes a look in; what is to be told, if it is anything new or was not told for long.
    pub fn take(&mut self, look: Look) -> Option<(Vec<Found>, Option<String>)> {
        let found = |(path, stamp): (&String, &Stamp)| Found {
            path: path.clone(),
            stamp: *stamp,
            steady: self.before.files.get(path) == Some(stamp),
        };
        let files: Vec<Found> = look.files.iter().map(found).collect();
        let steady = files.iter().filter(|file| file.steady).count();
        let news = (files, look.trouble.clone());
        self.before = look;
        self.quiet += 1;
        let is_new = self.told.as_ref() != Some(&news);
        if is_new {
            self.to_start = steady.div_ceil(RUNS_AT_ONCE);
        }
        let silent = news.0.is_empty() && news.1.is_none();
        if silent || (!is_new && self.to_start == 0 && self.quiet < REPEAT) {
            return None;
        }
        self.to_start = self.to_start.saturating_sub(1);
        self.quiet = 0;
        self.told = Some(news.clone());
        Some(news)
    }
}

/// Files that match a pattern, as this thread may see them. Links are followed to what they name.
#[must_use]
pub fn look(pattern: &str, room: &mut Room) -> Look {
    let mut look = Look::default();
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    let mut places = vec![PathBuf::from("/")];
    for (depth, part) in parts.iter().enumerate() {
        let most = if depth + 1 == parts.len() { FILES_MAX } else { FOLDERS_MAX };
        let mut next = Vec::new();
        for place in places {
            if next.len() > most {
                break;
            }
            if part.contains('*') {
                let left = most + 1 - next.len();
                next.extend(entries(&place, part, left, room, &mut look));
            } else {
                next.push(place.join(part));
            }
        }
        if next.len() > most {
            next.truncate(most);
            look.trouble = Some(format!("more than {most} paths match {pattern}"));
        }
        places = next;
    }
    for path in places {
        match std::fs::metadata(&path) {
            Ok(about) if about.is_file() => {
                let Some(text) = path.to_str() else { continue };
                if !room.find(text) {
                    look.trouble =
                        Some(format!("{pattern} and the patterns before it find too many files"));
                    break;
                }
                look.files.insert(text.to_owned(), stamp(&about));
            }
            Ok(_) => {}
            Err(error) => note(&path, &error, &mut look),
        }
    }
    look
}

/// The first `most` paths that match in a folder, in order.
fn entries(
    folder: &Path,
    part: &str,
    most: usize,
    room: &mut Room,
    look: &mut Look,
) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            note(folder, &error, look);
            return Vec::new();
        }
    };
    // The last one on top, which goes if there are too many.
    let mut first = BinaryHeap::new();
    for entry in entries {
        if !room.read_name() {
            let fault = "its folder and the folders before it have too many names";
            look.trouble = Some(format!("{}: {fault}", folder.join(part).display()));
            break;
        }
        let Some(name) = entry.ok().and_then(|entry| entry.file_name().into_string().ok()) else {
            continue;
        };
        // As in a shell, * does not find hidden files.
        if matches(part, &name) && (part.starts_with('.') || !name.starts_with('.')) {
            first.push(name);
            if first.len() > most {
                first.pop();
            }
        }
    }
    first.into_sorted_vec().into_iter().map(|name| folder.join(name)).collect()
}

fn note(path: &Path, error: &std::io::Error, look: &mut Look) {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    // What is not there yet is what is waited for.
    if !matches!(error.kind(), NotFound | NotADirectory) && look.trouble.is_none() {
        look.trouble = Some(format!("{}: {error}", path.display()));
    }
}

fn stamp(about: &Metadata) -> Stamp {
    let modified_ns =
        about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec());
    Stamp { inode: about.ino(), length_bytes: about.len(), modified_ns }
}

/// Takes the rights of a user on files on, and no others, for this thread and for good.
fn become_user(name: &UserName) -> Result<()> {
    use rustix::fs::Gid;
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups};
    if !is_root() {
        // Everything is the one user's then.
        return Ok(());
    }
    let account = user::account_of(name)?;
    let groups: Vec<Gid> = account.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups).context("setgroups")?;
    // SAFETY: both concern the calling thread alone, touch no memory, and answer what was before.
    let (gid, uid) = unsafe {
        libc::setfsgid(account.gid);
        libc::setfsuid(account.uid);
        // They say nothing of a failure: asked again, they say what holds.
        (libc::setfsgid(account.gid), libc::setfsuid(account.uid))
    };
    let holds = |now: i32, wanted: u32| u32::try_from(now).is_ok_and(|now| now == wanted);
    anyhow::ensure!(
        holds(gid, account.gid) && holds(uid, account.uid),
        "cannot switch to the user's ids"
    );
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).context("capset")
}

/// Looks for all patterns of one user.
fn look_as(user: &UserName, patterns: &[Watch]) -> Vec<(ScheduleId, Look)> {
    let trouble = become_user(user).err().map(|error| format!("{error:#}"));
    let mut room = Room::default();
    let mut look = |watch: &Watch| match &trouble {
        None => look(&watch.pattern, &mut room),
        Some(trouble) => Look { trouble: Some(trouble.clone()), ..Look::default() },
    };
    patterns.iter().map(|watch| (watch.schedule, look(watch))).collect()
}

/// Asks the controller what to look for and tells it what is there, until it ends.
pub fn watch(inputs: &Sender<Input>) {
    let memories: Arc<Mutex<HashMap<ScheduleId, Memory>>> = Arc::default();
    let mut busy: HashMap<UserName, std::thread::JoinHandle<()>> = HashMap::new();
    loop {
        std::thread::sleep(PAUSE);
        let (reply, watches) = channel();
        if inputs.send(Input::Watches { reply }).is_err() {
            return;
        }
        let Ok(watches) = watches.recv() else { return };
        let mut users: BTreeMap<UserName, Vec<Watch>> = BTreeMap::new();
        if let Ok(mut memories) = memories.lock() {
            memories.retain(|id, _| watches.iter().any(|watch| watch.schedule == *id));
        }
        for watch in watches {
            users.entry(watch.user.clone()).or_default().push(watch);
        }
        busy.retain(|_, thread| !thread.is_finished());
        for (user, patterns) in users {
            if busy.contains_key(&user) {
                continue;
            }
            let (inputs, memories, name) = (inputs.clone(), Arc::clone(&memories), user.clone());
            let look = move || {
                for (schedule, look) in look_as(&name, &patterns) {
                    let news = memories
                        .lock()
                        .ok()
                        .and_then(|mut memories| memories.entry(schedule).or_default().take(look));
                    if let Some((files, trouble)) = news {
                        let _ = inputs.send(Input::Looked { schedule, files, trouble });
                    }
                }
            };
            match std::thread::Builder::new().name("arrivals".to_owned()).spawn(look) {
                Ok(thread) => {
                    busy.insert(user, thread);
                }
                Err(error) => {
                    tracing::warn!("the schedules of {user} cannot look for files: {error}");
                }
            }
        }
    }
}
