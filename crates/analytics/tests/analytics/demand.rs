//! The model process of a calibration job, and temporary files without one.

use crate::common;
use std::path::{Path, PathBuf};

use forebay_analytics::amount::Scale;
use forebay_analytics::dataset::Column;
use forebay_analytics::step::Demand;
use forebay_analytics::step::demand::DemandResult;
use forebay_analytics::step::{Action as _, Buffers, Context, Job, Places};
use forebay_analytics::temporary::FileSizes;
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use forebay_base::time::SystemClock;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

const PERIODS: u64 = 48;
const PRICE: f64 = -12.0;
const PROMOTION: f64 = 30.0;

/// A fact table in the order of time: 12 products, about 40 rows of each in each of 48 periods, whose
/// quantity has a level, a season of 12, a known effect of price and promotion, and noise of 3.
fn write_facts(path: &Path) {
    let mut random = StdRng::seed_from_u64(4711);
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for period in 0..PERIODS {
        let terms: Vec<(f64, f64, f64)> = (0..12)
            .map(|_| {
                let promotion = f64::from(u8::from(random.random_bool(0.25)));
                (random.random_range(4.0..8.0), promotion, random.random_range(-3.0..3.0))
            })
            .collect();
        for _ in 0..480 {
            let product = random.random_range(0..12_usize);
            let (price, promotion, noise) = terms[product];
            let season = 8.0 * (period as f64 * std::f64::consts::TAU / 12.0).sin();
            let quantity = 200.0 + season + PRICE * price + PROMOTION * promotion + noise;
            rows.push(vec![
                format!("p{product:02}").into(),
                period.into(),
                (quantity + random.random_range(-1.0..1.0)).into(),
                price.into(),
                promotion.into(),
            ]);
        }
    }
    let numbers = ["period", "quantity", "price", "promotion"].map(Column::number);
    let columns = [vec![Column::text("product", 6)], numbers.to_vec()].concat();
    common::write(path, columns, &rows);
}

fn job(number: u64) -> Job {
    Job { name: format!("model-{number}"), class: "model".into(), number, count: 4 }
}

/// A small process: 60 temporary files of 20 to 300 KiB.
fn small(root: &Path) -> Demand {
    for area in ["work", "mart"] {
        std::fs::create_dir_all(root.join(area)).unwrap();
    }
    let path = |name: &str| -> PathBuf { root.join(name) };
    Demand {
        series: 3.into(),
        temp_files: 60.into(),
        temp_bytes: FileSizes {
            median: ByteSize::kib(100).into(),
            least: ByteSize::kib(20),
            most: ByteSize::kib(300).into(),
            ..FileSizes::default()
        },
        fits_per_file: 2,
        output_files: 7.into(),
        extract_bytes: ByteSize::kib(600).into(),
        seed: Some(9),
        ..Demand::new(path("facts"), path("work"), path("mart"))
    }
}

fn run(number: u64) -> (tempfile::TempDir, DemandResult) {
    let root = tempfile::tempdir().unwrap();
    write_facts(&root.path().join("facts"));
    let result = small(root.path()).run(&job(number), Scale::FULL, &mut |_| {}).unwrap();
    (root, result)
}

#[test]
fn known_effects_are_found_with_their_standard_errors() {
    let (_root, result) = run(0);
    assert_eq!(result.models.len(), 3);
    for model in &result.models {
        assert!((PERIODS - 3..=PERIODS).contains(&model.periods), "{model:?}");
        for ((estimate, error), known) in model.coefficients.iter().zip([PRICE, PROMOTION]) {
            let error = error.unwrap();
            // Least squares on 48 periods with noise of deviation 1.73 has errors of about 0.25 (price)
            // and 0.6 (promotion); a bootstrap of 40 fits is within a factor of two of that.
            let expected = if known == PRICE { 0.25 } else { 0.6 };
            assert!((0.4..2.5).contains(&(error / expected)), "{model:?}");
            assert!((estimate - known).abs() < 4.5 * expected, "{model:?}");
        }
        assert!(model.error_part < 0.03, "{model:?}");
        assert!(model.candidates > 1000, "{model:?}");
    }
    // 20 files of each series, two fits each, and the models to choose from.
    assert!((120..=120 + 18 * 3).contains(&result.fitted), "{}", result.fitted);
}

