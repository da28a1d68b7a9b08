//! Flows at the controller, without sockets and processes, with a clock of the test's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_base::Clock;
use forebay_base::time::{StepClock, Timestamp};
use forebay_engine::controller::{Controller, Input};
use forebay_engine::engine::Watch;
use forebay_engine::protocol::flow::{FlowAnswer, FlowAsk, FlowView, ScheduleView};
use forebay_engine::protocol::{Answer, Ask, Order, Page, Report};
use forebay_engine::server::arrival::{self, Memory, Room, look};
use forebay_grid::config::Config;
use forebay_grid::event::Memory as Remembers;
use forebay_grid::flow::event::{FlowState, Found};
use forebay_grid::flow::file::Surroundings;
use forebay_grid::flow::{FlowId, FlowSpec, ScheduleId};
use forebay_grid::grid::StepState;
use forebay_grid::spec::Exit;
use forebay_store::faulty::{Fault, FaultyStore};
use forebay_store::memory::MemoryStore;
use uuid::Uuid;

mod support;

type Shared = Arc<FaultyStore<MemoryStore>>;

/// A generous limit for what another thread does.
const LIMIT: Duration = Duration::from_secs(60);
/// 2027-01-01 at midnight in UTC.
const NEW_YEAR_SECONDS: i64 = 1_798_761_600;
const HOUR_SECONDS: i64 = 3600;

/// A clock that stands until it is set.
struct HandClock {
    seconds: AtomicI64,
    still: StepClock,
}

impl HandClock {
    fn pass(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::new(self.seconds.load(Ordering::Relaxed), 0)
    }

    fn instant(&self) -> Instant {
        self.still.instant()
    }
}

struct Fixture {
    store: Shared,
    clock: Arc<HandClock>,
    controller: Controller<Shared>,
}

impl Fixture {
    fn new() -> Fixture {
        let store: Shared = Arc::new(FaultyStore::new(MemoryStore::new()));
        let seconds = AtomicI64::new(NEW_YEAR_SECONDS);
        let clock = Arc::new(HandClock { seconds, still: StepClock::new(0) });
        let controller =
            Controller::open(Arc::clone(&store), Config::default(), Arc::clone(&clock) as _);
        Fixture { store, clock, controller: controller.unwrap() }
    }

    /// As after kill -9: what was not committed is lost.
    fn restart(&mut self) {
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        self.controller = Controller::open(store, Config::default(), clock as _).unwrap();
    }

    fn ask(&mut self, user: &str, ask: Ask) -> Answer {
        let (reply, answer) = channel();
        let user = user.parse().unwrap();
        self.controller.take(vec![Input::Ask { connection: 1, user, ask, reply }]).unwrap();
        answer.try_recv().expect("an answer")
    }

    fn flow(&mut self, user: &str, flow: FlowAsk) -> FlowAnswer {
        match self.ask(user, Ask::Flow { flow }) {
            Answer::Flow { flow } => flow,
            answer => panic!("{answer:?}"),
        }
    }

    fn flows(&mut self) -> Vec<FlowView> {
        match self.flow("ann", FlowAsk::List { ended: true, from: None }) {
            FlowAnswer::Listed { flows, next: None } => flows,
            answer => panic!("{answer:?}"),
        }
    }

    fn jobs(&mut self) -> usize {
        match self.ask("ann", Ask::Jobs { target: None, ended: true, page: Page::default() }) {
            Answer::Jobs { jobs, .. } => jobs.len(),
            answer => panic!("{answer:?}"),
        }
    }

    fn schedules(&mut self, user: &str) -> Vec<ScheduleView> {
        match self.flow(user, FlowAsk::Schedules) {
            FlowAnswer::Schedules(schedules) => schedules,
            answer => panic!("{answer:?}"),
        }
    }

    fn join(&mut self) -> Receiver<Order> {
        let (outbox, orders) = channel();
        let joined = support::joined("h1", 4, Remembers::Kept);
        self.controller.take(vec![Input::Joined { connection: 1, joined, outbox }]).unwrap();
        orders
    }

