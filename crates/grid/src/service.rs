//! Services: jobs that are kept running under a name.
//!
//! A service is a job like any other: it waits in a queue, holds slots and has one task. What makes it one: it starts
//! again whenever it ends, on another host if its own is lost, until somebody stops it or it fails too often in a row. The
//! time between two starts doubles with each failure. Among the unfinished services of a user a name is unique.

use serde::{Deserialize, Serialize};

use crate::config::General;
use crate::spec::PATH_BYTES_MAX;
use crate::vocabulary::{Moment, ServiceName};
use crate::wrap;

/// The port on which a service listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServicePort {
    /// It listens on none.
    #[default]
    None,
    /// One of those between `service_port_min` and `service_port_max`, which no other service of the grid has.
    Chosen,
    /// This one.
    Fixed(u16),
}

/// What makes a job a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// The port on which it listens.
    #[serde(default)]
    pub port: ServicePort,
    /// A shell command that succeeds while the service is ready.
    #[serde(default)]
    pub check: Option<String>,
    /// A file that holds its address while it is ready.
    #[serde(default)]
    pub address_file: Option<String>,
}

impl Service {
    /// Why it cannot be, as far as it shows by itself.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.port == ServicePort::Fixed(0) {
            return Some("port 0: choose 1 to 65535, or auto".to_owned());
        }
        if let Some(allowed) = self.check.as_ref().and_then(|check| wrap::fault(check)) {
            return Some(format!("check: expected {allowed}"));
        }
        let file = self.address_file.as_ref();
        file.filter(|path| !path.starts_with('/') || path.len() > PATH_BYTES_MAX).map(|path| {
            format!("address file \"{path}\": expected an absolute path of at most {PATH_BYTES_MAX} bytes")
        })
    }
}

/// How a service is doing, as far as that lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceState {
    /// Its port, if it has one.
    pub port: Option<u16>,
    /// How often it ended in a row without having run for `service_stable` before.
    pub failures: u32,
    /// When it starts again at the earliest.
    pub not_before: Option<Moment>,
}

impl ServiceState {
    /// After a start that lasted for `ran_ms` has ended by itself.
    #[must_use]
    pub fn ended(self, ran_ms: Option<u64>, general: &General) -> ServiceState {
        let was_stable = ran_ms.is_some_and(|ran| ran >= general.service_stable.as_ms());
        let failures = if was_stable { 1 } else { self.failures.saturating_add(1) };
        ServiceState { failures, ..self }
    }

    /// How long it waits after so many failures.
    #[must_use]
    pub fn pause_ms(self, general: &General) -> u64 {
        let doublings = self.failures.saturating_sub(1).min(40);
        let pause = general.service_pause.as_ms().saturating_mul(1 << doublings);
        pause.min(general.service_pause_max.as_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_with_each_failure_in_a_row_up_to_its_maximum() {
        let general = General::default();
        let mut state = ServiceState::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            state = state.ended(Some(0), &general);
            pauses.push(state.pause_ms(&general) / 1000);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        state = state.ended(Some(60_000), &general);
        assert_eq!((state.failures, state.pause_ms(&general)), (1, 1000));
    }

    #[test]
    fn what_a_service_cannot_be_is_named() {
        let service = Service {
            name: "db".parse().unwrap(),
            port: ServicePort::Fixed(0),
            check: Some(String::new()),
            address_file: Some("db.json".to_owned()),
        };
        assert!(service.fault().unwrap().contains("port 0"));
        let service = Service { port: ServicePort::Chosen, ..service };
        assert!(service.fault().unwrap().contains("check"));
        let service = Service { check: None, ..service };
        assert!(service.fault().unwrap().contains("absolute"));
    }
}
