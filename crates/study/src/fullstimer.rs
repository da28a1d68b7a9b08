//! A log for each job in the style of FULLSTIMER of SAS: per step and for the job as a whole real time, processor times, memory, page
//! faults, context switches, and when it ended ([`forebay_base::fullstimer`]). Made from the record, so an older result has its logs too.

use std::fmt::Write as _;
use std::path::Path;

use forebay_analytics::dataset::format_datetime;
use forebay_base::Usage;
use forebay_base::fullstimer::Block;
use forebay_workload::program::StepRecord;

use crate::error::{Error, Result};
use crate::record::{Exit, JobRecord, Record, Run, Stage};

/// Folder of the logs in a result.
pub const FOLDER: &str = "fullstimer";

/// Writes a log for each job of the record that was started into `directory/fullstimer`; returns how many.
///
/// # Errors
/// [`Error::Io`].
pub fn write(record: &Record, directory: &Path) -> Result<usize> {
    let folder = directory.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let mut count = 0;
    for (place, run) in record.runs.iter().enumerate() {
        for (stage_number, stage) in run.stages.iter().enumerate() {
            let jobs = stage.jobs.iter().enumerate();
            for (number, job) in jobs.filter(|(_, job)| job.exit != Exit::NotStarted) {
                let name =
                    format!("run-{place}-stage-{stage_number}-{number}-{}.log", plain(&job.name));
                let path = folder.join(name);
                std::fs::write(&path, log(record, run, stage, job))
                    .map_err(Error::io("write", &path))?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// A name as part of the name of a file.
fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// The log of one job.
#[must_use]
pub fn log(record: &Record, run: &Run, stage: &Stage, job: &JobRecord) -> String {
    let mut text = format!(
        "NOTE: Forebay {}, workload {}, stage {}, job {} ({}), node {}, on {}.\n",
        record.version,
        record.workload.name,
        stage.name,
        job.name,
        job.class,
        job.node,
        record.machine.host
    );
    let begun = job.start_seconds.unwrap_or(0.0);
    let at = |seconds: f64| run.started_unix_seconds.map(|start| format_datetime(start + seconds));
    for (number, step) in job.steps.iter().enumerate() {
        let end = begun + step.start_seconds + step.resources.real_seconds;
        text += &of_step(step, number + 1, at(end));
    }
    let block = Block::of(&job.usage, job.end_seconds.and_then(at));
    block.write("The job used", &mut text);
    let end = match &job.exit {
        Exit::Success => "succeeded".to_owned(),
        Exit::Failure { code, message } => format!("failed with exit code {code}: {message}"),
        Exit::Signal { signal } => format!("was ended by signal {signal}"),
        Exit::NotStarted => "was never started".to_owned(),
    };
    let _ = writeln!(text, "\nNOTE: The job {end}.");
    text
}

/// What a step used, the `number`-th of its job, that ended at `timestamp`.
#[must_use]
pub fn of_step(step: &StepRecord, number: usize, timestamp: Option<String>) -> String {
    let used = &step.resources;
    let block = Block {
        real_seconds: used.real_seconds,
        user_seconds: used.user_seconds,
        system_seconds: used.system_seconds,
        io_wait_seconds: None,
        memory_bytes: used.peak_memory_bytes,
        timestamp,
        step: Some(number),
        faults: (used.major_faults, used.minor_faults),
        switches: (used.voluntary_switches, used.involuntary_switches),
        bytes: (used.read_bytes, used.written_bytes),
    };
    let mut text = String::new();
    let title = format!("STEP {} ({}) used (Total process time)", used.step, step.kind);
    block.write(&title, &mut text);
    text
}

/// What a job used, that has no steps of its own: `unix_seconds` is when it ended.
#[must_use]
pub fn of_job(title: &str, usage: &Usage, unix_seconds: f64) -> String {
    let mut text = String::new();
    Block::of(usage, Some(format_datetime(unix_seconds))).write(title, &mut text);
    text
}
