//! Requests and answers as bytes: every kind comes back as it was, and no bytes whatever do harm.

use std::sync::Arc;

use forebay_base::channel::{CallError, Message, Service as _};
use forebay_base::{ClientId, DiskId, Epoch, FilesetId, Ino, NodeId, ObjectId, Timestamp};
use forebay_cluster::grants::GrantNumber;
use forebay_disk::{Allocate, Capacity, ObjectAttributes, Seek, Sync};

use super::changes::{Change, ChangeAnswer, Outcome};
use super::disk_orders::{DiskAnswer, DiskOrder, HelpOrder, HelpReport, TaskChange};
use super::wire::{
    Answer, Head, LockAnswer, LockAsked, LockFound, NewInode, Reply, Request, VERSION, Whole,
    decode, encode,
};
use crate::attributes::{Attributes, KeepName, SetAttributes, SetId, SetTime};
use crate::clients::Handles;
use crate::error::FsError;
use crate::grants::Granted;
use crate::locks::{Kind as LockKind, Range, Ticket};
use crate::native::NewFileset;
use crate::object::SeenObject;
use crate::ops::{Access, DirectoryItem, Replace, Reported, SetMode, Statistics};
use crate::partition::Caller;
use crate::record::{DiskRecord, Durability, FilesetSettings, Kind, ObjectRef, Placement, Usage};
use crate::tasks::StoredWork;

const INO: Ino = Ino(0x0003_0000_0000_0007);
const CALLER: Caller = Caller { uid: 7, gid: 8 };
const ACCESS: Access =
    Access { read: true, write: true, truncate: false, execute: false, synchronous: true };

fn settings() -> FilesetSettings {
    FilesetSettings {
        copies: 1,
        name: "data".to_owned(),
        durability: Durability::Strict,
        placement: Placement::Served,
        disk: None,
        pool: "flash".to_owned(),
    }
}

fn seen() -> SeenObject {
    let at = ObjectRef { disk: DiskId(3), id: ObjectId(77) };
    let attributes = ObjectAttributes { size: 5, ..ObjectAttributes::default() };
    SeenObject { at, attributes, is_open: true, look: 9 }
}

fn lock() -> LockAsked {
    let kind = Some(LockKind::Write);
    let range = Range { start: 1, end: u64::MAX };
    LockAsked { ino: INO, owner: 3, pid: 4, range, kind, whole: false, waits: true }
}

