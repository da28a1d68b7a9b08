//! Carries out the schedules of snapshots.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::time::{Clock as _, SystemClock};
use parking_lot::Mutex;

use super::Running;
use crate::control::{Answer, Ask};
use crate::home::Home;
use crate::output::chain;
use crate::schedules::{Attempt, Interval, Schedule, Schedules};

/// How often it is looked for what is due.
const LOOK: Duration = Duration::from_millis(500);

/// The schedules of a mounted file system, or why they cannot be carried out.
pub struct Kept(Mutex<Result<Schedules, String>>);

impl Kept {
    /// Reads them. A fault does not keep a file system from being mounted.
    pub fn of(home: &Home) -> Kept {
        let read = Schedules::read(home).map_err(|error| chain(&error));
        if let Err(why) = &read {
            tracing::error!(why, "no snapshots are made by schedule until the next mount");
        }
        Kept(Mutex::new(read))
    }

    /// The schedules of a fileset, or of all.
    pub fn list(&self, fileset: Option<&str>) -> Result<Vec<Schedule>, String> {
        self.0.lock().as_ref().map(|all| all.list(fileset)).map_err(Clone::clone)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Schedules) -> Result<T>) -> Result<T> {
        match &mut *self.0.lock() {
            Ok(all) => change(all),
            Err(why) => Err(anyhow::Error::msg(why.clone())),
        }
    }
}

fn now() -> i64 {
    SystemClock.now().seconds
}

/// Begins to make snapshots when they are due, until the file system is unmounted.
pub(super) fn carry_out(running: &Arc<Running>) -> Result<()> {
    let running = Arc::clone(running);
    let work = move || {
        loop {
            std::thread::sleep(LOOK);
            // The end of the mount waits for a snapshot that is being made.
            let ended = running.ended();
            if *ended {
                return;
            }
            let due = running.schedules.with(|all| Ok(all.due(now())));
            if let Ok(Some(due)) = due {
                running.make_scheduled(&due);
            }
        }
    };
    std::thread::Builder::new().name("schedules".to_owned()).spawn(work).map(drop)?;
    Ok(())
}

impl Running {
    fn make_scheduled(&self, due: &Schedule) {
        if self.fs.fileset_status().iter().all(|fileset| fileset.name != due.fileset) {
            tracing::info!(
                fileset = due.fileset,
                "the fileset was removed, and its schedules with it"
            );
            self.forget_schedules(&due.fileset);
            return;
        }
        let attempt = self.make_and_rotate(due);
        if let Some(error) = &attempt.error {
            let made = attempt.made.is_some();
            tracing::warn!(fileset = due.fileset, made, error, "a schedule of snapshots failed");
        }
        if let Err(error) = self.schedules.with(|all| all.note(due, now(), attempt)) {
            let error = chain(&error);
            tracing::warn!(error, "the time of the next scheduled snapshot cannot be kept");
        }
    }

    /// Makes a snapshot, then deletes the oldest ones of the schedule.
    fn make_and_rotate(&self, due: &Schedule) -> Attempt {
        let name = due.name(now());
        if let Err(error) = self.fs.create_snapshot(&due.fileset, &name) {
            return Attempt { made: None, error: Some(chain(&error.into())) };
        }
        let error = self.rotate(due).err().map(|error| chain(&error));
        Attempt { made: Some(name), error }
    }

    fn rotate(&self, due: &Schedule) -> Result<()> {
        let mut of_schedule = self.fs.snapshots(Some(&due.fileset))?;
        of_schedule.retain(|snapshot| snapshot.name.starts_with(&due.prefix()));
        let keep = usize::try_from(due.interval.keep).unwrap_or(usize::MAX).max(1);
        // The oldest come first.
        let old = of_schedule.len().saturating_sub(keep);
        for snapshot in &of_schedule[..old] {
            self.fs
                .delete_snapshot(&due.fileset, &snapshot.name)
                .with_context(|| format!("snapshot {} was not deleted", snapshot.name))?;
        }
        Ok(())
    }

    /// Takes the schedules of a fileset away that is gone.
    pub fn forget_schedules(&self, fileset: &str) {
        if let Err(error) = self.schedules.with(|all| all.remove(fileset)) {
            tracing::warn!(
                error = chain(&error),
                "the schedules of a removed fileset are still there"
            );
        }
    }

    pub fn answer_of_schedules(&self, ask: Ask) -> Answer {
        let answered = match ask {
            Ask::SetSchedules { fileset, intervals } => self.set_schedules(&fileset, &intervals),
            Ask::RemoveSchedules { fileset } => {
                self.schedules.with(|all| remove(all, &fileset)).map(|()| Answer::Done)
            }
            Ask::Schedules { fileset } => self
                .schedules
                .list(fileset.as_deref())
                .map(|schedules| Answer::Schedules { schedules })
                .map_err(anyhow::Error::msg),
            other => unreachable!("not of schedules: {other:?}"),
        };
        answered.unwrap_or_else(|error| Answer::Refused { reason: chain(&error) })
    }

    fn set_schedules(&self, fileset: &str, intervals: &[Interval]) -> Result<Answer> {
        // Whether the fileset can have snapshots at all.
        self.fs.snapshots(Some(fileset))?;
        let most = self.home.settings()?.daemon.snapshot_schedules_max;
        let schedules = self.schedules.with(|all| {
            all.set(fileset, intervals, now(), most)?;
            Ok(all.list(Some(fileset)))
        })?;
        Ok(Answer::Schedules { schedules })
    }
}

/// Takes the schedules of a fileset away.
///
/// # Errors
/// If there are none.
pub fn remove(all: &mut Schedules, fileset: &str) -> Result<()> {
    anyhow::ensure!(
        all.remove(fileset)? > 0,
        "fileset \"{fileset}\" has no schedules: `forebay snapshot schedule list` shows what there is"
    );
    Ok(())
}
