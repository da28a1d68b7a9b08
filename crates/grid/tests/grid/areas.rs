//! Limits of work areas.

use crate::support::{Rig, spec};
use forebay_grid::event::AreaSize;
use forebay_grid::grid::{Explanation, State};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::TaskId;
use forebay_grid::{Effect, Event};

impl Rig {
    /// The agent of host `a` says what the areas of a task hold.
    fn holds(&mut self, task: TaskId, bytes: u64) -> Vec<Effect> {
        let attempt = self.grid.ledger().task(task).unwrap().run().expect("it runs").attempt;
        let sizes = vec![AreaSize { task, attempt, bytes }];
        self.send(Event::AreaSizes { host: "a".parse().unwrap(), sizes })
    }

    fn said(&self, task: TaskId) -> String {
        let Some(Explanation::Placed(placement)) = self.grid.explain(task) else { panic!() };
        placement.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// A grid with one running job in a queue with these lines.
fn running(lines: &str) -> (Rig, TaskId) {
    let mut rig = Rig::new(&format!("[[queue]]\nname = \"q\"\n{lines}"), &[("a", 4)]);
    let task = TaskId::only(rig.submit(spec()));
    rig.start(task);
    (rig, task)
}

const HOLD: &str = "area_limit = \"1 MiB\"\narea_exceeded = \"hold\"";

#[test]
fn a_job_is_held_while_its_areas_hold_too_much() {
    let (mut rig, task) = running(HOLD);
    assert!(rig.holds(task, 1 << 20).is_empty());
    assert!(matches!(rig.holds(task, 3 << 20)[..], [Effect::Suspend { .. }]));
    assert!(rig.holds(task, 4 << 20).is_empty());
    assert!(matches!(rig.grid.state(task), Some(State::Suspended { .. })));
    let said = rig.said(task);
    assert!(
        said.contains("4 MiB") && said.contains("1 MiB") && said.contains("suspended"),
        "{said}"
    );
    // A controller that starts again knows it from its journal.
    rig.restart();
    assert!(rig.said(task).contains("area_limit"), "{}", rig.said(task));
    rig.join(
        "a",
        4,
        forebay_grid::event::Memory::Kept,
        vec![forebay_grid::event::RunReport {
            task,
            attempt: forebay_grid::vocabulary::Attempt(1),
            status: forebay_grid::event::RunStatus::Stopped,
        }],
    );
    assert!(matches!(rig.holds(task, 10)[..], [Effect::Resume { .. }]));
    assert!(matches!(rig.grid.state(task), Some(State::Running { .. })));
    assert_eq!(rig.said(task), "");
}

#[test]
fn a_job_that_was_held_goes_on_when_its_queue_allows_more() {
    for settings in
        ["", "area_limit = \"1 GiB\"\narea_exceeded = \"hold\"", "area_limit = \"1 MiB\""]
    {
        let (mut rig, task) = running(HOLD);
        rig.holds(task, 3 << 20);
        rig.configure(&format!("[[queue]]\nname = \"q\"\n{settings}"));
        assert!(matches!(rig.holds(task, 3 << 20)[..], [Effect::Resume { .. }]), "{settings}");
    }
}

#[test]
fn a_job_is_ended_once_if_its_queue_says_so() {
    let (mut rig, task) = running("area_limit = \"1 MiB\"\narea_exceeded = \"end\"");
    assert!(matches!(rig.holds(task, 3 << 20)[..], [Effect::Kill { .. }]));
    assert!(rig.holds(task, 3 << 20).is_empty());
    rig.exit(task, 143);
    let Some(State::Finished { cause, exit, .. }) = rig.grid.state(task) else { panic!() };
    assert_eq!(cause.state(exit.as_ref()), JobState::AreaLimit);
}

#[test]
fn a_warning_changes_nothing_but_what_is_said() {
    let (mut rig, task) = running("area_limit = \"1 MiB\"");
    assert!(rig.holds(task, 3 << 20).is_empty());
    assert!(matches!(rig.grid.state(task), Some(State::Running { .. })));
    assert!(rig.said(task).contains("3 MiB"), "{}", rig.said(task));
    rig.holds(task, 1);
    assert_eq!(rig.said(task), "");
}

#[test]
fn what_is_said_of_another_start_or_without_a_limit_means_nothing() {
    let (mut rig, task) = running(HOLD);
    let host = || "a".parse().unwrap();
    let attempt = forebay_grid::vocabulary::Attempt(7);
    let sizes = vec![AreaSize { task, attempt, bytes: u64::MAX }];
    assert!(rig.send(Event::AreaSizes { host: host(), sizes }).is_empty());
    let (mut free, task) = running("");
    assert!(free.holds(task, u64::MAX).is_empty());
}

#[test]
fn a_limit_of_nothing_is_refused() {
    let text = "[[queue]]\nname = \"q\"\narea_limit = \"0\"";
    let error = forebay_grid::config::Config::read(text).unwrap_err();
    assert_eq!(error.line, Some(3));
}
