//! The `forebay` command.
//!
//! Each subcommand is a module of `commands`; `home` knows the layout of a file system's home folder;
//! `daemon` is the process behind a mount, and `control` the socket through which commands talk to it.

mod commands;
mod control;
mod daemon;
mod home;
mod mounts;
mod output;
mod tuning;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An analytics grid that keeps every core fed.
#[derive(Parser)]
#[command(name = "forebay", version, about, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  forebay mkfs /srv/grid --disk /mnt/nvme0       make a file system
  forebay mount /srv/grid /grid                  mount it
  forebay status /srv/grid                       see how it is doing
  forebay stat /grid --interval 1                watch what it does
  forebay umount /grid                           unmount it
  forebay fsck /srv/grid                         check it
  forebay demo                                   see all of this, with an analytics program";

#[derive(Subcommand)]
enum Command {
    Mkfs(commands::mkfs::Mkfs),
    Mount(commands::mount::Mount),
    Umount(commands::umount::Umount),
    Status(commands::status::Status),
    Fileset(commands::fileset::Fileset),
    Stat(commands::stat::Stat),
    Fsck(commands::fsck::Fsck),
    Step(commands::step::Step),
    Demo(commands::demo::Demo),
}

fn main() -> ExitCode {
    // A reader that went away (`forebay stat | head`) ends the program quietly.
    // SAFETY: this restores the default disposition before any other thread exists.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    let result = match Cli::parse().command {
        Command::Mkfs(command) => command.run(),
        Command::Mount(command) => command.run(),
        Command::Umount(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Fileset(command) => command.run(),
        Command::Stat(command) => command.run(),
        Command::Fsck(command) => command.run(),
        Command::Step(command) => command.run(),
        Command::Demo(command) => command.run(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("forebay: {}", output::chain(&error));
        ExitCode::from(2)
    })
}
