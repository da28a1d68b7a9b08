//! A page: values of metrics at one moment, and their text.
//!
//! The text is OpenMetrics 1.0, or for programs that ask for plain text the older format of Prometheus, in which counters
//! are named with their `_total` throughout.

use std::collections::HashMap;
use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::table::{Kind, Metric};

/// The most samples of one metric; further ones are left out, and counted in the log.
pub const SAMPLES_MAX: usize = 10_000;

/// How values are spread: how many were at most so large.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Upper edges, rising, each with how many values lie between it and the one before.
    pub buckets: Vec<(f64, u64)>,
    /// Values beyond the last edge.
    pub beyond: u64,
    /// The sum of all values.
    pub sum: f64,
}

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Count(u64),
    Spread(Spread),
}

#[derive(Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: Value,
}

#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    samples: Vec<Sample>,
    left_out: usize,
}

/// Values of metrics at one moment.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<Family>,
    places: HashMap<&'static str, usize>,
}

impl Page {
    /// A page without values.
    #[must_use]
    pub fn new() -> Page {
        Page::default()
    }

    /// Adds how often something happened.
    pub fn count(&mut self, metric: &'static Metric, labels: &[&str], value: u64) {
        debug_assert_eq!(metric.kind, Kind::Counter, "{}", metric.name);
        self.put(metric, labels, Value::Count(value));
    }

    /// Adds a value of now, or a counter that is not a whole number.
    pub fn set(&mut self, metric: &'static Metric, labels: &[&str], value: f64) {
        debug_assert_ne!(metric.kind, Kind::Histogram, "{}", metric.name);
        self.put(metric, labels, Value::Number(value));
    }

    /// Adds a whole value of now.
    #[expect(clippy::cast_precision_loss, reason = "monitors know only such numbers")]
    pub fn set_whole(&mut self, metric: &'static Metric, labels: &[&str], value: u64) {
        self.set(metric, labels, value as f64);
    }

    /// Adds how values are spread.
    pub fn spread(&mut self, metric: &'static Metric, labels: &[&str], value: Spread) {
        debug_assert_eq!(metric.kind, Kind::Histogram, "{}", metric.name);
        self.put(metric, labels, Value::Spread(value));
    }

    fn put(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        assert_eq!(metric.labels.len(), labels.len(), "labels of {}", metric.name);
        let next = self.families.len();
        let place = *self.places.entry(metric.name).or_insert(next);
        if place == next {
            self.families.push(Family { metric, samples: Vec::new(), left_out: 0 });
        }
        let family = &mut self.families[place];
        if family.samples.len() == SAMPLES_MAX {
            family.left_out += 1;
            return;
        }
        let labels = metric.labels.iter().zip(labels).map(|(name, value)| (*name, escaped(value)));
        family.samples.push(Sample { labels: labels.collect(), value });
    }

    /// The page as OpenMetrics text.
    #[must_use]
    pub fn open_metrics(self) -> String {
        for family in self.families.iter().filter(|family| family.left_out > 0) {
            tracing::warn!(
                metric = family.metric.name,
                left_out = family.left_out,
                "a page of metrics is too long"
            );
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(self.families)));
        let mut text = String::new();
        encode(&mut text, &registry).expect("text can be written into a string");
        text
    }

    /// The page in the older text format of Prometheus.
    #[must_use]
    pub fn plain_text(self) -> String {
        plain(&self.open_metrics())
    }
}

/// The value of a label as the text has it: prometheus-client writes it as it is.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        for family in &self.0 {
            let metric = family.metric;
            let unit = metric.unit.map(|unit| Unit::Other(unit.to_owned()));
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let help = format!("{}.", metric.help);
            let mut lines = encoder.encode_descriptor(metric.name, &help, unit.as_ref(), kind)?;
            for sample in &family.samples {
                if sample.labels.is_empty() {
                    write_value(&mut lines, metric.kind, &sample.value)?;
                } else {
                    let labels = &sample.labels[..];
                    write_value(&mut lines.encode_family(&labels)?, metric.kind, &sample.value)?;
                }
            }
        }
        Ok(())
    }
}

