//! Calls between two nodes: each is carried out once, whatever happens to the connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::channel::{CallError, Channel, Message, ServiceId};
use forebay_base::{ClientId, NodeId, seed};
use forebay_node::session::Hub;
use forebay_node::settings::{HEAD_BYTES_MAX, PAYLOAD_BYTES_MAX, Settings};
use rand::{Rng as _, SeedableRng as _};

use crate::support::proxy::Proxy;
use crate::support::{Door, Noting, World, message, quick, wait_until};

const CALLS: usize = 10_000;
const THREADS: usize = 16;

/// Calls of a node that have not been answered.
fn waiting_calls(node: &Hub) -> usize {
    node.sessions().iter().map(|session| session.figures.waiting_calls).sum()
}

/// Calls of many threads while `during` goes on; every answer is the right one.
fn storm(
    channel: &Arc<dyn Channel>,
    name: &str,
    calls: usize,
    during: impl FnOnce(&AtomicBool, &AtomicUsize),
) {
    let done = AtomicBool::new(false);
    let next = AtomicUsize::new(0);
    let ended = AtomicUsize::new(0);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let _ended = Ended { ended: &ended, done: &done };
                loop {
                    let call = next.fetch_add(1, Ordering::SeqCst);
                    if call >= calls {
                        break;
                    }
                    let size = if call.is_multiple_of(50) { 200_000 } else { call % 300 };
                    let payload = vec![u8::try_from(call % 251).unwrap(); size];
                    let head = format!("{name} {call}").into_bytes();
                    let request = Message { head, payload };
                    assert_eq!(channel.call(request.clone()).unwrap(), request);
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        during(&done, &answered);
    });
}

