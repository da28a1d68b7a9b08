//! Has the policy of a file system run by itself, as its `[run]` says.
//!
//! The time at which it is due next is kept in a file of the home folder, so a restart neither forgets nor repeats a run. One that was
//! missed, however often, is made once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::time::{Clock as _, SystemClock};
use forebay_fs::policy::{Automatic, Policy};
use forebay_fs::tasks::{TaskStatus, Work};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Running;
use crate::commands::policy;
use crate::home::Home;
use crate::output::chain;

/// Name of the file in the home folder.
const FILE: &str = "policy-run.json";
/// How often it is looked for what is due.
const LOOK: Duration = Duration::from_millis(500);
/// After a run for full pools none begins for so many times as long as it took, in which little would have changed.
const REST: i64 = 10;

/// When all rules run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Next {
    every_seconds: u64,
    /// In seconds since 1970.
    pub next_seconds: i64,
}

impl Next {
    /// What a home folder has noted for a policy that says `run`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn noted(home: &Path, run: Automatic) -> Result<Option<Next>> {
        let noted = Next::read(home)?;
        Ok(noted.filter(|noted| run.every_seconds == Some(noted.every_seconds)))
    }

    fn read(home: &Path) -> Result<Option<Next>> {
        let path = home.join(FILE);
        match std::fs::read(&path) {
            // What is damaged is as if it was not there: at most a run is missed.
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// When a policy is due next that says `run`, as was noted before if it says the same.
    fn of(noted: Option<Next>, run: Automatic, now: i64) -> Option<Next> {
        let (every_seconds, next_seconds) = (run.every_seconds?, run.next_after(now)?);
        let same = noted.filter(|noted| noted.every_seconds == every_seconds);
        Some(same.unwrap_or(Next { every_seconds, next_seconds }))
    }

    /// Whether it is time. A clock that was ahead for a while does not keep it waiting longer than the interval.
    fn is_due(self, run: Automatic, now: i64) -> bool {
        let latest = run.next_after(now);
        self.next_seconds <= now || latest.is_some_and(|latest| self.next_seconds > latest)
    }
}

/// The policy that runs by itself, and when it does.
struct Plan {
    policy: Policy,
    run: Automatic,
    next: Option<Next>,
    /// When it is looked next how full pools are, in seconds since 1970.
    look_seconds: i64,
    /// The task that makes room in full pools.
    task: Option<u64>,
}

/// Runs of the policy of a mounted file system.
pub struct Runs {
    path: PathBuf,
    plan: Mutex<Option<Plan>>,
}

impl Runs {
    pub fn of(home: &Home) -> Runs {
        Runs { path: home.root().join(FILE), plan: Mutex::default() }
    }

    /// From now on this policy runs by itself, or none does.
    ///
    /// # Errors
    /// If the time of its next run cannot be kept.
    pub fn renew(&self, policy: Option<Policy>, now: i64) -> Result<()> {
        let mut plan = self.plan.lock();
        let Some((policy, run)) = policy.and_then(|policy| Some((policy.clone(), policy.run?)))
        else {
            *plan = None;
            return self.keep(None);
        };
        let noted = match self.path.parent() {
            Some(home) => Next::read(home)?,
            None => None,
        };
        let next = Next::of(noted, run, now);
        *plan = Some(Plan { policy, run, next, look_seconds: now, task: None });
        if next != noted { self.keep(next) } else { Ok(()) }
    }

    fn keep(&self, next: Option<Next>) -> Result<()> {
        let shown = || format!("cannot write {}", self.path.display());
        match next {
            Some(next) => {
                let text = serde_json::to_vec_pretty(&next)?;
                forebay_engine::files::replace(&self.path, &text).with_context(shown)
            }
            None => match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).with_context(shown)
                }
                _ => Ok(()),
            },
        }
    }

    /// The policy, if all its rules are due. They are not due again before the next time.
    fn take_due(&self, now: i64) -> Option<Policy> {
        let mut plan = self.plan.lock();
        let plan = plan.as_mut()?;
        let next = plan.next.filter(|next| next.is_due(plan.run, now))?;
        plan.next = plan.run.next_after(now).map(|next_seconds| Next { next_seconds, ..next });
        if let Err(error) = self.keep(plan.next) {
            let error = chain(&error);
            tracing::warn!(error, "the time of the next run of the policy cannot be kept");
        }
        Some(plan.policy.clone())
    }

    /// The policy, if it is time to look how full pools are.
    fn take_look(&self, now: i64, tasks: impl Fn() -> Vec<TaskStatus>) -> Option<Policy> {
        let mut plan = self.plan.lock();
        let plan = plan.as_mut()?;
        let pause = i64::try_from(plan.run.look_seconds).unwrap_or(i64::MAX);
        let is_early = plan.look_seconds > now && plan.look_seconds <= now.saturating_add(pause);
        if !plan.run.when_full || is_early {
            return None;
        }
        plan.look_seconds = now.saturating_add(pause);
        let tasks = tasks();
        if is_running(&tasks) {
            return None;
        }
        let before = tasks.iter().find(|task| Some(task.id) == plan.task);
        let is_soon = before.and_then(|task| Some((task.begun, task.ended?))).is_some_and(
            |(begun, ended)| {
                let rest = ended.saturating_sub(begun).max(0).saturating_mul(REST);
                now < ended.saturating_add(rest)
            },
        );
        (!is_soon).then(|| plan.policy.clone())
    }

    fn note_task(&self, number: u64) {
        if let Some(plan) = self.plan.lock().as_mut() {
            plan.task = Some(number);
        }
    }
}

