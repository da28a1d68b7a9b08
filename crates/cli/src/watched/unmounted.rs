//! A file system that is not mounted: whether somebody unmounted it in order, or it broke.
//!
//! A daemon that ends in order removes the file with its process number, and leaves a clean root fileset. In a cluster the file alone says
//! so: the filesets are closed by their owners.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_node::NodeHome;
use forebay_web::watched::Sight;
use parking_lot::Mutex;

use crate::home::{Home, node_at};
use crate::mounts;

/// What is remembered of a file system.
#[derive(Default)]
pub struct Remembered {
    /// It was seen mounted.
    was_mounted: AtomicBool,
    /// Whether it was found clean since. It is not opened again to see that: nobody else can work on it meanwhile.
    is_clean: Mutex<Option<bool>>,
}

impl Remembered {
    /// It is mounted.
    pub fn see_mounted(&self) {
        self.was_mounted.store(true, Ordering::Relaxed);
        *self.is_clean.lock() = None;
    }

    /// It is not mounted. What its home folder says; `node` is that of its cluster.
    pub fn see_unmounted(&self, place: &Path, node: Option<&NodeHome>) -> Result<Sight, String> {
        let shown = place.display();
        let is_of_node = node.is_some_and(|node| place.starts_with(node.folder()));
        if !place.join("forebay.toml").is_file() || is_of_node && node_at(place).is_none() {
            return Ok(Sight::Nothing(format!("{shown} is no longer a Forebay file system")));
        }
        let chain = |error| crate::output::chain(&error);
        let home = Home::at(place).map_err(chain)?;
        let broken = || {
            Err(format!(
                "{shown} is not mounted any more, and its daemon did not end in order: forebay mount recovers it; see {}",
                home.log_path().display()
            ))
        };
        if home.pid_path().exists() {
            if home.try_lock().map_err(chain)?.is_none() {
                return if is_mounted_elsewhere(&home) {
                    Ok(Sight::Nothing(format!("{shown} is not mounted here")))
                } else {
                    Err(format!(
                        "{shown} is not mounted any more: its daemon is still committing, programs still have files open, or it is being recovered"
                    ))
                };
            }
            // A daemon that ends in order removes the file before it gives the lock up. The store is not opened at every look, which would
            // keep others out: the next mount recovers it.
            if home.pid_path().exists() {
                return broken();
            }
        }
        let what = match self.is_clean(&home).map_err(chain)? {
            Some(false) => return broken(),
            Some(true) if self.was_mounted.load(Ordering::Relaxed) => "was unmounted",
            Some(true) => "is not mounted, and is clean",
            None => "is not mounted: a command is using it",
        };
        Ok(Sight::Nothing(format!("{shown} {what}")))
    }

    /// Whether a file system whose daemon has ended is clean; `None` if somebody works on it.
    fn is_clean(&self, home: &Home) -> anyhow::Result<Option<bool>> {
        let mut known = self.is_clean.lock();
        if known.is_none() {
            *known = home.is_clean()?;
        }
        Ok(*known)
    }
}

/// Whether its daemon sees it mounted, for others than this process.
fn is_mounted_elsewhere(home: &Home) -> bool {
    home.daemon_pid().is_some_and(|pid| mounts::of_home_as_seen_by(pid, home).is_some())
}

#[cfg(test)]
mod tests {
    use forebay_base::FilesetId;
    use forebay_store::redb::RedbOptions;
    use forebay_store::redb::folder::RedbFolder;

    use super::*;

    /// A home folder with a store that cannot be opened.
    fn home_in(folder: &Path) -> Home {
        let stores = RedbFolder::at(&folder.join("names"), RedbOptions::default());
        let store = stores.file_of(FilesetId::ROOT);
        std::fs::create_dir_all(store.parent().unwrap()).unwrap();
        std::fs::write(store, "not a store").unwrap();
        std::fs::write(folder.join("forebay.toml"), "# defaults\n").unwrap();
        Home::at(folder).unwrap()
    }

    #[test]
    fn what_a_lock_means_that_is_held_is_told_by_the_number_of_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let home = home_in(folder.path());
        let remembered = Remembered::default();
        remembered.see_mounted();
        let look = || remembered.see_unmounted(folder.path(), None);
        let lock = home.try_lock().unwrap().unwrap();
        let used = look();
        assert!(
            matches!(&used, Ok(Sight::Nothing(why)) if why.contains("a command is using it")),
            "{used:?}"
        );
        home.write_pid().unwrap();
        let fault = look().unwrap_err();
        assert!(fault.contains("its daemon is still committing"), "{fault}");
        drop(lock);
        // The store is not even opened.
        let fault = look().unwrap_err();
        assert!(fault.contains("did not end in order"), "{fault}");
    }

    #[test]
    fn a_folder_that_is_no_longer_a_file_system_is_nothing_to_watch_and_one_without_its_store_is_broken()
     {
        let folder = tempfile::tempdir().unwrap();
        let remembered = Remembered::default();
        remembered.see_mounted();
        let seen = remembered.see_unmounted(folder.path(), None);
        assert!(matches!(&seen, Ok(Sight::Nothing(why)) if why.contains("no longer")), "{seen:?}");
        std::fs::write(folder.path().join("forebay.toml"), "# defaults\n").unwrap();
        let fault = remembered.see_unmounted(folder.path(), None).unwrap_err();
        assert!(fault.contains("has lost its store"), "{fault}");
    }
}
