//! Archives: `forebay disk add` with an address, `migrate`, `recall`, `where` and `fsck --archive`, in a directory and in a real
//! S3 service that is killed in between.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use forebay_e2e::{Mounted, Placement, s3};

use crate::{assert_says, json};

/// Longer than anything of a test takes.
const LONG: Duration = Duration::from_secs(180);

#[track_caller]
fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    forebay_e2e::wait_until(what, LONG, holds);
}

/// Content that can be compressed, but not to nothing.
fn content(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed;
    (0..length)
        .map(|at| {
            if at % 4 == 0 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            }
            (state >> 24) as u8
        })
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

/// Whether a file lies in an archive.
fn is_archived(grid: &Mounted, path: &Path) -> bool {
    let found = json(&grid.run(&["where", text(path), "--json"]).output());
    found["files"][0]["is_archived"].as_bool().expect("is known")
}

/// Files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Whether a file lies here, in an archive, or both.
fn state_of(grid: &Mounted, path: &Path) -> String {
    let found = json(&grid.run(&["where", text(path), "--json"]).output());
    found["files"][0]["state"].as_str().expect("is known").to_owned()
}

#[test]
fn a_file_is_premigrated_seen_by_commands_and_evicted_while_its_archive_is_gone() {
    let grid = Mounted::start(Placement::Direct);
    let cold = grid.outside().join("cold");
    fs::create_dir(&cold).expect("makes a folder");
    let address = format!("file://{}", cold.display());
    grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).succeeds();
    let (kept, written) = (grid.data().join("kept"), grid.data().join("written"));
    let bytes = content(3, 500_000);
    for path in [&kept, &written] {
        fs::write(path, &bytes).expect("writes");
    }

    let refused = grid.run(&["migrate", text(&kept), "--to", "default", "--premigrate"]).refused();
    assert_says(&refused, &["\"default\" is not made of archives", "forebay disk list"]);
    let premigrate = |path: &Path| {
        wait_until("it is at rest", || {
            grid.run(&["migrate", text(path), "--to", "archive", "--premigrate"]).code() == 0
        });
        assert_eq!(state_of(&grid, path), "premigrated");
    };
    premigrate(&kept);
    premigrate(&written);
    assert_says(&grid.run(&["where", text(&kept)]).output(), &["premigrated", &address]);
    let space = json(&grid.run(&["space", text(&grid.mountpoint()), "--json"]).output());
    assert_eq!(space["archives"][0]["premigrated_files"].as_u64(), Some(2), "{space}");
    let rows = grid.run(&["space", text(&grid.mountpoint())]).output();
    assert_says(&rows, &["2 more files", "evicting them frees"]);
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &["2 premigrated files", "take"]);
    let scrubbed = grid.run_on_root(&["scrub"], &["--archives", "--wait", "--json"]).output();
    assert_eq!(json(&scrubbed)["progress"]["files"].as_u64(), Some(2), "{scrubbed}");

    let objects = || files_below(&cold.join("objects")).len();
    let file = fs::OpenOptions::new().append(true).open(&written);
    file.and_then(|mut file| file.write_all(b"more")).expect("appends");
    assert_eq!(state_of(&grid, &written), "resident");
    wait_until("what was written has no object in the archive", || objects() == 1);

    assert_eq!(fs::read(&kept).expect("reads"), bytes);
    let gone = grid.outside().join("gone");
    fs::rename(&cold, &gone).expect("takes the archive away");
    wait_until("it is at rest", || {
        grid.run(&["migrate", text(&kept), "--to", "archive"]).code() == 0
    });
    assert_eq!(state_of(&grid, &kept), "migrated");
    fs::rename(&gone, &cold).expect("brings the archive back");
    assert_eq!(fs::read(&kept).expect("reads"), bytes);
    assert_eq!(state_of(&grid, &kept), "resident");
    assert_eq!(fs::read(&written).expect("reads"), [&bytes[..], b"more"].concat());
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
}

