//! What one node does, every other one sees in the next instant.

use std::fs;
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use forebay_e2e::{Cluster, need, run, setting};

const LIMIT: Duration = Duration::from_secs(300);

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

#[test]
fn a_file_is_the_same_on_every_node() {
    let cluster = Cluster::start(3);
    for writer in 0..3 {
        let name = format!("from-{writer}");
        let content: Vec<u8> =
            (0..3_000_000_u32).map(|at| (at % 251) as u8 ^ writer as u8).collect();
        fs::write(data(&cluster, writer).join(&name), &content).expect("writes");
        for reader in 0..3 {
            let path = data(&cluster, reader).join(&name);
            assert!(fs::read(&path).expect("reads") == content, "{writer} to {reader}");
            assert_eq!(fs::metadata(&path).expect("stats").len(), content.len() as u64);
        }
    }
    let numbers = |node| fs::metadata(data(&cluster, node).join("from-1")).expect("stats").ino();
    assert!(numbers(0) == numbers(1) && numbers(1) == numbers(2));
}

#[test]
fn a_read_after_a_write_on_another_node_is_never_old() {
    let cluster = Cluster::start(2);
    let rounds = setting("FOREBAY_E2E_CLUSTER_ROUNDS", 500);
    let open = |node| {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(data(&cluster, node).join("counter")).expect("opens")
    };
    let files = [open(0), open(1)];
    let mut buffer = [0; 8];
    for round in 0..rounds {
        let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        files[from].write_all_at(&round.to_le_bytes(), 0).expect("writes");
        files[to].read_exact_at(&mut buffer, 0).expect("reads");
        assert_eq!(u64::from_le_bytes(buffer), round, "through open files");
        let named = fs::read(data(&cluster, to).join("counter")).expect("reads");
        assert_eq!(named, round.to_le_bytes(), "through a new open");
    }
}

#[test]
fn names_and_attributes_that_change_on_one_node_are_seen_on_the_others_at_once() {
    let cluster = Cluster::start(2);
    let rounds = setting("FOREBAY_E2E_CLUSTER_ROUNDS", 500) / 5;
    for round in 0..rounds {
        let (here, there) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let at = |node: usize, name: &str| data(&cluster, node).join(name);
        assert!(!at(there, "a").exists());
        fs::create_dir(at(here, "a")).expect("makes a directory");
        fs::write(at(here, "a/f"), b"1").expect("writes");
        assert_eq!(fs::read(at(there, "a/f")).expect("reads"), b"1");
        fs::set_permissions(at(there, "a/f"), fs::Permissions::from_mode(0o640)).expect("changes");
        assert_eq!(fs::metadata(at(here, "a/f")).expect("stats").mode() & 0o777, 0o640);
        fs::rename(at(here, "a/f"), at(here, "a/g")).expect("renames");
        assert!(!at(there, "a/f").exists() && at(there, "a/g").exists());
        let listed = fs::read_dir(at(there, "a")).expect("lists").count();
        assert_eq!(listed, 1);
        fs::hard_link(at(there, "a/g"), at(there, "a/h")).expect("links");
        assert_eq!(fs::metadata(at(here, "a/g")).expect("stats").nlink(), 2);
        fs::remove_dir_all(at(there, "a")).expect("removes");
        assert!(!at(here, "a").exists());
    }
}

#[test]
fn appends_of_two_nodes_are_both_kept() {
    let cluster = Cluster::start(2);
    std::thread::scope(|scope| {
        for node in 0..2_u8 {
            let path = data(&cluster, node.into()).join("log");
            scope.spawn(move || {
                let mut options = fs::OpenOptions::new();
                let mut file = options.append(true).create(true).open(path).expect("opens");
                for _ in 0..300 {
                    file.write_all(&[b'0' + node; 100]).expect("appends");
                }
            });
        }
    });
    let all = fs::read(data(&cluster, 1).join("log")).expect("reads");
    assert_eq!(all.len(), 2 * 300 * 100);
    assert!(all.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
}

#[test]
fn two_nodes_that_create_the_same_file_at_once_both_open_it_and_one_makes_it() {
    let cluster = Cluster::start(2);
    for round in 0..100 {
        for exclusive in [false, true] {
            let name = format!("{round}-{exclusive}");
            let make = |node| {
                let mut options = fs::OpenOptions::new();
                options.write(true).create(!exclusive).create_new(exclusive).truncate(false);
                options.open(data(&cluster, node).join(&name)).map(drop)
            };
            let made = std::thread::scope(|scope| {
                let other = scope.spawn(|| make(1));
                [make(0), other.join().expect("does not panic")]
            });
            let succeeded = made.iter().filter(|made| made.is_ok()).count();
            assert_eq!(succeeded, if exclusive { 1 } else { 2 }, "{name}: {made:?}");
        }
    }
}

#[test]
fn a_removed_file_that_is_open_on_another_node_stays_readable_there() {
    let cluster = Cluster::start(2);
    for (opener, remover) in [(0, 1), (1, 0)] {
        let at = |node| data(&cluster, node).join("gone");
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(at(opener)).expect("opens");
        file.write_all(b"still here").expect("writes");
        fs::remove_file(at(remover)).expect("removes");
        assert!(!at(opener).exists());
        file.write_all(b" and more").expect("writes");
        file.rewind().expect("seeks");
        assert_eq!(std::io::read_to_string(&file).expect("reads"), "still here and more");
    }
}

#[test]
fn programs_work_on_a_node_that_does_not_own_their_files() {
    let cluster = Cluster::start(2);
    for (node, other) in [(0, 1), (1, 0)] {
        let script = format!(
            "set -e
            mkdir p{node}; cd p{node}
            git init -q .; git config user.email a@b; git config user.name n
            for i in $(seq 50); do echo $i > f$i; done
            git add .; git commit -qm one; git status --porcelain | wc -l
            sqlite3 db 'create table t(a); insert into t values(1),(2); select sum(a) from t'
            tar cf - f1 f2 | (mkdir t; tar xf - -C t); cat t/f2
            printf 'all: o\\no: f1\\n\\tcp f1 o\\n' > Makefile; make -s; cat o"
        );
        let mut shell = need::program("sh");
        shell.arg("-c").arg(&script).current_dir(data(&cluster, node));
        assert_eq!(run(&mut shell, LIMIT).output(), "0\n3\n2\n1\n");
        let mut shell = need::program("sh");
        let look = format!(
            "cd p{node}; git -c safe.directory='*' status --porcelain | grep -vE '^\\?\\?'; git -c \
             safe.directory='*' fsck 2>/dev/null; sqlite3 db 'select sum(a) from t; pragma integrity_check'"
        );
        shell.arg("-c").arg(&look).current_dir(data(&cluster, other));
        assert_eq!(run(&mut shell, LIMIT).output(), "3\nok\n");
    }
}
