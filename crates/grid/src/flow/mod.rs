//! Flows: jobs that belong together, with an order between them and a time at which they start.
//!
//! A [`FlowSpec`] is what a file says ([`mod@file`]). Starting it makes one journal record that holds the run and
//! all its jobs, so there are all of them or none. From then on its steps are jobs like others, each with a
//! condition on earlier ones; [`ledger`] keeps what more is to be known, and `grid/flow.rs` decides.
//!
//! # What holds
//! - Steps are numbered so that a step comes after what it depends on; there are no cycles.
//! - A step that can no longer start is skipped at once. So a run ends: done, failed or killed.
//! - A schedule fires once for each time or file: the record that starts the run also says what is next.
//!
//! # Bounds
//! [`STEPS_MAX`] steps and [`FLOW_BYTES_MAX`] bytes in a flow, [`SCHEDULES_MAX`] schedules on the grid, [`SEEN_MAX`] files that a schedule
//! remembers. Runs are forgotten with their jobs.

pub mod event;
pub mod file;
pub mod ledger;
pub mod schedule;

use std::str::FromStr;

use forebay_base::id;
use serde::{Deserialize, Serialize};

use crate::pairs::{self, Lack};
use crate::parse::dependency::{Condition, Countable, JobName, JobRef, Test};
use crate::parse::matches;
use crate::spec::JobSpec;
use schedule::Trigger;

/// The most steps of a flow.
pub const STEPS_MAX: usize = 1000;
/// The most schedules of a grid.
pub const SCHEDULES_MAX: usize = 1000;
/// The most schedules of one user.
pub const USER_SCHEDULES_MAX: usize = 200;
/// The most files that a schedule remembers.
pub const SEEN_MAX: usize = 4096;
/// The most runs that one look at files starts; the next look starts more.
pub const RUNS_AT_ONCE: usize = 64;
/// The most bytes of the commands and environments of all steps together.
pub const FLOW_BYTES_MAX: usize = 8 << 20;
/// The longest name of a flow or a step: both, with a dot between, are the name of a job.
pub const NAME_MAX: usize = 63;
/// The most conditions of a step once its names are looked up.
const CONDITIONS_MAX: usize = 10_000;
/// The most conditions of all steps together.
const FLOW_CONDITIONS_MAX: usize = 200_000;

id! {
    /// Number of a run of a flow; counted from 1, never reused.
    FlowId(u64)
}
id! {
    /// Number of a schedule; counted from 1, never reused.
    ScheduleId(u64)
}

fn number(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("\"{text}\" is not a number, 1 or more"))
}

impl FromStr for FlowId {
    type Err = String;

    fn from_str(text: &str) -> Result<FlowId, String> {
        number(text).map(FlowId)
    }
}

impl FromStr for ScheduleId {
    type Err = String;

    fn from_str(text: &str) -> Result<ScheduleId, String> {
        number(text).map(ScheduleId)
    }
}

/// A flow as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSpec {
    /// Its name.
    pub name: String,
    /// Its steps. The name of each is that of the step, and its dependency names steps of this flow.
    pub steps: Vec<JobSpec>,
    /// What starts it, if it is scheduled.
    pub trigger: Option<Trigger>,
}

/// One step that a condition asks of, or one element of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepRef {
    /// Its place in the specification, counted from 0.
    pub step: usize,
    /// One element.
    pub index: Option<u32>,
}

/// A flow that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Places of the steps, each after what it depends on, otherwise as they were given.
    pub order: Vec<usize>,
    /// What each has to wait for, by place.
    pub conditions: Vec<Option<Condition<StepRef>>>,
}

/// What is wrong with a flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Fault {
    /// The step, by place; none if it is the flow itself.
    pub step: Option<usize>,
    /// The key to blame.
    pub key: &'static str,
    /// What is wrong, with its name.
    pub reason: String,
}

impl Fault {
    fn of_step(step: usize, key: &'static str, reason: String) -> Fault {
        Fault { step: Some(step), key, reason }
    }
}

fn name_fault(what: &str, name: &str) -> Option<String> {
    let fine = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    if name.is_empty() || name.len() > NAME_MAX {
        return Some(format!("\"{name}\": the name of a {what} has 1 to {NAME_MAX} bytes"));
    }
    if !name.chars().all(fine) {
        return Some(format!(
            "\"{name}\": the name of a {what} may contain only letters, digits, _ . -"
        ));
    }
    if name.chars().all(|c| c.is_ascii_digit()) {
        return Some(format!("\"{name}\": the name of a {what} must not be a number"));
    }
    None
}

