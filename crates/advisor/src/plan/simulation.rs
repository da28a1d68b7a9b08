//! How recorded jobs would run on more nodes, with other cores, slots or storage.
//!
//! A fluid model of the grid: each job needs processor seconds, bytes of the storage and time for other things (latencies, its
//! own pauses), one after the other in small portions. The jobs of a machine share its cores, those of a storage its rate,
//! each as fairly as possible; a job that finds no slot on its node waits for one, and those behind it wait as well: first the queues of higher
//! priority, then who was due earlier. A queue that has a limit passes nobody on while its slots are in use. So a job with `c` processor seconds, `b` bytes
//! and `o` other seconds progresses at `1 / (c * y + b * x + o)` of itself per second, where `y` is the stretch of the machine's
//! processors (1 if they suffice) and `x` the seconds per byte of its storage: the least values at which cores and storage are
//! not used beyond what they have. Between two events (a job is due, starts or ends) both are constant.
//!
//! Bytes that are moved in the background use the storage, and delay others; the job itself does not wait for them.
//!
//! Not modelled: a page cache that is too small for more jobs, writers that are held back because too much is dirty, random order
//! of requests, networks beside the storage, and jobs that wait for each other. Pure: the same jobs and setup give the same
//! prediction.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::PlanError;

/// The most nodes that are simulated.
pub const NODES_MAX: u32 = 1024;
/// The most jobs that are simulated.
pub const JOBS_MAX: usize = 1_000_000;
/// Halvings of an interval: the stretch of processors and storage is found to one part in 2^30.
const HALVINGS: u32 = 30;
/// Work that is less than this part of a job is done: rounding.
const DONE: f64 = 1e-9;

/// What one job needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// Processor seconds.
    pub processor_seconds: f64,
    /// Processors that it uses at once when it computes; at least 1.
    pub threads: f64,
    /// Bytes that it moves from and to the storage, and waits for.
    pub storage_bytes: f64,
    /// Bytes that are moved for it while it goes on: written behind, read ahead. They use the storage only.
    pub background_bytes: f64,
    /// Seconds that it needs for neither.
    pub other_seconds: f64,
}

impl Demand {
    /// All bytes that the storage moves for it.
    #[must_use]
    pub fn moved_bytes(&self) -> f64 {
        self.storage_bytes + self.background_bytes
    }
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    /// Node that it runs on, from 0; none if it goes where most slots are free.
    pub node: Option<u32>,
    /// Slots that it takes.
    pub slots: u32,
    /// When it is due, in seconds from the start.
    pub due_seconds: f64,
    /// What it needs.
    pub demand: Demand,
    /// Its queue: a place in the list of queues.
    pub queue: usize,
}

/// In which order jobs start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Those of a higher one start first.
    pub priority: u32,
    /// The most slots that its jobs have at once on all nodes together.
    pub slots_max: Option<u32>,
}

/// What would happen, and how long each job would wait for slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulated {
    /// All jobs together.
    pub prediction: Prediction,
    /// Seconds that each job waited for slots, by queue, in the order in which they started.
    pub waits: Vec<Vec<f64>>,
}

/// What the jobs run on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// Nodes.
    pub nodes: u32,
    /// Nodes that are parts of one machine and share its cores and its disks: 1 unless they are logical ones.
    pub nodes_per_machine: u32,
    /// Processors of each machine.
    pub machine_cores: f64,
    /// Jobs at once on each node.
    pub concurrent: u32,
    /// What the storage moves, in bytes per second; none if it is quick enough for everything.
    pub storage: Option<Storage>,
}

/// What a storage moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Storage {
    /// Bytes per second, reads and writes together.
    pub bytes_per_second: f64,
    /// Who has that rate.
    pub of: StorageOf,
}

/// Who has the rate of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageOf {
    /// All machines together.
    All,
    /// Each machine for itself.
    Machine,
}

/// What would happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Prediction {
    /// Seconds from the start to the end of the last job.
    pub seconds: f64,
    /// Real seconds of all jobs, from start to end.
    pub real_seconds: f64,
    /// Processor seconds of all jobs.
    pub processor_seconds: f64,
    /// Seconds that jobs waited for a slot.
    pub slot_wait_seconds: f64,
    /// Bytes that were moved.
    pub storage_bytes: f64,
    /// Part of the time in which all cores of a machine are in use, 0 to 1; the mean of all machines.
    pub cores_full: f64,
    /// Part of the time in which the storage of a machine is used to its limit, 0 to 1; the mean of all machines.
    pub storage_full: f64,
}

