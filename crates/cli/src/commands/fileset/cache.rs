//! `forebay fileset create --cache` and `forebay fileset evict`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use forebay_base::ByteSize;
use forebay_fs::caching::{CacheSettings, HomeIdentity};
use forebay_fs::{CacheMode, CacheStatus};

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
}

/// The modes of caches.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// Changes are refused.
    ReadOnly,
    /// Changes stay in the cache: what is changed there does not follow the home any more.
    LocalUpdate,
    /// Not available yet: changes are written back to the home.
    SingleWriter,
}

impl CacheArgs {
    /// The settings of the cache, if it is to be one. The home is looked at by this command: one that hangs hangs no daemon.
    pub fn settings(&self, root: &Path) -> Result<Option<CacheSettings>> {
        let Some(directory) = &self.cache else { return Ok(None) };
        let mode = match self.cache_mode {
            ModeArg::ReadOnly => CacheMode::ReadOnly,
            ModeArg::LocalUpdate => CacheMode::LocalUpdate,
            ModeArg::SingleWriter => bail!(
                "--cache-mode single-writer: writing back to the home is not available; use read-only, or local-update for changes \
                 that stay in the cache"
            ),
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
        Ok(Some(CacheSettings {
            home,
            mode,
            refresh_seconds: self.refresh,
            timeout_seconds: self.home_timeout,
            identity,
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
        let (fs, _lock) = home.open()?.into_file_system(&home)?;
        let evicted = fs.evict_cache(name, keep.0);
        fs.close().context("the file system could not be closed cleanly")?;
        evicted?
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
    format!("{mode} cache of {home}, refreshed after {refresh} s; {state}{unreadable}")
}
