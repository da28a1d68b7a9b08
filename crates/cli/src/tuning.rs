//! Kernel settings that a mount raises, as far as it may, and puts back when it ends.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_base::ByteSize;

/// Raised settings: dropped, they are as they were.
#[derive(Default)]
pub struct Tuning {
    raised: Vec<(PathBuf, String)>,
}

impl Tuning {
    /// Raises the read-ahead of the device under `path` to at least `wanted`. The path must not lie on a
    /// file system that this process serves: it would wait for itself.
    pub fn raise_read_ahead_under(&mut self, path: &Path, wanted: ByteSize) {
        let Ok(metadata) = std::fs::metadata(path) else { return };
        let device = metadata.dev();
        let device = format!("{}:{}", libc::major(device), libc::minor(device));
        self.raise_read_ahead(&device, wanted);
    }

    /// Raises the read-ahead of a device, named `major:minor`, to at least `wanted`.
    pub fn raise_read_ahead(&mut self, device: &str, wanted: ByteSize) {
        let knob = format!("/sys/class/bdi/{device}/read_ahead_kb");
        self.raise(Path::new(&knob), wanted.0 / 1024);
    }

    fn raise(&mut self, knob: &Path, wanted: u64) {
        let Ok(text) = std::fs::read_to_string(knob) else { return };
        let before = text.trim().to_owned();
        if before.parse::<u64>().is_ok_and(|now| now >= wanted) {
            return;
        }
        match std::fs::write(knob, wanted.to_string()) {
            Ok(()) => {
                tracing::info!(knob = %knob.display(), before, wanted, "read-ahead raised");
                self.raised.push((knob.to_owned(), before));
            }
            Err(error) => {
                tracing::info!(knob = %knob.display(), %error, "read-ahead could not be raised");
            }
        }
    }
}

impl Drop for Tuning {
    fn drop(&mut self) {
        for (knob, before) in self.raised.drain(..).rev() {
            // The knob of an unmounted file system is gone with it.
            let _ = std::fs::write(knob, before);
        }
    }
}

/// Lets this process open as many files as it may: root may go beyond the hard limit that it was given.
///
/// Returns the limit.
pub fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    for maximum in [most, limit.maximum] {
        let is_less = maximum.is_some_and(|new| limit.maximum.is_none_or(|old| new < old));
        let raised = Rlimit { current: maximum, maximum };
        if !is_less && setrlimit(Resource::Nofile, raised).is_ok() {
            return maximum.unwrap_or(u64::MAX);
        }
    }
    limit.current.unwrap_or(u64::MAX)
}

/// Keeps the C library from having eight heaps for each processor, as it has by default: what threads free stays in the heap
/// that it came from. One for each processor is enough, as each thread has a cache of its own before them. Whoever sets
/// `MALLOC_ARENA_MAX` decides. Before there are threads.
pub fn bound_heaps() {
    #[cfg(target_env = "gnu")]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let heaps = i32::try_from(processors.max(2)).unwrap_or(i32::MAX);
        // SAFETY: it sets a number of the allocator's own.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
    }
}

/// The kernel's group of all processes of a session, which share processors as one (sched(7)).
const GROUP: &str = "/proc/self/autogroup";

/// Gives this thread, those that it starts, and its session the priority `nice`, as far as it may.
/// Without the session's an own priority counts only against processes of the same session.
pub fn raise_priority(nice: i32) {
    if nice >= 0 {
        return;
    }
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::info!(nice, %error, "the daemon's priority stays as it is");
        return;
    }
    // In the foreground the session is that of a shell with other programs.
    if rustix::process::getsid(None).ok() != Some(rustix::process::getpid()) {
        return;
    }
    // Absent where the kernel does not group by session.
    if let Err(error) = std::fs::write(GROUP, nice.to_string())
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::info!(nice, %error, "the priority of the daemon's session stays as it is");
    }
}
