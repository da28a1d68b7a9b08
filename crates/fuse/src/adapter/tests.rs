//! Requests as bytes, from both transports.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::time::StepClock;
use forebay_base::{DiskId, FailPoints};
use forebay_disk::Disk;
use forebay_disk::faulty::{Fault, FaultyDisk};
use forebay_disk::memory::MemoryDisk;
use forebay_fs::mkfs::{self, Identity};
use forebay_fs::record::DiskRecord;
use forebay_fs::reserve::Reserve;
use forebay_fs::{Namespace, Parts};
use forebay_store::memory::MemoryStores;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::*;
use crate::abi::{
    AttrOut, CreateIn, EntryOut, InitIn, IoctlIn, IoctlOut, OpenOut, OutHeader,
    RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingEntry, RingHeader, WriteIn, WriteOut,
};

const ROOT_INO: u64 = 1;

fn adapter() -> Adapter {
    let clock = Arc::new(StepClock::new(1_000_000));
    adapter_of(Arc::new(MemoryDisk::new(64 << 20, clock)))
}

fn adapter_of(disk: Arc<dyn Disk>) -> Adapter {
    adapter_with(disk, Settings::default())
}

fn adapter_with(disk: Arc<dyn Disk>, settings: Settings) -> Adapter {
    let clock = Arc::new(StepClock::new(1_000_000));
    let stores = MemoryStores::new();
    let (uuid, location) = ("disk".to_owned(), "here".to_owned());
    let disks = vec![DiskRecord::new(DiskId(0), &uuid, &location)];
    let identity = Identity {
        uuid: "fs".to_owned(),
        hash_key: [7; 16],
        disks,
        owner: (0, 0),
        scratch: forebay_fs::record::Placement::Direct,
    };
    mkfs::make(&stores, &identity, &*clock).unwrap();
    let fs = Namespace::open(Parts {
        stores: Arc::new(stores),
        disks: vec![("disk".to_owned(), disk)],
        settings: forebay_fs::Settings::default(),
        clock: Arc::clone(&clock) as _,
        fail_points: FailPoints::none(),
        reserve: Reserve::none(),
    });
    Adapter::new(fs.unwrap(), settings, clock)
}

/// A request as both transports bring it: its structure, and the rest.
struct Message {
    header: InHeader,
    structure: Vec<u8>,
    rest: Vec<u8>,
}

impl Message {
    fn new(code: u32, structure: &[u8], rest: &[u8]) -> Message {
        let len = u32::try_from(40 + structure.len() + rest.len()).unwrap();
        let header =
            InHeader { len, opcode: code, unique: 9, nodeid: ROOT_INO, ..InHeader::default() };
        Message { header, structure: structure.to_vec(), rest: rest.to_vec() }
    }

    fn over_dev(&self, adapter: &Adapter, room: &mut [u8]) -> (OutHeader, Vec<u8>) {
        let bytes = [self.header.as_bytes(), &self.structure, &self.rest].concat();
        let (header, body) = Body::parse(&bytes).unwrap();
        answered(adapter, &header, body, room)
    }

    fn over_ring(&self, adapter: &Adapter, room: &mut [u8]) -> (OutHeader, Vec<u8>) {
        let entry = self.entry();
        let (header, body) = Body::parse_entry(&entry, &self.rest).unwrap();
        answered(adapter, &header, body, room)
    }

    fn entry(&self) -> RingHeader {
        let mut entry =
            RingHeader { in_out: [0xee; 128], op_in: [0xee; 128], entry: RingEntry::default() };
        entry.in_out[..40].copy_from_slice(self.header.as_bytes());
        entry.op_in[..self.structure.len()].copy_from_slice(&self.structure);
        entry
    }
}

fn answered(
    adapter: &Adapter,
    header: &InHeader,
    body: Body<'_>,
    room: &mut [u8],
) -> (OutHeader, Vec<u8>) {
    let mut reply = Reply::new(room);
    let errno = match adapter.handle(header, body, &mut reply) {
        Outcome::Reply(errno) => errno,
        Outcome::NoReply => 0,
    };
    let (header, body) = reply.finish(header.unique, errno);
    (header, body.to_vec())
}

