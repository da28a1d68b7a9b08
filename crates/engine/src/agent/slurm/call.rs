//! Calls of Slurm's commands. Each takes as long as Slurm lets it wait, so they are made in threads of their own.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use forebay_process::user::{Account, is_root};

/// What a command answered.
pub struct Answer {
    pub is_success: bool,
    pub output: String,
    pub errors: String,
}

/// Calls a command with the rights of a user, or with those of this process.
///
/// # Errors
/// If it cannot be started.
pub fn call(
    program: &str,
    arguments: &[String],
    input: &str,
    account: Option<&Account>,
) -> Result<Answer, String> {
    let shown = |error: &dyn std::fmt::Display| format!("{program}: {error}");
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").env_clear().env("LC_ALL", "C");
    for name in ["PATH", "SLURM_CONF"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(account) = account.filter(|_| is_root()) {
        command.env("HOME", &account.home);
        let rights = account.rights();
        // SAFETY: it makes system calls only.
        unsafe { command.pre_exec(move || rights.take()) };
    }
    let mut child = command.spawn().map_err(|error| shown(&error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read everything says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| shown(&error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Answer {
        is_success: output.status.success(),
        output: text(&output.stdout),
        errors: text(&output.stderr),
    })
}
