//! What a step used: time, processor, memory, faults, switches and bytes.
//!
//! Figures are those of the whole process and of the programs that it ran and waited for, between start and finish, so they
//! belong to the step only if nothing else runs in it meanwhile. Bytes are counted at the system-call level (`rchar` and
//! `wchar` of `/proc/self/io`): what was asked of the file system, whether it came from a cache or
//! not, and including pipes, terminals and the few KiB of `/proc` that the meter itself reads.

use std::fs;
use std::time::Instant;

use forebay_base::Clock;
use serde::{Deserialize, Serialize};

use forebay_analytics::table::Table;

/// Whose peak memory was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeakScope {
    /// Of the step: the system let the peak be reset at its start.
    Step,
    /// Of the process since its start: an upper bound.
    Process,
}

/// What one step used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResourceRecord {
    /// The step's name.
    pub step: String,
    /// Seconds on the clock.
    pub real_seconds: f64,
    /// Processor seconds in user mode, all threads together.
    pub user_seconds: f64,
    /// Processor seconds in the kernel, all threads together.
    pub system_seconds: f64,
    /// Peak resident memory in bytes; `None` where the system does not say.
    pub peak_memory_bytes: Option<u64>,
    /// Whose peak that is.
    pub peak_memory_scope: PeakScope,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// Context switches because the process waited.
    pub voluntary_switches: u64,
    /// Context switches because its time was up.
    pub involuntary_switches: u64,
    /// Bytes read by system calls; `None` where the system does not say.
    pub read_bytes: Option<u64>,
    /// Bytes written by system calls; `None` where the system does not say.
    pub written_bytes: Option<u64>,
    /// Rows that the step read, or wrote if it reads none.
    pub rows: u64,
}

impl ResourceRecord {
    /// Processor seconds per second on the clock: near 1 or above when the cores are fed.
    #[must_use]
    pub fn cpu_per_real(&self) -> f64 {
        ratio(self.user_seconds + self.system_seconds, self.real_seconds)
    }

    /// Million bytes read and written per second.
    #[must_use]
    pub fn mb_per_second(&self) -> f64 {
        let bytes = self.read_bytes.unwrap_or(0) + self.written_bytes.unwrap_or(0);
        ratio(bytes as f64 / 1e6, self.real_seconds)
    }

    /// The records as a table, with a line of totals if there are several.
    #[must_use]
    pub fn table(records: &[ResourceRecord]) -> Table {
        let mut table = Table::new(&[
            "step",
            "rows",
            "real s",
            "user s",
            "sys s",
            "cpu/real",
            "peak MiB",
            "peak of",
            "minor flt",
            "major flt",
            "vol sw",
            "invol sw",
            "read MB",
            "written MB",
            "MB/s",
        ]);
        for record in records {
            push(&mut table, record);
        }
        if records.len() > 1 {
            push(&mut table, &total(records));
        }
        table
    }
}

/// `a / b`, zero if `b` is zero.
pub(crate) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

fn rounded(number: f64, decimals: i32) -> f64 {
    let factor = 10_f64.powi(decimals);
    (number * factor).round() / factor
}

fn push(table: &mut Table, record: &ResourceRecord) {
    let megabytes = |bytes: Option<u64>| bytes.map(|bytes| rounded(bytes as f64 / 1e6, 1));
    let scope = match record.peak_memory_scope {
        PeakScope::Step => "step",
        PeakScope::Process => "process",
    };
    table.push(vec![
        record.step.as_str().into(),
        record.rows.into(),
        rounded(record.real_seconds, 2).into(),
        rounded(record.user_seconds, 2).into(),
        rounded(record.system_seconds, 2).into(),
        rounded(record.cpu_per_real(), 2).into(),
        record.peak_memory_bytes.map(|bytes| rounded(bytes as f64 / 1_048_576.0, 1)).into(),
        scope.into(),
        record.minor_faults.into(),
        record.major_faults.into(),
        record.voluntary_switches.into(),
        record.involuntary_switches.into(),
        megabytes(record.read_bytes).into(),
        megabytes(record.written_bytes).into(),
        rounded(record.mb_per_second(), 1).into(),
    ]);
}

fn total(records: &[ResourceRecord]) -> ResourceRecord {
    let seconds = |f: fn(&ResourceRecord) -> f64| records.iter().map(f).sum();
    let count = |f: fn(&ResourceRecord) -> u64| records.iter().map(f).sum();
    let bytes = |f: fn(&ResourceRecord) -> Option<u64>| records.iter().map(f).sum();
    let of_step = records.iter().all(|r| r.peak_memory_scope == PeakScope::Step);
    ResourceRecord {
        step: "total".to_owned(),
        real_seconds: seconds(|r| r.real_seconds),
        user_seconds: seconds(|r| r.user_seconds),
        system_seconds: seconds(|r| r.system_seconds),
        peak_memory_bytes: records.iter().filter_map(|r| r.peak_memory_bytes).max(),
        peak_memory_scope: if of_step { PeakScope::Step } else { PeakScope::Process },
        minor_faults: count(|r| r.minor_faults),
        major_faults: count(|r| r.major_faults),
        voluntary_switches: count(|r| r.voluntary_switches),
        involuntary_switches: count(|r| r.involuntary_switches),
        read_bytes: bytes(|r| r.read_bytes),
        written_bytes: bytes(|r| r.written_bytes),
        rows: count(|r| r.rows),
    }
}

