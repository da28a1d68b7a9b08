//! Elements that wait for those with the same index (`[*]`), and jobs that wait until some time after a start.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::support::{Rig, refusal, spec};
use forebay_grid::config::OnNever;
use forebay_grid::dialect::{Dialect, System};
use forebay_grid::event::{Memory, RunReport, RunStatus, Verb};
use forebay_grid::grid::{Explanation, State};
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::task::Cause;
use forebay_grid::vocabulary::{Attempt, JobId, Target, TaskId};

fn array(elements: &str) -> JobSpec {
    JobSpec { array: Some(elements.parse().unwrap()), ..spec() }
}

fn on(text: &str, job: JobSpec) -> JobSpec {
    JobSpec { depends: Some(text.parse().unwrap()), ..job }
}

fn element(job: JobId, index: u32) -> TaskId {
    TaskId { job, index }
}

impl Rig {
    /// Indices of the elements of a job that are on hosts.
    fn running_elements(&self, job: JobId) -> Vec<u32> {
        let job = self.grid.ledger().job(job).unwrap();
        job.tasks().filter(|(_, task)| task.run().is_some()).map(|(index, _)| index).collect()
    }

    fn never_ran(&self, task: TaskId) -> String {
        let Some(Explanation::NeverRan { reasons }) = self.grid.explain(task) else {
            panic!("it has not run")
        };
        reasons.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn each_element_starts_when_that_with_its_index_has_succeeded() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let first = rig.submit(array("[1-4]"));
    let second = rig.submit(on(&format!("done({first}[*])"), array("[1-3]")));
    assert!(rig.running_elements(second).is_empty());
    let Some(Explanation::Waits { reasons, .. }) = rig.grid.explain(element(second, 2)) else {
        panic!("it waits")
    };
    let said: String = reasons.iter().map(ToString::to_string).collect();
    assert_eq!(said, format!("it waits for done({first}[2])"));
    rig.exit(element(first, 2), 0);
    assert_eq!(rig.running_elements(second), [2]);
    rig.exit(element(first, 4), 1);
    assert_eq!(rig.running_elements(second), [2], "the fourth has no partner");
    // One that can no longer start ends, with the reason; the others do not.
    rig.exit(element(first, 3), 1);
    let said = rig.never_ran(element(second, 3));
    assert!(said.contains(&format!("done({first}[3]) can never become true")), "{said}");
    // A journal that is read again keeps all of it.
    rig.restart();
    let runs = [element(first, 1), element(second, 2)];
    let report = |task| RunReport { task, attempt: Attempt(1), status: RunStatus::Running };
    rig.join("a", 10, Memory::Kept, runs.map(report).to_vec());
    assert_eq!(rig.running_elements(second), [2]);
    rig.exit(element(first, 1), 0);
    assert_eq!(rig.running_elements(second), [1, 2]);
}

#[test]
fn an_element_whose_partner_starts_again_waits_again_and_one_that_is_held_ends_with_the_others() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let first = rig.submit(array("[1-2]"));
    let held = JobSpec { held: true, ..array("[1-2]") };
    let second = rig.submit(on(&format!("ended({first}[*]) && exit({first}[*])"), held));
    rig.exit(element(first, 1), 1);
    rig.command("u", Target { job: first, index: Some(1) }, Verb::Requeue);
    rig.command("u", second, Verb::Release);
    // The second element of the first job has the only slot.
    rig.exit(element(first, 2), 0);
    let said = rig.never_ran(element(second, 2));
    assert!(said.contains(&format!("exit({first}[2])")), "{said}");
    assert!(rig.running_elements(second).is_empty(), "the first one runs again");
    rig.exit(element(first, 1), 3);
    assert_eq!(rig.running_elements(second), [1]);
}

#[test]
fn indices_are_those_that_users_wrote() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let shifted = |elements: &str| {
        let dialect = Dialect { index_shift: 1, ..Dialect::of(System::Slurm) };
        JobSpec { dialect: Some(dialect), ..array(elements) }
    };
    let first = rig.submit(array("[1-3]"));
    // 0 to 2 as its user wrote it, of which 0 has no partner.
    let text = format!("done({first}[*])");
    let said = refusal(&rig.submit_as("u", on(&text, shifted("[1-3]"))));
    assert!(said.contains("has no element 0"), "{said}");
    let second = rig.submit(on(&text, shifted("[2-3]")));
    rig.exit(element(first, 2), 0);
    assert_eq!(rig.running_elements(second), [3]);
}

#[test]
fn what_cannot_be_paired_is_refused() {
    let mut rig = Rig::new("", &[("a", 10)]);
    let single = rig.submit(spec());
    let first = rig.submit(array("[1-3]"));
    let each = format!("done({first}[*])");
    let many = [&each[..]; 17].join(" && ");
    for (text, job, why) in [
        (many, array("[1-3]"), "at most 16 conditions"),
        (format!("started({first}[*], 5 min)"), array("[1-3]"), "for whole jobs only"),
        (format!("done({first}[*])"), spec(), "this job is not an array"),
        (format!("done({single}[*])"), array("[1-3]"), "is not an array"),
        (format!("done({first}[*])"), array("[1-4]"), "has no element 4"),
        (
            format!("done({first}[*]) || ended({single})"),
            array("[1-3]"),
            "waits for its own partner",
        ),
    ] {
        let said = refusal(&rig.submit_as("u", on(&text, job)));
        assert!(said.contains(why), "{text}: {said}");
    }
    use forebay_grid::parse::dependency::Dependency;
    assert!("numdone(1[*], 3)".parse::<Dependency>().is_err());
    for text in ["done(1[*])", "exit(\"load*\"[*], >= 3) && ended(2)", "started(7, 5 min)"] {
        assert_eq!(text.parse::<Dependency>().unwrap().to_string(), text);
    }
}

