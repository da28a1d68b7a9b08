//! The load of this host, from /proc: the indices of LSF, by the same definitions.
//!
//! - `r15s`: processes that want a processor (`procs_running` of /proc/stat, without the one that looks),
//!   averaged exponentially over 15 seconds. It begins with the kernel's average of one minute. `r1m` and
//!   `r15m` are the kernel's own averages, which count those that wait for a disk as well. All three are
//!   per slot.
//! - `ut`: the part of processor time that was used by programs and the kernel, or taken by other machines on
//!   the same processors (steal), 0 to 1; waiting for I/O counts as idle. Averaged over one minute.
//! - `pg`: pages swapped in and out per second (`pswpin` and `pswpout` of /proc/vmstat), averaged over one
//!   minute. Reading and writing files is no paging.
//! - `io`: KiB per second read from and written to whole disks (/proc/diskstats; no partitions, stacked or
//!   posing devices), averaged over one minute.
//! - `iop`: the part of the last minute in which some process waited for I/O (`some avg60` of /proc/pressure/io), 0 to 1;
//!   0 on a kernel without pressure stall information.
//! - `tmp`, `mem`, `swp`: free MiB now.
//!
//! Averages decay with the time that has really passed between two looks, which are at least a second and,
//! while the agent is connected, at most five seconds apart.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_grid::config::Load;
use forebay_process::disks::Selection;

const MIB: f64 = 1024.0 * 1024.0;

/// The least time between two looks.
const STEP_MS: u64 = 1000;

/// Seconds over which the run queue is averaged.
const QUEUE_SECONDS: f64 = 15.0;

/// Seconds over which rates are averaged.
const RATE_SECONDS: f64 = 60.0;

/// What /proc said at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Look {
    at_ms: u64,
    /// Processes that want a processor.
    running: f64,
    /// Processor time used and in all, in ticks.
    busy: u64,
    total: u64,
    /// Pages swapped in and out.
    pages: u64,
    /// KiB read from and written to disks.
    disk_kib: u64,
}

/// Averages of what is not averaged by the kernel.
#[derive(Default)]
pub struct Meter {
    last: Option<Look>,
    disks: Option<Selection>,
    running: f64,
    used: f64,
    pages: f64,
    disk_kib: f64,
    /// Whether there was an interval yet, so that the rates are known.
    measured: bool,
}

impl Meter {
    /// Looks at the machine, unless the last look was just now.
    pub fn look(&mut self, now_ms: u64) {
        if self.last.is_some_and(|last| now_ms < last.at_ms + STEP_MS) {
            return;
        }
        let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
        let disks = self.disks.get_or_insert_with(Selection::all_disks);
        let mut look = look_of(
            &read("/proc/stat"),
            &read("/proc/vmstat"),
            &read("/proc/diskstats"),
            &mut |name| disks.has(name),
        );
        look.at_ms = now_ms;
        if self.last.is_none() {
            self.running = averages(&read("/proc/loadavg"))[0];
        }
        self.take(look);
    }

