//! The cluster of which this host is a node: asks its nodes and its etcd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::Examined;
use forebay_advisor::cluster::{
    self, ClockDifference, Cluster, Etcd, EtcdDisk, EtcdMember, EtcdStatus, Node, NodeState, Writes,
};
use forebay_base::threads::side_by_side;
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, NodeId, Timestamp};
use forebay_etcd::{Alarm, Client, MemberStatus};
use forebay_node::authority::expiry_of;
use forebay_node::etcd_page;
use forebay_node::home::{EtcdAccess, NodeFile};
use forebay_node::members::record::NodeRecord;
use forebay_node::members::roster::Sight;
use forebay_node::members::visit::{self, NodeStatus};
use forebay_node::setup::Tools;
use forebay_node::{NodeHome, Settings};

use crate::commands::cluster::{Which, tools, view};

/// Writes that are measured.
const WRITES: usize = 20;

/// Life of the leases whose granting is measured; each is revoked at once.
const LEASE_SECONDS: u32 = 60;

/// How long a member of etcd may take to say how it is, and how many are asked at the same time.
const MEMBER_MAX: Duration = Duration::from_secs(5);
const MEMBERS_AT_ONCE: usize = 8;

/// How long a node may take to be connected to, and as long again to check its host.
const HOST_MAX: Duration = Duration::from_secs(20);

/// Options of the examination of a cluster.
#[derive(clap::Args)]
pub struct ClusterOptions {
    /// Check the cluster of which this host is a node: its nodes, certificates, versions and clocks, and its etcd. Measures writes to
    /// etcd with leases that it takes back.
    #[arg(long, conflicts_with_all = ["paths", "fix_script", "shared"])]
    cluster: bool,
    /// With --cluster, also check the host of each node that runs, as `forebay doctor` does there, with the directories of its disks. What
    /// several hosts have in common is shown once.
    #[arg(long, requires = "cluster")]
    hosts: bool,
    #[command(flatten)]
    which: Which,
}

impl ClusterOptions {
    /// Examines the cluster if the options say so.
    pub fn examine(&self) -> Result<Option<Examined>> {
        if !self.cluster {
            anyhow::ensure!(
                !self.which.is_given(),
                "--name and --home say which cluster: add --cluster"
            );
            return Ok(None);
        }
        let (home, file) = self.which.node()?;
        let book = tools()?.book(&file)?;
        let (sight, _) = book
            .read()
            .with_context(|| format!("etcd of cluster {} does not answer", file.cluster_name))?;
        let mut answers =
            view::of_each(&sight, |node, record| ask(&home, &file, (node, &record.address)));
        let nodes = sight.nodes.iter().map(|(node, record)| {
            let known = Node {
                name: record.name.clone(),
                version: record.version.clone(),
                certificate_expires: record.expires,
                has_authority: record.has_authority,
                ..Node::default()
            };
            match answers.remove(node) {
                None => Node { state: NodeState::Down, ..known },
                Some(Err(error)) => {
                    Node { state: NodeState::Silent(crate::output::chain(&error)), ..known }
                }
                Some(Ok(answer)) => answer.described(known),
            }
        });
        let cluster = Cluster {
            own_node: file.name.clone(),
            now_seconds: SystemClock.now().seconds,
            nodes: nodes.collect(),
            authority_expires: home.identity(&file).and_then(|it| expiry_of(&it.authority)).ok(),
            monitors: sight.monitor_ends().into_iter().collect(),
            certificate_life_seconds: i64::try_from(
                Settings::default().certificate_life.as_secs(),
            )?,
            etcd: etcd(book.client(), &file.etcd),
        };
        let examined = cluster::examine(&cluster);
        Ok(Some(match self.hosts {
            true => cluster::hosts::add(examined, &hosts(&home, &file, &sight)),
            false => examined,
        }))
    }
}

/// What a node said, and when it was asked.
struct Answer {
    status: NodeStatus,
    asked: Timestamp,
    answered: Timestamp,
}

impl Answer {
    fn described(self, known: Node) -> Node {
        let seconds = |at: Timestamp| at.seconds as f64 + f64::from(at.nanoseconds) / 1e9;
        let clock = self.status.clock_ms.map(|clock| {
            let clock = clock as f64 / 1e3;
            // It was read after the question was asked and before the answer was here.
            ClockDifference {
                least_seconds: clock - seconds(self.answered),
                most_seconds: clock - seconds(self.asked),
            }
        });
        let problem = |it: &forebay_node::members::visit::FilesetProblem| {
            format!("fileset {}: {}", it.fileset, it.reason)
        };
        Node {
            certificate_expires: self.status.certificate_expires,
            clock,
            etcd_error: self.status.etcd_error.clone(),
            problems: self.status.problems.iter().map(problem).collect(),
            ..known
        }
    }
}

/// Asks a node how it is.
fn ask(home: &NodeHome, file: &NodeFile, node: (NodeId, &str)) -> Result<Answer> {
    let tools = tools()?;
    let asked = SystemClock.now();
    let status = tools.status_of(home, file, node)?;
    Ok(Answer { status, asked, answered: SystemClock.now() })
}

