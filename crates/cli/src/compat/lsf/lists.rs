//! bqueues, bhosts and bpeek.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::{Answer, Ask, QueueView};

use super::super::row::{client, known, rows};
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read};
use super::state;

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("a", ' ', Nothing),
    harmless("e", ' ', Nothing),
    read("f", ' ', Nothing),
    read("J", ' ', Value),
    read("l", ' ', Nothing),
    harmless("m", ' ', Value),
    harmless("q", ' ', Value),
    harmless("r", ' ', Nothing),
    harmless("R", ' ', Value),
    harmless("s", ' ', Nothing),
    harmless("u", ' ', Value),
    harmless("w", ' ', Nothing),
    read("noheader", ' ', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "bqueues", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

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
        queue.active_tasks,
        0,
        0,
        0
    );
    if let Some(seconds) = queue.time_limit_max_seconds {
        text += &format!("MAXIMUM LIMITS:\n RUNLIMIT\n {:.1} min\n\n", seconds / 60.0);
    }
    let hosts = if queue.hosts.is_empty() { "all" } else { &queue.hosts };
    text + &format!("HOSTS:  {hosts}\n{}\n", "-".repeat(79))
}

/// Runs bqueues.
pub fn bqueues(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let Answer::Queues { queues, .. } = client()?.ask(&Ask::Queues)? else {
        bail!("the controller is a different version");
    };
    let mut text = String::new();
    if !given.has("noheader") && !given.has("l") {
        text +=
            "QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP \n";
    }
    let mut found = 0;
    for queue in queues {
        if !given.words.is_empty() && !given.words.iter().any(|name| name == queue.name.as_str()) {
            continue;
        }
        found += 1;
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
            queue.active_tasks,
            0
        );
    }
    ensure!(found > 0, "{}: No such queue", given.words.join(" "));
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Runs bhosts.
pub fn bhosts(arguments: &[String]) -> Result<ExitCode> {
    let given = Grammar { command: "bhosts", ..GRAMMAR }.read(arguments)?;
    let Answer::Hosts { hosts, .. } = client()?.ask(&Ask::Hosts)? else {
        bail!("the controller is a different version");
    };
    let mut text = String::new();
    if !given.has("noheader") {
        text +=
            "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV \n";
    }
    let mut found = 0;
    for host in hosts {
        if !given.words.is_empty() && !given.words.iter().any(|name| name == host.name.as_str()) {
            continue;
        }
        found += 1;
        text += &format!(
            "{:<18} {:<15} {:>4} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} \n",
            host.name,
            state::of_host(&host),
            super::NOTHING,
            host.slots,
            host.used_slots,
            host.used_slots,
            0,
            0,
            0
        );
    }
    ensure!(found > 0, "{}: Bad host name", given.words.join(" "));
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Runs bpeek: what a job has written up to now; without a job, that of the user's latest one that runs.
pub fn bpeek(arguments: &[String]) -> Result<ExitCode> {
    let given = Grammar { command: "bpeek", ..GRAMMAR }.read(arguments)?;
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
    ensure!(!given.has("f"), "-f is not supported: use forebay output -f {}", row.view.id);
    ensure!(
        !row.view.output.is_empty(),
        "Job <{}> is interactive: it has no output file",
        row.view.id
    );
    outln!("<< output from stdout >>");
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
