//! The connection to the controller: made again and again, watched for silence, given up when it breaks.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use forebay_grid::event::{Joined, RunReport, RunStatus};
use forebay_grid::hosts::Facts;
use forebay_grid::vocabulary::{Attempt, TaskId};
use serde_json::Value;

use super::{Agent, Input, LINGER_MS, Status, Unsent, load, may_wait};
use crate::cgroup::Places;
use crate::protocol::socket::{self, Reader};
use crate::protocol::{Ask, Containment, Order, Report, Using, unknown_word};
use crate::run::{Run, uptime_ms};
use crate::trust;

const CONNECT_PAUSE_MAX_MS: u64 = 2_000;

/// How long a controller may take to answer in any case: it may be busy.
const UNHEARD_MIN_MS: u64 = 10_000;

/// The first order of a connection. Instead of it a controller, or a relay, may say why there is none.
fn first_order(reader: &mut Reader) -> Result<Option<Order>> {
    let Some(value) = reader.read::<Value>()? else { return Ok(None) };
    if let Some(reason) = value.get("answer").and(value.get("reason")).and_then(Value::as_str) {
        tracing::warn!("this agent is not served: {reason}");
    }
    Ok(serde_json::from_value(value).map(Some)?)
}

/// Reports an order with a word that only later versions know: its job cannot start here before the agent is one of them.
fn note_not_understood(error: &anyhow::Error) {
    if let Some(word) = unknown_word(&format!("{error:#}")) {
        tracing::error!(
            "an order of the controller has \"{word}\", which this agent does not know, so it is probably older than the controller: \
             install the same version of Forebay on all hosts and restart this agent"
        );
    }
}

impl Agent {
    /// Begins anew with a controller that answers nothing: half the lease is left to find another way to it.
    pub(super) fn rejoin_if_unheard(&mut self, now_ms: u64) {
        let patience = (self.lease_ms / 2).max(UNHEARD_MIN_MS);
        if self.sent_ms.front().is_some_and(|sent| sent + patience <= now_ms)
            && self.stream.is_some()
        {
            tracing::warn!("the controller has not answered for {patience} ms");
            self.disconnect();
        }
    }

    /// Connects to the controller and says what is here. If it does not answer, it is asked again later.
    pub(super) fn connect(&mut self) {
        let Ok(stream) = socket::connect(&self.settings.home.socket()) else { return };
        if let Err(error) = trust::check_peer(&stream) {
            tracing::error!("this is not the controller of this grid: {error:#}");
            self.next_connect_ms = uptime_ms() + CONNECT_PAUSE_MAX_MS;
            return;
        }
        let Ok(reading) = stream.try_clone() else { return };
        let _ = stream.set_write_timeout(Some(Duration::from_secs(10)));
        self.connection += 1;
        self.sent_ms.clear();
        self.sent_ms.push_back(uptime_ms());
        let runs = self.runs.iter().map(|((task, attempt), status)| RunReport {
            task: *task,
            attempt: *attempt,
            status: match status {
                Status::Waiting => RunStatus::Waiting,
                Status::Running => RunStatus::Running,
                Status::Stopped => RunStatus::Stopped,
                Status::Ended(end) => end.clone().status(),
            },
        });
        // Slurm knows how much memory its nodes have.
        let memory_bytes = if self.slurm.is_some() { 0 } else { load::memory_bytes() };
        let joined = Box::new(Joined {
            host: self.settings.name.clone(),
            facts: Facts { cores: self.settings.slots, memory_bytes },
            memory: self.memory,
            runs: runs.collect(),
        });
        if socket::write(&stream, &Ask::Join { joined }).is_err() {
            return;
        }
        let (connection, inputs) = (self.connection, self.inputs.clone());
        let read = move || {
            let mut reader = Reader::of_orders(reading);
            let mut next = first_order(&mut reader);
            loop {
                if let Err(error) = &next {
                    note_not_understood(error);
                }
                let input = match next {
                    Ok(Some(order)) => Input::Order { connection, order },
                    Ok(None) | Err(_) => Input::Lost { connection },
                };
                let last = matches!(input, Input::Lost { .. });
                if inputs.send(input).is_err() || last {
                    return;
                }
                next = reader.read::<Order>();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("orders".to_owned()).spawn(read) {
            tracing::warn!(%error, "the thread that reads the controller's orders cannot start");
            return;
        }
        self.stream = Some(stream);
        // A controller that ends each connection at once is not asked ever faster.
        self.next_connect_ms = uptime_ms() + self.connect_pause_ms;
        self.connect_pause_ms = (2 * self.connect_pause_ms).min(CONNECT_PAUSE_MAX_MS);
        tracing::info!("connected to the controller");
    }

    /// Has the controller told as soon as nothing else lies ready, or a little later if it need not know at once.
    pub(super) fn report(&mut self, report: Report) {
        if self.stream.is_some() {
            let linger_ms = if may_wait(&report) { LINGER_MS } else { 0 };
            self.unsent.add(report, uptime_ms() + linger_ms);
        }
    }

    /// Tells the controller what it has not been told yet.
    pub(super) fn send_reports(&mut self) {
        let Unsent { reports, .. } = std::mem::take(&mut self.unsent);
        let Some(stream) = self.stream.as_ref().filter(|_| !reports.is_empty()) else { return };
        if let Err(error) = socket::write_all(stream, &reports) {
            tracing::warn!("the controller is unreachable: {error:#}");
            self.disconnect();
        }
    }

    /// Tells what the jobs use now.
    pub(super) fn report_use(&mut self) {
        let containment = match self.slurm {
            Some(_) => Containment::Slurm,
            None => Places::containment(self.groups.as_ref()),
        };
        let notes = self.slurm.as_ref().map(|slurm| &slurm.said);
        let noted = notes.into_iter().flat_map(|said| said.keys());
        let mut known: BTreeSet<_> =
            self.using.keys().chain(self.area_bytes.keys()).chain(noted).copied().collect();
        let services: BTreeSet<_> = Run::with_health(&self.folder).into_iter().collect();
        known.extend(services.iter().filter(|run| self.is_alive(run)));
        let one = |run: (TaskId, Attempt)| Using {
            task: run.0,
            attempt: run.1,
            usage: self.using.get(&run).copied(),
            area_bytes: self.area_bytes.get(&run).copied(),
            health: services
                .contains(&run)
                .then(|| Run::of(&self.folder, run.0, run.1).health())
                .flatten(),
            note: notes.and_then(|said| said.get(&run)).cloned(),
        };
        let runs = known.into_iter().map(one).collect();
        self.report(Report::Using { containment, runs });
    }

    fn is_alive(&self, run: &(TaskId, Attempt)) -> bool {
        matches!(self.runs.get(run), Some(Status::Running | Status::Stopped))
    }

    pub(super) fn disconnect(&mut self) {
        self.unsent = Unsent::default();
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}
