//! The folder of a grid: ROOT/grid with its settings, journal, socket, hosts and work areas.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use forebay_process::user::is_root;
use uuid::Uuid;

use crate::files::folder;
use crate::trust;

/// The folder of a grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridHome {
    folder: PathBuf,
}

fn is_missing(error: &anyhow::Error) -> bool {
    let of_system = error.root_cause().downcast_ref::<std::io::Error>();
    of_system.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

impl GridHome {
    /// The grid of `root`, which may still have to be made.
    ///
    /// # Errors
    /// If `root` is no directory.
    pub fn of(root: &Path) -> Result<GridHome> {
        let root = root.canonicalize().with_context(|| format!("{}", root.display()))?;
        if !root.is_dir() {
            bail!("{} is not a directory", root.display());
        }
        Ok(GridHome { folder: root.join("grid") })
    }

    /// As [`GridHome::of`], for a daemon or a command that acts on what it finds there.
    ///
    /// # Errors
    /// If `root` is no directory, or somebody else than root and this user could change what is in it.
    pub fn guarded(root: &Path) -> Result<GridHome> {
        let home = GridHome::of(root)?;
        trust::check_folder(root)?;
        if home.folder.symlink_metadata().is_ok() {
            trust::check_folder(&home.folder)?;
            let shown = || home.folder.display().to_string();
            for entry in std::fs::read_dir(&home.folder).with_context(shown)? {
                // From a time when others could write there, perhaps.
                match trust::check_owner(&entry?.path()) {
                    // Daemons that begin make files there and remove them again.
                    Err(error) if is_missing(&error) => {}
                    checked => checked?,
                }
            }
        }
        Ok(home)
    }

    /// Makes the folders that are missing. Other users can reach the socket and their work areas only if
    /// this is root, who alone can start jobs as them.
    ///
    /// # Errors
    /// If a folder cannot be made.
    pub fn make(&self) -> Result<()> {
        let mode = if is_root() { 0o711 } else { 0o700 };
        folder(&self.folder, mode)?;
        folder(&self.hosts(), 0o700)
    }

    /// The file that tells this grid from all others.
    pub(crate) const ID: &str = "id";

    /// What tells this grid from all others; made when it is first asked for.
    ///
    /// # Errors
    /// If it can be neither read nor written.
    pub fn id(&self) -> Result<String> {
        let path = self.folder.join(GridHome::ID);
        let shown = || path.display().to_string();
        if !path.exists() {
            let id = format!("{}\n", Uuid::new_v4());
            let fresh = self.folder.join(format!("{}-{}", GridHome::ID, std::process::id()));
            std::fs::write(&fresh, id).with_context(shown)?;
            // Whole or not at all; of several agents that begin together one is first.
            let linked = std::fs::hard_link(&fresh, &path);
            std::fs::remove_file(&fresh).with_context(shown)?;
            match linked {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(shown);
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(std::fs::read_to_string(&path).with_context(shown)?.trim().to_owned())
    }

    /// ROOT/grid.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("controller.sock")
    }

    /// Its journal.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.folder.join("journal.redb")
    }

    /// The log with the latest changes of the journal of one machine.
    #[must_use]
    pub fn journal_log(&self) -> PathBuf {
        self.journal().with_extension("changes")
    }

    /// Its settings; the defaults hold if there are none.
    #[must_use]
    pub fn settings(&self) -> PathBuf {
        self.folder.join("grid.toml")
    }

    /// What keeps a second controller out.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Where the relay of a cluster's node hands connections to its controller.
    #[must_use]
    pub fn door(&self) -> PathBuf {
        self.folder.join("door.sock")
    }

    /// Where shims ask the relay of their node for clients on other nodes.
    #[must_use]
    pub fn streams(&self) -> PathBuf {
        self.folder.join("streams.sock")
    }

    /// Names the folder of this machine in which checkpoints are; there is no such file where jobs have none.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.folder.join("checkpoints")
    }

    /// Which cluster the grid belongs to; there is no such file on a grid of one machine.
    #[must_use]
    pub fn cluster(&self) -> PathBuf {
        self.folder.join("cluster.json")
    }

    /// What keeps a second relay out.
    #[must_use]
    pub fn relay_lock(&self) -> PathBuf {
        self.folder.join("relay")
    }

    /// What keeps a second supervisor of the relay out.
    #[must_use]
    pub fn relay_supervisor(&self) -> PathBuf {
        self.folder.join("relay-supervisor")
    }

    /// What keeps a second supervisor of the controller out.
    #[must_use]
    pub fn supervisor(&self) -> PathBuf {
        self.folder.join("supervisor")
    }

    /// Where agents keep what they must not forget.
    #[must_use]
    pub fn hosts(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    /// Work areas, as long as no file system is mounted.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }
}

/// Whether a controller that finds no journal may begin an empty grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Where there has been no grid yet.
    First,
    /// Also where there was one, all of whose jobs, history and schedules are given up.
    Anew,
}

