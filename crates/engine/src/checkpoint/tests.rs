use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};

use forebay_base::time::SystemClock;
use forebay_grid::vocabulary::JobId;
use tempfile::TempDir;

use super::ship::Until;
use super::snapshot::Taken;
use super::*;

/// Work areas on two hosts, and a place that both reach.
struct Hosts {
    folder: TempDir,
    bounds: Bounds,
}

const ROOMY: Bounds = Bounds { job_bytes_max: 1 << 40, user_bytes_max: 1 << 40, elsewhere: false };

impl Hosts {
    fn new(bounds: Bounds) -> Hosts {
        // Times of files there are as fine as on disks.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["a", "b", "place"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::create_dir(folder.path().join("place/job-7-checkpoint")).unwrap();
        Hosts { folder, bounds }
    }

    fn work(&self, host: &str) -> PathBuf {
        self.folder.path().join(host)
    }

    fn shelf(&self) -> Shelf {
        Shelf::at(&self.folder.path().join("place/job-7-checkpoint"))
    }

    fn start(&self, host: &str, attempt: u32) -> Result<Setup> {
        self.start_in_boot(host, attempt, "one")
    }

    fn start_in_boot(&self, host: &str, attempt: u32, boot: &str) -> Result<Setup> {
        let setup = Setup {
            attempt: Attempt(attempt),
            host: host.parse().unwrap(),
            boot: format!("{boot} of {host}"),
            job: JobId(7).into(),
            root: self.folder.path().to_owned(),
            place: self.shelf().folder,
            bounds: self.bounds,
            restored: None,
        };
        restore::prepare(&self.work(host), setup, &SystemClock)?;
        Ok(setup_of(&self.work(host)).unwrap().unwrap())
    }

    fn write(&self, host: &str, name: &str, text: &str) {
        std::fs::write(self.work(host).join(name), text).unwrap();
    }

    fn read(&self, host: &str, name: &str) -> Option<String> {
        std::fs::read_to_string(self.work(host).join(name)).ok()
    }

    fn take(&self, host: &str, step: &str) -> Taken {
        let setup = setup_of(&self.work(host)).unwrap().unwrap();
        snapshot::take(&self.work(host), &setup, step, &SystemClock).unwrap()
    }

    fn ship(&self, host: &str) -> Option<String> {
        ship::run(&self.work(host), Until::Done).unwrap();
        ship::trouble(&self.work(host)).unwrap().map(|trouble| trouble.reason)
    }

