//! Readers of the small languages of the grid: dependency expressions, host lists, arrays, requeue
//! lists, time windows, lengths of time and cron expressions.
//!
//! Each is a type that is read with `FromStr` and printed such that it reads back to the same value.
//! A refused text says where and what is allowed there. Nothing here nests deeper than
//! [`dependency::DEPTH_MAX`] or grows beyond its text.

pub mod array;
pub mod cron;
pub mod dependency;
pub mod features;
pub mod hosts;
pub mod memory;
pub mod period;
pub mod requeue;
pub mod resources;
pub mod window;
pub mod zone;

/// Why a text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} \"{text}\", character {at}: {reason}")]
pub struct ParseError {
    /// What it should have been, such as `host list`.
    pub what: &'static str,
    /// The whole text.
    pub text: String,
    /// The character to blame, counted from 1; one past the end if something is missing.
    pub at: usize,
    /// What is wrong and what is allowed.
    pub reason: String,
}

/// The line, counted from 1, of a byte.
pub(crate) fn line_of(text: &str, byte: usize) -> usize {
    text[..byte.min(text.len())].matches('\n').count() + 1
}

/// Reads a text from front to back.
pub(crate) struct Scanner<'a> {
    what: &'static str,
    text: &'a str,
    /// Bytes read.
    at: usize,
}

impl<'a> Scanner<'a> {
    pub fn new(what: &'static str, text: &'a str) -> Scanner<'a> {
        Scanner { what, text, at: 0 }
    }

    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub fn at(&self) -> usize {
        self.at
    }

    /// A refusal at the place reached.
    pub fn refuse(&self, reason: impl Into<String>) -> ParseError {
        self.refuse_at(self.at, reason)
    }

    /// A refusal at byte `at`.
    pub fn refuse_at(&self, at: usize, reason: impl Into<String>) -> ParseError {
        ParseError {
            what: self.what,
            text: self.text.to_owned(),
            at: self.text[..at].chars().count() + 1,
            reason: reason.into(),
        }
    }

    pub fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Takes `sign` if it is next.
    pub fn take(&mut self, sign: &str) -> bool {
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    pub fn expect(&mut self, sign: &str) -> Result<(), ParseError> {
        if self.take(sign) { Ok(()) } else { Err(self.refuse(format!("expected \"{sign}\""))) }
    }

    /// The longest run of characters that `belongs` accepts; may be empty.
    pub fn run(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// A whole number up to `max`; `wanted` says what it is for.
    pub fn number(&mut self, wanted: &str, max: u32) -> Result<u32, ParseError> {
        let start = self.at;
        let digits = self.run(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.refuse(format!("expected {wanted}")));
        }
        digits
            .parse()
            .ok()
            .filter(|number| *number <= max)
            .ok_or_else(|| self.refuse_at(start, format!("{wanted} is at most {max}")))
    }

    pub fn at_end(&self) -> bool {
        self.rest().is_empty()
    }

    pub fn finish(&mut self, allowed: &str) -> Result<(), ParseError> {
        self.skip_blanks();
        if self.at_end() { Ok(()) } else { Err(self.refuse(format!("expected {allowed}"))) }
    }
}

/// Whether `name` matches `pattern`, in which each `*` stands for any characters.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("load", "load", true),
            ("load", "loads", false),
            ("load*", "load", true),
            ("load*", "loader", true),
            ("*er", "loader", true),
            ("l*d*r", "loader", true),
            ("l*d*r", "lord", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("a*b*b", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
