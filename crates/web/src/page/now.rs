//! The first page: are the cores fed?

use forebay_engine::protocol::{HostState, JobView};
use forebay_study::chart::unit::Unit;
use maud::{Markup, html};

use super::action::encoded;
use super::layout::Content;
use super::plot::{chart, figures, name_of, range, ranges, took};
use super::{Page, View};
use crate::history::runs::Point;
use crate::watched::{Cause, Files, Waiting};

/// The most lines of a list.
const LINES: usize = 10;

pub fn page(view: &View<'_>) -> Page {
    let look = view.site.look.lock().clone();
    let (seconds, _) = range(view);
    let (jobs, _) = view.site.app.client(view.who)?.jobs(None, false, Some(1000))?;
    let app = &view.site.app;
    let (now, interval_ms) = (app.now(), app.settings.history.interval.as_ms());
    let of = |job: JobView| Running { lately: app.runs.latest(&job.id, now, interval_ms), job };
    let mut running: Vec<Running> =
        jobs.into_iter().filter(|job| job.host.is_some()).map(of).collect();
    running.sort_by(|one, other| {
        let use_of = |one: &Running| (one.bytes(), one.processors());
        let ((bytes, cpu), (other_bytes, other_cpu)) = (use_of(one), use_of(other));
        other_bytes.total_cmp(&bytes).then(other_cpu.total_cmp(&cpu))
    });
    let is_shown = |cause: &&Cause| view.who.admin || cause.user == view.who.user.as_str();
    let seen: Vec<&Cause> = look.causes.iter().filter(is_shown).collect();
    let body = html! {
        @if let Some(reason) = &look.unreachable { p.problem { "The controller is unreachable: " (reason) } }
        @if let Some(trouble) = &look.trouble { p.problem { (trouble) } }
        @if let Some(fault) = &look.files_fault { p.problem { "The file system: " (fault) } }
        (key_figures(view, running.iter().map(Running::bytes).sum()))
        (ranges(view))
        div.pair {
            (chart(view, ("grid", seconds), ("Slots", Unit::Count), &[("used_slots", "in use"), ("slots", "of all hosts")]))
            (chart(view, ("grid", seconds), ("Tasks", Unit::Count), &[("active_tasks", "on hosts"), ("pending_tasks", "waiting"), ("held_tasks", "held")]))
            (chart(view, ("grid", seconds), ("Tasks that end, per minute", Unit::Plain), &[("jobs_per_minute", "all"), ("failed_per_minute", "failed")]))
            @if look.files.is_some() {
                (chart(view, ("files", seconds), ("File system: bytes through the daemon", Unit::BytesPerSecond), &[("read_bytes_per_second", "read"), ("written_bytes_per_second", "written")]))
                (chart(view, ("files", seconds), ("File system: operations", Unit::PerSecond), &[("operations_per_second", "operations")]))
                (chart(view, ("files", seconds), ("File system: latency", Unit::Seconds), &[("latency_p99_seconds", "99 of 100"), ("latency_mean_seconds", "mean")]))
            }
        }
        @if !seen.is_empty() {
            h2 { @if view.who.admin { "I/O by user and job" } @else { "Your I/O" } }
            (causes(&seen))
            p.note { "Through the daemon, since the mount: reads and overwrites on the direct path, and native scratch, are in the list of jobs below only." }
        }
        @if let Some(files) = look.files.as_ref().filter(|files| view.who.admin && !files.waits.is_empty()) {
            h2 { "Requests that wait for over a second" }
            (waits(files))
        }
        h2 { "Jobs that run" @if !view.who.admin { ": yours" } }
        @if running.is_empty() { p.note { "No job runs." } } @else { (running_jobs(view, &running)) }
        p { a href="/jobs" { "All jobs" } }
    };
    Ok(Content { title: "Now".to_owned(), body })
}

fn key_figures(view: &View<'_>, job_bytes: f64) -> Markup {
    let look = view.site.look.lock().clone();
    let up: Vec<_> = look.hosts.iter().filter(|host| host.state == HostState::Up).collect();
    let slots: u32 = up.iter().map(|host| host.slots).sum();
    let used: u32 = up.iter().map(|host| host.used_slots).sum();
    let loads: Vec<f64> = up.iter().filter_map(|host| host.load.map(|load| load.ut)).collect();
    #[expect(clippy::cast_precision_loss, reason = "a number of hosts")]
    let busy = loads.iter().sum::<f64>() / loads.len() as f64;
    let shown =
        |unit: Unit, value: f64| if value.is_finite() { unit.show(value) } else { "-".to_owned() };
    let pending: u64 = look.queues.iter().map(|queue| queue.pending_tasks).sum();
    let mut all = vec![
        (format!("{used} of {slots}"), "slots in use"),
        (shown(Unit::Share, busy), "of the processors are busy"),
        (pending.to_string(), "tasks wait"),
        (format!("{} of {}", up.len(), look.hosts.len()), "hosts are up"),
    ];
    all.push((
        Unit::BytesPerSecond.show(job_bytes),
        if view.who.admin { "read and written by jobs" } else { "read and written by your jobs" },
    ));
    if let Some(files) = &look.files {
        all.push((shown(Unit::BytesPerSecond, look.rates.read_bytes), "read through the daemon"));
        all.push((
            shown(Unit::BytesPerSecond, look.rates.written_bytes),
            "written through the daemon",
        ));
        all.push((shown(Unit::Seconds, look.rates.latency_p99), "99 of 100 operations take less"));
        all.push((files.waiting.to_string(), "requests wait for over a second"));
    }
    figures(&all)
}

