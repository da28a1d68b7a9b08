use forebay_grid::event::Loss;

use forebay_grid::spec::JobSpec;

use super::*;
use crate::agent::slurm::start_of_job_7;
use crate::run::Allocation;

const LEASE_MS: u64 = 60_000;

fn held(stage: Stage) -> Held {
    let mut task = start_of_job_7(JobSpec::default());
    task.allocation = Some(Allocation { orders: "/g".into(), lease_ms: LEASE_MS });
    Held::new(&task, stage)
}

fn row(state: &str, reason: &str) -> Option<Row> {
    let text = |text: &str| text.to_owned();
    Some(Row {
        id: 17,
        state: text(state),
        node: text("n1"),
        mark: text("m"),
        reason: text(reason),
    })
}

fn due(held: &mut Held, now_ms: u64) -> Option<Do> {
    held.due(now_ms, String::new)
}

fn started() -> Said {
    let mut said = Said::default();
    said.started = true;
    said
}

fn ended(exit: Exit) -> Said {
    let mut said = started();
    said.end = Some(End::Exited { exit, usage: None });
    said
}

#[test]
fn what_slurm_may_have_is_not_submitted_again_before_slurm_says_that_it_has_it_not() {
    let mut held = held(Stage::Unsent);
    assert!(matches!(due(&mut held, 1_000), Some(Do::Submit)));
    assert!(due(&mut held, 1_000).is_none(), "it is being asked");
    held.put_off("no answer", Stage::Unsure { since_ms: 1_100 }, 1_100);
    assert!(due(&mut held, 90_000).is_none());
    // A question that was asked before says nothing.
    held.see(None, 1_050, 1_200);
    assert!(matches!(held.stage, Stage::Unsure { .. }));
    held.see(None, 1_150, 1_200);
    assert!(due(&mut held, 2_000).is_none(), "it is left alone for a while");
    assert!(matches!(due(&mut held, 2_200), Some(Do::Submit)));
    held.put_off("no answer", Stage::Unsure { since_ms: 2_300 }, 2_300);
    held.see(row("PENDING", "Priority"), 2_400, 2_500);
    assert_eq!(held.stage, Stage::Sent { id: 17 });
    assert_eq!(held.fresh_note().as_deref(), Some("Slurm job 17 waits: Priority"));
    assert!(due(&mut held, 99_000).is_none());
}

#[test]
fn what_waits_is_cancelled_and_what_runs_is_told_first() {
    let mut unsent = held(Stage::Unsent);
    unsent.kill(5);
    assert!(matches!(
        due(&mut unsent, 6),
        Some(Do::End(End::Exited { exit: Exit::Signal(15), .. }))
    ));
    let mut waits = held(Stage::Sent { id: 17 });
    waits.see(row("PENDING", "Priority"), 1, 2);
    waits.kill(10_000);
    assert!(matches!(due(&mut waits, 10_000), Some(Do::Cancel(17))));
    assert!(due(&mut waits, 10_500).is_none());
    assert!(matches!(due(&mut waits, 14_000), Some(Do::Cancel(17))), "Slurm did not answer");
    let mut runs = held(Stage::Sent { id: 17 });
    runs.see(row("RUNNING", "None"), 1, 2);
    assert!(runs.hear(started()).is_none());
    runs.kill(10_000);
    assert!(matches!(due(&mut runs, 10_000), Some(Do::Order("kill"))));
    assert!(due(&mut runs, 20_000).is_none());
    assert!(matches!(due(&mut runs, 31_000), Some(Do::Cancel(17))), "it does not obey");
    let end = runs.hear(ended(Exit::Signal(15)));
    assert!(matches!(end, Some(End::Exited { exit: Exit::Signal(15), .. })));
}

#[test]
fn only_what_the_agent_holds_is_released() {
    let mut held = held(Stage::Sent { id: 17 });
    held.see(row("PENDING", "JobHeldUser"), 1, 2);
    assert!(due(&mut held, 10_000).is_none(), "its user holds it");
    held.see(row("PENDING", "Priority"), 10_001, 10_002);
    held.wants_stop = true;
    assert!(matches!(due(&mut held, 20_000), Some(Do::Hold(17))));
    held.is_held = true;
    held.see(row("PENDING", "JobHeldUser"), 20_001, 20_002);
    assert!(due(&mut held, 30_000).is_none());
    held.wants_stop = false;
    assert!(matches!(due(&mut held, 40_000), Some(Do::Release(17))));
}

#[test]
fn an_end_that_slurm_has_seen_waits_for_what_the_holder_said() {
    let mut held = held(Stage::Sent { id: 17 });
    held.hear(started());
    held.see(row("COMPLETED", "None"), 1, 1_000);
    assert!(held.may_say() && due(&mut held, 5_000).is_none());
    // Forgotten meanwhile, which says nothing new.
    held.see(None, 5_000, 5_100);
    assert!(due(&mut held, 10_900).is_none());
    let Some(Do::End(End::Lost(Loss::Slurm(state)))) = due(&mut held, 11_000) else {
        panic!("nobody says how it ended")
    };
    assert_eq!(state, "COMPLETED");
}

