//! Settings in `forebay.toml`.

use std::fs;

use forebay_e2e::{Mounted, Placement, run};

use crate::assert_says;

const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

fn refusal(text: &str) -> (String, usize) {
    let grid = Mounted::make(Placement::Direct);
    let path = grid.root().join("forebay.toml");
    let before = fs::read_to_string(&path).expect("reads the settings");
    let line = grid.add_settings(text);
    let message = run(&mut grid.mount_command(), LIMIT).refused();
    assert!(grid.daemon().is_none(), "no daemon is left behind");
    fs::write(&path, before).expect("writes the settings");
    (message, line)
}

#[test]
fn a_bad_setting_names_file_line_key_value_and_what_is_allowed() {
    for (text, parts) in [
        ("no_such_key = 17", vec!["no_such_key", "17", "commit_interval"]),
        ("commit_interval = \"9 days\"", vec!["commit_interval", "9 days", "60 s"]),
        ("inode_cache_max = -5", vec!["inode_cache_max", "-5"]),
        ("fuse_threads = \"many\"", vec!["fuse_threads", "many", "number"]),
        ("[table]\nkey = 1", vec!["table"]),
        ("broken = = 1", vec![]),
    ] {
        let (message, line) = refusal(text);
        assert_says(&message, &["forebay.toml", &format!("line {line}")]);
        assert_says(&message, &parts);
    }
}

#[test]
fn settings_take_effect_at_the_next_mount() {
    let settings = "commit_interval = \"50 ms\"\ninode_cache_max = \"1 MiB\"\ndirect = false";
    let grid = Mounted::start_with(Placement::Direct, settings);
    let status = grid.run_on_root(&["status"], &["--json"]).output();
    assert_eq!(crate::json(&status)["mount"]["passthrough"], false);
    // Many times more than the cache holds: names are evicted and loaded again.
    for number in 0..5000 {
        fs::write(grid.work().join(format!("file-{number}")), number.to_string()).expect("writes");
    }
    for number in (0..5000).rev() {
        let content = fs::read_to_string(grid.work().join(format!("file-{number}")));
        assert_eq!(content.expect("reads"), number.to_string());
    }
}
