//! The submission filter of a site: a program that sees every job before it is accepted, and may change or refuse it.
//!
//! It runs on the machine of the controller, as the controller's user, in the thread of the connection on which the job came:
//! nothing else waits for it. It reads one JSON document from standard input, `{"user":..., "node":..., "flow":..., "job":{...}}`,
//! where the job is as the protocol has it, with every field. Exit code 0 accepts the job; what it prints then, if anything, is the job in place
//! of the one that came. Any other exit code refuses it, with what it printed as errors as the reason. Of a flow each step is
//! shown to it. A filter that cannot be run, or takes too long, refuses all jobs: a site's rules are not skipped.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};
use forebay_grid::config::General;
use forebay_grid::parse::period::Period;
use forebay_grid::sparse::Complete;
use forebay_grid::spec::{JobSpec, short_reason};
use forebay_grid::vocabulary::{HostName, UserName};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::json;

use crate::causes::chain;
use crate::protocol::flow::FlowAsk;
use crate::protocol::{Ask, Refusal, RefusalKind};

/// The most filters that run at a time.
const RUNNING_MAX: usize = 8;
/// The most bytes of a job that a filter prints.
const PRINTED_MAX: u64 = 8 << 20;

/// The filter of the settings that are in force, if there is one.
#[derive(Default)]
pub(super) struct Filter {
    rule: Mutex<Option<Rule>>,
    running: Mutex<usize>,
    ended: Condvar,
}

#[derive(Clone)]
struct Rule {
    program: String,
    time_max: Period,
}

/// Whose job it is, and how it came.
struct Source<'a> {
    user: &'a UserName,
    node: Option<&'a HostName>,
    flow: Option<&'a str>,
}

impl Filter {
    /// One by these settings.
    pub fn new(settings: &General) -> Filter {
        let filter = Filter::default();
        filter.set(settings);
        filter
    }

    /// Other settings are in force.
    pub fn set(&self, settings: &General) {
        let rule = settings.submit_filter.clone();
        *lock(&self.rule) =
            rule.map(|program| Rule { program, time_max: settings.submit_filter_time_max });
    }

    /// What is asked, with jobs as the filter leaves them; or why one of them is refused.
    pub fn pass(
        &self,
        mut ask: Ask,
        user: &UserName,
        node: Option<&HostName>,
    ) -> Result<Ask, Refusal> {
        let Some(rule) = lock(&self.rule).clone() else { return Ok(ask) };
        let (flow, jobs): (Option<String>, Vec<&mut JobSpec>) = match &mut ask {
            Ask::Submit { spec, .. } | Ask::Try { spec } => (None, vec![&mut **spec]),
            Ask::Flow { flow: FlowAsk::Run { spec, .. } | FlowAsk::Schedule(spec) } => {
                (Some(spec.name.clone()), spec.steps.iter_mut().collect())
            }
            _ => return Ok(ask),
        };
        let source = Source { user, node, flow: flow.as_deref() };
        for job in jobs {
            let passed = self.run(&rule, &source, job);
            let failed = |error: anyhow::Error| {
                let program = &rule.program;
                tracing::error!("the submission filter {program}: {error:#}");
                let reason =
                    format!("the submission filter of this grid failed: {}", chain(&error));
                Refusal::new(RefusalKind::Failed, reason)
            };
            let changed = passed.map_err(failed)?.map_err(|why| {
                let reason = format!("the submission filter of this grid refused it: {why}");
                Refusal::new(RefusalKind::Invalid, reason)
            })?;
            if let Some(changed) = changed {
                // Its streams are where its client is; in a flow its name and what it waits for are the flow's.
                let interactive = job.interactive.take();
                let mut changed = JobSpec { interactive, ..changed };
                if flow.is_some() {
                    changed.name = std::mem::take(&mut job.name);
                    changed.depends = job.depends.take();
                }
                *job = changed;
            }
        }
        Ok(ask)
    }

