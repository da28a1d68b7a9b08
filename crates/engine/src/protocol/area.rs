//! Work areas, as hosts see them and as people are told of them.

use std::path::PathBuf;

use forebay_grid::vocabulary::{HostName, Moment, TaskId, UserName};
use serde::{Deserialize, Serialize};

/// What an area is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AreaKind {
    /// Temporary data sets: WORK.
    Work,
    /// Utility files: UTIL.
    Util,
    /// Checkpoints of its work area, in the place that all hosts reach.
    Checkpoint,
}

/// One work area as a host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// Where it is.
    pub path: PathBuf,
    /// Whose it is by its name.
    pub task: TaskId,
    /// How often the task had been requeued after its end.
    pub requeues: u32,
    /// What it is for.
    pub kind: AreaKind,
    /// Whether it was taken away and is being removed.
    pub aside: bool,
    /// The user that it belongs to.
    pub owner: UserName,
    /// Bytes on disk, if they were counted.
    pub bytes: Option<u64>,
    /// When it was made; when it was changed last, if the file system does not know.
    pub made: Moment,
    /// Its inode: another area of the same name has another.
    pub inode: u64,
}

/// What a host sees of the areas that lie on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// They themselves.
    pub areas: Vec<Area>,
    /// Whether there are more of them than are told at a time.
    #[serde(default)]
    pub more: bool,
    /// What could not be seen.
    pub faults: Vec<String>,
}

/// Whether sizes are wanted, which takes a look at every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// They are.
    Counted,
    /// They are not.
    Left,
}

/// What shall become of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orphans {
    /// They are listed.
    Listed,
    /// They are removed.
    Removed,
}

/// How a work area is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AreaState {
    /// Its task is on a host.
    Running,
    /// Its task waits to be started again.
    Kept,
    /// Its task was on a host that is away: it may go on there.
    Unknown,
    /// Its task is gone.
    Orphaned,
    /// It is being removed, or about to be.
    BeingRemoved,
}

/// One work area, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaView {
    /// Job or element, as `12` or `12[3]`.
    pub job: String,
    /// Whose.
    pub user: UserName,
    /// What it is for.
    pub kind: AreaKind,
    /// That on which its task is, or another host that sees it.
    pub host: HostName,
    /// Bytes on disk, if they were counted.
    pub bytes: Option<u64>,
    /// When it was made.
    pub made: Moment,
    /// How it is.
    pub state: AreaState,
    /// Where it is.
    pub path: PathBuf,
}
