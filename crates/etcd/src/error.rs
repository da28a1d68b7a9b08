//! Why a call to etcd failed, and what is known of its outcome.

/// Outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. A kind exists only where the caller would act differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No member answered in time, or there is no majority of them. Nothing was changed; try again.
    #[error(
        "etcd at {endpoints} cannot be reached: {reason}. Check that its members run (etcdctl endpoint health) and that \
         their client port is open to this machine"
    )]
    Unreachable {
        /// The endpoints that were tried.
        endpoints: String,
        /// What the last one said.
        reason: String,
    },
    /// The database has reached its quota: etcd takes only reads and deletes. Nothing was changed.
    #[error(
        "etcd at {endpoint} has no space left for new keys. Delete data, compact and defragment it, then disarm the alarm \
         NOSPACE, or start it with a larger --quota-backend-bytes"
    )]
    NoSpace {
        /// The endpoint that said so.
        endpoint: String,
    },
    /// A change was sent, and its answer did not come: it was made, or is still on its way, or was lost. A read cannot settle
    /// that; the same transaction sent again does, if carrying it out makes its condition false.
    #[error("it is not known whether etcd at {endpoint} made a change: {reason}")]
    Unknown {
        /// The endpoint to which it was sent.
        endpoint: String,
        /// What happened.
        reason: String,
    },
    /// The history from the given revision on was compacted. Nothing was changed; read the present state.
    #[error("etcd at {endpoint} no longer has the history from revision {revision} on")]
    Compacted {
        /// The endpoint that said so.
        endpoint: String,
        /// The revision that was asked for; 0 if it is not known.
        revision: i64,
    },
    /// etcd does not take such a request: not permitted, too large, or nonsense. Nothing was changed, and a repetition will not
    /// help.
    #[error("etcd at {endpoint} refused: {reason}")]
    Refused {
        /// The endpoint that said so, or what was wrong before any was asked.
        endpoint: String,
        /// What it said.
        reason: String,
    },
}

/// What a failed request says of the member and of the outcome.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nothing was changed, and another member may do better.
    NextMember(String),
    /// It may have changed something.
    Open(String),
    /// Every member would say the same.
    Final(Error),
}

/// Judges what `endpoint` said to a request about `revision` (0: the present).
pub(crate) fn judge(endpoint: &str, revision: i64, error: &etcd_client::Error) -> Verdict {
    let refused =
        |reason: String| Verdict::Final(Error::Refused { endpoint: endpoint.to_owned(), reason });
    let etcd_client::Error::GRpcStatus(status) = error else {
        return refused(error.to_string());
    };
    let said = said(status);
    if never_sent(status) {
        return Verdict::NextMember(said);
    }
    match status.code() {
        tonic::Code::Unavailable if said.contains("no leader") => Verdict::NextMember(said),
        tonic::Code::ResourceExhausted if said.contains("space exceeded") => {
            Verdict::Final(Error::NoSpace { endpoint: endpoint.to_owned() })
        }
        tonic::Code::ResourceExhausted if said.contains("too many requests") => {
            Verdict::NextMember(said)
        }
        tonic::Code::OutOfRange if said.contains("compacted") => {
            Verdict::Final(Error::Compacted { endpoint: endpoint.to_owned(), revision })
        }
        tonic::Code::Ok
        | tonic::Code::Unavailable
        | tonic::Code::DeadlineExceeded
        | tonic::Code::Cancelled
        | tonic::Code::Aborted
        | tonic::Code::DataLoss
        | tonic::Code::Internal
        | tonic::Code::Unknown => Verdict::Open(said),
        tonic::Code::InvalidArgument
        | tonic::Code::NotFound
        | tonic::Code::AlreadyExists
        | tonic::Code::PermissionDenied
        | tonic::Code::ResourceExhausted
        | tonic::Code::FailedPrecondition
        | tonic::Code::OutOfRange
        | tonic::Code::Unimplemented
        | tonic::Code::Unauthenticated => refused(said),
    }
}

/// The message with the causes below it, which name the port, the certificate or the system's error.
fn said(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Whether there was no connection, so that the request never left this machine.
fn never_sent(status: &tonic::Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
