//! Programs of other engines: DuckDB and Polars write Parquet files, scan, join and sort them.
//!
//! A lake is a directory of Parquet files; each is a table with the name of its file. [`ToParquet`] writes one from a CSV
//! file, [`Query`] asks a question of TPC-H's kind. Both run an engine in a Python process ([`engine`]) with as many threads
//! and as much memory as they say, whose temporary files lie in a directory of their own in `util`. The packages come from
//! [`packages`].

mod compare;
pub mod engine;
pub mod packages;
mod query;
mod to_parquet;

pub use engine::Engine;
pub use query::{Query, Question};
pub use to_parquet::ToParquet;

use std::path::Path;

use forebay_analytics::error::Result;
use forebay_analytics::scratch::{ScratchDir, make_directory};
use forebay_analytics::step::Outcome;
use forebay_analytics::table::Table;
use forebay_base::ByteSize;

use self::engine::{Job, Work};

/// Threads of an engine unless a step says otherwise: jobs fill the processors, not one job alone.
const THREADS: u32 = 1;

/// The least memory of an engine: DuckDB needs about that for one thread.
const MEMORY_MIN: ByteSize = ByteSize::mib(64);

/// Runs `work` on an engine, with a directory for its temporary files in `util`.
fn run(
    engine: Engine,
    work: &Work<'_>,
    util: &Path,
    threads: u32,
    memory: ByteSize,
) -> Result<Outcome> {
    crate::load::check_count("threads", u64::from(threads))?;
    crate::load::check_bytes("memory", memory, MEMORY_MIN.0, u64::MAX)?;
    make_directory(util)?;
    let spill = ScratchDir::create(util, "spill")?;
    let done = Job { engine, work, spill: spill.path(), threads, memory_bytes: memory.0 }.run()?;
    spill.remove()?;
    let mut table = Table::new(&["figure", "value"]);
    table.push(vec!["engine".into(), format!("{engine} {}", done.version).into()]);
    table.push(vec!["temporary files".into(), util.display().to_string().into()]);
    let mut outcome = Outcome::rows(done.rows);
    for (name, figure) in [
        ("threads", f64::from(threads)),
        ("memory_bytes", memory.0 as f64),
        ("spilled_bytes_max", done.spilled_bytes_max as f64),
        ("engine_seconds", done.seconds),
    ] {
        table.push(vec![name.into(), figure.into()]);
        outcome = outcome.with(name, figure);
    }
    outcome.table = Some(table);
    Ok(outcome)
}
