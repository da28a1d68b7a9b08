//! Submitting: whether a job is taken, and which jobs its dependency names.

use forebay_base::ByteSize;
use uuid::Uuid;

use crate::config::General;
use crate::depend::Verdict;
use crate::event::{Effect, Outcome, Refusal};
use crate::footprint;
use crate::grid::Grid;
use crate::journal::{Change, Intake, Submitted};
use crate::parse::dependency::{Condition, JobName, JobRef};
use crate::parse::matches;
use crate::spec::JobSpec;
use crate::vocabulary::{JobId, QueueId, Target, UserId, UserName};

/// The most conditions of a dependency once its names are looked up.
const CONDITIONS_MAX: usize = 10_000;

/// The most names that are compared with those of a dependency.
const NAMES_MAX: usize = 1_000_000;

/// What the names of one dependency have cost so far. It ends where a limit is, not after it.
pub(super) struct Search<'a> {
    by: &'a UserName,
    user: Option<UserId>,
    conditions: usize,
    names: usize,
}

impl<'a> Search<'a> {
    /// One that a user begins, for conditions on jobs of an owner.
    pub fn new(by: &'a UserName, owner: Option<u32>) -> Search<'a> {
        Search { by, user: owner.map(UserId), conditions: 0, names: 0 }
    }

    fn found(&mut self, jobs: usize) -> Result<(), Refusal> {
        self.conditions += jobs;
        if self.conditions <= CONDITIONS_MAX {
            return Ok(());
        }
        let fault = format!("the dependency refers to more than {CONDITIONS_MAX} jobs");
        Err(Refusal::Invalid(fault))
    }

    fn look(&mut self) -> Result<(), Refusal> {
        self.names += 1;
        if self.names <= NAMES_MAX {
            return Ok(());
        }
        let fault = format!(
            "the dependency compares names with more than {NAMES_MAX} names of jobs; use fewer names with *"
        );
        Err(Refusal::Invalid(fault))
    }
}

impl Grid {
    pub(super) fn submit(
        &mut self,
        user: UserName,
        mut spec: JobSpec,
        key: Option<Uuid>,
        out: &mut Outcome,
    ) {
        let taken = key.and_then(|key| self.ledger.job_of_key(self.now, &user, key));
        if let Some(job) = taken {
            out.effects.push(Effect::Accepted { job });
            return;
        }
        let condition = match self.admit(&user, &mut spec) {
            Ok(condition) => condition,
            Err(refusal) => {
                out.effects.push(Effect::Rejected(refusal));
                return;
            }
        };
        let job = self.ledger.next_job();
        let state = spec.service.as_ref().map(|service| self.new_service(service));
        let submitted = Submitted { job, user, spec, condition, key };
        self.record(Change::Submitted(Box::new(submitted)), out);
        if let Some(state) = state {
            self.record(Change::Service { job, state }, out);
        }
        self.index.add_job(&self.ledger, job, &self.ledger.jobs[&job]);
        out.effects.push(Effect::Accepted { job });
    }

    /// Checks a job and names its queue; its condition if it is taken.
    pub(super) fn admit(
        &self,
        user: &UserName,
        spec: &mut JobSpec,
    ) -> Result<Option<Condition<Target>>, Refusal> {
        if let Some(name) = &spec.profile {
            let profiles = &self.ledger.config.profiles;
            let profile = profiles.iter().find(|profile| profile.name == *name);
            let Some(profile) = profile else {
                let all: Vec<&str> = profiles.iter().map(|known| known.name.as_str()).collect();
                let there = match all[..] {
                    [] => "the grid has no profiles (grid.toml, [[profile]])".to_owned(),
                    _ => format!("choose from {}", all.join(", ")),
                };
                return Err(Refusal::Invalid(format!("there is no profile {name}: {there}")));
            };
            profile.complete(spec);
        }
        let id = self.check_intake(user, spec)?;
        self.check_spec(id, spec, true)?;
        let known = self.ledger.users.find(user).map(UserId);
        self.check_number(known, spec.tasks())?;
        self.check_service(known, spec)?;
        self.check_reservation(user, spec)?;
        let mut search = Search::new(user, known.map(|UserId(place)| place));
        let condition = spec.depends.as_ref().map(|depends| self.look_up(&depends.0, &mut search));
        let condition = condition.transpose()?;
        self.check_condition(spec, condition.as_ref())?;
        self.check_bytes(known, footprint::bytes_of(spec, condition.as_ref()))?;
        Ok(condition)
    }

