//! What our commands in the style of Slurm print, beside what Debian's Slurm prints.

use forebay_e2e::command::{Ended, run};
use forebay_e2e::need;

use crate::fixture::{Fixture, LIMIT};

/// Commands whose headings have to be Slurm's, with the line in which they are, counted from 0.
const HEADINGS: [(&str, usize); 9] = [
    ("squeue", 0),
    ("squeue -l", 1),
    (
        "squeue -o '%.18i|%.9P|%.8j|%.2t|%.10M|%.6D|%R|%l|%q|%A|%F|%K|%m|%r|%V|%Q|%C|%c|%S|%e|%N|%B'",
        0,
    ),
    ("squeue -O JobID,JobArrayID:14,Name:10,State:.8,UserName,Partition,NodeList,Reason", 0),
    ("sinfo", 0),
    ("sinfo -s", 0),
    ("sinfo -N -l", 1),
    ("sinfo -o '%P|%a|%l|%D|%t|%N|%C|%c|%m|%e|%F|%A'", 0),
    ("sinfo -a -o '%P %G %l %p %c %m'", 0),
];

/// Commands whose whole output and exit code have to be Slurm's.
const WHOLE: [&str; 12] = [
    "squeue -j 999",
    "squeue -h -j 999",
    "scancel 999",
    "scancel abc",
    "scancel -n nonesuch",
    "scontrol show job 999",
    "scontrol hold 999",
    "squeue -p nope",
    "sinfo -p nope",
    "squeue -h -o '%t|%T|%j|%u|%D|%C|%r|%R|%M|%l|%m|%K|%N' | sort",
    "squeue -h -n array -o '%t %j %K %r'",
    "sinfo -h -s -p nope",
];

impl Fixture {
    fn ours(&self, line: &str) -> Ended {
        let mut command = self.shell(line);
        let path = std::env::var("PATH").expect("has a PATH");
        command.env("PATH", format!("{}:{path}", self.jobs.join("bin").display()));
        run(&mut command, LIMIT)
    }

    fn slurms(&self, line: &str) -> Ended {
        run(&mut self.shell(line), LIMIT)
    }

    fn shell(&self, line: &str) -> std::process::Command {
        let mut command = need::program("sh");
        command.args(["-c", line]).env("FOREBAY_GRID", &self.root).env("TZ", "UTC");
        command.env("SLURM_CONF", self.slurm.conf()).current_dir(&self.jobs);
        command
    }
}

#[test]
fn our_commands_print_what_slurms_print() {
    let grid = Fixture::start("");
    let bin = grid.jobs.join("bin").display().to_string();
    std::fs::create_dir(&bin).expect("makes a folder");
    grid.forebay(&["compat", "install", &bin]).succeeds();
    // The same jobs in both.
    for submit in
        ["sbatch --hold -J held --wrap true", "sbatch --hold -J array --array=2-3%1 --wrap true"]
    {
        let (ours, slurms) = (grid.ours(submit), grid.slurms(submit));
        let words =
            |ended: &Ended| ended.stdout.rsplit_once(' ').map(|(words, _)| words.to_owned());
        assert_eq!(words(&ours), Some("Submitted batch job".to_owned()), "{ours:?}");
        assert_eq!(words(&ours), words(&slurms));
    }
    let mut differences = Vec::new();
    for (line, at) in HEADINGS {
        let heading = |ended: Ended| {
            let text = ended.output();
            text.lines().nth(at).unwrap_or_default().trim_end().to_owned()
        };
        let (ours, slurms) = (heading(grid.ours(line)), heading(grid.slurms(line)));
        if ours != slurms {
            differences.push(format!("{line}\n  ours  {ours}\n  Slurm {slurms}"));
        }
    }
    for line in WHOLE {
        let (ours, slurms) = (grid.ours(line), grid.slurms(line));
        let shown = |ended: &Ended| {
            (ended.code(), ended.stdout.replace("normal", "batch"), ended.stderr.clone())
        };
        if shown(&ours) != shown(&slurms) {
            differences.push(format!(
                "{line}\n  ours  {:?}\n  Slurm {:?}",
                shown(&ours),
                shown(&slurms)
            ));
        }
    }
    let all = differences.join("\n");
    grid.ours("scancel -u root").succeeds();
    grid.slurms("scancel -u root").succeeds();
    assert!(differences.is_empty(), "{all}");
    grid.wait_for_nothing_left();
    grid.down();
}
