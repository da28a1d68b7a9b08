//! The member of etcd that a node runs, if its cluster was made with `--start-etcd`: `forebay cluster etcd` keeps it running.
//!
//! It is a process of its own, so that etcd goes on while the node's daemon gives way to that of a mount and comes back. It holds
//! no state but its lock. An etcd that ends is started again, after pauses that double up to [`PAUSE_MAX`].

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::files::{claim_soon, holder};
use forebay_engine::trust;
use forebay_node::NodeHome;
use forebay_node::etcd_member::{MEMBERS_MAX, remove_etcd_member};
use forebay_node::home::NodeFile;
use forebay_node::setup::Tools;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Which, tools};
use crate::background::{Background, log_to_standard_error};

/// How long after its end etcd is started again, at first and at most.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// An etcd that lasted as long as this has not failed to begin.
const LASTING: Duration = Duration::from_secs(30);

/// How long an etcd may take to end in order.
const END_MAX: Duration = Duration::from_secs(30);

/// How long an etcd may take until it answers: to elect a leader, or to copy what the others have.
const ANSWER_MAX: Duration = Duration::from_secs(60);

const LOOK: Duration = Duration::from_millis(50);

/// How long after a refusal a member is registered again.
const REGISTER_PAUSE: Duration = Duration::from_millis(500);

/// Run this node's member of etcd in the foreground, and restart it when it fails.
///
/// For clusters that were created with --start-etcd. Commands that need etcd start this by themselves; a systemd unit can start it
/// when the machine boots.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  forebay cluster etcd   in a systemd unit, with Restart=on-failure"
)]
pub struct Etcd {
    #[command(flatten)]
    which: Which,
}

impl Etcd {
    pub fn run(self) -> Result<()> {
        log_to_standard_error()?;
        keep(&self.which.home()?)
    }
}

