//! Job groups of users: keeping them, and what their limits leave.

use std::collections::BTreeMap;

use crate::event::{Effect, Outcome, Refusal};
use crate::grid::Grid;
use crate::group::{GROUPS_MAX, GroupVerb, JobGroup};
use crate::journal::Change;
use crate::task::Task;
use crate::vocabulary::{UserId, UserName};

/// One job group, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its path.
    pub group: JobGroup,
    /// The most tasks that may be on hosts at once, with those of groups in it.
    pub limit: Option<u32>,
    /// How many are, with those of groups in it.
    pub used: u32,
    /// Tasks of its own that wait, run, are suspended and have ended.
    pub counts: [u64; 4],
}

impl Grid {
    pub(super) fn change_group(
        &mut self,
        by: &UserName,
        group: JobGroup,
        verb: GroupVerb,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let user = self.ledger.users.find(by).map(UserId);
        let kept = |group: &JobGroup| {
            user.is_some_and(|user| self.ledger.groups.contains_key(&(user, group.clone())))
        };
        let mut tasks = 0;
        match verb {
            GroupVerb::Add { .. } if kept(&group) => {
                let fault = format!(
                    "job group {group} is there already; forebay group limit changes its limit"
                );
                return Err(Refusal::Invalid(fault));
            }
            GroupVerb::Add { limit } | GroupVerb::Limit { limit } => {
                let own = self.ledger.groups.keys().filter(|(of, _)| Some(*of) == user).count();
                if own >= GROUPS_MAX && !kept(&group) {
                    let fault = format!("{by} keeps {own} job groups already: delete some");
                    return Err(Refusal::TooMany(fault));
                }
                self.record(Change::Group { user: by.clone(), group, limit }, out);
            }
            GroupVerb::Delete => {
                let used = self.jobs_within(user, &group);
                if used > 0 {
                    let fault = format!("job group {group} has {used} jobs that have not ended");
                    return Err(Refusal::Invalid(fault));
                }
                let groups = self.ledger.groups.keys();
                let inner =
                    groups.filter(|(of, inner)| Some(*of) == user && inner.is_within(&group));
                let inner: Vec<JobGroup> = inner.map(|(_, inner)| inner.clone()).collect();
                if inner.is_empty() {
                    return Err(Refusal::Invalid(format!("{by} keeps no job group {group}")));
                }
                tasks = u32::try_from(inner.len()).unwrap_or(u32::MAX);
                for group in inner {
                    self.record(Change::GroupDeleted { user: by.clone(), group }, out);
                }
            }
        }
        // A limit may be higher than before.
        self.index.stir();
        Ok(Effect::Obeyed { tasks })
    }

    /// Jobs of a user in a group or in those in it that have not ended.
    fn jobs_within(&self, user: Option<UserId>, group: &JobGroup) -> usize {
        let open = self.index.open.keys().filter_map(|id| self.ledger.jobs.get(id));
        let inside = open.filter(|job| {
            Some(job.user) == user
                && job.spec.group.as_ref().is_some_and(|own| own.is_within(group))
        });
        inside.count()
    }

    /// The group that lets no more tasks of a user start in a group: that one, or one in which it lies; with how many are on
    /// hosts, and how many may be.
    pub(super) fn full_group(
        &self,
        user: UserId,
        group: Option<&JobGroup>,
    ) -> Option<(JobGroup, u32, u32)> {
        self.limits_of(user, group).find(|(_, used, most)| used >= most)
    }

    /// How many more tasks may start in a group.
    pub(super) fn room_in_group(&self, user: UserId, group: Option<&JobGroup>) -> u32 {
        let room = self.limits_of(user, group).map(|(_, used, most)| most.saturating_sub(used));
        room.min().unwrap_or(u32::MAX)
    }

    fn limits_of(
        &self,
        user: UserId,
        group: Option<&JobGroup>,
    ) -> impl Iterator<Item = (JobGroup, u32, u32)> {
        // Most grids have none.
        let group = group.filter(|_| !self.ledger.groups.is_empty());
        group.into_iter().flat_map(JobGroup::and_above).filter_map(move |group| {
            let key = (user, group);
            let most = (*self.ledger.groups.get(&key)?)?;
            let used = self.index.used_groups.get(&key).copied().unwrap_or(0);
            Some((key.1, used, most))
        })
    }

    /// The groups of a user in the order of their paths: those that are kept, and those with jobs that are known. Takes as long
    /// as there are jobs.
    #[must_use]
    pub fn groups(&self, user: &UserName) -> Vec<GroupView> {
        let Some(user) = self.ledger.users.find(user).map(UserId) else { return Vec::new() };
        let mut counts: BTreeMap<&JobGroup, [u64; 4]> = BTreeMap::new();
        let kept = self.ledger.groups.keys().filter(|(of, _)| *of == user);
        counts.extend(kept.map(|(_, group)| (group, [0; 4])));
        for job in self.ledger.jobs.values().filter(|job| job.user == user) {
            let Some(group) = &job.spec.group else { continue };
            let counts = counts.entry(group).or_default();
            for task in &job.tasks {
                let place = match task {
                    Task::Pending(_) | Task::Held(_) => 0,
                    Task::Active(run) if run.stops().is_empty() => 1,
                    Task::Active(_) => 2,
                    Task::Finished(_) => 3,
                };
                counts[place] += 1;
            }
        }
        let view = |(group, counts): (&JobGroup, [u64; 4])| {
            let key = (user, group.clone());
            GroupView {
                limit: self.ledger.groups.get(&key).copied().flatten(),
                used: self.index.used_groups.get(&key).copied().unwrap_or(0),
                group: key.1,
                counts,
            }
        };
        counts.into_iter().map(view).collect()
    }
}
