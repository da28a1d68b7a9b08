//! Signals that jobs get before they are ended for their time limit: to whom they go, in our words and in those of Slurm and LSF.

use forebay_e2e::wait_until;

use crate::compat::Site;
use crate::{Fixture, LIMIT};

/// A program, a child of it and a process as srun starts it. Each says when it is ready, and what it gets.
const THREE: &str = r#"
trap 'echo program >> got' USR1
sh -c 'trap "echo child >> got; exit" USR1; : > child; while :; do sleep 0.02; done' &
SLURM_STEP_ID=0 sh -c 'trap "echo step >> got; exit" USR1; : > step; while :; do sleep 0.02; done' &
while test ! -e over; do sleep 0.02; done
"#;

/// A limit so short that the warning of an hour is due at once.
const SHORT: [&str; 2] = ["--time-limit", "30 min"];

impl Fixture {
    fn has(&self, files: &[&str]) -> bool {
        files.iter().all(|file| self.jobs.join(file).exists())
    }

    fn got(&self) -> Vec<String> {
        let mut got = if self.has(&["got"]) { self.lines("got") } else { Vec::new() };
        got.sort();
        got
    }
}

fn warned(warning: &str, more: &[&str], expected: &[&str]) {
    let grid = Fixture::start();
    let options = [&["--time-limit", "10 h", "--warn", warning], more].concat();
    let job = grid.submit(&options, THREE);
    wait_until("its processes are ready", LIMIT, || grid.has(&["child", "step"]));
    grid.wait_for(&job, "running");
    let why = grid.forebay(&["explain", &job], &[]).output();
    assert!(why.contains("it is warned at ") && why.contains("@1 h"), "{why}");
    grid.forebay(&["modify", &job], &SHORT).succeeds();
    wait_until("they are warned", LIMIT, || grid.got() == expected);
    let why = grid.forebay(&["explain", &job], &[]).output();
    assert!(why.contains("it was warned that its end is near"), "{why}");
    let shown = grid.forebay(&["jobs", "-l", &job], &[]).output();
    assert!(shown.contains(&format!("warning       {warning}")), "{shown}");
    // Its end is as near as before: it is not warned again.
    grid.forebay(&["modify", &job, "-P", "other"], &[]).succeeds();
    std::fs::write(grid.jobs.join("over"), "").unwrap();
    grid.wait_for(&job, "done");
    assert_eq!(grid.got(), expected);
}

#[test]
fn all_processes_of_a_job_are_warned() {
    warned("USR1@1 h", &[], &["child", "program", "step"]);
}

#[test]
fn the_program_alone_is_warned_whatever_stands_around_it() {
    warned("program:USR1@1 h", &[], &["program"]);
    warned("program:USR1@1 h", &["--pre", "true", "--post", "true"], &["program"]);
}

#[test]
fn what_srun_has_started_is_warned() {
    warned("steps:USR1@1 h", &[], &["step"]);
}

#[test]
fn slurms_and_lsfs_words_warn_a_job_before_its_limit() {
    let site = Site::start();
    let waits = |name: &str| {
        format!(
            "trap \"echo {name} > {name}\" USR1; : > {name}-ready; while test ! -e {name}; do sleep 0.02; done; exit 0"
        )
    };
    let batch = format!("sbatch -t 10:00:00 --signal=B:USR1@3600 --wrap '{}'", waits("batch"));
    site.sh(&batch).succeeds();
    // The batch script does not hear of it, and would die of it.
    std::fs::write(
        site.grid.jobs.join("step.sh"),
        format!(
            "#!/bin/sh\n#SBATCH -t 10:00:00 --signal=USR1@3600\nsrun sh -c '{}'\n",
            waits("step")
        ),
    )
    .unwrap();
    site.sh("sbatch step.sh").succeeds();
    site.sh(&format!("bsub -W 10:00 -wa USR1 -wt 60 '{}'", waits("lsf"))).succeeds();
    wait_until("all are ready", LIMIT, || {
        site.grid.has(&["batch-ready", "step-ready", "lsf-ready"])
    });
    assert!(site.says("bjobs -l 3").contains("JOB WARNING\n USR1@1 h"));
    site.sh("scontrol update JobId=1,2 TimeLimit=30").succeeds();
    site.sh("bmod -W 30 3").succeeds();
    for job in ["1", "2", "3"] {
        site.grid.wait_for(job, "done");
    }
    let other = site.sh("sbatch --test-only --signal=KILL@60 --wrap true").expect_code(0);
    assert!(
        other.stderr.contains("sbatch: warning: --signal=KILL@60 has no effect"),
        "{}",
        other.stderr
    );
    let refused = site.sh("sbatch --signal=KIL@60 --wrap true").expect_code(1);
    assert!(refused.stderr.contains("Invalid --signal"), "{}", refused.stderr);
    let refused = site.sh("bsub -wa USR1 true").expect_code(255);
    assert!(refused.stderr.contains("-wa needs -wt"), "{}", refused.stderr);
    let refused = site.sh("bsub -wa CHKPNT -wt 5 true").expect_code(255);
    assert!(refused.stderr.contains("by a signal"), "{}", refused.stderr);
    assert!(refused.stderr.contains("choose from HUP, INT"), "{}", refused.stderr);
    // A limit may be changed by a difference.
    site.sh("sbatch -H -t 60 --wrap true").succeeds();
    site.sh("scontrol update JobId=4 TimeLimit=+30").succeeds();
    assert_eq!(site.says("squeue -h -j 4 -o %l"), "1:30:00\n");
}
