//! Control groups of jobs (cgroups(7)): each job runs in one of its own, where the agent may make one.
//!
//! A group counts the processor time of all that ever ran in it, and ends all of it at once (`cgroup.kill`), whatever
//! has made a session of its own, was not waited for, or is stopped. It needs cgroup version 2 of Linux 5.14, with
//! or without controllers. Memory, processors and processes are limited where version 2 gives the controller to the group,
//! or, on hybrid machines, by a group of version 1 with the same processes (`docs/adr/0107`).
//!
//! A host has a folder of groups below the agent's own group or the one that the agent was told to take; in it each
//! run has a folder by the name of its file, so anybody who finds the run finds its group ([`Places`] is part of the
//! run's order). Groups go with their jobs. Those of runs that nobody holds any more are ended and removed by the next
//! agent of the host (`agent/groups.rs`), which knows their places from the file `cgroup` in its folder.

mod enable;
mod find;
mod group;
mod limits;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use find::{Found, find};
pub(crate) use group::remove;
pub use group::{Group, Processor};
pub use limits::Limits;

use crate::protocol::Containment;

/// Where an agent looks for room for its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parent {
    /// Below its own group.
    #[default]
    Own,
    /// Below this folder of a mount of cgroup version 2.
    Folder(PathBuf),
    /// Below this folder, whose path begins where cgroup version 2 is mounted.
    Below(PathBuf),
    /// Nowhere: jobs have no groups.
    None,
}

impl std::str::FromStr for Parent {
    type Err = String;

    fn from_str(text: &str) -> Result<Parent, String> {
        match text {
            "own" => Ok(Parent::Own),
            "none" => Ok(Parent::None),
            path if path.starts_with('/') => Ok(Parent::Folder(PathBuf::from(path))),
            path if path.contains('/') => Ok(Parent::Below(PathBuf::from(path))),
            _ => Err("give own, none, the absolute path of a cgroup folder, or its path below the mount of cgroup \
                      version 2, such as forebay.slice/forebay-jobs@NAME.service"
                .to_owned()),
        }
    }
}

impl std::fmt::Display for Parent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Parent::Own => f.write_str("own"),
            Parent::Folder(path) | Parent::Below(path) => write!(f, "{}", path.display()),
            Parent::None => f.write_str("none"),
        }
    }
}

/// Which controller sets the limits of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// None that the agent may use.
    #[default]
    None,
    /// That of version 2, in the group itself.
    Unified,
    /// That of version 1, in groups below this folder.
    Legacy(PathBuf),
}

impl Controller {
    fn is_none(&self) -> bool {
        *self == Controller::None
    }

    fn is_unified(&self) -> bool {
        *self == Controller::Unified
    }

    fn legacy(&self) -> Option<&Path> {
        match self {
            Controller::Legacy(folder) => Some(folder),
            Controller::None | Controller::Unified => None,
        }
    }
}

/// Where the groups of a host's jobs are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Folder of version 2.
    pub unified: PathBuf,
    /// What limits memory.
    pub memory: Controller,
    /// What shares and limits processors.
    #[serde(default, skip_serializing_if = "Controller::is_none")]
    pub processors: Controller,
    /// What limits processes and threads.
    #[serde(default, skip_serializing_if = "Controller::is_none")]
    pub processes: Controller,
}

impl Places {
    /// What they are good for.
    pub fn containment(places: Option<&Places>) -> Containment {
        match places.map(|places| &places.memory) {
            None => Containment::Tree,
            Some(Controller::None) => Containment::Group,
            Some(Controller::Unified | Controller::Legacy(_)) => Containment::GroupWithMemory,
        }
    }

    /// The folders of version 1.
    pub(crate) fn legacy(&self) -> impl Iterator<Item = &Path> {
        [&self.memory, &self.processors, &self.processes].into_iter().filter_map(Controller::legacy)
    }

    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.unified.as_path()).chain(self.legacy())
    }

    /// Kills what is in the group of a run; whether nothing is left of it. Then its folders are gone.
    pub fn is_ended(&self, run: &str) -> bool {
        let own = self.unified.join(run);
        if group::is_populated(&own) {
            group::kill(&own);
            if group::is_populated(&own) {
                return false;
            }
        }
        self.folders()
            .map(|folder| group::remove(&folder.join(run)))
            .fold(true, |all, one| all & one)
    }
}
