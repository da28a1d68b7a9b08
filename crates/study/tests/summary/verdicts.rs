//! What verdicts say, and what they do not.

use forebay_study::record::{Exit, JobKind, JobRecord, Record, State};
use forebay_study::summary::{Flow, Level, Summary, Verdict};

use crate::builder::{GB, job, job_not_started, record, run, samples, stage};

/// Eight jobs at once for ten seconds, with this CPU/real, at so many MB/s.
fn study(cpu_per_real: f64, megabytes: u64) -> Record {
    let busy = |i: u32| {
        let mut job = job(&format!("j{i}"), 0.0, 10.0);
        (job.usage.user_seconds, job.usage.system_seconds) = (10.0 * cpu_per_real, 0.0);
        job
    };
    let jobs = (0..8).map(busy).collect();
    record(vec![run(vec![stage("all", jobs)], samples(&[(megabytes, 0); 10]))])
}

fn about(record: &Record, topic: &str) -> Verdict {
    let verdicts = Summary::of(record).verdicts;
    let found = verdicts.iter().find(|verdict| verdict.topic == topic);
    found.unwrap_or_else(|| panic!("nothing about {topic}: {verdicts:?}")).clone()
}

/// Of all processors' time, that of the jobs included.
fn set_processors_busy(record: &mut Record, share: f64) {
    for sample in &mut record.runs[0].samples {
        (sample.cpu_user, sample.cpu_system) = (share, 0.0);
    }
}

/// Part of its real time in which each job waited for a processor.
fn set_processor_wait(record: &mut Record, share: f64) {
    for job in &mut record.runs[0].stages[0].jobs {
        job.usage.processor_wait_seconds = Some(job.usage.real_seconds * share);
    }
}

#[test]
fn a_study_that_ended_well_is_good_news() {
    let mut record = study(0.95, 800);
    set_processors_busy(&mut record, 0.95);
    let levels: Vec<(Level, &str)> = Summary::of(&record)
        .verdicts
        .iter()
        .map(|verdict| (verdict.level, verdict.topic))
        .collect();
    let good = ["Run", "Jobs", "Cache", "Cores", "Throughput"];
    assert_eq!(levels, good.map(|topic| (Level::Good, topic)));
}

#[test]
fn the_rule_of_100_and_the_guidance_of_150_are_told_apart() {
    // Four physical cores.
    for (megabytes, level, text) in [
        (600, Level::Good, "the newer guidance of 150."),
        (599, Level::Good, "below the newer guidance"),
        (400, Level::Good, "above the 100 MB/s rule"),
        (399, Level::Bad, "below the 100 MB/s rule."),
    ] {
        let verdict = about(&study(0.5, megabytes), "Throughput");
        assert_eq!(verdict.level, level, "{megabytes}: {}", verdict.text);
        assert!(verdict.text.contains(text), "{}", verdict.text);
    }
}

#[test]
fn low_throughput_of_jobs_that_asked_for_no_more_is_not_blamed_on_the_storage() {
    let mut waiting = study(0.5, 100);
    set_processor_wait(&mut waiting, 0.45);
    let verdict = about(&waiting, "Throughput");
    assert_eq!(verdict.level, Level::Warning);
    assert!(verdict.text.contains("could hardly request more"), "{}", verdict.text);
    let verdict = about(&study(0.95, 100), "Throughput");
    assert_eq!(verdict.level, Level::Warning);
    assert!(verdict.text.contains("requested no more"), "{}", verdict.text);
}

#[test]
fn cores_are_judged_by_the_time_of_the_jobs() {
    for (ran, waited, level, text) in [
        (0.95, 0.0, Level::Good, "were fed"),
        (0.4, 0.55, Level::Good, "were fed"),
        (0.7, 0.1, Level::Warning, "not always fed"),
        (0.3, 0.1, Level::Bad, "were starved"),
    ] {
        let mut record = study(ran, 800);
        set_processors_busy(&mut record, ran);
        set_processor_wait(&mut record, waited);
        let verdict = about(&record, "Cores");
        assert_eq!(verdict.level, level, "{}", verdict.text);
        assert!(verdict.text.contains(text), "{}", verdict.text);
    }
}

