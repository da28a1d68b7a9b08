//! What only a disk of another node promises. The node is in the same process: its daemon and its machine can die.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::channel::{CallError, Channel, Message, Service};
use forebay_base::seed;
use forebay_base::{ClientId, NodeId, ObjectId};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::remote::{DiskService, Life, Machine, RemoteDisk, TRANSFER_MAX};
use forebay_disk::{Disk, DiskError, Sync};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{GIB, listed, memory_disk, published, read};

const UUID: &str = "0f2a";
const CLIENT: ClientId = ClientId { node: NodeId(2), incarnation: 1 };
/// Objects that a client may have open on the node.
const HANDLES_MAX: usize = 100;

/// The node that a disk belongs to, and the way there.
#[derive(Clone)]
pub struct Home {
    disk: MemoryDisk,
    service: Arc<Mutex<Arc<DiskService>>>,
    machines: Arc<AtomicU64>,
    fate: Arc<Mutex<Fate>>,
}

/// What happens to the next request.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    /// Neither it nor any other arrives.
    Away,
    /// It is carried out, and its answer is lost.
    AnswerLost,
    /// The node drops this client with everything it held.
    Evicted,
}

impl Home {
    pub fn new(disk: MemoryDisk) -> Home {
        let service = Arc::new(service_of(&disk, 1));
        Home {
            disk,
            service: Arc::new(Mutex::new(service)),
            machines: Arc::new(AtomicU64::new(1)),
            fate: Arc::new(Mutex::new(Fate::Answered)),
        }
    }

    pub fn disk(&self) -> RemoteDisk {
        RemoteDisk::new(Arc::new(self.clone()), UUID, "node 1, /disk")
    }

    /// The daemon of the node is killed and started again.
    fn restart_daemon(&self) {
        let machine = self.machines.load(Ordering::Relaxed);
        *self.service.lock() = Arc::new(service_of(&self.disk, machine));
    }

    /// The machine of the node loses its power and comes back.
    fn crash_machine(&self) {
        *self.service.lock() = Arc::new(service_of(&memory_disk(0), 0));
        self.disk.crash_machine(self.machines.load(Ordering::Relaxed));
        self.machines.fetch_add(1, Ordering::Relaxed);
        self.restart_daemon();
    }

    fn next(&self, fate: Fate) {
        *self.fate.lock() = fate;
    }

    fn open_objects(&self) -> usize {
        self.service.lock().open_objects()
    }
}

fn service_of(disk: &MemoryDisk, machine: u64) -> DiskService {
    static LIVES: AtomicU64 = AtomicU64::new(0);
    let life = Life(LIVES.fetch_add(1, Ordering::Relaxed));
    let service = DiskService::new(Machine(u128::from(machine)), life, HANDLES_MAX);
    service.offer(UUID, Arc::new(disk.clone()));
    service
}

impl Channel for Home {
    fn call(&self, request: Message) -> Result<Message, CallError> {
        let service = Arc::clone(&self.service.lock());
        let fate = *self.fate.lock();
        let lost = || CallError::Unreachable("node 1 does not answer".to_owned());
        match fate {
            Fate::Answered => service.serve(CLIENT, request),
            Fate::Away => Err(lost()),
            Fate::AnswerLost => {
                self.next(Fate::Answered);
                service.serve(CLIENT, request)?;
                Err(lost())
            }
            Fate::Evicted => {
                self.next(Fate::Answered);
                service.drop_client(CLIENT);
                Err(CallError::Evicted("node 1 has dropped this node".to_owned()))
            }
        }
    }
}

fn home() -> Home {
    Home::new(memory_disk(GIB))
}

#[test]
fn a_published_object_outlives_the_daemon_of_its_node() {
    let home = home();
    let disk = home.disk();
    let object = published(&disk, 7);
    object.write_at(0, b"before").unwrap();
    home.restart_daemon();
    object.write_at(6, b" and after").unwrap();
    assert_eq!(read(&*object, 0, 100), b"before and after");
    object.sync(Sync::All).unwrap();
}

#[test]
fn a_request_waits_for_the_disk_of_a_daemon_that_has_just_begun_but_not_for_one_that_was_removed() {
    let home = home();
    let disk = home.disk();
    let object = published(&disk, 7);
    object.write_at(0, b"bytes").unwrap();
    let beginning = Arc::new(DiskService::new(Machine(0), Life(u64::MAX), HANDLES_MAX));
    *home.service.lock() = Arc::clone(&beginning);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(&*object, 0, 100));
        std::thread::yield_now();
        beginning.offer(UUID, Arc::new(home.disk.clone()));
        assert_eq!(reading.join().unwrap(), b"bytes");
    });
    beginning.withdraw(UUID);
    let error = disk.open(ObjectId(7)).err().expect("the disk was removed");
    assert!(matches!(error, DiskError::Absent(_)), "{error}");
}