#[test]
fn the_structures_of_the_ring_are_the_bytes_of_the_kernel() {
    let command = RingCommand { flags: 0, commit_id: 0x0102_0304, qid: 3, padding: [0; 6] };
    let bytes = [[0; 8], [4, 3, 2, 1, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(command.as_bytes(), bytes);
    assert_eq!((RING_REGISTER, RING_COMMIT_AND_FETCH), (1, 2));

    // A CREATE of "ab" in inode 7 as the kernel lays it out in an entry (struct fuse_uring_req_header).
    let mut bytes = [0_u8; 288];
    let header: [&[u8]; 8] = [
        &59_u32.to_le_bytes(),
        &35_u32.to_le_bytes(),
        &6_u64.to_le_bytes(),
        &7_u64.to_le_bytes(),
        &1000_u32.to_le_bytes(),
        &100_u32.to_le_bytes(),
        &4242_u32.to_le_bytes(),
        &[0; 4],
    ];
    bytes[..40].copy_from_slice(&header.concat());
    let create = [0x8042_u32, 0o100_644, 0o22, 0].map(u32::to_le_bytes).concat();
    bytes[128..144].copy_from_slice(&create);
    bytes[264..272].copy_from_slice(&6_u64.to_le_bytes());
    bytes[272..276].copy_from_slice(&3_u32.to_le_bytes());
    let entry = RingHeader::read_from_bytes(&bytes).unwrap();
    assert_eq!((entry.entry.commit_id, entry.entry.payload_sz, entry.entry.flags), (6, 3, 0));
    let (header, mut body) = Body::parse_entry(&entry, b"ab\0").unwrap();
    assert_eq!((header.opcode, header.unique, header.nodeid), (opcode::CREATE, 6, 7));
    assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 4242));
    let asked: CreateIn = body.take().unwrap();
    assert_eq!((asked.flags, asked.mode, asked.umask), (0x8042, 0o100_644, 0o22));
    assert_eq!(body.name().unwrap(), b"ab");
    assert!(body.name().is_err(), "the rest of the header is not a name");

    // Extensions are no part of the body, and cannot be longer than the payload.
    let mut extended = entry;
    extended.in_out[36] = 1;
    assert!(Body::parse_entry(&extended, b"ab\0").is_none());
    let (_, mut body) = Body::parse_entry(&extended, b"ab\0.2345678").unwrap();
    assert_eq!(body.name().unwrap(), b"ab");
    assert!(body.bytes(1).is_err());
}

#[test]
fn a_request_is_the_same_over_both_transports() {
    let (dev, ring) = (adapter(), adapter());
    let create = [0x8042_u32, 0o100_644, 0o22, 0].map(u32::to_le_bytes).concat();
    let open = [0_u8; 8];
    let mut room = vec![0; 1 << 20];
    let messages = [
        Message::new(opcode::LOOKUP, &[], b"missing\0"),
        Message::new(opcode::MKDIR, &[0xed, 1, 0, 0, 0o22, 0, 0, 0], b"folder\0"),
        Message::new(opcode::CREATE, &create, b"file\0"),
        Message::new(opcode::LOOKUP, &[], b"file\0"),
        Message::new(opcode::SYMLINK, &[], b"link\0target\0"),
        Message::new(
            opcode::RENAME2,
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            b"file\0new\0",
        ),
        Message::new(opcode::SETXATTR, &[3, 0, 0, 0, 0, 0, 0, 0], b"user.a\0xyz"),
        Message::new(opcode::GETXATTR, &[9, 0, 0, 0, 0, 0, 0, 0], b"user.a\0"),
        Message::new(opcode::LISTXATTR, &[99, 0, 0, 0, 0, 0, 0, 0], b""),
        Message::new(opcode::OPENDIR, &open, b""),
        Message::new(opcode::GETATTR, &[0; 16], b""),
        Message::new(opcode::UNLINK, &[], b"new\0"),
        Message::new(opcode::UNLINK, &[], b"new\0"),
        Message::new(opcode::STATFS, &[], b""),
        Message::new(99, &[], b""),
    ];
    for message in &messages {
        let (of_dev, body_of_dev) = message.over_dev(&dev, &mut room);
        let (of_ring, body_of_ring) = message.over_ring(&ring, &mut room);
        let code = message.header.opcode;
        assert_eq!((of_dev.error, of_dev.len), (of_ring.error, of_ring.len), "opcode {code}");
        assert_eq!(of_dev.unique, 9);
        assert_eq!(body_of_dev, body_of_ring, "opcode {code}");
    }
    let (out, body) = messages[2].over_ring(&ring, &mut room);
    assert_eq!((out.error, body.len()), (0, size_of::<EntryOut>() + size_of::<OpenOut>()));
    let (out, _) = messages[4].over_ring(&ring, &mut room);
    assert_eq!(out.error, -libc::EEXIST);
}

