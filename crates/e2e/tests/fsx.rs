//! The file system exerciser `fsx`: random operations on one file, each read compared with what the
//! file must hold.

use std::fs;
use std::time::Duration;

use forebay_e2e::{Grid, need, on_every_way, on_native, run, setting};

/// Operations of one run, unless `FOREBAY_E2E_FSX_OPERATIONS` says otherwise.
const OPERATIONS: u64 = 100_000;

/// What every program does: read, write, map, truncate, reopen, sync.
const COMMON: &str = "
flen = 262144

[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 0.1
fdatasync = 0.1
";

/// A mapping and the file are one without msync(2); with it the disk sets the pace, not the file system.
const WITHOUT_MSYNC: &str = "nomsyncafterwrite = true\n";

/// What makes holes, moves bytes within the kernel and plays with its caches.
const RARE: &str = "
posix_fallocate = 3
punch_hole = 5
sendfile = 5
posix_fadvise = 2
copy_file_range = 5
";

on_every_way!(
    fsx_finds_every_byte_where_it_was_written,
    fsx_finds_every_byte_around_holes_and_copies
);

on_native!(native_served: Served; fsx_finds_every_byte_where_it_was_written, fsx_finds_every_byte_around_holes_and_copies);
on_native!(native_passthrough: Passthrough; fsx_finds_every_byte_where_it_was_written, fsx_finds_every_byte_around_holes_and_copies);

fn fsx_finds_every_byte_where_it_was_written(grid: &Grid) {
    let operations = setting("FOREBAY_E2E_FSX_OPERATIONS", OPERATIONS);
    exercise(grid, &format!("{WITHOUT_MSYNC}{COMMON}"), operations);
}

fn fsx_finds_every_byte_around_holes_and_copies(grid: &Grid) {
    let operations = setting("FOREBAY_E2E_FSX_OPERATIONS", OPERATIONS) / 5;
    exercise(grid, &format!("{COMMON}{RARE}"), operations);
}

fn exercise(grid: &Grid, configuration: &str, operations: u64) {
    let seed = setting("FOREBAY_E2E_SEED", 1_903_117);
    println!("fsx seed {seed}; to repeat: FOREBAY_E2E_SEED={seed} and this test");
    let settings = grid.outside().join("fsx.toml");
    fs::write(&settings, configuration).expect("writes the settings");
    let ended = run(
        need::program("fsx")
            .arg("-f")
            .arg(&settings)
            .args(["-N", &operations.to_string(), "-S", &seed.to_string()])
            .arg("-P")
            .arg(grid.outside())
            .arg(grid.work().join("exercised")),
        Duration::from_millis(120_000 + operations * 5),
    );
    assert_eq!(ended.code(), 0, "fsx with seed {seed}: {ended:#?}");
    assert!(ended.stdout.contains("A-OK") || ended.stderr.contains("A-OK"), "{ended:#?}");
}
