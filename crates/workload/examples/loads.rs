//! Runs every load once in a directory, small, and prints what it measured: `loads [directory]`.

use std::error::Error;
use std::path::PathBuf;

use forebay_base::ByteSize;
use forebay_base::time::SystemClock;
use forebay_workload::load::{Calibration, Metadata, Sequential, Storm};

fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let sequential = Sequential { total_bytes: ByteSize::gib(1), ..Sequential::default() };
    println!("{:#?}", sequential.run(&target, &SystemClock, None)?);
    println!("{:#?}", Storm::default().run(&target, &SystemClock)?);
    println!("{:#?}", Calibration::default().run(&target, &SystemClock, None)?);
    println!("{:#?}", Metadata::default().run(&target, &SystemClock, None)?);
    Ok(())
}
