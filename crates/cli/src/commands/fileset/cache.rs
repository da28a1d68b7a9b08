//! `forebay fileset create --cache`, `forebay fileset evict`, `flush` and `conflicts`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use forebay_base::time::SystemClock;
use forebay_base::{ByteSize, Clock as _};
use forebay_fs::caching::{CacheSettings, HomeIdentity};
use forebay_fs::{
    CacheMode, CacheStatus, Conflict, Flushing, Namespace, WriteBackSettings, WriteBackStatus,
};

use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::mounts;
use crate::output::put_json;

/// What a new fileset is to be a cache of.
#[derive(clap::Args)]
pub struct CacheArgs {
    /// Make the fileset a cache over this directory of another file system (its home), such as an NFS mount. Names and
    /// attributes are fetched when a directory is first looked into, a file when it is first opened.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// What the cache does with changes that are made in it.
    #[arg(long = "cache-mode", value_enum, default_value = "read-only", requires = "cache")]
    cache_mode: ModeArg,
    /// Seconds for which fetched names and attributes are served without a look at the home; 0 looks each time.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "cache")]
    refresh: u64,
    /// Seconds without an answer after which the home counts as unreachable, 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "cache")]
    home_timeout: u64,
    /// Seconds for which a change of a single-writer cache waits before it is written back, so that later changes may make it
    /// needless; 0 writes back at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, requires = "cache")]
    write_delay: u64,
    /// How many changes of a single-writer cache may wait for the home; further ones fail with ENOSPC.
    #[arg(long, value_name = "CHANGES", default_value_t = 1_000_000, requires = "cache",
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    queue_max: u64,
}

/// The modes of caches.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// Changes are refused.
    ReadOnly,
    /// Changes stay in the cache: what is changed there does not follow the home any more.
    LocalUpdate,
    /// Changes are written back to the home, in their order and in the background; nothing else may write there. Such a cache
    /// is always served, and has no hard links, extended attributes or special files.
    SingleWriter,
}

impl CacheArgs {
    /// The settings of the cache, if it is to be one. The home is looked at by this command: one that hangs hangs no daemon.
    pub fn settings(&self, root: &Path) -> Result<Option<CacheSettings>> {
        let Some(directory) = &self.cache else { return Ok(None) };
        let mode = match self.cache_mode {
            ModeArg::ReadOnly => CacheMode::ReadOnly,
            ModeArg::LocalUpdate => CacheMode::LocalUpdate,
            ModeArg::SingleWriter => CacheMode::SingleWriter,
        };
        let home =
            directory.canonicalize().with_context(|| format!("--cache {}", directory.display()))?;
        let device = std::fs::metadata(&home)?.dev();
        if let Some(own) = Home::at(root).ok().and_then(|home| mounts::of_home(&home)) {
            ensure!(
                std::fs::metadata(&own.mountpoint)?.dev() != device,
                "--cache {}: the directory lies in this file system itself; name one of another file system",
                home.display()
            );
        }
        let home = home
            .into_os_string()
            .into_string()
            .map_err(|name| anyhow!("--cache {}: the path is not UTF-8", name.display()))?;
        let identity = HomeIdentity::of(&home)?;
        let write_back = (mode == CacheMode::SingleWriter).then_some(WriteBackSettings {
            delay_seconds: self.write_delay,
            changes_max: self.queue_max,
        });
        Ok(Some(CacheSettings {
            home,
            mode,
            refresh_seconds: self.refresh,
            timeout_seconds: self.home_timeout,
            identity,
            write_back,
        }))
    }
}

/// Permission bits of the home, which its cache must not exceed before its directory is listed for the first time.
pub fn mode_of_home(cache: &CacheSettings) -> Result<u16> {
    let found = std::fs::metadata(&cache.home).with_context(|| cache.home.clone())?;
    Ok(u16::try_from(found.mode() & 0o7777)?)
}

/// Carries out `forebay fileset evict`.
pub fn evict(root: &Path, name: &str, keep: ByteSize, json: bool) -> Result<()> {
    let home = Home::at(root)?;
    let evicted = if home.try_lock()?.is_none() {
        let ask = Ask::EvictCache { name: name.to_owned(), keep_bytes: keep.0 };
        match control::ask(home.root(), &ask)? {
            Answer::Evicted(evicted) => evicted,
            other => bail!("not an answer: {other:?}"),
        }
    } else {
        unmounted(&home, |fs| fs.evict_cache(name, keep.0))?
    };
    if json {
        return put_json(&evicted);
    }
    outln!("{} files evicted, {} freed", evicted.files, ByteSize(evicted.bytes));
    if evicted.in_use > 0 {
        outln!("{} files are open and stay", evicted.in_use);
    }
    Ok(())
}

