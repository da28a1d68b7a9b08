//! The help of `forebay` as a whole: its commands by area.
//!
//! clap lists subcommands in one row. This list has headings, and takes what it says of each command from the
//! command itself. A test compares it with the commands that there are.

use clap::{Command, CommandFactory as _};

use super::Cli;

/// Commands by area, in the order in which the help lists them.
const GROUPS: [(&str, &[&str]); 12] = [
    (
        "File system",
        &[
            "mkfs", "mount", "umount", "status", "stat", "top", "waiters", "fileset", "disk",
            "migrate", "recall", "where", "space", "quota", "snapshot", "policy", "tasks", "scrub",
            "fsck", "store",
        ],
    ),
    ("Many machines", &["cluster"]),
    ("Workloads", &["bench", "step", "demo"]),
    ("Advice", &["doctor", "plan"]),
    (
        "Jobs",
        &[
            "submit",
            "run",
            "jobs",
            "wait",
            "explain",
            "output",
            "history",
            "kill",
            "hold",
            "release",
            "requeue",
            "signal",
            "modify",
            "switch",
            "group",
            "checkpoint",
        ],
    ),
    ("Services", &["service"]),
    ("Flows of jobs", &["flow"]),
    ("Commands of Slurm and LSF", &["compat"]),
    (
        "Grid",
        &[
            "up",
            "down",
            "hosts",
            "queues",
            "resources",
            "areas",
            "usage",
            "reload",
            "host",
            "queue",
            "reservation",
        ],
    ),
    ("Web pages, REST API, alerts", &["web", "alerts"]),
    ("Daemons of the grid, which up starts", &["controller", "agent", "relay"]),
    ("Shells and manuals", &["completions", "man"]),
];

const EXAMPLES: &str = "Examples:
  forebay mkfs /srv/forebay --disk /mnt/nvme0/forebay   create a file system
  forebay mount /srv/forebay /mnt/forebay               mount it
  forebay status /srv/forebay                           show its state
  forebay umount /mnt/forebay                           unmount it
  forebay fsck /srv/forebay                             check it
  forebay up /srv/jobs --hosts 2 --slots 4              start a grid
  forebay submit --grid /srv/jobs -- date               run a job on it
  forebay demo                                          see all of this with an analytics program";

/// The `forebay` command without a help of our own: with one row of commands.
pub fn plain() -> Command {
    Cli::command()
}

/// The `forebay` command with its help.
pub fn command() -> Command {
    let command = plain();
    let listed = list(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}\
         Options:\n{{options}}\n\n\
         `forebay COMMAND --help` shows the options and examples of a command.\n\n{EXAMPLES}\n"
    ))
}

/// Each group with its heading, a line for each command.
fn list(command: &Command) -> String {
    let names = GROUPS.iter().flat_map(|(_, names)| *names);
    let width = names.map(|name| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{heading}:\n");
        for name in names {
            let found = command.find_subcommand(name);
            let about = found.and_then(Command::get_about).map(ToString::to_string);
            text += &format!("  {name:<width$}  {}\n", about.unwrap_or_default());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_command_exactly_once() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut expected: Vec<&str> = visible.map(Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn every_command_and_option_says_in_its_help_what_it_is() {
        fn look(command: &Command, silent: &mut Vec<String>) {
            for argument in command.get_arguments() {
                if argument.get_help().is_none() {
                    silent.push(format!("{} {}", command.get_name(), argument.get_id()));
                }
            }
            for below in command.get_subcommands() {
                if below.get_about().is_none() {
                    silent.push(below.get_name().to_owned());
                }
                look(below, silent);
            }
        }
        let mut silent = Vec::new();
        look(&Cli::command(), &mut silent);
        assert!(silent.is_empty(), "{silent:?}");
    }

    #[test]
    fn no_example_is_broken_by_the_width_of_a_help_page() {
        /// Columns at which clap wraps on a wide terminal.
        const WIDTH: usize = 100;
        fn look(command: &Command, long: &mut Vec<String>) {
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines = examples.lines().filter(|line| line.chars().count() > WIDTH);
            long.extend(lines.map(str::to_owned));
            command.get_subcommands().for_each(|below| look(below, long));
        }
        let mut long = Vec::new();
        look(&Cli::command(), &mut long);
        assert!(long.is_empty(), "longer than {WIDTH} characters: {long:#?}");
    }

    #[test]
    fn the_help_of_submit_names_every_variable_that_a_job_gets() {
        let mut command = Cli::command();
        let submit = command.find_subcommand_mut("submit").expect("a command");
        let help = submit.render_long_help().to_string();
        for variable in forebay_engine::shim::VARIABLES {
            assert!(help.contains(variable), "{variable}: {help}");
        }
    }

    #[test]
    fn the_help_can_be_shown_for_every_command() {
        let help = command().render_long_help().to_string();
        assert!(help.contains("File system:\n  mkfs") && help.contains("--version"), "{help}");
        command().debug_assert();
    }
}
