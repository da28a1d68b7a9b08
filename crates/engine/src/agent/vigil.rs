//! Who waits for the ends of runs: one thread for all of them.
//!
//! A shim says on its line that its job was started, and that it is free again; the line ends with the shim. The
//! shim of an agent before this one is waited for by its process. What it has written into the file of its run
//! counts, so nothing is lost with an agent that was not there to read.
//!
//! A run whose end is not there yet, though its line or its shim is gone, is looked at again after a while: until the
//! lock is given back, the file can be read, and what a shim that was killed has left is ended. What this host is
//! short of, descriptors for one thing, delays the news of an end, and is none.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use forebay_grid::vocabulary::{Attempt, TaskId};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::Input;
use super::ending::last_said;
use crate::run::request::Word;
use crate::run::{Run, Said, uptime_ms};

/// The most files that are looked at together.
const TOGETHER_MAX: usize = 64;
/// How long after a look at a run the next one is, at first and at most.
const PAUSE_MS: u64 = 2;
const PAUSE_MAX_MS: u64 = 1000;
/// The number of what is written to when a run comes without a file.
const WOKEN: u64 = u64::MAX;

/// Waits for the ends of runs.
pub struct Vigil {
    shared: Arc<Shared>,
    next: u64,
}

struct Shared {
    files: OwnedFd,
    woken: OwnedFd,
    watched: Mutex<BTreeMap<u64, Watched>>,
    inputs: Sender<Input>,
}

/// A run, and what is readable when something happens to it.
struct Watched {
    which: Which,
    file: Option<File>,
}

enum File {
    /// To the shim, which was started here.
    Line(OwnedFd),
    /// The shim, which an agent before this one has started.
    Process(OwnedFd),
}

#[derive(Clone)]
struct Which {
    run: Run,
    task: TaskId,
    attempt: Attempt,
    /// Whether it was passed on that the job was started.
    is_started: bool,
}

/// A run that has to be looked at.
struct Due {
    which: Which,
    at_ms: u64,
    pause_ms: u64,
}