#[test]
fn files_go_to_a_directory_of_another_machine_and_come_back_when_they_are_opened() {
    let grid = Mounted::start(Placement::Direct);
    let cold = grid.outside().join("cold");
    let address = format!("file://{}", cold.display());
    let missing = grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).refused();
    assert_says(&missing, &["name an existing, empty directory"]);
    fs::create_dir(&cold).expect("makes a folder");
    let mixed = grid.run_on_root(&["disk", "add"], &[&address]).refused();
    assert_says(&mixed, &["made of archives, of striped disks, or of other disks"]);
    grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).succeeds();
    assert_says(
        &grid.run_on_root(&["disk", "list"], &[]).output(),
        &[&address, "archive (directory)"],
    );

    let data = grid.data();
    fs::create_dir(data.join("runs")).expect("makes a folder");
    let mut files = Vec::new();
    for number in 0..5_u32 {
        let path = data.join(format!("runs/run-{number}"));
        let bytes = content(number, 300_000 * (number as usize + 1));
        fs::write(&path, &bytes).expect("writes");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("sets the mode");
        files.push((path, bytes));
    }
    let before: Vec<_> = files.iter().map(|(path, _)| fs::metadata(path).expect("stats")).collect();
    let held = fs::File::open(&files[4].0).expect("opens");
    let runs = data.join("runs");
    let done = grid.run(&["migrate", text(&runs), "--to", "archive", "--json"]).expect_code(1);
    let report = json(&done.stdout);
    assert_eq!(
        (report["moved"].as_u64(), report["in_use"].as_u64()),
        (Some(4), Some(1)),
        "{report}"
    );
    drop(held);
    wait_until("the last one is closed", || {
        grid.run(&["migrate", text(&runs), "--to", "archive"]).code() == 0
    });
    for (before, (path, bytes)) in before.iter().zip(&files) {
        let now = fs::metadata(path).expect("stats");
        assert_eq!(
            (now.len(), now.mode(), now.mtime(), now.mtime_nsec()),
            (before.len(), before.mode(), before.mtime(), before.mtime_nsec())
        );
        assert!(is_archived(&grid, path) && now.len() == bytes.len() as u64);
    }
    let space = json(&grid.run(&["space", text(&grid.mountpoint()), "--json"]).output());
    assert_eq!(space["archives"][0]["files"].as_u64(), Some(5), "{space}");
    let disks = json(&grid.run_on_root(&["disk", "list"], &["--json"]).output());
    let mut all = disks.as_array().expect("is a list").iter();
    let disk = all.find(|disk| disk["pool"] == "archive").expect("is listed");
    let size: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert_eq!(disk["files"]["bytes"].as_u64(), Some(size), "{disk}");
    assert!(disk["files"]["stored_bytes"].as_u64().expect("is a number") < size, "{disk}");
    assert_eq!(disk["archive"]["archived"]["files"].as_u64(), Some(5), "{disk}");
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &["took 5 files", "gave back 0", " to 1)"]);
    let sums = json(&grid.run(&["where", text(&runs), "--summary", "--json"]).output());
    assert!(sums["pools"]["archive"]["ratio"].as_f64().expect("is known") > 1.0, "{sums}");

    // Other users of the daemon are not held up, and everybody reads the same.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fs::read(&files[0].0).expect("reads"), files[0].1));
        }
    });
    assert!(!is_archived(&grid, &files[0].0));
    let file = fs::OpenOptions::new().append(true).open(&files[1].0);
    file.and_then(|mut file| file.write_all(b"more")).expect("appends");
    assert_eq!(fs::read(&files[1].0).expect("reads"), [&files[1].1[..], b"more"].concat());
    fs::write(&files[2].0, b"new").expect("replaces");
    fs::remove_file(&files[3].0).expect("removes");
    let recalled = json(&grid.run(&["recall", text(&runs), "--json"]).output());
    assert_eq!((recalled["recalled"].as_u64(), recalled["failed"].as_u64()), (Some(1), Some(0)));
    assert_eq!(fs::read(&files[4].0).expect("reads"), files[4].1);
    let objects = || files_below(&cold.join("objects")).len();
    wait_until("nothing is left in the archive", || {
        // What the file system no longer refers to is removed after a commit.
        let root = fs::File::open(grid.mountpoint()).expect("opens");
        root.sync_all().expect("syncs");
        objects() == 0
    });
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
}

