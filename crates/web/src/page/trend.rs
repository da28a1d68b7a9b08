//! Figures of the studies of one workload over time: one line for each storage and scale that was measured more than once.

use std::collections::BTreeMap;

use forebay_grid::vocabulary::Moment;
use forebay_study::chart::figure::{Caption, Ink};
use forebay_study::chart::time::{Series, TimeAxis, TimeChart, Zero};
use forebay_study::chart::unit::Unit;
use maud::{Markup, html};

/// The most lines of a chart: those that were measured last.
const LINES_MAX: usize = 6;
/// The shortest time that a chart shows, seconds.
const LEAST: f64 = 60.0;

/// What a study measured on one storage, at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What it was measured on, with the scale: only the same can be compared.
    pub on: String,
    /// When the study began.
    pub at: Moment,
    /// Its figures, in the order of the headings.
    pub figures: Vec<Option<f64>>,
}

/// A line: what it stands for, and its measurements, the oldest first.
type Line<'a> = (&'a str, Vec<&'a Measured>);

/// What was measured more than once, the latest first.
fn lines(all: &[Measured]) -> Vec<Line<'_>> {
    let mut by_place: BTreeMap<&str, Vec<&Measured>> = BTreeMap::new();
    for one in all {
        by_place.entry(&one.on).or_default().push(one);
    }
    let mut lines: Vec<Line<'_>> = by_place.into_iter().filter(|(_, of)| of.len() > 1).collect();
    for (_, of) in &mut lines {
        of.sort_by_key(|one| one.at);
    }
    lines.sort_by_key(|(_, of)| std::cmp::Reverse(of.last().map(|one| one.at)));
    lines.truncate(LINES_MAX);
    lines
}

/// One chart for each heading, up to `now`; nothing where nothing was measured twice.
#[expect(clippy::cast_precision_loss, reason = "seconds of a chart")]
pub fn charts(all: &[Measured], headings: &[&str], now: Moment) -> Markup {
    let lines = lines(all);
    let Some(begin) = lines.iter().flat_map(|(_, of)| of).map(|one| one.at).min() else {
        return html! {};
    };
    let since = |at: Moment| at.since(begin) as f64 / 1000.0;
    let axis = TimeAxis { end: since(now).max(LEAST), bands: Vec::new(), zero: Zero::Now };
    let chart = |figure: usize, heading: &str| {
        let value = |one: &Measured| one.figures.get(figure).copied().flatten();
        let line = |(place, (on, of)): (usize, &Line<'_>)| {
            let points: Vec<(f64, f64)> =
                of.iter().filter_map(|one| Some((since(one.at), value(one)?))).collect();
            let (_, latest) = *points.last().filter(|_| points.len() > 1)?;
            let (label, ink) = ((*on).to_owned(), Ink::number(place));
            Some(Series { label, ink, figures: Unit::Plain.show(latest), points })
        };
        let series = lines.iter().enumerate().filter_map(line).collect();
        let caption = Caption::new(
            heading,
            "Studies of the same scale on the same storage, by start time; parameters and number of jobs may differ.",
        );
        TimeChart {
            caption,
            unit: Unit::Plain,
            axis: &axis,
            height: 130.0,
            series,
            rules: Vec::new(),
        }
        .lines()
    };
    html! {
        div.pair {
            @for (figure, heading) in headings.iter().enumerate() { (chart(figure, heading).unwrap_or_default()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(on: &str, at: u64, figure: f64) -> Measured {
        Measured { on: on.to_owned(), at: Moment(at), figures: vec![Some(figure), None] }
    }

    #[test]
    fn only_what_was_measured_more_than_once_is_a_line_in_the_order_of_time() {
        let all = [
            measured("/new, scale 1", 3000, 3.0),
            measured("/once, scale 1", 9000, 1.0),
            measured("/new, scale 1", 1000, 1.0),
            measured("/old, scale 1", 500, 5.0),
            measured("/old, scale 1", 700, 7.0),
        ];
        let mut once = all.clone();
        once[0].figures[1] = Some(1.0);
        let found = lines(&all);
        let names: Vec<&str> = found.iter().map(|(on, _)| *on).collect();
        assert_eq!(names, ["/new, scale 1", "/old, scale 1"]);
        assert_eq!(found[0].1.iter().map(|one| one.at.0).collect::<Vec<_>>(), [1000, 3000]);
        let shown = charts(&all, &["MB/s", "never measured"], Moment(100_000)).into_string();
        assert!(shown.contains("MB/s") && shown.contains("/new, scale 1"), "{shown}");
        assert!(!shown.contains("never measured") && !shown.contains("/once"), "{shown}");
        assert!(!charts(&once, &["MB/s", "rarely"], Moment(9000)).into_string().contains("rarely"));
        assert_eq!(charts(&all[..2], &["MB/s"], Moment(100_000)).into_string(), "");
    }
}
