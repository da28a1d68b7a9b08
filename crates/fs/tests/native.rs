//! Native filesets as they are served, on a real directory.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use forebay_base::Ino;
use forebay_disk::Sync;
use forebay_fs::native::{Mark, NativePlace, NativeTree};
use forebay_fs::record::Kind;
use forebay_fs::{
    Access, Attributes, Caller, FsError, KeepName, New, Replace, SetAttributes, SetMode, SetXattr,
};

const BASE: u64 = 7 << 48;
const TOP: Ino = Ino(BASE | 1);

/// A native fileset in a directory of its own.
struct Native {
    folder: tempfile::TempDir,
    tree: NativeTree,
}

impl Native {
    fn make() -> Native {
        Native::with(1024)
    }

    fn with(descriptors_max: usize) -> Native {
        let folder = tempfile::tempdir().unwrap();
        let mark = Mark { file_system: "one".to_owned(), fileset: "work".to_owned() };
        let place = NativePlace::on(folder.path(), mark);
        let own = std::fs::metadata(folder.path()).unwrap();
        place.create(0o755, (own.uid(), own.gid())).unwrap();
        let top: OwnedFd = place.open().unwrap();
        let tree = NativeTree::open(top, BASE, TOP, descriptors_max).unwrap();
        Native { folder, tree }
    }

    /// The tree as other programs see it.
    fn path(&self) -> PathBuf {
        self.folder.path().join("native/work/tree")
    }

    fn make_file(&self, parent: Ino, name: &str) -> Attributes {
        self.tree.create(parent, name.as_bytes(), new(Kind::File, 0o644), own()).unwrap()
    }

    fn make_folder(&self, parent: Ino, name: &str) -> Ino {
        let new = new(Kind::Directory, 0o755);
        self.tree.create(parent, name.as_bytes(), new, own()).unwrap().ino
    }

    fn names(&self, ino: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.tree
            .read_directory(ino, 0, &mut |item| {
                names.push(String::from_utf8(item.name.clone()).unwrap());
                ControlFlow::Continue(())
            })
            .unwrap();
        names.sort();
        names
    }
}

fn new(kind: Kind, mode: u16) -> New<'static> {
    New { kind, mode, umask: 0, rdev: 0, target: b"" }
}

fn own() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

const BOTH: Access =
    Access { read: true, write: true, truncate: false, execute: false, synchronous: false };

#[test]
fn a_change_made_natively_is_seen_at_once_and_the_other_way_round() {
    let native = Native::make();
    let file = native.make_file(TOP, "a");
    native.tree.open_file(file.ino, BOTH, own()).unwrap();
    assert_eq!(native.tree.write(file.ino, 0, b"abc").unwrap(), 3);
    assert_eq!(std::fs::read(native.path().join("a")).unwrap(), b"abc");
    std::fs::write(native.path().join("a"), "natively longer").unwrap();
    assert_eq!(native.tree.attributes(file.ino).unwrap().size, 15);
    let mut buffer = [0; 64];
    let read = native.tree.read(file.ino, 9, &mut buffer).unwrap();
    assert_eq!(&buffer[..read], b"longer");
    native.tree.sync_file(file.ino, Sync::All).unwrap();
    native.tree.close_file(file.ino, BOTH).unwrap();
    std::fs::rename(native.path().join("a"), native.path().join("b")).unwrap();
    assert!(matches!(native.tree.lookup(TOP, b"a"), Err(FsError::NotFound)));
    let found = native.tree.lookup(TOP, b"b").unwrap();
    assert_eq!(found.ino, file.ino);
    assert_eq!((found.cacheable, found.name), (false, KeepName::Never));
    assert_eq!(native.names(TOP), [".", "..", "b"]);
}

#[test]
fn nothing_leads_out_of_the_tree() {
    let native = Native::make();
    let outside = native.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "not ours").unwrap();
    symlink(&outside, native.path().join("link")).unwrap();
    let link = native.tree.lookup(TOP, b"link").unwrap();
    assert_eq!(link.kind, Kind::Symlink);
    assert_eq!(native.tree.read_link(link.ino).unwrap(), outside.to_str().unwrap().as_bytes());
    assert!(matches!(native.tree.lookup(link.ino, b"secret"), Err(FsError::NotDirectory)));
    assert!(native.tree.lookup(TOP, b"..").is_err());
    for name in [&b"../../outside"[..], b"/etc", b"a/b", b"", b"a\0b"] {
        assert!(native.tree.lookup(TOP, name).is_err(), "{name:?}");
        assert!(native.tree.create(TOP, name, new(Kind::File, 0o600), own()).is_err(), "{name:?}");
        assert!(native.tree.unlink(TOP, name).is_err(), "{name:?}");
    }
    // A directory that somebody moves out of the tree has no way up to what holds it then.
    let folder = native.make_folder(TOP, "folder");
    std::fs::rename(native.path().join("folder"), outside.join("folder")).unwrap();
    assert!(matches!(native.tree.lookup(folder, b".."), Err(FsError::Stale)));
    assert!(native.tree.rename(folder, b"..", TOP, b"x", Replace::Allowed).is_err());
}

