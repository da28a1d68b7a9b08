//! The order of the workspace members is the order of the layers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use forebay_e2e::need::workspace;
use toml::Table;

fn manifest(path: &Path) -> Table {
    fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the workspace's crates in layer order, each with its manifest.
fn layers() -> Vec<(String, Table)> {
    let root = manifest(&workspace().join("Cargo.toml"));
    let members = root["workspace"]["members"].as_array().expect("members are a list");
    members
        .iter()
        .map(|member| {
            let folder = member.as_str().expect("a member is a folder");
            let manifest = manifest(&workspace().join(folder).join("Cargo.toml"));
            (manifest["package"]["name"].as_str().expect("a crate has a name").to_owned(), manifest)
        })
        .collect()
}

/// Names of the crates in every table of dependencies, those for one platform included.
fn dependencies(manifest: &Table) -> Vec<&String> {
    let per_platform =
        manifest.get("target").and_then(|value| value.as_table()).into_iter().flatten();
    std::iter::once(manifest)
        .chain(per_platform.filter_map(|(_, table)| table.as_table()))
        .flat_map(|table| {
            ["dependencies", "dev-dependencies", "build-dependencies"]
                .into_iter()
                .filter_map(|kind| table.get(kind)?.as_table())
        })
        .flat_map(Table::keys)
        .collect()
}

#[test]
fn a_crate_depends_only_on_crates_above_it() {
    let layers = layers();
    let rank = |name: &str| layers.iter().position(|(layer, _)| layer == name);
    let mut upward = Vec::new();
    for (place, (name, manifest)) in layers.iter().enumerate() {
        for dependency in dependencies(manifest) {
            match rank(dependency) {
                // The tests of a crate may ask for its cargo features.
                Some(below) if below == place => {}
                Some(below) if below > place => {
                    upward.push(format!("{name} depends on {dependency}, which is not above it"));
                }
                None if dependency.starts_with("forebay") => {
                    upward.push(format!("{name} depends on {dependency}, which is no member"));
                }
                Some(_) | None => {}
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
}

/// All crates of the workspace that one builds on without further cargo features, at any distance.
fn built_on(name: &str, layers: &[(String, Table)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![name.to_owned()];
    while let Some(name) = next.pop() {
        let Some((_, manifest)) = layers.iter().find(|(layer, _)| *layer == name) else { continue };
        let used = manifest.get("dependencies").and_then(|table| table.as_table());
        for (dependency, how) in used.into_iter().flatten() {
            let optional = how.get("optional").and_then(|value| value.as_bool()) == Some(true);
            if dependency.starts_with("forebay") && !optional && found.insert(dependency.clone()) {
                next.push(dependency.clone());
            }
        }
    }
    found
}

#[test]
fn a_job_is_held_by_a_program_without_file_system_workloads_and_reports() {
    // Of a cluster: who its nodes are, not its files.
    let expected = ["base", "cluster", "etcd", "grid", "metrics", "node", "process", "store"];
    let expected = expected.map(|name| format!("forebay-{name}"));
    assert_eq!(built_on("forebay-engine", &layers()), BTreeSet::from(expected));
}

#[test]
fn a_crate_is_named_after_its_folder() {
    let root = manifest(&workspace().join("Cargo.toml"));
    let members = root["workspace"]["members"].as_array().expect("members are a list");
    for (member, (name, _)) in members.iter().zip(layers()) {
        assert_eq!(
            member.as_str().expect("a member is a folder"),
            format!("crates/{}", name.trim_start_matches("forebay-"))
        );
    }
}
