//! Jobs over time: one bar each, coloured by what they are.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::figure::{Caption, Ink, Key, Stroke, drawing, figure, percent, rows_of, short};
use super::scale::Linear;
use super::time::{TimeAxis, described};
use super::unit::{Unit, span};

/// Most bars of a chart: of more jobs every second, third, ... is drawn.
pub const JOBS_MAX: usize = 2000;
/// Bars beyond which names and times are left to the tables, so that the page stays small.
const NAMED_MAX: usize = 600;
/// Tallest row with a readable name, in pixels.
const ROW_PIXELS: f64 = 15.0;

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is called.
    pub name: String,
    /// Index of its group.
    pub group: usize,
    /// When it was due, in seconds.
    pub due: f64,
    /// When it started.
    pub start: f64,
    /// When it ended; the end of the chart if it did not.
    pub end: f64,
    /// Whether it succeeded.
    pub outcome: Outcome,
}

/// How a job ended, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Well,
    /// Otherwise.
    Failed,
}

/// Jobs over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Gantt<'a> {
    /// Title and note.
    pub caption: Caption,
    /// Its time axis.
    pub axis: &'a TimeAxis,
    /// Names of the groups, such as classes.
    pub groups: Vec<String>,
    /// The jobs, in the order in which they are drawn from the top.
    pub bars: Vec<Bar>,
}

impl Gantt<'_> {
    /// The chart; `None` without jobs.
    #[must_use]
    pub fn draw(&self) -> Option<Markup> {
        if self.bars.is_empty() || self.axis.end.is_nan() || self.axis.end <= 0.0 {
            return None;
        }
        let every = self.bars.len().div_ceil(JOBS_MAX);
        let bars: Vec<&Bar> = self.bars.iter().step_by(every).collect();
        let row = (520.0 / bars.len() as f64).clamp(0.5, ROW_PIXELS);
        let height = (row * bars.len() as f64).max(24.0);
        let mut caption = self.caption.clone();
        if every > 1 {
            let _ = write!(caption.note, " One of {every} jobs is drawn.");
        }
        let legend = self.legend();
        // Rows are counted from the top, so the axis has no labels but its base line.
        let base = Linear { top: 1.0, ticks: Vec::new() };
        let inside = html! {
            (self.axis.shades(height))
            (rows_of(&base, height))
            (self.axis.ticks(height))
            (self.rows(&bars, row))
            // On top: a name may have room on its bar alone.
            @if row >= ROW_PIXELS { (self.names(&bars, row)) }
            @if row < ROW_PIXELS {
                g class="grid" {
                    text x="-8" y="0" dy=".7em" { (1) }
                    text x="-8" y=(short(height)) { (Unit::Count.show(self.bars.len() as f64)) }
                }
            }
        };
        let data = [("end", short(self.axis.end))];
        let drawing = drawing(&caption.title, &described(&legend), height, &data, &inside);
        Some(figure("gantt", &caption, &legend, &html! { (self.axis.strip()) (drawing) }))
    }

    fn part(&self, seconds: f64) -> f64 {
        (seconds / self.axis.end).clamp(0.0, 1.0)
    }

    fn rows(&self, bars: &[&Bar], row: f64) -> Markup {
        let thick = if row > 3.0 { row - (row / 5.0).min(3.0) } else { row };
        let bar_of = |(i, bar): (usize, &&Bar)| {
            let (start, end) = (self.part(bar.start), self.part(bar.end));
            let (x, y) = (percent(start), short(row * i as f64));
            // What is shorter than a pixel is still shown.
            let width = percent((end - start).max(0.001));
            let class = (bar.outcome == Outcome::Failed).then_some("failed");
            html! {
                @if bar.start - bar.due > self.axis.end / 200.0 {
                    @let middle = short(row * i as f64 + thick / 2.0);
                    line x1=(percent(self.part(bar.due))) x2=(x) y1=(middle) y2=(middle) {}
                }
                rect class=[class] x=(x) y=(y) width=(width) height=(short(thick)) {
                    @if bars.len() <= NAMED_MAX { title { (self.told(bar)) } }
                }
            }
        };
        html! {
            @for group in 0..self.groups.len() {
                g class={ (Ink::number(group).0) " job" } {
                    @for placed in bars.iter().enumerate().filter(|(_, bar)| bar.group == group) {
                        (bar_of(placed))
                    }
                }
            }
        }
    }

    /// Names beside the bars: to the right where there is room, else to the left.
    fn names(&self, bars: &[&Bar], row: f64) -> Markup {
        html! {
            g class="names" {
                @for (i, bar) in bars.iter().enumerate() {
                    @let y = short(row * i as f64 + row * 0.68);
                    @if self.part(bar.end) <= 0.6 {
                        text x=(percent(self.part(bar.end))) dx="5" y=(y) { (cut(&bar.name)) }
                    } @else if self.part(bar.start) >= 0.4 {
                        text class="left" x=(percent(self.part(bar.start))) dx="-5" y=(y) {
                            (cut(&bar.name))
                        }
                    } @else {
                        text class="on" x=(percent(self.part(bar.start))) dx="5" y=(y) {
                            (cut(&bar.name))
                        }
                    }
                }
            }
        }
    }

    fn told(&self, bar: &Bar) -> String {
        let mut text = format!("{}: {}", cut(&bar.name), span(bar.end - bar.start));
        let group = self.groups.get(bar.group).map_or("", String::as_str);
        let _ = write!(text, ", {}, from {}", cut(group), span(bar.start));
        if bar.start - bar.due >= 0.5 {
            let _ = write!(text, ", waited {}", span(bar.start - bar.due));
        }
        if bar.outcome == Outcome::Failed {
            text.push_str(", failed");
        }
        text
    }

    fn legend(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self
            .groups
            .iter()
            .enumerate()
            .map(|(group, label)| {
                let jobs = self.bars.iter().filter(|bar| bar.group == group);
                Key {
                    label: cut(label),
                    ink: Ink::number(group),
                    stroke: Stroke::Area,
                    figures: Unit::Count.show(jobs.count() as f64),
                }
            })
            .filter(|key| key.figures != "0")
            .collect();
        let failed = self.bars.iter().filter(|bar| bar.outcome == Outcome::Failed).count();
        if failed > 0 {
            keys.push(Key {
                label: "failed".to_owned(),
                ink: Ink("bad"),
                stroke: Stroke::Area,
                figures: Unit::Count.show(failed as f64),
            });
        }
        keys
    }
}