#[test]
fn what_waited_for_the_disk_of_a_daemon_that_has_just_begun_is_of_that_disks_life() {
    let home = home();
    // Another life of the file system than that of a disk which nobody has seen.
    home.disk.crash_machine(1);
    let disk = home.disk();
    let beginning = Arc::new(DiskService::new(Machine(0), Life(u64::MAX), HANDLES_MAX));
    *home.service.lock() = Arc::clone(&beginning);
    std::thread::scope(|scope| {
        let making = scope.spawn(|| published(&disk, 7));
        // The request waits in the service by then, or is on its way to it.
        std::thread::yield_now();
        beginning.offer(UUID, Arc::new(home.disk.clone()));
        let object = making.join().unwrap();
        object.write_at(0, b"bytes").unwrap();
        object.sync(Sync::All).unwrap();
    });
    disk.sync().unwrap();
    // Nor does a request that meets no disk say anything about its life.
    beginning.withdraw(UUID);
    assert!(disk.sync().is_err());
    beginning.offer(UUID, Arc::new(home.disk.clone()));
    let made = disk.made_at_home(ObjectId(7)).expect("the disk has answered");
    drop(made);
    disk.sync().unwrap();
}

#[test]
fn an_object_that_was_not_published_is_lost_with_the_daemon_of_its_node() {
    let home = home();
    let disk = home.disk();
    let object = disk.create(ObjectId(7)).unwrap();
    object.write_at(0, b"young").unwrap();
    home.restart_daemon();
    assert!(matches!(object.read_at(0, &mut [0; 5]), Err(DiskError::Io(_))));
    assert!(matches!(object.sync(Sync::Data), Err(DiskError::Io(_))));
    assert!(disk.publish(ObjectId(7), &*object).is_err());
    assert!(listed(&disk).is_empty());
}

#[test]
fn a_sync_fails_if_the_machine_crashed_after_the_write() {
    let home = home();
    let disk = home.disk();
    let object = published(&disk, 7);
    object.sync(Sync::All).unwrap();
    object.write_at(0, b"unsynced").unwrap();
    home.crash_machine();
    for _ in 0..2 {
        assert!(matches!(object.sync(Sync::All), Err(DiskError::Io(_))));
    }
    // What was synced before the crash and not written since is not in doubt.
    let calm = published(&disk, 8);
    calm.write_at(0, b"synced").unwrap();
    calm.sync(Sync::All).unwrap();
    home.crash_machine();
    calm.sync(Sync::All).unwrap();
    assert_eq!(read(&*calm, 0, 100), b"synced");
}

#[test]
fn a_sync_fails_if_the_file_system_of_the_disk_went_after_the_write() {
    let home = home();
    let disk = home.disk();
    let [written, synced] = [7, 8].map(|id| published(&disk, id));
    synced.sync(Sync::All).unwrap();
    written.write_at(0, b"unsynced").unwrap();
    // The machine goes on.
    home.disk.crash_machine(1);
    home.restart_daemon();
    assert!(matches!(written.sync(Sync::All), Err(DiskError::Io(_))));
    synced.sync(Sync::All).unwrap();
}

#[test]
fn a_sync_through_a_later_handle_fails_too() {
    let home = home();
    let disk = home.disk();
    let object = published(&disk, 7);
    object.sync(Sync::All).unwrap();
    object.write_at(0, b"unsynced").unwrap();
    drop(object);
    home.crash_machine();
    assert!(matches!(disk.open(ObjectId(7)).unwrap().sync(Sync::All), Err(DiskError::Io(_))));
}

#[test]
fn a_sync_of_the_disk_fails_once_if_its_machine_crashed() {
    let home = home();
    let disk = home.disk();
    published(&disk, 7);
    home.crash_machine();
    assert!(matches!(disk.sync(), Err(DiskError::Io(_))));
    disk.sync().unwrap();
    published(&disk, 8);
    disk.sync().unwrap();
    home.crash_machine();
    disk.sync().unwrap();
    assert!(listed(&disk).contains(&8));
}

#[test]
fn a_node_that_is_away_is_named() {
    let home = home();
    let disk = home.disk();
    let object = published(&disk, 7);
    home.next(Fate::Away);
    let why = |error: DiskError| match error {
        away @ DiskError::Away { .. } => away.to_string(),
        other => panic!("{other:?}"),
    };
    for error in [
        object.read_at(0, &mut [0; 1]).unwrap_err(),
        object.write_at(0, b"x").unwrap_err(),
        object.sync(Sync::Data).unwrap_err(),
        disk.open(ObjectId(7)).map(drop).unwrap_err(),
        disk.sync().unwrap_err(),
    ] {
        let why = why(error);
        assert!(why.contains(UUID) && why.contains("node 1"), "{why}");
    }
    home.next(Fate::Answered);
    object.write_at(0, b"x").unwrap();
    object.sync(Sync::Data).unwrap();
    assert!(disk.describe().kind.contains("memory"));
}

