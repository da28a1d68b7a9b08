//! `forebay bench report`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use forebay_study::record::Record;

use super::result::{self, Shown};

/// Rebuild the report and the tables of a result from its recorded data.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench report bench-mixed-20260102-150405
  forebay bench report results/mine --json           the summary as JSON")]
pub struct Report {
    /// Folder of the result.
    result: PathBuf,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
}

impl Report {
    pub fn run(self) -> Result<ExitCode> {
        let record = Record::read(&self.result)?;
        let page = result::rebuild(&record, &self.result)?;
        let shown = if self.json { Shown::Json } else { Shown::Tables };
        result::show(&record, &page, shown)?;
        Ok(ExitCode::SUCCESS)
    }
}
