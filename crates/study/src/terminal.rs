//! A summary for a terminal: verdicts, then tables, no line longer than the terminal is wide.
//!
//! Text is wrapped at spaces and is never narrower than 20 characters; [`forebay_base::columns`] says what
//! happens to wide tables.

use std::io::{self, Write};

use forebay_base::columns::Width;
use forebay_base::text::wrap;

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
        let columns = sheet.table.columns(Sheet::DIGITS);
        out.write_all(columns.render(Width::Characters(self.width)).as_bytes())?;
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
