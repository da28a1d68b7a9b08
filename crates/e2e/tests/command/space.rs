//! `forebay space`.

use std::fs;
use std::os::unix::fs::chown;
use std::time::{Duration, SystemTime};

use forebay_e2e::{Mounted, Placement};
use serde_json::Value;

use crate::{assert_says, json};

const NOBODY: u32 = 65534;

#[test]
fn space_is_shown_by_fileset_user_and_age() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let write = |name: &str, length: usize, days: u64| {
        let path = data.join(name);
        fs::write(&path, vec![7; length]).expect("writes");
        let changed = SystemTime::now() - Duration::from_secs(days * 86_400);
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(changed))
            .expect("sets the time");
        path
    };
    write("fresh", 1000, 0);
    write("old", 20_000, 400);
    let given = write("given", 300_000, 10);
    chown(given, Some(NOBODY), Some(NOBODY)).expect("gives it away");
    let rows = |options: &[&str]| -> Vec<Value> {
        let shown = grid.run_on_root(&["space"], &[options, &["--json"]].concat()).output();
        json(&shown)["rows"].as_array().expect("has rows").clone()
    };
    let bytes_of = |rows: &[Value], key: &str, value: &str| {
        let found = rows.iter().find(|row| row[key] == value);
        found.unwrap_or_else(|| panic!("{value}: {rows:?}"))["bytes"].as_u64().expect("a number")
    };
    let by_user = rows(&["--by", "user", "--fileset", "data"]);
    assert_eq!(by_user[0]["user"], "nobody", "what holds most comes first");
    assert_eq!(bytes_of(&by_user, "user", "nobody"), 300_000);
    assert_eq!(bytes_of(&by_user, "user", "root"), 21_000);
    let by_age = rows(&["--by", "age", "--fileset", "data"]);
    assert_eq!(bytes_of(&by_age, "age", "under 1 day"), 1000);
    assert_eq!(bytes_of(&by_age, "age", "7 to 30 days"), 300_000);
    assert_eq!(bytes_of(&by_age, "age", "over 1 year"), 20_000);
    let both = rows(&["--by", "user,age", "--fileset", "data"]);
    assert_eq!(both.iter().filter(|row| row["user"] == "root").count(), 2, "{both:?}");
    assert_eq!(bytes_of(&rows(&[]), "fileset", "data"), 300_000);

    let shown = grid.run_on_root(&["space"], &["--by", "age,fileset"]).output();
    assert_says(&shown, &["FILESET", "CONTENT CHANGED", "INODES", "BYTES", "over 1 year"]);
    let refused = grid.run_on_root(&["space"], &["--fileset", "none"]).refused();
    assert_says(&refused, &["there is no fileset \"none\"", "forebay fileset list"]);
    let refused = grid.run_on_root(&["space"], &["--by", "size"]).refused();
    assert_says(&refused, &["fileset", "user", "age"]);
    grid.umount();
    let refused = grid.run_on_root(&["space"], &[]).refused();
    assert_says(&refused, &["space is counted by the daemon of a mounted file system"]);
    grid.mount();
}