/// A job that runs, with what it did lately.
struct Running {
    job: JobView,
    lately: Option<Point>,
}

impl Running {
    /// Bytes read and written in a second; 0 if that is not known.
    fn bytes(&self) -> f64 {
        self.lately.map_or(0.0, |point| known(point.read) + known(point.written))
    }

    fn processors(&self) -> f64 {
        self.lately.map_or(0.0, |point| known(point.processors))
    }
}

fn known(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Those that move most bytes.
fn running_jobs(view: &View<'_>, running: &[Running]) -> Markup {
    let now = view.site.app.now();
    let shown = |unit: Unit, value: Option<f64>| {
        value
            .filter(|value| value.is_finite())
            .map_or_else(|| "-".to_owned(), |value| unit.show(value))
    };
    html! {
        div.scroll { table {
            thead { tr { th { "Job" } th { "Name" } th { "User" } th { "Queue" } th { "Host" } th.number { "For" } th.number { "Processors" } th.number { "I/O wait" } th.number { "Read" } th.number { "Written" } } }
            tbody {
                @for Running { job, lately } in running.iter().take(LINES) {
                    tr {
                        td { a href={ "/jobs/" (encoded(&job.id)) } { (job.id) } }
                        td { (name_of(job)) } td { (job.user) } td { (job.queue) }
                        td { @if let Some(host) = &job.host { (host) } }
                        td.number { (took(job.started, now)) }
                        td.number { (shown(Unit::Plain, lately.map(|point| point.processors))) }
                        td.number { (shown(Unit::Share, lately.map(|point| point.io_wait))) }
                        td.number { (shown(Unit::BytesPerSecond, lately.map(|point| point.read))) }
                        td.number { (shown(Unit::BytesPerSecond, lately.map(|point| point.written))) }
                    }
                }
            }
        } }
        p.note {
            @if running.len() > LINES { "The " (LINES) " of " (running.len()) " that move most bytes. " }
            "Bytes are those of system calls, native scratch and the page cache included. What jobs create, open and remove in native scratch is not counted anywhere."
        }
    }
}

/// The longest waits.
fn waits(files: &Files) -> Markup {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let age = |wait: &Waiting| Unit::Seconds.show(wait.age_ms as f64 / 1000.0);
    let more = files.waiting.saturating_sub(files.waits.len());
    html! {
        div.scroll { table {
            thead { tr { th.number { "Age" } th { "Operation" } th { "File" } th { "Made by" } th { "Waits for" } } }
            tbody {
                @for wait in &files.waits {
                    tr {
                        td.number { (age(wait)) } td { (wait.operation) } td { code { (wait.file) } }
                        td { (wait.made_by) } td { (wait.reason) }
                    }
                }
            }
        } }
        p.note {
            @if more > 0 { "And " (more) " more. " }
            "Those of this machine; " code { "forebay waiters" } " lists those of all nodes of a cluster."
        }
    }
}

fn causes(by_bytes: &[&Cause]) -> Markup {
    let table = |heading: &str, sorted: &[&Cause]| {
        html! {
            div {
                h3 { (heading) }
                table {
                    thead { tr { th { "User" } th { "Job" } th.number { "Operations" } th.number { "Bytes" } } }
                    tbody {
                        @for cause in sorted.iter().take(LINES) {
                            tr {
                                td { (cause.user) }
                                td {
                                    @if cause.job.starts_with(|c: char| c.is_ascii_digit()) { a href={ "/jobs/" (encoded(&cause.job)) } { (cause.job) } }
                                    @else { (cause.job) }
                                }
                                td.number { (cause.operations) } td.number { (super::plot::bytes(cause.bytes)) }
                            }
                        }
                    }
                }
            }
        }
    };
    let mut by_operations = by_bytes.to_vec();
    by_operations.sort_by_key(|cause| std::cmp::Reverse(cause.operations));
    html! { div.pair { (table("By bytes", by_bytes)) (table("By operations", &by_operations)) } }
}
