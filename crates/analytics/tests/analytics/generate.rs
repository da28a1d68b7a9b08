//! Generated data sets: the same for the same seed, as long as was said, and of the laws described.

use crate::common;
use std::fs;
use std::path::Path;

use forebay_analytics::amount::Scale;
use forebay_analytics::dataset::{ColumnType, Reader};
use forebay_analytics::step::generate::{Columns, Value};
use forebay_analytics::step::{Action as _, Buffers, Context, Job, Places};
use forebay_analytics::step::{Generate, Regression};
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;

/// The columns of a step as they are written in a file.
fn columns(text: &str) -> Vec<Columns> {
    #[derive(serde::Deserialize)]
    struct File {
        columns: Vec<Columns>,
    }
    toml::from_str::<File>(text).unwrap().columns
}

fn run(path: &Path, rows: u64, seed: u64, text: &str) {
    let step = Generate::new(path.to_owned(), rows, seed, columns(text));
    assert_eq!(step.run(Scale::FULL, &mut |_| {}).unwrap(), rows);
}

/// Values of the number columns by column, NaN where missing.
fn generated(rows: u64, text: &str) -> Vec<Vec<f64>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    run(&path, rows, 42, text);
    let rows = common::read(&path);
    (0..rows[0].len())
        .map(|column| {
            let value = |row: &Vec<Cell>| match &row[column] {
                Cell::Number(number) => *number,
                Cell::Missing | Cell::Text(_) => f64::NAN,
            };
            rows.iter().map(value).collect()
        })
        .collect()
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (count, sum) = values.into_iter().fold((0.0, 0.0), |(n, sum), x| (n + 1.0, sum + x));
    sum / count
}

fn deviation(values: &[f64]) -> f64 {
    let center = mean(values.iter().copied());
    mean(values.iter().map(|x| (x - center).powi(2))).sqrt()
}

#[track_caller]
fn close(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance, "{found}, not {expected}");
}

/// The first numbers of column x at seed 42, from an own implementation of SipHash-1-3, SplitMix64 and
/// xoshiro256++ in Python.
#[test]
fn streams_are_those_that_are_documented() {
    let values =
        &generated(4, "columns = [{ name = 'x', value.uniform = { min = 0, max = 1 } }]")[0];
    assert_eq!(
        values,
        &[0.7471257085922952, 0.2962149462256517, 0.6150527730632058, 0.10930139156707763]
    );
}

#[test]
fn a_column_depends_on_seed_and_name_alone() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| directory.path().join(name));
    let x = "{ name = 'x', missing = 0.1, value.normal = {} }";
    run(&a, 5000, 7, &format!("columns = [{x}]"));
    run(&b, 5000, 7, &format!("columns = [{x}]"));
    assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "one seed, two files");
    run(
        &c,
        3000,
        7,
        &format!("columns = [{{ prefix = 'w', count = 99, value.normal = {{}} }}, {x}]"),
    );
    let first: Vec<Cell> = common::read(&a).into_iter().map(|mut row| row.remove(0)).collect();
    let beside: Vec<Cell> = common::read(&c).into_iter().map(|mut row| row.remove(99)).collect();
    assert!(first[..3000] == beside, "the columns beside it or the number of rows changed it");
    run(&d, 5000, 8, &format!("columns = [{x}]"));
    assert!(common::read(&a) != common::read(&d), "two seeds, one file");
}

