//! What all charts share: the frame with caption and legend, colours, coordinates, grid and axes.

use maud::{Markup, html};

use super::scale::{Linear, Tick};

/// Height of the curves' own coordinates; y grows downwards.
pub const TALL: f64 = 1000.0;
/// Width of the curves' own coordinates.
pub const WIDE: f64 = 2000.0;

/// A colour, as a class whose value the style sets for light and dark. From the hues of Okabe and Ito, moved
/// until every two of them also differ for people who see no green or no red (a test computes it); lines
/// differ in their dashes too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ink(pub &'static str);

impl Ink {
    /// Blue.
    pub const BLUE: Ink = Ink("s1");
    /// Vermilion, brownish on light paper; dashed as a line.
    pub const VERMILION: Ink = Ink("s2");
    /// Bluish green.
    pub const GREEN: Ink = Ink("s3");
    /// Orange.
    pub const ORANGE: Ink = Ink("s4");
    /// Reddish purple.
    pub const PURPLE: Ink = Ink("s5");
    /// Sky blue.
    pub const SKY: Ink = Ink("s6");
    /// Grey, for what is only the rest.
    pub const GREY: Ink = Ink("s7");
    /// Dark brown.
    pub const BROWN: Ink = Ink("s8");

    const ORDER: [Ink; 7] =
        [Ink::BLUE, Ink::ORANGE, Ink::GREEN, Ink::VERMILION, Ink::SKY, Ink::PURPLE, Ink::BROWN];
    /// How many colours can be told apart.
    pub const COUNT: usize = Ink::ORDER.len();

    /// The colour of number `i`, again from the start after [`Ink::COUNT`].
    #[must_use]
    pub fn number(i: usize) -> Ink {
        Ink::ORDER[i % Ink::COUNT]
    }
}

/// How a series is drawn, which its key in the legend repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// A line.
    Line,
    /// An area or bar.
    Area,
}

/// An entry of a legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The series.
    pub label: String,
    /// Its colour.
    pub ink: Ink,
    /// Its form.
    pub stroke: Stroke,
    /// Figures of the series, such as its median, for people.
    pub figures: String,
}

/// The words of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caption {
    /// What it shows.
    pub title: String,
    /// What must be known to read it.
    pub note: String,
}

impl Caption {
    /// A caption of a title and a note, which may be empty.
    #[must_use]
    pub fn new(title: &str, note: &str) -> Caption {
        Caption { title: title.to_owned(), note: note.to_owned() }
    }
}

/// A chart's frame: caption and legend, then `body`.
#[must_use]
pub fn figure(kind: &str, caption: &Caption, legend: &[Key], body: &Markup) -> Markup {
    html! {
        figure class={ "chart " (kind) } {
            figcaption {
                h3 { (caption.title) }
                @if !caption.note.is_empty() { p { (caption.note) } }
            }
            @if !legend.is_empty() {
                ul class="legend" {
                    @for key in legend {
                        li { (swatch(key)) b { (key.label) } @if !key.figures.is_empty() { " " (key.figures) } }
                    }
                }
            }
            (body)
        }
    }
}

fn swatch(key: &Key) -> Markup {
    html! {
        svg class={ "key " (key.ink.0) } width="20" height="10" aria-hidden="true" {
            @match key.stroke {
                Stroke::Line => line class="line" x1="1" y1="5" x2="19" y2="5" {},
                Stroke::Area => rect class="area" x="4" width="12" height="10" {},
            }
        }
    }
}

/// A number as short as a coordinate may be: two decimals at most, no trailing zeros.
#[must_use]
pub fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A part of the width, 0 to 1, as a percentage.
#[must_use]
pub fn percent(part: f64) -> String {
    short(part * 100.0) + "%"
}

/// Points in the coordinates of curves, whole numbers: parts of width and height, from the lower left.
#[must_use]
pub fn points(parts: impl IntoIterator<Item = (f64, f64)>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (x, y) in parts {
        let gap = if text.is_empty() { "" } else { " " };
        let (x, y) = (x * WIDE, (1.0 - y) * TALL);
        write!(text, "{gap}{x:.0},{y:.0}").expect("a string takes any text");
    }
    text
}

/// Horizontal grid lines with their labels at the left, for an area `height` pixels tall.
#[must_use]
pub fn rows_of(axis: &Linear, height: f64) -> Markup {
    html! {
        g class="grid" {
            @for tick in &axis.ticks {
                @let y = short(height * (1.0 - axis.part(tick.at)));
                line class=[(tick.at == 0.0).then_some("zero")] x1="0" x2="100%" y1=(y) y2=(y) {}
                text x="-8" y=(y) dy=".32em" { (tick.label) }
            }
        }
    }
}

/// Labels below, at parts of the width. Every other one carries the class `odd`, which narrow pages hide.
#[must_use]
pub fn columns_of(ticks: &[(f64, &Tick)], height: f64) -> Markup {
    html! {
        g class="ticks" {
            @for (i, (part, tick)) in ticks.iter().enumerate() {
                @let x = percent(*part);
                g class=[(i % 2 == 1 && ticks.len() > 4).then_some("odd")] {
                    line x1=(x) x2=(x) y1=(short(height)) y2=(short(height + 5.0)) {}
                    // At the edge the label ends where the axis does.
                    text class=[(*part > 0.95).then_some("last")] x=(x) y=(short(height + 18.0)) {
                        (tick.label)
                    }
                }
            }
        }
    }
}

/// The drawing area: an SVG as wide as its place, `height` pixels tall, whose marks may stand outside.
/// `described` is read out where the drawing cannot be seen; `data` goes to scripts.
#[must_use]
pub fn drawing(
    title: &str,
    described: &str,
    height: f64,
    data: &[(&str, String)],
    body: &Markup,
) -> Markup {
    let of = |name: &str| data.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
    html! {
        div class="plot" {
            svg xmlns="http://www.w3.org/2000/svg" width="100%" height=(short(height)) role="img"
                data-end=[of("end")] data-top=[of("top")] data-unit=[of("unit")] {
                title { (title) }
                desc { (described) }
                (body)
            }
        }
    }
}

/// The stretched part of a drawing, which holds the curves.
#[must_use]
pub fn curves(height: f64, body: &Markup) -> Markup {
    html! {
        svg class="data" width="100%" height=(short(height)) preserveAspectRatio="none"
            viewBox={ "0 0 " (WIDE) " " (TALL) } { (body) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short() {
        assert_eq!(short(12.300_1), "12.3");
        assert_eq!(short(-0.001), "0");
        assert_eq!(percent(0.5), "50%");
        assert_eq!(points([(0.0, 0.0), (0.25, 0.5), (1.0, 1.0)]), "0,1000 500,500 2000,0");
    }
}
