//! Logistic and generalised linear models against published values and another implementation.
//!
//! Data sets: see `tests/data/README.md`. Digits beyond those that R's documentation prints are from
//! statsmodels 0.15 (`GLM`, `negativebinomial`) on the same data; variances of survey designs are from
//! the formula written out in numpy.

use crate::common;
use std::path::PathBuf;

use crate::common::{close, import};
use forebay_analytics::dataset::Column;
use forebay_analytics::step::logistic::Survey;
use forebay_analytics::step::model::{ClassPredictor, Estimate, Family, Link};
use forebay_analytics::step::{Glm, GlmFit, Logistic, LogisticFit};
use forebay_analytics::{Cell, Error, Result};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tempfile::TempDir;

#[track_caller]
fn check(found: &[Estimate], expected: &[(&str, f64, f64)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, &(term, estimate, standard_error)) in found.iter().zip(expected) {
        assert_eq!(found.term, term);
        close(found.estimate, estimate, 7);
        close(found.standard_error, standard_error, 6);
        let statistic = found.statistic.unwrap();
        close(statistic, estimate / standard_error, 6);
    }
}

fn logistic(directory: &TempDir, response: &str, predictors: &[&str]) -> Logistic {
    Logistic::new(import(directory.path(), "mtcars.csv"), response, predictors)
}

fn fit(logistic: &Logistic) -> LogisticFit {
    logistic.run(&mut |_| {}).unwrap()
}

#[test]
fn transmissions_of_cars_are_explained_by_power_and_weight() {
    let directory = tempfile::tempdir().unwrap();
    let found = fit(&logistic(&directory, "am", &["hp", "wt"]));
    check(
        &found.estimates,
        &[
            ("intercept", 18.866_298_717_204_145, 7.443_558_060_205_311),
            ("hp", 0.036_255_596_082_216_55, 0.017_734_153_650_769_54),
            ("wt", -8.083_475_182_444_632, 3.068_675_113_054_706),
        ],
    );
    close(found.estimates[1].p.unwrap(), 0.040_914_646_459_032_1, 6);
    close(found.log_likelihood, -5.029_555_236_133_493, 10);
    close(found.null_log_likelihood, -43.229_733_276_857_8 / 2.0, 10);
    close(found.aic, 16.059, 4);
    assert_eq!((found.n, found.missing, found.design_df), (32, 0, None));
}

#[test]
fn levels_are_compared_with_their_reference() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = logistic(&directory, "am", &["mpg"]);
    model.class = vec![ClassPredictor::new("cyl")];
    let found = fit(&model);
    let expected = [
        ("intercept", -8.342_127_186_627_655, 5.131_053_347_585_58),
        ("mpg", 0.369_920_505_570_848_66, 0.211_262_383_325_411),
        ("cyl=6", 0.731_587_936_453_628_9, 1.413_635_228_849_42),
        ("cyl=8", 0.701_612_203_809_329_8, 1.956_213_747_583_304_8),
    ];
    check(&found.estimates, &expected);
    // Another reference is another parametrisation of the same model.
    model.class[0].reference = Some("8".to_owned());
    let other = fit(&model);
    close(other.log_likelihood, found.log_likelihood, 10);
    assert_eq!(other.estimates[2].term, "cyl=4");
    close(other.estimates[2].estimate, -0.701_612_203_809_329_8, 6);
    model.class[0].reference = Some("5".to_owned());
    let result = model.run(&mut |_| {});
    assert!(
        matches!(result, Err(Error::Column { ref column, .. }) if column == "cyl"),
        "{result:?}"
    );
}

/// The cars with weights 1, 2, 3, 1..., two strata in turn, clusters of three neighbours.
fn surveyed(directory: &TempDir) -> PathBuf {
    let mut rows = common::read(&import(directory.path(), "mtcars.csv"));
    for (i, row) in rows.iter_mut().enumerate() {
        let i = i as u64;
        row.extend([Cell::from(1 + i % 3), (i % 2).into(), format!("c{}", i / 3).into()]);
    }
    let names = ["mpg", "cyl", "hp", "wt", "am", "weight", "stratum"];
    let mut columns: Vec<Column> = names.map(Column::number).to_vec();
    columns.push(Column::text("cluster", 4));
    let path = directory.path().join("surveyed");
    common::write(&path, columns, &rows);
    path
}

