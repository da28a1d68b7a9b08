//! What the kernel counted of a process' input and output: `/proc/PID/io`.
//!
//! The kernel counts a process, all its threads, and the children that it has waited for; of a process
//! that ended, until it is reaped. Bytes and calls are those of read(2), write(2) and their kin, whatever
//! they were for: files, pipes, terminals. Memory that is mapped from files is not in them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use rustix::process::Pid;

/// The counters of one process, each since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that read calls returned (`rchar`).
    pub read_bytes: u64,
    /// Bytes that write calls took (`wchar`).
    pub written_bytes: u64,
    /// Read calls (`syscr`).
    pub read_calls: u64,
    /// Write calls (`syscw`).
    pub write_calls: u64,
    /// Bytes that it made devices read (`read_bytes`).
    pub device_read_bytes: u64,
    /// Bytes that it dirtied for devices (`write_bytes`).
    pub device_dirtied_bytes: u64,
    /// Of those, what was cut off before it was written (`cancelled_write_bytes`); it may be dirt of
    /// others.
    pub device_cancelled_bytes: u64,
}

impl Counters {
    /// Takes the text of `/proc/PID/io` apart; `None` if it lacks a counter.
    #[must_use]
    pub fn parse(text: &str) -> Option<Counters> {
        Some(Counters {
            read_bytes: field(text, "rchar")?,
            written_bytes: field(text, "wchar")?,
            read_calls: field(text, "syscr")?,
            write_calls: field(text, "syscw")?,
            device_read_bytes: field(text, "read_bytes")?,
            device_dirtied_bytes: field(text, "write_bytes")?,
            device_cancelled_bytes: field(text, "cancelled_write_bytes")?,
        })
    }

    /// The counters of a process that was not reaped yet; `None` if there is none, it belongs to someone
    /// else, or the kernel does not count. Of a process that ended, only root can open them.
    #[must_use]
    pub fn of_process(pid: Pid) -> Option<Counters> {
        let path = format!("/proc/{}/io", pid.as_raw_nonzero());
        Counters::parse(&fs::read_to_string(path).ok()?)
    }

    /// As [`Counters::of_process`], from its `/proc/PID/io` that was opened before; it may be read again
    /// and again, and is never another process'.
    #[must_use]
    pub fn of_file(file: &File) -> Option<Counters> {
        let mut bytes = [0; 512];
        let length = file.read_at(&mut bytes, 0).ok()?;
        Counters::parse(std::str::from_utf8(&bytes[..length]).ok()?)
    }

    /// Adds those of another process.
    pub fn add(&mut self, other: &Counters) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.read_calls += other.read_calls;
        self.write_calls += other.write_calls;
        self.device_read_bytes += other.device_read_bytes;
        self.device_dirtied_bytes += other.device_dirtied_bytes;
        self.device_cancelled_bytes += other.device_cancelled_bytes;
    }

    /// Of each counter the larger value: those of a family fall when a process ends that nobody waited for. So it is with what was
    /// written, a difference: more is cut off of it only as far as more was dirtied.
    #[must_use]
    pub fn most(&self, other: &Counters) -> Counters {
        let dirtied = self.device_dirtied_bytes.max(other.device_dirtied_bytes);
        let written = self.device_written_bytes().max(other.device_written_bytes());
        Counters {
            read_bytes: self.read_bytes.max(other.read_bytes),
            written_bytes: self.written_bytes.max(other.written_bytes),
            read_calls: self.read_calls.max(other.read_calls),
            write_calls: self.write_calls.max(other.write_calls),
            device_read_bytes: self.device_read_bytes.max(other.device_read_bytes),
            device_dirtied_bytes: dirtied,
            device_cancelled_bytes: dirtied - written,
        }
    }

    /// Bytes that it dirtied for devices and that were not cut off again.
    #[must_use]
    pub fn device_written_bytes(&self) -> u64 {
        self.device_dirtied_bytes.saturating_sub(self.device_cancelled_bytes)
    }
}

/// The number behind `name:` at the start of a line, without what follows it, such as a unit.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "rchar: 4292\nwchar: 17\nsyscr: 13\nsyscw: 2\nread_bytes: 40960\n\
                        write_bytes: 8192\ncancelled_write_bytes: 4096\n";

    #[test]
    fn every_counter_has_its_place() {
        let counters = Counters::parse(TEXT).unwrap();
        assert_eq!((counters.read_bytes, counters.written_bytes), (4292, 17));
        assert_eq!((counters.read_calls, counters.write_calls), (13, 2));
        assert_eq!((counters.device_read_bytes, counters.device_written_bytes()), (40960, 4096));
    }

    #[test]
    fn of_two_looks_each_counter_has_its_most() {
        let one = Counters { read_bytes: 5, write_calls: 1, ..Counters::default() };
        let other = Counters { read_bytes: 3, device_read_bytes: 7, ..Counters::default() };
        let most = Counters { device_read_bytes: 7, ..one };
        assert_eq!((one.most(&other), other.most(&one)), (most, most));
    }

    #[test]
    fn what_was_written_does_not_fall_when_more_of_it_is_cut_off() {
        let dirtied = |device_dirtied_bytes, device_cancelled_bytes| Counters {
            device_dirtied_bytes,
            device_cancelled_bytes,
            ..Counters::default()
        };
        let looks = [dirtied(10, 0), dirtied(10, 8), dirtied(14, 8), dirtied(30, 8)];
        let mut seen = Counters::default();
        let written = looks.map(|look| {
            seen = seen.most(&look);
            seen.device_written_bytes()
        });
        assert_eq!(written, [10, 10, 10, 22]);
    }

    #[test]
    fn a_text_without_a_counter_is_no_record() {
        assert_eq!(Counters::parse(""), None);
        assert_eq!(Counters::parse(&TEXT.replace("syscw: 2\n", "")), None);
        assert_eq!(Counters::parse(&TEXT.replace("13", "many")), None);
    }

    #[test]
    fn cancelling_the_dirt_of_others_does_not_count_below_zero() {
        let text = TEXT.replace("cancelled_write_bytes: 4096", "cancelled_write_bytes: 9000");
        assert_eq!(Counters::parse(&text).unwrap().device_written_bytes(), 0);
    }
}
