//! A fileset can change between the direct and the served path at any time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use forebay_e2e::content::{assert_same, pattern, read_at};
use forebay_e2e::{Mounted, Placement, seed};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rustix::fs::OFlags;

use crate::{open_rw, open_with};

fn place(grid: &Mounted, placement: &str) {
    grid.run_on_root(&["fileset", "set"], &["data", "--placement", placement]).succeeds();
}

#[test]
fn a_change_of_placement_keeps_every_byte() {
    let grid = Mounted::start(Placement::Direct);
    let path = grid.data().join("file");
    let held_path = grid.data().join("held");
    fs::write(&path, pattern(0, 500_000)).expect("writes");
    let held = open_rw(&held_path);
    held.write_all_at(&pattern(1, 500_000), 0).expect("writes");

    for (round, placement) in ["served", "direct", "served", "direct"].into_iter().enumerate() {
        let seed = round as u64;
        place(&grid, placement);
        assert_same(&fs::read(&path).expect("reads"), &pattern(seed, 500_000), placement);
        fs::write(&path, pattern(seed + 1, 500_000)).expect("writes");

        // A file that stays open across the change is the same one for those who open it later.
        let late = open_rw(&held_path);
        assert_same(&read_at(&late, 0, 500_000), &pattern(seed + 1, 500_000), placement);
        late.write_all_at(&pattern(seed + 2, 250_000), 0).expect("writes");
        assert_same(&read_at(&held, 0, 250_000), &pattern(seed + 2, 250_000), placement);
        held.write_all_at(&pattern(seed + 2, 500_000)[250_000..], 250_000).expect("writes");
        assert_same(&read_at(&late, 0, 500_000), &pattern(seed + 2, 500_000), placement);
    }
    drop(held);
    grid.remount();
    assert_same(&fs::read(&path).expect("reads"), &pattern(4, 500_000), "after a remount");
    assert_same(&fs::read(&held_path).expect("reads"), &pattern(5, 500_000), "after a remount");
}

/// A file and what it must hold.
struct Tracked {
    path: std::path::PathBuf,
    content: Vec<u8>,
    handles: Vec<File>,
}

const LENGTH_MAX: usize = 300_000;

impl Tracked {
    fn step(&mut self, random: &mut StdRng, seed: u64) {
        let at = random.random_range(0..LENGTH_MAX);
        let length = random.random_range(0..LENGTH_MAX - at);
        let handle = match self.handles.last() {
            Some(handle) => handle.try_clone().expect("duplicates a handle"),
            None => open_rw(&self.path),
        };
        match random.random_range(0..10) {
            0..=2 => {
                let bytes = pattern(seed, length);
                handle.write_all_at(&bytes, at as u64).expect("writes");
                self.content.resize(self.content.len().max(at + length), 0);
                self.content[at..at + length].copy_from_slice(&bytes);
            }
            3 => {
                handle.set_len(at as u64).expect("truncates");
                self.content.resize(at, 0);
            }
            4 => {
                drop(open_with(&self.path, OFlags::RDWR | OFlags::TRUNC).expect("opens"));
                self.content.clear();
            }
            5 => self.handles.push(open_rw(&self.path)),
            6 => self.handles.clear(),
            7 => {
                self.content = pattern(seed, length);
                let next = self.path.with_extension("next");
                fs::write(&next, &self.content).expect("writes");
                fs::rename(&next, &self.path).expect("renames");
                self.handles.clear();
            }
            _ => {}
        }
    }

    fn check(&self, what: &str) {
        assert_same(&fs::read(&self.path).expect("reads"), &self.content, what);
        for handle in &self.handles {
            assert_eq!(
                handle.metadata().expect("stats").len(),
                self.content.len() as u64,
                "{what}"
            );
            assert_same(&read_at(handle, 0, self.content.len()), &self.content, what);
        }
    }
}

#[test]
fn random_use_with_changes_of_placement_mixes_no_data() {
    let mut random = StdRng::seed_from_u64(seed("posix"));
    let grid = Mounted::start(Placement::Direct);
    let mut files: Vec<Tracked> = (0..4)
        .map(|index| {
            let path = grid.data().join(format!("file-{index}"));
            drop(open_rw(&path));
            Tracked { path, content: Vec::new(), handles: Vec::new() }
        })
        .collect();
    for round in 0..600_u64 {
        let file = random.random_range(0..files.len());
        files[file].step(&mut random, round);
        files[file].check(&format!("round {round}, file {file}"));
        if round % 20 == 19 {
            let placement = if random.random() { "direct" } else { "served" };
            place(&grid, placement);
            for file in &files {
                file.check(&format!("round {round}, now {placement}"));
            }
        }
        if round % 150 == 149 {
            for file in &mut files {
                file.handles.clear();
            }
            grid.remount();
            for file in &files {
                file.check(&format!("round {round}, remounted"));
            }
        }
    }
}
