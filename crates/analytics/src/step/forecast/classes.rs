//! The rows of a data set taken apart into series, one per class.

use std::collections::HashMap;

use forebay_base::ByteSize;

use super::{Cell, Forecast, cell};
use crate::dataset::{Column, Field, NumberField, Reader};
use crate::error::{Error, Result};
use crate::key::{KeyCodec, SortKey};
use crate::step::Progress;
use crate::step::summary::Order;

/// One series: what was observed, and what is known of its future.
pub(super) struct ClassSeries {
    /// Values of the class columns.
    pub class: Vec<Cell>,
    /// The bytes of the class columns, one after another.
    pub row: Vec<u8>,
    /// Values up to the last that is not missing.
    pub values: Vec<f64>,
    /// The regressors beside the values.
    pub regressors: Vec<Vec<f64>>,
    /// The regressors after the last value.
    pub future: Vec<Vec<f64>>,
}

/// The classes of a data set.
pub(super) struct Classes {
    reader: Reader,
    codec: Option<KeyCodec>,
    class: Vec<Field>,
    class_columns: Vec<Column>,
    value: NumberField,
    time: Option<NumberField>,
    regressors: Vec<NumberField>,
    order: Order,
    memory: u64,
    rows: u64,
}

/// Rows of one class as they came: for each row its time, its value and its regressors.
struct Group {
    class: Vec<Cell>,
    row: Vec<u8>,
    numbers: Vec<f64>,
}

/// Where complete series go.
pub(super) type Sink<'a> = dyn FnMut(ClassSeries) -> Result<()> + 'a;

impl Classes {
    pub fn open(step: &Forecast, memory: ByteSize) -> Result<Classes> {
        let reader = Reader::open(&step.input)?;
        let keys: Vec<SortKey> = step.class.iter().map(|name| SortKey::ascending(name)).collect();
        let codec = if keys.is_empty() { None } else { Some(KeyCodec::new(&reader, &keys)?) };
        let position = |name: &String| reader.field(name).map(|_| reader.schema().position(name));
        let positions: Vec<usize> = step
            .class
            .iter()
            .map(|name| position(name).map(Option::unwrap_or_default))
            .collect::<Result<_>>()?;
        Ok(Classes {
            class: positions.iter().map(|&at| reader.schema().field(at)).collect(),
            class_columns: positions
                .iter()
                .map(|&at| reader.schema().columns()[at].clone())
                .collect(),
            value: reader.number_field(&step.value)?,
            time: step.time.as_ref().map(|name| reader.number_field(name)).transpose()?,
            regressors: step
                .regressors
                .iter()
                .map(|name| reader.number_field(name))
                .collect::<Result<_>>()?,
            order: step.order,
            memory: memory.0,
            rows: 0,
            codec,
            reader,
        })
    }

    /// The class columns as the input has them.
    pub fn class_columns(&self) -> Vec<Column> {
        self.class_columns.clone()
    }

    /// Rows read so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Hands each series to `sink`, ascending by class.
    pub fn for_each(&mut self, sink: &mut Sink<'_>, progress: &mut Progress<'_>) -> Result<()> {
        let mut key = vec![0; self.codec.as_ref().map_or(0, KeyCodec::key_bytes)];
        let mut last_key = key.clone();
        let mut places: HashMap<Box<[u8]>, usize> = HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        let mut place = None;
        let mut used = 0;
        let row_bytes = (8 * (2 + self.regressors.len())) as u64;
        let path = self.reader.path().to_owned();
        // The fields are copied so that rows can be borrowed from the reader meanwhile.
        let (value, time) = (self.value, self.time);
        let (class, regressors) = (self.class.clone(), self.regressors.clone());
        while let Some(rows) = self.reader.next_rows()? {
            for row in rows.iter() {
                self.rows += 1;
                if let Some(codec) = &self.codec {
                    codec.encode(row, &mut key);
                }
                if place.is_none() || key != last_key {
                    if self.order == Order::Sorted && key < last_key && !groups.is_empty() {
                        return Err(Error::NotSorted { path, row: self.rows });
                    }
                    if self.order == Order::Sorted {
                        groups.drain(..).try_for_each(|group| {
                            sink(group.series(time.is_some(), regressors.len()))
                        })?;
                        places.clear();
                        used = 0;
                    }
                    last_key.copy_from_slice(&key);
                    place = places.get(key.as_slice()).copied();
                }
                let at = *place.get_or_insert_with(|| {
                    places.insert(key.clone().into_boxed_slice(), groups.len());
                    groups.push(Group::new(&class, row));
                    groups.len() - 1
                });
                let numbers = &mut groups[at].numbers;
                numbers.push(time.map_or(0.0, |time| time.get(row)));
                numbers.push(value.get(row));
                numbers.extend(regressors.iter().map(|field| field.get(row)));
                used += row_bytes;
            }
            // Growing series may take twice what is in them.
            if 2 * used > self.memory {
                return Err(Error::Setting {
                    setting: "memory",
                    value: ByteSize(self.memory).to_string(),
                    allowed: "twice the series at least: sort by class, and say so with order"
                        .to_owned(),
                });
            }
            progress(self.rows);
        }
        let mut order: Vec<(Box<[u8]>, usize)> = places.into_iter().collect();
        order.sort_unstable();
        let mut groups: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
        for (_, place) in order {
            if let Some(group) = groups[place].take() {
                sink(group.series(time.is_some(), regressors.len()))?;
            }
        }
        Ok(())
    }
}

impl Group {
    fn new(class: &[Field], row: &[u8]) -> Group {
        let mut bytes = Vec::new();
        for field in class {
            match field {
                Field::Number(field) => bytes.extend(field.get(row).to_le_bytes()),
                Field::Text(field) => {
                    let text = field.get(row);
                    bytes.extend(text);
                    bytes.resize(bytes.len() + field.width() - text.len(), b' ');
                }
            }
        }
        let class = class.iter().map(|&field| cell(field, row)).collect();
        Group { class, row: bytes, numbers: Vec::new() }
    }

    /// The series of the rows, in the order of their times if they are `timed`.
    fn series(self, timed: bool, regressors: usize) -> ClassSeries {
        let mut rows: Vec<&[f64]> = self.numbers.chunks_exact(2 + regressors).collect();
        rows.retain(|row| {
            row[2..].iter().all(|number| number.is_finite()) && !(timed && row[0].is_nan())
        });
        if timed {
            rows.sort_by(|a, b| a[0].total_cmp(&b[0]));
        }
        let observed = rows.iter().rposition(|row| !row[1].is_nan()).map_or(0, |last| last + 1);
        let (past, future) = rows.split_at(observed);
        let column = |rows: &[&[f64]], at: usize| rows.iter().map(|row| row[at]).collect();
        let columns = |rows: &[&[f64]]| (0..regressors).map(|at| column(rows, 2 + at)).collect();
        // Without a future the last known regressors go on.
        let future = if future.is_empty() { &past[past.len().saturating_sub(1)..] } else { future };
        ClassSeries {
            values: column(past, 1),
            regressors: columns(past),
            future: columns(future),
            class: self.class,
            row: self.row,
        }
    }
}
