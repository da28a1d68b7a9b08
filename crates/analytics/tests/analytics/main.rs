//! The crate's tests on data sets and steps, in one program: it is linked once.

mod common;
mod published;

mod clusters_and_trees;
mod computation;
mod dataset;
mod demand;
mod derive;
mod extract;
mod generalised;
mod generate;
mod import_export;
mod join;
mod mixed;
mod series;
mod settings;
mod sort;
mod statistics;
mod tables;
