//! Studies: reports of benchmark runs, listed by workload with their main figures, and compared side by side.
//!
//! A record is read once for each change of its file; at most [`STUDIES_MAX`] are listed, and records beyond [`RECORD_MAX`] bytes are
//! listed without figures. Symbolic links below a folder of studies are not followed: whoever may write there would otherwise show
//! files that only the server may read.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use forebay_grid::vocabulary::Moment;
use forebay_study::compare::conditions;
use forebay_study::record::{Record, State};
use forebay_study::report;
use forebay_study::summary::{SubjectSummary, Summary};
use maud::{Markup, html};
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::layout::Content;
use super::plot::{state, time};
use super::trend::{self, Measured};
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
    conditions: Vec<(String, String)>,
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
            conditions: conditions(record),
            started: record.started.clone(),
            host: record.machine.host.clone(),
            is_complete: record.state == State::Complete,
            subjects: Summary::of(record).subjects.iter().map(subject).collect(),
        }
    }
}

/// A folder with a report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Study {
    /// The folder of the settings that it is, or lies in.
    named: PathBuf,
    /// Its path.
    folder: PathBuf,
}

impl Study {
    /// Opens a file of the study. Only what the settings name may be a symbolic link.
    fn open(&self, name: &str) -> io::Result<File> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, &self.named, directory, Mode::empty())?;
        if self.folder != self.named
            && let Some(entry) = self.folder.file_name()
        {
            at = openat(&at, entry, directory | OFlags::NOFOLLOW, Mode::empty())?;
        }
        // NONBLOCK: opening a named pipe must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&at, name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    /// The text of a file of at most `most` bytes.
    fn read(&self, name: &str, most: u64) -> Result<String, String> {
        let read = |file: File| -> io::Result<String> {
            let mut text = String::new();
            file.take(most + 1).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = self.open(name).and_then(read);
        let text = text.map_err(|error| format!("{name} cannot be read: {error}"))?;
        if text.len() as u64 > most {
            return Err(format!("{name} is longer than the {most} bytes that are read"));
        }
        Ok(text)
    }

    fn about(&self, name: &str) -> io::Result<Metadata> {
        self.open(name)?.metadata()
    }

    fn record(&self) -> Result<Record, String> {
        let text = self.read(Record::FILE, RECORD_MAX)?;
        Record::parse(&self.folder.join(Record::FILE), &text).map_err(|error| error.to_string())
    }
}

/// The study in a folder of the settings, and those in the folders in it, in the order of their paths.
fn studies_in(named: &Path) -> Vec<Study> {
    let below = std::fs::read_dir(named).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = below.chain([named.to_owned()]).collect();
    all.sort();
    let all = all.into_iter().map(|folder| Study { named: named.to_owned(), folder });
    all.filter(|study| study.open(report::FILE).is_ok()).collect()
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
    fn line(&self, study: &Study) -> Known {
        let about = study.about(Record::FILE);
        let about = about.map_err(|error| format!("{} cannot be read: {error}", Record::FILE))?;
        let version = version(&about);
        if let Some((known, line)) = self.lines.lock().get(&study.folder)
            && *known == version
        {
            return line.clone();
        }
        let reading = self.one_at_a_time.lock();
        let line = study.record().map(|record| Arc::new(Line::of(&record)));
        drop(reading);
        let mut kept = self.lines.lock();
        if kept.len() >= STUDIES_MAX {
            kept.clear();
        }
        kept.insert(study.folder.clone(), (version, line.clone()));
        line
    }
}

/// Folders with a report: those that are named, and those in them.
fn folders(view: &View<'_>) -> Vec<Study> {
    let named = &view.site.app.settings.studies;
    let mut found: Vec<Study> = named.iter().flat_map(|folder| studies_in(folder)).collect();
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
    for (place, study) in found.iter().enumerate() {
        let folder = &*study.folder;
        match view.site.shelf.line(study) {
            Ok(line) => known.entry(line.workload.clone()).or_default().push((place, folder, line)),
            Err(why) => others.push((place, study, why)),
        }
    }
    for lines in known.values_mut() {
        lines.sort_by(|one, other| other.2.started.cmp(&one.2.started));
    }
    let body = html! {
        @if found.is_empty() {
            p.note { "No reports are listed: " code { "forebay web serve ROOT --studies DIR" } " names a folder with results of " code { "forebay bench" } "." }
        }
        @for (workload, lines) in &known { (of_workload(workload, lines, view.site.app.now())) }
        @if !others.is_empty() {
            h2 { "Without figures" }
            ul {
                @for (place, study, why) in &others {
                    li { a href={ "/studies/" (place) } { (study.folder.display()) } @if let Some(at) = changed(study) { ", " (time(at)) } ": " (why) }
                }
            }
        }
    };
    Ok(Content { title: "Studies".to_owned(), body })
}

