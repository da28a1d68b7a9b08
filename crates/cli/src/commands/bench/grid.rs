//! Running a workload's jobs on the grid.

use std::path::PathBuf;
use std::sync::Arc;

use super::launcher::{GridLauncher, Sight};
use anyhow::{Context as _, Result, bail};
use forebay_base::Clock;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostState, HostView};
use forebay_grid::journal::HostSwitch;
use forebay_grid::parse::hosts::HostList;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::QueueName;
use forebay_workload::mix::Plan;

use crate::commands::grid::home_of;
use crate::commands::grid::placement::{environment, umask};

/// Whether and how the jobs go to the grid.
#[derive(clap::Args)]
pub struct GridArguments {
    /// Submit the jobs to the grid in ROOT, or in FOREBAY_GRID if ROOT is omitted. Logical nodes are its hosts, by name; more --nodes
    /// than hosts share them. The slots of a host limit how many jobs run on it at once; on a cluster one slot of each host is for the
    /// watcher, which measures it.
    #[arg(long, value_name = "ROOT", num_args = 0..=1, conflicts_with = "concurrent")]
    grid: Option<Option<PathBuf>>,
    /// Queue for the jobs.
    #[arg(short, long, requires = "grid", value_parser = |text: &str| text.parse::<QueueName>())]
    queue: Option<QueueName>,
    /// Slots of each job.
    #[arg(short = 'n', long, requires = "grid", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// Hosts on which the jobs may run, such as 'gridn1 gridn2' or '~gridn3 all'.
    #[arg(short = 'm', long, requires = "grid", default_value = "", value_parser = |text: &str| text.parse::<HostList>())]
    hosts: HostList,
    /// Prefix of the jobs' names [default: the name of the workload].
    #[arg(short = 'J', long, requires = "grid")]
    name: Option<String>,
}

/// A grid that will run the jobs.
pub struct Target {
    home: GridHome,
    hosts: Vec<HostView>,
    sight: Sight,
}

impl Target {
    /// Where the processes of jobs will be.
    pub fn sight(&self) -> Sight {
        self.sight
    }

    /// Slots of each host that its watcher takes.
    fn watcher_slots(&self) -> u32 {
        match self.sight {
            Sight::Here => 0,
            Sight::Hosts => 1,
        }
    }
}

impl GridArguments {
    /// The grid, if one shall run the jobs.
    pub fn target(&self) -> Result<Option<Target>> {
        let Some(root) = &self.grid else { return Ok(None) };
        let home = home_of(root.clone())?;
        let answer = Client::connect(&home)?.ask(&Ask::Hosts)?;
        let Answer::Hosts { mut hosts, .. } = answer else {
            bail!("unexpected answer from the controller: {answer:?}");
        };
        hosts.retain(|host| {
            host.state == HostState::Up
                && host.switch == HostSwitch::Open
                && host.slots > 0
                && self.hosts.preference(&host.name).is_some()
        });
        let sight = if home.cluster().exists() { Sight::Hosts } else { Sight::Here };
        let target = Target { home, hosts, sight };
        if !target.hosts.iter().any(|host| host.slots >= self.slots) {
            bail!("no host of the grid that is up and open has {} slots", self.slots);
        }
        let needed = self.slots + target.watcher_slots();
        let small = target.hosts.iter().find(|host| host.slots < needed);
        if let Some(small) = small.filter(|_| target.hosts.len() > 1 || sight == Sight::Hosts) {
            bail!(
                "host {} has {} slots, and {needed} are needed{}; leave it out with -m '~{} all'",
                small.name,
                small.slots,
                if sight == Sight::Hosts {
                    ", one of them for the watcher of the host"
                } else {
                    ""
                },
                small.name
            );
        }
        Ok(Some(target))
    }

    /// How many jobs run at once on each logical node of a plan.
    pub fn concurrent(&self, target: &Target, plan: &Plan) -> u32 {
        let hosts = u32::try_from(target.hosts.len()).unwrap_or(u32::MAX).max(1);
        let nodes = plan.stages.iter().map(|stage| stage.nodes).max().unwrap_or(1);
        let room =
            |host: &HostView| (host.slots - target.watcher_slots().min(host.slots)) / self.slots;
        let least = target.hosts.iter().map(room).min().unwrap_or(1);
        (least / nodes.div_ceil(hosts)).max(1)
    }

    /// What starts the jobs.
    pub fn launcher(
        &self,
        target: Target,
        workload: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<GridLauncher> {
        let directory = std::env::current_dir()?;
        let template = JobSpec {
            queue: self.queue.clone(),
            name: self.name.clone().unwrap_or_else(|| workload.to_owned()),
            slots: self.slots,
            hosts: self.hosts.clone(),
            environment: environment(&[])?.into(),
            directory: directory.to_str().context("the current directory is not UTF-8")?.to_owned(),
            umask: umask(),
            ..JobSpec::default()
        };
        let hosts = target.hosts.into_iter().map(|host| host.name).collect();
        Ok(GridLauncher::connect(target.home, hosts, target.sight, template, clock)?)
    }
}
