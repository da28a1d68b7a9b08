//! The certificates of monitors: what etcd keeps of them, and how the daemons of a node learn which of them were removed.
//!
//! The daemons that serve metrics (of the file system, the controller, the hosts) are processes of their own, without a watch on etcd. The
//! node's daemon has one, and keeps the serial numbers of removed certificates in a file of the node's folder, which the others read for
//! each connection. While it does not run, what it wrote last applies.

use std::collections::{BTreeMap, BTreeSet};

use forebay_etcd::{Compare, Keys, Op, RangeOptions, Txn};

use super::book::{Book, TRIES, contended};
use super::record::{Key, MonitorRecord, encode};
use super::roster;
use crate::error::{Error, Result};
use crate::home::NodeHome;

/// The file: a JSON list of serial numbers.
const REMOVED: &str = "removed-monitors.json";

/// Most changes of one transaction; etcd takes 128.
const OPS_MAX: usize = 100;

impl Book {
    /// Notes a certificate of a monitor. Records of certificates that have expired go, if the new one takes their place or they were removed.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn add_monitor(&self, serial: &str, record: &MonitorRecord) -> Result<()> {
        let is_over = |old: &MonitorRecord| {
            old.expires <= record.issued && (old.removed.is_some() || old.name == record.name)
        };
        self.change_monitors(|monitors| {
            let over = monitors.iter().filter(|(_, old)| is_over(old));
            let mut ops = vec![self.put_monitor(serial, record)];
            ops.extend(over.take(OPS_MAX).map(|(serial, _)| self.delete_monitor(serial)));
            Ok(((), ops))
        })
    }

    /// Forgets a certificate that nobody has.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn forget_monitor(&self, serial: &str) -> Result<()> {
        self.change_monitors(|_| Ok(((), vec![self.delete_monitor(serial)])))
    }

    /// Removes a monitor: nodes refuse all its certificates, those that are being made meanwhile included, unless they are recorded
    /// afterwards. Says how many of them had not expired. It is one change; only of more than 100 certificates it takes several.
    ///
    /// # Errors
    /// If there is no such monitor, or etcd does not answer.
    pub fn remove_monitor(&self, name: &str, now_seconds: i64) -> Result<usize> {
        let (mut removed, mut begun) = (0, false);
        loop {
            let (count, left) = self.change_monitors(|monitors| {
                let found = monitors.iter().filter(|(_, one)| one.name == name);
                let found: Vec<_> = found.filter(|(_, one)| one.removed.is_none()).collect();
                if found.is_empty() && !begun {
                    return Err(Error::Invalid(format!(
                        "the cluster has no monitor {name:?}: forebay cluster status lists them"
                    )));
                }
                let some = &found[..found.len().min(OPS_MAX)];
                let ops = some.iter().map(|(serial, one)| self.removal(serial, one, now_seconds));
                let valid = some.iter().filter(|(_, one)| one.expires > now_seconds).count();
                Ok(((valid, found.len() - some.len()), ops.collect()))
            })?;
            removed += count;
            begun = true;
            if left == 0 {
                return Ok(removed);
            }
        }
    }

    /// A certificate that has expired is forgotten, another one is marked.
    fn removal(&self, serial: &str, record: &MonitorRecord, now_seconds: i64) -> Op {
        if record.expires <= now_seconds {
            return self.delete_monitor(serial);
        }
        self.put_monitor(serial, &MonitorRecord { removed: Some(now_seconds), ..record.clone() })
    }

    /// Changes the records of monitors as one. `change` decides by those that are there; it is asked again if others changed them
    /// before it was carried out.
    fn change_monitors<T>(
        &self,
        change: impl Fn(&BTreeMap<String, MonitorRecord>) -> Result<(T, Vec<Op>)>,
    ) -> Result<T> {
        let all = Keys::prefix(self.names().key(Key::Monitor("")));
        for _ in 0..TRIES {
            let found = self.client().range(all.clone(), RangeOptions::default())?;
            let (sight, _) = roster::read(self.names(), &found);
            let (outcome, then) = change(&sight.monitors)?;
            let when = vec![Compare::Unchanged(all.clone(), found.revision)];
            if self.client().txn(Txn { when, then, otherwise: Vec::new() })?.held {
                return Ok(outcome);
            }
        }
        Err(contended())
    }

    fn put_monitor(&self, serial: &str, record: &MonitorRecord) -> Op {
        Op::put(self.names().key(Key::Monitor(serial)), encode(record))
    }

    fn delete_monitor(&self, serial: &str) -> Op {
        Op::Delete(Keys::one(self.names().key(Key::Monitor(serial))))
    }
}

/// Serial numbers of the certificates of monitors that were removed, as the node's daemon wrote them last.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn removed(home: &NodeHome) -> Result<BTreeSet<String>> {
    let Some(text) = home.read(REMOVED)? else { return Ok(BTreeSet::new()) };
    serde_json::from_str(&text).map_err(|error| Error::Damaged {
        path: home.folder().join(REMOVED),
        reason: format!("{error}; restart the node's daemon, which writes the file anew"),
    })
}

/// Keeps that file as the cluster says.
pub(crate) struct RemovedMonitors {
    home: NodeHome,
    kept: Option<BTreeSet<String>>,
    /// Whether the latest attempt to write them failed, and was reported.
    failed: bool,
}

impl RemovedMonitors {
    /// The file of a node.
    pub(crate) fn of(home: &NodeHome) -> RemovedMonitors {
        RemovedMonitors { home: home.clone(), kept: removed(home).ok(), failed: false }
    }

    /// Writes these serial numbers, unless they are there. What fails is tried again at the next call.
    pub(crate) fn keep(&mut self, serials: BTreeSet<String>) {
        if self.kept.as_ref() == Some(&serials) {
            return;
        }
        let text = serde_json::to_string_pretty(&serials).unwrap_or_default();
        match self.home.write(REMOVED, &text) {
            Ok(()) => {
                tracing::info!(count = serials.len(), "removed monitors are refused");
                self.kept = Some(serials);
                self.failed = false;
            }
            Err(error) => {
                if !self.failed {
                    tracing::error!("{error}: removed monitors still read metrics here");
                }
                self.failed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_removed_monitors_is_read_as_it_was_written_and_a_damaged_one_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let home = NodeHome::of(base.path(), "grid1").unwrap();
        home.make().unwrap();
        assert!(removed(&home).unwrap().is_empty());
        let one = BTreeSet::from(["4e0f".to_owned()]);
        RemovedMonitors::of(&home).keep(BTreeSet::new());
        assert!(!home.folder().join(REMOVED).exists(), "nothing changed");
        RemovedMonitors::of(&home).keep(one.clone());
        assert_eq!(removed(&home).unwrap(), one);
        std::fs::write(home.folder().join(REMOVED), "[\"4e").unwrap();
        let error = removed(&home).unwrap_err().to_string();
        assert!(error.contains(REMOVED) && error.contains("writes the file anew"), "{error}");
        RemovedMonitors::of(&home).keep(BTreeSet::new());
        assert!(removed(&home).unwrap().is_empty(), "written anew");
    }
}
