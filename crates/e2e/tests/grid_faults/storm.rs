//! kill -9 of controller, agents and jobs at random under a load of jobs.
//!
//! Each job holds a lock of its own for as long as one of its processes lives, and writes every start and
//! end into a ledger. What the grid says afterwards has to agree with it. `FOREBAY_E2E_GRID_ROUNDS` and
//! `FOREBAY_E2E_GRID_JOBS` make the test longer, `FOREBAY_SEED` repeats it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_e2e::{seed, setting, wait_until};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::fixture::{Fixture, HOST_TIMEOUT, LIMIT, SHORT};

const HOSTS: u32 = 3;

/// The lock is the kernel's, so it ends with the last process that holds it, however that ends.
const SCRIPT: &str = r#"
me=$FOREBAY_JOB.$FOREBAY_INDEX
exec 9>>lock.$me
flock -n 9 || { echo "$me" >>overlaps; exit 66; }
[ -d "$WORK" ] && [ -d "$UTIL" ] && : >"$WORK/x" || { echo "$me" >>homeless; exit 67; }
echo "start $me $FOREBAY_ATTEMPT" >>ledger
sleep 0.$PAUSE
[ -e "$WORK/x" ] || echo "$me" >>homeless
code=0
[ "$KIND" = again ] && [ "$FOREBAY_ATTEMPT" = 1 ] && code=99
echo "end $me $FOREBAY_ATTEMPT $code" >>ledger
exit $code
"#;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// May be started once.
    Once,
    /// May be started again if its host is lost.
    Rerunnable,
    /// Asks to be started again with its first exit value.
    Again,
}

/// A job whose number was printed.
struct Submitted {
    id: u64,
    kind: Kind,
    tasks: u64,
    /// The job that has to end first.
    after: Option<u64>,
}

/// Submits one job, again and again until its number is printed.
fn submit(grid: &Fixture, random: &mut StdRng, before: &[Submitted]) -> Option<Submitted> {
    let kind = [Kind::Once, Kind::Rerunnable, Kind::Again][random.random_range(0..3)];
    let tasks = if random.random_range(0..10) == 0 { 5 } else { 1 };
    let after = (random.random_range(0..5) == 0 && !before.is_empty())
        .then(|| before[random.random_range(0..before.len())].id);
    let pause = format!("PAUSE={}", random.random_range(1..4));
    let word = format!("KIND={}", if kind == Kind::Again { "again" } else { "plain" });
    let mut words = vec!["submit", "-o", "/dev/null", "--env", &pause, "--env", &word];
    match kind {
        Kind::Once => {}
        Kind::Rerunnable => words.push("--rerunnable"),
        Kind::Again => words.extend(["--rerunnable", "--requeue-exit", "99"]),
    }
    if tasks > 1 {
        words.extend(["-J", "part[1-5]%3"]);
    }
    let condition = after.map(|job| format!("ended({job})"));
    if let Some(condition) = &condition {
        words.extend(["-w", condition]);
    }
    words.extend(["--", "sh", "-c", SCRIPT]);
    let ended = grid.forebay(&words);
    let id = ended.status.success().then(|| ended.stdout.trim().parse().expect("a number"))?;
    Some(Submitted { id, kind, tasks, after })
}

/// What was struck so far, as far as it has to be remembered.
#[derive(Default)]
struct Struck {
    /// Hosts whose agents are left dead for long.
    away: Vec<String>,
    /// Runs whose program was killed, as `JOB.INDEX.ATTEMPT`: only these may say that signal 9 ended them.
    programs: BTreeSet<String>,
}

