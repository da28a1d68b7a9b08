//! What samples hold of the jobs that run meanwhile, against what those are known to do.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::Clock;
use forebay_base::time::SystemClock;
use forebay_process::accounting::Counters;
use forebay_process::{Accounting, Child, wait_any};
use forebay_study::record::{DeviceScope, Sample};
use forebay_study::sampler::Sampler;

const MIB: u64 = 1 << 20;

fn accounting() -> Arc<Accounting> {
    Accounting::find(Arc::new(SystemClock))
}

/// A shell that runs `script`; the test's directory is its working directory.
fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn spawn(script: &str) -> Child {
    Child::spawn(shell(script), &accounting()).unwrap()
}

fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if there() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a minute passed without {what}");
}

fn sums(samples: &[Sample]) -> [u64; 4] {
    let sum = |column: fn(&Sample) -> u64| samples.iter().map(column).sum();
    [
        sum(|sample| sample.file_read_bytes),
        sum(|sample| sample.file_written_bytes),
        sum(|sample| sample.file_read_calls),
        sum(|sample| sample.file_write_calls),
    ]
}

#[test]
fn samples_add_up_to_exactly_what_the_jobs_did() {
    let folder = tempfile::tempdir().unwrap();
    let accounting = accounting();
    let clock = SystemClock;
    let interval = Duration::from_millis(50);
    let scope = DeviceScope::AllDisks;
    let sampler = Sampler::start(interval, &scope, clock.instant(), Arc::new(SystemClock)).unwrap();
    // Some shorter than an interval, some longer, with children that come and go, and with one that its
    // parent never waits for, whose bytes are seen and then in nobody's counters.
    let scripts = [
        "exec dd if=/dev/zero of=a bs=64k count=64",
        "for i in 1 2 3 4; do dd if=/dev/zero of=b bs=1M count=4; sleep 0.1; done",
        "(for i in 1 2 3; do cat a b; sleep 0.07; done) > c",
        "sh -c '(dd if=/dev/zero bs=1M count=3; sleep 600) > d & sleep 0.3'; echo ended",
        "exec true",
    ];
    let mut children = Vec::new();
    for (index, script) in scripts.iter().cycle().take(10).enumerate() {
        let mut command = shell(script);
        command.current_dir(folder.path()).stdout(Stdio::null());
        let child = Child::spawn(command, &accounting).unwrap();
        sampler.job_started(child.id(), SystemClock.instant());
        sampler.set_jobs(9 - index as u32, index as u32 + 1, 0);
        children.push(child);
    }
    let (mut expected, mut done) = ([0; 4], 0);
    while !children.is_empty() {
        wait_any(&children, Duration::from_secs(60)).unwrap();
        children.retain_mut(|child| {
            let pid = child.id();
            let Some(ended) = child.try_wait().unwrap() else { return true };
            let counters = ended.counters.unwrap();
            sampler.job_ended(pid, SystemClock.instant(), Some(&counters));
            for (sum, part) in expected.iter_mut().zip([
                counters.read_bytes,
                counters.written_bytes,
                counters.read_calls,
                counters.write_calls,
            ]) {
                *sum += part;
            }
            done += 1;
            sampler.set_jobs(0, 10 - done, done);
            false
        });
    }
    wait_until("a sample", || sampler.latest().is_some());
    let samples = sampler.stop();
    assert_eq!(sums(&samples), expected);
    assert!(expected[1] >= 2 * (4 + 16) * MIB);
    assert!(samples.len() >= 3);
    assert_eq!(samples.last().unwrap().jobs_done, 10);
    check_plausible(&samples);
}

