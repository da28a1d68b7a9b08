//! Tasks of the grid as other systems number them.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, Asked, Detail, JobView, Refusal, RefusalKind};
use forebay_grid::dialect::{element_number, task_of_number};
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{Moment, Target, TaskId};

use crate::commands::grid::home_of;

/// The controller of the grid that FOREBAY_GRID names.
///
/// # Errors
/// If none is named, or its controller does not answer.
pub fn client() -> Result<Client> {
    Client::connect(&home_of(None)?)
}

/// A line of a list: one task, or the elements of an array that wait alike.
pub struct Row {
    /// What the grid says of it.
    pub view: JobView,
    /// What was asked for.
    pub asked: Asked,
    /// Its job, and its element here.
    pub target: Target,
    /// Why it waits, where that was asked.
    pub reasons: Vec<String>,
    /// When it starts at the latest, where that was asked and is known.
    pub estimate: Option<Moment>,
}

impl Row {
    /// One line of the grid.
    ///
    /// # Errors
    /// If the controller is a different version.
    pub fn of(mut view: JobView) -> Result<Row> {
        let target = view.id.parse::<Target>().map_err(anyhow::Error::msg)?;
        let asked = view.asked.take().context("the controller is a different version")?;
        Ok(Row { view, asked: *asked, target, reasons: Vec::new(), estimate: None })
    }

    /// What its indices are higher than its user wrote them.
    pub fn shift(&self) -> u32 {
        self.asked.dialect.as_ref().map_or(0, |dialect| dialect.index_shift)
    }

    /// Its element as its user wrote it; none if it is not an array, or several elements.
    pub fn index(&self) -> Option<u32> {
        self.target.index.map(|index| index.saturating_sub(self.shift()))
    }

    /// Its number, which no other task has.
    pub fn number(&self) -> u64 {
        let index = self.target.index.unwrap_or(0);
        element_number(TaskId { job: self.target.job, index })
    }

    /// Whether it stands for elements that wait.
    pub fn is_several(&self) -> bool {
        self.target.index.is_none() && self.asked.array.is_some()
    }

    /// The elements it stands for, as their user wrote them: `0-4,7`.
    pub fn elements(&self) -> String {
        let shift = self.shift();
        let range = |(first, last): &(u32, u32)| match (first - shift.min(*first), last - shift) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        self.asked.elements.iter().map(range).collect::<Vec<_>>().join(",")
    }

    /// How many of an array may run at once.
    pub fn running_max(&self) -> Option<&str> {
        self.asked.array.as_ref()?.split_once('%').map(|(_, most)| most)
    }

    /// Rows of their own for elements that wait.
    pub fn into_elements(self) -> Vec<Row> {
        if !self.is_several() {
            return vec![self];
        }
        let indices = self.asked.elements.iter().flat_map(|(first, last)| *first..=*last);
        let row = |index| {
            let target = Target { index: Some(index), ..self.target };
            let view = JobView { tasks: 1, id: target.to_string(), ..self.view.clone() };
            Row {
                view,
                asked: self.asked.clone(),
                target,
                reasons: self.reasons.clone(),
                estimate: None,
            }
        };
        indices.map(row).collect()
    }

    /// How long it has run, in seconds; none if it has not started.
    pub fn ran(&self, now: Moment) -> Option<u64> {
        let started = self.view.started?;
        Some(self.view.ended.unwrap_or(now).since(started) / 1000)
    }
}

/// The most jobs of which it is asked when they start.
const ESTIMATED_MAX: usize = 1000;

/// Asks when jobs that wait start at the latest, and notes it with them: of the first ones for which hosts are kept that is known.
///
/// # Errors
/// If the controller does not answer.
pub fn estimate(client: &mut Client, rows: &mut [Row], now: Moment) -> Result<()> {
    let waiting = rows.iter_mut().filter(|row| row.view.state == JobState::Pending);
    for row in waiting.take(ESTIMATED_MAX) {
        let target = Target { index: None, ..row.target };
        let explained = match client.ask(&Ask::Explain { target }) {
            // It may have been forgotten meanwhile.
            Err(error) if error.downcast_ref::<Refusal>().is_some() => continue,
            explained => explained?,
        };
        let Answer::Explained { explanation: Explanation::Waits { reasons, .. }, .. } = explained
        else {
            continue;
        };
        row.estimate = reasons.iter().find_map(|reason| match reason {
            Reason::Reserved { within: Some(within), .. } => Some(now.after(within.as_ms())),
            Reason::Begin { at } | Reason::ReservationStarts { at, .. } => Some(*at),
            _ => None,
        });
    }
    Ok(())
}

/// All tasks, or those of some jobs; with those that have ended or without. A job that is not known gives no rows.
///
/// # Errors
/// If the controller does not answer.
pub fn rows(client: &mut Client, targets: Option<&[Target]>, ended: bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let Some(targets) = targets else {
        let (views, _) = client.jobs_in(Detail::Asked, None, ended, None)?;
        return views.into_iter().map(Row::of).collect();
    };
    for target in targets {
        if let Some(of_job) = known(client, *target)? {
            rows.extend(of_job.into_iter().filter(|row| ended || row.view.ended.is_none()));
        }
    }
    Ok(rows)
}

/// The rows of one job or element; none if the controller does not know it.
///
/// # Errors
/// If the controller does not answer.
pub fn known(client: &mut Client, target: Target) -> Result<Option<Vec<Row>>> {
    match client.jobs_in(Detail::Asked, Some(target), true, None) {
        Ok((views, _)) => views.into_iter().map(Row::of).collect::<Result<_>>().map(Some),
        Err(error) => match error.downcast_ref::<Refusal>() {
            Some(refusal) if refusal.kind == RefusalKind::NoJob => Ok(None),
            _ => Err(error),
        },
    }
}

/// The name of this process's user.
pub fn me() -> String {
    let uid = rustix::process::getuid().as_raw();
    let name = forebay_process::user::name_of(uid).ok().flatten();
    name.unwrap_or_else(|| uid.to_string())
}

/// The task that a number stands for, as far as the number says it.
pub fn target_of_number(number: u64) -> Target {
    task_of_number(number).into()
}

/// The element of a job as its user numbers it.
///
/// # Errors
/// If the controller does not answer.
pub fn element(client: &mut Client, job: Target, user_index: u32) -> Result<Target> {
    let shift = known(client, job)?.and_then(|rows| rows.first().map(Row::shift)).unwrap_or(0);
    Ok(Target { index: Some(user_index.saturating_add(shift)), ..job })
}

/// An exit code of a command: of its own faults, in the way of its system.
pub fn fault(code: u8, command: &str, error: &anyhow::Error) -> ExitCode {
    let said = crate::output::chain(error);
    // Functions of Slurm's library name themselves.
    let by = if said.starts_with("slurm_") { String::new() } else { format!("{command}: error: ") };
    note!("{by}{said}");
    ExitCode::from(code)
}
