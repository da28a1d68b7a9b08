//! Sums over jobs.

use forebay_study::record::{Exit, JobKind, JobRecord, Usage};
use forebay_study::summary::{RunSummary, Summary};

use crate::builder::{MB, job, job_not_started, record, run, stage};

fn summed(jobs: Vec<JobRecord>) -> RunSummary {
    Summary::of(&record(vec![run(vec![stage("all", jobs)], Vec::new())])).runs.remove(0)
}

fn with(job: JobRecord, usage: &Usage) -> JobRecord {
    JobRecord { usage: Usage { real_seconds: job.usage.real_seconds, ..*usage }, ..job }
}

fn seconds(user_seconds: f64, system_seconds: f64) -> Usage {
    Usage { user_seconds, system_seconds, ..Usage::default() }
}

#[test]
fn the_mean_of_ratios_and_the_ratio_of_sums_differ() {
    let jobs = vec![
        with(job("a", 0.0, 10.0), &seconds(8.0, 1.0)),
        with(job("b", 0.0, 5.0), &seconds(1.0, 0.5)),
    ];
    let totals = summed(jobs).jobs;
    assert_eq!((totals.real_seconds, totals.user_seconds, totals.system_seconds), (15.0, 9.0, 1.5));
    assert_eq!(totals.cpu_per_real_of_sums, Some(0.7));
    assert_eq!(totals.cpu_per_real_mean_of_jobs, Some(0.6));
    let real = totals.real.unwrap();
    assert_eq!((real.min, real.median, real.max), (5.0, 7.5, 10.0));
}

#[test]
fn jobs_that_never_started_count_as_jobs_only() {
    let failed = JobRecord {
        exit: Exit::Failure { code: 3, message: "no space".to_owned() },
        ..job("b", 0.0, 4.0)
    };
    let killed = JobRecord { exit: Exit::Signal { signal: 9 }, ..job("c", 0.0, 2.0) };
    let totals = summed(vec![job("a", 0.0, 6.0), failed, killed, job_not_started("d")]).jobs;
    assert_eq!((totals.jobs, totals.failed, totals.not_started), (4, 2, 1));
    assert_eq!((totals.succeeded(), totals.ran()), (1, 3));
    assert_eq!((totals.real_seconds, totals.real.unwrap().count), (12.0, 3));
}

#[test]
fn unknown_counters_are_left_out_and_counted() {
    let known = Usage {
        read_bytes: Some(5 * MB),
        written_bytes: Some(MB),
        io_wait_seconds: Some(1.0),
        ..seconds(1.0, 0.0)
    };
    let jobs = vec![with(job("a", 0.0, 4.0), &known), with(job("b", 0.0, 8.0), &seconds(1.0, 0.0))];
    let totals = summed(jobs).jobs;
    assert_eq!((totals.read_bytes, totals.written_bytes), (Some(5 * MB), Some(MB)));
    assert_eq!(totals.bytes_unknown, 1);
    // Of the four seconds of the job that knows, not of all twelve.
    assert_eq!(totals.io_wait_share, Some(0.25));
    let none = summed(vec![job("a", 0.0, 4.0)]).jobs;
    assert_eq!((none.read_bytes, none.written_bytes, none.io_wait_share), (None, None, None));
}

#[test]
fn jobs_are_grouped_by_class_kind_and_node() {
    let sort = |name, node, seconds| JobRecord {
        class: "sort".to_owned(),
        kind: JobKind::Io,
        node,
        ..job(name, 0.0, seconds)
    };
    let run = summed(vec![sort("s1", 0, 10.0), sort("s2", 1, 6.0), job_on("c", 1, 8.0)]);
    let classes: Vec<(&str, usize, f64)> = run
        .classes
        .iter()
        .map(|group| (group.name.as_str(), group.totals.jobs, group.totals.real_seconds))
        .collect();
    assert_eq!(classes, [("computation", 1, 8.0), ("sort", 2, 16.0)]);
    let kinds: Vec<&str> = run.kinds.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(kinds, ["I/O", "computation"]);
    let nodes: Vec<f64> = run.nodes.iter().map(|group| group.totals.real_seconds).collect();
    assert_eq!(nodes, [10.0, 14.0]);
    let uniformity = run.uniformity.unwrap();
    assert_eq!(uniformity.max_per_min, Some(1.4));
    assert_eq!(uniformity.real_seconds.median, 12.0);
}

fn job_on(name: &str, node: u32, seconds: f64) -> JobRecord {
    JobRecord { node, ..job(name, 0.0, seconds) }
}

#[test]
fn one_node_has_no_uniformity() {
    assert_eq!(summed(vec![job_on("a", 0, 1.0), job_on("b", 0, 2.0)]).uniformity, None);
}
