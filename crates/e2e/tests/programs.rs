//! Real programs on a real mount.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::mounted::EVERY_WAY;
use forebay_e2e::{Mounted, Peer, need, on_every_way, run};

const LIMIT: Duration = Duration::from_secs(180);

on_every_way!(
    sqlite_keeps_its_database_whole_in_both_journal_modes,
    sqlite_databases_are_shared_by_processes,
    git_clones_and_checks_a_repository,
    tar_brings_back_acls_and_attributes,
    cargo_builds_and_tests_a_crate,
);

#[track_caller]
fn sqlite(database: &Path, statements: &str) -> String {
    // A process that has just ended may still hold the lock for its last checkpoint.
    let options = ["-bail", "-batch", "-cmd", ".timeout 20000"];
    run(need::program("sqlite3").args(options).arg(database).arg(statements), LIMIT).output()
}

fn sqlite_keeps_its_database_whole_in_both_journal_modes(grid: &Mounted) {
    for mode in ["wal", "delete", "truncate", "persist"] {
        let database = grid.data().join(format!("{mode}.db"));
        let answer = sqlite(
            &database,
            &format!(
                "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;
                 CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT, v BLOB); CREATE INDEX by_k ON t(k);"
            ),
        );
        assert_eq!(answer.lines().next(), Some(mode));
        sqlite(
            &database,
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<20000)
                 INSERT INTO t SELECT i, hex(i*7919 % 20011), zeroblob(i % 300) FROM n;
             UPDATE t SET k = k || 'x' WHERE id % 3 = 0;
             DELETE FROM t WHERE id % 5 = 0;
             BEGIN; DELETE FROM t; ROLLBACK;
             VACUUM;",
        );
        grid.remount();
        let answer = sqlite(&database, "PRAGMA integrity_check; SELECT count(*), sum(id) FROM t;");
        assert_eq!(answer, "ok\n16000|160000000\n", "{mode}");
    }
}

/// Adds one to a counter many times, as one of several processes.
const COUNT_UP: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for _ in range(int(sys.argv[2])):
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE counter SET value = value + 1")
    database.execute("COMMIT")
print("done")
"#;

fn sqlite_databases_are_shared_by_processes(grid: &Mounted) {
    for mode in ["wal", "delete"] {
        let database = grid.work().join(format!("{mode}.db"));
        sqlite(
            &database,
            &format!(
                "PRAGMA journal_mode={mode};
                 CREATE TABLE counter(value INTEGER); INSERT INTO counter VALUES (0);"
            ),
        );
        let path = database.to_str().expect("plain path");
        let mut peers: Vec<Peer> = (0..3).map(|_| Peer::start(COUNT_UP, &[path, "50"])).collect();
        for peer in &mut peers {
            assert_eq!(peer.hear_within(LIMIT), "done");
        }
        assert_eq!(sqlite(&database, "SELECT value FROM counter;"), "150\n", "{mode}");
    }
}

/// One transaction after the other; each number is printed when its transaction is durable.
const INSERT: &str = r#"
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode=" + sys.argv[2])
# With FULL the removal of a rollback journal is not synced: the last transaction may be lost.
database.execute("PRAGMA synchronous=EXTRA")
database.execute("CREATE TABLE t(number INTEGER PRIMARY KEY, text TEXT)")
print("ready")
try:
    for number in range(1, 1000000):
        database.execute("BEGIN")
        database.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * (number % 3000)))
        database.execute("COMMIT")
        # SQLite takes a directory that cannot be opened for one that needs no sync (unixDelete): a mount that
        # died after the journal was removed shows only here.
        os.close(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY))
        print(number)
except (sqlite3.Error, OSError):
    pass  # the mount is dead
"#;

