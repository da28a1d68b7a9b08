//! Quotas: how much a fileset may hold, and each user and group within it.
//!
//! A quota limits space (the sum of the sizes of files) and inodes. A hard limit is never exceeded where the daemon sees
//! the change first; a soft limit may be exceeded for a time of grace. The owner of a file is charged, whoever writes it.
//!
//! Quotas and what their owners hold lie in the store of the fileset and change in the batches of the changes that they
//! count. So a crash leaves both as of the same moment, and nothing is counted again at the opening. Users and groups are
//! counted only while at least one of them has a quota: the first such quota has the fileset counted (`counting.rs`), while
//! programs go on.

mod counting;
mod table;

use forebay_base::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use counting::{Share, share_of};
pub(crate) use table::{Limited, More, Owners, Quotas, seconds_left, subjects_of};

use crate::record::{Record, Usage};

/// Whom a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// Everything in the fileset.
    Fileset,
    /// The files of each user who has no quota of his own; those of root are not limited.
    #[serde(rename = "each_user")]
    EachUser,
    /// The files of each group that has no quota of its own; those of group 0 are not limited.
    #[serde(rename = "each_group")]
    EachGroup,
    /// The files of a user.
    User(u32),
    /// The files of a group.
    Group(u32),
}

impl Subject {
    /// Kind and number, as keys of the store have them.
    pub(crate) fn parts(self) -> (u8, u32) {
        match self {
            Subject::Fileset => (b'f', 0),
            Subject::User(uid) => (b'u', uid),
            Subject::Group(gid) => (b'g', gid),
            Subject::EachUser => (b'U', 0),
            Subject::EachGroup => (b'G', 0),
        }
    }

    /// The subject of kind and number.
    pub(crate) fn of_parts(kind: u8, number: u32) -> Option<Subject> {
        match (kind, number) {
            (b'f', 0) => Some(Subject::Fileset),
            (b'u', uid) => Some(Subject::User(uid)),
            (b'g', gid) => Some(Subject::Group(gid)),
            (b'U', 0) => Some(Subject::EachUser),
            (b'G', 0) => Some(Subject::EachGroup),
            _ => None,
        }
    }

    /// The default that limits it while it has no quota of its own.
    #[must_use]
    pub fn default_quota(self) -> Option<Subject> {
        match self {
            Subject::User(1..) => Some(Subject::EachUser),
            Subject::Group(1..) => Some(Subject::EachGroup),
            _ => None,
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Fileset => f.write_str("the fileset"),
            Subject::User(uid) => write!(f, "user {uid}"),
            Subject::Group(gid) => write!(f, "group {gid}"),
            Subject::EachUser => f.write_str("each user"),
            Subject::EachGroup => f.write_str("each group"),
        }
    }
}

/// Limits of one resource; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// May be exceeded for the time of grace.
    pub soft: Option<u64>,
    /// May not be exceeded.
    pub hard: Option<u64>,
}

/// What a quota allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Sum of the sizes of files, in bytes.
    pub bytes: Limits,
    /// Inodes of any kind.
    pub inodes: Limits,
    /// How long a soft limit may be exceeded, in seconds.
    pub grace_seconds: u64,
}

impl Quota {
    /// Grace that a quota gets unless another one is chosen: a week.
    pub const GRACE_SECONDS: u64 = 7 * 86_400;

    /// A quota that admits everything: who has it is exempt from the default.
    pub const UNLIMITED: Quota = {
        let limits = Limits { soft: None, hard: Some(u64::MAX) };
        Quota { bytes: limits, inodes: limits, grace_seconds: 0 }
    };

    /// Whether it limits nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == Limits::default() && self.inodes == Limits::default()
    }

    /// Why it makes no sense, if so.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        for (what, limits) in [("space", self.bytes), ("files", self.inodes)] {
            if let Limits { soft: Some(soft), hard: Some(hard) } = limits
                && soft > hard
            {
                return Some(format!(
                    "the soft limit of {what} ({soft}) is above the hard limit ({hard})"
                ));
            }
        }
        None
    }
}

