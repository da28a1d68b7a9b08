//! The page on which a member of etcd counts what it does (`/metrics`), read with the certificates with which the node reaches etcd.

use std::io::{Read, Write};
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::time::SystemClock;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::error::{Error, Result};
use crate::home::EtcdAccess;
use crate::session::dial::{Timed, connect_any};

/// The longest page that is read; one of etcd 3.4 has 150 kB.
const PAGE_MAX: u64 = 8 << 20;

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Etcd(error.to_string())
}

/// The page of the member at an endpoint. To connect to each of its addresses takes `limit` at most, and all that follows the same.
///
/// # Errors
/// If it does not answer, or with something else.
pub fn read(access: &EtcdAccess, endpoint: &str, limit: Duration) -> Result<String> {
    let (is_tls, place) =
        match (endpoint.strip_prefix("https://"), endpoint.strip_prefix("http://")) {
            (Some(place), _) => (true, place),
            (None, Some(place)) => (false, place),
            (None, None) => return Err(Error::Etcd(format!("{endpoint} is not a URL of etcd"))),
        };
    let place = place.trim_end_matches('/');
    let addresses = place.to_socket_addrs().map_err(failed)?;
    let socket = connect_any(addresses, limit)
        .ok_or_else(|| failed(format!("{place} has no address")))?
        .map_err(failed)?;
    let stream = Timed::new(&socket, &SystemClock, limit);
    if !is_tls {
        return ask(stream, place);
    }
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(failed)?;
    let connection = ClientConnection::new(Arc::new(tls(access)?), name).map_err(failed)?;
    ask(StreamOwned::new(connection, stream), place)
}

/// The quota of a member's database in bytes, as its page says.
#[must_use]
pub fn quota_bytes(page: &str) -> Option<u64> {
    let line =
        page.lines().find_map(|line| line.strip_prefix("etcd_server_quota_backend_bytes "))?;
    let bytes: f64 = line.trim().parse().ok()?;
    // Negative where it has none.
    (1.0..=1e18).contains(&bytes).then_some(bytes as u64)
}

fn tls(access: &EtcdAccess) -> Result<ClientConfig> {
    let authority = access.authority.as_ref().ok_or_else(|| failed("no authority is known"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.map_err(failed)?).map_err(failed)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &access.identity else {
        return Ok(config.with_no_client_auth());
    };
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
    let chain = chain.collect::<std::result::Result<_, _>>().map_err(failed)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed)?;
    config.with_client_auth_cert(chain, key).map_err(failed)
}

fn ask(mut stream: impl Read + Write, host: &str) -> Result<String> {
    // An answer of this version comes as a whole, and the connection ends with it.
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(PAGE_MAX + 1).read_to_end(&mut answer).map_err(failed)?;
    if answer.len() as u64 > PAGE_MAX {
        return Err(failed(format!("its page of metrics is longer than {PAGE_MAX} bytes")));
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, page) = answer.split_once("\r\n\r\n").ok_or_else(|| failed("no answer of HTTP"))?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(failed(format!("its page of metrics is not served: {status}")));
    }
    Ok(page.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_the_quota_or_nothing_is_known() {
        let page = |value: &str| {
            format!(
                "# TYPE etcd_server_quota_backend_bytes gauge\netcd_server_quota_backend_bytes {value}\n"
            )
        };
        assert_eq!(quota_bytes(&page("8.589934592e+09")), Some(8 << 30));
        for bad in ["-1", "0", "NaN", "many", "1e300", ""] {
            assert_eq!(quota_bytes(&page(bad)), None, "{bad}");
        }
        assert_eq!(quota_bytes("etcd_server_quota_backend_bytes_other 5\n"), None);
    }
}
