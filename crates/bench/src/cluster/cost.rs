//! Requests to etcd and bytes between nodes for 1,000 temporary files.
//!
//! etcd counts its requests itself (`grpc_server_msg_received_total`). The kernel counts the bytes of each host's interface: what nodes
//! have sent, less what etcd has received, went to other nodes. What the cluster does anyway meanwhile (leases) is measured
//! before, and taken off.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_workload::load::Storm;

use super::Bench;
use super::report::Section;
use super::trial::Trial;
use crate::figure::{Figure, Figures};
use crate::load::Job;

/// How long the cluster is watched at rest.
const REST: Duration = Duration::from_secs(5);
/// What commits by time and closing in the background take after the load.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// What was counted up to a moment.
#[derive(Clone, Copy, Debug)]
struct Counts {
    at: std::time::Instant,
    requests: f64,
    bytes: f64,
}

impl Trial {
    fn counts(&self) -> Result<Counts> {
        let etcd = self.cluster.etcd();
        let address = self.hosts().address(etcd.places().start);
        let ask = format!(
            "exec 3<>/dev/tcp/{address}/2379; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        );
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", &ask]);
        let output = self.hosts().command(0, &bash).output().context("cannot ask etcd")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let of = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        let mut lines = text.lines().filter(|line| line.starts_with("grpc_server_msg_received"));
        let first = lines.next().and_then(of).context("etcd does not count its requests")?;
        let requests = first + lines.filter_map(of).sum::<f64>();
        let process = etcd.process(0).context("etcd has ended")?;
        let mut bytes = -interface(process)?.0;
        for node in 0..self.nodes() {
            bytes += interface(self.cluster.daemon(node).as_raw_nonzero().get().cast_unsigned())?.1;
        }
        Ok(Counts { at: SystemClock.instant(), requests, bytes })
    }
}

/// Bytes that the host of a process has received and sent.
fn interface(process: u32) -> Result<(f64, f64)> {
    let path = format!("/proc/{process}/net/dev");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let numbers: Vec<f64> = line
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|text| text.parse().ok())
        .collect();
    match numbers[..] {
        [received, _, _, _, _, _, _, _, sent, ..] => Ok((received, sent)),
        _ => anyhow::bail!("{path} has no line of eth0"),
    }
}

impl Bench<'_> {
    /// Counts on the owner's node and on another one.
    ///
    /// # Errors
    /// If something cannot be counted.
    pub fn cost(&self, trial: &Trial, sections: &mut Vec<Section>) -> Result<()> {
        const OWNER: &str = "the owner's node";
        let section = Section::begin(sections, "What temporary files cost", OWNER);
        let files = self.amounts.temporary_files;
        let load = Storm { workers: 4, files_per_worker: files / 4, ..Storm::default() };
        for round in 0..self.rounds {
            let places =
                [(OWNER, trial.on_owner("work")?), ("another node", trial.on_another("work")?)];
            for (name, place) in places {
                let place = place.join("load");
                self.jobs().run(&place, &Job::Make)?;
                self.interrupt.sleep(AFTERWARDS)?;
                let rest = trial.counts()?;
                self.interrupt.sleep(REST)?;
                let before = trial.counts()?;
                let figures =
                    self.jobs().run(&place, &Job::Storm(Figure::StormFour, load.clone()))?;
                self.interrupt.sleep(AFTERWARDS)?;
                let after = trial.counts()?;
                self.jobs().run(&place, &Job::Remove)?;
                let part =
                    (after.at - before.at).as_secs_f64() / (before.at - rest.at).as_secs_f64();
                let net = |of: fn(&Counts) -> f64| {
                    let idle = (of(&before) - of(&rest)) * part;
                    (of(&after) - of(&before) - idle).max(0.0) * 1000.0 / files as f64
                };
                let mut all = Figures::from([
                    (Figure::EtcdRequests, net(|counts| counts.requests)),
                    (Figure::NodeBytes, net(|counts| counts.bytes) / 1e3),
                ]);
                all.extend(figures.into_iter().filter(|(figure, _)| *figure == Figure::StormFour));
                section.note(round, name, &all);
            }
        }
        Ok(())
    }
}
