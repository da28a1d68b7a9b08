//! Bytes over time, and what devices and processors did meanwhile.

use std::collections::BTreeMap;

use super::{DeviceLatency, Flow, Period, Processor, SizeBucket};
use crate::record::{DeviceScope, JobRecord, Run, Sample};
use crate::statistics::{Spread, quantile, ratio, sum, weighted_mean, weighted_median};

/// Bytes that a sample read and wrote.
type Bytes = fn(&Sample) -> (u64, u64);

/// Bytes of jobs by system calls.
pub(super) const FILE: Bytes = |sample| (sample.file_read_bytes, sample.file_written_bytes);
/// Bytes of devices.
pub(super) const DEVICE: Bytes = |sample| (sample.device_read_bytes, sample.device_written_bytes);

/// A sample of at least so many seconds counts as one; shorter ones lie at the borders of stages.
const WHOLE_SECONDS: f64 = 0.5;

/// Sampled intervals may be a little shorter than intended.
const NEARLY: f64 = 0.99;

impl Flow {
    /// Of samples, which follow one another; sustained are those in `busy`.
    pub(super) fn of(samples: &[&Sample], busy: &[Period], bytes: Bytes) -> Flow {
        let sum = |part: fn((u64, u64)) -> u64| {
            samples.iter().map(|s| part(bytes(s))).fold(0, u64::saturating_add)
        };
        let rates = |part: fn((u64, u64)) -> u64| {
            samples
                .iter()
                .filter(|sample| busy.iter().any(|period| period.holds(sample)))
                .filter_map(move |sample| {
                    Some((rate(sample, part(bytes(sample)))?, sample.seconds))
                })
        };
        let both = |(read, written): (u64, u64)| read.saturating_add(written);
        let spread = Spread::of_weighted(rates(both));
        Flow {
            samples: samples
                .iter()
                .filter(|sample| sample.seconds >= WHOLE_SECONDS)
                .filter(|sample| busy.iter().any(|period| period.holds(sample)))
                .count(),
            sustained_mb_per_second: spread.map(|spread| spread.median),
            sustained_read_mb_per_second: weighted_median(rates(|bytes| bytes.0)),
            sustained_write_mb_per_second: weighted_median(rates(|bytes| bytes.1)),
            busy: spread,
            best_1_second: best(samples, 1.0, bytes),
            best_10_seconds: best(samples, 10.0, bytes),
            ..Flow::default()
        }
        .with_totals(sum(|bytes| bytes.0), sum(|bytes| bytes.1))
    }

    /// Whether there are samples enough to judge by ([`Flow::SAMPLES_MIN`]).
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.samples >= Flow::SAMPLES_MIN
    }

    /// Without rates over busy periods: of stages that do different things they say nothing.
    pub(super) fn without_sustained(self) -> Flow {
        Flow {
            samples: 0,
            sustained_mb_per_second: None,
            sustained_read_mb_per_second: None,
            sustained_write_mb_per_second: None,
            busy: None,
            ..self
        }
    }

    /// The same with other totals.
    pub(super) fn with_totals(self, read_bytes: u64, written_bytes: u64) -> Flow {
        let read_share = ratio(read_bytes as f64, read_bytes as f64 + written_bytes as f64);
        Flow { read_bytes, written_bytes, read_share, ..self }
    }

    /// Of jobs at the file level: bytes are those that the jobs counted, if all that ran did.
    pub(super) fn of_jobs<'a>(
        samples: &[&Sample],
        busy: &[Period],
        jobs: impl Iterator<Item = &'a JobRecord>,
    ) -> Flow {
        let flow = Flow::of(samples, busy, FILE);
        let add = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        let counted = jobs
            .filter(|job| job.start_seconds.is_some())
            .map(|job| job.usage.read_bytes.zip(job.usage.written_bytes))
            .try_fold((0, 0), |sum: (u64, u64), bytes| bytes.map(|bytes| add(sum, bytes)));
        match counted {
            Some((read, written)) => flow.with_totals(read, written),
            None => flow,
        }
    }

    /// Of devices; `None` if none were watched.
    pub(super) fn of_devices(
        samples: &[&Sample],
        busy: &[Period],
        scope: &DeviceScope,
    ) -> Option<Flow> {
        match scope {
            DeviceScope::None => None,
            DeviceScope::Devices(_) | DeviceScope::AllDisks => {
                (!samples.is_empty()).then(|| Flow::of(samples, busy, DEVICE))
            }
        }
    }
}

/// In MB/s; `None` of an interval without length.
fn rate(sample: &Sample, bytes: u64) -> Option<f64> {
    ratio(bytes as f64 / 1e6, sample.seconds)
}

/// The best rate of samples on end that take at least `window` seconds, as few as there must be.
fn best(samples: &[&Sample], window: f64, bytes: Bytes) -> Option<f64> {
    let (mut first, mut seconds, mut sum) = (0, 0.0, 0_u128);
    let mut best: Option<f64> = None;
    for sample in samples {
        let (read, written) = bytes(sample);
        seconds += sample.seconds;
        sum += u128::from(read) + u128::from(written);
        while first < samples.len() && seconds - samples[first].seconds >= window * NEARLY {
            let (read, written) = bytes(samples[first]);
            seconds -= samples[first].seconds;
            sum -= u128::from(read) + u128::from(written);
            first += 1;
        }
        if seconds >= window * NEARLY {
            let rate = sum as f64 / 1e6 / seconds;
            best = Some(best.map_or(rate, |best| best.max(rate)));
        }
    }
    best
}

