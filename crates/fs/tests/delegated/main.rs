//! Directories that are delegated to the node that made them: it changes what is in them without a call, and everybody who looks sees
//! what it has done.

mod changes;
mod losses;
mod random;
mod site;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::{FilesetId, NodeId};
use forebay_fs::locks::{Kind, Range, Sort};
use forebay_fs::quota::{LimitChange, QuotaChange, Subject};
use forebay_fs::{FsError, LockRequest, Replace, SetAttributes, SetMode, SetXattr};
use site::{Site, own_directory, put, size};
use support::{READ, READ_WRITE, ROOT, Shorthand as _, WRITE, Weather, directory};

pub(crate) const ONE: NodeId = NodeId(1);
pub(crate) const TWO: NodeId = NodeId(2);
pub(crate) const THREE: NodeId = NodeId(3);
pub(crate) const DATA: FilesetId = FilesetId(1);

/// A default access control list in the encoding of Linux.
fn default_list() -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permission, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 6, 1000),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permission.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

#[test]
fn files_in_a_directory_of_ones_own_take_no_call_and_everybody_sees_them() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let (calls, ()) = site.calls(|| {
        for number in 0..100 {
            let name = format!("file-{number}");
            assert_eq!(size(&two.fs, own, &name), None);
            let ino = put(&two, own, &name, &[1; 100]);
            assert_eq!(size(&two.fs, own, &name), Some(100));
            assert_eq!(two.fs.getattr(ino).unwrap().size, 100);
            if number % 2 == 0 {
                two.fs.unlink(own, name.as_bytes()).unwrap();
                assert_eq!(size(&two.fs, own, &name), None);
            }
        }
    });
    assert_eq!(calls, 0);
    assert_eq!(two.fs.getattr(own).unwrap().size, 51);
    let mut expected: Vec<String> = (0..50).map(|half| format!("file-{}", half * 2 + 1)).collect();
    expected.push("first".to_owned());
    expected.sort();
    for user in [&three, &one, &two] {
        let found = user.fs.find(user.fs.fileset("data"), "own").unwrap();
        assert_eq!(found, own);
        let mut names = user.fs.names(own);
        names.sort();
        assert_eq!(names, expected);
        assert_eq!(size(&user.fs, own, "file-1"), Some(100));
        assert_eq!(size(&user.fs, own, "file-2"), None);
        let ino = user.fs.find(own, "file-3").unwrap();
        assert_eq!(user.contents(ino), [1; 100]);
    }
    // What was made and removed in between has left nothing.
    one.fs.commit().unwrap();
    assert_eq!(site.objects_on(TWO), 51);
    // The directory is everybody's now.
    let (calls, _) = site.calls(|| put(&two, own, "late", b"late"));
    assert!(calls > 0);
    assert_eq!(size(&three.fs, own, "late"), Some(4));
}

