//! What an agent reports to monitors: its host, from /proc when a monitor asks, and how many jobs it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_metrics::{Metric, Page, Render, Table, own};

static PROCESSORS: Metric =
    Metric::gauge("forebay_machine_processors", &["host"], "Processors of the machine");
static PROCESSOR_TIME: Metric = Metric::counter(
    "forebay_machine_processor",
    &["host", "mode"],
    "Processor time of the machine: user, system, idle, iowait, steal",
)
.seconds();
static MEMORY: Metric =
    Metric::gauge("forebay_machine_memory", &["host"], "Memory of the machine").bytes();
static AVAILABLE: Metric = Metric::gauge(
    "forebay_machine_memory_available",
    &["host"],
    "Memory of the machine that is available",
)
.bytes();
static LOAD: Metric =
    Metric::gauge("forebay_machine_load", &["host", "minutes"], "Load average of the machine");
static PRESSURE: Metric = Metric::counter(
    "forebay_machine_pressure",
    &["host", "resource", "waiting"],
    "Time in which some, or all, processes of the machine waited for a resource: cpu, io, memory (PSI)",
)
.seconds();
static RUNNING: Metric =
    Metric::gauge("forebay_agent_running", &["host"], "Jobs that the agent holds");
static SLOTS: Metric = Metric::gauge("forebay_agent_slots", &["host"], "Slots of the host");
static CONNECTED: Metric = Metric::gauge(
    "forebay_agent_connected",
    &["host"],
    "1 if the agent is connected to a controller",
);

/// What an agent reports.
pub static TABLE: Table = Table {
    title: "Agent",
    page: "/metrics",
    about: "These describe the host and its machine: all agents on one machine report the same machine.",
    metrics: &[
        &PROCESSORS,
        &PROCESSOR_TIME,
        &MEMORY,
        &AVAILABLE,
        &LOAD,
        &PRESSURE,
        &RUNNING,
        &SLOTS,
        &CONNECTED,
    ],
};

/// What the agent's own thread says of itself.
#[derive(Debug, Default)]
pub(super) struct Figures {
    running: AtomicU64,
    connected: AtomicU64,
}

impl Figures {
    /// How it is now.
    pub fn set(&self, running: usize, is_connected: bool) {
        self.running.store(running as u64, Ordering::Relaxed);
        self.connected.store(is_connected.into(), Ordering::Relaxed);
    }
}

/// The pages of an agent.
pub(super) fn pages(
    host: String,
    slots: u32,
    figures: Arc<Figures>,
) -> Vec<(&'static str, Render)> {
    let render = move || {
        let mut page = Page::new();
        own::gather(&mut page, "agent");
        put_machine(&mut page, &host);
        let name = &[host.as_str()];
        page.set_whole(&RUNNING, name, figures.running.load(Ordering::Relaxed));
        page.set_whole(&SLOTS, name, slots.into());
        page.set_whole(&CONNECTED, name, figures.connected.load(Ordering::Relaxed));
        Some(page)
    };
    vec![("/metrics", Box::new(render))]
}

fn put_machine(page: &mut Page, host: &str) {
    let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
    let stat = read("/proc/stat");
    let numbered = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    page.set_whole(&PROCESSORS, &[host], stat.lines().filter(numbered).count() as u64);
    for (mode, seconds) in processor_times(&stat) {
        page.set(&PROCESSOR_TIME, &[host, mode], seconds);
    }
    let memory = read("/proc/meminfo");
    for (metric, key) in [(&MEMORY, "MemTotal:"), (&AVAILABLE, "MemAvailable:")] {
        let kib = memory.lines().find_map(|line| {
            line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok()
        });
        if let Some(kib) = kib {
            page.set_whole(metric, &[host], kib * 1024);
        }
    }
    for (minutes, load) in ["1", "5", "15"].iter().zip(read("/proc/loadavg").split(' ')) {
        if let Ok(load) = load.parse() {
            page.set(&LOAD, &[host, minutes], load);
        }
    }
    for resource in ["cpu", "io", "memory"] {
        for (waiting, seconds) in pressures(&read(&format!("/proc/pressure/{resource}"))) {
            page.set(&PRESSURE, &[host, resource, waiting], seconds);
        }
    }
}

/// Seconds of processor time by mode, from /proc/stat (proc_stat(5)).
fn processor_times(stat: &str) -> Vec<(&'static str, f64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
        return Vec::new();
    };
    let seconds = forebay_process::stat::seconds;
    vec![
        ("user", seconds(user + nice)),
        ("system", seconds(system + irq + softirq)),
        ("idle", seconds(idle)),
        ("iowait", seconds(iowait)),
        ("steal", seconds(steal)),
    ]
}

/// Seconds that some and all waited, from a file of /proc/pressure.
fn pressures(text: &str) -> Vec<(&'static str, f64)> {
    let total = |line: &str| line.rsplit_once("total=")?.1.trim().parse::<u64>().ok();
    let line = |word: &'static str| {
        let found = text.lines().find(|line| line.starts_with(word))?;
        Some((word, std::time::Duration::from_micros(total(found)?).as_secs_f64()))
    };
    ["some", "full"].into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_read_as_they_are_written() {
        let ticks = rustix::param::clock_ticks_per_second();
        let stat = format!("cpu  {ticks} {ticks} {} 0 0 0 {ticks} 0 0 0\ncpu0 1 1 1\n", 3 * ticks);
        let times = processor_times(&stat);
        assert_eq!(times[0], ("user", 2.0));
        assert_eq!(times[1], ("system", 4.0));
        assert!(processor_times("cpu  1 2\n").is_empty());
        let io = "some avg10=0.66 avg60=0.28 avg300=0.11 total=6500000\nfull avg10=0.00 avg60=0.01 avg300=0.00 total=250000\n";
        assert_eq!(pressures(io), [("some", 6.5), ("full", 0.25)]);
        assert!(pressures("").is_empty());
    }
}
