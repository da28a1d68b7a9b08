//! Cache filesets: `forebay fileset create --cache` and `evict`, over a home that changes, goes away, hangs and comes back.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_e2e::{Mounted, Placement};
use rustix::process::Signal;
use serde_json::Value;

use crate::{assert_says, json};

/// Longer than anything of a test takes.
const LONG: Duration = Duration::from_secs(180);

#[track_caller]
fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    forebay_e2e::wait_until(what, LONG, holds);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("lists");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("lists").file_name();
    let mut names: Vec<_> = entries.map(|it| name(it).into_string().expect("is UTF-8")).collect();
    // Where files of a single-writer cache lie at home until they have their names: it goes a little later than the last of them.
    names.retain(|name| name != ".forebay-write-back");
    names.sort();
    names
}

/// What a listing says of the cache.
fn status(grid: &Mounted) -> Value {
    let listed = json(&grid.run_on_root(&["fileset", "list"], &["--json"]).output());
    let mut all = listed.as_array().expect("is a list").iter();
    let found = all.find(|fileset| fileset["name"] == "inputs");
    found.expect("is listed")["cache"].clone()
}

fn state_of(grid: &Mounted, path: &Path) -> String {
    let found = json(&grid.run(&["where", text(path), "--json"]).output());
    found["files"][0]["state"].as_str().expect("is known").to_owned()
}

#[test]
fn a_cache_follows_a_directory_that_changes_goes_away_and_returns() {
    for placement in [Placement::Direct, Placement::Served] {
        let grid = Mounted::start(placement);
        let home = grid.outside().join("home");
        fs::create_dir_all(home.join("d")).expect("makes folders");
        fs::write(home.join("a"), b"first").expect("writes");
        fs::write(home.join("d/b"), vec![7; 3_000_000]).expect("writes");
        let create = |arguments: &[&str]| {
            grid.run_on_root(&["fileset", "create"], &[&["inputs", "--cache"], arguments].concat())
        };
        let refused = create(&[text(&grid.data())]).refused();
        assert_says(&refused, &["in this file system itself"]);
        fs::set_permissions(&home, fs::Permissions::from_mode(0o750)).expect("sets");
        let listed = home.join("a");
        let set = Command::new("setfacl").args(["-m", "u:nobody:rw", text(&listed)]).status();
        assert!(set.expect("runs").success());
        create(&[text(&home), "--refresh", "0"]).succeeds();

        let cache = grid.mountpoint().join("inputs");
        let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode();
        assert_eq!(mode(&cache) & 0o7777, 0o750, "that of the home, before it is listed");
        assert_eq!(names(&cache), ["a", "d"]);
        assert_eq!(mode(&home.join("a")) & 0o070, 0o060, "the mask of the list");
        assert_eq!(mode(&cache.join("a")) & 0o070, 0, "the group gets no more than at home");
        assert_eq!(state_of(&grid, &cache.join("a")), "home");
        assert_eq!(fs::read(cache.join("a")).expect("reads"), b"first");
        assert_eq!(state_of(&grid, &cache.join("a")), "resident");
        assert_eq!(fs::read(cache.join("d/b")).expect("reads"), vec![7; 3_000_000]);
        let refused = fs::write(cache.join("new"), b"").expect_err("is read-only");
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        let refused = fs::OpenOptions::new().append(true).open(cache.join("a"));
        assert_eq!(refused.expect_err("is read-only").kind(), ErrorKind::ReadOnlyFilesystem);

        let mut open = fs::File::open(cache.join("a")).expect("opens");
        fs::write(home.join("a"), b"second one").expect("writes");
        fs::write(home.join("new"), b"new").expect("writes");
        fs::remove_dir_all(home.join("d")).expect("removes");
        assert_eq!(names(&cache), ["a", "new"]);
        assert_eq!(fs::read(cache.join("a")).expect("reads"), b"second one");
        assert_eq!(fs::read(cache.join("d/b")).expect_err("is gone").kind(), ErrorKind::NotFound);
        let mut held = String::new();
        open.read_to_string(&mut held).expect("reads");
        assert_eq!(held, "first");
        drop(open);

        grid.expect_log("the home of a cache is unreachable");
        let away = grid.outside().join("away");
        fs::rename(&home, &away).expect("takes the home away");
        assert_eq!(fs::read(cache.join("a")).expect("reads"), b"second one");
        let missing = fs::read(cache.join("new")).expect_err("was not fetched");
        assert_eq!(missing.kind(), ErrorKind::TimedOut);
        let why = status(&grid)["unreachable"].as_str().expect("is unreachable").to_owned();
        assert_says(&why, &[text(&home)]);
        grid.remount();
        assert_eq!(names(&cache), ["a", "new"]);
        assert_eq!(fs::read(cache.join("a")).expect("reads"), b"second one");
        fs::rename(&away, &home).expect("brings the home back");
        wait_until("the home is back", || fs::read(cache.join("new")).is_ok());
        assert_eq!(fs::read(cache.join("new")).expect("reads"), b"new");

        let evicted = grid.run_on_root(&["fileset", "evict"], &["inputs", "--json"]).output();
        assert_eq!(json(&evicted)["files"], 2, "{evicted}");
        assert_eq!(state_of(&grid, &cache.join("a")), "home");
        assert_eq!(fs::read(cache.join("a")).expect("reads"), b"second one");
        grid.kill();
        grid.mount();
        assert_eq!(fs::read(cache.join("a")).expect("reads"), b"second one");
        grid.run_on_root(&["fileset", "remove"], &["inputs"]).succeeds();
        assert_eq!(names(&home), ["a", "new"]);
    }
}

