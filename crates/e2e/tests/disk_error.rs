//! A disk that fails: the error reaches the program, the daemon lives, status shows it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_e2e::content::pattern;
use forebay_e2e::{LoopDisk, Mounted, Placement};
use rustix::io::Errno;

const FILES: u64 = 24;
const FILE_BYTES: usize = 4 << 20;
const DISK_MIB: u64 = 200;

/// The second half of a disk, taken away: reads of it give EIO.
struct MissingHalf<'a> {
    image: &'a Path,
    bytes: Vec<u8>,
}

impl MissingHalf<'_> {
    fn take(image: &Path) -> MissingHalf<'_> {
        let half = (DISK_MIB << 20) / 2;
        let mut file = OpenOptions::new().read(true).write(true).open(image).expect("opens");
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(half)).expect("seeks");
        file.read_to_end(&mut bytes).expect("reads");
        file.set_len(half).expect("truncates");
        MissingHalf { image, bytes }
    }
}

impl Drop for MissingHalf<'_> {
    fn drop(&mut self) {
        // The loop device may have made the file longer meanwhile.
        let half = (DISK_MIB << 20) / 2;
        let file = OpenOptions::new().write(true).open(self.image);
        let restored = file.and_then(|file| file.write_all_at(&self.bytes, half));
        assert!(restored.is_ok() || std::thread::panicking(), "{restored:?}");
    }
}

fn a_bad_disk_fails_its_readers_alone(placement: Placement) {
    let disk = LoopDisk::make("ext4", DISK_MIB);
    let grid = Mounted::plan(placement, None, None);
    let place = disk.path().join("forebay");
    fs::create_dir(&place).expect("makes a directory");
    grid.run_on_root(
        &["mkfs"],
        &["--work-placement", "direct", "--disk", place.to_str().expect("plain path")],
    )
    .succeeds();
    grid.mount();
    for number in 0..FILES {
        let path = grid.data().join(format!("file-{number}"));
        fs::write(&path, pattern(number, FILE_BYTES)).expect("writes");
        File::open(&path).and_then(|file| file.sync_all()).expect("syncs");
    }
    // Nothing may come from a cache, and what the disk needs to be used at all must be in memory.
    grid.umount();
    disk.remount();
    grid.expect_log("Input/output error");
    grid.expect_log("os error 5");
    grid.mount();
    for number in 0..FILES {
        fs::metadata(grid.data().join(format!("file-{number}"))).expect("stats");
        File::open(grid.data().join(format!("file-{number}"))).expect("opens");
    }

    let missing = MissingHalf::take(disk.image());
    let (mut whole, mut failed) = (0, 0);
    for number in 0..FILES {
        match fs::read(grid.data().join(format!("file-{number}"))) {
            Ok(bytes) => {
                assert!(bytes == pattern(number, FILE_BYTES), "file {number} holds other bytes");
                whole += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "file {number}");
                failed += 1;
            }
        }
    }
    assert!(whole > 0 && failed > 0, "{whole} files are whole, {failed} failed");
    assert!(grid.daemon().is_some(), "the daemon lives");
    assert_eq!(fs::read_dir(grid.data()).expect("lists").count() as u64, FILES);
    let status = grid.run_on_root(&["status"], &["--json"]).output();
    let status: serde_json::Value = serde_json::from_str(&status).expect("is JSON");
    // On the direct path the kernel reads: the daemon does not hear of it.
    if placement == Placement::Served {
        let disk = &status["disks"][0];
        assert!(disk["errors"].as_u64().is_some_and(|errors| errors > 0), "{disk:#}");
        assert!(disk["last_error"].is_string(), "{disk:#}");
    }

    // The disk is well again: so are the files.
    drop(missing);
    for number in 0..FILES {
        let bytes = fs::read(grid.data().join(format!("file-{number}"))).expect("reads again");
        assert!(bytes == pattern(number, FILE_BYTES), "file {number} holds other bytes");
    }
}

#[test]
fn a_bad_disk_fails_its_readers_alone_on_the_direct_path() {
    a_bad_disk_fails_its_readers_alone(Placement::Direct);
}

#[test]
fn a_bad_disk_fails_its_readers_alone_on_the_served_path() {
    a_bad_disk_fails_its_readers_alone(Placement::Served);
}
