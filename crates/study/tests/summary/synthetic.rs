//! A study as a real one looks: the mixed workload, 77 jobs on two logical nodes, two minutes.
//!
//! Made from a seed, so that the stored fixture can be made again. Figures are rounded as counters of a
//! real machine are, and so that the file stays small.

use std::collections::BTreeMap;

use forebay_analytics::histogram::Bucket;
use forebay_study::record::{
    Cache, Device, DeviceScope, Exit, JobKind, JobRecord, Machine, Record, Run, Sample, Stage,
    State, Storage, Subject, Usage, Workload,
};
use forebay_workload::program::{Buffers, Outcome, StepRecord};
use forebay_workload::resource::{PeakScope, ResourceRecord};

use crate::builder::{GB, MB};

/// Classes of jobs with their kind, how many there are, and their steps.
const CLASSES: [(&str, JobKind, usize, &[&str]); 19] = [
    ("census-extract", JobKind::Io, 2, &["extract", "summary"]),
    ("large-sort", JobKind::Io, 2, &["sort", "verify"]),
    ("copy-columns", JobKind::Io, 3, &["copy"]),
    ("sql-join", JobKind::Io, 3, &["sort", "join"]),
    ("dimension-summary", JobKind::Io, 4, &["summary"]),
    ("random-rows", JobKind::Io, 4, &["random-read"]),
    ("column-histograms", JobKind::Io, 4, &["histogram"]),
    ("code-generation", JobKind::Memory, 5, &["generate", "compute"]),
    ("pension-projection", JobKind::Memory, 5, &["project"]),
    ("focus", JobKind::Computation, 5, &["focus"]),
    ("computation-1", JobKind::Computation, 5, &["import", "regression"]),
    ("computation-2", JobKind::Computation, 5, &["regression", "k-means"]),
    ("computation-3", JobKind::Computation, 5, &["trees"]),
    ("linear-model", JobKind::Computation, 5, &["glm"]),
    ("nonlinear-mixed", JobKind::Computation, 4, &["nonlinear"]),
    ("mixed-model", JobKind::Computation, 4, &["reml"]),
    ("survey-logistic", JobKind::Computation, 4, &["logistic"]),
    ("glmm", JobKind::Computation, 4, &["glmm"]),
    ("ranking", JobKind::Computation, 4, &["rank"]),
];
const NODES: u32 = 2;
const CONCURRENT: u32 = 10;
const SECONDS: u32 = 120;
const CPUS: u32 = 32;

/// Numbers that look random (splitmix64; G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014).
struct Noise(u64);

