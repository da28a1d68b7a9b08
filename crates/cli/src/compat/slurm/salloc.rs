//! salloc: a shell, or a command, in an interactive job.
//!
//! Slurm's runs on the machine where it was called, unless the site has it run on the first node of the job
//! (`use_interactive_step`). Here it does so always.

use std::process::ExitCode;

use anyhow::Result;
use forebay_grid::spec::{JobSpec, Rerun};

use super::super::row::client;
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read};
use super::options::JOB;
use super::spec;
use crate::commands::grid::run::attached;

use Takes::{Maybe, Nothing, Value};

const SALLOC: &[Opt] = &[
    harmless("bell", ' ', Nothing),
    harmless("kill-command", 'K', Maybe),
    harmless("no-bell", ' ', Nothing),
    harmless("no-kill", 'k', Maybe),
    harmless("no-shell", ' ', Nothing),
    harmless("wait", 'W', Value),
    read("version", 'V', Nothing),
];

const GRAMMAR: Grammar = Grammar {
    command: "salloc",
    style: Style::Gnu,
    until: Until::FirstWord,
    tables: &[SALLOC, JOB],
};

/// Runs it; the exit code is that of the shell or the command.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    if given.has("version") {
        outln!("slurm {}", super::SLURM_VERSION);
        return Ok(ExitCode::SUCCESS);
    }
    spec::refuse_input(&given)?;
    let shell = || std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
    let command = if given.words.is_empty() { vec![shell()] } else { given.words.clone() };
    let mut client = client()?;
    let job = spec::job(GRAMMAR.command, &given, &mut client)?;
    let spec = JobSpec { command, output: None, error: None, rerun: Rerun::Once, ..job };
    attached(spec, true)
}
