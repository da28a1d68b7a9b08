//! The table of checks.
//!
//! To add one, write a function in the file of its area and a row in that file's table.

mod disks;
mod fuse;
mod kernel;
mod limits;
mod memory;
mod network;
mod places;
mod processors;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::finding::{Finding, Verdict};
use crate::host::Host;

/// One thing to look at, of a host or of something else.
pub struct Check<T = Host> {
    /// Its name: area and subject, such as `memory/swappiness`. Mutes and documentation name it.
    pub code: &'static str,
    /// What it is about, as a heading.
    pub title: &'static str,
    /// Why it matters here, with the source.
    pub why: &'static str,
    /// Looks: a verdict for each thing that it is about; none if the host has no such thing.
    pub look: fn(&T) -> Vec<Verdict>,
}

/// What people may ask of a check, whatever it looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct About {
    /// Its name.
    pub code: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// Why it matters.
    pub why: &'static str,
}

/// All checks, of hosts and of clusters.
#[must_use]
pub fn known() -> Vec<About> {
    let hosts = all().into_iter().map(Check::about);
    hosts.chain(crate::cluster::all().into_iter().map(Check::about)).collect()
}

impl<T> Check<T> {
    fn about(&self) -> About {
        About { code: self.code, title: self.title, why: self.why }
    }
}

/// All checks, by area.
#[must_use]
pub fn all() -> Vec<&'static Check> {
    let areas = [
        kernel::CHECKS,
        processors::CHECKS,
        memory::CHECKS,
        disks::CHECKS,
        places::CHECKS,
        network::CHECKS,
        limits::CHECKS,
        fuse::CHECKS,
    ];
    areas.into_iter().flatten().collect()
}

/// A check that found everything as it should be, or could not see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Which check.
    pub code: &'static str,
    /// What was seen, or why nothing could be.
    pub text: String,
}

/// The only verdict of a check that cannot see what it is about.
fn unknown(reason: &str) -> Vec<Verdict> {
    vec![Verdict::Unknown(reason.to_owned())]
}

/// What came of all checks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Examined {
    /// What is not as it should be, worst first.
    pub findings: Vec<Finding>,
    /// What is as it should be.
    pub fine: Vec<Line>,
    /// What could not be seen.
    pub unknown: Vec<Line>,
}

/// Looks at a host.
#[must_use]
pub fn examine(host: &Host) -> Examined {
    examine_with(&all(), host)
}

/// Carries out checks.
pub(crate) fn examine_with<T>(checks: &[&'static Check<T>], subject: &T) -> Examined {
    let mut examined = Examined::default();
    for (about, verdict) in look(checks, subject) {
        examined.note(about, verdict);
    }
    examined.sorted()
}

/// What checks say, in their order.
pub(crate) fn look<T>(checks: &[&'static Check<T>], subject: &T) -> Vec<(About, Verdict)> {
    let each = checks.iter().flat_map(|check| {
        (check.look)(subject).into_iter().map(move |verdict| (check.about(), verdict))
    });
    each.collect()
}

impl Examined {
    /// Adds what a check says.
    pub(crate) fn note(&mut self, about: About, verdict: Verdict) {
        let About { code, title, why } = about;
        match verdict {
            Verdict::Fine(text) => self.fine.push(Line { code, text }),
            Verdict::Unknown(text) => self.unknown.push(Line { code, text }),
            Verdict::Found { severity, evidence, fix } => {
                self.findings.push(Finding { code, severity, title, evidence, why, fix });
            }
        }
    }

    /// The same, with the worst findings first.
    pub(crate) fn sorted(mut self) -> Examined {
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self
    }
}