    /// Whether the queue of a job takes it from a user; names the queue.
    pub(super) fn check_intake(
        &self,
        user: &UserName,
        spec: &mut JobSpec,
    ) -> Result<QueueId, Refusal> {
        let config = &self.ledger.config;
        let name = spec.queue.get_or_insert_with(|| config.queue_default().clone()).clone();
        let no_queue = || Refusal::NoSuchQueue(name.clone());
        let queue = config.queue(&name).ok_or_else(no_queue)?;
        let id = QueueId(self.ledger.queues.find(&name).ok_or_else(no_queue)?);
        if self.ledger.switch(id).intake == Intake::Closed {
            return Err(Refusal::QueueClosed(name));
        }
        if !queue.users.is_empty() && !queue.users.contains(user) && !self.is_admin(user) {
            let what = format!("use queue {name}");
            return Err(Refusal::NotAllowed { user: user.clone(), what });
        }
        Ok(id)
    }

    /// Whether a queue and the grid allow what a job asks for; its deadline may be one that it had before.
    pub(super) fn check_spec(
        &self,
        id: QueueId,
        spec: &JobSpec,
        deadline_is_new: bool,
    ) -> Result<(), Refusal> {
        let config = &self.ledger.config;
        let fault = spec.fault().or_else(|| size_fault(spec, &config.general));
        if let Some(fault) = fault {
            return Err(Refusal::Invalid(fault));
        }
        if deadline_is_new && spec.deadline.is_some_and(|deadline| deadline <= self.now) {
            let fault = "the time by which it must have ended has passed";
            return Err(Refusal::Invalid(fault.to_owned()));
        }
        if let Some(queue) = self.queue_config(id) {
            let name = &queue.name;
            if let (Some(limit), Some(most)) = (spec.time_limit, queue.time_limit_max)
                && limit > most
            {
                let fault = format!("time limit {limit}: queue {name} allows at most {most}");
                return Err(Refusal::Invalid(fault));
            }
            let most = [queue.slots_max, queue.user_slots_max, queue.host_slots_max];
            if let Some(most) = most.into_iter().flatten().find(|most| *most < spec.slots()) {
                let fault = format!("{} slots: queue {name} allows at most {most}", spec.slots());
                return Err(Refusal::Invalid(fault));
            }
        }
        if let Some(most) = config.general.user_slots_max.filter(|most| *most < spec.slots()) {
            let fault =
                format!("{} slots: a user may use at most {most} on this grid", spec.slots());
            return Err(Refusal::Invalid(fault));
        }
        self.check_resources(spec)?;
        self.check_features(spec)?;
        self.check_hosts(id, spec)
    }

    /// Whether there is room for so many more bytes of jobs.
    pub(super) fn check_bytes(&self, user: Option<UserId>, bytes: u64) -> Result<(), Refusal> {
        let general = &self.ledger.config.general;
        let user = user.and_then(|user| self.index.users.get(user.0 as usize));
        let of_user = user.map_or(0, |user| user.footprint.bytes());
        let sums = [
            (of_user, "those of a user", "user_jobs_bytes_max", general.user_jobs_bytes_max),
            (self.index.bytes, "all of the grid", "jobs_bytes_max", general.jobs_bytes_max),
        ];
        let over = sums.into_iter().find(|(now, .., most)| now.saturating_add(bytes) > most.0);
        let Some((now, whose, setting, most)) = over else { return Ok(()) };
        let (now, more) = (ByteSize(now), ByteSize(bytes));
        Err(Refusal::TooMany(format!(
            "the unfinished jobs ({whose}) may take at most {most} in total for commands, environments, scripts \
             and conditions: {now} now, and {more} with this one ({setting} of this grid)"
        )))
    }