impl Noise {
    /// Evenly between `low` and `high`.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        low + (high - low) * (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// The study.
pub fn study(seed: u64) -> Record {
    let mut noise = Noise(seed);
    let jobs = jobs(&mut noise);
    let end = jobs.iter().filter_map(|job| job.end_seconds).fold(0.0, f64::max);
    let samples =
        (1..=SECONDS).map(|second| sample(f64::from(second), &jobs, &mut noise)).collect();
    let stage = Stage {
        name: "mixed".to_owned(),
        nodes: NODES,
        sessions: None,
        concurrent: CONCURRENT,
        start_seconds: 0.0,
        end_seconds: end,
        jobs,
    };
    let cache = Cache {
        dropped: true,
        input_bytes: 300 * GB,
        working_set_bytes: 352 * GB,
        memory_bytes: 256 * GB,
    };
    let run = Run {
        subject: 0,
        round: 0,
        cache,
        started_unix_seconds: None,
        prepare_seconds: 214.5,
        seconds: end,
        stages: vec![stage],
        samples,
        interval_seconds: 1.0,
        device_scope: DeviceScope::Devices(vec!["nvme0n1".to_owned()]),
        hosts: Vec::new(),
    };
    Record {
        schema: Record::SCHEMA,
        workload: workload(seed),
        command: "forebay bench run mixed --on /srv/grid --nodes 2 --drop-caches"
            .split(' ')
            .map(str::to_owned)
            .collect(),
        version: "0.1.0".to_owned(),
        started: "2026-03-14T09:26:53Z".to_owned(),
        state: State::Complete,
        machine: machine(),
        hosts: Vec::new(),
        subjects: vec![subject()],
        runs: vec![run],
    }
}

fn workload(seed: u64) -> Workload {
    Workload {
        name: "mixed".to_owned(),
        title: "Mixed analytics: 19 tests, 77 launches".to_owned(),
        study: "[3], 1 node: sum of real times 768 min, user 668, system 61, mean CPU/real 0.93"
            .to_owned(),
        notes: vec!["Inputs are made from the seed; they shrink with the scale.".to_owned()],
        scale: 0.7,
        seed,
        buffers: Buffers::default(),
        parameters: [("concurrent".to_owned(), CONCURRENT.to_string())].into(),
    }
}

fn machine() -> Machine {
    let settings = [
        ("vm.dirty_ratio", "40"),
        ("vm.dirty_background_ratio", "10"),
        ("transparent_hugepage", "never"),
        ("governor", "performance"),
    ];
    Machine {
        host: "node1".to_owned(),
        processor: "Example 16-core processor".to_owned(),
        cpus: CPUS,
        cores: CPUS / 2,
        memory_bytes: 256 * GB,
        virtualization: Some("none".to_owned()),
        kernel: "6.12.0".to_owned(),
        system: "Debian GNU/Linux 13".to_owned(),
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        io_wait_source: "delay accounting (taskstats)".to_owned(),
    }
}

fn subject() -> Subject {
    let queue = [("scheduler", "none"), ("read_ahead_kb", "512"), ("nr_requests", "1023")];
    let area = |path: &str| Storage {
        path: path.into(),
        file_system: "xfs".to_owned(),
        source: "/dev/nvme0n1".to_owned(),
        mountpoint: "/srv/grid".into(),
        options: "rw,noatime,attr2,inode64".to_owned(),
        size_bytes: 3_840 * GB,
        free_bytes: 3_100 * GB,
        devices: vec![Device {
            name: "nvme0n1".to_owned(),
            model: Some("Example NVMe 3.84 TB".to_owned()),
            rotational: Some(false),
            queue: queue.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Device::default()
        }],
        ..Storage::default()
    };
    Subject {
        label: "A".to_owned(),
        data: area("/srv/grid/data"),
        work: area("/srv/grid/work"),
        util: area("/srv/grid/util"),
    }
}

/// The jobs in the order in which they are due; each takes the slot that is free first.
fn jobs(noise: &mut Noise) -> Vec<JobRecord> {
    let mut waiting: Vec<(f64, &str, JobKind, usize, &[&str])> = Vec::new();
    for (class, kind, count, steps) in CLASSES {
        for number in 1..=count {
            waiting.push((noise.between(0.0, 1.0), class, kind, number, steps));
        }
    }
    waiting.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = vec![0.0_f64; (NODES * CONCURRENT) as usize];
    let mut jobs = Vec::new();
    for (_, class, kind, number, steps) in waiting {
        let slot = (0..free.len()).min_by(|&a, &b| free[a].total_cmp(&free[b])).unwrap();
        let start = rounded(free[slot] + noise.between(0.01, 0.05));
        let seconds = match kind {
            JobKind::Io => noise.between(30.0, 48.0),
            JobKind::Memory => noise.between(18.0, 30.0),
            JobKind::Computation => noise.between(14.0, 34.0),
        };
        let end = rounded((start + seconds).min(f64::from(SECONDS) - 0.2));
        free[slot] = end;
        jobs.push(JobRecord {
            name: format!("{class}-{number}"),
            class: class.to_owned(),
            kind,
            node: slot as u32 % NODES,
            host: None,
            session: None,
            due_seconds: 0.0,
            start_seconds: Some(start),
            end_seconds: Some(end),
            exit: Exit::Success,
            usage: usage(kind, end - start, noise),
            steps: Vec::new(),
        });
        let job = jobs.last_mut().unwrap();
        job.steps =
            steps.iter().enumerate().map(|(i, s)| step(job, s, i, steps.len(), noise)).collect();
    }
    jobs
}

fn usage(kind: JobKind, seconds: f64, noise: &mut Noise) -> Usage {
    let (cpu, read, written, call, memory) = match kind {
        JobKind::Io => (0.82, 7_000.0, 2_600.0, 131_072, 290.0),
        JobKind::Memory => (0.97, 130.0, 40.0, 65_536, 1900.0),
        JobKind::Computation => (0.99, 95.0, 12.0, 65_536, 420.0),
    };
    let cpu = seconds * cpu * noise.between(0.95, 1.01);
    let system = cpu * if kind == JobKind::Io { 0.22 } else { 0.03 };
    let bytes = |mb: f64, noise: &mut Noise| (mb * noise.between(0.7, 1.3)) as u64 * MB;
    let (read_bytes, written_bytes) = (bytes(read, noise), bytes(written, noise));
    let wait = (seconds - cpu).max(0.0) * noise.between(0.6, 0.95);
    Usage {
        real_seconds: rounded(seconds),
        user_seconds: rounded(cpu - system),
        system_seconds: rounded(system),
        peak_memory_bytes: Some(bytes(memory, noise)),
        minor_faults: noise.between(4e4, 9e5) as u64,
        major_faults: noise.between(0.0, 40.0) as u64,
        voluntary_switches: noise.between(900.0, 3e4) as u64,
        involuntary_switches: noise.between(300.0, 4e3) as u64,
        read_bytes: Some(read_bytes),
        written_bytes: Some(written_bytes),
        read_calls: Some(read_bytes / call),
        write_calls: Some(written_bytes / call),
        device_read_bytes: Some(read_bytes / 10 * 6),
        device_written_bytes: Some(written_bytes / 10 * 9),
        io_wait_seconds: Some(rounded(wait)),
        ..Usage::default()
    }
}

/// One of the steps of `job`, which share its time and bytes evenly.
fn step(job: &JobRecord, name: &str, place: usize, steps: usize, noise: &mut Noise) -> StepRecord {
    let (usage, part) = (&job.usage, 1.0 / steps as f64);
    let share = |bytes: Option<u64>| bytes.map(|bytes| bytes / steps as u64);
    let rows = noise.between(2e4, 6e6) as u64;
    let mut outcome = Outcome::rows(rows);
    if name == "random-read" {
        let seconds = usage.real_seconds;
        let reads = usage.read_calls.unwrap_or(0);
        let rate = usage.read_bytes.unwrap_or(0) as f64 / 1e6 / seconds;
        outcome = outcome
            .with("iops", rounded(reads as f64 / seconds))
            .with("read_mb_per_second", rounded(rate));
        outcome.latencies = BTreeMap::from([("read".to_owned(), latencies(reads))]);
    } else if name == "sort" {
        outcome = outcome.with("runs", (rows / 400_000 + 1) as f64).with("merge_passes", 1.0);
    } else if name == "generate" {
        outcome = outcome.with("temp_files", noise.between(150.0, 420.0).floor());
    }
    StepRecord {
        kind: name.to_owned(),
        start_seconds: rounded(usage.real_seconds * part * place as f64),
        resources: ResourceRecord {
            step: name.to_owned(),
            real_seconds: rounded(usage.real_seconds * part),
            user_seconds: rounded(usage.user_seconds * part),
            system_seconds: rounded(usage.system_seconds * part),
            peak_memory_bytes: usage.peak_memory_bytes,
            peak_memory_scope: PeakScope::Step,
            minor_faults: usage.minor_faults / steps as u64,
            major_faults: usage.major_faults / steps as u64,
            voluntary_switches: usage.voluntary_switches / steps as u64,
            involuntary_switches: usage.involuntary_switches / steps as u64,
            read_bytes: share(usage.read_bytes),
            written_bytes: share(usage.written_bytes),
            rows,
        },
        outcome,
    }
}

/// Times around 0.2 ms with a long tail, for so many calls.
fn latencies(calls: u64) -> Vec<Bucket> {
    let parts = [2, 14, 31, 26, 13, 7, 4, 2, 1];
    let nanoseconds = [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 25_600];
    let bucket =
        |(&upto, part): (&u64, u64)| Bucket { upto: upto * 1000, count: calls * part / 100 };
    nanoseconds.iter().zip(parts).map(bucket).collect()
}

/// The second before `at`, from the jobs that ran in it.
fn sample(at: f64, jobs: &[JobRecord], noise: &mut Noise) -> Sample {
    let mut sums = [0.0_f64; 6];
    let [mut running, mut done] = [0, 0];
    for job in jobs {
        let (start, end) = (job.start_seconds.unwrap(), job.end_seconds.unwrap());
        let part = (end.min(at) - start.max(at - 1.0)).max(0.0) / (end - start);
        running += u32::from(start <= at && at < end);
        done += u32::from(end <= at);
        let usage = &job.usage;
        let counts = [usage.read_bytes, usage.written_bytes, usage.read_calls, usage.write_calls];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count.unwrap_or(0) as f64 * part;
        }
        sums[4] += usage.user_seconds * part;
        sums[5] += usage.system_seconds * part;
    }
    let swing = noise.between(0.85, 1.15);
    let [read, written, reads, writes] =
        [sums[0], sums[1], sums[2], sums[3]].map(|sum| sum * swing);
    let (device_read, device_written) =
        (read * noise.between(0.5, 0.68), written * noise.between(0.8, 1.0));
    let (device_reads, device_writes) = (device_read / 262_144.0, device_written / 458_752.0);
    let [user, system] = [sums[4], sums[5]].map(|seconds| rounded(seconds / f64::from(CPUS)));
    let wait = rounded(noise.between(0.02, 0.06));
    Sample {
        at_seconds: at,
        seconds: 1.0,
        jobs_waiting: jobs.len() as u32 - running - done,
        jobs_running: running,
        jobs_done: done,
        file_read_bytes: read as u64,
        file_written_bytes: written as u64,
        file_read_calls: reads as u64,
        file_write_calls: writes as u64,
        device_read_bytes: device_read as u64,
        device_written_bytes: device_written as u64,
        device_reads: device_reads as u64,
        device_writes: device_writes as u64,
        device_read_seconds: rounded(device_reads * noise.between(2e-4, 6e-4)),
        device_write_seconds: rounded(device_writes * noise.between(4e-4, 2e-3)),
        device_busy: rounded(noise.between(0.55, 0.95)),
        cpu_user: user,
        cpu_system: system,
        cpu_io_wait: wait,
        cpu_idle: rounded(1.0 - user - system - wait),
        cpu_steal: 0.0,
        pressure_io_some: Some(rounded(noise.between(0.1, 0.35))),
        pressure_io_full: Some(rounded(noise.between(0.0, 0.08))),
        dirty_bytes: noise.between(2e9, 9e9) as u64,
        writeback_bytes: noise.between(1e7, 4e8) as u64,
        cached_bytes: (at * 1.4e9) as u64 + 20 * GB,
        available_bytes: (220.0 * 1e9 - at * 1e8) as u64,
        network_received_bytes: None,
        network_sent_bytes: None,
    }
}