#[test]
fn variances_follow_the_design_of_a_survey() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Logistic::new(surveyed(&directory), "am", &["hp", "wt"]);
    model.weight = Some("weight".to_owned());
    let estimates = [15.881_422_804_403_41, 0.034_825_493_344_532_416, -7.089_544_315_611_177];
    let names = ["intercept", "hp", "wt"];
    let plain = [4.006_666_015_051_051, 0.013_107_090_211_481_91, 1.787_957_773_429_947_9];
    let known = |errors: [f64; 3]| [0, 1, 2].map(|i| (names[i], estimates[i], errors[i]));
    check(&fit(&model).estimates, &known(plain));
    let (strata, cluster) = (Some("stratum".to_owned()), Some("cluster".to_owned()));
    for (survey, errors, df) in [
        (
            Survey { strata: strata.clone(), cluster: cluster.clone() },
            [5.737_020_54, 0.008_170_53, 1.930_937_49],
            20,
        ),
        (Survey { strata, cluster: None }, [5.617_779_57, 0.008_487_47, 1.881_561_6], 30),
        (Survey { strata: None, cluster }, [5.770_904_9, 0.008_032_36, 1.868_781_21], 10),
    ] {
        model.survey = Some(survey);
        let found = fit(&model);
        assert_eq!(found.design_df, Some(df));
        for (found, expected) in found.estimates.iter().zip(known(errors)) {
            close(found.estimate, expected.1, 7);
            close(found.standard_error, expected.2, 5);
        }
    }
    // A stratum of its own for every cluster leaves nothing to tell their variance from.
    model.survey =
        Some(Survey { strata: Some("cluster".to_owned()), cluster: Some("cluster".to_owned()) });
    assert!(matches!(model.run(&mut |_| {}), Err(Error::Column { .. })));
}

#[test]
fn separated_responses_have_no_estimate() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let columns = || vec![Column::number("y"), Column::number("x"), Column::number("z")];
    let row = |y: f64, x: f64, z: f64| vec![Cell::from(y), x.into(), z.into()];
    // Completely by x; then by x but for rows that share one value.
    let complete: Vec<_> =
        (0..20).map(|i| row(f64::from(i / 10), f64::from(i), f64::from(i * 7 % 5))).collect();
    let mut quasi = complete.clone();
    quasi.extend([row(1.0, 9.0, 1.0), row(0.0, 10.0, 2.0)]);
    quasi.retain(|row| row[1] != Cell::from(9.0) || row[0] == Cell::from(1.0));
    quasi.retain(|row| row[1] != Cell::from(10.0) || row[0] == Cell::from(0.0));
    for rows in [
        &complete,
        &complete.iter().map(|r| vec![r[0].clone(), r[0].clone(), r[2].clone()]).collect(),
    ] {
        common::write(&path, columns(), rows);
        let result = Logistic::new(path.clone(), "y", &["x", "z"]).run(&mut |_| {});
        assert!(
            matches!(result, Err(Error::Separated { ref column }) if column == "x"),
            "{result:?}"
        );
    }
    // Overlapping by one pair of rows is enough for an estimate.
    common::write(&path, columns(), &quasi);
    assert!(Logistic::new(path.clone(), "y", &["x"]).run(&mut |_| {}).is_ok());
    // Quasi-complete: all rows with x = 1 are events, the others mixed.
    let quasi: Vec<_> = (0..40)
        .map(|i| {
            row(
                f64::from(i32::from(i % 4 == 0 || i % 3 == 0)),
                f64::from(i32::from(i % 4 == 0)),
                f64::from(i % 7),
            )
        })
        .collect();
    common::write(&path, columns(), &quasi);
    let result = Logistic::new(path.clone(), "y", &["x", "z"]).run(&mut |_| {});
    assert!(matches!(result, Err(Error::Separated { ref column }) if column == "x"), "{result:?}");
    let all_events: Vec<_> = (0..9).map(|i| row(1.0, f64::from(i), 0.0)).collect();
    common::write(&path, columns(), &all_events);
    let result = Logistic::new(path, "y", &["x"]).run(&mut |_| {});
    assert!(matches!(result, Err(Error::Separated { .. })), "{result:?}");
}

