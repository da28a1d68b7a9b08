//! The process behind a mount.
//!
//! It never asks its own mount for anything, not even by a stat of the mountpoint: if it were killed
//! then, the thread that asked would wait for an answer that cannot come, and keep the process, and with it
//! /dev/fuse and the lock, alive for ever.

mod disks;
pub mod metrics;
mod native;
mod placing;
mod policy_runs;
pub mod schedules;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::ByteSize;
use forebay_base::full::{comes_of_full, is_full};
use forebay_base::time::SystemClock;
use forebay_disk::absent;
use forebay_fs::object::CLOSING_MAX;
use forebay_fs::{Background, FsError, Namespace};
use forebay_fuse::mount::{By, WhenBusy, mount, unmount};
use forebay_fuse::settings::TransportChoice;
use forebay_fuse::transport::{Switch, Wish, files_of_rings, switch_on};
use forebay_fuse::{Adapter, DirectPath, Ending, Opening, Session, Transport};
use forebay_metrics::Listen;
use forebay_node::Member;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::placing::Placing;
pub use self::policy_runs::Next;
use self::policy_runs::Runs;
use self::schedules::Kept;
use crate::binds;
use crate::control::{
    self, Answer, Ask, Counters, MountStatus, RingStatus, SessionCounters, Status,
};
use crate::ground::{Ground, Held};
use crate::home::{Home, back_up_into, choose};
use crate::tuning::{Tuning, bound_heaps, raise_file_limit, raise_priority};
use crate::waits;

/// File descriptors that are needed for other things than objects.
const OTHER_FILES: usize = 256;

/// Why there is no direct path where the option takes it away, whatever the setting says.
const SERVED: &str = "the option --served was given";

/// What the daemon is to do.
pub struct Order {
    /// Home folder.
    pub home: Home,
    /// Where to mount.
    pub mountpoint: PathBuf,
    /// Whether the kernel may read and write objects itself.
    pub direct: bool,
    /// How requests are to arrive, if not as the settings say.
    pub transport: Option<TransportChoice>,
    /// Where monitors are answered, if they are.
    pub monitors: Option<Listen>,
}

/// A mounted file system that answers requests.
struct Running {
    home: Home,
    mountpoint: PathBuf,
    fs: Arc<Namespace>,
    /// The node, if this is one of a cluster.
    member: Option<Weak<Member>>,
    session: Arc<Session>,
    direct: DirectPath,
    /// Read-ahead of the mount.
    read_ahead: ByteSize,
    schedules: Kept,
    placing: Placing,
    policy_runs: Runs,
    /// Nothing is bound, and the kernel reads and writes nothing itself.
    serves_all: bool,
    /// Held while a command is carried out: none is once it says `true`.
    ended: RwLock<bool>,
}

/// Mounts, calls `ready` with a line for people if there is something to say, and serves until the file
/// system is unmounted.
///
/// # Errors
/// If it cannot be mounted, or could not be closed in order.
pub fn run(order: &Order, ready: impl FnOnce(Option<&str>) -> Result<()>) -> Result<()> {
    // Neither a command that goes away while it is answered nor a log that nobody reads any more ends a daemon.
    // SAFETY: no other thread exists that could be surprised.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
    // Before the mount is there: a signal from then on must unmount it.
    let signals = Signals::new(signals_to_obey())?;
    // What it makes in the home folder belongs to its owner alone. No other thread makes files yet.
    // SAFETY: umask always succeeds.
    unsafe { libc::umask(0o077) };
    close_home(&order.home)?;
    let mut ground = Ground::open(&order.home)?;
    clear_dead_mount(order)?;
    let mountpoint = check_mountpoint(order)?;
    let front = front_end(order, &ground.settings().fuse);
    let process = ground.settings().daemon.clone();
    let settings = &mut ground.settings().fs;
    settings.direct &= order.direct;
    let file_limit = usize::try_from(raise_file_limit()).unwrap_or(usize::MAX);
    let beside = OTHER_FILES
        + CLOSING_MAX
        + settings.spare_objects
        // Archives take as many entries as locks, and are not known yet.
        + files_of_rings(&front, true);
    // As many again may be open for a commit that is to sync them first.
    let room = file_limit.saturating_sub(beside) / 2;
    if settings.open_objects_max > room {
        tracing::info!(file_limit, room, "open_objects_max is above what this process may open");
        settings.open_objects_max = room.max(16);
    }
    settings.native_handles_max = settings.native_handles_max.min(file_limit / 8).max(16);
    bound_heaps();
    // Before threads are started: they inherit it.
    raise_priority(process.daemon_nice);
    let (fs, held) = ground.into_file_system(&order.home)?;
    let mut tuning = Tuning::default();
    // Before the supply makes objects: an open file keeps the read-ahead that it was opened with.
    for disk in fs.disk_status() {
        tuning.raise_read_ahead_under(Path::new(&disk.location), process.disk_read_ahead);
    }
    match start(order, mountpoint, &front, &fs, &held) {
        Ok((running, background)) => {
            let (running, monitors) = (Arc::new(running), order.monitors.clone());
            let ready = |loss: Option<&str>| {
                monitors.map_or(Ok(()), |listen| running.serve_metrics(listen))?;
                ready(loss)
            };
            serve(&running, background, signals, tuning, held, ready)
        }
        Err(error) => {
            held.leave();
            // Nothing was changed: the file system stays clean.
            fs.close()?;
            held.end()?;
            Err(error)
        }
    }
}

