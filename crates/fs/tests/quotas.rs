//! Quotas: what is refused and when, who is charged, and what is left after a crash.

mod support;

use std::sync::Arc;

use forebay_base::{ByteSize, FailPoints, FilesetId, Ino};
use forebay_disk::Allocate;
use forebay_fs::quota::{LimitChange, QuotaChange, QuotaStatus, Subject};
use forebay_fs::record::{Placement, Usage};
use forebay_fs::{Caller, FsError, NewFileset, Result, SetAttributes, fsck, key};
use forebay_store::Store as _;
use support::{READ, READ_WRITE, ROOT, Rig, Shorthand as _, USER, User, WRITE, file};

const KIB: u64 = 1024;
const ME: Subject = Subject::User(USER.uid);

fn space(hard: u64) -> QuotaChange {
    QuotaChange { hard_bytes: LimitChange::To(hard), ..QuotaChange::default() }
}

fn files(hard: u64) -> QuotaChange {
    QuotaChange { hard_inodes: LimitChange::To(hard), ..QuotaChange::default() }
}

fn set(fs: &User, subject: Subject, change: &QuotaChange) {
    fs.at_owner().set_quota("data", subject, change).unwrap();
}

fn quota(fs: &User, subject: Subject) -> QuotaStatus {
    let all = fs.at_owner().quotas(Some("data")).unwrap();
    all.into_iter().find(|quota| quota.subject == subject).expect("the quota is set")
}

fn held(fs: &User, subject: Subject) -> (u64, u64) {
    let Usage { inodes, bytes } = quota(fs, subject).usage;
    (inodes, bytes)
}

fn make(fs: &User, name: &str) -> Ino {
    try_make(fs, name).unwrap()
}

fn try_make(fs: &User, name: &str) -> Result<Ino> {
    let made = fs.create(fs.fileset("data"), name.as_bytes(), file(0o644), USER)?;
    fs.forget(made.ino, 1);
    Ok(made.ino)
}

fn bytes(length: u64) -> Vec<u8> {
    vec![7; usize::try_from(length).unwrap()]
}

fn is_refused<T>(done: &Result<T>) -> bool {
    matches!(done, Err(FsError::QuotaExceeded))
}

fn resize(fs: &User, ino: Ino, size: u64) -> Result<()> {
    fs.set_attributes(ino, SetAttributes { size: Some(size), ..Default::default() }).map(drop)
}

fn chown(fs: &User, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    fs.set_attributes(ino, SetAttributes { uid, gid, ..Default::default() }).map(drop)
}

#[test]
fn names_beyond_a_limit_are_refused_at_once_and_a_removal_gives_them_back_before_the_commit() {
    support::on_both_ways(|rig| {
        let fs = rig.open();
        set(&fs, ME, &files(2));
        let data = fs.fileset("data");
        make(&fs, "a");
        make(&fs, "b");
        assert!(is_refused(&try_make(&fs, "c")));
        // Another user, and another fileset, have their own.
        fs.make_file(data, "of-root");
        fs.create(fs.fileset("work"), b"elsewhere", file(0o644), USER).unwrap();
        fs.unlink(data, b"a").unwrap();
        make(&fs, "c");
        assert_eq!(held(&fs, ME), (2, 0));
        // A file without a name counts for nobody until it gets one.
        let unnamed = fs.create_unnamed(data, file(0o600), USER).unwrap().ino;
        assert!(is_refused(&fs.link(unnamed, data, b"d")));
        fs.unlink(data, b"b").unwrap();
        fs.link(unnamed, data, b"d").unwrap();
        fs.link(unnamed, data, b"e").unwrap();
        fs.forget(unnamed, 3);
        assert_eq!(held(&fs, ME), (2, 0), "a second name is not a second file");
        assert!(is_refused(&try_make(&fs, "f")));
        rig.close(fs);
    });
}

