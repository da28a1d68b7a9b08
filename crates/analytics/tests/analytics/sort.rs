//! The sort agrees with a sort in memory, whatever its memory, and leaves nothing behind.

use crate::common;
use std::cmp::Ordering;
use std::fs;
use std::path::PathBuf;

use forebay_analytics::dataset::Column;
use forebay_analytics::key::{Direction, SortKey};
use forebay_analytics::step::Sort;
use forebay_analytics::step::sort::{SORT_MEMORY_MIN, Sorted};
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use rand::Rng as _;
use tempfile::TempDir;

struct Place {
    _directory: TempDir,
    input: PathBuf,
    output: PathBuf,
    util: PathBuf,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let [input, output, util] = ["in.fds", "out.fds", "util"].map(|n| directory.path().join(n));
    fs::create_dir(&util).unwrap();
    Place { _directory: directory, input, output, util }
}

impl Place {
    fn sort(&self, by: Vec<SortKey>) -> Sort {
        Sort {
            page_bytes: Some(ByteSize::kib(64)),
            ..Sort::new(self.input.clone(), self.output.clone(), by, self.util.clone())
        }
    }

    fn run(&self, sort: &Sort) -> Sorted {
        let mut last = 0;
        let sorted = sort.run(&mut |done| {
            assert!(done >= last, "progress goes back");
            last = done;
        });
        assert!(common::names(&self.util).is_empty(), "utility files are left");
        sorted.unwrap()
    }
}

fn columns(padding: u16) -> Vec<Column> {
    vec![
        Column::text("t", 3),
        Column::number("n"),
        Column::number("serial"),
        Column::text("padding", padding),
    ]
}

/// Rows with many duplicates and missing values.
fn random_rows(count: usize, seed: u64) -> Vec<Vec<Cell>> {
    const TEXTS: [&str; 8] = ["", "a", "ab", "abc", "b", "B", "\u{e9}", "a b"];
    const NUMBERS: [f64; 8] = [f64::NAN, -1e300, -1.5, -0.0, 0.0, 1e-300, 2.0, f64::INFINITY];
    let mut random = common::random(seed);
    (0..count)
        .map(|serial| {
            let text = match TEXTS[random.random_range(0..8)] {
                "" => Cell::Missing,
                text => text.into(),
            };
            let number = match random.random_range(0..20) {
                pick @ 0..8 => NUMBERS[pick],
                _ => f64::from(random.random_range(-50..50)),
            };
            vec![text, number.into(), (serial as f64).into(), "padding".into()]
        })
        .collect()
}

