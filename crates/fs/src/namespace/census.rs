//! The census at work: one pass over the committed inodes of each fileset, by the node that owns it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{DiskId, FilesetId, Ino, Timestamp};
use parking_lot::Mutex;

use super::Namespace;
use super::cluster::{Membership, Whose};
use crate::census::{ArchiveCensus, Census, Counter, FilesetCensus};
use crate::error::{FsError, Result};
use crate::key;
use crate::ops::shown_name;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::record::{DiskRecord, DiskUse, InodeRecord, Placement, decode};
use crate::recovery::scan_prefix;
use crate::remote::Answer;
use crate::remote::wire::encode;

/// What was counted of archives, by their disks.
type Archives = BTreeMap<DiskId, ArchiveCensus>;

/// Why a native fileset is not counted.
const NATIVE: &str = "a native fileset is a directory of its disk, whose files are not known here";

/// How long a fileset is waited for whose owner does not answer: longer than a takeover.
const OWNER_LIMIT: Duration = Duration::from_secs(30);
/// How long the owner of a fileset may count.
const COUNT_LIMIT: Duration = Duration::from_mins(25);
/// The first pause between two questions; each is twice as long, up to the last.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

impl Namespace {
    /// Counts what the files of each fileset hold, by user and age. Reads all inodes once: for people who ask, not for programs.
    /// In a cluster each fileset is counted by its owner. One that cannot be counted says why: native ones, damaged ones, and
    /// those whose owner does not answer. The size of a file that is being written is that of the last commit.
    #[must_use]
    pub fn census(&self) -> Census {
        let begun = self.shared.clock.instant();
        let mut filesets = Vec::new();
        let mut archives = self.archives_to_count();
        for fileset in self.catalogue.list() {
            let settings = fileset.settings();
            let name = shown_name(&settings.name).to_owned();
            let counted = if settings.placement == Placement::Native {
                Err(FsError::Refused(NATIVE.to_owned()))
            } else {
                self.census_of(fileset.id, &mut archives)
            };
            let counted = counted.unwrap_or_else(|why| FilesetCensus {
                not_counted: Some(why.to_string()),
                ..FilesetCensus::default()
            });
            filesets.push(FilesetCensus { fileset: name, ..counted });
        }
        let took = self.shared.clock.instant().saturating_duration_since(begun);
        let archives = archives.into_values().collect();
        Census { filesets, archives, seconds: took.as_secs_f64() }
    }

    fn archives_to_count(&self) -> Archives {
        let disks = self.disks.read();
        let archives = disks.iter().filter(|disk| disk.used != DiskUse::Removed);
        let archives = archives.filter(|disk| self.shared.objects.is_archive(disk.id));
        let empty = |disk: &DiskRecord| {
            let (location, pool) = (disk.location.clone(), disk.pool.clone());
            (disk.id, ArchiveCensus { location, pool, ..ArchiveCensus::default() })
        };
        archives.map(empty).collect()
    }

    fn census_of(&self, id: FilesetId, archives: &mut Archives) -> Result<FilesetCensus> {
        match &self.cluster {
            None => self.open_fileset(id)?.census(self.shared.clock.now(), archives),
            Some(membership) => self.census_by_owner(membership, id),
        }
    }

