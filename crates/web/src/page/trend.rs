//! Figures of the studies of one workload over time: one line for each storage and set of conditions (scale, parameters, jobs at once)
//! that was measured more than once.

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
    /// What it was measured on.
    pub on: String,
    /// How: only what was measured under the same conditions is one line.
    pub conditions: Conditions,
    /// When the study began.
    pub at: Moment,
    /// Its figures, in the order of the headings.
    pub figures: Vec<Option<f64>>,
}

/// How something was measured, as names and values.
pub type Conditions = Vec<(String, String)>;

/// A line: its measurements, the oldest first.
type Line<'a> = Vec<&'a Measured>;

/// What was measured more than once, the latest first.
fn lines(all: &[Measured]) -> Vec<Line<'_>> {
    let mut alike: BTreeMap<(&str, &Conditions), Line<'_>> = BTreeMap::new();
    for one in all {
        alike.entry((&one.on, &one.conditions)).or_default().push(one);
    }
    let mut lines: Vec<Line<'_>> = alike.into_values().filter(|of| of.len() > 1).collect();
    for of in &mut lines {
        of.sort_by_key(|one| one.at);
    }
    lines.sort_by_key(|of| std::cmp::Reverse(of.last().map(|one| one.at)));
    lines.truncate(LINES_MAX);
    lines
}

/// What lines stand for: the storage, and those conditions that are not the same for all.
fn labels(lines: &[Line<'_>]) -> Vec<String> {
    let firsts: Vec<&Measured> = lines.iter().filter_map(|of| of.first().copied()).collect();
    let differs = |condition: &(String, String)| {
        firsts.iter().any(|other| !other.conditions.contains(condition))
    };
    let label = |one: &&Measured| {
        let named = one.conditions.iter().filter(|condition| differs(condition));
        let parts = named.map(|(name, value)| format!(", {name} {value}"));
        format!("{}{}", one.on, parts.collect::<String>())
    };
    firsts.iter().map(label).collect()
}

/// One chart for each heading, up to `now`; nothing where nothing was measured twice.
#[expect(clippy::cast_precision_loss, reason = "seconds of a chart")]
pub fn charts(all: &[Measured], headings: &[&str], now: Moment) -> Markup {
    let lines = lines(all);
    let labels = labels(&lines);
    let Some(begin) = lines.iter().flatten().map(|one| one.at).min() else {
        return html! {};
    };
    let since = |at: Moment| at.since(begin) as f64 / 1000.0;
    let axis = TimeAxis { end: since(now).max(LEAST), bands: Vec::new(), zero: Zero::Now };
    let chart = |figure: usize, heading: &str| {
        let value = |one: &Measured| one.figures.get(figure).copied().flatten();
        let line = |(place, (of, label)): (usize, (&Line<'_>, &String))| {
            let points: Vec<(f64, f64)> =
                of.iter().filter_map(|one| Some((since(one.at), value(one)?))).collect();
            let (_, latest) = *points.last().filter(|_| points.len() > 1)?;
            let (label, ink) = (label.clone(), Ink::number(place));
            Some(Series { label, ink, figures: Unit::Plain.show(latest), points })
        };
        let series = lines.iter().zip(&labels).enumerate().filter_map(line).collect();
        let caption = Caption::new(
            heading,
            "A line shows studies on one storage under the same conditions (scale, parameters, jobs at once), by start time. \
             Labels name the conditions that differ.",
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

    fn measured(on: &str, scale: &str, at: u64, figure: f64) -> Measured {
        let condition = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let conditions = vec![condition("scale", scale), condition("block", "1M")];
        let figures = vec![Some(figure), None];
        Measured { on: on.to_owned(), conditions, at: Moment(at), figures }
    }

    #[test]
    fn only_what_was_measured_more_than_once_is_a_line_in_the_order_of_time() {
        let all = [
            measured("/new", "1", 3000, 3.0),
            measured("/once", "1", 9000, 1.0),
            measured("/new", "1", 1000, 1.0),
            measured("/old", "1", 500, 5.0),
            measured("/old", "1", 700, 7.0),
        ];
        let mut once = all.clone();
        once[0].figures[1] = Some(1.0);
        let found = lines(&all);
        assert_eq!(labels(&found), ["/new", "/old"]);
        assert_eq!(found[0].iter().map(|one| one.at.0).collect::<Vec<_>>(), [1000, 3000]);
        let shown = charts(&all, &["MB/s", "never measured"], Moment(100_000)).into_string();
        assert!(shown.contains("MB/s") && shown.contains("/new"), "{shown}");
        assert!(!shown.contains("never measured") && !shown.contains("/once"), "{shown}");
        assert!(!charts(&once, &["MB/s", "rarely"], Moment(9000)).into_string().contains("rarely"));
        assert_eq!(charts(&all[..2], &["MB/s"], Moment(100_000)).into_string(), "");
    }

    #[test]
    fn studies_with_other_parameters_have_a_line_of_their_own_that_names_them() {
        let mut all = vec![
            measured("/a", "1", 1000, 1.0),
            measured("/a", "1", 2000, 2.0),
            measured("/a", "0.5", 3000, 3.0),
            measured("/a", "0.5", 4000, 4.0),
            measured("/a", "2", 5000, 5.0),
        ];
        let found = lines(&all);
        // The block size is the same for all: it is not named. Scale 2 was measured once.
        assert_eq!(labels(&found), ["/a, scale 0.5", "/a, scale 1"]);
        let shown = charts(&all, &["MB/s"], Moment(100_000)).into_string();
        assert!(shown.contains("/a, scale 0.5") && !shown.contains("block"), "{shown}");
        // Another parameter of one of two studies: neither was measured twice.
        all.truncate(2);
        all[1].conditions[1].1 = "4M".to_owned();
        assert_eq!(charts(&all, &["MB/s"], Moment(100_000)).into_string(), "");
    }
}
