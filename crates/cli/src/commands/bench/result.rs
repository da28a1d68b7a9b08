//! The files of a result, and what is shown of it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_base::Timestamp;
use forebay_study::record::Record;
use forebay_study::summary::Summary;
use forebay_study::{csv, report, terminal};
use forebay_workload::dataset::format_datetime;

/// Writes record, tables and page into `out`; returns where the page is.
pub fn write(record: &Record, out: &Path) -> Result<PathBuf> {
    record.write(out)?;
    rebuild(record, out)
}

/// Writes what is made from the record.
pub fn rebuild(record: &Record, out: &Path) -> Result<PathBuf> {
    csv::write(record, out)?;
    Ok(report::write(record, out)?)
}

/// Prints the summary, and where the page is.
pub fn show(record: &Record, page: &Path, json: bool) -> Result<()> {
    let summary = Summary::of(record);
    if json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(());
    }
    terminal::print(&summary, record, width(), &mut std::io::stdout().lock())
        .context("cannot print the summary")?;
    println!("\nreport: {}", page.display());
    Ok(())
}

/// Columns of the terminal; unlimited where there is none.
pub fn width() -> Option<usize> {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0)
}

/// A time for file names, such as `20130102-150405`.
pub fn stamp(now: Timestamp) -> String {
    format_datetime(now.seconds as f64)
        .chars()
        .filter(|c| c.is_ascii_digit() || *c == 'T')
        .map(|c| if c == 'T' { '-' } else { c })
        .collect()
}