    /// Lets files be old enough to be known by their times.
    fn wait(&self) {
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
}

#[test]
fn an_area_is_brought_back_on_another_host_with_all_that_is_in_it() {
    let hosts = Hosts::new(ROOMY);
    hosts.start("a", 1).unwrap();
    let work = hosts.work("a");
    std::fs::create_dir_all(work.join("d/e")).unwrap();
    hosts.write("a", "d/e/file", "deep");
    hosts.write("a", "empty", "");
    std::os::unix::fs::symlink("d/e/file", work.join("link")).unwrap();
    std::fs::set_permissions(work.join("d/e/file"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::set_permissions(work.join("d/e"), PermissionsExt::from_mode(0o500)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        work.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let taken = hosts.take("a", "load");
    assert_eq!((taken.bytes, taken.changed_files, taken.skipped), (4, 2, 1));
    assert_eq!(hosts.ship("a"), None);
    hosts.write("a", "later", "after the step");
    hosts.write("b", "stale", "from another start");
    let setup = hosts.start("b", 2).unwrap();
    let restored = setup.restored.unwrap();
    assert_eq!((restored.number, restored.bytes), (Some("1.1".parse().unwrap()), 4));
    assert_eq!(hosts.read("b", "link").as_deref(), Some("deep"));
    assert_eq!(hosts.read("b", "empty").as_deref(), Some(""));
    assert_eq!((hosts.read("b", "later"), hosts.read("b", "stale")), (None, None));
    for path in ["d/e/file", "d/e", "d"] {
        let [before, after] =
            ["a", "b"].map(|host| std::fs::metadata(hosts.work(host).join(path)).unwrap());
        assert_eq!(before.mode(), after.mode(), "{path}");
        assert_eq!(before.modified().unwrap(), after.modified().unwrap(), "{path}");
    }
    for host in ["a", "b"] {
        let folder = hosts.work(host).join("d/e");
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).unwrap();
    }
}

#[test]
fn only_what_has_changed_is_copied_and_what_nobody_needs_goes() {
    let hosts = Hosts::new(ROOMY);
    hosts.start("a", 1).unwrap();
    hosts.write("a", "same", "unchanged");
    hosts.write("a", "other", "one");
    hosts.wait();
    assert_eq!(hosts.take("a", "one").changed_files, 2);
    hosts.write("a", "other", "two");
    hosts.wait();
    let second = hosts.take("a", "two");
    assert_eq!((second.changed_files, second.changed_bytes, second.bytes), (1, 3, 12));
    assert_eq!(hosts.ship("a"), None);
    assert_eq!(hosts.shelf().numbers().unwrap(), [second.number]);
    assert_eq!(hosts.shelf().bytes().unwrap(), 12, "the former object has gone");
    // A start elsewhere goes on from there, and copies what it changes.
    hosts.start("b", 2).unwrap();
    hosts.write("b", "other", "three");
    hosts.wait();
    let third = hosts.take("b", "three");
    assert_eq!((third.changed_files, third.bytes), (1, 14));
    assert_eq!(hosts.ship("b"), None);
    // The first host has an area that is older than what was shipped since.
    hosts.start("a", 3).unwrap();
    assert_eq!(hosts.read("a", "other").as_deref(), Some("three"));
    assert_eq!(hosts.read("a", "same").as_deref(), Some("unchanged"));
}

#[test]
fn a_crash_while_a_checkpoint_is_shipped_leaves_the_one_before_whole() {
    let hosts = Hosts::new(ROOMY);
    hosts.start("a", 1).unwrap();
    hosts.write("a", "file", "first");
    hosts.take("a", "one");
    hosts.ship("a");
    hosts.write("a", "file", "second");
    hosts.take("a", "two");
    // Its objects are there, whole and in part, and its manifest is not.
    let objects = hosts.shelf().objects();
    std::fs::write(objects.join("1.2-0"), "second").unwrap();
    std::fs::write(objects.join("1.2-1.draft-1"), "sec").unwrap();
    std::fs::write(hosts.shelf().folder.join("manifest-1.2.draft-1"), "{").unwrap();
    let restored = hosts.start("b", 2).unwrap().restored.unwrap();
    assert_eq!(restored.number, Some("1.1".parse().unwrap()));
    assert_eq!(hosts.read("b", "file").as_deref(), Some("first"));
    hosts.write("b", "file", "third");
    hosts.take("b", "two");
    assert_eq!(hosts.ship("b"), None);
    let left: Vec<_> =
        std::fs::read_dir(objects).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["2.1-0"], "what was interrupted has gone");
}

#[test]
fn an_area_of_the_same_host_is_used_as_it_is_unless_its_machine_went_down() {
    let hosts = Hosts::new(ROOMY);
    hosts.start("a", 1).unwrap();
    hosts.write("a", "file", "first");
    hosts.take("a", "one");
    hosts.ship("a");
    hosts.write("a", "file", "half of the next step");
    assert_eq!(hosts.start("a", 2).unwrap().restored, None);
    assert_eq!(hosts.read("a", "file").as_deref(), Some("half of the next step"));
    let setup = hosts.start_in_boot("a", 3, "another").unwrap();
    assert!(setup.restored.is_some());
    assert_eq!(hosts.read("a", "file").as_deref(), Some("first"));
}

#[test]
fn what_exceeds_the_bounds_of_a_job_or_a_user_is_not_shipped_and_the_former_checkpoint_stays() {
    for (bounds, key) in [
        (Bounds { job_bytes_max: 15, ..ROOMY }, "checkpoint_bytes_max"),
        (Bounds { user_bytes_max: 15, ..ROOMY }, "user_checkpoint_bytes_max"),
    ] {
        let hosts = Hosts::new(bounds);
        hosts.start("a", 1).unwrap();
        hosts.write("a", "file", "0123456789");
        hosts.wait();
        hosts.take("a", "one");
        assert_eq!(hosts.ship("a"), None);
        hosts.write("a", "more", "0123456789");
        hosts.take("a", "two");
        let reason = hosts.ship("a").unwrap();
        assert!(reason.contains(&format!("of {key}")), "{reason}");
        std::fs::remove_file(hosts.work("a").join("more")).unwrap();
        hosts.take("a", "three");
        assert_eq!(hosts.ship("a"), None, "the next one that fits is shipped");
        hosts.start("b", 2).unwrap();
        assert_eq!(hosts.read("b", "file").as_deref(), Some("0123456789"));
    }
}

#[test]
fn a_checkpoint_counts_once_another_host_has_copied_it_and_until_then_the_former_one_stays() {
    let hosts = Hosts::new(Bounds { elsewhere: true, ..ROOMY });
    let setup = hosts.start("a", 1).unwrap();
    let names = ["a", "b", "c"].map(|name| name.parse::<HostName>().unwrap());
    let [a, b, c] = &names;
    hosts.write("a", "file", "first");
    hosts.wait();
    let first = hosts.take("a", "one").number;
    ship::ship_pending(&hosts.work("a"), &setup).unwrap();
    assert!(!hosts.shelf().latest(true).unwrap()[0].counts);
    keep::keep(&hosts.shelf().folder, first, a, b).unwrap();
    hosts.wait();
    hosts.write("a", "second", "more");
    hosts.take("a", "two");
    ship::ship_pending(&hosts.work("a"), &setup).unwrap();
    let latest = hosts.shelf().latest(true).unwrap();
    let counts: Vec<bool> = latest.iter().map(|summary| summary.counts).collect();
    assert_eq!(counts, [false, true], "{latest:?}");
    // The node died with the bytes of the second one.
    std::fs::remove_file(hosts.shelf().objects().join("1.2-0")).unwrap();
    let restored = hosts.start("b", 2).unwrap().restored.unwrap();
    assert_eq!((restored.number, restored.lost.len()), (Some(first), 1), "{restored:?}");
    // From there on the bytes must not lie on the second host alone.
    let number = hosts.take("b", "two").number;
    let setup = setup_of(&hosts.work("b")).unwrap().unwrap();
    ship::ship_pending(&hosts.work("b"), &setup).unwrap();
    let inode =
        |object: &str| std::fs::metadata(hosts.shelf().objects().join(object)).unwrap().ino();
    let before = inode("1.1-0");
    keep::keep(&hosts.shelf().folder, number, b, c).unwrap();
    assert_ne!(inode("1.1-0"), before, "it lay on the job's host");
    // One that counts is waited for.
    std::fs::remove_file(hosts.shelf().objects().join("1.1-0")).unwrap();
    let refused = hosts.start("c", 3).unwrap_err();
    assert!(format!("{refused:#}").contains("checkpoint 2.1 cannot be read"), "{refused:#}");
}

#[test]
fn records_that_cannot_be_read_cost_a_full_copy_and_no_checkpoint() {
    let hosts = Hosts::new(Bounds { elsewhere: true, ..ROOMY });
    let setup = hosts.start("a", 1).unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| name.parse::<HostName>().unwrap());
    hosts.write("a", "file", "first");
    hosts.wait();
    let first = hosts.take("a", "one").number;
    ship::ship_pending(&hosts.work("a"), &setup).unwrap();
    keep::keep(&hosts.shelf().folder, first, &a, &b).unwrap();
    // The node died that had copied it.
    for record in [hosts.shelf().manifest(first), hosts.shelf().kept_file(first)] {
        std::fs::write(record, "").unwrap();
    }
    std::fs::remove_file(hosts.shelf().objects().join("1.1-0")).unwrap();
    let taken = hosts.take("a", "two");
    assert_eq!(taken.changed_files, 1, "what was shipped may be lost");
    ship::ship_pending(&hosts.work("a"), &setup).unwrap();
    keep::keep(&hosts.shelf().folder, taken.number, &a, &c).unwrap();
    let latest = hosts.shelf().latest(true).unwrap();
    assert!(latest[0].counts && latest[0].number == taken.number, "{latest:?}");
}

#[test]
fn paths_of_any_bytes_are_read_back_and_none_leads_out_of_the_area() {
    for bytes in [&b"a/b c"[..], b"100%", b"\xff\xfe/x", "ä\n".as_bytes(), b"%41"] {
        let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
        assert_eq!(decode(&encode(path)).unwrap(), path, "{bytes:?}");
    }
    for outside in ["/etc/passwd", "../x", "a/../../x"] {
        assert!(!is_inside(&decode(outside).unwrap()), "{outside}");
    }
    assert!(decode("%4").is_none() && decode("%zz").is_none());
    for (name, is) in [("1.2-3", true), ("../x", false), ("1.2-/x", false), ("1.2", false)] {
        assert_eq!(is_object(name), is, "{name}");
    }
}
