//! Where a study ran: machine, settings, storages, devices; and with which parameters.

use std::collections::BTreeMap;

use forebay_analytics::Table;
use maud::{Markup, html};

use super::sheet::table;
use crate::chart::unit::{Unit, span};
use crate::record::{Device, Machine, Record, Storage, Subject};

/// Everything about the place of a study.
#[must_use]
pub fn environment(record: &Record) -> Markup {
    html! {
        (machine(&record.machine))
        @if !record.hosts.is_empty() { (titled("Hosts", &hosts(record))) }
        (storages(&record.subjects))
        (devices(&record.subjects))
        (named("Host settings", &record.machine.settings))
        (workload(record))
        (caches(record))
    }
}

fn machine(machine: &Machine) -> Markup {
    let virtual_machine = match machine.virtualization.as_deref() {
        None => "not known",
        Some("none") => "none",
        Some(name) => name,
    };
    let cores = format!("{} logical, {} physical cores", machine.cpus, machine.cores);
    facts(&[
        ("Host", &machine.host),
        ("Processor", &machine.processor),
        ("Processors", &cores),
        ("Memory", &Unit::Bytes.show(machine.memory_bytes as f64)),
        ("Virtualization", virtual_machine),
        ("Kernel", &machine.kernel),
        ("System", &machine.system),
        ("Source of I/O wait times", &machine.io_wait_source),
    ])
}

/// The hosts on which the jobs ran; the machine is that from which the study was started.
fn hosts(record: &Record) -> Table {
    let mut table =
        Table::new(&["host", "processor", "logical", "cores", "memory", "kernel", "network"]);
    for host in &record.hosts {
        let machine = &host.machine;
        let speed = |(name, speed): (&String, &Option<u64>)| match speed {
            Some(speed) => format!("{name} {speed} Mbit/s"),
            None => name.clone(),
        };
        let network: Vec<String> = host.interfaces.iter().map(speed).collect();
        table.push(vec![
            host.name.as_str().into(),
            machine.processor.as_str().into(),
            u64::from(machine.cpus).into(),
            u64::from(machine.cores).into(),
            Unit::Bytes.show(machine.memory_bytes as f64).into(),
            machine.kernel.as_str().into(),
            network.join(", ").into(),
        ]);
    }
    table
}

fn facts(facts: &[(&str, &str)]) -> Markup {
    html! {
        dl class="facts" {
            @for (name, value) in facts {
                @if !value.is_empty() { dt { (name) } dd { (value) } }
            }
        }
    }
}

fn titled(title: &str, rows: &Table) -> Markup {
    html! {
        @if !rows.rows.is_empty() { div class="sheet" { h3 { (title) } (table(rows)) } }
    }
}

fn named(title: &str, values: &BTreeMap<String, String>) -> Markup {
    let mut rows = Table::new(&["name", "value"]);
    for (name, value) in values {
        rows.push(vec![name.as_str().into(), value.as_str().into()]);
    }
    titled(title, &rows)
}

/// The areas of every storage; areas of one path stand in one row.
fn storages(subjects: &[Subject]) -> Markup {
    let mut rows = Table::new(&[
        "storage",
        "areas",
        "path",
        "type",
        "source",
        "mounted at",
        "options",
        "size",
        "free at the start",
        "read-ahead",
    ]);
    for subject in subjects {
        let areas = [("data", &subject.data), ("work", &subject.work), ("util", &subject.util)];
        let mut told: Vec<(Vec<&str>, &Storage)> = Vec::new();
        for (name, storage) in areas {
            match told.iter_mut().find(|(_, other)| *other == storage) {
                Some((names, _)) => names.push(name),
                None => told.push((vec![name], storage)),
            }
        }
        for (names, storage) in told {
            rows.push(vec![
                subject.label.as_str().into(),
                names.join(", ").into(),
                storage.path.display().to_string().into(),
                storage.file_system.as_str().into(),
                storage.source.as_str().into(),
                storage.mountpoint.display().to_string().into(),
                storage.options.as_str().into(),
                Unit::Bytes.show(storage.size_bytes as f64).into(),
                Unit::Bytes.show(storage.free_bytes as f64).into(),
                storage.read_ahead_bytes.map(|bytes| Unit::Bytes.show(bytes as f64)).into(),
            ]);
        }
    }
    titled("Storage", &rows)
}

fn devices(subjects: &[Subject]) -> Markup {
    let mut rows = Table::new(&["device", "model", "size", "moving parts", "queue"]);
    let mut known: Vec<&Device> = Vec::new();
    for subject in subjects {
        for storage in [&subject.data, &subject.work, &subject.util] {
            for device in &storage.devices {
                if known.contains(&device) {
                    continue;
                }
                known.push(device);
                let queue: Vec<String> =
                    device.queue.iter().map(|(name, value)| format!("{name} {value}")).collect();
                rows.push(vec![
                    device.name.as_str().into(),
                    device.model.as_deref().into(),
                    device.size_bytes.map(|bytes| Unit::Bytes.show(bytes as f64)).into(),
                    device.rotational.map(|moves| if moves { "yes" } else { "no" }).into(),
                    queue.join(", ").into(),
                ]);
            }
        }
    }
    titled("Devices", &rows)
}

fn workload(record: &Record) -> Markup {
    let workload = &record.workload;
    let mut values = workload.parameters.clone();
    let mut say = |name: &str, value: String| values.insert(name.to_owned(), value);
    say("scale", workload.scale.to_string());
    say("seed", workload.seed.to_string());
    say("page size", workload.buffers.page_bytes.to_string());
    say("memory of sorts", workload.buffers.sort_memory.to_string());
    say("memory of programs", workload.buffers.memory.to_string());
    named("Parameters of the workload", &values)
}

fn caches(record: &Record) -> Markup {
    let mut rows =
        Table::new(&["storage", "round", "inputs", "caches at the start", "inputs created in"]);
    for run in &record.runs {
        let label = record.subjects.get(run.subject).map_or("?", |subject| subject.label.as_str());
        rows.push(vec![
            label.into(),
            f64::from(run.round).into(),
            Unit::Bytes.show(run.cache.input_bytes as f64).into(),
            run.cache.describe().into(),
            span(run.prepare_seconds).into(),
        ]);
    }
    titled("Runs", &rows)
}
