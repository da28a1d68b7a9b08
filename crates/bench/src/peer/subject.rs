//! What is measured against what.

use clap::ValueEnum;
use serde::Serialize;

/// A file system under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// Plain XFS in a loop file: the limit, and the base of all ratios.
    Xfs,
    /// Plain ext4 in a loop file.
    Ext4,
    /// Forebay on XFS, with the transport that it chooses itself.
    Forebay,
    /// Forebay on XFS, requests coming by /dev/fuse.
    ForebayDev,
    /// Forebay on XFS, requests coming by io_uring.
    ForebayUring,
    /// mergerfs over a directory on XFS.
    Mergerfs,
    /// MooseFS with its data on XFS.
    Moosefs,
    /// GlusterFS with its brick on XFS.
    Glusterfs,
    /// CephFS through ceph-fuse, its object store in a file on XFS.
    Cephfs,
}

/// What kind of subject it is: targets are stated against kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file system of the kernel on a disk.
    Local,
    /// Forebay.
    Own,
    /// Passes calls on to another file system.
    PassThrough,
    /// Serves many machines over a network.
    Networked,
}

impl Peer {
    /// Name for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Peer::Xfs => "XFS",
            Peer::Ext4 => "ext4",
            Peer::Forebay => "Forebay",
            Peer::ForebayDev => "Forebay (dev)",
            Peer::ForebayUring => "Forebay (uring)",
            Peer::Mergerfs => "mergerfs",
            Peer::Moosefs => "MooseFS",
            Peer::Glusterfs => "GlusterFS",
            Peer::Cephfs => "CephFS (fuse)",
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Peer::Xfs | Peer::Ext4 => Kind::Local,
            Peer::Forebay | Peer::ForebayDev | Peer::ForebayUring => Kind::Own,
            Peer::Mergerfs => Kind::PassThrough,
            Peer::Moosefs | Peer::Glusterfs | Peer::Cephfs => Kind::Networked,
        }
    }

    /// All of them; Forebay once for each transport that it can be told, otherwise once.
    #[must_use]
    pub fn all(forebay_has_transports: bool) -> Vec<Peer> {
        Peer::value_variants()
            .iter()
            .copied()
            .filter(|peer| match peer {
                Peer::Forebay => !forebay_has_transports,
                Peer::ForebayDev | Peer::ForebayUring => forebay_has_transports,
                _ => true,
            })
            .collect()
    }
}

/// The subjects in the order of a round: each round begins with the next one, and every second goes the other
/// way round, so that none is always measured first or after the same one.
pub fn order(subjects: &[Peer], round: usize) -> impl Iterator<Item = Peer> + '_ {
    let count = subjects.len();
    (0..count).map(move |turn| {
        let turn = if round.is_multiple_of(2) { turn } else { count - turn };
        subjects[(round + turn) % count]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_every_subject_and_begins_with_another() {
        let subjects = [Peer::Xfs, Peer::Forebay, Peer::Moosefs];
        let rounds: Vec<Vec<Peer>> =
            (0..4).map(|round| order(&subjects, round).collect()).collect();
        assert_eq!(rounds[0], subjects);
        assert_eq!(rounds[1], [Peer::Forebay, Peer::Xfs, Peer::Moosefs]);
        assert_eq!(rounds[2], [Peer::Moosefs, Peer::Xfs, Peer::Forebay]);
        assert_eq!(rounds[3], [Peer::Xfs, Peer::Moosefs, Peer::Forebay]);
    }

    #[test]
    fn what_comes_before_a_subject_changes_from_round_to_round() {
        let subjects = [Peer::Xfs, Peer::Ext4, Peer::Forebay, Peer::Moosefs, Peer::Cephfs];
        for round in 0..10 {
            let before = |round| {
                let order: Vec<Peer> = order(&subjects, round).collect();
                order.windows(2).map(|pair| (pair[1], pair[0])).collect::<Vec<_>>()
            };
            let (now, next) = (before(round), before(round + 1));
            assert!(now.iter().all(|pair| !next.contains(pair)), "{now:?} then {next:?}");
        }
    }

    #[test]
    fn forebay_is_measured_once_for_each_transport() {
        let own = |transports| {
            let all = Peer::all(transports).into_iter();
            all.filter(|peer| peer.kind() == Kind::Own).collect::<Vec<Peer>>()
        };
        assert_eq!(own(false), [Peer::Forebay]);
        assert_eq!(own(true), [Peer::ForebayDev, Peer::ForebayUring]);
    }
}
