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

/// What is remembered of each disk, by its identity: its errors, and when they became more.
#[derive(Debug, Default)]
pub struct ErrorWatch(BTreeMap<String, (u64, Option<Moment>)>);

impl ErrorWatch {
    /// Takes in the counts of now; the disks on which there was an error within the latest `within_ms`. Errors that were there at the first
    /// look are taken for new ones: nothing says how old they are.
    pub fn take(&mut self, now: Moment, disks: &[Disk], within_ms: u64) -> Vec<DiskErrors> {
        self.0.retain(|uuid, _| disks.iter().any(|disk| disk.uuid == *uuid));
        let mut found = Vec::new();
        for disk in disks {
            let (count, at) = self.0.entry(disk.uuid.clone()).or_default();
            if disk.errors == 0 {
                *at = None;
            } else if disk.errors != *count {
                // Fewer than before: it was mounted anew, and had these since.
                *at = Some(now);
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
            let (uuid, name) = ("1".to_owned(), "d".to_owned());
            vec![Disk { uuid, name, errors, last_error, ..Disk::default() }]
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
        assert_eq!(count(140, 5), Some(5));
        assert_eq!(count(241, 5), None);
        assert_eq!(count(250, 2), Some(2), "mounted anew, and errors since");
        assert!(watch.take(Moment(260), &[], 100).is_empty());
    }

    #[test]
    fn disks_of_several_nodes_in_the_same_directory_are_not_taken_for_each_other() {
        let disk = |uuid: &str, node: &str, errors| Disk {
            uuid: uuid.to_owned(),
            name: format!("{node}:/data"),
            errors,
            ..Disk::default()
        };
        let mut watch = ErrorWatch::default();
        let both = [disk("1", "n1", 3), disk("2", "n2", 0)];
        let found = watch.take(Moment(0), &both, 100);
        assert_eq!(found.iter().map(|one| &*one.disk).collect::<Vec<_>>(), ["n1:/data"]);
        assert!(watch.take(Moment(101), &both, 100).is_empty(), "they are old");
    }
}
