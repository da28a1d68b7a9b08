//! What the server is told of the file system beside the grid and of the machine: whoever starts it knows how to ask.

use std::collections::BTreeMap;

use forebay_grid::vocabulary::Moment;

/// The file system and the machine.
pub trait Watched: Send + Sync {
    /// How the file system is doing. An error says why a file system that is mounted, or was and did not end in order, cannot be asked.
    ///
    /// # Errors
    /// In words.
    fn files(&self) -> Result<Sight, String>;

    /// What the files hold, by fileset, user and age, as it was counted last. Counting takes long: it begins in the background when this is
    /// called and the latest count is old, and until it has ended for the first time there is none.
    fn space(&self) -> Option<Space>;

    /// How the nodes of the cluster are of which this machine is one, as they were asked last; none on a machine that is not a node, and
    /// until they have answered for the first time. They are asked in the background when this is called and the latest answer is old.
    fn cluster(&self) -> Option<ClusterHealth>;

    /// What the advisor finds on this machine. It may take a second.
    fn findings(&self) -> Vec<Finding>;
}

/// What is seen of the file system.
#[derive(Clone, Debug, PartialEq)]
pub enum Sight {
    /// It is mounted.
    Mounted(Box<Files>),
    /// There is nothing to watch, and nothing is wrong with that: why, in words. It was unmounted in order, or there is none.
    Nothing(String),
}

/// How a file system is doing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Files {
    /// Home folder.
    pub home: String,
    /// Where it is mounted.
    pub mountpoint: Option<String>,
    /// Operations since the mount.
    pub operations: u64,
    /// Nanoseconds that they took together.
    pub nanoseconds: u64,
    /// Bytes that the daemon read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Requests that have waited for over a second.
    pub waiting: usize,
    /// Some of them, the oldest first.
    pub waits: Vec<Waiting>,
    /// Seconds since the last commit that holds everything before it.
    pub commit_age_seconds: f64,
    /// Records that are not committed.
    pub uncommitted: usize,
    /// Why the last commit failed.
    pub commit_error: Option<String>,
    /// Latencies since the mount: upper edges of classes in seconds, with how many operations lie in each.
    pub latencies: Vec<(f64, u64)>,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Its filesets.
    pub filesets: Vec<Fileset>,
    /// What else is wrong with it: codes of alerts with their texts.
    pub faults: Vec<(String, String)>,
    /// Who caused what since the mount, by user and job.
    pub causes: Vec<Cause>,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disk {
    /// Its identity, which never changes.
    pub uuid: String,
    /// Its folder; in a cluster after the name of its node and a colon.
    pub name: String,
    /// Its size.
    pub total_bytes: u64,
    /// What is free of it.
    pub free_bytes: u64,
    /// Files that its file system can hold; 0 if it makes room for them as needed, or does not answer.
    pub total_inodes: u64,
    /// How many more it can hold.
    pub free_inodes: u64,
    /// Errors since the mount.
    pub errors: u64,
    /// The latest of them.
    pub last_error: Option<String>,
    /// Why it cannot be used.
    pub fault: Option<String>,
}

/// A request that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// For how long, in milliseconds.
    pub age_ms: u64,
    /// Its name.
    pub operation: String,
    /// The path of the file or directory, or the number of its inode.
    pub file: String,
    /// The process or node that made it.
    pub made_by: String,
    /// What it waits for.
    pub reason: String,
    /// Whether that is a lock of another program, which may be held for as long as it likes.
    pub is_lock: bool,
    /// Whether that is a recall from an archive, which takes as long as its bytes do.
    pub is_archive: bool,
    /// Whether it waits for nothing, but is being carried out.
    pub is_work: bool,
}

impl Waiting {
    /// Whether it may wait for long although nothing is wrong.
    #[must_use]
    pub fn may_last(&self) -> bool {
        self.is_lock || self.is_archive
    }
}

/// How a cluster is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterHealth {
    /// Why nothing is known of its nodes.
    pub fault: Option<String>,
    /// Its nodes, by name.
    pub nodes: Vec<Node>,
    /// When the certificate of its authority expires.
    pub authority_expires: Option<Moment>,
    /// Names of monitors, with the end of the certificate of each.
    pub monitors: Vec<(String, Moment)>,
    /// Whose certificates are needed to reach etcd, with the end of each.
    pub of_etcd: Vec<(&'static str, Moment)>,
}

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// What it does not do, and why, if it is away: `does not run`.
    pub away: Option<String>,
    /// What it could not do, and why: filesets that it could not open or hand over.
    pub problems: Vec<String>,
    /// When its certificate expires.
    pub certificate_expires: Moment,
}

/// A fileset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fileset {
    /// Name.
    pub name: String,
    /// What kind it is, in words.
    pub kind: String,
    /// Bytes of its files.
    pub bytes: Option<u64>,
    /// Files and directories.
    pub inodes: Option<u64>,
    /// Files that wait for copies.
    pub waiting_for_copies: u64,
    /// Why some files have fewer copies than they are to have.
    pub copies_fault: Option<String>,
    /// Files that were found to have lost something since the mount: some of them, with what.
    pub damaged: Vec<String>,
    /// What is wrong with it.
    pub fault: Option<String>,
}

/// What somebody caused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    /// Name of the user.
    pub user: String,
    /// The job; - if there is none, ? if it is not known.
    pub job: String,
    /// Operations.
    pub operations: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// Who holds how much, and how old it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// When it was counted, in milliseconds since the epoch.
    pub at_ms: u64,
    /// What is held.
    pub held: Vec<Holding>,
    /// Classes of age, the youngest first.
    pub ages: Vec<&'static str>,
    /// Filesets that were not counted, each with the reason.
    pub not_counted: Vec<(String, String)>,
}

/// What a user holds in a fileset, of one age.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Name of the fileset.
    pub fileset: String,
    /// Name of the user.
    pub user: String,
    /// Place of its age in [`Space::ages`].
    pub age: usize,
    /// Inodes of any kind.
    pub inodes: u64,
    /// Sum of the sizes of its files.
    pub bytes: u64,
}

/// Something that the advisor found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// Code.
    pub code: String,
    /// Severity: problem, warning or advice.
    pub severity: String,
    /// What is wrong.
    pub title: String,
    /// What was seen.
    pub evidence: String,
    /// Why it matters.
    pub why: String,
    /// What to do.
    pub fix: String,
}

/// The difference of two looks at who caused what, by user and job.
#[must_use]
pub fn causes_since(now: &Files, before: &Files) -> Vec<Cause> {
    let earlier: BTreeMap<(&str, &str), &Cause> =
        before.causes.iter().map(|cause| ((&*cause.user, &*cause.job), cause)).collect();
    let since = |cause: &Cause| {
        let old = earlier.get(&(&*cause.user, &*cause.job));
        Cause {
            operations: cause.operations.saturating_sub(old.map_or(0, |old| old.operations)),
            bytes: cause.bytes.saturating_sub(old.map_or(0, |old| old.bytes)),
            ..cause.clone()
        }
    };
    let mut all: Vec<Cause> = now.causes.iter().map(since).collect();
    all.retain(|cause| cause.operations > 0 || cause.bytes > 0);
    all.sort_by_key(|cause| std::cmp::Reverse((cause.bytes, cause.operations)));
    all
}