/// The settings of the kernel front end, with what the order says instead.
fn front_end(order: &Order, settings: &forebay_fuse::Settings) -> forebay_fuse::Settings {
    let transport = order.transport.unwrap_or(settings.transport);
    forebay_fuse::Settings { transport, ..settings.clone() }
}

/// The signals that unmount. A hangup that is ignored (nohup) stays so.
fn signals_to_obey() -> Vec<i32> {
    // SAFETY: all zeros is a valid value; sigaction only writes the present action into it.
    let is_ignored = unsafe {
        let mut present: libc::sigaction = std::mem::zeroed();
        libc::sigaction(SIGHUP, std::ptr::null(), &raw mut present) == 0
            && present.sa_sigaction == libc::SIG_IGN
    };
    let hangup = (!is_ignored).then_some(SIGHUP);
    [SIGTERM, SIGINT].into_iter().chain(hangup).collect()
}

/// Closes to others what an older program left open in the home folder.
fn close_home(home: &Home) -> Result<()> {
    for opened in home.close_to_others().with_context(|| home.root().display().to_string())? {
        let (path, mode) = (opened.path.display(), format!("{:o}", opened.mode));
        match opened.closed {
            Ok(()) => tracing::warn!(%path, mode, "was open to other users: it is closed now"),
            Err(error) => tracing::warn!(%path, mode, %error, "is open to other users"),
        }
    }
    Ok(())
}

/// Unmounts what a daemon of this file system left behind when it died. That it died is certain: its lock
/// is ours.
fn clear_dead_mount(order: &Order) -> Result<()> {
    let mut place = std::path::absolute(&order.mountpoint)?;
    // Only links are read on the way: the mount itself, which cannot answer, is not asked.
    if let Ok(canonical) = place.canonicalize() {
        place = canonical;
    }
    let dead = crate::mounts::all()
        .into_iter()
        .find(|mount| mount.mountpoint == place && mount.home == order.home.root());
    let Some(dead) = dead else { return Ok(()) };
    tracing::info!(mountpoint = %place.display(), "removing the mount of a daemon that died");
    unmount(&dead.mountpoint, WhenBusy::Detach, By::this_process())
        .with_context(|| format!("cannot remove the dead mount at {}", place.display()))
}

fn check_mountpoint(order: &Order) -> Result<PathBuf> {
    let shown = order.mountpoint.display();
    let mountpoint =
        order.mountpoint.canonicalize().with_context(|| format!("cannot mount at {shown}"))?;
    if !mountpoint.is_dir() {
        bail!("cannot mount at {shown}: it is not a directory");
    }
    if mountpoint.starts_with(order.home.root()) || order.home.root().starts_with(&mountpoint) {
        bail!(
            "cannot mount at {shown}: the mount point and the home folder {} must not contain each other; choose another place",
            order.home.root().display()
        );
    }
    if crate::mounts::all().iter().any(|mount| mount.mountpoint == mountpoint) {
        bail!("cannot mount at {shown}: a Forebay file system is already mounted there");
    }
    Ok(mountpoint)
}

