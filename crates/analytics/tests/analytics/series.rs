//! Exponential smoothing against statsmodels, and forecasts of whole data sets.
//!
//! The expected numbers come from statsmodels 0.14 (`ETSModel(...).fit(maxiter=5000)` and its
//! `get_prediction`), an independent implementation, on published series. Maximum likelihood has one
//! answer, so a search may only find more, never less. Where statsmodels ends on a lower hill (it starts
//! from one point only), the number is its likelihood at the parameters found here.

use crate::common;
use std::path::PathBuf;

use crate::published::{AIR_PASSENGERS, NILE};
use forebay_analytics::dataset::Column;
use forebay_analytics::series::{
    self, ErrorKind, Fit, Model, Parameters, SeasonKind, Series, TrendKind,
};
use forebay_analytics::step::Forecast;
use forebay_analytics::step::forecast::{Family, Transform};
use forebay_analytics::step::summary::Order;
use forebay_analytics::{Cell, Error};
use tempfile::TempDir;

const A: ErrorKind = ErrorKind::Additive;
const M: ErrorKind = ErrorKind::Multiplicative;

fn model(error: ErrorKind, trend: TrendKind, season: SeasonKind) -> Model {
    Model { error, trend, season }
}

fn known(values: &[f64], season_length: usize) -> Series<'_> {
    Series { values, season_length, regressors: &[] }
}

fn fitted(model: Model, values: &[f64], season_length: usize) -> Fit {
    series::fit(model, &known(values, season_length)).unwrap()
}

#[track_caller]
fn close(found: f64, expected: f64, part: f64) {
    let error = (found - expected).abs() / expected.abs();
    assert!(error < part, "{found} where {expected} is expected");
}

#[test]
fn likelihoods_are_those_of_statsmodels_or_better() {
    use {SeasonKind as S, TrendKind as T};
    let (air, nile) = (&AIR_PASSENGERS[..], &NILE[..]);
    for (values, season_length, error, trend, season, log_likelihood) in [
        (nile, 1, A, T::None, S::None, -638.107_690),
        (nile, 1, M, T::None, S::None, -637.801_798),
        (nile, 1, A, T::Additive, S::None, -637.734_422),
        (nile, 1, A, T::Damped, S::None, -637.280_451),
        (air, 12, A, T::Additive, S::Additive, -564.983_781),
        (air, 12, A, T::Damped, S::Additive, -568.860_998),
        (air, 12, A, T::Additive, S::Multiplicative, -527.871_788),
        (air, 12, M, T::Additive, S::Multiplicative, -522.489_931),
        (air, 12, M, T::Damped, S::Multiplicative, -525.617_116),
        (air, 12, M, T::None, S::Multiplicative, -530.595_518),
    ] {
        let fit = fitted(model(error, trend, season), values, season_length);
        let gain = fit.log_likelihood - log_likelihood;
        assert!((-0.01..0.5).contains(&gain), "{}: {gain} more", fit.model.name());
    }
}

#[test]
fn simple_smoothing_of_the_nile_is_the_least_of_its_squares() {
    // By scipy.optimize.minimize (Nelder-Mead, tolerance 1e-9) of the sum of squares, written out.
    let fit = fitted(model(A, TrendKind::None, SeasonKind::None), &NILE, 1);
    close(fit.parameters.alpha, 0.245_728_117, 1e-5);
    close(fit.parameters.level, 1_110.748_12, 1e-5);
    close(fit.error_squares, 2_038_674.432_054_9, 1e-9);
    close(fit.log_likelihood, -638.025_862_341, 1e-9);
    let forecasts = series::forecast(&fit, 5, &[], 0.95, 1);
    for (found, (lower, upper)) in forecasts.iter().zip([
        (525.468_376, 1_085.164_147),
        (517.143_276, 1_093.489_247),
        (509.052_022, 1_101.580_502),
        (501.175_947, 1_109.456_576),
        (493.498_750, 1_117.133_775),
    ]) {
        close(found.mean, 805.316_261_53, 1e-6);
        close(found.lower, lower, 1e-5);
        close(found.upper, upper, 1e-5);
    }
}

fn air_parameters(smoothing: [f64; 3], states: [f64; 2], season: [f64; 12]) -> Parameters {
    let ([alpha, beta, gamma], [level, trend]) = (smoothing, states);
    let coefficients = Vec::new();
    Parameters { alpha, beta, gamma, phi: 1.0, level, trend, season: season.to_vec(), coefficients }
}

