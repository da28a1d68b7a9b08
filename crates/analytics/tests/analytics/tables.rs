//! Frequencies, histograms and ranks against published values, closed forms and naive counts.

use crate::common;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use forebay_analytics::dataset::Column;
use forebay_analytics::key::Direction;
use forebay_analytics::step::frequency::{
    self, FrequencyOrder, FrequencyTable, FrequencyTest, MissingClasses,
};
use forebay_analytics::step::rank::Ties;
use forebay_analytics::step::{Frequency, Histogram, Rank};
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tempfile::TempDir;

const MISSING: Cell = Cell::Missing;

fn dataset(columns: Vec<Column>, rows: &[Vec<Cell>]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in");
    common::write(&path, columns, rows);
    (directory, path)
}

#[track_caller]
fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-6, "{found}, not {expected}");
}

/// Hair and eye colors of 592 students (R. D. Snee, The American Statistician 28, 1974).
fn hair_and_eyes() -> (TempDir, PathBuf) {
    let eyes = ["Brown", "Blue", "Hazel", "Green"];
    let hair = [
        ("Black", [68, 20, 15, 5]),
        ("Brown", [119, 84, 54, 29]),
        ("Red", [26, 17, 14, 14]),
        ("Blond", [7, 94, 10, 16]),
    ];
    let mut rows = Vec::new();
    for (hair, counts) in hair {
        for (eye, count) in eyes.into_iter().zip(counts) {
            rows.extend(std::iter::repeat_n(vec![Cell::from(hair), eye.into()], count));
        }
    }
    dataset(vec![Column::text("hair", 5), Column::text("eye", 5)], &rows)
}

fn counted(step: &Frequency) -> Vec<FrequencyTable> {
    step.run(&mut |_| {}).unwrap()
}

/// The chi-square of hair by eye color is 138.2898 on 9 degrees of freedom with p = 2.325287e-25 in R's
/// chisq.test.
#[test]
fn crossed_counts_have_their_percentages_and_chi_square() {
    let (_directory, path) = hair_and_eyes();
    let step = Frequency {
        test: FrequencyTest::ChiSquare,
        ..Frequency::new(path, &[&["hair", "eye"], &["eye"]])
    };
    let tables = counted(&step);
    let chi_square = tables[0].chi_square.unwrap();
    assert!((chi_square.value - 138.2898).abs() < 5e-5, "{chi_square:?}");
    assert_eq!((chi_square.df, tables[0].n, tables[0].classes), (9, 592, 16));
    close(chi_square.p, 2.325_287e-25);
    let first = &tables[0].listed[0];
    assert_eq!((&first.values[..], first.count), (&["Black".into(), "Blue".into()][..], 20));
    close(first.percent, 20.0 / 5.92);
    close(first.row_percent.unwrap(), 20.0 / 1.08);
    close(first.column_percent.unwrap(), 20.0 / 2.15);
    // Eyes: 215, 220, 64, 93; 148 of each are expected.
    let eyes = tables[1].chi_square.unwrap();
    close(
        eyes.value,
        (67.0_f64.powi(2) + 72_f64.powi(2) + 84_f64.powi(2) + 55_f64.powi(2)) / 148.0,
    );
    assert_eq!(eyes.df, 3);
    let table = frequency::table(&tables);
    assert_eq!(table.rows.len(), 20);
    assert_eq!(table.rows[19][..4], ["eye".into(), "Hazel".into(), MISSING, Cell::Number(93.0)]);
}

/// With two degrees of freedom p is exp(-x / 2).
#[test]
fn empty_cells_count_in_the_test_of_independence() {
    let rows: Vec<Vec<Cell>> = [(1, 1, 10), (1, 2, 20), (2, 2, 30), (2, 3, 40)]
        .into_iter()
        .flat_map(|(a, b, count)| {
            std::iter::repeat_n(vec![f64::from(a).into(), f64::from(b).into()], count)
        })
        .collect();
    let (_directory, path) = dataset(vec![Column::number("a"), Column::number("b")], &rows);
    let step = Frequency { test: FrequencyTest::ChiSquare, ..Frequency::new(path, &[&["a", "b"]]) };
    let found = counted(&step)[0].chi_square.unwrap();
    let observed = [[10.0, 20.0, 0.0], [0.0, 30.0, 40.0]];
    let (rows, columns) = ([30.0, 70.0], [10.0, 50.0, 40.0]);
    let mut value = 0.0;
    for (i, row) in observed.iter().enumerate() {
        for (j, count) in row.iter().enumerate() {
            let expected: f64 = rows[i] * columns[j] / 100.0;
            value += (count - expected).powi(2) / expected;
        }
    }
    close(found.value, value);
    close(found.p, (-value / 2.0).exp());
    assert_eq!(found.df, 2);
}

