//! What a file system reports to monitors: from counters that it has anyway, without asking another node or a disk of one.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::in_flight::{self, WaitsFor};
use forebay_metrics::{Metric, Page, Spread, Table};

use super::Namespace;
use crate::ops::{ArchiveStatus, shown_name};
use crate::partition::Partition;
use crate::stats::{Latency, OPERATIONS, Operation};

static OPERATIONS_DONE: Metric = Metric::counter(
    "forebay_operations",
    &["fileset", "operation"],
    "Operations carried out in filesets that this node owns, whichever node asked",
);
static READ: Metric = Metric::counter(
    "forebay_read",
    &["fileset"],
    "Bytes that this daemon read for programs and other nodes; what the kernel reads itself (direct path) does not appear",
)
.bytes();
static WRITTEN: Metric = Metric::counter(
    "forebay_written",
    &["fileset"],
    "Bytes that this daemon wrote for programs and other nodes, and the growth of files that the kernel writes itself",
)
.bytes();
static COMMIT: Metric =
    Metric::durations("forebay_commit_duration", &["fileset"], "Time of a commit to the store");
static COMMITTED: Metric = Metric::counter(
    "forebay_committed_records",
    &["fileset"],
    "Records that were committed to the store",
);
static COMMITS_FAILED: Metric =
    Metric::counter("forebay_commit_failures", &["fileset"], "Commits that failed");
static UNCOMMITTED: Metric = Metric::gauge(
    "forebay_uncommitted_records",
    &["fileset"],
    "Records that are not committed yet",
);
static COMMIT_AGE: Metric = Metric::gauge(
    "forebay_commit_age",
    &["fileset"],
    "Time since the moment up to which all changes are committed",
)
.seconds();
static FAULTY: Metric = Metric::gauge(
    "forebay_commit_failing",
    &["fileset"],
    "1 while the latest commit failed, or the fileset is stopped",
);
static FILESETS: Metric = Metric::gauge("forebay_filesets", &[], "Filesets of the file system");
static FILESETS_OPEN: Metric =
    Metric::gauge("forebay_filesets_open", &[], "Filesets that this node owns and has open");
static INODES: Metric =
    Metric::gauge("forebay_fileset_inodes", &["fileset"], "Inodes of any kind in an open fileset");
static SIZE: Metric = Metric::gauge(
    "forebay_fileset_size",
    &["fileset"],
    "Sum of the sizes of the files in an open fileset",
)
.bytes();
static DAMAGED: Metric = Metric::gauge(
    "forebay_damaged_files",
    &["fileset"],
    "Files found to have lost data since the mount; if there are many, only some",
);
static COPIES_WAITING: Metric = Metric::gauge(
    "forebay_copies_waiting",
    &["fileset"],
    "Files that still lack copies (best estimate); only of filesets with copies",
);
static COPIES_LACKING: Metric = Metric::gauge(
    "forebay_copies_lacking",
    &["fileset"],
    "1 while copies of files cannot be made, for lack of space or of failure groups; only of filesets with copies",
);
static HOME_CHANGES: Metric = Metric::gauge(
    "forebay_cache_changes_waiting",
    &["fileset"],
    "Changes of a single-writer cache that its home does not have yet",
);
static HOME_AGE: Metric = Metric::gauge(
    "forebay_cache_changes_age",
    &["fileset"],
    "Age of the oldest change of a single-writer cache that its home does not have yet",
)
.seconds();
static HOME_CONFLICTS: Metric = Metric::gauge(
    "forebay_cache_conflicts",
    &["fileset"],
    "Conflicts at the home of a single-writer cache that nobody has told it to forget",
);
static STORES: Metric = Metric::gauge("forebay_store", &[], "Space that the stores occupy").bytes();
static STORE_RESERVE: Metric = Metric::gauge(
    "forebay_store_reserve_held",
    &[],
    "1 while space is reserved for commits on a full disk",
);
static CACHED: Metric = Metric::gauge("forebay_cached_inodes", &[], "Inodes in memory");
static CACHE: Metric =
    Metric::gauge("forebay_inode_cache", &[], "Estimated memory of cached inodes").bytes();
static CACHE_MAX: Metric =
    Metric::gauge("forebay_inode_cache_max", &[], "The setting inode_cache_max").bytes();
