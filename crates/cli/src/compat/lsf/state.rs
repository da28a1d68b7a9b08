//! States of jobs, queues and hosts in LSF's words, and which jobs a command is about.

use anyhow::{Result, bail};
use forebay_engine::protocol::{HostState, HostView, QueueView};
use forebay_grid::journal::HostSwitch;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Target;

use super::super::row::{Row, me};
use super::super::words::Given;

/// What LSF calls the state of a task.
pub fn of(state: JobState) -> &'static str {
    match state {
        JobState::Pending => "PEND",
        JobState::Held => "PSUSP",
        JobState::Starting | JobState::Running => "RUN",
        JobState::Suspended => "USUSP",
        JobState::Unknown => "UNKWN",
        JobState::Done => "DONE",
        JobState::Exited
        | JobState::Killed
        | JobState::TimeLimit
        | JobState::HostLost
        | JobState::AttemptsMax
        | JobState::DependencyNever
        | JobState::Skipped
        | JobState::AreaLimit
        | JobState::Deadline => "EXIT",
    }
}

/// What LSF calls the state of a host.
pub fn of_host(host: &HostView) -> &'static str {
    match (host.state, host.switch) {
        (HostState::Unreachable | HostState::Gone, _) => "unreach",
        (HostState::Up, HostSwitch::Closed | HostSwitch::Removed) => "closed_Adm",
        (HostState::Up, HostSwitch::Open) if host.used_slots >= host.slots => "closed_Full",
        (HostState::Up, HostSwitch::Open) => "ok",
    }
}

/// What LSF calls the state of a queue.
pub fn of_queue(queue: &QueueView) -> String {
    let takes = if queue.open { "Open" } else { "Closed" };
    let starts = match (queue.active, queue.windows_open) {
        (false, _) => "Inact",
        (true, false) => "Inact_Win",
        (true, true) => "Active",
    };
    format!("{takes}:{starts}")
}

/// A job's name as LSF shows it: with its element.
pub fn name(row: &Row) -> String {
    match row.index() {
        Some(index) => format!("{}[{index}]", row.view.name),
        None => row.view.name.clone(),
    }
}

/// The jobs of `12`, `12[3]`, `12[1-3,7]` and quoted forms; none for `0`, which stands for all.
///
/// # Errors
/// If it is not a job.
pub fn targets(text: &str) -> Result<Vec<Target>> {
    let text = text.trim_matches(['"', '\'']);
    if text == "0" {
        return Ok(Vec::new());
    }
    let Some((job, elements)) = text.strip_suffix(']').and_then(|rest| rest.split_once('[')) else {
        return match text.parse::<Target>() {
            Ok(target) => Ok(vec![target]),
            Err(_) => bail!("{text}: Illegal job ID."),
        };
    };
    let array = format!("[{elements}]").parse::<forebay_grid::parse::array::ArraySpec>();
    let (Ok(job), Ok(array)) = (job.parse::<Target>(), array) else {
        bail!("{text}: Illegal job ID.");
    };
    let indices = (0..array.count()).filter_map(|place| array.index_at(place));
    Ok(indices.map(|index| Target { index: Some(index), ..job }).collect())
}

/// Whether a text is like a pattern, in which each `*` stands for anything.
pub fn is_like(text: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return text == pattern };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    true
}

/// Whether a task is one of those that `-u`, `-q`, `-J`, `-m`, `-P` and `-g` choose; without `-u` those of this user. `-g` chooses the jobs
/// of a group itself, not those of groups in it.
pub fn takes(row: &Row, given: &Given) -> bool {
    let host = row.view.host.as_ref().map(ToString::to_string).unwrap_or_default();
    let is_name = |pattern: &str| {
        let pattern = pattern.trim_matches('"');
        is_like(&name(row), pattern) || is_like(&row.view.name, pattern)
    };
    let user = row.view.user.to_string();
    (match given.value("u") {
        Some("all") => true,
        Some(wanted) => wanted.split(' ').any(|one| one == user),
        None => user == me(),
    }) && given.value("q").is_none_or(|queue| queue == row.view.queue.as_str())
        && given.value("J").is_none_or(is_name)
        && given.value("m").is_none_or(|wanted| wanted.split(' ').any(|one| one == host))
        && given.value("g").is_none_or(|wanted| {
            let own = row.view.group.as_ref().map_or("/", |group| group.as_str());
            own == super::group::plain(wanted)
        })
        && given.value("P").is_none_or(|project| project == row.asked.project)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_jobs_and_elements() {
        let of = |text| {
            let targets: Vec<String> =
                targets(text).unwrap().iter().map(ToString::to_string).collect();
            targets.join(" ")
        };
        assert_eq!(
            (of("12"), of("12[3]"), of("\"12[1-3,7]\""), of("0")),
            ("12".into(), "12[3]".into(), "12[1] 12[2] 12[3] 12[7]".into(), String::new())
        );
        assert!(targets("x").is_err() && targets("12[").is_err());
    }

    #[test]
    fn stars_of_a_pattern_stand_for_anything() {
        for (text, pattern, is) in [
            ("abc", "abc", true),
            ("abc", "*b*", true),
            ("abc", "a*", true),
            ("abc", "*c", true),
            ("abc", "*d*", false),
            ("abc", "b*", false),
            ("abab", "*ab*ab", true),
            ("ab", "ab*ab", false),
        ] {
            assert_eq!(is_like(text, pattern), is, "{text} {pattern}");
        }
    }
}