const PARTIAL: &str =
    "recall_mode = \"partial\"\npartial_recall_min = \"4 MiB\"\naway_timeout = \"10 min\"";
const MIB: usize = 1 << 20;

/// What was read of files that stay in the archive: ranges, frames, bytes.
fn partial_reads(grid: &Mounted) -> [u64; 3] {
    let disks = json(&grid.run_on_root(&["disk", "list"], &["--json"]).output());
    let mut all = disks.as_array().expect("is a list").iter();
    let disk = all.find(|disk| disk["pool"] == "archive").expect("is listed");
    let read = &disk["archive"]["partial"];
    ["ranges", "frames", "bytes"].map(|it| read[it].as_u64().expect("is a number"))
}

/// Reads a few bytes of a file.
fn read_at(file: &fs::File, offset: usize) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    file.read_exact_at(&mut bytes, offset as u64).expect("reads");
    bytes
}

#[test]
fn looking_at_the_end_of_a_large_archived_file_fetches_one_frame() {
    let grid = Mounted::start_with(Placement::Direct, PARTIAL);
    let cold = grid.outside().join("cold");
    fs::create_dir(&cold).expect("makes a folder");
    let address = format!("file://{}", cold.display());
    grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).succeeds();
    let path = grid.data().join("large.parquet");
    let bytes = content(5, 32 * MIB);
    fs::write(&path, &bytes).expect("writes");
    grid.run(&["migrate", text(&path), "--to", "archive"]).succeeds();

    let file = fs::File::open(&path).expect("opens");
    assert_eq!(partial_reads(&grid), [0; 3]);
    let footer = bytes.len() - 100;
    assert_eq!(read_at(&file, footer), &bytes[footer..]);
    assert_eq!(partial_reads(&grid), [1, 1, MIB as u64]);
    // Another one finds it in memory.
    let other = fs::File::open(&path).expect("opens");
    assert_eq!(read_at(&other, footer), &bytes[footer..]);
    assert_eq!(read_at(&other, 15 * MIB + 7), &bytes[15 * MIB + 7..15 * MIB + 107]);
    assert_eq!(partial_reads(&grid), [2, 2, 2 * MIB as u64]);
    assert!(is_archived(&grid, &path));
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &["were read in 2 ranges", "in 2 frames"]);

    // From one end to the other: each frame once, and the file stays there.
    assert!(fs::read(&path).expect("reads") == bytes);
    let [_, frames, fetched] = partial_reads(&grid);
    assert_eq!((frames, fetched), (32, bytes.len() as u64));
    assert!(is_archived(&grid, &path));

    // A writer brings it back, and those who have it open see what it writes.
    let writer = fs::OpenOptions::new().write(true).open(&path).expect("opens");
    writer.write_all_at(b"changed", 15 * MIB as u64 + 7).expect("writes");
    assert!(!is_archived(&grid, &path));
    assert_eq!(&read_at(&other, 15 * MIB + 7)[..7], b"changed");
    drop((file, other, writer));
    let mut changed = bytes;
    changed[15 * MIB + 7..15 * MIB + 14].copy_from_slice(b"changed");
    assert!(fs::read(&path).expect("reads") == changed);
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
}

#[test]
fn a_damaged_frame_of_a_file_that_is_read_in_an_archive_is_named_and_the_others_are_read() {
    let grid = Mounted::start_with(Placement::Direct, PARTIAL);
    let cold = grid.outside().join("cold");
    fs::create_dir(&cold).expect("makes a folder");
    let address = format!("file://{}", cold.display());
    grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).succeeds();
    let path = grid.data().join("damaged");
    let bytes = content(6, 9 * MIB);
    fs::write(&path, &bytes).expect("writes");
    grid.run(&["migrate", text(&path), "--to", "archive"]).succeeds();
    let object = files_below(&cold.join("objects")).remove(0);
    let mut stored = fs::read(&object).expect("reads");
    let middle = stored.len() / 2;
    stored[middle] ^= 1;
    fs::write(&object, stored).expect("writes");

    grid.expect_log("not those that were written");
    let file = fs::File::open(&path).expect("opens");
    let error = file.read_exact_at(&mut [0; 10], 4 * MIB as u64 + 9).expect_err("it is damaged");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    for frame in [0, 3, 5, 8] {
        assert_eq!(read_at(&file, frame * MIB), &bytes[frame * MIB..frame * MIB + 100]);
    }
    assert_says(
        &grid.log(),
        &["a range of a file was not read", "/data/damaged", "frame 4", "objects/"],
    );
    drop(file);
    fs::remove_file(&path).expect("removes");
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
}

