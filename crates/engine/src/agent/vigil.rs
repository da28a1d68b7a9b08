//! Who waits for shims: one thread for all that this agent has started, and one for each that an agent before
//! it has left.
//!
//! A shim says on its line that its job was started, and that it is free again; the line ends with the shim. What it
//! has written into the file of its run counts, so nothing is lost with an agent that was not there to read.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use forebay_grid::vocabulary::{Attempt, TaskId};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::Input;
use crate::request::Word;
use crate::runs::Run;
use crate::session;

/// The most lines that are looked at together.
const TOGETHER_MAX: usize = 64;

/// Waits for shims that were started here.
pub struct Vigil {
    lines: Arc<OwnedFd>,
    shims: Arc<Mutex<BTreeMap<u64, Shim>>>,
    next: u64,
    inputs: Sender<Input>,
}

struct Shim {
    run: Run,
    task: TaskId,
    attempt: Attempt,
    line: OwnedFd,
}

impl Vigil {
    /// One that tells what happens by `inputs`.
    pub fn begin(inputs: Sender<Input>) -> Result<Vigil> {
        let lines = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let shims = Arc::new(Mutex::new(BTreeMap::new()));
        let own = (Arc::clone(&lines), Arc::clone(&shims));
        let to = inputs.clone();
        std::thread::Builder::new().name("vigil".to_owned()).spawn(move || {
            if let Err(error) = keep(&own.0, &own.1, &to) {
                tracing::error!("nobody waits for shims any more: {error:#}");
                // The next agent finds them.
                let _ = to.send(Input::Leave);
            }
        })?;
        Ok(Vigil { lines, shims, next: 0, inputs })
    }

    /// Waits for one more.
    pub fn add(&mut self, run: Run, task: TaskId, attempt: Attempt, line: OwnedFd) {
        let number = self.next;
        self.next += 1;
        let mut shims = self.shims.lock().unwrap_or_else(PoisonError::into_inner);
        match epoll::add(&self.lines, &line, EventData::new_u64(number), EventFlags::IN) {
            Ok(()) => {
                shims.insert(number, Shim { run, task, attempt, line });
            }
            Err(error) => {
                tracing::warn!(%error, "a line cannot be waited for");
                await_end(run, task, attempt, &self.inputs);
            }
        }
    }
}

fn keep(lines: &OwnedFd, shims: &Mutex<BTreeMap<u64, Shim>>, inputs: &Sender<Input>) -> Result<()> {
    let mut events = [MaybeUninit::<Event>::uninit(); TOGETHER_MAX];
    loop {
        let ready = match epoll::wait(lines, &mut events, None) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for event in ready {
            let number = event.data.u64();
            let mut shims = shims.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(shim) = shims.get(&number) else { continue };
            let (task, attempt) = (shim.task, shim.attempt);
            match Word::hear(&shim.line) {
                Some(Word::Started { pid }) => {
                    let _ = inputs.send(Input::Started { task, attempt, pid: Some(pid) });
                }
                word => {
                    let Some(shim) = shims.remove(&number) else { continue };
                    drop(shims);
                    let _ = epoll::delete(lines, &shim.line);
                    end(shim, word, inputs);
                }
            }
        }
    }
}

/// Tells of the end of a run, and of a shim that is free. It may take a while to clear away what one that was killed
/// has left.
fn end(shim: Shim, word: Option<Word>, inputs: &Sender<Input>) {
    let Shim { run, task, attempt, line } = shim;
    let said = run.said();
    let is_over = || word == Some(Word::Free) || run.is_held().is_ok_and(|held| !held);
    if said.end.is_some() && is_over() {
        let _ = inputs.send(Input::Ended { task, attempt, end: said.into_end() });
    } else {
        await_end(run, task, attempt, inputs);
    }
    if word == Some(Word::Free) {
        // Behind the end: by then nobody signals it for this run any more.
        let _ = inputs.send(Input::Free { line });
    }
}

/// Has a thread wait for the end of a shim by its lock, and end what it has left if it was killed.
pub fn await_end(run: Run, task: TaskId, attempt: Attempt, inputs: &Sender<Input>) {
    let inputs = inputs.clone();
    std::thread::spawn(move || {
        if let Err(error) = run.wait() {
            tracing::error!("{}: {error:#}", run.path().display());
        }
        let said = run.said();
        if said.end.is_none() {
            // One that had not said its number yet had started nothing.
            said.sessions().into_iter().for_each(session::end);
        }
        let _ = inputs.send(Input::Ended { task, attempt, end: said.into_end() });
    });
}
