//! Where a run takes place: directories of its own on the storage, gone after it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_analytics::scratch::ScratchDir;
use forebay_base::ByteSize;
use forebay_workload::mix::SpaceNeed;
use forebay_workload::program::Places;

use super::leftover::{Marked, PREFIX};
use crate::error::{Error, Result};

/// Part of the free space that a run leaves alone: file systems slow down, or fail, when full.
const SPARE: f64 = 0.02;

/// The directories on one storage in which a user wants a workload to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Areas {
    /// What the storage is called in tables.
    pub label: String,
    /// For what stays during the run.
    pub data: PathBuf,
    /// For temporary data sets.
    pub work: PathBuf,
    /// For utility files.
    pub util: PathBuf,
}

impl Areas {
    /// Refuses areas that are no directories or have too little space for `need`, several subjects on
    /// one file system counted together.
    ///
    /// # Errors
    /// [`Error::Io`] if an area is no directory that can be looked at; [`Error::Space`] with all file
    /// systems that lack space.
    pub fn check(subjects: &[Areas], need: &SpaceNeed) -> Result<()> {
        let mut systems: Vec<(u64, PathBuf, u64, u64)> = Vec::new();
        for areas in subjects {
            for (path, bytes) in
                [(&areas.data, need.data), (&areas.work, need.work), (&areas.util, need.util)]
            {
                let metadata = fs::metadata(path).map_err(Error::io("use", path))?;
                if !metadata.is_dir() {
                    let error = std::io::Error::from_raw_os_error(libc::ENOTDIR);
                    return Err(Error::io("use as a storage", path)(error));
                }
                match systems.iter_mut().find(|(device, ..)| *device == metadata.dev()) {
                    Some((_, _, needed, _)) => *needed += bytes,
                    None => systems.push((metadata.dev(), path.clone(), bytes, free_bytes(path)?)),
                }
            }
        }
        let missing: Vec<String> = systems
            .into_iter()
            .filter(|(_, _, needed, free)| *needed as f64 > *free as f64 * (1.0 - SPARE))
            .map(|(_, path, needed, free)| {
                format!("{} needs {} and has {}", path.display(), rounded(needed), rounded(free))
            })
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(Error::Space { missing: missing.join("; ") }) }
    }
}

/// A size for people: whole MiB or GiB.
fn rounded(bytes: u64) -> ByteSize {
    let unit: u64 = if bytes < 10 << 30 { 1 << 20 } else { 1 << 30 };
    ByteSize(bytes.div_ceil(unit) * unit)
}

