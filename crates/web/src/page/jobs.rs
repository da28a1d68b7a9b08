//! Jobs, and one job.

use forebay_engine::protocol::{JobView, RefusalKind};
use forebay_grid::account::AttemptRecord;
use forebay_grid::vocabulary::Target;
use forebay_study::chart::figure::{Caption, Ink};
use forebay_study::chart::time::{Series, TimeAxis, TimeChart, Zero};
use forebay_study::chart::unit::{Unit, span};
use maud::{Markup, html};

use super::layout::Content;
use super::plot::{bytes, jobs, name_of, state, time, took};
use super::{Page, View, button};
use crate::api::jobs::{Stream, reasons, tail};
use crate::history::runs::Point;
use crate::problem::{Problem, kind_of};

/// The most lines of the list.
const LINES: u32 = 1000;
/// The most lines in which a filter looks.
const SEARCHED: u32 = 20_000;
/// Bytes of output that the page of a job shows.
const TAIL: u64 = 16 << 10;

pub fn list(view: &View<'_>) -> Page {
    let wanted = |name: &str| view.request.parameter(name).unwrap_or_default().to_owned();
    let (text, chosen) = (wanted("text"), wanted("state"));
    let ended = view.request.parameter("ended").is_some();
    let is_search = !text.is_empty() || !chosen.is_empty();
    let most = if is_search { SEARCHED } else { LINES };
    let (mut found, total) = view.site.app.client(view.who)?.latest_jobs(ended, most)?;
    let read = found.len() as u64;
    found.reverse();
    found.retain(|job| {
        let fits = [name_of(job), job.user.to_string(), job.queue.to_string(), job.id.clone()]
            .iter()
            .any(|part| part.to_lowercase().contains(&text.to_lowercase()));
        fits && (chosen.is_empty() || job.state.word() == chosen)
    });
    let fitting = found.len();
    found.truncate(LINES as usize);
    let body = html! {
        form.filter method="get" action="/jobs" {
            label { "Name, user, queue or number " input type="search" name="text" value=(text); }
            label {
                "State "
                select name="state" {
                    option value="" { "all" }
                    @for state in forebay_grid::state::JobState::ALL {
                        option value=(state.word()) selected[state.word() == chosen] { (state.word().replace('_', " ")) }
                    }
                }
            }
            label { input type="checkbox" name="ended" value="1" checked[ended]; " finished ones too" }
            button type="submit" { "Show" }
        }
        (jobs(view, &found))
        @if fitting > found.len() { p.note { "The latest " (found.len()) " of " (fitting) " lines that fit." } }
        @if total > read { p.note { "Only the latest " (read) " of " (total) " lines were looked at: " code { "forebay jobs" } " lists all." } }
    };
    Ok(Content { title: "Jobs".to_owned(), body })
}

pub fn one(view: &View<'_>, id: &str) -> Page {
    let target: Target = id
        .parse()
        .map_err(|_| Problem::own("not_found", format!("\"{id}\" is not the number of a job")))?;
    let mut client = view.site.app.client(view.who)?;
    let attempts = client.history(target)?;
    let found = client.jobs(Some(target), true, Some(1000)).map_err(Problem::from);
    let lines = match found {
        Ok((lines, _)) => lines,
        Err(problem) if problem.kind == kind_of(RefusalKind::NoJob).0 && !attempts.is_empty() => {
            let body = html! { p { "The job has finished, and only its history is still known." } (timeline(view, id, u32::MAX)) (history(&attempts)) };
            return Ok(Content { title: format!("Job {target}"), body });
        }
        Err(problem) => return Err(problem),
    };
    let Some(first) = lines.first() else {
        return Err(Problem::own("not_found", format!("nothing is known of job {target}")));
    };
    let is_array = lines.len() > 1 || first.tasks > 1;
    let said = reasons(&mut client, target);
    let body = html! {
        (buttons(view, target, &lines))
        (facts(view, first, (&lines, is_array)))
        h2 { @if first.host.is_none() && first.ended.is_none() { "Why it waits" } @else { "Placement" } }
        @match &said {
            Ok(said) => {
                ul { @for reason in &said.reasons { li { (reason) } } }
                @if !said.hosts.is_empty() {
                    div.scroll {
                        table {
                            thead { tr { th { "Host" } th { "Says" } } }
                            tbody { @for host in &said.hosts { tr { td { (host.host) } td { (host.obstacle.as_deref().unwrap_or("could take it")) } } } }
                        }
                    }
                }
            }
            Err(problem) => { p.note { (problem.detail) } }
        }
        @if is_array { h2 { "Elements" } (jobs(view, &lines)) } @else { (timeline(view, &first.id, first.attempts)) }
        (history(&attempts))
        @if !is_array { (output(view, target, first)) }
    };
    Ok(Content { title: format!("Job {target}: {}", name_of(first)), body })
}

