//! CSV files and the terminal.

use std::collections::BTreeSet;
use std::fs;

use forebay_analytics::Cell;
use forebay_study::csv;
use forebay_study::record::{Exit, Record};
use forebay_study::summary::{Sheet, Summary};
use forebay_study::terminal::{Style, Terminal};

use crate::builder::{job, record, run, samples, stage};
use crate::synthetic;

fn printed(record: &Record, width: usize, style: Style) -> String {
    let mut out = Vec::new();
    Terminal { width, style }.print(record, &Summary::of(record), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn rounds(record: &Record) -> Record {
    let mut record = record.clone();
    for (subject, round) in [(1, 0), (0, 1), (1, 1)] {
        let mut run = record.runs[0].clone();
        (run.subject, run.round) = (subject, round);
        record.runs.push(run);
    }
    let mut other = record.subjects[0].clone();
    other.label = "B".to_owned();
    record.subjects.push(other);
    record
}

#[test]
fn every_sheet_has_a_name_of_its_own_and_full_rows() {
    let one = synthetic::study(2);
    for record in [rounds(&one), one] {
        let sheets = Summary::of(&record).sheets(&record);
        let names: BTreeSet<&str> = sheets.iter().map(|sheet| sheet.name).collect();
        assert_eq!(names.len(), sheets.len());
        for Sheet { name, table, .. } in &sheets {
            assert!(!["samples", "jobs", "steps"].contains(name), "{name}");
            let columns: BTreeSet<&String> = table.columns.iter().collect();
            assert_eq!(columns.len(), table.columns.len(), "{name}: {:?}", table.columns);
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{name}");
        }
    }
}

#[test]
fn rows_name_subject_and_round_where_there_are_several() {
    let one = synthetic::study(2);
    let first_columns = |record: &Record| {
        let sheets = Summary::of(record).sheets(record);
        sheets.iter().find(|sheet| sheet.name == "job_totals").unwrap().table.columns[..2].to_vec()
    };
    assert_eq!(first_columns(&one), ["wall s", "jobs"]);
    assert_eq!(first_columns(&rounds(&one)), ["subject", "round"]);
}

#[test]
fn csv_files_hold_every_sample_job_and_step() {
    let record = rounds(&synthetic::study(2));
    let directory = tempfile::tempdir().unwrap();
    let summary = Summary::of(&record);
    let paths = csv::write(&record, &summary, directory.path()).unwrap();
    assert_eq!(paths.len(), summary.sheets(&record).len() + 3);
    let lines = |name: &str| {
        let text = fs::read_to_string(directory.path().join(name)).unwrap();
        text.lines().count() - 1
    };
    let steps: usize = record.runs[0].jobs().map(|job| job.steps.len()).sum();
    assert_eq!(lines("samples.csv"), 4 * 120);
    assert_eq!(lines("jobs.csv"), 4 * 77);
    assert_eq!(lines("steps.csv"), 4 * steps);
    let nowhere = directory.path().join("missing");
    assert!(csv::write(&record, &summary, &nowhere).is_err());
}

#[test]
fn csv_numbers_add_up_to_the_summary() {
    let record = synthetic::study(3);
    let summary = Summary::of(&record);
    let jobs = csv::jobs(&record);
    let column = jobs.columns.iter().position(|name| name == "read_bytes").unwrap();
    let sum: f64 = jobs
        .rows
        .iter()
        .map(|row| match row[column] {
            Cell::Number(bytes) => bytes,
            Cell::Missing | Cell::Text(_) => panic!("a number"),
        })
        .sum();
    assert_eq!(sum, summary.runs[0].jobs.read_bytes.unwrap() as f64);
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for record in [synthetic::study(2), rounds(&synthetic::study(2))] {
        for width in [60, 80, 132] {
            let text = printed(&record, width, Style::Plain);
            let wide: Vec<&str> =
                text.lines().filter(|line| line.chars().count() > width).collect();
            assert!(wide.is_empty(), "{width}: {wide:#?}");
        }
    }
}

#[test]
fn every_figure_is_printed_at_every_width() {
    let record = synthetic::study(2);
    let sheets = Summary::of(&record).sheets(&record);
    for width in [1, 60, 200] {
        let text = printed(&record, width, Style::Plain);
        for sheet in sheets.iter().filter(|sheet| sheet.name != "environment") {
            for cell in sheet.table.rows.iter().flatten() {
                if let Cell::Number(_) = cell {
                    assert!(text.contains(&cell.show(Sheet::DIGITS)), "{width}: {cell:?}");
                }
            }
        }
    }
}

#[test]
fn colours_are_only_printed_on_request() {
    let record = synthetic::study(2);
    assert!(!printed(&record, 80, Style::Plain).contains('\u{1b}'));
    assert!(printed(&record, 80, Style::Coloured).contains("\u{1b}[32mok  \u{1b}[0m"));
}

#[test]
fn messages_of_jobs_cannot_control_the_terminal() {
    let mut job = job("a", 0.0, 1.0);
    let message = "\u{1b}[2Jgone\nand a line".to_owned();
    job.exit = Exit::Failure { code: 1, message };
    let record = record(vec![run(vec![stage("all", vec![job])], samples(&[(1, 1)]))]);
    let text = printed(&record, 80, Style::Plain);
    assert!(text.contains("gone\\nand a line") && !text.contains('\u{1b}'), "{text}");
}