#[test]
fn an_object_whose_publication_was_not_answered_is_published_once() {
    for restarted in [false, true] {
        let home = home();
        let disk = home.disk();
        let object = disk.create(ObjectId(7)).unwrap();
        object.write_at(0, b"kept").unwrap();
        home.next(Fate::AnswerLost);
        assert!(disk.publish(ObjectId(7), &*object).is_err());
        if restarted {
            home.restart_daemon();
        }
        disk.publish(ObjectId(7), &*object).unwrap();
        assert_eq!((listed(&disk), read(&*object, 0, 9)), (vec![7], b"kept".to_vec()));
    }
}

#[test]
fn an_object_whose_making_was_not_answered_is_made_once() {
    let home = home();
    let disk = home.disk();
    home.next(Fate::AnswerLost);
    assert!(disk.create_named(ObjectId(7)).is_err());
    let object = disk.create_named(ObjectId(7)).unwrap();
    object.write_at(0, b"once").unwrap();
    // It keeps its bytes when the daemon of its node is killed.
    home.restart_daemon();
    assert_eq!((listed(&disk), read(&*object, 0, 9)), (vec![7], b"once".to_vec()));
}

#[test]
fn what_programs_of_the_node_itself_write_is_not_reported_as_durable_after_a_crash() {
    let home = home();
    let disk = home.disk();
    let object = disk.create_named(ObjectId(7)).unwrap();
    object.sync(Sync::All).unwrap();
    home.crash_machine();
    object.sync(Sync::All).unwrap();
    object.remote().unwrap().written_at_home();
    home.crash_machine();
    assert!(matches!(object.sync(Sync::All), Err(DiskError::Io(_))));
}

#[test]
fn a_client_that_was_dropped_opens_its_objects_again() {
    let home = home();
    let disk = home.disk();
    let object = published(&disk, 7);
    home.next(Fate::Evicted);
    object.write_at(0, b"again").unwrap();
    home.next(Fate::Evicted);
    assert_eq!(read(&*disk.open(ObjectId(7)).unwrap(), 0, 9), b"again");
}

#[test]
fn a_handle_that_was_forgotten_never_leads_to_another_object() {
    for restarted in [true, false] {
        let home = home();
        let disk = home.disk();
        let [first, second] = [7, 8].map(|id| published(&disk, id));
        first.write_at(0, b"first").unwrap();
        second.write_at(0, b"second").unwrap();
        // Nobody is told: another service of the node may have been called first.
        if restarted {
            home.restart_daemon();
        } else {
            home.service.lock().drop_client(CLIENT);
        }
        let third = published(&disk, 9);
        assert_eq!(read(&*second, 0, 9), b"second");
        first.append(b" goes on").unwrap();
        drop(first);
        third.append(b"third").unwrap();
        assert_eq!(second.attributes().unwrap().size, 6);
        assert_eq!(read(&*third, 0, 9), b"third");
        assert_eq!(read(&*disk.open(ObjectId(7)).unwrap(), 0, 20), b"first goes on");
    }
}

#[test]
fn handles_are_closed_and_bounded() {
    let home = home();
    let disk = home.disk();
    for id in 0..10 * HANDLES_MAX as u64 {
        drop(published(&disk, id));
    }
    assert!(home.open_objects() < HANDLES_MAX);
    let kept: Vec<_> = (0..).map_while(|id| disk.open(ObjectId(id)).ok()).collect();
    assert_eq!(kept.len(), HANDLES_MAX);
    let refused = disk.open(ObjectId(0)).map(drop);
    assert!(matches!(refused, Err(DiskError::TooManyFiles(_))), "{refused:?}");
    home.service.lock().drop_client(CLIENT);
    assert_eq!(home.open_objects(), 0);
}

#[test]
fn long_reads_and_writes_go_in_several_messages() {
    let home = home();
    let disk = home.disk();
    let object = published(&disk, 7);
    let bytes: Vec<u8> = (0..3 * TRANSFER_MAX + 17).map(|at| (at % 251) as u8).collect();
    assert_eq!(object.write_at(5, &bytes), Ok(bytes.len()));
    assert_eq!(read(&*object, 5, bytes.len() + 9), bytes);
}

#[test]
fn bytes_of_strangers_are_survived() {
    let home = home();
    let disk = home.disk();
    published(&disk, 7);
    let mut dice = StdRng::seed_from_u64(seed::announce(
        "cargo test -p forebay-disk --test conformance strangers",
    ));
    let service = Arc::clone(&home.service.lock());
    for _ in 0..20_000 {
        let mut head = vec![0; dice.random_range(0..40)];
        dice.fill(&mut head[..]);
        // Half of them have the version and the name of the disk right.
        if dice.random() {
            let mut right = vec![2, 4];
            right.extend(UUID.as_bytes());
            right.push(0);
            right.append(&mut head);
            head = right;
        }
        let payload = vec![0; dice.random_range(0..9)];
        let _ = service.serve(CLIENT, Message { head, payload });
    }
}
