//! Calls that others wait for get through, whatever calls wait, and so do those that they wait for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, OnceLock};

use forebay_base::NodeId;
use forebay_base::channel::{Channel, Service, ServiceId};
use forebay_node::settings::Settings;

use crate::support::{Door, Noting, World, message, quick, wait_until};

/// A service whose calls wait until one of them opens the door.
fn waiting(door: &Arc<Door>) -> Arc<Noting> {
    let door = Arc::clone(door);
    Noting::new(move |_, message| {
        match message.head.as_slice() {
            b"open" => door.open(),
            _ => door.pass(),
        }
        Ok(message)
    })
}

/// Ten calls wait at a node that carries out two at a time. `window` bounds how many of them leave their node.
fn a_release_gets_through(window: Settings, unanswered: usize) {
    let world = World::new();
    let door = Arc::new(Door::default());
    let settings = Settings { served_per_session_max: 2, serving_threads_max: 2, ..quick() };
    let _server = world.node((1, 1), vec![(ServiceId::Files, waiting(&door))], settings);
    let client = world.node((2, 1), vec![], window);
    let channel = client.channel(NodeId(1), ServiceId::Files);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| channel.call(message("wait")).unwrap());
        }
        wait_until("the window is full", || {
            let sessions = client.sessions();
            sessions.first().is_some_and(|session| session.figures.waiting_calls == unanswered)
        });
        wait_until("calls are begun", || door.before.load(Ordering::SeqCst) > 0);
        channel.release(message("open")).unwrap();
    });
}

#[test]
fn a_release_gets_through_when_waiting_calls_have_taken_every_slot() {
    a_release_gets_through(Settings { calls_max: 4, ..quick() }, 4);
}

#[test]
fn a_release_gets_through_when_waiting_calls_have_taken_all_bytes_of_the_window() {
    a_release_gets_through(Settings { calls_bytes_max: 1, ..quick() }, 1);
}

#[test]
fn a_release_gets_through_when_waiting_calls_have_taken_every_thread_that_serves() {
    a_release_gets_through(quick(), 10);
}

#[test]
fn releases_are_bounded_too() {
    let world = World::new();
    let door = Arc::new(Door::default());
    let _server = world.node((1, 1), vec![(ServiceId::Files, waiting(&door))], quick());
    let client = world.node((2, 1), vec![], Settings { releases_max: 3, ..quick() });
    let channel = client.channel(NodeId(1), ServiceId::Files);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| channel.release(message("wait")).unwrap());
        }
        wait_until("three are begun", || door.before.load(Ordering::SeqCst) == 3);
        assert_eq!(client.sessions()[0].figures.waiting_calls, 3);
        channel.call(message("open")).unwrap();
    });
}

/// What a delegated directory needs: a call waits for a recall, whose answer waits for a release, while every thread for ordinary calls waits.
#[test]
fn a_recall_is_answered_although_every_thread_of_its_node_waits() {
    let world = World::new();
    let (door, busy) = (Arc::new(Door::default()), Arc::new(Door::default()));
    let there: Arc<OnceLock<Arc<dyn Channel>>> = Arc::default();
    let reports = Arc::clone(&there);
    let cache = Noting::new(move |_, message| {
        reports.wait().release(self::message("open"))?;
        Ok(message)
    });
    let few = Settings { served_per_session_max: 2, serving_threads_max: 2, ..quick() };
    let services = vec![(ServiceId::Files, waiting(&door) as _)];
    let owner = world.node((1, 1), services, few.clone());
    let services = vec![(ServiceId::Cache, cache as _), (ServiceId::Files, waiting(&busy) as _)];
    let client = world.node((2, 1), services, few);
    let other = world.node((3, 1), vec![], quick());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    let at_client = other.channel(NodeId(2), ServiceId::Files);
    assert!(there.set(Arc::clone(&channel)).is_ok());
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| channel.call(message("wait")).unwrap());
            scope.spawn(|| at_client.call(message("wait")).unwrap());
        }
        for door in [&door, &busy] {
            wait_until("calls are begun", || door.before.load(Ordering::SeqCst) >= 2);
        }
        owner.channel(NodeId(2), ServiceId::Cache).call(message("recall")).unwrap();
        busy.open();
    });
}

