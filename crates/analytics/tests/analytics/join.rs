//! Joins agree with nested loops, whatever their memory, and leave nothing behind.

use crate::common;
use std::fs;
use std::path::PathBuf;

use forebay_analytics::dataset::{Column, Reader};
use forebay_analytics::step::derive::{Case, Derived};
use forebay_analytics::step::join::{JoinKind, Joined, On};
use forebay_analytics::step::{Derive, Join};
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use rand::Rng as _;
use rand::rngs::StdRng;
use tempfile::TempDir;

const MISSING: Cell = Cell::Missing;

struct Place {
    directory: TempDir,
    step: Join,
}

fn place(left: (Vec<Column>, &[Vec<Cell>]), right: (Vec<Column>, &[Vec<Cell>])) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let [a, b, output, util] = ["left", "right", "out", "util"].map(|n| directory.path().join(n));
    common::write(&a, left.0, left.1);
    common::write(&b, right.0, right.1);
    fs::create_dir(&util).unwrap();
    let step = Join::new(a, b, output, &["k"], JoinKind::Inner, util);
    Place { directory, step: Join { page_bytes: Some(ByteSize::kib(16)), ..step } }
}

fn run(step: &Join) -> (Joined, Vec<Vec<Cell>>) {
    let joined = step.run(&mut |_| {}).unwrap();
    assert!(common::names(&step.util).is_empty(), "utility files are left");
    let rows = common::read(&step.output);
    assert_eq!(rows.len() as u64, joined.rows);
    (joined, rows)
}

const KINDS: [JoinKind; 4] = [JoinKind::Inner, JoinKind::Left, JoinKind::Semi, JoinKind::Anti];

#[test]
fn duplicates_and_missing_keys_are_joined_as_in_sql() {
    let left = [
        vec![1.0.into(), "a".into()],
        vec![2.0.into(), "b".into()],
        vec![MISSING, "c".into()],
        vec![2.0.into(), "d".into()],
        vec![3.0.into(), "e".into()],
        vec![(-0.0).into(), "f".into()],
    ];
    let right = [
        vec![2.0.into(), 20.0.into()],
        vec![MISSING, 0.0.into()],
        vec![2.0.into(), 21.0.into()],
        vec![0.0.into(), 7.0.into()],
        vec![4.0.into(), 40.0.into()],
    ];
    let columns = (vec![Column::number("k"), Column::text("t", 1)], &left[..]);
    let place = place(columns, (vec![Column::number("k"), Column::number("v")], &right));
    let row = |k: f64, t: &str, v: f64| -> Vec<Cell> { vec![k.into(), t.into(), v.into()] };
    let pairs =
        [row(2.0, "b", 20.0), row(2.0, "b", 21.0), row(2.0, "d", 20.0), row(2.0, "d", 21.0)];
    let nan = f64::NAN;
    let expected = [
        [&pairs[..], &[row(0.0, "f", 7.0)]].concat(),
        [&[row(1.0, "a", nan)], &pairs[..], &[row(3.0, "e", nan), row(0.0, "f", 7.0)]].concat(),
        vec![left[1].clone(), left[3].clone(), left[5].clone()],
        vec![left[0].clone(), left[2].clone(), left[4].clone()],
    ];
    for (kind, mut expected) in KINDS.into_iter().zip(expected) {
        if kind == JoinKind::Left {
            expected.insert(3, vec![MISSING, "c".into(), MISSING]);
        }
        let (joined, rows) = run(&Join { kind, ..place.step.clone() });
        assert_eq!(rows, expected, "{kind:?}");
        assert_eq!((joined.partitions, joined.blocks), (0, 0));
    }
}

/// Keys of a number and a text, some missing; `keys` different numbers.
fn random_rows(random: &mut StdRng, count: usize, keys: u32, width: usize) -> Vec<Vec<Cell>> {
    (0..count)
        .map(|row| {
            let key = match random.random_range(0..20) {
                0 => MISSING,
                _ => f64::from(random.random_range(0..keys)).into(),
            };
            let text = match random.random_range(0..3) {
                0 => "x".into(),
                1 => "xy".into(),
                _ if random.random_bool(0.1) => MISSING,
                _ => "y".into(),
            };
            vec![key, text, (row as f64).into(), "p".repeat(width).into()]
        })
        .collect()
}

