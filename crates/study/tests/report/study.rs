//! Records of studies that never were, as large and as strange as the pages must bear. The same every
//! time: the numbers come from a fixed sequence.

use std::collections::BTreeMap;

use forebay_analytics::histogram::Bucket;
use forebay_study::record::{
    Cache, Device, DeviceScope, Exit, JobKind, JobRecord, Machine, Record, Run, Sample, Stage,
    State, Storage, Subject, Usage, Workload,
};
use forebay_workload::program::{Buffers, Outcome, StepRecord};
use forebay_workload::resource::{PeakScope, ResourceRecord};

const GIB: u64 = 1 << 30;

/// Numbers from 0 to 1 in a fixed sequence (the multiplier of L'Ecuyer for 64 bits).
pub struct Sequence(pub u64);

impl Sequence {
    pub fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(3_935_559_000_370_003_845).wrapping_add(2_691_343_689_449_507_681);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

const CLASSES: [(&str, JobKind); 19] = [
    ("census-extract", JobKind::Io),
    ("large-sort", JobKind::Io),
    ("copy", JobKind::Io),
    ("sql-join", JobKind::Io),
    ("dimension-summary", JobKind::Io),
    ("random-rows", JobKind::Io),
    ("histograms", JobKind::Io),
    ("customers", JobKind::Computation),
    ("generate", JobKind::Memory),
    ("pension", JobKind::Memory),
    ("focus", JobKind::Computation),
    ("compute-1", JobKind::Computation),
    ("compute-2", JobKind::Computation),
    ("compute-3", JobKind::Computation),
    ("generalized-linear", JobKind::Computation),
    ("nonlinear-mixed", JobKind::Computation),
    ("mixed-model", JobKind::Computation),
    ("logistic", JobKind::Computation),
    ("ranking", JobKind::Computation),
];

fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub fn storage(path: &str) -> Storage {
    Storage {
        path: path.into(),
        file_system: "xfs".to_owned(),
        source: "/dev/nvme0n1p1".to_owned(),
        mountpoint: path.into(),
        options: "rw,noatime,attr2,inode64,logbufs=8,logbsize=32k,noquota".to_owned(),
        size_bytes: 960 * 1_000_000_000,
        free_bytes: 700 * 1_000_000_000,
        devices: vec![Device {
            name: "nvme0n1".to_owned(),
            model: Some("Example 9100 960GB".to_owned()),
            rotational: Some(false),
            queue: strings(&[
                ("max_sectors_kb", "1280"),
                ("nr_requests", "1023"),
                ("read_ahead_kb", "512"),
                ("scheduler", "none"),
            ]),
            ..Device::default()
        }],
        ..Storage::default()
    }
}

fn subject(label: &str, path: &str) -> Subject {
    Subject {
        label: label.to_owned(),
        data: storage(path),
        work: storage(path),
        util: storage(path),
    }
}

fn machine() -> Machine {
    Machine {
        host: "gridn1".to_owned(),
        processor: "Example 6400 CPU at 2.90 GHz".to_owned(),
        cpus: 32,
        cores: 16,
        memory_bytes: 64 * GIB,
        virtualization: Some("kvm".to_owned()),
        kernel: "6.12.8".to_owned(),
        system: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        settings: strings(&[
            ("vm.dirty_ratio", "40"),
            ("vm.dirty_background_ratio", "10"),
            ("vm.swappiness", "10"),
            ("transparent_hugepage", "never"),
            ("scaling_governor", "performance"),
        ]),
        io_wait_source: "taskstats (delay accounting)".to_owned(),
    }
}

/// A study without runs.
pub fn empty() -> Record {
    Record {
        schema: Record::SCHEMA,
        workload: Workload {
            name: "mixed".to_owned(),
            title: "Mixed analytics, 20 at once".to_owned(),
            study: "Nineteen tests in 77 launches for each node keep about 20 running at once."
                .to_owned(),
            notes: vec![
                "Inputs are proportional to the scale; a sort may copy its input three times."
                    .to_owned(),
            ],
            scale: 0.05,
            seed: 7,
            buffers: Buffers::default(),
            parameters: strings(&[("concurrent", "20"), ("nodes", "1")]),
        },
        command: [
            "forebay",
            "bench",
            "run",
            "mixed",
            "--on",
            "/mnt/grid a",
            "--scale",
            "0.05",
            "--seed",
            "7",
        ]
        .map(str::to_owned)
        .to_vec(),
        version: "0.1.0".to_owned(),
        started: "2026-03-02T09:15:00Z".to_owned(),
        state: State::Complete,
        machine: machine(),
        hosts: Vec::new(),
        subjects: vec![subject("xfs", "/mnt/grid a")],
        runs: Vec::new(),
    }
}

/// One job, with what it would have used.
fn job(
    name: String,
    class: usize,
    node: u32,
    times: (f64, f64, f64),
    numbers: &mut Sequence,
) -> JobRecord {
    let (class, kind) = CLASSES[class % CLASSES.len()];
    let (due, start, end) = times;
    let real = end - start;
    let busy = if kind == JobKind::Io {
        0.35 + 0.3 * numbers.next()
    } else {
        0.85 + 0.14 * numbers.next()
    };
    let bytes = real * if kind == JobKind::Io { 60e6 } else { 4e6 };
    let usage = Usage {
        real_seconds: real,
        user_seconds: real * busy * 0.9,
        system_seconds: real * busy * 0.1,
        peak_memory_bytes: Some((numbers.next() * 2e9) as u64),
        minor_faults: 12_000,
        major_faults: 3,
        voluntary_switches: 4000,
        involuntary_switches: 120,
        read_bytes: Some((bytes * 0.7) as u64),
        written_bytes: Some((bytes * 0.3) as u64),
        read_calls: Some((bytes * 0.7 / 262_144.0) as u64),
        write_calls: Some((bytes * 0.3 / 131_072.0) as u64),
        device_read_bytes: Some((bytes * 0.5) as u64),
        device_written_bytes: Some((bytes * 0.25) as u64),
        io_wait_seconds: Some(real * (1.0 - busy)),
        ..Usage::default()
    };
    JobRecord {
        name,
        class: class.to_owned(),
        kind,
        node,
        host: None,
        session: None,
        due_seconds: due,
        start_seconds: Some(start),
        end_seconds: Some(end),
        exit: Exit::Success,
        usage,
        steps: Vec::new(),
    }
}

/// Jobs on `lanes` lanes one after another from `start`, about `seconds` long in all.
pub fn stage(
    name: &str,
    nodes: u32,
    count: usize,
    start: f64,
    seconds: f64,
    numbers: &mut Sequence,
) -> Stage {
    let lanes = (20 * nodes as usize).min(count);
    let mut free = vec![start; lanes];
    let each = seconds * lanes as f64 / count as f64;
    let jobs: Vec<JobRecord> = (0..count)
        .map(|i| {
            let lane = (0..lanes).min_by(|&a, &b| free[a].total_cmp(&free[b])).expect("a lane");
            let begin = free[lane];
            let end = begin + each * (0.3 + 1.4 * numbers.next());
            free[lane] = end;
            let due = start + (begin - start) * 0.8;
            job(
                format!("{}-{:02}", CLASSES[i % 19].0, i / 19),
                i,
                i as u32 % nodes,
                (due, begin, end),
                numbers,
            )
        })
        .collect();
    Stage {
        name: name.to_owned(),
        nodes,
        sessions: None,
        concurrent: 20,
        start_seconds: start,
        end_seconds: free.into_iter().fold(start, f64::max),
        jobs,
    }
}

/// What a machine would have done in these stages, `interval` by `interval`.
pub fn samples(stages: &[Stage], interval: f64, speed: f64, numbers: &mut Sequence) -> Vec<Sample> {
    let end = stages.iter().map(|stage| stage.end_seconds).fold(0.0, f64::max);
    let mut level = 0.8;
    let mut dirty = 0.0_f64;
    let count = (end / interval).ceil() as usize;
    let jobs: Vec<&JobRecord> = stages.iter().flat_map(|stage| &stage.jobs).collect();
    let mut sampled = Vec::with_capacity(count);
    for i in 1..=count {
        let at = (i as f64 * interval).min(end);
        let running =
            |job: &&&JobRecord| job.start_seconds <= Some(at) && job.end_seconds > Some(at);
        let running = jobs.iter().filter(running).count() as u32;
        let waiting =
            jobs.iter().filter(|job| job.due_seconds <= at && job.start_seconds > Some(at)).count();
        let done = jobs.iter().filter(|job| job.end_seconds <= Some(at)).count();
        level = (level + 0.25 * (numbers.next() - 0.5)).clamp(0.25, 1.1);
        let full = level * f64::from(running).min(24.0) / 24.0 * speed * interval;
        let (read, written) = (full * 0.7, full * (0.2 + 0.2 * numbers.next()));
        let flushed = if i % 7 < 4 { written * 1.6 } else { written * 0.1 };
        dirty = (dirty + written - flushed).clamp(0.0, 5e9);
        let (device_reads, device_writes) =
            ((read * 0.55 / 262_144.0) as u64, (flushed / 524_288.0) as u64);
        let (user, system, wait) = (0.3 + 0.35 * level, 0.05 + 0.04 * level, 0.22 * (1.1 - level));
        sampled.push(Sample {
            at_seconds: at,
            seconds: interval,
            jobs_waiting: waiting as u32,
            jobs_running: running,
            jobs_done: done as u32,
            file_read_bytes: read as u64,
            file_written_bytes: written as u64,
            file_read_calls: (read / 262_144.0) as u64,
            file_write_calls: (written / 131_072.0) as u64,
            device_read_bytes: (read * 0.55) as u64,
            device_written_bytes: flushed as u64,
            device_reads,
            device_writes,
            device_read_seconds: device_reads as f64 * 0.0004 * (1.0 + numbers.next()),
            device_write_seconds: device_writes as f64 * 0.0021 * (1.0 + 3.0 * numbers.next()),
            device_busy: (0.4 + 0.5 * level).min(1.0),
            cpu_user: user,
            cpu_system: system,
            cpu_io_wait: wait,
            cpu_idle: 1.0 - user - system - wait,
            cpu_steal: 0.0,
            pressure_io_some: Some((0.5 * wait * 4.0).min(1.0)),
            pressure_io_full: Some(wait),
            dirty_bytes: dirty as u64,
            writeback_bytes: (flushed / 8.0) as u64,
            cached_bytes: ((at / end * 1.3).min(1.0) * 48.0 * GIB as f64) as u64,
            available_bytes: 58 * GIB,
            network_received_bytes: None,
            network_sent_bytes: None,
        });
    }
    sampled
}

pub fn run(
    subject: usize,
    round: u32,
    stages: Vec<Stage>,
    interval: f64,
    speed: f64,
    numbers: &mut Sequence,
) -> Run {
    let samples = samples(&stages, interval, speed, numbers);
    Run {
        subject,
        round,
        cache: Cache {
            dropped: true,
            input_bytes: 42_949_672_960,
            working_set_bytes: 128 * GIB,
            memory_bytes: 64 * GIB,
        },
        started_unix_seconds: None,
        prepare_seconds: 93.0,
        seconds: stages.iter().map(|stage| stage.end_seconds).fold(0.0, f64::max),
        stages,
        samples,
        interval_seconds: interval,
        device_scope: DeviceScope::Devices(vec!["nvme0n1".to_owned()]),
        hosts: Vec::new(),
    }
}

/// 77 jobs on one node, some 25 minutes.
pub fn mixed() -> Record {
    let mut numbers = Sequence(1);
    let stages = vec![stage("all", 1, 77, 0.0, 1500.0, &mut numbers)];
    let mut record = empty();
    record.runs = vec![run(0, 0, stages, 1.0, 2.4e9, &mut numbers)];
    record.runs[0].stages[0].jobs[5].exit = Exit::Signal { signal: 9 };
    record
}

/// 1, 2, 3 and 4 nodes one after another.
pub fn scaling() -> Record {
    let mut numbers = Sequence(2);
    let mut stages = Vec::new();
    let mut start = 0.0;
    for nodes in 1..=4 {
        let name = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
        let next = stage(&name, nodes, 36 * nodes as usize, start, 240.0, &mut numbers);
        start = next.end_seconds + 3.0;
        stages.push(next);
    }
    let mut record = empty();
    record.workload.name = "scaling".to_owned();
    record.workload.title = "Scaling from one to four nodes".to_owned();
    record.runs = vec![run(0, 0, stages, 1.0, 1.6e9, &mut numbers)];
    record
}

fn call_times(middle_ns: f64, numbers: &mut Sequence) -> Vec<Bucket> {
    (0..60)
        .map(|i| {
            let upto = middle_ns * 2f64.powf(f64::from(i - 24) / 4.0);
            let far = f64::from(i - 24) / 7.0;
            Bucket {
                upto: upto as u64,
                count: (40_000.0 * (-far * far).exp() * (0.7 + 0.6 * numbers.next())) as u64,
            }
        })
        .filter(|bucket| bucket.count > 0)
        .collect()
}

fn step(kind: &str, seconds: f64, latencies: &[(&str, f64)], numbers: &mut Sequence) -> StepRecord {
    let times =
        latencies.iter().map(|(call, middle)| ((*call).to_owned(), call_times(*middle, numbers)));
    StepRecord {
        kind: kind.to_owned(),
        start_seconds: 0.0,
        resources: ResourceRecord {
            step: kind.to_owned(),
            real_seconds: seconds,
            user_seconds: seconds / 20.0,
            system_seconds: seconds / 4.0,
            peak_memory_bytes: Some(9_000_000),
            peak_memory_scope: PeakScope::Step,
            minor_faults: 900,
            major_faults: 0,
            voluntary_switches: 88,
            involuntary_switches: 2,
            read_bytes: Some(1 << 33),
            written_bytes: Some(1 << 32),
            rows: 8192,
        },
        outcome: Outcome { latencies: times.collect(), ..Outcome::rows(8192) }
            .with("read_mb_per_second", 512.5),
    }
}

/// Many short stages of single streams that time their calls.
pub fn probe() -> Record {
    let mut numbers = Sequence(3);
    let sizes = ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB"];
    let mut names: Vec<String> = ["read", "half and half", "write"].map(str::to_owned).to_vec();
    names.extend(sizes.iter().map(|size| format!("random {size}")));
    names.extend(sizes.iter().map(|size| format!("blocks of {size}")));
    names.push("metadata".to_owned());
    let mut stages = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let start = i as f64 * 10.2;
        let mut next = stage(name, 1, 8, start, 10.0, &mut numbers);
        for job in &mut next.jobs {
            let calls: &[(&str, f64)] = match i {
                17 => &[("create", 30e3), ("stat", 2e3), ("rename", 25e3), ("unlink", 28e3)],
                0..3 => &[("read", 300e3), ("write", 900e3)],
                _ => &[("read", 90e3)],
            };
            job.steps = vec![step("probe", 10.0, calls, &mut numbers)];
        }
        next.end_seconds = start + 10.0;
        stages.push(next);
    }
    let mut record = empty();
    record.workload.name = "probe".to_owned();
    record.workload.title = "Ceiling of the storage".to_owned();
    record.runs = vec![run(0, 0, stages, 1.0, 3e9, &mut numbers)];
    record
}

