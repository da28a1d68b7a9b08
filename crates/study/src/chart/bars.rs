//! Horizontal bars: single ones, and groups with the spread of their values.
//!
//! Labels and values are text beside the bars, which wraps and is read out; only the bars are drawn.

use maud::{Markup, html};

use super::figure::{Caption, Ink, Key, Stroke, figure, percent};
use super::unit::Unit;

/// One value, or the middle of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The length of the bar; not drawn if it is not a number.
    pub middle: f64,
    /// Lowest and highest value, where there are several.
    pub spread: Option<(f64, f64)>,
    /// Its colour.
    pub ink: Ink,
    /// Its series, for the legend; empty in a chart of one series.
    pub series: String,
}

/// Bars under one label.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What they are values of.
    pub label: String,
    /// The unit of the values.
    pub unit: Unit,
    /// The values.
    pub values: Vec<Value>,
}

/// What the bars of a chart are long by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// One scale for the whole chart.
    Common,
    /// Each group its own: for groups of different units.
    Own,
}

/// The chart; `None` if no value is a number.
#[must_use]
pub fn bars(caption: &Caption, groups: &[Group], extent: Extent) -> Option<Markup> {
    let all = groups.iter().fold(f64::NAN, |largest, group| largest.max(group.largest()));
    if all.is_nan() {
        return None;
    }
    let legend = legend(groups);
    let spread = groups.iter().flat_map(|group| &group.values).any(|value| value.spread.is_some());
    let body = html! {
        div class={ "bars" @if !spread { " plain" } } {
            @for group in groups.iter().filter(|group| !group.largest().is_nan()) {
                @let largest = if extent == Extent::Own { group.largest() } else { all };
                div class="label" { (group.label) }
                div class="group" {
                    @for value in group.values.iter().filter(|value| value.middle.is_finite()) {
                        (row(value, group.unit, largest, group.unit.fit(largest)))
                    }
                }
            }
        }
    };
    Some(figure("barred", caption, &legend, &body))
}

impl Group {
    /// The end of the longest bar or whisker; NaN without values.
    fn largest(&self) -> f64 {
        let ends = self.values.iter().filter(|value| value.middle.is_finite());
        ends.map(|value| value.spread.map_or(value.middle, |(_, high)| high.max(value.middle)))
            .fold(f64::NAN, f64::max)
    }
}

/// One bar; all numbers of a scale have the same unit, that of its end.
fn row(value: &Value, unit: Unit, largest: f64, (factor, name): (f64, &str)) -> Markup {
    let part = |number: f64| if largest > 0.0 { (number / largest).clamp(0.0, 1.0) } else { 0.0 };
    let shown = match value.spread {
        Some((low, high)) if low < high => {
            format!("{} to {}", unit.show_as(low, factor, ""), unit.show_as(high, factor, ""))
        }
        _ => String::new(),
    };
    html! {
        div class="bar" {
            svg xmlns="http://www.w3.org/2000/svg" width="100%" height="14" aria-hidden="true" {
                rect class={ (value.ink.0) " area" } y="1" height="12" width=(percent(part(value.middle))) {}
                @if let Some((low, high)) = value.spread {
                    @if low < high {
                        @let (low, high) = (percent(part(low)), percent(part(high)));
                        g class="whisker" {
                            line x1=(low) x2=(high) y1="7" y2="7" {}
                            line x1=(low) x2=(low) y1="3" y2="11" {}
                            line x1=(high) x2=(high) y1="3" y2="11" {}
                        }
                    }
                }
            }
            span {
                @if !value.series.is_empty() { span class="unseen" { (value.series) ": " } }
                b { (unit.show_as(value.middle, factor, name)) }
                @if !shown.is_empty() { small { " " (shown) } }
            }
        }
    }
}

fn legend(groups: &[Group]) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for value in groups.iter().flat_map(|group| &group.values) {
        if !value.series.is_empty() && keys.iter().all(|key| key.label != value.series) {
            keys.push(Key {
                label: value.series.clone(),
                ink: value.ink,
                stroke: Stroke::Area,
                figures: String::new(),
            });
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(label: &str, middle: f64, spread: Option<(f64, f64)>) -> Group {
        let value = Value { middle, spread, ink: Ink::BLUE, series: String::new() };
        Group { label: label.to_owned(), unit: Unit::Plain, values: vec![value] }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let groups = [group("a", 50.0, None), group("b", 100.0, None)];
        let html = bars(&Caption::new("t", ""), &groups, Extent::Common).unwrap().into_string();
        assert!(html.contains("width=\"50%\"></rect>") && html.contains("width=\"100%\"></rect>"));
        let html = bars(&Caption::new("t", ""), &groups, Extent::Own).unwrap().into_string();
        assert_eq!(html.matches("width=\"100%\"></rect>").count(), 2);
    }

    #[test]
    fn whiskers_end_at_the_lowest_and_highest_value() {
        let groups = [group("a", 60.0, Some((40.0, 80.0)))];
        let html = bars(&Caption::new("t", ""), &groups, Extent::Common).unwrap().into_string();
        assert!(html.contains("<line x1=\"50%\" x2=\"100%\" y1=\"7\" y2=\"7\">"), "{html}");
        assert!(html.contains("40.0 to 80.0"));
    }

    #[test]
    fn nothing_but_gaps_is_no_chart() {
        let caption = Caption::new("t", "");
        assert!(bars(&caption, &[], Extent::Common).is_none());
        assert!(bars(&caption, &[group("a", f64::NAN, None)], Extent::Common).is_none());
        assert!(bars(&caption, &[group("a", 0.0, None)], Extent::Common).is_some());
    }
}
