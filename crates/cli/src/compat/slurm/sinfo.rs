//! sinfo.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostState, HostView, QueueView, ResourceView};

use super::super::columns::{Piece, line, pieces};
use super::super::row::client;
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::units::{long_span, whole_seconds};
use super::{squeue, state};

use Takes::{Maybe, Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("all", 'a', Nothing),
    harmless("clusters", 'M', Value),
    read("dead", 'd', Nothing),
    harmless("exact", 'e', Nothing),
    harmless("federation", ' ', Nothing),
    read("format", 'o', Value),
    read("Format", 'O', Value),
    harmless("future", 'F', Nothing),
    harmless("hide", ' ', Nothing),
    read("iterate", 'i', Value),
    harmless("local", ' ', Nothing),
    read("long", 'l', Nothing),
    read("Node", 'N', Nothing),
    read("nodes", 'n', Value),
    harmless("noconvert", ' ', Nothing),
    read("noheader", 'h', Nothing),
    read("partition", 'p', Value),
    refused("reservation", 'T', Nothing, "use scontrol show reservation"),
    read("responding", 'r', Nothing),
    read("list-reasons", 'R', Nothing),
    read("sort", 'S', Value),
    read("states", 't', Value),
    read("summarize", 's', Nothing),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
    read("json", ' ', Maybe),
    refused("yaml", ' ', Maybe, "use --json"),
];

const GRAMMAR: Grammar =
    Grammar { command: "sinfo", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

const FORMAT: &str = "%9P %.5a %.10l %.6D %.6t %N";
const LONG: &str = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N";
const BY_NODE: &str = "%N %.6D %.9P %6t";
const BY_NODE_LONG: &str = "%9N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E";
const SUMMARY: &str = "%9P %.5a %.10l %.16F %N";
const REASONS: &str = "%20E %9u %19H %N";
const REASONS_LONG: &str = "%20E %12U %19H %6t %N";

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
    ('H', "TIMESTAMP"),
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
    ('u', "USER"),
    ('U', "USER"),
    ('w', "WEIGHT"),
    ('X', "SOCKETS"),
    ('Y', "CORES"),
    ('z', "S:C:T"),
    ('Z', "THREADS"),
];

/// Letters that differ between hosts: only hosts that are alike in them share a line.
const OF_A_HOST: &str = "tTcmneOCNbfEG";

/// The letters of the names of `-O`, in lower case.
const NAMES: &[(&str, char)] = &[
    ("available", 'a'),
    ("allocnodes", 'S'),
    ("cores", 'Y'),
    ("cpus", 'c'),
    ("cpusload", 'O'),
    ("cpusstate", 'C'),
    ("defaulttime", 'L'),
    ("disk", 'd'),
    ("features", 'f'),
    ("features_act", 'b'),
    ("freemem", 'e'),
    ("gres", 'G'),
    ("groups", 'g'),
    ("memory", 'm'),
    ("nodeai", 'A'),
    ("nodeaiot", 'F'),
    ("nodehost", 'n'),
    ("nodelist", 'N'),
    ("nodes", 'D'),
    ("oversubscribe", 'h'),
    ("partition", 'P'),
    ("partitionname", 'R'),
    ("prioritytier", 'p'),
    ("reason", 'E'),
    ("root", 'r'),
    ("size", 's'),
    ("socketcorethread", 'z'),
    ("sockets", 'X'),
    ("statecompact", 't'),
    ("statelong", 'T'),
    ("threads", 'Z'),
    ("time", 'l'),
    ("timestamp", 'H'),
    ("user", 'u'),
    ("userlong", 'U'),
    ("weight", 'w'),
];

