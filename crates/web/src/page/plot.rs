//! Charts and numbers of pages: samples of the past, drawn as reports of studies draw theirs.

use forebay_engine::protocol::JobView;
use forebay_grid::vocabulary::Moment;
use forebay_study::chart::figure::{Caption, Ink};
use forebay_study::chart::time::{Series, TimeAxis, TimeChart, Zero};
use forebay_study::chart::unit::{Unit, span};
use maud::{Markup, html};

use super::View;
use super::action::encoded;
use crate::api::shape::Time;
use crate::api::views::Samples;

/// How far pages look back.
pub const RANGES: [(&str, u64, &str); 3] =
    [("hour", 3600, "Hour"), ("day", 86_400, "Day"), ("month", 31 * 86_400, "Month")];

/// How far a page looks back, in seconds.
pub fn range(view: &View<'_>) -> (u64, &'static str) {
    let name = view.request.parameter("range").unwrap_or("hour");
    let found = RANGES.iter().find(|(of, _, _)| *of == name).unwrap_or(&RANGES[0]);
    (found.1, found.0)
}

/// Links to the other ranges.
pub fn ranges(view: &View<'_>) -> Markup {
    let (_, chosen) = range(view);
    html! {
        p.ranges {
            "The last "
            @for (name, _, text) in RANGES {
                a href={ (view.request.path) "?range=" (name) } aria-current=[(name == chosen).then_some("true")] {
                    (text.to_lowercase())
                }
                " "
            }
        }
    }
}

/// Some values of a subject over time; words where there are none yet.
#[expect(clippy::cast_precision_loss, reason = "seconds of a chart")]
pub fn chart(
    view: &View<'_>,
    (subject, seconds): (&str, u64),
    (title, unit): (&str, Unit),
    lines: &[(&str, &str)],
) -> Markup {
    let now = view.site.app.now();
    let Some(samples) = view.site.app.history.read(subject, now, seconds) else {
        return html! { p.note { (title) ": nothing was recorded yet." } };
    };
    let known =
        samples.times.first().map_or(seconds, |first| (now.0 / 1000).saturating_sub(*first));
    let shown = window(seconds, known);
    let begin = (now.0 / 1000).saturating_sub(shown);
    let series = lines.iter().enumerate().map(|(place, (column, label))| Series {
        label: (*label).to_owned(),
        ink: Ink::number(place),
        figures: latest(&samples, column).map(|value| unit.show(value)).unwrap_or_default(),
        points: points(&samples, column, begin),
    });
    let axis = TimeAxis { end: shown as f64, bands: Vec::new(), zero: Zero::Now };
    let range = RANGES.iter().find(|(_, of, _)| *of == seconds).map_or("time", |found| found.0);
    let note = if shown < seconds {
        format!("The last {}; nothing was recorded before.", span(shown as f64))
    } else {
        format!("The last {range}.")
    };
    let chart = TimeChart {
        caption: Caption::new(title, &note),
        unit,
        axis: &axis,
        height: 130.0,
        series: series.collect(),
        rules: Vec::new(),
    };
    chart.lines().unwrap_or_else(|| html! { p.note { (title) ": nothing was recorded yet." } })
}

/// How many of the latest seconds a chart shows that could show `seconds`, of which only `known` were recorded: what there is must not be
/// a speck at the edge.
fn window(seconds: u64, known: u64) -> u64 {
    const LEAST: u64 = 300;
    if known.saturating_mul(2) < seconds { known.max(LEAST).min(seconds) } else { seconds }
}

/// Points of a line. Where nothing was recorded for more than three steps, there is a gap.
#[expect(clippy::cast_precision_loss, reason = "seconds of a chart")]
fn points(samples: &Samples, column: &str, begin: u64) -> Vec<(f64, f64)> {
    let Some(values) = samples.values.get(column) else { return Vec::new() };
    let mut points = Vec::new();
    let mut last = None;
    for (time, value) in samples.times.iter().zip(values) {
        let at = time.saturating_sub(begin) as f64;
        if last.is_some_and(|last| time - last > 3 * samples.step_seconds) {
            points.push((at, f64::NAN));
        }
        points.push((at, value.unwrap_or(f64::NAN)));
        last = Some(*time);
    }
    points
}

