//! bparams: the parameters of the site that people and scripts ask for.

use std::process::ExitCode;

use anyhow::{Result, bail};
use forebay_engine::protocol::{Answer, Ask, LimitsView};
use forebay_grid::parse::array::ELEMENTS_MAX;

use super::super::row::client;
use super::super::words::{Grammar, Opt, Style, Takes, Until, read};
use super::default_queue;

use Takes::Nothing;

const OPTIONS: &[Opt] = &[read("a", ' ', Nothing), read("l", ' ', Nothing)];

const GRAMMAR: Grammar =
    Grammar { command: "bparams", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

/// A number of seconds.
fn whole(seconds: f64) -> String {
    format!("{seconds:.0}")
}

/// Each parameter: what it says, its name, its value, and the unit of that.
fn parameters(
    queue: &str,
    limits: &LimitsView,
) -> Vec<(&'static str, &'static str, String, &'static str)> {
    vec![
        (
            "System default queues for automatic queue selection",
            "DEFAULT_QUEUE",
            queue.to_owned(),
            "",
        ),
        (
            "The interval for dispatching jobs",
            "MBD_SLEEP_TIME",
            whole(limits.dispatch_seconds),
            " (seconds)",
        ),
        (
            "The interval for checking jobs by slave batch daemon",
            "SBD_SLEEP_TIME",
            "1".to_owned(),
            " (seconds)",
        ),
        (
            "The interval for a host to accept two batch jobs",
            "JOB_ACCEPT_INTERVAL",
            limits.accept_rounds.to_string(),
            " (* MBD_SLEEP_TIME)",
        ),
        (
            "The interval of time to keep finished jobs in core",
            "CLEAN_PERIOD",
            whole(limits.finished_age_seconds),
            " (seconds)",
        ),
        ("The maximum size of a job array", "MAX_JOB_ARRAY_SIZE", ELEMENTS_MAX.to_string(), ""),
        (
            "The maximum number of unfinished jobs of a user",
            "MAX_USER_JOB_NUM",
            limits.user_tasks_max.to_string(),
            "",
        ),
        ("The maximum number of unfinished jobs", "MAX_JOB_NUM", limits.tasks_max.to_string(), ""),
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
fn report(queue: &str, limits: &LimitsView, is_all: bool, is_long: bool) -> String {
    let parameters = parameters(queue, limits);
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
        "Default Queues:  {queue}\nMBD_SLEEP_TIME used for calculations:  {} seconds\nJob Checking Interval:  1 seconds\n\
         Job Accepting Interval:  {:.0} seconds\n",
        whole(limits.dispatch_seconds),
        limits.dispatch_seconds * f64::from(limits.accept_rounds)
    )
}

/// Runs bparams.
pub fn bparams(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let mut client = client()?;
    let queue = default_queue(&mut client)?;
    let limits = match client.ask(&Ask::Limits)? {
        Answer::Limits { limits } => limits,
        answer => bail!("unexpected answer: {answer:?}"),
    };
    out!("{}", report(&queue, &limits, given.has("a"), given.has("l")));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_the_grid_and_shown_in_three_ways() {
        let limits = LimitsView {
            finished_age_seconds: 3600.0,
            tasks_max: 5000,
            user_tasks_max: 400,
            user_slots_max: None,
            dispatch_seconds: 10.0,
            accept_rounds: 2,
            rerun: false,
            profiles: Vec::new(),
            submit_filter: false,
        };
        let said = |is_all, is_long| report("normal", &limits, is_all, is_long);
        let usual = said(false, false);
        assert!(usual.starts_with("Default Queues:  normal\n"));
        assert!(usual.ends_with("Job Accepting Interval:  20 seconds\n"), "{usual}");
        let all = said(true, false);
        for line in ["MAX_JOB_ARRAY_SIZE = 1000000", "MAX_JOB_NUM = 5000", "MAX_USER_JOB_NUM = 400"]
        {
            assert!(all.contains(&format!("\n    {line}\n")), "{all}");
        }
        let long = said(false, true);
        assert!(long.contains(":\n    CLEAN_PERIOD = 3600 (seconds)\n"), "{long}");
        assert!(long.contains(":\n    MBD_SLEEP_TIME = 10 (seconds)\n"), "{long}");
    }
}