    /// The job in place of the one that came, if the filter says one; or why it is refused.
    fn run(
        &self,
        rule: &Rule,
        source: &Source<'_>,
        job: &JobSpec,
    ) -> Result<Result<Option<JobSpec>, String>> {
        let _turn = self.take_turn();
        let Source { user, node, flow } = source;
        let document = json!({ "user": user, "node": node, "flow": flow, "job": Complete(job) });
        let (mut input, mut printed, mut errors) = (memory()?, memory()?, memory()?);
        input.write_all(document.to_string().as_bytes())?;
        input.rewind()?;
        let mut command = Command::new(&rule.program);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir("/");
        command.stdin(Stdio::from(input));
        command.stdout(Stdio::from(printed.try_clone()?));
        command.stderr(Stdio::from(errors.try_clone()?));
        let mut child = command.process_group(0).spawn().with_context(|| rule.program.clone())?;
        let status = wait(&mut child, rule.time_max)?;
        if !status.success() {
            let why = text_of(&mut errors)?;
            let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
            return match (why.is_empty(), status.code()) {
                (_, None) => bail!("it was killed: {status}"),
                (true, Some(code)) => Ok(Err(format!("its exit code was {code}"))),
                (false, Some(_)) => Ok(Err(short_reason(why))),
            };
        }
        let text = text_of(&mut printed)?;
        if text.trim().is_empty() {
            return Ok(Ok(None));
        }
        let changed = serde_json::from_str(&text).context("what it printed is not a job")?;
        Ok(Ok(Some(changed)))
    }

    /// Waits until there is room for one more filter.
    fn take_turn(&self) -> Turn<'_> {
        let running = lock(&self.running);
        let waited = self.ended.wait_while(running, |running| *running >= RUNNING_MAX);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(self)
    }
}

struct Turn<'a>(&'a Filter);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.running) -= 1;
        self.0.ended.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that has no name. Unlike a pipe it lets nobody wait.
fn memory() -> Result<File> {
    let file = rustix::fs::memfd_create("filter", rustix::fs::MemfdFlags::CLOEXEC);
    Ok(File::from(file.context("no memory for a file")?))
}

fn text_of(file: &mut File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(PRINTED_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PRINTED_MAX {
        bail!("it printed more than {PRINTED_MAX} bytes");
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for the end of a filter, and kills it with all that it started in its process group if it takes too long.
fn wait(child: &mut Child, time_max: Period) -> Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process")?;
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let ms = i64::try_from(time_max.as_ms()).unwrap_or(i64::MAX);
    let limit = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let mut files = [PollFd::new(&ended, PollFlags::IN)];
    if !poll(&mut files, Some(&limit)).is_ok_and(|ready| ready > 0) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        child.wait()?;
        bail!("it took longer than {time_max} (submit_filter_time_max)");
    }
    Ok(child.wait()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn filtered(script: &str) -> (Result<Ask, Refusal>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("filter");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let settings = General {
            submit_filter: Some(program.display().to_string()),
            submit_filter_time_max: Period(2000),
            ..General::default()
        };
        let spec = JobSpec { command: vec!["true".to_owned()], slots: 3, ..JobSpec::default() };
        let passed = Filter::new(&settings).pass(Ask::submit(spec), &"ann".parse().unwrap(), None);
        (passed, folder)
    }

    fn job(ask: Ask) -> JobSpec {
        match ask {
            Ask::Submit { spec, .. } => *spec,
            _ => panic!("not a submission"),
        }
    }

    #[test]
    fn a_filter_accepts_changes_and_refuses_jobs() {
        let (passed, folder) = filtered("cat >$0.seen");
        assert_eq!(job(passed.unwrap()).slots, 3);
        let seen = std::fs::read(folder.path().join("filter.seen")).unwrap();
        let seen: serde_json::Value = serde_json::from_slice(&seen).unwrap();
        assert_eq!((&seen["user"], &seen["job"]["slots"]), (&"ann".into(), &3.into()));
        assert!(seen["job"].get("memory").is_some_and(serde_json::Value::is_null), "{seen}");
        let (passed, _) = filtered("echo '{\"command\":[\"false\"],\"slots\":1,\"queue\":\"q\"}'");
        let changed = job(passed.unwrap());
        assert_eq!((changed.slots, &*changed.command[0]), (1, "false"));
        let refused = filtered("echo 'projects begin' >&2; echo 'with p' >&2; exit 1").0;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.ends_with("refused it: projects begin with p"), "{refused}");
    }

    #[test]
    fn a_filter_that_fails_refuses_all_jobs() {
        for (script, why) in [
            ("sleep 600 & sleep 600", "submit_filter_time_max"),
            ("echo nonsense", "not a job"),
            ("kill -9 $$", "killed"),
        ] {
            let refused = filtered(script).0.unwrap_err();
            assert_eq!(refused.kind, RefusalKind::Failed);
            assert!(refused.reason.contains(why), "{script}: {refused}");
        }
    }
}
