//! `forebay bench compare`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use forebay_study::compare::Comparison;
use forebay_study::record::Record;
use forebay_study::report;

use super::result;

/// Compare results side by side: figures, ratios, and whether they differ by more than they vary.
///
/// The first result is what the others are compared with. Results of different workloads are refused; those
/// of different scales or machines are compared with a warning.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench compare before/ after/
  forebay bench compare xfs/ nfs/ grid/ --out comparison.html
  forebay bench compare before/ after/ --json")]
pub struct Compare {
    /// The folders of the results.
    #[arg(required = true, num_args = 2..)]
    results: Vec<PathBuf>,
    /// The page to write; comparison.html by default.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON, and write no page unless --out is given.
    #[arg(long)]
    json: bool,
}

impl Compare {
    pub fn run(self) -> Result<ExitCode> {
        let mut records: Vec<(String, Record)> = Vec::new();
        let mut folders = Vec::new();
        for folder in &self.results {
            let record = Record::read(folder)?;
            let place = folder.canonicalize()?;
            if folders.contains(&place) {
                bail!("{} is given twice", folder.display());
            }
            folders.push(place);
            records.push((label(folder), record));
        }
        let sides: Vec<(&str, &Record)> =
            records.iter().map(|(label, record)| (label.as_str(), record)).collect();
        let comparison = Comparison::of_studies(&sides)?;
        if self.json {
            crate::output::put_json(&comparison)?;
        } else {
            let mut out = Vec::new();
            result::show_comparison(&comparison, &result::terminal(), &mut out)?;
            crate::output::put(&out)?;
        }
        let page = match (&self.out, self.json) {
            (Some(out), _) => out.clone(),
            (None, true) => return Ok(ExitCode::SUCCESS),
            (None, false) => PathBuf::from("comparison.html"),
        };
        let page = report::write_comparison(&records, &page)?;
        if !self.json {
            outln!("\nreport: {}", page.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A folder without slashes at its end.
fn label(folder: &Path) -> String {
    folder.components().as_path().display().to_string()
}
