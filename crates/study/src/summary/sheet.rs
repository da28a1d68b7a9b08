//! Sheets: tables with a title and what a reader must know, the same for page, terminal and CSV.

use forebay_analytics::{Cell, Table};
use serde::Serialize;

use super::{RunSummary, Summary};

/// A table that is shown to people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sheet {
    /// Its name, for files and anchors: lower case and underscores.
    pub name: &'static str,
    /// Its title.
    pub title: String,
    /// What a reader must know: definitions, what is left out, what may mislead.
    pub notes: Vec<String>,
    /// The rows.
    pub table: Table,
}

impl Sheet {
    /// Significant digits of its numbers that are not whole, where people read them.
    pub const DIGITS: u8 = 4;
}

/// Rows about runs, which begin with subject and round where there are several.
pub(super) struct Rows {
    table: Table,
    with_subjects: bool,
    with_rounds: bool,
}

impl Rows {
    pub(super) fn new(summary: &Summary, columns: &[&str]) -> Rows {
        let (with_subjects, with_rounds) = (summary.subjects.len() > 1, summary.has_rounds());
        let mut all = Vec::new();
        all.extend(with_subjects.then_some("subject"));
        all.extend(with_rounds.then_some("round"));
        all.extend(columns);
        Rows { table: Table::new(&all), with_subjects, with_rounds }
    }

    pub(super) fn push(&mut self, run: &RunSummary, cells: Vec<Cell>) {
        let mut row = Vec::new();
        row.extend(self.with_subjects.then(|| Cell::from(run.label.as_str())));
        row.extend(self.with_rounds.then(|| Cell::from(u64::from(run.round))));
        row.extend(cells);
        self.table.push(row);
    }

    pub(super) fn sheet(self, name: &'static str, title: &str, notes: Vec<String>) -> Sheet {
        Sheet { name, title: title.to_owned(), notes, table: self.table }
    }
}

impl Summary {
    /// Whether any subject has several runs.
    #[must_use]
    pub fn has_rounds(&self) -> bool {
        self.runs.iter().any(|run| run.round != 0)
    }

    /// The run's name for people: its subject and round where there are several.
    #[must_use]
    pub fn run_name(&self, run: &RunSummary) -> String {
        match (self.subjects.len() > 1, self.has_rounds()) {
            (false, false) => "The run".to_owned(),
            (true, false) => run.label.clone(),
            (false, true) => format!("Round {}", run.round + 1),
            (true, true) => format!("{}, round {}", run.label, run.round + 1),
        }
    }
}
