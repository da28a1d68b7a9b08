//! Why a job waits, or ran where it ran, in words.

use forebay_grid::grid::{Explanation, HostVerdict};
use forebay_grid::spec::Usage;

/// What concerns the task as a whole; `used` is what its last start used that has ended, if that is known.
pub fn reasons(explanation: &Explanation, used: Option<&Usage>) -> Vec<String> {
    let mut said: Vec<String> = match explanation {
        Explanation::Waits { reasons, .. } => reasons.iter().map(ToString::to_string).collect(),
        Explanation::Placed(placement) => {
            let reasons = placement.reasons.iter().map(ToString::to_string);
            std::iter::once(placement.to_string()).chain(reasons).collect()
        }
        Explanation::NeverRan { reasons } => {
            let ended = "it ended without running".to_owned();
            std::iter::once(ended).chain(reasons.iter().map(ToString::to_string)).collect()
        }
    };
    said.extend(used.map(use_of_time));
    said
}

/// What each host says of a task that waits: its name, and why it cannot take it; none if it could.
pub fn hosts(explanation: &Explanation) -> Vec<(String, Option<String>)> {
    let Explanation::Waits { hosts, .. } = explanation else { return Vec::new() };
    let said = |verdict: &HostVerdict| {
        let why = verdict.unable.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let which = verdict.resource.as_ref().map(|name| format!("resource {name}: "));
        let reservation = verdict.reservation.as_ref().map(|name| format!("reservation {name}: "));
        let which = which.or(reservation).unwrap_or_default();
        let plural = if verdict.near == 1 { "input" } else { "inputs" };
        let near = (verdict.near > 0).then(|| format!(" (home of {} {plural})", verdict.near));
        let obstacle = verdict.obstacle.as_ref().map(|obstacle| format!("{which}{obstacle}{why}"));
        (format!("{}{}", verdict.host, near.unwrap_or_default()), obstacle)
    };
    hosts.iter().map(said).collect()
}

/// Where the time of an attempt went, in words.
fn use_of_time(usage: &Usage) -> String {
    let waited = match (usage.io_wait_seconds, usage.io_pressure_seconds) {
        (Some(seconds), _) => format!("waited {seconds:.3} s for I/O"),
        (None, Some(seconds)) => format!("was slowed by I/O for {seconds:.3} s"),
        (None, None) => "waited for I/O for an unknown time (its host's kernel does not measure it, or the job had \
                 children; see the agent's log)"
            .to_owned(),
    };
    format!(
        "its last finished start took {:.3} s, used {:.3} s of processor time and {waited}",
        usage.real_seconds,
        usage.cpu_seconds()
    )
}
