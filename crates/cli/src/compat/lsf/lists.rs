//! bqueues, bhosts and bpeek.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::{Answer, Ask, HostView, QueueView, Runs};

use super::super::row::{client, known, rows};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, ignored, read};
use super::format::{Field, Format};
use super::state;
use crate::commands::grid::Which;
use crate::commands::grid::jobs::Output;

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("a", ' ', Nothing),
    harmless("e", ' ', Nothing),
    read("l", ' ', Nothing),
    ignored("m", ' ', Value),
    harmless("r", ' ', Nothing),
    ignored("R", ' ', Value),
    harmless("s", ' ', Nothing),
    ignored("u", ' ', Value),
    harmless("w", ' ', Nothing),
    read("noheader", ' ', Nothing),
    read("o", ' ', Value),
    read("json", ' ', Nothing),
];

/// Options of bpeek.
const BPEEK: &[Opt] =
    &[read("f", ' ', Nothing), read("J", ' ', Value), read("m", ' ', Value), read("q", ' ', Value)];

const GRAMMAR: Grammar =
    Grammar { command: "bqueues", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

/// The fields of `bqueues -o`.
const QUEUE_FIELDS: &[Field] = &[
    ("queue_name", "qname", 15),
    ("description", "desc", 50),
    ("priority", "prio", 10),
    ("status", "stat", 12),
    ("max", "max", 10),
    ("jl_u", "jlu", 10),
    ("jl_p", "jlp", 10),
    ("jl_h", "jlh", 10),
    ("njobs", "njobs", 10),
    ("pend", "pend", 10),
    ("run", "run", 10),
    ("susp", "susp", 10),
    ("ususp", "ususp", 10),
    ("ssusp", "ssusp", 10),
    ("rsv", "rsv", 10),
    ("hosts", "hosts", 50),
];

/// The fields of `bhosts -o`.
const HOST_FIELDS: &[Field] = &[
    ("host_name", "hname", 20),
    ("status", "stat", 15),
    ("jl_u", "jlu", 8),
    ("max", "max", 8),
    ("njobs", "njobs", 8),
    ("run", "run", 8),
    ("ssusp", "ssusp", 8),
    ("ususp", "ususp", 8),
    ("rsv", "rsv", 8),
];

/// What is suspended.
fn suspended(runs: Runs) -> u64 {
    runs.stopped_by_user + runs.stopped_by_grid
}

fn of_queue(queue: &QueueView, field: &str) -> Option<String> {
    let waiting = queue.pending_tasks + queue.held_tasks;
    Some(match field {
        "queue_name" => queue.name.to_string(),
        "description" if queue.is_default => "This is the default queue.".to_owned(),
        "priority" => queue.priority.unwrap_or(0).to_string(),
        "status" => state::of_queue(queue),
        "max" => queue.slots_max?.to_string(),
        "jl_u" => queue.user_slots_max?.to_string(),
        "jl_h" => queue.host_slots_max?.to_string(),
        "njobs" => (waiting + queue.active_tasks).to_string(),
        "pend" => waiting.to_string(),
        "run" => queue.runs.running.to_string(),
        "susp" => suspended(queue.runs).to_string(),
        "ususp" => queue.runs.stopped_by_user.to_string(),
        "ssusp" => queue.runs.stopped_by_grid.to_string(),
        "rsv" => "0".to_owned(),
        "hosts" if queue.hosts.is_empty() => "all".to_owned(),
        "hosts" => queue.hosts.clone(),
        _ => return None,
    })
}

fn of_host(host: &HostView, field: &str) -> Option<String> {
    Some(match field {
        "host_name" => host.name.to_string(),
        "status" => state::of_host(host).to_owned(),
        "max" => host.slots.to_string(),
        "njobs" => (host.runs.running + suspended(host.runs)).to_string(),
        "run" => host.runs.running.to_string(),
        "ssusp" => host.runs.stopped_by_grid.to_string(),
        "ususp" => host.runs.stopped_by_user.to_string(),
        "rsv" => "0".to_owned(),
        _ => return None,
    })
}

/// What a list shows: as `-o` says, else as a variable of the environment does; none for the usual columns.
fn format(given: &Given, variable: &str, fields: &[Field]) -> Result<Option<Format>> {
    let by_variable = std::env::var(variable).ok().filter(|format| !format.trim().is_empty());
    let asked = given.value("o").map(str::to_owned);
    let wanted = asked.or(by_variable.filter(|_| !given.has("l") || given.has("json")));
    ensure!(!given.has("json") || wanted.is_some(), "-json needs -o with the fields");
    wanted.map(|format| Format::read(&format, fields)).transpose()
}

/// Whether a queue or a host is one of those that were named; without names each is.
fn is_named(given: &Given, name: &str) -> bool {
    given.words.is_empty() || given.words.iter().any(|named| named == name)
}

fn or_dash(number: Option<u32>) -> String {
    number.map_or_else(|| super::NOTHING.to_owned(), |number| number.to_string())
}

/// A queue as `bqueues -l` shows it.
fn long(queue: &QueueView) -> String {
    let waiting = queue.pending_tasks + queue.held_tasks;
    let mut text = format!(
        "\nQUEUE: {}\n  -- {}\n\nPARAMETERS/STATISTICS\nPRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP \
         USUSP  RSV\n{:>4} {:>4} {:<15} {:>3} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>4}\n\n",
        queue.name,
        if queue.is_default { "This is the default queue." } else { "No description provided." },
        queue.priority.unwrap_or(0),
        0,
        state::of_queue(queue),
        or_dash(queue.slots_max),
        or_dash(queue.user_slots_max),
        super::NOTHING,
        or_dash(queue.host_slots_max),
        waiting + queue.active_tasks,
        waiting,
        queue.runs.running,
        queue.runs.stopped_by_grid,
        queue.runs.stopped_by_user,
        0
    );
    if let Some(seconds) = queue.time_limit_max_seconds {
        text += &format!("MAXIMUM LIMITS:\n RUNLIMIT\n {:.1} min\n\n", seconds / 60.0);
    }
    let hosts = if queue.hosts.is_empty() { "all" } else { &queue.hosts };
    text + &format!("HOSTS:  {hosts}\n{}\n", "-".repeat(79))
}

/// A host as `bhosts -l` shows it.
fn long_host(host: &HostView) -> String {
    let mut text = format!(
        "HOST  {}\nSTATUS           CPUF  JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV DISPATCH_WINDOW\n\
         {:<16} {:>4.2} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}      -\n\n",
        host.name,
        state::of_host(host),
        1.0,
        super::NOTHING,
        host.slots,
        host.runs.running + suspended(host.runs),
        host.runs.running,
        host.runs.stopped_by_grid,
        host.runs.stopped_by_user,
        0,
    );
    text += " CURRENT LOAD USED FOR SCHEDULING:\n                r15s   r1m  r15m    ut    pg    io   ls    it   tmp   swp   mem\n";
    text += &format!(" Total        {}\n", super::load::indices(host));
    if !host.features.is_empty() {
        text += &format!("\n RESOURCES: {}\n", host.features.join(" "));
    }
    text + "\n"
}

/// Runs bqueues.
pub fn bqueues(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let format = format(&given, "LSB_BQUEUES_FORMAT", QUEUE_FIELDS)?;
    let Answer::Queues { mut queues, .. } = client()?.ask(&Ask::Queues)? else {
        bail!("the controller is a different version");
    };
    queues.retain(|queue| is_named(&given, queue.name.as_str()));
    ensure!(!queues.is_empty(), "{}: No such queue", given.words.join(" "));
    if let Some(format) = format {
        let text = match given.has("json") {
            true => format.json(("bqueues", "QUEUES"), &queues, of_queue),
            false => format.table(&queues, given.has("noheader"), of_queue),
        };
        out!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if !given.has("noheader") && !given.has("l") {
        text +=
            "QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP \n";
    }
    for queue in queues {
        if given.has("l") {
            text += &long(&queue);
            continue;
        }
        let waiting = queue.pending_tasks + queue.held_tasks;
        text += &format!(
            "{:<15} {:>4} {:<15} {:>3} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5} {:>5} \n",
            queue.name,
            queue.priority.unwrap_or(0),
            state::of_queue(&queue),
            or_dash(queue.slots_max),
            or_dash(queue.user_slots_max),
            super::NOTHING,
            or_dash(queue.host_slots_max),
            waiting + queue.active_tasks,
            waiting,
            queue.runs.running,
            suspended(queue.runs)
        );
    }
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Runs bhosts.
pub fn bhosts(arguments: &[String]) -> Result<ExitCode> {
    let given = Grammar { command: "bhosts", ..GRAMMAR }.read(arguments)?;
    let format = format(&given, "LSB_BHOSTS_FORMAT", HOST_FIELDS)?;
    let Answer::Hosts { mut hosts, .. } = client()?.ask(&Ask::Hosts)? else {
        bail!("the controller is a different version");
    };
    hosts.retain(|host| is_named(&given, host.name.as_str()));
    ensure!(!hosts.is_empty(), "{}: Bad host name", given.words.join(" "));
    if let Some(format) = format {
        let text = match given.has("json") {
            true => format.json(("bhosts", "HOSTS"), &hosts, of_host),
            false => format.table(&hosts, given.has("noheader"), of_host),
        };
        out!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    if given.has("l") {
        out!("{}", hosts.iter().map(long_host).collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if !given.has("noheader") {
        text +=
            "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV \n";
    }
    for host in hosts {
        text += &format!(
            "{:<18} {:<15} {:>4} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} \n",
            host.name,
            state::of_host(&host),
            super::NOTHING,
            host.slots,
            host.runs.running + suspended(host.runs),
            host.runs.running,
            host.runs.stopped_by_grid,
            host.runs.stopped_by_user,
            0
        );
    }
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Runs bpeek: what a job has written up to now, with `-f` until it ends; without a job, that of the user's latest one that runs.
pub fn bpeek(arguments: &[String]) -> Result<ExitCode> {
    let given = Grammar { command: "bpeek", tables: &[BPEEK], ..GRAMMAR }.read(arguments)?;
    let mut client = client()?;
    let found = match given.words.first() {
        Some(id) => {
            let target = *state::targets(id)?.first().context("a job is missing")?;
            let found = known(&mut client, target)?;
            found.with_context(|| format!("Job <{id}> is not found"))?
        }
        None => rows(&mut client, None, false)?,
    };
    let row =
        found.into_iter().rev().find(|row| row.view.attempts > 0 && state::takes(row, &given));
    let row = row.context("No matching job has started")?;
    ensure!(
        !row.view.output.is_empty(),
        "Job <{}> is interactive: it has no output file",
        row.view.id
    );
    outln!("<< output from stdout >>");
    if given.has("f") {
        return Output::of(Which::default(), row.target, true, false).run();
    }
    let mut file =
        std::fs::File::open(&row.view.output).with_context(|| row.view.output.clone())?;
    crate::output::put_all(&mut file)?;
    if let Some(errors) = &row.view.error {
        outln!("\n<< output from stderr >>");
        let mut file = std::fs::File::open(errors).with_context(|| errors.clone())?;
        crate::output::put_all(&mut file)?;
    }
    Ok(ExitCode::SUCCESS)
}
