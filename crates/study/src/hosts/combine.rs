//! Makes of the seconds of several hosts those of a run: on one beat, and all together. Pure.
//!
//! Hosts have seconds of their own. What can be added up (bytes, requests) is taken as spread evenly over the
//! second in which a host counted it, and lands in the intervals of the run with which that second overlaps: no
//! byte is lost or counted twice, except for what lies before the first interval or after the last.

use crate::record::Sample;

/// The seconds of one host.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// In the order of their times, in seconds of the run.
    pub samples: &'a [Sample],
    /// Its logical processors: the weight of its shares of processor time.
    pub cpus: u32,
    /// Whether another series stands for the machine: then its processors, memory and devices do not count again.
    pub same_machine: bool,
    /// Whether another series stands for its network interfaces.
    pub same_network: bool,
}

/// The ends of a run's intervals: of `interval` seconds, begun anew at each of the `marks` and at the end at the latest. A
/// rest of less than half an interval belongs to the one before.
#[must_use]
pub fn edges(marks: &[f64], end: f64, interval: f64) -> Vec<f64> {
    let mut edges = Vec::new();
    let mut start = 0.0;
    for &mark in marks.iter().chain([&end]) {
        let mark = mark.min(end);
        if mark <= start {
            continue;
        }
        let whole = ((mark - start) / interval + 0.5).floor().max(1.0) as u32;
        edges.extend((1..whole).map(|place| start + f64::from(place) * interval));
        edges.push(mark);
        start = mark;
    }
    edges
}

