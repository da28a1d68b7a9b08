//! How often which value was seen: counted values on a linear or logarithmic axis.

use maud::{Markup, html};

use super::figure::{
    Caption, Ink, Key, Stroke, columns_of, curves, drawing, figure, percent, points, rows_of, short,
};
use super::scale::{Linear, Logarithmic, Tick};
use super::time::described;
use super::unit::Unit;

/// Values seen: so many at about this size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The value.
    pub value: f64,
    /// How often.
    pub count: f64,
}

/// One distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Of what.
    pub label: String,
    /// Its colour.
    pub ink: Ink,
    /// Figures for the legend, such as its median.
    pub figures: String,
    /// The values, in any order. On a logarithmic axis those above zero count.
    pub seen: Vec<Seen>,
}

/// How values lie on the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Equal differences, from zero.
    Linear,
    /// Equal ratios.
    Logarithmic,
}

/// Distributions over one axis, each in parts of its own whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Title and note.
    pub caption: Caption,
    /// Unit of the values.
    pub unit: Unit,
    /// The axis.
    pub spacing: Spacing,
    /// Height of the drawing area in pixels.
    pub height: f64,
    /// The distributions.
    pub series: Vec<Distribution>,
}

/// The axis with its bins.
enum Axis {
    Linear { scale: Linear, bins: usize },
    Logarithmic { scale: Logarithmic, bins: usize },
}

impl Axis {
    fn over(seen: &[Seen], spacing: Spacing, unit: Unit) -> Option<Axis> {
        let largest = seen.iter().map(|seen| seen.value).fold(f64::NAN, f64::max);
        if largest.is_nan() {
            return None;
        }
        if spacing == Spacing::Linear {
            return Some(Axis::Linear { scale: Linear::holding(largest, unit, 6), bins: 40 });
        }
        let smallest = seen.iter().map(|seen| seen.value).fold(f64::NAN, f64::min);
        // Powers of two stand in the middle of their bin; other values have six bins to a decade.
        let ratio: f64 = if unit == Unit::Bytes { 2.0 } else { 10f64.powf(1.0 / 6.0) };
        let (low, high) = if unit == Unit::Bytes {
            let place = |value: f64| (value.log2() + 1e-9).floor();
            let (low, high) = widened(place(smallest) - 1.5, place(largest) + 1.5, 8.0);
            (low.exp2(), high.exp2())
        } else {
            let place = |value: f64| value.ln() / ratio.ln();
            let (low, high) =
                widened((place(smallest) - 1.0).floor(), (place(largest) + 1.0).ceil(), 12.0);
            (ratio.powf(low), ratio.powf(high))
        };
        let bins = ((high / low).ln() / ratio.ln()).round() as usize;
        Some(Axis::Logarithmic {
            scale: Logarithmic::between(low, high)?,
            bins: bins.clamp(1, 400),
        })
    }

    fn part(&self, value: f64) -> f64 {
        match self {
            Axis::Linear { scale, .. } => scale.part(value),
            Axis::Logarithmic { scale, .. } => scale.part(value),
        }
    }

    fn bins(&self) -> usize {
        match *self {
            Axis::Linear { bins, .. } | Axis::Logarithmic { bins, .. } => bins,
        }
    }

    fn ticks(&self, unit: Unit) -> Vec<Tick> {
        match self {
            Axis::Linear { scale, .. } => scale.ticks.clone(),
            Axis::Logarithmic { scale, .. } => scale.ticks(unit, 6),
        }
    }
}

impl Histogram {
    /// The chart; `None` if nothing was seen.
    #[must_use]
    pub fn draw(&self) -> Option<Markup> {
        let fits = |seen: &&Seen| {
            seen.count > 0.0
                && seen.value.is_finite()
                && (seen.value > 0.0 || self.spacing == Spacing::Linear && seen.value == 0.0)
        };
        let usable: Vec<(&Distribution, Vec<Seen>)> = self
            .series
            .iter()
            .map(|series| (series, series.seen.iter().filter(fits).copied().collect::<Vec<_>>()))
            .filter(|(_, seen)| !seen.is_empty())
            .collect();
        let all: Vec<Seen> = usable.iter().flat_map(|(_, seen)| seen).copied().collect();
        let axis = Axis::over(&all, self.spacing, self.unit)?;
        let shares: Vec<Vec<f64>> = usable.iter().map(|(_, seen)| shares(seen, &axis)).collect();
        let highest = shares.iter().flatten().copied().fold(0.0, f64::max);
        let scale = Linear::holding(highest, Unit::Share, 3);
        let legend: Vec<Key> = usable
            .iter()
            .map(|(series, _)| Key {
                label: series.label.clone(),
                ink: series.ink,
                stroke: Stroke::Area,
                figures: series.figures.clone(),
            })
            .collect();
        let ticks = axis.ticks(self.unit);
        let placed: Vec<(f64, &Tick)> =
            ticks.iter().map(|tick| (axis.part(tick.at), tick)).collect();
        let body = html! {
            @for ((series, _), shares) in usable.iter().zip(&shares) {
                g class={ (series.ink.0) " outlined" } {
                    polygon points=(outline(shares, &scale)) {}
                }
            }
        };
        let inside = html! {
            (rows_of(&scale, self.height))
            (columns_of(&placed, self.height))
            (curves(self.height, &body))
            // Where one can point to read a bin's shares.
            @for i in 0..axis.bins() {
                @let told = told(&usable, &shares, i);
                @if !told.is_empty() {
                    @let width = 1.0 / axis.bins() as f64;
                    rect class="hit" x=(percent(width * i as f64)) width=(percent(width))
                        height=(short(self.height)) { title { (told) } }
                }
            }
        };
        let drawing = drawing(&self.caption.title, &described(&legend), self.height, &[], &inside);
        Some(figure("histogram", &self.caption, &legend, &drawing))
    }
}

