//! Mixes are read from files and planned.

use std::collections::BTreeMap;

use forebay_workload::Error;
use forebay_workload::mix::{Mix, Options, Plan};

const FREE: &str = r#"
name = "free"
title = "jobs at once"
study = "none"
defaults = { scale = 1.0, concurrent = 3, nodes = 2 }

[parameters]
times = { default = 2, help = "copies" }
place = { default = "data/copy", help = "where" }

[[class]]
name = "copy"
kind = "io"
jobs = { per_node = 5 }
space = { data = { full = "100 MB" }, work = "1 MB" }
[[class.step]]
[class.step.do.repeat]
input = "data/in"
output = "${place}"
times = "${times}"

[[class]]
name = "count"
kind = "computation"
jobs = { per_run = { full = 10, power = 0.5 } }
[[class.step]]
[class.step.do.summary]
input = "data/in"
analysis = ["x"]
"#;

fn sessions() -> String {
    let (head, _) = FREE.split_once("[[class]]").unwrap();
    let mut text = head.replace("concurrent = 3, nodes = 2", "sessions = 40, nodes = 4");
    text += "[sessions]\njobs = 144\nat = 40\nstart_over_seconds = 60\n";
    for (name, share) in [("a", 92), ("b", 12), ("c", 36), ("d", 4), ("e", 4), ("f", 4)] {
        text += &format!(
            "[[class]]\nname = \"{name}\"\nkind = \"io\"\njobs = {{ share = {share} }}\n\
             [[class.step]]\n[class.step.do.summary]\ninput = \"data/in\"\nanalysis = [\"x\"]\n"
        );
    }
    text
}

fn plan(text: &str, options: &Options) -> Plan {
    Mix::parse("test", text, &[]).unwrap().plan(options).unwrap()
}

fn classes(plan: &Plan) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for job in &plan.stages[0].jobs {
        *counts.entry(job.job.class.clone()).or_default() += 1;
    }
    counts
}

#[test]
fn jobs_are_counted_per_node_and_per_run() {
    let options = Options { nodes: Some(4), ..Options::default() };
    let plan = plan(FREE, &options);
    assert_eq!(classes(&plan), BTreeMap::from([("copy".into(), 20), ("count".into(), 10)]));
    for node in 0..4 {
        let here = plan.stages[0].jobs.iter().filter(|job| job.node == node);
        let copies = here.filter(|job| job.job.class == "copy").count();
        assert_eq!(copies, 5, "each node has its part of each class");
    }
    let names: std::collections::HashSet<_> =
        plan.stages[0].jobs.iter().map(|job| &job.job.name).collect();
    assert_eq!(names.len(), 30, "names are unique");
}

#[test]
fn the_scale_changes_amounts_by_their_powers() {
    let options = Options { scale: Some("0.01".parse().unwrap()), ..Options::default() };
    let plan = plan(FREE, &options);
    assert_eq!(classes(&plan), BTreeMap::from([("copy".into(), 10), ("count".into(), 1)]));
    let space = plan.space();
    assert_eq!((space.data, space.work, space.util), (10 * 1_000_000, 6 * 1_000_000, 0));
}

#[test]
fn the_same_seed_gives_the_same_plan_and_another_another() {
    let seeded = |seed| plan(FREE, &Options { seed, ..Options::default() });
    assert_eq!(seeded(7), seeded(7));
    assert_ne!(seeded(7), seeded(8));
}

#[test]
fn sessions_share_the_jobs_of_the_study() {
    for (sessions_at, jobs) in [(10, 36), (20, 72), (30, 108), (40, 144), (80, 288)] {
        let options = Options { sessions: Some(sessions_at), ..Options::default() };
        let plan = plan(&sessions(), &options);
        assert_eq!(plan.job_count(), jobs, "{sessions_at} sessions");
        let stage = &plan.stages[0];
        let firsts = stage.jobs.iter().filter(|job| job.after.is_none()).count();
        assert_eq!(firsts, sessions_at as usize);
        for (at, job) in stage.jobs.iter().enumerate() {
            if let Some(before) = job.after {
                assert!(before < at, "a job follows one that comes before it");
                assert_eq!(stage.jobs[before].session, job.session);
            }
            assert!((0.0..60.0).contains(&job.due_seconds));
            assert_eq!(job.node, job.session.unwrap() % 4);
        }
    }
    let forty = plan(&sessions(), &Options::default());
    assert_eq!(classes(&forty).into_values().collect::<Vec<_>>(), [87, 11, 34, 4, 4, 4]);
}

#[test]
fn parameters_are_set_by_name() {
    let settings = [("times".into(), "7".into()), ("place".into(), "data/other".into())];
    let mix = Mix::parse("test", FREE, &settings).unwrap();
    let text = toml::to_string(&mix.classes[0].steps[0]).unwrap();
    assert!(text.contains("times = 7") && text.contains("data/other"), "{text}");
    assert_eq!(mix.parameters["times"].default.as_integer(), Some(7));
    let unknown = Mix::parse("test", FREE, &[("tmies".into(), "7".into())]).unwrap_err();
    assert!(unknown.to_string().contains("place, times"), "{unknown}");
    let wrong = Mix::parse("test", FREE, &[("times".into(), "many".into())]).unwrap_err();
    assert!(wrong.to_string().starts_with("--set times=many: invalid type"), "{wrong}");
}

#[test]
fn a_mistake_is_shown_with_its_line() {
    for (from, to, expected) in [
        ("kind = \"io\"", "kind = \"o\"", "line 13"),
        ("\"${times}\"", "\"${tims}\"", "line 20: there is no parameter \"tims\""),
        ("name = \"count\"", "name = \"copy\"", "class \"copy\" is defined twice"),
        ("name = \"count\"", "name = \"a/b\"", "letters"),
        ("jobs = { per_node = 5 }", "jobs = { share = 5 }", "class copy: jobs are a share"),
        ("scale = 1.0", "scale = -1.0", "line 5"),
        ("concurrent = 3, ", "", "defaults.concurrent"),
        ("kind = \"io\"", "kind = \"io\"\nstages = [\"x\"]", "no stage \"x\""),
    ] {
        assert!(FREE.contains(from), "{from}");
        let error = Mix::parse("test", &FREE.replacen(from, to, 1), &[]).unwrap_err();
        assert!(matches!(error, Error::Mix { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{to}: {error}");
    }
}

#[test]
fn too_many_jobs_are_refused() {
    let text = FREE.replace("per_node = 5", "per_node = 100000");
    let error = Mix::parse("test", &text, &[]).unwrap().plan(&Options::default()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Analytics(forebay_analytics::Error::Setting { setting: "scale", .. })
        ),
        "{error}"
    );
}
