//! The tree: that every inode has a name, every directory one, and that all lead to the root.

use std::collections::HashMap;

use forebay_base::Ino;
use rustc_hash::FxHashSet;

use super::image::{Image, Node, Place};
use super::plan::{Edit, Fix, Ledger, Tier};
use super::report::Damage;
use crate::key;

/// Checks names and reachability, and puts the directories in order.
pub(super) fn check(image: &mut Image, ledger: &mut Ledger) {
    image.more_names.sort_unstable();
    choose_names(image, ledger);
    let mut directories: Vec<Ino> = image.directories.keys().copied().collect();
    directories.sort_unstable();
    for ino in &directories {
        check_parent(image, *ino, ledger);
    }
    order(image, &directories, ledger);
    let top = image.top();
    let mut orphans: Vec<Ino> = image
        .nodes
        .iter()
        .filter(|(ino, node)| node.names == 0 && !node.doubted && **ino != top)
        .map(|(ino, _)| *ino)
        .collect();
    orphans.sort_unstable();
    for ino in orphans {
        orphan(image, ino, ledger);
    }
    check_counts(image, ledger);
}

fn removal(place: Place) -> Fix {
    Fix::Set(key::entry(place.parent, place.cookie), None)
}

/// Chooses the name that counts of directories with several: the one where the directory itself says
/// that it lies. The others go.
fn choose_names(image: &mut Image, ledger: &mut Ledger) {
    let mut names: HashMap<Ino, Vec<Place>> = HashMap::new();
    for (ino, place) in &image.more_names {
        if let Some(node) = image.nodes.get(ino).filter(|node| node.is_directory()) {
            names.entry(*ino).or_insert_with(|| vec![node.name]).push(*place);
        }
    }
    for (ino, places) in names {
        let Some(node) = image.nodes.get_mut(&ino) else { continue };
        let own = places.iter().find(|place| place.parent == node.parent);
        node.name = own.copied().unwrap_or(node.name);
        for place in places.iter().filter(|place| **place != node.name) {
            let text = format!(
                "directory {ino} is in directory {}, but directory {} names it too",
                node.name.parent, place.parent
            );
            ledger.found_with(Damage::DirectoryNames, text, Tier::Tree, removal(*place));
        }
    }
}

fn check_parent(image: &Image, ino: Ino, ledger: &mut Ledger) {
    let node = &image.nodes[&ino];
    let parent = if ino == image.top() {
        ino
    } else if node.names == 0 {
        return;
    } else {
        node.name.parent
    };
    if node.parent != parent {
        let text = format!("directory {ino}: its parent is {}, not {parent}", node.parent);
        let fix = Fix::Inode(ino, Edit::Parent(parent));
        ledger.found_with(Damage::DirectoryParent, text, Tier::Tree, fix);
    }
}

/// Lists the directories so that each comes after its parent; breaks circles.
fn order(image: &mut Image, directories: &[Ino], ledger: &mut Ledger) {
    let mut done: FxHashSet<Ino> = FxHashSet::default();
    let mut order = Vec::with_capacity(directories.len());
    for start in directories {
        let mut path: Vec<Ino> = Vec::new();
        let mut on_path: FxHashSet<Ino> = FxHashSet::default();
        let mut at = *start;
        while !done.contains(&at) {
            if !on_path.insert(at) {
                circle(image, &path, at, ledger);
                break;
            }
            path.push(at);
            let node = &image.nodes[&at];
            let parent = node.name.parent;
            if at == image.top() || node.names == 0 || !image.directories.contains_key(&parent) {
                break;
            }
            at = parent;
        }
        done.extend(&path);
        order.extend(path.iter().rev());
    }
    image.order = order;
}

/// Takes the least directory of a circle out of it.
fn circle(image: &Image, path: &[Ino], closing: Ino, ledger: &mut Ledger) {
    let begin = path.iter().position(|ino| *ino == closing).unwrap_or(0);
    let Some(least) = path[begin..].iter().min().copied() else { return };
    let text = format!(
        "directory {least} is in a cycle of {} directories that no other directory leads to",
        path.len() - begin
    );
    ledger.found_with(Damage::Orphan, text, Tier::Tree, removal(image.nodes[&least].name));
    ledger.fix(Tier::Tree, Fix::Attach(least));
}

fn orphan(image: &Image, ino: Ino, ledger: &mut Ledger) {
    let node = &image.nodes[&ino];
    let fix = Fix::Attach(ino);
    let text = format!("inode {ino} ({:?}) has no name", node.kind);
    ledger.found_with(Damage::Orphan, text, Tier::Tree, fix);
}

/// Checks what is counted. An inode that has damage of another kind is left to a later pass.
fn check_counts(image: &Image, ledger: &mut Ledger) {
    let mut inos: Vec<Ino> = image.nodes.keys().copied().collect();
    inos.sort_unstable();
    for ino in inos {
        let node = &image.nodes[&ino];
        if let Some(directory) = image.directories.get(&ino) {
            if node.size != directory.entries {
                let text = format!(
                    "directory {ino}: its size is {}, but it has {} entries",
                    node.size, directory.entries
                );
                let fix = Fix::Inode(ino, Edit::Size(directory.entries));
                ledger.found_with(Damage::EntryCount, text, Tier::Counts, fix);
            }
            let links = directory.subdirectories.saturating_add(2);
            check_links(ino, node, links, ledger);
        } else if node.names > 0 && !node.doubted {
            check_links(ino, node, node.names, ledger);
        }
        if node.xattrs != node.xattrs_found {
            let text = format!(
                "inode {ino} should have {} attributes, but has {}",
                node.xattrs, node.xattrs_found
            );
            let fix = Fix::Inode(ino, Edit::Xattrs(node.xattrs_found));
            ledger.found_with(Damage::XattrCount, text, Tier::Counts, fix);
        }
    }
}

fn check_links(ino: Ino, node: &Node, links: u32, ledger: &mut Ledger) {
    if node.nlink != links {
        let text = format!("inode {ino}: its link count is {}, not {links}", node.nlink);
        let fix = Fix::Inode(ino, Edit::Links(links));
        ledger.found_with(Damage::LinkCount, text, Tier::Counts, fix);
    }
}