fn free_bytes(path: &Path) -> Result<u64> {
    let status =
        rustix::fs::statvfs(path).map_err(|error| Error::io("look at", path)(error.into()))?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// The directories of one run.
#[derive(Debug)]
pub struct Ground {
    data: ScratchDir,
    work: ScratchDir,
    util: ScratchDir,
    marks: [Marked; 3],
    inputs: HashSet<PathBuf>,
}

impl Ground {
    /// Makes them, for a run that began at `started`.
    ///
    /// # Errors
    /// If one cannot be made.
    pub fn make(areas: &Areas, started: &str) -> Result<Ground> {
        let create = |area: &Path, name: &str| ScratchDir::create(area, &format!("{PREFIX}{name}"));
        let (data, work, util) = (
            create(&areas.data, "data")?,
            create(&areas.work, "work")?,
            create(&areas.util, "util")?,
        );
        let mark = |directory: &ScratchDir| Marked::mark(directory.path(), started);
        let marks = [mark(&data)?, mark(&work)?, mark(&util)?];
        Ok(Ground { data, work, util, marks, inputs: HashSet::new() })
    }

    /// The directories.
    #[must_use]
    pub fn places(&self) -> Places {
        Places {
            data: self.data.path().to_owned(),
            work: self.work.path().to_owned(),
            util: self.util.path().to_owned(),
        }
    }

    /// Everything that is there now belongs to all runs.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub fn keep_inputs(&mut self) -> Result<()> {
        let mut inputs = HashSet::new();
        visit(self.data.path(), &mut |path, _| {
            inputs.insert(path.to_owned());
            Ok(())
        })?;
        self.inputs = inputs;
        Ok(())
    }

    /// Removes what a run has left besides the inputs, so that the next finds the same ground.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn clear_results(&self) -> Result<()> {
        visit(self.data.path(), &mut |path, is_directory| {
            if self.inputs.contains(path) { Ok(()) } else { remove(path, is_directory) }
        })?;
        let marked = |path: &Path| self.marks.iter().any(|mark| mark.path() == path);
        for area in [self.work.path(), self.util.path()] {
            visit(area, &mut |path, is_directory| {
                if marked(path) { Ok(()) } else { remove(path, is_directory) }
            })?;
        }
        Ok(())
    }

    /// Writes everything that is dirty on its file systems to their devices, so that making inputs does
    /// not weigh on what is measured.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn settle(&self) -> Result<()> {
        for path in [self.data.path(), self.work.path(), self.util.path()] {
            let directory = fs::File::open(path).map_err(Error::io("open", path))?;
            rustix::fs::syncfs(&directory)
                .map_err(|error| Error::io("write back", path)(error.into()))?;
        }
        Ok(())
    }

    /// Removes the directories.
    ///
    /// # Errors
    /// If something in them cannot be removed.
    pub fn remove(self) -> Result<()> {
        self.data.remove()?;
        self.work.remove()?;
        self.util.remove()?;
        Ok(())
    }

    /// Leaves the directories where they are, and says where.
    #[must_use]
    pub fn leave(self) -> [PathBuf; 3] {
        self.marks.into_iter().for_each(Marked::forget);
        [self.data.leave(), self.work.leave(), self.util.leave()]
    }
}

fn remove(path: &Path, is_directory: bool) -> Result<()> {
    let removed = if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) };
    removed.map_err(Error::io("remove", path))
}

/// Calls `found` for everything below `directory`, what is in a directory before the directory itself.
fn visit(directory: &Path, found: &mut dyn FnMut(&Path, bool) -> Result<()>) -> Result<()> {
    let entries = fs::read_dir(directory).map_err(Error::io("list", directory))?;
    for entry in entries {
        let entry = entry.map_err(Error::io("list", directory))?;
        let path = entry.path();
        let is_directory = entry.file_type().map_err(Error::io("look at", &path))?.is_dir();
        if is_directory {
            visit(&path, found)?;
        }
        found(&path, is_directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn areas(root: &Path) -> Areas {
        Areas { label: "A".into(), data: root.into(), work: root.into(), util: root.into() }
    }

    #[test]
    fn results_go_and_inputs_stay_until_the_end() {
        let root = tempfile::tempdir().unwrap();
        let mut ground = Ground::make(&areas(root.path()), "2026-01-01T00:00:00Z").unwrap();
        let places = ground.places();
        fs::create_dir(places.data.join("in")).unwrap();
        fs::write(places.data.join("in/facts"), "x").unwrap();
        ground.keep_inputs().unwrap();
        fs::create_dir_all(places.data.join("out/deep")).unwrap();
        fs::write(places.data.join("out/deep/result"), "x").unwrap();
        fs::write(places.data.join("in/more"), "x").unwrap();
        fs::create_dir(places.work.join("left-behind")).unwrap();
        ground.clear_results().unwrap();
        assert!(places.data.join("in/facts").exists());
        assert!(!places.data.join("in/more").exists() && !places.data.join("out").exists());
        assert!(!places.work.join("left-behind").exists());
        ground.remove().unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn missing_space_is_told_with_all_areas_of_a_file_system_together() {
        let root = tempfile::tempdir().unwrap();
        let free = free_bytes(root.path()).unwrap();
        let part = free / 5 * 2;
        let fitting = SpaceNeed { data: part, work: part, ..SpaceNeed::default() };
        Areas::check(&[areas(root.path())], &fitting).unwrap();
        let error = Areas::check(&[areas(root.path()), areas(root.path())], &fitting).unwrap_err();
        assert!(matches!(&error, Error::Space { missing } if missing.contains("needs")), "{error}");
        let nowhere = areas(&root.path().join("missing"));
        let error = Areas::check(&[nowhere], &fitting).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }
}
