//! Studies: reports of benchmark runs, listed by workload with their main figures, and compared side by side.
//!
//! A record is read once for each change of its file; at most [`STUDIES_MAX`] are listed, and records beyond [`RECORD_MAX`] bytes are
//! listed without figures.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use forebay_study::record::{Record, State};
use forebay_study::report;
use forebay_study::summary::{SubjectSummary, Summary};
use maud::{Markup, html};
use parking_lot::Mutex;

use super::layout::Content;
use super::plot::{state, time};
use super::{Page, View};
use crate::problem::Problem;

/// The most studies that are listed.
const STUDIES_MAX: usize = 500;
/// The longest report that is shown.
const REPORT_MAX: u64 = 32 << 20;
/// The longest record whose figures are shown and compared.
const RECORD_MAX: u64 = 64 << 20;
/// The most studies side by side.
const COMPARED_MAX: usize = 8;

/// Figures of the list: their keys in a summary, with headings.
const FIGURES: [(&str, &str); 5] = [
    ("real_minutes", "Sum of real times, min"),
    ("cpu_per_real_of_sums", "CPU/real"),
    ("file_sustained_mb_per_second", "Sustained, MB/s"),
    ("mb_per_second_per_core", "MB/s per core"),
    ("jobs_per_minute", "Jobs per min"),
];

/// What the list shows of a study.
#[derive(Debug)]
struct Line {
    workload: String,
    scale: f64,
    started: String,
    host: String,
    is_complete: bool,
    subjects: Vec<SubjectLine>,
}

#[derive(Debug)]
struct SubjectLine {
    label: String,
    storage: String,
    rounds: usize,
    figures: [Option<f64>; FIGURES.len()],
}

impl Line {
    fn of(record: &Record) -> Line {
        let subject = |subject: &SubjectSummary| SubjectLine {
            label: subject.label.clone(),
            storage: subject.storage.clone(),
            rounds: subject.rounds.len(),
            figures: FIGURES.map(|(key, _)| subject.spread(key).map(|spread| spread.median)),
        };
        Line {
            workload: record.workload.name.clone(),
            scale: record.workload.scale,
            started: record.started.clone(),
            host: record.machine.host.clone(),
            is_complete: record.state == State::Complete,
            subjects: Summary::of(record).subjects.iter().map(subject).collect(),
        }
    }
}

/// When a file changed last, and how long it was.
type Version = (Option<SystemTime>, u64);

fn version(about: &Metadata) -> Version {
    (about.modified().ok(), about.len())
}

/// What was read of a study, or why it cannot be.
type Known = Result<Arc<Line>, String>;

/// Records that were read.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// By their folders.
    lines: Mutex<HashMap<PathBuf, (Version, Known)>>,
    /// Held while records are read: they are large.
    one_at_a_time: Mutex<()>,
}

impl Shelf {
    fn line(&self, folder: &Path) -> Known {
        let about = folder.join(Record::FILE).metadata().map_err(|error| no_record(&error))?;
        let version = version(&about);
        if let Some((known, line)) = self.lines.lock().get(folder)
            && *known == version
        {
            return line.clone();
        }
        let reading = self.one_at_a_time.lock();
        let line = record_in(folder).map(|record| Arc::new(Line::of(&record)));
        drop(reading);
        let mut kept = self.lines.lock();
        if kept.len() >= STUDIES_MAX {
            kept.clear();
        }
        kept.insert(folder.to_owned(), (version, line.clone()));
        line
    }
}

fn no_record(error: &std::io::Error) -> String {
    format!("{} cannot be read: {error}", Record::FILE)
}

fn record_in(folder: &Path) -> Result<Record, String> {
    let about = folder.join(Record::FILE).metadata().map_err(|error| no_record(&error))?;
    if about.len() > RECORD_MAX {
        return Err(format!(
            "its record has {} bytes, and at most {RECORD_MAX} are read",
            about.len()
        ));
    }
    Record::read(folder).map_err(|error| error.to_string())
}

/// Folders with a report: those that are named, and those in them.
fn folders(view: &View<'_>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in &view.site.app.settings.studies {
        let below =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut all: Vec<PathBuf> = below.chain([folder.clone()]).collect();
        all.sort();
        found.extend(all.into_iter().filter(|folder| folder.join(report::FILE).is_file()));
    }
    found.truncate(STUDIES_MAX);
    found
}

/// A report: its number in the list, its folder, and its line.
type Found<'a> = (usize, &'a Path, Arc<Line>);

/// The list.
pub fn studies(view: &View<'_>) -> Page {
    let found = folders(view);
    let mut known: BTreeMap<String, Vec<Found<'_>>> = BTreeMap::new();
    let mut others = Vec::new();
    for (place, folder) in found.iter().enumerate() {
        match view.site.shelf.line(folder) {
            Ok(line) => known.entry(line.workload.clone()).or_default().push((place, folder, line)),
            Err(why) => others.push((place, folder, why)),
        }
    }
    for lines in known.values_mut() {
        lines.sort_by(|one, other| other.2.started.cmp(&one.2.started));
    }
    let body = html! {
        @if found.is_empty() {
            p.note { "No reports are listed: " code { "forebay web serve ROOT --studies DIR" } " names a folder with results of " code { "forebay bench" } "." }
        }
        @for (workload, lines) in &known { (of_workload(workload, lines)) }
        @if !others.is_empty() {
            h2 { "Without figures" }
            ul {
                @for (place, folder, why) in &others {
                    li { a href={ "/studies/" (place) } { (folder.display()) } @if let Some(at) = changed(folder) { ", " (time(at)) } ": " (why) }
                }
            }
        }
    };
    Ok(Content { title: "Studies".to_owned(), body })
}

