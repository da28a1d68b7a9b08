//! What a group limits, and the words of the kernel for it.

use forebay_grid::config::Processors;

/// The period of processor time in microseconds: the kernel's own, so that version 1 needs one file.
const PERIOD_US: u64 = 100_000;

/// What a job may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Its slots.
    pub slots: u32,
    /// What its slots mean for processors.
    pub processors: Processors,
    /// Processes and threads together.
    pub processes_max: Option<u32>,
}

impl Limits {
    /// Whether a job must not run where its group cannot be made.
    pub fn are_hard(&self) -> bool {
        self.memory_bytes.is_some()
            || self.processes_max.is_some()
            || self.processors == Processors::Slots
    }

    /// Files of version 2 with what is written to them. One slot is the kernel's default: such a job needs nothing written.
    pub(super) fn unified(&self) -> Vec<(&'static str, String)> {
        /// The highest weight that the kernel takes.
        const MAX: u32 = 10_000;
        let mut files = Vec::new();
        if self.slots > 1 {
            files.push(("cpu.weight", self.slots.saturating_mul(100).min(MAX).to_string()));
        }
        if self.processors == Processors::Slots {
            files.push(("cpu.max", format!("{} {PERIOD_US}", self.quota_us())));
        }
        files
    }

    /// As [`Limits::unified`], for version 1.
    pub(super) fn legacy(&self) -> Vec<(&'static str, String)> {
        /// The highest share that the kernel takes.
        const MAX: u32 = 262_144;
        let mut files = Vec::new();
        if self.slots > 1 {
            files.push(("cpu.shares", self.slots.saturating_mul(1024).min(MAX).to_string()));
        }
        if self.processors == Processors::Slots {
            files.push(("cpu.cfs_quota_us", self.quota_us().to_string()));
        }
        files
    }

    fn quota_us(&self) -> u64 {
        u64::from(self.slots.max(1)) * PERIOD_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_one_slot_without_limits_needs_no_file() {
        let one = Limits { slots: 1, ..Limits::default() };
        assert!(one.unified().is_empty() && one.legacy().is_empty() && !one.are_hard());
    }

    #[test]
    fn weights_and_quotas_follow_the_slots_within_what_the_kernel_takes() {
        let words = |slots, processors| {
            let limits = Limits { slots, processors, ..Limits::default() };
            let show = |files: Vec<(&str, String)>| {
                let words = files.iter().map(|(file, text)| format!("{file}={text}"));
                words.collect::<Vec<_>>().join(", ")
            };
            (show(limits.unified()), show(limits.legacy()))
        };
        let share = words(4, Processors::Share);
        assert_eq!(share, ("cpu.weight=400".to_owned(), "cpu.shares=4096".to_owned()));
        let (unified, legacy) = words(1, Processors::Slots);
        assert_eq!((&*unified, &*legacy), ("cpu.max=100000 100000", "cpu.cfs_quota_us=100000"));
        let (unified, legacy) = words(100_000, Processors::Slots);
        assert_eq!(unified, "cpu.weight=10000, cpu.max=10000000000 100000");
        assert_eq!(legacy, "cpu.shares=262144, cpu.cfs_quota_us=10000000000");
    }
}