/// What each node that runs says of its host, with its name.
fn hosts(home: &NodeHome, file: &NodeFile, sight: &Sight) -> Vec<(String, Result<String, String>)> {
    let ask = |node: NodeId, record: &NodeRecord| -> Result<String> {
        let settings = Settings { connect_timeout: HOST_MAX, ..Settings::default() };
        let tools = Tools::new(settings, Arc::new(SystemClock))?;
        match tools.ask(home, file, (node, &record.address), &visit::Question::Host)? {
            visit::Answer::Host(said) => Ok(said),
            _ => bail!("its answer cannot be understood: is it a different version?"),
        }
    };
    let said = view::of_each(sight, |node, record| {
        (record.name.clone(), ask(node, record).map_err(|error| crate::output::chain(&error)))
    });
    said.into_values().collect()
}

/// Asks etcd.
fn etcd(client: &Client, access: &EtcdAccess) -> Etcd {
    let certificates = access.certificate_ends();
    let found = Etcd { started_by_nodes: access.started, certificates, ..Etcd::default() };
    match ask_etcd(client, access, &found) {
        Ok(etcd) => etcd,
        Err(error) => Etcd { fault: Some(error.to_string()), ..found },
    }
}

fn ask_etcd(client: &Client, access: &EtcdAccess, found: &Etcd) -> forebay_etcd::Result<Etcd> {
    let listed = client.member_list()?;
    let name = |id: u64| {
        let known = listed.iter().find(|member| member.id == id);
        known.map_or_else(|| format!("{id:x}"), |member| member.name.clone())
    };
    let alarms = client.alarms()?.into_iter().map(|alarm| match alarm {
        Alarm::NoSpace { member } => format!("NOSPACE of {}", name(member)),
        Alarm::Corrupt { member } => format!("CORRUPT of {}", name(member)),
    });
    let alarms = alarms.collect();
    let asker = client.with_timeout(MEMBER_MAX);
    // A member is known by an endpoint that this node uses; what it says tells which one it is.
    let mut said = BTreeMap::new();
    let mut silent = Vec::new();
    let endpoints = client.endpoints();
    let ask = |endpoint: &String| asker.status(endpoint);
    let answers = side_by_side("etcd", MEMBERS_AT_ONCE, endpoints, ask);
    for (endpoint, answer) in endpoints.iter().zip(answers) {
        match answer {
            Ok(status) => drop(said.insert(status.id, (endpoint.clone(), status))),
            Err(error) => silent.push((endpoint.clone(), error.to_string())),
        }
    }
    let mut members: Vec<EtcdMember> = Vec::new();
    for member in &listed {
        let (endpoint, status) = match said.remove(&member.id) {
            Some((endpoint, status)) => (endpoint, Ok(described(status))),
            None => {
                let own = silent.iter().find(|(endpoint, _)| member.client_urls.contains(endpoint));
                let (endpoint, reason) = own.or(silent.first()).cloned().unwrap_or_else(|| {
                    let url = member.client_urls.first().cloned().unwrap_or_default();
                    (url, "it is not among the endpoints that this node uses".to_owned())
                });
                (endpoint, Err(reason))
            }
        };
        let disk = Err(status.as_ref().err().cloned().unwrap_or_default());
        let (name, is_learner) = (member.name.clone(), member.is_learner);
        members.push(EtcdMember { name, endpoint, is_learner, status, disk });
    }
    read_pages(&mut members, access);
    Ok(Etcd { members, alarms, writes: writes(client)?, ..found.clone() })
}

/// Reads how long the disks of the members that answer take, and the quota of those that do not say it otherwise (etcd before 3.6).
fn read_pages(members: &mut [EtcdMember], access: &EtcdAccess) {
    let answering: Vec<&mut EtcdMember> =
        members.iter_mut().filter(|member| member.status.is_ok()).collect();
    let endpoints: Vec<String> = answering.iter().map(|member| member.endpoint.clone()).collect();
    let read = |endpoint: &String| {
        etcd_page::read(access, endpoint, MEMBER_MAX).map_err(|error| error.to_string())
    };
    let pages = side_by_side("etcd", MEMBERS_AT_ONCE, &endpoints, read);
    for (member, page) in answering.into_iter().zip(pages) {
        if let (Ok(status), Ok(page)) = (&mut member.status, &page) {
            status.quota_bytes = status.quota_bytes.or_else(|| etcd_page::quota_bytes(page));
        }
        member.disk = page.and_then(|page| EtcdDisk::of(&page));
    }
}

fn described(status: MemberStatus) -> EtcdStatus {
    EtcdStatus {
        version: status.version,
        has_leader: status.leader != 0,
        file_bytes: status.file_bytes,
        used_bytes: status.used_bytes,
        quota_bytes: status.quota_bytes,
        errors: status.errors,
    }
}

/// Measures writes: a lease is granted when most members have it on disk. Each is taken back.
fn writes(client: &Client) -> forebay_etcd::Result<Option<Writes>> {
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let begin = SystemClock.instant();
        let lease = client.lease_grant(LEASE_SECONDS)?;
        times.push((SystemClock.instant() - begin).as_secs_f64() * 1e3);
        client.lease_revoke(lease)?;
    }
    times.sort_by(f64::total_cmp);
    let worst = times.last().copied();
    Ok(worst.map(|worst_ms| Writes {
        count: times.len(),
        median_ms: times[times.len() / 2],
        worst_ms,
    }))
}