#[test]
fn unsuitable_columns_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let run = |model: &Logistic| model.run(&mut |_| {});
    let path = import(directory.path(), "warpbreaks.csv");
    let result = run(&Logistic::new(path.clone(), "breaks", &[]));
    assert!(
        matches!(result, Err(Error::Column { ref column, .. }) if column == "breaks"),
        "{result:?}"
    );
    let result = run(&Logistic::new(path.clone(), "wool", &["breaks"]));
    assert!(
        matches!(result, Err(Error::Column { ref column, .. }) if column == "wool"),
        "{result:?}"
    );
    let event =
        Logistic { event: Some("B".into()), ..Logistic::new(path.clone(), "wool", &["breaks"]) };
    let found = fit(&event);
    assert!(found.estimates[1].estimate < 0.0, "wool B breaks less often");
    let wrong = Logistic { event: Some(1.0.into()), ..event.clone() };
    assert!(matches!(run(&wrong), Err(Error::Column { .. })));
    let twice = Logistic { predictors: vec!["breaks".into(); 2], ..event.clone() };
    assert!(matches!(run(&twice), Err(Error::Collinear { ref column }) if column == "breaks"));
    let few = Logistic { iterations_max: 1, ..event };
    assert!(matches!(run(&few), Err(Error::NotConverged { iterations: 1 })));
}

fn warp_breaks(directory: &TempDir, family: Family) -> Glm {
    let path = import(directory.path(), "warpbreaks.csv");
    let tension = ClassPredictor { column: "tension".into(), reference: Some("L".into()) };
    Glm {
        class: vec![ClassPredictor::new("wool"), tension],
        ..Glm::new(path, family, "breaks", &[])
    }
}

fn run(glm: &Glm) -> GlmFit {
    glm.run(&mut |_| {}).unwrap()
}

#[test]
fn breaks_of_warp_are_poisson_by_log_and_by_identity() {
    let directory = tempfile::tempdir().unwrap();
    let mut glm = warp_breaks(&directory, Family::Poisson);
    let found = run(&glm);
    check(
        &found.estimates,
        &[
            ("intercept", 3.691_963_144_940_795, 0.045_410_794_342_801_02),
            ("wool=B", -0.205_988_442_638_620_1, 0.051_571_242_783_729_876),
            ("tension=H", -0.518_488_496_511_559_5, 0.063_959_519_395_899_74),
            ("tension=M", -0.321_320_431_600_609_36, 0.060_265_916_695_480_87),
        ],
    );
    close(found.deviance, 210.391_888_762_453_85, 10);
    close(found.null_deviance.unwrap(), 297.372_211_804_605_2, 10);
    close(found.aic, 493.055_966, 8);
    close(found.pearson, 213.076_094_198_221_3, 8);
    assert_eq!((found.dispersion, found.residual_df), (1.0, 50));
    glm.link = Some(Link::Identity);
    let found = run(&glm);
    close(found.deviance, 214.697_166_681_253_3, 10);
    close(found.estimates[2].estimate, -14.385_024_673_623_064, 6);
}

#[test]
fn theta_of_a_negative_binomial_model_is_estimated_or_given() {
    let directory = tempfile::tempdir().unwrap();
    let mut glm = warp_breaks(&directory, Family::NegativeBinomial);
    let found = run(&glm);
    close(found.theta.unwrap(), 9.944_385_2, 6);
    close(found.log_likelihood, -199.381_903_889_003_7, 10);
    check(
        &found.estimates,
        &[
            ("intercept", 3.673_354_566_5, 0.097_903_048_18),
            ("wool=B", -0.186_211_052_3, 0.100_961_400_29),
            ("tension=H", -0.511_395_515_2, 0.123_739_865_5),
            ("tension=M", -0.299_227_238_5, 0.121_728_497_9),
        ],
    );
    glm.theta = Some(10.0);
    let found = run(&glm);
    close(found.deviance, 53.941_867_090_129_58, 10);
    close(found.null_deviance.unwrap(), 75.773_797_558_376_8, 10);
    close(found.log_likelihood, -199.382_138_218_193_92, 10);
}

