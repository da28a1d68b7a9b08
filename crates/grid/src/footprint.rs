//! How many bytes jobs hold together, in memory and about as many in the journal: what they brought, and what they
//! wait for. An environment that several jobs have counts once.
//!
//! An estimate from lengths, which is the same each time: what was added for a job is what is taken away. Tasks are
//! not in it, they have bounds of their own.

use rustc_hash::FxHashMap;

use crate::environment::Environment;
use crate::ledger::Job;
use crate::parse::dependency::Condition;
use crate::spec::JobSpec;
use crate::vocabulary::Target;

/// A job that brings next to nothing.
const JOB_BYTES: usize = 500;
/// One word of a command, one range of an array, beside the text.
const PIECE_BYTES: usize = 24;
/// One entry of a list of hosts, one condition with the names in it.
const NAMED_BYTES: usize = 64;
/// One condition of a job: itself, what is kept of it, and the job's place among those that wait.
const CONDITION_BYTES: usize = 128;

/// Bytes that jobs hold.
#[derive(Debug, Default)]
pub(crate) struct Footprint {
    bytes: u64,
    /// How many of the jobs have an environment, by where it lies.
    environments: FxHashMap<usize, u32>,
}

impl Footprint {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn add(&mut self, job: &Job) {
        let environment = &job.spec.environment;
        let jobs = self.environments.entry(environment.place()).or_default();
        *jobs += 1;
        if *jobs == 1 {
            self.bytes += bytes_of_environment(environment);
        }
        self.bytes += own_bytes(&job.spec, job.condition.as_ref());
    }

    pub fn remove(&mut self, job: &Job) {
        let environment = &job.spec.environment;
        if let Some(jobs) = self.environments.get_mut(&environment.place()) {
            *jobs -= 1;
            if *jobs == 0 {
                self.environments.remove(&environment.place());
                self.bytes -= bytes_of_environment(environment);
            }
        }
        self.bytes -= own_bytes(&job.spec, job.condition.as_ref());
    }
}

/// What a job would hold that shares its environment with no other.
pub(crate) fn bytes_of(spec: &JobSpec, condition: Option<&Condition<Target>>) -> u64 {
    own_bytes(spec, condition) + bytes_of_environment(&spec.environment)
}

fn bytes_of_environment(environment: &Environment) -> u64 {
    let variable = |(name, value): &(String, String)| name.len() + value.len() + 2 * PIECE_BYTES;
    environment.iter().map(variable).sum::<usize>() as u64
}

fn own_bytes(spec: &JobSpec, condition: Option<&Condition<Target>>) -> u64 {
    let texts = [Some(&spec.directory), spec.output.as_ref(), spec.error.as_ref()];
    let text: usize = texts
        .into_iter()
        .chain([spec.script.as_ref(), spec.pre.as_ref(), spec.post.as_ref()])
        .chain(spec.service.iter().flat_map(|of| [of.check.as_ref(), of.address_file.as_ref()]))
        .chain(spec.notify.iter().flat_map(|to| to.mail.iter().chain(&to.webhook).map(Some)))
        .flatten()
        .map(String::len)
        .sum();
    let words: usize = spec.command.iter().map(|word| word.len() + PIECE_BYTES).sum();
    let ranges = spec.array.as_ref().map_or(0, |array| array.ranges()) * PIECE_BYTES;
    let mut conditions = 0;
    condition.into_iter().for_each(|condition| condition.each(&mut |_, _| conditions += 1));
    let mut named = spec.hosts.entries();
    spec.depends.iter().for_each(|depends| depends.0.each(&mut |_, _| named += 1));
    named += spec.resources.iter().count();
    spec.features.iter().for_each(|features| features.each(&mut |_| named += 1));
    let listed = named * NAMED_BYTES + conditions * CONDITION_BYTES;
    let group = spec.group.as_ref().map_or(0, |group| group.as_str().len());
    (JOB_BYTES + text + words + ranges + listed + group) as u64
}
