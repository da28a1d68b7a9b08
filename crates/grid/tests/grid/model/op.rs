//! What may happen.

use proptest::collection::vec;
use proptest::prelude::*;

/// One thing that happens. Numbers choose among what there is, by remainder.
#[derive(Clone, Debug)]
pub enum Op {
    Submit(Job),
    Kill(Pick),
    Hold(Pick),
    Release(Pick),
    Requeue(Pick),
    /// Its user changes a job.
    Modify {
        job: u8,
        to: Job,
        what: u8,
    },
    /// An agent that is connected tells of the processes that it has started.
    Confirm(u8),
    /// A process ends.
    Exit {
        host: u8,
        process: u8,
        code: u8,
    },
    /// A connection breaks and both sides know.
    Disconnect(u8),
    /// A connection breaks and nobody is told.
    Partition(u8),
    /// An agent connects again.
    Reconnect(u8),
    /// A host goes down with all processes, and comes back.
    Reboot(u8),
    /// A host can start nothing.
    Sicken(u8),
    /// It can again.
    Heal(u8),
    /// An agent reports a load in percent.
    Load {
        host: u8,
        percent: u8,
    },
    /// Seconds pass.
    Pass(u16),
    /// The controller is killed and starts again from its journal.
    Restart,
    Configure(u8),
    SwitchQueue {
        queue: u8,
        verb: u8,
    },
    SwitchHost {
        host: u8,
        switch: u8,
    },
    /// An old message comes once more.
    Stale(u8),
    /// Work areas of finished tasks are removed.
    Clean,
}

/// Chooses a job, and a task of it or all.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    pub job: u8,
    pub task: Option<u8>,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub user: u8,
    pub queue: u8,
    pub slots: u8,
    pub memory: u8,
    /// More than one makes an array.
    pub tasks: u8,
    pub throttle: u8,
    pub hosts: u8,
    /// Condition on earlier jobs, counted back.
    pub depends: Option<(u8, u8, u8)>,
    pub priority: i8,
    pub rerunnable: bool,
    pub requeue: bool,
    pub limit: u8,
    pub held: bool,
    /// Twenties of seconds from now.
    pub begin: u8,
    pub licences: u8,
    pub exclusive: bool,
}

fn job() -> impl Strategy<Value = Job> {
    let sizes = (0..3_u8, 0..3_u8, 1..5_u8, 0..4_u8, 1..7_u8, 0..3_u8, 0..6_u8);
    let depends = prop::option::weighted(0.3, (0..4_u8, 0..4_u8, 0..6_u8));
    let rest =
        (-2..3_i8, any::<bool>(), prop::bool::weighted(0.3), 0..4_u8, prop::bool::weighted(0.1));
    let begin = prop_oneof![4 => Just(0), 1 => 1..4_u8];
    let licences = prop_oneof![3 => Just(0), 1 => 1..4_u8];
    let more = (begin, licences, prop::bool::weighted(0.1));
    (sizes, depends, rest, more).prop_map(|(sizes, depends, rest, more)| {
        let (begin, licences, exclusive) = more;
        let (user, queue, slots, memory, tasks, throttle, hosts) = sizes;
        let (priority, rerunnable, requeue, limit, held) = rest;
        Job {
            user,
            queue,
            slots,
            memory,
            tasks,
            throttle,
            hosts,
            depends,
            priority,
            rerunnable,
            requeue,
            limit,
            held,
            begin,
            licences,
            exclusive,
        }
    })
}

fn pick() -> impl Strategy<Value = Pick> {
    (any::<u8>(), prop::option::of(any::<u8>())).prop_map(|(job, task)| Pick { job, task })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => job().prop_map(Op::Submit),
        2 => pick().prop_map(Op::Kill),
        2 => pick().prop_map(Op::Hold),
        2 => pick().prop_map(Op::Release),
        2 => pick().prop_map(Op::Requeue),
        3 => (any::<u8>(), job(), 0..7_u8).prop_map(|(job, to, what)| Op::Modify { job, to, what }),
        8 => any::<u8>().prop_map(Op::Confirm),
        12 => (any::<u8>(), any::<u8>(), prop_oneof![3 => Just(0), 1 => Just(1), 1 => 98..100_u8])
            .prop_map(|(host, process, code)| Op::Exit { host, process, code }),
        1 => any::<u8>().prop_map(Op::Disconnect),
        1 => any::<u8>().prop_map(Op::Partition),
        3 => any::<u8>().prop_map(Op::Reconnect),
        1 => any::<u8>().prop_map(Op::Reboot),
        1 => any::<u8>().prop_map(Op::Sicken),
        2 => any::<u8>().prop_map(Op::Heal),
        3 => (any::<u8>(), 0..200_u8).prop_map(|(host, percent)| Op::Load { host, percent }),
        4 => prop_oneof![3 => 1..30_u16, 1 => 30..300_u16, 1 => 300..30_000_u16].prop_map(Op::Pass),
        1 => Just(Op::Restart),
        1 => any::<u8>().prop_map(Op::Configure),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(queue, verb)| Op::SwitchQueue { queue, verb }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(host, switch)| Op::SwitchHost { host, switch }),
        2 => any::<u8>().prop_map(Op::Stale),
        1 => Just(Op::Clean),
    ]
}

pub fn sequences() -> impl Strategy<Value = Vec<Op>> {
    vec(op(), 1..120)
}
