//! Dates as numbers: days and seconds since 1970-01-01 UTC.

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar (H. Hinnant, "chrono-compatible
/// low-level date algorithms", `days_from_civil`).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`]: year, month, day.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'))
    })
}

/// Days since 1970-01-01 of `YYYY-MM-DD`, or `None` if the text is not such a date.
#[must_use]
pub fn parse_date(text: &[u8]) -> Option<f64> {
    if text.len() != 10 || text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    let (year, month, day) = (digits(&text[..4])?, digits(&text[5..7])?, digits(&text[8..])?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    (civil_from_days(days) == (year, month, day)).then_some(days as f64)
}

/// Seconds since 1970-01-01 of `YYYY-MM-DDThh:mm:ssZ` (a blank may stand for `T`, and `Z` may be
/// left out), or `None` if the text is not such a time. Leap seconds are refused.
#[must_use]
pub fn parse_datetime(text: &[u8]) -> Option<f64> {
    let text = text.strip_suffix(b"Z").unwrap_or(text);
    if text.len() != 19 || !matches!(text[10], b'T' | b' ') || text[13] != b':' || text[16] != b':'
    {
        return None;
    }
    let days = parse_date(&text[..10])?;
    let (hour, minute, second) =
        (digits(&text[11..13])?, digits(&text[14..16])?, digits(&text[17..])?);
    let valid = hour < 24 && minute < 60 && second < 60;
    valid.then_some(days * 86_400.0 + (hour * 3600 + minute * 60 + second) as f64)
}

/// `YYYY-MM-DD` of a number of days since 1970-01-01 (a fraction is cut off).
#[must_use]
pub fn format_date(days: f64) -> String {
    let (year, month, day) = civil_from_days(days.clamp(-4e9, 4e9).floor() as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

/// `YYYY-MM-DDThh:mm:ssZ` of a number of seconds since 1970-01-01 (a fraction is cut off).
#[must_use]
pub fn format_datetime(seconds: f64) -> String {
    let seconds = seconds.clamp(-3e14, 3e14).floor() as i64;
    let time = seconds.rem_euclid(86_400);
    format!(
        "{}T{:02}:{:02}:{:02}Z",
        format_date(seconds.div_euclid(86_400) as f64),
        time / 3600,
        time / 60 % 60,
        time % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_count_from_1970() {
        for (text, days) in [
            ("1970-01-01", 0.0),
            ("1969-12-31", -1.0),
            ("2000-02-29", 11_016.0),
            ("2013-01-01", 15_706.0),
        ] {
            assert_eq!(parse_date(text.as_bytes()), Some(days), "{text}");
            assert_eq!(format_date(days), text);
        }
        for text in ["2013-02-29", "2013-13-01", "2013-1-01", "13-01-2013", "2013/01/01", ""] {
            assert_eq!(parse_date(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn times_count_seconds() {
        let seconds = 15_706.0 * 86_400.0 + 36_000.0;
        for text in ["2013-01-01T10:00:00Z", "2013-01-01 10:00:00", "2013-01-01T10:00:00"] {
            assert_eq!(parse_datetime(text.as_bytes()), Some(seconds), "{text}");
        }
        assert_eq!(format_datetime(seconds), "2013-01-01T10:00:00Z");
        assert_eq!(format_datetime(-1.0), "1969-12-31T23:59:59Z");
        for text in ["2013-01-01T24:00:00Z", "2013-01-01T10:00", "2013-01-01X10:00:00Z"] {
            assert_eq!(parse_datetime(text.as_bytes()), None, "{text}");
        }
    }
}
