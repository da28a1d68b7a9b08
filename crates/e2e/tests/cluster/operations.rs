//! What an administrator does: moves filesets, looks at what waits, and lives with nodes that are away.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use forebay_e2e::content::write_synced;
use forebay_e2e::{Cluster, need, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(90);

fn json(cluster: &Cluster, node: usize, arguments: &[&str]) -> Value {
    let text = cluster.forebay(node, &[arguments, &["--json"]].concat()).output();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn owner(cluster: &Cluster, fileset: &str) -> String {
    let found = json(cluster, 0, &["fileset", "owner", fileset]);
    found["owner"].as_str().unwrap_or_default().to_owned()
}

fn move_to(cluster: &Cluster, fileset: &str, to: &str) {
    cluster.forebay(0, &["fileset", "owner", fileset, "--move", to]).succeeds();
}

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn a_fileset_moves_where_a_user_wants_it_and_stays_there() {
    let cluster = Cluster::start(2);
    write_synced(&data(&cluster, 0).join("f"), b"kept");
    for to in ["n1", "n0", "n1"] {
        move_to(&cluster, "data", to);
        let found = json(&cluster, 1, &["fileset", "owner", "data"]);
        assert_eq!((&found["owner"], &found["pinned"]), (&Value::from(to), &Value::from(to)));
        assert_eq!(found["stage"], "owning");
        for node in [0, 1] {
            assert_eq!(fs::read(data(&cluster, node).join("f")).expect("reads"), b"kept");
        }
    }
    // Where it is already, nothing happens.
    move_to(&cluster, "data", "n1");
    let status = cluster.forebay(0, &["cluster", "status"]).output();
    assert_says(&status, &["data", "n1", "owning", "PINNED TO", "usable"]);
    move_to(&cluster, "data", "auto");
    let found = json(&cluster, 0, &["fileset", "owner", "data"]);
    assert_eq!((&found["pinned"], &found["stage"]), (&Value::Null, &Value::from("owning")));

    let refused = |arguments: &[&str]| {
        cluster.forebay(0, &[&["fileset", "owner"], arguments].concat()).refused()
    };
    assert_says(&refused(&["nothing"]), &["fileset \"nothing\" does not exist", "data"]);
    assert_says(&refused(&["data", "--move", "n9"]), &["no node \"n9\"", "cluster status"]);
    cluster.umount(1);
    assert_says(&refused(&["data", "--move", "n1"]), &["n1", "forebay mount"]);
    assert_eq!(owner(&cluster, "data"), "n0");
}

#[test]
fn a_fileset_in_use_moves_only_by_force_and_nothing_that_was_written_is_lost() {
    let cluster = Cluster::start(2);
    move_to(&cluster, "data", "n0");
    let path = data(&cluster, 0).join("open");
    let mut file = fs::File::create(&path).expect("creates");
    file.write_all(b"written").expect("writes");
    let refused = cluster.forebay(1, &["fileset", "owner", "data", "--move", "n1"]).refused();
    assert_says(&refused, &["stays at n0", "1 files are open", "--force"]);
    assert_eq!(owner(&cluster, "data"), "n0");
    file.write_all(b", and more").expect("writes on");
    cluster.forebay(1, &["fileset", "owner", "data", "--move", "n1", "--force"]).succeeds();
    assert_eq!(owner(&cluster, "data"), "n1");
    assert!(file.sync_all().is_err(), "a stale handle says that a sync succeeded");
    drop(file);
    for node in [0, 1] {
        let found = fs::read(data(&cluster, node).join("open")).expect("reads");
        assert_eq!(found, b"written, and more");
    }
}

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program as a job of Slurm would.
fn start(program: &str, arguments: &[&str]) -> Running {
    let mut command = need::program(program);
    command.env("SLURM_JOB_ID", "5");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    Running(command.spawn().expect("starts a program"))
}

fn waits(cluster: &Cluster, node: usize, min: &str) -> Vec<Value> {
    let found = json(cluster, node, &["waiters", "g", "--min", min]);
    found["waits"].as_array().expect("a list of waits").clone()
}

#[test]
fn waiters_name_the_operation_the_file_the_program_its_job_and_the_reason() {
    let cluster = Cluster::start(2);
    move_to(&cluster, "data", "n0");
    let path = data(&cluster, 0).join("locked");
    fs::write(&path, b"x").expect("writes");
    let on = |node: usize| data(&cluster, node).join("locked").display().to_string();
    let holder = start("flock", &["--no-fork", &on(0), "sleep", "100"]);
    wait_until("the lock is held", LIMIT, || {
        !need::program("flock").args(["-n", &on(0), "true"]).status().expect("runs").success()
    });
    let waiter = start("flock", &["--no-fork", &on(1), "true"]);
    let mut found = Value::Null;
    wait_until("the program that waits is listed", LIMIT, || {
        let all = waits(&cluster, 1, "0.5");
        let ours = all.into_iter().find(|wait| wait["on"] == "n1" && wait["operation"] == "setlkw");
        found = ours.unwrap_or_default();
        !found.is_null()
    });
    assert_eq!(found["path"], "/data/locked");
    assert_eq!((&found["process"][1], &found["fileset"]), (&"flock".into(), &"data".into()));
    assert_eq!((&found["job"], &found["uid"]), (&"slurm-5".into(), &0.into()));
    assert_says(found["reason"].as_str().expect("a reason"), &["a lock"]);
    wait_until("it is in the table and in the status", LIMIT, || {
        let table = cluster.forebay(0, &["waiters", "g", "--min", "1"]).output();
        let status = cluster.forebay(0, &["cluster", "status"]).output();
        let parts = ["setlkw", "a lock", "slurm-5", "root"];
        [table, status].iter().all(|text| parts.iter().all(|part| text.contains(part)))
    });
    drop(holder);
    drop(waiter);
    wait_until("nothing waits any more", LIMIT, || waits(&cluster, 1, "0.5").is_empty());

    // An owner that does not answer is named by those who wait for it.
    cluster.signal(0, Signal::STOP);
    let asking = start("cat", &[&data(&cluster, 1).join("locked").display().to_string()]);
    // The list takes until the frozen node has been given up, and shows what waited when it was asked for.
    std::thread::sleep(Duration::from_millis(1500));
    let all = waits(&cluster, 1, "0.5");
    let is_it = |wait: &Value| wait["on"] == "n1" && wait["waits_for_name"] == "n0";
    assert!(all.iter().any(is_it), "{all:?}");
    cluster.signal(0, Signal::CONT);
    drop(asking);
}

#[test]
fn a_change_that_waits_for_a_recall_names_the_node_that_caches_the_file() {
    let cluster = Cluster::start(2);
    move_to(&cluster, "data", "n0");
    let path = data(&cluster, 0).join("cached");
    fs::write(&path, b"x").expect("writes");
    fs::metadata(data(&cluster, 1).join("cached")).expect("node 1 caches the attributes");
    cluster.signal(1, Signal::STOP);
    let changing = start("chmod", &["600", &path.display().to_string()]);
    // The list takes until the frozen node has been given up, and shows what waited when it was asked for.
    std::thread::sleep(Duration::from_millis(1500));
    let all = waits(&cluster, 0, "0.5");
    let found = all.iter().find(|wait| wait["operation"] == "setattr");
    let found = found.unwrap_or_else(|| panic!("the change is listed: {all:?}"));
    assert_eq!((&found["on"], &found["waits_for_name"]), (&"n0".into(), &"n1".into()));
    assert_says(found["reason"].as_str().expect("a reason"), &["n1, which", "(recall)"]);
    cluster.signal(1, Signal::CONT);
    drop(changing);
}

#[test]
fn stat_counts_what_each_other_node_asks() {
    let cluster = Cluster::start(2);
    move_to(&cluster, "data", "n0");
    for number in 0..20 {
        fs::write(data(&cluster, 1).join(number.to_string()), b"x").expect("writes");
    }
    let sessions = |node: usize| {
        let place = cluster.mountpoint(node).display().to_string();
        let found = json(&cluster, node, &["stat", &place]);
        found["sessions"].as_array().expect("a list of sessions").clone()
    };
    let served = sessions(0);
    let of_client = served.iter().find(|it| it["name"] == "n1" && it["is_client"] == true);
    let of_client = of_client.expect("a session of the other node");
    assert!(of_client["served"].as_u64().expect("a count") >= 40, "{of_client}");
    assert!(of_client["inodes"].as_u64().expect("a count") >= 20, "{of_client}");
    let asked = sessions(1);
    let to_owner = asked.iter().find(|it| it["name"] == "n0" && it["is_client"] == false);
    assert!(to_owner.expect("a session")["calls"].as_u64().expect("a count") >= 40, "{asked:?}");
    // The status of the cluster has what the other node holds, and what it had to give back.
    let held = || {
        let found = json(&cluster, 1, &["cluster", "status"]);
        let nodes = found["nodes"].as_array().expect("a list of nodes").clone();
        let of = |name: &str| nodes.iter().find(|it| it["name"] == name).expect("a node").clone();
        let clients = of("n0")["status"]["files"]["clients"].as_array().expect("clients").clone();
        let number = of("n1")["node"].clone();
        let holds = clients.iter().find(|it| it["node"] == number).expect("the client").clone();
        let figure = |name: &str| holds[name].as_u64().expect("a count");
        (figure("grants"), figure("recalls"))
    };
    let list = || fs::read_dir(data(&cluster, 1)).expect("lists").count();
    assert_eq!(list(), 20);
    let (grants, recalls) = held();
    assert!(grants > 0);
    fs::write(data(&cluster, 0).join("another"), b"x").expect("writes");
    assert_eq!(list(), 21);
    assert!(held().1 > recalls, "{recalls} recalls before");
    let status = cluster.forebay(0, &["cluster", "status"]).output();
    assert_says(&status, &["GRANTS", "RECALLS", "EVICTIONS"]);
}

/// Has node 1 wait for so long for disks of nodes that are away.
fn set_away_timeout(cluster: &Cluster, seconds: u32) {
    cluster.umount(1);
    let path = cluster.home(1).join("fs/forebay.toml");
    let mut settings = fs::OpenOptions::new().append(true).open(path).expect("opens settings");
    writeln!(settings, "away_timeout = \"{seconds} s\"").expect("writes a setting");
    cluster.mount(1);
}

/// Makes a file whose name node 1 owns and whose bytes lie on node 0.
fn file_of_two_nodes(cluster: &Cluster) -> PathBuf {
    move_to(cluster, "data", "n0");
    write_synced(&data(cluster, 0).join("far"), b"bytes of the first node");
    move_to(cluster, "data", "n1");
    data(cluster, 1).join("far")
}

#[test]
fn bytes_on_a_node_that_is_away_fail_after_away_timeout_with_its_name_and_come_back_by_themselves()
{
    let cluster = Cluster::start(2);
    set_away_timeout(&cluster, 3);
    let path = file_of_two_nodes(&cluster);
    cluster.kill(0);
    let error = fs::read(&path).expect_err("the node is away");
    assert_eq!(error.raw_os_error(), Some(libc_eio()), "{error}");
    // Names are there all the time, and what is made now lies elsewhere.
    assert!(fs::metadata(&path).is_ok());
    write_synced(&data(&cluster, 1).join("near"), b"here");
    let log = cluster.log(1);
    let line = log.lines().find(|line| line.contains("away_timeout")).unwrap_or_default();
    assert_says(line, &["node 1 (n0)", "disk", "is unreachable"]);
    let status = cluster.forebay(1, &["cluster", "status"]).output();
    assert_says(&status, &["UNREACHABLE", "are unreachable until that node runs again"]);
    let status = cluster.forebay(1, &["status", "g"]).output();
    assert_says(&status, &["node 1 (n0)", "is unreachable"]);
    let listed = cluster.forebay(1, &["fsck", "g", "--unreachable"]).expect_code(4).stdout;
    assert_says(&listed, &["/data/far: unreachable", "node 1 (n0)", "1 files cannot be reached"]);
    assert!(!listed.contains("near"), "{listed}");
    cluster.mount(0);
    wait_until("the bytes are back", LIMIT, || {
        fs::read(&path).is_ok_and(|bytes| bytes == b"bytes of the first node")
    });
    cluster.forebay(1, &["fsck", "g", "--unreachable"]).succeeds();
    wait_until("the log says so", LIMIT, || cluster.log(1).contains("answers again"));
}

#[test]
fn a_program_waits_for_a_node_that_comes_back_in_time() {
    let cluster = Cluster::start(2);
    set_away_timeout(&cluster, 600);
    let path = file_of_two_nodes(&cluster);
    cluster.kill(0);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| fs::read(&path));
        wait_until("the wait for the disk is listed", LIMIT, || {
            let waiting = |wait: &Value| {
                let reason = wait["reason"].as_str().unwrap_or_default();
                reason.contains("disk") && reason.contains("node 1 (n0)")
            };
            waits(&cluster, 1, "0.5").iter().any(waiting)
        });
        cluster.mount(0);
        let bytes = reading.join().expect("the reader ends").expect("reads");
        assert_eq!(bytes, b"bytes of the first node");
    });
}

