//! The files of a result, and what is shown of it.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use forebay_analytics::dataset::format_datetime;
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, Timestamp};
use forebay_study::compare::Comparison;
use forebay_study::record::Record;
use forebay_study::summary::Summary;
use forebay_study::terminal::{Style, Terminal};
use forebay_study::{csv, report};

/// Folder of the tables in a result.
const TABLES: &str = "tables";
/// Columns where there is no terminal.
const WIDTH_DEFAULT: usize = 120;

/// The folder of a result, `NAME-TIME` by default, and whether it was made here.
pub fn folder(out: Option<&Path>, name: &str) -> Result<(PathBuf, bool)> {
    let default = || PathBuf::from(format!("{name}-{}", stamp(SystemClock.now())));
    let out = out.map_or_else(default, Path::to_owned);
    if out.join(Record::FILE).exists() {
        bail!("{} already holds a result; name another folder with --out", out.display());
    }
    let made = !out.exists();
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    // Jobs run with the folders they were given, whatever theirs is.
    Ok((out.canonicalize()?, made))
}

/// Writes record, tables and page into `out`; returns where the page is.
pub fn write(record: &Record, out: &Path) -> Result<PathBuf> {
    record.write(out)?;
    rebuild(record, out)
}

/// Writes what is made from the record.
pub fn rebuild(record: &Record, out: &Path) -> Result<PathBuf> {
    let tables = out.join(TABLES);
    std::fs::create_dir_all(&tables)
        .with_context(|| format!("cannot create {}", tables.display()))?;
    csv::write(record, &Summary::of(record), &tables)?;
    Ok(report::write(record, out)?)
}

/// What is printed of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The summary as JSON.
    Json,
    /// The verdict.
    Verdict,
    /// The verdict and all tables.
    Tables,
}

/// Prints the summary, and where the page is.
pub fn show(record: &Record, page: &Path, shown: Shown) -> Result<()> {
    let summary = Summary::of(record);
    let mut out = Vec::new();
    let terminal = terminal();
    match shown {
        Shown::Json => {
            return crate::output::put_json(&summary);
        }
        Shown::Verdict => terminal.print_verdicts(&summary.verdicts, &mut out)?,
        Shown::Tables => terminal.print(record, &summary, &mut out)?,
    }
    if record.subjects.len() > 1
        && let Ok(comparison) = Comparison::of_subjects(record)
    {
        show_comparison(&comparison, &terminal, &mut out)?;
    }
    writeln!(out, "\nreport: {}", page.display())?;
    crate::output::put(&out)
}

/// Prints a comparison.
pub fn show_comparison(
    comparison: &Comparison,
    terminal: &Terminal,
    out: &mut impl std::io::Write,
) -> Result<()> {
    writeln!(out)?;
    terminal.print_verdicts(&comparison.verdicts, out)?;
    for sheet in comparison.sheets() {
        writeln!(out)?;
        terminal.print_sheet(&sheet, out)?;
    }
    Ok(())
}

/// The terminal as it is; colours where people look and do not refuse them (NO_COLOR).
pub fn terminal() -> Terminal {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0);
    let coloured = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    Terminal {
        width: columns.unwrap_or(WIDTH_DEFAULT),
        style: if coloured { Style::Coloured } else { Style::Plain },
    }
}

/// A time for file names, such as `20130102-150405`.
pub fn stamp(now: Timestamp) -> String {
    format_datetime(now.seconds as f64)
        .chars()
        .filter(|c| c.is_ascii_digit() || *c == 'T')
        .map(|c| if c == 'T' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_sort_by_time() {
        assert_eq!(stamp(Timestamp::new(1_357_138_445, 5)), "20130102-145405");
    }
}
