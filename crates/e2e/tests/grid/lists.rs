//! What people and scripts ask for: when a job would start, JSON, users and limits, jobs one after the other.

use serde_json::Value;

use crate::compat::Site;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn it_is_said_when_a_job_would_start_without_submitting_it() {
    let site = Site::start();
    let dry = |more: &[&str]| {
        let arguments = [&["submit", "--dry-run"], more, &["--", "true"]].concat();
        site.grid.forebay(&arguments, &[])
    };
    assert_eq!(dry(&[]).output(), "it would start now on h1 in queue normal\n");
    let said = site.sh("sbatch --test-only -n 4 --wrap true").expect_code(0).stderr;
    assert!(said.contains("using 4 processors on nodes h1 in partition normal"), "{said}");
    // A job with a time limit says when there is room.
    let job = site.grid.submit(&["-n", "4", "--time-limit", "1 h"], "sleep 600");
    site.grid.wait_for(&job, "running");
    assert!(dry(&[]).output().starts_with("it would start by "));
    let started = json(&site.grid.forebay(&["jobs", &job, "--json"], &[]).output());
    let by = json(&dry(&["--json"]).output());
    let wait = by["start"].as_u64().unwrap() - started[0]["started"].as_u64().unwrap();
    assert_eq!((wait, &by["host"]), (3_600_000, &"h1".into()));
    // Slurm's list of waiting jobs says so as well.
    site.sh("sbatch -n 4 -c 1 --begin=2099-01-31T08:00:00 --wrap true").succeeds();
    assert_eq!(site.says("squeue --start -h -o %S"), "2099-01-31T08:00:00\n");
    site.sh("scancel 2").succeeds();
    site.sh(&format!("bmod -Wn {job}")).succeeds();
    assert!(dry(&[]).output().contains("its start time is unknown"));
    assert!(dry(&["-n", "5"]).expect_code(2).stderr.contains("it needs 5 slots"));
    assert!(
        site.sh("sbatch --test-only -p nowhere --wrap true")
            .expect_code(1)
            .stderr
            .contains("no queue nowhere")
    );
    let known = json(&site.grid.forebay(&["jobs", "--all", "--json"], &[]).output());
    assert_eq!(known.as_array().unwrap().len(), 2, "nothing was submitted");
}

#[test]
fn lists_are_had_as_json_in_the_form_of_slurm_and_of_lsf() {
    let site = Site::start();
    let _ = site.sh("sbatch -J one -o out -t 5 --wait --wrap 'exit 3'").expect_code(3);
    site.sh("sbatch -H -J two --array=0-2 --wrap true").succeeds();
    let jobs = json(&site.says("squeue --json"));
    let job = &jobs["jobs"][0];
    assert_eq!(
        (&job["name"], &job["job_state"], &job["array_task_string"]),
        (&"two".into(), &"PENDING".into(), &"0-2".into())
    );
    assert_eq!(jobs["meta"]["Slurm"]["version"]["major"], 22);
    let jobs = json(&site.says("sacct --json -j 1"));
    let job = &jobs["jobs"][0];
    assert_eq!(
        (&job["job_id"], &job["exit_code"]["return_code"], &job["time"]["limit"]),
        (&1.into(), &3.into(), &5.into())
    );
    assert_eq!(job["state"]["current"], "FAILED");
    let nodes = json(&site.says("sinfo --json"));
    assert_eq!((&nodes["nodes"][0]["name"], &nodes["nodes"][0]["cpus"]), (&"h1".into(), &4.into()));
    assert_eq!(nodes["nodes"][0]["partitions"][0], "normal");
    let jobs = json(&site.says("bjobs -a -o 'jobid stat exit_code' -json"));
    assert_eq!((&jobs["COMMAND"], &jobs["JOBS"]), (&"bjobs".into(), &4.into()));
    assert_eq!(
        jobs["RECORDS"][0],
        serde_json::json!({"JOBID": "1", "STAT": "EXIT", "EXIT_CODE": "3"})
    );
    assert_eq!(json(&site.says("bqueues -o 'queue_name pend' -json"))["QUEUES"], 1);
    assert_eq!(json(&site.says("bhosts -o 'host_name max' -json"))["RECORDS"][0]["MAX"], "4");
    let by_variable = site.says("LSB_BHOSTS_FORMAT=host_name bhosts -json");
    assert_eq!(json(&by_variable)["RECORDS"][0]["HOST_NAME"], "h1");
    let none = json(&site.says("bjobs -J nosuch -o jobid -json"));
    assert_eq!(none, serde_json::json!({ "COMMAND": "bjobs", "JOBS": 0, "RECORDS": [] }));
    assert!(site.sh("bjobs -a -json").expect_code(255).stderr.contains("-json needs -o"));
}

#[test]
fn users_limits_and_hosts_are_shown_as_lsf_shows_them() {
    let site = Site::start();
    let settings = "[general]\nuser_slots_max = 3\nfinished_age = \"1 h\"\n[[queue]]\nname = \"normal\"\nslots_max = 2\n";
    std::fs::write(site.grid.root.join("grid/grid.toml"), settings).unwrap();
    site.grid.forebay(&["reload"], &[]).succeeds();
    site.sh("bsub -n 2 'sleep 600'").succeeds();
    site.sh("bsub 'true'").succeeds();
    site.wait_until_says("bjobs -noheader -o stat 1", "RUN");
    assert_eq!(site.says("busers | awk 'NR > 1 { print $1, $3, $4, $5, $6 }'"), "root 3 3 1 2\n");
    let limits = site.says("blimits");
    assert!(
        limits.contains("user_slots_max      root       -               -          2/3\n"),
        "{limits}"
    );
    assert!(
        limits.contains("slots_max           -          normal          -          2/2\n"),
        "{limits}"
    );
    assert!(site.says("bparams -a").contains("CLEAN_PERIOD = 3600\n"));
    assert!(site.says("scontrol show config").contains("MinJobAge               = 3600 sec\n"));
    let host = site.says("bhosts -l h1");
    assert!(
        host.contains("HOST  h1\n") && host.contains("CURRENT LOAD USED FOR SCHEDULING"),
        "{host}"
    );
    assert!(site.sh("busers nobody-there").expect_code(255).stderr.contains("Bad user name"));
}

