//! Who is at the other end of a connection: by the kernel's word on this machine, or as a node asserts it.

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::{HostName, UserName};
use forebay_process::user::{group_name_of, number_of};
use serde::{Deserialize, Serialize};

use crate::user;

/// A user and the first group, by number and by name, as one machine knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Number of the user.
    pub uid: u32,
    /// Name; the number if there is none.
    pub user: UserName,
    /// Number of the group.
    pub gid: u32,
    /// Its name, if it has one.
    pub group: Option<String>,
}

/// What a relay tells a controller of a connection that it passes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relayed {
    /// The node that asserts it, by its certificate.
    pub node: HostName,
    /// Who that node says is there.
    pub identity: Identity,
}

/// The numbers of a job's user where the controller runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// Of the user.
    pub uid: u32,
    /// Of the user's first group.
    pub gid: u32,
}

impl Identity {
    /// That of a process on this machine.
    ///
    /// # Errors
    /// If the user database does not answer, or the user cannot be one of a grid.
    pub fn here(uid: u32, gid: u32) -> Result<Identity> {
        let user = user::name_of(uid)?;
        let group = group_name_of(gid).context("the group database does not answer")?;
        Ok(Identity { uid, user, gid, group })
    }

    /// Refuses a user or group that is another one here than on the node that asserts it.
    ///
    /// # Errors
    /// Says which numbers differ, and what to do.
    pub fn check_here(&self, node: &str) -> Result<()> {
        let here = Identity::here(self.uid, self.gid)?;
        let number = number_of(self.user.as_str()).context("the user database does not answer")?;
        match disagreement(self, node, &here, number) {
            Some(reason) => anyhow::bail!(reason),
            None => Ok(()),
        }
    }
}

/// Why what a node says is not so here: where the same numbers are `here`, and the same name has the number `number`.
fn disagreement(
    theirs: &Identity,
    node: &str,
    here: &Identity,
    number: Option<u32>,
) -> Option<String> {
    const CURE: &str = "users and groups must have the same numbers on all nodes of a grid";
    let Identity { uid, user, gid, group } = theirs;
    if *user != here.user {
        let there = match number {
            Some(number) => format!("{user} is {number} and {uid} is {}", here.user),
            None => format!("there is no user {user}"),
        };
        return Some(format!(
            "user {user} has number {uid} on node {node}, but on the node that was called {there}: {CURE}"
        ));
    }
    let (theirs, ours) = group.as_ref().zip(here.group.as_ref())?;
    (theirs != ours).then(|| {
        format!(
            "group {gid} is {theirs} on node {node} and {ours} on the node that was called: {CURE}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uid: u32, user: &str, group: Option<&str>) -> Identity {
        let group = group.map(str::to_owned);
        Identity { uid, user: user.parse().unwrap(), gid: 100, group }
    }

    #[test]
    fn a_user_or_group_with_other_numbers_on_another_node_is_refused_by_name() {
        let ann = identity(1000, "ann", Some("staff"));
        assert_eq!(disagreement(&ann, "n1", &ann, Some(1000)), None);
        let bob = identity(1000, "bob", Some("staff"));
        let reason = disagreement(&ann, "n1", &bob, Some(1001)).unwrap();
        assert!(
            reason.contains("ann is 1001 and 1000 is bob") && reason.contains("n1"),
            "{reason}"
        );
        let nobody = identity(1000, "1000", None);
        let reason = disagreement(&ann, "n1", &nobody, None).unwrap();
        assert!(reason.contains("there is no user ann"), "{reason}");
        let other = identity(1000, "ann", Some("users"));
        let reason = disagreement(&ann, "n1", &other, Some(1000)).unwrap();
        assert!(reason.contains("group 100 is staff on node n1 and users"), "{reason}");
        let unnamed = identity(1000, "ann", None);
        assert_eq!(disagreement(&ann, "n1", &unnamed, Some(1000)), None);
    }

    #[test]
    fn the_own_user_is_the_same_here() {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let own = Identity::here(uid.as_raw(), gid.as_raw()).unwrap();
        own.check_here("n1").unwrap();
        Identity { user: "no.such.user".parse().unwrap(), ..own }.check_here("n1").unwrap_err();
    }
}