#[test]
fn growth_beyond_a_limit_is_refused_at_once_on_the_served_path() {
    support::on_both_ways(|rig| {
        // On every way: so little is left that files are served.
        let fs = rig.open();
        set(&fs, Subject::Fileset, &space(100 * KIB));
        let ino = make(&fs, "file");
        let handle = fs.open(ino, READ_WRITE);
        assert!(!handle.is_direct() && !handle.is_at_home(), "each write is to be seen");
        handle.write(0, &bytes(90 * KIB));
        assert!(is_refused(&handle.try_write(90 * KIB, &bytes(11 * KIB))));
        handle.write(0, &bytes(100 * KIB));
        assert!(is_refused(&fs.append(ino, 100 * KIB, &bytes(1))));
        assert!(is_refused(&fs.allocate(ino, Allocate::Extend, 0, 101 * KIB)));
        assert!(is_refused(&fs.allocate(ino, Allocate::KeepSize, 0, 101 * KIB)));
        assert!(is_refused(&resize(&fs, ino, 101 * KIB)));
        resize(&fs, ino, 10 * KIB).unwrap();
        let other = make(&fs, "other");
        let target = fs.open(other, WRITE);
        assert_eq!(fs.copy_range((ino, 0), (other, 0), 10 * KIB).unwrap(), 10 * KIB);
        assert!(is_refused(&fs.copy_range((ino, 0), (other, 90 * KIB), 10 * KIB)));
        target.close();
        handle.close();
        assert_eq!(held(&fs, Subject::Fileset).1, 20 * KIB);
        // What was refused is not held back.
        resize(&fs, ino, 90 * KIB).unwrap();
        rig.close(fs);
    });
}

#[test]
fn a_change_of_owner_or_group_moves_what_is_held() {
    support::on_both_ways(|rig| {
        let fs = rig.open();
        let group = Subject::Group(77);
        set(&fs, ME, &space(1 << 40));
        set(&fs, Subject::User(5), &space(20 * KIB));
        set(&fs, group, &files(1));
        let (ino, large) = (make(&fs, "file"), make(&fs, "large"));
        fs.write_file(ino, 0, &bytes(15 * KIB));
        fs.write_file(large, 0, &bytes(6 * KIB));
        assert_eq!(held(&fs, ME), (2, 21 * KIB));
        chown(&fs, ino, Some(5), Some(77)).unwrap();
        assert_eq!(held(&fs, ME), (1, 6 * KIB));
        assert_eq!(held(&fs, Subject::User(5)), (1, 15 * KIB));
        assert_eq!(held(&fs, group), (1, 15 * KIB));
        assert!(is_refused(&chown(&fs, large, Some(5), None)), "too large for user 5");
        assert!(is_refused(&chown(&fs, large, None, Some(77))), "too many for the group");
        assert_eq!(fs.attributes(large).unwrap().uid, USER.uid);
        // Who grows the file makes no difference: its owner is charged.
        let handle = fs.open_as(ino, WRITE, ROOT).unwrap();
        assert!(is_refused(&handle.try_write(15 * KIB, &bytes(6 * KIB))));
        handle.close();
        fs.unlink(fs.fileset("data"), b"file").unwrap();
        chown(&fs, large, Some(5), Some(77)).unwrap();
        assert_eq!(held(&fs, Subject::User(5)), (1, 6 * KIB));
        rig.close(fs);
    });
}

#[test]
fn a_limit_below_what_is_held_is_accepted_and_refuses_growth() {
    support::on_both_ways(|rig| {
        let fs = rig.open();
        let ino = make(&fs, "file");
        fs.write_file(ino, 0, &bytes(50 * KIB));
        set(&fs, ME, &space(10 * KIB));
        set(&fs, ME, &files(0));
        assert_eq!(held(&fs, ME), (1, 50 * KIB));
        assert!(is_refused(&try_make(&fs, "more")));
        let handle = fs.open(ino, WRITE);
        assert!(is_refused(&handle.try_write(50 * KIB, &bytes(1))));
        // What is there can be read, written and removed.
        handle.write(0, &bytes(50 * KIB));
        handle.close();
        assert_eq!(fs.contents(ino).len() as u64, 50 * KIB);
        fs.unlink(fs.fileset("data"), b"file").unwrap();
        rig.close(fs);
    });
}

