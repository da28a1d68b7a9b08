//! TLS between nodes: both sides show certificates of the cluster's authority. Version 1.3 only, without resumption, so that
//! every connection is checked anew.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    ServerConfig, SignatureScheme,
};

use crate::authority::{Fingerprint, Subject, certificate_of, sha256};
use crate::error::{Error, Result};

/// What a node shows to others: its certificate and its authority's, and its key.
pub struct Identity {
    /// Whom the certificate names.
    pub subject: Subject,
    /// The node's certificate, in PEM.
    pub certificate: String,
    /// Its key, in PEM.
    pub key: String,
    /// The authority's certificate, in PEM.
    pub authority: String,
}

/// An identity, ready for connections.
#[derive(Clone)]
pub struct Credentials {
    /// Whom the certificate names.
    pub subject: Subject,
    /// For connections that arrive.
    pub server: Arc<ServerConfig>,
    /// For connections to other nodes.
    pub client: Arc<ClientConfig>,
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn refused(error: impl std::fmt::Display) -> Error {
    Error::Certificate(error.to_string())
}

pub(crate) fn roots(authority: &CertificateDer<'_>) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone().into_owned()).map_err(refused)?;
    Ok(Arc::new(roots))
}

impl Identity {
    /// Makes credentials of it.
    ///
    /// # Errors
    /// If certificate, key and authority do not fit together.
    pub fn credentials(&self) -> Result<Credentials> {
        let (chain, key) = self.chain_and_key()?;
        let roots = roots(&chain[1])?;
        // Strangers get as far as the greeting: a node that joins has no certificate yet.
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
            .allow_unauthenticated()
            .build()
            .map_err(refused)?;
        let server = self.server(verifier)?;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(refused)?;
        client.resumption = Resumption::disabled();
        Ok(Credentials {
            subject: self.subject,
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }

    /// For connections that arrive, whose certificates `verifier` judges.
    pub(crate) fn server(&self, verifier: Arc<dyn ClientCertVerifier>) -> Result<ServerConfig> {
        let (chain, key) = self.chain_and_key()?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(refused)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(server)
    }

    /// Its certificate and the authority's, and its key.
    fn chain_and_key(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        use rustls::pki_types::pem::PemObject as _;
        let chain = vec![certificate_of(&self.certificate)?, certificate_of(&self.authority)?];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(refused)?;
        Ok((chain, key))
    }
}

/// For a node that joins: it has no certificate, and trusts the authority with this fingerprint.
///
/// # Errors
/// If TLS cannot be set up.
pub fn stranger(authority: Fingerprint) -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { authority, provider, schemes }))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Accepts a server whose chain holds the authority with a known fingerprint, which vouches for it.
#[derive(Debug)]
struct Pinned {
    authority: Fingerprint,
    provider: Arc<CryptoProvider>,
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let found = intermediates.iter().find(|one| sha256(one) == self.authority);
        let authority = found.ok_or(CertificateError::UnknownIssuer)?;
        let roots = roots(authority).map_err(|_| CertificateError::BadEncoding)?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&self.provider))
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not supported".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

/// What an error of TLS means for people, with what to do.
pub fn explained(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(inner) = inner else { return error.to_string() };
    match inner {
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the other node's certificate has expired by this machine's clock: check both clocks; if they are right, run \
             `forebay cluster renew` on the other node"
                .to_owned()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "the other node's certificate is not valid yet by this machine's clock: set the clock (timedatectl)".to_owned(),
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            "the other side belongs to another cluster: its certificate has another authority".to_owned()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "another node answers at this address".to_owned(),
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "this node's certificate has expired by the other node's clock: check both clocks; if they are right, run \
             `forebay cluster renew` on this node"
                .to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate | AlertDescription::DecryptError) => {
            "the other node does not accept this node's certificate: it belongs to another cluster".to_owned()
        }
        other => format!("TLS: {other}"),
    }
}
