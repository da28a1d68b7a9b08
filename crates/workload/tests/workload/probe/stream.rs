//! Streams.

use std::path::Path;
use std::process::Command;

use forebay_analytics::amount::Scale;
use forebay_analytics::histogram::quantile;
use forebay_analytics::{Error, Result};
use forebay_base::ByteSize;
use forebay_base::time::{Clock, SystemClock};
use forebay_workload::load::stream::{Access, Cache, Fill, Io, StreamResult, Sync};
use forebay_workload::load::{Names, Stream};
use forebay_workload::program::Step;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::places::{Moved, TickClock, context, files_below, run, run_in};

/// A directory on the disk where the tests are built, whose file system knows direct I/O.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a stream outside of a program, with fixed offsets.
fn measure(stream: &Stream, clock: &dyn Clock) -> Result<StreamResult> {
    stream.run(Scale::FULL, StdRng::seed_from_u64(3), clock, || Ok(()), &mut |_| {})
}

fn count(result: &StreamResult, name: &str) -> u64 {
    result.latencies.get(name).map_or(0, |buckets| buckets.iter().map(|b| b.count).sum())
}

/// Settings of a stream of 64 KiB blocks on `data/probe/f` and what else is said.
fn settings(more: &str) -> String {
    format!("[stream]\nfile = \"data/probe/f\"\nblock_bytes = \"64 KiB\"\n{more}")
}