#[test]
fn its_length_is_known_before_it_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let wide = columns("columns = [{ prefix = 'x', count = 297, value.normal = {} }]");
    let narrow = columns("columns = [{ name = 'x', value.normal = {} }]");
    let scale = Scale::try_from(0.25).unwrap();
    for (columns, amount) in [
        (&wide, r#"rows = 1000"#),
        (&wide, r#"rows = { full = 1000 }"#),
        (&wide, r#"bytes = { full = "4 MiB" }"#),
        (&narrow, r#"bytes = "100 KiB""#),
        (&narrow, r#"bytes = "69632""#),
        (&narrow, r#"bytes = "65 KiB""#),
        (&narrow, r#"bytes = "1 B""#),
        (&narrow, r#"rows = 0"#),
    ] {
        let text = format!("output = '{}'\n{amount}\ncolumns = []", path.display());
        let step = Generate { columns: columns.clone(), ..toml::from_str(&text).unwrap() };
        let page_bytes = ByteSize::kib(64);
        let expected = step.bytes_at(scale, page_bytes).unwrap();
        let step = Generate { page_bytes: Some(page_bytes), ..step };
        let rows = step.run(scale, &mut |_| {}).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), expected, "{amount}");
        if let Some(bytes) = step.bytes {
            let schema = step.schema().unwrap();
            assert!(expected <= bytes.at(scale).0 || rows == 1, "{amount}: too long");
            let longer = schema.file_bytes(rows + 1, page_bytes.0).unwrap();
            assert!(longer > bytes.at(scale).0, "{amount}: one row more would fit");
        }
    }
}

#[test]
fn values_follow_their_distributions() {
    let rows = 100_000;
    // Mean and standard deviation of each in closed form.
    let lognormal_mean = 0.125_f64.exp();
    let expected = [
        ("uniform = { min = -1, max = 3 }", 1.0, 4.0 / 12_f64.sqrt()),
        ("normal = { mean = 5, sd = 2 }", 5.0, 2.0),
        (
            "lognormal = { mean = 0, sd = 0.5 }",
            lognormal_mean,
            lognormal_mean * 0.25_f64.exp_m1().sqrt(),
        ),
        ("exponential = { mean = 3 }", 3.0, 3.0),
        ("gamma = { shape = 4, scale = 0.5 }", 2.0, 1.0),
        ("poisson = { mean = 2.5 }", 2.5, 2.5_f64.sqrt()),
        ("integer = { min = 1, max = 6 }", 3.5, (35.0_f64 / 12.0).sqrt()),
        ("categories = { values = [10, 20, 40], weights = [1, 2, 1] }", 22.5, 118.75_f64.sqrt()),
    ];
    let texts = expected.iter().enumerate();
    let texts: Vec<String> =
        texts.map(|(i, (value, ..))| format!("{{ name = 'c{i}', value.{value} }}")).collect();
    let values = generated(rows, &format!("columns = [{}]", texts.join(",")));
    for (values, (text, mean_of, sd)) in values.iter().zip(expected) {
        let standard_error = sd / (rows as f64).sqrt();
        let found = (mean(values.iter().copied()), deviation(values));
        assert!((found.0 - mean_of).abs() < 5.0 * standard_error, "{text}: mean {}", found.0);
        assert!((found.1 / sd - 1.0).abs() < 0.03, "{text}: deviation {}", found.1);
    }
}

#[test]
fn keys_are_skewed_as_told() {
    let values = &generated(
        200_000,
        "columns = [{ name = 'k', value.zipf = { keys = 1000, exponent = 1.0 } }]",
    )[0];
    let count = |key: f64| values.iter().filter(|&&value| value == key).count() as f64;
    // The harmonic number of 1000 is 7.485471.
    close(count(1.0) / 200_000.0, 1.0 / 7.485_471, 0.003);
    close(count(1.0) / count(2.0), 2.0, 0.1);
    assert!(values.iter().all(|&key| (1.0..=1000.0).contains(&key) && key.fract() == 0.0));
}

#[test]
fn sequences_cycles_dates_and_texts_are_as_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    run(
        &path,
        5,
        1,
        r#"columns = [
        { name = "id", value.sequence = {} },
        { name = "panel", value.sequence = { start = 10, step = -1, each = 2, cycle = 2 } },
        { name = "day", kind = "date", value.sequence = { start = "1970-01-11", step = 0.5 } },
        { name = "at", kind = "datetime", value.integer = { min = "1970-01-01T00:00:07Z", max = 7 } },
        { name = "key", kind = { text = { width = 6 } }, label = "C", value.sequence = { start = 98 } },
        { name = "tone", kind = { text = { width = 2 } }, value.cycle = { values = ["do", "re", 3] } },
        { name = "gone", missing = 1.0, value.sequence = {} },
        { name = "word", kind = { text = { width = 30 } }, value = "letters" },
    ]"#,
    );
    let mut rows = common::read(&path);
    for row in &mut rows {
        let Some(Cell::Text(word)) = row.pop() else { panic!("a text") };
        assert!(word.len() == 30 && word.bytes().all(|byte| byte.is_ascii_lowercase()), "{word}");
    }
    let row = |id: f64, panel: f64, day: f64, key: &str, tone: &str| -> Vec<Cell> {
        vec![
            id.into(),
            panel.into(),
            day.into(),
            7.0.into(),
            key.into(),
            tone.into(),
            Cell::Missing,
        ]
    };
    assert_eq!(
        rows,
        [
            row(1.0, 10.0, 10.0, "C00098", "do"),
            row(2.0, 10.0, 10.0, "C00099", "re"),
            row(3.0, 9.0, 11.0, "C00100", "3"),
            row(4.0, 9.0, 11.0, "C00101", "do"),
            row(5.0, 10.0, 12.0, "C00102", "re"),
        ]
    );
    assert_eq!(Reader::open(&path).unwrap().schema().columns()[2].kind, ColumnType::Date);
}

#[test]
fn a_share_is_missing() {
    let values =
        &generated(50_000, "columns = [{ name = 'x', missing = 0.2, value.normal = {} }]")[0];
    close(mean(values.iter().map(|x| f64::from(u8::from(x.is_nan())))), 0.2, 0.01);
}

const PREDICTORS: &str =
    "{ name = 'x1', value.normal = {} }, { name = 'x2', value.integer = { min = 0, max = 1 } }";

#[test]
fn a_linear_response_is_found_again_by_regression() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let response = "{ name = 'y', value.response = { intercept = 2, terms = { x1 = 0.5, x2 = -1 }, noise = 0.3 } }";
    run(&path, 20_000, 3, &format!("columns = [{PREDICTORS}, {response}]"));
    let fit = Regression::new(path, "y", &["x1", "x2"]).run(&mut |_| {}).unwrap();
    for (coefficient, truth) in fit.coefficients.iter().zip([2.0, 0.5, -1.0]) {
        close(coefficient.estimate, truth, 4.0 * coefficient.standard_error);
    }
    close(fit.residual_std_error, 0.3, 0.006);
}

#[test]
fn responses_of_other_families_have_the_means_of_their_links() {
    let text = "{ name = 'count', value.response = { family = 'poisson', intercept = 1, terms = { x2 = 0.7 } } },
        { name = 'yes', value.response = { family = 'bernoulli', intercept = -1, terms = { x2 = 2 } } },
        { name = 'probit', value.response = { family = 'bernoulli', link = 'probit', intercept = -1, terms = { x2 = 2 } } },
        { name = 'cost', value.response = { family = 'gamma', intercept = 3, terms = { x2 = -1 }, noise = 0.5 } },
        { name = 'rate', value.response = { family = 'gamma', link = 'inverse', intercept = 1, terms = { x2 = 3 }, noise = 0.5 } }";
    let values = generated(200_000, &format!("columns = [{PREDICTORS}, {text}]"));
    let of = |column: usize, x2: f64| -> Vec<f64> {
        let pairs = values[column].iter().zip(&values[1]);
        pairs.filter(|(_, x)| **x == x2).map(|(y, _)| *y).collect()
    };
    let logit = |x: f64| 1.0 / (1.0 + (-x).exp());
    // The normal distribution up to -1 and 1 is 0.158655 and 0.841345.
    for (column, means, tolerance) in [
        (2, [1_f64.exp(), 1.7_f64.exp()], 0.05),
        (3, [logit(-1.0), logit(1.0)], 0.01),
        (4, [0.158_655, 0.841_345], 0.01),
        (5, [3_f64.exp(), 2_f64.exp()], 0.2),
        (6, [1.0, 0.25], 0.01),
    ] {
        for (x2, expected) in [0.0, 1.0].into_iter().zip(means) {
            close(mean(of(column, x2)), expected, tolerance);
        }
    }
    let cost = of(5, 0.0);
    close(deviation(&cost) / mean(cost.iter().copied()), 0.5, 0.02);
}

#[test]
fn groups_share_their_effect() {
    let values = generated(
        40_000,
        "columns = [{ name = 'school', value.sequence = { each = 100 } }, { name = 'x', value.cycle = { values = [0, 1] } },
         { name = 'y', value.response = { noise = 0.5, group = [{ by = 'school', sd = 1.2 }, { by = 'school', sd = 2, slope = 'x' }] } }]",
    );
    let mean_of = |school: &[f64], x: usize| mean(school.iter().skip(x).step_by(2).copied());
    let (starts, slopes): (Vec<f64>, Vec<f64>) = values[2]
        .chunks(100)
        .map(|school| (mean_of(school, 0), mean_of(school, 1) - mean_of(school, 0)))
        .unzip();
    // 400 schools: a standard deviation is found to 3.5 %; means of 50 add 0.005 to the variance.
    close(deviation(&starts), 1.2, 0.17);
    close(deviation(&slopes), 2.0, 0.28);
    let first: Vec<f64> = values[2][..100].iter().step_by(2).copied().collect();
    close(deviation(&first), 0.5, 0.2);
}

#[test]
fn a_seed_follows_from_run_job_and_output() {
    let root = tempfile::tempdir().unwrap();
    let columns = "columns = [{ name = 'x', value.normal = {} }]\nrows = { full = 1000 }";
    let first_of = |seed: u64, number: u64, output: &str| {
        let places = ["data", "work", "util"].map(|area| root.path().join(area));
        places.iter().for_each(|place| fs::create_dir_all(place).unwrap());
        let [data, work, util] = places;
        let context = Context {
            places: Places { data, work, util },
            job: Job { name: "j".into(), class: "c".into(), number, count: 2 },
            seed,
            scale: Scale::try_from(0.01).unwrap(),
            buffers: Buffers::default(),
            clock: &forebay_base::time::SystemClock,
        };
        let text = format!("output = '{output}'\n{columns}");
        let mut step: Generate = toml::from_str(&text).unwrap();
        step.prepare(&context).unwrap();
        let outcome = step.perform(&context, &mut |_| {}).unwrap();
        let path = root.path().join(output);
        let bytes = fs::metadata(&path).unwrap().len() as f64;
        assert_eq!((outcome.rows, outcome.figures["output_bytes"]), (10, bytes));
        common::read(&path)
    };
    let first = first_of(1, 0, "data/a");
    assert_eq!(first_of(1, 0, "data/a"), first);
    for (seed, number, output) in [(2, 0, "data/a"), (1, 1, "data/a"), (1, 0, "data/b")] {
        assert_ne!(first_of(seed, number, output), first, "{seed}, {number}, {output}");
    }
}

#[test]
fn bad_descriptions_are_refused_and_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("{ value.normal = {} }", "a name, or a prefix"),
        ("{ name = 'x', count = 2, value.normal = {} }", "a name, or a prefix"),
        ("{ name = 'x', value.normal = { sd = -1 } }", "sd of at least 0"),
        ("{ name = 'x', value.uniform = { min = 1, max = 1 } }", "min below max"),
        ("{ name = 'x', value.integer = { min = 2, max = 1 } }", "no larger than max"),
        ("{ name = 'x', value.integer = { min = 'May', max = 1 } }", "a date"),
        ("{ name = 'x', value.exponential = { mean = 0 } }", "above 0"),
        ("{ name = 'x', value.poisson = { mean = 0 } }", "x"),
        ("{ name = 'x', value.zipf = { keys = 0 } }", "keys"),
        ("{ name = 'x', value.sequence = { each = 0 } }", "at least 1"),
        ("{ name = 'x', value.cycle = { values = [] } }", "at least one value"),
        ("{ name = 'x', value.cycle = { values = ['a'] } }", "is a text"),
        ("{ name = 'x', value.categories = { values = [1], weights = [1, 2] } }", "as many"),
        ("{ name = 'x', value = 'letters' }", "text column"),
        ("{ name = 'x', missing = 1.5, value.normal = {} }", "a share"),
        ("{ name = 'x', value.normal = {} }, { name = 'x', value.normal = {} }", "one column only"),
        ("{ name = 'y', value.response = { terms = { x = 1 } } }", "described before"),
        ("{ name = 'y', value.response = { family = 'poisson', noise = 1 } }", "without noise"),
        ("{ name = 'y', value.response = { family = 'gamma', noise = 0 } }", "noise above 0"),
        (
            "{ name = 't', kind = { text = { width = 2 } }, value.sequence = { start = 98 } }",
            "width = 2",
        ),
        (
            "{ name = 't', kind = { text = { width = 2 } }, value.cycle = { values = ['abc'] } }",
            "longer",
        ),
    ] {
        let path = directory.path().join("a");
        let step = Generate::new(path, 5, 1, columns(&format!("columns = [{text}]")));
        let error = step.run(Scale::FULL, &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Setting { .. } | Error::Column { .. }), "{text}: {error:?}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
        assert_eq!(common::names(directory.path()), [""; 0], "{text}");
    }
    let step = Generate {
        rows: None,
        ..Generate::new("a".into(), 5, 1, vec![Columns::one("x", Value::Letters)])
    };
    assert!(step.run(Scale::FULL, &mut |_| {}).unwrap_err().to_string().contains("or else bytes"));
}
