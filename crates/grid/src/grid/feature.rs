//! Features of hosts, by which jobs choose them.

use std::collections::BTreeSet;

use crate::config::{HostConfig, HostEngine};
use crate::event::Refusal;
use crate::grid::Grid;
use crate::ready::Shape;
use crate::spec::JobSpec;
use crate::vocabulary::{FeatureName, HostId, HostName};

impl Grid {
    /// Whether a host has what a job needs, as the settings say; one that they do not name has no features.
    pub(super) fn has_features(&self, shape: &Shape, host: Option<&HostConfig>) -> bool {
        let Some(needed) = &shape.features else { return true };
        let of_host = host.map_or(&[][..], |host| &host.features);
        let is_slurm = host.is_some_and(|host| host.engine == HostEngine::Slurm);
        needed.holds(of_host) && (!is_slurm || needed.in_slurm().is_some())
    }

    /// Whether what a job needs can be said to a host: Slurm cannot be told what a node must not have.
    pub(super) fn can_say_features(&self, shape: &Shape, host: HostId) -> bool {
        let needed = shape.features.as_ref();
        needed.is_none_or(|needed| !self.is_slurm(host) || needed.in_slurm().is_some())
    }

    /// Features of a host, as the settings say.
    #[must_use]
    pub fn features_of(&self, host: &HostName) -> &[FeatureName] {
        let mut hosts = self.ledger.config.hosts.iter();
        hosts.find(|of| of.name == *host).map_or(&[], |of| &of.features)
    }

    /// Refuses features that no host of the settings has.
    pub(super) fn check_features(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let Some(needed) = &spec.features else { return Ok(()) };
        let known = self.ledger.config.hosts.iter().flat_map(|host| &host.features);
        let known: BTreeSet<&FeatureName> = known.collect();
        let mut unknown = None;
        needed.each(&mut |name| {
            if !known.contains(name) {
                unknown.get_or_insert(name);
            }
        });
        let Some(name) = unknown else { return Ok(()) };
        let all: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
        let there = match all[..] {
            [] => "the hosts of this grid have none (grid.toml, [[host]] features)".to_owned(),
            _ => format!("choose from {}", all.join(", ")),
        };
        Err(Refusal::Invalid(format!("no host has the feature {name}: {there}")))
    }

    /// Why no host can take a job, if it is for its features.
    pub(super) fn feature_refusal(&self, shape: &Shape) -> Option<Refusal> {
        let needed = shape.features.as_ref()?;
        let mut hosts = self.ledger.config.hosts.iter();
        let is_there = hosts.any(|host| self.has_features(shape, Some(host)));
        (!is_there)
            .then(|| Refusal::Invalid(format!("no host of this grid has the features {needed}")))
    }
}
