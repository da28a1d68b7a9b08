//! Slurm from the packages of the system, started by the benchmark on loopback and ended by it.
//!
//! Tuned for short jobs, as far as its documentation says how: no delays of the scheduler, deep queues, and
//! an epilog, without which it gathers completions. No accounting database, no cgroups.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use tempfile::TempDir;

use super::measure::{Figure, STAMP, process_start_ms, quantile, stamp_of, wall_ms};
use crate::external;

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(300);

/// A Slurm that runs as long as this lives.
pub struct Slurm {
    folder: TempDir,
    /// In the order in which they end.
    daemons: Vec<Child>,
}

/// Waits until something is there.
fn wait_until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = SystemClock.instant();
    while !done()? {
        if start.elapsed() > LIMIT {
            bail!("waited {} s in vain until {what}", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Numbers of a user of the system.
fn user(name: &str) -> Result<(u32, u32)> {
    let id = external::find("id")?;
    let number =
        |option: &str| -> Result<u32> { Ok(external::run(&id, [option, name])?.trim().parse()?) };
    Ok((number("-u")?, number("-g")?))
}

impl Slurm {
    /// Starts its daemons with one node that has all cores.
    ///
    /// # Errors
    /// If it is not installed, or does not come up.
    pub fn start(scratch: &Path) -> Result<Slurm> {
        let folder = tempfile::Builder::new().prefix("s").tempdir_in(scratch)?;
        // Its users and jobs have to reach what lies in it.
        for path in [scratch, folder.path()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        let mut slurm = Slurm { folder, daemons: Vec::new() };
        slurm.start_munge()?;
        fs::write(slurm.path("slurm.conf"), slurm.settings()?)?;
        for name in ["ctld", "spool"] {
            fs::create_dir(slurm.path(name))?;
        }
        fs::write(slurm.path("completions"), "")?;
        let conf = slurm.path("slurm.conf").display().to_string();
        slurm.daemon("slurmctld", &["-D", "-c", "-f", &conf], None)?;
        slurm.daemon("slurmd", &["-D", "-N", "n1", "-f", &conf], None)?;
        wait_until("its node is idle", || {
            let output = slurm.command("sinfo")?.args(["-h", "-o", "%T"]).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).trim() == "idle")
        })?;
        Ok(slurm)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its authentication, which runs as a user of its own.
    fn start_munge(&mut self) -> Result<()> {
        let own = self.path("munge");
        fs::create_dir(&own)?;
        let ids = user("munge")?;
        let key = own.join("key");
        let mut bytes = [0; 128];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
        fs::write(&key, bytes)?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        for path in [&own, &key] {
            chown(path, Some(ids.0), Some(ids.1))?;
        }
        let option = |name: &str, file: &str| format!("--{name}={}", own.join(file).display());
        let arguments = [
            "--foreground".to_owned(),
            option("socket", "socket"),
            option("key-file", "key"),
            option("log-file", "log"),
            option("pid-file", "pid"),
            option("seed-file", "seed"),
        ];
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.daemon("munged", &words, Some(ids))?;
        wait_until("munged listens", || Ok(own.join("socket").exists()))
    }

    fn settings(&self) -> Result<String> {
        let folder = self.folder.path().display();
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let (host, cores) = (host.trim(), std::thread::available_parallelism()?.get());
        let (controller, node) = (free_port()?, free_port()?);
        Ok(format!(
            "ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
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
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completions
ReturnToService=2
JobRequeue=1
Epilog=/bin/true
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,\
default_queue_depth=10000,partition_job_depth=0,bf_interval=5,max_rpc_cnt=150
StateSaveLocation={folder}/ctld
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
MaxArraySize=2000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs={cores} RealMemory=1000
PartitionName=p Nodes=n1 Default=YES State=UP OverSubscribe=NO
"
        ))
    }

    fn daemon(&mut self, name: &str, arguments: &[&str], user: Option<(u32, u32)>) -> Result<()> {
        let mut command = Command::new(external::find(name)?);
        let log = fs::File::create(self.path(&format!("{name}.out")))?;
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.process_group(0).env("SLURM_CONF", self.path("slurm.conf"));
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        self.daemons.insert(0, child);
        Ok(())
    }

    fn command(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(external::find(name)?);
        command.env("SLURM_CONF", self.path("slurm.conf"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        Ok(command)
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let output = self.command(name)?.args(arguments).output()?;
        if !output.status.success() {
            bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Jobs that have ended since it was started.
    fn ended(&self) -> Result<usize> {
        Ok(fs::read_to_string(self.path("completions"))?.lines().count())
    }

    /// Latency, single jobs and an array.
    pub fn measure(&self, jobs: u32, starts: u32) -> Result<Vec<Figure>> {
        let plain = process_start_ms()?;
        let stamp = STAMP.join(" ");
        let (mut batch, mut direct) = (Vec::new(), Vec::new());
        for number in 0..starts {
            let name = format!("stamp-{number}");
            let before = wall_ms();
            self.run("sbatch", &["-o", &name, "--wrap", &stamp])?;
            let text = || fs::read_to_string(self.path(&name)).unwrap_or_default();
            wait_until("a job has started", || Ok(text().ends_with('\n')))?;
            batch.push(stamp_of(&text())? - before - plain);
            let before = wall_ms();
            direct.push(stamp_of(&self.run("srun", &STAMP)?)? - before - plain);
        }
        // Those of srun are among them.
        wait_until("the first jobs have ended", || Ok(self.ended()? >= 2 * starts as usize))?;
        let before = self.ended()?;
        let start = SystemClock.instant();
        for _ in 0..jobs {
            self.run("sbatch", &["-o", "/dev/null", "--wrap", "true"])?;
        }
        let accepted = start.elapsed().as_secs_f64();
        wait_until("the jobs have ended", || Ok(self.ended()? >= before + jobs as usize))?;
        let ended = start.elapsed().as_secs_f64();
        let start = SystemClock.instant();
        let range = format!("--array=1-{jobs}");
        self.run("sbatch", &["-o", "/dev/null", &range, "--wrap", "true"])?;
        wait_until("the array has ended", || Ok(self.ended()? >= before + 2 * jobs as usize))?;
        let array = start.elapsed().as_secs_f64();
        let count = f64::from(jobs);
        Ok(vec![
            Figure::new("Slurm: sbatch to start beyond that, ms", 0, quantile(&mut batch, 0.5)),
            Figure::new("Slurm: srun to start beyond that, ms", 0, quantile(&mut direct, 0.5)),
            Figure::new("Slurm: single jobs of `true`: accepted, /s", 0, count / accepted),
            Figure::new("Slurm: single jobs of `true`: submitted and run, /s", 0, count / ended),
            Figure::new("Slurm: an array of `true`: submitted and run, /s", 0, count / array),
        ])
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for child in &mut self.daemons {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
