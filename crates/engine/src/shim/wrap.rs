//! Commands before and after the program of a job, and a program that starts it.
//!
//! One shell runs them, as a part of the job: as its user, in its group, with its files. Signals reach
//! whatever runs at that moment; the shell stays, so that the commands after the program run also when the job is ended
//! gently. By force they end as well.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use forebay_grid::wrap::Wrap;

/// The program of a job, with what surrounds it.
pub fn around(program: &Command, wrap: &Wrap) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text(wrap)).arg("forebay");
    command.arg(program.get_program()).args(program.get_args());
    command
}

/// Signals that end a shell unless it says otherwise, and that may be sent to a job: by its user, or as a warning.
const HEARD: &str = "TERM INT HUP QUIT USR1 USR2 ALRM";

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn text(wrap: &Wrap) -> OsString {
    let mut lines = vec![format!("trap : {HEARD}")];
    for pre in &wrap.pre {
        let pre = quoted(pre);
        lines.push(format!(
            "/bin/sh -c {pre} || {{ status=$?; printf 'forebay: the command before the job failed with %s: %s\\n' \"$status\" \
             {pre} >&2; exit \"$status\"; }}"
        ));
    }
    lines.push(match &wrap.starter {
        Some(starter) => {
            format!("/bin/sh -c {} forebay \"$@\"", quoted(&format!("{starter} \"$@\"")))
        }
        None => "\"$@\"".to_owned(),
    });
    lines.push("status=$?".to_owned());
    for post in &wrap.post {
        lines.push(format!("FOREBAY_EXIT=$status /bin/sh -c {}", quoted(post)));
    }
    // How the program ended is how the job did: also by which signal.
    lines.push(format!("trap - {HEARD}"));
    lines.push("[ \"$status\" -le 128 ] || kill -$((status - 128)) $$ 2>/dev/null".to_owned());
    lines.push("exit \"$status\"".to_owned());
    OsStr::from_bytes(lines.join("\n").as_bytes()).to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn run(program: &[&str], wrap: &Wrap) -> (std::process::ExitStatus, String) {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        let ended = around(&command, wrap).output().unwrap();
        let text = [ended.stdout, ended.stderr].concat();
        (ended.status, String::from_utf8(text).unwrap())
    }

    fn commands(commands: &[&str]) -> Vec<String> {
        commands.iter().map(|command| (*command).to_owned()).collect()
    }

    #[test]
    fn commands_run_in_order_around_the_program_whose_exit_value_counts() {
        let wrap = Wrap {
            pre: commands(&["echo 'a'", "echo b"]),
            post: commands(&["echo post $FOREBAY_EXIT", "exit 9"]),
            starter: Some("env STARTED=1".to_owned()),
            ..Wrap::default()
        };
        let (status, text) =
            run(&["sh", "-c", "echo \"$STARTED $1\"; exit 3", "sh", "it's \"x\""], &wrap);
        assert_eq!((status.code(), &text[..]), (Some(3), "a\nb\n1 it's \"x\"\npost 3\n"));
    }

    #[test]
    fn a_command_before_the_program_that_fails_is_the_end() {
        let wrap = Wrap {
            pre: commands(&["exit 7", "echo never"]),
            post: commands(&["echo never"]),
            ..Wrap::default()
        };
        let (status, text) = run(&["echo", "never"], &wrap);
        assert_eq!(status.code(), Some(7));
        assert!(text.contains("failed with 7: exit 7") && !text.contains("never"), "{text}");
    }

    #[test]
    fn a_program_that_a_signal_has_ended_is_told_by_it_and_what_comes_after_runs() {
        let wrap = Wrap { post: commands(&["echo after $FOREBAY_EXIT"]), ..Wrap::default() };
        let (status, text) = run(&["sh", "-c", "kill -TERM $$"], &wrap);
        assert_eq!(status.signal(), Some(15), "{status:?}");
        assert!(text.contains("after 143"), "{text}");
    }
}
