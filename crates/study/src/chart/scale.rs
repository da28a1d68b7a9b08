//! Axes: where the ticks are, and what is written at them.

use super::unit::{Unit, grouped, join};

/// A place on an axis and its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The value.
    pub at: f64,
    /// The text.
    pub label: String,
}

/// A linear axis from zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Value at its end: the last tick.
    pub top: f64,
    /// The ticks, zero included.
    pub ticks: Vec<Tick>,
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `size`.
fn nice_step(size: f64) -> f64 {
    let power = 10f64.powf(size.log10().floor());
    let part = size / power;
    let nice = [1.0, 2.0, 2.5, 5.0].into_iter().find(|nice| part <= nice * (1.0 + 1e-9));
    nice.unwrap_or(10.0) * power
}

/// The smallest power of two (times 1, for binary sizes) that is not below `size`.
fn binary_step(size: f64) -> f64 {
    size.log2().ceil().exp2()
}

impl Linear {
    /// An axis that holds `largest` with about `count` steps. The unit stands at the last tick only.
    #[must_use]
    pub fn holding(largest: f64, unit: Unit, count: usize) -> Linear {
        let largest = if largest.is_finite() && largest > 0.0 { largest } else { 1.0 };
        if unit == Unit::Share && largest > 0.5 {
            return Linear::with_step(1.0_f64.max(largest), 0.25, unit);
        }
        let wish = largest / count as f64;
        let (factor, _) = unit.fit(largest);
        let step = match unit {
            Unit::Bytes if wish >= 1.0 => {
                let (part, _) = unit.fit(wish);
                let scaled = wish / part;
                if scaled > 128.0 { binary_step(wish) } else { binary_step(scaled) * part }
            }
            // Half a thing is not to be had.
            Unit::Count => nice_step(wish).max(1.0).ceil(),
            _ => nice_step(wish / factor) * factor,
        };
        Linear::with_step(largest, step, unit)
    }

    fn with_step(largest: f64, step: f64, unit: Unit) -> Linear {
        let steps = (largest / step - 1e-9).ceil().max(1.0) as usize;
        let top = step * steps as f64;
        let (factor, name) = unit.fit(top);
        let decimals = decimals_of(step / factor);
        let ticks = (0..=steps)
            .map(|i| {
                let at = step * i as f64;
                let number = grouped(at / factor, if i == 0 { 0 } else { decimals });
                Tick { at, label: if i == steps { join(&number, name) } else { number } }
            })
            .collect();
        Linear { top, ticks }
    }

    /// Part of the axis at which `value` lies, 0 to 1.
    #[must_use]
    pub fn part(&self, value: f64) -> f64 {
        (value / self.top).clamp(0.0, 1.0)
    }
}

/// Decimals needed to tell multiples of `step` apart.
fn decimals_of(step: f64) -> usize {
    let exact = |decimals: &usize| {
        let scaled = step * 10f64.powi(*decimals as i32);
        (scaled - scaled.round()).abs() < 1e-6 * scaled
    };
    (0..6).find(exact).unwrap_or(6)
}

/// Steps of a time axis that people count in.
const TIME_STEPS: [f64; 21] = [
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0,
    3600.0, 7200.0, 14_400.0, 21_600.0, 43_200.0, 86_400.0,
];

/// Ticks of a time axis from 0 to `end` seconds, `count` of them or somewhat fewer.
#[must_use]
pub fn time_ticks(end: f64, count: usize) -> Vec<Tick> {
    if !(end.is_finite() && end > 0.0) {
        return vec![Tick { at: 0.0, label: "0".to_owned() }];
    }
    let wish = end / count as f64;
    let days = (wish / 86_400.0).ceil() * 86_400.0;
    let step = TIME_STEPS.into_iter().find(|step| *step >= wish).unwrap_or(days);
    let steps = (end / step + 1e-9).floor() as usize;
    (0..=steps)
        .map(|i| {
            let at = step * i as f64;
            Tick { at, label: if i == 0 { "0".to_owned() } else { time_label(at, step) } }
        })
        .collect()
}

/// Ticks of a time axis of `end` seconds that ends now: labelled by how long ago they are, `count` of them or somewhat fewer.
#[must_use]
pub fn ticks_until_now(end: f64, count: usize) -> Vec<Tick> {
    const DAY: f64 = 86_400.0;
    let ago = |tick: Tick| {
        let label = match tick.at {
            at if at <= 0.0 => "now".to_owned(),
            at if at >= 2.0 * DAY && at % DAY == 0.0 => {
                format!("\u{2212}{}", join(&(at / DAY).to_string(), "d"))
            }
            _ => format!("\u{2212}{}", tick.label),
        };
        Tick { at: end - tick.at, label }
    };
    time_ticks(end, count).into_iter().map(ago).rev().collect()
}

fn time_label(at: f64, step: f64) -> String {
    let whole = at.round() as u64;
    if step < 1.0 {
        join(&format!("{at:.1}"), "s")
    } else if step < 60.0 && whole < 120 && step * 8.0 <= 120.0 {
        join(&whole.to_string(), "s")
    } else if step < 60.0 {
        format!("{}:{:02}", whole / 60, whole % 60)
    } else if step < 3600.0 && step * 12.0 <= 7200.0 {
        join(&(whole / 60).to_string(), "min")
    } else if step < 3600.0 {
        join(&format!("{}:{:02}", whole / 3600, whole % 3600 / 60), "h")
    } else {
        join(&(whole / 3600).to_string(), "h")
    }
}

