//! What an agent must not forget of the jobs that Slurm has: a file for each start of a task in HOST/allocations.
//!
//! Its first line is the order. Then come `slurm NUMBER` once Slurm has taken the job, `held` and `free` as the agent holds it
//! there and lets it go, `warned NUMBER` once Slurm has passed so many warnings on to the steps of its own srun, and `end` with how it ended. Jobs of Slurm go on while the machine of the agent is down, so each line is
//! durable before what it says is done or told. A line that is not whole was not said.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::files::folder;
use crate::run::{End, Task};

/// Where the records of an agent are.
pub const FOLDER: &str = "allocations";

/// The record of one start.
#[derive(Clone, Debug)]
pub struct Record(PathBuf);

/// What a record says.
#[derive(Debug)]
pub struct Known {
    pub task: Task,
    /// The number of the job of Slurm, if that was known.
    pub id: Option<u64>,
    /// Whether the agent holds it there.
    pub is_held: bool,
    /// How many warnings Slurm has passed on to the steps of its own srun.
    pub warned_steps: u32,
    pub end: Option<End>,
}

impl Record {
    /// Those of an agent by the name of the run; the folder is made.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn all(agent: &Path) -> Result<Vec<(String, Record)>> {
        let path = agent.join(FOLDER);
        folder(&path, 0o700)?;
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&path).with_context(|| path.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            all.push((name.to_owned(), Record(path.clone())));
        }
        Ok(all)
    }

    /// Makes that of a run.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn make(agent: &Path, run: &str, task: &Task) -> Result<Record> {
        let folder = agent.join(FOLDER);
        let path = folder.join(run);
        let shown = || path.display().to_string();
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.create_new(true).append(true).open(&path).with_context(shown)?;
        let mut order = serde_json::to_vec(task)?;
        order.push(b'\n');
        let written = file.write_all(&order).and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| File::open(&folder)?.sync_all()) {
            let _ = std::fs::remove_file(&path);
            return Err(error).with_context(shown);
        }
        Ok(Record(path))
    }

    /// Adds a line.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn say(&self, line: &str) -> Result<()> {
        let shown = || self.0.display().to_string();
        let mut file = File::options().append(true).open(&self.0).with_context(shown)?;
        // A line end before it: one that a crash has cut stays alone.
        file.write_all(format!("\n{line}\n").as_bytes()).with_context(shown)?;
        file.sync_data().with_context(shown)
    }

    /// Says how the start ended.
    ///
    /// # Errors
    /// As [`Record::say`].
    pub fn say_end(&self, end: &End) -> Result<()> {
        self.say(&format!("end {}", serde_json::to_string(end)?))
    }

    /// What it says; none if not even its order is whole: then nothing was done.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self) -> Result<Option<Known>> {
        let shown = || self.0.display().to_string();
        let text = std::fs::read_to_string(&self.0).with_context(shown)?;
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let Some(order) = lines.next() else { return Ok(None) };
        let task = serde_json::from_str(order).with_context(shown)?;
        let mut known = Known { task, id: None, is_held: false, warned_steps: 0, end: None };
        for line in lines {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("slurm", number) => known.id = number.parse().ok(),
                ("held", _) => known.is_held = true,
                ("free", _) => known.is_held = false,
                ("warned", count) => known.warned_steps = count.parse().unwrap_or(0),
                ("end", end) if known.end.is_none() => known.end = serde_json::from_str(end).ok(),
                _ => {}
            }
        }
        Ok(Some(known))
    }

    pub fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!("{}: {error}", self.0.display());
        }
    }
}
