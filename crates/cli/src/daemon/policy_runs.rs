//! Runs the policy of a file system at the times that its `[run]` says.
//!
//! The time of the next run is kept in a file of the home folder, so that a restart neither forgets nor repeats a run: however many were
//! missed, one is made up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use forebay_base::time::{Clock as _, SystemClock};
use forebay_fs::policy::{Automatic, Policy};
use forebay_fs::tasks::{TaskStatus, Work};
use forebay_web::token::replace;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Running;
use crate::commands::policy;
use crate::home::Home;
use crate::output::chain;

/// Name of the file in the home folder.
const FILE: &str = "policy-run.json";
/// How often the daemon looks for what is due.
const LOOK: Duration = Duration::from_millis(500);
/// Seconds until a run that could not begin is tried again.
const AGAIN: i64 = 60;
/// If a pool is still full after a run for full pools, the next one begins after so many times as long as that took, as each looks at
/// all inodes.
const REST: i64 = 10;
/// But after so many seconds at the latest.
const REST_MAX: i64 = 3600;

/// When all rules run next, as a home folder has it noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Next {
    every_seconds: u64,
    /// In seconds since 1970.
    pub next_seconds: i64,
}

impl Next {
    /// What a home folder has noted for a policy that says `run`. What cannot be read is as if it was not there: at most a run that was
    /// missed is not made up.
    pub fn noted(home: &Path, run: Automatic) -> Option<Next> {
        let text = std::fs::read(home.join(FILE)).ok()?;
        let noted: Next = serde_json::from_slice(&text).ok()?;
        (run.every_seconds == Some(noted.every_seconds)).then_some(noted)
    }

    /// Another policy was applied to a file system that is not mounted: it has missed no run.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn forget(home: &Path) -> Result<()> {
        let path = home.join(FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// The first run after a time of a policy that says `run`, if it runs at fixed times.
    fn after(now: i64, run: Automatic) -> Option<Next> {
        let (every_seconds, next_seconds) = (run.every_seconds?, run.next_after(now)?);
        Some(Next { every_seconds, next_seconds })
    }

    /// Whether it is time. A clock that was ahead for a while keeps it waiting no longer than twice the interval.
    fn is_due(self, now: i64) -> bool {
        let every = i64::try_from(self.every_seconds).unwrap_or(i64::MAX);
        self.next_seconds <= now || self.next_seconds > now.saturating_add(every.saturating_mul(2))
    }
}

/// The policy that runs by itself, and when it does.
struct Plan {
    policy: Policy,
    run: Automatic,
    next: Option<Next>,
    /// When it was looked last how full pools are.
    looked: Option<Instant>,
    /// The task that made room in full pools last, as long as they are full.
    task: Option<u64>,
    /// It was said that they are still full after it.
    is_said: bool,
}

/// Runs of the policy of a mounted file system.
pub struct Runs {
    /// The home folder.
    home: PathBuf,
    plan: Mutex<Option<Plan>>,
}

impl Runs {
    pub fn of(home: &Home) -> Runs {
        Runs { home: home.root().to_owned(), plan: Mutex::default() }
    }

    /// From now on this policy runs by itself, or none does.
    pub fn renew(&self, policy: Option<Policy>, now: i64) {
        let planned = policy.and_then(|policy| Some((policy.run?, policy)));
        let noted = planned.as_ref().and_then(|(run, _)| Next::noted(&self.home, *run));
        let next = planned.as_ref().and_then(|(run, _)| noted.or_else(|| Next::after(now, *run)));
        *self.plan.lock() = planned.map(|(run, policy)| Plan {
            policy,
            run,
            next,
            looked: None,
            task: None,
            is_said: false,
        });
        if next.is_none() || next != noted {
            self.keep(next);
        }
    }

