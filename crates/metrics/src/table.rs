//! Tables of metrics: name, kind, unit, labels, help.

use std::fmt::Write as _;

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows; a restart begins at 0.
    Counter,
    /// A value of now.
    Gauge,
    /// How many values were at most so large, with their sum.
    Histogram,
}

impl Kind {
    /// The word of OpenMetrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name without the unit.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// Its unit, which ends its name: seconds, bytes; none for a number of things.
    pub unit: Option<&'static str>,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it is, in a line.
    pub help: &'static str,
}

impl Metric {
    /// A number of things that only grows.
    #[must_use]
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric { name, kind: Kind::Counter, unit: None, labels, help }
    }

    /// A number of things now.
    #[must_use]
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric { name, kind: Kind::Gauge, unit: None, labels, help }
    }

    /// How long things took, in seconds.
    #[must_use]
    pub const fn durations(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric { name, kind: Kind::Histogram, unit: Some("seconds"), labels, help }
    }

    /// The same in seconds.
    #[must_use]
    pub const fn seconds(self) -> Metric {
        Metric { unit: Some("seconds"), ..self }
    }

    /// The same in bytes.
    #[must_use]
    pub const fn bytes(self) -> Metric {
        Metric { unit: Some("bytes"), ..self }
    }

    /// The name with the unit, as the lines that describe it have it.
    #[must_use]
    pub fn family(&self) -> String {
        self.unit.map_or_else(|| self.name.to_owned(), |unit| format!("{}_{unit}", self.name))
    }

    /// The name to ask a monitor for.
    #[must_use]
    pub fn full_name(&self) -> String {
        let family = self.family();
        if self.kind == Kind::Counter { family + "_total" } else { family }
    }
}

/// Metrics of one kind of daemon, or one page of it.
#[derive(Debug)]
pub struct Table {
    /// Whose they are.
    pub title: &'static str,
    /// Which page has them.
    pub page: &'static str,
    /// What there is to say of them all; may be empty.
    pub about: &'static str,
    /// The metrics, in the order of the page.
    pub metrics: &'static [&'static Metric],
}

/// Tables as Markdown.
#[must_use]
pub fn markdown(tables: &[&Table]) -> String {
    let mut text = String::new();
    for table in tables {
        let _ = write!(text, "\n## {}: `{}`\n\n", table.title, table.page);
        if !table.about.is_empty() {
            let _ = write!(text, "{}\n\n", table.about);
        }
        text += "| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n";
        for metric in table.metrics {
            let labels: Vec<String> =
                metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, kind) = (metric.full_name(), metric.kind.word());
            let _ =
                writeln!(text, "| `{name}` | {kind} | {} | {} |", labels.join(", "), metric.help);
        }
    }
    text
}

/// What is wrong with tables: names that monitors would refuse, or that stand for two things.
#[must_use]
pub fn faults(tables: &[&Table]) -> Vec<String> {
    let plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut faults = Vec::new();
    for table in tables {
        let mut names: Vec<String> = Vec::new();
        for metric in table.metrics {
            let name = metric.family();
            if !plain(&name)
                || name.ends_with("_total")
                || metric.labels.iter().any(|label| !plain(label))
            {
                faults.push(format!(
                    "{name}: a name has lower case letters, digits and _, and no _total"
                ));
            }
            if metric.help.is_empty()
                || metric.help.contains(['\n', '\\', '|'])
                || metric.help.ends_with('.')
            {
                faults.push(format!("{name}: its help is a line without a full stop, \\ and |"));
            }
            if names.contains(&name) {
                faults.push(format!("{name} is twice in the table {}", table.title));
            }
            names.push(name);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    static READS: Metric = Metric::counter("forebay_read", &["disk"], "Bytes read").bytes();
    static LATER: Metric = Metric::gauge("forebay_later", &[], "Things to do");

    #[test]
    fn a_name_ends_with_its_unit_and_a_counter_with_total() {
        assert_eq!(READS.full_name(), "forebay_read_bytes_total");
        assert_eq!(LATER.full_name(), "forebay_later");
        static TABLE: Table =
            Table { title: "Disk", page: "/metrics", about: "", metrics: &[&READS, &LATER] };
        let text = markdown(&[&TABLE]);
        assert!(
            text.contains("| `forebay_read_bytes_total` | counter | `disk` | Bytes read |\n"),
            "{text}"
        );
        assert_eq!(faults(&[&TABLE]), Vec::<String>::new());
    }

    #[test]
    fn names_that_monitors_refuse_are_faults() {
        static BAD: Metric = Metric::counter("forebay_Reads_total", &[], "Reads");
        static SILENT: Metric = Metric::gauge("forebay_later", &["a-b"], "");
        static TABLE: Table =
            Table { title: "x", page: "/metrics", about: "", metrics: &[&BAD, &SILENT, &LATER] };
        let found = faults(&[&TABLE]).join("\n");
        for part in ["forebay_Reads_total: a name", "forebay_later: a name", "its help", "is twice"]
        {
            assert!(found.contains(part), "{part}: {found}");
        }
    }
}
