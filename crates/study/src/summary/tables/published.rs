//! A study beside the published one whose workload it ran.

use forebay_analytics::{Cell, Table};

use super::super::{Sheet, Summary};
use crate::record::Record;

/// How a published figure goes with the scale of a run.
#[derive(Clone, Copy, PartialEq)]
enum Scaling {
    /// In proportion.
    Proportional,
    /// Not at all: it is a ratio or a rate.
    None,
}

/// A figure that a study published.
struct Published {
    workload: &'static str,
    /// Sessions, where figures differ by them.
    sessions: Option<u32>,
    /// The study and its hardware.
    study: &'static str,
    /// Key of the same figure here.
    key: &'static str,
    value: f64,
    scaling: Scaling,
    compare: &'static str,
}

const ESS: &str = "[3] one node";
const HYBRID: &str = "[4] one node, 16 cores, work and util on flash";
const GPFS_40: &str = "[1] 40 sessions, 14 cores on 4 nodes";
const GPFS_80: &str = "[1] 80 sessions, 14 cores on 4 nodes";
const LUSTRE: &str = "[2] 192 at once, 96 cores on 8 nodes";

const RATIO: &str = "yes: a ratio, of whatever size";
const WORK: &str = "roughly: the programs do the same kind of work, but are not the study's";
const HARDWARE: &str = "no: of that hardware; compare it per core";
const PER_CORE: &str = "yes, where the working set is larger than memory";

macro_rules! published {
    ($($workload:literal, $sessions:expr, $study:ident, $key:literal, $value:expr, $scaling:ident, $compare:ident;)+) => {
        &[$(Published {
            workload: $workload,
            sessions: $sessions,
            study: $study,
            key: $key,
            value: $value,
            scaling: Scaling::$scaling,
            compare: $compare,
        }),+]
    };
}

/// What the studies published (requirements C2 to C7).
const PUBLISHED: &[Published] = published! {
    "mixed", None, ESS, "real_minutes", 768.0, Proportional, WORK;
    "mixed", None, ESS, "user_minutes", 668.0, Proportional, WORK;
    "mixed", None, ESS, "system_minutes", 61.0, Proportional, WORK;
    "mixed", None, ESS, "cpu_per_real_mean_of_jobs", 0.93, None, RATIO;
    "mixed", None, HYBRID, "real_minutes", 1134.0, Proportional, WORK;
    "mixed", None, HYBRID, "user_minutes", 781.0, Proportional, WORK;
    "mixed", None, HYBRID, "system_minutes", 41.0, Proportional, WORK;
    "mixed", None, HYBRID, "file_sustained_mb_per_second", 3250.0, None, HARDWARE;
    "mixed", None, HYBRID, "file_best_1_second", 5000.0, None, HARDWARE;
    "mixed", None, HYBRID, "mb_per_second_per_core", 200.0, None, PER_CORE;
    "sessions", Some(40), GPFS_40, "wall_seconds", 2580.0, Proportional, HARDWARE;
    "sessions", Some(40), GPFS_40, "real_minutes", 1140.2, Proportional, WORK;
    "sessions", Some(40), GPFS_40, "file_sustained_mb_per_second", 1300.0, None, HARDWARE;
    "sessions", Some(40), GPFS_40, "file_best_1_second", 1375.0, None, HARDWARE;
    "sessions", Some(40), GPFS_40, "mb_per_second_per_core", 93.0, None, PER_CORE;
    "sessions", Some(40), GPFS_40, "cpu_io_wait_percent", 10.0, None, RATIO;
    "sessions", Some(40), GPFS_40, "cpu_idle_percent", 45.0, None, RATIO;
    "sessions", Some(80), GPFS_80, "file_sustained_mb_per_second", 1450.0, None, HARDWARE;
    "sessions", Some(80), GPFS_80, "file_best_1_second", 1500.0, None, HARDWARE;
    "sessions", Some(80), GPFS_80, "mb_per_second_per_core", 100.0, None, PER_CORE;
    "sessions", Some(80), GPFS_80, "cpu_io_wait_percent", 11.0, None, RATIO;
    "sessions", Some(80), GPFS_80, "cpu_idle_percent", 28.0, None, RATIO;
    "calibration", None, LUSTRE, "wall_seconds", 4620.0, Proportional, HARDWARE;
};

/// The figures that the study published beside those of this run; no rows where it published none.
#[must_use]
pub fn published(summary: &Summary, record: &Record) -> Sheet {
    let workload = &record.workload;
    let sessions = record.runs.first().and_then(|run| run.stages.first()?.sessions);
    let fits = |one: &&Published| {
        one.workload == workload.name && (one.sessions.is_none() || one.sessions == sessions)
    };
    let several = summary.subjects.len() > 1;
    let mut columns: Vec<String> =
        ["study", "figure", "unit", "published", "at this scale"].map(str::to_owned).to_vec();
    for subject in &summary.subjects {
        columns.push(if several { subject.label.clone() } else { "this run".to_owned() });
    }
    columns.push("comparable?".to_owned());
    let mut table = Table { columns, ..Table::default() };
    for one in PUBLISHED.iter().filter(fits) {
        let figures = summary.subjects.iter().flat_map(|subject| &subject.figures);
        let Some(known) = figures.map(|spread| &spread.figure).find(|figure| figure.key == one.key)
        else {
            continue;
        };
        let scale = if one.scaling == Scaling::Proportional { workload.scale } else { 1.0 };
        let mut row: Vec<Cell> = vec![
            one.study.into(),
            known.label.as_str().into(),
            known.unit.into(),
            one.value.into(),
            (one.value * scale).into(),
        ];
        let medians = summary.subjects.iter().map(|subject| subject.spread(one.key));
        row.extend(medians.map(|spread| Cell::from(spread.map(|spread| spread.median))));
        row.push(one.compare.into());
        table.push(row);
    }
    let notes = vec![
        "Sums of times follow the scale of the run; rates and ratios do not. The studies ran on other hardware, with other programs: \
         only figures marked in the last column are comparable."
            .to_owned(),
    ];
    Sheet { name: "published", title: "Beside the published study".to_owned(), notes, table }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::summary::figure;

    #[test]
    fn a_mixed_run_stands_beside_its_studies_at_its_own_scale() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mixed");
        let record = Record::read(&folder).unwrap();
        let sheet = published(&Summary::of(&record), &record);
        let texts = |at: usize| -> Vec<String> {
            sheet.table.rows.iter().map(|row| row[at].show(Sheet::DIGITS)).collect()
        };
        assert_eq!(texts(3)[..4], ["768", "668", "61", "0.93"]);
        let scaled = Cell::from(768.0 * record.workload.scale).show(Sheet::DIGITS);
        assert_eq!(texts(4)[0], scaled);
        assert_eq!(texts(4)[3], "0.93", "a ratio does not follow the scale");
        assert!(texts(5).iter().any(|cell| !cell.is_empty()), "{sheet:?}");
    }

    #[test]
    fn a_workload_without_a_published_study_has_no_table() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mixed");
        let mut record = Record::read(&folder).unwrap();
        record.workload.name = "mine".to_owned();
        assert!(published(&Summary::of(&record), &record).table.rows.is_empty());
    }

    #[test]
    fn every_published_figure_is_one_that_runs_have() {
        for one in PUBLISHED {
            assert!(figure::is_known(one.key), "{}", one.key);
        }
    }
}
