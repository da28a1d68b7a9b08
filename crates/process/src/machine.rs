//! What tells one run of one machine from all others.

use std::fs;
use std::io;

/// The identity of this boot, as the kernel gives it (proc_sys_kernel(5), `random/boot_id`).
///
/// # Errors
/// If /proc is not mounted.
pub fn boot_id() -> io::Result<String> {
    line("/proc/sys/kernel/random/boot_id")
}

/// The name of this machine.
///
/// # Errors
/// If /proc is not mounted.
pub fn host_name() -> io::Result<String> {
    line("/proc/sys/kernel/hostname")
}

fn line(path: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}
