//! Values in a row.

use super::schema::{ColumnType, Schema};

/// The missing number: a quiet NaN whose payload spells "MISSNG". Any NaN reads as missing.
pub const MISSING: f64 = f64::from_bits(0x7FF8_4D49_5353_4E47);

/// Whether a number is missing.
#[inline]
#[must_use]
pub fn is_missing(number: f64) -> bool {
    number.is_nan()
}

/// `text` without its trailing blanks.
#[inline]
#[must_use]
pub fn trim_blanks(text: &[u8]) -> &[u8] {
    let length = text.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
    &text[..length]
}

/// Where a number, date or time lies in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberField {
    pub(super) offset: usize,
    /// The column's type; never a text.
    pub kind: ColumnType,
}

impl NumberField {
    /// The number in `row`; NaN is missing.
    ///
    /// # Panics
    /// If `row` is shorter than the field's data set has it.
    #[inline]
    #[must_use]
    pub fn get(&self, row: &[u8]) -> f64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&row[self.offset..self.offset + 8]);
        f64::from_le_bytes(bytes)
    }

    /// Sets the number in `row`; any NaN is stored as [`MISSING`].
    ///
    /// # Panics
    /// If `row` is shorter than the field's data set has it.
    #[inline]
    pub fn set(&self, row: &mut [u8], number: f64) {
        let number = if number.is_nan() { MISSING } else { number };
        row[self.offset..self.offset + 8].copy_from_slice(&number.to_le_bytes());
    }
}

/// Where a text lies in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextField {
    pub(super) offset: usize,
    pub(super) width: usize,
}

impl TextField {
    /// Bytes of the field.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The text in `row` without its trailing blanks; empty is missing.
    ///
    /// # Panics
    /// If `row` is shorter than the field's data set has it.
    #[inline]
    #[must_use]
    pub fn get<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        trim_blanks(&row[self.offset..self.offset + self.width])
    }

    /// Sets the text in `row`, padded with blanks. Returns false, and sets nothing, if it is too
    /// long.
    ///
    /// # Panics
    /// If `row` is shorter than the field's data set has it.
    #[inline]
    #[must_use]
    pub fn set(&self, row: &mut [u8], text: &[u8]) -> bool {
        if text.len() > self.width {
            return false;
        }
        let field = &mut row[self.offset..self.offset + self.width];
        field[..text.len()].copy_from_slice(text);
        field[text.len()..].fill(b' ');
        true
    }
}

/// Where a column lies in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// A number, date or time.
    Number(NumberField),
    /// A text.
    Text(TextField),
}

/// One row that is being put together: all missing at first.
#[derive(Clone, Debug)]
pub struct RowBuffer {
    bytes: Vec<u8>,
    missing: Vec<u8>,
}

impl RowBuffer {
    /// A row of `schema` with every value missing.
    #[must_use]
    pub fn new(schema: &Schema) -> RowBuffer {
        let mut missing = vec![b' '; schema.row_bytes()];
        for position in 0..schema.columns().len() {
            match schema.field(position) {
                Field::Number(field) => field.set(&mut missing, MISSING),
                Field::Text(_) => {}
            }
        }
        RowBuffer { bytes: missing.clone(), missing }
    }

    /// Makes every value missing again.
    pub fn clear(&mut self) {
        self.bytes.copy_from_slice(&self.missing);
    }

    /// The row's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The row's bytes, to set fields in.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::Column;
    use super::*;

    #[test]
    fn values_read_back_and_missing_is_canonical() {
        let schema = Schema::new(vec![Column::text("t", 4), Column::number("n")]).unwrap();
        let (Field::Text(text), Field::Number(number)) = (schema.field(0), schema.field(1)) else {
            panic!("types changed places");
        };
        let mut row = RowBuffer::new(&schema);
        assert_eq!(text.get(row.bytes()), b"");
        assert_eq!(number.get(row.bytes()).to_bits(), MISSING.to_bits());
        assert!(text.set(row.bytes_mut(), b"ab"));
        assert!(!text.set(row.bytes_mut(), b"abcde"));
        number.set(row.bytes_mut(), -1.5);
        assert_eq!((text.get(row.bytes()), number.get(row.bytes())), (&b"ab"[..], -1.5));
        number.set(row.bytes_mut(), -f64::NAN);
        assert_eq!(number.get(row.bytes()).to_bits(), MISSING.to_bits());
        assert!(is_missing(MISSING));
        row.clear();
        assert_eq!(text.get(row.bytes()), b"");
    }
}
