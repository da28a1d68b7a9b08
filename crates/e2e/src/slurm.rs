//! A Slurm of several nodes on this machine, from the packages of the system, on loopback and in a folder of its own.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::command::{Ended, run};
use crate::{need, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Processors of each node.
pub const CORES: u32 = 2;

/// What a Slurm has.
pub struct Site<'a> {
    /// How many nodes.
    pub nodes: u32,
    /// Processors of each node.
    pub cores: usize,
    /// The first one is the default.
    pub partitions: &'a [&'a str],
    /// Of its `SchedulerParameters`.
    pub scheduler: &'a str,
    /// More lines of slurm.conf.
    pub more: &'a str,
    /// The network namespace in which its daemons and commands run, if not that of the test.
    pub network: Option<&'a Path>,
}

/// A Slurm with the nodes `n1`, `n2`, ..., which have the features `disk1,fast`, `disk2,fast`, ... Its daemons and jobs end when it is dropped.
pub struct Slurm {
    folder: PathBuf,
    network: Option<PathBuf>,
    munge: Option<Child>,
    controller: Option<Child>,
    nodes: Vec<Option<Child>>,
}

impl Slurm {
    /// Starts one with the partitions `batch` and `long`, which notices within seconds that a node is dead.
    ///
    /// # Panics
    /// As [`Slurm::start_site`].
    #[must_use]
    pub fn start(folder: &Path, nodes: u32) -> Slurm {
        Slurm::start_in(folder, nodes, None)
    }

    /// The same in a network namespace.
    ///
    /// # Panics
    /// As [`Slurm::start_site`].
    #[must_use]
    pub fn start_in(folder: &Path, nodes: u32, network: Option<&Path>) -> Slurm {
        let (cores, partitions) = (CORES as usize, &["batch", "long"]);
        let scheduler = "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=5";
        let more = "SlurmdTimeout=15\nKillWait=5\n";
        Slurm::start_site(folder, &Site { nodes, cores, partitions, scheduler, more, network })
    }

    /// Starts its daemons in a folder that is there.
    ///
    /// # Panics
    /// If it is not installed, or does not come up.
    #[must_use]
    pub fn start_site(folder: &Path, site: &Site) -> Slurm {
        need::root();
        let mut slurm = Slurm {
            folder: folder.to_owned(),
            network: site.network.map(Path::to_owned),
            munge: None,
            controller: None,
            nodes: Vec::new(),
        };
        slurm.start_munge();
        for name in ["ctld", "spool"] {
            std::fs::create_dir(slurm.path(name)).expect("makes a folder");
        }
        std::fs::write(slurm.conf(), slurm.settings(site)).expect("writes slurm.conf");
        slurm.start_controller();
        for number in 1..=site.nodes {
            let name = format!("n{number}");
            slurm.nodes.push(Some(slurm.spawn("slurmd", &["-D", "-N", &name], &name)));
        }
        slurm.wait_for_nodes();
        slurm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Its slurm.conf, for `SLURM_CONF`.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.path("slurm.conf")
    }