fn of_workload(workload: &str, lines: &[Found<'_>], now: Moment) -> Markup {
    let measured: Vec<Measured> = lines.iter().flat_map(|(_, _, line)| measured(line)).collect();
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
        (trend::charts(&measured, &FIGURES.map(|(_, heading)| heading), now))
    }
}

/// What charts over time show of a study; nothing if it did not run to its end, or says no time that is one.
fn measured(line: &Line) -> Vec<Measured> {
    if !line.is_complete {
        return Vec::new();
    }
    let at = line.started.parse::<jiff::Timestamp>().ok();
    let Some(at) = at.and_then(|at| u64::try_from(at.as_millisecond()).ok()) else {
        return Vec::new();
    };
    let one = |subject: &SubjectLine| Measured {
        on: format!("{} on {}", subject.storage, line.host),
        conditions: line.conditions.clone(),
        at: Moment(at),
        figures: subject.figures.to_vec(),
    };
    line.subjects.iter().map(one).collect()
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

fn changed(study: &Study) -> Option<Moment> {
    let changed = study.about(report::FILE).ok()?.modified().ok()?;
    let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Moment(u64::try_from(since.as_millis()).ok()?))
}

/// The text of a report.
pub fn report(view: &View<'_>, place: &str) -> Result<String, Problem> {
    let none = || Problem::own("not_found", format!("there is no report {place}"));
    let found = folders(view);
    let study = place.parse::<usize>().ok().and_then(|place| found.get(place)).ok_or_else(none)?;
    study
        .read(report::FILE, REPORT_MAX)
        .map_err(|why| Problem::own("not_found", format!("{}: {why}", study.folder.display())))
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
        let study = &found[place];
        let folder = &*study.folder;
        let record =
            study.record().map_err(|why| refuse(format!("{}: {why}", folder.display())))?;
        records.push((label(folder, found.iter().map(|study| &*study.folder)), record));
    }
    records.sort_by(|one, other| one.1.started.cmp(&other.1.started));
    let page = report::comparison(&records).map_err(|error| refuse(error.to_string()))?;
    Ok(page.into_string())
}

/// What a study is called: the name of its folder, with more of its path if another has the same name.
fn label<'a>(folder: &Path, all: impl Iterator<Item = &'a Path>) -> String {
    let is_alone = all.filter(|other| other.file_name() == folder.file_name()).count() == 1;
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
        let label = |folder: &Path| label(folder, all.iter().map(PathBuf::as_path));
        assert_eq!(label(&all[0]), "/a/one");
        assert_eq!(label(&all[2]), "two");
    }

    #[test]
    fn links_below_a_folder_of_studies_are_not_followed() {
        use std::os::unix::fs::symlink;
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        for folder in ["studies/good", "studies/bad", "studies/pipe", "elsewhere"] {
            std::fs::create_dir_all(path(folder)).unwrap();
        }
        for folder in ["studies/good", "elsewhere"] {
            std::fs::write(path(folder).join(report::FILE), "a report").unwrap();
        }
        std::fs::write(path("secret"), "a secret").unwrap();
        symlink(path("secret"), path("studies/bad").join(report::FILE)).unwrap();
        symlink(path("secret"), path("studies/good").join(Record::FILE)).unwrap();
        symlink(path("elsewhere"), path("studies/link")).unwrap();
        rustix::fs::mknodat(
            CWD,
            path("studies/pipe").join(report::FILE),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        // The folder that the settings name may itself be a link.
        symlink(path("studies"), path("named")).unwrap();
        let found = studies_in(&path("named"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].folder, path("named/good"));
        assert_eq!(found[0].read(report::FILE, 8).unwrap(), "a report");
        assert!(found[0].read(report::FILE, 7).unwrap_err().contains("longer"));
        assert!(found[0].record().unwrap_err().contains(Record::FILE));
    }

    #[test]
    fn only_studies_that_ran_to_their_ends_are_drawn_over_time() {
        let mut line = Line {
            workload: "mixed".to_owned(),
            scale: 1.0,
            conditions: vec![("scale".to_owned(), "1".to_owned())],
            started: "2026-01-02T03:04:05.678Z".to_owned(),
            host: "one".to_owned(),
            is_complete: true,
            subjects: vec![SubjectLine {
                label: "/srv".to_owned(),
                storage: "/srv".to_owned(),
                rounds: 1,
                figures: [Some(1.0); FIGURES.len()],
            }],
        };
        assert_eq!(measured(&line).len(), 1);
        line.is_complete = false;
        assert!(measured(&line).is_empty());
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
