//! What a site says of itself: a TOML file.

use serde::{Deserialize, Serialize};

use super::PlanError;

/// A site that is to be sized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Its name.
    #[serde(default = "unnamed")]
    pub name: String,
    /// Who works there.
    pub users: Vec<Users>,
    /// Permanent data today, in TB.
    #[serde(default)]
    pub data_tb: f64,
    /// Permanent files today, in millions.
    #[serde(default)]
    pub files_millions: f64,
    /// Copies that are kept of permanent data.
    #[serde(default = "one")]
    pub copies: f64,
    /// Growth of users and data in a year: 0.2 is 20 %.
    #[serde(default)]
    pub growth_per_year: f64,
    /// Years that the plan is for.
    #[serde(default)]
    pub years: f64,
    /// MB/s that a core shall be fed with.
    #[serde(default = "rate")]
    pub mb_s_per_core: f64,
    /// Jobs at once for each core.
    #[serde(default = "jobs_per_core")]
    pub jobs_per_core: f64,
    /// Part of all bytes that are of temporary files: 0 to 1.
    #[serde(default = "scratch_share")]
    pub scratch_share: f64,
    /// Nodes beyond those that are needed, for when one fails.
    #[serde(default)]
    pub spare_nodes: u32,
    /// A node.
    #[serde(default)]
    pub node: Node,
    /// A flash device.
    #[serde(default = "flash")]
    pub flash: Device,
    /// A spinning disk.
    #[serde(default = "disk")]
    pub disk: Device,
    /// What things cost, in any currency; without it there is no cost table.
    pub prices: Option<Prices>,
}

/// Users of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Users {
    /// What they do.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// How many there are.
    pub number: f64,
    /// Part of them that works in the busiest hour: 0 to 1.
    pub working: f64,
    /// Jobs that each of those has running at once.
    #[serde(default = "one")]
    pub jobs: f64,
    /// What one of their large jobs reads, in GB [default: as in the published studies].
    pub input_gb: Option<f64>,
}

/// What users do, as the published studies tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Queries, summaries, reports.
    Base,
    /// Regressions, mixed models.
    Advanced,
    /// Data mining.
    Mining,
    /// Loads of data warehouses.
    Etl,
    /// Anything else: say what a job reads.
    Other,
}

/// A node, as it would be bought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// Physical cores.
    pub cores: f64,
    /// Flash devices for scratch that fit into it.
    pub flash_slots: f64,
}

/// A device, as it would be bought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its size in TB.
    pub tb: f64,
    /// What it reads and writes in a second under this load, in MB: measure one with `forebay bench run probe`.
    pub mb_s: f64,
}

/// What things cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// A node without devices.
    pub node: f64,
    /// A flash device.
    pub flash: f64,
    /// A spinning disk.
    pub disk: f64,
    /// The network of a node for each Gbit/s.
    pub network_gbit: f64,
}

impl Default for Node {
    fn default() -> Node {
        Node { cores: 16.0, flash_slots: 8.0 }
    }
}

impl Kind {
    /// What a large job reads where the site does not say, in GB: the sizes of study 1. [`Kind::Other`] has none.
    #[must_use]
    pub fn input_gb(self) -> Option<f64> {
        match self {
            Kind::Base | Kind::Mining | Kind::Etl => Some(10.0),
            Kind::Advanced => Some(1.0),
            Kind::Other => None,
        }
    }
}

fn unnamed() -> String {
    "site".to_owned()
}

fn one() -> f64 {
    1.0
}

/// The rate that the vendors of analytics software ask for.
fn rate() -> f64 {
    100.0
}

/// 20 jobs at once on 16 cores (studies 3 and 4).
fn jobs_per_core() -> f64 {
    1.25
}

fn scratch_share() -> f64 {
    0.6
}

fn flash() -> Device {
    Device { tb: 3.84, mb_s: 2000.0 }
}

fn disk() -> Device {
    Device { tb: 16.0, mb_s: 120.0 }
}