#[test]
fn an_element_whose_partner_is_forgotten_is_not_requeued_to_wait_for_ever() {
    let mut rig = Rig::new("[general]\nfinished_max = 1", &[("a", 10)]);
    let first = rig.submit(array("[1]"));
    let second = rig.submit(on(&format!("ended({first}[*])"), array("[1]")));
    rig.exit(element(first, 1), 0);
    rig.now += 1;
    rig.exit(element(second, 1), 0);
    rig.pass(1);
    assert!(rig.grid.ledger().job(first).is_none());
    let target = Target { job: second, index: Some(1) };
    let said = refusal(&rig.command("u", target, Verb::Requeue));
    assert!(said.contains("no longer known"), "{said}");
}

#[test]
fn settings_that_end_what_waits_in_vain_hold_for_elements_that_wait() {
    let mut rig = Rig::new("[general]\ndependency_never = \"keep\"", &[("a", 10)]);
    let first = rig.submit(array("[1-3]"));
    let second = rig.submit(on(&format!("done({first}[*])"), array("[1-3]")));
    let ended = |rig: &Rig| {
        let state = |index| rig.grid.state(element(second, index));
        (1..=3).filter(|index| matches!(state(*index), Some(State::Finished { .. }))).count()
    };
    rig.exit(element(first, 1), 1);
    rig.exit(element(first, 2), 1);
    assert_eq!(ended(&rig), 0);
    rig.configure("");
    assert_eq!(ended(&rig), 2);
}

#[test]
fn a_job_starts_so_long_after_the_start_of_another() {
    let mut rig = Rig::new("[general]\nlease = \"10 d\"\nhost_timeout = \"20 d\"\n", &[("a", 10)]);
    let first = rig.submit(array("[1-2]"));
    let late = rig.submit(on(&format!("started({first}, 5 min)"), spec()));
    rig.start(element(first, 1));
    rig.pass(100_000);
    rig.start(element(first, 2));
    assert!(rig.grid.next_wake().0 <= rig.now + 300_000);
    rig.pass(299_999);
    assert_eq!(rig.host_of(late), None);
    rig.restart();
    let report = |index| RunReport {
        task: element(first, index),
        attempt: Attempt(1),
        status: RunStatus::Running,
    };
    rig.join("a", 10, Memory::Kept, vec![report(1), report(2)]);
    assert_eq!(rig.host_of(late), None);
    rig.pass(1);
    assert!(rig.host_of(late).is_some());
    // One that is killed before it starts counts from its end.
    let held = rig.submit(JobSpec { held: true, ..spec() });
    let late = rig.submit(on(&format!("started({held}, 1 min)"), spec()));
    rig.command("u", held, Verb::Kill);
    rig.pass(59_999);
    assert_eq!(rig.host_of(late), None);
    rig.pass(1);
    assert!(rig.host_of(late).is_some());
}

const ELEMENTS: u32 = 6;

#[test]
fn an_element_is_on_a_host_only_if_its_partner_has_succeeded() {
    let ops = prop::collection::vec((0..6_u8, 1..=ELEMENTS), 1..60);
    let name = "an_element_is_on_a_host_only_if_its_partner_has_succeeded";
    crate::random::check(("pairs", name), 100, &ops, |ops| {
        let mut rig = Rig::new("", &[("a", 30)]);
        let first = rig.submit(array("[1-6]"));
        let keep = Some(OnNever::Keep);
        let second = JobSpec { on_never: keep, ..on(&format!("done({first}[*])"), array("[1-6]")) };
        let second = rig.submit(second);
        let mut started = BTreeSet::new();
        for (op, index) in ops {
            let (task, target) = (element(first, index), Target { job: first, index: Some(index) });
            let own = Target { job: second, index: Some(index) };
            let runs = rig.grid.ledger().task(task).unwrap().run().is_some();
            match op {
                0 | 1 if runs => drop(rig.exit(task, op)),
                2 => drop(rig.command("u", target, Verb::Requeue)),
                3 => drop(rig.command("u", target, Verb::Kill)),
                4 => drop(rig.command("u", own, Verb::Hold)),
                _ => drop(rig.command("u", own, Verb::Release)),
            }
            for index in 1..=ELEMENTS {
                let partner = rig.grid.state(element(first, index)).unwrap();
                let is_done = matches!(
                    partner,
                    State::Finished { cause: Cause::Exited, exit: Some(Exit::Code(0)), .. }
                );
                let own = rig.grid.state(element(second, index)).unwrap();
                let waits = matches!(own, State::Pending { .. } | State::Held { .. });
                if !waits && started.insert(index) {
                    assert!(is_done, "element {index} starts too early");
                }
                // There is room for all, so nothing else keeps it.
                let is_ready = matches!(own, State::Pending { .. }) && is_done;
                assert!(!is_ready, "element {index} waits");
            }
        }
    });
}