#[test]
fn an_overrun_on_the_direct_path_is_noticed_at_the_commit_and_ends_with_the_handle() {
    let rig = Rig::in_directory();
    rig.settings_mut(|settings| settings.quota_margin = ByteSize::kib(10));
    let fs = rig.open();
    set(&fs, ME, &space(30 * KIB));
    let (ino, other) = (make(&fs, "file"), make(&fs, "other"));
    let handle = fs.open(ino, WRITE);
    assert!(handle.is_direct(), "there is room");
    handle.write(0, &bytes(40 * KIB));
    // The daemon has seen nothing of that yet.
    assert_eq!(held(&fs, ME), (2, 0));
    fs.commit().unwrap();
    assert_eq!(held(&fs, ME), (2, 40 * KIB));
    assert!(is_refused(&fs.open_as(ino, WRITE, ROOT).map(drop)), "that would write unseen, too");
    let served = fs.open(other, WRITE);
    assert!(!served.is_direct());
    assert!(is_refused(&served.try_write(0, &bytes(1))));
    served.close();
    fs.open(ino, READ).close();
    handle.close();
    // From the close on it is served like any other.
    let handle = fs.open(ino, WRITE);
    assert!(!handle.is_direct());
    assert!(is_refused(&handle.try_write(40 * KIB, &bytes(1))));
    handle.close();
    fs.overwrite(ino, b"short");
    assert_eq!(held(&fs, ME), (2, 5));
    rig.close(fs);
}

#[test]
fn a_soft_limit_without_grace_is_a_hard_one_and_grace_shows_what_is_left() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let soft = |limit, grace| QuotaChange {
        soft_bytes: LimitChange::To(limit),
        grace_seconds: Some(grace),
        ..QuotaChange::default()
    };
    set(&fs, ME, &soft(10 * KIB, 0));
    let ino = make(&fs, "file");
    let handle = fs.open(ino, WRITE);
    handle.write(0, &bytes(10 * KIB));
    assert!(is_refused(&handle.try_write(10 * KIB, &bytes(1))));
    set(&fs, ME, &soft(10 * KIB, 1000));
    handle.write(10 * KIB, &bytes(KIB));
    assert_eq!(quota(&fs, ME).bytes_grace_left, Some(1000));
    assert_eq!(quota(&fs, ME).inodes_grace_left, None);
    handle.close();
    resize(&fs, ino, KIB).unwrap();
    fs.commit().unwrap();
    assert_eq!(quota(&fs, ME).bytes_grace_left, None);
    rig.close(fs);
}

#[test]
fn what_is_held_and_the_limits_survive_crashes() {
    for machine in [false, true] {
        let rig = Rig::in_memory();
        let fs = rig.open();
        set(&fs, ME, &space(100 * KIB));
        let ino = make(&fs, "kept");
        fs.write_file(ino, 0, &bytes(60 * KIB));
        fs.sync_file(ino, forebay_disk::Sync::All).unwrap();
        let lost = make(&fs, "lost");
        fs.write_file(lost, 0, &bytes(30 * KIB));
        assert_eq!(held(&fs, ME), (2, 90 * KIB));
        if machine {
            rig.crash_machine(fs, 5);
        } else {
            rig.crash_process(fs);
        }
        let fs = rig.open();
        assert_eq!(held(&fs, ME), (1, 60 * KIB), "that of the last commit, with its files");
        fs.sweep().unwrap();
        fs.commit().unwrap();
        rig.assert_clean();
        let handle = fs.open(ino, WRITE);
        assert!(is_refused(&handle.try_write(60 * KIB, &bytes(41 * KIB))));
        handle.close();
        rig.close(fs);
    }
}