/// Measures one step.
pub struct Meter<'a> {
    clock: &'a dyn Clock,
    start: Instant,
    usage: Usage,
    io: Option<(u64, u64)>,
    scope: PeakScope,
}

impl<'a> Meter<'a> {
    /// Starts measuring.
    #[must_use]
    pub fn start(clock: &'a dyn Clock) -> Meter<'a> {
        // "5" resets the peak resident set size (proc_pid_clear_refs(5)).
        let scope = match fs::write("/proc/self/clear_refs", "5") {
            Ok(()) => PeakScope::Step,
            Err(_) => PeakScope::Process,
        };
        Meter { clock, scope, io: io_counters(), usage: Usage::now(), start: clock.instant() }
    }

    /// Stops measuring and names what was measured.
    #[must_use]
    pub fn finish(self, step: &str, rows: u64) -> ResourceRecord {
        let real = self.clock.instant().saturating_duration_since(self.start);
        let (before, now) = (&self.usage, Usage::now());
        // The peak of programs that it ran is known since the start of the process only.
        let (own, ran) = (peak_memory(), now.programs_peak_bytes);
        let ran_more = ran > own.unwrap_or(0) && now.programs_seconds > before.programs_seconds;
        let io = io_counters();
        let passed = |part: fn((u64, u64)) -> u64| {
            io.zip(self.io).map(|(now, before)| part(now).saturating_sub(part(before)))
        };
        ResourceRecord {
            step: step.to_owned(),
            real_seconds: real.as_secs_f64(),
            user_seconds: now.user_seconds - before.user_seconds,
            system_seconds: now.system_seconds - before.system_seconds,
            peak_memory_bytes: if ran_more { Some(ran) } else { own.or(now.peak_memory_bytes) },
            peak_memory_scope: if ran_more { PeakScope::Process } else { self.scope },
            minor_faults: now.minor_faults.saturating_sub(before.minor_faults),
            major_faults: now.major_faults.saturating_sub(before.major_faults),
            voluntary_switches: now.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: now
                .involuntary_switches
                .saturating_sub(before.involuntary_switches),
            read_bytes: passed(|io| io.0),
            written_bytes: passed(|io| io.1),
            rows,
        }
    }
}

/// What the process and the programs that it waited for have used so far.
#[derive(Clone, Debug, Default)]
struct Usage {
    /// Processor seconds of the programs.
    programs_seconds: f64,
    /// Peak resident memory of the largest of them.
    programs_peak_bytes: u64,
    user_seconds: f64,
    system_seconds: f64,
    peak_memory_bytes: Option<u64>,
    minor_faults: u64,
    major_faults: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl Usage {
    fn now() -> Usage {
        let (Some(own), Some(programs)) =
            (rusage(libc::RUSAGE_SELF), rusage(libc::RUSAGE_CHILDREN))
        else {
            return Usage::default();
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let count = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
        let both =
            |part: fn(&libc::rusage) -> libc::c_long| count(part(&own)) + count(part(&programs));
        Usage {
            programs_seconds: seconds(programs.ru_utime) + seconds(programs.ru_stime),
            programs_peak_bytes: count(programs.ru_maxrss) * 1024,
            user_seconds: seconds(own.ru_utime) + seconds(programs.ru_utime),
            system_seconds: seconds(own.ru_stime) + seconds(programs.ru_stime),
            peak_memory_bytes: Some(count(own.ru_maxrss) * 1024),
            minor_faults: both(|usage| usage.ru_minflt),
            major_faults: both(|usage| usage.ru_majflt),
            voluntary_switches: both(|usage| usage.ru_nvcsw),
            involuntary_switches: both(|usage| usage.ru_nivcsw),
        }
    }
}

fn rusage(who: libc::c_int) -> Option<libc::rusage> {
    // SAFETY: all zeros is a valid rusage, which has integer fields only.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a rusage that lives through the call.
    (unsafe { libc::getrusage(who, &raw mut usage) } == 0).then_some(usage)
}

fn number_after(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes read and written by system calls.
fn io_counters() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    Some((number_after(&text, "rchar:")?, number_after(&text, "wchar:")?))
}

/// Peak resident memory in bytes since the last reset.
fn peak_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    Some(number_after(&text, "VmHWM:")? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::time::SystemClock;

    #[test]
    fn written_bytes_and_memory_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let meter = Meter::start(&SystemClock);
        let block = vec![1_u8; 8 << 20];
        fs::write(directory.path().join("file"), &block).unwrap();
        let record = meter.finish("write", 1);
        assert!(record.written_bytes.is_none_or(|bytes| bytes >= 8 << 20));
        assert!(record.peak_memory_bytes.is_none_or(|bytes| bytes >= 8 << 20));
        assert!(record.real_seconds > 0.0);
        assert_eq!(ResourceRecord::table(&[record.clone(), record]).rows.len(), 3);
    }

    #[test]
    fn programs_that_a_step_runs_count_as_the_step() {
        let meter = Meter::start(&SystemClock);
        let work = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; head -c 4194304 /dev/zero > /dev/null";
        assert!(std::process::Command::new("sh").args(["-c", work]).status().unwrap().success());
        let record = meter.finish("program", 1);
        assert!(record.user_seconds > 0.0, "{record:?}");
        assert!(record.read_bytes.is_none_or(|bytes| bytes >= 4 << 20), "{record:?}");
    }
}
