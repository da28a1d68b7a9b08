//! Operations as proptest makes them up. Numbers choose among what there is when the operation runs, so
//! that a shrunk sequence still means something.

use forebay_base::Timestamp;
use forebay_disk::{Allocate, Sync};
use forebay_fs::record::{Durability, Kind, Placement};
use forebay_fs::{Replace, SetMode};
use proptest::prelude::*;

/// Chooses one of several things.
pub type Pick = u8;

#[derive(Clone, Debug)]
pub enum Op {
    Create { parent: Pick, name: Pick, kind: Kind, mode: u16, keep: bool },
    CreateUnnamed { parent: Pick },
    Link { node: Pick, parent: Pick, name: Pick },
    Unlink { parent: Pick, name: Pick },
    RemoveDirectory { parent: Pick, name: Pick },
    Rename { parent: Pick, name: Pick, new_parent: Pick, new_name: Pick, replace: Replace },
    Lookup { parent: Pick, name: Pick },
    Forget { node: Pick },
    Open { node: Pick, read: bool, write: bool, truncate: bool },
    Close { handle: Pick },
    Write { handle: Pick, offset: u16, length: u16, byte: u8 },
    Read { handle: Pick },
    SetMode { node: Pick, mode: u16 },
    SetOwner { node: Pick, uid: u32, gid: u32 },
    SetSize { node: Pick, size: u16 },
    SetModified { node: Pick, time: Timestamp },
    SetXattr { node: Pick, name: Pick, length: u8, mode: SetMode },
    RemoveXattr { node: Pick, name: Pick },
    Allocate { handle: Pick, what: Allocate, offset: u16, length: u16 },
    Copy { from: Pick, to: Pick, offset: u16, to_offset: u16, length: u16 },
    Seek { handle: Pick, offset: u16 },
    List { parent: Pick },
    ListOn { cursor: Pick, entries: u8 },
    Sync { handle: Pick, what: Sync },
    SyncDirectory { parent: Pick },
    SyncAll,
    Commit,
    AfterRequest,
    DropCaches,
    Rest,
    Archive { node: Pick },
    Recall { node: Pick },
    CrashFileset { fileset: Pick },
    SetFileset { fileset: Pick, durability: Option<Durability>, placement: Option<Placement> },
    SetQuota { fileset: Pick, user: u32 },
    Verify,
    Remount,
    CrashProcess { close: bool },
    CrashMachine { seed: u64 },
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        6 => Just(Kind::File),
        4 => Just(Kind::Directory),
        1 => Just(Kind::Symlink),
        1 => Just(Kind::Fifo),
        1 => Just(Kind::CharDevice),
    ]
}

fn replace() -> impl Strategy<Value = Replace> {
    prop_oneof![
        4 => Just(Replace::Allowed),
        1 => Just(Replace::Refused),
        2 => Just(Replace::Exchange),
    ]
}

fn mode() -> impl Strategy<Value = u16> {
    prop_oneof![3 => Just(0o644), 2 => Just(0o755), 1 => Just(0o2775), 1 => 0..0o7777_u16]
}

fn sync() -> impl Strategy<Value = Sync> {
    prop_oneof![Just(Sync::Data), Just(Sync::All)]
}

fn allocate() -> impl Strategy<Value = Allocate> {
    prop_oneof![
        Just(Allocate::Extend),
        Just(Allocate::KeepSize),
        Just(Allocate::PunchHole),
        Just(Allocate::ZeroRange),
        Just(Allocate::ZeroRangeKeepSize),
    ]
}

fn set_mode() -> impl Strategy<Value = SetMode> {
    prop_oneof![4 => Just(SetMode::Any), 1 => Just(SetMode::Create), 1 => Just(SetMode::Replace)]
}

fn durability() -> impl Strategy<Value = Option<Durability>> {
    prop_oneof![Just(None), Just(Some(Durability::Strict)), Just(Some(Durability::Scratch))]
}

fn placement() -> impl Strategy<Value = Option<Placement>> {
    prop_oneof![Just(None), Just(Some(Placement::Direct)), Just(Some(Placement::Served))]
}