fn start(
    order: &Order,
    mountpoint: PathBuf,
    front: &forebay_fuse::Settings,
    fs: &Arc<Namespace>,
    held: &Held,
) -> Result<(Running, Background)> {
    let home = &order.home;
    let source = home.root().to_str().context("the home folder's path is not UTF-8")?;
    let placing = Placing::begin(home, fs);
    // The switch counts when the kernel mounts.
    let wish = wish_for(front.transport)?;
    let device = mount(source, &mountpoint, By::this_process()).map_err(anyhow::Error::msg)?;
    let adapter = Adapter::new(Arc::clone(fs), front.clone(), Arc::new(SystemClock));
    let begun = Opening::begin(device, adapter, wish).context("the FUSE session did not begin");
    let started = begun.and_then(|(opening, direct)| {
        let direct = if order.direct { direct } else { DirectPath::Closed(SERVED.to_owned()) };
        let background = fs.start_background()?;
        match opening.start() {
            Ok(session) => Ok((session, direct, background)),
            Err(error) => {
                background.stop();
                Err(error.into())
            }
        }
    });
    match started {
        Ok((session, direct, background)) => {
            let session = Arc::new(session);
            held.set_session(&session);
            let running = Running {
                home: home.clone(),
                mountpoint,
                fs: Arc::clone(fs),
                member: held.member(),
                session,
                direct,
                read_ahead: front.read_ahead,
                schedules: Kept::of(home),
                placing,
                policy_runs: Runs::of(home),
                serves_all: !order.direct,
                ended: RwLock::new(false),
            };
            Ok((running, background))
        }
        Err(error) => {
            let _ = unmount(&mountpoint, WhenBusy::Detach, By::this_process());
            Err(error)
        }
    }
}

/// What to wish for, as far as it is known before mounting.
fn wish_for(wanted: TransportChoice) -> Result<Wish> {
    if wanted == TransportChoice::Dev {
        return Ok(Wish::Dev("as requested".to_owned()));
    }
    let switch = switch_on();
    if switch == Switch::TurnedOn {
        tracing::info!("FUSE over io_uring is switched on for this machine (enable_uring)");
    }
    match (switch, wanted) {
        (Switch::Off(why), TransportChoice::Uring) => {
            bail!("the transport \"uring\" is not available: {why}")
        }
        (Switch::Off(why), TransportChoice::Auto | TransportChoice::Dev) => Ok(Wish::Dev(why)),
        (Switch::On | Switch::TurnedOn, TransportChoice::Uring) => Ok(Wish::UringOnly),
        (Switch::On | Switch::TurnedOn, _) => Ok(Wish::Uring),
    }
}

fn serve(
    running: &Arc<Running>,
    background: Background,
    signals: Signals,
    mut tuning: Tuning,
    held: Held,
    ready: impl FnOnce(Option<&str>) -> Result<()>,
) -> Result<()> {
    if let Some(mount) = crate::mounts::of_home(&running.home) {
        tuning.raise_read_ahead(&mount.device, running.read_ahead);
    }
    let announced = announce(running, signals, ready);
    if let Err(error) = &announced {
        tracing::error!(%error, "mounted, but not usable: unmounting");
        running.detach()?;
    }
    if running.session.wait() == Ending::Broken {
        running.give_up();
    }
    *running.ended.write().unwrap_or_else(PoisonError::into_inner) = true;
    background.stop();
    held.leave();
    let closed = running.fs.close();
    drop(tuning);
    let _ = std::fs::remove_file(running.home.root().join(Home::CONTROL));
    // What is left of it says that the daemon did not end in order.
    if closed.is_ok() {
        let _ = std::fs::remove_file(running.home.pid_path());
    }
    match &closed {
        Ok(()) => tracing::info!("unmounted, everything is committed"),
        Err(error) => tracing::error!(%error, "unmounted, but some changes could not be committed"),
    }
    let ended = held.end();
    announced?;
    closed?;
    ended
}