#[test]
fn an_archive_that_is_not_mounted_is_waited_for_and_its_files_come_back_with_it() {
    let grid = Mounted::start_with(Placement::Direct, "away_timeout = \"2 s\"");
    let (cold, away) = (grid.outside().join("cold"), grid.outside().join("not-mounted"));
    fs::create_dir(&cold).expect("makes a folder");
    let address = format!("file://{}", cold.display());
    grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).succeeds();
    let file = grid.data().join("file");
    let bytes = content(9, 100_000);
    fs::write(&file, &bytes).expect("writes");
    grid.run(&["migrate", text(&file), "--to", "archive"]).succeeds();
    fs::rename(&cold, &away).expect("renames");
    fs::create_dir(&cold).expect("makes a folder");
    grid.expect_log("unreachable");
    grid.expect_log("not recalled from its archive");
    let error = fs::read(&file).expect_err("the archive is not there");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert_says(
        &grid.log(),
        &["a file was not recalled", "forebay-disk.toml", "/data/file", "away_timeout"],
    );
    assert_eq!(fs::metadata(&file).expect("stats").len(), bytes.len() as u64);
    // What is young goes on.
    fs::write(grid.data().join("young"), b"young").expect("writes");
    fs::remove_dir(&cold).expect("removes");
    fs::rename(&away, &cold).expect("renames");
    wait_until("the file is back", || fs::read(&file).is_ok_and(|found| found == bytes));
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
}

#[test]
fn fsck_names_files_whose_archived_bytes_are_gone_or_damaged() {
    let grid = Mounted::start(Placement::Direct);
    let cold = grid.outside().join("cold");
    fs::create_dir(&cold).expect("makes a folder");
    let address = format!("file://{}", cold.display());
    grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).succeeds();
    for name in ["cut", "gone", "whole"] {
        let path = grid.data().join(name);
        fs::write(&path, content(7, 50_000)).expect("writes");
        grid.run(&["migrate", text(&path), "--to", "archive"]).succeeds();
    }
    grid.umount();
    let mut objects = files_below(&cold.join("objects"));
    objects.sort();
    let length = fs::metadata(&objects[0]).expect("stats").len();
    fs::File::options()
        .write(true)
        .open(&objects[0])
        .and_then(|it| it.set_len(length - 1))
        .expect("cuts");
    fs::remove_file(&objects[1]).expect("removes");
    fs::write(objects[2].with_file_name("00010000000000ff"), b"stray").expect("writes");
    grid.is_clean();
    let found = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(4).stdout;
    assert_says(&found, &["/data/cut", "/data/gone", "3 files lie in archives"]);
    assert!(!found.contains("/data/whole"), "{found}");
    grid.expect_log("not recalled from its archive");
    grid.expect_log("does not end as an object of an archive does");
    grid.expect_log("does not exist");
    grid.mount();
    for name in ["cut", "gone"] {
        let error = fs::read(grid.data().join(name)).expect_err("its bytes are lost");
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
        fs::remove_file(grid.data().join(name)).expect("removes");
    }
    assert_eq!(fs::read(grid.data().join("whole")).expect("reads"), content(7, 50_000));
    grid.umount();
}

