//! bjobs.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, explain};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{Moment, Target};

use super::super::row::{Row, client, estimate, known, rows};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::format::{Field, Format};
use super::state::{self, targets};
use super::sums;
use super::{NOTHING, day, now};

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    read("A", 'A', Nothing),
    read("a", 'a', Nothing),
    refused("app", ' ', Value, "jobs are not chosen by application profile"),
    harmless("aff", ' ', Nothing),
    harmless("aps", ' ', Nothing),
    harmless("cname", ' ', Nothing),
    read("d", 'd', Nothing),
    harmless("data", ' ', Nothing),
    refused("env", ' ', Nothing, "the environment of a job is not shown"),
    harmless("fwd", ' ', Nothing),
    refused("G", 'G', Value, "jobs are not chosen by user group; use -u"),
    read("g", 'g', Value),
    harmless("gpu", ' ', Nothing),
    harmless("hms", ' ', Nothing),
    harmless("hostfile", ' ', Nothing),
    refused("Jd", ' ', Value, "jobs are not chosen by description; use -J"),
    read("json", ' ', Nothing),
    read("J", 'J', Value),
    read("l", 'l', Nothing),
    refused("Lp", ' ', Value, "jobs are not chosen by licence project"),
    read("m", 'm', Value),
    harmless("N", 'N', Value),
    read("noheader", ' ', Nothing),
    read("o", 'o', Value),
    read("P", 'P', Value),
    read("p", 'p', Nothing),
    // How much is said of why jobs wait: here it is all.
    read("p0", ' ', Nothing),
    read("p1", ' ', Nothing),
    read("p2", ' ', Nothing),
    read("p3", ' ', Nothing),
    read("pe", ' ', Nothing),
    refused("pei", ' ', Nothing, "jobs are not chosen by whether they are eligible"),
    refused("pi", ' ', Nothing, "jobs are not chosen by whether they are eligible"),
    harmless("plan", ' ', Nothing),
    harmless("prio", ' ', Nothing),
    read("psum", ' ', Nothing),
    read("q", 'q', Value),
    read("r", 'r', Nothing),
    refused("rusage", ' ', Value, "jobs are not chosen by resources"),
    read("s", 's', Nothing),
    refused("script", ' ', Nothing, "the script of a job is not shown"),
    refused("sla", ' ', Value, "a grid has no service classes"),
    refused("ss", ' ', Nothing, "use -s"),
    read("sum", ' ', Nothing),
    refused("U", ' ', Value, "jobs are not chosen by reservation"),
    harmless("UF", ' ', Nothing),
    read("u", 'u', Value),
    read("w", 'w', Nothing),
    read("W", 'W', Nothing),
    refused("WF", ' ', Nothing, "use -o with finish_time and time_left"),
    refused("WL", ' ', Nothing, "use -o with time_left"),
    refused("WP", ' ', Nothing, "use -o with run_time and runtimelimit"),
    harmless("X", 'X', Nothing),
    refused("x", 'x', Nothing, "a grid has no job exceptions"),
];

