//! Open flags, and files that live on without their name.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Barrier;

use forebay_e2e::content::{assert_same, pattern, read_at};
use forebay_e2e::{Mounted, on_every_way, on_native};
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;

use crate::{open_rw, open_with};

on_every_way!(
    o_append_writes_at_the_end,
    concurrent_appends_lose_and_tear_no_record,
    o_trunc_empties_the_file,
    o_excl_refuses_an_existing_name,
    exactly_one_of_many_wins_an_exclusive_create,
    o_direct_and_buffered_handles_see_the_same_bytes,
    an_unnamed_file_gets_its_name_by_linkat,
    an_unlinked_file_lives_until_its_last_handle_closes,
    an_open_file_survives_truncation_by_another,
    a_new_handle_sees_what_the_last_one_wrote,
    many_handles_of_all_kinds_share_one_file,
    reopening_and_rewriting_leaves_no_old_bytes,
);

on_native!(
    o_append_writes_at_the_end,
    concurrent_appends_lose_and_tear_no_record,
    o_trunc_empties_the_file,
    o_excl_refuses_an_existing_name,
    exactly_one_of_many_wins_an_exclusive_create,
    o_direct_and_buffered_handles_see_the_same_bytes,
    an_unnamed_file_gets_its_name_by_linkat,
    an_unlinked_file_lives_until_its_last_handle_closes,
    an_open_file_survives_truncation_by_another,
    a_new_handle_sees_what_the_last_one_wrote,
    many_handles_of_all_kinds_share_one_file,
    reopening_and_rewriting_leaves_no_old_bytes,
);

fn o_append_writes_at_the_end(grid: &Mounted) {
    let path = grid.data().join("log");
    let mut first = OpenOptions::new().append(true).create(true).open(&path).expect("opens");
    let mut second = OpenOptions::new().append(true).open(&path).expect("opens");
    first.write_all(b"one ").expect("appends");
    second.write_all(b"two ").expect("appends");
    first.write_all(b"three ").expect("appends");
    assert_eq!(fs::read(&path).expect("reads"), b"one two three ");
    open_rw(&path).set_len(4).expect("truncates");
    second.write_all(b"four").expect("appends");
    assert_eq!(fs::read(&path).expect("reads"), b"one four");
}

fn concurrent_appends_lose_and_tear_no_record(grid: &Mounted) {
    const THREADS: u64 = 4;
    const RECORDS: u64 = 300;
    const RECORD_BYTES: usize = 104;
    let path = grid.work().join("log");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let path = &path;
            scope.spawn(move || {
                let mut file =
                    OpenOptions::new().append(true).create(true).open(path).expect("opens");
                for record in 0..RECORDS {
                    let bytes = pattern(thread * RECORDS + record, RECORD_BYTES);
                    file.write_all(&bytes).expect("appends");
                }
            });
        }
    });
    let content = fs::read(&path).expect("reads");
    let mut found: Vec<&[u8]> = content.chunks(RECORD_BYTES).collect();
    let expected: Vec<Vec<u8>> =
        (0..THREADS * RECORDS).map(|seed| pattern(seed, RECORD_BYTES)).collect();
    let mut expected: Vec<&[u8]> = expected.iter().map(Vec::as_slice).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert!(found == expected, "{} of {} records are whole", found.len(), expected.len());
}

fn o_trunc_empties_the_file(grid: &Mounted) {
    let path = grid.data().join("file");
    fs::write(&path, pattern(1, 300_000)).expect("writes");
    let before = fs::metadata(&path).expect("stats").ino();
    let file = open_with(&path, OFlags::RDWR | OFlags::TRUNC).expect("opens");
    let now = file.metadata().expect("stats");
    assert_eq!((now.len(), now.ino()), (0, before), "size and inode number");
    file.write_all_at(b"new", 200_000).expect("writes");
    let mut expected = vec![0; 200_003];
    expected[200_000..].copy_from_slice(b"new");
    assert_same(&fs::read(&path).expect("reads"), &expected, "rewritten file");
}

