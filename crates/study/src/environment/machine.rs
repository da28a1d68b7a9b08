//! The machine: processors that may be used, memory, kernel, system.

use std::collections::BTreeSet;
use std::path::Path;

use forebay_process::accounting::field;

use crate::environment::{Kernel, settings, text, virtualization};
use crate::record::Machine;

/// Looks at the machine.
#[must_use]
pub fn machine() -> Machine {
    let io_wait_source = forebay_process::io_wait_source();
    let (kernel, allowed) = (Kernel::running(), allowed_cpus());
    Machine { io_wait_source, ..describe(&kernel, &allowed, Path::new("/etc/os-release")) }
}

fn describe(kernel: &Kernel, allowed: &[u32], release: &Path) -> Machine {
    let cpus = u32::try_from(allowed.len()).unwrap_or(u32::MAX);
    let memory = kernel.proc("meminfo").and_then(|text| field(&text, "MemTotal"));
    let memory = memory.unwrap_or(0) << 10;
    Machine {
        host: kernel.proc("sys/kernel/hostname").unwrap_or_default(),
        processor: processor(&kernel.proc("cpuinfo").unwrap_or_default()),
        cpus,
        cores: cores(kernel, allowed).unwrap_or(cpus),
        // The page cache counts for the control group's limit.
        memory_bytes: settings::group_memory(kernel).map_or(memory, |limit| limit.min(memory)),
        virtualization: virtualization::detect(kernel),
        kernel: kernel.proc("sys/kernel/osrelease").unwrap_or_default(),
        system: system(&text(release).unwrap_or_default()),
        settings: settings::all(kernel, allowed),
        io_wait_source: String::new(),
    }
}

/// The processors on which this process may run.
fn allowed_cpus() -> Vec<u32> {
    let status = Kernel::running().proc("self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = super::list(allowed.unwrap_or_default());
    if allowed.is_empty() {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return (0..u32::try_from(count).unwrap_or(1)).collect();
    }
    allowed
}

/// Physical cores among these processors: those that share one have the same list of siblings.
fn cores(kernel: &Kernel, allowed: &[u32]) -> Option<u32> {
    let siblings = |cpu| {
        let topology = format!("devices/system/cpu/cpu{cpu}/topology");
        // The second name is that of kernels before 5.2.
        kernel
            .sys(&format!("{topology}/core_cpus_list"))
            .or_else(|| kernel.sys(&format!("{topology}/thread_siblings_list")))
    };
    let cores: Option<BTreeSet<String>> = allowed.iter().map(siblings).collect();
    cores.and_then(|cores| u32::try_from(cores.len()).ok()).filter(|&cores| cores > 0)
}

/// The processor's name, as far as `/proc/cpuinfo` of this architecture tells one.
fn processor(cpuinfo: &str) -> String {
    ["model name", "Model Name", "cpu", "uarch", "Processor", "Hardware"]
        .iter()
        .find_map(|name| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == *name).then(|| value.trim().to_owned())
            })
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The distribution's name, from os-release(5).
fn system(release: &str) -> String {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn cores_are_those_of_the_processors_that_may_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel { proc: folder.path().join("proc"), sys: folder.path().to_owned() };
        for (cpu, siblings) in [(0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5")] {
            let topology = folder.path().join(format!("devices/system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            // One kernel writes both names; an old one the second only.
            let name = if cpu < 4 { "core_cpus_list" } else { "thread_siblings_list" };
            fs::write(topology.join(name), siblings).unwrap();
        }
        assert_eq!(cores(&kernel, &[0, 1, 4, 5]), Some(2));
        assert_eq!(cores(&kernel, &[0, 4]), Some(1));
        assert_eq!(cores(&kernel, &[0, 9]), None);
        let machine = describe(&kernel, &[0, 9], Path::new("/no/such/file"));
        assert_eq!((machine.cpus, machine.cores, machine.memory_bytes), (2, 2, 0));
    }

    #[test]
    fn names_are_found_where_they_stand() {
        assert_eq!(processor("processor\t: 0\nmodel name\t: Xeon @ 2.5: GHz\n"), "Xeon @ 2.5: GHz");
        assert_eq!(processor("processor: 0\nuarch\t: sifive,u74\n"), "sifive,u74");
        assert_eq!(processor(""), std::env::consts::ARCH);
        assert_eq!(system("ID=debian\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
        assert_eq!(system(""), "Linux");
    }

    #[test]
    fn the_running_machine_is_described() {
        let machine = machine();
        assert!(machine.cores >= 1 && machine.cores <= machine.cpus, "{machine:?}");
        assert!(machine.memory_bytes > 1 << 24 && !machine.kernel.is_empty(), "{machine:?}");
        assert!(machine.settings.contains_key("vm.dirty_ratio"), "{machine:?}");
        assert!(!machine.processor.is_empty() && !machine.system.is_empty(), "{machine:?}");
        assert!(!machine.io_wait_source.is_empty(), "{machine:?}");
    }
}
