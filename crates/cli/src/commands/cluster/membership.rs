//! `forebay cluster init`, `token`, `join`, `drain`, `remove`, `leave`, `renew`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_node::NodeHome;
use forebay_node::authority::token::Token as JoinToken;
use forebay_node::etcd_member::remove_etcd_member;
use forebay_node::home::{EtcdAccess, NodeFile};
use forebay_node::members::visit::NewDisk;
use forebay_node::setup::{Disks, Last, Made, NewCluster};
use uuid::Uuid;

use super::{Base, Which, daemon, etcd, tools};
use crate::commands::fileset::NewPlacementArg;
use crate::home::Home;
use crate::member::{make_file_system, names};

/// Create a cluster, with this machine as its first node.
///
/// Uses a running etcd (3.4 or later) (--etcd), or starts the installed one (--start-etcd; Debian: etcd-server); in the latter
/// case the next two nodes that join run a member too, with certificates of the cluster's authority, at ports 2379 and 2380.
/// Creates the cluster's authority, this node's certificate and the file
/// system, and starts the node's daemon. Run it again if it was interrupted.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster init --name grid1 --start-etcd
  forebay cluster init --name grid1 --etcd http://host1:2379
  forebay cluster init --name grid1 --start-etcd --names s3://lab/grid1 --names-access s3.toml
  forebay cluster init --name grid1 --etcd https://a:2379,https://b:2379,https://c:2379 \\
    --etcd-ca ca.pem --etcd-cert client.pem --etcd-key client.key --disk /mnt/nvme0/forebay")]
pub struct Init {
    /// Name of the cluster.
    #[arg(long)]
    name: String,
    /// Endpoints of etcd, separated by commas: http://HOST:PORT or https://HOST:PORT.
    #[arg(
        long,
        value_name = "URLS",
        value_delimiter = ',',
        required_unless_present = "start_etcd"
    )]
    etcd: Vec<String>,
    /// Run the installed etcd on this node, and on the next two that join.
    #[arg(long, conflicts_with_all = ["etcd", "etcd_ca", "etcd_cert", "etcd_key"])]
    start_etcd: bool,
    /// Certificate of etcd's authority, for https.
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Certificate that etcd requires of its clients. All nodes will use it.
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// Where the names of files lie: etcd, s3://BUCKET/FOLDER, or dir:/PATH of a directory that all nodes mount. Chosen once.
    #[arg(long, value_name = "PLACE", default_value = "etcd")]
    names: String,
    /// File with endpoint, region, access_key and secret_key of the bucket (chmod 600). It is stored in etcd, for all nodes.
    /// Without it each node's daemon takes them from its environment.
    #[arg(long, value_name = "FILE")]
    names_access: Option<PathBuf>,
    /// Placement of the filesets work and util [default: native if the node's disks are local, else direct]. In native ones
    /// each node has a directory of its own, on its own disk.
    #[arg(long, value_enum)]
    work_placement: Option<NewPlacementArg>,
    #[command(flatten)]
    own: OwnNode,
    #[command(flatten)]
    base: Base,
}

