//! The `forebay` command.
//!
//! Each subcommand is a module of `commands`; `home` knows the layout of a file system's home folder;
//! `daemon` is the process behind a mount, and `control` the socket through which commands talk to it; `help`
//! is the list of commands.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on options are the help that terminals show, where brackets are no links"
)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod attribution;
mod background;
mod binds;
mod checkpoint;
mod commands;
mod compat;
mod control;
mod daemon;
mod ground;
mod help;
mod home;
mod member;
mod monitors;
mod mounts;
mod running;
mod schedules;
mod tuning;
mod waits;
mod watched;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{FromArgMatches as _, Parser, Subcommand};
use forebay_grid::event::Verb;

use self::output::Unprinted;

/// A shared POSIX file system, analytics workloads and a job grid, in one command.
#[derive(Parser)]
#[command(name = "forebay", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mkfs(commands::mkfs::Mkfs),
    Mount(commands::mount::Mount),
    Umount(commands::umount::Umount),
    Status(commands::status::Status),
    Fileset(commands::fileset::Fileset),
    Disk(commands::disk::Disk),
    Tasks(commands::tasks::Tasks),
    Quota(commands::quota::Quota),
    Snapshot(commands::snapshot::Snapshot),
    Policy(commands::policy::Policy),
    Scrub(commands::scrub::Scrub),
    Migrate(commands::migrate::Migrate),
    Recall(commands::migrate::Recall),
    Where(commands::migrate::Where),
    Space(commands::space::Space),
    Stat(commands::stat::Stat),
    Top(commands::top::Top),
    Waiters(commands::waiters::Waiters),
    Fsck(commands::fsck::Fsck),
    Store(commands::store::StoreCommand),
    Cluster(commands::cluster::Cluster),
    Bench(commands::bench::Bench),
    Step(commands::step::Step),
    Demo(commands::demo::Demo),
    Doctor(Box<commands::doctor::Doctor>),
    Plan(Box<commands::plan::PlanCommand>),
    Up(commands::grid::updown::Up),
    Down(commands::grid::updown::Down),
    Controller(commands::grid::daemons::Controller),
    Reload(commands::grid::daemons::Reload),
    Agent(commands::grid::daemons::Agent),
    Relay(commands::grid::daemons::Relay),
    #[command(hide = true)]
    Native(binds::Native),
    #[command(hide = true)]
    JobShim(commands::grid::daemons::JobShim),
    Submit(Box<commands::grid::submit::Submit>),
    Run(Box<commands::grid::run::Run>),
    Checkpoint(commands::grid::checkpoint::Checkpoint),
    Jobs(commands::grid::jobs::Jobs),
    Hosts(commands::grid::jobs::Hosts),
    Queues(commands::grid::jobs::Queues),
    Resources(commands::grid::jobs::Resources),
    History(commands::grid::jobs::History),
    Explain(commands::grid::jobs::Explain),
    Areas(commands::grid::areas::Areas),
    Usage(commands::grid::usage::Usage),
    Output(commands::grid::jobs::Output),
    /// Terminate waiting or running jobs: SIGTERM first, SIGKILL after 10 seconds.
    #[command(after_help = "Examples:
  forebay kill 12
  forebay kill 12 '17[3]'
  forebay kill --queue night --name 'load*'")]
    Kill(commands::grid::switch::Targets),
    /// Hold jobs: waiting ones do not start, running ones are suspended.
    #[command(
        after_help = "Examples:\n  forebay hold 12\n  forebay hold --user ann\n  forebay release 12"
    )]
    Hold(commands::grid::switch::Targets),
    /// Release jobs from a hold.
    #[command(after_help = "Examples:\n  forebay release 12\n  forebay release 12 '17[3]'")]
    Release(commands::grid::switch::Targets),
    Wait(commands::grid::wait::Wait),
    /// Restart jobs, whether running or finished.
    #[command(after_help = "Examples:\n  forebay requeue 12\n  forebay requeue '17[3]'")]
    Requeue(commands::grid::switch::Targets),
    Signal(commands::grid::switch::Signal),
    Modify(Box<commands::grid::modify::Modify>),
    Switch(commands::grid::modify::Switch),
    Host(commands::grid::switch::Host),
    Queue(commands::grid::switch::Queue),
    Reservation(commands::grid::reservation::Reservation),
    Group(commands::grid::group::Group),
    Service(commands::grid::service::Service),
    Flow(commands::grid::flow::Flow),
    Web(commands::web::Web),
    Alerts(commands::web::Alerts),
    Compat(commands::compat::Compat),
    Completions(commands::shell::Completions),
    Man(commands::shell::Man),
}

