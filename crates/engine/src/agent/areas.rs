//! The work areas of a host, as its agent deals with them: in threads of their own, as file systems may let them wait.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::{HostName, TaskId, UserName};

use super::crew::Crew;
use super::{Input, LINGER_MS};
use crate::agent::load::FreeSpace;
use crate::area::{self, Places};
use crate::area::{spare, tree};
use crate::causes::chain;
use crate::checkpoint::{Number, keep, make_place_if_missing};
use crate::protocol::{Area, Report, Seen, Sizes};
use crate::run::uptime_ms;
use crate::user::account_of;

/// Threads that remove work areas.
const REMOVALS: usize = 4;

/// How many questions for work areas may wait.
const LOOKS_MAX: usize = 8;

/// A checkpoint that this host is to copy.
pub struct KeptElsewhere {
    pub query: u64,
    pub task: TaskId,
    pub requeues: u32,
    pub number: Number,
    /// The host whose bytes do not count.
    pub job_host: HostName,
}

/// Work areas, and who deals with them.
pub struct Areas {
    places: Places,
    /// The folders of all agents of this machine.
    hosts: PathBuf,
    free: Arc<FreeSpace>,
    /// Takes areas away and measures what is free, which takes no longer than the file system.
    clearing: Crew,
    removals: Arc<Crew>,
    looks: Crew,
    /// Copies checkpoints of jobs on other hosts.
    copies: Crew,
    looks_waiting: Arc<AtomicUsize>,
    /// Whether what was taken away before is being looked for.
    is_sweeping: Arc<AtomicBool>,
    /// Tasks whose areas are taken away together, and when: most of short jobs have nothing in them.
    released: Vec<(TaskId, u32)>,
    clears_ms: Option<u64>,
    inputs: Sender<Input>,
}

impl Areas {
    /// Those of an agent, which is told by `inputs` what became of them. What an agent before it had taken away is
    /// removed.
    ///
    /// # Errors
    /// If there are no threads left.
    pub fn begin(places: Places, hosts: PathBuf, inputs: Sender<Input>) -> Result<Areas> {
        let areas = Areas {
            places,
            hosts,
            free: Arc::default(),
            clearing: Crew::begin("clearing", 1)?,
            removals: Arc::new(Crew::begin("removal", REMOVALS)?),
            looks: Crew::begin("areas", 1)?,
            copies: Crew::begin("checkpoints", 1)?,
            looks_waiting: Arc::default(),
            is_sweeping: Arc::default(),
            released: Vec::new(),
            clears_ms: None,
            inputs,
        };
        areas.sweep();
        areas.free.measure(&areas.places.work);
        Ok(areas)
    }

    /// Where the areas of a task are.
    pub fn of(&self, task: TaskId, requeues: u32) -> (PathBuf, PathBuf) {
        self.places.areas(task, requeues)
    }

    /// Where the checkpoints of a task are, if there is a place for them.
    pub fn checkpoint(&self, task: TaskId, requeues: u32) -> Option<PathBuf> {
        self.places.checkpoint(task, requeues)
    }

    /// Copies a checkpoint to this host with the rights of its user, after those that were asked for before.
    pub fn keep(&self, kept: KeptElsewhere, user: UserName, host: HostName) {
        let inputs = self.inputs.clone();
        let place = self.places.checkpoint(kept.task, kept.requeues);
        self.copies.give(move || {
            let KeptElsewhere { query, number, job_host, .. } = kept;
            let copied = (|| {
                let place = place.context("this host has no place for checkpoints")?;
                let account = account_of(&user)?;
                account.act(|| keep::keep(&place, number, &job_host, &host))?
            })();
            let result = copied.map_err(|error| chain(&error));
            let _ = inputs.send(Input::Say(vec![Report::CheckpointKept { query, result }]));
        });
    }

    /// What is free for work areas in MiB, as far as that is known.
    pub fn free_mib(&self) -> f64 {
        self.free.mib()
    }

    /// Takes the areas of a task away soon, with those of others that end meanwhile, and removes what is in them then.
    pub fn release(&mut self, task: TaskId, requeues: u32) {
        if self.released.is_empty() {
            self.clears_ms = Some(uptime_ms() + LINGER_MS);
        }
        self.released.push((task, requeues));
    }

    /// Has the areas cleared whose time has come; when that is to be asked next.
    pub fn clear(&mut self, now_ms: u64) -> Option<u64> {
        if self.clears_ms.is_some_and(|clears_ms| clears_ms <= now_ms) {
            self.clears_ms = None;
            let released = std::mem::take(&mut self.released);
            let (places, removals) = (self.places.clone(), Arc::clone(&self.removals));
            let inputs = self.inputs.clone();
            self.clearing.give(move || take_away(&places, released, &removals, &inputs));
        }
        self.clears_ms
    }