/// What a node says about itself.
#[derive(clap::Args, Clone)]
struct OwnNode {
    /// Name of this node [default: the name of the machine].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Address at which other nodes reach this one, HOST or HOST:PORT [default: the address from which this machine reaches
    /// the others, port 7440].
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Empty directory on a local file system that the node contributes as a disk; may be repeated [default: a folder of its
    /// own for the first node, none for others]
    #[arg(long = "disk", value_name = "DIR")]
    disks: Vec<PathBuf>,
}

impl OwnNode {
    fn name(&self) -> Result<String> {
        if let Some(name) = &self.node {
            return Ok(name.clone());
        }
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = name.split('.').next().unwrap_or_default().to_owned();
        if short.is_empty() {
            bail!("this machine has no name: add --node NAME");
        }
        Ok(short)
    }
}

/// Labels directories as disks of the cluster. One that has its label already keeps it.
fn labelled(cluster: Uuid, disks: &[PathBuf]) -> Result<Vec<NewDisk>> {
    let mut found = Vec::new();
    for disk in disks {
        let location = disk.canonicalize().with_context(|| disk.display().to_string())?;
        let cluster = cluster.to_string();
        let known = DirectoryDisk::read_label(&location).ok();
        let uuid = match known.filter(|label| label.file_system == cluster) {
            Some(label) => label.disk,
            None => {
                let label = Label { file_system: cluster, disk: Uuid::new_v4().to_string() };
                DirectoryDisk::format(&location, &label)
                    .with_context(|| format!("{} cannot be a disk", location.display()))?;
                label.disk
            }
        };
        let location = location.into_os_string().into_string();
        let location =
            location.map_err(|name| anyhow::anyhow!("{} is not UTF-8", name.display()))?;
        found.push(NewDisk { uuid, location, shared: false });
    }
    Ok(found)
}

fn read(path: Option<&Path>) -> Result<Option<String>> {
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
    path.map(read).transpose()
}

/// Starts the daemon of a new node, and says what there is now.
fn report(base: &Path, made: &Made, joined: &str) -> Result<()> {
    let file = made.file();
    let home = NodeHome::of(base, &file.cluster_name)?;
    let started = daemon::start(&home, file)?;
    let NodeFile { cluster_name, node, name, address, .. } = file;
    match made {
        Made::Now(_) => {
            outln!("{joined} {cluster_name}: this machine is node {node}, {name}, at {address}");
        }
        Made::Before(_) => outln!(
            "this machine is already node {node}, {name}, of cluster {cluster_name}{}",
            if started { "; its daemon was started" } else { "" }
        ),
    }
    Ok(())
}

impl Init {
    /// This node's address, if it is known, and how etcd is reached; starts etcd if it is to be.
    fn etcd(&self, base: &Path) -> Result<(Option<String>, EtcdAccess)> {
        let address = self.own.address.clone();
        if self.start_etcd {
            let prepared =
                tools()?.prepare_etcd(base, &self.name, &self.own.name()?, address.as_deref());
            let (home, address, access) = prepared?;
            etcd::begin(&home, &self.name, &access)?;
            return Ok((Some(address), access));
        }
        let certificate = read(self.etcd_cert.as_deref())?;
        let key = read(self.etcd_key.as_deref())?;
        let access = EtcdAccess {
            endpoints: self.etcd.clone(),
            authority: read(self.etcd_ca.as_deref())?,
            identity: certificate.zip(key),
            started: false,
        };
        Ok((address, access))
    }