    fn keep(&self, next: Option<Next>) {
        let kept = match next.map(|next| serde_json::to_vec_pretty(&next)) {
            Some(text) => {
                text.map_err(Into::into).and_then(|text| replace(&self.home.join(FILE), &text))
            }
            None => Next::forget(&self.home),
        };
        if let Err(error) = kept {
            let error = chain(&error);
            tracing::warn!(
                error,
                "the time of the next policy run cannot be kept: a restart may forget or repeat it"
            );
        }
    }

    /// The policy, if all its rules are due.
    fn due(&self, now: i64) -> Option<Policy> {
        let plan = self.plan.lock();
        let plan = plan.as_ref()?;
        plan.next.filter(|next| next.is_due(now)).map(|_| plan.policy.clone())
    }

    /// A run has begun, or could not.
    fn note_run(&self, has_begun: bool, now: i64) {
        let next = {
            let mut plan = self.plan.lock();
            let Some(plan) = plan.as_mut() else { return };
            let regular = Next::after(now, plan.run);
            let soon = now.saturating_add(AGAIN);
            plan.next = regular.map(|next| match has_begun {
                true => next,
                false => Next { next_seconds: next.next_seconds.min(soon), ..next },
            });
            plan.next
        };
        self.keep(next);
    }

    /// The policy, if it is time to look how full pools are.
    fn take_look(&self, now: Instant) -> Option<Policy> {
        let mut plan = self.plan.lock();
        let plan = plan.as_mut().filter(|plan| plan.run.when_full)?;
        let pause = Duration::from_secs(plan.run.look_seconds);
        if plan.looked.is_some_and(|looked| now.saturating_duration_since(looked) < pause) {
            return None;
        }
        plan.looked = Some(now);
        Some(plan.policy.clone())
    }

    /// No pool is full.
    fn note_room(&self) {
        if let Some(plan) = self.plan.lock().as_mut() {
            (plan.task, plan.is_said) = (None, false);
        }
    }

    /// Whether a run for full pools may begin: one before it has ended, and a while ago.
    fn may_make_room(&self, tasks: &[TaskStatus], now: i64) -> bool {
        let mut plan = self.plan.lock();
        let Some(plan) = plan.as_mut() else { return false };
        let Some(task) = tasks.iter().find(|task| Some(task.id) == plan.task) else { return true };
        let Some(ended) = task.ended else { return false };
        let took = ended.saturating_sub(task.begun).max(0);
        let rest = took.saturating_mul(REST).min(REST_MAX);
        if !plan.is_said {
            plan.is_said = true;
            tracing::warn!(
                task = task.id,
                files = task.progress.files,
                rest,
                "a pool is still too full after the policy run: files that are open or belong to snapshots, \
                 or what was written meanwhile, keep its space"
            );
        }
        !(ended..ended.saturating_add(rest)).contains(&now)
    }

    fn note_task(&self, number: u64) {
        if let Some(plan) = self.plan.lock().as_mut() {
            (plan.task, plan.is_said) = (Some(number), false);
        }
    }
}

fn now() -> i64 {
    SystemClock.now().seconds
}

/// Begins to run the policy when it is due, until the file system is unmounted.
pub(super) fn carry_out(running: &Arc<Running>) -> Result<()> {
    let running = Arc::clone(running);
    let work = move || {
        while !*running.ended() {
            if let Some(policy) = running.policy_runs.due(now()) {
                let begun = running.begin_run(&policy, "scheduled policy run started");
                running.policy_runs.note_run(begun.is_some(), now());
            }
            if let Some(policy) = running.policy_runs.take_look(SystemClock.instant()) {
                running.make_room(&policy);
            }
            std::thread::sleep(LOOK);
        }
    };
    std::thread::Builder::new().name("policy".to_owned()).spawn(work).map(drop)?;
    Ok(())
}

impl Running {
    /// Has the policy run by itself that the file system has.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn renew_runs(&self) -> Result<()> {
        self.policy_runs.renew(policy::of_home(&self.home)?, now());
        Ok(())
    }

