//! Errors of disks lately: a daemon counts them since its mount, which may be long ago. Decisions without I/O.

use std::collections::BTreeMap;

use forebay_grid::vocabulary::Moment;

use crate::watched::Disk;

/// A disk that had errors lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskErrors {
    /// Name of the disk.
    pub disk: String,
    /// Errors since the mount.
    pub errors: u64,
    /// The latest one.
    pub last: Option<String>,
}

/// What is remembered of each disk: its errors, and when they became more.
#[derive(Debug, Default)]
pub struct ErrorWatch(BTreeMap<String, (u64, Option<Moment>)>);

impl ErrorWatch {
    /// Takes in the counts of now; the disks on which there was an error within the latest `within_ms`. Errors that were there at the first
    /// look are taken for new ones: nothing says how old they are.
    pub fn take(&mut self, now: Moment, disks: &[Disk], within_ms: u64) -> Vec<DiskErrors> {
        self.0.retain(|name, _| disks.iter().any(|disk| disk.name == *name));
        let mut found = Vec::new();
        for disk in disks {
            let (count, at) = self.0.entry(disk.name.clone()).or_default();
            if disk.errors > *count {
                *at = Some(now);
            } else if disk.errors == 0 {
                // Mounted anew.
                *at = None;
            }
            *count = disk.errors;
            if at.is_some_and(|at| now.since(at) <= within_ms) {
                let (disk, errors, last) =
                    (disk.name.clone(), disk.errors, disk.last_error.clone());
                found.push(DiskErrors { disk, errors, last });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_reported_for_a_time_after_the_latest_and_again_when_there_are_more() {
        let disk = |errors| {
            let last_error = Some("EIO".to_owned());
            vec![Disk { name: "d".to_owned(), errors, last_error, ..Disk::default() }]
        };
        let mut watch = ErrorWatch::default();
        let mut count = |at: u64, errors: u64| {
            let found = watch.take(Moment(at), &disk(errors), 100);
            found.first().map(|one| one.errors)
        };
        assert_eq!(count(0, 0), None);
        assert_eq!(count(10, 2), Some(2));
        assert_eq!(count(110, 2), Some(2));
        assert_eq!(count(111, 2), None);
        assert_eq!(count(120, 3), Some(3));
        assert_eq!(count(130, 0), None, "mounted anew");
        assert_eq!(count(140, 1), Some(1));
        assert!(watch.take(Moment(150), &[], 100).is_empty());
    }
}
