//! How large a grid must be: from who works there to cores, MB/s, devices, network and memory, with every formula shown.
//!
//! [`Site`] is the description, [`plan`] the answer: a list of [`Line`]s, each with the formula, its numbers and where it comes
//! from, and the [`layouts`] of storage compared. [`published`] holds the plan against the hardware of the published studies.
//! Pure: nothing is measured here. What was measured (MB/s per core) comes in with the description.

pub mod layouts;
pub mod published;
pub mod simulation;
mod site;

use serde::Serialize;

pub use layouts::{Layout, Part};
pub use site::{Device, Kind, Node, Prices, Site, TEMPLATE, TEMPLATE_HEAD, Users};

/// A description that cannot be planned for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

/// One number of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Key for scripts.
    pub key: &'static str,
    /// What it is.
    pub what: &'static str,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// How it was reckoned, with the numbers.
    pub formula: String,
    /// Where the formula comes from.
    pub source: &'static str,
}

/// What a site needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The site.
    pub site: Site,
    /// The numbers, each of which uses those before it.
    pub lines: Vec<Line>,
    /// Storage in several ways.
    pub layouts: Vec<Layout>,
    /// What would change if something else did.
    pub what_if: Vec<WhatIf>,
}

/// The plan with one number changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// What is changed.
    pub change: String,
    /// Nodes.
    pub nodes: f64,
    /// MB/s that must be sustained.
    pub mb_s: f64,
    /// Peak of temporary files, in TB.
    pub scratch_tb: f64,
}

/// What the storage is to be able to do against what is needed (requirement D6).
const HEADROOM: f64 = 2.0;
/// A sort may copy its input three times (study 3).
const SORT_COPIES: f64 = 3.0;
/// How full a file system may be before it slows down.
const FILL: f64 = 0.8;
/// Memory of a job: MEMSIZE of the studies 1 and 4, in GiB.
const JOB_GIB: f64 = 2.0;
/// Page cache for each core, in GiB: 32 GiB of a node with 16 cores is the least of study 3 (32 to 128 of 256 GiB).
const CACHE_GIB: f64 = 2.0;
/// Bytes of the cluster's store for each record, with compaction under way (measured: docs/adr/0020).
const RECORD_BYTES: f64 = 36.0;
/// Records of a file: its inode and its name.
const RECORDS_PER_FILE: f64 = 2.0;

