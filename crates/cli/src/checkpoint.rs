//! Records of finished steps in the work area of a job: one file for each, named after its step.
//!
//! A record is there as a whole or not at all, and once [`Steps::done`] has returned it survives a crash of
//! the machine. Processes of a job may write records at the same time. docs/formats/checkpoint.md draws the
//! folder.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::checkpoint::ship::{self, Until};
use forebay_engine::checkpoint::snapshot::{self, Taken};
use forebay_engine::checkpoint::{Shelf, setup_of};
use serde::{Deserialize, Serialize};

use crate::output::chain;

/// Folder of a work area for what belongs to the grid.
pub const FOLDER: &str = ".forebay";

/// The most bytes of the name of a step.
const NAME_BYTES_MAX: usize = 80;

/// A job of the grid, as its processes see it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its number, and its element if it is an array.
    pub id: String,
    /// Its work area.
    pub work: PathBuf,
    /// Which start of it.
    pub attempt: u32,
    /// Whether its work area is kept when it starts again.
    pub keeps_steps: bool,
}

/// A step that has finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the step.
    pub step: String,
    /// In which start of the job.
    pub attempt: u32,
    /// When, in seconds since 1970.
    pub finished_seconds: i64,
}

/// The finished steps of a job.
pub struct Steps {
    folder: PathBuf,
    attempt: u32,
}

impl Job {
    /// The job that this process belongs to, if it belongs to one.
    pub fn present() -> Option<Job> {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = text("FOREBAY_JOB")?;
        let index = text("FOREBAY_INDEX").filter(|index| index != "0");
        Some(Job {
            id: index.map_or(number.clone(), |index| format!("{number}[{index}]")),
            work: text("WORK")?.into(),
            attempt: text("FOREBAY_ATTEMPT")?.parse().ok()?,
            keeps_steps: text("FOREBAY_CHECKPOINT").is_some(),
        })
    }
}

/// Writes a file as a whole, so that it survives a crash once this returns.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = || format!("cannot write {}", path.display());
    let folder = path.parent().context("a file lies in a folder")?;
    let mut draft = tempfile_in(folder).with_context(shown)?;
    let written = draft.1.write_all(bytes).and_then(|()| draft.1.sync_all());
    let renamed = written.and_then(|()| std::fs::rename(&draft.0, path));
    if renamed.is_err() {
        let _ = std::fs::remove_file(&draft.0);
    }
    renamed.and_then(|()| File::open(folder)?.sync_all()).with_context(shown)
}

/// A file with a name of its own.
fn tempfile_in(folder: &Path) -> std::io::Result<(PathBuf, File)> {
    let process = std::process::id();
    let path = folder.join(format!(".draft-{process}"));
    let mut options = File::options();
    // One that is left is from a process of this number that has ended.
    let file = options.create(true).truncate(true).write(true).open(&path)?;
    Ok((path, file))
}

/// Makes a folder and those above it up to `top`, which is there; they survive a crash.
pub fn make_durably(top: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    for above in folder.ancestors().skip(1).take_while(|above| above.starts_with(top)) {
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

fn file_name(step: &str) -> Result<String> {
    let fits = (1..=NAME_BYTES_MAX).contains(&step.len()) && !step.contains(char::is_control);
    ensure!(
        fits,
        "step {step:?}: a name has 1 to {NAME_BYTES_MAX} bytes and no control characters"
    );
    let mut name = String::new();
    for byte in step.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => name.push(byte.into()),
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(name)
}

impl Steps {
    /// Those of a job.
    pub fn of(job: &Job) -> Result<Steps> {
        ensure!(
            job.work.is_dir(),
            "the work area {} of job {} is gone",
            job.work.display(),
            job.id
        );
        let folder = job.work.join(FOLDER).join("steps");
        Ok(Steps { folder, attempt: job.attempt })
    }

    /// Records that a step has finished. A step that has finished before keeps its record.
    pub fn done(&self, job: &Job, step: &str) -> Result<()> {
        let path = self.folder.join(file_name(step)?);
        if path.exists() {
            return Ok(());
        }
        make_durably(&job.work, &self.folder)?;
        let finished_seconds = SystemClock.now().seconds;
        let record = Step { step: step.to_owned(), attempt: self.attempt, finished_seconds };
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        write_durably(&path, &line)
    }

    /// Whether a step has finished.
    pub fn has(&self, step: &str) -> Result<bool> {
        let path = self.folder.join(file_name(step)?);
        path.try_exists().with_context(|| path.display().to_string())
    }

    /// All that have finished, in the order in which they did, as far as seconds tell.
    pub fn list(&self) -> Result<Vec<Step>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.folder.display().to_string())?,
        };
        let mut steps = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            let read = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let step: Step = serde_json::from_slice(&read)
                .with_context(|| format!("{} is not the record of a step", path.display()))?;
            steps.push(step);
        }
        steps.sort_by(|a, b| (a.finished_seconds, &a.step).cmp(&(b.finished_seconds, &b.step)));
        Ok(steps)
    }

    /// Forgets that a step has finished.
    pub fn clear(&self, step: &str) -> Result<()> {
        let path = self.folder.join(file_name(step)?);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                bail!("step {step:?} has not finished")
            }
            removed => removed.with_context(|| path.display().to_string())?,
        }
        Ok(File::open(&self.folder)?.sync_all()?)
    }
}