    pub(super) fn check_number(&self, user: Option<UserId>, tasks: u32) -> Result<(), Refusal> {
        let general = &self.ledger.config.general;
        let of_user = user.and_then(|user| self.index.users.get(user.0 as usize));
        let of_user = of_user.map_or(0, |user| user.tasks);
        let counts = [
            (of_user, "a user may have", "user_tasks_max", general.user_tasks_max),
            (self.index.tasks, "the grid accepts", "tasks_max", general.tasks_max),
        ];
        let over =
            counts.into_iter().find(|(now, .., most)| now + u64::from(tasks) > u64::from(*most));
        let Some((now, whose, setting, most)) = over else { return Ok(()) };
        Err(Refusal::TooMany(format!(
            "{whose} at most {most} unfinished tasks: {now} now, and {tasks} with this job ({setting} of this grid)"
        )))
    }

    /// The condition with numbers in place of names: a name is the latest job of the user that is known
    /// under it, one with `*` all that match. What is submitted later does not count, and what the user does not see is
    /// not there: it would be kept, and its exit value told.
    pub(super) fn look_up(
        &self,
        condition: &Condition<JobRef>,
        search: &mut Search<'_>,
    ) -> Result<Condition<Target>, Refusal> {
        let mut all = |parts: &[Condition<JobRef>]| {
            let each = parts.iter().map(|part| self.look_up(part, search));
            each.collect::<Result<Vec<_>, _>>()
        };
        match condition {
            Condition::All(parts) => Ok(Condition::All(all(parts)?)),
            Condition::Any(parts) => Ok(Condition::Any(all(parts)?)),
            Condition::Is(test, job) | Condition::Each(test, job) => {
                let ask = match condition {
                    Condition::Each(..) => Condition::Each,
                    _ => Condition::Is,
                };
                let mut jobs = Vec::new();
                for id in self.jobs_of(&job.job, search)? {
                    let target = Target { job: id, index: job.index };
                    let known = self.job_for(search.by, target)?;
                    if job.index.is_some_and(|index| known.place_of(index).is_none()) {
                        return Err(Refusal::NoSuchJob(target));
                    }
                    jobs.push(ask(*test, target));
                }
                Ok(if jobs.len() == 1 { jobs.remove(0) } else { Condition::All(jobs) })
            }
            Condition::Singleton => Ok(Condition::Singleton),
        }
    }

    fn jobs_of(&self, job: &JobName, search: &mut Search<'_>) -> Result<Vec<JobId>, Refusal> {
        let name = match job {
            JobName::Number(id) => {
                search.found(1)?;
                return Ok(vec![*id]);
            }
            JobName::Name(name) => name,
        };
        let prefix = name.split('*').next().unwrap_or("");
        let user = search.user.into_iter();
        let names = user.flat_map(|user| self.index.names.beginning_with(user, prefix));
        let mut found = Vec::new();
        for (known, jobs) in names {
            search.look()?;
            if !matches(name, known) {
                continue;
            }
            if name.contains('*') {
                search.found(jobs.len())?;
                found.extend(jobs);
            } else {
                search.found(1)?;
                found.extend(jobs.last());
                break;
            }
        }
        if found.is_empty() {
            let fault = format!("the dependency names \"{name}\", but no job of the user matches");
            return Err(Refusal::Invalid(fault));
        }
        Ok(found)
    }

    /// Whether what a job waits for holds.
    pub(super) fn verdict_of(&self, job: JobId) -> Verdict {
        self.index.open.get(&job).map_or(Verdict::Met, |open| open.waits.verdict())
    }
}

/// Every job is kept in the journal and in memory with its environment and its script.
fn size_fault(spec: &JobSpec, general: &General) -> Option<String> {
    let script = spec.script.as_ref().map_or(0, String::len);
    let sizes = [
        (
            "environment",
            spec.environment_bytes(),
            "environment_bytes_max",
            general.environment_bytes_max,
        ),
        ("script", script, "script_bytes_max", general.script_bytes_max),
    ];
    sizes.into_iter().find(|(_, bytes, _, most)| *bytes as u64 > u64::from(*most)).map(
        |(what, bytes, setting, most)| {
            format!("the {what} has {bytes} bytes: {setting} of this grid is {most}")
        },
    )
}
