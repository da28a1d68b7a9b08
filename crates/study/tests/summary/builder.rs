//! Small records, written by hand.

use forebay_study::record::{
    Cache, DeviceScope, Exit, JobKind, JobRecord, Machine, Record, Run, Sample, Stage, State,
    Storage, Subject, Usage, Workload,
};
use forebay_workload::program::{Buffers, Outcome, StepRecord};
use forebay_workload::resource::{PeakScope, ResourceRecord};

pub const MB: u64 = 1_000_000;
pub const GB: u64 = 1_000_000_000;

/// A complete study on four cores; as many subjects as the runs have, called A, B, ...
pub fn record(runs: Vec<Run>) -> Record {
    let subjects = runs.iter().map(|run| run.subject + 1).max().unwrap_or(1);
    Record {
        schema: Record::SCHEMA,
        workload: Workload {
            name: "mixed".to_owned(),
            title: "Mixed analytics".to_owned(),
            study: "[3]".to_owned(),
            notes: Vec::new(),
            scale: 0.01,
            seed: 1,
            buffers: Buffers::default(),
            parameters: [("concurrent".to_owned(), "2".to_owned())].into(),
        },
        command: vec!["forebay".to_owned(), "bench".to_owned()],
        version: "0.1.0".to_owned(),
        started: "2026-01-01T00:00:00Z".to_owned(),
        state: State::Complete,
        hosts: Vec::new(),
        machine: Machine {
            host: "host".to_owned(),
            cpus: 8,
            cores: 4,
            memory_bytes: 8 * GB,
            io_wait_source: "delay accounting".to_owned(),
            ..Machine::default()
        },
        subjects: (b'A'..)
            .take(subjects)
            .map(|label| subject(&char::from(label).to_string()))
            .collect(),
        runs,
    }
}

fn subject(label: &str) -> Subject {
    let storage = Storage {
        path: format!("/{label}").into(),
        file_system: "xfs".to_owned(),
        mountpoint: format!("/{label}").into(),
        ..Storage::default()
    };
    Subject { label: label.to_owned(), data: storage.clone(), work: storage.clone(), util: storage }
}

/// A run of these stages, whose working set is larger than memory.
pub fn run(stages: Vec<Stage>, samples: Vec<Sample>) -> Run {
    Run {
        subject: 0,
        round: 0,
        cache: Cache {
            dropped: true,
            input_bytes: 10 * GB,
            working_set_bytes: 20 * GB,
            memory_bytes: 8 * GB,
        },
        started_unix_seconds: None,
        prepare_seconds: 1.0,
        seconds: stages.iter().map(|stage| stage.end_seconds).fold(0.0, f64::max),
        stages,
        samples,
        interval_seconds: 1.0,
        device_scope: DeviceScope::Devices(vec!["sda".to_owned()]),
        hosts: Vec::new(),
    }
}

/// A stage from the first start to the last end of its jobs.
pub fn stage(name: &str, jobs: Vec<JobRecord>) -> Stage {
    let starts = jobs.iter().filter_map(|job| job.start_seconds);
    let ends = jobs.iter().filter_map(|job| job.end_seconds);
    let start_seconds = starts.fold(f64::INFINITY, f64::min);
    Stage {
        name: name.to_owned(),
        nodes: 1,
        sessions: None,
        concurrent: 2,
        start_seconds: if start_seconds.is_finite() { start_seconds } else { 0.0 },
        end_seconds: ends.fold(0.0, f64::max),
        jobs,
    }
}

/// A computation that used half a processor, a tenth of it in the kernel, and counted no bytes.
pub fn job(name: &str, start: f64, end: f64) -> JobRecord {
    JobRecord {
        name: name.to_owned(),
        class: "computation".to_owned(),
        kind: JobKind::Computation,
        node: 0,
        host: None,
        session: None,
        due_seconds: start,
        start_seconds: Some(start),
        end_seconds: Some(end),
        exit: Exit::Success,
        usage: Usage {
            real_seconds: end - start,
            user_seconds: (end - start) * 0.45,
            system_seconds: (end - start) * 0.05,
            peak_memory_bytes: Some(100 * MB),
            ..Usage::default()
        },
        steps: Vec::new(),
    }
}

/// A job that was never started.
pub fn job_not_started(name: &str) -> JobRecord {
    JobRecord {
        start_seconds: None,
        end_seconds: None,
        exit: Exit::NotStarted,
        usage: Usage::default(),
        ..job(name, 0.0, 0.0)
    }
}

/// A step of this name that began with its job.
pub fn step(name: &str, seconds: f64, outcome: Outcome) -> StepRecord {
    StepRecord {
        kind: name.to_owned(),
        start_seconds: 0.0,
        resources: ResourceRecord {
            step: name.to_owned(),
            real_seconds: seconds,
            user_seconds: 0.0,
            system_seconds: 0.0,
            peak_memory_bytes: None,
            peak_memory_scope: PeakScope::Process,
            minor_faults: 0,
            major_faults: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            read_bytes: None,
            written_bytes: None,
            rows: outcome.rows,
        },
        outcome,
    }
}

/// Seconds from 0 on, each with so many MB read and written at the file level.
pub fn samples(megabytes: &[(u64, u64)]) -> Vec<Sample> {
    let sample = |(second, &(read, written)): (usize, &(u64, u64))| Sample {
        at_seconds: second as f64 + 1.0,
        seconds: 1.0,
        file_read_bytes: read * MB,
        file_written_bytes: written * MB,
        cpu_user: 0.5,
        cpu_system: 0.1,
        cpu_io_wait: 0.1,
        cpu_idle: 0.3,
        ..Sample::default()
    };
    megabytes.iter().enumerate().map(sample).collect()
}