fn nested_loop(left: &[Vec<Cell>], right: &[Vec<Cell>], kind: JoinKind) -> Vec<Vec<Cell>> {
    let mut joined = Vec::new();
    for left in left {
        let whole = left[0] != MISSING && left[1] != MISSING;
        let partners: Vec<&Vec<Cell>> =
            right.iter().filter(|right| whole && right[..2] == left[..2]).collect();
        let kept = [&left[..3]].concat();
        match kind {
            JoinKind::Inner | JoinKind::Left => {
                for right in &partners {
                    joined.push([&kept[..], &right[2..]].concat());
                }
                if partners.is_empty() && kind == JoinKind::Left {
                    joined.push([&kept[..], &[MISSING, MISSING]].concat());
                }
            }
            JoinKind::Semi if !partners.is_empty() => joined.push(kept),
            JoinKind::Anti if partners.is_empty() => joined.push(kept),
            JoinKind::Semi | JoinKind::Anti => {}
        }
    }
    joined
}

fn sorted(mut rows: Vec<Vec<Cell>>) -> Vec<Vec<Cell>> {
    rows.sort_by_key(|row| format!("{row:?}"));
    rows
}

fn columns(text: u16, width: u16) -> Vec<Column> {
    vec![
        Column::number("k"),
        Column::text("t", text),
        Column::number("row"),
        Column::text("pad", width),
    ]
}

/// Joins random rows in the least memory, in all ways; returns what the inner join did.
fn check(seed: u64, rows: [usize; 2], keys: u32, width: usize) -> Joined {
    let mut random = common::random(seed);
    let left = random_rows(&mut random, rows[0], keys, width);
    let right = random_rows(&mut random, rows[1], keys, width);
    // The texts of the keys are of different widths, the padding is left out on the left side.
    let place = place((columns(2, width as u16), &left), (columns(5, width as u16), &right));
    let mut inner = Joined::default();
    for kind in KINDS {
        let step = Join {
            kind,
            on: vec![On::Same("k".into()), On::Same("t".into())],
            left_columns: Some(vec!["k".into(), "t".into(), "row".into()]),
            sort_memory: Some(ByteSize::mib(1)),
            ..place.step.clone()
        };
        let (joined, written) = run(&step);
        let expected = nested_loop(&left, &right, kind);
        assert!(sorted(written) == sorted(expected), "{seed}, {kind:?}: {joined:?}");
        if kind == JoinKind::Inner {
            inner = joined;
        }
    }
    inner
}

#[test]
fn joins_agree_with_nested_loops() {
    for (seed, rows) in
        [[0, 0], [0, 5], [5, 0], [1, 1], [300, 20], [20, 300], [400, 400]].into_iter().enumerate()
    {
        let joined = check(seed as u64, rows, 50, 1);
        assert_eq!((joined.partitions, joined.blocks), (0, 0));
    }
}

#[test]
fn a_side_whose_columns_fit_is_kept() {
    let joined = check(20, [3000, 100], 5000, 250);
    assert_eq!(joined.partitions, 0, "{joined:?}");
    let joined = check(21, [1500, 1500], 2000, 1000);
    assert_eq!(joined.partitions, 0, "{joined:?}");
}

#[test]
fn both_sides_beyond_the_memory_are_split() {
    let joined = check_wide(22, 100, 40);
    // A part that is still too large, as random keys may make one, is joined by blocks.
    assert!(joined.partitions >= 2 && joined.blocks <= 2, "{joined:?}");
}

#[test]
fn a_key_with_too_many_rows_is_joined_in_blocks() {
    let joined = check_wide(23, 50, 1);
    assert!(joined.partitions >= 2 && joined.blocks >= 2, "{joined:?}");
}

#[test]
fn split_files_are_split_again() {
    // Thirty times the memory, of which a page each of sixteen files fit.
    let joined = check_wide(24, 1000, 2500);
    assert!(joined.partitions > 16, "{joined:?}");
}