/// Counts threads that are done, also by a panic.
struct Ended<'a> {
    ended: &'a AtomicUsize,
    done: &'a AtomicBool,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if self.ended.fetch_add(1, Ordering::SeqCst) == THREADS - 1 {
            self.done.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn ten_thousand_calls_happen_once_while_connections_are_cut() {
    let seed = seed::announce("cargo test -p forebay-node --test node ten_thousand_calls");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let world = World::new();
    let (files, cache) = (Noting::echo(), Noting::echo());
    let server = world.node((1, 1), vec![(ServiceId::Files, files.clone())], quick());
    let client = world.node((2, 7), vec![(ServiceId::Cache, cache.clone())], quick());
    let proxy = Proxy::to(server.address().to_string());
    world.book.set(1, proxy.address.clone());
    let there = client.channel(NodeId(1), ServiceId::Files);
    there.call(message("first")).unwrap();
    let back = server.channel(NodeId(2), ServiceId::Cache);
    let mut cuts = 0;
    storm(&there, "there", CALLS, |done, answered| {
        std::thread::scope(|scope| {
            scope.spawn(|| storm(&back, "back", 2000, |_, _| {}));
            while !done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(random.random_range(1..80)));
                let before = answered.load(Ordering::SeqCst);
                proxy.cut();
                cuts += 1;
                // On a busy machine, connecting takes longer than the pauses between cuts.
                while answered.load(Ordering::SeqCst) == before && !done.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
    });
    assert!(cuts > 3, "only {cuts} cuts");
    for (service, name, calls) in [(&files, "there", CALLS), (&cache, "back", 2000)] {
        for call in 0..calls {
            assert_eq!(service.count(format!("{name} {call}").as_bytes()), 1, "{name} {call}");
        }
    }
    assert_eq!(*files.dropped.lock(), [], "a client was dropped although it came back in time");
    // What was acknowledged is not kept.
    wait_until("answers are dropped", || {
        server.sessions().iter().all(|session| session.figures.kept_bytes == 0)
    });
}

#[test]
fn large_messages_arrive_whole_and_too_large_ones_are_refused() {
    let world = World::new();
    let server = world.node((1, 1), vec![(ServiceId::Disks, Noting::echo())], quick());
    let client = world.node((2, 1), vec![], quick());
    let channel = client.channel(NodeId(1), ServiceId::Disks);
    for round in 0..20_u8 {
        let (head, payload) = (vec![round; 1000], vec![round ^ 0x55; PAYLOAD_BYTES_MAX]);
        let request = Message { head, payload };
        assert!(channel.call(request.clone()).unwrap() == request, "round {round}");
    }
    wait_until("bulk has connections of its own", || server.sessions()[0].figures.connections == 3);
    let too_large = Message { head: vec![0; HEAD_BYTES_MAX + 1], payload: vec![] };
    assert!(matches!(channel.call(too_large), Err(CallError::Refused(_))));
    let too_large = Message { head: vec![], payload: vec![0; PAYLOAD_BYTES_MAX + 1] };
    assert!(matches!(channel.call(too_large), Err(CallError::Refused(_))));
}

#[test]
fn a_service_that_is_missing_fails_or_panics_is_an_answer() {
    let world = World::new();
    let faulty = Noting::new(|_, message| match &*message.head {
        b"panic" => panic!("as the test wants it"),
        b"large" => Ok(Message { head: vec![], payload: vec![0; PAYLOAD_BYTES_MAX + 1] }),
        _ => Err(CallError::Refused("not understood".to_owned())),
    });
    let _server = world.node((1, 1), vec![(ServiceId::Files, faulty)], quick());
    let client = world.node((2, 1), vec![], quick());
    let files = client.channel(NodeId(1), ServiceId::Files);
    for head in ["panic", "large", "other"] {
        let error = files.call(message(head)).unwrap_err();
        assert!(matches!(error, CallError::Refused(_)), "{head}: {error:?}");
    }
    let disks = client.channel(NodeId(1), ServiceId::Disks);
    assert!(matches!(disks.call(message("x")), Err(CallError::Refused(_))));
    let nobody = client.channel(NodeId(9), ServiceId::Cache);
    assert!(matches!(nobody.call(message("x")), Err(CallError::Evicted(_))));
}

#[test]
fn no_more_calls_are_in_flight_than_the_window_allows() {
    let world = World::new();
    let door = Arc::new(Door::default());
    let before = Arc::clone(&door);
    let service = Noting::new(move |_, message| {
        before.pass();
        Ok(message)
    });
    let settings = Settings { served_per_session_max: 3, ..quick() };
    let server = world.node((1, 1), vec![(ServiceId::Files, service.clone())], settings);
    let client = world.node((2, 1), vec![], Settings { calls_max: 8, ..quick() });
    let channel = client.channel(NodeId(1), ServiceId::Files);
    std::thread::scope(|scope| {
        for call in 0..40 {
            let channel = &channel;
            scope.spawn(move || channel.call(message(&format!("{call}"))).unwrap());
        }
        wait_until("three calls are begun", || door.before.load(Ordering::SeqCst) == 3);
        // Keepalives go on meanwhile, so whoever exceeded the window would have done so by now.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(door.before.load(Ordering::SeqCst), 3);
        let waiting = client.sessions()[0].figures.waiting_calls;
        assert_eq!(waiting, 8);
        assert!(server.sessions()[0].figures.served_now <= 8);
        door.open();
    });
    assert_eq!(service.counts.lock().values().sum::<usize>(), 40);
}

#[test]
fn bytes_in_flight_are_bounded() {
    let world = World::new();
    let door = Arc::new(Door::default());
    let before = Arc::clone(&door);
    let service = Noting::new(move |_, message| {
        before.pass();
        Ok(message)
    });
    let _server = world.node((1, 1), vec![(ServiceId::Files, service)], quick());
    let settings = Settings { calls_bytes_max: 1 << 20, ..quick() };
    let client = world.node((2, 1), vec![], settings);
    let channel = client.channel(NodeId(1), ServiceId::Files);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                channel.call(Message { head: vec![], payload: vec![0; 400 << 10] }).unwrap();
            });
        }
        wait_until("two calls are begun", || door.before.load(Ordering::SeqCst) == 2);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(door.before.load(Ordering::SeqCst), 2);
        door.open();
    });
}

#[test]
fn a_call_that_was_given_up_is_not_carried_out_later() {
    let world = World::new();
    let service = Noting::echo();
    let settings = Settings { session_grace: Duration::from_secs(4), ..quick() };
    let server = world.node((1, 1), vec![(ServiceId::Files, service.clone())], settings.clone());
    let client = world.node((2, 4), vec![], settings);
    let proxy = Proxy::to(server.address().to_string());
    world.book.set(1, proxy.address.clone());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    channel.call(message("before")).unwrap();
    // The request reaches the proxy and lies there until long after its caller has given up.
    proxy.stall();
    let error = channel.call(message("given up")).unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
    let me = ClientId { node: NodeId(2), incarnation: 4 };
    wait_until("the client is dropped", || service.dropped.lock().contains(&me));
    proxy.release();
    let error = channel.call(message("told")).unwrap_err();
    assert!(matches!(error, CallError::Evicted(_)), "{error:?}");
    channel.call(message("after")).unwrap();
    assert_eq!(service.count(b"given up"), 0);
    assert_eq!(service.count(b"told"), 0);
    assert_eq!(service.count(b"after"), 1);
}

