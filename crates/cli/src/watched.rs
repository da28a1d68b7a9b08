//! What the web server is told of the file system and of this machine.

mod background;
mod unmounted;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_advisor::mute::{self, Mutes};
use forebay_advisor::{Host, examine};
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, Timestamp};
use forebay_engine::cluster::Cluster;
use forebay_engine::home::GridHome;
use forebay_fs::census::AGES;
use forebay_fs::record::DiskUse;
use forebay_fs::stats::upper_edge;
use forebay_fs::{DamagedFile, DiskStatus, FilesetStatus};
use forebay_grid::vocabulary::Moment;
use forebay_node::NodeHome;
use forebay_node::authority::expiry_of;
use forebay_node::members::visit::{self, FilesetProblem, NodeStatus, Wait};
use forebay_web::watched::{
    Cause, ClusterHealth, Disk, Files, Fileset, Finding, Holding, Node, Sight, Space, Waiting,
    Watched,
};
use jiff::Zoned;
use parking_lot::Mutex;

use self::background::Background;
use self::unmounted::Remembered;
use crate::attribution::{self, Activity, By, Users};
use crate::commands::cluster::{tools, view};
use crate::commands::{self, waiters};
use crate::control::{self, Answer, Ask, MountStatus, Status};
use crate::home::Home;
use crate::mounts;
use crate::waits;

/// How long requests wait that are counted as waiting.
const WAITING_MIN_MS: u64 = 1000;
/// The most of them that pages list.
const WAITS_MAX: usize = 20;

/// The file system beside a grid, and this machine.
pub struct System {
    home: Option<PathBuf>,
    /// The node that this machine is, of the cluster of the file system or of the grid.
    node: Option<NodeHome>,
    users: Mutex<Users>,
    remembered: Remembered,
    /// What was found last, and when.
    found: Mutex<Option<(Instant, Vec<Finding>)>>,
    space: Background<Space>,
    cluster: Background<ClusterHealth>,
}

/// How long a count of space is shown before the next one begins: it reads all names.
const SPACE_AGE: Duration = Duration::from_mins(10);

/// How long the nodes of a cluster are not asked again.
const CLUSTER_AGE: Duration = Duration::from_secs(15);

/// How long the advisor is not asked again: its checks read a lot, and little of it changes.
const FINDINGS_AGE: Duration = Duration::from_secs(60);

impl System {
    /// The file system at `place`, or that of the grid: the one whose home folder is that of the grid, or the one that the nodes of its
    /// cluster share; none if there is none.
    ///
    /// # Errors
    /// If there is none at `place`.
    pub fn new(root: &Path, place: Option<&Path>) -> Result<System> {
        let home = match place {
            Some(place) => Some(super::commands::waiters::home_of(Some(place))?),
            None => Home::at(root).ok().or_else(|| of_cluster(root)),
        };
        let node = home.as_ref().and_then(Home::node).cloned();
        Ok(System {
            home: home.map(|home| home.root().to_owned()),
            node: node.or_else(|| cluster_of(root)?.node_home().ok()),
            users: Mutex::default(),
            remembered: Remembered::default(),
            found: Mutex::default(),
            space: Background::new("space", SPACE_AGE),
            cluster: Background::new("cluster", CLUSTER_AGE),
        })
    }

    fn look(&self, home: &Path) -> Result<Files> {
        let mut files = Files { home: home.display().to_string(), ..Files::default() };
        if let Answer::Status(status) = control::ask(home, &Ask::Status)? {
            of_status(&mut files, *status);
        }
        if let Answer::Waits { waits } = control::ask(home, &Ask::Waits { min_ms: WAITING_MIN_MS })?
        {
            files.waiting = waits.len();
            files.waits = of_waits(waits);
        }
        self.of_activity(&mut files, &attribution::read(home)?);
        Ok(files)
    }

