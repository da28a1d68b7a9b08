//! sinfo.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostView, QueueView};

use super::super::columns::{Piece, line, pieces};
use super::super::row::client;
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read};
use super::state;
use super::units::{long_span, whole_seconds};

use Takes::{Maybe, Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("all", 'a', Nothing),
    harmless("clusters", 'M', Value),
    harmless("dead", 'd', Nothing),
    harmless("exact", 'e', Nothing),
    harmless("federation", ' ', Nothing),
    read("format", 'o', Value),
    harmless("hide", ' ', Nothing),
    harmless("iterate", 'i', Value),
    harmless("local", ' ', Nothing),
    read("long", 'l', Nothing),
    read("Node", 'N', Nothing),
    read("nodes", 'n', Value),
    harmless("noconvert", ' ', Nothing),
    read("noheader", 'h', Nothing),
    read("partition", 'p', Value),
    harmless("responding", 'r', Nothing),
    harmless("list-reasons", 'R', Nothing),
    harmless("sort", 'S', Value),
    read("states", 't', Value),
    read("summarize", 's', Nothing),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
    read("json", ' ', Maybe),
];

const GRAMMAR: Grammar =
    Grammar { command: "sinfo", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

const FORMAT: &str = "%9P %.5a %.10l %.6D %.6t %N";
const LONG: &str = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N";
const BY_NODE: &str = "%N %.6D %.9P %6t";
const BY_NODE_LONG: &str = "%9N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E";
const SUMMARY: &str = "%9P %.5a %.10l %.16F %N";

/// The letters of `-o` with their headings.
const LETTERS: &[(char, &str)] = &[
    ('a', "AVAIL"),
    ('b', "ACTIVE_FEATURES"),
    ('A', "NODES(A/I)"),
    ('c', "CPUS"),
    ('C', "CPUS(A/I/O/T)"),
    ('d', "TMP_DISK"),
    ('D', "NODES"),
    ('e', "FREE_MEM"),
    ('E', "REASON"),
    ('f', "AVAIL_FEATURES"),
    ('F', "NODES(A/I/O/T)"),
    ('g', "GROUPS"),
    ('G', "GRES"),
    ('h', "OVERSUBSCRIBE"),
    ('l', "TIMELIMIT"),
    ('L', "DEFAULTTIME"),
    ('m', "MEMORY"),
    ('n', "HOSTNAMES"),
    ('N', "NODELIST"),
    ('O', "CPU_LOAD"),
    ('p', "PRIO_TIER"),
    ('P', "PARTITION"),
    ('r', "ROOT"),
    ('R', "PARTITION"),
    ('s', "JOB_SIZE"),
    ('S', "ALLOCNODES"),
    ('t', "STATE"),
    ('T', "STATE"),
    ('w', "WEIGHT"),
    ('X', "SOCKETS"),
    ('Y', "CORES"),
    ('z', "S:C:T"),
    ('Z', "THREADS"),
];

/// Letters that differ between hosts: only hosts that are alike in them share a line.
const OF_A_HOST: &str = "tTcmneOCNbf";

/// The queues and hosts of a grid.
pub struct Cluster {
    /// In the order of the settings.
    pub queues: Vec<QueueView>,
    /// In the order in which they came.
    pub hosts: Vec<HostView>,
}

impl Cluster {
    /// What the controller says.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn ask(client: &mut Client) -> Result<Cluster> {
        let Answer::Queues { queues, .. } = client.ask(&Ask::Queues)? else {
            bail!("the controller is a different version");
        };
        let Answer::Hosts { hosts, .. } = client.ask(&Ask::Hosts)? else {
            bail!("the controller is a different version");
        };
        Ok(Cluster { queues, hosts })
    }

    /// The hosts on which jobs of a queue may run.
    pub fn of_queue(&self, queue: &QueueView) -> Vec<&HostView> {
        let allowed =
            queue.hosts.parse::<forebay_grid::parse::hosts::HostList>().unwrap_or_default();
        self.hosts.iter().filter(|host| allowed.preference(&host.name).is_some()).collect()
    }
}

