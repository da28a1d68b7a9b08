//! What a certificate says: the cluster and the number of the node.
//!
//! It stands in a DNS name, `node-NUMBER.CLUSTER.forebay.internal`, so that TLS itself checks who answers a call.

use forebay_base::NodeId;
use rustls::pki_types::{CertificateDer, ServerName};
use uuid::Uuid;

use crate::error::{Error, Result};

pub(super) const SUFFIX: &str = ".forebay.internal";

/// The DNS name in the certificates of the monitors of a cluster.
#[must_use]
pub fn monitor_name(cluster: Uuid) -> String {
    format!("monitor.{}{SUFFIX}", cluster.simple())
}

/// Whom a certificate names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The cluster.
    pub cluster: Uuid,
    /// The node.
    pub node: NodeId,
}

impl Subject {
    /// The DNS name in the certificate.
    #[must_use]
    pub fn dns_name(self) -> String {
        format!("node-{}.{}{SUFFIX}", self.node, self.cluster.simple())
    }

    /// The name that the certificate of a node that is called must hold.
    ///
    /// # Errors
    /// Never: the name is made of digits.
    pub fn server_name(self) -> Result<ServerName<'static>> {
        ServerName::try_from(self.dns_name()).map_err(|error| Error::Certificate(error.to_string()))
    }

    /// The subject of a DNS name that [`Subject::dns_name`] made.
    fn of_dns_name(name: &str) -> Option<Subject> {
        let (node, cluster) = name.strip_suffix(SUFFIX)?.strip_prefix("node-")?.split_once('.')?;
        let subject = Subject { cluster: cluster.parse().ok()?, node: NodeId(node.parse().ok()?) };
        (subject.dns_name() == name).then_some(subject)
    }

    /// Whom a certificate names, whose signature has been checked before.
    ///
    /// # Errors
    /// If it names no node of a cluster.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Subject> {
        let parsed = webpki::EndEntityCert::try_from(certificate)
            .map_err(|error| Error::Certificate(format!("unreadable: {error}")))?;
        let found = parsed.valid_dns_names().find_map(Subject::of_dns_name);
        found.ok_or_else(|| Error::Certificate("it names no node of a cluster".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_node_of_which_cluster() {
        let subject = Subject { cluster: Uuid::from_u128(7), node: NodeId(12) };
        assert_eq!(Subject::of_dns_name(&subject.dns_name()), Some(subject));
        let bare = subject.cluster.simple().to_string();
        for name in [
            "node-1.forebay.internal",
            "localhost",
            "",
            &format!("node-012.{bare}.forebay.internal"),
            &format!("node-+1.{bare}.forebay.internal"),
            &format!("node-99999999999.{bare}.forebay.internal"),
            &format!("node-1.{}.forebay.internal", subject.cluster),
        ] {
            assert_eq!(Subject::of_dns_name(name), None, "{name}");
        }
    }
}
