//! What the jobs wrote themselves, compared with what the grid says of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::fixture::Nodes;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May be started once.
    Once,
    /// May be started again if its host is lost.
    Rerunnable,
    /// Asks to be started again with its first exit value.
    Again,
}

/// A job whose number was printed.
pub struct Submitted {
    pub id: u64,
    pub kind: Kind,
    pub tasks: u64,
    /// The job that has to end first.
    pub after: Option<u64>,
}

/// What one task wrote.
#[derive(Default)]
struct Witness {
    begins: Vec<u64>,
    ends: Vec<(u64, u64)>,
}

/// Reads the ledger, in the order in which it was written, and checks what needs no more than that: nothing of an earlier start follows the begin
/// of a later one.
fn witnesses(text: &str) -> BTreeMap<(u64, u64), Witness> {
    let mut all: BTreeMap<(u64, u64), Witness> = BTreeMap::new();
    let mut latest: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (job, index) = words[1].split_once('.').expect("job and element");
        let task = (job.parse().expect("a job"), index.parse().expect("an element"));
        let attempt: u64 = words[2].parse().expect("an attempt");
        let latest = latest.entry(task).or_default();
        let about = || {
            let own = format!(" {job}.{index} ");
            text.lines().filter(|line| line.contains(&own)).collect::<Vec<_>>().join("\n")
        };
        assert!(
            attempt >= *latest,
            "start {attempt} after {latest} had begun: {line}\n{}",
            about()
        );
        *latest = attempt;
        let witness = all.entry(task).or_default();
        match words[0] {
            "begin" => witness.begins.push(attempt),
            "end" => witness.ends.push((attempt, words[4].parse().expect("a code"))),
            "beat" => {}
            "overlap" => panic!("an earlier start lives: {line}\n{}", about()),
            "homeless" => panic!("the work area was not there: {line}\n{}", about()),
            other => panic!("the ledger says {other}"),
        }
    }
    all
}

/// Checks one task against what it wrote.
fn check_task(
    job: &Submitted,
    index: u64,
    attempts: &[Value],
    witness: &Witness,
    programs: &BTreeSet<String>,
) {
    let id = job.id;
    let shown = || {
        let (begins, ends) = (&witness.begins, &witness.ends);
        format!("job {id}[{index}] {:?}: began {begins:?}, ended {ends:?}: {attempts:#?}", job.kind)
    };
    let last = attempts.last().unwrap_or_else(|| panic!("job {id}[{index}] has no history"));
    for (number, attempt) in (1u64..).zip(attempts) {
        assert_eq!(attempt["attempt"], number, "{}", shown());
        let finished = attempt["fate"].get("finished").is_some();
        assert_eq!(finished, number == attempts.len() as u64, "{}", shown());
        let begins = witness.begins.iter().filter(|begin| **begin == number).count();
        assert!(begins <= 1, "attempt {number} began {begins} times: {}", shown());
        assert!(
            attempt["exit"]["signal"].is_null()
                || (attempt["exit"]["signal"] == 9
                    && programs.contains(&format!("{id}.{index}.{number}"))),
            "a signal that nobody has sent: {}",
            shown()
        );
        assert!(attempt["exit"]["not_started"].is_null(), "{}", shown());
        let code = attempt["exit"]["code"].as_u64();
        let said = witness.ends.iter().find(|(of, _)| *of == number).map(|(_, code)| *code);
        if code.is_some() {
            assert_eq!(code, said, "{}", shown());
        }
    }
    check_fate(job, attempts.len(), last, attempts, witness, &shown);
}

/// Checks how a task ended, as its kind says.
fn check_fate(
    job: &Submitted,
    count: usize,
    last: &Value,
    attempts: &[Value],
    witness: &Witness,
    shown: &dyn Fn() -> String,
) {
    let good = witness.ends.iter().filter(|(_, code)| *code == 0).count();
    let fate = &last["fate"]["finished"];
    let killed = last["exit"]["signal"] == 9;
    // Of an attempt that was lost nobody knows how far it came.
    let lost = attempts.iter().filter(|attempt| attempt["exit"].is_null()).count();
    assert!(
        (fate == "exited" && (killed || (1..=1 + lost).contains(&good)))
            || (fate == "host_lost" && job.kind == Kind::Once),
        "good ends: {good}; {}",
        shown()
    );
    assert!(
        witness.begins.iter().all(|attempt| *attempt <= count as u64),
        "a start that the grid does not know: {}",
        shown()
    );
    if job.kind == Kind::Once {
        assert!(witness.begins.len() <= 1, "ran more than once: {}", shown());
    }
}

/// Checks all jobs of a round; how often they were started.
pub fn check(grid: &Nodes, jobs: &[Submitted], programs: &BTreeSet<String>) -> usize {
    let ledger = grid.base().join("jobs/ledger");
    let witnesses = witnesses(&std::fs::read_to_string(ledger).unwrap_or_default());
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    let mut count = 0;
    for job in jobs {
        let history = grid.json(0, 0, &["history", &job.id.to_string()]);
        let attempts = history.as_array().expect("attempts");
        count += attempts.len();
        let indices = if job.tasks == 1 { 0..=0 } else { 1..=job.tasks };
        for index in indices {
            let own = attempts.iter().filter(|attempt| attempt["task"]["index"] == index);
            let own: Vec<Value> = own.cloned().collect();
            let none = Witness::default();
            let witness = witnesses.get(&(job.id, index)).unwrap_or(&none);
            check_task(job, index, &own, witness, programs);
        }
        let ended = attempts.iter().filter_map(|attempt| attempt["ended"].as_u64());
        ends.insert(job.id, ended.max().expect("it ended"));
        if let Some(before) = job.after {
            let launched = attempts.iter().filter_map(|attempt| attempt["launched"].as_u64());
            let first = launched.min().expect("it was launched");
            assert!(ends[&before] <= first, "job {} overtook {before}", job.id);
        }
    }
    count
}

const LEDGER: &str =
    "begin 7.0 1 n0 \nbeat 7.0 1 n0 \nbegin 8.2 1 n1 \nbegin 7.0 2 n3 \nend 8.2 1 n1 99\n";

#[test]
fn a_ledger_in_which_starts_follow_each_other_is_read() {
    let all = witnesses(&format!("{LEDGER}end 7.0 2 n3 0\n"));
    assert_eq!((&all[&(7, 0)].begins[..], &all[&(7, 0)].ends[..]), (&[1, 2][..], &[(2, 0)][..]));
    assert_eq!(all[&(8, 2)].ends, [(1, 99)]);
}

#[test]
#[should_panic(expected = "start 1 after 2 had begun")]
fn a_start_that_goes_on_beside_the_next_one_is_found() {
    witnesses(&format!("{LEDGER}beat 7.0 1 n0 \n"));
}

#[test]
#[should_panic(expected = "an earlier start lives")]
fn a_start_that_finds_the_lock_of_an_earlier_one_is_found() {
    witnesses(&format!("{LEDGER}overlap 7.0 3 n1 \n"));
}
