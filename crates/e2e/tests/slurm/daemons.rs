//! Daemons that die while Slurm runs jobs of the grid.

use forebay_e2e::wait_until;

use crate::fixture::{Fixture, LIMIT};

#[test]
fn jobs_end_once_whichever_daemon_is_killed() {
    let mut grid = Fixture::start("");
    let script = |name: &str| {
        format!(
            "echo begun >> {name}; until test -e {name}-go; do sleep 0.1; done; echo ended >> {name}"
        )
    };
    let jobs: Vec<String> = (0..3).map(|n| grid.submit(&[], &script(&format!("j{n}")))).collect();
    for job in &jobs {
        grid.wait_for(job, "running");
    }
    // Without slurmctld one ends and is known to have ended, and one is taken that Slurm does not have yet.
    grid.slurm.kill_controller();
    std::fs::write(grid.jobs.join("j0-go"), "").expect("lets it go");
    assert_eq!(grid.exit_of(&jobs[0]), 0);
    let late = grid.submit(&[], "echo late >> late");
    grid.wait_for_reason(&late, "Slurm does not take it now");
    // One that runs is killed without slurmctld.
    grid.forebay(&["kill", &jobs[2]]).succeeds();
    grid.wait_for(&jobs[2], "killed");
    // Agent and controller die as well; a job ends while none of the three is there.
    grid.kill_holder("hosts/slurm/lock");
    grid.kill_holder("supervisor");
    grid.kill_holder("lock");
    std::fs::write(grid.jobs.join("j1-go"), "").expect("lets it go");
    wait_until("it has ended", LIMIT, || grid.read("j1") == "begun\nended\n");
    grid.slurm.start_controller();
    grid.slurm.wait_for_nodes();
    grid.up().succeeds();
    assert_eq!(grid.exit_of(&jobs[1]), 0);
    assert_eq!(grid.exit_of(&late), 0);
    assert_eq!(grid.read("j0"), "begun\nended\n");
    assert_eq!(grid.read("j1"), "begun\nended\n");
    assert_eq!(grid.read("j2"), "begun\n");
    assert_eq!(grid.read("late"), "late\n");
    for job in jobs.iter().chain([&late]) {
        assert_eq!(grid.history(job).len(), 1, "job {job} was started once");
    }
    grid.wait_for_nothing_left();
    grid.down();
}

#[test]
fn a_job_whose_node_is_lost_starts_again_at_its_last_step() {
    let settings = "[general]\nlease = \"3 s\"\nhost_timeout = \"20 s\"\n\
                    [[host]]\nname = \"slurm\"\nengine = \"slurm\"\n";
    let mut grid = Fixture::start(settings);
    let forebay = grid.root.with_file_name("forebay").display().to_string();
    let script = format!(
        "echo $SLURMD_NODENAME >> nodes; if test -e pid; then ps -o pid= -p $(cat pid) >> alive; fi; echo $$ > pid; \
         if ! {forebay} checkpoint has one; then echo one >> steps; \
         {forebay} checkpoint done one; touch recorded; until test -e never; do sleep 0.1; done; fi; echo two >> steps"
    );
    let job = grid.submit(&["--checkpoint", "--rerunnable"], &script);
    wait_until("the first step is recorded", LIMIT, || grid.jobs.join("recorded").exists());
    // A slurmd that is killed leaves its jobs running; Slurm gives the node up, and the job with it.
    let node: usize = grid.read("nodes").trim().trim_start_matches('n').parse().expect("a node");
    grid.slurm.kill_node(node);
    assert_eq!(grid.exit_of(&job), 0);
    assert_eq!(grid.read("steps"), "one\ntwo\n");
    let nodes = grid.read("nodes");
    let nodes: Vec<&str> = nodes.lines().collect();
    assert!(nodes.len() == 2 && nodes[0] != nodes[1], "{nodes:?}");
    let history = grid.history(&job);
    assert_eq!(history.len(), 2);
    assert!(history[0]["loss"]["slurm"].as_str().expect("a loss").contains("NODE_FAIL"));
    // Its first start was over before the second one began.
    assert_eq!(grid.read("alive"), "");
    grid.slurm.start_node(node);
    grid.wait_for_nothing_left();
    grid.down();
}