/// Joins rows of 30 KB, so that few of them exceed the least memory, and compares keys and row numbers.
fn check_wide(seed: u64, rows: usize, keys: u32) -> Joined {
    let mut random = common::random(seed);
    let mut side = || -> Vec<Vec<Cell>> {
        (0..rows)
            .map(|row| {
                let key = match random.random_range(0..20) {
                    0 => MISSING,
                    _ => f64::from(random.random_range(0..keys)).into(),
                };
                vec![key, (row as f64).into()]
            })
            .collect()
    };
    let (left, right) = (side(), side());
    let place = place_wide(&left, &right);
    let mut inner = Joined::default();
    for kind in KINDS {
        let step = Join { kind, sort_memory: Some(ByteSize::mib(1)), ..place.step.clone() };
        let (joined, mut written) = run_lean(&step);
        inner = if kind == JoinKind::Inner { joined } else { inner };
        let mut partners: std::collections::HashMap<u64, Vec<u64>> = Default::default();
        let number = |cell: &Cell| match cell {
            Cell::Number(number) => *number as u64,
            Cell::Missing | Cell::Text(_) => u64::MAX,
        };
        for row in right.iter().filter(|row| row[0] != MISSING) {
            partners.entry(number(&row[0])).or_default().push(number(&row[1]));
        }
        let mut expected: Vec<[u64; 3]> = Vec::new();
        for row in &left {
            let (key, serial) = (number(&row[0]), number(&row[1]));
            let found = partners.get(&key).map_or(&[][..], Vec::as_slice);
            match kind {
                JoinKind::Inner => expected.extend(found.iter().map(|right| [key, serial, *right])),
                JoinKind::Left if found.is_empty() => expected.push([key, serial, u64::MAX]),
                JoinKind::Left => expected.extend(found.iter().map(|right| [key, serial, *right])),
                JoinKind::Semi if !found.is_empty() => expected.push([key, serial, u64::MAX]),
                JoinKind::Anti if found.is_empty() => expected.push([key, serial, u64::MAX]),
                JoinKind::Semi | JoinKind::Anti => {}
            }
        }
        written.sort_unstable();
        expected.sort_unstable();
        assert!(written == expected, "{seed}, {kind:?}");
    }
    inner
}

/// Rows of a key and a number with 30 KB of padding each.
fn place_wide(left: &[Vec<Cell>], right: &[Vec<Cell>]) -> Place {
    let columns = || vec![Column::number("k"), Column::number("row")];
    let mut place = place((columns(), left), (columns(), right));
    let cases = vec![Case { when: "1".into(), text: "p".repeat(30_000) }];
    let pad = Derived { expr: None, cases, ..Derived::number("pad", "") };
    for side in [&mut place.step.left, &mut place.step.right] {
        let wide = side.with_extension("wide");
        let page_bytes = Some(ByteSize::kib(64));
        let derive = Derive::new(side.clone(), wide.clone());
        Derive { columns: vec![pad.clone()], page_bytes, ..derive }.run(&mut |_| {}).unwrap();
        fs::rename(wide, side).unwrap();
    }
    place.step.page_bytes = Some(ByteSize::kib(64));
    place
}

/// Runs a join of [`check_wide`]; key, left and right row number of every row.
fn run_lean(step: &Join) -> (Joined, Vec<[u64; 3]>) {
    let joined = step.run(&mut |_| {}).unwrap();
    assert!(common::names(&step.util).is_empty(), "utility files are left");
    let mut reader = Reader::open(&step.output).unwrap();
    let fields =
        [reader.number_field("k"), reader.number_field("row"), reader.number_field("right_row")];
    let mut all = Vec::new();
    while let Some(rows) = reader.next_rows().unwrap() {
        for row in rows.iter() {
            all.push(fields.each_ref().map(|field| match field {
                Ok(field) if !field.get(row).is_nan() => field.get(row) as u64,
                _ => u64::MAX,
            }));
        }
    }
    (joined, all)
}

#[test]
fn the_same_join_gives_the_same_order() {
    let rows: Vec<Vec<Cell>> = (0..3000)
        .map(|row| vec![f64::from(row % 700).into(), f64::from(row).into(), "p".into()])
        .collect();
    let columns = || vec![Column::number("k"), Column::number("row"), Column::text("pad", 1000)];
    let place = place((columns(), &rows), (columns(), &rows));
    let step = Join { sort_memory: Some(ByteSize::mib(1)), ..place.step.clone() };
    assert!(run_lean(&step).1 == run_lean(&step).1);
    let (_, in_memory) = run_lean(&place.step);
    assert!(in_memory.is_sorted_by_key(|row| (row[1], row[2])), "not in the left side's order");
}

