//! Steps that Slurm's own srun has started: no daemon of the grid reaches them, but by Slurm.

use forebay_e2e::wait_until;

use crate::fixture::{Fixture, LIMIT};

/// Writes down its process, and each warning that it gets, until it may go.
const STEP: &str = "srun -n1 sh -c 'trap \"echo warned >> got\" USR1; echo $$ > pid; : > ready; \
                    until test -e go; do sleep 0.1; done'; echo over >> got";

impl Fixture {
    /// Whether the step is suspended.
    fn is_stopped(&self) -> bool {
        let pid = self.read("pid");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.expect("the step runs").contains(") T ")
    }

    /// Waits until the holder of the only job was given an order.
    fn wait_for_order(&self, order: &str) {
        wait_until(order, LIMIT, || {
            let files = std::fs::read_dir(self.root.join("grid/slurm/slurm")).expect("a folder");
            let paths = files.map(|file| file.expect("a file").path());
            let mut orders = paths.filter(|path| path.extension().is_some_and(|is| is == "orders"));
            let text = std::fs::read_to_string(orders.next().expect("orders")).expect("reads");
            text.lines().next_back() == Some(order)
        });
    }
}

#[test]
fn steps_of_slurms_own_srun_are_suspended_and_warned_although_the_agent_is_killed_before_slurm_answers()
 {
    let mut grid = Fixture::start("");
    let job =
        grid.submit(&["--slots", "2", "--time-limit", "10 h", "--warn", "steps:USR1@1 h"], STEP);
    wait_until("the step runs", LIMIT, || grid.jobs.join("ready").exists());
    grid.wait_for(&job, "running");
    grid.forebay(&["hold", &job]).succeeds();
    wait_until("the step is suspended", LIMIT, || grid.is_stopped());
    grid.forebay(&["release", &job]).succeeds();
    wait_until("the step goes on", LIMIT, || !grid.is_stopped());
    grid.forebay(&["hold", &job]).succeeds();
    wait_until("the step is suspended", LIMIT, || grid.is_stopped());
    // What Slurm cannot be told now is told by the next agent.
    grid.slurm.kill_controller();
    grid.forebay(&["release", &job]).succeeds();
    grid.wait_for_order("continue");
    grid.forebay(&["modify", &job, "--time-limit", "30 min"]).succeeds();
    grid.wait_for_order("warn");
    grid.kill_holder("hosts/slurm/lock");
    grid.up().succeeds();
    grid.wait_for(&job, "running");
    assert!(grid.is_stopped() && grid.read("got").is_empty(), "Slurm was told already");
    grid.slurm.start_controller();
    grid.slurm.wait_for_nodes();
    wait_until("the step goes on", LIMIT, || !grid.is_stopped());
    wait_until("the step was warned", LIMIT, || !grid.read("got").is_empty());
    // Once is enough, also for an agent after that.
    grid.kill_holder("hosts/slurm/lock");
    grid.up().succeeds();
    grid.wait_for(&job, "running");
    std::fs::write(grid.jobs.join("go"), "").expect("lets it go");
    assert_eq!(grid.exit_of(&job), 0);
    assert_eq!(grid.read("got"), "warned\nover\n");
    grid.wait_for_nothing_left();
    grid.down();
}