#[test]
fn calls_to_files_of_a_dead_node_end_when_others_own_them_and_those_to_its_disks_when_it_is_certain()
 {
    let world = World::new();
    let service = Noting::echo();
    let services = [ServiceId::Files, ServiceId::Disks].map(|id| (id, service.clone() as _));
    let server = world.node((1, 7), services.into(), quick());
    let client = world.node((2, 1), vec![], quick());
    let proxy = Proxy::to(server.address().to_string());
    world.book.set(1, proxy.address.clone());
    let channel = |service| client.channel(NodeId(1), service);
    channel(ServiceId::Files).call(message("before")).unwrap();
    proxy.stall();
    std::thread::scope(|scope| {
        let [files, disks] = [ServiceId::Files, ServiceId::Disks]
            .map(|service| scope.spawn(move || channel(service).call(message("under way"))));
        wait_until("both wait", || waiting_calls(&client) == 2);
        world.book.remove(1);
        std::thread::sleep(Duration::from_millis(600));
        assert!(!files.is_finished(), "it may still be the owner when it comes back");
        world.book.succeed(1, 7);
        wait_until("the call to files fails", || files.is_finished());
        assert!(!disks.is_finished(), "its disks may still do what they were told");
        for call in [files, disks] {
            let error = call.join().unwrap().unwrap_err();
            assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        }
    });
    assert_eq!(service.count(b"under way"), 0);
}

#[test]
fn calls_to_a_node_that_was_dead_end_at_once_when_it_has_started_again() {
    let world = World::new();
    let settings = Settings { session_grace: Duration::from_secs(600), ..quick() };
    let services = |service: &Arc<Noting>| vec![(ServiceId::Disks, service.clone() as _)];
    let former = Noting::echo();
    let server = world.node((1, 7), services(&former), settings.clone());
    let client = world.node((2, 1), vec![], settings.clone());
    let proxy = Proxy::to(server.address().to_string());
    world.book.set(1, proxy.address.clone());
    let channel = client.channel(NodeId(1), ServiceId::Disks);
    channel.call(message("before")).unwrap();
    proxy.stall();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| channel.call(message("under way")));
        wait_until("it waits", || waiting_calls(&client) == 1);
        world.book.remove(1);
        std::thread::sleep(Duration::from_millis(600));
        assert!(!call.is_finished(), "its disks may still do what they were told");
        world.book.replace(1, 7);
        let later = Noting::echo();
        let again = world.node((1, 8), services(&later), settings);
        let error = call.join().unwrap().unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        // The first call after it is told that what the node held is gone.
        channel.call(message("told")).unwrap_err();
        channel.call(message("after")).unwrap();
        assert_eq!((later.count(b"after"), former.count(b"under way")), (1, 0));
        drop(again);
    });
}

#[test]
fn a_call_waits_out_an_interruption_that_is_shorter_than_the_grace() {
    let world = World::new();
    let service = Noting::echo();
    let server = world.node((1, 1), vec![(ServiceId::Files, service.clone())], quick());
    let client = world.node((2, 1), vec![], quick());
    let proxy = Proxy::to(server.address().to_string());
    world.book.set(1, proxy.address.clone());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    channel.call(message("before")).unwrap();
    proxy.stall();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| channel.call(message("meanwhile")));
        std::thread::sleep(Duration::from_millis(1200));
        proxy.release();
        call.join().unwrap().unwrap();
    });
    assert_eq!((service.count(b"meanwhile"), service.dropped.lock().len()), (1, 0));
}

