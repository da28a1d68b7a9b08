//! What the machine offers: cores, and the kernel's switch for FUSE over io_uring.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// The kernel's switch. It counts when a file system is mounted.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Who may use io_uring: 0 everybody, 1 a group and root, 2 nobody.
const FORBIDDEN: &str = "/proc/sys/kernel/io_uring_disabled";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Whether the kernel offers FUSE over io_uring to what is mounted next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It does.
    On,
    /// It does since now: it was switched on for all of the machine.
    TurnedOn,
    /// It does not, for this reason.
    Off(String),
}

/// Has the kernel offer FUSE over io_uring, if this process may.
#[must_use]
pub fn switch_on() -> Switch {
    switch_on_at(Path::new(SWITCH))
}

fn switch_on_at(switch: &Path) -> Switch {
    match std::fs::read_to_string(switch) {
        Ok(text) if text.trim() == "Y" => return Switch::On,
        Ok(_) => {}
        Err(_) => {
            return Switch::Off(
                "this kernel has no FUSE over io_uring (Linux 6.14, CONFIG_FUSE_IO_URING)"
                    .to_owned(),
            );
        }
    }
    match std::fs::write(switch, "Y") {
        Ok(()) => Switch::TurnedOn,
        Err(error) => Switch::Off(format!(
            "FUSE over io_uring is switched off on this machine ({error}): write Y to {} as root",
            switch.display()
        )),
    }
}

/// Why io_uring itself was refused with `error`, and what helps.
pub(crate) fn explain_refusal(error: &io::Error) -> String {
    let forbidden = std::fs::read_to_string(FORBIDDEN).unwrap_or_default();
    let forbidden = forbidden.trim();
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) if !matches!(forbidden, "" | "0") => {
            format!("kernel.io_uring_disabled is {forbidden}: set it to 0")
        }
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            "a container or a system call filter forbids it: allow io_uring_setup, io_uring_enter and \
             io_uring_register"
                .to_owned()
        }
        Some(libc::ENOMEM) => {
            "there is too little memory, or too little may be locked: raise RLIMIT_MEMLOCK, or lower \
             ring_depth"
                .to_owned()
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "too many files are open: raise RLIMIT_NOFILE, or lower ring_depth".to_owned()
        }
        _ => "see the kernel's log".to_owned(),
    };
    format!("io_uring was refused ({error}): {remedy}")
}

/// Cores of the machine.
pub(crate) struct Cores {
    /// How many there can be: the kernel has a queue for each.
    pub possible: usize,
    /// Numbers of those that run now.
    pub online: BTreeSet<usize>,
}

impl Cores {
    /// The cores of this machine.
    ///
    /// # Errors
    /// A text, if the kernel does not tell.
    pub fn look() -> Result<Cores, String> {
        let read = |path: &str| {
            let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
            numbers(&text).ok_or_else(|| format!("{path}: not a list of cores: {text:?}"))
        };
        Ok(Cores { possible: read(POSSIBLE)?.len(), online: read(ONLINE)? })
    }
}

/// The numbers of a list such as `0-3,8`; `None` if it is none, or empty.
fn numbers(list: &str) -> Option<BTreeSet<usize>> {
    let mut numbers = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // A queue has a number of 16 bits.
        if first > last || last > usize::from(u16::MAX) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        let read = |list| numbers(list).map(|numbers| numbers.into_iter().collect::<Vec<_>>());
        assert_eq!(read("0\n"), Some(vec![0]));
        assert_eq!(read("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        for broken in ["", "\n", "a", "3-1", "0-", "0-99999999999", "1,,2", "-1"] {
            assert_eq!(read(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn the_switch_is_turned_on_or_the_reason_told() {
        let folder = tempfile::tempdir().unwrap();
        let switch = folder.path().join("enable_uring");
        let Switch::Off(reason) = switch_on_at(&switch) else { panic!("there is no switch") };
        assert!(reason.contains("Linux 6.14"), "{reason}");
        std::fs::write(&switch, "N\n").unwrap();
        assert_eq!(switch_on_at(&switch), Switch::TurnedOn);
        assert_eq!(switch_on_at(&switch), Switch::On);
    }

    #[test]
    fn a_refusal_comes_with_its_remedy() {
        let says = |errno| explain_refusal(&io::Error::from_raw_os_error(errno));
        assert!(says(libc::ENOSYS).contains("io_uring_setup"));
        assert!(says(libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(says(libc::EMFILE).contains("RLIMIT_NOFILE"));
    }
}