    fn take(&mut self, look: Look) {
        let Some(last) = self.last.replace(look) else { return };
        let seconds = look.at_ms.saturating_sub(last.at_ms) as f64 / 1000.0;
        if seconds <= 0.0 {
            return;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let ticks = look.total.saturating_sub(last.total);
        let used = look.busy.saturating_sub(last.busy) as f64 / (ticks.max(1) as f64);
        let kept = |over: f64| (-seconds / over).exp();
        let mix = |average: &mut f64, now: f64, kept: f64| {
            *average = *average * kept + now * (1.0 - kept);
        };
        mix(&mut self.running, look.running, kept(QUEUE_SECONDS));
        // The first interval is all that is known of the time before.
        let kept = if self.measured { kept(RATE_SECONDS) } else { 0.0 };
        self.measured = true;
        mix(&mut self.used, used.min(1.0), kept);
        mix(&mut self.pages, rate(look.pages, last.pages), kept);
        mix(&mut self.disk_kib, rate(look.disk_kib, last.disk_kib), kept);
    }

    /// The indices now.
    pub fn load(&self, slots: u32, free_mib: f64) -> Load {
        let slots = f64::from(slots.max(1));
        let [r1m, _, r15m] =
            averages(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default());
        Load {
            r15s: self.running / slots,
            r1m: r1m / slots,
            r15m: r15m / slots,
            ut: self.used,
            pg: self.pages,
            io: self.disk_kib,
            tmp: free_mib,
            mem: meminfo("MemAvailable:") / MIB,
            swp: meminfo("SwapFree:") / MIB,
            iop: pressure(&std::fs::read_to_string("/proc/pressure/io").unwrap_or_default()),
        }
    }
}

/// What is free where work areas lie, as it was when it could be asked last: a file system may not answer.
#[derive(Debug, Default)]
pub struct FreeSpace {
    bytes: AtomicU64,
    asked: AtomicBool,
}

impl FreeSpace {
    /// Something to measure it with, unless that is under way.
    pub fn ask(this: &Arc<FreeSpace>) -> Option<Arc<FreeSpace>> {
        (!this.asked.swap(true, Ordering::Relaxed)).then(|| Arc::clone(this))
    }

    /// Measures it; waits for the file system.
    pub fn measure(&self, place: &Path) {
        let free = rustix::fs::statvfs(place).map_or(0, |free| free.f_bavail * free.f_frsize);
        self.bytes.store(free, Ordering::Relaxed);
        self.asked.store(false, Ordering::Relaxed);
    }

    /// In MiB.
    pub fn mib(&self) -> f64 {
        self.bytes.load(Ordering::Relaxed) as f64 / MIB
    }
}

/// The part of the last minute in which some process waited, as a file of /proc/pressure says; 0 without the file.
fn pressure(text: &str) -> f64 {
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let mut words = some.unwrap_or_default().split_ascii_whitespace();
    let percent = words.find_map(|word| word.strip_prefix("avg60=")?.parse::<f64>().ok());
    percent.map_or(0.0, |percent| (percent / 100.0).clamp(0.0, 1.0))
}

/// The averages of /proc/loadavg over one, five and fifteen minutes.
fn averages(text: &str) -> [f64; 3] {
    let mut words = text.split_ascii_whitespace();
    [(); 3].map(|()| words.next().and_then(|word| word.parse().ok()).unwrap_or(0.0))
}

/// The number behind a name at the start of a line.
fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn look_of(
    stat: &str,
    vmstat: &str,
    diskstats: &str,
    is_disk: &mut dyn FnMut(&str) -> bool,
) -> Look {
    // user nice system idle iowait irq softirq steal; guests are in user and nice already.
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let mut ticks = [0_u64; 8];
    for (place, word) in ticks.iter_mut().zip(line.split_ascii_whitespace()) {
        *place = word.parse().unwrap_or(0);
    }
    let total = ticks.iter().sum();
    Look {
        at_ms: 0,
        running: number(stat, "procs_running").saturating_sub(1) as f64,
        busy: total - ticks[3] - ticks[4],
        total,
        pages: number(vmstat, "pswpin") + number(vmstat, "pswpout"),
        disk_kib: diskstats.lines().map(|line| sectors(line, is_disk)).sum::<u64>() / 2,
    }
}

/// Sectors of 512 bytes that a line of /proc/diskstats tells, if it is of a disk that counts.
fn sectors(line: &str, is_disk: &mut dyn FnMut(&str) -> bool) -> u64 {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let word = |place: usize| words.get(place).and_then(|word| word.parse::<u64>().ok());
    match words.get(2) {
        Some(name) if is_disk(name) => word(5).unwrap_or(0) + word(9).unwrap_or(0),
        Some(_) | None => 0,
    }
}

/// Bytes of memory of this host.
pub fn memory_bytes() -> u64 {
    meminfo("MemTotal:") as u64
}

fn meminfo(key: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0.0) * 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 10 50 800 30 5 5 0 60 0\ncpu0 100 10 50 800 30 5 5 0 60 0\n\
        intr 12345 0 1\nctxt 99\nbtime 1700000000\nprocesses 4242\nprocs_running 4\nprocs_blocked 7\n";
    const VMSTAT: &str = "nr_free_pages 1\npgpgin 5000\npgpgout 6000\npswpin 30\npswpout 12\n\
        pswpin_extra 9\n";
    const DISKSTATS: &str = "   8       0 sda 10 0 2000 5 20 0 4000 9 0 3 14 0 0 0 0 0 0\n   8       1 \
        sda1 10 0 2000 5 20 0 4000 9 0 3 14\n 259       0 nvme0n1 1 0 8 0 1 0 16 0 0 0 0\n   7       0 \
        loop0 1 0 999 0 1 0 999 0 0 0 0\n";

