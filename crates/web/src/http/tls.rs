//! The certificate of the server.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use forebay_grid::vocabulary::Moment;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// When a certificate expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// File that it was read from.
    pub file: String,
    /// The moment.
    pub expires: Moment,
}

impl Certificate {
    /// The first certificate in a PEM file.
    ///
    /// # Errors
    /// If there is none.
    pub fn read(file: &Path) -> Result<Certificate> {
        let shown = file.display().to_string();
        let chain = chain(file)?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&chain[0])
            .with_context(|| format!("{shown} does not begin with a certificate"))?;
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        Ok(Certificate { file: shown, expires: Moment(seconds.saturating_mul(1000)) })
    }
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let shown = || file.display().to_string();
    let read = CertificateDer::pem_file_iter(file).with_context(shown)?;
    let chain = read.collect::<Result<Vec<_>, _>>().with_context(shown)?;
    ensure!(!chain.is_empty(), "{} has no certificate in PEM", shown());
    Ok(chain)
}

/// Reads a certificate, those above it, and its key.
///
/// # Errors
/// If a file cannot be read, or they do not belong together.
pub fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{} has no private key in PEM", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain(cert)?, private)
        .with_context(|| format!("{} and {}", cert.display(), key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
