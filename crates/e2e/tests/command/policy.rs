//! `forebay policy`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use forebay_e2e::{LoopDisk, Mounted, Placement, wait_until};

use crate::{assert_says, json};

/// Longer than any task of a test takes.
const LONG: Duration = Duration::from_secs(120);

const RULES: &str = r#"
[[migrate]]
name = "old results"
from = "default"
to = "archive"
fileset = "data"
older = "30 d"
files = ["*.h5"]

[[delete]]
name = "old logs"
fileset = "data"
older = "30 d"
files = "*.log"

[[list]]
name = "large"
larger = "50 KiB"
"#;

fn write_old(path: &Path, bytes: usize) {
    fs::write(path, vec![5; bytes]).expect("writes");
    let old = SystemTime::now() - Duration::from_secs(40 * 86_400);
    let file = fs::OpenOptions::new().write(true).open(path).expect("opens");
    file.set_modified(old).expect("sets the time");
}

/// Objects that files refer to on the disks of a pool.
fn objects_in(grid: &Mounted, pool: &str) -> u64 {
    let disks = json(&grid.run_on_root(&["disk", "list"], &["--json"]).output());
    let of_pool = disks.as_array().expect("is a list").iter().filter(|disk| disk["pool"] == pool);
    of_pool.map(|disk| disk["objects_in_use"].as_u64().expect("is a number")).sum()
}

#[test]
fn a_policy_moves_old_files_to_another_pool_and_says_why_before() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let (archive, rules) = (grid.outside().join("archive"), grid.outside().join("rules.toml"));
    fs::create_dir(&archive).expect("makes a folder");
    fs::write(&rules, RULES).expect("writes");
    let rules = rules.to_str().expect("is UTF-8");
    let unknown = grid.run_on_root(&["policy", "apply"], &[rules]).refused();
    assert_says(&unknown, &["archive", "no disk"]);
    let archive = archive.to_str().expect("is UTF-8");
    grid.run_on_root(&["disk", "add"], &[archive, "--pool", "archive"]).succeeds();
    grid.run_on_root(&["policy", "apply"], &[rules]).succeeds();
    assert_says(&grid.run_on_root(&["policy", "show"], &[]).output(), &["old results"]);

    write_old(&data.join("old.h5"), 100_000);
    write_old(&data.join("open.h5"), 3000);
    write_old(&data.join("old.csv"), 4000);
    write_old(&data.join("old.log"), 10);
    write_old(&data.join("kept.log"), 10);
    fs::hard_link(data.join("kept.log"), data.join("kept-too")).expect("links");
    fs::write(data.join("new.log"), b"new").expect("writes");
    fs::write(data.join("new.h5"), vec![5; 5000]).expect("writes");
    let held = fs::File::open(data.join("open.h5")).expect("opens");
    let report = json(&grid.run_on_root(&["policy", "run"], &["--dry-run", "--json"]).output());
    let rules_of = report["rules"].as_array().expect("is a list");
    assert_eq!(
        (rules_of[0]["files"].as_u64(), rules_of[0]["bytes"].as_u64()),
        (Some(2), Some(103_000))
    );
    assert_eq!(rules_of[1]["files"].as_u64(), Some(2), "{report}");
    assert_eq!(rules_of[2]["paths"][0], "/data/old.h5");
    assert!(rules_of[0]["paths"].to_string().contains("/data/open.h5"), "{report}");
    assert_eq!(objects_in(&grid, "archive"), 0, "a dry run moves nothing");

    let task = json(&grid.run_on_root(&["policy", "run"], &["--wait", "--json"]).output());
    assert_eq!(
        (task["state"].as_str(), task["progress"]["files"].as_u64()),
        (Some("done"), Some(2))
    );
    let logs: Vec<bool> =
        ["old.log", "kept.log", "new.log"].map(|name| data.join(name).exists()).into();
    assert_eq!(logs, [false, true, true], "one is old and has no other name");
    assert_eq!(objects_in(&grid, "archive"), 1, "the open file stays");
    drop(held);
    // The kernel reports the close after the program has gone on.
    let begun = Instant::now();
    while objects_in(&grid, "archive") < 2 {
        assert!(begun.elapsed() < LONG, "the file is never moved");
        grid.run_on_root(&["policy", "run"], &["--wait"]).succeeds();
    }
    assert_eq!(fs::read(data.join("old.h5")).expect("reads"), vec![5; 100_000]);
    assert_eq!(fs::read(data.join("open.h5")).expect("reads"), vec![5; 3000]);
    grid.umount();
    grid.is_clean();
    let table = grid.run_on_root(&["policy", "run"], &["--dry-run"]).output();
    assert_says(&table, &["old results", "all files that match", "inodes looked at"]);
}

#[test]
fn a_bad_policy_is_refused_with_the_rule_and_what_is_allowed() {
    let grid = Mounted::make(Placement::Direct);
    let rules = grid.outside().join("rules.toml");
    let check = |text: &str| {
        fs::write(&rules, text).expect("writes");
        grid.forebay(&["policy", "check", rules.to_str().expect("is UTF-8")])
    };
    let run = |text: &str| forebay_e2e::run(&mut check(text), LONG);
    assert_says(
        &run(RULES).output(),
        &[
            "0 rules that place new files, 0 that premigrate files, 1 that move files, 1 that remove files, 1 that list",
        ],
    );
    assert_says(
        &run("[[list]]\nname = 'a'\nsize = 1\n").refused(),
        &["rule 1", "\"size\"", "larger"],
    );
    assert_says(&run("[[move]]\nname = 'a'\n").refused(), &["move", "migrate, delete, list"]);
    let none = grid.run_on_root(&["policy", "run"], &["--dry-run"]).refused();
    assert_says(&none, &["no policy", "forebay policy apply"]);
}

