use forebay_study::record::{Exit, Sample};

use super::*;

/// A job of a recorded study with other numbers.
struct Used {
    class: &'static str,
    node: u32,
    user: f64,
    system: f64,
    real: f64,
    bytes: u64,
}

fn used(class: &'static str, user: f64, real: f64, bytes: u64) -> Used {
    Used { class, node: 0, user, system: 0.0, real, bytes }
}

/// A record whose stages have these jobs and lengths, one after another.
fn record(cpus: u32, stages: &[(&str, u32, u32, f64, Vec<Used>)]) -> Record {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut record = Record::read(&folder.join("../study/tests/data/mixed")).unwrap();
    record.machine.cpus = cpus;
    let sample = record.runs[0].stages[0].clone();
    let mut now = 0.0;
    record.runs.truncate(1);
    let run = &mut record.runs[0];
    run.samples.clear();
    run.stages.clear();
    for (name, nodes, concurrent, seconds, jobs) in stages {
        let mut stage = Stage {
            name: (*name).to_owned(),
            nodes: *nodes,
            concurrent: *concurrent,
            start_seconds: now,
            end_seconds: now + seconds,
            ..sample.clone()
        };
        stage.jobs.truncate(0);
        for (number, used) in jobs.iter().enumerate() {
            let mut job = sample.jobs[0].clone();
            job.name = format!("{}-{number}", used.class);
            job.class = used.class.to_owned();
            job.node = used.node;
            (job.session, job.due_seconds, job.exit) = (None, now, Exit::Success);
            (job.start_seconds, job.end_seconds) = (Some(now), Some(now + seconds));
            job.usage.real_seconds = used.real;
            (job.usage.user_seconds, job.usage.system_seconds) = (used.user, used.system);
            (job.usage.processor_wait_seconds, job.usage.io_wait_seconds) = (None, None);
            (job.usage.device_read_bytes, job.usage.device_written_bytes) =
                (Some(used.bytes), Some(0));
            stage.jobs.push(job);
        }
        run.stages.push(stage);
        now += seconds;
    }
    record
}

fn many(number: u32, nodes: u32, one: impl Fn() -> Used) -> Vec<Used> {
    (0..number).map(|at| Used { node: at % nodes, ..one() }).collect()
}

/// A machine of two processors that are worth 1.6, with a storage of 100 MB/s.
fn machine() -> Vec<(&'static str, u32, u32, f64, Vec<Used>)> {
    vec![
        (ONE_PROCESSOR, 1, 1, 4.0, vec![used("alone", 4.0, 4.0, 0)]),
        (ALL_PROCESSORS, 1, 2, 5.0, many(2, 1, || used("together", 5.0, 5.0, 0))),
        (STORAGE, 1, 4, 8.0, many(4, 1, || used("rate", 0.0, 8.0, 200_000_000))),
    ]
}

#[test]
fn logical_nodes_share_the_processors_and_the_storage_of_their_machine() {
    let mut stages = machine();
    // Eight seconds of a processor; and 60 MB in 1 s, of which 0.4 s are latency.
    let jobs = |number, nodes| {
        let mut jobs = many(number, nodes, || used("model", 8.0, 8.0, 0));
        jobs.extend(many(number, nodes, || used("stream", 0.0, 1.0, 60_000_000)));
        jobs
    };
    stages.push((BASE, 1, 1, 9.0, jobs(1, 1)));
    // Two models need 16 processor seconds, of which the machine gives 1.6 a second: 10 s; two streams 120 MB: 1.2 s.
    stages.push(("2 nodes", 2, 1, 11.2, jobs(2, 2)));
    // Four models: 20 s; four streams 240 MB: 2.4 s.
    stages.push(("4 nodes", 4, 1, 20.0, jobs(4, 4)));
    let accuracy = Accuracy::of(&record(2, &stages)).unwrap();
    assert_eq!(accuracy.machine.slowdown, 1.25);
    assert_eq!(accuracy.machine.effective_processors, 1.6);
    assert_eq!(accuracy.machine.storage_bytes_per_second, Some(1e8));
    let predicted: Vec<f64> =
        accuracy.lines.iter().map(|line| line.checked.predicted_seconds).collect();
    for (found, expected) in predicted.iter().zip([9.0, 11.2, 22.4]) {
        assert!((found - expected).abs() < 1e-3, "{predicted:?}");
    }
    let errors: Vec<f64> = accuracy.lines.iter().map(|line| line.error).collect();
    assert!(errors[0].abs() < 1e-3 && errors[1].abs() < 1e-3, "{errors:?}");
    assert!((errors[2] - 0.12).abs() < 1e-3, "{errors:?}");
    assert!((accuracy.worst_error - 0.12).abs() < 1e-3);
}

