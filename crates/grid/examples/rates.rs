//! Rates and memory of the core with 100,000 known jobs: `cargo run --release -p forebay-grid --example
//! rates`. One thread, journal and effects thrown away.

use std::time::Instant;

use forebay_base::Clock;
use forebay_base::time::SystemClock;
use forebay_grid::config::{Config, HostEngine};
use forebay_grid::event::{Joined, Memory};
use forebay_grid::hosts::Facts;
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::vocabulary::{Attempt, HostName, Moment, TaskId};
use forebay_grid::{Effect, Event, Grid, Ledger, Outcome};

const JOBS: u64 = 100_000;
const HOSTS: u32 = 16;
const USERS: u64 = 50;

fn resident_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0_u64) / 1024
}

struct Bench {
    grid: Grid,
    now: u64,
    out: Outcome,
    running: Vec<(HostName, TaskId, Attempt)>,
    launched: u64,
}

impl Bench {
    fn send(&mut self, event: Event) {
        self.out.clear();
        self.grid.apply(Moment(self.now), event, &mut self.out);
        for effect in &self.out.effects {
            if let Effect::Launch { task, attempt, host, .. } = effect {
                self.launched += 1;
                self.running.push((host.clone(), *task, *attempt));
            }
        }
    }

    fn join(&mut self, cores: u32) {
        for host in 0..HOSTS {
            self.send(Event::HostJoined(Box::new(Joined {
                host: format!("host{host}").parse().expect("a name"),
                facts: Facts { cores, memory_bytes: 1 << 40 },
                memory: Memory::Kept,
                engine: HostEngine::Agent,
                runs: Vec::new(),
            })));
        }
    }

    fn submit(&mut self, number: u64, array: Option<&str>) {
        let spec = JobSpec {
            command: vec!["true".to_owned()],
            array: array.map(|text| text.parse().expect("an array")),
            directory: "/".to_owned(),
            ..JobSpec::default()
        };
        let user = format!("user{}", number % USERS).parse().expect("a name");
        self.send(Event::Submit { user, spec: Box::new(spec), key: None });
    }

    /// Ends what runs, and whatever starts then, until nothing is left; how many ended.
    fn end_all(&mut self) -> u64 {
        let mut ended = 0;
        while let Some((host, task, attempt)) = self.running.pop() {
            self.now += 1;
            self.send(Event::Exited { host, task, attempt, exit: Exit::Code(0), usage: None });
            ended += 1;
        }
        ended
    }
}

fn say(what: &str, count: u64, start: Instant) {
    let seconds = SystemClock.instant().duration_since(start).as_secs_f64();
    println!("{what}: {:.0}/s, {} MiB resident", count as f64 / seconds, resident_mib());
}

fn bench(order: &str) -> Bench {
    let text = format!(
        "[general]\nhost_timeout = \"10 d\"\nlease = \"9 d\"\nfinished_max = 1000000\nuser_finished_max = 1000000\nuser_tasks_max = 1000000\n\
         [[queue]]\nname = \"normal\"\norder = \"{order}\""
    );
    let config = Config::read(&text).expect("settings");
    let grid = Grid::restore(Ledger::default(), [], Moment(0)).expect("an empty journal");
    let (out, running) = (Outcome::default(), Vec::new());
    let mut bench = Bench { grid, now: 1, out, running, launched: 0 };
    bench.send(Event::Configured(Box::new(config)));
    bench
}

fn main() {
    for order in ["first_come", "fair_share"] {
        println!("{order}, {HOSTS} hosts, {USERS} users");
        let mut bench = bench(order);
        let start = SystemClock.instant();
        for number in 0..JOBS {
            bench.submit(number, None);
        }
        say("submit while nothing can start", JOBS, start);
        let start = SystemClock.instant();
        let waiting = bench.grid.explain(TaskId::only(forebay_grid::vocabulary::JobId(JOBS)));
        assert!(waiting.is_some());
        println!("explain: {:?}", SystemClock.instant().duration_since(start));
        let start = SystemClock.instant();
        bench.join(100_000);
        say("dispatch of single jobs in one round", bench.launched, start);
        let start = SystemClock.instant();
        let ended = bench.end_all();
        say("ends", ended, start);
    }
    let mut bench = bench("first_come");
    bench.join(4);
    for number in 0..JOBS {
        bench.submit(number, None);
    }
    let start = SystemClock.instant();
    let ended = bench.end_all();
    say("end of one, start of the next, on a full grid", ended, start);
    bench.submit(0, Some("[1-1000000]"));
    let start = SystemClock.instant();
    let ended = bench.end_all();
    say("the same with an array of 1,000,000", ended, start);
}
