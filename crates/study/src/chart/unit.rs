//! Numbers as text: three significant digits, with the unit that fits.

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes, shown in powers of 1024.
    Bytes,
    /// Bytes per second, shown in powers of 1000 as storage figures are.
    BytesPerSecond,
    /// Things per second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// A part of a whole, 0 to 1, shown in per cent.
    Share,
    /// A plain number, such as a ratio.
    Plain,
}

const BINARY: [(f64, &str); 6] = [
    (1.0, "B"),
    (1024.0, "KiB"),
    (1_048_576.0, "MiB"),
    (1_073_741_824.0, "GiB"),
    (1_099_511_627_776.0, "TiB"),
    (1_125_899_906_842_624.0, "PiB"),
];
const RATES: [(f64, &str); 5] =
    [(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s")];
const COUNTS: [(f64, &str); 4] = [(1.0, ""), (1e6, "M"), (1e9, "G"), (1e12, "T")];
const TIMES: [(f64, &str); 4] = [(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")];

impl Unit {
    /// The factor and name of the unit in which `size` reads best.
    #[must_use]
    pub fn fit(self, size: f64) -> (f64, &'static str) {
        let of = |steps: &'static [(f64, &'static str)]| {
            steps.iter().rev().find(|(factor, _)| size.abs() >= *factor).copied()
        };
        match self {
            Unit::Count => of(&COUNTS).unwrap_or(COUNTS[0]),
            Unit::Bytes => of(&BINARY).unwrap_or(BINARY[0]),
            Unit::BytesPerSecond => of(&RATES).unwrap_or(RATES[0]),
            Unit::PerSecond => {
                let (factor, name) = of(&COUNTS).unwrap_or(COUNTS[0]);
                (factor, if name.is_empty() { "/s" } else { "M/s" })
            }
            Unit::Seconds if size >= 86_400.0 => (3600.0, "h"),
            Unit::Seconds if size >= 1200.0 => (60.0, "min"),
            Unit::Seconds => of(&TIMES).unwrap_or(if size == 0.0 { (1.0, "s") } else { TIMES[0] }),
            Unit::Share => (0.01, "%"),
            Unit::Plain => (1.0, ""),
        }
    }

    /// The number with its unit, to three significant digits.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        let (factor, name) = self.fit(number);
        self.show_as(number, factor, name)
    }

    /// The number in the unit given, to three significant digits.
    #[must_use]
    pub fn show_as(self, number: f64, factor: f64, name: &str) -> String {
        let scaled = number / factor;
        let text = match self {
            Unit::Count | Unit::Bytes if factor == 1.0 => grouped(scaled, 0),
            // A thousandth of the whole is as much as such parts are worth.
            Unit::Share if scaled.abs() >= 9.95 => grouped(scaled, 0),
            Unit::Share if scaled.abs() >= 0.05 => grouped(scaled, 1),
            Unit::Share if scaled == 0.0 => "0".to_owned(),
            Unit::Share => "0.0".to_owned(),
            _ => digits(scaled),
        };
        join(&text, name)
    }
}

/// A range in the unit that fits its end: `1.18 to 1.62 GB/s`.
#[must_use]
pub fn range(unit: Unit, low: f64, high: f64) -> String {
    let (factor, name) = unit.fit(high);
    format!("{} to {}", unit.show_as(low, factor, ""), unit.show_as(high, factor, name))
}

/// A number and a unit, kept together by a narrow space; per cent and multiples stand close as well.
#[must_use]
pub fn join(number: &str, unit: &str) -> String {
    if unit.is_empty() { number.to_owned() } else { format!("{number}\u{202f}{unit}") }
}

/// Three significant digits, all digits of whole parts, thousands apart.
#[must_use]
pub fn digits(number: f64) -> String {
    let size = number.abs();
    let decimals = match size {
        _ if !number.is_finite() => return "–".to_owned(),
        _ if size >= 99.95 || size == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ if size >= 0.001 => 3,
        _ => return format!("{number:.1e}"),
    };
    grouped(number, decimals)
}

/// A number with so many decimals, thousands apart by narrow spaces.
#[must_use]
pub fn grouped(number: f64, decimals: usize) -> String {
    if !number.is_finite() {
        return "–".to_owned();
    }
    let plain = format!("{:.decimals$}", number.abs());
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let zero = plain.bytes().all(|byte| byte == b'0' || byte == b'.');
    let mut text = String::from(if number < 0.0 && !zero { "−" } else { "" });
    for (at, digit) in whole.chars().enumerate() {
        // Four digits stay together, as is usual in print.
        if at > 0 && (whole.len() - at).is_multiple_of(3) && whole.len() > 4 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text + rest
}

/// A span of time for people: `850 ms`, `42.1 s`, `12 min 05 s`, `3 h 20 min`.
#[must_use]
pub fn span(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "–".to_owned();
    }
    let whole = seconds.abs().round() as u64;
    match whole {
        0..120 => Unit::Seconds.show(seconds),
        120..3600 => format!("{}\u{202f}min {:02}\u{202f}s", whole / 60, whole % 60),
        _ => format!("{}\u{202f}h {:02}\u{202f}min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits_and_a_fitting_unit() {
        let thin = |text: &str| text.replace(' ', "\u{202f}");
        for (unit, number, text) in [
            (Unit::BytesPerSecond, 312_400_000.0, "312 MB/s"),
            (Unit::BytesPerSecond, 1_450_000_000.0, "1.45 GB/s"),
            (Unit::BytesPerSecond, 0.0, "0 B/s"),
            (Unit::Bytes, 1_610_612_736.0, "1.50 GiB"),
            (Unit::Bytes, 700.0, "700 B"),
            (Unit::Seconds, 0.001_23, "1.23 ms"),
            (Unit::Seconds, 0.0, "0 s"),
            (Unit::Seconds, 4104.72, "68.4 min"),
            (Unit::Share, 0.934, "93 %"),
            (Unit::Share, 0.0312, "3.1 %"),
            (Unit::Share, 0.0002, "0.0 %"),
            (Unit::Count, 12_345.0, "12 345"),
            (Unit::Count, 1234.0, "1234"),
            (Unit::PerSecond, 1140.0, "1140 /s"),
            (Unit::Plain, 0.934, "0.934"),
            (Unit::Plain, -0.000_4, "-4.0e-4"),
        ] {
            assert_eq!(unit.show(number), thin(text), "{unit:?} {number}");
        }
        assert_eq!(digits(f64::NAN), "–");
        assert_eq!(grouped(-1_234_567.0, 1), thin("−1 234 567.0"));
        assert_eq!(grouped(-0.001, 1), "0.0");
    }

    #[test]
    fn both_ends_of_a_range_have_one_unit() {
        let text = range(Unit::BytesPerSecond, 628e6, 1.063e9);
        assert_eq!(text.replace('\u{202f}', " "), "0.628 to 1.06 GB/s");
    }

    #[test]
    fn spans_are_said_in_two_units_at_most() {
        for (seconds, text) in
            [(0.85, "850 ms"), (42.13, "42.1 s"), (725.0, "12 min 05 s"), (12_000.0, "3 h 20 min")]
        {
            assert_eq!(span(seconds).replace('\u{202f}', " "), text);
        }
    }
}
