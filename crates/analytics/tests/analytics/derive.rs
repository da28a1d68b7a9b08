//! Expressions and the data step that uses them.

use crate::common;
use std::path::PathBuf;

use forebay_analytics::dataset::{Column, ColumnType, Reader, Schema};
use forebay_analytics::step::Derive;
use forebay_analytics::step::derive::{Case, Derived};
use forebay_analytics::{Cell, Error};
use tempfile::TempDir;

const MISSING: Cell = Cell::Missing;

fn columns() -> Vec<Column> {
    vec![
        Column::number("x"),
        Column::text("t", 4),
        Column::number("y"),
        Column::text("u", 6),
        Column::number("a b"),
    ]
}

fn place(rows: &[Vec<Cell>]) -> (TempDir, Derive) {
    let directory = tempfile::tempdir().unwrap();
    let [input, output] = ["in", "out"].map(|name| directory.path().join(name));
    common::write(&input, columns(), rows);
    (directory, Derive::new(input, output))
}

fn run(step: &Derive) -> Vec<Vec<Cell>> {
    let rows = step.run(&mut |_| {}).unwrap();
    let written = common::read(&step.output);
    assert_eq!(written.len() as u64, rows);
    written
}

/// The value of an expression in a row with x = 6, y missing, t = "ab", u missing, `a b` = -2.5.
fn value(expr: &str) -> Cell {
    let row = vec![6.0.into(), "ab".into(), MISSING, MISSING, (-2.5).into()];
    let (_directory, step) = place(&[row]);
    let step = Derive { columns: vec![Derived::number("v", expr)], ..step };
    run(&step)[0][5].clone()
}

#[test]
fn expressions_have_the_values_of_algebra() {
    for (expr, expected) in [
        ("1 + 2 * 3 ^ 2", 19.0),
        ("(1 + 2) * 3", 9.0),
        ("2 ^ 3 ^ 2", 512.0),
        ("-2 ^ 2", -4.0),
        ("2 ^ -1", 0.5),
        ("7 - 2 - 1", 4.0),
        ("8 / 2 / 2", 2.0),
        ("-7 % 3", -1.0),
        ("1e3 + 2.5E-1 + .25", 1000.5),
        ("x", 6.0),
        ("`a b` * 2", -5.0),
        ("x - -x", 12.0),
        ("x > 5", 1.0),
        ("x >= 6 and x <= 6 and not x <> 6", 1.0),
        ("x < 6 or x == 5 or x != 6", 0.0),
        ("not 1 = 2", 1.0),
        ("x in (1, -2, 6)", 1.0),
        ("x in (1, 2)", 0.0),
        ("if(x > 5, 10, 20) + if(x < 5, 1, 2)", 12.0),
        ("min(3, 1, 2) + max(x, 7)", 8.0),
        ("abs(-3) + ceil(1.2) + floor(-1.2) + sign(-9) + round(2.5) + round(-2.5)", 2.0),
        ("round(17, 5) + round(1.26, 0.5)", 16.5),
        ("sqrt(16) + ln(exp(2)) + log10(1000) + sin(0) + cos(0)", 10.0),
        ("row()", 1.0),
        ("date(\"1970-01-11\") + datetime(\"1970-01-01T00:01:00Z\")", 70.0),
        ("t = \"ab\" and \"ab  \" = t and t < \"b\" and \"b\" > t", 1.0),
        ("t in (\"x\", \"ab\")", 1.0),
        ("t <> \"ab\"", 0.0),
        ("missing(y) + missing(u) + missing(t) + missing(x + y)", 3.0),
        ("coalesce(y, missing, x)", 6.0),
        ("y > 1 or x = 6", 1.0),
        ("x = 5 and y > 1", 0.0),
        ("not not not 0", 1.0),
    ] {
        assert_eq!(value(expr), Cell::from(expected), "{expr}");
    }
}

#[test]
fn missing_in_is_missing_out() {
    for expr in [
        "y",
        "y + 1",
        "1 ^ y",
        "y ^ 0",
        "y = y",
        "y <> 1",
        "not y",
        "-y",
        "abs(y)",
        "min(y, 1)",
        "max(1, y)",
        "y in (1)",
        "if(y, 1, 2)",
        "if(1, y, 2)",
        "y and 1",
        "0 or y",
        "x / 0",
        "0 / 0",
        "ln(0)",
        "ln(-1)",
        "log10(0)",
        "sqrt(-1)",
        "x % 0",
        "round(x, 0)",
        "u = \"a\"",
        "u <> t",
        "u in (\"a\")",
        "missing",
        "(0 - 8) ^ 0.5",
    ] {
        assert_eq!(value(expr), MISSING, "{expr}");
    }
}

#[test]
fn a_mistake_is_shown_with_its_place() {
    let schema = Schema::new(columns()).unwrap();
    let deep = "(".repeat(5000);
    let powers = "2^".repeat(5000);
    for (expr, position, expected) in [
        ("1 +", 4, "a value is needed"),
        ("1 + * 2", 5, "before \"*\""),
        ("(1 + 2", 7, "\")\" is missing"),
        ("1 2", 3, "operator is missing"),
        ("x + z1", 5, "no column \"z1\""),
        ("lm(x)", 1, "no function \"lm\""),
        ("if(x, 1)", 1, "does not take 2"),
        ("sqrt(1, 2)", 1, "does not take 2"),
        ("\u{e9} + $", 1, "no column"),
        ("x + \u{20ac}", 5, "not part of the language"),
        ("t + 1", 1, "a number is needed"),
        ("1 + t", 5, "a number is needed"),
        ("t", 1, "a number is needed"),
        ("x = \"a\"", 3, "a number with a text"),
        ("\"a\" = \"a\"", 5, "a text with a text"),
        ("x in (1, \"a\")", 10, "not a number"),
        ("t in (1)", 7, "not a text"),
        ("\"a", 1, "other half"),
        ("1.2.3", 1, "not a number"),
        ("1e", 1, "not a number"),
        ("date(\"2013-02-30\")", 6, "is not a date"),
        ("", 1, "a value is needed"),
        (&deep, 101, "nested"),
        (&powers, 201, "nested"),
    ] {
        let result = forebay_analytics::expression::Expression::new(expr, &schema, &[]);
        match result.map(|_| ()) {
            Err(Error::Expression { position: found, reason, expression }) => {
                assert!(reason.contains(expected), "{expr}: {reason}");
                assert_eq!((found, expression.as_str()), (position, expr), "{reason}");
            }
            other => panic!("{expr}: {other:?}"),
        }
    }
}

