//! A scaling curve: what was measured at each size, and what it would be if it grew in proportion.

use maud::{Markup, html};

use super::figure::{
    Caption, Ink, Key, Stroke, columns_of, curves, drawing, figure, percent, points, rows_of, short,
};
use super::scale::{Linear, Tick};
use super::time::described;
use super::unit::Unit;

/// What was measured at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The size, such as a number of nodes.
    pub size: f64,
    /// The size for people.
    pub label: String,
    /// The value.
    pub value: f64,
}

/// A scaling curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Title and note.
    pub caption: Caption,
    /// Unit of the values.
    pub unit: Unit,
    /// Height of the drawing area in pixels.
    pub height: f64,
    /// What was measured, in any order.
    pub measured: Vec<Measured>,
}

impl Curve {
    /// The chart; `None` with less than two sizes that were measured.
    #[must_use]
    pub fn draw(&self) -> Option<Markup> {
        let mut measured: Vec<&Measured> = self
            .measured
            .iter()
            .filter(|one| one.value.is_finite() && one.size.is_finite() && one.size > 0.0)
            .collect();
        measured.sort_by(|a, b| a.size.total_cmp(&b.size));
        let (first, last) = (*measured.first()?, *measured.last()?);
        if first.size >= last.size {
            return None;
        }
        let ideal = |size: f64| first.value * size / first.size;
        let highest = measured.iter().map(|one| one.value).fold(ideal(last.size), f64::max);
        let scale = Linear::holding(highest, self.unit, 4);
        // Room for the label of the last point.
        let across = |size: f64| size / (last.size * 1.2);
        let legend = [
            key("measured", Ink::BLUE, "with the efficiency compared with proportional growth"),
            key("proportional", Ink::GREY, "from the smallest size"),
        ];
        let ticks: Vec<Tick> =
            measured.iter().map(|one| Tick { at: one.size, label: one.label.clone() }).collect();
        let placed: Vec<(f64, &Tick)> = ticks.iter().map(|tick| (across(tick.at), tick)).collect();
        let line = measured.iter().map(|one| (across(one.size), scale.part(one.value)));
        let to = [(0.0, 0.0), (across(last.size), scale.part(ideal(last.size)))];
        let lines = html! {
            g class="s7 line" { polyline points=(points(to)) {} }
            g class="s1 line" { polyline points=(points(line)) {} }
        };
        let inside = html! {
            (rows_of(&scale, self.height))
            (columns_of(&placed, self.height))
            (curves(self.height, &lines))
            g class="s1 dots" {
                @for (i, one) in measured.iter().enumerate() {
                    @let (x, y) = (across(one.size), self.height * (1.0 - scale.part(one.value)));
                    circle cx=(percent(x)) cy=(short(y)) r="3.5" {}
                    // At the lower right, where a growing curve leaves room; above a falling one.
                    @let falls = measured.get(i + 1).is_some_and(|next| next.value < one.value);
                    @let below = (y + 13.0).min(self.height - 18.0);
                    @let y = if falls { y - 20.0 } else { below };
                    text x=(percent(x)) y=(short(y)) dx="6" { (self.unit.show(one.value)) }
                    @if one.size > first.size {
                        text class="part" x=(percent(x)) y=(short(y + 13.0)) dx="6" {
                            (Unit::Share.show(one.value / ideal(one.size)))
                        }
                    }
                }
            }
        };
        let told: Vec<String> = measured
            .iter()
            .map(|one| format!("{}: {}", one.label, self.unit.show(one.value)))
            .collect();
        let described = format!("{}. {}", told.join("; "), described(&legend));
        let drawing = drawing(&self.caption.title, &described, self.height, &[], &inside);
        Some(figure("curve", &self.caption, &legend, &drawing))
    }
}

fn key(label: &str, ink: Ink, figures: &str) -> Key {
    Key { label: label.to_owned(), ink, stroke: Stroke::Line, figures: figures.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[(f64, f64)]) -> Curve {
        let measured = values.iter().map(|&(size, value)| Measured {
            size,
            label: format!("{size} nodes"),
            value,
        });
        Curve {
            caption: Caption::new("Scaling", ""),
            unit: Unit::BytesPerSecond,
            height: 100.0,
            measured: measured.collect(),
        }
    }

    #[test]
    fn each_size_says_what_part_of_proportional_growth_it_reached() {
        let svg = curve(&[(1.0, 100e6), (4.0, 300e6), (2.0, 190e6)]).draw().unwrap().into_string();
        for text in [
            "100\u{202f}MB/s<",
            "190\u{202f}MB/s<",
            ">95\u{202f}%<",
            "300\u{202f}MB/s<",
            ">75\u{202f}%<",
        ] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }

    #[test]
    fn one_size_is_no_curve() {
        assert!(curve(&[]).draw().is_none());
        assert!(curve(&[(2.0, 1.0)]).draw().is_none());
        assert!(curve(&[(2.0, 1.0), (4.0, f64::NAN)]).draw().is_none());
    }
}