#[test]
fn jobs_of_one_name_run_one_after_the_other_and_a_qos_is_a_profile_or_a_queue() {
    let site = Site::start();
    for _ in 0..2 {
        site.sh("sbatch -J same -d singleton --wrap 'while test ! -e go; do sleep 0.02; done'")
            .succeeds();
    }
    site.sh("sbatch -J other -d singleton --wait --wrap true").succeeds();
    assert_eq!(site.says("squeue -h -o '%i %t' | sort | xargs"), "1 R 2 PD\n");
    std::fs::write(site.grid.jobs.join("go"), "").unwrap();
    site.grid.wait_for("2", "done");
    let settings = "[[queue]]\nname = \"normal\"\n[[queue]]\nname = \"long\"\n[[profile]]\nname = \"quick\"\ntime_limit = \"7 min\"\n";
    std::fs::write(site.grid.root.join("grid/grid.toml"), settings).unwrap();
    site.grid.forebay(&["reload"], &[]).succeeds();
    site.sh("sbatch -H -q long --wrap true; sbatch -H --qos=quick --wrap true").succeeds();
    assert_eq!(
        site.says("squeue -h -o '%P %l %q' | sort | xargs"),
        "long UNLIMITED normal normal 7:00 quick\n"
    );
    let said = site.sh("sbatch -H --qos=gold --wrap true").expect_code(0).stderr;
    assert!(said.contains("--qos=gold has no effect"), "{said}");
}

#[test]
fn salloc_runs_a_shell_or_a_command_in_a_job() {
    let site = Site::start();
    let said = site.sh("echo 'echo $SLURM_JOB_ID $SLURM_NTASKS' | salloc -n 2 sh");
    assert_eq!(said.stdout, "1 2\n", "{}", said.stderr);
    for line in ["salloc: Granted job allocation 1\n", "salloc: Relinquishing job allocation 1\n"] {
        assert!(said.stderr.contains(line), "{}", said.stderr);
    }
    let refused = site.sh("salloc --no-shell").expect_code(1);
    assert!(refused.stderr.contains("--no-shell is not supported"), "{}", refused.stderr);
    let _ = site.sh("echo 'exit 4' | SHELL=/bin/sh salloc").expect_code(4);
}

#[test]
fn elements_follow_their_partners_and_what_was_used_is_reported() {
    let site = Site::start();
    let wait = "while test ! -e go-$SLURM_ARRAY_TASK_ID; do sleep 0.02; done";
    site.sh(&format!("sbatch -A lab -a 0-1 --wrap '{wait}'")).succeeds();
    site.sh("sbatch -A lab -a 0-1 -d aftercorr:1 -o out-%a.%N --wrap true").succeeds();
    std::fs::write(site.grid.jobs.join("go-1"), "").unwrap();
    site.grid.wait_for("2[2]", "done");
    assert!(site.grid.jobs.join("out-1.h1").exists());
    assert_eq!(site.says("squeue -h -j 2 -o '%i %t %r'"), "2_[0] PD Dependency\n");
    assert!(site.says("scontrol show job 2_1").contains("/out-1.h1\n"));
    std::fs::write(site.grid.jobs.join("go-0"), "").unwrap();
    site.grid.wait_for("2[1]", "done");
    let said = site.sh("sbatch -a 0-2 -d aftercorr:1 --wrap true").expect_code(1).stderr;
    assert!(said.contains("has no element 2"), "{said}");
    let user = site.says("id -un");
    let user = user.trim();
    let report = "cluster AccountUtilizationByUser start=today format=account,login";
    assert_eq!(site.says(&format!("sreport -nP {report}")), format!("root|\nlab|\nlab|{user}\n"));
    assert_eq!(
        site.says("sreport -nP user top start=today format=login,account"),
        format!("{user}|lab\n")
    );
    let utilization = site.says("sreport cluster utilization start=today -t percent");
    assert!(utilization.contains("Usage reported in Percentage of Total\n"), "{utilization}");
    assert!(utilization.contains("100.00%"), "{utilization}");
    site.sh("sbatch --wait --wrap 'sleep 3'").succeeds();
    let used = site.says("sreport -nP cluster utilization start=today format=allocated -t seconds");
    assert!(used.trim().parse::<u64>().expect("a number") >= 2, "{used}");
    let said = site.sh("sreport job SizesByAccount").expect_code(1).stderr;
    assert!(said.contains("not recorded"), "{said}");
    assert!(
        site.says("bugroup")
            .lines()
            .any(|line| line.split(' ').next() == Some(site.says("id -gn").trim()))
    );
    assert!(
        site.sh("bugroup no-such-group").expect_code(255).stderr.contains("No such user group")
    );
    assert!(site.sh("bkill -V").expect_code(0).stderr.contains("LSF"));
}