/// Stages of streams that go through their files in order: name, streams, KiB per call, MB/s of each reading and writing.
pub fn sweep(stages: &[(&str, usize, f64, f64, f64)]) -> Record {
    let mut numbers = Sequence(5);
    let mut made: Vec<Stage> = Vec::new();
    for (name, streams, block_kib, read, written) in stages {
        let start = made.len() as f64 * 10.2;
        let mut next = stage(name, 1, *streams, start, 10.0, &mut numbers);
        for job in &mut next.jobs {
            (job.start_seconds, job.end_seconds) = (Some(start), Some(start + 10.0));
            let mut record = step("stream", 10.0, &[], &mut numbers);
            record.outcome = Outcome::rows(1)
                .with("read_mb_per_second", *read)
                .with("write_mb_per_second", *written)
                .with("sequential", 1.0)
                .with("block_kib", *block_kib);
            job.steps = vec![record];
        }
        next.end_seconds = start + 10.0;
        made.push(next);
    }
    let mut record = empty();
    record.workload.name = "probe".to_owned();
    record.runs = vec![run(0, 0, made, 1.0, 3e9, &mut numbers)];
    record
}

/// Two storages, three rounds each, interleaved.
pub fn versus() -> Record {
    let mut numbers = Sequence(4);
    let mut record = empty();
    record.subjects = vec![subject("forebay", "/mnt/forebay"), subject("nfs", "/mnt/nfs")];
    record.subjects[1].data.file_system = "nfs4".to_owned();
    for round in 0..3 {
        for (subject, slowness) in [(0, 1.0), (1, 1.7)] {
            let stages = vec![stage("all", 1, 77, 0.0, 300.0 * slowness, &mut numbers)];
            record.runs.push(run(subject, round, stages, 1.0, 2.4e9 / slowness, &mut numbers));
        }
    }
    record
}

/// The mixed study, ended by a signal in its middle.
pub fn partial() -> Record {
    let mut record = mixed();
    record.state = State::Partial { reason: "ended by SIGINT after 12 minutes".to_owned() };
    let run = &mut record.runs[0];
    run.seconds = 720.0;
    run.samples.retain(|sample| sample.at_seconds <= 720.0);
    run.stages[0].end_seconds = 720.0;
    for job in &mut run.stages[0].jobs {
        if job.start_seconds > Some(720.0) {
            (job.start_seconds, job.end_seconds, job.exit) = (None, None, Exit::NotStarted);
            job.usage = Usage::default();
        } else if job.end_seconds > Some(720.0) {
            job.end_seconds = Some(720.0);
            job.exit = Exit::Signal { signal: 15 };
        }
    }
    record
}
