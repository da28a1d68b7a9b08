//! `forebay disk stripe`.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use forebay_e2e::{Mounted, Placement};
use serde_json::Value;

use crate::{assert_says, json};

const MIB: usize = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

/// Two disks in a pool of their own.
fn add_members(grid: &Mounted) -> [PathBuf; 2] {
    ["second", "third"].map(|name| {
        let folder = grid.outside().join(name);
        fs::create_dir(&folder).expect("makes a folder");
        grid.run_on_root(&["disk", "add"], &[text(&folder), "--pool", "flash"]).succeeds();
        folder
    })
}

/// Bytes of the parts that lie on a disk.
fn bytes_of_parts(disk: &Path) -> u64 {
    let mut folders = vec![disk.join("striped")];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let about = entry.metadata().expect("stats");
            let is_object = entry.path().to_string_lossy().contains("/objects/");
            match about.is_dir() {
                true => folders.push(entry.path()),
                false if is_object => bytes += about.len(),
                false => {}
            }
        }
    }
    bytes
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 % 251) as u8).collect()
}

fn place_of(grid: &Mounted, path: &Path) -> Value {
    json(&grid.run(&["where", text(path), "--json"]).output())["files"][0].clone()
}

fn stripe_and_use(placement: Placement) {
    let grid = Mounted::start(placement);
    let members = add_members(&grid);
    let none =
        grid.run_on_root(&["disk", "stripe"], &["--over", "tape", "--pool", "wide"]).refused();
    assert_says(&none, &["tape", "no disk"]);
    let one =
        grid.run_on_root(&["disk", "stripe"], &[text(&members[0]), "--pool", "wide"]).refused();
    assert_says(&one, &["2 to 64 disks"]);
    let unit = ["--over", "flash", "--unit", "1 KiB", "--pool", "wide"];
    assert_says(&grid.run_on_root(&["disk", "stripe"], &unit).refused(), &["--unit", "64KiB"]);
    let wide = ["--over", "flash", "--unit", "64KiB", "--pool", "wide"];
    grid.run_on_root(&["disk", "stripe"], &wide).succeeds();
    assert_says(&grid.run_on_root(&["disk", "list"], &[]).output(), &["striped over", "wide"]);

    let data = grid.data();
    let (big, small) = (data.join("big"), data.join("small"));
    let mut content = bytes(9 * MIB + 12_345);
    fs::write(&big, &content).expect("writes");
    fs::write(&small, bytes(5000)).expect("writes");
    let rules = grid.outside().join("rules.toml");
    let large = "[[migrate]]\nname = 'large'\nfrom = 'default'\nto = 'wide'\nlarger = '1 MiB'\n";
    fs::write(&rules, large).expect("writes");
    grid.run_on_root(&["policy", "apply"], &[text(&rules)]).succeeds();
    forebay_e2e::wait_until(
        "the policy has moved the file",
        std::time::Duration::from_secs(60),
        || {
            // The kernel reports the close after the program has gone on.
            grid.run_on_root(&["policy", "run"], &["--wait"]).succeeds();
            place_of(&grid, &big)["pool"] == "wide"
        },
    );
    let place = place_of(&grid, &big);
    assert_eq!(place["stripe_unit_bytes"], 65_536, "{place}");
    assert_eq!(place["stripes"].as_array().map(Vec::len), Some(2), "{place}");
    assert_eq!(place_of(&grid, &small)["pool"], "default");
    let parts = members.each_ref().map(|member| bytes_of_parts(member));
    assert_eq!(parts[0] + parts[1], content.len() as u64);
    assert!(parts[0].abs_diff(parts[1]) <= 65_536, "{parts:?}");
    assert!(fs::read(&big).expect("reads") == content);

    // It is changed where it lies.
    let file = fs::OpenOptions::new().read(true).write(true).open(&big).expect("opens");
    file.write_all_at(&[255; 200_000], 100_000).expect("writes");
    content[100_000..300_000].fill(255);
    file.sync_all().expect("syncs");
    let mut found = vec![0; 500_000];
    file.read_exact_at(&mut found, 0).expect("reads");
    assert!(found == content[..500_000]);
    file.set_len(4_000_000).expect("truncates");
    content.truncate(4_000_000);
    drop(file);
    assert_eq!(place_of(&grid, &big)["pool"], "wide");
    grid.remount();
    assert!(fs::read(&big).expect("reads") == content);
    grid.kill();
    grid.detach();
    grid.mount();
    assert!(fs::read(&big).expect("reads") == content);

    let below = grid.run_on_root(&["disk", "drain"], &[text(&members[0])]).refused();
    assert_says(&below, &["striped disk", "lies over it"]);
    let disks = json(&grid.run_on_root(&["disk", "list"], &["--json"]).output());
    let striped =
        disks.as_array().expect("is a list").iter().find(|disk| disk["kind"] == "striped");
    let id = striped.expect("is listed")["uuid"].as_str().expect("is a text").to_owned();
    grid.run_on_root(&["disk", "drain"], &[&id, "--to", "default", "--wait"]).succeeds();
    assert_eq!(place_of(&grid, &big)["pool"], "default");
    assert!(fs::read(&big).expect("reads") == content);
    grid.run_on_root(&["disk", "remove"], &[&id]).succeeds();
    assert!(members.iter().all(|member| !member.join("striped").exists()));
    grid.run_on_root(&["disk", "drain"], &[text(&members[0]), "--wait"]).succeeds();
    grid.run_on_root(&["disk", "remove"], &[text(&members[0])]).succeeds();
    grid.umount();
    grid.is_clean();
}

#[test]
fn large_files_are_striped_by_a_policy_and_written_in_place() {
    stripe_and_use(Placement::Direct);
}

#[test]
fn large_files_are_striped_on_the_served_path_too() {
    stripe_and_use(Placement::Served);
}

#[test]
fn a_striped_disk_is_not_there_if_one_below_is_not() {
    let grid = Mounted::start(Placement::Direct);
    let members = add_members(&grid);
    let wide = ["--over", "flash", "--pool", "wide"];
    grid.run_on_root(&["disk", "stripe"], &wide).succeeds();
    grid.run_on_root(&["fileset", "set"], &["data", "--pool", "wide"]).succeeds();
    let file = grid.data().join("file");
    fs::write(&file, bytes(3 * MIB)).expect("writes");
    grid.umount();
    let aside = grid.outside().join("aside");
    fs::rename(members[1].join("striped"), &aside).expect("hides a part");
    grid.expect_log("a disk is not there");
    grid.mount();
    fs::read(&file).expect_err("half of its bytes are not there");
    assert_says(&grid.run_on_root(&["disk", "list"], &[]).output(), &["absent"]);
    grid.umount();
    fs::rename(&aside, members[1].join("striped")).expect("brings it back");
    grid.mount();
    assert!(fs::read(&file).expect("reads") == bytes(3 * MIB));
    grid.umount();
    grid.is_clean();
}