fn write_value(lines: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> Result<(), Error> {
    match (kind, value) {
        (Kind::Counter, Value::Count(value)) => {
            lines.encode_counter::<NoLabelSet, _, u64>(value, None)
        }
        (Kind::Counter, Value::Number(value)) => {
            lines.encode_counter::<NoLabelSet, _, u64>(value, None)
        }
        (Kind::Gauge, Value::Number(value)) => lines.encode_gauge(value),
        (Kind::Histogram, Value::Spread(spread)) => {
            let mut buckets = spread.buckets.clone();
            // That is how prometheus-client knows the last one.
            buckets.push((f64::MAX, spread.beyond));
            let count = buckets.iter().map(|(_, count)| count).sum();
            lines.encode_histogram::<NoLabelSet>(spread.sum, count, &buckets, None)
        }
        (Kind::Counter | Kind::Gauge | Kind::Histogram, _) => Err(Error),
    }
}

/// OpenMetrics text in the older format: counters are named with `_total` where they are described too, and there is
/// neither a unit nor an end.
fn plain(text: &str) -> String {
    let kind = |line: &str| line.strip_prefix("# TYPE ").map(str::to_owned);
    let types: Vec<String> = text.lines().filter_map(kind).collect();
    let is_counter =
        |name: &str| types.iter().any(|known| known.strip_suffix(" counter") == Some(name));
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        let described = ["# HELP ", "# TYPE "]
            .into_iter()
            .find_map(|word| Some((word, line.strip_prefix(word)?)));
        if let Some((word, rest)) = described {
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let total = if is_counter(name) { "_total" } else { "" };
            plain.extend([word, name, total, " ", rest, "\n"]);
        } else if !line.starts_with("# ") {
            plain.extend([line, "\n"]);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    static READS: Metric = Metric::counter("forebay_read", &["disk"], "Bytes read").bytes();
    static TOOK: Metric = Metric::durations("forebay_took", &["fileset", "operation"], "Time");
    static FREE: Metric = Metric::gauge("forebay_free", &[], "Free objects");

    fn page() -> Page {
        let mut page = Page::new();
        page.count(&READS, &["/a \"b\"\\c"], 7);
        let spread = Spread { buckets: vec![(0.001, 2), (0.5, 3)], beyond: 1, sum: 4.5 };
        page.spread(&TOOK, &["work", "read"], spread);
        page.set_whole(&FREE, &[], 12);
        page.count(&READS, &["/d"], u64::MAX);
        page
    }

    #[test]
    fn a_page_is_open_metrics_text_with_each_metric_described_once() {
        let text = page().open_metrics();
        let wanted = "# HELP forebay_read_bytes Bytes read.\n\
                      # TYPE forebay_read_bytes counter\n\
                      # UNIT forebay_read_bytes bytes\n\
                      forebay_read_bytes_total{disk=\"/a \\\"b\\\"\\\\c\"} 7\n\
                      forebay_read_bytes_total{disk=\"/d\"} 18446744073709551615\n\
                      # HELP forebay_took_seconds Time.\n\
                      # TYPE forebay_took_seconds histogram\n\
                      # UNIT forebay_took_seconds seconds\n\
                      forebay_took_seconds_sum{fileset=\"work\",operation=\"read\"} 4.5\n\
                      forebay_took_seconds_count{fileset=\"work\",operation=\"read\"} 6\n\
                      forebay_took_seconds_bucket{le=\"0.001\",fileset=\"work\",operation=\"read\"} 2\n\
                      forebay_took_seconds_bucket{le=\"0.5\",fileset=\"work\",operation=\"read\"} 5\n\
                      forebay_took_seconds_bucket{le=\"+Inf\",fileset=\"work\",operation=\"read\"} 6\n\
                      # HELP forebay_free Free objects.\n\
                      # TYPE forebay_free gauge\n\
                      forebay_free 12.0\n\
                      # EOF\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn plain_text_names_counters_in_full_and_has_no_end() {
        let text = page().plain_text();
        assert!(text.contains("# TYPE forebay_read_bytes_total counter\n"), "{text}");
        assert!(text.contains("# HELP forebay_read_bytes_total Bytes read.\n"), "{text}");
        assert!(text.contains("# TYPE forebay_took_seconds histogram\n"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    #[test]
    fn a_metric_has_a_bounded_number_of_samples() {
        let mut page = Page::new();
        for disk in 0..SAMPLES_MAX + 5 {
            page.count(&READS, &[&disk.to_string()], 1);
        }
        assert_eq!(page.families[0].left_out, 5);
        let lines = page.open_metrics().lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(lines, SAMPLES_MAX);
    }
}
