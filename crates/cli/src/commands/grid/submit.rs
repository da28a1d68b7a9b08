//! `forebay submit`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::notify::{Moments, Notify};
use forebay_grid::parse::requeue::RequeueExits;
use forebay_grid::spec::{Checkpoint, JobSpec, Rerun};
use forebay_grid::vocabulary::{Moment, ProfileName};

use super::batch::{self, Print};
use super::job_file::{JobFile, Program};
use super::placement::Placement;
use super::wait::UNKNOWN;
use super::{Which, detail, memory, no_sense, print_json};
use crate::compat::{has_other_lines, of_other_lines};
use crate::output::put;

/// Submit a job to the grid and print its number.
///
/// The job runs in the current directory, as the current user, with your environment unless --export says
/// otherwise. The grid keeps its own copy of the script in a job file, so later edits have no effect. Output goes
/// to forebay-JOB.out in the current directory unless -o says otherwise; in that name %J stands for the job and
/// %I for the element of an array.
///
/// The grid sets these variables for the job: WORK, UTIL and TMPDIR (directories of its own, removed when it ends),
/// FOREBAY_JOB (its number), FOREBAY_INDEX (its element if it is an array, otherwise 0), FOREBAY_SLOTS (slots it may use),
/// FOREBAY_HOST, FOREBAY_GRID (folder of the grid), FOREBAY_ATTEMPT (number of this start, from 1), FOREBAY_RESTART
/// (1 from the second start on) and FOREBAY_CHECKPOINT (1 with --checkpoint); for a service FOREBAY_SERVICE and FOREBAY_PORT;
/// FOREBAY_FULLSTIMER (the log of what it uses, in queues that keep one).
///
/// A job that could never start is refused, because no host of the grid is large enough or --depends can no longer
/// become true.
///
/// Exit code: 0 if the job was accepted and its number printed, 2 if not. With --wait, the exit code of the job;
/// 128 plus the number of the signal that killed it, as after `forebay kill` or at its time limit (143, or 137 if
/// it then exited with 0 or never ran); 127 if it could not be started, or --depends could no longer become true.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay submit -- sas report.sas                       one job
  forebay submit -J 'load[1-100]%10' -- ./load.sh        an array, ten elements at a time
  forebay submit -w 'done(12) && ended(load)' -- ./sum   after other jobs
  forebay submit --wait -- sh -c 'exit 3'; echo $?       wait for its exit code
  ls *.csv | sed 's/^/load /' | forebay submit --batch -   one job per line
  forebay submit --notify fail --mail ann@example.com -- ./load.sh   mail if it fails
  forebay submit --time-limit '2 h' --warn 'USR1@5min' -- ./long   a signal before its time limit
  forebay submit -n 4 month.sh -- 2026-10                a script with options, and its argument
  forebay submit -q night -n 4 --mem '8 GiB' --requeue-exit '99 EXCLUDE(137)' -- ./big")]
pub struct Submit {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    options: Options,
    /// Wait for the job to end, and exit with its exit code.
    #[arg(long)]
    wait: bool,
    /// Do not submit the job: say whether it would be accepted, and when and where it would start at the latest, as far as time
    /// limits of other jobs say it.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Submit one job per line of a file, or of standard input (-). Each line is a shell command; empty lines and
    /// lines that begin with # are skipped. The other options apply to every job.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "wait", "job-file", "file", "dry_run"])]
    batch: Option<PathBuf>,
    /// Job file: a script with option lines (#FOREBAY -q night -n 4), or TOML; - for standard input.
    #[arg(id = "job-file", value_name = "FILE", required_unless_present_any = ["file", "command", "batch"])]
    job_file: Option<PathBuf>,
    /// Job file, given as an option.
    #[arg(long, value_name = "FILE", conflicts_with = "job-file")]
    file: Option<PathBuf>,
    /// Program and its arguments; after a job file, the arguments of its script.
    #[arg(last = true)]
    command: Vec<String>,
}