    /// As [`Running::renew_runs`]. A fault does not keep the file system from being mounted.
    pub(super) fn plan_runs(&self) {
        if let Err(error) = self.renew_runs() {
            let why = chain(&error);
            tracing::error!(
                why,
                "scheduled policy runs are disabled until the next `forebay policy apply` or mount"
            );
        }
    }

    fn make_room(&self, policy: &Policy) {
        // A disk that hangs here keeps no end of the mount waiting.
        let Some(full) = self.fs.rules_of_full_pools(policy) else {
            return self.policy_runs.note_room();
        };
        if !self.policy_runs.may_make_room(&self.fs.task_status(), now()) {
            return;
        }
        let what = "policy run started because a pool is too full";
        if let Some(number) = self.begin_run(&full, what) {
            self.policy_runs.note_task(number);
        }
    }

    /// Begins a task, or finds the one that does the same and is not over.
    fn begin_run(&self, policy: &Policy, what: &str) -> Option<u64> {
        let ended = self.ended();
        if *ended {
            return None;
        }
        let work = Work::Policy { policy: policy.as_task() };
        let tasks = self.fs.task_status();
        if let Some(task) = tasks.iter().find(|it| it.work == work && !it.state.has_ended()) {
            tracing::info!(task = task.id, state = ?task.state, "no policy run started: an earlier one is unfinished");
            return Some(task.id);
        }
        match self.fs.run_policy(policy) {
            Ok(number) => {
                tracing::info!(task = number, "{what}");
                Some(number)
            }
            Err(error) => {
                tracing::warn!(why = chain(&error.into()), "cannot start the policy run");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAILY: Automatic =
        Automatic { every_seconds: Some(86_400), when_full: false, look_seconds: 60 };

    fn runs() -> (tempfile::TempDir, Runs) {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_owned();
        (folder, Runs { home, plan: Mutex::default() })
    }

    fn policy(every_seconds: Option<u64>) -> Option<Policy> {
        Some(Policy { run: Some(Automatic { every_seconds, ..DAILY }), ..Policy::default() })
    }

    #[test]
    fn a_run_that_was_missed_is_made_up_once_and_another_interval_begins_anew() {
        let (_folder, runs) = runs();
        let is_due = |now| runs.due(now).is_some();
        runs.renew(policy(Some(86_400)), 40_000);
        assert!(!is_due(86_399) && is_due(86_400));
        // A mount long after it was missed.
        runs.renew(policy(Some(86_400)), 1_000_000);
        assert!(is_due(1_000_000));
        runs.note_run(true, 1_000_000);
        assert!(!is_due(1_036_799) && is_due(1_036_800));
        // It could not begin, and is tried again.
        runs.note_run(false, 1_036_800);
        assert!(!is_due(1_036_859) && is_due(1_036_860));
        runs.note_run(true, 1_036_860);
        // The clock goes back a little, and then by years.
        assert!(!is_due(1_036_799));
        assert!(is_due(40_000));
        runs.renew(policy(Some(3600)), 1_036_860);
        assert!(!is_due(1_036_861) && is_due(1_040_400));
        // Without [run], and with it again: nothing was missed.
        runs.renew(Some(Policy::default()), 1_036_860);
        assert!(!is_due(1_040_400));
        runs.renew(policy(Some(3600)), 2_000_000);
        assert!(!is_due(2_000_001));
    }

    #[test]
    fn what_is_damaged_counts_as_not_noted() {
        let (folder, runs) = runs();
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(Next::noted(folder.path(), DAILY), None);
        runs.renew(policy(Some(86_400)), 40_000);
        let noted = Next::noted(folder.path(), DAILY).map(|next| next.next_seconds);
        assert_eq!(noted, Some(86_400));
        Next::forget(folder.path()).unwrap();
        Next::forget(folder.path()).unwrap();
        assert_eq!(Next::noted(folder.path(), DAILY), None);
    }
}