const GRAMMAR: Grammar =
    Grammar { command: "bjobs", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

/// The fields of `-o`, with other names for them and their usual width.
const FIELDS: &[Field] = &[
    ("jobid", "id", 7),
    ("jobindex", "jobindex", 8),
    ("stat", "stat", 5),
    ("user", "user", 7),
    ("queue", "queue", 10),
    ("job_name", "name", 10),
    ("job_description", "description", 17),
    ("proj_name", "proj", 11),
    ("command", "cmd", 15),
    ("sub_cwd", "sub_cwd", 10),
    ("exec_cwd", "exec_cwd", 10),
    ("output_file", "output_file", 10),
    ("error_file", "error_file", 10),
    ("from_host", "from_host", 11),
    ("first_host", "first_host", 11),
    ("exec_host", "exec_host", 11),
    ("nexec_host", "nexec_host", 10),
    ("nalloc_slot", "nslot", 10),
    ("slots", "slots", 5),
    ("submit_time", "submit_time", 15),
    ("start_time", "start_time", 15),
    ("finish_time", "finish_time", 16),
    ("run_time", "run_time", 15),
    ("runtimelimit", "rtl", 12),
    ("cpu_used", "cpu_used", 10),
    ("max_mem", "max_mem", 10),
    ("mem", "mem", 10),
    ("memlimit", "memlimit", 10),
    ("exit_code", "exit_code", 10),
    ("exit_reason", "exit_reason", 50),
    ("dependency", "dependency", 15),
    ("pend_reason", "pend_reason", 11),
    ("priority", "priority", 10),
    ("job_group", "group", 10),
    ("effective_resreq", "eresreq", 17),
    ("combined_resreq", "cresreq", 20),
    ("application", "app", 13),
    ("avg_mem", "avg_mem", 10),
    ("estimated_start_time", "estart_time", 20),
    ("input_file", "input_file", 10),
    ("max_req_proc", "max_req_proc", 12),
    ("min_req_proc", "min_req_proc", 12),
    ("nreq_slot", "nreq_slot", 10),
    ("nthreads", "nthreads", 10),
    ("pend_time", "pend_time", 12),
    ("pids", "pids", 20),
    ("post_exec_command", "post_cmd", 16),
    ("pre_exec_command", "pre_cmd", 16),
    ("ru_stime", "ru_stime", 12),
    ("ru_utime", "ru_utime", 12),
    ("service_class", "sla", 13),
    ("swap", "swap", 10),
    ("swaplimit", "swaplimit", 10),
    ("time_left", "time_left", 11),
    ("user_group", "ugroup", 15),
];

fn seconds_of(seconds: Option<f64>) -> Option<String> {
    seconds.map(|seconds| format!("{seconds:.1} second(s)"))
}

fn memory(bytes: Option<u64>) -> Option<String> {
    bytes.map(|bytes| format!("{} Mbytes", bytes >> 20))
}

/// The value of a field; none if it has none now.
fn value(row: &Row, name: &str, now: Moment) -> Option<String> {
    let host = || row.view.host.as_ref().map(ToString::to_string);
    let seconds = |seconds: u64| format!("{seconds} second(s)");
    let is_allocated =
        row.view.host.is_some() && !matches!(row.view.state, JobState::Pending | JobState::Held);
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    match name {
        "jobid" => Some(row.target.job.to_string()),
        "jobindex" => Some(row.index().unwrap_or(0).to_string()),
        "stat" => Some(state::of(row.view.state).to_owned()),
        "user" => Some(row.view.user.to_string()),
        "queue" => Some(row.view.queue.to_string()),
        "job_name" => some(&state::name(row)),
        "job_description" => row.asked.dialect.as_ref().and_then(|of| some(&of.comment)),
        "proj_name" => some(&row.asked.project).or_else(|| some("default")),
        "command" => some(&row.view.command.join(" ")),
        "sub_cwd" | "exec_cwd" => some(&row.asked.directory),
        "output_file" => some(&row.view.output),
        "error_file" => row.view.error.clone(),
        "from_host" => Some(super::host_name()),
        "exec_host" | "first_host" if is_allocated => host(),
        "nexec_host" if is_allocated => some("1"),
        "nalloc_slot" if is_allocated => Some(row.view.slots.to_string()),
        "slots" => Some(row.view.slots.to_string()),
        "submit_time" => Some(day(row.view.submitted)),
        "start_time" => row.view.started.map(day),
        "finish_time" => row.view.ended.map(day),
        "run_time" => row.ran(now).map(seconds),
        "runtimelimit" => row.asked.time_limit_seconds.map(|limit| format!("{:.1}", limit / 60.0)),
        "cpu_used" => {
            row.view.usage.as_ref().map(|usage| format!("{:.1} second(s)", usage.cpu_seconds()))
        }
        "max_mem" | "mem" => {
            memory(row.view.usage.as_ref().and_then(|usage| usage.peak_memory_bytes))
        }
        "memlimit" => memory(row.asked.memory_bytes),
        "exit_code" => {
            row.view.exit.as_ref().map(|exit| exit.value().to_string()).filter(|value| value != "0")
        }
        "exit_reason" => match row.view.state {
            JobState::Done | JobState::Pending | JobState::Running => None,
            state => Some(state.to_string()),
        },
        "dependency" => row.asked.depends.clone(),
        "priority" => Some(row.asked.priority.to_string()),
        _ => more(row, name, now),
    }
}

/// The value of a field of which few ask.
fn more(row: &Row, name: &str, now: Moment) -> Option<String> {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    match name {
        "pend_reason" => some(&row.reasons.join("; ")),
        "pend_time" => {
            let until = row.view.started.or(row.view.ended).unwrap_or(now);
            Some((until.since(row.view.submitted) / 1000).to_string())
        }
        "time_left" if row.view.ended.is_none() => {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole seconds of a limit"
            )]
            let limit = row.asked.time_limit_seconds.map(|limit| limit as u64);
            let left = limit?.saturating_sub(row.ran(now)?);
            Some(format!("{}:{} L", left / 3600, left / 60 % 60))
        }
        "estimated_start_time" => row.estimate.map(day),
        "job_group" => row.view.group.as_ref().map(ToString::to_string),
        "effective_resreq" | "combined_resreq" => {
            let select = row.asked.features.as_ref().map(|features| format!("select[{features}]"));
            let all = select.into_iter().chain(some(&row.asked.resources));
            some(&all.collect::<Vec<_>>().join(" "))
        }
        "application" => row.asked.profile.clone(),
        "max_req_proc" | "min_req_proc" | "nreq_slot" => Some(row.view.slots.to_string()),
        "pre_exec_command" => row.asked.pre.clone(),
        "post_exec_command" => row.asked.post.clone(),
        "input_file" => some("/dev/null"),
        "ru_utime" => seconds_of(row.view.usage.as_ref().map(|usage| usage.user_seconds)),
        "ru_stime" => seconds_of(row.view.usage.as_ref().map(|usage| usage.system_seconds)),
        _ => None,
    }
}

