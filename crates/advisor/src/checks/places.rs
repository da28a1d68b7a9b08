//! The directories that were asked about: what lies below them, and how full they are.

use std::path::Path;

use super::Check;
use crate::finding::{Fix, Verdict};
use crate::host::{Host, Place};

/// Free space and inodes that a place should keep, hundredths.
const FREE_MIN: u64 = 10;
/// Below this it is about to fail, hundredths.
const FREE_LEAST: u64 = 2;

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "places/file-system",
        title: "File system of the directory",
        why: "Objects belong on a local file system that supports passthrough and, if possible, reflinks: XFS, or ext4. A stacked or \
              remote file system costs a round trip for each call, or refuses passthrough.",
        look: file_system,
    },
    Check {
        code: "places/network-attributes",
        title: "Cached attributes of a network mount",
        why: "An NFS client may show sizes and names of others up to 60 s late (acregmax, acdirmax; nfs(5)). A program on another \
              host then reads half a table.",
        look: network_attributes,
    },
    Check {
        code: "places/network-errors",
        title: "Soft network mount",
        why: "A soft mount gives up after a while and returns an error to a program in the middle of a write (nfs(5)).",
        look: network_errors,
    },
    Check {
        code: "places/space",
        title: "Free space",
        why: "File systems that are nearly full fragment, and a job that fills scratch makes all others fail.",
        look: space,
    },
    Check {
        code: "places/inodes",
        title: "Free inodes",
        why: "Analytics programs make many small files: a file system can be out of inodes while it has space (ext4 fixes their \
              number when it is made).",
        look: inodes,
    },
    Check {
        code: "places/access-times",
        title: "Access times",
        why: "With strictatime each read of a file becomes a write of its inode. relatime, the \
              kernel's default, writes once a day.",
        look: access_times,
    },
    Check {
        code: "places/journal",
        title: "Data journal of ext4",
        why: "data=journal writes each byte twice: to the journal, and to its place.",
        look: journal,
    },
    Check {
        code: "places/replaced-files",
        title: "Files that replace others on ext4",
        why: "ext4 writes a file back at once when it is truncated and written again, or renamed over another one (auto_da_alloc; ext4(5)). \
              Scratch that could stay in the page cache then waits for the disk.",
        look: replaced_files,
    },
    Check {
        code: "places/discard",
        title: "Discards at each removal",
        why: "With the mount option discard of ext4 each commit of its journal waits for the discards of the files removed before it: \
              analytics programs remove thousands of temporary files. fstrim(8) once a week does the same in one go.",
        look: discard,
    },
    Check {
        code: "places/xfs-geometry",
        title: "How an XFS was made",
        why: "Snapshots, clones and checkpoints share blocks only on an XFS with reflinks. Allocation groups are allocated from in parallel: \
              mkfs.xfs makes one for each processor on flash today (concurrency; mkfs.xfs(8)), and earlier made four. On an array the \
              layout should know its stripes.",
        look: xfs_geometry,
    },
    Check {
        code: "places/project-quotas",
        title: "Project quotas",
        why: "Native filesets and the work areas of jobs lie on the disk's own file system. The grid measures areas every few seconds, so a job \
              may exceed its limit for a while, and native filesets have no limits of their own: only project quotas of the disk hold at once \
              (xfs_quota(8), quota of ext4).",
        look: project_quotas,
    },
    Check {
        code: "places/synchronous",
        title: "Synchronous mount",
        why: "With sync each write waits for the disk, with dirsync each creation and removal of a file: temporary files then never stay in \
              the page cache.",
        look: synchronous,
    },
    Check {
        code: "places/delayed-allocation",
        title: "Delayed allocation of ext4",
        why: "With nodelalloc each small append allocates its block at once. Files that grow side by side, as those of many sessions do, are \
              fragmented, and files that are soon removed cost allocations.",
        look: delayed_allocation,
    },
    Check {
        code: "places/write-barriers",
        title: "Write barriers",
        why: "Without them a power cut loses what fsync promised, unless every cache below has a battery.",
        look: barriers,
    },
];

fn each(host: &Host, look: impl Fn(&Place) -> Option<Verdict>) -> Vec<Verdict> {
    host.places.iter().filter_map(look).collect()
}

