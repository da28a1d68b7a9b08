//! Programs read from files and run.

use std::path::Path;

use forebay_analytics::amount::Scale;
use forebay_base::ByteSize;
use forebay_base::time::SystemClock;
use forebay_workload::Error;
use forebay_workload::program::{Buffers, Context, Job, Places, Program};

const SORT_AND_SUMMARISE: &str = r#"
name = "sort and summarise"

[[step]]
name = "read"
[step.do.import]
csv = "data/sales.csv"
output = "work/sales"

[[step]]
[step.do.sort]
input = "work/sales"
output = "work/sorted"
util = "util"
by = [{ column = "region" }]

[[step]]
table = "data/regions-{job}.csv"
[step.do.summary]
input = "work/sorted"
class = ["region"]
analysis = ["amount"]
"#;

fn context(root: &Path) -> Context<'static> {
    let places =
        Places { data: root.join("data"), work: root.join("work"), util: root.join("util") };
    for place in [&places.data, &places.work, &places.util] {
        std::fs::create_dir_all(place).unwrap();
    }
    Context {
        places,
        job: Job { name: "one".into(), class: "test".into(), number: 0, count: 1 },
        seed: 1,
        scale: Scale::FULL,
        buffers: Buffers { page_bytes: ByteSize::kib(64), ..Buffers::default() },
        clock: &SystemClock,
    }
}

#[test]
fn steps_run_in_order_and_are_recorded() {
    let root = tempfile::tempdir().unwrap();
    let context = context(root.path());
    std::fs::write(root.path().join("data/sales.csv"), "region,amount\nwest,2\neast,1\nwest,4\n")
        .unwrap();
    let program: Program = toml::from_str(SORT_AND_SUMMARISE).unwrap();
    let (mut names, mut records) = (Vec::new(), Vec::new());
    program
        .run(
            &context,
            &mut |number, step| names.push((number, step.name().to_owned())),
            &mut |record| records.push(record),
            &mut |_| {},
        )
        .unwrap();
    assert_eq!(names, [(0, "read".into()), (1, "sort".into()), (2, "summary".into())]);
    assert_eq!(records.iter().map(|r| r.outcome.rows).collect::<Vec<_>>(), [3, 3, 3]);
    assert!(records[2].start_seconds >= records[1].start_seconds);
    let table = std::fs::read_to_string(root.path().join("data/regions-one.csv")).unwrap();
    assert!(table.lines().nth(2).unwrap().starts_with("west,amount,2,0,3"), "{table}");
    let reader =
        forebay_analytics::dataset::Reader::open(&root.path().join("work/sorted")).unwrap();
    assert_eq!(reader.page_bytes(), 64 << 10, "the context says the page size");
}

#[test]
fn an_error_names_its_step_and_ends_the_program() {
    let root = tempfile::tempdir().unwrap();
    let program: Program = toml::from_str(SORT_AND_SUMMARISE).unwrap();
    let mut started = 0;
    let error = program
        .run(&context(root.path()), &mut |_, _| started += 1, &mut |_| {}, &mut |_| {})
        .unwrap_err();
    assert!(matches!(&error, Error::Step { number: 1, name, .. } if name == "read"), "{error}");
    assert_eq!(started, 1);
}

#[test]
fn a_mistake_in_a_program_is_shown_with_its_line() {
    let text = SORT_AND_SUMMARISE.replace("util = \"util\"", "utli = \"util\"");
    let error = toml::from_str::<Program>(&text).unwrap_err().to_string();
    assert!(error.contains("line 14") && error.contains("utli"), "{error}");
}

#[test]
fn a_program_reads_back_as_it_was_written() {
    let program: Program = toml::from_str(SORT_AND_SUMMARISE).unwrap();
    let text = toml::to_string(&program).unwrap();
    assert_eq!(toml::from_str::<Program>(&text).unwrap(), program);
}

const MODELS: &str = r#"
name = "models"

