//! The authority of a cluster: the key that vouches for its nodes, what it writes into their certificates, and the tokens
//! with which further nodes join.
//!
//! A node makes its own key, and shows only the public part. The authority's key lies on the first node, and on those to
//! which it was copied; a cluster whose authority is unreachable works on, until certificates expire.

pub mod certificate;
pub mod token;

use std::net::IpAddr;
use std::time::Duration;

use forebay_base::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::certificate::Subject;
use crate::error::{Error, Result};
use crate::etcd_member::Papers;

/// Certificates are valid a little earlier than they are made, for clocks that are behind.
const BACKDATED: Duration = Duration::from_mins(10);

/// Life of the authority's own certificate.
const AUTHORITY_LIFE: Duration = Duration::from_hours(24 * 365 * 30);

/// An uncompressed point of the curve P-256: 4, and two coordinates of 32 bytes.
const PUBLIC_KEY_BYTES: usize = 65;

/// The SHA-256 of a certificate.
pub type Fingerprint = [u8; 32];

/// The SHA-256 of bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Fingerprint {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sum
}

/// The key of a cluster, with its certificate.
pub struct Authority {
    cluster: Uuid,
    certificate: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

/// A certificate that was made for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// The certificate, in PEM.
    pub certificate: String,
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// The end of its validity, in seconds since the Unix epoch.
    pub expires: i64,
}

/// The public half of a node's key.
struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::Certificate(error.to_string())
}

/// A new key, for a node or for an authority.
///
/// # Errors
/// If the machine has no randomness.
pub fn new_key() -> Result<KeyPair> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(refused)
}

/// A key from its PEM form.
///
/// # Errors
/// If the text is not one.
pub fn key_of(pem: &str) -> Result<KeyPair> {
    KeyPair::from_pem(pem).map_err(refused)
}

fn date(seconds: i64) -> Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|error| Error::Certificate(format!("a date {seconds}: {error}")))
}

fn seconds(of: Duration) -> i64 {
    i64::try_from(of.as_secs()).unwrap_or(i64::MAX)
}

/// What the authority's own certificate holds. It is made again from the cluster's id when a certificate is issued.
fn authority_params(cluster: Uuid) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).map_err(refused)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("Forebay cluster {cluster}"));
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

impl Authority {
    /// Makes the authority of a new cluster.
    ///
    /// # Errors
    /// If the machine has no randomness.
    pub fn make(cluster: Uuid, now: Timestamp) -> Result<Authority> {
        let key = new_key()?;
        let mut params = authority_params(cluster)?;
        params.not_before = date(now.seconds - seconds(BACKDATED))?;
        params.not_after = date(now.seconds.saturating_add(seconds(AUTHORITY_LIFE)))?;
        let certificate = params.self_signed(&key).map_err(refused)?;
        Ok(Authority {
            cluster,
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            key,
        })
    }

    /// The authority of `cluster` whose certificate and key were kept as PEM.
    ///
    /// # Errors
    /// If they are not what this made, or do not belong together.
    pub fn of(cluster: Uuid, certificate: &str, key: &str) -> Result<Authority> {
        let key = key_of(key)?;
        let der = certificate_of(certificate)?;
        let parsed = webpki::EndEntityCert::try_from(&der)
            .map_err(|error| Error::Certificate(error.to_string()))?;
        if parsed.subject_public_key_info().as_ref() != key.subject_public_key_info() {
            return Err(Error::Certificate(
                "the authority's key does not belong to its certificate".to_owned(),
            ));
        }
        Ok(Authority { cluster, certificate: der, pem: certificate.to_owned(), key })
    }

    /// Its certificate, in PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.pem
    }

    /// Its key, in PEM.
    #[must_use]
    pub fn key(&self) -> String {
        self.key.serialize_pem()
    }

    /// What a token says of it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        sha256(&self.certificate)
    }

    /// Makes a certificate for a node, as client and as server, valid also for the `hosts` (names or addresses) under which
    /// others reach it.
    ///
    /// # Errors
    /// If the key or a host is not one.
    pub fn issue(
        &self,
        node: Subject,
        public_key: &[u8],
        hosts: &[String],
        life: Duration,
        now: Timestamp,
    ) -> Result<Issued> {
        if node.cluster != self.cluster {
            return Err(Error::Certificate("of another cluster".to_owned()));
        }
        if public_key.len() != PUBLIC_KEY_BYTES || public_key[0] != 4 {
            return Err(Error::Certificate("the node's key is not one of P-256".to_owned()));
        }
        let params = params(vec![node.dns_name()], CLIENT_AND_SERVER)?;
        self.sign(params, &format!("node-{}", node.node), public_key, hosts, life, now)
    }

    /// Makes a certificate with its key for etcd: of a member that is reached under these hosts, or of clients. It is valid as long
    /// as the authority's own, and none that nodes accept of each other.
    ///
    /// # Errors
    /// If a host is not one.
    pub fn issue_for_etcd(&self, hosts: &[String], now: Timestamp) -> Result<Papers> {
        let key = new_key()?;
        let mut params = params(Vec::new(), CLIENT_AND_SERVER)?;
        if !hosts.is_empty() {
            // From there members on one machine reach each other, whose address etcd compares with the certificate.
            params.subject_alt_names.push(alternative("127.0.0.1")?);
        }
        let public_key = key.public_key_raw();
        let issued = self.sign(params, "etcd", public_key, hosts, AUTHORITY_LIFE, now)?;
        Ok(Papers { certificate: issued.certificate, key: key.serialize_pem() })
    }

    /// Makes a certificate with its key for a monitor, with which it reads the metrics of all nodes until the certificate expires, and
    /// nothing else: it names no node, and it is not one of a client, which is what etcd demands of those that it answers.
    ///
    /// # Errors
    /// If the machine has no randomness.
    pub fn issue_for_monitor(
        &self,
        name: &str,
        life: Duration,
        now: Timestamp,
    ) -> Result<(Issued, String)> {
        let key = new_key()?;
        let usage = [ExtendedKeyUsagePurpose::ServerAuth];
        let params = params(vec![certificate::monitor_name(self.cluster)], &usage)?;
        let common_name = format!("monitor {name}");
        let issued = self.sign(params, &common_name, key.public_key_raw(), &[], life, now)?;
        Ok((issued, key.serialize_pem()))
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        common_name: &str,
        public_key: &[u8],
        hosts: &[String],
        life: Duration,
        now: Timestamp,
    ) -> Result<Issued> {
        for host in hosts {
            params.subject_alt_names.push(alternative(host)?);
        }
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, common_name);
        params.distinguished_name = name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.not_before = date(now.seconds - seconds(BACKDATED))?;
        let expires = now.seconds.saturating_add(seconds(life));
        params.not_after = date(expires)?;
        params.use_authority_key_identifier_extension = true;
        let serial = Uuid::new_v4();
        // RFC 5280, 4.1.2.2: positive, so the first bit is cleared.
        let mut bytes = serial.into_bytes();
        bytes[0] &= 0x7f;
        bytes[0] |= 0x40;
        params.serial_number = Some(SerialNumber::from_slice(&bytes));
        let issuer_params = authority_params(self.cluster)?;
        let issuer = Issuer::from_params(&issuer_params, &self.key);
        let certificate = params.signed_by(&PublicKey(public_key), &issuer).map_err(refused)?;
        Ok(Issued {
            certificate: certificate.pem(),
            serial: Uuid::from_bytes(bytes).simple().to_string(),
            expires,
        })
    }
}