    fn start_munge(&mut self) {
        let own = self.path("munge");
        std::fs::create_dir(&own).expect("makes a folder");
        let number = |option: &str| -> u32 {
            let ended = run(need::program("id").args([option, "munge"]), LIMIT).output();
            ended.trim().parse().expect("a number")
        };
        let (user, group) = (number("-u"), number("-g"));
        let key = own.join("key");
        std::fs::write(&key, [7; 128]).expect("writes a key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("closes it");
        for path in [&own, &key] {
            chown(path, Some(user), Some(group)).expect("gives it to munge");
        }
        let option = |name: &str, file: &str| format!("--{name}={}", own.join(file).display());
        let mut command = need::program("munged");
        command.arg("--foreground").args([
            option("socket", "socket"),
            option("key-file", "key"),
            option("log-file", "log"),
            option("pid-file", "pid"),
            option("seed-file", "seed"),
        ]);
        command.uid(user).gid(group);
        self.munge = Some(self.begin(command, "munged"));
        wait_until("munged listens", LIMIT, || own.join("socket").exists());
    }

    fn settings(&self, site: &Site) -> String {
        let &Site { nodes, cores, partitions, scheduler, more, .. } = site;
        let folder = self.folder.display();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("has a name");
        let host = host.trim();
        // All are bound at once, so that no port is given twice.
        let listeners: Vec<TcpListener> =
            (0..=nodes).map(|_| TcpListener::bind("127.0.0.1:0").expect("finds a port")).collect();
        let ports: Vec<u16> =
            listeners.iter().map(|l| l.local_addr().expect("has an address").port()).collect();
        let mut text = format!(
            "ClusterName=e2e
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
JobRequeue=1
Epilog=/bin/true
SchedulerParameters={scheduler}
StateSaveLocation={folder}/ctld
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
{more}",
            ports[0]
        );
        for number in 1..=nodes {
            let port = ports[number as usize];
            text += &format!(
                "NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores} RealMemory=1000 Features=disk{number},fast\n"
            );
        }
        for (place, name) in partitions.iter().enumerate() {
            let default = if place == 0 { "YES" } else { "NO" };
            text += &format!(
                "PartitionName={name} Nodes=n[1-{nodes}] Default={default} State=UP OverSubscribe=NO\n"
            );
        }
        text
    }

    fn begin(&self, mut command: Command, log: &str) -> Child {
        let path = self.path(&format!("{log}.out"));
        let log = File::options().create(true).append(true).open(path).expect("opens a log");
        let errors = log.try_clone().expect("duplicates a file");
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        command.spawn().expect("starts a daemon")
    }

    /// A program where its daemons run.
    fn program(&self, name: &str) -> Command {
        let program = need::program(name);
        let Some(network) = &self.network else { return program };
        let mut command = need::program("nsenter");
        command.arg(format!("--net={}", network.display())).arg(program.get_program());
        command
    }

    fn spawn(&self, name: &str, arguments: &[&str], log: &str) -> Child {
        let mut command = self.program(name);
        command.args(arguments).arg("-f").arg(self.conf());
        self.begin(command, log)
    }

    /// Starts slurmctld, with the state that the one before it has left.
    pub fn start_controller(&mut self) {
        self.controller = Some(self.spawn("slurmctld", &["-D"], "slurmctld"));
    }

    /// Kills slurmctld as a power cut would, once it has saved what it knows of its jobs. It does that every few seconds; one
    /// that was killed before gives the number of a job that it has lost to another one, and cancels both.
    ///
    /// # Panics
    /// If it does not run, or saves nothing.
    pub fn kill_controller(&mut self) {
        let asked = SystemTime::now();
        if let Some(job) = self.jobs().first() {
            self.run("scontrol", &["update", &format!("JobId={job}"), "AdminComment=save"])
                .succeeds();
            let state = self.folder.join("ctld/job_state");
            let saved = || std::fs::metadata(&state).and_then(|found| found.modified());
            wait_until("slurmctld saves its state", LIMIT, || saved().is_ok_and(|at| at > asked));
        }
        end(self.controller.take().as_mut().expect("slurmctld runs"));
    }

    /// Kills the slurmd of a node, counted from 1. Its jobs go on.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill_node(&mut self, number: usize) {
        end(self.nodes[number - 1].take().as_mut().expect("slurmd runs"));
    }

    /// Starts the slurmd of a node that was killed.
    pub fn start_node(&mut self, number: usize) {
        let name = format!("n{number}");
        self.nodes[number - 1] = Some(self.spawn("slurmd", &["-D", "-N", &name], &name));
    }

    /// Waits until all nodes take jobs.
    pub fn wait_for_nodes(&self) {
        wait_until("the nodes of Slurm are there", LIMIT, || {
            let ended = self.run("sinfo", &["-h", "-N", "-o", "%T"]);
            let states: Vec<&str> = ended.stdout.split_whitespace().collect();
            ended.status.success()
                && !states.is_empty()
                && states.iter().all(|s| ["idle", "mixed", "allocated"].contains(s))
        });
    }

    /// A command of Slurm that looks or acts here.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = self.program(name);
        command.env("SLURM_CONF", self.conf()).current_dir(&self.folder);
        command
    }

    /// Runs a command of Slurm.
    #[must_use]
    pub fn run(&self, name: &str, arguments: &[&str]) -> Ended {
        run(self.command(name).args(arguments), LIMIT)
    }

    /// Numbers of the jobs that wait or run.
    #[must_use]
    pub fn jobs(&self) -> Vec<String> {
        let ended = self.run("squeue", &["-h", "-a", "-o", "%i"]);
        ended.stdout.split_whitespace().map(str::to_owned).collect()
    }

    /// Cancels the jobs that wait or run, and waits up to 20 seconds for their end.
    pub fn cancel_jobs(&self) {
        let jobs = self.jobs();
        if jobs.is_empty() {
            return;
        }
        let _ = self.command("scancel").args(&jobs).status();
        for _ in 0..200 {
            if self.jobs().is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // What a failed test has left: holders outlive a slurmd.
        if !std::thread::panicking() {
            let jobs = self.jobs();
            assert!(jobs.is_empty(), "jobs are left in Slurm: {jobs:?}");
        } else if self.controller.is_some() {
            self.cancel_jobs();
        }
        let daemons = self.controller.iter_mut().chain(self.nodes.iter_mut().flatten());
        daemons.chain(&mut self.munge).for_each(end);
    }
}
