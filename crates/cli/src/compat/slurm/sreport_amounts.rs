//! The period of a report of sreport, and how amounts are printed.

use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};
use forebay_grid::vocabulary::Moment;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use super::units;
use crate::commands::grid::clock::{at_clock, today};

/// In what amounts are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amounts {
    Seconds,
    Minutes,
    Hours,
    Percent,
    SecondsPer,
    MinutesPer,
    HoursPer,
}

impl FromStr for Amounts {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Amounts> {
        let lower = text.to_ascii_lowercase();
        let known = [
            ("secper", Amounts::SecondsPer),
            ("minper", Amounts::MinutesPer),
            ("hourper", Amounts::HoursPer),
            ("seconds", Amounts::Seconds),
            ("minutes", Amounts::Minutes),
            ("hours", Amounts::Hours),
            ("percent", Amounts::Percent),
        ];
        let is_it =
            |name: &str| name == lower || (!name.ends_with("per") && name.starts_with(&lower));
        let found = known.into_iter().find(|(name, _)| !lower.is_empty() && is_it(name));
        found.map(|(_, amounts)| amounts).with_context(|| {
            format!(
                "-t {text}: choose from seconds, minutes, hours, percent, secper, minper, hourper"
            )
        })
    }
}

impl Amounts {
    /// The words of the line above a report.
    pub fn words(self) -> &'static str {
        match self {
            Amounts::Seconds => "CPU Seconds",
            Amounts::Minutes => "CPU Minutes",
            Amounts::Hours => "CPU Hours",
            Amounts::Percent => "Percentage of Total",
            Amounts::SecondsPer => "CPU Seconds/Percentage of Total",
            Amounts::MinutesPer => "CPU Minutes/Percentage of Total",
            Amounts::HoursPer => "CPU Hours/Percentage of Total",
        }
    }

    /// Whether an amount has its percentage behind it.
    pub fn has_both(self) -> bool {
        matches!(self, Amounts::SecondsPer | Amounts::MinutesPer | Amounts::HoursPer)
    }

    /// An amount, of so much altogether.
    pub fn print(self, seconds: f64, total: f64) -> String {
        let percent = if total > 0.0 { 100.0 * seconds / total } else { 0.0 };
        let unit = match self {
            Amounts::Percent => return format!("{percent:.2}%"),
            Amounts::Seconds | Amounts::SecondsPer => 1.0,
            Amounts::Minutes | Amounts::MinutesPer => 60.0,
            Amounts::Hours | Amounts::HoursPer => 3600.0,
        };
        let amount = format!("{:.0}", seconds / unit);
        if self.has_both() { format!("{amount}({percent:.2}%)") } else { amount }
    }

    /// How wide a column is whose largest amount is so many seconds.
    pub fn width(self, most: f64) -> i32 {
        let digits = format!("{most:.0}").len() as i32;
        digits.max(8) + if self.has_both() { 9 } else { 0 }
    }
}

/// The days of a report: their dates, and the time from the first to the end of the last, or to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub first: Date,
    pub last: Date,
    pub begin: Moment,
    pub end: Moment,
}

fn day_of(at: Moment) -> Option<Date> {
    today(at, &TimeZone::system())
}

fn midnight(day: Date) -> Option<Moment> {
    at_clock(day.to_datetime(Time::midnight()), &TimeZone::system())
}

impl Period {
    /// That of two conditions; yesterday if there is none. The grid accounts by days, so both are widened to whole ones, as far as those
    /// are over.
    pub fn of(start: Option<&str>, end: Option<&str>, now: Moment) -> Result<Period> {
        let read = |text: &str| units::since(text, now).map_err(anyhow::Error::msg);
        let this_day = day_of(now).context("the clock shows no valid time")?;
        let whole = |day: Date| midnight(day).with_context(|| format!("{day} is not a valid day"));
        let yesterday = this_day.yesterday().context("the clock shows no valid time")?;
        let first = match start {
            Some(text) => {
                day_of(read(text)?).with_context(|| format!("start={text}: not a valid day"))?
            }
            None => yesterday,
        };
        let last = match end {
            // The end itself is not part of the period.
            Some(text) => {
                let at = Moment(read(text)?.min(now).0.saturating_sub(1));
                day_of(at).with_context(|| format!("end={text}: not a valid day"))?
            }
            None => yesterday.max(first.min(this_day)),
        };
        let (begin, next) = (whole(first)?, last.tomorrow().context("the end is too late")?);
        let end = whole(next)?.min(now);
        ensure!(
            begin < end,
            "the report would end before it starts: give an earlier start= or a later end="
        );
        Ok(Period { first, last, begin, end })
    }

    pub fn seconds(&self) -> u64 {
        (self.end.0 - self.begin.0) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_about_whole_days_up_to_now() {
        let today = jiff::civil::date(2026, 11, 27);
        let now = Moment(midnight(today).unwrap().0 + 3_600_000);
        let of = |start, end| Period::of(start, end, now);
        let date = |text: &str| text.parse::<Date>().unwrap();
        let days = |period: Period| (period.first, period.last);
        let (yesterday, first) = (date("2026-11-26"), date("2026-11-01"));
        assert_eq!(days(of(None, None).unwrap()), (yesterday, yesterday));
        assert_eq!(of(None, None).unwrap().end, midnight(today).unwrap());
        assert_eq!(days(of(Some("2026-11-01"), None).unwrap()), (first, yesterday));
        assert_eq!(
            days(of(Some("2026-11-01"), Some("2026-11-10")).unwrap()),
            (first, date("2026-11-09"))
        );
        let to_its_end = of(Some("2026-11-01"), Some("2026-11-09T23:59:59")).unwrap();
        assert_eq!(days(to_its_end), (first, date("2026-11-09")));
        let up_to_now = of(Some("today"), Some("2027-01-01")).unwrap();
        assert_eq!((days(up_to_now), up_to_now.seconds()), ((today, today), 3600));
        assert_eq!(days(of(Some("today"), None).unwrap()), (today, today));
        assert!(of(Some("2026-11-10"), Some("2026-11-01")).is_err());
        assert!(of(Some("soon"), None).is_err());
    }

    #[test]
    fn amounts_are_printed_as_sreport_prints_them() {
        for (text, said) in [
            ("minutes", "60"),
            ("Hours", "1"),
            ("s", "3600"),
            ("percent", "50.00%"),
            ("HourPer", "1(50.00%)"),
        ] {
            assert_eq!(text.parse::<Amounts>().unwrap().print(3600.0, 7200.0), said, "{text}");
        }
        assert!("weeks".parse::<Amounts>().is_err());
        assert_eq!(Amounts::Percent.print(0.0, 0.0), "0.00%");
        assert_eq!((Amounts::Minutes.width(5.0), Amounts::HoursPer.width(1e9)), (8, 19));
    }
}
