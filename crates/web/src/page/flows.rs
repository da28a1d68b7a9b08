//! Runs of flows: a list, and one with its graph and its bars over time.

use std::collections::BTreeMap;

use forebay_engine::protocol::{FlowView, StepView};
use forebay_grid::flow::FlowId;
use forebay_grid::grid::StepState;
use forebay_study::chart::figure::Caption;
use forebay_study::chart::gantt::{Bar, Gantt, Outcome, cut};
use forebay_study::chart::time::{TimeAxis, Zero};
use maud::{Markup, html};

use super::layout::Content;
use super::plot::{state, time, took};
use super::{Page, View, button};
use crate::api::grid::one_flow;
use crate::problem::Problem;

/// The most steps of a graph that is drawn.
const STEPS_MAX: usize = 200;

pub fn list(view: &View<'_>) -> Page {
    let ended = view.request.parameter("ended").is_some();
    let mut flows = view.site.app.client(view.who)?.flows(ended)?;
    flows.reverse();
    let now = view.site.app.now();
    let body = html! {
        p { @if ended { a href="/flows" { "Unfinished runs only" } } @else { a href="/flows?ended=1" { "Finished runs too" } } }
        div.scroll {
            table {
                thead { tr { th { "Run" } th { "Flow" } th { "User" } th { "State" } th.number { "Steps done" } th { "Began" } th.number { "Took" } th { "Failed" } } }
                tbody {
                    @for flow in flows.iter().take(1000) {
                        tr {
                            td { a href={ "/flows/" (flow.id) } { (flow.id) } }
                            td { (cut(&flow.name)) } td { (flow.user) } td { (state(flow.state.word())) }
                            td.number { (flow.done) " of " (flow.count) }
                            td { (time(flow.begun)) } td.number { (took(Some(flow.begun), flow.ended.unwrap_or(now))) }
                            td { (flow.failed.join(", ")) }
                        }
                    }
                }
            }
        }
        @if flows.is_empty() { p.note { "There are no such runs." } }
    };
    Ok(Content { title: "Flows".to_owned(), body })
}

