//! Steps, programs and loads are read from settings; what is left out has its default.

use std::path::PathBuf;

use forebay_base::ByteSize;
use forebay_workload::flights::Config;
use forebay_workload::key::{Direction, SortKey};
use forebay_workload::load::{Calibration, Metadata, Sequential, Storm};
use forebay_workload::step::{Export, Import, Regression, Repeat, Sort, Summary};
use serde::de::DeserializeOwned;

fn parse<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

#[test]
fn what_is_left_out_has_its_default() {
    let [a, b, c] = ["a", "b", "c"].map(PathBuf::from);
    assert_eq!(parse::<Import>(r#"{"csv":"a","output":"b"}"#), Import::new(a.clone(), b.clone()));
    assert_eq!(
        parse::<Repeat>(r#"{"input":"a","output":"b","times":3}"#),
        Repeat::new(a.clone(), b.clone(), 3)
    );
    assert_eq!(
        parse::<Sort>(r#"{"input":"a","output":"b","util":"c","by":[{"column":"x"}]}"#),
        Sort::new(a.clone(), b.clone(), vec![SortKey::ascending("x")], c.clone())
    );
    assert_eq!(
        parse::<Summary>(r#"{"input":"a","analysis":["x"]}"#),
        Summary::new(a.clone(), &[], &["x"])
    );
    assert_eq!(
        parse::<Regression>(r#"{"input":"a","response":"y","predictors":["x"]}"#),
        Regression::new(a.clone(), "y", &["x"])
    );
    assert_eq!(parse::<Export>(r#"{"input":"a","csv":"b"}"#), Export::new(a.clone(), b.clone()));
    assert_eq!(
        parse::<Config>(r#"{"csv":"a","data":"b","work":"c","util":"a"}"#),
        Config::new(a.clone(), b, c, a)
    );
    assert_eq!(parse::<Sequential>("{}"), Sequential::default());
    assert_eq!(parse::<Storm>("{}"), Storm::default());
    assert_eq!(parse::<Calibration>("{}"), Calibration::default());
    assert_eq!(parse::<Metadata>("{}"), Metadata::default());
}

#[test]
fn what_is_said_is_taken() {
    let sort: Sort = parse(
        r#"{"input":"a","output":"b","util":"c","sort_memory":"2 MiB","page_bytes":"64 KiB",
            "by":[{"column":"x","direction":"descending"}]}"#,
    );
    assert_eq!(sort.sort_memory, Some(ByteSize::mib(2)));
    assert_eq!(sort.page_bytes, Some(ByteSize::kib(64)));
    assert_eq!(sort.by[0].direction, Direction::Descending);
    let back: Sort = parse(&serde_json::to_string(&sort).unwrap());
    assert_eq!(back, sort);
}

#[test]
fn unknown_settings_are_refused() {
    let result = serde_json::from_str::<Storm>(r#"{"wokers":4}"#);
    assert!(result.unwrap_err().to_string().contains("unknown field `wokers`"));
}
