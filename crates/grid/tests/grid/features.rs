//! Features of hosts, by which jobs choose them.

use crate::support::{Rig, refusal, spec};
use forebay_grid::event::Loss;
use forebay_grid::grid::{Explanation, HostObstacle};
use forebay_grid::modify::{Changes, Set};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Checkpoint, JobSpec, Rerun};
use forebay_grid::vocabulary::{Attempt, TaskId};
use forebay_grid::{Effect, Event};

const HOSTS: &str = "[[host]]\nname = \"a\"\nfeatures = [\"ssd\"]\n[[host]]\nname = \"b\"\n\
                     features = [\"ssd\", \"avx512\"]\n[[host]]\nname = \"c\"\n";

fn needs(features: &str) -> JobSpec {
    JobSpec { features: Some(features.parse().unwrap()), ..spec() }
}

#[test]
fn a_job_runs_only_where_the_features_that_it_needs_are() {
    let mut rig = Rig::new(HOSTS, &[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    let on = |rig: &mut Rig, features: &str| {
        let job = rig.submit(needs(features));
        rig.host_of(job)
    };
    assert_eq!(on(&mut rig, "ssd && avx512").as_deref(), Some("b"));
    assert_eq!(on(&mut rig, "ssd").as_deref(), Some("a"));
    // One of which the settings say nothing has none.
    let mut without = [on(&mut rig, "!ssd"), on(&mut rig, "!ssd")];
    without.sort();
    assert_eq!(without.map(Option::unwrap), ["c", "d"]);
    let waits = rig.submit(needs("ssd || avx512"));
    let Some(Explanation::Waits { hosts, .. }) = rig.grid.explain(TaskId::only(waits)) else {
        panic!("it waits")
    };
    let obstacles: Vec<_> = hosts.iter().map(|host| host.obstacle.unwrap()).collect();
    let (full, none) = (HostObstacle::Slots { free: 0 }, HostObstacle::NoFeature);
    assert_eq!(obstacles, [full, full, none, none]);
    assert!(none.lasts() && none.to_string().contains("features"));
    rig.restart();
}

#[test]
fn features_that_no_host_has_are_refused_with_those_that_there_are() {
    let mut rig = Rig::new(HOSTS, &[("a", 1), ("b", 1), ("c", 1)]);
    let refused = refusal(&rig.submit_as("u", needs("sdd")));
    assert_eq!(refused, "no host has the feature sdd: choose from avx512, ssd");
    let refused = refusal(&rig.submit_as("u", needs("avx512 && !ssd")));
    assert_eq!(refused, "no host of this grid has the features avx512 && !ssd");
    let mut rig = Rig::new("", &[("a", 1)]);
    assert!(refusal(&rig.submit_as("u", needs("ssd"))).contains("[[host]] features"));
}

#[test]
fn features_change_with_the_settings_and_with_the_job() {
    let mut rig = Rig::new(HOSTS, &[("b", 1), ("c", 1)]);
    let first = rig.submit(needs("avx512"));
    let job = rig.submit(needs("avx512"));
    assert_eq!((rig.host_of(first).as_deref(), rig.host_of(job)), (Some("b"), None));
    rig.configure(&format!("{HOSTS}features = [\"avx512\"]\n"));
    assert_eq!(rig.host_of(job).as_deref(), Some("c"));
    let other = rig.submit(needs("ssd"));
    assert_eq!(rig.host_of(other), None);
    rig.exit(TaskId::only(job), 0);
    assert_eq!(rig.host_of(other), None);
    let changes = Changes { features: Some(Set::Nothing), ..Changes::default() };
    let by = "u".parse().unwrap();
    rig.send(Event::Modify { by, job: other, changes: Box::new(changes) });
    assert_eq!(rig.host_of(other).as_deref(), Some("c"));
}

#[test]
fn a_job_that_starts_elsewhere_does_so_where_its_features_are_and_is_warned_there() {
    let hosts = format!("[general]\nlease = \"10 d\"\nhost_timeout = \"20 d\"\n{HOSTS}");
    let mut rig = Rig::new(&hosts, &[("a", 1), ("b", 1), ("c", 1)]);
    let task = TaskId::only(rig.submit(JobSpec {
        checkpoint: Checkpoint::Steps,
        rerun: Rerun::Rerunnable,
        time_limit: Some(Period::seconds(300)),
        warning: Some("USR1@1 min".parse().unwrap()),
        ..needs("ssd && !avx512 || avx512")
    }));
    let other = rig.submit(needs("avx512"));
    assert_eq!(
        (rig.host_of(task.job).as_deref(), rig.host_of(other).as_deref()),
        (Some("a"), Some("b"))
    );
    let warned = |effects: &[Effect]| effects.iter().any(|of| matches!(of, Effect::Warn { .. }));
    rig.start(task);
    assert!(warned(&rig.pass(240_000)));
    let (attempt, loss) = (Attempt(1), Loss::Unable("no disk".to_owned()));
    rig.send(Event::Lost { host: "a".parse().unwrap(), task, attempt, loss });
    assert_eq!(rig.host_of(task.job), None, "c has no such feature");
    rig.exit(TaskId::only(other), 0);
    assert_eq!(rig.host_of(task.job).as_deref(), Some("b"));
    // Its time begins anew there.
    rig.start(task);
    assert!(!warned(&rig.pass(239_000)) && warned(&rig.pass(1_000)));
}

#[test]
fn slurm_is_asked_for_features_unless_one_must_not_be_there() {
    let slurm = "[[host]]\nname = \"s\"\nengine = \"slurm\"\nfeatures = [\"ssd\"]\n[[host]]\n\
                 name = \"a\"\nfeatures = [\"avx512\"]\n";
    let mut rig = Rig::new(slurm, &[("s", 4), ("a", 1)]);
    let job = rig.submit(needs("ssd"));
    assert_eq!(rig.host_of(job).as_deref(), Some("s"));
    let refused = refusal(&rig.submit_as("u", needs("ssd && !avx512")));
    assert!(refused.contains("must not have: ssd && !avx512"), "{refused}");
    assert!(refusal(&rig.submit_as("u", needs("ssd && avx512"))).contains("has the features"));
}

#[test]
fn a_queue_is_not_said_to_need_slurm_for_features_that_slurm_lacks() {
    let settings = "[[host]]\nname = \"s\"\nengine = \"slurm\"\nfeatures = [\"ssd\"]\n[[host]]\n\
                    name = \"a\"\nfeatures = [\"avx512\"]\n[[queue]]\nname = \"normal\"\n\
                    hosts = \"s\"\nslurm = [\"--constraint=[x|y]\"]\n";
    let mut rig = Rig::new(settings, &[("s", 4), ("a", 1)]);
    let refused = refusal(&rig.submit_as("u", needs("avx512")));
    assert!(refused.contains("queue normal") && !refused.contains("Slurm"), "{refused}");
    let refused = refusal(&rig.submit_as("u", needs("ssd")));
    assert!(refused.contains("through Slurm only, and --constraint=[x|y]"), "{refused}");
}

#[test]
fn a_constraint_of_a_queue_is_refused_where_it_cannot_be_joined_with_the_features_of_a_job() {
    let names = (0..7).flat_map(|n| [format!("\"a{n}\""), format!("\"b{n}\"")]);
    let names = names.collect::<Vec<_>>().join(", ");
    let host = format!("[[host]]\nname = \"s\"\nengine = \"slurm\"\nfeatures = [{names}]\n");
    let queue = |constraint: &str| {
        format!("{host}[[queue]]\nname = \"normal\"\nslurm = [\"--constraint={constraint}\"]\n")
    };
    let mut rig = Rig::new(&queue("[a0|b0]"), &[("s", 100)]);
    let job = rig.submit(spec());
    assert_eq!(rig.host_of(job).as_deref(), Some("s"));
    let refused = refusal(&rig.submit_as("u", needs("a1")));
    assert!(refused.contains("through Slurm only, and --constraint=[a0|b0]"), "{refused}");
    // Slurm reads one level of parentheses, so this becomes a list of 33 alternatives, and of 66 with two of the queue.
    let pairs = (0..5).map(|n| format!("(a{n} || b{n})")).collect::<Vec<_>>().join(" && ");
    let needed = format!("a6 || ({pairs})");
    rig.configure(&queue("x"));
    let job = rig.submit(needs(&needed));
    assert_eq!(rig.host_of(job).as_deref(), Some("s"));
    rig.configure(&queue("a5|b5"));
    let refused = refusal(&rig.submit_as("u", needs(&needed)));
    for word in ["with the --constraint of its queue", "more than 64 alternatives"] {
        assert!(refused.contains(word), "{refused}");
    }
    // One that waits when the settings change is told why. Another host may take it nevertheless.
    let mut rig = Rig::new(&queue("x"), &[]);
    let waits = rig.submit(needs("a1"));
    rig.configure(&queue("[a0|b0]"));
    rig.join("s", 4, forebay_grid::event::Memory::Kept, Vec::new());
    let Some(Explanation::Waits { hosts, .. }) = rig.grid.explain(TaskId::only(waits)) else {
        panic!("it waits")
    };
    assert_eq!(hosts[0].obstacle, Some(HostObstacle::NoConstraint));
    let other = "[[host]]\nname = \"t\"\nfeatures = [\"a1\"]\n";
    rig.configure(&format!("{other}{}", queue("[a0|b0]")));
    rig.join("t", 4, forebay_grid::event::Memory::Kept, Vec::new());
    assert_eq!(rig.host_of(waits).as_deref(), Some("t"));
    let job = rig.submit(needs("a1"));
    assert_eq!(rig.host_of(job).as_deref(), Some("t"));
}