/// Runs etcd, again and again, until a signal.
fn keep(home: &NodeHome) -> Result<()> {
    let Some(_lock) = claim_soon(&home.etcd_lock())? else {
        bail!("this node's member of etcd already has a supervisor");
    };
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let clock = SystemClock;
    let mut pause = PAUSE;
    loop {
        let begun = clock.instant();
        let mut command = home.etcd_command()?;
        // Should this process be killed, etcd ends too: the next one could not use its data otherwise.
        // SAFETY: prctl may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                let ends = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
                Ok(ends?)
            });
        }
        let mut child = command.stdin(Stdio::null()).spawn().context("etcd cannot be started")?;
        tracing::info!(process = child.id(), "etcd was started");
        let Some(status) = watch(&mut child, &mut signals)? else { return Ok(()) };
        if clock.instant().saturating_duration_since(begun) >= LASTING {
            pause = PAUSE;
        }
        tracing::error!("etcd exited ({status}); it will be restarted in {pause:?}");
        let until = clock.instant() + pause;
        while clock.instant() < until {
            if signals.pending().next().is_some() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Waits for the end of etcd, or ends it after a signal. None if it was told to end.
fn watch(child: &mut Child, signals: &mut Signals) -> Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if signals.pending().next().is_some() {
            end(child)?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

fn end(child: &mut Child) -> Result<()> {
    // It has not been waited for, so the number is its own.
    let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
    let clock = SystemClock;
    let until = clock.instant() + END_MAX;
    while clock.instant() < until {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    tracing::warn!("etcd does not shut down cleanly: killing it");
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Starts the member of a node, if it has one that does not run, and waits until it answers. `answers` asks it.
fn start_and_wait(home: &NodeHome, answers: &dyn Fn() -> Result<()>) -> Result<()> {
    if home.etcd_member()?.is_none() {
        return Ok(());
    }
    let mut started = None;
    if holder(&home.etcd_lock()).is_none() {
        let folder = home.folder();
        let base = folder.parent().context("the node's folder has no parent")?;
        let name = folder.file_name().context("the node's folder has no name")?;
        let words = ["cluster", "etcd", "--name"].map(OsStr::new);
        let arguments = [&words[..], &[name, OsStr::new("--home"), base.as_os_str()]].concat();
        started = Some(Background::start(&arguments, &home.etcd_log())?);
    }
    let clock = SystemClock;
    let until = clock.instant() + ANSWER_MAX;
    loop {
        let Err(error) = answers() else { return Ok(()) };
        if let Some(started) = &mut started {
            started.check()?;
        }
        if clock.instant() >= until {
            return Err(error.context(format!(
                "etcd on this node does not answer (see {}). With two members both must run, with three at least two: start the \
                 other nodes (forebay cluster start)",
                home.etcd_log().display()
            )));
        }
        std::thread::sleep(LOOK);
    }
}

/// Starts the member of this node, if it is to have one, and waits until etcd answers.
pub fn ensure(home: &NodeHome, file: &NodeFile) -> Result<()> {
    if !file.etcd.started {
        return Ok(());
    }
    start_and_wait(home, &|| {
        tools()?.book(file)?.cluster()?;
        Ok(())
    })
}

/// Starts the first member of a new cluster, and waits until it answers.
pub fn begin(
    home: &NodeHome,
    cluster: &str,
    access: &forebay_node::home::EtcdAccess,
) -> Result<()> {
    let tools = tools()?;
    let book = forebay_node::members::Book::open(&tools.runtime, access, cluster)?;
    start_and_wait(home, &|| {
        book.cluster()?;
        Ok(())
    })
}

/// Stops the member of a node. Whether one ran.
pub fn stop(home: &NodeHome) -> Result<bool> {
    if !trust::signal_holder(&home.etcd_lock(), Signal::TERM)? {
        return Ok(false);
    }
    let clock = SystemClock;
    let until = clock.instant() + END_MAX + END_MAX;
    while clock.instant() < until {
        if holder(&home.etcd_lock()).is_none() {
            return Ok(true);
        }
        std::thread::sleep(LOOK);
    }
    bail!("etcd does not exit; see {}", home.etcd_log().display())
}

/// Registers a member on this node. etcd refuses one for some seconds after another was added.
fn register(tools: &Tools, home: &NodeHome, file: &NodeFile) -> forebay_node::Result<Option<u64>> {
    let clock = SystemClock;
    let until = clock.instant() + ANSWER_MAX;
    loop {
        match tools.register_etcd_member(home, file) {
            Err(forebay_node::Error::Etcd(_)) if clock.instant() < until => {
                std::thread::sleep(REGISTER_PAUSE);
            }
            registered => return registered,
        }
    }
}

/// Has this node run a member, if its cluster starts its etcd itself and has fewer than three. Without one the node works as
/// well: what went wrong is said, and that is all.
pub fn join(home: &NodeHome) -> Result<()> {
    let tools = tools()?;
    let file = tools.refresh_endpoints(home)?;
    let id = match register(&tools, home, &file) {
        Ok(Some(id)) => id,
        Ok(None) => return Ok(()),
        Err(error) => {
            note!("forebay: this node runs no member of etcd: {error}");
            return Ok(());
        }
    };
    let promoted = start_and_wait(home, &|| {
        // It is refused until the member has what the others have.
        let book = super::tools()?.book(&file)?;
        let members = book.client().member_list()?;
        match members.iter().find(|member| member.id == id) {
            // An earlier attempt succeeded, and its answer was lost.
            Some(member) if !member.is_learner => Ok(()),
            _ => Ok(book.client().member_promote(id)?),
        }
    });
    if let Err(error) = promoted {
        note!("forebay: this node runs no member of etcd: {}", crate::output::chain(&error));
        stop(home)?;
        tools.book(&file)?.client().member_remove(id)?;
        home.forget_etcd_member()?;
        return Ok(());
    }
    let members = tools.refresh_endpoints(home)?.etcd.endpoints.len();
    if members < MEMBERS_MAX {
        note!(
            "forebay: etcd now has {members} members, and needs all of them until a third node has joined"
        );
    }
    Ok(())
}

/// The node is not a member of the cluster any more: neither is its etcd.
pub fn leave(home: &NodeHome, file: &NodeFile, is_last: bool) -> Result<()> {
    if !is_last && home.etcd_member()?.is_some() {
        let book = tools()?.book(file)?;
        let clock = SystemClock;
        let until = clock.instant() + ANSWER_MAX;
        // It is refused for some seconds after another member has come back.
        while let Err(error) = remove_etcd_member(&book, &file.name) {
            if clock.instant() >= until {
                note!(
                    "forebay: the member of etcd {} is still registered ({error}): remove it with etcdctl member remove",
                    file.name
                );
                break;
            }
            std::thread::sleep(REGISTER_PAUSE);
        }
    }
    stop(home)?;
    home.forget_etcd_member()?;
    Ok(home.forget_etcd_papers()?)
}
