//! Job groups: limits, which jobs are in them, and what becomes of both.

use crate::support::{Rig, refusal, spec};
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::group::{GroupVerb, JobGroup};
use forebay_grid::modify::{Changes, Set};
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, TaskId};
use forebay_grid::{Effect, Event};

fn group(path: &str) -> JobGroup {
    path.parse().unwrap()
}

fn within(path: &str) -> JobSpec {
    JobSpec { group: Some(group(path)), ..spec() }
}

impl Rig {
    fn group(&mut self, path: &str, verb: GroupVerb) -> Vec<Effect> {
        self.send(Event::Group { by: "u".parse().unwrap(), group: group(path), verb })
    }

    fn limit(&mut self, path: &str, limit: Option<u32>) {
        let effects = self.group(path, GroupVerb::Limit { limit });
        assert!(matches!(effects[..], [Effect::Obeyed { .. }, ..]), "{effects:?}");
    }

    fn runs(&self, jobs: &[JobId]) -> Vec<bool> {
        jobs.iter().map(|job| self.host_of(*job).is_some()).collect()
    }
}

#[test]
fn a_limit_holds_for_a_group_with_those_in_it_and_what_is_free_again_is_used() {
    let mut rig = Rig::new("", &[("a", 10)]);
    rig.limit("/risk", Some(2));
    rig.limit("/risk/daily", Some(1));
    let jobs: Vec<JobId> = ["/risk/daily", "/risk/daily", "/risk/eu", "/risk", "/other"]
        .map(|path| rig.submit(within(path)))
        .to_vec();
    let free = rig.submit(spec());
    assert_eq!(rig.runs(&jobs), [true, false, true, false, true]);
    assert!(rig.host_of(free).is_some());
    let Some(Explanation::Waits { reasons, .. }) = rig.grid.explain(TaskId::only(jobs[3])) else {
        panic!("it waits")
    };
    let full = Reason::GroupFull { group: group("/risk"), used: 2, most: 2 };
    assert_eq!(reasons, std::slice::from_ref(&full));
    assert_eq!(full.to_string(), "job group /risk has 2 of at most 2 tasks on hosts");
    // Others' groups of the same path are others.
    rig.submit_as("v", within("/risk"));
    // An end makes room, in the order in which the jobs came.
    rig.exit(TaskId::only(jobs[0]), 0);
    assert_eq!(rig.runs(&jobs[1..4]), [true, true, false]);
    // So do a higher limit, and a journal that is read again keeps all of it.
    rig.restart();
    rig.join("a", 10, forebay_grid::event::Memory::Lost, Vec::new());
    rig.limit("/risk", None);
    assert!(rig.host_of(jobs[3]).is_some());
    rig.limit("/risk", Some(0));
    let never = rig.submit(within("/risk"));
    assert_eq!(rig.host_of(never), None);
    // A job that is moved elsewhere is no longer held up.
    let changes = Box::new(Changes { group: Some(Set::Nothing), ..Changes::default() });
    rig.send(Event::Modify { by: "u".parse().unwrap(), job: never, changes });
    assert!(rig.host_of(never).is_some());
}

#[test]
fn elements_of_an_array_count_each() {
    let mut rig = Rig::new("", &[("a", 10)]);
    rig.limit("/a", Some(3));
    let array = Some("[1-5]".parse().unwrap());
    let job = rig.submit(JobSpec { array, ..within("/a/b") });
    let active = |rig: &Rig| rig.grid.ledger().job(job).unwrap().tally().active;
    assert_eq!(active(&rig), 3);
    rig.exit(TaskId { job, index: 1 }, 0);
    assert_eq!(active(&rig), 3);
    let views = rig.grid.groups(&"u".parse().unwrap());
    let seen: Vec<_> =
        views.iter().map(|v| (v.group.as_str(), v.limit, v.used, v.counts)).collect();
    assert_eq!(seen, [("/a", Some(3), 3, [0; 4]), ("/a/b", None, 3, [1, 3, 0, 1])]);
}

#[test]
fn groups_are_kept_until_they_are_deleted_which_their_jobs_prevent() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let add = GroupVerb::Add { limit: Some(1) };
    rig.group("/a", add);
    assert!(refusal(&rig.group("/a", add)).contains("is there already"));
    rig.limit("/a/b", Some(1));
    let job = rig.submit(within("/a/b"));
    assert!(refusal(&rig.group("/a", GroupVerb::Delete)).contains("has 1 jobs"));
    rig.exit(TaskId::only(job), 0);
    assert!(matches!(rig.group("/a", GroupVerb::Delete)[..], [Effect::Obeyed { tasks: 2 }]));
    assert!(refusal(&rig.group("/a", GroupVerb::Delete)).contains("keeps no job group /a"));
    rig.restart();
    // What has ended is still listed under its path.
    let views = rig.grid.groups(&"u".parse().unwrap());
    assert_eq!(views.len(), 1);
    assert_eq!((views[0].group.as_str(), views[0].counts), ("/a/b", [0, 0, 0, 1]));
}
