//! `forebay cluster`.

pub mod daemon;
pub mod etcd;
mod membership;
mod monitor;
mod status;
pub mod view;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Subcommand;
use forebay_base::time::SystemClock;
use forebay_node::NodeHome;
use forebay_node::home::{BASE, NodeFile};
use forebay_node::settings::Settings;
use forebay_node::setup::Tools;

/// Create a cluster of machines; add, show and remove its nodes.
///
/// init creates the cluster on its first node, with a running etcd or one that it starts. Further nodes join with a token.
/// Each node has a daemon, which
/// init and join start. Nodes talk to each other over TLS on port 7440, with certificates that the cluster
/// creates and renews by itself. docs/operations.md describes the whole setup.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster init --name grid1 --etcd http://host1:2379
  forebay cluster init --name grid1 --start-etcd
  forebay cluster token                    print a token for the next nodes, valid for an hour
  forebay cluster join TOKEN               on each further machine
  forebay cluster status")]
pub struct Cluster {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Init(membership::Init),
    Token(membership::Token),
    Join(membership::Join),
    Status(status::Status),
    Start(daemon::Start),
    Stop(daemon::Stop),
    Drain(membership::Drain),
    Remove(membership::Remove),
    Leave(membership::Leave),
    Renew(membership::Renew),
    Monitor(monitor::Monitor),
    Etcd(etcd::Etcd),
}

impl Cluster {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::Init(command) => command.run(),
            Action::Token(command) => command.run(),
            Action::Join(command) => command.run(),
            Action::Status(command) => command.run(),
            Action::Start(command) => command.run(),
            Action::Stop(command) => command.run(),
            Action::Drain(command) => command.run(),
            Action::Remove(command) => command.run(),
            Action::Leave(command) => command.run(),
            Action::Renew(command) => command.run(),
            Action::Monitor(command) => command.run(),
            Action::Etcd(command) => command.run(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Where the folders of nodes are.
#[derive(clap::Args, Clone)]
struct Base {
    /// Directory with a folder for each cluster of this machine [default: the environment variable FOREBAY_CLUSTER_HOME,
    /// otherwise /var/lib/forebay/cluster].
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

/// Directory with a folder for each cluster that this machine is a node of.
pub fn base() -> PathBuf {
    std::env::var_os("FOREBAY_CLUSTER_HOME").map_or_else(|| BASE.into(), PathBuf::from)
}

impl Base {
    fn path(&self) -> Result<PathBuf> {
        Ok(std::path::absolute(self.home.clone().unwrap_or_else(base))?)
    }
}

/// Which cluster.
#[derive(clap::Args, Clone)]
pub struct Which {
    /// Name of the cluster [default: the only cluster of this machine].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    base: Base,
}

impl Which {
    /// Whether anything was said.
    pub fn is_given(&self) -> bool {
        self.name.is_some() || self.base.home.is_some()
    }

    /// The folder of this machine's node, or of one that is being made.
    fn home(&self) -> Result<NodeHome> {
        let base = self.base.path()?;
        let name = match &self.name {
            Some(name) => name.clone(),
            None => only_cluster(&base, "--name NAME")?,
        };
        Ok(NodeHome::of(&base, &name)?)
    }

    /// The folder of this machine's node, which is one.
    pub fn node(&self) -> Result<(NodeHome, NodeFile)> {
        let home = self.home()?;
        let file = home.existing()?;
        Ok((home, file))
    }
}

/// The one cluster that this machine is a node of; `option` is how a user names one of several.
pub fn only_cluster(base: &Path, option: &str) -> Result<String> {
    let mut names = Vec::new();
    for folder in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        if NodeHome::of(base, &name).is_ok_and(|home| home.node().is_ok_and(|node| node.is_some()))
        {
            names.push(name);
        }
    }
    names.sort();
    match names.as_slice() {
        [name] => Ok(name.clone()),
        [] => bail!(
            "this machine is not a node of a cluster ({} has none): run forebay cluster init or forebay cluster join, or name \
             another directory with FOREBAY_CLUSTER_HOME",
            base.display()
        ),
        names => {
            bail!("this machine is a node of several clusters ({}): add {option}", names.join(", "))
        }
    }
}

pub fn tools() -> Result<Tools> {
    Ok(Tools::new(Settings::default(), Arc::new(SystemClock))?)
}

#[cfg(test)]
mod tests {
    use forebay_base::NodeId;
    use forebay_node::home::EtcdAccess;

    use super::*;

    #[test]
    fn one_of_several_clusters_is_named_by_the_option_of_the_command() {
        let base = tempfile::tempdir().unwrap();
        let option = "--metrics-tls=CLUSTER";
        let none = only_cluster(base.path(), option).unwrap_err().to_string();
        assert!(none.contains("forebay cluster join"), "{none}");
        for name in ["one", "two"] {
            let home = NodeHome::of(base.path(), name).unwrap();
            home.make().unwrap();
            let access =
                EtcdAccess { endpoints: vec![], authority: None, identity: None, started: false };
            let node = NodeFile {
                cluster_name: name.to_owned(),
                cluster: uuid::Uuid::from_u128(7),
                node: NodeId(1),
                name: "n1".to_owned(),
                address: "127.0.0.1:7440".to_owned(),
                etcd: access,
                expires: 0,
            };
            home.set_node(&node).unwrap();
            match only_cluster(base.path(), option) {
                Ok(found) => assert_eq!((name, &*found), ("one", "one")),
                Err(several) => assert!(
                    several.to_string().ends_with("(one, two): add --metrics-tls=CLUSTER"),
                    "{several}"
                ),
            }
        }
    }
}