#[test]
fn classes_are_ordered_listed_and_missing_as_told() {
    let values = [2.0, f64::NAN, 1.0, 3.0, 3.0, 1.0, 3.0, f64::NAN, 10.0];
    let rows: Vec<Vec<Cell>> = values.iter().map(|&value| vec![value.into()]).collect();
    let (_directory, path) = dataset(vec![Column::number("x")], &rows);
    let step = Frequency::new(path, &[&["x"]]);
    let listed = |step: &Frequency| -> (Vec<(Cell, u64)>, u64, u64, u64) {
        let table = counted(step).remove(0);
        let classes =
            table.listed.into_iter().map(|mut class| (class.values.remove(0), class.count));
        (classes.collect(), table.n, table.missing, table.classes)
    };
    let class = |value: f64, count: u64| (Cell::from(value), count);
    let by_value = vec![class(1.0, 2), class(2.0, 1), class(3.0, 3), class(10.0, 1)];
    assert_eq!(listed(&step), (by_value.clone(), 7, 2, 4));
    let by_count = vec![class(3.0, 3), class(1.0, 2)];
    let step = Frequency { order: FrequencyOrder::Count, top: Some(2), ..step };
    assert_eq!(listed(&step), (by_count, 7, 2, 4));
    let step = Frequency {
        missing: MissingClasses::Include,
        order: FrequencyOrder::Value,
        top: None,
        ..step
    };
    assert_eq!(listed(&step), ([vec![(MISSING, 2)], by_value].concat(), 9, 0, 5));
    let step = Frequency { classes_max: 4, ..step };
    assert!(matches!(step.run(&mut |_| {}), Err(Error::TooManyClasses { limit: 4 })));
    let step = Frequency { tables: vec![vec![]], ..step };
    assert!(matches!(step.run(&mut |_| {}), Err(Error::Setting { setting: "tables", .. })));
}