[[step]]
[step.do.import]
csv = "data/iris.csv"
output = "work/iris"

[[step]]
[step.do.logistic]
input = "work/iris"
response = "species"
event = "virginica"
predictors = ["sepal_width"]

[[step]]
[step.do.glm]
input = "work/iris"
response = "petal_length"
family = "gamma"
link = "log"
class = ["species"]

[[step]]
[step.do.mixed]
input = "work/iris"
response = "petal_width"
predictors = ["petal_length"]
group = "species"
order = "sorted"

[[step]]
[step.do.glmm]
input = "work/iris"
response = "sepal_length"
family = "poisson"
predictors = []
group = "species"

[[step]]
[step.do.nlmixed]
input = "work/iris"
response = "sepal_length"
predictor = "petal_length"
curve = "michaelis_menten"
start = { maximum = 8.0, half = 1.0 }
random = "maximum"
group = "species"

[[step]]
[step.do.kmeans]
input = "work/iris"
columns = ["petal_length", "petal_width"]
clusters = 3
output = "work/clusters"

[[step]]
table = "data/tree.csv"
[step.do.tree]
input = "work/iris"
response = "species"
kind = "classification"
predictors = ["petal_length"]
class = [{ column = "sepal_width", reference = "3" }]
output = "work/scored"
"#;

#[test]
fn models_are_steps_of_programs() {
    let root = tempfile::tempdir().unwrap();
    let context = context(root.path());
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../analytics/tests/data/iris.csv");
    // Whole numbers, so that lengths may stand for counts.
    let text = std::fs::read_to_string(csv).unwrap();
    let rounded: Vec<String> = text
        .lines()
        .map(|line| {
            let (first, rest) = line.split_once(',').unwrap();
            first.parse::<f64>().map_or(line.to_owned(), |first| format!("{first:.0},{rest}"))
        })
        .collect();
    std::fs::write(root.path().join("data/iris.csv"), rounded.join("\n")).unwrap();
    let program: Program = toml::from_str(MODELS).unwrap();
    let mut records = Vec::new();
    program.run(&context, &mut |_, _| {}, &mut |record| records.push(record), &mut |_| {}).unwrap();
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["import", "logistic", "glm", "mixed", "glmm", "nlmixed", "kmeans", "tree"]);
    for record in &records[1..] {
        assert_eq!(record.outcome.rows, 150);
        assert!(!record.outcome.figures.is_empty());
        assert!(record.outcome.table.as_ref().is_some_and(|table| !table.rows.is_empty()));
    }
    let tree = std::fs::read_to_string(root.path().join("data/tree.csv")).unwrap();
    assert!(tree.lines().nth(1).unwrap().contains("petal_length <= 2.45"), "{tree}");
    for name in ["work/clusters", "work/scored"] {
        let reader = forebay_analytics::dataset::Reader::open(&root.path().join(name)).unwrap();
        assert_eq!((reader.rows(), reader.page_bytes()), (150, 64 << 10), "{name}");
    }
}

#[test]
fn every_kind_of_step_is_described() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/steps");
    let pages: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    for kind in forebay_workload::program::Step::KINDS {
        let heading = format!("\n## {kind}\n");
        assert!(pages.iter().any(|page| page.contains(&heading)), "{kind} has no section");
    }
}

#[test]
fn examples_in_the_documentation_are_programs() {
    let text = include_str!("../../../../docs/formats/steps/tables.md");
    let mut kinds = Vec::new();
    for block in text.split("```toml\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let step = if block.starts_with("[[step]]") { "" } else { "[[step]]\n" };
        let program: Program = toml::from_str(&format!("name = 'p'\n{step}{block}"))
            .unwrap_or_else(|error| panic!("{error}"));
        kinds.push(program.steps[0].step.kind());
    }
    let expected = ["generate", "derive", "extract", "join", "frequency", "histogram", "rank"];
    assert_eq!(kinds, expected);
}