impl GridHome {
    /// What says that a grid has begun here: nothing is in it that is not in the journal.
    fn begun(&self) -> PathBuf {
        self.folder.join("begun")
    }

    /// Notes that there is a journal from now on.
    pub(crate) fn note_begun(&self) {
        let path = self.begun();
        if path.exists() {
            return;
        }
        let noted = std::fs::File::create(&path).and_then(|file| file.sync_all());
        if let Err(error) = noted {
            tracing::warn!("{}: a missing journal would not be noticed: {error}", path.display());
        }
    }

    /// Refuses to begin an empty grid where there was one, and to begin anew where its journal is.
    ///
    /// # Errors
    /// What was found, and what to do.
    pub fn check_journal(&self, begin: Begin) -> Result<()> {
        let (journal, folder) = (self.journal(), self.folder.display());
        if journal.exists() {
            if begin == Begin::Anew {
                let journal = journal.display();
                bail!("--new starts an empty grid, but {journal} exists: move it elsewhere first");
            }
            return Ok(());
        }
        let trace = if self.begun().exists() { Some(self.begun()) } else { self.left_area() };
        match trace.filter(|_| begin == Begin::First) {
            Some(trace) => bail!(
                "the journal {} is missing, but {} shows that {folder} held a grid: restore the journal, or give --new to \
                 start an empty grid, without the jobs, history and schedules of the former one",
                journal.display(),
                trace.display()
            ),
            None => Ok(()),
        }
    }

    /// A work area that a job has left.
    fn left_area(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.work()).ok()?;
        let is_area = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"job-"))
        };
        entries.flatten().map(|entry| entry.path()).find(is_area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_come_and_go_beside_it_do_not_stop_a_daemon_from_beginning() {
        let root = tempfile::tempdir().unwrap();
        let home = GridHome::of(root.path()).unwrap();
        home.make().unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let passing = home.folder().join("id-1");
                    std::fs::write(&passing, "").unwrap();
                    std::fs::remove_file(&passing).unwrap();
                }
            });
            let begun: Result<Vec<_>> = (0..2000).map(|_| GridHome::guarded(root.path())).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(begun.is_ok(), "{:#}", begun.unwrap_err());
        });
    }

    #[test]
    fn a_missing_journal_does_not_silently_become_an_empty_grid() {
        let root = tempfile::tempdir().unwrap();
        let home = GridHome::of(root.path()).unwrap();
        home.make().unwrap();
        std::fs::write(home.settings(), "").unwrap();
        home.check_journal(Begin::First).expect("settings are written before the first start");
        home.note_begun();
        let refused = format!("{:#}", home.check_journal(Begin::First).unwrap_err());
        assert!(
            refused.contains("journal.redb is missing") && refused.contains("--new"),
            "{refused}"
        );
        home.check_journal(Begin::Anew).unwrap();
        std::fs::remove_file(home.begun()).unwrap();
        std::fs::create_dir_all(home.work().join("job-7")).unwrap();
        let refused = format!("{:#}", home.check_journal(Begin::First).unwrap_err());
        assert!(refused.contains("work/job-7 shows"), "{refused}");
        std::fs::write(home.journal(), "").unwrap();
        home.check_journal(Begin::First).unwrap();
        let refused = format!("{:#}", home.check_journal(Begin::Anew).unwrap_err());
        assert!(refused.contains("move it elsewhere first"), "{refused}");
    }
}
