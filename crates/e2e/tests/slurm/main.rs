//! A grid whose jobs run through a real Slurm: slurmctld and two slurmd of the system's packages.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod daemons;
mod fixture;
mod golden;
mod jobs;
mod steps;