/// A number for people: whole from 100 on, else with up to two digits.
#[must_use]
pub fn shown(number: f64) -> String {
    let text = if number.abs() >= 100.0 { format!("{number:.0}") } else { format!("{number:.2}") };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// The numbers in the making.
struct Lines(Vec<Line>);

impl Lines {
    fn add(
        &mut self,
        (key, what): (&'static str, &'static str),
        value: f64,
        unit: &'static str,
        formula: String,
        source: &'static str,
    ) -> f64 {
        self.0.push(Line { key, what, value, unit, formula, source });
        value
    }
}

impl Plan {
    /// The number with this key; 0 if there is none.
    #[must_use]
    pub fn value(&self, key: &str) -> f64 {
        self.lines.iter().find(|line| line.key == key).map_or(0.0, |line| line.value)
    }
}

/// What a site needs.
#[must_use]
pub fn plan(site: &Site) -> Plan {
    let lines = lines(site);
    let mut plan = Plan { site: site.clone(), lines, layouts: Vec::new(), what_if: Vec::new() };
    plan.layouts = layouts::all(&plan);
    plan.what_if = what_if(site);
    plan
}

fn lines(site: &Site) -> Vec<Line> {
    let mut lines = Lines(Vec::new());
    let (cores, nodes) = compute(site, &mut lines);
    rates(site, cores, nodes, &mut lines);
    space(site, &mut lines);
    memory(site, &mut lines);
    lines.0
}

/// Jobs at once, cores and nodes.
fn compute(site: &Site, lines: &mut Lines) -> (f64, f64) {
    let growth = lines.add(
        ("growth", "growth until then"),
        (1.0 + site.growth_per_year).powf(site.years),
        "times",
        format!("(1 + {})^{}", shown(site.growth_per_year), shown(site.years)),
        "description",
    );
    let terms: Vec<String> = site
        .users
        .iter()
        .map(|one| format!("{} x {} x {}", shown(one.number), shown(one.working), shown(one.jobs)))
        .collect();
    let jobs: f64 = site.users.iter().map(Users::jobs_at_once).sum();
    let jobs = lines.add(
        ("jobs", "jobs at once in the busiest hour"),
        // Measured numbers are sums of parts: what is whole but for rounding is whole.
        (jobs * growth - 1e-9).ceil(),
        "jobs",
        format!("({}) x {}", terms.join(" + "), shown(growth)),
        "users x fraction that works x jobs of each",
    );
    let needed = lines.add(
        ("cores", "cores needed"),
        (jobs / site.jobs_per_core).ceil(),
        "cores",
        format!("{} / {}", shown(jobs), shown(site.jobs_per_core)),
        "20 jobs at once on 16 cores, studies 3 and 4",
    );
    let nodes = (needed / site.node.cores).ceil();
    let spare = f64::from(site.spare_nodes);
    let nodes = lines.add(
        ("nodes", "nodes"),
        nodes + spare,
        "nodes",
        format!("{} / {} + {spare}", shown(needed), shown(site.node.cores)),
        "description",
    );
    (needed, nodes)
}

/// What must move in a second, and over the network.
fn rates(site: &Site, cores: f64, nodes: f64, lines: &mut Lines) {
    let need = lines.add(
        ("mb_s", "to be sustained"),
        cores * site.mb_s_per_core,
        "MB/s",
        format!("{} x {}", shown(cores), shown(site.mb_s_per_core)),
        "MB/s per core: 100 is the usual demand, 150 the newer one, or the measured rate",
    );
    lines.add(
        ("storage_mb_s", "capability of the storage"),
        need * HEADROOM,
        "MB/s",
        format!("{} x {HEADROOM}", shown(need)),
        "twice the need: peaks, repair, backup",
    );
    let in_service = (nodes - f64::from(site.spare_nodes)).max(1.0);
    let shared = need * (1.0 - site.scratch_share) * HEADROOM / in_service;
    lines.add(
        ("network_gbit", "network of a node, scratch on its own flash"),
        shared * 8.0 / 1000.0,
        "Gbit/s",
        format!(
            "{} x (1 - {}) x {HEADROOM} / {} x 8 / 1000",
            shown(need),
            shown(site.scratch_share),
            shown(in_service)
        ),
        "native scratch stays on its node",
    );
    lines.add(
        ("network_shared_gbit", "network of a node, everything on shared storage"),
        need * HEADROOM / in_service * 8.0 / 1000.0,
        "Gbit/s",
        format!("{} x {HEADROOM} / {} x 8 / 1000", shown(need), shown(in_service)),
        "all bytes cross it",
    );
}

/// Space of permanent and temporary files.
fn space(site: &Site, lines: &mut Lines) {
    let growth = lines.0[0].value;
    let inputs: f64 = site.users.iter().map(|one| one.jobs_at_once() * one.input()).sum();
    lines.add(
        ("scratch_tb", "temporary files at the peak"),
        inputs * growth * SORT_COPIES / 1000.0,
        "TB",
        format!(
            "{} GB of inputs at once x {} x {SORT_COPIES} / 1000",
            shown(inputs),
            shown(growth)
        ),
        "a sort may copy its input three times, study 3",
    );
    lines.add(
        ("data_tb", "permanent data"),
        site.data_tb * growth * site.copies / FILL,
        "TB",
        format!(
            "{} x {} x {} copies / {FILL}",
            shown(site.data_tb),
            shown(growth),
            shown(site.copies)
        ),
        "file systems slow down beyond 80 %",
    );
    let records = site.files_millions * 1e6 * growth * RECORDS_PER_FILE;
    lines.add(
        ("etcd_mb", "names in etcd, if the cluster stores them there"),
        records * RECORD_BYTES / 1e6,
        "MB",
        format!(
            "{} million files x {} x {RECORDS_PER_FILE} records x {RECORD_BYTES} bytes",
            shown(site.files_millions),
            shown(growth)
        ),
        "measured; etcd recommends 8 GB at most; beyond that use an object store",
    );
}

/// Memory of a node.
fn memory(site: &Site, lines: &mut Lines) {
    let jobs = site.node.cores * site.jobs_per_core;
    lines.add(
        ("memory_gib", "memory of a node"),
        jobs * JOB_GIB + site.node.cores * CACHE_GIB,
        "GiB",
        format!(
            "{} jobs x {JOB_GIB} + {} cores x {CACHE_GIB} of page cache",
            shown(jobs),
            shown(site.node.cores)
        ),
        "MEMSIZE 2 GiB, studies 1 and 4; 32 to 128 GiB of cache on nodes of 256 GiB, study 3",
    );
}

impl Users {
    /// Jobs of these users that run at once, today.
    #[must_use]
    pub fn jobs_at_once(&self) -> f64 {
        self.number * self.working * self.jobs
    }

    /// What one of their large jobs reads, in GB.
    #[must_use]
    pub fn input(&self) -> f64 {
        self.input_gb.or(self.kind.input_gb()).unwrap_or(0.0)
    }
}

/// The plan for sites that are a little different.
fn what_if(site: &Site) -> Vec<WhatIf> {
    let with = |change: &str, alter: &dyn Fn(&mut Site)| {
        let mut other = site.clone();
        alter(&mut other);
        let plan =
            Plan { lines: lines(&other), site: other, layouts: Vec::new(), what_if: Vec::new() };
        WhatIf {
            change: change.to_owned(),
            nodes: plan.value("nodes"),
            mb_s: plan.value("mb_s"),
            scratch_tb: plan.value("scratch_tb"),
        }
    };
    let users = |factor: f64| {
        move |site: &mut Site| site.users.iter_mut().for_each(|one| one.number *= factor)
    };
    let mut all = vec![with("as described", &|_| {})];
    all.push(with("half the users", &users(0.5)));
    all.push(with("twice the users", &users(2.0)));
    all.push(with("everybody works at once", &|site| {
        site.users.iter_mut().for_each(|one| one.working = 1.0);
    }));
    all.push(with("150 MB/s per core", &|site| site.mb_s_per_core = 150.0));
    all.push(with("one job per core", &|site| site.jobs_per_core = 1.0));
    if site.years > 0.0 {
        all.push(with("today, without growth", &|site| site.years = 0.0));
        let years = format!("{} years", shown(site.years + 2.0));
        all.push(with(&years, &|site| site.years += 2.0));
    }
    all
}

/// What to settle before anything is bought.
pub const CHECKLIST: &[&str] = &[
    "count the jobs that run at once in the busiest hour (forebay usage, sacct, bacct), and the largest inputs",
    "run forebay bench run mixed on a machine like those planned, and plan again with --record",
    "run forebay bench run probe on a device of the kind to buy: MB/s under 32 streams, not the data sheet's",
    "decide which data must survive the loss of a node (strict filesets, copies, backup) and which need not (scratch)",
    "three machines for etcd, each with its own flash device; forebay doctor checks its latency",
    "one time source, the same users and groups, and the same kernel (6.14 or later) on all nodes",
    "forebay doctor on every node, and forebay doctor --shared for storage that hosts share",
    "space for one year of growth, and room in chassis and switches for the next",
];

#[cfg(test)]
mod tests;