/// A logarithmic axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Logarithmic {
    low: f64,
    high: f64,
}

impl Logarithmic {
    /// The axis from `low` to `high`; `None` unless both are numbers above zero, `low` the smaller.
    #[must_use]
    pub fn between(low: f64, high: f64) -> Option<Logarithmic> {
        (low > 0.0 && high > low && high.is_finite()).then_some(Logarithmic { low, high })
    }

    /// Part of the axis at which `value` lies, 0 to 1.
    #[must_use]
    pub fn part(&self, value: f64) -> f64 {
        ((value / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    /// Ticks at powers of ten, for bytes at powers of two; `count` of them at most.
    #[must_use]
    pub fn ticks(&self, unit: Unit, count: usize) -> Vec<Tick> {
        let base: f64 = if unit == Unit::Bytes { 2.0 } else { 10.0 };
        let place = |value: f64| value.ln() / base.ln();
        let first = (place(self.low) - 1e-9).ceil() as i32;
        let last = (place(self.high) + 1e-9).floor() as i32;
        let every = ((last - first) / count.max(1) as i32 + 1).max(1);
        (first..=last)
            .filter(|power| power.rem_euclid(every) == 0)
            .map(|power| {
                let at = base.powi(power);
                let (factor, name) = unit.fit(at * (1.0 + 1e-9));
                let number = at / factor;
                Tick { at, label: join(&grouped(number, decimals_of(number)), name) }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[Tick]) -> String {
        let texts: Vec<String> =
            ticks.iter().map(|tick| tick.label.replace('\u{202f}', " ")).collect();
        texts.join("|")
    }

    #[test]
    fn ticks_are_round_numbers_with_the_unit_at_the_last() {
        let axis = |largest, unit| labels(&Linear::holding(largest, unit, 4).ticks);
        assert_eq!(axis(312e6, Unit::BytesPerSecond), "0|100|200|300|400 MB/s");
        assert_eq!(axis(1.42e9, Unit::BytesPerSecond), "0|0.5|1.0|1.5 GB/s");
        assert_eq!(axis(0.93, Unit::Share), "0|25|50|75|100 %");
        assert_eq!(axis(0.04, Unit::Share), "0|1|2|3|4 %");
        assert_eq!(axis(3.0, Unit::Count), "0|1|2|3");
        assert_eq!(axis(77.0, Unit::Count), "0|20|40|60|80");
        assert_eq!(axis(6.1e9, Unit::Bytes), "0|2|4|6 GiB");
        assert_eq!(axis(1.1e9, Unit::Bytes), "0|0.5|1.0|1.5 GiB");
        assert_eq!(
            axis(0.0, Unit::Plain),
            "0.0|0.2|0.4|0.6|0.8|1.0"
                .replacen("0.0", "0", 1)
                .replace("0.2|0.4|0.6|0.8|", "0.25|0.50|0.75|")
                .replace("1.0", "1.00")
        );
    }

    #[test]
    fn time_is_ticked_as_clocks_are() {
        let axis = |end| labels(&time_ticks(end, 8));
        assert_eq!(axis(0.9), "0|0.2 s|0.4 s|0.6 s|0.8 s");
        assert_eq!(axis(61.0), "0|10 s|20 s|30 s|40 s|50 s|60 s");
        assert_eq!(axis(200.0), "0|0:30|1:00|1:30|2:00|2:30|3:00");
        assert_eq!(axis(2580.0), "0|10 min|20 min|30 min|40 min");
        assert_eq!(axis(8000.0), "0|0:30 h|1:00 h|1:30 h|2:00 h");
        assert_eq!(axis(40_000.0), "0|2 h|4 h|6 h|8 h|10 h");
        assert_eq!(axis(f64::NAN), "0");
    }

    #[test]
    fn time_until_now_is_counted_backwards() {
        let axis = |end| labels(&ticks_until_now(end, 8));
        assert_eq!(axis(3600.0), "−60 min|−50 min|−40 min|−30 min|−20 min|−10 min|now");
        assert_eq!(axis(86_400.0), "−24 h|−20 h|−16 h|−12 h|−8 h|−4 h|now");
        assert_eq!(axis(31.0 * 86_400.0), "−28 d|−24 d|−20 d|−16 d|−12 d|−8 d|−4 d|now");
        let ticks = ticks_until_now(100.0, 8);
        assert_eq!(ticks.last().map(|tick| tick.at), Some(100.0));
    }

    #[test]
    fn logarithmic_ticks_are_powers() {
        let axis = Logarithmic::between(3e-6, 0.4).unwrap();
        assert_eq!(labels(&axis.ticks(Unit::Seconds, 8)), "10 µs|100 µs|1 ms|10 ms|100 ms");
        let axis = Logarithmic::between(4096.0, 1_048_576.0).unwrap();
        assert_eq!(labels(&axis.ticks(Unit::Bytes, 5)), "4 KiB|16 KiB|64 KiB|256 KiB|1 MiB");
        assert!((axis.part(65_536.0) - 0.5).abs() < 1e-12);
        assert!(Logarithmic::between(0.0, 1.0).is_none());
        assert!(Logarithmic::between(2.0, 2.0).is_none());
    }
}
