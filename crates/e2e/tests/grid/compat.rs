//! The commands of Slurm and LSF on a grid: what people type, and what tools call and read.

use std::path::PathBuf;
use std::process::Command;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::wait_until;

use crate::{Fixture, LIMIT};

/// A grid, with the commands in a directory of their own.
pub struct Site {
    pub grid: Fixture,
    commands: PathBuf,
}

impl Site {
    pub fn start() -> Site {
        let grid = Fixture::start();
        let commands = grid.root.join("../bin");
        let install = ["compat", "install", &commands.display().to_string()];
        assert!(grid.forebay(&install, &[]).output().contains("sbatch"));
        Site { grid, commands }
    }

    /// A line of a shell that finds the commands.
    pub fn sh(&self, line: &str) -> Ended {
        let path = format!("{}:{}", self.commands.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("PATH", path).env("FOREBAY_GRID", &self.grid.root);
        command.env("USER", "root").current_dir(&self.grid.jobs);
        run(&mut command, LIMIT)
    }

    pub fn says(&self, line: &str) -> String {
        self.sh(line).output()
    }

    /// Waits until a line prints this.
    pub fn wait_until_says(&self, line: &str, text: &str) {
        wait_until(&format!("{line} says {text}"), LIMIT, || self.sh(line).stdout.trim() == text);
    }
}

#[test]
fn sbatch_takes_scripts_and_sacct_says_how_they_ended() {
    let site = Site::start();
    std::fs::write(
        site.grid.jobs.join("one.sh"),
        "#!/bin/bash\n#SBATCH -J month -t 1:30:00 --mem=64M\n#SBATCH --output=%x-%j.out --comment='a b'\n\
         echo $SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_NTASKS $SLURM_SUBMIT_DIR $1\nexit 3\n",
    )
    .unwrap();
    assert_eq!(site.says("sbatch -n 2 one.sh x"), "Submitted batch job 1\n");
    let ended =
        "sacct -X -n -P -j 1 -o JobID,JobName,State,ExitCode,AllocCPUS,ReqMem,Timelimit,Comment";
    site.wait_until_says(ended, "1|month|FAILED|3:0|2|64M|01:30:00|a b");
    let jobs = site.grid.jobs.canonicalize().unwrap();
    assert_eq!(site.grid.lines("month-1.out"), [format!("1 month 2 {} x", jobs.display())]);
    // A script on standard input, a command, and what is not a script.
    assert_eq!(site.says("printf '#!/bin/sh\\ntrue\\n' | sbatch --parsable"), "2\n");
    assert_eq!(site.says("sbatch --parsable --wait --wrap 'exit 0'"), "3\n");
    let _ = site.sh("sbatch --wait --wrap 'exit 7'").expect_code(7);
    let refused = site.sh("echo true | sbatch").expect_code(1);
    assert!(refused.stderr.contains("sbatch: error: This does not look like a batch script"));
    let refused = site.sh("sbatch --nodes=4 --wrap true").expect_code(1);
    assert!(refused.stderr.contains("runs on one host"), "{}", refused.stderr);
    for (option, reason) in [
        ("--gres=gpu:1", "there is no resource gpu"),
        ("--tmp=10G", "--tmp is not supported"),
        ("--uid 65534", "runs as the user who submits it"),
        ("--gid=65534", "runs as the user who submits it"),
        ("--immediate", "--immediate is not supported"),
        ("-M other", "a Forebay grid is one cluster, forebay"),
        ("--colour red", "\"red\" may be its value"),
    ] {
        let refused = site.sh(&format!("sbatch {option} --wrap true")).expect_code(1);
        assert!(refused.stderr.contains(reason), "{option}: {}", refused.stderr);
    }
    // Variables stand for options, before lines of the script and behind the command line.
    let refused = site.sh("SBATCH_CPUS_PER_GPU=2 sbatch -H one.sh").expect_code(1);
    assert!(refused.stderr.contains("asks for no GPU"), "{}", refused.stderr);
    site.sh("SBATCH_JOB_NAME=env SBATCH_MEM_PER_NODE=9M sbatch -H one.sh --mem 5M").succeeds();
    assert_eq!(site.says("SQUEUE_NAMES=env SQUEUE_FORMAT='%j %m' squeue -h"), "env 9M\n");
    site.sh("SCANCEL_NAME=env scancel --me").succeeds();
    // Options that have no effect are named, and do not hide those behind them.
    std::fs::write(
        site.grid.jobs.join("two.sh"),
        "#!/bin/sh\n#SBATCH --time-min=5\n#SBATCH --colour red\n#SBATCH -M forebay --mincpus=2\ntrue\n",
    )
    .unwrap();
    let said = site.sh("sbatch -H --uid=root --gid=0 --parsable two.sh").expect_code(0);
    for warned in ["--time-min has no effect", "unknown option --colour", "\"red\" is ignored"] {
        assert!(said.stderr.contains(warned), "{warned}: {}", said.stderr);
    }
    assert_eq!(site.says(&format!("squeue -h -j {} -o %C", said.stdout.trim())), "2\n");
}

#[test]
fn a_submission_that_waits_takes_the_end_of_a_forgotten_job_from_the_history() {
    let site = Site::start();
    std::fs::write(site.grid.root.join("grid/grid.toml"), "[general]\nfinished_max = 1\n").unwrap();
    site.grid.forebay(&["reload"], &[]).succeeds();
    // Arrays of more elements than the grid keeps are forgotten with their end, or before it is asked for.
    for line in [
        "sbatch --wait --array=1-2 --wrap 'test $SLURM_ARRAY_TASK_ID != 2 || exit 9'",
        "echo 'test $LSB_JOBINDEX != 2 || exit 9' | bsub -K -J 'a[1-2]'",
    ] {
        let _ = site.sh(line).expect_code(9);
    }
}

#[test]
fn an_array_of_slurm_has_its_own_indices_everywhere() {
    let site = Site::start();
    let script = "test $SLURM_ARRAY_TASK_ID != 1; echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MAX";
    let submit = format!(
        "sbatch --parsable --array=0-3%2 -H -o '%A_%a.log' --wrap '{script}; exit $SLURM_ARRAY_TASK_ID'"
    );
    assert_eq!(site.says(&submit), "1\n");
    assert_eq!(site.says("squeue -h -o '%i %t %r'"), "1_[0-3%2] PD JobHeldUser\n");
    assert_eq!(site.says("squeue -h -r -o '%i %K' | tail -1"), "1_3 3\n");
    // A met condition is not what a job waits for.
    assert_eq!(
        site.says("sbatch --parsable -d after:1 --begin=now+1hour -J late --wrap true"),
        "2\n"
    );
    assert_eq!(site.says("squeue -h -n late -o %r"), "Dependency\n");
    site.sh("scontrol release 1").succeeds();
    let ended = "sacct -X -n -P -j 1 -o JobID,State,ExitCode | sort | tr '\\n' ' '";
    site.wait_until_says(ended, "1_0|COMPLETED|0:0 1_1|FAILED|1:0 1_2|FAILED|2:0 1_3|FAILED|3:0");
    assert_eq!(site.grid.lines("1_0.log"), ["1 0 3"]);
    assert_eq!(site.says("sacct -X -n -P -j 1_2 -o JobIDRaw,ExitCode"), "10000000003|2:0\n");
    assert_eq!(site.says("sacct -X -n -P -j 10000000003 -o JobID"), "1_2\n");
    assert_eq!(site.says("squeue -h -n late -o %r"), "BeginTime\n");
    site.sh("scancel -n late").succeeds();
    // Dependencies name elements by the same indices.
    site.sh("sbatch -d afterok:1_0 -J after --wrap true").succeeds();
    site.wait_until_says("sacct -X -n -P --name after -o State", "COMPLETED");
}

#[test]
fn squeue_scancel_and_scontrol_act_on_what_waits_and_runs() {
    let site = Site::start();
    site.sh("sbatch -J long --wrap 'sleep 600 & wait'").succeeds();
    site.wait_until_says("squeue -h -o '%i %T %N' --me", "1 RUNNING h1");
    assert_eq!(site.says("squeue -h -t PD -o %i"), "");
    // What no job here has is shown as by Slurm.
    assert_eq!(
        site.says("squeue -h -o '%i %d %f %h %v %X %y %z'"),
        "1 0 (null) OK (null) N/A 0 *:*:*\n"
    );
    let long = "squeue -h -O JobID:.3,MinTmpDisk:.3,Feature:.7,OverSubscribe:.3,Reservation:.7,SCT:.6,tres-per-node:.4";
    assert_eq!(site.says(long), "  1  0 (null) OK (null) *:*:* N/A\n");
    assert_eq!(site.says("squeue -h -j 1 -o '%T %B'"), "RUNNING h1\n");
    let shown = site.says("scontrol show job 1 -o");
    assert!(
        shown.contains("JobId=1 JobName=long ") && shown.contains(" JobState=RUNNING "),
        "{shown}"
    );
    site.sh("scancel --name long").succeeds();
    site.wait_until_says("sacct -X -n -P -j 1 -o State", "CANCELLED by 0");
    site.wait_until_says("squeue -h", "");
    let unknown = site.sh("scancel 99").expect_code(0);
    assert_eq!(unknown.stderr, "");
    let unknown = site.sh("scancel -v 99").expect_code(0);
    assert!(unknown.stderr.contains("Invalid job id specified"), "{}", unknown.stderr);
    assert!(site.sh("squeue -j 99").expect_code(1).stderr.contains("Invalid job id"));
    for (line, reason) in [
        ("squeue -s", "use sstat"),
        ("squeue -i x", "expected seconds"),
        ("sacct -g staff", "--gid is not supported"),
        ("scancel -M other 1", "one cluster, forebay"),
        ("sinfo -O Colour", "Invalid node format specification: Colour"),
    ] {
        let refused = site.sh(line).expect_code(1);
        assert!(refused.stderr.contains(reason), "{line}: {}", refused.stderr);
    }
    let none = "squeue -h -R none; squeue -h -L sas; sinfo -h -d; sinfo -h -R";
    assert_eq!(site.says(none), "");
    assert_eq!(
        site.says("sinfo -h -r -O NodeList:4,StateCompact:6,Gres:.8"),
        "h1  idle    (null)\n"
    );
    site.sh("scontrol update NodeName=h1 State=DRAIN Reason=disk").succeeds();
    assert_eq!(site.says("sinfo -h -R -o '%E|%t|%N'"), "Closed|drain|h1\n");
    let repeated = site.says("squeue -h -i 1 | head -2 | grep -c 20");
    assert_eq!(repeated, "1\n");
    site.sh("scontrol update NodeName=h1 State=RESUME").succeeds();
    let sinfo = site.says("sinfo -h -o '%P %a %D %t %C'");
    assert!(sinfo.contains("* up 1 idle 0/4/0/4"), "{sinfo}");
}

#[test]
fn srun_starts_processes_in_a_job_and_a_job_outside() {
    let site = Site::start();
    let _ = site.sh("sbatch -n 3 -o out --wait --wrap 'srun --output=rank-%t sh -c \"echo \\$SLURM_PROCID of \\$SLURM_NTASKS; exit \\$SLURM_PROCID\"'")
        .expect_code(2);
    for rank in 0..3 {
        assert_eq!(site.grid.lines(&format!("rank-{rank}")), [format!("{rank} of 3")]);
    }
    let outside = site.sh("echo in | srun sh -c 'cat; exit 5'").expect_code(5);
    assert_eq!(outside.stdout, "in\n");
}

#[test]
fn bsub_takes_scripts_and_bjobs_says_how_they_ended() {
    let site = Site::start();
    std::fs::write(
        site.grid.jobs.join("one.sh"),
        "#!/bin/bash\n#BSUB-J load[1-2]\n#BSUB -W 1:30 -M 64MB\n#BSUB -oo %J-%I.out\n\
         echo $LSB_JOBID $LSB_JOBINDEX $LSB_JOBNAME; exit $((LSB_JOBINDEX - 1))\n",
    )
    .unwrap();
    let said = site.says("bsub < one.sh");
    assert!(said.starts_with("Job <1> is submitted to default queue <"), "{said}");
    let ended = "bjobs -a -noheader -o \"jobid jobindex stat exit_code delimiter=','\" 1 | sort | tr '\\n' ' '";
    site.wait_until_says(ended, "1,1,DONE,- 1,2,EXIT,1");
    assert_eq!(site.grid.lines("1-2.out"), ["1 2 load[2]"]);
    // After other jobs, waited for, with its exit code.
    let _ = site.sh("bsub -K -w 'ended(1)' 'exit 4'").expect_code(4);
    site.sh("bsub -J uuid-7 sleep 600").succeeds();
    site.wait_until_says("bjobs -noheader -o 'jobid stat' -aJ '*uuid*' | tr -s ' '", "3 RUN");
    // What is suspended is counted.
    site.sh("bstop 3").succeeds();
    site.wait_until_says("bjobs -noheader -o stat 3", "USUSP");
    assert_eq!(site.says("bhosts -noheader -o 'njobs run ususp ssusp' h1 | xargs"), "1 0 1 0\n");
    assert_eq!(site.says("bqueues -noheader -o 'run susp ususp' normal | xargs"), "0 1 1\n");
    site.sh("bresume 3").succeeds();
    site.wait_until_says("bjobs -noheader -o stat 3", "RUN");
    // By state and time; finished jobs with -a or -d alone.
    let ids = "tail -n +3 | cut -d ' ' -f 1 | sort | xargs";
    assert_eq!(site.says(&format!("bhist | {ids}")), "3\n");
    assert_eq!(site.says(&format!("bhist -d | {ids}")), "1[1] 1[2] 2\n");
    assert_eq!(site.says(&format!("bhist -e -J load | {ids}")), "1[2]\n");
    assert!(
        site.sh("bhist -a -S 2020/1/1,2020/1/2").expect_code(255).stderr.contains("No matching")
    );
    let long = site.says("bhist -l 2");
    assert!(long.contains(": Ended: exited ("), "{long}");
    assert_eq!(site.says("bkill 3"), "Job <3> is being terminated\n");
    site.wait_until_says("bjobs -noheader -o stat -a 3", "EXIT");
    assert!(site.sh("bjobs 99").expect_code(255).stderr.contains("Job <99> is not found"));
    for (options, reason) in [
        ("-f 'a > b'", "-f is not supported"),
        ("-a openmpi -n 4", "no submission filter"),
        ("-s 12", "-s is not supported"),
        ("-colour red", "\"red\" may be its value"),
        ("-R 'select[hname==h1]'", "choose hosts by -m"),
    ] {
        let refused = site.sh(&format!("bsub {options} true")).expect_code(255);
        assert!(refused.stderr.contains(reason), "{options}: {}", refused.stderr);
    }
    // Options that have no effect are named, and do not hide those behind them.
    std::fs::write(
        site.grid.jobs.join("two.sh"),
        "#BSUB -colour red\n#BSUB -Lp sas -H -n 2\n#BSUB -R 'select[mem>=64] order[ut] rusage[mem=64,tmp=5]'\ntrue\n",
    )
    .unwrap();
    let said =
        site.sh("LSB_DEFAULTQUEUE=nowhere bsub -q normal -notify exit < two.sh").expect_code(0);
    for warned in ["unknown option -colour", "-Lp has", "-notify has", "order[ut]", "rusage[tmp=5]"]
    {
        assert!(said.stderr.contains(warned), "{warned}: {}", said.stderr);
    }
    assert!(!said.stderr.contains("select["), "{}", said.stderr);
    assert_eq!(site.says("bjobs -noheader -o slots 4").trim(), "2");
    let refused = site.sh("LSB_DEFAULTQUEUE=nowhere bsub true").expect_code(255);
    assert!(refused.stderr.contains("nowhere"), "{}", refused.stderr);
}

#[test]
fn submit_reads_the_lines_of_slurm_and_lsf_and_its_own_options_win() {
    let site = Site::start();
    std::fs::write(
        site.grid.jobs.join("slurm.sh"),
        "#!/bin/sh\n#SBATCH -J month -n 2 -o %x.%j\necho $FOREBAY_SLOTS $SLURM_JOB_ID\n",
    )
    .unwrap();
    let grid = &site.grid;
    grid.forebay(&["submit", "--wait", "-n", "3", "slurm.sh"], &[]).succeeds();
    assert_eq!(grid.lines("month.1"), ["3 1"]);
    std::fs::write(grid.jobs.join("lsf.sh"), "#!/bin/sh\n#BSUB -q nowhere\ntrue\n").unwrap();
    assert!(grid.forebay(&["submit", "lsf.sh"], &[]).refused().contains("nowhere"));
}

#[test]
fn bwait_waits_for_a_condition_and_bacct_sums_up_what_has_ended() {
    let site = Site::start();
    site.sh("bsub -q normal -J first 'while test ! -e go; do sleep 0.05; done'").succeeds();
    site.sh("bsub -J second 'exit 2'").succeeds();
    site.sh("bwait -w 'started(first)' && touch go && bwait -w 'done(first) && exit(2, == 2)'")
        .succeeds();
    let never = site.sh("bwait -w 'done(second)'").expect_code(1).stderr;
    assert!(never.contains("can never become true"), "{never}");
    let unknown = site.sh("bwait -w 'done(nosuch)'").expect_code(255).stderr;
    assert!(unknown.contains("nosuch"), "{unknown}");
    let sums = site.says("bacct");
    for text in ["users root,", "number of done jobs:         1", "number of exited jobs:      1"] {
        assert!(sums.contains(text), "{text}: {sums}");
    }
    assert!(site.says("bacct -e -l").contains("Job <2>, Job Name <second>"));
    assert!(site.sh("bacct -C 2020/1/1,2020/1/2").expect_code(255).stderr.contains("No matching"));
    let queue = site.says("bqueues -l normal");
    assert!(queue.contains("QUEUE: normal") && queue.contains("Open:Active"), "{queue}");
    assert!(queue.contains("This is the default queue"), "{queue}");
    let columns = "bqueues -noheader -o \"queue_name:10 status:-14 jlp delimiter='|'\" normal";
    assert_eq!(site.says(columns).trim(), "normal|Open:Active|-");
    let shown = site.says("bqueues -o 'qname:8 stat:-12 njobs:5'");
    assert!(shown.starts_with("QUEUE_N*       STATUS NJOBS\n"), "{shown}");
    let hosts = site.says("bhosts -noheader -o 'host_name:12 max:-4'");
    assert!(hosts.lines().next().is_some_and(|line| line.len() == 17), "{hosts}");
    assert_eq!(site.says("LSB_BHOSTS_FORMAT=status:6 bhosts -noheader | sort -u").trim(), "ok");
    let unknown = site.sh("bqueues -o 'queue_name colour'").expect_code(255).stderr;
    assert!(unknown.contains("colour: Invalid field name; choose from queue_name"), "{unknown}");
    assert!(site.sh("bhosts -o max nosuch").expect_code(255).stderr.contains("Bad host name"));
}

#[test]
fn jobs_are_chosen_by_state_and_options_that_would_hit_others_are_refused() {
    let site = Site::start();
    site.sh("bsub -J long 'sleep 600'").succeeds();
    site.wait_until_says("bjobs -noheader -o stat 1", "RUN");
    site.sh("bsub -H true && bsub 'exit 3' && bsub true").succeeds();
    site.wait_until_says("bjobs -a -noheader -o stat 3 4 | xargs", "EXIT DONE");
    for (line, code, reason) in [
        ("bkill -G staff 0", 255, "user group"),
        ("bkill -app fast 0", 255, "application profile"),
        ("bsub -g mine true", 255, "does not begin with /"),
        ("brequeue -H 1", 255, "bstop"),
        ("bkill -stat odd 0", 255, "run, pend and susp"),
        ("scancel --qos=high --me", 1, "a grid has no QOS"),
    ] {
        let refused = site.sh(line).expect_code(code);
        assert!(refused.stderr.contains(reason), "{line}: {}", refused.stderr);
    }
    let left = "bjobs -noheader -o 'jobid stat' | sort | xargs";
    assert_eq!(site.says(left), "1 RUN 2 PSUSP\n");
    assert_eq!(site.says("bkill -stat susp 0"), "Job <2> is being terminated\n");
    assert_eq!(site.says("brequeue -d 0"), "Job <4> is being requeued\n");
    let none = site.sh("brequeue -d 1 3").expect_code(255);
    assert!(none.stderr.contains("No matching job found"), "{}", none.stderr);
    // How loaded hosts are, and what they have.
    let load = "lsload h1 | tail -1 | cut -d ' ' -f 1";
    site.wait_until_says("lsload h1 | tail -1 | awk '{ print $1, $2, NF }'", "h1 ok 12");
    assert_eq!(
        (site.says(load), site.says("lshosts -w | awk 'NR > 1 { print $1, $5 }'")),
        ("h1\n".into(), "h1 4\n".into())
    );
    let bad = site.sh("lsload nobody").expect_code(255);
    assert!(bad.stderr.contains("nobody: Bad host name"), "{}", bad.stderr);
    // What a job writes is shown until it ends.
    site.sh("bsub -J talk 'echo one; while ! test -e go; do sleep 0.05; done; echo two'")
        .succeeds();
    site.wait_until_says("bjobs -noheader -o stat -J talk", "RUN");
    // It follows the job before that ends.
    let shown = site.says(
        "bpeek -f -J talk > peek & until grep -q one peek; do sleep 0.05; done; touch go; wait; cat peek",
    );
    assert_eq!(shown, "<< output from stdout >>\none\ntwo\n");
    // A login shell reads what a user has for logins.
    std::fs::write(site.grid.jobs.join(".profile"), "export GREETING=hello\n").unwrap();
    let script = "#!/bin/sh\n#BSUB -L /bin/bash\n#BSUB -o login.out\necho $GREETING $0\n";
    std::fs::write(site.grid.jobs.join("login.sh"), script).unwrap();
    site.sh("HOME=$PWD bsub -K < login.sh").succeeds();
    let said = std::fs::read_to_string(site.grid.jobs.join("login.out")).unwrap();
    assert!(said.starts_with("hello "), "{said}");
}

#[test]
fn job_groups_choose_and_limit_jobs() {
    let site = Site::start();
    assert_eq!(site.says("bgadd -L 1 /risk"), "Job group </risk> was added.\n");
    assert!(site.sh("bgadd /risk").expect_code(255).stderr.contains("is there already"));
    for _ in 0..2 {
        site.sh("bsub -g /risk/daily 'sleep 600'").succeeds();
    }
    site.sh("bsub -g /other 'sleep 600'").succeeds();
    site.wait_until_says(
        "bjobs -noheader -o 'jobid stat job_group:20' | sort | xargs",
        "1 RUN /risk/daily 2 PEND /risk/daily 3 RUN /other",
    );
    let groups = "bjgroup | awk 'NR > 1 { print $1, $2, $3, $4, $9 }' | xargs";
    assert_eq!(site.says(groups), "/other 1 0 1 1/- /risk 0 0 0 1/1 /risk/daily 2 1 1 1/-\n");
    let why = site.says("bjobs -p -g /risk/daily");
    assert!(why.contains("job group /risk has 1 of at most 1 tasks on hosts;"), "{why}");
    assert!(site.says("bjobs -l 2").contains("PENDING REASONS:"));
    let sum = site.says("bjobs -psum");
    assert!(sum.contains(" job group /risk has 1 of at most 1 tasks on hosts: 1 jobs\n"), "{sum}");
    assert_eq!(site.says("bjobs -noheader -o jobid -g /other/").trim(), "3");
    assert!(site.sh("bgdel /risk").expect_code(255).stderr.contains("has 2 jobs"));
    // The same in our own words.
    let grid = &site.grid;
    let listed = grid.forebay(&["group", "list", "--json"], &[]).output();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed[1]["group"], &listed[1]["limit"]), (&"/risk".into(), &1.into()));
    grid.forebay(&["group", "limit", "/risk", "2"], &[]).succeeds();
    site.wait_until_says("bjobs -noheader -o stat 2", "RUN");
    assert_eq!(site.says("bmod -gn 2"), "Parameters of job <2> are being changed\n");
    let own = grid.forebay(&["jobs", "--group", "/risk"], &[]).output();
    assert_eq!(own.lines().count(), 2, "{own}");
    grid.forebay(&["kill", "--group", "/risk"], &[]).succeeds();
    assert_eq!(site.says("bkill -g /other 0"), "Job <3> is being terminated\n");
    site.wait_until_says("bjobs -noheader -o jobid", "2");
    assert_eq!(site.says("bgdel /risk"), "Job group </risk> was deleted.\n");
    assert!(site.sh("bjgroup /risk").expect_code(255).stderr.contains("No job group found"));
    let parameters = site.says("bparams; bparams -a");
    assert!(parameters.contains("Default Queues:  normal\n"), "{parameters}");
    assert!(parameters.contains("    MAX_JOB_ARRAY_SIZE = 1000000\n"), "{parameters}");
}

