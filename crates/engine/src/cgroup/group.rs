//! The group of one job.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_process::small;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::{Controller, Limits, Places};

/// Processor time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Processor {
    /// In user mode.
    pub user_seconds: f64,
    /// In the kernel.
    pub system_seconds: f64,
}

/// A group, while its job is held. It is removed when this is dropped, which [`Group::end`] comes before.
pub struct Group {
    folder: PathBuf,
    file: OwnedFd,
    /// Groups of version 1 with the same processes.
    legacy: Vec<Legacy>,
    memory: Option<Limit>,
    processes: Option<Limit>,
}

/// A group of version 1, and its file of processes.
struct Legacy {
    folder: PathBuf,
    tasks: File,
}

/// A limit, and where the kernel counts what it did because of it.
struct Limit {
    most: u64,
    events: PathBuf,
    word: &'static str,
}

impl Limit {
    /// Itself, if the kernel did something because of it.
    fn reached(&self) -> Option<u64> {
        let text = small::text(&*self.events).unwrap_or_default();
        (number_of(&text, self.word)? > 0).then_some(self.most)
    }
}

impl Group {
    /// Makes the group of a run, with the limits that can be set.
    ///
    /// # Errors
    /// If it cannot be made; then there is none.
    pub fn make(places: &Places, run: &str, limits: &Limits) -> io::Result<Group> {
        let folder = places.unified.join(run);
        fs::create_dir(&folder)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&folder, flags, Mode::empty()) {
            Ok(file) => file,
            Err(error) => {
                remove(&folder);
                return Err(error.into());
            }
        };
        let mut group = Group { folder, file, legacy: Vec::new(), memory: None, processes: None };
        if let Some(bytes) = limits.memory_bytes {
            group.limit_memory(&places.memory, run, bytes)?;
        }
        group.share_processors(&places.processors, run, limits)?;
        if let Some(most) = limits.processes_max {
            group.limit_processes(&places.processes, run, most)?;
        }
        Ok(group)
    }

    /// The folder in which limits of a controller are set; none if there is no such controller.
    fn place(&mut self, controller: &Controller, run: &str) -> io::Result<Option<PathBuf>> {
        let base = match controller {
            Controller::None => return Ok(None),
            Controller::Unified => return Ok(Some(self.folder.clone())),
            Controller::Legacy(base) => base,
        };
        let folder = base.join(run);
        // Two controllers may share a hierarchy.
        if self.legacy.iter().all(|legacy| legacy.folder != folder) {
            fs::create_dir(&folder)?;
            match File::options().write(true).open(folder.join("tasks")) {
                Ok(tasks) => self.legacy.push(Legacy { folder: folder.clone(), tasks }),
                Err(error) => {
                    remove(&folder);
                    return Err(error);
                }
            }
        }
        Ok(Some(folder))
    }

    fn limit_memory(&mut self, controller: &Controller, run: &str, bytes: u64) -> io::Result<()> {
        let Some(folder) = self.place(controller, run)? else { return Ok(()) };
        let events = if controller.is_unified() {
            fs::write(folder.join("memory.max"), bytes.to_string())?;
            // Memory that is swapped out is memory that the job has; without a swap there is no such file.
            let _ = fs::write(folder.join("memory.swap.max"), "0");
            let _ = fs::write(folder.join("memory.oom.group"), "1");
            "memory.events"
        } else {
            fs::write(folder.join("memory.limit_in_bytes"), bytes.to_string())?;
            let _ = fs::write(folder.join("memory.memsw.limit_in_bytes"), bytes.to_string());
            "memory.oom_control"
        };
        self.memory = Some(Limit { most: bytes, events: folder.join(events), word: "oom_kill" });
        Ok(())
    }

    fn share_processors(
        &mut self,
        controller: &Controller,
        run: &str,
        limits: &Limits,
    ) -> io::Result<()> {
        let files = if controller.is_unified() { limits.unified() } else { limits.legacy() };
        if files.is_empty() {
            return Ok(());
        }
        let Some(folder) = self.place(controller, run)? else { return Ok(()) };
        files.into_iter().try_for_each(|(file, text)| fs::write(folder.join(file), text))
    }

    fn limit_processes(&mut self, controller: &Controller, run: &str, most: u32) -> io::Result<()> {
        let Some(folder) = self.place(controller, run)? else { return Ok(()) };
        fs::write(folder.join("pids.max"), most.to_string())?;
        let events = folder.join("pids.events");
        self.processes = Some(Limit { most: most.into(), events, word: "max" });
        Ok(())
    }

    /// Puts the calling process into the groups of version 1, if there are any; it is called before the program of the job
    /// is executed, makes system calls only, and allocates nothing. To `tasks` and not to `cgroup.procs`, as a lone thread
    /// need not wait for others.
    pub fn enter_legacy(&self) -> rustix::io::Result<()> {
        for legacy in &self.legacy {
            rustix::io::write(&legacy.tasks, b"0")?;
        }
        Ok(())
    }

    /// The limit of memory in bytes, if something of the job was killed because of it.
    pub fn exceeded(&self) -> Option<u64> {
        self.memory.as_ref()?.reached()
    }

    /// The limit of processes and threads, if the job was refused one because of it.
    pub fn refused(&self) -> Option<u32> {
        u32::try_from(self.processes.as_ref()?.reached()?).ok()
    }

    /// What the processes in it have used, those that have ended as well.
    pub fn processor(&self) -> Option<Processor> {
        let text = small::text_in(self.as_fd(), c"cpu.stat").ok()?;
        let seconds = |name| Some(number_of(&text, name)? as f64 / 1e6);
        Some(Processor {
            user_seconds: seconds("user_usec")?,
            system_seconds: seconds("system_usec")?,
        })
    }

    /// Seconds in which something in it waited for I/O; none if the kernel does not count them.
    pub fn io_pressure_seconds(&self) -> Option<f64> {
        let text = small::text_in(self.as_fd(), c"io.pressure").ok()?;
        let total = text.lines().find_map(|line| line.strip_prefix("some ")?.split_once("total="));
        Some(total?.1.trim().parse::<u64>().ok()? as f64 / 1e6)
    }

    /// The processes that are in it.
    pub fn processes(&self) -> Vec<Pid> {
        let text = small::text_in(self.as_fd(), c"cgroup.procs").unwrap_or_default();
        text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
    }

    /// Kills all that is in it.
    pub fn kill(&self) {
        kill(&self.folder);
    }

    fn is_populated(&self) -> bool {
        says_populated(small::text_in(self.as_fd(), c"cgroup.events"))
    }

    /// Kills all that is in it, and waits until that is gone.
    pub fn end(&self) {
        let mut pause = Duration::from_millis(1);
        while self.is_populated() {
            self.kill();
            if !self.is_populated() {
                return;
            }
            std::thread::sleep(pause);
            // One that waits for a disk or a file server may take long.
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What is left is removed by whoever comes next: agent, next agent, or next start of the job.
        remove(&self.folder);
        for legacy in &self.legacy {
            remove(&legacy.folder);
        }
    }
}