/// Kills one thing. What it was, if there was such a thing.
fn strike(grid: &mut Fixture, random: &mut StdRng, struck: &mut Struck) -> &'static str {
    let away = &mut struck.away;
    let host = format!("h{}", random.random_range(1..=HOSTS));
    match random.random_range(0..7) {
        0 => {
            grid.kill_controller();
            std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
            grid.start_controller();
            "controller"
        }
        1 if !away.contains(&host) => {
            grid.kill_agent(&host);
            std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
            grid.start_agent(&host);
            "agent"
        }
        2 if away.is_empty() => {
            grid.kill_agent(&host);
            away.push(host);
            "agent, for long"
        }
        3 => {
            grid.kill_controller();
            if !away.contains(&host) {
                grid.kill_agent(&host);
                grid.start_agent(&host);
            }
            grid.start_controller();
            "controller and agent"
        }
        4 => kill_shim(grid, random),
        5 => {
            // A shim that was just forked may be among them, or one that gets a job now: as bad as any other moment.
            for pid in grid.nurseries().into_iter().chain(grid.free_shims()) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            "nurseries"
        }
        _ => kill_program(grid, random, &mut struck.programs),
    }
}

fn any_shim(grid: &Fixture, random: &mut StdRng) -> Option<Pid> {
    let shims = grid.shims();
    (!shims.is_empty()).then(|| shims[random.random_range(0..shims.len())])
}

fn kill_shim(grid: &Fixture, random: &mut StdRng) -> &'static str {
    let killed = any_shim(grid, random)
        .is_some_and(|shim| rustix::process::kill_process(shim, Signal::KILL).is_ok());
    if killed { "shim" } else { "nothing" }
}

fn kill_program(
    grid: &Fixture,
    random: &mut StdRng,
    programs: &mut BTreeSet<String>,
) -> &'static str {
    let victim = any_shim(grid, random).and_then(|shim| {
        let (run, program) = (run_of(shim)?, child_of(shim)?);
        // It may have got another run meanwhile: then nobody knows whose program that is.
        (run_of(shim)? == run).then_some((run, program))
    });
    let Some((run, program)) = victim else { return "nothing" };
    programs.insert(run);
    match rustix::process::kill_process(program, Signal::KILL) {
        Ok(()) => "program",
        Err(_) => "nothing",
    }
}

/// Which run a shim holds, as its name says.
fn run_of(shim: Pid) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", shim.as_raw_nonzero())).ok()?;
    Some(name.trim_end().strip_prefix("shim ")?.to_owned())
}

fn child_of(pid: Pid) -> Option<Pid> {
    let number = pid.as_raw_nonzero();
    let path = format!("/proc/{number}/task/{number}/children");
    let text = std::fs::read_to_string(path).ok()?;
    Pid::from_raw(text.split_whitespace().next()?.parse().ok()?)
}

/// Starts and ends of one attempt, as the job itself wrote them down.
#[derive(Default)]
struct Witness {
    starts: Vec<u64>,
    ends: Vec<(u64, u64)>,
}

fn witnesses(grid: &Fixture) -> BTreeMap<(u64, u64), Witness> {
    let text = std::fs::read_to_string(grid.jobs.join("ledger")).unwrap_or_default();
    let mut all: BTreeMap<(u64, u64), Witness> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (job, index) = words[1].split_once('.').expect("job and element");
        let task = (job.parse().expect("a job"), index.parse().expect("an element"));
        let number = |place: usize| words[place].parse().expect("a number");
        let witness = all.entry(task).or_default();
        match words[0] {
            "start" => witness.starts.push(number(2)),
            "end" => witness.ends.push((number(2), number(3))),
            other => panic!("the ledger says {other}"),
        }
    }
    all
}