#[test]
fn clotting_times_are_gamma_by_inverse_and_by_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut glm =
        Glm::new(import(directory.path(), "clotting.csv"), Family::Gamma, "lot1", &["log_u"]);
    let found = run(&glm);
    check(
        &found.estimates,
        &[
            ("intercept", -0.016_554_381_726_200_273, 0.000_927_549_138_658_195_6),
            ("log_u", 0.015_343_114_910_324_668, 0.000_414_959_642_666_335_3),
        ],
    );
    close(found.deviance, 0.016_729_715_178_483_2, 9);
    close(found.dispersion, 0.002_446_036_242_093_296, 9);
    // As summary(glm(lot1 ~ log(u), family = Gamma)) prints it.
    assert!((found.aic - 37.99).abs() < 0.005, "{}", found.aic);
    glm.link = Some(Link::Log);
    let found = run(&glm);
    close(found.estimates[0].estimate, 5.503_230_227_515_95, 7);
    close(found.deviance, 0.162_608_294_497_330_72, 8);
}

#[test]
fn a_gaussian_model_is_a_regression_and_may_have_a_log_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = import(directory.path(), "mtcars.csv");
    let mut glm = Glm::new(path, Family::Gaussian, "mpg", &["hp", "wt"]);
    let found = run(&glm);
    check(
        &found.estimates,
        &[
            ("intercept", 37.227_270_116_447_215, 1.598_787_537_999_393_4),
            ("hp", -0.031_772_946_982_162_88, 0.009_029_709_675_855_811),
            ("wt", -3.877_830_742_404_679_4, 0.632_733_494_377_394_5),
        ],
    );
    close(found.log_likelihood, -74.326_169_412_820_66, 10);
    close(found.estimates[1].p.unwrap(), 0.001_451, 3);
    glm.link = Some(Link::Log);
    let found = run(&glm);
    close(found.deviance, 138.315_438_025_752_77, 9);
    close(found.estimates[2].estimate, -0.208_512_746_485_346_9, 6);
}

#[test]
fn events_out_of_trials_and_offsets_count() {
    let directory = tempfile::tempdir().unwrap();
    let path = import(directory.path(), "cbpp.csv");
    let glm = Glm {
        trials: Some("size".into()),
        class: vec![ClassPredictor::new("period")],
        ..Glm::new(path.clone(), Family::Binomial, "incidence", &[])
    };
    let found = run(&glm);
    check(
        &found.estimates,
        &[
            ("intercept", -1.269_023_489_367_149_7, 0.144_919_762_468_154_77),
            ("period=2", -1.170_762_725_140_381_8, 0.291_467_789_118_791_2),
            ("period=3", -1.301_405_333_859_010_6, 0.312_881_430_987_386),
            ("period=4", -1.782_278_635_341_655_3, 0.413_056_457_603_226_35),
        ],
    );
    close(found.deviance, 114.101_691_440_855_57, 9);
    close(found.null_deviance.unwrap(), 154.817_464_300_649_14, 9);
    close(found.log_likelihood, -99.029_199_489_363_38, 9);

    let mut rows = common::read(&import(directory.path(), "warpbreaks.csv"));
    for (i, row) in rows.iter_mut().enumerate() {
        row.push(f64::ln((1 + i % 5) as f64).into());
    }
    let columns = vec![
        Column::number("breaks"),
        Column::text("wool", 1),
        Column::text("tension", 1),
        Column::number("o"),
    ];
    let path = directory.path().join("offset");
    common::write(&path, columns, &rows);
    let glm = Glm {
        offset: Some("o".into()),
        class: vec![ClassPredictor::new("wool")],
        ..Glm::new(path, Family::Poisson, "breaks", &[])
    };
    let found = run(&glm);
    close(found.estimates[1].estimate, -0.255_998_863_213_282_6, 8);
    close(found.deviance, 710.771_633_548_223_6, 9);
    assert_eq!(found.null_deviance, None);
}

