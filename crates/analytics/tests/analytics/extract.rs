//! Extracts take the rows that were asked for and read no other pages.

use crate::common;
use std::path::PathBuf;

use forebay_analytics::amount::Scale;
use forebay_analytics::dataset::{Column, Reader};
use forebay_analytics::step::Extract;
use forebay_analytics::step::extract::{BlockOrder, Extracted, Mode};
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use tempfile::TempDir;

/// 255 rows of 16 bytes in each page of 4 KiB: 40 pages.
const ROWS: u64 = 40 * 255;

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in");
    let rows: Vec<Vec<Cell>> =
        (0..ROWS).map(|row| vec![row.into(), ((row % 100) as f64).into()]).collect();
    common::write(&path, vec![Column::number("row"), Column::number("z")], &rows);
    (directory, path)
}

/// Runs an extract with an output; what it did and the numbers of the rows taken.
fn extract(step: Extract) -> (Extracted, Vec<u64>) {
    let output = step.input.with_file_name("out");
    let step =
        Extract { output: Some(output.clone()), page_bytes: Some(ByteSize::kib(64)), ..step };
    let extracted = step.run(Scale::FULL, &mut |_| {}).unwrap();
    let number = |row: &Vec<Cell>| match row[0] {
        Cell::Number(number) => number as u64,
        _ => panic!("the number of a row is missing"),
    };
    let rows: Vec<u64> = common::read(&output).iter().map(number).collect();
    assert_eq!(rows.len() as u64, extracted.rows);
    (extracted, rows)
}

#[test]
fn all_rows_are_read_once() {
    let (_directory, path) = place();
    let (extracted, rows) = extract(Extract::new(path.clone(), Mode::All));
    assert_eq!(rows, (0..ROWS).collect::<Vec<_>>());
    assert_eq!((extracted.rows_read, extracted.pages_read), (ROWS, 40));
    // The checksum is that of the rows as they lie in the pages.
    let mut hasher = crc32fast::Hasher::new();
    let mut reader = Reader::open(&path).unwrap();
    while let Some(rows) = reader.next_rows().unwrap() {
        hasher.update(rows.bytes());
    }
    assert_eq!(extracted.checksum, hasher.finalize());
}

#[test]
fn a_range_reads_its_pages() {
    let (_directory, path) = place();
    for (first, count, pages) in
        [(0, 1, 1), (254, 2, 2), (300, 10, 1), (ROWS - 1, 5, 1), (ROWS, 5, 0)]
    {
        let mode = Mode::Rows { first: first.into(), count: count.into() };
        let (extracted, rows) = extract(Extract::new(path.clone(), mode));
        assert_eq!(rows, (first..(first + count).min(ROWS)).collect::<Vec<_>>());
        assert_eq!(extracted.pages_read, pages, "from {first}");
    }
}

#[test]
fn skipping_extracts_read_parts_of_their_own() {
    let (_directory, path) = place();
    // Runs of one page of every four.
    let mode = Mode::SkipSequential { part: 0.25, run_rows: 255 };
    let mut all = Vec::new();
    for number in 0..4 {
        let step = Extract { number: Some(number), ..Extract::new(path.clone(), mode) };
        let (extracted, rows) = extract(step);
        assert_eq!((extracted.rows_read, extracted.pages_read), (ROWS / 4, 10));
        assert!(rows.is_sorted() && rows[0] == number * 255);
        all.extend(rows);
    }
    all.sort_unstable();
    assert_eq!(all, (0..ROWS).collect::<Vec<_>>());
}

#[test]
fn short_runs_in_one_page_read_it_once() {
    let (_directory, path) = place();
    let mode = Mode::SkipSequential { part: 0.5, run_rows: 5 };
    let (extracted, rows) = extract(Extract::new(path, mode));
    assert_eq!((extracted.rows_read, extracted.pages_read), (ROWS / 2, 40));
    assert!(rows.iter().all(|row| row % 10 < 5));
}