/// A node of three: owner, client of the node before it, and the node after the next one has the disk.
struct Part {
    door: Arc<Door>,
    /// Files are being registered at all three owners.
    all_register: Arc<Barrier>,
    /// The filesets of the node of which this one is a client.
    owner: OnceLock<Arc<dyn Channel>>,
    /// The disk of the third node.
    disk: OnceLock<Arc<dyn Channel>>,
}

impl Part {
    /// Ordinary calls wait at the door. A recall registers a file at its owner, and closes it there; the owner opens its object on a third node's disk.
    fn services(self: &Arc<Self>) -> Vec<(ServiceId, Arc<dyn Service>)> {
        let (files, cache, disks) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let files = Noting::new(move |_, message| {
            match message.head.as_slice() {
                b"register" => {
                    files.all_register.wait();
                    files.disk.wait().release(self::message("open"))?;
                }
                b"close" => {}
                _ => files.door.pass(),
            }
            Ok(message)
        });
        let cache = Noting::new(move |_, message| {
            cache.owner.wait().release(self::message("register"))?;
            cache.owner.wait().release(self::message("close"))?;
            Ok(message)
        });
        let disks = Noting::new(move |_, message| {
            if message.head != b"open" {
                disks.door.pass();
            }
            Ok(message)
        });
        vec![(ServiceId::Files, files as _), (ServiceId::Cache, cache), (ServiceId::Disks, disks)]
    }
}

/// Opens a door at its end.
struct Opens<'a>(&'a Door);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Three nodes in a circle: each recalls from the next one, which registers a file with it, for which it opens an object on the third one. One release
/// has room in each direction, and ordinary calls wait wherever they can.
#[test]
fn recalls_get_through_although_calls_of_three_nodes_wait_in_a_circle() {
    let world = World::new();
    let few = Settings {
        calls_max: 4,
        served_per_session_max: 2,
        serving_threads_max: 4,
        release_threads_max: 2,
        releases_max: 1,
        ..quick()
    };
    let (door, all_register) = (Arc::new(Door::default()), Arc::new(Barrier::new(3)));
    let nodes = [1, 2, 3].map(|node| {
        let part = Arc::new(Part {
            door: Arc::clone(&door),
            all_register: Arc::clone(&all_register),
            owner: OnceLock::new(),
            disk: OnceLock::new(),
        });
        (world.node((node, 1), part.services(), few.clone()), part)
    });
    let id_of = |place: usize| [NodeId(1), NodeId(2), NodeId(3)][place % 3];
    for (place, (node, part)) in nodes.iter().enumerate() {
        assert!(part.owner.set(node.channel(id_of(place + 2), ServiceId::Files)).is_ok());
        assert!(part.disk.set(node.channel(id_of(place + 2), ServiceId::Disks)).is_ok());
    }
    std::thread::scope(|scope| {
        // Whatever comes, those that wait at the door end with the test.
        let opens = Opens(&door);
        for (place, (node, _)) in nodes.iter().enumerate() {
            for other in [place + 1, place + 2] {
                for service in [ServiceId::Files, ServiceId::Disks] {
                    let channel = node.channel(id_of(other), service);
                    for _ in 0..4 {
                        let channel = Arc::clone(&channel);
                        scope.spawn(move || channel.call(message("wait")).unwrap());
                    }
                }
            }
        }
        wait_until("each node carries out as many calls as it may", || {
            door.before.load(Ordering::SeqCst) == 3 * 4
        });
        let recalls = nodes.iter().enumerate().map(|(place, (node, _))| {
            let channel = node.channel(id_of(place + 1), ServiceId::Cache);
            scope.spawn(move || channel.call(message("recall")))
        });
        let recalls: Vec<_> = recalls.collect();
        wait_until("the recalls are answered", || recalls.iter().all(|it| it.is_finished()));
        drop(opens);
        for recall in recalls {
            recall.join().unwrap().unwrap();
        }
    });
}
