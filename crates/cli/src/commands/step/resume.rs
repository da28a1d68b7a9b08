//! A program that goes on where it was interrupted: its directory in work is kept, with a record of each
//! step that has finished.
//!
//! A step is recorded only when all that it wrote is on disk. Records are for one program with one set of
//! settings; when either has changed they are thrown away. What was half done is done again from the
//! beginning of its step, which therefore must not have destroyed its own input.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use forebay_base::hash::HashKey;
use forebay_workload::program::StepRecord;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{FOLDER, Job, Wait, make_durably, take, write_durably};

/// What the records belong to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// Of the program and its settings.
    digest: String,
    /// The start of the job in which the program finished, if it did.
    finished_in: Option<u32>,
}

/// One program and its directory.
pub struct Resume {
    folder: PathBuf,
    util: PathBuf,
    data: PathBuf,
    digest: String,
    /// The job whose work area it is; its records are kept after the program has finished, as the job may
    /// start again because of what comes later.
    job: Option<Job>,
    _lock: File,
}

/// The steps that have finished, or why none counts.
pub struct Found {
    /// In their order.
    pub records: Vec<StepRecord>,
    /// There were others, of another program or other settings.
    pub changed: bool,
}

/// A text as a number that other texts do not have, as far as chance allows.
pub fn digest(text: &str) -> String {
    let half = |key: u8| HashKey([key; 16]).hash(text.as_bytes());
    format!("{:016x}{:016x}", half(1), half(2))
}

impl Resume {
    /// Takes the directory of a program, which is told from others by `key`, and finds what has finished.
    /// `work`, `util` and `data` are directories that are there.
    ///
    /// # Errors
    /// If another process runs the program there, or a directory cannot be used.
    pub fn open(
        [work, util, data]: [&Path; 3],
        key: &str,
        digest: String,
    ) -> Result<(Resume, Found)> {
        let name = format!("program-{}", &self::digest(key)[..16]);
        let folder = work.join(FOLDER).join(&name);
        make_durably(work, &folder)?;
        let lock = File::create(folder.join("lock"))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "{}: another process is running this program here; give this one another --job",
                folder.display()
            );
        }
        let job = Job::present().filter(|job| work.starts_with(&job.work));
        let resume = Resume {
            util: util.join(format!("{name}-util")),
            data: data.to_owned(),
            folder,
            digest,
            job,
            _lock: lock,
        };
        let found = resume.find()?;
        Ok((resume, found))
    }

    fn find(&self) -> Result<Found> {
        let state = std::fs::read(self.folder.join("program.json")).ok();
        let state: Option<State> = state.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let changed = state.as_ref().is_some_and(|state| state.digest != self.digest);
        // A script that runs a program twice means it.
        let again = state
            .as_ref()
            .and_then(|state| state.finished_in)
            .is_some_and(|attempt| self.job.as_ref().is_none_or(|job| job.attempt == attempt));
        let records = match state {
            Some(_) if !changed && !again => self.records(),
            _ => {
                self.forget()?;
                Vec::new()
            }
        };
        remove(&self.util())?;
        std::fs::create_dir_all(self.util()).with_context(|| self.util.display().to_string())?;
        make_durably(&self.folder, &self.work())?;
        Ok(Found { records, changed })
    }

    /// Throws everything away, the state first: what is left without it counts for nothing.
    fn forget(&self) -> Result<()> {
        match std::fs::remove_file(self.folder.join("program.json")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => File::open(&self.folder)?.sync_all()?,
        }
        remove(&self.work())?;
        remove(&self.folder.join("steps"))?;
        make_durably(&self.folder, &self.folder.join("steps"))?;
        self.say(None)
    }

    fn say(&self, finished_in: Option<u32>) -> Result<()> {
        let state = State { digest: self.digest.clone(), finished_in };
        write_durably(&self.folder.join("program.json"), &serde_json::to_vec(&state)?)
    }

    fn record_path(&self, number: usize) -> PathBuf {
        self.folder.join("steps").join(format!("{number:04}.json"))
    }

    /// Records up to the first that is missing.
    fn records(&self) -> Vec<StepRecord> {
        let read =
            |number| serde_json::from_slice(&std::fs::read(self.record_path(number)).ok()?).ok();
        (1..).map_while(read).collect()
    }

    /// The program's own directory in work.
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// The program's own directory in util, which is empty at first.
    pub fn util(&self) -> PathBuf {
        self.util.clone()
    }

    /// Records that step `number`, counted from 1, has finished.
    pub fn done(&self, number: usize, record: &StepRecord) -> Result<()> {
        for place in [&self.work(), &self.data] {
            let sync = || -> std::io::Result<()> { Ok(rustix::fs::syncfs(File::open(place)?)?) };
            sync().with_context(|| format!("cannot sync {}", place.display()))?;
        }
        let mut bytes = serde_json::to_vec(record)?;
        if serde_json::from_slice::<StepRecord>(&bytes).is_err() {
            // Numbers that JSON does not know, in a table: the step counts without it.
            let mut record = record.clone();
            record.outcome.table = None;
            bytes = serde_json::to_vec(&record)?;
        }
        write_durably(&self.record_path(number), &bytes)?;
        match self.job.as_ref().filter(|job| job.keeps_steps) {
            Some(job) => take(job, &format!("step {number}"), Wait::No).map(drop),
            None => Ok(()),
        }
    }

    /// The program has finished: removes its directories, and the records too if nobody needs them.
    pub fn finish(self) -> Result<()> {
        remove(&self.util)?;
        match &self.job {
            Some(job) => {
                self.say(Some(job.attempt))?;
                remove(&self.work())
            }
            None => {
                remove(&self.folder)?;
                // Other programs may have theirs in it.
                let _ = self.folder.parent().map(std::fs::remove_dir);
                Ok(())
            }
        }
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {}", path.display())),
    }
}
