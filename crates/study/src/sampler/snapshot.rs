//! What the kernel has counted up to one moment, and the difference of two such moments.
//!
//! Everything here is pure. A file that cannot be read, or a column that an old kernel lacks, counts as
//! zero or as not known; it never ends a study.

use std::collections::BTreeMap;

use forebay_process::accounting::field;

use crate::record::Sample;

/// Bytes of a sector in `/proc/diskstats`, whatever the device's own sector size is.
const SECTOR_BYTES: u64 = 512;

/// The machine at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Seconds since the start of the run.
    pub at_seconds: f64,
    /// Processor time, if known.
    pub processor: Option<Processor>,
    /// The devices that are watched, by name.
    pub devices: BTreeMap<String, Device>,
    /// Memory.
    pub memory: Memory,
    /// Pressure, if the kernel measures it.
    pub pressure: Option<Pressure>,
    /// Interfaces of the network that are counted, by name; `None` if they cannot be read.
    pub network: Option<BTreeMap<String, Interface>>,
}

/// Counters of one network interface since it appeared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

/// Processor time since boot, all processors together, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// User mode, niced and guests included.
    pub user: u64,
    /// Kernel, interrupts included.
    pub system: u64,
    /// Idle.
    pub idle: u64,
    /// Idle while a request to a device was under way.
    pub io_wait: u64,
    /// Taken by other virtual machines.
    pub steal: u64,
}

/// Counters of one block device since it appeared. Times wrap at 2^32 milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Milliseconds of all reads, added up.
    pub read_milliseconds: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Milliseconds of all writes, added up.
    pub write_milliseconds: u64,
    /// Milliseconds in which there was a request.
    pub busy_milliseconds: u64,
}

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Dirty page cache.
    pub dirty_bytes: u64,
    /// Page cache under way to devices.
    pub writeback_bytes: u64,
    /// Page cache.
    pub cached_bytes: u64,
    /// Memory that could be had without swapping.
    pub available_bytes: u64,
}

/// Microseconds since boot in which tasks waited for I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Some task did.
    pub some: u64,
    /// All that were not idle did; old kernels do not say.
    pub full: Option<u64>,
}

/// What the jobs did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Read calls.
    pub read_calls: u64,
    /// Write calls.
    pub write_calls: u64,
}

/// How many jobs are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Due, and waiting for their start.
    pub waiting: u32,
    /// Running.
    pub running: u32,
    /// Ended.
    pub done: u32,
}

impl Processor {
    /// Takes `/proc/stat` apart (proc_stat(5)). Kernels before 2.6.11 have no `steal`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Processor> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut ticks = line.split_ascii_whitespace().map(|ticks| ticks.parse().unwrap_or(0));
        let mut next = || ticks.next();
        let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
        let mut or_zero = || next().unwrap_or(0);
        let (io_wait, hard, soft, steal) = (or_zero(), or_zero(), or_zero(), or_zero());
        // The time of guests, which follows, is in `user` and `nice` already.
        Some(Processor { user: user + nice, system: system + hard + soft, idle, io_wait, steal })
    }

    /// Parts of the time since `before`: user, system, wait, idle, steal.
    fn parts_since(&self, before: &Processor) -> [f64; 5] {
        // The kernel documents that the time of waiting may go back.
        let passed = [
            self.user.saturating_sub(before.user),
            self.system.saturating_sub(before.system),
            self.io_wait.saturating_sub(before.io_wait),
            self.idle.saturating_sub(before.idle),
            self.steal.saturating_sub(before.steal),
        ];
        let all: u64 = passed.iter().sum();
        passed.map(|ticks| part(ticks as f64, all as f64))
    }
}

impl Device {
    /// Takes `/proc/diskstats` apart and keeps the devices that `watched` names. Lines of partitions of
    /// kernels before 2.6.25, which have four numbers only, are left out.
    pub fn parse_all(
        text: &str,
        mut watched: impl FnMut(&str) -> bool,
    ) -> BTreeMap<String, Device> {
        let mut devices = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace().skip(2);
            let Some(name) = words.next() else { continue };
            if let Some(device) = Device::parse(words)
                && watched(name)
            {
                devices.insert(name.to_owned(), device);
            }
        }
        devices
    }

    /// The numbers of a line, in the order of Documentation/admin-guide/iostats.rst.
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Option<Device> {
        let mut numbers = [0; 11];
        let mut count = 0;
        for (place, word) in numbers.iter_mut().zip(words) {
            *place = word.parse().ok()?;
            count += 1;
        }
        (count == numbers.len()).then(|| Device {
            reads: numbers[0],
            read_bytes: numbers[2] * SECTOR_BYTES,
            read_milliseconds: numbers[3],
            writes: numbers[4],
            written_bytes: numbers[6] * SECTOR_BYTES,
            write_milliseconds: numbers[7],
            busy_milliseconds: numbers[9],
        })
    }

    /// What it did since `before`.
    fn since(&self, before: &Device) -> Device {
        Device {
            reads: count_since(self.reads, before.reads),
            read_bytes: count_since(self.read_bytes, before.read_bytes),
            read_milliseconds: time_since(self.read_milliseconds, before.read_milliseconds),
            writes: count_since(self.writes, before.writes),
            written_bytes: count_since(self.written_bytes, before.written_bytes),
            write_milliseconds: time_since(self.write_milliseconds, before.write_milliseconds),
            busy_milliseconds: time_since(self.busy_milliseconds, before.busy_milliseconds),
        }
    }
}

