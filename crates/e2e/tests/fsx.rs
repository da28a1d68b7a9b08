//! The file system exerciser `fsx`: random operations on one file, each read compared with what the
//! file must hold.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_e2e::suite::{self, FSX_COMMON, FSX_RARE};
use forebay_e2e::{Mounted, Placement, on_every_way, on_native, seed, setting};

/// Operations of one run, unless `FOREBAY_E2E_FSX_OPERATIONS` says otherwise.
const OPERATIONS: u64 = 25_000;

/// A mapping and the file are one without msync(2); with it the disk sets the pace, not the file system.
const WITHOUT_MSYNC: &str = "nomsyncafterwrite = true\n";

on_every_way!(
    fsx_finds_every_byte_where_it_was_written,
    fsx_finds_every_byte_around_holes_and_copies
);

on_native!(native_served: Served; fsx_finds_every_byte_where_it_was_written, fsx_finds_every_byte_around_holes_and_copies);
on_native!(native_passthrough: Passthrough; fsx_finds_every_byte_where_it_was_written, fsx_finds_every_byte_around_holes_and_copies);

fn fsx_finds_every_byte_where_it_was_written(grid: &Mounted) {
    let operations = setting("FOREBAY_E2E_FSX_OPERATIONS", OPERATIONS);
    exercise(grid, &format!("{WITHOUT_MSYNC}{FSX_COMMON}"), operations);
}

fn fsx_finds_every_byte_around_holes_and_copies(grid: &Mounted) {
    let operations = setting("FOREBAY_E2E_FSX_OPERATIONS", OPERATIONS) / 5;
    exercise(grid, &format!("{FSX_COMMON}{FSX_RARE}"), operations);
}

/// With units of 64 KiB, so that the file lies on all disks.
#[test]
fn fsx_finds_every_byte_of_a_striped_file() {
    for placement in [Placement::Direct, Placement::Served] {
        let grid = Mounted::start(placement);
        for name in ["second", "third"] {
            let folder = grid.outside().join(name);
            fs::create_dir(&folder).expect("makes a folder");
            let folder = folder.to_str().expect("is UTF-8");
            grid.run_on_root(&["disk", "add"], &[folder, "--pool", "below"]).succeeds();
        }
        let stripe = ["--over", "below", "--unit", "64KiB", "--pool", "wide"];
        grid.run_on_root(&["disk", "stripe"], &stripe).succeeds();
        grid.run_on_root(&["fileset", "set"], &["data", "--pool", "wide"]).succeeds();
        let operations = setting("FOREBAY_E2E_FSX_OPERATIONS", OPERATIONS) / 10;
        for (name, configuration) in [
            ("common", format!("{WITHOUT_MSYNC}{FSX_COMMON}")),
            ("rare", format!("{FSX_COMMON}{FSX_RARE}")),
        ] {
            exercise_file(&grid, &grid.data().join(name), &configuration, operations);
        }
        grid.umount();
        grid.is_clean();
    }
}

fn exercise(grid: &Mounted, configuration: &str, operations: u64) {
    exercise_file(grid, &grid.work().join("exercised"), configuration, operations);
}

fn exercise_file(grid: &Mounted, file: &Path, configuration: &str, operations: u64) {
    let seed = seed("fsx");
    let settings = grid.outside().join("fsx.toml");
    fs::write(&settings, configuration).expect("writes the settings");
    let limit = Duration::from_millis(120_000 + operations * 5);
    suite::exercise(&settings, grid.outside(), file, operations, seed, limit);
}
