//! Summary and regression against certified values and hand calculations.
//!
//! The certified values are those of the Statistical Reference Datasets of the U.S. National Institute
//! of Standards and Technology: NumAcc1 to NumAcc4 (univariate), Norris, Longley, Wampler1 (linear
//! regression).

use crate::common;
use std::path::PathBuf;

use forebay_analytics::dataset::Column;
use forebay_analytics::step::summary::{Order, Statistics};
use forebay_analytics::step::{Regression, RegressionFit, Summary, SummaryTable};
use forebay_analytics::{Cell, Error, Result};
use tempfile::TempDir;

fn dataset(columns: Vec<Column>, rows: &[Vec<Cell>]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    common::write(&path, columns, rows);
    (directory, path)
}

fn numbers(names: &[&str], rows: &[Vec<f64>]) -> (TempDir, PathBuf) {
    let rows: Vec<Vec<Cell>> =
        rows.iter().map(|row| row.iter().map(|&number| number.into()).collect()).collect();
    dataset(names.iter().map(|name| Column::number(name)).collect(), &rows)
}

/// Whether `a` has `digits` correct digits.
#[track_caller]
fn close(a: f64, certified: f64, digits: i32) {
    let error = ((a - certified) / certified).abs();
    assert!(error < 10_f64.powi(-digits), "{a} where {certified} is certified");
}

fn statistics(values: &[f64]) -> Statistics {
    let rows: Vec<Vec<f64>> = values.iter().map(|&value| vec![value]).collect();
    let (_directory, path) = numbers(&["x"], &rows);
    let table = Summary::new(path, &[], &["x"]).run(&mut |_| {}).unwrap();
    table.classes[0].statistics[0].clone()
}

#[test]
fn certified_means_and_deviations_are_met() {
    let alternating = |base: f64| {
        let mut values = vec![base + 0.2];
        (0..500).for_each(|_| values.extend([base + 0.1, base + 0.3]));
        values
    };
    for (values, mean, std_dev, digits) in [
        (vec![10_000_001.0, 10_000_003.0, 10_000_002.0], 10_000_002.0, 1.0, 14),
        (alternating(1.0), 1.2, 0.1, 13),
        (alternating(1_000_000.0), 1_000_000.2, 0.1, 8),
        (alternating(10_000_000.0), 10_000_000.2, 0.1, 7),
    ] {
        let found = statistics(&values);
        close(found.mean.unwrap(), mean, 14);
        close(found.std_dev.unwrap(), std_dev, digits);
        assert_eq!(found.n, values.len() as u64);
    }
}

#[test]
fn sums_keep_small_terms() {
    let found = statistics(&[1.0, 1e100, 1.0, -1e100]);
    assert_eq!((found.sum, found.mean), (2.0, Some(0.5)));
    assert_eq!((found.min, found.max), (Some(-1e100), Some(1e100)));
}

#[test]
fn statistics_that_a_few_values_lack_are_missing() {
    let found = statistics(&[f64::NAN, 3.0, f64::NAN]);
    assert_eq!((found.n, found.missing, found.mean), (1, 2, Some(3.0)));
    assert_eq!(found.std_dev, None);
    let found = statistics(&[f64::NAN]);
    assert_eq!((found.n, found.mean, found.min, found.max, found.sum), (0, None, None, None, 0.0));
}

fn classes() -> Vec<Vec<Cell>> {
    [
        ("b", 1.0, 10.0),
        ("a", 2.0, 1.0),
        ("", 1.0, 5.0),
        ("a", 2.0, 3.0),
        ("b", 1.0, f64::NAN),
        ("a", f64::NAN, 7.0),
        ("b", -1.0, 20.0),
    ]
    .map(|(text, number, value)| {
        let text = if text.is_empty() { Cell::Missing } else { text.into() };
        vec![text, number.into(), value.into()]
    })
    .to_vec()
}

fn summarise(rows: &[Vec<Cell>], order: Order, classes_max: usize) -> Result<SummaryTable> {
    let columns = vec![Column::text("t", 4), Column::number("n"), Column::number("x")];
    let (_directory, path) = dataset(columns, rows);
    let summary = Summary::new(path, &["t", "n"], &["x"]);
    Summary { order, classes_max, ..summary }.run(&mut |_| {})
}

#[test]
fn classes_come_in_order_and_missing_is_a_class() {
    let table = summarise(&classes(), Order::Any, 10).unwrap();
    let found: Vec<_> = table
        .classes
        .iter()
        .map(|c| (c.values.clone(), c.rows, c.statistics[0].n, c.statistics[0].sum))
        .collect();
    let expected = [
        (vec![Cell::Missing, 1.0.into()], 1, 1, 5.0),
        (vec!["a".into(), Cell::Missing], 1, 1, 7.0),
        (vec!["a".into(), 2.0.into()], 2, 2, 4.0),
        (vec!["b".into(), (-1.0).into()], 1, 1, 20.0),
        (vec!["b".into(), 1.0.into()], 2, 1, 10.0),
    ];
    assert_eq!(found, expected);
    let table = table.table();
    assert_eq!(table.columns.len(), 10);
    assert_eq!(table.rows[2][2], Cell::from("x"));
}

