//! Who holds how much space, and how old it is.

use std::collections::BTreeMap;

use forebay_grid::vocabulary::Moment;
use maud::{Markup, html};

use super::View;
use super::plot::{bytes, meter, time};
use crate::watched::{Holding, Space};

/// The most users that are listed.
const USERS: usize = 20;

/// Inodes and bytes.
type Sum = (u64, u64);

fn sums<'a, K: Ord>(held: &[&'a Holding], key: impl Fn(&'a Holding) -> K) -> Vec<(K, Sum)> {
    let mut sums: BTreeMap<K, Sum> = BTreeMap::new();
    for holding in held {
        let sum = sums.entry(key(holding)).or_default();
        *sum = (sum.0 + holding.inodes, sum.1 + holding.bytes);
    }
    sums.into_iter().collect()
}

/// The part of the page. Users who are not admins of the grid see what is theirs.
pub fn space(view: &View<'_>) -> Markup {
    let Some(space) = view.site.app.watched.space() else {
        return html! {
            h2 { "Space by user and age" }
            p.note { "The files have not been counted yet, which takes about a minute for ten million. Load the page again in a while; if counting fails, the log of the web server says why." }
        };
    };
    let is_shown = |holding: &&Holding| view.who.admin || holding.user == view.who.user.as_str();
    let held: Vec<&Holding> = space.held.iter().filter(is_shown).collect();
    html! {
        h2 { "Space by user and age" @if !view.who.admin { ": yours" } }
        p.note {
            "Counted " (time(Moment(space.at_ms))) ", and again when the count is older than 10 minutes and somebody looks."
            @if !space.not_counted.is_empty() {
                " Not counted: "
                @for (place, (why, filesets)) in reasons(&space).iter().enumerate() {
                    @if place > 0 { "; " }
                    (filesets.join(", ")) " (" (why) ")"
                }
                "."
            }
        }
        @if held.is_empty() { p { "No files were counted here." } } @else { (tables(&space, &held)) }
    }
}

/// Why filesets were not counted, each reason with its filesets.
fn reasons(space: &Space) -> Vec<(&str, Vec<&str>)> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (fileset, why) in &space.not_counted {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, filesets)) => filesets.push(fileset),
            None => reasons.push((why, vec![fileset])),
        }
    }
    reasons
}

#[expect(clippy::cast_precision_loss, reason = "a bar")]
fn share(part: u64, all: u64) -> Markup {
    meter(part as f64, all as f64, &bytes(part))
}

fn tables(space: &Space, held: &[&Holding]) -> Markup {
    let all: u64 = held.iter().map(|holding| holding.bytes).sum();
    let mut users = sums(held, |holding| (&*holding.user, &*holding.fileset));
    users.sort_by_key(|(_, (inodes, bytes))| std::cmp::Reverse((*bytes, *inodes)));
    let more = users.len().saturating_sub(USERS);
    let by_age: BTreeMap<usize, Sum> = sums(held, |holding| holding.age).into_iter().collect();
    let ages = space.ages.iter().enumerate();
    html! {
        div.pair {
            div.scroll { table {
                thead { tr { th { "User" } th { "Fileset" } th { "Bytes" } th.number { "Files and directories" } } }
                tbody {
                    @for ((user, fileset), (inodes, bytes)) in users.iter().take(USERS) {
                        tr { td { (user) } td { (fileset) } td { (share(*bytes, all)) } td.number { (inodes) } }
                    }
                }
            } @if more > 0 { p.note { (more) " further rows: " code { "forebay space" } " lists all." } } }
            div.scroll { table {
                thead { tr { th { "Content changed" } th { "Bytes" } th.number { "Files and directories" } } }
                tbody {
                    @for (age, name) in ages {
                        @let (inodes, bytes) = by_age.get(&age).copied().unwrap_or_default();
                        tr { td { (name) } td { (share(bytes, all)) } td.number { (inodes) } }
                    }
                }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_go_over_what_is_not_the_key() {
        let holding = |user: &str, age, bytes| Holding {
            fileset: "data".to_owned(),
            user: user.to_owned(),
            age,
            inodes: 1,
            bytes,
        };
        let all = [holding("ann", 0, 1), holding("ann", 5, 10), holding("bob", 5, 100)];
        let held: Vec<&Holding> = all.iter().collect();
        assert_eq!(sums(&held, |one| &*one.user), [("ann", (2, 11)), ("bob", (1, 100))]);
        assert_eq!(sums(&held, |one| one.age), [(0, (1, 1)), (5, (2, 110))]);
    }
}