    fn of_activity(&self, files: &mut Files, activity: &Activity) {
        for row in &activity.operations {
            files.nanoseconds += row.nanoseconds;
            for (bucket, count) in &row.buckets {
                files.operations += count;
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let edge = upper_edge(*bucket) as f64 / 1e9;
                files.latencies.push((edge, *count));
            }
        }
        files.latencies.sort_by(|one, other| one.0.total_cmp(&other.0));
        files.latencies.dedup_by(|next, kept| {
            let same = next.0.to_bits() == kept.0.to_bits();
            if same {
                kept.1 += next.1;
            }
            same
        });
        let nothing = Activity::default();
        for (whose, work) in
            attribution::grouped(activity, &nothing, By::Job, &mut self.users.lock())
        {
            files.read_bytes += work.read_bytes;
            files.written_bytes += work.written_bytes;
            files.causes.push(Cause {
                user: whose.user,
                job: whose.job,
                operations: work.operations,
                bytes: work.read_bytes + work.written_bytes,
            });
        }
    }
}

/// The cluster on whose nodes a grid runs, if it does.
fn cluster_of(root: &Path) -> Option<Cluster> {
    Cluster::of(&GridHome::guarded(root).ok()?).ok()?
}

/// The file system of that cluster.
fn of_cluster(root: &Path) -> Option<Home> {
    Home::at(&cluster_of(root)?.node).ok()
}

/// The oldest waits, for people, and the oldest one that is not for a lock or a recall: many of those do not hide it.
fn of_waits(waits: Vec<Wait>) -> Vec<Waiting> {
    let mut waits: Vec<Waiting> = waits.into_iter().map(waiting).collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.age_ms));
    let stuck = waits.iter().position(|wait| !wait.may_last());
    let stuck = stuck.filter(|place| *place >= WAITS_MAX).map(|place| waits.swap_remove(place));
    waits.truncate(WAITS_MAX);
    waits.extend(stuck);
    waits
}

fn waiting(wait: Wait) -> Waiting {
    Waiting {
        made_by: waiters::made_by(&wait, wait.client.map(|node| node.to_string()).as_deref()),
        file: wait.path.unwrap_or_else(|| format!("inode {}", wait.ino)),
        age_ms: wait.age_ms,
        operation: wait.operation,
        is_lock: wait.cause == visit::Cause::Lock,
        is_archive: matches!(wait.cause, visit::Cause::Archive(_)),
        is_work: wait.cause == visit::Cause::Work,
        reason: wait.cause.text(waits::shown),
    }
}

