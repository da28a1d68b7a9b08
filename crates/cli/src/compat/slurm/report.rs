//! The tables of sacct and sstat: columns that `--format` chooses, or cells with something between them.

use anyhow::{Context as _, Result, bail};

use super::super::columns::{Room, Side};
use super::super::words::Given;

/// One column: its field, its heading, its room.
pub struct Column {
    pub name: String,
    pub heading: &'static str,
    room: Room,
}

/// Reads `JobID,State%20,Account%-30`. `known` has the heading and the usual width of a field; a width below zero is one of cells
/// on the left.
///
/// # Errors
/// If a field or a width is not one.
pub fn columns(
    format: &str,
    plain: impl Fn(&str) -> String,
    known: impl Fn(&str) -> Option<(&'static str, i32)>,
) -> Result<Vec<Column>> {
    let column = |part: &str| {
        let (name, width) = part.split_once('%').unwrap_or((part, ""));
        let plain = plain(name);
        let Some((heading, usual)) = known(&plain) else {
            bail!("Invalid field requested: \"{name}\"");
        };
        let width: i32 = match width {
            "" => usual,
            width => width.parse().with_context(|| format!("invalid width \"{width}\""))?,
        };
        let side = if width < 0 { Side::Left } else { Side::Right };
        let room = Room { width: Some(width.unsigned_abs() as usize), side };
        Ok(Column { name: plain, heading, room })
    };
    format.split(',').map(str::trim).filter(|part| !part.is_empty()).map(column).collect()
}

/// How a line is put together.
#[derive(Clone, Copy)]
pub enum Layout<'a> {
    /// In columns.
    Columns,
    /// With what stands between cells, and whether it ends each line as well.
    Parsable {
        /// Between cells.
        delimiter: &'a str,
        /// At the end.
        ends: &'a str,
    },
}

impl<'a> Layout<'a> {
    /// The one that options choose.
    pub fn of(given: &'a Given) -> Layout<'a> {
        let delimiter = given.value("delimiter").unwrap_or("|");
        match (given.has("parsable2"), given.has("parsable")) {
            (true, _) => Layout::Parsable { delimiter, ends: "" },
            (false, true) => Layout::Parsable { delimiter, ends: delimiter },
            (false, false) => Layout::Columns,
        }
    }

    /// One line.
    pub fn line(self, columns: &[Column], cells: &[String]) -> String {
        match self {
            Layout::Columns => {
                let fitted = columns
                    .iter()
                    .zip(cells)
                    .map(|(column, cell)| column.room.fit(cell, Some('+')) + " ");
                fitted.collect::<String>() + "\n"
            }
            Layout::Parsable { delimiter, ends } => cells.join(delimiter) + ends + "\n",
        }
    }

    /// The lines above the others: the names, and rules below them where there are columns.
    pub fn headings(self, columns: &[Column]) -> String {
        let headings: Vec<String> =
            columns.iter().map(|column| column.heading.to_owned()).collect();
        let text = self.line(columns, &headings);
        match self {
            Layout::Parsable { .. } => text,
            Layout::Columns => {
                let rule = |column: &Column| "-".repeat(column.room.width.unwrap_or(0));
                text + &self.line(columns, &columns.iter().map(rule).collect::<Vec<_>>())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_stand_above_rules_as_wide_as_their_columns() {
        let known = |name: &str| match name {
            "jobid" => Some(("JobID", -12)),
            "state" => Some(("State", 10)),
            "account" => Some(("Account", 10)),
            _ => None,
        };
        let read = |format| columns(format, str::to_lowercase, known);
        let columns = read("JobID,State%12,Account%-5").unwrap();
        let cells = ["12_3", "CANCELLED by 1000", "a"].map(str::to_owned);
        assert_eq!(Layout::Columns.line(&columns, &cells), "12_3         CANCELLED b+ a     \n");
        assert_eq!(
            Layout::Columns.headings(&columns),
            "JobID               State Accou \n------------ ------------ ----- \n"
                .replace("Accou", "Acco+")
        );
        let parsable = Layout::Parsable { delimiter: "|", ends: "|" };
        assert_eq!(parsable.line(&columns, &cells), "12_3|CANCELLED by 1000|a|\n");
        assert!(read("NoSuch").is_err() && read("State%x").is_err());
    }
}
