//! `forebay bench report`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use forebay_study::record::Record;
use forebay_study::summary::Summary;
use forebay_study::{fullstimer, xlsx};

use super::result::{self, Shown};

/// Rebuild the report and the tables of a result from its recorded data.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench report bench-mixed-20260102-150405
  forebay bench report results/mine --xlsx mine.xlsx
  forebay bench report results/mine --json           the summary as JSON")]
pub struct Report {
    /// Folder of the result.
    result: PathBuf,
    /// Write the tables, jobs and steps as a workbook for spreadsheet programs (XLSX) into this file too.
    #[arg(long, value_name = "FILE")]
    xlsx: Option<PathBuf>,
    /// Write a log for each job in the style of FULLSTIMER, per step, into the folder `fullstimer` of the result.
    #[arg(long)]
    fullstimer: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
}

impl Report {
    pub fn run(self) -> Result<ExitCode> {
        let record = Record::read(&self.result)?;
        let page = result::rebuild(&record, &self.result)?;
        if let Some(file) = &self.xlsx {
            xlsx::write(&record, &Summary::of(&record), file)?;
        }
        if self.fullstimer {
            fullstimer::write(&record, &self.result)?;
        }
        let shown = if self.json { Shown::Json } else { Shown::Tables };
        result::show(&record, &page, shown)?;
        Ok(ExitCode::SUCCESS)
    }
}
