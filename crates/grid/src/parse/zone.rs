//! Time zones by name: `Europe/Berlin`, of the database that is compiled in, so that a name means the
//! same on every machine.

use std::fmt;
use std::str::FromStr;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ParseError;
use crate::vocabulary::as_text;

/// A time zone and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Zone {
    /// Its clocks.
    #[must_use]
    pub fn clocks(&self) -> &TimeZone {
        &self.zone
    }
}

impl Default for Zone {
    /// UTC.
    fn default() -> Zone {
        Zone { name: "UTC".to_owned(), zone: TimeZone::UTC }
    }
}

impl FromStr for Zone {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Zone, ParseError> {
        if text == "UTC" {
            return Ok(Zone::default());
        }
        match TimeZoneDatabase::bundled().get(text) {
            Ok(zone) => Ok(Zone { name: text.to_owned(), zone }),
            Err(_) => Err(ParseError {
                what: "time zone",
                text: text.to_owned(),
                at: 1,
                reason: "expected a name such as UTC or Europe/Berlin".to_owned(),
            }),
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

as_text!(Zone);
