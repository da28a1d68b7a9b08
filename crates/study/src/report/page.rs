//! The parts of every page: the frame with style and script, sections, verdicts, commands.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::summary::{Level, Verdict};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Whether what a page shows ran to its end.
pub enum Standing {
    /// It did.
    Complete,
    /// It did not: what ended early, and why.
    Partial(Vec<String>),
}

/// What stands at the top of a page.
pub struct Head {
    /// What sort of page it is.
    pub kicker: String,
    /// Its title.
    pub title: String,
    /// Lines below the title.
    pub under: Vec<String>,
    /// Whether everything on it ran to its end.
    pub standing: Standing,
}

/// A part of the page with a heading.
pub struct Section {
    /// Anchor.
    pub name: &'static str,
    /// Heading.
    pub title: &'static str,
    /// What is in it; left out if it is empty.
    pub body: Markup,
}

/// A whole page.
#[must_use]
pub fn page(head: &Head, sections: &[Section]) -> Markup {
    let partial = matches!(head.standing, Standing::Partial(_));
    let shown: Vec<&Section> =
        sections.iter().filter(|section| !section.body.0.is_empty()).collect();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content="Forebay";
                title { @if partial { "PARTIAL: " } (head.title) }
                style { (PreEscaped(STYLE)) }
                script { (PreEscaped(SCRIPT)) }
            }
            body class=[partial.then_some("partial")] {
                (banner(&head.standing))
                header {
                    p class="kicker" { (head.kicker) }
                    h1 { (head.title) }
                    @for line in &head.under { p class="under" { (line) } }
                    nav aria-label="Parts" {
                        @for section in &shown { a href={ "#" (section.name) } { (section.title) } }
                    }
                }
                main {
                    @for section in &shown {
                        section id=(section.name) { h2 { (section.title) } (section.body) }
                    }
                }
            }
        }
    }
}

fn banner(standing: &Standing) -> Markup {
    let Standing::Partial(reasons) = standing else { return html! {} };
    html! {
        div class="partial-banner" role="alert" {
            b { "Partial run: it was interrupted." }
            @for reason in reasons { p { (reason) } }
            p { "Figures cover only the part that ran; do not compare them with those of complete runs." }
        }
    }
}

/// Sentences with their level, told by word, form and colour.
#[must_use]
pub fn verdicts(verdicts: &[Verdict]) -> Markup {
    html! {
        @if !verdicts.is_empty() {
            ul class="verdicts" {
                @for verdict in verdicts {
                    @let (class, word) = match verdict.level {
                        Level::Good => ("good", "Good"),
                        Level::Warning => ("warning", "Mind"),
                        Level::Bad => ("bad", "Bad"),
                    };
                    li class=(class) {
                        span class="level" {
                            (sign(verdict.level))
                            span class="unseen" { (word) ": " }
                        }
                        b { (verdict.topic) }
                        span class="text" { (verdict.text) }
                    }
                }
            }
        }
    }
}

/// A disc, a triangle, a square: told apart without colour.
fn sign(level: Level) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width="13" height="13" viewBox="0 0 13 13" aria-hidden="true" {
            @match level {
                Level::Good => circle cx="6.5" cy="6.5" r="5" {},
                Level::Warning => path d="M6.5 .8 12.6 12H.4Z" {},
                Level::Bad => rect x="1" y="1" width="11" height="11" {},
            }
        }
    }
}

/// A line that says why something is not shown.
#[must_use]
pub fn gone(what: &str, why: &str) -> Markup {
    html! { p class="gone" { (what) ": " (why) } }
}

/// The chart, or a line that says why there is none.
#[must_use]
pub fn chart_or(chart: Option<Markup>, what: &str, why: &str) -> Markup {
    chart.unwrap_or_else(|| gone(what, why))
}

