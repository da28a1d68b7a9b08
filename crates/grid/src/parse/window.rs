//! Time windows: `1:22:00-5:06:00 20:00-8:30`, as LSF writes them.

use std::fmt;
use std::str::FromStr;

use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ParseError, Scanner};
use crate::vocabulary::{Moment, as_text};

const DAY_MINUTES: u32 = 24 * 60;
const WEEK_MINUTES: u32 = 7 * DAY_MINUTES;
/// Offsets of time zones change at quarters of an hour: nothing is looked at less often.
const QUARTER_MS: u64 = 15 * 60 * 1000;

/// Times of the week. Each is `begin-end`, with both as `hour`, `hour:minute` or `day:hour:minute`
/// where day 0 and 7 are Sunday. Without a day it holds every day, and over midnight if it ends before
/// it begins. The begin is inside, the end is not. No window at all means always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    windows: Vec<Window>,
    /// Minutes of the week from Sunday 0:00, begin and end, within one week, in order, joined.
    open: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    begin: Edge,
    end: Edge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edge {
    day: Option<u32>,
    minute: u32,
}

impl Windows {
    /// Whether a text was given at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Whether `now` is inside a window.
    #[must_use]
    pub fn is_open(&self, now: Moment, zone: &TimeZone) -> bool {
        if self.is_empty() {
            return true;
        }
        let minute = week_millisecond(now, zone) / 60_000;
        self.open.iter().any(|(begin, end)| (u64::from(*begin)..u64::from(*end)).contains(&minute))
    }

    /// When to look again: the next edge, or earlier because clocks may change until then.
    #[must_use]
    pub fn next_look(&self, now: Moment, zone: &TimeZone) -> Moment {
        if self.is_empty() {
            return Moment::NEVER;
        }
        let here = week_millisecond(now, zone);
        let week = u64::from(WEEK_MINUTES) * 60_000;
        let edges = self.open.iter().flat_map(|(begin, end)| [*begin, *end]);
        let ahead = edges
            .map(|edge| (u64::from(edge) * 60_000 + week - here) % week)
            .map(|ahead| if ahead == 0 { week } else { ahead })
            .min()
            .unwrap_or(week);
        let quarter = QUARTER_MS - now.0 % QUARTER_MS;
        now.after(ahead.min(quarter))
    }
}

/// Milliseconds since Sunday 0:00 of that week on the clocks of the zone.
fn week_millisecond(now: Moment, zone: &TimeZone) -> u64 {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(now.0).unwrap_or(i64::MAX))
        .unwrap_or(jiff::Timestamp::MAX);
    let local = zone.to_datetime(time);
    let day = u64::from(local.weekday().to_sunday_zero_offset().unsigned_abs());
    let part = |number: i8| u64::from(number.unsigned_abs());
    let minutes = (day * 24 + part(local.hour())) * 60 + part(local.minute());
    (minutes * 60 + part(local.second())) * 1000 + u64::from(local.millisecond().unsigned_abs())
}

fn edge(scanner: &mut Scanner<'_>) -> Result<Edge, ParseError> {
    let start = scanner.at();
    let mut parts = vec![scanner.number("an hour, or a day from 0 (Sunday) to 7", 24)?];
    while parts.len() < 3 && scanner.take(":") {
        parts.push(scanner.number("a minute, or an hour after a day", 59)?);
    }
    let (day, hour, minute) = match parts[..] {
        [hour] => (None, hour, 0),
        [hour, minute] => (None, hour, minute),
        [day, hour, minute] => (Some(day), hour, minute),
        _ => return Err(scanner.refuse_at(start, "expected [day:]hour[:minute]")),
    };
    if day.is_some_and(|day| day > 7) {
        return Err(scanner.refuse_at(start, "a day is 0 (Sunday) to 6, or 7 for Sunday"));
    }
    if hour * 60 + minute > DAY_MINUTES {
        return Err(scanner.refuse_at(start, "an hour is 0 to 24"));
    }
    Ok(Edge { day: day.map(|day| day % 7), minute: hour * 60 + minute })
}

impl FromStr for Windows {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Windows, ParseError> {
        let mut scanner = Scanner::new("time windows", text);
        let mut windows = Vec::new();
        loop {
            scanner.skip_blanks();
            if scanner.at_end() {
                break;
            }
            let start = scanner.at();
            let begin = edge(&mut scanner)?;
            scanner.expect("-")?;
            let end = edge(&mut scanner)?;
            if begin.day.is_some() != end.day.is_some() {
                let reason = "either both ends have a day or none, such as 5:19:00-1:8:30";
                return Err(scanner.refuse_at(start, reason));
            }
            if begin == end {
                return Err(scanner.refuse_at(start, "begins and ends at the same time"));
            }
            if !scanner.at_end() && !scanner.rest().starts_with(char::is_whitespace) {
                let reason = "expected a blank before the next window, such as 20:00-8:30";
                return Err(scanner.refuse(reason));
            }
            windows.push(Window { begin, end });
        }
        Ok(Windows { open: open(&windows), windows })
    }
}

/// The windows as minutes of one week, in order, joined where they touch.
fn open(windows: &[Window]) -> Vec<(u32, u32)> {
    let mut parts = Vec::new();
    let mut add = |begin: u32, mut end: u32| {
        if end <= begin {
            end += WEEK_MINUTES;
        }
        if end > WEEK_MINUTES {
            parts.push((begin, WEEK_MINUTES));
            parts.push((0, end - WEEK_MINUTES));
        } else {
            parts.push((begin, end));
        }
    };
    for Window { begin, end } in windows {
        match (begin.day, end.day) {
            (Some(first), Some(last)) => add(
                (first * DAY_MINUTES + begin.minute) % WEEK_MINUTES,
                (last * DAY_MINUTES + end.minute) % WEEK_MINUTES,
            ),
            _ => {
                for day in 0..7 {
                    let over_midnight = u32::from(end.minute <= begin.minute);
                    let last = (day + over_midnight) * DAY_MINUTES + end.minute;
                    add((day * DAY_MINUTES + begin.minute) % WEEK_MINUTES, last % WEEK_MINUTES);
                }
            }
        }
    }
    parts.retain(|(begin, end)| begin < end);
    parts.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::new();
    for (begin, end) in parts {
        match joined.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            Some(_) | None => joined.push((begin, end)),
        }
    }
    joined
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(day) = self.day {
            write!(f, "{day}:")?;
        }
        write!(f, "{}:{:02}", self.minute / 60, self.minute % 60)
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blank = "";
        for Window { begin, end } in &self.windows {
            write!(f, "{blank}{begin}-{end}")?;
            blank = " ";
        }
        Ok(())
    }
}

as_text!(Windows);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_joined_minutes_of_the_week() {
        let open = |text: &str| text.parse::<Windows>().unwrap().open;
        assert_eq!(open("1:0:00-1:12:00 1:10:00-1:14:00"), [(1440, 2280)]);
        assert_eq!(open("6:22:00-0:2:00"), [(0, 120), (6 * 1440 + 1320, 7 * 1440)]);
        assert_eq!(open("0-24"), [(0, 7 * 1440)]);
    }
}
