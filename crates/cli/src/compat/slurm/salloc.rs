//! salloc: a shell, or a command, in an interactive job.
//!
//! Slurm's runs on the machine where it was called, unless the site has it run on the first node of the job
//! (`use_interactive_step`). Here it does so always.

use std::process::ExitCode;

use anyhow::Result;
use forebay_grid::spec::{JobSpec, Rerun};
use forebay_grid::vocabulary::JobId;

use super::super::row::client;
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, ignored, read, refused};
use super::options::{JOB, JOB_VARIABLES};
use super::spec;
use crate::commands::grid::run::{Stage, attached_saying};

use Takes::{Maybe, Nothing, Value};

const SALLOC: &[Opt] = &[
    harmless("bell", ' ', Nothing),
    harmless("kill-command", 'K', Maybe),
    harmless("no-bell", ' ', Nothing),
    harmless("no-kill", 'k', Maybe),
    refused(
        "no-shell",
        ' ',
        Nothing,
        "a job of a Forebay grid has a program and ends with it: submit one with sbatch",
    ),
    harmless("wait", 'W', Value),
    read("version", 'V', Nothing),
    ignored("x11", ' ', Maybe),
];

const GRAMMAR: Grammar = Grammar {
    command: "salloc",
    style: Style::Gnu,
    until: Until::FirstWord,
    tables: &[SALLOC, JOB],
};

/// Runs it; the exit code is that of the shell or the command.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut given = GRAMMAR.read_command(arguments)?;
    given.fill_from("SALLOC_", JOB_VARIABLES);
    spec::refuse_input(&given)?;
    let shell = || std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
    let command = if given.words.is_empty() { vec![shell()] } else { given.words.clone() };
    let mut client = client()?;
    let job = spec::job(GRAMMAR.command, &given, &mut client)?;
    let spec = JobSpec { command, output: None, error: None, rerun: Rerun::Once, ..job };
    attached_saying(spec, true, tell)
}

/// Says what salloc says of a job.
fn tell(stage: Stage, job: JobId) {
    match stage {
        Stage::Begun => note!("salloc: Granted job allocation {job}"),
        Stage::Over => note!("salloc: Relinquishing job allocation {job}"),
    }
}
