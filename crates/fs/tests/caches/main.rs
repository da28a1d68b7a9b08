//! Cache filesets: what they show is what lies at their home, whatever changes there; what was fetched is served while the
//! home is away; and nothing of it is half there wherever the power is cut.

#[path = "../support/mod.rs"]
mod support;

mod interrupted;
mod random;
mod site;
mod unreadable;
mod write_back;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

use forebay_base::{FailPoints, Ino, Timestamp};
use forebay_fs::fsck::{Outcome, Repair};
use forebay_fs::policy::Policy;
use forebay_fs::record::Kind;
use forebay_fs::{Access, CacheMode, FsError, HomeNeed, Replace, SetAttributes, SetMode, SetXattr};
use site::{CACHE, Site};
use support::files::{bytes_of, refused};
use support::{Nobody, READ, ROOT, Shorthand as _, TRUNCATE, WRITE, directory, file};

#[test]
fn names_come_when_a_directory_is_looked_into_and_bytes_when_a_file_is_opened() {
    let site = Site::new();
    site.write("a", b"content");
    site.write("below/b", b"b");
    site.write("below/deeper/c", b"");
    symlink("below/b", site.at("link")).unwrap();
    std::fs::set_permissions(site.at("a"), PermissionsExt::from_mode(0o640)).unwrap();
    let fs = site.open();
    let top = fs.fileset(CACHE);
    assert_eq!(fs.names(top), [""; 0], "nothing is fetched before it is asked for");
    assert_eq!(site.names(&fs, top).unwrap(), ["a", "below", "link"]);
    let found = site.lookup(&fs, top, "a").unwrap();
    let there = std::fs::metadata(site.at("a")).unwrap();
    let modified = Timestamp::new(there.mtime(), u32::try_from(there.mtime_nsec()).unwrap());
    assert_eq!((found.size, found.mode, found.modified), (7, 0o640, modified));
    assert_eq!((found.uid, found.gid), (there.uid(), there.gid()));
    assert_eq!(found.allocated_bytes, 0);
    let link = site.lookup(&fs, top, "link").unwrap();
    assert_eq!(fs.read_link(link.ino).unwrap(), b"below/b");
    let below = site.lookup(&fs, top, "below").unwrap();
    assert_eq!(below.kind, Kind::Directory);
    assert_eq!(fs.names(below.ino), [""; 0], "a directory is fetched when somebody looks into it");
    // A name is enough for that.
    assert_eq!(site.lookup(&fs, below.ino, "b").unwrap().size, 1);
    assert_eq!(fs.names(below.ino), ["b", "deeper"]);
    fs.commit().unwrap();
    assert_eq!(site.rig.objects(), []);
    assert_eq!(fs.contents(found.ino), b"content");
    fs.commit().unwrap();
    assert_eq!(site.rig.objects().len(), 1);
    let again = site.lookup(&fs, top, "a").unwrap();
    assert_eq!((again.ino, again.size, again.modified), (found.ino, 7, modified));
    let status = fs.fileset_status().into_iter().find(|it| it.name == CACHE).unwrap();
    let cache = status.cache.unwrap();
    assert_eq!((cache.fetched_files, cache.fetched_bytes), (1, 7));
    site.close(fs);
}

