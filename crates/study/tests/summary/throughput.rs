//! The busy period, throughput, devices and processors.

use forebay_study::record::{DeviceScope, JobRecord, Run, Sample, Usage};
use forebay_study::summary::{PeriodBasis, RunSummary, SizeBucket, Summary};

use crate::builder::{MB, job, record, run, samples, stage};

fn summed(run: Run) -> RunSummary {
    Summary::of(&record(vec![run])).runs.remove(0)
}

fn of_jobs(jobs: Vec<JobRecord>, samples: Vec<Sample>) -> RunSummary {
    summed(run(vec![stage("all", jobs)], samples))
}

/// Two at once until second 10, then one until second 12.
fn two_then_one() -> Vec<JobRecord> {
    vec![job("a", 0.0, 6.0), job("b", 0.0, 10.0), job("c", 6.0, 12.0)]
}

fn read_samples(megabytes: &[u64]) -> Vec<Sample> {
    samples(&megabytes.iter().map(|&read| (read, 0)).collect::<Vec<_>>())
}

#[test]
fn sustained_is_the_median_of_the_busy_period_only() {
    let rates = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 1000, 1000];
    let run = of_jobs(two_then_one(), read_samples(&rates));
    let busy = run.busy[0];
    assert_eq!((busy.start_seconds, busy.end_seconds, busy.plateau_jobs), (0.0, 10.0, 2));
    assert_eq!(busy.basis, PeriodBasis::Plateau);
    assert_eq!(run.file.sustained_mb_per_second, Some(55.0));
    assert_eq!(run.file.best_1_second, Some(1000.0));
    // Seconds 3 to 12: 520 and 2000 MB.
    assert_eq!(run.file.best_10_seconds, Some(252.0));
    assert_eq!((run.file.read_bytes, run.file.read_share), (2550 * MB, Some(1.0)));
    assert_eq!(run.mb_per_second_per_core, Some(55.0 / 4.0));
    let spread = run.file.busy.unwrap();
    assert_eq!((spread.count, spread.lower_quartile, spread.upper_quartile), (10, 30.0, 80.0));
}

#[test]
fn a_dip_belongs_to_the_busy_period() {
    let jobs = vec![job("a", 0.0, 4.0), job("b", 0.0, 10.0), job("c", 6.0, 10.0)];
    let busy = of_jobs(jobs, Vec::new()).busy[0];
    assert_eq!((busy.start_seconds, busy.end_seconds), (0.0, 10.0));
}

#[test]
fn a_short_spike_makes_no_plateau() {
    let mut jobs = two_then_one();
    // A third job for half a second of twelve.
    jobs.push(job("d", 11.5, 12.0));
    jobs.push(job("e", 11.5, 12.0));
    let busy = of_jobs(jobs, Vec::new()).busy[0];
    assert_eq!((busy.plateau_jobs, busy.start_seconds), (2, 0.0));
}

#[test]
fn jobs_that_are_far_apart_have_a_plateau_of_one() {
    let busy = of_jobs(vec![job("a", 0.0, 1.3), job("b", 42.8, 43.4)], Vec::new()).busy[0];
    assert_eq!((busy.plateau_jobs, busy.start_seconds, busy.end_seconds), (1, 0.0, 43.4));
}

#[test]
fn jobs_that_come_and_go_like_a_mountain_are_busy_all_the_time() {
    let jobs = (0..20).map(|i| job(&format!("j{i}"), f64::from(i), f64::from(40 - i))).collect();
    let busy = of_jobs(jobs, Vec::new()).busy[0];
    // At least 19 at once for four of forty seconds; at least 18 for six of them.
    assert_eq!((busy.plateau_jobs, busy.basis), (19, PeriodBasis::AllJobs));
    assert_eq!((busy.start_seconds, busy.end_seconds), (0.0, 40.0));
}

#[test]
fn long_intervals_weigh_more() {
    let mut samples = read_samples(&[90, 10, 20]);
    // Six seconds with 90 MB in all: 15 MB/s.
    (samples[0].seconds, samples[0].at_seconds) = (6.0, 6.0);
    (samples[1].at_seconds, samples[2].at_seconds) = (7.0, 8.0);
    let run = of_jobs(vec![job("a", 0.0, 8.0)], samples);
    assert_eq!(run.file.sustained_mb_per_second, Some(15.0));
    // No ten seconds were recorded.
    assert_eq!((run.file.best_1_second, run.file.best_10_seconds), (Some(20.0), None));
}

