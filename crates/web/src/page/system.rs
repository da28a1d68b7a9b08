//! The file system, the state of health, and reports of studies.

use std::path::{Path, PathBuf};

use forebay_engine::protocol::AreaState;
use forebay_study::chart::unit::Unit;
use maud::{Markup, html};

use super::layout::Content;
use super::plot::{bytes, chart, good, meter, range, ranges, state, time};
use super::{Page, View};
use crate::api::grid::all_areas;
use crate::problem::Problem;

/// The most areas of a list.
const AREAS: usize = 20;
/// The most reports that are listed.
const REPORTS: usize = 500;
/// The longest report that is shown.
const REPORT_MAX: u64 = 32 << 20;

pub fn files(view: &View<'_>) -> Page {
    let look = view.site.look.lock().clone();
    let (seconds, _) = range(view);
    let (mut areas, unknown) = all_areas(&mut view.site.app.client(view.who)?)?;
    let orphans = areas.iter().filter(|area| area.state == AreaState::Orphaned).count();
    areas.sort_by_key(|area| (std::cmp::Reverse(area.bytes), area.made));
    let body = html! {
        @match &look.files {
            None => { p.note { "No file system is mounted beside this grid: forebay web serve --files names another one." } }
            Some(files) => {
                p { "Mounted at " code { (files.mountpoint.as_deref().unwrap_or("-")) } ", home folder " code { (files.home) } "." }
                h2 { "Disks" }
                div.scroll { table {
                    thead { tr { th { "Disk" } th { "In use" } th.number { "Free" } } }
                    tbody { @for disk in &files.disks { (disk_row(disk)) } }
                } }
                h2 { "Filesets" }
                div.scroll { table {
                    thead { tr { th { "Fileset" } th { "Kind" } th.number { "Bytes" } th.number { "Files and directories" } th { "State" } } }
                    tbody {
                        @for fileset in &files.filesets {
                            tr {
                                td { (fileset.name) } td { (fileset.kind) }
                                td.number { (fileset.bytes.map_or_else(|| "-".to_owned(), bytes)) }
                                td.number { (fileset.inodes.map_or_else(|| "-".to_owned(), |count| count.to_string())) }
                                td { @if let Some(fault) = &fileset.fault { (state("fault")) " " (fault) } @else { (state("open")) } }
                            }
                        }
                    }
                } }
                (ranges(view))
                div.pair {
                    (chart(view, ("files", seconds), ("Free on all disks", Unit::Bytes), &[("free_bytes", "free"), ("total_bytes", "all")]))
                    (chart(view, ("files", seconds), ("Changes that are not committed", Unit::Count), &[("uncommitted", "records")]))
                }
            }
        }
        h2 { "Work areas" }
        p {
            (areas.len()) " work areas" @if !view.who.admin { " of yours" } ", " (orphans) " without a job."
            @if orphans > 0 { " " code { "forebay areas --reap" } " removes those." }
            @if !unknown.is_empty() { " Unreachable hosts, whose areas are not known: " (unknown.join(", ")) "." }
        }
        @if !areas.is_empty() {
            div.scroll { table {
                thead { tr { th { "Job" } th { "User" } th { "Host" } th { "State" } th.number { "Bytes" } th { "Since" } th { "Path" } } }
                tbody {
                    @for area in areas.iter().take(AREAS) {
                        tr {
                            td { (area.job) } td { (area.user) } td { (area.host) } td { (state(word(area.state))) }
                            td.number { (area.bytes.map_or_else(|| "-".to_owned(), bytes)) }
                            td { (time(area.made)) } td { code { (area.path.display()) } }
                        }
                    }
                }
            } }
        }
    };
    Ok(Content { title: "Files".to_owned(), body })
}

