//! The plan held against the hardware and the figures of the published studies (requirements C1 to C7).

use serde::Serialize;

/// What a study had and measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Published {
    /// Which, with its workload.
    pub study: &'static str,
    /// Cores that it used.
    pub cores: f64,
    /// Jobs at once, where it says.
    pub jobs: Option<f64>,
    /// MB/s sustained, where it says.
    pub mb_s: Option<f64>,
    /// MB/s per core that the plan is made with.
    pub rate: f64,
    /// Why the two differ, or that they agree.
    pub remark: &'static str,
}

/// The studies that name their cores.
pub const PUBLISHED: &[Published] = &[
    Published {
        study: "[1] 40 sessions, 4 nodes, GPFS",
        cores: 14.0,
        jobs: None,
        mb_s: Some(1300.0),
        rate: 100.0,
        remark: "the storage gave 1375 MB/s at most, and processors were idle for 45 % of the time",
    },
    Published {
        study: "[1] 80 sessions, 4 nodes, GPFS",
        cores: 14.0,
        jobs: None,
        mb_s: Some(1450.0),
        rate: 100.0,
        remark: "more sessions drew more from the same disks",
    },
    Published {
        study: "[2] calibration, 8 nodes, Lustre",
        cores: 96.0,
        jobs: Some(192.0),
        mb_s: None,
        rate: 100.0,
        remark: "two processes per core, while the plan assumes 1.25: it would buy more cores",
    },
    Published {
        study: "[4] mixed 20, one node, work and util on flash",
        cores: 16.0,
        jobs: Some(20.0),
        mb_s: Some(3250.0),
        rate: 150.0,
        remark: "flash delivered 200 MB/s per core: more than the 150 that the plan requires",
    },
];

/// A study beside the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The study.
    #[serde(flatten)]
    pub published: Published,
    /// MB/s that the plan asks to be sustained for its cores.
    pub planned_mb_s: f64,
    /// Cores that the plan wants for its jobs at once.
    pub planned_cores: Option<f64>,
}

/// The studies beside the plan, with this many jobs for each core.
#[must_use]
pub fn beside(jobs_per_core: f64) -> Vec<Beside> {
    let each = |one: &Published| Beside {
        planned_mb_s: one.cores * one.rate,
        planned_cores: one.jobs.map(|jobs| (jobs / jobs_per_core).ceil()),
        published: one.clone(),
    };
    PUBLISHED.iter().map(each).collect()
}