fn o_excl_refuses_an_existing_name(grid: &Mounted) {
    let path = grid.data().join("file");
    let exclusive = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    open_with(&path, exclusive).expect("creates");
    assert_eq!(open_with(&path, exclusive).expect_err("refused"), Errno::EXIST);
    let dangling = grid.data().join("dangling");
    std::os::unix::fs::symlink("nowhere", &dangling).expect("links");
    assert_eq!(open_with(&dangling, exclusive).expect_err("refused"), Errno::EXIST);
}

fn exactly_one_of_many_wins_an_exclusive_create(grid: &Mounted) {
    const THREADS: usize = 4;
    let barrier = Barrier::new(THREADS);
    for round in 0..50 {
        let path = grid.work().join(format!("prize-{round}"));
        let wins: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        usize::from(
                            OpenOptions::new().write(true).create_new(true).open(&path).is_ok(),
                        )
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().expect("no panic")).sum()
        });
        assert_eq!(wins, 1, "round {round}");
    }
}

/// A buffer that O_DIRECT accepts on disks with sectors of up to 4 KiB.
#[repr(C, align(4096))]
struct Aligned([u8; 16384]);

fn o_direct_and_buffered_handles_see_the_same_bytes(grid: &Mounted) {
    let path = grid.data().join("file");
    let buffered = open_rw(&path);
    let direct = open_with(&path, OFlags::RDWR | OFlags::DIRECT).expect("opens with O_DIRECT");
    let mut buffer = Box::new(Aligned([0; 16384]));

    buffered.write_all_at(&pattern(1, 65536), 0).expect("writes");
    direct.read_exact_at(&mut buffer.0, 16384).expect("reads past the cache");
    assert_same(&buffer.0, &pattern(1, 65536)[16384..32768], "direct read after a buffered write");

    buffer.0.copy_from_slice(&pattern(2, 16384));
    direct.write_all_at(&buffer.0, 16384).expect("writes past the cache");
    assert_same(&read_at(&buffered, 16384, 16384), &pattern(2, 16384), "buffered read after it");

    direct.write_all_at(&buffer.0, 1 << 20).expect("writes past the end");
    assert_eq!(buffered.metadata().expect("stats").len(), (1 << 20) + 16384);
    assert_same(&read_at(&buffered, 1 << 20, 16384), &buffer.0, "buffered read of the new end");
}

fn an_unnamed_file_gets_its_name_by_linkat(grid: &Mounted) {
    let name = grid.data().join("named");
    let unnamed = |flags| open_with(&grid.data(), OFlags::RDWR | OFlags::TMPFILE | flags);
    let give_name = |file: &File| {
        let by_handle = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, &by_handle, CWD, &name, AtFlags::SYMLINK_FOLLOW)
    };

    let hidden = unnamed(OFlags::EXCL).expect("makes an unnamed file");
    hidden.write_all_at(b"never seen", 0).expect("writes");
    assert_eq!(give_name(&hidden), Err(Errno::NOENT), "O_EXCL keeps it unnamed");

    let file = unnamed(OFlags::empty()).expect("makes an unnamed file");
    file.write_all_at(&pattern(3, 100_000), 0).expect("writes");
    assert_eq!(file.metadata().expect("stats").nlink(), 0);
    assert_eq!(
        fs::read_dir(grid.data()).expect("lists").count(),
        0,
        "unnamed files are not listed"
    );
    give_name(&file).expect("gets its name");
    assert_eq!(file.metadata().expect("stats").nlink(), 1);
    drop((file, hidden));
    grid.remount();
    assert_same(&fs::read(&name).expect("reads"), &pattern(3, 100_000), "named file");
}