#[test]
fn a_search_from_the_answer_stays_at_the_answer() {
    let near = air_parameters(
        [0.252_556_38, 2.7e-5, 0.747_3],
        [109.408_882, 2.594_938_5],
        [0.0, 5.57, 18.05, 12.81, 4.07, 18.17, 30.36, 27.87, 13.66, -5.28, -19.89, -3.47],
    );
    let holt_winters = model(A, TrendKind::Additive, SeasonKind::Additive);
    let again = series::refit(holt_winters, &known(&AIR_PASSENGERS, 12), &near).unwrap();
    let whole = fitted(holt_winters, &AIR_PASSENGERS, 12);
    close(again.log_likelihood, whole.log_likelihood, 1e-6);
    assert!(again.evaluations < whole.evaluations);
}

#[test]
fn the_model_with_the_least_criterion_is_chosen() {
    let models: Vec<Model> = Model::all().collect();
    let air = series::choose(&models, &known(&AIR_PASSENGERS, 12)).unwrap();
    assert_eq!(air.fit.model, model(M, TrendKind::Additive, SeasonKind::Multiplicative));
    let best = models
        .iter()
        .filter_map(|&model| series::fit(model, &known(&AIR_PASSENGERS, 12)))
        .map(|fit| fit.aicc)
        .fold(f64::INFINITY, f64::min);
    assert_eq!(air.fit.aicc, best);
    let nile = series::choose(&models, &known(&NILE, 1)).unwrap();
    assert_eq!(nile.fit.model, model(M, TrendKind::None, SeasonKind::None));
    // Parameters are alpha, the level and the variance.
    close(nile.fit.aicc, 2.0 * 3.0 + 2.0 * 3.0 * 4.0 / 96.0 - 2.0 * nile.fit.log_likelihood, 1e-12);
    close(nile.fit.log_likelihood, -637.801_798, 1e-4);
}

#[test]
fn missing_values_are_passed_over() {
    let mut values = NILE;
    for t in [3, 40, 41, 42, 90] {
        values[t] = f64::NAN;
    }
    let fit = fitted(model(A, TrendKind::None, SeasonKind::None), &values, 1);
    assert_eq!((fit.n, fit.errors[41]), (95, 0.0));
    close(fit.parameters.alpha, 0.25, 0.3);
}

#[test]
fn series_that_do_not_suit_a_model_have_no_fit() {
    let simple = model(A, TrendKind::None, SeasonKind::None);
    assert!(series::fit(simple, &known(&[1.0, 2.0], 1)).is_none(), "too short");
    assert!(series::fit(simple, &known(&[2.0; 50], 1)).is_none(), "exact");
    assert!(series::fit(simple, &known(&[], 1)).is_none());
    let signs: Vec<f64> = (0..50).map(|t| f64::from(t % 7) - 3.0).collect();
    let product = model(M, TrendKind::None, SeasonKind::None);
    assert!(series::fit(product, &known(&signs, 1)).is_none(), "not positive");
    let seasonal = model(A, TrendKind::None, SeasonKind::Additive);
    assert!(series::fit(seasonal, &known(&NILE[..20], 12)).is_none(), "less than two seasons");
}

fn dataset(columns: Vec<Column>, rows: &[Vec<Cell>]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    common::write(&path, columns, rows);
    (directory, path)
}

/// Two series in mixed order, each with its time, and one that is too short.
fn two_series() -> (TempDir, PathBuf) {
    let columns = vec![Column::text("name", 8), Column::number("year"), Column::number("y")];
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for t in (0..100_u64).rev() {
        rows.push(vec!["nile".into(), t.into(), NILE[t as usize].into()]);
        rows.push(vec!["air".into(), t.into(), AIR_PASSENGERS[t as usize].into()]);
    }
    rows.push(vec!["brief".into(), 1.0.into(), 7.0.into()]);
    dataset(columns, &rows)
}

#[test]
fn each_class_is_forecast_by_itself_in_the_order_of_time() {
    let (directory, path) = two_series();
    let step = Forecast {
        class: vec!["name".to_owned()],
        time: Some("year".to_owned()),
        models: vec![Family::Simple],
        output: Some(directory.path().join("forecasts")),
        ..Forecast::new(path.clone(), "y", 1, 2)
    };
    let found = step.run(&mut |_| {}).unwrap();
    assert_eq!((found.rows, found.series.len(), found.left_out), (201, 2, 1));
    assert_eq!(found.series[0].class, ["air".into()]);
    assert_eq!(found.series[1].class, ["nile".into()]);
    close(found.series[1].forecasts[1].mean, 804.996_882, 1e-3);
    assert_eq!(found.table(&step.class).rows.len(), 4);
    let rows = common::read(&directory.path().join("forecasts"));
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[3][..2], ["nile".into(), 2.0.into()]);
    assert_eq!(rows[3][2], found.series[1].forecasts[1].mean.into());

    let sorted = Forecast { order: Order::Sorted, ..step };
    assert!(matches!(sorted.run(&mut |_| {}), Err(Error::NotSorted { .. })));
    assert!(!directory.path().join("forecasts").exists(), "no half-written output stays");
}

