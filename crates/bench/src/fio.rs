//! fio as a yardstick: one run of its own processes, and the throughput that it tells.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::interrupt::Interrupt;
use crate::probe::Case;

/// The part of fio's answer that is read here (fio --output-format=json).
#[derive(Debug, Deserialize)]
struct Answer {
    jobs: Vec<Group>,
}

/// All processes of a run together.
#[derive(Debug, Deserialize)]
struct Group {
    error: i32,
    read: Moved,
    write: Moved,
}

/// One direction.
#[derive(Debug, Deserialize)]
struct Moved {
    io_bytes: u64,
    /// Milliseconds from the start of the first to the end of the last.
    runtime: u64,
}

/// The arguments of fio that do what `case` does on `stream-0`, `stream-1`... in `directory`.
#[must_use]
pub fn arguments(case: &Case, directory: &Path) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--name=probe",
        "--filename_format=stream-$jobnum",
        "--ioengine=psync",
        "--group_reporting=1",
        "--output-format=json",
        // As the probe does: files grow, caches stay as they are, the kernel gets no hints, and random
        // offsets may repeat.
        "--fallocate=none",
        "--create_on_open=1",
        "--invalidate=0",
        "--fadvise_hint=0",
        "--norandommap=1",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.extend([
        format!("--directory={}", directory.display()),
        format!("--numjobs={}", case.streams),
        format!("--rw={}", case.fio_name()),
        format!("--bs={}", case.block.0),
        format!("--size={}", case.file.0),
        format!("--io_size={}", case.file.0 * case.passes),
    ]);
    arguments
}

/// Runs fio and returns its throughput in million bytes per second.
///
/// # Errors
/// If there is no fio, or it fails; after a signal.
pub fn run(interrupt: &Interrupt, case: &Case, directory: &Path) -> Result<f64> {
    interrupt.check()?;
    let child = Command::new("fio")
        .args(arguments(case, directory))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start fio (Debian package fio)")?;
    let _cover = interrupt.cover(&child)?;
    let output = child.wait_with_output()?;
    interrupt.check()?;
    if !output.status.success() {
        bail!("fio ended with {}", output.status);
    }
    mb_per_second(&String::from_utf8_lossy(&output.stdout))
}

/// Reads fio's answer, which notes may precede.
fn mb_per_second(text: &str) -> Result<f64> {
    let start = text.find('{').context("fio answers without JSON")?;
    let answer: Answer = serde_json::from_str(&text[start..]).context("fio's answer")?;
    let [group] = &answer.jobs[..] else { bail!("fio tells of {} groups", answer.jobs.len()) };
    if group.error != 0 {
        bail!("fio met error {}", group.error);
    }
    let bytes = group.read.io_bytes + group.write.io_bytes;
    let milliseconds = group.read.runtime.max(group.write.runtime);
    if milliseconds == 0 {
        bail!("fio took less than a millisecond: use larger sizes");
    }
    Ok(bytes as f64 / 1e3 / milliseconds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_is_read_from_fios_answer() {
        let moved = |bytes: u64, time: u64| {
            format!(r#"{{"io_bytes":{bytes},"bw":1,"runtime":{time},"iops":2.5}}"#)
        };
        let answer = |error: i32, read: &str, write: &str| {
            format!(
                r#"note: both iodepth
                {{"fio version":"fio-3.33","jobs":[{{"jobname":"probe","error":{error},
                "read":{read},"write":{write},"trim":{{}}}}]}}"#
            )
        };
        let none = moved(0, 0);
        let text = answer(0, &none, &moved(1_073_741_824, 250));
        assert!((mb_per_second(&text).unwrap() - 4_294.967_296).abs() < 1e-9);
        for text in [answer(28, &none, &moved(1, 1)), answer(0, &none, &none), "{}".to_owned()] {
            assert!(mb_per_second(&text).is_err(), "{text}");
        }
    }
}
