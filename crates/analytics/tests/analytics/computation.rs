//! The steps that compute and hardly read: projections, dense matrices, score code.

use crate::common;
use std::f64::consts::PI;

use forebay_analytics::Error;
use forebay_analytics::amount::Scale;
use forebay_analytics::dataset::Column;
use forebay_analytics::linear::Matrix;
use forebay_analytics::step::dense::{Factorisation, factorise};
use forebay_analytics::step::projection::{Cohort, Projected};
use forebay_analytics::step::score_code::{Code, Tree, slot};
use forebay_analytics::step::{Dense, Projection, ScoreCode};
use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

#[track_caller]
fn close(found: f64, expected: f64, part: f64) {
    let error = (found - expected).abs() / expected.abs();
    assert!(error < part, "{found} where {expected} is expected");
}

fn member(contribution: f64) -> Vec<Cohort> {
    vec![Cohort { age: 40, salary: 40_000.0, balance: 20_000.0, contribution }]
}

fn project(step: &Projection) -> Projected {
    step.run(Scale::FULL, &mut |_| {}).unwrap()
}

#[test]
fn sure_returns_give_the_closed_form() {
    let step = Projection {
        cohorts: member(0.1),
        log_return_deviation: 0.0,
        paths: Some(10.into()),
        ..Projection::default()
    };
    let found = &project(&step).cohorts[0];
    // 20000 r^27 + 4000 (r^27 - g^27) / (r - g) with r = e^0.04 and g = 1.02.
    close(found.balance_mean, 296_807.483_696_606_53, 1e-12);
    assert!(found.balance_deviation < 1e-6);
    // By scipy.integrate.quad of Gompertz' force of mortality.
    close(found.annuity, 12.309_745_570_199, 1e-12);
    let rate = 296_807.483_696_606_53 / 12.309_745_570_199 / (40_000.0 * 1.02_f64.powi(26));
    for found in found.replacement {
        close(found, rate, 1e-12);
    }
}

#[test]
fn mortality_is_that_of_gompertz() {
    let step = Projection::default();
    for (from, to, expected) in [
        (25, 67, 0.777_155_217_698_564),
        (65, 67, 0.955_027_472_700_005),
        (67, 90, 0.106_292_126_912_788),
    ] {
        close(step.survival(from, to), expected, 1e-12);
    }
    let found = project(&Projection { paths: Some(100_000.into()), ..step });
    assert_eq!(found.cohorts.len(), 9);
    for cohort in found.cohorts {
        // Three standard errors of a part drawn 100,000 times.
        let allowed = 3.0 * (0.25_f64 / 1e5).sqrt();
        assert!((cohort.surviving - cohort.surviving_expected).abs() < allowed, "{cohort:?}");
    }
}

#[test]
fn an_account_without_contributions_is_lognormal() {
    let paths = 400_000;
    let step = Projection {
        cohorts: member(0.0),
        paths: Some(paths.into()),
        seed: Some(3),
        ..Projection::default()
    };
    let found = &project(&step).cohorts[0];
    // Mean and deviation 20000 e^(27 (0.04 + 0.12^2 / 2)) and so on; within four standard errors.
    let (mean, deviation) = (71_531.096_665_859, 49_310.275_763_317);
    let error = deviation / f64::from(paths as u32).sqrt();
    assert!((found.balance_mean - mean).abs() < 4.0 * error, "{}", found.balance_mean);
    close(found.balance_deviation, deviation, 0.02);
    let pension = 12.309_745_570_199 * 40_000.0 * 1.02_f64.powi(26);
    for (found, expected) in found.replacement.iter().zip([
        21_117.520_566,
        38_673.789_149,
        58_893.591_021,
        89_684.903_903,
        164_245.374_002,
    ]) {
        close(found * pension, expected, 0.01);
    }
}

#[test]
fn a_projection_takes_the_memory_it_is_given() {
    let step = Projection { memory: Some(ByteSize::mib(1).into()), ..Projection::default() };
    let found = project(&step);
    assert_eq!(found.paths, (1 << 20) / (8 * 42 + 16 * 9));
    assert!(((1 << 20) - 480..=1 << 20).contains(&found.memory_bytes));
    assert_eq!(found, project(&step), "the same seed");
    let step = Projection { retirement_age: 60, ..step };
    let error = step.run(Scale::FULL, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Setting { setting: "age", .. }), "{error}");
}

