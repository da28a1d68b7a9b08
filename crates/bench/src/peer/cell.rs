//! A cell: the processes, mounts and network of one subject, apart from the machine's.
//!
//! A cell is a process in mount, network and process namespaces of its own (unshare(1)) that does
//! nothing; programs enter it with nsenter(1). When it ends the kernel kills every process of the
//! process namespace, daemons that left their parents included, and takes down the mounts and the
//! network with the last of them. It ends when the value is dropped, when a signal ends the benchmark,
//! and when the benchmark is killed, because its standard input closes then. So nothing outlives a
//! subject, and no process is ever looked up by name.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_process::stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitOptions, wait};

use crate::external::{find, run};
use crate::interrupt::Interrupt;

/// Address of every cell beside 127.0.0.1: MooseFS and GlusterFS refuse loopback addresses.
pub const ADDRESS: &str = "10.77.0.1";
/// Address of a cell that is a client of another one.
const CLIENT_ADDRESS: &str = "10.77.0.2";
/// Longest run of a program that sets something up, for timeout(1).
const COMMAND_LIMIT: &str = "90";
/// How long the processes of a cell may take to end.
const END_WAIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// Pause of the first process while it has no children to reap.
const REAP_PAUSE: Duration = Duration::from_millis(200);

/// Namespaces with whatever runs in them. Dropped, everything in it has ended.
#[derive(Debug)]
pub struct Cell {
    unshare: Child,
    /// Closing it ends the cell.
    input: Option<ChildStdin>,
    process: Arc<OwnedFd>,
    /// Process id of the first process, as the machine sees it.
    first: u32,
    /// Programs that enter; they end with the daemons that they wait for.
    entered: RefCell<Vec<Child>>,
}

impl Cell {
    /// Makes an empty cell, whose loopback interface has [`ADDRESS`] too. A signal ends it.
    ///
    /// # Errors
    /// If the system refuses namespaces (it takes root), or a program for it is missing.
    pub fn open(interrupt: &Interrupt) -> Result<Cell> {
        let cell = Cell::open_apart(interrupt)?;
        let address = format!("{ADDRESS}/24");
        cell.run(&find("ip")?, ["address", "add", &address, "dev", "lo"])?;
        Ok(cell)
    }

    /// Makes two cells that reach each other: a server, which has [`ADDRESS`], and a client.
    ///
    /// # Errors
    /// As [`Cell::open`].
    pub fn open_pair(interrupt: &Interrupt) -> Result<(Cell, Cell)> {
        let (server, client) = (Cell::open_apart(interrupt)?, Cell::open_apart(interrupt)?);
        let ip = find("ip")?;
        let [here, there] = [&server, &client].map(|cell| cell.first.to_string());
        let pair = ["type", "veth", "peer", "name", "eth0", "netns", &there];
        let link = ["link", "add", "eth0", "netns", &here];
        run(&ip, link.into_iter().chain(pair))?;
        for (cell, address) in [(&server, ADDRESS), (&client, CLIENT_ADDRESS)] {
            cell.run(&ip, ["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
            cell.run(&ip, ["link", "set", "eth0", "up"])?;
        }
        Ok((server, client))
    }

    /// Makes an empty cell that reaches nobody.
    fn open_apart(interrupt: &Interrupt) -> Result<Cell> {
        interrupt.check()?;
        let mut unshare = Command::new(find("unshare")?)
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(std::env::current_exe()?)
            .arg("cell")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start unshare")?;
        let process = interrupt.cover(&unshare)?;
        let (input, output) = (unshare.stdin.take(), unshare.stdout.take());
        let mut cell = Cell { unshare, input, process, first: 0, entered: RefCell::default() };
        let mut line = String::new();
        BufReader::new(output.context("unshare has no output")?).read_line(&mut line)?;
        if line.trim_end() != "ready" {
            bail!("namespaces cannot be made (unshare of mounts, network and processes)");
        }
        cell.first = only_child(cell.unshare.id())?;
        cell.run(&find("ip")?, ["link", "set", "lo", "up"])?;
        Ok(cell)
    }

    /// A command that runs `program` in the cell.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.first));
        command.args(["--mount", "--net", "--pid", "--"]).arg(program);
        command
    }

    /// Runs a program in the cell to its end, within a limit of time, and returns its output.
    ///
    /// # Errors
    /// If it cannot be started or fails; the text holds what it wrote to standard error.
    pub fn run<I>(&self, program: &Path, arguments: I) -> Result<String>
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let arguments: Vec<I::Item> = arguments.into_iter().collect();
        let target = format!("--target={}", self.first);
        let entry = [&target, "--mount", "--net", "--pid", "--", "timeout", COMMAND_LIMIT];
        let entry = entry.iter().map(OsStr::new).chain([program.as_os_str()]);
        run(&find("nsenter")?, entry.chain(arguments.iter().map(AsRef::as_ref)))
    }

    /// Starts a daemon that stays in the foreground; its output goes to the file `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<I>(&self, program: &Path, arguments: I, log: &Path) -> Result<()>
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let output = File::create(log).with_context(|| log.display().to_string())?;
        let child = self
            .command(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        self.entered.borrow_mut().push(child);
        Ok(())
    }

    /// Mounts `source` at `target`, which is made if it does not exist, in the cell only.
    ///
    /// # Errors
    /// If mount(8) refuses.
    pub fn mount(&self, options: &[&str], source: &Path, target: &Path) -> Result<()> {
        fs::create_dir_all(target).with_context(|| target.display().to_string())?;
        let arguments = options.iter().map(OsStr::new);
        let arguments = arguments.chain([source.as_os_str(), target.as_os_str()]);
        self.run(&find("mount")?, arguments).map(|_| ())
    }

    /// Process ids of everything that runs in the cell now.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let namespace = |id: u32| fs::read_link(format!("/proc/{id}/ns/pid"));
        let own = namespace(self.first).context("the cell has ended")?;
        let all = stat::all().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
        // One that ends meanwhile is not in the cell any more.
        Ok(all.filter(|id| namespace(*id).is_ok_and(|found| found == own)).collect())
    }

    /// Ends everything in the cell.
    ///
    /// # Errors
    /// If a process does not end within a minute.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        drop(self.input.take());
        let mut ended = [PollFd::new(&*self.process, PollFlags::IN)];
        if poll(&mut ended, Some(&END_WAIT))? == 0 {
            bail!("processes of a subject do not end: {:?}", self.processes());
        }
        self.unshare.wait()?;
        for mut child in self.entered.borrow_mut().drain(..) {
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if self.input.is_some()
            && let Err(error) = self.finish()
        {
            eprintln!("forebay-bench: {error:#}");
        }
    }
}

/// The process id of the only child of a process.
fn only_child(parent: u32) -> Result<u32> {
    let path = PathBuf::from(format!("/proc/{parent}/task/{parent}/children"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    text.trim().parse().with_context(|| format!("unshare has the children \"{}\"", text.trim()))
}

/// The body of the first process of a cell: it reaps orphans and ends when its input does.
///
/// # Errors
/// If it cannot start a thread.
pub fn idle() -> Result<()> {
    std::thread::Builder::new().name("input".to_owned()).spawn(|| {
        // The end of the input and a failure to read it mean the same.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    })?;
    println!("ready");
    loop {
        if !matches!(wait(WaitOptions::empty()), Ok(Some(_))) {
            std::thread::sleep(REAP_PAUSE);
        }
    }
}
