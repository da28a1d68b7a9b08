//! `forebay quota`.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};

use forebay_e2e::actor::User;
use forebay_e2e::{Mounted, Placement, as_user};
use serde_json::Value;

use crate::{assert_says, json};

/// The user and group of nobody: every machine has them.
const NOBODY: u32 = 65534;
const MIB: usize = 1 << 20;

fn usage(grid: &Mounted) -> (u64, u64) {
    let shown = grid.run_on_root(&["quota", "show"], &["data", "--user", "65534", "--json"]);
    let shown = json(&shown.output());
    let number = |key: &str| shown["usage"][key].as_u64().expect("is a number");
    (number("inodes"), number("bytes"))
}

fn is_over_quota(done: &std::io::Result<()>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == ErrorKind::QuotaExceeded)
}

fn quotas_of_a_user(placement: Placement) {
    let grid = Mounted::start(placement);
    let data = grid.data();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).expect("sets the mode");
    fs::write(data.join("of-root"), vec![1; 3 * MIB]).expect("writes");
    let limits = ["data", "--user", "65534", "--hard-space", "10MiB", "--hard-files", "5"];
    grid.run_on_root(&["quota", "set"], &limits).succeeds();
    let user = User::new(NOBODY, &[NOBODY]);
    as_user(&user, || {
        for number in 0..5 {
            fs::write(data.join(format!("{number}")), vec![2; MIB]).expect("writes");
        }
        assert!(is_over_quota(&fs::write(data.join("6"), b"")));
        fs::remove_file(data.join("4")).expect("removes");
        let mut file = fs::File::create(data.join("5")).expect("the removal gave it back");
        file.write_all(&vec![3; 6 * MIB]).expect("there is room");
        assert!(is_over_quota(&file.write_all(b"one byte more")));
        let grown = fs::OpenOptions::new().write(true).open(data.join("0")).expect("opens");
        assert!(is_over_quota(&grown.set_len(2 * MIB as u64)));
    });
    assert_eq!(usage(&grid), (5, 10 * MIB as u64));
    // root's own files count for root, and a file that is given away for the new owner.
    fs::write(data.join("of-root-too"), vec![1; 3 * MIB]).expect("writes");
    chown(data.join("1"), Some(0), None).expect("changes the owner");
    assert_eq!(usage(&grid), (4, 9 * MIB as u64));
    let given = chown(data.join("of-root"), Some(NOBODY), None);
    assert!(is_over_quota(&given), "{given:?}");

    // The daemon dies: what was committed is counted as before.
    grid.run_on_root(&["status"], &[]).succeeds();
    fs::File::open(&data).and_then(|data| data.sync_all()).expect("syncs");
    grid.kill();
    grid.mount();
    assert_eq!(usage(&grid), (4, 9 * MIB as u64));
    grid.umount();
    grid.is_clean();
    assert_eq!(usage(&grid), (4, 9 * MIB as u64), "without a mount, too");
    let remove = ["data", "--user", "65534"];
    grid.run_on_root(&["quota", "remove"], &remove).succeeds();
    let none = grid.run_on_root(&["quota", "show"], &remove).refused();
    assert_says(&none, &["nobody has no quota", "data"]);
    grid.is_clean();
}

#[test]
fn a_user_gets_edquot_and_usage_survives_a_crash_on_the_direct_path() {
    quotas_of_a_user(Placement::Direct);
}

#[test]
fn a_user_gets_edquot_and_usage_survives_a_crash_on_the_served_path() {
    quotas_of_a_user(Placement::Served);
}

#[test]
fn each_user_has_the_default_quota_until_one_of_his_own_is_set() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).expect("sets the mode");
    let set = |arguments: &[&str]| grid.run_on_root(&["quota", "set"], arguments);
    set(&["data", "--each-user", "--hard-space", "4MiB"]).succeeds();
    let nobody = User::new(NOBODY, &[NOBODY]);
    let write =
        |name: &str, bytes: usize| as_user(&nobody, || fs::write(data.join(name), vec![1; bytes]));
    assert!(is_over_quota(&write("large", 5 * MIB)));
    fs::write(data.join("of-root"), vec![1; 6 * MIB]).expect("root is not limited");
    fs::remove_file(data.join("large")).expect("removes");
    write("small", MIB).expect("is within the default");
    let listed = grid.run_on_root(&["quota", "list"], &["data"]).output();
    assert_says(&listed, &["each user", "user nobody (default)", "4.0 MiB"]);
    // Who holds nothing has the default, too.
    let shown = grid.run_on_root(&["quota", "show"], &["data", "--user", "12345", "--json"]);
    assert_eq!(json(&shown.output())["by_default"], Value::Bool(true));
    set(&["data", "--user", "65534", "--unlimited"]).succeeds();
    write("large", 5 * MIB).expect("is exempt from the default");
    assert_says(&set(&["data", "--each-user", "--unlimited"]).refused(), &["--user or --group"]);
    grid.run_on_root(&["quota", "remove"], &["data", "--user", "65534"]).succeeds();
    assert!(is_over_quota(&write("more", 1)));
    grid.umount();
    grid.is_clean();
}

#[test]
fn a_fileset_shows_its_quota_as_its_size_and_bad_quotas_are_refused() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let set = |arguments: &[&str]| grid.run_on_root(&["quota", "set"], arguments);
    set(&["data", "--hard-space", "100MiB", "--soft-space", "64MiB"]).succeeds();
    fs::write(data.join("file"), vec![1; 16 * MIB]).expect("writes");
    let space = rustix::fs::statvfs(&data).expect("asks");
    assert_eq!(space.f_blocks * space.f_frsize, 64 * MIB as u64, "the soft limit comes first");
    assert_eq!(space.f_bavail * space.f_frsize, 48 * MIB as u64);
    fs::write(data.join("more"), vec![1; 70 * MIB]).expect("is within the time of grace");
    let listed = json(&grid.run_on_root(&["quota", "list"], &["--json"]).output());
    assert_eq!(listed[0]["usage"]["bytes"], Value::from(86 * MIB));
    assert_eq!(listed[0]["bytes_grace_left"].as_u64().map(|left| left > 600_000), Some(true));
    let table = grid.run_on_root(&["quota", "list"], &["data"]).output();
    assert_says(&table, &["the fileset", "64.0 MiB", "100 MiB"]);
    // Whole days are shown, and a moment of the seventh has passed.
    assert!(["7 d", "6 d"].iter().any(|left| table.contains(left)), "{table}");

    assert_says(&set(&["data"]).refused(), &["no limit is given", "--hard-space"]);
    assert_says(&set(&["nowhere", "--hard-files", "1"]).refused(), &["nowhere", "data"]);
    assert_says(&set(&["data", "--hard-space", "10 potatoes"]).refused(), &["not a size"]);
    assert_says(
        &set(&["data", "--user", "no-such-user", "--hard-files", "1"]).refused(),
        &["no user"],
    );
    let below = set(&["data", "--hard-space", "1MiB"]).refused();
    assert_says(&below, &["soft limit of space", "above the hard limit"]);
    // A quota below what is there is accepted.
    set(&["data", "--hard-space", "1MiB", "--soft-space", "none"]).succeeds();
    assert!(is_over_quota(&fs::write(data.join("new"), b"x")));
    assert_eq!(fs::read(data.join("file")).expect("reads").len(), 16 * MIB);
    grid.umount();
    grid.is_clean();
}