#[test]
fn histograms_count_every_value_once() {
    let mut rows: Vec<Vec<Cell>> = (0..=1000)
        .map(|i| vec!["t".into(), f64::from(i * 5 % 1001).into(), 5.0.into(), MISSING])
        .collect();
    rows.push(vec!["t".into(), MISSING, 5.0.into(), MISSING]);
    let columns = vec![
        Column::text("t", 1),
        Column::number("x"),
        Column::number("same"),
        Column::number("none"),
    ];
    let (_directory, path) = dataset(columns, &rows);
    let step = Histogram {
        bins: 10,
        quantiles: vec![0.0, 0.25, 0.5, 1.0],
        ..Histogram::new(path.clone(), None)
    };
    let mut progress = Vec::new();
    let [x, same, none] = step.run(&mut |rows| progress.push(rows)).unwrap().try_into().unwrap();
    assert_eq!((x.column.as_str(), x.statistics.n, x.statistics.missing), ("x", 1001, 1));
    // 0 to 1000 in bins of 100; the largest is in the last one.
    assert_eq!(x.bins, [100, 100, 100, 100, 100, 100, 100, 100, 100, 101]);
    assert_eq!(x.quantiles, [0.0, 250.0, 500.0, 1000.0]);
    assert_eq!((x.bin_start(0), x.bin_start(10)), (Some(0.0), Some(1000.0)));
    assert_eq!(x.statistics.mean, Some(500.0));
    assert_eq!((same.bins[0], same.bins.iter().sum::<u64>()), (1002, 1002));
    assert_eq!((none.bins.len(), none.quantiles.len(), none.statistics.missing), (0, 0, 1002));
    assert!(progress.is_sorted() && progress.last() == Some(&2004), "{progress:?}");
    assert_eq!(step.table(&[x]).rows.len(), 6 + 4 + 10);
    for (step, expected) in [
        (Histogram { bins: 10_001, ..step.clone() }, "bins = 10001"),
        (Histogram { quantiles: vec![1.5], ..step.clone() }, "quantiles = 1.5"),
        (Histogram { columns: Some(vec!["t".into()]), ..step.clone() }, "is a text"),
    ] {
        let error = step.run(&mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let once = Histogram { bins: 0, ..Histogram::new(path, Some(&["x"])) };
    assert_eq!(once.run(&mut |_| {}).unwrap()[0].bins, [0_u64; 0]);
}

#[test]
fn infinite_ranges_have_no_bins() {
    let rows: Vec<Vec<Cell>> = [1.0, f64::INFINITY, -3.0].iter().map(|&x| vec![x.into()]).collect();
    let (_directory, path) = dataset(vec![Column::number("x")], &rows);
    let found = Histogram::new(path, None).run(&mut |_| {}).unwrap().remove(0);
    assert_eq!((found.bins.len(), found.statistics.n), (0, 3));
    assert_eq!(found.quantiles[3], 1.0);
}

struct Place {
    _directory: TempDir,
    step: Rank,
}

fn place(columns: Vec<Column>, rows: &[Vec<Cell>]) -> Place {
    let (directory, input) = dataset(columns, rows);
    let [output, util] = ["out", "util"].map(|name| directory.path().join(name));
    fs::create_dir(&util).unwrap();
    let page_bytes = Some(ByteSize::kib(4));
    let step = Rank { page_bytes, ..Rank::new(input, output, "x", util) };
    Place { _directory: directory, step }
}

/// The ranks of the rows; the other columns must be as they were.
fn ranked(step: &Rank) -> Vec<Cell> {
    let written = step.run(&mut |_| {}).unwrap();
    assert!(common::names(&step.util).is_empty(), "utility files are left");
    let (input, mut output) = (common::read(&step.input), common::read(&step.output));
    let ranks: Vec<Cell> = output.iter_mut().map(|row| row.pop().unwrap()).collect();
    assert!(input == output, "the rows are not as they were");
    assert_eq!(written, ranks.len() as u64);
    ranks
}

/// The example in the documentation of scipy.stats.rankdata.
#[test]
fn ties_have_the_ranks_of_their_method() {
    let rows: Vec<Vec<Cell>> = [0.0, 2.0, 3.0, 2.0].iter().map(|&x| vec![x.into()]).collect();
    let place = place(vec![Column::number("x")], &rows);
    for (ties, expected) in [
        (Ties::Mean, [1.0, 2.5, 4.0, 2.5]),
        (Ties::Low, [1.0, 2.0, 4.0, 2.0]),
        (Ties::High, [1.0, 3.0, 4.0, 3.0]),
        (Ties::Dense, [1.0, 2.0, 3.0, 2.0]),
    ] {
        let step = Rank { ties, ..place.step.clone() };
        assert_eq!(ranked(&step), expected.map(Cell::from), "{ties:?}");
    }
}

/// Ranks of the values at `places`, by counting.
fn naive(values: &[f64], step: &Rank) -> Vec<Cell> {
    let value = |value: f64| if step.direction == Direction::Descending { -value } else { value };
    let whole: Vec<f64> = values.iter().filter(|x| !x.is_nan()).map(|x| value(*x)).collect();
    let rank = |x: f64| {
        if x.is_nan() {
            return MISSING;
        }
        let below = whole.iter().filter(|other| **other < value(x)).count() as f64;
        let equal = whole.iter().filter(|other| **other == value(x)).count() as f64;
        let mut lower: Vec<f64> = whole.iter().copied().filter(|other| *other < value(x)).collect();
        lower.sort_by(f64::total_cmp);
        lower.dedup();
        let rank = match step.ties {
            Ties::Mean => below + (equal + 1.0) / 2.0,
            Ties::Low => below + 1.0,
            Ties::High => below + equal,
            Ties::Dense => lower.len() as f64 + 1.0,
        };
        let n = whole.len() as f64;
        step.groups.map_or(rank, |k| (rank * f64::from(k) / (n + 1.0)).floor()).into()
    };
    values.iter().map(|x| rank(*x)).collect()
}

#[test]
fn ranks_agree_with_counting() {
    let mut random = StdRng::seed_from_u64(5);
    let rows: Vec<Vec<Cell>> = (0..700)
        .map(|_| {
            let class = ["", "a", "b", "ab"][random.random_range(0..4)];
            let class = if class.is_empty() { MISSING } else { class.into() };
            let x = match random.random_range(0..10) {
                0 => f64::NAN,
                _ => f64::from(random.random_range(-60..60)),
            };
            vec![class, x.into()]
        })
        .collect();
    let place = place(vec![Column::text("class", 3), Column::number("x")], &rows);
    for ties in [Ties::Mean, Ties::Low, Ties::High, Ties::Dense] {
        for (direction, groups, class) in [
            (Direction::Ascending, None, true),
            (Direction::Descending, None, false),
            (Direction::Ascending, Some(10), true),
            (Direction::Descending, Some(4), true),
            (Direction::Ascending, Some(10), false),
        ] {
            let class: Vec<String> = class.then(|| "class".to_owned()).into_iter().collect();
            let step = Rank { ties, direction, groups, class, ..place.step.clone() };
            let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            for (at, row) in rows.iter().enumerate() {
                let class =
                    if step.class.is_empty() { String::new() } else { format!("{:?}", row[0]) };
                places.entry(class).or_default().push(at);
            }
            let mut expected = vec![MISSING; rows.len()];
            for places in places.values() {
                let value = |&at: &usize| match rows[at][1] {
                    Cell::Number(number) => number,
                    Cell::Missing | Cell::Text(_) => f64::NAN,
                };
                let values: Vec<f64> = places.iter().map(value).collect();
                for (at, rank) in places.iter().zip(naive(&values, &step)) {
                    expected[*at] = rank;
                }
            }
            assert!(ranked(&step) == expected, "seed 5: {step:?}");
        }
    }
}

#[test]
fn deciles_are_of_equal_size() {
    let rows: Vec<Vec<Cell>> = (0..60_000_u32)
        .map(|row| vec![f64::from(row.wrapping_mul(2_654_435_761) >> 4).into()])
        .collect();
    let place = place(vec![Column::number("x")], &rows);
    let step = Rank { groups: Some(10), sort_memory: Some(ByteSize::mib(1)), ..place.step };
    let mut counts = BTreeMap::new();
    for cell in ranked(&step) {
        *counts.entry(format!("{cell:?}")).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 10);
    assert!(counts.values().all(|count| (5999..=6001).contains(count)), "{counts:?}");
}

#[test]
fn bad_rank_settings_leave_nothing() {
    let place =
        place(vec![Column::number("x"), Column::text("t", 2)], &[vec![1.0.into(), "a".into()]]);
    let step = &place.step;
    for (step, expected) in [
        (Rank { groups: Some(0), ..step.clone() }, "groups = 0"),
        (Rank { column: "t".into(), ..step.clone() }, "is a text"),
        (Rank { column: "y".into(), ..step.clone() }, "does not exist"),
        (Rank { class: vec!["z".into()], ..step.clone() }, "does not exist"),
        (Rank { name: Some("t".into()), ..step.clone() }, "already exists"),
        (Rank { sort_memory: Some(ByteSize::kib(1)), ..step.clone() }, "sort_memory"),
        (Rank { output: step.input.clone(), ..step.clone() }, "another file"),
    ] {
        let error = step.run(&mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(common::names(&step.util).is_empty() && !place.step.output.exists(), "{error}");
    }
}

#[test]
fn settings_are_read_from_text() {
    let step: Rank = toml::from_str(
        "input = 'a'\noutput = 'b'\nutil = 'c'\ncolumn = 'x'\nties = 'low'\ngroups = 10\nclass = ['t']",
    )
    .unwrap();
    let [a, b, c] = ["a", "b", "c"].map(PathBuf::from);
    let expected = Rank::new(a.clone(), b, "x", c);
    assert_eq!(
        step,
        Rank { ties: Ties::Low, groups: Some(10), class: vec!["t".into()], ..expected }
    );
    let step: Histogram = toml::from_str("input = 'a'").unwrap();
    assert_eq!(step, Histogram::new(a.clone(), None));
    let step: Frequency = toml::from_str("input = 'a'\ntables = [['x'], ['x', 'y']]").unwrap();
    assert_eq!(step, Frequency::new(a, &[&["x"], &["x", "y"]]));
}
