//! Lengths of time: `90 s`, `5 min`, `2 h`, `1:30:00`, `1-12:00:00`, or minutes as `90`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ParseError, Scanner};
use crate::vocabulary::as_text;

/// A length of time in milliseconds. Written with a unit (`ms`, `s`, `min`, `h`, `d`), as
/// `H:MM:SS` or `D-HH:MM:SS`, or as minutes without a unit, which is what LSF and Slurm take a number
/// for. `1:30` is refused: LSF reads hours and minutes, Slurm minutes and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(pub u64);

/// The longest: ten years.
const PERIOD_MAX: u64 = 10 * 366 * UNITS[4].1;

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Period {
    /// So many seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Period {
        Period(seconds * 1000)
    }

    /// The length in milliseconds.
    #[must_use]
    pub fn as_ms(self) -> u64 {
        self.0
    }
}

impl FromStr for Period {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Period, ParseError> {
        let mut scanner = Scanner::new("time", text.trim());
        let first = u64::from(scanner.number("a time such as 90 s or 2 h", u32::MAX)?);
        let total = if scanner.take("-") {
            let of_day = clock(&mut scanner)?;
            first * UNITS[4].1 + of_day
        } else if scanner.rest().starts_with(':') {
            clock_after(&mut scanner, first)?
        } else {
            scanner.skip_blanks();
            let start = scanner.at();
            let unit = scanner.run(char::is_alphabetic);
            let factor = match unit {
                "" => 60_000,
                _ => {
                    UNITS
                        .iter()
                        .find(|(name, _)| *name == unit)
                        .ok_or_else(|| scanner.refuse_at(start, "expected ms, s, min, h or d"))?
                        .1
                }
            };
            first.saturating_mul(factor)
        };
        scanner.finish("the end")?;
        if total > PERIOD_MAX {
            return Err(scanner.refuse_at(0, "a time is at most ten years"));
        }
        Ok(Period(total))
    }
}

/// `HH:MM:SS` after the days.
fn clock(scanner: &mut Scanner<'_>) -> Result<u64, ParseError> {
    let hours = u64::from(scanner.number("hours", 23)?);
    clock_after(scanner, hours)
}

/// `:MM:SS` after the hours.
fn clock_after(scanner: &mut Scanner<'_>, hours: u64) -> Result<u64, ParseError> {
    let start = scanner.at();
    scanner.expect(":")?;
    let minutes = u64::from(scanner.number("minutes", 59)?);
    if !scanner.take(":") {
        let reason = "ambiguous: hours and minutes, or minutes and seconds; write 1:30:00, 90 \
                      min or 90 s";
        return Err(scanner.refuse_at(start, reason));
    }
    let seconds = u64::from(scanner.number("seconds", 59)?);
    Ok(((hours * 60 + minutes) * 60 + seconds) * 1000)
}

impl fmt::Display for Period {
    /// The largest unit that divides the time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides =
            |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        let (unit, factor) = UNITS.iter().rev().find(divides).unwrap_or(&UNITS[1]);
        write!(f, "{} {unit}", self.0 / factor)
    }
}

as_text!(Period);
