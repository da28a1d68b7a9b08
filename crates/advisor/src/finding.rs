//! What a check found.

use serde::{Deserialize, Serialize};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; may be right as it is.
    Advice,
    /// Costs speed or hides what is wrong.
    Warning,
    /// Does not work, or loses data.
    Problem,
}

impl Severity {
    /// The word for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Severity::Advice => "advice",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        }
    }
}

/// How to change what was found, so that it lasts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Fix {
    /// A setting of sysctl(8).
    Sysctl {
        /// Its name, such as `vm.swappiness`.
        key: String,
        /// Its value.
        value: String,
    },
    /// A file of /sys without a rule of udev: written at boot by systemd-tmpfiles(8).
    Knob {
        /// The file, or several by a pattern with `*`.
        path: String,
        /// What to write.
        value: String,
    },
    /// An attribute of block devices, set by a rule of udev(7) whenever such a device appears.
    Device {
        /// Name of the device in /sys/block.
        device: String,
        /// The attribute below it, such as `queue/scheduler`.
        attribute: String,
        /// Its value.
        value: String,
    },
    /// A command of an administrator, which lasts.
    Command {
        /// What to run.
        command: String,
    },
    /// What only a person can do.
    ByHand {
        /// What to do.
        advice: String,
    },
}

impl Fix {
    /// A setting of sysctl(8).
    #[must_use]
    pub fn sysctl(key: &str, value: u64) -> Fix {
        Fix::Sysctl { key: key.to_owned(), value: value.to_string() }
    }

    /// What to run or do now, in one line.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Fix::Sysctl { key, value } => format!("sysctl -w {key}='{value}'"),
            // One redirection cannot write several files.
            Fix::Knob { path, value } if path.contains('*') => {
                format!("echo {value} | tee {path}")
            }
            Fix::Knob { path, value } => format!("echo {value} > {path}"),
            Fix::Device { device, attribute, value } => {
                format!("echo {value} > /sys/block/{device}/{attribute}")
            }
            Fix::Command { command } => command.clone(),
            Fix::ByHand { advice } => advice.clone(),
        }
    }
}

/// What one check says of one thing: of the host, a disk, a mount, an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be; what was seen.
    Fine(String),
    /// Not as it should be.
    Found {
        /// How much it matters.
        severity: Severity,
        /// What was seen.
        evidence: String,
        /// How to change it.
        fix: Fix,
    },
    /// Cannot be seen from here, and why.
    Unknown(String),
}

impl Verdict {
    /// The same, said of these nodes, in single lines: it comes from elsewhere, and what to do is to be done there.
    pub(crate) fn of_nodes(self, names: &str) -> Verdict {
        let line = |text: &str| text.replace(char::is_control, " ");
        let with = |text: String| format!("{names}: {}", line(&text));
        match self {
            Verdict::Fine(text) => Verdict::Fine(with(text)),
            Verdict::Unknown(text) => Verdict::Unknown(with(text)),
            Verdict::Found { severity, evidence, fix } => {
                let fix = Fix::ByHand { advice: format!("on {names}: {}", line(&fix.line())) };
                Verdict::Found { severity, evidence: with(evidence), fix }
            }
        }
    }

    pub(crate) fn problem(evidence: String, fix: Fix) -> Verdict {
        Verdict::Found { severity: Severity::Problem, evidence, fix }
    }

    pub(crate) fn warning(evidence: String, fix: Fix) -> Verdict {
        Verdict::Found { severity: Severity::Warning, evidence, fix }
    }

    pub(crate) fn advice(evidence: String, fix: Fix) -> Verdict {
        Verdict::Found { severity: Severity::Advice, evidence, fix }
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check found it, such as `memory/swappiness`.
    pub code: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What the check is about.
    pub title: &'static str,
    /// What was seen.
    pub evidence: String,
    /// Why it matters here, with the source.
    pub why: &'static str,
    /// How to change it.
    pub fix: Fix,
}