/// What all hosts did together in each interval that ends at one of `edges`, the first of which begins at zero. What jobs did
/// is not in it.
#[must_use]
pub fn combine(hosts: &[Series<'_>], edges: &[f64]) -> Vec<Sample> {
    let starts = std::iter::once(&0.0).chain(edges);
    starts.zip(edges).map(|(&start, &end)| interval(hosts, start, end)).collect()
}

/// The part of a sample's time that lies before `at`.
fn part_before(sample: &Sample, at: f64) -> f64 {
    let start = sample.at_seconds - sample.seconds;
    if sample.seconds <= 0.0 {
        return if sample.at_seconds <= at { 1.0 } else { 0.0 };
    }
    ((at - start) / sample.seconds).clamp(0.0, 1.0)
}

/// Something of a sample that lies between two times; whole numbers so that the parts add up to the whole.
fn whole_between(value: u64, sample: &Sample, start: f64, end: f64) -> u64 {
    let before = |at: f64| (value as f64 * part_before(sample, at)).round() as u64;
    before(end) - before(start)
}

fn interval(hosts: &[Series<'_>], start: f64, end: f64) -> Sample {
    let mut all = Sample { at_seconds: end, seconds: end - start, ..Sample::default() };
    let mut shares = Shares::default();
    for host in hosts {
        let overlapping: Vec<(&Sample, f64)> = overlapping(host.samples, start, end);
        if !host.same_network {
            for (sample, _) in &overlapping {
                add_network(&mut all, sample, start, end);
            }
        }
        if host.same_machine {
            continue;
        }
        let mut busy = (0.0, 0.0);
        for &(sample, seconds) in &overlapping {
            add_devices(&mut all, sample, start, end);
            shares.add(sample, seconds, f64::from(host.cpus));
            busy = (busy.0 + sample.device_busy * seconds, busy.1 + seconds);
        }
        if busy.1 > 0.0 {
            all.device_busy = all.device_busy.max(busy.0 / busy.1);
        }
        // Levels are those at the end of the interval.
        if let Some((sample, _)) = overlapping.last() {
            all.dirty_bytes += sample.dirty_bytes;
            all.writeback_bytes += sample.writeback_bytes;
            all.cached_bytes += sample.cached_bytes;
            all.available_bytes += sample.available_bytes;
        }
    }
    shares.finish(&mut all);
    all
}

/// The samples that overlap with an interval, with the seconds that they have in common.
fn overlapping(samples: &[Sample], start: f64, end: f64) -> Vec<(&Sample, f64)> {
    let first = samples.partition_point(|sample| sample.at_seconds <= start);
    let common = |sample: &Sample| {
        sample.at_seconds.min(end) - (sample.at_seconds - sample.seconds).max(start)
    };
    samples[first..]
        .iter()
        .map(|sample| (sample, common(sample)))
        .take_while(|(_, seconds)| *seconds > 0.0)
        .collect()
}

fn add_devices(all: &mut Sample, sample: &Sample, start: f64, end: f64) {
    let whole = |value| whole_between(value, sample, start, end);
    let part = part_before(sample, end) - part_before(sample, start);
    all.device_read_bytes += whole(sample.device_read_bytes);
    all.device_written_bytes += whole(sample.device_written_bytes);
    all.device_reads += whole(sample.device_reads);
    all.device_writes += whole(sample.device_writes);
    all.device_read_seconds += sample.device_read_seconds * part;
    all.device_write_seconds += sample.device_write_seconds * part;
}

fn add_network(all: &mut Sample, sample: &Sample, start: f64, end: f64) {
    let add = |sum: &mut Option<u64>, value: Option<u64>| {
        if let Some(value) = value {
            *sum.get_or_insert(0) += whole_between(value, sample, start, end);
        }
    };
    add(&mut all.network_received_bytes, sample.network_received_bytes);
    add(&mut all.network_sent_bytes, sample.network_sent_bytes);
}

/// Shares of time, weighted by processors and seconds; pressure by seconds alone.
#[derive(Default)]
struct Shares {
    weight: f64,
    processor: [f64; 5],
    some: (f64, f64),
    full: (f64, f64),
}

impl Shares {
    fn add(&mut self, sample: &Sample, seconds: f64, cpus: f64) {
        let weight = seconds * cpus;
        self.weight += weight;
        let parts = [
            sample.cpu_user,
            sample.cpu_system,
            sample.cpu_io_wait,
            sample.cpu_idle,
            sample.cpu_steal,
        ];
        for (sum, part) in self.processor.iter_mut().zip(parts) {
            *sum += part * weight;
        }
        for (sum, value) in
            [(&mut self.some, sample.pressure_io_some), (&mut self.full, sample.pressure_io_full)]
        {
            if let Some(value) = value {
                *sum = (sum.0 + value * seconds, sum.1 + seconds);
            }
        }
    }

    fn finish(self, all: &mut Sample) {
        if self.weight > 0.0 {
            let [user, system, io_wait, idle, steal] =
                self.processor.map(|part| part / self.weight);
            (all.cpu_user, all.cpu_system, all.cpu_io_wait) = (user, system, io_wait);
            (all.cpu_idle, all.cpu_steal) = (idle, steal);
        }
        let mean = |(sum, seconds): (f64, f64)| (seconds > 0.0).then(|| sum / seconds);
        all.pressure_io_some = mean(self.some);
        all.pressure_io_full = mean(self.full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(at: f64, user: f64, bytes: u64) -> Sample {
        Sample {
            at_seconds: at,
            seconds: 1.0,
            cpu_user: user,
            cpu_idle: 1.0 - user,
            device_read_bytes: bytes,
            dirty_bytes: bytes,
            network_received_bytes: Some(10 * bytes),
            ..Sample::default()
        }
    }

    fn series(samples: &[Sample], cpus: u32) -> Series<'_> {
        Series { samples, cpus, same_machine: false, same_network: false }
    }

    #[test]
    fn intervals_begin_anew_at_marks_and_short_rests_belong_to_the_one_before() {
        assert_eq!(edges(&[], 3.2, 1.0), [1.0, 2.0, 3.2]);
        assert_eq!(edges(&[1.7], 3.0, 1.0), [1.0, 1.7, 3.0]);
        assert_eq!(edges(&[0.1, 0.1, 9.0], 2.0, 1.0), [0.1, 1.1, 2.0]);
        assert_eq!(edges(&[], 0.2, 1.0), [0.2]);
        assert!(edges(&[], 0.0, 1.0).is_empty());
    }

    #[test]
    fn what_adds_up_adds_up_to_the_byte_and_shares_weigh_by_processors() {
        let (one, two) = (
            [second(0.7, 1.0, 101), second(1.7, 0.5, 203), second(2.7, 0.5, 7)],
            [second(1.0, 0.0, 1000), second(2.0, 0.0, 1), second(3.0, 0.0, 1)],
        );
        let all = combine(&[series(&one, 2), series(&two, 6)], &[1.0, 2.0, 3.0]);
        let sum: u64 = all.iter().map(|sample| sample.device_read_bytes).sum();
        // 30 of the 101 bytes of the first second were read before the run.
        assert_eq!(sum, 71 + 203 + 7 + 1002);
        assert_eq!(all[0].device_read_bytes, 71 + 61 + 1000);
        let received: u64 = all.iter().filter_map(|sample| sample.network_received_bytes).sum();
        assert_eq!(received, 707 + 2030 + 70 + 10_020);
        // The second interval: the first host was half busy, with a quarter of the processors.
        assert!((all[1].cpu_user - 0.125).abs() < 1e-9, "{all:?}");
        assert!((all[1].cpu_idle - 0.875).abs() < 1e-9);
        assert_eq!(all[1].dirty_bytes, 7 + 1);
        assert_eq!(all[0].pressure_io_some, None);
    }

    #[test]
    fn hosts_of_one_machine_count_its_devices_once_and_each_its_own_network() {
        let samples = [second(1.0, 0.5, 100)];
        let twin = Series { same_machine: true, ..series(&samples, 4) };
        let all = combine(&[series(&samples, 4), twin], &[1.0]);
        assert_eq!(all[0].device_read_bytes, 100);
        assert_eq!(all[0].network_received_bytes, Some(2000));
        let shared = Series { same_network: true, ..twin };
        assert_eq!(
            combine(&[series(&samples, 4), shared], &[1.0])[0].network_received_bytes,
            Some(1000)
        );
    }

    #[test]
    fn an_interval_that_nobody_watched_is_empty() {
        let samples = [second(1.0, 0.5, 100)];
        let all = combine(&[series(&samples, 4)], &[1.0, 2.0]);
        assert_eq!(all[1], Sample { at_seconds: 2.0, seconds: 1.0, ..Sample::default() });
    }
}
