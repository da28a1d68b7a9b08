//! Who gets nowhere: machines without a certificate, with a wrong one, removed nodes, and anyone who sends nonsense.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::channel::{CallError, ServiceId};
use forebay_base::time::SystemClock;
use forebay_base::{ClientId, NodeId, seed};
use forebay_node::Error;
use forebay_node::authority::{Authority, Subject};
use forebay_node::session::dial::{DialError, Target, dial};
use forebay_node::session::greeting::Hello;
use forebay_node::session::{Identity, RefusalKind, stranger, visit};
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use rustls::{ClientConfig, Stream};
use uuid::Uuid;

use crate::support::{Noting, World, message, quick, wait_until};

fn target<'a>(world: &World, address: &'a str, config: Arc<ClientConfig>) -> Target<'a> {
    let name = Subject { cluster: world.cluster, node: NodeId(1) }.server_name().unwrap();
    Target { address, name, config, timeout: Duration::from_secs(5) }
}

fn hello(world: &World, node: u32) -> Hello {
    Hello::Session {
        cluster: world.cluster,
        client: ClientId { node: NodeId(node), incarnation: 1 },
        server: NodeId(1),
        session: 0,
        lane: 0,
        grace_ms: 1000,
        clock_ms: 0,
    }
}

/// Why a hello is refused.
fn refusal(target: &Target<'_>, hello: &Hello) -> RefusalKind {
    match dial(target, &SystemClock, hello) {
        Err(DialError::Refused(refusal)) => refusal.kind,
        Err(error) => panic!("{error}"),
        Ok(connected) => panic!("accepted: {:?}", connected.welcome),
    }
}

/// Why TLS does not get as far as a hello.
fn broken(target: &Target<'_>, hello: &Hello) -> String {
    match dial(target, &SystemClock, hello) {
        Err(DialError::Broken(reason)) => reason,
        Err(error) => panic!("{error}"),
        Ok(connected) => panic!("accepted: {:?}", connected.welcome),
    }
}

#[test]
fn whoever_is_not_a_member_gets_no_session() {
    let world = World::new();
    let service = Noting::echo();
    let server = world.node((1, 1), vec![(ServiceId::Files, service.clone())], quick());
    let address = server.address().to_string();
    // Without a certificate.
    let config = stranger(world.authority.fingerprint()).unwrap();
    let bare = target(&world, &address, config);
    assert_eq!(refusal(&bare, &hello(&world, 2)), RefusalKind::Certificate);
    // With the certificate of another authority that claims the same names.
    let foreign = Authority::make(world.cluster, forebay_base::Clock::now(&SystemClock)).unwrap();
    let forged = World { cluster: world.cluster, authority: foreign, book: Arc::default() };
    let mixed = Identity {
        authority: world.authority.certificate().to_owned(),
        ..forged.identity(2, Duration::from_secs(60))
    };
    let config = mixed.credentials().unwrap().client;
    let reason = broken(&target(&world, &address, config), &hello(&world, 2));
    assert!(reason.contains("another cluster"), "{reason}");
    // A node does not talk to a server of another authority either.
    let config = forged.credentials(2).client;
    let reason = broken(&target(&world, &address, config), &hello(&world, 2));
    assert!(reason.contains("another cluster"), "{reason}");
    // With one that is over.
    let old = world.identity(2, Duration::ZERO).credentials().unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let reason = broken(&target(&world, &address, old.client), &hello(&world, 2));
    assert!(reason.contains("this node's certificate has expired"), "{reason}");
    // A member that says it is another one, or means another node or cluster.
    let member = target(&world, &address, world.credentials(2).client);
    assert_eq!(refusal(&member, &hello(&world, 3)), RefusalKind::Certificate);
    let Hello::Session { client, .. } = hello(&world, 2) else { unreachable!() };
    let elsewhere = |cluster, server| Hello::Session {
        cluster,
        client,
        server,
        session: 0,
        lane: 0,
        grace_ms: 1000,
        clock_ms: 0,
    };
    let other = elsewhere(Uuid::new_v4(), NodeId(1));
    assert_eq!(refusal(&member, &other), RefusalKind::Cluster);
    let other = elsewhere(world.cluster, NodeId(5));
    assert_eq!(refusal(&member, &other), RefusalKind::Cluster);
    // A node of the same cluster that answers at another's address.
    let name = Subject { cluster: world.cluster, node: NodeId(5) }.server_name().unwrap();
    let wrong = Target { name, ..target(&world, &address, world.credentials(2).client) };
    let reason = broken(&wrong, &hello(&world, 2));
    assert!(reason.contains("another node answers"), "{reason}");
    assert!(service.counts.lock().is_empty());
    assert!(server.sessions().is_empty());
}

