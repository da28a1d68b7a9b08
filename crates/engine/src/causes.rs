//! Errors in words.

/// An error with its causes on one line; a cause that the text before it ends with is not said twice.
#[must_use]
pub fn chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// The number of the operating system's answer among the causes of an error.
#[must_use]
pub fn number_of(error: &anyhow::Error) -> Option<i32> {
    error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
}

/// Whether a file system did not answer, or answered that what was there is not reached from this machine now: its daemon has
/// died, or the fileset has another owner since (docs/semantics.md).
#[must_use]
pub fn is_out_of_reach(number: i32) -> bool {
    matches!(
        number,
        libc::ENOTCONN | libc::ECONNABORTED | libc::ESTALE | libc::ETIMEDOUT | libc::EHOSTDOWN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once() {
        let cause = std::io::Error::other("no disk");
        let error = anyhow::Error::new(cause).context("cannot open a: no disk").context("mkfs");
        assert_eq!(chain(&error), "mkfs: cannot open a: no disk");
    }
}
