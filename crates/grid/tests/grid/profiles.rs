//! What queues and profiles add to jobs: commands around them, defaults, administrators; hosts that starve for I/O.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::Effect;
use forebay_grid::config::{Config, Limits, Load, LoadIndex, Processors};
use forebay_grid::event::Verb;
use forebay_grid::grid::{Explanation, HostObstacle};
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::TaskId;
use forebay_grid::wrap::{Spill, Wrap};

const SETTINGS: &str = r#"
[general]
io_pressure_max = 0.4
[[queue]]
name = "day"
[[queue]]
name = "sas"
admins = ["ann"]
pre = "licence check"
post = "licence give back"
starter = "nice -n 5"
spill = ["sas", "duckdb"]
[[profile]]
name = "month"
queue = "sas"
memory = "2 GiB"
time_limit = "1 h"
pre = "stage in"
environment = { REGION = "eu", MODE = "full" }
"#;

fn wrap(effects: &[Effect]) -> Option<Wrap> {
    effects.iter().find_map(|effect| match effect {
        Effect::Launch { wrap, .. } => wrap.as_deref().cloned(),
        _ => None,
    })
}

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_job_is_surrounded_by_the_commands_of_its_queue_and_its_own() {
    let mut rig = Rig::new(SETTINGS, &[("a", 4)]);
    assert_eq!(wrap(&rig.submit_as("u", spec())), None);
    let own = JobSpec {
        queue: Some("sas".parse().unwrap()),
        pre: Some("mine first".to_owned()),
        post: Some("mine last".to_owned()),
        ..spec()
    };
    let expected = Wrap {
        pre: text(&["licence check", "mine first"]),
        post: text(&["mine last", "licence give back"]),
        starter: Some("nice -n 5".to_owned()),
        spill: vec![Spill::Sas, Spill::Duckdb],
        slurm: Vec::new(),
        fullstimer: false,
    };
    assert_eq!(wrap(&rig.submit_as("u", own)), Some(expected));
    let (name, value) = Spill::Sas.variable("/w", "/u");
    assert_eq!((name, &value[..]), ("SASV9_OPTIONS", "-WORK /w -UTILLOC /u"));
    let empty = JobSpec { pre: Some(" ".to_owned()), ..spec() };
    assert!(refusal(&rig.submit_as("u", empty)).contains("not empty"));
}

#[test]
fn a_job_has_the_stricter_limits_of_its_queue_and_its_host() {
    const BOTH: &str = "[[queue]]\nname = \"few\"\nprocesses_max = 100\n[[queue]]\nname = \"all\"\n\
        [[host]]\nname = \"a\"\nprocessors = \"slots\"\nprocesses_max = 200\n";
    let mut rig = Rig::new(BOTH, &[("a", 4)]);
    let mut limits = |queue: &str| {
        let own = JobSpec { queue: Some(queue.parse().unwrap()), ..spec() };
        let effects = rig.submit_as("u", own);
        let found = effects.iter().find_map(|effect| match effect {
            Effect::Launch { limits, .. } => Some(*limits),
            _ => None,
        });
        found.expect("it starts")
    };
    let slots = |most| Limits { processors: Processors::Slots, processes_max: Some(most) };
    assert_eq!((limits("few"), limits("all")), (slots(100), slots(200)));
    let fault = Config::read(&BOTH.replace("200", "0")).unwrap_err().to_string();
    assert!(fault.contains("processes_max = 0: must be at least 1"), "{fault}");
}

#[test]
fn a_profile_fills_in_what_a_job_leaves_open() {
    let mut rig = Rig::new(SETTINGS, &[("a", 4)]);
    let of = |name: &str| Some(name.parse().unwrap());
    let environment = vec![("MODE".to_owned(), "quick".to_owned())].into();
    let job = rig.submit(JobSpec { profile: of("month"), environment, ..spec() });
    let taken = rig.grid.ledger().job(job).unwrap().spec().clone();
    assert_eq!(taken.queue.as_ref().unwrap().as_str(), "sas");
    assert_eq!((taken.memory_bytes(), taken.time_limit.unwrap().as_ms()), (2 << 30, 3_600_000));
    let variables: Vec<String> =
        taken.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(variables, ["MODE=quick", "REGION=eu"]);
    let own = JobSpec { profile: of("month"), queue: of2("day"), pre: Some("x".into()), ..spec() };
    let job = rig.submit(own);
    let taken = rig.grid.ledger().job(job).unwrap().spec();
    assert_eq!((taken.queue.as_ref().unwrap().as_str(), taken.pre.as_deref()), ("day", Some("x")));
    let refused = refusal(&rig.submit_as("u", JobSpec { profile: of("year"), ..spec() }));
    assert!(refused.contains("no profile year") && refused.contains("month"), "{refused}");
}

fn of2(name: &str) -> Option<forebay_grid::vocabulary::QueueName> {
    Some(name.parse().unwrap())
}

#[test]
fn administrators_of_a_queue_control_jobs_in_it_and_no_others() {
    let mut rig = Rig::new(SETTINGS, &[("a", 4)]);
    let there = rig.submit(JobSpec { queue: of2("sas"), held: true, ..spec() });
    let elsewhere = rig.submit(JobSpec { held: true, ..spec() });
    assert!(refusal(&rig.command("bob", there, Verb::Release)).contains("no job"));
    assert!(refusal(&rig.command("ann", elsewhere, Verb::Release)).contains("no job"));
    assert_eq!(launched(&rig.command("ann", there, Verb::Release)).len(), 1);
}

#[test]
fn a_job_that_is_io_heavy_starts_on_no_host_that_starves_for_io() {
    let mut rig = Rig::new(SETTINGS, &[("a", 4)]);
    let starves = |iop: f64| Load { iop, ..Load::default() };
    rig.load("a", starves(0.6));
    let job = rig.submit(JobSpec { io_heavy: true, ..spec() });
    assert_eq!(rig.host_of(job), None);
    let Some(Explanation::Waits { hosts, .. }) = rig.grid.explain(TaskId::only(job)) else {
        panic!("it waits")
    };
    let Some(HostObstacle::Load(exceeded)) = hosts[0].obstacle else { panic!("{hosts:?}") };
    assert_eq!((exceeded.index, exceeded.value, exceeded.limit), (LoadIndex::Iop, 0.6, 0.4));
    let other = rig.submit(spec());
    assert!(rig.host_of(other).is_some(), "whoever is not flagged starts");
    assert_eq!(launched(&rig.load("a", starves(0.3))).len(), 1);
}

#[test]
fn settings_of_profiles_and_commands_are_checked() {
    for (text, part) in [
        ("[[profile]]\nname = \"a\"\n[[profile]]\nname = \"a\"", "unique"),
        ("[[profile]]\nname = \"a\"\nqueue = \"none\"", "name of a queue"),
        ("[[queue]]\nname = \"a\"\npre = \"\"", "not empty"),
        ("[[queue]]\nname = \"a\"\nspill = [\"excel\"]", "unknown variant"),
        ("[general]\nio_pressure_max = 1.5", "from 0 to 1"),
    ] {
        let refused = Config::read(text).unwrap_err().to_string();
        assert!(refused.contains(part) && refused.contains("line"), "{refused}");
    }
    let unknown = "[[queue]]\nname = \"a\"\nadmins = [\"nobody.here\"]";
    let refused = Config::read_for(unknown, |_| false).unwrap_err().to_string();
    assert!(refused.contains("line 3"), "{refused}");
}
