//! Every time and bound of the protocol, with its default.

use std::time::Duration;

use crate::time::Drift;

/// Times and bounds of the protocol; the same on every node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long etcd keeps a node's lease without a renewal. Whole seconds. A dead node's filesets are without an owner
    /// for this long.
    pub node_lease: Duration,
    /// By how much clocks may differ in rate. NTP corrects at most 500 ppm, so two clocks differ by at most 1000.
    pub clock_drift: Drift,
    /// How long before the end of its lease a node stops answering.
    pub lease_margin: Duration,
    /// After what time a request to etcd counts as failed.
    pub etcd_timeout: Duration,
    /// Time between a failed request to etcd and the next.
    pub etcd_retry: Duration,
    /// How long the second node in the order of takeover waits for the first, and so on.
    pub takeover_patience: Duration,
    /// How long a node that could not open a fileset leaves it to others.
    pub open_retry: Duration,
    /// How long a fileset stays with its owner before it is moved for balance.
    pub owner_hold_min: Duration,
    /// Filesets that a node hands over at the same time.
    pub handovers_max: usize,
    /// Longest time for which a node vouches for what its clients cache; a client that loses contact stops using it.
    pub vouch: Duration,
    /// Time between two keepalives of a session.
    pub keepalive: Duration,
    /// After what time without a frame a connection counts as broken.
    pub silence_max: Duration,
    /// Time between two attempts to connect.
    pub reconnect: Duration,
    /// How long a client without a connection keeps its opens, locks and grants.
    pub session_grace: Duration,
    /// Calls of one session, in one direction, whose answers are outstanding (slots); further ones wait.
    pub calls_max: usize,
    /// Slots of their own for calls that other calls wait for, such as reports of what was done in delegated directories.
    pub releases_max: usize,
    /// Calls of one session, in one direction, that wait for a slot; further ones fail.
    pub backlog_max: usize,
    /// After what time without an acknowledgement of a recall its client is evicted.
    pub recall_timeout: Duration,
    /// Grants of one client in one fileset; beyond it the least recently used are recalled.
    pub grants_max: usize,
    /// How long an item is not granted after its grants were recalled; doubles while grants are recalled soon.
    pub cool_down_min: Duration,
    /// The most that `cool_down_min` grows to.
    pub cool_down_max: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            node_lease: Duration::from_secs(10),
            clock_drift: Drift { ppm: 1000 },
            lease_margin: Duration::from_millis(500),
            etcd_timeout: Duration::from_secs(2),
            etcd_retry: Duration::from_millis(500),
            takeover_patience: Duration::from_secs(2),
            open_retry: Duration::from_secs(5),
            owner_hold_min: Duration::from_secs(60),
            handovers_max: 4,
            vouch: Duration::from_secs(5),
            keepalive: Duration::from_secs(1),
            silence_max: Duration::from_secs(3),
            reconnect: Duration::from_millis(200),
            session_grace: Duration::from_secs(30),
            calls_max: 256,
            releases_max: 16,
            backlog_max: 4096,
            recall_timeout: Duration::from_secs(10),
            grants_max: 100_000,
            cool_down_min: Duration::from_millis(10),
            cool_down_max: Duration::from_secs(1),
        }
    }
}

impl Settings {
    /// For how long a node may rely on a lease of `ttl` that etcd began to count no earlier than the node did.
    #[must_use]
    pub fn sure_of(&self, ttl: Duration) -> Duration {
        self.clock_drift.at_least(ttl).saturating_sub(self.lease_margin)
    }

    /// Time between two renewals of the node's lease: three may fail before the node waits.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.node_lease / 4
    }

    /// After what time of this node's clock nothing that another node vouched for is in use any more.
    #[must_use]
    pub fn lapse(&self) -> Duration {
        self.clock_drift.at_most(self.vouch)
    }

    /// Checks that the times fit together.
    ///
    /// # Errors
    /// The first pair that does not, with both values and what is required.
    pub fn validate(&self) -> Result<(), String> {
        let second = Duration::from_secs(1);
        let pairs = [
            ("node_lease", self.node_lease, "2 s", second * 2),
            (
                "node_lease",
                self.sure_of(self.node_lease),
                "etcd_timeout after the margin",
                self.etcd_timeout,
            ),
            (
                "recall_timeout",
                self.recall_timeout,
                "the lapse of vouch",
                self.lapse() + self.keepalive,
            ),
            ("session_grace", self.session_grace, "the lapse of vouch", self.lapse()),
            ("vouch", self.vouch, "keepalive", self.keepalive),
            ("silence_max", self.silence_max, "keepalive", self.keepalive),
            ("cool_down_max", self.cool_down_max, "cool_down_min", self.cool_down_min),
        ];
        for (name, value, least_name, least) in pairs {
            if value < least {
                return Err(format!(
                    "{name} is {value:?}: must be at least {least_name} ({least:?})"
                ));
            }
        }
        if self.node_lease.subsec_nanos() != 0 {
            return Err(format!("node_lease is {:?}: must be whole seconds", self.node_lease));
        }
        for (name, value) in [
            ("handovers_max", self.handovers_max),
            ("calls_max", self.calls_max),
            ("releases_max", self.releases_max),
            ("backlog_max", self.backlog_max),
            ("grants_max", self.grants_max),
        ] {
            if value == 0 {
                return Err(format!("{name} is 0: must be at least 1"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_fit_together() {
        assert_eq!(Settings::default().validate(), Ok(()));
    }

    #[test]
    fn settings_that_do_not_fit_are_refused_with_both_values() {
        let shortened = Settings { recall_timeout: Duration::from_secs(3), ..Settings::default() };
        let refusal = shortened.validate().unwrap_err();
        assert!(refusal.contains("recall_timeout") && refusal.contains("3s"), "{refusal}");
        let lease = Duration::from_millis(10_500);
        assert!(Settings { node_lease: lease, ..Settings::default() }.validate().is_err());
        assert!(Settings { calls_max: 0, ..Settings::default() }.validate().is_err());
    }
}
