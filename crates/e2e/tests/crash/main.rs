//! The daemon dies at any moment: what was acknowledged is there, and the file system is clean.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod load;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_e2e::mounted::EVERY_WAY;
use forebay_e2e::{Mounted, Placement, StopOnDrop, Transport, seed, setting};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use load::Writer;

const WRITERS: u64 = 3;
/// Rounds on both paths over both transports together, unless `FOREBAY_E2E_CRASH_ROUNDS` says otherwise.
const ROUNDS: u64 = 50;

/// Points of the daemon at which it can be made to abort while it works.
const FAIL_POINTS: [&str; 8] = [
    "commit.start",
    "commit.published",
    "commit.stored",
    "commit.done",
    "supply.created",
    "reclaim.removed",
    "rename.changed",
    "unlink.changed",
];
/// Points that it passes while it puts things right after a crash.
const RECOVERY_FAIL_POINTS: [&str; 2] = ["recovery.start", "recovery.swept"];

fn writers(grid: &Mounted, seed: u64) -> Vec<Writer> {
    (0..WRITERS).map(|number| Writer::new(&grid.data(), number, seed)).collect()
}

/// Lets the writers and a user of `work` run while `end` runs; `end` makes the daemon die.
fn under_load(grid: &Mounted, writers: &mut [Writer], end: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Stops the load also when `end` panics, or the scope would wait for it for ever.
        let _stop = StopOnDrop(&stop);
        for writer in writers {
            scope.spawn(|| writer.work(&stop));
        }
        scope.spawn(|| storm(&grid.work(), &stop));
        end();
    });
}

/// Temporary files as analytics programs make them, in the scratch fileset.
fn storm(work: &Path, stop: &AtomicBool) {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let path = work.join(format!("temporary-{}", number % 64));
        let written = File::create(&path).and_then(|mut file| file.write_all(&[7; 20_000]));
        if written.and_then(|()| fs::remove_file(&path)).is_err() {
            return;
        }
        number += 1;
    }
}

/// A quarter of all rounds, or what is left of them.
fn rounds(placement: Placement, transport: Transport, quarter: u64) {
    let seed = seed("crash");
    let mut random = StdRng::seed_from_u64(seed);
    let rounds = (setting("FOREBAY_E2E_CRASH_ROUNDS", ROUNDS) + quarter) / 4;
    let grid = Mounted::start_over(placement, transport);
    let mut writers = writers(&grid, seed);
    for round in 0..rounds {
        let pause = Duration::from_millis(random.random_range(20..700));
        under_load(&grid, &mut writers, || {
            std::thread::sleep(pause);
            grid.kill();
        });
        grid.mount();
        for writer in &mut writers {
            writer.check();
        }
        if round % 5 == 4 {
            grid.umount();
            grid.is_clean();
            grid.mount();
        }
    }
    let acknowledged: u64 = writers.iter().map(|writer| writer.acknowledged).sum();
    println!(
        "{rounds} rounds on the {placement:?} path over {transport:?}, {acknowledged} acknowledged fsyncs"
    );
    // A slow disk may have none in a short round.
    assert!(acknowledged > rounds / 4, "the load hardly ran: {acknowledged} fsyncs");
}

#[test]
fn acknowledged_fsyncs_survive_kill_9_on_the_direct_path() {
    rounds(Placement::Direct, Transport::Uring, 0);
}

#[test]
fn acknowledged_fsyncs_survive_kill_9_on_the_served_path() {
    rounds(Placement::Served, Transport::Uring, 1);
}

#[test]
fn acknowledged_fsyncs_survive_kill_9_on_the_direct_path_over_dev() {
    rounds(Placement::Direct, Transport::Dev, 2);
}

#[test]
fn acknowledged_fsyncs_survive_kill_9_on_the_served_path_over_dev() {
    rounds(Placement::Served, Transport::Dev, 3);
}

#[test]
fn a_crash_leaves_a_clean_file_system_before_the_next_mount() {
    let seed = seed("crash");
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::start_over(placement, transport);
        let mut writers = writers(&grid, seed);
        under_load(&grid, &mut writers, || {
            std::thread::sleep(Duration::from_millis(500));
            grid.kill();
        });
        // A mount recovers; fsck must not be needed, and must not be in its way either.
        let found = grid.run_on_root(&["fsck"], &["--repair"]);
        assert!([0, 1].contains(&found.code()), "{found:#?}");
        grid.is_clean();
        grid.mount();
        writers.iter_mut().for_each(Writer::check);
    }
}

/// Runs into one fail point, and checks what is left.
fn abort_at(placement: Placement, transport: Transport, point: &str, passes: u64) {
    let seed = seed("crash");
    let grid = Mounted::start_over(placement, transport);
    let mut writers = writers(&grid, seed);
    grid.umount();
    // A daemon that dies before it serves makes the mount command fail, which is as good.
    if grid.mount_to_fail(point, passes).code() == 0 {
        under_load(&grid, &mut writers, || {
            if let Some(daemon) = grid.daemon() {
                assert!(daemon.ends_within(Duration::from_secs(30)), "{point} is never reached");
            }
        });
    }
    grid.detach();
    grid.mount();
    writers.iter_mut().for_each(Writer::check);
    grid.umount();
    grid.is_clean();
}

#[test]
fn an_abort_at_any_fail_point_loses_nothing_acknowledged() {
    for (index, point) in FAIL_POINTS.into_iter().enumerate() {
        for passes in [0, 5] {
            let (placement, transport) = EVERY_WAY[(2 * index + usize::from(passes > 0)) % 4];
            println!(
                "abort at {point} after {passes} passes, {placement:?} path over {transport:?}"
            );
            abort_at(placement, transport, point, passes);
        }
    }
}

#[test]
fn an_abort_during_recovery_is_recovered_from() {
    let seed = seed("crash");
    for point in RECOVERY_FAIL_POINTS {
        let grid = Mounted::start(Placement::Direct);
        let mut writers = writers(&grid, seed);
        under_load(&grid, &mut writers, || {
            std::thread::sleep(Duration::from_millis(400));
            grid.kill();
        });
        // Recovery goes on behind the mount: the daemon may die before it is usable, or after.
        if grid.mount_to_fail(point, 0).code() == 0
            && let Some(daemon) = grid.daemon()
        {
            assert!(daemon.ends_within(Duration::from_secs(30)), "{point} is never reached");
        }
        grid.detach();
        grid.mount();
        writers.iter_mut().for_each(Writer::check);
    }
}

#[test]
fn a_daemon_that_dies_while_it_mounts_leaves_nothing_that_hangs() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::make_over(placement, transport);
        for passes in (0..128).step_by(4) {
            // The supply of objects starts with the daemon: the passes spread its death over the time
            // of the mount. The command returns when the daemon has gone, with or without success.
            let _ = grid.mount_to_fail("supply.created", passes);
            grid.detach();
        }
        grid.mount();
        fs::write(grid.data().join("file"), "content").expect("writes");
    }
}
