//! A log for each job in the style of FULLSTIMER of SAS: per step and for the job as a whole real time, processor times, memory, page
//! faults, context switches, and when it ended. Made from the record, so an older result has its logs too.
//!
//! What the system did not say is omitted. Where SAS counts blocks, these logs have the bytes that system calls moved: that is known per step,
//! and also of files that memory serves.

use std::fmt::Write as _;
use std::path::Path;

use forebay_analytics::dataset::format_datetime;
use forebay_base::Usage;

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
        let used = &step.resources;
        let end = begun + step.start_seconds + used.real_seconds;
        let block = Block {
            real_seconds: used.real_seconds,
            user_seconds: used.user_seconds,
            system_seconds: used.system_seconds,
            io_wait_seconds: None,
            memory_bytes: used.peak_memory_bytes,
            timestamp: at(end),
            step: Some(number + 1),
            faults: (used.major_faults, used.minor_faults),
            switches: (used.voluntary_switches, used.involuntary_switches),
            bytes: (used.read_bytes, used.written_bytes),
        };
        let title = format!("STEP {} ({}) used (Total process time)", used.step, step.kind);
        block.write(&title, &mut text);
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

/// What a job used, that has no steps of its own: `unix_seconds` is when it ended.
#[must_use]
pub fn of_job(title: &str, usage: &Usage, unix_seconds: f64) -> String {
    let mut text = String::new();
    Block::of(usage, Some(format_datetime(unix_seconds))).write(title, &mut text);
    text
}

/// The lines of a step or a job.
struct Block {
    real_seconds: f64,
    user_seconds: f64,
    system_seconds: f64,
    io_wait_seconds: Option<f64>,
    memory_bytes: Option<u64>,
    timestamp: Option<String>,
    step: Option<usize>,
    /// With I/O, and without.
    faults: (u64, u64),
    /// Voluntary and involuntary.
    switches: (u64, u64),
    /// Read and written.
    bytes: (Option<u64>, Option<u64>),
}

impl Block {
    fn of(used: &Usage, timestamp: Option<String>) -> Block {
        Block {
            real_seconds: used.real_seconds,
            user_seconds: used.user_seconds,
            system_seconds: used.system_seconds,
            io_wait_seconds: used.io_wait_seconds,
            memory_bytes: used.peak_memory_bytes,
            timestamp,
            step: None,
            faults: (used.major_faults, used.minor_faults),
            switches: (used.voluntary_switches, used.involuntary_switches),
            bytes: (used.read_bytes, used.written_bytes),
        }
    }

    fn write(&self, title: &str, text: &mut String) {
        let lines = [
            ("real time", Some(time(self.real_seconds))),
            ("user cpu time", Some(time(self.user_seconds))),
            ("system cpu time", Some(time(self.system_seconds))),
            ("i/o wait time", self.io_wait_seconds.map(time)),
            ("memory", self.memory_bytes.map(|bytes| format!("{:.2}k", bytes as f64 / 1024.0))),
            ("Timestamp", self.timestamp.clone()),
            ("Step Count", self.step.map(|step| step.to_string())),
            ("Page Faults", Some(self.faults.0.to_string())),
            ("Page Reclaims", Some(self.faults.1.to_string())),
            ("Voluntary Context Switches", Some(self.switches.0.to_string())),
            ("Involuntary Context Switches", Some(self.switches.1.to_string())),
            ("Bytes Read", self.bytes.0.map(|bytes| bytes.to_string())),
            ("Bytes Written", self.bytes.1.map(|bytes| bytes.to_string())),
        ];
        let _ = writeln!(text, "\nNOTE: {title}:");
        for (name, value) in lines {
            if let Some(value) = value {
                let _ = writeln!(text, "      {name:<35} {value}");
            }
        }
    }
}

/// A time as SAS writes it: seconds below a minute, then minutes and hours before them.
#[must_use]
pub fn time(seconds: f64) -> String {
    let hundredths = (seconds.max(0.0) * 100.0).round() as u64;
    let (whole, part) = (hundredths / 100, hundredths % 100);
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds}.{part:02} seconds"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}.{part:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}.{part:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_minutes_and_hours_where_they_are_long() {
        assert_eq!(time(0.0), "0.00 seconds");
        assert_eq!(time(59.994), "59.99 seconds");
        assert_eq!(time(59.996), "1:00.00");
        assert_eq!(time(3725.5), "1:02:05.50");
    }
}