#[test]
fn foreign_busy_loops_do_not_feed_the_cores_of_a_study() {
    // The jobs used a tenth of the processors, and the machine was busy all the time.
    let mut record = study(0.08, 800);
    set_processors_busy(&mut record, 1.0);
    set_processor_wait(&mut record, 0.05);
    let verdict = about(&record, "Cores");
    assert_eq!(verdict.level, Level::Bad, "{}", verdict.text);
    for text in ["were starved", "Foreign load: programs other than the jobs used 92 %"] {
        assert!(verdict.text.contains(text), "{}", verdict.text);
    }
    // Also where nothing is said of cores.
    let mut probe = record.clone();
    for job in &mut probe.runs[0].stages[0].jobs {
        job.kind = JobKind::Io;
    }
    assert_eq!(about(&probe, "Other load").level, Level::Warning);
    // Where the jobs only waited for the processors that others had, it is no green either.
    set_processor_wait(&mut record, 0.9);
    let verdict = about(&record, "Cores");
    assert_eq!(verdict.level, Level::Warning, "{}", verdict.text);
    assert!(verdict.text.contains("Foreign load"), "{}", verdict.text);
}

#[test]
fn cores_are_not_called_fed_or_starved_where_waiting_for_them_is_not_known() {
    let mut record = study(0.4, 800);
    set_processors_busy(&mut record, 0.4);
    let verdict = about(&record, "Cores");
    assert_eq!(verdict.level, Level::Warning);
    assert!(verdict.text.contains("is not known"), "{}", verdict.text);
}

#[test]
fn more_jobs_than_processors_explain_waiting() {
    let mut record = study(0.4, 800);
    set_processors_busy(&mut record, 0.4);
    set_processor_wait(&mut record, 0.55);
    record.machine.cpus = 2;
    let verdict = about(&record, "Cores");
    assert!(verdict.text.contains("8 jobs at once shared 2 processors"), "{}", verdict.text);
}

#[test]
fn waiting_is_blamed_on_io_only_if_it_was_measured() {
    let mut record = study(0.4, 800);
    set_processors_busy(&mut record, 0.4);
    set_processor_wait(&mut record, 0.0);
    let verdict = about(&record, "Cores");
    for text in ["The remaining 60 %", "not on a processor", "is not known (delay accounting)"] {
        assert!(verdict.text.contains(text), "{}", verdict.text);
    }
    for (wait, text) in [(5.0, "most of the time"), (1.0, "something else")] {
        for job in &mut record.runs[0].stages[0].jobs {
            job.usage.io_wait_seconds = Some(wait);
        }
        let verdict = about(&record, "Cores");
        assert!(verdict.text.contains(text), "{}", verdict.text);
    }
}

#[test]
fn an_interrupted_or_failed_study_gets_no_green_verdict() {
    let mut record = study(0.95, 800);
    set_processors_busy(&mut record, 0.5);
    record.state = State::Partial { reason: "interrupted".to_owned() };
    let verdicts = Summary::of(&record).verdicts;
    assert!(verdicts.iter().all(|verdict| verdict.level != Level::Good), "{verdicts:?}");
    let throughput = about(&record, "Throughput");
    assert!(throughput.text.contains("this covers only the part that ran"), "{}", throughput.text);
}

#[test]
fn a_run_too_short_to_judge_is_not_judged() {
    let mut record = study(0.95, 800);
    set_processors_busy(&mut record, 0.5);
    record.runs[0].samples.truncate(Flow::SAMPLES_MIN - 1);
    for topic in ["Cores", "Throughput"] {
        let verdict = about(&record, topic);
        assert_eq!(verdict.level, Level::Warning, "{}", verdict.text);
        assert!(verdict.text.contains("No verdict: 9 samples"), "{}", verdict.text);
    }
    // Many short samples, as of many short stages, are no more than few long ones.
    record.runs[0].samples = samples(&[(800, 0); 10]);
    for sample in &mut record.runs[0].samples {
        (sample.at_seconds, sample.seconds) = (sample.at_seconds / 10.0, 0.1);
    }
    assert!(about(&record, "Throughput").text.contains("No verdict: 0 samples"));
}

#[test]
fn stages_that_do_different_things_have_a_rate_each_and_none_together() {
    let mut record = study(0.1, 800);
    let mut other = record.runs[0].stages[0].clone();
    other.name = "metadata".to_owned();
    for job in &mut other.jobs {
        job.class = "metadata".to_owned();
    }
    record.runs[0].stages.push(other);
    let run = &Summary::of(&record).runs[0];
    assert_eq!((run.file.sustained_mb_per_second, run.mb_per_second_per_core), (None, None));
    assert_eq!(run.stages[0].file.sustained_mb_per_second, Some(800.0));
    let verdict = about(&record, "Throughput");
    assert!(verdict.text.contains("each at its own rate: all 800 MB/s"), "{}", verdict.text);
}

#[test]
fn probes_are_not_judged_by_cpu() {
    let mut record = study(0.1, 800);
    for job in &mut record.runs[0].stages[0].jobs {
        job.kind = JobKind::Io;
    }
    assert!(Summary::of(&record).verdicts.iter().all(|verdict| verdict.topic != "Cores"));
}

