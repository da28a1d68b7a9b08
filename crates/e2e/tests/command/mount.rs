//! `forebay mount` and `forebay umount`.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use forebay_e2e::{
    LoopDisk, Mounted, Placement, copy_program, need, on_every_way, run, wait_until,
};
use rustix::process::Signal;

use crate::assert_says;

const LIMIT: Duration = Duration::from_secs(120);

on_every_way!(
    a_second_mount_is_refused_and_harms_nothing,
    umount_refuses_while_files_are_open,
    a_signal_unmounts_in_order,
    the_mount_comes_back_with_everything,
);

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("plain path")
}

fn a_second_mount_is_refused_and_harms_nothing(grid: &Mounted) {
    fs::write(grid.data().join("file"), "content").expect("writes");
    let second = grid.outside().join("second");
    fs::create_dir(&second).expect("makes a directory");
    for place in [second, grid.mountpoint()] {
        let message = grid.run_on_root(&["mount"], &[text(&place)]).refused();
        assert_says(&message, &[text(grid.root()), text(&grid.mountpoint())]);
    }
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
    assert!(grid.daemon().is_some(), "the first daemon lives");
}

fn umount_refuses_while_files_are_open(grid: &Mounted) {
    let mut file = File::create(grid.data().join("file")).expect("creates");
    let message = grid.run(&["umount", text(&grid.mountpoint())]).refused();
    assert_says(&message, &[text(&grid.mountpoint())]);
    file.write_all(b"still works").expect("writes");
    drop(file);
    grid.umount();
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"still works");
}

fn a_signal_unmounts_in_order(grid: &Mounted) {
    for (round, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let path = grid.work().join(format!("file-{round}"));
        fs::write(&path, "not synced").expect("writes");
        let daemon = grid.daemon().expect("the daemon runs");
        daemon.signal(signal);
        assert!(daemon.ends_within(LIMIT), "the daemon ignores {signal:?}");
        assert!(!forebay_e2e::mounted::is_mounted(&grid.mountpoint()), "still mounted");
        grid.is_clean();
        grid.mount();
        assert_eq!(fs::read(&path).expect("reads"), b"not synced");
    }
}

fn the_mount_comes_back_with_everything(grid: &Mounted) {
    for round in 0..5 {
        for (name, folder) in [("data", grid.data()), ("work", grid.work())] {
            fs::write(folder.join(format!("{name}-{round}")), name).expect("writes");
        }
        grid.remount();
        for earlier in 0..=round {
            for (name, folder) in [("data", grid.data()), ("work", grid.work())] {
                let content = fs::read_to_string(folder.join(format!("{name}-{earlier}")));
                assert_eq!(content.expect("reads"), name);
            }
        }
    }
}

