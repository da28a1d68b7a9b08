//! Cache filesets: filesets whose files have their home elsewhere, in a directory of another file system that is mounted
//! on this machine (docs/adr/0100).
//!
//! Names and attributes of a directory are fetched when it is first looked into, the bytes of a file when it is first opened.
//! They lie in the store and on the disks of the fileset like all others. What ties an inode to its home is one extended
//! attribute, `trusted.forebay.home`. A file that was not fetched has a size and no object; nothing else has that.
//!
//! Invariants:
//! - The home is touched by threads of its own alone (`visits`), never by one that answers requests: a home that hangs
//!   hangs nobody else.
//! - An inode that follows its home never changes its bytes: a file that has changed at home gets another inode, unless it was
//!   not fetched yet.
//! - Nothing is written at home, but by a single-writer cache (`queue`, `writing`; docs/adr/0105). What ties an inode to its home there
//!   is a record of its own, its `queue::Place`, which outlives the inode until the home has removed the name as well.
//! - In a cache with local changes, an inode loses that attribute before it is changed, and never gets it back. What a visit finds
//!   is put into the fileset, and that attribute is taken away, under one lock of the cache: no change is lost to what was seen before it.
//!
//! What survives a crash: every name and every file whose record says so. Which directories were looked at lately does not.

pub(crate) mod home;
pub(crate) mod queue;
pub(crate) mod visits;
pub(crate) mod writing;

use serde::{Deserialize, Serialize};

use crate::error::{FsError, Result};

/// The extended attribute of the top directory that makes a fileset a cache; its value are [`CacheSettings`] in TOML.
pub(crate) const SETTINGS: &[u8] = b"trusted.forebay.cache";
/// The extended attribute of the root directory that names the filesets that are caches: their numbers, with spaces.
pub(crate) const CACHES: &[u8] = b"trusted.forebay.caches";
/// The extended attribute of an inode that is as at home: its path there, below the home's directory. That of a directory whose
/// names were fetched ends in `/`.
pub(crate) const PATH: &[u8] = b"trusted.forebay.home";

/// Whether an extended attribute is one of these.
pub(crate) fn is_own_xattr(name: &[u8]) -> bool {
    name == PATH || name == SETTINGS || name == CACHES
}

/// What a cache does with changes that are made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// They are refused.
    ReadOnly,
    /// They stay here: what was changed does not follow the home any more.
    LocalUpdate,
    /// They are written back to the home, in their order, which nobody else changes.
    SingleWriter,
}

/// How a single-writer cache writes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteBackSettings {
    /// For how many seconds a change waits, so that later ones may make it needless.
    pub delay_seconds: u64,
    /// How many changes may wait; further ones are refused (ENOSPC).
    pub changes_max: u64,
}

impl Default for WriteBackSettings {
    fn default() -> WriteBackSettings {
        WriteBackSettings { delay_seconds: 15, changes_max: 1_000_000 }
    }
}

/// What waits to be written back of a single-writer cache, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBackStatus {
    /// See [`WriteBackSettings::delay_seconds`].
    pub delay_seconds: u64,
    /// See [`WriteBackSettings::changes_max`].
    pub changes_max: u64,
    /// Changes that wait.
    pub changes: u64,
    /// For how many seconds the oldest of them waits.
    pub oldest_seconds: u64,
    /// Changes that were carried out at home since the mount.
    pub done_changes: u64,
    /// Bytes that were written there since the mount.
    pub written_bytes: u64,
    /// Conflicts that are remembered.
    pub conflicts: u64,
    /// Why changes wait that are due, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What tells the directory of a home from another one in its place, such as the empty directory on which it is to be
/// mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeIdentity {
    /// Sort of the file system (statfs(2)).
    pub file_system: i64,
    /// Number of the directory's inode.
    pub inode: u64,
}

/// What people choose of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSettings {
    /// Path of the home's directory.
    pub home: String,
    /// What it does with changes.
    pub mode: CacheMode,
    /// For how many seconds what was fetched of names and attributes is not compared with the home.
    pub refresh_seconds: u64,
    /// After how many seconds without an answer the home is unreachable.
    pub timeout_seconds: u64,
    /// What the home's directory was when the cache was made.
    pub identity: HomeIdentity,
    /// How it writes back, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back: Option<WriteBackSettings>,
}

impl CacheSettings {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let text = toml::to_string(self).map_err(|error| FsError::Io(error.to_string()))?;
        Ok(text.into_bytes())
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<CacheSettings> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string());
        let parsed = text.and_then(|text| toml::from_str(text).map_err(|error| error.to_string()));
        parsed.map_err(|why| FsError::Damaged(format!("the settings of the cache: {why}")))
    }
}

/// A cache fileset, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Path of the home's directory.
    pub home: String,
    /// What it does with changes.
    pub mode: CacheMode,
    /// See [`CacheSettings::refresh_seconds`].
    pub refresh_seconds: u64,
    /// See [`CacheSettings::timeout_seconds`].
    pub timeout_seconds: u64,
    /// Why the home is unreachable, if it is, as far as requests have noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
    /// Files that were fetched since the mount.
    pub fetched_files: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Names that could not be read at home when somebody looked last, although the home answered: those that were known are served
    /// as they were seen last, the others are not shown.
    #[serde(default)]
    pub unreadable_names: u64,
    /// What waits to be written back, in a single-writer cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back: Option<WriteBackStatus>,
}

/// What of a directory of a cache is to be as at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeNeed<'a> {
    /// One name.
    Name(&'a [u8]),
    /// All names.
    Names,
}

/// What ties an inode to its home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HomePath {
    /// Path below the home's directory, without a slash at either end; empty for that directory itself.
    pub path: Vec<u8>,
    /// It is a directory whose names were fetched.
    pub is_listed: bool,
}

impl HomePath {
    pub fn parse(value: &[u8]) -> HomePath {
        match value.split_last() {
            Some((b'/', path)) => HomePath { path: path.to_vec(), is_listed: true },
            _ => HomePath { path: value.to_vec(), is_listed: false },
        }
    }

    /// The value of [`PATH`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = self.path.clone();
        value.extend(self.is_listed.then_some(b'/'));
        value
    }

    /// The path of a name in this directory.
    pub fn child(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_at_home_reads_back_and_says_whether_its_names_were_fetched() {
        for (path, is_listed) in [("", false), ("", true), ("a/b", false), ("a/b", true)] {
            let path = HomePath { path: path.into(), is_listed };
            assert_eq!(HomePath::parse(&path.to_bytes()), path);
        }
        let top = HomePath { path: Vec::new(), is_listed: true };
        assert_eq!(top.child(b"a"), b"a");
        assert_eq!(HomePath { path: b"a".to_vec(), is_listed: false }.child(b"b"), b"a/b");
    }

    #[test]
    fn settings_read_back_and_garbage_is_refused() {
        let settings = CacheSettings {
            home: "/mnt/\"x\" y".to_owned(),
            mode: CacheMode::ReadOnly,
            refresh_seconds: 30,
            timeout_seconds: 10,
            identity: HomeIdentity { file_system: 0xef53, inode: 2 },
            write_back: Some(WriteBackSettings::default()),
        };
        let bytes = settings.to_bytes().unwrap();
        assert_eq!(CacheSettings::parse(&bytes).unwrap(), settings);
        for bad in [&b"\xff"[..], b"", b"home = 3", &[b"x = 1\n", &bytes[..]].concat()] {
            assert!(matches!(CacheSettings::parse(bad), Err(FsError::Damaged(_))));
        }
    }
}