#[test]
fn what_changes_at_home_changes_here() {
    let site = Site::new();
    for name in ["changed", "gone", "kept", "tree/below/file", "other", "read"] {
        site.write(name, b"first");
    }
    symlink("one", site.at("link")).unwrap();
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let before = site.read_all(&fs, top);
    let ino_of = |name: &str| site.lookup(&fs, top, name).unwrap().ino;
    let (kept, changed, read) = (ino_of("kept"), ino_of("changed"), ino_of("read"));
    let handle = fs.open(read, READ);
    site.write("changed", b"second one");
    site.write("read", b"third");
    site.write("new", b"new");
    std::fs::remove_file(site.at("gone")).unwrap();
    std::fs::remove_dir_all(site.at("tree")).unwrap();
    std::fs::remove_file(site.at("other")).unwrap();
    site.write("other/file", b"x");
    std::fs::set_permissions(site.at("kept"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::remove_file(site.at("link")).unwrap();
    symlink("two", site.at("link")).unwrap();
    assert_ne!(site.read_all(&fs, top), before);
    assert_eq!(site.read_all(&fs, top), site.tree());
    assert_eq!(site.lookup(&fs, top, "kept").unwrap().ino, kept, "its bytes have not changed");
    assert_ne!(site.lookup(&fs, top, "changed").unwrap().ino, changed);
    // Whoever has a file open goes on with what was opened.
    assert_eq!(handle.read(0, 10), b"first");
    handle.close();
    assert!(matches!(fs.open_file(read, READ, ROOT), Err(FsError::Stale)));
    site.close(fs);
}

#[test]
fn names_are_compared_again_after_the_refresh_time_and_not_before() {
    let site = Site::with_refresh(60);
    site.write("a", b"one");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    assert_eq!(site.names(&fs, top).unwrap(), ["a"]);
    site.write("a", b"two!");
    site.write("b", b"");
    assert!(!fs.home_is_due(top, HomeNeed::Name(b"a")));
    assert_eq!(site.names(&fs, top).unwrap(), ["a"]);
    site.clock.advance(59);
    assert_eq!(site.lookup(&fs, top, "a").unwrap().size, 3);
    site.clock.advance(2);
    assert_eq!(site.lookup(&fs, top, "a").unwrap().size, 4);
    assert_eq!(site.lookup(&fs, top, "b").unwrap().size, 0);
    // One name says nothing of the others.
    assert!(fs.home_is_due(top, HomeNeed::Names));
    assert_eq!(site.names(&fs, top).unwrap(), ["a", "b"]);
    site.close(fs);
}

#[test]
fn a_file_that_has_changed_since_it_was_listed_is_fetched_as_it_is() {
    let site = Site::with_refresh(3600);
    site.write("a", b"one");
    site.write("gone", b"one");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let ino = site.lookup(&fs, top, "a").unwrap().ino;
    let gone = site.lookup(&fs, top, "gone").unwrap().ino;
    site.write("a", b"longer");
    assert_eq!(fs.contents(ino), b"longer");
    std::fs::remove_file(site.at("gone")).unwrap();
    assert!(matches!(fs.open_file(gone, READ, ROOT), Err(FsError::Stale)));
    // The kernel looks the name up again then.
    assert!(matches!(site.lookup(&fs, top, "gone"), Err(FsError::NotFound)));
    site.close(fs);
}

#[test]
fn a_read_only_cache_refuses_every_change() {
    let site = Site::new();
    site.write("a", b"content");
    site.write("d/b", b"");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let ino = site.lookup(&fs, top, "a").unwrap().ino;
    let set = SetXattr { name: b"user.x", value: b"", mode: SetMode::Any, kill_set_gid: false };
    let outcomes = [
        fs.create(top, b"new", file(0o644), ROOT).map(drop),
        fs.create(top, b"new", directory(0o755), ROOT).map(drop),
        fs.create_unnamed(top, file(0o644), ROOT).map(drop),
        fs.create_file(top, "new", WRITE).map(drop),
        fs.unlink(top, b"a"),
        fs.remove_directory(top, b"d"),
        fs.rename(top, b"a", top, b"b", Replace::Allowed),
        fs.link(ino, top, b"b").map(drop),
        fs.set_attributes(ino, SetAttributes { mode: Some(0), ..SetAttributes::default() })
            .map(drop),
        fs.set_attributes(ino, SetAttributes { size: Some(0), ..SetAttributes::default() })
            .map(drop),
        fs.set_xattr(ino, set),
        fs.remove_xattr(ino, b"user.x"),
        fs.open_file(ino, WRITE, ROOT).map(drop),
        fs.open_file(ino, TRUNCATE, ROOT).map(drop),
        fs.open_file(ino, Access { write: false, ..TRUNCATE }, ROOT).map(drop),
    ];
    for (number, outcome) in outcomes.iter().enumerate() {
        assert!(matches!(outcome, Err(FsError::ReadOnly)), "{number}: {outcome:?}");
    }
    assert!(refused(fs.create_snapshot(CACHE, "s")).contains("cache"));
    assert!(refused(fs.set_fileset_copies(CACHE, 2)).contains("cache"));
    assert_eq!(site.read_all(&fs, top), site.tree());
    site.close(fs);
}

#[test]
fn what_was_fetched_is_served_while_the_home_is_away() {
    let site = Site::new();
    site.write("fetched", b"content");
    site.write("listed", b"only");
    site.write("d/b", b"");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    assert_eq!(site.names(&fs, top).unwrap(), ["d", "fetched", "listed"]);
    let ino = |name: &str| site.lookup(&fs, top, name).unwrap().ino;
    let (fetched, listed, below) = (ino("fetched"), ino("listed"), ino("d"));
    assert_eq!(fs.contents(fetched), b"content");
    site.take_away();
    for is_something_else_there in [false, true] {
        if is_something_else_there {
            // The empty directory on which the home is mounted otherwise.
            std::fs::create_dir(&site.home).unwrap();
            site.clock.advance(10);
        }
        assert_eq!(site.names(&fs, top).unwrap(), ["d", "fetched", "listed"]);
        assert_eq!(site.lookup(&fs, top, "fetched").unwrap().ino, fetched);
        assert_eq!(fs.contents(fetched), b"content");
        assert!(matches!(site.lookup(&fs, top, "other"), Err(FsError::NotFound)));
        assert!(matches!(fs.open_file(listed, READ, ROOT), Err(FsError::HomeAway(_))));
        assert!(matches!(site.names(&fs, below), Err(FsError::HomeAway(_))));
        let why = site.status(&fs).unreachable.expect("it is away");
        assert!(why.contains(site.home.to_str().unwrap()), "{why}");
    }
    std::fs::remove_dir(&site.home).unwrap();
    // A mount without the home finds what was fetched before it, too.
    site.close(fs);
    let fs = site.open();
    assert_eq!(site.names(&fs, top).unwrap(), ["d", "fetched", "listed"]);
    assert_eq!(fs.contents(fetched), b"content");
    assert!(matches!(fs.open_file(listed, READ, ROOT), Err(FsError::HomeAway(_))));
    site.bring_back();
    site.clock.advance(10);
    assert_eq!(site.read_all(&fs, top), site.tree());
    assert_eq!(site.status(&fs).unreachable, None);
    site.close(fs);
}

#[test]
fn evicted_files_are_fetched_again_and_open_ones_stay() {
    let site = Site::new();
    for name in 0..5 {
        site.write(&format!("file-{name}"), &bytes_of(name));
    }
    site.write("empty", b"");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    assert_eq!(site.read_all(&fs, top), site.tree());
    let ino = site.lookup(&fs, top, "file-3").unwrap().ino;
    let handle = fs.open(ino, READ);
    let evicted = fs.evict_cache(CACHE, 0).unwrap();
    assert_eq!((evicted.files, evicted.in_use), (4, 1));
    assert_eq!(site.rig.objects().len(), 1);
    assert_eq!(handle.contents(), bytes_of(3));
    handle.close();
    assert_eq!(site.read_all(&fs, top), site.tree());
    assert_eq!(site.lookup(&fs, top, "file-3").unwrap().ino, ino);
    assert!(refused(fs.evict_cache("data", 0)).contains("not a cache"));
    site.close(fs);
}

#[test]
fn a_cache_is_removed_with_all_that_it_holds_and_the_home_stays() {
    let site = Site::new();
    site.write("d/e/file", b"content");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let before = site.tree();
    assert_eq!(site.read_all(&fs, top), before);
    let below = site.lookup(&fs, top, "d").unwrap().ino;
    let below = site.lookup(&fs, below, "e").unwrap().ino;
    let handle = fs.open(site.lookup(&fs, below, "file").unwrap().ino, READ);
    assert!(refused(fs.remove_fileset(CACHE)).contains("open files"));
    handle.close();
    fs.remove_fileset(CACHE).unwrap();
    assert_eq!(fs.find(Ino::ROOT, CACHE), None);
    assert_eq!(site.tree(), before);
    site.close(fs);
    assert_eq!(site.rig.objects(), []);
}

#[test]
fn fsck_takes_files_that_were_not_fetched_for_what_they_are() {
    let site = Site::new();
    site.write("a", b"content");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let ino = site.lookup(&fs, top, "a").unwrap().ino;
    site.close(fs);
    assert_eq!(site.rig.record(ino).unwrap().size, 7);
    assert_eq!(site.rig.fsck(Repair::Found, false).outcome(), Outcome::Clean);
    assert_eq!(site.rig.record(ino).unwrap().size, 7);
}

#[test]
fn a_file_is_fetched_as_a_whole_or_not_at_all_wherever_the_power_goes() {
    let points = [
        ("cache.listed", 3),
        ("fetch.copied", 3),
        ("fetch.synced", 3),
        ("fetch.turned", 3),
        ("evict.turned", 3),
        ("disk.publish", 3),
        ("disk.sync", 3),
        ("store.commit.before", 6),
        ("store.commit.after", 6),
    ];
    for (point, most) in points {
        let mut was_cut = false;
        for passes in 0..most {
            for machine in [None, Some(passes)] {
                was_cut |= site::cut_at(&FailPoints::cut_at(point, passes), machine);
            }
        }
        assert!(was_cut, "{point} was never reached");
    }
}

#[test]
fn changes_of_a_local_update_cache_stay_here_and_the_rest_follows_the_home() {
    let site = Site::with(CacheMode::LocalUpdate, 0);
    for name in ["d/written", "d/unread", "d/mode", "e/kept", "e/linked", "f/below/file", "g/a"] {
        site.write(name, b"first");
    }
    let before = site.tree();
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let at =
        |path: &str| path.split('/').fold(top, |at, name| site.lookup(&fs, at, name).unwrap().ino);
    // What is written first was not fetched: a part of it stays.
    let (written, mode) = (at("d/written"), at("d/mode"));
    let handle = site.recalled(&fs, written, || fs.open_as(written, WRITE, ROOT));
    handle.write(0, b"F");
    handle.close();
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    site.recalled(&fs, mode, || fs.set_attributes_here(mode, set));
    let (e, linked) = (at("e"), at("e/linked"));
    site.recalled(&fs, linked, || fs.link(linked, e, b"link").map(|it| fs.forget(it.ino, 1)));
    fs.unlink(e, b"kept").unwrap();
    assert_eq!(fs.contents(at("f/below/file")), b"first");
    let new = fs.make_file(at("f/below"), "new");
    fs.write_file(new, 0, b"new");
    assert_eq!(site.tree(), before, "nothing is written at home");
    for name in ["d/written", "d/unread", "d/mode", "d/other", "e/kept", "e/more", "g/a"] {
        site.write(name, b"second");
    }
    std::fs::remove_dir_all(site.at("f")).unwrap();
    site.write("f", b"a file now");
    let mut expected = site.tree();
    let mut put = |path: &str, bytes: &[u8]| {
        expected.insert(path.to_owned(), Some(bytes.to_vec()));
    };
    put("d/written", b"First");
    put("d/mode", b"first");
    put("e/link", b"first");
    put("f/below/new", b"new");
    // A directory whose names were changed here is compared no more, nor are its files.
    put("f/below/file", b"first");
    for (path, bytes) in
        [("e/kept", None), ("e/more", None), ("f", Some(None)), ("f/below", Some(None))]
    {
        match bytes {
            Some(bytes) => drop(expected.insert(path.to_owned(), bytes)),
            None => drop(expected.remove(path)),
        }
    }
    for _ in 0..2 {
        let found = site.read_all(&fs, top);
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        assert_eq!(found, expected);
    }
    // To replace the content of a file fetches nothing.
    let unread = at("g/a");
    fs.evict_cache(CACHE, 0).unwrap();
    let fetched = site.status(&fs).fetched_files;
    fs.overwrite(unread, b"own");
    assert_eq!((fs.contents(unread), site.status(&fs).fetched_files), (b"own".to_vec(), fetched));
    assert_eq!(site.lookup(&fs, at("d"), "mode").unwrap().mode, 0o600);
    let own = SetXattr {
        name: b"trusted.forebay.home",
        value: b"d/unread",
        mode: SetMode::Any,
        kill_set_gid: false,
    };
    assert!(matches!(fs.set_xattr(new, own), Err(FsError::NotPermitted)));
    // Nor are those that are there shown or removed.
    for (ino, name) in [(at("d/unread"), "home"), (top, "home"), (top, "cache")] {
        let name = format!("trusted.forebay.{name}");
        let removed = fs.remove_xattr(ino, name.as_bytes());
        assert!(matches!(removed, Err(FsError::NotPermitted)), "{name}: {removed:?}");
        assert_eq!(fs.list_xattrs(ino).unwrap(), b"");
    }
    // What is not at home is not dropped with the cache.
    let follows = at("d/unread");
    assert!(refused(fs.remove_fileset(CACHE)).contains("made or changed here: remove them first"));
    assert_eq!(fs.contents(new), b"new");
    assert_eq!(at("d/unread"), follows, "nothing is dropped if the fileset stays");
    site.close(fs);
}

#[test]
fn a_change_of_what_is_at_home_alone_is_refused_until_it_is_fetched_and_changes_nothing() {
    let site = Site::with(CacheMode::LocalUpdate, 0);
    for name in ["a/one", "b/two", "c/three"] {
        site.write(name, b"first");
    }
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let [a, b, c] = ["a", "b", "c"].map(|name| site.lookup(&fs, top, name).unwrap().ino);
    let mode = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
    let set = SetXattr { name: b"user.x", value: b"", mode: SetMode::Any, kill_set_gid: false };
    let rename = |from, to| fs.rename(from, b"one", to, b"moved", Replace::Allowed);
    let outcomes = [
        fs.set_attributes_here(a, mode).map(drop),
        fs.set_xattr(a, set),
        fs.remove_xattr(a, b"user.x"),
        fs.create(a, b"new", file(0o644), ROOT).map(drop),
        fs.create_file(a, "new", WRITE).map(drop),
        fs.unlink(a, b"one"),
        fs.remove_directory(a, b"one"),
        rename(a, b),
    ];
    for (number, outcome) in outcomes.iter().enumerate() {
        assert!(matches!(outcome, Err(FsError::Archived)), "{number}: {outcome:?}");
    }
    assert_eq!((fs.names(a), fs.names(b)), (Vec::new(), Vec::new()), "nobody has waited");
    site.take_away();
    assert!(matches!(fs.recall(a, None), Err(FsError::HomeAway(_))));
    site.bring_back();
    site.clock.advance(10);
    fs.recall(a, None).unwrap();
    // One of two directories is not enough, and the other still follows its home.
    assert!(matches!(rename(a, c), Err(FsError::Archived)));
    site.write("a/later", b"");
    assert_eq!(site.names(&fs, a).unwrap(), ["later", "one"]);
    fs.recall(c, None).unwrap();
    rename(a, c).unwrap();
    assert_eq!(
        (fs.names(a), fs.names(c)),
        (vec!["later".into()], vec!["moved".into(), "three".into()])
    );
    // Without a place to wait in, the names are fetched on the way.
    assert_eq!(fs.set_attributes(b, mode).unwrap().mode, 0o700);
    assert_eq!(fs.names(b), ["two"]);
    site.close(fs);
}

#[test]
fn a_directory_with_files_at_home_alone_is_neither_removed_nor_replaced() {
    let site = Site::with(CacheMode::LocalUpdate, 0);
    for name in ["full/file", "other/file", "plain"] {
        site.write(name, b"first");
    }
    std::fs::create_dir(site.at("empty")).unwrap();
    let fs = site.open();
    let top = fs.fileset(CACHE);
    // Each directory was looked up, and none of them listed.
    site.names(&fs, top).unwrap();
    let full = site.lookup(&fs, top, "full").unwrap().ino;
    let new = fs.make_directory(top, "new");
    let remove = |name: &str| fs.remove_directory(top, name.as_bytes());
    let replace = |from: &[u8], to: &[u8]| fs.rename(top, from, top, to, Replace::Allowed);
    let outcomes = [remove("full"), remove("empty"), replace(b"new", b"other")];
    for (number, outcome) in outcomes.iter().enumerate() {
        assert!(matches!(outcome, Err(FsError::Archived)), "{number}: {outcome:?}");
    }
    for name in ["full", "empty", "other"] {
        fs.recall_named(top, name.as_bytes(), None).unwrap();
    }
    assert!(matches!(remove("full"), Err(FsError::NotEmpty)));
    assert!(matches!(replace(b"new", b"other"), Err(FsError::NotEmpty)));
    remove("empty").unwrap();
    // What is not a directory, or is not replaced, needs no names.
    fs.recall_named(top, b"plain", None).unwrap();
    assert_eq!(site.status(&fs).fetched_files, 0);
    replace(b"full", b"moved").unwrap();
    fs.rename(top, b"moved", top, b"new", Replace::Exchange).unwrap();
    assert_eq!(site.lookup(&fs, top, "moved").unwrap().ino, new);
    assert_eq!(site.lookup(&fs, top, "new").unwrap().ino, full);
    assert_eq!(fs.names(full), ["file"]);
    site.close(fs);
}

#[test]
fn room_for_a_file_is_made_on_one_disk_that_can_hold_it() {
    let site = Site::on(
        support::Rig::of_capacity(3 << 20).with_second_disk(8 << 20),
        CacheMode::ReadOnly,
        0,
    );
    for number in 0..8 {
        site.write(&format!("file-{number}"), &vec![number + 1; 1 << 20]);
    }
    site.write("large", &vec![9; 6 << 20]);
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let ino = |number: u8| site.lookup(&fs, top, &format!("file-{number}")).unwrap().ino;
    let place = |number: u8| fs.place_of(ino(number)).unwrap().location;
    (0..8).for_each(|number| fs.open(ino(number), READ).close());
    let places: Vec<_> = (0..8).map(place).collect();
    let first = places.iter().find(|it| **it != Some("beside".to_owned())).unwrap().clone();
    assert!(places.contains(&Some("beside".to_owned())), "{places:?}");
    let large = site.lookup(&fs, top, "large").unwrap().ino;
    fs.open(large, READ).close();
    assert_eq!(fs.place_of(large).unwrap().location, Some("beside".to_owned()));
    for number in (0..8).filter(|number| places[usize::from(*number)] == first) {
        assert_eq!(place(number), first, "nothing of the other disk is given back");
    }
    site.close(fs);
}

#[test]
fn a_mount_knows_that_there_are_caches_before_any_is_opened() {
    let site = Site::new();
    let fs = site.open();
    assert!(fs.has_caches());
    // What says so is not for programs.
    assert_eq!(fs.list_xattrs(Ino::ROOT).unwrap(), b"");
    let removed = fs.remove_xattr(Ino::ROOT, b"trusted.forebay.caches");
    assert!(matches!(removed, Err(FsError::NotPermitted)), "{removed:?}");
    fs.remove_fileset(CACHE).unwrap();
    site.close(fs);
    let fs = site.open();
    assert!(!fs.has_caches());
    site.close(fs);
}

#[test]
fn a_policy_counts_and_removes_no_files_of_a_cache() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.write(name, b"content");
        let file = std::fs::File::options().append(true).open(site.at(name)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    }
    let fs = site.open();
    let top = fs.fileset(CACHE);
    assert_eq!(site.read_all(&fs, top), site.tree());
    let rules = format!("[[delete]]\nname = 'old'\nfileset = '{CACHE}'\nolder = '2 d'");
    let rules = Policy::parse(&rules, &Nobody).unwrap();
    let report = fs.look_at_policy(&rules).unwrap();
    assert_eq!((report.inodes > 2, report.rules[0].files), (true, 0));
    let number = fs.run_policy(&rules).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    assert_eq!(fs.names(top), ["a", "b"]);
    site.close(fs);
}

#[test]
fn a_full_disk_gives_back_what_was_fetched_longest_ago() {
    let site = Site::on(support::Rig::of_capacity(6 << 20), CacheMode::ReadOnly, 0);
    let bytes = |number: u8| vec![number + 1; 1 << 20];
    for number in 0..12 {
        site.write(&format!("file-{number}"), &bytes(number));
    }
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let ino = |number: u8| site.lookup(&fs, top, &format!("file-{number}")).unwrap().ino;
    let first = fs.open(ino(0), READ);
    for round in 0..2 {
        for number in 0..12 {
            assert_eq!(fs.contents(ino(number)), bytes(number), "round {round}");
        }
    }
    assert_eq!(first.contents(), bytes(0), "it is open");
    first.close();
    let is_here = |number: u8| fs.attributes(ino(number)).unwrap().allocated_bytes > 0;
    assert!(is_here(11) && !is_here(1));
    // By hand, the latest stay.
    fs.evict_cache(CACHE, 1 << 20).unwrap();
    let here: Vec<u8> = (0..12).filter(|number| is_here(*number)).collect();
    assert_eq!(here, [11]);
    site.write("too-large", &vec![1; 20 << 20]);
    let large = site.lookup(&fs, top, "too-large").unwrap().ino;
    assert!(matches!(fs.open_file(large, READ, ROOT), Err(FsError::NoSpace)));
    assert!(is_here(11), "it would not be enough");
    // Holes take no space: a file that is larger than the disk may find room in it.
    site.write("holes", &vec![1; 4 << 20]);
    let holes = std::fs::File::options().append(true).open(site.at("holes")).unwrap();
    holes.set_len(20 << 20).unwrap();
    (0..5).for_each(|number| assert_eq!(fs.contents(ino(number)), bytes(number)));
    let holes = site.lookup(&fs, top, "holes").unwrap().ino;
    fs.open(holes, READ).close();
    assert!(!is_here(11));
    site.close(fs);
}
