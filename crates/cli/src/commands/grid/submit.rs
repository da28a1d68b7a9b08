//! `forebay submit`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_base::ByteSize;
use forebay_engine::message::{Answer, Ask};
use forebay_grid::parse::array::name_and_array;
use forebay_grid::parse::dependency::Dependency;
use forebay_grid::parse::hosts::HostList;
use forebay_grid::parse::period::Period;
use forebay_grid::parse::requeue::RequeueExits;
use forebay_grid::spec::{Checkpoint, JobSpec, Rerun};
use forebay_grid::vocabulary::QueueName;

use super::batch::{self, Print};
use super::{Which, no_sense};

/// Variables that every job gets from whoever submits it.
const PASSED_ON: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "TERM"];

/// Submit a job to the grid and print its number.
///
/// The job runs in the present directory, as the present user. Its output goes to forebay-JOB.out there,
/// unless -o says otherwise; %J stands for the job and %I for the element of an array. It finds WORK, UTIL
/// and TMPDIR in its environment: directories of its own that are removed at its end.
///
/// Exit code: 0 if the job was taken, 2 if not; with --wait that of the job (128 and the number of a
/// signal; 137 also for a job that was killed before it ran).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay submit -- sas report.sas                       one job
  forebay submit -J 'load[1-100]%10' -- ./load.sh        an array, ten elements at a time
  forebay submit -w 'done(12) && ended(load)' -- ./sum   when others have ended
  forebay submit --wait -- sh -c 'exit 3'; echo $?       wait for its exit code
  ls *.csv | sed 's/^/load /' | forebay submit --batch -   a job for each line
  forebay submit -q night -n 4 --mem '8 GiB' --requeue-exit '99 EXCLUDE(137)' -- ./big")]
pub struct Submit {
    #[command(flatten)]
    which: Which,
    /// Queue; the default queue if left out.
    #[arg(short, long, value_parser = |text: &str| text.parse::<QueueName>())]
    queue: Option<QueueName>,
    /// Slots, all on one host.
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// Hosts it may run on, with preference: 'gridn1+1 others+2'.
    #[arg(short = 'm', long, default_value = "", value_parser = |text: &str| text.parse::<HostList>())]
    hosts: HostList,
    /// Memory that is set aside for it.
    #[arg(long, value_name = "SIZE")]
    mem: Option<String>,
    /// Name, or name and elements of an array: 'load[1-100]%10'.
    #[arg(short = 'J', long, default_value = "")]
    name: String,
    /// What has to come true first, as in 'done(12) && ended(load*)'.
    #[arg(short = 'w', long, value_name = "CONDITION", value_parser = |text: &str| text.parse::<Dependency>())]
    depends: Option<Dependency>,
    /// Priority among your own jobs: higher first.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    priority: i32,
    /// It may be started again if its host is lost.
    #[arg(long)]
    rerunnable: bool,
    /// Exit values after which it is started again: '99 EXCLUDE(137)'.
    #[arg(long, value_name = "LIST", default_value = "", value_parser = |text: &str| text.parse::<RequeueExits>())]
    requeue_exit: RequeueExits,
    /// A variable of its environment, K=V, or K for the present value; may be repeated.
    #[arg(long, value_name = "K=V")]
    env: Vec<String>,
    /// How long it may run: '90 s', '2 h', '1:30:00', or minutes.
    #[arg(long, value_name = "TIME", value_parser = |text: &str| text.parse::<Period>())]
    time_limit: Option<Period>,
    /// File of its output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// File of its errors; with the output if left out.
    #[arg(short, long, value_name = "FILE")]
    error: Option<String>,
    /// Keep its work area when it starts again, for the steps that it has finished.
    #[arg(long)]
    checkpoint: bool,
    /// What it is charged to in `forebay usage`.
    #[arg(short = 'P', long, default_value = "")]
    project: String,
    /// Hold it until it is released.
    #[arg(long)]
    hold: bool,
    /// Wait for its end, and exit as it did.
    #[arg(long)]
    wait: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Submit a job for each line of a file, or of standard input (-): a command for the shell. Empty lines
    /// and lines that begin with # are left out. The other options hold for each of them.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "wait"])]
    batch: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required_unless_present = "batch")]
    command: Vec<String>,
}

impl Submit {
    pub fn run(self) -> Result<ExitCode> {
        let (which, wait, json) = (self.which.client(), self.wait, self.json);
        let batch = self.batch.clone();
        let spec = Box::new(self.into_spec()?);
        let mut client = which?;
        if let Some(file) = batch {
            let print = if json { Print::Json } else { Print::Text };
            return batch::submit_lines(&mut client, &spec, &file, print);
        }
        let job = match client.ask(&Ask::Submit { spec })? {
            Answer::Accepted { job } => job,
            answer => return Err(no_sense(&answer)),
        };
        if json {
            println!("{}", serde_json::json!({ "job": job }));
        } else {
            println!("{job}");
        }
        if !wait {
            return Ok(ExitCode::SUCCESS);
        }
        match client.ask(&Ask::Wait { job })? {
            Answer::Ended { value } => Ok(ExitCode::from(value)),
            answer => Err(no_sense(&answer)),
        }
    }

    fn into_spec(self) -> Result<JobSpec> {
        let (name, array) = name_and_array(&self.name)?;
        let directory = std::env::current_dir()?;
        let directory = directory.to_str().context("the present directory is no text")?.to_owned();
        let memory = self.mem.map(|text| text.parse::<ByteSize>()).transpose();
        Ok(JobSpec {
            name: name.to_owned(),
            array,
            command: self.command,
            queue: self.queue,
            slots: self.slots,
            hosts: self.hosts,
            memory: memory.map_err(|error| anyhow::anyhow!("--mem: {error}"))?,
            depends: self.depends,
            priority: self.priority,
            rerun: if self.rerunnable { Rerun::Rerunnable } else { Rerun::AsQueue },
            requeue_exits: self.requeue_exit,
            environment: environment(&self.env)?,
            time_limit: self.time_limit,
            output: self.output,
            error: self.error,
            directory,
            umask: umask(),
            checkpoint: if self.checkpoint { Checkpoint::Steps } else { Checkpoint::None },
            held: self.hold,
            project: self.project,
        })
    }
}

/// The file mode creation mask of this process.
pub fn umask() -> u32 {
    // SAFETY: umask always succeeds; it is put back at once, before there is another thread.
    unsafe {
        let umask = libc::umask(0o077);
        libc::umask(umask);
        umask
    }
}

/// The environment of a job: what every job gets, and what is given as K=V or K.
pub fn environment(given: &[String]) -> Result<Vec<(String, String)>> {
    let present = |key: &str| std::env::var(key).ok().map(|value| (key.to_owned(), value));
    let mut variables: Vec<(String, String)> =
        PASSED_ON.iter().filter_map(|key| present(key)).collect();
    for text in given {
        variables.push(match text.split_once('=') {
            Some(("", _)) => bail!("--env {text}: a variable has a name"),
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => present(text).with_context(|| format!("--env {text}: it is not set"))?,
        });
    }
    Ok(variables)
}
