//! Times and memory as Slurm writes them.

use forebay_base::ByteSize;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::Moment;

use crate::commands::grid::clock::{at_clock, clock, next, today};

/// A time limit: `MIN`, `MIN:SEC`, `H:MIN:SEC`, `D-H`, `D-H:MIN`, `D-H:MIN:SEC`. No limit if none.
///
/// # Errors
/// If it is none of these.
pub fn time_limit(text: &str) -> Result<Option<Period>, String> {
    let refused = || format!("invalid time limit \"{text}\"");
    if ["unlimited", "infinite", "-1"].contains(&text.to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    let number = |part: &str| part.parse::<u32>().map(u64::from).map_err(|_| refused());
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text),
    };
    let parts = clock.split(':').map(number).collect::<Result<Vec<u64>, String>>()?;
    let seconds = match (days, &parts[..]) {
        (None, [minutes]) => minutes * 60,
        (None, [minutes, seconds]) => minutes * 60 + seconds,
        (Some(_), [hours]) => hours * 3600,
        (Some(_), [hours, minutes]) => hours * 3600 + minutes * 60,
        (_, [hours, minutes, seconds]) => hours * 3600 + minutes * 60 + seconds,
        _ => return Err(refused()),
    };
    let total = days.unwrap_or(0) * 86_400 + seconds;
    // 0 asks for no limit.
    Ok((total > 0).then(|| Period::seconds(total)))
}

/// Memory: MiB, or with K, M, G or T, all powers of 1024; a `B` may follow. All of a host if none.
///
/// # Errors
/// If it is not an amount of memory.
pub fn memory(text: &str) -> Result<Option<ByteSize>, String> {
    let refused = || format!("invalid memory \"{text}\"");
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_suffix('B').unwrap_or(&upper);
    let digits = short.find(|c: char| !c.is_ascii_digit()).unwrap_or(short.len());
    let shift = match &short[digits..] {
        "K" => 10,
        "" | "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(refused()),
    };
    let number: u64 = short[..digits].parse().map_err(|_| refused())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(refused)?;
    Ok((bytes > 0).then_some(ByteSize(bytes)))
}

