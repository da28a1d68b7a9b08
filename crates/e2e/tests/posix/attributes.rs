//! Times, owners, modes, permissions and space.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use forebay_e2e::actor::User;
use forebay_e2e::content::pattern;
use forebay_e2e::{Mounted, as_user, need, on_every_way, on_native, run};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Timespec, Timestamps, fallocate, utimensat};

use crate::open_rw;

on_every_way!(
    times_keep_their_nanoseconds,
    writing_moves_the_times_of_an_open_file,
    a_write_by_another_user_clears_the_set_id_bits,
    a_change_of_owner_clears_the_set_id_bits,
    entries_of_a_set_group_id_directory_take_its_group,
    permissions_hold_for_other_users,
    an_inode_number_stays_for_life,
    space_is_counted,
    a_change_of_size_by_name_is_seen_by_open_handles,
    flags_of_files_are_shown_and_cannot_be_set,
);

// Numbers of native files are those of the disk's file system, which uses them again.
on_native!(
    times_keep_their_nanoseconds,
    writing_moves_the_times_of_an_open_file,
    a_write_by_another_user_clears_the_set_id_bits,
    a_change_of_owner_clears_the_set_id_bits,
    entries_of_a_set_group_id_directory_take_its_group,
    permissions_hold_for_other_users,
    space_is_counted,
    a_change_of_size_by_name_is_seen_by_open_handles,
);

const OWNER: u32 = 1201;
const STRANGER: u32 = 1202;
const SHARED_GROUP: u32 = 1203;

fn owner() -> User {
    User::new(OWNER, &[OWNER])
}

fn stranger() -> User {
    User::new(STRANGER, &[STRANGER])
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stats").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changes the mode");
}

/// A directory that everybody can write.
fn open_folder(grid: &Mounted) -> std::path::PathBuf {
    let folder = grid.data().join("open");
    fs::create_dir(&folder).expect("makes a directory");
    set_mode(&folder, 0o777);
    folder
}

fn times_keep_their_nanoseconds(grid: &Mounted) {
    // Before 1970, and beyond 32 bits in both the signed and the unsigned reading.
    let moments =
        [(-77_777, 1), (0, 0), (1_700_000_000, 123_456_789), (5_000_000_000, 999_999_999)];
    let name = |index: usize| grid.data().join(format!("file-{index}"));
    for (index, (seconds, nanoseconds)) in moments.into_iter().enumerate() {
        fs::write(name(index), "content").expect("writes");
        let times = Timestamps {
            last_access: Timespec { tv_sec: seconds + 5, tv_nsec: nanoseconds },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        };
        utimensat(CWD, name(index), &times, AtFlags::empty()).expect("sets the times");
    }
    for remounted in [false, true] {
        if remounted {
            grid.remount();
        }
        for (index, (seconds, nanoseconds)) in moments.into_iter().enumerate() {
            let stat = fs::metadata(name(index)).expect("stats");
            assert_eq!((stat.mtime(), stat.mtime_nsec()), (seconds, nanoseconds), "{remounted}");
            assert_eq!((stat.atime(), stat.atime_nsec()), (seconds + 5, nanoseconds));
        }
    }
}

fn writing_moves_the_times_of_an_open_file(grid: &Mounted) {
    let path = grid.data().join("file");
    let file = open_rw(&path);
    let mut last = file.metadata().expect("stats");
    for round in 0..5 {
        std::thread::sleep(Duration::from_millis(20));
        file.write_all_at(b"more", round * 4).expect("writes");
        let by_name = fs::metadata(&path).expect("stats");
        assert_eq!(by_name.len(), (round + 1) * 4, "the size by name, while open");
        assert!(by_name.modified().expect("has a time") > last.modified().expect("has a time"));
        assert!((by_name.ctime(), by_name.ctime_nsec()) > (last.ctime(), last.ctime_nsec()));
        last = by_name;
    }
    drop(file);
    let closed = fs::metadata(&path).expect("stats");
    assert!(closed.modified().expect("has a time") >= last.modified().expect("has a time"));
    grid.remount();
    let again = fs::metadata(&path).expect("stats");
    assert_eq!(again.modified().expect("has a time"), closed.modified().expect("has a time"));
    assert_eq!((again.ctime(), again.ctime_nsec()), (closed.ctime(), closed.ctime_nsec()));
}

