//! Scripts that came with their jobs: written into the work area, and run by the program that their first
//! line names.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::user::Account;

/// Folder of a work area for what belongs to the grid and not to the job.
const FOLDER: &str = ".forebay";

/// Runs a script that names no program.
const SHELL: &str = "/bin/sh";

/// Writes a script as its user, and gives the command that runs it, without its arguments.
pub fn command(text: &str, work: &Path, account: &Account) -> Result<Command> {
    let path = work.join(FOLDER).join("script");
    let write = || -> std::io::Result<()> {
        // The user may have put anything here when the job ran before.
        std::fs::create_dir_all(work.join(FOLDER))?;
        let _ = std::fs::remove_file(&path);
        let mut options = std::fs::OpenOptions::new();
        options.create_new(true).write(true).mode(0o700).open(&path)?.write_all(text.as_bytes())
    };
    account.act(write)?.with_context(|| format!("cannot write {}", path.display()))?;
    // Not left to the kernel: work areas may lie where nothing can be executed.
    let (program, argument) = interpreter(text);
    let mut command = Command::new(program);
    command.args(argument).arg(path);
    Ok(command)
}

/// The program that runs a script, and its one argument, as execve(2) reads them.
fn interpreter(text: &str) -> (&str, Option<&str>) {
    let line = text.strip_prefix("#!").and_then(|rest| rest.lines().next()).unwrap_or("").trim();
    match line.split_once([' ', '\t']) {
        None if line.is_empty() => (SHELL, None),
        None => (line, None),
        Some((program, argument)) => (program, Some(argument.trim_start())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_program() {
        for (text, expected) in [
            ("#!/bin/bash\nx", ("/bin/bash", None)),
            ("#! /usr/bin/env  python3 -u \nx", ("/usr/bin/env", Some("python3 -u"))),
            ("#!\nx", (SHELL, None)),
            ("echo x", (SHELL, None)),
            ("", (SHELL, None)),
        ] {
            assert_eq!(interpreter(text), expected, "{text}");
        }
    }
}