/// Whether a queue takes jobs and starts them, in Slurm's words.
pub fn availability(queue: &QueueView) -> &'static str {
    match (queue.open, queue.active) {
        (true, true) => "up",
        (false, true) => "drain",
        (true, false) => "down",
        (false, false) => "inact",
    }
}

/// The features of a host.
pub fn features(host: Option<&HostView>) -> String {
    let features = host.map(|host| host.features.join(",")).unwrap_or_default();
    if features.is_empty() { "(null)".to_owned() } else { features }
}

/// Used, idle, other and all of something, as `A/I/O/T`.
fn four(used: u32, idle: u32, other: u32) -> String {
    format!("{used}/{idle}/{other}/{}", used + idle + other)
}

fn slots(hosts: &[&HostView]) -> String {
    let sum = |of: fn(&HostView) -> u32| hosts.iter().map(|host| of(host)).sum();
    let is_usable = |host: &HostView| matches!(state::of_host(host).0, "idle" | "mix" | "alloc");
    let idle = hosts
        .iter()
        .filter(|host| is_usable(host))
        .map(|host| host.slots.saturating_sub(host.used_slots))
        .sum();
    let other = hosts
        .iter()
        .filter(|host| !is_usable(host))
        .map(|host| host.slots.saturating_sub(host.used_slots))
        .sum();
    four(sum(|host| host.used_slots), idle, other)
}

fn nodes(hosts: &[&HostView]) -> (u32, u32, u32) {
    let mut counts = (0, 0, 0);
    for host in hosts {
        match state::of_host(host).0 {
            "mix" | "alloc" => counts.0 += 1,
            "idle" => counts.1 += 1,
            _ => counts.2 += 1,
        }
    }
    counts
}

/// The value of a letter for hosts of a queue.
fn cell(letter: char, queue: &QueueView, hosts: &[&HostView]) -> String {
    let first = hosts.first();
    let names = || hosts.iter().map(|host| host.name.to_string()).collect::<Vec<_>>().join(",");
    let (used, idle, other) = nodes(hosts);
    match letter {
        'a' => availability(queue).to_owned(),
        'A' => format!("{used}/{idle}"),
        'c' | 'Y' => first.map_or(0, |host| host.slots).to_string(),
        'C' => slots(hosts),
        'D' => hosts.len().to_string(),
        'd' => "0".to_owned(),
        'e' | 'm' => {
            let of = |host: &&HostView| match letter {
                'm' => host.memory_bytes,
                _ => host.memory_bytes.map(|all| all.saturating_sub(host.used_memory_bytes)),
            };
            first.and_then(of).map_or_else(|| "N/A".to_owned(), |bytes| (bytes >> 20).to_string())
        }
        'E' => "none".to_owned(),
        'b' | 'f' => features(first.copied()),
        'G' => "(null)".to_owned(),
        'F' => four(used, idle, other),
        'g' | 'S' => "all".to_owned(),
        'h' => "NO".to_owned(),
        'l' | 'L' => {
            let limit = whole_seconds(queue.time_limit_max_seconds).filter(|_| letter == 'l');
            let without = if letter == 'l' { "infinite" } else { "n/a" };
            limit.map_or_else(|| without.to_owned(), limited)
        }
        'n' | 'N' => names(),
        'O' => "N/A".to_owned(),
        'p' => queue.priority.unwrap_or(0).to_string(),
        'P' => format!("{}{}", queue.name, if queue.is_default { "*" } else { "" }),
        'R' => queue.name.to_string(),
        'r' => "no".to_owned(),
        's' => "1".to_owned(),
        't' => first.map_or("n/a", |host| state::of_host(host).0).to_owned(),
        'T' => first.map_or("n/a", |host| state::of_host(host).1).to_owned(),
        'w' | 'X' | 'Z' => "1".to_owned(),
        'z' => format!("1:{}:1", first.map_or(0, |host| host.slots)),
        _ => String::new(),
    }
}