fn a_write_by_another_user_clears_the_set_id_bits(grid: &Mounted) {
    let path = open_folder(grid).join("program");
    type Change = fn(&File);
    let changes: [(&str, Change); 3] = [
        ("write", |file| file.write_all_at(b"changed", 0).expect("writes")),
        ("truncate", |file| file.set_len(3).expect("truncates")),
        ("fallocate", |file| fallocate(file, FallocateFlags::empty(), 0, 9000).expect("allocates")),
    ];
    for (what, change) in changes {
        fs::write(&path, "a program").expect("writes");
        chown(&path, Some(OWNER), Some(OWNER)).expect("changes the owner");
        set_mode(&path, 0o6777);
        let file = as_user(&stranger(), || open_rw(&path));
        as_user(&stranger(), || change(&file));
        assert_eq!(mode_of(&path), 0o777, "after {what} by a stranger");
        set_mode(&path, 0o6777);
        as_user(&owner(), || change(&file));
        assert_eq!(mode_of(&path), 0o777, "after {what} by the owner");
        fs::remove_file(&path).expect("removes");
    }

    fs::write(&path, "a program").expect("writes");
    chown(&path, Some(OWNER), Some(OWNER)).expect("changes the owner");
    set_mode(&path, 0o6777);
    as_user(&stranger(), || fs::write(&path, "shorter").expect("writes with O_TRUNC"));
    assert_eq!(mode_of(&path), 0o777, "after O_TRUNC by a stranger");
    set_mode(&path, 0o6777);
    open_rw(&path).write_all_at(b"by root", 0).expect("writes");
    assert_eq!(mode_of(&path), 0o6777, "root may keep the bits");
    grid.remount();
    assert_eq!(mode_of(&path), 0o6777);
}

fn a_change_of_owner_clears_the_set_id_bits(grid: &Mounted) {
    let path = open_folder(grid).join("program");
    fs::write(&path, "a program").expect("writes");
    chown(&path, Some(OWNER), Some(OWNER)).expect("changes the owner");
    set_mode(&path, 0o6755);
    let member = User::new(OWNER, &[OWNER, SHARED_GROUP]);
    as_user(&member, || chown(&path, None, Some(SHARED_GROUP)).expect("changes the group"));
    assert_eq!(mode_of(&path), 0o755);
    assert_eq!(fs::metadata(&path).expect("stats").gid(), SHARED_GROUP);

    // A mode with set-group-id is not for those outside the group.
    as_user(&owner(), || set_mode(&path, 0o2755));
    assert_eq!(mode_of(&path), 0o755);
    as_user(&member, || set_mode(&path, 0o2755));
    assert_eq!(mode_of(&path), 0o2755);
}

fn entries_of_a_set_group_id_directory_take_its_group(grid: &Mounted) {
    let folder = open_folder(grid);
    chown(&folder, None, Some(SHARED_GROUP)).expect("changes the group");
    set_mode(&folder, 0o2777);
    as_user(&owner(), || {
        fs::write(folder.join("file"), "content").expect("writes");
        fs::create_dir(folder.join("folder")).expect("makes a directory");
        std::os::unix::fs::symlink("file", folder.join("link")).expect("links");
    });
    for (name, set_group_id) in [("file", false), ("folder", true), ("link", false)] {
        let stat = fs::symlink_metadata(folder.join(name)).expect("stats");
        assert_eq!((stat.uid(), stat.gid()), (OWNER, SHARED_GROUP), "{name}");
        assert_eq!(stat.mode() & 0o2000 != 0, set_group_id, "{name}");
    }
}

