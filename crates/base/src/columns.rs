//! Tables in aligned columns: the one renderer of every table that a command prints.
//!
//! A table that is wider than the terminal is shown in several blocks, each beginning with the columns
//! that name its rows, and a wide column of text at the end of a block is wrapped. Another column that is
//! wider than the terminal stays whole.

use crate::text::{WRAP_MIN, on_one_line, wrap};

/// Space between two columns, in characters.
const GAP: usize = 2;
/// Columns that are repeated in every block, at most.
const REPEATED_MAX: usize = 3;
/// The part of the width that those may take: one in this number.
const REPEATED_PART: usize = 2;

/// To which side the cells of a column are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// How wide a table may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// As wide as its cells: for files, pipes and lists of which each line is a row.
    Free,
    /// At most this many characters.
    Characters(usize),
}

/// The columns of a table.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    columns: Vec<Column>,
}

#[derive(Clone, Debug)]
struct Column {
    alignment: Alignment,
    width: usize,
    /// The heading, then a cell for each row.
    cells: Vec<String>,
}

impl Columns {
    /// A table without columns.
    #[must_use]
    pub fn new() -> Columns {
        Columns::default()
    }

    /// Adds a column: its heading, then a cell for each row. Control characters are escaped.
    ///
    /// # Panics
    /// If it has not as many cells as the others.
    pub fn push<'a>(&mut self, alignment: Alignment, cells: impl Iterator<Item = &'a str>) {
        let cells: Vec<String> = cells.map(|cell| on_one_line(cell).into_owned()).collect();
        if let Some(first) = self.columns.first() {
            assert_eq!(cells.len(), first.cells.len(), "one cell per row");
        }
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        self.columns.push(Column { alignment, width, cells });
    }

    /// The table as text, each line with its line end and none with spaces at its end.
    #[must_use]
    pub fn render(&self, width: Width) -> String {
        let width = match width {
            Width::Free => usize::MAX,
            Width::Characters(width) => width,
        };
        let mut text = String::new();
        for (place, block) in self.blocks(width).iter().enumerate() {
            if place > 0 {
                text.push('\n');
            }
            self.render_block(block, width, &mut text);
        }
        text
    }

    /// Which columns are shown beside each other.
    fn blocks(&self, width: usize) -> Vec<Vec<usize>> {
        let names = self.repeated(width);
        let mut blocks = vec![Vec::from_iter(0..names)];
        for column in names..self.columns.len() {
            let block = blocks.last().expect("there is a block");
            let used: usize = block.iter().map(|&column| self.columns[column].width + GAP).sum();
            // The gap after the last column is not printed.
            if used + self.least_width(column) > width && block.len() > names {
                blocks.push(Vec::from_iter(0..names));
            }
            blocks.last_mut().expect("there is a block").push(column);
        }
        blocks
    }

    /// How many columns name the rows: texts on the left, as far as they leave room for others.
    fn repeated(&self, width: usize) -> usize {
        let mut used = 0;
        self.columns
            .iter()
            .take(REPEATED_MAX)
            .take_while(|column| {
                used += column.width + GAP;
                column.alignment == Alignment::Left && used <= width / REPEATED_PART
            })
            .count()
    }

    fn render_block(&self, block: &[usize], width: usize, text: &mut String) {
        let Some((&last, others)) = block.split_last() else { return };
        let last = &self.columns[last];
        let indent: usize = others.iter().map(|&column| self.columns[column].width + GAP).sum();
        let room = width.saturating_sub(indent).max(WRAP_MIN);
        for line in 0..last.cells.len() {
            let mut before = String::new();
            for &column in others {
                before += &self.columns[column].padded(line);
                before.extend([' '; GAP]);
            }
            let parts = match last.alignment {
                Alignment::Left if last.width > room => wrap(&last.cells[line], room),
                Alignment::Left | Alignment::Right => vec![last.padded(line)],
            };
            for part in parts {
                text.push_str(format!("{before:<indent$}{part}").trim_end());
                text.push('\n');
                before.clear();
            }
        }
    }

    /// Characters that a column needs: fewer if it is of text and wrapped.
    fn least_width(&self, column: usize) -> usize {
        let (is_last, column) = (column + 1 == self.columns.len(), &self.columns[column]);
        match column.alignment {
            Alignment::Left if is_last => column.width.min(WRAP_MIN),
            Alignment::Left | Alignment::Right => column.width,
        }
    }
}

impl Column {
    fn padded(&self, line: usize) -> String {
        let (cell, width) = (&self.cells[line], self.width);
        match self.alignment {
            Alignment::Left => format!("{cell:<width$}"),
            Alignment::Right => format!("{cell:>width$}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &[(Alignment, &[&str])]) -> Columns {
        let mut table = Columns::new();
        for (alignment, cells) in columns {
            table.push(*alignment, cells.iter().copied());
        }
        table
    }

    #[test]
    fn numbers_stand_to_the_right_and_text_to_the_left() {
        let table = table(&[
            (Alignment::Left, &["name", "a", "long"]),
            (Alignment::Right, &["files", "5", "12"]),
        ]);
        assert_eq!(table.render(Width::Free), "name  files\na         5\nlong     12\n");
    }

    #[test]
    fn a_table_wider_than_the_terminal_is_shown_in_blocks_that_name_their_rows() {
        let number: &[&str] = &["0123456789", "1"];
        let table = table(&[
            (Alignment::Left, &["job", "sort"]),
            (Alignment::Right, number),
            (Alignment::Right, number),
        ]);
        let block = "job   0123456789\nsort           1\n";
        assert_eq!(table.render(Width::Characters(20)), format!("{block}\n{block}"));
        assert_eq!(table.render(Width::Characters(28)).lines().count(), 2);
    }

    #[test]
    fn a_wide_text_at_the_end_is_wrapped() {
        let table = table(&[
            (Alignment::Left, &["topic", "cores"]),
            (Alignment::Left, &["finding", "the processors waited for storage"]),
        ]);
        let expected = "topic  finding\ncores  the processors\n       waited for storage\n";
        assert_eq!(table.render(Width::Characters(27)), expected);
    }

    #[test]
    fn no_cell_begins_a_line_or_controls_the_terminal() {
        let table = table(&[(Alignment::Left, &["name", "a\nb\u{1b}[2J"])]);
        assert_eq!(table.render(Width::Free), "name\na\\nb\\u001b[2J\n");
    }
}
