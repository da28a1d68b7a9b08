//! Certificates.

use std::path::Path;

use forebay_etcd::testing::{EtcdServer, Plan, ServerTls};
use forebay_etcd::{Client, Error, Options, Tls};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(parameters, key) }
    }

    /// A certificate for these names, with its key.
    fn sign(&self, names: Vec<String>) -> (String, String) {
        let mut parameters = CertificateParams::new(names).unwrap();
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (parameters.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn client(&self, identity: Option<(String, String)>) -> Tls {
        let identity = identity.map(|(certificate, key)| (certificate.into(), key.into()));
        Tls { authority_pem: self.pem.clone().into(), identity_pem: identity, server_name: None }
    }
}

fn start(authority: &Authority, folder: &Path) -> EtcdServer {
    let mut plan = Plan::on_loopback(3);
    let mut addresses: Vec<String> =
        plan.members.iter().map(|place| place.ip.to_string()).collect();
    // From where members on loopback reach each other.
    addresses.push("127.0.0.1".to_owned());
    let (certificate, key) = authority.sign(addresses);
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    plan.tls = Some(ServerTls {
        authority: file("ca", &authority.pem),
        certificate: file("cert", &certificate),
        key: file("key", &key),
        client: authority.client(Some(authority.sign(vec!["client".to_owned()]))),
    });
    EtcdServer::start(plan)
}

#[test]
fn only_clients_with_a_certificate_of_the_authority_get_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let server = start(&authority, folder.path());
    server.client().put("key", "value", None).unwrap();

    let (stranger, runtime) = (Authority::new(), server.client().runtime().clone());
    let attempt = |tls: Tls| {
        let mut options = Options::new(server.endpoints()).with_tls(tls);
        options.timeout = std::time::Duration::from_secs(3);
        Client::connect(&runtime, options).unwrap().get("key").unwrap_err()
    };
    let signed = |by: &Authority| Some(by.sign(vec!["client".to_owned()]));
    for tls in [
        authority.client(None),
        authority.client(signed(&stranger)),
        stranger.client(signed(&authority)),
    ] {
        let error = attempt(tls);
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    }
}