fn main() -> ExitCode {
    // A reader that went away (`forebay stat | head`) ends the program quietly.
    // SAFETY: this restores the default disposition before any other thread exists.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    // Called by a name of Slurm's or LSF's, it is that command.
    let mut words = std::env::args_os();
    if let Some(command) = words.next().as_deref().and_then(compat::called) {
        return command.run(words);
    }
    let parsed = help::command().try_get_matches();
    let result = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command.run(),
        Err(refusal) => refuse(&refusal),
    };
    result.unwrap_or_else(|error| {
        if error.downcast_ref::<Unprinted>().is_some_and(Unprinted::is_reader_gone) {
            return ExitCode::from(141);
        }
        note!("forebay: {}", output::chain(&error));
        ExitCode::from(2)
    })
}

/// Prints requested help, or what is wrong with a command line.
fn refuse(refusal: &clap::Error) -> Result<ExitCode> {
    let code = refusal.exit_code();
    if code == 0 {
        refusal.print().map_err(Unprinted)?;
        std::io::stdout().flush().map_err(Unprinted)?;
    } else {
        // Without standard error there is nobody to tell.
        let _ = refusal.print();
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        let takes_program = words.first().is_some_and(|verb| verb == "submit" || verb == "run");
        if takes_program && words.iter().all(|word| word != "--") {
            let verb = words[0].display();
            note!("\n  tip: write -- before the program, as in: forebay {verb} -- sleep 10");
        }
    }
    Ok(ExitCode::from(u8::try_from(code)?))
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Command::Mkfs(command) => command.run(),
            Command::Mount(command) => command.run(),
            Command::Umount(command) => command.run(),
            Command::Status(command) => command.run(),
            Command::Fileset(command) => command.run(),
            Command::Disk(command) => command.run(),
            Command::Tasks(command) => command.run(),
            Command::Quota(command) => command.run(),
            Command::Snapshot(command) => command.run(),
            Command::Policy(command) => command.run(),
            Command::Scrub(command) => command.run(),
            Command::Migrate(command) => command.run(),
            Command::Recall(command) => command.run(),
            Command::Where(command) => command.run(),
            Command::Space(command) => command.run(),
            Command::Stat(command) => command.run(),
            Command::Top(command) => command.run(),
            Command::Waiters(command) => command.run(),
            Command::Fsck(command) => command.run(),
            Command::Store(command) => command.run(),
            Command::Cluster(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Step(command) => command.run(),
            Command::Demo(command) => command.run(),
            Command::Doctor(command) => command.run(),
            Command::Plan(command) => command.run(),
            Command::Up(command) => command.run(),
            Command::Down(command) => command.run(),
            Command::Controller(command) => command.run(),
            Command::Reload(command) => command.run(),
            Command::Agent(command) => command.run(),
            Command::Relay(command) => command.run(),
            Command::Native(command) => command.run(),
            Command::JobShim(command) => command.run(),
            Command::Submit(command) => command.run(),
            Command::Run(command) => command.run(),
            Command::Checkpoint(command) => command.run(),
            Command::Jobs(command) => command.run(),
            Command::Hosts(command) => command.run(),
            Command::Queues(command) => command.run(),
            Command::Resources(command) => command.run(),
            Command::History(command) => command.run(),
            Command::Explain(command) => command.run(),
            Command::Areas(command) => command.run(),
            Command::Usage(command) => command.run(),
            Command::Output(command) => command.run(),
            Command::Kill(command) => command.run(Verb::Kill),
            Command::Hold(command) => command.run(Verb::Hold),
            Command::Release(command) => command.run(Verb::Release),
            Command::Wait(command) => command.run(),
            Command::Requeue(command) => command.run(Verb::Requeue),
            Command::Signal(command) => command.run(),
            Command::Modify(command) => command.run(),
            Command::Switch(command) => command.run(),
            Command::Host(command) => command.run(),
            Command::Queue(command) => command.run(),
            Command::Reservation(command) => command.run(),
            Command::Group(command) => command.run(),
            Command::Service(command) => command.run(),
            Command::Flow(command) => command.run(),
            Command::Web(command) => command.run(),
            Command::Alerts(command) => command.run(),
            Command::Compat(command) => command.run(),
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
        }
    }
}