/// What certificates of nodes and of etcd are for.
const CLIENT_AND_SERVER: &[ExtendedKeyUsagePurpose] =
    &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

fn params(names: Vec<String>, usages: &[ExtendedKeyUsagePurpose]) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names).map_err(refused)?;
    params.extended_key_usages = usages.to_vec();
    Ok(params)
}

fn alternative(host: &str) -> Result<SanType> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    // A node with the name of another node, or of a monitor, would pass for it.
    let plain = host.trim_end_matches('.').to_ascii_lowercase();
    if format!(".{plain}").ends_with(certificate::SUFFIX) {
        return Err(Error::Certificate(format!(
            "{host}: names below forebay.internal are those of nodes and monitors in their certificates; give the node another address"
        )));
    }
    let name = host.to_owned().try_into();
    let name = name.map_err(|_| Error::Certificate(format!("{host:?} is not a host name")))?;
    Ok(SanType::DnsName(name))
}

/// The first certificate of a PEM text.
///
/// # Errors
/// If there is none.
pub fn certificate_of(pem: &str) -> Result<CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject as _;
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| Error::Certificate(error.to_string()))
}

/// When the first certificate of a PEM text expires, in seconds since the Unix epoch.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn expiry_of(pem: &str) -> Result<i64> {
    let certificate = certificate_of(pem)?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
        .map_err(|error| Error::Certificate(error.to_string()))?;
    Ok(parsed.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp { seconds: 1_800_000_000, nanoseconds: 0 };

    #[test]
    fn a_certificate_names_its_node() {
        let cluster = Uuid::from_u128(1);
        let authority = Authority::make(cluster, NOW).unwrap();
        let again = Authority::of(cluster, authority.certificate(), &authority.key()).unwrap();
        assert_eq!(again.fingerprint(), authority.fingerprint());
        let subject = Subject { cluster, node: NodeId(3) };
        let hosts = ["10.0.0.3".to_owned(), "host3".to_owned(), "::1".to_owned()];
        let key = new_key().unwrap();
        let life = Duration::from_secs(60);
        let issued = again.issue(subject, key.public_key_raw(), &hosts, life, NOW).unwrap();
        assert_eq!(issued.expires, NOW.seconds + 60);
        assert_eq!(expiry_of(&issued.certificate).unwrap(), NOW.seconds + 60);
        assert!(expiry_of(authority.certificate()).unwrap() > NOW.seconds + 365 * 86_400);
        assert!(expiry_of("no certificate").is_err());
        let found = Subject::of(&certificate_of(&issued.certificate).unwrap()).unwrap();
        assert_eq!(found, subject);
    }

    use forebay_base::NodeId;

    #[test]
    fn no_host_has_the_name_of_a_node_or_a_monitor() {
        for host in ["node-1.c.forebay.internal", "monitor.C.Forebay.Internal.", "forebay.internal"]
        {
            assert!(
                alternative(host).unwrap_err().to_string().contains("another address"),
                "{host}"
            );
        }
        for host in ["host3", "forebay.internal.example.org", "notforebay.internal", "10.0.0.3"] {
            assert!(alternative(host).is_ok(), "{host}");
        }
    }

    #[test]
    fn what_is_not_a_key_gets_no_certificate() {
        let cluster = Uuid::from_u128(1);
        let authority = Authority::make(cluster, NOW).unwrap();
        let subject = Subject { cluster, node: NodeId(3) };
        let life = Duration::from_secs(60);
        assert!(authority.issue(subject, b"", &[], life, NOW).is_err());
        assert!(authority.issue(subject, &[4; 64], &[], life, NOW).is_err());
        let stranger = Subject { cluster: Uuid::from_u128(2), ..subject };
        assert!(authority.issue(stranger, &[4; 65], &[], life, NOW).is_err());
        let other = Authority::make(cluster, NOW).unwrap();
        assert!(Authority::of(cluster, authority.certificate(), &other.key()).is_err());
        assert!(Authority::of(cluster, "no", "text").is_err());
    }
}