fn buttons(view: &View<'_>, target: Target, lines: &[JobView]) -> Markup {
    let path = |verb: &str| format!("/jobs/{}/{verb}", super::action::encoded(&target.to_string()));
    let any = |of: fn(&JobView) -> bool| lines.iter().any(of);
    let unfinished = any(|job| job.ended.is_none());
    let held = any(|job| matches!(job.state.word(), "held" | "suspended"));
    html! {
        div.actions {
            @if unfinished { (button(view, &path("kill"), "Kill")) }
            @if unfinished && !held { (button(view, &path("hold"), "Hold")) }
            @if held { (button(view, &path("release"), "Release")) }
            @if any(|job| job.attempts > 0) { (button(view, &path("requeue"), "Requeue")) }
        }
    }
}

/// How many tasks of an array are in each state, in the order in which they are listed.
fn states(lines: &[JobView]) -> Vec<(&'static str, u64)> {
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for line in lines {
        let (word, tasks) = (line.state.word(), u64::from(line.tasks));
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += tasks,
            None => counts.push((word, tasks)),
        }
    }
    counts
}

/// What is known of a job; of an array what its elements have in common.
fn facts(view: &View<'_>, job: &JobView, (lines, is_array): (&[JobView], bool)) -> Markup {
    let now = view.site.app.now();
    let used = job.usage.filter(|_| !is_array);
    let seconds = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), span);
    html! {
        dl.facts {
            @if !job.name.is_empty() { dt { "Name" } dd { (job.name) } }
            dt { "State" }
            dd {
                @if is_array { @for (word, tasks) in states(lines) { (tasks) " " (state(word)) " " } }
                @else { (state(job.state.word())) @if let Some(exit) = &job.exit { " " (exit) } }
            }
            dt { "User" } dd { (job.user) }
            dt { "Queue" } dd { (job.queue) }
            @if !is_array { dt { "Host" } dd { @if let Some(host) = &job.host { (host) } @else { "-" } } }
            dt { "Command" } dd { code { (job.command.join(" ")) } }
            dt { "Submitted" } dd { (time(job.submitted)) }
            @if !is_array {
                dt { "Started" } dd { @if let Some(at) = job.started { (time(at)) ", for " (took(job.started, job.ended.unwrap_or(now))) } @else { "-" } }
                dt { "Ended" } dd { @if let Some(at) = job.ended { (time(at)) } @else { "-" } }
            }
            dt { "Slots" }
            dd { (job.slots) " requested" @if let Some(cpu) = used.and_then(|used| used.cpu_per_real()) { "; " (Unit::Plain.show(cpu)) " processors used" } }
            @if let Some(asked) = &job.asked {
                dt { "Memory" } dd {
                    (asked.memory_bytes.map_or_else(|| "none".to_owned(), bytes)) " requested"
                    @if let Some(peak) = used.and_then(|used| used.peak_memory_bytes) { "; peak " (bytes(peak)) }
                }
                dt { "Time limit" } dd { (seconds(asked.time_limit_seconds)) }
                dt { "Directory" } dd { code { (asked.directory) } }
            }
            @if let Some(used) = used {
                dt { "Processor" } dd { (span(used.cpu_seconds())) }
                dt { "Waited for I/O" } dd { (seconds(used.io_wait_seconds.or(used.io_pressure_seconds))) }
                dt { "Read, written" } dd { (used.read_bytes.map_or_else(|| "-".to_owned(), bytes)) ", " (used.written_bytes.map_or_else(|| "-".to_owned(), bytes)) " by system calls, in any file system" }
                @if let Some(device) = used.device_read_bytes { dt { "Of local disks" } dd { (bytes(device)) " read, as memory did not hold it" } }
            }
        }
    }
}

