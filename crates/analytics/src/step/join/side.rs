//! One side of a join: its rows, their keys and the columns that are wanted of them.

use std::path::Path;

use crate::dataset::{Column, Field, Projection, Reader, Schema};
use crate::error::{Error, Result};
use crate::key::number_key;

/// The columns of a side, by name: they are the same in its utility files.
#[derive(Clone, Debug)]
pub(super) struct SideColumns {
    keys: Vec<String>,
    /// Bytes of every part of a key.
    widths: Vec<usize>,
    selected: Vec<Column>,
}

/// Bytes that every part of the keys takes on both sides: 8 for a number, the wider one's for texts.
pub(super) fn key_widths(
    left: &Reader,
    left_keys: &[String],
    right: &Reader,
    right_keys: &[String],
) -> Result<Vec<usize>> {
    let pairs = left_keys.iter().zip(right_keys);
    pairs
        .map(|(left_key, right_key)| match (left.field(left_key)?, right.field(right_key)?) {
            (Field::Number(_), Field::Number(_)) => Ok(8),
            (Field::Text(left), Field::Text(right)) => Ok(left.width().max(right.width())),
            (Field::Number(_), Field::Text(_)) | (Field::Text(_), Field::Number(_)) => {
                let reason = format!("cannot equal \"{left_key}\": one is a text, one a number");
                let (path, column) = (right.path().to_owned(), right_key.clone());
                Err(Error::Column { path, column, reason })
            }
        })
        .collect()
}

impl SideColumns {
    /// The side of `reader` with these keys, of which `columns` without `drop` are wanted.
    pub fn new(
        reader: &Reader,
        keys: Vec<String>,
        widths: Vec<usize>,
        columns: Option<&[String]>,
        drop: &[String],
    ) -> Result<SideColumns> {
        let selected = Projection::new(reader, columns, drop)?.columns().to_vec();
        Ok(SideColumns { keys, widths, selected })
    }

    /// The columns that are wanted.
    pub fn selected(&self) -> &[Column] {
        &self.selected
    }

    /// Opens the data set or a utility file of this side.
    pub fn open(&self, path: &Path) -> Result<Side> {
        let reader = Reader::open(path)?;
        let fields = self.keys.iter().map(|key| reader.field(key)).collect::<Result<Vec<_>>>()?;
        let position = |name: &str| {
            reader.field(name)?;
            Ok(reader.schema().position(name).unwrap_or_default())
        };
        let names = self.selected.iter().map(|column| column.name.as_str());
        let positions = names.clone().map(position).collect::<Result<Vec<_>>>()?;
        let keys =
            self.keys.iter().map(String::as_str).filter(|key| !names.clone().any(|n| n == *key));
        let mut needed = positions.clone();
        for key in keys.map(position).collect::<Result<Vec<_>>>()? {
            if !needed.contains(&key) {
                needed.push(key);
            }
        }
        Ok(Side {
            codec: KeyCodec {
                parts: fields.into_iter().zip(self.widths.iter().copied()).collect(),
            },
            selected: Projection::of(reader.schema(), &positions),
            needed: Projection::of(reader.schema(), &needed),
            reader,
        })
    }
}

/// A file of one side.
pub(super) struct Side {
    pub reader: Reader,
    pub codec: KeyCodec,
    /// The columns of the output.
    pub selected: Projection,
    /// These and the keys, for utility files.
    pub needed: Projection,
}

impl Side {
    /// The columns of a utility file.
    pub fn needed_schema(&self) -> Result<Schema> {
        Schema::new(self.needed.columns().to_vec())
    }
}

/// Makes keys of rows: equal bytes for equal values on both sides.
pub(super) struct KeyCodec {
    parts: Vec<(Field, usize)>,
}

impl KeyCodec {
    pub fn key_bytes(&self) -> usize {
        self.parts.iter().map(|(_, width)| width).sum()
    }

    /// Writes the key of `row`; false if a part of it is missing.
    #[inline]
    pub fn encode(&self, row: &[u8], key: &mut [u8]) -> bool {
        let mut rest = key;
        let mut whole = true;
        for (field, width) in &self.parts {
            let (part, after) = rest.split_at_mut(*width);
            match field {
                Field::Number(field) => {
                    let value = field.get(row);
                    whole &= !value.is_nan();
                    part.copy_from_slice(&number_key(value).to_be_bytes());
                }
                Field::Text(field) => {
                    let value = field.get(row);
                    whole &= !value.is_empty();
                    part[..value.len()].copy_from_slice(value);
                    part[value.len()..].fill(b' ');
                }
            }
            rest = after;
        }
        whole
    }
}