#[test]
fn sqlite_keeps_every_acknowledged_transaction_when_the_daemon_is_killed() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::start_over(placement, transport);
        for (index, mode) in ["wal", "delete", "wal", "delete"].into_iter().enumerate() {
            let database = grid.data().join(format!("{mode}-{index}.db"));
            let path = database.to_str().expect("plain path");
            let mut peer = Peer::start(INSERT, &[path, mode]);
            peer.expect("ready");
            let number = |line: &str| line.parse::<u64>().expect("prints numbers");
            let first = number(&peer.hear_within(LIMIT));
            std::thread::sleep(Duration::from_millis(400 + 300 * index as u64));
            grid.kill();
            let acknowledged = peer.rest_of_lines().last().map_or(first, |line| number(line));
            drop(peer);

            // The database is tried after recovery alone, and again after fsck has seen it.
            grid.mount();
            grid.remount();
            grid.umount();
            grid.is_clean();
            grid.mount();
            let query = "PRAGMA integrity_check; SELECT count(*), max(number) FROM t;
                         SELECT count(*) FROM t WHERE length(text) != number % 3000;";
            let answer = sqlite(&database, query);
            let lines: Vec<&str> = answer.lines().collect();
            assert_eq!((lines[0], lines[2]), ("ok", "0"), "{mode} on the {placement:?} path");
            let (count, last) = lines[1].split_once('|').expect("two columns");
            assert_eq!(count, last, "transactions are missing in the middle");
            let kept: u64 = last.parse().expect("a number");
            assert!(kept >= acknowledged, "{acknowledged} acknowledged, {kept} kept ({mode})");
        }
    }
}

/// A git command that depends on nothing of the machine's settings.
fn git(folder: &Path, arguments: &[&str]) -> String {
    run(
        need::program("git")
            .current_dir(folder)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .args(["-c", "user.name=test", "-c", "user.email=test@localhost"])
            .args(["-c", "init.defaultBranch=main"])
            .args(arguments),
        LIMIT,
    )
    .output()
}