    /// Ends everything that was launched, by the names of the jobs; those not named end with 0.
    fn work(&mut self, orders: &Receiver<Order>, exits: &BTreeMap<&str, u8>) -> Vec<String> {
        let mut names = Vec::new();
        while let Ok(order) = orders.try_recv() {
            let Order::Launch(launch) = order else { continue };
            let name = launch.spec.name.clone();
            let exit = Exit::Code(exits.get(name.as_str()).copied().unwrap_or(0));
            let (task, attempt, host) = (launch.task, launch.attempt, "h1".parse().unwrap());
            let report = Report::Exited { task, attempt, exit, usage: None };
            self.controller.take(vec![Input::Report { host, connection: 1, report }]).unwrap();
            names.push(name);
        }
        names
    }
}

fn spec(schedule: &str) -> Box<FlowSpec> {
    let text = format!(
        "[flow]\nname = \"f\"\n[[job]]\nname = \"a\"\ncommand = \"true\"\n\
         [[job]]\nname = \"b\"\ncommand = \"true\"\nafter = \"a\"\n{schedule}"
    );
    Box::new(FlowSpec::read(&text, &Surroundings::default()).unwrap())
}

/// What asks for a run.
fn run(spec: Box<FlowSpec>) -> FlowAsk {
    FlowAsk::Run { spec, key: None }
}

#[test]
fn a_flow_that_is_repeated_with_its_key_is_answered_with_its_run_and_not_started_again() {
    let mut grid = Fixture::new();
    let ask = |key: u128| FlowAsk::Run { spec: spec(""), key: Some(Uuid::from_u128(key)) };
    let accepted = |answer| match answer {
        FlowAnswer::Accepted(flow) => flow.0,
        answer => panic!("{answer:?}"),
    };
    assert_eq!(accepted(grid.flow("ann", ask(7))), 1);
    assert_eq!(accepted(grid.flow("ann", ask(7))), 1);
    // Another key, another user and no key are other runs.
    assert_eq!(accepted(grid.flow("ann", ask(8))), 2);
    assert_eq!(accepted(grid.flow("bob", ask(7))), 3);
    assert_eq!(accepted(grid.flow("ann", run(spec("")))), 4);
    grid.restart();
    assert_eq!(accepted(grid.flow("ann", ask(7))), 1);
    assert_eq!(grid.jobs(), 6, "those of ann");
}

#[test]
fn a_flow_that_was_accepted_is_known_with_all_its_jobs_to_the_next_controller() {
    let mut grid = Fixture::new();
    let answer = grid.flow("ann", run(spec("")));
    assert!(matches!(answer, FlowAnswer::Accepted(FlowId(1))), "{answer:?}");
    grid.restart();
    assert_eq!((grid.flows().len(), grid.jobs()), (1, 2));
}

#[test]
fn a_flow_whose_commit_fails_leaves_no_job_and_no_answer() {
    let mut grid = Fixture::new();
    grid.store.fail_commits(1, Fault::Io);
    let (reply, answer) = channel();
    let ask = Ask::Flow { flow: run(spec("")) };
    let input = Input::Ask { connection: 1, user: "ann".parse().unwrap(), ask, reply };
    assert!(grid.controller.take(vec![input]).is_err());
    assert!(answer.try_recv().is_err());
    grid.restart();
    assert_eq!((grid.flows().len(), grid.jobs()), (0, 0));
}

