//! Quantiles of a stream in bounded memory.

/// Values of a buffer. Up to so many values are kept as they are.
pub const BUFFER_VALUES: usize = 4096;

/// Quantiles of any number of values in bounded memory: sorted buffers of [`BUFFER_VALUES`] values, two
/// of which, standing for equally many values, become one by merging them and keeping every other value,
/// odd and even places in turn (J. I. Munro, M. S. Paterson, "Selection and sorting with limited storage",
/// Theoretical Computer Science 12, 1980; G. S. Manku, S. Rajagopalan, B. G. Lindsay, SIGMOD 1998).
///
/// # Error
/// A merge moves ranks by no more than the number of values that one kept value stood for before. So the
/// value that is given for a quantile of `n` values has a rank that is off by at most `n * log2(n /
/// BUFFER_VALUES) / (2 * BUFFER_VALUES)`, rounded up to whole levels, and one value's weight: 0.2 % of
/// the rows for a hundred million of them. Turns let most of these errors cancel each other.
#[derive(Clone, Debug)]
pub struct QuantileSketch {
    /// Values not yet in a buffer.
    fresh: Vec<f64>,
    /// Level `l`: a sorted buffer whose values stand for `2^l` each, and whether the next one made of it
    /// keeps odd places.
    levels: Vec<Level>,
    spare: Vec<f64>,
}

#[derive(Clone, Debug, Default)]
struct Level {
    buffer: Vec<f64>,
    odd: bool,
}

impl Default for QuantileSketch {
    fn default() -> QuantileSketch {
        QuantileSketch::new()
    }
}

impl QuantileSketch {
    /// No values yet.
    #[must_use]
    pub fn new() -> QuantileSketch {
        QuantileSketch { fresh: Vec::new(), levels: Vec::new(), spare: Vec::new() }
    }

    /// Adds a value; NaN is left out.
    #[inline]
    pub fn add(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        if self.fresh.len() == BUFFER_VALUES {
            self.carry();
        }
        self.fresh.push(value);
    }

    /// Moves the fresh values into buffers, as a binary counter carries.
    fn carry(&mut self) {
        self.fresh.sort_unstable_by(f64::total_cmp);
        let mut carried = std::mem::take(&mut self.fresh);
        for at in 0.. {
            if self.levels.len() == at {
                self.levels.push(Level::default());
            }
            let level = &mut self.levels[at];
            if level.buffer.is_empty() {
                // The old empty buffer's memory serves the next fresh values.
                self.fresh = std::mem::replace(&mut level.buffer, carried);
                return;
            }
            self.spare.clear();
            every_other(&level.buffer, &carried, usize::from(level.odd), &mut self.spare);
            level.odd = !level.odd;
            level.buffer.clear();
            std::mem::swap(&mut carried, &mut self.spare);
        }
    }

    /// The value at each part (0 to 1) of the values: the smallest one whose rank is at least that part
    /// of their number. None without values.
    #[must_use]
    pub fn quantiles(&self, parts: &[f64]) -> Vec<f64> {
        let mut weighted: Vec<(f64, u64)> = self.fresh.iter().map(|&value| (value, 1)).collect();
        for (level, weight) in self.levels.iter().zip((0..).map(|level| 1_u64 << level)) {
            weighted.extend(level.buffer.iter().map(|&value| (value, weight)));
        }
        weighted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut rank = 0;
        let ranks = weighted.iter().map(|(_, weight)| {
            rank += weight;
            rank
        });
        let ranks: Vec<u64> = ranks.collect();
        let Some(&n) = ranks.last() else { return Vec::new() };
        let place = |part: &f64| {
            let wanted = ((n as f64 * part).ceil() as u64).clamp(1, n);
            weighted[ranks.partition_point(|&rank| rank < wanted)].0
        };
        parts.iter().map(place).collect()
    }
}

/// Merges `a` and `b`, both sorted, and keeps every other value, the first one at place `start`.
fn every_other(a: &[f64], b: &[f64], start: usize, kept: &mut Vec<f64>) {
    let (mut in_a, mut in_b) = (0, 0);
    for place in 0..a.len() + b.len() {
        let from_a = in_b == b.len() || in_a < a.len() && a[in_a] <= b[in_b];
        let value = if from_a { a[in_a] } else { b[in_b] };
        in_a += usize::from(from_a);
        in_b += usize::from(!from_a);
        if place % 2 == start {
            kept.push(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [f64; 7] = [0.0, 0.001, 0.1, 0.5, 0.75, 0.999, 1.0];

    #[test]
    fn few_values_have_exact_quantiles() {
        let mut sketch = QuantileSketch::new();
        assert_eq!(sketch.quantiles(&PARTS), [0.0; 0]);
        (0..1000).for_each(|i| sketch.add(f64::from((i * 617 + 5) % 1000 + 1)));
        sketch.add(f64::NAN);
        assert_eq!(sketch.quantiles(&PARTS), [1.0, 1.0, 100.0, 500.0, 750.0, 999.0, 1000.0]);
    }

    #[test]
    fn many_values_are_within_the_stated_error() {
        let n = 1_000_003_u64;
        // 619,993 has no divisor in common with n, a prime: every value occurs once.
        for order in [1, n - 1, 619_993] {
            let mut sketch = QuantileSketch::new();
            (0..n).for_each(|i| sketch.add((i * order % n) as f64));
            let levels = (n as f64 / BUFFER_VALUES as f64).log2().ceil();
            let error = n as f64 * levels / (2.0 * BUFFER_VALUES as f64) + levels.exp2();
            for (part, value) in PARTS.iter().zip(sketch.quantiles(&PARTS)) {
                assert!((value - part * n as f64).abs() <= error, "{order}, {part}: {value}");
            }
            let kept: usize = sketch.levels.iter().map(|level| level.buffer.len()).sum();
            assert!(kept + sketch.fresh.len() <= BUFFER_VALUES * (levels as usize + 2));
        }
    }
}
