//! Counted resources: those that all hosts share, such as licences, and those of one host, such as devices.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Refusal;
use crate::grid::Grid;
use crate::grid::explain::HostObstacle;
use crate::hosts::HostNow;
use crate::parse::resources::{GPU, Resources};
use crate::ready::Shape;
use crate::spec::{JobSpec, Sharing};
use crate::task::Held;
use crate::vocabulary::{HostId, HostName, JobId, ResourceName};

/// A resource of a host that is short for a job.
pub(super) struct Short {
    pub name: ResourceName,
    pub obstacle: HostObstacle,
}

/// One resource, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// Its name.
    pub name: ResourceName,
    /// Whose it is; all hosts share it if none.
    pub host: Option<HostName>,
    /// How much there is.
    pub total: u32,
    /// How much jobs hold.
    pub used: u32,
}

impl Grid {
    /// The first resource of all hosts that is short for a job now, with how much of it is in use, and how much there is.
    pub(super) fn grid_short(&self, shape: &Shape) -> Option<(ResourceName, u32, u32)> {
        shape.resources.iter().find_map(|(name, needed)| {
            let most = *self.ledger.config.resources.get(name)?;
            let used = self.index.used_resources.of(name);
            (used.saturating_add(needed) > most).then(|| (name.clone(), used, most))
        })
    }

    /// The first resource of a host that is short for a job now.
    pub(super) fn host_short(&self, now: &HostNow, shape: &Shape) -> Option<Short> {
        self.of_hosts(shape).find_map(|(name, needed)| {
            let total = now.resources.get(name).copied().unwrap_or(0);
            let mut free = total.saturating_sub(now.used_resources.of(name));
            if name.as_str() == GPU {
                // Devices that are no longer in the settings may be in use.
                free = free.min(now.free_gpus(needed).len() as u32);
            }
            let obstacle = if total < needed {
                HostObstacle::ResourceTooSmall { total }
            } else if free < needed {
                HostObstacle::Resource { free }
            } else {
                return None;
            };
            Some(Short { name: name.clone(), obstacle })
        })
    }

    /// What a job needs of resources that belong to hosts.
    fn of_hosts<'a>(
        &'a self,
        shape: &'a Shape,
    ) -> impl Iterator<Item = (&'a ResourceName, u32)> + 'a {
        self.host_resources(&shape.resources)
    }

    /// Those of resources that belong to hosts: what the grid does not have as a whole.
    pub(super) fn host_resources<'a>(
        &'a self,
        resources: &'a Resources,
    ) -> impl Iterator<Item = (&'a ResourceName, u32)> + 'a {
        let own =
            |(name, _): &(&ResourceName, u32)| !self.ledger.config.resources.contains_key(*name);
        resources.iter().filter(own)
    }

    /// Whether a host with these resources could ever have enough of them for a job.
    pub(super) fn has_resources(
        &self,
        resources: &BTreeMap<ResourceName, u32>,
        shape: &Shape,
    ) -> bool {
        let enough = |(name, needed): (&ResourceName, u32)| {
            resources.get(name).is_some_and(|total| *total >= needed)
        };
        self.of_hosts(shape).all(enough)
    }

    /// What a task of a job holds on a host besides slots and memory.
    pub(super) fn held_by(&self, job: JobId, host: HostId) -> Option<Box<Held>> {
        let spec = &self.ledger.jobs[&job].spec;
        let exclusive = spec.sharing == Sharing::Exclusive;
        (exclusive || !spec.resources.is_empty()).then(|| {
            let gpus = spec.resources.of(GPU);
            let gpus = self.index.hosts[host.0 as usize].free_gpus(gpus);
            Box::new(Held { resources: spec.resources.clone(), gpus, exclusive })
        })
    }

    /// Refuses resources that the grid does not have, and more of one than it has.
    pub(super) fn check_resources(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let config = &self.ledger.config;
        for (name, needed) in spec.resources.iter() {
            let most = config.resources.get(name);
            if let Some(most) = most.filter(|most| **most < needed) {
                let fault = format!("resource {name}:{needed}: the grid has {most} of it");
                return Err(Refusal::Invalid(fault));
            }
            let known = config.hosts.iter().any(|host| host.resources.contains_key(name));
            if most.is_none() && !known {
                let hosts = config.hosts.iter().flat_map(|host| host.resources.keys());
                let all: BTreeSet<&str> =
                    config.resources.keys().chain(hosts).map(ResourceName::as_str).collect();
                let all: Vec<&str> = all.into_iter().collect();
                let there = match all[..] {
                    [] => "the grid counts no resources (grid.toml, [resources])".to_owned(),
                    _ => format!("choose from {}", all.join(", ")),
                };
                return Err(Refusal::Invalid(format!("there is no resource {name}: {there}")));
            }
        }
        Ok(())
    }

    /// Why no host can take a job, if it is for its resources.
    pub(super) fn resource_refusal(&self, shape: &Shape) -> Option<Refusal> {
        let hosts = &self.ledger.config.hosts;
        self.of_hosts(shape).find_map(|(name, needed)| {
            let of = |host: &crate::config::HostConfig| {
                Some((host.resources.get(name).copied()?, host.name.clone()))
            };
            let (most, host) = hosts.iter().filter_map(of).max()?;
            (most < needed).then(|| {
                Refusal::Invalid(format!(
                    "resource {name}:{needed}: no host has that much; {host} has {most}"
                ))
            })
        })
    }

    /// All counted resources with what is used of them.
    #[must_use]
    pub fn resources(&self) -> Vec<ResourceView> {
        let shared = self.ledger.config.resources.iter().map(|(name, total)| ResourceView {
            name: name.clone(),
            host: None,
            total: *total,
            used: self.index.used_resources.of(name),
        });
        let hosts = (0..self.index.hosts.len() as u32).map(HostId);
        let hosts = hosts.filter(|host| self.is_listed(*host));
        let own = hosts.flat_map(|host| {
            let now = &self.index.hosts[host.0 as usize];
            now.resources.iter().map(move |(name, total)| ResourceView {
                name: name.clone(),
                host: Some(self.host_name(host)),
                total: *total,
                used: now.used_resources.of(name),
            })
        });
        shared.chain(own).collect()
    }
}