/// A name short enough for a chart; tables have it whole.
#[must_use]
pub fn cut(name: &str) -> String {
    const LONGEST: usize = 36;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", name[..end].trim_end()),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static AXIS: TimeAxis =
        TimeAxis { end: 100.0, bands: Vec::new(), zero: crate::chart::time::Zero::Start };

    fn gantt(count: usize) -> Gantt<'static> {
        let bar = |i: usize| Bar {
            name: format!("job {i}"),
            group: i % 2,
            due: 0.0,
            start: (i % 50) as f64,
            end: (i % 50) as f64 + 10.0,
            outcome: if i == 3 { Outcome::Failed } else { Outcome::Well },
        };
        Gantt {
            caption: Caption::new("Jobs", ""),
            axis: &AXIS,
            groups: vec!["sort".to_owned(), "rank".to_owned()],
            bars: (0..count).map(bar).collect(),
        }
    }

    #[test]
    fn every_job_has_a_bar_and_the_failed_are_marked() {
        let svg = gantt(300).draw().unwrap().into_string();
        let bars = svg.split("role=\"img\"").nth(1).unwrap();
        assert_eq!(bars.matches("<rect").count(), 300);
        assert_eq!(bars.matches("class=\"failed\"").count(), 1);
        assert!(bars.contains(
            "job 3: 10.0\u{202f}s, rank, from 3.00\u{202f}s, waited 3.00\u{202f}s, failed"
        ));
    }

    #[test]
    fn ten_thousand_jobs_are_thinned_out_and_it_is_said() {
        let svg = gantt(10_000).draw().unwrap().into_string();
        assert!(svg.contains("One of 5 jobs is drawn."));
        assert!(svg.len() < 400_000, "{} bytes", svg.len());
    }

    #[test]
    fn no_jobs_are_no_chart() {
        assert!(gantt(0).draw().is_none());
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(cut(&"ä".repeat(300)).chars().count(), 37);
        assert_eq!(cut("short"), "short");
    }
}
