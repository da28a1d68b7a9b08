//! What several tests of the controller say to it.

use forebay_grid::config::HostEngine;
use forebay_grid::event::{Joined, Memory};
use forebay_grid::hosts::Facts;

/// A host joins that runs nothing.
pub fn joined(host: &str, cores: u32, memory: Memory) -> Box<Joined> {
    Box::new(Joined {
        host: host.parse().unwrap(),
        facts: Facts { cores, memory_bytes: 1 << 30 },
        memory,
        engine: HostEngine::Agent,
        runs: Vec::new(),
    })
}
