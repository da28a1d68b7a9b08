//! Several nodes: how machines become a cluster, one namespace on all of them, and what happens when one fails.

mod cached;
mod delegated;
mod disks;
mod doctor;
mod etcd;
mod faults;
mod handover;
mod membership;
mod monitor;
mod names;
mod native;
mod near;
mod operations;
mod places;
mod rounds;
mod shared_disks;
mod shared_file;
mod stores;
mod suites;
mod thrash;