fn of_workload(workload: &str, lines: &[Found<'_>]) -> Markup {
    html! {
        h2 { (workload) }
        form.studies method="get" action="/studies/compare" {
            div.scroll { table {
                thead { tr {
                    th { "Compare" } th { "Study" } th { "Began (UTC)" } th { "Storage" } th.number { "Scale" } th.number { "Rounds" }
                    @for (_, heading) in FIGURES { th.number { (heading) } }
                } }
                tbody { @for (place, folder, line) in lines { (rows(*place, folder, line)) } }
            } }
            @if lines.len() > 1 {
                p.actions { button type="submit" { "Compare the marked studies" } span.note { "Two to " (COMPARED_MAX) "; the oldest is what the others are compared with." } }
            }
        }
    }
}

fn rows(place: usize, folder: &Path, line: &Line) -> Markup {
    let name = folder
        .file_name()
        .map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned());
    html! {
        @for (row, subject) in line.subjects.iter().enumerate() {
            tr {
                td { @if row == 0 { input type="checkbox" name="study" value=(place) aria-label={ "Compare " (name) }; } }
                td {
                    @if row == 0 {
                        a href={ "/studies/" (place) } title=(folder.display()) { (name) } " on " (line.host)
                        @if !line.is_complete { " " (state("partial")) }
                    }
                }
                td { @if row == 0 { (began(&line.started)) } }
                td { @if line.subjects.len() > 1 { (subject.label) ": " } (subject.storage) }
                td.number { (line.scale) }
                td.number { (subject.rounds) }
                @for value in subject.figures { td.number { (value.map_or_else(|| "-".to_owned(), short)) } }
            }
        }
    }
}

/// Three or four significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// A time in RFC 3339, to the second.
fn began(text: &str) -> String {
    text.get(..19).map_or_else(|| text.to_owned(), |text| text.replace('T', " "))
}

fn changed(folder: &Path) -> Option<forebay_grid::vocabulary::Moment> {
    let changed = folder.join(report::FILE).metadata().ok()?.modified().ok()?;
    let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(forebay_grid::vocabulary::Moment(u64::try_from(since.as_millis()).ok()?))
}

/// The text of a report.
pub fn report(view: &View<'_>, place: &str) -> Result<String, Problem> {
    let none = || Problem::own("not_found", format!("there is no report {place}"));
    let found = folders(view);
    let folder = place.parse::<usize>().ok().and_then(|place| found.get(place)).ok_or_else(none)?;
    let file = folder.join(report::FILE);
    if file.metadata().map_or(0, |about| about.len()) > REPORT_MAX {
        return Err(Problem::own(
            "not_found",
            format!("{} is too long to be shown", file.display()),
        ));
    }
    std::fs::read_to_string(&file)
        .map_err(|error| Problem::own("not_found", format!("{}: {error}", file.display())))
}

/// The page of a comparison of the studies that the request names: the oldest first.
pub fn comparison(view: &View<'_>) -> Result<String, Problem> {
    let refuse = |reason: String| Problem::own("not_understood", reason);
    let found = folders(view);
    let mut places: Vec<usize> = Vec::new();
    for (_, value) in view.request.query.iter().filter(|(name, _)| name == "study") {
        let place = value.parse().ok().filter(|place| *place < found.len());
        let place = place
            .ok_or_else(|| Problem::own("not_found", format!("there is no report {value}")))?;
        if !places.contains(&place) {
            places.push(place);
        }
    }
    if !(2..=COMPARED_MAX).contains(&places.len()) {
        return Err(refuse(format!(
            "{} studies are marked: mark two to {COMPARED_MAX} to compare them",
            places.len()
        )));
    }
    let _reading = view.site.shelf.one_at_a_time.lock();
    // Studies that began in the same second are in the order of the list.
    places.sort_unstable();
    let mut records = Vec::new();
    for place in places {
        let folder = &found[place];
        let record =
            record_in(folder).map_err(|why| refuse(format!("{}: {why}", folder.display())))?;
        records.push((label(folder, &found), record));
    }
    records.sort_by(|one, other| one.1.started.cmp(&other.1.started));
    let page = report::comparison(&records).map_err(|error| refuse(error.to_string()))?;
    Ok(page.into_string())
}

/// What a study is called: the name of its folder, with more of its path if another has the same name.
fn label(folder: &Path, all: &[PathBuf]) -> String {
    let is_alone = all.iter().filter(|other| other.file_name() == folder.file_name()).count() == 1;
    match folder.file_name() {
        Some(name) if is_alone => name.to_string_lossy().into_owned(),
        _ => folder.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_one_study() {
        let all = ["/a/one", "/b/one", "/b/two"].map(PathBuf::from);
        assert_eq!(label(&all[0], &all), "/a/one");
        assert_eq!(label(&all[2], &all), "two");
    }

    #[test]
    fn figures_have_three_digits_or_more() {
        assert_eq!([0.1234, 1.234, 12.34, 1234.5].map(short), ["0.123", "1.23", "12.3", "1234"]);
        assert_eq!(
            (began("2026-01-02T03:04:05.678Z"), began("?")),
            ("2026-01-02 03:04:05".to_owned(), "?".to_owned())
        );
    }
}