#[test]
fn a_write_tells_how_much_was_written_and_pages_are_written_whole() {
    let clock = Arc::new(StepClock::new(1_000_000));
    let disk = FaultyDisk::new(Arc::new(MemoryDisk::new(64 << 20, clock)));
    let adapter = adapter_of(Arc::new(disk.clone()));
    let mut room = vec![0; 1 << 20];
    let create = [0x8042_u32, 0o100_644, 0o22, 0].map(u32::to_le_bytes).concat();
    let (out, body) =
        Message::new(opcode::CREATE, &create, b"file\0").over_dev(&adapter, &mut room);
    assert_eq!(out.error, 0);
    let (entry, _) = EntryOut::read_from_prefix(&body).unwrap();
    disk.fail(Fault::WriteHalf);
    for (write_flags, written) in [(0, 50), (abi::WRITE_CACHE, 100)] {
        let asked = WriteIn { size: 100, write_flags, ..WriteIn::default() };
        let mut message = Message::new(opcode::WRITE, asked.as_bytes(), &[7; 100]);
        message.header.nodeid = entry.nodeid;
        let (out, body) = message.over_dev(&adapter, &mut room);
        assert_eq!((out.error, WriteOut::read_from_bytes(&body).unwrap().size), (0, written));
    }
}

#[test]
fn a_removal_of_privileges_takes_set_id_bits_and_says_so() {
    let adapter = adapter();
    let mut room = vec![0; 1 << 20];
    let create = [0x8042_u32, 0o100_755, 0, 0].map(u32::to_le_bytes).concat();
    let (_, body) = Message::new(opcode::CREATE, &create, b"file\0").over_dev(&adapter, &mut room);
    let (entry, _) = EntryOut::read_from_prefix(&body).unwrap();
    let mut set = |valid, mode| {
        let asked = SetattrIn { valid, mode, ..SetattrIn::default() };
        let mut message = Message::new(opcode::SETATTR, asked.as_bytes(), b"");
        message.header.nodeid = entry.nodeid;
        let (out, body) = message.over_ring(&adapter, &mut room);
        assert_eq!(out.error, 0);
        AttrOut::read_from_bytes(&body).unwrap()
    };
    let privileged = set(abi::setattr::MODE, 0o6755);
    assert_eq!(privileged.attr.mode & 0o7777, 0o6755);
    assert_eq!((privileged.attr_valid, privileged.attr_valid_nsec), (0, 0), "the kernel must ask");
    // What the kernel makes of a write by an ordinary user: nothing is to be set.
    let plain = set(0, 0);
    assert_eq!(plain.attr.mode & 0o7777, 0o755);
    assert!(plain.attr_valid > 0);
}

#[test]
fn programs_that_look_for_flags_find_none_and_cannot_set_any() {
    const GET: u32 = 0x8008_6601;
    const SET: u32 = 0x4008_6602;
    const GET_EXTENDED: u32 = 0x801c_581f;
    let adapter = adapter();
    let mut room = vec![0; 1 << 20];
    let mut ask = |cmd, given: &[u8], out_size| {
        let in_size = u32::try_from(given.len()).unwrap();
        let asked = IoctlIn { cmd, in_size, out_size, ..IoctlIn::default() };
        let (out, body) =
            Message::new(opcode::IOCTL, asked.as_bytes(), given).over_ring(&adapter, &mut room);
        (-out.error, body.len())
    };
    let answer = size_of::<IoctlOut>();
    assert_eq!(ask(GET, b"", 4), (0, answer + 4));
    assert_eq!(ask(GET_EXTENDED, b"", 28), (0, answer + 28));
    assert_eq!(ask(SET, &[0; 4], 0), (0, answer));
    assert_eq!(ask(SET, &[0x10, 0, 0, 0], 0), (libc::EOPNOTSUPP, 0));
    assert_eq!(ask(0x1234, b"", 4), (libc::ENOTTY, 0));
}

