//! A shell script of fixes, for an administrator to read and run.
//!
//! Settings last: sysctl settings in /etc/sysctl.d, attributes of disks in a rule of udev(7), other files of /sys by
//! tmpfiles.d(5). Where tuned(8) runs, a profile that includes the one in use takes their place, as it would set them back.

use std::fmt::Write as _;

use crate::finding::{Finding, Fix};

/// The script of these findings. It ends at the first command that fails.
#[must_use]
pub fn write(findings: &[Finding]) -> String {
    let mut script = String::from(
        "#!/bin/sh\n# Written by `forebay doctor --fix-script`. Read it before you run it, as root.\n\
         # What it writes can be removed again: /etc/sysctl.d/90-forebay.conf, /etc/udev/rules.d/90-forebay.rules,\n\
         # /etc/tmpfiles.d/90-forebay.conf, /etc/tuned/forebay.\nset -eu\n",
    );
    let sysctls = lines(findings, |fix| match fix {
        Fix::Sysctl { key, value } => Some(format!("{key} = {value}")),
        _ => None,
    });
    let knobs = lines(findings, |fix| match fix {
        Fix::Knob { path, value } => Some(format!("w {path} - - - - {value}")),
        _ => None,
    });
    let devices = lines(findings, |fix| match fix {
        Fix::Device { device, attribute, value } => Some(format!(
            "ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"{device}\", ATTR{{{attribute}}}=\"{value}\""
        )),
        _ => None,
    });
    let of_tuned = of_tuned(findings);
    if !sysctls.is_empty() || !of_tuned.is_empty() {
        kernel_settings(&mut script, &sysctls, &of_tuned);
    }
    if !knobs.is_empty() {
        file(&mut script, "/etc/tmpfiles.d/90-forebay.conf", &knobs);
        script.push_str("systemd-tmpfiles --create /etc/tmpfiles.d/90-forebay.conf\n");
    }
    if !devices.is_empty() {
        file(&mut script, "/etc/udev/rules.d/90-forebay.rules", &devices);
        script.push_str(
            "udevadm control --reload\nudevadm trigger --subsystem-match=block --action=change\n",
        );
    }
    for finding in findings {
        match &finding.fix {
            Fix::Command { command } => {
                let _ = write!(
                    script,
                    "\n# {}: {}\n{command}\n",
                    finding.code,
                    one_line(&finding.evidence)
                );
            }
            Fix::ByHand { advice } => {
                let evidence = one_line(&finding.evidence);
                let _ = write!(
                    script,
                    "\n# By hand ({}: {evidence}): {}\n",
                    finding.code,
                    one_line(advice)
                );
            }
            Fix::Sysctl { .. } | Fix::Knob { .. } | Fix::Device { .. } => {}
        }
    }
    script
}

