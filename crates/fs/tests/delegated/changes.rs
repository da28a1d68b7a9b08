//! What a node changes by itself beside files that come and go: attributes, directories, symlinks and names.

use forebay_base::{Ino, Timestamp};
use forebay_fs::record::Kind;
use forebay_fs::{Attributes, FsError, Namespace, New, Replace, SetAttributes, SetTime};

use crate::site::{Site, own_directory, put, size};
use crate::support::{READ_WRITE, ROOT, Shorthand as _, USER, User, directory, file};

const LONG_AGO: Timestamp = Timestamp { seconds: 1_000, nanoseconds: 5 };

fn mode(mode: u16) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn modified(time: Timestamp) -> SetAttributes {
    let time = Some(SetTime::To(time));
    SetAttributes { accessed: time, modified: time, ..SetAttributes::default() }
}

fn symlink(target: &[u8]) -> New<'_> {
    New { kind: Kind::Symlink, mode: 0o777, umask: 0, rdev: 0, target }
}

/// What everybody has to agree on.
type Shown = (Kind, u16, u32, (u32, u32), u64, [Timestamp; 3]);

fn shown(found: &Attributes) -> Shown {
    let times = match found.kind {
        // A directory has the time of the report.
        Kind::Directory => [Timestamp::default(); 3],
        _ => [found.modified, found.changed, found.created],
    };
    (found.kind, found.mode, found.nlink, (found.uid, found.gid), found.size, times)
}

fn path(fs: &Namespace, path: &str) -> Ino {
    path.split('/').fold(fs.fileset("data"), |above, name| {
        fs.find(above, name).unwrap_or_else(|| panic!("{path} is there"))
    })
}

/// All of a tree by path, as `fs` shows it.
fn tree(fs: &Namespace, top: Ino) -> Vec<(String, Shown)> {
    let mut all = Vec::new();
    let mut below = vec![(String::new(), top)];
    while let Some((at, directory)) = below.pop() {
        for name in fs.names(directory) {
            let found = fs.lookup(directory, name.as_bytes()).unwrap();
            let at = format!("{at}/{name}");
            if found.kind == Kind::Directory {
                below.push((at.clone(), found.ino));
            }
            all.push((at, shown(&found)));
        }
    }
    all.sort_by(|one: &(String, _), other| one.0.cmp(&other.0));
    all
}

/// Unpacks as tar does: each file gets its time and mode while it is open, each directory at the end.
fn unpack(user: &User, own: Ino) {
    for number in 0..3 {
        let below =
            user.fs.create(own, format!("below-{number}").as_bytes(), directory(0o700), USER);
        let below = below.unwrap().ino;
        for number in 0..5 {
            let name = format!("file-{number}");
            let (_, handle) =
                user.create_file_as(below, name.as_bytes(), file(0o600), READ_WRITE, USER).unwrap();
            handle.write(0, name.as_bytes());
            user.fs.set_attributes(handle.ino, modified(LONG_AGO)).unwrap();
            let set = user.fs.set_attributes(handle.ino, mode(0o640)).unwrap();
            assert_eq!((set.mode, set.modified, set.size), (0o640, LONG_AGO, 6));
            let ino = handle.ino;
            handle.close();
            let found = user.fs.getattr(ino).unwrap();
            assert_eq!((found.mode, found.modified, found.size), (0o640, LONG_AGO, 6));
        }
        let link = user.fs.create(below, b"link", symlink(b"file-1"), USER).unwrap().ino;
        assert_eq!(user.fs.read_link(link).unwrap(), b"file-1");
        user.fs.set_attributes(below, mode(0o755)).unwrap();
        let set = user.fs.set_attributes(below, modified(LONG_AGO)).unwrap();
        assert_eq!((set.mode, set.modified, set.nlink), (0o755, LONG_AGO, 2));
    }
}

#[test]
fn a_tree_is_unpacked_and_removed_without_a_call_and_everybody_sees_it() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let (calls, ()) = site.calls(|| unpack(&two, own));
    assert_eq!(calls, 0);
    assert_eq!(two.fs.getattr(own).unwrap().nlink, 5);
    let unpacked = tree(&two.fs, own);
    for user in [&three, &one, &two] {
        let own = path(&user.fs, "own");
        assert_eq!(tree(&user.fs, own), unpacked);
        let below = path(&user.fs, "own/below-2");
        assert_eq!(user.fs.getattr(below).unwrap().modified, LONG_AGO);
        assert_eq!(user.contents(path(&user.fs, "own/below-2/file-3")), b"file-3");
        assert_eq!(user.fs.read_link(path(&user.fs, "own/below-1/link")).unwrap(), b"file-1");
    }
    // Once more, and gone again before anybody hears of it.
    let own = own_directory(&two, "second");
    two.fs.report_all().unwrap();
    let (calls, ()) = site.calls(|| {
        unpack(&two, own);
        for number in 0..3 {
            let name = format!("below-{number}");
            let below = two.fs.find(own, &name).unwrap();
            let names = two.fs.names(below);
            assert_eq!(names.len(), 6);
            for name in names {
                two.fs.unlink(below, name.as_bytes()).unwrap();
            }
            two.fs.remove_directory(own, name.as_bytes()).unwrap();
        }
    });
    assert!(
        calls <= 6,
        "{calls} calls: at most a listing of each directory, with a report before it"
    );
    assert_eq!(two.fs.getattr(own).unwrap().nlink, 2);
    assert_eq!(three.fs.names(path(&three.fs, "second")), ["first"]);
}

