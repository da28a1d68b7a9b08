//! TLS with which the daemons of a node serve metrics: the certificate is the node's, and monitors that show one of the cluster's
//! authority, made for monitors, need no token.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::Clock;
use forebay_base::time::SystemClock;
use forebay_metrics::Tls;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerifier as _};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};
use time::OffsetDateTime;

use crate::authority::certificate::monitor_name;
use crate::authority::token::hexadecimal;
use crate::authority::{Issued, certificate_of, expiry_of};
use crate::error::{Error, Result};
use crate::home::{CERTIFICATE, NodeFile, NodeHome};
use crate::members::record::check_name;
use crate::members::removed_monitors;
use crate::session::Identity;
use crate::session::tls::{provider, refused, roots};

/// TLS of a node. Its files are read for each connection, so a renewed certificate is used at once, and a removed monitor is refused at once.
///
/// # Errors
/// If this machine is no node, or its certificate is missing or unusable. One that has expired is logged, and refuses connections until it is
/// renewed: a daemon that starts again must not fail for that.
pub fn tls(home: &NodeHome) -> Result<Tls> {
    let file = home.existing()?;
    let identity = home.identity(&file)?;
    server(&identity, BTreeSet::new())?;
    if let Err(error) = check_life(home, &identity) {
        tracing::error!(%error, "metrics are not served until the certificate is renewed");
    }
    let home = home.clone();
    Ok(Arc::new(move || config(&home, &file).map_err(|error| error.to_string())))
}

fn config(home: &NodeHome, file: &NodeFile) -> Result<Arc<ServerConfig>> {
    let identity = home.identity(file)?;
    check_life(home, &identity)?;
    server(&identity, removed_monitors(home)?)
}

fn check_life(home: &NodeHome, identity: &Identity) -> Result<()> {
    let expires = expiry_of(&identity.certificate)?;
    if expires <= SystemClock.now().seconds {
        let reason = format!(
            "the node's certificate expired on {}: run forebay cluster renew",
            day(expires)
        );
        return Err(Error::Damaged { path: home.folder().join(CERTIFICATE), reason });
    }
    Ok(())
}

/// The day of a moment, for people.
#[must_use]
pub fn day(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_or_else(|_| seconds.to_string(), |moment| moment.date().to_string())
}

fn server(identity: &Identity, removed: BTreeSet<String>) -> Result<Arc<ServerConfig>> {
    let roots = roots(&certificate_of(&identity.authority)?)?;
    let inner = WebPkiServerVerifier::builder_with_provider(roots, provider());
    let name = ServerName::try_from(monitor_name(identity.subject.cluster)).map_err(refused)?;
    let monitors = Monitors { name, removed, inner: inner.build().map_err(refused)? };
    let mut config = identity.server(Arc::new(monitors))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Accepts certificates made for monitors. Those have the usage of servers: a certificate with that of clients would open the etcd of
/// a cluster that runs its own, which trusts the same authority.
#[derive(Debug)]
struct Monitors {
    name: ServerName<'static>,
    /// Serial numbers of certificates that are not accepted any more.
    removed: BTreeSet<String>,
    inner: Arc<WebPkiServerVerifier>,
}

impl ClientCertVerifier for Monitors {
    /// Monitors with a token come without a certificate.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        self.inner.verify_server_cert(end_entity, intermediates, &self.name, &[], now)?;
        let (_, parsed) = x509_parser::parse_x509_certificate(end_entity)
            .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if self.removed.contains(&hexadecimal(parsed.raw_serial())) {
            return Err(rustls::Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// What a monitor needs: the certificate of the authority, its own, and its key, each in PEM.
pub struct MonitorPapers {
    /// The authority's certificate.
    pub authority: String,
    /// The monitor's certificate.
    pub issued: Issued,
    /// Its key.
    pub key: String,
}

/// Makes the certificate of a monitor.
///
/// # Errors
/// If the node does not hold the authority's key, the name is not one, or the certificate would outlive that of the authority.
pub fn admit(home: &NodeHome, name: &str, life: Duration) -> Result<MonitorPapers> {
    check_name("monitor", name)?;
    let file = home.existing()?;
    let authority = home.authority(file.cluster)?.ok_or_else(|| {
        Error::Invalid(format!(
            "node {} does not hold the key of the cluster's authority: run this on a node that does (forebay cluster status \
             names them)",
            file.name
        ))
    })?;
    let now = SystemClock.now();
    let end = expiry_of(authority.certificate())?;
    let left = u64::try_from(end - now.seconds).unwrap_or(0);
    if life.as_secs() > left {
        return Err(Error::Invalid(format!(
            "the certificate would outlive that of the cluster's authority, which is valid until {}: choose a shorter --for, of at most \
             {} days",
            day(end),
            left / 86_400
        )));
    }
    let (issued, key) = authority.issue_for_monitor(name, life, now)?;
    Ok(MonitorPapers { authority: authority.certificate().to_owned(), issued, key })
}

#[cfg(test)]
mod tests;
