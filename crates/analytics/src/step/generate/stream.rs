//! The streams of all columns, and how their values get into rows.

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::io::{Cursor, Write as _};

use rand::{RngCore as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use siphasher::sip::SipHasher13;

use super::response::Law;
use super::value::{Label, Sampler, Value};
use super::{Columns, Generate};
use crate::amount::Scale;
use crate::dataset::{ColumnType, Field, MISSING, NumberField, Schema, TextField};
use crate::error::{Error, Result};

/// Bytes of the rows that are made at a time, so that they stay in the cache.
const BATCH_BYTES: usize = 128 << 10;
/// The slot of values that no response asks for.
const SCRATCH: usize = 0;

/// How values are made.
enum Source {
    Draw(Sampler),
    Follow(Law),
    Letters,
}

/// How values become fields of rows.
enum Form {
    Number(NumberField),
    /// Cut to whole days or seconds.
    Whole(NumberField),
    /// Values are places in a list of numbers.
    Listed(NumberField, Vec<f64>),
    /// Values are places in a list of texts.
    Named(TextField, Vec<Vec<u8>>),
    /// The whole part in digits, after a label.
    Digits(TextField, String),
    Letters(TextField),
}

struct Stream {
    name: String,
    random: Xoshiro256PlusPlus,
    source: Source,
    form: Form,
    /// Where the values are left for responses.
    slot: usize,
    missing: f64,
    missing_random: Xoshiro256PlusPlus,
}

/// The streams of all columns.
pub(super) struct Streams {
    streams: Vec<Stream>,
    slots: Vec<Vec<f64>>,
    row_bytes: usize,
    batch_rows: usize,
}

fn seed_of(seed: u64, name: &str, purpose: u8) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed, u64::from(purpose));
    hasher.write(name.as_bytes());
    hasher.finish()
}

impl Streams {
    /// Checks the columns of `step`, whose schema is `schema`.
    pub fn new(step: &Generate, schema: &Schema, seed: u64, scale: Scale) -> Result<Streams> {
        let batch_rows = (BATCH_BYTES / schema.row_bytes()).clamp(16, 1024);
        let mut slots: HashMap<String, usize> = HashMap::new();
        let described = step.columns.iter();
        let described = described
            .flat_map(|columns| std::iter::repeat_n(columns, columns.count.unwrap_or(1) as usize));
        let mut streams: Vec<Stream> = Vec::new();
        for (position, columns) in described.enumerate() {
            let name = &schema.columns()[position].name;
            if !(0.0..=1.0).contains(&columns.missing) {
                return Err(Error::Setting {
                    setting: "missing",
                    value: format!("{} (column \"{name}\")", columns.missing),
                    allowed: "a share from 0 to 1".to_owned(),
                });
            }
            let values_seed = seed_of(seed, name, 0);
            let source = match (Sampler::new(name, &columns.value, scale)?, &columns.value) {
                (Some(sampler), _) => Source::Draw(sampler),
                (None, Value::Response(response)) => {
                    let find = |column: &str| slot(column, &mut streams, &mut slots);
                    Source::Follow(Law::new(name, response, values_seed, find)?)
                }
                (None, _) => Source::Letters,
            };
            streams.push(Stream {
                name: name.clone(),
                random: Xoshiro256PlusPlus::seed_from_u64(values_seed),
                source,
                form: Form::new(step, name, columns, schema.field(position))?,
                slot: SCRATCH,
                missing: columns.missing,
                missing_random: Xoshiro256PlusPlus::seed_from_u64(seed_of(seed, name, 1)),
            });
        }
        Ok(Streams {
            streams,
            slots: vec![vec![0.0; batch_rows]; slots.len() + 1],
            row_bytes: schema.row_bytes(),
            batch_rows,
        })
    }

    /// The most rows that can be made at a time.
    pub fn batch_rows(&self) -> usize {
        self.batch_rows
    }

    /// Makes the rows from `first_row` on, as many as `rows` has room for.
    pub fn fill(&mut self, first_row: u64, rows: &mut [u8]) -> Result<()> {
        let count = rows.len() / self.row_bytes;
        for stream in &mut self.streams {
            let mut values = std::mem::take(&mut self.slots[stream.slot]);
            match &stream.source {
                Source::Draw(sampler) => {
                    sampler.fill(&mut stream.random, first_row, &mut values[..count]);
                }
                Source::Follow(law) => {
                    law.fill(&mut stream.random, &self.slots, &mut values[..count]);
                }
                Source::Letters => {}
            }
            let rows = rows.chunks_exact_mut(self.row_bytes);
            let laid = stream.lay(&values[..count], rows);
            self.slots[stream.slot] = values;
            laid?;
        }
        Ok(())
    }
}

