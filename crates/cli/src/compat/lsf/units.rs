//! Times and memory as LSF writes them.

use std::path::Path;

use anyhow::{Context as _, Result};
use forebay_base::ByteSize;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::Moment;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use crate::commands::grid::clock::{at_clock, next, today};

/// A run limit: `[HOURS:]MINUTES`, with the name of a host behind a slash, which says nothing here. Also
/// `HOURS:MINUTES:SECONDS`, as some tools write it. No limit if it is 0.
///
/// # Errors
/// If it is neither.
pub fn run_limit(text: &str) -> Result<Option<Period>> {
    let clock = text.split('/').next().unwrap_or_default();
    let number = |part: &str| part.parse::<u32>().map(u64::from);
    let parts: Result<Vec<u64>, _> = clock.split(':').map(number).collect();
    let parts = parts.with_context(|| format!("{text}: Bad RUNLIMIT specification"))?;
    let seconds = match parts[..] {
        [minutes] => minutes * 60,
        [hours, minutes] => hours * 3600 + minutes * 60,
        [hours, minutes, seconds] => hours * 3600 + minutes * 60 + seconds,
        _ => anyhow::bail!("{text}: Bad RUNLIMIT specification"),
    };
    Ok((seconds > 0).then(|| Period::seconds(seconds)))
}

/// A point in time to come, `[[[YEAR:]MONTH:]DAY:]HOUR:MINUTE`. None if it is not one.
pub fn point_in_time(text: &str, now: Moment, zone: &TimeZone) -> Option<Moment> {
    let parts: Option<Vec<i16>> = text.split(':').map(|part| part.parse().ok()).collect();
    let parts = parts?;
    let (&[hour, minute], date) = parts.split_last_chunk::<2>().map(|(date, time)| (time, date))?;
    let time = Time::new(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, 0, 0).ok()?;
    let today = today(now, zone)?;
    let at = |year: i16, month: i16, day: i16| {
        let day = Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
        at_clock(day.to_datetime(time), zone)
    };
    let (year, month) = (today.year(), i16::from(today.month()));
    match date {
        [] => next(time, now, zone),
        [day] => {
            let this = at(year, month, *day).filter(|at| *at > now);
            let (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
            this.or_else(|| at(year, month, *day))
        }
        [month, day] => {
            at(year, *month, *day).filter(|at| *at > now).or_else(|| at(year + 1, *month, *day))
        }
        [year, month, day] => at(*year, *month, *day),
        _ => None,
    }
}

/// Memory with a unit, or a number of `unit`; all units are powers of 1024.
///
/// # Errors
/// If it is not an amount of memory.
pub fn memory(text: &str, unit: char) -> Result<Option<ByteSize>> {
    let refused = || format!("{text}: Bad memory specification");
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(upper.len());
    let (number, rest) = upper.split_at(digits);
    let shift = match rest.trim_end_matches('B').chars().next().unwrap_or(unit) {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => anyhow::bail!(refused()),
    };
    let whole = number.split('.').next().unwrap_or_default();
    let whole: u64 = whole.parse().with_context(refused)?;
    // A part of a unit is rounded up.
    let whole = if number.contains('.') { whole + 1 } else { whole };
    let bytes = whole.checked_mul(1 << shift).with_context(refused)?;
    Ok((bytes > 0).then_some(ByteSize(bytes)))
}

/// The unit of limits that name none, if the site says one: `LSF_UNIT_FOR_LIMITS` of `$LSF_ENVDIR/lsf.conf`.
pub fn unit_for_limits() -> Option<char> {
    let file = Path::new(&std::env::var_os("LSF_ENVDIR")?).join("lsf.conf");
    unit_of(&std::fs::read_to_string(file).ok()?)
}

fn unit_of(settings: &str) -> Option<char> {
    let value = settings.lines().find_map(|line| line.trim().strip_prefix("LSF_UNIT_FOR_LIMITS="));
    Some(value?.trim().chars().next()?.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_limits_are_hours_and_minutes() {
        for (text, seconds) in [("90", 5400), ("1:30", 5400), ("1:30/host", 5400), ("0:01:05", 65)]
        {
            assert_eq!(run_limit(text).unwrap(), Some(Period::seconds(seconds)), "{text}");
        }
        assert_eq!(run_limit("0").unwrap(), None);
        for text in ["", "x", "1:2:3:4", "1h"] {
            assert!(run_limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn points_in_time_are_the_next_that_the_clocks_show() {
        // 2026-11-24 18:00 UTC.
        let now = Moment(1_795_543_200_000);
        let of = |text: &str| {
            let at = point_in_time(text, now, &TimeZone::UTC)?;
            let at = jiff::Timestamp::from_millisecond(i64::try_from(at.0).unwrap()).unwrap();
            Some(at.to_string())
        };
        for (text, expected) in [
            ("20:30", "2026-11-24T20:30:00Z"),
            ("8:00", "2026-11-25T08:00:00Z"),
            ("30:8:00", "2026-11-30T08:00:00Z"),
            ("1:8:00", "2026-12-01T08:00:00Z"),
            ("1:31:8:00", "2027-01-31T08:00:00Z"),
            ("2027:2:28:23:59", "2027-02-28T23:59:00Z"),
        ] {
            assert_eq!(of(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "8", "24:00", "8:60", "2:30:8:00", "1:2:3:4:5:6", "x:y"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_of_memory_has_the_unit_of_the_site() {
        let of = |text, unit| memory(text, unit).unwrap().map(|bytes| bytes.0 >> 10);
        assert_eq!(
            (of("2048", 'K'), of("2", 'M'), of("512MB", 'K')),
            (Some(2048), Some(2048), Some(524_288))
        );
        assert_eq!((of("1.5G", 'K'), of("0", 'M')), (Some(2 << 20), None));
        assert!(memory("x", 'K').is_err() && memory("1X", 'K').is_err());
        assert_eq!((unit_of("A=1\nLSF_UNIT_FOR_LIMITS=GB\n"), unit_of("")), (Some('G'), None));
    }
}
