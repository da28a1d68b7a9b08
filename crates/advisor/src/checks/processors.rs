//! Processors: their speed, how deep they sleep, and their clock.

use super::Check;
use crate::finding::{Fix, Verdict};
use crate::host::Host;

/// An idle state that takes longer than this to leave delays each answer of a daemon, microseconds.
const SLOW_TO_WAKE_US: u64 = 100;

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "processors/governor",
        title: "Frequency governor",
        why: "A governor that saves power starts each burst of work at a low frequency. The studies [1, 3, 4] set `performance`.",
        look: governor,
    },
    Check {
        code: "processors/energy-preference",
        title: "Preference between energy and speed",
        why: "Drivers that choose frequencies themselves (intel_pstate, amd-pstate) go by this hint and not by the governor alone: with \
              `power` cores stay slow in the short bursts between two reads.",
        look: energy_preference,
    },
    Check {
        code: "processors/idle-states",
        title: "Deep idle states",
        why: "A program that waits for storage lets its core sleep; waking it from a deep state takes longer than a flash read. \
              tuned's profiles throughput-performance and latency-performance limit it.",
        look: idle_states,
    },
    Check {
        code: "processors/idle-polling",
        title: "Polling before a virtual processor halts",
        why: "A virtual machine pays an exit to its host each time a core goes idle. In Forebay's own measurements one program created \
              4,300 files/s or 12,000, depending on whether the guest polled before it halted (docs/benchmarks.md).",
        look: idle_polling,
    },
    Check {
        code: "processors/clock-source",
        title: "Clock source",
        why: "Reading the clock from the HPET or ACPI timer takes a microsecond and a system call; daemons and programs that log \
              read it all the time.",
        look: clock_source,
    },
];

/// Where the processors are.
const FOLDER: &str = "sys/devices/system/cpu";

/// A setting of all processors, of those that have it.
fn settings(host: &Host, name: &str) -> Vec<String> {
    let cpus = host.list(FOLDER);
    cpus.iter().filter_map(|cpu| host.text(&format!("{FOLDER}/{cpu}/{name}"))).collect()
}

/// Whether processors save energy by a setting, the first of which is this: `performance` mends that.
fn judge(name: &str, (all, first): (&[String], &str), saves: impl Fn(&str) -> bool) -> Verdict {
    let saving: Vec<&String> = all.iter().filter(|it| saves(it)).collect();
    match saving.first() {
        None => Verdict::Fine(format!("{first} on {} processors", all.len())),
        Some(one) => Verdict::warning(
            format!("{one} on {} of {} processors", saving.len(), all.len()),
            Fix::Knob { path: format!("/{FOLDER}/cpu*/{name}"), value: "performance".to_owned() },
        ),
    }
}

fn governor(host: &Host) -> Vec<Verdict> {
    let name = "cpufreq/scaling_governor";
    let governors = settings(host, name);
    let Some(first) = governors.first() else {
        return vec![Verdict::Unknown(
            "the kernel sets no frequencies here (a virtual machine, or the firmware does)"
                .to_owned(),
        )];
    };
    vec![judge(name, (&governors, first), |governor| governor != "performance")]
}

fn energy_preference(host: &Host) -> Vec<Verdict> {
    let name = "cpufreq/energy_performance_preference";
    let preferences = settings(host, name);
    // The driver does not take hints.
    let Some(first) = preferences.first() else { return Vec::new() };
    let saves = |preference: &str| matches!(preference, "power" | "balance_power");
    vec![judge(name, (&preferences, first), saves)]
}

fn idle_states(host: &Host) -> Vec<Verdict> {
    let folder = "sys/devices/system/cpu/cpu0/cpuidle";
    let deepest = host
        .list(folder)
        .iter()
        .filter(|state| host.number(&format!("{folder}/{state}/disable")) != Some(1))
        .filter_map(|state| {
            let latency = host.number(&format!("{folder}/{state}/latency"))?;
            Some((latency, host.text(&format!("{folder}/{state}/name"))?))
        })
        .max();
    match deepest {
        None => vec![Verdict::Unknown("the kernel manages no idle states here".to_owned())],
        Some((latency, name)) if latency > SLOW_TO_WAKE_US => vec![Verdict::advice(
            format!("{name} takes {latency} us to leave"),
            Fix::Command { command: "tuned-adm profile latency-performance".to_owned() },
        )],
        Some((latency, name)) => {
            vec![Verdict::Fine(format!("the deepest state, {name}, takes {latency} us to leave"))]
        }
    }
}

fn idle_polling(host: &Host) -> Vec<Verdict> {
    if !host.is_virtual() {
        return Vec::new();
    }
    let driver = host.text("sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
    vec![if driver == "haltpoll" {
        Verdict::Fine("the guest polls before it halts (haltpoll)".to_owned())
    } else {
        Verdict::advice(
            format!(
                "a virtual machine whose idle driver is {}",
                if driver.is_empty() { "none" } else { &driver }
            ),
            Fix::ByHand {
                advice:
                    "on KVM load the module cpuidle_haltpoll (`modprobe cpuidle_haltpoll force=1`, \
                         /etc/modules-load.d), or let the host poll (kvm.halt_poll_ns)"
                        .to_owned(),
            },
        )
    }]
}

fn clock_source(host: &Host) -> Vec<Verdict> {
    const QUICK: [&str; 5] =
        ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "tsc-early"];
    let folder = "sys/devices/system/clocksource/clocksource0";
    let Some(source) = host.text(&format!("{folder}/current_clocksource")) else {
        return vec![Verdict::Unknown("the clock source cannot be read".to_owned())];
    };
    vec![if QUICK.contains(&source.as_str()) {
        Verdict::Fine(source)
    } else {
        let available = host.text(&format!("{folder}/available_clocksource")).unwrap_or_default();
        Verdict::warning(
            format!("{source} (available: {available})"),
            Fix::ByHand {
                advice: "look in the kernel's log for the reason why the processor's own counter is not used; `clocksource=tsc` \
                         on the kernel's command line forces it"
                    .to_owned(),
            },
        )
    }]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn one_processor_that_saves_power_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, governor) in [("cpu0", "performance"), ("cpu1", "powersave")] {
            let path = folder.path().join("sys/devices/system/cpu").join(cpu).join("cpufreq");
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("scaling_governor"), governor).unwrap();
        }
        let found = governor(&Host::below(folder.path())).remove(0);
        assert!(
            matches!(&found, Verdict::Found { evidence, .. } if evidence == "powersave on 1 of 2 processors"),
            "{found:?}"
        );
    }

    #[test]
    fn an_idle_state_that_was_switched_off_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        for (state, latency, disabled) in [("state0", "2", "0"), ("state1", "500", "1")] {
            let path = folder.path().join("sys/devices/system/cpu/cpu0/cpuidle").join(state);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in [("latency", latency), ("disable", disabled), ("name", state)] {
                fs::write(path.join(file), text).unwrap();
            }
        }
        let verdict = idle_states(&Host::below(folder.path())).remove(0);
        assert!(matches!(&verdict, Verdict::Fine(text) if text.contains("state0")), "{verdict:?}");
    }
}