#[test]
fn every_process_reads_its_own_part_of_the_table() {
    let (_root, one) = run(0);
    let (_root, other) = run(3);
    assert!(one.rows.abs_diff(other.rows) < 500, "{} and {}", one.rows, other.rows);
    assert!((500_000..700_000).contains(&one.extract_bytes), "{}", one.extract_bytes);
    assert_ne!(one.models, other.models);
}

#[test]
fn what_a_process_finds_does_not_depend_on_where_its_files_are() {
    let ((_one, first), (_other, second)) = (run(1), run(1));
    assert_eq!(first, second);
}

#[test]
fn temporary_files_are_gone_and_outputs_stay() {
    let (root, result) = run(2);
    assert!(common::names(&root.path().join("work")).is_empty());
    let mart = common::names(&root.path().join("mart"));
    assert_eq!(mart.len(), 7);
    let rows = common::read(&root.path().join("mart").join(&mart[0]));
    assert_eq!(rows[12][..2], [1.0.into(), 1.0.into()]);
    let t = result.temp;
    assert_eq!(t.files, 60);
    assert!(t.read_bytes > 2 * t.written_bytes && t.renamed > 0 && t.overwritten > 0, "{t:?}");
    // Futures go on about where the series was: 200 less 12 * 6, and up to 30.
    let mean = rows.iter().map(|row| number(&row[2])).sum::<f64>() / rows.len() as f64;
    assert!((100.0..190.0).contains(&mean), "{mean}");
}

fn number(cell: &Cell) -> f64 {
    match cell {
        Cell::Number(number) => *number,
        Cell::Missing | Cell::Text(_) => panic!("{cell:?} is no number"),
    }
}

#[test]
fn a_table_without_the_columns_or_the_periods_is_refused() {
    let root = tempfile::tempdir().unwrap();
    write_facts(&root.path().join("facts"));
    let refused = |step: Demand| step.run(&job(0), Scale::FULL, &mut |_| {}).unwrap_err();
    let error = refused(Demand { quantity: "sales".to_owned(), ..small(root.path()) });
    assert!(matches!(&error, Error::Column { column, .. } if column == "sales"), "{error}");
    let error = refused(Demand { period_length: 6.0, ..small(root.path()) });
    assert!(matches!(error, Error::TooFewRows { .. }), "{error}");
    let error = refused(Demand { renames: 1.5, ..small(root.path()) });
    assert!(matches!(error, Error::Setting { setting: "renames", .. }), "{error}");
    assert!(common::names(&root.path().join("work")).is_empty());
}

fn context(root: &Path, scale: &str) -> Context<'static> {
    let places =
        Places { data: root.join("data"), work: root.join("work"), util: root.join("util") };
    for place in [&places.data, &places.work, &places.util] {
        std::fs::create_dir_all(place).unwrap();
    }
    Context {
        places,
        job: job(1),
        seed: 1,
        scale: scale.parse().unwrap(),
        buffers: Buffers::default(),
        clock: &SystemClock,
    }
}

#[test]
fn a_job_calibrates_into_its_own_mart() {
    let root = tempfile::tempdir().unwrap();
    let context = context(root.path(), "0.002");
    write_facts(&root.path().join("data/facts"));
    let mut step: Demand = toml::from_str(
        r#"
        input = "data/facts"
        temp_files = { full = 7000 }
        temp_bytes = { median = "100 KiB", least = "4 KiB", most = { full = "75 MB" } }
        output_files = { full = 100, min = 2 }
        series = 2
        fits_per_file = 1
        "#,
    )
    .unwrap();
    step.prepare(&context).unwrap();
    let outcome = step.perform(&context, &mut |_| {}).unwrap();
    let figure = |name: &str| outcome.figures[name];
    assert_eq!((figure("temp_files"), figure("output_files")), (14.0, 2.0));
    assert!(figure("output_bytes") > 0.0 && figure("mean_error") > 0.0);
    assert!(figure("models_fitted") >= 14.0);
    assert_eq!(common::names(&root.path().join("data/mart/model-1")).len(), 2);
    assert_eq!(outcome.table.as_ref().unwrap().rows.len(), 2);
    assert!(common::names(&context.places.work).is_empty());
}
