//! Has cgroup version 2 give its controllers to the groups of a host's jobs.
//!
//! The kernel gives a controller to the groups below a group only while that has no processes of its own (the root alone may
//! have both), and says EBUSY otherwise. So processes are moved into a group [`LEAF`] beside those of the hosts first: all of
//! a folder that the agent was told to take, which is its own; in the agent's own group, which others may share, those of this
//! program only.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use forebay_process::small;
use rustix::io::Errno;

/// The group of the processes that are not of jobs.
pub(super) const LEAF: &str = "forebay-agent";

/// Which processes may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Movable {
    /// Those of this program.
    Own,
    /// All.
    All,
}

/// Has a controller given to the groups below `unified`, which lies in `base`.
///
/// # Errors
/// The reason why it is not there.
pub(super) fn enable(
    base: &Path,
    unified: &Path,
    controller: &str,
    movable: Movable,
) -> Result<(), String> {
    for folder in [base, unified] {
        let says = |file: &str| {
            let words = small::text(folder.join(file)).unwrap_or_default();
            words.split_whitespace().any(|word| word == controller)
        };
        if says("cgroup.subtree_control") {
            continue;
        }
        if !says("cgroup.controllers") {
            return Err(format!(
                "{} does not have the {controller} controller: the group above it does not give it, or version 1 has it",
                folder.display()
            ));
        }
        let given = give(folder, controller).or_else(|error| {
            if folder != base || error.raw_os_error() != Some(Errno::BUSY.raw_os_error()) {
                return Err(error.to_string());
            }
            vacate(base, movable)?;
            give(folder, controller).map_err(|error| format!("{error}{}", left_in(base)))
        });
        given.map_err(|reason| {
            format!("{} cannot give the {controller} controller: {reason}", folder.display())
        })?;
    }
    Ok(())
}

fn give(folder: &Path, controller: &str) -> io::Result<()> {
    fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"))
}

/// Moves what may be moved out of a group.
fn vacate(base: &Path, movable: Movable) -> Result<(), String> {
    if movable == Movable::Own && base.extension().is_some_and(|extension| extension == "service") {
        // KillMode=process lets jobs live when the agent restarts.
        return Err(format!(
            "the agent is in it, and systemd could not start the agent again beside jobs if it moved; have the service set \
             DelegateSubgroup={LEAF} (systemd 254), or give --cgroup the group of a forebay-jobs@ service"
        ));
    }
    let leaf = base.join(LEAF);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(format!("{}: {error}", leaf.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let own = std::process::id();
    let program = program(own);
    for pid in processes(base) {
        let is_own = || pid == own || (program.is_some() && self::program(pid) == program);
        if movable == Movable::All || is_own() {
            // One that has ended is gone from there as well.
            if let Err(error) = fs::write(leaf.join("cgroup.procs"), pid.to_string())
                && error.raw_os_error() != Some(Errno::SRCH.raw_os_error())
            {
                return Err(format!(
                    "process {pid} cannot be moved to {}: {error}",
                    leaf.display()
                ));
            }
        }
    }
    Ok(())
}

fn processes(folder: &Path) -> Vec<u32> {
    let text = small::text(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Names the processes that are in a group, as far as a message has room.
fn left_in(folder: &Path) -> String {
    const NAMED: usize = 3;
    let left = processes(folder);
    let name = |pid: &u32| {
        let name = small::text(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{} ({pid})", name.trim())
    };
    let mut names: Vec<String> = left.iter().take(NAMED).map(name).collect();
    if names.is_empty() {
        return String::new();
    }
    if left.len() > NAMED {
        names.push(format!("{} more", left.len() - NAMED));
    }
    format!("; other processes are in it: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A folder with the files of a group that has these controllers.
    fn fake(folder: &Path, controllers: &str, given: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("cgroup.controllers"), controllers).unwrap();
        fs::write(folder.join("cgroup.subtree_control"), given).unwrap();
    }

    fn given(folder: &Path) -> String {
        fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap()
    }

    #[test]
    fn a_controller_is_asked_for_where_it_is_not_given_yet() {
        let base = tempfile::tempdir().unwrap();
        let unified = base.path().join("host");
        fake(base.path(), "cpu memory pids", "cpu memory");
        fake(&unified, "cpu memory", "");
        enable(base.path(), &unified, "memory", Movable::Own).unwrap();
        assert_eq!((&*given(base.path()), &*given(&unified)), ("cpu memory", "+memory"));
        let reason = enable(base.path(), &unified, "io", Movable::Own).unwrap_err();
        assert!(reason.contains("does not have the io controller"), "{reason}");
    }

    #[test]
    fn an_agent_that_is_a_service_stays_where_systemd_put_it() {
        let above = tempfile::tempdir().unwrap();
        let base = above.path().join("x.service");
        fake(&base, "memory", "");
        let reason = vacate(&base, Movable::Own).unwrap_err();
        assert!(reason.contains("DelegateSubgroup=forebay-agent"), "{reason}");
        assert!(!base.join(LEAF).exists());
    }

    /// A group of the kernel with a process in it, and a controller that it has. Both are gone with it.
    struct Real {
        root: PathBuf,
        controller: String,
        was_given: bool,
        folder: PathBuf,
        process: Child,
    }

    impl Real {
        /// None where this machine cannot make one. Of hybrid machines version 2 has those controllers that nobody mounted with
        /// version 1, often hugetlb alone: its rules are those of all.
        fn make() -> Option<Real> {
            let mounts = forebay_process::mounts::all();
            let root = mounts.into_iter().find(|mount| mount.file_system == "cgroup2")?.mountpoint;
            let controllers = small::text(root.join("cgroup.controllers")).ok()?;
            let controller = controllers.split_whitespace().next_back()?.to_owned();
            let folder = root.join(format!("forebay-test-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            let was_given = given(&root).split_whitespace().any(|word| word == controller);
            let process = Command::new("sleep").arg("600").spawn().unwrap();
            let real = Real { root, controller, was_given, folder, process };
            let procs = real.folder.join("cgroup.procs");
            fs::write(procs, real.process.id().to_string()).unwrap();
            give(&real.root, &real.controller).ok()?;
            Some(real)
        }
    }

    impl Drop for Real {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
            crate::cgroup::remove(&self.folder);
            if !self.was_given {
                let file = self.root.join("cgroup.subtree_control");
                let _ = fs::write(file, format!("-{}", self.controller));
            }
        }
    }

    #[test]
    fn processes_make_room_for_controllers_where_the_agent_may_move_them() {
        let Some(real) = Real::make() else {
            eprintln!("skipped: version 2 gives no controller here, or no group can be made");
            return;
        };
        let (unified, controller) = (real.folder.join("host"), &*real.controller);
        fs::create_dir(&unified).unwrap();
        let busy = enable(&real.folder, &unified, controller, Movable::Own).unwrap_err();
        let named = format!("other processes are in it: sleep ({})", real.process.id());
        assert!(busy.contains(&named), "{busy}");
        enable(&real.folder, &unified, controller, Movable::All).unwrap();
        assert_eq!(given(&real.folder).trim(), controller);
        assert_eq!(given(&unified).trim(), controller);
        assert!(processes(&real.folder).is_empty());
        assert_eq!(processes(&real.folder.join(LEAF)), [real.process.id()]);
        let run = unified.join("run");
        fs::create_dir(&run).unwrap();
        let has = small::text(run.join("cgroup.controllers")).unwrap();
        assert_eq!(has.trim(), controller, "a job's group has it");
    }
}
