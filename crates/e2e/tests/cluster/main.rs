//! Several nodes: how machines become a cluster, one namespace on all of them, and what happens when one fails.

mod cached;
mod faults;
mod membership;
mod names;
mod suites;
