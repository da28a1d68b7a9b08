//! A storage for runs, and mixes whose jobs are known.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_e2e::{Ended, mounted, need, run, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Longest time for one command.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Head of a mix; classes follow.
pub const HEAD: &str = "name = \"small\"\ntitle = \"Jobs that are known\"\nstudy = \"none\"\n\
    defaults = { scale = 1, concurrent = 2 }\n";

/// A class of streams with `settings`.
pub fn streams(name: &str, jobs: u32, settings: &str) -> String {
    format!(
        "[[class]]\nname = \"{name}\"\ntitle = \"streams\"\nkind = \"io\"\n\
         jobs = {{ per_run = {jobs} }}\nspace = {{ data_meanwhile = \"8 MiB\" }}\n\
         [[class.step]]\n[class.step.do.stream]\nfile = \"data/{{job}}\"\n{settings}\n"
    )
}

/// Settings of a stream that waits for another, which never comes.
pub const WAITS: &str = "file_bytes = \"4 KiB\"\nblock_bytes = \"4 KiB\"\npattern = \"write\"\n\
    start_together = 2\nstart_limit_seconds = 600\n";

/// A mix that is done at once: two jobs write, two read.
pub fn quick() -> String {
    let write = streams("write", 2, "file_bytes = \"1 MiB\"\npattern = \"write\"");
    let read = streams("read", 2, "file_bytes = \"1 MiB\"\npattern = \"read\"");
    format!("{HEAD}{write}{read}")
}

/// A folder of a test: a storage, a place for mixes and results, and the working folder of commands.
pub struct Bench {
    folder: TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let bench = Bench { folder: mounted::scratch_folder() };
        for folder in [bench.storage(), bench.place()] {
            fs::create_dir(folder).expect("makes a folder");
        }
        bench
    }

    /// The storage on which runs take place.
    pub fn storage(&self) -> PathBuf {
        self.folder.path().join("storage")
    }

    /// The working folder of commands.
    pub fn place(&self) -> PathBuf {
        self.folder.path().join("place")
    }

    /// The result of [`Bench::run`].
    pub fn out(&self) -> PathBuf {
        self.place().join("result")
    }

    /// Writes a file of the test's, a mix or a program.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("writes a file");
        path
    }

    /// A command line of the `forebay` binary.
    pub fn forebay(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(need::forebay());
        command.current_dir(self.place()).args(arguments);
        command
    }

    /// Runs the `forebay` binary.
    #[track_caller]
    pub fn call(&self, arguments: &[&str]) -> Ended {
        run(&mut self.forebay(arguments), LIMIT)
    }

    /// `forebay bench run --file MIX --on STORAGE --out OUT ARGUMENTS...`, as a command line.
    pub fn run_command(&self, mix: &str, arguments: &[&str]) -> Command {
        let mut command = self.forebay(&["bench", "run", "--file"]);
        command.arg(self.file("mix.toml", mix)).arg("--on").arg(self.storage());
        command.arg("--out").arg(self.out()).args(arguments);
        command
    }

    /// Runs it.
    #[track_caller]
    pub fn run(&self, mix: &str, arguments: &[&str]) -> Ended {
        run(&mut self.run_command(mix, arguments), LIMIT)
    }

    /// Starts it.
    pub fn start(&self, mix: &str, arguments: &[&str]) -> Started {
        let mut command = self.run_command(mix, arguments);
        Started::new(&mut command, &self.folder.path().join("said"))
    }

    /// The record of the result.
    #[track_caller]
    pub fn record(&self) -> Value {
        record(&self.out())
    }

    /// Checks that the storage holds nothing and no process knows of it.
    #[track_caller]
    pub fn leaves_nothing(&self) {
        assert_eq!(names_in(&self.storage()), Vec::<String>::new(), "left on the storage");
        let left = processes(&self.storage());
        assert!(left.is_empty(), "processes are left: {left:?}");
    }

    /// The process of a job, once it runs.
    #[track_caller]
    pub fn job(&self, name: &str) -> Pid {
        let mut found = None;
        wait_until("the job runs", LIMIT, || {
            found = self.find(name);
            found.is_some()
        });
        Pid::from_raw(found.expect("was found")).expect("a process has a number")
    }

    /// Whether a job runs.
    pub fn runs(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<i32> {
        let is_meant =
            |line: &[String]| line.windows(2).any(|pair| pair[0] == "--job" && pair[1] == name);
        let all = processes(&self.storage());
        all.into_iter().find(|(_, line)| is_meant(line)).map(|(pid, _)| pid)
    }
}

/// A command under way; killed when dropped.
pub struct Started {
    child: Child,
    said: PathBuf,
}

impl Started {
    pub fn new(command: &mut Command, said: &Path) -> Started {
        let file = fs::File::create(said).expect("makes a file");
        let errors = file.try_clone().expect("duplicates a file");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        Started { child: child.expect("starts forebay"), said: said.to_owned() }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child has a number"), signal).expect("sends a signal");
    }

    /// Waits until it ends; returns its exit code, if it had one, and what it printed.
    #[track_caller]
    pub fn ends(mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until("forebay ends", LIMIT, || {
            status = self.child.try_wait().expect("waits for a child");
            status.is_some()
        });
        let said = fs::read_to_string(&self.said).expect("reads what was said");
        (status.and_then(|status| status.code()), said)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The record of a result.
#[track_caller]
pub fn record(folder: &Path) -> Value {
    json(&fs::read_to_string(folder.join("result.json")).expect("reads the record"))
}

/// Parses what a command with `--json` printed.
#[track_caller]
pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// All jobs of a run.
pub fn jobs(run: &Value) -> Vec<&Value> {
    let stages = run["stages"].as_array().expect("a run has stages");
    stages.iter().flat_map(|stage| stage["jobs"].as_array().expect("has jobs")).collect()
}

/// Names of what lies in a folder, in order.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("lists");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("lists").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Checks that `message` holds all of `parts`.
#[track_caller]
pub fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

/// The processes that have `path` in their command line, with it.
fn processes(path: &Path) -> Vec<(i32, Vec<String>)> {
    let path = path.display().to_string();
    let entries = fs::read_dir("/proc").expect("lists processes");
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains(&path).then(|| (pid, line.split('\0').map(str::to_owned).collect()))
        })
        .collect()
}
