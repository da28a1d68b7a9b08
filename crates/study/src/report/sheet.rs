//! Tables on the page: numbers of a column with the same decimals, long tables folded on the screen.

use forebay_analytics::Table;
use forebay_analytics::table::Cell;
use maud::{Markup, html};

use crate::chart::unit::{Unit, digits, grouped};
use crate::summary::Sheet;

/// Rows up to which a table is not folded.
const OPEN_MAX: usize = 14;

/// Texts above this length may be broken anywhere.
const LONG: usize = 28;

/// Texts up to this length are never broken.
const SHORT: usize = 16;

/// A table with title and notes.
#[must_use]
pub fn sheet(sheet: &Sheet) -> Markup {
    let rows = sheet.table.rows.len();
    html! {
        div class="sheet" id={ "table-" (sheet.name) } {
            h3 { (sheet.title) }
            @for note in &sheet.notes { p class="note" { (note) } }
            @if rows > OPEN_MAX {
                details { summary { (rows) " rows" } (table(&sheet.table)) }
            } @else {
                (table(&sheet.table))
            }
        }
    }
}

/// A table: texts to the left, numbers to the right.
#[must_use]
pub fn table(table: &Table) -> Markup {
    let columns: Vec<Column> = (0..table.columns.len()).map(|i| Column::of(table, i)).collect();
    html! {
        div class="scroll" tabindex="0" {
            table {
                thead { tr {
                    @for (name, column) in table.columns.iter().zip(&columns) {
                        th scope="col" class=[column.numbers().then_some("n")] { (name) }
                    }
                } }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (cell, column) in row.iter().zip(&columns) { (column.cell(cell)) }
                        }
                    }
                }
            }
        }
    }
}

/// How the cells of a column are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    Text,
    /// Texts that are figures, such as ranges.
    Figures,
    /// All numbers with so many decimals.
    Decimals(usize),
    /// Each number to three significant digits: of different things.
    Digits,
    Bytes,
}

impl Column {
    fn of(table: &Table, i: usize) -> Column {
        let cells = || table.rows.iter().map(|row| &row[i]);
        let numbers: Vec<f64> = cells()
            .filter_map(|cell| match cell {
                Cell::Number(number) if number.is_finite() => Some(*number),
                Cell::Number(_) | Cell::Missing | Cell::Text(_) => None,
            })
            .collect();
        let texts = cells().any(|cell| matches!(cell, Cell::Text(_)));
        let name = &table.columns[i];
        let largest = numbers.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()));
        match largest {
            _ if numbers.is_empty() && i > 0 && cells().all(is_figure) => Column::Figures,
            _ if numbers.is_empty() => Column::Text,
            _ if texts || table.columns.iter().any(|name| name == "unit") => Column::Digits,
            _ if name == "bytes" || name.ends_with("_bytes") || name.ends_with(" bytes") => {
                Column::Bytes
            }
            _ if numbers.iter().all(|number| number.fract() == 0.0) => Column::Decimals(0),
            _ if largest >= 1000.0 => Column::Decimals(0),
            _ if name.ends_with('%') => Column::Decimals(1),
            _ if largest >= 100.0 => Column::Decimals(1),
            _ if largest >= 10.0 => Column::Decimals(2),
            _ if largest >= 0.1 => Column::Decimals(3),
            _ => Column::Digits,
        }
    }

    fn numbers(self) -> bool {
        self != Column::Text
    }

    fn cell(self, cell: &Cell) -> Markup {
        match cell {
            Cell::Missing => html! { td class=[self.numbers().then_some("n")] { "·" } },
            Cell::Number(number) => html! { td class="n" { (self.show(*number)) } },
            Cell::Text(text) => {
                let long = text.chars().count() > LONG;
                let class = if long { Some("long") } else { self.numbers().then_some("n") };
                let short = text.chars().count() <= SHORT && class.is_none();
                let class = if short { Some("short") } else { class };
                html! { td class=[class] { (text) } }
            }
        }
    }

    fn show(self, number: f64) -> String {
        match self {
            Column::Bytes => Unit::Bytes.show(number),
            Column::Decimals(decimals) => {
                // What is there must not look like nothing.
                let vanishes = number != 0.0 && number.abs() < 0.5 * 10f64.powi(-(decimals as i32));
                if vanishes { digits(number) } else { grouped(number, decimals) }
            }
            Column::Digits if number.fract() == 0.0 => grouped(number, 0),
            Column::Digits | Column::Text | Column::Figures => digits(number),
        }
    }
}

/// Whether it is nothing or a short text that begins with a digit.
fn is_figure(cell: &Cell) -> bool {
    match cell {
        Cell::Missing => true,
        Cell::Number(_) => false,
        Cell::Text(text) => {
            text.chars().count() <= SHORT && text.starts_with(|c: char| c.is_ascii_digit())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, numbers: &[f64]) -> Vec<String> {
        let mut table = Table::new(&[name]);
        for number in numbers {
            table.push(vec![(*number).into()]);
        }
        let column = Column::of(&table, 0);
        numbers.iter().map(|number| column.show(*number)).collect()
    }

    #[test]
    fn a_column_has_the_same_decimals_all_the_way() {
        assert_eq!(shown("MB/s", &[312.44, 5.0, 0.5]), ["312.4", "5.0", "0.5"]);
        assert_eq!(shown("jobs", &[77.0, 5.0]), ["77", "5"]);
        assert_eq!(shown("cpu/real", &[0.93, 1.0]), ["0.930", "1.000"]);
    }

    #[test]
    fn small_numbers_beside_large_ones_do_not_become_zero() {
        assert_eq!(shown("s", &[68_412.6, 0.012]), ["68\u{202f}413", "0.012"]);
    }

    #[test]
    fn bytes_are_sizes() {
        assert_eq!(shown("peak_memory_bytes", &[2_147_483_648.0]), ["2.00\u{202f}GiB"]);
    }
}