#[test]
fn a_home_that_hangs_costs_one_timeout_and_what_was_fetched_is_served() {
    let far = Mounted::start(Placement::Served);
    for number in 0..20 {
        fs::write(far.data().join(format!("file-{number}")), b"content").expect("writes");
    }
    let grid = Mounted::start(Placement::Direct);
    let cached = ["inputs", "--cache", text(&far.data()), "--refresh", "0", "--home-timeout", "2"]
        .map(str::to_owned);
    let cached: Vec<&str> = cached.iter().map(String::as_str).collect();
    grid.run_on_root(&["fileset", "create"], &cached).succeeds();
    let near = grid.outside().join("near");
    fs::create_dir(&near).expect("makes a folder");
    let arguments = ["other", "--cache", text(&near), "--refresh", "0"];
    grid.run_on_root(&["fileset", "create"], &arguments).succeeds();
    let cache = grid.mountpoint().join("inputs");
    assert_eq!(names(&cache).len(), 20);
    assert_eq!(fs::read(cache.join("file-0")).expect("reads"), b"content");

    grid.expect_log("the home of a cache is unreachable");
    grid.expect_log("requests of one core wait for");
    grid.expect_log("a visit to the home of a cache hangs");
    let daemon = far.daemon().expect("runs");
    daemon.signal(Signal::STOP);
    let begin = |number: u32| {
        let path = cache.join(format!("file-{number}"));
        std::thread::spawn(move || fs::read(path).expect_err("hangs").kind())
    };
    // As many as a cache has threads for names: caches of other homes are served meanwhile.
    let mut many: Vec<_> = (1..5).map(begin).collect();
    fs::write(near.join("new"), b"new").expect("writes");
    assert_eq!(fs::read(grid.mountpoint().join("other/new")).expect("reads"), b"new");
    many.extend((5..20).map(begin));
    // Other filesets, and other files of this one, are served meanwhile.
    fs::write(grid.data().join("other"), b"other").expect("writes");
    assert_eq!(fs::read(grid.data().join("other")).expect("reads"), b"other");
    for thread in many {
        let kind = thread.join().expect("ends");
        assert!(matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock), "{kind:?}");
    }
    // From now on nobody waits.
    let begun = Instant::now();
    for number in 1..20 {
        let refused = fs::read(cache.join(format!("file-{number}"))).expect_err("hangs");
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "20 timeouts would take 40 s");
    assert_eq!(fs::read(cache.join("file-0")).expect("reads"), b"content");
    assert_eq!(names(&cache).len(), 20);
    let why = status(&grid)["unreachable"].as_str().expect("is unreachable").to_owned();
    assert_says(&why, &["has not answered for 2 s"]);
    daemon.signal(Signal::CONT);
    wait_until("the home answers", || fs::read(cache.join("file-7")).is_ok());
    assert_eq!(status(&grid)["unreachable"], Value::Null);
    grid.umount();
}