    fn look_at() -> Look {
        look_of(STAT, VMSTAT, DISKSTATS, &mut |name| ["sda", "nvme0n1"].contains(&name))
    }

    #[test]
    fn each_number_is_taken_from_its_place() {
        let look = look_at();
        // Four want a processor, one of which is the one that looks.
        assert_eq!(look.running, 3.0);
        // All but idle and waiting for I/O; guest time is part of user time.
        assert_eq!((look.busy, look.total), (170, 1000));
        assert_eq!(look.pages, 42);
        assert_eq!(look.disk_kib, (2000 + 4000 + 8 + 16) / 2);
    }

    #[test]
    fn a_machine_without_these_files_counts_as_idle() {
        assert_eq!(look_of("", "", "", &mut |_| true), Look::default());
    }

    #[test]
    fn rates_are_those_of_the_interval_and_then_averages_over_a_minute() {
        let mut meter = Meter::default();
        meter.take(look_at());
        let mut next = look_at();
        next.at_ms = 5000;
        next.busy += 250;
        next.total += 1000;
        next.pages += 500;
        next.disk_kib += 10_240;
        meter.take(next);
        assert_eq!((meter.used, meter.pages, meter.disk_kib), (0.25, 100.0, 2048.0));
        // Then a minute of nothing.
        next.at_ms += 60_000;
        next.total += 12_000;
        meter.take(next);
        let left = (-1.0_f64).exp();
        assert!((meter.used - 0.25 * left).abs() < 1e-9, "{}", meter.used);
        assert!((meter.pages - 100.0 * left).abs() < 1e-9, "{}", meter.pages);
        assert!((meter.disk_kib - 2048.0 * left).abs() < 1e-9, "{}", meter.disk_kib);
    }

    #[test]
    fn the_run_queue_is_averaged_over_fifteen_seconds_however_often_it_is_looked_at() {
        let after = |steps: u64| {
            let mut meter = Meter::default();
            let mut look = Look { running: 8.0, ..Look::default() };
            meter.take(look);
            for _ in 0..steps {
                look.at_ms += 15_000 / steps;
                meter.take(look);
            }
            meter.running
        };
        let wanted = 8.0 * (1.0 - (-1.0_f64).exp());
        for steps in [1, 3, 15] {
            assert!((after(steps) - wanted).abs() < 1e-9, "{steps}: {}", after(steps));
        }
    }

    #[test]
    fn counters_that_went_back_do_not_count_below_zero() {
        let mut meter = Meter::default();
        meter.take(look_at());
        meter.take(Look { at_ms: 5000, ..Look::default() });
        assert_eq!((meter.used, meter.pages, meter.disk_kib), (0.0, 0.0, 0.0));
    }

    #[test]
    fn the_kernels_averages_are_read() {
        assert_eq!(averages("0.50 1.25 3.00 2/345 678\n"), [0.5, 1.25, 3.0]);
        assert_eq!(averages(""), [0.0; 3]);
    }
}