/// One of every kind.
fn requests() -> Vec<Request> {
    let name = || b"a name".to_vec();
    let new =
        || NewInode { kind: Kind::Symlink, mode: 0o644, umask: 2, rdev: 3, target: b"to".to_vec() };
    let set = SetAttributes {
        mode: Some(0o600),
        size: Some(u64::MAX),
        accessed: Some(SetTime::To(Timestamp::new(-1, 5))),
        modified: Some(SetTime::Now),
        set_id: SetId::KillIfWritten { gid: 5 },
        ..SetAttributes::default()
    };
    let disk = || ("disk".to_owned(), "/somewhere".to_owned());
    let new_fileset = NewFileset {
        name: "new".to_owned(),
        durability: Durability::Scratch,
        placement: Placement::Direct,
        disk: Some("disk".to_owned()),
        pool: None,
        mode: 0o755,
    };
    let fileset = FilesetId(3);
    vec![
        Request::Lookup { parent: INO, name: name() },
        Request::LookAt { ino: INO },
        Request::Create { parent: INO, name: name(), new: new(), caller: CALLER, reported: None },
        Request::CreateUnnamed { parent: INO, new: new(), caller: CALLER },
        Request::Link { ino: INO, parent: INO, name: name() },
        Request::Unlink { parent: INO, name: name(), known: vec![INO] },
        Request::RemoveDirectory { parent: INO, name: name(), known: Vec::new() },
        Request::Rename {
            from: (INO, name()),
            to: (INO, name()),
            replace: Replace::Exchange,
            whiteout: Some(CALLER),
            known: vec![INO],
        },
        Request::CheckLeaves { parent: INO, name: name() },
        Request::ReadLink { ino: INO },
        Request::OpenDirectory { ino: INO },
        Request::ReadDirectory { ino: INO, offset: 5 },
        Request::Attributes { ino: INO, seen: Some(seen()) },
        Request::SetAttributes { ino: INO, set, seen: Some(seen()) },
        Request::KillSetId { ino: INO },
        Request::Xattr { ino: INO, name: name() },
        Request::ListXattrs { ino: INO },
        Request::SetXattr {
            ino: INO,
            name: name(),
            value: vec![0; 300],
            mode: SetMode::Create,
            kill_set_gid: true,
        },
        Request::RemoveXattr { ino: INO, name: name() },
        Request::Open { ino: INO, access: ACCESS, caller: CALLER },
        Request::Register { ino: INO, access: ACCESS },
        Request::Close { ino: INO, access: ACCESS, left: Some(seen()) },
        Request::Reopen {
            fileset,
            crash: Epoch(4),
            files: vec![(INO, Handles { all: 2, writers: 1, executors: 0 })],
        },
        Request::Read { ino: INO, offset: 6, length: 7 },
        Request::Write { ino: INO, offset: Some(8), kills_set_id: true },
        Request::Allocate { ino: INO, what: Allocate::PunchHole, offset: 9, length: 10 },
        Request::Seek { ino: INO, target: Seek::Hole, offset: 11 },
        Request::CopyRange { from: (INO, 1), to: (INO, 2), length: 3 },
        Request::SyncFile { ino: INO, what: Sync::Data, seen: Some(seen()) },
        Request::SyncDirectory { ino: INO },
        Request::Lock(lock()),
        Request::AwaitLock { ino: INO, ticket: Ticket(5) },
        Request::CancelLock { ino: INO, ticket: Ticket(5) },
        Request::TestLock(lock()),
        Request::ReleaseLocks { ino: INO, owner: 6, whole: true },
        Request::Forget { fileset },
        Request::Vouch { fileset },
        Request::Statistics { ino: INO },
        Request::Usage { fileset },
        Request::Census { fileset, ticket: Some(9) },
        Request::Catalogue,
        Request::AddFileset(new_fileset),
        Request::SetFileset {
            name: "data".to_owned(),
            durability: Some(Durability::Strict),
            placement: None,
        },
        Request::RemoveFileset { name: "data".to_owned() },
        Request::AddDisk { uuid: disk().0, location: disk().1 },
        Request::Retire { fileset, name: "data".to_owned() },
        Request::Apply { fileset, settings: settings() },
        Request::Native,
        Request::Expect { fileset },
        Request::OpenAhead { fileset, epoch: Epoch(5) },
        Request::CreateFile {
            parent: INO,
            name: name(),
            new: new(),
            caller: CALLER,
            access: ACCESS,
            made: Some(seen()),
            reported: Some(reported()),
        },
        Request::Journal { fileset, term: 3, changes: changes() },
        Request::Numbers { fileset, returned: true },
        Request::Disks(DiskOrder::ChangeTask(3, TaskChange::Speed(5))),
        Request::DisksChanged,
        Request::Help(help()),
    ]
}

fn reported() -> Reported {
    Reported { ino: INO, time: Timestamp::new(5, 6) }
}

fn changes() -> Vec<(u64, Change)> {
    let (parent, name, access, caller) = (INO, b"a name".to_vec(), ACCESS, CALLER);
    let new = NewInode { kind: Kind::File, mode: 0o644, umask: 0o22, rdev: 0, target: Vec::new() };
    let (opened, reported) = (Some((access, seen())), reported());
    vec![
        (
            6,
            Change::Made {
                parent,
                name: name.clone(),
                new: new.clone(),
                caller,
                reported,
                opened: None,
            },
        ),
        (7, Change::Made { parent, name: name.clone(), new, caller, reported, opened }),
        (8, Change::Closed { ino: INO, access, left: Some(seen()) }),
        (9, Change::Removed { parent, name: name.clone(), ino: INO }),
        (10, Change::DirectoryRemoved { parent, name: name.clone(), ino: INO }),
        (
            11,
            Change::Renamed {
                directory: parent,
                old: name.clone(),
                new: name,
                known: vec![INO, parent],
                time: Timestamp::new(5, 6),
            },
        ),
        (
            12,
            Change::Set {
                ino: INO,
                set: SetAttributes { mode: Some(0o600), ..SetAttributes::default() },
                seen: Some(seen()),
                time: Timestamp::new(5, 6),
            },
        ),
    ]
}

fn help() -> HelpOrder {
    HelpOrder {
        work: StoredWork::Drain("disk".to_owned(), Some("flash".to_owned())),
        begun: Timestamp::new(5, 6),
        speed: 7,
        goes_on: true,
    }
}

