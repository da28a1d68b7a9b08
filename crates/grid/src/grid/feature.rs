//! Features of hosts, by which jobs choose them.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use crate::config::{HostConfig, HostEngine, QueueConfig};
use crate::event::Refusal;
use crate::grid::Grid;
use crate::ready::Shape;
use crate::slurm::with_features;
use crate::spec::JobSpec;
use crate::vocabulary::{FeatureName, HostId, HostName, QueueId};

impl Grid {
    /// Whether a host has what a job needs, as the settings say; one that they do not name has no features.
    pub(super) fn has_features(&self, shape: &Shape, host: Option<&HostConfig>) -> bool {
        let of_host = host.map_or(&[][..], |host| &host.features);
        shape.features.as_ref().is_none_or(|needed| needed.holds(of_host))
    }

    /// Why Slurm cannot be told what a job needs in a queue, if it cannot.
    fn slurm_fault(&self, queue: &QueueConfig, shape: &Shape) -> Option<String> {
        with_features(&queue.slurm, shape.features.as_ref()).err()
    }

    /// Whether Slurm can be told what a job needs in a queue. It is found out when it is asked first.
    pub(super) fn fits_slurm<'a>(
        &'a self,
        queue: QueueId,
        shape: &'a Shape,
    ) -> impl Fn() -> bool + 'a {
        let known = OnceCell::new();
        move || {
            *known.get_or_init(|| {
                let config = self.queue_config(queue);
                config.is_some_and(|config| self.slurm_fault(config, shape).is_none())
            })
        }
    }

    /// Whether a host that stands for Slurm has what a job needs.
    fn slurm_has_features(&self, shape: &Shape) -> bool {
        let hosts = &self.ledger.config.hosts;
        let joined = (0..self.ledger.hosts.len() as u32).map(HostId);
        let mut of_slurm = joined
            .filter(|host| self.is_slurm(*host))
            .map(|host| self.index.hosts[host.0 as usize].config.map(|place| &hosts[place]));
        of_slurm.any(|host| self.has_features(shape, host))
            || hosts.iter().any(|host| {
                host.engine == HostEngine::Slurm && self.has_features(shape, Some(host))
            })
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

    /// Why no host can take a job of a queue, if it is for its features.
    pub(super) fn feature_refusal(&self, queue: QueueId, shape: &Shape) -> Option<Refusal> {
        let needed = shape.features.as_ref()?;
        let mut hosts = self.ledger.config.hosts.iter();
        if !hosts.any(|host| self.has_features(shape, Some(host))) {
            let fault = format!("no host of this grid has the features {needed}");
            return Some(Refusal::Invalid(fault));
        }
        let why = self.slurm_fault(self.queue_config(queue)?, shape)?;
        if !self.slurm_has_features(shape) {
            return None;
        }
        let plain = Shape { features: None, ..shape.clone() };
        let fault = format!("it could run through Slurm only, and {why}");
        self.may_ever_run(queue, &plain).then_some(Refusal::Invalid(fault))
    }
}