impl Prediction {
    /// Processor seconds by real seconds.
    #[must_use]
    pub fn cpu_per_real(&self) -> f64 {
        if self.real_seconds > 0.0 { self.processor_seconds / self.real_seconds } else { 0.0 }
    }

    /// Bytes per second over the whole run.
    #[must_use]
    pub fn storage_bytes_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.storage_bytes / self.seconds } else { 0.0 }
    }
}

/// Runs the jobs of one queue.
///
/// # Errors
/// [`PlanError`] if the setup or a job makes no sense (a job on a node that does not exist, no cores, a negative demand).
pub fn simulate(jobs: &[Job], setup: &Setup) -> Result<Prediction, PlanError> {
    simulate_queues(jobs, setup, &[Queue::default()]).map(|simulated| simulated.prediction)
}

/// Runs the jobs of several queues.
///
/// # Errors
/// As [`simulate`]; also if a job is of a queue that is not in the list, or takes more slots than its queue has.
pub fn simulate_queues(
    jobs: &[Job],
    setup: &Setup,
    queues: &[Queue],
) -> Result<Simulated, PlanError> {
    check(jobs, setup, queues)?;
    let mut run = Run::new(jobs, setup, queues);
    while run.step() {}
    Ok(run.end())
}

fn check(jobs: &[Job], setup: &Setup, queues: &[Queue]) -> Result<(), PlanError> {
    let refuse = |reason: String| Err(PlanError(reason));
    if !(1..=NODES_MAX).contains(&setup.nodes) || setup.nodes_per_machine == 0 {
        return refuse(format!("{} nodes: must be 1 to {NODES_MAX}", setup.nodes));
    }
    if jobs.len() > JOBS_MAX {
        return refuse(format!("{} jobs: at most {JOBS_MAX} are simulated", jobs.len()));
    }
    let positive = |number: f64| number.is_finite() && number > 0.0;
    if !positive(setup.machine_cores) || setup.concurrent == 0 {
        return refuse("a machine needs at least a part of a core, and a node one slot".to_owned());
    }
    if setup.storage.is_some_and(|storage| !positive(storage.bytes_per_second)) {
        return refuse("the rate of the storage must be greater than 0".to_owned());
    }
    for (at, job) in jobs.iter().enumerate() {
        let Demand { processor_seconds, threads, storage_bytes, background_bytes, other_seconds } =
            job.demand;
        let numbers =
            [job.due_seconds, processor_seconds, storage_bytes, background_bytes, other_seconds];
        let sound = numbers.iter().all(|number| number.is_finite() && *number >= 0.0);
        let fits = job.node.is_none_or(|node| node < setup.nodes)
            && (1..=setup.concurrent).contains(&job.slots)
            && queues.get(job.queue).is_some_and(|queue| queue.has_room(0, job.slots));
        if !sound || !(1.0..=1e6).contains(&threads) || !fits {
            return refuse(format!("job {at} cannot be simulated: {job:?}"));
        }
    }
    Ok(())
}

impl Queue {
    fn has_room(self, used: u32, slots: u32) -> bool {
        self.slots_max.is_none_or(|most| used.saturating_add(slots) <= most)
    }
}

/// A job at work.
struct Active {
    node: u32,
    slots: u32,
    queue: usize,
    demand: Demand,
    /// What is left of it, 1 to 0.
    left: f64,
    /// Parts of it per second, until the next event.
    rate: f64,
}

impl Active {
    /// Parts of the job per second at this stretch of processors and these seconds per byte.
    fn rate_at(&self, stretch: f64, seconds_per_byte: f64) -> f64 {
        let d = &self.demand;
        let seconds = d.processor_seconds / d.threads * stretch
            + d.storage_bytes * seconds_per_byte
            + d.other_seconds;
        if seconds > 0.0 { 1.0 / seconds } else { f64::INFINITY }
    }
}

/// Finds the least value from `least` to `most` at which `use_at` (falling) is at most `limit`.
fn least_within(least: f64, most: f64, limit: f64, use_at: impl Fn(f64) -> f64) -> f64 {
    if use_at(least) <= limit || most <= least {
        return least;
    }
    let (mut low, mut high) = (least, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if use_at(middle) <= limit { high = middle } else { low = middle }
    }
    high
}