/// Whether a command returns before its checkpoint is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At once.
    No,
    /// Only then.
    UntilShipped,
}

/// Takes a checkpoint and has it shipped, if jobs have a place for that. The step has finished whatever becomes of it.
///
/// # Errors
/// If the work area cannot be read; if it is waited for and the checkpoint cannot be taken, is not shipped or does not count.
pub fn take(job: &Job, step: &str, wait: Wait) -> Result<Option<Taken>> {
    let Some(setup) = setup_of(&job.work)? else { return Ok(None) };
    // What went wrong in the background was told to nobody yet.
    if let Some(trouble) = ship::trouble(&job.work)? {
        note!("forebay: checkpoint {}: {}", trouble.number, trouble.reason);
    }
    let snapshot = || snapshot::take(&job.work, &setup, step, &SystemClock);
    if wait == Wait::UntilShipped {
        let taken = ship::patiently(SystemClock.instant(), snapshot)
            .with_context(|| format!("no checkpoint was taken after step {step}"))?;
        let shipped = ship::run(&job.work, Until::Waited);
        // A later one of a step beside this one holds the same.
        let latest = Shelf::at(&setup.place).latest(setup.bounds.elsewhere)?;
        if !latest.iter().any(|summary| summary.counts && summary.number >= taken.number) {
            shipped.with_context(|| format!("checkpoint {}", taken.number))?;
            let trouble = ship::trouble(&job.work)?.map(|trouble| trouble.reason);
            let why = trouble.unwrap_or_else(|| "it is not safe yet".to_owned());
            bail!("checkpoint {}: {why}", taken.number);
        }
        return Ok(Some(taken));
    }
    let taken = match snapshot() {
        Ok(taken) => taken,
        Err(error) => {
            note!("forebay: no checkpoint was taken after step {step}: {}", chain(&error));
            return Ok(None);
        }
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["checkpoint", "ship"]).stdin(Stdio::null());
    // The streams of the job are not kept open by it.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("nothing ships the checkpoint")?;
    Ok(Some(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_any_name_are_recorded_once_and_can_be_cleared() {
        let work = tempfile::tempdir().unwrap();
        let job = |attempt| Job {
            id: "1".into(),
            work: work.path().to_owned(),
            attempt,
            keeps_steps: true,
        };
        let steps = Steps::of(&job(1)).unwrap();
        assert!(steps.list().unwrap().is_empty());
        for name in ["load", "../etc/passwd", ".", "..", "a b", "ä", "%2E", "-x"] {
            assert!(!steps.has(name).unwrap(), "{name}");
            steps.done(&job(1), name).unwrap();
            assert!(steps.has(name).unwrap(), "{name}");
        }
        let again = Steps::of(&job(2)).unwrap();
        again.done(&job(2), "load").unwrap();
        let list = again.list().unwrap();
        assert_eq!(list.len(), 8);
        assert!(list.iter().all(|step| step.attempt == 1));
        again.clear("load").unwrap();
        assert!(!steps.has("load").unwrap());
        assert!(again.clear("load").is_err());
        for name in ["", "a\nb", &"x".repeat(81)] {
            assert!(steps.done(&job(1), name).is_err(), "{name:?}");
            assert!(steps.has(name).is_err(), "{name:?}");
        }
    }
}
