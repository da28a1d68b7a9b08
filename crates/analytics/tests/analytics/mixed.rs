//! Mixed models against published values and another implementation.
//!
//! Data sets: see `tests/data/README.md`. The values agree with those printed in the documentation of
//! lme4 (`sleepstudy`, `cbpp`) and of the SAS procedure NLMIXED (`orange`); their further digits are
//! from the marginal likelihood written out densely in numpy and maximised with scipy 1.17.

use crate::common;
use std::path::{Path, PathBuf};

use crate::common::{close, import};
use forebay_analytics::dataset::Column;
use forebay_analytics::step::glmm::Counts;
use forebay_analytics::step::mixed::Method;
use forebay_analytics::step::model::ClassPredictor;
use forebay_analytics::step::nlmixed::Curve;
use forebay_analytics::step::summary::Order;
use forebay_analytics::step::{Glmm, Mixed, MixedFit, Nlmixed};
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal};

fn sleep(directory: &Path, slope: Option<&str>, method: Method) -> Mixed {
    let path = import(directory, "sleepstudy.csv");
    let slope = slope.map(str::to_owned);
    Mixed { slope, method, ..Mixed::new(path, "reaction", &["days"], "subject") }
}

fn fit(mixed: &Mixed) -> MixedFit {
    mixed.run(&mut |_| {}).unwrap()
}

#[test]
fn reactions_after_days_without_sleep_are_those_of_the_documentation() {
    let directory = tempfile::tempdir().unwrap();
    let known = [
        (None, Method::Reml, 1_786.465_085_394_919_5, [9.746_716_27, 0.804_221_4], 960.456_520_1),
        (None, Method::Ml, 1_794.078_643_005_224_4, [9.506_185_52, 0.801_735_4], 954.527_776_9),
        (
            Some("days"),
            Method::Reml,
            1_743.628_271_958_488_8,
            [6.824_556_35, 1.545_788_91],
            654.941_01,
        ),
        (
            Some("days"),
            Method::Ml,
            1_751.939_344_463_195_8,
            [6.632_277_15, 1.502_236_73],
            654.941_02,
        ),
    ];
    for (slope, method, deviance, errors, residual) in known {
        let found = fit(&sleep(directory.path(), slope, method));
        close(found.log_likelihood, -deviance / 2.0, 9);
        let estimates = [251.405_104_85, 10.467_285_96];
        for ((found, estimate), error) in found.estimates.iter().zip(estimates).zip(errors) {
            close(found.estimate, estimate, 8);
            close(found.standard_error, error, 5);
        }
        close(found.residual_variance, residual, 5);
        assert_eq!((found.groups, found.n, found.missing), (18, 180, 0));
    }
    let found = fit(&sleep(directory.path(), Some("days"), Method::Reml));
    close(found.intercept_variance, 612.089_9, 4);
    close(found.slope_variance.unwrap(), 35.071_66, 4);
    close(found.covariance.unwrap(), 9.604_34, 3);
    let found = fit(&sleep(directory.path(), None, Method::Reml));
    close(found.intercept_variance, 1_378.178_534_4, 5);
}

#[test]
fn groups_that_are_sorted_or_scattered_or_read_again_fit_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let model = sleep(directory.path(), Some("days"), Method::Reml);
    let expected = fit(&model);
    let rows = common::read(&model.input);
    let columns = || ["subject", "days", "reaction"].map(Column::number).to_vec();
    let scattered: Vec<Vec<Cell>> = (0..180).map(|i| rows[i * 77 % 180].clone()).collect();
    let path = directory.path().join("scattered");
    common::write(&path, columns(), &scattered);
    let other = Mixed { input: path, ..model.clone() };
    let sorted = Mixed { order: Order::Sorted, ..model.clone() };
    // Room for the rows of one group, not for the sums of all.
    let again = Mixed { memory: Some(ByteSize(500)), ..sorted.clone() };
    for model in [&other, &sorted, &again] {
        let found = fit(model);
        close(found.log_likelihood, expected.log_likelihood, 11);
        close(found.estimates[1].estimate, expected.estimates[1].estimate, 9);
    }
    let result = Mixed { order: Order::Sorted, ..other.clone() }.run(&mut |_| {});
    assert!(matches!(result, Err(Error::NotSorted { .. })), "{result:?}");
    let result = Mixed { memory: Some(ByteSize(500)), ..other }.run(&mut |_| {});
    assert!(matches!(result, Err(Error::Memory { .. })), "{result:?}");
    let result = Mixed { memory: Some(ByteSize(100)), ..sorted }.run(&mut |_| {});
    assert!(matches!(result, Err(Error::Memory { .. })), "{result:?}");
}