impl Interface {
    /// Takes `/proc/net/dev` apart and keeps the interfaces that `counted` names. `None` if it is not that file.
    pub fn parse_all(
        text: &str,
        mut counted: impl FnMut(&str) -> bool,
    ) -> Option<BTreeMap<String, Interface>> {
        let mut interfaces = BTreeMap::new();
        // Two lines of titles come first.
        text.lines().next()?;
        for line in text.lines().skip(2) {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> =
                numbers.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
            // Bytes received are the first of eight columns, bytes sent the first of the next eight.
            let (&received_bytes, &sent_bytes) = (numbers.first()?, numbers.get(8)?);
            if counted(name.trim()) {
                interfaces.insert(name.trim().to_owned(), Interface { received_bytes, sent_bytes });
            }
        }
        Some(interfaces)
    }
}

impl Memory {
    /// Takes `/proc/meminfo` apart.
    #[must_use]
    pub fn parse(text: &str) -> Memory {
        let bytes = |name| field(text, name).unwrap_or(0) << 10;
        Memory {
            dirty_bytes: bytes("Dirty"),
            writeback_bytes: bytes("Writeback"),
            cached_bytes: bytes("Cached"),
            available_bytes: bytes("MemAvailable"),
        }
    }
}

impl Pressure {
    /// Takes `/proc/pressure/io` apart.
    #[must_use]
    pub fn parse(text: &str) -> Option<Pressure> {
        let total = |kind: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
            line.split_once("total=")?.1.trim().parse().ok()
        };
        Some(Pressure { some: total("some ")?, full: total("full ") })
    }
}

impl Snapshot {
    /// What happened since `before`, with what the jobs did meanwhile.
    #[must_use]
    pub fn since(&self, before: &Snapshot, traffic: Traffic, jobs: JobCounts) -> Sample {
        let seconds = (self.at_seconds - before.at_seconds).max(0.0);
        let [cpu_user, cpu_system, cpu_io_wait, cpu_idle, cpu_steal] =
            match (&self.processor, &before.processor) {
                (Some(now), Some(before)) => now.parts_since(before),
                (Some(_) | None, _) => [0.0; 5],
            };
        let pressure = |kind: fn(&Pressure) -> Option<u64>| {
            let (now, before) = (kind(self.pressure.as_ref()?)?, kind(before.pressure.as_ref()?)?);
            Some(part(now.saturating_sub(before) as f64 / 1e6, seconds))
        };
        let (devices, device_busy) = self.devices_since(before, seconds);
        let network = self.network_since(before);
        Sample {
            at_seconds: self.at_seconds,
            seconds,
            jobs_waiting: jobs.waiting,
            jobs_running: jobs.running,
            jobs_done: jobs.done,
            file_read_bytes: traffic.read_bytes,
            file_written_bytes: traffic.written_bytes,
            file_read_calls: traffic.read_calls,
            file_write_calls: traffic.write_calls,
            device_read_bytes: devices.read_bytes,
            device_written_bytes: devices.written_bytes,
            device_reads: devices.reads,
            device_writes: devices.writes,
            device_read_seconds: devices.read_milliseconds as f64 / 1e3,
            device_write_seconds: devices.write_milliseconds as f64 / 1e3,
            device_busy,
            cpu_user,
            cpu_system,
            cpu_io_wait,
            cpu_idle,
            cpu_steal,
            pressure_io_some: pressure(|pressure| Some(pressure.some)),
            pressure_io_full: pressure(|pressure| pressure.full),
            dirty_bytes: self.memory.dirty_bytes,
            writeback_bytes: self.memory.writeback_bytes,
            cached_bytes: self.memory.cached_bytes,
            available_bytes: self.memory.available_bytes,
            network_received_bytes: network.map(|passed| passed.received_bytes),
            network_sent_bytes: network.map(|passed| passed.sent_bytes),
        }
    }

    /// What the interfaces moved, added up; one that appeared meanwhile counts from the next time on.
    fn network_since(&self, before: &Snapshot) -> Option<Interface> {
        let (now, before) = (self.network.as_ref()?, before.network.as_ref()?);
        let mut sum = Interface::default();
        for (name, now) in now {
            let Some(before) = before.get(name) else { continue };
            sum.received_bytes += count_since(now.received_bytes, before.received_bytes);
            sum.sent_bytes += count_since(now.sent_bytes, before.sent_bytes);
        }
        Some(sum)
    }

    /// What the devices did, added up, and the part of the time in which the busiest was.
    fn devices_since(&self, before: &Snapshot, seconds: f64) -> (Device, f64) {
        let (mut sum, mut busiest) = (Device::default(), 0_f64);
        for (name, now) in &self.devices {
            // A device that was not there did all that it did since it appeared.
            let passed = now.since(&before.devices.get(name).copied().unwrap_or_default());
            sum.reads += passed.reads;
            sum.read_bytes += passed.read_bytes;
            sum.read_milliseconds += passed.read_milliseconds;
            sum.writes += passed.writes;
            sum.written_bytes += passed.written_bytes;
            sum.write_milliseconds += passed.write_milliseconds;
            busiest = busiest.max(part(passed.busy_milliseconds as f64 / 1e3, seconds));
        }
        (sum, busiest)
    }
}

/// What a counter counted: one that went back was taken away and came again.
fn count_since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// As [`count_since`], of a counter of 32 bits: one that was in its upper half has wrapped.
fn time_since(now: u64, before: u64) -> u64 {
    const WRAP: u64 = 1 << 32;
    if now < before && (WRAP / 2..WRAP).contains(&before) {
        return now + WRAP - before;
    }
    count_since(now, before)
}

/// `amount` of `whole`, between 0 and 1; 0 of nothing.
fn part(amount: f64, whole: f64) -> f64 {
    if whole > 0.0 { (amount / whole).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests;
