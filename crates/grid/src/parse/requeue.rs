//! Exit values after which a job is started again: `99 EXCLUDE(137)`, as LSF writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ParseError, Scanner};
use crate::vocabulary::as_text;

/// Where a job may start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Again {
    /// On any host.
    Anywhere,
    /// On any host but those where it ended like this.
    Elsewhere,
}

/// Exit values after which a job is started again. `all` stands for every value but 0, `~5` takes one
/// out of it, `EXCLUDE(..)` keeps the job off the host where it ended so. A signal counts as 128 and
/// its number, as shells do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequeueExits {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// `None` stands for all.
    value: Option<u8>,
    /// What to do; `None` takes the value out of `all`.
    again: Option<Again>,
}

impl RequeueExits {
    /// Whether a job that ended with `value` starts again. What names the value goes before `all`.
    #[must_use]
    pub fn find(&self, value: u8) -> Option<Again> {
        if value == 0 {
            return None;
        }
        let named = self.entries.iter().find(|entry| entry.value == Some(value));
        named.or_else(|| self.entries.iter().find(|entry| entry.value.is_none()))?.again
    }

    /// Whether nothing is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn push(&mut self, scanner: &mut Scanner<'_>, again: Again) -> Result<(), ParseError> {
        let start = scanner.at();
        let mut entry = Entry { value: None, again: Some(again) };
        if scanner.take("~") {
            entry.again = None;
        }
        if entry.again.is_none() || !scanner.take("all") {
            let value = scanner.number("an exit value from 1 to 255, or \"all\"", 255)?;
            if value == 0 {
                return Err(
                    scanner.refuse_at(start, "0 means success, and such a job is not restarted")
                );
            }
            entry.value = u8::try_from(value).ok();
        }
        if self.entries.iter().any(|known| known.value == entry.value) {
            return Err(scanner.refuse_at(start, "named twice"));
        }
        self.entries.push(entry);
        Ok(())
    }
}

impl FromStr for RequeueExits {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<RequeueExits, ParseError> {
        let mut scanner = Scanner::new("requeue exit values", text);
        let mut exits = RequeueExits::default();
        loop {
            scanner.skip_blanks();
            if scanner.at_end() {
                return Ok(exits);
            }
            if scanner.take("EXCLUDE(") {
                loop {
                    scanner.skip_blanks();
                    if scanner.take(")") {
                        break;
                    }
                    if scanner.at_end() {
                        return Err(scanner.refuse("expected \")\""));
                    }
                    exits.push(&mut scanner, Again::Elsewhere)?;
                }
            } else {
                exits.push(&mut scanner, Again::Anywhere)?;
            }
            if !scanner.at_end() && !scanner.rest().starts_with([' ', '\t']) {
                return Err(scanner.refuse("expected a blank, such as 99 EXCLUDE(137)"));
            }
        }
    }
}

impl fmt::Display for RequeueExits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blank = "";
        for entry in &self.entries {
            let value = entry.value.map_or("all".to_owned(), |value| value.to_string());
            match entry.again {
                Some(Again::Anywhere) => write!(f, "{blank}{value}")?,
                Some(Again::Elsewhere) => write!(f, "{blank}EXCLUDE({value})")?,
                None => write!(f, "{blank}~{value}")?,
            }
            blank = " ";
        }
        Ok(())
    }
}

as_text!(RequeueExits);