/// Rows over several pages and chunks.
fn many_rows() -> Vec<Vec<Cell>> {
    (0..3000)
        .map(|i| {
            let y = if i % 7 == 0 { MISSING } else { f64::from(i % 10).into() };
            vec![f64::from(i).into(), "ab".into(), y, MISSING, 0.0.into()]
        })
        .collect()
}

#[test]
fn a_copy_is_the_same() {
    let (_directory, step) = place(&many_rows());
    assert!(run(&step) == many_rows());
}

#[test]
fn rows_are_filtered_and_columns_chosen_and_made() {
    let (_directory, step) = place(&many_rows());
    let step: Derive = toml::from_str(&format!(
        r#"
        input = '{}'
        output = '{}'
        where = "y >= 5"
        keep = ["y", "x", "t"]
        drop = ["t*"]
        columns = [
            {{ name = "double", expr = "2 * x" }},
            {{ name = "quadruple", expr = "2 * double" }},
            {{ name = "size", cases = [{{ when = "double < 100", text = "low" }},
                                      {{ when = "double < 200", text = "medium" }}], otherwise = "hi" }},
            {{ name = "day", expr = "row()", kind = "date" }},
        ]"#,
        step.input.display(),
        step.output.display()
    ))
    .unwrap();
    let expected: Vec<Vec<Cell>> = many_rows()
        .into_iter()
        .filter_map(|row| match (&row[0], &row[2]) {
            (Cell::Number(x), Cell::Number(y)) if *y >= 5.0 => {
                let size = match x * 2.0 {
                    ..100.0 => "low",
                    ..200.0 => "medium",
                    _ => "hi",
                };
                let [y, x, double] = [*y, *x, x * 2.0].map(Cell::from);
                let Cell::Number(n) = x else { unreachable!() };
                Some(vec![y, x, double, (n * 4.0).into(), size.into(), (n + 1.0).into()])
            }
            _ => None,
        })
        .collect();
    assert!(run(&step) == expected);
    let reader = Reader::open(&step.output).unwrap();
    let kinds: Vec<ColumnType> =
        reader.schema().columns().iter().map(|column| column.kind).collect();
    assert_eq!(kinds[4..], [ColumnType::Text { width: 6 }, ColumnType::Date]);
}

#[test]
fn a_dropped_column_can_be_made_anew() {
    let (_directory, step) = place(&many_rows());
    let step = Derive {
        drop: vec!["x".into(), "y".into(), "u".into(), "a b".into()],
        columns: vec![Derived::number("x", "x + 1"), Derived::number("z", "x")],
        ..step
    };
    let written = run(&step);
    assert_eq!(written[5], [Cell::from("ab"), 6.0.into(), 6.0.into()]);
}

#[test]
fn bad_settings_are_refused_and_leave_nothing() {
    let (directory, step) = place(&many_rows());
    let case = Case { when: "x > 1".into(), text: "a".into() };
    let both = Derived { cases: vec![case.clone()], ..Derived::number("z", "1") };
    let neither = Derived { expr: None, ..Derived::number("z", "1") };
    let bad_case =
        Derived { expr: None, cases: vec![Case { when: "x >".into(), ..case }], ..neither.clone() };
    let with = |columns: Vec<Derived>| Derive { columns, ..step.clone() };
    for (step, expected) in [
        (with(vec![Derived::number("x", "1")]), "already exists"),
        (with(vec![Derived::number("z", "1"), Derived::number("z", "1")]), "already exists"),
        (with(vec![Derived::number("z", "w"), Derived::number("w", "1")]), "no column \"w\""),
        (with(vec![both]), "an expr"),
        (with(vec![neither]), "an expr"),
        (with(vec![bad_case]), "\"x >\", character 4"),
        (Derive { filter: Some("x +".into()), ..step.clone() }, "character 4"),
        (Derive { keep: Some(vec!["q*".into()]), ..step.clone() }, "stands for no column"),
        (Derive { keep: Some(vec!["q".into()]), ..step.clone() }, "does not exist"),
        (Derive { drop: vec!["*".into()], ..step.clone() }, "1 to 32767 columns"),
        (Derive { output: step.input.clone(), ..step.clone() }, "another file"),
    ] {
        let error = step.run(&mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(common::names(directory.path()), ["in"], "{error}");
    }
}

#[test]
fn a_damaged_input_leaves_no_output() {
    let (directory, step) = place(&many_rows());
    damage(&step.input);
    assert!(matches!(step.run(&mut |_| {}), Err(Error::Damaged { .. })));
    assert_eq!(common::names(directory.path()), ["in"]);
}

fn damage(path: &PathBuf) {
    let mut bytes = std::fs::read(path).unwrap();
    let near_the_end = bytes.len() - 50;
    bytes[near_the_end] ^= 1;
    std::fs::write(path, bytes).unwrap();
}