fn has(place: &Place, option: &str) -> bool {
    place.mount.options.split(',').any(|given| given == option)
}

fn is_nfs(place: &Place) -> bool {
    place.mount.file_system.starts_with("nfs")
}

fn file_system(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        let kind = place.mount.file_system.as_str();
        let evidence = format!("{} is on {kind}", place.path.display());
        let by_hand = |advice: &str| Fix::ByHand { advice: advice.to_owned() };
        Some(match kind {
            "xfs" | "ext4" | "btrfs" => Verdict::Fine(evidence),
            "tmpfs" | "ramfs" => Verdict::advice(
                format!(
                    "{evidence}: lost at the next boot, and it takes memory from the page cache"
                ),
                by_hand("use it for scratch that may be lost; make file systems on XFS"),
            ),
            "overlay" | "ecryptfs" | "aufs" => Verdict::warning(
                format!("{evidence}: FUSE passthrough does not work on it"),
                by_hand("use a volume of the host below it, on XFS or ext4"),
            ),
            _ if kind.starts_with("nfs")
                || kind == "cifs"
                || kind == "smb3"
                || kind == "ceph"
                || kind == "lustre" =>
            {
                Verdict::advice(
                    format!("{evidence}, which is remote"),
                    by_hand(
                        "keep work and util on a disk of the host; `forebay doctor --shared` examines a shared mount",
                    ),
                )
            }
            _ if kind.starts_with("fuse") => Verdict::advice(
                evidence,
                by_hand(
                    "a FUSE file system below costs a round trip for each call: use the file system that it lies on",
                ),
            ),
            _ => Verdict::Unknown(format!("{evidence}, which has not been tested")),
        })
    })
}

fn network_attributes(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        if !is_nfs(place) {
            return None;
        }
        let evidence = format!("{}: {}", place.path.display(), place.mount.options);
        Some(if has(place, "noac") || has(place, "actimeo=0") {
            Verdict::Fine(format!("{} is mounted without cached attributes", place.path.display()))
        } else {
            Verdict::warning(
                evidence,
                Fix::ByHand {
                    advice: "mount what several hosts write with actimeo=0 (slower) or a few seconds, and never rely on \
                             seeing another host's file at once"
                        .to_owned(),
                },
            )
        })
    })
}

fn network_errors(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        if !is_nfs(place) {
            return None;
        }
        Some(if has(place, "soft") {
            Verdict::problem(
                format!("{} is mounted soft", place.path.display()),
                Fix::ByHand { advice: "mount it with the option hard".to_owned() },
            )
        } else {
            Verdict::Fine(format!("{} is mounted hard", place.path.display()))
        })
    })
}

/// What is free of all, hundredths.
fn percent(free: u64, all: u64) -> u64 {
    u64::try_from(u128::from(free) * 100 / u128::from(all.max(1))).unwrap_or(100)
}

fn share(place: &Place, free: u64, all: u64, what: &str) -> Verdict {
    let left = percent(free, all);
    let evidence = format!("{}: {left} % of the {what} is free", place.path.display());
    let fix = Fix::ByHand {
        advice: format!("remove files of {}, or give it more {what}", place.path.display()),
    };
    if left < FREE_LEAST {
        Verdict::problem(evidence, fix)
    } else if left < FREE_MIN {
        Verdict::warning(evidence, fix)
    } else {
        Verdict::Fine(evidence)
    }
}

fn space(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        (place.total_bytes > 0).then(|| share(place, place.free_bytes, place.total_bytes, "space"))
    })
}

fn inodes(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        (place.inodes > 0).then(|| share(place, place.free_inodes, place.inodes, "inode table"))
    })
}

fn access_times(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        let quiet = ["noatime", "relatime", "lazytime"].iter().any(|option| has(place, option));
        let at = place.mount.mountpoint.display();
        Some(if quiet || has(place, "ro") {
            Verdict::Fine(format!("{at} does not write access times at each read"))
        } else {
            Verdict::warning(
                format!("{at} is mounted with strictatime"),
                Fix::Command {
                    command: format!(
                        "mount -o remount,noatime '{at}'   # and noatime in /etc/fstab"
                    ),
                },
            )
        })
    })
}

