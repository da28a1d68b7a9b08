//! Whether an error says that there is no space left. What that leads to is decided where it is met; what it looks like
//! is known here alone.

use std::io::{Error, ErrorKind};

/// Whether a disk, or what its user may have of it, is full.
#[must_use]
pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// As [`is_full`], of an error that another one may have led to.
#[must_use]
pub fn comes_of_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<Error>().is_some_and(is_full) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_full_quota_are_known_by_their_numbers_and_behind_other_errors() {
        for (number, wanted) in [(28, true), (122, true), (5, false)] {
            let error = Error::from_raw_os_error(number);
            assert_eq!(is_full(&error), wanted, "{error}");
            assert_eq!(comes_of_full(&error), wanted);
            let wrapped = Error::other(std::fmt::Error);
            assert!(!comes_of_full(&wrapped));
        }
    }
}