/// Lets commands and signals reach the daemon, and says that the mount is there.
fn announce(
    running: &Arc<Running>,
    signals: Signals,
    ready: impl FnOnce(Option<&str>) -> Result<()>,
) -> Result<()> {
    // Before a signal can unmount it.
    running.raise()?;
    let pid_path = running.home.pid_path();
    // The disk may be full, and nothing could be removed without a mount: what it takes is kept aside.
    let reserve = running.fs.reserve();
    reserve
        .spend(|| running.home.write_pid(), is_full)
        .with_context(|| format!("cannot write {}", pid_path.display()))?;
    let no_space = |error: &anyhow::Error| comes_of_full(error.as_ref());
    let listener = reserve.spend(|| control::listen(running.home.root()), no_space)?;
    let for_control = Arc::clone(running);
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || for_control.answer_control(&listener))?;
    let for_signals = Arc::clone(running);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || for_signals.obey_signals(signals))?;
    native::care_for_mount(running);
    schedules::carry_out(running)?;
    running.plan_runs();
    policy_runs::carry_out(running)?;
    let native = running.bind_native();
    if let Err(error) = &native {
        tracing::warn!(error = %crate::output::chain(error), "native filesets are served by the daemon");
    }
    tracing::info!(
        home = %running.home.root().display(),
        mountpoint = %running.mountpoint.display(),
        epoch = running.fs.epoch().0,
        direct = ?running.direct,
        transport = %describe(running.session.transport()),
        "mounted"
    );
    let native = native.err().map(|error| {
        format!(
            "native filesets are served by the daemon, which costs speed: {}",
            crate::output::chain(&error)
        )
    });
    let losses: Vec<String> =
        running.loss().into_iter().chain(native).chain(running.absent_disks()).collect();
    ready((!losses.is_empty()).then(|| losses.join("; ")).as_deref())
}

/// The transport in a line of the log.
fn describe(transport: &Transport) -> String {
    match transport {
        Transport::Dev(why) => format!("/dev/fuse ({why})"),
        Transport::Uring(plan) => {
            format!("io_uring, {} queues of {}", plan.queues(), plan.depth())
        }
    }
}

impl Running {
    /// What this mount lacks, in a line for people.
    fn loss(&self) -> Option<String> {
        match &self.direct {
            DirectPath::Open => None,
            DirectPath::Closed(why) => Some(format!(
                "every file takes the served path: the daemon moves its bytes, which costs speed ({why})"
            )),
        }
    }

    /// The disks that are not there, each in a line for people.
    fn absent_disks(&self) -> Vec<String> {
        let absent = self.fs.disk_status().into_iter().filter(|disk| disk.kind == absent::KIND);
        let why = absent.filter_map(|disk| disk.advice.into_iter().next());
        why.map(|why| format!("files on one disk cannot be opened: {why}")).collect()
    }

    /// Unmounts at the first signal, also if the file system is in use: it ends then when
    /// its last user is gone. A second signal commits and ends at once.
    fn obey_signals(&self, mut signals: Signals) {
        let mut seen = 0;
        for signal in signals.forever() {
            seen += 1;
            tracing::info!(signal, "a signal ends the daemon");
            if seen > 1 {
                let committed = self.fs.commit();
                tracing::warn!(?committed, "exiting although the file system is in use");
                std::process::exit(1);
            }
            if let Err(error) = self.detach() {
                tracing::error!(%error, "cannot unmount");
            }
        }
    }

    /// Ends when requests may wait for ever: the kernel ends them with this process.
    fn give_up(&self) -> ! {
        tracing::error!("a thread that answers requests has died: unmounting and exiting");
        if let Err(error) = self.detach() {
            tracing::error!(%error, "cannot unmount");
        }
        let committed = self.fs.commit();
        tracing::error!(?committed, "exiting although the file system is in use; mount it again");
        std::process::exit(1);
    }

    /// Takes the mount out of the tree; the session ends when its last user is gone. Another process does
    /// it, as unmounting may wait for answers of this one.
    fn detach(&self) -> Result<()> {
        let mut command = crate::background::this_program();
        let status = command.args(["umount", "--lazy"]).arg(&self.mountpoint).status()?;
        if !status.success() {
            bail!("forebay umount --lazy ended with {status}");
        }
        Ok(())
    }

    fn answer_control(self: &Arc<Running>, listener: &UnixListener) {
        for stream in listener.incoming() {
            if *self.ended() {
                return;
            }
            let served = stream.map_err(anyhow::Error::from).and_then(|stream| self.serve(stream));
            if let Err(error) = served {
                tracing::debug!(%error, "a command disconnected");
            }
        }
    }