#[test]
fn groups_without_difference_have_no_variance() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let rows: Vec<Vec<Cell>> = (0..60)
        .map(|i| vec![Cell::from(u64::from(i % 6 == 0)), (i % 10).into(), (i / 6).into()])
        .collect();
    common::write(&path, ["y", "x", "g"].map(Column::number).to_vec(), &rows);
    let found = fit(&Mixed::new(path.clone(), "y", &["x"], "g"));
    assert!(found.intercept_variance < 1e-6, "{found:?}");
    let run = |model: Mixed| model.run(&mut |_| {});
    let model = Mixed::new(path, "y", &["x", "x"], "g");
    assert!(matches!(run(model.clone()), Err(Error::Collinear { ref column }) if column == "x"));
    let own = Mixed { predictors: vec![], group: "none".into(), ..model };
    assert!(matches!(run(own), Err(Error::Column { .. })));
}

fn cattle(directory: &Path, family: Counts) -> Glmm {
    let path = import(directory, "cbpp.csv");
    let class = vec![ClassPredictor::new("period")];
    Glmm { class, ..Glmm::new(path, family, "incidence", &[], "herd") }
}

#[test]
fn disease_of_cattle_by_herd_is_that_of_the_documentation() {
    let directory = tempfile::tempdir().unwrap();
    let laplace = (
        1,
        -92.026_281_864_757,
        [-1.398_532_15, -0.992_332_75, -1.128_672_09, -1.580_313_84, 0.642_261_44],
        [0.232_472_03, 0.306_642_49, 0.326_637_83, 0.427_436_48, 0.178_560_89],
    );
    let quadrature = (
        25,
        -91.983_369_037_311,
        [-1.399_230_44, -0.991_403_71, -1.127_819_49, -1.579_470_75, 0.647_518_47],
        [0.233_511_62, 0.306_767_98, 0.326_768_35, 0.427_594_4, 0.180_523_52],
    );
    for (points, log_likelihood, estimates, errors) in [laplace, quadrature] {
        let mut model = cattle(directory.path(), Counts::Binomial);
        model.trials = Some("size".into());
        model.quadrature_points = points;
        for order in [Order::Any, Order::Sorted] {
            let found = Glmm { order, ..model.clone() }.run(&mut |_| {}).unwrap();
            close(found.log_likelihood, log_likelihood, 9);
            for (i, found) in found.estimates.iter().enumerate() {
                close(found.estimate, estimates[i], 5);
                close(found.standard_error, errors[i], 3);
            }
            close(found.group_deviation, estimates[4], 5);
            close(found.group_deviation_error, errors[4], 3);
            assert_eq!((found.groups, found.n), (15, 56));
        }
    }
}

#[test]
fn counts_with_an_exposure_are_poisson() {
    let directory = tempfile::tempdir().unwrap();
    let mut rows = common::read(&import(directory.path(), "cbpp.csv"));
    for row in &mut rows {
        let Cell::Number(size) = row[2] else { panic!("{row:?}") };
        row.push(size.ln().into());
    }
    let path = directory.path().join("a");
    let names = ["herd", "incidence", "size", "period", "log_size"];
    common::write(&path, names.map(Column::number).to_vec(), &rows);
    let model = Glmm {
        input: path,
        offset: Some("log_size".into()),
        quadrature_points: 25,
        ..cattle(directory.path(), Counts::Poisson)
    };
    let found = model.run(&mut |_| {}).unwrap();
    close(found.log_likelihood, -90.244_513_116_373, 9);
    let known = [-1.649_003_09, -0.843_181_46, -0.965_402_16, -1.389_998_47];
    for (found, known) in found.estimates.iter().zip(known) {
        close(found.estimate, known, 5);
    }
    close(found.group_deviation, 0.494_732_37, 4);
}

fn oranges(directory: &Path) -> Nlmixed {
    let start = [("asymptote", 190.0), ("midpoint", 700.0), ("scale", 350.0)];
    let path = import(directory, "orange.csv");
    Nlmixed::new(path, "circumference", "age", Curve::Logistic, &start, "asymptote", "tree")
}

#[test]
fn growth_of_orange_trees_is_that_of_the_documentation() {
    let directory = tempfile::tempdir().unwrap();
    // Laplace's approximation is exact here.
    for points in [1, 7] {
        let model = Nlmixed { quadrature_points: points, ..oranges(directory.path()) };
        let found = model.run(&mut |_| {}).unwrap();
        close(found.log_likelihood, -131.571_885_100_365, 9);
        let known = [(192.053_148, 15.657_66), (727.906_32, 35.248_6), (348.073_043, 27.079_8)];
        for (found, (estimate, error)) in found.estimates.iter().zip(known) {
            close(found.estimate, estimate, 5);
            close(found.standard_error, error, 3);
        }
        close(found.group_variance.estimate, 1_001.488, 4);
        close(found.residual_variance.estimate, 61.512_8, 4);
        close(found.residual_variance.standard_error, 15.882, 2);
        assert_eq!((found.groups, found.n), (5, 35));
    }
}

