//! Values over the time of a run: lines and stacked areas above one time axis, stages as bands.
//!
//! The outer drawing says in `data-end` how many seconds it is wide, in `data-top` and `data-unit` how
//! much it is high; each curve carries its label in `data-label`. So a value can be read back from a
//! point of the curve, to a thousandth of the axis.

use maud::{Markup, html};

use super::POINTS_MAX;
use super::figure::{
    Caption, Ink, Key, Stroke, columns_of, curves, drawing, figure, percent, points, rows_of, short,
};
use super::scale::{Linear, ticks_until_now, time_ticks};
use super::thin::{Stretch, average, envelope};
use super::unit::Unit;

/// A stretch of time with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// What happens in it.
    pub label: String,
    /// Where it begins, in seconds.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
}

/// The time axis that all charts of a run share.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeAxis {
    /// Length in seconds.
    pub end: f64,
    /// The stages; one alone is not marked.
    pub bands: Vec<Band>,
    /// From where its labels count.
    pub zero: Zero,
}

/// From where the labels of a time axis count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// From its left edge, forwards.
    Start,
    /// From its right edge, which is now, backwards.
    Now,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is.
    pub label: String,
    /// Its colour.
    pub ink: Ink,
    /// Figures for the legend, such as its median.
    pub figures: String,
    /// Seconds and values, ascending in time. A value that is not a number is a gap.
    pub points: Vec<(f64, f64)>,
}

/// A horizontal line to compare with.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Where.
    pub at: f64,
    /// What it stands for.
    pub label: String,
}

/// A chart over time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeChart<'a> {
    /// Title and note.
    pub caption: Caption,
    /// Unit of all values.
    pub unit: Unit,
    /// Its time axis.
    pub axis: &'a TimeAxis,
    /// Height of the drawing area in pixels.
    pub height: f64,
    /// The curves; those of a stack from the bottom up.
    pub series: Vec<Series>,
    /// Lines to compare with, drawn where they fit into the chart.
    pub rules: Vec<Rule>,
}

impl TimeAxis {
    fn part(&self, seconds: f64) -> f64 {
        (seconds / self.end).clamp(0.0, 1.0)
    }

    /// The bands behind the curves; every other one is shaded.
    #[must_use]
    pub fn shades(&self, height: f64) -> Markup {
        html! {
            @if self.bands.len() > 1 {
                g class="bands" {
                    @for (i, band) in self.bands.iter().enumerate() {
                        @let start = self.part(band.start);
                        @if i % 2 == 1 {
                            rect x=(percent(start)) width=(percent(self.part(band.end) - start))
                                height=(short(height)) {}
                        }
                    }
                }
            }
        }
    }

    /// The names of the bands, above the drawing: numbers if the names have no room.
    #[must_use]
    pub fn strip(&self) -> Markup {
        let numbered = self.numbered();
        html! {
            @if self.bands.len() > 1 {
                div class={ "strip" @if numbered { " numbered" } } aria-hidden="true" {
                    @for (i, band) in self.bands.iter().enumerate() {
                        @let start = self.part(band.start);
                        @let width = self.part(band.end) - start;
                        span title=(band.label)
                            style={ "left:" (percent(start)) ";width:" (percent(width)) } {
                            @if numbered { (i + 1) } @else { (band.label) }
                        }
                    }
                }
            }
        }
    }

    /// Whether the names of the bands have no room, so that they are numbered instead.
    #[must_use]
    pub fn numbered(&self) -> bool {
        self.bands.iter().any(|band| {
            let pixels = (self.part(band.end) - self.part(band.start)) * PLOT_PIXELS;
            pixels < band.label.chars().count() as f64 * CHARACTER_PIXELS
        })
    }

    /// The axis below a drawing.
    #[must_use]
    pub fn ticks(&self, height: f64) -> Markup {
        let ticks = match self.zero {
            Zero::Start => time_ticks(self.end, 9),
            Zero::Now => ticks_until_now(self.end, 9),
        };
        let placed: Vec<_> = ticks.iter().map(|tick| (self.part(tick.at), tick)).collect();
        columns_of(&placed, height)
    }
}

/// Width of a drawing on a laptop and of a letter in it, to judge what has room.
const PLOT_PIXELS: f64 = 820.0;
const CHARACTER_PIXELS: f64 = 6.4;