    fn serve(self: &Arc<Running>, stream: UnixStream) -> Result<()> {
        match control::read_ask(&stream)? {
            None => Ok(()),
            Some(Ask::BackUp { folder, fileset }) => {
                // It takes long; other commands are answered meanwhile.
                let running = Arc::clone(self);
                let work = move || running.back_up(&stream, &folder, fileset.as_deref());
                std::thread::Builder::new().name("backup".to_owned()).spawn(work)?;
                Ok(())
            }
            Some(Ask::Waits { min_ms }) => {
                // To find paths takes long, and whatever requests wait for must not keep other commands waiting.
                let running = Arc::clone(self);
                let work = move || running.tell_waits(&stream, Duration::from_millis(min_ms));
                std::thread::Builder::new().name("waits".to_owned()).spawn(work)?;
                Ok(())
            }
            Some(ask) if disks::takes_long(&ask) => {
                let running = Arc::clone(self);
                let work = move || running.answer_aside(&stream, ask);
                std::thread::Builder::new().name("disks".to_owned()).spawn(work)?;
                Ok(())
            }
            Some(ask) => control::reply(&stream, &self.answer(ask)),
        }
    }

    fn back_up(&self, stream: &UnixStream, folder: &Path, fileset: Option<&str>) {
        // The end of the mount waits for it.
        let ended = self.ended();
        let answer = if *ended {
            Answer::Refused { reason: "the file system was unmounted".to_owned() }
        } else {
            // Whether anybody still listens makes no difference to the copy.
            let mut progress =
                |done, total| drop(control::reply(stream, &Answer::Progress { done, total }));
            let copied = choose(self.fs.filesets(), fileset).and_then(|chosen| {
                back_up_into(folder, &chosen, |id, file| {
                    Ok(self.fs.back_up_fileset(id, file, &mut progress)?)
                })
            });
            match copied {
                Ok(records) => Answer::BackedUp { records },
                Err(error) => Answer::Refused { reason: crate::output::chain(&error) },
            }
        };
        if let Err(error) = control::reply(stream, &answer) {
            tracing::debug!(%error, "a command disconnected");
        }
    }

    fn answer_aside(&self, stream: &UnixStream, ask: Ask) {
        if let Err(error) = control::reply(stream, &self.answer(ask)) {
            tracing::debug!(%error, "a command disconnected");
        }
    }

    fn tell_waits(&self, stream: &UnixStream, min: Duration) {
        let job = |process: u32| self.session.askers().job_at_once(process);
        let answer = Answer::Waits { waits: waits::with_paths(&self.fs, &job, min) };
        if let Err(error) = control::reply(stream, &answer) {
            tracing::debug!(%error, "a command disconnected");
        }
    }

    fn session_counters(&self) -> Vec<SessionCounters> {
        let member = self.member.as_ref().and_then(Weak::upgrade);
        member.map_or_else(Vec::new, |member| crate::member::session_counters(&member, &self.fs))
    }

