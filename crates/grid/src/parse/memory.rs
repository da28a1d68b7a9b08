//! Memory that a job asks for, as users of Slurm and LSF write it: `4000` (MiB), `4G`, `512 MB`, `4 GiB`.

use std::fmt;
use std::str::FromStr;

use forebay_base::ByteSize;
use serde::{Deserialize, Deserializer, de};

/// An amount of memory. A number without a unit counts MiB, and K, M, G and T are binary, as with Slurm's `--mem`;
/// KiB to TiB are binary and KB to TB decimal, as everywhere. Upper and lower case are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub ByteSize);

/// What is told of a text that is not an amount of memory.
const ALLOWED: &str = "write a number of MiB, or a whole number with K, M, G, T (powers of 1024), KiB to TiB or KB to TB, such as 4000, 4G or \"4 GiB\"";

impl Memory {
    fn of_mib(number: u64) -> Result<Memory, String> {
        let bytes = number.checked_mul(1 << 20).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| format!("\"{number}\" is out of range: {ALLOWED}"))?;
        Ok(Memory(ByteSize(bytes)))
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Memory, String> {
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let refused = || format!("\"{text}\" is not an amount of memory: {ALLOWED}");
        let number: u64 = trimmed[..digits].parse().map_err(|_| refused())?;
        let factor: u64 = match trimmed[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "m" | "mib" => return Memory::of_mib(number),
            "k" | "kib" => 1 << 10,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "b" => 1,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(refused()),
        };
        let bytes = number.checked_mul(factor).filter(|bytes| *bytes > 0);
        let out_of_range = || format!("\"{text}\" is out of range: {ALLOWED}");
        Ok(Memory(ByteSize(bytes.ok_or_else(out_of_range)?)))
    }
}

impl<'de> Deserialize<'de> for Memory {
    /// From a text, or from a number of MiB.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Memory, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Memory;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount of memory such as \"4G\", or a number of MiB")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Memory, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Memory, E> {
                Memory::of_mib(number).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Memory, E> {
                Memory::of_mib(u64::try_from(number).unwrap_or(0)).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_as_users_of_slurm_and_lsf_write_it() {
        for (text, bytes) in [
            ("4000", 4000 << 20),
            ("4000M", 4000 << 20),
            ("512k", 512 << 10),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("2T", 2 << 40),
            ("8 GiB", 8 << 30),
            ("8gib", 8 << 30),
            ("8 GB", 8_000_000_000),
            ("1mb", 1_000_000),
            (" 3 KiB ", 3 << 10),
            ("1000000 B", 1_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Memory(ByteSize(bytes))), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "4 QiB", "0", "0G", "99999999999T", "4 G G"] {
            let said = text.parse::<Memory>().expect_err(text);
            assert!(said.contains(text) && said.contains("4G"), "{said}");
        }
    }
}