/// Files of /sys that tuned's profiles set too, with its own names for them: it would set them back at the next boot.
const OF_TUNED: [(&str, &str); 3] = [
    ("/sys/kernel/mm/transparent_hugepage/enabled", "[vm]\ntransparent_hugepages"),
    ("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "[cpu]\ngovernor"),
    (
        "/sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference",
        "[cpu]\nenergy_performance_preference",
    ),
];

/// Where sysctl settings are where tuned does not run.
const SYSCTL_FILE: &str = "/etc/sysctl.d/90-forebay.conf";

/// The same settings as sections of a profile of tuned.
fn of_tuned(findings: &[Finding]) -> Vec<String> {
    lines(findings, |fix| {
        let Fix::Knob { path, value } = fix else { return None };
        let (_, name) = OF_TUNED.iter().find(|(of, _)| of == path)?;
        Some(format!("\n{name}={value}"))
    })
}

/// Kernel settings: a profile of tuned if it runs, else a file of sysctl. A profile that an earlier script made gets further sections:
/// what comes later in it counts.
fn kernel_settings(script: &mut String, settings: &[String], of_tuned: &[String]) {
    let text = settings.join("\n");
    let more = of_tuned.join("\n");
    let _ = write!(
        script,
        "\nif command -v tuned-adm >/dev/null && profile=$(tuned-adm active | sed -n 's/^Current active profile: //p') &&\n\
         \u{20}  [ -n \"$profile\" ]; then\n\
         if [ \"$profile\" != forebay ]; then\n\
         mkdir -p /etc/tuned/forebay\n\
         printf '[main]\\nsummary=Analytics with Forebay\\ninclude=%s\\n' \"$profile\" > /etc/tuned/forebay/tuned.conf\nfi\n\
         printf '\\n[sysctl]\\n' >> /etc/tuned/forebay/tuned.conf\n\
         cat >> /etc/tuned/forebay/tuned.conf <<'END'\n{text}\n{more}\nEND\ntuned-adm profile forebay\n"
    );
    if !settings.is_empty() {
        script.push_str("else");
        file(script, SYSCTL_FILE, settings);
        let _ = writeln!(script, "sysctl -p {SYSCTL_FILE}");
    }
    script.push_str("fi\n");
}

fn file(script: &mut String, path: &str, lines: &[String]) {
    let _ = write!(script, "\ncat > {path} <<'END'\n{}\nEND\n", lines.join("\n"));
}

/// The lines of the fixes that have one, each once, in order.
fn lines(findings: &[Finding], line: impl Fn(&Fix) -> Option<String>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for found in findings.iter().filter_map(|finding| line(&finding.fix)) {
        if !lines.contains(&found) {
            lines.push(found);
        }
    }
    lines
}

/// Text that cannot end a comment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::finding::Severity;

    fn finding(fix: Fix) -> Finding {
        Finding {
            code: "a/b",
            severity: Severity::Warning,
            title: "t",
            evidence: "line\nrm -rf /".into(),
            why: "w",
            fix,
        }
    }

    #[test]
    fn what_tuned_sets_itself_is_in_its_profile() {
        let pages = "/sys/kernel/mm/transparent_hugepage/enabled";
        let script = write(&[finding(Fix::Knob { path: pages.into(), value: "madvise".into() })]);
        assert!(script.contains("\n[vm]\ntransparent_hugepages=madvise\n"), "{script}");
        assert!(script.contains(&format!("w {pages} - - - - madvise")), "{script}");
        assert!(!script.contains("cat > /etc/sysctl.d"), "there is nothing for it: {script}");
    }

    #[test]
    fn a_profile_of_an_earlier_script_is_kept_and_gets_further_settings() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display().to_string();
        // Stands for the program.
        let tuned =
            "tuned_adm() { [ \"$1\" = profile ] || echo \"Current active profile: $ACTIVE\"; }\n";
        let run = |active: &str, value: u64| {
            let script = write(&[finding(Fix::sysctl("vm.swappiness", value))]);
            let script = script.replace("/etc/tuned", &place).replace("tuned-adm", "tuned_adm");
            let mut sh = Command::new("sh");
            sh.arg("-c").arg(format!("{tuned}{script}")).env("ACTIVE", active);
            assert!(sh.status().unwrap().success(), "{script}");
            std::fs::read_to_string(folder.path().join("forebay/tuned.conf")).unwrap()
        };
        let first = run("balanced", 10);
        assert!(first.contains("include=balanced\n\n[sysctl]\nvm.swappiness = 10\n"), "{first}");
        let second = run("forebay", 5);
        let more = second.strip_prefix(&first).expect("what was there is kept");
        assert!(more.contains("[sysctl]\nvm.swappiness = 5\n"), "{more}");
        assert!(!more.contains("[main]"), "{more}");
    }

    #[test]
    fn the_script_is_sh_and_evidence_stays_in_comments() {
        let findings = [
            finding(Fix::sysctl("vm.swappiness", 10)),
            finding(Fix::sysctl("vm.swappiness", 10)),
            finding(Fix::Knob { path: "/sys/x".into(), value: "1".into() }),
            finding(Fix::Device {
                device: "sda".into(),
                attribute: "queue/scheduler".into(),
                value: "none".into(),
            }),
            finding(Fix::Command { command: "true".into() }),
            finding(Fix::ByHand { advice: "buy\nflash".into() }),
        ];
        let script = write(&findings);
        assert_eq!(
            script.matches("vm.swappiness = 10").count(),
            2,
            "once for tuned and once for sysctl"
        );
        assert!(script.lines().all(|line| !line.starts_with("rm")), "{script}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fix.sh");
        std::fs::write(&path, &script).unwrap();
        assert!(Command::new("sh").arg("-n").arg(&path).status().unwrap().success(), "{script}");
    }
}