/// Whether files are moved and removed by rules now.
fn is_running(tasks: &[TaskStatus]) -> bool {
    tasks.iter().any(|task| matches!(task.work, Work::Policy { .. }) && !task.state.has_ended())
}

fn now() -> i64 {
    SystemClock.now().seconds
}

/// Begins to run the policy when it is due, until the file system is unmounted.
pub(super) fn carry_out(running: &Arc<Running>) -> Result<()> {
    let running = Arc::clone(running);
    let work = move || {
        loop {
            std::thread::sleep(LOOK);
            if *running.ended() {
                return;
            }
            if let Some(policy) = running.policy_runs.take_due(now()) {
                running.begin_run(&policy, "the policy runs, as its [run] says");
            }
            let look = running.policy_runs.take_look(now(), || running.fs.task_status());
            // A disk that hangs keeps no end of the mount waiting.
            let full = look.and_then(|policy| running.fs.rules_of_full_pools(&policy));
            if let Some(policy) = full
                && let Some(number) =
                    running.begin_run(&policy, "the policy makes room in full pools")
            {
                running.policy_runs.note_task(number);
            }
        }
    };
    std::thread::Builder::new().name("policy".to_owned()).spawn(work).map(drop)?;
    Ok(())
}

impl Running {
    /// Has the policy run by itself that the file system has.
    ///
    /// # Errors
    /// If it cannot be read, or the time of its next run cannot be kept.
    pub(super) fn renew_runs(&self) -> Result<()> {
        self.policy_runs.renew(policy::of_home(&self.home)?, now())
    }

    /// As [`Running::renew_runs`]. A fault does not keep the file system from being mounted.
    pub(super) fn plan_runs(&self) {
        if let Err(error) = self.renew_runs() {
            tracing::error!(why = chain(&error), "the policy does not run by itself");
        }
    }

    fn begin_run(&self, policy: &Policy, what: &str) -> Option<u64> {
        let ended = self.ended();
        if *ended {
            return None;
        }
        if is_running(&self.fs.task_status()) {
            tracing::info!(
                "the policy does not run by itself this time: an earlier run is not over"
            );
            return None;
        }
        match self.fs.run_policy(policy) {
            Ok(number) => {
                tracing::info!(task = number, "{what}");
                Some(number)
            }
            Err(error) => {
                tracing::warn!(why = chain(&error.into()), "the policy did not run by itself");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOURLY: Automatic =
        Automatic { every_seconds: Some(3600), when_full: false, look_seconds: 60 };

    #[test]
    fn a_run_that_was_missed_is_due_at_once_and_a_new_interval_begins_anew() {
        let noted = Some(Next { every_seconds: 3600, next_seconds: 7200 });
        assert_eq!(Next::of(noted, HOURLY, 40_000), noted, "missed while it was not mounted");
        let next = Next { every_seconds: 3600, next_seconds: 43_200 };
        assert_eq!(Next::of(None, HOURLY, 40_000), Some(next));
        let daily = Automatic { every_seconds: Some(86_400), ..HOURLY };
        let next = Next { every_seconds: 86_400, next_seconds: 86_400 };
        assert_eq!(Next::of(noted, daily, 40_000), Some(next));
        assert!(next.is_due(daily, 86_400) && !next.is_due(daily, 86_399));
        let ahead = Next { every_seconds: 86_400, next_seconds: 9_000_000 };
        assert!(ahead.is_due(daily, 40_000), "the clock was ahead");
        let full = Automatic { every_seconds: None, when_full: true, look_seconds: 60 };
        assert_eq!(Next::of(noted, full, 40_000), None);
    }
}