#[test]
fn the_first_quota_of_an_owner_counts_what_is_there_and_the_last_one_ends_that() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = make(&fs, "committed");
    fs.write_file(ino, 0, &bytes(5 * KIB));
    fs.commit().unwrap();
    fs.write_file(make(&fs, "not-committed"), 0, &bytes(KIB));
    let holdings = |fs: &User| {
        fs.commit().unwrap();
        let (from, to) = key::prefix_range(&[key::HOLDING]);
        rig.store_of(FilesetId(1)).scan(&from, &to, 100).unwrap().len()
    };
    set(&fs, Subject::Fileset, &space(1 << 40));
    assert_eq!(holdings(&fs), 0, "the fileset as a whole is counted anyway");
    set(&fs, ME, &space(1 << 40));
    assert_eq!(held(&fs, ME), (2, 6 * KIB));
    assert_eq!(held(&fs, Subject::Fileset), (3, 6 * KIB), "with its top directory");
    assert_eq!(holdings(&fs), 4, "user and group, of root and of another one");
    fs.remove_quota("data", ME).unwrap();
    assert_eq!(holdings(&fs), 0);
    let again = fs.remove_quota("data", ME).unwrap_err().to_string();
    assert!(again.contains("user 1000 has no quota of its own in fileset \"data\""), "{again}");
    rig.close(fs);
}

#[test]
fn a_default_quota_limits_each_user_without_one_and_survives_crashes() {
    const YOU: u32 = 2000;
    let rig = Rig::in_memory();
    let fs = rig.open();
    let mine = make(&fs, "mine");
    let yours = make(&fs, "yours");
    chown(&fs, yours, Some(YOU), None).unwrap();
    set(&fs, Subject::EachUser, &space(10 * KIB));
    assert!(is_refused(&resize(&fs, mine, 11 * KIB)));
    resize(&fs, mine, 9 * KIB).unwrap();
    resize(&fs, yours, 10 * KIB).unwrap();
    assert_eq!((held(&fs, ME), quota(&fs, ME).by_default), ((1, 9 * KIB), true));
    // A quota of one's own takes the place of the default; it begins without limits.
    set(&fs, ME, &files(1));
    resize(&fs, mine, 20 * KIB).unwrap();
    assert!(is_refused(&try_make(&fs, "more")));
    fs.commit().unwrap();
    rig.crash_process(fs);

    let fs = rig.open();
    assert_eq!((held(&fs, ME), quota(&fs, ME).by_default), ((1, 20 * KIB), false));
    let yours = fs.lookup(fs.fileset("data"), b"yours").unwrap().ino;
    assert!(is_refused(&resize(&fs, yours, 11 * KIB)));
    // Without it the default is back; root was never limited.
    fs.remove_quota("data", ME).unwrap();
    assert!(is_refused(&resize(
        &fs,
        fs.lookup(fs.fileset("data"), b"mine").unwrap().ino,
        21 * KIB
    )));
    chown(&fs, yours, Some(0), None).unwrap();
    resize(&fs, yours, 50 * KIB).unwrap();
    fs.remove_quota("data", Subject::EachUser).unwrap();
    assert!(fs.quotas(Some("data")).unwrap().is_empty());
    rig.close(fs);
}

#[test]
fn a_quota_whose_setting_was_interrupted_is_set_or_not() {
    for (point, is_set) in [("quota.counted", false), ("quota.set", false), ("commit.done", true)] {
        let rig = Rig::in_memory();
        let fs = rig.open();
        fs.write_file(make(&fs, "file"), 0, &bytes(KIB));
        rig.close(fs);
        let points = FailPoints::cut_at(point, 0);
        let fs = rig.open_armed(&points).unwrap();
        fs.set_quota("data", ME, &space(10 * KIB)).unwrap_err();
        assert!(points.is_cut(), "{point}");
        rig.crash_process(fs);
        let fs = rig.open();
        assert_eq!(fs.quotas(Some("data")).unwrap().len(), usize::from(is_set), "{point}");
        rig.close(fs);
    }
}