#[test]
fn a_node_that_started_again_is_another_one() {
    let world = World::new();
    let door = Arc::new(Door::default());
    let before = Arc::clone(&door);
    let service = Noting::new(move |_, message| {
        if message.head == b"stuck" {
            before.pass();
        }
        Ok(message)
    });
    let server = world.node((1, 1), vec![(ServiceId::Files, service)], quick());
    let client = world.node((2, 1), vec![], quick());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    channel.call(message("before")).unwrap();
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| channel.call(message("stuck")));
        wait_until("the call is begun", || door.before.load(Ordering::SeqCst) == 1);
        drop(server);
        let again = Noting::echo();
        let _server = world.node((1, 2), vec![(ServiceId::Files, again.clone())], quick());
        // It may have been carried out, by the former life.
        let error = stuck.join().unwrap().unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        // What the former life held for this client is gone.
        let error = channel.call(message("told")).unwrap_err();
        assert!(matches!(error, CallError::Evicted(_)), "{error:?}");
        channel.call(message("after")).unwrap();
        assert_eq!((again.count(b"stuck"), again.count(b"told")), (0, 0));
        door.open();
    });
}

#[test]
fn a_client_that_started_again_replaces_its_former_life() {
    let world = World::new();
    let service = Noting::echo();
    let _server = world.node((1, 1), vec![(ServiceId::Files, service.clone())], quick());
    let former = world.node((2, 1), vec![], quick());
    former.channel(NodeId(1), ServiceId::Files).call(message("former")).unwrap();
    let later = world.node((2, 2), vec![], quick());
    later.channel(NodeId(1), ServiceId::Files).call(message("later")).unwrap();
    let dropped = ClientId { node: NodeId(2), incarnation: 1 };
    assert_eq!(service.dropped.lock().first(), Some(&dropped));
    // The former one, if it is still there, cannot come back.
    let channel = former.channel(NodeId(1), ServiceId::Files);
    for _ in 0..3 {
        assert!(channel.call(message("again")).is_err());
    }
    assert_eq!(service.count(b"again"), 0);
}

#[test]
fn a_client_that_is_evicted_is_dropped_and_learns_it() {
    let world = World::new();
    let service = Noting::echo();
    let server = world.node((1, 1), vec![(ServiceId::Files, service.clone())], quick());
    let client = world.node((2, 1), vec![], quick());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    channel.call(message("before")).unwrap();
    let me = ClientId { node: NodeId(2), incarnation: 1 };
    server.evict(me, "it did not answer a recall");
    wait_until("the client is dropped", || service.dropped.lock().contains(&me));
    // A call that is sent before that is reported as one that may have been carried out.
    wait_until("the client has heard of it", || client.sessions().is_empty());
    let error = channel.call(message("told")).unwrap_err();
    let CallError::Evicted(reason) = &error else { panic!("{error:?}") };
    assert!(reason.contains("it did not answer a recall"), "{reason}");
    channel.call(message("after")).unwrap();
    assert_eq!(service.count(b"told"), 0);
    assert_eq!(*service.welcomed.lock(), [me, me], "each session is announced");
}

#[test]
fn each_channel_learns_of_the_end_of_its_session() {
    let world = World::new();
    let service = Noting::echo();
    let services = [ServiceId::Files, ServiceId::Disks].map(|id| (id, service.clone() as _));
    let server = world.node((1, 1), services.into(), quick());
    let client = world.node((2, 1), vec![], quick());
    let channel = |service| client.channel(NodeId(1), service);
    let used = [ServiceId::Disks, ServiceId::Files, ServiceId::Files].map(channel);
    for channel in &used {
        channel.call(message("before")).unwrap();
    }
    let me = ClientId { node: NodeId(2), incarnation: 1 };
    server.evict(me, "it did not answer a recall");
    wait_until("the client is dropped", || service.dropped.lock().contains(&me));
    // A call that is sent before that is reported as one that may have been carried out.
    wait_until("the client has heard of it", || client.sessions().is_empty());
    for channel in &used {
        let error = channel.call(message("told")).unwrap_err();
        assert!(matches!(error, CallError::Evicted(_)), "{error:?}");
        channel.call(message("after")).unwrap();
    }
    // One that was not used then has nothing to lose.
    channel(ServiceId::Files).call(message("new")).unwrap();
    assert_eq!((service.count(b"told"), service.count(b"after")), (0, 3));
}

#[test]
fn a_call_that_never_left_says_so() {
    let world = World::new();
    let settings = Settings { session_grace: Duration::from_millis(500), ..quick() };
    let client = world.node((2, 1), vec![], settings);
    // Nobody listens there.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    world.book.set(1, socket.local_addr().unwrap().to_string());
    drop(socket);
    let error = client.channel(NodeId(1), ServiceId::Files).call(message("x")).unwrap_err();
    assert!(matches!(error, CallError::Unsent(_)), "{error:?}");
}
