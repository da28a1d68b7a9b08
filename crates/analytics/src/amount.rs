//! Numbers and sizes that grow with the scale of a run.
//!
//! A workload is written down at the size of the study that it comes from; a run takes it at a scale,
//! where 1 is that size. An amount is either fixed, or follows the scale by a power: `full * scale ^
//! power`, rounded, and never below `min`. In a file:
//!
//! ```toml
//! copies = 3                                               # fixed
//! rows = { full = 90_000_000 }                             # proportional, at least 1
//! models = { full = 750, power = 0.5, min = 4 }
//! table = { full = "600 GB", min = "64 MiB" }
//! ```

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

/// How large a run is against its study: 1 is as large, 0.01 a hundredth. Positive and finite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Scale(f64);

impl Scale {
    /// As large as the study.
    pub const FULL: Scale = Scale(1.0);

    /// The scale as a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    fn of(self, full: u64, power: f64, min: u64) -> u64 {
        let scaled = (full as f64 * self.0.powf(power)).round();
        // Beyond 2^64 the conversion saturates.
        (scaled as u64).max(min)
    }
}

impl TryFrom<f64> for Scale {
    type Error = String;

    fn try_from(scale: f64) -> Result<Scale, String> {
        if scale.is_finite() && scale > 0.0 {
            Ok(Scale(scale))
        } else {
            Err(format!(
                "{scale} is not a scale: write a number above 0, 1 for the size of the study"
            ))
        }
    }
}

impl From<Scale> for f64 {
    fn from(scale: Scale) -> f64 {
        scale.0
    }
}

impl std::str::FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Scale, String> {
        let number: f64 =
            text.parse().map_err(|_| format!("\"{text}\" is not a number (example: 0.01)"))?;
        Scale::try_from(number)
    }
}

impl std::fmt::Display for Scale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of things.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Count {
    /// The same at every scale.
    Fixed(u64),
    /// Grows with the scale.
    Scaled(ScaledCount),
}

/// A number that grows with the scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaledCount {
    /// The number at scale 1.
    pub full: u64,
    /// The power of the scale.
    #[serde(default = "proportional")]
    pub power: f64,
    /// The least.
    #[serde(default = "one")]
    pub min: u64,
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// The same at every scale.
    Fixed(ByteSize),
    /// Grows with the scale.
    Scaled(ScaledSize),
}

/// A size that grows with the scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaledSize {
    /// The size at scale 1.
    pub full: ByteSize,
    /// The power of the scale.
    #[serde(default = "proportional")]
    pub power: f64,
    /// The least.
    #[serde(default = "one_byte")]
    pub min: ByteSize,
}

fn proportional() -> f64 {
    1.0
}

fn one() -> u64 {
    1
}

fn one_byte() -> ByteSize {
    ByteSize(1)
}

impl Count {
    /// The number at `scale`.
    #[must_use]
    pub fn at(self, scale: Scale) -> u64 {
        match self {
            Count::Fixed(number) => number,
            Count::Scaled(ScaledCount { full, power, min }) => scale.of(full, power, min),
        }
    }
}

impl Size {
    /// The size at `scale`.
    #[must_use]
    pub fn at(self, scale: Scale) -> ByteSize {
        match self {
            Size::Fixed(size) => size,
            Size::Scaled(ScaledSize { full, power, min }) => {
                ByteSize(scale.of(full.0, power, min.0))
            }
        }
    }
}

impl From<u64> for Count {
    fn from(number: u64) -> Count {
        Count::Fixed(number)
    }
}

impl From<ByteSize> for Size {
    fn from(size: ByteSize) -> Size {
        Size::Fixed(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_follow_the_scale_down_to_their_least() {
        let count: Count = serde_json::from_str(r#"{"full":750,"power":0.5,"min":4}"#).unwrap();
        for (scale, expected) in [(1.0, 750), (0.01, 75), (0.000_001, 4), (4.0, 1500)] {
            assert_eq!(count.at(Scale(scale)), expected, "{scale}");
        }
        let size: Size = serde_json::from_str(r#"{"full":"600 GB"}"#).unwrap();
        assert_eq!(size.at(Scale(0.001)), ByteSize(600_000_000));
        let fixed: Size = serde_json::from_str("\"64 KiB\"").unwrap();
        assert_eq!(fixed.at(Scale(0.001)), ByteSize::kib(64));
    }

    #[test]
    fn a_scale_is_a_positive_number() {
        for text in ["0", "-1", "inf", "NaN", "x"] {
            assert!(text.parse::<Scale>().is_err(), "{text}");
        }
    }
}