/// Missing first, then as numbers or bytes compare.
fn compare(a: &Cell, b: &Cell) -> Ordering {
    match (a, b) {
        (Cell::Missing, Cell::Missing) => Ordering::Equal,
        (Cell::Missing, _) => Ordering::Less,
        (_, Cell::Missing) => Ordering::Greater,
        (Cell::Number(a), Cell::Number(b)) => a.partial_cmp(b).unwrap(),
        (Cell::Text(a), Cell::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        _ => panic!("{a:?} and {b:?} are of different types"),
    }
}

fn sorted_in_memory(mut rows: Vec<Vec<Cell>>, by: &[(usize, Direction)]) -> Vec<Vec<Cell>> {
    rows.sort_by(|a, b| {
        by.iter().fold(Ordering::Equal, |so_far, &(column, direction)| {
            so_far.then_with(|| match direction {
                Direction::Ascending => compare(&a[column], &b[column]),
                Direction::Descending => compare(&b[column], &a[column]),
            })
        })
    });
    rows
}

fn check(rows: Vec<Vec<Cell>>, padding: u16, by: &[(usize, Direction)]) -> Sorted {
    let place = place();
    let columns = columns(padding);
    let keys = by
        .iter()
        .map(|&(column, direction)| SortKey { column: columns[column].name.clone(), direction })
        .collect();
    common::write(&place.input, columns, &rows);
    let sorted = place.run(&Sort { sort_memory: Some(SORT_MEMORY_MIN), ..place.sort(keys) });
    assert_eq!(sorted.rows, rows.len() as u64);
    assert!(common::read(&place.output) == sorted_in_memory(rows, by), "not in order");
    sorted
}

use Direction::{Ascending, Descending};

#[test]
fn the_order_is_that_of_a_stable_sort_in_memory() {
    for (seed, count) in [(1, 0), (2, 1), (3, 2), (4, 1000)] {
        for by in [
            &[(0, Ascending)][..],
            &[(1, Ascending)],
            &[(1, Descending)],
            &[(0, Descending), (1, Ascending)],
            &[(1, Descending), (0, Ascending)],
            &[(0, Ascending), (1, Descending), (2, Descending)],
        ] {
            let sorted = check(random_rows(count, seed), 8, by);
            assert_eq!(sorted.runs, 0, "{seed}");
        }
    }
}

#[test]
fn keys_longer_than_their_prefix_are_compared_in_full() {
    let mut random = common::random(5);
    let mut text = || {
        let letters = (0..40).map(|_| if random.random_bool(0.5) { 'a' } else { 'b' });
        let text: String = letters.collect();
        // The first 30 bytes differ somewhere but hardly ever decide.
        format!("{}{}", if text.ends_with("aaaaaa") { "b" } else { "a" }.repeat(30), &text[..9])
    };
    let rows: Vec<Vec<Cell>> = (0..5000)
        .map(|serial| vec![Cell::Missing, 0.0.into(), f64::from(serial).into(), text().into()])
        .collect();
    check(rows, 40, &[(3, Ascending)]);
}

#[test]
fn tiny_memory_makes_several_runs() {
    let sorted = check(random_rows(20_000, 6), 100, &[(0, Ascending), (1, Descending)]);
    assert!(sorted.runs > 2, "{sorted:?}");
    assert_eq!(sorted.merge_passes, 1);
}

#[test]
fn many_runs_are_merged_in_several_passes() {
    let sorted = check(random_rows(80_000, 7), 300, &[(1, Ascending)]);
    assert!(sorted.runs > 16, "{sorted:?}");
    assert_eq!(sorted.merge_passes, 2);
}

#[test]
fn an_error_leaves_neither_utility_files_nor_output() {
    let place = place();
    common::write(&place.input, columns(300), &random_rows(10_000, 8));
    let mut bytes = fs::read(&place.input).unwrap();
    let near_the_end = bytes.len() - 100;
    bytes[near_the_end] ^= 1;
    fs::write(&place.input, bytes).unwrap();
    let sort =
        Sort { sort_memory: Some(SORT_MEMORY_MIN), ..place.sort(vec![SortKey::ascending("t")]) };
    let mut seen = false;
    let result = sort.run(&mut |_| seen |= !common::names(&place.util).is_empty());
    assert!(matches!(result, Err(Error::Damaged { .. })), "{result:?}");
    assert!(seen, "the test saw no utility file");
    assert!(common::names(&place.util).is_empty());
    assert!(!place.output.exists());
}

#[test]
fn a_panic_leaves_no_utility_files() {
    let place = place();
    common::write(&place.input, columns(300), &random_rows(10_000, 9));
    let sort =
        Sort { sort_memory: Some(SORT_MEMORY_MIN), ..place.sort(vec![SortKey::ascending("t")]) };
    let result =
        std::panic::catch_unwind(|| sort.run(&mut |done| assert!(done < 9000, "stop here")));
    assert!(result.is_err());
    assert!(common::names(&place.util).is_empty());
    assert!(!place.output.exists());
}

#[test]
fn bad_settings_are_refused() {
    let place = place();
    common::write(&place.input, columns(1), &[]);
    let good = place.sort(vec![SortKey::ascending("t")]);
    for (sort, expected) in [
        (Sort { sort_memory: Some(ByteSize::kib(1023)), ..good.clone() }, "sort_memory = 1023 KiB"),
        (Sort { by: vec![], ..good.clone() }, "by = []: must be at least one column"),
        (Sort { output: place.input.clone(), ..good.clone() }, "another file than the input"),
        (Sort { by: vec![SortKey::ascending("x")], ..good.clone() }, "does not exist"),
    ] {
        let text = sort.run(&mut |_| {}).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(common::read(&place.input), Vec::<Vec<Cell>>::new());
}