#[test]
fn sstat_shows_what_jobs_use_and_sprio_in_which_order_they_go() {
    let site = Site::start();
    site.sh("sbatch -c 4 --wrap 'i=0; while test ! -e go; do i=$((i + 1)); done'").succeeds();
    site.wait_until_says("squeue -h -j 1 -o %T", "RUNNING");
    wait_until("its use is known", LIMIT, || {
        let said = site.sh("sstat -n -P -j 1 -o JobID,AveCPU,MaxRSS,NTasks").stdout;
        let cells: Vec<&str> = said.trim().split('|').collect();
        cells.len() == 4
            && (cells[0], cells[3]) == ("1.batch", "1")
            && cells[1] > "00:00:00"
            && cells[2].ends_with('K')
    });
    for (options, name) in [("-c 4", "first"), ("-c 4 --nice=10", "nice"), ("-c 4", "second")] {
        site.sh(&format!("sbatch {options} -J {name} --wrap true")).succeeds();
    }
    let order = "sprio -h -o '%Y %i %N %u' | sort -rn | xargs";
    assert_eq!(site.says(order), "3 2 0 root 2 4 0 root 1 3 10 root\n");
    assert_eq!(site.says("sprio -h -j 3 -o '%i %Y %r'"), "3 1 normal\n");
    let heading = site.says("sprio | head -1");
    assert!(heading.contains("JOBID PARTITION   PRIORITY"), "{heading}");
    assert!(site.sh("sprio -j 1").expect_code(1).stderr.contains("Unable to find jobs"));
    assert!(site.sh("sstat -j 2").expect_code(1).stderr.contains("no steps running for job 2"));
    std::fs::write(site.grid.jobs.join("go"), "").unwrap();
    site.wait_until_says("squeue -h", "");
}

