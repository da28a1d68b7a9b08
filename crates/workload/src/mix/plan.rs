//! A mix at a scale: which jobs there are, when each is due, on which node.
//!
//! Pure: the same mix, options and seed give the same plan.

use std::sync::Arc;

use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::{Class, ForEach, JobKind, Jobs, Mix, Sessions, StageSpec};
use crate::error::Result;
use crate::program::{Buffers, Job, Program};
use forebay_analytics::amount::Scale;
use forebay_analytics::dataset::check_page_bytes;

/// The most jobs in a plan.
const JOBS_MAX: u64 = 100_000;

/// How a mix is to be run; `None` takes the mix's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Size against the study.
    pub scale: Option<Scale>,
    /// Logical nodes.
    pub nodes: Option<u32>,
    /// Jobs at once on each node.
    pub concurrent: Option<u32>,
    /// Sessions.
    pub sessions: Option<u32>,
    /// Page size of data sets.
    pub page_bytes: Option<ByteSize>,
    /// Memory of a sort or join.
    pub sort_memory: Option<ByteSize>,
    /// Memory of everything else.
    pub memory: Option<ByteSize>,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// A mix at a scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The scale.
    pub scale: Scale,
    /// The seed.
    pub seed: u64,
    /// Page sizes and memory of all programs.
    pub buffers: Buffers,
    /// What is made first.
    pub inputs: Vec<PlannedInput>,
    /// The stages, one after another.
    pub stages: Vec<PlannedStage>,
}

/// A data set that is made first.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedInput {
    /// Its program.
    pub program: Arc<Program>,
    /// Its number among those that the program makes, from 0.
    pub number: u64,
    /// How many the program makes.
    pub count: u64,
    /// Bytes that it takes.
    pub bytes: u64,
}

/// A stage of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStage {
    /// What it is called.
    pub name: String,
    /// Logical nodes.
    pub nodes: u32,
    /// Sessions, where the mix has them.
    pub sessions: Option<u32>,
    /// Jobs at once on each node.
    pub concurrent: u32,
    /// The jobs in the order in which they are due.
    pub jobs: Vec<PlannedJob>,
}

/// One job of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedJob {
    /// Its name, class and number.
    pub job: Job,
    /// What it asks most of.
    pub kind: JobKind,
    /// Logical node, from 0.
    pub node: u32,
    /// Session, from 0, where the mix has them.
    pub session: Option<u32>,
    /// Seconds from the start of the stage to when it is due.
    pub due_seconds: f64,
    /// Index in the stage of the job that must have ended before.
    pub after: Option<usize>,
    /// What it does.
    pub program: Arc<Program>,
    /// Space that it needs besides the inputs.
    pub space: SpaceNeed,
}

/// Bytes needed in each area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceNeed {
    /// What stays in data; of a plan, with what is there meanwhile.
    pub data: u64,
    /// What is in data only while a job runs; 0 of a plan.
    pub data_meanwhile: u64,
    /// Temporary data sets.
    pub work: u64,
    /// Utility files.
    pub util: u64,
}

impl SpaceNeed {
    /// All areas together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.data + self.work + self.util
    }
}

impl Mix {
    /// Takes the mix at a scale.
    ///
    /// # Errors
    /// [`forebay_analytics::Error::Setting`] if a number is zero or there are too many jobs.
    pub fn plan(&self, options: &Options) -> Result<Plan> {
        let scale = options.scale.unwrap_or(self.defaults.scale);
        let single =
            [StageSpec { name: "all".into(), nodes: None, sessions: None, concurrent: None }];
        let stages = if self.stages.is_empty() { &single[..] } else { &self.stages[..] };
        let buffers = Buffers {
            page_bytes: options.page_bytes.unwrap_or(self.buffers.page_bytes.at(scale)),
            sort_memory: options.sort_memory.unwrap_or(self.buffers.sort_memory.at(scale)),
            memory: options.memory.unwrap_or(self.buffers.memory.at(scale)),
        };
        check_page_bytes(buffers.page_bytes.0)?;
        let programs: Vec<Arc<Program>> =
            self.classes.iter().map(|class| program(&class.name, &class.steps)).collect();
        let stages: Vec<PlannedStage> = stages
            .iter()
            .map(|stage| self.plan_stage(stage, &programs, scale, options))
            .collect::<Result<_>>()?;
        let slots = |stage: &PlannedStage| u64::from(stage.concurrent) * u64::from(stage.nodes);
        let slots = stages.iter().map(slots).max().unwrap_or(1);
        let inputs = self.inputs.iter().flat_map(|input| {
            let bytes = input.steps.iter().map(|step| step.step.made_bytes(scale, &buffers)).sum();
            let program = program(&input.name, &input.steps);
            let count = match input.for_each {
                ForEach::Run => 1,
                ForEach::Slot => slots,
            };
            (0..count).map(move |number| {
                let program = Arc::clone(&program);
                PlannedInput { program, number, count, bytes }
            })
        });
        let inputs = inputs.collect();
        Ok(Plan { scale, seed: options.seed, buffers, inputs, stages })
    }