    /// Takes areas away and removes what is in them, unless a start of their task is on the machine or they are others by then: the
    /// agent goes on meanwhile, as its lease does not wait for file systems.
    pub fn reap(&self, query: u64, areas: Vec<Area>) {
        let (places, hosts) = (self.places.clone(), self.hosts.clone());
        let inputs = self.inputs.clone();
        self.removals.give(move || {
            let (mut taken, mut faults) = (Vec::new(), Vec::new());
            for area in areas {
                if let Some(host) = area::host_with_run(&hosts, area.task) {
                    faults.push(format!("{}: {host} has a start of it", area.path.display()));
                    continue;
                }
                match places.take_away(&area) {
                    Ok(aside) => taken.push((area, aside)),
                    Err(error) => faults.push(format!("{error:#}")),
                }
            }
            let mut removed = Vec::new();
            for (area, aside) in taken {
                match tree::remove(&aside) {
                    Ok(()) => removed.push(area),
                    Err(error) => faults.push(format!("{}: {error}", aside.display())),
                }
            }
            let _ = inputs.send(Input::Say(vec![Report::Reaped { query, removed, faults }]));
        });
    }

    /// Looks for areas. What could not be removed before is tried again.
    pub fn list(&self, query: u64, sizes: Sizes) {
        self.sweep();
        let (places, inputs) = (self.places.clone(), self.inputs.clone());
        let waiting = Arc::clone(&self.looks_waiting);
        if waiting.fetch_add(1, Ordering::Relaxed) >= LOOKS_MAX {
            waiting.fetch_sub(1, Ordering::Relaxed);
            let faults = vec![format!(
                "{LOOKS_MAX} other requests for the areas of this host are in progress; try again later"
            )];
            let seen = Seen { faults, ..Seen::default() };
            let _ = inputs.send(Input::Say(vec![Report::Areas { query, seen }]));
            return;
        }
        self.looks.give(move || {
            let made = places.checkpoints.as_deref().map_or(Ok(()), make_place_if_missing);
            let mut seen = places.list(sizes);
            seen.faults.extend(made.err().map(|error| chain(&error)));
            waiting.fetch_sub(1, Ordering::Relaxed);
            let _ = inputs.send(Input::Say(vec![Report::Areas { query, seen }]));
        });
    }

    /// Removes areas that were taken away and are still there, unless that is under way; another agent may be at one
    /// of them.
    fn sweep(&self) {
        if self.is_sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let (places, is_sweeping) = (self.places.clone(), Arc::clone(&self.is_sweeping));
        self.removals.give(move || {
            for place in [&places.work, &places.util].into_iter().chain(&places.checkpoints) {
                if let Err(error) = remove_left(place) {
                    tracing::warn!("{}: {error}", place.display());
                }
            }
            is_sweeping.store(false, Ordering::Relaxed);
        });
    }

    /// Has the free space looked at, unless somebody still waits for the file system.
    pub fn measure_free(&self) {
        if let Some(free) = FreeSpace::ask(&self.free) {
            let place = self.places.work.clone();
            self.clearing.give(move || free.measure(&place));
        }
    }
}

/// Takes the areas of some tasks away, and has what is in them removed. All of which nothing is left are reported together.
fn take_away(
    places: &Places,
    released: Vec<(TaskId, u32)>,
    removals: &Crew,
    inputs: &Sender<Input>,
) {
    let mut done = Vec::new();
    for (task, requeues) in released {
        let (work, util) = places.areas(task, requeues);
        let (mut aside, mut result) = (Vec::new(), Ok(()));
        for area in [work, util].into_iter().chain(places.checkpoint(task, requeues)) {
            match area::take_away(&area) {
                Ok(left) => aside.extend(left),
                Err(error) => result = Err(format!("{}: {error}", area.display())),
            }
        }
        if aside.is_empty() {
            done.push(Report::WorkReleased { task, requeues, result });
            continue;
        }
        let inputs = inputs.clone();
        removals.give(move || {
            for area in aside {
                if let Err(error) = tree::remove(&area) {
                    result = Err(format!("{}: {error}", area.display()));
                }
            }
            let _ = inputs.send(Input::Say(vec![Report::WorkReleased { task, requeues, result }]));
        });
    }
    if !done.is_empty() {
        let _ = inputs.send(Input::Say(done));
    }
}

/// Removes what lies in a place under the name of an area that was taken away, or that a shim keeps for another job.
fn remove_left(place: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(place) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let removed = if area::is_aside(&entry.file_name()) {
            tree::remove(&entry.path())
        } else {
            spare::take_away(&entry.path())
                .and_then(|left| left.as_deref().map_or(Ok(()), tree::remove))
        };
        if let Err(error) = removed {
            tracing::warn!(area = %entry.path().display(), %error, "a work area was not removed");
        }
    }
    Ok(())
}
