//! The grid of a cluster: agents, commands and controllers on several nodes, each in a network namespace of its own.

mod checkpoints;
mod fixture;
mod frozen;
mod inputs;
mod jobs;
mod leaders;
mod monitor;
mod services;
mod slurm;
mod storm;
mod strangers;
mod study;
mod visible;
mod web;