#[test]
fn who_waits_hears_of_the_end_and_a_rerun_runs_what_failed() {
    let mut grid = Fixture::new();
    let orders = grid.join();
    grid.flow("ann", run(spec("")));
    let (reply, ended) = channel();
    let ask = Ask::Flow { flow: FlowAsk::Wait(FlowId(1)) };
    let wait = Input::Ask { connection: 1, user: "ann".parse().unwrap(), ask, reply };
    grid.controller.take(vec![wait]).unwrap();
    assert!(ended.try_recv().is_err());
    assert_eq!(grid.work(&orders, &BTreeMap::from([("f.a", 3)])), ["f.a"]);
    let told = ended.try_recv();
    let failed = Answer::Flow { flow: FlowAnswer::Ended(FlowState::Failed) };
    assert_eq!(format!("{told:?}"), format!("{:?}", Ok::<_, ()>(failed)));
    let FlowAnswer::Shown(view) = grid.flow("ann", FlowAsk::Show(FlowId(1))) else { panic!() };
    assert_eq!((view.failed.join(","), view.steps.len()), ("a".to_owned(), 2));
    let state = |view: &FlowView, place: usize| view.steps[place].state;
    assert_eq!((state(&view, 0), state(&view, 1)), (StepState::Failed, StepState::Skipped));
    assert_eq!((view.steps[0].exit, view.steps[1].exit), (Some(3), None));
    let answer = grid.ask("ann", Ask::Flow { flow: FlowAsk::Rerun(FlowId(1)) });
    assert!(matches!(answer, Answer::Obeyed { tasks: 2 }), "{answer:?}");
    assert_eq!(grid.work(&orders, &BTreeMap::new()), ["f.a", "f.b"]);
    assert_eq!(grid.flows()[0].state, FlowState::Done);
}

#[test]
fn users_neither_see_nor_touch_flows_and_schedules_of_others() {
    let mut grid = Fixture::new();
    let hourly = spec("[schedule]\ncron = \"@hourly\"");
    grid.flow("ann", run(hourly.clone()));
    grid.flow("ann", FlowAsk::Schedule(hourly));
    for flow in [
        FlowAsk::Show(FlowId(1)),
        FlowAsk::Wait(FlowId(1)),
        FlowAsk::Kill(FlowId(1)),
        FlowAsk::Rerun(FlowId(1)),
        FlowAsk::Hold(ScheduleId(1)),
        FlowAsk::Release(ScheduleId(1)),
        FlowAsk::Unschedule(ScheduleId(1)),
    ] {
        let answer = grid.ask("bob", Ask::Flow { flow });
        assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    }
    let listed = grid.flow("bob", FlowAsk::List { ended: true, from: None });
    assert!(matches!(listed, FlowAnswer::Listed { flows, next: None } if flows.is_empty()));
    assert_eq!((grid.schedules("bob").len(), grid.schedules("ann").len()), (0, 1));
    assert_eq!(grid.flows()[0].state, FlowState::Running);
}

