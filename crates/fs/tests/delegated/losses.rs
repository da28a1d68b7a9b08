//! What is lost of what a node has done by itself: with the node, with its delegations, with the owner.

use forebay_base::{ClientId, Ino};
use forebay_disk::Sync;
use forebay_fs::{FsError, SetAttributes};

use crate::site::{Site, own_directory, put, size};
use crate::support::{self, READ_WRITE, ROOT, Shorthand as _, User};
use crate::{DATA, ONE, THREE, TWO};

#[test]
fn what_was_synced_is_in_the_store_and_the_rest_goes_with_its_node() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let synced = two.create_file(own, "synced", READ_WRITE).unwrap();
    synced.write(0, b"synced");
    two.fs.sync_file(synced.ino, Sync::All).unwrap();
    put(&two, own, "named", b"named");
    two.fs.sync_directory(own).unwrap();
    put(&two, own, "lost", b"lost");
    site.nodes.kill(TWO);
    site.nodes.drop_client(ClientId { node: TWO, incarnation: 1 });
    for user in [&one, &three] {
        let own = user.fs.find(user.fs.fileset("data"), "own").unwrap();
        let mut names = user.fs.names(own);
        names.sort();
        assert_eq!(names, ["first", "named", "synced"]);
    }
    synced.let_go();
}

#[test]
fn a_node_that_does_not_answer_loses_what_it_did_not_report_and_is_told() {
    let site = Site::new();
    let (one, two, _three) = site.three();
    let own = own_directory(&two, "own");
    two.fs.report_all().unwrap();
    let open = two.create_file(own, "open", READ_WRITE).unwrap();
    open.write(0, b"bytes");
    site.nodes.kill(TWO);
    // Waits until the word for the other node has lapsed.
    let found = one.fs.find(one.fs.fileset("data"), "own").unwrap();
    assert_eq!(one.fs.names(found), ["first"]);
    one.fs.create(found, b"open", support::file(0o600), ROOT).unwrap();
    site.nodes.thaw(TWO);
    assert!(two.fs.sync_file(open.ino, Sync::All).is_err());
    assert!(two.fs.sync_directory(own).is_err(), "a name is lost");
    two.fs.sync_directory(own).unwrap();
    assert_eq!(two.fs.lookup(own, b"open").unwrap().mode, 0o600);
    open.let_go();
}

#[test]
fn an_owner_that_dies_takes_along_what_it_did_not_commit_and_the_syncs_say_so() {
    let site = Site::new();
    let (one, two, three) = site.three();
    site.hand_over(&[&one, &two, &three], 10);
    let own = own_directory(&two, "own");
    two.fs.sync_directory(own).unwrap();
    let open = two.create_file(own, "lost", READ_WRITE).unwrap();
    site.nodes.kill(THREE);
    site.nodes.give(DATA, ONE, 11);
    for user in [&two, &one] {
        user.fs.owner_changed(DATA).unwrap();
    }
    assert_eq!(size(&two.fs, own, "lost"), None);
    assert!(two.fs.sync_file(open.ino, Sync::All).is_err());
    assert!(two.fs.sync_directory(own).is_err(), "a name is lost");
    two.fs.sync_directory(own).unwrap();
    assert_eq!(one.fs.names(own), ["first"]);
    open.let_go();
}

#[test]
fn a_report_that_fails_as_everything_is_void_is_not_repeated_and_the_sync_says_so() {
    let site = Site::new();
    let (one, two, _three) = site.three();
    let own = own_directory(&two, "own");
    two.fs.sync_directory(own).unwrap();
    put(&two, own, "lost", b"lost");
    // What the owner has granted to this life of the node is void, and it hears of that with the answer to its report.
    site.nodes.drop_client(ClientId { node: TWO, incarnation: 1 });
    assert!(two.fs.report_all().is_err());
    let (calls, reported) = site.calls(|| two.fs.report_all());
    assert!(reported.is_ok());
    assert_eq!(calls, 0, "there is nothing left to report");
    assert!(two.fs.sync_directory(own).is_err(), "a name is lost");
    let found = one.fs.find(one.fs.fileset("data"), "own").unwrap();
    assert_eq!(size(&one.fs, found, "lost"), None);
}

#[test]
fn attributes_that_were_set_by_a_node_that_does_not_answer_are_as_before() {
    let site = Site::new();
    let (one, two, _three) = site.three();
    let own = own_directory(&two, "own");
    let file = put(&two, own, "file", b"file");
    let other = put(&two, own, "other", b"other");
    two.fs.sync_directory(own).unwrap();
    let set = mode(0o400);
    let (calls, set) = site.calls(|| two.fs.set_attributes(file, set).unwrap());
    assert_eq!((calls, set.mode), (0, 0o400));
    two.fs.set_attributes(own, mode(0o700)).unwrap();
    site.nodes.kill(TWO);
    let found = one.fs.find(one.fs.fileset("data"), "own").unwrap();
    assert_eq!(one.fs.lookup(found, b"file").unwrap().mode, 0o644);
    site.nodes.thaw(TWO);
    assert_eq!(two.fs.getattr(file).unwrap().mode, 0o644);
    sync_fails_once(&two, file);
    assert!(two.fs.sync_directory(own).is_err(), "its mode is lost");
    two.fs.sync_directory(own).unwrap();
    sync(&two, other).unwrap();
    assert!(two.fs.sync_for_programs().is_err());
    two.fs.sync_for_programs().unwrap();
}

#[test]
fn attributes_that_went_with_an_owner_fail_the_sync_of_a_file_that_is_opened_later() {
    let site = Site::new();
    let (one, two, three) = site.three();
    site.hand_over(&[&one, &two, &three], 10);
    let own = own_directory(&two, "own");
    let [durable, reported, kept] = ["durable", "reported", "kept"].map(|name| {
        let ino = put(&two, own, name, name.as_bytes());
        two.fs.sync_directory(own).unwrap();
        ino
    });
    two.fs.set_attributes(durable, mode(0o400)).unwrap();
    sync(&two, durable).unwrap();
    two.fs.set_attributes(reported, mode(0o400)).unwrap();
    two.fs.report_all().unwrap();
    two.fs.set_attributes(kept, mode(0o400)).unwrap();
    site.nodes.kill(THREE);
    site.nodes.give(DATA, ONE, 11);
    for user in [&two, &one] {
        user.fs.owner_changed(DATA).unwrap();
    }
    assert_eq!(two.fs.lookup(own, b"durable").unwrap().mode, 0o400);
    sync(&two, durable).unwrap();
    for (name, ino) in [("reported", reported), ("kept", kept)] {
        assert_eq!(two.fs.lookup(own, name.as_bytes()).unwrap().mode, 0o644, "{name}");
        sync_fails_once(&two, ino);
    }
}

fn mode(mode: u16) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// Opens a file, syncs and closes it.
fn sync(user: &User, ino: Ino) -> Result<(), FsError> {
    let handle = user.open(ino, READ_WRITE);
    let synced = user.fs.sync_file(ino, Sync::All);
    handle.close();
    synced
}

fn sync_fails_once(user: &User, ino: Ino) {
    assert!(matches!(sync(user, ino), Err(FsError::Stale)), "attributes are lost");
    sync(user, ino).unwrap();
}