#[test]
fn what_slurm_has_given_up_is_over_once_its_holder_cannot_run_any_more() {
    for (lost, named) in [(row("NODE_FAIL", "None"), "NODE_FAIL"), (None, UNKNOWN)] {
        let mut held = held(Stage::Sent { id: 17 });
        held.see(row("RUNNING", "None"), 1, 2);
        held.hear(started());
        held.see(lost.clone(), 1_000, 1_000);
        assert!(matches!(due(&mut held, 500), Some(Do::Fence)));
        let much_later = 1_000 + 10 * LEASE_MS;
        assert!(matches!(due(&mut held, much_later), Some(Do::Fence)), "it could not be told so");
        held.fenced(1_000);
        assert!(due(&mut held, 1_000 + LEASE_MS).is_none(), "its lease may last");
        let over = due(&mut held, 1_000 + LEASE_MS + LEASE_MS / 10 + 1_000);
        assert!(matches!(over, Some(Do::End(End::Lost(Loss::Slurm(state)))) if state == named));
        // Or it obeys before.
        let end = held.hear(ended(Exit::Signal(9)));
        assert!(matches!(end, Some(End::Lost(Loss::Slurm(_)))));
        let end = held.hear(ended(Exit::Code(0)));
        assert!(
            matches!(end, Some(End::Exited { exit: Exit::Code(0), .. })),
            "it had ended before"
        );
    }
}

#[test]
fn a_node_that_is_back_before_the_end_is_concluded_keeps_its_job() {
    let mut held = held(Stage::Sent { id: 17 });
    held.see(row("COMPLETED", "None"), 1, 1_000);
    held.see(row("RUNNING", "None"), 1_100, 1_200);
    assert!(due(&mut held, 50_000).is_none());
}

#[test]
fn steps_are_signalled_by_slurm_again_as_long_as_it_does_not_answer() {
    let signal = |due| match due {
        Some(Do::SignalSteps(17, signal)) => signal,
        other => panic!("{other:?}"),
    };
    let warned_as = |warning: &str| {
        let warning = Some(warning.parse().unwrap());
        let task = start_of_job_7(JobSpec { warning, ..JobSpec::default() });
        let mut held = Held::new(&task, Stage::Sent { id: 17 });
        held.hear(started());
        held.warn_steps();
        held
    };
    let mut held = warned_as("steps:USR1@5min");
    let warn = StepSignal::Warn(WarningSignal::Usr1);
    assert_eq!(signal(due(&mut held, 50_000)), warn);
    assert!(due(&mut held, 60_000).is_none());
    // Slurm did not answer.
    held.note_signalled(warn, false);
    assert_eq!(signal(due(&mut held, 60_000)), warn);
    held.wants_stop = true;
    assert!(due(&mut held, 64_000).is_none(), "one signal after the other");
    held.note_signalled(warn, true);
    let mut held = warned_as("steps:USR1@5min");
    assert_eq!(signal(due(&mut held, 60_000)), warn);
    held.note_signalled(warn, true);
    held.wants_stop = true;
    assert!(due(&mut held, 61_000).is_none(), "Slurm is left alone for a moment");
    assert_eq!(signal(due(&mut held, 63_000)), StepSignal::Stop);
    held.note_signalled(StepSignal::Stop, false);
    assert_eq!(signal(due(&mut held, 66_000)), StepSignal::Stop);
    held.wants_stop = false;
    assert!(due(&mut held, 70_000).is_none(), "the stop could come last");
    held.note_signalled(StepSignal::Stop, true);
    assert_eq!(signal(due(&mut held, 70_000)), StepSignal::Continue);
    held.note_signalled(StepSignal::Continue, true);
    // Steps that are stopped go on to end in order.
    held.wants_stop = true;
    assert_eq!(signal(due(&mut held, 75_000)), StepSignal::Stop);
    held.note_signalled(StepSignal::Stop, true);
    held.kill(80_000);
    assert!(matches!(due(&mut held, 80_000), Some(Do::Order("kill"))));
    assert_eq!(signal(due(&mut held, 80_000)), StepSignal::Continue);
    // The holder reaches all others.
    assert!(due(&mut warned_as("program:USR1@5min"), 50_000).is_none());
}

#[test]
fn what_slurm_was_not_told_before_the_agent_was_killed_is_told_by_the_next_one() {
    let found = |warned_steps, ordered| {
        let warning = Some("steps:USR1@5min".parse().unwrap());
        let task = start_of_job_7(JobSpec { warning, ..JobSpec::default() });
        let mut held = Held::new(&task, Stage::Sent { id: 17 });
        held.started = true;
        let known = Known { task, id: Some(17), is_held: false, warned_steps, end: None };
        held.recall(&known, ordered);
        held
    };
    let told = |held: &mut Held, now_ms| match due(held, now_ms) {
        Some(Do::SignalSteps(17, signal)) => {
            held.note_signalled(signal, true);
            Some(signal)
        }
        None => None,
        other => panic!("{other:?}"),
    };
    let warn = Some(StepSignal::Warn(WarningSignal::Usr1));
    // It was warned twice, of which Slurm knows once; that it goes on, Slurm may not know.
    let mut held = found(1, Ordered { warnings: 2, stops: Some(false) });
    assert_eq!(told(&mut held, 10_000), warn);
    assert_eq!(held.warned_steps, 2);
    assert_eq!(told(&mut held, 20_000), Some(StepSignal::Continue));
    assert_eq!(told(&mut held, 30_000), None);
    // A third one comes, of which the file of orders could not be written.
    held.warn_steps();
    assert_eq!(told(&mut held, 40_000), warn);
    assert_eq!(told(&mut found(3, Ordered { warnings: 2, stops: None }), 10_000), None);
    let mut held = found(0, Ordered { warnings: 0, stops: Some(true) });
    assert!(held.wants_stop);
    assert_eq!(told(&mut held, 10_000), Some(StepSignal::Stop));
    assert_eq!(told(&mut held, 20_000), None);
}
