//! Lists of jobs, a page at a time, so that no list takes long, however many jobs there are.
//!
//! A page has at most [`LINES_MAX`] lines, and two more for the elements of one array that wait: all that are
//! pending share a line, and all that are held, after the others of their job. What changes between two
//! pages may be seen as it was or as it is; what does not change is seen once.

use forebay_grid::task::Task;
use forebay_grid::vocabulary::{JobId, Target, TaskId, UserName};
use forebay_grid::{Grid, Job};

use super::view::{asked, view};
use crate::engine::Engine as _;
use crate::protocol::{Answer, Asked, Detail, JobView, Page, RANGES_MAX};

/// The most lines of a page.
const LINES_MAX: u32 = 1000;

/// Bytes of commands after which a page ends: a command may have two megabytes.
const COMMAND_BYTES: usize = 1 << 20;

/// Which tasks have a line of their own or share one.
#[derive(Clone, Copy)]
enum Wanted {
    Unfinished,
    All,
}

/// A page of jobs: of one, or of all that the user may see; with those that have ended or without.
pub(super) fn jobs(
    grid: &Grid,
    user: &UserName,
    (target, ended): (Option<Target>, bool),
    page: Page,
) -> Answer {
    let ledger = grid.ledger();
    let mut lines = Lines::new(grid, page);
    let Some(target) = target else {
        let wanted = if ended { Wanted::All } else { Wanted::Unfinished };
        let admin = grid.settings().admins.contains(user);
        let seen = |job: &Job| admin || grid.sees_job(user, job);
        let known = |first| ledger.jobs_from(first).filter(move |(_, job)| seen(job));
        let total = || known(JobId(0)).map(|(_, job)| count(job, wanted)).sum();
        let total = page.from.is_none().then(total);
        let latest = || {
            let most = u64::from(page.latest?);
            let mut lines = 0;
            let jobs = ledger.jobs().rev().filter(|(_, job)| seen(job));
            let within = jobs.take_while(|(_, job)| {
                let before = lines;
                lines += count(job, wanted);
                // A job with more lines than that is shown from its beginning.
                lines <= most || before == 0
            });
            within.last().map(|(job, _)| TaskId { job, index: 0 })
        };
        let from = page.from.or_else(latest).unwrap_or_default();
        for (id, job) in known(from.job) {
            let index = if id == from.job { from.index } else { 0 };
            let from = TaskId { job: id, index };
            if count(job, wanted) == 0 {
                continue;
            }
            if lines.is_full() {
                lines.next = Some(from);
                break;
            }
            if !lines.add(from, job, wanted) {
                break;
            }
        }
        return lines.answer(total);
    };
    let job = ledger.job(target.job).filter(|job| grid.sees_job(user, job));
    let Some(job) = job else { return Answer::no_job(target) };
    let Some(index) = target.index else {
        let total = page.from.is_none().then(|| count(job, Wanted::All));
        let index = page.from.map_or(0, |from| from.index);
        lines.add(TaskId { job: target.job, index }, job, Wanted::All);
        if page.from.is_none() {
            lines.tell_what_is_asked(job);
        }
        return lines.answer(total);
    };
    if job.task(index).is_none() {
        return Answer::no_job(target);
    }
    let task = TaskId { job: target.job, index };
    let asked = lines.asked_of(task, job);
    lines.push(JobView { asked, ..view(grid, task, job) });
    lines.tell_what_is_asked(job);
    lines.answer(Some(1))
}

/// All services that the user may see, a page of them: more than that are not listed.
pub(super) fn services(grid: &Grid, user: &UserName, ended: bool) -> Answer {
    let wanted = |job: &Job| {
        job.spec().service.is_some()
            && (ended || !job.tally().is_finished())
            && grid.sees_job(user, job)
    };
    let known = grid.ledger().jobs().rev().filter(|(_, job)| wanted(job));
    let mut jobs: Vec<JobView> =
        known.take(LINES_MAX as usize).map(|(id, job)| view(grid, TaskId::only(id), job)).collect();
    jobs.reverse();
    Answer::Jobs { jobs, next: None, total: None }
}

