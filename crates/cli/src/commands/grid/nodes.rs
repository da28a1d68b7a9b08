//! `forebay up` on a node of a cluster: the relay, and the controller and the agent if this node is to have them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::cluster::{Cluster, PORT};
use forebay_engine::files::holder;
use forebay_engine::home::{Begin, GridHome};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostState};
use forebay_engine::server::settings;
use forebay_node::home::NodeFile;

use super::updown::{await_daemons, in_time};
use crate::background::Background;
use crate::commands::cluster::etcd;
use crate::home::node_at;
use crate::monitors::Monitors;

/// On the nodes of a cluster.
#[derive(clap::Args, Clone)]
pub struct OnNodes {
    /// Run the grid on the nodes of this cluster (its name, or the folder of this machine's node); run `up` on each node.
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["mount", "transport"])]
    cluster: Option<PathBuf>,
    /// Start a controller on this node of a cluster; of several controllers one leads.
    #[arg(long)]
    controller: bool,
    /// Port on which the relays of all nodes listen [default: 7441].
    #[arg(long, requires = "cluster")]
    port: Option<u16>,
}

/// What `up` starts on a node.
pub struct Wanted<'a> {
    /// Folder of the grid on this node.
    pub root: &'a Path,
    /// Whether an agent, with these options.
    pub agent: Option<&'a [&'a OsStr]>,
    /// Whether the grid may begin anew.
    pub begin: Begin,
    /// Where the controller answers monitors.
    pub monitors: &'a Monitors,
}

impl OnNodes {
    /// Whether a cluster was named.
    pub fn is_named(&self) -> bool {
        self.cluster.is_some()
    }

    /// The cluster of the grid in `home`: the one that was given, or the one of an earlier `up`; none for a grid of one machine.
    pub fn cluster(&self, home: &GridHome) -> Result<Option<Cluster>> {
        let before = Cluster::of(home)?;
        let Some(named) = &self.cluster else {
            ensure!(
                before.is_some() || !self.controller,
                "--controller applies to a grid on the nodes of a cluster: name the cluster with --cluster; a grid on one \
                 machine always has a controller"
            );
            return Ok(before);
        };
        let node = node_at(named).with_context(|| {
            format!(
                "--cluster {}: this machine is not a node of that cluster; join it with forebay cluster join",
                named.display()
            )
        })?;
        let cluster =
            Cluster { node: node.folder().canonicalize()?, port: self.port.unwrap_or(PORT) };
        if before.as_ref().is_some_and(|before| *before != cluster) {
            bail!(
                "{} belongs to another cluster or has another port: see {}; use another folder, or stop the grid on this node and \
                 remove that file",
                home.folder().display(),
                home.cluster().display()
            );
        }
        if before.is_none() {
            ensure!(
                !home.journal().exists(),
                "{} holds the grid of one machine: use another folder for the grid of a cluster",
                home.folder().display()
            );
            cluster.write(home)?;
        }
        Ok(Some(cluster))
    }

    /// Starts what this node is to have, unless it runs, and waits until it is ready.
    pub fn start(&self, home: &GridHome, cluster: &Cluster, wanted: &Wanted<'_>) -> Result<String> {
        let node_home = cluster.node_home()?;
        let node = node_home.existing()?;
        etcd::ensure(&node_home, &node)?;
        let root = wanted.root.as_os_str();
        if holder(&home.relay_lock()).is_none() {
            let log = home.folder().join("relay.log");
            let words = [OsStr::new("relay"), root, OsStr::new("--supervise")];
            let mut relay = [Background::start(&words, &log)?];
            await_daemons(home, &mut relay, || Client::connect(home).is_ok())?;
        }
        let mut daemons = Vec::new();
        if self.controller && holder(&home.supervisor()).is_none() {
            settings::read(home)?;
            let log = home.folder().join("controller.log");
            let mut words = vec![OsStr::new("controller"), root, OsStr::new("--supervise")];
            let monitors = wanted.monitors.arguments()?;
            words.extend(monitors.iter().map(OsString::as_os_str));
            words.extend((wanted.begin == Begin::Anew).then_some(OsStr::new("--new")));
            daemons.push(Background::start(&words, &log)?);
        }
        if let Some(options) = wanted.agent
            && holder(&home.hosts().join(&node.name).join("lock")).is_none()
        {
            let mut words = vec![OsStr::new("agent"), root, "--name".as_ref(), node.name.as_ref()];
            words.extend(options);
            let log = home.folder().join(format!("{}.log", node.name));
            daemons.push(Background::start(&words, &log)?);
        }
        await_ready(home, &node, &mut daemons, wanted)?;
        Ok(node.name)
    }
}

/// Waits until a controller answers, and the agent of this node has joined.
fn await_ready(
    home: &GridHome,
    node: &NodeFile,
    daemons: &mut [Background],
    wanted: &Wanted<'_>,
) -> Result<()> {
    let mut last = Ok(());
    let mut ended = Ok(());
    let ready = in_time(|| {
        ended = daemons.iter_mut().try_for_each(Background::check);
        if ended.is_err() {
            return true;
        }
        match Client::connect(home).and_then(|mut client| client.ask(&Ask::Hosts)) {
            Ok(Answer::Hosts { hosts, .. }) => {
                last = Ok(());
                let is_own = |name: &str| name == node.name;
                wanted.agent.is_none()
                    || hosts
                        .iter()
                        .any(|host| is_own(host.name.as_str()) && host.state == HostState::Up)
            }
            Ok(_) => false,
            Err(error) => {
                last = Err(error);
                false
            }
        }
    });
    ended?;
    last.context("the daemons of this node run, but the grid does not answer")?;
    ensure!(ready, "the agent did not join in time; see the logs in {}", home.folder().display());
    Ok(())
}