fn latest(samples: &Samples, column: &str) -> Option<f64> {
    samples.values.get(column)?.last().copied().flatten()
}

/// A list of key figures.
pub fn figures(all: &[(String, &str)]) -> Markup {
    html! {
        dl.key-figures {
            @for (value, what) in all {
                div { dt { (what) } dd { (value) } }
            }
        }
    }
}

/// A state, with a mark that does not need colour.
pub fn state(word: &str) -> Markup {
    let (mark, class) = match word {
        "running" | "starting" | "up" => ("\u{25b6}", "run"),
        "done" | "open" | "active" => ("\u{2713}", "good"),
        "pending" | "held" | "suspended" | "skipped" | "muted" | "closed" | "inactive" | "over" => {
            ("\u{25cb}", "wait")
        }
        _ => ("\u{2715}", "bad"),
    };
    html! { span class={ "state " (class) } { span aria-hidden="true" { (mark) } " " (word.replace('_', " ")) } }
}

/// Something that is as it should be.
pub fn good(text: &str) -> Markup {
    html! { span.state.good { span aria-hidden="true" { "\u{2713}" } " " (text) } }
}

/// A bar of what is used of something, with its numbers.
pub fn meter(used: f64, all: f64, text: &str) -> Markup {
    let part = if all > 0.0 { (used / all).clamp(0.0, 1.0) } else { 0.0 };
    html! {
        span.meter {
            svg width="100%" height="10" role="img" aria-label=(text) {
                rect.back width="100%" height="10" {}
                rect.part width={ (format!("{:.1}", part * 100.0)) "%" } height="10" {}
            }
            span { (text) }
        }
    }
}

/// A moment, as the machine's clock shows it.
pub fn time(at: Moment) -> Markup {
    let known = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let Some(known) = known else { return html! { "-" } };
    let text =
        known.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string();
    html! { time datetime=(known) { (text) } }
}

/// The same of a moment as the API says it.
pub fn said(at: &Time) -> Markup {
    let known = at.0.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond);
    match known.and_then(|ms| u64::try_from(ms).ok()) {
        Some(ms) => time(Moment(ms)),
        None => html! { (at.0) },
    }
}

/// How long something took, or has taken.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn took(from: Option<Moment>, to: Moment) -> String {
    from.map_or_else(|| "-".to_owned(), |from| span(to.since(from) as f64 / 1000.0))
}

/// A number of bytes.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn bytes(number: u64) -> String {
    Unit::Bytes.show(number as f64)
}

/// A table of jobs.
pub fn jobs(view: &View<'_>, jobs: &[JobView]) -> Markup {
    let now = view.site.app.now();
    html! {
        div.scroll {
            table {
                thead {
                    tr { th { "Job" } th { "Name" } th { "User" } th { "Queue" } th { "State" } th { "Host" } th.number { "Took" } th { "Submitted" } th { "Exit" } }
                }
                tbody {
                    @for job in jobs {
                        tr {
                            td { a href={ "/jobs/" (encoded(&job.id)) } { (job.id) } @if job.tasks > 1 { " (" (job.tasks) ")" } }
                            td { (name_of(job)) }
                            td { (job.user) }
                            td { (job.queue) }
                            td { (state(job.state.word())) }
                            td { @if let Some(host) = &job.host { (host) } }
                            td.number { (took(job.started, job.ended.unwrap_or(now))) }
                            td { (time(job.submitted)) }
                            td { @if let Some(exit) = &job.exit { (exit) } }
                        }
                    }
                }
            }
        }
        @if jobs.is_empty() { p.note { "There are no such jobs." } }
    }
}

/// What a job is called.
pub fn name_of(job: &JobView) -> String {
    let name = if job.name.is_empty() { job.command.join(" ") } else { job.name.clone() };
    forebay_study::chart::gantt::cut(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_of_a_young_server_shows_what_there_is() {
        assert_eq!(window(3600, 20), 300);
        assert_eq!(window(3600, 700), 700);
        assert_eq!(window(3600, 1800), 3600);
        assert_eq!(window(60, 1), 60);
        assert_eq!(window(86_400, 90_000), 86_400);
    }
}