fn journal(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        has(place, "data=journal").then(|| {
            Verdict::warning(
                format!("{} is mounted with data=journal", place.mount.mountpoint.display()),
                Fix::ByHand { advice: "mount it with data=ordered, the default".to_owned() },
            )
        })
    })
}

fn replaced_files(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        if place.mount.file_system != "ext4" {
            return None;
        }
        let at = place.mount.mountpoint.display();
        Some(if has(place, "noauto_da_alloc") {
            Verdict::Fine(format!("{at} is mounted with noauto_da_alloc"))
        } else {
            Verdict::advice(
                format!("{at} is ext4, mounted with auto_da_alloc, its default"),
                Fix::ByHand {
                    advice: format!(
                        "put scratch on XFS; if {at} holds nothing but scratch, mount it with noauto_da_alloc"
                    ),
                },
            )
        })
    })
}

fn discard(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        let at = place.mount.mountpoint.display();
        (place.mount.file_system == "ext4").then(|| {
            if has(place, "discard") {
                Verdict::advice(
                    format!("{at} is mounted with discard"),
                    Fix::Command {
                        command: format!(
                            "mount -o remount,nodiscard '{at}' && systemctl enable --now fstrim.timer   # and without discard in /etc/fstab"
                        ),
                    },
                )
            } else {
                Verdict::Fine(format!("{at} is mounted without discard"))
            }
        })
    })
}

/// From this size of an allocation group on, more of them would have been possible.
const GROUP_LARGE_BYTES: u64 = 8 << 30;

fn xfs_geometry(host: &Host) -> Vec<Verdict> {
    let is_processor = |name: &String| {
        name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let processors =
        host.list("sys/devices/system/cpu").iter().filter(|it| is_processor(it)).count();
    each(host, |place| {
        let xfs = place.xfs?;
        let at = place.mount.mountpoint.display();
        let again = |how: &str| Fix::ByHand {
            advice: format!("{how} when {at} is made anew: an XFS cannot be changed"),
        };
        if !xfs.has_reflinks {
            return Some(Verdict::warning(
                format!("{at} has no reflinks"),
                again("use mkfs.xfs -m reflink=1, the default since xfsprogs 5.1,"),
            ));
        }
        let group_bytes = place.total_bytes / u64::from(xfs.groups.max(1));
        if (xfs.groups as usize) < processors
            && group_bytes >= GROUP_LARGE_BYTES
            && !xfs.has_stripes
        {
            return Some(Verdict::advice(
                format!("{at} has {} allocation groups for {processors} processors", xfs.groups),
                again(&format!("use mkfs.xfs -d agcount={processors}")),
            ));
        }
        let array = host.disks().into_iter().find(|disk| {
            let size =
                |name: &str| host.number(&format!("sys/block/{disk}/queue/{name}")).unwrap_or(0);
            size("optimal_io_size") > size("minimum_io_size") && size("minimum_io_size") > 4096
        });
        Some(match array.filter(|_| !xfs.has_stripes) {
            Some(disk) => Verdict::advice(
                format!("{at} does not know the stripes of {disk}"),
                again("use mkfs.xfs -d su=SIZE,sw=NUMBER"),
            ),
            None => {
                Verdict::Fine(format!("{at} has reflinks and {} allocation groups", xfs.groups))
            }
        })
    })
}

fn project_quotas(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        let at = place.mount.mountpoint.display();
        let is_root = place.mount.mountpoint == Path::new("/");
        let advice = match place.mount.file_system.as_str() {
            "xfs" if is_root => format!(
                "if native filesets or work areas in {at} need exact limits, add rootflags=prjquota to the kernel command line and boot again"
            ),
            "ext4" if is_root => format!(
                "if native filesets or work areas in {at} need exact limits, run `tune2fs -O project -Q prjquota DEVICE` from a rescue system, \
                 and add rootflags=prjquota to the kernel command line"
            ),
            "xfs" => format!(
                "if native filesets or work areas in {at} need exact limits, mount it with prjquota (in /etc/fstab: it takes effect when {at} is \
                 mounted, not with a remount)"
            ),
            "ext4" => format!(
                "if native filesets or work areas in {at} need exact limits, run `tune2fs -O project -Q prjquota DEVICE` while it is unmounted, \
                 and mount it with prjquota"
            ),
            _ => return None,
        };
        Some(if has(place, "prjquota") || has(place, "pquota") {
            Verdict::Fine(format!("{at} is mounted with project quotas"))
        } else {
            Verdict::advice(
                format!("{at} is mounted without project quotas"),
                Fix::ByHand { advice },
            )
        })
    })
}