#[test]
fn hard_links_are_one_inode_and_a_removed_file_is_stale_once_it_is_forgotten() {
    let native = Native::make();
    let file = native.make_file(TOP, "a");
    let linked = native.tree.link(file.ino, TOP, b"b").unwrap();
    assert_eq!((linked.ino, linked.nlink), (file.ino, 2));
    native.tree.unlink(TOP, b"a").unwrap();
    native.tree.unlink(TOP, b"b").unwrap();
    assert_eq!(native.tree.attributes(file.ino).unwrap().nlink, 0);
    assert!(matches!(native.tree.link(file.ino, TOP, b"c"), Err(FsError::NotFound)));
    native.tree.forget(file.ino, 2);
    assert!(matches!(native.tree.attributes(file.ino), Err(FsError::Stale)));
    assert_eq!(native.tree.usage().0, 1, "only the top directory is known");
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let native = Native::make();
    let file = native.tree.create_unnamed(TOP, new(Kind::File, 0o600), own()).unwrap();
    native.tree.open_file(file.ino, BOTH, own()).unwrap();
    native.tree.write(file.ino, 0, b"kept").unwrap();
    native.tree.link(file.ino, TOP, b"named").unwrap();
    native.tree.close_file(file.ino, BOTH).unwrap();
    assert_eq!(std::fs::read(native.path().join("named")).unwrap(), b"kept");
}

#[test]
fn more_inodes_are_known_than_have_descriptors() {
    let native = Native::with(16);
    let folder = native.make_folder(TOP, "folder");
    let files: Vec<_> = (0..200).map(|n| native.make_file(folder, &n.to_string())).collect();
    for file in &files {
        native.tree.open_file(file.ino, BOTH, own()).unwrap();
        native.tree.close_file(file.ino, BOTH).unwrap();
    }
    for n in 0..200 {
        native.tree.lookup(folder, n.to_string().as_bytes()).unwrap();
    }
    let (known, descriptors) = native.tree.usage();
    assert!(known > 200 && descriptors <= 32, "{known} known, {descriptors} descriptors");
    native.tree.rename(TOP, b"folder", TOP, b"moved", Replace::Allowed).unwrap();
    for file in &files {
        assert_eq!(native.tree.attributes(file.ino).unwrap().ino, file.ino);
    }
    // A file that took the place of another is not taken for it.
    std::fs::remove_file(native.path().join("moved/0")).unwrap();
    std::fs::write(native.path().join("moved/0"), "another").unwrap();
    let found = native.tree.attributes(files[0].ino);
    assert!(found.is_err() || found.unwrap().nlink == 0);
    assert_ne!(native.tree.lookup(folder, b"0").unwrap().ino, files[0].ino);
}

#[test]
fn files_that_are_made_and_not_opened_keep_few_descriptors() {
    let native = Native::with(16);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for n in 0..3000 {
        native.make_file(TOP, &n.to_string());
    }
    // Other tests of this program have some open, too.
    let after = descriptors();
    assert!(after < before + 1500, "{before} descriptors became {after}");
}

