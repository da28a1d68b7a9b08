//! Some columns of a data set, copied row by row.

use super::reader::Reader;
use super::schema::{Column, Schema};
use crate::error::{Error, Result};

/// Copies chosen columns of a row in their order. Neighbours that stay neighbours are copied at once,
/// so that taking all columns costs one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    columns: Vec<Column>,
    /// Offset and length of every piece of the row.
    pieces: Vec<(usize, usize)>,
    row_bytes: usize,
}

impl Projection {
    /// The columns named `keep` in their order there, all if that is `None`, without those named
    /// `drop`. A name that ends in `*` stands for all columns that start so.
    ///
    /// # Errors
    /// [`Error::Column`] if a name fits no column.
    pub fn new(reader: &Reader, keep: Option<&[String]>, drop: &[String]) -> Result<Projection> {
        let schema = reader.schema();
        let mut kept = match keep {
            Some(names) => positions(reader, names)?,
            None => (0..schema.columns().len()).collect(),
        };
        let dropped = positions(reader, drop)?;
        kept.retain(|position| !dropped.contains(position));
        Ok(Projection::of(schema, &kept))
    }

    /// The columns at `positions`.
    ///
    /// # Panics
    /// If there is no column at a position.
    #[must_use]
    pub fn of(schema: &Schema, positions: &[usize]) -> Projection {
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        let mut columns = Vec::with_capacity(positions.len());
        for &position in positions {
            let column = schema.columns()[position].clone();
            let (offset, length) = (schema.offset(position), usize::from(column.kind.width()));
            match pieces.last_mut() {
                Some((start, so_far)) if *start + *so_far == offset => *so_far += length,
                _ => pieces.push((offset, length)),
            }
            columns.push(column);
        }
        let row_bytes = pieces.iter().map(|(_, length)| length).sum();
        Projection { columns, pieces, row_bytes }
    }

    /// The columns that are taken.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Bytes of the columns that are taken.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Copies the columns of `row` to the start of `to`.
    ///
    /// # Panics
    /// If `row` is not of the data set or `to` is shorter than [`Projection::row_bytes`].
    #[inline]
    pub fn copy(&self, row: &[u8], to: &mut [u8]) {
        let mut at = 0;
        for &(offset, length) in &self.pieces {
            to[at..at + length].copy_from_slice(&row[offset..offset + length]);
            at += length;
        }
    }

    /// Adds the columns of `row` to the end of `to`.
    ///
    /// # Panics
    /// If `row` is not of the data set.
    #[inline]
    pub fn append(&self, row: &[u8], to: &mut Vec<u8>) {
        for &(offset, length) in &self.pieces {
            to.extend_from_slice(&row[offset..offset + length]);
        }
    }
}

/// Positions of the columns that `names` stand for, each once.
fn positions(reader: &Reader, names: &[String]) -> Result<Vec<usize>> {
    let schema = reader.schema();
    let mut found = Vec::new();
    for name in names {
        let fitting: Vec<usize> = match (schema.position(name), name.strip_suffix('*')) {
            (Some(position), _) => vec![position],
            (None, Some(start)) => {
                let columns = schema.columns().iter().enumerate();
                columns.filter(|(_, c)| c.name.starts_with(start)).map(|(at, _)| at).collect()
            }
            (None, None) => {
                reader.field(name)?;
                Vec::new()
            }
        };
        if fitting.is_empty() {
            return Err(none(reader, name));
        }
        found.extend(fitting);
    }
    let mut seen = vec![false; schema.columns().len()];
    found.retain(|&position| !std::mem::replace(&mut seen[position], true));
    Ok(found)
}

fn none(reader: &Reader, name: &str) -> Error {
    let reason = "stands for no column".to_owned();
    Error::Column { path: reader.path().to_owned(), column: name.to_owned(), reason }
}
