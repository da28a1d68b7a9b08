//! Checkpoints that other hosts copy: who asked, and which host is at it. Nothing here lasts: a job whose question is lost with
//! its controller asks again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;

use forebay_grid::vocabulary::{HostName, Target, TaskId, UserName};

use crate::checkpoint::Number;
use crate::engine::Engine;
use crate::protocol::{Answer, Order, Refusal, RefusalKind};

/// The most copies that are under way at a time.
const OPEN_MAX: usize = 4096;

struct Keep {
    task: TaskId,
    host: HostName,
    connection: u64,
    reply: Sender<Answer>,
}

/// All copies that are under way.
#[derive(Default)]
pub(crate) struct Keeps {
    next: u64,
    open: BTreeMap<u64, Keep>,
}

/// Who asks, on which connection, and where the answer goes.
pub(crate) type Asker<'a> = (&'a UserName, u64, &'a Sender<Answer>);

impl Keeps {
    /// A job wants a checkpoint to be copied: the order for the host that does so.
    ///
    /// # Errors
    /// Why none can.
    pub fn ask(
        &mut self,
        engine: &dyn Engine,
        hosts: &BTreeSet<HostName>,
        (user, connection, reply): Asker<'_>,
        (target, number): (Target, Number),
    ) -> Result<(HostName, Order), Refusal> {
        let owner = engine.owner(target.job).filter(|owner| engine.may_see(user, owner));
        let owner = owner.ok_or_else(|| Refusal::no_job(target))?.clone();
        let task = TaskId { job: target.job, index: target.index.unwrap_or(0) };
        let refused = |kind, reason: &str| Err(Refusal::new(kind, reason));
        let run = engine.place_of(task);
        let Some((job_host, requeues)) = run else {
            return refused(RefusalKind::WrongState, "the job is not on a host");
        };
        if self.open.len() >= OPEN_MAX || self.open.values().any(|keep| keep.task == task) {
            return refused(RefusalKind::TooMany, "other checkpoints are being copied");
        }
        let others: Vec<&HostName> = hosts.iter().filter(|host| **host != job_host).collect();
        // Who asks again gets another host sooner or later: the one before may have no place for checkpoints. Mixed, so that jobs
        // which ask in turn do not get the same one each time.
        let mixed = (task.job.0 ^ self.next).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let chosen = mixed.checked_rem(others.len() as u64);
        let Some(place) = chosen.and_then(|place| usize::try_from(place).ok()) else {
            return refused(RefusalKind::WrongState, "no other host is connected");
        };
        let (host, query) = (others[place].clone(), self.next);
        self.next += 1;
        let reply = reply.clone();
        self.open.insert(query, Keep { task, host: host.clone(), connection, reply });
        let order = Order::KeepCheckpoint { query, task, requeues, user: owner, number, job_host };
        Ok((host, order))
    }

    /// A host has copied a checkpoint, or could not.
    pub fn kept(&mut self, host: &HostName, query: u64, result: Result<(), String>) {
        if self.open.get(&query).is_none_or(|keep| keep.host != *host) {
            return;
        }
        let Some(keep) = self.open.remove(&query) else { return };
        let answer = match result {
            Ok(()) => Answer::Here,
            Err(reason) => Answer::refused(RefusalKind::Failed, format!("{host}: {reason}")),
        };
        // Whoever asked may be gone.
        let _ = keep.reply.send(answer);
    }

    /// A host has left.
    pub fn left(&mut self, host: &HostName) {
        let gone = |keep: &Keep| keep.host == *host;
        for keep in self.open.values().filter(|keep| gone(keep)) {
            let reason = format!("{host} disconnected meanwhile");
            let _ = keep.reply.send(Answer::refused(RefusalKind::Failed, reason));
        }
        self.open.retain(|_, keep| !gone(keep));
    }

    /// A connection on which somebody may have asked has ended.
    pub fn forget(&mut self, connection: u64) {
        self.open.retain(|_, keep| keep.connection != connection);
    }
}
