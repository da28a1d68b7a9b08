//! What an agent and the holder of a job in an allocation of Slurm share: files that all nodes reach.
//!
//! For each start of a task there are in ROOT/grid/slurm/HOST:
//! - the folder `RUN`, its user's own. In it the file of the run (`crate::run`): the agent makes it with the order, the
//!   holder adds what it says; `claim`, which the first holder makes, so that a run which Slurm has twice is begun
//!   once; `log`, what Slurm writes.
//! - the file `RUN.orders`, the agent's own: a line for each order, of which the holder looks for new ones every second.
//!
//! The agent acts on files of users: it follows no links there and reads no more than a holder says.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use forebay_process::user::{Account, is_root};
use rustix::fs::OFlags;

use crate::area::tree;
use crate::checkpoint::sync_folder;
use crate::files::folder;
use crate::home::GridHome;
use crate::run::{Said, Task};

/// Bytes at the end of the file of a run in which all is that a holder says. Before them is the order, or a part of it.
const SAID_BYTES: u64 = 64 << 10;

/// The most bytes of what Slurm wrote that are shown.
const LOG_BYTES_MAX: u64 = 4 << 10;

/// Orders that an agent which was started again looks for.
pub const WARN: &str = "warn";
pub const STOP: &str = "stop";
pub const CONTINUE: &str = "continue";
/// The order that kills a job at once.
pub const END: &str = "end";

/// What a holder was told up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ordered {
    /// How often to warn its job.
    pub warnings: u32,
    /// Whether its job is to be suspended, as the last order of that kind says; none if there was none.
    pub stops: Option<bool>,
}

/// Where the files of an agent's runs are.
#[derive(Clone, Debug)]
pub struct Place(PathBuf);

impl Place {
    /// That of an agent; it is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(home: &GridHome, host: &str) -> Result<Place> {
        let mode = if is_root() { 0o711 } else { 0o700 };
        let all = home.folder().join("slurm");
        folder(&all, mode)?;
        let own = all.join(host);
        folder(&own, mode)?;
        Ok(Place(own))
    }

    /// The folder of a run.
    pub fn folder(&self, run: &str) -> PathBuf {
        self.0.join(run)
    }

    /// The file of its orders.
    pub fn orders(&self, run: &str) -> PathBuf {
        self.0.join(format!("{run}.orders"))
    }

    /// Makes the files of a run. What is left of an attempt to do so is replaced: nobody had been told of it.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn begin(&self, run: &str, task: &Task, account: &Account) -> Result<()> {
        let path = self.folder(run);
        let shown = || path.display().to_string();
        tree::remove(&path).with_context(shown)?;
        std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(shown)?;
        let mut options = File::options();
        let options = options.create_new(true).append(true).mode(0o600);
        let mut file = options.open(path.join(run)).with_context(shown)?;
        let mut order = serde_json::to_vec(task)?;
        order.push(b'\n');
        file.write_all(&order).with_context(shown)?;
        if is_root() {
            fchown(&file, Some(account.uid), Some(account.gid)).with_context(shown)?;
        }
        file.sync_all().with_context(shown)?;
        let orders = self.orders(run);
        let mut options = File::options();
        let made = options.create(true).write(true).truncate(true).mode(0o644).open(&orders)?;
        std::fs::set_permissions(&orders, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        made.sync_all()?;
        if is_root() {
            // Last: until then nobody else can change anything in it.
            let (user, group) = (Some(account.uid), Some(account.gid));
            std::os::unix::fs::chown(&path, user, group).with_context(shown)?;
        }
        // The holder could not begin if the folder were root's again.
        sync_folder(&path)?;
        sync_folder(&self.0)
    }

    /// Whether a holder has begun with a run.
    pub fn is_claimed(&self, run: &str) -> bool {
        self.folder(run).join("claim").symlink_metadata().is_ok()
    }

    /// What the holder of a run has said.
    ///
    /// # Errors
    /// If its file cannot be read now, or is not one that a holder wrote.
    pub fn said(&self, run: &str) -> Result<Said> {
        let path = self.folder(run).join(run);
        let text = read(&path, SAID_BYTES).with_context(|| path.display().to_string())?;
        Ok(Said::of(&text))
    }

    /// The last line that Slurm wrote for a run.
    pub fn log(&self, run: &str) -> String {
        let text = read(&self.folder(run).join("log"), LOG_BYTES_MAX).unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or_default().trim().to_owned()
    }

    /// Gives the holder of a run an order.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn order(&self, run: &str, order: &str) -> Result<()> {
        let path = self.orders(run);
        let shown = || path.display().to_string();
        let mut file = File::options().append(true).open(&path).with_context(shown)?;
        file.write_all(format!("{order}\n").as_bytes()).with_context(shown)?;
        // Written again it would be obeyed twice; what a crash takes away is seen as if the holder did not obey.
        if let Err(error) = file.sync_all() {
            tracing::warn!(order, "an order may not survive a crash: {}: {error}", shown());
        }
        Ok(())
    }

    /// What the holder of a run was told up to now.
    pub fn ordered(&self, run: &str) -> Ordered {
        let mut ordered = Ordered::default();
        for line in std::fs::read_to_string(self.orders(run)).unwrap_or_default().lines() {
            match line {
                WARN => ordered.warnings += 1,
                STOP => ordered.stops = Some(true),
                CONTINUE => ordered.stops = Some(false),
                _ => {}
            }
        }
        ordered
    }

    /// Removes the files of a run.
    pub fn remove(&self, run: &str) {
        let removed = tree::remove(&self.folder(run));
        let orders = std::fs::remove_file(self.orders(run));
        for result in [removed, orders] {
            if let Err(error) = result
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(run, %error, "the files of a run were not removed");
            }
        }
    }
}

