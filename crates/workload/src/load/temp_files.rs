//! Temporary files: their life without a model, as beside the steps of an ETL job.

use std::path::PathBuf;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use forebay_analytics::amount::{Count, Scale};
use forebay_analytics::error::Result;
use forebay_analytics::scratch::{ScratchDir, make_directory};
use forebay_analytics::step::Progress;
use forebay_analytics::step::{Action, Context, Outcome};
use forebay_analytics::table::Table;
use forebay_analytics::temporary::{FileSizes, TEMP_PAGE_BYTES_MAX, TempCounts, TempLife};

/// Makes temporary files, one after another, in a directory of its own, of which none is left: each
/// grows page by page, some are renamed, some overwritten in part; they are read back and checked, and
/// deleted after `live` more. Uses the memory of a few pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TempFiles {
    /// Where the directory is made.
    pub work: PathBuf,
    /// Files in all.
    pub temp_files: Count,
    /// How large they are.
    pub temp_bytes: FileSizes,
    /// Files kept at a time beside the newest.
    pub live: usize,
    /// Files read for each that is made: itself, then any that is alive.
    pub reads: u32,
    /// The part of the files that is renamed, 0 to 1.
    pub renames: f64,
    /// For each file made, how likely one that is alive is overwritten in part, 0 to 1.
    pub overwrites: f64,
    /// Where sizes and choices come from; the job's own if left out.
    pub seed: Option<u64>,
}

impl Default for TempFiles {
    /// 7,000 files in `work`, 20 alive; three reads for each, one in four renamed, one in four
    /// overwritten.
    fn default() -> TempFiles {
        TempFiles {
            work: PathBuf::from("work"),
            temp_files: 7000.into(),
            temp_bytes: FileSizes::default(),
            live: 20,
            reads: 3,
            renames: 0.25,
            overwrites: 0.25,
            seed: None,
        }
    }
}

impl TempFiles {
    /// Runs the step at `scale`, its directory in `work`.
    ///
    /// # Errors
    /// [`forebay_analytics::Error::Setting`] if a setting is out of bounds; [`forebay_analytics::Error::WrongContent`] if a
    /// file is not as it was written; [`forebay_analytics::Error::Io`].
    pub fn run(&self, scale: Scale, progress: &mut Progress<'_>) -> Result<TempCounts> {
        let life = TempLife {
            files: self.temp_files.at(scale),
            sizes: self.temp_bytes.at(scale)?,
            live: self.live,
            reads: self.reads,
            renames: self.renames,
            overwrites: self.overwrites,
        };
        let seed = self.seed.unwrap_or(0);
        let mut noise = Pattern::new(TEMP_PAGE_BYTES_MAX, seed);
        let scratch = ScratchDir::create(&self.work, "temp")?;
        let mut random = StdRng::seed_from_u64(seed);
        let counts = life.run(scratch.path(), &mut random, &mut noise, progress)?;
        scratch.remove()?;
        Ok(counts)
    }
}

impl Action for TempFiles {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.seed.get_or_insert(context.seed_for("temporary files"));
        context.resolve(&mut self.work)
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        make_directory(&self.work)?;
        let counts = self.run(context.scale, progress)?;
        let mut table = Table::new(&["figure", "value"]);
        let mut outcome = Outcome::rows(counts.files);
        for (name, figure) in counts.figures() {
            table.push(vec![name.into(), figure.into()]);
            outcome = outcome.with(name, figure);
        }
        outcome.table = Some(table);
        Ok(outcome)
    }
}
