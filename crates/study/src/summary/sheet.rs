//! Sheets: tables with a title and what a reader must know, the same for page, terminal and CSV.

use forebay_workload::Table;
use serde::Serialize;

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