fn git_clones_and_checks_a_repository(grid: &Mounted) {
    let origin = grid.data().join("origin");
    fs::create_dir(&origin).expect("makes a directory");
    git(&origin, &["init"]);
    for commit in 0..5 {
        for file in 0..60 {
            let folder = origin.join(format!("folder-{}", file % 7));
            fs::create_dir_all(&folder).expect("makes a directory");
            let text = format!("commit {commit}, file {file}\n").repeat(1 + file * 5);
            fs::write(folder.join(format!("file-{file}")), text).expect("writes");
        }
        git(&origin, &["add", "--all"]);
        git(&origin, &["commit", "--quiet", "--message", &format!("commit {commit}")]);
    }
    let clone = grid.work().join("clone");
    let target = clone.to_str().expect("plain path");
    git(&grid.work(), &["clone", "--quiet", "--no-local", origin.to_str().expect("plain"), target]);
    git(&clone, &["switch", "--quiet", "--create", "other", "HEAD~3"]);
    git(&clone, &["switch", "--quiet", "main"]);
    git(&clone, &["gc", "--quiet"]);
    for repository in [&origin, &clone] {
        git(repository, &["fsck", "--full", "--strict"]);
        assert_eq!(git(repository, &["status", "--porcelain"]), "");
    }
    assert_eq!(git(&origin, &["rev-parse", "HEAD"]), git(&clone, &["rev-parse", "HEAD"]));
    grid.remount();
    git(&clone, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
}

/// What `program` says of everything below a folder, with paths relative to it.
fn recursive(program: &str, arguments: &[&str], folder: &Path) -> String {
    let listing = run(need::program(program).current_dir(folder).args(arguments).arg("."), LIMIT);
    let mut blocks: Vec<String> = listing.output().split("\n\n").map(str::to_owned).collect();
    blocks.sort();
    blocks.join("\n\n")
}

fn tar_brings_back_acls_and_attributes(grid: &Mounted) {
    let source = grid.data().join("source");
    fs::create_dir_all(source.join("inner/empty")).expect("makes directories");
    for number in 0..50 {
        let path = source.join(format!("inner/file-{number}"));
        fs::write(&path, "content\n".repeat(number * 100)).expect("writes");
        let value = format!("value {number}");
        run(need::program("setfattr").args(["-n", "user.note", "-v", &value]).arg(&path), LIMIT)
            .succeeds();
        let entry = format!("u:{}:r-x,g:20:rw-", 2000 + number);
        run(need::program("setfacl").args(["-m", &entry]).arg(&path), LIMIT).succeeds();
    }
    run(need::program("setfacl").args(["-d", "-m", "u:2001:rwx"]).arg(source.join("inner")), LIMIT)
        .succeeds();
    std::os::unix::fs::symlink("file-1", source.join("inner/link")).expect("links");
    fs::hard_link(source.join("inner/file-2"), source.join("inner/second-name")).expect("links");
    run(Command::new("mkfifo").arg(source.join("fifo")), LIMIT).succeeds();
    run(need::program("truncate").args(["-s", "50M"]).arg(source.join("sparse")), LIMIT).succeeds();

    let archive = grid.outside().join("archive.tar");
    let options = ["--acls", "--xattrs", "--xattrs-include=*", "--sparse", "--numeric-owner"];
    let tar = |verb: &str, folder: &Path| {
        let mut command = need::program("tar");
        command.arg(verb).args(options).arg("-f").arg(&archive).arg("-C").arg(folder);
        command
    };
    run(tar("--create", &source).arg("."), LIMIT).succeeds();
    let copy = grid.work().join("copy");
    fs::create_dir(&copy).expect("makes a directory");
    run(&mut tar("--extract", &copy), LIMIT).succeeds();

    // tar's own comparison knows contents, owners, modes and times.
    run(&mut tar("--compare", &copy), LIMIT).succeeds();
    for (program, arguments) in [
        ("getfacl", &["--recursive", "--numeric"][..]),
        ("getfattr", &["--recursive", "--dump", "--match=-", "--no-dereference"][..]),
    ] {
        let expected = recursive(program, arguments, &source);
        assert!(expected.contains("file-49"), "{program} lists the files");
        assert_eq!(recursive(program, arguments, &copy), expected, "{program}");
    }
    grid.remount();
    let expected = recursive("getfacl", &["--recursive", "--numeric"], &source);
    assert_eq!(recursive("getfacl", &["--recursive", "--numeric"], &copy), expected);
}

fn cargo_builds_and_tests_a_crate(grid: &Mounted) {
    let package = grid.data().join("package");
    fs::create_dir_all(package.join("src")).expect("makes directories");
    fs::write(
        package.join("Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )
    .expect("writes");
    fs::write(
        package.join("src/lib.rs"),
        "pub fn two() -> u32 { 2 }\n#[test]\nfn two_is_two() { assert_eq!(two(), 2); }\n",
    )
    .expect("writes");
    fs::write(package.join("src/main.rs"), "fn main() { println!(\"{}\", small::two()); }\n")
        .expect("writes");
    let cargo = |verb: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command
            .args(verb)
            .arg("--offline")
            .current_dir(&package)
            .env("CARGO_TARGET_DIR", grid.work().join("target"))
            .env_remove("RUSTC_WRAPPER");
        run(&mut command, LIMIT)
    };
    assert!(cargo(&["test"]).output().contains("1 passed"));
    assert_eq!(cargo(&["run", "--quiet"]).output(), "2\n");
    fs::write(package.join("src/main.rs"), "fn main() { println!(\"{}\", 2 * small::two()); }\n")
        .expect("writes");
    assert_eq!(cargo(&["run", "--quiet"]).output(), "4\n", "a change is seen and built");
    let fresh = cargo(&["build"]);
    assert!(!fresh.stderr.contains("Compiling"), "nothing changed since: {fresh:#?}");
}