/// A command as a shell takes it.
#[must_use]
pub fn shell_line(arguments: &[String]) -> String {
    let plain = |argument: &str| {
        !argument.is_empty()
            && argument.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c))
    };
    let words: Vec<String> = arguments
        .iter()
        .map(|argument| match plain(argument) {
            true => argument.clone(),
            false => format!("'{}'", argument.replace('\'', r"'\''")),
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_the_command_word_by_word() {
        let words = ["forebay", "--on", "/mnt/a b", "it's", "", "$HOME;rm"];
        let line = shell_line(&words.map(str::to_owned));
        assert_eq!(line, r"forebay --on '/mnt/a b' 'it'\''s' '' '$HOME;rm'");
        let told = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s|' {line}")])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(told.stdout).unwrap(), words.join("|") + "|");
    }

    #[test]
    fn style_and_script_cannot_end_their_elements() {
        assert!(!STYLE.contains("</") && !SCRIPT.contains("</"));
    }

    type Matrix = [[f64; 3]; 3];

    /// Red, green and blue of `#rrggbb`, linear, 0 to 1.
    fn linear(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let level = u8::from_str_radix(&colour[at..at + 2], 16).unwrap();
            let level = f64::from(level) / 255.0;
            if level <= 0.040_45 { level / 12.92 } else { ((level + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn times(matrix: &Matrix, of: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| row.iter().zip(of).map(|(a, b)| a * b).sum())
    }

    /// Linear red, green and blue to CIE XYZ (sRGB, IEC 61966-2-1).
    const XYZ: Matrix = [
        [0.412_456_4, 0.357_576_1, 0.180_437_5],
        [0.212_672_9, 0.715_152_2, 0.072_175],
        [0.019_333_9, 0.119_192, 0.950_304_1],
    ];

    /// Relative luminance of `#rrggbb` (WCAG 2.2).
    fn luminance(colour: &str) -> f64 {
        times(&XYZ, linear(colour))[1]
    }

    /// As seen without the cones for green, and for red (G. M. Machado, M. M. Oliveira, L. A. F. Fernandes,
    /// IEEE TVCG 15, 2009, severity 1.0).
    const SEEN: [Matrix; 3] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_82, 0.042_94, 0.968_881],
        ],
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ];

    /// CIE L*a*b* of linear red, green and blue, white of D65.
    fn lab(rgb: [f64; 3]) -> [f64; 3] {
        let xyz = times(&XYZ, rgb.map(|part| part.clamp(0.0, 1.0)));
        let mut parts = [0.0; 3];
        for ((part, xyz), white) in parts.iter_mut().zip(xyz).zip([0.950_47, 1.0, 1.088_83]) {
            let t: f64 = xyz / white;
            *part = if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        }
        let [x, y, z] = parts;
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn every_two_series_colours_differ_also_for_people_who_see_no_green_or_no_red() {
        /// A difference (CIE 1976) of 2.3 can just be seen; thin lines need far more.
        const DIFFERENCE_MIN: f64 = 20.0;
        for theme in STYLE.split("  color-scheme: ").skip(1) {
            let colour = |name: &String| {
                &theme.split_once(&format!("--{name}: ")).expect("the theme sets it").1[..7]
            };
            let names: Vec<String> = (1..=8).map(|number| format!("s{number}")).collect();
            for (vision, seen) in SEEN.iter().enumerate() {
                for (place, one) in names.iter().enumerate() {
                    for other in &names[place + 1..] {
                        let [a, b] =
                            [one, other].map(|name| lab(times(seen, linear(colour(name)))));
                        let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
                        let difference = squares.sum::<f64>().sqrt();
                        assert!(
                            difference >= DIFFERENCE_MIN,
                            "{one} {} and {other} {} differ by {difference} in vision {vision}",
                            colour(one),
                            colour(other)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn every_colour_can_be_told_from_the_paper_in_light_and_dark() {
        let mut themes = 0;
        for theme in STYLE.split("  color-scheme: ").skip(1) {
            let colour = |name: &str| {
                let value = theme.split_once(&format!("--{name}: ")).expect("the theme sets it").1;
                luminance(&value[..7])
            };
            let paper = colour("paper");
            let contrast = |name: &str| {
                let (a, b) = (colour(name).max(paper), colour(name).min(paper));
                (a + 0.05) / (b + 0.05)
            };
            for name in ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"] {
                assert!(contrast(name) >= 3.0, "graphics: {name} has {}", contrast(name));
            }
            for name in ["ink", "soft", "good", "warning", "bad"] {
                assert!(contrast(name) >= 4.5, "text: {name} has {}", contrast(name));
            }
            themes += 1;
        }
        assert_eq!(themes, 3, "light, dark by the system, dark by choice");
    }
}