impl FlowSpec {
    /// Checks the flow, and puts its steps in order.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn plan(&self) -> Result<Plan, Fault> {
        let of_flow = |reason| Fault { step: None, key: "name", reason };
        if let Some(reason) = name_fault("flow", &self.name) {
            return Err(of_flow(reason));
        }
        if self.steps.is_empty() {
            return Err(of_flow(format!("flow {} has no job", self.name)));
        }
        if self.steps.len() > STEPS_MAX {
            return Err(of_flow(format!("a flow has at most {STEPS_MAX} jobs")));
        }
        if self.steps.iter().map(bytes_of).sum::<usize>() > FLOW_BYTES_MAX {
            return Err(of_flow(too_many_bytes()));
        }
        for (place, step) in self.steps.iter().enumerate() {
            if let Some(reason) = name_fault("job of a flow", &step.name) {
                return Err(Fault::of_step(place, "name", reason));
            }
            if self.steps[..place].iter().any(|before| before.name == step.name) {
                let reason = format!("two jobs are named \"{}\"", step.name);
                return Err(Fault::of_step(place, "name", reason));
            }
            if let Some(fault) = step.fault() {
                let reason = format!("job {}: {fault}", step.name);
                return Err(Fault::of_step(place, "command", reason));
            }
        }
        let (mut conditions, mut conditions_of_flow) = (Vec::new(), 0);
        for (place, step) in self.steps.iter().enumerate() {
            let condition = step.depends.as_ref().map(|depends| self.look_up(place, &depends.0));
            let condition = condition.transpose();
            let after = |reason| Fault::of_step(place, "after", format!("{}: {reason}", step.name));
            let condition = condition.map_err(after)?;
            let mut leaves = 0;
            condition.iter().for_each(|condition| condition.each(&mut |_, _| leaves += 1));
            let fault = condition.as_ref().and_then(|condition| pairs::fault(step, condition));
            if let Some(fault) = fault {
                return Err(after(fault));
            }
            if leaves > CONDITIONS_MAX {
                return Err(after(format!("it depends on more than {CONDITIONS_MAX} jobs")));
            }
            conditions_of_flow += leaves;
            if conditions_of_flow > FLOW_CONDITIONS_MAX {
                return Err(after(format!(
                    "together with the jobs before it, the flow has more than {FLOW_CONDITIONS_MAX} conditions"
                )));
            }
            conditions.push(condition);
        }
        let order = self.order(&conditions)?;
        Ok(Plan { order, conditions })
    }

    /// The condition with places of steps in place of their names.
    fn look_up(
        &self,
        place: usize,
        condition: &Condition<JobRef>,
    ) -> Result<Condition<StepRef>, String> {
        let all = |parts: &[Condition<JobRef>]| {
            parts.iter().map(|part| self.look_up(place, part)).collect::<Result<Vec<_>, _>>()
        };
        let (test, job, is_each) = match condition {
            Condition::All(parts) => return Ok(Condition::All(all(parts)?)),
            Condition::Any(parts) => return Ok(Condition::Any(all(parts)?)),
            Condition::Is(test, job) => (*test, job, false),
            Condition::Each(test, job) => (*test, job, true),
            Condition::Singleton => return Ok(Condition::Singleton),
        };
        if test == Test::PostErr {
            return Err("post_err is not allowed in flows: a work area that cannot be removed \
                        does not end a step"
                .to_owned());
        }
        let name = match &job.job {
            JobName::Name(name) => name,
            JobName::Number(id) => {
                return Err(format!("after = {id}: name a job of the flow, not a job number"));
            }
        };
        let wanted = |(other, step): &(usize, &JobSpec)| {
            if name.contains('*') {
                *other != place && matches(name, &step.name)
            } else {
                step.name == *name
            }
        };
        let found: Vec<usize> =
            self.steps.iter().enumerate().filter(wanted).map(|(other, _)| other).collect();
        if found.is_empty() {
            return Err(format!("the flow has no job \"{name}\""));
        }
        let mut parts = Vec::new();
        for step in found {
            if let Some(index) = job.index
                && self.steps[step].array.as_ref().and_then(|array| array.place_of(index)).is_none()
            {
                return Err(format!("job {} has no element {index}", self.steps[step].name));
            }
            if is_each && let Some(lack) = pairs::lack(&self.steps[place], &self.steps[step]) {
                return Err(self.told_lack(step, lack));
            }
            let at = StepRef { step, index: job.index };
            parts.push(if is_each { Condition::Each(test, at) } else { Condition::Is(test, at) });
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::All(parts) })
    }

    fn told_lack(&self, step: usize, lack: Lack) -> String {
        let name = &self.steps[step].name;
        match lack {
            Lack::Elements => format!("{name}[*]: job {name} is not an array"),
            Lack::Element(index) => {
                format!("{name}[*]: job {name} has no element {index}, which this job has")
            }
        }
    }

    /// Puts steps after what they depend on; of those that could come next, the first as given.
    fn order(&self, conditions: &[Option<Condition<StepRef>>]) -> Result<Vec<usize>, Fault> {
        let upstream: Vec<Vec<usize>> = conditions.iter().map(|c| steps_of(c.as_ref())).collect();
        let mut placed = vec![false; self.steps.len()];
        let mut order = Vec::new();
        while order.len() < self.steps.len() {
            let free =
                |step: &usize| !placed[*step] && upstream[*step].iter().all(|up| placed[*up]);
            match (0..self.steps.len()).find(free) {
                Some(step) => {
                    placed[step] = true;
                    order.push(step);
                }
                None => return Err(self.cycle(&upstream, &placed)),
            }
        }
        Ok(order)
    }

    /// Names a cycle among the steps that could not be placed: each of them waits for another such.
    fn cycle(&self, upstream: &[Vec<usize>], placed: &[bool]) -> Fault {
        let stuck = |step: &usize| !placed[*step];
        let mut path = vec![(0..placed.len()).find(stuck).expect("a step is stuck")];
        loop {
            let last = path[path.len() - 1];
            let next = *upstream[last].iter().find(|up| stuck(up)).expect("it waits for one");
            if let Some(from) = path.iter().position(|step| *step == next) {
                let first = path[from];
                path.drain(..from);
                path.push(first);
                let names: Vec<&str> =
                    path.iter().map(|step| self.steps[*step].name.as_str()).collect();
                let reason = format!("jobs wait for each other: {}", names.join(" after "));
                return Fault::of_step(first, "after", reason);
            }
            path.push(next);
        }
    }
}

