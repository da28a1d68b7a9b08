//! What a file-system call can be refused with.

use forebay_base::PowerCut;
use forebay_disk::DiskError;
use forebay_store::StoreError;

/// Why an operation was refused. Each kind is one the caller acts on differently; the kernel front
/// end maps each to one errno.
#[derive(Clone, Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum FsError {
    /// No entry of that name (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("file exists")]
    Exists,
    /// A directory is needed (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// A directory does not do here (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("directory not empty")]
    NotEmpty,
    /// The name is longer than 255 bytes (ENAMETOOLONG).
    #[error("file name too long")]
    NameTooLong,
    /// Source and target lie in different filesets (EXDEV).
    #[error("files cannot be renamed or linked across filesets")]
    CrossFileset,
    /// Nothing can be changed in a snapshot, nor in a read-only cache (EROFS).
    #[error("a snapshot or a read-only cache cannot be changed")]
    ReadOnly,
    /// The arguments make no sense together (EINVAL).
    #[error("invalid argument")]
    Invalid,
    /// The operation is not allowed on this kind of file (EPERM).
    #[error("operation not permitted")]
    NotPermitted,
    /// The thing is in use, such as the root of a fileset (EBUSY).
    #[error("resource busy")]
    Busy,
    /// The file is a program that runs (ETXTBSY).
    #[error("text file busy")]
    ExecutableBusy,
    /// No space left (ENOSPC).
    #[error("no space left")]
    NoSpace,
    /// The file would grow beyond what can be held (EFBIG).
    #[error("file too large")]
    TooLarge,
    /// No extended attribute of that name (ENODATA).
    #[error("no such attribute")]
    NoAttribute,
    /// The attribute's value is longer than 64 KiB (E2BIG).
    #[error("attribute too large")]
    AttributeTooLarge,
    /// The inode has as many links as it can have (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// Nothing to find at or after that offset (ENXIO).
    #[error("no such offset")]
    NoSuchOffset,
    /// The disk or the file system cannot do this (EOPNOTSUPP).
    #[error("operation not supported")]
    Unsupported,
    /// The inode is gone (ESTALE).
    #[error("stale file handle")]
    Stale,
    /// The daemon or the machine has as many files open as it may (ENFILE).
    #[error(
        "too many open files: {0}; raise the limit of open files (ulimit -n, fs.nr_open, fs.file-max)"
    )]
    TooManyFiles(String),
    /// The disk that holds the file's bytes is not there (ENXIO).
    #[error("{0}")]
    Absent(String),
    /// A device failed (EIO).
    #[error("input/output error: {0}")]
    Io(String),
    /// A record of the store cannot be understood (EUCLEAN); run fsck.
    #[error("damaged metadata: {0}")]
    Damaged(String),
    /// A record of the store is of a version that this program does not know (EUCLEAN): another program wrote it.
    #[error("{0}")]
    UnknownVersion(String),
    /// Another owner took the file system over; this one must stop (EIO).
    #[error("another owner has taken over this file system")]
    Fenced,
    /// Somebody else has a lock on the file (EAGAIN).
    #[error("the file is locked")]
    Locked,
    /// To wait for the lock would be to wait for ever: its holder waits for the caller (EDEADLK).
    #[error("waiting for the lock would be a deadlock")]
    Deadlock,
    /// As many locks, or waits for locks, as there may be (ENOLCK).
    #[error("no more locks: {0}")]
    TooManyLocks(String),
    /// The caller was interrupted while it waited (EINTR).
    #[error("interrupted")]
    Interrupted,
    /// Another node owns the fileset by now, or nobody does yet: the request is to be sent again, to whoever owns it
    /// (EIO, should it ever get out).
    #[error("the fileset belongs to another node now")]
    Moved,
    /// What the disk's own file system says of a file of a native fileset, by its number: nothing here acts on it.
    #[error("the disk's file system refused it: {}", std::io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// The request cannot be carried out as asked; the text says why and what to do.
    #[error("{0}")]
    Refused(String),
    /// The disk that holds the file's bytes belongs to a node that does not answer (EIO): it is there again when that node is.
    #[error("disk {disk} ({location}) is unreachable: {why}")]
    Away {
        /// Identity of the disk.
        disk: String,
        /// Its node and directory, for people.
        location: String,
        /// Why the node does not answer.
        why: String,
    },
    /// A quota of the fileset, or of the file's user or group in it, allows no more (EDQUOT).
    #[error("disk quota exceeded: `forebay quota list` shows the limits")]
    QuotaExceeded,
    /// The bytes of the file lie in an archive: [`Namespace::recall`](crate::Namespace::recall) brings them back, and then the
    /// request is repeated (EIO, should it ever get out).
    #[error("the file lies in an archive")]
    Archived,
    /// The home of a cache fileset does not answer, and what is asked for was not fetched (ETIMEDOUT).
    #[error("the home of the cache is unreachable: {0}")]
    HomeAway(String),
}

/// Outcome of a file-system call.
pub type Result<T> = std::result::Result<T, FsError>;

impl FsError {
    /// Why a partition stops whose store answered so.
    pub(crate) fn from_store_of(error: Option<&StoreError>) -> FsError {
        match error {
            Some(StoreError::Unknown(why)) => FsError::Io(format!(
                "the fileset is stopped, because it is not known whether its last commit is in the store ({why}): \
                 unmount and mount the file system again"
            )),
            _ => FsError::Fenced,
        }
    }
}

impl From<StoreError> for FsError {
    fn from(error: StoreError) -> FsError {
        match error {
            StoreError::Conflict => FsError::Fenced,
            StoreError::Full(_) => FsError::NoSpace,
            StoreError::Damaged(why) => FsError::Damaged(why),
            StoreError::Missing(why) => FsError::Damaged(why),
            StoreError::InUse(why) | StoreError::Io(why) => FsError::Io(why),
            unknown @ StoreError::Unknown(_) => FsError::Io(unknown.to_string()),
        }
    }
}

impl From<DiskError> for FsError {
    fn from(error: DiskError) -> FsError {
        match error {
            DiskError::Full => FsError::NoSpace,
            DiskError::TooLarge => FsError::TooLarge,
            DiskError::Unsupported => FsError::Unsupported,
            DiskError::NoSuchOffset => FsError::NoSuchOffset,
            DiskError::Invalid => FsError::Invalid,
            DiskError::NotFound(_) | DiskError::Exists(_) | DiskError::Refused(_) => {
                FsError::Io(error.to_string())
            }
            DiskError::TooManyFiles(why) => FsError::TooManyFiles(why),
            DiskError::Archived(_) => FsError::Archived,
            DiskError::Absent(why) => FsError::Absent(why),
            DiskError::Io(why) => FsError::Io(why),
            DiskError::Away { disk, location, why } => FsError::Away { disk, location, why },
        }
    }
}

impl From<PowerCut> for FsError {
    fn from(cut: PowerCut) -> FsError {
        FsError::Io(cut.to_string())
    }
}
