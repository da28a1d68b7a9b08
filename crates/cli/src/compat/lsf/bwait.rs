//! bwait: waits until a condition on jobs is true.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_grid::parse::dependency::{
    Comparison, Condition, Countable, Dependency, JobName, JobRef, Test,
};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Target;

use super::super::row::{Row, client, known, rows};
use super::super::words::{Grammar, Opt, Style, Takes, Until, read};
use super::{now, state};

use Takes::Value;

const OPTIONS: &[Opt] = &[read("w", ' ', Value), read("t", ' ', Value), read("r", ' ', Value)];

const GRAMMAR: Grammar =
    Grammar { command: "bwait", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(500);

/// What is known of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Never,
    NotYet,
    True,
}

/// How many elements of a job are how far.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u32,
    started: u32,
    done: u32,
    failed: u32,
    /// Elements that ended with an exit value that compares as the condition says.
    exited_so: u32,
}

impl Count {
    fn of(rows: &[Row], comparison: Option<Comparison>) -> Count {
        let mut count = Count::default();
        for row in rows {
            let tasks = row.view.tasks;
            count.all += tasks;
            match row.view.state {
                JobState::Pending | JobState::Held => {}
                JobState::Starting
                | JobState::Running
                | JobState::Suspended
                | JobState::Unknown => count.started += tasks,
                JobState::Done => {
                    count.started += tasks;
                    count.done += tasks;
                }
                _ => {
                    count.started += tasks;
                    count.failed += tasks;
                    let value = row.view.exit.as_ref().map(|exit| u32::from(exit.value()));
                    let is_so = match (comparison, value) {
                        (None, _) => true,
                        (Some(comparison), Some(value)) => comparison.holds(value),
                        (Some(_), None) => false,
                    };
                    count.exited_so += if is_so { tasks } else { 0 };
                }
            }
        }
        count
    }

    fn ended(self) -> u32 {
        self.done + self.failed
    }
}

/// Whether a test holds of a job.
fn holds(test: Test, rows: &[Row]) -> Result<Verdict> {
    let count = Count::of(rows, if let Test::Exit(comparison) = test { comparison } else { None });
    let (is_true, is_possible) = match test {
        Test::Done => (count.done == count.all, count.failed == 0),
        Test::Ended => (count.ended() == count.all, true),
        Test::Exit(_) => {
            let all_ended = count.ended() == count.all;
            (all_ended && count.exited_so > 0, !all_ended)
        }
        Test::Started => (count.started == count.all, true),
        Test::Number(what, comparison) => {
            let number = match what {
                Countable::Done => count.done,
                Countable::Exit => count.failed,
                Countable::Ended => count.ended(),
                Countable::Started => count.started,
            };
            (comparison.holds(number), count.ended() < count.all)
        }
        Test::StartedFor(_) => bail!("started with a time is not supported by bwait: use started"),
        Test::PostDone | Test::PostErr => {
            bail!("post_done and post_err are not supported by bwait: use done or ended")
        }
    };
    Ok(match (is_true, is_possible) {
        (true, _) => Verdict::True,
        (false, true) => Verdict::NotYet,
        (false, false) => Verdict::Never,
    })
}

/// A condition with the numbers of jobs, once their names are looked up.
fn looked_up(condition: &Condition<JobRef>, client: &mut Client) -> Result<Condition<Target>> {
    let mut all = |parts: &[Condition<JobRef>]| {
        parts.iter().map(|part| looked_up(part, client)).collect::<Result<Vec<_>>>()
    };
    Ok(match condition {
        Condition::Singleton | Condition::Each(..) => {
            bail!("singleton() and [*] are not supported by bwait")
        }
        Condition::All(parts) => Condition::All(all(parts)?),
        Condition::Any(parts) => Condition::Any(all(parts)?),
        Condition::Is(test, JobRef { job, index }) => {
            let jobs = match job {
                JobName::Number(id) => vec![*id],
                JobName::Name(pattern) => {
                    let own = |row: &&Row| {
                        row.view.user.as_str() == crate::compat::me()
                            && state::is_like(&row.view.name, pattern)
                    };
                    let found = rows(client, None, true)?;
                    let mut found: Vec<_> =
                        found.iter().filter(own).map(|row| row.target.job).collect();
                    found.dedup();
                    ensure!(!found.is_empty(), "{pattern}: No matching job found");
                    // A name is the latest job that has it.
                    let first = if pattern.contains('*') { 0 } else { found.len() - 1 };
                    found.split_off(first)
                }
            };
            let one = |job| Condition::Is(*test, Target { job, index: *index });
            let mut jobs: Vec<_> = jobs.into_iter().map(one).collect();
            if jobs.len() == 1 { jobs.remove(0) } else { Condition::All(jobs) }
        }
    })
}

fn verdict(condition: &Condition<Target>, client: &mut Client) -> Result<Verdict> {
    match condition {
        Condition::All(parts) => {
            let mut least = Verdict::True;
            for part in parts {
                least = least.min(verdict(part, client)?);
            }
            Ok(least)
        }
        Condition::Any(parts) => {
            let mut most = Verdict::Never;
            for part in parts {
                most = most.max(verdict(part, client)?);
            }
            Ok(most)
        }
        Condition::Singleton | Condition::Each(..) => Ok(Verdict::NotYet),
        Condition::Is(test, target) => {
            let found = known(client, *target)?;
            let found = found.with_context(|| format!("Job <{target}> is not found"))?;
            holds(*test, &found)
        }
    }
}

/// Runs bwait; the exit code is 0 once the condition is true, 1 if it can never be or the time is over.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let text = given.value("w").context("-w CONDITION is missing")?;
    let condition: Dependency = text.parse()?;
    let minutes = |option: &'static str| {
        let read = |text: &str| {
            text.parse::<u64>()
                .ok()
                .filter(|minutes| *minutes > 0)
                .with_context(|| format!("-{option} {text}: expected a number of minutes"))
        };
        given.value(option).map(read).transpose()
    };
    let until = minutes("t")?.map(|minutes| now().after(minutes.saturating_mul(60_000)));
    // How often LSF looks; here it costs little, and the end is seen at once.
    minutes("r")?;
    let mut client = client()?;
    let condition = looked_up(&condition.0, &mut client)?;
    loop {
        match verdict(&condition, &mut client)? {
            Verdict::True => return Ok(ExitCode::SUCCESS),
            Verdict::Never => {
                note!("bwait: {text} can never become true");
                return Ok(ExitCode::from(1));
            }
            Verdict::NotYet if until.is_some_and(|until| now() >= until) => {
                note!("bwait: {text} is not true after the time of -t");
                return Ok(ExitCode::from(1));
            }
            Verdict::NotYet => std::thread::sleep(PAUSE),
        }
    }
}