#[test]
fn data_that_fit_in_memory_spoil_good_news() {
    let mut record = study(0.95, 800);
    record.runs[0].cache.working_set_bytes = GB;
    record.runs[0].cache.dropped = false;
    let cache = about(&record, "Cache");
    assert_eq!(cache.level, Level::Warning);
    assert!(
        cache.text.contains("fits in") && cache.text.contains("was not emptied"),
        "{}",
        cache.text
    );
    let throughput = about(&record, "Throughput");
    assert_eq!(throughput.level, Level::Warning);
    assert!(throughput.text.contains("fits in memory"), "{}", throughput.text);
}

#[test]
fn failures_and_interruptions_are_bad_news() {
    let mut record = study(0.95, 800);
    record.state = State::Partial { reason: "interrupted by a signal".to_owned() };
    let jobs = &mut record.runs[0].stages[0].jobs;
    let message = "no space left".to_owned();
    jobs[0].exit = Exit::Failure { code: 3, message };
    jobs[1].exit = Exit::Signal { signal: 9 };
    jobs.push(job_not_started("late"));
    let run = about(&record, "Run");
    assert_eq!(run.level, Level::Bad);
    assert!(run.text.contains("partial (interrupted by a signal)"), "{}", run.text);
    let jobs = about(&record, "Jobs");
    assert_eq!(jobs.level, Level::Bad);
    assert_eq!(
        jobs.text,
        "2 of 9 jobs failed: j0 (exit code 3: no space left), j1 (signal 9). 1 of 9 jobs were never \
         started."
    );
}

#[test]
fn nothing_is_claimed_of_a_study_without_jobs() {
    let empty = record(vec![run(vec![stage("all", Vec::new())], samples(&[(5, 5)]))]);
    let topics: Vec<&str> =
        Summary::of(&empty).verdicts.iter().map(|verdict| verdict.topic).collect();
    assert_eq!(topics, ["Run", "Jobs", "Cache"]);
    assert_eq!(about(&empty, "Jobs").level, Level::Warning);
    let none = record(Vec::new());
    let summary = Summary::of(&none);
    assert!(summary.runs.is_empty() && summary.subjects.is_empty());
    assert!(!summary.sheets(&none).is_empty());
}

#[test]
fn a_run_whose_jobs_all_failed_still_has_a_summary() {
    let failed =
        JobRecord { exit: Exit::Failure { code: 1, message: String::new() }, ..job("a", 0.0, 0.0) };
    let record = record(vec![run(vec![stage("all", vec![failed])], Vec::new())]);
    let summary = Summary::of(&record);
    assert_eq!(summary.runs[0].jobs.failed, 1);
    assert_eq!(summary.runs[0].jobs.cpu_per_real_of_sums, None);
    assert_eq!(about(&record, "Jobs").level, Level::Bad);
    assert_eq!(about(&record, "Throughput").level, Level::Warning);
    assert!(summary.sheets(&record).iter().any(|sheet| sheet.name == "failures"));
}

#[test]
fn nodes_and_rounds_that_differ_are_told() {
    let mut record = study(0.95, 800);
    let jobs = &mut record.runs[0].stages[0].jobs;
    for job in &mut jobs[..2] {
        job.node = 1;
    }
    let mut second = record.runs[0].clone();
    second.round = 1;
    second.samples = samples(&[(400, 0); 10]);
    record.runs.push(second);
    let nodes = about(&record, "Nodes");
    assert_eq!(
        (nodes.level, nodes.text.contains("3 times")),
        (Level::Warning, true),
        "{}",
        nodes.text
    );
    let rounds = about(&record, "Rounds");
    assert_eq!(rounds.level, Level::Warning);
    assert!(rounds.text.contains("between 400 and 800 MB/s"), "{}", rounds.text);
}

#[test]
fn interrupted_rounds_are_left_out_of_medians() {
    let mut record = study(0.95, 800);
    let mut second = record.runs[0].clone();
    (second.round, second.seconds) = (1, 99.0);
    second.stages[0].jobs.push(job_not_started("late"));
    record.runs.push(second);
    let subject = &Summary::of(&record).subjects[0];
    assert_eq!((subject.rounds.as_slice(), subject.left_out.as_slice()), (&[0][..], &[1][..]));
    assert_eq!(subject.spread("wall_seconds").unwrap().max, 10.0);
    // But not if there is no other.
    record.runs.remove(0);
    assert_eq!(Summary::of(&record).subjects[0].rounds, [1]);
}