    /// Has the owner of a fileset count it, and waits for that. In a cluster no fileset is taken over for a census.
    fn census_by_owner(&self, membership: &Membership, id: FilesetId) -> Result<FilesetCensus> {
        let clock = &self.shared.clock;
        let begun = clock.instant();
        let (mut answered, mut ticket, mut pause) = (begun, None, PAUSE);
        loop {
            let counted = match membership.whose(id) {
                Whose::Here(_) => {
                    let own = self.partition_to_count(id);
                    own.and_then(|own| own.census(clock.now(), &mut Archives::new())).map(Some)
                }
                Whose::There(node, channel) => {
                    match membership.remote_owner(id, node, channel, clock) {
                        Owner::Remote(remote) => remote.census(ticket).map(|(its, count)| {
                            (answered, ticket) = (clock.instant(), Some(its));
                            count
                        }),
                        Owner::Local(_) | Owner::Native(_) => Err(FsError::Moved),
                    }
                }
                Whose::Nobody => Err(FsError::Moved),
                Whose::Lost(why) => Err(FsError::Refused(why)),
            };
            match counted {
                Ok(Some(count)) => return Ok(count),
                Ok(None) | Err(FsError::Moved) => {}
                Err(error) => return Err(error),
            }
            let now = clock.instant();
            let refuse = |why: &str| Err(FsError::Refused(why.to_owned()));
            if now.saturating_duration_since(answered) > OWNER_LIMIT {
                return refuse("no node has answered for it for 30 seconds");
            }
            if now.saturating_duration_since(begun) > COUNT_LIMIT {
                return refuse("its owner was still counting after 25 minutes");
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn partition_to_count(&self, id: FilesetId) -> Result<Arc<Partition>> {
        match &*self.own(Ino::top_of(id))? {
            Owner::Local(partition) => Ok(Arc::clone(partition)),
            Owner::Native(_) => Err(FsError::Refused(NATIVE.to_owned())),
            Owner::Remote(_) => Err(FsError::Moved),
        }
    }

    /// Begins a count for another node, or answers with the result of the one that it has the ticket of.
    pub(crate) fn census_for_node(
        &self,
        id: FilesetId,
        ticket: Option<u64>,
    ) -> Result<(Answer, Vec<u8>)> {
        let membership = self.cluster.as_ref().ok_or(FsError::Invalid)?;
        let partition = self.partition_to_count(id)?;
        let mut censuses = membership.censuses.0.lock();
        if let Some(known) = censuses.get(&id) {
            let answer = |done| Answer::Census { ticket: known.ticket, done };
            match &known.result {
                // Nodes that ask meanwhile get the same count.
                None => return Ok((answer(false), Vec::new())),
                Some(result) if ticket == Some(known.ticket) => {
                    return Ok((answer(true), encode(&result.clone()?)));
                }
                Some(_) => {}
            }
        }
        let now = self.shared.clock.now();
        // Not the ticket of another node, nor of an earlier life of this one.
        let ticket =
            now.seconds.cast_unsigned().wrapping_mul(1_000_000_000) ^ u64::from(now.nanoseconds);
        let shared = Arc::clone(&membership.censuses.0);
        std::thread::Builder::new()
            .name("census".to_owned())
            .spawn(move || {
                let result = partition.census(now, &mut Archives::new());
                if let Some(known) = shared.lock().get_mut(&id) {
                    known.result = Some(result);
                }
            })
            .map_err(|error| FsError::Io(format!("cannot start a thread to count: {error}")))?;
        censuses.insert(id, Counting { ticket, result: None });
        Ok((Answer::Census { ticket, done: false }, Vec::new()))
    }
}

/// Counts that other nodes have requested: the latest of each fileset.
#[derive(Default)]
pub(super) struct Censuses(Arc<Mutex<HashMap<FilesetId, Counting>>>);

struct Counting {
    ticket: u64,
    /// None while it is under way.
    result: Option<Result<FilesetCensus>>,
}

impl Partition {
    /// Without the name of the fileset.
    fn census(&self, now: Timestamp, archives: &mut Archives) -> Result<FilesetCensus> {
        self.commit()?;
        let mut counter = Counter::new(now);
        let may_be_premigrated = self.copies().is_in_use() && !archives.is_empty();
        scan_prefix(self.store(), &[key::INODE], &mut |_, value| {
            let record: InodeRecord = decode("inode", value)?;
            counter.see(&record);
            let disk = record.layout.object().map(|at| at.disk);
            if let Some(archive) = disk.and_then(|disk| archives.get_mut(&disk)) {
                archive.files += 1;
                archive.bytes = archive.bytes.saturating_add(record.size);
                archive.stored_bytes = archive.stored_bytes.saturating_add(record.allocated_bytes);
            } else if may_be_premigrated
                && let Some(at) = record.layout.object()
                && let Some((disk, stored_bytes)) = self.premigrated(at)?
                && let Some(archive) = archives.get_mut(&disk)
            {
                archive.premigrated_files += 1;
                archive.premigrated_bytes = archive.premigrated_bytes.saturating_add(record.size);
                archive.premigrated_stored_bytes =
                    archive.premigrated_stored_bytes.saturating_add(stored_bytes);
            }
            Ok(())
        })?;
        Ok(counter.finish(String::new()))
    }
}
