//! The crate's tests of whole grids, in one program: it is linked once.

mod pieces;
mod random;
mod support;

mod advance;
mod areas;
mod backfill_model;
mod bytes;
mod config;
mod dispatch;
mod features;
mod flow_model;
mod flows;
mod groups;
mod impossible;
mod inputs;
mod lifecycle;
mod limits;
mod model;
mod modify;
mod pairs;
mod parsers;
mod preemption;
mod profiles;
mod reservation;
mod resources;
mod services;
mod singleton;
mod slurm;
mod times;
mod trials;
mod warnings;