#[test]
fn directories_are_opened_without_asking_where_the_kernel_keeps_listings() {
    let opened = |offered: u64, kernel_ttl: Duration| {
        let clock = Arc::new(StepClock::new(1_000_000));
        let disk = Arc::new(MemoryDisk::new(64 << 20, clock));
        let adapter = adapter_with(disk, Settings { kernel_ttl, ..Settings::default() });
        let mut room = vec![0; 1 << 16];
        let flags = u32::try_from(offered).unwrap();
        let asked = InitIn { major: 7, minor: 45, max_readahead: 0, flags };
        let (out, _) =
            Message::new(opcode::INIT, asked.as_bytes(), b"").over_dev(&adapter, &mut room);
        assert_eq!(out.error, 0);
        let (out, _) = Message::new(opcode::OPENDIR, &[0; 8], b"").over_dev(&adapter, &mut room);
        -out.error
    };
    let offered = abi::feature::NO_OPENDIR_SUPPORT;
    assert_eq!(opened(offered, Duration::from_hours(1)), libc::ENOSYS);
    assert_eq!(opened(offered, Duration::ZERO), 0, "nothing is to be kept");
    assert_eq!(opened(0, Duration::from_hours(1)), 0, "the kernel cannot");
}

#[test]
fn an_answer_that_does_not_fit_is_an_error() {
    let adapter = adapter();
    let (out, body) = Message::new(opcode::GETATTR, &[0; 16], b"").over_ring(&adapter, &mut [0; 8]);
    assert_eq!((out.error, out.len, body.len()), (-libc::EIO, 16, 0));
}

/// A body that is often nearly right: names, small and large numbers, noise.
fn random_body(random: &mut StdRng) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..random.random_range(0..8) {
        match random.random_range(0..5) {
            0 => body.extend_from_slice(b"name\0"),
            1 => body.extend((0..random.random_range(0..300)).map(|_| random.random::<u8>())),
            2 => body.extend_from_slice(&random.random_range(0..9_u64).to_le_bytes()),
            3 => body.extend_from_slice(
                &[u64::MAX, i64::MAX as u64, 1 << 32][random.random_range(0..3)].to_le_bytes(),
            ),
            _ => body.extend_from_slice(&random.random::<u32>().to_le_bytes()),
        }
    }
    body
}

#[test]
fn no_bytes_make_the_adapter_panic() {
    let seed = forebay_base::seed::announce("cargo test -p forebay-fuse no_bytes");
    let mut random = StdRng::seed_from_u64(seed);
    let adapter = adapter();
    let mut room = vec![0; 1 << 20];
    let mut fine = 0;
    for _ in 0..60_000 {
        let noise: Vec<u8> = (0..random.random_range(0..60)).map(|_| random.random()).collect();
        let _ = Body::parse(&noise);
        let code = match random.random_range(0..60) {
            // It would wait for a lock that nobody else is there to release.
            opcode::SETLKW => opcode::SETLK,
            code => code,
        };
        let mut message = Message::new(code, &[], &random_body(&mut random));
        message.structure = random_body(&mut random);
        message.structure.truncate(128);
        message.header.nodeid = random.random_range(0..6);
        message.header.total_extlen = [0, 0, 0, 1, u16::MAX][random.random_range(0..5)];
        message.header.uid = random.random_range(0..2);
        let (answer, _) = if random.random() {
            let entry = message.entry();
            let Some((header, body)) = Body::parse_entry(&entry, &message.rest) else { continue };
            let _ = Adapter::is_slow(&header, body);
            answered(&adapter, &header, body, &mut room)
        } else {
            let bytes = [message.header.as_bytes(), &message.structure, &message.rest].concat();
            let Some((header, body)) = Body::parse(&bytes) else { continue };
            let _ = Adapter::is_slow(&header, body);
            answered(&adapter, &header, body, &mut room)
        };
        assert!((-4095..=0).contains(&answer.error), "errno {}", answer.error);
        fine += usize::from(answer.error == 0);
    }
    assert!(fine > 1000, "only {fine} requests came so far that they were carried out");
    // It still works.
    let (out, _) = Message::new(opcode::GETATTR, &[0; 16], b"").over_ring(&adapter, &mut room);
    assert_eq!(out.error, 0);
}