fn reason(result: Result<impl std::fmt::Debug>) -> String {
    match result {
        Err(Error::WrongContent { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_pattern_moves_exactly_the_bytes_it_says() {
    // 10 MiB and 12 KiB in blocks of 64 KiB: 161 calls, of which a sequence cuts the last.
    let bytes = 10_498_048;
    for (pattern, reads, writes) in [
        (Access::Read, 161, 0),
        (Access::Write, 0, 161),
        (Access::Mixed, 80, 81),
        (Access::RandomRead, 161, 0),
        (Access::RandomWrite, 0, 161),
        (Access::RandomMixed, 80, 81),
    ] {
        for io in [Io::Buffered, Io::Direct] {
            let root = on_disk();
            let stream = Stream {
                block_bytes: ByteSize::kib(64),
                io,
                sync: Sync::End,
                verify: true,
                keep: true,
                ..Stream::new(root.path().join("a/f"), ByteSize(bytes), pattern)
            };
            let (result, moved) = Moved::by(|| measure(&stream, &SystemClock).unwrap());
            let label = format!("{pattern:?} {io:?}");
            let made = (count(&result, "read"), count(&result, "write"), count(&result, "sync"));
            assert_eq!(made, (reads, writes, u64::from(writes > 0)), "{label}");
            assert_eq!(result.calls, reads + writes, "{label}");
            assert_eq!(result.read_bytes + result.written_bytes, bytes, "{label}");
            let filled = if pattern == Access::Write { 0 } else { bytes };
            assert_eq!(moved.read, result.read_bytes, "{label}");
            assert_eq!(moved.written, result.written_bytes + filled, "{label}");
            assert_eq!(std::fs::metadata(&stream.file).unwrap().len(), bytes, "{label}");
        }
    }
}

#[test]
fn what_every_pattern_leaves_a_later_step_reads_as_good() {
    let root = tempfile::tempdir().unwrap();
    for pattern in ["write", "mixed", "random_write", "random_mixed"] {
        let more =
            format!("pattern = \"{pattern}\"\nfile_bytes = \"3 MiB\"\npasses = 3\nkeep = true");
        run(root.path(), &settings(&more)).unwrap();
        // In other blocks than it was written in, and by another job of the run.
        let check: Step = toml::from_str(
            "[stream]\nfile = \"data/probe/f\"\nfile_bytes = \"3 MiB\"\nblock_bytes = \"20 KiB\"
             verify = true\nfill = \"never\"",
        )
        .unwrap();
        let outcome = run_in(&context(root.path(), 1, 2, &SystemClock), check).unwrap();
        assert_eq!(outcome.figures["read_bytes"], 3_145_728.0, "{pattern}");
        assert_eq!(outcome.rows, 154, "{pattern}");
        assert!(files_below(root.path()).is_empty(), "not kept any more");
    }
}

#[test]
fn a_flipped_byte_and_a_swapped_block_are_noticed_with_their_offset() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("data/probe/f");
    let write = settings("pattern = \"write\"\nfile_bytes = \"1 MiB\"\nkeep = true");
    let read = settings("file_bytes = \"1 MiB\"\nverify = true\nkeep = true");
    for (at, flip) in [(0, 1), (4095, 0x80), (700_000, 4), ((1 << 20) - 1, 1)] {
        run(root.path(), &write).unwrap();
        let mut content = std::fs::read(&file).unwrap();
        content[at] ^= flip;
        std::fs::write(&file, content).unwrap();
        let expected = format!("offset {}: the checksum does not match", at / 4096 * 4096);
        assert_eq!(reason(run(root.path(), &read)), expected);
        assert!(file.exists(), "what was not written by the stream is left for a look at it");
    }
    run(root.path(), &write).unwrap();
    let mut content = std::fs::read(&file).unwrap();
    let (front, back) = content.split_at_mut(589_824);
    front[65_536..131_072].swap_with_slice(&mut back[..65_536]);
    std::fs::write(&file, content).unwrap();
    assert_eq!(
        reason(run(root.path(), &read)),
        "offset 65536: holds what belongs at offset 589824"
    );
}

#[test]
fn content_of_another_file_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    let write = settings("pattern = \"write\"\nfile_bytes = \"64 KiB\"\nkeep = true");
    run(root.path(), &write).unwrap();
    std::fs::rename(root.path().join("data/probe/f"), root.path().join("data/probe/g")).unwrap();
    let read = settings("file_bytes = \"64 KiB\"\nverify = true").replace("probe/f", "probe/g");
    let text = reason(run(root.path(), &read));
    assert!(text.starts_with("offset 0: was written with the seed "), "{text}");
    // Without verification it is only bytes.
    run(root.path(), &read.replace("verify = true", "")).unwrap();
}

#[test]
fn one_reading_of_the_clock_ends_each_call_and_starts_the_next() {
    let root = tempfile::tempdir().unwrap();
    for (verify, readings_a_call) in [(false, 1), (true, 2)] {
        let stream = Stream {
            block_bytes: ByteSize::kib(4),
            duration_seconds: Some(1),
            verify,
            ..Stream::new(root.path().join("f"), ByteSize::mib(1), Access::RandomRead)
        };
        let result = measure(&stream, &TickClock::new()).unwrap();
        assert_eq!(result.calls, 100 / readings_a_call);
        assert!((result.seconds - 1.0).abs() < 1e-9, "{}", result.seconds);
        // Checking is in no call's time.
        let [bucket] = result.latencies["read"][..] else { panic!("{:?}", result.latencies) };
        assert!((10_000_000..10_100_000).contains(&bucket.upto), "{bucket:?}");
        assert_eq!(bucket.count, result.calls);
    }
}

#[test]
fn figures_follow_from_bytes_calls_and_time() {
    let root = tempfile::tempdir().unwrap();
    let clock = TickClock::new();
    let more = "pattern = \"random_mixed\"\nread_percent = 75\nfile_bytes = \"6400 KiB\"
                sync = { every = 10 }";
    let step: Step = toml::from_str(&settings(more)).unwrap();
    let outcome = run_in(&context(root.path(), 0, 1, &clock), step).unwrap();
    // 100 calls and three syncs (after 10 and 20 writes, and at the end) of 10 ms each.
    assert_eq!(outcome.rows, 100);
    for (name, expected) in [
        ("seconds", 1.03),
        ("iops", 100.0 / 1.03),
        ("bytes", 6_553_600.0),
        ("read_mb_per_second", 4.915_2 / 1.03),
        ("write_mb_per_second", 1.638_4 / 1.03),
    ] {
        let figure = outcome.figures[name];
        assert!((figure / expected - 1.0).abs() < 1e-9, "{name}: {figure}, not {expected}");
    }
    for name in ["read", "write", "sync"] {
        for percentile in ["p50", "p99", "p999"] {
            let figure = outcome.figures[&format!("{name}_{percentile}_ms")];
            assert!((10.0..10.1).contains(&figure), "{name} {percentile}: {figure}");
        }
    }
    assert_eq!(outcome.latencies["sync"].iter().map(|b| b.count).sum::<u64>(), 3);
    assert_eq!(
        quantile(&outcome.latencies["read"], 1.0),
        quantile(&outcome.latencies["write"], 0.0)
    );
}

#[test]
fn a_size_follows_the_scale_in_whole_units() {
    let root = tempfile::tempdir().unwrap();
    let more = "pattern = \"write\"\nkeep = true\nfile_bytes = { full = \"8 GiB\" }";
    let step: Step = toml::from_str(&settings(more)).unwrap();
    let mut context = context(root.path(), 0, 1, &SystemClock);
    context.scale = Scale::try_from(0.000_123).unwrap();
    run_in(&context, step).unwrap();
    // 8 GiB times 0.000123 is 1,056,562 bytes; 258 units hold them.
    assert_eq!(std::fs::metadata(root.path().join("data/probe/f")).unwrap().len(), 258 * 4096);
}

#[test]
fn settings_out_of_bounds_are_refused_by_name_before_anything_is_made() {
    let root = tempfile::tempdir().unwrap();
    for (more, setting) in [
        ("block_bytes = 0", "block_bytes"),
        ("block_bytes = 1000", "block_bytes"),
        ("block_bytes = \"68 MiB\"", "block_bytes"),
        ("file_bytes = 0", "file_bytes"),
        ("file_bytes = 4097", "file_bytes"),
        ("block_bytes_max = \"1 MiB\"", "block_bytes_max"),
        ("pattern = \"random_read\"\nblock_bytes_max = \"512 KiB\"", "block_bytes_max"),
        ("read_percent = 101", "read_percent"),
        ("passes = 0", "passes"),
        ("duration_seconds = 0", "duration_seconds"),
        ("start_together = 0", "start_together"),
        ("sync = { every = 0 }", "sync"),
        ("fill = \"never\"", "fill"),
    ] {
        let settings = format!("[stream]\nfile = \"data/f\"\n{more}");
        match run(root.path(), &settings) {
            Err(Error::Setting { setting: named, .. }) => assert_eq!(named, setting, "{more}"),
            other => panic!("{more}: {other:?}"),
        }
        assert!(files_below(root.path()).is_empty(), "{more}");
    }
}

#[test]
fn a_file_system_without_direct_io_is_named() {
    // Files of sysfs cannot be opened with O_DIRECT.
    let file = Path::new("/sys/kernel/uevent_seqnum");
    let stream = Stream {
        block_bytes: ByteSize::kib(4),
        io: Io::Direct,
        keep: true,
        ..Stream::new(file.to_owned(), ByteSize::kib(4), Access::Read)
    };
    let text = measure(&stream, &SystemClock).unwrap_err().to_string();
    assert_eq!(
        text,
        "io = direct: must be buffered: the file system of /sys/kernel/uevent_seqnum refuses direct \
         I/O in blocks of 4 KiB"
    );
}

#[test]
fn a_file_that_is_there_is_filled_only_if_told_and_kept_only_if_told() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("f");
    let mut stream = Stream {
        keep: true,
        verify: true,
        ..Stream::new(file.clone(), ByteSize::mib(1), Access::Read)
    };
    std::fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
    assert!(reason(measure(&stream, &SystemClock)).starts_with("offset 0: "));
    assert_eq!(std::fs::read(&file).unwrap()[0], b'x');
    stream.fill = Fill::Always;
    measure(&stream, &SystemClock).unwrap();
    assert!(file.exists());
    stream.keep = false;
    measure(&stream, &SystemClock).unwrap();
    assert!(!file.exists());
}

#[test]
fn a_cold_file_comes_from_the_disk_and_a_warm_one_does_not() {
    let root = on_disk();
    let bytes = 32 << 20;
    let mut stream = Stream {
        keep: true,
        passes: Some(2),
        ..Stream::new(root.path().join("f"), ByteSize(bytes), Access::Read)
    };
    measure(&stream, &SystemClock).unwrap();
    let mut fetched = |cache| {
        stream.cache = cache;
        Moved::by(|| measure(&stream, &SystemClock).unwrap()).1.fetched
    };
    // Once, before it is measured.
    let warm = fetched(Cache::Warm);
    assert!((bytes / 10 * 9..bytes / 2 * 3).contains(&warm), "{warm}");
    // The kernel keeps a page that it uses itself just now (posix_fadvise(2)).
    assert!(fetched(Cache::Cold) >= bytes / 10 * 9, "is the build directory on a disk?");
}

#[test]
fn what_is_left_out_has_its_default() {
    let step = |text: &str| toml::from_str::<Step>(text).unwrap();
    assert_eq!(
        step("[stream]\nfile = \"data/f\""),
        Step::Stream(Stream::new("data/f".into(), ByteSize::gib(8), Access::Read))
    );
    assert_eq!(step("[names]\ndirectory = \"data/n\""), Step::Names(Names::new("data/n".into())));
}

#[test]
fn streams_of_a_class_start_together_and_leave_nothing() {
    let root = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for number in 0..3 {
            let root = root.path();
            scope.spawn(move || {
                let step: Step = toml::from_str(
                    "[stream]\nfile = \"data/probe/{job}\"\nfile_bytes = \"1 MiB\"
                     start_together = \"class\"\nstart_limit_seconds = 60",
                )
                .unwrap();
                run_in(&context(root, number, 3, &SystemClock), step).unwrap();
            });
        }
    });
    assert!(files_below(root.path()).is_empty());
    let alone = settings("file_bytes = \"1 MiB\"\nstart_together = 2\nstart_limit_seconds = 0");
    let text = run(root.path(), &alone).unwrap_err().to_string();
    assert!(text.contains("1 of 2 arrived within 0 s"), "{text}");
    assert!(files_below(root.path()).is_empty());
}

