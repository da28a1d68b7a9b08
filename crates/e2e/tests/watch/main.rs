//! Watching: pages of metrics of live daemons, and a real Prometheus that scrapes them with the example's configuration.

mod attribution;
mod fixture;
mod metrics;
mod prometheus;
