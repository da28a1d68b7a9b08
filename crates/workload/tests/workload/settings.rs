//! Programs and loads are read from settings; what is left out has its default.

use std::path::PathBuf;

use forebay_workload::flights::Config;
use forebay_workload::load::{Calibration, Metadata, Sequential, Storm};
use serde::de::DeserializeOwned;

fn parse<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

#[test]
fn what_is_left_out_has_its_default() {
    let [a, b, c] = ["a", "b", "c"].map(PathBuf::from);
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
fn unknown_settings_are_refused() {
    let result = serde_json::from_str::<Storm>(r#"{"wokers":4}"#);
    assert!(result.unwrap_err().to_string().contains("unknown field `wokers`"));
}