#[test]
fn columns_are_chosen_and_renamed() {
    let left = [vec![1.0.into(), 10.0.into()]];
    let right = [vec![1.0.into(), 20.0.into(), 30.0.into()]];
    let place = place(
        (vec![Column::number("k"), Column::number("v")], &left),
        (vec![Column::number("id"), Column::number("v"), Column::number("w")], &right),
    );
    let on = vec![On::Pair { left: "k".into(), right: "id".into() }];
    let names = |step: &Join| -> Vec<String> {
        run(step);
        let reader = Reader::open(&step.output).unwrap();
        reader.schema().columns().iter().map(|column| column.name.clone()).collect()
    };
    let step = Join { on, ..place.step.clone() };
    assert_eq!(names(&step), ["k", "v", "right_v", "w"]);
    let chosen = Join {
        left_columns: Some(vec!["v".into()]),
        right_columns: Some(vec!["v".into(), "id".into()]),
        right_prefix: "r.".into(),
        ..step.clone()
    };
    assert_eq!(names(&chosen), ["v", "r.v", "id"]);
    assert_eq!(run(&chosen).1, [[10.0, 20.0, 1.0].map(Cell::from)]);
    assert_eq!(names(&Join { kind: JoinKind::Semi, ..step }), ["k", "v"]);
}

#[test]
fn settings_are_read_from_text() {
    let step: Join = toml::from_str(
        "left = 'a'\nright = 'b'\noutput = 'c'\nutil = 'd'\nkind = 'anti'\non = ['k', { left = 'x', right = 'y' }]",
    )
    .unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(PathBuf::from);
    let mut expected = Join::new(a, b, c, &["k"], JoinKind::Anti, d);
    expected.on.push(On::Pair { left: "x".into(), right: "y".into() });
    assert_eq!(step, expected);
}

#[test]
fn an_error_leaves_neither_utility_files_nor_output() {
    let rows: Vec<Vec<Cell>> =
        (0..3000).map(|row| vec![f64::from(row).into(), 0.0.into(), "p".into()]).collect();
    let columns = || vec![Column::number("k"), Column::number("row"), Column::text("pad", 1000)];
    let place = place((columns(), &rows), (columns(), &rows));
    let mut bytes = fs::read(&place.step.right).unwrap();
    let near_the_end = bytes.len() - 100;
    bytes[near_the_end] ^= 1;
    fs::write(&place.step.right, bytes).unwrap();
    let step = Join { sort_memory: Some(ByteSize::mib(1)), ..place.step.clone() };
    let mut seen = false;
    let result = step.run(&mut |_| seen |= !common::names(&step.util).is_empty());
    assert!(matches!(result, Err(Error::Damaged { .. })), "{result:?}");
    assert!(seen, "the test saw no utility file");
    assert_eq!(common::names(&step.util), [""; 0]);
    assert_eq!(common::names(place.directory.path()), ["left", "right", "util"]);
}

#[test]
fn bad_settings_are_refused() {
    let columns = || vec![Column::number("k"), Column::text("t", 3)];
    let place = place((columns(), &[]), (columns(), &[]));
    let step = &place.step;
    let pair = On::Pair { left: "k".into(), right: "t".into() };
    for (step, expected) in [
        (Join { sort_memory: Some(ByteSize::kib(1023)), ..step.clone() }, "sort_memory = 1023 KiB"),
        (Join { on: vec![], ..step.clone() }, "on = []"),
        (Join { on: vec![pair], ..step.clone() }, "cannot equal"),
        (Join { on: vec![On::Same("x".into())], ..step.clone() }, "does not exist"),
        (Join { output: step.right.clone(), ..step.clone() }, "another file"),
        (Join { left_columns: Some(vec!["z".into()]), ..step.clone() }, "does not exist"),
        (Join { right_prefix: String::new(), ..step.clone() }, "one column only"),
    ] {
        let error = step.run(&mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!step.output.exists() || step.output == step.right);
    }
}