#[test]
fn generated_coefficients_are_recovered() {
    let seed = 20_240_601;
    let mut random = StdRng::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let truth = [0.5, -0.8, 0.3];
    let rows: Vec<Vec<Cell>> = (0..20_000)
        .map(|_| {
            let (x, z): (f64, f64) =
                (random.random_range(-2.0..2.0), random.random_range(0.0..9.0));
            let eta = truth[0] + truth[1] * x + truth[2] * z;
            let event = random.random::<f64>() < 1.0 / (1.0 + (-eta).exp());
            vec![f64::from(u8::from(event)).into(), x.into(), z.into()]
        })
        .collect();
    let columns = vec![Column::number("y"), Column::number("x"), Column::number("z")];
    common::write(&path, columns, &rows);
    let found = Logistic::new(path, "y", &["x", "z"]).run(&mut |_| {}).unwrap();
    for (found, truth) in found.estimates.iter().zip(truth) {
        let error = (found.estimate - truth).abs() / found.standard_error;
        assert!(error < 4.0, "seed {seed}: {found:?} where {truth} was put in");
    }
}

#[test]
fn responses_and_settings_that_do_not_go_together_are_refused() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let path = import(directory.path(), "mtcars.csv");
    let result = |glm: Glm| glm.run(&mut |_| {});
    let glm = Glm::new(path, Family::Poisson, "mpg", &["wt"]);
    assert!(
        matches!(result(glm.clone()), Err(Error::Column { ref column, .. }) if column == "mpg")
    );
    let glm = Glm { family: Family::Gamma, ..glm };
    result(glm.clone())?;
    let refused = |glm: Glm, name: &str| {
        let result = result(glm);
        assert!(
            matches!(result, Err(Error::Setting { setting, .. }) if setting == name),
            "{result:?}"
        );
    };
    refused(Glm { link: Some(Link::Logit), ..glm.clone() }, "link");
    refused(Glm { trials: Some("cyl".into()), ..glm.clone() }, "trials");
    refused(Glm { theta: Some(1.0), ..glm.clone() }, "theta");
    let negative = Glm { weight: Some("am".into()), ..glm };
    assert!(matches!(result(negative), Err(Error::Column { ref column, .. }) if column == "am"));
    Ok(())
}

#[test]
fn a_gaussian_fit_does_not_depend_on_the_units_of_its_response() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let columns = || vec![Column::number("y"), Column::number("x")];
    let noise = |i: u32| f64::from(i * 37 % 11) - 5.0;
    let mut slopes = Vec::new();
    for unit in [1.0, 1e-12, 1e12] {
        let row =
            |i: u32| vec![(unit * (2.0 * f64::from(i) + noise(i))).into(), f64::from(i).into()];
        common::write(&path, columns(), &(0..40).map(row).collect::<Vec<_>>());
        let found = run(&Glm::new(path.clone(), Family::Gaussian, "y", &["x"]));
        slopes.push(found.estimates[1].estimate / unit);
    }
    close(slopes[1], slopes[0], 10);
    close(slopes[2], slopes[0], 10);
    // An exact fit and a constant response come to an end too.
    for (intercept, slope) in [(3.0, 0.25), (0.1, 0.0)] {
        let row = |i: u32| vec![(intercept + slope * f64::from(i)).into(), f64::from(i).into()];
        common::write(&path, columns(), &(0..40).map(row).collect::<Vec<_>>());
        let found = run(&Glm::new(path.clone(), Family::Gaussian, "y", &["x"]));
        assert!((found.estimates[1].estimate - slope).abs() < 1e-12, "{found:?}");
    }
    let negative: Vec<Vec<Cell>> = (0..9_u64).map(|i| vec![(-1.0).into(), i.into()]).collect();
    common::write(&path, columns(), &negative);
    let log = Glm { link: Some(Link::Log), ..Glm::new(path, Family::Gaussian, "y", &["x"]) };
    assert!(matches!(log.run(&mut |_| {}), Err(Error::NotConverged { iterations: 0 })));
}