fn of_format(format: &str, rows: &[Row], given: &Given, now: Moment) -> Result<String> {
    let format = Format::read(format, FIELDS)?;
    let value = |row: &Row, name: &str| value(row, name, now);
    Ok(match given.has("json") {
        true => format.json(("bjobs", "JOBS"), rows, value),
        false => format.table(rows, given.has("noheader"), value),
    })
}

/// The usual columns with their widths.
const USUAL: &[(&str, &str, usize)] = &[
    ("jobid", "JOBID", 7),
    ("user", "USER", 7),
    ("stat", "STAT", 5),
    ("queue", "QUEUE", 10),
    ("from_host", "FROM_HOST", 11),
    ("exec_host", "EXEC_HOST", 11),
    ("job_name", "JOB_NAME", 10),
    ("submit_time", "SUBMIT_TIME", 12),
];

/// What `-W` adds.
const MORE: &[(&str, &str, usize)] = &[
    ("proj_name", "PROJ_NAME", 10),
    ("cpu_used", "CPU_USED", 8),
    ("mem", "MEM", 6),
    ("swap", "SWAP", 6),
    ("pids", "PIDS", 6),
    ("start_time", "START_TIME", 12),
    ("finish_time", "FINISH_TIME", 12),
];

fn usual(rows: &[Row], given: &Given, now: Moment) -> String {
    let is_wide = given.has("w") || given.has("W");
    let more = if given.has("W") { MORE } else { &[] };
    let columns: Vec<_> = USUAL.iter().chain(more).collect();
    let line = |cell: &dyn Fn(&str, &str) -> String| {
        let fitted = columns.iter().map(|(name, heading, width)| {
            let cell = cell(name, heading);
            // Wide lists cut nothing.
            let width = if is_wide { (*width).max(cell.chars().count()) } else { *width };
            // LSF keeps the end of what is too long.
            let length = cell.chars().count();
            if length > width {
                let tail: String = cell.chars().skip(length + 1 - width).collect();
                return format!("*{tail}");
            }
            format!("{cell:<width$}")
        });
        fitted.collect::<Vec<_>>().join(" ").trim_end().to_owned() + "\n"
    };
    let mut text = String::new();
    if !given.has("noheader") {
        text += &line(&|_, heading| heading.to_owned());
    }
    for row in rows {
        let cell = |name: &str, _: &str| {
            let without =
                if name == "exec_host" && row.view.ended.is_none() { "" } else { NOTHING };
            value(row, name, now)
                .unwrap_or_else(|| if given.has("W") { NOTHING } else { without }.to_owned())
        };
        text += &line(&cell);
        if given.has("p") {
            text += &pending_reasons(row);
        }
    }
    text
}

/// A line for each reason for which a job waits.
fn pending_reasons(row: &Row) -> String {
    row.reasons.iter().map(|reason| format!(" {reason};\n")).collect()
}

/// The most jobs of which it is asked why they wait.
const EXPLAINED_MAX: usize = 1000;