#[test]
fn disks_of_a_node_that_has_unmounted_stay_reachable() {
    let cluster = Cluster::start(2);
    let path = file_of_two_nodes(&cluster);
    cluster.umount(0);
    wait_until("the bytes are served by the node's daemon", LIMIT, || {
        fs::read(&path).is_ok_and(|bytes| bytes == b"bytes of the first node")
    });
    let status = cluster.forebay(1, &["cluster", "status"]).output();
    assert_says(&status, &["not mounted"]);
    assert!(!status.contains("UNREACHABLE"), "{status}");
    cluster.mount(0);
    assert_eq!(fs::read(data(&cluster, 0).join("far")).expect("reads"), b"bytes of the first node");
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

#[test]
fn the_last_node_is_unmounted_although_changes_concern_files_on_disks_of_the_others() {
    let cluster = Cluster::start(3);
    for node in 0..3 {
        for number in 0..20 {
            fs::write(data(&cluster, node).join(format!("{node}-{number}")), [1; 5000])
                .expect("writes");
        }
    }
    cluster.umount(0);
    cluster.umount(1);
    // Nobody but this node is left to commit them, and their objects lie on disks of nodes without a mount.
    for node in 0..2 {
        for number in 0..10 {
            let path = |name: &str| data(&cluster, 2).join(name);
            fs::remove_file(path(&format!("{node}-{number}"))).expect("removes");
            let kept = path(&format!("{node}-{}", number + 10));
            let mut file = fs::File::options().append(true).open(kept).expect("opens");
            file.write_all(b"more").expect("appends");
        }
    }
    cluster.umount(2);
    for node in [1, 0, 2] {
        cluster.mount(node);
    }
    for node in 0..2 {
        assert!(!data(&cluster, 2).join(format!("{node}-3")).exists());
        let kept = fs::read(data(&cluster, 1 - node).join(format!("{node}-13"))).expect("reads");
        assert_eq!((kept.len(), &kept[5000..]), (5004, &b"more"[..]));
    }
}

#[test]
fn every_node_shows_the_space_of_all_filesets() {
    let cluster = Cluster::start(2);
    move_to(&cluster, "data", "n0");
    write_synced(&data(&cluster, 0).join("near"), &vec![7; 300_000]);
    write_synced(&data(&cluster, 1).join("far"), &vec![7; 20_000]);
    let shown = |node: usize| {
        let place = cluster.mountpoint(node);
        let place = place.to_str().expect("UTF-8");
        json(&cluster, node, &["space", place, "--by", "fileset"])
    };
    let bytes = |shown: &Value, fileset: &str| {
        let rows = shown["rows"].as_array().expect("has rows");
        let found = rows.iter().find(|row| row["fileset"] == fileset);
        found.and_then(|row| row["bytes"].as_u64())
    };
    let everything_from = |node: usize| {
        let found = shown(node);
        let reasons = &found["not_counted"];
        assert!(reasons["data"].is_null() && reasons["/"].is_null(), "{found}");
        bytes(&found, "data") == Some(320_000)
    };
    for node in [0, 1] {
        wait_until("a node counts what its owner knows", LIMIT, || everything_from(node));
    }
    // The new owner counts from then on.
    move_to(&cluster, "data", "n1");
    for node in [0, 1] {
        wait_until("a node asks the new owner", LIMIT, || everything_from(node));
    }
}
