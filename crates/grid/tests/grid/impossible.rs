//! What can never start is refused, or ends: nobody waits for it for ever.

use crate::support::{Rig, refusal, spec};
use forebay_base::ByteSize;
use forebay_grid::event::{Memory, Verb};
use forebay_grid::grid::State;
use forebay_grid::spec::JobSpec;
use forebay_grid::task::Cause;
use forebay_grid::vocabulary::{JobId, TaskId};
use forebay_grid::{Effect, config::OnNever};

fn on(text: &str) -> JobSpec {
    JobSpec { depends: Some(text.parse().unwrap()), ..spec() }
}

fn cause(rig: &Rig, job: JobId) -> Option<Cause> {
    match rig.grid.state(TaskId::only(job)) {
        Some(State::Finished { cause, .. }) => Some(cause),
        _ => None,
    }
}

#[test]
fn what_no_host_of_the_grid_could_ever_take_is_refused_with_the_reason() {
    let settings = "[[queue]]\nname = \"q\"\n[[queue]]\nname = \"far\"\nhosts = \"b\"\n\
                    [[host]]\nname = \"c\"\nslots = 16\nmemory = \"4 GiB\"";
    let mut rig = Rig::new(settings, &[("a", 4), ("b", 2)]);
    let gib = |gib| Some(ByteSize::gib(gib));
    let queue = |name: &str| Some(name.parse().unwrap());
    for (job, words) in [
        (JobSpec { slots: 100, ..spec() }, "it needs 100 slots on one host"),
        (JobSpec { slots: 3, queue: queue("far"), ..spec() }, "b, has 2 slots"),
        (JobSpec { slots: 5, memory: gib(5), ..spec() }, "5 slots and 5 GiB of memory on one host"),
        (
            JobSpec { memory: gib(9), hosts: "a".parse().unwrap(), ..spec() },
            "a, has 4 slots and 8 GiB",
        ),
        (
            JobSpec { memory: Some(ByteSize(9_000_000_000_000)), ..spec() },
            "it needs 1 slot and 8382 GiB of memory on one host",
        ),
        (JobSpec { hosts: "nosuch".parse().unwrap(), ..spec() }, "there is no host nosuch"),
        (JobSpec { hosts: "a nosuch".parse().unwrap(), ..spec() }, "there is no host nosuch"),
        (
            JobSpec { hosts: "a".parse().unwrap(), queue: queue("far"), ..spec() },
            "queue far and its own list of hosts",
        ),
    ] {
        let said = refusal(&rig.submit_as("u", job));
        assert!(said.contains(words), "{said}");
    }
    // A host that is yet to join is known by the settings; one whose size nobody knows may have any.
    rig.submit(JobSpec { slots: 16, ..spec() });
    rig.submit(JobSpec { slots: 1, hosts: "c".parse().unwrap(), ..spec() });
    let mut empty = Rig::new("", &[]);
    let job = empty.submit(JobSpec { slots: 100, hosts: "later".parse().unwrap(), ..spec() });
    empty.join("later", 100, Memory::Kept, Vec::new());
    assert!(empty.host_of(job).is_some());
    empty.restart();
    empty.submit(JobSpec { slots: 101, ..spec() });
}

#[test]
fn a_job_whose_slots_exceed_what_a_user_may_use_is_refused() {
    let mut rig = Rig::new("[general]\nuser_slots_max = 2", &[("a", 4)]);
    let said = refusal(&rig.submit_as("u", JobSpec { slots: 3, ..spec() }));
    assert!(said.contains("at most 2"), "{said}");
}

#[test]
fn a_dependency_that_can_never_be_met_is_refused_at_submission() {
    let mut rig = Rig::new("", &[("a", 4)]);
    let failed = rig.submit(spec());
    rig.exit(TaskId::only(failed), 3);
    let said = refusal(&rig.submit_as("u", on("done(1) && ended(1)")));
    assert_eq!(said, "it could never start: done(1) can never become true: job 1 failed");
    assert!(refusal(&rig.submit_as("u", on("done(77)"))).contains("no job 77"));
    rig.submit(on("done(1) || exit(1, 3)"));
    let kept = rig.submit(JobSpec { on_never: Some(OnNever::Keep), ..on("done(1)") });
    assert!(matches!(rig.grid.state(TaskId::only(kept)), Some(State::Pending { .. })));
    rig.command("u", failed, Verb::Requeue);
    rig.exit(TaskId::only(failed), 0);
    assert!(rig.host_of(kept).is_some());
}

#[test]
fn jobs_end_when_what_they_wait_for_can_no_longer_come() {
    let mut rig = Rig::new("", &[("a", 4)]);
    let first = rig.submit(spec());
    let second = rig.submit(on("done(1)"));
    let held = rig.submit(JobSpec { held: true, ..on("done(1)") });
    let third = rig.submit(on("done(2)"));
    let after = rig.submit(on("ended(3) && exit(2)"));
    let kept = rig.submit(JobSpec { on_never: Some(OnNever::Keep), ..on("done(1)") });
    let effects = rig.exit(TaskId::only(first), 1);
    for job in [second, held, third] {
        assert_eq!(cause(&rig, job), Some(Cause::DependencyNever), "{job}");
        assert!(
            effects
                .iter()
                .any(|of| matches!(of, Effect::JobFinished { job: of, .. } if *of == job)),
            "whoever waits for {job} is told"
        );
    }
    assert!(rig.host_of(after).is_some(), "what ended so has ended and failed");
    assert_eq!(cause(&rig, kept), None);
    let said = refusal(&rig.command("u", second, Verb::Requeue));
    assert!(said.contains("done(1) can never become true: job 1 failed"), "{said}");
    rig.restart();
    // Settings that end such jobs concern those that wait as well.
    assert_eq!(cause(&rig, kept), None);
}

#[test]
fn settings_that_end_jobs_which_wait_in_vain_hold_for_those_that_wait() {
    let mut rig = Rig::new("[general]\ndependency_never = \"keep\"", &[("a", 4)]);
    let first = rig.submit(spec());
    let waits = rig.submit(on("done(1)"));
    rig.exit(TaskId::only(first), 1);
    assert_eq!(cause(&rig, waits), None);
    rig.configure("");
    assert_eq!(cause(&rig, waits), Some(Cause::DependencyNever));
}

#[test]
fn a_task_that_no_host_is_left_for_ends_with_its_exit_value() {
    let mut rig = Rig::new("", &[("a", 1), ("b", 1)]);
    let exits = "EXCLUDE(98)".parse().unwrap();
    let job = rig.submit(JobSpec { requeue_exits: exits, ..spec() });
    let task = TaskId::only(job);
    let first = rig.host_of(job);
    rig.exit(task, 98);
    assert!(rig.host_of(job).is_some() && rig.host_of(job) != first);
    rig.exit(task, 98);
    assert_eq!(cause(&rig, job), Some(Cause::Exited));
}
