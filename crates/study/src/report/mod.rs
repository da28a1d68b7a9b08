//! The report as a page: one HTML file that needs nothing else.
//!
//! [`fn@write`] shows a record, [`write_comparison`] several side by side. Style and script are part of the
//! page, charts are inline SVG (docs/adr/0006), and no address of another machine is in it. Everything
//! that a user or a machine named is escaped. Without scripts the page lacks only the reading of values
//! under the pointer. The body is well-formed XML as well.
//!
//! The size of a page is bounded by the limits of [`crate::chart`]; [`RUNS_MAX`] bounds the runs whose
//! charts are shown.

mod comparison;
mod distribution;
mod environment;
mod figures;
mod hosts;
mod overview;
mod page;
mod run;
mod sheet;

use std::path::{Path, PathBuf};

use maud::Markup;

use crate::error::{Error, Result};
use crate::record::Record;

pub use comparison::comparison;
pub use overview::report;
pub use page::{Head, SCRIPT, STYLE, Section, Standing, page};
pub use sheet::sheet;

/// Name of the report in the result's directory.
pub const FILE: &str = "report.html";

/// Most runs whose charts are shown; tables have all.
pub const RUNS_MAX: usize = 6;

/// Writes the report of `record` into `directory`, which must exist, and says where it is.
///
/// # Errors
/// [`Error::Io`].
pub fn write(record: &Record, directory: &Path) -> Result<PathBuf> {
    let path = directory.join(FILE);
    save(&path, &report(record))?;
    Ok(path)
}

/// Writes a page that shows studies side by side, each under its label, into the file `path`.
///
/// # Errors
/// [`Error::Io`]; [`Error::Incomparable`] if there are fewer than two sides or workloads differ.
pub fn write_comparison(records: &[(String, Record)], path: &Path) -> Result<PathBuf> {
    save(path, &comparison(records)?)?;
    Ok(path.to_owned())
}

/// Writes a page into the file `path`: under another name first, so that no half of a page ever stands there.
///
/// # Errors
/// [`Error::Io`].
pub fn save(path: &Path, page: &Markup) -> Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".draft");
    let draft = PathBuf::from(draft);
    std::fs::write(&draft, &page.0).map_err(Error::io("write", &draft))?;
    std::fs::rename(&draft, path).map_err(Error::io("write", path))
}