#[test]
fn jobs_at_once_on_one_node_are_predicted_from_one_at_a_time() {
    let mut stages = machine();
    let jobs = || many(4, 1, || used("model", 2.0, 3.0, 0));
    stages.push((BASE, 1, 1, 12.0, jobs()));
    stages.push(("2 at once", 1, 2, 6.0, jobs()));
    let accuracy = Accuracy::of(&record(4, &stages)).unwrap();
    let predicted: Vec<f64> =
        accuracy.lines.iter().map(|line| line.checked.predicted_seconds).collect();
    assert!((predicted[0] - 12.0).abs() < 1e-3 && (predicted[1] - 6.0).abs() < 1e-3);
    assert!(accuracy.worst_error < 1e-3);
}

#[test]
fn work_of_daemons_for_the_jobs_needs_processors_too() {
    let mut stages = machine();
    let job = || Used { system: 1.0, ..used("stream", 1.0, 4.0, 0) };
    stages.push((BASE, 1, 1, 4.0, vec![job()]));
    stages.push(("4 nodes", 4, 1, 5.0, many(4, 4, job)));
    let mut record = record(2, &stages);
    let sample = |at: f64, used: f64| Sample {
        at_seconds: at,
        seconds: 1.0,
        cpu_user: used / 2.0,
        ..Sample::default()
    };
    let run = &mut record.runs[0];
    // One processor at first; three quarters in the stage, of which the job itself has half a one.
    run.samples.extend((1..=4).map(|at| sample(f64::from(at), 1.0)));
    run.samples.extend((18..=21).map(|at| sample(f64::from(at), 0.75)));
    let accuracy = Accuracy::of(&record).unwrap();
    assert_eq!(accuracy.machine.other_programs, Some(0.0));
    assert_eq!(accuracy.machine.disturbance(), None);
    assert!((accuracy.behind_per_system_second - 1.0).abs() < 1e-9);
    // Alone it takes as long as before; four need 12 processor seconds, of which 1.6 are had in a second.
    let predicted: Vec<f64> =
        accuracy.lines.iter().map(|line| line.checked.predicted_seconds).collect();
    assert!((predicted[0] - 4.0).abs() < 1e-3, "{predicted:?}");
    assert!((predicted[1] - 7.5).abs() < 1e-3, "{predicted:?}");
    // Where other programs use much, nobody can tell whose work it is.
    record.runs[0].samples.iter_mut().for_each(|sample| sample.cpu_user += 0.3);
    let accuracy = Accuracy::of(&record).unwrap();
    assert!(accuracy.machine.other_programs.is_some_and(|used| used > 0.5));
    assert!(accuracy.machine.disturbance().is_some_and(|why| why.contains("0.6 processors")));
    assert_eq!(accuracy.behind_per_system_second, 0.0);
}

#[test]
fn a_result_without_the_stages_or_with_failed_jobs_is_refused() {
    let mut stages = machine();
    let refused = |record: &Record| format!("{:#}", Accuracy::of(record).unwrap_err());
    assert!(refused(&record(2, &stages)).contains("no stage \"1 node\""));
    stages.push((BASE, 1, 1, 8.0, vec![used("model", 8.0, 8.0, 0)]));
    let mut failed = record(2, &stages);
    failed.runs[0].stages[3].jobs[0].exit = Exit::Signal { signal: 9 };
    let message = refused(&failed);
    assert!(message.contains("model-0") && message.contains("did not succeed"), "{message}");
}

#[test]
fn a_job_that_waits_although_it_runs_alone_shows_that_others_use_the_machine() {
    let mut stages = machine();
    stages.push((BASE, 1, 1, 8.0, vec![used("model", 8.0, 8.0, 0)]));
    let mut busy = record(2, &stages);
    busy.runs[0].stages[0].jobs[0].usage.processor_wait_seconds = Some(1.0);
    // What a job waited for when it ran alone is there in all stages: the stage is predicted as it was.
    busy.runs[0].stages[3].jobs[0].usage.user_seconds = 6.0;
    busy.runs[0].stages[3].jobs[0].usage.processor_wait_seconds = Some(2.0);
    let accuracy = Accuracy::of(&busy).unwrap();
    assert!((accuracy.lines[0].checked.predicted_seconds - 8.0).abs() < 1e-3);
    let machine = accuracy.machine;
    assert_eq!(machine.waited_alone, Some(0.25));
    assert!(machine.disturbance().is_some_and(|why| why.contains("25 %")));
}