#[test]
fn runs_are_listed_in_pages_and_each_once() {
    let mut grid = Fixture::new();
    for _ in 0..7 {
        let mut many = spec("");
        many.steps[0].array = Some("[1-4000]".parse().unwrap());
        grid.flow("ann", run(many));
    }
    let (mut pages, mut from) = (Vec::new(), None);
    loop {
        let FlowAnswer::Listed { flows, next } =
            grid.flow("ann", FlowAsk::List { ended: false, from })
        else {
            panic!("no list")
        };
        pages.push(flows.iter().map(|flow| flow.id.0).collect::<Vec<_>>());
        from = next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
}

#[test]
fn a_time_fires_once_even_if_the_controller_dies_before_it_is_durable() {
    let mut grid = Fixture::new();
    grid.flow("ann", FlowAsk::Schedule(spec("[schedule]\ncron = \"@hourly\"")));
    grid.clock.pass(HOUR_SECONDS - 1);
    grid.restart();
    assert_eq!(grid.flows().len(), 0);
    grid.clock.pass(1);
    grid.store.fail_commits(1, Fault::Io);
    assert!(grid.controller.take(Vec::new()).is_err(), "it fires, and the record is lost");
    grid.restart();
    assert_eq!((grid.flows().len(), grid.jobs()), (1, 2));
    grid.restart();
    grid.controller.take(Vec::new()).unwrap();
    assert_eq!(grid.flows().len(), 1);
    grid.clock.pass(HOUR_SECONDS);
    grid.controller.take(Vec::new()).unwrap();
    assert_eq!(grid.flows().len(), 2);
}

#[test]
fn times_that_pass_while_nobody_is_there_make_one_run_at_most() {
    for (setting, expected) in [("", 0), ("catch_up = true", 1)] {
        let mut grid = Fixture::new();
        let schedule = format!("[schedule]\ncron = \"@hourly\"\n{setting}");
        grid.flow("ann", FlowAsk::Schedule(spec(&schedule)));
        grid.clock.pass(HOUR_SECONDS * 7 + 1800);
        grid.restart();
        assert_eq!(grid.flows().len(), expected, "{setting}");
    }
}

#[test]
fn a_calendar_time_fires_at_its_time() {
    let mut grid = Fixture::new();
    let at = "[schedule]\nat = \"2027-01-01T06:00\"\nzone = \"Europe/Berlin\"";
    grid.flow("ann", FlowAsk::Schedule(spec(at)));
    grid.clock.pass(HOUR_SECONDS * 5 - 1);
    grid.controller.take(Vec::new()).unwrap();
    assert_eq!(grid.flows().len(), 0);
    grid.clock.pass(1);
    grid.controller.take(Vec::new()).unwrap();
    assert_eq!((grid.flows().len(), grid.schedules("ann").len()), (1, 0));
}

#[test]
fn a_file_fires_once_whatever_is_told_of_it_and_to_whichever_controller() {
    let mut grid = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let pattern = format!("{}/in.*", folder.path().display());
    let schedule = spec(&format!("[schedule]\nfile = \"{pattern}\""));
    grid.flow("ann", FlowAsk::Schedule(schedule));
    std::fs::write(folder.path().join("in.1"), "x").unwrap();
    let mut memory = Memory::default();
    let looked = |memory: &mut Memory| {
        let (files, trouble) = memory.take(look(&pattern, &mut Room::default()))?;
        Some(Input::Looked { schedule: ScheduleId(1), files, trouble })
    };
    grid.controller.take(looked(&mut memory).into_iter().collect()).unwrap();
    assert_eq!(grid.flows().len(), 0, "one look is not enough");
    grid.controller.take(looked(&mut memory).into_iter().collect()).unwrap();
    assert_eq!(grid.flows()[0].file.as_deref(), pattern.replace('*', "1").as_str().into());
    assert!(looked(&mut memory).is_none(), "nothing is new");
    // Another controller, and somebody who has seen nothing yet.
    grid.restart();
    let mut memory = Memory::default();
    for _ in 0..3 {
        grid.controller.take(looked(&mut memory).into_iter().collect()).unwrap();
    }
    assert_eq!(grid.flows().len(), 1);
    std::fs::write(folder.path().join("in.1"), "longer").unwrap();
    for _ in 0..3 {
        grid.controller.take(looked(&mut memory).into_iter().collect()).unwrap();
    }
    assert_eq!(grid.flows().len(), 2, "it was written anew");
}

#[test]
fn a_pattern_matches_as_in_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["a", "b"] {
        std::fs::create_dir(at(name)).unwrap();
        for file in ["x.csv", "x.txt", ".hidden.csv"] {
            std::fs::write(at(name).join(file), "").unwrap();
        }
    }
    std::fs::create_dir(at("a/folder.csv")).unwrap();
    let found = |pattern: &str| {
        let look = look(&at(pattern).display().to_string(), &mut Room::default());
        assert_eq!(look.trouble, None, "{pattern}");
        look.files.len()
    };
    for (pattern, files) in
        [("*/*.csv", 2), ("a/*", 2), ("a/x.csv", 1), ("c/*", 0), ("a/x.csv/*", 0), ("a/.*", 1)]
    {
        assert_eq!(found(pattern), files, "{pattern}");
    }
}

