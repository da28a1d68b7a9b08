//! Names: creating, asking for, listing, renaming and removing many files, measured file by file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_base::{ByteSize, Clock};
use serde::{Deserialize, Serialize};

use super::meeting::{self, Meeting, Together};
use super::numbered::{Numbered, stat};
use super::pattern::Pattern;
use super::{check_bytes, check_count};
use crate::resource::ratio;
use forebay_analytics::amount::{Count, Scale};
use forebay_analytics::error::{Error, Result};
use forebay_analytics::histogram::Recorder;
use forebay_analytics::step::Progress;
use forebay_analytics::step::{Action, Context, Outcome};

/// The most that is written to a file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Creates files in one directory, asks for the attributes of each, lists the directory, renames and
/// removes each. Jobs with the same directory share it. Uses the memory of one file, and 300 KiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    /// The directory; made if it is missing, and removed if it is empty at the end.
    pub directory: PathBuf,
    /// How many files.
    #[serde(default = "files")]
    pub files: Count,
    /// Bytes that are written to each file in one call as it is created, up to 64 MiB.
    #[serde(default)]
    pub file_bytes: ByteSize,
    /// How many jobs start to measure at the same time: a number, or "class" for all jobs of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_together: Option<Together>,
    /// How long a job waits for the others.
    #[serde(default = "start_limit_seconds")]
    pub start_limit_seconds: u64,
    /// The directory in which jobs meet; made up from the class and the settings if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_directory: Option<PathBuf>,
}

fn files() -> Count {
    10_000.into()
}

fn start_limit_seconds() -> u64 {
    600
}

impl Names {
    /// 10,000 empty files in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Names {
        Names {
            directory,
            files: files(),
            file_bytes: ByteSize(0),
            start_together: None,
            start_limit_seconds: start_limit_seconds(),
            start_directory: None,
        }
    }

    /// Runs the step with files whose names begin with `name`; `began` is called when all is ready to
    /// be measured, and what it returns is kept until the end.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::WrongContent`] if the listing has
    /// another number of these names than there are files; [`Error::Io`]. Then the files are removed.
    pub fn run<T>(
        &self,
        name: &str,
        scale: Scale,
        clock: &dyn Clock,
        began: impl FnOnce() -> Result<T>,
        progress: &mut Progress<'_>,
    ) -> Result<Outcome> {
        let count = self.files.at(scale);
        check_count("files", count)?;
        check_bytes("file_bytes", self.file_bytes, 0, FILE_BYTES_MAX)?;
        let directory = &self.directory;
        fs::create_dir_all(directory).map_err(Error::io("create directory", directory))?;
        let mut work = Work {
            directory,
            files: Numbered::new(directory, &format!("{name}-file-")),
            renamed: Numbered::new(directory, &format!("{name}-renamed-")),
            count,
            made: 0,
            clock,
            outcome: Outcome::rows(count),
        };
        let kept = began()?;
        work.create(self.file_bytes)?;
        progress(count);
        work.measure("stat", "stat", |files, _, number| stat(files.at(number)))?;
        work.list()?;
        work.measure("rename", "rename", |files, renamed, number| {
            fs::rename(files.at(number), renamed.at(number))
        })?;
        work.measure("unlink", "remove", |_, renamed, number| fs::remove_file(renamed.at(number)))?;
        work.made = 0;
        drop(kept);
        Ok(std::mem::take(&mut work.outcome))
    }
}

/// The files and what was measured on them. Dropped, it removes what is left.
struct Work<'a> {
    directory: &'a Path,
    files: Numbered,
    renamed: Numbered,
    count: u64,
    /// Files that may be there.
    made: u64,
    clock: &'a dyn Clock,
    outcome: Outcome,
}

impl Work<'_> {
    /// Creates all files with `bytes` bytes each.
    fn create(&mut self, bytes: ByteSize) -> Result<()> {
        let directory = self.directory;
        let mut pattern = Pattern::new(bytes.as_usize(), 0);
        self.made = self.count;
        self.measure("create", "create", |files, _, number| {
            let path = files.at(number);
            let mut file = match File::create(path) {
                // The last one of the jobs that shared the directory took it away.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(directory)?;
                    File::create(path)?
                }
                other => other?,
            };
            if bytes.0 == 0 {
                return Ok(());
            }
            // No two files are alike.
            file.write_all(pattern.at(number * FILE_BYTES_MAX, bytes.as_usize()))
        })
    }

    /// Does `work` with every file. Adds the times to the outcome as `name`, and the rate.
    fn measure(
        &mut self,
        name: &str,
        action: &'static str,
        mut work: impl FnMut(&mut Numbered, &mut Numbered, u64) -> io::Result<()>,
    ) -> Result<()> {
        let mut times = Recorder::default();
        let start = self.clock.instant();
        let mut last = start;
        for number in 0..self.count {
            if let Err(error) = work(&mut self.files, &mut self.renamed, number) {
                return Err(Error::io(action, self.files.at(number))(error));
            }
            let now = self.clock.instant();
            times.record(now.saturating_duration_since(last));
            last = now;
        }
        self.add(name, &times, last.saturating_duration_since(start));
        Ok(())
    }

    /// Lists the directory; the time of a call is that of the whole listing.
    fn list(&mut self) -> Result<()> {
        let mut times = Recorder::default();
        let start = self.clock.instant();
        self.files.list(self.count)?;
        let time = self.clock.instant().saturating_duration_since(start);
        times.record(time);
        self.add("readdir", &times, time);
        Ok(())
    }

    fn add(&mut self, name: &str, times: &Recorder, time: Duration) {
        let rate = ratio(self.count as f64, time.as_secs_f64());
        self.outcome = std::mem::take(&mut self.outcome)
            .with(&format!("{name}_per_second"), rate)
            .with_latency(name, times.buckets());
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // The error that led here is the one to report.
        for number in 0..self.made {
            let _ = fs::remove_file(self.files.at(number));
            let _ = fs::remove_file(self.renamed.at(number));
        }
        // Others may still use it.
        let _ = fs::remove_dir(self.directory);
    }
}

impl Action for Names {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        match &mut self.start_directory {
            Some(directory) => context.resolve(directory)?,
            None => self.start_directory = Some(meeting::place(context, self)?),
        }
        context.resolve(&mut self.directory)
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let limit = Duration::from_secs(self.start_limit_seconds);
        let meet = || {
            Meeting::attend_if(self.start_together, self.start_directory.as_deref(), limit, context)
        };
        self.run(&context.job.name, context.scale, context.clock, meet, progress)
    }
}
