//! Directories that are delegated to the node that makes them: programs there make few calls, and every node sees what they did.

use std::path::PathBuf;
use std::time::Duration;

use forebay_e2e::{Cluster, need, run};

const LIMIT: Duration = Duration::from_secs(300);

fn shell(cluster: &Cluster, node: usize, script: &str) -> String {
    let data: PathBuf = cluster.mountpoint(node).join("data");
    let mut shell = need::program("sh");
    shell.current_dir(data).arg("-c").arg(script);
    run(&mut shell, LIMIT).output()
}

/// Calls of a node to all others.
fn calls(cluster: &Cluster, node: usize) -> u64 {
    let mountpoint = cluster.mountpoint(node).display().to_string();
    let shown = cluster.forebay(node, &["stat", &mountpoint, "--json"]).output();
    let report: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let sessions = report["sessions"].as_array().expect("sessions");
    let servers = sessions.iter().filter(|session| session["is_client"] == false);
    servers.filter_map(|session| session["calls"].as_u64()).sum()
}

#[test]
fn a_tree_is_unpacked_changed_and_removed_by_a_node_that_does_not_own_it() {
    let cluster = Cluster::start(3);
    let owner = cluster.owner(0, "data").expect("the fileset has an owner");
    let (writer, reader) = ((owner + 1) % 3, (owner + 2) % 3);
    let source = "set -e; mkdir -p source; cd source
        for d in a b c; do mkdir -p $d/deep; for i in $(seq 40); do echo $d $i > $d/$i; done
        echo deep > $d/deep/file; ln -s 1 $d/link; chmod 640 $d/7; touch -d 2001-02-03 $d/9; done
        touch -d 2002-03-04 a b/deep; chmod 750 c; cd ..; tar --format=posix -cf source.tar source";
    shell(&cluster, owner, source);
    let list = |node: usize, what: &str| {
        let script =
            format!("cd {what} && find . -mindepth 1 -printf '%P %y %m %n %T@ %s %l\\n' | sort");
        shell(&cluster, node, &script)
    };
    // The first directory of a node asks for numbers.
    shell(&cluster, writer, "mkdir warm && echo warm > warm/file");
    let before = calls(&cluster, writer);
    shell(&cluster, writer, "mkdir copy && tar xf source.tar -C copy --strip-components=1");
    let unpacking = calls(&cluster, writer) - before;
    println!("{unpacking} calls to unpack 136 files, directories and links");
    assert!(unpacking < 136, "{unpacking} calls");
    let (size_of_directories, source) = (" d ", list(owner, "source"));
    let unpacked = list(writer, "copy");
    assert_eq!(unpacked.lines().count(), source.lines().count());
    for (copy, original) in unpacked.lines().zip(source.lines()) {
        assert!(copy == original || original.contains(size_of_directories), "{copy}\n{original}");
    }
    for node in [reader, owner] {
        assert_eq!(list(node, "copy"), unpacked, "node {node}");
        shell(&cluster, node, "diff -r source copy");
    }
    // As editors do.
    let rename =
        "set -e; mkdir own; cd own; for i in $(seq 50); do echo $i > .new; mv .new config; done
        mkdir gone; rmdir gone; mkdir stays; chmod 700 stays";
    shell(&cluster, writer, rename);
    let shown = shell(&cluster, reader, "cat own/config; find own -printf '%P %m\\n' | sort");
    assert_eq!(shown, "50\n 755\nconfig 644\nstays 700\n");
    shell(&cluster, writer, "cp -a copy again && rm -r again copy own");
    for node in [owner, reader, writer] {
        let left = shell(&cluster, node, "ls");
        assert_eq!(left, "source\nsource.tar\nwarm\n", "node {node}");
    }
}
