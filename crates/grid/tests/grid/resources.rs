//! Counted resources, devices, and hosts that a job has for itself.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::Effect;
use forebay_grid::config::Config;
use forebay_grid::event::Verb;
use forebay_grid::grid::{Explanation, HostObstacle, Reason};
use forebay_grid::spec::{JobSpec, Sharing};
use forebay_grid::vocabulary::{JobId, TaskId};

const SETTINGS: &str = "[resources]\nsas = 3\n[[host]]\nname = \"a\"\nresources = { gpu = 4 }\n\
                        [[host]]\nname = \"b\"\nresources = { gpu = 1 }\n";

fn needs(resources: &str) -> JobSpec {
    JobSpec { resources: resources.parse().unwrap(), ..spec() }
}

fn rig() -> Rig {
    Rig::new(SETTINGS, &[("a", 8), ("b", 8)])
}

/// The devices of the job that was started by this.
fn gpus(effects: &[Effect]) -> Option<Vec<u32>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Launch { gpus, .. } => gpus.clone(),
        _ => None,
    })
}

fn explained(rig: &Rig, job: JobId) -> (Vec<Reason>, Vec<Option<HostObstacle>>) {
    match rig.grid.explain(TaskId::only(job)) {
        Some(Explanation::Waits { reasons, hosts }) => {
            (reasons, hosts.into_iter().map(|host| host.obstacle).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_device_has_two_jobs() {
    let mut rig = rig();
    assert_eq!(gpus(&rig.submit_as("u", needs("gpu:2"))), Some(vec![0, 1]));
    assert_eq!(gpus(&rig.submit_as("u", needs("gpu:2"))), Some(vec![2, 3]));
    assert_eq!(gpus(&rig.submit_as("u", needs("gpu"))), Some(vec![0]), "that of b");
    assert_eq!(gpus(&rig.submit_as("u", spec())), Some(vec![]), "it asked for none");
    let waits = rig.submit(needs("gpu:2"));
    let (reasons, hosts) = explained(&rig, waits);
    assert_eq!(reasons[0], Reason::NoHostFits);
    let short = HostObstacle::Resource { free: 0 };
    assert_eq!(hosts, [Some(short), Some(HostObstacle::ResourceTooSmall { total: 1 })]);
    // The numbers that became free are given out again, also after a restart of the controller.
    let effects = rig.exit(TaskId::only(JobId(2)), 0);
    assert_eq!(gpus(&effects), Some(vec![2, 3]));
    rig.restart();
    let report =
        |view: &forebay_grid::grid::ResourceView| (view.name.to_string(), view.total, view.used);
    let all: Vec<_> = rig.grid.resources().iter().map(report).collect();
    assert_eq!(all, [("sas".into(), 3, 0), ("gpu".into(), 4, 4), ("gpu".into(), 1, 1)]);
}

#[test]
fn licences_are_not_given_out_twice_and_whoever_needs_none_passes() {
    let mut rig = rig();
    let first = rig.submit(needs("sas:2"));
    let second = rig.submit(needs("sas:2"));
    let third = rig.submit(needs("sas:1"));
    assert_eq!(rig.host_of(second), None);
    assert!(rig.host_of(third).is_some());
    let (reasons, _) = explained(&rig, second);
    let name = "sas".parse().unwrap();
    assert_eq!(reasons, [Reason::Resource { name, needed: 2, used: 3, most: 3 }]);
    assert!(reasons[0].to_string().contains("needs 2 of sas"), "{}", reasons[0]);
    rig.exit(TaskId::only(first), 0);
    assert!(rig.host_of(second).is_some());
    // Fewer than are in use: nothing is taken away, and nothing given.
    rig.configure(&SETTINGS.replace("sas = 3", "sas = 2"));
    let fourth = rig.submit(needs("sas:1"));
    rig.exit(TaskId::only(third), 0);
    assert_eq!(rig.host_of(fourth), None);
    rig.exit(TaskId::only(second), 0);
    assert!(rig.host_of(fourth).is_some());
}

#[test]
fn a_job_that_lacks_only_licences_is_not_passed_for_ever_by_those_that_need_fewer() {
    let mut rig = rig();
    let after = "[general]\nreserve_after = \"60 s\"\nlease = \"10 h\"\nhost_timeout = \"11 h\"\n";
    rig.configure(&format!("{after}{SETTINGS}"));
    // The lease that holds is the longer one from the next report on.
    for host in ["a", "b"] {
        rig.load(host, Default::default());
    }
    let mut running: Vec<JobId> = (0..3).map(|_| rig.submit(needs("sas:1"))).collect();
    let wide = rig.submit(needs("sas:3"));
    let passes = |rig: &mut Rig, running: &mut Vec<JobId>| {
        rig.now += 1000;
        rig.exit(TaskId::only(running.remove(0)), 0);
        let next = rig.submit(needs("sas:1"));
        if rig.host_of(next).is_some() {
            running.push(next);
        }
        (rig.host_of(next).is_some(), next)
    };
    for _ in 0..50 {
        assert!(passes(&mut rig, &mut running).0, "others may pass for a while");
    }
    rig.pass(10_000);
    let (passed, kept) = passes(&mut rig, &mut running);
    assert!(!passed);
    let (reasons, _) = explained(&rig, kept);
    assert_eq!(reasons, [Reason::ResourceKept { name: "sas".parse().unwrap(), job: wide }]);
    assert!(reasons[0].to_string().contains(&format!("kept for job {wide}")));
    let needs_none = rig.submit(spec());
    assert!(rig.host_of(needs_none).is_some());
    while let Some(job) = running.pop() {
        rig.exit(TaskId::only(job), 0);
    }
    assert!(rig.host_of(wide).is_some() && rig.host_of(kept).is_none());
    rig.exit(TaskId::only(wide), 0);
    assert!(rig.host_of(kept).is_some());
}

#[test]
fn licences_that_were_kept_for_a_job_are_given_out_when_it_is_killed_or_held() {
    for verb in [Verb::Kill, Verb::Hold] {
        let mut rig = rig();
        let general =
            "[general]\nreserve_after = \"1 s\"\nlease = \"10 h\"\nhost_timeout = \"11 h\"\n";
        rig.configure(&format!("{general}{SETTINGS}"));
        for host in ["a", "b"] {
            rig.load(host, Default::default());
        }
        let first = rig.submit(needs("sas:1"));
        let wide = rig.submit(needs("sas:3"));
        let passes = rig.submit(needs("sas:1"));
        assert!(rig.host_of(first).is_some() && rig.host_of(passes).is_some());
        rig.pass(2000);
        let kept = rig.submit(needs("sas:1"));
        assert!(rig.host_of(wide).is_none() && rig.host_of(kept).is_none());
        rig.command("u", wide, verb);
        assert!(rig.host_of(kept).is_some(), "after {verb:?}");
    }
}

#[test]
fn licences_stay_kept_for_a_job_while_only_queues_before_its_own_have_a_turn() {
    let mut rig = rig();
    let general = "[general]\nreserve_after = \"1 s\"\nlease = \"10 h\"\nhost_timeout = \"11 h\"\n";
    let queues = "[[queue]]\nname = \"urgent\"\npriority = 9\n[[queue]]\nname = \"normal\"\n";
    rig.configure(&format!("{general}{SETTINGS}{queues}"));
    for host in ["a", "b"] {
        rig.load(host, Default::default());
    }
    let of = |queue: &str, resources: &str| JobSpec {
        queue: Some(queue.parse().unwrap()),
        ..needs(resources)
    };
    rig.submit(of("normal", "sas:1"));
    let wide = rig.submit(of("normal", "sas:3"));
    rig.submit(of("normal", "sas:1"));
    rig.pass(2000);
    let waits = rig.submit(of("normal", "sas:1"));
    let kept = [Reason::ResourceKept { name: "sas".parse().unwrap(), job: wide }];
    assert_eq!(explained(&rig, waits).0, kept);
    let urgent = rig.submit(of("urgent", "gpu"));
    assert!(rig.host_of(urgent).is_some());
    assert_eq!(explained(&rig, waits).0, kept);
}

#[test]
fn a_job_that_asks_for_resources_that_are_not_there_is_refused() {
    let mut rig = rig();
    for (resources, part) in
        [("sas:4", "the grid has 3"), ("gpu:5", "a has 4"), ("tpu:1", "choose from gpu, sas")]
    {
        let refused = refusal(&rig.submit_as("u", needs(resources)));
        assert!(refused.contains(part), "{refused}");
    }
    let on_b = JobSpec { hosts: "b".parse().unwrap(), ..needs("gpu:2") };
    refusal(&rig.submit_as("u", on_b));
    let mut none = Rig::new("", &[("a", 1)]);
    assert!(refusal(&none.submit_as("u", needs("gpu:1"))).contains("counts no resources"));
}

#[test]
fn settings_of_resources_are_checked() {
    for (text, part) in [
        ("[resources]\nsas = 1000001", "at most 1000000"),
        ("[resources]\ngpu = 1", "[[host]]"),
        ("[resources]\nsas = 1\n[[host]]\nname = \"a\"\nresources = { sas = 1 }", "not in both"),
        ("[[host]]\nname = \"a\"\nresources = { gpu = 1025 }", "at most 1024"),
    ] {
        let refused = Config::read(text).unwrap_err().to_string();
        assert!(refused.contains(part) && refused.contains("line"), "{refused}");
    }
}

fn exclusive(slots: u32) -> JobSpec {
    JobSpec { slots, sharing: Sharing::Exclusive, ..spec() }
}

#[test]
fn an_exclusive_job_has_its_host_for_itself() {
    let mut rig = Rig::new("", &[("a", 4)]);
    let first = rig.submit(spec());
    let alone = rig.submit(exclusive(2));
    let (_, hosts) = explained(&rig, alone);
    assert_eq!(hosts, [Some(HostObstacle::Busy { jobs: 1 })]);
    rig.exit(TaskId::only(first), 0);
    assert!(rig.host_of(alone).is_some());
    let next = rig.submit(spec());
    let (_, hosts) = explained(&rig, next);
    assert_eq!(hosts, [Some(HostObstacle::Exclusive { job: alone })]);
    rig.restart();
    let runs = vec![forebay_grid::event::RunReport {
        task: TaskId::only(alone),
        attempt: forebay_grid::vocabulary::Attempt(1),
        status: forebay_grid::event::RunStatus::Running,
    }];
    rig.join("a", 4, forebay_grid::event::Memory::Kept, runs);
    assert_eq!(rig.host_of(next), None, "it holds after a restart as well");
    let effects = rig.exit(TaskId::only(alone), 0);
    assert_eq!(launched(&effects).len(), 1);
}

#[test]
fn an_exclusive_job_is_not_passed_for_ever() {
    let mut rig = Rig::new("[general]\nreserve_after = \"1 min\"", &[("a", 4)]);
    let limited = || JobSpec { time_limit: Some("100 s".parse().unwrap()), ..spec() };
    let first = rig.submit(limited());
    rig.start(TaskId::only(first));
    let alone = rig.submit(exclusive(1));
    // It would end after the exclusive job could start.
    let longer = JobSpec { time_limit: Some("200 s".parse().unwrap()), ..spec() };
    let longer = rig.submit(longer);
    assert_eq!(rig.host_of(longer), None);
    let shorter = JobSpec { time_limit: Some("50 s".parse().unwrap()), ..spec() };
    let shorter = rig.submit(shorter);
    assert!(rig.host_of(shorter).is_some(), "it ends before that");
    rig.exit(TaskId::only(shorter), 0);
    rig.exit(TaskId::only(first), 0);
    assert!(rig.host_of(alone).is_some());
}