fn an_unlinked_file_lives_until_its_last_handle_closes(grid: &Mounted) {
    let path = grid.data().join("file");
    fs::write(&path, pattern(4, 70_000)).expect("writes");
    let file = open_rw(&path);
    fs::remove_file(&path).expect("removes");
    assert!(!path.exists());
    assert_eq!(file.metadata().expect("stats").nlink(), 0);
    assert_same(&read_at(&file, 0, 70_000), &pattern(4, 70_000), "unlinked file");
    file.write_all_at(b"more", 70_000).expect("writes");
    assert_eq!(file.metadata().expect("stats").len(), 70_004);
    file.set_len(10).expect("truncates");
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("changes mode");
    file.sync_all().expect("syncs");
    fs::write(&path, "another file of that name").expect("writes");
    assert_same(&read_at(&file, 0, 10), &pattern(4, 10), "unlinked file beside its successor");

    let directory = grid.data().join("directory");
    fs::create_dir(&directory).expect("makes a directory");
    let handle = File::open(&directory).expect("opens a directory");
    fs::remove_dir(&directory).expect("removes");
    assert_eq!(handle.metadata().expect("stats").nlink(), 0);
    let inside = rustix::fs::openat(
        &handle,
        "new",
        OFlags::CREATE | OFlags::RDWR,
        rustix::fs::Mode::from_raw_mode(0o644),
    );
    assert_eq!(inside.expect_err("a removed directory takes no entries"), Errno::NOENT);
}

fn an_open_file_survives_truncation_by_another(grid: &Mounted) {
    let path = grid.data().join("file");
    fs::write(&path, pattern(5, 200_000)).expect("writes");
    let mut held = open_rw(&path);
    let other = open_with(&path, OFlags::RDWR | OFlags::TRUNC).expect("opens with O_TRUNC");
    assert_eq!(held.metadata().expect("stats").len(), 0);
    let mut rest = Vec::new();
    held.read_to_end(&mut rest).expect("reads");
    assert!(rest.is_empty(), "a truncated file has no bytes");
    other.write_all_at(&pattern(6, 5000), 0).expect("writes");
    assert_same(&read_at(&held, 0, 5000), &pattern(6, 5000), "what the other wrote");
    held.write_all_at(b"mine", 8000).expect("writes");
    assert_eq!(read_at(&other, 7996, 8), b"\0\0\0\0mine");
}

fn a_new_handle_sees_what_the_last_one_wrote(grid: &Mounted) {
    let path = grid.data().join("file");
    for round in 0..100 {
        let length = 1 + usize::try_from(round * 977 % 30_000).expect("small");
        fs::write(&path, pattern(round, length)).expect("writes");
        assert_eq!(fs::metadata(&path).expect("stats").len(), length as u64);
        assert_same(&fs::read(&path).expect("reads"), &pattern(round, length), "round");
    }
}

fn many_handles_of_all_kinds_share_one_file(grid: &Mounted) {
    let path = grid.data().join("file");
    open_rw(&path).set_len(1 << 20).expect("grows");
    let handles: Vec<File> = [
        OFlags::RDWR,
        OFlags::WRONLY,
        OFlags::RDWR | OFlags::SYNC,
        OFlags::RDWR | OFlags::DSYNC,
        OFlags::RDWR | OFlags::NONBLOCK,
    ]
    .into_iter()
    .map(|flags| open_with(&path, flags).expect("opens"))
    .collect();
    for (index, handle) in handles.iter().enumerate() {
        handle.write_all_at(&pattern(index as u64, 4096), index as u64 * 5000).expect("writes");
    }
    let reader = open_with(&path, OFlags::RDONLY | OFlags::NOATIME).expect("opens");
    drop(handles);
    for index in 0..5 {
        assert_same(&read_at(&reader, index * 5000, 4096), &pattern(index, 4096), "block");
    }
    assert!(reader.write_at(b"x", 0).is_err(), "a handle for reading does not write");
}

fn reopening_and_rewriting_leaves_no_old_bytes(grid: &Mounted) {
    let path = grid.work().join("file");
    for round in 0..60_u64 {
        let file = open_with(&path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC).expect("opens");
        // Holes are left on purpose: bytes of an earlier round would show in them.
        for block in 0..8 {
            if (round + block) % 3 != 0 {
                file.write_all_at(&pattern(round * 8 + block, 10_000), block * 20_000)
                    .expect("writes");
            }
        }
        file.set_len(160_000).expect("grows");
        for block in 0..8 {
            let expected = if (round + block) % 3 == 0 {
                vec![0; 10_000]
            } else {
                pattern(round * 8 + block, 10_000)
            };
            assert_same(&read_at(&file, block * 20_000, 10_000), &expected, "block");
            assert_same(&read_at(&file, block * 20_000 + 10_000, 10_000), &[0; 10_000], "hole");
        }
    }
}
