//! The data set format: what is written reads back, and anything else is an error.

use crate::common;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_analytics::dataset::{
    Column, ColumnType, PAGE_BYTES_MAX, Reader, RowBuffer, Schema, Writer,
};
use forebay_analytics::{Cell, Error};
use rand::{Rng as _, RngCore as _};

fn sample(path: &Path, rows: usize) -> Vec<Vec<Cell>> {
    let columns = vec![Column::number("n"), Column::text("t", 5), Column::number("m")];
    let rows: Vec<Vec<Cell>> = (0..rows)
        .map(|i| {
            let text = if i % 7 == 0 { Cell::Missing } else { format!("{}", i % 1000).into() };
            vec![(i as f64).into(), text, Cell::from(if i % 3 == 0 { f64::NAN } else { 0.5 })]
        })
        .collect();
    common::write(path, columns, &rows);
    rows
}

/// Opens and reads everything; the number of rows or the error.
fn read_through(path: &Path) -> Result<u64, Error> {
    let mut reader = Reader::open(path)?;
    let mut rows = 0;
    while let Some(page) = reader.next_rows()? {
        rows += page.count() as u64;
    }
    Ok(rows)
}

#[test]
fn rows_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    // 194 rows of 21 bytes fill a page of 4 KiB: none, one, just under, a full page, and more.
    for count in [0, 1, 193, 194, 195, 388, 1000] {
        let rows = sample(&path, count);
        assert_eq!(common::read(&path), rows, "{count} rows");
        assert_eq!(Reader::open(&path).unwrap().file_bytes(), fs::metadata(&path).unwrap().len());
    }
}

#[test]
fn seek_finds_every_row() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    sample(&path, 400);
    let mut reader = Reader::open(&path).unwrap();
    let number = reader.number_field("n").unwrap();
    for index in [399, 0, 193, 194, 200] {
        reader.seek(index).unwrap();
        assert!(reader.advance().unwrap());
        assert_eq!(number.get(reader.current()), index as f64);
    }
    reader.seek(390).unwrap();
    assert_eq!(reader.next_rows().unwrap().unwrap().count(), 10);
    reader.seek(400).unwrap();
    assert!(!reader.advance().unwrap());
}

#[test]
fn a_header_may_take_several_pages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wide.fds");
    let columns: Vec<Column> =
        (0..297).map(|i| Column::number(&format!("a_rather_long_name_{i}"))).collect();
    let rows: Vec<Vec<Cell>> =
        (0..5).map(|r| (0..297).map(|c| Cell::from((r * c) as f64)).collect()).collect();
    common::write(&path, columns.clone(), &rows);
    assert_eq!(common::read(&path), rows);
    assert_eq!(Reader::open(&path).unwrap().schema().columns(), columns);
}

#[test]
fn page_sizes_out_of_bounds_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    let create = |columns, page_bytes| {
        Writer::create(&path, Schema::new(columns).unwrap(), page_bytes).map(|_| ())
    };
    for page_bytes in [0, 1024, 4097, PAGE_BYTES_MAX + 4096] {
        let refused = create(vec![Column::number("n")], page_bytes);
        assert!(matches!(refused, Err(Error::Setting { setting: "page_bytes", .. })));
    }
    let message = create(vec![Column::text("t", 5000)], 4096).unwrap_err().to_string();
    assert!(message.contains("from 8192 (rows of 5000 bytes)"), "{message}");
    create(vec![Column::text("t", 5000)], 8192).unwrap();
}

#[test]
fn an_unfinished_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    let schema = Schema::new(vec![Column::number("n")]).unwrap();
    let row = RowBuffer::new(&schema);
    let mut writer = Writer::create(&path, schema, 4096).unwrap();
    for _ in 0..2000 {
        writer.push(row.bytes()).unwrap();
    }
    let error = Reader::open(&path).unwrap_err();
    assert!(matches!(error, Error::Unfinished { .. }));
    assert!(error.to_string().contains("a.fds is not finished"), "{error}");
    drop(writer);
    assert!(!path.exists(), "a writer that does not finish removes its file");
}

#[test]
fn every_changed_byte_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    sample(&path, 250);
    let whole = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let header_bytes = 48 + 3 * (4 + 1);
    for at in (0..header_bytes).chain(4096..whole.len()) {
        file.write_all_at(&[whole[at] ^ 0x10], at as u64).unwrap();
        let result = read_through(&path);
        assert!(matches!(result, Err(Error::Damaged { .. })), "byte {at}: {result:?}");
        file.write_all_at(&whole[at..=at], at as u64).unwrap();
    }
}

