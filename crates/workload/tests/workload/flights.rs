//! The flights program on a small made-up CSV of the same columns.

use crate::common;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_analytics::step::sort::SORT_MEMORY_MIN;
use forebay_analytics::{Cell, Error};
use forebay_base::ByteSize;
use forebay_base::time::SystemClock;
use forebay_workload::flights::{self, Config, Report};

const FLIGHTS: usize = 1000;

/// Flights whose arrival delay is exactly `2 * dep_delay - distance / 100 + hour / 2 + 3`, apart
/// from every 50th, which was cancelled.
fn write_csv(path: &Path) {
    let mut text = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,\
                    arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,\
                    time_hour\n"
        .to_owned();
    for i in 0..FLIGHTS {
        let (month, day, hour) = (i * 7 % 12 + 1, i * 11 % 28 + 1, i * 5 % 19 + 5);
        let carrier = ["UA", "AA", "9E"][i % 3];
        let origin = ["JFK", "EWR", "LGA"][i * 13 % 7 % 3];
        let distance = 100 * (i * 17 % 40 + 1);
        let (dep_time, dep_delay, arr_delay, air_time, tailnum) = if i % 50 == 0 {
            let na = || "NA".to_owned();
            (na(), na(), na(), na(), na())
        } else {
            let delay = (i * 31 % 101) as f64 - 20.0;
            let arrival = 2.0 * delay - distance as f64 / 100.0 + hour as f64 / 2.0 + 3.0;
            let air_time = (distance / 8).to_string();
            (format!("{hour}05"), delay.to_string(), arrival.to_string(), air_time, format!("N{i}"))
        };
        writeln!(
            text,
            "2013,{month},{day},{dep_time},{hour}00,{dep_delay},{dep_time},{hour}59,{arr_delay},\
             {carrier},{i},{tailnum},{origin},IAH,{air_time},{distance},{hour},0,\
             2013-{month:02}-{day:02}T{hour:02}:00:00Z"
        )
        .unwrap();
    }
    fs::write(path, text).unwrap();
}

struct Place {
    directory: tempfile::TempDir,
    config: Config,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["data", "work", "util"] {
        fs::create_dir(path(name)).unwrap();
    }
    write_csv(&path("flights.csv"));
    let config = Config {
        rows_times: Some(12),
        page_bytes: Some(ByteSize::kib(16)),
        sort_memory: Some(SORT_MEMORY_MIN),
        ..Config::new(path("flights.csv"), path("data"), path("work"), path("util"))
    };
    Place { directory, config }
}

fn run(config: &Config) -> Result<Report, Error> {
    let report = flights::run(config, &SystemClock, &mut |_| {});
    assert!(common::names(&config.work).is_empty(), "work is not empty");
    assert!(common::names(&config.util).is_empty(), "util is not empty");
    report
}

#[test]
fn the_results_are_those_of_the_data() {
    let place = place();
    let report = run(&place.config).unwrap();
    assert_eq!((report.csv_rows, report.rows), (1000, 12_000));

    let fit = &report.regression;
    assert_eq!((fit.n, fit.missing), (11_760, 240));
    for (found, expected) in fit.coefficients.iter().zip([3.0, 2.0, -0.01, 0.5]) {
        assert!((found.estimate - expected).abs() < 1e-9, "{found:?}");
    }

    let summary = &report.summary;
    assert_eq!(summary.classes.len(), 12, "three carriers fly in four months each");
    assert_eq!(summary.classes.iter().map(|class| class.rows).sum::<u64>(), 12_000);
    assert_eq!(summary.classes[0].values[0], Cell::from("9E"));
    let missing: u64 = summary.classes.iter().map(|class| class.statistics[0].missing).sum();
    assert_eq!(missing, 240);
    let distance: f64 = summary.classes.iter().map(|class| class.statistics[2].sum).sum();
    let expected: usize = (0..FLIGHTS).map(|i| 100 * (i * 17 % 40 + 1)).sum();
    assert_eq!(distance, 12.0 * expected as f64);
}

#[test]
fn the_final_data_set_is_sorted() {
    let place = place();
    let report = run(&place.config).unwrap();
    let rows = common::read(&report.outputs[0]);
    let key = |row: &Vec<Cell>| {
        [9, 12, 0, 1, 2].map(|column| match &row[column] {
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => format!("{number:04}"),
            Cell::Missing => String::new(),
        })
    };
    assert_eq!(rows.len(), 12_000);
    assert!(rows.is_sorted_by_key(key));
    assert_eq!(fs::metadata(&report.outputs[0]).unwrap().len(), report.dataset_bytes);
}

#[test]
fn data_holds_the_outputs_and_they_may_be_replaced() {
    let place = place();
    for _ in 0..2 {
        let report = run(&place.config).unwrap();
        let names =
            ["flights.fds", "flights_fit.csv", "flights_regression.csv", "flights_summary.csv"];
        assert_eq!(common::names(&place.config.data), names);
        assert!(report.outputs.iter().all(|path| path.is_file()));
        let text = fs::read_to_string(&report.outputs[1]).unwrap();
        assert!(text.starts_with("carrier,month,column,n,missing,mean,std_dev,min,max,sum\n9E,"));
        assert_eq!(text.lines().count(), 1 + 12 * 4);
    }
}

#[test]
fn every_step_is_recorded_and_printed() {
    let place = place();
    let mut started = Vec::new();
    let report =
        flights::run(&place.config, &SystemClock, &mut |step| started.push(step.to_owned()))
            .unwrap();
    let names: Vec<&str> = report.steps.iter().map(|step| step.step.as_str()).collect();
    assert_eq!(names, ["import", "repeat", "sort", "summary", "regression", "export"]);
    assert_eq!(started, names);
    assert!(report.steps.iter().all(|step| step.rows > 0 && step.real_seconds > 0.0));

    let mut out = Vec::new();
    report.print(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for expected in ["cpu/real", "\ntotal ", "\nintercept ", "\ndep_delay ", "\nUA "] {
        assert!(text.contains(expected), "{text}");
    }
    let json = serde_json::to_string(&report).unwrap();
    let back: Report = serde_json::from_str(&json).unwrap();
    // The decoder may be off by the last bit of a number.
    assert_eq!(back.summary.classes[7].values, report.summary.classes[7].values);
    assert_eq!(back.outputs, report.outputs);
}

#[test]
fn an_error_leaves_work_and_util_empty() {
    let place = place();
    let csv = place.directory.path().join("other.csv");
    fs::write(&csv, "carrier,origin,year,month,day\nUA,JFK,2013,1,1\n").unwrap();
    let result = run(&Config { csv, ..place.config.clone() });
    assert!(matches!(result, Err(Error::Column { ref column, .. }) if column == "dep_delay"));
    let result = run(&Config { csv: PathBuf::from("nowhere.csv"), ..place.config.clone() });
    assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
}
