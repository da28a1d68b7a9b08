//! Runs the flights program in a scratch directory: `flights [directory] [times]`.

use std::error::Error;
use std::io::{self, Write as _};
use std::path::PathBuf;

use forebay_base::time::SystemClock;
use forebay_workload::flights;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let rows_times = arguments.next().map(|times| times.parse()).transpose()?;
    let scratch = forebay_analytics::scratch::ScratchDir::create(&parent, "flights-example")?;
    let [data, work, util] = ["data", "work", "util"].map(|name| scratch.path().join(name));
    for directory in [&data, &work, &util] {
        std::fs::create_dir(directory)?;
    }
    let config = flights::Config {
        rows_times,
        ..flights::Config::new(flights::find_csv()?, data, work, util)
    };
    let report = flights::run(&config, &SystemClock, &mut |step| eprintln!("{step}"))?;
    report.print(&mut io::stdout().lock())?;
    io::stdout().flush()?;
    Ok(())
}
