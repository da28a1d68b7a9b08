//! A file system that is not mounted: whether somebody unmounted it in order, or it broke.
//!
//! A daemon that ends in order removes the file with its process number, and leaves a clean root fileset. In a cluster the file alone says
//! so: the filesets are closed by their owners.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_node::NodeHome;
use forebay_web::watched::Sight;

use crate::home::{Home, node_at};

/// What is remembered of a file system.
#[derive(Default)]
pub struct Remembered {
    /// It was seen mounted.
    was_mounted: AtomicBool,
    /// It was found clean since. It is not opened again to see that: nobody else can work on it meanwhile.
    was_clean: AtomicBool,
}

impl Remembered {
    /// It is mounted.
    pub fn see_mounted(&self) {
        self.was_mounted.store(true, Ordering::Relaxed);
        self.was_clean.store(false, Ordering::Relaxed);
    }

    /// It is not mounted. What its home folder says; `node` is that of its cluster.
    pub fn see_unmounted(&self, place: &Path, node: Option<&NodeHome>) -> Result<Sight, String> {
        let shown = place.display();
        let is_of_node = node.is_some_and(|node| place.starts_with(node.folder()));
        if !place.join("forebay.toml").is_file() || is_of_node && node_at(place).is_none() {
            return Ok(Sight::Nothing(format!("{shown} is not a file system any more")));
        }
        let home = Home::at(place).map_err(|error| crate::output::chain(&error))?;
        let was_mounted = self.was_mounted.load(Ordering::Relaxed);
        let has_ended = home.daemon_pid().is_none();
        let is_clean = if has_ended && self.was_clean.load(Ordering::Relaxed) {
            Some(true)
        } else {
            home.is_clean().map_err(|error| crate::output::chain(&error))?
        };
        match is_clean {
            None if was_mounted => Err(format!(
                "{shown} is not mounted any more, and its daemon still runs: it commits, or programs still have files open"
            )),
            // For others only, or a command works on it.
            None => Ok(Sight::Nothing(format!("{shown} is not mounted here"))),
            Some(true) if has_ended => {
                self.was_clean.store(true, Ordering::Relaxed);
                let how =
                    if was_mounted { "was unmounted" } else { "is not mounted, and is clean" };
                Ok(Sight::Nothing(format!("{shown} {how}")))
            }
            Some(_) => Err(format!(
                "{shown} is not mounted any more, and its daemon did not end in order: forebay mount recovers it; {} may say why",
                home.log_path().display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_longer_a_file_system_is_nothing_to_watch_and_one_without_its_store_is_broken()
     {
        let folder = tempfile::tempdir().unwrap();
        let remembered = Remembered::default();
        remembered.see_mounted();
        let seen = remembered.see_unmounted(folder.path(), None);
        assert!(matches!(&seen, Ok(Sight::Nothing(why)) if why.contains("any more")), "{seen:?}");
        std::fs::write(folder.path().join("forebay.toml"), "# defaults\n").unwrap();
        let fault = remembered.see_unmounted(folder.path(), None).unwrap_err();
        assert!(fault.contains("has lost its store"), "{fault}");
    }
}
