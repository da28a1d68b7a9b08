//! The whole protocol in a world that a seed decides: nodes, clocks, network, etcd, stores, and what goes wrong with them.
//!
//! Nothing but the seed decides what happens: a run repeats exactly. docs/protocol.md says what is checked.

mod asking;
mod clock;
mod delegating;
mod etcd;
mod files;
mod here;
mod history;
mod machine;
mod network;
mod plan;
mod serving;
mod store;
mod tests;
mod witness;
mod world;

/// Where all chance comes from.
type Random = rand_xoshiro::Xoshiro256PlusPlus;