/// A simulation under way.
struct Run<'a> {
    setup: &'a Setup,
    queues: &'a [Queue],
    now: f64,
    /// Jobs that are not due yet, the earliest first.
    coming: VecDeque<&'a Job>,
    /// Jobs that wait for a slot, by node and queue; those that may go anywhere are together.
    waiting: BTreeMap<Option<u32>, Vec<VecDeque<&'a Job>>>,
    slots_used: Vec<u32>,
    /// Slots in use by queue.
    queue_slots_used: Vec<u32>,
    /// Jobs at work, by machine.
    active: Vec<Vec<Active>>,
    /// Machines whose cores are all in use, until the next event.
    cores_full: usize,
    /// Machines whose storage is used to its limit, until the next event.
    storage_full: usize,
    /// Seconds of `cores_full`, added up over the machines.
    cores_full_seconds: f64,
    /// The same of `storage_full`.
    storage_full_seconds: f64,
    prediction: Prediction,
    waits: Vec<Vec<f64>>,
}

/// The job that starts next of those that wait for the same node, if its queue has room.
fn next_of<'a>(
    waiting: &[VecDeque<&'a Job>],
    queues: &[Queue],
    slots_used: &[u32],
) -> Option<&'a Job> {
    let fronts = waiting.iter().filter_map(|queue| queue.front().copied());
    let with_room =
        fronts.filter(|job| queues[job.queue].has_room(slots_used[job.queue], job.slots));
    with_room.min_by(|one, other| {
        let priority = |job: &Job| queues[job.queue].priority;
        let by_time = || one.due_seconds.total_cmp(&other.due_seconds);
        priority(other).cmp(&priority(one)).then_with(by_time)
    })
}

