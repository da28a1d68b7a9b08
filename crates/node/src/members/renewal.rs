//! Renewal of the node's certificate while it runs: from when a third of its life is left.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_base::{Clock, NodeId};
use parking_lot::{Condvar, Mutex};

use super::member::Desk;
use super::roster::Known;
use super::visit::{Answer, Question, decode, encode};
use crate::authority::{Issued, Subject, key_of};
use crate::error::{Error, Result};
use crate::home::{NodeFile, NodeHome};
use crate::session::{Hub, Target, visit};
use crate::settings::Settings;

/// The longest time between two looks at the certificate; a failed renewal is tried again after it too.
const LOOK_MAX: Duration = Duration::from_mins(10);

/// Tells threads that the node stops.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// Tells them.
    pub fn ring(&self) {
        *self.rung.lock() = true;
        self.changed.notify_all();
    }

    /// Whether they were told.
    pub fn is_rung(&self) -> bool {
        *self.rung.lock()
    }

    /// Waits for it, for `time` at most. Whether it was rung.
    pub fn wait(&self, time: Duration) -> bool {
        let mut rung = self.rung.lock();
        if !*rung {
            self.changed.wait_for(&mut rung, time);
        }
        *rung
    }
}

/// What the thread needs.
pub struct Renewal {
    /// The node's folder.
    pub home: NodeHome,
    /// Who the node is.
    pub file: NodeFile,
    /// Makes certificates, if this node holds the authority's key.
    pub desk: Arc<Desk>,
    /// Which nodes there are.
    pub known: Arc<Known>,
    /// Uses the new certificate.
    pub hub: Weak<Hub>,
    /// Times.
    pub settings: Settings,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The node stops.
    pub bell: Arc<Bell>,
}

impl Renewal {
    /// Runs until the node stops.
    pub fn run(mut self) {
        let look = LOOK_MAX.min(self.settings.certificate_life / 10);
        while !self.bell.wait(look) {
            let margin = self.settings.certificate_life / 3;
            let due = self.file.expires - i64::try_from(margin.as_secs()).unwrap_or(i64::MAX);
            if self.clock.now().seconds < due {
                continue;
            }
            match self.renew() {
                Ok(()) => tracing::info!("the node's certificate was renewed"),
                Err(error) => tracing::warn!(
                    "the node's certificate, which expires at {} s after the epoch, cannot be renewed: {error}",
                    self.file.expires
                ),
            }
        }
    }

    fn renew(&mut self) -> Result<()> {
        let key = key_of(&self.home.key()?)?;
        let public_key = key.public_key_raw().to_vec();
        let issued = if self.home.authority(self.file.cluster)?.is_some() {
            self.desk.registrar.renew(self.file.node, &public_key)?
        } else {
            self.ask(&public_key)?
        };
        install(&self.home, &mut self.file, &issued)?;
        *self.desk.expires.lock() = issued.expires;
        if let Some(hub) = self.hub.upgrade() {
            hub.renew(self.home.identity(&self.file)?.credentials()?);
        }
        Ok(())
    }

    fn ask(&self, public_key: &[u8]) -> Result<Issued> {
        let sight = self.known.sight();
        let mut last = "no running node holds the key of the cluster's authority".to_owned();
        for (node, record) in &sight.nodes {
            if !record.has_authority || !sight.alive.contains_key(node) {
                continue;
            }
            match renewed_by(&self.home, &self.file, *node, &record.address, public_key, self) {
                Ok(issued) => return Ok(issued),
                Err(error) => last = error.to_string(),
            }
        }
        Err(Error::Unreachable(last))
    }
}

fn renewed_by(
    home: &NodeHome,
    file: &NodeFile,
    node: NodeId,
    address: &str,
    public_key: &[u8],
    renewal: &Renewal,
) -> Result<Issued> {
    let target = Target {
        address,
        name: Subject { cluster: file.cluster, node }.server_name()?,
        config: home.identity(file)?.credentials()?.client,
        timeout: renewal.settings.connect_timeout,
    };
    let question = encode(&Question::Renew { public_key: public_key.to_vec() })?;
    let answer = visit(&target, &*renewal.clock, file.cluster, question)?;
    match decode(&answer)? {
        Answer::Renewed(issued) => Ok(issued),
        _ => Err(Error::Invalid(format!("{address}: an answer to a different request"))),
    }
}

/// Puts a new certificate into the node's folder.
///
/// # Errors
/// If it cannot be written.
pub fn install(home: &NodeHome, file: &mut NodeFile, issued: &Issued) -> Result<()> {
    let authority = home.identity(file)?.authority;
    home.set_certificates(&issued.certificate, &authority)?;
    file.expires = issued.expires;
    home.set_node(file)
}
