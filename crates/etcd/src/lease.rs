//! Leases: keys that end unless somebody renews them.

use crate::Result;
use crate::connection::{Connection, Effect};

/// A lease, as etcd numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lasts its whole time again, counted from a moment between request and answer.
    Renewed,
    /// The lease is over, and its keys are gone.
    Over,
}

impl Connection {
    /// Asks for a lease that lasts `seconds` from a moment between request and answer. If it is not known whether the first
    /// request was carried out, a second is sent; a lease that nobody knows of ends by itself.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn lease_grant(&self, seconds: u32) -> Result<LeaseId> {
        let granted = self.call(Effect::Repeatable, 0, |member| {
            let mut leases = member.client.lease_client();
            async move { leases.grant(seconds.into(), None).await }
        });
        Ok(LeaseId(granted.await?.id()))
    }

    /// Renews a lease once. Count its time from when you called, not from the answer.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn lease_renew(&self, lease: LeaseId) -> Result<Renewal> {
        let renewed = self.call(Effect::Repeatable, 0, |member| {
            let mut leases = member.client.lease_client();
            async move {
                match leases.keep_alive(lease.0).await {
                    Ok(_) => Ok(Renewal::Renewed),
                    Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(Renewal::Over),
                    Err(error) => Err(error),
                }
            }
        });
        renewed.await
    }

    /// Ends a lease with its keys. One that is over already is not an error.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn lease_revoke(&self, lease: LeaseId) -> Result<()> {
        let revoked = self.call(Effect::Repeatable, 0, |member| {
            let mut leases = member.client.lease_client();
            async move {
                match leases.revoke(lease.0).await {
                    Ok(_) => Ok(()),
                    Err(etcd_client::Error::GRpcStatus(status))
                        if status.code() == tonic::Code::NotFound =>
                    {
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        });
        revoked.await
    }
}
