//! Keys whose bytes compare as the values they were made from.
//!
//! A number becomes its IEEE 754 bits, big endian, with the sign bit flipped (all bits if negative);
//! the two zeros are equal and a missing number is all zeros, below every number. A text becomes its
//! bytes without trailing blanks, padded with zeros, so that a missing one is lowest and "a" is below
//! "ab". A descending part has all its bits flipped: there missing comes last.

use serde::{Deserialize, Serialize};

use crate::dataset::{Field, Reader};
use crate::error::{Error, Result};

/// Which way a key grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Smallest first; missing before all.
    #[default]
    Ascending,
    /// Largest first; missing after all.
    Descending,
}

/// One column to sort by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SortKey {
    /// The column's name.
    pub column: String,
    /// Which way it grows.
    #[serde(default)]
    pub direction: Direction,
}

impl SortKey {
    /// Smallest first.
    #[must_use]
    pub fn ascending(column: &str) -> SortKey {
        SortKey { column: column.to_owned(), direction: Direction::Ascending }
    }

    /// Largest first.
    #[must_use]
    pub fn descending(column: &str) -> SortKey {
        SortKey { column: column.to_owned(), direction: Direction::Descending }
    }
}

/// Makes keys out of rows.
#[derive(Clone, Debug)]
pub struct KeyCodec {
    parts: Vec<(Field, Direction)>,
    key_bytes: usize,
}

impl KeyCodec {
    /// A codec for the rows of `reader`.
    ///
    /// # Errors
    /// [`Error::Column`] if a column does not exist; [`Error::Setting`] if there is no key.
    pub fn new(reader: &Reader, keys: &[SortKey]) -> Result<KeyCodec> {
        if keys.is_empty() {
            return Err(Error::Setting {
                setting: "by",
                value: "[]".to_owned(),
                allowed: "at least one column".to_owned(),
            });
        }
        let parts = keys
            .iter()
            .map(|key| Ok((reader.field(&key.column)?, key.direction)))
            .collect::<Result<Vec<_>>>()?;
        let key_bytes = parts
            .iter()
            .map(|(field, _)| match field {
                Field::Number(_) => 8,
                Field::Text(text) => text.width(),
            })
            .sum();
        Ok(KeyCodec { parts, key_bytes })
    }

    /// Bytes of every key.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Writes the key of `row` to `key`.
    ///
    /// # Panics
    /// If `key` is not of [`KeyCodec::key_bytes`] bytes.
    #[inline]
    pub fn encode(&self, row: &[u8], key: &mut [u8]) {
        let mut rest = key;
        for (field, direction) in &self.parts {
            let part;
            match field {
                Field::Number(number) => {
                    (part, rest) = rest.split_at_mut(8);
                    part.copy_from_slice(&number_key(number.get(row)).to_be_bytes());
                }
                Field::Text(text) => {
                    (part, rest) = rest.split_at_mut(text.width());
                    let value = text.get(row);
                    part[..value.len()].copy_from_slice(value);
                    part[value.len()..].fill(0);
                }
            }
            match direction {
                Direction::Ascending => {}
                Direction::Descending => part.iter_mut().for_each(|byte| *byte = !*byte),
            }
        }
    }
}

/// The bits of `number` such that they compare as unsigned integers.
#[inline]
pub(crate) fn number_key(number: f64) -> u64 {
    const SIGN: u64 = 1 << 63;
    if number.is_nan() {
        return 0;
    }
    // Adding zero turns -0 into +0.
    let bits = (number + 0.0).to_bits();
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_keys_compare_as_numbers_do() {
        let ordered = [
            f64::NAN,
            f64::NEG_INFINITY,
            f64::MIN,
            -1.0,
            -f64::MIN_POSITIVE,
            0.0,
            f64::MIN_POSITIVE,
            1.0,
            2.0,
            f64::MAX,
            f64::INFINITY,
        ];
        for pair in ordered.windows(2) {
            assert!(number_key(pair[0]) < number_key(pair[1]), "{pair:?}");
        }
        assert_eq!(number_key(-0.0), number_key(0.0));
        assert_eq!(number_key(-f64::NAN), 0);
    }
}
