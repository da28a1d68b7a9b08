//! `--json` of squeue, sacct and sinfo: the fields of Slurm's description v0.0.38 that a grid knows, under their names there.

use forebay_engine::protocol::{HostView, QueueView};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;
use serde_json::{Value, json};

use super::super::row::Row;
use super::sinfo::Cluster;
use super::{SLURM_VERSION, field, state};

/// Seconds since 1970; 0 if it is not known, as in Slurm.
fn seconds(at: Option<Moment>) -> u64 {
    at.map_or(0, |at| at.0 / 1000)
}

/// The document, with the list under its name.
fn document(name: &str, list: Vec<Value>) -> String {
    let version: Vec<&str> = SLURM_VERSION.split('.').collect();
    let part = |place: usize| version.get(place).and_then(|part| part.parse::<u32>().ok());
    let mut whole = json!({
        "meta": {
            "plugin": { "type": "openapi/v0.0.38", "name": "Forebay, in the style of Slurm" },
            "Slurm": {
                "version": { "major": part(0), "minor": part(1), "micro": part(2) },
                "release": SLURM_VERSION,
            },
        },
        "errors": [],
    });
    whole[name] = Value::Array(list);
    format!("{whole:#}\n")
}

fn text(row: &Row, name: &str, now: Moment) -> String {
    field::value(row, name, now).unwrap_or_default()
}

fn limit_minutes(row: &Row) -> Option<u64> {
    super::units::whole_seconds(row.asked.time_limit_seconds).map(|seconds| seconds.div_ceil(60))
}

/// Status and signal of the end of a job.
fn exit(row: &Row) -> (u32, u32) {
    let said = state::exit_code(row.view.exit.as_ref());
    let (code, signal) = said.split_once(':').unwrap_or(("0", "0"));
    (code.parse().unwrap_or(0), signal.parse().unwrap_or(0))
}

/// The element of an array, or the elements that wait.
fn element(row: &Row) -> (Option<u32>, String) {
    let several = if row.is_several() { row.elements() } else { String::new() };
    (row.index(), several)
}

/// `squeue --json`.
pub fn squeue(rows: &[Row], now: Moment) -> String {
    let one = |row: &Row| {
        let ((code, signal), (index, waiting)) = (exit(row), element(row));
        let is_array = row.asked.array.is_some();
        json!({
            "account": row.asked.project,
            "array_job_id": if is_array { row.target.job.0 } else { 0 },
            "array_task_id": index,
            "array_task_string": waiting,
            "batch_host": row.view.host,
            "cluster": super::CLUSTER,
            "command": row.view.command.join(" "),
            "comment": text(row, "comment", now),
            "cpus": row.view.slots,
            "current_working_directory": row.asked.directory,
            "deadline": seconds(row.asked.deadline),
            "dependency": row.asked.depends.clone().unwrap_or_default(),
            "derived_exit_code": code,
            "eligible_time": seconds(Some(row.view.submitted.max(row.asked.begin.unwrap_or_default()))),
            "end_time": seconds(row.view.ended),
            "exit_code": (code << 8) | signal,
            "features": text(row, "constraints", now),
            "hold": row.view.state == JobState::Held,
            "job_id": row.number(),
            "job_state": state::of(row).1,
            "licenses": row.asked.resources,
            "memory_per_node": row.asked.memory_bytes.map(|bytes| bytes >> 20),
            "name": field::name(row),
            "node_count": 1,
            "nodes": text(row, "nodelist", now),
            "partition": row.view.queue,
            "priority": row.asked.priority,
            "qos": text(row, "qos", now),
            "restart_cnt": row.view.attempts.saturating_sub(1),
            "resv_name": row.asked.reservation.clone().unwrap_or_default(),
            "standard_error": text(row, "stderr", now),
            "standard_input": "/dev/null",
            "standard_output": text(row, "stdout", now),
            "start_time": seconds(row.view.started),
            "state_reason": state::reason(row),
            "submit_time": seconds(Some(row.view.submitted)),
            "tasks": 1,
            "time_limit": limit_minutes(row),
            "user_id": text(row, "uid", now).parse::<u64>().ok(),
            "user_name": row.view.user,
        })
    };
    document("jobs", rows.iter().map(one).collect())
}

/// `sacct --json`.
pub fn sacct(rows: &[Row], now: Moment) -> String {
    let one = |row: &Row| {
        let ((code, signal), (index, waiting)) = (exit(row), element(row));
        let usage = row.view.usage.as_ref();
        json!({
            "account": row.asked.project,
            "array": {
                "job_id": if row.asked.array.is_some() { row.target.job.0 } else { 0 },
                "task_id": index,
                "task": waiting,
            },
            "cluster": super::CLUSTER,
            "comment": { "job": text(row, "comment", now) },
            "constraints": text(row, "constraints", now),
            "exit_code": { "return_code": code, "signal": { "signal_id": signal } },
            "job_id": row.number(),
            "name": field::name(row),
            "nodes": text(row, "nodelist", now),
            "partition": row.view.queue,
            "priority": row.asked.priority,
            "qos": text(row, "qos", now),
            "required": { "CPUs": row.view.slots, "memory": row.asked.memory_bytes.map(|bytes| bytes >> 20) },
            "restart_cnt": row.view.attempts.saturating_sub(1),
            "state": { "current": state::of(row).1, "reason": state::reason(row) },
            "time": {
                "elapsed": row.ran(now).unwrap_or(0),
                "eligible": seconds(Some(row.view.submitted)),
                "end": seconds(row.view.ended),
                "limit": limit_minutes(row),
                "start": seconds(row.view.started),
                "submission": seconds(Some(row.view.submitted)),
                "user": { "seconds": usage.map(|usage| usage.user_seconds) },
                "system": { "seconds": usage.map(|usage| usage.system_seconds) },
            },
            "user": row.view.user,
            "working_directory": row.asked.directory,
        })
    };
    document("jobs", rows.iter().map(one).collect())
}

/// `sinfo --json`.
pub fn sinfo(cluster: &Cluster) -> String {
    let partitions = |host: &HostView| -> Vec<String> {
        let has =
            |queue: &&QueueView| cluster.of_queue(queue).iter().any(|of| of.name == host.name);
        cluster.queues.iter().filter(has).map(|queue| queue.name.to_string()).collect()
    };
    let one = |host: &HostView| {
        json!({
            "active_features": host.features.join(","),
            "alloc_cpus": host.used_slots,
            "alloc_memory": host.used_memory_bytes >> 20,
            "cpus": host.slots,
            "features": host.features.join(","),
            "gres": Some(cluster.gres(host)).filter(|gres| gres != "(null)"),
            "hostname": host.name,
            "idle_cpus": host.slots.saturating_sub(host.used_slots),
            "name": host.name,
            "partitions": partitions(host),
            "real_memory": host.memory_bytes.map(|bytes| bytes >> 20),
            "state": state::of_host(host).1.trim_end_matches('*'),
        })
    };
    document("nodes", cluster.hosts.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_the_version_that_it_is_like() {
        let whole: Value =
            serde_json::from_str(&document("jobs", vec![json!({"job_id": 7})])).unwrap();
        assert_eq!(whole["jobs"][0]["job_id"], 7);
        assert_eq!(
            (&whole["meta"]["Slurm"]["version"]["major"], &whole["errors"]),
            (&json!(22), &json!([]))
        );
    }
}
