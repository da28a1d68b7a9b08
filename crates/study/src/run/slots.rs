//! The built-in launcher: processes of this machine, so many at once on each logical node.

use std::collections::VecDeque;
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::Clock;
use forebay_process::{Accounting, Child, Ended, end_all, wait_any};

use super::launcher::{Event, Launch, Launcher};
use crate::error::{Error, Result};
use crate::record::{Exit, Usage};

/// How long jobs that are to end may clear up before they are killed.
const GRACE: Duration = Duration::from_secs(10);

/// Keeps up to `concurrent` jobs running on each logical node, in the order in which they came.
pub struct Slots {
    clock: Arc<dyn Clock>,
    accounting: Arc<Accounting>,
    concurrent: u32,
    nodes: Vec<Node>,
    /// Started and not yet told.
    started: Vec<Event>,
}

/// One logical node.
#[derive(Default)]
struct Node {
    waiting: VecDeque<Launch>,
    running: Vec<(usize, Child)>,
}

impl Slots {
    /// Slots on this machine; [`Launcher::set_slots`] says how many.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, accounting: Arc<Accounting>) -> Slots {
        Slots { clock, accounting, concurrent: 1, nodes: Vec::new(), started: Vec::new() }
    }

    /// Starts what has room.
    fn fill(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            while node.running.len() < self.concurrent as usize {
                let Some(launch) = node.waiting.pop_front() else { break };
                let child = start(&launch, &self.accounting)?;
                self.started.push(Event::Started {
                    number: launch.number,
                    at: self.clock.instant(),
                    pid: Some(child.id()),
                });
                node.running.push((launch.number, child));
            }
        }
        Ok(())
    }

    /// Takes those that have ended out of their slots.
    fn reap(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for node in &mut self.nodes {
            let mut at = 0;
            while at < node.running.len() {
                match node.running[at].1.try_wait()? {
                    None => at += 1,
                    Some(ended) => {
                        let ended = ended.clone();
                        let (number, _) = node.running.swap_remove(at);
                        events.push(event(number, &ended, self.clock.instant()));
                    }
                }
            }
        }
        Ok(events)
    }
}

impl Launcher for Slots {
    fn set_slots(&mut self, nodes: u32, concurrent: u32) {
        self.concurrent = concurrent;
        self.nodes.resize_with(nodes as usize, Node::default);
    }

    fn submit(&mut self, launch: Launch) -> Result<()> {
        let node = launch.node as usize % self.nodes.len().max(1);
        self.nodes[node].waiting.push_back(launch);
        self.fill()
    }

    fn wait(&mut self, limit: Duration) -> Result<Vec<Event>> {
        let mut events = std::mem::take(&mut self.started);
        if events.is_empty() {
            let children = self.nodes.iter().flat_map(|node| &node.running);
            wait_any(children.map(|(_, child)| child), limit)?;
        }
        events.extend(self.reap()?);
        self.fill()?;
        Ok(events)
    }

    fn stop(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.started);
        let (mut numbers, mut children) = (Vec::new(), Vec::new());
        for node in &mut self.nodes {
            for (number, child) in node.running.drain(..) {
                numbers.push(number);
                children.push(child);
            }
        }
        // Whoever cannot be waited for is killed when dropped.
        let _ = end_all(&mut children, GRACE);
        let at = self.clock.instant();
        for (number, mut child) in numbers.into_iter().zip(children) {
            events.push(match child.wait() {
                Ok(ended) => event(number, ended, at),
                Err(_) => not_started(number, at),
            });
        }
        for node in &mut self.nodes {
            events.extend(node.waiting.drain(..).map(|launch| not_started(launch.number, at)));
        }
        events
    }
}

fn start(launch: &Launch, accounting: &Arc<Accounting>) -> Result<Child> {
    let output = File::create(&launch.output).map_err(Error::io("write", &launch.output))?;
    let errors = output.try_clone().map_err(Error::io("write", &launch.output))?;
    let mut command = Command::new(&launch.command[0]);
    command.args(&launch.command[1..]).stdin(Stdio::null()).stdout(output).stderr(errors);
    Ok(Child::spawn(command, accounting)?)
}

fn event(number: usize, ended: &Ended, at: Instant) -> Event {
    let (exit, last) = (Exit::of(ended, ""), ended.counters);
    Event::Ended { number, at, exit, host: None, usage: Box::new(ended.usage), last }
}

fn not_started(number: usize, at: Instant) -> Event {
    let usage = Box::new(Usage::default());
    Event::Ended { number, at, exit: Exit::NotStarted, host: None, usage, last: None }
}
