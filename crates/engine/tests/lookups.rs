//! Questions that only look: none takes long, and however many there are, nothing else waits for them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use forebay_base::time::StepClock;
use forebay_engine::controller::{Controller, Input};
use forebay_engine::protocol::{Answer, Ask, JobView, Page};
use forebay_grid::config::Config;
use forebay_grid::event::Verb;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, Target};
use forebay_store::memory::MemoryStore;

struct Rig {
    controller: Controller<MemoryStore>,
}

impl Rig {
    fn new() -> Rig {
        let clock = Arc::new(StepClock::new(1_000_000));
        let store = MemoryStore::new();
        Rig { controller: Controller::open(store, Config::default(), clock).unwrap() }
    }

    fn input(ask: Ask) -> (Input, Receiver<Answer>) {
        let (reply, answer) = channel();
        (Input::Ask { connection: 1, user: "ann".parse().unwrap(), ask, reply }, answer)
    }

    fn ask(&mut self, ask: Ask) -> Answer {
        let (input, answer) = Rig::input(ask);
        self.controller.take(vec![input]).unwrap();
        answer.try_recv().expect("an answer")
    }

    fn submit(&mut self, array: Option<&str>) -> JobId {
        let spec = JobSpec {
            command: vec!["true".to_owned()],
            array: array.map(|array| array.parse().unwrap()),
            ..JobSpec::default()
        };
        match self.ask(Ask::submit(spec)) {
            Answer::Accepted { job } => job,
            answer => panic!("{answer:?}"),
        }
    }

    fn command(&mut self, job: JobId, index: u32, verb: Verb) {
        let target = Target { job, index: Some(index) };
        let answer = self.ask(Ask::Command { target, verb });
        assert!(matches!(answer, Answer::Obeyed { .. }), "{answer:?}");
    }

    /// All pages: their lines, how many pages, and the total of the first one.
    fn list(
        &mut self,
        target: Option<Target>,
        ended: bool,
        most: Option<u32>,
    ) -> (Vec<JobView>, u32, u64) {
        let (mut lines, mut pages, mut sum) = (Vec::new(), 0, 0);
        let mut page = Page { most, ..Page::default() };
        loop {
            match self.ask(Ask::Jobs { target, ended, page }) {
                Answer::Jobs { jobs, next, total } => {
                    assert_eq!(total.is_some(), page.from.is_none());
                    sum += total.unwrap_or(0);
                    assert!(jobs.len() <= 1002, "{}", jobs.len());
                    lines.extend(jobs);
                    page.from = next;
                }
                answer => panic!("{answer:?}"),
            }
            pages += 1;
            if page.from.is_none() {
                return (lines, pages, sum);
            }
        }
    }
}

#[test]
fn a_long_list_comes_in_pages_without_gap_or_double() {
    let mut rig = Rig::new();
    rig.submit(None);
    let array = rig.submit(Some("[1-2999:2,3000]"));
    rig.submit(None);
    for index in (1..=2199).step_by(2) {
        rig.command(array, index, Verb::Kill);
    }
    for index in [2201, 3000] {
        rig.command(array, index, Verb::Hold);
    }
    let ids = |lines: &[JobView]| lines.iter().map(|line| line.id.clone()).collect::<Vec<_>>();
    let mut wanted: Vec<String> =
        (1..=2199).step_by(2).map(|index| format!("2[{index}]")).collect();
    wanted.extend(["2".to_owned(), "2".to_owned()]);
    let (lines, pages, total) = rig.list(Some(array.into()), true, None);
    assert_eq!((ids(&lines), pages, total), (wanted.clone(), 2, 1102));
    let waiting: Vec<(&str, u32)> =
        lines[1100..].iter().map(|line| (line.state.word(), line.tasks)).collect();
    assert_eq!(waiting, [("pending", 399), ("held", 2)]);
    let all: Vec<String> =
        [vec!["1".to_owned()], wanted, vec!["3".to_owned()]].into_iter().flatten().collect();
    for most in [None, Some(1), Some(7), Some(1101), Some(0)] {
        let (lines, _, total) = rig.list(None, true, most);
        assert_eq!((ids(&lines), total), (all.clone(), 1104), "{most:?}");
    }
    let (lines, pages, total) = rig.list(None, false, None);
    assert_eq!((ids(&lines), pages, total), (["1", "2", "2", "3"].map(String::from).into(), 1, 4));
    // Arrays whose elements all wait do not come after the page is full.
    assert_eq!(rig.list(None, false, Some(1)).1, 3);
}

#[test]
fn a_page_of_long_commands_ends_early() {
    let mut rig = Rig::new();
    for _ in 0..4 {
        let command = vec!["true".to_owned(), "x".repeat(600_000)];
        let spec = Box::new(JobSpec { command, ..JobSpec::default() });
        assert!(matches!(rig.ask(Ask::Submit { spec, key: None }), Answer::Accepted { .. }));
    }
    let (lines, pages, _) = rig.list(None, false, None);
    assert_eq!((lines.len(), pages), (4, 2));
}

#[test]
fn an_array_of_single_indices_is_listed_by_searching_not_by_counting() {
    let mut rig = Rig::new();
    let list: Vec<String> = (1..=100_000).map(|index| (index * 3).to_string()).collect();
    let array = rig.submit(Some(&format!("[{}]", list.join(","))));
    for index in [3, 150_000, 300_000] {
        rig.command(array, index, Verb::Kill);
    }
    let (lines, _, total) = rig.list(Some(array.into()), true, None);
    let ids: Vec<&str> = lines.iter().map(|line| line.id.as_str()).collect();
    assert_eq!((ids, total), (vec!["1[3]", "1[150000]", "1[300000]", "1"], 4));
    assert_eq!(lines[3].tasks, 99_997);
}

#[test]
fn a_thousand_questions_hold_up_neither_events_nor_the_question_of_another_user() {
    let mut rig = Rig::new();
    let job = rig.submit(None);
    let question = || Ask::Jobs { target: Some(job.into()), ended: true, page: Page::default() };
    let (mut inputs, answers): (Vec<Input>, Vec<Receiver<Answer>>) =
        (0..1000).map(|_| Rig::input(question())).unzip();
    let (reply, other) = channel();
    inputs.push(Input::Ask { connection: 1, user: "bob".parse().unwrap(), ask: Ask::Hosts, reply });
    let spec = JobSpec { command: vec!["true".to_owned()], ..JobSpec::default() };
    let (submit, submitted) = Rig::input(Ask::submit(spec));
    inputs.push(submit);
    rig.controller.take(inputs).unwrap();
    let answered = || answers.iter().filter(|answer| answer.try_recv().is_ok()).count();
    assert!(submitted.try_recv().is_ok());
    assert!(other.try_recv().is_ok());
    let mut sum = answered();
    assert!((1..=16).contains(&sum), "{sum}");
    for _ in 0..1000 {
        rig.controller.take(Vec::new()).unwrap();
        let more = answered();
        assert!(more <= 16, "{more}");
        sum += more;
    }
    assert_eq!(sum, 1000);
}