/// Asks of jobs that wait why they do, and notes it with them. The elements of an array wait for the same.
fn explain(client: &mut Client, found: &mut [Row]) -> Result<()> {
    let mut known = BTreeMap::new();
    for row in found.iter_mut().filter(|row| state::of(row.view.state) == "PEND") {
        let target = Target { index: None, ..row.target };
        if !known.contains_key(&target.job) && known.len() < EXPLAINED_MAX {
            let reasons = match client.ask(&Ask::Explain { target })? {
                Answer::Explained { explanation, .. } => {
                    let of_hosts = explain::hosts(&explanation).into_iter();
                    let of_hosts =
                        of_hosts.filter_map(|(host, why)| Some(format!("{host}: {}", why?)));
                    explain::reasons(&explanation, None).into_iter().chain(of_hosts).collect()
                }
                _ => Vec::new(),
            };
            known.insert(target.job, reasons);
        }
        row.reasons = known.get(&target.job).cloned().unwrap_or_default();
    }
    Ok(())
}

/// The first two lines of a long list: what a job is.
pub fn heading(row: &Row, now: Moment) -> String {
    let value = |name: &str| value(row, name, now).unwrap_or_else(|| NOTHING.to_owned());
    format!(
        "\nJob <{}>, Job Name <{}>, User <{}>, Project <{}>, Status <{}>, Queue <{}>, Command <{}>\n{}: Submitted from host \
         <{}>, CWD <{}>, Output File <{}>, {} Task(s);\n",
        row.view.id,
        value("job_name"),
        value("user"),
        value("proj_name"),
        value("stat"),
        value("queue"),
        value("command"),
        value("submit_time"),
        value("from_host"),
        value("sub_cwd"),
        value("output_file"),
        row.view.slots
    )
}

/// All that is known of a job, as `-l` shows it.
fn long(row: &Row, now: Moment) -> String {
    let value = |name: &str| value(row, name, now).unwrap_or_else(|| NOTHING.to_owned());
    let mut text = heading(row, now);
    if let (Some(started), Some(host)) = (row.view.started, &row.view.host) {
        text +=
            &format!("{}: Started {} Task(s) on Host(s) <{host}>;\n", day(started), row.view.slots);
    }
    if let Some(ended) = row.view.ended {
        let how = match (row.view.state, &row.view.exit) {
            (JobState::Done, _) => "Done successfully.".to_owned(),
            (state, Some(exit)) => format!("Exited with exit code {} ({state}).", exit.value()),
            (state, None) => format!("Exited ({state})."),
        };
        text += &format!("{}: {how} The CPU time used is {}.\n", day(ended), value("cpu_used"));
    }
    if let Some(usage) = row.view.usage.as_ref().filter(|_| row.view.ended.is_none()) {
        text += &format!("{}: Resource usage collected.\n", day(now));
        text += &format!("    The CPU time used is {:.0} seconds.\n", usage.cpu_seconds());
        if let Some(memory) = memory(usage.peak_memory_bytes) {
            text += &format!("    MEM: {memory}\n");
        }
    }
    text += &requirements(row);
    if !row.reasons.is_empty() {
        text += &format!("\n PENDING REASONS:\n{}", pending_reasons(row));
    }
    text
}

/// What a job asks for besides slots, as `-l` shows it.
pub fn requirements(row: &Row) -> String {
    let asked = &row.asked;
    let mut text = String::new();
    let mut add = |heading: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text += &format!("\n {heading}\n {value}\n");
        }
    };
    add("RUNLIMIT", asked.time_limit_seconds.map(|limit| format!("{:.1} min", limit / 60.0)));
    add("MEMLIMIT", asked.memory_bytes.map(|bytes| format!("{} M", bytes >> 20)));
    let select = asked.features.as_ref().map(|features| format!("select[{features}]"));
    let rusage = Some(&asked.resources).filter(|all| !all.is_empty());
    let rusage = rusage.map(|all| format!("rusage[{}]", all.replace(':', "=")));
    let needed: Vec<String> = select.into_iter().chain(rusage).collect();
    add("REQUESTED RESOURCES", Some(needed.join(" ")));
    add("DEPENDENCY CONDITION", asked.depends.clone());
    add("JOB GROUP", row.view.group.as_ref().map(ToString::to_string));
    add("BEGIN TIME", asked.begin.map(day));
    add("TERMINATION DEADLINE", asked.deadline.map(day));
    add("JOB WARNING", asked.warning.clone());
    text
}

