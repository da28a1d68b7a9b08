//! How the databases are set, with reasons. Sizes suit etcd, the smallest of the places.

use std::time::Duration;

use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, CompressionCodec, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, Settings,
};

/// Bytes of a memtable before it becomes a sorted table. What is in memtables is replayed at opening: a takeover after a crash
/// reads at most this much, and as many objects of the log.
const TABLE_BYTES: usize = 16 << 20;
/// Commits, each an object of the log, before the memtable becomes a sorted table whatever its size. The engine's own limit is
/// at least 4096, of which a takeover would read each.
pub(super) const LOG_OBJECTS_MAX: u64 = 1024;
/// Largest sorted table that compaction writes: one object, up to 32 chunks in etcd.
const COMPACTED_BYTES_MAX: usize = 32 << 20;
/// Bytes that may wait for their upload before commits wait.
const UNFLUSHED_BYTES_MAX: usize = 256 << 20;

/// New sorted tables that compaction has not merged yet before the engine makes no more, and lets who asks for one wait.
const NEW_TABLES_MAX: usize = 8;
/// Such tables from which on a store asks for none before it is closed or handed over, which must not wait for a compaction: each
/// opening may leave one behind. The log stays longer then. Two may be on their way already.
pub(super) const UNASKED_TABLES_MAX: usize = NEW_TABLES_MAX - 2;

/// How old an object of the log must be before it goes, once its records are in a sorted table.
const LOG_AGE_MIN: Duration = Duration::from_secs(30);
/// The same for sorted tables that were compacted away, and for old manifests. Whoever still reads them must have finished.
const TABLE_AGE_MIN: Duration = Duration::from_secs(300);
const MANIFEST_AGE_MIN: Duration = Duration::from_secs(300);

/// The settings of each database. `conditional_replace`: whether the place can replace objects on a condition.
pub(super) fn settings(conditional_replace: bool) -> Settings {
    Settings {
        // Each commit flushes the log itself.
        flush_interval: None,
        // For compactions only: a newer writer is noticed by the next commit.
        manifest_poll_interval: Duration::from_secs(5),
        l0_sst_size_bytes: TABLE_BYTES,
        max_unflushed_bytes: UNFLUSHED_BYTES_MAX,
        l0_flush_parallelism: 2,
        l0_max_ssts: NEW_TABLES_MAX,
        l0_max_ssts_per_key: NEW_TABLES_MAX,
        compression_codec: Some(CompressionCodec::Zstd),
        // It has a life of its own: see `compaction`.
        compactor_options: None,
        garbage_collector_options: Some(garbage(conditional_replace)),
        ..Settings::default()
    }
}

pub(super) fn compactor() -> CompactorOptions {
    let worker = CompactionWorkerOptions {
        max_concurrent_compactions: 1,
        max_sst_size: COMPACTED_BYTES_MAX,
        max_subcompactions: 1,
        compression_codec: Some(CompressionCodec::Zstd),
        ..CompactionWorkerOptions::default()
    };
    CompactorOptions {
        max_concurrent_compactions: 1,
        checkpoint_lifetime: TABLE_AGE_MIN,
        worker: Some(worker),
        ..CompactorOptions::default()
    }
}

fn garbage(conditional_replace: bool) -> GarbageCollectorOptions {
    let directory = |interval: u64, min_age| {
        let interval = Some(Duration::from_secs(interval));
        Some(GarbageCollectorDirectoryOptions { interval, min_age, dry_run: false })
    };
    GarbageCollectorOptions {
        wal_options: directory(15, LOG_AGE_MIN),
        manifest_options: directory(60, MANIFEST_AGE_MIN),
        compacted_options: directory(60, TABLE_AGE_MIN),
        compactions_options: directory(60, MANIFEST_AGE_MIN),
        // Empty objects that keep former writers out stay for ever: a frozen one may thaw at any time.
        wal_fence_options: None,
        boundary_files_enabled: conditional_replace,
        ..GarbageCollectorOptions::default()
    }
}