#[test]
fn changes_of_a_local_update_cache_stay_in_it() {
    let grid = Mounted::start(Placement::Direct);
    let home = grid.outside().join("home");
    fs::create_dir_all(home.join("d")).expect("makes folders");
    for name in ["e", "full", "g"] {
        fs::create_dir(home.join(name)).expect("makes folders");
    }
    for name in ["a", "b", "d/c", "e/f", "full/file"] {
        fs::write(home.join(name), b"first").expect("writes");
    }
    let arguments = ["trial", "--cache", text(&home), "--refresh", "0"];
    let mode = ["--cache-mode", "local-update"];
    grid.run_on_root(&["fileset", "create"], &[&arguments[..], &mode].concat()).succeeds();
    let cache = grid.mountpoint().join("trial");
    let mut file = fs::OpenOptions::new().append(true).open(cache.join("a")).expect("opens");
    file.write_all(b" and more").expect("appends");
    file.sync_all().expect("syncs");
    drop(file);
    // A directory that nobody has looked into, as well: its names are fetched before it follows its home no more.
    fs::set_permissions(cache.join("e"), fs::Permissions::from_mode(0o700)).expect("sets");
    fs::write(home.join("e/later"), b"").expect("writes");
    assert_eq!(names(&cache.join("e")), ["f"]);
    fs::rename(cache.join("e/f"), cache.join("g/f")).expect("renames");
    assert_eq!((names(&cache.join("e")).len(), names(&cache.join("g"))), (0, vec!["f".to_owned()]));
    // Whether a directory is empty is known once its names were fetched.
    for name in ["d", "g"] {
        let refused = fs::remove_dir(cache.join(name)).expect_err("it has files");
        assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty);
    }
    fs::create_dir(cache.join("new")).expect("makes a folder");
    let refused = fs::rename(cache.join("new"), cache.join("full")).expect_err("it has files");
    assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir(cache.join("new")).expect("removes it");
    // Attributes and links of what was not fetched, too.
    fs::set_permissions(cache.join("b"), fs::Permissions::from_mode(0o600)).expect("sets");
    fs::hard_link(cache.join("d/c"), cache.join("d/link")).expect("links");
    for name in ["a", "b", "d/c", "d/other"] {
        fs::write(home.join(name), b"second").expect("writes");
    }
    let shown =
        || ["a", "b", "d/c", "d/link"].map(|name| fs::read(cache.join(name)).expect("reads"));
    let kept = [&b"first and more"[..], b"first", b"first", b"first"].map(<[u8]>::to_vec);
    assert_eq!(shown(), kept);
    assert_eq!(names(&cache.join("d")), ["c", "link"]);
    grid.kill();
    grid.mount();
    fs::remove_dir_all(home.join("d")).expect("removes");
    assert_eq!(fs::read(cache.join("a")).expect("reads"), kept[0]);
    assert_eq!(names(&home), ["a", "b", "e", "full", "g"]);
    grid.umount();
    grid.is_clean();
}