/// What a job is to be, as options or in a job file.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Options {
    #[command(flatten)]
    placement: Placement,
    /// Start the job again if its host is lost.
    #[arg(long)]
    rerunnable: bool,
    /// Exit codes after which the job starts again, such as '99 EXCLUDE(137)': EXCLUDE chooses another host.
    #[arg(long, value_name = "LIST", value_parser = |text: &str| text.parse::<RequeueExits>())]
    requeue_exit: Option<RequeueExits>,
    /// File for its output, or a directory for forebay-JOB.out [default: forebay-%J.out].
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// File for its errors, or a directory for forebay-JOB.err [default: that of the output].
    #[arg(short, long, value_name = "FILE")]
    error: Option<String>,
    /// Keep the work area when the job restarts, so that it can skip the steps that it has finished.
    #[arg(long)]
    checkpoint: bool,
    /// Hold the job until `forebay release`.
    #[arg(long)]
    hold: bool,
    /// Shell command to run before the program, on its host, as a part of the job. If it fails, the program is not started
    /// and the job exits with its exit code.
    #[arg(long, value_name = "COMMAND")]
    pre: Option<String>,
    /// Shell command to run after the program, also if that failed or was terminated gently; FOREBAY_EXIT is its exit
    /// code.
    #[arg(long, value_name = "COMMAND")]
    post: Option<String>,
    /// Application profile of the grid, which fills in what is not given here.
    #[arg(long, value_name = "NAME", value_parser = |text: &str| text.parse::<ProfileName>())]
    profile: Option<ProfileName>,
    /// Start the job on no host whose I/O pressure is beyond the grid's setting io_pressure_max.
    #[arg(long)]
    io_heavy: bool,
    /// Of what to notify: begin (the job has started), end (all of it has ended), fail (it has ended and failed); several with
    /// commas [default with --mail or --webhook: end].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = |text: &str| text.parse::<Moments>())]
    notify: Vec<Moments>,
    /// Address to which notifications are mailed; may be repeated [default with --notify: you, on the controller's machine].
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    mail: Vec<String>,
    /// URL to which notifications are sent by POST, as JSON.
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
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
            pre: self.pre.or(other.pre),
            post: self.post.or(other.post),
            profile: self.profile.or(other.profile),
            io_heavy: self.io_heavy || other.io_heavy,
            notify: either(self.notify, other.notify),
            mail: either(self.mail, other.mail),
            webhook: self.webhook.or(other.webhook),
        }
    }

    /// A job that runs `command`.
    pub fn into_spec(mut self, command: Vec<String>) -> Result<JobSpec> {
        let spec = std::mem::take(&mut self.placement).into_spec(command)?;
        Ok(self.rest_onto(spec))
    }

    /// A job that is described already, with these options over what it says.
    fn onto(mut self, base: JobSpec) -> Result<JobSpec> {
        let spec = std::mem::take(&mut self.placement).onto(base)?;
        Ok(self.rest_onto(spec))
    }

    /// What is not about the placement, over what a job says.
    fn rest_onto(self, base: JobSpec) -> JobSpec {
        let notify = notification(self.notify, self.mail, self.webhook).or(base.notify);
        JobSpec {
            notify,
            rerun: if self.rerunnable { Rerun::Rerunnable } else { base.rerun },
            requeue_exits: self.requeue_exit.unwrap_or(base.requeue_exits),
            output: self.output.map(in_directory).or(base.output),
            error: self.error.map(in_directory).or(base.error),
            checkpoint: if self.checkpoint { Checkpoint::Steps } else { base.checkpoint },
            held: self.hold || base.held,
            pre: self.pre.or(base.pre),
            post: self.post.or(base.post),
            profile: self.profile.or(base.profile),
            io_heavy: self.io_heavy || base.io_heavy,
            ..base
        }
    }
}

/// A list, or the other one if it is empty.
fn either<T>(list: Vec<T>, other: Vec<T>) -> Vec<T> {
    if list.is_empty() { other } else { list }
}

/// Whom a job notifies, if it notifies anybody.
pub fn notification(
    on: Vec<Moments>,
    mail: Vec<String>,
    webhook: Option<String>,
) -> Option<Box<Notify>> {
    Notify::asked(on, mail, webhook, crate::compat::me)
}

/// A path that is a directory, marked as one: the file in it has the name that it has if none is given.
fn in_directory(path: String) -> String {
    let is_marked = path.ends_with('/') || !Path::new(&path).is_dir();
    if is_marked { path } else { path + "/" }
}

/// A job of a file; what the command line says wins, then #FOREBAY lines, then #SBATCH and #BSUB lines.
fn of_file(path: &Path, options: Options, command: Vec<String>, which: &Which) -> Result<JobSpec> {
    let file = JobFile::read(path)?;
    let options = options.over(file.options);
    match (file.program, command.is_empty()) {
        (Program::Script(name, text), _) => {
            let command = [vec![name], command].concat();
            if !has_other_lines(&text) {
                return Ok(JobSpec { script: Some(text), ..options.into_spec(command)? });
            }
            let base = of_other_lines(&text, &mut which.client()?);
            let base = base.with_context(|| path.display().to_string())?;
            options.onto(JobSpec { command, script: Some(text), ..base })
        }
        (Program::Command(command), true) => options.into_spec(command),
        (Program::Command(_) | Program::None, false) => options.into_spec(command),
        (Program::None, true) => {
            bail!("{}: add a command or a script: the job has nothing to run", path.display())
        }
    }
}

/// Says what would become of a job.
fn dry_run(client: &mut Client, spec: JobSpec, json: bool) -> Result<ExitCode> {
    let answer = client.ask(&Ask::Try { spec: Box::new(spec) })?;
    let Answer::Tried { queue, host, start } = answer else { return Err(no_sense(&answer)) };
    if json {
        return print_json(&serde_json::json!({ "queue": queue, "host": host, "start": start }));
    }
    match (start, host) {
        (Some(start), Some(host)) if start <= Moment::from(SystemClock.now()) => {
            outln!("it would start now on {host} in queue {queue}");
        }
        (Some(start), Some(host)) => {
            outln!("it would start by {} on {host} in queue {queue}", detail::time(start));
        }
        _ => outln!(
            "it would be accepted in queue {queue}; its start time is unknown: jobs before it have no time limit, or \
             something else than room keeps it waiting"
        ),
    }
    Ok(ExitCode::SUCCESS)
}

impl Submit {
    pub fn run(self) -> Result<ExitCode> {
        let spec = match self.job_file.or(self.file) {
            None => self.options.into_spec(self.command)?,
            Some(path) => of_file(&path, self.options, self.command, &self.which)?,
        };
        let mut client = self.which.client()?;
        memory::warn_if_not_enforced(&mut client, &spec);
        if let Some(file) = self.batch {
            let print = if self.json { Print::Json } else { Print::Text };
            return batch::submit_lines(&mut client, &spec, &file, print);
        }
        if self.dry_run {
            return dry_run(&mut client, spec, self.json);
        }
        let job = client.submit(spec)?;
        let text =
            if self.json { serde_json::json!({ "job": job }).to_string() } else { job.to_string() };
        put(format!("{text}\n").as_bytes()).with_context(|| format!("job {job} was accepted"))?;
        if !self.wait {
            return Ok(ExitCode::SUCCESS);
        }
        let Some(value) = self.which.wait_for(job.into())? else {
            return Ok(ExitCode::from(UNKNOWN));
        };
        self.which.say_end(job.into());
        Ok(ExitCode::from(value))
    }
}
