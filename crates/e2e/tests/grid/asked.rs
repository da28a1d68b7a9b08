//! What a job may ask for besides slots and memory, and what is changed of it later, with real processes.

use std::process::Command;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::wait_until;
use serde_json::Value;

use crate::{Fixture, LIMIT};

/// A grid with these settings, and the commands of Slurm and LSF.
pub(crate) struct Site {
    pub(crate) grid: Fixture,
}

impl Site {
    pub(crate) fn start(settings: &str) -> Site {
        let grid = Fixture::start();
        std::fs::write(grid.root.join("grid/grid.toml"), settings).unwrap();
        let _ = grid.forebay(&["reload"], &[]).output();
        let commands = grid.root.join("../bin").display().to_string();
        let _ = grid.forebay(&["compat", "install", &commands], &[]).output();
        Site { grid }
    }

    pub(crate) fn sh(&self, line: &str) -> Ended {
        let commands = self.grid.root.join("../bin");
        let path = format!("{}:{}", commands.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("PATH", path).env("FOREBAY_GRID", &self.grid.root);
        command.env("USER", "root").current_dir(&self.grid.jobs);
        run(&mut command, LIMIT)
    }

    pub(crate) fn says(&self, line: &str) -> String {
        self.sh(line).output().trim().to_owned()
    }

    pub(crate) fn refuses(&self, line: &str, part: &str) {
        let ended = self.sh(line);
        assert!(!ended.status.success(), "{line}");
        assert!(ended.stderr.contains(part), "{line}: {}", ended.stderr);
    }

    pub(crate) fn explains(&self, job: &str, part: &str) {
        wait_until(&format!("job {job} explains: {part}"), LIMIT, || {
            self.grid.forebay(&["explain", job], &[]).output().contains(part)
        });
    }

    pub(crate) fn asked(&self, job: &str) -> Value {
        let told = self.grid.forebay(&["jobs", job, "--json"], &[]).output();
        let mut told: Value = serde_json::from_str(&told).unwrap();
        told[0]["asked"].take()
    }
}

const RESOURCES: &str = "[resources]\nsas = 1\n[[host]]\nname = \"h1\"\nresources = { gpu = 4 }\n";

#[test]
fn jobs_get_devices_of_their_own_and_licences_are_counted() {
    let site = Site::start(RESOURCES);
    let grid = &site.grid;
    let holds =
        "echo $CUDA_VISIBLE_DEVICES > $FOREBAY_JOB.gpus; while [ ! -e end ]; do sleep 0.1; done";
    let one = grid.submit(&["--resource", "gpu:2,sas"], holds);
    grid.wait_for(&one, "running");
    let two = site.says(&format!("sbatch --parsable --gres=gpu:1 --wrap '{holds}'"));
    grid.wait_for(&two, "running");
    let three = grid.submit(&["--resource", "sas"], "true");
    site.explains(&three, "it needs 1 of sas, and jobs use 1 of 1 on the grid");
    let four = site.says("bsub -gpu num=2 true | sed 's/[^0-9]//g'");
    site.explains(&four, "resource gpu: has only 1 of it free");
    let five = grid.submit(&[], "echo \"none:$CUDA_VISIBLE_DEVICES\" > none");
    grid.wait_for_end(&five);
    assert_eq!(grid.lines("none"), ["none:"], "who asks for no device sees none");
    let resources = grid.forebay(&["resources"], &[]).output();
    let used: Vec<Vec<&str>> =
        resources.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(used, [["sas", "-", "1", "1", "0"], ["gpu", "h1", "4", "3", "1"]], "{resources}");
    std::fs::write(grid.jobs.join("end"), "").unwrap();
    for job in [&one, &two, &three, &four] {
        grid.wait_for(job, "done");
    }
    assert_eq!(grid.lines(&format!("{one}.gpus")), ["0,1"]);
    assert_eq!(grid.lines(&format!("{two}.gpus")), ["2"]);
    site.refuses("sbatch --licenses=sas:2 --wrap true", "the grid has 1 of it");
    site.refuses("forebay_none=1; bsub -R 'rusage[matlab=1]' true", "choose from gpu, sas");
}

#[test]
fn jobs_begin_and_end_at_their_times() {
    let site = Site::start("");
    let grid = &site.grid;
    let later = grid.submit(&["--begin", "+1 h"], "true");
    site.explains(&later, "it may not begin before 20");
    assert_eq!(site.says(&format!("squeue -h -j {later} -o %r")), "BeginTime");
    let of_slurm =
        site.says("sbatch --parsable --begin=now+1hour --deadline=now+2hours --wrap true");
    assert!(site.asked(&of_slurm)["deadline"].as_u64() > site.asked(&of_slurm)["begin"].as_u64());
    site.says(&format!("scontrol update JobId={later} StartTime=now"));
    grid.wait_for(&later, "done");
    let ended =
        grid.forebay(&["submit", "--deadline", "+20 s", "--wait", "--", "sleep", "600"], &[]);
    assert_eq!(ended.status.code(), Some(143), "{}", ended.stderr);
    assert!(ended.stderr.contains("was killed at its --deadline"), "{}", ended.stderr);
    site.refuses("bsub -b 25:00 true", "hour:minute");
    let night = site.says("bsub -b 23:59 -H true | sed 's/[^0-9]//g'");
    assert!(site.asked(&night)["begin"].is_u64());
}

#[test]
fn an_exclusive_job_runs_alone() {
    let site = Site::start("");
    let grid = &site.grid;
    let alone = site.says("bsub -x 'while [ ! -e end ]; do sleep 0.1; done' | sed 's/[^0-9]//g'");
    grid.wait_for(&alone, "running");
    let next = grid.submit(&[], "true");
    site.explains(&next, &format!("h1: is exclusive to job {alone}"));
    let second = site.says("sbatch --parsable --exclusive --wrap true");
    std::fs::write(grid.jobs.join("end"), "").unwrap();
    for job in [&alone, &next, &second] {
        grid.wait_for(job, "done");
    }
}

#[test]
fn jobs_are_changed_by_our_own_commands_and_by_those_of_slurm_and_lsf() {
    let site = Site::start("[[queue]]\nname = \"day\"\n[[queue]]\nname = \"night\"\n");
    let grid = &site.grid;
    let job = grid.submit(&["--hold"], "true");
    let _ = grid
        .forebay(&["modify", &job, "--mem", "64M", "-J", "new", "--time-limit", "1 h"], &[])
        .output();
    let asked = site.asked(&job);
    assert_eq!(
        (&asked["memory_bytes"], &asked["time_limit_seconds"]),
        (&Value::from(64 << 20), &Value::from(3600.0))
    );
    site.says(&format!("scontrol update jobid={job} TimeLimit=30 Partition=night Dependency="));
    assert_eq!(site.says(&format!("squeue -h -j {job} -o '%P %l %j'")), "night 30:00 new");
    let said = site.says(&format!("bmod -Wn -n 2 -P sales {job}"));
    assert_eq!(said, format!("Parameters of job <{job}> are being changed"));
    let asked = site.asked(&job);
    assert!(asked["time_limit_seconds"].is_null() && asked["project"] == "sales", "{asked}");
    assert_eq!(
        site.says(&format!("bswitch day {job}")),
        format!("Job <{job}> is switched to queue <day>")
    );
    let _ = grid.forebay(&["switch", "night", &job], &[]).output();
    let other = grid.submit(&["--hold", "-q", "night"], "true");
    site.says(&format!("btop {other}"));
    assert!(site.asked(&other)["priority"].as_i64() > site.asked(&job)["priority"].as_i64());
    site.says(&format!("scontrol top {job}; bbot {other}"));
    // Among equals the lower number goes first.
    assert!(site.asked(&other)["priority"].as_i64() <= site.asked(&job)["priority"].as_i64());
    site.refuses(&format!("bmod -J 'a[1-3]' {job}"), "elements of an array");
    site.refuses(&format!("scontrol update jobid={job} Foo=1"), "cannot be changed");
    site.refuses("bmod -n 2 999", "No matching job found");
    site.says(&format!("bresume {job}"));
    grid.wait_for(&job, "done");
    site.refuses(&format!("bmod -n 1 {job}"), "already finished");
}

#[test]
fn commands_before_and_after_a_job_run_as_a_part_of_it() {
    let site = Site::start(
        "[[queue]]\nname = \"day\"\npre = \"echo queue-pre\"\npost = \"echo queue-post $FOREBAY_EXIT\"\n\
         starter = \"env BY=starter\"\nspill = [\"spark\", \"sas\"]\n[[profile]]\nname = \"p\"\n\
         environment = { MODE = \"full\" }\n",
    );
    let grid = &site.grid;
    let script = "echo $BY $MODE; test $SPARK_LOCAL_DIRS = $UTIL && echo spilled; echo $SASV9_OPTIONS | grep -c WORK; exit 3";
    let options = ["--pre", "echo mine", "--post", "echo after", "--profile", "p", "-o", "out"];
    let job = grid.submit(&options, script);
    grid.wait_for(&job, "exited");
    let expected = ["queue-pre", "mine", "starter full", "spilled", "1", "after", "queue-post 3"];
    let said = std::fs::read_to_string(grid.jobs.join("out")).unwrap();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let fails = site.says("bsub -app p -E 'exit 9' -o fails 'echo never' | sed 's/[^0-9]//g'");
    grid.wait_for(&fails, "exited");
    let said = grid.lines("fails").join("\n");
    assert!(said.contains("failed with 9") && !said.contains("never\n"), "{said}");
    // What comes after runs also if the job is killed gently; nothing of it is left.
    let killed = grid.submit(&["--post", "echo cleaned > cleaned"], "echo > begun; sleep 600");
    wait_until("it runs", LIMIT, || grid.jobs.join("begun").exists());
    let _ = grid.forebay(&["kill", &killed], &[]).output();
    grid.wait_for(&killed, "killed");
    assert_eq!(grid.lines("cleaned"), ["cleaned"]);
    site.refuses("bsub -app none true", "choose from p");
}

#[test]
fn a_running_job_gets_signals_and_continues() {
    let site = Site::start("");
    let grid = &site.grid;
    // A shell that starts programs again and again may lose a signal: this one only waits.
    let script = "trap 'echo usr1' USR1; trap 'echo usr2; exit 0' USR2; sleep 605 & echo ready; while :; do wait; done";
    let job = grid.submit(&["-o", "out"], script);
    let says = |text: &str| {
        let out = grid.jobs.join("out");
        wait_until(text, LIMIT, || {
            std::fs::read_to_string(&out).is_ok_and(|all| all.contains(text))
        });
    };
    says("ready");
    let _ = grid.forebay(&["signal", "USR1", &job], &[]).output();
    says("usr1");
    // Its output may be there before the controller knows that it runs.
    grid.wait_for(&job, "running");
    site.says(&format!("bkill -s USR2 {job}"));
    grid.wait_for(&job, "done");
    let waits = grid.submit(&["--hold"], "true");
    site.refuses(&format!("scancel -s USR1 {waits}; false"), "");
    let refused = grid.forebay(&["signal", "USR1", &waits], &[]);
    assert!(refused.stderr.contains("is not running"), "{}", refused.stderr);
}