/// Set for the process that has a small disk of its own.
const SMALL_DISK: &str = "FOREBAY_TEST_SMALL_DISK";

#[test]
fn a_full_disk_is_an_error_that_leaves_nothing_behind() {
    if let Some(disk) = std::env::var_os(SMALL_DISK) {
        return fill_disk(Path::new(&disk));
    }
    // A tmpfs of 2 MiB in a mount namespace of its own, so that nothing is left mounted.
    let root = tempfile::tempdir().unwrap();
    let name = "probe::stream::a_full_disk_is_an_error_that_leaves_nothing_behind";
    let script = "mount -t tmpfs -o size=2m tmpfs \"$1\" && exec \"$2\" --exact \"$3\" --nocapture";
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let output = command
        .args(["sh", "-c", script, "sh"])
        .args([root.path().as_os_str(), std::env::current_exe().unwrap().as_os_str()])
        .arg(name)
        .env(SMALL_DISK, root.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

fn fill_disk(disk: &Path) {
    for more in [
        "pattern = \"write\"",
        "pattern = \"read\"",
        "pattern = \"random_mixed\"\nkeep = true",
        "pattern = \"write\"\nio = \"direct\"",
    ] {
        let result = run(disk, &settings(&format!("file_bytes = \"8 MiB\"\n{more}")));
        match result {
            Err(Error::Io { action: "write", source, .. }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{more}");
            }
            other => panic!("{more}: {other:?}"),
        }
        assert!(files_below(disk).is_empty(), "{more}");
    }
}

#[test]
fn a_file_is_cold_before_it_is_read_unless_it_was_read_before() {
    let root = on_disk();
    let bytes = ByteSize::mib(8);
    let stream = |cache| Stream {
        cache,
        keep: true,
        ..Stream::new(root.path().join("f"), bytes, Access::Read)
    };
    // Written in this very process: all of it would be in memory.
    let cold =
        measure(&Stream { fill: Fill::Always, ..stream(Cache::Cold) }, &SystemClock).unwrap();
    let warm = measure(&stream(Cache::Warm), &SystemClock).unwrap();
    let (cold, warm) = (cold.cached_part.unwrap(), warm.cached_part.unwrap());
    assert!(cold < 0.1 && warm > 0.9, "{cold} of a cold file and {warm} of a warm one in memory");
    let (result, moved) = Moved::by(|| measure(&stream(Cache::Warm), &SystemClock).unwrap());
    assert_eq!((result.read_bytes, moved.read), (bytes.0, 2 * bytes.0), "one pass is not measured");
}
