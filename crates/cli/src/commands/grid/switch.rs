//! What changes jobs, hosts and queues: `forebay kill`, `hold`, `release`, `requeue`, `host`, `queue`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use forebay_engine::message::{Answer, Ask};
use forebay_grid::event::{QueueVerb, Verb};
use forebay_grid::journal::HostSwitch;
use forebay_grid::vocabulary::{HostName, QueueName, Target};

use super::{Which, no_sense};

/// The jobs that a command is about.
#[derive(clap::Args)]
pub struct Targets {
    #[command(flatten)]
    which: Which,
    /// Jobs, or elements of arrays: 12 or '12[3]'.
    #[arg(required = true, value_parser = |text: &str| text.parse::<Target>())]
    jobs: Vec<Target>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Targets {
    /// Gives a command about each; exit code 2 if one was refused, with the others carried out.
    pub fn run(self, verb: Verb) -> Result<ExitCode> {
        let mut client = self.which.client()?;
        let mut code = ExitCode::SUCCESS;
        for target in self.jobs {
            match client.ask(&Ask::Command { target, verb }) {
                Ok(Answer::Obeyed { tasks }) if self.json => {
                    outln!("{}", serde_json::json!({ "job": target.to_string(), "tasks": tasks }));
                }
                Ok(Answer::Obeyed { .. }) => {}
                Ok(answer) => return Err(no_sense(&answer)),
                Err(error) => {
                    note!("forebay: {}", crate::output::chain(&error));
                    code = ExitCode::from(2);
                }
            }
        }
        Ok(code)
    }
}

/// Open or close a host: a closed one starts no further jobs.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay host close gridn1\n  forebay host open gridn1")]
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
    /// Let jobs start on it.
    #[command(after_help = "Examples:\n  forebay host open gridn1")]
    Open {
        /// Which.
        #[arg(value_parser = |text: &str| text.parse::<HostName>())]
        host: HostName,
    },
    /// Let no further jobs start on it.
    #[command(after_help = "Examples:\n  forebay host close gridn1")]
    Close {
        /// Which.
        #[arg(value_parser = |text: &str| text.parse::<HostName>())]
        host: HostName,
    },
}

/// Open, close, activate or inactivate a queue.
///
/// A closed queue takes no jobs, an inactive one starts none.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay queue close night\n  forebay queue inactivate night")]
pub struct Queue {
    #[command(flatten)]
    which: Which,
    /// What.
    #[arg(value_enum)]
    verb: QueueWord,
    /// Which.
    #[arg(value_parser = |text: &str| text.parse::<QueueName>())]
    queue: QueueName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum QueueWord {
    /// Let it take jobs.
    Open,
    /// Let it take none.
    Close,
    /// Let it start jobs.
    Activate,
    /// Let it start none.
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