/// What becomes of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitChange {
    /// It stays.
    #[default]
    Keep,
    /// It goes.
    Clear,
    /// It becomes this.
    To(u64),
}

impl LimitChange {
    fn apply(self, before: Option<u64>) -> Option<u64> {
        match self {
            LimitChange::Keep => before,
            LimitChange::Clear => None,
            LimitChange::To(limit) => Some(limit),
        }
    }
}

/// What becomes of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaChange {
    /// Of the soft limit of space.
    pub soft_bytes: LimitChange,
    /// Of the hard limit of space.
    pub hard_bytes: LimitChange,
    /// Of the soft limit of inodes.
    pub soft_inodes: LimitChange,
    /// Of the hard limit of inodes.
    pub hard_inodes: LimitChange,
    /// The time of grace in seconds, if it is to change.
    pub grace_seconds: Option<u64>,
}

impl QuotaChange {
    /// The quota after the change.
    #[must_use]
    pub fn apply(&self, before: Quota) -> Quota {
        let limits = |limits: Limits, soft: LimitChange, hard: LimitChange| Limits {
            soft: soft.apply(limits.soft),
            hard: hard.apply(limits.hard),
        };
        Quota {
            bytes: limits(before.bytes, self.soft_bytes, self.hard_bytes),
            inodes: limits(before.inodes, self.soft_inodes, self.hard_inodes),
            grace_seconds: self.grace_seconds.unwrap_or(before.grace_seconds),
        }
    }
}

/// A quota as the store has it.
///
/// Who is limited by a default has a record with an empty quota while a time of grace runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRecord {
    /// What it allows.
    pub quota: Quota,
    /// Since when the soft limit of space is exceeded.
    pub bytes_over: Option<Timestamp>,
    /// Since when the soft limit of inodes is exceeded.
    pub inodes_over: Option<Timestamp>,
}

impl Record for QuotaRecord {
    const KIND: &str = "quota";
    const VERSION: u8 = 1;
}

/// What a user or group holds in the fileset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding(pub Usage);

impl Record for Holding {
    const KIND: &str = "holding";
    const VERSION: u8 = 1;
}

/// A quota with what is held of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// Name of the fileset; `/` for the root fileset.
    pub fileset: String,
    /// Whom it limits.
    pub subject: Subject,
    /// What it allows; nothing is limited for a user or group without a quota.
    pub quota: Quota,
    /// What is held.
    pub usage: Usage,
    /// Whether the quota is the default of the fileset's users or groups.
    #[serde(default)]
    pub by_default: bool,
    /// Seconds of grace that are left for space, if its soft limit is exceeded.
    pub bytes_grace_left: Option<u64>,
    /// The same for inodes.
    pub inodes_grace_left: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{decode, encode};

    #[test]
    fn a_quota_reads_back() {
        let record = QuotaRecord {
            quota: Quota {
                bytes: Limits { soft: Some(5), hard: Some(u64::MAX) },
                inodes: Limits { soft: None, hard: Some(0) },
                grace_seconds: 9,
            },
            bytes_over: Some(Timestamp::new(7, 1)),
            inodes_over: None,
        };
        assert_eq!(decode::<QuotaRecord>("quota", &encode(&record)).unwrap(), record);
        for subject in [
            Subject::Fileset,
            Subject::User(7),
            Subject::Group(u32::MAX),
            Subject::EachUser,
            Subject::EachGroup,
        ] {
            let (kind, number) = subject.parts();
            assert_eq!(Subject::of_parts(kind, number), Some(subject));
        }
        assert_eq!(Subject::of_parts(b'f', 1), None);
    }

    #[test]
    fn a_soft_limit_above_the_hard_one_is_a_fault() {
        let limits = |soft, hard| Limits { soft: Some(soft), hard: Some(hard) };
        let quota = Quota { bytes: limits(5, 4), ..Quota::default() };
        assert_eq!(
            quota.fault().unwrap(),
            "the soft limit of space (5) is above the hard limit (4)"
        );
        assert_eq!(Quota { bytes: limits(4, 4), ..Quota::default() }.fault(), None);
    }
}
