use forebay_grid::spec::{Exit, Usage};
use forebay_grid::task::Cause;
use forebay_grid::vocabulary::{Attempt, JobId, Moment, TaskId};
use forebay_store::memory::MemoryStore;

use super::*;

const DAY_MS: u64 = 86_400_000;

/// An attempt of `user` that ended on a day with these waits, processor seconds and exit value.
fn record(job: u64, user: &str, day: u64, waited_ms: u64, cpu: f64, code: u8) -> AttemptRecord {
    let submitted = day * DAY_MS + 1000;
    let launched = submitted + waited_ms;
    AttemptRecord {
        task: TaskId::only(JobId(job)),
        tasks: 1,
        name: String::new(),
        user: user.parse().unwrap(),
        queue: if job.is_multiple_of(2) { "even" } else { "odd" }.parse().unwrap(),
        project: "p".to_owned(),
        host: "h1".parse().unwrap(),
        attempt: Attempt(1),
        slots: 2,
        submitted: Moment(submitted),
        launched: Moment(launched),
        started: Some(Moment(launched)),
        ended: Moment(launched + 4000),
        exit: Some(Exit::Code(code)),
        loss: None,
        usage: Some(Usage {
            real_seconds: 4.0,
            user_seconds: cpu,
            system_seconds: 1.0,
            io_wait_seconds: Some(0.5),
            peak_memory_bytes: Some(job * 100),
            read_bytes: Some(1000),
            written_bytes: Some(10),
            ..Usage::default()
        }),
        fate: Fate::Finished(Cause::Exited),
    }
}

fn none(_: &mut dyn FnMut(AttemptRecord)) -> Result<()> {
    Ok(())
}

fn with(store: &MemoryStore, records: &[AttemptRecord]) -> Accounts {
    let mut accounts = Accounts::open(store, &TimeZone::UTC, 400, none).unwrap();
    let mut batch = Batch::default();
    let records: Vec<&AttemptRecord> = records.iter().collect();
    accounts.add(&records, &TimeZone::UTC, 400, &mut batch).unwrap();
    store.commit(&batch).unwrap();
    accounts
}

fn known() -> Vec<AttemptRecord> {
    vec![
        record(1, "ann", 100, 10, 3.0, 0),
        record(2, "ann", 100, 30, 3.0, 7),
        record(3, "ann", 101, 50, 3.0, 0),
        record(4, "ben", 101, 60_000, 5.0, 0),
    ]
}

fn by(keys: &[UsageKey]) -> UsageQuery {
    UsageQuery { by: keys.to_vec(), ..UsageQuery::default() }
}

#[test]
fn sums_are_those_of_the_attempts() {
    let accounts = with(&MemoryStore::new(), &known());
    let rows = accounts.answer(&by(&[UsageKey::User]), |_| true).unwrap();
    assert_eq!(rows.len(), 2);
    let ann = &rows[0];
    assert_eq!(ann.user.as_ref().unwrap().as_str(), "ann");
    assert_eq!((ann.jobs, ann.failed, ann.attempts), (3, 1, 3));
    assert_eq!((ann.real_seconds, ann.user_seconds, ann.system_seconds), (12.0, 9.0, 3.0));
    assert_eq!(ann.cpu_per_real, Some(1.0));
    assert_eq!((ann.slot_seconds, ann.io_wait_seconds), (24.0, Some(1.5)));
    assert_eq!((ann.read_bytes, ann.written_bytes, ann.peak_memory_bytes), (3000, 30, 300));
    assert_eq!((ann.wait_median_seconds, ann.wait_max_seconds), (Some(0.03), Some(0.05)));
    assert_eq!(ann.day, None);
    let all = accounts.answer(&by(&[]), |_| true).unwrap();
    assert_eq!((all.len(), all[0].jobs, all[0].wait_max_seconds), (1, 4, Some(60.0)));
}

#[test]
fn rows_come_in_the_order_asked_for_and_days_bound_them() {
    let accounts = with(&MemoryStore::new(), &known());
    let mut query = by(&[UsageKey::Queue, UsageKey::Day]);
    let told = |query: &UsageQuery| -> Vec<(String, String)> {
        let rows = accounts.answer(query, |_| true).unwrap();
        let text = |row: &UsageRow| {
            (row.queue.as_ref().unwrap().to_string(), row.day.unwrap().to_string())
        };
        rows.iter().map(text).collect()
    };
    let pair = |queue: &str, day: &str| (queue.to_owned(), day.to_owned());
    let (first, second) = ("1970-04-11", "1970-04-12");
    let odd = [pair("odd", first), pair("odd", second)];
    assert_eq!(told(&query), [[pair("even", first), pair("even", second)], odd].concat());
    query.since = Some(second.parse().unwrap());
    assert_eq!(told(&query), [pair("even", second), pair("odd", second)]);
    query.until = Some(first.parse().unwrap());
    assert_eq!(told(&query), []);
}

