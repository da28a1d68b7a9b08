//! The `forebay` command: what it does, what it refuses, and what it says then.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod access;
mod archive;
mod cache;
mod clone;
mod disk;
mod doctor;
mod examples;
mod fileset;
mod fsck;
mod mkfs;
mod mount;
mod plan;
mod policy;
mod quota;
mod report;
mod restore;
mod schedule;
mod settings;
mod snapshot;
mod space;
mod store;
mod striped;
mod user;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Everything below a folder: names, and sizes and times of files, to see that nothing has changed.
/// The time of a directory may change where something was made in it and taken back.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, (u64, Option<std::time::SystemTime>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("lists") {
            let path = entry.expect("lists").path();
            let stat = fs::symlink_metadata(&path).expect("stats");
            if stat.is_dir() {
                folders.push(path.clone());
                found.insert(path, (0, None));
            } else {
                found.insert(path, (stat.len(), stat.modified().ok()));
            }
        }
    }
    found
}

/// Checks that `message` holds all of `parts`.
#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

/// Parses what a command with `--json` printed.
#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