#[test]
fn a_mount_waits_for_a_daemon_that_is_ending() {
    let grid = Mounted::start(Placement::Direct);
    let file = File::create(grid.data().join("file")).expect("creates");
    grid.run(&["umount", "--lazy", text(&grid.mountpoint())]).succeeds();
    let said = grid.outside().join("said");
    let mut command = grid.mount_command();
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&said).expect("creates"));
    let mut mount = command.spawn().expect("starts");
    let says = || fs::read_to_string(&said).expect("reads");
    wait_until("it says what it waits for", LIMIT, || says().contains("waiting for the daemon"));
    assert!(mount.try_wait().expect("waits").is_none(), "it does not wait: {}", says());
    // The daemon ends with the last user of its mount.
    drop(file);
    let mut status = None;
    wait_until("the command ends", LIMIT, || {
        status = mount.try_wait().expect("waits");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", says());
    assert!(grid.data().join("file").exists());
    // And without a word where the kernel unmounts.
    for _ in 0..5 {
        let daemon = grid.daemon().expect("the daemon runs");
        run(need::program("umount").arg(grid.mountpoint()), LIMIT).succeeds();
        grid.mount();
        assert!(daemon.ends_within(LIMIT), "the daemon goes on");
    }
}

#[test]
fn a_mount_on_the_served_path_names_what_asked_for_it() {
    let grid = Mounted::make(Placement::Served);
    let message = run(&mut grid.mount_command(), LIMIT).expect_code(0).stderr;
    assert_says(&message, &["--served"]);
    assert!(!message.contains("setting"), "{message}");
    grid.umount();
    grid.add_settings("direct = false");
    let mut plain = grid.forebay(&["mount"]);
    let message = run(plain.arg(grid.root()).arg(grid.mountpoint()), LIMIT).expect_code(0).stderr;
    assert_says(&message, &["the setting \"direct\""]);
}

#[test]
fn mount_refuses_places_that_cannot_be() {
    let grid = Mounted::make(Placement::Direct);
    let file = grid.outside().join("file");
    let missing = grid.outside().join("missing");
    fs::write(&file, "content").expect("writes");
    for place in [&missing, &file] {
        let message = grid.run_on_root(&["mount"], &[text(place)]).refused();
        assert_says(&message, &[text(place)]);
    }
    assert!(grid.daemon().is_none(), "no daemon is left behind");
    let message = grid.run(&["mount", text(&missing), text(&grid.mountpoint())]).refused();
    assert_says(&message, &[text(&missing)]);
    let message = grid.run(&["mount", text(grid.outside()), text(&grid.mountpoint())]).refused();
    assert_says(&message, &[text(grid.outside())]);
    grid.mount();
}

#[test]
fn a_mount_without_its_disk_refuses_files_and_uses_no_other_in_its_place() {
    let grid = Mounted::plan(Placement::Direct, None, None);
    grid.expect_log("a disk is not there");
    let disk = grid.outside().join("disk");
    let away = grid.outside().join("away");
    fs::create_dir(&disk).expect("makes a directory");
    grid.run_on_root(&["mkfs"], &["--work-placement", "direct", "--disk", text(&disk)]).succeeds();
    grid.mount();
    fs::write(grid.data().join("file"), "content").expect("writes");
    grid.umount();
    fs::rename(&disk, &away).expect("takes the disk away");
    let is_refused = || {
        grid.mount();
        let found = fs::read(grid.data().join("file")).expect_err("its disk is not there");
        assert_eq!(found.raw_os_error(), Some(libc::ENXIO), "{found}");
        let made = fs::write(grid.data().join("new"), "content").expect_err("there is no disk");
        assert_eq!(made.raw_os_error(), Some(libc::ENXIO), "{made}");
        let status = grid.run_on_root(&["status"], &[]).output();
        assert_says(&status, &[text(&disk), "is not there"]);
        grid.umount();
    };
    is_refused();

    // An empty folder in its place, or the disk of another file system, is not the disk.
    fs::create_dir(&disk).expect("makes a directory");
    is_refused();
    fs::remove_dir(&disk).expect("removes");
    let other = Mounted::make(Placement::Direct);
    let foreign =
        run(need::program("cp").arg("-a").arg(other.root().join("disk")).arg(&disk), LIMIT);
    foreign.succeeds();
    is_refused();
    fs::remove_dir_all(&disk).expect("removes");
    fs::rename(&away, &disk).expect("brings the disk back");
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}

#[test]
fn umount_refuses_while_something_cannot_be_committed() {
    const NAMES: usize = 10_000;
    let disk = LoopDisk::make("ext4", 100);
    let grid = Mounted::make_in(&disk.path(), Placement::Direct);
    grid.expect_log("No space left");
    grid.expect_log("no space left");
    grid.expect_log("the reserve was used");
    // No commit but those that umount asks for.
    grid.add_settings("commit_interval = \"60s\"\nstore_reserve = \"0\"");
    grid.mount();
    for number in 0..NAMES {
        let target = format!("where file {number} would be if there were room for it");
        std::os::unix::fs::symlink(target, grid.data().join(number.to_string())).expect("links");
    }
    let filler = disk.path().join("filler");
    let mut file = File::create(&filler).expect("creates");
    for piece in [1 << 20, 4096] {
        while file.write_all(&vec![1; piece]).is_ok() {}
    }
    let message = grid.run(&["umount", text(&grid.mountpoint())]).refused();
    assert_says(&message, &[text(&grid.mountpoint()), "space", "--lazy"]);
    assert!(forebay_e2e::mounted::is_mounted(&grid.mountpoint()), "it was unmounted all the same");
    drop(file);
    fs::remove_file(&filler).expect("removes");
    // The first sync of a disk that was full reports, once, what could not be written to it then, such as a part of the filler.
    let first = grid.run(&["umount", text(&grid.mountpoint())]);
    match first.status.success() {
        true => grid.mount(),
        false => {
            assert_says(&first.refused(), &["space"]);
            grid.remount();
        }
    }
    assert_eq!(fs::read_dir(grid.data()).expect("lists").count(), NAMES);
}

#[test]
fn umount_fails_if_the_daemon_does_not_end_in_order() {
    let grid = Mounted::make(Placement::Direct);
    grid.mount_to_fail("close.synced", 0).succeeds();
    fs::write(grid.data().join("file"), "content").expect("writes");
    let message = grid.run(&["umount", text(&grid.mountpoint())]).refused();
    assert_says(&message, &[text(grid.root()), "forebay.log"]);
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}

#[test]
fn umount_names_who_keeps_the_mount_in_a_mount_namespace_of_its_own() {
    let grid = Mounted::start(Placement::Direct);
    fs::write(grid.data().join("file"), "content").expect("writes");
    let mut unshare = need::program("unshare");
    unshare.args(["--mount", "--propagation", "private", "sleep", "600"]);
    let mut sleep = unshare.spawn().expect("starts");
    let comm = format!("/proc/{}/comm", sleep.id());
    wait_until("it has its namespace", LIMIT, || {
        fs::read_to_string(&comm).expect("reads").trim() == "sleep"
    });
    let daemon = grid.daemon().expect("the daemon runs");
    let ended = grid.run(&["umount", "--timeout", "5", text(&grid.mountpoint())]);
    let namespace = format!("in the mount namespace of sleep ({})", sleep.id());
    sleep.kill().expect("ends it");
    sleep.wait().expect("waits");
    assert_says(&ended.refused(), &["still running after 5 s", &namespace]);
    assert!(daemon.ends_within(LIMIT), "the daemon goes on");
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}

#[test]
fn umount_refuses_what_is_not_mounted() {
    let grid = Mounted::make(Placement::Direct);
    for place in [grid.mountpoint(), grid.outside().join("missing")] {
        assert_says(&grid.run(&["umount", text(&place)]).refused(), &[text(&place)]);
    }
}

#[test]
fn umount_does_not_touch_other_file_systems() {
    let grid = Mounted::make(Placement::Direct);
    let place = grid.mountpoint();
    run(need::program("mount").args(["-t", "tmpfs", "none"]).arg(&place), LIMIT).succeeds();
    let refused = grid.run(&["umount", text(&place)]);
    let still_mounted = forebay_e2e::mounted::is_mounted(&place);
    let _ = run(need::program("umount").arg(&place), LIMIT);
    assert_says(&refused.refused(), &[text(&place)]);
    assert!(still_mounted, "umount took away another file system");
}

#[test]
fn a_mount_in_the_foreground_ends_with_its_signal() {
    let grid = Mounted::make(Placement::Direct);
    let mut command = grid.mount_command();
    command.arg("--foreground").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("starts");
    wait_until("the mount is there", LIMIT, || grid.data().is_dir());
    fs::write(grid.data().join("file"), "content").expect("writes");
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("has a pid"), Signal::INT).expect("sends a signal");
    let mut status = None;
    wait_until("the command ends", LIMIT, || {
        status = child.try_wait().expect("waits");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}

#[test]
fn a_mount_in_the_foreground_outlives_its_terminal_long_enough_to_unmount() {
    let grid = Mounted::make(Placement::Direct);
    let mut command = grid.mount_command();
    command.arg("--foreground").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The test itself may run under nohup, which a mount would respect.
    // SAFETY: the default of a signal is always sound, and the call is safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
    let mut child = command.spawn().expect("starts");
    wait_until("the mount is there", LIMIT, || grid.data().is_dir());
    fs::write(grid.data().join("file"), "content").expect("writes");
    // What it says from now on reaches nobody.
    drop((child.stdout.take(), child.stderr.take()));
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("has a pid"), Signal::HUP).expect("sends a signal");
    let mut status = None;
    wait_until("the command ends", LIMIT, || {
        status = child.try_wait().expect("waits");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    grid.is_clean();
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}

#[test]
fn a_daemon_whose_program_was_replaced_unmounts_at_a_signal() {
    let grid = Mounted::make(Placement::Direct);
    let program = grid.outside().join("forebay");
    copy_program(&need::forebay(), &program);
    let mount = run(
        std::process::Command::new(&program).arg("mount").arg(grid.root()).arg(grid.mountpoint()),
        LIMIT,
    );
    mount.succeeds();
    fs::write(grid.data().join("file"), "content").expect("writes");
    fs::remove_file(&program).expect("removes");
    fs::write(&program, "another program").expect("writes");
    let daemon = grid.daemon().expect("the daemon runs");
    daemon.signal(Signal::TERM);
    assert!(daemon.ends_within(LIMIT), "the daemon goes on");
    grid.is_clean();
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}

#[test]
fn a_dead_mount_is_cleared_also_through_a_link() {
    let grid = Mounted::start(Placement::Direct);
    let link = grid.outside().join("link");
    std::os::unix::fs::symlink(grid.mountpoint(), &link).expect("links");
    grid.daemon().expect("the daemon runs").kill();
    grid.run_on_root(&["mount"], &[text(&link)]).succeeds();
    fs::write(grid.data().join("file"), "content").expect("writes");
}

#[test]
fn the_next_mount_takes_the_place_of_a_dead_one() {
    let grid = Mounted::start(Placement::Direct);
    fs::write(grid.data().join("file"), "content").expect("writes");
    File::open(grid.data().join("file")).and_then(|file| file.sync_all()).expect("syncs");
    grid.daemon().expect("the daemon runs").kill();
    assert!(fs::read(grid.data().join("file")).is_err(), "a dead mount serves nothing");
    // `forebay umount` clears what the dead daemon has left.
    grid.umount();
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}
