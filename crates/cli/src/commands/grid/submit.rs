//! `forebay submit`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_engine::message::{Answer, Ask};
use forebay_grid::parse::requeue::RequeueExits;
use forebay_grid::spec::{Checkpoint, JobSpec, Rerun};

use super::batch::{self, Print};
use super::job_file::{JobFile, Program};
use super::placement::Placement;
use super::{Which, no_sense};
use crate::output::put;

/// Submit a job to the grid and print its number.
///
/// The job runs in the present directory, as the present user, with your environment unless --export says
/// otherwise. A script of a job file is kept with the job: changing the file later changes nothing. Its
/// output goes to forebay-JOB.out there, unless -o says otherwise; %J stands for the job and
/// %I for the element of an array. It finds WORK, UTIL and TMPDIR in its environment: directories of its
/// own that are removed at its end.
///
/// Exit code: 0 if the job was taken and its number printed, 2 if not; with --wait that of the job: 128 and the
/// number of the signal that ended it, as after `forebay kill` or at its time limit (143, or 137 for one that
/// then ended with 0 or never ran); 127 if it could not be started.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay submit -- sas report.sas                       one job
  forebay submit -J 'load[1-100]%10' -- ./load.sh        an array, ten elements at a time
  forebay submit -w 'done(12) && ended(load)' -- ./sum   when others have ended
  forebay submit --wait -- sh -c 'exit 3'; echo $?       wait for its exit code
  ls *.csv | sed 's/^/load /' | forebay submit --batch -   a job for each line
  forebay submit -n 4 month.sh -- 2026-10                a script with options in it, and its argument
  forebay submit -q night -n 4 --mem '8 GiB' --requeue-exit '99 EXCLUDE(137)' -- ./big")]
pub struct Submit {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    options: Options,
    /// Wait for its end, and exit as it did.
    #[arg(long)]
    wait: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Submit a job for each line of a file, or of standard input (-): a command for the shell. Empty lines
    /// and lines that begin with # are left out. The other options hold for each of them.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "wait", "job-file", "file"])]
    batch: Option<PathBuf>,
    /// Job file: a script with lines of options (#FOREBAY -q night -n 4), or TOML; - for standard input.
    #[arg(id = "job-file", value_name = "FILE", required_unless_present_any = ["file", "command", "batch"])]
    job_file: Option<PathBuf>,
    /// The same.
    #[arg(long, value_name = "FILE", conflicts_with = "job-file")]
    file: Option<PathBuf>,
    /// The program and its arguments; after a script its arguments.
    #[arg(last = true)]
    command: Vec<String>,
}

/// What a job is to be, as options or in a job file.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Options {
    #[command(flatten)]
    placement: Placement,
    /// It may be started again if its host is lost.
    #[arg(long)]
    rerunnable: bool,
    /// Exit values after which it is started again: '99 EXCLUDE(137)'.
    #[arg(long, value_name = "LIST", value_parser = |text: &str| text.parse::<RequeueExits>())]
    requeue_exit: Option<RequeueExits>,
    /// File of its output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// File of its errors; with the output if left out.
    #[arg(short, long, value_name = "FILE")]
    error: Option<String>,
    /// Keep its work area when it starts again, for the steps that it has finished.
    #[arg(long)]
    checkpoint: bool,
    /// Hold it until it is released.
    #[arg(long)]
    hold: bool,
}

impl Options {
    /// These options, and those of `other` for what they leave open.
    pub fn over(self, other: Options) -> Options {
        Options {
            placement: self.placement.over(other.placement),
            rerunnable: self.rerunnable || other.rerunnable,
            requeue_exit: self.requeue_exit.or(other.requeue_exit),
            output: self.output.or(other.output),
            error: self.error.or(other.error),
            checkpoint: self.checkpoint || other.checkpoint,
            hold: self.hold || other.hold,
        }
    }

    /// A job that runs `command`.
    pub fn into_spec(self, command: Vec<String>) -> Result<JobSpec> {
        Ok(JobSpec {
            rerun: if self.rerunnable { Rerun::Rerunnable } else { Rerun::AsQueue },
            requeue_exits: self.requeue_exit.unwrap_or_default(),
            output: self.output,
            error: self.error,
            checkpoint: if self.checkpoint { Checkpoint::Steps } else { Checkpoint::None },
            held: self.hold,
            ..self.placement.into_spec(command)?
        })
    }
}

/// A job of a file; what the command line says wins.
fn of_file(path: &Path, options: Options, command: Vec<String>) -> Result<JobSpec> {
    let file = JobFile::read(path)?;
    let options = options.over(file.options);
    match (file.program, command.is_empty()) {
        (Program::Script(name, text), _) => {
            let command = [vec![name], command].concat();
            Ok(JobSpec { script: Some(text), ..options.into_spec(command)? })
        }
        (Program::Command(command), true) => options.into_spec(command),
        (Program::Command(_) | Program::None, false) => options.into_spec(command),
        (Program::None, true) => {
            bail!("{}: neither command nor script: what is to run?", path.display())
        }
    }
}

impl Submit {
    pub fn run(self) -> Result<ExitCode> {
        let spec = match self.job_file.or(self.file) {
            None => self.options.into_spec(self.command)?,
            Some(path) => of_file(&path, self.options, self.command)?,
        };
        let spec = Box::new(spec);
        let mut client = self.which.client()?;
        if let Some(file) = self.batch {
            let print = if self.json { Print::Json } else { Print::Text };
            return batch::submit_lines(&mut client, &spec, &file, print);
        }
        let job = match client.ask(&Ask::Submit { spec })? {
            Answer::Accepted { job } => job,
            answer => return Err(no_sense(&answer)),
        };
        let text =
            if self.json { serde_json::json!({ "job": job }).to_string() } else { job.to_string() };
        put(format!("{text}\n").as_bytes()).with_context(|| format!("job {job} was taken"))?;
        if !self.wait {
            return Ok(ExitCode::SUCCESS);
        }
        match self.which.wait(&Ask::Wait { job })? {
            Answer::Ended { value } => {
                self.which.say_end(job);
                Ok(ExitCode::from(value))
            }
            answer => Err(no_sense(&answer)),
        }
    }
}