#[test]
fn a_daemon_that_is_killed_while_files_move_loses_none() {
    let grid = Mounted::make(Placement::Direct);
    let cold = grid.outside().join("cold");
    fs::create_dir(&cold).expect("makes a folder");
    let address = format!("file://{}", cold.display());
    grid.run_on_root(&["disk", "add"], &[&address, "--pool", "archive"]).succeeds();
    grid.mount();
    let files: Vec<(PathBuf, Vec<u8>)> = (0..6_u32)
        .map(|number| (grid.data().join(format!("file-{number}")), content(number, 200_000)))
        .collect();
    files.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("writes"));
    grid.umount();
    for (point, passes) in [
        ("move.copied", 2),
        ("move.synced", 1),
        ("move.turned", 2),
        ("recall.copied", 1),
        ("recall.turned", 0),
    ] {
        let _ = grid.mount_to_fail(point, passes);
        for (path, _) in &files {
            let _ = grid.run(&["migrate", text(path), "--to", "archive"]);
        }
        for (path, _) in &files {
            let _ = fs::read(path);
        }
        let ended = || grid.daemon().is_none();
        wait_until("the daemon has ended", ended);
        grid.detach();
        grid.mount();
        for (path, bytes) in &files {
            assert_eq!(fs::read(path).expect("reads"), *bytes, "{point}");
        }
        grid.umount();
        let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
        assert_eq!(files_below(&cold.join("objects")), Vec::<PathBuf>::new(), "{point}");
    }
}

/// A real S3 service, which scripts/setup test installs.
struct S3Server {
    address: SocketAddr,
    process: Child,
}

impl S3Server {
    fn start() -> S3Server {
        let free = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = free.local_addr().expect("has an address");
        drop(free);
        let server = S3Server { address, process: S3Server::spawn(address) };
        wait_until("the S3 server answers", || {
            server.request("PUT /cold HTTP/1.1").is_some_and(|answer| answer.contains(" 200 "))
        });
        server
    }

    fn spawn(address: SocketAddr) -> Child {
        let mut command = s3::server("127.0.0.1", address.port());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("starts")
    }

