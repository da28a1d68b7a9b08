//! Files that turned out to have lost something while they were used, by the paths that people know them by.
//!
//! Whoever finds one knows its number and holds its lock, and names lead downwards only. So it is noted, and the thread that
//! commits looks for its names later: one pass over the entries of the fileset for all that were noted since the last.
//! What is known lasts until the file system is unmounted; fsck finds all of it again. Memory: [`NOTED_MAX`] files.

use std::collections::{HashMap, HashSet};

use forebay_base::Ino;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Partition, Row};
use crate::error::Result;
use crate::key::{self, Key};
use crate::record::{EntryRecord, decode};

/// The most files that are noted in a fileset; of others there is a line in the log.
pub const NOTED_MAX: usize = 64;

/// The longest path that is looked for, in names.
const DEPTH_MAX: usize = 1000;

/// Entries that are read together.
const CHUNK: usize = 4096;

/// A file that has lost something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFile {
    /// Its number.
    pub ino: u64,
    /// Its path from the top of the file system, once that was looked for; none if no name leads to it.
    pub path: Option<String>,
    /// What is the matter with it.
    pub what: String,
}

/// What was noted of one fileset.
#[derive(Default)]
pub(crate) struct Damage {
    noted: Mutex<Vec<(DamagedFile, Sought)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sought {
    NotYet,
    Done,
}

impl Damage {
    /// Notes a file. Takes no other lock.
    pub fn note(&self, ino: Ino, what: &str) {
        let mut noted = self.noted.lock();
        if noted.len() < NOTED_MAX && noted.iter().all(|(file, _)| file.ino != ino.0) {
            let file = DamagedFile { ino: ino.0, path: None, what: what.to_owned() };
            noted.push((file, Sought::NotYet));
        }
    }

    /// All that were noted.
    pub fn files(&self) -> Vec<DamagedFile> {
        self.noted.lock().iter().map(|(file, _)| file.clone()).collect()
    }

    fn unnamed(&self) -> HashSet<Ino> {
        let noted = self.noted.lock();
        noted
            .iter()
            .filter(|(_, sought)| *sought == Sought::NotYet)
            .map(|(file, _)| Ino(file.ino))
            .collect()
    }

    fn name(&self, ino: Ino, path: Option<&str>) {
        for (file, sought) in self.noted.lock().iter_mut().filter(|(file, _)| file.ino == ino.0) {
            if let Some(path) = path {
                // That it is damaged was said before, as loudly as it is bad.
                tracing::warn!(path, ino = file.ino, "{}", file.what);
            }
            (file.path, *sought) = (path.map(str::to_owned), Sought::Done);
        }
    }
}

impl Partition {
    /// Files that were found to have lost something since the mount.
    pub(crate) fn damaged(&self) -> Vec<DamagedFile> {
        self.damage.files()
    }

    /// Looks for the paths of files that were noted since it was called last. To be called without a lock.
    pub(crate) fn name_damaged(&self, fileset: &str) {
        let wanted = self.damage.unnamed();
        if wanted.is_empty() {
            return;
        }
        let paths = self.paths_of(fileset, &wanted).unwrap_or_else(|error| {
            tracing::warn!(fileset, %error, "cannot search for the paths of damaged files");
            HashMap::new()
        });
        for ino in wanted {
            self.damage.name(ino, paths.get(&ino).map(String::as_str));
        }
    }

    /// Paths of inodes of this fileset, from the top of the file system; of those without a name there is none. Takes one
    /// pass over the entries of the fileset.
    ///
    /// # Errors
    /// [`FsError::Io`](crate::FsError::Io), [`FsError::Damaged`](crate::FsError::Damaged).
    pub(crate) fn paths_of(
        &self,
        fileset: &str,
        wanted: &HashSet<Ino>,
    ) -> Result<HashMap<Ino, String>> {
        let top =
            if fileset.is_empty() { String::new() } else { format!("/{}", fileset.escape_debug()) };
        let mut paths = HashMap::new();
        for (ino, (parent, name)) in self.names_of(wanted)? {
            if let Ok(path) = self.path_below_top(parent, &shown(&name)) {
                paths.insert(ino, top.clone() + &path);
            }
        }
        if wanted.contains(&self.top()) {
            paths.insert(self.top(), if top.is_empty() { "/".to_owned() } else { top });
        }
        Ok(paths)
    }

    /// A name of each of these inodes, with the directory that it is in.
    pub(crate) fn names_of(&self, wanted: &HashSet<Ino>) -> Result<HashMap<Ino, (Ino, Vec<u8>)>> {
        let mut found = HashMap::new();
        let (from, to) = key::prefix_range(&[key::ENTRY]);
        self.each_entry(from, &to, |parent, entry| {
            if wanted.contains(&entry.ino) {
                found.insert(entry.ino, (parent, entry.name));
            }
            found.len() < wanted.len()
        })?;
        Ok(found)
    }

    /// The path of an entry of this name in a directory, from the top of the fileset.
    fn path_below_top(&self, parent: Ino, name: &str) -> Result<String> {
        let (mut path, mut at) = (format!("/{name}"), parent);
        for _ in 0..DEPTH_MAX {
            if at == self.top() {
                return Ok(path);
            }
            let above = self.inode(at)?.lock().parent();
            let (from, to) = key::entries(above, 0, u64::MAX);
            let mut name = None;
            self.each_entry(from, &to, |_, entry| {
                if entry.ino == at {
                    name = Some(shown(&entry.name));
                }
                name.is_none()
            })?;
            let Some(name) = name else { break };
            path.insert_str(0, &format!("/{name}"));
            at = above;
        }
        Ok(format!("(directory {at}){path}"))
    }

    /// Goes through entries, committed or not, until `visit` wants no more.
    fn each_entry(
        &self,
        mut from: Vec<u8>,
        to: &[u8],
        mut visit: impl FnMut(Ino, EntryRecord) -> bool,
    ) -> Result<()> {
        loop {
            let (rows, next): (Vec<Row>, _) = self.read_range(&from, to, CHUNK)?;
            for (key, value) in &rows {
                let Some(Key::Entry(parent, _)) = key::parse(key) else { continue };
                if !visit(parent, decode("directory entry", value)?) {
                    return Ok(());
                }
            }
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }
}

/// A name as it is printed: without anything that a terminal would obey.
fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) => name.escape_debug().to_string(),
        Err(_) => name.escape_ascii().to_string(),
    }
}
