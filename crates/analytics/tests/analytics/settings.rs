//! Steps are read from settings; what is left out has its default.

use std::path::PathBuf;

use forebay_analytics::key::{Direction, SortKey};
use forebay_analytics::step::glmm::Counts;
use forebay_analytics::step::model::{ClassPredictor, Family};
use forebay_analytics::step::tree::Kind;
use forebay_analytics::step::{
    Export, Glm, Glmm, Import, Kmeans, Logistic, Mixed, Regression, Repeat, Sort, Summary, Tree,
};
use forebay_base::ByteSize;
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
    assert_eq!(parse::<Export>(r#"{"input":"a","csv":"b"}"#), Export::new(a, b));
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
    let result = serde_json::from_str::<Export>(r#"{"input":"a","cvs":"b"}"#);
    assert!(result.unwrap_err().to_string().contains("unknown field `cvs`"));
}

#[test]
fn settings_of_models_have_their_defaults() {
    let path = PathBuf::from("a");
    assert_eq!(
        parse::<Logistic>(r#"{"input":"a","response":"y","predictors":["x"]}"#),
        Logistic::new(path.clone(), "y", &["x"])
    );
    assert_eq!(
        parse::<Glm>(r#"{"input":"a","response":"y","family":"negative_binomial"}"#),
        Glm::new(path.clone(), Family::NegativeBinomial, "y", &[])
    );
    assert_eq!(
        parse::<Mixed>(r#"{"input":"a","response":"y","group":"g"}"#),
        Mixed::new(path.clone(), "y", &[], "g")
    );
    assert_eq!(
        parse::<Glmm>(r#"{"input":"a","response":"y","family":"poisson","group":"g"}"#),
        Glmm::new(path.clone(), Counts::Poisson, "y", &[], "g")
    );
    assert_eq!(
        parse::<Kmeans>(r#"{"input":"a","columns":["x"],"clusters":3}"#),
        Kmeans::new(path.clone(), &["x"], 3)
    );
    assert_eq!(
        parse::<Tree>(r#"{"input":"a","response":"y","kind":"regression","predictors":["x"]}"#),
        Tree::new(path, Kind::Regression, "y", &["x"])
    );
}

#[test]
fn a_class_predictor_is_a_name_or_a_table() {
    let both: Vec<ClassPredictor> = parse(r#"["t",{"column":"u","reference":"v"}]"#);
    let second = ClassPredictor { column: "u".into(), reference: Some("v".into()) };
    assert_eq!(both, [ClassPredictor::new("t"), second]);
    let back: Vec<ClassPredictor> = parse(&serde_json::to_string(&both).unwrap());
    assert_eq!(back, both);
    assert!(serde_json::from_str::<ClassPredictor>(r#"{"column":"u","refrence":"v"}"#).is_err());
}
