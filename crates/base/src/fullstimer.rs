//! What a step or a job used, as FULLSTIMER of SAS writes it: real time, processor times, memory, page faults, context switches,
//! and when it ended.
//!
//! What the system did not say is omitted. Where SAS counts blocks, this has the bytes that system calls moved: that is
//! known per step, and also of files that memory serves.

use std::fmt::Write as _;

use crate::Usage;

/// The lines of a step or a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Seconds on the clock.
    pub real_seconds: f64,
    /// Seconds of processors in user mode.
    pub user_seconds: f64,
    /// Seconds of processors in the kernel.
    pub system_seconds: f64,
    /// Seconds of waiting for block devices, if known.
    pub io_wait_seconds: Option<f64>,
    /// Peak memory, if known.
    pub memory_bytes: Option<u64>,
    /// When it ended, for people.
    pub timestamp: Option<String>,
    /// Number of the step, from 1.
    pub step: Option<usize>,
    /// Page faults with I/O, and without.
    pub faults: (u64, u64),
    /// Context switches, voluntary and involuntary.
    pub switches: (u64, u64),
    /// Bytes read and written, if known.
    pub bytes: (Option<u64>, Option<u64>),
}

impl Block {
    /// What a whole job used, and when it ended.
    #[must_use]
    pub fn of(used: &Usage, timestamp: Option<String>) -> Block {
        Block {
            real_seconds: used.real_seconds,
            user_seconds: used.user_seconds,
            system_seconds: used.system_seconds,
            io_wait_seconds: used.io_wait_seconds,
            memory_bytes: used.peak_memory_bytes,
            timestamp,
            step: None,
            faults: (used.major_faults, used.minor_faults),
            switches: (used.voluntary_switches, used.involuntary_switches),
            bytes: (used.read_bytes, used.written_bytes),
        }
    }

    /// Adds the lines to `text`, below a title.
    pub fn write(&self, title: &str, text: &mut String) {
        let lines = [
            ("real time", Some(time(self.real_seconds))),
            ("user cpu time", Some(time(self.user_seconds))),
            ("system cpu time", Some(time(self.system_seconds))),
            ("i/o wait time", self.io_wait_seconds.map(time)),
            ("memory", self.memory_bytes.map(|bytes| format!("{:.2}k", bytes as f64 / 1024.0))),
            ("Timestamp", self.timestamp.clone()),
            ("Step Count", self.step.map(|step| step.to_string())),
            ("Page Faults", Some(self.faults.0.to_string())),
            ("Page Reclaims", Some(self.faults.1.to_string())),
            ("Voluntary Context Switches", Some(self.switches.0.to_string())),
            ("Involuntary Context Switches", Some(self.switches.1.to_string())),
            ("Bytes Read", self.bytes.0.map(|bytes| bytes.to_string())),
            ("Bytes Written", self.bytes.1.map(|bytes| bytes.to_string())),
        ];
        let _ = writeln!(text, "\nNOTE: {title}:");
        for (name, value) in lines {
            if let Some(value) = value {
                let _ = writeln!(text, "      {name:<35} {value}");
            }
        }
    }
}

/// A time as SAS writes it: seconds below a minute, then minutes and hours before them.
#[must_use]
pub fn time(seconds: f64) -> String {
    let hundredths = (seconds.max(0.0) * 100.0).round() as u64;
    let (whole, part) = (hundredths / 100, hundredths % 100);
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds}.{part:02} seconds"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}.{part:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}.{part:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_minutes_and_hours_where_they_are_long() {
        assert_eq!(time(0.0), "0.00 seconds");
        assert_eq!(time(59.994), "59.99 seconds");
        assert_eq!(time(59.996), "1:00.00");
        assert_eq!(time(3725.5), "1:02:05.50");
    }

    #[test]
    fn what_is_not_known_is_omitted() {
        let mut text = String::new();
        Block::of(&Usage::default(), None).write("The job used", &mut text);
        assert!(text.starts_with("\nNOTE: The job used:\n      real time "), "{text}");
        for absent in ["memory", "Timestamp", "Step Count", "Bytes Read", "i/o wait"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }
}