fn word(state: AreaState) -> &'static str {
    match state {
        AreaState::Running => "running",
        AreaState::Kept => "held",
        AreaState::Unknown => "unknown",
        AreaState::Orphaned => "orphaned",
        AreaState::BeingRemoved => "over",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a bar")]
fn disk_row(disk: &crate::watched::Disk) -> Markup {
    let used = disk.total_bytes.saturating_sub(disk.free_bytes);
    html! {
        tr {
            td { code { (disk.name) } @if let Some(fault) = &disk.fault { " " (state("fault")) " " (fault) } }
            td { (meter(used as f64, disk.total_bytes as f64, &format!("{} of {}", bytes(used), bytes(disk.total_bytes)))) }
            td.number { (bytes(disk.free_bytes)) }
        }
    }
}

pub fn health(view: &View<'_>) -> Page {
    let alerts = view.site.app.alerts.list();
    let findings = view.site.app.watched.findings();
    let body = html! {
        h2 { "Alerts" }
        @if alerts.iter().all(|alert| !alert.firing) { p { (good("No alert fires.")) } }
        @if !alerts.is_empty() {
            div.scroll { table {
                thead { tr { th { "Alert" } th { "State" } th { "What" } th { "Since" } th { "Over" } } }
                tbody {
                    @for alert in alerts.iter().take(100) {
                        tr {
                            td { code { (alert.code) } }
                            td { (state(if !alert.firing { "over" } else if alert.muted_until.is_some() { "muted" } else { "firing" })) }
                            td { (alert.text) } td { (alert.since.0) } td { (alert.resolved.as_ref().map_or("", |at| &at.0)) }
                        }
                    }
                }
            } }
            p.note { code { "forebay alerts --mute CODE --for '4 h'" } " has nobody notified of an alert for a time." }
        }
        h2 { "What the advisor finds on this machine" }
        @if findings.is_empty() { p { (good("Nothing.")) } }
        @for finding in &findings {
            details.finding {
                summary { span class={ "tag " (finding.severity) } { (finding.severity) } " " (finding.title) " " code { (finding.code) } }
                dl.facts {
                    dt { "Found" } dd { (finding.evidence) }
                    dt { "Why" } dd { (finding.why) }
                    dt { "Do" } dd { code { (finding.fix) } }
                }
            }
        }
    };
    Ok(Content { title: "Health".to_owned(), body })
}

/// Folders with a report: those that are named, and those in them.
fn reports(view: &View<'_>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in &view.site.app.settings.studies {
        let below =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut all: Vec<PathBuf> = below.chain([folder.clone()]).collect();
        all.sort();
        found.extend(all.into_iter().filter(|folder| report_in(folder).is_file()));
    }
    found.truncate(REPORTS);
    found
}

fn report_in(folder: &Path) -> PathBuf {
    folder.join(forebay_study::report::FILE)
}

pub fn studies(view: &View<'_>) -> Page {
    let found = reports(view);
    let body = html! {
        @if found.is_empty() {
            p.note { "No reports are listed: " code { "forebay web serve ROOT --studies DIR" } " names a folder with results of " code { "forebay bench" } "." }
        }
        ul {
            @for (place, folder) in found.iter().enumerate() {
                li { a href={ "/studies/" (place) } { (folder.display()) } @if let Some(at) = changed(folder) { ", " (time(at)) } }
            }
        }
    };
    Ok(Content { title: "Studies".to_owned(), body })
}

fn changed(folder: &Path) -> Option<forebay_grid::vocabulary::Moment> {
    let changed = report_in(folder).metadata().ok()?.modified().ok()?;
    let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(forebay_grid::vocabulary::Moment(u64::try_from(since.as_millis()).ok()?))
}

/// The text of a report.
pub fn report(view: &View<'_>, place: &str) -> Result<String, Problem> {
    let none = || Problem::own("not_found", format!("there is no report {place}"));
    let found = reports(view);
    let folder = place.parse::<usize>().ok().and_then(|place| found.get(place)).ok_or_else(none)?;
    let file = report_in(folder);
    if file.metadata().map_or(0, |about| about.len()) > REPORT_MAX {
        return Err(Problem::own(
            "not_found",
            format!("{} is too long to be shown", file.display()),
        ));
    }
    std::fs::read_to_string(&file)
        .map_err(|error| Problem::own("not_found", format!("{}: {error}", file.display())))
}
