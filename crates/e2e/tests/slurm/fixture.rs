//! A Slurm with two nodes, and a grid that runs its jobs through it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::command::{Ended, copy_program, run};
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::slurm::Slurm;
use forebay_e2e::{need, wait_until};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

pub const LIMIT: Duration = Duration::from_secs(120);

/// Somebody whom every Debian-like machine has, and who is not root.
pub const ANN: u32 = 1;

pub struct Fixture {
    pub slurm: Slurm,
    pub root: PathBuf,
    pub jobs: PathBuf,
    folder: TempDir,
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("opens");
}

impl Fixture {
    /// Both, with these settings if there are any.
    pub fn start(settings: &str) -> Fixture {
        let folder = scratch_folder();
        open(folder.path(), 0o755);
        let (root, jobs, own) =
            (folder.path().join("g"), folder.path().join("j"), folder.path().join("s"));
        for path in [&root, &jobs, &own] {
            std::fs::create_dir(path).expect("makes a folder");
        }
        open(&jobs, 0o1777);
        copy_program(&need::forebay(), &folder.path().join("forebay"));
        let slurm = Slurm::start(&own, 2);
        let grid = Fixture { slurm, root, jobs, folder };
        if !settings.is_empty() {
            std::fs::create_dir(grid.root.join("grid")).expect("makes a folder");
            std::fs::write(grid.root.join("grid/grid.toml"), settings).expect("writes settings");
        }
        grid.up().succeeds();
        grid
    }

    pub fn up(&self) -> Ended {
        let root = self.root.display().to_string();
        self.forebay(&["up", &root, "--engine", "slurm", "--cgroup", "none"])
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.path().join("forebay"));
        command
            .args(arguments)
            .env("FOREBAY_GRID", &self.root)
            .env("SLURM_CONF", self.slurm.conf());
        command.current_dir(&self.jobs);
        command
    }

    pub fn forebay(&self, arguments: &[&str]) -> Ended {
        run(&mut self.command(arguments), LIMIT)
    }

    /// As another user than root.
    pub fn as_ann(&self, arguments: &[&str]) -> Ended {
        let user = ANN.to_string();
        let mut command = need::program("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
        command.arg(self.folder.path().join("forebay")).args(arguments);
        run(command.env("FOREBAY_GRID", &self.root).current_dir(&self.jobs), LIMIT)
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.forebay(&[arguments, &["--json"]].concat()).output();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Submits a shell script; the number of the job.
    pub fn submit(&self, options: &[&str], script: &str) -> String {
        let words = [&["submit"], options, &["--", "sh", "-c", script]].concat();
        self.forebay(&words).output().trim().to_owned()
    }

    pub fn state(&self, job: &str) -> String {
        self.json(&["jobs", job])[0]["state"].as_str().expect("a state").to_owned()
    }

    pub fn wait_for(&self, job: &str, state: &str) {
        wait_until(&format!("job {job} is {state}"), LIMIT, || self.state(job) == state);
    }

    /// The exit value of a job, once it has ended.
    pub fn exit_of(&self, job: &str) -> u8 {
        let word = |state: &str| ["pending", "starting", "running", "unknown"].contains(&state);
        wait_until(&format!("job {job} has ended"), LIMIT, || !word(&self.state(job)));
        let history = self.history(job);
        let exit = &history.last().expect("it was started")["exit"];
        let value = exit["code"].as_u64().or(exit["signal"].as_u64().map(|number| 128 + number));
        u8::try_from(value.unwrap_or(127)).expect("an exit value")
    }

    /// Waits until explain says something of a job.
    pub fn wait_for_reason(&self, job: &str, reason: &str) {
        wait_until(&format!("job {job}: {reason}"), LIMIT, || {
            self.forebay(&["explain", job]).stdout.contains(reason)
        });
    }

    pub fn history(&self, job: &str) -> Vec<Value> {
        self.json(&["history", job]).as_array().expect("attempts").clone()
    }

    /// The number of a job in Slurm, by what explain says.
    pub fn number(&self, job: &str) -> String {
        let said = self.forebay(&["explain", job]).output();
        let after = said.split("Slurm job ").nth(1).unwrap_or_else(|| panic!("{said}"));
        after.split_whitespace().next().expect("a number").to_owned()
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.jobs.join(name)).unwrap_or_default()
    }

    /// Kills the daemon that holds this lock.
    pub fn kill_holder(&self, lock: &str) {
        let path = self.root.join("grid").join(lock);
        let text = std::fs::read_to_string(&path).expect("a lock names its holder");
        let holder = Pid::from_raw(text.trim().parse().expect("a number")).expect("a process");
        rustix::process::kill_process(holder, Signal::KILL).expect("kills");
        let proc = format!("/proc/{}", holder.as_raw_nonzero());
        wait_until("it is gone", LIMIT, || {
            let stat = std::fs::read_to_string(format!("{proc}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }

    /// What is left of runs, in the folders of the grid.
    pub fn left(&self) -> Vec<PathBuf> {
        let of = |path: &str| std::fs::read_dir(self.root.join("grid").join(path)).into_iter();
        ["slurm/slurm", "hosts/slurm/allocations", "work"]
            .into_iter()
            .flat_map(of)
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.file_name().is_some_and(|name| name != ".forebay-grid"))
            .collect()
    }

    /// Waits until nothing of the jobs is left.
    pub fn wait_for_nothing_left(&self) {
        wait_until("nothing of the jobs is left", LIMIT, || self.left().is_empty());
        wait_until("Slurm is empty", LIMIT, || self.slurm.jobs().is_empty());
    }

    /// Stops the grid, whose jobs have ended.
    pub fn down(&self) {
        let root = self.root.display().to_string();
        self.forebay(&["down", &root]).succeeds();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let root = self.root.display().to_string();
        if std::thread::panicking() {
            eprintln!("left: {:?}; in Slurm: {:?}", self.left(), self.slurm.jobs());
            for log in ["slurm.log", "controller.log"] {
                let text = std::fs::read_to_string(self.root.join("grid").join(log));
                eprintln!("--- {log}\n{}", text.unwrap_or_default());
            }
        }
        let _ = run(&mut self.command(&["down", &root, "--now"]), LIMIT);
    }
}
