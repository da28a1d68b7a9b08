//! Studies as a workbook for spreadsheet programs (XLSX, Office Open XML): a worksheet for each table, with its heading kept in view,
//! and one with the notes.
//!
//! The same tables as [`crate::csv`]; numbers are exact, unknown values are empty. Texts are never formulas. A table with more rows
//! than a worksheet can have is refused: CSV has no such limit.

use std::path::{Path, PathBuf};

use forebay_analytics::{Cell, Table};
use rust_xlsxwriter::{Format, Workbook, Worksheet, XlsxError};

use crate::compare::Comparison;
use crate::csv;
use crate::error::{Error, Result};
use crate::record::Record;
use crate::summary::{Sheet, Summary};

/// Rows of a worksheet, the heading included.
const ROWS_MAX: usize = 1_048_576;
/// Characters of a cell.
const CELL_MAX: usize = 32_767;
/// Characters of the name of a worksheet.
const NAME_MAX: usize = 31;

/// Writes the tables of a comparison into the file `path`.
///
/// # Errors
/// [`Error::Io`]; [`Error::Workbook`] if a table has too many rows.
pub fn write_comparison(comparison: &Comparison, path: &Path) -> Result<()> {
    let verdicts = comparison.verdicts.iter().map(|verdict| (verdict.topic, verdict.text.as_str()));
    write_sheets(&comparison.sheets(), verdicts, &[], path)
}

/// Writes the tables of a study, its jobs and its steps into the file `path`.
///
/// # Errors
/// As [`write_comparison`].
pub fn write(record: &Record, summary: &Summary, path: &Path) -> Result<()> {
    let verdicts = summary.verdicts.iter().map(|verdict| (verdict.topic, verdict.text.as_str()));
    let more = [("jobs", csv::jobs(record)), ("steps", csv::steps(record))];
    write_sheets(&summary.sheets(record), verdicts, &more, path)
}

fn write_sheets<'a>(
    sheets: &'a [Sheet],
    verdicts: impl Iterator<Item = (&'a str, &'a str)>,
    more: &[(&str, Table)],
    path: &Path,
) -> Result<()> {
    let mut notes = Table::new(&["about", "note"]);
    for (topic, text) in verdicts {
        notes.push(vec![topic.into(), text.into()]);
    }
    for sheet in sheets {
        notes.push(vec![sheet.name.into(), sheet.title.as_str().into()]);
        for note in &sheet.notes {
            notes.push(vec![sheet.name.into(), note.as_str().into()]);
        }
    }
    let refuse = |reason: String| Error::Workbook { path: path.to_owned(), reason };
    let tables = sheets.iter().map(|sheet| (sheet.name, &sheet.table));
    let more = more.iter().map(|(name, table)| (*name, table));
    let mut workbook = Workbook::new();
    for (name, table) in tables.chain(more).chain([("notes", &notes)]) {
        if table.rows.len() >= ROWS_MAX {
            return Err(refuse(format!(
                "the table {name} has {} rows, and a worksheet at most {}: write CSV files",
                table.rows.len(),
                ROWS_MAX - 1
            )));
        }
        let short: String = name.chars().take(NAME_MAX).collect();
        fill(workbook.add_worksheet(), &short, table).map_err(|error| refuse(error.to_string()))?;
    }
    let bytes = workbook.save_to_buffer().map_err(|error| refuse(error.to_string()))?;
    // Under another name first, so that no half of a workbook ever stands at `path`.
    let mut draft = path.as_os_str().to_owned();
    draft.push(".draft");
    let draft = PathBuf::from(draft);
    std::fs::write(&draft, bytes).map_err(Error::io("write", &draft))?;
    std::fs::rename(&draft, path).map_err(Error::io("write", path))
}

fn fill(sheet: &mut Worksheet, name: &str, table: &Table) -> std::result::Result<(), XlsxError> {
    let bold = Format::new().set_bold();
    sheet.set_name(name)?.set_freeze_panes(1, 0)?;
    for (column, heading) in (0..).zip(&table.columns) {
        sheet.write_string_with_format(0, column, short(heading), &bold)?;
        let widest = table.rows.iter().filter_map(|row| match row.get(usize::from(column)) {
            Some(Cell::Text(text)) => Some(text.chars().count()),
            _ => None,
        });
        let width = widest.chain([heading.chars().count(), 8]).max().unwrap_or(8).min(60);
        sheet.set_column_width(column, u32::try_from(width + 2).unwrap_or(62))?;
    }
    for (row, cells) in (1..).zip(&table.rows) {
        for (column, cell) in (0..).zip(cells) {
            match cell {
                Cell::Missing => {}
                Cell::Number(number) if number.is_finite() => {
                    sheet.write_number(row, column, *number)?;
                }
                Cell::Number(number) => {
                    sheet.write_string(row, column, number.to_string())?;
                }
                Cell::Text(text) => {
                    sheet.write_string(row, column, short(text))?;
                }
            }
        }
    }
    Ok(())
}

/// As much of a text as a cell takes.
fn short(text: &str) -> String {
    text.chars().take(CELL_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(rows: usize) -> Sheet {
        let mut table = Table::new(&["figure", "value"]);
        for _ in 0..rows {
            table.push(vec!["=1+1".into(), 2.5.into()]);
        }
        table.push(vec![Cell::Missing, f64::INFINITY.into()]);
        Sheet { name: "comparison", title: "Comparison".to_owned(), notes: Vec::new(), table }
    }

    #[test]
    fn a_workbook_stands_at_its_place_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.xlsx");
        write_sheets(&[sheet(3)], [("Jobs", "All ran.")].into_iter(), &[], &path).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(b"PK"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_table_that_no_worksheet_holds_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.xlsx");
        let refused = write_sheets(&[sheet(ROWS_MAX)], std::iter::empty(), &[], &path).unwrap_err();
        assert!(refused.to_string().contains("write CSV files"), "{refused}");
    }
}
