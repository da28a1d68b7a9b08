//! scontrol, as far as tools and people use it for jobs.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostView, LimitsView, QueueView};
use forebay_grid::event::Verb;
use forebay_grid::parse::array::ELEMENTS_MAX;
use forebay_grid::spec::Rerun;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use super::super::row::{Row, client, known, rows};
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read};
use super::sinfo::{Cluster, availability, features};
use super::{choice, field, hostlist, now, reservation, scancel, state, update};

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("all", 'a', Nothing),
    read("clusters", 'M', Value),
    harmless("details", 'd', Nothing),
    harmless("future", 'F', Nothing),
    harmless("hide", ' ', Nothing),
    harmless("local", ' ', Nothing),
    read("oneliner", 'o', Nothing),
    harmless("quiet", 'Q', Nothing),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "scontrol", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

/// Runs it; the exit code is 1 if something was refused.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read_command(arguments)?;
    given.value("clusters").map_or(Ok(()), super::spec::refuse_other_clusters)?;
    let is_one_line = given.has("oneliner");
    let words: Vec<&str> = given.words.iter().map(String::as_str).collect();
    let Some((verb, rest)) = words.split_first() else {
        bail!("a command is missing, such as: scontrol show job 12");
    };
    match *verb {
        "show" => show(rest, is_one_line),
        "hold" | "uhold" => each(rest, Verb::Hold),
        "release" => each(rest, Verb::Release),
        "suspend" => each(rest, Verb::Hold),
        "resume" => each(rest, Verb::Release),
        "requeue" => each(rest, Verb::Requeue),
        "requeuehold" => bail!("requeuehold is not supported: use requeue and hold"),
        "ping" => ping(),
        "version" => {
            outln!("slurm {}", super::SLURM_VERSION);
            Ok(ExitCode::SUCCESS)
        }
        "update" => update::update(rest),
        "create" => reservation::create(rest),
        "delete" => reservation::delete(rest),
        "top" => update::top(rest),
        other => bail!("invalid keyword: {other}"),
    }
}

fn ping() -> Result<ExitCode> {
    client()?.ask(&forebay_engine::protocol::Ask::Ping)?;
    outln!("Slurmctld(primary) at forebay is UP");
    Ok(ExitCode::SUCCESS)
}

/// Does something to each job.
fn each(ids: &[&str], verb: Verb) -> Result<ExitCode> {
    let ids: Vec<&str> = ids.iter().flat_map(|id| id.split(',')).collect();
    let mut client = client()?;
    let targets = choice::targets(&ids, &mut client)?.context("a job is missing")?;
    let mut code = ExitCode::SUCCESS;
    for target in targets {
        match scancel::command(&mut client, target, verb) {
            Ok(true) => {}
            Ok(false) => {
                note!("Invalid job id specified for job {target}");
                note!("slurm_suspend error: Invalid job id specified");
                code = ExitCode::from(1);
            }
            Err(error) => {
                note!("scontrol: error: {target}: {}", crate::output::chain(&error));
                code = ExitCode::from(1);
            }
        }
    }
    Ok(code)
}