/// The slot of the column `name`, which is before the one that asks.
fn slot(name: &str, streams: &mut [Stream], slots: &mut HashMap<String, usize>) -> Result<usize> {
    let found = streams.iter_mut().find(|stream| stream.name == name);
    match found.filter(|stream| !matches!(stream.source, Source::Letters)) {
        Some(stream) => {
            let next = slots.len() + 1;
            stream.slot = *slots.entry(name.to_owned()).or_insert(next);
            Ok(stream.slot)
        }
        None => Err(Error::Setting {
            setting: "response",
            value: format!("of the column \"{name}\""),
            allowed: "of columns that are described before and are no letters".to_owned(),
        }),
    }
}

impl Form {
    fn new(step: &Generate, name: &str, columns: &Columns, field: Field) -> Result<Form> {
        let refuse = |reason: String| Error::Column {
            path: step.output.clone(),
            column: name.to_owned(),
            reason,
        };
        let listed = match &columns.value {
            Value::Cycle { values } | Value::Categories { values, .. } => Some(values),
            _ => None,
        };
        Ok(match (field, listed) {
            (Field::Number(field), Some(values)) => {
                let numbers = values.iter().map(|value| match value {
                    Label::Number(number) => Ok(*number),
                    Label::Text(text) => Err(refuse(format!("\"{text}\" is a text, not a number"))),
                });
                Form::Listed(field, numbers.collect::<Result<_>>()?)
            }
            (Field::Text(field), Some(values)) => {
                let texts = values.iter().map(|value| {
                    let text = match value {
                        Label::Number(number) => number.to_string(),
                        Label::Text(text) => text.clone(),
                    };
                    if text.len() > field.width() {
                        return Err(refuse(too_long(&text, field.width())));
                    }
                    Ok(text.into_bytes())
                });
                Form::Named(field, texts.collect::<Result<_>>()?)
            }
            (Field::Text(field), None) if columns.value == Value::Letters => Form::Letters(field),
            (Field::Text(field), None) => Form::Digits(field, columns.label.clone()),
            (Field::Number(_), None) if columns.value == Value::Letters => {
                return Err(refuse("letters need a text column".to_owned()));
            }
            (Field::Number(field), None) => match field.kind {
                ColumnType::Date | ColumnType::Datetime => Form::Whole(field),
                ColumnType::Number | ColumnType::Text { .. } => Form::Number(field),
            },
        })
    }
}

fn too_long(text: &str, width: usize) -> String {
    format!("\"{text}\" is longer than {width} bytes")
}

impl Stream {
    /// Lays `values` into rows, some of them missing.
    fn lay<'a>(&mut self, values: &[f64], rows: impl Iterator<Item = &'a mut [u8]>) -> Result<()> {
        // A share of 2^64 random numbers.
        let below = (self.missing * 2_f64.powi(64)) as u64;
        let random = &mut self.missing_random;
        let mut gone = || below > 0 && random.next_u64() < below;
        let pairs = rows.zip(values);
        match &self.form {
            Form::Number(field) => {
                pairs.for_each(|(row, &v)| field.set(row, if gone() { MISSING } else { v }));
            }
            Form::Whole(field) => {
                pairs
                    .for_each(|(row, &v)| field.set(row, if gone() { MISSING } else { v.floor() }));
            }
            Form::Listed(field, numbers) => pairs.for_each(|(row, &v)| {
                field.set(row, if gone() { MISSING } else { numbers[v as usize] });
            }),
            Form::Named(field, texts) => pairs.for_each(|(row, &v)| {
                let text: &[u8] = if gone() { b"" } else { &texts[v as usize] };
                assert!(field.set(row, text), "the width was checked");
            }),
            Form::Digits(field, label) => {
                for (row, &v) in pairs {
                    if !set_digits(field, row, label, if gone() { MISSING } else { v }) {
                        return Err(Error::Setting {
                            setting: "width",
                            value: format!("{} (column \"{}\")", field.width(), self.name),
                            allowed: format!("wide enough for {label}{}", v.floor()),
                        });
                    }
                }
            }
            Form::Letters(field) => {
                let mut text = vec![0; field.width()];
                for (row, _) in pairs {
                    self.random.fill_bytes(&mut text);
                    text.iter_mut().for_each(|byte| *byte = letter(*byte));
                    assert!(field.set(row, if gone() { b"" } else { &text }), "it has the width");
                }
            }
        }
        Ok(())
    }
}

/// One of 26 letters; of 256 bytes each letter has 9 or 10.
fn letter(byte: u8) -> u8 {
    b'a' + (u16::from(byte) * 26 / 256) as u8
}

/// Sets a text to `label` and the whole part of `value` with leading zeros; false if it is too narrow.
fn set_digits(field: &TextField, row: &mut [u8], label: &str, value: f64) -> bool {
    if value.is_nan() {
        return field.set(row, b"");
    }
    // The longest label there is room for, the sign and digits of a double's whole part.
    let mut buffer = [0; 512];
    let mut cursor = Cursor::new(&mut buffer[..]);
    let digits = field.width().saturating_sub(label.len()).min(19);
    // Without the addition -0 shows its sign.
    let written = write!(cursor, "{label}{:0digits$.0}", value.floor() + 0.0);
    let length = cursor.position() as usize;
    written.is_ok() && field.set(row, &buffer[..length])
}
