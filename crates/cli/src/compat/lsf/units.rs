//! Times and memory as LSF writes them.

use std::path::Path;

use anyhow::{Context as _, Result};
use forebay_base::ByteSize;
use forebay_grid::parse::period::Period;

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
