//! K-means and trees against another implementation and generated data.
//!
//! Data sets: see `tests/data/README.md`. The values are from scikit-learn 1.9: `KMeans` (the best of
//! hundreds of starts), `DecisionTreeClassifier` and `DecisionTreeRegressor`; the three clusters of
//! `iris` are those of R's `kmeans` too.

use crate::common;
use std::path::Path;

use crate::common::{close, import};
use forebay_analytics::dataset::Column;
use forebay_analytics::step::kmeans::Units;
use forebay_analytics::step::model::ClassPredictor;
use forebay_analytics::step::tree::Kind;
use forebay_analytics::step::{Kmeans, KmeansFit, Tree, TreeFit};
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

const FLOWER: [&str; 4] = ["sepal_length", "sepal_width", "petal_length", "petal_width"];

fn flowers(directory: &Path, clusters: usize) -> Kmeans {
    let path = import(directory, "iris.csv");
    Kmeans { starts: 20, seed: Some(1), ..Kmeans::new(path, &FLOWER, clusters) }
}

fn clusters(kmeans: &Kmeans) -> KmeansFit {
    kmeans.run(&mut |_| {}).unwrap()
}

#[test]
fn flowers_fall_into_the_known_clusters() {
    let directory = tempfile::tempdir().unwrap();
    for (k, inertia, mut sizes) in [
        (2, 152.347_951_760_357_9, vec![53, 97]),
        (3, 78.851_441_426_146, vec![50, 62, 38]),
        (5, 46.446_182_051_282_065, vec![50, 25, 39, 24, 12]),
    ] {
        let found = clusters(&flowers(directory.path(), k));
        close(found.inertia, inertia, 10);
        assert!(found.converged);
        let mut rows: Vec<u64> = found.clusters.iter().map(|cluster| cluster.rows).collect();
        rows.sort_unstable();
        sizes.sort_unstable();
        assert_eq!(rows, sizes, "{k}");
    }
    let found = clusters(&flowers(directory.path(), 3));
    for (found, known) in found.clusters[0].center.iter().zip([5.006, 3.428, 1.462, 0.246]) {
        close(*found, known, 9);
    }
    let standard = Kmeans { units: Units::Standardised, ..flowers(directory.path(), 3) };
    close(clusters(&standard).inertia, 139.820_496_359_749_7, 9);
}

#[test]
fn rows_read_again_give_the_same_clusters_and_are_written_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("clustered");
    let model = Kmeans { starts: 2, ..flowers(directory.path(), 3) };
    let again = Kmeans { memory: Some(ByteSize(0)), output: Some(output.clone()), ..model.clone() };
    let found = clusters(&again);
    assert_eq!(found, clusters(&model));
    let rows = common::read(&output);
    for (number, cluster) in found.clusters.iter().enumerate() {
        let count = rows.iter().filter(|row| row[5] == Cell::from(number as u64 + 1)).count();
        assert_eq!(count as u64, cluster.rows);
    }
    let row = rows.iter().find(|row| row[5] == Cell::from(1_u64)).unwrap();
    assert_eq!(row[4], Cell::from("setosa"), "the cluster of the shortest petals");
}

#[test]
fn rows_without_a_place_have_no_cluster_and_too_few_places_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let columns = || vec![Column::number("x"), Column::text("t", 3)];
    let rows: Vec<Vec<Cell>> =
        [1.0, 1.0, f64::NAN, 5.0, 1.0].map(|x| vec![Cell::from(x), "a".into()]).to_vec();
    common::write(&path, columns(), &rows);
    let output = directory.path().join("b");
    let model = Kmeans { output: Some(output.clone()), ..Kmeans::new(path, &["x"], 2) };
    let found = clusters(&model);
    assert_eq!((found.n, found.missing, found.inertia), (4, 1, 0.0));
    let numbers: Vec<Cell> = common::read(&output).into_iter().map(|row| row[2].clone()).collect();
    let [one, two] = [1.0, 2.0].map(Cell::from);
    assert_eq!(numbers, [one.clone(), one.clone(), Cell::Missing, two, one]);
    let run = |model: Kmeans| model.run(&mut |_| {});
    let infinite = directory.path().join("infinite");
    let ends: Vec<Vec<Cell>> =
        [0.0, f64::INFINITY].map(|x| vec![Cell::from(x), "a".into()]).to_vec();
    common::write(&infinite, columns(), &ends);
    let result = run(Kmeans::new(infinite, &["x"], 2));
    assert!(matches!(result, Err(Error::Column { .. })), "{result:?}");
    let result = run(Kmeans { clusters: 3, ..model.clone() });
    assert!(matches!(result, Err(Error::TooFewRows { rows: 2, needed: 3 })), "{result:?}");
    let result = run(Kmeans { columns: vec!["t".into()], ..model.clone() });
    assert!(matches!(result, Err(Error::Column { .. })), "{result:?}");
    for refused in [
        Kmeans { clusters: 0, ..model.clone() },
        Kmeans { starts: 0, ..model.clone() },
        Kmeans { output: Some(model.input.clone()), ..model },
    ] {
        assert!(matches!(run(refused), Err(Error::Setting { .. })));
    }
}

fn tree(tree: &Tree) -> TreeFit {
    tree.run(&mut |_| {}).unwrap()
}

fn rules(found: &TreeFit) -> Vec<Option<&str>> {
    found.nodes.iter().map(|node| node.rule.as_deref()).collect()
}

