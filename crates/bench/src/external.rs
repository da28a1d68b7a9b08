//! Other programs.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where programs of the system are that may be missing in PATH.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// A program by its name.
///
/// # Errors
/// If it is not installed.
pub fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .with_context(|| format!("the program {name} is missing (see scripts/setup)"))
}

/// Runs a program to its end and returns what it wrote to standard output.
///
/// It is out of reach of the terminal's Ctrl-C: clean-up must not be cut short.
///
/// # Errors
/// If it cannot be started or fails; the text holds what it wrote to standard error.
pub fn run<I>(program: &std::path::Path, arguments: I) -> Result<String>
where
    I: IntoIterator,
    I::Item: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