    fn plan_stage(
        &self,
        stage: &StageSpec,
        programs: &[Arc<Program>],
        scale: Scale,
        options: &Options,
    ) -> Result<PlannedStage> {
        let nodes = stage.nodes.or(options.nodes).unwrap_or(self.defaults.nodes);
        let sessions = stage.sessions.or(options.sessions).or(self.defaults.sessions);
        let sessions = self.sessions.and(sessions);
        let of_run = options
            .concurrent
            .or(self.defaults.concurrent)
            .or_else(|| sessions.map(|sessions| sessions.div_ceil(nodes.max(1))))
            .unwrap_or(1);
        let concurrent = stage.concurrent.map_or(of_run, |concurrent| concurrent.of(of_run));
        for (setting, value) in
            [("nodes", nodes), ("concurrent", concurrent), ("sessions", sessions.unwrap_or(1))]
        {
            if value == 0 {
                return Err(forebay_analytics::Error::Setting {
                    setting,
                    value: "0".to_owned(),
                    allowed: "at least 1".to_owned(),
                }
                .into());
            }
        }
        let here: Vec<(&Class, &Arc<Program>)> = self
            .classes
            .iter()
            .zip(programs)
            .filter(|(class, _)| class.stages.as_ref().is_none_or(|all| all.contains(&stage.name)))
            .collect();
        let counts = match (&self.sessions, sessions) {
            (Some(spec), Some(sessions)) => shares(&here, spec, sessions),
            _ => here
                .iter()
                .map(|(class, _)| match class.jobs {
                    Jobs::PerNode(count) => count.at(scale).saturating_mul(nodes.into()),
                    Jobs::PerRun(count) => count.at(scale),
                    Jobs::PerSlot | Jobs::Share(_) => u64::from(concurrent) * u64::from(nodes),
                })
                .collect(),
        };
        let total = counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count));
        if total > JOBS_MAX {
            return Err(forebay_analytics::Error::Setting {
                setting: "scale",
                value: scale.to_string(),
                allowed: format!("such that a stage has at most {JOBS_MAX} jobs; this has {total}"),
            }
            .into());
        }
        let mut planned = PlannedStage {
            name: stage.name.clone(),
            nodes,
            sessions,
            concurrent,
            jobs: spread(&here, &counts, scale, options.seed),
        };
        match (&self.sessions, sessions) {
            (Some(spec), Some(sessions)) => {
                planned.deal_to_sessions(sessions, spec.start_over_seconds.at(scale) as f64);
            }
            _ => planned.deal_to_nodes(),
        }
        Ok(planned)
    }
}

fn program(name: &str, steps: &[crate::program::NamedStep]) -> Arc<Program> {
    Arc::new(Program { name: name.to_owned(), steps: steps.to_vec() })
}

/// Jobs of each class such that together they are the sessions' share of `spec.jobs`: by the largest
/// remainder, as seats of a parliament.
fn shares(classes: &[(&Class, &Arc<Program>)], spec: &Sessions, sessions: u32) -> Vec<u64> {
    let weight = |class: &Class| match class.jobs {
        Jobs::Share(weight) => weight,
        Jobs::PerNode(_) | Jobs::PerRun(_) | Jobs::PerSlot => 0,
    };
    let weights: Vec<u64> = classes.iter().map(|(class, _)| weight(class)).collect();
    let all: u64 = weights.iter().sum::<u64>().max(1);
    let jobs = (spec.jobs * u64::from(sessions)).div_ceil(u64::from(spec.at));
    let mut counts: Vec<u64> = weights.iter().map(|weight| jobs * weight / all).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|&at| std::cmp::Reverse(jobs * weights[at] % all));
    let left = jobs.saturating_sub(counts.iter().sum());
    for &at in by_remainder.iter().cycle().take(usize::try_from(left).unwrap_or(0)) {
        counts[at] += 1;
    }
    counts
}

