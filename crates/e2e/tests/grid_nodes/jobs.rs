//! Jobs on every node, commands on every node, and what becomes of jobs when a node is cut off.

use forebay_e2e::wait_until;

use crate::fixture::{ANN, BOB, LIMIT, Nodes, SHORT, text};

#[test]
fn jobs_run_on_every_node_and_every_node_has_all_commands_for_its_own_users() {
    let grid = Nodes::start(3, 1, "");
    // Each job writes through the mount of the node it runs on, as the user who submitted it.
    let mounts = text(grid.cluster.mountpoint(0).parent().expect("has a folder"));
    let script = format!(
        "echo \"$FOREBAY_HOST $(id -u)\" >{mounts}/m${{FOREBAY_HOST#n}}/out/on-$FOREBAY_HOST"
    );
    let jobs: Vec<String> =
        ["n0", "n1", "n2"].iter().map(|host| grid.submit(2, ANN, &["-m", host], &script)).collect();
    for job in &jobs {
        grid.wait_for(1, job, "done");
    }
    for host in 0..3 {
        for seen_from in 0..3 {
            let file = grid.shared(seen_from).join(format!("on-n{host}"));
            let said = std::fs::read_to_string(&file).expect("the job has written");
            assert_eq!(said, format!("n{host} {ANN}\n"), "on n{seen_from}");
        }
    }
    // The file of its output lies there too.
    let output = text(&grid.shared(2).join("said"));
    let said = grid.submit(1, ANN, &["-m", "n2", "-o", &output], "echo from $FOREBAY_HOST");
    grid.wait_for(0, &said, "done");
    assert_eq!(std::fs::read_to_string(grid.shared(1).join("said")).expect("reads"), "from n2\n");
    commands_act_for_the_user_of_their_node(&grid);
    streams_cross_nodes(&grid);
    an_agent_has_the_name_of_its_node(&grid);
}

fn commands_act_for_the_user_of_their_node(grid: &Nodes) {
    let job = grid.submit(0, ANN, &["-m", "n2"], "sleep 600");
    grid.wait_for(1, &job, "running");
    let seen = grid.json(1, ANN, &["jobs"]);
    assert_eq!((seen[0]["id"].to_string().contains(&job), &seen[0]["host"]), (true, &"n2".into()));
    assert!(grid.as_user(2, ANN, &["explain", &job]).output().contains("n2"));
    // Somebody else sees nothing of it and can do nothing to it, on whichever node.
    assert_eq!(grid.json(1, BOB, &["jobs"]).as_array().map(Vec::len), Some(0));
    let refused = grid.as_user(2, BOB, &["kill", &job]).refused();
    assert!(refused.contains(&job), "{refused}");
    let refused = grid.as_user(2, BOB, &["reload"]).refused();
    assert!(refused.contains("may not reload"), "{refused}");
    grid.as_user(1, ANN, &["kill", &job]).succeeds();
    grid.wait_for(0, &job, "killed");
    let hosts = grid.json(2, BOB, &["hosts"]);
    let names: Vec<&str> =
        hosts.as_array().expect("hosts").iter().filter_map(|host| host["name"].as_str()).collect();
    assert_eq!(names, ["n0", "n1", "n2"]);
}

/// `forebay run`: the client on one node, the job on another.
fn streams_cross_nodes(grid: &Nodes) {
    let words = ["run", "-m", "n2", "--", "sh", "-c", "echo $FOREBAY_HOST; id -u; exit 7"];
    let ran = grid.as_user(1, ANN, &words).expect_code(7);
    assert_eq!(ran.stdout, format!("n2\n{ANN}\n"), "{ran:?}");
}

fn an_agent_has_the_name_of_its_node(grid: &Nodes) {
    let root = text(&grid.root(1));
    let mut agent =
        grid.spawn_as(1, 0, &["agent", &root, "--name", "n9", "--slots", "1", "--cgroup", "none"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let hosts = grid.json(0, 0, &["hosts"]);
    assert!(!hosts.to_string().contains("n9"), "{hosts}");
    agent.kill().expect("kills");
    agent.wait().expect("waits");
}

#[test]
fn a_node_that_is_cut_off_ends_its_jobs_and_they_start_elsewhere_if_they_may() {
    let grid = Nodes::start(3, 1, SHORT);
    // The lock is the machine's, on which all nodes of this test are: two at once are found out.
    let lock = text(&grid.root(0).with_file_name("lock"));
    let overlap = format!("{lock}-overlap");
    let script = format!(
        "exec 9>>{lock}; flock -n 9 || {{ echo both >{overlap}; exit 1; }}; \
         test $FOREBAY_ATTEMPT = 1 || exit 0; sleep 600"
    );
    let again = grid.submit(0, 0, &["--rerunnable", "-m", "n1+1 n2"], &script);
    let once = grid.submit(0, 0, &["-m", "n1"], "sleep 600");
    grid.wait_for(0, &again, "running");
    grid.wait_for(0, &once, "running");
    // An agent that dies takes no job along.
    grid.kill(1, "hosts/n1/lock");
    grid.up(1, &[]).succeeds();
    grid.wait_for(0, &again, "running");
    grid.wait_for(0, &once, "running");
    grid.cluster.hosts().unplug(1);
    grid.wait_for(0, &again, "done");
    grid.wait_for(0, &once, "host_lost");
    let history = grid.json(0, 0, &["history", &again]);
    let hosts: Vec<&str> = history
        .as_array()
        .expect("attempts")
        .iter()
        .filter_map(|attempt| attempt["host"].as_str())
        .collect();
    assert_eq!(hosts, ["n1", "n2"], "{history}");
    assert!(!std::path::Path::new(&overlap).exists(), "both starts ran at the same time");
    grid.cluster.hosts().plug_in(1);
    wait_until("the node is back", LIMIT, || {
        let hosts = grid.json(0, 0, &["hosts"]);
        hosts.as_array().is_some_and(|hosts| {
            hosts.iter().any(|host| host["name"] == "n1" && host["state"] == "up")
        })
    });
    wait_until("what the first start has left there is removed", LIMIT, || {
        let areas =
            std::fs::read_dir(grid.cluster.mountpoint(1).join("work/n1/jobs")).expect("lists");
        !areas.flatten().any(|area| area.file_name().to_string_lossy().starts_with("job-"))
    });
    let after = grid.submit(1, 0, &["-m", "n1"], "true");
    grid.wait_for(1, &after, "done");
}
