//! `bjobs -sum` and `bjobs -A`: how many jobs are how far, of all together or of each array.

use std::collections::BTreeMap;

use forebay_grid::vocabulary::JobId;

use super::super::row::Row;
use super::state;

/// How many are in one of these states.
fn count(rows: &[&Row], states: &[&str]) -> u32 {
    let in_it = rows.iter().filter(|row| states.contains(&state::of(row.view.state)));
    in_it.map(|row| row.view.tasks).sum()
}

/// The two lines of `-sum`.
pub fn of_all(rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().collect();
    let columns: [(&str, &[&str]); 6] = [
        ("RUN", &["RUN"]),
        ("SSUSP", &[]),
        ("USUSP", &["USUSP"]),
        ("UNKNOWN", &["UNKWN"]),
        ("PEND", &["PEND", "PSUSP"]),
        ("FWD_PEND", &[]),
    ];
    let line = |cells: [String; 6]| {
        let padded: String = cells.iter().map(|cell| format!("{cell:<12}")).collect();
        padded.trim_end().to_owned() + "\n"
    };
    line(columns.map(|(heading, _)| heading.to_owned()))
        + &line(columns.map(|(_, states)| count(&rows, states).to_string()))
}

/// The lines of `-psum`: how many jobs wait for each reason, the most first.
pub fn of_reasons(rows: &[Row]) -> String {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for row in rows {
        for reason in &row.reasons {
            *counts.entry(reason).or_default() += row.view.tasks;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, jobs)| std::cmp::Reverse(*jobs));
    let all: u32 = rows.iter().map(|row| row.view.tasks).sum();
    let mut text = format!("Pending reason summary: {all} pending jobs\n");
    text.extend(counts.iter().map(|(reason, jobs)| format!(" {reason}: {jobs} jobs\n")));
    text
}

/// The lines of `-A`: of arrays alone.
pub fn of_arrays(rows: &[Row], is_headed: bool) -> String {
    let mut arrays: BTreeMap<JobId, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.asked.array.is_some()) {
        arrays.entry(row.target.job).or_default().push(row);
    }
    let mut text = String::new();
    if is_headed {
        text += "JOBID      ARRAY_SPEC  OWNER   NJOBS PEND DONE  RUN EXIT SSUSP USUSP PSUSP\n";
    }
    for (job, rows) in arrays {
        let of = |states: &[&str]| count(&rows, states);
        let array = rows[0].asked.array.as_deref().unwrap_or_default();
        let spec = format!("{}{array}", rows[0].view.name);
        let all: u32 = rows.iter().map(|row| row.view.tasks).sum();
        text += &format!(
            "{job:<10} {spec:<11} {:<7} {all:>5} {:>4} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5}\n",
            rows[0].view.user,
            of(&["PEND"]),
            of(&["DONE"]),
            of(&["RUN", "UNKWN"]),
            of(&["EXIT"]),
            0,
            of(&["USUSP"]),
            of(&["PSUSP"]),
        );
    }
    text
}
