//! Points in time as people write them on a command line, on the clocks of this machine (TZ, or /etc/localtime).

use anyhow::{Context as _, Result};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::Moment;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;

/// What is said against a text that is not a point in time.
const ALLOWED: &str = "write a time of day such as 18:00, a date and time such as 2027-01-31T18:00 (with a zone behind it if \
                       it is not yours, as in 2027-01-31T18:00Z), or a time from now such as '+2 h' or '+90 s'";

/// Now.
pub fn now() -> Moment {
    Moment::from(SystemClock.now())
}

/// Reads a point in time.
///
/// # Errors
/// If it is none, with what is allowed.
pub fn read(text: &str) -> Result<Moment, String> {
    moment(text, now(), &TimeZone::system())
        .ok_or_else(|| format!("\"{text}\" is not a point in time: {ALLOWED}"))
}

fn moment(text: &str, now: Moment, zone: &TimeZone) -> Option<Moment> {
    let text = text.trim();
    if let Some(rest) = text.strip_prefix('+').or_else(|| text.strip_prefix("now+")) {
        return Some(now.after(rest.parse::<Period>().ok()?.as_ms()));
    }
    if text == "now" {
        return Some(now);
    }
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return u64::try_from(at.as_millisecond()).ok().map(Moment);
    }
    if let Ok(at) = text.parse::<DateTime>() {
        // A date alone is its midnight.
        return at_clock(at, zone);
    }
    next(clock(text)?, now, zone)
}

/// A time of day: `18:00`, `18:00:30`.
pub fn clock(text: &str) -> Option<Time> {
    let is_short = |part: &str| matches!(part.len(), 1 | 2);
    let parts: Vec<&str> = text.split(':').collect();
    let numbers: Option<Vec<i8>> =
        parts.iter().map(|part| part.parse().ok().filter(|_| is_short(part))).collect();
    match numbers?[..] {
        [hour, minute] => Time::new(hour, minute, 0, 0).ok(),
        [hour, minute, second] => Time::new(hour, minute, second, 0).ok(),
        _ => None,
    }
}

/// The day that it is on the clocks of a zone.
pub fn today(now: Moment, zone: &TimeZone) -> Option<Date> {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(now.0).ok()?).ok()?;
    Some(time.to_zoned(zone.clone()).date())
}

/// The moment at which clocks show this.
pub fn at_clock(shown: DateTime, zone: &TimeZone) -> Option<Moment> {
    let at = shown.to_zoned(zone.clone()).ok()?.timestamp();
    u64::try_from(at.as_millisecond()).ok().map(Moment)
}

/// When it is this time of day next.
pub fn next(time: Time, now: Moment, zone: &TimeZone) -> Option<Moment> {
    let today = today(now, zone)?;
    let at = at_clock(today.to_datetime(time), zone)?;
    if at > now { Some(at) } else { at_clock(today.tomorrow().ok()?.to_datetime(time), zone) }
}

/// Now, for what is read on the clocks of this machine.
///
/// # Errors
/// If `find` finds no time.
pub fn of_system(
    text: &str,
    find: impl FnOnce(&str, Moment, &TimeZone) -> Option<Moment>,
) -> Result<Moment> {
    find(text, now(), &TimeZone::system())
        .with_context(|| format!("\"{text}\" is not a point in time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-24 18:00 UTC.
    const NOW: Moment = Moment(1_795_543_200_000);

    #[test]
    fn a_time_of_day_is_the_next_one_and_a_date_is_on_the_clocks_of_the_zone() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let of = |text: &str| {
            let at = moment(text, NOW, &zone)?;
            let at = jiff::Timestamp::from_millisecond(i64::try_from(at.0).unwrap()).unwrap();
            Some(at.to_string())
        };
        for (text, expected) in [
            ("now", "2026-11-24T18:00:00Z"),
            ("+2 h", "2026-11-24T20:00:00Z"),
            ("now+90 s", "2026-11-24T18:01:30Z"),
            ("19:30", "2026-11-24T18:30:00Z"),
            ("19:00", "2026-11-25T18:00:00Z"),
            ("7:05:10", "2026-11-25T06:05:10Z"),
            ("2026-12-01", "2026-11-30T23:00:00Z"),
            ("2026-12-01T06:00", "2026-12-01T05:00:00Z"),
            ("2026-12-01T06:00:00Z", "2026-12-01T06:00:00Z"),
            ("2026-12-01T06:00+02:00", "2026-12-01T04:00:00Z"),
        ] {
            assert_eq!(of(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "18", "25:00", "tomorrow", "1:2:3:4", "100:00", "+", "2026-13-01"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert!(read("soon").unwrap_err().contains("soon"));
    }
}