/// What the latest start used over time, as far as the server saw it. A later one than the job's `latest` is of an earlier job of its number.
fn timeline(view: &View<'_>, id: &str, latest: u32) -> Markup {
    let run = view.site.app.runs.of(id).filter(|(start, _)| *start <= latest);
    let Some((start, points)) = run else { return html! {} };
    let end = points.last().map_or(0.0, |point| point.end);
    let axis = TimeAxis { end, bands: Vec::new(), zero: Zero::Start };
    let line = |place: usize, label: &str, of: fn(&Point) -> f64| Series {
        label: label.to_owned(),
        ink: Ink::number(place),
        figures: String::new(),
        points: points.iter().map(|point| (point.end, of(point))).collect(),
    };
    let chart = |title: &str, unit: Unit, series: Vec<Series>| {
        let note = format!("Start {start} of the job; time since it began.");
        let caption = Caption::new(title, &note);
        TimeChart { caption, unit, axis: &axis, height: 130.0, series, rules: Vec::new() }.lines()
    };
    let processors = vec![
        line(0, "processors in use", |point| point.processors),
        line(1, "share of the time that something waited for I/O", |point| point.io_wait),
    ];
    let bytes =
        vec![line(0, "read", |point| point.read), line(1, "written", |point| point.written)];
    html! {
        h2 { "Over time" }
        div.pair {
            (chart("Processors and I/O wait", Unit::Plain, processors).unwrap_or_default())
            (chart("Bytes by system calls", Unit::BytesPerSecond, bytes).unwrap_or_default())
        }
    }
}

/// Finished starts, with where their time went.
fn history(attempts: &[AttemptRecord]) -> Markup {
    if attempts.is_empty() {
        return html! {};
    }
    html! {
        h2 { "Finished starts" }
        div.scroll {
            table {
                thead { tr { th { "Job" } th.number { "Start" } th { "Host" } th { "From" } th { "To" } th.number { "Real" } th.number { "Processor" } th.number { "I/O wait" } th.number { "Memory" } th { "End" } } }
                tbody {
                    @for attempt in attempts.iter().rev().take(200) {
                        @let used = attempt.usage;
                        tr {
                            td { (attempt.task) } td.number { (attempt.attempt) } td { (attempt.host) }
                            td { (time(attempt.started.unwrap_or(attempt.launched))) } td { (time(attempt.ended)) }
                            td.number { (used.map_or_else(|| "-".to_owned(), |used| span(used.real_seconds))) }
                            td.number { (used.map_or_else(|| "-".to_owned(), |used| span(used.cpu_seconds()))) }
                            td.number { (used.and_then(|used| used.io_wait_seconds.or(used.io_pressure_seconds)).map_or_else(|| "-".to_owned(), span)) }
                            td.number { (used.and_then(|used| used.peak_memory_bytes).map_or_else(|| "-".to_owned(), bytes)) }
                            td { (attempt.state().replace('_', " ")) @if let Some(outcome) = attempt.outcome() { ": " (outcome) } }
                        }
                    }
                }
            }
        }
    }
}

/// What follows the first end of a line, if anything does: what comes before is the rest of a line.
fn whole_lines(text: &str) -> &str {
    let rest = text.split_once('\n').map(|(_, rest)| rest);
    rest.filter(|rest| !rest.is_empty()).unwrap_or(text)
}

fn output(view: &View<'_>, target: Target, job: &JobView) -> Markup {
    let show = |title: &str, stream: Stream| {
        html! {
            h2 { (title) }
            @match tail(&view.site.app, view.who, (target, stream), (None, TAIL)) {
                Ok(read) => {
                    @let text = if read.offset > 0 { whole_lines(&read.text) } else { &read.text };
                    p.note { (read.path) ", " (bytes(read.length)) @if read.offset > 0 { "; the end of it" } }
                    @if !text.is_empty() { pre.output tabindex="0" { (text) } }
                }
                Err(problem) => { p.note { (problem.detail) } }
            }
        }
    };
    html! {
        (show("Output", Stream::Output))
        @if job.error.is_some() { (show("Errors", Stream::Errors)) }
    }
}

#[cfg(test)]
mod tests {
    use super::whole_lines;

    #[test]
    fn the_end_of_an_output_begins_with_a_whole_line_or_is_the_rest_of_the_only_one() {
        assert_eq!(whole_lines("est of one\ntwo\nthree\n"), "two\nthree\n");
        assert_eq!(whole_lines("est of a long one\n"), "est of a long one\n");
        assert_eq!(whole_lines("est of a long one"), "est of a long one");
    }
}
