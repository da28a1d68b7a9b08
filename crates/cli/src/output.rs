//! What is printed: the one place that writes to standard output and standard error, and tables and numbers
//! for people.
//!
//! What cannot be printed is an error ([`Unprinted`]), never a panic. Words to standard error have nobody left
//! to tell: where they cannot be written they are dropped.
//!
//! Names, commands and reasons come from other users. Everything printed as text or JSON passes through [`escaped`],
//! so that none of it reaches a terminal as a control sequence. Only [`put`] and [`put_all`] print bytes as they are:
//! the output of jobs and programs, as cat(1) would.

use std::io::{ErrorKind, Write as _};

use anyhow::Result;
use forebay_base::columns::{Alignment, Columns, Width};
pub use forebay_base::text::{escaped, on_one_line};
pub use forebay_engine::causes::chain;

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}")]
pub struct Unprinted(pub std::io::Error);

impl Unprinted {
    /// Whether the reader has only gone away, as that of `forebay jobs | head` does.
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Prints bytes to standard output, and what was left in its buffer.
pub fn put(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(bytes).and_then(|()| out.flush()).map_err(Unprinted)?)
}

/// Prints all that can be read, of any size.
pub fn put_all(from: &mut impl std::io::Read) -> Result<()> {
    const PIECE_BYTES: usize = 64 << 10;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => put(&piece[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints a text to standard output.
pub fn put_text(text: &str) -> Result<()> {
    put(escaped(text).as_bytes())
}

/// Prints what scripts read: one indented document, which is all that the command prints.
pub fn put_json(value: &impl serde::Serialize) -> Result<()> {
    put_text(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Prints what scripts read of a command that has several answers: one object per line, as each is known.
pub fn put_json_line(value: &impl serde::Serialize) -> Result<()> {
    put_text(&format!("{}\n", serde_json::to_string(value)?))
}

/// Writes a text to standard error, in one piece.
pub fn put_aside(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints to standard output like `print!`, escaped, and returns with an error where it cannot.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::put_text(&format!($($text)*))? };
}

/// Prints a line to standard output like `println!`, escaped, and returns with an error where it cannot.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::put_text(&(format!($($text)*) + "\n"))? };
}

/// A line for standard error, escaped: `eprintln!` without the panic.
macro_rules! note {
    ($($text:tt)*) => {
        $crate::output::put_aside(&$crate::output::escaped(&(format!($($text)*) + "\n")))
    };
}

/// Rows of cells, printed in aligned columns.
pub struct Table {
    rows: Vec<Vec<String>>,
}

/// A column of such cells is one of numbers.
fn looks_like_a_number(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

impl Table {
    /// A table with this heading.
    pub fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text. No cell breaks its line.
    pub fn render(&self) -> String {
        let mut columns = Columns::new();
        for column in 0..self.rows.iter().map(Vec::len).max().unwrap_or(0) {
            let cells = self.rows.iter().map(|row| row.get(column).map_or("", String::as_str));
            let is_numeric = self.rows.len() > 1 && cells.clone().skip(1).all(looks_like_a_number);
            let alignment = if is_numeric { Alignment::Right } else { Alignment::Left };
            columns.push(alignment, cells);
        }
        columns.render(Width::Free)
    }
}

/// Bytes with a binary unit and three digits that count.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_the_digits_that_count() {
        for (value, text) in
            [(0, "0 B"), (999, "999 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB")]
        {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn json_means_the_same_before_and_after_it_is_escaped() {
        let nasty = "a\x1b]0;x\x07\r\u{9b}2J\u{7f}\u{202e}b\n\tc ü 漢";
        let json = serde_json::to_string(nasty).unwrap();
        assert_eq!(serde_json::from_str::<String>(&escaped(&json)).unwrap(), nasty);
    }

    #[test]
    fn numbers_stand_to_the_right_and_text_to_the_left() {
        let mut table = Table::new(&["name", "files"]);
        table.row(vec!["a".into(), "5".into()]);
        table.row(vec!["long".into(), "12".into()]);
        assert_eq!(table.render(), "name  files\na         5\nlong     12\n");
    }
}
