//! What a node of a cluster reports to monitors: its lease, its sessions, what other nodes hold of its filesets.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::{ClientId, NodeId};
use forebay_metrics::{Metric, Page, Table};

use crate::Member;
use crate::members::roster::Sight;

static NODES: Metric = Metric::gauge(
    "forebay_cluster_nodes",
    &["state"],
    "Nodes of the cluster: all, and the running ones",
);
static LEASE: Metric = Metric::gauge(
    "forebay_lease_left",
    &[],
    "How long the node may answer without renewing its lease with etcd; 0 while it waits",
)
.seconds();
static CERTIFICATES: Metric = Metric::gauge(
    "forebay_certificate_expires",
    &["kind", "name"],
    "When the certificate of this node, of a monitor, of the authority (without a name), or of etcd's clients or authority expires, since 1970",
)
.seconds();
static OWNED: Metric = Metric::gauge("forebay_filesets_owned", &[], "Filesets that this node owns");
static CALLS: Metric = Metric::counter(
    "forebay_session_calls",
    &["node"],
    "Calls to another node, for filesets that it owns",
);
static SERVED: Metric = Metric::counter(
    "forebay_session_served",
    &["node"],
    "Calls from another node that were carried out here",
);
static WAITING: Metric = Metric::gauge(
    "forebay_session_waiting_calls",
    &["node"],
    "Calls to another node that are not answered yet",
);
static SERVED_NOW: Metric = Metric::gauge(
    "forebay_session_served_now",
    &["node"],
    "Calls from another node that are being carried out, or wait for that",
);
static ROUND_TRIP: Metric =
    Metric::gauge("forebay_session_round_trip", &["node"], "The latest round trip to another node")
        .seconds();
static SILENT: Metric = Metric::gauge(
    "forebay_session_silent",
    &["node"],
    "Time since another node was last heard from",
)
.seconds();
static INODES: Metric = Metric::gauge(
    "forebay_client_inodes",
    &["node"],
    "Inodes of this node's filesets that the kernel of another node knows (grants)",
);
static OPEN: Metric = Metric::gauge(
    "forebay_client_open_files",
    &["node"],
    "Files of this node's filesets that another node has open",
);

static CACHED: Metric = Metric::counter(
    "forebay_cached_answers",
    &["node"],
    "Requests about files of another node that were answered from what this one caches",
);
static GRANTS: Metric = Metric::gauge(
    "forebay_grants",
    &["node"],
    "Names and attributes of filesets of this node that another one may cache",
);
static DIRECTORIES: Metric = Metric::gauge(
    "forebay_delegated_directories",
    &["node"],
    "Directories of filesets of this node that are delegated to another one",
);
static RECALLS: Metric = Metric::counter(
    "forebay_recalled_grants",
    &["node"],
    "Names and attributes that another node cached and that were recalled because they change",
);
static EVICTIONS: Metric = Metric::counter(
    "forebay_grant_evictions",
    &["node"],
    "How often another node did not answer a recall in time, so that all that it cached of a fileset was void",
);

/// What a node caches of another one, and that one of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caching {
    /// Requests that were answered from what this node caches of the other.
    pub answers: u64,
    /// Items that the other node may cache now.
    pub grants: u64,
    /// Directories among them that are delegated to it.
    pub directories: u64,
    /// Items that were recalled from it.
    pub recalls: u64,
    /// How often it did not answer in time.
    pub evictions: u64,
}

/// What a node reports.
pub static TABLE: Table = Table {
    title: "Node of a cluster",
    page: "/metrics",
    about: "Of the daemon behind a mount that is a node of a cluster.",
    metrics: &[
        &NODES,
        &LEASE,
        &CERTIFICATES,
        &OWNED,
        &CALLS,
        &SERVED,
        &WAITING,
        &SERVED_NOW,
        &ROUND_TRIP,
        &SILENT,
        &INODES,
        &OPEN,
        &CACHED,
        &GRANTS,
        &DIRECTORIES,
        &RECALLS,
        &EVICTIONS,
    ],
};

/// The ends of the certificates that a node reports: its own, which the others do not, that of the authority, and those of all monitors.
fn certificates(sight: &Sight, own: NodeId, mut end: impl FnMut(&'static str, &str, i64)) {
    if let Some(record) = sight.nodes.get(&own) {
        end("node", &record.name, record.expires);
    }
    if let Some(expires) = sight.authority_expires {
        end("authority", "", expires);
    }
    for (name, expires) in sight.monitor_ends() {
        end("monitor", &name, expires);
    }
}

/// Adds what a node reports: `owned` filesets are its own, and `held` is what others hold of them (inodes, open files).
pub fn report(
    page: &mut Page,
    member: &Member,
    owned: usize,
    held: &[(ClientId, usize, usize)],
    caching: &BTreeMap<NodeId, Caching>,
) {
    let sight = member.sight();
    page.set_whole(&NODES, &["all"], sight.nodes.len() as u64);
    page.set_whole(&NODES, &["running"], sight.alive.len() as u64);
    page.set(&LEASE, &[], member.answers_for().as_secs_f64());
    let mut end = |kind, name: &str, expires: i64| {
        page.set_whole(&CERTIFICATES, &[kind, name], u64::try_from(expires).unwrap_or(0));
    };
    certificates(&sight, member.me().node, &mut end);
    for (whose, expires) in member.file().etcd.certificate_ends() {
        end("etcd", whose, expires);
    }
    page.set_whole(&OWNED, &[], owned as u64);
    let name = |node: NodeId| {
        sight.nodes.get(&node).map_or_else(|| node.to_string(), |record| record.name.clone())
    };
    for session in member.sessions() {
        let (node, figures) = (name(session.node), session.figures);
        let node = &[node.as_str()];
        if session.is_guest {
            page.count(&SERVED, node, figures.served);
            page.set_whole(&SERVED_NOW, node, figures.served_now as u64);
        } else {
            page.count(&CALLS, node, figures.calls);
            page.set_whole(&WAITING, node, figures.waiting_calls as u64);
            page.set(&ROUND_TRIP, node, Duration::from_micros(figures.round_trip_us).as_secs_f64());
            page.set(&SILENT, node, Duration::from_millis(figures.silent_ms).as_secs_f64());
        }
    }
    for (client, inodes, open) in held {
        let node = name(client.node);
        page.set_whole(&INODES, &[&node], *inodes as u64);
        page.set_whole(&OPEN, &[&node], *open as u64);
    }
    for (node, caching) in caching {
        let node = name(*node);
        page.count(&CACHED, &[&node], caching.answers);
        page.set_whole(&GRANTS, &[&node], caching.grants);
        page.set_whole(&DIRECTORIES, &[&node], caching.directories);
        page.count(&RECALLS, &[&node], caching.recalls);
        page.count(&EVICTIONS, &[&node], caching.evictions);
    }
}
