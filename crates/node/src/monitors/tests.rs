use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use forebay_base::{NodeId, Timestamp};
use forebay_metrics::{Listen, Page, Render, Server};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use uuid::Uuid;

use super::*;
use crate::authority::{Authority, Subject, key_of};
use crate::home::EtcdAccess;

const CLUSTER: Uuid = Uuid::from_u128(7);
const HOUR: Duration = Duration::from_hours(1);

/// The home of a node with a certificate and the key of its authority.
fn node(base: &Path) -> (NodeHome, Authority) {
    let home = NodeHome::of(base, "grid1").unwrap();
    home.make().unwrap();
    let authority = Authority::make(CLUSTER, SystemClock.now()).unwrap();
    home.set_authority(authority.certificate(), &authority.key()).unwrap();
    certify(&home, &authority, SystemClock.now());
    let etcd = EtcdAccess { endpoints: vec![], authority: None, identity: None, started: false };
    let file = NodeFile {
        cluster_name: "grid1".to_owned(),
        cluster: CLUSTER,
        node: NodeId(1),
        name: "n1".to_owned(),
        address: "127.0.0.1:7440".to_owned(),
        etcd,
        expires: 0,
    };
    home.set_node(&file).unwrap();
    (home, authority)
}

/// Gives the node a certificate for an hour from a moment on.
fn certify(home: &NodeHome, authority: &Authority, from: Timestamp) {
    let key = key_of(&home.key().unwrap()).unwrap();
    let subject = Subject { cluster: CLUSTER, node: NodeId(1) };
    let hosts = ["127.0.0.1".to_owned()];
    let issued = authority.issue(subject, key.public_key_raw(), &hosts, HOUR, from).unwrap();
    home.set_certificates(&issued.certificate, authority.certificate()).unwrap();
}

fn served(home: &NodeHome) -> Server {
    let render: Render = Box::new(|| Some(Page::new()));
    let address = "127.0.0.1:0".parse().unwrap();
    let listen = Listen { address, token: None, tls: Some(tls(home).unwrap()) };
    Server::start(listen, vec![("/metrics", render)]).unwrap()
}

/// What a client gets that trusts this authority and shows a certificate, or none; and the certificate of the server.
fn ask(
    server: &Server,
    trusted: &Authority,
    shown: Option<(&str, &str)>,
) -> io::Result<(String, Vec<u8>)> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate_of(trusted.certificate()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(vec![certificate_of(certificate).unwrap()], key).unwrap()
        }
    };
    let address = server.address();
    let name = ServerName::from(address.ip());
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let chain = stream.conn.peer_certificates().unwrap();
    Ok((answer, chain[0].to_vec()))
}

#[test]
fn a_certificate_of_a_monitor_is_accepted_and_no_other() {
    let base = tempfile::tempdir().unwrap();
    let (home, authority) = node(base.path());
    let server = served(&home);
    let papers = admit(&home, "prometheus", HOUR).unwrap();
    let mine = Some((&*papers.issued.certificate, &*papers.key));
    assert!(ask(&server, &authority, mine).unwrap().0.starts_with("HTTP/1.1 200 OK\r\n"));
    let nobody = ask(&server, &authority, None).unwrap().0;
    assert!(nobody.starts_with("HTTP/1.1 401 ") && nobody.contains("certificate"), "{nobody}");
    assert!(!nobody.contains("WWW-Authenticate"), "no token would help: {nobody}");
    // The node's own is one of a node.
    let identity = home.identity(&home.existing().unwrap()).unwrap();
    ask(&server, &authority, Some((&identity.certificate, &identity.key))).unwrap_err();
    let now = SystemClock.now();
    let expired = Timestamp { seconds: now.seconds - 7200, nanoseconds: 0 };
    let (issued, key) = authority.issue_for_monitor("old", HOUR, expired).unwrap();
    let error = ask(&server, &authority, Some((&issued.certificate, &key))).unwrap_err();
    assert!(error.to_string().contains("CertificateExpired"), "{error}");
    let other = Authority::make(CLUSTER, now).unwrap();
    let (issued, key) = other.issue_for_monitor("other", HOUR, now).unwrap();
    ask(&server, &authority, Some((&issued.certificate, &key))).unwrap_err();
    // Nor does a client accept a server of another authority.
    ask(&server, &other, None).unwrap_err();
}