#[test]
fn listings_continue_where_they_stopped_while_entries_come_and_go() {
    let native = Native::make();
    for n in 0..500 {
        std::fs::write(native.path().join(format!("stays-{n}")), "").unwrap();
        std::fs::write(native.path().join(format!("goes-{n}")), "").unwrap();
    }
    let (mut offset, mut seen) = (0, Vec::new());
    loop {
        let before = seen.len();
        let mut left = 7;
        native
            .tree
            .read_directory(TOP, offset, &mut |item| {
                seen.push(String::from_utf8(item.name.clone()).unwrap());
                offset = item.next_offset;
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        if seen.len() == before {
            break;
        }
        let _ = std::fs::remove_file(native.path().join(format!("goes-{}", seen.len() / 7)));
    }
    let mut stays: Vec<_> = seen.iter().filter(|name| name.starts_with("stays-")).collect();
    assert_eq!(stays.len(), 500);
    stays.sort();
    stays.dedup();
    assert_eq!(stays.len(), 500);
}

#[test]
fn attributes_and_extended_attributes_are_those_of_the_disk() {
    let native = Native::make();
    let file = native.make_file(TOP, "a");
    let size = SetAttributes { size: Some(100), mode: Some(0o640), ..SetAttributes::default() };
    let changed = native.tree.set_attributes(file.ino, size).unwrap();
    assert_eq!((changed.size, changed.mode), (100, 0o640));
    let about = std::fs::metadata(native.path().join("a")).unwrap();
    assert_eq!((about.len(), about.permissions().mode() & 0o7777), (100, 0o640));
    let long = vec![b'x'; 3000];
    let set =
        SetXattr { name: b"user.long", value: &long, mode: SetMode::Create, kill_set_gid: false };
    native.tree.set_xattr(file.ino, set).unwrap();
    assert!(matches!(native.tree.set_xattr(file.ino, set), Err(FsError::Exists)));
    assert_eq!(native.tree.xattr(file.ino, b"user.long").unwrap(), long);
    assert_eq!(native.tree.list_xattrs(file.ino).unwrap(), b"user.long\0");
    native.tree.remove_xattr(file.ino, b"user.long").unwrap();
    assert!(matches!(native.tree.xattr(file.ino, b"user.long"), Err(FsError::NoAttribute)));
}

#[test]
fn a_write_at_the_end_goes_to_where_another_program_has_moved_it() {
    let native = Native::make();
    let file = native.make_file(TOP, "log");
    native.tree.open_file(file.ino, BOTH, own()).unwrap();
    native.tree.append(file.ino, b"one ").unwrap();
    std::fs::write(native.path().join("log"), "natively ").unwrap();
    native.tree.append(file.ino, b"two").unwrap();
    assert_eq!(std::fs::read(native.path().join("log")).unwrap(), b"natively two");
    native.tree.close_file(file.ino, BOTH).unwrap();
}

#[test]
fn what_is_made_belongs_to_the_caller_and_follows_umask_and_set_gid() {
    if !is_root() {
        // Only root's daemon serves others.
        return;
    }
    let native = Native::make();
    std::fs::set_permissions(native.path(), PermissionsExt::from_mode(0o2755)).unwrap();
    std::os::unix::fs::chown(native.path(), None, Some(54321)).unwrap();
    std::fs::set_permissions(native.path(), PermissionsExt::from_mode(0o2755)).unwrap();
    let caller = Caller { uid: 12345, gid: 12346 };
    let made = |name: &str, kind: Kind| {
        let new = New { umask: 0o027, ..new(kind, 0o777) };
        native.tree.create(TOP, name.as_bytes(), new, caller).unwrap()
    };
    let file = made("file", Kind::File);
    assert_eq!((file.uid, file.gid, file.mode), (12345, 54321, 0o750));
    let folder = made("folder", Kind::Directory);
    assert_eq!((folder.uid, folder.gid, folder.mode), (12345, 54321, 0o2750));
    let inside = native.tree.create(folder.ino, b"x", new(Kind::Fifo, 0o600), caller).unwrap();
    assert_eq!((inside.uid, inside.gid), (12345, 54321));
    // The thread is itself again.
    std::fs::write(native.path().join("own"), "").unwrap();
    let own = std::fs::metadata(native.path().join("own")).unwrap();
    assert_eq!(own.uid(), 0);
    assert!(Path::new("/proc/self/fd").exists());
}

#[test]
fn a_file_whose_mode_forbids_it_can_be_used_by_whoever_made_it() {
    let native = Native::make();
    let file = native.tree.create(TOP, b"closed", new(Kind::File, 0), own()).unwrap();
    native.tree.open_file(file.ino, BOTH, own()).unwrap();
    native.tree.write(file.ino, 0, b"abc").unwrap();
    native.tree.close_file(file.ino, BOTH).unwrap();
    assert_eq!(native.tree.attributes(file.ino).unwrap().size, 3);
}

#[test]
fn a_write_by_an_ordinary_user_takes_set_id_bits_away() {
    let native = Native::make();
    let file = native.make_file(TOP, "program");
    let mode = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    native.tree.set_attributes(file.ino, mode).unwrap();
    native.tree.open_file(file.ino, BOTH, own()).unwrap();
    native.tree.write_unprivileged(file.ino, 0, b"x").unwrap();
    assert_eq!(native.tree.attributes(file.ino).unwrap().mode, 0o755);
    native.tree.close_file(file.ino, BOTH).unwrap();
}