/// Bytes of command and environment.
fn bytes_of(step: &JobSpec) -> usize {
    let environment = step.environment.iter().map(|(key, value)| key.len() + value.len());
    let around = step.pre.iter().chain(&step.post).map(String::len);
    step.command.iter().map(String::len).chain(environment).chain(around).sum()
}

fn too_many_bytes() -> String {
    format!("commands and environments of a flow have at most {FLOW_BYTES_MAX} bytes together")
}

/// The steps that a condition asks of, each once, in order.
fn steps_of(condition: Option<&Condition<StepRef>>) -> Vec<usize> {
    let mut steps = Vec::new();
    condition.into_iter().for_each(|c| c.each(&mut |_, at: &StepRef| steps.push(at.step)));
    steps.sort_unstable();
    steps.dedup();
    steps
}

impl<R> Condition<R> {
    /// Calls `act` with each test and what it asks of.
    pub(crate) fn each<'a>(&'a self, act: &mut dyn FnMut(Test, &'a R)) {
        match self {
            Condition::All(parts) | Condition::Any(parts) => {
                parts.iter().for_each(|part| part.each(act));
            }
            Condition::Is(test, of) | Condition::Each(test, of) => act(*test, of),
            Condition::Singleton => {}
        }
    }

    /// The same condition of something else.
    pub(crate) fn map<S>(&self, into: &impl Fn(&R) -> S) -> Condition<S> {
        let all = |parts: &[Condition<R>]| parts.iter().map(|part| part.map(into)).collect();
        match self {
            Condition::All(parts) => Condition::All(all(parts)),
            Condition::Any(parts) => Condition::Any(all(parts)),
            Condition::Is(test, of) => Condition::Is(*test, into(of)),
            Condition::Each(test, of) => Condition::Each(*test, into(of)),
            Condition::Singleton => Condition::Singleton,
        }
    }
}

/// Whether a test asks for a failure: then it is no fault if it never comes true.
pub(crate) fn asks_for_failure(test: Test) -> bool {
    match test {
        Test::Exit(_) | Test::PostErr | Test::Number(Countable::Exit, _) => true,
        Test::Done
        | Test::Ended
        | Test::Started
        | Test::StartedFor(_)
        | Test::PostDone
        | Test::Number(Countable::Done | Countable::Ended | Countable::Started, _) => false,
    }
}
