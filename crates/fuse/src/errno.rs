//! From the file system's errors to errno: the one place that knows both.

use forebay_fs::FsError;

/// The errno that stands for an error.
pub(crate) fn of(error: &FsError) -> i32 {
    match error {
        FsError::NotFound => libc::ENOENT,
        FsError::Exists => libc::EEXIST,
        FsError::NotDirectory => libc::ENOTDIR,
        FsError::IsDirectory => libc::EISDIR,
        FsError::NotEmpty => libc::ENOTEMPTY,
        FsError::NameTooLong => libc::ENAMETOOLONG,
        FsError::CrossFileset => libc::EXDEV,
        FsError::ReadOnly => libc::EROFS,
        FsError::Invalid | FsError::Refused(_) => libc::EINVAL,
        FsError::NotPermitted => libc::EPERM,
        FsError::Busy => libc::EBUSY,
        FsError::ExecutableBusy => libc::ETXTBSY,
        FsError::NoSpace => libc::ENOSPC,
        FsError::QuotaExceeded => libc::EDQUOT,
        FsError::TooLarge => libc::EFBIG,
        FsError::NoAttribute => libc::ENODATA,
        FsError::AttributeTooLarge => libc::E2BIG,
        FsError::TooManyLinks => libc::EMLINK,
        FsError::NoSuchOffset | FsError::Absent(_) => libc::ENXIO,
        FsError::Unsupported => libc::EOPNOTSUPP,
        FsError::Stale => libc::ESTALE,
        FsError::TooManyFiles(_) => libc::ENFILE,
        FsError::Locked => libc::EAGAIN,
        FsError::Deadlock => libc::EDEADLK,
        FsError::TooManyLocks(_) => libc::ENOLCK,
        FsError::Interrupted => libc::EINTR,
        FsError::HomeAway(_) => libc::ETIMEDOUT,
        FsError::System(errno) => *errno,
        FsError::Damaged(_) | FsError::UnknownVersion(_) => libc::EUCLEAN,
        FsError::Io(_)
        | FsError::Away { .. }
        | FsError::Archived
        | FsError::Fenced
        | FsError::Moved => libc::EIO,
    }
}

/// The name of an errno (errno(3)); its number where it has none here.
pub(crate) fn name(errno: i32) -> String {
    let known = NAMES.iter().find(|(number, _)| *number == errno);
    known.map_or_else(|| format!("E{errno}"), |(_, name)| (*name).to_owned())
}

macro_rules! names {
    ($($name:ident)*) => { [$((libc::$name, stringify!($name))),*] };
}

/// Those that file systems answer.
const NAMES: [(i32, &str); 45] = names!(
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR
    EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS
    ENOTEMPTY ELOOP ENODATA ETIME EPROTO EOVERFLOW EOPNOTSUPP ENOTCONN ETIMEDOUT ESTALE EUCLEAN EDQUOT ECANCELED
);