fn show(words: &[&str], is_one_line: bool) -> Result<ExitCode> {
    let Some((what, rest)) = words.split_first() else {
        bail!("what to show is missing, such as: scontrol show job 12");
    };
    // `show job=12` and `show job 12` are both written.
    let (what, first) = what.split_once('=').map_or((*what, None), |(what, id)| (what, Some(id)));
    let names: Vec<&str> = first.into_iter().chain(rest.iter().copied()).collect();
    let lower = what.to_ascii_lowercase();
    let text = match &lower[..] {
        "hostnames" | "hostname" => {
            let by_variable = std::env::var("SLURM_JOB_NODELIST").unwrap_or_default();
            let list = names.first().copied().unwrap_or(&by_variable);
            hostlist::expand(list)?.iter().map(|name| format!("{name}\n")).collect()
        }
        "hostlist" | "hostlistsorted" => format!("{}\n", names.join(",")),
        "config" => config(&limits(&mut client()?)?),
        "job" | "jobs" | "jobid" => jobs(&mut client()?, &names, is_one_line)?,
        "partition" | "partitions" | "part" | "par" => {
            partitions(&Cluster::ask(&mut client()?)?, &names, is_one_line)?
        }
        "node" | "nodes" | "nodename" => {
            nodes(&Cluster::ask(&mut client()?)?, &names, is_one_line)?
        }
        "reservation" | "reservations" | "reservationname" | "res" => {
            reservation::show(&mut client()?, &names, |groups| block(groups, is_one_line))?
        }
        _ => bail!("invalid entity:{what} for keyword:show"),
    };
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What the settings say.
fn limits(client: &mut Client) -> Result<LimitsView> {
    match client.ask(&Ask::Limits)? {
        Answer::Limits { limits } => Ok(limits),
        answer => bail!("unexpected answer: {answer:?}"),
    }
}

fn config(limits: &LimitsView) -> String {
    let lines = [
        ("ClusterName", super::CLUSTER.to_owned()),
        ("JobRequeue", u8::from(limits.rerun).to_string()),
        ("MaxArraySize", (ELEMENTS_MAX + 1).to_string()),
        ("MaxJobCount", limits.tasks_max.to_string()),
        ("MinJobAge", format!("{:.0} sec", limits.finished_age_seconds)),
        ("SLURM_VERSION", super::SLURM_VERSION.to_owned()),
    ];
    let lines = lines.map(|(key, value)| format!("{key:<23} = {value}\n"));
    format!("Configuration data of a Forebay grid\n{}\n", lines.concat())
}

/// Groups of `Key=value`, a line each, or all on one line.
fn block(groups: &[Vec<(&str, String)>], is_one_line: bool) -> String {
    let line = |group: &Vec<(&str, String)>| {
        group.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<String> = groups.iter().map(line).collect();
    if is_one_line { lines.join(" ") + "\n" } else { lines.join("\n   ") + "\n\n" }
}

fn jobs(client: &mut Client, ids: &[&str], is_one_line: bool) -> Result<String> {
    let ids: Vec<&str> = ids.iter().flat_map(|id| id.split(',')).collect();
    let found = match choice::targets(&ids, client)? {
        None => rows(client, None, true)?,
        Some(targets) => {
            let mut found = Vec::new();
            for target in targets {
                let of_job = known(client, target)?;
                found.extend(of_job.context("slurm_load_jobs error: Invalid job id specified")?);
            }
            found
        }
    };
    ensure!(!found.is_empty() || ids.is_empty(), "slurm_load_jobs error: Invalid job id specified");
    if found.is_empty() {
        return Ok("No jobs in the system\n".to_owned());
    }
    let now = now();
    Ok(found.iter().map(|row| job(row, now, is_one_line)).collect())
}

/// All that scontrol shows of a job.
fn job(row: &Row, now: Moment, is_one_line: bool) -> String {
    let value = |name: &str| field::value(row, name, now).unwrap_or_default();
    let or_null = |text: String| if text.is_empty() { "(null)".to_owned() } else { text };
    let mut groups = vec![vec![("JobId", value("jobidraw")), ("JobName", value("jobname"))]];
    if row.asked.array.is_some() {
        groups[0].insert(1, ("ArrayJobId", value("arrayjobid")));
        groups[0].insert(2, ("ArrayTaskId", value("arraytaskid")));
    }
    let is_held = row.view.state == JobState::Held;
    groups.extend([
        vec![("UserId", format!("{}({})", row.view.user, value("uid")))],
        vec![
            ("Priority", if is_held { "0".to_owned() } else { value("priority") }),
            ("Account", or_null(value("account"))),
            ("QOS", value("qos")),
        ],
        vec![
            ("JobState", value("state")),
            ("Reason", value("reason")),
            ("Dependency", or_null(value("dependency"))),
        ],
        vec![
            ("Requeue", u8::from(row.asked.rerun == Rerun::Rerunnable).to_string()),
            ("Restarts", value("restarts")),
            ("BatchFlag", "1".to_owned()),
            ("ExitCode", value("exitcode")),
        ],
        vec![("RunTime", value("elapsed")), ("TimeLimit", value("timelimit"))],
        vec![("SubmitTime", value("submit")), ("EligibleTime", value("eligible"))],
        vec![("StartTime", value("start")), ("EndTime", value("end"))],
        vec![
            ("Partition", value("partition")),
            ("Reservation", or_null(row.asked.reservation.clone().unwrap_or_default())),
        ],
        vec![("NodeList", or_null(value("nodelist")))],
        vec![("BatchHost", value("batchhost"))],
        vec![
            ("NumNodes", "1".to_owned()),
            ("NumCPUs", value("reqcpus")),
            ("NumTasks", value("ntasks")),
        ],
        vec![("MinMemoryNode", value("reqmem"))],
        vec![("Features", or_null(value("constraints"))), ("DelayBoot", "00:00:00".to_owned())],
        vec![("Command", value("command"))],
        vec![("Licenses", or_null(row.asked.resources.clone()))],
        vec![("WorkDir", value("workdir"))],
        vec![("Comment", value("comment"))],
        vec![("StdErr", value("stderr"))],
        vec![("StdIn", "/dev/null".to_owned())],
        vec![("StdOut", value("stdout"))],
    ]);
    block(&groups, is_one_line)
}

fn partitions(cluster: &Cluster, names: &[&str], is_one_line: bool) -> Result<String> {
    let wanted = |queue: &&QueueView| names.is_empty() || names.contains(&queue.name.as_str());
    let found: Vec<&QueueView> = cluster.queues.iter().filter(wanted).collect();
    ensure!(!found.is_empty(), "Partition {} not found", names.join(","));
    let one = |queue: &&QueueView| {
        let hosts = cluster.of_queue(queue);
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let slots: u32 = hosts.iter().map(|host| host.slots).sum();
        let limit = super::units::whole_seconds(queue.time_limit_max_seconds);
        let limit = limit.map_or_else(|| "UNLIMITED".to_owned(), super::units::long_span);
        let groups = [
            vec![("PartitionName", queue.name.to_string())],
            vec![
                ("AllowGroups", "ALL".to_owned()),
                ("AllowAccounts", "ALL".to_owned()),
                ("AllowQos", "ALL".to_owned()),
            ],
            vec![
                ("AllocNodes", "ALL".to_owned()),
                ("Default", if queue.is_default { "YES" } else { "NO" }.to_owned()),
                ("QoS", "N/A".to_owned()),
            ],
            vec![
                ("DefaultTime", "NONE".to_owned()),
                ("DisableRootJobs", "NO".to_owned()),
                ("ExclusiveUser", "NO".to_owned()),
                ("GraceTime", "0".to_owned()),
                ("Hidden", "NO".to_owned()),
            ],
            vec![("MaxNodes", "1".to_owned()), ("MaxTime", limit), ("MinNodes", "0".to_owned())],
            vec![("Nodes", names.join(","))],
            vec![
                ("PriorityTier", queue.priority.unwrap_or(0).to_string()),
                ("RootOnly", "NO".to_owned()),
                ("OverSubscribe", "NO".to_owned()),
            ],
            vec![
                ("State", availability(queue).to_ascii_uppercase()),
                ("TotalCPUs", slots.to_string()),
                ("TotalNodes", hosts.len().to_string()),
            ],
        ];
        block(&groups, is_one_line)
    };
    Ok(found.iter().map(one).collect())
}

fn nodes(cluster: &Cluster, names: &[&str], is_one_line: bool) -> Result<String> {
    let wanted = |host: &&HostView| names.is_empty() || names.contains(&host.name.as_str());
    let found: Vec<&HostView> = cluster.hosts.iter().filter(wanted).collect();
    ensure!(!found.is_empty(), "Node {} not found", names.join(","));
    let one = |host: &&HostView| {
        let name = host.name.to_string();
        let mib = |bytes: u64| (bytes >> 20).to_string();
        let groups = [
            vec![("NodeName", name.clone()), ("CoresPerSocket", host.slots.to_string())],
            vec![("AvailableFeatures", features(Some(host)))],
            vec![("ActiveFeatures", features(Some(host)))],
            vec![("Gres", cluster.gres(host))],
            vec![("CPUAlloc", host.used_slots.to_string()), ("CPUTot", host.slots.to_string())],
            vec![("NodeAddr", name.clone()), ("NodeHostName", name)],
            vec![
                ("RealMemory", mib(host.memory_bytes.unwrap_or(0))),
                ("AllocMem", mib(host.used_memory_bytes)),
            ],
            vec![("State", state::of_host(host).1.to_ascii_uppercase())],
            vec![("Reason", state::reason_of_host(host).unwrap_or("none").to_owned())],
        ];
        block(&groups, is_one_line)
    };
    Ok(found.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_line_for_each_group_or_one_for_all() {
        let groups =
            [vec![("A", "1".to_owned()), ("B", "2".to_owned())], vec![("C", "3".to_owned())]];
        assert_eq!(block(&groups, false), "A=1 B=2\n   C=3\n\n");
        assert_eq!(block(&groups, true), "A=1 B=2 C=3\n");
    }

    #[test]
    fn tools_find_the_limits_in_the_configuration() {
        let text = config(&LimitsView {
            finished_age_seconds: 3600.0,
            tasks_max: 5,
            user_tasks_max: 4,
            user_slots_max: None,
            dispatch_seconds: 0.0,
            accept_rounds: 0,
            rerun: true,
            profiles: Vec::new(),
            submit_filter: false,
        });
        assert!(text.contains("MinJobAge               = 3600 sec\n"), "{text}");
        assert!(text.contains("MaxArraySize            = 1000001\n"), "{text}");
        assert!(text.contains("MaxJobCount             = 5\n"), "{text}");
        assert!(text.contains("JobRequeue              = 1\n"), "{text}");
    }
}
