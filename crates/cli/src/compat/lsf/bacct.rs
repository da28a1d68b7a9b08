//! bacct: what jobs that have ended used, together.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use forebay_engine::protocol::client::Client;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use super::super::row::{Row, client, known, me, rows};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read};
use super::{day, now, state};
use crate::commands::grid::clock::{at_clock, today};

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("b", ' ', Nothing),
    read("C", ' ', Value),
    read("d", ' ', Nothing),
    read("e", ' ', Nothing),
    read("J", ' ', Value),
    read("l", ' ', Nothing),
    read("m", ' ', Value),
    read("P", ' ', Value),
    read("q", ' ', Value),
    read("S", ' ', Value),
    read("u", ' ', Value),
    harmless("w", ' ', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "bacct", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

const LINE: &str =
    "------------------------------------------------------------------------------\n";

/// One task that has ended.
struct Ended {
    row: Row,
    cpu_seconds: f64,
    wait_seconds: f64,
    turnaround_seconds: f64,
}

impl Ended {
    fn hog(&self) -> f64 {
        if self.turnaround_seconds > 0.0 { self.cpu_seconds / self.turnaround_seconds } else { 0.0 }
    }
}

/// A time in which something was: `[YEAR/][MONTH/]DAY[/HOUR:MINUTE],...`, either side may be empty.
pub fn span(text: &str) -> Result<(Moment, Moment)> {
    let (from, to) = text.split_once(',').unwrap_or((text, ""));
    let zone = jiff::tz::TimeZone::system();
    let today = now();
    let read = |text: &str, is_end: bool| -> Result<Moment> {
        if text.is_empty() {
            return Ok(if is_end { Moment::NEVER } else { Moment(0) });
        }
        moment(text, is_end, today, &zone).with_context(|| {
            format!(
                "{text}: Bad time; write [year/][month/]day[/hour:minute], such as 2026/11/25/10:00"
            )
        })
    };
    Ok((read(from, false)?, read(to, true)?))
}

/// A point in time of the past; a day is its first or its last moment.
fn moment(text: &str, is_end: bool, now: Moment, zone: &jiff::tz::TimeZone) -> Option<Moment> {
    let (date, time) = match text.rsplit_once('/') {
        Some((date, time)) if time.contains(':') => (date, Some(time)),
        _ => (text, None),
    };
    let today = today(now, zone)?;
    let parts: Option<Vec<i16>> = date.split('/').map(|part| part.parse().ok()).collect();
    let small = |number: i16| i8::try_from(number).ok();
    let date = match parts?[..] {
        [day] => jiff::civil::Date::new(today.year(), today.month(), small(day)?),
        [month, day] => jiff::civil::Date::new(today.year(), small(month)?, small(day)?),
        [year, month, day] => jiff::civil::Date::new(year, small(month)?, small(day)?),
        _ => return None,
    };
    let time = match time {
        Some(time) => {
            let (hour, minute) = time.split_once(':')?;
            jiff::civil::Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()?
        }
        None if is_end => jiff::civil::time(23, 59, 59, 999_000_000),
        None => jiff::civil::time(0, 0, 0, 0),
    };
    at_clock(date.ok()?.to_datetime(time), zone)
}

/// The tasks that are asked for and have ended, with what all their starts used.
fn ended(given: &Given, client: &mut Client) -> Result<Vec<Ended>> {
    let mut found = Vec::new();
    for word in &given.words {
        for target in state::targets(word)? {
            let of_job = known(client, target)?;
            found.extend(of_job.with_context(|| format!("Job <{word}> is not found"))?);
        }
    }
    let is_named = !found.is_empty();
    if !is_named {
        found = rows(client, None, true)?;
        found.retain(|row| state::takes(row, given));
    }
    let completed = given.value("C").map(span).transpose()?;
    let submitted = given.value("S").map(span).transpose()?;
    let within = |span: Option<(Moment, Moment)>, at: Moment| {
        span.is_none_or(|(from, to)| from <= at && at <= to)
    };
    let mut all = Vec::new();
    for row in found {
        let Some(at) = row.view.ended else { continue };
        let is_done = row.view.state == JobState::Done;
        let is_wanted = match (given.has("d"), given.has("e")) {
            (true, false) => is_done,
            (false, true) => !is_done,
            _ => true,
        };
        if !is_wanted || !within(completed, at) || !within(submitted, row.view.submitted) {
            continue;
        }
        let attempts = client.history(row.target)?;
        let usage = attempts.iter().filter_map(|attempt| attempt.usage.as_ref());
        let began = attempts.iter().map(|attempt| attempt.launched).min();
        let seconds = |ms: u64| ms as f64 / 1000.0;
        all.push(Ended {
            cpu_seconds: usage.map(forebay_grid::spec::Usage::cpu_seconds).sum(),
            wait_seconds: seconds(began.unwrap_or(at).since(row.view.submitted)),
            turnaround_seconds: seconds(at.since(row.view.submitted)),
            row,
        });
    }
    Ok(all)
}

/// What was asked for, as bacct repeats it.
fn heading(given: &Given) -> String {
    let or_all = |option: &str, one: &str, all: &str| {
        given.value(option).map_or_else(|| all.to_owned(), |value| format!("{one} {value},"))
    };
    let users = match given.value("u") {
        Some("all") => "all users,".to_owned(),
        Some(users) => format!("users {users},"),
        None => format!("users {},", me()),
    };
    let how = match (given.has("d"), given.has("e")) {
        (true, false) => "completed normally,",
        (false, true) => "exited,",
        _ => "completed normally or exited,",
    };
    format!(
        "\nAccounting information about jobs that are:\n  - submitted by {users}\n  - accounted on {}\n  - {how}\n  \
         - executed on {}\n  - submitted to {}\n{LINE}\n",
        or_all("P", "projects", "all projects,"),
        or_all("m", "hosts", "all hosts,"),
        or_all("q", "queues", "all queues,"),
    )
}

/// The sum, the average, the greatest and the least of some values.
fn figures(values: impl Iterator<Item = f64> + Clone) -> (f64, f64, f64, f64) {
    let (sum, count) = (values.clone().sum::<f64>(), values.clone().count().max(1));
    let most = values.clone().fold(0.0, f64::max);
    let least = values.reduce(f64::min).unwrap_or(0.0);
    (sum, sum / count as f64, most, least)
}

fn summary(all: &[Ended]) -> String {
    let done = all.iter().filter(|one| one.row.view.state == JobState::Done).count();
    let (cpu, cpu_average, cpu_most, cpu_least) = figures(all.iter().map(|one| one.cpu_seconds));
    let (wait, wait_average, wait_most, wait_least) =
        figures(all.iter().map(|one| one.wait_seconds));
    let (_, turn_average, turn_most, turn_least) =
        figures(all.iter().map(|one| one.turnaround_seconds));
    let (_, hog_average, hog_most, hog_least) = figures(all.iter().map(Ended::hog));
    let ends = || all.iter().filter_map(|one| one.row.view.ended);
    let (first, last) = (ends().min().unwrap_or_default(), ends().max().unwrap_or_default());
    let hours = last.since(first) as f64 / 3_600_000.0;
    let rate = if hours > 0.0 { all.len() as f64 / hours } else { 0.0 };
    format!(
        "SUMMARY:      ( time unit: second )\n Total number of done jobs:  {done:>8}      Total number of exited jobs: \
         {:>6}\n Total CPU time consumed:  {cpu:>10.1}      Average CPU time consumed: {cpu_average:>8.1}\n Maximum CPU time \
         of a job: {cpu_most:>9.1}      Minimum CPU time of a job: {cpu_least:>8.1}\n Total wait time in queues: {wait:>9.1}\n \
         Average wait time in queue: {wait_average:>8.1}\n Maximum wait time in queue: {wait_most:>8.1}      Minimum wait time in \
         queue: {wait_least:>7.1}\n Average turnaround time: {turn_average:>11.0} (seconds/job)\n Maximum turnaround time: \
         {turn_most:>11.0}      Minimum turnaround time: {turn_least:>10.0}\n Average hog factor of a job: {hog_average:>7.2} ( cpu \
         time / turnaround time )\n Maximum hog factor of a job: {hog_most:>7.2}      Minimum hog factor of a job: \
         {hog_least:>6.2}\n Total throughput: {rate:>18.2} (jobs/hour)  during {hours:>8.2} hours\n Beginning time:       \
         {}      Ending time:          {}\n\n",
        all.len() - done,
        day(first),
        day(last),
    )
}

fn block(one: &Ended) -> String {
    let Row { view, asked, .. } = &one.row;
    let exit = view.exit.as_ref().map_or(String::new(), |exit| format!(" ({exit})"));
    format!(
        "Job <{}>, Job Name <{}>, User <{}>, Project <{}>, Status <{}>, Queue <{}>, Command <{}>\n{}: Submitted;\n{}: \
         Completed <{}>{exit} on host <{}>.\n\nAccounting information about this job:\n     CPU_T     WAIT     TURNAROUND   \
         STATUS     HOG_FACTOR\n{:>10.2} {:>8.0} {:>14.0} {:>8} {:>14.4}\n{LINE}\n",
        view.id,
        state::name(&one.row),
        view.user,
        if asked.project.is_empty() { "default" } else { &asked.project },
        state::of(view.state),
        view.queue,
        view.command.join(" "),
        day(view.submitted),
        view.ended.map(day).unwrap_or_default(),
        view.state,
        view.host.as_ref().map_or(super::NOTHING, forebay_grid::vocabulary::HostName::as_str),
        one.cpu_seconds,
        one.wait_seconds,
        one.turnaround_seconds,
        if view.state == JobState::Done { "done" } else { "exit" },
        one.hog(),
    )
}

/// Runs bacct, over the jobs that the grid still knows.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let mut client = client()?;
    let all = ended(&given, &mut client)?;
    ensure!(!all.is_empty(), "No matching job found");
    let mut text = heading(&given);
    if given.has("l") {
        text.extend(all.iter().map(block));
    }
    text += &summary(&all);
    crate::output::put(crate::output::escaped(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_be_a_day_or_a_minute_and_either_end_may_be_open() {
        let zone = jiff::tz::TimeZone::UTC;
        let now = Moment(1_795_582_800_000); // 2026-11-25T05:00:00Z
        let day_ms = 86_400_000;
        let today = moment("25", false, now, &zone).unwrap();
        assert_eq!(now.since(today), 5 * 3_600_000);
        assert_eq!(moment("2026/11/25", true, now, &zone).unwrap().since(today), day_ms - 1);
        assert_eq!(moment("11/25/05:00", false, now, &zone), Some(now));
        assert_eq!(moment("x", false, now, &zone), None);
        assert_eq!(moment("2026/02/30", false, now, &zone), None);
        assert_eq!(span(",").unwrap(), (Moment(0), Moment::NEVER));
    }

    #[test]
    fn figures_of_nothing_are_nothing() {
        assert_eq!(figures(std::iter::empty()), (0.0, 0.0, 0.0, 0.0));
        assert_eq!(figures([1.0, 3.0].into_iter()), (4.0, 2.0, 3.0, 1.0));
    }
}
