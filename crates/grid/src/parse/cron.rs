//! Cron expressions: `30 6 * * 1-5`, for flows that start by the clock.

use std::fmt;
use std::str::FromStr;

use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ParseError;
use crate::vocabulary::{Moment, as_text};

/// A cron expression of five fields: minute, hour, day of the month, month, day of the week; or one of
/// `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    text: String,
    cron: croner::Cron,
}

impl Schedule {
    /// The first time after `now` at which the expression holds on the clocks of the zone; `None` if
    /// there is none within what the calendar holds.
    #[must_use]
    pub fn next_after(&self, now: Moment, zone: &TimeZone) -> Option<Moment> {
        let time = jiff::Timestamp::from_millisecond(i64::try_from(now.0).ok()?).ok()?;
        let next = self.cron.find_next_occurrence(&time.to_zoned(zone.clone()), false).ok()?;
        u64::try_from(next.timestamp().as_millisecond()).ok().map(Moment)
    }
}

impl FromStr for Schedule {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Schedule, ParseError> {
        let parser =
            CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        match parser.parse(text) {
            Ok(cron) => Ok(Schedule { text: text.trim().to_owned(), cron }),
            Err(error) => Err(ParseError {
                what: "cron expression",
                text: text.to_owned(),
                at: 1,
                reason: format!(
                    "{error}; expected minute, hour, day of the month, month and day of the week, \
                     such as 30 6 * * 1-5"
                ),
            }),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Schedule);
