//! Tables: for the terminal, as Markdown, as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::figure::{Figure, Group, Subject};
use crate::load::Sizes;
use crate::machine::Machine;
use crate::measure::{Memory, Plan, Samples};
use crate::processor::{DISTURBED_CORES, Usage};
use crate::statistics::Summary;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    rounds: usize,
    settings: Vec<String>,
    sizes: Sizes,
    disks: Vec<DiskReport>,
}

/// Everything that was measured on one disk.
#[derive(Debug, Serialize)]
pub struct DiskReport {
    name: String,
    description: String,
    rows: Vec<Row>,
    usage: Vec<UsageRow>,
    /// Measurements, and how many of them other programs disturbed.
    measurements: usize,
    disturbed: usize,
    memory: Option<Memory>,
}

/// A figure on all subjects.
#[derive(Debug, Serialize)]
struct Row {
    figure: Figure,
    cells: BTreeMap<Subject, Cell>,
}

/// A figure on one subject.
#[derive(Debug, Serialize)]
struct Cell {
    summary: Summary,
    /// Of the ratios to the plain directory, round by round.
    ratio: Option<Summary>,
    samples: Vec<f64>,
}

/// Processor use of a group on one subject: medians.
#[derive(Debug, Serialize)]
struct UsageRow {
    group: Group,
    subject: Subject,
    median: Usage,
}

impl DiskReport {
    /// Sums up the samples of a disk.
    #[must_use]
    pub fn new(name: &str, description: &str, samples: &Samples) -> DiskReport {
        let mut rows: BTreeMap<Figure, BTreeMap<Subject, Cell>> = BTreeMap::new();
        for ((figure, subject), values) in &samples.figures {
            let Some(summary) = Summary::of(values) else { continue };
            let base = samples.figures.get(&(*figure, Subject::Plain));
            let ratio = base
                .filter(|_| *subject != Subject::Plain)
                .and_then(|base| Summary::of_ratios(values, base));
            let cell = Cell { summary, ratio, samples: values.clone() };
            rows.entry(*figure).or_default().insert(*subject, cell);
        }
        DiskReport {
            name: name.to_owned(),
            description: description.to_owned(),
            rows: rows.into_iter().map(|(figure, cells)| Row { figure, cells }).collect(),
            measurements: samples.usage.values().map(Vec::len).sum(),
            disturbed: samples
                .usage
                .values()
                .flatten()
                .filter(|usage| usage.other_cores > DISTURBED_CORES)
                .count(),
            usage: samples.usage.iter().filter_map(usage_row).collect(),
            memory: samples.memory.clone(),
        }
    }
}

fn usage_row(((group, subject), usage): (&(Group, Subject), &Vec<Usage>)) -> Option<UsageRow> {
    let median = |part: fn(&Usage) -> f64| {
        Summary::of(&usage.iter().map(part).collect::<Vec<f64>>()).map(|summary| summary.median)
    };
    let median = Usage {
        busy_cores: median(|usage| usage.busy_cores)?,
        daemon_cores: median(|usage| usage.daemon_cores)?,
        other_cores: median(|usage| usage.other_cores)?,
    };
    Some(UsageRow { group: *group, subject: *subject, median })
}

impl Report {
    /// Puts the reports of all disks together.
    #[must_use]
    pub fn new(machine: Machine, plan: &Plan, disks: Vec<DiskReport>) -> Report {
        Report {
            machine,
            rounds: plan.rounds,
            settings: plan.settings.clone(),
            sizes: plan.sizes.clone(),
            disks,
        }
    }

    /// The tables as Markdown, which reads well in a terminal too.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{} {} rounds: median (least - greatest); a ratio is the median of the ratios to the plain \
             directory of the same round.\n",
            self.machine.describe(),
            self.rounds
        );
        if !self.settings.is_empty() {
            let _ = writeln!(text, "\nSettings: `{}`.", self.settings.join("`, `"));
        }
        for disk in &self.disks {
            let _ = write!(text, "\n**{}**\n\n{}", disk.description, figures_table(disk));
            if !disk.usage.is_empty() {
                let _ = write!(text, "\n{}", usage_table(disk));
                let _ = write!(
                    text,
                    "\nOther programs used more than {DISTURBED_CORES} cores during {} of {} \
                     measurements.\n",
                    disk.disturbed, disk.measurements
                );
            }
            if let Some(memory) = &disk.memory {
                let _ = write!(text, "\n{}", memory_text(memory));
            }
        }
        text
    }
}

fn figures_table(disk: &DiskReport) -> String {
    let subjects: Vec<Subject> =
        [Subject::Plain, Subject::Native, Subject::Direct, Subject::Served]
            .into_iter()
            .filter(|subject| disk.rows.iter().any(|row| row.cells.contains_key(subject)))
            .collect();
    if subjects.is_empty() {
        return String::new();
    }
    let mut heading = vec!["".to_owned()];
    for subject in &subjects {
        heading.push(subject.label().to_owned());
        if *subject != Subject::Plain {
            heading.push("ratio".to_owned());
        }
    }
    let mut rows = vec![heading];
    for row in &disk.rows {
        let mut cells = vec![row.figure.label().to_owned()];
        for subject in &subjects {
            let cell = row.cells.get(subject);
            cells.push(cell.map_or(String::new(), |cell| spread(cell.summary)));
            if *subject != Subject::Plain {
                let ratio = cell.and_then(|cell| cell.ratio);
                cells.push(ratio.map_or(String::new(), |ratio| format!("{:.2}", ratio.median)));
            }
        }
        rows.push(cells);
    }
    aligned(&rows)
}