/// What a listing says of a cache.
pub fn shown(cache: &CacheStatus) -> String {
    let mode = match cache.mode {
        CacheMode::ReadOnly => "read-only",
        CacheMode::LocalUpdate => "local-update",
        CacheMode::SingleWriter => "single-writer",
    };
    let state = match &cache.unreachable {
        Some(why) => format!("its home is unreachable: {why}"),
        None => format!(
            "{} files fetched since the mount, {}",
            cache.fetched_files,
            ByteSize(cache.fetched_bytes)
        ),
    };
    let unreadable = match cache.unreadable_names {
        0 => String::new(),
        names => format!("; {names} names cannot be read there"),
    };
    let (home, refresh) = (&cache.home, cache.refresh_seconds);
    match &cache.write_back {
        None => format!("{mode} cache of {home}, refreshed after {refresh} s; {state}{unreadable}"),
        Some(waiting) => {
            format!("{mode} cache of {home}; {state}{unreadable}; {}", shown_queue(waiting))
        }
    }
}

/// What is said of the changes that wait.
fn shown_queue(waiting: &WriteBackStatus) -> String {
    let WriteBackStatus { changes, oldest_seconds, conflicts, problem, .. } = waiting;
    let mut text = match changes {
        0 => "all changes are written back".to_owned(),
        _ => {
            format!("{changes} changes wait to be written back, the oldest for {oldest_seconds} s")
        }
    };
    if let Some(why) = problem {
        text.push_str(&format!(": {why}"));
    }
    if *conflicts > 0 {
        text.push_str(&format!("; {conflicts} conflicts (forebay fileset conflicts)"));
    }
    text
}

/// How often a flush asks how far it is.
const ASK_PAUSE: Duration = Duration::from_millis(200);
/// How often it says so.
const SAY_PAUSE: Duration = Duration::from_secs(2);
/// What a flush exits with whose time is over.
const TIMED_OUT: u8 = 2;

/// Carries out `forebay fileset flush`.
pub fn flush(root: &Path, name: &str, timeout: u64, json: bool) -> Result<ExitCode> {
    let home = Home::at(root)?;
    if home.try_lock()?.is_some() {
        unmounted(&home, |fs| fs.write_back_now(name))?;
        return said(&Flushing { through: 0, left: 0, problem: None, paused_task: None }, json);
    }
    let (begun, mut last_said, mut through) = (SystemClock.instant(), None, None);
    let passed = || SystemClock.instant().saturating_duration_since(begun);
    loop {
        let ask = Ask::FlushCache { name: name.to_owned(), begun: through };
        let state = match control::ask(home.root(), &ask)? {
            Answer::Flushing(state) => state,
            other => bail!("not an answer: {other:?}"),
        };
        through = Some(state.through);
        if state.left == 0 || (timeout > 0 && passed() >= Duration::from_secs(timeout)) {
            return said(&state, json);
        }
        if let Some(task) = state.paused_task {
            bail!(
                "{} changes wait, and task {task}, which writes them back, is paused: `forebay tasks resume` has it go on",
                state.left
            );
        }
        if last_said.is_none_or(|at| passed().saturating_sub(at) >= SAY_PAUSE) {
            last_said = Some(passed());
            let why = state.problem.map_or_else(String::new, |why| format!(": {why}"));
            note!("{} changes wait{why}", state.left);
        }
        std::thread::sleep(ASK_PAUSE);
    }
}

/// Says how a flush has ended.
fn said(state: &Flushing, json: bool) -> Result<ExitCode> {
    if json {
        put_json(state)?;
    } else if state.left == 0 {
        outln!("all changes are written back");
    } else {
        let why = state.problem.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        outln!("{} changes still wait{why}", state.left);
    }
    Ok(if state.left == 0 { ExitCode::SUCCESS } else { ExitCode::from(TIMED_OUT) })
}

/// Does something with the file system, which is not mounted.
fn unmounted<T>(home: &Home, what: impl FnOnce(&Namespace) -> forebay_fs::Result<T>) -> Result<T> {
    let (fs, _lock) = home.open()?.into_file_system(home)?;
    let done = what(&fs);
    fs.close().context("the file system could not be closed cleanly")?;
    Ok(done?)
}

/// Carries out `forebay fileset conflicts`.
pub fn conflicts(root: &Path, name: &str, forget: bool, json: bool) -> Result<()> {
    let home = Home::at(root)?;
    let conflicts = if home.try_lock()?.is_none() {
        let ask = Ask::CacheConflicts { name: name.to_owned(), forget };
        match control::ask(home.root(), &ask)? {
            Answer::CacheConflicts { conflicts } => conflicts,
            other => bail!("not an answer: {other:?}"),
        }
    } else {
        unmounted(&home, |fs| fs.cache_conflicts(name, forget))?
    };
    if json {
        return put_json(&conflicts);
    }
    for Conflict { path, what, kept, .. } in &conflicts {
        let kept = kept.as_ref().map_or_else(String::new, |kept| format!("; kept as {kept}"));
        outln!("{path}: {what}{kept}");
    }
    if conflicts.is_empty() {
        outln!("no conflicts");
    }
    Ok(())
}
