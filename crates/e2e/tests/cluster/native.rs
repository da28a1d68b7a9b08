//! Native filesets of a cluster: each node's directory is its own disk's on that node, and every node sees all of them.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forebay_e2e::suite::passes_pjdfstest;
use forebay_e2e::{Cluster, need, run, setting, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
const SUITE_LIMIT: Duration = Duration::from_secs(500);

/// The directory of a node in the fileset work, as another one has it mounted.
fn work(cluster: &Cluster, seen_on: usize, of: usize) -> PathBuf {
    cluster.mountpoint(seen_on).join(format!("work/n{of}"))
}

fn device(path: &Path) -> u64 {
    fs::metadata(path).expect("stats").dev()
}

fn home(cluster: &Cluster, node: usize) -> String {
    cluster.home(node).to_str().expect("is UTF-8").to_owned()
}

fn native_status(cluster: &Cluster, node: usize) -> Vec<Value> {
    let text = cluster.forebay(node, &["status", &home(cluster, node), "--json"]).output();
    let status: Value = serde_json::from_str(&text).expect("is JSON");
    status["mount"]["native"].as_array().expect("a list").clone()
}

/// A shell that carries out a line each time it is sent one.
struct Shell(Child);

impl Shell {
    fn start(folder: &Path) -> Shell {
        let mut command = need::program("sh");
        command.arg("-s").current_dir(folder).stdin(Stdio::piped());
        Shell(command.spawn().expect("starts a shell"))
    }

    fn send(&mut self, line: &str) {
        let input = self.0.stdin.as_mut().expect("has an input");
        writeln!(input, "{line}").expect("sends a line");
        input.flush().expect("sends a line");
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("ends").success());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_nodes_directory_is_its_own_disk_there_and_every_node_sees_it() {
    let cluster = Cluster::start(2);
    for (node, other) in [(0, 1), (1, 0)] {
        let mount = cluster.mountpoint(node);
        let mut names: Vec<_> = fs::read_dir(mount.join("work"))
            .expect("lists")
            .map(|entry| entry.expect("lists").file_name().into_string().expect("is UTF-8"))
            .collect();
        names.sort();
        assert_eq!(names, ["n0", "n1"]);
        assert_ne!(device(&work(&cluster, node, node)), device(&mount), "the disk itself");
        assert_eq!(device(&work(&cluster, node, other)), device(&mount), "served");
        let status = native_status(&cluster, node);
        let bound: Vec<_> = status.iter().filter(|one| one["is_bound"] == true).collect();
        assert_eq!((status.len(), bound.len()), (4, 2), "{status:?}");
    }
    let list = cluster.forebay(1, &["fileset", "list", &home(&cluster, 1)]).output();
    for name in ["work ", "work/n0", "work/n1", "util/n0", "util/n1"] {
        assert!(
            list.lines().any(|line| line.starts_with(name) && line.contains("native")),
            "{list}"
        );
    }
    // In both directions, and never old.
    let rounds = setting("FOREBAY_E2E_CLUSTER_ROUNDS", 200);
    for round in 0..rounds {
        let text = format!("round {round}");
        let (writer, reader) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        fs::write(work(&cluster, writer, 0).join("file"), &text).expect("writes");
        assert_eq!(
            fs::read_to_string(work(&cluster, reader, 0).join("file")).expect("reads"),
            text
        );
        let (old, new) = (format!("a{}", round % 2), format!("b{round}"));
        fs::write(work(&cluster, writer, 0).join(&old), "").expect("creates");
        fs::rename(work(&cluster, reader, 0).join(&old), work(&cluster, reader, 0).join(&new))
            .expect("renames");
        assert!(!work(&cluster, writer, 0).join(&old).exists());
        fs::remove_file(work(&cluster, writer, 0).join(&new)).expect("removes");
        assert!(!work(&cluster, reader, 0).join(&new).exists());
    }
    let crossed = fs::rename(work(&cluster, 0, 0).join("file"), work(&cluster, 0, 1).join("file"));
    assert_eq!(crossed.expect_err("is another disk").raw_os_error(), Some(libc::EXDEV));
    cluster.umount(1);
    let gone = fs::read_dir(work(&cluster, 0, 1)).expect_err("its node has no mount");
    assert_eq!(gone.raw_os_error(), Some(libc::EIO));
    let status = cluster.forebay(0, &["status", &home(&cluster, 0)]).output();
    assert!(status.contains("work/n1 CANNOT BE REACHED") && status.contains("n1"), "{status}");
    cluster.mount(1);
    wait_until("it is there again", LIMIT, || fs::read_dir(work(&cluster, 0, 1)).is_ok());
}

#[test]
fn programs_on_the_own_node_ask_the_daemon_for_nothing() {
    let cluster = Cluster::start(2);
    let own = work(&cluster, 0, 0);
    fs::write(own.join("before"), "").expect("writes");
    // The way there leads over the root of the mount, whose owner this node is.
    cluster.signal(0, Signal::STOP);
    let begun = Instant::now();
    let mut script = need::program("sh");
    script.arg("-c").arg(format!(
        "cd {0} && mkdir d && for i in 1 2 3 4 5; do echo $i > d/$i && mv d/$i d/m$i && cat d/m$i && rm d/m$i; done && rmdir d",
        own.display()
    ));
    let ended = run(&mut script, Duration::from_secs(8));
    cluster.signal(0, Signal::CONT);
    assert_eq!(ended.output(), "1\n2\n3\n4\n5\n");
    println!("with a daemon that stood still: {:?}", begun.elapsed());
}

#[test]
fn native_scratch_outlives_a_killed_daemon_for_its_own_programs() {
    let cluster = Cluster::start(2);
    let mut shells = [Shell::start(&work(&cluster, 0, 0)), Shell::start(&work(&cluster, 1, 1))];
    for (node, shell) in shells.iter_mut().enumerate() {
        let disk = |name: &str| {
            let at = cluster.home(node).ancestors().nth(2).expect("has a folder").to_owned();
            at.join(format!("d{node}/native/work/n{node}/tree/{name}"))
        };
        shell.send("exec 3> open; echo before >&3");
        wait_until("the shell works", LIMIT, || disk("open").exists());
        cluster.signal(node, Signal::KILL);
        cluster.wait_until_gone(node);
        shell.send("echo after >&3; echo new > new; rm -f gone; echo done > done");
        wait_until("the program goes on", LIMIT, || {
            fs::read(disk("done")).is_ok_and(|b| !b.is_empty())
        });
        assert_eq!(fs::read_to_string(disk("open")).expect("reads"), "before\nafter\n");
        if node == 0 {
            // This node owns the root: the way there is known, too.
            fs::write(work(&cluster, 0, 0).join("absolute"), "x").expect("writes");
            assert!(disk("absolute").exists());
        }
        let other = 1 - node;
        wait_until("others hear of it", LIMIT, || {
            let refused = fs::read_dir(work(&cluster, other, node));
            refused.is_err_and(|error| error.raw_os_error() == Some(libc::EIO))
        });
        let status = cluster.forebay(other, &["status", &home(&cluster, other)]).output();
        let line = status.lines().find(|line| line.contains(&format!("work/n{node} ")));
        let line = line.expect("has a line");
        assert!(line.contains("CANNOT BE REACHED") && line.contains("does not run"), "{line}");
        cluster.detach(node);
        cluster.mount(node);
        for seen_on in [0, 1] {
            let path = work(&cluster, seen_on, node).join("new");
            wait_until("it is there again", LIMIT, || fs::read(&path).is_ok_and(|b| b == b"new\n"));
        }
        shell.send("echo later > later");
        wait_until("the same files", LIMIT, || work(&cluster, other, node).join("later").exists());
    }
    shells.into_iter().for_each(Shell::end);
}

#[test]
fn a_native_fileset_comes_and_goes_on_all_nodes_and_is_bound() {
    let cluster = Cluster::start(2);
    let at = |node: usize| home(&cluster, node);
    let create = ["fileset", "create", &at(1), "scratch", "--placement", "native"];
    cluster.forebay(1, &create).succeeds();
    let place =
        |seen_on: usize, of: usize| cluster.mountpoint(seen_on).join(format!("scratch/n{of}"));
    for node in [0, 1] {
        wait_until("it is bound", LIMIT, || {
            device(&place(node, node)) != device(&cluster.mountpoint(node))
        });
        assert_eq!(fs::metadata(place(1 - node, node)).expect("stats").mode() & 0o7777, 0o1777);
    }
    fs::write(place(1, 0).join("file"), "x").expect("writes");
    let refused = cluster.forebay(1, &["fileset", "remove", &at(1), "scratch"]).refused();
    assert!(refused.contains("scratch/n0") && refused.contains("holds files"), "{refused}");
    fs::remove_file(place(0, 0).join("file")).expect("removes");
    cluster.forebay(1, &["fileset", "remove", &at(1), "scratch"]).succeeds();
    for node in [0, 1] {
        let top = cluster.mountpoint(node).join("scratch");
        wait_until("it is gone", LIMIT, || !top.exists());
    }
    for (arguments, says) in [
        (&["--disk", "x"][..], "omit --disk"),
        (&["--mode", "700"], "mode 1777"),
        (&["--durability", "strict"], "--durability"),
    ] {
        let refused = cluster.forebay(0, &[&create, arguments].concat()).refused();
        assert!(refused.contains(says), "{refused}");
    }
    cluster.umount(1);
    cluster.umount(0);
}

#[test]
fn every_pjdfstest_case_passes_in_the_directory_of_another_node() {
    let cluster = Cluster::start(2);
    // Not the top, whose sticky bit the suite does not expect. A longer path would be too long for its sockets.
    let place = work(&cluster, 1, 0).join("s");
    fs::create_dir(&place).expect("makes a directory");
    passes_pjdfstest(&place, SUITE_LIMIT);
}