/// How long something took: `MM:SS`, `H:MM:SS`, `D-HH:MM:SS`, as squeue writes it.
pub fn short_span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let seconds = seconds % 60;
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// How long something took: `HH:MM:SS`, `D-HH:MM:SS`, as sacct writes it.
pub fn long_span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let seconds = seconds % 60;
    match days {
        0 => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// Whole seconds of a time limit; none if there is no limit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ten years at most")]
pub fn whole_seconds(seconds: Option<f64>) -> Option<u64> {
    seconds.map(|seconds| seconds.max(0.0) as u64)
}

/// A moment in the reader's time zone, without it: `2027-01-01T07:00:00`.
pub fn moment(at: Option<Moment>, without: &str) -> String {
    let time = at.and_then(|at| i64::try_from(at.0 / 1000).ok());
    let Some(time) = time.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok()) else {
        return without.to_owned();
    };
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

/// A moment with its day, as the lines above long lists have it: `Wed Nov 25 04:13:11 2026`.
pub fn date(at: Moment) -> String {
    let time = i64::try_from(at.0 / 1000).ok();
    let time = time.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let text = |time: jiff::Timestamp| {
        time.to_zoned(jiff::tz::TimeZone::system()).strftime("%a %b %e %H:%M:%S %Y").to_string()
    };
    time.map(text).unwrap_or_default()
}

/// A moment that sacct is given: `now`, `now-3days`, `2027-01-31`, `2027-01-31T12:00`, `12:00` (today).
///
/// # Errors
/// If it is none of these.
pub fn since(text: &str, now: Moment) -> Result<Moment, String> {
    let refused = || format!("invalid time specification \"{text}\"");
    if let Some(rest) = text.strip_prefix("now") {
        return relative(rest, now).ok_or_else(refused);
    }
    let zone = jiff::tz::TimeZone::system();
    let today = today(now, &zone).ok_or_else(refused)?;
    let civil = if text == "today" || text == "midnight" {
        today.to_datetime(jiff::civil::Time::midnight())
    } else if let Ok(moment) = text.parse::<jiff::civil::DateTime>() {
        // First, as a time of day is found in a date with one, too. A date alone is its midnight.
        moment
    } else {
        today.to_datetime(text.parse().map_err(|_| refused())?)
    };
    let zoned = civil.to_zoned(zone).map_err(|_| refused())?;
    Ok(Moment(u64::try_from(zoned.timestamp().as_millisecond()).unwrap_or(0)))
}

/// A moment to come that sbatch is given: `now+1hour`, `16:00` (the next time it is that late), `noon`, `tomorrow`,
/// `2027-01-31T12:00`, `01/31/27`. None if it is none of these.
pub fn begin_time(text: &str, now: Moment, zone: &jiff::tz::TimeZone) -> Option<Moment> {
    let lower = text.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("now") {
        return relative(rest, now);
    }
    let (day, time) = match lower.split_once('t').filter(|(day, _)| day.contains(['-', '/', '.'])) {
        Some((day, time)) => (Some(day), Some(time)),
        None if lower.contains(['-', '/', '.']) => (Some(&lower[..]), None),
        None => (None, Some(&lower[..])),
    };
    let midnight = jiff::civil::Time::midnight();
    if let Some(day) = day {
        let time = time.map_or(Some(midnight), clock)?;
        return at_clock(date_of(day, now, zone)?.to_datetime(time), zone);
    }
    match &lower[..] {
        "today" => at_clock(today(now, zone)?.to_datetime(midnight), zone),
        "tomorrow" => at_clock(today(now, zone)?.tomorrow().ok()?.to_datetime(midnight), zone),
        "midnight" => next(midnight, now, zone),
        "noon" => next(jiff::civil::time(12, 0, 0, 0), now, zone),
        "fika" => next(jiff::civil::time(15, 0, 0, 0), now, zone),
        "teatime" => next(jiff::civil::time(16, 0, 0, 0), now, zone),
        time => next(half_day(time)?, now, zone),
    }
}

/// `4:30pm`, `16:30`.
fn half_day(text: &str) -> Option<jiff::civil::Time> {
    let (time, is_late) = match (text.strip_suffix("am"), text.strip_suffix("pm")) {
        (Some(time), _) => (time, Some(false)),
        (None, Some(time)) => (time, Some(true)),
        (None, None) => (text, None),
    };
    let time = clock(time.trim())?;
    let Some(is_late) = is_late else { return Some(time) };
    let hour = if (1..=12).contains(&time.hour()) { time.hour() % 12 } else { return None };
    let hour = if is_late { hour + 12 } else { hour };
    jiff::civil::Time::new(hour, time.minute(), time.second(), 0).ok()
}

/// `2027-01-31`, `01/31`, `01/31/27`, `01.31.27`.
fn date_of(text: &str, now: Moment, zone: &jiff::tz::TimeZone) -> Option<jiff::civil::Date> {
    if text.contains('-') {
        return text.parse().ok();
    }
    let parts: Option<Vec<i16>> = text.split(['/', '.']).map(|part| part.parse().ok()).collect();
    let today = today(now, zone)?;
    let of = |year: i16, month: i16, day: i16| {
        jiff::civil::Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
    };
    match parts?[..] {
        [month, day] => {
            let this = of(today.year(), month, day)?;
            if this >= today { Some(this) } else { of(today.year() + 1, month, day) }
        }
        [month, day, year] if (0..100).contains(&year) => of(2000 + year, month, day),
        [month, day, year] => of(year, month, day),
        _ => None,
    }
}

/// `+2hours`, `-3days`, `-90`: seconds without a unit.
fn relative(text: &str, now: Moment) -> Option<Moment> {
    if text.is_empty() {
        return Some(now);
    }
    let (sign, rest) = text.split_at_checked(1)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let factor: u64 = match rest[digits..].trim_end_matches('s') {
        "" | "second" => 1000,
        "minute" => 60_000,
        "hour" => 3_600_000,
        "day" => 86_400_000,
        "week" => 7 * 86_400_000,
        _ => return None,
    };
    let span = rest[..digits].parse::<u64>().ok()?.checked_mul(factor)?;
    match sign {
        "-" => Some(Moment(now.0.saturating_sub(span))),
        "+" => Some(now.after(span)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_slurm_reads_them() {
        for (text, seconds) in [
            ("90", 90 * 60),
            ("1:30", 90),
            ("1:30:10", 5410),
            ("2-3", 51 * 3600),
            ("2-3:10", 51 * 3600 + 600),
            ("1-00:00:05", 86_405),
        ] {
            assert_eq!(time_limit(text), Ok(Some(Period::seconds(seconds))), "{text}");
        }
        for text in ["UNLIMITED", "0", "-1"] {
            assert_eq!(time_limit(text), Ok(None), "{text}");
        }
        for text in ["", "x", "1:2:3:4", "1-", "1h"] {
            assert!(time_limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_counted_in_powers_of_1024() {
        for (text, mib) in
            [("100", 100), ("2G", 2048), ("2gb", 2048), ("1024K", 1), ("1T", 1 << 20)]
        {
            assert_eq!(memory(text), Ok(Some(ByteSize(mib << 20))), "{text}");
        }
        assert_eq!(memory("0"), Ok(None));
        for text in ["", "G", "1.5G", "1X", "99999999999999999999"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_written_as_slurm_writes_them() {
        for (seconds, short, long) in [
            (5, "0:05", "00:00:05"),
            (3725, "1:02:05", "01:02:05"),
            (93_784, "1-02:03:04", "1-02:03:04"),
        ] {
            assert_eq!((short_span(seconds), long_span(seconds)), (short.into(), long.into()));
        }
    }

    #[test]
    fn a_time_to_begin_is_the_next_one_that_the_clocks_show() {
        // 2026-11-24 18:00 UTC.
        let (now, zone) = (Moment(1_795_543_200_000), jiff::tz::TimeZone::UTC);
        let of = |text: &str| {
            let at = begin_time(text, now, &zone)?;
            let at = jiff::Timestamp::from_millisecond(i64::try_from(at.0).unwrap()).unwrap();
            Some(at.to_string())
        };
        for (text, expected) in [
            ("now", "2026-11-24T18:00:00Z"),
            ("now+60", "2026-11-24T18:01:00Z"),
            ("now+1hour", "2026-11-24T19:00:00Z"),
            ("16:00", "2026-11-25T16:00:00Z"),
            ("8:30pm", "2026-11-24T20:30:00Z"),
            ("12:00am", "2026-11-25T00:00:00Z"),
            ("tomorrow", "2026-11-25T00:00:00Z"),
            ("noon", "2026-11-25T12:00:00Z"),
            ("teatime", "2026-11-25T16:00:00Z"),
            ("2027-01-31T12:00:00", "2027-01-31T12:00:00Z"),
            ("2027-01-31", "2027-01-31T00:00:00Z"),
            ("01/31/27", "2027-01-31T00:00:00Z"),
            ("01/31", "2027-01-31T00:00:00Z"),
            ("12.24", "2026-12-24T00:00:00Z"),
        ] {
            assert_eq!(of(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "soon", "25:00", "13:00pm", "2027-13-01", "1/2/3/4", "now+x"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn moments_may_be_relative_to_now() {
        let now = Moment(1_700_000_000_000);
        assert_eq!(since("now", now), Ok(now));
        assert_eq!(since("now-2days", now), Ok(Moment(now.0 - 172_800_000)));
        assert_eq!(since("now-90", now), Ok(Moment(now.0 - 90_000)));
        let day = since("2023-11-01", now).unwrap();
        assert_eq!(since("2023-11-01T00:01", now), Ok(Moment(day.0 + 60_000)));
        assert!(since("1970-01-01", now).unwrap().0 < 86_400_000 * 2);
        assert!(since("later", now).is_err() && since("now*3", now).is_err());
    }
}
