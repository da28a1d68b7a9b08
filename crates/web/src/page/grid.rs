//! Queues and hosts.

use forebay_engine::protocol::{HostState, HostView, QueueView};
use forebay_grid::journal::HostSwitch;
use forebay_study::chart::unit::Unit;
use maud::{Markup, html};

use super::action::encoded;
use super::layout::Content;
use super::plot::{bytes, chart, meter, range, ranges, state};
use super::{Page, View, button};
use crate::api::grid::{all_hosts, all_queues};

/// The most charts of a page.
const CHARTS: usize = 12;

pub fn queues(view: &View<'_>) -> Page {
    let (mut queues, _) = all_queues(&mut view.site.app.client(view.who)?)?;
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.priority));
    let (seconds, _) = range(view);
    let body = html! {
        div.scroll {
            table {
                thead { tr { th { "Queue" } th.number { "Priority" } th { "Takes jobs" } th { "Starts jobs" } th { "Time windows" } th { "Slots" } th.number { "Waiting" } th.number { "Held" } th.number { "On hosts" } @if view.who.admin { th { "Change" } } } }
                tbody { @for queue in &queues { (queue_row(view, queue)) } }
            }
        }
        (ranges(view))
        div.pair {
            @for queue in queues.iter().take(CHARTS) {
                (chart(view, (&format!("queue/{}", queue.name), seconds), (queue.name.as_str(), Unit::Count), &[("active_tasks", "on hosts"), ("pending_tasks", "waiting")]))
            }
        }
    };
    Ok(Content { title: "Queues".to_owned(), body })
}

fn queue_row(view: &View<'_>, queue: &QueueView) -> Markup {
    let path = |verb: &str| format!("/queues/{}/{verb}", encoded(queue.name.as_str()));
    html! {
        tr {
            td { (queue.name) @if queue.is_default { " (default)" } }
            td.number { @if let Some(priority) = queue.priority { (priority) } }
            td { (state(if queue.open { "open" } else { "closed" })) }
            td { (state(if queue.active { "active" } else { "inactive" })) }
            td { (state(if queue.windows_open { "open" } else { "closed" })) }
            td {
                @if let Some(most) = queue.slots_max { (meter(f64::from(queue.used_slots), f64::from(most), &format!("{} of {most}", queue.used_slots))) }
                @else { (queue.used_slots) " (no limit)" }
            }
            td.number { (queue.pending_tasks) }
            td.number { (queue.held_tasks) }
            td.number { (queue.active_tasks) }
            @if view.who.admin {
                td.actions {
                    @if queue.open { (button(view, &path("close"), "Close")) } @else { (button(view, &path("open"), "Open")) }
                    @if queue.active { (button(view, &path("inactivate"), "Stop starting")) } @else { (button(view, &path("activate"), "Start again")) }
                }
            }
        }
    }
}

/// A name to sort by: gridn2 comes before gridn10.
fn in_order(name: &str) -> (&str, u64) {
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (head, name[head.len()..].parse().unwrap_or(0))
}

pub fn hosts(view: &View<'_>) -> Page {
    let (mut hosts, _) = all_hosts(&mut view.site.app.client(view.who)?)?;
    hosts.sort_by(|one, other| in_order(one.name.as_str()).cmp(&in_order(other.name.as_str())));
    let (seconds, _) = range(view);
    let body = html! {
        (map(&hosts))
        div.scroll {
            table {
                thead { tr { th { "Host" } th { "State" } th { "Jobs may start" } th { "Slots" } th { "Processors" } th { "Memory reserved" } th.number { "Load" } th { "Jobs" } @if view.who.admin { th { "Change" } } } }
                tbody { @for host in &hosts { (host_row(view, host)) } }
            }
        }
        (ranges(view))
        div.pair {
            @for host in hosts.iter().take(CHARTS) {
                (chart(view, (&format!("host/{}", host.name), seconds), (&format!("{}: slots", host.name), Unit::Count), &[("used_slots", "in use"), ("slots", "all"), ("load", "load")]))
            }
        }
    };
    Ok(Content { title: "Hosts".to_owned(), body })
}

/// A map of all slots: a square each, filled if it is in use.
fn map(hosts: &[HostView]) -> Markup {
    const SHOWN: u32 = 256;
    html! {
        ul.map aria-label="Slots" {
            @for host in hosts {
                li class=(if host.state == HostState::Up { "up" } else { "down" }) {
                    b { (host.name) } " " (host.used_slots) " of " (host.slots)
                    @if host.state != HostState::Up { ", " (host.state.word()) }
                    @if let Some(load) = host.load.filter(|_| host.state == HostState::Up) {
                        (meter(load.ut, 1.0, &format!("{} of the processors are busy", Unit::Share.show(load.ut))))
                    }
                    span.slots aria-hidden="true" {
                        @for slot in 0..host.slots.min(SHOWN) { i class=(if slot < host.used_slots { "used" } else { "free" }) {} }
                        @if host.slots > SHOWN { " ..." }
                    }
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a bar")]
fn host_row(view: &View<'_>, host: &HostView) -> Markup {
    let path = |verb: &str| format!("/hosts/{}/{verb}", encoded(host.name.as_str()));
    let is_open = host.switch == HostSwitch::Open;
    let memory = host.memory_bytes.unwrap_or(0);
    html! {
        tr {
            td { (host.name) }
            td { (state(host.state.word())) }
            td { (state(if is_open { "open" } else { "closed" })) }
            td { (meter(f64::from(host.used_slots), f64::from(host.slots), &format!("{} of {}", host.used_slots, host.slots))) }
            td { @if let Some(load) = host.load { (meter(load.ut, 1.0, &Unit::Share.show(load.ut))) } @else { "-" } }
            td { (meter(host.used_memory_bytes as f64, memory as f64, &format!("{} of {}", bytes(host.used_memory_bytes), bytes(memory)))) }
            td.number { @if let Some(load) = host.load { (format!("{:.2}", load.r1m)) } }
            td { @for task in host.tasks.iter().take(8) { a href={ "/jobs/" (encoded(task)) } { (task) } " " } @if host.tasks.len() > 8 { "and " (host.tasks.len() - 8) " more" } }
            @if view.who.admin {
                td.actions { @if is_open { (button(view, &path("close"), "Close")) } @else { (button(view, &path("open"), "Open")) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_listed_by_their_numbers() {
        let mut names = ["gridn10", "gridn2", "b", "gridn", "a7"];
        names.sort_by(|one, other| in_order(one).cmp(&in_order(other)));
        assert_eq!(names, ["a7", "b", "gridn", "gridn2", "gridn10"]);
    }
}