/// The rows that are asked for, and the ids that are not known.
pub fn chosen(
    given: &Given,
    client: &mut Client,
    with_ended: bool,
) -> Result<(Vec<Row>, Vec<String>)> {
    let mut unknown = Vec::new();
    let mut named: Vec<Row> = Vec::new();
    let mut is_named = false;
    for word in &given.words {
        let targets: Vec<Target> = targets(word)?;
        is_named |= !targets.is_empty();
        for target in targets {
            match known(client, target)? {
                Some(found) => named.extend(found),
                None => unknown.push(word.clone()),
            }
        }
    }
    let found = if is_named { named } else { rows(client, None, with_ended)? };
    let found = found.into_iter().flat_map(Row::into_elements);
    let found = found.filter(|row| is_named || state::takes(row, given)).collect();
    Ok((found, unknown))
}

/// Runs bjobs; the exit code is 255 if a job that was named is not known.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut given = GRAMMAR.read(arguments)?;
    if ["p0", "p1", "p2", "p3", "pe"].iter().any(|option| given.has(option)) {
        given.set("p", String::new());
    }
    // An array is shown with its elements that have ended.
    let with_ended = given.has("a") || given.has("d") || given.has("A");
    let mut client = client()?;
    let (mut found, unknown) = chosen(&given, &mut client, with_ended)?;
    let kinds: Vec<(&str, &[&str])> = vec![
        ("d", &["DONE", "EXIT"]),
        ("p", &["PEND", "PSUSP"]),
        ("psum", &["PEND", "PSUSP"]),
        ("r", &["RUN"]),
        ("s", &["USUSP", "PSUSP"]),
    ];
    let kinds: Vec<&str> = kinds
        .into_iter()
        .filter(|(option, _)| given.has(option))
        .flat_map(|(_, states)| states.iter().copied())
        .collect();
    if !kinds.is_empty() && !given.has("a") {
        found.retain(|row| kinds.contains(&state::of(row.view.state)));
    }
    let by_variable = std::env::var("LSB_BJOBS_FORMAT").ok();
    let format = given.value("o").or(by_variable.as_deref());
    anyhow::ensure!(!given.has("json") || format.is_some(), "-json needs -o with the fields");
    for id in &unknown {
        note!("Job <{id}> is not found");
    }
    let now = now();
    let code = if unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(255) };
    if found.is_empty() {
        if unknown.is_empty() {
            note!("No {}job found", if with_ended { "" } else { "unfinished " });
        }
        if let Some(format) = format.filter(|_| given.has("json")) {
            out!("{}", of_format(format, &found, &given, now)?);
        }
        return Ok(code);
    }
    let is_explained = |format: &str| format.to_ascii_lowercase().contains("pend_reason");
    if ["p", "l", "psum"].iter().any(|option| given.has(option)) || format.is_some_and(is_explained)
    {
        explain(&mut client, &mut found)?;
    }
    let is_estimated =
        |format: &str| format.contains("estart_time") || format.contains("estimated_start_time");
    if format.is_some_and(is_estimated) {
        estimate(&mut client, &mut found, now)?;
    }
    let text = match format {
        _ if given.has("sum") => sums::of_all(&found),
        _ if given.has("psum") => sums::of_reasons(&found),
        _ if given.has("A") => sums::of_arrays(&found, !given.has("noheader")),
        Some(format) => of_format(format, &found, &given, now)?,
        None if given.has("l") => found.iter().map(|row| long(row, now)).collect(),
        None => usual(&found, &given, now),
    };
    crate::output::put(crate::output::escaped(&text).as_bytes())?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_bjobs_may_be_joined() {
        let words = ["-noheader", "-o", "jobid stat", "-aJ", "*u*"].map(str::to_owned);
        let given = GRAMMAR.read(&words).unwrap();
        assert!(given.has("a") && given.has("noheader"));
        assert_eq!((given.value("J"), given.value("o")), (Some("*u*"), Some("jobid stat")));
        let given = GRAMMAR.read(&["-psum".to_owned(), "-uall".to_owned()]).unwrap();
        assert!(given.has("psum") && given.value("u") == Some("all") && !given.has("s"));
        let refused = GRAMMAR.read(&["-rusage", "mem"].map(str::to_owned)).unwrap_err();
        assert!(refused.to_string().contains("-rusage is not supported"), "{refused}");
    }
}