/// A mount option that slows writers down.
fn slow_option(place: &Place, option: &str) -> Verdict {
    let at = place.mount.mountpoint.display();
    Verdict::warning(
        format!("{at} is mounted with {option}"),
        Fix::ByHand {
            advice: format!("remove {option} from the mount options of {at} and mount it again"),
        },
    )
}

fn synchronous(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        let option = ["sync", "dirsync"].into_iter().find(|option| has(place, option))?;
        Some(slow_option(place, option))
    })
}

fn delayed_allocation(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        // data=journal implies nodelalloc: the check of the journal finds that.
        let is_apart = has(place, "nodelalloc") && !has(place, "data=journal");
        (place.mount.file_system == "ext4" && is_apart).then(|| slow_option(place, "nodelalloc"))
    })
}

fn barriers(host: &Host) -> Vec<Verdict> {
    each(host, |place| {
        (has(place, "nobarrier") || has(place, "barrier=0")).then(|| {
            Verdict::problem(
                format!("{} is mounted without write barriers", place.mount.mountpoint.display()),
                Fix::ByHand {
                    advice: "remove nobarrier from the mount options and mount it again".to_owned(),
                },
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::Xfs;

    fn on(kind: &str, options: &str) -> Host {
        let mut place =
            Place { path: "/x".into(), total_bytes: 1000, free_bytes: 500, ..Place::default() };
        place.mount.file_system = kind.into();
        place.mount.options = options.into();
        let mut host = Host::default();
        host.places.push(place);
        host
    }

    fn severity(verdicts: &[Verdict]) -> Option<Severity> {
        match verdicts {
            [Verdict::Found { severity, .. }] => Some(*severity),
            _ => None,
        }
    }

    #[test]
    fn nfs_with_its_defaults_is_a_warning_and_soft_a_problem() {
        let defaults = on("nfs4", "rw,relatime,vers=4.2,hard,acregmin=3");
        assert_eq!(severity(&network_attributes(&defaults)), Some(Severity::Warning));
        assert_eq!(severity(&network_errors(&defaults)), None);
        assert_eq!(severity(&network_errors(&on("nfs", "rw,soft"))), Some(Severity::Problem));
        assert_eq!(severity(&network_attributes(&on("nfs", "rw,actimeo=0"))), None);
    }

    #[test]
    fn a_local_disk_is_not_asked_about_networks() {
        assert!(
            network_attributes(&on("xfs", "rw")).is_empty()
                && network_errors(&on("xfs", "rw")).is_empty()
        );
    }

    #[test]
    fn objects_belong_on_a_local_file_system() {
        for (kind, expected) in [
            ("xfs", None),
            ("tmpfs", Some(Severity::Advice)),
            ("overlay", Some(Severity::Warning)),
            ("fuse.sshfs", Some(Severity::Advice)),
        ] {
            assert_eq!(severity(&file_system(&on(kind, "rw"))), expected, "{kind}");
        }
    }

    #[test]
    fn the_fuller_the_worse() {
        for (free, expected) in
            [(500, None), (99, Some(Severity::Warning)), (19, Some(Severity::Problem))]
        {
            let mut host = on("xfs", "rw,noatime");
            host.places[0].free_bytes = free;
            assert_eq!(severity(&space(&host)), expected, "{free}");
            (host.places[0].inodes, host.places[0].free_inodes) = (1000, free);
            assert_eq!(severity(&inodes(&host)), expected, "{free}");
        }
    }

    #[test]
    fn ext4_is_asked_for_discards_and_files_that_replace_others() {
        assert_eq!(severity(&discard(&on("ext4", "rw,discard"))), Some(Severity::Advice));
        assert_eq!(severity(&discard(&on("ext4", "rw"))), None);
        assert_eq!(severity(&replaced_files(&on("ext4", "rw"))), Some(Severity::Advice));
        assert_eq!(severity(&replaced_files(&on("ext4", "rw,noauto_da_alloc"))), None);
        let xfs = on("xfs", "rw,discard");
        assert!(discard(&xfs).is_empty() && replaced_files(&xfs).is_empty());
    }

    #[test]
    fn an_xfs_without_reflinks_or_with_few_large_groups_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for processor in 0..8 {
            let path = folder.path().join(format!("sys/devices/system/cpu/cpu{processor}"));
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::create_dir_all(folder.path().join("sys/devices/system/cpu/cpufreq")).unwrap();
        let found = |xfs: Xfs, gib: u64| {
            let mut host = Host::below(folder.path());
            let mut place = on("xfs", "rw").places.remove(0);
            (place.xfs, place.total_bytes) = (Some(xfs), gib << 30);
            host.places.push(place);
            xfs_geometry(&host)
        };
        let made = Xfs { has_reflinks: true, groups: 4, has_stripes: false };
        let few = found(made, 1000);
        assert_eq!(severity(&few), Some(Severity::Advice));
        assert!(format!("{few:?}").contains("4 allocation groups for 8 processors"), "{few:?}");
        assert_eq!(severity(&found(made, 20)), None);
        assert_eq!(severity(&found(Xfs { groups: 8, ..made }, 1000)), None);
        let old = Xfs { has_reflinks: false, ..made };
        assert_eq!(severity(&found(old, 20)), Some(Severity::Warning));
        assert!(xfs_geometry(&on("xfs", "rw")).is_empty(), "what cannot be seen is not guessed");
    }

    #[test]
    fn quotas_and_options_that_make_writers_wait_are_seen() {
        assert_eq!(severity(&project_quotas(&on("xfs", "rw,noquota"))), Some(Severity::Advice));
        let on_ext4 = format!("{:?}", project_quotas(&on("ext4", "rw")));
        assert!(on_ext4.contains("tune2fs -O project -Q prjquota"), "{on_ext4}");
        assert!(matches!(project_quotas(&on("xfs", "rw,prjquota"))[..], [Verdict::Fine(_)]));
        for (kind, how) in [("xfs", "add rootflags=prjquota"), ("ext4", "from a rescue system")] {
            let mut host = on(kind, "rw");
            host.places[0].mount.mountpoint = "/".into();
            let on_root = format!("{:?}", project_quotas(&host));
            assert!(on_root.contains(how), "{on_root}");
        }
        assert!(project_quotas(&on("tmpfs", "rw")).is_empty());
        assert_eq!(severity(&synchronous(&on("xfs", "rw,sync"))), Some(Severity::Warning));
        assert_eq!(severity(&synchronous(&on("ext4", "rw,dirsync"))), Some(Severity::Warning));
        assert!(synchronous(&on("ext4", "rw,async,lazytime")).is_empty());
        let apart = on("ext4", "rw,nodelalloc");
        assert_eq!(severity(&delayed_allocation(&apart)), Some(Severity::Warning));
        let journal_too = on("ext4", "rw,nodelalloc,data=journal");
        assert_eq!(severity(&journal(&journal_too)), Some(Severity::Warning));
        assert!(delayed_allocation(&journal_too).is_empty());
        assert!(journal(&on("ext4", "rw,data=ordered")).is_empty());
        assert!(delayed_allocation(&on("xfs", "rw,nodelalloc")).is_empty());
        assert!(delayed_allocation(&on("ext4", "rw,delalloc")).is_empty());
    }

    #[test]
    fn options_count_as_whole_words() {
        assert_eq!(severity(&access_times(&on("xfs", "rw,noatime"))), None);
        assert_eq!(severity(&access_times(&on("xfs", "rw,strictatime"))), Some(Severity::Warning));
        assert_eq!(severity(&barriers(&on("ext4", "rw,nobarrier"))), Some(Severity::Problem));
    }
}