/// Kills all that is in a group and in those below it, also what is stopped or frozen.
pub fn kill(folder: &Path) {
    // One that is gone has nobody to be killed.
    let _ = fs::write(folder.join("cgroup.kill"), "1");
}

/// Whether anything lives in a group or below it. Of one that cannot be looked at nobody knows.
pub fn is_populated(folder: &Path) -> bool {
    says_populated(small::text(folder.join("cgroup.events")))
}

fn says_populated(events: io::Result<String>) -> bool {
    match events {
        Ok(text) => number_of(&text, "populated") != Some(0),
        // The second one is a group that was removed while it was read.
        Err(error) => {
            error.kind() != ErrorKind::NotFound
                && error.raw_os_error() != Some(Errno::NODEV.raw_os_error())
        }
    }
}

/// Removes a group with those below it; whether it is gone. One in which something lives stays.
pub fn remove(folder: &Path) -> bool {
    /// The last process of a group of version 1 is in it for a moment more than it lives.
    const TRIES: u32 = 50;
    for _ in 0..TRIES {
        match rustix::fs::rmdir(folder) {
            Ok(()) | Err(Errno::NOENT) => return true,
            Err(Errno::BUSY) => {}
            Err(error) => {
                tracing::warn!(group = %folder.display(), %error, "a group stays");
                return false;
            }
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path());
            }
        }
        if rustix::fs::rmdir(folder).is_ok() {
            return true;
        }
        if fs::read_to_string(folder.join("cgroup.procs")).is_ok_and(|text| !text.is_empty()) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// The number behind a name, in a file of a name and a number a line.
fn number_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use forebay_grid::config::Processors;

    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(number_of(text, "oom_kill"), Some(3));
        assert_eq!(number_of(text, "oom"), None);
    }

    /// In a folder that is no group, where what is written can be read: this path is for machines without version 1.
    #[test]
    fn limits_of_version_2_are_set_in_the_group_itself() {
        let folder = tempfile::tempdir().unwrap();
        let unified = || Controller::Unified;
        let places = Places {
            unified: folder.path().to_owned(),
            memory: unified(),
            processors: unified(),
            processes: unified(),
        };
        let limits = Limits {
            memory_bytes: Some(64 << 20),
            slots: 2,
            processors: Processors::Slots,
            processes_max: Some(100),
        };
        let group = Group::make(&places, "run", &limits).unwrap();
        let own = folder.path().join("run");
        for (file, expected) in [
            ("memory.max", "67108864"),
            ("memory.swap.max", "0"),
            ("memory.oom.group", "1"),
            ("cpu.weight", "200"),
            ("cpu.max", "200000 100000"),
            ("pids.max", "100"),
        ] {
            assert_eq!(fs::read_to_string(own.join(file)).unwrap(), expected, "{file}");
        }
        assert_eq!((group.exceeded(), group.refused()), (None, None));
        fs::write(own.join("memory.events"), "low 0\nmax 9\noom 1\noom_kill 1\n").unwrap();
        fs::write(own.join("pids.events"), "max 3\n").unwrap();
        assert_eq!((group.exceeded(), group.refused()), (Some(64 << 20), Some(100)));
    }

    #[test]
    fn a_job_of_one_slot_without_limits_has_one_group_and_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let legacy = folder.path().join("cpu");
        let places = Places {
            unified: folder.path().to_owned(),
            memory: Controller::None,
            processors: Controller::Legacy(legacy),
            processes: Controller::None,
        };
        let limits = Limits { slots: 1, ..Limits::default() };
        let _group = Group::make(&places, "run", &limits).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(folder.path().join("run")).unwrap().count(), 0);
    }

    #[test]
    fn a_group_that_is_gone_is_empty_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");
        assert!(!is_populated(&gone) && remove(&gone));
    }
}