#[test]
fn a_policy_places_new_files_by_name_at_once_and_after_a_mount() {
    let grid = Mounted::start(Placement::Direct);
    let (slow, rules) = (grid.outside().join("slow"), grid.outside().join("rules.toml"));
    fs::create_dir(&slow).expect("makes a folder");
    let text = "[[place]]\nname = \"logs\"\nto = \"slow\"\nfileset = \"data\"\nfiles = \"*.log\"\n";
    fs::write(&rules, text).expect("writes");
    let rules = rules.to_str().expect("is UTF-8");
    let unknown = grid.run_on_root(&["policy", "apply"], &[rules]).refused();
    assert_says(&unknown, &["slow", "no disk"]);
    let slow = slow.to_str().expect("is UTF-8");
    grid.run_on_root(&["disk", "add"], &[slow, "--pool", "slow"]).succeeds();
    fs::write(grid.data().join("before.log"), b"before").expect("writes");
    grid.run_on_root(&["policy", "apply"], &[rules]).succeeds();
    fs::write(grid.data().join("first.log"), b"first").expect("writes");
    fs::write(grid.data().join("first.csv"), b"first").expect("writes");
    fs::write(grid.work().join("first.log"), b"first").expect("writes");
    assert_eq!(objects_in(&grid, "slow"), 1);
    let report = json(&grid.run_on_root(&["policy", "run"], &["--dry-run", "--json"]).output());
    assert_eq!(
        (report["rules"][0]["kind"].as_str(), report["rules"][0]["files"].as_u64()),
        (Some("place"), Some(2))
    );
    grid.remount();
    fs::write(grid.data().join("second.log"), b"second").expect("writes");
    fs::write(grid.data().join("first.log"), b"again").expect("writes");
    assert_eq!(objects_in(&grid, "slow"), 2);
    let place = grid.data().join("second.log");
    assert_says(&grid.run(&["where", place.to_str().expect("is UTF-8")]).output(), &["slow"]);
    assert_eq!(fs::read(grid.data().join("first.log")).expect("reads"), b"again");
}

#[test]
fn a_policy_runs_by_itself_at_its_times_and_when_a_pool_is_full_until_another_is_applied() {
    let disk = LoopDisk::make("xfs", 400);
    let grid = Mounted::start(Placement::Direct);
    let slow = grid.outside().join("slow");
    let flash = disk.path().join("flash");
    for (place, pool) in [(&slow, "slow"), (&flash, "flash")] {
        fs::create_dir(place).expect("makes a folder");
        let place = place.to_str().expect("is UTF-8");
        grid.run_on_root(&["disk", "add"], &[place, "--pool", pool]).succeeds();
    }
    grid.run_on_root(&["fileset", "create"], &["new", "--pool", "flash"]).succeeds();
    let rules = grid.outside().join("rules.toml");
    let apply = |run: &str| {
        let text = format!(
            "[run]\n{run}\n[[migrate]]\nname = \"room\"\nfrom = \"flash\"\nto = \"slow\"\nabove = 60\nuntil = 40\n\
             [[delete]]\nname = \"old\"\nfileset = \"data\"\nolder = \"30 d\"\n"
        );
        fs::write(&rules, text).expect("writes");
        grid.run_on_root(&["policy", "apply"], &[rules.to_str().expect("is UTF-8")])
    };
    assert_says(&apply("every = \"1 s\"").refused(), &["every", "from 10 s to 366 d"]);
    let said = apply("every = \"10 s\"\nwhen_full = true\nlook = \"1 s\"").output();
    assert_says(&said, &["scheduled: all rules every 10 s, next at", "checked every 1 s"]);
    let old = grid.data().join("old");
    let is_gone = |why: &str| wait_until(why, LONG, || !old.exists());
    write_old(&old, 10);
    is_gone("the policy has run");
    let new = grid.mountpoint().join("new");
    for number in 0..14 {
        let mut file = fs::File::create(new.join(number.to_string())).expect("creates");
        file.write_all(&vec![number; 20 << 20]).and_then(|()| file.sync_all()).expect("writes");
    }
    wait_until("files are moved", LONG, || objects_in(&grid, "slow") > 0);
    for number in 0..14 {
        let bytes = fs::read(new.join(number.to_string())).expect("reads");
        assert!(bytes == vec![number; 20 << 20], "file {number}");
    }
    // It is as before after a mount.
    grid.remount();
    assert_says(
        &grid.run_on_root(&["policy", "show"], &[]).output(),
        &["# scheduled: all rules every 10 s"],
    );
    write_old(&old, 10);
    is_gone("the policy has run after the mount");

    assert_says(&apply("every = \"366 d\"").output(), &["every 366 d, next at"]);
    let runs = || {
        let tasks = json(&grid.run_on_root(&["tasks", "list"], &["--json"]).output());
        tasks.as_array().expect("is a list").iter().filter_map(|task| task["id"].as_u64()).max()
    };
    let before = runs();
    write_old(&old, 10);
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(runs(), before, "nothing is due for a long time");
    assert!(old.exists());
}
