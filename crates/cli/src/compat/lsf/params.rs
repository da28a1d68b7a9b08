//! bparams: the parameters of the site that people and scripts ask for.

use std::process::ExitCode;

use anyhow::Result;
use forebay_grid::parse::array::ELEMENTS_MAX;

use super::super::row::client;
use super::super::words::{Grammar, Opt, Style, Takes, Until, read};
use super::default_queue;

use Takes::Nothing;

const OPTIONS: &[Opt] =
    &[read("a", ' ', Nothing), read("l", ' ', Nothing), read("V", ' ', Nothing)];

const GRAMMAR: Grammar =
    Grammar { command: "bparams", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

/// How long the grid's default keeps jobs that ended.
const CLEAN_PERIOD_SECONDS: u64 = 7 * 86_400;

/// Each parameter: what it says, its name, its value, and the unit of that.
fn parameters(queue: &str) -> Vec<(&'static str, &'static str, String, &'static str)> {
    vec![
        (
            "System default queues for automatic queue selection",
            "DEFAULT_QUEUE",
            queue.to_owned(),
            "",
        ),
        ("The interval for dispatching jobs", "MBD_SLEEP_TIME", "0".to_owned(), " (seconds)"),
        (
            "The interval for checking jobs by slave batch daemon",
            "SBD_SLEEP_TIME",
            "1".to_owned(),
            " (seconds)",
        ),
        (
            "The interval for a host to accept two batch jobs",
            "JOB_ACCEPT_INTERVAL",
            "0".to_owned(),
            " (* MBD_SLEEP_TIME)",
        ),
        (
            "The interval of time to keep finished jobs in core",
            "CLEAN_PERIOD",
            CLEAN_PERIOD_SECONDS.to_string(),
            " (seconds)",
        ),
        ("The maximum size of a job array", "MAX_JOB_ARRAY_SIZE", ELEMENTS_MAX.to_string(), ""),
        ("The maximum number of jobs known", "MAX_JOB_NUM", "1000000".to_owned(), ""),
        ("The default project assigned to jobs", "DEFAULT_PROJECT", "default".to_owned(), ""),
        (
            "Job priorities may be changed by their users",
            "MAX_USER_PRIORITY",
            i32::MAX.to_string(),
            "",
        ),
    ]
}

/// What the command prints: the usual lines, all by name (`-a`), or all with what they say (`-l`).
fn report(queue: &str, is_all: bool, is_long: bool) -> String {
    let parameters = parameters(queue);
    if is_long {
        let long = parameters
            .iter()
            .map(|(says, name, value, unit)| format!("\n{says}:\n    {name} = {value}{unit}\n"));
        return long.collect();
    }
    if is_all {
        let all = parameters.iter().map(|(_, name, value, _)| format!("    {name} = {value}\n"));
        return "lsb.params configuration of a Forebay grid\n".to_owned()
            + &all.collect::<String>();
    }
    format!(
        "Default Queues:  {queue}\nMBD_SLEEP_TIME used for calculations:  0 seconds\nJob Checking Interval:  1 seconds\n\
         Job Accepting Interval:  0 seconds\n"
    )
}

/// Runs bparams.
pub fn bparams(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    if given.has("V") {
        note!("{}", super::VERSION);
        return Ok(ExitCode::SUCCESS);
    }
    let queue = default_queue(&mut client()?)?;
    out!("{}", report(&queue, given.has("a"), given.has("l")));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_shown_in_three_ways() {
        assert!(report("normal", false, false).starts_with("Default Queues:  normal\n"));
        assert!(report("normal", true, false).contains("\n    MAX_JOB_ARRAY_SIZE = 1000000\n"));
        let long = report("normal", false, true);
        assert!(long.contains(":\n    CLEAN_PERIOD = 604800 (seconds)\n"), "{long}");
    }
}