fn permissions_hold_for_other_users(grid: &Mounted) {
    let folder = open_folder(grid);
    let private = folder.join("private");
    as_user(&owner(), || {
        fs::write(&private, "secret").expect("writes");
        set_mode(&private, 0o600);
        fs::create_dir(folder.join("closed")).expect("makes a directory");
        fs::write(folder.join("closed/file"), "inside").expect("writes");
        set_mode(&folder.join("closed"), 0o700);
    });
    as_user(&stranger(), || {
        assert!(fs::read(&private).is_err(), "reads a private file");
        assert!(fs::read(folder.join("closed/file")).is_err(), "enters a closed directory");
        assert!(fs::read_dir(folder.join("closed")).is_err(), "lists a closed directory");
        assert!(chown(&private, Some(STRANGER), None).is_err(), "takes a file");
        assert!(fs::set_permissions(&private, fs::Permissions::from_mode(0o666)).is_err());
    });
    set_mode(&folder, 0o1777);
    as_user(&stranger(), || {
        assert!(fs::remove_file(&private).is_err(), "removes in a sticky directory");
        assert!(fs::rename(&private, folder.join("mine")).is_err(), "renames in it");
    });
    as_user(&owner(), || {
        assert_eq!(fs::read(&private).expect("reads"), b"secret");
        fs::remove_file(&private).expect("removes");
    });
}

fn an_inode_number_stays_for_life(grid: &Mounted) {
    let mut numbers = Vec::new();
    for index in 0..100 {
        let path = grid.data().join(format!("file-{index}"));
        fs::write(&path, "content").expect("writes");
        numbers.push(fs::metadata(&path).expect("stats").ino());
    }
    fs::rename(grid.data().join("file-0"), grid.data().join("renamed")).expect("renames");
    fs::rename(grid.data().join("renamed"), grid.data().join("file-0")).expect("renames");
    grid.remount();
    for (index, number) in numbers.iter().enumerate() {
        let path = grid.data().join(format!("file-{index}"));
        assert_eq!(fs::metadata(&path).expect("stats").ino(), *number, "file {index}");
        fs::remove_file(&path).expect("removes");
    }
    fs::write(grid.data().join("new"), "content").expect("writes");
    let new = fs::metadata(grid.data().join("new")).expect("stats").ino();
    assert!(!numbers.contains(&new), "the number of a removed file is used again");
}

fn space_is_counted(grid: &Mounted) {
    let space = rustix::fs::statvfs(grid.data()).expect("asks for the space");
    assert_eq!(space.f_namemax, 255);
    assert!(space.f_bsize >= 512 && space.f_blocks >= space.f_bfree);
    assert!(space.f_bfree >= space.f_bavail && space.f_bavail > 0);
    let path = grid.data().join("file");
    fs::write(&path, pattern(1, 8 << 20)).expect("writes");
    File::open(&path).expect("opens").sync_all().expect("syncs");
    let blocks = fs::metadata(&path).expect("stats").blocks();
    assert!(blocks * 512 >= 8 << 20, "{blocks} blocks");
}

fn a_change_of_size_by_name_is_seen_by_open_handles(grid: &Mounted) {
    let path = grid.data().join("file");
    let file = open_rw(&path);
    file.write_all_at(&pattern(1, 10_000), 0).expect("writes");
    for length in [5000_u64, 20_000, 0, 1] {
        let name = std::ffi::CString::new(path.to_str().expect("plain path")).expect("no NUL");
        let length_signed = i64::try_from(length).expect("small");
        // SAFETY: the name is a C string that lives through the call.
        assert_eq!(unsafe { libc::truncate(name.as_ptr(), length_signed) }, 0);
        assert_eq!(file.metadata().expect("stats").len(), length);
        let mut buffer = vec![0; 30_000];
        assert_eq!(file.read_at(&mut buffer, 0).expect("reads") as u64, length);
    }
}

fn flags_of_files_are_shown_and_cannot_be_set(grid: &Mounted) {
    let (file, folder) = (grid.data().join("file"), grid.data().join("folder"));
    fs::write(&file, "content").expect("writes");
    fs::create_dir(&folder).expect("makes a directory");
    let limit = Duration::from_secs(60);
    for path in [&file, &folder] {
        let shown = run(need::program("lsattr").arg("-d").arg(path), limit).output();
        let flags = shown.split_whitespace().next().expect("shows flags");
        assert!(flags.chars().all(|flag| flag == '-'), "{shown}");
        run(need::program("chattr").arg("-i").arg(path), limit).succeeds();
        let message = run(need::program("chattr").arg("+i").arg(path), limit).refused();
        assert!(message.contains("not supported"), "{message}");
    }
    fs::remove_file(&file).expect("it is not immutable");
}
