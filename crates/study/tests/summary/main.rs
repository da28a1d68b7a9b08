//! What a summary computes, checked on records made by hand, on random ones and on a stored one.

mod builder;
mod comparison;
mod fixture;
mod jobs;
mod output;
mod properties;
mod stages;
mod statistics;
mod synthetic;
mod throughput;
mod verdicts;
