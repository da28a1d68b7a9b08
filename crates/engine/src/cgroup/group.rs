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

use super::{Memory, Places};

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
    limit: Option<Limit>,
}

/// A limit of memory.
struct Limit {
    bytes: u64,
    /// Folder of the group that has it, if that is another one, and its file of processes.
    legacy: Option<(PathBuf, File)>,
}

impl Group {
    /// Makes the group of a run, with a limit of memory if one is wanted and can be set.
    ///
    /// # Errors
    /// If it cannot be made; then there is none.
    pub fn make(places: &Places, run: &str, memory_bytes: Option<u64>) -> io::Result<Group> {
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
        let mut group = Group { folder, file, limit: None };
        group.limit = match memory_bytes {
            Some(bytes) => group.limit_memory(&places.memory, run, bytes)?,
            None => None,
        };
        Ok(group)
    }

    fn limit_memory(&self, memory: &Memory, run: &str, bytes: u64) -> io::Result<Option<Limit>> {
        match memory {
            Memory::None => Ok(None),
            Memory::Unified => {
                fs::write(self.folder.join("memory.max"), bytes.to_string())?;
                // Memory that is swapped out is memory that the job has; without a swap there is no such file.
                let _ = fs::write(self.folder.join("memory.swap.max"), "0");
                let _ = fs::write(self.folder.join("memory.oom.group"), "1");
                Ok(Some(Limit { bytes, legacy: None }))
            }
            Memory::Legacy(base) => {
                let folder = base.join(run);
                fs::create_dir(&folder)?;
                let set = || {
                    fs::write(folder.join("memory.limit_in_bytes"), bytes.to_string())?;
                    let _ =
                        fs::write(folder.join("memory.memsw.limit_in_bytes"), bytes.to_string());
                    File::options().write(true).open(folder.join("tasks"))
                };
                match set() {
                    Ok(tasks) => Ok(Some(Limit { bytes, legacy: Some((folder, tasks)) })),
                    Err(error) => {
                        remove(&folder);
                        Err(error)
                    }
                }
            }
        }
    }

    /// What a process of the job writes a zero to before it is executed, if memory is limited by a group of its own.
    /// To `tasks` and not to `cgroup.procs`, as a lone thread need not wait for others.
    pub fn tasks(&self) -> Option<BorrowedFd<'_>> {
        self.limit.as_ref()?.legacy.as_ref().map(|(_, tasks)| tasks.as_fd())
    }

    /// The limit of memory in bytes, if something of the job was killed because of it.
    pub fn exceeded(&self) -> Option<u64> {
        let limit = self.limit.as_ref()?;
        let path = match &limit.legacy {
            None => self.folder.join("memory.events"),
            Some((folder, _)) => folder.join("memory.oom_control"),
        };
        let text = fs::read_to_string(path).unwrap_or_default();
        (number_of(&text, "oom_kill")? > 0).then_some(limit.bytes)
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
        if let Some((folder, _)) = self.limit.take().and_then(|limit| limit.legacy) {
            remove(&folder);
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
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(number_of(text, "oom_kill"), Some(3));
        assert_eq!(number_of(text, "oom"), None);
    }

    #[test]
    fn a_group_that_is_gone_is_empty_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");
        assert!(!is_populated(&gone) && remove(&gone));
    }
}