/// The queues and hosts of a grid.
pub struct Cluster {
    /// In the order of the settings.
    pub queues: Vec<QueueView>,
    /// In the order in which they came.
    pub hosts: Vec<HostView>,
    /// Counted resources.
    resources: Vec<ResourceView>,
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
        let Answer::Resources { resources } = client.ask(&Ask::Resources)? else {
            bail!("the controller is a different version");
        };
        Ok(Cluster { queues, hosts, resources })
    }

    /// The counted resources of a host, as `gpu:4`.
    pub fn gres(&self, host: &HostView) -> String {
        let of_host = self.resources.iter().filter(|of| of.host.as_ref() == Some(&host.name));
        let all: Vec<String> = of_host.map(|of| format!("{}:{}", of.name, of.total)).collect();
        if all.is_empty() { "(null)".to_owned() } else { all.join(",") }
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
fn cell(cluster: &Cluster, letter: char, queue: &QueueView, hosts: &[&HostView]) -> String {
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
        'E' => first.and_then(|host| state::reason_of_host(host)).unwrap_or("none").to_owned(),
        'H' | 'u' | 'U' => "Unknown".to_owned(),
        'b' | 'f' => features(first.copied()),
        'G' => first.map_or_else(|| "(null)".to_owned(), |host| cluster.gres(host)),
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

/// The columns of `-O`: `NodeList:30,StateCompact,Gres:.10`.
fn long_pieces(format: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    for part in format.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, room) = part.split_once(':').unwrap_or((part, ""));
        let known = NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        let (_, letter) =
            known.with_context(|| format!("Invalid node format specification: {name}"))?;
        let (room, after) = squeue::room(room)?;
        pieces.push(Piece::Column(*letter, room));
        pieces.push(Piece::Text(after.to_owned()));
    }
    Ok(pieces)
}

/// What is shown: as the options say, else as the environment does, else as usual.
fn format(given: &Given) -> Result<Vec<Piece>> {
    if let Some(names) = given.value("Format") {
        return long_pieces(names);
    }
    let usual = match (given.has("list-reasons"), given.has("Node"), given.has("long")) {
        (true, _, true) => REASONS_LONG,
        (true, ..) => REASONS,
        (_, true, true) => BY_NODE_LONG,
        (_, true, _) => BY_NODE,
        _ if given.has("summarize") => SUMMARY,
        (.., true) => LONG,
        _ => FORMAT,
    };
    let pieces = pieces(given.value("format").unwrap_or(usual));
    for letter in letters(&pieces).chars() {
        ensure!(
            LETTERS.iter().any(|(known, _)| *known == letter),
            "Invalid node format specification: {letter}"
        );
    }
    Ok(pieces)
}

fn letters(pieces: &[Piece]) -> String {
    let letter = |piece: &Piece| match piece {
        Piece::Column(letter, _) => Some(*letter),
        Piece::Text(_) => None,
    };
    pieces.iter().filter_map(letter).collect()
}

/// Whether the options choose a host.
fn is_wanted(given: &Given, host: &HostView) -> bool {
    let (nodes, states) = (given.list("nodes"), given.list("states"));
    let (short, long) = state::of_host(host);
    let words = (short.trim_end_matches('*'), long.trim_end_matches('*'));
    let is_in_state =
        |state: &&str| state.eq_ignore_ascii_case("all") || state::is_called(words, state);
    let is_up = host.state == HostState::Up;
    (nodes.is_empty() || nodes.contains(&host.name.as_str()))
        && (states.is_empty() || states.iter().any(is_in_state))
        && !(given.has("dead") && is_up)
        && (!given.has("responding") || is_up)
        && !(given.has("list-reasons") && state::reason_of_host(host).is_none())
}

/// The line of headings, with the time above it in long lists.
fn heading(given: &Given, pieces: &[Piece]) -> String {
    if given.has("noheader") {
        return String::new();
    }
    let heading = |letter| {
        let known = LETTERS.iter().find(|(known, _)| *known == letter);
        known.map_or("", |(_, heading)| heading).to_owned()
    };
    let time = if given.has("long") {
        format!("{}\n", super::units::date(super::now()))
    } else {
        String::new()
    };
    time + &line(pieces, heading) + "\n"
}

/// A line of the list: hosts of a queue.
type Group<'a> = (&'a QueueView, Vec<&'a HostView>);

