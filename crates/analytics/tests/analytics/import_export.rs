//! CSV in and out: awkward files are read, bad ones are errors that say where.

use crate::common;
use std::fs;
use std::path::PathBuf;

use forebay_analytics::dataset::{Column, ColumnType, Reader, Schema};
use forebay_analytics::step::import::{Imported, ShortRows, Types};
use forebay_analytics::step::{Export, Import, Repeat};
use forebay_analytics::{Cell, Error};
use tempfile::TempDir;

struct Files {
    _directory: TempDir,
    csv: PathBuf,
    dataset: PathBuf,
    other: PathBuf,
}

fn files(csv: &[u8]) -> Files {
    let directory = tempfile::tempdir().unwrap();
    let [path, dataset, other] =
        ["in.csv", "a.fds", "other"].map(|name| directory.path().join(name));
    fs::write(&path, csv).unwrap();
    Files { _directory: directory, csv: path, dataset, other }
}

fn import(files: &Files) -> Import {
    Import::new(files.csv.clone(), files.dataset.clone())
}

fn run(import: &Import) -> Result<Imported, Error> {
    let result = import.run(&mut |_| {});
    assert_eq!(result.is_ok(), import.output.exists(), "only a whole import leaves a data set");
    result
}

fn message(import: &Import) -> String {
    run(import).unwrap_err().to_string()
}

#[test]
fn awkward_csv_is_read() {
    let files = files(
        b"\xEF\xBB\xBFname,\"quoted, name\",n,day,at\r\n\
          \"a \"\"quoted\"\" one\",x,1.5,2013-01-31,2013-01-01T10:00:00Z\r\n\
          \r\n\
          NA,\"two\nlines\",NA,,NA\r\n\
          short,y\r\n\
          last, padded ,-2e3,1969-12-31,1970-01-01 00:00:01",
    );
    let imported = run(&import(&files)).unwrap();
    assert_eq!((imported.rows, imported.short_rows), (4, 1));
    let kinds: Vec<ColumnType> =
        imported.schema.columns().iter().map(|column| column.kind).collect();
    use ColumnType::{Date, Datetime, Number, Text};
    assert_eq!(kinds, [Text { width: 14 }, Text { width: 9 }, Number, Date, Datetime]);
    assert_eq!(imported.schema.columns()[0].name, "name");
    assert_eq!(imported.schema.columns()[1].name, "quoted, name");
    let missing = || Cell::Missing;
    assert_eq!(
        common::read(&files.dataset),
        [
            vec![
                "a \"quoted\" one".into(),
                "x".into(),
                1.5.into(),
                15_736.0.into(),
                1_357_034_400.0.into()
            ],
            vec![missing(), "two\nlines".into(), missing(), missing(), missing()],
            vec!["short".into(), "y".into(), missing(), missing(), missing()],
            vec!["last".into(), " padded".into(), (-2000.0).into(), (-1.0).into(), 1.0.into()],
        ]
    );
}

#[test]
fn a_given_schema_picks_and_checks_columns() {
    let files = files(b"a,b,c\n1,one,x\n2,three,y\n");
    let schema = Schema::new(vec![Column::text("b", 5), Column::number("a")]).unwrap();
    let given = Import { types: Types::Given(schema), ..import(&files) };
    assert_eq!(run(&given).unwrap().rows, 2);
    assert_eq!(
        common::read(&files.dataset),
        [vec!["one".into(), Cell::from(1.0)], vec!["three".into(), 2.0.into()]]
    );
}

#[test]
fn a_schema_that_does_not_fit_is_an_error_with_line_and_column() {
    let files = files(b"a,b\n1,one\n2,three\nx,two\n");
    let given =
        |columns| Import { types: Types::Given(Schema::new(columns).unwrap()), ..import(&files) };
    let text = message(&given(vec![Column::number("a")]));
    assert!(text.ends_with("in.csv, line 4, column \"a\": \"x\" is not a number"), "{text}");
    let text = message(&given(vec![Column::text("b", 3)]));
    let expected = "line 3, column \"b\": a text of 5 bytes where 3 are allowed";
    assert!(text.ends_with(expected), "{text}");
    let text = message(&given(vec![Column::number("z")]));
    assert!(text.ends_with("line 1, column \"z\": is not in the header"), "{text}");
}

#[test]
fn types_from_the_first_rows_bind_the_later_ones() {
    let files = files(b"a,b\n1,x\n2,y\nthree,z\n");
    let first = |rows| Import { types: Types::InferFrom { rows }, ..import(&files) };
    let text = message(&first(2));
    assert!(text.ends_with("line 4, column \"a\": \"three\" is not a number"), "{text}");
    let imported = run(&first(3)).unwrap();
    assert_eq!(imported.schema.columns()[0].kind, ColumnType::Text { width: 5 });
}

#[test]
fn bad_csv_is_an_error_with_a_line() {
    for (csv, expected) in [
        (&b""[..], "line 1: the file is empty; a header is expected"),
        (b"a,,c\n", "line 1: column 2 has no name or one over 255 bytes"),
        (b"a,b,a\n", "line 1, column \"a\": is in the header twice"),
        (b"a,b\n1,2\n3,4,5\n", "line 3: 3 fields where the header has 2"),
        (b"a,b\n1,2\n3,\"4\n5,6\n", "line 3, column \"b\": a quoted field is not closed"),
        (b"a,b\n1,2\n3,\"4", "line 3, column \"b\": a quoted field is not closed"),
    ] {
        let text = message(&import(&files(csv)));
        assert!(text.ends_with(expected), "{text}");
    }
}

