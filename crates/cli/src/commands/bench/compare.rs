//! `forebay bench compare`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_study::compare::Comparison;
use forebay_study::record::Record;
use forebay_study::{csv, report, xlsx};

use super::result;

/// Compare results side by side: figures, ratios, and whether they differ by more than their spread.
///
/// Every other result is compared with the first. Results of different workloads are refused; results of
/// different scales or machines are compared with a warning.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench compare before/ after/
  forebay bench compare xfs/ nfs/ grid/ --out comparison.html
  forebay bench compare before/ after/ --label before --label after --csv comparison
  forebay bench compare 2026-0*/ --xlsx comparison.xlsx
  forebay bench compare before/ after/ --json")]
pub struct Compare {
    /// Folders of the results, two or more.
    #[arg(required = true, num_args = 2..)]
    results: Vec<PathBuf>,
    /// HTML file to write [default: comparison.html].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Name of a result in tables, in the order of the results [default: their folders].
    #[arg(long = "label", value_name = "NAME")]
    labels: Vec<String>,
    /// Write the tables as CSV files into this folder.
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write the tables as a workbook for spreadsheet programs (XLSX) into this file.
    #[arg(long, value_name = "FILE")]
    xlsx: Option<PathBuf>,
    /// Print JSON; write an HTML page only if --out is given.
    #[arg(long)]
    json: bool,
}

impl Compare {
    pub fn run(self) -> Result<ExitCode> {
        let mut records: Vec<(String, Record)> = Vec::new();
        let mut folders = Vec::new();
        self.check_labels()?;
        for (place_of, folder) in self.results.iter().enumerate() {
            let record = Record::read(folder)?;
            let place = folder.canonicalize()?;
            if folders.contains(&place) {
                bail!("the result {} is given twice", folder.display());
            }
            folders.push(place);
            let label = self.labels.get(place_of).cloned().unwrap_or_else(|| label(folder));
            records.push((label, record));
        }
        let sides: Vec<(&str, &Record)> =
            records.iter().map(|(label, record)| (label.as_str(), record)).collect();
        let comparison = Comparison::of_studies(&sides)?;
        if let Some(folder) = &self.csv {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            csv::write_comparison(&comparison, folder)?;
        }
        if let Some(file) = &self.xlsx {
            xlsx::write_comparison(&comparison, file)?;
        }
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

impl Compare {
    fn check_labels(&self) -> Result<()> {
        let (labels, results) = (self.labels.len(), self.results.len());
        if labels > 0 && labels != results {
            bail!(
                "--label: {labels} given for {results} results; give one for each result, or none"
            );
        }
        if let Some(twice) =
            self.labels.iter().enumerate().find(|(at, one)| self.labels[..*at].contains(one))
        {
            bail!("--label {}: is given twice; tables need different names", twice.1);
        }
        Ok(())
    }
}

/// A folder without slashes at its end.
fn label(folder: &Path) -> String {
    folder.components().as_path().display().to_string()
}
