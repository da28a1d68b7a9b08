//! What starts a flow by itself: a cron expression, a time, or a file that arrives.

use std::fmt;
use std::str::FromStr;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::parse::ParseError;
use crate::parse::cron::Schedule as Cron;
use crate::parse::zone::Zone;
use crate::vocabulary::{Moment, as_text};

/// How late a time may be taken note of before it counts as missed.
pub const GRACE_MS: u64 = 60_000;

/// What starts a flow, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// What starts it.
    pub when: When,
    /// On which clocks; those of the grid if none.
    pub zone: Option<Zone>,
    /// What becomes of times at which nobody was there.
    pub missed: Missed,
    /// What happens while the run before has not ended.
    pub overlap: Overlap,
}

/// What starts a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Each time at which the expression holds.
    Cron(Box<Cron>),
    /// This time.
    At(CivilTime),
    /// Each file that arrives and matches: an absolute path, in which `*` stands for anything but `/`.
    File(String),
}

/// What becomes of times that were missed by more than [`GRACE_MS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// One run for all of them.
    CatchUp,
    /// Nothing.
    PassOver,
}

/// What happens at a time at which the run before has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Another run starts.
    Start,
    /// The time is passed over.
    PassOver,
}

impl Trigger {
    /// The first time after `now`; none if there is none, or if it waits for files.
    #[must_use]
    pub fn next_after(&self, now: Moment, grid: &TimeZone) -> Option<Moment> {
        let zone = self.zone.as_ref().map_or(grid, Zone::clocks);
        match &self.when {
            When::Cron(cron) => cron.next_after(now, zone),
            When::At(time) => time.on(zone).filter(|time| *time > now),
            When::File(_) => None,
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.when {
            When::Cron(cron) => write!(f, "cron {cron}")?,
            When::At(time) => write!(f, "at {time}")?,
            When::File(pattern) => write!(f, "file {pattern}")?,
        }
        self.zone.as_ref().map_or(Ok(()), |zone| write!(f, " {zone}"))
    }
}

/// A time on some clock: `2027-01-01T06:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime(DateTime);

impl CivilTime {
    /// When it is in a zone. A time that the clocks skip is as much later, one that comes twice is the first.
    #[must_use]
    pub fn on(&self, zone: &TimeZone) -> Option<Moment> {
        let time = zone.to_ambiguous_zoned(self.0).compatible().ok()?;
        u64::try_from(time.timestamp().as_millisecond()).ok().map(Moment)
    }
}

impl FromStr for CivilTime {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<CivilTime, ParseError> {
        let refused = |reason: &str| ParseError {
            what: "time",
            text: text.to_owned(),
            at: 1,
            reason: reason.to_owned(),
        };
        // A zone or offset in the text would be ignored silently.
        let rest = text.get(10..).unwrap_or_default();
        if rest.contains(['Z', 'z', '+', '-', '[']) {
            return Err(refused(
                "the time must not contain a zone; add a line such as zone = \"Europe/Berlin\"",
            ));
        }
        if rest.is_empty() {
            return Err(refused("expected day and time, such as 2027-01-01T06:00"));
        }
        text.parse()
            .map(CivilTime)
            .map_err(|_| refused("expected day and time, such as 2027-01-01T06:00"))
    }
}

impl fmt::Display for CivilTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(CivilTime);
