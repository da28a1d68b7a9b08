//! `forebay fileset`.

use std::fs;

use forebay_e2e::{Mounted, Placement};
use serde_json::Value;

use crate::{assert_says, json};

/// Durability and placement of a fileset, if it is there.
fn found(grid: &Mounted, name: &str) -> Option<(String, String)> {
    let listed = json(&grid.run_on_root(&["fileset", "list"], &["--json"]).output());
    let text = |fileset: &Value, key: &str| fileset[key].as_str().expect("is a text").to_owned();
    let filesets = listed.as_array().expect("is a list").clone();
    filesets
        .iter()
        .find(|fileset| fileset["name"] == name)
        .map(|fileset| (text(fileset, "durability"), text(fileset, "placement")))
}

fn settings(durability: &str, placement: &str) -> Option<(String, String)> {
    Some((durability.to_owned(), placement.to_owned()))
}

/// Runs the whole life of a fileset, with a mount or without.
fn life_of_a_fileset(grid: &Mounted) {
    assert_eq!(found(grid, "data"), settings("strict", "direct"));
    assert_eq!(found(grid, "work"), settings("scratch", "direct"));
    assert_eq!(found(grid, "util"), settings("scratch", "direct"));
    let options = ["models", "--durability", "scratch", "--placement", "served"];
    grid.run_on_root(&["fileset", "create"], &options).succeeds();
    assert_eq!(found(grid, "models"), settings("scratch", "served"));
    grid.run_on_root(&["fileset", "set"], &["models", "--durability", "strict"]).succeeds();
    assert_eq!(found(grid, "models"), settings("strict", "served"), "the rest stays");
    grid.run_on_root(&["fileset", "set"], &["models", "--placement", "direct"]).succeeds();
    assert_eq!(found(grid, "models"), settings("strict", "direct"));

    let refused =
        |verb: &str, arguments: &[&str]| grid.run_on_root(&["fileset", verb], arguments).refused();
    assert_says(&refused("create", &["models"]), &["models"]);
    assert_says(&refused("create", &["a/b"]), &["a/b"]);
    assert_says(&refused("create", &[".."]), &[".."]);
    assert_says(&refused("set", &["missing", "--placement", "served"]), &["missing"]);
    assert_says(&refused("set", &["models", "--placement", "sideways"]), &["sideways", "served"]);
    assert_says(&refused("remove", &["missing"]), &["missing"]);
    grid.run_on_root(&["fileset", "list"], &[]).succeeds();
}

#[test]
fn filesets_are_changed_while_mounted() {
    let grid = Mounted::start(Placement::Direct);
    life_of_a_fileset(&grid);
    let folder = grid.mountpoint().join("models");
    fs::write(folder.join("file"), "content").expect("a new fileset takes files at once");
    let message = grid.run_on_root(&["fileset", "remove"], &["models"]).refused();
    assert_says(&message, &["models"]);
    grid.remount();
    assert_eq!(found(&grid, "models"), settings("strict", "direct"));
    assert_eq!(fs::read(folder.join("file")).expect("reads"), b"content");
    fs::remove_file(folder.join("file")).expect("removes");
    grid.run_on_root(&["fileset", "remove"], &["models"]).succeeds();
    assert!(!folder.exists(), "the directory of a removed fileset is gone");
    assert_eq!(found(&grid, "models"), None);
}

#[test]
fn filesets_are_changed_while_not_mounted() {
    let grid = Mounted::make(Placement::Direct);
    life_of_a_fileset(&grid);
    grid.is_clean();
    grid.mount();
    fs::write(grid.mountpoint().join("models/file"), "content").expect("writes");
    grid.umount();
    let message = grid.run_on_root(&["fileset", "remove"], &["models"]).refused();
    assert_says(&message, &["models"]);
    grid.mount();
    fs::remove_file(grid.mountpoint().join("models/file")).expect("removes");
    grid.umount();
    grid.run_on_root(&["fileset", "remove"], &["models"]).succeeds();
    assert_eq!(found(&grid, "models"), None);
    grid.mount();
    assert!(!grid.mountpoint().join("models").exists());
}

#[test]
fn the_directory_of_a_fileset_stays_in_its_place() {
    let grid = Mounted::start(Placement::Direct);
    assert!(fs::remove_dir(grid.work()).is_err(), "rmdir removes a fileset");
    assert!(fs::rename(grid.work(), grid.mountpoint().join("other")).is_err(), "moves a fileset");
    assert!(fs::rename(grid.work(), grid.data().join("work")).is_err(), "moves a fileset inside");
}