pub fn one(view: &View<'_>, id: &str) -> Page {
    let id: FlowId = id.parse().map_err(|error: String| Problem::own("not_found", error))?;
    let flow = one_flow(&mut view.site.app.client(view.who)?, id)?;
    let now = view.site.app.now();
    let is_running = flow.ended.is_none();
    let body = html! {
        div.actions {
            @if is_running { (button(view, &format!("/flows/{id}/kill"), "Kill")) }
            @if !flow.failed.is_empty() || flow.state.word() == "killed" { (button(view, &format!("/flows/{id}/rerun"), "Run again where it failed")) }
        }
        dl.facts {
            dt { "State" } dd { (state(flow.state.word())) }
            dt { "User" } dd { (flow.user) }
            dt { "Steps" } dd { (flow.done) " of " (flow.count) " done" }
            dt { "Began" } dd { (time(flow.begun)) ", for " (took(Some(flow.begun), flow.ended.unwrap_or(now))) }
            @if flow.reruns > 0 { dt { "Run again" } dd { (flow.reruns) " times" } }
        }
        (graph(&flow.steps))
        (bars(view, &flow))
        h2 { "Steps" }
        div.scroll {
            table {
                thead { tr { th { "Step" } th { "Job" } th { "State" } th { "After" } th { "Host" } th.number { "Starts" } th.number { "Took" } th.number { "Exit code" } } }
                tbody {
                    @for step in &flow.steps {
                        tr {
                            td { (cut(&step.name)) } td { a href={ "/jobs/" (step.job) } { (step.job) } }
                            td { (state(step.state.word())) @if step.tasks > 1 { " " (step.done) " of " (step.tasks) } }
                            td { (step.after.as_deref().unwrap_or_default()) }
                            td { @if let Some(host) = &step.host { (host) } }
                            td.number { (step.attempts) }
                            td.number { (took(step.started, step.ended.unwrap_or(now))) }
                            td.number { @if let Some(exit) = step.exit { (exit) } }
                        }
                    }
                }
            }
        }
    };
    Ok(Content { title: format!("Flow {id}: {}", cut(&flow.name)), body })
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a chart")]
fn bars(view: &View<'_>, flow: &FlowView) -> Markup {
    let now = view.site.app.now();
    let since = |at: forebay_grid::vocabulary::Moment| at.since(flow.begun) as f64 / 1000.0;
    let end = since(flow.ended.unwrap_or(now)).max(1.0);
    let axis = TimeAxis { end, bands: Vec::new(), zero: Zero::Start };
    let bars = flow.steps.iter().filter_map(|step| {
        let start = since(step.started?);
        Some(Bar {
            name: cut(&step.name),
            group: 0,
            due: start,
            start,
            end: step.ended.map_or(end, since),
            outcome: if step.state == StepState::Failed { Outcome::Failed } else { Outcome::Well },
        })
    });
    let caption = Caption::new("Steps over time", "From the beginning of the run.");
    let chart =
        Gantt { caption, axis: &axis, groups: vec!["steps".to_owned()], bars: bars.collect() };
    chart.draw().unwrap_or_else(|| html! {})
}

/// Names of steps in a condition: words that are names of steps.
fn names<'a>(after: &'a str, known: &'a BTreeMap<&str, usize>) -> impl Iterator<Item = usize> + 'a {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    after.split(move |c: char| !is_of_name(c)).filter_map(|word| known.get(word).copied())
}

/// The steps in columns, each to the right of all that it waits for.
fn graph(steps: &[StepView]) -> Markup {
    const WIDE: u32 = 150;
    const TALL: u32 = 34;
    const GAP: u32 = 46;
    if steps.len() > STEPS_MAX || steps.is_empty() {
        return html! {};
    }
    let known: BTreeMap<&str, usize> =
        steps.iter().enumerate().map(|(place, step)| (&*step.name, place)).collect();
    let mut places: Vec<(u32, u32)> = Vec::new();
    let mut rows: BTreeMap<u32, u32> = BTreeMap::new();
    let mut lines = Vec::new();
    for step in steps {
        let before: Vec<usize> = step
            .after
            .iter()
            .flat_map(|after| names(after, &known))
            .filter(|at| *at < places.len())
            .collect();
        let column = before.iter().map(|at| places[*at].0 + 1).max().unwrap_or(0);
        let row = rows.entry(column).or_insert(0);
        lines.extend(before.iter().map(|at| (*at, places.len())));
        places.push((column, *row));
        *row += 1;
    }
    let x = |column: u32| column * (WIDE + GAP) + 1;
    let y = |row: u32| row * (TALL + 14) + 1;
    let (columns, tallest) = (rows.len() as u32, rows.values().copied().max().unwrap_or(1));
    let (width, height) = (x(columns) - GAP + 1, y(tallest) - 12);
    html! {
        h2 { "Graph" }
        div.scroll tabindex="0" {
            svg.graph width=(width) height=(height) role="img" aria-label="Steps and what they wait for; the table below has the same" {
                @for (from, to) in lines {
                    @let (x1, y1) = (x(places[from].0) + WIDE, y(places[from].1) + TALL / 2);
                    @let (x2, y2) = (x(places[to].0), y(places[to].1) + TALL / 2);
                    path d={ "M" (x1) " " (y1) "C" (x1 + GAP / 2) " " (y1) " " (x2.saturating_sub(GAP / 2)) " " (y2) " " (x2) " " (y2) } {}
                }
                @for (step, (column, row)) in steps.iter().zip(&places) {
                    a href={ "/jobs/" (step.job) } {
                        g class=(step.state.word()) {
                            rect x=(x(*column)) y=(y(*row)) width=(WIDE) height=(TALL) rx="4" {}
                            text x=(x(*column) + 8) y=(y(*row) + 14) { (step.name.chars().take(20).collect::<String>()) }
                            text.word x=(x(*column) + 8) y=(y(*row) + 27) { (step.state.word()) }
                        }
                    }
                }
            }
        }
    }
}
