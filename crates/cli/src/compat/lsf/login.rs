//! `bsub -L SHELL`: a job begins as a login of its user does, with what the files of that shell set.
//!
//! The shell runs the script itself, as a login shell. With other shells than those of the family of sh, and for a script whose
//! first line names another program, the option has no effect, and a warning says so.

use anyhow::{Result, ensure};

/// Shells whose option `-l` makes them login shells, also when they run a script.
const SHELLS: [&str; 5] = ["bash", "dash", "ksh", "sh", "zsh"];

/// The name of a shell that is one of these.
fn name_of(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    SHELLS.contains(&name).then_some(name)
}

/// Refuses what is not a path.
///
/// # Errors
/// If it is not absolute.
pub fn check(shell: &str) -> Result<()> {
    ensure!(shell.starts_with('/'), "-L {shell}: give the absolute path of a shell");
    Ok(())
}

/// The words before a command that a login shell runs; none if this one cannot.
pub fn command(shell: &str) -> Option<[&str; 3]> {
    name_of(shell).map(|_| [shell, "-l", "-c"])
}

/// The script as a login shell runs it; none if that cannot be.
pub fn script(shell: &str, text: &str) -> Option<String> {
    name_of(shell)?;
    let Some(first) = text.lines().next().and_then(|line| line.strip_prefix("#!")) else {
        return Some(format!("#!{shell} -l\n{text}"));
    };
    let mut words = first.split_whitespace();
    let (program, options) = (words.next()?, words.next());
    let name = name_of(program)?;
    // A shell that is the same by name is the one of the script; plain sh is any of them.
    if name != "sh" && Some(name) != name_of(shell) {
        return None;
    }
    let program = if name == "sh" { shell } else { program };
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    let options = match options {
        None => "-l".to_owned(),
        Some(letters) if is_letters(letters) => format!("-l{}", &letters[1..]),
        Some(_) => return None,
    };
    words.next().is_none().then(|| format!("#!{program} {options}\n{rest}"))
}

fn is_letters(option: &str) -> bool {
    let letters = option.strip_prefix('-').unwrap_or_default();
    !letters.is_empty() && letters.chars().all(|letter| letter.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_a_shell_is_run_by_a_login_shell_and_another_one_as_it_is() {
        let run = |text: &str| script("/bin/bash", text);
        for (text, wanted) in [
            ("true\n", "#!/bin/bash -l\ntrue\n"),
            ("#!/bin/sh\ntrue\n", "#!/bin/bash -l\ntrue\n"),
            ("#! /usr/bin/bash -eu\ntrue\n", "#!/usr/bin/bash -leu\ntrue\n"),
            ("#!/bin/bash", "#!/bin/bash -l\n"),
        ] {
            assert_eq!(run(text).as_deref(), Some(wanted), "{text}");
        }
        for text in ["#!/usr/bin/env python3\n", "#!/bin/zsh\n", "#!/bin/bash --posix\n", "#!\n"] {
            assert_eq!(run(text), None, "{text}");
        }
        assert_eq!(script("/bin/tcsh", "true\n"), None);
        assert_eq!(
            (command("/bin/tcsh"), command("/bin/sh")),
            (None, Some(["/bin/sh", "-l", "-c"]))
        );
        check("/bin/tcsh").unwrap();
        assert!(check("bash").unwrap_err().to_string().contains("-L bash"));
    }
}