impl Site {
    /// Reads the text of a description; `file` is its name for messages.
    ///
    /// # Errors
    /// [`PlanError`] with the line or the key, the value and what is allowed.
    pub fn read(file: &str, text: &str) -> Result<Site, PlanError> {
        let site: Site = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            PlanError(format!("{file}, line {line}: {}", error.message()))
        })?;
        site.check().map_err(|fault| PlanError(format!("{file}: {fault}")))?;
        Ok(site)
    }

    fn check(&self) -> Result<(), String> {
        if self.users.is_empty() {
            return Err("no [[users]]: describe at least one kind of user".to_owned());
        }
        for (at, users) in self.users.iter().enumerate() {
            let of = |key: &str| format!("[[users]] number {}: {key}", at + 1);
            within(&of("number"), users.number, 1.0, 1e7)?;
            within(&of("working"), users.working, 0.0, 1.0)?;
            within(&of("jobs"), users.jobs, 0.01, 1e4)?;
            match (users.input_gb, users.kind.input_gb()) {
                (Some(input), _) => within(&of("input_gb"), input, 0.0, 1e6)?,
                (None, Some(_)) => {}
                (None, None) => {
                    let key = of("input_gb");
                    return Err(format!("{key} is missing: say how many GB a large job reads"));
                }
            }
        }
        let bounds = [
            ("data_tb", self.data_tb, 0.0, 1e6),
            ("files_millions", self.files_millions, 0.0, 1e6),
            ("copies", self.copies, 1.0, 10.0),
            ("growth_per_year", self.growth_per_year, -0.9, 10.0),
            ("years", self.years, 0.0, 30.0),
            ("mb_s_per_core", self.mb_s_per_core, 1.0, 1e5),
            ("jobs_per_core", self.jobs_per_core, 0.01, 100.0),
            ("scratch_share", self.scratch_share, 0.0, 1.0),
            ("node.cores", self.node.cores, 1.0, 1e4),
            ("node.flash_slots", self.node.flash_slots, 0.0, 1e3),
            ("flash.tb", self.flash.tb, 0.01, 1e4),
            ("flash.mb_s", self.flash.mb_s, 1.0, 1e6),
            ("disk.tb", self.disk.tb, 0.01, 1e4),
            ("disk.mb_s", self.disk.mb_s, 1.0, 1e6),
        ];
        bounds.iter().try_for_each(|(key, value, low, high)| within(key, *value, *low, *high))
    }
}

fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), String> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(format!("{key} = {value} is not allowed: must be a number from {low} to {high}"))
}

/// The description that people start from.
pub const TEMPLATE: &str = r#"# A site for `forebay plan`. Keys that begin with # show their defaults.
name = "risk department"

# Who works there. type: base (queries, reports), advanced (regressions), mining, etl, other
[[users]]
type = "base"
number = 60        # people
working = 0.5      # fraction of them that works in the busiest hour
#jobs = 1          # jobs that each of them runs at once
#input_gb = 10     # what a large job reads; base, mining and etl 10, advanced 1

[[users]]
type = "etl"
number = 4
working = 1.0
jobs = 2
input_gb = 40
"#;

/// The rest of [`TEMPLATE`], which TOML wants in front of the first table.
pub const TEMPLATE_HEAD: &str = r#"#data_tb = 0           # permanent data today
#files_millions = 0    # permanent files today
#copies = 1            # copies of permanent data
#growth_per_year = 0   # of users and data; 0.2 is 20 %
#years = 0             # years that the plan covers
#mb_s_per_core = 100   # 100 is the usual demand, 150 the newer one; or forebay plan --record
#jobs_per_core = 1.25  # 20 jobs at once on 16 cores
#scratch_share = 0.6   # fraction of all bytes that belongs to temporary files
#spare_nodes = 0
#node = { cores = 16, flash_slots = 8 }
#flash = { tb = 3.84, mb_s = 2000 }
#disk = { tb = 16, mb_s = 120 }
#prices = { node = 9000, flash = 600, disk = 350, network_gbit = 20 }
"#;