#[test]
fn known_matrices_have_known_factors() {
    // Second differences: determinant n + 1, eigenvalues 2 - 2 cos(k pi / (n + 1)).
    let n = 60;
    let matrix = Matrix::from_fn(n, n, |i, j| match i.abs_diff(j) {
        0 => 2.0,
        1 => -1.0,
        _ => 0.0,
    });
    for kind in Dense::default().factorisations {
        let found = factorise(kind, &matrix).unwrap();
        assert!(found.residual < 1e-14, "{found:?}");
        close(found.log_determinant, ((n + 1) as f64).ln(), 1e-11);
        if let Some((least, largest)) = found.extremes {
            close(least, 2.0 - 2.0 * (PI / 61.0).cos(), 1e-11);
            close(largest, 2.0 - 2.0 * (60.0 * PI / 61.0).cos(), 1e-13);
        }
    }
    let indefinite = Matrix::from_fn(3, 3, |i, j| if i == j { i as f64 - 1.0 } else { 0.0 });
    let error = factorise(Factorisation::Cholesky, &indefinite).unwrap_err();
    assert!(matches!(error, Error::Inexact { what: "cholesky", .. }), "{error}");
}

#[test]
fn matrices_fill_the_memory_and_are_exact() {
    let step = Dense { memory: Some(ByteSize::kib(480).into()), repeats: 2, ..Dense::default() };
    let (n, made) = step.run(Scale::FULL, &mut |_| {}).unwrap();
    assert_eq!((n, made.len()), (101, 8));
    assert_ne!(made[0].log_determinant, made[4].log_determinant, "another matrix each time");
    let step = Dense { n: Some(1.into()), ..Dense::default() };
    assert!(matches!(step.run(Scale::FULL, &mut |_| {}), Err(Error::Setting { .. })));
}

/// The score of a tree by walking it, without code.
fn walk(tree: &Tree, weights: &[f32], row: &[f64]) -> f64 {
    let mut node = 1;
    while node <= tree.conditions.len() {
        let condition = tree.conditions[node - 1];
        let below = row[usize::from(condition.column)] < f64::from(condition.threshold);
        node = 2 * node + usize::from(!below);
    }
    let looked_up = weights[slot(row[usize::from(tree.column)], tree.salt, weights.len())];
    f64::from(looked_up) + f64::from(tree.leaves[node - 1 - tree.conditions.len()])
}

#[test]
fn score_code_scores_as_its_trees_do() {
    let mut random = StdRng::seed_from_u64(11);
    for (depth, columns) in [(1, 1), (3, 5), (7, 64)] {
        let bytes = 40 * Code::tree_bytes(depth) + 1;
        let code = Code::generate(bytes, 5000, depth, columns, &mut StdRng::seed_from_u64(77));
        assert_eq!((code.trees(), code.code_bytes(), code.weights().len()), (40, bytes, 1024));
        // The trees again, drawn as they were.
        let mut again = StdRng::seed_from_u64(77);
        for &weight in code.weights() {
            assert_eq!(weight, again.random_range(-1.0..1.0_f32));
        }
        let trees: Vec<Tree> = (0..40).map(|_| Tree::draw(depth, columns, &mut again)).collect();
        for _ in 0..200 {
            let missing = random.random_range(0..10);
            let mut row: Vec<f64> = (0..columns).map(|_| random.random_range(-2.0..2.0)).collect();
            if let Some(value) = row.get_mut(missing) {
                *value = f64::NAN;
            }
            let (score, instructions) = code.score(&row);
            let expected: f64 = trees.iter().map(|tree| walk(tree, code.weights(), &row)).sum();
            assert!((score - expected).abs() < 1e-9, "{score} where {expected} is expected");
            assert_eq!(instructions, 40 * (u64::from(depth) + 2) + 1);
        }
    }
}

#[test]
fn rows_of_a_data_set_are_scored_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    let rows: Vec<_> = (0..500_u64)
        .map(|i| vec!["x".into(), (i as f64 * 7.0).into(), ((i * i % 97) as f64).into()])
        .collect();
    common::write(
        &path,
        vec![Column::text("t", 2), Column::number("a"), Column::number("b")],
        &rows,
    );
    let step = ScoreCode {
        input: Some(path.clone()),
        rows: 400.into(),
        memory: Some(ByteSize::mib(2).into()),
        ..ScoreCode::default()
    };
    let found = step.run(Scale::FULL, &mut |_| {}).unwrap();
    assert_eq!(found.scores.len(), 400);
    assert!(found.code_bytes + found.weights_bytes <= 2 << 20);
    assert!(found.code_bytes + found.weights_bytes > (2 << 20) - 25_000);
    let distinct: std::collections::BTreeSet<u64> =
        found.scores.iter().map(|score| score.to_bits()).collect();
    assert!(distinct.len() > 300, "{}", distinct.len());
    assert_eq!(step.run(Scale::FULL, &mut |_| {}).unwrap(), found, "the same seed");
    let named = ScoreCode { columns: vec!["t".to_owned()], ..step };
    assert!(matches!(named.run(Scale::FULL, &mut |_| {}), Err(Error::Column { .. })));
}
