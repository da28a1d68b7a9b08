//! The `forebay` command: what it does, what it refuses, and what it says then.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod fileset;
mod fsck;
mod mkfs;
mod mount;
mod report;
mod settings;
mod user;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Everything below a folder: names, sizes and times, to see that nothing has changed.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, (u64, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("lists") {
            let path = entry.expect("lists").path();
            let stat = fs::symlink_metadata(&path).expect("stats");
            if stat.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path, (stat.len(), stat.modified().expect("has a time")));
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
