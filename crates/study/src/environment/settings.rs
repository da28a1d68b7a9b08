//! Settings of the host that matter to input and output.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use forebay_process::accounting::field;

use crate::environment::blocks::chosen;
use crate::environment::{Kernel, list};

/// Files of `/proc/sys`, by the name that sysctl(8) gives them.
const SYSCTL: [&str; 11] = [
    "vm.dirty_ratio",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_background_bytes",
    "vm.dirty_expire_centisecs",
    "vm.dirty_writeback_centisecs",
    "vm.swappiness",
    "vm.vfs_cache_pressure",
    "vm.zone_reclaim_mode",
    "kernel.numa_balancing",
    "kernel.task_delayacct",
];

/// All settings that can be read, name to value.
pub fn all(kernel: &Kernel, cpus: &[u32]) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut add = |name: &str, value: Option<String>| {
        settings.extend(value.map(|value| (name.to_owned(), value)));
    };
    for name in SYSCTL {
        add(name, kernel.proc(&format!("sys/{}", name.replace('.', "/"))));
    }
    let huge = kernel.sys("kernel/mm/transparent_hugepage/enabled");
    add("transparent_hugepage", huge.map(|text| chosen(&text).to_owned()));
    add("cpu_governor", governors(kernel, cpus));
    add("smt", kernel.sys("devices/system/cpu/smt/control"));
    let nodes = kernel.sys("devices/system/node/online");
    add("numa_nodes", nodes.map(|nodes| list(&nodes).len().to_string()));
    let swap = kernel.proc("meminfo").and_then(|text| field(&text, "SwapTotal"));
    add("swap_bytes", swap.map(|kib| (kib << 10).to_string()));
    let limit = group_memory(kernel);
    add("cgroup_memory_bytes", limit.map(|bytes| bytes.to_string()));
    let pressure = kernel.proc("pressure/io").map_or("off", |_| "on");
    add("pressure_stall_information", Some(pressure.to_owned()));
    settings
}

/// The governors of the processors that may be used, each once.
fn governors(kernel: &Kernel, cpus: &[u32]) -> Option<String> {
    let of = |cpu| kernel.sys(&format!("devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: BTreeSet<String> = cpus.iter().filter_map(of).collect();
    (!governors.is_empty()).then(|| governors.into_iter().collect::<Vec<_>>().join(", "))
}

/// The least memory that this process' control group or one above it may use, page cache included;
/// `None` without a limit.
pub fn group_memory(kernel: &Kernel) -> Option<u64> {
    let groups = kernel.proc("self/cgroup")?;
    // Version 1 has a hierarchy for each resource; version 2 has one, whose number is 0, and which may
    // be there without resources.
    let of_memory = groups.lines().find_map(|line| {
        let (resources, group) = line.split_once(':')?.1.split_once(':')?;
        resources.split(',').any(|resource| resource == "memory").then_some(group)
    });
    let (root, name, group) = match of_memory {
        Some(group) => ("fs/cgroup/memory", "memory.limit_in_bytes", group),
        None => {
            let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
            ("fs/cgroup", "memory.max", group)
        }
    };
    let limit = |group: &Path| {
        let file = Path::new(root).join(group).join(name);
        // "max" is no number; version 1 writes a huge one.
        kernel.sys(file.to_str()?)?.parse::<u64>().ok().filter(|&bytes| bytes < 1 << 60)
    };
    Path::new(group.trim_start_matches('/')).ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn kernel(files: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let kernel = Kernel { proc: folder.path().join("proc"), sys: folder.path().join("sys") };
        (folder, kernel)
    }

    #[test]
    fn settings_that_are_there_are_told_and_others_left_out() {
        let (_folder, kernel) = kernel(&[
            ("proc/sys/vm/dirty_ratio", "20\n"),
            ("proc/sys/kernel/task_delayacct", "0\n"),
            ("proc/meminfo", "MemTotal: 9 kB\nSwapTotal:       2 kB\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "ondemand\n"),
        ]);
        let settings = all(&kernel, &[0, 1]);
        let expected = [
            ("cpu_governor", "performance, powersave"),
            ("kernel.task_delayacct", "0"),
            ("numa_nodes", "2"),
            ("pressure_stall_information", "off"),
            ("swap_bytes", "2048"),
            ("transparent_hugepage", "madvise"),
            ("vm.dirty_ratio", "20"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings, BTreeMap::from(expected));
    }

    #[test]
    fn the_least_limit_of_the_groups_holds() {
        let (_folder, two) = kernel(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "5000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(group_memory(&two), Some(5000));
        let (_folder, one) = kernel(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/c\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "7000\n"),
        ]);
        assert_eq!(group_memory(&one), Some(7000));
        let (_folder, none) = kernel(&[("proc/self/cgroup", "1:name=systemd:/\n0::/\n")]);
        assert_eq!(group_memory(&none), None);
    }
}
