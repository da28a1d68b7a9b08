//! What a daemon says of its own process, under the names that client libraries of Prometheus use.

use forebay_process::stat::{Stat, seconds};
use rustix::process::{Resource, getrlimit};

use crate::page::Page;
use crate::table::{Metric, Table};

static CPU: Metric = Metric::counter(
    "process_cpu",
    &[],
    "Processor time of the daemon, in user mode and in the kernel",
)
.seconds();
static RESIDENT: Metric =
    Metric::gauge("process_resident_memory", &[], "Memory of the daemon").bytes();
static VIRTUAL: Metric =
    Metric::gauge("process_virtual_memory", &[], "Address space of the daemon").bytes();
static FILES: Metric = Metric::gauge("process_open_fds", &[], "Open files of the daemon");
static FILES_MAX: Metric =
    Metric::gauge("process_max_fds", &[], "Limit of open files of the daemon");
static THREADS: Metric = Metric::gauge("process_threads", &[], "Threads of the daemon");
static START: Metric = Metric::gauge(
    "process_start_time",
    &[],
    "Start time of the daemon, in seconds since the epoch",
)
.seconds();
static BUILD: Metric = Metric::gauge(
    "forebay_build",
    &["version", "daemon"],
    "1, with the version and the kind of the daemon",
);

/// What every daemon says of itself.
pub static TABLE: Table = Table {
    title: "Every daemon",
    page: "/metrics",
    about: "",
    metrics: &[&BUILD, &CPU, &RESIDENT, &VIRTUAL, &FILES, &FILES_MAX, &THREADS, &START],
};

/// Adds what this process says of itself; `daemon` is what it is: mount, controller, agent.
pub fn gather(page: &mut Page, daemon: &str) {
    page.set_whole(&BUILD, &[env!("CARGO_PKG_VERSION"), daemon], 1);
    if let Some(stat) = Stat::own() {
        page.set(&CPU, &[], stat.processor_seconds());
        if let Some(boot) = boot_seconds() {
            page.set(&START, &[], boot + seconds(stat.started));
        }
    }
    let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
    let pages: Vec<u64> =
        read("/proc/self/statm").split(' ').map_while(|word| word.parse().ok()).collect();
    if let [total, resident, ..] = pages[..] {
        let size = rustix::param::page_size() as u64;
        page.set_whole(&RESIDENT, &[], resident * size);
        page.set_whole(&VIRTUAL, &[], total * size);
    }
    let entries = |name: &str| std::fs::read_dir(name).map_or(0, |entries| entries.count() as u64);
    // One of them is that of the folder itself.
    page.set_whole(&FILES, &[], entries("/proc/self/fd").saturating_sub(1));
    page.set_whole(&THREADS, &[], entries("/proc/self/task"));
    if let Some(most) = getrlimit(Resource::Nofile).current {
        page.set_whole(&FILES_MAX, &[], most);
    }
}

/// When the machine was started.
fn boot_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::faults;

    #[test]
    fn a_process_reports_all_of_its_table() {
        assert_eq!(faults(&[&TABLE]), Vec::<String>::new());
        let mut page = Page::new();
        gather(&mut page, "test");
        let text = page.open_metrics();
        for metric in TABLE.metrics {
            assert!(text.contains(&format!("\n{}", metric.full_name())), "{}: {text}", metric.name);
        }
    }
}