/// Checks one task against what it wrote down itself.
fn check_task(
    job: &Submitted,
    index: u64,
    attempts: &[Value],
    witness: &Witness,
    programs: &BTreeSet<String>,
) {
    let id = job.id;
    let shown = || format!("job {id}[{index}] {:?}: {attempts:#?}", job.kind);
    let last = attempts.last().unwrap_or_else(|| panic!("job {id}[{index}] has no history"));
    for (number, attempt) in (1u64..).zip(attempts) {
        assert_eq!(attempt["attempt"], number, "{}", shown());
        let finished = attempt["fate"].get("finished").is_some();
        assert_eq!(finished, number == attempts.len() as u64, "{}", shown());
        let starts = witness.starts.iter().filter(|start| **start == number).count();
        assert!(starts <= 1, "attempt {number} ran {starts} times: {}", shown());
        // What the grid says was never started really was not, unless it was lost with its host.
        let unknown = attempt["exit"].is_null() && attempt["started"].is_null();
        if unknown && job.kind == Kind::Once && !finished {
            assert_eq!(starts, 0, "attempt {number} was started after all: {}", shown());
        }
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
    let good = witness.ends.iter().filter(|(_, code)| *code == 0).count();
    let fate = &last["fate"]["finished"];
    let killed = last["exit"]["signal"] == 9;
    // Of an attempt that was lost with its host nobody knows how far it came.
    let lost = attempts.iter().filter(|attempt| attempt["exit"].is_null()).count();
    assert!(
        (fate == "exited" && (killed || (1..=1 + lost).contains(&good)))
            || (fate == "host_lost" && job.kind == Kind::Once),
        "good ends: {good}; {}",
        shown()
    );
    if job.kind == Kind::Once {
        assert!(witness.starts.len() <= 1, "ran more than once: {}", shown());
    }
}

fn check(grid: &Fixture, jobs: &[Submitted], known_max: usize, programs: &BTreeSet<String>) {
    for file in ["overlaps", "homeless"] {
        let text = std::fs::read_to_string(grid.jobs.join(file)).unwrap_or_default();
        assert!(text.is_empty(), "{file}: {text}");
    }
    let witnesses = witnesses(grid);
    let known = grid.json(&["jobs", "--all"]);
    let mut known: Vec<u64> = known
        .as_array()
        .expect("jobs")
        .iter()
        .map(|job| {
            let id = job["id"].as_str().expect("an id");
            id.split('[').next().and_then(|id| id.parse().ok()).expect("a number")
        })
        .collect();
    known.dedup();
    assert!(known.len() <= known_max, "jobs were doubled");
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for job in jobs {
        let attempts = grid.history(&job.id.to_string());
        let indices = if job.tasks == 1 { 0..=0 } else { 1..=job.tasks };
        for index in indices {
            let own: Vec<Value> = attempts
                .iter()
                .filter(|attempt| attempt["task"]["index"] == index)
                .cloned()
                .collect();
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
}

#[test]
fn all_jobs_end_exactly_once_whatever_is_killed() {
    let mut random = StdRng::seed_from_u64(seed("grid_faults"));
    let (rounds, count) =
        (setting("FOREBAY_E2E_GRID_ROUNDS", 3), setting("FOREBAY_E2E_GRID_JOBS", 60));
    println!("with FOREBAY_E2E_GRID_ROUNDS={rounds} FOREBAY_E2E_GRID_JOBS={count}");
    let mut grid = Fixture::start(HOSTS, SHORT);
    // An answer that was lost may have been a yes.
    let mut known_max = 0;
    for round in 1..=rounds {
        let mut strikes: BTreeMap<&str, u32> = BTreeMap::new();
        let (mut jobs, mut struck) = (Vec::new(), Struck::default());
        while (jobs.len() as u64) < count {
            jobs.extend(submit(&grid, &mut random, &jobs));
            known_max += 1;
            if random.random_range(0..8) == 0 {
                *strikes.entry(strike(&mut grid, &mut random, &mut struck)).or_default() += 1;
            }
        }
        if !struck.away.is_empty() {
            std::thread::sleep(HOST_TIMEOUT);
        }
        for _ in 0..6 {
            *strikes.entry(strike(&mut grid, &mut random, &mut struck)).or_default() += 1;
            std::thread::sleep(Duration::from_millis(random.random_range(0..200)));
        }
        for host in struck.away {
            grid.start_agent(&host);
        }
        wait_until("all jobs have ended", LIMIT * 3, || {
            grid.json(&["jobs"]).as_array().is_some_and(Vec::is_empty)
        });
        check(&grid, &jobs, known_max, &struck.programs);
        wait_until(&format!("nothing is left: {:?}", grid.left_behind()), LIMIT, || {
            grid.left_behind().is_empty()
        });
        println!("round {round}: {} jobs, killed {strikes:?}", jobs.len());
        // Numbers go on; the next round compares with its own jobs only.
        let _ = std::fs::remove_file(grid.jobs.join("ledger"));
    }
}