#[test]
fn flowers_are_told_apart_by_their_petals() {
    let directory = tempfile::tempdir().unwrap();
    let path = import(directory.path(), "iris.csv");
    let model = Tree { depth_max: 4, ..Tree::new(path, Kind::Classification, "species", &FLOWER) };
    let found = tree(&model);
    // The first split is by length or by width of the petal, which gain the same; then as known.
    assert_eq!(found.nodes[0].rule.as_deref(), Some("petal_length <= 2.45"));
    let right = found.nodes.iter().find(|node| node.depth == 1 && node.rule.is_some()).unwrap();
    assert_eq!(right.rule.as_deref(), Some("petal_width <= 1.75"));
    let mut known = vec![
        (150, 0.666_666_666_666_666_7),
        (50, 0.0),
        (100, 0.5),
        (54, 0.168_038_408_779_149_55),
        (46, 0.042_533_081_285_444_196),
        (48, 0.040_798_611_111_111_16),
        (6, 0.444_444_444_444_444_4),
        (6, 0.277_777_777_777_777_8),
        (40, 0.0),
        (5, 0.32),
        (43, 0.0),
    ];
    known.truncate(9);
    for (found, (rows, impurity)) in found.nodes.iter().zip(known) {
        assert_eq!(found.rows, rows, "{found:?}");
        assert!((found.impurity - impurity).abs() < 1e-12, "{found:?}");
    }
    assert!((found.error - 4.0 / 150.0).abs() < 1e-12, "{}", found.error);
    assert_eq!((found.leaves, found.nodes.len()), (6, 11));
    assert_eq!(found.nodes[1].predicted, "setosa".into());
    assert_eq!(found.nodes[1].probability, Some(1.0));
}

#[test]
fn fuel_consumption_of_cars_is_split_as_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = import(directory.path(), "mtcars.csv");
    let model = Tree {
        depth_max: 3,
        leaf_rows_min: 4,
        ..Tree::new(path, Kind::Regression, "mpg", &["cyl", "hp", "wt"])
    };
    let found = tree(&model);
    let (left, right) = (Some("cyl <= 5"), Some("hp <= 192.5"));
    let top = [Some("wt <= 2.26"), None, Some("cyl <= 7"), left, right];
    assert_eq!(rules(&found), [&top[..], &[None; 4]].concat());
    let means = [20.090_625, 30.066_666_67, 17.788_461_54, 20.925, 15.1];
    let leaves = [22.58, 19.742_857_14, 16.785_714_29, 13.414_285_71];
    for (node, known) in found.nodes.iter().zip(means.into_iter().chain(leaves)) {
        let Cell::Number(predicted) = node.predicted else { panic!("{node:?}") };
        close(predicted, known, 8);
    }
    close(found.nodes[0].impurity, 35.188_974_609_375_18, 10);
    close(found.error, 3.394_238_095_238_095_4, 10);
    for ((_, found), known) in
        found.importances.iter().zip([0.238_562_87, 0.039_101_26, 0.722_335_87])
    {
        close(*found, known, 6);
    }
}

/// Rows where `y` is 1 if `x > 40` unless `t` is "b", and else 0.
fn generated(path: &Path, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let rows: Vec<Vec<Cell>> = (0..5000)
        .map(|_| {
            let x: f64 = random.random_range(0.0..100.0);
            let t = ["a", "b", "c"][random.random_range(0..3)];
            let y = f64::from(u8::from(x > 40.0 && t != "b"));
            vec![y.into(), x.into(), t.into()]
        })
        .collect();
    let columns = vec![Column::number("y"), Column::number("x"), Column::text("t", 2)];
    common::write(path, columns, &rows);
}

#[test]
fn generated_rules_are_recovered_whatever_the_memory() {
    let (directory, seed) = (tempfile::tempdir().unwrap(), 9);
    let path = directory.path().join("a");
    generated(&path, seed);
    let output = directory.path().join("scored");
    let model = Tree {
        class: vec![ClassPredictor::new("t")],
        depth_max: 3,
        output: Some(output.clone()),
        ..Tree::new(path, Kind::Classification, "y", &["x"])
    };
    let found = tree(&model);
    // Bins of a hundredth of the rows can be off by as much.
    assert!(found.error < 0.005, "seed {seed}: {}", found.error);
    let wrong = common::read(&output).iter().filter(|row| row[0] != row[3]).count();
    assert_eq!(wrong as f64 / 5000.0, found.error);
    // 256 KiB are too few for the rows: they are read again for every level.
    let small = Tree { memory: Some(ByteSize::kib(256)), ..model.clone() };
    let again = tree(&small);
    assert!(again.error < 0.02, "seed {seed}: {}", again.error);
    let smallest = Tree { memory: Some(ByteSize(2000)), ..model };
    assert!(matches!(smallest.run(&mut |_| {}), Err(Error::Memory { .. })));
}

#[test]
fn settings_of_trees_out_of_bounds_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = import(directory.path(), "mtcars.csv");
    let model = Tree::new(path, Kind::Regression, "mpg", &["wt"]);
    let run = |model: Tree| model.run(&mut |_| {});
    for refused in [
        Tree { depth_max: 0, ..model.clone() },
        Tree { depth_max: 31, ..model.clone() },
        Tree { bins: 1, ..model.clone() },
        Tree { leaf_rows_min: 0, ..model.clone() },
        Tree { gain_min: 1.0, ..model.clone() },
        Tree { predictors: vec![], ..model.clone() },
        Tree { output: Some(model.input.clone()), ..model.clone() },
    ] {
        assert!(matches!(run(refused), Err(Error::Setting { .. })));
    }
    let result = run(Tree { leaf_rows_min: 17, ..model.clone() });
    assert!(matches!(result, Err(Error::TooFewRows { rows: 32, needed: 34 })), "{result:?}");
    // A gain that no split makes leaves the root alone.
    let found = tree(&Tree { gain_min: 0.99, ..model });
    assert_eq!((found.nodes.len(), found.leaves), (1, 1));
}
