//! The connection to the controller: made again and again, watched for silence, given up when it breaks.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_grid::event::{Joined, KillReason, RunReport, RunStatus};
use forebay_grid::hosts::Facts;
use forebay_grid::vocabulary::{Attempt, Moment, TaskId};
use serde::Deserialize;
use serde_json::Value;

use super::{Agent, Input, LINGER_MS, Status, Unsent, load, may_wait};
use crate::cgroup::Places;
use crate::protocol::socket::{self, Reader, Unknown};
use crate::protocol::{Ask, Containment, Order, Report, Using, unknown_word};
use crate::run::{End, Run, uptime_ms};
use crate::trust;

const CONNECT_PAUSE_MAX_MS: u64 = 2_000;

/// How long a controller may take to answer in any case: it may be busy.
const UNHEARD_MIN_MS: u64 = 10_000;

/// The next thing that comes over a connection.
fn next(reader: &mut Reader, connection: u64) -> Input {
    let unknown = match reader.read_or_unknown::<Order>() {
        Ok(Some(Ok(order))) => return Input::Order { connection, order },
        Ok(Some(Err(unknown))) => unknown,
        Ok(None) | Err(_) => return Input::Lost { connection },
    };
    // In place of orders a controller, or a relay, may say why there are none.
    let reason = unknown.value.get("answer").and(unknown.value.get("reason"));
    if let Some(reason) = reason.and_then(Value::as_str) {
        tracing::warn!("this agent is not served: {reason}");
        return Input::Lost { connection };
    }
    Input::Unknown { connection, unknown }
}

/// What can be read of an order of a later controller that concerns one start of a task.
#[derive(Deserialize)]
struct Concerned {
    order: String,
    task: TaskId,
    attempt: Attempt,
}

/// Whether two warnings of a start are of one end. Of one whose end is not known nobody can tell, and none is passed on twice.
fn is_same_end(one: Option<Moment>, other: Option<Moment>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
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
        self.is_granted = false;
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
            engine: self.settings.engine,
            runs: runs.collect(),
        });
        if socket::write(&stream, &Ask::Join { joined }).is_err() {
            return;
        }
        let (connection, inputs) = (self.connection, self.inputs.clone());
        let read = move || {
            let mut reader = Reader::of_orders(reading);
            loop {
                let input = next(&mut reader, connection);
                let last = matches!(input, Input::Lost { .. });
                if inputs.send(input).is_err() || last {
                    return;
                }
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

    /// Notes a warning of a run. Whether it is one to be left out: before its first grant on a connection the controller sends those again that
    /// may have been lost with the one before.
    pub(super) fn has_warned(&mut self, run: (TaskId, Attempt), end: Option<Moment>) -> bool {
        self.warned.retain(|warned, _| self.runs.contains_key(warned));
        let before = self.warned.insert(run, end);
        !self.is_granted && before.is_some_and(|before| is_same_end(before, end))
    }

    /// Does what it can about an order that is not understood: its controller is probably of a later version. A job that was to
    /// start is reported as not started, and one that was to end for an unknown reason ends.
    pub(super) fn take_unknown(&mut self, unknown: Unknown) {
        let Unknown { value, reason } = unknown;
        let reason = match unknown_word(&reason) {
            Some(word) => format!(
                "the agent of this host does not know \"{word}\", so it is probably older than the controller: install the same \
                 version of Forebay on all hosts and restart the agent"
            ),
            None => format!("the agent of this host did not understand the order: {reason}"),
        };
        let concerned = serde_json::from_value::<Concerned>(value).ok();
        match concerned.as_ref().map(|concerned| concerned.order.as_str()) {
            Some("launch") => tracing::error!("a job was not started: {reason}"),
            _ => tracing::error!("an order was not carried out: {reason}"),
        }
        let Some(Concerned { order, task, attempt }) = concerned else { return };
        match order.as_str() {
            "launch" if !self.runs.contains_key(&(task, attempt)) => {
                self.note_end(task, attempt, End::unable(&anyhow::Error::msg(reason)));
            }
            "kill" => self.obey(Order::Kill { task, attempt, why: KillReason::Asked }),
            _ => {}
        }
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
        // Of those whose shims were killed nobody else removes it.
        for (task, attempt) in services.iter().filter(|run| !self.runs.contains_key(run)) {
            Run::of(&self.folder, *task, *attempt).forget_health();
        }
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
        let missing = self.missing.clone();
        self.report(Report::Using { containment, runs, missing });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_end_is_warned_of_anew_and_an_unknown_one_is_taken_for_the_same() {
        let [one, other] = [1, 2].map(|at| Some(Moment(at)));
        assert!(is_same_end(one, one) && !is_same_end(one, other));
        // An agent or a controller of an earlier version does not say it.
        assert!(is_same_end(None, one) && is_same_end(one, None) && is_same_end(None, None));
    }
}