static OPEN_OBJECTS: Metric =
    Metric::gauge("forebay_open_objects", &[], "Objects that are open, spare ones included");
static OPEN_OBJECTS_MAX: Metric = Metric::gauge(
    "forebay_open_objects_max",
    &[],
    "The setting open_objects_max, or less if the limit of open files is lower",
);
static SPARES: Metric = Metric::gauge("forebay_spare_objects", &[], "Fresh objects in stock");
static SPARES_WANTED: Metric =
    Metric::gauge("forebay_spare_objects_wanted", &[], "The setting spare_objects");
static RECLAIM: Metric = Metric::gauge(
    "forebay_reclaim_backlog",
    &[],
    "Dropped objects that wait to be closed and removed",
);
static DISK_SIZE: Metric =
    Metric::gauge("forebay_disk_size", &["disk"], "Size of a disk of this node").bytes();
static DISK_AVAILABLE: Metric =
    Metric::gauge("forebay_disk_available", &["disk"], "Free bytes on a disk for ordinary users")
        .bytes();
static DISK_OBJECTS: Metric = Metric::gauge(
    "forebay_disk_objects",
    &["disk"],
    "Objects on a disk that files of this node's filesets refer to",
);
static DISK_RESERVE: Metric =
    Metric::gauge("forebay_disk_reserve", &["disk"], "Space that should be reserved on a disk")
        .bytes();
static DISK_RESERVE_HELD: Metric =
    Metric::gauge("forebay_disk_reserve_held", &["disk"], "Space that is reserved on a disk now")
        .bytes();
static DISK_ERRORS: Metric =
    Metric::counter("forebay_disk_errors", &["disk"], "Errors of a disk since the mount");
static DISK_FAILING: Metric = Metric::gauge(
    "forebay_disk_failing",
    &["disk"],
    "1 if a disk was found not to accept writes, since the mount",
);
static DISK_FILES: Metric = Metric::gauge(
    "forebay_disk_files",
    &["disk"],
    "Sum of the sizes of the files that lie on a disk of this node, or in an archive, copies not included",
)
.bytes();
static DISK_STORED: Metric = Metric::gauge(
    "forebay_disk_stored",
    &["disk"],
    "Bytes that these files take there: less than their sizes if they are compressed or sparse",
)
.bytes();
static ARCHIVE_MOVED: Metric = Metric::counter(
    "forebay_archive_files",
    &["disk", "way"],
    "Files that were moved into an archive (in) and brought back (out) since the mount",
);
static ARCHIVE_MOVED_BYTES: Metric = Metric::counter(
    "forebay_archive_files_moved",
    &["disk", "way"],
    "Sum of the sizes of these files",
)
.bytes();
static ARCHIVE_FAILURES: Metric = Metric::counter(
    "forebay_archive_failures",
    &["disk", "way"],
    "How often a file could not be moved into an archive (in) or brought back (out)",
);
static PARTIAL_RANGES: Metric = Metric::counter(
    "forebay_archive_partial_ranges",
    &["disk"],
    "Ranges that were fetched of files which stay in an archive (recall_mode = \"partial\", and files of snapshots)",
);
static PARTIAL_FRAMES: Metric = Metric::counter(
    "forebay_archive_partial_frames",
    &["disk"],
    "Frames in these ranges, of 1 MiB of a file each",
);
static PARTIAL_BYTES: Metric =
    Metric::counter("forebay_archive_partial", &["disk"], "Bytes of files in these ranges").bytes();