#[test]
fn whatever_else_a_node_asks_comes_after_what_it_did_by_itself() {
    let site = Site::new();
    let (_one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let data = two.fs.fileset("data");
    put(&two, own, "old", b"old");
    two.fs.rename(own, b"old", own, b"new", Replace::Allowed).unwrap();
    assert_eq!(size(&two.fs, own, "old"), None);
    put(&two, own, "old", b"another");
    let linked = put(&two, own, "linked", b"linked");
    two.fs.link(linked, data, b"link").unwrap();
    two.fs.unlink(own, b"linked").unwrap();
    let below = two.fs.create(own, b"below", directory(0o755), ROOT).unwrap().ino;
    put(&two, below, "file", b"below");
    assert!(matches!(two.fs.remove_directory(own, b"below"), Err(FsError::NotEmpty)));
    two.fs.unlink(below, b"file").unwrap();
    two.fs.remove_directory(own, b"below").unwrap();
    let open = two.create_file(own, "open", READ_WRITE).unwrap();
    open.write(0, b"bytes");
    two.fs.unlink(own, b"open").unwrap();
    assert_eq!(open.contents(), b"bytes");
    assert_eq!(two.fs.getattr(open.ino).unwrap().nlink, 0);
    open.close();
    let found = three.fs.find(three.fs.fileset("data"), "own").unwrap();
    let mut names = three.fs.names(found);
    names.sort();
    assert_eq!(names, ["first", "new", "old"]);
    assert_eq!(size(&three.fs, found, "old"), Some(7));
    assert_eq!(size(&three.fs, three.fs.fileset("data"), "link"), Some(6));
}

#[test]
fn what_others_wait_for_gets_through_where_no_other_request_does() {
    let site = Site::new();
    let (_one, two, three) = site.three();
    let own = own_directory(&two, "own");
    let data = two.fs.fileset("data");
    // One is open by what the owner has granted, the other one is locked.
    let [granted, locked] = ["granted", "locked"].map(|name| put(&two, data, name, b"bytes"));
    let handles = [&two, &three].map(|user| user.open(locked, READ_WRITE));
    let range = Range { start: 0, end: 9 };
    let lock = LockRequest { ino: locked, sort: Sort::Fcntl, owner: 1, pid: 77, range };
    two.fs.lock(lock, Kind::Write, None).unwrap();
    assert!(matches!(three.fs.lock(lock, Kind::Write, None), Err(FsError::Locked)));
    assert_eq!(three.fs.find(data, "granted"), Some(granted));
    two.fs.find(data, "granted").unwrap();
    let (calls, open) = site.calls(|| two.open(granted, READ));
    assert_eq!(calls, 0);
    put(&two, own, "unreported", b"bytes");
    *site.nodes.busy.lock() = Some(TWO);
    let found = three.fs.find(data, "own").unwrap();
    assert_eq!(size(&three.fs, found, "unreported"), Some(5));
    two.fs.unlock(lock).unwrap();
    three.fs.lock(lock, Kind::Write, None).unwrap();
    three
        .fs
        .set_attributes(granted, SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
        .unwrap();
    *site.nodes.busy.lock() = None;
    open.close();
    handles.into_iter().for_each(|handle| handle.close());
}

#[test]
fn a_recall_gets_through_that_finds_a_file_closed_while_it_tells_the_owner_of_it() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let data = two.fs.fileset("data");
    own_directory(&two, "own");
    let granted = put(&two, data, "granted", b"bytes");
    assert_eq!(three.fs.find(data, "granted"), Some(granted));
    two.fs.find(data, "granted").unwrap();
    let (calls, open) = site.calls(|| two.open(granted, READ));
    assert_eq!(calls, 0, "it is open by a grant");
    two.fs.report_all().unwrap();
    *site.nodes.busy.lock() = Some(TWO);
    std::mem::forget(open);
    let fs = Arc::clone(&two.fs);
    let close = move || {
        let left = fs.let_go_of(granted);
        fs.close_left(granted, READ, left).unwrap();
    };
    *site.nodes.meanwhile.lock() = Some(Box::new(close));
    three
        .fs
        .set_attributes(granted, SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
        .unwrap();
    assert!(site.nodes.meanwhile.lock().is_none());
    *site.nodes.busy.lock() = None;
    assert!(!one.fs.is_open(granted), "the owner knows of the close");
}

#[test]
fn a_report_without_an_answer_is_repeated_and_carried_out_once() {
    let site = Site::new();
    let (one, two, _three) = site.three();
    let own = own_directory(&two, "own");
    *site.nodes.weather.lock() = Weather { lost: 2, delay_us: 0 };
    let mut made = Vec::new();
    for number in 0..200 {
        let name = format!("{number}");
        if number % 3 == 0 {
            let handle = two.create_file(own, &name, READ_WRITE);
            let Ok(handle) = handle else { continue };
            handle.write(0, name.as_bytes());
            let left = two.fs.let_go_of(handle.ino);
            let _ = two.fs.close_left(handle.ino, READ_WRITE, left);
            std::mem::forget(handle);
            made.push(name);
        }
        // Often without an answer.
        let _ = two.fs.report_all();
    }
    *site.nodes.weather.lock() = Weather::default();
    two.fs.report_all().unwrap();
    let found = one.fs.find(one.fs.fileset("data"), "own").unwrap();
    for name in &made {
        assert_eq!(size(&one.fs, found, name), Some(name.len() as u64), "{name}");
    }
    // A report that comes late changes nothing.
    let own = own_directory(&two, "second");
    put(&two, own, "file", b"first");
    *site.nodes.late.lock() = Some(TWO);
    assert!(two.fs.report_all().is_err());
    *site.nodes.late.lock() = None;
    two.fs.report_all().unwrap();
    two.fs.unlink(own, b"file").unwrap();
    put(&two, own, "file", b"second");
    two.fs.report_all().unwrap();
    site.nodes.deliver();
    let found = one.fs.find(one.fs.fileset("data"), "second").unwrap();
    assert_eq!(size(&one.fs, found, "file"), Some(6));
}

#[test]
fn a_fileset_moves_with_everything_that_was_done_in_it() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let own = own_directory(&two, "own");
    put(&two, own, "before", b"before");
    site.hand_over(&[&one, &two, &three], 10);
    put(&two, own, "after", b"after");
    for user in [&one, &two, &three] {
        let own = user.fs.find(user.fs.fileset("data"), "own").unwrap();
        let mut names = user.fs.names(own);
        names.sort();
        assert_eq!(names, ["after", "before", "first"]);
    }
}

#[test]
fn where_more_than_the_directory_decides_the_owner_is_asked() {
    let site = Site::new();
    let (one, two, _three) = site.three();
    // What files inherit.
    let own = own_directory(&two, "inherits");
    let list = default_list();
    let set = SetXattr {
        name: b"system.posix_acl_default",
        value: &list,
        mode: SetMode::Any,
        kill_set_gid: false,
    };
    two.fs.set_xattr(own, set).unwrap();
    let (calls, ino) = site.calls(|| put(&two, own, "file", b"file"));
    assert!(calls > 0);
    assert!(two.fs.xattr(ino, b"system.posix_acl_access").is_ok());
    // Quotas.
    let own = own_directory(&two, "limited");
    put(&two, own, "admitted", b"before there was a quota");
    let change = QuotaChange { hard_inodes: LimitChange::To(1), ..QuotaChange::default() };
    one.fs.set_quota("data", Subject::User(0), &change).unwrap();
    assert!(matches!(two.create_file(own, "refused", WRITE), Err(FsError::QuotaExceeded)));
    let found = one.fs.find(one.fs.fileset("data"), "limited").unwrap();
    assert_eq!(size(&one.fs, found, "admitted"), Some(24), "what was answered is not refused");
    one.fs.remove_quota("data", Subject::User(0)).unwrap();
}

#[test]
fn nobody_sees_a_directory_without_what_its_maker_has_done_in_it() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let data = one.fs.fileset("data");
    own_directory(&two, "warm");
    for round in 0..60 {
        let name = format!("round-{round}");
        let own = two.fs.create(data, name.as_bytes(), directory(0o755), ROOT).unwrap().ino;
        let done = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..40_u64 {
                    put(&two, own, &format!("{number}"), b"x");
                    done.store(number + 1, Ordering::SeqCst);
                }
            });
            for user in [&one, &three] {
                let (name, done) = (&name, &done);
                scope.spawn(move || {
                    while done.load(Ordering::SeqCst) < round % 7 {
                        std::hint::spin_loop();
                    }
                    let before = done.load(Ordering::SeqCst);
                    let own = user.fs.lookup(data, name.as_bytes()).unwrap().ino;
                    let after = user.fs.names(own).len() as u64;
                    assert!(after >= before, "{after} names, {before} were made before");
                    let again = done.load(Ordering::SeqCst);
                    for number in 0..again {
                        assert_eq!(size(&user.fs, own, &format!("{number}")), Some(1), "{number}");
                    }
                });
            }
        });
    }
}

#[test]
fn objects_of_files_that_come_and_go_get_no_names() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let objects = two.fs.objects();
    objects.start();
    std::thread::scope(|scope| {
        scope.spawn(|| objects.run_supply(64));
        let own = own_directory(&two, "own");
        for _ in 0..20_000 {
            if objects.spare_count() >= 32 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        two.fs.sync_directory(own).unwrap();
        let before = site.objects_on(TWO);
        for number in 0..10 {
            let name = format!("{number}");
            let ino = put(&two, own, &name, b"for a moment");
            assert_eq!(two.contents(ino), b"for a moment");
            two.fs.unlink(own, name.as_bytes()).unwrap();
            assert_eq!(site.objects_on(TWO), before);
        }
        put(&two, own, "stays", b"for longer");
        two.fs.sync_directory(own).unwrap();
        assert_eq!(site.objects_on(TWO), before + 1);
        for user in [&three, &one] {
            let own = user.fs.find(user.fs.fileset("data"), "own").unwrap();
            let ino = user.fs.find(own, "stays").unwrap();
            assert_eq!(user.contents(ino), b"for longer");
        }
        objects.stop();
    });
}