#[test]
fn a_single_writer_cache_writes_back_through_kills_and_absences_of_its_home() {
    let grid = Mounted::start(Placement::Served);
    let home = grid.outside().join("home");
    fs::create_dir_all(home.join("d")).expect("makes folders");
    for name in ["a", "d/b", "gone"] {
        fs::write(home.join(name), b"first").expect("writes");
    }
    let arguments =
        ["inputs", "--cache", text(&home), "--cache-mode", "single-writer", "--write-delay", "0"];
    grid.run_on_root(&["fileset", "create"], &arguments).succeeds();
    let flush = |arguments: &[&str]| {
        grid.run_on_root(&["fileset", "flush"], &[&["inputs"], arguments].concat())
    };
    let cache = grid.mountpoint().join("inputs");
    let same = |name: &str| {
        let (here, there) = (fs::read(cache.join(name)), fs::read(home.join(name)));
        assert_eq!(here.expect("reads"), there.expect("reads"), "{name}");
    };
    fs::write(cache.join("new"), vec![5; 3_000_000]).expect("writes");
    fs::rename(cache.join("d"), cache.join("e")).expect("renames");
    fs::remove_file(cache.join("gone")).expect("removes");
    let mut file = fs::OpenOptions::new().append(true).open(cache.join("a")).expect("opens");
    file.write_all(b" and more").expect("appends");
    drop(file);
    flush(&[]).succeeds();
    assert_eq!((names(&home), names(&home.join("e"))), (names(&cache), names(&cache.join("e"))));
    ["a", "new", "e/b"].iter().for_each(|name| same(name));
    let refused = fs::hard_link(cache.join("a"), cache.join("link")).expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);

    grid.expect_log("the home of a cache is unreachable");
    grid.expect_log("cannot be written to its home");
    let away = grid.outside().join("away");
    fs::rename(&home, &away).expect("takes the home away");
    fs::write(cache.join("later"), b"later").expect("writes");
    let mut file = fs::File::create(cache.join("synced")).expect("makes a file");
    file.write_all(b"synced").expect("writes");
    file.sync_all().expect("syncs");
    drop(file);
    assert_says(&flush(&["--timeout", "1"]).expect_code(2).stdout, &["still wait"]);
    grid.kill();
    grid.mount();
    let waiting = || status(&grid)["write_back"]["changes"].as_u64().expect("is a number");
    assert!(waiting() > 0);
    let refused = grid.run_on_root(&["fileset", "remove"], &["inputs"]).refused();
    assert_says(&refused, &["fileset flush"]);
    let tasks = json(&grid.run_on_root(&["tasks", "list"], &["--json"]).output());
    assert_eq!(tasks[0]["title"], "write back inputs", "{tasks}");
    let number = tasks[0]["id"].to_string();
    grid.run_on_root(&["tasks", "pause"], &[&number]).succeeds();
    assert_says(&flush(&[]).refused(), &["is paused"]);
    grid.run_on_root(&["tasks", "resume"], &[&number]).succeeds();
    let refused = grid.run_on_root(&["tasks", "cancel"], &[&number]).refused();
    assert_says(&refused, &["tasks pause"]);
    fs::rename(&away, &home).expect("brings the home back");
    flush(&[]).succeeds();
    same("synced");
    assert_eq!((names(&home), waiting()), (names(&cache), 0));

    grid.expect_log("a conflict at the home of a cache");
    fs::write(home.join("a"), b"somebody else").expect("writes");
    fs::write(cache.join("a"), b"the cache").expect("writes");
    flush(&[]).succeeds();
    same("a");
    let conflicts =
        json(&grid.run_on_root(&["fileset", "conflicts"], &["inputs", "--json"]).output());
    let kept = home.join(conflicts[0]["kept"].as_str().expect("is kept"));
    assert_eq!(fs::read(kept).expect("reads"), b"somebody else");
    grid.run_on_root(&["fileset", "remove"], &["inputs"]).succeeds();
    assert_eq!(fs::read(home.join("a")).expect("reads"), b"the cache");
    grid.umount();
    grid.is_clean();
}