    fn request(&self, line: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        let request =
            format!("{line}\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn stop(&self, signal: &str) {
        let process = self.process.id().to_string();
        let status = Command::new("kill").args([signal, &process]).status();
        assert!(status.expect("runs").success());
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A mounted file system with an archive in a bucket.
fn with_bucket(settings: &str) -> (S3Server, Mounted) {
    let server = S3Server::start();
    let grid = Mounted::start_with(Placement::Direct, settings);
    let access = format!(
        "endpoint = \"http://{}\"\nregion = \"us-east-1\"\naccess_key = \"key\"\nsecret_key = \"secret\"\n",
        server.address
    );
    let file = grid.root().join("s3.toml");
    fs::write(&file, access).expect("writes");
    let open =
        grid.run_on_root(&["disk", "add"], &["s3://cold/lab", "--pool", "archive"]).refused();
    assert_says(&open, &["chmod 600"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("sets the mode");
    grid.run_on_root(&["disk", "add"], &["s3://cold/lab/", "--pool", "archive"]).succeeds();
    (server, grid)
}

#[test]
fn files_go_to_an_s3_bucket_by_a_policy_and_who_waits_for_a_service_that_hangs_can_be_ended() {
    let (server, grid) = with_bucket("away_timeout = \"10 min\"");
    let (old, young) = (grid.data().join("old.csv"), grid.data().join("young.csv"));
    let of_old = content(1, 100_000);
    fs::write(&old, &of_old).expect("writes");
    fs::write(&young, b"young").expect("writes");
    let then = SystemTime::now() - Duration::from_secs(100 * 86_400);
    let times = fs::FileTimes::new().set_accessed(then).set_modified(then);
    let opened = fs::File::options().write(true).open(&old).expect("opens");
    opened.set_times(times).expect("sets the times");
    drop(opened);
    let rules = grid.outside().join("rules.toml");
    let rule = "[[migrate]]\nname = 'cold'\nfrom = 'default'\nto = 'archive'\nolder = '90 d'\n";
    fs::write(&rules, rule).expect("writes");
    grid.run_on_root(&["policy", "apply"], &[text(&rules)]).succeeds();
    wait_until("the policy archives the old file", || {
        grid.run_on_root(&["policy", "run"], &["--wait"]).succeeds();
        is_archived(&grid, &old)
    });
    assert!(!is_archived(&grid, &young));

    // Others go on meanwhile.
    grid.expect_log("unreachable");
    server.stop("-STOP");
    let mut reader = Command::new("cat").arg(&old).stdout(Stdio::null()).spawn().expect("starts");
    let waits = || grid.run(&["waiters", text(&grid.mountpoint())]).stdout.contains("archive");
    wait_until("the reader waits for the archive", waits);
    fs::write(grid.data().join("new"), b"new").expect("writes");
    reader.kill().expect("kills");
    reader.wait().expect("ends");
    server.stop("-CONT");
    wait_until("it is read", || fs::read(&old).is_ok_and(|found| found == of_old));
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
}

#[test]
fn frames_come_from_an_s3_bucket_and_a_reader_that_waits_for_a_service_that_hangs_can_be_killed() {
    let (server, grid) = with_bucket(PARTIAL);
    let path = grid.data().join("large.parquet");
    let bytes = content(8, 16 * MIB);
    fs::write(&path, &bytes).expect("writes");
    grid.run(&["migrate", text(&path), "--to", "archive"]).succeeds();
    let file = fs::File::open(&path).expect("opens");
    let footer = bytes.len() - 100;
    assert_eq!(read_at(&file, footer), &bytes[footer..]);
    assert_eq!(partial_reads(&grid), [1, 1, MIB as u64]);

    grid.expect_log("unreachable");
    server.stop("-STOP");
    let input = format!("if={}", path.display());
    let of_middle = [&input, "of=/dev/null", "bs=4096", "skip=2000", "count=1"];
    let mut reader = Command::new("dd");
    reader.args(of_middle).stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = reader.spawn().expect("starts");
    let waits =
        || grid.run(&["waiters", text(&grid.mountpoint())]).stdout.contains("from the archive");
    wait_until("the reader waits for the archive", waits);
    // Others go on meanwhile, and what was fetched is read.
    fs::write(grid.data().join("new"), b"new").expect("writes");
    assert_eq!(read_at(&file, footer - MIB / 2), &bytes[footer - MIB / 2..][..100]);
    reader.kill().expect("kills");
    reader.wait().expect("ends");
    server.stop("-CONT");
    assert!(fs::read(&path).expect("reads") == bytes);
    assert!(is_archived(&grid, &path));
    drop(file);
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
}

#[test]
fn a_large_file_survives_an_interrupted_upload_and_a_service_that_is_gone() {
    let (server, grid) = with_bucket("away_timeout = \"5 s\"");
    let large = grid.data().join("large.bin");
    // Larger than some parts of an upload, even when it is compressed.
    let mut bytes = vec![0; 24 << 20];
    let random = fs::File::open("/dev/urandom");
    random.and_then(|mut file| file.read_exact(&mut bytes)).expect("reads");
    fs::write(&large, &bytes).expect("writes");
    grid.umount();
    let _ = grid.mount_to_fail("move.copied", 0);
    let _ = grid.run(&["migrate", text(&large), "--to", "archive"]);
    wait_until("the daemon has ended", || grid.daemon().is_none());
    grid.detach();
    let asked = |line: &str, part: &str| {
        server.request(line).expect("answers").to_lowercase().contains(part)
    };
    let is_unfinished = || asked("GET /cold?uploads HTTP/1.1", "<uploadid>");
    assert!(is_unfinished(), "the daemon died within an upload");
    grid.mount();
    assert_eq!(fs::read(&large).expect("reads"), bytes);
    // The next one who uses the archive gives the upload up.
    grid.run(&["migrate", text(&large), "--to", "archive"]).succeeds();
    assert!(!is_unfinished() && !asked("GET /cold?prefix=lab/uploads/ HTTP/1.1", "<key>"));
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
    grid.mount();
    assert_eq!(fs::read(&large).expect("reads"), bytes);
    grid.run(&["migrate", text(&large), "--to", "archive"]).succeeds();

    grid.expect_log("unreachable");
    grid.expect_log("not recalled from its archive");
    drop(server);
    let error = fs::read(&large).expect_err("the service is gone");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert_says(&grid.log(), &["s3://cold/lab", "objects/", "/data/large.bin"]);
    assert_eq!(fs::metadata(&large).expect("stats").len(), bytes.len() as u64);
    fs::remove_file(&large).expect("removes");
    grid.umount();
    grid.is_clean();
}