#[test]
fn sorted_rows_give_the_same_summary() {
    let mut rows = classes();
    rows.sort_by_key(|row| {
        let text = match &row[0] {
            Cell::Text(text) => text.clone(),
            Cell::Missing | Cell::Number(_) => String::new(),
        };
        let number = match row[1] {
            Cell::Number(number) => number as i64,
            Cell::Missing | Cell::Text(_) => i64::MIN,
        };
        (text, number)
    });
    let sorted = summarise(&rows, Order::Sorted, 10).unwrap();
    assert_eq!(sorted, summarise(&rows, Order::Any, 10).unwrap());
}

#[test]
fn rows_that_are_not_sorted_as_said_are_refused() {
    let result = summarise(&classes(), Order::Sorted, 10);
    assert!(matches!(result, Err(Error::NotSorted { row: 2, .. })), "{result:?}");
}

#[test]
fn too_many_classes_are_refused() {
    for order in [Order::Any, Order::Sorted] {
        let mut rows = classes();
        rows.truncate(1);
        rows.push(vec!["c".into(), 1.0.into(), 1.0.into()]);
        assert!(summarise(&rows, order, 2).is_ok());
        let result = summarise(&rows, order, 1);
        assert!(matches!(result, Err(Error::TooManyClasses { limit: 1 })), "{result:?}");
    }
}

fn fit(names: &[&str], rows: &[Vec<f64>]) -> Result<RegressionFit> {
    let (_directory, path) = numbers(names, rows);
    Regression::new(path, names[0], &names[1..]).run(&mut |_| {})
}

#[test]
fn norris_is_met() {
    const ROWS: [(f64, f64); 36] = [
        (0.1, 0.2),
        (338.8, 337.4),
        (118.1, 118.2),
        (888.0, 884.6),
        (9.2, 10.1),
        (228.1, 226.5),
        (668.5, 666.3),
        (998.5, 996.3),
        (449.1, 448.6),
        (778.9, 777.0),
        (559.2, 558.2),
        (0.3, 0.4),
        (0.1, 0.6),
        (778.1, 775.5),
        (668.8, 666.9),
        (339.3, 338.0),
        (448.9, 447.5),
        (10.8, 11.6),
        (557.7, 556.0),
        (228.3, 228.1),
        (998.0, 995.8),
        (888.8, 887.6),
        (119.6, 120.2),
        (0.3, 0.3),
        (0.6, 0.3),
        (557.6, 556.8),
        (339.3, 339.1),
        (888.0, 887.2),
        (998.5, 999.0),
        (778.9, 779.0),
        (10.2, 11.1),
        (117.6, 118.3),
        (228.9, 229.2),
        (668.4, 669.1),
        (449.2, 448.9),
        (0.2, 0.5),
    ];
    let fit = fit(&["y", "x"], &ROWS.map(|(y, x)| vec![y, x])).unwrap();
    let [intercept, slope] = &fit.coefficients[..] else { panic!("{fit:?}") };
    close(intercept.estimate, -0.262_323_073_774_029, 11);
    close(intercept.standard_error, 0.232_818_234_301_152, 12);
    close(slope.estimate, 1.002_116_818_020_45, 13);
    close(slope.standard_error, 0.429_796_848_199_937e-3, 12);
    close(fit.residual_std_error, 0.884_796_396_144_373, 12);
    close(fit.r_squared.unwrap(), 0.999_993_745_883_712, 13);
    close(fit.f.unwrap(), 5_436_385.540_790_79, 9);
}

const LONGLEY: [[f64; 7]; 16] = [
    [60323.0, 83.0, 234_289.0, 2356.0, 1590.0, 107_608.0, 1947.0],
    [61122.0, 88.5, 259_426.0, 2325.0, 1456.0, 108_632.0, 1948.0],
    [60171.0, 88.2, 258_054.0, 3682.0, 1616.0, 109_773.0, 1949.0],
    [61187.0, 89.5, 284_599.0, 3351.0, 1650.0, 110_929.0, 1950.0],
    [63221.0, 96.2, 328_975.0, 2099.0, 3099.0, 112_075.0, 1951.0],
    [63639.0, 98.1, 346_999.0, 1932.0, 3594.0, 113_270.0, 1952.0],
    [64989.0, 99.0, 365_385.0, 1870.0, 3547.0, 115_094.0, 1953.0],
    [63761.0, 100.0, 363_112.0, 3578.0, 3350.0, 116_219.0, 1954.0],
    [66019.0, 101.2, 397_469.0, 2904.0, 3048.0, 117_388.0, 1955.0],
    [67857.0, 104.6, 419_180.0, 2822.0, 2857.0, 118_734.0, 1956.0],
    [68169.0, 108.4, 442_769.0, 2936.0, 2798.0, 120_445.0, 1957.0],
    [66513.0, 110.8, 444_546.0, 4681.0, 2637.0, 121_950.0, 1958.0],
    [68655.0, 112.6, 482_704.0, 3813.0, 2552.0, 123_366.0, 1959.0],
    [69564.0, 114.2, 502_601.0, 3931.0, 2514.0, 125_368.0, 1960.0],
    [69331.0, 115.7, 518_173.0, 4806.0, 2572.0, 127_852.0, 1961.0],
    [70551.0, 116.9, 554_894.0, 4007.0, 2827.0, 130_081.0, 1962.0],
];