impl<'a> Run<'a> {
    fn new(jobs: &'a [Job], setup: &'a Setup, queues: &'a [Queue]) -> Run<'a> {
        let mut coming: Vec<&Job> = jobs.iter().collect();
        coming.sort_by(|a, b| a.due_seconds.total_cmp(&b.due_seconds));
        let machines = setup.nodes.div_ceil(setup.nodes_per_machine) as usize;
        Run {
            setup,
            queues,
            now: 0.0,
            coming: coming.into(),
            waiting: BTreeMap::new(),
            slots_used: vec![0; setup.nodes as usize],
            queue_slots_used: vec![0; queues.len()],
            active: std::iter::repeat_with(Vec::new).take(machines).collect(),
            cores_full: 0,
            storage_full: 0,
            cores_full_seconds: 0.0,
            storage_full_seconds: 0.0,
            prediction: Prediction::default(),
            waits: vec![Vec::new(); queues.len()],
        }
    }

    /// Goes on to the next event; false when nothing is left to do.
    fn step(&mut self) -> bool {
        self.start_due();
        self.share();
        let next_end = self
            .active
            .iter()
            .flatten()
            .map(|job| if job.rate > 0.0 { job.left / job.rate } else { f64::INFINITY })
            .fold(f64::INFINITY, f64::min);
        let next_due = self.coming.front().map_or(f64::INFINITY, |job| job.due_seconds - self.now);
        let seconds = next_end.min(next_due);
        if !seconds.is_finite() {
            return false;
        }
        self.pass(seconds);
        true
    }

    /// Jobs that are due go to their node, where they start if there is a slot.
    fn start_due(&mut self) {
        while let Some(job) = self.coming.front().filter(|job| job.due_seconds <= self.now) {
            let empty = || vec![VecDeque::new(); self.queues.len()];
            self.waiting.entry(job.node).or_insert_with(empty)[job.queue].push_back(job);
            self.coming.pop_front();
        }
        let (slots, setup, now) = (&mut self.slots_used, self.setup, self.now);
        for (node, waiting) in &mut self.waiting {
            while let Some(job) = next_of(waiting, self.queues, &self.queue_slots_used) {
                let emptiest = || (0..setup.nodes).min_by_key(|node| slots[*node as usize]);
                let Some(node) = node.or_else(emptiest) else { break };
                let used = &mut slots[node as usize];
                if *used + job.slots > setup.concurrent {
                    break;
                }
                *used += job.slots;
                self.queue_slots_used[job.queue] += job.slots;
                let waited = now - job.due_seconds;
                self.waits[job.queue].push(waited);
                self.prediction.slot_wait_seconds += waited;
                self.prediction.processor_seconds += job.demand.processor_seconds;
                self.prediction.storage_bytes += job.demand.moved_bytes();
                let Job { slots, demand, queue, .. } = *job;
                let active = Active { node, slots, queue, demand, left: 1.0, rate: 0.0 };
                self.active[(node / setup.nodes_per_machine) as usize].push(active);
                waiting[queue].pop_front();
            }
        }
        self.waiting.retain(|_, waiting| waiting.iter().any(|queue| !queue.is_empty()));
    }

    /// Gives each job its rate until the next event.
    fn share(&mut self) {
        let cores = self.setup.machine_cores;
        let stretch_of = |jobs: &[Active], seconds_per_byte: f64| {
            let most = jobs.iter().map(|job| job.demand.threads).sum::<f64>() / cores;
            least_within(1.0, most, cores, |stretch| {
                jobs.iter()
                    .filter(|job| job.demand.processor_seconds > 0.0)
                    .map(|job| {
                        job.demand.processor_seconds * job.rate_at(stretch, seconds_per_byte)
                    })
                    .sum()
            })
        };
        let moved = |jobs: &[Active], seconds_per_byte: f64| -> f64 {
            let stretch = stretch_of(jobs, seconds_per_byte);
            jobs.iter()
                .filter(|job| job.demand.moved_bytes() > 0.0)
                .map(|job| job.demand.moved_bytes() * job.rate_at(stretch, seconds_per_byte))
                .sum()
        };
        let price = |machines: &[Vec<Active>]| {
            let Some(storage) = self.setup.storage else { return 0.0 };
            let rate = storage.bytes_per_second;
            let jobs = machines.iter().map(Vec::len).sum::<usize>().max(1) as f64;
            least_within(1.0 / rate, jobs / rate, rate, |seconds_per_byte| {
                machines.iter().map(|jobs| moved(jobs, seconds_per_byte)).sum()
            })
        };
        let prices: Vec<f64> = match self.setup.storage.map(|storage| storage.of) {
            Some(StorageOf::All) => vec![price(&self.active); self.active.len()],
            _ => self.active.iter().map(|jobs| price(std::slice::from_ref(jobs))).collect(),
        };
        let stretches: Vec<f64> =
            self.active.iter().zip(&prices).map(|(jobs, price)| stretch_of(jobs, *price)).collect();
        let slow = |price: &&f64| {
            self.setup.storage.is_some_and(|one| **price > (1.0 + DONE) / one.bytes_per_second)
        };
        self.cores_full = stretches.iter().filter(|stretch| **stretch > 1.0 + DONE).count();
        self.storage_full = prices.iter().filter(slow).count();
        for (jobs, (stretch, price)) in self.active.iter_mut().zip(stretches.iter().zip(&prices)) {
            for job in jobs {
                job.rate = job.rate_at(*stretch, *price);
            }
        }
    }

    /// Time passes; jobs that are done give their slots back.
    fn pass(&mut self, seconds: f64) {
        self.now += seconds;
        self.cores_full_seconds += self.cores_full as f64 * seconds;
        self.storage_full_seconds += self.storage_full as f64 * seconds;
        for jobs in &mut self.active {
            self.prediction.real_seconds += jobs.len() as f64 * seconds;
            let (slots, of_queues) = (&mut self.slots_used, &mut self.queue_slots_used);
            jobs.retain_mut(|job| {
                job.left -= if job.rate.is_finite() { job.rate * seconds } else { 1.0 };
                let over = job.left <= DONE;
                let given_back = if over { job.slots } else { 0 };
                slots[job.node as usize] -= given_back;
                of_queues[job.queue] -= given_back;
                !over
            });
        }
    }

    fn end(self) -> Simulated {
        let machines = self.active.len() as f64;
        let part = |seconds: f64| if self.now > 0.0 { seconds / machines / self.now } else { 0.0 };
        let prediction = Prediction {
            seconds: self.now,
            cores_full: part(self.cores_full_seconds),
            storage_full: part(self.storage_full_seconds),
            ..self.prediction
        };
        Simulated { prediction, waits: self.waits }
    }
}

#[cfg(test)]
mod tests;