    fn ended(&self) -> RwLockReadGuard<'_, bool> {
        self.ended.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, ask: Ask) -> Answer {
        let ended = self.ended();
        if *ended {
            // It has come too late: the file system is closed.
            return Answer::Refused { reason: "the file system was unmounted".to_owned() };
        }
        let done = match ask {
            Ask::Status => return Answer::Status(Box::new(self.status())),
            Ask::Counters => {
                return Answer::Counters(Counters {
                    filesets: self.fs.counters(),
                    latencies: self.session.activities().latencies(),
                    requests: (self.session.requests().into_iter())
                        .map(|(kind, count)| (kind.to_owned(), count))
                        .collect(),
                    sessions: self.session_counters(),
                });
            }
            Ask::Activity => return Answer::Activity(self.activity()),
            Ask::Bind => {
                return match self.bind_native() {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Refused { reason: crate::output::chain(&error) },
                };
            }
            Ask::CreateFileset { new, copies, cache } => {
                let made = match cache {
                    Some(cache) => self.fs.add_cache(&new, &cache),
                    None => self.fs.add_fileset_with_copies(&new, copies.max(1)),
                };
                self.session.tell_kernel();
                if let (Ok(()), Err(error)) = (&made, self.bind_native()) {
                    let error = crate::output::chain(&error);
                    tracing::warn!(
                        fileset = new.name,
                        error,
                        "the new native fileset is served by the daemon"
                    );
                }
                made
            }
            Ask::SetFileset { name, durability, placement } => {
                self.fs.set_fileset(&name, durability, placement)
            }
            Ask::RemoveFileset { name, lost } => {
                let is_native = self.fs.native_filesets().iter().any(|native| native.name == name);
                let removed = if lost {
                    self.fs.remove_lost_fileset(&name)
                } else {
                    self.fs.remove_fileset(&name)
                };
                if removed.is_ok() {
                    self.forget_schedules(&name);
                    if is_native {
                        self.unbind_native(&name);
                    }
                }
                removed
            }
            Ask::SetSchedules { .. } | Ask::RemoveSchedules { .. } | Ask::Schedules { .. } => {
                return self.answer_of_schedules(ask);
            }
            Ask::PlaceFiles => return self.place_files(),
            Ask::Sync => self.sync_all(),
            Ask::BackUp { .. } | Ask::Waits { .. } => {
                unreachable!("a thread of its own answers it")
            }
            of_disks => {
                let answer = disks::answer(&self.fs, self.home.root(), of_disks);
                // A clone has a name at the top level.
                self.session.tell_kernel();
                return answer;
            }
        };
        self.session.tell_kernel();
        match done {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Refused { reason: error.to_string() },
        }
    }

    /// Makes everything durable while the unmount waits for it. A commit that finds no space is tried once more: the first sync after
    /// room was made may report a write that the kernel gave up while the disk was full (errseq_t in the kernel's documentation), and
    /// a commit that failed is written anew as a whole. What the sync of the disks reports may be lost bytes: it is passed on.
    fn sync_all(&self) -> forebay_fs::Result<()> {
        if let Err(error @ FsError::NoSpace) = self.fs.commit() {
            tracing::warn!(%error, "a commit failed: it is tried once more");
        }
        self.fs.sync_all()
    }

    /// Has the mount raised, so that the kernel keeps what it needs to check everybody's paths over its root.
    /// A mount that cannot be raised is used as it is.
    fn raise(&self) -> Result<()> {
        if By::this_process() != By::Root {
            return Ok(());
        }
        let raised = self.session.raise(|| binds::have("raise", &self.mountpoint, &[]));
        let Err(error) = raised else { return Ok(()) };
        if crate::mounts::of_home(&self.home).is_none() {
            return Err(error.context("the mount was lost"));
        }
        let error = crate::output::chain(&error);
        tracing::info!(
            error,
            "the mount could not be raised: each absolute path that another user opens takes a request to the daemon"
        );
        Ok(())
    }

    fn status(&self) -> Status {
        let health = self.fs.commit_health();
        let (cached_inodes, cache_bytes) = self.fs.cache_usage();
        let closed = match &self.direct {
            DirectPath::Open => None,
            DirectPath::Closed(why) => Some(why.clone()),
        };
        let (transport, transport_why, ring) = match self.session.transport() {
            Transport::Dev(why) => ("dev", Some(why.clone()), None),
            Transport::Uring(plan) => {
                let ring = RingStatus {
                    queues: plan.queues(),
                    depth: plan.depth(),
                    threads: plan.entries(),
                    memory_max_bytes: plan.memory_bytes(),
                };
                ("uring", None, Some(ring))
            }
        };
        Status {
            root: self.home.root().to_owned(),
            uuid: self.fs.uuid(),
            mount: Some(MountStatus {
                mountpoint: self.mountpoint.clone(),
                pid: std::process::id(),
                commit_age_seconds: health.age.as_secs_f64(),
                uncommitted: health.pending,
                commit_error: health.last_error,
                passthrough: closed.is_none(),
                passthrough_closed: closed,
                transport: transport.to_owned(),
                transport_why,
                ring,
                protocol: format!("7.{}", self.session.protocol_minor()),
                spare_objects: self.fs.objects().spare_count(),
                open_objects: self.fs.objects().open_count(),
                cached_inodes,
                cache_bytes,
                reserve_held: self.fs.reserve_is_held(),
                native: self.native_status(),
                schedules: self.schedules.list(None).unwrap_or_default(),
                schedules_fault: self.schedules.list(None).err(),
                placing_faults: self.placing.faults(),
            }),
            clean: false,
            disks: self.fs.placed_disk_status(),
            filesets: self.fs.fileset_status(),
            store_bytes: self.fs.store_bytes(),
        }
    }
}