#[test]
fn standard_input_comes_from_a_file_and_squeue_sorts() {
    let site = Site::start();
    std::fs::write(site.grid.jobs.join("in put"), "one\n").unwrap();
    site.sh("sbatch --wait -i 'in put' -o slurm.out --wrap cat").succeeds();
    assert_eq!(site.grid.lines("slurm.out"), ["one"]);
    site.sh("bsub -K -i 'in put' -oo lsf.out 'cat; echo two'").succeeds();
    assert_eq!(site.grid.lines("lsf.out"), ["one", "two"]);
    let missing = site.sh("sbatch --wait -i nowhere --wrap 'touch ran'");
    assert!(!missing.status.success() && !site.grid.jobs.join("ran").exists());
    for name in ["b", "c", "a"] {
        site.sh(&format!("sbatch -H -J {name} --wrap true")).succeeds();
    }
    assert_eq!(site.says("squeue -h -S j -o %j | xargs"), "a b c\n");
    site.sh("bsub -H -J 'load[1-3]' true").succeeds();
    let arrays = "bjobs -A -noheader | awk '{ print $2, $3, $4, $NF }'";
    assert_eq!(site.says(arrays), "load[1-3] root 3 3\n");
    assert_eq!(site.says("bjobs -sum | awk 'NR == 2 { print $1, $5 }'"), "0 6\n");
    site.sh("bkill -J load 0").succeeds();
    assert_eq!(site.says("squeue -h -S -i -o %j | xargs"), "a c b\n");
    let fields = "sacct -X -n -P -j 1 -o MaxVMSize,Reservation,Planned,ConsumedEnergy,State";
    assert!(site.says(fields).ends_with("|COMPLETED\n"));
}