#[test]
fn fsck_finds_and_repairs_what_owners_hold() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    set(&fs, ME, &space(100 * KIB));
    fs.write_file(make(&fs, "file"), 0, &bytes(9 * KIB));
    rig.close(fs);
    let store = rig.store_of(FilesetId(1));
    let changes = [
        (key::holding(ME), None),
        (key::holding(Subject::User(8)), store.get(&key::holding(ME)).unwrap()),
        (key::quota(Subject::Group(3)), Some(vec![1, 200])),
    ];
    let batch = forebay_store::Batch { requires: Vec::new(), changes: changes.into() };
    store.commit(&batch).unwrap();
    let report = rig.fsck(fsck::Repair::Found, false);
    assert_eq!(report.outcome(), fsck::Outcome::Repaired, "{:#?}", report.findings);
    rig.assert_clean();
    let fs = rig.open();
    assert_eq!(held(&fs, ME), (1, 9 * KIB));
    rig.close(fs);
}

#[test]
fn space_of_a_fileset_is_what_its_quota_leaves() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let all = fs.statistics_at(data).unwrap().capacity.total_bytes;
    set(
        &fs,
        Subject::Fileset,
        &QuotaChange { hard_inodes: LimitChange::To(9), ..space(100 * KIB) },
    );
    fs.write_file(make(&fs, "file"), 0, &bytes(30 * KIB));
    let found = fs.statistics_at(data).unwrap();
    assert_eq!(found.capacity.total_bytes, 100 * KIB);
    assert_eq!((found.capacity.free_bytes, found.capacity.available_bytes), (70 * KIB, 70 * KIB));
    assert_eq!((found.inodes, found.capacity.free_objects), (2, 7));
    assert_eq!(fs.statistics_at(fs.fileset("work")).unwrap().capacity.total_bytes, all);
    rig.close(fs);
}

#[test]
fn quotas_that_make_no_sense_are_refused_with_the_reason() {
    let rig = Rig::in_directory();
    let fs = rig.open();
    let refused = |fileset: &str, change: &QuotaChange| {
        fs.set_quota(fileset, Subject::Fileset, change).unwrap_err().to_string()
    };
    let above = QuotaChange { soft_bytes: LimitChange::To(11), ..space(10) };
    assert!(refused("data", &above).contains("above the hard limit"));
    assert!(refused("data", &QuotaChange::default()).contains("limit nothing"));
    assert!(refused("nowhere", &space(10)).contains("there is no fileset \"nowhere\""));
    let native = NewFileset {
        name: "native".to_owned(),
        durability: forebay_fs::record::Durability::Scratch,
        placement: Placement::Native,
        disk: None,
        pool: None,
        mode: 0o755,
    };
    fs.add_fileset(&native).unwrap();
    assert!(refused("native", &space(10)).contains("its disk's own file system"));
    // Limits that are not named stay.
    fs.set_quota("data", Subject::Fileset, &space(10 * KIB)).unwrap();
    fs.set_quota("data", Subject::Fileset, &files(5)).unwrap();
    let clear = QuotaChange { hard_inodes: LimitChange::Clear, ..QuotaChange::default() };
    fs.set_quota("data", Subject::Fileset, &clear).unwrap();
    let found = quota(&fs, Subject::Fileset).quota;
    assert_eq!((found.bytes.hard, found.inodes.hard), (Some(10 * KIB), None));
    rig.close(fs);
}

#[test]
fn writers_at_the_same_time_never_exceed_a_limit_together() {
    let rig = Rig::in_memory();
    let fs = Arc::new(rig.open());
    set(&fs, Subject::Fileset, &space(64 * KIB));
    let data = fs.fileset("data");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                for number in 0..30 {
                    let name = format!("{writer}-{number}");
                    let made = fs.create(data, name.as_bytes(), file(0o644), Caller::default());
                    let handle = fs.open(made.unwrap().ino, WRITE);
                    let _ = handle.try_write(0, &bytes(3 * KIB));
                    handle.close();
                }
            });
        }
    });
    let (_, bytes) = held(&fs, Subject::Fileset);
    assert_eq!(bytes, 63 * KIB, "as many whole writes as fit");
    rig.close(Arc::into_inner(fs).unwrap());
}
