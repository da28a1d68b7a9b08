//! A node of a cluster whose host stands for a Slurm: its jobs are kept whichever controller leads and whatever its settings say.

use std::path::{Path, PathBuf};

use forebay_e2e::command::{Ended, run};
use forebay_e2e::slurm::Slurm;
use forebay_e2e::{need, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{ANN, LIMIT, Nodes, SHORT, text};

/// The part of the grid on node 1, whose ROOT is on the cluster's own file system.
struct Desk<'a> {
    grid: &'a Nodes,
    slurm: Slurm,
    root: PathBuf,
}

impl Desk<'_> {
    fn start(grid: &Nodes) -> Desk<'_> {
        let own = grid.base().join("slurm");
        std::fs::create_dir(&own).expect("makes a folder");
        let slurm = Slurm::start_in(&own, 2, Some(&grid.cluster.hosts().namespace(1)));
        let root = grid.cluster.mountpoint(1).join("desk");
        Desk { grid, slurm, root }
    }

    fn up(&self) {
        let (root, home) = (text(&self.root), text(&self.grid.cluster.home(1)));
        let mut command = std::process::Command::new(self.grid.base().join("forebay"));
        command.args(["up", &root, "--cluster", &home, "--controller", "--engine", "slurm"]);
        command.args(["--cgroup", "none"]).env("SLURM_CONF", self.slurm.conf());
        run(&mut self.grid.cluster.hosts().command(1, &command), LIMIT).succeeds();
    }

    /// Kills the process that holds a lock in its folder, and waits until it is gone.
    fn kill(&self, lock: &str) {
        let held = std::fs::read_to_string(self.root.join("grid").join(lock)).expect("reads");
        let process = Pid::from_raw(held.trim().parse().expect("a number")).expect("a process");
        kill_process(process, Signal::KILL).expect("kills");
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        wait_until("it is gone", LIMIT, || {
            std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
        });
    }
}

impl Desk<'_> {
    fn down(&self) -> Ended {
        let mut down = std::process::Command::new(need::forebay());
        run(down.arg("down").arg(&self.root).arg("--now"), LIMIT)
    }
}

impl Drop for Desk<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["n1.log", "controller.log"] {
                let said = std::fs::read_to_string(self.root.join("grid").join(log));
                eprintln!("--- {log} of n1\n{}", said.unwrap_or_default());
            }
        }
        let _ = self.down();
    }
}

/// Waits until the grid has let so many seconds pass.
fn let_pass(grid: &Nodes, seconds: u32) {
    let begin = format!("+{seconds} s");
    let later = grid.submit(0, 0, &["--begin", &begin, "-m", "n0"], "true");
    grid.wait_for(0, &later, "done");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn jobs_in_slurm_are_kept_by_every_controller_of_a_cluster() {
    // Neither grid.toml says that n1 runs its jobs through Slurm.
    let grid = Nodes::start(2, 2, SHORT);
    grid.wait_for_controllers(&["n0", "n1"]);
    grid.down(1).succeeds();
    let desk = Desk::start(&grid);
    std::fs::create_dir_all(desk.root.join("grid")).expect("makes ROOT");
    std::fs::write(desk.root.join("grid/grid.toml"), SHORT).expect("writes the settings");
    desk.up();
    let shared = grid.shared(0);
    // A job of a user of another node runs through Slurm and leaves its files on the cluster.
    let there = text(&grid.shared(1));
    let script = format!("test -n \"$SLURM_JOB_ID\" && id -u >{there}/first && touch \"$WORK/x\"");
    let first = grid.submit(0, ANN, &["-m", "n1"], &script);
    grid.wait_for(0, &first, "done");
    assert_eq!(read(&shared.join("first")), format!("{ANN}\n"));
    let said = grid.as_user(0, ANN, &["run", "-m", "n1", "--", "true"]).refused();
    assert!(said.contains("Slurm"), "{said}");

    // One that could start again on n0 runs while its agent, and then the leader, are away for longer than any lease.
    let script = format!(
        "echo begun >>{there}/long; until test -e {there}/go; do sleep 0.1; done; echo ended >>{there}/long"
    );
    let long = grid.submit(0, ANN, &["--rerunnable", "-m", "n1+1 n0"], &script);
    grid.wait_for(0, &long, "running");
    desk.kill("hosts/n1/lock");
    grid.wait_for(0, &long, "unknown");
    desk.kill("supervisor");
    desk.kill("lock");
    grid.wait_for_controllers(&["n0"]);
    let_pass(&grid, 15);
    assert_eq!(grid.state(0, &long).as_deref(), Some("unknown"));
    // A plain agent is no substitute for one that knows what is in Slurm.
    let mut agent = need::program("timeout");
    agent.args(["20", &text(&grid.base().join("forebay")), "agent", &text(&desk.root)]);
    agent.args(["--slots", "1", "--cgroup", "none"]);
    let _ = run(&mut grid.cluster.hosts().command(1, &agent), LIMIT);
    let refused = grid.log(0, "controller");
    assert!(refused.contains("jobs that run through Slurm"), "{refused}");
    desk.up();
    grid.wait_for(0, &long, "running");
    std::fs::write(shared.join("go"), "").expect("lets it go");
    grid.wait_for(0, &long, "done");
    assert_eq!(read(&shared.join("long")), "begun\nended\n");
    let history = grid.json(0, 0, &["history", &long]);
    assert_eq!(history.as_array().map(Vec::len), Some(1), "{history}");
    wait_until("Slurm is empty", LIMIT, || desk.slurm.jobs().is_empty());
    // Its daemons are found by their locks, which the file system of the cluster keeps.
    desk.down().succeeds();
}
