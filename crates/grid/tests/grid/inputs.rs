//! Where the inputs of a job lie: it prefers that host, and does not require it.

use crate::support::{Rig, spec};
use forebay_grid::grid::Explanation;
use forebay_grid::spec::{Input, JobSpec};
use forebay_grid::vocabulary::TaskId;

fn reads(homes: &[Option<&str>]) -> JobSpec {
    let input = |home: &Option<&str>| Input {
        path: "/data/x".to_owned(),
        fileset: None,
        folder: None,
        home: home.map(|home| home.parse().unwrap()),
    };
    JobSpec { inputs: homes.iter().map(input).collect(), ..spec() }
}

#[test]
fn a_job_goes_where_most_of_its_inputs_lie_though_the_host_is_busier() {
    let mut rig = Rig::new("", &[("a", 4), ("b", 4)]);
    let job = rig.submit(reads(&[Some("b"), None, Some("b"), Some("a")]));
    assert_eq!(rig.host_of(job).as_deref(), Some("b"));
    let job = rig.submit(reads(&[Some("b")]));
    assert_eq!(rig.host_of(job).as_deref(), Some("b"), "an idle host is there");
    let Some(Explanation::Placed(placement)) = rig.grid.explain(TaskId::only(job)) else {
        panic!()
    };
    assert_eq!(placement.why.near, 1);
    assert!(placement.to_string().contains("the home of 1 input"), "{placement}");
}

#[test]
fn a_job_goes_elsewhere_rather_than_wait() {
    let mut rig = Rig::new("", &[("a", 1), ("b", 1)]);
    let first = rig.submit(reads(&[Some("b")]));
    let second = rig.submit(reads(&[Some("b")]));
    let third = rig.submit(reads(&[Some("b")]));
    let hosts = [first, second].map(|job| rig.host_of(job).unwrap());
    assert_eq!(hosts, ["b", "a"]);
    let Some(Explanation::Waits { hosts, .. }) = rig.grid.explain(TaskId::only(third)) else {
        panic!()
    };
    assert_eq!(hosts.iter().map(|host| host.near).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_list_of_hosts_goes_before_where_inputs_lie() {
    let mut rig = Rig::new("", &[("a", 1), ("b", 1)]);
    let job = rig.submit(JobSpec { hosts: "a+1 b".parse().unwrap(), ..reads(&[Some("b")]) });
    assert_eq!(rig.host_of(job).as_deref(), Some("a"));
}