#[test]
fn totals_are_those_of_the_jobs_if_all_know_and_else_those_of_the_samples() {
    let counted = |mut job: JobRecord| {
        job.usage = Usage { read_bytes: Some(7), written_bytes: Some(3), ..job.usage };
        job
    };
    let samples = || samples(&[(5, 5); 10]);
    let run = of_jobs(vec![counted(job("a", 0.0, 10.0)), counted(job("b", 0.0, 10.0))], samples());
    assert_eq!((run.file.read_bytes, run.file.written_bytes), (14, 6));
    assert_eq!(run.file.read_share, Some(0.7));
    let run = of_jobs(vec![counted(job("a", 0.0, 10.0)), job("b", 0.0, 10.0)], samples());
    assert_eq!((run.file.read_bytes, run.file.written_bytes), (50 * MB, 50 * MB));
}

#[test]
fn without_jobs_or_samples_nothing_is_claimed() {
    let none = of_jobs(Vec::new(), samples(&[(5, 5)]));
    assert!(none.busy.is_empty());
    assert_eq!((none.file.sustained_mb_per_second, none.processor), (None, None));
    let blind = of_jobs(vec![job("a", 0.0, 5.0)], Vec::new());
    assert_eq!(blind.busy.len(), 1);
    assert_eq!((blind.file.sustained_mb_per_second, blind.file.best_1_second), (None, None));
    assert_eq!((blind.device, blind.cache_hit_ratio, blind.processor), (None, None, None));
}

#[test]
fn the_cache_hit_ratio_is_what_devices_did_not_read() {
    let of = |device_mb: u64, file_mb: u64, scope: DeviceScope| {
        let mut samples = read_samples(&[file_mb]);
        samples[0].device_read_bytes = device_mb * MB;
        let run = run(vec![stage("all", vec![job("a", 0.0, 1.0)])], samples);
        summed(Run { device_scope: scope, ..run }).cache_hit_ratio
    };
    assert_eq!(of(25, 100, DeviceScope::AllDisks), Some(0.75));
    assert_eq!(of(0, 100, DeviceScope::AllDisks), Some(1.0));
    // More than was asked for, by read-ahead or by others.
    assert_eq!(of(200, 100, DeviceScope::AllDisks), Some(0.0));
    assert_eq!(of(25, 0, DeviceScope::AllDisks), None);
    assert_eq!(of(25, 100, DeviceScope::None), None);
}

#[test]
fn device_latency_is_weighed_by_requests_and_its_quantile_by_seconds() {
    let mut samples = read_samples(&[0, 0, 0]);
    (samples[0].device_reads, samples[0].device_read_seconds) = (10, 0.1);
    (samples[1].device_reads, samples[1].device_read_seconds) = (30, 0.9);
    let latency = of_jobs(vec![job("a", 0.0, 3.0)], samples).latency;
    // 1 s for 40 requests; of seconds of 10 and 30 ms, 95 of 100 are below 29 ms.
    assert!((latency.read_mean_ms.unwrap() - 25.0).abs() < 1e-9);
    assert!((latency.read_p95_ms.unwrap() - 29.0).abs() < 1e-9);
    assert_eq!((latency.write_mean_ms, latency.write_p95_ms), (None, None));
}

#[test]
fn sizes_are_means_of_jobs_and_of_seconds() {
    let mut counted = job("a", 0.0, 1.0);
    counted.usage.read_bytes = Some(1_000_000);
    counted.usage.read_calls = Some(10);
    // Calls that write nothing.
    counted.usage.written_bytes = Some(0);
    counted.usage.write_calls = Some(2);
    let mut samples = read_samples(&[0, 0]);
    (samples[0].device_reads, samples[0].device_read_bytes) = (4, 4 * 131_072);
    (samples[1].device_writes, samples[1].device_written_bytes) = (3, 3 * 131_073);
    let bucket = |upto_bytes, [file_reads, file_writes, device_reads, device_writes]: [u64; 4]| {
        SizeBucket { upto_bytes, file_reads, file_writes, device_reads, device_writes }
    };
    assert_eq!(
        of_jobs(vec![counted], samples).request_sizes,
        [bucket(0, [0, 2, 0, 0]), bucket(131_072, [10, 0, 4, 0]), bucket(262_144, [0, 0, 0, 3])]
    );
}

#[test]
fn processors_are_those_of_the_busy_period() {
    let mut samples = read_samples(&[1; 12]);
    for sample in &mut samples[10..] {
        sample.cpu_user = 0.0;
    }
    samples[0].pressure_io_some = Some(0.2);
    let processor = of_jobs(two_then_one(), samples).processor.unwrap();
    assert!((processor.user - 0.5).abs() < 1e-12 && (processor.busy() - 0.6).abs() < 1e-12);
    assert_eq!((processor.pressure_some, processor.pressure_full), (Some(0.2), None));
}