fn answers() -> Vec<Answer> {
    let time = Timestamp::new(5, 6);
    let attributes = Attributes {
        ino: INO,
        kind: Kind::File,
        mode: 0o644,
        nlink: 1,
        uid: 2,
        gid: 3,
        rdev: 4,
        size: 5,
        allocated_bytes: 6,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
        cacheable: true,
        name: KeepName::Lasting,
    };
    let item =
        DirectoryItem { ino: INO, kind: Kind::Fifo, name: b"entry".to_vec(), next_offset: 9 };
    let capacity = Capacity { total_bytes: 1, free_bytes: 2, ..Capacity::default() };
    let range = Range { start: 1, end: 2 };
    let disk = DiskRecord::new(DiskId(1), "disk", "/there");
    let whole = Whole {
        uuid: "whole".to_owned(),
        filesets: vec![(FilesetId(1), settings())],
        disks: vec![disk.clone()],
    };
    vec![
        Answer::Done,
        Answer::Attributes(attributes),
        Answer::Elsewhere(INO),
        Answer::Bytes(vec![1; 200]),
        Answer::Items { items: vec![item], is_last: true },
        Answer::Opened { crash: Epoch(7), home: None },
        Answer::Reopened { crash: Epoch(3), epoch: Epoch(5) },
        Answer::Count(8),
        Answer::Vouched { word_ms: 5000, term: 2 },
        Answer::Statistics(Statistics { capacity, inodes: 9 }),
        Answer::Usage(Usage { inodes: 1, bytes: 2 }),
        Answer::Lock(LockAnswer::Waiting(Ticket(3))),
        Answer::Found(Some(LockFound { range, kind: LockKind::Read, pid: 5 })),
        Answer::Whole(whole),
        Answer::Disk(disk),
        Answer::Retired { first_ino: 1, first_object: 2 },
        Answer::Refused(FsError::Io("a reason".to_owned())),
        Answer::Refused(FsError::System(5)),
        Answer::NotMine,
        Answer::Created { attributes, crash: Epoch(7), home: Some(seen().at), uses_made: true },
        Answer::Numbers {
            first: ObjectId(9),
            first_ino: Ino(70),
            count: 256,
            disks: vec![DiskId(3)],
        },
        Answer::Journal(vec![ChangeAnswer {
            outcome: Outcome::Made { uses_object: true },
            granted: Granted { directory: Some(GrantNumber(5)), ..Granted::default() },
            directory: Some(GrantNumber(6)),
        }]),
        Answer::Journal(vec![
            ChangeAnswer::plain(Outcome::Done),
            ChangeAnswer::plain(Outcome::Refused(FsError::Stale)),
        ]),
        Answer::Disks(DiskAnswer::Counts(vec![(DiskId(3), 4)])),
        Answer::Helped(HelpReport { left: vec![(FilesetId(1), 2)], ..HelpReport::default() }),
        Answer::Census { ticket: 9, done: true },
    ]
}

/// The number of kinds of an enum, as its encoding counts them: one more than the last that decodes.
fn last_kind(encoded: &[Vec<u8>], place: usize) -> u8 {
    encoded.iter().map(|bytes| bytes[place]).max().unwrap_or(0)
}

#[test]
fn every_request_and_answer_comes_back_as_it_was() {
    let mut encoded = Vec::new();
    for request in requests() {
        let head = Head {
            epoch: Epoch(0),
            forgotten: vec![(INO, 3), (Ino(1), u64::MAX)],
            seen: GrantNumber(9),
            request,
        };
        assert_eq!(decode::<Head>(&encode(&head)).unwrap(), head);
        encoded.push(encode(&Head { epoch: Epoch(0), forgotten: Vec::new(), ..head }));
    }
    // Each kind has a number; those here are all there are, and the next one is none.
    let kinds: std::collections::BTreeSet<u8> = encoded.iter().map(|bytes| bytes[4]).collect();
    let last = last_kind(&encoded, 4);
    assert_eq!(kinds.len(), usize::from(last) + 1, "a kind of request is missing here");
    let mut beyond = vec![VERSION, 0, 0, 0, last + 1];
    beyond.extend([0; 200]);
    // One that exists would be decoded, and the rest be too much.
    assert!(!decode::<Head>(&beyond).unwrap_err().contains("too many"), "a kind is missing here");
    for answer in answers() {
        let back: Answer = decode(&encode(&answer)).unwrap();
        assert_eq!(format!("{back:?}"), format!("{answer:?}"));
    }
}

