//! A summary for a terminal: verdicts, then tables, no line longer than the terminal is wide.
//!
//! Text is wrapped at spaces; a table that is too wide is shown in several blocks, each beginning with
//! the columns that say what its rows are, and a wide column of text at its end is wrapped. Another
//! column that is wider than the terminal stays whole, and no text is narrower than 20 characters.

use std::io::{self, Write};

use forebay_workload::Table;
use forebay_workload::table::Alignment;

use crate::record::Record;
use crate::summary::{Level, Sheet, Summary, Verdict};

/// Whether there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// None: for files, pipes and those who do not want them.
    Plain,
    /// Codes of ECMA-48 for levels and titles.
    Coloured,
}

/// How wide it is, and whether it has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Columns.
    pub width: usize,
    /// Colours.
    pub style: Style,
}

const BOLD: &str = "1";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
/// Space between two columns.
const GAP: usize = 2;
/// Columns that are repeated in every block, at most.
const REPEATED_MAX: usize = 3;
/// Part of the width that those may take: one in so many.
const REPEATED_PART: usize = 2;
/// Wrapped text is not narrower than this.
const ROOM_MIN: usize = 20;

impl Terminal {
    /// Prints a summary: verdicts, then the tables.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(
        &self,
        record: &Record,
        summary: &Summary,
        out: &mut impl Write,
    ) -> io::Result<()> {
        self.print_verdicts(&summary.verdicts, out)?;
        for sheet in summary.sheets(record) {
            writeln!(out)?;
            self.print_sheet(&sheet, out)?;
        }
        Ok(())
    }

    /// Prints verdicts, one paragraph each.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print_verdicts(&self, verdicts: &[Verdict], out: &mut impl Write) -> io::Result<()> {
        let widest =
            verdicts.iter().map(|verdict| verdict.topic.chars().count()).max().unwrap_or(0);
        for verdict in verdicts {
            let (mark, colour) = match verdict.level {
                Level::Good => ("ok  ", GREEN),
                Level::Warning => ("note", YELLOW),
                Level::Bad => ("bad ", RED),
            };
            let indent = mark.len() + widest + 2 * GAP;
            let lines = wrap(&verdict.text, self.width.saturating_sub(indent));
            for (place, line) in lines.iter().enumerate() {
                if place == 0 {
                    let mark = self.paint(mark, colour);
                    writeln!(out, "{mark}  {:<widest$}  {line}", verdict.topic)?;
                } else {
                    writeln!(out, "{:indent$}{line}", "")?;
                }
            }
        }
        Ok(())
    }

    /// Prints a table with its title and notes.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print_sheet(&self, sheet: &Sheet, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.paint(&sheet.title, BOLD))?;
        let columns = Columns::of(&sheet.table);
        for (place, block) in columns.blocks(self.width).iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            columns.print(block, self.width, out)?;
        }
        for note in &sheet.notes {
            for (place, line) in wrap(note, self.width.saturating_sub(GAP)).iter().enumerate() {
                writeln!(out, "{}{line}", if place == 0 { "- " } else { "  " })?;
            }
        }
        Ok(())
    }

    fn paint(&self, text: &str, colour: &str) -> String {
        match self.style {
            Style::Plain => text.to_owned(),
            Style::Coloured => format!("\u{1b}[{colour}m{text}\u{1b}[0m"),
        }
    }
}

/// The columns of a table as text.
struct Columns {
    /// Names and then cells of each column.
    cells: Vec<Vec<String>>,
    widths: Vec<usize>,
    alignments: Vec<Alignment>,
}

impl Columns {
    fn of(table: &Table) -> Columns {
        let cells: Vec<Vec<String>> = (0..table.columns.len())
            .map(|column| {
                let shown = table.rows.iter().map(|row| one_line(&row[column].show(Sheet::DIGITS)));
                std::iter::once(table.columns[column].clone()).chain(shown).collect()
            })
            .collect();
        let width = |cells: &Vec<String>| cells.iter().map(|cell| cell.chars().count()).max();
        Columns {
            widths: cells.iter().map(|cells| width(cells).unwrap_or(0)).collect(),
            alignments: (0..cells.len()).map(|column| table.alignment(column)).collect(),
            cells,
        }
    }

    /// Which columns are shown beside each other.
    fn blocks(&self, width: usize) -> Vec<Vec<usize>> {
        let names = self.repeated(width);
        let needed = |block: &[usize]| block.iter().map(|&column| self.widths[column] + GAP).sum();
        let mut blocks = vec![Vec::from_iter(0..names)];
        for column in names..self.widths.len() {
            let block = blocks.last().expect("there is a block");
            let have: usize = needed(block);
            // The gap after the last column is not printed.
            if have + self.least_width(column) > width && block.len() > names {
                blocks.push(Vec::from_iter(0..names));
            }
            blocks.last_mut().expect("there is a block").push(column);
        }
        blocks
    }

    /// The columns that name the rows: texts on the left, as far as they leave room for others.
    fn repeated(&self, width: usize) -> usize {
        let mut used = 0;
        self.widths
            .iter()
            .zip(&self.alignments)
            .take(REPEATED_MAX)
            .take_while(|(width_of_column, alignment)| {
                used += *width_of_column + GAP;
                **alignment == Alignment::Left && used <= width / REPEATED_PART
            })
            .count()
    }

    fn print(&self, block: &[usize], width: usize, out: &mut impl Write) -> io::Result<()> {
        let Some((&last, others)) = block.split_last() else { return Ok(()) };
        let indent: usize = others.iter().map(|&column| self.widths[column] + GAP).sum();
        let room = width.saturating_sub(indent).max(ROOM_MIN);
        for line in 0..self.cells[last].len() {
            let mut text = String::new();
            for &column in others {
                text += &self.padded(column, line);
                text += "  ";
            }
            let parts = match self.alignments[last] {
                Alignment::Left if self.widths[last] > room => wrap(&self.cells[last][line], room),
                Alignment::Left | Alignment::Right => vec![self.padded(last, line)],
            };
            for (place, part) in parts.iter().enumerate() {
                let before = if place == 0 { text.as_str() } else { "" };
                writeln!(out, "{}", format!("{before:<indent$}{part}").trim_end())?;
            }
        }
        Ok(())
    }

    fn padded(&self, column: usize, line: usize) -> String {
        let (cell, width) = (&self.cells[column][line], self.widths[column]);
        match self.alignments[column] {
            Alignment::Left => format!("{cell:<width$}"),
            Alignment::Right => format!("{cell:>width$}"),
        }
    }

    /// Columns that a column needs: less if it is of text and wrapped.
    fn least_width(&self, column: usize) -> usize {
        let is_last = column + 1 == self.widths.len();
        match self.alignments[column] {
            Alignment::Left if is_last => self.widths[column].min(ROOM_MIN),
            Alignment::Left | Alignment::Right => self.widths[column],
        }
    }
}

/// Control characters, such as those in messages of jobs, as spaces.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Lines of at most `width` characters, broken at spaces; words that are longer are broken anywhere.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let (text, width) = (one_line(text), width.max(ROOM_MIN));
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (place, part) in letters.chunks(width).enumerate() {
            let space = usize::from(used > 0 && place == 0);
            if used + space + part.len() > width {
                lines.push(String::new());
                used = 0;
            }
            let line = lines.last_mut().expect("there is a line");
            if used > 0 && space > 0 {
                line.push(' ');
                used += 1;
            }
            line.extend(part);
            used += part.len();
        }
    }
    lines
}
