//! Sizes in bytes as people write them: `256 KiB`, `4GiB`, `1000`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes. Written as a number with an optional unit: B, KiB, MiB, GiB, TiB (powers of
/// 1024) or kB, MB, GB, TB (powers of 1000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl ByteSize {
    /// `n` times 1024 bytes.
    #[must_use]
    pub const fn kib(n: u64) -> ByteSize {
        ByteSize(n << 10)
    }

    /// `n` times 1024² bytes.
    #[must_use]
    pub const fn mib(n: u64) -> ByteSize {
        ByteSize(n << 20)
    }

    /// `n` times 1024³ bytes.
    #[must_use]
    pub const fn gib(n: u64) -> ByteSize {
        ByteSize(n << 30)
    }

    /// The size as `usize`, for buffers.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteSize {
    /// The largest binary unit that divides the size, so that the text reads back to the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = UNITS[..5]
            .iter()
            .rev()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(&UNITS[0]);
        write!(f, "{} {unit}", self.0 / factor)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteSize, String> {
        let allowed = || format!("\"{text}\" is not a size (examples: \"256 KiB\", \"4 GiB\")");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let number: u64 = trimmed[..digits].parse().map_err(|_| allowed())?;
        let unit = trimmed[digits..].trim();
        let factor = if unit.is_empty() {
            1
        } else {
            UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(allowed)?.1
        };
        number.checked_mul(factor).map(ByteSize).ok_or_else(|| format!("\"{text}\" is too large"))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"256 KiB\", or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map(ByteSize)
                    .map_err(|_| E::custom("a size must not be negative"))
            }
        }
        // Formats that do not describe themselves hold the text that is written above.
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Visitor)
        } else {
            deserializer.deserialize_str(Visitor)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1000", 1000),
            ("256 KiB", 262_144),
            ("4GiB", 4 << 30),
            (" 2 MB ", 2_000_000),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5 GiB", "3 QiB", "99999999 TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_printed_size_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1536, 1 << 30, (1 << 40) + 1] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
    }
}
