//! The table of what was run, where and on what.

use forebay_analytics::{Cell, Table};

use super::gigabytes;
use crate::record::{Device, Machine, Record};
use crate::summary::Sheet;

/// The workload, the machine and the storages.
#[must_use]
pub fn environment(record: &Record) -> Sheet {
    let mut table = Table::new(&["of", "what", "value"]);
    let mut push = |of: &str, what: &str, value: Cell| {
        if value != Cell::Missing && value != Cell::Text(String::new()) {
            table.push(vec![of.into(), what.into(), value]);
        }
    };
    let (workload, machine) = (&record.workload, &record.machine);
    push("workload", "name", workload.name.as_str().into());
    push("workload", "title", workload.title.as_str().into());
    push("workload", "study", workload.study.as_str().into());
    push("workload", "scale", workload.scale.into());
    // As text: large seeds are not exact as floating point numbers.
    push("workload", "seed", workload.seed.to_string().into());
    push("workload", "page size", workload.buffers.page_bytes.to_string().into());
    push("workload", "sort memory", workload.buffers.sort_memory.to_string().into());
    push("workload", "memory", workload.buffers.memory.to_string().into());
    for (name, value) in &workload.parameters {
        push("workload", name, value.as_str().into());
    }
    push_machine(&mut push, "machine", machine);
    for host in &record.hosts {
        let of = format!("host {}", host.name);
        push_machine(&mut push, &of, &host.machine);
        for (name, speed) in &host.interfaces {
            let speed =
                speed.map_or("speed not known".to_owned(), |speed| format!("{speed} Mbit/s"));
            push(&of, &format!("network {name}"), speed.into());
        }
    }
    for subject in &record.subjects {
        let areas = [("data", &subject.data), ("work", &subject.work), ("util", &subject.util)];
        for (area, storage) in areas {
            let of = format!("{} {area}", subject.label);
            push(&of, "path", storage.path.display().to_string().into());
            push(&of, "file system", storage.file_system.as_str().into());
            push(&of, "source", storage.source.as_str().into());
            push(&of, "mount options", storage.options.as_str().into());
            push(&of, "size GB", gigabytes(storage.size_bytes));
            push(&of, "free GB", gigabytes(storage.free_bytes));
            for device in &storage.devices {
                push(&of, &device.name, describe(device).into());
            }
        }
    }
    push("study", "started", record.started.as_str().into());
    push("study", "version", record.version.as_str().into());
    push("study", "command", record.command.join(" ").into());
    Sheet {
        name: "environment",
        title: "Environment".to_owned(),
        notes: workload.notes.clone(),
        table,
    }
}

fn push_machine(push: &mut impl FnMut(&str, &str, Cell), of: &str, machine: &Machine) {
    push(of, "host", machine.host.as_str().into());
    push(of, "processor", machine.processor.as_str().into());
    push(of, "logical processors", u64::from(machine.cpus).into());
    push(of, "physical cores", u64::from(machine.cores).into());
    push(of, "memory GB", gigabytes(machine.memory_bytes));
    push(of, "virtualization", machine.virtualization.clone().into());
    push(of, "kernel", machine.kernel.as_str().into());
    push(of, "system", machine.system.as_str().into());
    push(of, "I/O wait from", machine.io_wait_source.as_str().into());
    for (name, value) in &machine.settings {
        push(of, name, value.as_str().into());
    }
}

fn describe(device: &Device) -> String {
    let kind = match device.rotational {
        Some(true) => Some("rotational".to_owned()),
        Some(false) => Some("not rotational".to_owned()),
        None => None,
    };
    let queue = device.queue.iter().map(|(name, value)| format!("{name}={value}"));
    device.model.clone().into_iter().chain(kind).chain(queue).collect::<Vec<_>>().join(", ")
}
