//! Data sets from literal rows, and back.
#![allow(dead_code, reason = "every test file uses its part")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use forebay_analytics::Cell;
use forebay_analytics::dataset::{Column, Field, Reader, RowBuffer, Schema, Writer};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// Writes a data set in pages of 4 KiB.
pub fn write(path: &Path, columns: Vec<Column>, rows: &[Vec<Cell>]) {
    let schema = Schema::new(columns).unwrap();
    let mut row = RowBuffer::new(&schema);
    let mut writer = Writer::create(path, schema.clone(), 4096).unwrap();
    for cells in rows {
        row.clear();
        for (position, cell) in cells.iter().enumerate() {
            match (schema.field(position), cell) {
                (_, Cell::Missing) => {}
                (Field::Number(field), Cell::Number(number)) => {
                    field.set(row.bytes_mut(), *number);
                }
                (Field::Text(field), Cell::Text(text)) => {
                    assert!(field.set(row.bytes_mut(), text.as_bytes()));
                }
                (Field::Number(_), Cell::Text(_)) | (Field::Text(_), Cell::Number(_)) => {
                    panic!("{cell:?} in a column of another type")
                }
            }
        }
        writer.push(row.bytes()).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), rows.len() as u64);
}

/// Reads a whole data set.
pub fn read(path: &Path) -> Vec<Vec<Cell>> {
    let mut reader = Reader::open(path).unwrap();
    let columns = reader.schema().columns().len();
    let fields: Vec<Field> = (0..columns).map(|i| reader.schema().field(i)).collect();
    let mut all = Vec::new();
    while let Some(rows) = reader.next_rows().unwrap() {
        for row in rows.iter() {
            let cell = |field: &Field| match field {
                Field::Number(field) => Cell::from(field.get(row)),
                Field::Text(field) => match field.get(row) {
                    b"" => Cell::Missing,
                    text => Cell::Text(String::from_utf8(text.to_vec()).unwrap()),
                },
            };
            all.push(fields.iter().map(cell).collect());
        }
    }
    assert_eq!(all.len() as u64, reader.rows());
    all
}

/// The seed of this run's random rows: fresh, or that of `FOREBAY_SEED`. It is printed, which is shown when a
/// test fails.
pub fn seed() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(forebay_base::seed::pick);
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    println!("To repeat: FOREBAY_SEED={} cargo test -p forebay-analytics {test}", *SEED);
    *SEED
}

/// Random numbers from [`seed`], others for each `purpose`.
pub fn random(purpose: u64) -> StdRng {
    StdRng::seed_from_u64(seed().wrapping_add(purpose))
}

/// Names in a directory.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Imports a CSV file of `tests/data` into `directory`.
pub fn import(directory: &Path, name: &str) -> std::path::PathBuf {
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let output = directory.join(name).with_extension("fds");
    forebay_analytics::step::Import::new(csv, output.clone()).run(&mut |_| {}).unwrap();
    output
}

/// Whether `found` is `expected` to so many digits.
#[track_caller]
pub fn close(found: f64, expected: f64, digits: i32) {
    let error = ((found - expected) / expected).abs();
    assert!(error < 10_f64.powi(-digits), "{found} where {expected} is known");
}