/// Rising indices as ranges, as many as are told.
fn ranges(indices: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for index in indices {
        let is_full = ranges.len() == RANGES_MAX;
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ if is_full => break,
            _ => ranges.push((index, index)),
        }
    }
    ranges
}

/// How many lines a job has.
fn count(job: &Job, wanted: Wanted) -> u64 {
    let tally = job.tally();
    let ended = match wanted {
        Wanted::All => tally.ended(),
        Wanted::Unfinished => 0,
    };
    u64::from(tally.active + ended + tally.pending.min(1) + tally.held.min(1))
}

/// A page that is being made.
struct Lines<'a> {
    grid: &'a Grid,
    most: usize,
    lines: Vec<JobView>,
    command_bytes: usize,
    /// The first task that has no place any more.
    next: Option<TaskId>,
    detail: Detail,
}

impl<'a> Lines<'a> {
    fn new(grid: &'a Grid, page: Page) -> Lines<'a> {
        let detail = page.detail;
        let most = page.most.unwrap_or(LINES_MAX).clamp(1, LINES_MAX) as usize;
        Lines { grid, most, lines: Vec::new(), command_bytes: 0, next: None, detail }
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= self.most || self.command_bytes >= COMMAND_BYTES
    }

    fn push(&mut self, line: JobView) {
        self.command_bytes += line.command.iter().map(String::len).sum::<usize>();
        self.command_bytes +=
            line.asked.as_ref().map_or(0, |asked| size_of_val(&asked.elements[..]));
        self.lines.push(line);
    }

    fn tell_what_is_asked(&mut self, job: &Job) {
        if let Some(first) = self.lines.first_mut().filter(|first| first.asked.is_none()) {
            first.asked = Some(Box::new(asked(self.grid, job)));
        }
    }

    /// Adds the lines of a job from a task on; whether all had a place.
    fn add(&mut self, from: TaskId, job: &Job, wanted: Wanted) -> bool {
        let first = job.place_of(from.index).unwrap_or(0);
        for (index, task) in job.tasks_from(first) {
            let own_line = match task {
                Task::Pending(_) | Task::Held(_) => false,
                Task::Active(_) => true,
                Task::Finished(_) => matches!(wanted, Wanted::All),
            };
            if own_line && !self.add_one(TaskId { index, ..from }, job) {
                return false;
            }
        }
        let tally = job.tally();
        let is_pending = |task: &Task| matches!(task, Task::Pending(_));
        let is_held = |task: &Task| matches!(task, Task::Held(_));
        self.add_waiting(from.job, job, tally.pending, is_pending)
            && self.add_waiting(from.job, job, tally.held, is_held)
    }

    fn add_one(&mut self, task: TaskId, job: &Job) -> bool {
        if self.is_full() {
            self.next = Some(task);
            return false;
        }
        let line = view(self.grid, task, job);
        let asked = self.asked_of(task, job);
        self.push(JobView { asked, ..line });
        true
    }

    /// What a job asks for, if that is wanted with every line.
    fn asked_of(&self, task: TaskId, job: &Job) -> Option<Box<Asked>> {
        let asked = || Asked { waits: self.grid.reason(task), ..asked(self.grid, job) };
        matches!(self.detail, Detail::Asked).then(|| Box::new(asked()))
    }

    /// Adds the line of all tasks of a job that wait alike. Those of one array are not torn apart.
    fn add_waiting(&mut self, id: JobId, job: &Job, tasks: u32, alike: fn(&Task) -> bool) -> bool {
        if tasks == 0 {
            return true;
        }
        let Some((index, _)) = job.tasks().find(|(_, task)| alike(task)) else { return true };
        if job.spec().array.is_none() {
            return self.add_one(TaskId { job: id, index }, job);
        }
        let line = view(self.grid, TaskId { job: id, index }, job);
        let asked = self.asked_of(TaskId { job: id, index }, job).map(|mut asked| {
            asked.elements = ranges(job.tasks().filter(|(_, task)| alike(task)).map(|(at, _)| at));
            asked
        });
        self.push(JobView { id: id.to_string(), tasks, asked, ..line });
        true
    }

    fn answer(self, total: Option<u64>) -> Answer {
        Answer::Jobs { jobs: self.lines, next: self.next, total }
    }
}
