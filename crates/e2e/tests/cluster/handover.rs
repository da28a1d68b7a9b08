//! What a mount keeps when filesets change their owners: native filesets stay where they are, programs keep their working
//! directories, and the kernel shows no name that has changed since.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use forebay_e2e::{Cluster, need, wait_until};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(120);

/// A shell that stays in its working directory and answers each line that it is sent with one.
struct Shell(Child, BufReader<ChildStdout>);

impl Shell {
    fn start(folder: &Path) -> Shell {
        let mut command = need::program("sh");
        command.arg("-s").current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts a shell");
        let output = BufReader::new(child.stdout.take().expect("has an output"));
        Shell(child, output)
    }

    /// What a command prints.
    fn says(&mut self, line: &str) -> String {
        let input = self.0.stdin.as_mut().expect("has an input");
        writeln!(input, "{line}").expect("sends a line");
        input.flush().expect("sends a line");
        let mut answer = String::new();
        self.1.read_line(&mut answer).expect("answers");
        answer.trim_end().to_owned()
    }

    /// Its working directory, as the kernel says.
    fn folder(&mut self) -> String {
        self.says("readlink /proc/$$/cwd")
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn device(path: &Path) -> u64 {
    fs::metadata(path).expect("stats").dev()
}

fn move_to(cluster: &Cluster, fileset: &str, to: &str) {
    cluster.forebay(0, &["fileset", "owner", fileset, "--move", to]).succeeds();
}

/// Mounts within a mount: their places in the table.
fn inner_mounts(mountpoint: &Path) -> Vec<String> {
    let own = format!("{}/", mountpoint.display());
    let table = fs::read_to_string("/proc/self/mountinfo").expect("reads");
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    places.filter(|place| place.starts_with(&own)).map(str::to_owned).collect()
}

fn own_scratch(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join(format!("work/n{node}"))
}

/// Native filesets lie on their disk, and node `n` sees its own as it is.
fn assert_bound(cluster: &Cluster, node: usize) {
    let mount = cluster.mountpoint(node);
    assert_ne!(device(&own_scratch(cluster, node)), device(&mount), "bound on node {node}");
    assert_eq!(inner_mounts(&mount).len(), 2, "{:?}", inner_mounts(&mount));
}

#[test]
fn native_filesets_stay_mounted_while_all_filesets_change_their_owners() {
    let cluster = Cluster::start(2);
    let data = |node: usize| cluster.mountpoint(node).join("data");
    fs::create_dir(own_scratch(&cluster, 0).join("job")).expect("makes");
    fs::create_dir_all(data(0).join("a/deep/er")).expect("makes");
    let jobs = own_scratch(&cluster, 0).join("job");
    let mut in_scratch = Shell::start(&jobs);
    let mut in_data = Shell::start(&data(0).join("a/deep"));
    let mut at_top = Shell::start(&data(0));
    for round in 0..3 {
        let (to, other) = if round % 2 == 0 { ("n1", 1) } else { ("n0", 0) };
        // The kernel of the owner keeps these names, and that there are none.
        let old = data(1 - other).join(format!("old{round}"));
        let absent = data(1 - other).join(format!("absent{round}"));
        let root_absent = cluster.mountpoint(1 - other).join(format!("absent{round}"));
        fs::write(&old, "x").expect("writes");
        assert!(old.exists() && !absent.exists() && !root_absent.exists());
        assert!(data(0).join("a/deep/er").exists());
        for fileset in ["/", "data"] {
            move_to(&cluster, fileset, to);
        }
        for node in [0, 1] {
            assert_bound(&cluster, node);
        }
        assert_eq!(in_scratch.folder(), jobs.to_str().expect("is UTF-8"));
        assert_eq!(in_scratch.says("echo here > here && cat here"), "here");
        assert_eq!(in_data.folder(), data(0).join("a/deep").to_str().expect("is UTF-8"));
        wait_until("the name is looked up", LIMIT, || {
            at_top.folder() == data(0).to_str().expect("is UTF-8")
        });
        // The new owner changes them.
        fs::remove_file(data(other).join(format!("old{round}"))).expect("removes");
        fs::write(data(other).join(format!("absent{round}")), "y").expect("writes");
        fs::write(cluster.mountpoint(other).join(format!("absent{round}")), "z").expect("writes");
        assert!(!old.exists(), "round {round}: a removed name");
        assert_eq!(fs::read_to_string(&absent).expect("reads"), "y", "round {round}");
        assert_eq!(fs::read_to_string(&root_absent).expect("reads"), "z", "round {round}");
        // A directory on the way to one in use gets another name.
        let (from, new) = (data(other).join("a"), data(other).join("z"));
        fs::rename(&from, &new).expect("renames");
        assert!(!data(1 - other).join("a").exists(), "round {round}: a moved name in use");
        assert!(data(1 - other).join("z/deep/er").exists());
        fs::rename(&new, &from).expect("renames");
        assert!(data(1 - other).join("a/deep/er").exists());
        let seen = cluster.mountpoint(1).join("work/n0/job/here");
        assert_eq!(fs::read_to_string(seen).expect("reads"), "here\n");
    }
    drop((in_scratch, in_data, at_top));
    for node in [1, 0] {
        cluster.umount(node);
        assert!(inner_mounts(&cluster.mountpoint(node)).is_empty());
    }
}

#[test]
fn native_filesets_stay_mounted_when_a_node_loses_its_filesets() {
    let cluster = Cluster::start(2);
    let scratch = own_scratch(&cluster, 0).join("kept");
    fs::write(&scratch, "kept").expect("writes");
    cluster.signal(0, Signal::STOP);
    let path = cluster.mountpoint(1).join("data/g");
    wait_until("the other node has taken over", LIMIT, || fs::write(&path, b"after").is_ok());
    cluster.signal(0, Signal::CONT);
    let path = cluster.mountpoint(0).join("data/g");
    wait_until("the first node sees it", LIMIT, || fs::read(&path).is_ok());
    assert_bound(&cluster, 0);
    assert_eq!(fs::read_to_string(&scratch).expect("reads"), "kept");
    cluster.umount(0);
    assert!(inner_mounts(&cluster.mountpoint(0)).is_empty());
    cluster.mount(0);
    assert_bound(&cluster, 0);
    assert_eq!(fs::read_to_string(&scratch).expect("reads"), "kept");
    cluster.umount(0);
    cluster.umount(1);
}