impl TimeChart<'_> {
    /// The series as lines; `None` if there is nothing to draw.
    #[must_use]
    pub fn lines(&self) -> Option<Markup> {
        let finite = |series: &&Series| series.points.iter().any(|point| point.1.is_finite());
        let drawn: Vec<&Series> = self.series.iter().filter(finite).collect();
        let largest = drawn.iter().flat_map(|series| &series.points).map(|point| point.1);
        let largest = largest.filter(|value| value.is_finite()).fold(f64::NAN, f64::max);
        if largest.is_nan() || self.axis.end.is_nan() || self.axis.end <= 0.0 {
            return None;
        }
        let scale = Linear::holding(self.room_for_rules(largest), self.unit, 4);
        let place = |&(x, y): &(f64, f64)| (self.axis.part(x), scale.part(y));
        let body = html! {
            @for series in &drawn {
                g class={ (series.ink.0) " line" } data-label=(series.label) {
                    @for piece in pieces(&series.points) {
                        @if let Some((band, middle)) = thinned(piece, series.points.len()) {
                            polygon class="band" points=(points(band.iter().map(place))) {}
                            polyline points=(points(middle.iter().map(place))) {}
                        } @else {
                            // One point alone is a line without length, whose ends are drawn.
                            @let twice = if piece.len() == 1 { &[piece[0], piece[0]] } else { piece };
                            polyline points=(points(twice.iter().map(place))) {}
                        }
                    }
                }
            }
        };
        Some(self.frame(&scale, Stroke::Line, &drawn, &body))
    }

    /// The series as a stack of areas; `None` if there is nothing to draw. All series must have the same
    /// times; values that are not numbers count as nothing.
    #[must_use]
    pub fn stack(&self) -> Option<Markup> {
        let times: Vec<f64> = self.series.first()?.points.iter().map(|point| point.0).collect();
        if times.is_empty() || self.axis.end.is_nan() || self.axis.end <= 0.0 {
            return None;
        }
        let value = |point: &(f64, f64)| if point.1.is_finite() { point.1 } else { 0.0 };
        let columns: Vec<Vec<f64>> =
            self.series.iter().map(|series| series.points.iter().map(value).collect()).collect();
        let (times, columns) = average(&times, &columns, POINTS_MAX / 2);
        let mut edges = vec![vec![0.0; times.len()]];
        for column in &columns {
            let below = &edges[edges.len() - 1];
            edges.push(below.iter().zip(column).map(|(below, more)| below + more).collect());
        }
        let largest = edges[edges.len() - 1].iter().copied().fold(0.0, f64::max);
        let scale = Linear::holding(self.room_for_rules(largest), self.unit, 4);
        let corner = |i: usize, edge: &[f64]| (self.axis.part(times[i]), scale.part(edge[i]));
        let body = html! {
            @for (i, series) in self.series.iter().enumerate() {
                @let (below, above) = (&edges[i], &edges[i + 1]);
                @let there = (0..times.len()).map(|at| corner(at, above));
                @let back = (0..times.len()).rev().map(|at| corner(at, below));
                g class={ (series.ink.0) " area" } data-label=(series.label) {
                    polygon points=(points(there.chain(back))) {}
                }
            }
        };
        let drawn: Vec<&Series> = self.series.iter().collect();
        Some(self.frame(&scale, Stroke::Area, &drawn, &body))
    }

    /// Rules not far above the values are worth the room.
    fn room_for_rules(&self, largest: f64) -> f64 {
        let near = self.rules.iter().map(|rule| rule.at).filter(|at| *at <= largest * 2.5);
        near.fold(largest, f64::max)
    }

    fn frame(&self, scale: &Linear, stroke: Stroke, drawn: &[&Series], body: &Markup) -> Markup {
        let legend: Vec<Key> = drawn
            .iter()
            .map(|series| Key {
                label: series.label.clone(),
                ink: series.ink,
                stroke,
                figures: series.figures.clone(),
            })
            .collect();
        let described = described(&legend);
        let (factor, unit) = self.unit.fit(scale.top);
        let data = [
            ("end", short(self.axis.end)),
            ("top", short(scale.top / factor)),
            ("unit", unit.to_owned()),
        ];
        let inside = html! {
            (self.axis.shades(self.height))
            (rows_of(scale, self.height))
            (self.axis.ticks(self.height))
            (curves(self.height, body))
            @for rule in self.rules.iter().filter(|rule| rule.at <= scale.top) {
                @let y = self.height * (1.0 - scale.part(rule.at));
                g class="rule" {
                    line x1="0" x2="100%" y1=(short(y)) y2=(short(y)) {}
                    text x="100%" y=(short(y - 5.0)) { (rule.label) }
                }
            }
        };
        let drawing = drawing(&self.caption.title, &described, self.height, &data, &inside);
        figure("time", &self.caption, &legend, &html! { (self.axis.strip()) (drawing) })
    }
}

/// A sentence that stands for a drawing: what is in it, with its figures.
#[must_use]
pub fn described(legend: &[Key]) -> String {
    let parts: Vec<String> = legend
        .iter()
        .map(|key| match key.figures.as_str() {
            "" => key.label.clone(),
            figures => format!("{}: {figures}", key.label),
        })
        .collect();
    parts.join("; ")
}

/// Corners of a band, and a line in it.
type Thinned = (Vec<(f64, f64)>, Vec<(f64, f64)>);

/// The curve between its gaps.
fn pieces(all: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    all.split(|point| !point.1.is_finite()).filter(|piece| !piece.is_empty())
}