    pub fn run(self) -> Result<()> {
        let base = self.base.path()?;
        // Before anything is made.
        let names = names::chosen(&self.names, self.names_access.as_deref())?;
        let (address, etcd) = self.etcd(&base)?;
        let (name, node) = (self.name.clone(), self.own.name()?);
        let new = NewCluster { name, node, address, etcd, names };
        let home = NodeHome::of(&base, &self.name)?;
        let label = |cluster| match &*self.own.disks {
            [] => labelled(cluster, &[Home::default_disk(&home, cluster)?]),
            disks => labelled(cluster, disks),
        };
        let made = tools()?.init(&base, &new, |cluster| {
            label(cluster)
                .map_err(|error| forebay_node::Error::Invalid(crate::output::chain(&error)))
        })?;
        make_file_system(&home, self.work_placement.map(Into::into), new.names.as_ref())?;
        report(&base, &made, "made cluster")
    }
}

/// Print a token with which further machines can join; it is valid for an hour.
///
/// Anyone who has the token can join, so pass it on over a secure channel. Run this on a node that holds the key of the cluster's
/// authority: the first node, or one that joined with a token made by --with-authority.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster token
  ssh host2 forebay cluster join $(forebay cluster token --uses 1)")]
pub struct Token {
    /// Number of nodes that can join with the token [default: any number].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    uses: Option<u32>,
    /// Give nodes that join with the token the key of the authority, so that they can admit nodes too.
    #[arg(long)]
    with_authority: bool,
    #[command(flatten)]
    which: Which,
}

impl Token {
    pub fn run(self) -> Result<()> {
        let (home, _) = self.which.node()?;
        let (token, _) = tools()?.token(&home, self.uses, self.with_authority)?;
        if forebay_engine::files::holder(&home.lock()).is_none() {
            note!(
                "forebay: no machine can join until this node's daemon runs: forebay cluster start"
            );
        }
        outln!("{token}");
        Ok(())
    }
}

/// Make this machine a node of a cluster.
///
/// Starts the node's daemon. Run it again if it was interrupted.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster join forebay-join-1.kQ3...
  forebay cluster join TOKEN --disk /mnt/nvme0/forebay --disk /mnt/nvme1/forebay")]
pub struct Join {
    /// Token that `forebay cluster token` printed on a node of the cluster.
    token: String,
    #[command(flatten)]
    own: OwnNode,
    #[command(flatten)]
    base: Base,
}

impl Join {
    pub fn run(self) -> Result<()> {
        let base = self.base.path()?;
        let token = JoinToken::parse(&self.token)?;
        let disks = labelled(token.cluster, &self.own.disks)?;
        let name = self.own.name()?;
        let address = self.own.address.as_deref();
        let made = tools()?.join(&base, &token, &name, address, &disks)?;
        let home = NodeHome::of(&base, &made.file().cluster_name)?;
        Home::of_member(&home)?;
        etcd::join(&home)?;
        report(&base, &made, "joined cluster")
    }
}

/// Make a node hand over its filesets and accept no others.
///
/// Use it before maintenance. The node stays a member.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster drain host2
  forebay cluster drain host2 --undo")]
pub struct Drain {
    /// Name or number of the node.
    node: String,
    /// End the drain: the node may own filesets again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    which: Which,
}

impl Drain {
    pub fn run(self) -> Result<()> {
        let (_, file) = self.which.node()?;
        let book = tools()?.book(&file)?;
        let (node, _) = book.find(&self.node)?;
        Ok(book.set_draining(node, !self.undo)?)
    }
}

/// Remove a node that no longer runs.
///
/// Other nodes refuse its certificate from then on. To remove a running node, run `forebay cluster leave` on it.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay cluster remove host3")]
pub struct Remove {
    /// Name or number of the node.
    node: String,
    /// Remove its disks too: files on them become unreachable.
    #[arg(long)]
    with_disks: bool,
    #[command(flatten)]
    which: Which,
}

fn disks(with_disks: bool) -> Disks {
    if with_disks { Disks::Included } else { Disks::None }
}

impl Remove {
    pub fn run(self) -> Result<()> {
        let (_, file) = self.which.node()?;
        let tools = tools()?;
        let book = tools.book(&file)?;
        let (node, _) = book.find(&self.node)?;
        if node == file.node {
            bail!("{} is this node: run forebay cluster leave", self.node);
        }
        let record = book.node(node)?;
        tools.remove(&book, node, disks(self.with_disks))?;
        if let (true, Some((record, _))) = (file.etcd.started, record) {
            remove_etcd_member(&book, &record.name)?;
        }
        Ok(())
    }
}

/// Leave the cluster: this machine is no longer a node.
///
/// Stops the node's daemon and removes its key and certificates. With the last node, the cluster ends.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster leave
  forebay cluster leave --last   on the last node")]
pub struct Leave {
    /// Leave even if the node has disks; files on them become unreachable.
    #[arg(long)]
    with_disks: bool,
    /// Confirm that this is the last node: the cluster ends.
    #[arg(long)]
    last: bool,
    #[command(flatten)]
    which: Which,
}

impl Leave {
    pub fn run(self) -> Result<()> {
        let (home, file) = self.which.node()?;
        let tools = tools()?;
        let was_running = daemon::stop(&home)?;
        let last = if self.last { Last::Ends } else { Last::Refused };
        let left = tools.leave(&home, disks(self.with_disks), last);
        if left.is_err() && was_running {
            // As it was.
            daemon::start(&home, &file)?;
        }
        left?;
        etcd::leave(&home, &file, self.last)?;
        outln!("this machine is no longer a node of cluster {}", file.cluster_name);
        Ok(())
    }
}

/// Renew this node's certificate.
///
/// A running daemon does this by itself when a third of the certificate's lifetime remains. If a node was switched off for
/// a long time, run this before `forebay cluster start`. On a node that holds the authority's key it works even if the
/// certificate has expired.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay cluster renew")]
pub struct Renew {
    #[command(flatten)]
    which: Which,
}

impl Renew {
    pub fn run(self) -> Result<()> {
        let (home, _) = self.which.node()?;
        tools()?.renew(&home)?;
        if forebay_engine::files::holder(&home.lock()).is_some() {
            note!(
                "forebay: the running daemon uses the new certificate after `forebay cluster stop` and `start`"
            );
        }
        Ok(())
    }
}