#[test]
fn a_removed_node_is_refused_and_its_session_ends() {
    let world = World::new();
    let service = Noting::echo();
    let server = world.node((1, 1), vec![(ServiceId::Files, service.clone())], quick());
    let client = world.node((2, 1), vec![], quick());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    channel.call(message("before")).unwrap();
    world.book.remove(2);
    let me = ClientId { node: NodeId(2), incarnation: 1 };
    wait_until("the client is dropped", || service.dropped.lock().contains(&me));
    for _ in 0..3 {
        let error = channel.call(message("after")).unwrap_err();
        // The first one may be on its way when the client hears that it was removed.
        let (CallError::Evicted(reason) | CallError::Unreachable(reason)) = &error else {
            panic!("{error:?}")
        };
        assert!(reason.contains("removed"), "{reason}");
    }
    assert_eq!(service.count(b"after"), 0);
    let member = target(&world, "", world.credentials(2).client);
    let address = server.address().to_string();
    let member = Target { address: &address, ..member };
    assert_eq!(refusal(&member, &hello(&world, 2)), RefusalKind::NotMember);
}

#[test]
fn visitors_get_one_answer() {
    let world = World::new();
    let server = world.node((1, 1), vec![], quick());
    let address = server.address().to_string();
    let ask = |config, question: &[u8]| {
        visit(&target(&world, &address, config), &SystemClock, world.cluster, question.to_vec())
            .map(|answer| String::from_utf8(answer).unwrap())
    };
    let member = world.credentials(2).client;
    assert_eq!(ask(Arc::clone(&member), b"who").unwrap(), "Some(NodeId(2)) who");
    assert!(matches!(ask(member, b"no"), Err(Error::Refused(_))));
    let pinned = stranger(world.authority.fingerprint()).unwrap();
    assert_eq!(ask(pinned, b"who").unwrap(), "None who");
    // A token of another cluster does not trust this one.
    let wrong = stranger([7; 32]).unwrap();
    let Err(Error::Unreachable(reason)) = ask(wrong, b"who") else { panic!() };
    assert!(reason.contains("another cluster"), "{reason}");
}

#[test]
fn nonsense_ends_its_own_connection_and_nothing_else() {
    let seed = seed::announce("cargo test -p forebay-node --test node nonsense");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let world = World::new();
    let service = Noting::echo();
    let server = world.node((1, 1), vec![(ServiceId::Files, service)], quick());
    let address = server.address().to_string();
    let client = world.node((2, 1), vec![], quick());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    for round in 0..60 {
        let mut bytes = vec![0; random.random_range(1..2000)];
        random.fill_bytes(&mut bytes);
        if round % 2 == 0 {
            // Before TLS.
            let mut socket = TcpStream::connect(&address).unwrap();
            let _ = socket.write_all(&bytes);
        } else {
            // A member, after its hello.
            let member = target(&world, &address, world.credentials(3).client);
            let mut connected = loop {
                match dial(&member, &SystemClock, &hello(&world, 3)) {
                    Ok(connected) => break connected,
                    Err(DialError::Refused(refusal)) if refusal.may_pass() => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            if round % 4 == 1 {
                // A frame of the right form that means nothing, then others.
                let mut frame = [0; 36];
                frame[0] = 32;
                frame[4] = random.random_range(1..=9);
                random.fill_bytes(&mut frame[5..32]);
                bytes = frame.repeat(random.random_range(1..50));
            }
            connected.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut stream = Stream::new(&mut connected.tls, &mut connected.socket);
            let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
            let _ = stream.read(&mut [0; 10]);
        }
        channel.call(message("fine")).unwrap();
    }
}

#[test]
fn silent_strangers_are_dropped_and_keep_nobody_waiting() {
    let world = World::new();
    let server = world.node((1, 1), vec![(ServiceId::Files, Noting::echo())], quick());
    let silent: Vec<TcpStream> = (0..20)
        .map(|number| {
            let mut socket = TcpStream::connect(server.address()).unwrap();
            // The first bytes of a TLS record, or none.
            socket.write_all(&[22, 3, 1, 2][..number % 5]).unwrap();
            socket
        })
        .collect();
    let client = world.node((2, 1), vec![], quick());
    client.channel(NodeId(1), ServiceId::Files).call(message("fine")).unwrap();
    for mut socket in silent {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        match socket.read_to_end(&mut Vec::new()) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            ended => drop(ended.unwrap()),
        }
    }
}