/// A piece of a curve of `all` points, if that is too long to be drawn point by point: the band from the
/// least to the greatest value of each stretch, and the line of their means.
fn thinned(piece: &[(f64, f64)], all: usize) -> Option<Thinned> {
    if all <= POINTS_MAX / 2 {
        return None;
    }
    // A stretch takes two corners of the band and a point of the line.
    let stretches = envelope(piece, (POINTS_MAX / 4 * piece.len() / all).max(1));
    let middle = |s: &Stretch| (s.ends.0 + s.ends.1) / 2.0;
    let there = stretches.iter().map(|s| (middle(s), s.greatest));
    let back = stretches.iter().rev().map(|s| (middle(s), s.least));
    let mut line: Vec<(f64, f64)> = stretches.iter().map(|s| (middle(s), s.mean)).collect();
    // The line begins and ends where the piece does.
    if let (Some(first), Some(last)) = (stretches.first(), stretches.last()) {
        line.insert(0, (first.ends.0, first.mean));
        line.push((last.ends.1, last.mean));
    }
    Some((there.chain(back).collect(), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(axis: &TimeAxis, series: Vec<Vec<(f64, f64)>>) -> TimeChart<'_> {
        let series = series.into_iter().enumerate().map(|(i, points)| Series {
            label: format!("series {i}"),
            ink: Ink::number(i),
            figures: String::new(),
            points,
        });
        TimeChart {
            caption: Caption::new("Throughput", ""),
            unit: Unit::BytesPerSecond,
            axis,
            height: 100.0,
            series: series.collect(),
            rules: Vec::new(),
        }
    }

    static AXIS: TimeAxis = TimeAxis { end: 4.0, bands: Vec::new(), zero: Zero::Start };

    #[test]
    fn a_line_goes_through_its_values() {
        let drawn = chart(&AXIS, vec![vec![(0.0, 0.0), (2.0, 50e6), (4.0, 100e6)]]);
        let svg = drawn.lines().unwrap().into_string();
        assert!(svg.contains("points=\"0,1000 1000,500 2000,0\""), "{svg}");
        assert!(svg.contains("data-end=\"4\" data-top=\"100\" data-unit=\"MB/s\""), "{svg}");
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let drawn = chart(
            &AXIS,
            vec![vec![(0.0, 1e6), (1.0, 1e6), (2.0, f64::NAN), (3.0, 1e6), (4.0, 1e6)]],
        );
        let svg = drawn.lines().unwrap().into_string();
        assert_eq!(svg.matches("<polyline").count(), 2);
    }

    #[test]
    fn layers_of_a_stack_lie_on_each_other() {
        let below = vec![(0.0, 30e6), (4.0, 60e6)];
        let above = vec![(0.0, 20e6), (4.0, 40e6)];
        let svg = chart(&AXIS, vec![below, above]).stack().unwrap().into_string();
        assert!(svg.contains("points=\"0,700 2000,400 2000,1000 0,1000\""), "{svg}");
        assert!(svg.contains("points=\"0,500 2000,0 2000,400 0,700\""), "{svg}");
    }

    #[test]
    fn a_long_line_is_a_band_that_reaches_its_extremes() {
        let axis = TimeAxis { end: 10_000.0, bands: Vec::new(), zero: Zero::Start };
        let value = |i: u32| if i == 7777 { 100e6 } else { 50e6 };
        let points = (0..10_000).map(|i| (f64::from(i), value(i))).collect();
        let svg = chart(&axis, vec![points]).lines().unwrap().into_string();
        let band = svg.split("class=\"band\" points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(band.split(' ').count(), 500);
        assert!(
            band.split(' ').any(|point| point.ends_with(",0")),
            "the peak is at the top: {band}"
        );
        assert!(svg.contains("<polyline"));
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        assert!(chart(&AXIS, vec![vec![]]).lines().is_none());
        assert!(chart(&AXIS, vec![vec![(1.0, f64::NAN)]]).lines().is_none());
        assert!(chart(&AXIS, vec![]).stack().is_none());
        let none = TimeAxis { end: 0.0, bands: Vec::new(), zero: Zero::Start };
        assert!(chart(&none, vec![vec![(0.0, 1.0)]]).lines().is_none());
    }

    #[test]
    fn names_of_stages_without_room_become_numbers() {
        let band = |label: &str, start, end| Band { label: label.to_owned(), start, end };
        let roomy = TimeAxis {
            end: 4.0,
            bands: vec![band("read", 0.0, 2.0), band("write", 2.0, 4.0)],
            zero: Zero::Start,
        };
        assert!(!roomy.numbered());
        assert!(roomy.strip().into_string().contains(">read<"));
        let long = "a".repeat(300);
        let tight = TimeAxis {
            end: 4.0,
            bands: vec![band(&long, 0.0, 1.0), band("b", 1.0, 4.0)],
            zero: Zero::Start,
        };
        assert!(tight.strip().into_string().contains(">2<"));
    }
}
