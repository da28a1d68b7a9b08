//! How far predictions are off: the table for people, and the page.

use forebay_advisor::plan::shown;
use forebay_study::chart::bars::{Extent, Group, Value, bars};
use forebay_study::chart::figure::{Caption, Ink};
use forebay_study::chart::unit::Unit;
use forebay_study::report::{Head, Section, Standing, page, sheet};
use forebay_study::summary::Sheet;
use maud::{Markup, html};

use super::recorded::Checked;
use crate::output::Table;

/// The columns of both tables.
const COLUMNS: [&str; 10] = [
    "stage",
    "nodes",
    "at once",
    "jobs",
    "measured s",
    "predicted s",
    "error",
    "real s measured",
    "real s predicted",
    "real error",
];

/// Predicted beside measured, a row for each stage.
pub(super) fn table(checked: &[Checked]) -> Table {
    let mut table = Table::new(&COLUMNS);
    for one in checked {
        table.row(vec![
            one.stage.clone(),
            one.nodes.to_string(),
            one.concurrent.to_string(),
            one.jobs.to_string(),
            shown(one.measured_seconds),
            shown(one.predicted_seconds),
            signed_percent(one.error),
            shown(one.measured_real_seconds),
            shown(one.predicted_real_seconds),
            signed_percent(one.real_error),
        ]);
    }
    table
}

/// The greatest distance of a predicted run time from the measured one, whether too long or too short; 0 of none.
pub(super) fn largest_error(checked: &[Checked]) -> f64 {
    checked.iter().map(|one| one.error.abs()).fold(0.0, f64::max)
}

/// The page: `lines` say how the predictions were made.
pub(super) fn accuracy_page(title: &str, lines: Vec<String>, checked: &[Checked]) -> Markup {
    let head = Head {
        kicker: "Forebay plan: accuracy".to_owned(),
        title: title.to_owned(),
        under: lines,
        standing: Standing::Complete,
    };
    let body = html! { (chart(checked)) (sheet(&rows(checked))) };
    page(&head, &[Section { name: "accuracy", title: "Predicted and measured", body }])
}

fn chart(checked: &[Checked]) -> Markup {
    let value = |middle, number, series: &str| Value {
        middle,
        spread: None,
        ink: Ink::number(number),
        series: series.to_owned(),
    };
    let groups: Vec<Group> = checked
        .iter()
        .map(|one| Group {
            label: set_up(one),
            unit: Unit::Seconds,
            values: vec![
                value(one.measured_seconds, 0, "measured"),
                value(one.predicted_seconds, 1, "predicted"),
            ],
        })
        .collect();
    let caption =
        Caption::new("Run time", "From the start of the first job to the end of the last.");
    html! { @if let Some(chart) = bars(&caption, &groups, Extent::Common) { (chart) } }
}

fn set_up(one: &Checked) -> String {
    let plural = if one.nodes == 1 { "" } else { "s" };
    format!("{} node{plural}, {} at once on each", one.nodes, one.concurrent)
}

fn rows(checked: &[Checked]) -> Sheet {
    let mut table = forebay_analytics::Table::new(&COLUMNS);
    for one in checked {
        table.push(vec![
            one.stage.as_str().into(),
            f64::from(one.nodes).into(),
            f64::from(one.concurrent).into(),
            (one.jobs as f64).into(),
            one.measured_seconds.into(),
            one.predicted_seconds.into(),
            signed_percent(one.error).as_str().into(),
            one.measured_real_seconds.into(),
            one.predicted_real_seconds.into(),
            signed_percent(one.real_error).as_str().into(),
        ]);
    }
    let notes = vec!["An error of +10 % means that the prediction is 10 % too long.".to_owned()];
    Sheet { name: "accuracy", title: "Each run with its error".to_owned(), notes, table }
}

pub(super) fn signed_percent(part: f64) -> String {
    format!("{:+.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(nodes: u32, measured: f64, predicted: f64) -> Checked {
        Checked {
            stage: "all".to_owned(),
            nodes,
            concurrent: 2,
            jobs: 77,
            measured_seconds: measured,
            predicted_seconds: predicted,
            error: predicted / measured - 1.0,
            measured_real_seconds: 2.0 * measured,
            predicted_real_seconds: 2.0 * predicted,
            real_error: predicted / measured - 1.0,
        }
    }

    #[test]
    fn the_largest_error_is_the_farthest_off_in_either_direction() {
        let all = [checked(2, 100.0, 110.0), checked(3, 100.0, 80.0), checked(4, 100.0, 105.0)];
        assert!((largest_error(&all) - 0.2).abs() < 1e-9);
        assert_eq!(largest_error(&[]).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn the_page_has_each_run_with_both_times_and_its_error() {
        let all = [checked(2, 100.0, 110.0), checked(1, 50.0, 40.0)];
        let page = accuracy_page("mixed", vec!["How.".to_owned()], &all).into_string();
        for text in ["2 nodes, 2 at once", "1 node, 2", "+10 %", "-20 %", "measured", "predicted"] {
            assert!(page.contains(text), "{text}");
        }
        assert!(table(&all).render().contains("-20 %"));
    }
}
