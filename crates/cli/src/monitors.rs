//! Answering monitors: the options of daemons, and all tables of metrics.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use forebay_metrics::{Listen, Tls, listen};
use forebay_node::NodeHome;

use crate::commands::cluster::{base, only_cluster};
use crate::home::node_at;

/// Longest time in which a daemon without TLS is expected to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Where a daemon answers monitors.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Monitors {
    /// Serve metrics (OpenMetrics, for Prometheus) at http://ADDRESS/metrics: a port of this machine (9464), or an IP
    /// address and a port, which needs --metrics-token or --metrics-tls [default: off].
    #[arg(long, value_name = "ADDRESS", value_parser = listen::address)]
    metrics: Option<SocketAddr>,
    /// File with the token that monitors must send (Authorization: Bearer), readable by its owner only.
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token: Option<PathBuf>,
    /// Serve metrics over TLS (https) with the certificate of this node of a cluster. Monitors show a certificate that `forebay
    /// cluster monitor` made, or the token [default: the only cluster of this machine].
    #[arg(long, value_name = "CLUSTER", requires = "metrics", num_args = 0..=1, require_equals = true)]
    metrics_tls: Option<Option<PathBuf>>,
}

impl Monitors {
    /// Where to listen, if anywhere.
    ///
    /// # Errors
    /// If the address needs a token, or the token or the node's certificate cannot be used.
    pub fn listen(&self) -> Result<Option<Listen>> {
        let tls = self.tls()?;
        let at = |address| Listen::at(address, self.metrics_token.as_deref(), tls);
        Ok(self.metrics.map(at).transpose()?)
    }

    fn tls(&self) -> Result<Option<Tls>> {
        let Some(node) = self.node()? else { return Ok(None) };
        let tls = forebay_node::monitors::tls(&node);
        tls.map(Some).context("--metrics-tls: the certificate of this node cannot be used")
    }

    /// The node whose certificate is shown.
    fn node(&self) -> Result<Option<NodeHome>> {
        let Some(cluster) = &self.metrics_tls else { return Ok(None) };
        let found = match cluster {
            Some(cluster) => node_at(cluster).with_context(|| {
                format!(
                    "this machine is not a node of a cluster {}: run forebay cluster status to see its cluster",
                    cluster.display()
                )
            }),
            None => only_cluster(&base(), "--metrics-tls=CLUSTER")
                .and_then(|name| Ok(NodeHome::of(&base(), &name)?)),
        };
        found.map(Some).context("--metrics-tls")
    }

    /// The same, some ports further.
    ///
    /// # Errors
    /// If there are not so many ports.
    pub fn after(&self, ports: u16) -> Result<Monitors> {
        let mut other = self.clone();
        if let Some(address) = &mut other.metrics {
            let port = address.port().checked_add(ports);
            address.set_port(port.with_context(|| {
                format!("--metrics {address}: the ports after it end at 65535")
            })?);
        }
        Ok(other)
    }

    /// The options, for a process that is started.
    ///
    /// # Errors
    /// If there is no current directory.
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        let Some(address) = self.metrics else { return Ok(Vec::new()) };
        let mut arguments = vec![OsString::from(format!("--metrics={address}"))];
        if let Some(file) = &self.metrics_token {
            arguments
                .extend(["--metrics-token".into(), std::path::absolute(file)?.into_os_string()]);
        }
        if let Some(node) = self.node()? {
            let mut option = OsString::from("--metrics-tls=");
            option.push(std::path::absolute(node.folder())?);
            arguments.push(option);
        }
        Ok(arguments)
    }

    /// Makes sure that the daemon which was to answer does: one that ran before may not.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn check_served(&self, daemon: &str) -> Result<()> {
        let Some(address) = self.metrics else { return Ok(()) };
        let mut stream = TcpStream::connect(address).with_context(|| {
            format!(
                "{daemon} is running, but serves no metrics at {address}: stop it first (forebay down), or omit --metrics"
            )
        })?;
        ensure!(
            self.metrics_tls.is_none() || !speaks_plain_http(&mut stream),
            "{daemon} is running, but serves metrics at {address} without --metrics-tls: stop it first (forebay down)"
        );
        Ok(())
    }
}

/// Whether what listens answers without TLS.
fn speaks_plain_http(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    let asked = stream
        .set_read_timeout(Some(ANSWER_MAX))
        .and_then(|()| stream.write_all(b"GET / HTTP/1.0\r\n\r\n"))
        .and_then(|()| stream.read_exact(&mut answer));
    asked.is_ok() && answer == *b"HTTP"
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_engine::{agent, server};
    use forebay_metrics::table::{faults, markdown};
    use forebay_metrics::{Table, own};

    use super::*;

    const HEAD: &str = "# Metrics

Generated from the tables in the code: `FOREBAY_REWRITE_DOCS=1 cargo test -p forebay-cli --bin forebay docs_list` writes it
anew. `--metrics ADDRESS` of `forebay mount`, `up`, `controller`, `agent` and `web serve` switches the pages on; [operations.md](operations.md)
says how to watch a system with them, and `examples/prometheus` has scrape configurations, alert rules and a dashboard.

Names, labels and units follow OpenMetrics. Counters begin at 0 with their daemon. Sizes are in bytes, times in seconds.
Labels have few values: a fileset, an operation, a disk, a queue, a state, a host. Users and jobs have pages of their
own, so that a monitor may leave them out.
";

    fn tables() -> Vec<&'static Table> {
        vec![
            &own::TABLE,
            &forebay_fuse::activity::metrics::TABLE,
            &forebay_fs::metrics::TABLE,
            &forebay_node::metrics::TABLE,
            &crate::daemon::metrics::USERS,
            &crate::daemon::metrics::JOBS,
            &server::metrics::TABLE,
            &server::metrics::JOBS,
            &server::metrics::USERS,
            &agent::metrics::TABLE,
            &forebay_web::metrics::TABLE,
        ]
    }

    #[test]
    fn the_tables_of_metrics_have_no_faults() {
        assert_eq!(faults(&tables()), Vec::<String>::new());
    }

    #[test]
    fn the_docs_list_every_metric() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let wanted = format!("{HEAD}{}", markdown(&tables()));
        if std::env::var_os("FOREBAY_REWRITE_DOCS").is_some() {
            std::fs::write(&file, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/metrics.md is not as the tables say: set FOREBAY_REWRITE_DOCS=1 for this test"
        );
    }

    #[test]
    fn ports_after_the_last_one_are_refused() {
        let monitors =
            Monitors { metrics: Some(listen::address("65534").unwrap()), ..Monitors::default() };
        assert_eq!(monitors.after(1).unwrap().arguments().unwrap(), ["--metrics=127.0.0.1:65535"]);
        assert!(monitors.after(2).is_err());
        assert!(Monitors::default().after(2).unwrap().arguments().unwrap().is_empty());
    }
}