#[test]
fn a_name_is_replaced_within_a_directory_without_a_call() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let old = put(&two, own, "config", b"old");
    let mut replaced = vec![old];
    let (calls, ()) = site.calls(|| {
        for round in 0..20 {
            let lock = put(&two, own, "config.lock", format!("round {round}").as_bytes());
            two.fs.rename(own, b"config.lock", own, b"config", Replace::Allowed).unwrap();
            assert_eq!(size(&two.fs, own, "config.lock"), None);
            assert_eq!(two.fs.find(own, "config"), Some(lock));
            replaced.push(lock);
            if round == 10 {
                two.fs.report_all().unwrap();
            }
        }
        put(&two, own, "moves", b"moves");
        two.fs.rename(own, b"moves", own, b"moved", Replace::Refused).unwrap();
        let gone = put(&two, own, "gone", b"gone");
        two.fs.rename(own, b"gone", own, b"going", Replace::Allowed).unwrap();
        two.fs.unlink(own, b"going").unwrap();
        replaced.push(gone);
    });
    assert_eq!(calls, 1, "the report");
    let refused = two.fs.rename(own, b"moved", own, b"config", Replace::Refused);
    assert!(matches!(refused, Err(FsError::Exists)));
    let mine = tree(&two.fs, own);
    for user in [&three, &one, &two] {
        let own = path(&user.fs, "own");
        assert_eq!(user.fs.names(own), ["config", "first", "moved"]);
        assert_eq!(tree(&user.fs, own), mine);
        assert_eq!(user.contents(path(&user.fs, "own/config")), b"round 19");
    }
    let config = path(&two.fs, "own/config");
    replaced.into_iter().filter(|ino| *ino != config).for_each(|ino| two.fs.forget(ino, 1));
    two.fs.sync_directory(path(&two.fs, "own")).unwrap();
    one.fs.commit().unwrap();
    assert_eq!(site.objects_on(crate::TWO), 3, "what was replaced has left nothing");
}

#[test]
fn a_directory_below_goes_back_by_itself() {
    let site = Site::new();
    let (_one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let below = two.fs.create(own, b"below", directory(0o755), ROOT).unwrap().ino;
    put(&two, below, "before", b"before");
    let seen = path(&three.fs, "own");
    // The one above is everybody's now, and the one below this node's.
    assert!(site.calls(|| put(&two, own, "above", b"above")).0 > 0);
    let (calls, _) = site.calls(|| put(&two, below, "after", b"after"));
    assert_eq!(calls, 0);
    let (calls, _) = site.calls(|| two.fs.create(below, b"deep", directory(0o755), ROOT).unwrap());
    assert_eq!(calls, 0);
    let below_there = three.fs.find(seen, "below").unwrap();
    assert_eq!(three.fs.names(below_there), ["after", "before", "deep"]);
    assert!(site.calls(|| put(&two, below, "late", b"late")).0 > 0);
}

#[test]
fn what_others_know_and_what_runs_as_its_owner_is_set_by_the_owner() {
    let site = Site::new();
    let (_one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let linked = put(&two, own, "linked", b"linked");
    two.fs.link(linked, two.fs.fileset("data"), b"link").unwrap();
    let seen = path(&three.fs, "link");
    assert_eq!(three.fs.getattr(seen).unwrap().mode, 0o644);
    two.fs.set_attributes(linked, mode(0o600)).unwrap();
    assert_eq!(three.fs.getattr(seen).unwrap().mode, 0o600, "at once");
    let runs = put(&two, own, "runs", b"runs");
    two.fs.set_attributes(runs, mode(0o4755)).unwrap();
    let handle = two.open(runs, READ_WRITE);
    handle.write(0, b"more");
    handle.close();
    let elsewhere = put(&two, own, "elsewhere", b"moves away");
    two.fs.rename(own, b"elsewhere", two.fs.fileset("data"), b"moved", Replace::Allowed).unwrap();
    let seen = path(&three.fs, "moved");
    assert_eq!(three.fs.getattr(seen).unwrap().mode, 0o644);
    two.fs.set_attributes(elsewhere, mode(0o600)).unwrap();
    assert_eq!(three.fs.getattr(seen).unwrap().mode, 0o600, "at once");
}

#[test]
fn a_directory_that_inherits_its_group_gives_it_on() {
    let site = Site::new();
    let (_one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let set = SetAttributes { gid: Some(77), mode: Some(0o2775), ..SetAttributes::default() };
    let (calls, ()) = site.calls(|| {
        two.fs.set_attributes(own, set).unwrap();
        let below = two.fs.create(own, b"below", directory(0o755), USER).unwrap();
        assert_eq!((below.gid, below.mode), (77, 0o2755));
        let (made, handle) =
            two.create_file_as(below.ino, b"file", file(0o644), READ_WRITE, USER).unwrap();
        assert_eq!(made.gid, 77);
        handle.close();
    });
    assert_eq!(calls, 0);
    let below = three.fs.getattr(path(&three.fs, "own/below")).unwrap();
    assert_eq!((below.uid, below.gid, below.mode), (USER.uid, 77, 0o2755));
    assert_eq!(three.fs.getattr(path(&three.fs, "own/below/file")).unwrap().gid, 77);
}
