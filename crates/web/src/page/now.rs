//! The first page: are the cores fed?

use forebay_engine::protocol::HostState;
use forebay_study::chart::unit::Unit;
use maud::{Markup, html};

use super::action::encoded;
use super::layout::Content;
use super::plot::{chart, figures, jobs, range, ranges};
use super::{Page, View};
use crate::watched::{Files, Waiting};

/// The most lines of a list.
const LINES: usize = 10;

pub fn page(view: &View<'_>) -> Page {
    let look = view.site.look.lock().clone();
    let (seconds, _) = range(view);
    let (mut running, _) = view.site.app.client(view.who)?.jobs(None, false, Some(1000))?;
    running.retain(|job| job.host.is_some());
    running.sort_by(|one, other| {
        let cpu = |job: &forebay_engine::protocol::JobView| {
            job.usage.map_or(0.0, |usage| usage.cpu_seconds())
        };
        cpu(other).total_cmp(&cpu(one))
    });
    running.truncate(LINES);
    let body = html! {
        @if let Some(reason) = &look.unreachable { p.problem { "The controller is unreachable: " (reason) } }
        @if let Some(trouble) = &look.trouble { p.problem { (trouble) } }
        (key_figures(view))
        (ranges(view))
        div.pair {
            (chart(view, ("grid", seconds), ("Slots", Unit::Count), &[("used_slots", "in use"), ("slots", "of all hosts")]))
            (chart(view, ("grid", seconds), ("Tasks", Unit::Count), &[("active_tasks", "on hosts"), ("pending_tasks", "waiting"), ("held_tasks", "held")]))
            (chart(view, ("grid", seconds), ("Tasks that end, per minute", Unit::Plain), &[("jobs_per_minute", "all"), ("failed_per_minute", "failed")]))
            @if look.files.is_some() {
                (chart(view, ("files", seconds), ("File system: bytes", Unit::BytesPerSecond), &[("read_bytes_per_second", "read"), ("written_bytes_per_second", "written")]))
                (chart(view, ("files", seconds), ("File system: operations", Unit::PerSecond), &[("operations_per_second", "operations")]))
                (chart(view, ("files", seconds), ("File system: latency", Unit::Seconds), &[("latency_p99_seconds", "99 of 100"), ("latency_mean_seconds", "mean")]))
            }
        }
        @if view.who.admin && !look.causes.is_empty() {
            h2 { "Who causes what" }
            (causes(&look.causes))
        }
        @if let Some(files) = look.files.as_ref().filter(|files| view.who.admin && !files.waits.is_empty()) {
            h2 { "Requests that wait for over a second" }
            (waits(files))
        }
        h2 { "Jobs that run" @if !view.who.admin { ": yours" } }
        (jobs(view, &running))
        p { a href="/jobs" { "All jobs" } }
    };
    Ok(Content { title: "Now".to_owned(), body })
}

fn key_figures(view: &View<'_>) -> Markup {
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
    if let Some(files) = &look.files {
        all.push((shown(Unit::BytesPerSecond, look.rates.read_bytes), "read from the file system"));
        all.push((shown(Unit::BytesPerSecond, look.rates.written_bytes), "written to it"));
        all.push((shown(Unit::Seconds, look.rates.latency_p99), "99 of 100 operations take less"));
        all.push((files.waiting.to_string(), "requests wait for over a second"));
    }
    figures(&all)
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

fn causes(causes: &[crate::watched::Cause]) -> Markup {
    let table = |heading: &str, sorted: &[&crate::watched::Cause]| {
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
    let by_bytes: Vec<_> = causes.iter().collect();
    let mut by_operations = by_bytes.clone();
    by_operations.sort_by_key(|cause| std::cmp::Reverse(cause.operations));
    html! { div.pair { (table("By bytes", &by_bytes)) (table("By operations", &by_operations)) } }
}