/// What the page cache gave: what was read of files and not of devices.
pub(super) fn cache_hit_ratio(file: &Flow, device: Option<&Flow>) -> Option<f64> {
    let read = ratio(device?.read_bytes as f64, file.read_bytes as f64)?;
    Some((1.0 - read).clamp(0.0, 1.0))
}

impl DeviceLatency {
    /// Over the whole run; nothing if no devices were watched.
    pub(super) fn of(samples: &[Sample], scope: &DeviceScope) -> DeviceLatency {
        if *scope == DeviceScope::None {
            return DeviceLatency::default();
        }
        let of = |part: fn(&Sample) -> (f64, u64)| {
            let with_requests = || samples.iter().map(part).filter(|(_, count)| *count > 0);
            let (seconds, count) = with_requests()
                .fold((0.0, 0_u64), |sum, one| (sum.0 + one.0, sum.1.saturating_add(one.1)));
            let means = with_requests().map(|(seconds, count)| seconds * 1e3 / count as f64);
            (ratio(seconds * 1e3, count as f64), quantile(means, 0.95))
        };
        let (read_mean_ms, read_p95_ms) = of(|s| (s.device_read_seconds, s.device_reads));
        let (write_mean_ms, write_p95_ms) = of(|s| (s.device_write_seconds, s.device_writes));
        DeviceLatency { read_mean_ms, read_p95_ms, write_mean_ms, write_p95_ms }
    }
}

/// Sizes of calls by the means of jobs, of requests by the means of samples.
pub(super) fn request_sizes(run: &Run) -> Vec<SizeBucket> {
    let mut buckets: BTreeMap<u64, SizeBucket> = BTreeMap::new();
    let mut add = |bytes: u64, count: u64, place: fn(&mut SizeBucket) -> &mut u64| {
        if count > 0 {
            let upto_bytes = bucket_of(bytes.div_ceil(count));
            let bucket = buckets.entry(upto_bytes).or_insert(SizeBucket::empty(upto_bytes));
            let place = place(bucket);
            *place = place.saturating_add(count);
        }
    };
    for usage in run.jobs().map(|job| &job.usage) {
        if let (Some(bytes), Some(calls)) = (usage.read_bytes, usage.read_calls) {
            add(bytes, calls, |bucket| &mut bucket.file_reads);
        }
        if let (Some(bytes), Some(calls)) = (usage.written_bytes, usage.write_calls) {
            add(bytes, calls, |bucket| &mut bucket.file_writes);
        }
    }
    let watched = run.device_scope != DeviceScope::None;
    for sample in run.samples.iter().filter(|_| watched) {
        add(sample.device_read_bytes, sample.device_reads, |b| &mut b.device_reads);
        add(sample.device_written_bytes, sample.device_writes, |b| &mut b.device_writes);
    }
    buckets.into_values().collect()
}

/// The smallest power of two that is not smaller; zero for zero.
fn bucket_of(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { bytes.checked_next_power_of_two().unwrap_or(u64::MAX) }
}

impl SizeBucket {
    /// Adds the counts of a bucket of the same sizes.
    pub(super) fn add(&mut self, other: &SizeBucket) {
        self.file_reads = self.file_reads.saturating_add(other.file_reads);
        self.file_writes = self.file_writes.saturating_add(other.file_writes);
        self.device_reads = self.device_reads.saturating_add(other.device_reads);
        self.device_writes = self.device_writes.saturating_add(other.device_writes);
    }

    pub(super) fn empty(upto_bytes: u64) -> SizeBucket {
        SizeBucket { upto_bytes, file_reads: 0, file_writes: 0, device_reads: 0, device_writes: 0 }
    }
}

impl Processor {
    /// Over the samples in `busy`, each by its length.
    pub(super) fn of(samples: &[Sample], busy: &[Period]) -> Option<Processor> {
        let samples: Vec<&Sample> = samples
            .iter()
            .filter(|sample| busy.iter().any(|period| period.holds(sample)))
            .collect();
        let mean =
            |part: fn(&Sample) -> f64| weighted_mean(samples.iter().map(|s| (part(s), s.seconds)));
        let mean_known = |part: fn(&Sample) -> Option<f64>| {
            weighted_mean(samples.iter().filter_map(|s| Some((part(s)?, s.seconds))))
        };
        Some(Processor {
            user: mean(|s| s.cpu_user)?,
            system: mean(|s| s.cpu_system)?,
            io_wait: mean(|s| s.cpu_io_wait)?,
            idle: mean(|s| s.cpu_idle)?,
            steal: mean(|s| s.cpu_steal)?,
            pressure_some: mean_known(|s| s.pressure_io_some),
            pressure_full: mean_known(|s| s.pressure_io_full),
        })
    }

    /// Part of the time in which processors worked, for whomever.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.user + self.system
    }

    /// Part of the processors' time that programs other than the jobs used, over the whole run: daemons and
    /// the kernel's own threads too. `None` without samples.
    pub(super) fn foreign(run: &Run, cpus: u32) -> Option<f64> {
        let all: f64 =
            run.samples.iter().map(|sample| sample.seconds).sum::<f64>() * f64::from(cpus);
        let busy = |sample: &Sample| (sample.cpu_user + sample.cpu_system) * sample.seconds;
        let used = run.samples.iter().map(busy).sum::<f64>() * f64::from(cpus);
        let by_jobs = sum(run.jobs().map(|job| job.usage.cpu_seconds()));
        ratio(used - by_jobs, all).map(|share| share.clamp(0.0, 1.0))
    }
}