fn names() -> impl Strategy<Value = Op> {
    let pick = any::<Pick>;
    let name = || 0..12_u8;
    prop_oneof![
        8 => (pick(), name(), kind(), mode(), any::<bool>()).prop_map(
            |(parent, name, kind, mode, keep)| Op::Create { parent, name, kind, mode, keep }
        ),
        1 => pick().prop_map(|parent| Op::CreateUnnamed { parent }),
        2 => (pick(), pick(), name())
            .prop_map(|(node, parent, name)| Op::Link { node, parent, name }),
        4 => (pick(), name()).prop_map(|(parent, name)| Op::Unlink { parent, name }),
        2 => (pick(), name()).prop_map(|(parent, name)| Op::RemoveDirectory { parent, name }),
        6 => (pick(), name(), pick(), name(), replace()).prop_map(
            |(parent, name, new_parent, new_name, replace)| Op::Rename {
                parent, name, new_parent, new_name, replace
            }
        ),
        1 => (pick(), name()).prop_map(|(parent, name)| Op::Lookup { parent, name }),
        2 => pick().prop_map(|node| Op::Forget { node }),
        1 => pick().prop_map(|parent| Op::List { parent }),
        3 => (pick(), 0..6_u8).prop_map(|(cursor, entries)| Op::ListOn { cursor, entries }),
    ]
}

fn bytes() -> impl Strategy<Value = Op> {
    let pick = any::<Pick>;
    let offset = || prop_oneof![3 => 0..300_u16, 1 => 0..20_000_u16];
    let length = || prop_oneof![3 => 0..300_u16, 1 => 0..9_000_u16];
    prop_oneof![
        6 => (pick(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(node, read, write, truncate)| Op::Open { node, read, write, truncate }
        ),
        4 => pick().prop_map(|handle| Op::Close { handle }),
        8 => (pick(), offset(), length(), 1..=255_u8).prop_map(
            |(handle, offset, length, byte)| Op::Write { handle, offset, length, byte }
        ),
        2 => pick().prop_map(|handle| Op::Read { handle }),
        3 => (pick(), offset()).prop_map(|(node, size)| Op::SetSize { node, size }),
        2 => (pick(), allocate(), offset(), 1..9000_u16).prop_map(
            |(handle, what, offset, length)| Op::Allocate { handle, what, offset, length }
        ),
        2 => (pick(), pick(), offset(), offset(), length()).prop_map(
            |(from, to, offset, to_offset, length)| Op::Copy {
                from, to, offset, to_offset, length
            }
        ),
        1 => (pick(), offset()).prop_map(|(handle, offset)| Op::Seek { handle, offset }),
    ]
}

fn inodes() -> impl Strategy<Value = Op> {
    let pick = any::<Pick>;
    prop_oneof![
        3 => (pick(), mode()).prop_map(|(node, mode)| Op::SetMode { node, mode }),
        1 => (pick(), 0..3_u32, 0..3_u32)
            .prop_map(|(node, uid, gid)| Op::SetOwner { node, uid, gid }),
        2 => (pick(), -5..5_i64, 0..1000_u32).prop_map(|(node, seconds, nanoseconds)| {
            Op::SetModified { node, time: Timestamp { seconds, nanoseconds } }
        }),
        4 => (pick(), 0..5_u8, any::<u8>(), set_mode()).prop_map(
            |(node, name, length, mode)| Op::SetXattr { node, name, length, mode }
        ),
        1 => (pick(), 0..5_u8).prop_map(|(node, name)| Op::RemoveXattr { node, name }),
    ]
}

fn durability_changes() -> impl Strategy<Value = Op> {
    let pick = any::<Pick>;
    prop_oneof![
        4 => (pick(), sync()).prop_map(|(handle, what)| Op::Sync { handle, what }),
        1 => pick().prop_map(|parent| Op::SyncDirectory { parent }),
        1 => Just(Op::SyncAll),
        4 => Just(Op::Commit),
        2 => Just(Op::AfterRequest),
        3 => Just(Op::DropCaches),
        2 => Just(Op::Rest),
        2 => pick().prop_map(|fileset| Op::CrashFileset { fileset }),
        1 => (pick(), durability(), placement()).prop_map(
            |(fileset, durability, placement)| Op::SetFileset { fileset, durability, placement }
        ),
        2 => (pick(), 0..3_u32).prop_map(|(fileset, user)| Op::SetQuota { fileset, user }),
        1 => Just(Op::Verify),
        2 => Just(Op::Remount),
        2 => any::<bool>().prop_map(|close| Op::CrashProcess { close }),
        2 => any::<u64>().prop_map(|seed| Op::CrashMachine { seed }),
    ]
}

/// Where there is an archive.
fn moves() -> impl Strategy<Value = Op> {
    let pick = any::<Pick>;
    prop_oneof![
        3 => pick().prop_map(|node| Op::Archive { node }),
        1 => pick().prop_map(|node| Op::Recall { node }),
    ]
}

/// A sequence of operations.
pub fn sequences() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        8 => names(),
        8 => bytes(),
        3 => inodes(),
        3 => durability_changes(),
        2 => moves(),
    ];
    proptest::collection::vec(one, 1..250)
}