#[test]
fn random_rows_cost_a_page_each() {
    let (_directory, path) = place();
    for (order, sorted) in [(BlockOrder::Random, false), (BlockOrder::Ascending, true)] {
        let mode = Mode::Random { part: 0.1, block_rows: 1, order };
        let of_seed =
            |seed| extract(Extract { seed: Some(seed), ..Extract::new(path.clone(), mode) });
        let (extracted, rows) = of_seed(1);
        assert_eq!((extracted.rows_read, rows.len() as u64), (ROWS / 10, ROWS / 10));
        assert_eq!(rows.is_sorted(), sorted);
        // Neighbours are seldom of one page of forty; in order all pages are read once.
        let least = if sorted { 40 } else { ROWS / 10 * 9 / 10 };
        assert!((least..=ROWS / 10).contains(&extracted.pages_read), "{extracted:?}");
        assert!(!sorted || extracted.pages_read == 40);
        assert_eq!(of_seed(1).1, rows);
        assert_ne!(of_seed(2).1, rows);
    }
}

#[test]
fn a_filter_and_columns_are_taken_of_what_was_read() {
    let (_directory, path) = place();
    let mode = Mode::Rows { first: 1000.into(), count: 1000.into() };
    let step = Extract {
        filter: Some("z < 10 and row() > 1500".to_owned()),
        keep: Some(vec!["row".to_owned()]),
        ..Extract::new(path, mode)
    };
    let (extracted, rows) = extract(step.clone());
    assert_eq!(rows, (1500..2000).filter(|row| row % 100 < 10).collect::<Vec<_>>());
    assert_eq!(extracted.rows_read, 1000);
    let reader = Reader::open(&step.input.with_file_name("out")).unwrap();
    assert_eq!(reader.schema().columns().len(), 1);
    // Without an output the checksum is the same and nothing is written.
    let none = step.run(Scale::FULL, &mut |_| {}).unwrap();
    assert_eq!(none, extracted);
}

#[test]
fn settings_are_read_from_text() {
    for (text, mode) in [
        ("", Mode::All),
        ("mode = 'all'", Mode::All),
        ("mode.rows = { count = 5 }", Mode::Rows { first: 0.into(), count: 5.into() }),
        (
            "mode.skip_sequential = { part = 0.1, run_rows = 7 }",
            Mode::SkipSequential { part: 0.1, run_rows: 7 },
        ),
        (
            "mode.random = { part = 0.1 }",
            Mode::Random { part: 0.1, block_rows: 1, order: BlockOrder::Random },
        ),
    ] {
        let step: Extract = toml::from_str(&format!("input = 'a'\n{text}")).unwrap();
        assert_eq!(step, Extract::new("a".into(), mode), "{text}");
    }
}

#[test]
fn bad_settings_and_pages_leave_no_output() {
    let (directory, path) = place();
    let output = Some(directory.path().join("out"));
    let step = |mode| Extract { output: output.clone(), ..Extract::new(path.clone(), mode) };
    let random = |part, block_rows| Mode::Random { part, block_rows, order: BlockOrder::Random };
    for (step, expected) in [
        (step(Mode::SkipSequential { part: 0.0, run_rows: 1 }), "part = 0"),
        (step(Mode::SkipSequential { part: 0.5, run_rows: 0 }), "run_rows = 0"),
        (step(random(1.5, 1)), "part = 1.5"),
        (step(random(f64::NAN, 1)), "part = NaN"),
        (step(random(0.5, 0)), "block_rows = 0"),
        (Extract { output: Some(path.clone()), ..step(Mode::All) }, "another file"),
        (Extract { filter: Some("q".to_owned()), ..step(Mode::All) }, "no column"),
    ] {
        let error = step.run(Scale::FULL, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(common::names(directory.path()), ["in"], "{error}");
    }
    let mut bytes = std::fs::read(&path).unwrap();
    let near_the_end = bytes.len() - 100;
    bytes[near_the_end] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(step(Mode::All).run(Scale::FULL, &mut |_| {}), Err(Error::Damaged { .. })));
    assert_eq!(common::names(directory.path()), ["in"]);
}