impl Vigil {
    /// One that tells what happens by `inputs`.
    ///
    /// # Errors
    /// If there are no descriptors or threads left.
    pub fn begin(inputs: Sender<Input>) -> Result<Vigil> {
        let files = epoll::create(CreateFlags::CLOEXEC)?;
        let woken = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&files, &woken, EventData::new_u64(WOKEN), EventFlags::IN | EventFlags::ET)?;
        let watched = Mutex::new(BTreeMap::new());
        let shared = Arc::new(Shared { files, woken, watched, inputs });
        let own = Arc::clone(&shared);
        std::thread::Builder::new().name("vigil".to_owned()).spawn(move || {
            if let Err(error) = own.keep() {
                tracing::error!("the thread that waits for runs has stopped: {error:#}");
                // The next agent finds them.
                let _ = own.inputs.send(Input::Leave);
            }
        })?;
        Ok(Vigil { shared, next: 0 })
    }

    /// Waits for a run by the line to its shim.
    pub fn add(&mut self, run: Run, task: TaskId, attempt: Attempt, line: OwnedFd) {
        self.watch(Watched {
            which: Which { run, task, attempt, is_started: false },
            file: Some(File::Line(line)),
        });
    }

    /// Waits for a run that was found, of which its shim has said this.
    pub fn add_found(&mut self, run: Run, task: TaskId, attempt: Attempt, said: &Said) {
        let file = said.shim_file().map(File::Process);
        // What the agent says when it joins includes that it was started.
        self.watch(Watched { which: Which { run, task, attempt, is_started: true }, file });
    }

    fn watch(&mut self, mut watched: Watched) {
        let number = self.next;
        self.next += 1;
        let data = EventData::new_u64(number);
        // What cannot be waited for is looked at.
        if let Some(File::Line(file) | File::Process(file)) = &watched.file
            && let Err(error) = epoll::add(&self.shared.files, file, data, EventFlags::IN)
        {
            tracing::warn!(%error, "cannot wait for a run");
            watched.file = None;
        }
        let is_bare = watched.file.is_none();
        self.shared.lock().insert(number, watched);
        if is_bare {
            let _ = rustix::io::write(&self.shared.woken, &1_u64.to_ne_bytes());
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self) -> Result<()> {
        let mut events = [MaybeUninit::<Event>::uninit(); TOGETHER_MAX];
        let mut due: Vec<Due> = Vec::new();
        loop {
            let ready = match epoll::wait(&self.files, &mut events, patience(&due).as_ref()) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in ready {
                due.extend(self.hear(event.data.u64()));
            }
            due.extend(self.without_file());
            let now_ms = uptime_ms();
            due.retain_mut(|due| due.at_ms > now_ms || !self.is_over(due, now_ms));
        }
    }

    /// Takes note of what happened to a run; a look at it, if it may have ended.
    fn hear(&self, number: u64) -> Option<Due> {
        let mut all = self.lock();
        let watched = all.get(&number)?;
        let word = match &watched.file {
            Some(File::Line(line)) => Word::hear(line),
            Some(File::Process(_)) | None => None,
        };
        if let Some(Word::Started { pid }) = word {
            let Which { task, attempt, .. } = watched.which;
            all.entry(number).and_modify(|watched| watched.which.is_started = true);
            let _ = self.inputs.send(Input::Started { task, attempt, pid: Some(pid) });
            return None;
        }
        if let Some(Word::Using { now }) = word {
            let Which { task, attempt, .. } = watched.which;
            let _ = self.inputs.send(Input::Using { task, attempt, usage: now.usage() });
            return None;
        }
        if word == Some(Word::Health) {
            let _ = self.inputs.send(Input::Health);
            return None;
        }
        let Watched { which, file } = all.remove(&number)?;
        drop(all);
        if let Some(File::Line(file) | File::Process(file)) = &file {
            let _ = epoll::delete(&self.files, file);
        }
        let mut due = Due { which, at_ms: 0, pause_ms: PAUSE_MS };
        let is_over = self.is_over(&mut due, uptime_ms());
        if let (Some(Word::Free), Some(File::Line(line))) = (word, file) {
            // Behind the end: by then nobody signals it for this run any more.
            if is_over {
                let _ = self.inputs.send(Input::Free { line });
            }
        }
        (!is_over).then_some(due)
    }

    /// Runs that nothing tells of.
    fn without_file(&self) -> Vec<Due> {
        let mut all = self.lock();
        let bare = all.extract_if(.., |_, watched| watched.file.is_none());
        bare.map(|(_, watched)| Due { which: watched.which, at_ms: 0, pause_ms: PAUSE_MS })
            .collect()
    }

    /// Tells of the end of a run, if it has ended; otherwise it is looked at again later.
    fn is_over(&self, due: &mut Due, now_ms: u64) -> bool {
        match last_said(&due.which.run) {
            Ok(Some(said)) => {
                let Which { task, attempt, is_started, .. } = due.which;
                let has_started = said.started;
                let end = said.into_end();
                // That it was about to start is said before; that the host could not start it means that nothing ran.
                if has_started && !is_started && !end.is_unable() {
                    let _ = self.inputs.send(Input::Started { task, attempt, pid: None });
                }
                let _ = self.inputs.send(Input::Ended { task, attempt, end });
                return true;
            }
            Ok(None) => {}
            Err(error) if due.pause_ms == PAUSE_MS => {
                tracing::warn!("the end of a run is not known yet: {error:#}");
            }
            Err(_) => {}
        }
        due.at_ms = now_ms + due.pause_ms;
        due.pause_ms = (2 * due.pause_ms).min(PAUSE_MAX_MS);
        false
    }
}

/// Until the next look at one of these.
fn patience(due: &[Due]) -> Option<Timespec> {
    let now_ms = uptime_ms();
    let left_ms = due.iter().map(|due| due.at_ms.saturating_sub(now_ms)).min()?;
    let left_ms = i64::try_from(left_ms).unwrap_or(i64::MAX);
    Some(Timespec { tv_sec: left_ms / 1000, tv_nsec: left_ms % 1000 * 1_000_000 })
}
