//! Host lists with preferences: `gridn1+1 others+2`, as LSF writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ParseError, Scanner};
use crate::vocabulary::{HostName, as_text};

/// The highest preference.
pub const PREFERENCE_MAX: u32 = 1_000_000;

/// The most hosts that a list names.
pub const LISTED_MAX: usize = 4096;

/// Which hosts an entry names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostSet {
    /// One host.
    One(HostName),
    /// Every host: `all`.
    All,
    /// Every host that the list does not name: `others`.
    Others,
}

/// One entry of a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostEntry {
    /// Which hosts.
    pub hosts: HostSet,
    /// How much they are wanted: higher first.
    pub preference: u32,
    /// `host!`: only hosts that are so marked may be used, whatever else the list names.
    pub required: bool,
}

/// A list of hosts: `gridn1+1 others+2`. Hosts in it may be used, higher preferences first; `~host`
/// takes a host out of it. An empty list allows every host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostList {
    entries: Vec<HostEntry>,
    without: Vec<HostName>,
}

impl HostList {
    /// Whether the list says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.without.is_empty()
    }

    /// How many entries it has.
    pub(crate) fn entries(&self) -> usize {
        self.entries.len() + self.without.len()
    }

    /// The hosts that it names, also those that it takes out.
    pub fn named(&self) -> impl Iterator<Item = &HostName> {
        self.allowed().chain(&self.without)
    }

    /// The hosts that it names and does not take out.
    pub fn allowed(&self) -> impl Iterator<Item = &HostName> {
        self.entries.iter().filter_map(|entry| match &entry.hosts {
            HostSet::One(name) => Some(name),
            HostSet::All | HostSet::Others => None,
        })
    }

    /// How much `host` is wanted; `None` if it may not be used.
    #[must_use]
    pub fn preference(&self, host: &HostName) -> Option<u32> {
        if self.without.contains(host) {
            return None;
        }
        if self.entries.is_empty() {
            return Some(0);
        }
        let named = self.entries.iter().find(|e| matches!(&e.hosts, HostSet::One(n) if n == host));
        let rest = || self.entries.iter().find(|e| !matches!(e.hosts, HostSet::One(_)));
        let entry = named.or_else(rest)?;
        (entry.required || !self.entries.iter().any(|e| e.required)).then_some(entry.preference)
    }
}

impl FromStr for HostList {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<HostList, ParseError> {
        let mut scanner = Scanner::new("host list", text);
        let mut list = HostList::default();
        loop {
            scanner.skip_blanks();
            if scanner.at_end() {
                return Ok(list);
            }
            let start = scanner.at();
            if list.entries.len() + list.without.len() >= LISTED_MAX {
                let reason = format!("a list names at most {LISTED_MAX} hosts");
                return Err(scanner.refuse_at(start, reason));
            }
            let out = scanner.take("~");
            let word = scanner.run(|c| !c.is_whitespace() && !"+!~".contains(c));
            if word.is_empty() {
                let reason = "expected a host, \"all\" or \"others\", such as gridn1+1 others+2";
                return Err(scanner.refuse(reason));
            }
            let name = || word.parse().map_err(|fault: String| scanner.refuse_at(start, fault));
            let hosts = match word {
                "all" => HostSet::All,
                "others" => HostSet::Others,
                _ => HostSet::One(name()?),
            };
            if out {
                let HostSet::One(name) = hosts else {
                    return Err(
                        scanner.refuse_at(start, "\"~\" excludes one host and needs its name")
                    );
                };
                list.without.push(name);
            } else {
                let required = scanner.take("!");
                if required && !matches!(hosts, HostSet::One(_)) {
                    return Err(scanner.refuse_at(start, "\"!\" marks one host and needs its name"));
                }
                let preference = if scanner.take("+") {
                    scanner.number("a preference", PREFERENCE_MAX)?
                } else {
                    0
                };
                if list.entries.iter().any(|entry| entry.hosts == hosts) {
                    return Err(scanner.refuse_at(start, format!("\"{word}\" is named twice")));
                }
                list.entries.push(HostEntry { hosts, preference, required });
            }
            if !scanner.at_end() && !scanner.rest().starts_with(char::is_whitespace) {
                let reason = "expected \"!\", \"+\" and a number, or a blank before the next host";
                return Err(scanner.refuse(reason));
            }
        }
    }
}

impl fmt::Display for HostList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blank = "";
        for entry in &self.entries {
            f.write_str(blank)?;
            match &entry.hosts {
                HostSet::One(name) => write!(f, "{name}")?,
                HostSet::All => f.write_str("all")?,
                HostSet::Others => f.write_str("others")?,
            }
            if entry.required {
                f.write_str("!")?;
            }
            if entry.preference > 0 {
                write!(f, "+{}", entry.preference)?;
            }
            blank = " ";
        }
        for name in &self.without {
            write!(f, "{blank}~{name}")?;
            blank = " ";
        }
        Ok(())
    }
}

as_text!(HostList);