#[test]
fn who_may_not_see_a_user_does_not_see_it_in_sums_either() {
    let accounts = with(&MemoryStore::new(), &known());
    let rows = accounts.answer(&by(&[]), |user| user.as_str() == "ben").unwrap();
    assert_eq!((rows[0].jobs, rows[0].read_bytes), (1, 1000));
}

#[test]
fn sums_outlive_the_controller_and_can_be_made_again_from_the_history() {
    let (kept, fresh) = (MemoryStore::new(), MemoryStore::new());
    let first = with(&kept, &known());
    let again = Accounts::open(&kept, &TimeZone::UTC, 400, |_| panic!("needs no history"));
    assert_eq!(again.unwrap().rows, first.rows);
    let made = Accounts::open(&fresh, &TimeZone::UTC, 400, |found| {
        known().into_iter().for_each(found);
        Ok(())
    });
    assert_eq!(made.unwrap().rows, first.rows);
    let read = Accounts::open(&fresh, &TimeZone::UTC, 400, |_| panic!("needs no history"));
    assert_eq!(read.unwrap().rows, first.rows);
}

#[test]
fn old_days_go_from_memory_and_from_the_store() {
    let store = MemoryStore::new();
    let mut accounts = with(&store, &known());
    let mut batch = Batch::default();
    let late = record(9, "ann", 100 + 400, 0, 1.0, 0);
    accounts.add(&[&late], &TimeZone::UTC, 400, &mut batch).unwrap();
    store.commit(&batch).unwrap();
    let days = |accounts: &Accounts| -> Vec<i32> {
        accounts.rows.keys().map(|key| key.day).collect::<BTreeSet<i32>>().into_iter().collect()
    };
    assert_eq!(days(&accounts), [101, 500]);
    assert_eq!(days(&Accounts::open(&store, &TimeZone::UTC, 400, none).unwrap()), [101, 500]);
}

#[test]
fn a_start_that_is_not_the_last_counts_as_a_start_only() {
    let mut first = record(1, "ann", 100, 10, 3.0, 99);
    first.fate = Fate::Again;
    let mut second = record(1, "ann", 100, 500, 3.0, 0);
    second.attempt = Attempt(2);
    let accounts = with(&MemoryStore::new(), &[first, second]);
    let row = &accounts.answer(&by(&[]), |_| true).unwrap()[0];
    assert_eq!((row.attempts, row.jobs, row.failed), (2, 1, 0));
    assert_eq!((row.wait_max_seconds, row.real_seconds), (Some(0.01), 8.0));
}

#[test]
fn buckets_are_within_two_percent() {
    for ms in (0..100).chain((7..40).map(|power| (1 << power) + 17)) {
        let middle = middle_of(bucket_of(ms));
        assert!((middle - ms as f64).abs() <= ms as f64 * 0.02, "{ms}: {middle}");
    }
    assert!(bucket_of(u64::MAX) < u16::MAX);
}

#[test]
fn many_projects_of_one_user_share_a_row_and_push_nobody_out() {
    let store = MemoryStore::new();
    let mut records = vec![record(1, "ann", 99, 10, 3.0, 0)];
    records.extend((0..1000).map(|job| AttemptRecord {
        project: format!("p{job}"),
        ..record(2 * job, "bob", 100, 10, 3.0, 0)
    }));
    let mut accounts = with(&store, &records);
    assert_eq!(accounts.rows.len(), 1 + 100 + 1);
    let others = |accounts: &Accounts| {
        let query = UsageQuery { by: vec![UsageKey::Project], ..UsageQuery::default() };
        let rows = accounts.answer(&query, |_| true).unwrap();
        rows.into_iter().find(|row| row.project.as_deref() == Some("(others)")).unwrap().attempts
    };
    assert_eq!(others(&accounts), 900);
    // So it is after a restart, and a name that has a row keeps it.
    accounts = Accounts::open(&store, &TimeZone::UTC, 400, none).unwrap();
    for (project, sum) in [("p2000", 901), ("p7", 901)] {
        let record =
            AttemptRecord { project: project.to_owned(), ..record(4, "bob", 100, 10, 3.0, 0) };
        accounts.add(&[&record], &TimeZone::UTC, 400, &mut Batch::default()).unwrap();
        assert_eq!(others(&accounts), sum);
    }
}

#[test]
fn a_day_begins_at_midnight_on_the_clocks_of_the_zone() {
    let tokyo = TimeZone::get("Asia/Tokyo").unwrap();
    let mut accounts = Accounts::default();
    let mut batch = Batch::default();
    for ended_ms in [15 * 3_600_000 - 1, 15 * 3_600_000] {
        let attempt = AttemptRecord { ended: Moment(ended_ms), ..record(1, "ann", 0, 0, 1.0, 0) };
        accounts.add(&[&attempt], &tokyo, 400, &mut batch).unwrap();
    }
    let rows = accounts.answer(&by(&[UsageKey::Day]), |_| true).unwrap();
    let days: Vec<String> = rows.iter().map(|row| row.day.unwrap().to_string()).collect();
    assert_eq!(days, ["1970-01-01", "1970-01-02"]);
}