#[test]
fn many_files_start_their_runs_at_successive_looks() {
    let mut grid = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let pattern = format!("{}/in.*", folder.path().display());
    grid.flow("ann", FlowAsk::Schedule(spec(&format!("[schedule]\nfile = \"{pattern}\""))));
    for number in 0..150 {
        std::fs::write(folder.path().join(format!("in.{number}")), "x").unwrap();
    }
    let mut memory = Memory::default();
    let mut runs = Vec::new();
    for _ in 0..4 {
        let (files, trouble) =
            memory.take(look(&pattern, &mut Room::default())).expect("not all have started");
        let looked = Input::Looked { schedule: ScheduleId(1), files, trouble };
        grid.controller.take(vec![looked]).unwrap();
        runs.push(grid.flows().len());
    }
    assert_eq!(runs, [0, 64, 128, 150]);
    assert_eq!(memory.take(look(&pattern, &mut Room::default())), None, "nothing is new");
}

#[test]
fn a_look_reads_no_more_than_it_keeps_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let many = folder.path().join("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..5000 {
        std::fs::write(many.join(format!("in.{number:04}")), "").unwrap();
    }
    let found = |pattern: &str, room: &mut Room| {
        let pattern = folder.path().join(pattern).display().to_string();
        look(&pattern, room)
    };
    let first = found("many/in.*", &mut Room::default());
    assert_eq!(first.files.len(), 4096);
    assert!(first.files.keys().next_back().unwrap().ends_with("in.4095"), "the first by name");
    assert!(first.trouble.unwrap().contains("more than 4096 paths match"));
    // 2,000 ways to the same folder: 10,000,000 paths.
    let links = folder.path().join("links");
    std::fs::create_dir(&links).unwrap();
    for number in 0..2000 {
        std::os::unix::fs::symlink(&many, links.join(number.to_string())).unwrap();
    }
    let mut room = Room::default();
    let look = found("links/*/*", &mut room);
    assert_eq!(look.files.len(), 4096);
    assert!(look.trouble.unwrap().contains("more than 4096 paths match"));
    let look = found("links/*/none*", &mut room);
    assert!(look.trouble.is_some_and(|trouble| trouble.contains("too many names")));
    let look = found("many/in.0000", &mut room);
    assert_eq!((look.files.len(), look.trouble), (1, None), "it takes no name in a folder");
}

/// What the watch tells of a pattern first, for a user.
fn watched(user: &str, pattern: &str) -> (Vec<Found>, Option<String>) {
    let (inputs, taken) = channel();
    std::thread::spawn(move || arrival::watch(&inputs));
    loop {
        match taken.recv_timeout(LIMIT).expect("it asks and tells") {
            Input::Watches { reply } => {
                let user = user.parse().unwrap();
                let schedule = ScheduleId(1);
                reply.send(vec![Watch { schedule, user, pattern: pattern.to_owned() }]).unwrap();
            }
            Input::Looked { files, trouble, .. } => return (files, trouble),
            _ => panic!("it sends nothing else"),
        }
    }
}

#[test]
fn files_are_looked_for_with_the_rights_of_the_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let set = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), permissions).unwrap();
    };
    std::fs::write(folder.path().join("in.1"), "x").unwrap();
    let pattern = format!("{}/in.*", folder.path().display());
    set(0o755);
    let own = forebay_engine::user::own_name().unwrap();
    assert_eq!(watched(own.as_str(), &pattern).0.len(), 1);
    if own.as_str() != "root" {
        // Without root there is one user only.
        return;
    }
    assert_eq!(watched("nobody", &pattern).0.len(), 1);
    set(0o700);
    let (files, trouble) = watched("nobody", &pattern);
    assert!(files.is_empty());
    assert!(trouble.is_some_and(|trouble| trouble.contains("denied")));
    // Others of this process are still who they were.
    assert_eq!(look(&pattern, &mut Room::default()).files.len(), 1);
    let (_, trouble) = watched("nobody.of.that.name", &pattern);
    assert!(trouble.is_some_and(|trouble| trouble.contains("no user")));
}