/// Asks etcd, and all nodes that run.
fn ask_cluster(home: &NodeHome) -> Result<ClusterHealth> {
    let file = home.existing()?;
    let (sight, _) = tools()?.book(&file)?.read()?;
    let reports = view::ask_all(home, &file, &sight);
    let moment = |seconds: i64| Moment(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    let nodes = sight.nodes.iter().map(|(node, record)| {
        let (away, problems, expires) = match reports.get(node) {
            None => (Some("does not run".to_owned()), Vec::new(), record.expires),
            Some(Err(error)) => {
                let why = crate::output::chain(error);
                let away = format!("has a lease and does not answer: {why}");
                (Some(away), Vec::new(), record.expires)
            }
            Some(Ok(status)) => (None, problems(status), status.certificate_expires),
        };
        Node { name: record.name.clone(), away, problems, certificate_expires: moment(expires) }
    });
    let authority = home.identity(&file).and_then(|own| expiry_of(&own.authority));
    Ok(ClusterHealth {
        fault: None,
        nodes: nodes.collect(),
        authority_expires: authority.ok().map(moment),
        monitors: sight.monitor_ends().into_iter().map(|(name, end)| (name, moment(end))).collect(),
        of_etcd: file
            .etcd
            .certificate_ends()
            .into_iter()
            .map(|(it, end)| (it, moment(end)))
            .collect(),
    })
}

/// Filesets that a node could not open or hand over when it tried last, and why filesets must not grow, with the reasons.
fn problems(status: &NodeStatus) -> Vec<String> {
    let names = status.files.as_ref().map(|files| &*files.filesets).unwrap_or_default();
    let problem = |problem: &FilesetProblem| {
        let name =
            names.iter().find(|(id, _)| *id == problem.fileset).map(|(_, name)| name.clone());
        let name = name.unwrap_or_else(|| problem.fileset.to_string());
        format!("fileset {name}: {}", problem.reason)
    };
    let shortage = status.files.as_ref().and_then(|files| files.shortage.clone());
    status.problems.iter().map(problem).chain(shortage).collect()
}

/// Has the daemon count what files hold.
fn count_space(home: &Path) -> Result<Space> {
    let asked = control::ask_within(home, &Ask::Census, commands::space::LIMIT)?;
    let Answer::Census(census) = asked else { bail!("the daemon's answer is not a census") };
    let mut users = Users::default();
    let mut held: BTreeMap<(&str, String, usize), (u64, u64)> = BTreeMap::new();
    for cell in commands::space::cells(&census) {
        let user = commands::space::user_of(cell.uid, &mut users);
        let sum = held.entry((cell.fileset, user, cell.age)).or_default();
        *sum = (sum.0 + cell.held.inodes, sum.1 + cell.held.bytes);
    }
    let holding = |((fileset, user, age), (inodes, bytes)): ((&str, _, _), _)| Holding {
        fileset: fileset.to_owned(),
        user,
        age,
        inodes,
        bytes,
    };
    let held = held.into_iter().map(holding).collect();
    let not_counted = census.filesets.iter();
    let not_counted = not_counted
        .filter_map(|fileset| Some((fileset.fileset.clone(), fileset.not_counted.clone()?)))
        .collect();
    let ages = AGES.iter().map(|(name, _)| *name).collect();
    let at_ms = SystemClock.now().since(Timestamp::default()).as_millis();
    Ok(Space { at_ms: u64::try_from(at_ms)?, held, ages, not_counted })
}

fn of_status(files: &mut Files, status: Status) {
    if let Some(mount) = status.mount {
        files.mountpoint = Some(mount.mountpoint.display().to_string());
        files.commit_age_seconds = mount.commit_age_seconds;
        files.uncommitted = mount.uncommitted;
        files.faults = faults(&mount);
        files.commit_error = mount.commit_error;
    }
    // An archive has no size, and does not fill up.
    let disks = status.disks.into_iter();
    files.disks = disks
        .filter(|disk| !disk.kind.starts_with(forebay_disk::archive::KIND))
        .map(disk)
        .collect();
    files.filesets = status.filesets.into_iter().map(fileset).collect();
}

/// What is wrong besides disks and filesets.
fn faults(mount: &MountStatus) -> Vec<(String, String)> {
    let native = mount.native.iter().filter_map(|native| {
        let name = &native.fileset;
        let fault = native.fault.as_ref()?;
        Some((
            format!("native/{name}"),
            format!("native fileset {name} cannot be reached: {fault}"),
        ))
    });
    let all = mount
        .schedules_fault
        .iter()
        .map(|fault| ("snapshots".to_owned(), format!("no snapshot is made by schedule: {fault}")));
    let failed = mount.schedules.iter().filter_map(|schedule| {
        let (name, error) = (&schedule.fileset, schedule.error.as_ref()?);
        let text = format!("the latest snapshot of fileset {name} by schedule failed: {error}");
        Some((format!("snapshots/{name}"), text))
    });
    let mut found: Vec<(String, String)> = native.chain(all).chain(failed).collect();
    // A fileset may have several schedules.
    found.dedup_by(|next, kept| next.0 == kept.0);
    found
}

fn disk(disk: DiskStatus) -> Disk {
    let is_absent = disk.kind == forebay_disk::absent::KIND
        && !matches!(disk.used, DiskUse::Lost | DiskUse::Removed);
    let fault = if disk.is_failing {
        Some(
            "it does not accept writes; programs read copies of its files, where there are some"
                .to_owned(),
        )
    } else {
        disk.problem.or_else(|| is_absent.then(|| "it is not there".to_owned()))
    };
    let name = match &disk.node {
        Some(node) => format!("{node}:{}", disk.location),
        None => disk.location,
    };
    Disk {
        uuid: disk.uuid,
        name,
        total_inodes: disk.total_inodes,
        free_inodes: disk.free_inodes,
        total_bytes: disk.total_bytes,
        free_bytes: disk.available_bytes,
        errors: disk.errors,
        last_error: disk.last_error,
        fault,
    }
}

fn fileset(fileset: FilesetStatus) -> Fileset {
    let damaged = |file: DamagedFile| {
        let path = file.path.unwrap_or_else(|| format!("inode {}", file.ino));
        format!("{path}: {}", file.what)
    };
    Fileset {
        name: fileset.name,
        kind: format!("{:?}, {:?}", fileset.durability, fileset.placement).to_lowercase(),
        bytes: fileset.bytes,
        inodes: fileset.files,
        waiting_for_copies: fileset.waiting_for_copies,
        copies_fault: fileset.copies_problem,
        damaged: fileset.damaged.into_iter().map(damaged).collect(),
        fault: fileset.problem,
    }
}

impl Watched for System {
    fn files(&self) -> Result<Sight, String> {
        let Some(home) = self.home.as_ref() else {
            return Ok(Sight::Nothing("no file system is configured for this server".to_owned()));
        };
        let place = home.display();
        if !mounts::all().iter().any(|mounted| mounted.home == *home) {
            return self.remembered.see_unmounted(home, self.node.as_ref());
        }
        self.remembered.see_mounted();
        let fault = |error| {
            let why = crate::output::chain(&error);
            format!("{place} is mounted, and its daemon does not answer: {why}")
        };
        self.look(home).map(|files| Sight::Mounted(Box::new(files))).map_err(fault)
    }

    fn space(&self) -> Option<Space> {
        let home = self.home.clone()?;
        mounts::all().iter().find(|mounted| mounted.home == home)?;
        self.space.latest(move || count_space(&home))
    }

    fn cluster(&self) -> Option<ClusterHealth> {
        let node = self.node.clone()?;
        self.cluster.latest(move || {
            let asked = ask_cluster(&node);
            let fault = |error: anyhow::Error| ClusterHealth {
                fault: Some(format!("{error:#}")),
                ..ClusterHealth::default()
            };
            Ok(asked.unwrap_or_else(fault))
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let now = SystemClock.instant();
        let mut found = self.found.lock();
        match &*found {
            Some((at, findings)) if now.duration_since(*at) < FINDINGS_AGE => findings.clone(),
            _ => found.insert((now, self.examine())).1.clone(),
        }
    }
}

impl System {
    /// Asks the advisor.
    fn examine(&self) -> Vec<Finding> {
        let places: Vec<PathBuf> = self.home.iter().cloned().collect();
        let Ok(host) = Host::here(&places) else { return Vec::new() };
        let mutes =
            mute::read(Path::new("/etc/forebay/doctor.toml")).unwrap_or_else(|_| Mutes::default());
        let today = Zoned::now().date().to_string();
        let shown = examine(&host).findings.into_iter();
        shown
            .filter(|finding| !mute::is_muted(&mutes, finding.code, &today))
            .map(|finding| Finding {
                code: finding.code.to_owned(),
                severity: finding.severity.word().to_owned(),
                title: finding.title.to_owned(),
                why: finding.why.to_owned(),
                fix: finding.fix.line(),
                evidence: finding.evidence,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_a_node_is_known_by_its_identity_and_shown_with_its_node() {
        let status = |node: Option<&str>| -> DiskStatus {
            serde_json::from_value(serde_json::json!({
                "uuid": "u",
                "location": "/data",
                "kind": "xfs",
                "total_bytes": 10,
                "available_bytes": 5,
                "total_inodes": 8,
                "free_inodes": 2,
                "objects_in_use": 0,
                "spare_objects": 0,
                "errors": 0,
                "last_error": null,
                "advice": [],
                "node": node,
            }))
            .unwrap()
        };
        let (here, there) = (disk(status(None)), disk(status(Some("n2"))));
        assert_eq!((&*here.name, &*there.name, &*there.uuid), ("/data", "n2:/data", "u"));
        assert_eq!((there.total_inodes, there.free_inodes), (8, 2));
    }

    #[test]
    fn many_waits_for_locks_do_not_hide_one_that_is_stuck() {
        let wait = |age_ms: u64, cause| Wait {
            age_ms,
            operation: "open".to_owned(),
            ino: forebay_base::Ino(7),
            path: None,
            process: Some((1, "sh".to_owned())),
            job: Some("12".to_owned()),
            uid: Some(0),
            client: None,
            cause,
        };
        let mut waits: Vec<Wait> = (0..30).map(|n| wait(1000 + n, visit::Cause::Lock)).collect();
        waits.push(wait(500, visit::Cause::Space));
        waits.push(wait(600, visit::Cause::Archive("its recall".to_owned())));
        waits.push(wait(400, visit::Cause::Work));
        let kept = of_waits(waits);
        assert_eq!(kept.len(), WAITS_MAX + 1);
        assert_eq!((kept[0].age_ms, kept[WAITS_MAX].age_ms), (1029, 500));
        assert_eq!(kept[0].made_by, "sh (1) of job 12");
    }
}