/// A limit, which Slurm writes without leading zeros of hours.
fn limited(seconds: u64) -> String {
    let text = long_span(seconds);
    text.strip_prefix('0').filter(|_| seconds < 86_400).unwrap_or(&text).to_owned()
}

/// Runs it.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read_command(arguments)?;
    let by_variable = std::env::var("SINFO_FORMAT").ok();
    let usual = match (given.has("Node"), given.has("summarize"), given.has("long")) {
        (true, _, true) => BY_NODE_LONG,
        (true, ..) => BY_NODE,
        (_, true, _) => SUMMARY,
        (.., true) => LONG,
        _ => FORMAT,
    };
    let pieces = pieces(given.value("format").or(by_variable.as_deref()).unwrap_or(usual));
    let mut letters = String::new();
    for piece in &pieces {
        if let Piece::Column(letter, _) = piece {
            ensure!(
                LETTERS.iter().any(|(known, _)| known == letter),
                "Invalid node format specification: {letter}"
            );
            letters.push(*letter);
        }
    }
    let cluster = Cluster::ask(&mut client()?)?;
    if given.has("json") {
        out!("{}", super::json::sinfo(&cluster));
        return Ok(ExitCode::SUCCESS);
    }
    let (partitions, nodes) = (given.list("partition"), given.list("nodes"));
    let states = given.list("states");
    let mut text = String::new();
    if !given.has("noheader") {
        if given.has("long") {
            text += &format!("{}\n", super::units::date(super::now()));
        }
        let heading = |letter| {
            LETTERS.iter().find(|(known, _)| *known == letter).map_or("", |(_, heading)| heading)
        };
        text += &line(&pieces, |letter| heading(letter).to_owned());
        text.push('\n');
    }
    let is_of_hosts =
        letters.contains(|letter| OF_A_HOST.contains(letter)) && !given.has("summarize");
    let mut seen = std::collections::BTreeSet::new();
    for queue in &cluster.queues {
        let name = queue.name.to_string();
        if !partitions.is_empty() && !partitions.contains(&&name[..]) {
            continue;
        }
        let is_wanted = |host: &&HostView| {
            let (short, long) = state::of_host(host);
            (nodes.is_empty() || nodes.contains(&host.name.as_str()))
                && (states.is_empty()
                    || states.iter().any(|state| {
                        state.eq_ignore_ascii_case("all")
                            || state::is_called(
                                (short.trim_end_matches('*'), long.trim_end_matches('*')),
                                state,
                            )
                    }))
        };
        let hosts: Vec<&HostView> = cluster.of_queue(queue).into_iter().filter(is_wanted).collect();
        for group in groups(&hosts, &letters, queue, is_of_hosts, given.has("Node")) {
            let row = line(&pieces, |letter| cell(letter, queue, &group));
            // A format without the partition says nothing new of the same hosts.
            if letters.contains(['P', 'R', 'a', 'l']) || seen.insert(row.clone()) {
                text += &row;
                text.push('\n');
            }
        }
    }
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Hosts that share a line.
fn groups<'a>(
    hosts: &[&'a HostView],
    letters: &str,
    queue: &QueueView,
    is_of_hosts: bool,
    is_each: bool,
) -> Vec<Vec<&'a HostView>> {
    if hosts.is_empty() || (!is_of_hosts && !is_each) {
        return vec![hosts.to_vec()];
    }
    let mut alike: BTreeMap<Vec<String>, Vec<&HostView>> = BTreeMap::new();
    for host in hosts {
        let differing = letters.chars().filter(|letter| "tTcmneObf".contains(*letter));
        let mut key: Vec<String> = differing.map(|letter| cell(letter, queue, &[host])).collect();
        if is_each {
            key.push(host.name.to_string());
        }
        alike.entry(key).or_default().push(host);
    }
    alike.into_values().collect()
}
