//! A host that runs nothing: a job that is given to it has ended. So jobs end as fast as the controller goes, and
//! its journal holds as many as are wanted.

use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use forebay_engine::protocol::{Ask, Order, Report};
use forebay_grid::config::HostEngine;
use forebay_grid::event::{Joined, Memory};
use forebay_grid::hosts::Facts;
use forebay_grid::spec::{Exit, Usage};

use super::own::Running;

/// Its name.
pub const NAME: &str = "standin";

/// A host that is there as long as this lives.
pub struct StandIn {
    stream: UnixStream,
    answers: Option<JoinHandle<Result<()>>>,
}

impl StandIn {
    /// Joins a grid with so many slots.
    pub fn join(running: &Running, slots: u32) -> Result<StandIn> {
        let stream = running.client()?.into_stream();
        let joined = Box::new(Joined {
            host: NAME.parse().map_err(anyhow::Error::msg)?,
            facts: Facts { cores: slots, memory_bytes: 1 << 40 },
            memory: Memory::Kept,
            engine: HostEngine::Agent,
            runs: Vec::new(),
        });
        let (reading, mut out) = (stream.try_clone()?, BufWriter::new(stream.try_clone()?));
        say(&mut out, &Ask::Join { joined })?;
        out.flush()?;
        let answers = Some(std::thread::spawn(move || answer(BufReader::new(reading), out)));
        Ok(StandIn { stream, answers })
    }

    /// Leaves the grid.
    ///
    /// # Errors
    /// If it did not understand an order, or the controller went away.
    pub fn leave(mut self) -> Result<()> {
        self.stream.shutdown(std::net::Shutdown::Both)?;
        let answers = self.answers.take().context("it answers until it leaves")?;
        answers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn answer(mut orders: BufReader<UnixStream>, mut out: BufWriter<UnixStream>) -> Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if orders.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        match serde_json::from_slice(&line)? {
            Order::Launch(launch) => {
                let usage = Usage { real_seconds: 0.01, user_seconds: 0.005, ..Usage::default() };
                let (task, attempt) = (launch.task, launch.attempt);
                let (exit, usage) = (Exit::Code(0), Some(Box::new(usage)));
                say(&mut out, &Report::Exited { task, attempt, exit, usage })?;
            }
            Order::ReleaseWork { task, requeues } => {
                say(&mut out, &Report::WorkReleased { task, requeues, result: Ok(()) })?;
            }
            _ => {}
        }
        if !orders.buffer().contains(&b'\n') {
            out.flush()?;
        }
    }
}

fn say(out: &mut BufWriter<UnixStream>, value: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")?;
    Ok(())
}
