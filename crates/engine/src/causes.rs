//! Errors in words.

/// An error with its causes on one line; a cause that the text before it ends with is not said twice.
#[must_use]
pub fn chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
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
