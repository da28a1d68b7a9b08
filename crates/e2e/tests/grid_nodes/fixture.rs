//! A cluster whose nodes have a grid together.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::cluster::Cluster;
use forebay_e2e::command::{Ended, copy_program, run};
use forebay_e2e::{need, wait_until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

pub const LIMIT: Duration = Duration::from_secs(120);

/// Short, and yet longer than a busy machine keeps an agent from renewing its lease.
pub const SHORT: &str =
    "[general]\nlease = \"10 s\"\nhost_timeout = \"12 s\"\nreap_interval = \"2 s\"\n";

/// Users whom every Debian-like machine has.
pub const ANN: u32 = 1;
pub const BOB: u32 = 65_534;

/// A cluster whose nodes `n0`, `n1`, ... are hosts of a grid.
pub struct Nodes {
    pub cluster: Cluster,
    /// How many nodes have a controller; those are the first ones.
    pub controllers: usize,
    base: PathBuf,
}

impl Nodes {
    /// So many nodes; the first `controllers` of them have a controller.
    pub fn start(nodes: usize, controllers: usize, settings: &str) -> Nodes {
        Nodes::start_on(Cluster::start(nodes), controllers, settings)
    }

    /// The grid of a cluster's nodes.
    pub fn start_on(cluster: Cluster, controllers: usize, settings: &str) -> Nodes {
        let nodes = cluster.nodes();
        let base = cluster.home(0).ancestors().nth(2).expect("has a folder").to_owned();
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("opens");
        };
        open(&base, 0o755);
        copy_program(&need::forebay(), &base.join("forebay"));
        let grid = Nodes { cluster, base, controllers };
        for folder in [grid.shared(0), grid.base.join("jobs")] {
            std::fs::create_dir(&folder).expect("makes a folder");
            open(&folder, 0o1777);
        }
        for node in 0..nodes {
            let root = grid.root(node);
            std::fs::create_dir_all(root.join("grid")).expect("makes ROOT");
            std::fs::write(root.join("grid/grid.toml"), settings).expect("writes the settings");
            grid.up_again(node).succeeds();
        }
        grid
    }

    /// The folder of the grid on a node.
    pub fn root(&self, node: usize) -> PathBuf {
        self.base.join(format!("r{node}"))
    }

    /// A folder that all nodes share, as a node sees it.
    pub fn shared(&self, node: usize) -> PathBuf {
        self.cluster.mountpoint(node).join("out")
    }

    /// Starts what a node has of the grid.
    pub fn up(&self, node: usize, options: &[&str]) -> Ended {
        let (root, home) = (text(&self.root(node)), text(&self.cluster.home(node)));
        let words = ["up", &root, "--cluster", &home, "--slots", "4", "--cgroup", "none"];
        self.cluster.forebay(node, &[&words[..], options].concat())
    }

    /// Starts what a node had of the grid at first, unless it runs.
    pub fn up_again(&self, node: usize) -> Ended {
        self.up(node, if node < self.controllers { &["--controller"] } else { &[] })
    }

    /// The folder in which everything is.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// As [`Nodes::up`], where another file is in the place of /etc/passwd.
    pub fn up_with_users(&self, node: usize, users: &Path) -> Ended {
        let script = format!(
            "mount --bind {} /etc/passwd && exec {} up {} --slots 4 --cgroup none",
            text(users),
            text(&self.base.join("forebay")),
            text(&self.root(node))
        );
        let mut command = need::program("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        run(&mut self.cluster.hosts().command(node, &command), LIMIT)
    }

    /// Ends what a node has of the grid.
    pub fn down(&self, node: usize) -> Ended {
        let mut down = Command::new(need::forebay());
        run(down.arg("down").arg(self.root(node)).arg("--now"), LIMIT)
    }

    fn command(&self, node: usize, user: u32, arguments: &[&str]) -> Command {
        let user = user.to_string();
        let mut command = need::program("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
        command.arg(self.base.join("forebay")).args(arguments);
        command.env("FOREBAY_GRID", self.root(node));
        let mut command = self.cluster.hosts().command(node, &command);
        // On a local disk: a node that is cut off has no shared files.
        command.current_dir(self.base.join("jobs"));
        command
    }

    /// Runs a command on a node as a user.
    #[track_caller]
    pub fn as_user(&self, node: usize, user: u32, arguments: &[&str]) -> Ended {
        run(&mut self.command(node, user, arguments), LIMIT)
    }

    /// Starts a command on a node as a user.
    pub fn spawn_as(&self, node: usize, user: u32, arguments: &[&str]) -> std::process::Child {
        self.command(node, user, arguments).spawn().expect("starts a command")
    }

    /// Submits a shell script on a node; the number of the job.
    #[track_caller]
    pub fn submit(&self, node: usize, user: u32, options: &[&str], script: &str) -> String {
        let words = [&["submit"], options, &["--", "sh", "-c", script]].concat();
        self.as_user(node, user, &words).output().trim().to_owned()
    }

    #[track_caller]
    pub fn json(&self, node: usize, user: u32, arguments: &[&str]) -> Value {
        let text = self.as_user(node, user, &[arguments, &["--json"]].concat()).output();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The state of a job, as a command of root on a node says; none while no controller answers.
    pub fn state(&self, node: usize, job: &str) -> Option<String> {
        let ended = self.as_user(node, 0, &["jobs", "--all", job, "--json"]);
        let jobs: Value = serde_json::from_str(&ended.stdout).ok()?;
        jobs[0]["state"].as_str().map(str::to_owned)
    }

    #[track_caller]
    pub fn wait_for(&self, node: usize, job: &str, state: &str) {
        wait_until(&format!("job {job} is {state}"), LIMIT, || {
            self.state(node, job).as_deref() == Some(state)
        });
    }

    /// The process that holds a lock in the folder of the grid on a node.
    pub fn holder(&self, node: usize, lock: &str) -> Option<Pid> {
        let text = std::fs::read_to_string(self.root(node).join("grid").join(lock)).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    /// Signals the process that holds a lock.
    #[track_caller]
    pub fn signal(&self, node: usize, lock: &str, signal: Signal) {
        let process = self.holder(node, lock).expect("a process holds the lock");
        rustix::process::kill_process(process, signal).expect("signals");
    }

    /// Kills the process that holds a lock, and waits until it is gone.
    #[track_caller]
    pub fn kill(&self, node: usize, lock: &str) {
        let process = self.holder(node, lock).expect("a process holds the lock");
        rustix::process::kill_process(process, Signal::KILL).expect("kills");
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        wait_until("it is gone", LIMIT, || {
            std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
        });
    }

    pub fn log(&self, node: usize, name: &str) -> String {
        let path = self.root(node).join(format!("grid/{name}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

pub fn text(path: &Path) -> String {
    path.to_str().expect("paths of tests are UTF-8").to_owned()
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // Those with a controller last: whoever ends needs one that leads.
        for node in (0..self.cluster.nodes()).rev() {
            if std::thread::panicking() {
                for name in ["controller", "relay", &format!("n{node}")] {
                    let log = self.log(node, name);
                    let lines: Vec<&str> = log.lines().collect();
                    for line in &lines[lines.len().saturating_sub(10)..] {
                        eprintln!("n{node}, {name}: {line}");
                    }
                }
            }
            for lock in ["lock", "relay"] {
                if let Some(process) = self.holder(node, lock) {
                    let _ = rustix::process::kill_process(process, Signal::CONT);
                }
            }
            // Ends the jobs too, whatever state the test left them in.
            let _ = self.down(node);
        }
    }
}
