//! What the kernel front end reports to monitors.

use forebay_fs::Namespace;
use forebay_fs::metrics::{label, spread};
use forebay_fs::stats::OPERATIONS;
use forebay_metrics::{Metric, Page, Table};

use super::Activity;
use crate::session::Session;
use crate::transport::Transport;

static DURATION: Metric = Metric::durations(
    "forebay_operation_duration",
    &["fileset", "operation"],
    "Time of an operation of this mount's kernel, from the arrival of its request to the answer",
);
static ERRORS: Metric = Metric::counter(
    "forebay_operation_errors",
    &["fileset", "operation", "error"],
    "Operations of this mount's kernel that were answered with an error; many are ordinary (ENOENT, EEXIST, ENODATA)",
);
static SERVED_READ: Metric = Metric::counter(
    "forebay_served_read",
    &["fileset"],
    "Bytes that this mount's daemon read for programs of this machine (served path)",
)
.bytes();
static SERVED_WRITTEN: Metric = Metric::counter(
    "forebay_served_written",
    &["fileset"],
    "Bytes that this mount's daemon wrote for programs of this machine (served path)",
)
.bytes();
static REQUESTS: Metric = Metric::counter(
    "forebay_requests",
    &["request"],
    "Requests of the kernel by their names in the FUSE protocol",
);
static MOUNT: Metric = Metric::gauge(
    "forebay_mount",
    &["transport", "data_path"],
    "1, with how requests arrive (uring or dev) and how bytes go (direct or served)",
);

/// What the kernel front end reports.
pub static TABLE: Table = Table {
    title: "Requests of the kernel",
    page: "/metrics",
    about: "Of the daemon behind a mount. Reads and writes on the direct path, and everything in native filesets that are \
            bound in place, never reach the daemon and are not counted here.",
    metrics: &[&DURATION, &ERRORS, &SERVED_READ, &SERVED_WRITTEN, &REQUESTS, &MOUNT],
};

impl Session {
    /// Adds what this session reports to monitors.
    pub fn report(&self, fs: &Namespace, page: &mut Page) {
        for (fileset, name) in fs.fileset_names() {
            if let Some(activity) = self.activities().find(fileset) {
                report_fileset(page, &name, activity);
            }
        }
        for (request, count) in self.requests() {
            page.count(&REQUESTS, &[request], count);
        }
        let transport = match self.transport() {
            Transport::Dev(_) => "dev",
            Transport::Uring(_) => "uring",
        };
        let data_path = if fs.objects().has_direct_access() { "direct" } else { "served" };
        page.set_whole(&MOUNT, &[transport, data_path], 1);
    }
}

fn report_fileset(page: &mut Page, name: &str, activity: &Activity) {
    for ((_, text), latency) in OPERATIONS.iter().zip(activity.latencies()) {
        let spread = spread(latency);
        if spread.beyond > 0 || spread.buckets.iter().any(|(_, count)| *count > 0) {
            page.spread(&DURATION, &[name, label(text)], spread);
        }
    }
    for (operation, errno, count) in activity.errors() {
        let text =
            OPERATIONS.iter().find(|(known, _)| *known == operation).map_or("", |(_, text)| text);
        page.count(&ERRORS, &[name, label(text), &crate::errno::name(errno)], count);
    }
    let (read, written) = activity.served_bytes();
    page.count(&SERVED_READ, &[name], read);
    page.count(&SERVED_WRITTEN, &[name], written);
}