static PARTIAL_HITS: Metric = Metric::counter(
    "forebay_archive_partial_hits",
    &["disk"],
    "Reads of such files that were answered with frames that were fetched before",
);
static PARTIAL_FAILURES: Metric = Metric::counter(
    "forebay_archive_partial_failures",
    &["disk"],
    "Reads of such files that failed",
);
static PREMIGRATED: Metric = Metric::gauge(
    "forebay_archive_premigrated_files",
    &["disk"],
    "Premigrated files: they lie in the archive, and on another disk too. One that was written is counted until its object in \
     the archive is removed",
);
static PREMIGRATED_BYTES: Metric = Metric::gauge(
    "forebay_archive_premigrated",
    &["disk"],
    "Sum of the sizes of premigrated files: what evicting them would free on other disks",
)
.bytes();
static PREMIGRATED_STORED: Metric = Metric::gauge(
    "forebay_archive_premigrated_stored",
    &["disk"],
    "Bytes that premigrated files take in the archive",
)
.bytes();
static ARCHIVE_REQUESTS: Metric = Metric::counter(
    "forebay_archive_requests",
    &["disk", "request"],
    "Requests to the store of an archive: put (also parts of large objects), get, list, remove",
);
static ARCHIVE_REQUESTS_FAILED: Metric = Metric::counter(
    "forebay_archive_request_failures",
    &["disk"],
    "Requests to the store of an archive that failed",
);
static ARCHIVE_SENT: Metric =
    Metric::counter("forebay_archive_sent", &["disk"], "Bytes that were put into an archive")
        .bytes();
static ARCHIVE_RECEIVED: Metric = Metric::counter(
    "forebay_archive_received",
    &["disk"],
    "Bytes that were fetched from an archive, also to prove what was put there",
)
.bytes();
static IN_FLIGHT: Metric = Metric::gauge(
    "forebay_requests_in_flight",
    &["waits_for"],
    "Requests that are being carried out, by what they wait for: nothing, or node, recall, report, owner, lease, handover, \
     lock, commit, space, disk, archive",
);
static OLDEST: Metric =
    Metric::gauge("forebay_oldest_request", &["waits_for"], "Age of the oldest request in flight")
        .seconds();

/// What a file system reports.
pub static TABLE: Table = Table {
    title: "File system",
    page: "/metrics",
    about: "Of the daemon behind a mount. The root fileset is `/`. A fileset that is not open here has only its counters.",
    metrics: &[
        &OPERATIONS_DONE,
        &READ,
        &WRITTEN,
        &COMMIT,
        &COMMITTED,
        &COMMITS_FAILED,
        &UNCOMMITTED,
        &COMMIT_AGE,
        &FAULTY,
        &FILESETS,
        &FILESETS_OPEN,
        &INODES,
        &SIZE,
        &DAMAGED,
        &COPIES_WAITING,
        &COPIES_LACKING,
        &HOME_CHANGES,
        &HOME_AGE,
        &HOME_CONFLICTS,
        &STORES,
        &STORE_RESERVE,
        &CACHED,
        &CACHE,
        &CACHE_MAX,
        &OPEN_OBJECTS,
        &OPEN_OBJECTS_MAX,
        &SPARES,
        &SPARES_WANTED,
        &RECLAIM,
        &DISK_SIZE,
        &DISK_AVAILABLE,
        &DISK_OBJECTS,
        &DISK_RESERVE,
        &DISK_RESERVE_HELD,
        &DISK_ERRORS,
        &DISK_FAILING,
        &DISK_FILES,
        &DISK_STORED,
        &ARCHIVE_MOVED,
        &ARCHIVE_MOVED_BYTES,
        &ARCHIVE_FAILURES,
        &PARTIAL_RANGES,
        &PARTIAL_FRAMES,
        &PARTIAL_BYTES,
        &PARTIAL_HITS,
        &PARTIAL_FAILURES,
        &PREMIGRATED,
        &PREMIGRATED_BYTES,
        &PREMIGRATED_STORED,
        &ARCHIVE_REQUESTS,
        &ARCHIVE_REQUESTS_FAILED,
        &ARCHIVE_SENT,
        &ARCHIVE_RECEIVED,
        &IN_FLIGHT,
        &OLDEST,
    ],
};

/// A histogram of durations as monitors get it.
#[must_use]
pub fn spread(latency: &Latency) -> Spread {
    let (coarse, beyond) = latency.coarse();
    let buckets = coarse.into_iter().map(|(edge, count)| (edge.as_secs_f64(), count)).collect();
    Spread { buckets, beyond, sum: latency.sum().as_secs_f64() }
}