#[test]
fn longley_is_met() {
    let names = ["y", "x1", "x2", "x3", "x4", "x5", "x6"];
    let mut rows: Vec<Vec<f64>> = LONGLEY.iter().map(|row| row.to_vec()).collect();
    // Rows with a missing value change nothing but their count.
    rows.insert(3, vec![f64::NAN, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    rows.push(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f64::NAN]);
    let fit = fit(&names, &rows).unwrap();
    // Estimate, standard error, and the two-sided p to the digits that R prints.
    let certified = [
        (-3_482_258.634_595_82, 890_420.383_607_373, 0.003_560),
        (15.061_872_271_373_3, 84.914_925_774_766_9, 0.863_141),
        (-0.358_191_792_925_910e-1, 0.334_910_077_722_432e-1, 0.312_681),
        (-2.020_229_803_816_83, 0.488_399_681_651_699, 0.002_535),
        (-1.033_226_867_173_59, 0.214_274_163_161_675, 0.000_944),
        (-0.511_041_056_535_807e-1, 0.226_073_200_069_370, 0.826_212),
        (1_829.151_464_613_55, 455.478_499_142_212, 0.003_037),
    ];
    for (found, (estimate, standard_error, p)) in fit.coefficients.iter().zip(certified) {
        close(found.estimate, estimate, 9);
        close(found.standard_error, standard_error, 9);
        assert!((found.p.unwrap() - p).abs() < 6e-7, "{found:?}");
    }
    assert_eq!((fit.n, fit.missing, fit.residual_df), (16, 2, 9));
    close(fit.residual_std_error, 304.854_073_561_965, 9);
    close(fit.r_squared.unwrap(), 0.995_479_004_577_296, 12);
    close(fit.r_squared_adjusted.unwrap(), 0.992_465_007_628_827, 12);
    close(fit.f.unwrap(), 330.285_339_234_588, 9);
    close(fit.f_p.unwrap(), 4.984e-10, 3);
}

#[test]
fn a_polynomial_is_found_exactly() {
    let rows: Vec<Vec<f64>> = (0..=20)
        .map(|x| {
            let powers: Vec<f64> = (1..=5).map(|power| f64::from(x).powi(power)).collect();
            [vec![1.0 + powers.iter().sum::<f64>()], powers].concat()
        })
        .collect();
    let fit = fit(&["y", "x1", "x2", "x3", "x4", "x5"], &rows).unwrap();
    for found in &fit.coefficients {
        close(found.estimate, 1.0, 7);
    }
    close(fit.r_squared.unwrap(), 1.0, 14);
}

#[test]
fn collinear_and_constant_columns_are_named() {
    for (third, n) in [(3.0, 1_000), (0.1, 20_000)] {
        let rows: Vec<Vec<f64>> = (0..n)
            .map(|i| {
                let (a, b) = (f64::from(i % 17), f64::from(i % 5) * 0.1);
                vec![f64::from(i), a, b, third, a + 2.0 * b]
            })
            .collect();
        let (_directory, path) = numbers(&["y", "a", "b", "constant", "sum"], &rows);
        let run =
            |predictors: &[&str]| Regression::new(path.clone(), "y", predictors).run(&mut |_| {});
        assert!(run(&["a", "b"]).is_ok());
        for (predictors, expected) in [
            (&["a", "b", "sum"][..], "sum"),
            (&["sum", "a", "b"], "b"),
            (&["constant", "a"], "constant"),
            (&["a", "b", "constant"], "constant"),
            (&["a", "a"], "a"),
        ] {
            match run(predictors) {
                Err(Error::Collinear { column }) => assert_eq!(column, expected),
                other => panic!("{predictors:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn models_without_enough_rows_or_columns_are_refused() {
    let rows = [vec![1.0, 1.0], vec![2.0, 3.0], vec![f64::NAN, 4.0]];
    let result = fit(&["y", "x"], &rows);
    assert!(matches!(result, Err(Error::TooFewRows { rows: 2, needed: 3 })), "{result:?}");
    let result = fit(&["y"], &rows.map(|row| row[..1].to_vec()));
    assert!(matches!(result, Err(Error::Setting { setting: "predictors", .. })), "{result:?}");
}

#[test]
fn a_constant_response_and_an_exact_fit_have_no_ratios() {
    let rows: Vec<Vec<f64>> = (0..5).map(|i| vec![2.0, f64::from(i)]).collect();
    let fit = fit(&["y", "x"], &rows).unwrap();
    assert_eq!((fit.r_squared, fit.f, fit.coefficients[1].t), (None, None, None));
    assert_eq!(fit.coefficients[0].estimate, 2.0);
    let json = serde_json::to_string(&fit).unwrap();
    assert_eq!(serde_json::from_str::<RegressionFit>(&json).unwrap(), fit);
}
