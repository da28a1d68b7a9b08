//! FUSE in this kernel.

use super::Check;
use super::kernel::PASSTHROUGH;
use crate::finding::{Fix, Verdict};
use crate::host::Host;

/// Pages of the largest request (fs.fuse.max_pages_limit, Linux 6.13): 256 are 1 MiB.
const PAGES: u64 = 256;

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "fuse/device",
        title: "/dev/fuse",
        why: "Without it nothing can be mounted: every Forebay mount is a FUSE mount.",
        look: device,
    },
    Check {
        code: "fuse/passthrough",
        title: "FUSE passthrough",
        why: "With it the kernel reads and writes the files on the disk below itself: the direct path. Without it every byte goes through the \
              daemon, which takes a core for each few GB/s.",
        look: passthrough,
    },
    Check {
        code: "fuse/io-uring",
        title: "FUSE over io_uring",
        why: "It serves each request on the core that issued it. Linux 6.14 and later have it, switched off by default; a mount by \
              root switches it on, a mount by an ordinary user cannot.",
        look: io_uring,
    },
    Check {
        code: "fuse/request-size",
        title: "Largest FUSE request",
        why: "On the served path (no passthrough) a large read or write is cut into requests of this size.",
        look: request_size,
    },
    Check {
        code: "fuse/other-users",
        title: "Mounts of ordinary users for others",
        why: "fusermount3 refuses allow_other to ordinary users unless /etc/fuse.conf permits it; then only the user who mounted sees \
              the files.",
        look: other_users,
    },
];

fn device(host: &Host) -> Vec<Verdict> {
    vec![if host.has("dev/fuse") {
        Verdict::Fine("/dev/fuse is there".to_owned())
    } else {
        Verdict::problem(
            "/dev/fuse is missing".to_owned(),
            Fix::Command {
                command: "modprobe fuse   # in a container: give it the device /dev/fuse"
                    .to_owned(),
            },
        )
    }]
}

/// Linux 6.9 and later have it, if it was built in, as have those to which a distribution has brought it.
fn passthrough(host: &Host) -> Vec<Verdict> {
    const OPTION: &str = "CONFIG_FUSE_PASSTHROUGH";
    let (Some(release), Some(kernel)) = (host.text("proc/sys/kernel/osrelease"), host.kernel())
    else {
        return vec![Verdict::Unknown("/proc/sys/kernel/osrelease cannot be read".to_owned())];
    };
    let places = [format!("boot/config-{release}"), format!("lib/modules/{release}/config")];
    let found = places.iter().find_map(|place| Some((place, host.text(place)?)));
    let is_set = |text: &str| text.lines().any(|line| line.trim() == format!("{OPTION}=y"));
    match found {
        Some((place, text)) if is_set(&text) => {
            vec![Verdict::Fine(format!("{OPTION}=y in /{place}"))]
        }
        // kernel/version says so.
        _ if kernel < PASSTHROUGH => Vec::new(),
        Some((place, _)) => vec![Verdict::warning(
            format!("{OPTION} is not set in /{place}"),
            Fix::ByHand { advice: format!("install a kernel that was built with {OPTION}=y") },
        )],
        None => vec![Verdict::Unknown(format!(
            "there is neither /{} nor /{}; `forebay status` says whether a mount has the direct path",
            places[0], places[1]
        ))],
    }
}

fn io_uring(host: &Host) -> Vec<Verdict> {
    let path = "sys/module/fuse/parameters/enable_uring";
    match host.text(path).as_deref() {
        None => vec![Verdict::Unknown("this kernel has no FUSE over io_uring".to_owned())],
        Some("Y" | "1") => vec![Verdict::Fine("enable_uring = Y".to_owned())],
        Some(_) => vec![Verdict::advice(
            "enable_uring = N".to_owned(),
            Fix::Knob { path: format!("/{path}"), value: "1".to_owned() },
        )],
    }
}

fn request_size(host: &Host) -> Vec<Verdict> {
    match host.number("proc/sys/fs/fuse/max_pages_limit") {
        None => vec![Verdict::Unknown(
            "this kernel has no fs.fuse.max_pages_limit (before Linux 6.13: 256 pages)".to_owned(),
        )],
        Some(pages) if pages < PAGES => vec![Verdict::advice(
            format!("fs.fuse.max_pages_limit = {pages}"),
            Fix::sysctl("fs.fuse.max_pages_limit", PAGES),
        )],
        Some(pages) => vec![Verdict::Fine(format!("fs.fuse.max_pages_limit = {pages}"))],
    }
}

fn other_users(host: &Host) -> Vec<Verdict> {
    let Some(text) = host.text("etc/fuse.conf") else {
        return vec![Verdict::Unknown("there is no /etc/fuse.conf (package fuse3)".to_owned())];
    };
    vec![if text.lines().any(|line| line.trim() == "user_allow_other") {
        Verdict::Fine("/etc/fuse.conf permits user_allow_other".to_owned())
    } else {
        Verdict::advice(
            "/etc/fuse.conf does not permit user_allow_other".to_owned(),
            Fix::Command { command: "echo user_allow_other >> /etc/fuse.conf".to_owned() },
        )
    }]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_commented_line_permits_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("etc")).unwrap();
        let host = Host::below(folder.path());
        for (text, fine) in
            [("#user_allow_other\n", false), ("mount_max = 10\nuser_allow_other\n", true)]
        {
            fs::write(folder.path().join("etc/fuse.conf"), text).unwrap();
            assert_eq!(matches!(other_users(&host)[..], [Verdict::Fine(_)]), fine, "{text}");
        }
    }
}