#[test]
fn the_certificate_of_a_removed_monitor_is_refused_from_the_next_connection_on() {
    let base = tempfile::tempdir().unwrap();
    let (home, authority) = node(base.path());
    let server = served(&home);
    let shown = |papers: &MonitorPapers| {
        let own = (papers.issued.certificate.clone(), papers.key.clone());
        ask(&server, &authority, Some((&own.0, &own.1)))
    };
    let (gone, kept) = ["gone", "kept"].map(|name| admit(&home, name, HOUR).unwrap()).into();
    assert!(shown(&gone).unwrap().0.starts_with("HTTP/1.1 200 OK\r\n"));
    std::fs::write(
        home.folder().join("removed-monitors.json"),
        format!("[\"{}\"]", gone.issued.serial),
    )
    .unwrap();
    let error = shown(&gone).unwrap_err().to_string();
    assert!(error.contains("CertificateRevoked"), "{error}");
    assert!(shown(&kept).unwrap().0.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn no_certificate_of_a_monitor_outlives_that_of_the_authority() {
    let base = tempfile::tempdir().unwrap();
    let (home, authority) = node(base.path());
    let left = expiry_of(authority.certificate()).unwrap() - SystemClock.now().seconds;
    let days = u64::try_from(left / 86_400).unwrap();
    assert!(admit(&home, "prometheus", Duration::from_hours(24 * days)).is_ok());
    for life in [Duration::from_hours(24 * (days + 1)), Duration::MAX] {
        let error = admit(&home, "prometheus", life).err().unwrap().to_string();
        assert!(error.contains(&format!("at most {days} days")), "{error}");
    }
}

/// Each connects and says nothing, or not enough.
#[test]
fn silent_peers_do_not_keep_monitors_waiting_for_ever() {
    let base = tempfile::tempdir().unwrap();
    let (home, authority) = node(base.path());
    let server = served(&home);
    let silent: Vec<TcpStream> = (0..forebay_metrics::server::WORKERS)
        .map(|number| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            // The first bytes of a TLS record.
            stream.write_all(&[22, 3, 1][..number % 4]).unwrap();
            stream
        })
        .collect();
    let papers = admit(&home, "prometheus", HOUR).unwrap();
    let mine = Some((&*papers.issued.certificate, &*papers.key));
    assert!(ask(&server, &authority, mine).unwrap().0.starts_with("HTTP/1.1 200 OK\r\n"));
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "it was dropped");
    }
}

#[test]
fn nodes_do_not_accept_the_certificate_of_a_monitor() {
    let base = tempfile::tempdir().unwrap();
    let (home, authority) = node(base.path());
    let identity = home.identity(&home.existing().unwrap()).unwrap();
    // What nodes show each other, and demand of each other.
    let of_nodes = identity.credentials().unwrap().server;
    let tls: Tls = Arc::new(move || Ok(Arc::clone(&of_nodes)));
    let address = "127.0.0.1:0".parse().unwrap();
    let render: Render = Box::new(|| Some(Page::new()));
    let listen = Listen { address, token: None, tls: Some(tls) };
    let server = Server::start(listen, vec![("/metrics", render)]).unwrap();
    let own = Some((&*identity.certificate, &*identity.key));
    assert!(ask(&server, &authority, own).unwrap().0.starts_with("HTTP/1.1 200 OK\r\n"));
    let papers = admit(&home, "prometheus", HOUR).unwrap();
    ask(&server, &authority, Some((&papers.issued.certificate, &papers.key))).unwrap_err();
}

#[test]
fn a_renewed_certificate_is_used_at_once_and_an_expired_one_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let (home, authority) = node(base.path());
    let server = served(&home);
    let (_, first) = ask(&server, &authority, None).unwrap();
    certify(&home, &authority, SystemClock.now());
    let (_, second) = ask(&server, &authority, None).unwrap();
    assert_ne!(first, second);
    let now = SystemClock.now().seconds;
    certify(&home, &authority, Timestamp { seconds: now - 7200, nanoseconds: 0 });
    // A daemon that starts again serves nothing until then, instead of ending.
    let error = tls(&home).unwrap()().err().unwrap();
    assert!(error.contains("node.pem") && error.contains("cluster renew"), "{error}");
    ask(&server, &authority, None).unwrap_err();
    std::fs::remove_file(home.folder().join("node.pem")).unwrap();
    let error = tls(&home).err().unwrap().to_string();
    assert!(error.contains("node.pem: the file is missing"), "{error}");
}

#[test]
fn only_a_node_with_the_key_of_the_authority_makes_certificates_of_monitors() {
    let base = tempfile::tempdir().unwrap();
    let (home, _) = node(base.path());
    assert!(admit(&home, "no name", HOUR).is_err());
    std::fs::remove_file(home.folder().join("authority.key")).unwrap();
    let error = admit(&home, "prometheus", HOUR).err().unwrap().to_string();
    assert!(error.contains("forebay cluster status"), "{error}");
}
