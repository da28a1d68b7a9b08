//! The processes of a job, from its first one to the last that is left: started, signalled, accounted for, ended.

use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::sync::Arc;

use anyhow::Result;
use forebay_base::Usage;
use forebay_grid::spec::Exit;
use forebay_process::child::{Program, enter_group};
use forebay_process::descendants::{self, Orphans};
use forebay_process::last_resort::Bond;
use forebay_process::user::Account;
use forebay_process::{Accounting, Child, Ended, session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::GRACE;
use super::beginning::end_by_force;
use super::fault::Fault;
use super::orders::{WARN, meant};
use super::program::{Channels, become_job, command, take_terminal};
use super::progress::Progress;
use super::sampler::Seen;
use super::warn::Warn;
use crate::cgroup::Group;
use crate::run::Task;
use crate::terminal::job::{Caller, Ends, Order};

/// A job that was started, and the streams that its client has not been told of yet.
pub type Begun = (Job, Option<(Caller, Ends)>);

/// The processes of the job: a group, or a session if it has a terminal.
pub struct Job {
    /// Its first process.
    pub child: Child,
    /// Its session, if it has one of its own.
    pub session: Option<Pid>,
    /// Its control group, if it has one.
    pub group: Option<Arc<Group>>,
    orphans: Orphans,
    /// How it is warned that its end is near, if it wants to be.
    warn: Option<Warn>,
    /// Has the kernel kill its process group when this process has ended.
    bond: Option<Bond>,
}

impl Job {
    /// Starts it.
    ///
    /// # Errors
    /// Why it does not run.
    pub fn start(
        task: &Task,
        account: &Account,
        group: Option<Arc<Group>>,
        caller: Option<Caller>,
        accounting: &Arc<Accounting>,
    ) -> Result<Begun, Fault> {
        let orphans = Orphans::default();
        let warn = Warn::of(task);
        let mut command = command(task, account)?;
        let Some(caller) = caller else {
            let progress = Progress::default();
            let mut become_job = become_job(task, account, Channels::Files, &progress)?;
            let mut prepare = || {
                group.iter().try_for_each(|group| group.enter_legacy())?;
                become_job()
            };
            let program = Program::of(&command).map_err(anyhow::Error::from)?;
            let folder = group.as_ref().map(|group| group.as_fd());
            // SAFETY: it makes system calls of its thread on memory that was prepared before, and allocates
            // nothing.
            let child = unsafe { Child::start(&program, &mut prepare, folder, accounting) };
            let child = child.map_err(|error| progress.name(task, error))?;
            return Ok((Job { child, session: None, group, orphans, warn, bond: None }, None));
        };
        if let Some(group) = group.clone() {
            let enter = move || {
                enter_group(group.as_fd())?;
                Ok(group.enter_legacy()?)
            };
            // SAFETY: as above. The group is kept by the parent, so that nothing is freed in the child.
            unsafe { command.pre_exec(enter) };
        }
        // SAFETY: as above.
        unsafe {
            command.pre_exec(become_job(task, account, Channels::Given, &Progress::default())?)
        };
        let ends = caller.give_streams(&mut command, account).map_err(Fault::Job)?;
        let (child, session) = match ends {
            Ends::Pipes(_) => (Child::spawn(command, accounting)?, None),
            Ends::Terminal(_) => {
                // SAFETY: between fork and exec it makes system calls only.
                unsafe { command.pre_exec(take_terminal) };
                let child = Child::spawn_leader(command, accounting)?;
                let session = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                (child, session)
            }
        };
        Ok((Job { child, session, group, orphans, warn, bond: None }, Some((caller, ends))))
    }

    /// From now on the kernel kills its process group if this process ends before it. Where that cannot be had, it kills the first process
    /// alone, as at the beginning.
    pub fn bind(&mut self) {
        let bond = self.first().map(Bond::to_group).transpose();
        self.bond = bond.unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel does not kill the group of a job with its shim");
            None
        });
    }

    pub fn has_ended(&self) -> bool {
        self.ends_within(Timespec::default())
    }

    /// Whether its first process ends before so much time has passed or a signal comes, which may be that of its end.
    pub fn ends_within(&self, time: Timespec) -> bool {
        let mut ends = [PollFd::new(&self.child, PollFlags::IN)];
        match poll(&mut ends, Some(&time)) {
            Err(Errno::INTR) => self.has_ended(),
            ended => ended.is_ok_and(|ended| ended > 0),
        }
    }

    /// Ends what is left of it, and says how it ended.
    pub fn reap(&mut self) -> Result<Ended> {
        self.end_left();
        Ok(self.child.wait()?.clone())
    }

    /// Ends all of it but the first process. As long as that is not reaped, nobody else can have the number of its session.
    pub fn end_left(&mut self) {
        self.group.iter().for_each(|group| group.end());
        self.session.into_iter().for_each(session::end);
        self.first().into_iter().for_each(|first| self.orphans.end(first));
    }

    /// What all of it used. The kernel says of the first process what it and the children that it waited for used; the group
    /// has counted everything. Without one there are the orphans, and what was seen while it ran.
    pub fn usage(&self, ended: &Ended, seen: &Seen) -> Usage {
        let mut usage = ended.usage;
        match self.group.as_ref().and_then(|group| group.processor()) {
            Some(processor) => {
                // The kernel splits the time of a group anew, so its parts may be less than those of a process in it.
                let all = processor.user_seconds + processor.system_seconds;
                let others = (all - usage.cpu_seconds()).max(0.0);
                let user = if all > 0.0 { processor.user_seconds / all } else { 0.0 };
                usage.user_seconds += others * user;
                usage.system_seconds += others * (1.0 - user);
            }
            None => {
                usage.user_seconds += self.orphans.user_seconds;
                usage.system_seconds += self.orphans.system_seconds;
                // Children of whoever ignores their ends are counted by nobody else.
                usage.user_seconds += (seen.processor_seconds() - usage.cpu_seconds()).max(0.0);
            }
        }
        let largest = usage.peak_memory_bytes.unwrap_or(0).max(self.orphans.memory_bytes);
        usage.peak_memory_bytes = Some(largest.max(seen.memory_bytes));
        usage.io_pressure_seconds =
            self.group.as_ref().and_then(|group| group.io_pressure_seconds());
        usage
    }

    /// How it ended, with the limit that it ran into. A job that succeeds has coped with being refused processes.
    pub fn exit(&self, ended: &Ended) -> Exit {
        let exit = exit_of(ended);
        let Some(group) = &self.group else { return exit };
        if let Some(bytes) = group.exceeded() {
            return Exit::MemoryLimit(bytes);
        }
        match exit {
            // Others than the job itself kill by that signal, and what they mean by it counts.
            Exit::Code(0) | Exit::Signal(9) => exit,
            _ => match group.refused() {
                Some(limit) => Exit::ProcessLimit { value: exit.value(), limit },
                None => exit,
            },
        }
    }

    /// Its first process, which has the number of its group.
    fn first(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn signal(&self, signal: Signal) {
        match self.session {
            Some(session) => session::signal(session, signal),
            None => {
                if signal == Signal::KILL {
                    self.group.iter().for_each(|group| group.kill());
                }
                self.child.signal(signal);
                self.first()
                    .into_iter()
                    .for_each(|group| descendants::signal_outside(group, signal));
            }
        }
    }

    pub fn pass_on(&mut self, signal: i32) {
        match signal {
            SIGTERM => self.end_gently(&[Signal::TERM]),
            SIGINT => self.signal(Signal::KILL),
            SIGUSR1 => self.signal(Signal::STOP),
            SIGUSR2 => self.signal(Signal::CONT),
            SIGCHLD => self.first().into_iter().for_each(|first| self.orphans.reap(first)),
            other if other == WARN.as_raw() => self.warn(),
            other => {
                if let Some(signal) = meant(other) {
                    self.signal(signal);
                }
            }
        }
    }

    /// Warns it that its end is near, as it wants.
    fn warn(&self) {
        let (Some(warn), Some(first)) = (self.warn, self.first()) else { return };
        if !warn.reach_some(first) {
            self.signal(warn.signal);
        }
    }

    pub fn obey(&self, order: &Order) {
        match order {
            Order::Signal(signal) => self.signal(*signal),
            Order::Hangup => self.end_gently(&[]),
        }
    }

    /// Gives the job a while to end. Shells at a terminal ignore SIGTERM and end by SIGHUP; without its
    /// client any interactive job does.
    fn end_gently(&self, signals: &[Signal]) {
        signals.iter().for_each(|signal| self.signal(*signal));
        if signals.is_empty() || self.session.is_some() {
            self.signal(Signal::HUP);
        }
        // A process that is suspended can end only when it goes on.
        self.signal(Signal::CONT);
        let end = || {
            std::thread::sleep(GRACE);
            end_by_force();
        };
        if std::thread::Builder::new().spawn(end).is_err() {
            // Nobody could end it later.
            self.signal(Signal::KILL);
        }
    }
}

fn exit_of(ended: &Ended) -> Exit {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (ended.status.code(), ended.status.signal()) {
        (Some(code), _) => Exit::Code(byte(code)),
        (None, signal) => Exit::Signal(byte(signal.unwrap_or(0))),
    }
}