/// The last bytes of a file of a user.
fn read(path: &Path, most: u64) -> Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    let about = file.metadata()?;
    ensure!(about.is_file(), "not a regular file");
    file.seek(SeekFrom::Start(about.len().saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use forebay_grid::spec::Exit;

    use super::*;
    use crate::agent::slurm::start_of_job_7;
    use crate::run::{End, Log};
    use crate::user::{account_of, own_name};

    fn place(root: &Path) -> Place {
        let home = GridHome::of(root).unwrap();
        home.make().unwrap();
        Place::make(&home, "slurm").unwrap()
    }

    #[test]
    fn what_a_holder_says_is_read_and_a_link_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let place = place(root.path());
        let mut task = start_of_job_7(forebay_grid::spec::JobSpec {
            script: Some("#".repeat(200_000)),
            ..Default::default()
        });
        task.launch.user = own_name().unwrap();
        let account = account_of(&own_name().unwrap()).unwrap();
        place.begin("7.0.1", &task, &account).unwrap();
        assert!(!place.said("7.0.1").unwrap().started);
        let path = place.folder("7.0.1").join("7.0.1");
        let file = File::options().append(true).open(&path).unwrap();
        let log = Log::of(std::os::fd::AsFd::as_fd(&file));
        log.say_started().unwrap();
        assert!(place.said("7.0.1").unwrap().started);
        log.say_end(&End::Exited { exit: Exit::Code(3), usage: None }).unwrap();
        let end = place.said("7.0.1").unwrap().end;
        assert!(matches!(end, Some(End::Exited { exit: Exit::Code(3), .. })));
        place.order("7.0.1", "kill").unwrap();
        place.order("7.0.1", "stop").unwrap();
        assert_eq!(std::fs::read_to_string(place.orders("7.0.1")).unwrap(), "kill\nstop\n");
        assert_eq!(place.ordered("7.0.1"), Ordered { warnings: 0, stops: Some(true) });
        for order in ["warn", "continue", "warn"] {
            place.order("7.0.1", order).unwrap();
        }
        assert_eq!(place.ordered("7.0.1"), Ordered { warnings: 2, stops: Some(false) });
        assert_eq!(place.ordered("8.0.1"), Ordered::default());
        let other = root.path().join("other");
        std::fs::rename(&path, &other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        place.said("7.0.1").unwrap_err();
        place.remove("7.0.1");
        assert!(!place.folder("7.0.1").exists() && !place.orders("7.0.1").exists());
        assert!(other.exists());
    }
}
