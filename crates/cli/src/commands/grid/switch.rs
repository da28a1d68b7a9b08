//! What changes jobs, hosts and queues: `forebay kill`, `hold`, `release`, `requeue`, `host`, `queue`.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, JobView, Refusal};
use forebay_grid::event::{JobSignal, QueueVerb, Verb};
use forebay_grid::journal::HostSwitch;
use forebay_grid::vocabulary::{HostName, JobId, QueueName, Target};

use super::detail::Chosen;
use super::{Which, no_sense};

/// The jobs that a command is about.
#[derive(clap::Args)]
pub struct Targets {
    #[command(flatten)]
    which: Which,
    /// Jobs, or elements of arrays: 12 or '12[3]'.
    #[arg(required_unless_present_any = ["queue", "user", "name", "group"],
        conflicts_with_all = ["queue", "user", "name", "group"], value_parser = |text: &str| text.parse::<Target>())]
    jobs: Vec<Target>,
    #[command(flatten)]
    chosen: Chosen,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Targets {
    /// Gives a command about each; exit code 2 if one was refused, with the others carried out. Of jobs that were
    /// chosen by what is true of them, some may have nothing to be done: only if all are refused it is a fault.
    pub fn run(self, verb: Verb) -> Result<ExitCode> {
        let mut client = self.which.client()?;
        let is_choice = !self.chosen.is_everything();
        let targets = match is_choice {
            true => chosen_jobs(&mut client, &self.chosen)?,
            false => self.jobs,
        };
        let (mut obeyed, mut idle, mut code) = (false, Vec::new(), ExitCode::SUCCESS);
        let refused = |error: &anyhow::Error| {
            note!("forebay: {}", crate::output::chain(error));
            ExitCode::from(2)
        };
        for target in targets {
            match client.ask(&Ask::Command { target, verb }) {
                Ok(Answer::Obeyed { tasks }) => {
                    obeyed = true;
                    if self.json || is_choice {
                        tell_obeyed(target, tasks, self.json)?;
                    }
                }
                Ok(answer) => return Err(no_sense(&answer)),
                Err(error) if is_choice && error.is::<Refusal>() => idle.push(error),
                Err(error) => code = refused(&error),
            }
        }
        for error in idle.iter().filter(|_| !obeyed) {
            code = refused(error);
        }
        Ok(code)
    }
}

/// Send running jobs a signal: HUP, QUIT, USR1, USR2 or WINCH.
///
/// All processes of a job get it. What it means is the program's own matter; a program that has not prepared for HUP, QUIT,
/// USR1 or USR2 ends. Use kill, hold and release for TERM, STOP and CONT.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  forebay signal USR1 12\n  forebay signal HUP --name 'server*'"
)]
pub struct Signal {
    /// Signal to send.
    #[arg(value_parser = |text: &str| text.parse::<JobSignal>())]
    signal: JobSignal,
    #[command(flatten)]
    targets: Targets,
}

impl Signal {
    pub fn run(self) -> Result<ExitCode> {
        self.targets.run(Verb::Signal(self.signal))
    }
}

/// The jobs that have not ended and of which all of that is true; those of an array as one.
fn chosen_jobs(client: &mut Client, chosen: &Chosen) -> Result<Vec<Target>> {
    let (lines, _) = client.jobs(None, false, None)?;
    let of_line = |line: &JobView| line.id.parse::<Target>().ok().map(|target| target.job);
    let jobs: BTreeSet<JobId> =
        lines.iter().filter(|line| chosen.takes(line)).filter_map(of_line).collect();
    if jobs.is_empty() {
        bail!("no unfinished job matches; forebay jobs lists the unfinished jobs");
    }
    Ok(jobs.into_iter().map(Target::from).collect())
}

/// Says which job it was; of those that were named it is known.
fn tell_obeyed(target: Target, tasks: u32, json: bool) -> Result<()> {
    if json {
        crate::output::put_json_line(
            &serde_json::json!({ "job": target.to_string(), "tasks": tasks }),
        )?;
    } else {
        outln!("{target}");
    }
    Ok(())
}

/// Open, close or remove a host; a closed host starts no further jobs.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  forebay host close gridn1\n  forebay host open gridn1\n  forebay host remove gridn1"
)]
pub struct Host {
    #[command(flatten)]
    which: Which,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: HostVerb,
}

#[derive(Subcommand)]
enum HostVerb {
    /// Let jobs start on a host again.
    #[command(after_help = "Examples:\n  forebay host open gridn1")]
    Open {
        /// Name of the host.
        #[arg(value_parser = |text: &str| text.parse::<HostName>())]
        host: HostName,
    },
    /// Start no further jobs on a host.
    #[command(after_help = "Examples:\n  forebay host close gridn1")]
    Close {
        /// Name of the host.
        #[arg(value_parser = |text: &str| text.parse::<HostName>())]
        host: HostName,
    },
    /// Remove a host from the lists, after its agent has exited and its jobs were given up. If it joins again, it
    /// is open.
    #[command(after_help = "Examples:\n  forebay host remove gridn1")]
    Remove {
        /// Name of the host.
        #[arg(value_parser = |text: &str| text.parse::<HostName>())]
        host: HostName,
    },
}

/// Open, close, activate or inactivate a queue.
///
/// A closed queue accepts no new jobs; an inactive queue starts none.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay queue close night\n  forebay queue inactivate night")]
pub struct Queue {
    #[command(flatten)]
    which: Which,
    /// What to do.
    #[arg(value_enum, value_name = "ACTION")]
    verb: QueueWord,
    /// Queue to change.
    #[arg(value_parser = |text: &str| text.parse::<QueueName>())]
    queue: QueueName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum QueueWord {
    /// Accept new jobs.
    Open,
    /// Accept no new jobs.
    Close,
    /// Start jobs.
    Activate,
    /// Start no jobs.
    Inactivate,
}

/// Carries one command out; what it did, as JSON, if that is wanted.
fn obey(which: &Which, ask: &Ask, done: Option<serde_json::Value>) -> Result<ExitCode> {
    match which.ask(ask)? {
        Answer::Obeyed { .. } => {
            if let Some(done) = done {
                outln!("{done}");
            }
            Ok(ExitCode::SUCCESS)
        }
        answer => Err(no_sense(&answer)),
    }
}

impl Host {
    pub fn run(self) -> Result<ExitCode> {
        let (host, state) = match self.verb {
            HostVerb::Open { host } => (host, HostSwitch::Open),
            HostVerb::Close { host } => (host, HostSwitch::Closed),
            HostVerb::Remove { host } => (host, HostSwitch::Removed),
        };
        let done = self.json.then(|| serde_json::json!({ "host": host, "switch": state }));
        obey(&self.which, &Ask::Host { host, state }, done)
    }
}

impl Queue {
    pub fn run(self) -> Result<ExitCode> {
        let verb = match self.verb {
            QueueWord::Open => QueueVerb::Open,
            QueueWord::Close => QueueVerb::Close,
            QueueWord::Activate => QueueVerb::Activate,
            QueueWord::Inactivate => QueueVerb::Inactivate,
        };
        let done = self.json.then(|| serde_json::json!({ "queue": self.queue, "verb": verb }));
        obey(&self.which, &Ask::Queue { queue: self.queue, verb }, done)
    }
}