/// What holds of all samples of any machine.
fn check_plausible(samples: &[Sample]) {
    let mut end = samples[0].at_seconds - samples[0].seconds;
    for sample in samples {
        assert!((sample.at_seconds - sample.seconds - end).abs() < 1e-6, "{sample:?} after {end}");
        end = sample.at_seconds;
        let parts = [
            sample.cpu_user,
            sample.cpu_system,
            sample.cpu_io_wait,
            sample.cpu_idle,
            sample.cpu_steal,
        ];
        let sum: f64 = parts.iter().sum();
        assert!((sum - 1.0).abs() < 1e-9 || sum == 0.0, "{sample:?}");
        assert!(parts.iter().chain([&sample.device_busy]).all(|part| (0.0..=1.0).contains(part)));
        assert!(sample.available_bytes > MIB && sample.cached_bytes > 0, "{sample:?}");
    }
}

#[test]
fn what_descendants_do_is_seen_while_they_run() {
    let folder = tempfile::tempdir().unwrap();
    let clock = SystemClock;
    let sampler = Sampler::start(
        Duration::from_secs(3600),
        &DeviceScope::None,
        clock.instant(),
        Arc::new(SystemClock),
    )
    .unwrap();
    // The bytes are in the counters of the inner shell only, which its parent has not waited for.
    let mut command =
        shell("sh -c 'dd if=/dev/zero of=/dev/null bs=1M count=5; touch up; sleep 600'; true");
    command.current_dir(folder.path());
    let child = Child::spawn(command, &accounting()).unwrap();
    sampler.job_started(child.id(), SystemClock.instant());
    wait_until("the bytes", || folder.path().join("up").exists());
    let written = sampler.stop()[0].file_written_bytes;
    assert!((5 * MIB..5 * MIB + 4096).contains(&written), "{written}");
}

#[test]
fn a_sampler_that_is_stopped_at_once_has_one_sample_with_all() {
    let clock = SystemClock;
    let sampler = Sampler::start(
        Duration::from_secs(3600),
        &DeviceScope::None,
        clock.instant(),
        Arc::new(SystemClock),
    )
    .unwrap();
    assert_eq!(sampler.latest(), None);
    let mut child = spawn("echo 0123456789 > /dev/null");
    sampler.job_started(child.id(), SystemClock.instant());
    let counters = child.wait().unwrap().counters.unwrap();
    sampler.job_ended(child.id(), SystemClock.instant(), Some(&counters));
    let samples = sampler.stop();
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].file_written_bytes, counters.written_bytes);
    assert_eq!(counters.written_bytes, 11);
    assert_eq!((samples[0].device_reads, samples[0].device_busy), (0, 0.0));
}

#[test]
fn no_sample_crosses_the_border_of_a_stage() {
    let folder = tempfile::tempdir().unwrap();
    let clock = SystemClock;
    let sampler = Sampler::start(
        Duration::from_secs(3600),
        &DeviceScope::None,
        clock.instant(),
        Arc::new(SystemClock),
    )
    .unwrap();
    for (blocks, name) in [(3, "first"), (5, "second")] {
        let mut command = shell(&format!("dd if=/dev/zero of={name} bs=1M count={blocks}"));
        command.current_dir(folder.path());
        let mut child = Child::spawn(command, &accounting()).unwrap();
        sampler.job_started(child.id(), clock.instant());
        let counters = child.wait().unwrap().counters.unwrap();
        sampler.job_ended(child.id(), clock.instant(), Some(&counters));
        sampler.mark();
    }
    let samples = sampler.stop();
    let written: Vec<u64> = samples.iter().map(|s| s.file_written_bytes / MIB).collect();
    assert_eq!(written, [3, 5]);
    check_plausible(&samples);
}

#[test]
fn a_job_that_could_not_be_watched_is_counted_over_its_time() {
    let clock = SystemClock;
    let origin = clock.instant();
    let hour = Duration::from_secs(3600);
    let sampler = Sampler::start(hour, &DeviceScope::None, origin, Arc::new(SystemClock)).unwrap();
    let counters = Counters { read_bytes: 77, ..Default::default() };
    sampler.mark();
    sampler.job_unseen(origin, clock.instant(), &counters);
    let samples = sampler.stop();
    assert_eq!(samples.iter().map(|sample| sample.file_read_bytes).sum::<u64>(), 77);
}