#[test]
fn starts_and_points_out_of_bounds_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let model = oranges(directory.path());
    let refused = |model: Nlmixed, name: &str| {
        let result = model.run(&mut |_| {});
        assert!(
            matches!(result, Err(Error::Setting { setting, .. }) if setting == name),
            "{result:?}"
        );
    };
    refused(Nlmixed { random: "rate".into(), ..model.clone() }, "random");
    refused(Nlmixed { start: [("asymptote".to_owned(), 1.0)].into(), ..model.clone() }, "start");
    refused(Nlmixed { quadrature_points: 0, ..model.clone() }, "quadrature_points");
    let text = Nlmixed { predictor: "none".into(), ..model.clone() };
    assert!(matches!(text.run(&mut |_| {}), Err(Error::Column { .. })));
    let hasty = Nlmixed { iterations_max: 1, ..model };
    assert!(matches!(hasty.run(&mut |_| {}), Err(Error::NotConverged { .. })));
}

/// Rows `y, x, g` of `groups` groups of 12 rows: `y` from the group's normal deviate, `x` and chance.
fn generated(
    path: &Path,
    groups: u32,
    random: &mut StdRng,
    mut draw: impl FnMut(f64, f64, &mut StdRng) -> f64,
) -> PathBuf {
    let mut rows = Vec::new();
    for group in 0..groups {
        let effect: f64 = StandardNormal.sample(random);
        for _ in 0..12 {
            let x: f64 = random.random_range(0.0..4.0);
            rows.push(vec![draw(effect, x, random).into(), x.into(), f64::from(group).into()]);
        }
    }
    common::write(path, ["y", "x", "g"].map(Column::number).to_vec(), &rows);
    path.to_owned()
}

#[track_caller]
fn within_four_errors(found: f64, truth: f64, error: f64, seed: u64) {
    assert!((found - truth).abs() < 4.0 * error, "seed {seed}: {found} where {truth} was put in");
}

#[test]
fn generated_effects_are_recovered() {
    let seed = 77;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let mut random = StdRng::seed_from_u64(seed);
    generated(&path, 300, &mut random, |effect, x, random| {
        let noise: f64 = StandardNormal.sample(random);
        3.0 - 2.0 * x + 1.5 * effect + 0.5 * noise
    });
    let found = fit(&Mixed::new(path.clone(), "y", &["x"], "g"));
    within_four_errors(found.estimates[1].estimate, -2.0, found.estimates[1].standard_error, seed);
    within_four_errors(found.intercept_variance, 2.25, 2.25 * (2.0_f64 / 300.0).sqrt(), seed);
    within_four_errors(found.residual_variance, 0.25, 0.25 * (2.0_f64 / 3300.0).sqrt(), seed);

    generated(&path, 300, &mut random, |effect, x, random| {
        let p = 1.0 / (1.0 + (0.5 - 0.7 * x - 1.2 * effect).exp());
        f64::from(u8::from(random.random::<f64>() < p))
    });
    let found =
        Glmm::new(path.clone(), Counts::Binomial, "y", &["x"], "g").run(&mut |_| {}).unwrap();
    for (found, truth) in found.estimates.iter().zip([-0.5, 0.7]) {
        within_four_errors(found.estimate, truth, found.standard_error, seed);
    }
    within_four_errors(found.group_deviation, 1.2, found.group_deviation_error, seed);

    // A random parameter that does not enter linearly.
    generated(&path, 100, &mut random, |effect, x, random| {
        let noise: f64 = StandardNormal.sample(random);
        10.0 / (1.0 + (-(x - 2.0 - 0.4 * effect) / 0.5).exp()) + 0.2 * noise
    });
    let start = [("asymptote", 8.0), ("midpoint", 1.8), ("scale", 0.7)];
    let model = Nlmixed::new(path, "y", "x", Curve::Logistic, &start, "midpoint", "g");
    let found = model.run(&mut |_| {}).unwrap();
    for (found, truth) in found.estimates.iter().zip([10.0, 2.0, 0.5]) {
        within_four_errors(found.estimate, truth, found.standard_error, seed);
    }
    let variance = &found.group_variance;
    within_four_errors(variance.estimate, 0.16, variance.standard_error, seed);
}