/// All jobs, those of each class spread evenly over the order, with some chance in it.
fn spread(
    classes: &[(&Class, &Arc<Program>)],
    counts: &[u64],
    scale: Scale,
    seed: u64,
) -> Vec<PlannedJob> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut placed = Vec::new();
    for ((class, program), &count) in classes.iter().zip(counts) {
        let digits = count.saturating_sub(1).to_string().len();
        for number in 0..count {
            let place = (number as f64 + random.random::<f64>()) / count as f64;
            let name = format!("{}-{number:0digits$}", class.name);
            placed.push((
                place,
                PlannedJob {
                    job: Job { name, class: class.name.clone(), number, count },
                    kind: class.kind,
                    node: 0,
                    session: None,
                    due_seconds: 0.0,
                    after: None,
                    program: Arc::clone(program),
                    space: SpaceNeed {
                        data: class.space.data.at(scale).0,
                        data_meanwhile: class.space.data_meanwhile.at(scale).0,
                        work: class.space.work.at(scale).0,
                        util: class.space.util.at(scale).0,
                    },
                },
            ));
        }
    }
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    placed.into_iter().map(|(_, job)| job).collect()
}

impl PlannedInput {
    /// Its name, unique in the plan.
    #[must_use]
    pub fn name(&self) -> String {
        match self.count {
            1 => self.program.name.clone(),
            _ => format!("{}-{}", self.program.name, self.number),
        }
    }
}

impl PlannedStage {
    /// One job after another to the nodes in turn, so that each gets its part of every class.
    fn deal_to_nodes(&mut self) {
        let mut dealt = std::collections::HashMap::<String, u32>::new();
        for job in &mut self.jobs {
            // Classes begin at different nodes, or the first would get every odd job.
            let classes = dealt.len() as u32;
            let next = dealt.entry(job.job.class.clone()).or_insert(classes);
            job.node = *next % self.nodes;
            *next += 1;
        }
    }

    /// One job after another to the sessions in turn; the sessions to the nodes in turn.
    fn deal_to_sessions(&mut self, sessions: u32, start_over_seconds: f64) {
        let mut last: Vec<Option<usize>> = vec![None; sessions as usize];
        for (at, job) in self.jobs.iter_mut().enumerate() {
            let session = (at % sessions as usize) as u32;
            job.session = Some(session);
            job.node = session % self.nodes;
            job.after = last[session as usize].replace(at);
            job.due_seconds = start_over_seconds * f64::from(session) / f64::from(sessions);
        }
    }

    /// Bytes that the stage's jobs need at most at one time, and what they leave.
    #[must_use]
    pub fn space(&self) -> SpaceNeed {
        let at_once = (u64::from(self.concurrent) * u64::from(self.nodes)) as usize;
        let largest = |part: fn(&SpaceNeed) -> u64| -> u64 {
            let mut needs: Vec<u64> = self.jobs.iter().map(|job| part(&job.space)).collect();
            needs.sort_unstable_by(|a, b| b.cmp(a));
            needs.iter().take(at_once).sum()
        };
        SpaceNeed {
            data: self.jobs.iter().map(|job| job.space.data).sum(),
            data_meanwhile: largest(|space| space.data_meanwhile),
            work: largest(|space| space.work),
            util: largest(|space| space.util),
        }
    }
}

impl Plan {
    /// Bytes of the inputs.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.bytes).sum()
    }

    /// Bytes that a run needs at most: inputs, what stays of all stages, and the temporary files of the
    /// largest.
    #[must_use]
    pub fn space(&self) -> SpaceNeed {
        let stages: Vec<SpaceNeed> = self.stages.iter().map(PlannedStage::space).collect();
        let kept = stages.iter().map(|space| space.data).sum::<u64>();
        let meanwhile = stages.iter().map(|space| space.data_meanwhile).max().unwrap_or(0);
        SpaceNeed {
            data: self.input_bytes() + kept + meanwhile,
            data_meanwhile: 0,
            work: stages.iter().map(|space| space.work).max().unwrap_or(0),
            util: stages.iter().map(|space| space.util).max().unwrap_or(0),
        }
    }

    /// Jobs of all stages.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.stages.iter().map(|stage| stage.jobs.len()).sum()
    }
}