/// The name of an operation as a label.
#[must_use]
pub fn label(name: &'static str) -> &'static str {
    name.strip_suffix('s').unwrap_or(name)
}

impl Namespace {
    /// Adds what this file system reports to monitors.
    pub fn report(&self, page: &mut Page) {
        self.report_filesets(page);
        for partition in self.partitions() {
            let name = self.catalogue.get(partition.number()).map(|known| known.settings().name);
            report_partition(page, shown_name(&name.unwrap_or_default()), &partition);
        }
        self.report_memory(page);
        self.report_disks(page);
        self.report_requests(page);
    }

    fn report_filesets(&self, page: &mut Page) {
        let all = self.catalogue.list();
        for fileset in &all {
            let settings = fileset.settings();
            let name = shown_name(&settings.name);
            for ((operation, text), count) in OPERATIONS.iter().zip(fileset.counters.read()) {
                match operation {
                    Operation::BytesRead => page.count(&READ, &[name], count),
                    Operation::BytesWritten => page.count(&WRITTEN, &[name], count),
                    Operation::Commit => {}
                    _ => page.count(&OPERATIONS_DONE, &[name, label(text)], count),
                }
            }
            let commits = &fileset.counters.commits;
            page.spread(&COMMIT, &[name], spread(&commits.took));
            page.count(&COMMITTED, &[name], commits.records.load(Ordering::Relaxed));
            page.count(&COMMITS_FAILED, &[name], commits.failed.load(Ordering::Relaxed));
        }
        self.report_caches(page);
        page.set_whole(&FILESETS, &[], all.len() as u64);
        page.set_whole(&FILESETS_OPEN, &[], self.partitions().len() as u64);
    }

    fn report_caches(&self, page: &mut Page) {
        let now = self.shared.clock.now();
        for fileset in self.catalogue.list() {
            let cache = self.cache_of(fileset.id);
            let Some(waiting) = cache.and_then(|cache| cache.write_back_status(now)) else {
                continue;
            };
            let settings = fileset.settings();
            let name = shown_name(&settings.name);
            page.set_whole(&HOME_CHANGES, &[name], waiting.changes);
            page.set_whole(&HOME_AGE, &[name], waiting.oldest_seconds);
            page.set_whole(&HOME_CONFLICTS, &[name], waiting.conflicts);
        }
    }

    fn report_memory(&self, page: &mut Page) {
        let (settings, objects) = (self.settings(), self.objects());
        let (inodes, bytes) = self.cache_usage();
        page.set_whole(&STORES, &[], self.store_bytes());
        page.set_whole(&STORE_RESERVE, &[], u64::from(self.reserve_is_held()));
        page.set_whole(&CACHED, &[], inodes as u64);
        page.set_whole(&CACHE, &[], bytes as u64);
        page.set_whole(&CACHE_MAX, &[], settings.inode_cache_max.0);
        page.set_whole(&OPEN_OBJECTS, &[], objects.open_count() as u64);
        page.set_whole(&OPEN_OBJECTS_MAX, &[], settings.open_objects_max as u64);
        page.set_whole(&SPARES, &[], objects.spare_count() as u64);
        page.set_whole(&SPARES_WANTED, &[], settings.spare_objects as u64);
        page.set_whole(&RECLAIM, &[], objects.reclaim_backlog() as u64);
    }

    fn report_disks(&self, page: &mut Page) {
        for disk in self.disk_status_of(|disk| disk.is_near || disk.is_archive()) {
            let name = &[disk.location.as_str()];
            if let Some(files) = disk.files {
                page.set_whole(&DISK_FILES, name, files.bytes);
                page.set_whole(&DISK_STORED, name, files.stored_bytes);
            }
            if let Some(archive) = &disk.archive {
                report_archive(page, &disk.location, archive);
                let premigrated = disk.premigrated.unwrap_or_default();
                page.set_whole(&PREMIGRATED, name, premigrated.files);
                page.set_whole(&PREMIGRATED_BYTES, name, premigrated.bytes);
                page.set_whole(&PREMIGRATED_STORED, name, premigrated.stored_bytes);
                page.set_whole(&DISK_OBJECTS, name, disk.objects_in_use);
                page.count(&DISK_ERRORS, name, disk.errors);
                // It has no size.
                continue;
            }
            page.set_whole(&DISK_SIZE, name, disk.total_bytes);
            page.set_whole(&DISK_AVAILABLE, name, disk.available_bytes);
            page.set_whole(&DISK_OBJECTS, name, disk.objects_in_use);
            page.set_whole(&DISK_RESERVE, name, disk.reserve_bytes);
            page.set_whole(&DISK_RESERVE_HELD, name, disk.reserve_held_bytes);
            page.count(&DISK_ERRORS, name, disk.errors);
            page.set_whole(&DISK_FAILING, name, u64::from(disk.is_failing));
        }
    }

    fn report_requests(&self, page: &mut Page) {
        let mut found: HashMap<&'static str, (u64, Duration)> = HashMap::new();
        for request in in_flight::list(self.instant(), Duration::ZERO) {
            let (count, oldest) = found.entry(waits_for(request.waits_for.as_ref())).or_default();
            *count += 1;
            *oldest = request.age.max(*oldest);
        }
        for reason in REASONS {
            let (count, oldest) = found.get(reason).copied().unwrap_or_default();
            page.set_whole(&IN_FLIGHT, &[reason], count);
            page.set(&OLDEST, &[reason], oldest.as_secs_f64());
        }
    }
}

fn report_archive(page: &mut Page, location: &str, archive: &ArchiveStatus) {
    for (way, moves) in [("in", archive.archived), ("out", archive.recalled)] {
        page.count(&ARCHIVE_MOVED, &[location, way], moves.files);
        page.count(&ARCHIVE_MOVED_BYTES, &[location, way], moves.bytes);
        page.count(&ARCHIVE_FAILURES, &[location, way], moves.failures);
    }
    let partial = archive.partial;
    page.count(&PARTIAL_RANGES, &[location], partial.ranges);
    page.count(&PARTIAL_FRAMES, &[location], partial.frames);
    page.count(&PARTIAL_BYTES, &[location], partial.bytes);
    page.count(&PARTIAL_HITS, &[location], partial.hits);
    page.count(&PARTIAL_FAILURES, &[location], partial.failures);
    let requests = archive.requests;
    let all = [
        ("put", requests.puts),
        ("get", requests.gets),
        ("list", requests.lists),
        ("remove", requests.removals),
    ];
    for (request, count) in all {
        page.count(&ARCHIVE_REQUESTS, &[location, request], count);
    }
    page.count(&ARCHIVE_REQUESTS_FAILED, &[location], requests.failures);
    page.count(&ARCHIVE_SENT, &[location], requests.sent_bytes);
    page.count(&ARCHIVE_RECEIVED, &[location], requests.received_bytes);
}

const REASONS: [&str; 12] = [
    "nothing", "node", "recall", "report", "owner", "lease", "handover", "lock", "commit", "space",
    "disk", "archive",
];

fn waits_for(what: Option<&WaitsFor>) -> &'static str {
    match what {
        None => "nothing",
        Some(WaitsFor::Node(_)) => "node",
        Some(WaitsFor::Recall(_)) => "recall",
        Some(WaitsFor::Report(..)) => "report",
        Some(WaitsFor::Owner(_)) => "owner",
        Some(WaitsFor::Lease) => "lease",
        Some(WaitsFor::Handover) => "handover",
        Some(WaitsFor::Lock) => "lock",
        Some(WaitsFor::Commit) => "commit",
        Some(WaitsFor::Space) => "space",
        Some(WaitsFor::Disk(_)) => "disk",
        Some(WaitsFor::Archive(_)) => "archive",
    }
}

fn report_partition(page: &mut Page, name: &str, partition: &Partition) {
    let (health, usage) = (partition.commit_health(), partition.usage());
    page.set_whole(&UNCOMMITTED, &[name], health.pending as u64);
    page.set(&COMMIT_AGE, &[name], health.age.as_secs_f64());
    page.set_whole(&FAULTY, &[name], u64::from(health.last_error.is_some()));
    page.set_whole(&INODES, &[name], usage.inodes);
    page.set_whole(&SIZE, &[name], usage.bytes);
    page.set_whole(&DAMAGED, &[name], partition.damaged().len() as u64);
    if partition.copies().is_in_use() {
        let (waiting, lacking) = partition.copies().waiting();
        page.set_whole(&COPIES_WAITING, &[name], waiting);
        page.set_whole(&COPIES_LACKING, &[name], u64::from(lacking.is_some()));
    }
}