#[test]
fn heads_of_other_versions_and_broken_ones_are_refused() {
    let good = encode(&Head {
        epoch: Epoch(0),
        forgotten: Vec::new(),
        seen: GrantNumber(0),
        request: Request::Catalogue,
    });
    let mut other = good.clone();
    other[0] = VERSION + 1;
    assert!(decode::<Head>(&other).unwrap_err().contains("version"));
    let mut longer = good.clone();
    longer.push(0);
    assert!(decode::<Head>(&longer).unwrap_err().contains("too many"));
    assert!(decode::<Head>(&good[..good.len() - 1]).is_err());
    assert!(decode::<Head>(&[]).is_err());
}

/// A file system of one node, to be asked.
fn service() -> super::FilesService {
    use crate::mkfs::{self, Identity};
    use crate::reserve::Reserve;
    use crate::{Namespace, Parts, Settings};
    let clock = Arc::new(forebay_base::time::StepClock::new(1_000_000));
    let disk = forebay_disk::memory::MemoryDisk::new(1 << 30, Arc::clone(&clock) as _);
    let stores = Arc::new(forebay_store::memory::MemoryStores::default());
    let record = DiskRecord::new(DiskId(0), "one", "memory");
    let identity = Identity {
        uuid: "whole".to_owned(),
        hash_key: [7; 16],
        disks: vec![record],
        owner: (0, 0),
        scratch: Placement::Direct,
    };
    mkfs::make(&*stores, &identity, &*clock).unwrap();
    let parts = Parts {
        stores,
        disks: vec![("one".to_owned(), Arc::new(disk))],
        settings: Settings::default(),
        clock,
        fail_points: forebay_base::FailPoints::none(),
        reserve: Reserve::none(),
    };
    super::FilesService::new(Namespace::open(parts).unwrap())
}

#[test]
fn whatever_bytes_arrive_nothing_breaks() {
    let seed = forebay_base::seed::announce("cargo test -p forebay-fs --lib whatever_bytes");
    let service = service();
    let from = ClientId { node: NodeId(9), incarnation: 1 };
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut random = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    };
    let good: Vec<Vec<u8>> = requests()
        .into_iter()
        // They change the file system itself, which the following requests still need.
        .filter(|request| {
            !matches!(request, Request::Retire { .. } | Request::RemoveFileset { .. })
        })
        .map(|request| {
            encode(&Head {
                epoch: Epoch(0),
                forgotten: vec![(Ino(1), 1)],
                seen: GrantNumber(0),
                request,
            })
        })
        .collect();
    let mut understood = 0;
    for _ in 0..20_000 {
        let pick = usize::try_from(random()).unwrap();
        let mut head = good[pick % good.len()].clone();
        for _ in 0..random() % 4 {
            let place = usize::try_from(random()).unwrap() % head.len();
            head[place] = u8::try_from(random() & 0xff).unwrap();
        }
        if random() % 8 == 0 {
            head = (0..random() % 40).map(|_| u8::try_from(random() & 0xff).unwrap()).collect();
        }
        let payload = vec![1; usize::try_from(random() % 64).unwrap()];
        match service.serve(from, Message { head, payload }) {
            Ok(answer) => {
                understood += 1;
                assert!(decode::<Reply>(&answer.head).is_ok());
            }
            Err(CallError::Refused(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert!(understood > 1000, "{understood}");
    service.drop_client(from);
    let head = encode(&Head {
        epoch: Epoch(0),
        forgotten: Vec::new(),
        seen: GrantNumber(0),
        request: Request::Catalogue,
    });
    let after = service.serve(from, Message { head, payload: Vec::new() });
    assert!(matches!(after, Err(CallError::Evicted(_))));
}

#[test]
fn grants_and_recalls_come_back_as_they_were_and_broken_ones_are_refused() {
    use forebay_cluster::grants::RecallNumber;

    use crate::grants::{Item, Recall, Why};
    let home = Some(seen().at);
    let granted =
        Granted { entry: Some(GrantNumber(1 << 40)), home, term: 3, ..Granted::default() };
    let reply = Reply { answer: Answer::Done, granted, beside: None };
    assert_eq!(decode::<Reply>(&encode(&reply)).unwrap().granted, granted);
    let items = vec![Item::Attributes(INO), Item::Entry(INO, b"a name".as_slice().into())];
    let recalls = vec![(RecallNumber(7), items)];
    let recall = Recall { fileset: FilesetId(3), why: Why::Change, recalls };
    let good = encode(&recall);
    assert_eq!(decode::<Recall>(&good).unwrap(), recall);
    for length in 0..good.len() {
        assert!(decode::<Recall>(&good[..length]).is_err());
    }
}