#[test]
fn a_regression_beside_the_smoothing_finds_its_coefficients() {
    // The Nile with a known effect of two columns on top; the last two rows are the future.
    let effect = |t: usize| {
        let (price, promotion) = ((t * 37 % 11) as f64, f64::from(u8::from(t % 9 == 4)));
        (price, promotion, -25.0 * price + 140.0 * promotion)
    };
    let rows: Vec<Vec<Cell>> = (0..102)
        .map(|t| {
            let (price, promotion, sum) = effect(t);
            let y = NILE.get(t).map(|y| y + sum);
            vec![y.into(), price.into(), promotion.into()]
        })
        .collect();
    let columns = ["y", "price", "promotion"].map(Column::number).to_vec();
    let (_directory, path) = dataset(columns, &rows);
    let step = Forecast {
        regressors: vec!["price".to_owned(), "promotion".to_owned()],
        models: vec![Family::Simple],
        ..Forecast::new(path, "y", 1, 2)
    };
    let found = step.run(&mut |_| {}).unwrap();
    let fit = &found.series[0].fit;
    // The effect does not change the likelihood that the columns reach without it.
    let plain: Vec<Vec<f64>> = [|t| (t * 37 % 11) as f64, |t| f64::from(u8::from(t % 9 == 4))]
        .map(|column: fn(usize) -> f64| (0..100).map(column).collect())
        .to_vec();
    let beside = Series { values: &NILE, season_length: 1, regressors: &plain };
    let without = series::fit(fit.model, &beside).unwrap();
    close(fit.log_likelihood, without.log_likelihood, 1e-6);
    for (i, effect) in [-25.0, 140.0].into_iter().enumerate() {
        let difference = fit.parameters.coefficients[i] - without.parameters.coefficients[i];
        close(difference, effect, 1e-3);
    }
    let level = fit.last.level;
    let (price, promotion, _) = effect(101);
    let c = &fit.parameters.coefficients;
    close(found.series[0].forecasts[1].mean, level + c[0] * price + c[1] * promotion, 1e-9);
}

#[test]
fn logarithms_come_back_as_values() {
    let rows: Vec<Vec<Cell>> = AIR_PASSENGERS.iter().map(|&y| vec![y.into()]).collect();
    let (_directory, path) = dataset(vec![Column::number("y")], &rows);
    let step = Forecast {
        transform: Transform::Logarithm,
        models: vec![Family::Additive],
        ..Forecast::new(path, "y", 12, 12)
    };
    let found = step.run(&mut |_| {}).unwrap();
    let series = &found.series[0];
    // The published actual values of 1960 grew by 39 a month on average; 1961 goes on from there.
    assert!(series.forecasts.iter().all(|f| f.lower < f.mean && f.mean < f.upper));
    assert!((430.0..480.0).contains(&series.forecasts[0].mean), "{:?}", series.forecasts[0]);
    // The criterion on the scale of the values: that of the logarithms and their doubled sum.
    let sum: f64 = AIR_PASSENGERS.iter().map(|y| y.ln()).sum();
    close(series.aicc, series.fit.aicc + 2.0 * sum, 1e-12);
}

#[test]
fn series_beyond_the_memory_are_refused() {
    let (_directory, path) = two_series();
    let memory = Some(forebay_base::ByteSize(1000));
    let step = Forecast { memory, ..Forecast::new(path.clone(), "y", 1, 2) };
    let error = step.run(&mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Setting { setting: "memory", .. }), "{error}");
    let step = Forecast { output: Some(path.clone()), ..Forecast::new(path.clone(), "y", 1, 2) };
    assert!(matches!(step.run(&mut |_| {}), Err(Error::Setting { setting: "output", .. })));
    let step = Forecast { horizon: 0, ..Forecast::new(path, "y", 1, 2) };
    assert!(matches!(step.run(&mut |_| {}), Err(Error::Setting { setting: "horizon", .. })));
}