fn usage_table(disk: &DiskReport) -> String {
    let mut rows = vec![
        ["processor use", "on", "cores busy", "of these the daemon"].map(str::to_owned).to_vec(),
    ];
    for row in &disk.usage {
        rows.push(vec![
            row.group.label().to_owned(),
            row.subject.label().to_owned(),
            format!("{:.2}", row.median.busy_cores),
            format!("{:.2}", row.median.daemon_cores),
        ]);
    }
    aligned(&rows)
}

fn memory_text(memory: &Memory) -> String {
    format!(
        "Memory of the daemon without the store's cache (set to 1 MiB here): {} inodes cached take \
         {:.0} MB per million (PSS; RSS {:.0}, peak while they were made {:.0}; reckoned by the inode \
         cache {:.0}). They were made at {} per second.\n",
        grouped(memory.inodes as f64),
        memory.mb_per_million(memory.pss_bytes),
        memory.mb_per_million(memory.rss_bytes),
        memory.mb_per_million(memory.rss_peak_bytes),
        memory.mb_per_million(memory.cache_bytes),
        grouped(memory.creates_per_second)
    )
}

/// Median, least and greatest as whole numbers.
#[must_use]
pub fn spread(of: Summary) -> String {
    format!("{} ({} - {})", grouped(of.median), grouped(of.min), grouped(of.max))
}

/// A whole number with a comma between thousands.
#[must_use]
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A Markdown table with columns of even width, the first to the left and the others to the right.
#[must_use]
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3))
        .collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "| {cell:<width$} |"),
                _ => write!(text, " {cell:>width$} |"),
            };
        }
        text.push('\n');
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let _ = match column {
                    0 => write!(text, "|{}|", "-".repeat(width + 2)),
                    _ => write!(text, "{}:|", "-".repeat(width + 1)),
                };
            }
            text.push('\n');
        }
    }
    text
}

/// Puts a section into a text between marks that hold its name: in place of what stands there, or at the end if there are none.
#[must_use]
pub fn replace_section(text: &str, name: &str, section: &str) -> String {
    let [begin, end] = ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->"));
    let section = format!("{begin}\n{}\n{end}", section.trim_end());
    let place = text.find(&begin).and_then(|from| {
        let to = from + text[from..].find(&end)? + end.len();
        Some((from, to))
    });
    match place {
        Some((from, to)) => format!("{}{section}{}", &text[..from], &text[to..]),
        None if text.is_empty() => format!("{section}\n"),
        None => format!("{}\n\n{section}\n", text.trim_end()),
    }
}

/// Writes a section into a file, which is made if it does not exist.
///
/// # Errors
/// If the file cannot be read or written.
pub fn write_section(file: &Path, name: &str, section: &str) -> Result<()> {
    let old = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| file.display().to_string())?,
    };
    std::fs::write(file, replace_section(&old, name, section))
        .with_context(|| file.display().to_string())
}

/// A reason for a report: without the command line that failed and what it printed, which name passing paths.
pub fn without_command(reason: &str) -> String {
    let end = reason.find(": \"").unwrap_or(reason.len());
    reason[..end].replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!(
            ["1", "999", "1,000", "1,234,568"],
            [1.0, 999.0, 999.6, 1_234_567.8].map(grouped).each_ref().map(String::as_str)
        );
    }

    #[test]
    fn a_table_has_a_column_per_subject_and_ratios_to_plain() {
        let mut samples = Samples::default();
        samples.figures.insert((Figure::Create, Subject::Plain), vec![1000.0, 2000.0, 3000.0]);
        samples.figures.insert((Figure::Create, Subject::Direct), vec![500.0, 500.0, 3000.0]);
        let table = figures_table(&DiskReport::new("xfs", "XFS", &samples));
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[2].contains("2,000 (1,000 - 3,000)"), "{table}");
        assert!(lines[2].ends_with("500 (500 - 3,000) |  0.50 |"), "{table}");
    }

    #[test]
    fn a_section_replaces_the_one_before_and_nothing_else() {
        let (begin, end) = ("<!-- bench: begin -->", "<!-- bench: end -->");
        let first = replace_section("# Title\n\ntext\n", "bench", "one\n");
        assert_eq!(first, format!("# Title\n\ntext\n\n{begin}\none\n{end}\n"));
        let text = format!("{first}\n## After\n");
        let second = replace_section(&text, "bench", "two");
        assert_eq!(second, format!("# Title\n\ntext\n\n{begin}\ntwo\n{end}\n\n## After\n"));
        assert_eq!(replace_section("", "bench", "one"), format!("{begin}\none\n{end}\n"));
        let both = replace_section(&second, "other", "x");
        assert!(both.starts_with(second.trim_end()) && both.contains("<!-- other: begin -->"));
    }
}
