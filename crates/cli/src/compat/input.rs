//! Standard input of a batch job from a file, as `sbatch --input` and `bsub -i` want it.
//!
//! The standard input of a job is /dev/null. A script of a shell is given a line that opens the file before anything else; with
//! another program that cannot be done.

use anyhow::{Result, bail, ensure};

/// Shells that know `exec <FILE`.
const SHELLS: [&str; 5] = ["bash", "dash", "ksh", "sh", "zsh"];

/// Whether a name stands for no file.
fn is_nothing(file: &str) -> bool {
    file.is_empty() || file == "/dev/null" || file.eq_ignore_ascii_case("none")
}

/// Refuses a file for standard input where it cannot be opened for the job. `option` is how the command line names it.
///
/// # Errors
/// If one is wanted.
pub fn refuse(option: &str, file: &str) -> Result<()> {
    ensure!(
        is_nothing(file),
        "{option} {file} is for batch scripts that sbatch or bsub submits; redirect standard input in the script"
    );
    Ok(())
}

/// A script whose first act is to read from a file. `option` is how the command line names it.
///
/// # Errors
/// If the script names no shell, or the name of the file has parts that only the job could replace.
pub fn redirected(script: &str, option: &str, file: &str) -> Result<String> {
    if is_nothing(file) {
        return Ok(script.to_owned());
    }
    ensure!(
        !file.contains(['%', '\0', '\n']),
        "{option} {file}: a name with % is not supported; redirect standard input in the script"
    );
    let quoted = file.replace('\'', r"'\''");
    let opens = format!("exec <'{quoted}' || exit 1\n");
    // Without such a line it is one of /bin/sh.
    if !script.starts_with("#!") {
        return Ok(opens + script);
    }
    let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
    let program = first[2..].split_whitespace().next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or(program);
    if !SHELLS.contains(&name) {
        bail!(
            "{option} {file} is for scripts of sh, bash, dash, ksh and zsh; redirect standard input in the script"
        );
    }
    Ok(format!("{first}\n{opens}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_a_shell_reads_from_the_file_and_another_one_is_refused() {
        let of = |script: &str, file: &str| redirected(script, "-i", file);
        assert_eq!(
            of("#!/bin/sh -e\ncat\n", "it's").unwrap(),
            "#!/bin/sh -e\nexec <'it'\\''s' || exit 1\ncat\n"
        );
        assert_eq!(of("#!/usr/bin/python3\n", "/dev/null").unwrap(), "#!/usr/bin/python3\n");
        assert_eq!(of("cat\n", "in").unwrap(), "exec <'in' || exit 1\ncat\n");
        assert!(["", "/dev/null", "NONE"].iter().all(|none| refuse("-i", none).is_ok()));
        assert!(refuse("-i", "in").is_err());
        for (script, file) in [("#!/usr/bin/python3\n", "in"), ("#!/bin/sh\n", "in.%J")] {
            assert!(of(script, file).is_err(), "{script} {file}");
        }
    }
}