/// Sorts lines as `--sort=P,-t` says: by the letters of `-o`, each with a minus for the greatest first. `#P` is the order of the settings.
fn sort(cluster: &Cluster, keys: &str, lines: &mut [Group<'_>]) -> Result<()> {
    let mut read = Vec::new();
    for key in keys.split(',').map(str::trim) {
        let letter = key.trim_start_matches(['+', '-']);
        let known = letter
            .chars()
            .next()
            .filter(|first| letter.len() == 1 && LETTERS.iter().any(|(known, _)| known == first));
        match known {
            Some(letter) => read.push((letter, key.starts_with('-'))),
            None => ensure!(letter.starts_with('#'), "Invalid sort specification: {key}"),
        }
    }
    lines.sort_by(|one, other| {
        let by = |(letter, is_reversed): &(char, bool)| {
            let value = |(queue, hosts): &Group<'_>| cell(cluster, *letter, queue, hosts);
            let order = squeue::compare(&value(one), &value(other));
            if *is_reversed { order.reverse() } else { order }
        };
        read.iter().map(by).fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
    Ok(())
}

/// Runs it.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut given = GRAMMAR.read_command(arguments)?;
    given
        .fill_from("SINFO_", &[("FORMAT", "format"), ("PARTITION", "partition"), ("SORT", "sort")]);
    super::iterated(&given, || list(&given))
}

fn list(given: &Given) -> Result<ExitCode> {
    let pieces = format(given)?;
    let letters = letters(&pieces);
    let cluster = Cluster::ask(&mut client()?)?;
    if given.has("json") {
        out!("{}", super::json::sinfo(&cluster));
        return Ok(ExitCode::SUCCESS);
    }
    let partitions = given.list("partition");
    let is_of_hosts =
        letters.contains(|letter| OF_A_HOST.contains(letter)) && !given.has("summarize");
    let is_each = given.has("Node");
    // With one of these a partition without hosts has no line.
    let chooses = ["dead", "responding", "list-reasons"].iter().any(|option| given.has(option));
    let mut lines: Vec<Group<'_>> = Vec::new();
    for queue in &cluster.queues {
        if !partitions.is_empty() && !partitions.contains(&queue.name.as_str()) {
            continue;
        }
        let of_queue = cluster.of_queue(queue).into_iter();
        let hosts: Vec<&HostView> = of_queue.filter(|host| is_wanted(given, host)).collect();
        if hosts.is_empty() && chooses {
            continue;
        }
        let groups = groups(&cluster, (queue, &hosts), &letters, (is_of_hosts, is_each));
        lines.extend(groups.into_iter().map(|hosts| (queue, hosts)));
    }
    if let Some(keys) = given.value("sort") {
        sort(&cluster, keys, &mut lines)?;
    }
    let mut text = heading(given, &pieces);
    let mut seen = std::collections::BTreeSet::new();
    for (queue, hosts) in &lines {
        let row = line(&pieces, |letter| cell(&cluster, letter, queue, hosts));
        // A format without the partition says nothing new of the same hosts.
        if letters.contains(['P', 'R', 'a', 'l']) || seen.insert(row.clone()) {
            text += &row;
            text.push('\n');
        }
    }
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Hosts that share a line. `is_of_hosts`: only those that are alike; `is_each`: none.
fn groups<'a>(
    cluster: &Cluster,
    (queue, hosts): (&QueueView, &[&'a HostView]),
    letters: &str,
    (is_of_hosts, is_each): (bool, bool),
) -> Vec<Vec<&'a HostView>> {
    if hosts.is_empty() || (!is_of_hosts && !is_each) {
        return vec![hosts.to_vec()];
    }
    let mut alike: BTreeMap<Vec<String>, Vec<&HostView>> = BTreeMap::new();
    for host in hosts {
        let differing = letters.chars().filter(|letter| "tTcmneObfEG".contains(*letter));
        let cell = |letter| cell(cluster, letter, queue, &[*host]);
        let mut key: Vec<String> = differing.map(cell).collect();
        if is_each {
            key.push(host.name.to_string());
        }
        alike.entry(key).or_default().push(host);
    }
    alike.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_long_format_stands_for_a_letter() {
        for (name, letter) in NAMES {
            assert!(LETTERS.iter().any(|(known, _)| known == letter), "{name}");
        }
        let pieces = long_pieces("NodeList:10,Gres:.4|,StateCompact").unwrap();
        assert_eq!(letters(&pieces), "NGt");
        let text = line(&pieces, |letter| letter.to_string());
        assert_eq!(text.trim_end(), "N            G|t");
        assert!(long_pieces("Colour").is_err());
    }
}
