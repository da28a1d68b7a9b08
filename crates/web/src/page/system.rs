//! The file system, and the state of health.

use forebay_engine::protocol::{AreaState, AreaView};
use forebay_study::chart::unit::Unit;
use maud::{Markup, html};

use super::layout::Content;
use super::plot::{bytes, chart, good, meter, range, ranges, said, state, time};
use super::space::space;
use super::{Page, View};
use crate::api::grid::all_areas;
use crate::watched::ClusterHealth;

/// The most areas of a list.
const AREAS: usize = 20;

pub fn files(view: &View<'_>) -> Page {
    let look = view.site.look.lock().clone();
    let (seconds, _) = range(view);
    let (mut areas, unknown) = all_areas(&mut view.site.app.client(view.who)?)?;
    let orphans = areas.iter().filter(|area| area.state == AreaState::Orphaned).count();
    areas.sort_by_key(|area| (std::cmp::Reverse(area.bytes), area.made));
    let mut oldest: Vec<&AreaView> = areas.iter().collect();
    oldest.sort_by_key(|area| area.made);
    let body = html! {
        @match &look.files {
            None => {
                @if let Some(fault) = &look.files_fault { p.problem { (fault) } }
                @else {
                    p.note {
                        @if let Some(why) = &look.no_files { "No file system is shown: " (why) ". " }
                        code { "forebay web serve --files" } " names another file system."
                    }
                }
            }
            Some(files) => {
                p { "Mounted at " code { (files.mountpoint.as_deref().unwrap_or("-")) } ", home folder " code { (files.home) } "." }
                h2 { "Disks" }
                div.scroll { table {
                    thead { tr { th { "Disk" } th { "In use" } th.number { "Free" } th { "Inodes in use" } } }
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
                                td {
                                    @if let Some(fault) = &fileset.fault { (state("fault")) " " (fault) } @else { (state("open")) }
                                    @if fileset.waiting_for_copies > 0 { "; " (fileset.waiting_for_copies) " files wait for copies" }
                                    @if let Some(fault) = &fileset.copies_fault { "; " (fault) }
                                    @if !fileset.damaged.is_empty() { "; damaged: " (fileset.damaged.join(", ")) }
                                }
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
        @if look.files.is_some() { (space(view)) }
        h2 { "Work areas" }
        p {
            (areas.len()) " work areas" @if !view.who.admin { " of yours" } ", " (orphans) " without a job."
            @if orphans > 0 { " " code { "forebay areas --reap" } " removes those." }
            @if !unknown.is_empty() { " Unreachable hosts, whose areas are not known: " (unknown.join(", ")) "." }
        }
        @if !areas.is_empty() {
            h3 { "The biggest" }
            (area_rows(areas.iter()))
        }
        @if areas.len() > 1 {
            h3 { "The oldest" }
            (area_rows(oldest.into_iter()))
        }
    };
    Ok(Content { title: "Files".to_owned(), body })
}

fn area_rows<'a>(areas: impl Iterator<Item = &'a AreaView>) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "Job" } th { "User" } th { "Host" } th { "State" } th.number { "Bytes" } th { "Since" } th { "Path" } } }
            tbody {
                @for area in areas.take(AREAS) {
                    tr {
                        td { (area.job) } td { (area.user) } td { (area.host) } td { (state(word(area.state))) }
                        td.number { (area.bytes.map_or_else(|| "-".to_owned(), bytes)) }
                        td { (time(area.made)) } td { code { (area.path.display()) } }
                    }
                }
            }
        } }
    }
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
    let inodes = disk.total_inodes.saturating_sub(disk.free_inodes);
    html! {
        tr {
            td {
                code { (disk.name) }
                @if let Some(fault) = &disk.fault { " " (state("fault")) " " (fault) }
                @if disk.errors > 0 { " " (disk.errors) " errors since the mount" @if let Some(last) = &disk.last_error { ", the latest: " (last) } }
            }
            td { (meter(used as f64, disk.total_bytes as f64, &format!("{} of {}", bytes(used), bytes(disk.total_bytes)))) }
            td.number { (bytes(disk.free_bytes)) }
            td {
                // Others make room for files as needed.
                @if disk.total_inodes > 0 { (meter(inodes as f64, disk.total_inodes as f64, &format!("{inodes} of {}", disk.total_inodes))) } @else { "-" }
            }
        }
    }
}

/// The nodes of the cluster, and how long their certificates are valid.
fn nodes(cluster: &ClusterHealth) -> Markup {
    html! {
        h2 { "Nodes of the cluster" }
        @if let Some(fault) = &cluster.fault { p.problem { "The cluster cannot be asked: " (fault) } }
        @if !cluster.nodes.is_empty() {
            div.scroll { table {
                thead { tr { th { "Node" } th { "State" } th { "Certificate valid until" } } }
                tbody {
                    @for node in &cluster.nodes {
                        tr {
                            td { (node.name) }
                            td {
                                @if let Some(away) = &node.away { (state("away")) ": " (away) } @else { (state("up")) }
                                @for problem in &node.problems { "; " (problem) }
                            }
                            td { (time(node.certificate_expires)) }
                        }
                    }
                }
            } }
            @for (name, expires) in &cluster.monitors {
                p.note { "The certificate of monitor " (name) " is valid until " (time(*expires)) "." }
            }
            @for (whose, expires) in &cluster.of_etcd {
                p.note { "The certificate of etcd's " (whose) " is valid until " (time(*expires)) "." }
            }
            @if let Some(expires) = cluster.authority_expires {
                p.note { "The certificate of the authority is valid until " (time(expires)) ". " code { "forebay doctor --cluster" } " checks more." }
            }
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
                thead { tr { th { "Alert" } th { "State" } th { "Description" } th { "Since" } th { "Resolved" } } }
                tbody {
                    @for alert in alerts.iter().take(100) {
                        tr {
                            td { code { (alert.code) } }
                            td { (state(if !alert.firing { "over" } else if alert.muted_until.is_some() { "muted" } else { "firing" })) }
                            td { (alert.text) } td { (said(&alert.since)) } td { @if let Some(at) = &alert.resolved { (said(at)) } }
                        }
                    }
                }
            } }
            p.note { code { "forebay alerts --mute CODE --for '4 h'" } " mutes an alert for that time: it is listed, and nobody is notified." }
        }
        @if let Some(cluster) = &view.site.look.lock().clone().cluster { (nodes(cluster)) }
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