#[test]
fn short_rows_are_refused_when_told_to() {
    let files = files(b"a,b,c\n1,2,3\n4\n");
    let strict = Import { short_rows: ShortRows::Refuse, ..import(&files) };
    let text = message(&strict);
    let expected = "line 3, column \"b\": only 1 fields where the header has 3";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn words_that_only_look_like_numbers_are_texts() {
    let files = files(b"a,b,c,d\ninf,nan,1e999,0x10\n1,2,3,4\n");
    let imported = run(&import(&files)).unwrap();
    for column in imported.schema.columns() {
        assert!(matches!(column.kind, ColumnType::Text { .. }), "{column:?}");
    }
}

#[test]
fn exported_csv_imports_to_the_same_data_set() {
    let files = files(
        b"t,n,day,at\n\"a,\"\"b\",0.1,2013-01-31,2013-01-01T10:00:00Z\n,,,\n\
          \"c\nd\",1.7976931348623157e308,1970-01-01,1969-12-31T23:59:59Z\nx,5e-324,,\ny,-0.25,,\n",
    );
    run(&import(&files)).unwrap();
    let rows = common::read(&files.dataset);
    let schema = Reader::open(&files.dataset).unwrap().schema().clone();
    let written = Export::new(files.dataset.clone(), files.other.clone()).run(&mut |_| {}).unwrap();
    assert_eq!(written, 5);
    let text = fs::read_to_string(&files.other).unwrap();
    assert!(text.contains("2013-01-31,2013-01-01T10:00:00Z"), "{text}");
    fs::rename(&files.other, &files.csv).unwrap();
    run(&import(&files)).unwrap();
    assert_eq!(common::read(&files.dataset), rows);
    assert_eq!(Reader::open(&files.dataset).unwrap().schema(), &schema);
}

#[test]
fn repeat_copies_the_rows_in_order() {
    let files = files(b"a,b\n1,x\n2,y\n");
    run(&import(&files)).unwrap();
    let repeat = Repeat::new(files.dataset.clone(), files.other.clone(), 3);
    assert_eq!(repeat.run(&mut |_| {}).unwrap(), 6);
    let expected: Vec<Vec<Cell>> = (1..=3)
        .flat_map(|copy| {
            [(1.0, "x"), (2.0, "y")].map(|(a, b)| vec![a.into(), b.into(), f64::from(copy).into()])
        })
        .collect();
    assert_eq!(common::read(&files.other), expected);

    let none = Repeat { times: 0, ..repeat.clone() };
    assert!(matches!(none.run(&mut |_| {}), Err(Error::Setting { setting: "times", .. })));
    let taken = Repeat { replicate_column: "b".to_owned(), ..repeat };
    assert!(matches!(taken.run(&mut |_| {}), Err(Error::Column { .. })));
}

#[test]
fn utf_16_text_is_refused_and_the_way_out_is_named() {
    let utf16 = |text: &str, little: bool| -> Vec<u8> {
        let bytes = |unit: u16| if little { unit.to_le_bytes() } else { unit.to_be_bytes() };
        text.encode_utf16().flat_map(bytes).collect()
    };
    for (text, little, order) in [
        ("\u{feff}a,b\n1,2\n", true, "UTF-16LE"),
        ("\u{feff}a,b\n1,2\n", false, "UTF-16BE"),
        ("name,value\nx,2\n", true, "UTF-16LE"),
        ("name,value\nx,2\n", false, "UTF-16BE"),
    ] {
        let files = files(&utf16(text, little));
        let said = message(&import(&files));
        assert!(said.contains(order) && said.contains("iconv -f"), "{said}");
    }
    // A byte order mark of UTF-8 is none of these, and neither is a short file.
    assert_eq!(run(&import(&files(b"\xEF\xBB\xBFa\n1\n"))).unwrap().rows, 1);
    assert_eq!(run(&import(&files(b"a\n"))).unwrap().rows, 0);
}

#[test]
fn whole_numbers_beyond_two_to_the_53_keep_their_digits_or_are_refused() {
    // The two keys are one as doubles.
    let csv = b"key,n\n9007199254740993,9007199254740992\n9007199254740992,-9007199254740992\n";
    let files = files(csv);
    let imported = run(&import(&files)).unwrap();
    let kinds: Vec<ColumnType> = imported.schema.columns().iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [ColumnType::Text { width: 16 }, ColumnType::Number]);
    let rows = common::read(&files.dataset);
    assert_ne!(rows[0][0], rows[1][0]);
    assert_eq!(rows[0][0], Cell::Text("9007199254740993".to_owned()));
    // Where a number was asked for, or the first rows promised one, the place of the fault is named.
    fs::remove_file(&files.dataset).unwrap();
    let schema = Schema::new(vec![Column::number("key")]).unwrap();
    let given = Import { types: Types::Given(schema), ..import(&files) };
    let said = message(&given);
    assert!(said.contains("line 2, column \"key\": 9007199254740993 has more digits"), "{said}");
    fs::write(&files.csv, "key\n1\n2\n123456789012345678901\n").unwrap();
    let from_first = Import { types: Types::InferFrom { rows: 2 }, ..import(&files) };
    let said = message(&from_first);
    assert!(said.contains("line 4") && said.contains("import the column as text"), "{said}");
    // Fractions are measurements: their last digits were never exact.
    fs::write(&files.csv, "x\n0.12345678901234567890\n1e300\n").unwrap();
    assert_eq!(run(&import(&files)).unwrap().schema.columns()[0].kind, ColumnType::Number);
}