/// A range at least `least` wide, by whole numbers, around the same middle.
fn widened(low: f64, high: f64, least: f64) -> (f64, f64) {
    let more = ((least - (high - low)) / 2.0).max(0.0).ceil();
    (low - more, high + more)
}

/// Part of all values in each bin.
fn shares(seen: &[Seen], axis: &Axis) -> Vec<f64> {
    let total: f64 = seen.iter().map(|seen| seen.count).sum();
    let mut shares = vec![0.0; axis.bins()];
    for seen in seen {
        let bin = (axis.part(seen.value) * axis.bins() as f64) as usize;
        shares[bin.min(axis.bins() - 1)] += seen.count / total;
    }
    shares
}

/// The steps around the bars of a histogram.
fn outline(shares: &[f64], scale: &Linear) -> String {
    let width = 1.0 / shares.len() as f64;
    let filled = |share: &f64| *share > 0.0;
    let first = shares.iter().position(filled).unwrap_or(0);
    let last = shares.iter().rposition(filled).unwrap_or(0);
    let tops = (first..=last).flat_map(|i| {
        let y = scale.part(shares[i]);
        [(width * i as f64, y), (width * (i + 1) as f64, y)]
    });
    let start = (width * first as f64, 0.0);
    let end = (width * (last + 1) as f64, 0.0);
    points(std::iter::once(start).chain(tops).chain([end]))
}

fn told(usable: &[(&Distribution, Vec<Seen>)], shares: &[Vec<f64>], bin: usize) -> String {
    let parts: Vec<String> = usable
        .iter()
        .zip(shares)
        .filter(|(_, shares)| shares[bin] > 0.0)
        .map(|((series, _), shares)| format!("{} {}", series.label, Unit::Share.show(shares[bin])))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(spacing: Spacing, unit: Unit, seen: &[(f64, f64)]) -> Histogram {
        let seen = seen.iter().map(|&(value, count)| Seen { value, count }).collect();
        Histogram {
            caption: Caption::new("Sizes", ""),
            unit,
            spacing,
            height: 100.0,
            series: vec![Distribution {
                label: "read".to_owned(),
                ink: Ink::BLUE,
                figures: String::new(),
                seen,
            }],
        }
    }

    #[test]
    fn bins_hold_their_part_of_the_whole() {
        let seen = [(4096.0, 1.0), (65_536.0, 2.0), (70_000.0, 1.0)];
        let svg = histogram(Spacing::Logarithmic, Unit::Bytes, &seen).draw().unwrap().into_string();
        assert!(svg.contains("<title>read 25\u{202f}%</title>"), "{svg}");
        assert!(svg.contains("<title>read 75\u{202f}%</title>"), "{svg}");
        assert!(svg.contains("64\u{202f}KiB"), "{svg}");
    }

    #[test]
    fn one_size_only_stands_in_the_middle_of_an_axis() {
        let svg = histogram(Spacing::Logarithmic, Unit::Bytes, &[(1_048_576.0, 9.0)]);
        let svg = svg.draw().unwrap().into_string();
        assert!(svg.contains("<title>read 100\u{202f}%</title>"), "{svg}");
        assert!(svg.contains("1\u{202f}MiB"), "{svg}");
    }

    #[test]
    fn zero_counts_on_a_linear_axis_only() {
        assert!(histogram(Spacing::Linear, Unit::Plain, &[(0.0, 3.0)]).draw().is_some());
        assert!(histogram(Spacing::Logarithmic, Unit::Seconds, &[(0.0, 3.0)]).draw().is_none());
        assert!(histogram(Spacing::Logarithmic, Unit::Seconds, &[]).draw().is_none());
    }
}
