//! What a process used: the one record of it, in the grid's journal and in the results of studies.
//!
//! The journal keeps the order of the fields: none may move, go, or come in between.

use serde::{Deserialize, Serialize};

/// What a process and the children that it waited for used. What the system did not say is none.
///
/// Counted by the kernel (`wait4(2)`), bytes and calls by `/proc/PID/io` before it was reaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds from start to end.
    pub real_seconds: f64,
    /// Processor seconds in user mode.
    pub user_seconds: f64,
    /// Processor seconds in the kernel.
    pub system_seconds: f64,
    /// Seconds that its threads waited for block devices, also when they waited for a page of a file;
    /// without its children; none where not known or miscounted by the kernel.
    pub io_wait_seconds: Option<f64>,
    /// Peak resident memory in bytes; never less than that of the process that started it, whose copy
    /// it was before it became its own program.
    pub peak_memory_bytes: Option<u64>,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Context switches because it waited.
    pub voluntary_switches: u64,
    /// Context switches because its time was up.
    pub involuntary_switches: u64,
    /// Bytes read by system calls (`rchar`).
    pub read_bytes: Option<u64>,
    /// Bytes written by system calls (`wchar`).
    pub written_bytes: Option<u64>,
    /// Bytes in its work area at the end, if the grid gave it one.
    pub work_bytes: Option<u64>,
    /// Read calls (`syscr`).
    pub read_calls: Option<u64>,
    /// Write calls (`syscw`).
    pub write_calls: Option<u64>,
    /// Bytes that it made devices read (`read_bytes`); those that a daemon reads for it are not in.
    pub device_read_bytes: Option<u64>,
    /// Bytes that it dirtied for devices (`write_bytes` less `cancelled_write_bytes`).
    pub device_written_bytes: Option<u64>,
    /// Seconds that its threads waited for memory (swapping, reclaim, thrashing); waiting for a device
    /// meanwhile counts as both.
    pub memory_wait_seconds: Option<f64>,
    /// Seconds that its threads could have run and waited for a processor.
    pub processor_wait_seconds: Option<f64>,
    /// Seconds in which at least one thread of the whole job waited for I/O (`some` of `io.pressure` of its control
    /// group); none without a group.
    pub io_pressure_seconds: Option<f64>,
}

impl Usage {
    /// Processor seconds.
    #[must_use]
    pub fn cpu_seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }

    /// Processor seconds by real seconds; `None` if it took no time.
    #[must_use]
    pub fn cpu_per_real(&self) -> Option<f64> {
        let ratio = (self.real_seconds > 0.0).then(|| self.cpu_seconds() / self.real_seconds);
        ratio.filter(|ratio| ratio.is_finite())
    }
}
