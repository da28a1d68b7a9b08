//! A grid of several hosts whose daemons are children of the test and can be killed one by one.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

pub const LIMIT: Duration = Duration::from_secs(120);

/// Short: a busy machine may keep an agent from renewing its lease in time, and then its jobs end once more than the test says.
pub const SHORT: &str = "[general]\nlease = \"3 s\"\nhost_timeout = \"4 s\"\n";

/// Longer than a busy machine keeps an agent from renewing its lease, for tests that know how often each job starts.
pub const STEADY: &str = "[general]\nlease = \"10 s\"\nhost_timeout = \"12 s\"\n";

/// With [`SHORT`] an agent that is away for longer than this has lost its jobs.
pub const HOST_TIMEOUT: Duration = Duration::from_secs(4);

/// A controller and hosts, in a folder of their own with another one for the jobs.
pub struct Fixture {
    folder: TempDir,
    pub root: PathBuf,
    pub jobs: PathBuf,
    controller: Option<Child>,
    agents: BTreeMap<String, Child>,
    /// Words that every agent gets; `{host}` stands for its name.
    options: Vec<String>,
}

impl Fixture {
    /// Hosts `h1`, `h2`, ... with four slots each, under these settings.
    pub fn start(hosts: u32, settings: &str) -> Fixture {
        Fixture::start_with(hosts, settings, &[])
    }

    /// As [`Fixture::start`], with options for the agents.
    pub fn start_with(hosts: u32, settings: &str, options: &[&str]) -> Fixture {
        let folder = scratch_folder();
        let (root, jobs) = (folder.path().join("g"), folder.path().join("j"));
        std::fs::create_dir_all(root.join("grid")).expect("makes ROOT");
        std::fs::create_dir(&jobs).expect("makes a folder for the jobs");
        std::fs::write(root.join("grid/grid.toml"), settings).expect("writes the settings");
        let options = options.iter().map(ToString::to_string).collect();
        let agents = BTreeMap::default();
        let mut grid = Fixture { folder, root, jobs, controller: None, agents, options };
        grid.start_controller();
        for number in 1..=hosts {
            grid.start_agent(&format!("h{number}"));
        }
        grid.wait_for_hosts(hosts as usize);
        grid
    }

