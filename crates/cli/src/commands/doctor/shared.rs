//! Whether a storage is fit for data that several hosts share.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_advisor::Severity;
use forebay_advisor::shared::{self, Shown, Sides};
use forebay_base::time::SystemClock;

use crate::output::Table;

/// Options of the examination of shared storage.
#[derive(clap::Args)]
pub struct SharedOptions {
    /// Examine the storage below this directory: new names, sizes, bytes, locks, renames, appends.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["paths", "fix_script", "mute", "unmute"])]
    shared: Option<PathBuf>,
    /// The same directory through another mount of the storage, as another host would see it.
    #[arg(long, value_name = "DIRECTORY", requires = "shared")]
    with: Option<PathBuf>,
    /// Seconds to wait until one side sees a change by the other; NFS may take 60.
    #[arg(long, value_name = "SECONDS", default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
}

impl SharedOptions {
    /// Examines the storage if the options say so.
    pub fn run(&self, json: bool) -> Result<Option<ExitCode>> {
        let Some(one) = &self.shared else { return Ok(None) };
        let other = self.with.as_ref().unwrap_or(one);
        let patience = Duration::from_secs(self.patience);
        let sides = Sides::open(one, other, patience, &SystemClock)
            .with_context(|| format!("cannot examine {}", one.display()))?;
        let shown = sides.examine().with_context(|| format!("cannot examine {}", one.display()))?;
        drop(sides);
        print(&shown, json)?;
        if self.with.is_none() {
            note!(
                "Only one mount was examined, which cannot hide changes from itself: name another mount of the same storage with --with."
            );
        }
        let bad = shown.iter().any(|shown| shown.severity > Some(Severity::Advice));
        Ok(Some(if bad { ExitCode::from(1) } else { ExitCode::SUCCESS }))
    }
}

fn print(shown: &[Shown], json: bool) -> Result<()> {
    let verdict = shared::verdict(shown);
    if json {
        return crate::output::put_json(&serde_json::json!({ "tests": shown, "verdict": verdict }));
    }
    let mut table = Table::new(&["test", "", "seen"]);
    for shown in shown {
        let word = shown.severity.map_or("fine", Severity::word);
        table.row(vec![shown.test.to_owned(), word.to_owned(), shown.text.clone()]);
    }
    outln!("{}\nThis storage is {verdict}.", table.render());
    Ok(())
}
