//! The table of the hosts on which jobs ran.

use super::{gigabytes, number, percent};
use crate::summary::sheet::Rows;
use crate::summary::{Sheet, Summary};

/// Less than this part of a run is said.
const WATCHED: f64 = 0.9;

/// Each host of each run; empty if the jobs ran on the machine of the study.
#[must_use]
pub fn hosts(summary: &Summary) -> Sheet {
    let columns = [
        "host",
        "processors",
        "jobs",
        "read GB",
        "written GB",
        "user %",
        "system %",
        "I/O wait %",
        "idle %",
        "received MB/s",
        "peak",
        "sent MB/s",
        "sent peak",
    ];
    let mut rows = Rows::new(summary, &columns);
    let mut notes = vec![
        "Processors over the busy periods; network of all programs of a host over the run, and in its best second. \
         Hosts of one machine share its processors."
            .to_owned(),
    ];
    for run in &summary.runs {
        for host in &run.hosts {
            let (received, sent) = (host.received, host.sent);
            rows.push(
                run,
                vec![
                    host.host.as_str().into(),
                    host.cpus.map(u64::from).into(),
                    number(host.jobs),
                    gigabytes(host.read_bytes),
                    gigabytes(host.written_bytes),
                    percent(host.processor.map(|parts| parts.user)),
                    percent(host.processor.map(|parts| parts.system)),
                    percent(host.processor.map(|parts| parts.io_wait)),
                    percent(host.processor.map(|parts| parts.idle)),
                    received.and_then(|rate| rate.mean_mb_per_second).into(),
                    received.map(|rate| rate.peak_mb_per_second).into(),
                    sent.and_then(|rate| rate.mean_mb_per_second).into(),
                    sent.map(|rate| rate.peak_mb_per_second).into(),
                ],
            );
            if let Some(share) = host.watched_share.filter(|share| *share < WATCHED) {
                notes.push(format!(
                    "{}: host {} was monitored for {:.0} % of the time only.",
                    summary.run_name(run),
                    host.host,
                    share * 100.0
                ));
            }
        }
    }
    rows.sheet("hosts", "Hosts", notes)
}