    fn spawn(&self, arguments: &[&str], log: &str) -> Child {
        let path = self.folder.path().join(format!("{log}.log"));
        let log = File::options().create(true).append(true).open(path).expect("opens a log");
        let mut command = Command::new(forebay());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // As nohup starts them.
        // SAFETY: ignoring a signal is always sound, and the call is safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                Ok(())
            });
        }
        command.spawn().expect("starts a daemon")
    }

    pub fn start_controller(&mut self) {
        let root = self.root.display().to_string();
        self.controller = Some(self.spawn(&["controller", &root], "controller"));
        wait_until("the controller answers", LIMIT, || self.forebay(&["queues"]).status.success());
    }

    pub fn start_agent(&mut self, host: &str) {
        let root = self.root.display().to_string();
        let mut words = vec!["agent", &root, "--name", host, "--slots", "4"];
        let own: Vec<String> =
            self.options.iter().map(|word| word.replace("{host}", host)).collect();
        words.extend(own.iter().map(String::as_str));
        let agent = self.spawn(&words, host);
        self.agents.insert(host.to_owned(), agent);
    }

    pub fn wait_for_hosts(&self, hosts: usize) {
        wait_until("the hosts are up", LIMIT, || {
            self.json(&["hosts"]).as_array().is_some_and(|known| {
                known.iter().filter(|host| host["state"] == "up").count() >= hosts
            })
        });
    }

    /// Kills the controller by force.
    pub fn kill_controller(&mut self) {
        end(self.controller.take());
    }

    /// Kills an agent by force; its jobs go on.
    pub fn kill_agent(&mut self, host: &str) {
        end(self.agents.remove(host));
    }

    /// Signals the controller.
    pub fn signal_controller(&self, signal: Signal) {
        let controller = self.controller.as_ref().expect("the controller runs");
        rustix::process::kill_process(Pid::from_child(controller), signal).expect("signals");
    }

    /// The process of the controller.
    pub fn controller(&self) -> Pid {
        Pid::from_child(self.controller.as_ref().expect("the controller runs"))
    }

    /// The process of an agent.
    pub fn agent(&self, host: &str) -> Pid {
        Pid::from_child(&self.agents[host])
    }

    /// Signals an agent.
    pub fn signal_agent(&self, host: &str, signal: Signal) {
        rustix::process::kill_process(self.agent(host), signal).expect("signals");
    }

    /// Tells the controller to read its settings again.
    pub fn reload(&self) {
        self.signal_controller(Signal::HUP);
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(forebay());
        command.args(arguments).env("FOREBAY_GRID", &self.root).current_dir(&self.jobs);
        command
    }

    pub fn forebay(&self, arguments: &[&str]) -> Ended {
        run(&mut self.command(arguments), LIMIT)
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

    pub fn history(&self, job: &str) -> Vec<Value> {
        self.json(&["history", job]).as_array().expect("attempts").clone()
    }

    pub fn agent_folder(&self, host: &str) -> PathBuf {
        self.root.join("grid/hosts").join(host)
    }

    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    /// Shims that hold a job now.
    pub fn shims(&self) -> Vec<Pid> {
        self.forked(|name| name.starts_with("shim "))
    }

    /// Shims that wait for a job.
    pub fn free_shims(&self) -> Vec<Pid> {
        self.forked(|name| name == "free shim")
    }

    /// The processes from which agents fork shims, and those that they have just forked.
    pub fn nurseries(&self) -> Vec<Pid> {
        self.forked(|name| name == "forebay")
    }

    /// Nurseries and shims with such a name. A program that was forked and has executed nothing yet looks like its shim,
    /// but is the child of one.
    fn forked(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Pid> {
        let is_program = |pid: Pid| parent_of(pid).is_some_and(|p| name_of(p).starts_with("shim "));
        let mut all = self.processes("cmdline", "--nursery");
        all.retain(|pid| is_wanted(&name_of(*pid)) && !is_program(*pid));
        all
    }

    /// Everything that a job has left, in words: work areas, run folders, processes.
    pub fn left_behind(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut places = vec![self.root.join("grid/work")];
        for host in std::fs::read_dir(self.root.join("grid/hosts")).expect("lists hosts").flatten()
        {
            places.extend(["runs", "stopped"].map(|of| host.path().join(of)));
        }
        for place in places {
            for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
                if entry.file_name() == ".forebay-grid" {
                    continue;
                }
                left.push(entry.path().display().to_string());
            }
        }
        let jobs = self.processes("environ", "FOREBAY_JOB=");
        left.extend(jobs.iter().chain(&self.shims()).map(|pid| format!("process {pid:?}")));
        left
    }

    /// Processes of this grid that have `word` in a file of theirs below /proc.
    pub fn processes(&self, file: &str, word: &str) -> Vec<Pid> {
        let root = self.root.as_os_str().as_encoded_bytes();
        let has = |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
        let entries = std::fs::read_dir("/proc").expect("lists processes").flatten();
        entries
            .filter_map(|entry| {
                let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
                let bytes = std::fs::read(entry.path().join(file)).ok()?;
                (has(&bytes, root) && has(&bytes, word.as_bytes())).then_some(pid)
            })
            .collect()
    }
}

/// Kills a child by force and waits for its end.
fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        child.kill().expect("kills");
        child.wait().expect("waits");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["controller", "h1", "h2", "h3"] {
                let log = self.log(name);
                let lines: Vec<&str> = log.lines().collect();
                for line in &lines[lines.len().saturating_sub(8)..] {
                    eprintln!("{name}: {line}");
                }
            }
        }
        // Ends the jobs too, whatever state the test left them in.
        let root: &Path = &self.root;
        let mut down = Command::new(forebay());
        let _ = down.arg("down").arg(root).arg("--now").stderr(Stdio::null()).status();
        for daemon in self.controller.iter_mut().chain(self.agents.values_mut()) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let jobs = self.processes("environ", "FOREBAY_JOB=");
        for pid in self.shims().into_iter().chain(jobs) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

fn parent_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // The name may hold anything; after it come the state and the parent (proc_pid_stat(5)).
    Pid::from_raw(stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?)
}

/// The name that a process has given itself.
fn name_of(process: Pid) -> String {
    let path = format!("/proc/{}/comm", process.as_raw_nonzero());
    std::fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}
