//! Paths of what is damaged: what people know things by.
//!
//! A pass keeps no names. For what it found, the entries that lead there are read once more, from the
//! damaged thing up to the root; so a path costs a few reads, and only where something is wrong. Of an inode
//! whose record is lost the last entry that names it tells the path; where even a name on the way is lost,
//! the path begins with the number of the inode below which it lies.

use std::collections::HashSet;

use forebay_store::Store;

use super::image::{Image, Place};
use super::plan::{Ledger, Subject};
use super::scan::{Read, read};
use crate::error::Result;
use crate::key;
use crate::record::EntryRecord;

/// Longest way to the root that is followed.
const DEPTH_MAX: usize = 1000;

/// Writes the paths of all findings and notes into the report.
pub(super) fn tell(image: &Image, store: &dyn Store, ledger: &mut Ledger) -> Result<()> {
    for (index, subject) in std::mem::take(&mut ledger.subjects) {
        let path = path_of(image, store, subject)?;
        if let Some(finding) = ledger.report.findings.get_mut(index) {
            finding.path = path;
        }
    }
    for (index, ino) in std::mem::take(&mut ledger.note_subjects) {
        let path = path_of(image, store, Subject::Inode(ino))?;
        if let (Some(note), Some(path)) = (ledger.report.notes.get_mut(index), path) {
            *note = format!("{path}: {note}");
        }
    }
    Ok(())
}

fn path_of(image: &Image, store: &dyn Store, subject: Subject) -> Result<Option<String>> {
    let place = match subject {
        Subject::Entry(place) => Some(place),
        Subject::Inode(ino) if ino == image.top() => {
            let prefix = prefix(image);
            return Ok(Some(if prefix.is_empty() { "/".to_owned() } else { prefix }));
        }
        Subject::Inode(ino) => match image.nodes.get(&ino) {
            Some(node) if node.names > 0 => Some(node.name),
            _ => image.last_names.get(&ino).copied(),
        },
    };
    place.map(|place| climb(image, store, place)).transpose()
}

/// The path of the fileset's top directory, without a slash at its end.
fn prefix(image: &Image) -> String {
    let name = &image.superblock.settings.name;
    if name.is_empty() { String::new() } else { format!("/{}", name.escape_debug()) }
}

/// The path of an entry.
fn climb(image: &Image, store: &dyn Store, from: Place) -> Result<String> {
    let mut names: Vec<String> = Vec::new();
    let mut passed = HashSet::new();
    let mut at = from;
    let head = loop {
        names.push(name_at(store, at)?);
        passed.insert(at.parent);
        if at.parent == image.top() {
            break prefix(image);
        }
        let above = image.nodes.get(&at.parent).filter(|node| node.names > 0);
        let above =
            above.map(|node| node.name).or_else(|| image.last_names.get(&at.parent).copied());
        // Directories that lead to each other and to nothing else have no way to the top.
        let leads_on = |place: &Place| !passed.contains(&place.parent) && names.len() < DEPTH_MAX;
        match above.filter(leads_on) {
            Some(place) => at = place,
            None => break format!("(directory {})", at.parent),
        }
    };
    names.reverse();
    Ok(format!("{head}/{}", names.join("/")))
}

/// A name as it is printed: without anything that a terminal would obey.
fn name_at(store: &dyn Store, place: Place) -> Result<String> {
    let Some(value) = store.get(&key::entry(place.parent, place.cookie))? else {
        return Ok("(name lost)".to_owned());
    };
    Ok(match read::<EntryRecord>("entry", &value)? {
        Read::Fine(entry) => match std::str::from_utf8(&entry.name) {
            Ok(name) => name.escape_debug().to_string(),
            Err(_) => entry.name.escape_ascii().to_string(),
        },
        Read::Bad(_) => "(name lost)".to_owned(),
    })
}