#[test]
fn every_cut_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    sample(&path, 250);
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        fs::remove_file(&path).unwrap();
        fs::write(&path, &whole[..length]).unwrap();
        let result = read_through(&path);
        assert!(matches!(result, Err(Error::Damaged { .. })), "{length} bytes: {result:?}");
    }
    fs::write(&path, [whole.as_slice(), b"x"].concat()).unwrap();
    assert!(matches!(read_through(&path), Err(Error::Damaged { .. })));
}

#[test]
fn errors_name_file_page_and_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    sample(&path, 600);
    let whole = fs::read(&path).unwrap();
    let message = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        read_through(&path).unwrap_err().to_string()
    };

    let mut changed = whole.clone();
    changed[2 * 4096 + 100] ^= 1;
    let text = message(&changed);
    assert!(text.contains("a.fds, page 2: checksum is "), "{text}");

    let mut swapped = whole.clone();
    swapped[4096..2 * 4096].copy_from_slice(&whole[2 * 4096..3 * 4096]);
    let text = message(&swapped);
    assert!(text.contains("a.fds, page 1: holds page 2: the page is misplaced"), "{text}");

    let text = message(&whole[..9000]);
    assert!(text.contains("a.fds, page 2: 9000 bytes where 600 rows need"), "{text}");

    let text = message(b"year,month,day\n2013,1,1\n2013,1,1,517,515,2,830,819,11,UA,1545");
    assert!(text.contains("a.fds, page 0: not a data set"), "{text}");
}

/// A header with a right checksum that lies must not do harm.
#[test]
fn lying_headers_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    sample(&path, 250);
    let whole = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let header_bytes = 48 + 3 * (4 + 1);
    let mut random = common::random(11);
    for round in 0..3000 {
        let mut lie = whole.clone();
        for _ in 0..random.random_range(1..4) {
            // Beyond the magic, the version and the checksum.
            let at = random.random_range(16..header_bytes);
            lie[at] = random.next_u32() as u8;
        }
        let claimed = u32::from_le_bytes(lie[44..48].try_into().unwrap()) as usize;
        let covered = claimed.clamp(48, whole.len());
        lie[12..16].fill(0);
        let checksum = crc32fast::hash(&lie[..covered]);
        lie[12..16].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&lie[..4096], 0).unwrap();
        // Only names and kinds of number may change and leave the file readable.
        if let Ok(rows) = read_through(&path) {
            assert_eq!(rows, 250, "round {round}");
        }
    }
}

#[test]
fn noise_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    let mut random = common::random(12);
    for length in [0, 1, 47, 48, 500, 5000, 20_000] {
        let mut noise = vec![0; length];
        random.fill_bytes(&mut noise);
        if length > 8 {
            noise[..8].copy_from_slice(b"FOREBAYD");
        }
        fs::write(&path, &noise).unwrap();
        assert!(matches!(read_through(&path), Err(Error::Damaged { .. })), "{length} bytes");
    }
}

#[test]
fn a_wrong_column_is_named_with_those_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    sample(&path, 1);
    let reader = Reader::open(&path).unwrap();
    let message = reader.field("x").unwrap_err().to_string();
    assert!(message.ends_with("column \"x\": does not exist; there are: n, t, m"), "{message}");
    let message = reader.number_field("t").unwrap_err().to_string();
    assert!(message.ends_with("column \"t\": is a text, not a number"), "{message}");
}

#[test]
fn schemas_are_read_from_settings() {
    let text = r#"[{"name":"a","kind":"number"},{"name":"b","kind":{"text":{"width":3}}}]"#;
    let schema: Schema = serde_json::from_str(text).unwrap();
    assert_eq!(schema.columns()[1].kind, ColumnType::Text { width: 3 });
    assert_eq!(serde_json::to_string(&schema).unwrap(), text);
    assert!(serde_json::from_str::<Schema>("[]").is_err());
}

/// The example of docs/formats/dataset.md.
#[test]
fn the_bytes_are_as_documented() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.fds");
    let columns = vec![Column::text("city", 4), Column::number("t")];
    common::write(
        &path,
        columns,
        &[vec!["Oslo".into(), 1.5.into()], vec!["Rio".into(), Cell::Missing]],
    );
    let bytes = fs::read(&path).unwrap();
    let shown = |bytes: &[u8]| {
        let lines = bytes.chunks(16).enumerate().map(|(line, bytes)| {
            let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:04x}  {}\n", line * 16, hex.join(" "))
        });
        lines.collect::<String>()
    };
    let document = include_str!("../../../../docs/formats/dataset.md");
    for part in [&bytes[..64], &bytes[4096..]] {
        assert!(document.contains(&shown(part)), "{}", shown(part));
    }
    assert!(bytes[61..4096].iter().all(|byte| *byte == 0));
}
